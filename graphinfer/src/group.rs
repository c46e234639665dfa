//! Consecutive blocks of a layer that read their rows from one [`Gathered`] copy.

use crate::InferError;
use crate::device::Matrix;
use crate::gathered::{Gathered, RowSet};
use crate::graph::Graph;
use crate::hubs::is_hub;
use crate::layer::{LayerInput, Rounds};
use crate::locate::narrow;
use crate::spooled::SpooledRows;
use gnn::{Block, Dense, Projected, RangeData, ReadyInput};
use rayon::prelude::*;
use schemas::{LocalIdx, Row};
use std::ops::Range;

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

/// A group whose rows are not copied yet.
pub(crate) struct Planned {
    /// The blocks of the group, among those that it was planned from.
    pub(crate) blocks: Range<usize>,
    set: RowSet,
    /// Own nodes that have a place behind the rows of the set.
    own: Option<Range<usize>>,
    /// The in-edges, unless another group was planned after this one.
    lists: Option<Lists>,
}

/// The in-edges of the nodes of a group.
struct Lists {
    /// The row of the first node.
    first: usize,
    /// For each row from `first` on: position of its lists, start and length.
    spans: Vec<(u32, u32, u32)>,
    parts: Vec<SomeLists>,
}

/// The in-edges of some nodes, in the order in which a worker or a bucket holds them.
#[derive(Default)]
pub(crate) struct SomeLists {
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

    /// Plans the next groups: those whose rows are read in one pass over the file.
    pub(crate) fn plan(
        &mut self,
        rounds: &Rounds<'_>,
        input: &LayerInput,
        blocks: &[Range<usize>],
        start: usize,
    ) -> Result<Vec<Planned>, InferError> {
        let (mut planned, mut next): (Vec<Planned>, _) = (Vec::new(), start);
        while next < blocks.len() {
            if let Some(last) = planned.last_mut() {
                last.lists = None;
            }
            let group = self.plan_group(rounds, input, (blocks, next))?;
            next = group.blocks.end;
            planned.push(group);
            let sets = planned.iter().map(Planned::set);
            if !rounds.gathering.is_some_and(|of| of.has_room_for(sets)) {
                break;
            }
        }
        Ok(planned)
    }

    /// Reads the in-edges of the next blocks, as many as fit in memory, and lists the rows that
    /// they read.
    fn plan_group(
        &mut self,
        rounds: &Rounds<'_>,
        input: &LayerInput,
        (all, start): (&[Range<usize>], usize),
    ) -> Result<Planned, InferError> {
        let blocks = &all[start..];
        let (graph, limit) = (rounds.graph, rounds.limit(input.layer));
        let (mut edges, rows_fit) = (0, (self.bytes / self.row_bytes).max(1));
        let fits = |block: &&Range<usize>| {
            edges += graph.num_edges_in_blocks((*block).clone(), limit);
            let num_rows = block.end - blocks[0].start;
            // Nodes without in-edges have a place too.
            edges <= self.edges_max && num_rows <= rows_fit
        };
        let tried = blocks.iter().take_while(fits).count().max(1);
        let lists = Lists::read(rounds, &blocks[..tried], limit)?;
        let mut set = RowSet::new(graph.num_rows());
        let reads_own = rounds.conv_on_processor(input.layer).aggregates_own();
        let (mut taken, mut num_edges, mut used) = (0, 0, 0);
        for block in &blocks[..tried] {
            let in_edges = graph.num_edges_in_blocks(block.clone(), limit);
            // Own nodes have rows of zeros, if the conv reads none of theirs here.
            let own = if reads_own {
                0
            } else {
                block.start - blocks[0].start
            };
            let rows = (set.len() + own).saturating_add(block.len().saturating_add(in_edges));
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
            used = set.len() * self.row_bytes + num_edges * self.edge_bytes;
            if used >= self.bytes {
                break;
            }
        }
        // The next group takes about as much memory for an in-edge.
        let for_all = num_edges as u128 * self.bytes as u128 / used.max(1) as u128;
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
        Ok(Planned {
            blocks: start..start + taken,
            set,
            own: (!reads_own).then_some(own),
            lists: Some(lists),
        })
    }
}

impl Planned {
    /// Returns the rows that the group reads.
    pub(crate) fn set(&self) -> &RowSet {
        &self.set
    }

