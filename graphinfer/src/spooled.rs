//! In-edges, features and rows in the order in which groups of blocks read them, on disk.
//!
//! The store holds nodes in an order of its own, and in-edges read rows anywhere. Where the page
//! cache cannot hold the files, each is read from its start to its end, and each of its rows is
//! appended to the [buckets](Spool) of the blocks that read it. So a file is read once for many groups
//! of blocks, and not once for each.

use crate::InferError;
use crate::gathered::RowSet;
use crate::graph::Graph;
use crate::group::SomeLists;
use crate::hubs::is_hub;
use crate::layer::LayerInput;
use crate::locate::narrow;
use crate::spool::Spool;
use gnn::{Architecture, SharedRows};
use rayon::prelude::*;
use schemas::{LocalIdx, NodeIdx, Row};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use store::{EdgeReads, Partition};

/// Most bytes of a bucket of in-edges, and their share of the memory of copies.
const EDGE_BUCKET_BYTES: usize = 2 << 20;
const EDGE_BUCKET_SHARE: usize = 32;

/// Buckets of in-edges that are made however little memory there is.
const EDGE_BUCKETS_MIN: usize = 64;

/// Most bytes of a piece that is written at once.
const PIECE_BYTES_MAX: usize = 1 << 18;

/// Least bytes of a piece.
const PIECE_BYTES_MIN: usize = 1 << 12;

/// Bytes of a file of rows that are read before they are appended to buckets.
const STEP_BYTES: usize = 2 << 20;

/// Share of the memory of copies that the sets of rows take of groups that share a pass.
const SETS_SHARE: usize = 4;

/// Share of the memory of copies that bytes take which are not written yet.
const OPEN_SHARE: usize = 8;

/// Bytes of a worker's files that are read at once.
const AHEAD_BYTES: usize = 4 << 20;

/// Most nodes whose columns are read at once.
const AHEAD_NODES: usize = 1 << 16;

/// How rounds copy what blocks read, if the page cache or a buffer of a GPU cannot hold it.
pub(crate) struct Gathering {
    /// Memory of the copies.
    pub(crate) bytes: usize,
    /// How files are read in their order; none if the page cache holds them.
    pub(crate) spooled: Option<Spooled>,
}

/// The in-edges of all nodes in buckets of consecutive rows, and where other files are made.
pub(crate) struct Spooled {
    dir: PathBuf,
    in_edges: Spool,
    /// The first row of each bucket of in-edges.
    starts: Vec<usize>,
    /// Features of an edge.
    edge_dim: usize,
    has_weight: bool,
}

/// The rows that some groups read, group by group.
pub(crate) struct SpooledRows {
    rows: Spool,
    scores: Option<Spool>,
}

impl Gathering {
    /// Copies the rows of groups to the disk in one pass, if the page cache cannot hold the file and
    /// this takes fewer bytes than reading the file for each group.
    pub(crate) fn rows(
        &self,
        sets: &[&RowSet],
        input: &LayerInput,
    ) -> Result<Option<SpooledRows>, InferError> {
        let num_rows = input.aggregated().rows();
        // Each copy is written and read.
        let copies: usize = sets.iter().map(|set| 2 * set.len()).sum();
        let is_less = num_rows + copies < sets.len() * num_rows;
        let spooled = self.spooled.as_ref().filter(|_| is_less);
        let rows = spooled.map(|spooled| spooled.rows(sets, input, self.open_bytes()));
        rows.transpose()
    }

    /// Returns the memory of the copies of one group.
    pub(crate) fn group_bytes(&self) -> usize {
        let of_sets = self.spooled.as_ref().map(|_| self.bytes / SETS_SHARE);
        self.bytes - of_sets.unwrap_or(0)
    }

    /// Tells whether the rows of another group are copied in the same pass as those of some groups.
    pub(crate) fn has_room_for<'a>(&self, sets: impl Iterator<Item = &'a RowSet>) -> bool {
        let bytes: usize = sets.map(RowSet::num_bytes).sum();
        self.spooled.is_some() && bytes < self.bytes / SETS_SHARE
    }

    /// Returns the memory for bytes that are not written yet.
    pub(crate) fn open_bytes(&self) -> usize {
        open_bytes(self.bytes)
    }
}

