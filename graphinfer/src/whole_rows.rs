//! Files of the rows of all nodes, in each of several processes, from the rows that each has
//! computed: versions read the rows of all nodes.

use crate::InferError;
use crate::rows::{RowRecord, RowWriter};
use cluster::{Cluster, run_workers};
use gnn::{RowFormat, SharedRows};
use schemas::{NodeIdx, Row};
use std::path::PathBuf;
use std::sync::Arc;

/// Rows that a message carries.
const ROWS: usize = 1 << 12;

/// The nodes of this process, each with its row.
pub(crate) type OwnRows = Arc<Vec<(Row, NodeIdx)>>;

/// Writes a file of the rows of `num_nodes` nodes, by number: those of this process, which are in
/// `rows`, and those that other processes send.
pub(crate) fn write_whole(
    cluster: &Cluster,
    (own, rows): (&OwnRows, SharedRows),
    num_nodes: usize,
    path: PathBuf,
) -> Result<RowRecord, InferError> {
    let cols = rows.cols();
    let writer = Arc::new(RowWriter::create(path, (num_nodes, cols), RowFormat::F32)?);
    let (to, own, threads) = (Arc::clone(&writer), Arc::clone(own), cluster.num_threads());
    run_workers(cluster, move |peer| {
        let sent = if peer.leads_process() { &own[..] } else { &[] };
        let receivers: Vec<usize> = (0..peer.peers()).step_by(threads).collect();
        let outgoing = sent.chunks(ROWS).flat_map(|of| {
            let nodes: Vec<NodeIdx> = of.iter().map(|(_, node)| *node).collect();
            let mut values = Vec::with_capacity(of.len() * cols);
            for (row, _) in of {
                let at = row.index() * cols;
                values.extend_from_slice(&rows.values().f32()[at..at + cols]);
            }
            let message = |&worker: &usize| Ok((worker, (nodes.clone(), values.clone())));
            receivers.iter().map(message).collect::<Vec<_>>()
        });
        let file = Arc::clone(&to);
        peer.shuffle_each(
            outgoing,
            move |_, _, (nodes, values): (Vec<NodeIdx>, Vec<f32>)| {
                let mut of_nodes = nodes.iter().zip(values.chunks_exact(cols));
                of_nodes.try_for_each(|(node, row)| file.write(node.index(), row))
            },
        )
    })?;
    let writer = Arc::into_inner(writer).expect("the workers have ended");
    writer.finish()
}
