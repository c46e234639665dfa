//! What changes reach: samples that differ, and the nodes of each hop and layer.

mod sent;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cluster::{Peer, run_workers};
use schemas::NodeIdx;
use serde::{Deserialize, Serialize};

use crate::in_edges::{Draws, Edits, KeptEdges};
use crate::numbers::{EdgeChange, EdgeKey, Night, NodeChange, Numbers};
use crate::out_edges::{OutEdge, OutEdges};
use crate::overlay::ByInEdges;
use crate::walk::run_dataflow;
use crate::{DeltaError, Overlay};

/// Which in-degrees a model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Degrees {
    /// None.
    None,
    /// Those of the nodes that it computes.
    Own,
    /// Also those of their sources, as GCN does.
    Sources,
}

/// The in-edges that hops and layers read.
#[derive(Clone, Debug)]
pub struct ReachPlan {
    /// `[hops][relations]`, in-edges kept of a node at each hop, from hop 1.
    pub hops: Vec<Vec<usize>>,
    /// `[layers][relations]`, in-edges of a node that each layer reads, from layer 1.
    pub layers: Vec<Vec<usize>>,
    /// In-degrees that the layers read.
    pub degrees: Degrees,
    /// Whether the layers read the sums of the weights of in-edges where they read in-degrees.
    pub weights: bool,
    /// A layer that reads all of more in-edges than this of a node aggregates them in another way.
    pub hub_edges: usize,
}

/// In-edges of a node that differ from the parent's in their first ones, their number, or the
/// number of self-loops; or that were edited, where the sums of their weights are read.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedInEdges {
    /// Position of the relation.
    pub relation: usize,
    /// The node.
    pub dst: NodeIdx,
    /// First rank at which they differ; none if only the number of in-edges or self-loops does, or
    /// the sum of their weights. It is 0 if a layer aggregates them in another way than before.
    pub first: Option<usize>,
    /// The in-edges after the changes, as many as the out-edges have.
    pub kept: Arc<KeptEdges>,
}

/// What changes reach.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reach {
    /// Sorted by relation and node.
    pub in_edges: Vec<ChangedInEdges>,
    /// `[hops + 1]`: nodes whose neighbourhoods of 0, 1, ... hops differ, degrees aside. The last
    /// entry lists the targets whose graph features differ.
    pub hops: Vec<Vec<NodeIdx>>,
    /// `[layers + 1]`: nodes whose rows may differ after each layer; layer 0 is the input.
    pub layers: Vec<Vec<NodeIdx>>,
    /// Whether nodes were added or removed, so that others have other places among the ids.
    pub moves_ids: bool,
}

/// Why a node is reached by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Seed {
    /// It is new, or its features differ.
    Input,
    /// Its number of in-edges or of self-loops differs, or the sum of their weights may.
    Degree,
    /// Its in-edges of a relation differ from a rank on.
    Sample { relation: usize, first: usize },
}

/// The changes of in-edges of one worker's nodes, night by night.
struct Edited<'a> {
    numbers: &'a Numbers,
    out: &'a OutEdges,
    edits: ByInEdges<Arc<Edits>>,
    kept: ByInEdges<Stages>,
    inputs: BTreeMap<NodeIdx, isize>,
    /// Nodes that some night removes. Only their out-edges are counted, since all edits since the
    /// first run count.
    removed: BTreeSet<NodeIdx>,
    plan: &'a ReachPlan,
    /// By relation: the limits of all hops and layers, each once.
    limits: Vec<Vec<usize>>,
}

/// The first in-edges of a node: in the store, in the parent, and after the nights so far.
struct Stages {
    stored: Arc<KeptEdges>,
    parent: Arc<KeptEdges>,
    now: Arc<KeptEdges>,
    /// Whether the sum of their weights may differ from the parent's, and is read.
    may_weigh_otherwise: bool,
}

/// What the changes make of one worker's nodes.
#[derive(Default)]
struct OwnReach {
    reach: Reach,
    edits: ByInEdges<Arc<Edits>>,
    /// In-edges after the changes, sorted by relation and node, and whether they differ from those in
    /// the store.
    kept: Vec<((usize, NodeIdx), Arc<KeptEdges>, bool)>,
}

