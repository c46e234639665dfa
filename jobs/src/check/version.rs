//! Predicts what versions compute, from what is kept and the store of their parents.

use std::sync::Arc;

use graphflat::{FlattenDecision, predict_flatten_version};
use graphinfer::{Decision, predict_version};
use schemas::progress::Progress;
use serde_json::Value;
use store::{Store, StoreMeta};

use crate::check::taken::is_done;
use crate::cli::Stage;
use crate::error::JobError;
use crate::job::Job;
use crate::stores::needed_store;

/// What the versions of a job compute; none for a stage that writes none, or whose store is not
/// there.
pub(super) struct Predicted {
    features: Option<FlattenDecision>,
    embeddings: Option<Decision>,
    /// Whether the job trains the model of its embeddings.
    is_trained: bool,
    /// Whether the store is split among processes, so that `run` alone predicts versions.
    is_split: bool,
}

/// Predicts the versions that a job writes.
pub(super) fn predict(job: &Job) -> Result<Predicted, JobError> {
    let features = match (job.flatten_version(), &job.flatten) {
        // It is skipped, even if its parent is gone.
        (Some(_), Some(_)) if is_done(job, Stage::Flatten) => None,
        (Some(version), Some(plan)) => on_store(job, Stage::Flatten, |store| {
            let of_version = (&*job.work_dir, version);
            Ok(predict_flatten_version(plan, store, of_version)?)
        })?,
        _ => None,
    };
    let embeddings = match (job.version(), &job.infer) {
        (Some(_), Some(_)) if is_done(job, Stage::Infer) => None,
        (Some(version), Some(plan)) if job.brings_model() => {
            on_store(job, Stage::Infer, |store| {
                Ok(predict_version(plan, store, version)?)
            })?
        }
        _ => None,
    };
    Ok(Predicted {
        features,
        embeddings,
        is_trained: job.version().is_some() && job.infer.is_some() && !job.brings_model(),
        is_split: false,
    })
}

/// Predicts on the store of a stage; none if it is not there.
fn on_store<T: Send>(
    job: &Job,
    stage: Stage,
    predict: impl FnOnce(&Store) -> Result<T, JobError> + Send,
) -> Result<Option<T>, JobError> {
    let Some(of_store) = needed_store(job, stage)? else {
        return Ok(None);
    };
    // A store of other workers would be built again.
    let found = StoreMeta::read(&of_store.dir)?;
    if found.is_none_or(|found| found.workers != of_store.workers) {
        return Ok(None);
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(job.workers);
    let pool = pool.build();
    let pool = pool.map_err(|error| JobError::from(schemas::threads::refused(error)))?;
    pool.install(|| {
        let quiet: Progress = Arc::new(|_| {});
        let store = store::open_or_build(&of_store, &quiet)?;
        predict(&store).map(Some)
    })
}

impl Predicted {
    /// Predicts nothing, since the store is split among processes.
    pub(super) fn of_split_store(job: &Job) -> Self {
        let has_features = job.flatten_version().is_some() && !is_done(job, Stage::Flatten);
        let has_rows = job.version().is_some() && !is_done(job, Stage::Infer);
        Self {
            features: None,
            embeddings: None,
            is_trained: false,
            is_split: has_features || has_rows,
        }
    }

    /// Returns the lines that describe the versions.
    pub(super) fn lines(&self) -> Vec<String> {
        let features = self.features.iter().flat_map(|of| {
            let lines = std::iter::once(of.summary()).chain(of.lines());
            lines.map(|line| format!("features  {line}"))
        });
        let embeddings = self.embeddings.iter().flat_map(|of| {
            let lines = std::iter::once(of.summary()).chain(of.lines());
            lines.map(|line| format!("version  {line}"))
        });
        let trained = self.is_trained.then(|| {
            "version  full: all rows are computed, because the job trains the model".to_owned()
        });
        let split = self.is_split.then(|| {
            "version  run says what the changes reach: the store is split among processes"
                .to_owned()
        });
        let lines = features.chain(embeddings).chain(trained);
        lines.chain(split).collect()
    }

    /// Adds the versions to a report.
    pub(super) fn add_to(&self, report: &mut Value) {
        if let Some(features) = &self.features {
            report["features_version"] = features.to_json();
        }
        if let Some(embeddings) = &self.embeddings {
            report["version"] = embeddings.to_json();
        }
    }
}
