//! Computes the rows of a layer's hubs before its blocks: all processes aggregate the segments.

use crate::InferError;
use crate::checkpoint::RoundRows;
use crate::exchange::Crossing;
use crate::gather::send_lists;
use crate::hubs::{Held, Hubs, Segmented, is_hub};
use crate::layer::{HubRows, Layer, LayerInput, Rounds};
use crate::locate::narrow;
use gnn::{PartialAggregation, SomeInEdges, SrcRows};
use rayon::prelude::*;
use schemas::{NodeIdx, Row};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// A hub that this process owns.
struct Hub<'a> {
    node: NodeIdx,
    row: Row,
    place: u32,
    in_edges: Segmented<'a>,
}

/// A query or a state that one process sends to another, with its key.
type Told<K> = (K, Vec<f32>);

/// About how many numbers a message holds.
const MESSAGE_WORDS: usize = 1 << 18;

/// The computation of one layer's hubs.
struct HubRound<'a> {
    rounds: &'a Rounds<'a>,
    input: &'a LayerInput,
    aggregation: Box<dyn PartialAggregation>,
    src: SrcRows<'a>,
    crossing: Crossing,
}

/// States of own hubs, by the hub's position among the own hubs and the segment.
type States = BTreeMap<(u32, u32), Vec<f32>>;

impl Rounds<'_> {
    /// Returns the input of a layer: the rows of the round before, and the layer's rows of own
    /// hubs, which it computes.
    ///
    /// All processes call this for the same layer.
    pub(crate) fn open(&self, layer: usize, before: &RoundRows) -> Result<LayerInput, InferError> {
        let mut input = LayerInput::of(layer, before);
        let hubs = self.graph.hubs();
        if hubs.num_batches() == 0 {
            return Ok(input);
        }
        let mut round = HubRound {
            rounds: self,
            input: &input,
            aggregation: self.conv(layer).aggregation()?,
            src: input.src(self.graph.columns()),
            crossing: Crossing::default(),
        };
        let mut by_row = BTreeMap::new();
        for batch in 0..hubs.num_batches() {
            by_row.extend(round.run(hubs, batch)?);
        }
        let crossing = round.crossing;
        input.hubs = HubRows { by_row, crossing };
        Ok(input)
    }
}

impl<'a> HubRound<'a> {
    /// Computes the rows of a batch of own hubs, and this process's states of other processes'
    /// hubs.
    fn run(&mut self, hubs: &Hubs, batch: usize) -> Result<Vec<(Row, Vec<f32>)>, InferError> {
        let graph = self.rounds.graph;
        let places = hubs.batch(batch, graph.cluster().process());
        let own = places.filter(|&place| graph.is_hub(hubs.own[place], self.limit()));
        let own: Vec<usize> = own.collect();
        let own = own.into_par_iter();
        let own: Vec<Hub<'_>> = own.map(|place| self.hub(hubs.own[place], place)).collect();
        let queries = self.compute(own.len(), |layer, at| layer.query(own[at].row))?;
        let mut states = self.trade(hubs, batch, (&own, &queries))?;
        let here = own.iter().enumerate();
        let here = here.flat_map(|(at, hub)| graph.own_segments(hub.node).map(move |of| (at, of)));
        let here: Vec<(usize, usize)> = here.collect();
        let of_segments = self.compute(here.len(), |_, at| {
            let (hub, segment) = here[at];
            let edges = self.pick(&own[hub], segment);
            Ok(self.state(&edges, &queries[hub]))
        })?;
        for ((hub, segment), values) in here.into_iter().zip(of_segments) {
            if !values.is_empty() {
                states.insert((own[hub].place, narrow(segment)), values);
            }
        }
        let rows = self.compute(own.len(), |layer, at| {
            let (hub, query) = (&own[at], &queries[at]);
            let mean = self.aggregation.adds_loop();
            let mean = mean.then(|| hub.in_edges.mean_feature(hub.node)).flatten();
            let loop_state = self
                .aggregation
                .own_state(hub.row.raw(), mean, self.src, query);
            let of_hub = states.range((hub.place, 0)..(hub.place + 1, 0));
            let of_hub = loop_state.iter().chain(of_hub.map(|(_, state)| state));
            let in_order: Vec<&[f32]> = of_hub.map(|state| &state[..]).collect();
            let merged = self
                .aggregation
                .merge(hub.row.raw(), &in_order, self.src.nodes);
            layer.run_hub(hub.row, merged)
        })?;
        Ok(own.iter().map(|hub| hub.row).zip(rows).collect())
    }

