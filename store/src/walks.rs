//! Random walks over the stored in-edges: the train pairs of a graph without labels.
//!
//! A pair is (start, visited node), as in the unsupervised loss of GraphSAGE (Hamilton et al., NIPS
//! 2017, section 3.2, equation 1). Walkers move between the workers that own the nodes, all by one
//! step at a time.

use crate::{Partition, Placement, StoreError};
use cluster::Peer;
use schemas::{LocalIdx, NodeIdx, PairsPlan, WalksSpec};
use serde::{Deserialize, Serialize};

/// Walks of a worker that are under way at once.
const WALKERS: usize = 1 << 18;

/// Visits that a worker receives before it joins equal ones.
const VISITS: usize = 1 << 20;

/// A pair of a walk with the number of its visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Visit {
    /// [`PairsPlan::hash`].
    pub hash: u64,
    /// The start of the walk.
    pub src: NodeIdx,
    /// The visited node.
    pub dst: NodeIdx,
    /// Number of visits.
    pub times: u32,
}

/// A walk on the worker that owns the node where it is.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Walker {
    start: NodeIdx,
    at: NodeIdx,
    /// Hash of the start's id.
    start_hash: u64,
    /// [`WalksSpec::key`].
    key: u64,
}

/// What walks go over: the in-edges of the worker's own nodes.
pub(crate) struct WalkedGraph<'a> {
    pub(crate) partition: &'a Partition,
    pub(crate) placement: &'a Placement,
    pub(crate) plan: &'a PairsPlan,
    /// By node type, the relations that lead to it.
    pub(crate) relations: Vec<Vec<usize>>,
}

impl WalkedGraph<'_> {
    /// Walks from all nodes; returns the distinct pairs of this worker, which are those of its range
    /// of hashes, sorted by hash, src and dst.
    ///
    /// # Errors
    ///
    /// If another worker fails.
    pub(crate) fn walk(
        &self,
        peer: &mut Peer<'_>,
        walks: WalksSpec,
    ) -> Result<Vec<Visit>, StoreError> {
        let own: Vec<LocalIdx> = self.partition.locals(self.plan.from()).collect();
        let num_own = own.len() * walks.per_node as usize;
        let most = peer.gather_all::<_, StoreError>(Ok(num_own))?;
        let most = most.into_iter().max().unwrap_or_default();
        let mut visits = Visits::default();
        for first in (0..most).step_by(WALKERS) {
            let numbers = first.min(num_own)..(first + WALKERS).min(num_own);
            let start = |number: usize| {
                let (at, walk) = (
                    number / walks.per_node as usize,
                    number % walks.per_node as usize,
                );
                self.start(peer.index(), own[at], (walks, walk))
            };
            let mut walkers: Vec<Walker> = numbers.map(start).collect();
            let mut found = Vec::new();
            for step in 0..walks.length {
                walkers = self.step(peer, &walkers, step)?;
                found.extend(walkers.iter().filter_map(|walker| self.visit(walker)));
            }
            visits.receive(peer, found)?;
        }
        Ok(visits.finish())
    }

    /// Starts a walk of one of this worker's nodes.
    fn start(&self, worker: usize, local: LocalIdx, (walks, walk): (WalksSpec, usize)) -> Walker {
        let walk = u32::try_from(walk).expect("below the walks of a node");
        let (ids, row) = self.partition.id(local);
        let (start, start_hash) = (self.placement.node(worker, local), ids.hash(row));
        Walker {
            start,
            at: start,
            start_hash,
            key: walks.key(start_hash, walk),
        }
    }

    /// Moves each walker to the src of an in-edge of its node, and to the worker that owns it. Walks
    /// at nodes without in-edges end.
    fn step(
        &self,
        peer: &mut Peer<'_>,
        walkers: &[Walker],
        step: u32,
    ) -> Result<Vec<Walker>, StoreError> {
        let mut by_owner: Vec<Vec<Walker>> = vec![Vec::new(); peer.peers()];
        for walker in walkers {
            if let Some(at) = self.source(walker.at, (walker.key, step)) {
                by_owner[self.placement.owner(at)].push(Walker { at, ..*walker });
            }
        }
        exchange(peer, by_owner)
    }

    /// Returns the src of one of a node's in-edges of all relations; all are equally likely.
    fn source(&self, node: NodeIdx, walk: (u64, u32)) -> Option<NodeIdx> {
        let local = self.placement.local(node);
        let relations = self.relations[self.partition.type_of(local)].iter();
        let sources = relations.map(|&of| self.partition.unranked(of, local).src);
        next_node(sources, walk)
    }

    /// Returns the pair of a walker that has moved; none if it is at its start, or at a node of a
    /// type that is no end of a pair.
    fn visit(&self, walker: &Walker) -> Option<Visit> {
        let local = self.placement.local(walker.at);
        let is_end = self.partition.type_of(local) == self.plan.to() && walker.at != walker.start;
        is_end.then(|| {
            let (ids, row) = self.partition.id(local);
            Visit {
                hash: self.plan.hash(walker.start_hash, ids.hash(row)),
                src: walker.start,
                dst: walker.at,
                times: 1,
            }
        })
    }
}

