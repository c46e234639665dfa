//! The stage `[train]`: reads graph features and writes a model directory.

use std::collections::BTreeMap;
use std::io::Write;

use cluster::Cluster;
use gnn::PairLossKind;
use schemas::progress::Progress;
use schemas::storage;
use schemas::xxh::fingerprint;
use schemas::{FileEntry, Manifest, Opened, Output, PartEntry, SplitCounts, read_manifest};
use serde::Serialize;
use serde_json::json;

use crate::any_model::About;
use crate::fit::{Trained, fit_with};
use crate::metric::Metrics;
use crate::peers::{Leader, follow};
use crate::prepare::{Resolved, check_messages};
use crate::scores::{EVALUATION_JSON, EvaluationFile, label_names};
use crate::source::Source;
use crate::{TrainError, TrainPlan};

/// Version of this crate and `gnn`. Raise it with every change that gives another model for the
/// same plan, so that outputs of older programs are not reused.
const ENGINE_VERSION: u32 = 4;

/// Version of the softmax over all nodes, in place of [`ENGINE_VERSION`] for a change of it alone.
const FULL_SOFTMAX_VERSION: u32 = 2;

/// File name of the reports of all epochs, one JSON object per line.
pub const EPOCHS_JSONL: &str = "epochs.jsonl";

/// A line of `epochs.jsonl`. It does not depend on time or machine; seconds are in the manifest.
#[derive(Serialize)]
struct EpochLine<'a> {
    epoch: u64,
    loss: f64,
    learning_rate: f32,
    gradient_norm: f64,
    /// Left out if the epoch was not evaluated.
    #[serde(skip_serializing_if = "Metrics::is_empty")]
    val: &'a Metrics,
}

/// Trains a model as planned and writes it to the plan's output.
///
/// A finished output of the same plan and input is returned as it is; an unfinished one resumes
/// from its last checkpoint. The directory then holds `model.safetensors` (with the names and
/// layouts of PyG), `model.json`, `epochs.jsonl`, `evaluation.json`, the manifest and `_SUCCESS`.
///
/// # Errors
///
/// If plan and graph features do not fit, before anything is written; if reading, writing or
/// training fails. A training that would fail again leaves no files; any other keeps its last
/// checkpoint.
pub fn train(plan: &TrainPlan, progress: &Progress) -> Result<Manifest, TrainError> {
    let flattened = read_manifest(&plan.input)?;
    let source = Source::open(&plan.input, plan.part_cache_bytes())?;
    train_on(plan, &source, &flattened.fingerprint, progress)
}

/// Trains a model as [`train`] does, on a source that the caller made. Sources with equal
/// fingerprints must hold, or draw, equal parts.
///
/// # Errors
///
/// As [`train`].
pub fn train_on(
    plan: &TrainPlan,
    source: &Source,
    source_fingerprint: &str,
    progress: &Progress,
) -> Result<Manifest, TrainError> {
    let identity = Identity::of(plan, source, source_fingerprint)?;
    write_model(plan, source, identity, progress, None)
}

/// Trains a model as [`train`] does, with several processes: each runs some of the workers and
/// holds some shards of the parameter server. Process 0 leads, and alone writes the output.
///
/// # Errors
///
/// As [`train`]; [`TrainError::Differs`] if a process reads other graph features than the leader;
/// if another process failed, an error for which [`TrainError::is_peer_failure`] is true.
pub fn train_among(
    plan: &TrainPlan,
    cluster: &Cluster,
    progress: &Progress,
) -> Result<Manifest, TrainError> {
    if cluster.num_processes() == 1 {
        return train(plan, progress);
    }
    plan.check_processes()?;
    if cluster.process() > 0 {
        return follow(plan, cluster);
    }
    let mut leader = Leader::meet(plan, cluster)?;
    let flattened = read_manifest(&plan.input)?;
    let source = Source::open(&plan.input, plan.part_cache_bytes())?;
    let identity = Identity::among(plan, &source, &flattened.fingerprint)?;
    leader.agree(&identity)?;
    let ended = write_model(plan, &source, identity, progress, Some(&mut leader));
    leader.end(&ended);
    ended
}

/// Identity of a training: its input and its fingerprint.
pub(crate) struct Identity {
    /// Identity of the input.
    pub(crate) read: serde_json::Value,
    pub(crate) fingerprint: String,
}

