//! Consecutive blocks of a layer that read their rows from one [`Gathered`] copy.

use crate::InferError;
use crate::device::Matrix;
use crate::gathered::{Gathered, RowSet};
use crate::graph::Graph;
use crate::hubs::is_hub;
use crate::layer::{LayerInput, Rounds};
use crate::locate::{locate, narrow};
use gnn::{Block, Dense, Projected, RangeData, ReadyInput};
use rayon::prelude::*;
use schemas::{LocalIdx, Row};
use std::ops::Range;
use store::{Partition, ReadAhead};

/// In-edges that are read for the first group, as a multiple of the rows that fit in memory.
const EDGES_PER_ROW: usize = 4;

/// Most of the memory of a group that its in-edges may take: a half.
const EDGES_SHARE: usize = 2;

/// Some blocks of a layer with all that they read.
pub(crate) struct Group {
    lists: Lists,
    gathered: Gathered,
    /// The copied rows; a GPU gets them once, for all threads.
    src: Projected<ReadyInput>,
}

/// Cuts the blocks of a layer into groups, each by how many rows the group before has read.
pub(crate) struct Groups {
    /// Memory for the rows and the in-edges of a group.
    bytes: usize,
    row_bytes: usize,
    edge_bytes: usize,
    /// In-edges that the next group reads at most.
    edges_max: usize,
    /// Rows that fit a buffer of the device.
    rows_max: usize,
}

/// The in-edges of the nodes of a group, in the order in which the store holds them.
struct Lists {
    /// The row of the first node.
    first: usize,
    /// For each row from `first` on: worker, start and length of its list.
    spans: Vec<(u32, u32, u32)>,
    of_workers: Vec<WorkerLists>,
}

#[derive(Default)]
struct WorkerLists {
    /// Row, start and length of each list.
    spans: Vec<(usize, u32, u32)>,
    /// The rows of the sources.
    src: Vec<u32>,
    weight: Vec<f32>,
    feature: Vec<f32>,
}

impl Groups {
    /// Starts to cut the blocks of a layer; `bytes` is the memory for copied rows.
    pub(crate) fn new(bytes: usize, rounds: &Rounds<'_>, input: &LayerInput) -> Self {
        let arch = rounds.trained.model.architecture();
        let words = 1 + usize::from(arch.edge_weight) + arch.edge_dim.unwrap_or(0);
        let (row_bytes, edge_bytes) = (input.row_bytes().max(1), 4 * words);
        let edges_max = (bytes / row_bytes).saturating_mul(EDGES_PER_ROW);
        Self {
            bytes,
            row_bytes,
            edge_bytes,
            edges_max: edges_max.clamp(1, (bytes / EDGES_SHARE / edge_bytes).max(1)),
            rows_max: rounds.model.device().matrix_rows(input.cols()),
        }
    }

