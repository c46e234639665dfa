//! Moves edges from the worker that reads them to the owner of their `dst`.

use crate::buckets::{Bucket, BucketLayout, EdgeBatch, EdgeBuckets, EdgeShape, SealedBuckets};
use crate::ends::{Ends, Resolved};
use crate::graphs::GraphsOfNodes;
use crate::hub::{HubCounts, HubPart, RankedColumns, Totals};
use crate::memory::{Budget, turn_bytes};
use crate::pair_set::PairSet;
use crate::plan::ListPlan;
use crate::sample::Ranker;
use crate::scatter::{CutMemory, Cutter, DanglingRows, Scatter, Takes, check_dangling};
use crate::units::OwnUnits;
use crate::{Placement, StoreError, StorePlan, TypePlacement};
use cluster::Peer;
use schemas::{EdgeRows, EdgeSource, LocalIdx, NodeIdx, Unit};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Greatest number of buckets of a worker's nodes: a batch of edges is split into this many runs.
const BUCKETS_MAX: usize = 512;

/// Least number of nodes in a bucket: few enough that their in-edges stay in the cache while they
/// are ranked.
const BUCKET_NODES: usize = 1 << 11;

/// In-edges of a relation and of the nodes of one partition, not ranked yet.
pub(crate) struct OwnedEdges {
    /// Position of the relation.
    pub(crate) relation: usize,
    pub(crate) buckets: SealedBuckets,
    /// Parts of the re-indexed nodes of this partition, by place; their edges in `buckets` are
    /// ignored.
    pub(crate) hubs: BTreeMap<LocalIdx, HubPart>,
    /// In-edges that each worker received.
    pub(crate) received_by_worker: Vec<u64>,
    /// Rows of the table that were left out because an end is no node; 0 for a reverse relation.
    pub(crate) dropped_rows: u64,
    /// In-edges that were left out because they equal a pair.
    pub(crate) left_out: u64,
    /// Which edges of the table these are.
    pub(crate) takes: Takes,
}

/// What edges are checked against.
#[derive(Clone, Copy)]
pub(crate) struct EdgeRules<'a> {
    pub(crate) ends: &'a Ends,
    /// Pairs whose edges are left out.
    pub(crate) leaving: Option<&'a Arc<PairSet>>,
    /// Which edges of the relations of pairs are taken.
    pub(crate) takes: Takes,
    /// The graph of each node, where graphs are the targets.
    pub(crate) graphs: Option<&'a Arc<GraphsOfNodes>>,
}

impl<'a> EdgeRules<'a> {
    pub(crate) fn new(
        ends: &'a Ends,
        leaving: Option<&'a Arc<PairSet>>,
        graphs: Option<&'a Arc<GraphsOfNodes>>,
    ) -> Self {
        Self {
            ends,
            leaving,
            takes: Takes::Messages,
            graphs,
        }
    }
}

/// A relation whose edges are exchanged, and what ranking them needs.
struct Route<'a> {
    relation: usize,
    cutter: Cutter<'a>,
    lists: Vec<ListPlan>,
}

