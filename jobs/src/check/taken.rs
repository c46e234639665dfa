//! Outputs that a run would not touch because they are of another plan.

use graphflat::{FlattenPlan, Targets};
use graphinfer::InferPlan;
use schemas::Manifest;
use schemas::dataset::refuse_taken as refuse;
use serde_json::{Value, json};

use crate::cli::Stage;
use crate::error::JobError;
use crate::job::Job;

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

/// Keys of `[train]` that may be left out: written or not, they can mean the same.
const MAY_BE_LEFT_OUT: [&str; 6] = [
    "edge_features",
    "edge_weight",
    "layers",
    "loss",
    "monitor",
    "weight_decay_layers",
];

fn same_plan(job: &Job, stage: Stage, manifest: &Manifest) -> bool {
    let (settings, written) = match stage {
        Stage::Flatten => (job.flatten.as_ref().map(flatten_settings), &manifest.plan),
        Stage::Train => {
            let result = job.train.as_ref().map(|plan| json!(plan)["result"].take());
            (result, &manifest.plan["result"])
        }
        Stage::Infer => (job.infer.as_ref().map(InferPlan::settings), &manifest.plan),
    };
    if stage == Stage::Flatten && manifest.seed != job.seed {
        return false;
    }
    // Written and read as the manifest was, so that equal numbers are equal.
    let text = settings.unwrap_or_default().to_string();
    let read: Value = serde_json::from_str(&text).unwrap_or_default();
    let mut read = read.as_object().into_iter().flatten();
    read.all(|(name, value)| MAY_BE_LEFT_OUT.contains(&name.as_str()) || written[name] == *value)
}

fn flatten_settings(plan: &FlattenPlan) -> Value {
    let mut settings = plan.settings();
    // A list counts by what it holds, not by where it lies.
    if matches!(plan.sample().targets(), Targets::Listed(_))
        && let Some(settings) = settings.as_object_mut()
    {
        settings.remove("targets");
    }
    settings
}
