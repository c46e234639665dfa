//! Describes a model: its architecture, metrics, scores by label, parameters.

use std::path::Path;

use graphtrainer::scores::{EvaluationFile, LabelScores, SplitScores};
use schemas::Manifest;
use serde_json::{Value, json};

use super::{heading, json, more, problem};
use crate::error::JobError;

/// Greatest number of labels whose scores are shown; the file holds all.
const LABELS_SHOWN: usize = 20;

/// Greatest number of labels with which a confusion matrix is shown.
const CONFUSION_SHOWN: usize = 10;

pub(super) fn model(dir: &Path, manifest: &Manifest, as_json: bool) -> Result<String, JobError> {
    let (model, file) = graphtrainer::load_any_with(dir, schemas::storage::read_existing_io)
        .map_err(|error| problem(dir, format!("holds no model that can be read: {error}")))?;
    let evaluation = EvaluationFile::read(dir)
        .map_err(|error| problem(dir, format!("holds no scores that can be read: {error}")))?;
    if as_json {
        let parameters = model.parameters().iter();
        let parameters = parameters.map(|of| json!({ "name": of.name, "shape": of.shape }));
        let mut values = json::heading(manifest);
        values.extend([
            ("architecture".to_owned(), json!(file.architecture())),
            ("fanouts".to_owned(), file.fanouts().clone()),
            ("metrics".to_owned(), json!(file.metrics())),
            ("test".to_owned(), json::test_scores(evaluation.as_ref())),
            ("parameters".to_owned(), parameters.collect()),
        ]);
        return Ok(Value::Object(values).to_string());
    }
    let architecture = serde_json::to_string(&file.architecture()).unwrap_or_default();
    let mut text = heading(manifest);
    text.push_str(&format!("architecture: {architecture}\n"));
    text.push_str(&format!("fanouts: {}\n", file.fanouts()));
    for (name, value) in file.metrics() {
        text.push_str(&format!("{name}: {value:.4}\n"));
    }
    if let Some(test) = evaluation.as_ref().and_then(|of| of.splits.get("test")) {
        scores(&mut text, test);
    }
    for parameter in model.parameters() {
        text.push_str(&format!("{} {:?}\n", parameter.name, parameter.shape));
    }
    Ok(text)
}

/// Appends the scores of the model, label by label.
fn scores(text: &mut String, test: &SplitScores) {
    if test.labels.is_empty() {
        return;
    }
    text.push_str(&format!(
        "test targets by label, of {}:\n",
        test.num_targets
    ));
    for label in test.labels.iter().take(LABELS_SHOWN) {
        text.push_str(&format!(
            "  {}: support {}, precision {:.4}, recall {:.4}, f1 {:.4}\n",
            label_name(label),
            label.support,
            label.precision,
            label.recall,
            label.f1
        ));
    }
    more(text, test.labels.len(), LABELS_SHOWN, "labels");
    let small = |rows: &&Vec<Vec<u64>>| rows.len() <= CONFUSION_SHOWN;
    if let Some(rows) = test.confusion.as_ref().filter(small) {
        text.push_str("test targets by label (row) and prediction (column):\n");
        for (label, row) in test.labels.iter().zip(rows) {
            let counts: Vec<String> = row.iter().map(u64::to_string).collect();
            text.push_str(&format!("  {}: {}\n", label_name(label), counts.join(" ")));
        }
    }
}

/// Returns the name of a label, or its number if it has no name.
pub(crate) fn label_name(label: &LabelScores) -> String {
    label
        .name
        .clone()
        .unwrap_or_else(|| format!("label {}", label.label))
}