/// Changes of the collections of the dataflow in one night.
#[derive(Default)]
pub(crate) struct Updates {
    pub(crate) seeds: Vec<((u32, Seed), isize)>,
    pub(crate) out_edges: Vec<((u32, OutEdge), isize)>,
    /// Change of the number of out-edges of each source that some night removes.
    pub(crate) out_degrees: BTreeMap<NodeIdx, i64>,
}

impl ReachPlan {
    /// Returns the first rank at which the in-edges of a relation of a node differ from those before.
    fn first_difference(
        &self,
        relation: usize,
        (before, after): (&KeptEdges, &KeptEdges),
    ) -> Option<usize> {
        let is_hub = |kept: &KeptEdges, limit: usize| {
            kept.in_degree > self.hub_edges as u64 && kept.in_degree <= limit as u64
        };
        let mut limits = self.layers.iter().map(|limits| limits[relation]);
        match limits.any(|limit| is_hub(before, limit) != is_hub(after, limit)) {
            true => Some(0),
            false => before.first_difference(after),
        }
    }

    /// Returns the limits of all hops and layers, each once, for each relation.
    fn limits(&self) -> Vec<Vec<usize>> {
        let mut limits: Vec<BTreeSet<usize>> = Vec::new();
        for of_step in self.hops.iter().chain(&self.layers) {
            limits.resize(of_step.len(), BTreeSet::new());
            let of_relations = limits.iter_mut().zip(of_step);
            for (all, limit) in of_relations {
                all.insert(*limit);
            }
        }
        let of_relations = limits.into_iter();
        of_relations.map(|of| of.into_iter().collect()).collect()
    }

    /// Returns how many in-edges of a node the plan reads, for each relation.
    pub fn keep(&self) -> Vec<usize> {
        let all = self.hops.iter().chain(&self.layers);
        let mut keep = Vec::new();
        for limits in all {
            keep.resize(limits.len(), 0);
            keep.iter_mut()
                .zip(limits)
                .for_each(|(most, &limit)| *most = limit.max(*most));
        }
        keep
    }
}

/// Finds what the changes of some nights reach in their parent, and the overlay after them, in each
/// process. `numbers` has applied all of them, and `out` holds the store's first in-edges, as many
/// as the plan reads.
///
/// # Errors
///
/// If an edge that is not there is deleted, a removed node still has edges, or a split has no pair.
///
/// # Panics
///
/// If `out` holds fewer in-edges than the plan reads.
pub fn reach(
    numbers: &Arc<Numbers>,
    nights: Vec<Night>,
    out: &OutEdges,
    plan: &ReachPlan,
) -> Result<(Reach, Overlay), DeltaError> {
    numbers.check_splits()?;
    let enough = plan.keep();
    let mut both = enough.iter().zip(&out.keep);
    assert!(
        both.all(|(least, kept)| least <= kept),
        "out-edges are too few"
    );
    if nights.iter().all(Night::is_empty) {
        let nothing = Reach {
            hops: vec![Vec::new(); plan.hops.len() + 1],
            layers: vec![Vec::new(); plan.layers.len() + 1],
            ..Reach::default()
        };
        return Ok((nothing, numbers.overlay()));
    }
    let (nights, plan) = (Arc::new(nights), plan.clone());
    let (shared, edges) = (Arc::clone(numbers), out.clone());
    let parts = run_workers(numbers.store().cluster(), move |peer| {
        let own = reach_own(peer, &shared, &nights, &edges, &plan)?;
        sent::exchange(peer, own)
    })?;
    let (mut all, mut overlay) = (Reach::default(), numbers.overlay());
    all.moves_ids = numbers.moves_ids();
    for own in parts.into_iter().flatten() {
        let part = own.reach;
        overlay.edits.extend(own.edits);
        for (key, kept, differs) in own.kept {
            match differs {
                true => overlay.kept.insert(key, kept),
                false => overlay.kept.remove(&key),
            };
        }
        all.in_edges.extend(part.in_edges);
        for (steps, more) in [(&mut all.hops, part.hops), (&mut all.layers, part.layers)] {
            steps.resize(more.len(), Vec::new());
            steps
                .iter_mut()
                .zip(more)
                .for_each(|(nodes, more)| nodes.extend(more));
        }
    }
    all.in_edges.sort_by_key(|of| (of.relation, of.dst));
    for nodes in all.hops.iter_mut().chain(&mut all.layers) {
        nodes.retain(|&node| !numbers.is_removed(node));
        nodes.sort_unstable();
    }
    Ok((all, overlay))
}

