//! The device of a training: opened as the plan says, and named where it matters.

use schemas::progress::{Event, Progress};
use serde_json::json;

use crate::checkpoint::Checkpoint;
use crate::config::Device;
use crate::prepare::Prepared;
use crate::{TrainError, TrainPlan};

impl Device {
    /// Opens the device.
    pub(crate) fn open(self) -> Result<gnn::Device, TrainError> {
        match self {
            Self::Auto => Ok(gnn::Device::auto()),
            Self::Cpu => Ok(gnn::Device::cpu()),
            Self::Gpu => gnn::Device::gpu().map_err(|source| TrainError::NoGpu { source }),
        }
    }
}

/// Tells which GPU a model is trained on, or why on none where there is a choice, and that it goes on
/// on another device than it was begun on; returns the device's name.
pub(crate) fn say(
    plan: &TrainPlan,
    prepared: &Prepared,
    resumed: Option<&Checkpoint>,
    notes: &mut Vec<String>,
    progress: &Progress,
) -> String {
    let device = prepared.model.device();
    let name = device.name();
    let has_choice = gnn::Device::HAS_GPU && plan.tuning.device == Device::Auto;
    let why_none = has_choice.then(gnn::Device::hardware).and_then(Result::err);
    if device.is_gpu() || why_none.is_some() {
        progress(&Event {
            stage: "train",
            phase: "device".to_owned(),
            done: 1,
            total: 1,
            message: Some(
                why_none.map_or_else(|| name.to_owned(), |problem| format!("{name}: {problem}")),
            ),
            fields: json!({ "device": name }),
        });
    }
    if device.is_software() {
        let note = format!(
            "{name} is a GPU in software, which is for tests: slower than \"cpu\", and wrong for nodes \
             of more than some thousand edges, if its driver ends long loops as Mesa's does"
        );
        tracing::warn!("{note}");
        notes.push(note);
    }
    let before = resumed.map(|checkpoint| &checkpoint.device);
    if let Some(before) = before.filter(|before| *before != name) {
        let note = format!(
            "the training was begun on {before} and went on on {name}: its end may differ in the \
             last bits from that of one that was not stopped"
        );
        tracing::warn!("{note}");
        notes.push(note);
    }
    name.to_owned()
}
