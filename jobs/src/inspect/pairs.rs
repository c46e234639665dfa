//! Describes the pairs of graph features.

use schemas::{GraphFeatureDataset, PairsMeta, SplitCounts};
use serde_json::{Value, json};
use store::StoreMeta;

use crate::error::JobError;

/// Returns the number of pairs of all parts by split.
fn counts(dataset: &GraphFeatureDataset) -> SplitCounts {
    let mut sum = SplitCounts::default();
    let parts = dataset.manifest().parts.iter();
    for counts in parts.filter_map(|part| part.targets) {
        sum.train += counts.train;
        sum.val += counts.val;
        sum.test += counts.test;
    }
    sum
}

/// Returns a line with the numbers of pairs, and the first `limit` pairs; nothing if there are none.
pub(super) fn text(dataset: &GraphFeatureDataset, limit: usize) -> Result<String, JobError> {
    let Some(meta) = &dataset.meta().pairs else {
        return Ok(String::new());
    };
    let SplitCounts {
        train, val, test, ..
    } = counts(dataset);
    let exclude = json!(meta.exclude);
    let mut text = format!("pairs: {train} train, {val} val, {test} test, exclude {exclude}\n");
    for pair in first(dataset, meta, limit)? {
        let plain = |key: &str| pair[key].as_str().unwrap_or_default().to_owned();
        let (src, dst, split) = (plain("src"), plain("dst"), plain("split"));
        let mut line = format!("  {src} -> {dst}, {split}");
        for key in ["label", "weight", "negatives"] {
            if !pair[key].is_null() {
                line.push_str(&format!(", {key} {}", pair[key]));
            }
        }
        text.push_str(&line);
        text.push('\n');
    }
    Ok(text)
}

/// Returns the numbers of pairs and the first `limit` pairs; null if there are none.
pub(super) fn json(dataset: &GraphFeatureDataset, limit: usize) -> Result<Value, JobError> {
    let Some(meta) = &dataset.meta().pairs else {
        return Ok(Value::Null);
    };
    let counts = counts(dataset);
    Ok(json!({
        "train": counts.train,
        "val": counts.val,
        "test": counts.test,
        "exclude": meta.exclude,
        "pairs": first(dataset, meta, limit)?,
    }))
}

/// Returns the first pairs, with the ids of their ends as text.
fn first(
    dataset: &GraphFeatureDataset,
    meta: &PairsMeta,
    limit: usize,
) -> Result<Vec<Value>, JobError> {
    let mut shown = Vec::new();
    for part in 0..dataset.num_parts() {
        if shown.len() == limit {
            break;
        }
        let shard = dataset.read_part(part)?;
        let (srcs, dsts) = (&shard.nodes[meta.from].ids, &shard.nodes[meta.to].ids);
        let Some(pairs) = &shard.pairs else {
            continue;
        };
        for at in 0..pairs.len().min(limit - shown.len()) {
            let negatives = pairs.hard.as_ref().map(|hard| {
                let ids = hard.of(at).iter().map(|row| dsts.display(row.index()));
                ids.collect::<Vec<String>>()
            });
            shown.push(json!({
                "src": srcs.display(pairs.src[at].index()),
                "dst": dsts.display(pairs.dst[at].index()),
                "split": pairs.split[at].as_str(),
                "label": pairs.label.as_ref().map(|label| label[at]),
                "weight": pairs.weight.as_ref().map(|weight| weight[at]),
                "negatives": negatives,
            }));
        }
    }
    Ok(shown)
}

/// Returns a line with the pairs of a store; nothing if there are none.
pub(super) fn of_store(meta: &StoreMeta) -> String {
    let Some(pairs) = &meta.pairs else {
        return String::new();
    };
    format!(
        "pairs: {} train, {} val, {} test; {} in-edges left out\n",
        pairs.train, pairs.val, pairs.test, meta.edges.left_out
    )
}
