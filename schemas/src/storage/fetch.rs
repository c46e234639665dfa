//! Reads ranges of an object, several requests at a time.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{Error, GetOptions};

use super::object::{Object, Version};
use super::runtime::{Pending, start, wait};
use crate::error::{Result, SchemaError};

/// Longest range of one request: few bytes have to be read again after a fault.
const RANGE_BYTES_MAX: u64 = 8 << 20;
/// Greatest number of simultaneous requests of one read.
const REQUESTS_MAX: usize = 8;

impl Object {
    /// Returns the last bytes of the object and its version.
    pub(crate) fn tail(&self, num_bytes: u64) -> Result<(Bytes, Version)> {
        // One request could return both, but some servers do not support that range.
        let version = self.head("open")?;
        let start = version.size.saturating_sub(num_bytes);
        if start == version.size {
            return Ok((Bytes::new(), version));
        }
        let range = std::iter::once(start..version.size).collect();
        let tail = wait(self.fetch(&version, range))?;
        Ok((tail.into_iter().next().unwrap_or_default(), version))
    }

    /// Starts to read some ranges of a version of the object; [`wait`] returns them.
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
            // The next block is read meanwhile.
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
