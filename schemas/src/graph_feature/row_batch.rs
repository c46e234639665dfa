//! Collects rows of layout `rows` for the writer.

use std::ops::Range;

use arrow::array::ArrowPrimitiveType;
use arrow::datatypes::{Float32Type, UInt32Type};

use super::dense_rows::{DenseRows, OwnRows};
use super::extract::{ExtractScratch, WalkedEdges, WalkedNodes, gather};
use super::{GraphShard, PartPairs, ShardEdges, ShardNodes};
use crate::as_given;
use crate::columns::{FeatureMeta, Features, GraphMeta, Labels, RelationMeta, Split, TypeMeta};
use crate::error::Result;
use crate::float_pages::FloatPages;
use crate::ids::Ids;
use crate::idx::Row;
use crate::parquet_file::{list_array, number_array};
use crate::table_writer::Column;

/// A list column being filled.
struct Lists<T> {
    values: Vec<T>,
    ends: Vec<usize>,
}

impl<T: Clone> Lists<T> {
    fn new() -> Self {
        Self {
            values: Vec::new(),
            ends: Vec::new(),
        }
    }

    fn push(&mut self, row: impl IntoIterator<Item = T>) {
        self.values.extend(row);
        self.ends.push(self.values.len());
    }

    fn take<P: ArrowPrimitiveType<Native = T>>(&mut self) -> Result<Column> {
        let ends = std::mem::take(&mut self.ends);
        let values = number_array::<P>(std::mem::take(&mut self.values));
        Ok(list_array(&ends, values)?.into())
    }
}

/// Rows of layout `rows`, collected for the writer.
pub(super) struct RowBatch {
    head: Head,
    /// By node type.
    nodes: Vec<NodeLists>,
    /// By relation.
    edges: Vec<EdgeLists>,
}

/// The columns that tell whose neighbourhoods the rows are.
enum Head {
    Targets {
        target: Ids,
        labels: Labels,
        split: Vec<Split>,
    },
    /// Positions are those among the nodes of each row.
    Pairs(PartPairs),
}

/// What a row is the neighbourhood of.
pub(super) enum RowOf {
    /// A target, by its position among the nodes of the target type.
    Target(u32),
    /// A row of the table of pairs, with positions among the nodes of the shard.
    Pair(PartPairs),
}

/// The columns of a node type.
struct NodeLists {
    node_id: Ids,
    node_id_ends: Vec<usize>,
    hop_offset: Lists<u32>,
    feature: FloatPages,
    feature_offset: Lists<u32>,
    feature_index: Lists<u32>,
    feature_value: Lists<f32>,
}

/// The columns of a relation.
struct EdgeLists {
    in_degree: Lists<u32>,
    in_weight: Lists<f32>,
    self_loops: Lists<u32>,
    self_weight: Lists<f32>,
    in_offset: Lists<u32>,
    in_src: Lists<u32>,
    edge_weight: Lists<f32>,
    edge_feature: FloatPages,
}

impl RowBatch {
    pub(super) fn new(shard: &GraphShard, meta: &GraphMeta) -> Self {
        let head = match &meta.pairs {
            Some(pairs) => Head::Pairs(PartPairs::empty(pairs)),
            None => Head::Targets {
                target: Ids::new(meta.target().id_type),
                labels: shard.target_nodes().labels.empty_like(),
                split: Vec::new(),
            },
        };
        Self {
            head,
            nodes: meta.types.iter().map(NodeLists::new).collect(),
            edges: meta.relations.iter().map(|_| EdgeLists::new()).collect(),
        }
    }

    /// Estimates the number of values of all columns.
    pub(super) fn num_values(&self) -> usize {
        let of_nodes: usize = self.nodes.iter().map(NodeLists::num_values).sum();
        let of_edges: usize = self.edges.iter().map(EdgeLists::num_values).sum();
        of_nodes + of_edges
    }

    /// Appends a row with the neighbourhood in `scratch`.
    pub(super) fn push(
        &mut self,
        shard: &GraphShard,
        (features, meta): (&[Option<&dyn DenseRows>], &GraphMeta),
        row: RowOf,
        scratch: &ExtractScratch,
    ) {
        self.head.push(shard, meta, row, scratch);
        for (type_idx, lists) in self.nodes.iter_mut().enumerate() {
            let walked = &scratch.nodes[type_idx];
            lists.push(&shard.nodes[type_idx], features[type_idx], walked);
        }
        for ((lists, edges), walked) in self.edges.iter_mut().zip(&shard.edges).zip(&scratch.edges)
        {
            lists.push(edges, &scratch.nodes[edges.to].nodes, walked);
        }
    }

