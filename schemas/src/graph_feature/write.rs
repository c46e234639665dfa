//! Writes parts of graph features to Parquet, in either layout.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use arrow::array::{ArrayRef, BooleanArray};
use arrow::datatypes::{Float32Type, Schema, UInt8Type, UInt32Type};

use super::dense_rows::{DenseRows, OwnRows};
use super::extract::ExtractScratch;
use super::row_batch::{RowBatch, RowOf, entries};
use super::{GraphShard, ShardEdges, layout, pairs};
use crate::as_given;
use crate::columns::{FeatureMeta, Features, GraphMeta};
use crate::dataset::{CHANGES, FileEntry, Output, PartEntry, part_name};
use crate::error::{Result, SchemaError};
use crate::fanout::{FlattenMeta, Layout};
use crate::float_pages::FloatPages;
use crate::parquet_file::{list_array, number_array};
use crate::table_writer::{Column, Strings, TableWriter};
use crate::threads::spawn_scoped;

/// Values of all columns at which a batch is passed to the writer.
const BATCH_VALUES: usize = 4 << 20;
/// Threads that read the features of a part.
const READERS: usize = 2;
/// Rows of a batch of flat columns.
const BATCH_ROWS_MAX: usize = 1 << 17;

/// Writes part `index` of a flatten output; the caller commits it with [`Output::commit_part`].
///
/// `lent` has, by node type, dense features that lie outside of the shard, whose own must then be
/// [`Features::None`]; it may be empty. Layout `rows` extracts each target in the order of the
/// shard's nodes, or each pair and random negative, and streams the rows to the file in bounded
/// batches.
///
/// # Errors
///
/// If the shard is invalid or does not agree with `meta`, or a file cannot be written.
pub fn write_part(
    output: &Output,
    index: usize,
    shard: &GraphShard,
    lent: &[Option<&dyn DenseRows>],
    meta: &GraphMeta,
    flatten: &FlattenMeta,
) -> Result<PartEntry> {
    write_in_batches(output, index, shard, lent, meta, flatten, BATCH_VALUES)
}

/// Writes part `index` of a version of a flatten output, as [`write_part`] does, to the folder of
/// changes.
///
/// # Errors
///
/// As [`write_part`].
pub fn write_changed_part(
    output: &Output,
    index: usize,
    shard: &GraphShard,
    lent: &[Option<&dyn DenseRows>],
    meta: &GraphMeta,
    flatten: &FlattenMeta,
) -> Result<PartEntry> {
    let own: Vec<Option<OwnRows<'_>>> = shard.nodes.iter().map(OwnRows::of).collect();
    let part = Part {
        output,
        index,
        folder: Some(CHANGES),
        shard,
        features: features(&own, lent),
        meta,
        flatten,
        batch_values: BATCH_VALUES,
    };
    part.write()
}

/// Returns the dense features of each type: lent, or the shard's own.
fn features<'a>(
    own: &'a [Option<OwnRows<'_>>],
    lent: &[Option<&'a dyn DenseRows>],
) -> Vec<Option<&'a dyn DenseRows>> {
    let own = own
        .iter()
        .map(|rows| Some(rows.as_ref()? as &dyn DenseRows));
    let lent = lent.iter().copied().chain(std::iter::repeat(None));
    own.zip(lent)
        .map(|(mine, others)| others.or(mine))
        .collect()
}

/// Writes a part in batches of about `batch_values` values; a reader gets the same rows for any
/// value.
pub(super) fn write_in_batches(
    output: &Output,
    index: usize,
    shard: &GraphShard,
    lent: &[Option<&dyn DenseRows>],
    meta: &GraphMeta,
    flatten: &FlattenMeta,
    batch_values: usize,
) -> Result<PartEntry> {
    let own: Vec<Option<OwnRows<'_>>> = shard.nodes.iter().map(OwnRows::of).collect();
    let part = Part {
        output,
        index,
        folder: None,
        shard,
        features: features(&own, lent),
        meta,
        flatten,
        batch_values,
    };
    part.write()
}

/// A part being written.
struct Part<'a> {
    output: &'a Output,
    index: usize,
    /// Folder of the tables; none if they are in the output itself.
    folder: Option<&'static str>,
    shard: &'a GraphShard,
    /// By node type, dense features, lent or the shard's own.
    features: Vec<Option<&'a dyn DenseRows>>,
    meta: &'a GraphMeta,
    flatten: &'a FlattenMeta,
    batch_values: usize,
}

