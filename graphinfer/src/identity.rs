//! Identity of an output: its plan and its fingerprint.

use crate::InferError;
use crate::model::TrainedModel;
use crate::plan::InferPlan;
use crate::slice::Slice;
use store::Store;

/// Must change when the same plan gives other bytes than before.
const ENGINE_VERSION: u32 = 5;

/// Returns the settings that decide the bytes of the output.
pub(crate) fn plan_json(
    plan: &InferPlan,
    trained: &TrainedModel,
    slices: &[Slice],
    targets: Option<&str>,
) -> Result<serde_json::Value, InferError> {
    let limits = slices.iter().map(|slice| match slice.limit {
        usize::MAX => serde_json::json!("all"),
        limit => serde_json::json!(limit),
    });
    let mut settings = trained.settings(plan)?;
    settings["model"] = serde_json::json!(trained.files);
    settings["in_edges"] = limits.collect();
    settings["targets"] = serde_json::json!(targets.unwrap_or("all"));
    Ok(settings)
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
