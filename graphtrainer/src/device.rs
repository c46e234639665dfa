//! Opens the device of a training, and reports it.

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

/// Returns the name of the device that the model is trained on.
///
/// Reports a GPU, or why no GPU is used. Adds a warning to `notes` for a software GPU, and for a
/// device other than that of the checkpoint.
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
            "{name} is a software GPU, which is for tests: it is slower than \"cpu\", and wrong for \
             nodes with more than some thousand edges if its driver ends long loops, as Mesa's does"
        );
        tracing::warn!("{note}");
        notes.push(note);
    }
    let before = resumed.map(|checkpoint| &checkpoint.device);
    if let Some(before) = before.filter(|before| *before != name) {
        let note = format!(
            "the training began on {before} and continued on {name}: the model may differ in the \
             last bits from that of an uninterrupted training"
        );
        tracing::warn!("{note}");
        notes.push(note);
    }
    name.to_owned()
}
