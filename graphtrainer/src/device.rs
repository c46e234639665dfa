//! Opens the device of a training, and reports devices.

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

/// Reports the device of a stage, if it is a GPU. Logs and returns a warning about a software GPU.
pub fn report_device(
    stage: &'static str,
    device: &gnn::Device,
    progress: &Progress,
) -> Option<String> {
    let name = device.name();
    if device.is_gpu() {
        report(stage, name, name.to_owned(), progress);
    }
    device.is_software().then(|| {
        let note = format!(
            "{name} is a software GPU, which is for tests: it is slower than \"cpu\", and wrong for \
             nodes with more than some thousand edges if its driver ends long loops, as Mesa's does"
        );
        tracing::warn!("{note}");
        note
    })
}

fn report(stage: &'static str, name: &str, message: String, progress: &Progress) {
    progress(&Event {
        stage,
        phase: "device".to_owned(),
        done: 1,
        total: 1,
        message: Some(message),
        fields: json!({ "device": name }),
    });
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
    if let Some(problem) = has_choice.then(gnn::Device::hardware).and_then(Result::err) {
        report("train", name, format!("{name}: {problem}"), progress);
    }
    notes.extend(report_device("train", device, progress));
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
