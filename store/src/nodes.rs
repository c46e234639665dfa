//! Moves node rows from the worker that reads them to their owner.

use crate::arrow_file::{self, NODES_PER_BATCH, SpilledBatches};
use crate::error::StoreCause;
use crate::map::will_need_rows;
use crate::memory::{Budget, turn_bytes};
use crate::node_columns::{NodeColumns, feature_columns, label_columns, split_column};
use crate::units::OwnUnits;
use crate::{Placement, StoreError, StorePlan, TypePlacement};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::UInt32Type;
use cluster::Peer;
use schemas::{
    DescribedColumns, FeatureMeta, Features, GraphMeta, Ids, Labels, NodeIdx, NodeReader, NodeRows,
    NodeSource, NodesPlan, SchemaError, Split, TypeMeta,
};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// Feature values of the rows that are read, split by owner and sent together.
const PARCEL_VALUES: usize = 1 << 20;

/// Greatest number of rows that are read, split by owner and sent together.
const PARCEL_ROWS_MAX: usize = 1 << 16;

/// Most bytes of a chunk that are read before they are needed.
const AHEAD_MAX: usize = 1 << 16;

/// Node rows of one type and one worker's partition, in order of arrival.
pub(crate) struct OwnedNodes {
    num_nodes: usize,
    chunks: Vec<Chunk>,
    /// Bytes of each chunk that are read before they are needed.
    ahead: usize,
}

/// Rows that arrived together, ascending by place.
struct Chunk {
    locals: ScalarBuffer<u32>,
    ids: ArrayRef,
    columns: NodeColumns,
    batch: RecordBatch,
    row_bytes: usize,
    /// First row that is not written yet.
    next: usize,
    /// First row that no call has announced as needed soon.
    needed: usize,
}

/// Columns of some nodes.
#[derive(Clone, Serialize, Deserialize)]
struct NodeBatch {
    /// Position of the type in the source.
    member: u32,
    /// Place of each row among the receiver's nodes of the type, ascending.
    locals: Vec<u32>,
    ids: Ids,
    features: Features,
    labels: Labels,
    split: Vec<Split>,
}

/// Where the nodes of a source's types belong.
#[derive(Clone, Copy)]
pub(crate) struct NodePlaces<'a> {
    pub(crate) source: &'a NodeSource,
    /// The number of each row, by type of the source and by unit.
    pub(crate) numbers: &'a [Vec<Vec<NodeIdx>>],
    pub(crate) graph: &'a GraphMeta,
    pub(crate) placement: &'a Placement,
}

/// The own rows of each type of a source. For each of its types and columns of dense features,
/// whether values are missing in the rows that this worker read.
type PlacedNodes = (Vec<OwnedNodes>, Vec<Vec<bool>>);

/// Reads the node rows of a source and sends each to its owner.
///
/// # Errors
///
/// If a table cannot be read, or a value cannot be used.
pub(crate) fn place_nodes(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    work: OwnUnits,
    places: NodePlaces<'_>,
) -> Result<PlacedNodes, StoreError> {
    let gaps = Rc::new(RefCell::new(Vec::new()));
    let outgoing = node_rows(work, places, Rc::clone(&gaps));
    let budget = Budget::new(turn_bytes(plan.memory_budget) / plan.workers);
    let types = places.source.types();
    let received = types
        .iter()
        .map(|_| SpilledBatches::new(budget.clone(), &plan.dir));
    let received = Rc::new(RefCell::new(received.collect::<Vec<_>>()));
    let take = Rc::clone(&received);
    peer.shuffle_each::<NodeBatch, StoreError>(outgoing, move |_, _, batch| {
        let member = batch.member as usize;
        take.borrow_mut()[member].push(batch.into_record_batch())
    })?;
    let damaged = || StoreError::File {
        verb: "read",
        path: plan.dir.clone(),
        source: StoreCause::Damaged("a column is missing".into()),
    };
    let own = types
        .iter()
        .zip(received.take())
        .map(|((type_idx, _), spilled)| {
            let batches = spilled.into_batches()?;
            let ahead = turn_bytes(plan.memory_budget) / 4 / plan.workers / batches.len().max(1);
            let chunks = batches.into_iter().map(Chunk::of).collect();
            Ok(OwnedNodes {
                num_nodes: places.placement.of_type(*type_idx).num_local(peer.index()),
                chunks: Option::<Vec<_>>::ok_or_else(chunks, damaged)?,
                ahead: ahead.min(AHEAD_MAX),
            })
        });
    let own: Result<Vec<_>, StoreError> = own.collect();
    Ok((peer.agree(own)?, gaps.take()))
}

