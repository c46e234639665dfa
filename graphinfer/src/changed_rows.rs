//! Computes the rows that changes reach, from the rows of the version before.
//!
//! A layer is computed on blocks of listed nodes, with the kernels of a full run. A block copies
//! the rows that it reads; a row has the same bits in any block. A row that comes out as it was
//! reaches no further row.

use crate::InferError;
use crate::config::{InferTargets, Method};
use crate::graph::cut_blocks;
use crate::hubs::{ReadColumns, Segmented, is_hub, num_segments};
use crate::infer::{Settings, check_model};
use crate::kept_rows::KeptRows;
use crate::layer::first_not_finite;
use crate::locate::narrow;
use crate::model::{Trained, TrainedModel};
use crate::plan::InferPlan;
use crate::threads::Threads;
use gnn::{
    Architecture, Block, Dense, Input, LayerKind, LayerSlice, NodeColumns, Projected, RangeData,
    ReadyInput, RowFormat, RowValues, SrcRows,
};
use graphdelta::{After, Degrees, KeptEdge, Reach, ReachPlan};
use graphtrainer::convert;
use schemas::{FeatureMeta, Features, NodeIdx};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use store::{InEdges, Placement, Store};

/// What the rows of a version are computed from.
struct Version<'a> {
    after: &'a After,
    trained: &'a TrainedModel,
    /// By layer, from 1.
    limits: Vec<usize>,
    nodes: Vec<NodeIdx>,
    /// Places of nodes in the order of ids, by number.
    places: Vec<u32>,
    /// Cuts the nodes into segments, as the store of a full run does.
    placement: Placement,
}

/// Rows of listed nodes and of the sources of their in-edges, copied.
struct Local {
    nodes: Vec<NodeIdx>,
    place: BTreeMap<NodeIdx, u32>,
}

/// A model whose rows can be kept from version to version, and what its layers read.
pub(crate) struct Layers {
    /// With the defaults of the model's task.
    pub(crate) plan: InferPlan,
    pub(crate) trained: TrainedModel,
    /// How many in-edges of a node each layer reads, from layer 1.
    pub(crate) limits: Vec<usize>,
    pub(crate) embedding_layer: usize,
    /// The settings by which rows are computed.
    pub(crate) plan_json: serde_json::Value,
}

/// Returns the in-edges and degrees that the layers of a model read.
///
/// # Errors
///
/// If the model cannot be read or does not fit the store, or its rows cannot be kept.
pub fn reach_plan(plan: &InferPlan, store: &Store) -> Result<ReachPlan, InferError> {
    Ok(Layers::open(plan, store)?.reach_plan())
}

impl Layers {
    /// Opens the model of a plan.
    pub(crate) fn open(plan: &InferPlan, store: &Store) -> Result<Self, InferError> {
        let (trained, plan) = open_kept(plan, store.meta().graph.types[0].features)?;
        if store.cluster().num_processes() > 1 {
            return Err(InferError::FullRun("the job runs in several processes"));
        }
        let trained = check_model(&plan, trained, store)?;
        let settings = Settings::new(&plan, &trained, store)?;
        Ok(Self {
            limits: settings.slices.iter().map(|slice| slice.limit).collect(),
            embedding_layer: settings.embedding_layer,
            plan_json: settings.plan_json,
            trained,
            plan,
        })
    }

    /// Returns the in-edges and degrees that the layers read.
    pub(crate) fn reach_plan(&self) -> ReachPlan {
        let limits = self.limits.iter();
        ReachPlan {
            hops: Vec::new(),
            layers: limits.map(|&limit| vec![limit]).collect(),
            degrees: degrees(self.trained.model.architecture()),
        }
    }
}

/// Returns the in-degrees that a model reads besides those of changed in-edges.
fn degrees(arch: &Architecture) -> Degrees {
    match arch.layer {
        LayerKind::Gcn => Degrees::Sources,
        // From the mean of a sample the in-degree cancels, without weights (gnn/src/coefficient.rs).
        LayerKind::Sage | LayerKind::Gat | LayerKind::GatV2 => Degrees::None,
        _ => Degrees::Own,
    }
}

