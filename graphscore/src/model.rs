//! The decoder of a model, and the embeddings that it fits.

use std::path::Path;

use gnn::{Decoder, MODEL_JSON, MODEL_WEIGHTS, Scorer};
use graphtrainer::load_any_with;
use schemas::EmbeddingsDataset;
use schemas::xxh::file_checksum;
use serde_json::Value;

use crate::ScoreError;
use crate::plan::ScorePlan;

/// Reads the decoder of a model.
///
/// # Errors
///
/// If the model cannot be read, or is none of links.
pub(crate) fn open_decoder(dir: &Path) -> Result<Scorer, ScoreError> {
    let (model, _) = load_any_with(dir, schemas::storage::read_existing_io)?;
    model.scorer().ok_or_else(|| ScoreError::Model {
        dir: dir.to_owned(),
        problem: "was trained on labels of nodes, so it has no decoder; [input.pairs] trains one"
            .to_owned(),
    })
}

impl ScorePlan {
    /// Reads the decoder of the model.
    ///
    /// # Errors
    ///
    /// If the model cannot be read, or is none of links.
    pub fn decoder(&self) -> Result<Decoder, ScoreError> {
        let key = "score.model";
        let missing = || ScoreError::Key {
            key,
            problem: format!("is {}, which has no model", self.model.display()),
        };
        match schemas::storage::read(&self.model.join(MODEL_JSON))? {
            Some(_) => Ok(open_decoder(&self.model)?.decoder()),
            None => Err(missing()),
        }
    }

    /// Checks that model and embeddings exist, and fit each other and the plan.
    ///
    /// # Errors
    ///
    /// Names the directory and what does not fit.
    pub fn check_input(&self) -> Result<(), ScoreError> {
        let dataset = self.open_embeddings()?;
        self.check_normalized(&open_decoder(&self.model)?, &dataset)
    }

    /// Opens the embeddings, and checks that they are those of the model, and all that is needed.
    ///
    /// # Errors
    ///
    /// If they are missing, or do not fit the model or the plan.
    pub(crate) fn open_embeddings(&self) -> Result<EmbeddingsDataset, ScoreError> {
        let dataset = EmbeddingsDataset::open(&self.input)?;
        let manifest = dataset.manifest();
        let wrong = |problem: String| {
            let dir = self.input.clone();
            Err(ScoreError::Embeddings { dir, problem })
        };
        if manifest
            .version
            .as_ref()
            .is_some_and(|of| !of.kept.is_empty())
        {
            let problem = "are a version, whose rows are not in the order of ids; allowed is an \
                           output that holds all its rows, such as that of `graphflat compact`";
            return wrong(problem.to_owned());
        }
        if self.reads_pairs() && !manifest.input["changes"].is_null() {
            let problem = "are those of a version, whose pairs and edges are not those of the tables \
                           in [input]; `score.exclude_known` and `score.evaluate` need embeddings of \
                           a run without a parent";
            return wrong(problem.to_owned());
        }
        for file in [MODEL_JSON, MODEL_WEIGHTS] {
            let own = file_checksum(&self.model.join(file))?;
            if manifest.plan["model"][file] != own {
                let model = self.model.display();
                return wrong(format!(
                    "are of another model than {model}; run [infer] again"
                ));
            }
        }
        let embedding = &manifest.report["embedding"];
        if embedding["layer"] != embedding["layers"] {
            let problem = format!(
                "are of layer {} of {}; the decoder joins those of the last layer: leave out \
                 `infer.layer`",
                embedding["layer"], embedding["layers"]
            );
            return wrong(problem);
        }
        for of in self.types() {
            let name = &self.graph.types[of].name;
            if dataset.parts_of(name).is_empty() {
                return wrong(format!(
                    "have none of type `{name}`; `infer.types` must name it"
                ));
            }
            let graph = manifest.graph.as_ref();
            let found = graph.and_then(|graph| graph.types.iter().find(|of| of.name == *name));
            let (found, own) = (
                found.map(|of| of.id_type),
                self.graph.types[of].nodes.id_type(),
            );
            if found != Some(own) {
                let found = found.map_or("none".to_owned(), |of| of.to_string());
                return wrong(format!(
                    "have ids of type {found}, the tables of the job {own}"
                ));
            }
        }
        if self.reads_pairs() && manifest.plan["targets"] != "all" {
            let problem = "are of listed nodes only; `score.exclude_known` and `score.evaluate` need \
                           those of all nodes: leave out `infer.targets`";
            return wrong(problem.to_owned());
        }
        Ok(dataset)
    }

    /// Checks that embeddings that were divided by their lengths give the scores of the decoder.
    ///
    /// # Errors
    ///
    /// If they do not.
    pub(crate) fn check_normalized(
        &self,
        scorer: &Scorer,
        dataset: &EmbeddingsDataset,
    ) -> Result<(), ScoreError> {
        let is_normalized = dataset.manifest().plan["normalize"] == Value::Bool(true);
        if is_normalized && scorer.decoder() != Decoder::Cosine {
            let name = scorer.decoder().name();
            return Err(ScoreError::Embeddings {
                dir: self.input.clone(),
                problem: format!(
                    "were divided by their lengths, which changes the scores of the decoder \
                     `{name}`: leave out `infer.normalize`"
                ),
            });
        }
        Ok(())
    }
}
