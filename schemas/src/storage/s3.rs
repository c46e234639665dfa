//! Buckets of S3 and of servers that speak its protocol.

mod client;
mod credentials;
mod listing;
mod settings;
#[cfg(test)]
pub(crate) mod tests;
mod uploads;

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3;
use object_store::client::{HttpClient, HttpConnector, ReqwestConnector};
use object_store::{BackoffConfig, ClientOptions, ObjectStore, Result, RetryConfig};

pub(super) use settings::{Settings, check_endpoint};

use super::StorageOptions;
use super::health::Health;
use super::runtime::SLOWEST;
use client::Connector;

/// Milliseconds of a second between attempts; fewer in tests.
const SECOND: u64 = if cfg!(test) { 2 } else { 1000 };
/// Seconds within which a server must accept a connection.
const CONNECT_SECONDS: u64 = 10;
/// Time after which a failed request is not sent again. A signature is valid for 15 minutes.
const RETRIED_FOR: Duration = Duration::from_secs(180);
/// Pauses before a request is sent again: each is drawn between the first pause and `base` times
/// the previous one, so that some forty attempts take minutes.
const BACKOFF: BackoffConfig = BackoffConfig {
    init_backoff: Duration::from_millis(SECOND / 5 + 1),
    max_backoff: Duration::from_millis(15 * SECOND),
    base: 3.0,
};

/// A bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    store: Arc<AmazonS3>,
    /// Sends requests that `object_store` does not offer.
    http: HttpClient,
}

impl Bucket {
    pub(super) fn open(
        name: &str,
        settings: Settings,
        options: &StorageOptions,
        health: &Arc<Health>,
    ) -> Result<Self> {
        let connector = Connector::over(ReqwestConnector::default(), health);
        Self::open_with(name, settings, options, connector)
    }

    fn open_with(
        name: &str,
        settings: Settings,
        options: &StorageOptions,
        connector: Connector,
    ) -> Result<Self> {
        let is_plain = settings.endpoint().starts_with("http://");
        let mut builder = settings.builder;
        let client = ClientOptions::new()
            .with_connect_timeout(Duration::from_secs(CONNECT_SECONDS))
            .with_read_timeout(Duration::from_secs(options.timeout))
            .with_timeout(Duration::from_secs(options.timeout) * SLOWEST)
            .with_allow_http(is_plain);
        // TLS protects the body, so the signature need not include its hash.
        if !is_plain && !settings.chooses_hashing {
            builder = builder.with_unsigned_payload(true);
        }
        let http = connector.connect(&client)?;
        let builder = builder
            .with_bucket_name(name)
            .with_client_options(client)
            .with_retry(RetryConfig {
                max_retries: options.retries,
                retry_timeout: RETRIED_FOR,
                backoff: BACKOFF,
            });
        let store = credentials::with_reasons(builder)?
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
}
