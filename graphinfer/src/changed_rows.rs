//! Computes the rows that changes reach, from the rows of the version before.
//!
//! A layer is computed on blocks of listed nodes, with the kernels of a full run. A block copies
//! the rows that it reads; a row has the same bits in any block. A row that comes out as it was
//! reaches no further row.

mod layers;
mod typed;
mod untyped;
mod walk;

use crate::InferError;
use crate::graph::{BlockSize, cut_blocks};
use crate::hubs::{HUB_EDGES, ReadColumns, Segmented, is_hub, num_segments};
use crate::kept_rows::KeptRows;
use crate::locate::narrow;
use crate::model::Trained;
use crate::plan::InferPlan;
use crate::threads::Threads;
use cluster::{Cluster, run_workers};
use gnn::{
    Dense, Input, NodeColumns, PartialAggregation, Projected, RangeData, ReadyInput, SrcRows,
};
use graphdelta::{After, Degrees, Reach, ReachPlan, is_own_part};
use graphtrainer::convert;
use hashbrown::HashMap;
use schemas::NodeIdx;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use store::{InEdges, Placement, Store};
use typed::TypedBlocks;
use untyped::UntypedBlocks;
use walk::Walk;

pub(crate) use layers::{AnyHead, Layers, open_kept, refuse_plan};

/// Nodes whose weights a thread sums together.
const WEIGHTS_PIECE: usize = 1 << 8;

/// Nodes whose in-edges a thread counts together.
const COUNTED_PIECE: usize = 1 << 13;

/// Nodes of a stretch that one of several processes computes.
const SHARE_PIECE: usize = 1 << 8;

/// What the rows of a version are computed from.
struct Version<'a> {
    after: &'a After,
    model: &'a Layers,
    /// Type by type, in the order of ids.
    nodes: Vec<NodeIdx>,
    /// Places of nodes in this order, by number.
    places: Vec<u32>,
    /// Cuts the nodes into segments, as the store of a full run does.
    placement: Placement,
    /// Sums of the weights of the in-edges and self-loops of edited nodes, by relation and node, where
    /// the model reads them.
    weights: BTreeMap<(usize, NodeIdx), [f32; 2]>,
}

/// A layer of a model, as one thread runs it on listed nodes.
trait Blocks {
    /// Computes the rows of some nodes of a type; `rows` has those of the layer before.
    fn run(
        &self,
        node_type: usize,
        nodes: &[NodeIdx],
        rows: &KeptRows,
    ) -> Result<Dense, InferError>;
}

/// Rows of listed nodes and of the sources of their in-edges, copied.
struct Local {
    nodes: Vec<NodeIdx>,
    place: HashMap<NodeIdx, u32>,
}

/// Returns the in-edges and degrees that the layers of a model read.
///
/// # Errors
///
/// If the model cannot be read or does not fit the store, or its rows cannot be kept.
pub fn reach_plan(plan: &InferPlan, store: &Store) -> Result<ReachPlan, InferError> {
    Ok(Layers::open(plan, store)?.reach_plan(&store.meta().graph))
}

/// Rows of a version, and the nodes that were computed in each layer, from 1.
pub type ChangedRows = (KeptRows, Vec<Vec<NodeIdx>>);

/// Computes the rows of a version from those of its parent and what the changes reach, or all rows
/// if there is no parent. Where the parent's rows of a layer are not kept, those that the changes
/// reach are computed, and those whose embedding differs.
///
/// # Errors
///
/// If the model cannot be read or does not fit the store, if its rows cannot be kept, or if a row
/// holds a number that is not finite.
pub fn changed_rows(
    plan: &InferPlan,
    after: &After,
    parent: Option<(&Reach, KeptRows)>,
) -> Result<ChangedRows, InferError> {
    let threads = Threads::new(after.store().cluster().num_threads())?;
    compute(
        &Layers::open(plan, after.store())?,
        (after, &threads),
        parent,
    )
}

