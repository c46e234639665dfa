//! `graphflat check`: validates a job and its input, and says what a run would write.

pub(crate) mod taken;

use anyhow::Context as _;
use bytesize::ByteSize;
use gnn::Task;
use graphflat::survey::{Prediction, Survey, predict};
use graphflat::{PART_EDGE_BYTES, PART_NODE_BYTES, WAVES_IN_FLIGHT, WRITER_BYTES};
use graphtrainer::metric::Metric;
use graphtrainer::{Loss, TrainError, TrainSpec};
use schemas::{FeatureMeta, LabelKind, Layout, Split};
use serde_json::{Value, json};

use crate::cli::{CheckArgs, Stage};
use crate::console::line_out;
use crate::error::JobError;
use crate::job::{Job, Overrides};
use crate::preflight::preflight;

/// Checks a job.
///
/// # Errors
///
/// The first thing that would stop a run, as far as it can be seen without running.
pub(crate) fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let overrides = Overrides {
        fresh: args.fresh,
        ..Overrides::default()
    };
    let job = Job::load(&args.job.path, &args.job.edits(), &overrides)?;
    let context = || format!("job {}", args.job.path.display());
    let (survey, prediction) = look(&job).with_context(context)?;
    if args.json {
        line_out(&to_json(&job, &survey, prediction.as_ref()).to_string());
    } else {
        to_lines(&job, &survey, prediction.as_ref())
            .iter()
            .for_each(|line| line_out(line));
    }
    Ok(())
}

fn look(job: &Job) -> Result<(Survey, Option<Prediction>), JobError> {
    preflight(job)?;
    if !job.fresh {
        taken::refuse_taken(job)?;
    }
    let fanouts = job.sample().map_or(&[][..], |sample| sample.fanouts());
    let survey = Survey::read(&job.nodes, &job.edges, fanouts)?;
    if let (Some(train), Some(label)) = (&job.own_training, &survey.meta.label) {
        fits_labels(job, train, &label.kind)?;
    }
    if let (Some(infer), Some(label)) = (&job.infer, &survey.meta.label)
        && matches!(label.kind, LabelKind::Number)
        && infer.gives_probabilities()
    {
        let problem = "is true; labels are numbers, which have no probability".to_owned();
        let key = "infer.probabilities".to_owned();
        return Err(JobError::Key { key, problem });
    }
    if let Some(infer) = job.infer.as_ref().filter(|_| job.brings_model()) {
        infer.check_graph(&survey.meta)?;
    }
    let prediction = match &job.flatten {
        Some(plan) => Some(predict(&survey, &job.edges, plan)?),
        None => None,
    };
    Ok((survey, prediction))
}

/// Checks that loss and metric are of the kind of the labels.
fn fits_labels(job: &Job, train: &TrainSpec, label: &LabelKind) -> Result<(), JobError> {
    let (task, fitting) = match label {
        LabelKind::Class { .. } | LabelKind::ClassName { .. } => {
            (Task::Classes, Loss::CrossEntropy)
        }
        LabelKind::MultiLabel { .. } => (Task::MultiLabel, Loss::BinaryCrossEntropy),
        LabelKind::Number => (Task::Regression, Loss::MeanSquaredError),
    };
    let plan = job.train.as_ref();
    let input = plan.expect("it was made of the same table").input();
    let unfit = |key, value: Value, problem| TrainError::Unfit {
        input: input.to_owned(),
        key,
        value: value.to_string(),
        problem,
    };
    if let Some(loss) = train.loss.filter(|loss| *loss != fitting) {
        let problem = format!("its labels are {label:?}, allowed is {}", json!(fitting));
        return Err(unfit("loss", json!(loss), problem).into());
    }
    if let Some(weights) = &train.class_weights
        && let Some(problem) = weights.problem(task, label.width())
    {
        return Err(unfit("class_weights", json!(weights), problem).into());
    }
    let allowed = Metric::of_task(task, label.width());
    if let Some(monitor) = train.monitor.filter(|monitor| !allowed.contains(monitor)) {
        let names: Vec<&str> = allowed.iter().map(|metric| metric.name()).collect();
        let problem = format!("allowed for its labels: {}", names.join(", "));
        return Err(unfit("monitor", json!(monitor.name()), problem).into());
    }
    Ok(())
}

