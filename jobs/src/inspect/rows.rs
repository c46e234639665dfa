//! Describes rows of embeddings and of graph features.

use std::collections::BTreeSet;
use std::path::Path;

use schemas::{EmbeddingsDataset, GraphFeatureDataset, LabelKind, Manifest};

use super::neighbourhood::{Neighbourhood, label, numbers};
use super::{heading, problem};
use crate::cli::InspectArgs;
use crate::error::JobError;

/// Default number of rows that are shown.
const ROWS_SHOWN: usize = 5;

pub(super) fn embeddings(dir: &Path, args: &InspectArgs) -> Result<String, JobError> {
    let dataset = EmbeddingsDataset::open(dir)?;
    let mut text = heading(dataset.manifest());
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
        _ => Ok(text),
    }
}

pub(super) fn graph_features(dir: &Path, args: &InspectArgs) -> Result<String, JobError> {
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
            let id = feature.target_nodes().node_id.display(0);
            if left == 0 || args.target.as_ref().is_some_and(|target| *target != id) {
                continue;
            }
            left -= 1;
            let shown = Neighbourhood {
                feature: &feature,
                meta: dataset.meta(),
                class_names: names,
            };
            if args.dot {
                return Ok(shown.dot());
            }
            text.push_str(&shown.text());
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
