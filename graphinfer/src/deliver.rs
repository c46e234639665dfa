//! The last round of several processes: each computes the rows of its own nodes and sends them to
//! the processes that write the parts.

use crate::InferError;
use crate::compare::Difference;
use crate::exchange::Crossing;
use crate::last_round::Written;
use crate::part::{Computed, widths};
use crate::threads::Threads;
use cluster::{Cluster, run_workers};
use schemas::{EmbeddingColumns, Ids, Labels, NodeIdx};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A last round that several processes compute.
pub(crate) trait SharedRound: Sync {
    /// Returns the processes that share the work.
    fn cluster(&self) -> &Cluster;

    /// Returns the threads of this process.
    fn threads(&self) -> &Threads;

    /// Returns the columns of a part.
    fn columns(&self, part: usize) -> &EmbeddingColumns;

    /// Computes the own rows of some parts. `done` gets each part that has own rows, with these.
    fn compute(
        &self,
        parts: &[usize],
        done: &(dyn Fn(OwnPart) + Sync),
    ) -> Result<Difference, InferError>;

    /// Tells whether a part is committed.
    fn is_committed(&self, part: usize) -> bool;

    /// Writes and commits a part with these nodes and rows.
    fn write(
        &self,
        part: usize,
        nodes: (&[NodeIdx], &Ids),
        rows: Computed,
    ) -> Result<(), InferError>;
}

/// The own rows of a part.
pub(crate) struct OwnPart {
    pub(crate) part: usize,
    /// Numbers of the nodes in the table that they are of, in ascending order.
    pub(crate) nodes: Vec<NodeIdx>,
    pub(crate) ids: Ids,
    pub(crate) rows: Computed,
}

/// The rows that one process computed for a part.
#[derive(Clone, Serialize, Deserialize)]
struct Delivery {
    part: usize,
    /// The process that computed the rows.
    from: usize,
    /// The nodes, in ascending order.
    nodes: Vec<NodeIdx>,
    ids: Ids,
    rows: Computed,
}

/// By sending thread: the rows to send, each with the worker that receives them.
type Outgoing = Vec<Vec<(usize, Delivery)>>;

/// Computes the last layer of the own nodes and writes this process's share of some parts.
///
/// Works in waves of one part for each worker of all processes. So a process holds the rows of
/// about two parts for each of its own workers.
pub(crate) fn run_among(round: &impl SharedRound, parts: &[usize]) -> Result<Written, InferError> {
    let cluster = round.cluster();
    let mut done = Written::default();
    let mut crossing = Crossing::default();
    for wave in parts.chunks(cluster.num_workers()) {
        let computed = Mutex::new(Vec::new());
        let difference = round.compute(wave, &|own| {
            let delivery = Delivery::new(cluster.process(), own);
            let mut all = computed.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(delivery);
        })?;
        done.difference.add(&difference);
        let computed = computed
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let outgoing = address(round, (wave, computed), &mut crossing);
        let received = deliver(cluster, outgoing)?;
        let others = received.iter().flatten();
        let others = others.filter(|of| of.from != cluster.process());
        let bytes = others.map(|of| of.num_bytes(round.columns(of.part)));
        crossing.bytes_received += bytes.sum::<u64>();
        let started = Instant::now();
        let write = |(): &mut (), at: usize| write_received(round, &received[at]);
        round.threads().run(received.len(), || (), write)?;
        done.writing += started.elapsed();
    }
    crossing.bytes_least = crossing.bytes_received;
    done.crossing = Some(crossing);
    Ok(done)
}

impl Delivery {
    fn new(from: usize, own: OwnPart) -> Self {
        Self {
            part: own.part,
            from,
            nodes: own.nodes,
            ids: own.ids,
            rows: own.rows,
        }
    }

    /// Returns the bytes of the vectors.
    fn num_bytes(&self, columns: &EmbeddingColumns) -> u64 {
        4 * (self.nodes.len() * widths(columns).iter().sum::<usize>()) as u64
    }
}

/// Returns columns without rows.
pub(crate) fn no_rows(columns: &EmbeddingColumns) -> Computed {
    Computed {
        vectors: vec![Vec::new(); columns.vectors.len()],
        predicted: Labels::empty(columns.prediction.as_ref()),
    }
}

/// Returns the rows to send, by thread: the parts of a wave go to the processes in turn.
fn address(
    round: &impl SharedRound,
    (wave, computed): (&[usize], Vec<Delivery>),
    crossing: &mut Crossing,
) -> Outgoing {
    let cluster = round.cluster();
    let (processes, threads) = (cluster.num_processes(), cluster.num_threads());
    let mut outgoing = vec![Vec::new(); threads];
    for delivery in computed {
        let place = wave.binary_search(&delivery.part).expect("of this wave");
        let (process, thread) = (place % processes, place / processes);
        if process != cluster.process() {
            crossing.bytes_sent += delivery.num_bytes(round.columns(delivery.part));
        }
        outgoing[thread].push((process * threads + thread, delivery));
    }
    outgoing
}

/// Writes the part whose rows arrived.
fn write_received(round: &impl SharedRound, deliveries: &[Delivery]) -> Result<(), InferError> {
    let part = deliveries[0].part;
    if round.is_committed(part) {
        return Ok(());
    }
    // The nodes of each delivery ascend, and no node is in two deliveries.
    let ends = deliveries.iter().enumerate().flat_map(|(from, delivery)| {
        let nodes = delivery.nodes.iter().enumerate();
        nodes.map(move |(at, &node)| (node, from, at))
    });
    let mut order: Vec<(NodeIdx, usize, usize)> = ends.collect();
    order.sort_unstable();
    let columns = round.columns(part);
    let widths = widths(columns);
    let mut rows = no_rows(columns);
    let mut ids = Ids::with_capacity(columns.id_type, order.len());
    for &(_, from, at) in &order {
        let delivery = &deliveries[from];
        ids.push_from(&delivery.ids, at);
        let pairs = rows.vectors.iter_mut().zip(&delivery.rows.vectors);
        for ((column, of), &width) in pairs.zip(&widths) {
            column.extend_from_slice(&of[at * width..(at + 1) * width]);
        }
        if columns.prediction.is_some() {
            let at = u32::try_from(at).expect("nodes fit 32 bits");
            rows.predicted.push_from(&delivery.rows.predicted, at);
        }
    }
    let nodes: Vec<NodeIdx> = order.into_iter().map(|(node, _, _)| node).collect();
    round.write(part, (&nodes, &ids), rows)
}

/// Returns some of the ids.
pub(crate) fn ids_of(ids: &Ids, range: Range<usize>) -> Ids {
    let mut some = Ids::with_capacity(ids.id_type(), range.len());
    some.extend_from(ids, range);
    some
}

/// Sends each delivery to its worker; returns the deliveries that arrived, by part.
fn deliver(cluster: &Cluster, outgoing: Outgoing) -> Result<Vec<Vec<Delivery>>, InferError> {
    let threads = cluster.num_threads();
    let outgoing = Arc::new(Mutex::new(outgoing));
    let received = run_workers(cluster, move |peer| {
        let mine = {
            let mut all = outgoing.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut all[peer.index() % threads])
        };
        peer.shuffle::<Delivery, InferError>(mine.into_iter().map(Ok))
    })?;
    let mut parts: BTreeMap<usize, Vec<Delivery>> = BTreeMap::new();
    for (_, delivery) in received.into_iter().flatten() {
        parts.entry(delivery.part).or_default().push(delivery);
    }
    Ok(parts.into_values().collect())
}
