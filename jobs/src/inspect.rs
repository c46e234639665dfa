//! `graphflat inspect`: what a directory of this program holds, for people.

use std::path::Path;

use graphtrainer::scores::{EvaluationFile, LabelScores, SplitScores};
use schemas::dataset::verify_checksums;
use schemas::{
    EmbeddingsDataset, Features, GraphFeature, GraphFeatureDataset, Ids, LabelKind, Labels,
    Manifest, Split, read_manifest,
};
use store::StoreMeta;

use crate::cli::InspectArgs;
use crate::console::line_out;
use crate::error::JobError;

/// Rows shown unless the user asks for more.
const ROWS_SHOWN: usize = 5;

/// Values of a vector shown at most.
const VALUES_SHOWN: usize = 6;

/// Nodes and edges of a neighbourhood shown at most in text; DOT draws all.
const EDGES_SHOWN: usize = 20;

/// Labels whose scores are shown at most; the file holds all.
const LABELS_SHOWN: usize = 20;

/// Labels of a confusion matrix that is shown at most.
const CONFUSION_SHOWN: usize = 10;

/// Shows a directory.
///
/// # Errors
///
/// If it is no finished output and no store, or has no such target.
pub(crate) fn inspect(args: &InspectArgs) -> anyhow::Result<()> {
    let text = describe(args)?;
    line_out(text.trim_end());
    Ok(())
}

fn describe(args: &InspectArgs) -> Result<String, JobError> {
    let dir = &schemas::path::resolve("PATH", Path::new(""), &args.path)?;
    if dir.join("store.json").is_file() {
        refuse_flags(args, "a store", &["--dot", "--target", "--limit"])?;
        return store(dir);
    }
    let manifest = read_manifest(dir)?;
    match manifest.stage.as_str() {
        "flatten" => graph_features(dir, args),
        "train" => {
            refuse_flags(args, "a model", &["--dot", "--target", "--limit"])?;
            verify_checksums(dir, &manifest.parts)?;
            model(dir, &manifest)
        }
        "infer" => {
            refuse_flags(args, "embeddings", &["--dot"])?;
            embeddings(dir, args)
        }
        stage => Err(problem(
            dir,
            format!("holds the output of `{stage}`, unknown here"),
        )),
    }
}

/// Refuses flags that say nothing about what the directory holds.
fn refuse_flags(args: &InspectArgs, what: &str, flags: &[&str]) -> Result<(), JobError> {
    let given = [
        ("--dot", args.dot),
        ("--target", args.target.is_some()),
        ("--limit", args.limit.is_some()),
    ];
    match given
        .iter()
        .find(|(flag, given)| *given && flags.contains(flag))
    {
        Some((flag, _)) => Err(problem(
            &args.path,
            format!("holds {what}, which has no {flag}"),
        )),
        None => Ok(()),
    }
}

fn problem(dir: &Path, problem: String) -> JobError {
    JobError::Inspect {
        path: dir.to_owned(),
        problem,
    }
}

fn heading(manifest: &Manifest) -> String {
    let rows: u64 = manifest.parts.iter().map(|part| part.rows).sum();
    let files = || manifest.parts.iter().flat_map(|part| &part.files);
    let bytes: u64 = files().map(|file| file.bytes).sum();
    format!(
        "{}: {rows} rows, {} parts, {bytes} bytes, seed {}, by {}, fingerprint {}\n",
        manifest.stage,
        manifest.parts.len(),
        manifest.seed,
        manifest.program,
        manifest.fingerprint
    )
}

fn store(dir: &Path) -> Result<String, JobError> {
    let meta = StoreMeta::read(dir)?.ok_or_else(|| problem(dir, "holds no store".to_owned()))?;
    let keep = meta
        .keep
        .map_or("all".to_owned(), |keep| format!("up to {keep}"));
    let bytes: u64 = meta.files.iter().map(|file| file.bytes).sum();
    let mut text = format!(
        "store: {} nodes in {} partitions, {keep} in-edges a node, {} sampling, seed {}, {} \
         sample(s), {bytes} bytes\n",
        meta.num_nodes,
        meta.workers,
        serde_json::to_string(&meta.sampling)
            .unwrap_or_default()
            .trim_matches('"'),
        meta.seed,
        meta.samples
    );
    text.push_str(&format!("edges: {}\n", serde_json::json!(meta.edges)));
    Ok(text)
}

