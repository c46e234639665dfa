//! Collects the edges that one worker receives in buckets by `dst`, on disk beyond a bound.

use crate::StoreError;
use crate::edge_hash::EdgeHasher;
use crate::map::{map_paged, will_need};
use crate::memory::Budget;
use crate::sample::{InEdge, mix};
use arrow::buffer::Buffer;
use bytemuck::{Pod, Zeroable};
use prefetch_index::prefetch_index;
use schemas::{LocalIdx, NodeIdx};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Each chunk starts at a multiple of so many bytes of the spill file, as its hashes need it.
const SPILL_ALIGNMENT: usize = size_of::<u64>();

/// Number of buckets of re-indexed nodes.
const HUB_BUCKETS: usize = 64;

/// Runs ahead at which a run is prefetched. The runs of a bucket are short, and lie far apart.
const RUNS_AHEAD: usize = 8;

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// Most lines of a run that are prefetched; the processor itself prefetches those that follow.
const LINES_MAX: usize = 8;

/// Most bytes of a spilled chunk that are read before they are needed.
const AHEAD_MAX: usize = 1 << 16;

/// Assigns a worker's edges of one relation to buckets by `dst`: first the buckets of its own nodes,
/// each a range of consecutive places among its nodes of the type of `dst`, then the buckets of re-indexed nodes of any owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketLayout {
    shift: u32,
    num_nodes: usize,
}

/// Edges that were read together and are sent to one worker, sorted by bucket and then by input
/// row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct EdgeBatch {
    /// Position of the relation among those that are exchanged together.
    pub(crate) relation: u32,
    /// First input row of the rows that were read together.
    pub(crate) first_row: u64,
    /// Whether the edges were sent to the owner of their `dst` first, before it was re-indexed.
    /// Forwarded edges are sorted before the other edges of the same rows.
    pub(crate) forwarded: bool,
    /// `[num_buckets]`, the end of each bucket's edges.
    pub(crate) ends: Vec<u32>,
    pub(crate) columns: EdgeVecs,
}

/// Columns of edges.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct EdgeVecs {
    pub(crate) edges: Vec<Edge>,
    /// `[num_edges]`, hash of the ends; empty where an [`EdgeHasher`] gives it.
    pub(crate) hash: Vec<u64>,
    /// `[num_edges]`; empty where the input has no weights.
    pub(crate) weight: Vec<f32>,
    /// `[num_edges * dim]`.
    pub(crate) feature: Vec<f32>,
}

/// An edge as it is sent and spilled: plain bytes of a fixed size.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Edge {
    /// The node `dst`: its place among the receiver's nodes of its type or, in buckets of re-indexed
    /// nodes, its [`NodeIdx`].
    dst: u32,
    pub(crate) src: NodeIdx,
}

/// Columns of some edges.
#[derive(Clone, Copy)]
pub(crate) struct EdgeSlices<'a> {
    pub(crate) edges: &'a [Edge],
    /// Empty where an [`EdgeHasher`] gives the hashes.
    pub(crate) hash: &'a [u64],
    /// Empty where the input has no weights.
    pub(crate) weight: &'a [f32],
    pub(crate) feature: &'a [f32],
}

/// The columns that the edges of a relation have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EdgeShape {
    /// Gives the hashes of edges; none if edges have a column of hashes.
    pub(crate) hasher: Option<EdgeHasher>,
    pub(crate) is_weighted: bool,
    /// Number of features.
    pub(crate) dim: usize,
}

/// The edges of a relation that one worker receives, in order of arrival.
pub(crate) struct EdgeBuckets {
    layout: BucketLayout,
    shape: EdgeShape,
    /// A spilled chunk holds its start in the file.
    chunks: Vec<Chunk<usize>>,
    budget: Budget,
    dir: PathBuf,
    spill: Option<File>,
    spilled: usize,
}

/// A received [`EdgeBatch`], in memory or in a spill file.
struct Chunk<S> {
    first_row: u64,
    forwarded: bool,
    ends: Vec<u32>,
    edges: ChunkEdges<S>,
}

enum ChunkEdges<S> {
    Memory(EdgeVecs),
    Spilled(S),
}

