//! Describes rows of embeddings and of graph features.

use std::collections::BTreeSet;
use std::path::Path;

use schemas::{EmbeddingsDataset, GraphFeatureDataset, LabelKind, Manifest};
use serde_json::Value;

use super::neighbourhood::{Neighbourhood, label, numbers};
use super::{fanouts, heading, json, pairs, problem};
use crate::cli::InspectArgs;
use crate::error::JobError;

/// Default number of rows that are shown.
const ROWS_SHOWN: usize = 5;

pub(super) fn embeddings(dir: &Path, args: &InspectArgs) -> Result<String, JobError> {
    let dataset = EmbeddingsDataset::open(dir)?;
    let mut text = heading(dataset.manifest());
    let num_rows = (0..dataset.num_parts()).map(|part| dataset.num_rows(part));
    text.push_str(&version_line(dataset.manifest(), num_rows.sum()));
    let mut nodes = Vec::new();
    let names = class_names(dataset.manifest());
    // Nodes of several types may have the same id.
    let types: BTreeSet<&str> = (0..dataset.num_parts())
        .map(|part| dataset.type_of_part(part))
        .collect();
    let limit = match args.target {
        Some(_) => types.len(),
        None => rows_shown(args),
    };
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
            if args.json {
                nodes.push(json::embedding(
                    dataset.type_of_part(part),
                    &rows,
                    at,
                    names,
                ));
                continue;
            }
            let vector = &rows.embedding[at * rows.dim..(at + 1) * rows.dim];
            let of_type = match dataset.type_of_part(part) {
                "" => String::new(),
                name => format!("{name} "),
            };
            text.push_str(&format!(
                "{of_type}{id}: {}{}\n",
                numbers(vector),
                label(&rows.prediction, at, names)
            ));
        }
    }
    match (&args.target, left == limit) {
        (Some(target), true) => Err(problem(dir, format!("has no node {target}"))),
        _ if args.json => Ok(with(dataset.manifest(), [("nodes", nodes.into())])),
        _ => Ok(text),
    }
}

/// Returns the line that describes a version; none if the output is no version.
fn version_line(manifest: &Manifest, rows: u64) -> String {
    let line = manifest.version.as_ref().map(|version| {
        let outputs = match version.kept.len() {
            0 => "1 output".to_owned(),
            kept => format!("{} outputs", kept + 1),
        };
        let parent = &version.parent.path;
        format!("version: {rows} rows in all, of {outputs}; parent {parent}\n")
    });
    line.unwrap_or_default()
}

pub(super) fn graph_features(dir: &Path, args: &InspectArgs) -> Result<String, JobError> {
    let dataset = GraphFeatureDataset::open(dir)?;
    let flatten = dataset.flatten();
    let relations = &dataset.meta().relations;
    let of_hop = |hop| fanouts(hop, relations);
    let of_hops: Vec<String> = flatten.fanouts.iter().map(of_hop).collect();
    let mut text = heading(dataset.manifest());
    let rows = (0..dataset.num_parts()).map(|part| dataset.num_rows(part));
    text.push_str(&version_line(dataset.manifest(), rows.sum()));
    text.push_str(&format!(
        "hops {}, fanouts {}\n",
        flatten.hops,
        of_hops.join(", ")
    ));
    let mut targets = Vec::new();
    let names = class_names(dataset.manifest());
    let limit = rows_shown(args);
    let pairs_shown = if args.target.is_some() { 0 } else { limit };
    text.push_str(&pairs::text(&dataset, pairs_shown)?);
    let mut left = limit;
    for part in 0..dataset.num_parts() {
        if left == 0 {
            break;
        }
        for feature in dataset.find_features(part, args.target.as_deref(), left)? {
            left -= 1;
            let shown = Neighbourhood {
                feature: &feature,
                meta: dataset.meta(),
                class_names: names,
            };
            if args.dot {
                return Ok(shown.dot());
            }
            if args.json {
                targets.push(json::neighbourhood(&shown));
                continue;
            }
            text.push_str(&shown.text());
        }
    }
    match (&args.target, left == limit) {
        (Some(target), true) => Err(problem(dir, format!("has no target {target}"))),
        _ if args.json => {
            let named = relations.iter().map(|relation| relation.name.as_str());
            let named: Vec<&str> = named.filter(|name| !name.is_empty()).collect();
            let values = [
                ("hops", flatten.hops.into()),
                ("relations", named.into()),
                ("fanouts", serde_json::json!(flatten.fanouts)),
                ("targets", targets.into()),
            ];
            let mut all = object(dataset.manifest(), values);
            let pairs = pairs::json(&dataset, pairs_shown)?;
            if !pairs.is_null() {
                all.insert("pairs".to_owned(), pairs);
            }
            Ok(Value::Object(all).to_string())
        }
        _ => Ok(text),
    }
}

/// Returns an output's heading and further values as one JSON object.
pub(super) fn with<const N: usize>(manifest: &Manifest, values: [(&str, Value); N]) -> String {
    Value::Object(object(manifest, values)).to_string()
}

fn object<const N: usize>(
    manifest: &Manifest,
    values: [(&str, Value); N],
) -> serde_json::Map<String, Value> {
    let mut all = json::heading(manifest);
    all.extend(values.map(|(key, value)| (key.to_owned(), value)));
    all
}

pub(super) fn rows_shown(args: &InspectArgs) -> usize {
    match (args.dot, &args.target) {
        (false, None) => args.limit.unwrap_or(ROWS_SHOWN),
        _ => 1,
    }
}

/// Returns the names of the classes; none if labels have no names.
fn class_names(manifest: &Manifest) -> &[String] {
    let label = manifest
        .graph
        .as_ref()
        .and_then(|graph| graph.target().label.as_ref());
    match label.map(|label| &label.kind) {
        Some(LabelKind::ClassName { names }) => names,
        _ => &[],
    }
}
