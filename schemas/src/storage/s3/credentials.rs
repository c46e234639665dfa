//! Sources of credentials outside the job file, with errors that say how to set credentials.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key, AwsCredential};
use object_store::{BackoffConfig, CredentialProvider, Error, Result, RetryConfig};

use crate::error::root_cause;
use crate::storage::fault::Said;

/// Greatest number of repeated requests to the machine's server of credentials: it is near, or
/// there is none.
const RETRIES: usize = 2;

/// A source of credentials whose errors say how to set them.
#[derive(Debug)]
struct Explained {
    inner: Arc<dyn CredentialProvider<Credential = AwsCredential>>,
    source: &'static str,
}

#[async_trait]
impl CredentialProvider for Explained {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> Result<Arc<AwsCredential>> {
        self.inner.get_credential().await.map_err(|error| {
            let cause = root_cause(&error).map(ToString::to_string);
            let cause = cause.unwrap_or_default();
            let problem = format!(
                "no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a \
                 profile that has keys in `storage.s3.profile`; {} gives none either ({cause})",
                self.source
            );
            Error::Unauthenticated {
                path: String::new(),
                source: Box::new(Said(problem)),
            }
        })
    }
}

/// Makes a builder without keys name the source of credentials in its errors.
pub(super) fn with_reasons(builder: AmazonS3Builder) -> Result<AmazonS3Builder> {
    let has = |key| builder.get_config_value(&key).is_some();
    let is_unsigned = builder.get_config_value(&Key::SkipSignature);
    let is_unsigned = is_unsigned.is_some_and(|text| text != "false");
    if has(Key::AccessKeyId) || has(Key::SecretAccessKey) || is_unsigned {
        return Ok(builder);
    }
    let source = if has(Key::WebIdentityTokenFile) && has(Key::RoleArn) {
        "the role of AWS_WEB_IDENTITY_TOKEN_FILE"
    } else if has(Key::ContainerCredentialsRelativeUri) || has(Key::ContainerCredentialsFullUri) {
        "the container"
    } else {
        "the metadata service of this machine"
    };
    let quick = RetryConfig {
        max_retries: RETRIES,
        retry_timeout: Duration::from_secs(10),
        backoff: BackoffConfig::default(),
    };
    let unexplained = builder.clone().with_retry(quick).build()?;
    let inner = Arc::clone(unexplained.credentials());
    Ok(builder.with_credentials(Arc::new(Explained { inner, source })))
}
