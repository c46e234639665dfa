//! One object, or directory, of a store.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::{StreamExt, stream};
use object_store::path::Path as Key;
use object_store::{
    Error, MultipartUpload, ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    UpdateVersion,
};

use super::SCHEMES;
use super::fault::{is_denied, plain};
use super::runtime::{start, wait};
use super::store::{Store, store_of};
use crate::error::{Result, SchemaError};

/// Greatest number of attempts to write an object that other runs write meanwhile.
const WRITES_MAX: usize = 8;

/// An object, or a directory, of a store.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(super) store: Arc<Store>,
    pub(super) key: Key,
    pub(super) path: PathBuf,
}

/// Identifies the content of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) size: u64,
    pub(super) e_tag: Option<String>,
    pub(super) modified: chrono::DateTime<chrono::Utc>,
}

/// Condition for an object to be written.
#[derive(Clone, Debug)]
pub(crate) enum Put {
    /// The object does not exist.
    Absent,
    /// The object is of this version; HDFS cannot check it.
    Unchanged(Version),
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
    let store = store_of(kind, authority, path)?;
    Ok(Some(Object {
        store,
        key,
        path: path.to_owned(),
    }))
}

impl Version {
    pub(super) fn of(meta: &ObjectMeta) -> Self {
        Self {
            size: meta.size,
            e_tag: meta.e_tag.clone(),
            modified: meta.last_modified,
        }
    }

    /// Returns the text that stands for the contents in fingerprints.
    pub(crate) fn fingerprint(&self) -> String {
        match &self.e_tag {
            Some(e_tag) => format!("{} {e_tag}", self.size),
            None => format!("{} {}", self.size, self.modified.timestamp_micros()),
        }
    }

    /// Tells whether a write can be made to depend on this version.
    pub(crate) fn has_e_tag(&self) -> bool {
        self.e_tag.is_some()
    }
}

impl Object {
    /// Reads the whole object; none if it does not exist.
    pub(crate) fn read(&self) -> Result<Option<(Vec<u8>, Version)>> {
        let found = self.call("read", |store, key| async move {
            let found = store.client.get(&key).await?;
            let version = Version::of(&found.meta);
            Ok((Vec::from(found.bytes().await?), version))
        });
        missing(found)
    }

    /// Returns the current version of the object; none if it does not exist.
    pub(crate) fn version(&self) -> Result<Option<Version>> {
        // A store has no object without a name.
        if self.key.as_ref().is_empty() {
            return Ok(None);
        }
        missing(self.head("look up"))
    }

    /// Returns the version of an object that must exist.
    pub(super) fn head(&self, action: &'static str) -> Result<Version> {
        self.call(action, |store, key| async move {
            let error = match store.client.head(&key).await {
                Ok(meta) => return Ok(Version::of(&meta)),
                Err(error) => error,
            };
            // The answer to this request has no body and so no reason; the next one has.
            if is_denied(&error)
                && let Err(told) = store.client.get_range(&key, 0..1).await
                && is_denied(&told)
            {
                return Err(told);
            }
            Err(error)
        })
    }

    /// Writes the object or replaces it. `is_new` says that it probably does not exist, which saves
    /// requests.
    ///
    /// On S3 each request requires the version that it replaces. So a late request of a dead run,
    /// which the network held back, replaces nothing that was written after it.
    pub(crate) fn put(&self, bytes: Vec<u8>, is_new: bool) -> Result<()> {
        let payload = PutPayload::from(bytes);
        if !self.store.is_atomic {
            return self.overwrite(payload);
        }
        let mut found = if is_new { None } else { self.version()? };
        for _ in 0..WRITES_MAX {
            let condition = match found {
                None => Put::Absent,
                Some(version) if version.has_e_tag() => Put::Unchanged(version),
                Some(_) => return self.overwrite(payload),
            };
            if self.put_payload_if(condition, payload.clone())? {
                return Ok(());
            }
            found = self.version()?;
        }
        let busy = "other runs keep writing it, or the server ignores its own ETags";
        Err(self.problem("write", busy))
    }

    fn overwrite(&self, payload: PutPayload) -> Result<()> {
        self.call("write", move |store, key| {
            let payload = payload.clone();
            async move { store.client.put(&key, payload).await.map(|_| ()) }
        })
    }

    /// Writes the object if the condition holds; false if it does not.
    ///
    /// It is false too if the first request succeeded, its answer was lost and the request was
    /// repeated.
    pub(crate) fn put_if(&self, condition: Put, bytes: Vec<u8>) -> Result<bool> {
        self.put_payload_if(condition, PutPayload::from(bytes))
    }

    fn put_payload_if(&self, condition: Put, payload: PutPayload) -> Result<bool> {
        let may_be_gone = matches!(condition, Put::Unchanged(_));
        let mode = match condition {
            Put::Absent => PutMode::Create,
            Put::Unchanged(version) if self.store.is_atomic => PutMode::Update(UpdateVersion {
                e_tag: version.e_tag,
                version: None,
            }),
            Put::Unchanged(_) => PutMode::Overwrite,
        };
        let written = self.try_call(move |store, key| {
            let options = PutOptions::from(mode.clone());
            let payload = payload.clone();
            async move {
                let written = store.client.put_opts(&key, payload, options).await;
                written.map(|_| ())
            }
        });
        match written {
            Ok(()) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            // HDFS writes a temporary file first, which the holder of the lock may have removed.
            Err(Error::NotFound { .. }) if may_be_gone || !self.store.is_atomic => Ok(false),
            Err(error) => Err(self.error("write", error)),
        }
    }

