//! Where graph features come from: parts, decoded once where memory allows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use schemas::{
    FlattenMeta, GraphFeatureDataset, GraphMeta, GraphShard, Labels, Split, SplitCounts,
};

use crate::TrainError;

/// Reads a part.
type ReadPart = Box<dyn Fn(usize) -> Result<GraphShard, TrainError> + Send + Sync>;

/// Parts of graph features to train on, in any order and as often as needed.
pub struct Source {
    /// Where they lie, for messages.
    pub(crate) input: PathBuf,
    /// What their tables hold.
    pub(crate) graph: GraphMeta,
    /// How they were made.
    pub(crate) flatten: FlattenMeta,
    /// Targets by part and split.
    pub(crate) counts: Vec<SplitCounts>,
    read: ReadPart,
    cache: Mutex<Cache>,
    cache_bytes_max: usize,
}

/// A decoded part.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) shard: GraphShard,
    /// Positions of the targets, by train, val and test.
    targets: [Vec<u32>; 3],
}

/// Decoded parts, the least recently used of which goes first.
#[derive(Debug, Default)]
struct Cache {
    slots: BTreeMap<usize, Slot>,
    clock: u64,
    held_bytes: usize,
}

#[derive(Debug, Default)]
struct Slot {
    /// Locked while the part is decoded, so that workers that need it wait instead of doing the same.
    part: Arc<Mutex<Option<Arc<Part>>>>,
    bytes: usize,
    used: u64,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source")
            .field("input", &self.input)
            .finish_non_exhaustive()
    }
}

impl Source {
    /// Creates a source of `counts.len()` parts, which `read` returns by position.
    ///
    /// Decoded parts are kept as long as they fit into `cache_bytes_max`.
    pub fn new(
        input: PathBuf,
        (graph, flatten): (GraphMeta, FlattenMeta),
        counts: Vec<SplitCounts>,
        cache_bytes_max: usize,
        read: impl Fn(usize) -> Result<GraphShard, TrainError> + Send + Sync + 'static,
    ) -> Self {
        let cache = Mutex::default();
        Self {
            input,
            graph,
            flatten,
            counts,
            read: Box::new(read),
            cache,
            cache_bytes_max,
        }
    }

    /// Opens a directory of graph features.
    ///
    /// # Errors
    ///
    /// If it holds none.
    pub fn open(input: &Path, cache_bytes_max: usize) -> Result<Self, TrainError> {
        let dataset = GraphFeatureDataset::open(input)?;
        let mut counts = Vec::with_capacity(dataset.num_parts());
        for idx in 0..dataset.num_parts() {
            counts.push(match dataset.part(idx).targets {
                Some(known) => known,
                None => dataset.read_part(idx)?.split_counts(),
            });
        }
        let metas = (dataset.meta().clone(), dataset.flatten().clone());
        let read = move |idx| Ok(dataset.read_part(idx)?);
        Ok(Self::new(
            input.to_owned(),
            metas,
            counts,
            cache_bytes_max,
            read,
        ))
    }

    /// Returns the number of targets of a split, by part.
    pub(crate) fn counts_of(&self, split: Split) -> Vec<usize> {
        let of = |counts: &SplitCounts| match split {
            Split::None => counts.none,
            Split::Train => counts.train,
            Split::Val => counts.val,
            Split::Test => counts.test,
        };
        self.counts.iter().map(|counts| index(of(counts))).collect()
    }

    /// Returns a decoded part.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or a target of a split has no label.
    pub(crate) fn part(&self, idx: usize) -> Result<Arc<Part>, TrainError> {
        let shared = {
            let mut cache = self.cache();
            cache.clock += 1;
            let now = cache.clock;
            let slot = cache.slots.entry(idx).or_default();
            slot.used = now;
            Arc::clone(&slot.part)
        };
        let mut decoded = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = &*decoded {
            return Ok(Arc::clone(part));
        }
        let part = Arc::new(self.decode(idx)?);
        *decoded = Some(Arc::clone(&part));
        drop(decoded);
        self.cache()
            .keep(idx, shard_bytes(&part.shard), self.cache_bytes_max);
        Ok(part)
    }

    fn decode(&self, idx: usize) -> Result<Part, TrainError> {
        let shard = (self.read)(idx)?;
        let mut targets = [const { Vec::new() }; 3];
        for (position, (&split, &is_target)) in (0..).zip(shard.split.iter().zip(&shard.is_target))
        {
            let Some(slot) = slot_of(split).filter(|_| is_target) else {
                continue;
            };
            let row: u32 = position;
            if !shard.labels.has(row as usize) {
                return Err(TrainError::Unlabelled {
                    input: self.input.clone(),
                    id: shard.ids.display(row as usize),
                    split: split.as_str(),
                });
            }
            targets[slot].push(row);
        }
        let part = Part { shard, targets };
        for split in [Split::Train, Split::Val, Split::Test] {
            let (found, expected) = (part.targets(split).len(), self.counts_of(split)[idx]);
            if found != expected {
                let (input, split) = (self.input.clone(), split.as_str());
                return Err(TrainError::Miscounted {
                    input,
                    part: idx,
                    split,
                    found,
                    expected,
                });
            }
        }
        Ok(part)
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    /// Returns the positions of the targets of a split, ascending.
    pub(crate) fn targets(&self, split: Split) -> &[u32] {
        slot_of(split).map_or(&[], |slot| &self.targets[slot])
    }
}

impl Cache {
    /// Accounts for a part that was decoded, and forgets the least recently used others while all
    /// are too large. A part larger than the limit is forgotten as soon as its users are done.
    fn keep(&mut self, idx: usize, bytes: usize, bytes_max: usize) {
        if let Some(slot) = self.slots.get_mut(&idx) {
            self.held_bytes += bytes - slot.bytes;
            slot.bytes = bytes;
        }
        while self.held_bytes > bytes_max {
            let decoded = self.slots.iter().filter(|(_, slot)| slot.bytes > 0);
            let Some((&oldest, _)) = decoded.min_by_key(|(_, slot)| slot.used) else {
                return;
            };
            if let Some(slot) = self.slots.remove(&oldest) {
                self.held_bytes -= slot.bytes;
            }
        }
    }
}

fn slot_of(split: Split) -> Option<usize> {
    match split {
        Split::None => None,
        Split::Train => Some(0),
        Split::Val => Some(1),
        Split::Test => Some(2),
    }
}

fn index(count: u64) -> usize {
    usize::try_from(count).expect("targets of a part fit into memory")
}

/// Memory of a decoded shard.
fn shard_bytes(shard: &GraphShard) -> usize {
    let floats = [
        &shard.in_weight,
        &shard.self_weight,
        &shard.edge_weight,
        &shard.edge_feature,
    ];
    let num_floats: usize = floats
        .iter()
        .filter_map(|column| column.as_ref())
        .map(Vec::len)
        .sum();
    let labels = match &shard.labels {
        Labels::None => 0,
        Labels::Class(classes) => 4 * classes.len(),
        Labels::Multi {
            values, present, ..
        } => 4 * values.len() + present.len(),
        Labels::Number(values) => 4 * values.len(),
    };
    let num_loops = shard.self_loops.as_ref().map_or(0, Vec::len);
    // hop, split and is_target take a byte each, in_degree and in_offset four.
    shard.ids.size_bytes()
        + shard.features.size_bytes()
        + labels
        + shard.hop.len() * 11
        + 4 * (shard.in_src.len() + num_floats + num_loops)
}

#[cfg(test)]
mod tests;
