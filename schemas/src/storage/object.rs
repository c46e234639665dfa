//! Stores, and one object of a store.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use backon::{ExponentialBuilder, Retryable};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Key;
use object_store::{
    Error, GetOptions, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload, UpdateVersion,
};
use tokio::runtime::Runtime;

use super::{SCHEMES, StorageOptions};
use crate::error::{Result, SchemaError};

/// Longest range of one request, so that a fault costs little to repeat.
const RANGE_BYTES_MAX: u64 = 8 << 20;
/// Requests of one read at a time.
const REQUESTS_MAX: usize = 8;
/// Times that a request may take as long as its server may be silent.
pub(super) const SLOWEST: u32 = 10;
/// Times that a request is repeated as a whole whose faults the store's client does not repeat.
const REPEATS: usize = 4;

/// Threads that talk to stores; callers wait for them.
static RUNTIME: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("storage")
        .enable_all()
        .build()
        .ok()
});

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Registry {
    options: StorageOptions,
    /// By root, such as `s3://bucket`.
    stores: BTreeMap<String, Arc<Store>>,
}

/// What stores were asked for, by this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests that were sent.
    pub requests: u64,
    /// Of those, the ones that failed in a way that may pass.
    pub faults: u64,
}

/// A bucket of S3 or an HDFS.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) client: Arc<dyn ObjectStore>,
    #[cfg(feature = "s3")]
    pub(super) s3: Option<super::s3::Bucket>,
    /// Whether what is written becomes visible only when it is complete, and may depend on the version
    /// that it replaces; a store that cannot do that renames in one step.
    pub(super) is_atomic: bool,
    faults: Arc<Faults>,
    /// Limit of a request.
    pub(super) timeout: Duration,
}

/// Counts requests and their faults, of which a job is allowed so many.
#[derive(Debug)]
pub(super) struct Faults {
    requests: AtomicU64,
    count: AtomicU64,
    max: u64,
}

/// An object, or a directory, of a store.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(super) store: Arc<Store>,
    pub(super) key: Key,
    pub(super) path: PathBuf,
}

/// What tells one content of an object from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) size: u64,
    e_tag: Option<String>,
    modified: chrono::DateTime<chrono::Utc>,
}

/// What has to hold for an object to be written.
#[derive(Clone, Debug)]
pub(crate) enum Put {
    /// There is none.
    Absent,
    /// It is this version; HDFS cannot check it.
    Unchanged(Version),
}

/// Sets how stores are reached that are used from here on.
pub fn configure(options: StorageOptions) {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    registry.options = options;
    registry.stores.clear();
}

/// Returns how stores are reached, for a process that this one starts.
pub fn options() -> StorageOptions {
    let registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    registry.options.clone()
}

/// Returns what the open stores were asked for.
pub fn traffic() -> Traffic {
    let registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let mut sum = Traffic::default();
    for store in registry.stores.values() {
        sum.requests += store.faults.requests.load(Ordering::Relaxed);
        sum.faults += store.faults.count.load(Ordering::Relaxed);
    }
    sum
}

/// Returns the object of a URL; none for a local path.
pub(crate) fn object(path: &Path) -> Result<Option<Object>> {
    let text = path.to_string_lossy();
    let Some((scheme, rest)) = text.split_once("://") else {
        return Ok(None);
    };
    let Some((kind, _)) = SCHEMES.iter().find(|(_, known)| *known == scheme) else {
        return Ok(None);
    };
    let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
    let key = Key::parse(key.trim_end_matches('/'))
        .map_err(|error| SchemaError::io("use", path)(std::io::Error::other(error)))?;
    let root = format!("{kind}://{authority}");
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let store = match registry.stores.get(&root) {
        Some(store) => Arc::clone(store),
        None => {
            let store = Store::open(kind, authority, &registry.options)
                .map_err(|error| SchemaError::io("open the store of", path)(plain(error)))?;
            let store = Arc::new(store);
            registry.stores.insert(root, Arc::clone(&store));
            store
        }
    };
    Ok(Some(Object {
        store,
        key,
        path: path.to_owned(),
    }))
}