/// [`reach`] of the nodes of one worker.
fn reach_own(
    peer: &mut Peer<'_>,
    numbers: &Arc<Numbers>,
    nights: &[Night],
    out: &OutEdges,
    plan: &ReachPlan,
) -> Result<OwnReach, DeltaError> {
    let mut edited = Edited {
        numbers,
        out,
        edits: ByInEdges::new(),
        kept: ByInEdges::new(),
        inputs: BTreeMap::new(),
        removed: removed(nights),
        plan,
        limits: plan.limits(),
    };
    let of_parent = edited.of_parent(peer.index());
    let mut out_degrees = BTreeMap::new();
    exchange_degrees(peer, numbers, &of_parent, &mut out_degrees)?;
    let mut updates = vec![of_parent];
    for night in nights {
        let applied = edited.apply(night, peer.index());
        let applied = peer.agree(applied)?;
        exchange_degrees(peer, numbers, &applied, &mut out_degrees)?;
        let checked = edited.check_removed(night, peer.index(), &out_degrees);
        peer.agree(checked)?;
        updates.push(applied);
    }
    let mut own = OwnReach {
        reach: run_dataflow(peer, numbers, updates, out, plan),
        edits: edited.edits,
        kept: Vec::new(),
    };
    let mut stages_of: Vec<((usize, NodeIdx), Stages)> = edited.kept.into_iter().collect();
    stages_of.sort_unstable_by_key(|of| of.0);
    for ((relation, dst), stages) in stages_of {
        let differs = |old: &KeptEdges| {
            let first = plan.first_difference(relation, (old, &stages.now));
            (first, first.is_some() || !old.has_degree_of(&stages.now))
        };
        let ((first, is_changed), (_, differs)) =
            (differs(&stages.parent), differs(&stages.stored));
        if is_changed || stages.may_weigh_otherwise {
            let kept = Arc::clone(&stages.now);
            let changed = ChangedInEdges {
                relation,
                dst,
                first,
                kept,
            };
            own.reach.in_edges.push(changed);
        }
        own.kept.push(((relation, dst), stages.now, differs));
    }
    Ok(own)
}

/// Lists the nodes that some nights remove.
fn removed(nights: &[Night]) -> BTreeSet<NodeIdx> {
    let all = nights.iter().flat_map(|night| &night.nodes);
    let removed = all.filter(|(_, change)| matches!(change, NodeChange::Removed(..)));
    removed.map(|&(node, _)| node).collect()
}

/// Sends changes of out-degrees to the owners of the nodes, and adds up those of own nodes.
fn exchange_degrees(
    peer: &mut Peer<'_>,
    numbers: &Numbers,
    updates: &Updates,
    sums: &mut BTreeMap<NodeIdx, i64>,
) -> Result<(), DeltaError> {
    let mut outgoing = vec![Vec::new(); peer.peers()];
    for (&node, &more) in &updates.out_degrees {
        outgoing[numbers.owner(node)].push((node, more));
    }
    let received = peer.shuffle(outgoing.into_iter().enumerate().map(Ok::<_, DeltaError>))?;
    for (node, more) in received.into_iter().flat_map(|(_, theirs)| theirs) {
        *sums.entry(node).or_insert(0) += more;
    }
    Ok(())
}

fn signed(num: usize) -> i64 {
    i64::try_from(num).expect("edges of two nodes are few")
}