    pub(crate) fn remove(&self) -> Result<()> {
        missing(self.call("remove", |store, key| async move {
            store.client.delete(&key).await
        }))
        .map(|_| ())
    }

    /// Renames the object in one step, in stores that can; false if it does not exist.
    pub(crate) fn rename(&self, to: &Self) -> Result<bool> {
        let target = to.key.clone();
        self.call("rename", move |store, key| {
            let target = target.clone();
            async move {
                let client = &store.client;
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

    /// Renames the object and replaces an object that has the new name; S3 copies it and removes
    /// the original.
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
        self.call("copy", move |store, key| {
            let target = target.clone();
            async move { store.client.copy(&key, &target).await }
        })?;
        self.remove()
    }

    /// Lists all objects below a directory: their names below it, and versions.
    pub(crate) fn list(&self) -> Result<Vec<(String, Version)>> {
        let mut found = self.call("list", |store, key| async move {
            let listed = store.list(&key, false, usize::MAX).await?;
            let below = |meta: ObjectMeta| {
                let name = meta.location.prefix_match(&key)?;
                let name: Key = name.collect();
                // Web consoles of S3 create an empty object with the name of a directory.
                let is_marker = name.as_ref().is_empty();
                (!is_marker).then(|| (name.to_string(), Version::of(&meta)))
            };
            Ok(listed
                .objects
                .into_iter()
                .filter_map(below)
                .collect::<Vec<_>>())
        })?;
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(found)
    }

    /// Returns the names of objects and directories in a directory.
    pub(crate) fn entries(&self) -> Result<Vec<String>> {
        self.call("list", |store, key| async move {
            let found = store.list(&key, true, usize::MAX).await?;
            let objects = found.objects.into_iter().map(|meta| meta.location);
            let objects = objects.filter(|location| *location != key);
            let names = found.common_prefixes.into_iter().chain(objects);
            let names = names.filter_map(|name| name.filename().map(str::to_owned));
            Ok(names.collect())
        })
    }

    pub(crate) fn is_dir(&self) -> Result<bool> {
        self.call("list", |store, key| async move {
            let found = store.list(&key, false, 1).await?;
            Ok(!found.objects.is_empty())
        })
    }

    pub(crate) fn remove_all(&self) -> Result<()> {
        self.call("remove", |store, key| async move {
            let found = store.list(&key, false, usize::MAX).await?.objects;
            let below = stream::iter(found.into_iter().map(|meta| Ok(meta.location)));
            let mut removed = store.client.delete_stream(below.boxed());
            while let Some(removed) = removed.next().await {
                match removed {
                    Ok(_) | Err(Error::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })?;
        self.remove_empty_dir();
        Ok(())
    }

    /// Removes a directory of HDFS, and directories in it, if no file lies in them.
    pub(crate) fn remove_empty_dir(&self) {
        if self.store.is_atomic || self.key.as_ref().is_empty() {
            return;
        }
        let dirs = self.call("list", |store, key| async move {
            let found = store.list(&key, true, usize::MAX).await?;
            Ok((found.common_prefixes, found.objects.is_empty()))
        });
        let Ok((dirs, has_no_file)) = dirs else {
            return;
        };
        for name in dirs.iter().filter_map(Key::filename) {
            self.join(name).remove_empty_dir();
        }
        if has_no_file {
            // Fails, as intended, if one of its directories is not empty.
            self.remove().ok();
        }
    }

    /// Tells whether the store can write an object on the condition that it is of a given version.
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

    /// Begins an upload in parts; returns it with the ETag of the existing object.
    pub(super) fn begin(&self) -> object_store::Result<(Box<dyn MultipartUpload>, Option<String>)> {
        self.try_call(|store, key| async move {
            let before = match store.client.head(&key).await {
                Ok(meta) => meta.e_tag,
                Err(Error::NotFound { .. }) => None,
                Err(error) => return Err(error),
            };
            Ok((store.client.put_multipart(&key).await?, before))
        })
    }

    /// Aborts unfinished uploads, of an object or below a directory that this run has locked. They
    /// do no harm, so a failure is only a warning.
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

    /// Performs a request that may be repeated, and waits for it.
    pub(super) fn call<T, F>(
        &self,
        action: &'static str,
        request: impl Fn(Arc<Store>, Key) -> F + Send + Sync + 'static,
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
        request: impl Fn(Arc<Store>, Key) -> F + Send + Sync + 'static,
    ) -> object_store::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        let (store, key) = (Arc::clone(&self.store), self.key.clone());
        wait(start(async move {
            store
                .repeat(|| request(Arc::clone(&store), key.clone()))
                .await
        }))
    }

    /// Returns an error of this object.
    pub(crate) fn problem(&self, action: &'static str, problem: &str) -> SchemaError {
        SchemaError::io(action, &self.path)(std::io::Error::other(problem))
    }

    pub(super) fn error(&self, action: &'static str, error: Error) -> SchemaError {
        SchemaError::io(action, &self.path)(plain(error))
    }
}

/// Turns the error of a missing object into none.
fn missing<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(SchemaError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
