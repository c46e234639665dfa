//! The mapped out-edges as a trace of differential dataflow: keys are positions of sources.
//!
//! All edges have the time 0, so a join with the trace reads the edges of the keys that it meets
//! and nothing else.

use std::sync::Arc;

use differential_dataflow::operators::arrange::Arranged;
use differential_dataflow::trace::{BatchReader, Cursor, Description, Navigable, TraceReader};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::Scope;
use timely::dataflow::operators::generic::operator::source;
use timely::progress::Antichain;
use timely::progress::frontier::AntichainRef;

use crate::out_edges::OwnOutEdges;

/// Number of a night; 0 is the store.
pub(crate) type Time = u64;

static AT_START: Time = 0;
static ONCE: isize = 1;

/// The only batch of the trace.
#[derive(Clone)]
pub(crate) struct StoreBatch {
    edges: Arc<OwnOutEdges>,
    /// Positions `0..num_nodes`: keys are borrowed from it.
    keys: Arc<Vec<u32>>,
    description: Arc<Description<Time>>,
}

/// A trace that holds one batch for ever.
#[derive(Clone)]
pub(crate) struct StoreTrace {
    batch: StoreBatch,
    logical: Antichain<Time>,
    physical: Antichain<Time>,
}

pub(crate) struct StoreCursor {
    key: usize,
    val: usize,
}

impl BatchReader for StoreBatch {
    type Time = Time;

    fn len(&self) -> usize {
        self.edges.num_edges()
    }

    fn description(&self) -> &Description<Time> {
        &self.description
    }
}

impl Navigable for StoreBatch {
    type Cursor = StoreCursor;

    fn cursor(&self) -> StoreCursor {
        StoreCursor { key: 0, val: 0 }
    }
}

impl Cursor for StoreCursor {
    type Storage = StoreBatch;
    type Key<'a> = &'a u32;
    type ValOwn = u64;
    type Val<'a> = &'a u64;
    type Time = Time;
    type TimeGat<'a> = &'a Time;
    type Diff = isize;
    type DiffGat<'a> = &'a isize;
    type KeyContainer = Vec<u32>;
    type ValContainer = Vec<u64>;
    type TimeContainer = Vec<Time>;
    type DiffContainer = Vec<isize>;

    fn key_valid(&self, batch: &StoreBatch) -> bool {
        self.key < batch.keys.len()
    }

    fn val_valid(&self, batch: &StoreBatch) -> bool {
        self.val < batch.edges.of(self.key).len()
    }

    fn key<'a>(&self, batch: &'a StoreBatch) -> &'a u32 {
        &batch.keys[self.key]
    }

    fn val<'a>(&self, batch: &'a StoreBatch) -> &'a u64 {
        &batch.edges.of(self.key)[self.val]
    }

    fn get_key<'a>(&self, batch: &'a StoreBatch) -> Option<&'a u32> {
        batch.keys.get(self.key)
    }

    fn get_val<'a>(&self, batch: &'a StoreBatch) -> Option<&'a u64> {
        batch.edges.of(self.key).get(self.val)
    }

    fn map_times<L: FnMut(&Time, &isize)>(&mut self, _: &StoreBatch, mut logic: L) {
        logic(&AT_START, &ONCE);
    }

    fn step_key(&mut self, _: &StoreBatch) {
        self.key += 1;
        self.val = 0;
    }

    fn seek_key(&mut self, batch: &StoreBatch, key: &u32) {
        // Keys are positions, so no search is needed.
        self.key = self.key.max((*key as usize).min(batch.keys.len()));
        self.val = 0;
    }

    fn step_val(&mut self, _: &StoreBatch) {
        self.val += 1;
    }

    fn seek_val(&mut self, batch: &StoreBatch, val: &u64) {
        let rest = batch.edges.of(self.key).get(self.val..).unwrap_or_default();
        self.val += rest.partition_point(|edge| edge < val);
    }

    fn rewind_keys(&mut self, _: &StoreBatch) {
        (self.key, self.val) = (0, 0);
    }

    fn rewind_vals(&mut self, _: &StoreBatch) {
        self.val = 0;
    }
}

impl TraceReader for StoreTrace {
    type Time = Time;
    type Batch = StoreBatch;

    fn batches_through(&mut self, upper: AntichainRef<'_, Time>) -> Option<Vec<StoreBatch>> {
        match upper.less_equal(&AT_START) {
            true => Some(Vec::new()),
            false => Some(vec![self.batch.clone()]),
        }
    }

    fn set_logical_compaction(&mut self, frontier: AntichainRef<'_, Time>) {
        self.logical = frontier.to_owned();
    }

    fn get_logical_compaction(&mut self) -> AntichainRef<'_, Time> {
        self.logical.borrow()
    }

    fn set_physical_compaction(&mut self, frontier: AntichainRef<'_, Time>) {
        self.physical = frontier.to_owned();
    }

    fn get_physical_compaction(&mut self) -> AntichainRef<'_, Time> {
        self.physical.borrow()
    }

    fn map_batches<F: FnMut(&StoreBatch)>(&self, mut logic: F) {
        logic(&self.batch);
    }
}

/// Arranges the out-edges of a worker's nodes, without reading them.
pub(crate) fn arrange<'scope>(
    scope: Scope<'scope, Time>,
    edges: Arc<OwnOutEdges>,
) -> Arranged<'scope, StoreTrace> {
    let start = || Antichain::from_elem(AT_START);
    let description = Description::new(start(), Antichain::from_elem(AT_START + 1), start());
    let num_nodes = u32::try_from(edges.num_nodes).expect("there are fewer nodes than numbers");
    let batch = StoreBatch {
        edges,
        keys: Arc::new((0..num_nodes).collect()),
        description: Arc::new(description),
    };
    let trace = StoreTrace {
        batch: batch.clone(),
        logical: start(),
        physical: start(),
    };
    let stream = source::<_, CapacityContainerBuilder<Vec<StoreBatch>>, _, _>(
        scope,
        "OutEdges",
        move |capability, _| {
            let mut first = Some((capability, batch));
            move |output| {
                if let Some((at_start, only)) = first.take() {
                    output.session(&at_start).give(only);
                }
            }
        },
    );
    Arranged { stream, trace }
}
