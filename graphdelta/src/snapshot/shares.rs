//! Shares of a snapshot: each of several processes reads some units of a table, and tells the
//! others what it has found. Messages are binary, so that all numbers keep their bits.

use cluster::{Cluster, Message, run_workers};

use crate::DeltaError;

/// What a process has found in parts of the whole, each with its position.
pub(super) type Found<T> = Vec<(usize, T)>;

/// Sends what this process has found to all others; returns what all have found, in the order of
/// the positions.
///
/// # Errors
///
/// If another process fails.
pub(super) fn tell_all<T: Message + Sync>(
    cluster: &Cluster,
    own: Found<T>,
) -> Result<Vec<T>, DeltaError> {
    let all = exchange(cluster, own, |_, part| part.clone())?;
    Ok(all.into_iter().map(|(_, part)| part).collect())
}

/// Sends each process `share` of what this process has found; returns this process's shares of what
/// all have found, in the order of the positions.
///
/// # Errors
///
/// If another process fails.
pub(super) fn exchange<T: Message + Sync>(
    cluster: &Cluster,
    own: Found<T>,
    share: impl Fn(usize, &T) -> T + Send + Sync + 'static,
) -> Result<Found<T>, DeltaError> {
    if cluster.num_processes() == 1 {
        return Ok(own);
    }
    let (threads, processes) = (cluster.num_threads(), cluster.num_processes());
    let mut received = run_workers(cluster, move |peer| {
        let sent = if peer.leads_process() { &own[..] } else { &[] };
        let outgoing = sent.iter().flat_map(|(at, part)| {
            let to = (0..processes).map(|process| {
                let message = (*at, share(process, part));
                Ok::<_, DeltaError>((process * threads, message))
            });
            to.collect::<Vec<_>>()
        });
        peer.shuffle(outgoing)
    })?;
    let of_first = received.swap_remove(0).into_iter();
    let mut all: Found<T> = of_first.map(|(_, part)| part).collect();
    all.sort_by_key(|(at, _)| *at);
    Ok(all)
}
