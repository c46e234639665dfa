//! Buckets of S3 and of servers that speak its protocol.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ini::Ini;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpService, ReqwestConnector,
};
use object_store::multipart::MultipartStore;
use object_store::path::Path as Key;
use object_store::signer::{SignedUrlOptions, Signer};
use object_store::{ClientOptions, ObjectStore, Result, RetryConfig};
use serde::Deserialize;

use super::StorageOptions;
use super::object::{Faults, SLOWEST, generic};

/// Seconds in which a server has to accept a connection.
const CONNECT_SECONDS: u64 = 10;
/// Seconds for which a signed URL holds.
const SIGNED_SECONDS: u64 = 300;

/// A bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) store: Arc<AmazonS3>,
    http: HttpClient,
}

/// An upload that was begun and neither completed nor aborted.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Unfinished {
    pub(super) key: String,
    pub(super) upload_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct UploadList {
    #[serde(rename = "Upload")]
    uploads: Vec<Unfinished>,
    is_truncated: bool,
    next_key_marker: String,
    next_upload_id_marker: String,
}

impl Bucket {
    pub(super) fn open(name: &str, options: &StorageOptions, faults: &Arc<Faults>) -> Result<Self> {
        let mut builder = with_profile(AmazonS3Builder::from_env(), options)?;
        if let Some(endpoint) = &options.s3.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &options.s3.region {
            builder = builder.with_region(region);
        }
        let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
        let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
        if let Some(path_style) = options.s3.path_style {
            builder = builder.with_virtual_hosted_style_request(!path_style);
        }
        let client = ClientOptions::new()
            .with_connect_timeout(Duration::from_secs(CONNECT_SECONDS))
            .with_read_timeout(Duration::from_secs(options.timeout))
            .with_timeout(Duration::from_secs(options.timeout) * SLOWEST)
            .with_allow_http(is_plain);
        // What TLS protects need not be hashed for the signature too.
        let is_hashed = builder.get_config_value(&AmazonS3ConfigKey::UnsignedPayload);
        if !is_plain && is_hashed.is_none() {
            builder = builder.with_unsigned_payload(true);
        }
        let connector = Counting {
            faults: Arc::clone(faults),
        };
        let http = connector.connect(&client)?;
        let retry = RetryConfig {
            max_retries: options.retries,
            ..RetryConfig::default()
        };
        let store = builder
            .with_bucket_name(name)
            .with_client_options(client)
            .with_retry(retry)
            .with_http_connector(connector)
            .build()?;
        Ok(Self {
            store: Arc::new(store),
            http,
        })
    }

    pub(super) fn client(&self) -> Arc<dyn ObjectStore> {
        Arc::<AmazonS3>::clone(&self.store)
    }

    /// Lists unfinished uploads of objects whose keys start so.
    ///
    /// `object_store` has no such request. MinIO only knows whole keys.
    async fn unfinished(&self, prefix: &str) -> Result<Vec<Unfinished>> {
        let mut found = Vec::new();
        let mut markers = Vec::new();
        loop {
            let mut query = vec![
                ("uploads".to_owned(), String::new()),
                ("prefix".to_owned(), prefix.to_owned()),
            ];
            query.append(&mut markers);
            let page = self.unfinished_page(query).await?;
            found.extend(page.uploads);
            if !page.is_truncated || page.next_key_marker.is_empty() {
                return Ok(found);
            }
            markers = vec![
                ("key-marker".to_owned(), page.next_key_marker),
                ("upload-id-marker".to_owned(), page.next_upload_id_marker),
            ];
        }
    }

    async fn unfinished_page(&self, query: Vec<(String, String)>) -> Result<UploadList> {
        let options = SignedUrlOptions::new().with_query(query);
        let valid = Duration::from_secs(SIGNED_SECONDS);
        let method = http::Method::GET;
        let url = self
            .store
            .signed_url_opts(method, &Key::default(), valid, &options)
            .await?;
        // The URL holds a signature, so no error may show it.
        let request = http::Request::get(url.as_str())
            .body(HttpRequestBody::empty())
            .map_err(|_error| generic("the request to list uploads cannot be built".to_owned()))?;
        let unreadable = |error: &dyn std::error::Error| {
            generic(format!("the list of uploads cannot be read: {error}"))
        };
        let response = self
            .http
            .execute(request)
            .await
            .map_err(|error| unreadable(&error))?;
        let status = response.status();
        if status == http::StatusCode::NOT_IMPLEMENTED {
            // Such a server keeps them until it tidies up on its own.
            return Ok(UploadList::default());
        }
        if !status.is_success() {
            return Err(generic(format!("uploads cannot be listed: {status}")));
        }
        let body = response.into_body().bytes().await;
        let body = body.map_err(|error| unreadable(&error))?;
        quick_xml::de::from_reader(body.as_ref()).map_err(|error| unreadable(&error))
    }

