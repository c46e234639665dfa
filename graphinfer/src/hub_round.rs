//! Computes the rows of a layer's hubs before its blocks: all processes aggregate the segments.
//!
//! A *batch* is some hubs of a process, whose states are exchanged together. Where the page cache
//! cannot hold the rows, the segments of a batch are divided into *pieces*, each of the in-edges whose
//! sources lie in one range. The layer copies the rows of a piece to memory, and with it those of the
//! pieces behind it, of this batch and of later ones, as far as they fit.

use crate::InferError;
use crate::exchange::Crossing;
use crate::gather::send_lists;
use crate::gathered::Gathered;
use crate::hubs::{Held, HubId, Hubs, Segmented, is_hub, num_segments};
use crate::layer::HubRows;
use crate::locate::narrow;
use crate::threads::Threads;
use cluster::Cluster;
use gnn::{PartialAggregation, SomeInEdges, SrcRows};
use rayon::prelude::*;
use schemas::{NodeIdx, Row};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// A layer whose hubs are aggregated in segments. An untyped graph has one relation.
pub(crate) trait HubLayer: Sync {
    /// The layer as one thread runs it.
    type OnThread<'a>
    where
        Self: 'a;

    fn cluster(&self) -> &Cluster;

    fn threads(&self) -> &Threads;

    fn hubs(&self) -> &Hubs;

    /// Makes the layer of a thread.
    fn on_thread(&self) -> Self::OnThread<'_>;

    /// Returns how many in-edges of a relation the layer reads of a node.
    fn limit(&self, relation: usize) -> usize;

    /// Returns the aggregation of a relation that the layer reads.
    fn aggregation(&self, relation: usize) -> &dyn PartialAggregation;

    /// Returns how many rows [`gather`](HubLayer::gather) copies at once.
    fn rows_at_once(&self) -> usize {
        usize::MAX
    }

    /// Copies the rows of the nodes of consecutive pieces, if the page cache cannot hold the rows
    /// that in-edges read: of the first piece, and of as many others as fit in memory. Returns the
    /// number of pieces. Only a graph without node types in one process does so.
    fn gather(
        &self,
        _pieces: &mut dyn Iterator<Item = Vec<NodeIdx>>,
    ) -> Result<Option<(usize, Gathered)>, InferError> {
        Ok(None)
    }

    /// Returns the rows that the in-edges of a relation read.
    fn src(&self, relation: usize) -> SrcRows<'_>;

    /// Returns the row of a source of a relation in [`src`](HubLayer::src).
    fn src_row(&self, relation: usize, node: NodeIdx) -> u32;

    /// Returns the row of an own node that the relation leads to: among all rows, and among those
    /// of its type.
    fn dst_row(&self, relation: usize, node: NodeIdx) -> (Row, u32);

    /// Returns the query that attention needs to aggregate in-edges of an own node.
    fn query(
        &self,
        layer: &Self::OnThread<'_>,
        relation: usize,
        row: Row,
    ) -> Result<Vec<f32>, InferError>;

    /// Computes the row of an own node after the layer, given the merged states of its hubs by
    /// relation.
    fn run(
        &self,
        layer: &Self::OnThread<'_>,
        row: Row,
        aggregated: Vec<(usize, Vec<f32>)>,
    ) -> Result<Vec<f32>, InferError>;
}

/// A hub that this process owns.
struct Hub<'a> {
    id: HubId,
    /// Among all rows, and among those of the node's type.
    row: Row,
    row_of_type: u32,
    place: u32,
    in_edges: Segmented<'a>,
}

/// A query or a state that one process sends to another, with its key.
type Told<K> = (K, Vec<f32>);

/// About how many numbers a message holds.
const MESSAGE_WORDS: usize = 1 << 18;

/// The computation of one layer's hubs.
struct HubRound<'a, L> {
    layer: &'a L,
    crossing: Crossing,
    /// The rows that the current piece reads, if they are copied, and for how many pieces, from the
    /// current one on, they are.
    gathered: Option<Gathered>,
    pieces_gathered: usize,
}

/// States of own hubs, by the hub's position among the own hubs and the segment.
type States = BTreeMap<(u32, u32), Vec<f32>>;