impl Store {
    #[cfg_attr(
        not(any(feature = "s3", feature = "hdfs")),
        expect(unused_variables, reason = "such a build has no stores")
    )]
    fn open(kind: &str, authority: &str, options: &StorageOptions) -> object_store::Result<Self> {
        let faults = Arc::new(Faults {
            requests: AtomicU64::new(0),
            count: AtomicU64::new(0),
            max: options.faults_max,
        });
        let timeout = Duration::from_secs(options.timeout);
        match kind {
            #[cfg(feature = "s3")]
            "s3" => {
                let bucket = super::s3::Bucket::open(authority, options, &faults)?;
                Ok(Self {
                    client: bucket.client(),
                    s3: Some(bucket),
                    is_atomic: true,
                    faults,
                    timeout,
                })
            }
            #[cfg(feature = "hdfs")]
            "hdfs" => Ok(Self {
                client: super::hdfs::open(authority)?,
                #[cfg(feature = "s3")]
                s3: None,
                is_atomic: false,
                faults,
                timeout,
            }),
            #[cfg(test)]
            "swapping" | "renaming" => Ok(Self {
                client: Arc::new(object_store::memory::InMemory::new()),
                #[cfg(feature = "s3")]
                s3: None,
                is_atomic: kind == "swapping",
                faults,
                timeout,
            }),
            _ => Err(generic(format!("this build has no feature `{kind}`"))),
        }
    }

    /// Performs a request that may be repeated, in the runtime.
    async fn repeat<T, F>(&self, request: impl Fn() -> F) -> object_store::Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let attempt = || async {
            // The client of S3 has limits, and counts, of its own.
            if self.has_client_of_s3() {
                return request().await;
            }
            self.faults.requests.fetch_add(1, Ordering::Relaxed);
            let answer = tokio::time::timeout(self.timeout, request()).await;
            let late = || generic(format!("no answer within {:?}", self.timeout));
            let answer = answer.unwrap_or_else(|_elapsed| Err(late()));
            if answer.as_ref().is_err_and(may_pass) {
                self.faults.add();
            }
            answer
        };
        let started = Instant::now();
        let policy = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_times(REPEATS)
            .with_jitter();
        attempt
            .retry(policy)
            .when(|error| {
                may_pass(error) && !self.faults.is_spent() && started.elapsed() < 2 * self.timeout
            })
            .await
    }
}

impl Store {
    #[cfg(feature = "s3")]
    fn has_client_of_s3(&self) -> bool {
        self.s3.is_some()
    }

    #[cfg(not(feature = "s3"))]
    fn has_client_of_s3(&self) -> bool {
        false
    }
}

impl Faults {
    #[cfg(feature = "s3")]
    pub(super) fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells whether the job has met as many faults as it may.
    pub(super) fn is_spent(&self) -> bool {
        self.count.load(Ordering::Relaxed) > self.max
    }

    #[cfg(feature = "s3")]
    pub(super) fn problem(&self) -> String {
        format!(
            "the job met more than {} faults (`storage.faults_max`)",
            self.max
        )
    }
}

impl Version {
    fn of(meta: &ObjectMeta) -> Self {
        Self {
            size: meta.size,
            e_tag: meta.e_tag.clone(),
            modified: meta.last_modified,
        }
    }

    /// Returns what fingerprints take for the contents.
    pub(crate) fn fingerprint(&self) -> String {
        match &self.e_tag {
            Some(e_tag) => format!("{} {e_tag}", self.size),
            None => format!("{} {}", self.size, self.modified.timestamp_micros()),
        }
    }
}

