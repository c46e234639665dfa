//! Edges on their way from the reader to the in-edge list of the node they lead to.

use super::WorkUnits;
use super::number::{Dictionary, IdTable, MISSING};
use crate::hub::{HubPart, Hubs, RankedColumns, Totals};
use crate::sample::{InEdge, RankedEdge, edge_hash, keep_least, rank_in_edges, sort_parallel};
use crate::{FlattenError, NodeIdx, Peer, Placement, StorePlan};
use schemas::{Dangling, EdgesPlan, Ids};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Edges in one message: large enough to cost nothing a record, small enough to overlap.
const EDGES_PER_BATCH: usize = 1 << 16;

/// In-edges of the nodes of one partition, not ranked yet.
pub(super) struct OwnedEdges {
    columns: EdgeColumns,
    /// In-edges of local node `i` are `order[offset[i]..offset[i + 1]]`; hubs have none here.
    offset: Vec<usize>,
    order: Vec<u32>,
    hubs: BTreeMap<NodeIdx, Vec<HubPart>>,
    scratch: Vec<InEdge>,
}

/// The ranked in-edges of one node.
#[derive(Default)]
pub(super) struct RankedNode {
    pub(super) totals: Totals,
    /// Ranked edges for each sample.
    pub(super) samples: Vec<Vec<RankedEdge>>,
    /// Features by the edges' slots, `[slots, dim]`.
    pub(super) hub_features: Option<Vec<f32>>,
}

/// What became of the edge table.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EdgeCounts {
    /// In-edges, reversed ones counted too.
    pub in_edges: u64,
    /// Rows left out because an end is no node.
    pub dropped_rows: u64,
    /// In-edges that each worker received before hubs were cut: the skew of the map.
    pub received_by_worker: Vec<u64>,
}

/// The edges that one worker read, ends as places in its table of distinct ids.
struct LocalEdges {
    ends: IdTable,
    src: Vec<u32>,
    dst: Vec<u32>,
    row: Vec<u64>,
    weight: Vec<f32>,
    feature: Vec<f32>,
}

/// Some edges by column; `weight` and `feature` are empty where the input has none.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct EdgeColumns {
    dst: Vec<NodeIdx>,
    src: Vec<NodeIdx>,
    hash: Vec<u64>,
    row: Vec<u64>,
    weight: Vec<f32>,
    feature: Vec<f32>,
}

#[derive(Clone, Serialize, Deserialize)]
struct EdgeBatch {
    to_hub: bool,
    columns: EdgeColumns,
}

/// Reads the edges and moves each to the owner of its `dst`, hubs' edges by way of all workers.
///
/// # Errors
///
/// An unreadable table, a value that cannot be used, an end that is no node (unless dropped).
pub(super) fn place_edges(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    work: &WorkUnits,
    dictionary: &Dictionary,
    placement: &Placement,
) -> Result<(OwnedEdges, Hubs, EdgeCounts), FlattenError> {
    let mut local = peer.agree(read_edges(&plan.edges, plan, work))?;
    let nodes = dictionary.resolve(peer, local.ends.ids())?;
    let dropped = peer.agree(drop_dangling(&mut local, &nodes, &plan.edges))?;
    let hubs = Hubs::find(peer, &local.in_degrees(&nodes, plan), plan.hub_threshold)?;
    let batches = local.batches(&nodes, plan, &hubs, placement);
    let received = peer.shuffle::<EdgeBatch, FlattenError>(batches.map(Ok))?;
    drop(local);
    let dim = plan.edges.feature_dim().unwrap_or(0);
    let (mut own, mut shares) = (EdgeColumns::default(), EdgeColumns::default());
    for (_, batch) in received {
        if batch.to_hub {
            shares.append(batch.columns)
        } else {
            own.append(batch.columns)
        }
    }
    let num_received = (own.dst.len() + shares.dst.len()) as u64;
    let parts = rank_shares(&shares, plan, dim);
    let parts = parts
        .into_iter()
        .map(|part| Ok((placement.owner(part.node), part)));
    let mut inverted = BTreeMap::<NodeIdx, Vec<HubPart>>::new();
    for (_, part) in peer.shuffle::<HubPart, FlattenError>(parts)? {
        inverted.entry(part.node).or_default().push(part);
    }
    let all = peer.gather_all::<_, FlattenError>(Ok((num_received, dropped)))?;
    let counts = EdgeCounts {
        in_edges: all.iter().map(|c| c.0).sum(),
        dropped_rows: all.iter().map(|c| c.1).sum(),
        received_by_worker: all.iter().map(|c| c.0).collect(),
    };
    Ok((
        OwnedEdges::group(own, inverted, peer.index(), placement),
        hubs,
        counts,
    ))
}

