//! Checks splits, labels, models and directories before any work.

mod targets;

use std::path::PathBuf;

use gnn::{Decoder, Task};
use graphflat::{FlattenError, SamplePlan, check_flatten_version};
use graphinfer::{
    InferPlan, Method, check_kept_model, check_kept_plan, check_version, check_version_input,
};
use graphscore::{ScoreError, ScorePlan};
use graphtrainer::metric::Metric;
use graphtrainer::{Loss, TrainError, TrainPlan, TrainSpec};
use schemas::dataset::refuse_foreign;
use schemas::storage::check_writable;
use schemas::{GraphMeta, LabelKind, LabelMeta, Sampling, SplitCounts};
use serde_json::{Value, json};

use crate::check::taken::is_done;
use crate::cli::Stage;
use crate::error::JobError;
use crate::job::Job;
use crate::stores::needed_store;
use targets::{label_meta, listed_nodes, splits_and_labels};

/// Refuses a job that would fail after hours because of a mistake that is found in seconds.
///
/// # Errors
///
/// If an output directory holds other files or cannot be written, a model is missing or does not
/// fit, a split is empty, a target has no label, or a key does not fit the labels.
pub(crate) fn preflight(job: &Job) -> Result<(), JobError> {
    for &stage in &job.selected {
        refuse_foreign(job.output(stage).expect("a selected stage has a plan"))?;
    }
    places(job)?;
    if job.runs(Stage::Infer) {
        job.infer_need()?;
        if let Some(plan) = job.infer.as_ref().filter(|_| job.brings_model()) {
            plan.check_graph_columns(&job.graph)?;
            if job.graph.is_typed() {
                plan.check_graph(&graph(job))?;
            }
        }
    }
    for &stage in &job.selected {
        needed_store(job, stage)?;
    }
    // A finished model of this plan needs no GPU.
    if let Some(plan) = job.train.as_ref().filter(|_| job.runs(Stage::Train))
        && !is_done(job, Stage::Train)
    {
        plan.check_device()?;
    }
    if let Some(plan) = job.infer.as_ref().filter(|_| job.runs(Stage::Infer))
        && !is_done(job, Stage::Infer)
    {
        plan.check_device()?;
    }
    if let Some(train) = job.own_training.as_ref().filter(|_| job.runs(Stage::Train)) {
        // Pairs have splits of their own; changes may bring the splits that the first tables lack.
        if job.graph.pairs.is_none() && job.flatten_version().is_none() {
            splits_and_labels(job, train)?;
        }
        if let Some(plan) = &job.train {
            plan.check_graph(&graph(job), num_hops(job))?;
            negatives(job, plan)?;
        }
    } else if let Some(plan) = job.train.as_ref().filter(|_| job.runs(Stage::Train)) {
        plan.check_input()?;
    }
    if let Some(shares) = job.graph.pairs.as_ref().and_then(|of| of.shares()) {
        has_splits(job, [shares.val > 0.0, shares.test > 0.0])?;
    }
    labels(job)?;
    inference(job)?;
    versions(job)?;
    features_version(job)?;
    scoring(job)
}

/// Checks that the rows of the model can be kept, and that a version has its parent and changes.
fn versions(job: &Job) -> Result<(), JobError> {
    let Some(plan) = job.infer.as_ref().filter(|_| job.runs(Stage::Infer)) else {
        return Ok(());
    };
    match job.version() {
        // It is skipped, even if its parent is gone.
        Some(_) if is_done(job, Stage::Infer) => Ok(()),
        Some(version) if job.brings_model() => Ok(check_version(plan, version)?),
        None if job.versions.are_kept && job.brings_model() => {
            Ok(check_kept_model(plan, &job.graph)?)
        }
        Some(version) => {
            check_kept_plan(plan, &job.graph)?;
            let sampling = job.sample().map_or(Sampling::Uniform, SamplePlan::sampling);
            Ok(check_version_input(plan, version, sampling)?)
        }
        None if job.versions.are_kept => Ok(check_kept_plan(plan, &job.graph)?),
        None => Ok(()),
    }
}

/// Checks that graph features can have versions, and that a version has its parent and changes.
fn features_version(job: &Job) -> Result<(), JobError> {
    let flatten = job.flatten.as_ref().filter(|_| job.runs(Stage::Flatten));
    let Some(plan) = flatten.filter(|_| job.versions.are_kept) else {
        return Ok(());
    };
    graphdelta::check_graph(&job.graph).map_err(FlattenError::from)?;
    match job
        .flatten_version()
        .filter(|_| !is_done(job, Stage::Flatten))
    {
        Some(version) => Ok(check_flatten_version(plan, &job.work_dir, version)?),
        None => Ok(()),
    }
}

