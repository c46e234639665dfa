//! The columns of vectors in an output, and the numbers in them.

use crate::InferError;
use crate::model::Record;
use crate::plan::InferPlan;
use crate::predict::{normalize, probabilities};
use gnn::{Dense, Task};
use schemas::{EmbeddingColumns, IdType};
use std::sync::Arc;

/// Bytes of vectors in a row group. Decides the bytes of a file.
pub(crate) const GROUP_BYTES: usize = 16 << 20;

/// Returns the numbers of each column of vectors, for some nodes.
pub(crate) fn vectors(
    columns: &EmbeddingColumns,
    mut embedding: Dense,
    logits: Option<&Dense>,
    (task, is_normalized): (Task, bool),
) -> Vec<Vec<f32>> {
    if is_normalized {
        normalize(&mut embedding.values, embedding.cols);
    }
    let mut vectors = vec![embedding.values];
    for (name, _) in &columns.vectors[1..] {
        let logits = logits.expect("computed where they are written");
        vectors.push(match *name {
            "probability" => probabilities(logits, task),
            _ => logits.values.clone(),
        });
    }
    vectors
}

/// Tells whether some columns are computed from logits.
pub(crate) fn reads_logits(columns: &EmbeddingColumns) -> bool {
    columns.prediction.is_some() || columns.vectors.len() > 1
}

/// Returns the columns that the plan writes.
pub(crate) fn embedding_columns(
    plan: &InferPlan,
    record: &Record,
    id_type: IdType,
    embedding_layer: usize,
) -> Result<EmbeddingColumns, InferError> {
    let mut vectors = vec![("embedding", record.shape.output_dim(embedding_layer))];
    for (is_wanted, name) in [(plan.logits, "logits"), (plan.probabilities, "probability")] {
        vectors.extend(is_wanted.then_some((name, record.shape.out_dim)));
    }
    let nodes = plan.nodes.as_ref().filter(|_| !plan.columns.is_empty());
    let passed = nodes
        .map(|nodes| nodes.read_passed(&plan.columns))
        .transpose()?;
    Ok(EmbeddingColumns {
        are_changes: false,
        id_type,
        passed: passed.map(Arc::new),
        vectors,
        precision: plan.precision,
        prediction: record.prediction().filter(|_| plan.prediction),
    })
}
