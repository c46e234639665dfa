//! The columns of vectors in an output, and the numbers in them.

use crate::InferError;
use crate::model::TrainedModel;
use crate::plan::InferPlan;
use crate::predict::{normalize, probabilities};
use gnn::{Architecture, Dense};
use schemas::{EmbeddingColumns, IdType};
use std::sync::Arc;

/// Bytes of vectors in a row group. Decides the bytes of a file.
pub(crate) const GROUP_BYTES: usize = 16 << 20;

/// Returns the numbers of each column of vectors, for some nodes.
pub(crate) fn vectors(
    columns: &EmbeddingColumns,
    mut embedding: Dense,
    logits: Option<&Dense>,
    (arch, is_normalized): (&Architecture, bool),
) -> Vec<Vec<f32>> {
    if is_normalized {
        normalize(&mut embedding.values, embedding.cols);
    }
    let mut vectors = vec![embedding.values];
    for (name, _) in &columns.vectors[1..] {
        let logits = logits.expect("computed where they are written");
        vectors.push(match *name {
            "probability" => probabilities(logits, arch),
            _ => logits.values.clone(),
        });
    }
    vectors
}

/// Returns the columns that the plan writes.
pub(crate) fn embedding_columns(
    plan: &InferPlan,
    trained: &TrainedModel,
    id_type: IdType,
    embedding_layer: usize,
) -> Result<EmbeddingColumns, InferError> {
    let arch = trained.model.architecture();
    let mut vectors = vec![("embedding", arch.output_dim(embedding_layer))];
    for (is_wanted, name) in [(plan.logits, "logits"), (plan.probabilities, "probability")] {
        vectors.extend(is_wanted.then_some((name, arch.out_dim)));
    }
    let nodes = plan.nodes.as_ref().filter(|_| !plan.columns.is_empty());
    let passed = nodes
        .map(|nodes| nodes.read_passed(&plan.columns))
        .transpose()?;
    Ok(EmbeddingColumns {
        id_type,
        passed: passed.map(Arc::new),
        vectors,
        precision: plan.precision,
        prediction: plan.prediction.then(|| trained.prediction()),
    })
}