impl Object {
    /// Reads the object whole.
    pub(crate) fn read(&self) -> Result<Option<(Vec<u8>, Version)>> {
        let found = self.call("read", |client, key| async move {
            let found = client.get(&key).await?;
            let version = Version::of(&found.meta);
            Ok((Vec::from(found.bytes().await?), version))
        });
        missing(found)
    }

    /// Returns the version of the object there is now.
    pub(crate) fn version(&self) -> Result<Option<Version>> {
        // A store has no object without a name.
        if self.key.as_ref().is_empty() {
            return Ok(None);
        }
        missing(self.call("look up", |client, key| async move {
            client.head(&key).await.map(|meta| Version::of(&meta))
        }))
    }

    pub(crate) fn put(&self, bytes: Vec<u8>) -> Result<()> {
        let payload = PutPayload::from(bytes);
        self.call("write", move |client, key| {
            let payload = payload.clone();
            async move { client.put(&key, payload).await.map(|_| ()) }
        })
    }

    /// Writes the object if the condition holds; false if it does not.
    ///
    /// False is also what a repeated request gets whose first answer was lost.
    pub(crate) fn put_if(&self, condition: Put, bytes: Vec<u8>) -> Result<bool> {
        let may_be_gone = matches!(condition, Put::Unchanged(_));
        let mode = match condition {
            Put::Absent => PutMode::Create,
            Put::Unchanged(version) if self.store.is_atomic => PutMode::Update(UpdateVersion {
                e_tag: version.e_tag,
                version: None,
            }),
            Put::Unchanged(_) => PutMode::Overwrite,
        };
        let payload = PutPayload::from(bytes);
        let written = self.try_call(move |client, key| {
            let options = PutOptions::from(mode.clone());
            let payload = payload.clone();
            async move { client.put_opts(&key, payload, options).await.map(|_| ()) }
        });
        match written {
            Ok(()) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            // HDFS writes aside first, which whoever holds a lock may have tidied up.
            Err(Error::NotFound { .. }) if may_be_gone || !self.store.is_atomic => Ok(false),
            Err(error) => Err(self.error("write", error)),
        }
    }

    pub(crate) fn remove(&self) -> Result<()> {
        missing(self.call(
            "remove",
            |client, key| async move { client.delete(&key).await },
        ))
        .map(|_| ())
    }

    /// Gives the object another name, in one step; only where the store can. False if it is not there.
    pub(crate) fn rename(&self, to: &Self) -> Result<bool> {
        let target = to.key.clone();
        self.call("rename", move |client, key| {
            let target = target.clone();
            async move {
                let Err(error) = client.rename(&key, &target).await else {
                    return Ok(true);
                };
                // The answer to an earlier attempt may have been lost.
                match client.head(&key).await {
                    Err(Error::NotFound { .. }) => Ok(client.head(&target).await.is_ok()),
                    _ => Err(error),
                }
            }
        })
    }

    /// Gives the object another name, in place of what had that name; S3 copies it and removes the
    /// original.
    pub(crate) fn replace(&self, to: &Self) -> Result<()> {
        if !self.store.is_atomic {
            to.remove()?;
            return match self.rename(to)? {
                true => Ok(()),
                false => {
                    let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
                    Err(SchemaError::io("rename", &self.path)(missing))
                }
            };
        }
        let target = to.key.clone();
        self.call("copy", move |client, key| {
            let target = target.clone();
            async move { client.copy(&key, &target).await }
        })?;
        self.remove()
    }

    /// Lists all objects below a directory: their names below it, and versions.
    pub(crate) fn list(&self) -> Result<Vec<(String, Version)>> {
        let mut found = self.call("list", |client, key| async move {
            let metas: Vec<ObjectMeta> = client.list(Some(&key)).try_collect().await?;
            let below = |meta: ObjectMeta| {
                let name = meta.location.prefix_match(&key)?;
                let name: Key = name.collect();
                // Consoles leave an object that has the name of a directory.
                let is_marker = name.as_ref().is_empty();
                (!is_marker).then(|| (name.to_string(), Version::of(&meta)))
            };
            Ok(metas.into_iter().filter_map(below).collect::<Vec<_>>())
        })?;
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(found)
    }

