//! Finds the finished round after which a run is resumed.

use crate::InferError;
use crate::checkpoint::{Checkpoint, RoundRows};
use crate::inner::InnerRounds;
use cluster::gather_processes;
use gnn::SharedRows;

/// The next round to run, the rows that it reads, and the rows of the embedding layer if computed.
pub(crate) type Resumed = (usize, RoundRows, Option<SharedRows>);

/// Returns the next round to run, the rows that it reads, and the rows of the embedding layer if an
/// earlier round computed them. All processes return the same round.
pub(crate) fn resume(
    rounds: &impl InnerRounds,
    checkpoint: &Checkpoint,
) -> Result<Resumed, InferError> {
    let embedding_layer = rounds.embedding_layer();
    let mut found = (0..rounds.num_layers())
        .rev()
        .filter(|&round| {
            let has_rows = |kept| {
                checkpoint
                    .verified(kept)
                    .is_some_and(|of| of.rows.is_some())
            };
            !rounds.keeps_rows() || (1..=round).all(has_rows)
        })
        .filter_map(|round| left_by(round, embedding_layer, checkpoint));
    let cluster = rounds.store().cluster();
    let latest = if cluster.num_processes() == 1 {
        found.next()
    } else {
        let found: Vec<Resumed> = found.collect();
        let own: Vec<usize> = found.iter().map(|(next, _, _)| *next).collect();
        let all = gather_processes(cluster, own)?;
        let is_everywhere = |next: usize| all.iter().all(|of| of.contains(&next));
        found.into_iter().find(|(next, _, _)| is_everywhere(*next))
    };
    Ok(latest.unwrap_or_default())
}

/// Returns the rows of a finished round with the number of the next; none if a file is missing or
/// changed.
fn left_by(round: usize, embedding_layer: usize, checkpoint: &Checkpoint) -> Option<Resumed> {
    let rows = checkpoint.verified(round)?;
    let inner = match round.cmp(&embedding_layer) {
        std::cmp::Ordering::Less => None,
        std::cmp::Ordering::Equal => Some(rows.rows.clone()?),
        std::cmp::Ordering::Greater => Some(checkpoint.verified(embedding_layer)?.rows?),
    };
    Some((round + 1, rows, inner))
}
