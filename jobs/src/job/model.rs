//! What a trained model says of the tables of a job that infers with it.

use gnn::MODEL_JSON;
use schemas::{KnownInput, KnownNodes};
use serde_json::Value;

use super::JobSpec;
use crate::cli::Stage;

/// The target type and the node tables of the training of a model.
#[derive(Default)]
pub(super) struct OfModel {
    /// None if nodes have no types, or another stage of the job has the target type.
    pub(super) target_type: Option<String>,
    /// How the tables were read.
    pub(super) known: KnownInput,
}

impl JobSpec {
    /// Reads the description of the model that the selected stages read and do not train, or that a
    /// later run of the job will read, if it trains none. It is empty if there is no such model, or it
    /// cannot be read, which the stage will report.
    pub(super) fn of_model(&self, selected: &[Stage]) -> OfModel {
        let trains = self.train.is_some() && !selected.contains(&Stage::Infer);
        if trains || selected.contains(&Stage::Train) {
            return OfModel::default();
        }
        let infer = self.infer.as_ref();
        let trained = self.train.as_ref().map(|train| &train.output);
        let dir = infer.and_then(|infer| infer.model.as_ref()).or(trained);
        let read = dir.map(|dir| schemas::storage::read_existing_io(&dir.join(MODEL_JSON)));
        let bytes = read.and_then(Result::ok).unwrap_or_default();
        let Ok(file) = serde_json::from_slice::<Value>(&bytes) else {
            return OfModel::default();
        };
        let is_alone = self.flatten.is_none() && self.train.is_none();
        let target_type = file["architecture"]["target_type"].as_str();
        OfModel {
            target_type: target_type.filter(|_| is_alone).map(str::to_owned),
            known: KnownNodes::of_model(&file["extra"]["graph"], &file["extra"]["columns"]),
        }
    }
}