    /// Returns the names of objects and directories in a directory.
    pub(crate) fn entries(&self) -> Result<Vec<String>> {
        self.call("list", |client, key| async move {
            let found = client.list_with_delimiter(Some(&key)).await?;
            let objects = found.objects.into_iter().map(|meta| meta.location);
            let objects = objects.filter(|location| *location != key);
            let names = found.common_prefixes.into_iter().chain(objects);
            let names = names.filter_map(|name| name.filename().map(str::to_owned));
            Ok(names.collect())
        })
    }

    pub(crate) fn is_dir(&self) -> Result<bool> {
        self.call("list", |client, key| async move {
            let first = client.list(Some(&key)).next().await;
            first.transpose().map(|first| first.is_some())
        })
    }

    pub(crate) fn remove_all(&self) -> Result<()> {
        self.call("remove", |client, key| async move {
            let below = client.list(Some(&key)).map_ok(|meta| meta.location);
            let removed = client.delete_stream(below.boxed());
            let gone = removed.filter(|removed| {
                let is_gone = matches!(removed, Err(Error::NotFound { .. }));
                std::future::ready(!is_gone)
            });
            gone.try_for_each(|_key| std::future::ready(Ok(()))).await
        })?;
        self.remove_empty_dir();
        Ok(())
    }

    /// Removes a directory of HDFS, and directories in it, as far as no file lies there.
    pub(crate) fn remove_empty_dir(&self) {
        if self.store.is_atomic || self.key.as_ref().is_empty() {
            return;
        }
        let dirs = self.call("list", |client, key| async move {
            let found = client.list_with_delimiter(Some(&key)).await?;
            Ok((found.common_prefixes, found.objects.is_empty()))
        });
        let Ok((dirs, has_no_file)) = dirs else {
            return;
        };
        for name in dirs.iter().filter_map(Key::filename) {
            self.join(name).remove_empty_dir();
        }
        if has_no_file {
            // Fails, as it should, where something lies in a directory of it.
            self.remove().ok();
        }
    }

    /// Tells whether the store writes an object only if it is a given version.
    pub(crate) fn swaps(&self) -> bool {
        self.store.is_atomic
    }

    /// Returns another object of the same directory.
    pub(crate) fn beside(&self, name: &str) -> Self {
        let mut parts: Vec<_> = self.key.parts().collect();
        parts.pop();
        Self {
            store: Arc::clone(&self.store),
            key: parts.into_iter().collect::<Key>().join(name),
            path: self.path.with_file_name(name),
        }
    }

    /// Begins an upload in parts; returns it with the ETag of the object there is.
    pub(super) fn begin(&self) -> object_store::Result<(Box<dyn MultipartUpload>, Option<String>)> {
        self.try_call(|client, key| async move {
            let before = match client.head(&key).await {
                Ok(meta) => meta.e_tag,
                Err(Error::NotFound { .. }) => None,
                Err(error) => return Err(error),
            };
            Ok((client.put_multipart(&key).await?, before))
        })
    }