/// Reads the edges of a source and sends each to the owner of its `dst`; edges of hubs are spread
/// over all workers first, if no list keeps all. Returns the in-edges of each relation.
///
/// Hubs are detected while edges are exchanged. The owner of a hub forwards the edges that it
/// received before, so that in the end each worker has all parallel edges of its share, by input
/// row.
///
/// # Errors
///
/// If a table cannot be read, a value cannot be used, or an end is no node (unless such edges are
/// dropped), or the ends are nodes of two graphs.
pub(crate) fn place_edges(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    source: &EdgeSource,
    work: OwnUnits,
    rules: EdgeRules<'_>,
    placement: &Placement,
) -> Result<Vec<OwnedEdges>, StoreError> {
    let ends = rules.ends;
    let routes = routes(plan, source, ends, placement);
    let cutters: Vec<Cutter<'_>> = routes.iter().map(|route| route.cutter).collect();
    // A tenth of the memory is for edges that are forwarded.
    let bytes_max = turn_bytes(plan.memory_budget) / plan.workers / 10;
    let mut scatters = scatters(plan, source, work, &routes, rules);
    let mut memory = (Resolved::default(), CutMemory::default());
    let outgoing = edge_rows(source, work).flat_map(|item| match item {
        Ok(tables) => scatter_rows(plan, source, &tables, (ends, &mut memory), &mut scatters),
        Err(e) => vec![Err(e)],
    });
    let budget = Budget::new(9 * bytes_max);
    let received = exchange(peer, outgoing, &cutters, &budget, &plan.dir)?;
    let scatters = scatters.into_iter().map(|of| (of.dangling, of.counts));
    let (dangling, counts): (Vec<DanglingRows>, Vec<HubCounts>) = scatters.unzip();
    let dropped = check_all_dangling(peer, plan, &routes, dangling)?;
    let forwarded_budget = Budget::new(bytes_max);
    let mut owned = Vec::with_capacity(routes.len());
    let per_relation = routes.iter().zip(counts).zip(received).zip(dropped);
    for (((route, of_hubs), own), (dropped_rows, left_out)) in per_relation {
        let reindexed = of_hubs.reindexed(peer)?;
        let mut num_edges = own.num_edges();
        let mut buckets = peer.agree(own.seal())?;
        if !reindexed.is_empty() {
            // The relation is exchanged alone.
            let cutter = route.cutter.alone();
            let early = forward(&buckets, cutter, &reindexed, peer.index());
            let early = early.inspect(|(_, batch)| num_edges -= batch.num_edges());
            let forwarded = exchange(peer, early.map(Ok), &[cutter], &forwarded_budget, &plan.dir)?;
            let forwarded = forwarded.into_iter().next().expect("one relation");
            num_edges += forwarded.num_edges();
            buckets.merge(peer.agree(forwarded.seal())?);
        }
        let hubs = invert(peer, route, &buckets, &reindexed)?;
        owned.push(OwnedEdges {
            relation: route.relation,
            buckets,
            hubs,
            received_by_worker: peer.gather_all::<_, StoreError>(Ok(num_edges))?,
            dropped_rows,
            left_out,
            takes: rules.takes,
        });
    }
    Ok(owned)
}

/// Returns the buckets of each worker's nodes of a type.
pub(crate) fn layout_of(placement: &TypePlacement) -> BucketLayout {
    let most_local = placement.num_nodes().div_ceil(placement.workers());
    BucketLayout::new(most_local, BUCKET_NODES, BUCKETS_MAX)
}

/// Returns the relations of a source.
fn routes<'a>(
    plan: &'a StorePlan,
    source: &EdgeSource,
    ends: &Ends,
    placement: &'a Placement,
) -> Vec<Route<'a>> {
    let relations = source.relations().iter().enumerate();
    let route = |(member, &(relation, _)): (usize, &(usize, usize))| {
        let of_relation = &plan.graph.relations[relation];
        let placement = placement.of_type(of_relation.to);
        let layout = layout_of(placement);
        let edges = &of_relation.edges;
        let shape = EdgeShape {
            hasher: ends.hasher(of_relation),
            is_weighted: edges.has_weight(),
            dim: edges.feature_dim().unwrap_or(0),
        };
        Route {
            relation,
            cutter: Cutter::new(member, placement, layout, shape),
            lists: plan.lists(relation),
        }
    };
    relations.map(route).collect()
}

fn scatters<'a>(
    plan: &'a StorePlan,
    source: &EdgeSource,
    work: OwnUnits,
    routes: &[Route<'a>],
    rules: EdgeRules<'_>,
) -> Vec<Scatter<'a>> {
    let num_rows: u64 = work
        .of(source.units())
        .map(|unit| unit.num_rows as u64)
        .sum();
    let scatter = |route: &Route<'a>| {
        let (relation, cutter) = (&plan.graph.relations[route.relation], route.cutter);
        let placement = cutter.placement;
        let in_edges = num_rows * (1 + u64::from(relation.edges.undirected()));
        let (num_nodes, workers) = (placement.num_nodes(), placement.workers());
        // The owner of a hub gets all in-edges that a list keeps, so that nothing is gained if others
        // rank their shares.
        let keeps_all = route.lists.iter().any(|list| list.keep == usize::MAX);
        let counts = match keeps_all {
            true => HubCounts::none(),
            false => HubCounts::new(num_nodes, in_edges, plan.hub_threshold, workers),
        };
        let pairs = plan.graph.pairs.as_ref();
        let is_of_pairs = pairs.is_some_and(|of| of.relations().contains(&route.relation));
        let leaving = match (rules.leaving, rules.takes) {
            (Some(set), takes) if is_of_pairs => Some((Arc::clone(set), takes)),
            (_, Takes::Messages) => None,
            // No edge of another relation is left out.
            (_, Takes::LeftOut) => Some((Arc::default(), Takes::LeftOut)),
        };
        let graphs = rules.graphs.filter(|of| of.binds(relation));
        Scatter::new(relation, cutter, counts, (leaving, graphs.map(Arc::clone)))
    };
    routes.iter().map(scatter).collect()
}

