//! Identity of an output: its plan and its fingerprint.

use crate::model::Record;
use store::Store;

/// Must change when the same plan gives other bytes than before.
const ENGINE_VERSION: u32 = 6;

/// Returns the settings that decide the bytes of the output: those of plan and model, how many
/// in-edges of a node each layer reads, and the fingerprint of the list of targets.
pub(crate) fn plan_json(
    mut settings: serde_json::Value,
    record: &Record,
    (in_edges, targets): (serde_json::Value, Option<&str>),
) -> serde_json::Value {
    settings["model"] = serde_json::json!(record.files);
    settings["in_edges"] = in_edges;
    settings["targets"] = serde_json::json!(targets.unwrap_or("all"));
    settings
}

/// Returns what rows that are kept depend on, beside the graph: the plan of their output and the
/// engine.
pub(crate) fn kept_plan(plan_json: &serde_json::Value) -> serde_json::Value {
    let mut kept = plan_json.clone();
    kept["engine"] = ENGINE_VERSION.into();
    kept
}

/// Returns how many in-edges are read, as the settings have it.
pub(crate) fn limit_json(limit: usize) -> serde_json::Value {
    match limit {
        usize::MAX => serde_json::json!("all"),
        _ => serde_json::json!(limit),
    }
}

/// Returns the fingerprint of an output: of its plan, its input and the ranks of in-edges.
pub(crate) fn fingerprint(plan_json: &serde_json::Value, store: &Store) -> String {
    let meta = store.meta();
    let settings = serde_json::json!({
        "engine": ENGINE_VERSION,
        "input": meta.input,
        // Seed and sampling decide the rank order, in which a node's messages are summed.
        "seed": meta.seed,
        "sampling": meta.sampling,
        "plan": plan_json,
    });
    schemas::xxh::fingerprint(settings.to_string().as_bytes())
}

/// Returns the fingerprint of this process's rounds. With several processes each has rows of its
/// own.
pub(crate) fn rounds_fingerprint(fingerprint: &str, store: &Store) -> String {
    let cluster = store.cluster();
    if cluster.num_processes() == 1 {
        return fingerprint.to_owned();
    }
    let of = serde_json::json!({
        "output": fingerprint,
        "process": cluster.process(),
        "processes": cluster.num_processes(),
        "workers": cluster.num_workers(),
    });
    schemas::xxh::fingerprint(of.to_string().as_bytes())
}
