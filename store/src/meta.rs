//! The description of a store, and the names of its files.

use crate::error::StoreCause;
use crate::{StoreError, input_fingerprint};
use schemas::xxh::file_checksum;
use schemas::{FileEntry, GraphMeta, GraphPlan, Sampling, SplitCounts};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::{Path, PathBuf};

/// Version of the store's layout; a store of another version is built again.
pub(crate) const VERSION: u32 = 4;

/// Name of the store's description, written last.
pub(crate) const META_FILE: &str = "store.json";

/// Description of a store; `store.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoreMeta {
    /// Layout version.
    pub version: u32,
    /// Fingerprint of the input and of all settings that change the store's content but `keep`.
    pub fingerprint: String,
    /// Fingerprint of the input tables.
    pub input: serde_json::Value,
    /// In-edges kept per node, for each relation.
    pub keep: Keep,
    /// Order in which in-edges are ranked.
    pub sampling: Sampling,
    /// Random seed of the first sample.
    pub seed: u64,
    /// Independent samples.
    pub samples: u32,
    /// Whether all in-edges are kept beside the samples, so that other samples can be drawn.
    #[serde(default)]
    pub redraw: bool,
    /// Whether the in-edges that equal a pair are kept too, apart from those that carry messages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_left_out: bool,
    /// Whether all pairs of tables are kept with their times too, since changes put them in other
    /// splits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_times: bool,
    /// Names the changes of the tables that the store holds too; none if it was built from them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Number of partitions.
    pub workers: usize,
    /// Name of the target type's id column, which lists of targets use too.
    pub id_column: String,
    /// Number of nodes of all types.
    pub num_nodes: u64,
    /// Number of nodes of each type; empty if nodes have no types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes_by_type: Vec<u64>,
    /// Description of the tables.
    pub graph: GraphMeta,
    /// Counts of in-edges and dropped rows.
    pub edges: EdgeCounts,
    /// Supervision pairs by split, where the task is one of links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<SplitCounts>,
    /// Files with their checksums.
    pub files: Vec<FileEntry>,
}

/// Counts of in-edges and dropped rows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EdgeCounts {
    /// Number of in-edges, including reversed ones.
    pub in_edges: u64,
    /// Rows left out because an end is no node.
    pub dropped_rows: u64,
    /// In-edges left out because they equal a supervision pair or its reverse.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// Number of in-edges that each worker ranked, including its shares of re-indexed nodes: the
    /// skew of the map.
    pub received_by_worker: Vec<u64>,
    /// Counts of each relation; empty if nodes have no types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relations: Vec<RelationCounts>,
}

/// Counts of a relation's in-edges and dropped rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelationCounts {
    /// Number of in-edges.
    pub in_edges: u64,
    /// Rows left out because an end is no node; 0 for the reverse of another relation.
    pub dropped_rows: u64,
}

/// Counts of a relation's in-edges by worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct CountsByWorker {
    pub(crate) received: Vec<u64>,
    pub(crate) dropped_rows: u64,
    pub(crate) left_out: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl EdgeCounts {
    /// Returns the number of in-edges of a relation.
    pub fn in_edges_of(&self, relation: usize) -> u64 {
        let own = self.relations.get(relation);
        own.map_or(self.in_edges, |own| own.in_edges)
    }

    /// Returns the number of rows of a relation's table that were left out because an end is no node.
    pub fn dropped_rows_of(&self, relation: usize) -> u64 {
        let own = self.relations.get(relation);
        own.map_or(self.dropped_rows, |own| own.dropped_rows)
    }

    /// Sums the counts of all relations.
    pub(crate) fn of_relations(relations: Vec<CountsByWorker>, is_typed: bool) -> Self {
        let workers = relations.first().map_or(0, |of| of.received.len());
        let mut counts = Self {
            received_by_worker: vec![0; workers],
            ..Self::default()
        };
        for of in &relations {
            let own = RelationCounts {
                in_edges: of.received.iter().sum(),
                dropped_rows: of.dropped_rows,
            };
            counts.in_edges += own.in_edges;
            counts.dropped_rows += own.dropped_rows;
            counts.left_out += of.left_out;
            let sums = counts.received_by_worker.iter_mut().zip(&of.received);
            sums.for_each(|(sum, received)| *sum += received);
            counts.relations.extend(is_typed.then_some(own));
        }
        counts
    }
}

/// Number of in-edges kept per node, for each relation; `None`: all. The number of a single relation
/// is written without a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep(pub Vec<Option<u64>>);

/// The form in which the numbers are written.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenKeep {
    One(Option<u64>),
    Each(Vec<Option<u64>>),
}

impl Keep {
    /// Tells whether at least so many in-edges of each relation are kept; `usize::MAX`: all.
    pub fn is_enough(&self, wanted: &[usize]) -> bool {
        let mut both = self.0.iter().zip(wanted);
        let all = both.all(|(kept, &least)| kept.is_none_or(|kept| kept >= least as u64));
        all && self.0.len() == wanted.len()
    }

    /// Returns the number of each relation; `usize::MAX`: all.
    pub fn to_counts(&self) -> Vec<usize> {
        let count = |kept: &Option<u64>| kept.and_then(|kept| usize::try_from(kept).ok());
        let counts = self.0.iter().map(count);
        counts.map(|of| of.unwrap_or(usize::MAX)).collect()
    }

    pub(crate) fn of(keep: &[usize]) -> Self {
        let bounded = |&most: &usize| (most != usize::MAX).then_some(most as u64);
        Self(keep.iter().map(bounded).collect())
    }
}

