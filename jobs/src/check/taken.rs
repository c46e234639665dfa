//! Outputs that a run would not touch because they are of another plan.

use schemas::Manifest;
use schemas::dataset::refuse_taken as refuse;
use serde_json::{Value, json};

use crate::cli::Stage;
use crate::error::JobError;
use crate::job::Job;
use graphflat::{FlattenPlan, Targets};

/// Refuses outputs that were finished with other settings.
///
/// A run compares fingerprints, which need the whole input; here the settings have to do.
///
/// # Errors
///
/// The first output that holds something else.
pub(crate) fn refuse_taken(job: &Job) -> Result<(), JobError> {
    for &stage in &job.selected {
        let dir = job.output(stage).expect("a selected stage has a plan");
        refuse(dir, stage.name(), |manifest| {
            same_plan(job, stage, manifest)
        })?;
    }
    Ok(())
}

fn same_plan(job: &Job, stage: Stage, manifest: &Manifest) -> bool {
    let settings = match stage {
        Stage::Flatten => job.flatten.as_ref().map(flatten_settings),
        Stage::Train => job
            .train
            .as_ref()
            .map(|plan| json!({ "result": json!(plan)["result"] })),
        Stage::Infer => job
            .infer
            .as_ref()
            .map(|plan| json!({ "sampling": plan.sampling(), "layer": plan.layer() })),
    };
    if stage == Stage::Flatten && manifest.seed != job.seed {
        return false;
    }
    // Written and read as the manifest was, so that equal numbers are equal.
    let text = settings.unwrap_or_default().to_string();
    let settings: Value = serde_json::from_str(&text).unwrap_or_default();
    let mut settings = settings.as_object().into_iter().flatten();
    settings.all(|(name, value)| manifest.plan[name] == *value)
}

fn flatten_settings(plan: &FlattenPlan) -> Value {
    let mut settings = plan.settings();
    // A list counts by what it holds, not by where it lies.
    if matches!(plan.targets(), Targets::Listed(_))
        && let Some(settings) = settings.as_object_mut()
    {
        settings.remove("targets");
    }
    settings
}