/// Opens the model of a plan for nodes with these features, and refuses it if its rows cannot be
/// kept. Returns it with the plan that has the defaults of the model's task.
pub(crate) fn open_kept(
    plan: &InferPlan,
    features: FeatureMeta,
) -> Result<(TrainedModel, InferPlan), InferError> {
    refuse_plan(plan, features)?;
    let opened = Trained::open(plan)?;
    let plan = opened.record().completed(plan);
    let Trained::Untyped(trained) = opened else {
        return Err(InferError::FullRun("nodes have types"));
    };
    let arch = trained.model.architecture();
    let problem = match () {
        () if trained.transform.makes_sparse() => SPARSE,
        () if arch.edge_weight => "the model reads edge weights",
        () if arch.embedding_dim.is_some() => "the model has learnable rows of nodes",
        () if arch.layer == LayerKind::LightGcn => "lightgcn reads the rows of all layers",
        () if trained.record.shape.has_readout => "the model gives embeddings of graphs",
        () => return Ok((*trained, plan)),
    };
    Err(InferError::FullRun(problem))
}

const SPARSE: &str = "features are sparse";

/// Refuses a plan whose rows cannot be kept, whatever the model.
pub(crate) fn refuse_plan(plan: &InferPlan, features: FeatureMeta) -> Result<(), InferError> {
    let problem = match () {
        () if plan.method != Method::Layers => "`infer.method` is \"neighborhoods\"",
        () if plan.targets != InferTargets::All => "`infer.targets` is a list",
        () if plan.compare_sampling => "`infer.compare_sampling` is true",
        () if !plan.columns.is_empty() => "`infer.columns` copies columns of the node table",
        () if plan.rows != RowFormat::F32 => "`infer.rows` keeps rows in 16 bits",
        () if matches!(features, FeatureMeta::Sparse { .. }) => SPARSE,
        () => return Ok(()),
    };
    Err(InferError::FullRun(problem))
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
            return Ok((rows, vec![Vec::new(); model.limits.len()]));
        }
        parent => parent,
    };
    let trained = &model.trained;
    let version = Version::new(after, trained, model.limits.clone());
    let (reach, mut rows) = parent.map_or((None, KeptRows::default()), |(reach, rows)| {
        (Some(reach), rows)
    });
    let arch = trained.model.architecture();
    let layers = 1..version.limits.len() + 1;
    let widths: Vec<usize> = layers.clone().map(|layer| arch.output_dim(layer)).collect();
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
            None => version.nodes.clone(),
        };
        if walk.is_some() && layer > model.embedding_layer && layer == version.limits.len() {
            // Their predictions are written with their embeddings.
            listed.extend_from_slice(rows.changed(model.embedding_layer));
            listed.sort_unstable();
            listed.dedup();
        }
        let new = version.run(layer, &listed, &rows, threads)?;
        let mut changed = vec![false; after.end()];
        for (nodes, of_nodes) in new {
            for (row, &node) in listed[nodes].iter().enumerate() {
                changed[node.index()] = rows.set(layer, node, of_nodes.row(row));
            }
        }
        if let Some(walk) = &mut walk {
            walk.changed = changed;
        }
        computed.push(listed);
    }
    Ok((rows, computed))
}

/// Nodes that a thread looks at together.
const LISTED_PIECE: usize = 1 << 13;

/// Tells whether the rows of all nodes stay, and their places in segments too.
fn reaches_nothing(reach: &Reach) -> bool {
    !reach.moves_ids && reach.layers.iter().all(Vec::is_empty)
}

/// The nodes that changes reach, layer by layer.
struct Walk<'a> {
    reach: &'a Reach,
    /// By number: in-edges or degrees of the node differ.
    seeds: Vec<bool>,
    /// By number: the row before the layer differs.
    changed: Vec<bool>,
    degrees: Degrees,
    /// Hubs are cut into other segments.
    moves_segments: bool,
    /// Rows of such hubs were computed in this layer or an earlier one.
    has_moved: bool,
}