/// Returns the node that a walk goes to: the src of one of a node's in-edges, all of which are
/// equally likely; none if there are none. `sources` has those of each relation that leads to the
/// node, in the order of ids, and `key` and `step` are those of [`WalksSpec::step`].
pub fn next_node<'a>(
    sources: impl Iterator<Item = &'a [NodeIdx]> + Clone,
    (key, step): (u64, u32),
) -> Option<NodeIdx> {
    let num_edges = sources.clone().map(<[NodeIdx]>::len).sum();
    let mut at = WalksSpec::step(key, step, num_edges);
    for of_relation in sources {
        if let Some(&src) = of_relation.get(at) {
            return Some(src);
        }
        at -= of_relation.len();
    }
    None
}

/// Sends lists to their workers; returns what this worker received.
fn exchange<T: cluster::Message>(
    peer: &mut Peer<'_>,
    by_worker: Vec<Vec<T>>,
) -> Result<Vec<T>, StoreError> {
    let sent = by_worker.into_iter().enumerate();
    let sent = sent.filter(|(_, list)| !list.is_empty()).map(Ok);
    let received = peer.shuffle::<Vec<T>, StoreError>(sent)?;
    Ok(received.into_iter().flat_map(|(_, list)| list).collect())
}

/// The visits that a worker has received.
#[derive(Default)]
struct Visits {
    all: Vec<Visit>,
    /// How many of them were distinct when they were last joined.
    num_distinct: usize,
}

impl Visits {
    /// Sends visits to the workers of their hashes and keeps those of this worker.
    fn receive(&mut self, peer: &mut Peer<'_>, found: Vec<Visit>) -> Result<(), StoreError> {
        let workers = peer.peers();
        let mut by_worker: Vec<Vec<Visit>> = vec![Vec::new(); workers];
        for visit in found {
            let to = (u128::from(visit.hash) * workers as u128) >> 64;
            by_worker[usize::try_from(to).expect("below the number of workers")].push(visit);
        }
        self.all.extend(exchange(peer, by_worker)?);
        if self.all.len() > 2 * self.num_distinct + VISITS {
            self.join();
        }
        Ok(())
    }

    /// Makes one of equal pairs.
    fn join(&mut self) {
        self.all.sort_unstable();
        self.all.dedup_by(|next, kept| {
            let is_same = (next.hash, next.src, next.dst) == (kept.hash, kept.src, kept.dst);
            if is_same {
                kept.times += next.times;
            }
            is_same
        });
        self.num_distinct = self.all.len();
    }

    fn finish(mut self) -> Vec<Visit> {
        self.join();
        self.all
    }
}