/// All edges of one worker, which are read bucket by bucket.
pub(crate) struct SealedBuckets {
    layout: BucketLayout,
    shape: EdgeShape,
    /// Sorted by input row; a spilled chunk holds the mapped file from its start on.
    chunks: Vec<Chunk<Buffer>>,
    /// Memory for pages of spilled chunks that are read before they are needed.
    ahead_bytes: usize,
    /// Number of consecutive buckets whose pages are read at once.
    buckets_ahead: usize,
}

/// The edges of one bucket, grouped by `dst` and sorted by input row within a node.
#[derive(Default)]
pub(crate) struct Bucket {
    /// `[num_nodes + 1]`.
    offset: Vec<usize>,
    edges: Vec<InEdge>,
    feature: Vec<f32>,
    next: Vec<usize>,
    /// `[num_nodes]`, hash of the id of each `dst`; empty where edges have hashes.
    dst_hash: Vec<u64>,
}

impl BucketLayout {
    /// Makes at most `most` buckets of own nodes, each of at least `least` nodes, and the buckets
    /// of re-indexed nodes.
    pub(crate) fn new(num_nodes: usize, least: usize, most: usize) -> Self {
        let wanted = num_nodes.div_ceil(most).max(least);
        Self {
            shift: wanted.next_power_of_two().trailing_zeros(),
            num_nodes,
        }
    }

    pub(crate) fn num_buckets(&self) -> usize {
        self.num_own() + HUB_BUCKETS
    }

    /// The number of buckets of own nodes.
    pub(crate) fn num_own(&self) -> usize {
        ((self.num_nodes.max(1) - 1) >> self.shift) + 1
    }

    /// The bucket of an own node, given its place.
    pub(crate) fn own(&self, place: LocalIdx) -> usize {
        place.index() >> self.shift
    }

    /// The bucket of a re-indexed node.
    pub(crate) fn hub(&self, node: NodeIdx) -> usize {
        let drawn = mix(u64::from(node.raw())) % HUB_BUCKETS as u64;
        self.num_own() + usize::try_from(drawn).expect("few buckets")
    }

    /// The places of the nodes of a bucket of own nodes.
    pub(crate) fn nodes(&self, bucket: usize) -> Range<usize> {
        let end = (bucket + 1) << self.shift;
        bucket << self.shift..end.min(self.num_nodes)
    }
}

impl Edge {
    /// Makes an edge to a node of the receiving worker, given its place.
    pub(crate) fn to_own(dst: LocalIdx, src: NodeIdx) -> Self {
        Self {
            dst: dst.raw(),
            src,
        }
    }

    /// Makes an edge to a re-indexed node of any owner.
    pub(crate) fn to_hub(dst: NodeIdx, src: NodeIdx) -> Self {
        Self {
            dst: dst.raw(),
            src,
        }
    }

    /// The place of the `dst` of an edge in a bucket of own nodes.
    pub(crate) fn own_dst(&self) -> LocalIdx {
        LocalIdx::from_raw(self.dst)
    }

    /// The `dst` of an edge in a bucket of re-indexed nodes.
    fn hub_dst(&self) -> NodeIdx {
        NodeIdx::from_raw(self.dst)
    }
}

impl EdgeBatch {
    pub(crate) fn num_edges(&self) -> u64 {
        u64::from(self.ends.last().copied().unwrap_or(0))
    }
}

impl EdgeVecs {
    /// Copies some edges, which have `dim` features.
    pub(crate) fn slice(&self, range: Range<usize>, dim: usize) -> Self {
        let weight = self.weight.get(range.clone()).unwrap_or_default();
        Self {
            edges: self.edges[range.clone()].to_vec(),
            hash: self.hash.get(range.clone()).unwrap_or_default().to_vec(),
            weight: weight.to_vec(),
            feature: self.feature[range.start * dim..range.end * dim].to_vec(),
        }
    }

    /// The bytes that are written to a spill file. Hashes come first, where they are aligned to 64
    /// bits.
    fn bytes(&self) -> [&[u8]; 4] {
        [
            bytemuck::cast_slice(&self.hash),
            bytemuck::cast_slice(&self.edges),
            bytemuck::cast_slice(&self.weight),
            bytemuck::cast_slice(&self.feature),
        ]
    }
}

impl EdgeBuckets {
    /// Collects edges; edges beyond the budget are written to a file in `dir`.
    pub(crate) fn new(layout: BucketLayout, shape: EdgeShape, budget: Budget, dir: &Path) -> Self {
        Self {
            layout,
            shape,
            chunks: Vec::new(),
            budget,
            dir: dir.to_owned(),
            spill: None,
            spilled: 0,
        }
    }