impl Identity {
    fn of(plan: &TrainPlan, source: &Source, source_fingerprint: &str) -> Result<Self, TrainError> {
        let resolved = crate::prepare::check(plan, source)?;
        Ok(Self::resolved(plan, source, source_fingerprint, &resolved))
    }

    /// Makes the identity of a training in several processes, after checking that its servers can
    /// hold the model.
    pub(crate) fn among(
        plan: &TrainPlan,
        source: &Source,
        source_fingerprint: &str,
    ) -> Result<Self, TrainError> {
        let resolved = crate::prepare::check(plan, source)?;
        check_messages(plan, source, &resolved)?;
        Ok(Self::resolved(plan, source, source_fingerprint, &resolved))
    }

    fn resolved(
        plan: &TrainPlan,
        source: &Source,
        source_fingerprint: &str,
        resolved: &Resolved,
    ) -> Self {
        let read = if source.is_streamed {
            json!({ "waves": source_fingerprint })
        } else {
            json!({ "graph_features": source_fingerprint })
        };
        let identity = identity(plan, resolved, &read);
        Self {
            fingerprint: fingerprint(identity.to_string().as_bytes()),
            read,
        }
    }
}

/// Trains and writes the model, unless the output is finished. The caller has checked that the plan
/// fits, so a plan that does not fit creates no output.
fn write_model(
    plan: &TrainPlan,
    source: &Source,
    identity: Identity,
    progress: &Progress,
    leader: Option<&mut Leader<'_>>,
) -> Result<Manifest, TrainError> {
    let Identity { read, fingerprint } = identity;
    let output = match Output::open(&plan.output, "train", &fingerprint, plan.fresh)? {
        Opened::Done(manifest) => return Ok(*manifest),
        Opened::Open(output) => output,
    };
    if let Some(leader) = &leader {
        leader.prepare();
    }
    let checkpoint = output.progress_dir().join("checkpoint");
    let fitted = fit_with(plan, source, Some(checkpoint.clone()), progress, leader);
    let trained = match fitted {
        Ok(trained) => trained,
        Err(error) => {
            if error.is_bound_to_repeat() || !storage::is_file(&checkpoint).unwrap_or(true) {
                // Remove the output, so that the corrected plan can use its directory.
                output.abandon();
            }
            return Err(error);
        }
    };
    let files = save(&output, plan, source, &trained)?;
    output.commit_part(
        0,
        PartEntry {
            name: "model".to_owned(),
            files,
            rows: 0,
            targets: Some(totals(source)),
        },
    )?;
    let manifest = Manifest {
        parts: output.parts(),
        report: json!({
            "best_epoch": trained.best_epoch,
            "monitor": trained.monitor.map(crate::metric::Metric::name),
            "metrics": trained.metrics,
            "num_parameters": trained.model.num_values(),
            "device": trained.device,
            "notes": trained.notes,
            "epochs": trained.history,
        }),
        ..Manifest::new(
            "train",
            fingerprint,
            (to_json(plan)?, read),
            plan.result.seed,
        )
    };
    output.finish(&manifest)?;
    Ok(manifest)
}

/// Returns everything that the model depends on, with defaults filled in: a plan that writes out a
/// default is the same plan.
fn identity(plan: &TrainPlan, resolved: &Resolved, read: &serde_json::Value) -> serde_json::Value {
    let result = &plan.result;
    let mut identity = json!({
        "engine": ENGINE_VERSION,
        "read": read,
        "architecture": resolved.arch,
        "transform": result.transform,
        "optimizer": result.optimizer,
        "weight_decay": resolved.decays,
        "epochs": result.epochs,
        "batch_size": result.batch_size,
        "patience": result.patience,
        "monitor": resolved.monitor,
        "seed": result.seed,
        "workers": result.workers,
        "consistency": result.consistency,
        "evaluate_every": result.evaluate_every,
        "schedule": result.schedule,
        "class_weights": result.class_weights,
        "gradient_format": result.gradient_format,
    });
    if !result.transforms.is_empty() {
        identity["transforms"] = json!(result.transforms);
    }
    if !result.one_hot.is_empty() {
        identity["one_hot"] = json!(result.one_hot);
    }
    if resolved.arch.task() == gnn::Task::Regression {
        identity["scaled_labels"] = json!(true);
    }
    if result.embedding_weight_decay != 0.0 {
        identity["embedding_weight_decay"] = json!(result.embedding_weight_decay);
    }
    if matches!(resolved.arch.task(), gnn::Task::Links(_)) {
        let links = result.links();
        identity["links"] = json!(links);
        if links.all && links.loss.kind == PairLossKind::Softmax {
            identity["full_softmax"] = json!(FULL_SOFTMAX_VERSION);
        }
    }
    identity
}