/// Cuts the rows of each table of a source into batches, for each of its relations.
fn scatter_rows(
    plan: &StorePlan,
    source: &EdgeSource,
    tables: &[EdgeRows],
    (ends, (resolved, memory)): (&Ends, &mut (Resolved, CutMemory)),
    scatters: &mut [Scatter<'_>],
) -> Vec<Result<(usize, EdgeBatch), StoreError>> {
    let mut batches = Vec::new();
    for (table, rows) in tables.iter().enumerate() {
        let relations = source.relations().iter().zip(scatters.iter_mut());
        let mut is_resolved = false;
        for (&(relation, _), scatter) in relations.filter(|((_, of), _)| *of == table) {
            // The reverse of a relation has the same ends.
            if !is_resolved {
                ends.resolve(&plan.graph.relations[relation], rows, resolved);
                is_resolved = true;
            }
            let cut = scatter.batches(rows, resolved, memory);
            batches.extend(cut.into_iter().map(Ok));
        }
    }
    batches
}

/// Checks the rows with an end that no node has; returns their number for each relation, and the
/// number of in-edges that equal a pair.
fn check_all_dangling(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    routes: &[Route<'_>],
    mine: Vec<DanglingRows>,
) -> Result<Vec<(u64, u64)>, StoreError> {
    let all = peer.gather_all::<_, StoreError>(Ok(mine))?;
    let relations = routes.iter().enumerate().map(|(member, route)| {
        let relation = &plan.graph.relations[route.relation];
        let of_relation: Vec<DanglingRows> = all.iter().map(|of| of[member].clone()).collect();
        let left_out = of_relation.iter().map(|of| of.left_out).sum();
        // The rows of a reverse relation are those of its relation.
        if relation.reversed {
            return Ok((0, left_out));
        }
        let dropped_rows = check_dangling(&of_relation, &relation.edges)?;
        Ok((dropped_rows, left_out))
    });
    relations.collect()
}

/// Ranks the re-indexed nodes' in-edges that this worker has, and sends them to the owners; returns
/// the parts of this worker's nodes, merged as they arrive.
fn invert(
    peer: &mut Peer<'_>,
    route: &Route<'_>,
    buckets: &SealedBuckets,
    reindexed: &[NodeIdx],
) -> Result<BTreeMap<LocalIdx, HubPart>, StoreError> {
    let Cutter {
        placement, shape, ..
    } = route.cutter;
    let dim = shape.dim;
    let parts = rank_shares(buckets, dim, &route.lists, reindexed);
    let parts = parts.map(|part| Ok((placement.owner_and_place(part.node).0, part)));
    let hubs = Rc::new(RefCell::new(BTreeMap::<LocalIdx, HubPart>::new()));
    let (taken, places): (_, TypePlacement) = (Rc::clone(&hubs), placement.clone());
    let lists = route.lists.clone();
    peer.shuffle_each::<HubPart, StoreError>(parts, move |_, _, part| {
        let (_, place) = places.owner_and_place(part.node);
        match taken.borrow_mut().entry(place) {
            Entry::Vacant(place) => drop(place.insert(part)),
            Entry::Occupied(mut known) => known.get_mut().merge(&part, &lists, dim),
        }
        Ok(())
    })?;
    Ok(hubs.take())
}

/// Exchanges edges between all workers; returns those that this worker receives, for each relation.
/// Edges beyond the budget are kept in a file in `dir`.
fn exchange(
    peer: &mut Peer<'_>,
    outgoing: impl Iterator<Item = Result<(usize, EdgeBatch), StoreError>>,
    cutters: &[Cutter<'_>],
    budget: &Budget,
    dir: &Path,
) -> Result<Vec<EdgeBuckets>, StoreError> {
    let buckets = |of: &Cutter<'_>| EdgeBuckets::new(of.layout, of.shape, budget.clone(), dir);
    let buckets: Vec<EdgeBuckets> = cutters.iter().map(buckets).collect();
    let received = Rc::new(RefCell::new(buckets));
    let take = Rc::clone(&received);
    peer.shuffle_each::<EdgeBatch, StoreError>(outgoing, move |_, _, batch| {
        take.borrow_mut()[batch.relation as usize].take(batch)
    })?;
    Ok(received.take())
}

/// Cuts the edges of re-indexed nodes that this worker, their owner, has received into batches.
fn forward<'a>(
    buckets: &'a SealedBuckets,
    cutter: Cutter<'a>,
    reindexed: &[NodeIdx],
    worker: usize,
) -> impl Iterator<Item = (usize, EdgeBatch)> + use<'a> {
    let placement = cutter.placement;
    let mut is_reindexed = vec![false; placement.num_local(worker)];
    let places = reindexed
        .iter()
        .map(|&node| placement.owner_and_place(node));
    for (_, place) in places.filter(|&(owner, _)| owner == worker) {
        is_reindexed[place.index()] = true;
    }
    let mut memory = CutMemory::default();
    buckets.own_edges().flat_map(move |(first_row, own)| {
        memory.routed.clear();
        for (row, edge) in own.edges.iter().enumerate() {
            if is_reindexed[edge.own_dst().index()] {
                let dst = placement.node(worker, edge.own_dst());
                let hash = match &cutter.shape.hasher {
                    Some(hasher) => hasher.hash(edge.src, dst),
                    None => own.hash[row],
                };
                cutter.spread(row, edge.src, dst, hash, &mut memory.routed);
            }
        }
        let values = (own.weight, own.feature);
        cutter.cut((first_row, true), values, &mut memory)
    })
}

/// Returns the rows of each table of a source that this worker reads, batch by batch.
fn edge_rows<'a>(
    source: &'a EdgeSource,
    work: OwnUnits,
) -> impl Iterator<Item = Result<Vec<EdgeRows>, StoreError>> + use<'a> {
    type Rows<'a> = Box<dyn Iterator<Item = Result<Vec<EdgeRows>, StoreError>> + 'a>;
    work.of(source.units()).flat_map(|unit: Unit| -> Rows<'a> {
        match source.batches(&unit) {
            Ok(batches) => Box::new(batches.map(|item| Ok(item?))),
            Err(e) => Box::new(std::iter::once(Err(e.into()))),
        }
    })
}