impl Part<'_> {
    fn write(&self) -> Result<PartEntry> {
        self.shard.validate(self.meta)?;
        let own = self.shard.feature_metas();
        let features = self
            .features
            .iter()
            .zip(own)
            .map(|(rows, shape)| match rows {
                Some(rows) => FeatureMeta::Dense { dim: rows.dim() },
                None => shape,
            });
        let features: Vec<FeatureMeta> = features.collect();
        self.shard
            .agrees_with(&features, self.meta, self.flatten.hops)?;
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
        let name = match self.folder {
            Some(folder) => format!("{folder}/{name}"),
            None => name.to_owned(),
        };
        TableWriter::create(self.output, &name, schema, strings, &metadata)
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
        let mut add = |row: RowOf, roots: Vec<(usize, u32)>| {
            scratch.walk(shard, roots, &self.flatten.fanouts);
            batch.push(shard, (&self.features, self.meta), row, &scratch);
            match batch.num_values() >= self.batch_values {
                true => writer.write(batch.take(self.meta)?),
                false => Ok(()),
            }
        };
        match (&shard.pairs, &self.meta.pairs) {
            (Some(pairs), Some(of)) => {
                for row in (0..pairs.num_rows()).map(|at| pairs.row(at)) {
                    let roots = row.roots(of).map(|(type_idx, row)| (type_idx, row.raw()));
                    let roots = roots.collect();
                    add(RowOf::Pair(row), roots)?;
                }
            }
            _ => {
                for target in shard.targets() {
                    add(RowOf::Target(target), vec![(shard.target_type, target)])?;
                }
            }
        }
        writer.write(batch.take(self.meta)?)?;
        writer.finish()
    }

    /// Writes all tables; the nodes are forced to the disk while the edges are encoded.
    fn write_shard(&self) -> Result<Vec<FileEntry>> {
        if self.folder.is_some() {
            return self.write_shard_at_once();
        }
        let mut files = self.write_all_nodes()?;
        let (synced, edges) = std::thread::scope(|scope| {
            let sync = || files.iter().try_for_each(|file| self.output.sync(file));
            let sync = spawn_scoped(scope, "sync", sync)?;
            let edges = self.write_all_edges();
            Ok::<_, SchemaError>((sync.join().expect("it does not panic"), edges))
        })?;
        synced?;
        files.extend(edges?);
        files.extend(self.write_pairs()?);
        Ok(files)
    }

    /// Writes nodes and edges on a thread each: a version often has one part alone.
    fn write_shard_at_once(&self) -> Result<Vec<FileEntry>> {
        let (nodes, edges) = std::thread::scope(|scope| {
            let edges = spawn_scoped(scope, "edges", || self.write_all_edges())?;
            let nodes = self.write_all_nodes();
            Ok::<_, SchemaError>((nodes, edges.join().expect("it does not panic")))
        })?;
        let mut files = nodes?;
        files.extend(edges?);
        Ok(files)
    }

    fn write_all_nodes(&self) -> Result<Vec<FileEntry>> {
        let types = 0..self.meta.types.len();
        types.map(|type_idx| self.write_nodes(type_idx)).collect()
    }

    fn write_all_edges(&self) -> Result<Vec<FileEntry>> {
        let relations = 0..self.meta.relations.len();
        relations
            .map(|relation| self.write_edges(relation))
            .collect()
    }

    /// Writes the table of the pairs, if the input has pairs.
    fn write_pairs(&self) -> Result<Option<FileEntry>> {
        let (Some(pairs), Some(meta)) = (&self.shard.pairs, &self.meta.pairs) else {
            return Ok(None);
        };
        let schema = pairs::schema(meta)?;
        let mut writer = self.create(&layout::pairs_path(self.index), schema, Strings::Repeated)?;
        let hard = pairs.hard.as_ref().map_or(0, |hard| hard.nodes.len());
        let width = hard / pairs.len().max(1);
        for range in self.batches(pairs.len() + pairs.random.len(), width) {
            writer.write(pairs.columns(range, meta)?)?;
        }
        Ok(Some(writer.finish()?))
    }

    fn write_nodes(&self, type_idx: usize) -> Result<FileEntry> {
        let schema = layout::nodes_schema(self.meta, type_idx)?;
        let (nodes, meta) = (&self.shard.nodes[type_idx], &self.meta.types[type_idx]);
        let path = layout::nodes_path(&meta.name, self.index);
        let mut writer = self.create(&path, schema, Strings::Distinct)?;
        let width = match (&nodes.features, meta.features) {
            (Features::Sparse { index, .. }, _) => index.len() / nodes.len().max(1),
            (_, features) => features.dim(),
        };
        let mut batches = self.batches(nodes.len(), width);
        if self.folder.is_none() {
            batches.try_for_each(|range| writer.write(self.node_columns(type_idx, range)?))?;
            return writer.finish();
        }
        // A version often has one part alone: threads read the features of batches in turn, which
        // waits for memory, while the batches before are encoded.
        let ranges: Vec<Range<usize>> = batches.collect();
        std::thread::scope(|scope| {
            let read = |first: usize| {
                let (sender, received) = sync_channel(0);
                let own = ranges.iter().skip(first).step_by(READERS);
                // The channel ends with the thread.
                let send = move || {
                    let columns = own.map(|range| self.node_columns(type_idx, range.clone()));
                    // The writer fails before it has received all.
                    let _ = columns.map(|of| sender.send(of)).find(|sent| sent.is_err());
                };
                spawn_scoped(scope, "features", send).map(|_| received)
            };
            let readers: Vec<_> = (0..READERS).map(read).collect::<Result<_>>()?;
            let in_turn = (0..ranges.len()).map(|at| readers[at % READERS].recv());
            let mut columns = in_turn.map(|of| of.expect("each range is sent"));
            columns.try_for_each(|of| writer.write(of?))
        })?;
        writer.finish()
    }

    /// Columns of some nodes of a type, in the order of [`layout::nodes_schema`].
    fn node_columns(&self, type_idx: usize, range: Range<usize>) -> Result<Vec<Column>> {
        let (nodes, meta) = (&self.shard.nodes[type_idx], &self.meta.types[type_idx]);
        let mut arrays = vec![
            nodes.ids.slice_to_array(range.clone()),
            number_array::<UInt8Type>(nodes.hop[range.clone()].to_vec()),
        ];
        for relation in self.meta.relations_to(type_idx) {
            self.shard.edges[relation].degree_arrays(range.clone(), &mut arrays);
        }
        if let Features::Sparse {
            offset,
            index,
            value,
            ..
        } = &nodes.features
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
        if let Some(features) = self.features[type_idx] {
            columns.push(Column::Floats(row_pages(features, range.clone())));
        }
        if !self.meta.may_be_targets(type_idx) {
            return Ok(columns);
        }
        if let Some(label) = &meta.label {
            let labels = nodes.labels.slice(range.clone());
            columns.push(as_given::label_array(&labels, label)?.into());
        }
        if let Some(split) = &meta.split {
            columns.push(as_given::split_array(&nodes.split[range.clone()], split)?.into());
        }
        let is_target: ArrayRef = Arc::new(BooleanArray::from(nodes.is_target[range].to_vec()));
        columns.push(is_target.into());
        Ok(columns)
    }

    fn write_edges(&self, relation: usize) -> Result<FileEntry> {
        let (edges, meta) = (&self.shard.edges[relation], &self.meta.relations[relation]);
        let path = layout::edges_path(&meta.name, self.index);
        let mut writer = self.create(&path, layout::edges_schema(meta), Strings::Distinct)?;
        let dim = meta.edge_feature_dim.unwrap_or(0);
        let mut dst = 0;
        for range in self.batches(edges.len(), dim) {
            let mut dsts = Vec::with_capacity(range.len());
            let mut ranks = Vec::with_capacity(range.len());
            for edge in range.clone() {
                let edge = u32::try_from(edge).expect("in_offset is u32");
                while edges.in_offset[dst as usize + 1] <= edge {
                    dst += 1;
                }
                dsts.push(dst);
                ranks.push(edge - edges.in_offset[dst as usize]);
            }
            let numbers = |values| Column::Array(number_array::<UInt32Type>(values));
            let src = edges.in_src[range.clone()].to_vec();
            let mut columns = vec![numbers(dsts), numbers(ranks), numbers(src)];
            if let Some(weight) = &edges.edge_weight {
                let weight = weight[range.clone()].to_vec();
                columns.push(number_array::<Float32Type>(weight).into());
            }
            if let Some(values) = &edges.edge_feature {
                columns.push(Column::Floats(row_pages(&OwnRows { dim, values }, range)));
            }
            writer.write(columns)?;
        }
        writer.finish()
    }
}

impl ShardEdges {
    /// Appends the degree columns of some nodes of type `to`.
    pub(super) fn degree_arrays(&self, nodes: Range<usize>, arrays: &mut Vec<ArrayRef>) {
        let counts = |values: &Vec<u32>| number_array::<UInt32Type>(values[nodes.clone()].to_vec());
        let floats =
            |values: &Vec<f32>| number_array::<Float32Type>(values[nodes.clone()].to_vec());
        arrays.push(counts(&self.in_degree));
        arrays.extend(self.in_weight.as_ref().map(floats));
        arrays.extend(self.self_loops.as_ref().map(counts));
        arrays.extend(self.self_weight.as_ref().map(floats));
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