impl Updates {
    /// Replaces the out-edges of one list of in-edges by those of another, which differ in the edges
    /// of edited sources and where the lists end. Other edges are replaced only if a limit includes
    /// one of their ranks alone.
    fn change_out_edges(
        &mut self,
        (relation, dst): (usize, NodeIdx),
        (before, after): (&KeptEdges, &KeptEdges),
        (edits, limits): (&Edits, &[usize]),
    ) {
        let Some(first) = before.first_difference(after) else {
            return;
        };
        let mut change = |src: NodeIdx, rank: usize, diff: isize| {
            let out_edge = OutEdge::new(dst, relation, rank);
            self.out_edges.push(((src.raw(), out_edge), diff));
        };
        let staying = [(before, -1), (after, 1)].map(|(kept, diff)| {
            let mut staying = Vec::new();
            for (rank, &src) in kept.src.iter().enumerate().skip(first) {
                match edits.contains(src) {
                    true => change(src, rank, diff),
                    false => staying.push((src, rank)),
                }
            }
            staying
        });
        // They are the same edges, but for the last ones of the longer list.
        let longest = staying[0].len().max(staying[1].len());
        for at in 0..longest {
            let both = [0, 1].map(|of: usize| staying[of].get(at));
            if let [Some((_, old)), Some((_, new))] = both
                && limits.iter().all(|limit| (old < limit) == (new < limit))
            {
                continue;
            }
            for (found, diff) in both.into_iter().zip([-1, 1]) {
                if let Some(&(src, rank)) = found {
                    change(src, rank, diff);
                }
            }
        }
    }
}