    /// Gives up uploads that nobody finished, of an object or below a directory that this run has for
    /// itself. They harm nobody, so where it is not allowed, a warning is all.
    #[cfg_attr(
        not(feature = "s3"),
        expect(unused_variables, reason = "no other store has them")
    )]
    pub(crate) fn abort_unfinished(&self, is_dir: bool) {
        #[cfg(feature = "s3")]
        if self.store.s3.is_some() {
            let object = self.clone();
            let aborted = wait(start(async move {
                let store = &object.store;
                let bucket = store.s3.as_ref().expect("checked");
                store
                    .repeat(|| bucket.abort_unfinished(&object.key, is_dir))
                    .await
            }));
            if let Err(error) = aborted {
                let path = self.path.display();
                tracing::warn!("unfinished uploads of {path} stay: {}", plain(error));
            }
        }
    }

    pub(crate) fn join(&self, name: &str) -> Self {
        Self {
            store: Arc::clone(&self.store),
            key: name
                .split('/')
                .fold(self.key.clone(), |key, part| key.join(part)),
            path: self.path.join(name),
        }
    }

    /// Reads the last bytes of the object, and tells its version.
    pub(crate) fn tail(&self, num_bytes: u64) -> Result<(Bytes, Version)> {
        // One request could ask for both, but not all servers know such a range.
        let version = self.call("open", |client, key| async move {
            client.head(&key).await.map(|meta| Version::of(&meta))
        })?;
        let start = version.size.saturating_sub(num_bytes);
        if start == version.size {
            return Ok((Bytes::new(), version));
        }
        let range = std::iter::once(start..version.size).collect();
        let tail = wait(self.fetch(&version, range))?;
        Ok((tail.into_iter().next().unwrap_or_default(), version))
    }

    /// Starts to read some ranges of a version of the object; [`wait`] gets them.
    pub(crate) fn fetch(&self, version: &Version, ranges: Vec<Range<u64>>) -> Pending<Vec<Bytes>> {
        let (object, version) = (self.clone(), version.clone());
        start(async move {
            let pieces: Vec<Range<u64>> = ranges.iter().cloned().flat_map(pieces).collect();
            let (reader, wanted) = (&object, &version);
            let read: Vec<Bytes> = stream::iter(pieces)
                .map(|range| async move { reader.get_range(wanted, range).await })
                .buffered(REQUESTS_MAX)
                .try_collect()
                .await?;
            let mut read = read.into_iter();
            let whole = ranges.into_iter().map(|range| {
                let num_pieces = pieces_of(&range);
                if num_pieces == 1 {
                    return read.next().unwrap_or_default();
                }
                let mut whole = BytesMut::new();
                read.by_ref()
                    .take(num_pieces)
                    .for_each(|piece| whole.extend_from_slice(&piece));
                whole.freeze()
            });
            Ok(whole.collect())
        })
    }

    /// Reads the object some megabytes at a time.
    pub(crate) fn for_each_block(&self, mut consume: impl FnMut(&[u8])) -> Result<()> {
        let Some(version) = self.version()? else {
            let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(SchemaError::io("open", &self.path)(missing));
        };
        let blocks = pieces(0..version.size).filter(|block| !block.is_empty());
        let mut blocks = blocks.map(|block| self.fetch(&version, vec![block]));
        let mut next = blocks.next();
        while let Some(pending) = next {
            // The next one is on its way meanwhile.
            next = blocks.next();
            for block in wait(pending)? {
                consume(&block);
            }
        }
        Ok(())
    }

    async fn get_range(&self, version: &Version, range: Range<u64>) -> Result<Bytes> {
        let wanted = version.e_tag.as_ref();
        let found = self.store.repeat(|| async {
            let mut options = GetOptions::default().with_range(Some(range.clone()));
            match wanted {
                Some(e_tag) => options.if_match = Some(e_tag.clone()),
                None => options.if_unmodified_since = Some(version.modified),
            }
            let found = self.store.client.get_opts(&self.key, options).await?;
            let now = Version::of(&found.meta);
            Ok((found.bytes().await?, now))
        });
        let len = range.end - range.start;
        match found.await {
            Ok((bytes, now)) if now == *version && bytes.len() as u64 == len => Ok(bytes),
            Ok(_) | Err(Error::Precondition { .. } | Error::NotFound { .. }) => {
                Err(SchemaError::Changed {
                    path: self.path.clone(),
                })
            }
            Err(error) => Err(self.error("read", error)),
        }
    }

    /// Performs a request that may be repeated, and waits for it.
    fn call<T, F>(
        &self,
        action: &'static str,
        request: impl Fn(Arc<dyn ObjectStore>, Key) -> F + Send + Sync + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        self.try_call(request)
            .map_err(|error| self.error(action, error))
    }

    fn try_call<T, F>(
        &self,
        request: impl Fn(Arc<dyn ObjectStore>, Key) -> F + Send + Sync + 'static,
    ) -> object_store::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        let (store, key) = (Arc::clone(&self.store), self.key.clone());
        wait(start(async move {
            store
                .repeat(|| request(Arc::clone(&store.client), key.clone()))
                .await
        }))
    }

    pub(super) fn error(&self, action: &'static str, error: Error) -> SchemaError {
        SchemaError::io(action, &self.path)(plain(error))
    }
}

