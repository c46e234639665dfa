//! The stores of this process, each opened once with the options of the job.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use backon::{ExponentialBuilder, Retryable};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use object_store::{ListResult, ObjectStore};

use super::StorageOptions;
use super::fault::{generic, is_answered, may_pass, plain};
use super::health::Health;
use super::runtime::{check_started, guarded};
use crate::error::{Result, SchemaError};

/// How often a request is repeated if the store's client does not repeat requests on its own.
const REPEATS: usize = 4;

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Registry {
    options: StorageOptions,
    /// Stores by root, such as `s3://bucket`.
    stores: BTreeMap<String, Arc<Store>>,
}

/// Requests of this process to all stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests that were sent.
    pub requests: u64,
    /// Requests among those that failed with a fault that another attempt may not meet.
    pub faults: u64,
}

/// A bucket of S3 or an HDFS.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) client: Arc<dyn ObjectStore>,
    #[cfg(feature = "s3")]
    pub(super) s3: Option<super::s3::Bucket>,
    /// Whether an object becomes visible only when it is complete, and a write can require the
    /// version that it replaces; a store without these two renames in one step.
    pub(super) is_atomic: bool,
    pub(super) health: Arc<Health>,
    /// Limit of a request.
    pub(super) timeout: Duration,
}

/// Sets the options of stores that are opened from now on.
pub fn configure(options: StorageOptions) {
    let mut registry = registry();
    registry.options = options;
    registry.stores.clear();
}

/// Returns the options of stores, for a process that this one starts.
pub fn options() -> StorageOptions {
    registry().options.clone()
}

/// Returns how many requests this process sent to the open stores.
pub fn traffic() -> Traffic {
    let mut sum = Traffic::default();
    for store in registry().stores.values() {
        sum.requests += store.health.requests();
        sum.faults += store.health.faults();
    }
    sum
}

/// Returns the store of a scheme and an authority, opened at its first use; `path` names it in errors.
pub(super) fn store_of(kind: &str, authority: &str, path: &Path) -> Result<Arc<Store>> {
    let root = format!("{kind}://{authority}");
    let mut registry = registry();
    if let Some(store) = registry.stores.get(&root) {
        return Ok(Arc::clone(store));
    }
    let store = Arc::new(Store::open(kind, authority, &registry.options, path)?);
    registry.stores.insert(root, Arc::clone(&store));
    Ok(store)
}

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    #[cfg_attr(
        not(any(feature = "s3", feature = "hdfs")),
        expect(unused_variables, reason = "such a build has no stores")
    )]
    fn open(kind: &str, authority: &str, options: &StorageOptions, path: &Path) -> Result<Self> {
        let failed = |error| SchemaError::io("open the store of", path)(plain(error));
        check_started().map_err(failed)?;
        if let Some(problem) = authority_problem(kind, authority) {
            return Err(failed(super::fault::lasting(problem)));
        }
        let timeout = Duration::from_secs(options.timeout);
        let health = |endpoint| Arc::new(Health::new(endpoint, options.faults_max));
        match kind {
            #[cfg(feature = "s3")]
            "s3" => {
                let settings = super::s3::Settings::of_process(options)?;
                let health = health(settings.endpoint());
                let bucket = super::s3::Bucket::open(authority, settings, options, &health);
                let bucket = bucket.map_err(failed)?;
                Ok(Self {
                    client: bucket.client(),
                    s3: Some(bucket),
                    is_atomic: true,
                    health,
                    timeout,
                })
            }
            #[cfg(feature = "hdfs")]
            "hdfs" => Ok(Self {
                client: super::hdfs::open(authority).map_err(failed)?,
                #[cfg(feature = "s3")]
                s3: None,
                is_atomic: false,
                health: health(format!("hdfs://{authority}")),
                timeout,
            }),
            #[cfg(test)]
            "swapping" | "renaming" => Ok(Self {
                client: Arc::new(object_store::memory::InMemory::new()),
                #[cfg(feature = "s3")]
                s3: None,
                is_atomic: kind == "swapping",
                health: health(format!("{kind}://{authority}")),
                timeout,
            }),
            _ => Err(failed(generic(format!(
                "this build has no feature `{kind}`"
            )))),
        }
    }

    /// Performs a request that may be repeated, in the runtime.
    pub(super) async fn repeat<T, F>(&self, request: impl Fn() -> F) -> object_store::Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let attempt = || async {
            // The client of S3 limits and counts requests itself.
            if self.has_client_of_s3() {
                return guarded(request()).await;
            }
            let limited = async {
                let answer = tokio::time::timeout(self.timeout, guarded(request())).await;
                let late = || generic(format!("no answer within {:?}", self.timeout));
                answer.unwrap_or_else(|_elapsed| Err(late()))
            };
            let fault = |answer: &object_store::Result<T>| {
                let error = answer.as_ref().err().filter(|error| may_pass(error));
                error.map(ToString::to_string)
            };
            self.health.watch(limited, fault).await
        };
        let started = Instant::now();
        let policy = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_times(REPEATS)
            .with_jitter();
        attempt
            .retry(policy)
            .when(|error| {
                may_pass(error)
                    && !is_answered(error)
                    && !self.health.is_spent()
                    && started.elapsed() < 2 * self.timeout
            })
            .await
    }

    /// Lists a directory: all objects below it or, if `is_shallow`, the objects and directories in
    /// it. Ends early once it has found `num_max` of them.
    pub(super) async fn list(
        &self,
        dir: &Key,
        is_shallow: bool,
        num_max: usize,
    ) -> object_store::Result<ListResult> {
        #[cfg(feature = "s3")]
        if let Some(bucket) = &self.s3 {
            return bucket.list(dir, is_shallow, num_max).await;
        }
        if is_shallow {
            return self.client.list_with_delimiter(Some(dir)).await;
        }
        let objects = self.client.list(Some(dir)).take(num_max);
        Ok(ListResult {
            common_prefixes: Vec::new(),
            objects: objects.try_collect().await?,
            extensions: object_store::Extensions::default(),
        })
    }

    #[cfg(feature = "s3")]
    fn has_client_of_s3(&self) -> bool {
        self.s3.is_some()
    }

    #[cfg(not(feature = "s3"))]
    fn has_client_of_s3(&self) -> bool {
        false
    }
}

