//! Outputs that a run would not touch because they are of another plan.

use graphflat::{FlattenPlan, SamplePlan, Targets};
use graphinfer::InferPlan;
use graphtrainer::TrainPlan;
use schemas::dataset::refuse_taken as refuse;
use schemas::{Manifest, read_manifest};
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
    let written = &manifest.plan;
    match stage {
        Stage::Flatten => {
            let plan = job.flatten.as_ref();
            manifest.seed == job.seed && same_settings(plan.map(flatten_settings), written)
        }
        Stage::Train => {
            let plan = job.train.as_ref();
            let result = plan.map(|plan| json!(plan)["result"].take());
            let trained_on = match &job.stream {
                Some(sample) => {
                    same_settings(Some(sample_settings(job, sample)), &written["sample"])
                }
                None => plan.is_none_or(|plan| same_input(plan, manifest)),
            };
            trained_on && same_settings(result, &written["result"])
        }
        Stage::Infer => same_settings(job.infer.as_ref().map(InferPlan::settings), written),
    }
}

fn same_settings(settings: Option<Value>, written: &Value) -> bool {
    // Written and read as the manifest was, so that equal numbers are equal.
    let text = settings.unwrap_or_default().to_string();
    let read: Value = serde_json::from_str(&text).unwrap_or_default();
    let mut read = read.as_object().into_iter().flatten();
    read.all(|(name, value)| MAY_BE_LEFT_OUT.contains(&name.as_str()) || written[name] == *value)
}

/// Whether a model was trained on the graph features that are there; what is not there yet may
/// become them.
fn same_input(plan: &TrainPlan, manifest: &Manifest) -> bool {
    read_manifest(plan.input()).map_or(true, |input| {
        manifest.input["graph_features"] == input.fingerprint
    })
}

fn flatten_settings(plan: &FlattenPlan) -> Value {
    without_list(plan.sample(), plan.settings())
}

fn sample_settings(job: &Job, sample: &SamplePlan) -> Value {
    without_list(sample, sample.settings(job.seed))
}

/// A list of targets counts by what it holds, not by where it lies.
fn without_list(sample: &SamplePlan, mut settings: Value) -> Value {
    if matches!(sample.targets(), Targets::Listed(_))
        && let Some(settings) = settings.as_object_mut()
    {
        settings.remove("targets");
    }
    settings
}