    fn limit(&self) -> usize {
        self.rounds.slices[self.input.layer - 1].limit
    }

    fn hub(&self, node: NodeIdx, place: usize) -> Hub<'a> {
        let graph = self.rounds.graph;
        Hub {
            node,
            row: graph.own_row(node).expect("a node of this process"),
            place: narrow(place),
            in_edges: graph.segmented(node, self.rounds.trained.model.architecture()),
        }
    }

    /// Returns the in-edges of a segment that the conv aggregates.
    fn pick(&self, hub: &Hub<'_>, segment: usize) -> SomeInEdges {
        let without = self.aggregation.adds_loop().then_some(hub.node);
        let row = |node| self.rounds.graph.row(node).raw();
        hub.in_edges.pick(segment, without, row)
    }

    /// Aggregates a segment; returns no numbers if it has no in-edge.
    fn state(&self, edges: &SomeInEdges, query: &[f32]) -> Vec<f32> {
        if edges.src.is_empty() {
            return Vec::new();
        }
        self.aggregation.state(edges, self.src, query)
    }

    /// Computes `count` vectors on all threads; `one` computes a vector.
    fn compute(
        &self,
        count: usize,
        one: impl Fn(&Layer<'_>, usize) -> Result<Vec<f32>, InferError> + Sync,
    ) -> Result<Vec<Vec<f32>>, InferError> {
        let all = Mutex::new(vec![Vec::new(); count]);
        let state = || self.rounds.layer(self.input);
        let work = |layer: &mut Layer<'_>, at: usize| {
            let values = one(layer, at)?;
            all.lock().unwrap_or_else(PoisonError::into_inner)[at] = values;
            Ok(())
        };
        self.rounds.threads.run(count, state, work)?;
        Ok(all.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends the queries of own hubs, which attention needs; returns the queries of other
    /// processes' hubs, by process and position.
    fn ask(
        &mut self,
        own: &[Hub<'_>],
        queries: &[Vec<f32>],
    ) -> Result<Vec<BTreeMap<u32, Vec<f32>>>, InferError> {
        let processes = self.rounds.graph.cluster().num_processes();
        if self.aggregation.query_dim() == 0 {
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
        hubs: &Hubs,
        batch: usize,
        (own, queries): (&[Hub<'_>], &[Vec<f32>]),
    ) -> Result<States, InferError> {
        let processes = self.rounds.graph.cluster().num_processes();
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
            .filter(|(_, of)| is_hub(of.in_degree, self.limit()))
            .collect();
        let states = self.compute(held.len(), |_, at| {
            let (process, of) = held[at];
            let query = asked[process].get(&of.place).map_or(&[][..], |query| query);
            Ok(self.state(&of.edges, query))
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
        self.crossing.bytes_least += 4 * (pairs.len() * self.aggregation.state_dim()) as u64;
        Ok(all)
    }

    /// Sends each process a list; returns the lists that arrived, by process.
    fn send<K>(&mut self, lists: Vec<Vec<Told<K>>>) -> Result<Vec<Vec<Told<K>>>, InferError>
    where
        K: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let cluster = self.rounds.graph.cluster();
        let bytes = |by_process: &[Vec<Told<K>>]| -> u64 {
            let others = by_process.iter().enumerate();
            let others = others.filter(|(process, _)| *process != cluster.process());
            let values = others
                .flat_map(|(_, told)| told)
                .map(|(_, values)| values.len());
            4 * values.sum::<usize>() as u64
        };
        self.crossing.bytes_sent += bytes(&lists);
        let items = (MESSAGE_WORDS / self.aggregation.state_dim().max(1)).max(1);
        let told = send_lists(cluster, lists.into_iter().map(Arc::new).collect(), items)?;
        self.crossing.bytes_received += bytes(&told);
        Ok(told)
    }
}
