//! Exchanges one value of each process with all processes.

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
    if cluster.num_processes() == 1 {
        return Ok(vec![value]);
    }
    // Sent as JSON: the encoding of messages has no field names, which optional fields need.
    let text = serde_json::to_string(&value).expect("values have string keys only");
    let (processes, threads) = (cluster.num_processes(), cluster.num_threads());
    let mut texts = run_workers(cluster, move |peer| {
        let senders = if peer.leads_process() { processes } else { 0 };
        peer.shuffle((0..senders).map(|process| Ok((process * threads, text.clone()))))
    })?;
    let of_processes = texts.swap_remove(0).into_iter();
    let read = |(_, sent): (usize, String)| serde_json::from_str(&sent).expect("it was written so");
    Ok(of_processes.map(read).collect())
}
