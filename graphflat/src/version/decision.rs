//! How a version of graph features is computed.

use schemas::progress::{Event, Progress};
use serde_json::{Value, json};

/// If changes reach more than this share of the targets, in percent, a version keeps no row of its
/// parent: it costs hardly more, and the next ones need no earlier output.
const REACHED_MAX: u64 = 90;

/// How a version is computed.
#[derive(Clone, Debug)]
pub struct FlattenDecision {
    /// Why all targets are flattened; none if only those that changes reach.
    pub full: Option<String>,
    /// Targets that changes reach, and all of them.
    pub targets: [u64; 2],
    /// Nodes whose neighbourhoods of 0, 1, ... hops differ.
    pub hops: Vec<u64>,
    /// Bytes of the neighbourhoods that are written, if they are predicted.
    pub bytes: Option<u64>,
    /// Why the store is written anew after the version; none if it stays.
    pub rebuilds: Option<String>,
}

impl FlattenDecision {
    /// Decides how a version is computed.
    pub(super) fn new(full: Option<String>, targets: [u64; 2], hops: Vec<u64>) -> Self {
        let mut decision = Self {
            full,
            targets,
            hops,
            bytes: None,
            rebuilds: None,
        };
        let percent = decision.percent();
        if percent > REACHED_MAX && decision.full.is_none() {
            decision.full = Some(format!("the changes reach {percent} % of the targets"));
        }
        decision
    }

    /// Returns the share of the targets that the changes reach, in percent.
    fn percent(&self) -> u64 {
        100 * self.targets[0] / self.targets[1].max(1)
    }

    /// Returns how the version is computed, in a few words.
    pub fn summary(&self) -> String {
        match &self.full {
            None => "incremental: the changed neighbourhoods are flattened".to_owned(),
            Some(why) => format!("full: all targets are flattened, because {why}"),
        }
    }

    /// Returns a line for the targets, one for each hop, and one if the store is written anew.
    pub fn lines(&self) -> Vec<String> {
        let [reached, all] = self.targets;
        let targets = format!("{reached} of {all} targets");
        let hops = self.hops.iter().enumerate();
        let hops = hops.map(|(hop, nodes)| match hop {
            0 => format!("hop 0: {nodes} nodes are new or have other features"),
            hop => format!("hop {hop}: {nodes} nodes have other neighbourhoods of {hop} hops"),
        });
        let lines = std::iter::once(targets).chain(hops);
        lines.chain(self.rebuilds.clone()).collect()
    }

    /// Returns the decision as an entry of a report.
    pub fn to_json(&self) -> Value {
        let mut report = json!({
            "mode": if self.full.is_some() { "full" } else { "incremental" },
            "why_full": self.full,
            "reached": { "targets": self.targets[0], "hops": self.hops },
            "all": { "targets": self.targets[1] },
        });
        if let Some(bytes) = self.bytes {
            report["bytes"] = bytes.into();
        }
        report
    }

    pub(super) fn report(&self, progress: &Progress) {
        progress(&Event {
            stage: "flatten",
            phase: "plan".to_owned(),
            done: 0,
            total: 0,
            message: Some(format!("{}; {}", self.summary(), self.lines().join("; "))),
            fields: self.to_json(),
        });
    }
}