fn read_edges(
    edges: &EdgesPlan,
    plan: &StorePlan,
    work: &WorkUnits,
) -> Result<LocalEdges, FlattenError> {
    let mut local = LocalEdges {
        ends: IdTable::new(&Ids::new(plan.nodes.id_type())),
        src: Vec::new(),
        dst: Vec::new(),
        row: Vec::new(),
        weight: Vec::new(),
        feature: Vec::new(),
    };
    for unit in work.of(edges.units()) {
        let rows = edges.read(unit)?;
        for i in 0..rows.src.len() {
            local.src.push(local.ends.place(&rows.src, i));
            local.dst.push(local.ends.place(&rows.dst, i));
            local.row.push(unit.first_row + i as u64);
        }
        local.weight.extend(rows.weight.unwrap_or_default());
        local.feature.extend(rows.feature.unwrap_or_default());
    }
    Ok(local)
}

/// Checks that each end is a node; leaves out the rows where it is not, if the job says so.
///
/// Returns how many rows were left out.
fn drop_dangling(
    local: &mut LocalEdges,
    nodes: &[NodeIdx],
    plan: &EdgesPlan,
) -> Result<u64, FlattenError> {
    let missing = |place: u32| nodes[place as usize] == MISSING;
    let num_ends = |ends: &[u32]| ends.iter().filter(|&&place| missing(place)).count() as u64;
    let count = num_ends(&local.src) + num_ends(&local.dst);
    if count == 0 {
        return Ok(0);
    }
    let dangling: Vec<usize> = (0..local.row.len())
        .filter(|&i| missing(local.src[i]) || missing(local.dst[i]))
        .collect();
    if plan.dangling() == Dangling::Drop {
        local.remove(&dangling);
        return Ok(dangling.len() as u64);
    }
    let first = dangling[0];
    let (column, place) = if missing(local.src[first]) {
        (plan.spec().src.as_str(), local.src[first])
    } else {
        (plan.spec().dst.as_str(), local.dst[first])
    };
    let (file, row) = plan.locate(local.row[first]);
    let id = local.ends.ids().display(place as usize);
    Err(FlattenError::DanglingEdge {
        file,
        row,
        column: column.to_owned(),
        id,
        count,
    })
}

impl LocalEdges {
    fn remove(&mut self, rows: &[usize]) {
        let num_rows = self.row.len();
        let mut keep = vec![true; num_rows];
        rows.iter().for_each(|&i| keep[i] = false);
        let dim = self.feature.len().checked_div(num_rows).unwrap_or(0);
        retain(&mut self.src, 1, &keep);
        retain(&mut self.dst, 1, &keep);
        retain(&mut self.row, 1, &keep);
        if !self.weight.is_empty() {
            retain(&mut self.weight, 1, &keep);
        }
        retain(&mut self.feature, dim, &keep);
    }

    /// Counts the in-edges read here, by node, ascending.
    fn in_degrees(&self, nodes: &[NodeIdx], plan: &StorePlan) -> Vec<(NodeIdx, u64)> {
        let mut counts = vec![0u64; nodes.len()];
        self.dst
            .iter()
            .for_each(|&place| counts[place as usize] += 1);
        if plan.edges.undirected() {
            self.src
                .iter()
                .for_each(|&place| counts[place as usize] += 1);
        }
        let mut counts: Vec<_> = nodes
            .iter()
            .copied()
            .zip(counts)
            .filter(|&(_, count)| count > 0)
            .collect();
        counts.sort_unstable();
        counts
    }

