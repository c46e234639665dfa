//! The device of a training: opened as the plan says, and named where it matters.

use schemas::progress::{Event, Progress};
use serde_json::json;

use crate::TrainError;
use crate::checkpoint::Checkpoint;
use crate::config::Device;

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

/// Tells which GPU a model is trained on, and that it goes on on another device than it was begun on;
/// returns the device's name.
pub(crate) fn say(
    model: &gnn::Model,
    resumed: Option<&Checkpoint>,
    notes: &mut Vec<String>,
    progress: &Progress,
) -> String {
    let device = model.device();
    let name = device.name();
    if device.is_gpu() {
        progress(&Event {
            stage: "train",
            phase: "device".to_owned(),
            done: 1,
            total: 1,
            message: Some(name.to_owned()),
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