/// Returns the problem of the part of a URL between its scheme and its path, if there is one.
pub(crate) fn authority_problem(kind: &str, authority: &str) -> Option<String> {
    if authority.contains('@') {
        let problem = "holds a user name or password, which belong into the environment";
        return Some(problem.to_owned());
    }
    match kind {
        "s3" => {
            let is_end = |c: char| c.is_ascii_alphanumeric();
            let is_name = !authority.is_empty()
                && authority.starts_with(is_end)
                && authority.ends_with(is_end)
                && authority
                    .split('.')
                    .all(|part| !part.is_empty() && !part.starts_with("xn--"))
                && authority.chars().all(|c| is_end(c) || "-._".contains(c));
            let problem = "lacks the name of a bucket; allowed is s3://BUCKET/KEY, a bucket of \
                           letters, digits, `-`, `.` and `_`";
            (!is_name).then(|| problem.to_owned())
        }
        "hdfs" => {
            let (host, port) = authority.split_once(':').unwrap_or((authority, "1"));
            let is_host = host
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
            let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
            let problem = "names no host; allowed is hdfs://HOST:PORT/PATH, hdfs://SERVICE/PATH \
                           and hdfs:///PATH";
            (!(is_host && is_port)).then(|| problem.to_owned())
        }
        _ => None,
    }
}

#[cfg(all(test, feature = "s3"))]
impl Store {
    /// Returns the store of a bucket.
    pub(super) fn of_bucket(
        bucket: super::s3::Bucket,
        health: Arc<Health>,
        timeout: Duration,
    ) -> Self {
        Self {
            client: bucket.client(),
            s3: Some(bucket),
            is_atomic: true,
            health,
            timeout,
        }
    }

    /// Registers a store for paths that start with `root`.
    pub(super) fn register(self, root: &str) {
        registry().stores.insert(root.to_owned(), Arc::new(self));
    }
}