    /// Reads the in-edges and copies the rows of the group; `blocks` are all that it was planned
    /// from.
    pub(crate) fn gather(
        self,
        rounds: &Rounds<'_>,
        (input, spooled): (&LayerInput, Option<(&SpooledRows, usize)>),
        blocks: &[Range<usize>],
    ) -> Result<Group, InferError> {
        let lists = match self.lists {
            Some(lists) => lists,
            None => Lists::read(rounds, &blocks[self.blocks], rounds.limit(input.layer))?,
        };
        let columns = rounds.graph.columns();
        let gathered = Gathered::new(self.set, self.own, (input, spooled), columns)?;
        let src = gathered.ready();
        Ok(Group {
            lists,
            gathered,
            src,
        })
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
    fn read(
        rounds: &Rounds<'_>,
        blocks: &[Range<usize>],
        limit: usize,
    ) -> Result<Self, InferError> {
        let first = blocks.first().map_or(0, |block| block.start);
        let end = blocks.last().map_or(0, |block| block.end);
        let spooled = rounds.gathering.and_then(|of| of.spooled.as_ref());
        let parts = match spooled {
            Some(spooled) => spooled.lists(rounds.graph, blocks, limit)?,
            None => Self::of_store(rounds, blocks, limit),
        };
        Ok(Self::new(first..end, parts))
    }

    fn of_store(rounds: &Rounds<'_>, blocks: &[Range<usize>], limit: usize) -> Vec<SomeLists> {
        let graph = rounds.graph;
        let arch = rounds.trained.model.architecture();
        let edge_dim = arch.edge_dim.unwrap_or(0);
        let of_worker = |places: Vec<(LocalIdx, Row)>| {
            let mut lists = SomeLists::default();
            for (_, row) in places {
                if is_hub(graph.columns().in_degree()[row.index()], limit) {
                    continue;
                }
                let edges = graph.in_edges(row, limit);
                let src: Vec<u32> = edges.src.iter().map(|&src| graph.row(src).raw()).collect();
                let weight = edges.weight.filter(|_| arch.edge_weight);
                let feature = edges.feature.filter(|_| edge_dim > 0);
                lists.push(row.index(), (&src, weight, feature));
            }
            lists.shrink();
            lists
        };
        let by_worker = graph.in_order_of_store(blocks.iter().cloned().flatten());
        by_worker.into_par_iter().map(of_worker).collect()
    }

    /// Makes the lists of the rows in a range.
    fn new(rows: Range<usize>, parts: Vec<SomeLists>) -> Self {
        let first = rows.start;
        let mut spans = vec![(0, 0, 0); rows.len()];
        for (part, lists) in (0_u32..).zip(&parts) {
            for &(row, start, len) in &lists.spans {
                spans[row - first] = (part, start, len);
            }
        }
        Self {
            first,
            spans,
            parts,
        }
    }

    /// Returns sources, weights and features of the in-edges of a row.
    fn of(&self, row: usize) -> (&[u32], &[f32], &[f32]) {
        let (part, start, len) = self.spans[row - self.first];
        let lists = &self.parts[part as usize];
        let range = start as usize..(start + len) as usize;
        let dim = lists.feature.len() / lists.src.len().max(1);
        (
            &lists.src[range.clone()],
            lists.weight.get(range.clone()).unwrap_or_default(),
            &lists.feature[range.start * dim..range.end * dim],
        )
    }
}

impl SomeLists {
    /// Adds the in-edges of a row: sources, weights and features.
    pub(crate) fn push(
        &mut self,
        row: usize,
        (src, weight, feature): (&[u32], Option<&[f32]>, Option<&[f32]>),
    ) {
        self.spans
            .push((row, narrow(self.src.len()), narrow(src.len())));
        self.src.extend_from_slice(src);
        self.weight.extend_from_slice(weight.unwrap_or_default());
        self.feature.extend_from_slice(feature.unwrap_or_default());
    }

    /// Frees the memory that no in-edge takes; nothing is added after this.
    pub(crate) fn shrink(&mut self) {
        self.spans.shrink_to_fit();
        self.src.shrink_to_fit();
        self.weight.shrink_to_fit();
        self.feature.shrink_to_fit();
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
}