/// [`changed_rows`] of an open model.
pub(crate) fn compute(
    model: &Layers,
    (after, threads): (&After, &Threads),
    parent: Option<(&Reach, KeptRows)>,
) -> Result<ChangedRows, InferError> {
    let parent = match parent {
        Some((reach, rows)) if reaches_nothing(reach) => {
            return Ok((rows, vec![Vec::new(); model.num_layers()]));
        }
        parent => parent,
    };
    let cluster = after.store().cluster();
    let mut version = Version::new(after, model);
    version.sum_weights(threads)?;
    let (reach, mut rows) = parent.map_or((None, KeptRows::default()), |(reach, rows)| {
        (Some(reach), rows)
    });
    let layers = 1..model.num_layers() + 1;
    let widths: Vec<usize> = layers
        .clone()
        .map(|layer| model.output_dim(layer))
        .collect();
    rows.grow(&widths, after.end());
    let all = (0..after.end()).map(NodeIdx::from_index);
    all.filter(|&node| after.is_removed(node))
        .for_each(|node| rows.clear(node));
    // A node that is added again has no row.
    after.removed_before().for_each(|node| rows.clear(node));
    let mut walk = reach.map(|reach| Walk::new(&version, reach));
    let mut computed = Vec::new();
    for layer in layers {
        let mut listed = match &mut walk {
            Some(walk) => walk.listed(&version, layer, threads)?,
            None => version.computed(layer),
        };
        if walk.is_some() && layer > model.embedding_layer && layer == model.num_layers() {
            // Their predictions are written with their embeddings.
            let changed = rows.changed(model.embedding_layer).iter();
            listed.extend(changed.filter(|&&node| version.is_computed(node, layer)));
            listed.sort_unstable();
            listed.dedup();
        }
        let by_type = version.by_type(&listed);
        let own = own_blocks(cluster, &by_type);
        let new = version.run(layer, &own, &rows, threads)?;
        if layer == 1 {
            // Later layers read no features, but for the scores that Simple-HGN mixes in. The rows that
            // are read next take as much memory.
            after.store().release_nodes();
        }
        let differs = differing(layer, (&new, &own), &rows, threads)?;
        let changed = set_differing(layer, (after, &own), (new, differs), &mut rows)?;
        if let Some(walk) = &mut walk {
            walk.step(changed);
        }
        computed.push(listed);
    }
    Ok((rows, computed))
}

/// New rows of some nodes, which have a range in a list.
type NewRows = (Range<usize>, Dense);

/// Rows that differ from the kept ones, and their nodes.
type Differing = (Vec<NodeIdx>, Vec<f32>);

/// Sets the new rows that differ from the kept ones, in all processes; returns by number of a node
/// whether its row is one of them.
fn set_differing(
    layer: usize,
    (after, nodes): (&After, &[NodeIdx]),
    (new, differs): (Vec<NewRows>, Vec<Vec<bool>>),
    rows: &mut KeptRows,
) -> Result<Vec<bool>, InferError> {
    let num_new = differs.iter().flatten().filter(|is_new| **is_new).count();
    rows.reserve(layer, num_new);
    let mut changed = vec![false; after.end()];
    let mut set = |node: NodeIdx, row: &[f32]| {
        changed[node.index()] = true;
        rows.set(layer, node, row);
    };
    let of_blocks = new.into_iter().zip(differs);
    let cluster = after.store().cluster();
    if cluster.num_processes() == 1 {
        for ((block, values), of_block) in of_blocks {
            each_differing((&values, &nodes[block]), &of_block, &mut set);
        }
        return Ok(changed);
    }
    let own = of_blocks.map(|((block, values), of_block)| {
        let mut taken = Differing::default();
        each_differing((&values, &nodes[block]), &of_block, |node, row| {
            taken.0.push(node);
            taken.1.extend_from_slice(row);
        });
        taken
    });
    for (of_values, values) in with_others(cluster, own)? {
        let width = (values.len() / of_values.len().max(1)).max(1);
        let of_nodes = of_values.iter().zip(values.chunks_exact(width));
        of_nodes.for_each(|(&node, row)| set(node, row));
    }
    Ok(changed)
}

/// Calls `take` with those nodes of a block whose rows differ, and their rows.
fn each_differing(
    (rows, nodes): (&Dense, &[NodeIdx]),
    differs: &[bool],
    mut take: impl FnMut(NodeIdx, &[f32]),
) {
    for (row, &node) in nodes.iter().enumerate().filter(|(row, _)| differs[*row]) {
        take(node, rows.row(row));
    }
}

/// Returns the nodes whose rows this process computes: every so many stretches of a list, since
/// nodes with many in-edges stand together.
fn own_blocks<'a>(cluster: &Cluster, nodes: &'a [NodeIdx]) -> Cow<'a, [NodeIdx]> {
    if cluster.num_processes() == 1 {
        return Cow::Borrowed(nodes);
    }
    let stretches = nodes.chunks(SHARE_PIECE).enumerate();
    let own = stretches.filter(|(at, _)| is_own_part(cluster, *at));
    own.flat_map(|(_, of)| of.iter().copied()).collect()
}

