//! Reads the figure of a run from what the program printed and wrote.

use anyhow::Context as _;
use serde_json::Value;

use crate::child::Line;
use crate::turns::Spread;

/// What a peer's script says about its run.
#[derive(Debug, PartialEq)]
pub(crate) struct PeerFigure {
    /// Seconds of work.
    pub(crate) seconds: f64,
    /// Peak memory, with that of other processes such as a JVM; 0 if the script has none.
    pub(crate) peak_bytes: u64,
    /// Its version, and that of torch.
    pub(crate) version: Option<String>,
}

/// Reads the JSON line of a peer: the last line that begins with `{`.
///
/// # Errors
///
/// If there is none, or it has no `seconds`.
pub(crate) fn of_peer(lines: &[Line]) -> anyhow::Result<PeerFigure> {
    let line = lines.iter().rev().find(|line| line.text.starts_with('{'));
    let line = line.context("printed no line of JSON")?;
    let said: Value = serde_json::from_str(&line.text).context("printed broken JSON")?;
    let seconds = said["seconds"].as_f64().context("printed no `seconds`")?;
    let mebibytes = said["rss_mb"].as_f64().unwrap_or_default();
    let version = said["version"]
        .as_str()
        .map(|version| match said["torch"].as_str() {
            Some(torch) => format!("{version} (torch {torch})"),
            None => version.to_owned(),
        });
    Ok(PeerFigure {
        seconds,
        peak_bytes: bytes(mebibytes * f64::from(1 << 20)),
        version,
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float saturates as an integer"
)]
fn bytes(number: f64) -> u64 {
    number as u64
}

/// Returns when the store was written: the time of the last event of the stage `store`.
///
/// # Errors
///
/// If the program printed no such event.
pub(crate) fn store_written(lines: &[Line]) -> anyhow::Result<f64> {
    let is_of_store = |line: &&Line| {
        let event = serde_json::from_str::<Value>(&line.text).unwrap_or_default();
        event["event"] == "progress" && event["stage"] == "store"
    };
    let last = lines.iter().rev().find(is_of_store);
    Ok(last.context("printed no event of the store")?.at)
}

/// Returns the seconds of the summary, which `graphflat run --json` prints last.
///
/// # Errors
///
/// If there is no summary, or a stage was skipped, so that nothing was measured.
pub(crate) fn job_seconds(lines: &[Line]) -> anyhow::Result<f64> {
    let events = lines.iter().rev();
    let mut events = events.filter_map(|line| serde_json::from_str::<Value>(&line.text).ok());
    let summary = events.find(|event| event["event"] == "summary");
    let summary = summary.context("printed no summary")?;
    let stages = summary["stages"].as_array().context("printed no stages")?;
    anyhow::ensure!(
        stages.iter().all(|stage| stage["skipped"] != true),
        "skipped a stage, so nothing was measured"
    );
    summary["seconds"].as_f64().context("printed no seconds")
}

/// Returns the median seconds of the last `measured` epochs, from the manifest of a model.
///
/// # Errors
///
/// If the manifest has fewer epochs.
pub(crate) fn epoch_seconds(manifest: &Value, measured: usize) -> anyhow::Result<f64> {
    let epochs = manifest["report"]["epochs"]
        .as_array()
        .context("the manifest has no epochs")?;
    let first = epochs
        .len()
        .checked_sub(measured)
        .context("the manifest has too few epochs")?;
    let seconds = epochs[first..]
        .iter()
        .filter_map(|epoch| epoch["seconds"].as_f64());
    Ok(Spread::of(seconds)
        .context("the epochs have no seconds")?
        .median)
}

/// Returns the seconds of the layers, from the manifest of embeddings.
///
/// These are the rounds from `first` on. The threads' time for writing parts is subtracted, because
/// peers do not count it either.
///
/// # Errors
///
/// If the manifest has no rounds.
pub(crate) fn layer_seconds(manifest: &Value, first: usize, workers: usize) -> anyhow::Result<f64> {
    let rounds = manifest["report"]["rounds"].as_array();
    let rounds = rounds.context("the manifest has no rounds")?;
    let workers = f64::from(u32::try_from(workers.max(1))?);
    let mut sum = 0.0;
    for round in rounds
        .get(first..)
        .context("the manifest has too few rounds")?
    {
        let figure = |name: &str| round[name].as_f64().context("a round has no seconds");
        sum += figure("seconds")? - figure("writing")? / workers;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(texts: &[&str]) -> Vec<Line> {
        let texts = texts.iter().zip(1_u32..);
        let line = |(text, at): (&&str, u32)| Line {
            at: f64::from(at),
            text: (*text).to_owned(),
        };
        texts.map(line).collect()
    }

    fn error_of<T>(result: anyhow::Result<T>) -> String {
        result.err().unwrap().to_string()
    }

    #[test]
    fn a_peer_prints_its_figure_last() {
        let printed = [
            "downloading",
            r#"{"seconds": 9}"#,
            r#"{"version": "2.1", "torch": "2.2", "seconds": 0.25, "rss_mb": 2.5}"#,
            "bye",
        ];
        let expected = PeerFigure {
            seconds: 0.25,
            peak_bytes: 2_621_440,
            version: Some("2.1 (torch 2.2)".to_owned()),
        };
        assert_eq!(of_peer(&lines(&printed)).unwrap(), expected);
        assert_eq!(
            error_of(of_peer(&lines(&["done"]))),
            "printed no line of JSON"
        );
        assert_eq!(error_of(of_peer(&lines(&["{}"]))), "printed no `seconds`");
        assert_eq!(error_of(of_peer(&lines(&["{"]))), "printed broken JSON");
    }

    #[test]
    fn a_job_prints_its_seconds() {
        let progress = r#"{"event":"progress","stage":"store","phase":"written"}"#;
        let flatten = r#"{"event":"progress","stage":"flatten","phase":"wave"}"#;
        let summary = r#"{"event":"summary","seconds":1.5,"stages":[{"skipped":false}]}"#;
        let printed = lines(&[progress, progress, flatten, summary]);
        assert_eq!(job_seconds(&printed).unwrap(), 1.5);
        assert_eq!(store_written(&printed).unwrap(), 2.0);
        assert_eq!(error_of(job_seconds(&printed[..3])), "printed no summary");
        let skipped = lines(&[r#"{"event":"summary","seconds":1,"stages":[{"skipped":true}]}"#]);
        assert!(error_of(job_seconds(&skipped)).starts_with("skipped a stage"));
        assert_eq!(
            error_of(store_written(&skipped)),
            "printed no event of the store"
        );
    }

    #[test]
    fn manifests_have_epochs_and_rounds() {
        let epochs = [9.0, 0.5, 0.1, 0.3].map(|seconds| json!({ "seconds": seconds }));
        let manifest = json!({ "report": { "epochs": epochs } });
        assert_eq!(epoch_seconds(&manifest, 3).unwrap(), 0.3);
        assert_eq!(
            error_of(epoch_seconds(&manifest, 5)),
            "the manifest has too few epochs"
        );
        let rounds = [(4.0, 0.0), (2.0, 0.0), (1.0, 0.5)]
            .map(|(seconds, writing)| json!({ "seconds": seconds, "writing": writing }));
        let of_rounds = json!({ "report": { "rounds": rounds } });
        assert_eq!(layer_seconds(&of_rounds, 1, 2).unwrap(), 2.75);
        assert_eq!(layer_seconds(&of_rounds, 0, 1).unwrap(), 6.5);
        assert!(layer_seconds(&json!({}), 0, 1).is_err());
    }
}