/// Nodes of each split, and of none.
fn splits(survey: &Survey) -> [(&'static str, usize); 4] {
    let count = |split| survey.split.iter().filter(|have| **have == split).count();
    [
        ("train", count(Split::Train)),
        ("val", count(Split::Val)),
        ("test", count(Split::Test)),
        ("none", count(Split::None)),
    ]
}

fn feature_width(survey: &Survey) -> usize {
    match survey.meta.features {
        FeatureMeta::None => 0,
        FeatureMeta::Dense { dim } | FeatureMeta::Sparse { dim } => dim,
    }
}

fn max_degree(survey: &Survey) -> u32 {
    survey.in_degree.iter().copied().max().unwrap_or(0)
}

fn hubs(job: &Job, survey: &Survey) -> usize {
    let threshold = job
        .sample()
        .map_or(u64::MAX, |sample| sample.hub_threshold());
    survey
        .in_degree
        .iter()
        .filter(|&&degree| u64::from(degree) > threshold)
        .count()
}

/// Memory that the program itself, its buffers and its threads take.
const MEMORY_BASE: f64 = 64e6;

/// Memory an edge takes while the store is built: received, sorted and ranked.
const MEMORY_PER_EDGE: f64 = 20.0;

/// Memory a node takes beyond its features and its id: degrees, label, split, position.
const MEMORY_PER_NODE: f64 = 40.0;

/// Memory a node takes to be found by its number.
const MEMORY_PER_NUMBER: f64 = 40.0;

/// Copies of a node that training keeps where its cache has room: of its part, and of batches.
const COPIES_IN_CACHE: f64 = 2.3;

/// Batches' worth of memory on the way to the model and, with what it makes of them, through it.
const BATCHES_IN_FLIGHT: f64 = 32.0;

/// The peak of anonymous memory that a run is expected to reach, in bytes.
///
/// The greatest of its phases: nodes and then edges are received, each spilled beyond half the
/// budget; parts are put together and written, their features from the mapped store; shards are
/// trained on. Pages of mapped files, which the system takes back when it needs them, come on
/// top. Held against flattening with the default budget and two workers: of 1,048,576 nodes and 16
/// million edges, measured 0.45 GB in either layout, said 0.45 and 0.43 GB; of 131,072 nodes and
/// 2 million edges, measured 0.2 GB with mapped pages, said 0.20 and 0.18 GB. Held against training
/// a GraphSAGE of 64 units on shards of 200,000 nodes and of 400,000 with 256 features in 2, 8 and
/// 10 parts: within 15 %.
fn memory(job: &Job, survey: &Survey, prediction: Option<&Prediction>) -> f64 {
    let (nodes, edges) = (survey.num_nodes() as f64, survey.num_edges as f64);
    let (budget, workers) = (job.memory_budget.as_u64() as f64, job.workers as f64);
    let ids = survey.ids.size_bytes() as f64 / nodes.max(1.0);
    let node = survey.feature_bytes() + ids + MEMORY_PER_NODE;
    let received = f64::max(nodes * node, edges * MEMORY_PER_EDGE).min(budget / 2.0);
    let numbers = nodes * MEMORY_PER_NUMBER;
    let build = MEMORY_BASE + numbers + received;
    let Some(prediction) = prediction else {
        return build;
    };
    let (parts, part_nodes) = (prediction.parts as f64, prediction.nodes_per_shard);
    let part = part_nodes * (ids + PART_NODE_BYTES as f64)
        + prediction.edges_per_shard * PART_EDGE_BYTES as f64;
    let in_flight = parts.min(WAVES_IN_FLIGHT as f64 * workers);
    let written = in_flight * part + workers * WRITER_BYTES as f64;
    let write = MEMORY_BASE + numbers + written;
    let train = match &job.own_training {
        Some(spec) if job.runs(Stage::Train) => {
            let all = parts * part_nodes;
            let kept = (all * node * COPIES_IN_CACHE).min(spec.cache_bytes.as_u64() as f64);
            let batch = (spec.batch_size as f64 * prediction.nodes_per_target).min(all);
            MEMORY_BASE + kept + BATCHES_IN_FLIGHT * batch * node
        }
        _ => 0.0,
    };
    build.max(write).max(train)
}

fn to_json(job: &Job, survey: &Survey, prediction: Option<&Prediction>) -> Value {
    let splits: serde_json::Map<String, Value> = splits(survey)
        .into_iter()
        .map(|(name, count)| (name.to_owned(), json!(count)))
        .collect();
    let mut report = json!({
        "event": "check",
        "job": job.name,
        "nodes": survey.num_nodes(),
        "edges": survey.num_edges,
        "dropped_edges": survey.dropped_edges,
        "in_degree_max": max_degree(survey),
        "hubs": hubs(job, survey),
        "features": feature_width(survey),
        "splits": splits,
        "memory_bytes": memory(job, survey, prediction).round(),
        "memory_budget_bytes": job.memory_budget.as_u64(),
    });
    if let (Some(prediction), Some(plan)) = (prediction, &job.flatten) {
        report["flatten"] = json!({
            "rows": prediction.rows,
            "parts": prediction.parts,
            "nodes_per_target": prediction.nodes_per_target,
            "edges_per_target": prediction.edges_per_target,
            "nodes_per_shard": prediction.nodes_per_shard,
            "layout": plan.layout(),
            "bytes": { "rows": prediction.bytes_rows.round(), "shards": prediction.bytes_shards.round() },
        });
    }
    report
}

fn to_lines(job: &Job, survey: &Survey, prediction: Option<&Prediction>) -> Vec<String> {
    let splits: Vec<String> = splits(survey)
        .into_iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    let label = match survey.meta.label.as_ref().map(|label| &label.kind) {
        None => "no labels".to_owned(),
        Some(LabelKind::Class { num_classes }) => format!("{num_classes} classes"),
        Some(LabelKind::ClassName { names }) => format!("{} classes by name", names.len()),
        Some(LabelKind::MultiLabel { width }) => format!("{width} labels a node"),
        Some(LabelKind::Number) => "a number to predict".to_owned(),
    };
    let mut lines = vec![
        format!(
            "nodes    {}, {} features, {label}; {}",
            survey.num_nodes(),
            feature_width(survey),
            splits.join(", ")
        ),
        format!(
            "edges    {}{}, in-degree at most {}, {} hubs",
            survey.num_edges,
            match survey.dropped_edges {
                0 => String::new(),
                dropped => format!(" ({dropped} rows dropped, an end is no node)"),
            },
            max_degree(survey),
            hubs(job, survey)
        ),
    ];
    if let (Some(prediction), Some(plan)) = (prediction, &job.flatten) {
        let size = |bytes: f64| ByteSize(whole(bytes)).display().si();
        let mark = |layout| {
            if plan.layout() == layout {
                " (chosen)"
            } else {
                ""
            }
        };
        lines.push(format!(
            "flatten  {} rows in {} parts, about {:.0} nodes and {:.0} edges each",
            prediction.rows,
            prediction.parts,
            prediction.nodes_per_target,
            prediction.edges_per_target
        ));
        lines.push(format!(
            "bytes    about {} as shards{}, {} as rows{}",
            size(prediction.bytes_shards),
            mark(Layout::Shards),
            size(prediction.bytes_rows),
            mark(Layout::Rows)
        ));
        let (needed, budget) = (memory(job, survey, Some(prediction)), job.memory_budget);
        let verdict = if needed > budget.as_u64() as f64 {
            "above"
        } else {
            "within"
        };
        let budget = budget.display().si();
        lines.push(format!(
            "memory   about {}, {verdict} the budget of {budget}",
            size(needed)
        ));
    }
    let stages: Vec<&str> = job.selected.iter().map(|stage| stage.name()).collect();
    lines.push(format!("ok       {}: {}", job.name, stages.join(", ")));
    lines
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rounded count of bytes, above 0 and far below 2^53"
)]
fn whole(bytes: f64) -> u64 {
    bytes.round() as u64
}