impl Edited<'_> {
    /// Returns what the parent has made of this worker's nodes.
    fn of_parent(&self, worker: usize) -> Updates {
        let (parent, mut updates) = (self.numbers.parent(), Updates::default());
        let draws = |relation| Draws::new(self.numbers, relation, self.out.keep[relation]);
        let is_own = |dst: NodeIdx| self.numbers.owner(dst) == worker;
        let edited = parent.edits.iter().filter(|_| !self.removed.is_empty());
        for (&(relation, dst), edits) in edited.filter(|(key, _)| is_own(key.1)) {
            for (src, edges) in edits.iter().filter(|(src, _)| self.removed.contains(src)) {
                let stored = draws(relation).num_stored(dst, src);
                let more = signed(edges.len()) - signed(stored);
                *updates.out_degrees.entry(src).or_insert(0) += more;
            }
        }
        for (&(relation, dst), kept) in parent.kept.iter().filter(|(key, _)| is_own(key.1)) {
            let stored = draws(relation).kept(dst);
            let edits = &parent.edits[&(relation, dst)];
            let how = (&**edits, &self.limits[relation][..]);
            updates.change_out_edges((relation, dst), (&stored, kept), how);
        }
        updates
    }

    /// Applies the changes of a night to this worker's nodes.
    fn apply(&mut self, night: &Night, worker: usize) -> Result<Updates, DeltaError> {
        let mut updates = Updates::default();
        let own = night
            .nodes
            .iter()
            .filter(|(node, _)| self.numbers.owner(*node) == worker);
        for &(node, change) in own {
            let is_changed = isize::from(change == NodeChange::Input);
            let was_changed = self.inputs.insert(node, is_changed).unwrap_or(0);
            let seed = (node.raw(), Seed::Input);
            updates.seeds.push((seed, is_changed - was_changed));
        }
        let of_one_dst = |(a, _): &(EdgeKey, _), (b, _): &(EdgeKey, _)| (a.0, a.1) == (b.0, b.1);
        for of_dst in night.edges.chunk_by(of_one_dst) {
            if self.numbers.owner(of_dst[0].0.1) == worker {
                self.apply_edges(night, of_dst, &mut updates)?;
            }
        }
        Ok(updates)
    }

    /// Applies the changes of the in-edges of one node and relation.
    fn apply_edges(
        &mut self,
        night: &Night,
        changes: &[(EdgeKey, EdgeChange)],
        updates: &mut Updates,
    ) -> Result<(), DeltaError> {
        let (relation, dst, _) = changes[0].0;
        let mut draws = Draws::new(self.numbers, relation, self.out.keep[relation]);
        let parent = self.numbers.parent();
        let edits = self.edits.entry((relation, dst));
        let edits = edits.or_insert_with(|| {
            let of_parent = parent.edits.get(&(relation, dst));
            of_parent.cloned().unwrap_or_default()
        });
        let stages = self.kept.entry((relation, dst)).or_insert_with(|| {
            let stored = Arc::new(draws.kept(dst));
            let parent = parent.kept.get(&(relation, dst)).unwrap_or(&stored);
            Stages {
                parent: Arc::clone(parent),
                now: Arc::clone(parent),
                stored,
                may_weigh_otherwise: false,
            }
        });
        for &((_, _, src), ref change) in changes {
            let known = edits.get(src).map(Vec::len);
            let count = known.unwrap_or_else(|| draws.num_stored(dst, src));
            if change.edges.is_empty() && count == 0 {
                let [from, to] = [src, dst].map(|node| self.numbers.display(node));
                let problem = format!("no edge leads from {from} to {to} to delete");
                return Err(night.edge_error(change, problem));
            }
            if self.removed.contains(&src) {
                let more = signed(change.edges.len()) - signed(count);
                *updates.out_degrees.entry(src).or_insert(0) += more;
            }
        }
        let changed = changes.iter().map(|(key, change)| (key.2, &change.edges));
        *edits = Arc::new(edits.with(&changed.collect::<Vec<_>>()));
        let after = Arc::new(draws.edited(dst, &stages.stored, edits));
        let seeds = |kept: &KeptEdges, may_weigh_otherwise: bool| {
            let first = self.plan.first_difference(relation, (&stages.parent, kept));
            let sample = first.map(|first| Seed::Sample { relation, first });
            let has_degree = kept.has_degree_of(&stages.parent);
            let degree = (may_weigh_otherwise || !has_degree).then_some(Seed::Degree);
            let seeds = sample.into_iter().chain(degree);
            seeds.map(|seed| (dst.raw(), seed))
        };
        let removed = seeds(&stages.now, stages.may_weigh_otherwise).map(|seed| (seed, -1));
        updates.seeds.extend(removed);
        stages.may_weigh_otherwise = self.plan.weights;
        let added = seeds(&after, stages.may_weigh_otherwise).map(|seed| (seed, 1));
        updates.seeds.extend(added);
        let how = (&**edits, &self.limits[relation][..]);
        updates.change_out_edges((relation, dst), (&stages.now, &after), how);
        stages.now = after;
        Ok(())
    }

    /// Checks that the removed nodes of a night have no edges.
    fn check_removed(
        &self,
        night: &Night,
        worker: usize,
        out_degrees: &BTreeMap<NodeIdx, i64>,
    ) -> Result<(), DeltaError> {
        let relations = &self.numbers.store().meta().graph.relations;
        for &(node, change) in &night.nodes {
            let NodeChange::Removed(type_idx, row) = change else {
                continue;
            };
            if self.numbers.owner(node) != worker {
                continue;
            }
            let leading = relations
                .iter()
                .enumerate()
                .filter(|(_, of)| of.to == type_idx);
            let num_in: u64 = leading
                .map(|(relation, _)| match self.kept.get(&(relation, node)) {
                    Some(stages) => stages.now.in_degree,
                    None => self.numbers.in_degree(relation, node),
                })
                .sum();
            let slot = self.numbers.slot(node) as usize;
            let stored = self.out.of_worker(worker).out_degree(slot).cast_signed();
            let num_out = stored + out_degrees.get(&node).copied().unwrap_or(0);
            if num_in > 0 || num_out > 0 {
                let id = self.numbers.display(node);
                let problem = format!(
                    "node {id} is deleted, but {num_in} edges lead to it and {num_out} from it; \
                     delete them in the same night"
                );
                return Err(night.node_error(type_idx, row, problem));
            }
        }
        Ok(())
    }
}
