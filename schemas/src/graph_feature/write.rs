//! Parts of graph features to Parquet, in either layout.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, BooleanArray};
use arrow::datatypes::{Float32Type, Schema, UInt8Type, UInt32Type};

use super::extract::{ExtractScratch, gather};
use super::{GraphShard, layout};
use crate::as_given;
use crate::columns::{FeatureMeta, Features, GraphMeta, Labels, Split};
use crate::dataset::{FileEntry, Output, PartEntry, part_name};
use crate::error::Result;
use crate::fanout::{FlattenMeta, Layout};
use crate::float_pages::FloatPages;
use crate::ids::Ids;
use crate::parquet_file::{list_array, number_array};
use crate::table_writer::{Column, Strings, TableWriter};

/// Values of a batch, over all columns, after which it goes to the writer.
const BATCH_VALUES: usize = 4 << 20;
/// Rows of a batch of flat columns.
const BATCH_ROWS_MAX: usize = 1 << 17;

/// Writes part `index` of a flatten output; the caller commits it with [`Output::commit_part`].
///
/// `lent` are dense features that lie outside of the shard, whose own must then be
/// [`Features::None`]. Layout `rows` extracts each target in the order of the shard's nodes and
/// streams the rows to the file in bounded batches.
///
/// # Errors
///
/// If the shard is invalid or does not agree with `meta`, or a file cannot be written.
pub fn write_part(
    output: &Output,
    index: usize,
    shard: &GraphShard,
    lent: Option<&dyn DenseRows>,
    meta: &GraphMeta,
    flatten: &FlattenMeta,
) -> Result<PartEntry> {
    write_in_batches(output, index, shard, lent, meta, flatten, BATCH_VALUES)
}

/// Dense features of a shard's nodes, wherever they lie.
pub trait DenseRows {
    /// Returns the number of features a node.
    fn dim(&self) -> usize;

    /// Returns the features of the node at a position in the shard, `[dim]`.
    fn row(&self, node: usize) -> &[f32];
}

/// Features that the shard holds itself.
struct OwnRows<'a> {
    dim: usize,
    values: &'a [f32],
}

impl DenseRows for OwnRows<'_> {
    fn dim(&self) -> usize {
        self.dim
    }

    fn row(&self, node: usize) -> &[f32] {
        &self.values[node * self.dim..(node + 1) * self.dim]
    }
}

/// Writes a part in batches of about `batch_values` values, which do not show in what is read.
pub(super) fn write_in_batches(
    output: &Output,
    index: usize,
    shard: &GraphShard,
    lent: Option<&dyn DenseRows>,
    meta: &GraphMeta,
    flatten: &FlattenMeta,
    batch_values: usize,
) -> Result<PartEntry> {
    let own = match &shard.features {
        Features::Dense { dim, values } => Some(OwnRows { dim: *dim, values }),
        Features::None | Features::Sparse { .. } => None,
    };
    let part = Part {
        output,
        index,
        shard,
        features: lent.or(own.as_ref().map(|own| own as &dyn DenseRows)),
        meta,
        flatten,
        batch_values,
    };
    part.write()
}

/// A part on its way to its files.
struct Part<'a> {
    output: &'a Output,
    index: usize,
    shard: &'a GraphShard,
    /// Dense features, lent or the shard's own.
    features: Option<&'a dyn DenseRows>,
    meta: &'a GraphMeta,
    flatten: &'a FlattenMeta,
    batch_values: usize,
}