/// Checks that unfinished outputs, and the store, can be written.
fn places(job: &Job) -> Result<(), JobError> {
    let open = job.selected.iter().filter(|stage| !is_done(job, **stage));
    let mut dirs: Vec<PathBuf> = open
        .filter_map(|stage| Some(job.output(*stage)?.to_owned()))
        .collect();
    for &stage in &job.selected {
        dirs.extend(needed_store(job, stage)?.map(|plan| plan.dir));
    }
    dirs.dedup();
    dirs.iter().try_for_each(|dir| Ok(check_writable(dir)?))
}

/// Returns the description of the graph that is known before its rows are read; labels are assumed
/// to be numbers.
fn graph(job: &Job) -> GraphMeta {
    let narrowest = LabelMeta {
        data_type: String::new(),
        kind: LabelKind::Number,
    };
    job.graph.meta(job.target_type, Some(narrowest))
}

/// Checks that the parameter servers of several processes can hold the model of a training.
///
/// The model's width depends on the labels; they were not read yet, so the narrowest are assumed.
///
/// # Errors
///
/// Names the key if more servers are needed.
pub(crate) fn servers(job: &Job, plan: &TrainPlan) -> Result<(), JobError> {
    Ok(plan.check_servers(&graph(job), num_hops(job))?)
}

fn num_hops(job: &Job) -> usize {
    job.sample().map_or(0, |sample| sample.fanouts().len())
}

/// Checks that a training asks for no more random negatives than parts have.
fn negatives(job: &Job, plan: &TrainPlan) -> Result<(), JobError> {
    let (Some(pairs), Some(sample)) = (&job.graph.pairs, job.sample()) else {
        return Ok(());
    };
    if job.flatten_version().is_some() {
        // The changes bring and remove nodes.
        return Ok(());
    }
    let num_nodes = job.graph.types[pairs.to()].nodes.count_nodes()?;
    let per_part = sample.negatives_per_part(usize::try_from(num_nodes).unwrap_or(usize::MAX))?;
    Ok(plan.check_negatives(per_part)?)
}

/// Checks that the splits of pairs that the selected stages need have pairs.
///
/// # Errors
///
/// Names the key that needs such pairs.
pub(crate) fn pair_splits(job: &Job, counts: &SplitCounts) -> Result<(), JobError> {
    has_splits(job, [counts.val > 0, counts.test > 0])
}

/// As [`pair_splits`]; `has_pairs`: whether val and test have pairs.
fn has_splits(job: &Job, has_pairs: [bool; 2]) -> Result<(), JobError> {
    let Some(pairs) = &job.graph.pairs else {
        return Ok(());
    };
    let train = job.own_training.as_ref();
    if let Some(train) = train.filter(|_| job.runs(Stage::Train) && !has_pairs[0]) {
        let keys = [
            ("train.patience", train.patience.is_some()),
            ("train.monitor", train.monitor.is_some()),
        ];
        if let Some((key, _)) = keys.into_iter().find(|(_, is_given)| *is_given) {
            let split_key = pairs.split_key();
            return Err(JobError::Key {
                key: key.to_owned(),
                problem: format!(
                    "needs a metric of val pairs, but `input.pairs.{split_key}` puts none in this \
                     split"
                ),
            });
        }
    }
    match job.score.as_ref().filter(|_| job.runs(Stage::Score)) {
        Some(plan) => Ok(plan.check_splits(has_pairs)?),
        None => Ok(()),
    }
}

/// Checks the keys of selected stages that must fit the labels.
fn labels(job: &Job) -> Result<(), JobError> {
    let is_keyed = |train: &&TrainSpec| {
        train.loss.is_some() || train.class_weights.is_some() || train.monitor.is_some()
    };
    let train = job.own_training.as_ref().filter(is_keyed);
    let train = train.filter(|_| job.runs(Stage::Train));
    let infer = job.infer.as_ref().filter(|_| job.runs(Stage::Infer));
    let is_probable = infer.is_some_and(InferPlan::gives_probabilities);
    let own_model = job.own_training.is_some() && !job.brings_model();
    if train.is_none() && !(is_probable && own_model) {
        return Ok(());
    }
    let Some(label) = label_meta(job)? else {
        return Ok(());
    };
    if let Some(train) = train {
        fits_labels(job, train, &label.kind)?;
    }
    if is_probable && own_model && matches!(label.kind, LabelKind::Number) {
        let problem = "is true; labels are numbers, which have no probability".to_owned();
        let key = "infer.probabilities".to_owned();
        return Err(JobError::Key { key, problem });
    }
    Ok(())
}

