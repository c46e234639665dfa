//! One worker's edges in buckets of the nodes they lead to, on disk beyond a bound.

use super::map::map_file;
use crate::sample::NodeEdges;
use crate::{FlattenError, NodeIdx};
use arrow::buffer::Buffer;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Columns in a spill file start at multiples of this.
const ALIGNMENT: usize = 8;

/// How nodes are gathered in buckets: so many nodes of consecutive places each.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketLayout {
    shift: u32,
    num_nodes: usize,
}

/// Edges that were read together and go to one worker, by bucket and then by input row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct EdgeBatch {
    /// First input row of the rows that were read together.
    pub(super) first_row: u64,
    /// Whether the edges lead to hubs, and `node` counts hubs.
    pub(super) to_hubs: bool,
    /// `[num_buckets]`, where each bucket's edges end.
    pub(super) ends: Vec<u32>,
    pub(super) columns: EdgeColumns,
}

/// Some edges by column; `weight` and `feature` are empty where the input has none.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct EdgeColumns {
    /// Hash of the edge's ends.
    pub(super) hash: Vec<u64>,
    /// Place of the node it leads to.
    pub(super) node: Vec<u32>,
    pub(super) src: Vec<NodeIdx>,
    pub(super) weight: Vec<f32>,
    pub(super) feature: Vec<f32>,
}

/// The edges that come to one worker, as they come.
pub(super) struct EdgeBuckets {
    layout: BucketLayout,
    dim: usize,
    chunks: Vec<Chunk>,
    /// Bytes in memory, and how many may be.
    bytes: usize,
    bytes_max: usize,
    dir: PathBuf,
    spill: Option<File>,
    spilled: usize,
}

/// An [`EdgeBatch`] that came, in memory or in the spill file.
struct Chunk {
    first_row: u64,
    ends: Vec<u32>,
    columns: ChunkColumns,
}

enum ChunkColumns {
    Memory(EdgeColumns),
    /// From this byte on.
    Spilled(usize),
}

/// All edges of one worker, to be taken bucket by bucket.
pub(super) struct SealedBuckets {
    layout: BucketLayout,
    dim: usize,
    /// By input row.
    chunks: Vec<Chunk>,
    spill: Buffer,
    weighted: bool,
}

/// The edges of one bucket by the node they lead to, each node's by input row.
#[derive(Default)]
pub(super) struct Bucket {
    /// `[num_nodes + 1]`.
    offset: Vec<usize>,
    columns: EdgeColumns,
    next: Vec<usize>,
}

struct EdgeSlices<'a> {
    hash: &'a [u64],
    node: &'a [u32],
    src: &'a [NodeIdx],
    weight: &'a [f32],
    feature: &'a [f32],
}

impl BucketLayout {
    /// Makes buckets of at least `least` nodes, at most `most` buckets.
    pub(super) fn new(num_nodes: usize, least: usize, most: usize) -> Self {
        let wanted = num_nodes.div_ceil(most).max(least);
        Self {
            shift: wanted.next_power_of_two().trailing_zeros(),
            num_nodes,
        }
    }

    pub(super) fn num_buckets(&self) -> usize {
        ((self.num_nodes.max(1) - 1) >> self.shift) + 1
    }

    pub(super) fn bucket(&self, node: usize) -> usize {
        node >> self.shift
    }

    /// The places of a bucket's nodes.
    pub(super) fn nodes(&self, bucket: usize) -> Range<usize> {
        let end = (bucket + 1) << self.shift;
        bucket << self.shift..end.min(self.num_nodes)
    }
}

impl EdgeColumns {
    fn slices(&self) -> EdgeSlices<'_> {
        EdgeSlices {
            hash: &self.hash,
            node: &self.node,
            src: &self.src,
            weight: &self.weight,
            feature: &self.feature,
        }
    }

    /// The bytes of each column, in the order of a spill file.
    fn bytes(&self) -> [&[u8]; 5] {
        [
            bytemuck::cast_slice(&self.hash),
            bytemuck::cast_slice(&self.node),
            bytemuck::cast_slice(&self.src),
            bytemuck::cast_slice(&self.weight),
            bytemuck::cast_slice(&self.feature),
        ]
    }
}

