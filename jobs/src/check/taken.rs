//! Finds outputs of another plan, which a run would refuse to replace.

use graphflat::{FlattenPlan, SamplePlan, Targets};
use graphinfer::{InferPlan, Method};
use graphscore::ScorePlan;
use graphtrainer::TrainPlan;
use schemas::dataset::{holds_output, is_begun, refuse_taken as refuse};
use schemas::{Manifest, read_manifest};
use serde_json::{Value, json};
use store::input_fingerprint;

use crate::cli::Stage;
use crate::error::JobError;
use crate::job::Job;

/// Refuses outputs of other settings or other tables, except of stages that start over.
///
/// `reads_tables` says whether tables are compared; if there is any output, finished or not, they
/// are read whole for it.
///
/// # Errors
///
/// Names the first output of another plan, or a table that cannot be read.
pub(crate) fn refuse_taken(job: &Job, reads_tables: bool) -> Result<(), JobError> {
    let going_on: Vec<Stage> = job
        .selected
        .iter()
        .copied()
        .filter(|stage| !job.is_fresh(*stage))
        .collect();
    let dirs = going_on.iter().filter_map(|stage| job.output(*stage));
    let num_outputs = dirs.filter(|dir| holds_output(dir).unwrap_or(true)).count();
    let input = match num_outputs {
        1.. if reads_tables => Some(Input::read(job)?),
        _ => None,
    };
    for stage in going_on {
        let dir = job.output(stage).expect("a selected stage has a plan");
        // The others need labels or a model, which may not exist yet.
        let known = input.as_ref().filter(|_| stage == Stage::Flatten);
        let fingerprint = known.and_then(|known| known.graph_features.as_deref());
        refuse(dir, stage.name(), fingerprint, |manifest| {
            let read = input.as_ref();
            read.is_none_or(|read| read.is_of(manifest, job, stage))
                && same_plan(job, stage, manifest)
        })?;
    }
    Ok(())
}

/// Fingerprints of what the stages of a job read.
struct Input {
    /// The tables.
    tables: Value,
    /// The graph features that the job writes; none if they are a version.
    graph_features: Option<String>,
    /// The neighbourhoods that streamed training draws.
    waves: Option<String>,
}

impl Input {
    fn read(job: &Job) -> Result<Input, JobError> {
        let tables = input_fingerprint(&job.graph)?;
        let list = job.target_list()?;
        let graph_features = match &job.flatten {
            // What a version is made of is read by its stage.
            Some(_) if job.flatten_version().is_some() => None,
            Some(plan) => Some(plan.fingerprint(&tables, job.seed, list.as_ref())?),
            None => None,
        };
        let waves = match &job.stream {
            Some(plan) => Some(plan.fingerprint(&tables, job.seed, list.as_ref())?),
            None => None,
        };
        Ok(Input {
            tables,
            graph_features,
            waves,
        })
    }

    /// Tells whether a finished output of a stage was made from this input.
    fn is_of(&self, manifest: &Manifest, job: &Job, stage: Stage) -> bool {
        let has_tables = || {
            // `input` also has the columns of the graph, which are not compared.
            let names = ["nodes", "edges"];
            names
                .iter()
                .all(|&name| manifest.input[name] == self.tables[name])
        };
        let by_layers = |plan: &InferPlan| plan.method() == Method::Layers;
        match stage {
            Stage::Flatten => has_tables(),
            Stage::Train => match (&self.waves, &self.graph_features) {
                (Some(waves), _) => manifest.input["waves"] == *waves,
                (None, Some(features)) if job.own_training.is_some() => {
                    manifest.input["graph_features"] == *features
                }
                (None, _) => true,
            },
            Stage::Infer => !job.infer.as_ref().is_some_and(by_layers) || has_tables(),
            Stage::Score => {
                let reads_pairs = job.score.as_ref().is_some_and(|plan| plan.reads_pairs());
                !reads_pairs || has_tables() && manifest.input["pairs"] == self.tables["pairs"]
            }
        }
    }
}

/// Tells whether a stage is finished, as far as its settings show.
pub(crate) fn is_done(job: &Job, stage: Stage) -> bool {
    let dir = job.output(stage).expect("a selected stage has a plan");
    !job.is_fresh(stage)
        // An output that is being replaced is not finished.
        && is_begun(dir).is_ok_and(|is_begun| !is_begun)
        && read_manifest(dir).is_ok_and(|manifest| {
            manifest.stage == stage.name() && same_plan(job, stage, &manifest)
        })
}

/// Keys of `[train]` that are not compared: a written key can mean the same as a missing one.
const MAY_BE_LEFT_OUT: [&str; 7] = [
    "edge_features",
    "edge_weight",
    "layers",
    "loss",
    "monitor",
    "weight_decay_layers",
    "whole_parts",
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
        Stage::Infer => {
            let settings = job.infer.as_ref().map(infer_settings);
            // The settings have the key only if rows are kept in 16 bits.
            let rows = settings.as_ref().map(|settings| settings["rows"].clone());
            same_settings(settings, written) && rows.is_none_or(|rows| rows == written["rows"])
        }
        Stage::Score => job.score.as_ref().is_none_or(|plan| {
            same_settings(Some(plan.settings()), written) && same_embeddings(plan, manifest)
        }),
    }
}

