//! The report at the end of a run: the output of each stage, and the time.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use graphtrainer::scores::EvaluationFile;
use schemas::Manifest;
use schemas::storage::{Traffic, traffic};
use serde_json::{Value, json};

use crate::cli::Stage;
use crate::console::Console;
use crate::inspect::label_name;
use crate::job::Job;

/// Number of labels whose F1 is reported after a training, the worst first.
const LABELS_SAID: usize = 5;

/// The result of a stage.
pub(crate) struct Done {
    pub(crate) stage: Stage,
    pub(crate) output: PathBuf,
    pub(crate) manifest: Manifest,
    /// Whether the output was finished before this run.
    pub(crate) skipped: bool,
    pub(crate) seconds: f64,
}

impl Done {
    fn rows(&self) -> u64 {
        self.manifest.parts.iter().map(|part| part.rows).sum()
    }

    fn bytes(&self) -> u64 {
        self.manifest
            .parts
            .iter()
            .flat_map(|part| &part.files)
            .map(|file| file.bytes)
            .sum()
    }

    /// Returns the test metrics, if the stage has any.
    fn metrics(&self) -> Vec<(String, f64)> {
        let Some(metrics) = self
            .manifest
            .report
            .get("metrics")
            .and_then(Value::as_object)
        else {
            return Vec::new();
        };
        let number = |(name, value): (&String, &Value)| Some((name.clone(), value.as_f64()?));
        metrics
            .iter()
            .filter_map(number)
            .filter(|(name, _)| name.starts_with("test"))
            .collect()
    }

    fn to_json(&self) -> Value {
        let metrics: serde_json::Map<String, Value> = self
            .metrics()
            .into_iter()
            .map(|(name, value)| (name, json!(value)))
            .collect();
        json!({
            "stage": self.stage.name(),
            "output": self.output,
            "rows": self.rows(),
            "bytes": self.bytes(),
            "seconds": self.seconds,
            "skipped": self.skipped,
            "metrics": metrics,
        })
    }

    fn to_line(&self) -> String {
        let stage = self.stage.name();
        let mut line = format!("{stage:8} {}", self.output.display());
        if self.rows() > 0 {
            line.push_str(&format!(", {} rows", self.rows()));
        }
        line.push_str(&format!(", {}", ByteSize(self.bytes()).display().si()));
        for (name, value) in self.metrics() {
            line.push_str(&format!(", {name} {value:.4}"));
        }
        match self.skipped {
            true => line.push_str(", finished before"),
            false => line.push_str(&format!(", {:.1} s", self.seconds)),
        }
        line
    }

    /// Returns the labels with the lowest test F1, for a model that predicts classes or several
    /// labels.
    fn worst_labels(&self) -> Option<String> {
        // A finished stage does not fail because a file has changed since.
        let evaluation = EvaluationFile::read(&self.output).ok().flatten()?;
        let test = evaluation.splits.get("test")?;
        let mut labels: Vec<_> = test
            .labels
            .iter()
            .filter(|label| label.support > 0)
            .collect();
        if labels.len() < 2 {
            return None;
        }
        labels.sort_by(|a, b| a.f1.total_cmp(&b.f1));
        let shown = labels
            .iter()
            .take(LABELS_SAID)
            .map(|label| format!("{} {:.4} of {}", label_name(label), label.f1, label.support));
        let shown: Vec<String> = shown.collect();
        Some(format!("         lowest test f1: {}", shown.join(", ")))
    }
}

/// Prints the result of each stage.
pub(crate) fn report(
    job: &Job,
    done: &[Done],
    (time, num_processes): (Duration, usize),
    console: &Console,
) {
    let seconds = time.as_secs_f64();
    let Traffic { requests, faults } = traffic();
    if console.is_json() {
        let stages: Vec<Value> = done.iter().map(Done::to_json).collect();
        let summary = json!({
            "event": "summary",
            "seconds": seconds,
            "stages": stages,
            "store_requests": requests,
            "store_faults": faults,
        });
        console.emit("info", summary);
        return;
    }
    for stage in done {
        console.say(&stage.to_line());
        if let Some(line) = stage.worst_labels().filter(|_| stage.stage == Stage::Train) {
            console.say(&line);
        }
    }
    if requests > 0 {
        console.say(&format!("stores   {requests} requests, {faults} faults"));
    }
    let workers = match num_processes {
        1 => format!("{} workers", job.workers),
        _ => format!("{num_processes} processes of {} workers", job.workers),
    };
    console.say(&format!(
        "done     {} in {seconds:.1} s with {workers}",
        job.name
    ));
}