impl EdgeBuckets {
    /// Takes edges with `dim` features; beyond `bytes_max` bytes they go to a file in `dir`.
    pub(super) fn new(layout: BucketLayout, dim: usize, bytes_max: usize, dir: &Path) -> Self {
        Self {
            layout,
            dim,
            chunks: Vec::new(),
            bytes: 0,
            bytes_max,
            dir: dir.to_owned(),
            spill: None,
            spilled: 0,
        }
    }

    /// Takes a batch, whose edges lead to this worker's nodes.
    ///
    /// # Errors
    ///
    /// The spill file cannot be written.
    pub(super) fn take(&mut self, batch: EdgeBatch) -> Result<(), FlattenError> {
        let bytes: usize = batch
            .columns
            .bytes()
            .iter()
            .map(|column| column.len())
            .sum();
        let columns = if self.bytes + bytes <= self.bytes_max {
            self.bytes += bytes;
            ChunkColumns::Memory(batch.columns)
        } else {
            let start = self.spilled;
            let written = self.write(&batch.columns);
            written.map_err(|e| self.failed("write", e))?;
            ChunkColumns::Spilled(start)
        };
        self.chunks.push(Chunk {
            first_row: batch.first_row,
            ends: batch.ends,
            columns,
        });
        Ok(())
    }

    fn write(&mut self, columns: &EdgeColumns) -> std::io::Result<()> {
        let file = match &mut self.spill {
            Some(file) => file,
            // It has no name, so that a killed process leaves nothing.
            None => self.spill.insert(tempfile::tempfile_in(&self.dir)?),
        };
        for column in columns.bytes() {
            file.write_all(column)?;
            let padded = column.len().next_multiple_of(ALIGNMENT);
            file.write_all(&[0; ALIGNMENT][..padded - column.len()])?;
            self.spilled += padded;
        }
        Ok(())
    }

    fn failed(&self, verb: &'static str, source: std::io::Error) -> FlattenError {
        FlattenError::Store {
            verb,
            path: self.dir.clone(),
            source: source.into(),
        }
    }

    /// Returns the number of edges.
    pub(super) fn num_edges(&self) -> u64 {
        let last = |chunk: &Chunk| u64::from(chunk.ends.last().copied().unwrap_or(0));
        self.chunks.iter().map(last).sum()
    }

    /// Ends the taking.
    ///
    /// # Errors
    ///
    /// The spill file cannot be mapped.
    pub(super) fn seal(mut self, weighted: bool) -> Result<SealedBuckets, FlattenError> {
        let spill = match self.spill.take() {
            None => Buffer::from(&[] as &[u8]),
            Some(file) => map_file(&file).map_err(|e| self.failed("read", e))?,
        };
        self.chunks.sort_unstable_by_key(|chunk| chunk.first_row);
        Ok(SealedBuckets {
            layout: self.layout,
            dim: self.dim,
            chunks: self.chunks,
            spill,
            weighted,
        })
    }
}

impl SealedBuckets {
    pub(super) fn layout(&self) -> &BucketLayout {
        &self.layout
    }

    /// Gathers the edges of a bucket.
    pub(super) fn gather(&self, bucket: usize, out: &mut Bucket) {
        let nodes = self.layout.nodes(bucket);
        out.offset.clear();
        out.offset.resize(nodes.len() + 1, 0);
        for (slices, range) in self.runs(bucket) {
            for &node in &slices.node[range] {
                out.offset[node as usize - nodes.start + 1] += 1;
            }
        }
        for i in 1..out.offset.len() {
            out.offset[i] += out.offset[i - 1];
        }
        let num_edges = out.offset[nodes.len()];
        out.columns.hash.resize(num_edges, 0);
        out.columns.src.resize(num_edges, 0);
        let weights = if self.weighted { num_edges } else { 0 };
        out.columns.weight.resize(weights, 0.0);
        out.columns.feature.resize(num_edges * self.dim, 0.0);
        out.next.clone_from(&out.offset);
        for (slices, range) in self.runs(bucket) {
            for i in range {
                let next = &mut out.next[slices.node[i] as usize - nodes.start];
                let to = *next;
                *next += 1;
                out.columns.hash[to] = slices.hash[i];
                out.columns.src[to] = slices.src[i];
                if self.weighted {
                    out.columns.weight[to] = slices.weight[i];
                }
                if self.dim > 0 {
                    out.columns.feature[to * self.dim..(to + 1) * self.dim]
                        .copy_from_slice(&slices.feature[i * self.dim..(i + 1) * self.dim]);
                }
            }
        }
    }

