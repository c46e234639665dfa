//! `store.json`, which describes a store, with a checksum of its own.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{StoreCause, StoreError};
use crate::meta::{META_FILE, StoreMeta};

/// The description and the checksum of its JSON.
#[derive(Serialize, Deserialize)]
struct Sealed<Meta> {
    checksum: String,
    #[serde(flatten)]
    meta: Meta,
}

impl StoreMeta {
    /// Reads the description of the store in a directory; none if there is no store.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or its checksum is wrong.
    pub fn read(dir: &Path) -> Result<Option<Self>, StoreError> {
        let path = dir.join(META_FILE);
        let read = || -> Result<Option<Self>, StoreCause> {
            let Some(text) = schemas::storage::read(&path).map_err(std::io::Error::other)? else {
                return Ok(None);
            };
            let Sealed { checksum, meta } = serde_json::from_slice::<Sealed<Self>>(&text)?;
            let found = checksum_of(&meta)?;
            if found != checksum {
                let what = format!("its checksum is {found}, but it states {checksum}");
                return Err(StoreCause::Damaged(what));
            }
            Ok(Some(meta))
        };
        read().map_err(|source| StoreError::File {
            verb: "read",
            path: path.clone(),
            source,
        })
    }

    /// Writes the description, last of all files of a store.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), StoreCause> {
        let temporary = dir.join("store.json.tmp");
        let file = std::fs::File::create(&temporary)?;
        let sealed = Sealed {
            checksum: checksum_of(self)?,
            meta: self,
        };
        serde_json::to_writer_pretty(&file, &sealed)?;
        Ok(std::fs::rename(temporary, dir.join(META_FILE))?)
    }
}

fn checksum_of(meta: &StoreMeta) -> Result<String, StoreCause> {
    let text = serde_json::to_vec(meta)?;
    Ok(format!("xxh3:{:016x}", schemas::xxh::hash_bytes(&text)))
}