/// Sends rows to all other processes; returns them with those that the others send.
fn with_others(
    cluster: &Cluster,
    own: impl Iterator<Item = Differing>,
) -> Result<impl Iterator<Item = Differing>, InferError> {
    let own: Arc<Vec<Differing>> = Arc::new(own.collect());
    let sent = Arc::clone(&own);
    let mut received = run_workers(cluster, move |peer| {
        let sent = if peer.leads_process() { &sent[..] } else { &[] };
        let to: Vec<usize> = peer.other_processes().collect();
        let outgoing = sent.iter().flat_map(|rows| {
            let of_rows = |&worker: &usize| Ok((worker, rows.clone()));
            to.iter().map(of_rows).collect::<Vec<_>>()
        });
        peer.shuffle::<Differing, InferError>(outgoing)
    })?;
    let own = Arc::into_inner(own).expect("the workers have ended");
    let others = received.swap_remove(0).into_iter().map(|(_, rows)| rows);
    Ok(own.into_iter().chain(others))
}

/// Tells of new rows of `nodes`, block by block, which of them differ from the kept ones.
fn differing(
    layer: usize,
    (new, nodes): (&[NewRows], &[NodeIdx]),
    rows: &KeptRows,
    threads: &Threads,
) -> Result<Vec<Vec<bool>>, InferError> {
    threads.map(new, |(block, of_block)| {
        rows.differing(layer, &nodes[block.clone()], of_block)
    })
}

/// Tells whether the rows of all nodes stay, and their places in segments too.
fn reaches_nothing(reach: &Reach) -> bool {
    !reach.moves_ids && reach.layers.iter().all(Vec::is_empty)
}

impl<'a> Version<'a> {
    fn new(after: &'a After, model: &'a Layers) -> Self {
        let nodes = after.nodes();
        let mut places = vec![0; after.end()];
        let mut num_nodes = vec![0; after.store().meta().graph.types.len()];
        for (place, &node) in nodes.iter().enumerate() {
            places[node.index()] = narrow(place);
            num_nodes[after.type_of(node)] += 1;
        }
        Self {
            after,
            model,
            placement: Placement::new(&num_nodes, 1),
            nodes,
            places,
            weights: BTreeMap::new(),
        }
    }

    /// Sums the weights of the in-edges of edited nodes, if the model reads weights.
    fn sum_weights(&mut self, threads: &Threads) -> Result<(), InferError> {
        let (after, model) = (self.after, self.model);
        let edited = after.edited();
        let read = edited.filter(|&(relation, _)| model.edges[relation].weight);
        let keys: Vec<(usize, NodeIdx)> = read.collect();
        let pieces: Vec<&[(usize, NodeIdx)]> = keys.chunks(WEIGHTS_PIECE).collect();
        let sums = threads.map(&pieces, |piece| {
            let of_nodes = piece.iter();
            let of_nodes = of_nodes.map(|&key| (key, after.weights(key.0, key.1)));
            of_nodes.collect::<Vec<_>>()
        })?;
        self.weights = sums.into_iter().flatten().collect();
        Ok(())
    }

    /// Tells whether a layer computes the row of a node.
    fn is_computed(&self, node: NodeIdx, layer: usize) -> bool {
        self.model.needed.has(layer, self.after.type_of(node))
    }

    /// Lists the nodes whose rows a layer computes in a full run.
    fn computed(&self, layer: usize) -> Vec<NodeIdx> {
        let nodes = self.nodes.iter().copied();
        nodes
            .filter(|&node| self.is_computed(node, layer))
            .collect()
    }

    /// Returns the relations to a node, each with the number of in-edges that a layer reads.
    fn reads(&self, node: NodeIdx, layer: usize) -> impl Iterator<Item = (usize, usize)> {
        let (node_type, limits) = (self.after.type_of(node), &self.model.limits[layer - 1]);
        let relations = self.after.store().meta().graph.relations.iter().zip(limits);
        let relations = relations.enumerate();
        relations.filter_map(move |(at, (of, &limit))| (of.to == node_type).then_some((at, limit)))
    }

    fn in_degree(&self, relation: usize, node: NodeIdx) -> u32 {
        u32::try_from(self.after.in_degree(relation, node)).expect("bounded as in a store")
    }

