//! Sources of graph features: stored parts, which are decoded once if memory allows, or parts drawn
//! anew for each epoch.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use schemas::{
    DenseRows, DrawParts, Features, FlattenMeta, GraphColumns, GraphFeatureDataset, GraphMeta,
    GraphShard, Neighborhoods, PartPairs, Split, SplitCounts,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::TrainError;
use crate::degree_draws::DegreeDraws;
use crate::link::{BySrc, PartFrequencies};

/// Reads a part, or draws it with a seed.
type ReadPart = Box<dyn Fn(usize, u64) -> Result<Neighborhoods, TrainError> + Send + Sync>;

/// Parts of graph features to train on, in any order and as often as needed.
///
/// A *streamed* source draws a new sample for epoch e, with the seed of its [`FlattenMeta`] + e.
/// Evaluation reads the sample of that seed itself, which the cache may keep.
pub struct Source {
    /// Directory or name of the source, for messages.
    pub(crate) input: PathBuf,
    /// Types and columns of the graph.
    pub(crate) graph: GraphMeta,
    /// Settings that the parts were flattened with.
    pub(crate) flatten: FlattenMeta,
    /// Columns of the input tables that they were made of, where they say it.
    pub(crate) columns: Value,
    /// Targets by part and split.
    pub(crate) counts: Vec<SplitCounts>,
    /// Whether each epoch has its own sample.
    pub(crate) is_streamed: bool,
    read: ReadPart,
    cache: Mutex<Cache>,
    cache_bytes_max: usize,
    drawn: Mutex<DrawnParts>,
}

/// A part, and for a streamed source the epoch of its sample; none: the sample of the source's
/// seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartKey {
    pub(crate) part: usize,
    epoch: Option<u64>,
}

/// Parts drawn for an epoch and still in use. A slot is locked while its part is drawn, so that
/// other workers wait for it instead of drawing it too.
type DrawnParts = BTreeMap<PartKey, Arc<Mutex<Weak<Part>>>>;

/// A decoded part.
pub(crate) struct Part {
    pub(crate) shard: GraphShard,
    /// As in [`Neighborhoods`].
    dense: Vec<Option<Box<dyn DenseRows + Send + Sync>>>,
    /// Positions of the targets, or of the pairs where there are pairs, in the order train, val,
    /// test.
    targets: [Vec<u32>; 3],
    frequencies: PartFrequencies,
    /// Computed when negatives are first drawn by degree.
    degree_draws: OnceLock<DegreeDraws>,
    by_src: OnceLock<BySrc>,
}

/// Decoded parts; the least recently used one is dropped first.
#[derive(Debug, Default)]
struct Cache {
    slots: BTreeMap<usize, Slot>,
    clock: u64,
    held_bytes: usize,
}

#[derive(Debug, Default)]
struct Slot {
    /// Locked while the part is decoded, so that other workers wait instead of decoding it too.
    part: Arc<Mutex<Option<Arc<Part>>>>,
    bytes: usize,
    used: u64,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part")
            .field("num_nodes", &self.shard.num_nodes())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source")
            .field("input", &self.input)
            .finish_non_exhaustive()
    }
}

impl Source {
    /// Makes a source of `counts.len()` parts, which `read` returns by position.
    ///
    /// Decoded parts are kept while they fit into `cache_bytes_max`.
    pub fn new(
        input: PathBuf,
        metas: (GraphMeta, FlattenMeta),
        counts: Vec<SplitCounts>,
        cache_bytes_max: usize,
        read: impl Fn(usize) -> Result<GraphShard, TrainError> + Send + Sync + 'static,
    ) -> Self {
        let read: ReadPart = Box::new(move |part, _| Ok(read(part)?.into()));
        Self::with(input, metas, counts, cache_bytes_max, (read, false))
    }

    /// Makes a source of `counts.len()` parts, which are drawn by position and seed.
    ///
    /// Parts drawn for training are held only while they are in use or queued. Parts of the
    /// evaluation's sample are kept while they fit into `cache_bytes_max`.
    pub fn streamed(
        input: PathBuf,
        metas: (GraphMeta, FlattenMeta),
        counts: Vec<SplitCounts>,
        cache_bytes_max: usize,
        parts: impl DrawParts + 'static,
    ) -> Self {
        let read: ReadPart = Box::new(move |part, seed| Ok(parts.draw_part(part, seed)?));
        let read = (read, true);
        Self::with(input, metas, counts, cache_bytes_max, read)
    }

    fn with(
        input: PathBuf,
        (graph, flatten): (GraphMeta, FlattenMeta),
        counts: Vec<SplitCounts>,
        cache_bytes_max: usize,
        (read, is_streamed): (ReadPart, bool),
    ) -> Self {
        Self {
            input,
            graph,
            flatten,
            columns: Value::Null,
            counts,
            is_streamed,
            read,
            cache: Mutex::default(),
            cache_bytes_max,
            drawn: Mutex::default(),
        }
    }