/// Ranks this worker's share of each re-indexed node's in-edges, and cuts it to the number that
/// each list keeps.
fn rank_shares<'a>(
    buckets: &'a SealedBuckets,
    dim: usize,
    lists: &'a [ListPlan],
    reindexed: &[NodeIdx],
) -> impl Iterator<Item = HubPart> + use<'a> {
    let mut by_bucket = BTreeMap::<usize, Vec<NodeIdx>>::new();
    for &node in reindexed {
        let bucket = buckets.layout().hub(node);
        by_bucket.entry(bucket).or_default().push(node);
    }
    let (mut bucket, mut ranker, mut ranked) = (Bucket::default(), Ranker::default(), Vec::new());
    by_bucket.into_iter().flat_map(move |(b, nodes)| {
        buckets.gather_hubs(b, &nodes, &mut bucket);
        let mut parts = Vec::new();
        for (i, &node) in nodes.iter().enumerate() {
            let (edges, features) = bucket.node(i, dim);
            if edges.is_empty() {
                continue;
            }
            ranker.start();
            let ranked_lists = lists.iter().map(|list| {
                ranker.rank(edges, list.order, list.keep, &mut ranked);
                RankedColumns::from_ranked(&ranked, features, dim)
            });
            parts.push(HubPart {
                node,
                lists: ranked_lists.collect(),
                totals: Totals::of(node, edges),
            });
        }
        parts
    })
}
