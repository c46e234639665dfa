//! What was measured, as `race.json` has it.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::turns::Spread;

/// File of a [`Record`] in `--out`.
pub(crate) const RECORD_FILE: &str = "race.json";

/// All runs, and where they ran.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Record {
    pub(crate) machine: Machine,
    /// Versions of our program, and of its source if it was built from a checkout of git.
    pub(crate) program: String,
    pub(crate) turns: usize,
    /// Peers that do not run, and why.
    pub(crate) left_out: Vec<String>,
    pub(crate) races: Vec<Measured>,
}

/// A race and the runs of its competitors so far.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Measured {
    /// `GROUP.WHAT.GRAPH`.
    pub(crate) name: String,
    /// Number of edges of the graph.
    pub(crate) edges: u64,
    /// Whether the race is about the seconds of the whole process, not those of the work alone.
    pub(crate) of_process: bool,
    pub(crate) competitors: Vec<Competitor>,
}

/// A competitor and its runs.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Competitor {
    pub(crate) name: String,
    /// Whether it is our program.
    pub(crate) is_ours: bool,
    pub(crate) one_core: bool,
    /// Its versions, if it prints them.
    pub(crate) version: Option<String>,
    pub(crate) runs: Vec<Run>,
    /// Why it does not run any more.
    pub(crate) failure: Option<String>,
}

/// The figures of one run.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Run {
    /// Seconds of the work that the race is about.
    pub(crate) work: f64,
    /// Seconds of the whole process.
    pub(crate) process: f64,
    /// User and system seconds of the whole process.
    pub(crate) cpu: f64,
    /// Largest resident memory.
    pub(crate) peak_bytes: u64,
}

impl Competitor {
    /// Returns the spread of a figure over the runs; `None` if it has none or has failed.
    pub(crate) fn spread(&self, figure: impl Fn(&Run) -> f64) -> Option<Spread> {
        let runs = self.runs.iter().filter(|_| self.failure.is_none());
        Spread::of(runs.map(figure))
    }

    /// Returns the median of a figure.
    pub(crate) fn median(&self, figure: impl Fn(&Run) -> f64) -> Option<f64> {
        self.spread(figure).map(|spread| spread.median)
    }
}

impl Measured {
    /// Returns the figure that the race is about.
    pub(crate) fn headline(&self) -> fn(&Run) -> f64 {
        match self.of_process {
            true => |run| run.process,
            false => |run| run.work,
        }
    }

    /// Returns our first competitor, with which others are compared.
    pub(crate) fn ours(&self) -> Option<&Competitor> {
        self.competitors
            .iter()
            .find(|competitor| competitor.is_ours)
    }

    /// Returns the peer with the smallest median of a figure, on as many cores as [`Self::ours`],
    /// and this median.
    pub(crate) fn best_peer(&self, figure: impl Fn(&Run) -> f64) -> Option<(&Competitor, f64)> {
        let peers = self
            .competitors
            .iter()
            .filter(|peer| !peer.is_ours && !peer.one_core);
        let medians = peers.filter_map(|peer| Some((peer, peer.median(&figure)?)));
        medians.min_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    /// Returns how many times the figure of the best peer is ours.
    pub(crate) fn ratio(&self, figure: impl Fn(&Run) -> f64) -> Option<f64> {
        let ours = self.ours()?.median(&figure)?;
        let (_, best) = self.best_peer(figure)?;
        Some(best / ours)
    }
}

impl Record {
    /// Writes the record; a kill leaves either the old or the new one.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(crate) fn save(&self, dir: &Path) -> anyhow::Result<()> {
        let (path, temporary) = (dir.join(RECORD_FILE), dir.join("race.json.tmp"));
        let text = serde_json::to_string_pretty(self)?;
        fs::write(&temporary, text + "\n").with_context(|| temporary.display().to_string())?;
        fs::rename(&temporary, &path).with_context(|| path.display().to_string())
    }

    /// Reads the record of an earlier run.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(crate) fn load(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(RECORD_FILE);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Returns the failures, one line each.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for race in &self.races {
            for competitor in &race.competitors {
                if let Some(failure) = &competitor.failure {
                    lines.push(format!(
                        "{}: {} failed: {failure}",
                        race.name, competitor.name
                    ));
                }
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn competitor(name: &str, is_ours: bool, seconds: &[f64]) -> Competitor {
        let run = |&work: &f64| Run {
            work,
            process: work + 1.0,
            cpu: 0.0,
            peak_bytes: 0,
        };
        Competitor {
            name: name.to_owned(),
            is_ours,
            one_core: false,
            version: None,
            runs: seconds.iter().map(run).collect(),
            failure: None,
        }
    }

    #[test]
    fn the_ratio_is_to_the_fastest_peer_that_ran() {
        let failed = Competitor {
            failure: Some("exit status: 1".to_owned()),
            ..competitor("b", false, &[0.1])
        };
        let slow = Competitor {
            one_core: true,
            ..competitor("c, one core", false, &[0.2])
        };
        let mut race = Measured {
            name: "infer.sage.S".to_owned(),
            edges: 1,
            of_process: false,
            competitors: vec![
                competitor("graphflat", true, &[1.0, 3.0, 2.0]),
                competitor("a", false, &[9.0]),
                competitor("a, tuned", false, &[5.0, 7.0]),
                failed,
                slow,
            ],
        };
        assert_eq!(race.best_peer(race.headline()).unwrap().0.name, "a, tuned");
        assert_eq!(race.ratio(race.headline()), Some(3.0));
        race.of_process = true;
        assert_eq!(race.ratio(race.headline()), Some(7.0 / 3.0));
        race.competitors.truncate(1);
        assert_eq!(race.ratio(race.headline()), None);
    }
}