impl Spooled {
    /// Copies the in-edges that layers with some limits read of each node, but for those of hubs;
    /// `bytes` is the memory of copies.
    pub(crate) fn new(
        graph: &Graph,
        arch: &Architecture,
        limits: &BTreeSet<usize>,
        (dir, bytes): (&Path, usize),
    ) -> Result<Self, InferError> {
        let edge_dim = arch.edge_dim.unwrap_or(0);
        let edge_bytes = 4 * (1 + usize::from(arch.edge_weight) + edge_dim);
        let in_degrees = graph.columns().in_degree();
        let node_bytes = |row: usize| {
            let read = largest_limit(limits, in_degrees[row]);
            read.map_or(0, |limit| {
                8 + edge_bytes * limit.min(in_degrees[row] as usize)
            })
        };
        let all: usize = (0..graph.num_own()).map(node_bytes).sum();
        let starts = bucket_starts(graph.num_own(), node_bytes, (all, bytes));
        let spooled = Self {
            dir: dir.to_owned(),
            in_edges: spool(dir, starts.len(), open_bytes(bytes))?,
            starts,
            edge_dim,
            has_weight: arch.edge_weight,
        };
        let mean = all / graph.num_own().max(1);
        spooled.write_in_edges(graph, limits, mean)?;
        spooled.in_edges.seal()?;
        // The page cache keeps the copies rather than the store.
        graph.store().release();
        Ok(spooled)
    }

    fn write_in_edges(
        &self,
        graph: &Graph,
        limits: &BTreeSet<usize>,
        node_bytes: usize,
    ) -> Result<(), InferError> {
        let in_degrees = graph.columns().in_degree();
        let checked = "checked against the store";
        let reads = EdgeReads {
            weight: self.has_weight,
            feature: self.edge_dim > 0,
        };
        graph.for_each_in_order(
            (node_bytes, |partition, locals| {
                partition.will_need_in_edges(0, 0, locals, reads);
            }),
            |partition, local, row| {
                let Some(limit) = largest_limit(limits, in_degrees[row.index()]) else {
                    return Ok(());
                };
                let edges = partition.in_edges(0, 0, local, limit);
                if edges.src.is_empty() {
                    return Ok(());
                }
                let weight = self.has_weight.then(|| edges.weight.expect(checked));
                let feature = (self.edge_dim > 0).then(|| edges.feature.expect(checked));
                let head = [row.raw(), narrow(edges.src.len())];
                // In one process, a node's number is its row.
                let words = [&head[..], NodeIdx::raw_slice(edges.src)];
                let numbers = [weight.unwrap_or_default(), feature.unwrap_or_default()];
                let mut record = words.map(bytemuck::cast_slice).concat();
                record.extend_from_slice(bytemuck::cast_slice(&numbers.concat()));
                self.in_edges
                    .append(bucket_of(&self.starts, row), [&record[..]])
            },
        )
    }

    /// Reads the first `limit` in-edges of the nodes of some blocks, which ascend, and no in-edges of
    /// hubs.
    pub(crate) fn lists(
        &self,
        graph: &Graph,
        blocks: &[Range<usize>],
        limit: usize,
    ) -> Result<Vec<SomeLists>, InferError> {
        let in_degrees = graph.columns().in_degree();
        let is_read = |row: usize| {
            let block = blocks.partition_point(|block| block.end <= row);
            blocks.get(block).is_some_and(|block| block.contains(&row))
        };
        let of_block = |block: &Range<usize>| {
            let end = self.starts.partition_point(|&start| start < block.end);
            bucket_of(&self.starts, Row::from_index(block.start))..end
        };
        let mut buckets: Vec<usize> = blocks.iter().flat_map(of_block).collect();
        buckets.dedup();
        for &bucket in &buckets {
            self.in_edges.will_need(bucket);
        }
        let of_bucket = |bucket: usize| {
            let words = self.in_edges.words(bucket)?;
            let mut lists = SomeLists::default();
            let mut left = &words[..];
            while let Some((&[row, len], rest)) = left.split_first_chunk::<2>() {
                let (row, len) = (row as usize, len as usize);
                let (src, rest) = rest.split_at(len);
                let (weight, rest) = rest.split_at(if self.has_weight { len } else { 0 });
                let (feature, rest) = rest.split_at(len * self.edge_dim);
                left = rest;
                if !is_read(row) || is_hub(in_degrees[row], limit) {
                    continue;
                }
                let kept = len.min(limit);
                let weight = &weight[..kept.min(weight.len())];
                let feature = &feature[..kept * self.edge_dim];
                let of_edges = (
                    &src[..kept],
                    Some(bytemuck::cast_slice(weight)),
                    Some(bytemuck::cast_slice(feature)),
                );
                lists.push(row, of_edges);
            }
            lists.shrink();
            Ok::<_, InferError>(lists)
        };
        buckets.into_par_iter().map(of_bucket).collect()
    }

