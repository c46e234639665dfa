//! Moves node rows from the worker that reads them to their owner.

use crate::arrow_file::{self, NODES_PER_BATCH, SpilledBatches};
use crate::error::StoreCause;
use crate::memory::turn_bytes;
use crate::node_columns::{NodeColumns, feature_columns, label_columns, split_column};
use crate::units::OwnUnits;
use crate::{Placement, StoreError, StorePlan};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::UInt32Type;
use cluster::Peer;
use schemas::{
    FeatureMeta, Features, Ids, Labels, NodeIdx, NodeReader, NodesPlan, SchemaError, Split,
    TypeMeta,
};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// Feature values of the rows that are read, split by owner and sent together.
const PARCEL_VALUES: usize = 1 << 20;

/// Greatest number of rows that are read, split by owner and sent together.
const PARCEL_ROWS_MAX: usize = 1 << 16;

/// Node rows of one worker's partition, in order of arrival.
pub(crate) struct OwnedNodes {
    num_nodes: usize,
    chunks: Vec<Chunk>,
}

/// Rows that arrived together, ascending by position.
struct Chunk {
    locals: ScalarBuffer<u32>,
    ids: ArrayRef,
    columns: NodeColumns,
    /// First row that is not written yet.
    next: usize,
}

/// Columns of some nodes.
#[derive(Clone, Serialize, Deserialize)]
struct NodeBatch {
    /// Position of each row among the receiver's nodes, ascending.
    locals: Vec<u32>,
    ids: Ids,
    features: Features,
    labels: Labels,
    split: Vec<Split>,
}

/// Reads the node rows and sends each to its owner.
///
/// `numbers` holds the number of each row, unit by unit.
///
/// # Errors
///
/// If a table cannot be read, or a value cannot be used.
pub(crate) fn place_nodes(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    work: OwnUnits,
    numbers: &[Vec<NodeIdx>],
    meta: &TypeMeta,
    placement: &Placement,
) -> Result<OwnedNodes, StoreError> {
    let outgoing = node_rows(&plan.nodes, work, numbers, meta, placement);
    let bytes_max = turn_bytes(plan.memory_budget) / plan.workers;
    let received = Rc::new(RefCell::new(Some(SpilledBatches::new(
        bytes_max, &plan.dir,
    ))));
    let take = Rc::clone(&received);
    peer.shuffle_each::<NodeBatch, StoreError>(outgoing, move |_, _, batch| {
        let mut taken = take.borrow_mut();
        let batches = taken
            .as_mut()
            .expect("it is taken only when the shuffle is over");
        batches.push(batch.into_record_batch())
    })?;
    let received = received.take().expect("it was set above");
    let batches = peer.agree(received.into_batches())?;
    let damaged = || StoreError::File {
        verb: "read",
        path: plan.dir.clone(),
        source: StoreCause::Damaged("a column is missing".into()),
    };
    let chunks = batches.iter().map(Chunk::of).collect();
    Ok(OwnedNodes {
        num_nodes: placement.num_local(peer.index()),
        chunks: Option::<Vec<_>>::ok_or_else(chunks, damaged)?,
    })
}

/// Returns the rows that this worker reads in batches, each with the worker that it is sent to.
fn node_rows<'a>(
    plan: &'a NodesPlan,
    work: OwnUnits,
    numbers: &'a [Vec<NodeIdx>],
    meta: &'a TypeMeta,
    placement: &'a Placement,
) -> impl Iterator<Item = Result<(usize, NodeBatch), StoreError>> + use<'a> {
    let label = meta.label.as_ref();
    let num_rows = rows_at_once(meta);
    let mut units = work.of(plan.units()).zip(numbers);
    let mut unit: Option<(NodeReader<'a>, &'a [NodeIdx])> = None;
    let mut rows = plan.no_rows(label, num_rows);
    // Reads the next rows; returns one batch for each owner.
    let mut next = move || loop {
        if let Some((reader, nodes)) = &mut unit
            && !nodes.is_empty()
        {
            rows.clear();
            reader.read(num_rows.min(nodes.len()), &mut rows)?;
            let known = nodes.split_at_checked(rows.ids.len());
            let Some((mine, rest)) = known.filter(|(mine, _)| !mine.is_empty()) else {
                return Err(changed(plan));
            };
            *nodes = rest;
            return Ok(Some(split_by_owner(&rows, mine, placement)));
        }
        let Some((next_unit, nodes)) = units.next() else {
            return Ok::<_, StoreError>(None);
        };
        unit = Some((plan.reader(next_unit, label)?, nodes));
    };
    let batches = std::iter::from_fn(move || next().transpose());
    batches.flat_map(|owners| match owners {
        Ok(owners) => owners.into_iter().map(Ok).collect(),
        Err(e) => vec![Err(e)],
    })
}

/// Returns the error of a table whose rows have changed since its ids were numbered.
fn changed(plan: &NodesPlan) -> StoreError {
    let path = plan.spec().path.to_string().into();
    SchemaError::Changed { path }.into()
}