    /// Tells whether the in-edges of a relation of a node are aggregated in segments.
    fn is_hub_of(&self, relation: usize, node: NodeIdx, limit: usize) -> bool {
        // Most layers read fewer in-edges than hubs have; then no in-degree is looked up.
        limit > HUB_EDGES && is_hub(self.in_degree(relation, node), limit)
    }

    /// Tells whether a layer aggregates in-edges of a node in segments.
    fn is_hub(&self, node: NodeIdx, layer: usize) -> bool {
        let mut reads = self.reads(node, layer);
        reads.any(|(relation, limit)| self.is_hub_of(relation, node, limit))
    }

    /// Orders ascending nodes by type.
    fn by_type(&self, nodes: &[NodeIdx]) -> Vec<NodeIdx> {
        let mut nodes = nodes.to_vec();
        nodes.sort_by_key(|&node| self.after.type_of(node));
        nodes
    }

    /// Computes a layer's rows of nodes that are ordered by type, block by block, from the rows of the
    /// layer before.
    fn run(
        &self,
        layer: usize,
        nodes: &[NodeIdx],
        rows: &KeptRows,
        threads: &Threads,
    ) -> Result<Vec<NewRows>, InferError> {
        let num_read = |&node: &NodeIdx| -> usize {
            let reads = self.reads(node, layer);
            let read = |(relation, limit)| (self.in_degree(relation, node) as usize).min(limit);
            reads.map(read).sum()
        };
        let pieces: Vec<&[NodeIdx]> = nodes.chunks(COUNTED_PIECE).collect();
        let counts = threads.map(&pieces, |of| of.iter().map(num_read).collect::<Vec<_>>())?;
        let counts = counts.concat();
        let type_of = |node: NodeIdx| self.after.type_of(node);
        let mut blocks: Vec<(usize, Range<usize>)> = Vec::new();
        let mut start = 0;
        for of_type in nodes.chunk_by(|&a, &b| type_of(a) == type_of(b)) {
            let end = start + of_type.len();
            let cut = cut_blocks(start..end, BlockSize::OF_PROCESSOR, |at| counts[at]).into_iter();
            blocks.extend(cut.map(|block| (type_of(of_type[0]), block)));
            start = end;
        }
        let done = Mutex::new(Vec::with_capacity(blocks.len()));
        let on_thread = || self.blocks(layer);
        threads.run(blocks.len(), on_thread, |on_thread, at| {
            let (node_type, block) = &blocks[at];
            let of_block = on_thread.run(*node_type, &nodes[block.clone()], rows)?;
            let of_nodes = (self.after, &nodes[block.clone()]);
            self.model.check_finite((layer, &of_block), of_nodes)?;
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((block.clone(), of_block));
            Ok(())
        })?;
        Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a layer of the model, for one thread.
    fn blocks(&self, layer: usize) -> Box<dyn Blocks + '_> {
        match &self.model.trained {
            Trained::Untyped(trained) => Box::new(UntypedBlocks::new(self, trained, layer)),
            Trained::Typed(trained) => Box::new(TypedBlocks::new(self, trained, layer)),
        }
    }

    /// Reads the first in-edges of a relation of some nodes, as many as a layer reads, and none where
    /// they are aggregated in segments. Their sources get places in `local`.
    fn range_data(
        &self,
        (relation, layer): (usize, usize),
        nodes: &[NodeIdx],
        local: &mut Local,
    ) -> RangeData {
        let (limit, read) = (
            self.model.limits[layer - 1][relation],
            self.model.edges[relation],
        );
        let (mut in_offset, mut in_src) = (vec![0], Vec::new());
        let (mut weight, mut feature) = (Vec::new(), Vec::new());
        for &node in nodes {
            let is_hub = self.is_hub_of(relation, node, limit);
            let limit = if is_hub { 0 } else { limit };
            let edges = self.after.in_edges(relation, node, limit);
            in_src.extend(edges.src.iter().map(|&src| local.add(src)));
            if read.weight {
                weight.extend_from_slice(edges.weight.unwrap_or_default());
            }
            if read.dim.is_some() {
                feature.extend_from_slice(edges.feature.unwrap_or_default());
            }
            in_offset.push(narrow(in_src.len()));
        }
        RangeData {
            first: 0,
            in_offset,
            edge_weight: read.weight.then_some(weight),
            edge_feature: read.dim.map(|cols| Dense {
                rows: in_src.len(),
                cols,
                values: feature,
            }),
            in_src,
            sampling: convert::sampling(self.after.store().meta().sampling),
        }
    }

