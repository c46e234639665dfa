//! Collects the columns of nodes that a model reads besides features: degrees, weights, self-loops.

use crate::InferError;
use crate::exchange::Exchange;
use crate::halo::Halo;
use crate::locate::locate;
use gnn::{Architecture, NodeColumns};
use rayon::prelude::*;
use schemas::{LocalIdx, NodeIdx};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use store::{Partition, Store};

/// Fewest nodes that a thread takes at once.
const NODES_PER_TASK: usize = 1 << 10;

/// Collects the columns that a model reads, of all nodes that have a row, in the order of rows.
pub(crate) fn node_columns(
    store: &Store,
    halo: Option<&Halo>,
    arch: &Architecture,
) -> Result<NodeColumns, InferError> {
    let columns = |value: Column| column(store, halo, value);
    let weights = |value: fn(&Partition, LocalIdx) -> Option<f32>| {
        let bits = columns(Box::new(move |partition, local| {
            value(partition, local).unwrap_or_default().to_bits()
        }))?;
        Ok::<_, InferError>(bits.into_iter().map(f32::from_bits).collect::<Vec<f32>>())
    };
    let has_loops = store.meta().graph.relations[0].self_loops;
    let loops = Box::new(|p: &Partition, local| p.self_loops(0, local).unwrap_or_default());
    Ok(NodeColumns::new(
        columns(Box::new(|p, local| p.in_degree(0, local)))?,
        arch.edge_weight
            .then(|| weights(|p, local| p.in_weight(0, local)))
            .transpose()?,
        has_loops.then(|| columns(loops)).transpose()?,
        (has_loops && arch.edge_weight)
            .then(|| weights(|p, local| p.self_weight(0, local)))
            .transpose()?,
    )?)
}

/// Returns one number of a node, from its partition and its position there.
type Column = Box<dyn Fn(&Partition, LocalIdx) -> u32 + Send + Sync>;

/// Collects one number of each node that has a row, in the order of rows.
fn column(store: &Store, halo: Option<&Halo>, value: Column) -> Result<Vec<u32>, InferError> {
    let of_node = |node: NodeIdx| {
        let (partition, local) = locate(store, node);
        value(partition, local)
    };
    let Some(Halo { local, exchanges }) = halo else {
        let placement = store.placement();
        if store.is_cached_with(0) {
            let nodes = (0..placement.num_nodes()).into_par_iter();
            let nodes = nodes.with_min_len(NODES_PER_TASK).map(NodeIdx::from_index);
            return Ok(nodes.map(of_node).collect());
        }
        // In the order of the files.
        let mut values = vec![0; placement.num_nodes()];
        for worker in 0..placement.workers() {
            let partition = store.partition(worker);
            for local in placement.locals(worker) {
                values[placement.node(worker, local).index()] = value(partition, local);
            }
        }
        return Ok(values);
    };
    let own = local.own().par_iter().map(|&node| of_node(node)).collect();
    let (_, exchange) = exchanges.last_key_value().expect("a model has a layer");
    with_halo(own, exchange, (0, local.halo().len()))
}

/// Adds the numbers of a halo's nodes behind those of own nodes. `first` is the row of the first
/// own node; the rows of the halo follow those of the own nodes.
pub(crate) fn with_halo(
    own: Vec<u32>,
    exchange: &Arc<Exchange>,
    (first, num_halo): (usize, usize),
) -> Result<Vec<u32>, InferError> {
    let halo: Vec<AtomicU32> = (0..num_halo).map(|_| AtomicU32::new(0)).collect();
    let (own, halo) = (Arc::new(own), Arc::new(halo));
    let (read, take) = (Arc::clone(&own), Arc::clone(&halo));
    let first_halo = first + own.len();
    exchange.run(
        1,
        move |rows| Ok(read[rows.start - first..rows.end - first].to_vec()),
        move |row, words| {
            take[row.index() - first_halo].store(words[0], Ordering::Relaxed);
            Ok(())
        },
    )?;
    let behind = halo.iter().map(|word| word.load(Ordering::Relaxed));
    Ok(own.iter().copied().chain(behind).collect())
}