impl Serialize for Keep {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            each => each.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match WrittenKeep::deserialize(deserializer)? {
            WrittenKeep::One(one) => Self(vec![one]),
            WrittenKeep::Each(each) => Self(each),
        })
    }
}

impl StoreMeta {
    /// Returns the number of nodes of each type.
    pub fn num_nodes_by_type(&self) -> Vec<u64> {
        match self.nodes_by_type.is_empty() {
            true => vec![self.num_nodes],
            false => self.nodes_by_type.clone(),
        }
    }

    /// Returns a fingerprint of what numbers and ranked in-edges follow from: the tables, changes
    /// that the store holds, seed and sampling, whatever the number of partitions.
    pub fn edges_fingerprint(&self) -> String {
        let of_tables = self.tables_fingerprint();
        match &self.base {
            None => of_tables,
            Some(base) => {
                let both = serde_json::json!({ "tables": of_tables, "base": base });
                schemas::xxh::fingerprint(both.to_string().as_bytes())
            }
        }
    }

    /// Returns the fingerprint of the files of a table of `kind`, `nodes` or `edges`; none if there is
    /// no such table: a reverse relation has none of its own.
    pub fn files_fingerprint(&self, kind: &str, name: &str) -> Option<&str> {
        let tables = &self.input[kind];
        let table = match self.graph.is_typed() {
            true => &tables[name],
            false => tables,
        };
        table["files"].as_str()
    }

    /// Returns a fingerprint of the tables, seed and sampling, whatever changes the store holds.
    pub fn tables_fingerprint(&self) -> String {
        edges_fingerprint(self.version, &self.input, (self.sampling, self.seed))
    }
}

fn edges_fingerprint(
    version: u32,
    input: &serde_json::Value,
    (sampling, seed): (Sampling, u64),
) -> String {
    let of = serde_json::json!({
        "version": version,
        "input": input,
        "seed": seed,
        "sampling": sampling,
    });
    schemas::xxh::fingerprint(of.to_string().as_bytes())
}

/// Finds by which of some samplings and seeds the store of a graph was built, from its
/// [fingerprint](StoreMeta::tables_fingerprint).
///
/// # Errors
///
/// If a table cannot be read.
pub fn find_sampling(
    graph: &GraphPlan,
    fingerprint: &str,
    mut candidates: impl Iterator<Item = (Sampling, u64)>,
) -> Result<Option<(Sampling, u64)>, StoreError> {
    let input = input_fingerprint(graph)?;
    let is_of = |&drawn: &(Sampling, u64)| edges_fingerprint(VERSION, &input, drawn) == fingerprint;
    Ok(candidates.find(is_of))
}

/// Names of a store's files. In a typed store they have the position of their type or relation.
#[derive(Clone, Copy)]
pub(crate) struct StoreFiles<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) is_typed: bool,
}

impl StoreFiles<'_> {
    pub(crate) fn nodes(self, type_idx: usize, worker: usize) -> PathBuf {
        self.path("nodes", ('t', type_idx), &format!("{worker:03}"))
    }

    /// Path of a worker's supervision pairs.
    pub(crate) fn pairs(self, worker: usize) -> PathBuf {
        self.dir.join(format!("pairs-{worker:03}.arrow"))
    }

    /// Path of all pairs of a worker's tables, with their times.
    pub(crate) fn timed_pairs(self, worker: usize) -> PathBuf {
        self.dir.join(format!("timed-pairs-{worker:03}.arrow"))
    }

    pub(crate) fn degrees(self, relation: usize, worker: usize) -> PathBuf {
        self.path("degrees", ('r', relation), &format!("{worker:03}"))
    }

    /// Path of a list of in-edges. The lists are one for each sample and then, if it is kept, the
    /// list of all in-edges.
    pub(crate) fn in_edges(self, relation: usize, worker: usize, list: usize) -> PathBuf {
        let number = format!("{worker:03}-{list:03}");
        self.path("in-edges", ('r', relation), &number)
    }

    /// Path of the list of all in-edges that are left out because they equal a pair.
    pub(crate) fn left_out(self, relation: usize, worker: usize) -> PathBuf {
        self.path("left-out", ('r', relation), &format!("{worker:03}"))
    }

    fn path(self, kind: &str, (letter, of): (char, usize), number: &str) -> PathBuf {
        self.dir.join(match self.is_typed {
            true => format!("{kind}-{letter}{of:02}-{number}.arrow"),
            false => format!("{kind}-{number}.arrow"),
        })
    }
}

pub(crate) fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn file_entry(path: &Path) -> Result<FileEntry, StoreError> {
    let failed = |source| StoreError::File {
        verb: "read",
        path: path.to_owned(),
        source,
    };
    let bytes = path.metadata().map_err(|e| failed(e.into()))?.len();
    Ok(FileEntry {
        path: file_name(path),
        bytes,
        checksum: file_checksum(path)?,
    })
}

/// Checks the sizes and checksums of a store's files.
pub(crate) fn verify(dir: &Path, files: &[FileEntry]) -> Result<(), StoreError> {
    for expected in files {
        let path = dir.join(&expected.path);
        let found = file_entry(&path)?;
        if found != *expected {
            let what = format!(
                "it has {} bytes and checksum {}, but {} bytes and checksum {} were written",
                found.bytes, found.checksum, expected.bytes, expected.checksum
            );
            return Err(StoreError::File {
                verb: "read",
                path,
                source: StoreCause::Damaged(what),
            });
        }
    }
    Ok(())
}