impl Part<'_> {
    fn write(&self) -> Result<PartEntry> {
        self.shard.validate()?;
        let features = match self.features {
            Some(rows) => FeatureMeta::Dense { dim: rows.dim() },
            None => self.shard.features.meta(),
        };
        self.shard
            .agrees_with(features, self.meta, self.flatten.hops)?;
        let files = match self.flatten.layout {
            Layout::Rows => vec![self.write_rows()?],
            Layout::Shards => self.write_shard()?,
        };
        let targets = self.shard.split_counts();
        let rows = targets.total();
        Ok(PartEntry {
            name: part_name(self.index),
            files,
            rows,
            targets: Some(targets),
        })
    }

    fn create(&self, name: &str, schema: Schema, strings: Strings) -> Result<TableWriter> {
        let metadata = layout::metadata(self.meta, self.flatten)?;
        TableWriter::create(self.output, name, schema, strings, &metadata)
    }

    /// Ranges of rows that hold a bounded number of values, `width` a row.
    fn batches(&self, rows: usize, width: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let step = (self.batch_values / width.max(1)).clamp(1, BATCH_ROWS_MAX);
        (0..rows)
            .step_by(step)
            .map(move |start| start..rows.min(start + step))
    }

    fn write_rows(&self) -> Result<FileEntry> {
        let (shard, schema) = (self.shard, layout::rows_schema(self.meta)?);
        let mut writer = self.create(&layout::rows_path(self.index), schema, Strings::Repeated)?;
        let mut scratch = ExtractScratch::new(shard);
        let mut batch = RowBatch::new(shard, self.meta);
        for target in shard.targets() {
            scratch.walk(shard, target, &self.flatten.fanouts);
            batch.push(shard, self.features, target, &scratch);
            if batch.num_values() >= self.batch_values {
                writer.write(batch.take(self.meta)?)?;
            }
        }
        writer.write(batch.take(self.meta)?)?;
        writer.finish()
    }

    /// Writes both tables; the disk takes the nodes while the edges are encoded.
    fn write_shard(&self) -> Result<Vec<FileEntry>> {
        let nodes = self.write_nodes()?;
        let (synced, edges) = std::thread::scope(|scope| {
            let sync = scope.spawn(|| self.output.sync(&nodes));
            let edges = self.write_edges();
            (sync.join().expect("it does not panic"), edges)
        });
        synced?;
        Ok(vec![nodes, edges?])
    }

    fn write_nodes(&self) -> Result<FileEntry> {
        let (shard, schema) = (self.shard, layout::nodes_schema(self.meta)?);
        let mut writer = self.create(&layout::nodes_path(self.index), schema, Strings::Distinct)?;
        let width = match (&shard.features, self.meta.features) {
            (Features::Sparse { index, .. }, _) => index.len() / shard.num_nodes().max(1),
            (_, features) => features.dim(),
        };
        for range in self.batches(shard.num_nodes(), width) {
            writer.write(self.node_columns(range)?)?;
        }
        writer.finish()
    }

    /// Columns of some nodes, in the order of [`layout::nodes_schema`].
    fn node_columns(&self, range: Range<usize>) -> Result<Vec<Column>> {
        let (shard, meta) = (self.shard, self.meta);
        let mut arrays = vec![
            shard.ids.slice_to_array(range.clone()),
            number_array::<UInt8Type>(shard.hop[range.clone()].to_vec()),
            number_array::<UInt32Type>(shard.in_degree[range.clone()].to_vec()),
        ];
        let floats =
            |values: &Vec<f32>| number_array::<Float32Type>(values[range.clone()].to_vec());
        arrays.extend(shard.in_weight.as_ref().map(floats));
        if let Some(self_loops) = &shard.self_loops {
            let self_loops = self_loops[range.clone()].to_vec();
            arrays.push(number_array::<UInt32Type>(self_loops));
        }
        arrays.extend(shard.self_weight.as_ref().map(floats));
        if let Features::Sparse {
            offset,
            index,
            value,
            ..
        } = &shard.features
        {
            let ends = range
                .clone()
                .map(|node| entries(offset, range.start..node + 1).len());
            let ends: Vec<usize> = ends.collect();
            let at = entries(offset, range.clone());
            let positions = number_array::<UInt32Type>(index[at.clone()].to_vec());
            arrays.push(list_array(&ends, positions)?);
            let values = number_array::<Float32Type>(value[at].to_vec());
            arrays.push(list_array(&ends, values)?);
        }
        let mut columns: Vec<Column> = arrays.into_iter().map(Column::from).collect();
        if let Some(features) = self.features {
            columns.push(Column::Floats(row_pages(features, range.clone())));
        }
        if let Some(label) = &meta.label {
            let labels = shard.labels.slice(range.clone());
            columns.push(as_given::label_array(&labels, label)?.into());
        }
        if let Some(split) = &meta.split {
            columns.push(as_given::split_array(&shard.split[range.clone()], split)?.into());
        }
        let is_target: ArrayRef = Arc::new(BooleanArray::from(shard.is_target[range].to_vec()));
        columns.push(is_target.into());
        Ok(columns)
    }

    fn write_edges(&self) -> Result<FileEntry> {
        let (shard, schema) = (self.shard, layout::edges_schema(self.meta));
        let mut writer = self.create(&layout::edges_path(self.index), schema, Strings::Distinct)?;
        let dim = self.meta.edge_feature_dim.unwrap_or(0);
        let mut dst = 0;
        for range in self.batches(shard.num_edges(), dim) {
            let mut dsts = Vec::with_capacity(range.len());
            let mut ranks = Vec::with_capacity(range.len());
            for edge in range.clone() {
                let edge = u32::try_from(edge).expect("in_offset is u32");
                while shard.in_offset[dst as usize + 1] <= edge {
                    dst += 1;
                }
                dsts.push(dst);
                ranks.push(edge - shard.in_offset[dst as usize]);
            }
            let numbers = |values| Column::Array(number_array::<UInt32Type>(values));
            let src = shard.in_src[range.clone()].to_vec();
            let mut columns = vec![numbers(dsts), numbers(ranks), numbers(src)];
            if let Some(weight) = &shard.edge_weight {
                let weight = weight[range.clone()].to_vec();
                columns.push(number_array::<Float32Type>(weight).into());
            }
            if let Some(values) = &shard.edge_feature {
                columns.push(Column::Floats(row_pages(&OwnRows { dim, values }, range)));
            }
            writer.write(columns)?;
        }
        writer.finish()
    }
}

/// A list column of some nodes' or edges' features.
fn row_pages(features: &dyn DenseRows, rows: Range<usize>) -> FloatPages {
    let mut pages = FloatPages::default();
    for row in rows {
        pages.push(std::iter::once(features.row(row)));
    }
    pages
}

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