/// Writes the model's files. A file gets its name when it is complete, and is durable once it is
/// committed.
fn save(
    output: &Output,
    plan: &TrainPlan,
    source: &Source,
    trained: &Trained,
) -> Result<Vec<FileEntry>, TrainError> {
    let mut files = Vec::new();
    let mut about = about(plan, source, trained)?;
    let mut tables = BTreeMap::new();
    for table in &trained.embeddings {
        let (entry, described) = table.write(output)?;
        files.push(entry);
        tables.insert(table.name().to_owned(), described);
    }
    if !tables.is_empty() {
        about
            .extra
            .insert("embeddings".to_owned(), to_json(&tables)?);
    }
    for (name, bytes) in trained.model.to_files(&trained.transforms, about)? {
        files.push(write(output, name, &bytes)?);
    }
    files.push(write(output, EPOCHS_JSONL, &epoch_lines(trained)?)?);
    let evaluation = EvaluationFile {
        best_epoch: trained.best_epoch,
        splits: trained.scores.clone(),
    };
    let mut text = to_json(&evaluation)?.to_string();
    text.push('\n');
    files.push(write(output, EVALUATION_JSON, text.as_bytes())?);
    Ok(files)
}

fn write(output: &Output, name: &str, bytes: &[u8]) -> Result<FileEntry, TrainError> {
    let mut file = output.create(name)?;
    let written = output.parts_dir().join(name);
    file.write_all(bytes)
        .map_err(TrainError::io("write", &written))?;
    Ok(file.finish()?)
}

fn epoch_lines(trained: &Trained) -> Result<Vec<u8>, TrainError> {
    let mut lines = Vec::new();
    for report in &trained.history {
        let line = EpochLine {
            epoch: report.epoch,
            loss: report.loss,
            learning_rate: report.learning_rate,
            gradient_norm: report.gradient_norm,
            val: &report.val,
        };
        serde_json::to_writer(&mut lines, &line).map_err(|source| TrainError::Json {
            what: "report",
            source,
        })?;
        lines.push(b'\n');
    }
    Ok(lines)
}

/// Returns what `model.json` says about a training; it does not depend on time or machine.
fn about(plan: &TrainPlan, source: &Source, trained: &Trained) -> Result<About, TrainError> {
    let links = source
        .graph
        .pairs
        .as_ref()
        .map(|_| json!(plan.result.links()));
    let links = links.map(|links| ("links".to_owned(), links));
    let extra = BTreeMap::from([
        ("flatten".to_owned(), to_json(&source.flatten)?),
        ("graph".to_owned(), to_json(&source.graph)?),
        ("best_epoch".to_owned(), json!(trained.best_epoch)),
        ("columns".to_owned(), source.columns.clone()),
        ("epochs".to_owned(), json!(trained.history.len())),
        ("seed".to_owned(), json!(plan.result.seed)),
    ]);
    Ok(About {
        label_names: Some(label_names(&source.graph).to_vec()).filter(|names| !names.is_empty()),
        metrics: trained.metrics.clone(),
        fanouts: to_json(&source.flatten.fanouts)?,
        extra: extra.into_iter().chain(links).collect(),
    })
}

fn totals(source: &Source) -> SplitCounts {
    source
        .counts
        .iter()
        .fold(SplitCounts::default(), |sum, part| SplitCounts {
            train: sum.train + part.train,
            val: sum.val + part.val,
            test: sum.test + part.test,
            none: sum.none + part.none,
        })
}

fn to_json(value: &impl serde::Serialize) -> Result<serde_json::Value, TrainError> {
    serde_json::to_value(value).map_err(|source| TrainError::Json {
        what: "plan",
        source,
    })
}
