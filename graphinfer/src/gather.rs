//! Exchanges lists between all processes, and finds nodes of all of them.

use crate::InferError;
use cluster::{Cluster, run_workers};
use rayon::prelude::*;
use schemas::{Ids, NodeIdx, Row};
use serde::Serialize;
use std::cmp::Ordering;
use std::ops::Range;
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

/// Finds the nodes with some ids among `own_rows`, which are in the order of ids, of all processes;
/// `id` returns the id of a row, `node` its node. The nodes ascend, without duplicates. The inner
/// error is the position of an id that no node has.
pub(crate) fn find<'a>(
    cluster: &Cluster,
    ids: &Ids,
    own_rows: Range<usize>,
    id: impl Fn(Row) -> (&'a Ids, usize) + Sync,
    node: impl Fn(Row) -> NodeIdx + Sync,
) -> Result<Result<Vec<NodeIdx>, usize>, InferError> {
    let find_one = |at: usize| {
        let Range {
            start: mut low,
            end: mut high,
        } = own_rows.clone();
        while low < high {
            let middle = low + (high - low) / 2;
            let (of_type, type_row) = id(Row::from_index(middle));
            match of_type.cmp(type_row, ids, at) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Some(node(Row::from_index(middle))),
                Ordering::Greater => high = middle,
            }
        }
        None
    };
    let own: Vec<Option<NodeIdx>> = (0..ids.len()).into_par_iter().map(find_one).collect();
    let nodes = gather_found(cluster, own)?;
    Ok(nodes.map(|mut found| {
        found.sort_unstable();
        found.dedup();
        found
    }))
}

/// Merges the nodes that each process found for the positions of one list. The inner error is the
/// first position whose node no process has found.
fn gather_found(
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