    /// Empties the batch into columns, in the order of [`layout::rows_schema`].
    pub(super) fn take(&mut self, meta: &GraphMeta) -> Result<Vec<Column>> {
        let mut columns = self.head.take(meta)?;
        for (type_idx, lists) in self.nodes.iter_mut().enumerate() {
            columns.push(list_array(&lists.node_id_ends, lists.node_id.to_array())?.into());
            columns.push(lists.hop_offset.take::<UInt32Type>()?);
            for relation in meta.relations_to(type_idx) {
                self.edges[relation].take_degrees(&meta.relations[relation], &mut columns)?;
            }
            lists.take_features(&meta.types[type_idx], &mut columns)?;
            lists.node_id.clear();
            lists.node_id_ends.clear();
        }
        for (lists, of) in self.edges.iter_mut().zip(&meta.relations) {
            lists.take_edges(of, &mut columns)?;
        }
        Ok(columns)
    }
}

impl Head {
    fn push(&mut self, shard: &GraphShard, meta: &GraphMeta, row: RowOf, scratch: &ExtractScratch) {
        match (self, row, &meta.pairs) {
            (
                Self::Targets {
                    target,
                    labels,
                    split,
                },
                RowOf::Target(at),
                _,
            ) => {
                let targets = shard.target_nodes();
                target.push_from(&targets.ids, at as usize);
                labels.push_from(&targets.labels, at);
                split.push(targets.split[at as usize]);
            }
            (Self::Pairs(pairs), RowOf::Pair(mut own), Some(of)) => {
                own.relabel(of, |type_idx, end| {
                    let walked = &scratch.nodes[type_idx];
                    let mut roots = walked.nodes[..walked.hop_offset[1] as usize].iter();
                    let at = roots.position(|&node| node == end.raw());
                    Row::from_index(at.expect("walks start at the ends and negatives"))
                });
                pairs.extend(&own);
            }
            _ => unreachable!("rows are pairs where the graph has pairs"),
        }
    }

    /// Empties the head into columns.
    fn take(&mut self, meta: &GraphMeta) -> Result<Vec<Column>> {
        match (self, &meta.pairs) {
            (Self::Pairs(pairs), Some(of)) => {
                let taken = std::mem::replace(pairs, PartPairs::empty(of));
                taken.columns(0..taken.num_rows(), of)
            }
            (
                Self::Targets {
                    target,
                    labels,
                    split,
                },
                _,
            ) => {
                let mut columns = vec![Column::Array(target.to_array())];
                if let Some(label) = &meta.target().label {
                    columns.push(as_given::label_array(labels, label)?.into());
                }
                if let Some(of) = &meta.target().split {
                    columns.push(as_given::split_array(split, of)?.into());
                }
                target.clear();
                *labels = labels.empty_like();
                split.clear();
                Ok(columns)
            }
            (Self::Pairs(_), None) => unreachable!("rows are pairs where the graph has pairs"),
        }
    }
}

impl NodeLists {
    fn new(meta: &TypeMeta) -> Self {
        Self {
            node_id: Ids::new(meta.id_type),
            node_id_ends: Vec::new(),
            hop_offset: Lists::new(),
            feature: FloatPages::default(),
            feature_offset: Lists::new(),
            feature_index: Lists::new(),
            feature_value: Lists::new(),
        }
    }

    /// Columns that are not counted have about the length of a counted one, or less.
    fn num_values(&self) -> usize {
        self.feature.num_values() + self.feature_value.values.len() + self.node_id.len() * 2
    }

    fn push(&mut self, all: &ShardNodes, features: Option<&dyn DenseRows>, walked: &WalkedNodes) {
        let nodes = &walked.nodes;
        self.node_id.extend_gather(&all.ids, nodes);
        self.node_id_ends.push(self.node_id.len());
        self.hop_offset.push(walked.hop_offset.iter().copied());
        if let Some(features) = features {
            let rows = nodes.iter().map(|&node| features.row(node as usize));
            self.feature.push(rows);
        }
        self.push_sparse(&all.features, nodes);
    }

