//! Copies files of a process to others, which need not see its disk.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Cluster, ClusterError, Peer, run_workers};

/// Bytes of a file that a message carries.
const PIECE_BYTES: usize = 1 << 20;

/// A piece of a file, as it is sent.
#[derive(Clone, Serialize, Deserialize)]
struct Piece {
    name: String,
    at: u64,
    bytes: Vec<u8>,
}

/// Copies files of this process, given by their names in `from`, to all processes that lack them,
/// which write them to their `to`. All processes make this call, each with its own files; `lacking`
/// is by process, and the same in all.
///
/// # Errors
///
/// If a file cannot be read or written, or another process fails.
pub fn copy_files(
    cluster: &Cluster,
    (from, names): (&Path, &[String]),
    to: &Path,
    lacking: &[bool],
) -> Result<(), ClusterError> {
    let (threads, process) = (cluster.num_threads(), cluster.process());
    let receivers = lacking.iter().enumerate();
    let receivers = receivers.filter(|&(other, lacks)| *lacks && other != process);
    let receivers: Vec<usize> = receivers.map(|(other, _)| other * threads).collect();
    let (from, names, to) = (from.to_owned(), names.to_vec(), to.to_owned());
    run_workers(cluster, move |peer| {
        let names = match peer.leads_process() {
            true => &names[..],
            false => &[],
        };
        copy(peer, (&from, names), &to, &receivers)
    })?;
    Ok(())
}

/// [`copy_files`] of one worker, to the workers `receivers`.
fn copy(
    peer: &mut Peer<'_>,
    (from, names): (&Path, &[String]),
    to: &Path,
    receivers: &[usize],
) -> Result<(), ClusterError> {
    let names = names.iter().filter(|_| !receivers.is_empty());
    let pieces = names.flat_map(|name| Pieces::of(from, name));
    let outgoing = pieces.flat_map(|piece| match piece {
        Ok(piece) => receivers
            .iter()
            .map(|&worker| Ok((worker, piece.clone())))
            .collect(),
        Err(error) => vec![Err(error)],
    });
    let to = to.to_owned();
    peer.shuffle_each(outgoing, move |_, _, piece: Piece| {
        let path = to.join(&piece.name);
        let write = || {
            std::fs::create_dir_all(path.parent().unwrap_or(&to))?;
            let mut options = OpenOptions::new();
            let file = options
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)?;
            file.write_all_at(&piece.bytes, piece.at)
        };
        write().map_err(|source| failed("write", &path, source))
    })
}

/// The pieces of a file, read one after the other.
struct Pieces {
    name: String,
    path: PathBuf,
    /// None before the first piece.
    file: Option<File>,
    at: u64,
    is_done: bool,
}

impl Pieces {
    fn of(dir: &Path, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            path: dir.join(name),
            file: None,
            at: 0,
            is_done: false,
        }
    }

    /// Reads the next piece; an empty file has an empty one.
    fn read(&mut self) -> std::io::Result<Piece> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::open(&self.path)?),
        };
        let (at, mut bytes) = (self.at, Vec::with_capacity(PIECE_BYTES));
        file.take(PIECE_BYTES as u64).read_to_end(&mut bytes)?;
        self.at += bytes.len() as u64;
        self.is_done = bytes.len() < PIECE_BYTES;
        Ok(Piece {
            name: self.name.clone(),
            at,
            bytes,
        })
    }
}

impl Iterator for Pieces {
    type Item = Result<Piece, ClusterError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let read = self.read();
        self.is_done |= read.is_err();
        Some(read.map_err(|source| failed("read", &self.path, source)))
    }
}

fn failed(action: &'static str, path: &Path, source: std::io::Error) -> ClusterError {
    ClusterError::File {
        action,
        path: path.to_owned(),
        source,
    }
}
