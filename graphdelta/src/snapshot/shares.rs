//! Shares of a snapshot: each of several processes reads some units of a table, and tells the
//! others what it has found.

use cluster::{Cluster, Message, run_workers};

use crate::DeltaError;

/// What the units of a table hold, each with its position.
pub(super) type OfUnits<T> = Vec<(usize, T)>;

/// Sends what this process has found to all others; returns what all have found, in the order of
/// the units.
///
/// # Errors
///
/// If another process fails.
pub(super) fn gather<T: Message + Sync>(
    cluster: &Cluster,
    own: OfUnits<T>,
) -> Result<Vec<T>, DeltaError> {
    let found = exchange(cluster, own, |_, of_unit| of_unit.clone())?;
    Ok(found.into_iter().map(|(_, of_unit)| of_unit).collect())
}

/// Sends each process `share` of what this process has found in its units; returns this process's
/// shares of what all have found, in the order of the units.
///
/// # Errors
///
/// If another process fails.
pub(super) fn exchange<T: Message + Sync>(
    cluster: &Cluster,
    own: OfUnits<T>,
    share: impl Fn(usize, &T) -> T + Send + Sync + 'static,
) -> Result<OfUnits<T>, DeltaError> {
    if cluster.num_processes() == 1 {
        return Ok(own);
    }
    let (threads, processes) = (cluster.num_threads(), cluster.num_processes());
    let mut received = run_workers(cluster, move |peer| {
        let sent = if peer.leads_process() { &own[..] } else { &[] };
        let outgoing = sent.iter().flat_map(|(unit, found)| {
            let to = (0..processes).map(|process| {
                let message = (*unit, share(process, found));
                Ok::<_, DeltaError>((process * threads, message))
            });
            to.collect::<Vec<_>>()
        });
        peer.shuffle(outgoing)
    })?;
    let mut found: OfUnits<T> = received
        .swap_remove(0)
        .into_iter()
        .map(|(_, of_unit)| of_unit)
        .collect();
    found.sort_by_key(|(unit, _)| *unit);
    Ok(found)
}