/// Computes a layer's rows of own hubs.
///
/// All processes call this for the same layer.
pub(crate) fn hub_rows(layer: &impl HubLayer) -> Result<HubRows, InferError> {
    let mut round = HubRound {
        layer,
        crossing: Crossing::default(),
        gathered: None,
        pieces_gathered: 0,
    };
    let mut by_row = BTreeMap::new();
    for batch in 0..layer.hubs().num_batches() {
        by_row.extend(round.run(batch)?);
    }
    let crossing = round.crossing;
    Ok(HubRows { by_row, crossing })
}

impl<'a, L: HubLayer> HubRound<'a, L> {
    /// Computes the rows of a batch of own hubs, and this process's states of other processes'
    /// hubs.
    fn run(&mut self, batch: usize) -> Result<Vec<(Row, Vec<f32>)>, InferError> {
        let layer = self.layer;
        let own = self.own(batch);
        let queries = self.compute(own.len(), |on_thread, at| {
            layer.query(on_thread, own[at].id.relation, own[at].row)
        })?;
        let mut states = self.trade(batch, (&own, &queries))?;
        let num_pieces = self.num_pieces(batch);
        for piece in 0..num_pieces {
            self.gather(batch, piece)?;
            let here = own.iter().enumerate().flat_map(|(at, hub)| {
                let of_piece = layer.hubs().own_segments(hub.id, (piece, num_pieces));
                of_piece.map(move |segment| (at, segment))
            });
            let here: Vec<(usize, usize)> = here.collect();
            let of_segments = self.compute(here.len(), |_, at| {
                let (hub, segment) = here[at];
                let edges = self.pick(&own[hub], segment);
                Ok(self.state(own[hub].id.relation, &edges, &queries[hub]))
            })?;
            for ((hub, segment), values) in here.into_iter().zip(of_segments) {
                if !values.is_empty() {
                    states.insert((own[hub].place, narrow(segment)), values);
                }
            }
        }
        let merged = self.compute(own.len(), |_, at| {
            Ok(self.merged(&own[at], &queries[at], &states))
        })?;
        self.rows(&own, &merged)
    }

