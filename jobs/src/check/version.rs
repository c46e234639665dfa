//! Predicts what versions compute, from what is kept and the store of their parents.

use std::sync::Arc;

use bytesize::ByteSize;
use graphdelta::Base;
use graphflat::{FlattenDecision, FlattenError, predict_flatten_version};
use graphinfer::{Decision, predict_version};
use schemas::progress::Progress;
use serde_json::Value;
use store::{Store, StoreMeta};

use crate::check::taken::is_done;
use crate::cli::Stage;
use crate::error::JobError;
use crate::job::Job;
use crate::stores::{needed_store, version_of};

/// What the versions of a job compute; none for a stage that writes none, or whose store is not
/// there.
pub(super) struct Predicted {
    features: Option<FlattenDecision>,
    embeddings: Option<Decision>,
    /// Whether the job trains the model of its embeddings.
    is_trained: bool,
    /// Why `run` alone predicts a version.
    unknown: Option<&'static str>,
}

/// Predicts the versions that a job writes. `is_split`: whether its store is that of process 0 of
/// several.
pub(super) fn predict(job: &Job, is_split: bool) -> Result<Predicted, JobError> {
    let writes_features = job.flatten_version().is_some() && !is_done(job, Stage::Flatten);
    let writes_rows = job.version().is_some() && !is_done(job, Stage::Infer);
    let features = match (job.flatten_version(), &job.flatten) {
        // It is skipped, even if its parent is gone.
        _ if !writes_features => None,
        (Some(version), Some(plan)) => on_store(job, Stage::Flatten, is_split, |store| {
            let of_version = (&*job.work_dir, version);
            Ok(predict_flatten_version(plan, store, of_version)?)
        })?,
        _ => None,
    };
    let embeddings = match (job.version(), &job.infer) {
        _ if !writes_rows => None,
        (Some(version), Some(plan)) if job.brings_model() => {
            on_store(job, Stage::Infer, is_split, |store| {
                Ok(predict_version(plan, store, version)?)
            })?
        }
        _ => None,
    };
    let is_trained = writes_rows && !job.brings_model();
    let is_known = (features.is_some() || !writes_features)
        && (embeddings.is_some() || is_trained || !writes_rows);
    Ok(Predicted {
        features,
        embeddings,
        is_trained,
        unknown: (!is_known).then_some(match is_split {
            true => {
                "process 0 has no copies of the other processes' stores that fit the job; a \
                 version makes them"
            }
            false => "it builds the store first",
        }),
    })
}

/// Predicts on the store of a stage; none if it is not there.
fn on_store<T: Send>(
    job: &Job,
    stage: Stage,
    is_split: bool,
    predict: impl FnOnce(&Store) -> Result<T, JobError> + Send,
) -> Result<Option<T>, JobError> {
    let Some(of_store) = needed_store(job, stage)? else {
        return Ok(None);
    };
    let base = version_of(job, stage).and_then(|of| Base::of(&job.work_dir, of.parent));
    // A store of other workers would be built again; one that holds changes is read as it is.
    let found = StoreMeta::read(&of_store.dir)?;
    let is_fit = found.is_some_and(|found| is_split || found.workers == of_store.workers);
    if base.is_none() && !is_fit {
        return Ok(None);
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(job.workers);
    let pool = pool.build();
    let pool = pool.map_err(|error| JobError::from(schemas::threads::refused(error)))?;
    pool.install(|| {
        let quiet: Progress = Arc::new(|_| {});
        let store = match (base, is_split) {
            (Some(base), _) => {
                let opened = base.open(None, &job.work_dir, &of_store);
                Some(opened.map_err(FlattenError::from)?)
            }
            (None, true) => store::open_copies(&of_store)?,
            (None, false) => Some(store::open_or_build(&of_store, &quiet)?),
        };
        store.map(|store| predict(&store)).transpose()
    })
}

impl Predicted {
    /// Returns the lines that describe the versions.
    pub(super) fn lines(&self) -> Vec<String> {
        let features = self.features.iter().flat_map(|of| {
            let bytes = of.bytes.map(|bytes| {
                let bytes = ByteSize(bytes).display().si();
                format!("the neighbourhoods take about {bytes}")
            });
            let lines = std::iter::once(of.summary()).chain(of.lines());
            lines.chain(bytes).map(|line| format!("features  {line}"))
        });
        let embeddings = self.embeddings.iter().flat_map(|of| {
            let bytes = ByteSize(of.bytes).display().si();
            let bytes = format!("the rows take about {bytes}");
            let lines = std::iter::once(of.summary()).chain(of.lines());
            lines.chain([bytes]).map(|line| format!("version  {line}"))
        });
        let trained = self.is_trained.then(|| {
            "version  full: all rows are computed, because the job trains the model".to_owned()
        });
        let unknown = self.unknown.iter();
        let unknown = unknown.map(|why| format!("version  run says what the changes reach: {why}"));
        let lines = features.chain(embeddings).chain(trained);
        lines.chain(unknown).collect()
    }

    /// Adds the versions to a report.
    pub(super) fn add_to(&self, report: &mut Value) {
        if let Some(features) = &self.features {
            report["features_version"] = features.to_json();
        }
        if let Some(embeddings) = &self.embeddings {
            report["version"] = embeddings.to_json();
            report["version"]["bytes"] = embeddings.bytes.into();
        }
        let of_features = self.features.as_ref().and_then(|of| of.rebuilds.as_ref());
        let of_embeddings = self.embeddings.as_ref().and_then(|of| of.rebuilds.as_ref());
        if let Some(why) = of_features.or(of_embeddings) {
            report["new_store"] = why.as_str().into();
        }
        if let Some(why) = self.unknown {
            report["version_unknown"] = why.into();
        }
    }
}