impl<'a> Walk<'a> {
    fn new(version: &Version<'_>, reach: &'a Reach) -> Self {
        let marked = |nodes: &mut dyn Iterator<Item = NodeIdx>| {
            let mut marks = vec![false; version.after.end()];
            nodes.for_each(|node| marks[node.index()] = true);
            marks
        };
        Self {
            reach,
            seeds: marked(&mut reach.in_edges.iter().map(|of| of.dst)),
            changed: marked(&mut reach.layers[0].iter().copied()),
            degrees: degrees(version.trained.model.architecture()),
            moves_segments: reach.moves_ids,
            has_moved: false,
        }
    }

    /// Tells whether the in-edges or degrees of a node that a layer reads differ.
    fn is_seed(&self, node: NodeIdx, limit: usize) -> bool {
        let reads_degrees = self.degrees != Degrees::None;
        let in_edges = &self.reach.in_edges;
        let found = || in_edges.binary_search_by_key(&node, |of| of.dst).ok();
        let differs = |at: usize| in_edges[at].first.is_some_and(|first| first < limit);
        self.seeds[node.index()] && (reads_degrees || found().is_some_and(differs))
    }

    /// Lists the nodes whose rows a layer computes.
    fn listed(
        &mut self,
        version: &Version<'_>,
        layer: usize,
        threads: &Threads,
    ) -> Result<Vec<NodeIdx>, InferError> {
        let (after, limit) = (version.after, version.limits[layer - 1]);
        let is_moved = |node| self.moves_segments && version.is_hub(node, limit);
        // The reached nodes leave out what such hubs reach, in this layer and all later ones.
        self.has_moved |= self.moves_segments && version.nodes.iter().any(|&node| is_moved(node));
        let some = match self.has_moved {
            true => &version.nodes,
            false => &self.reach.layers[layer],
        };
        let reads = |node: NodeIdx| {
            let at = node.index();
            self.changed[at] || (self.degrees == Degrees::Sources && self.seeds[at])
        };
        let is_listed = |&node: &NodeIdx| {
            let own = self.is_seed(node, limit) || reads(node) || is_moved(node);
            own || after.has_source(node, limit, reads)
        };
        let pieces: Vec<&[NodeIdx]> = some.chunks(LISTED_PIECE).collect();
        let done = Mutex::new(vec![Vec::new(); pieces.len()]);
        threads.run(
            pieces.len(),
            || (),
            |(), piece| {
                let nodes = pieces[piece].iter().copied();
                let listed: Vec<NodeIdx> = nodes.filter(is_listed).collect();
                done.lock().unwrap_or_else(PoisonError::into_inner)[piece] = listed;
                Ok(())
            },
        )?;
        let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(done.concat())
    }
}

impl<'a> Version<'a> {
    fn new(after: &'a After, trained: &'a TrainedModel, limits: Vec<usize>) -> Self {
        let nodes = after.nodes();
        let mut places = vec![0; after.end()];
        for (place, node) in nodes.iter().enumerate() {
            places[node.index()] = narrow(place);
        }
        Self {
            after,
            trained,
            limits,
            placement: Placement::new(&[nodes.len() as u64], 1),
            nodes,
            places,
        }
    }

    fn in_degree(&self, node: NodeIdx) -> u32 {
        u32::try_from(self.after.in_degree(node)).expect("bounded as in a store")
    }

    fn is_hub(&self, node: NodeIdx, limit: usize) -> bool {
        is_hub(self.in_degree(node), limit)
    }