fn model(dir: &Path, manifest: &Manifest) -> Result<String, JobError> {
    let (model, file) = gnn::load_with(dir, schemas::storage::read_existing_io)
        .map_err(|error| problem(dir, format!("holds no model that can be read: {error}")))?;
    let architecture = serde_json::to_string(&file.architecture).unwrap_or_default();
    let mut text = heading(manifest);
    text.push_str(&format!("architecture: {architecture}\n"));
    text.push_str(&format!("fanouts: {}\n", file.fanouts));
    for (name, value) in &file.metrics {
        text.push_str(&format!("{name}: {value:.4}\n"));
    }
    let evaluation = EvaluationFile::read(dir)
        .map_err(|error| problem(dir, format!("holds no scores that can be read: {error}")))?;
    if let Some(test) = evaluation.as_ref().and_then(|of| of.splits.get("test")) {
        scores(&mut text, test);
    }
    for parameter in model.parameters() {
        text.push_str(&format!("{} {:?}\n", parameter.name, parameter.shape));
    }
    Ok(text)
}

/// What the model gets right, label by label.
fn scores(text: &mut String, test: &SplitScores) {
    if test.labels.is_empty() {
        return;
    }
    text.push_str(&format!(
        "test targets by label, of {}:\n",
        test.num_targets
    ));
    for label in test.labels.iter().take(LABELS_SHOWN) {
        text.push_str(&format!(
            "  {}: support {}, precision {:.4}, recall {:.4}, f1 {:.4}\n",
            label_name(label),
            label.support,
            label.precision,
            label.recall,
            label.f1
        ));
    }
    more(text, test.labels.len(), LABELS_SHOWN, "labels");
    let small = |rows: &&Vec<Vec<u64>>| rows.len() <= CONFUSION_SHOWN;
    if let Some(rows) = test.confusion.as_ref().filter(small) {
        text.push_str("test targets by label (row) and prediction (column):\n");
        for (label, row) in test.labels.iter().zip(rows) {
            let counts: Vec<String> = row.iter().map(u64::to_string).collect();
            text.push_str(&format!("  {}: {}\n", label_name(label), counts.join(" ")));
        }
    }
}

/// What a label is called; its number, where it has no name.
pub(crate) fn label_name(label: &LabelScores) -> String {
    label
        .name
        .clone()
        .unwrap_or_else(|| format!("label {}", label.label))
}

fn embeddings(dir: &Path, args: &InspectArgs) -> Result<String, JobError> {
    let dataset = EmbeddingsDataset::open(dir)?;
    let mut text = heading(dataset.manifest());
    let names = class_names(dataset.manifest());
    let limit = rows_shown(args);
    let mut left = limit;
    for part in 0..dataset.num_parts() {
        if left == 0 {
            break;
        }
        let rows = dataset.read_part(part)?;
        for at in 0..rows.ids.len() {
            let id = rows.ids.display(at);
            if left == 0 || args.target.as_ref().is_some_and(|target| *target != id) {
                continue;
            }
            left -= 1;
            let vector = &rows.embedding[at * rows.dim..(at + 1) * rows.dim];
            text.push_str(&format!(
                "{id}: {}{}\n",
                numbers(vector),
                label(&rows.prediction, at, names)
            ));
        }
    }
    match (&args.target, left == limit) {
        (Some(target), true) => Err(problem(dir, format!("has no node {target}"))),
        _ => Ok(text),
    }
}

fn graph_features(dir: &Path, args: &InspectArgs) -> Result<String, JobError> {
    let dataset = GraphFeatureDataset::open(dir)?;
    let flatten = dataset.flatten();
    let fanouts: Vec<String> = flatten.fanouts.iter().map(ToString::to_string).collect();
    let mut text = heading(dataset.manifest());
    text.push_str(&format!(
        "hops {}, fanouts {}\n",
        flatten.hops,
        fanouts.join(", ")
    ));
    let names = class_names(dataset.manifest());
    let limit = rows_shown(args);
    let mut left = limit;
    for part in 0..dataset.num_parts() {
        if left == 0 {
            break;
        }
        for feature in dataset.read_features(part)? {
            let id = feature.node_id.display(0);
            if left == 0 || args.target.as_ref().is_some_and(|target| *target != id) {
                continue;
            }
            left -= 1;
            if args.dot {
                return Ok(dot(&feature));
            }
            text.push_str(&neighbourhood(&feature, names));
        }
    }
    match (&args.target, left == limit) {
        (Some(target), true) => Err(problem(dir, format!("has no target {target}"))),
        _ => Ok(text),
    }
}

fn rows_shown(args: &InspectArgs) -> usize {
    match (args.dot, &args.target) {
        (false, None) => args.limit.unwrap_or(ROWS_SHOWN),
        _ => 1,
    }
}

/// What the classes are called, where labels were given by name.
fn class_names(manifest: &Manifest) -> &[String] {
    let label = manifest
        .graph
        .as_ref()
        .and_then(|graph| graph.label.as_ref());
    match label.map(|label| &label.kind) {
        Some(LabelKind::ClassName { names }) => names,
        _ => &[],
    }
}

/// The distance of every node from the target.
fn hops(feature: &GraphFeature) -> Vec<usize> {
    let mut hops = Vec::with_capacity(feature.node_id.len());
    for (hop, range) in feature.hop_offset.windows(2).enumerate() {
        hops.extend((range[0]..range[1]).map(|_| hop));
    }
    hops
}

