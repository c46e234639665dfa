//! The last round of several processes: each computes the rows of its own nodes and sends them to
//! the processes that write the parts.

use crate::InferError;
use crate::exchange::Crossing;
use crate::last_round::{PartsWriter, Written};
use crate::layer::LayerInput;
use crate::part::{Computed, Part};
use cluster::{Cluster, run_workers};
use schemas::{Ids, Labels, NodeIdx};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

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

impl PartsWriter<'_> {
    /// Computes the last layer and writes the parts that are not committed yet.
    ///
    /// Part `p` holds the written nodes from number `p * rows_per_part` on, in order of ids, for
    /// any number of threads and processes.
    pub(crate) fn run(&self, input: &LayerInput) -> Result<Written, InferError> {
        if self.num_written() == 0 {
            return self.write_no_row();
        }
        match self.rounds.graph.cluster().num_processes() {
            1 => self.run_alone(input),
            _ => self.run_among(input),
        }
    }

    /// Writes one part without rows, so that readers find the columns.
    fn write_no_row(&self) -> Result<Written, InferError> {
        let is_first = self.rounds.graph.cluster().process() == 0;
        if is_first && self.output.committed(0).is_none() {
            let id_type = self.columns.id_type;
            self.write(0, &[], |_| Ids::new(id_type), &[])?;
        }
        Ok(Written::default())
    }

    /// Computes the last layer of the own nodes and writes this process's share of the parts.
    ///
    /// Works in waves of one part for each worker of all processes. So a process holds the rows of
    /// about two parts for each of its own workers.
    fn run_among(&self, input: &LayerInput) -> Result<Written, InferError> {
        let cluster = self.rounds.graph.cluster();
        let mut done = Written::default();
        let mut crossing = Crossing::default();
        for wave in self.open_parts().chunks(cluster.num_workers()) {
            let computed = Mutex::new(Vec::new());
            let parts = self.parts(wave.to_vec());
            let difference = self.compute_all(&parts, input, |part, blocks| {
                let delivery = self.delivery(part, blocks);
                let mut all = computed.lock().unwrap_or_else(PoisonError::into_inner);
                all.push(delivery);
                Ok(())
            })?;
            done.difference.add(&difference);
            let computed = computed
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner);
            let outgoing = self.address(wave, computed, &mut crossing);
            let received = deliver(cluster, outgoing)?;
            let strange = received
                .iter()
                .flatten()
                .filter(|of| of.from != cluster.process());
            crossing.bytes_received += strange.map(|of| self.num_bytes(of)).sum::<u64>();
            let started = Instant::now();
            self.rounds.threads.run(
                received.len(),
                || (),
                |(), at| self.write_received(&received[at]),
            )?;
            done.writing += started.elapsed();
        }
        crossing.bytes_least = crossing.bytes_received;
        done.crossing = Some(crossing);
        Ok(done)
    }

    /// Joins the blocks of a part to one delivery.
    fn delivery(&self, part: &Part, blocks: Vec<Computed>) -> Delivery {
        let graph = self.rounds.graph;
        let nodes = part.rows.iter().map(|&row| graph.node(row));
        let mut rows = self.no_rows();
        for block in blocks {
            let columns = rows.vectors.iter_mut().zip(block.vectors);
            columns.for_each(|(column, more)| column.extend(more));
            rows.predicted.extend(&block.predicted);
        }
        Delivery {
            part: part.index,
            from: graph.cluster().process(),
            nodes: nodes.collect(),
            ids: graph.ids(&part.rows),
            rows,
        }
    }

    /// Returns the bytes of the vectors in a delivery.
    fn num_bytes(&self, delivery: &Delivery) -> u64 {
        4 * (delivery.nodes.len() * self.widths().iter().sum::<usize>()) as u64
    }

    fn no_rows(&self) -> Computed {
        Computed {
            vectors: vec![Vec::new(); self.columns.vectors.len()],
            predicted: Labels::empty(self.columns.prediction.as_ref()),
        }
    }

    /// Returns the rows to send, by thread: the parts of a wave go to the processes in turn.
    fn address(
        &self,
        wave: &[usize],
        computed: Vec<Delivery>,
        crossing: &mut Crossing,
    ) -> Outgoing {
        let cluster = self.rounds.graph.cluster();
        let (processes, threads) = (cluster.num_processes(), cluster.num_threads());
        let mut outgoing = vec![Vec::new(); threads];
        for delivery in computed {
            let place = wave.binary_search(&delivery.part).expect("of this wave");
            let (process, thread) = (place % processes, place / processes);
            if process != cluster.process() {
                crossing.bytes_sent += self.num_bytes(&delivery);
            }
            outgoing[thread].push((process * threads + thread, delivery));
        }
        outgoing
    }

    /// Writes the part whose rows arrived.
    fn write_received(&self, deliveries: &[Delivery]) -> Result<(), InferError> {
        let part = deliveries[0].part;
        if self.output.committed(part).is_some() {
            return Ok(());
        }
        // The nodes of each delivery ascend, and no node is in two deliveries.
        let ends = deliveries.iter().enumerate().flat_map(|(from, delivery)| {
            let nodes = delivery.nodes.iter().enumerate();
            nodes.map(move |(at, &node)| (node, from, at))
        });
        let mut order: Vec<(NodeIdx, usize, usize)> = ends.collect();
        order.sort_unstable();
        let widths = self.widths();
        let mut rows = self.no_rows();
        let mut ids = Ids::with_capacity(self.columns.id_type, order.len());
        for &(_, from, at) in &order {
            let delivery = &deliveries[from];
            ids.push_from(&delivery.ids, at);
            let columns = rows.vectors.iter_mut().zip(&delivery.rows.vectors);
            for ((column, of), &width) in columns.zip(&widths) {
                column.extend_from_slice(&of[at * width..(at + 1) * width]);
            }
            if self.columns.prediction.is_some() {
                let at = u32::try_from(at).expect("nodes fit 32 bits");
                rows.predicted.push_from(&delivery.rows.predicted, at);
            }
        }
        let nodes: Vec<NodeIdx> = order.into_iter().map(|(node, _, _)| node).collect();
        let ids_of = |range: std::ops::Range<usize>| {
            let mut some = Ids::new(self.columns.id_type);
            some.extend_from(&ids, range);
            some
        };
        self.write(part, &nodes, ids_of, &[rows])
    }
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
