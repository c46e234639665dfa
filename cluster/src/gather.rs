//! Sends one value of each process to all processes, or to the first.

use crate::{Cluster, ClusterError, run_workers};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Sends a value to all processes; returns the values of all processes, in their order.
///
/// # Errors
///
/// If another process fails.
///
/// # Panics
///
/// If the value contains a map whose keys are not strings.
pub fn gather_processes<T>(cluster: &Cluster, value: T) -> Result<Vec<T>, ClusterError>
where
    T: Serialize + DeserializeOwned,
{
    gather(cluster, value, cluster.num_processes())
}

/// Sends a value to process 0; returns the values of all processes, in their order, there, and
/// nothing elsewhere.
///
/// # Errors
///
/// As [`gather_processes`].
///
/// # Panics
///
/// As [`gather_processes`].
pub fn gather_to_first<T>(cluster: &Cluster, value: T) -> Result<Vec<T>, ClusterError>
where
    T: Serialize + DeserializeOwned,
{
    gather(cluster, value, 1)
}

/// Sends a value to the first `receivers` processes.
fn gather<T>(cluster: &Cluster, value: T, receivers: usize) -> Result<Vec<T>, ClusterError>
where
    T: Serialize + DeserializeOwned,
{
    if cluster.num_processes() == 1 {
        return Ok(vec![value]);
    }
    // Sent as JSON: the encoding of messages has no field names, which optional fields need.
    let text = serde_json::to_string(&value).expect("values have string keys only");
    let threads = cluster.num_threads();
    let mut texts = run_workers(cluster, move |peer| {
        let sent = if peer.leads_process() { receivers } else { 0 };
        peer.shuffle((0..sent).map(|process| Ok((process * threads, text.clone()))))
    })?;
    let of_processes = texts.swap_remove(0).into_iter();
    let read = |(_, sent): (usize, String)| serde_json::from_str(&sent).expect("it was written so");
    Ok(of_processes.map(read).collect())
}