    /// A bucket's edges in each chunk, by input row.
    fn runs(&self, bucket: usize) -> impl Iterator<Item = (EdgeSlices<'_>, Range<usize>)> {
        self.chunks.iter().filter_map(move |chunk| {
            let start = bucket.checked_sub(1).map_or(0, |before| chunk.ends[before]);
            let range = start as usize..chunk.ends[bucket] as usize;
            (!range.is_empty()).then(|| (self.slices(chunk), range))
        })
    }

    fn slices<'a>(&'a self, chunk: &'a Chunk) -> EdgeSlices<'a> {
        let mut at = match &chunk.columns {
            ChunkColumns::Memory(columns) => return columns.slices(),
            ChunkColumns::Spilled(at) => *at,
        };
        let num_edges = chunk.ends.last().copied().unwrap_or(0) as usize;
        let mut column = |bytes: usize| {
            let column = &self.spill[at..at + bytes];
            at += bytes.next_multiple_of(ALIGNMENT);
            column
        };
        EdgeSlices {
            hash: bytemuck::cast_slice(column(8 * num_edges)),
            node: bytemuck::cast_slice(column(4 * num_edges)),
            src: bytemuck::cast_slice(column(4 * num_edges)),
            weight: bytemuck::cast_slice(column(if self.weighted { 4 * num_edges } else { 0 })),
            feature: bytemuck::cast_slice(column(4 * num_edges * self.dim)),
        }
    }
}

impl Bucket {
    /// The in-edges of the bucket's `i`-th node, and their features.
    pub(super) fn node(&self, i: usize, dim: usize) -> (NodeEdges<'_>, &[f32]) {
        let (start, end) = (self.offset[i], self.offset[i + 1]);
        let weight = if self.columns.weight.is_empty() {
            &[]
        } else {
            &self.columns.weight[start..end]
        };
        let edges = NodeEdges {
            src: &self.columns.src[start..end],
            hash: &self.columns.hash[start..end],
            weight,
        };
        (edges, &self.columns.feature[start * dim..end * dim])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Edges of two chunks over five nodes in three buckets; `bytes_max` decides what is spilled.
    fn gathered(bytes_max: usize) -> Vec<Vec<(u32, u64, f32, f32)>> {
        let dir = tempfile::tempdir().unwrap();
        let layout = BucketLayout::new(5, 2, 100);
        assert_eq!(layout.num_buckets(), 3);
        let mut buckets = EdgeBuckets::new(layout, 1, bytes_max, dir.path());
        let batch = |first_row: u64, ends: [u32; 3], node: &[u32]| EdgeBatch {
            first_row,
            to_hubs: false,
            ends: ends.to_vec(),
            columns: EdgeColumns {
                hash: (first_row..).take(node.len()).collect(),
                node: node.to_vec(),
                src: node.iter().map(|n| n + 100).collect(),
                weight: node.iter().map(|&n| n as f32).collect(),
                feature: node.iter().map(|&n| -(n as f32)).collect(),
            },
        };
        buckets.take(batch(50, [1, 3, 3], &[1, 2, 3])).unwrap();
        buckets.take(batch(10, [3, 3, 4], &[0, 1, 1, 4])).unwrap();
        assert_eq!(buckets.num_edges(), 7);
        let sealed = buckets.seal(true).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let (mut bucket, mut nodes) = (Bucket::default(), Vec::new());
        for b in 0..3 {
            sealed.gather(b, &mut bucket);
            for i in 0..layout.nodes(b).len() {
                let (edges, features) = bucket.node(i, 1);
                let edge = |at: usize| {
                    (
                        edges.src[at],
                        edges.hash[at],
                        edges.weight[at],
                        features[at],
                    )
                };
                nodes.push((0..edges.src.len()).map(edge).collect());
            }
        }
        nodes
    }

    #[test]
    fn edges_come_back_by_node_and_row_wherever_they_were_kept() {
        let expected = [
            vec![(100, 10, 0.0, -0.0)],
            vec![
                (101, 11, 1.0, -1.0),
                (101, 12, 1.0, -1.0),
                (101, 50, 1.0, -1.0),
            ],
            vec![(102, 51, 2.0, -2.0)],
            vec![(103, 52, 3.0, -3.0)],
            vec![(104, 13, 4.0, -4.0)],
        ];
        for bytes_max in [0, 80, 1 << 20] {
            assert_eq!(gathered(bytes_max), expected, "{bytes_max} bytes");
        }
    }
}