    /// Divides the in-edges of the own hubs of a batch into segments.
    fn own(&self, batch: usize) -> Vec<Hub<'a>> {
        let own: Vec<usize> = self.places(batch).collect();
        own.into_par_iter().map(|place| self.hub(place)).collect()
    }

    /// Lists the positions of the own hubs of a batch that the layer reads.
    fn places(&self, batch: usize) -> impl Iterator<Item = usize> {
        let (layer, hubs) = (self.layer, self.layer.hubs());
        let places = hubs.batch(batch, layer.cluster().process());
        places.filter(move |&place| {
            let id = hubs.own(place);
            hubs.is_hub(id, layer.limit(id.relation))
        })
    }

    /// Returns into how many pieces the segments of a batch are divided, so that the rows of each
    /// fit in memory, unless even a segment of its smallest hub reads more. It divides the number of
    /// segments of every hub.
    fn num_pieces(&self, batch: usize) -> usize {
        let hubs = self.layer.hubs();
        let in_degrees = self
            .places(batch)
            .map(|place| hubs.srcs(hubs.own(place)).len());
        let in_degrees: Vec<usize> = in_degrees.collect();
        let least = in_degrees.iter().map(|&of| num_segments(narrow(of))).min();
        let (segments, edges) = (least.unwrap_or(1), in_degrees.iter().sum::<usize>());
        // The segments of a piece may have more in-edges than the mean.
        let wanted = match edges.div_ceil(self.layer.rows_at_once()) {
            0 | 1 => 1,
            times => 2 * times,
        };
        let mut divisors = (wanted..segments).filter(|of| segments.is_multiple_of(*of));
        if wanted == 1 {
            1
        } else {
            divisors.next().unwrap_or(segments)
        }
    }

    /// Lists for each piece of a batch from `first` on the own hubs and the sources of the piece's
    /// in-edges.
    fn pieces(&self, batch: usize, first: usize) -> Vec<Vec<NodeIdx>> {
        let hubs = self.layer.hubs();
        let ids = || self.places(batch).map(|place| hubs.own(place));
        let nodes: Vec<NodeIdx> = ids().map(|id| id.node).collect();
        let num_pieces = self.num_pieces(batch);
        let mut pieces = vec![nodes; num_pieces - first];
        for id in ids() {
            for &src in hubs.srcs(id) {
                let piece = hubs.piece(src, num_pieces);
                if piece >= first {
                    pieces[piece - first].push(src);
                }
            }
        }
        pieces
    }

    /// Copies the rows of a piece, and of others after it, unless they were copied with those of a
    /// piece before.
    fn gather(&mut self, batch: usize, piece: usize) -> Result<(), InferError> {
        if self.pieces_gathered > 0 {
            self.pieces_gathered -= 1;
            return Ok(());
        }
        self.gathered = None;
        let batches = batch..self.layer.hubs().num_batches();
        let first_of = |at: usize| if at == batch { piece } else { 0 };
        let mut pieces = batches.flat_map(|at| self.pieces(at, first_of(at)));
        let gathered = self.layer.gather(&mut pieces)?;
        let (count, gathered) = gathered.map_or((1, None), |(count, of)| (count, Some(of)));
        (self.pieces_gathered, self.gathered) = (count - 1, gathered);
        Ok(())
    }

    fn hub(&self, place: usize) -> Hub<'a> {
        let id = self.layer.hubs().own(place);
        let (row, row_of_type) = self.layer.dst_row(id.relation, id.node);
        Hub {
            id,
            row,
            row_of_type,
            place: narrow(place),
            in_edges: self.layer.hubs().segmented(id),
        }
    }

    /// Returns the in-edges of a segment that the conv aggregates.
    fn pick(&self, hub: &Hub<'_>, segment: usize) -> SomeInEdges {
        let relation = hub.id.relation;
        let adds_loop = self.layer.aggregation(relation).adds_loop();
        let without = adds_loop.then_some(hub.id.node);
        let row = |node| self.place(self.layer.src_row(relation, node));
        hub.in_edges.pick(segment, without, row)
    }

    /// Returns where a row is among those that in-edges read.
    fn place(&self, row: u32) -> u32 {
        let gathered = self.gathered.as_ref();
        gathered.map_or(row, |gathered| gathered.place(row))
    }

    /// Returns the rows that the in-edges of a relation read.
    fn src(&self, relation: usize) -> SrcRows<'_> {
        let gathered = self.gathered.as_ref();
        gathered.map_or_else(|| self.layer.src(relation), Gathered::src)
    }

    /// Aggregates a segment; returns no numbers if it has no in-edge.
    fn state(&self, relation: usize, edges: &SomeInEdges, query: &[f32]) -> Vec<f32> {
        if edges.src.is_empty() {
            return Vec::new();
        }
        let aggregation = self.layer.aggregation(relation);
        aggregation.state(edges, self.src(relation), query)
    }

    /// Merges the states of a hub in the order of segments.
    fn merged(&self, hub: &Hub<'_>, query: &[f32], states: &States) -> Vec<f32> {
        let relation = hub.id.relation;
        let (aggregation, src) = (self.layer.aggregation(relation), self.src(relation));
        let row = self.place(hub.row_of_type);
        let mean = aggregation.adds_loop();
        let mean = mean.then(|| hub.in_edges.mean_feature(hub.id.node));
        let own_state = aggregation.own_state(row, mean.flatten(), src, query);
        let of_hub = states.range((hub.place, 0)..(hub.place + 1, 0));
        let of_hub = own_state.iter().chain(of_hub.map(|(_, state)| state));
        let in_order: Vec<&[f32]> = of_hub.map(|state| &state[..]).collect();
        aggregation.merge(row, &in_order, src.nodes)
    }

    /// Computes the rows of nodes from the merged states of their hubs, which are next to each
    /// other.
    fn rows(
        &self,
        own: &[Hub<'_>],
        merged: &[Vec<f32>],
    ) -> Result<Vec<(Row, Vec<f32>)>, InferError> {
        let places: Vec<usize> = (0..own.len()).collect();
        let of_nodes: Vec<&[usize]> = places.chunk_by(|&a, &b| own[a].row == own[b].row).collect();
        let rows = self.compute(of_nodes.len(), |on_thread, at| {
            let hubs = of_nodes[at].iter();
            let aggregated = hubs.map(|&hub| (own[hub].id.relation, merged[hub].clone()));
            let row = own[of_nodes[at][0]].row;
            self.layer.run(on_thread, row, aggregated.collect())
        })?;
        let nodes = of_nodes.iter().map(|hubs| own[hubs[0]].row);
        Ok(nodes.zip(rows).collect())
    }

    /// Computes `count` vectors on all threads; `one` computes a vector.
    fn compute(
        &self,
        count: usize,
        one: impl Fn(&L::OnThread<'a>, usize) -> Result<Vec<f32>, InferError> + Sync,
    ) -> Result<Vec<Vec<f32>>, InferError> {
        let all = Mutex::new(vec![Vec::new(); count]);
        let work = |on_thread: &mut L::OnThread<'a>, at: usize| {
            let values = one(on_thread, at)?;
            all.lock().unwrap_or_else(PoisonError::into_inner)[at] = values;
            Ok(())
        };
        let state = || self.layer.on_thread();
        self.layer.threads().run(count, state, work)?;
        Ok(all.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lists the relations that the layer reads.
    fn relations(&self) -> impl Iterator<Item = usize> {
        let all = 0..self.layer.hubs().num_relations();
        all.filter(|&relation| self.layer.limit(relation) > 0)
    }

    /// Sends the queries of own hubs, which attention needs; returns the queries of other
    /// processes' hubs, by process and position.
    fn ask(
        &mut self,
        own: &[Hub<'_>],
        queries: &[Vec<f32>],
    ) -> Result<Vec<BTreeMap<u32, Vec<f32>>>, InferError> {
        let processes = self.layer.cluster().num_processes();
        let asks = |relation| self.layer.aggregation(relation).query_dim() > 0;
        if !self.relations().any(asks) {
            return Ok(vec![BTreeMap::new(); processes]);
        }
        let places = own.iter().map(|hub| hub.place);
        let queried: Vec<Told<u32>> = places.zip(queries.iter().cloned()).collect();
        let told = self.send(vec![queried; processes])?.into_iter();
        Ok(told.map(|of| of.into_iter().collect()).collect())
    }

    /// Aggregates this process's segments of other processes' hubs, and sends the states to the
    /// hubs' owners; returns the states that arrived for own hubs.
    fn trade(
        &mut self,
        batch: usize,
        (own, queries): (&[Hub<'_>], &[Vec<f32>]),
    ) -> Result<States, InferError> {
        let (hubs, processes) = (self.layer.hubs(), self.layer.cluster().num_processes());
        if processes == 1 {
            return Ok(States::new());
        }
        let asked = self.ask(own, queries)?;
        let held: Vec<(usize, &Held)> = (0..processes)
            .flat_map(|process| {
                hubs.held(batch, process)
                    .iter()
                    .map(move |of| (process, of))
            })
            .filter(|(_, of)| is_hub(of.in_degree, self.layer.limit(of.relation)))
            .collect();
        let states = self.compute(held.len(), |_, at| {
            let (process, of) = held[at];
            let query = asked[process].get(&of.place).map_or(&[][..], |query| query);
            Ok(self.state(of.relation, &of.edges, query))
        })?;
        let mut lists = vec![Vec::new(); processes];
        for ((process, of), values) in held.into_iter().zip(states) {
            lists[process].push(((of.place, of.segment), values));
        }
        let told: Vec<Vec<Told<(u32, u32)>>> = self.send(lists)?;
        let mut pairs = BTreeSet::new();
        let mut all = States::new();
        for (process, of_process) in told.into_iter().enumerate() {
            pairs.extend(of_process.iter().map(|((place, _), _)| (process, *place)));
            all.extend(of_process);
        }
        let words = pairs.into_iter().map(|(_, place)| {
            let relation = hubs.own(place as usize).relation;
            self.layer.aggregation(relation).state_dim() as u64
        });
        self.crossing.bytes_least += 4 * words.sum::<u64>();
        Ok(all)
    }

    /// Sends each process a list; returns the lists that arrived, by process.
    fn send<K>(&mut self, lists: Vec<Vec<Told<K>>>) -> Result<Vec<Vec<Told<K>>>, InferError>
    where
        K: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let cluster = self.layer.cluster();
        let bytes = |by_process: &[Vec<Told<K>>]| -> u64 {
            let others = by_process.iter().enumerate();
            let others = others.filter(|(process, _)| *process != cluster.process());
            let values = others
                .flat_map(|(_, told)| told)
                .map(|(_, values)| values.len());
            4 * values.sum::<usize>() as u64
        };
        self.crossing.bytes_sent += bytes(&lists);
        let dims = self.relations();
        let dims = dims.map(|relation| self.layer.aggregation(relation).state_dim());
        let items = (MESSAGE_WORDS / dims.max().unwrap_or(1).max(1)).max(1);
        let told = send_lists(cluster, lists.into_iter().map(Arc::new).collect(), items)?;
        self.crossing.bytes_received += bytes(&told);
        Ok(told)
    }
}
