//! Predicts what a version computes, from the kept rows and the store of its parent.

use std::sync::Arc;

use graphinfer::{Decision, predict_version};
use schemas::progress::Progress;
use store::StoreMeta;

use crate::cli::Stage;
use crate::error::JobError;
use crate::job::Job;
use crate::stores::needed_store;

/// Predicts the version that a job writes; none if it writes none, or its store is not there.
pub(super) fn predict(job: &Job) -> Result<Option<Decision>, JobError> {
    let (Some(version), Some(plan)) = (job.version(), &job.infer) else {
        return Ok(None);
    };
    let Some(of_store) = needed_store(job, Stage::Infer)? else {
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
        Ok(Some(predict_version(plan, &store, version)?))
    })
}

/// Returns the lines that describe a version.
pub(super) fn lines(version: &Decision) -> Vec<String> {
    let lines = [version.summary()].into_iter().chain(version.lines());
    lines.map(|line| format!("version  {line}")).collect()
}
