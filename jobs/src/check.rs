//! `graphflat check`: validates a job and its input, and predicts the output of a run.

mod columns;
pub(crate) mod taken;
mod version;

use std::collections::BTreeMap;

use anyhow::Context as _;
use bytesize::ByteSize;
use graphflat::survey::{PairSurvey, Prediction, RelationSurvey, Survey, TypeSurvey, predict};
use graphflat::{FlattenError, PartSize};
use graphinfer::Method;
use graphtrainer::TrainingSize;
use schemas::{
    FeatureMeta, LabelKind, Layout, RowsWhere, SchemaError, Split, TypeMeta, describe_where,
};
use serde_json::{Value, json};
use store::StoreSize;

use crate::cli::{CheckArgs, Stage};
use crate::console::{Console, line_out};
use crate::error::JobError;
use crate::job::{CHECKSUMS, Job, Overrides};
use crate::leftovers::is_kept_by_several;
use crate::preflight::{pair_splits, preflight};

/// Checks a job.
///
/// # Errors
///
/// The first problem that would stop a run and can be found without running.
pub(crate) fn check(args: &CheckArgs, console: &Console) -> anyhow::Result<()> {
    let mut overrides = Overrides {
        fresh: if args.fresh {
            Stage::ALL.to_vec()
        } else {
            Vec::new()
        },
        ..Overrides::default()
    };
    let mut job = Job::load(&args.job.path, &args.job.edits(), &overrides)?;
    console.name_job(&job.name);
    let is_split = job
        .parents()
        .any(|parent| is_kept_by_several(&job.work_dir, parent));
    if is_split {
        // The leader keeps as much as the others.
        overrides.process = Some(0);
        job = Job::load(&args.job.path, &args.job.edits(), &overrides)?;
    }
    let context = || format!("job {}", args.job.path.display());
    schemas::known::remember(&job.work_dir.join(CHECKSUMS), job.remembered());
    let (survey, pairs, prediction) = look(&job).with_context(context)?;
    let versions = version::predict(&job, is_split).with_context(context)?;
    if args.json {
        let mut found = to_json(&job, (&survey, pairs.as_ref()), prediction.as_ref());
        versions.add_to(&mut found);
        console.emit("info", found);
    } else {
        to_lines(&job, (&survey, pairs.as_ref()), prediction.as_ref())
            .iter()
            .for_each(|line| line_out(line));
        versions.lines().iter().for_each(|line| line_out(line));
    }
    Ok(())
}

type Looked = (Survey, Option<PairSurvey>, Option<Prediction>);

fn look(job: &Job) -> Result<Looked, JobError> {
    preflight(job)?;
    taken::refuse_taken(job, true)?;
    let fanouts = job.sample().map_or(&[][..], |sample| sample.fanouts());
    let survey = Survey::read(&job.graph, job.target_type, fanouts)?;
    // A run finds missing values and categories that do not fit a model once it has built the store.
    if let Some(plan) = job.infer.as_ref().filter(|_| job.runs(Stage::Infer))
        && job.brings_model()
        && (job.graph.is_typed() || plan.method() == Method::Layers)
    {
        plan.check_graph(&survey.meta)?;
    }
    let pairs = PairSurvey::read(&job.graph, &survey)?;
    // The changes of a version give pairs other splits.
    if let (Some(PairSurvey { counts, .. }), None) = (&pairs, job.flatten_version()) {
        pair_splits(job, counts)?;
    }
    if let Some(plan) = job.score.as_ref().filter(|_| job.runs(Stage::Score)) {
        plan.check_items(&type_counts(&survey))?;
    }
    let prediction = match &job.flatten {
        Some(plan) => {
            let pairs = pairs.as_ref();
            let batch = batch_targets(job, pairs);
            let found = predict(&survey, &job.graph, plan, batch, pairs);
            match found {
                // The targets of a version may be nodes that only the changes bring.
                Err(
                    FlattenError::NoTargets { .. }
                    | FlattenError::Schema(SchemaError::Value { .. }),
                ) if job.flatten_version().is_some() => None,
                found => Some(found?),
            }
        }
        None => None,
    };
    Ok((survey, pairs, prediction))
}

