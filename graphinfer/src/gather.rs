//! Exchanges lists between all processes.

use crate::InferError;
use cluster::{Cluster, run_workers};
use schemas::NodeIdx;
use serde::Serialize;
use std::sync::Arc;

/// Number of items of a list that one message holds.
pub(crate) const ITEMS_A_MESSAGE: usize = 1 << 16;

/// Sends each process a list, at most `items` items a message; returns the received lists, by
/// process.
pub(crate) fn send_lists<T>(
    cluster: &Cluster,
    lists: Vec<Arc<Vec<T>>>,
    items: usize,
) -> Result<Vec<Vec<T>>, InferError>
where
    T: Clone + Serialize + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    let threads = cluster.num_threads();
    let mut told = run_workers(cluster, move |peer| {
        let is_first = peer.leads_process();
        let messages = lists.iter().enumerate().filter(|_| is_first);
        let messages = messages.flat_map(|(process, list)| {
            let chunks = list.chunks(items);
            chunks.map(move |chunk| Ok((process * threads, chunk.to_vec())))
        });
        peer.shuffle::<Vec<T>, InferError>(messages)
    })?;
    let mut by_process: Vec<Vec<T>> = vec![Vec::new(); cluster.num_processes()];
    for (from, chunk) in told.swap_remove(0) {
        by_process[from / threads].extend(chunk);
    }
    Ok(by_process)
}

/// Merges the nodes that each process found for the positions of one list. The inner error is the
/// first position whose node no process has found.
pub(crate) fn gather_found(
    cluster: &Cluster,
    own: Vec<Option<NodeIdx>>,
) -> Result<Result<Vec<NodeIdx>, usize>, InferError> {
    let mut all = own;
    if cluster.num_processes() > 1 {
        let places = (0_u64..).zip(&all);
        let found = places.filter_map(|(at, node)| Some((at, (*node)?)));
        let found: Arc<Vec<(u64, NodeIdx)>> = Arc::new(found.collect());
        let told = send_lists(
            cluster,
            vec![found; cluster.num_processes()],
            ITEMS_A_MESSAGE,
        )?;
        for (at, node) in told.into_iter().flatten() {
            let at = usize::try_from(at).expect("a place in a list");
            all[at] = Some(node);
        }
    }
    match all.iter().position(Option::is_none) {
        Some(place) => Ok(Err(place)),
        None => Ok(Ok(all.into_iter().flatten().collect())),
    }
}
