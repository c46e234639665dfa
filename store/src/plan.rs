//! The checked plan of a store.

use crate::meta::StoreFiles;
use crate::sample::Order;
use schemas::{GraphPlan, Sampling};
use std::path::PathBuf;
use std::sync::Arc;

/// In-degree above which a node is a hub, unless the job sets another.
pub const HUB_THRESHOLD: u64 = 10_000;

/// Input and settings of a store.
#[derive(Clone, Debug)]
pub struct StorePlan {
    /// The tables.
    pub graph: Arc<GraphPlan>,
    /// Position of the target type, whose labels and splits are kept; 0 if nodes have no types.
    pub target_type: usize,
    /// Random seed of the samples.
    pub seed: u64,
    /// Order in which in-edges are ranked.
    pub sampling: Sampling,
    /// In-edges kept per node, for each relation; `usize::MAX` for all.
    pub keep: Vec<usize>,
    /// Independent samples, with seeds `seed`, `seed + 1`, ...
    pub samples: u32,
    /// Whether all in-edges are kept beside the samples, so that others can be drawn later.
    pub redraw: bool,
    /// Whether all in-edges that equal a pair are kept too, so that changes of pairs can bring them
    /// back.
    pub left_out: bool,
    /// In-degree above which a node's in-edges are spread over all workers, if not all are kept.
    pub hub_threshold: u64,
    /// Worker threads, and partitions of the store.
    pub workers: usize,
    /// Bytes of memory that building the store may take: node rows, and later edges, beyond half of
    /// it go to files in `dir`.
    pub memory_budget: usize,
    /// Bytes of files that the page cache can hold; none: as much as is free beside the memory
    /// budget. Where it cannot hold a file, the file is read in its order.
    pub page_cache: Option<u64>,
    /// Directory of the store.
    pub dir: PathBuf,
    /// Whether an existing store is built again.
    pub fresh: bool,
}

/// A list of in-edges that the store holds for each node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListPlan {
    pub(crate) order: Order,
    /// Number of in-edges kept, the first ones in `order`.
    pub(crate) keep: usize,
}

impl StorePlan {
    /// Returns the names of the store's files.
    pub(crate) fn files(&self) -> StoreFiles<'_> {
        StoreFiles {
            dir: &self.dir,
            is_typed: self.graph.is_typed(),
        }
    }

    /// Tells whether the store has in-edges that equal a pair.
    pub(crate) fn keeps_left_out(&self) -> bool {
        self.left_out && self.graph.pairs.is_some()
    }

    /// Tells whether the times of all pairs are kept for changes.
    pub(crate) fn keeps_times(&self) -> bool {
        let pairs = self.graph.pairs.as_ref();
        self.left_out && pairs.is_some_and(|of| of.spec().time.is_some())
    }

    /// Returns the lists of each node and relation: one for each sample and, with `redraw`, the list
    /// of all in-edges.
    pub(crate) fn lists(&self, relation: usize) -> Vec<ListPlan> {
        let samples = (0..u64::from(self.samples)).map(|sample| ListPlan {
            order: Order::Rank(self.sampling, self.seed.wrapping_add(sample)),
            keep: self.keep[relation],
        });
        let all = ListPlan {
            order: Order::Source,
            keep: usize::MAX,
        };
        samples.chain(self.redraw.then_some(all)).collect()
    }
}