    /// Computes a layer's rows of listed nodes, block by block, from the rows of the layer before.
    fn run(
        &self,
        layer: usize,
        listed: &[NodeIdx],
        rows: &KeptRows,
        threads: &Threads,
    ) -> Result<Vec<(Range<usize>, Dense)>, InferError> {
        let limit = self.limits[layer - 1];
        let blocks = cut_blocks(0..listed.len(), |at| {
            (self.in_degree(listed[at]) as usize).min(limit)
        });
        let done = Mutex::new(Vec::with_capacity(blocks.len()));
        let conv = || self.trained.model.layer_slice(layer, false);
        threads.run(blocks.len(), conv, |conv, at| {
            let of_block = self.block(conv, layer, &listed[blocks[at].clone()], rows)?;
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((blocks[at].clone(), of_block));
            Ok(())
        })?;
        Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Computes a layer's rows of the nodes of a block.
    fn block(
        &self,
        conv: &LayerSlice<'_>,
        layer: usize,
        nodes: &[NodeIdx],
        rows: &KeptRows,
    ) -> Result<Dense, InferError> {
        let limit = self.limits[layer - 1];
        let mut local = Local::new(nodes);
        let (mut in_offset, mut edges) = (vec![0], Vec::new());
        for &node in nodes {
            // Hubs are aggregated in segments.
            let limit = if self.is_hub(node, limit) { 0 } else { limit };
            edges.extend(self.after.in_edges(node, limit));
            in_offset.push(narrow(edges.len()));
        }
        let in_src: Vec<u32> = edges.iter().map(|edge| local.add(edge.src)).collect();
        let edge_dim = self.trained.model.architecture().edge_dim;
        let data = RangeData {
            first: 0,
            in_offset,
            in_src,
            edge_weight: None,
            edge_feature: edge_dim.map(|cols| features(&edges, cols)),
            sampling: convert::sampling(self.after.store().meta().sampling),
        };
        let columns = self.columns(&local.nodes, nodes.len())?;
        let block = Block::of_range(data, &columns.into())?;
        let src = ready(self.projected(conv, layer, &local.nodes, rows)?)?;
        let own = self.own(conv, layer, nodes, rows)?;
        let mut of_block = conv.run(&block, &src, own)?;
        for (row, &node) in nodes.iter().enumerate() {
            if self.is_hub(node, limit) {
                let values = self.hub(conv, layer, node, rows)?;
                of_block.values[row * of_block.cols..][..of_block.cols].copy_from_slice(&values);
            }
        }
        match first_not_finite(&of_block.values) {
            None => Ok(of_block),
            Some(at) => Err(InferError::NotFinite {
                dir: self.trained.record.dir.clone(),
                layer,
                id: self.after.display(nodes[at / of_block.cols]),
            }),
        }
    }

    /// Computes a layer's row of a hub: its in-edges are aggregated in the segments of a full run.
    fn hub(
        &self,
        conv: &LayerSlice<'_>,
        layer: usize,
        node: NodeIdx,
        rows: &KeptRows,
    ) -> Result<Vec<f32>, InferError> {
        let edges = self.after.in_edges(node, usize::MAX);
        let mut local = Local::new(&[node]);
        let srcs: Vec<NodeIdx> = edges.iter().map(|edge| edge.src).collect();
        srcs.iter().for_each(|&src| {
            local.add(src);
        });
        let columns = self.columns(&local.nodes, 1)?;
        let projected = self.projected(conv, layer, &local.nodes, rows)?;
        let (aggregation, count) = (conv.aggregation()?, num_segments(self.in_degree(node)));
        let edge_dim = self.trained.model.architecture().edge_dim;
        let feature = edge_dim.map(|cols| features(&edges, cols).values);
        let read = ReadColumns {
            edge_dim,
            edge_weight: false,
        };
        let list = InEdges {
            src: &srcs,
            weight: None,
            feature: feature.as_deref(),
        };
        let segmented = Segmented::of(list, count, read, |src| {
            let place = NodeIdx::from_raw(self.places[src.index()]);
            self.placement.segment(place, count)
        });
        let scores = projected.scores.as_ref();
        let src = SrcRows {
            rows: RowValues::F32(&projected.rows.values),
            scores: scores.map(|scores| RowValues::F32(&scores.values)),
            nodes: &columns,
        };
        let own = || self.own(conv, layer, &[node], rows);
        let query = conv.query(scores.map(|scores| scores.row(0)), own()?)?;
        let adds_loop = aggregation.adds_loop();
        let mean = adds_loop.then(|| segmented.mean_feature(node)).flatten();
        let mut states: Vec<Vec<f32>> = Vec::new();
        states.extend(aggregation.own_state(0, mean, src, &query));
        for segment in 0..count {
            let of_segment =
                segmented.pick(segment, adds_loop.then_some(node), |of| local.place[&of]);
            if !of_segment.src.is_empty() {
                states.push(aggregation.state(&of_segment, src, &query));
            }
        }
        let in_order: Vec<&[f32]> = states.iter().map(|state| &state[..]).collect();
        let merged = aggregation.merge(0, &in_order, &columns);
        let data = RangeData {
            in_offset: vec![0, 0],
            edge_feature: edge_dim.map(|cols| features(&[], cols)),
            sampling: convert::sampling(self.after.store().meta().sampling),
            ..RangeData::default()
        };
        let block = Block::of_range(data, &columns.into())?;
        let done = conv.run_aggregated(&block, &ready(projected)?, own()?, merged)?;
        Ok(done.values)
    }

    /// Returns the columns of some nodes that a model reads; those of nodes after the first `num_dst`
    /// are 0 if it does not read degrees of sources.
    fn columns(&self, nodes: &[NodeIdx], num_dst: usize) -> Result<NodeColumns, InferError> {
        let num_read = match degrees(self.trained.model.architecture()) {
            Degrees::Sources => nodes.len(),
            Degrees::None | Degrees::Own => num_dst,
        };
        let read = || nodes[..num_read].iter();
        let mut in_degree: Vec<u32> = read().map(|&node| self.in_degree(node)).collect();
        let loops = |&node: &NodeIdx| {
            u32::try_from(self.after.self_loops(node)).expect("at most the in-degree")
        };
        let mut self_loops: Vec<u32> = read().map(loops).collect();
        in_degree.resize(nodes.len(), 0);
        self_loops.resize(nodes.len(), 0);
        Ok(NodeColumns::new(in_degree, None, Some(self_loops), None)?)
    }

    /// Returns the rows of some nodes before a layer.
    fn before(
        &self,
        layer: usize,
        nodes: &[NodeIdx],
        rows: &KeptRows,
    ) -> Result<Dense, InferError> {
        if layer > 1 {
            let cols = self.trained.model.architecture().input_dim(layer);
            return Ok(rows.gather(layer - 1, nodes, cols));
        }
        let meta = self.after.store().meta().graph.types[0].features;
        let mut features = Features::with_capacity(meta, nodes.len());
        for &node in nodes {
            self.after.features_into(node, &mut features);
        }
        let mut input = convert::input(features, nodes.len());
        self.trained.transform.apply(&mut input)?;
        Ok(convert::dense(input))
    }

    /// Returns the rows of some nodes as a layer aggregates them.
    fn projected(
        &self,
        conv: &LayerSlice<'_>,
        layer: usize,
        nodes: &[NodeIdx],
        rows: &KeptRows,
    ) -> Result<Projected<Dense>, InferError> {
        let before = self.before(layer, nodes, rows)?;
        if conv.projects() {
            return Ok(conv.project(ReadyInput::new(Input::Dense(before))?)?);
        }
        Ok(Projected {
            rows: before,
            scores: None,
        })
    }

    /// Returns the rows of dst nodes before a layer, if it reads them.
    fn own(
        &self,
        conv: &LayerSlice<'_>,
        layer: usize,
        nodes: &[NodeIdx],
        rows: &KeptRows,
    ) -> Result<Option<ReadyInput>, InferError> {
        if !conv.reads_own() {
            return Ok(None);
        }
        let own = self.before(layer, nodes, rows)?;
        Ok(Some(ReadyInput::new(Input::Dense(own))?))
    }
}

impl Local {
    fn new(nodes: &[NodeIdx]) -> Self {
        let mut local = Self {
            nodes: Vec::with_capacity(nodes.len()),
            place: BTreeMap::new(),
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

fn features(edges: &[KeptEdge], cols: usize) -> Dense {
    let values = edges.iter().flat_map(|edge| &edge.feature);
    Dense {
        rows: edges.len(),
        cols,
        values: values.copied().collect(),
    }
}

fn ready(of: Projected<Dense>) -> Result<Projected<ReadyInput>, InferError> {
    let ready = |rows: Dense| ReadyInput::new(Input::Dense(rows));
    Ok(Projected {
        rows: ready(of.rows)?,
        scores: of.scores.map(ready).transpose()?,
    })
}