/// Number of rows that are split and sent together, so that batches are few and small.
fn rows_at_once(meta: &TypeMeta) -> usize {
    let width = match meta.features {
        FeatureMeta::Dense { dim } => dim.max(1),
        FeatureMeta::None | FeatureMeta::Sparse { .. } => 1,
    };
    (PARCEL_VALUES / width).clamp(64, PARCEL_ROWS_MAX)
}

fn split_by_owner(
    rows: &schemas::NodeRows,
    nodes: &[NodeIdx],
    placement: &Placement,
) -> Vec<(usize, NodeBatch)> {
    let mut of_owner = vec![Vec::new(); placement.workers()];
    for (row, &node) in (0u64..).zip(nodes) {
        let (owner, local) = placement.owner_and_local(node);
        // Position and row in one number, which sorts faster than a pair.
        of_owner[owner].push(u64::from(local.raw()) << 32 | row);
    }
    let low = |pair: u64| u32::try_from(pair & u64::from(u32::MAX)).expect("masked");
    let batch = |mut mine: Vec<u64>| {
        mine.sort_unstable();
        let positions: Vec<u32> = mine.iter().map(|&pair| low(pair)).collect();
        NodeBatch {
            locals: mine.iter().map(|&pair| low(pair >> 32)).collect(),
            ids: rows.ids.gather(&positions),
            features: rows.features.gather(&positions),
            labels: rows.labels.gather(&positions),
            split: positions.iter().map(|&r| rows.split[r as usize]).collect(),
        }
    };
    let of_owner = of_owner.into_iter().enumerate();
    let sent = of_owner.filter(|(_, mine)| !mine.is_empty());
    sent.map(|(owner, mine)| (owner, batch(mine))).collect()
}

impl NodeBatch {
    fn into_record_batch(self) -> RecordBatch {
        let num_rows = self.locals.len();
        let locals: ArrayRef = std::sync::Arc::new(UInt32Array::from(self.locals));
        let mut columns = vec![
            ("local", locals),
            ("id", self.ids.to_array()),
            ("split", split_column(&self.split)),
        ];
        columns.extend(feature_columns(self.features, num_rows));
        columns.extend(label_columns(self.labels, num_rows));
        arrow_file::batch(columns)
    }
}

impl Chunk {
    fn of(batch: &RecordBatch) -> Option<Self> {
        let locals = batch.column_by_name("local")?;
        Some(Self {
            locals: locals.as_primitive_opt::<UInt32Type>()?.values().clone(),
            ids: ArrayRef::clone(batch.column_by_name("id")?),
            columns: NodeColumns::of(batch)?,
            next: 0,
        })
    }
}

impl OwnedNodes {
    /// Calls `write` with the columns of all nodes in order, a record batch at a time; a partition
    /// without nodes gets one empty batch.
    ///
    /// # Errors
    ///
    /// As `write`.
    pub(crate) fn for_each_batch(
        mut self,
        meta: &TypeMeta,
        mut write: impl FnMut(&RecordBatch) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        for start in (0..self.num_nodes.max(1)).step_by(NODES_PER_BATCH) {
            let range = start..(start + NODES_PER_BATCH).min(self.num_nodes);
            write(&self.columns(range, meta)?)?;
        }
        Ok(())
    }

    /// Collects the columns of the nodes at the positions `range`, which follow the range before.
    fn columns(&mut self, range: Range<usize>, meta: &TypeMeta) -> Result<RecordBatch, StoreError> {
        let mut places = vec![None; range.len()];
        let mut ids = Ids::new(meta.id_type);
        for (c, chunk) in self.chunks.iter_mut().enumerate() {
            let first = chunk.next;
            let is_mine = |local: &&u32| (**local as usize) < range.end;
            chunk.next += chunk.locals[first..].iter().take_while(is_mine).count();
            for row in first..chunk.next {
                let id = u32::try_from(ids.len() + row - first).expect("a record batch is small");
                places[chunk.locals[row] as usize - range.start] = Some((c, row, id));
            }
            let more = Ids::from_array(&chunk.ids.slice(first, chunk.next - first))?;
            ids.extend_from(&more, 0..more.len());
        }
        let mut features = Features::with_capacity(meta.features, range.len());
        let mut labels = Labels::empty(meta.label.as_ref());
        let mut split = Vec::with_capacity(range.len());
        let mut order = Vec::with_capacity(range.len());
        for place in places {
            let (chunk, row, id) = place.expect("each number belongs to one row");
            let columns = &self.chunks[chunk].columns;
            columns.features_into(row, &mut features);
            columns.label_into(row, &mut labels);
            split.push(columns.split(row));
            order.push(id);
        }
        let mut columns = vec![
            ("id", ids.gather(&order).to_array()),
            ("split", split_column(&split)),
        ];
        columns.extend(feature_columns(features, range.len()));
        columns.extend(label_columns(labels, range.len()));
        Ok(arrow_file::batch(columns))
    }
}