/// Returns the rows that this worker reads in batches, each with the worker that it is sent to.
/// Sets in `gaps` which columns of each type have missing values.
fn node_rows<'a>(
    work: OwnUnits,
    places: NodePlaces<'a>,
    gaps: Rc<RefCell<Vec<Vec<bool>>>>,
) -> impl Iterator<Item = Result<(usize, NodeBatch), StoreError>> + use<'a> {
    let types = places.source.types();
    let metas = types.iter().map(|(idx, _)| &places.graph.types[*idx]);
    let metas: Vec<&TypeMeta> = metas.collect();
    let described = metas
        .iter()
        .map(|meta| (meta.label.as_ref(), &meta.columns[..]));
    let described: Vec<DescribedColumns<'_>> = described.collect();
    let num_rows = metas.iter().map(|meta| rows_at_once(meta)).min();
    let num_rows = num_rows.expect("a source has a type");
    let mut units = work.of(places.source.units()).enumerate();
    let mut unit: Option<(NodeReader<'a>, Vec<&'a [NodeIdx]>)> = None;
    let rows = types.iter().zip(&described);
    let rows = rows.map(|((_, plan), (label, _))| plan.no_rows(*label, num_rows));
    let mut rows: Vec<NodeRows> = rows.collect();
    gaps.replace(rows.iter().map(|of| of.gaps.clone()).collect());
    // Reads the next rows; returns one batch for each type and owner.
    let mut next = move || loop {
        if let Some((reader, nodes)) = &mut unit {
            let left: usize = nodes.iter().map(|of| of.len()).sum();
            if left > 0 {
                rows.iter_mut().for_each(NodeRows::clear);
                reader.read_each(num_rows.min(left), &mut rows)?;
                for (found, of) in gaps.borrow_mut().iter_mut().zip(&rows) {
                    found.clone_from(&of.gaps);
                }
                return split_all(places, &rows, nodes).map(Some);
            }
        }
        let Some((at, next_unit)) = units.next() else {
            return Ok::<_, StoreError>(None);
        };
        let numbers = places.numbers.iter().map(|of| &of[at][..]);
        let reader = places.source.reader(&next_unit, &described)?;
        unit = Some((reader, numbers.collect()));
    };
    let batches = std::iter::from_fn(move || next().transpose());
    batches.flat_map(|owners| match owners {
        Ok(owners) => owners.into_iter().map(Ok).collect(),
        Err(e) => vec![Err(e)],
    })
}

/// Splits the rows of each type by owner and removes their numbers from `nodes`.
fn split_all(
    places: NodePlaces<'_>,
    rows: &[NodeRows],
    nodes: &mut [&[NodeIdx]],
) -> Result<Vec<(usize, NodeBatch)>, StoreError> {
    let types = places.source.types();
    if rows.iter().all(|of| of.ids.is_empty()) {
        return Err(changed(&types[0].1));
    }
    let mut batches = Vec::new();
    for (member, (of_type, left)) in rows.iter().zip(nodes).enumerate() {
        let (type_idx, plan) = &types[member];
        let known = left.split_at_checked(of_type.ids.len());
        let (mine, rest) = known.ok_or_else(|| changed(plan))?;
        *left = rest;
        let placement = places.placement.of_type(*type_idx);
        let has_split = places.graph.types[*type_idx].split.is_some();
        batches.extend(split_by_owner(
            member,
            of_type,
            mine,
            (placement, has_split),
        ));
    }
    Ok(batches)
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
    member: usize,
    rows: &NodeRows,
    nodes: &[NodeIdx],
    (placement, has_split): (&TypePlacement, bool),
) -> Vec<(usize, NodeBatch)> {
    let mut of_owner = vec![Vec::new(); placement.workers()];
    for (row, &node) in (0u64..).zip(nodes) {
        let (owner, place) = placement.owner_and_place(node);
        // Place and row in one number, which sorts faster than a pair.
        of_owner[owner].push(u64::from(place.raw()) << 32 | row);
    }
    let low = |pair: u64| u32::try_from(pair & u64::from(u32::MAX)).expect("masked");
    let batch = |mut mine: Vec<u64>| {
        mine.sort_unstable();
        let positions: Vec<u32> = mine.iter().map(|&pair| low(pair)).collect();
        let split_of = |&row: &u32| match has_split {
            true => rows.split[row as usize],
            false => Split::None,
        };
        NodeBatch {
            member: u32::try_from(member).expect("few types"),
            locals: mine.iter().map(|&pair| low(pair >> 32)).collect(),
            ids: rows.ids.gather(&positions),
            features: rows.features.gather(&positions),
            labels: rows.labels.gather(&positions),
            split: positions.iter().map(split_of).collect(),
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
    fn of(batch: RecordBatch) -> Option<Self> {
        let locals = batch.column_by_name("local")?;
        let bytes = batch.columns().iter().map(|column| {
            let size = column.to_data().get_slice_memory_size();
            size.unwrap_or_default()
        });
        let row_bytes = bytes.sum::<usize>() / batch.num_rows().max(1);
        Some(Self {
            row_bytes: row_bytes.max(1),
            locals: locals.as_primitive_opt::<UInt32Type>()?.values().clone(),
            ids: ArrayRef::clone(batch.column_by_name("id")?),
            columns: NodeColumns::of(&batch)?,
            batch,
            next: 0,
            needed: 0,
        })
    }

    /// Starts to read the rows that are written next, about `bytes` of them at a time.
    fn read_ahead(&mut self, bytes: usize) {
        let num_rows = self.locals.len();
        let step = (bytes / self.row_bytes).max(1);
        while self.needed < num_rows && self.needed < self.next + step {
            let rows = self.needed..(self.needed + step).min(num_rows);
            for column in self.batch.columns() {
                will_need_rows(column, rows.clone());
            }
            self.needed = rows.end;
        }
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

    /// Collects the columns of the nodes at the places `range`, which follow the range before.
    fn columns(&mut self, range: Range<usize>, meta: &TypeMeta) -> Result<RecordBatch, StoreError> {
        let mut places = vec![None; range.len()];
        let mut ids = Ids::new(meta.id_type);
        for chunk in &mut self.chunks {
            chunk.read_ahead(self.ahead);
        }
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
