//! Degrees and in-edges of nodes in mapped files.

use crate::arrow_file::{bounds, column};
use crate::map::will_need;
use arrow::array::{AsArray, RecordBatch};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{Float32Type, UInt32Type};
use prefetch_index::prefetch_index;
use schemas::NodeIdx;
use std::ops::Range;

/// Degrees of the nodes of one record batch, in the mapped file.
pub(crate) struct DegreeColumns {
    pub(crate) in_degree: ScalarBuffer<u32>,
    least_src: ScalarBuffer<u32>,
    pub(crate) in_weight: Option<ScalarBuffer<f32>>,
    pub(crate) self_loops: ScalarBuffer<u32>,
    pub(crate) self_weight: Option<ScalarBuffer<f32>>,
}

impl DegreeColumns {
    /// Returns the least source of each node.
    pub(crate) fn least_src(&self) -> &[NodeIdx] {
        NodeIdx::slice(&self.least_src)
    }

    /// Takes the columns of a batch.
    pub(crate) fn of(batch: &RecordBatch) -> Option<Self> {
        let floats = |name: &str| column::<Float32Type>(batch.column_by_name(name)?);
        let counts = |name: &str| column::<UInt32Type>(batch.column_by_name(name)?);
        Some(Self {
            in_degree: counts("in_degree")?,
            least_src: counts("least_src")?,
            in_weight: floats("in_weight"),
            self_loops: counts("self_loops")?,
            self_weight: floats("self_weight"),
        })
    }
}

/// In-edges of the nodes of one record batch, in the mapped file.
pub(crate) struct EdgeLists {
    offset: OffsetBuffer<i64>,
    src: ScalarBuffer<u32>,
    weight: Option<ScalarBuffer<f32>>,
    feature: Option<ScalarBuffer<f32>>,
}

/// Which columns of in-edges are read besides the sources.
#[derive(Clone, Copy, Debug)]
pub struct EdgeReads {
    /// Weights, where the input has them.
    pub weight: bool,
    /// Features, where the input has them.
    pub feature: bool,
}

impl EdgeReads {
    /// All columns.
    pub const ALL: Self = Self {
        weight: true,
        feature: true,
    };
}

/// The ranked in-edges that the store keeps of one node.
#[derive(Clone, Copy, Debug, Default)]
pub struct InEdges<'a> {
    /// Sources, in rank order.
    pub src: &'a [NodeIdx],
    /// Weights, where the input has them.
    pub weight: Option<&'a [f32]>,
    /// Features, `[num_edges * dim]`, where the input has them.
    pub feature: Option<&'a [f32]>,
}

impl EdgeLists {
    /// Takes the columns of a batch.
    pub(crate) fn of(batch: &RecordBatch) -> Option<Self> {
        let src = batch.column_by_name("src")?.as_list_opt::<i64>()?;
        let floats = |name: &str| {
            column::<Float32Type>(batch.column_by_name(name)?.as_list_opt::<i64>()?.values())
        };
        Some(Self {
            offset: src.offsets().clone(),
            src: column::<UInt32Type>(src.values())?,
            weight: floats("weight"),
            feature: floats("feature"),
        })
    }

    /// Starts to read the in-edges of some nodes, with weights and features if `reads` has them.
    pub(crate) fn will_need(&self, nodes: Range<usize>, dim: usize, reads: EdgeReads) {
        let (first, last) = (
            bounds(&self.offset, nodes.start),
            bounds(&self.offset, nodes.end - 1),
        );
        let edges = first.start..last.end;
        will_need(bytemuck::cast_slice(&self.offset[nodes]));
        will_need(bytemuck::cast_slice(&self.src[edges.clone()]));
        if let Some(weight) = self.weight.as_ref().filter(|_| reads.weight) {
            will_need(bytemuck::cast_slice(&weight[edges.clone()]));
        }
        if let Some(feature) = self.feature.as_ref().filter(|_| reads.feature) {
            will_need(bytemuck::cast_slice(
                &feature[edges.start * dim..edges.end * dim],
            ));
        }
    }

    /// Prefetches where the in-edges of node `i` start.
    pub(crate) fn prefetch(&self, i: usize) {
        prefetch_index(&self.offset, i);
    }

    /// Returns the in-edges of node `i`, at most `limit` of them.
    pub(crate) fn in_edges(&self, i: usize, limit: usize, dim: usize) -> InEdges<'_> {
        let mut range = bounds(&self.offset, i);
        range.end = range.end.min(range.start.saturating_add(limit));
        InEdges {
            src: NodeIdx::slice(&self.src[range.clone()]),
            weight: self.weight.as_ref().map(|weight| &weight[range.clone()]),
            feature: self
                .feature
                .as_ref()
                .map(|f| &f[range.start * dim..range.end * dim]),
        }
    }
}
