//! What `graphflat check` says about a graph with node types and relations.

use graphflat::survey::{GraphSurvey, RelationSurvey};
use serde_json::{Value, json};

use super::{label_words, ok_line, splits};
use crate::console::{Console, line_out};
use crate::error::JobError;
use crate::job::Job;

/// Reads all tables and prints their counts by type and by relation.
///
/// # Errors
///
/// The first value that is not allowed.
pub(super) fn report(job: &Job, as_json: bool, console: &Console) -> Result<(), JobError> {
    let survey = GraphSurvey::read(&job.graph, job.target_type)?;
    if as_json {
        console.emit("info", to_json(job, &survey));
    } else {
        to_lines(job, &survey)
            .iter()
            .for_each(|line| line_out(line));
    }
    Ok(())
}

/// Returns the greatest in-degree of a relation, and its number of hubs.
fn degrees(job: &Job, relation: &RelationSurvey) -> (u32, usize) {
    let sample = job.sample();
    let threshold = sample.map_or(u64::MAX, |sample| sample.hub_threshold());
    let degrees = relation.in_degree.iter();
    let hubs = degrees
        .clone()
        .filter(|&&degree| u64::from(degree) > threshold);
    (degrees.copied().max().unwrap_or(0), hubs.count())
}

fn to_json(job: &Job, survey: &GraphSurvey) -> Value {
    let types = job.graph.types.iter().zip(&survey.num_nodes);
    let types = types.map(|(of_type, num_nodes)| {
        let features = of_type.nodes.feature_meta().dim();
        json!({ "name": of_type.name, "nodes": num_nodes, "features": features })
    });
    let relations = job.graph.relations.iter().zip(&survey.relations);
    let relations = relations.map(|(relation, read)| {
        let (in_degree_max, hubs) = degrees(job, read);
        json!({
            "name": relation.name,
            "from": job.graph.types[relation.from].name,
            "to": job.graph.types[relation.to].name,
            "edges": read.num_edges,
            "dropped_edges": read.dropped_edges,
            "in_degree_max": in_degree_max,
            "hubs": hubs,
        })
    });
    let counts = splits(&survey.split);
    let counts = counts.map(|(name, count)| (name.to_owned(), json!(count)));
    json!({
        "event": "check",
        "target_type": job.graph.types[job.target_type].name,
        "types": types.collect::<Vec<Value>>(),
        "relations": relations.collect::<Vec<Value>>(),
        "splits": serde_json::Map::from_iter(counts),
        "memory_budget_bytes": job.memory_budget.as_u64(),
    })
}

fn to_lines(job: &Job, survey: &GraphSurvey) -> Vec<String> {
    let mut lines = Vec::new();
    for (idx, (of_type, num_nodes)) in job.graph.types.iter().zip(&survey.num_nodes).enumerate() {
        let features = of_type.nodes.feature_meta().dim();
        let mut line = format!(
            "nodes    {}: {num_nodes}, {features} features",
            of_type.name
        );
        if idx == job.target_type {
            let counts = splits(&survey.split).map(|(name, count)| format!("{count} {name}"));
            let label = label_words(survey.label.as_ref());
            line.push_str(&format!(", targets, {label}; {}", counts.join(", ")));
        }
        lines.push(line);
    }
    for (relation, read) in job.graph.relations.iter().zip(&survey.relations) {
        let types = &job.graph.types;
        let (in_degree_max, hubs) = degrees(job, read);
        lines.push(format!(
            "edges    {}: {} from {} to {}{}, in-degree at most {in_degree_max}, {hubs} hubs",
            relation.name,
            read.num_edges,
            types[relation.from].name,
            types[relation.to].name,
            match read.dropped_edges {
                0 => String::new(),
                dropped => format!(" ({dropped} rows dropped, an end is no node)"),
            },
        ));
    }
    lines.push(ok_line(job));
    lines
}