    /// Adds a batch.
    ///
    /// # Errors
    ///
    /// If the spill file cannot be written.
    pub(crate) fn take(&mut self, batch: EdgeBatch) -> Result<(), StoreError> {
        let columns = batch.columns.bytes();
        let bytes = columns.iter().map(|column| column.len()).sum::<usize>();
        // The ends of its buckets always stay in memory.
        self.budget.charge(4 * batch.ends.len());
        let edges = if self.budget.fits(bytes) {
            ChunkEdges::Memory(batch.columns)
        } else {
            let start = self.spilled;
            self.write(&batch.columns)
                .map_err(|e| self.failed("write", e))?;
            ChunkEdges::Spilled(start)
        };
        self.chunks.push(Chunk {
            first_row: batch.first_row,
            forwarded: batch.forwarded,
            ends: batch.ends,
            edges,
        });
        Ok(())
    }

    fn write(&mut self, columns: &EdgeVecs) -> std::io::Result<()> {
        let file = match &mut self.spill {
            Some(file) => file,
            // The file has no name, so a killed process leaves no file.
            None => self.spill.insert(tempfile::tempfile_in(&self.dir)?),
        };
        for column in columns.bytes() {
            file.write_all(column)?;
            self.spilled += column.len();
        }
        let padding = self.spilled.next_multiple_of(SPILL_ALIGNMENT) - self.spilled;
        file.write_all(&[0; SPILL_ALIGNMENT][..padding])?;
        self.spilled += padding;
        Ok(())
    }

    fn failed(&self, verb: &'static str, source: std::io::Error) -> StoreError {
        StoreError::File {
            verb,
            path: self.dir.clone(),
            source: source.into(),
        }
    }

    /// Returns the number of edges.
    pub(crate) fn num_edges(&self) -> u64 {
        let edges = self.chunks.iter().map(|chunk| u64::from(chunk.num_edges()));
        edges.sum()
    }

    /// Returns all edges, to be read by bucket.
    ///
    /// # Errors
    ///
    /// If the spill file cannot be mapped.
    pub(crate) fn seal(mut self) -> Result<SealedBuckets, StoreError> {
        let spill = match self.spill.take() {
            None => Buffer::from(&[] as &[u8]),
            Some(file) => map_paged(&file).map_err(|e| self.failed("read", e))?,
        };
        let seal = |chunk: Chunk<usize>| Chunk {
            first_row: chunk.first_row,
            forwarded: chunk.forwarded,
            ends: chunk.ends,
            edges: match chunk.edges {
                ChunkEdges::Memory(columns) => ChunkEdges::Memory(columns),
                ChunkEdges::Spilled(at) => ChunkEdges::Spilled(spill.slice(at)),
            },
        };
        let mut sealed = SealedBuckets {
            layout: self.layout,
            shape: self.shape,
            chunks: self.chunks.into_iter().map(seal).collect(),
            ahead_bytes: self.budget.bytes_max() / 4,
            buckets_ahead: 1,
        };
        sealed.prepare();
        Ok(sealed)
    }
}

impl EdgeShape {
    /// Bytes of an edge in a spill file.
    fn bytes(&self) -> usize {
        let hash = if self.hasher.is_none() { 8 } else { 0 };
        let weight = if self.is_weighted { 4 } else { 0 };
        hash + size_of::<Edge>() + weight + 4 * self.dim
    }
}

impl EdgeSlices<'_> {
    /// Starts to read the pages of spilled edges.
    fn will_need(&self) {
        will_need(bytemuck::cast_slice(self.edges));
        will_need(bytemuck::cast_slice(self.hash));
        will_need(bytemuck::cast_slice(self.weight));
        will_need(bytemuck::cast_slice(self.feature));
    }
}

