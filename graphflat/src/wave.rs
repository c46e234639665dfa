//! Runs waves: each takes the targets of one part through the rounds of flatten, and commits the
//! part.

use crate::FlattenError;
use crate::committer::Committer;
use crate::group::Group;
use crate::memory::{PartSize, WRITER_BYTES, waves_allowed};
use crate::pair_parts::PartTargets;
use crate::round::{
    ColumnAnswer, InEdgeAnswer, InEdgeAsk, RoundStats, answer_columns, answer_lists,
};
use crate::wave_context::WaveContext;
use cluster::Peer;
use schemas::progress::Event;
use schemas::{DenseRows, FeatureMeta, PartEntry, TypeMeta, write_part};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use store::{Partition, Store};
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::operators::{Capability, Input, Probe};
use timely::dataflow::{InputHandle, ProbeHandle, StreamVec};

/// Statistics of one worker: one entry for each round, one for fetching node columns, and one for
/// writing.
pub(crate) type WorkerStats = Vec<RoundStats>;

/// The state that the operators of one worker share.
struct WaveState {
    context: WaveContext,
    worker: usize,
    /// Groups that this worker assembles, by wave.
    groups: BTreeMap<u64, Group>,
    stats: WorkerStats,
    /// Bytes of the largest group so far, or an estimate before one is measured.
    largest: usize,
    is_measured: bool,
    /// Taken when all waves are done.
    committer: Option<Committer>,
    failure: Option<FlattenError>,
}

type Shared = Rc<RefCell<WaveState>>;

/// Runs all targets through the rounds, wave by wave, and commits their parts.
///
/// Part `p` has the same targets for any number of workers; worker `p % workers` assembles it. Each
/// wave computes one part, and the number of the part is the timestamp of the wave.
///
/// # Errors
///
/// If a part cannot be written.
pub(crate) fn run_waves(
    peer: &mut Peer<'_>,
    context: &WaveContext,
) -> Result<WorkerStats, FlattenError> {
    let (worker, peers) = (peer.index(), peer.peers());
    let hops = context.meta.hops;
    let started = peer.agree(Committer::start(context))?;
    let state = Rc::new(RefCell::new(WaveState {
        context: context.clone(),
        worker,
        groups: BTreeMap::new(),
        stats: vec![RoundStats::default(); hops + 2],
        largest: expected_bytes(context),
        is_measured: false,
        committer: Some(started),
        failure: None,
    }));
    let num_parts = context.num_parts();
    let (mut input, probe) = build_dataflow(peer, &state);
    for part in (worker..num_parts).step_by(peers) {
        let wave = part as u64;
        input.advance_to(wave);
        loop {
            let allowed = state.borrow().waves_allowed(peers);
            if !probe.less_than(&(wave + 1).saturating_sub(allowed)) {
                break;
            }
            peer.worker().step_or_park(None);
        }
        let is_open = context.output.committed(part).is_none();
        if is_open && !context.failed.load(Ordering::Relaxed) {
            let (sample, targets) = context.part(part);
            let group = Group::new(part, sample, targets, &context.store);
            let (fanouts, placement) = (&context.meta.fanouts, context.store.placement());
            for ask in group.ask_lists(worker, fanouts, placement) {
                input.send(ask);
            }
            state.borrow_mut().groups.insert(wave, group);
        }
        report_waves(context, peer, &probe, num_parts as u64);
        context.set_phase(wave, 0);
    }
    drop(input);
    while !probe.done() {
        peer.worker().step_or_park(None);
    }
    report_waves(context, peer, &probe, num_parts as u64);
    let (committer, failure) = {
        let mut state = state.borrow_mut();
        (state.committer.take(), state.failure.take())
    };
    let committed = committer.map_or(Ok(()), Committer::finish);
    peer.agree(failure.map_or(committed, Err))?;
    let stats = state.borrow().stats.clone();
    Ok(stats)
}

/// Reports how many waves are done on all workers.
fn report_waves(context: &WaveContext, peer: &Peer<'_>, probe: &ProbeHandle<u64>, total: u64) {
    if peer.leads_process() {
        let done = probe.with_frontier(|frontier| frontier.first().copied().unwrap_or(total));
        (context.progress)(&Event {
            stage: "flatten",
            phase: "waves".to_owned(),
            done,
            total,
            message: None,
            fields: serde_json::Value::Null,
        });
    }
}

impl WaveState {
    /// Returns how many waves may be in flight on all workers together.
    fn waves_allowed(&self, workers: usize) -> u64 {
        let threads = self.context.store.cluster().num_threads();
        waves_allowed(self.context.memory_budget, self.largest, (threads, workers))
    }
}

