//! Records finished rounds in the working directory, so that a killed run can be resumed.

use crate::InferError;
use crate::rows::{RowRecord, RowWriter};
use crate::whole_rows::write_whole;
use gnn::{RowFormat, SharedRows};
use graphdelta::link;
use schemas::dataset::DirLock;
use schemas::{NodeIdx, Row};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::Store;

/// Name of the file that records the finished rounds.
const RECORD: &str = "rounds.json";

/// The finished rounds in a directory that this run has locked.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    dir: PathBuf,
    record: Record,
    _lock: DirLock,
}

/// The content of `rounds.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    /// Fingerprint of the output that the rounds belong to.
    fingerprint: String,
    /// The finished rounds whose rows are still read.
    rounds: Vec<RoundRecord>,
}

/// The files of a finished round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RoundRecord {
    /// The layer, from 1; round 0 prepares the features for layer 1.
    pub(crate) round: usize,
    /// The rows of the layer, if a later round or the output reads them unprojected.
    pub(crate) rows: Option<RowRecord>,
    /// What the next layer aggregates; one entry if nodes have no types.
    pub(crate) sources: Vec<Source<RowRecord>>,
}

/// The files of a finished round, mapped.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundRows {
    pub(crate) rows: Option<SharedRows>,
    pub(crate) sources: Vec<Source<SharedRows>>,
}

/// One matrix that a layer aggregates.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Source<T> {
    /// Its rows, if they differ from the rows of the layer before.
    pub(crate) src: Option<T>,
    /// The attention scores of the nodes, if the layer has scores.
    pub(crate) scores: Option<T>,
}

impl<T> Source<T> {
    fn files(&self) -> [Option<&T>; 2] {
        [self.src.as_ref(), self.scores.as_ref()]
    }

    /// Changes each file.
    pub(crate) fn try_map<U, E>(self, change: impl Fn(T) -> Result<U, E>) -> Result<Source<U>, E> {
        Ok(Source {
            src: self.src.map(&change).transpose()?,
            scores: self.scores.map(&change).transpose()?,
        })
    }
}

impl RoundRecord {
    /// Returns the files in a fixed order, none for those that the round does not have.
    pub(crate) fn files(&self) -> impl Iterator<Item = Option<&RowRecord>> {
        let sources = self.sources.iter().flat_map(Source::files);
        std::iter::once(self.rows.as_ref()).chain(sources)
    }
}

impl RoundRows {
    fn files(&self) -> impl Iterator<Item = Option<&SharedRows>> {
        let sources = self.sources.iter().flat_map(Source::files);
        std::iter::once(self.rows.as_ref()).chain(sources)
    }
}

impl Checkpoint {
    /// Locks the directory and keeps its rounds if they belong to this output and `fresh` is false.
    /// With `fresh`, no later run resumes them either.
    ///
    /// # Errors
    ///
    /// If another run has locked the directory, or it cannot be written.
    pub(crate) fn open(dir: PathBuf, fingerprint: &str, fresh: bool) -> Result<Self, InferError> {
        std::fs::create_dir_all(&dir).map_err(InferError::io("create", &dir))?;
        let lock = DirLock::take(&dir)?;
        let mine = Record::read(&dir).filter(|record| !fresh && record.fingerprint == fingerprint);
        let record = mine.unwrap_or_else(|| Record::of(fingerprint));
        let opened = Self {
            dir,
            record,
            _lock: lock,
        };
        if fresh {
            // If this run ends before its first round, the next one must not resume an older round.
            opened.write()?;
        }
        Ok(opened)
    }

    /// Creates a file of `rows` rows of `cols` numbers for a round.
    pub(crate) fn create(
        &self,
        (round, what): (usize, &str),
        (rows, cols): (usize, usize),
        format: RowFormat,
    ) -> Result<RowWriter, InferError> {
        let ending = ending(format);
        let path = self.dir.join(format!("round-{round}-{what}.{ending}"));
        RowWriter::create(path, (rows, cols), format)
    }

    /// Maps the files of a round; none if it is not finished or a file is missing or changed.
    pub(crate) fn verified(&self, round: usize) -> Option<RoundRows> {
        let record = self
            .record
            .rounds
            .iter()
            .find(|other| other.round == round)?;
        let rows = self.map(record).ok()?;
        let intact = record.files().zip(rows.files()).all(|pair| match pair {
            (Some(written), Some(found)) => written.is_intact(found),
            _ => true,
        });
        intact.then_some(rows)
    }