    /// Reads the in-edges of the next blocks, as many as fit in memory, and copies the rows that
    /// they read; returns the number of blocks.
    pub(crate) fn next(
        &mut self,
        rounds: &Rounds<'_>,
        input: &LayerInput,
        blocks: &[Range<usize>],
    ) -> Result<(usize, Group), InferError> {
        let (graph, limit) = (rounds.graph, rounds.limit(input.layer));
        let mut edges = 0;
        let fits = |block: &&Range<usize>| {
            edges += graph.num_in_edges((*block).clone(), limit);
            edges <= self.edges_max as u64
        };
        let tried = blocks.iter().take_while(fits).count().max(1);
        let lists = Lists::read(rounds, &blocks[..tried], limit);
        let mut set = RowSet::new(graph.num_rows());
        let reads_own = rounds.conv_on_processor(input.layer).aggregates_own();
        let (mut taken, mut num_edges, mut used) = (0, 0, 0);
        for block in &blocks[..tried] {
            let in_edges = graph.num_in_edges(block.clone(), limit);
            let others = usize::try_from(in_edges).unwrap_or(usize::MAX);
            // Own nodes have rows of zeros, if the conv reads none of theirs here.
            let own = if reads_own {
                0
            } else {
                block.start - blocks[0].start
            };
            let rows = (set.len() + own).saturating_add(block.len().saturating_add(others));
            if taken > 0 && rows > self.rows_max {
                break;
            }
            if reads_own {
                block.clone().for_each(|row| set.insert(narrow(row)));
            }
            let srcs = block.clone().flat_map(|row| lists.of(row).0);
            srcs.for_each(|&src| set.insert(src));
            taken += 1;
            num_edges += in_edges;
            let of_edges = usize::try_from(num_edges).unwrap_or(usize::MAX);
            used = set.len() * self.row_bytes + of_edges.saturating_mul(self.edge_bytes);
            if used >= self.bytes {
                break;
            }
        }
        // The next group takes about as much memory for an in-edge.
        let for_all = u128::from(num_edges) * self.bytes as u128 / used.max(1) as u128;
        let edges_fit = self.bytes / EDGES_SHARE / self.edge_bytes;
        let for_all = usize::try_from(for_all).unwrap_or(usize::MAX);
        self.edges_max = for_all.clamp(1, edges_fit.max(1));
        let own = blocks[0].start..blocks[taken - 1].end;
        let rows = set.len() + if reads_own { 0 } else { own.len() };
        if rows > self.rows_max {
            let (layer, cols) = (input.layer, input.cols());
            let matrix = Matrix { layer, rows, cols };
            return Err(matrix.too_large(rounds.model.device()));
        }
        let own = (!reads_own).then_some(own);
        let gathered = Gathered::new(set, own, input, graph.columns())?;
        let src = gathered.ready();
        let group = Group {
            lists,
            gathered,
            src,
        };
        Ok((taken, group))
    }
}

impl Group {
    /// Builds the block of some rows of the group, as [`Graph::block`] does.
    pub(crate) fn block(
        &self,
        rounds: &Rounds<'_>,
        rows: Range<usize>,
    ) -> Result<Block, InferError> {
        let arch = rounds.trained.model.architecture();
        let mut in_offset = Vec::with_capacity(rows.len() + 1);
        let (mut in_src, mut weight, mut feature) = (Vec::new(), Vec::new(), Vec::new());
        in_offset.push(0);
        for row in rows.clone() {
            let (src, weights, features) = self.lists.of(row);
            in_src.extend(src.iter().map(|&src| self.gathered.place(src)));
            weight.extend_from_slice(weights);
            feature.extend_from_slice(features);
            in_offset.push(narrow(in_src.len()));
        }
        let data = RangeData {
            first: self.gathered.own_place(rows.start),
            in_offset,
            edge_weight: arch.edge_weight.then_some(weight),
            edge_feature: arch.edge_dim.map(|cols| Dense {
                rows: in_src.len(),
                cols,
                values: feature,
            }),
            in_src,
            sampling: rounds.graph.sampling(),
        };
        Ok(Block::of_range(data, self.gathered.columns())?)
    }

    /// Returns the copied rows as a conv reads them.
    pub(crate) fn src(&self) -> Projected<ReadyInput> {
        self.src.clone()
    }
}