    /// Gives up the uploads that nobody finished: of an object, or of those below a directory.
    pub(super) async fn abort_unfinished(&self, key: &Key, is_dir: bool) -> Result<()> {
        let prefix = if is_dir {
            format!("{key}/")
        } else {
            key.to_string()
        };
        for Unfinished {
            key: found,
            upload_id,
        } in self.unfinished(&prefix).await?
        {
            if !is_dir && found != prefix {
                continue;
            }
            match self
                .store
                .abort_multipart(&Key::parse(found)?, &upload_id)
                .await
            {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The client of `object_store`, counting what it sends and how often that fails.
#[derive(Clone, Debug)]
struct Counting {
    faults: Arc<Faults>,
}

#[derive(Debug)]
struct CountingClient {
    inner: HttpClient,
    faults: Arc<Faults>,
}

impl HttpConnector for Counting {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        Ok(HttpClient::new(CountingClient {
            inner: ReqwestConnector::default().connect(options)?,
            faults: Arc::clone(&self.faults),
        }))
    }
}

#[async_trait]
impl HttpService for CountingClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if self.faults.is_spent() {
            let problem = std::io::Error::other(self.faults.problem());
            // Of this kind, it is not repeated.
            return Err(HttpError::new(HttpErrorKind::Unknown, problem));
        }
        self.faults.request();
        let answer = self.inner.execute(request).await;
        let is_fault = match &answer {
            Ok(response) => {
                let status = response.status();
                status.is_server_error() || status == http::StatusCode::TOO_MANY_REQUESTS
            }
            Err(_) => true,
        };
        if is_fault {
            self.faults.add();
        }
        answer
    }
}

/// Fills in what the user's profile says and the environment does not.
fn with_profile(builder: AmazonS3Builder, options: &StorageOptions) -> Result<AmazonS3Builder> {
    let has = |key| builder.get_config_value(&key).is_some();
    let named = options
        .s3
        .profile
        .clone()
        .or_else(|| env::var("AWS_PROFILE").ok());
    // Keys of the environment come before a profile that the job does not name, as with Amazon's
    // own tools.
    let has_keys = has(AmazonS3ConfigKey::AccessKeyId);
    let has_token = env::var_os("AWS_WEB_IDENTITY_TOKEN_FILE").is_some() && named.is_none();
    if options.s3.profile.is_none() && (has_keys || has_token) {
        return Ok(builder);
    }
    let profile = named.clone().unwrap_or_else(|| "default".to_owned());
    let credentials = section("AWS_SHARED_CREDENTIALS_FILE", "credentials", &profile)?;
    let config_name = if profile == "default" {
        profile.clone()
    } else {
        format!("profile {profile}")
    };
    let config = section("AWS_CONFIG_FILE", "config", &config_name)?;
    if let Some(name) = named.filter(|_| credentials.is_empty() && config.is_empty()) {
        return Err(generic(format!(
            "no profile `{name}` in ~/.aws/credentials or ~/.aws/config"
        )));
    }
    let value = |key: &str| {
        let both = credentials.iter().chain(&config);
        both.clone()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.clone())
    };
    if value("role_arn")
        .or_else(|| value("sso_session"))
        .or_else(|| value("credential_process"))
        .is_some()
        && value("aws_access_key_id").is_none()
    {
        return Err(generic(format!(
            "profile `{profile}` has no keys of its own; roles, single sign-on and programs are not \
             supported: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
        )));
    }
    let of_profile = [
        ("aws_access_key_id", AmazonS3ConfigKey::AccessKeyId),
        ("aws_secret_access_key", AmazonS3ConfigKey::SecretAccessKey),
        ("aws_session_token", AmazonS3ConfigKey::Token),
    ];
    let of_place = [
        ("region", AmazonS3ConfigKey::Region),
        ("endpoint_url", AmazonS3ConfigKey::Endpoint),
    ];
    let mut filled = builder;
    for (name, key) in of_profile {
        if let Some(value) = value(name) {
            filled = filled.with_config(key, value);
        }
    }
    for (name, key) in of_place {
        if let Some(value) = value(name)
            && filled.get_config_value(&key).is_none()
        {
            filled = filled.with_config(key, value);
        }
    }
    Ok(filled)
}

/// Reads a section of one of Amazon's files; empty where there is none.
fn section(variable: &str, name: &str, section: &str) -> Result<Vec<(String, String)>> {
    let path = match env::var_os(variable) {
        Some(path) => PathBuf::from(path),
        None => match env::home_dir() {
            Some(home) => home.join(".aws").join(name),
            None => return Ok(Vec::new()),
        },
    };
    if !path.is_file() {
        return Ok(Vec::new());
    }
    // The error of the parser may show a line of the file, and with it a key.
    let file = Ini::load_from_file(&path).map_err(|_error| {
        generic(format!(
            "{} cannot be read as a file of profiles",
            path.display()
        ))
    })?;
    let found = file.section(Some(section));
    let pairs = found.map(|found| found.iter().map(|(k, v)| (k.to_owned(), v.to_owned())));
    Ok(pairs.map(Iterator::collect).unwrap_or_default())
}