    /// Copies the raw dense features of some consecutive rows each into a bucket; `starts` are the
    /// first rows of the buckets.
    pub(crate) fn features(
        &self,
        graph: &Graph,
        starts: &[usize],
        bytes: usize,
    ) -> Result<Spool, InferError> {
        let to = spool(&self.dir, starts.len(), bytes)?;
        let node_bytes = 4 * graph.features().dim();
        graph.for_each_in_order(
            (node_bytes, |partition, locals| {
                partition.will_need_features(locals)
            }),
            |partition, local, row| {
                let number = row.raw().to_ne_bytes();
                let values = bytemuck::cast_slice(partition.dense(local));
                to.append(bucket_of(starts, row), [&number[..], values])
            },
        )?;
        to.seal()?;
        Ok(to)
    }

    /// Copies the rows of each of some sets, which a layer reads, into a bucket.
    pub(crate) fn rows(
        &self,
        sets: &[&RowSet],
        input: &LayerInput,
        bytes: usize,
    ) -> Result<SpooledRows, InferError> {
        let copied = |from: &SharedRows| {
            let to = spool(&self.dir, sets.len(), bytes)?;
            copy_rows(from, sets, (&to, STEP_BYTES))?;
            to.seal()?;
            Ok::<_, InferError>(to)
        };
        Ok(SpooledRows {
            rows: copied(input.aggregated())?,
            scores: input.scores().map(copied).transpose()?,
        })
    }
}

impl SpooledRows {
    /// Starts to read the rows of a set, if there is one.
    pub(crate) fn will_need(&self, set: usize) {
        let spools = std::iter::once(&self.rows).chain(&self.scores);
        for spool in spools.filter(|spool| set < spool.num_buckets()) {
            spool.will_need(set);
        }
    }

    /// Returns the rows of sets.
    pub(crate) fn rows(&self) -> &Spool {
        &self.rows
    }

    /// Returns the scores of the rows, if the layer has scores.
    pub(crate) fn scores(&self) -> Option<&Spool> {
        self.scores.as_ref()
    }
}

/// Returns the values of a bucket of [`Spooled::features`] in the order of rows.
pub(crate) fn features_of(
    spool: &Spool,
    bucket: usize,
    (rows, dim): (Range<usize>, usize),
) -> Result<Vec<f32>, InferError> {
    let words = spool.words(bucket)?;
    assert_eq!(
        words.len(),
        rows.len() * (1 + dim),
        "each row is in the bucket"
    );
    let mut values = vec![0.0; rows.len() * dim];
    for record in words.chunks_exact(1 + dim) {
        let at = (record[0] as usize - rows.start) * dim;
        values[at..at + dim].copy_from_slice(bytemuck::cast_slice(&record[1..]));
    }
    Ok(values)
}

/// Returns the largest limit for which a node is no hub.
fn largest_limit(limits: &BTreeSet<usize>, in_degree: u32) -> Option<usize> {
    let mut read = limits.iter().rev();
    read.find(|&&limit| !is_hub(in_degree, limit)).copied()
}

/// Cuts rows into buckets of bounded bytes; returns the first row of each. `all` are the bytes of all
/// rows, `bytes` is the memory of copies.
fn bucket_starts(
    num_rows: usize,
    node_bytes: impl Fn(usize) -> usize,
    (all, bytes): (usize, usize),
) -> Vec<usize> {
    // Each bucket keeps up to a piece in memory while it is written.
    let least = all / (open_bytes(bytes) / PIECE_BYTES_MIN).max(EDGE_BUCKETS_MIN);
    let most = (bytes / EDGE_BUCKET_SHARE)
        .min(EDGE_BUCKET_BYTES)
        .max(least);
    let (mut starts, mut used) = (vec![0], 0);
    for row in 0..num_rows {
        let of_row = node_bytes(row);
        if used > 0 && used + of_row > most {
            starts.push(row);
            used = 0;
        }
        used += of_row;
    }
    starts
}

/// Returns the bucket of a row, given the first row of each.
fn bucket_of(starts: &[usize], row: Row) -> usize {
    starts.partition_point(|&start| start <= row.index()) - 1
}

/// Returns the memory for bytes that are not written yet, given the memory of copies.
fn open_bytes(bytes: usize) -> usize {
    bytes / OPEN_SHARE
}

/// Creates buckets that keep at most `bytes` in memory together.
fn spool(dir: &Path, num_buckets: usize, bytes: usize) -> Result<Spool, InferError> {
    let piece_bytes = (bytes / num_buckets.max(1)).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
    Spool::create(dir, num_buckets, piece_bytes)
}