    /// Maps the files of a round.
    pub(crate) fn map(&self, record: &RoundRecord) -> Result<RoundRows, InferError> {
        let map = |rows: RowRecord| rows.map(&self.dir);
        let sources = record.sources.iter().cloned();
        Ok(RoundRows {
            rows: record.rows.clone().map(map).transpose()?,
            sources: sources
                .map(|of| of.try_map(map))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Records a finished round.
    pub(crate) fn add(&mut self, round: RoundRecord) -> Result<(), InferError> {
        self.record
            .rounds
            .retain(|other| other.round != round.round);
        self.record.rounds.push(round);
        self.write()
    }

    /// Removes the rounds that no later round reads.
    pub(crate) fn retain(&mut self, is_read: impl Fn(usize) -> bool) -> Result<(), InferError> {
        self.record.rounds.retain(|round| is_read(round.round));
        self.write()?;
        self.remove_others()
    }

    /// Puts files of the rows of all nodes after layers 1 to `last`, by number, into another directory
    /// and returns their records. Of several processes, each has the rows `own` here, and all make
    /// this call.
    pub(crate) fn keep_rows(
        &self,
        last: usize,
        (store, own): (&Store, impl FnOnce() -> Vec<(Row, NodeIdx)>),
        dir: &Path,
    ) -> Result<Vec<RowRecord>, InferError> {
        let of_layer = |layer: usize| {
            let mut rounds = self.record.rounds.iter();
            let round = rounds.find(|round| round.round == layer);
            let rows = round.and_then(|round| round.rows.as_ref());
            rows.expect("the rows of these layers are kept")
        };
        let records = (1..=last).map(of_layer);
        let cluster = store.cluster();
        if cluster.num_processes() == 1 {
            let linked = records.map(|rows| {
                link(&self.dir.join(&rows.name), &dir.join(&rows.name))?;
                Ok(rows.clone())
            });
            return linked.collect();
        }
        let (own, num_nodes) = (Arc::new(own()), store.placement().num_nodes());
        let written = records.map(|rows| {
            let of_process = (&own, rows.map(&self.dir)?);
            write_whole(cluster, of_process, num_nodes, dir.join(&rows.name))
        });
        written.collect()
    }

    fn write(&self) -> Result<(), InferError> {
        let (path, tmp) = (self.dir.join(RECORD), self.dir.join("rounds.tmp"));
        let text = serde_json::to_vec_pretty(&self.record).expect("a record is plain data");
        std::fs::write(&tmp, text)
            .and_then(|()| std::fs::rename(&tmp, &path))
            .map_err(InferError::io("write", &path))
    }

    /// Removes the files of rows that the record does not name.
    pub(crate) fn remove_others(&self) -> Result<(), InferError> {
        let rounds = self.record.rounds.iter();
        let kept: Vec<&str> = rounds
            .flat_map(|round| round.files().flatten())
            .map(|rows| &rows.name[..])
            .collect();
        let entries = std::fs::read_dir(&self.dir).map_err(InferError::io("read", &self.dir))?;
        for entry in entries {
            let path = entry.map_err(InferError::io("read", &self.dir))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if is_rows(&name) && !kept.contains(&&*name) {
                std::fs::remove_file(&path).map_err(InferError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Removes the directory; the output must be finished.
    pub(crate) fn remove(mut self) -> Result<(), InferError> {
        // Rows before the record: if the run is killed here, the record still names the output.
        self.record.rounds.clear();
        self.remove_others()?;
        std::fs::remove_dir_all(&self.dir).map_err(InferError::io("remove", &self.dir))
    }

    /// Removes the directory that a killed run left behind, unless its record names another output.
    pub(crate) fn remove_left(dir: PathBuf, fingerprint: &str) -> Result<(), InferError> {
        let anyones = Record::read(&dir);
        if !dir.exists() || anyones.is_some_and(|record| record.fingerprint != fingerprint) {
            return Ok(());
        }
        match DirLock::take(&dir) {
            Ok(lock) => {
                let record = Record::of(fingerprint);
                let left = Self {
                    dir,
                    record,
                    _lock: lock,
                };
                left.remove()
            }
            // Another run uses the directory.
            Err(_) => Ok(()),
        }
    }
}

/// Returns the ending of the name of a file of rows.
fn ending(format: RowFormat) -> &'static str {
    match format {
        RowFormat::F32 => "f32",
        RowFormat::Bf16 => "bf16",
    }
}

/// Tells whether a name is that of a file of rows.
fn is_rows(name: &str) -> bool {
    let formats = [RowFormat::F32, RowFormat::Bf16].into_iter();
    let of_name = name.rsplit_once('.').map(|(_, ending)| ending);
    formats.map(ending).any(|of| of_name == Some(of))
}

impl Record {
    /// Returns a record without rounds.
    fn of(fingerprint: &str) -> Self {
        Self {
            fingerprint: fingerprint.to_owned(),
            rounds: Vec::new(),
        }
    }

    /// Reads the record of a directory; none if it has no readable record.
    fn read(dir: &Path) -> Option<Self> {
        let text = std::fs::read(dir.join(RECORD)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_run_leaves_no_older_round_to_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let open = |fresh| Checkpoint::open(dir.path().to_owned(), "of a test", fresh).unwrap();
        open(false).add(RoundRecord::default()).unwrap();
        assert_eq!(open(false).record.rounds.len(), 1);
        drop(open(true));
        assert_eq!(open(false).record.rounds.len(), 0);
    }
}