    /// Cuts the edges, and their reverses, into batches by the worker they go to.
    fn batches<'a>(
        &'a self,
        nodes: &'a [NodeIdx],
        plan: &'a StorePlan,
        hubs: &'a Hubs,
        placement: &'a Placement,
    ) -> impl Iterator<Item = (usize, EdgeBatch)> + 'a {
        let workers = placement.workers();
        (0..self.row.len())
            .step_by(EDGES_PER_BATCH)
            .flat_map(move |start| {
                let end = (start + EDGES_PER_BATCH).min(self.row.len());
                let mut out = vec![EdgeColumns::default(); 2 * workers];
                for i in start..end {
                    let ends = (self.src[i], self.dst[i]);
                    self.push(i, ends, 2 * self.row[i], nodes, hubs, placement, &mut out);
                    if plan.edges.undirected() {
                        let ends = (ends.1, ends.0);
                        self.push(
                            i,
                            ends,
                            2 * self.row[i] + 1,
                            nodes,
                            hubs,
                            placement,
                            &mut out,
                        );
                    }
                }
                let batch = move |(slot, columns): (usize, EdgeColumns)| {
                    (
                        slot % workers,
                        EdgeBatch {
                            to_hub: slot >= workers,
                            columns,
                        },
                    )
                };
                out.into_iter()
                    .enumerate()
                    .filter(|(_, c)| !c.dst.is_empty())
                    .map(batch)
            })
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "an inner loop's state, used in one place"
    )]
    fn push(
        &self,
        i: usize,
        (src, dst): (u32, u32),
        row: u64,
        nodes: &[NodeIdx],
        hubs: &Hubs,
        placement: &Placement,
        out: &mut [EdgeColumns],
    ) {
        let hashes = self.ends.hashes();
        let hash = edge_hash(hashes[src as usize], hashes[dst as usize]);
        let (src, dst) = (nodes[src as usize], nodes[dst as usize]);
        let slot = match hubs.reindex(dst, hash, placement) {
            Some(worker) => placement.workers() + worker,
            None => placement.owner(dst),
        };
        let columns = &mut out[slot];
        columns.dst.push(dst);
        columns.src.push(src);
        columns.hash.push(hash);
        columns.row.push(row);
        if !self.weight.is_empty() {
            columns.weight.push(self.weight[i]);
        }
        let dim = self.feature.len() / self.row.len();
        columns
            .feature
            .extend_from_slice(&self.feature[i * dim..(i + 1) * dim]);
    }
}

/// Keeps the groups of `width` values whose row is kept.
fn retain<T: Copy>(values: &mut Vec<T>, width: usize, keep: &[bool]) {
    let mut i = 0;
    values.retain(|_| {
        i += 1;
        keep[(i - 1) / width]
    });
}

impl EdgeColumns {
    fn append(&mut self, mut other: Self) {
        self.dst.append(&mut other.dst);
        self.src.append(&mut other.src);
        self.hash.append(&mut other.hash);
        self.row.append(&mut other.row);
        self.weight.append(&mut other.weight);
        self.feature.append(&mut other.feature);
    }

    fn in_edge(&self, i: u32) -> InEdge {
        let at = i as usize;
        let weight = self.weight.get(at).copied().unwrap_or(1.0);
        InEdge {
            src: self.src[at],
            row: self.row[at],
            hash: self.hash[at],
            weight,
            slot: i,
        }
    }

    /// Positions of all edges, as they are counted in 32 bits.
    fn positions(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.dst.len()).expect("a partition holds fewer than 2^32 in-edges")
    }
}