/// Prefetches the edges of a run, if there is one.
fn prefetch_run(runs: &[EdgeSlices<'_>], run_idx: usize) {
    let edges = runs.get(run_idx).map_or(&[][..], |run| run.edges);
    let of_lines = (0..edges.len()).step_by(CACHE_LINE / size_of::<Edge>());
    for first in of_lines.take(LINES_MAX) {
        prefetch_index(edges, first);
    }
}

impl<S> Chunk<S> {
    fn is_spilled(&self) -> bool {
        matches!(self.edges, ChunkEdges::Spilled(_))
    }

    /// The positions of the edges of some consecutive buckets.
    fn range(&self, buckets: Range<usize>) -> Range<usize> {
        let before = buckets.start.checked_sub(1);
        let start = before.map_or(0, |bucket| self.ends[bucket]);
        start as usize..self.ends[buckets.end - 1] as usize
    }

    fn num_edges(&self) -> u32 {
        *self.ends.last().expect("there is at least one bucket")
    }
}

impl SealedBuckets {
    pub(crate) fn layout(&self) -> &BucketLayout {
        &self.layout
    }

    /// Adds edges that were received later.
    pub(crate) fn merge(&mut self, others: Self) {
        self.chunks.extend(others.chunks);
        self.prepare();
    }

    /// Sorts the chunks and finds how many buckets of spilled chunks are read at once.
    fn prepare(&mut self) {
        self.chunks
            .sort_unstable_by_key(|chunk| (chunk.first_row, !chunk.forwarded));
        let spilled = self.chunks.iter().filter(|chunk| chunk.is_spilled());
        let sizes = spilled.map(|chunk| chunk.num_edges() as usize * self.shape.bytes());
        let (count, bytes) = sizes.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
        let of_bucket = bytes / self.layout.num_buckets();
        let bytes_max = self.ahead_bytes.min(count * AHEAD_MAX);
        self.buckets_ahead = (bytes_max / of_bucket.max(1)).max(1);
    }

    /// Starts to read the pages of spilled chunks with this bucket and those that follow.
    fn read_ahead(&self, bucket: usize) {
        let num_own = self.layout.num_own();
        if !bucket.is_multiple_of(self.buckets_ahead) && bucket != num_own {
            return;
        }
        let last = (bucket + self.buckets_ahead).min(self.layout.num_buckets()) - 1;
        for chunk in self.chunks.iter().filter(|chunk| chunk.is_spilled()) {
            self.slices(chunk, chunk.range(bucket..last + 1))
                .will_need();
        }
    }

    /// Returns, batch by batch, the batch's first row and its edges to own nodes.
    pub(crate) fn own_edges(&self) -> impl Iterator<Item = (u64, EdgeSlices<'_>)> {
        self.chunks.iter().map(|chunk| {
            let end = chunk.ends[self.layout.num_own() - 1] as usize;
            let edges = self.slices(chunk, 0..end);
            if chunk.is_spilled() {
                edges.will_need();
            }
            (chunk.first_row, edges)
        })
    }

    /// Collects the edges of a bucket of own nodes in `out`; `node_at` gives the number of the node
    /// at a place.
    pub(crate) fn gather_own(
        &self,
        bucket: usize,
        node_at: impl Fn(LocalIdx) -> NodeIdx,
        out: &mut Bucket,
    ) {
        let places = self.layout.nodes(bucket);
        let nodes = places.clone();
        let nodes = nodes.map(|place| node_at(LocalIdx::from_index(place)));
        let position = |edge: &Edge| edge.own_dst().index() - places.start;
        self.gather(bucket, nodes, position, out);
    }

    /// Collects the edges of a bucket of re-indexed nodes in `out`; `nodes` are its nodes,
    /// ascending.
    pub(crate) fn gather_hubs(&self, bucket: usize, nodes: &[NodeIdx], out: &mut Bucket) {
        let found = |edge: &Edge| nodes.binary_search(&edge.hub_dst());
        let position = |edge: &Edge| found(edge).expect("`nodes` holds every node of the bucket");
        self.gather(bucket, nodes.iter().copied(), position, out);
    }

    fn gather(
        &self,
        bucket: usize,
        nodes: impl ExactSizeIterator<Item = NodeIdx>,
        position: impl Fn(&Edge) -> usize,
        out: &mut Bucket,
    ) {
        let num_nodes = nodes.len();
        self.read_ahead(bucket);
        out.offset.clear();
        out.offset.resize(num_nodes + 1, 0);
        // Finding the runs is slow: the ends of each chunk are elsewhere.
        let runs: Vec<EdgeSlices<'_>> = self.runs(bucket).collect();
        for (run_idx, run) in runs.iter().enumerate() {
            prefetch_run(&runs, run_idx + RUNS_AHEAD);
            for edge in run.edges {
                out.offset[position(edge) + 1] += 1;
            }
        }
        for i in 1..out.offset.len() {
            out.offset[i] += out.offset[i - 1];
        }
        let num_edges = out.offset[num_nodes];
        out.edges.resize(num_edges, InEdge::default());
        out.feature.resize(num_edges * self.shape.dim, 0.0);
        out.next.clone_from(&out.offset);
        out.dst_hash.clear();
        let Some(hasher) = self.shape.hasher else {
            self.place(&runs, out, |_, run, i, edge| (position(edge), run.hash[i]));
            return;
        };
        out.dst_hash.extend(nodes.map(|node| hasher.dst_hash(node)));
        self.place(&runs, out, |dst_hash, _, _, edge| {
            let at = position(edge);
            (at, hasher.hash_into(edge.src, dst_hash[at]))
        });
    }

    /// Puts the edges of a bucket at their positions; `find` gives the position of the `dst` and
    /// the hash of an edge.
    fn place(
        &self,
        runs: &[EdgeSlices<'_>],
        out: &mut Bucket,
        find: impl Fn(&[u64], &EdgeSlices<'_>, usize, &Edge) -> (usize, u64),
    ) {
        let dim = self.shape.dim;
        for (run_idx, run) in runs.iter().enumerate() {
            prefetch_run(runs, run_idx + RUNS_AHEAD);
            for (i, edge) in run.edges.iter().enumerate() {
                let (at, hash) = find(&out.dst_hash, run, i, edge);
                let to = out.next[at];
                out.next[at] += 1;
                let weight = run.weight.get(i).copied().unwrap_or(1.0);
                let src = edge.src;
                out.edges[to] = InEdge { hash, src, weight };
                if dim > 0 {
                    out.feature[to * dim..(to + 1) * dim]
                        .copy_from_slice(&run.feature[i * dim..(i + 1) * dim]);
                }
            }
        }
    }

    /// Returns a bucket's edges in each chunk, in the order of input rows.
    fn runs(&self, bucket: usize) -> impl Iterator<Item = EdgeSlices<'_>> {
        self.chunks.iter().filter_map(move |chunk| {
            let range = chunk.range(bucket..bucket + 1);
            (!range.is_empty()).then(|| self.slices(chunk, range))
        })
    }

    /// Returns the edges of a chunk at some positions.
    fn slices<'a>(&'a self, chunk: &'a Chunk<Buffer>, range: Range<usize>) -> EdgeSlices<'a> {
        let EdgeShape {
            hasher,
            is_weighted,
            dim,
        } = self.shape;
        let all = match &chunk.edges {
            ChunkEdges::Memory(columns) => EdgeSlices {
                edges: &columns.edges,
                hash: &columns.hash,
                weight: &columns.weight,
                feature: &columns.feature,
            },
            ChunkEdges::Spilled(spill) => {
                let num_edges = chunk.num_edges() as usize;
                let num_hashes = if hasher.is_none() { num_edges } else { 0 };
                let (hash, rest) = spill.split_at(num_hashes * size_of::<u64>());
                let (edges, rest) = rest.split_at(num_edges * size_of::<Edge>());
                let num_weights = if is_weighted { num_edges } else { 0 };
                let (weight, rest) = rest.split_at(num_weights * size_of::<f32>());
                let feature = &rest[..num_edges * dim * size_of::<f32>()];
                EdgeSlices {
                    edges: bytemuck::cast_slice(edges),
                    hash: bytemuck::cast_slice(hash),
                    weight: bytemuck::cast_slice(weight),
                    feature: bytemuck::cast_slice(feature),
                }
            }
        };
        EdgeSlices {
            edges: &all.edges[range.clone()],
            hash: all.hash.get(range.clone()).unwrap_or_default(),
            weight: all.weight.get(range.clone()).unwrap_or_default(),
            feature: &all.feature[range.start * dim..range.end * dim],
        }
    }
}

impl Bucket {
    /// Removes all edges; [`Self::push`] adds those of the first node.
    pub(crate) fn clear(&mut self) {
        self.offset.clear();
        self.offset.push(0);
        self.edges.clear();
        self.feature.clear();
    }

    /// Adds an edge to the current node.
    pub(crate) fn push(&mut self, edge: InEdge, feature: &[f32]) {
        self.edges.push(edge);
        self.feature.extend_from_slice(feature);
    }

    /// Returns the number of edges.
    pub(crate) fn num_edges(&self) -> usize {
        self.edges.len()
    }

    /// Ends the edges of the current node.
    pub(crate) fn end_node(&mut self) {
        self.offset.push(self.edges.len());
    }

    /// Returns the in-edges of the bucket's `i`-th node, and their features.
    pub(crate) fn node(&self, i: usize, dim: usize) -> (&[InEdge], &[f32]) {
        let range = self.offset[i]..self.offset[i + 1];
        let features = range.start * dim..range.end * dim;
        (&self.edges[range], &self.feature[features])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(dst: u32) -> Edge {
        let src = NodeIdx::from_raw(dst + 100);
        Edge::to_own(LocalIdx::from_raw(dst), src)
    }

    fn batch(first_row: u64, own: [u32; 3], node: &[u32]) -> EdgeBatch {
        let mut ends = own.to_vec();
        ends.resize(3 + HUB_BUCKETS, own[2]);
        EdgeBatch {
            relation: 0,
            first_row,
            forwarded: false,
            ends,
            columns: EdgeVecs {
                edges: node.iter().map(|&n| edge(n)).collect(),
                hash: (first_row..).take(node.len()).collect(),
                weight: node.iter().map(|&n| n as f32).collect(),
                feature: node.iter().map(|&n| -(n as f32)).collect(),
            },
        }
    }

    /// Edges of several chunks to five nodes in three buckets, and to two re-indexed nodes; edges
    /// beyond `bytes_max` are spilled.
    fn gathered(bytes_max: usize) -> Vec<Vec<(u32, u64, f32, f32)>> {
        let dir = tempfile::tempdir().unwrap();
        let layout = BucketLayout::new(5, 2, 100);
        assert_eq!(layout.num_own(), 3);
        let shape = EdgeShape {
            hasher: None,
            is_weighted: true,
            dim: 1,
        };
        let new = || EdgeBuckets::new(layout, shape, Budget::new(bytes_max), dir.path());
        let (mut buckets, mut late) = (new(), new());
        let hub_batch = |first_row: u64, forwarded: bool, node: u32| {
            let mut batch = batch(first_row, [0; 3], &[node]);
            batch.ends[layout.hub(NodeIdx::from_raw(node))..].fill(1);
            EdgeBatch { forwarded, ..batch }
        };
        buckets.take(batch(50, [1, 3, 3], &[1, 2, 3])).unwrap();
        buckets.take(hub_batch(60, false, 7000)).unwrap();
        buckets.take(batch(10, [3, 3, 4], &[0, 1, 1, 4])).unwrap();
        buckets.take(hub_batch(20, false, 7000)).unwrap();
        let mut forwarded = hub_batch(60, true, 7000);
        forwarded.columns.hash[0] = 59;
        late.take(forwarded).unwrap();
        late.take(hub_batch(15, true, 9000)).unwrap();
        assert_eq!((buckets.num_edges(), late.num_edges()), (9, 2));
        let mut sealed = buckets.seal().unwrap();
        sealed.merge(late.seal().unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let (mut bucket, mut nodes) = (Bucket::default(), Vec::new());
        let mut read = |gathered: &Bucket, num_nodes: usize| {
            for i in 0..num_nodes {
                let (edges, features) = gathered.node(i, 1);
                let edges = edges.iter().zip(features);
                let edges = edges.map(|(e, &feature)| (e.src.raw(), e.hash, e.weight, feature));
                nodes.push(edges.collect());
            }
        };
        for b in 0..3 {
            sealed.gather_own(b, |_| NodeIdx::MAX, &mut bucket);
            read(&bucket, layout.nodes(b).len());
        }
        for hub in [7000, 9000].map(NodeIdx::from_raw) {
            sealed.gather_hubs(layout.hub(hub), &[hub], &mut bucket);
            read(&bucket, 1);
        }
        nodes
    }

    #[test]
    fn edges_come_back_by_node_and_row_wherever_they_were_kept() {
        let hub_edge = |node: u32, hash| (node + 100, hash, node as f32, -(node as f32));
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
            vec![hub_edge(7000, 20), hub_edge(7000, 59), hub_edge(7000, 60)],
            vec![hub_edge(9000, 15)],
        ];
        for bytes_max in [0, 80, 1 << 20] {
            assert_eq!(gathered(bytes_max), expected, "{bytes_max} bytes");
        }
    }
}