/// Returns the number of targets of a batch, or of its pairs.
fn batch_targets(job: &Job, pairs: Option<&PairSurvey>) -> usize {
    let Some(plan) = &job.train else { return 0 };
    match pairs.filter(|_| plan.is_by_src()) {
        Some(pairs) => whole_size(plan.batch_targets() as f64 * pairs.pairs_per_src()),
        None => plan.batch_targets(),
    }
}

/// Number of nodes of each type.
fn type_counts(survey: &Survey) -> Vec<u64> {
    let types = survey.types().iter();
    types.map(|of| of.ids.len() as u64).collect()
}

/// Number of nodes in each split, and in none.
fn splits(survey: &Survey) -> [(&'static str, usize); 4] {
    let found = &survey.target().split;
    let count = |split| found.iter().filter(|have| **have == split).count();
    [
        ("train", count(Split::Train)),
        ("val", count(Split::Val)),
        ("test", count(Split::Test)),
        ("none", count(Split::None)),
    ]
}

fn feature_width(features: FeatureMeta) -> usize {
    match features {
        FeatureMeta::None => 0,
        FeatureMeta::Dense { dim } | FeatureMeta::Sparse { dim } => dim,
    }
}

fn max_degree(relation: &RelationSurvey) -> u32 {
    relation.in_degree.iter().copied().max().unwrap_or(0)
}

fn hubs(job: &Job, relation: &RelationSurvey) -> usize {
    let threshold = job
        .sample()
        .map_or(u64::MAX, |sample| sample.hub_threshold());
    let degrees = relation.in_degree.iter();
    degrees
        .filter(|&&degree| u64::from(degree) > threshold)
        .count()
}

/// Bytes of a shard's node without its id and features: hop, degree, label, split and offset.
const SHARD_NODE_BYTES: f64 = 15.0;

/// Memory of the program itself, its threads and their buffers, and the pages of files that it reads.
const MEMORY_BASE: f64 = 72e6;
/// Memory that the allocator keeps in addition, as a share of the memory in use.
const ALLOCATOR_SHARE: f64 = 0.08;

/// Returns the expected peak of a run's memory, in bytes.
///
/// The stages follow each other, and free memory is returned after each, so the greatest stage sets
/// the peak: building the store, assembling and writing parts (whose features come from the mapped
/// store), training on shards, or inference. The constants are fitted to the resident memory of
/// jobs on two cores, 70 to 800 MB, within a factor of 1.2 where little else runs.
fn memory(
    job: &Job,
    (survey, pairs): (&Survey, Option<&PairSurvey>),
    prediction: Option<&Prediction>,
) -> f64 {
    let num_nodes = survey.num_nodes();
    let budget = usize::try_from(job.memory_budget.as_u64()).unwrap_or(usize::MAX);
    let id_bytes = survey.id_bytes();
    let relations = survey.meta.relations.iter();
    let edge_dim = relations
        .filter_map(|relation| relation.edge_feature_dim)
        .max();
    // The widest features: parts of typed graphs are planned for them.
    let features = survey.meta.types.iter().map(|of_type| of_type.features);
    let features = features
        .max_by_key(|&of_type| feature_width(of_type))
        .unwrap_or(FeatureMeta::None);
    let store = StoreSize {
        nodes: num_nodes,
        node_bytes: survey.feature_bytes() + id_bytes,
        in_edges: survey.num_edges(),
        edge_dim: edge_dim.unwrap_or(0),
    };
    let build = store.build_bytes(budget);
    let build_or_infer = build.max(inference_memory(job, num_nodes));
    let Some(prediction) = prediction else {
        return total_memory(build_or_infer);
    };
    let part_nodes = prediction.nodes_per_shard;
    let part = PartSize::new(
        (
            whole_size(part_nodes),
            whole_size(prediction.edges_per_shard),
        ),
        (features, whole_size(survey.feature_bytes())),
        edge_dim,
    );
    let parts = usize::try_from(prediction.parts).unwrap_or(usize::MAX);
    let flatten = part.flatten_bytes(parts, budget, job.workers);
    let train = training_memory(job, (survey, pairs), prediction, features);
    let score = match &job.score {
        Some(plan) if job.runs(Stage::Score) => {
            plan.memory_bytes(&type_counts(survey), embedding_dim(job))
        }
        _ => 0.0,
    };
    total_memory(build_or_infer.max(flatten).max(train).max(score))
}

/// Returns the memory of the train stage; nothing if the run has none.
fn training_memory(
    job: &Job,
    (survey, pairs): (&Survey, Option<&PairSurvey>),
    prediction: &Prediction,
    features: FeatureMeta,
) -> f64 {
    let Some(plan) = job.train.as_ref().filter(|_| job.runs(Stage::Train)) else {
        return 0.0;
    };
    let supervision = job.graph.pairs.as_ref();
    let shares_blocks = supervision.is_some_and(|of| plan.shares_blocks(of.spec().exclude));
    let batch = match shares_blocks {
        true => &prediction.part_batch,
        false => &prediction.batch,
    };
    let train_targets = match pairs {
        Some(pairs) if plan.is_by_src() => pairs.counts.train as f64 / pairs.pairs_per_src(),
        Some(pairs) => pairs.counts.train as f64,
        None => splits(survey)[0].1 as f64,
    };
    plan.memory_bytes(&TrainingSize {
        parts: prediction.parts as f64,
        part_nodes: prediction.nodes_per_shard,
        part_edges: prediction.edges_per_shard,
        part_node_bytes: survey.feature_bytes() + survey.id_bytes() + SHARD_NODE_BYTES,
        batch_nodes: batch.nodes.clone(),
        batch_edges: batch.edges,
        shares_blocks,
        batch_pairs: pairs.map_or(0.0, |_| batch_targets(job, pairs) as f64),
        dense_dim: match features {
            FeatureMeta::Dense { dim } => dim,
            FeatureMeta::None | FeatureMeta::Sparse { .. } => 0,
        },
        stored_features: survey.stored_features(),
        type_nodes: type_nodes(survey),
        train_targets,
    })
}

/// Returns the width of the embeddings of a model of links: that of its last hidden layer.
fn embedding_dim(job: &Job) -> usize {
    let hidden = match (&job.train, &job.infer) {
        (Some(train), _) => train.hidden().to_vec(),
        (None, Some(infer)) => infer.hidden_of_model().unwrap_or_default(),
        (None, None) => Vec::new(),
    };
    hidden.last().copied().unwrap_or_default()
}

fn type_nodes(survey: &Survey) -> BTreeMap<String, f64> {
    let types = survey.meta.types.iter().zip(survey.types());
    let count = |(of, found): (&TypeMeta, &TypeSurvey)| (of.name.clone(), found.ids.len() as f64);
    types.map(count).collect()
}

/// Returns the memory of a run whose greatest stage takes `stage` bytes.
fn total_memory(stage: f64) -> f64 {
    MEMORY_BASE + (1.0 + ALLOCATOR_SHARE) * stage
}

/// Returns the memory of the infer stage; nothing if the run has none.
fn inference_memory(job: &Job, num_nodes: usize) -> f64 {
    let Some(plan) = job.infer.as_ref().filter(|_| job.runs(Stage::Infer)) else {
        return 0.0;
    };
    let hidden = match &job.train {
        Some(train) => train.hidden().to_vec(),
        None => plan.hidden_of_model().unwrap_or_default(),
    };
    plan.memory_bytes(num_nodes, job.workers, &hidden)
}

fn to_json(
    job: &Job,
    (survey, pairs): (&Survey, Option<&PairSurvey>),
    prediction: Option<&Prediction>,
) -> Value {
    let splits: serde_json::Map<String, Value> = splits(survey)
        .into_iter()
        .map(|(name, count)| (name.to_owned(), json!(count)))
        .collect();
    let mut report = json!({
        "event": "check",
        "nodes": survey.num_nodes(),
        "edges": survey.num_edges(),
        "dropped_edges": survey.dropped_edges(),
        "in_degree_max": survey.relations.iter().map(max_degree).max(),
        "hubs": survey.relations.iter().map(|relation| hubs(job, relation)).sum::<usize>(),
        "features": feature_width(survey.meta.target().features),
        "splits": splits,
        "memory_bytes": memory(job, (survey, pairs), prediction).round(),
        "memory_budget_bytes": job.memory_budget.as_u64(),
    });
    if let Some(PairSurvey { counts, .. }) = pairs {
        report["pairs"] = json!({ "train": counts.train, "val": counts.val, "test": counts.test });
    }
    if let Some(plan) = job.score.as_ref().filter(|_| job.runs(Stage::Score)) {
        let (queries, items) = plan.num_queries_and_items(&type_counts(survey));
        report["score"] = json!({ "queries": queries, "items": items, "top_k": plan.top_k() });
    }
    if survey.meta.is_typed() {
        report["types"] = types_json(job, survey);
        report["relations"] = relations_json(job, survey);
        report["target_type"] = json!(survey.meta.target().name);
    } else {
        let (nodes, edges) = (&job.graph.types[0].nodes, &job.graph.relations[0].edges);
        let tables = [
            ("nodes", nodes.inferred_types()),
            ("edges", edges.inferred_types()),
        ];
        for (table, inferred) in tables {
            if let Some(inferred) = inferred {
                report["inferred"][table] = columns::inferred_json(inferred);
            }
        }
        if !survey.meta.types[0].columns.is_empty() {
            report["columns"] = columns::to_json(&survey.meta.types[0].columns);
        }
    }
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

/// Describes each node type.
fn types_json(job: &Job, survey: &Survey) -> Value {
    let types = survey.meta.types.iter().zip(survey.types());
    let types = types.zip(&job.graph.types).map(|((meta, of_type), own)| {
        let mut found = json!({
            "name": meta.name,
            "nodes": of_type.ids.len(),
            "id_type": meta.id_type,
            "features": feature_width(meta.features),
        });
        if let Some(width) = own.nodes.embedding() {
            found["embedding"] = json!(width);
        }
        if let Some(inferred) = own.nodes.inferred_types() {
            found["inferred"] = columns::inferred_json(inferred);
        }
        if !meta.columns.is_empty() {
            found["columns"] = columns::to_json(&meta.columns);
        }
        found
    });
    types.collect()
}

/// Describes each relation.
fn relations_json(job: &Job, survey: &Survey) -> Value {
    let name = |type_idx: usize| &survey.meta.types[type_idx].name;
    let relations = survey.meta.relations.iter().zip(&survey.relations);
    let relations = relations.zip(&job.graph.relations);
    let relations = relations.map(|((meta, relation), own)| {
        let mut found = json!({
            "name": meta.name,
            "from": name(meta.from),
            "to": name(meta.to),
            "edges": relation.num_edges,
            "dropped_edges": relation.dropped_edges,
            "in_degree_max": max_degree(relation),
            "hubs": hubs(job, relation),
        });
        if let Some(inferred) = own.edges.inferred_types() {
            found["inferred"] = columns::inferred_json(inferred);
        }
        found
    });
    relations.collect()
}

/// Returns a line for each node type.
fn node_lines(job: &Job, survey: &Survey) -> Vec<String> {
    let splits: Vec<String> = splits(survey)
        .into_iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    let label = match survey.meta.target().label.as_ref().map(|label| &label.kind) {
        None => "no labels".to_owned(),
        Some(LabelKind::Class { num_classes }) => format!("{num_classes} classes"),
        Some(LabelKind::ClassName { names }) => format!("{} classes by name", names.len()),
        Some(LabelKind::MultiLabel { width }) => format!("{width} labels a node"),
        Some(LabelKind::Number) => "a number to predict".to_owned(),
    };
    let mut lines = Vec::new();
    let types = survey.meta.types.iter().zip(survey.types());
    for ((meta, of_type), own) in types.zip(&job.graph.types) {
        let count = of_type.ids.len();
        let mut line = format!("{count}, {} features", feature_width(meta.features));
        if let Some(width) = own.nodes.embedding() {
            line.push_str(&format!(", a learnable row of {width}"));
        }
        if meta.name == survey.meta.target().name {
            let targets = if survey.meta.is_typed() {
                ", targets"
            } else {
                ""
            };
            line.push_str(&format!("{targets}, {label}; {}", splits.join(", ")));
        }
        if count == 0 {
            line.push_str(&none_with(&own.nodes.spec().rows_where));
        }
        lines.push(match survey.meta.is_typed() {
            false => format!("nodes    {line}"),
            true => format!("nodes    {}: {line}", meta.name),
        });
    }
    lines
}

/// Says what an empty type or relation wants of its rows.
fn none_with(wanted: &RowsWhere) -> String {
    match wanted.is_empty() {
        true => String::new(),
        false => format!("; no row has {}", describe_where(wanted)),
    }
}

/// Returns a line for each relation.
fn edge_lines(job: &Job, survey: &Survey) -> Vec<String> {
    let mut lines = Vec::new();
    let relations = survey.meta.relations.iter().zip(&survey.relations);
    for ((meta, relation), own) in relations.zip(&job.graph.relations) {
        let dropped = match relation.dropped_edges {
            0 => String::new(),
            dropped => format!(" ({dropped} rows dropped, an end is no node)"),
        };
        let (count, most, hubs) = (
            relation.num_edges,
            max_degree(relation),
            hubs(job, relation),
        );
        let name = |type_idx: usize| &survey.meta.types[type_idx].name;
        let (named, ends) = match survey.meta.is_typed() {
            false => (String::new(), String::new()),
            true => {
                let (from, to) = (name(meta.from), name(meta.to));
                (format!("{}: ", meta.name), format!(" from {from} to {to}"))
            }
        };
        let none = match (count, relation.dropped_edges) {
            (0, 0) => none_with(&own.edges.spec().rows_where),
            _ => String::new(),
        };
        lines.push(format!(
            "edges    {named}{count}{ends}{dropped}, in-degree at most {most}, {hubs} hubs{none}"
        ));
    }
    lines
}

fn to_lines(
    job: &Job,
    (survey, pairs): (&Survey, Option<&PairSurvey>),
    prediction: Option<&Prediction>,
) -> Vec<String> {
    let mut lines = node_lines(job, survey);
    let columns = survey.meta.types.iter().map(|of| &of.columns[..]);
    let num_nodes: Vec<usize> = survey.types().iter().map(|of| of.ids.len()).collect();
    lines.extend(columns::lines(job, columns, &num_nodes));
    lines.extend(edge_lines(job, survey));
    lines.extend(pairs.map(|PairSurvey { counts, .. }| {
        let (train, val, test) = (counts.train, counts.val, counts.test);
        format!("pairs    {train} train, {val} val, {test} test")
    }));
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
        let shards = size(prediction.bytes_shards);
        lines.push(format!(
            "bytes    about {shards} as shards{}, {} as rows{}",
            mark(Layout::Shards),
            size(prediction.bytes_rows),
            mark(Layout::Rows)
        ));
        let (needed, budget) = (
            memory(job, (survey, pairs), Some(prediction)),
            job.memory_budget,
        );
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
    if let Some(plan) = job.score.as_ref().filter(|_| job.runs(Stage::Score)) {
        let (queries, items) = plan.num_queries_and_items(&type_counts(survey));
        let best = plan
            .top_k()
            .map(|top_k| format!(", the best {top_k} of each query"));
        let best = best.unwrap_or_default();
        lines.push(format!("score    {queries} queries, {items} items{best}"));
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

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rounded mean count, above 0 and far below 2^53"
)]
fn whole_size(mean: f64) -> usize {
    mean.round() as usize
}