    fn push_sparse(&mut self, features: &Features, nodes: &[u32]) {
        let Features::Sparse {
            offset,
            index,
            value,
            ..
        } = features
        else {
            return;
        };
        let mut end = 0;
        self.feature_offset.values.push(0);
        for &node in nodes {
            let range = entries(offset, node as usize..node as usize + 1);
            end += u32::try_from(range.len()).expect("a node has at most `dim` entries");
            self.feature_index
                .values
                .extend_from_slice(&index[range.clone()]);
            self.feature_value.values.extend_from_slice(&value[range]);
            self.feature_offset.values.push(end);
        }
        // The values are in the columns already: an empty push only ends the row.
        self.feature_offset.push([]);
        self.feature_index.push([]);
        self.feature_value.push([]);
    }

    fn take_features(&mut self, meta: &TypeMeta, columns: &mut Vec<Column>) -> Result<()> {
        match meta.features {
            FeatureMeta::None => {}
            FeatureMeta::Dense { .. } => {
                columns.push(Column::Floats(std::mem::take(&mut self.feature)));
            }
            FeatureMeta::Sparse { .. } => {
                columns.push(self.feature_offset.take::<UInt32Type>()?);
                columns.push(self.feature_index.take::<UInt32Type>()?);
                columns.push(self.feature_value.take::<Float32Type>()?);
            }
        }
        Ok(())
    }
}

impl EdgeLists {
    fn new() -> Self {
        Self {
            in_degree: Lists::new(),
            in_weight: Lists::new(),
            self_loops: Lists::new(),
            self_weight: Lists::new(),
            in_offset: Lists::new(),
            in_src: Lists::new(),
            edge_weight: Lists::new(),
            edge_feature: FloatPages::default(),
        }
    }

    /// As [`NodeLists::num_values`].
    fn num_values(&self) -> usize {
        self.edge_feature.num_values() + self.in_src.values.len() * 2
    }

    /// `dsts` are the nodes of type `to` of the neighbourhood.
    fn push(&mut self, all: &ShardEdges, dsts: &[u32], walked: &WalkedEdges) {
        let edges = &walked.edges;
        self.in_degree.push(gather(&all.in_degree, dsts));
        if let Some(in_weight) = &all.in_weight {
            self.in_weight.push(gather(in_weight, dsts));
        }
        if let Some(self_loops) = &all.self_loops {
            self.self_loops.push(gather(self_loops, dsts));
        }
        if let Some(self_weight) = &all.self_weight {
            self.self_weight.push(gather(self_weight, dsts));
        }
        self.in_offset.push(walked.in_offset.iter().copied());
        self.in_src.push(walked.in_src.iter().copied());
        if let Some(weight) = &all.edge_weight {
            self.edge_weight.push(gather(weight, edges));
        }
        if let Some(values) = &all.edge_feature {
            let dim = all.edge_dim();
            let own = OwnRows { dim, values };
            self.edge_feature
                .push(edges.iter().map(|&edge| own.row(edge as usize)));
        }
    }

    fn take_degrees(&mut self, meta: &RelationMeta, columns: &mut Vec<Column>) -> Result<()> {
        columns.push(self.in_degree.take::<UInt32Type>()?);
        if meta.edge_weight {
            columns.push(self.in_weight.take::<Float32Type>()?);
        }
        if meta.self_loops {
            columns.push(self.self_loops.take::<UInt32Type>()?);
        }
        if meta.self_weight() {
            columns.push(self.self_weight.take::<Float32Type>()?);
        }
        Ok(())
    }

    fn take_edges(&mut self, meta: &RelationMeta, columns: &mut Vec<Column>) -> Result<()> {
        columns.push(self.in_offset.take::<UInt32Type>()?);
        columns.push(self.in_src.take::<UInt32Type>()?);
        if meta.edge_weight {
            columns.push(self.edge_weight.take::<Float32Type>()?);
        }
        if meta.edge_feature_dim.is_some() {
            columns.push(Column::Floats(std::mem::take(&mut self.edge_feature)));
        }
        Ok(())
    }
}

/// Returns the range of entries of a range of nodes; `offset` has the first entry of each node.
pub(super) fn entries(offset: &[u64], nodes: Range<usize>) -> Range<usize> {
    let entry = |end: u64| usize::try_from(end).expect("offsets point into memory");
    entry(offset[nodes.start])..entry(offset[nodes.end])
}