/// Every kept edge as positions of source and destination, and its own position.
fn edges(feature: &GraphFeature) -> impl Iterator<Item = (usize, usize, usize)> {
    let ranges = feature.in_offset.windows(2).enumerate();
    ranges.flat_map(move |(dst, range)| {
        (range[0] as usize..range[1] as usize)
            .map(move |edge| (feature.in_src[edge] as usize, dst, edge))
    })
}

fn neighbourhood(feature: &GraphFeature, names: &[String]) -> String {
    let ids = &feature.node_id;
    let split = match feature.split {
        Split::None => String::new(),
        split => format!(", split {}", format!("{split:?}").to_lowercase()),
    };
    let mut text = format!(
        "target {}{split}{}: {} nodes, {} edges\n",
        ids.display(0),
        label(&feature.labels, 0, names).replace(" ->", ", label"),
        ids.len(),
        feature.in_src.len()
    );
    let hops = hops(feature);
    for node in (0..ids.len()).take(EDGES_SHOWN) {
        text.push_str(&format!(
            "  hop {} {} in-degree {}{}\n",
            hops[node],
            ids.display(node),
            feature.in_degree[node],
            features(&feature.features, node)
        ));
    }
    more(&mut text, ids.len(), EDGES_SHOWN, "nodes");
    for (src, dst, edge) in edges(feature).take(EDGES_SHOWN) {
        let weight = feature
            .edge_weight
            .as_ref()
            .map(|weights| format!(" weight {}", weights[edge]));
        let (src, dst) = (ids.display(src), ids.display(dst));
        text.push_str(&format!("  {src} -> {dst}{}\n", weight.unwrap_or_default()));
    }
    more(&mut text, feature.in_src.len(), EDGES_SHOWN, "edges");
    text
}

fn more(text: &mut String, count: usize, shown: usize, what: &str) {
    if count > shown {
        text.push_str(&format!("  ... {} more {what}\n", count - shown));
    }
}

fn features(features: &Features, node: usize) -> String {
    match features {
        Features::None => String::new(),
        Features::Dense { dim, values } => {
            format!(
                " features {}",
                numbers(&values[node * dim..(node + 1) * dim])
            )
        }
        Features::Sparse { dim, offset, .. } => {
            format!(
                " features {} of {dim} present",
                offset[node + 1] - offset[node]
            )
        }
    }
}

fn numbers(values: &[f32]) -> String {
    let shown: Vec<String> = values
        .iter()
        .take(VALUES_SHOWN)
        .map(|value| format!("{value:.4}"))
        .collect();
    let more = if values.len() > VALUES_SHOWN {
        ", ..."
    } else {
        ""
    };
    format!("[{}{more}] ({})", shown.join(", "), values.len())
}

fn label(labels: &Labels, at: usize, names: &[String]) -> String {
    match labels {
        Labels::None => String::new(),
        Labels::Class(classes) if classes[at] == schemas::NO_CLASS => String::new(),
        Labels::Class(classes) => match names.get(classes[at] as usize) {
            Some(name) => format!(" -> {name}"),
            None => format!(" -> class {}", classes[at]),
        },
        Labels::Number(numbers) if numbers[at].is_nan() => String::new(),
        Labels::Number(numbers) => format!(" -> {}", numbers[at]),
        Labels::Multi { width, values, .. } => {
            let row = &values[at * width..(at + 1) * width];
            let set: Vec<String> = (0..*width)
                .filter(|&c| row[c] > 0.5)
                .map(|c| c.to_string())
                .collect();
            format!(" -> classes [{}]", set.join(", "))
        }
    }
}

/// The neighbourhood as a graph that Graphviz draws.
fn dot(feature: &GraphFeature) -> String {
    let ids = &feature.node_id;
    let mut text = format!("digraph {} {{\n  rankdir = RL;\n", quoted(ids, 0));
    for (node, hop) in hops(feature).into_iter().enumerate() {
        let shape = if node == 0 { ", shape = box" } else { "" };
        text.push_str(&format!(
            "  n{node} [label = {}, hop = {hop}{shape}];\n",
            quoted(ids, node)
        ));
    }
    for (src, dst, edge) in edges(feature) {
        let weight = feature
            .edge_weight
            .as_ref()
            .map(|w| format!(" [label = \"{}\"]", w[edge]));
        text.push_str(&format!(
            "  n{src} -> n{dst}{};\n",
            weight.unwrap_or_default()
        ));
    }
    text.push_str("}\n");
    text
}

fn quoted(ids: &Ids, at: usize) -> String {
    format!(
        "\"{}\"",
        ids.display(at).replace('\\', "\\\\").replace('"', "\\\"")
    )
}