/// Estimates the bytes of a group before one is measured.
///
/// Assumes that every in-edge has a different source, and limits the counts to the nodes and
/// in-edges of the graph.
fn expected_bytes(context: &WaveContext) -> usize {
    let (store, graph) = (&context.store, &context.store.meta().graph);
    let all_nodes = |type_idx| store.placement().of_type(type_idx).num_nodes();
    let mut nodes = vec![0usize; graph.types.len()];
    match &*context.parts {
        PartTargets::Nodes(parts) => nodes[graph.target_type] = parts.get(0).len(),
        PartTargets::Pairs(parts) => nodes = parts.most_targets(store.placement()),
    }
    let mut edges = vec![0usize; graph.relations.len()];
    for fanouts in &context.meta.fanouts {
        let before = nodes.clone();
        for (relation, (fanout, meta)) in fanouts.as_ref().iter().zip(&graph.relations).enumerate()
        {
            let all_edges = store.meta().edges.in_edges_of(relation);
            let all_edges = usize::try_from(all_edges).unwrap_or(usize::MAX);
            let found = before[meta.to].saturating_mul(fanout.limit());
            edges[relation] = found.min(all_edges);
            let sources = nodes[meta.from].saturating_add(edges[relation]);
            nodes[meta.from] = sources.min(all_nodes(meta.from));
        }
    }
    let own = store.partitions();
    let sparse: usize = own.iter().map(Partition::sparse_bytes).sum();
    let num_own: usize = own.iter().map(Partition::num_nodes).sum();
    let is_sparse = |meta: &TypeMeta| matches!(meta.features, FeatureMeta::Sparse { .. });
    let feature_bytes = nodes.iter().zip(&graph.types).map(|(&of_type, meta)| {
        of_type.saturating_mul(match is_sparse(meta) {
            true => sparse / num_own.max(1),
            false => 4 * meta.features.dim(),
        })
    });
    let num_nodes = sum(nodes.iter().copied());
    let edge_dims = graph
        .relations
        .iter()
        .filter_map(|meta| meta.edge_feature_dim);
    let part = PartSize {
        nodes: num_nodes,
        edges: sum(edges),
        feature_bytes: sum(feature_bytes) / num_nodes.max(1),
        is_dense: !graph.types.iter().any(is_sparse) && store.is_cached_with(0),
        edge_dim: edge_dims.max().unwrap_or(0),
    };
    part.bytes()
}

fn sum(counts: impl IntoIterator<Item = usize>) -> usize {
    counts.into_iter().fold(0, usize::saturating_add)
}

/// Builds the rounds: ask and merge k times, then fetch the columns of all nodes, then write.
fn build_dataflow(peer: &mut Peer<'_>, state: &Shared) -> (AskInput, ProbeHandle<u64>) {
    let mut input = InputHandle::new();
    let probe = ProbeHandle::new();
    let hops = state.borrow().context.meta.hops;
    peer.worker().dataflow(|scope| {
        let mut asks = scope.input_from(&mut input);
        for hop in 1..hops {
            let lists = answer(asks, hop - 1, |ask| ask.to, answer_lists, state);
            asks = merge_round(lists, hop - 1, state, |group, worker, context| {
                group.ask_lists(worker, &context.meta.fanouts, context.store.placement())
            });
        }
        let lists = answer(asks, hops - 1, |ask| ask.to, answer_lists, state);
        let column_asks = merge_round(lists, hops - 1, state, |group, worker, context| {
            group.ask_columns(worker, context.store.placement())
        });
        let columns = answer(column_asks, hops, |ask| ask.to, answer_columns, state);
        write_parts(columns, hops + 1, state).probe_with(&probe);
    });
    (input, probe)
}

type AskInput = InputHandle<u64, timely::container::CapacityContainerBuilder<Vec<InEdgeAsk>>>;

/// Answers the requests of a round on the workers that own the nodes.
fn answer<'scope, Ask, Answer>(
    asks: StreamVec<'scope, u64, Ask>,
    round: usize,
    to: fn(&Ask) -> usize,
    answer_one: fn(Ask, &Store, &mut RoundStats) -> Answer,
    state: &Shared,
) -> StreamVec<'scope, u64, Answer>
where
    Ask: timely::ExchangeData + Clone,
    Answer: timely::ExchangeData + Clone,
{
    let state = Rc::clone(state);
    let pact = Exchange::new(move |ask: &Ask| to(ask) as u64);
    asks.unary(pact, "Answer", move |_, _| {
        move |input, output| {
            input.for_each_time(|time, batches| {
                let started = Instant::now();
                let state = &mut *state.borrow_mut();
                let stats = &mut state.stats[round];
                let mut session = output.session(&time);
                for ask in batches.flat_map(|batch| batch.drain(..)) {
                    session.give(answer_one(ask, &state.context.store, stats));
                }
                stats.seconds += started.elapsed().as_secs_f64();
            });
        }
    })
}

