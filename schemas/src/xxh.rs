//! Checksums and fingerprints (XXH3) of bytes and files.

use std::io::Write;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use crate::error::Result;
use crate::{known, storage};

/// A writer that hashes the bytes which it passes on to another writer.
pub struct Hashed<W> {
    writer: W,
    state: Box<Xxh3>,
    num_bytes: u64,
}

/// Returns the XXH3 hash of bytes.
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// Returns a fingerprint of some bytes: 32 hexadecimal digits of their 128-bit XXH3.
pub fn fingerprint(bytes: &[u8]) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes))
}

/// Returns the checksum of a file with these bytes, as [`file_checksum`] does.
pub(crate) fn checksum(bytes: &[u8]) -> String {
    format!("xxh3:{:016x}", hash_bytes(bytes))
}

/// Returns a file's checksum in the form that manifests use: `xxh3:` and 16 hexadecimal digits. A
/// file is not read if its checksum is [`known`].
///
/// # Errors
///
/// If the file cannot be read.
pub fn file_checksum(path: &Path) -> Result<String> {
    known::checksum_of_file("file", path, || {
        let mut state = Xxh3::new();
        update_from_file(&mut state, path)?;
        Ok(render(&state))
    })
}

impl<W: Write> Hashed<W> {
    /// Wraps `writer` and hashes the bytes written from now on.
    pub fn new(writer: W) -> Self {
        Self {
            writer,
            state: Box::default(),
            num_bytes: 0,
        }
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.writer
    }

    /// Returns the number of bytes written.
    pub fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    /// Returns the checksum of the bytes written, as [`file_checksum`] does.
    pub fn checksum(&self) -> String {
        render(&self.state)
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.writer.write(bytes)?;
        self.state.update(&bytes[..written]);
        self.num_bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.flush()
    }
}

/// Renders a finished 64-bit state as [`file_checksum`] does.
pub(crate) fn render(state: &Xxh3) -> String {
    format!("xxh3:{:016x}", state.digest())
}

/// Feeds a file to a hash, buffer by buffer.
pub(crate) fn update_from_file(state: &mut Xxh3, path: &Path) -> Result<()> {
    storage::for_each_block(path, |bytes| state.update(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn what_passes_has_the_checksum_of_the_file_it_becomes() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let mut file = Hashed::new(File::create(&path).unwrap());
        for piece in [&b"node"[..], b"", &[7; 3000]] {
            file.write_all(piece).unwrap();
        }
        assert_eq!(file.num_bytes(), 3004);
        assert_eq!(file.checksum(), file_checksum(&path).unwrap());
        assert_eq!(file.checksum(), checksum(&std::fs::read(&path).unwrap()));
    }
}