/// What a future of the runtime will come to.
pub(crate) type Pending<T, E = SchemaError> = mpsc::Receiver<Result<T, E>>;

/// Starts a future in the runtime.
pub(super) fn start<T, E>(
    future: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Pending<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
{
    let (sender, receiver) = mpsc::sync_channel(1);
    let runtime = RUNTIME.as_ref().expect("threads can be started");
    runtime.spawn(async move {
        // Nobody waits for one that was given up.
        sender.send(future.await).ok();
    });
    receiver
}

/// Starts what waits for the runtime itself, on a thread of its own.
pub(super) fn start_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Pending<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let runtime = RUNTIME.as_ref().expect("threads can be started");
    runtime.spawn_blocking(move || sender.send(work()).ok());
    receiver
}

/// Calls what needs to find the runtime, such as one that starts tasks.
pub(super) fn enter<T>(call: impl FnOnce() -> T) -> T {
    let _entered = RUNTIME.as_ref().expect("threads can be started").enter();
    call()
}

/// Waits for a future of the runtime.
pub(crate) fn wait<T, E>(pending: Pending<T, E>) -> Result<T, E> {
    pending.recv().expect("requests do not panic")
}

/// Ends a request that takes far longer than its server may be silent.
pub(super) async fn limited<T>(
    timeout: Duration,
    request: impl Future<Output = object_store::Result<T>>,
) -> object_store::Result<T> {
    let limit = timeout * SLOWEST;
    let answer = tokio::time::timeout(limit, request).await;
    answer.unwrap_or_else(|_elapsed| Err(generic(format!("no answer within {limit:?}"))))
}

/// Tells whether a fault may be gone at the next attempt.
pub(super) fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Generic { .. } | Error::JoinError { .. })
}

pub(super) fn generic(problem: String) -> Error {
    Error::Generic {
        store: "storage",
        source: problem.into(),
    }
}

/// Turns an error of a store into one of a file: what the request met, and its first cause, once
/// each. Every link of the chain would say it all again.
fn plain(error: Error) -> std::io::Error {
    let kind = match &error {
        Error::NotFound { .. } => std::io::ErrorKind::NotFound,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            std::io::ErrorKind::PermissionDenied
        }
        _ => std::io::ErrorKind::Other,
    };
    let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
    let first = causes.last().map(ToString::to_string).unwrap_or_default();
    let line = |text: String| text.lines().next().unwrap_or_default().to_owned();
    let (first, text) = (line(first), line(error.to_string()));
    if text.contains(&first) {
        return std::io::Error::new(kind, text);
    }
    std::io::Error::new(kind, format!("{text}: {first}"))
}

/// Cuts a range into requests.
fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    (0..pieces_of(&range) as u64).map(move |i| {
        let start = range.start + i * RANGE_BYTES_MAX;
        start..(start + RANGE_BYTES_MAX).min(end)
    })
}

fn pieces_of(range: &Range<u64>) -> usize {
    let num = (range.end - range.start).div_ceil(RANGE_BYTES_MAX).max(1);
    usize::try_from(num).unwrap_or(usize::MAX)
}

/// Takes what is not there for none.
fn missing<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(SchemaError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