impl Lists {
    /// Reads the first `limit` in-edges of the nodes of some blocks, and no in-edges of hubs.
    fn read(rounds: &Rounds<'_>, blocks: &[Range<usize>], limit: usize) -> Self {
        let graph = rounds.graph;
        let arch = rounds.trained.model.architecture();
        let edge_dim = arch.edge_dim.unwrap_or(0);
        let rows = blocks.iter().cloned().flatten();
        let by_worker = graph.in_order_of_store(rows);
        let of_worker = |places: Vec<(LocalIdx, Row)>| {
            let mut lists = WorkerLists::default();
            let locals: Vec<LocalIdx> = places.iter().map(|(local, _)| *local).collect();
            let mut ahead = ReadAhead::new(graph.store(), &locals);
            let sizes = places
                .iter()
                .map(|(_, row)| graph.num_in_edges(row.index()..row.index() + 1, limit));
            lists
                .src
                .reserve_exact(usize::try_from(sizes.sum::<u64>()).unwrap_or(0));
            for (local, row) in places {
                if let Some(next) = ahead.before(local) {
                    graph.partition_of(row).will_need_in_edges(0, 0, next);
                }
                if is_hub(graph.columns().in_degree()[row.index()], limit) {
                    continue;
                }
                let edges = graph.in_edges(row, limit);
                let start = narrow(lists.src.len());
                let srcs = edges.src.iter();
                lists.src.extend(srcs.map(|&src| graph.row(src).raw()));
                if let Some(weight) = edges.weight.filter(|_| arch.edge_weight) {
                    lists.weight.extend_from_slice(weight);
                }
                if let Some(feature) = edges.feature.filter(|_| edge_dim > 0) {
                    lists.feature.extend_from_slice(feature);
                }
                lists
                    .spans
                    .push((row.index(), start, narrow(edges.src.len())));
            }
            lists
        };
        let of_workers: Vec<_> = by_worker.into_par_iter().map(of_worker).collect();
        let first = blocks.first().map_or(0, |block| block.start);
        let end = blocks.last().map_or(0, |block| block.end);
        let mut spans = vec![(0, 0, 0); end - first];
        for (worker, lists) in (0_u32..).zip(&of_workers) {
            for &(row, start, len) in &lists.spans {
                spans[row - first] = (worker, start, len);
            }
        }
        Self {
            first,
            spans,
            of_workers,
        }
    }

    /// Returns sources, weights and features of the in-edges of a row.
    fn of(&self, row: usize) -> (&[u32], &[f32], &[f32]) {
        let (worker, start, len) = self.spans[row - self.first];
        let lists = &self.of_workers[worker as usize];
        let range = start as usize..(start + len) as usize;
        let dim = lists.feature.len() / lists.src.len().max(1);
        (
            &lists.src[range.clone()],
            lists.weight.get(range.clone()).unwrap_or_default(),
            &lists.feature[range.start * dim..range.end * dim],
        )
    }
}

impl Graph {
    /// Groups own rows by the worker of their nodes, each group in the order in which the worker's
    /// files hold the nodes.
    pub(crate) fn in_order_of_store(
        &self,
        rows: impl Iterator<Item = usize>,
    ) -> Vec<Vec<(LocalIdx, Row)>> {
        let placement = self.store().placement();
        let mut by_worker = vec![Vec::new(); placement.workers()];
        for row in rows.map(Row::from_index) {
            let (owner, local) = placement.owner_and_local(self.node(row));
            by_worker[owner].push((local, row));
        }
        by_worker
            .par_iter_mut()
            .for_each(|places| places.sort_unstable());
        by_worker
    }

    /// Returns the partition that holds the node of an own row.
    fn partition_of(&self, row: Row) -> &Partition {
        locate(self.store(), self.node(row)).0
    }

    /// Reads the raw dense features of consecutive own rows, in the order in which the store holds
    /// them: `[num_rows * dim]`.
    pub(crate) fn dense_features(&self, rows: Range<usize>, dim: usize) -> Vec<f32> {
        let first = rows.start;
        let mut values = vec![0.0; rows.len() * dim];
        for places in self.in_order_of_store(rows) {
            let locals: Vec<LocalIdx> = places.iter().map(|(local, _)| *local).collect();
            let mut ahead = ReadAhead::new(self.store(), &locals);
            for (local, row) in places {
                let partition = self.partition_of(row);
                if let Some(next) = ahead.before(local) {
                    partition.will_need_features(next);
                }
                let at = (row.index() - first) * dim;
                values[at..at + dim].copy_from_slice(partition.dense(local));
            }
        }
        values
    }
}