/// Checks that loss and metric fit the kind of the labels.
fn fits_labels(job: &Job, train: &TrainSpec, label: &LabelKind) -> Result<(), JobError> {
    let task = match label {
        LabelKind::Class { .. } | LabelKind::ClassName { .. } => Task::Classes,
        LabelKind::MultiLabel { .. } => Task::MultiLabel,
        LabelKind::Number => Task::Regression,
    };
    let fitting = Loss::of_task(task);
    let plan = job.train.as_ref();
    let input = plan
        .map(TrainPlan::input)
        .expect("it was made from the same table");
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

/// Checks the input of inference: a model that no selected stage trains, graph features, a list of
/// nodes.
fn inference(job: &Job) -> Result<(), JobError> {
    let Some(plan) = job.infer.as_ref().filter(|_| job.runs(Stage::Infer)) else {
        return Ok(());
    };
    let must_be_there = !job.runs(Stage::Train) && !is_done(job, Stage::Infer);
    if (job.brings_model() || must_be_there) && plan.method() == Method::Layers {
        plan.check_graph(&graph(job))?;
    }
    if job.graph.pairs.is_some() && job.train.is_some() && !job.brings_model() {
        plan.check_for_pairs()?;
    }
    if let Some(list) = plan.target_list(&job.nodes)? {
        listed_nodes(job, &list)?;
    }
    Ok(())
}

/// Checks what scoring reads: the number of items, and embeddings that exist, or that this job will
/// write.
fn scoring(job: &Job) -> Result<(), JobError> {
    let Some(plan) = job.score.as_ref().filter(|_| job.runs(Stage::Score)) else {
        return Ok(());
    };
    let own = job
        .infer
        .as_ref()
        .filter(|infer| infer.output() == plan.input());
    match own.filter(|_| job.runs(Stage::Infer)) {
        None => Ok(plan.check_input()?),
        Some(infer) => {
            fits_scores(job, plan, infer)?;
            fits_nodes(job, plan, infer)
        }
    }
}

/// Checks best items and listed pairs against the nodes whose embeddings this job will write.
fn fits_nodes(job: &Job, plan: &ScorePlan, infer: &InferPlan) -> Result<(), JobError> {
    if is_done(job, Stage::Score) {
        return Ok(());
    }
    let list = infer.target_list(&job.nodes)?;
    let written = list.map(|list| list.read()).transpose()?;
    if plan.top_k().is_some() {
        let types = job.graph.types.iter().enumerate();
        let counts = types.map(|(of_type, of)| match &written {
            Some(ids) if of_type == job.target_type => Ok(ids.len() as u64),
            _ => of.nodes.count_nodes(),
        });
        plan.check_items(&counts.collect::<Result<Vec<u64>, _>>()?)?;
    }
    let written = written.as_ref().map(|ids| (job.target_type, ids));
    Ok(plan.check_listed(written)?)
}

/// Checks that scoring can use the embeddings that this job will write.
fn fits_scores(job: &Job, plan: &ScorePlan, infer: &InferPlan) -> Result<(), JobError> {
    let wrong = |key: &'static str, problem: String| Err(ScoreError::Key { key, problem }.into());
    let mut ends = plan.end_types().into_iter();
    if let Some(name) = ends.find(|name| infer.leaves_out(name)) {
        let problem = format!("leaves out `{name}`, whose embeddings [score] reads; name it");
        return wrong("infer.types", problem);
    }
    if !infer.writes_all_nodes() && plan.reads_pairs() {
        let problem = "is a list, but `score.exclude_known` and `score.evaluate` need the \
                       embeddings of all nodes; leave it out";
        return wrong("infer.targets", problem.to_owned());
    }
    let of_score = plan.model();
    let trains = |train: &&TrainPlan| job.runs(Stage::Train) && train.output() == of_score;
    let is_trained = job.train.as_ref().filter(trains).is_some();
    let own = job.own_training.as_ref().filter(|_| is_trained);
    let decoder = match own {
        Some(train) => {
            let layers = num_hops(job);
            if let Some(layer) = infer.layer().filter(|&layer| layer != layers) {
                let last = format!("the decoder joins the embeddings of layer {layers}");
                return wrong("infer.layer", format!("is {layer}; {last}; leave it out"));
            }
            train.decoder.unwrap_or_default()
        }
        // The model is not there yet.
        None if is_trained => return Ok(()),
        None => plan.decoder()?,
    };
    if infer.is_normalized() && decoder != Decoder::Cosine {
        let problem = format!(
            "is true, which changes the scores of the decoder `{}` in [score]; leave it out",
            decoder.name()
        );
        return wrong("infer.normalize", problem);
    }
    Ok(())
}
