//! What a store is made of, checked.

use crate::sample::Order;
use schemas::{EdgesPlan, NodesPlan, Sampling};
use std::path::PathBuf;
use std::sync::Arc;

/// In-edges of a node from which it counts as a hub, unless the job says otherwise.
pub const HUB_THRESHOLD: u64 = 10_000;

/// What the store is made of.
#[derive(Clone, Debug)]
pub struct StorePlan {
    /// The node table.
    pub nodes: Arc<NodesPlan>,
    /// The edge table.
    pub edges: Arc<EdgesPlan>,
    /// Random seed of the samples.
    pub seed: u64,
    /// Order in which in-edges are ranked.
    pub sampling: Sampling,
    /// In-edges kept per node, `usize::MAX` for all.
    pub keep: usize,
    /// Independent samples, with seeds `seed`, `seed + 1`, ...
    pub samples: u32,
    /// Whether all in-edges are kept beside the samples, so that others can be drawn later.
    pub redraw: bool,
    /// In-degree above which a node's in-edges are spread over all workers.
    pub hub_threshold: u64,
    /// Worker threads, and partitions of the store.
    pub workers: usize,
    /// Bytes of memory that building the store may take; beyond, it goes to `dir`.
    pub memory_budget: usize,
    /// Directory of the store.
    pub dir: PathBuf,
    /// Whether a store that is there already is built again.
    pub fresh: bool,
}

/// A list of in-edges that the store holds for each node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListPlan {
    pub(crate) order: Order,
    /// In-edges kept, the first ones.
    pub(crate) keep: usize,
}

impl StorePlan {
    /// Returns the lists of each node: one a sample, and that of all in-edges if others are to be
    /// drawn.
    pub(crate) fn lists(&self) -> Vec<ListPlan> {
        let samples = (0..u64::from(self.samples)).map(|sample| ListPlan {
            order: Order::Rank(self.sampling, self.seed.wrapping_add(sample)),
            keep: self.keep,
        });
        let all = ListPlan {
            order: Order::Source,
            keep: usize::MAX,
        };
        samples.chain(self.redraw.then_some(all)).collect()
    }
}