    /// Opens a directory of graph features.
    ///
    /// # Errors
    ///
    /// If the directory has no readable graph features.
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
        let recorded = &dataset.manifest().input;
        let columns = match dataset.meta().is_typed() {
            true => recorded["columns"].clone(),
            false => json!(GraphColumns::of_manifest(recorded)),
        };
        let read = move |idx| Ok(dataset.read_part(idx)?);
        let source = Self::new(input.to_owned(), metas, counts, cache_bytes_max, read);
        Ok(Self { columns, ..source })
    }

    /// Names the columns of the input tables, which the model then keeps.
    #[must_use]
    pub fn with_columns(mut self, columns: impl Serialize) -> Self {
        self.columns = json!(columns);
        self
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

    /// Returns the key of a part in an epoch of training; without an epoch, in evaluation.
    pub(crate) fn key(&self, part: usize, epoch: Option<u64>) -> PartKey {
        PartKey {
            part,
            epoch: epoch.filter(|_| self.is_streamed),
        }
    }

    /// Returns a decoded part.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or a target of a split has no label.
    pub(crate) fn part(&self, key: PartKey) -> Result<Arc<Part>, TrainError> {
        match key.epoch {
            None => self.cached(key.part),
            Some(epoch) => self.drawn(key, self.flatten.seed.wrapping_add(epoch)),
        }
    }

    /// Draws a part, or shares it with the workers that hold it.
    fn drawn(&self, key: PartKey, seed: u64) -> Result<Arc<Part>, TrainError> {
        let shared = {
            let mut all = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
            // Drop the slots of parts that no worker draws or holds.
            all.retain(|_, slot| {
                let waits = Arc::strong_count(slot) > 1;
                waits || slot.try_lock().is_ok_and(|part| part.strong_count() > 0)
            });
            Arc::clone(all.entry(key).or_default())
        };
        let mut held = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = held.upgrade() {
            return Ok(part);
        }
        let part = Arc::new(self.decode(key.part, seed)?);
        *held = Arc::downgrade(&part);
        Ok(part)
    }

    fn cached(&self, idx: usize) -> Result<Arc<Part>, TrainError> {
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
        let part = Arc::new(self.decode(idx, self.flatten.seed)?);
        *decoded = Some(Arc::clone(&part));
        drop(decoded);
        self.cache()
            .keep(idx, part.shard.size_bytes(), self.cache_bytes_max);
        Ok(part)
    }

    fn decode(&self, idx: usize, seed: u64) -> Result<Part, TrainError> {
        let Neighborhoods { shard, dense } = (self.read)(idx, seed)?;
        let (targets, frequencies) = match (&shard.pairs, &self.graph.pairs) {
            (Some(pairs), Some(meta)) => {
                let num_nodes = shard.nodes[meta.to].ids.len();
                (pairs_by_split(pairs), PartFrequencies::of(pairs, num_nodes))
            }
            _ => (self.targets_by_split(&shard)?, PartFrequencies::default()),
        };
        let part = Part {
            shard,
            dense,
            targets,
            frequencies,
            degree_draws: OnceLock::new(),
            by_src: OnceLock::new(),
        };
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

    /// Returns the positions of the targets by split, all of which have labels.
    fn targets_by_split(&self, shard: &GraphShard) -> Result<[Vec<u32>; 3], TrainError> {
        let mut targets = [const { Vec::new() }; 3];
        let nodes = shard.target_nodes();
        for (position, (&split, &is_target)) in (0..).zip(nodes.split.iter().zip(&nodes.is_target))
        {
            let Some(slot) = slot_of(split).filter(|_| is_target) else {
                continue;
            };
            let row: u32 = position;
            if !nodes.labels.has(row as usize) {
                return Err(TrainError::Unlabelled {
                    input: self.input.clone(),
                    id: nodes.ids.display(row as usize),
                    split: split.as_str(),
                });
            }
            targets[slot].push(row);
        }
        Ok(targets)
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    /// Returns the pairs of the part.
    ///
    /// # Panics
    ///
    /// If the graph has no pairs.
    pub(crate) fn pairs(&self) -> &PartPairs {
        let pairs = self.shard.pairs.as_ref();
        pairs.expect("a graph with pairs has them in each part")
    }

    /// Returns the train pairs by src node.
    pub(crate) fn by_src(&self) -> &BySrc {
        let train = self.targets(Split::Train);
        self.by_src.get_or_init(|| BySrc::of(self.pairs(), train))
    }

    /// Returns how often train pairs end at nodes.
    pub(crate) fn frequencies(&self) -> &PartFrequencies {
        &self.frequencies
    }

    /// Returns how the random negatives of the part are drawn by degree; `to` is the type of dst ends.
    pub(crate) fn degree_draws(&self, to: usize) -> &DegreeDraws {
        self.degree_draws
            .get_or_init(|| DegreeDraws::of(&self.shard, to))
    }

    /// Returns the positions of the targets of a split, ascending; of its pairs where there are
    /// pairs.
    pub(crate) fn targets(&self, split: Split) -> &[u32] {
        slot_of(split).map_or(&[], |slot| &self.targets[slot])
    }

    /// Returns the width of the dense features of a type that are stored beside the shard; none if
    /// there are none.
    pub(crate) fn dense_dim(&self, node_type: usize) -> Option<usize> {
        self.dense[node_type].as_ref().map(|rows| rows.dim())
    }

    /// Returns the dense features of a node of a type, `[dim]`; empty if features are not dense.
    pub(crate) fn dense_row(&self, node_type: usize, node: u32) -> &[f32] {
        let node = node as usize;
        match (
            &self.dense[node_type],
            &self.shard.nodes[node_type].features,
        ) {
            (Some(rows), _) => rows.row(node),
            (None, Features::Dense { dim, values }) => &values[node * dim..(node + 1) * dim],
            (None, Features::None | Features::Sparse { .. }) => &[],
        }
    }
}

/// Returns the positions of the pairs by split.
fn pairs_by_split(pairs: &PartPairs) -> [Vec<u32>; 3] {
    let mut targets = [const { Vec::new() }; 3];
    for (pair, &split) in (0..).zip(&pairs.split) {
        if let Some(slot) = slot_of(split) {
            targets[slot].push(pair);
        }
    }
    targets
}

impl Cache {
    /// Counts the bytes of a decoded part, and drops the least recently used parts while all
    /// together are too large. A part larger than the limit is dropped at once; its users still
    /// hold it.
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

#[cfg(test)]
mod tests;