/// Reads a file of rows once, `step_bytes` at a time, and appends each row to the buckets of the sets
/// that have it.
fn copy_rows(
    from: &SharedRows,
    sets: &[&RowSet],
    (to, step_bytes): (&Spool, usize),
) -> Result<(), InferError> {
    let row_bytes = (from.format().num_bytes() * from.cols()).max(1);
    let all = from.bytes();
    let step = (step_bytes / row_bytes).max(1);
    let num_rows = all.len() / row_bytes;
    let bytes = |rows: Range<usize>| &all[rows.start * row_bytes..rows.end * row_bytes];
    for start in (0..num_rows).step_by(step) {
        let rows = start..(start + step).min(num_rows);
        store::will_need(bytes(rows.end..(rows.end + step).min(num_rows)));
        sets.par_iter().enumerate().try_for_each(|(bucket, set)| {
            let some = set.rows_in(rows.clone()).map(|row| row as usize);
            to.append(bucket, some.map(|row| bytes(row..row + 1)))
        })?;
    }
    Ok(())
}

impl Graph {
    /// Calls `each` with all nodes of this process, which is alone, worker by worker on all threads
    /// and in the order of the worker's files. `ahead` gets the mean bytes of a node, and starts to
    /// read nodes before they are needed.
    fn for_each_in_order(
        &self,
        (node_bytes, ahead): (usize, impl Fn(&Partition, Range<LocalIdx>) + Sync),
        each: impl Fn(&Partition, LocalIdx, Row) -> Result<(), InferError> + Sync,
    ) -> Result<(), InferError> {
        let placement = self.store().placement();
        let step = (AHEAD_BYTES / node_bytes.max(1)).clamp(1, AHEAD_NODES);
        let workers = (0..placement.workers()).into_par_iter();
        workers.try_for_each(|worker| {
            let partition = self.store().partition(worker);
            let num_nodes = partition.num_nodes();
            let announce = |start: usize| {
                let end = (start + step).min(num_nodes);
                if start < end {
                    ahead(
                        partition,
                        LocalIdx::from_index(start)..LocalIdx::from_index(end),
                    );
                }
            };
            announce(0);
            for start in (0..num_nodes).step_by(step) {
                announce(start + step);
                let end = (start + step).min(num_nodes);
                for local in (start..end).map(LocalIdx::from_index) {
                    each(partition, local, self.row(placement.node(worker, local)))?;
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnn::RowFormat;

    #[test]
    fn each_bucket_gets_the_rows_of_its_set() {
        let (num_rows, cols) = (100, 3);
        let values: Vec<u32> = (0..num_rows * cols).collect();
        let bytes = bytes::Bytes::copy_from_slice(bytemuck::cast_slice(&values));
        let rows = SharedRows::new(bytes, cols as usize, RowFormat::F32).unwrap();
        let picked = |every: u32| (0..num_rows).filter(move |row| row % every == 1);
        let sets = [2, 3, 50, 1].map(|every| {
            let mut set = RowSet::new(num_rows as usize);
            picked(every).for_each(|row| set.insert(row));
            set
        });
        let dir = tempfile::tempdir().unwrap();
        for step_bytes in [1, 100, 1 << 20] {
            let to = spool(dir.path(), sets.len(), 1).unwrap();
            copy_rows(&rows, &sets.each_ref(), (&to, step_bytes)).unwrap();
            to.seal().unwrap();
            for (bucket, every) in [2, 3, 50, 1].into_iter().enumerate() {
                let expected = picked(every).flat_map(|row| row * cols..(row + 1) * cols);
                let expected: Vec<u32> = expected.collect();
                assert_eq!(to.words(bucket).unwrap(), expected, "{every}, {step_bytes}");
            }
        }
    }

    #[test]
    fn buckets_are_cut_by_bytes() {
        let bytes_of = [0, 10, 10, 500, 1, 0, 2000, 3, 3];
        // A bucket of 1 << 14 bytes has at most 512.
        let sizes = (bytes_of.iter().sum(), 1 << 14);
        let starts = bucket_starts(bytes_of.len(), |row| bytes_of[row], sizes);
        assert_eq!(starts, [0, 3, 6, 7]);
        let buckets: Vec<usize> = (0..9)
            .map(|row| bucket_of(&starts, Row::from_index(row)))
            .collect();
        assert_eq!(buckets, [0, 0, 0, 1, 1, 1, 2, 3, 3]);
        assert_eq!(bucket_starts(0, |_| 0, (0, 1)), [0]);
    }
}
