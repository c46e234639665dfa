//! Runs the rounds before the last one, after those that a killed run has finished.

use crate::InferError;
use crate::checkpoint::{Checkpoint, RoundRecord, RoundRows};
use crate::resume::resume;
use crate::round::RoundStats;
use cluster::gather_processes;
use gnn::SharedRows;
use schemas::{Event, Progress};
use store::Store;

/// The rounds of one model and one sampling.
pub(crate) trait InnerRounds {
    /// Returns the number of layers that are computed, which is the number of the last round.
    fn num_layers(&self) -> usize;

    /// Returns the layer whose rows are kept for the output, also if no later layer reads them.
    fn embedding_layer(&self) -> usize;

    /// Tells whether the rows of all layers are kept until the output is finished.
    fn keeps_rows(&self) -> bool {
        false
    }

    /// Returns the store, whose processes share the work.
    fn store(&self) -> &Store;

    /// Runs a round before the last one; round 0 reads the features.
    fn run(
        &self,
        round: usize,
        before: &RoundRows,
        checkpoint: &Checkpoint,
    ) -> Result<(RoundRecord, RoundStats), InferError>;
}

/// Runs the rounds before the last one that are not finished yet. Returns the rows that the last
/// round reads, and the rows of the embedding layer if an earlier round computes it. `resumed`
/// gets the first round that is run.
pub(crate) fn run_inner(
    rounds: &impl InnerRounds,
    checkpoint: &mut Checkpoint,
    resumed: impl FnOnce(usize),
    mut done: impl FnMut(RoundStats),
) -> Result<(RoundRows, Option<SharedRows>), InferError> {
    let (last, cluster) = (rounds.num_layers(), rounds.store().cluster());
    let (mut next, mut before, mut inner) = resume(rounds, checkpoint)?;
    resumed(next);
    while next < last {
        cluster.set_phase(&format!("infer, round {next}/{}", last + 1));
        let (record, stats) = rounds.run(next, &before, checkpoint)?;
        // Layers after the first read no features.
        if next <= 1 {
            rounds.store().release_nodes();
        }
        before = checkpoint.map(&record)?;
        let embedding_layer = rounds.embedding_layer();
        if next == embedding_layer {
            inner.clone_from(&before.rows);
        }
        checkpoint.add(record)?;
        // All processes record this round before one removes the round before it. So after any kill
        // there is a round that all processes have.
        gather_processes(cluster, ())?;
        let keeps_all = rounds.keeps_rows();
        checkpoint.retain(|round| {
            round == next || round == embedding_layer || (keeps_all && round > 0)
        })?;
        done(stats);
        next += 1;
    }
    Ok((before, inner))
}

/// Reports where a stopped run is resumed: the next round, and the number of whole parts.
pub(crate) fn report_resumed(
    progress: &Progress,
    num_layers: usize,
    (next, num_parts): (usize, usize),
) {
    if next == 0 && num_parts == 0 {
        return;
    }
    let rounds = num_layers + 1;
    progress(&Event {
        stage: "infer",
        phase: "resume".to_owned(),
        done: next as u64,
        total: 0,
        message: Some(format!(
            "goes on with round {} of {rounds}; {num_parts} parts are whole",
            next + 1
        )),
        fields: serde_json::Value::Null,
    });
}

/// Reports a finished round.
pub(crate) fn report(progress: &Progress, num_layers: usize, round: usize) {
    progress(&Event {
        stage: "infer",
        phase: "round".to_owned(),
        done: round as u64,
        total: num_layers as u64 + 1,
        message: None,
        fields: serde_json::json!({}),
    });
}
