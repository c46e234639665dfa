//! Options of stores in a job file.

use serde::{Deserialize, Serialize};

use crate::error::Result;

/// Table `[storage]` of a job file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StorageOptions {
    /// How often a request is sent again after a fault that another attempt may not meet.
    pub retries: usize,
    /// Number of faults of all requests, beyond which the job fails.
    pub faults_max: u64,
    /// Seconds that a server may be silent before a request is sent again.
    pub timeout: u64,
    /// Options of S3.
    pub s3: S3Options,
}

/// Table `[storage.s3]` of a job file; the environment and the profile give the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct S3Options {
    /// URL of a server other than Amazon's.
    pub endpoint: Option<String>,
    /// Region of the buckets.
    pub region: Option<String>,
    /// Whether the bucket is in the path of a URL and not in its host name. Default: true if there
    /// is an endpoint.
    pub path_style: Option<bool>,
    /// Name of a profile in `~/.aws/credentials` and `~/.aws/config`.
    pub profile: Option<String>,
}

impl Default for StorageOptions {
    fn default() -> Self {
        Self {
            retries: 40,
            faults_max: 10_000,
            timeout: 60,
            s3: S3Options::default(),
        }
    }
}

impl StorageOptions {
    /// Checks the endpoint of S3. The caller checks the bounds of numbers.
    ///
    /// # Errors
    ///
    /// Names the key, and the allowed values.
    pub fn check(&self) -> Result<()> {
        #[cfg(feature = "s3")]
        if let Some(endpoint) = &self.s3.endpoint {
            super::s3::check_endpoint("storage.s3.endpoint", endpoint)?;
        }
        Ok(())
    }
}