/// Rows of layout `rows` on their way to the writer.
struct RowBatch {
    target: Ids,
    labels: Labels,
    split: Vec<Split>,
    node_id: Ids,
    node_id_ends: Vec<usize>,
    hop_offset: Lists<u32>,
    in_degree: Lists<u32>,
    in_weight: Lists<f32>,
    self_loops: Lists<u32>,
    self_weight: Lists<f32>,
    feature: FloatPages,
    feature_offset: Lists<u32>,
    feature_index: Lists<u32>,
    feature_value: Lists<f32>,
    in_offset: Lists<u32>,
    in_src: Lists<u32>,
    edge_weight: Lists<f32>,
    edge_feature: FloatPages,
}

impl RowBatch {
    fn new(shard: &GraphShard, meta: &GraphMeta) -> Self {
        Self {
            target: Ids::new(meta.id_type),
            labels: shard.labels.empty_like(),
            split: Vec::new(),
            node_id: Ids::new(meta.id_type),
            node_id_ends: Vec::new(),
            hop_offset: Lists::new(),
            in_degree: Lists::new(),
            in_weight: Lists::new(),
            self_loops: Lists::new(),
            self_weight: Lists::new(),
            feature: FloatPages::default(),
            feature_offset: Lists::new(),
            feature_index: Lists::new(),
            feature_value: Lists::new(),
            in_offset: Lists::new(),
            in_src: Lists::new(),
            edge_weight: Lists::new(),
            edge_feature: FloatPages::default(),
        }
    }

    fn num_values(&self) -> usize {
        // The other columns are no longer than these.
        let features = self.feature.num_values() + self.feature_value.values.len();
        features
            + self.edge_feature.num_values()
            + self.node_id.len() * 2
            + self.in_src.values.len() * 2
    }

    fn push(
        &mut self,
        shard: &GraphShard,
        features: Option<&dyn DenseRows>,
        target: u32,
        scratch: &ExtractScratch,
    ) {
        let (nodes, edges) = (&scratch.nodes, &scratch.edges);
        self.target.push_from(&shard.ids, target as usize);
        self.labels.push_from(&shard.labels, target);
        self.split.push(shard.split[target as usize]);
        self.node_id.extend_gather(&shard.ids, nodes);
        self.node_id_ends.push(self.node_id.len());
        self.hop_offset.push(scratch.hop_offset.iter().copied());
        self.in_degree.push(gather(&shard.in_degree, nodes));
        if let Some(in_weight) = &shard.in_weight {
            self.in_weight.push(gather(in_weight, nodes));
        }
        if let Some(self_loops) = &shard.self_loops {
            self.self_loops.push(gather(self_loops, nodes));
        }
        if let Some(self_weight) = &shard.self_weight {
            self.self_weight.push(gather(self_weight, nodes));
        }
        if let Some(features) = features {
            let rows = nodes.iter().map(|&node| features.row(node as usize));
            self.feature.push(rows);
        }
        self.push_sparse(&shard.features, nodes);
        self.in_offset.push(scratch.in_offset.iter().copied());
        self.in_src.push(scratch.in_src.iter().copied());
        if let Some(weight) = &shard.edge_weight {
            self.edge_weight.push(gather(weight, edges));
        }
        if let Some(values) = &shard.edge_feature {
            let dim = shard.edge_dim();
            let own = OwnRows { dim, values };
            self.edge_feature
                .push(edges.iter().map(|&edge| own.row(edge as usize)));
        }
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
        self.feature_offset.push([]);
        self.feature_index.push([]);
        self.feature_value.push([]);
    }

    /// Empties the batch into columns, in the order of [`layout::rows_schema`].
    fn take(&mut self, meta: &GraphMeta) -> Result<Vec<Column>> {
        let mut columns = vec![Column::Array(self.target.to_array())];
        if let Some(label) = &meta.label {
            columns.push(as_given::label_array(&self.labels, label)?.into());
        }
        if let Some(split) = &meta.split {
            columns.push(as_given::split_array(&self.split, split)?.into());
        }
        columns.push(list_array(&self.node_id_ends, self.node_id.to_array())?.into());
        columns.push(self.hop_offset.take::<UInt32Type>()?);
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
        columns.push(self.in_offset.take::<UInt32Type>()?);
        columns.push(self.in_src.take::<UInt32Type>()?);
        if meta.edge_weight {
            columns.push(self.edge_weight.take::<Float32Type>()?);
        }
        if meta.edge_feature_dim.is_some() {
            columns.push(Column::Floats(std::mem::take(&mut self.edge_feature)));
        }
        self.target.clear();
        self.labels = self.labels.empty_like();
        self.split.clear();
        self.node_id.clear();
        self.node_id_ends.clear();
        Ok(columns)
    }
}

/// Entries of a range of nodes.
fn entries(offset: &[u64], nodes: Range<usize>) -> Range<usize> {
    let entry = |end: u64| usize::try_from(end).expect("offsets point into memory");
    entry(offset[nodes.start])..entry(offset[nodes.end])
}