fn same_settings(settings: Option<Value>, written: &Value) -> bool {
    // Serialized and parsed as the manifest was, so that equal numbers compare as equal.
    let text = settings.unwrap_or_default().to_string();
    let read: Value = serde_json::from_str(&text).unwrap_or_default();
    let mut read = read.as_object().into_iter().flatten();
    read.all(|(name, value)| MAY_BE_LEFT_OUT.contains(&name.as_str()) || written[name] == *value)
}

/// Tells whether a model was trained on the existing graph features. If there are none yet, they
/// may become the same.
fn same_input(plan: &TrainPlan, manifest: &Manifest) -> bool {
    read_manifest(plan.input()).map_or(true, |input| {
        manifest.input["graph_features"] == input.fingerprint
    })
}

/// Tells whether scores were computed from the existing embeddings. If there are none yet, they may
/// become the same.
fn same_embeddings(plan: &ScorePlan, manifest: &Manifest) -> bool {
    read_manifest(plan.input()).map_or(true, |input| {
        manifest.input["embeddings"] == input.fingerprint
    })
}

/// Returns the settings with the layer of the model; without it if there is no model yet.
fn infer_settings(plan: &InferPlan) -> Value {
    plan.settings_of_model().unwrap_or_else(|_| {
        let mut settings = plan.settings();
        if let Some(settings) = settings.as_object_mut() {
            settings.remove("layer");
        }
        settings
    })
}

fn flatten_settings(plan: &FlattenPlan) -> Value {
    without_list(plan.sample(), plan.settings())
}

fn sample_settings(job: &Job, sample: &SamplePlan) -> Value {
    without_list(sample, sample.settings(job.seed))
}

/// Removes the path of a list of targets, since only its content counts.
fn without_list(sample: &SamplePlan, mut settings: Value) -> Value {
    if matches!(sample.targets(), Targets::Listed(_))
        && let Some(settings) = settings.as_object_mut()
    {
        settings.remove("targets");
    }
    settings
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float32Array, Int32Array, Int64Array, StringArray};
    use arrow::record_batch::RecordBatch;
    use parquet::arrow::ArrowWriter;
    use schemas::{Opened, Output};

    use super::*;
    use crate::job::Overrides;
    use crate::source::Edits;

    fn write(path: &Path, columns: Vec<(&str, ArrayRef)>) {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let file = File::create(path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    fn job(dir: &Path, epochs: usize, fresh: bool) -> Job {
        let text = format!(
            "name = \"a\"\nseed = 1\n[input.nodes]\npath = \"{0}/nodes\"\nid = \"id\"\n\
             features = [\"x\"]\nlabel = \"y\"\nsplit = \"split\"\n[input.edges]\n\
             path = \"{0}/edges\"\nsrc = \"src\"\ndst = \"dst\"\n[flatten]\n\
             output = \"{0}/features\"\nhops = 1\nfanouts = [2]\n[train]\nmodel = \"gcn\"\n\
             output = \"{0}/model\"\nhidden = []\nepochs = {epochs}\n",
            dir.display()
        );
        let path = dir.join("job.toml");
        std::fs::write(&path, text).unwrap();
        let edits = Edits {
            set: Vec::new(),
            date: "2026-11-21T01:02:03Z".parse().unwrap(),
        };
        let overrides = Overrides {
            fresh: if fresh {
                Stage::ALL.to_vec()
            } else {
                Vec::new()
            },
            ..Overrides::default()
        };
        Job::load(&path, &edits, &overrides).unwrap()
    }

    /// Writes an output as a stage that has finished it.
    fn finish(dir: &Path, stage: &str, input: Value, plan: Value) {
        let opened = Output::open(dir, stage, "of a test", true).unwrap();
        let Opened::Open(output) = opened else {
            panic!("it starts over");
        };
        let manifest = Manifest::new(stage, "of a test".to_owned(), (plan, input), 1);
        output.finish(&manifest).unwrap();
    }

    #[test]
    fn a_training_is_done_where_a_model_of_its_plan_and_input_lies() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path();
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let (x, y) = (
            Float32Array::from(vec![0.5, 1.5]),
            Int32Array::from(vec![0, 1]),
        );
        let split = StringArray::from(vec!["train", "val"]);
        let nodes: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::clone(&ids)),
            ("x", Arc::new(x)),
            ("y", Arc::new(y)),
            ("split", Arc::new(split)),
        ];
        write(&dir.join("nodes"), nodes);
        write(
            &dir.join("edges"),
            vec![("src", Arc::clone(&ids)), ("dst", ids)],
        );
        let is_done = |epochs, fresh| is_done(&job(dir, epochs, fresh), Stage::Train);
        assert!(!is_done(3, false), "nothing is there");
        let read = |fingerprint: &str| json!({ "graph_features": fingerprint });
        let (model, features) = (dir.join("model"), dir.join("features"));
        finish(
            &model,
            "train",
            read("of a test"),
            json!(job(dir, 3, false).train),
        );
        assert!(is_done(3, false), "its graph features are not written yet");
        finish(&features, "flatten", Value::Null, Value::Null);
        assert!(is_done(3, false));
        assert!(!is_done(3, true), "--fresh starts over");
        assert!(!is_done(4, false), "another plan");
        finish(
            &model,
            "train",
            read("others"),
            json!(job(dir, 3, false).train),
        );
        assert!(!is_done(3, false), "other graph features");
        finish(&model, "flatten", Value::Null, Value::Null);
        assert!(!is_done(3, false), "another stage");
    }
}