    /// Returns the columns of some nodes of a relation's `to` type that a model reads; those of nodes
    /// after the first `num_dst` are 0 if it does not read degrees of sources.
    fn columns(
        &self,
        relation: usize,
        nodes: &[NodeIdx],
        num_dst: usize,
    ) -> Result<NodeColumns, InferError> {
        let num_read = match self.model.degrees() {
            Degrees::Sources => nodes.len(),
            Degrees::None | Degrees::Own => num_dst,
        };
        let read = || nodes[..num_read].iter();
        let in_degree = read().map(|&node| self.in_degree(relation, node));
        let mut in_degree: Vec<u32> = in_degree.collect();
        in_degree.resize(nodes.len(), 0);
        let ends = &self.after.store().meta().graph.relations[relation];
        let has_loops = ends.from == ends.to;
        let self_loops = has_loops.then(|| {
            let loops = |&node: &NodeIdx| {
                let loops = self.after.self_loops(relation, node);
                u32::try_from(loops).expect("at most the in-degree")
            };
            let mut self_loops: Vec<u32> = read().map(loops).collect();
            self_loops.resize(nodes.len(), 0);
            self_loops
        });
        let (mut in_weight, mut self_weight) = (None, None);
        if self.model.edges[relation].weight {
            let weights = read().map(|&node| self.weights(relation, node));
            let (mut all, mut loops): (Vec<f32>, Vec<f32>) = weights.map(Into::into).unzip();
            all.resize(nodes.len(), 0.0);
            loops.resize(nodes.len(), 0.0);
            (in_weight, self_weight) = (Some(all), has_loops.then_some(loops));
        }
        Ok(NodeColumns::new(
            in_degree,
            in_weight,
            self_loops,
            self_weight,
        )?)
    }

    /// Returns the sums of the weights of a node's in-edges of a relation, and of its self-loops.
    fn weights(&self, relation: usize, node: NodeIdx) -> [f32; 2] {
        let edited = self.weights.get(&(relation, node));
        edited.map_or_else(|| self.after.weights(relation, node), |&weights| weights)
    }

    /// Aggregates all in-edges of a relation of a node in the segments of a full run. `src` has the
    /// rows of its sources and, in a relation within a type, first that of the node; `local` has their
    /// places.
    fn merged(
        &self,
        (relation, node, edges): (usize, NodeIdx, InEdges<'_>),
        aggregation: &dyn PartialAggregation,
        (src, local): (SrcRows<'_>, &Local),
        query: &[f32],
    ) -> Vec<f32> {
        let count = num_segments(self.in_degree(relation, node));
        let read = self.model.edges[relation];
        let read = ReadColumns {
            edge_dim: read.dim,
            edge_weight: read.weight,
        };
        let segmented = Segmented::of(edges, count, read, |source| {
            let place = NodeIdx::from_raw(self.places[source.index()]);
            self.placement.segment(place, count)
        });
        let adds_loop = aggregation.adds_loop();
        let mean = adds_loop.then(|| segmented.mean_feature(node)).flatten();
        let mut states: Vec<Vec<f32>> = Vec::new();
        states.extend(aggregation.own_state(0, mean, src, query));
        for segment in 0..count {
            let of_segment =
                segmented.pick(segment, adds_loop.then_some(node), |of| local.place[&of]);
            if !of_segment.src.is_empty() {
                states.push(aggregation.state(&of_segment, src, query));
            }
        }
        let in_order: Vec<&[f32]> = states.iter().map(|state| &state[..]).collect();
        aggregation.merge(0, &in_order, src.nodes)
    }
}

impl Local {
    fn new(nodes: &[NodeIdx]) -> Self {
        let mut local = Self {
            nodes: Vec::with_capacity(nodes.len()),
            place: HashMap::with_capacity(2 * nodes.len()),
        };
        nodes.iter().for_each(|&node| {
            local.add(node);
        });
        local
    }

    /// Returns the place of a node, a new one if it has none.
    fn add(&mut self, node: NodeIdx) -> u32 {
        let new = narrow(self.nodes.len());
        *self.place.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            new
        })
    }
}

fn ready(of: Projected<Dense>) -> Result<Projected<ReadyInput>, InferError> {
    let ready = |rows: Dense| ReadyInput::new(Input::Dense(rows));
    Ok(Projected {
        rows: ready(of.rows)?,
        scores: of.scores.map(ready).transpose()?,
    })
}
