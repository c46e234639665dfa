//! Describes the best items of queries, the scores of listed pairs, and the ranking.

use std::path::Path;

use schemas::ScoresDataset;
use serde_json::{Value, json};

use super::rows::{rows_shown, with};
use super::{heading, json, problem};
use crate::cli::InspectArgs;
use crate::error::JobError;

/// Number of best items that are shown of a query.
const ITEMS_SHOWN: usize = 10;

pub(super) fn scores(dir: &Path, args: &InspectArgs) -> Result<String, JobError> {
    let dataset = ScoresDataset::open(dir)?;
    let manifest = dataset.manifest();
    let limit = rows_shown(args);
    let queries = queries(&dataset, args.target.as_deref(), limit)?;
    if let (Some(target), true) = (&args.target, queries.is_empty()) {
        return Err(problem(dir, format!("has no query {target}")));
    }
    let pairs = match args.target {
        Some(_) => Vec::new(),
        None => pairs(&dataset, limit)?,
    };
    let metrics = &manifest.report["metrics"];
    if args.json {
        let named: Vec<Value> = queries.iter().map(Query::to_json).collect();
        let scored = pairs.iter().map(|(src, dst, score)| {
            let score = json::number(*score);
            json!({ "src": src, "dst": dst, "score": score })
        });
        let scored: Vec<Value> = scored.collect();
        let values = [
            ("queries", named.into()),
            ("pairs", scored.into()),
            ("metrics", metrics.clone()),
        ];
        return Ok(with(manifest, values));
    }
    let mut text = heading(manifest);
    for (name, value) in metrics.as_object().into_iter().flatten() {
        text.push_str(&format!(
            "{name} {:.4}\n",
            value.as_f64().unwrap_or(f64::NAN)
        ));
    }
    queries
        .iter()
        .for_each(|query| text.push_str(&query.text()));
    for (src, dst, score) in pairs {
        text.push_str(&format!("{} {}: {score}\n", bare(&src), bare(&dst)));
    }
    Ok(text)
}

/// A query with its best items.
struct Query {
    id: Value,
    items: Vec<(Value, f32)>,
}

impl Query {
    fn to_json(&self) -> Value {
        let items = self.items.iter().map(|(item, _)| item.clone());
        let scores = self.items.iter().map(|(_, score)| json::number(*score));
        let (items, scores): (Vec<Value>, Vec<Value>) = (items.collect(), scores.collect());
        json!({ "id": self.id, "item": items, "score": scores })
    }

    fn text(&self) -> String {
        let shown = self.items.iter().take(ITEMS_SHOWN);
        let shown = shown.map(|(item, score)| format!("{} {score:.4}", bare(item)));
        let shown: Vec<String> = shown.collect();
        let more = match self.items.len().checked_sub(ITEMS_SHOWN) {
            None | Some(0) => String::new(),
            Some(more) => format!(", ... {more} more"),
        };
        format!("{}: {}{more}\n", bare(&self.id), shown.join(", "))
    }
}

/// Returns an id without quotes.
fn bare(id: &Value) -> String {
    id.as_str().map_or(id.to_string(), str::to_owned)
}

fn queries(
    dataset: &ScoresDataset,
    wanted: Option<&str>,
    limit: usize,
) -> Result<Vec<Query>, JobError> {
    let mut queries = Vec::new();
    for part in dataset.item_parts() {
        if queries.len() == limit {
            break;
        }
        let rows = dataset.read_items(part)?;
        for at in 0..rows.ids.len() {
            let is_wanted = wanted.is_none_or(|id| rows.ids.display(at) == id);
            if queries.len() < limit && is_wanted {
                let first = at.checked_sub(1).map_or(0, |before| rows.ends[before]);
                let items = first..rows.ends[at];
                let items = items.map(|item| (json::id(&rows.items, item), rows.scores[item]));
                queries.push(Query {
                    id: json::id(&rows.ids, at),
                    items: items.collect(),
                });
            }
        }
    }
    Ok(queries)
}

fn pairs(dataset: &ScoresDataset, limit: usize) -> Result<Vec<(Value, Value, f32)>, JobError> {
    let mut pairs = Vec::new();
    for part in dataset.pair_parts() {
        if pairs.len() >= limit {
            break;
        }
        let rows = dataset.read_pairs(part)?;
        let left = rows.scores.len().min(limit - pairs.len());
        pairs.extend((0..left).map(|at| {
            let (src, dst) = (json::id(&rows.src, at), json::id(&rows.dst, at));
            (src, dst, rows.scores[at])
        }));
    }
    Ok(pairs)
}