/// Merges the answers of a round; at the end of the round, `ask` makes the next requests.
fn merge_round<'scope, Ask: timely::ExchangeData + Clone>(
    lists: StreamVec<'scope, u64, InEdgeAnswer>,
    round: usize,
    state: &Shared,
    ask: impl Fn(&Group, usize, &WaveContext) -> Vec<Ask> + 'static,
) -> StreamVec<'scope, u64, Ask> {
    at_end_of_wave(
        lists,
        round,
        |lists| lists.to,
        state,
        |group, lists| group.merge(lists),
        move |state, wave| {
            let group = state
                .groups
                .get_mut(&wave)
                .expect("a wave in flight has its group");
            group.propagate(state.context.store.placement());
            ask(group, state.worker, &state.context)
        },
    )
}

fn write_parts<'scope>(
    columns: StreamVec<'scope, u64, ColumnAnswer>,
    round: usize,
    state: &Shared,
) -> StreamVec<'scope, u64, ()> {
    at_end_of_wave(
        columns,
        round,
        |columns| columns.to,
        state,
        |group, columns| group.keep_columns(columns),
        move |state, wave| {
            let group = state
                .groups
                .remove(&wave)
                .expect("a wave in flight has its group");
            if state.context.failed.load(Ordering::Relaxed) {
                return Vec::new();
            }
            let before = if state.is_measured { state.largest } else { 0 };
            let index = group.index;
            let (bytes, written) = write_group(group, &state.context, &mut state.stats[round]);
            state.largest = before.max(bytes);
            state.is_measured = true;
            match written {
                Ok(part) => {
                    if let Some(committer) = &state.committer {
                        committer.commit(index, part);
                    }
                }
                Err(e) => {
                    state.context.fail(&e);
                    state.failure.get_or_insert(e);
                }
            }
            Vec::new()
        },
    )
}

/// Writes the part of a group; returns the bytes of memory that this took, and the part's entry.
fn write_group(
    group: Group,
    context: &WaveContext,
    stats: &mut RoundStats,
) -> (usize, Result<PartEntry, FlattenError>) {
    let (index, graph) = (group.index, &context.store.meta().graph);
    let group_bytes = group.size_bytes();
    let pairs = group.pairs.as_ref();
    let pairs = pairs.map(|drawn| context.parts.place(drawn, &group));
    let (mut shard, features) = group.assemble(graph);
    shard.pairs = pairs;
    let bytes = WRITER_BYTES + group_bytes + shard.size_bytes();
    let (output, meta) = (&context.output, &context.meta);
    let lent = features.iter();
    let lent = lent.map(|rows| Some(rows.as_ref()? as &dyn DenseRows));
    let lent: Vec<Option<&dyn DenseRows>> = lent.collect();
    let part = write_part(output, index, &shard, &lent, graph, meta);
    stats.nodes += shard.num_nodes() as u64;
    stats.in_edges += shard.num_edges() as u64;
    let files = part.as_ref().map_or(&[][..], |part| &part.files);
    stats.bytes += files.iter().map(|file| file.bytes).sum::<u64>();
    (bytes, part.map_err(FlattenError::from))
}

/// Adds each record to its wave's group as it arrives; after the last record of a wave, runs
/// `finish` and sends its results.
fn at_end_of_wave<'scope, In, Out>(
    records: StreamVec<'scope, u64, In>,
    round: usize,
    to: fn(&In) -> usize,
    state: &Shared,
    take: fn(&mut Group, In),
    mut finish: impl FnMut(&mut WaveState, u64) -> Vec<Out> + 'static,
) -> StreamVec<'scope, u64, Out>
where
    In: timely::ExchangeData + Clone,
    Out: timely::ExchangeData + Clone,
{
    let state = Rc::clone(state);
    let pact = Exchange::new(move |record: &In| to(record) as u64);
    records.unary_frontier(pact, "EndOfWave", move |_, _| {
        let mut open = BTreeMap::<u64, Capability<u64>>::new();
        move |(input, frontier), output| {
            let started = Instant::now();
            input.for_each_time(|time, batches| {
                let wave = *time.time();
                open.entry(wave)
                    .or_insert_with(|| time.retain(output.output_index()));
                let state = &mut *state.borrow_mut();
                let group = state
                    .groups
                    .get_mut(&wave)
                    .expect("a wave in flight has its group");
                batches
                    .flat_map(|batch| batch.drain(..))
                    .for_each(|record| take(group, record));
            });
            while let Some(entry) = open.first_entry()
                && !frontier.less_equal(entry.key())
            {
                let (wave, capability) = entry.remove_entry();
                let state = &mut *state.borrow_mut();
                let out = finish(state, wave);
                state.context.set_phase(wave, round + 1);
                output.session(&capability).give_iterator(out.into_iter());
            }
            state.borrow_mut().stats[round].seconds += started.elapsed().as_secs_f64();
        }
    })
}