/// Ranks this worker's share of each hub's in-edges, and cuts it to what may be kept.
fn rank_shares(shares: &EdgeColumns, plan: &StorePlan, dim: usize) -> Vec<HubPart> {
    let mut order: Vec<u32> = shares.positions().collect();
    order.sort_unstable_by_key(|&i| (shares.dst[i as usize], i));
    let mut parts = Vec::new();
    let mut ranked = Vec::new();
    for group in order.chunk_by(|&a, &b| shares.dst[a as usize] == shares.dst[b as usize]) {
        let node = shares.dst[group[0] as usize];
        let mut in_edges: Vec<InEdge> = group.iter().map(|&i| shares.in_edge(i)).collect();
        let mut totals = Totals::default();
        in_edges.iter().for_each(|edge| totals.add(node, edge));
        sort_parallel(&mut in_edges);
        let sample = |s: u32| {
            let seed = plan.seed.wrapping_add(u64::from(s));
            rank_in_edges(&in_edges, plan.sampling, seed, plan.keep, &mut ranked);
            RankedColumns::from_ranked(&ranked, &shares.feature, dim)
        };
        let samples = (0..plan.samples).map(sample).collect();
        parts.push(HubPart {
            node,
            totals,
            samples,
        });
    }
    parts
}

impl OwnedEdges {
    fn group(
        columns: EdgeColumns,
        hubs: BTreeMap<NodeIdx, Vec<HubPart>>,
        worker: usize,
        placement: &Placement,
    ) -> Self {
        let mut offset = vec![0; placement.num_local(worker) + 1];
        let local: Vec<u32> = columns
            .dst
            .iter()
            .map(|&node| u32::try_from(placement.local(node)).expect("local is below node"))
            .collect();
        local.iter().for_each(|&l| offset[l as usize + 1] += 1);
        for l in 1..offset.len() {
            offset[l] += offset[l - 1];
        }
        let mut next = offset.clone();
        let mut order = vec![0; local.len()];
        for (i, &l) in columns.positions().zip(&local) {
            order[next[l as usize]] = i;
            next[l as usize] += 1;
        }
        Self {
            columns,
            offset,
            order,
            hubs,
            scratch: Vec::new(),
        }
    }

    /// Ranks the in-edges of local node `local`, whose number is `node`.
    pub(super) fn rank(
        &mut self,
        local: usize,
        node: NodeIdx,
        plan: &StorePlan,
        out: &mut RankedNode,
    ) {
        out.samples.resize_with(plan.samples as usize, Vec::new);
        out.totals = Totals::default();
        out.hub_features = None;
        if let Some(parts) = self.hubs.get(&node) {
            invert(parts, plan.keep, out);
            return;
        }
        self.scratch.clear();
        let mine = &self.order[self.offset[local]..self.offset[local + 1]];
        self.scratch
            .extend(mine.iter().map(|&i| self.columns.in_edge(i)));
        self.scratch
            .iter()
            .for_each(|edge| out.totals.add(node, edge));
        sort_parallel(&mut self.scratch);
        for (s, ranked) in (0u64..).zip(&mut out.samples) {
            let seed = plan.seed.wrapping_add(s);
            rank_in_edges(&self.scratch, plan.sampling, seed, plan.keep, ranked);
        }
    }

    /// Features of the in-edges by slot; a node with `hub_features` has its own.
    pub(super) fn features(&self) -> &[f32] {
        &self.columns.feature
    }
}

/// Merges a hub's parts to the list it would have had on one worker.
fn invert(parts: &[HubPart], keep: usize, out: &mut RankedNode) {
    parts.iter().for_each(|part| out.totals.merge(&part.totals));
    let mut features = Vec::new();
    let mut first_slot = 0;
    for (s, ranked) in out.samples.iter_mut().enumerate() {
        ranked.clear();
        for part in parts {
            let columns = &part.samples[s];
            columns.append_to(ranked, first_slot);
            features.extend_from_slice(&columns.feature);
            first_slot += u32::try_from(columns.len()).expect("a hub's in-edges are below 2^32");
        }
        keep_least(ranked, keep);
    }
    out.hub_features = Some(features);
}
