//! The table `[incremental]`: versions of graph features and embeddings, and which jobs can have
//! them.

use std::path::PathBuf;

use gnn::LayerKind;
use gnn::typed::TypedKind;
use graphinfer::Method;
use schemas::ChangesSpec;
use serde::Deserialize;

use super::{JobSpec, key};
use crate::mistakes::Found;

/// `[incremental]` as written: what later versions need is kept in `work_dir`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IncrementalSpec {
    /// Output of `[infer]` of the version that `[input.changes]` are applied to. Default: none, all
    /// rows are computed from the tables of `[input]`.
    #[serde(default)]
    pub(crate) parent: Option<PathBuf>,
    /// Output of `[flatten]` that the changes are applied to. Default: none, all targets are
    /// flattened from the tables of `[input]`.
    #[serde(default)]
    pub(crate) features: Option<PathBuf>,
    /// Share of the store's in-edges, nodes or pairs, from 0 to 1, that changes before a version
    /// writes the store anew. Default: 0.02, and at least 100,000 of them.
    #[serde(default)]
    pub(crate) rebuild_share: Option<f64>,
}

/// How a job keeps and continues versions.
#[derive(Debug)]
pub(crate) struct Versions {
    /// Whether what later versions need is kept.
    pub(crate) are_kept: bool,
    /// The output of `[infer]` that the changes are applied to, if the job writes a version of it.
    pub(crate) parent: Option<PathBuf>,
    /// The output of `[flatten]` that the changes are applied to, if the job writes a version of it.
    pub(crate) features: Option<PathBuf>,
    /// What has changed since, night by night.
    pub(crate) changes: Vec<ChangesSpec>,
    /// The whole tables as they are now, in place of what has changed.
    pub(crate) snapshot: Option<ChangesSpec>,
    /// Share of the store that changes before a version writes it anew; none: the default.
    pub(crate) rebuild_share: Option<f64>,
    /// Whether a version computes all rows.
    pub(crate) full: bool,
}

impl Versions {
    pub(super) fn new(
        spec: Option<IncrementalSpec>,
        (changes, snapshot): (Vec<ChangesSpec>, Option<ChangesSpec>),
    ) -> Versions {
        let are_kept = spec.is_some();
        let spec = spec.unwrap_or_default();
        Versions {
            are_kept,
            parent: spec.parent,
            features: spec.features,
            changes,
            snapshot,
            rebuild_share: spec.rebuild_share,
            full: false,
        }
    }
}

impl JobSpec {
    /// Checks `[incremental]` and `[input.changes]` against the rest of the job.
    pub(super) fn check_incremental(&self, found: &mut Found) {
        let mut wrong = |name: &str, problem: &str| found.push(key(name, problem));
        let (changes, snapshot) = (&self.input.changes, self.input.snapshot.as_ref());
        let has_changes = !changes.is_empty() || snapshot.is_some();
        if self.incremental.is_none() && !has_changes {
            return;
        }
        for parent in self.parents() {
            if let Some(problem) = parent.problem(has_changes, snapshot.is_some()) {
                wrong(parent.key, &problem);
            }
        }
        if changes.iter().any(|night| night.is_empty()) {
            wrong(
                "input.changes",
                "names no table; `nodes`, `edges` or `pairs` is needed",
            );
        }
        if let Some(tables) = snapshot {
            if !changes.is_empty() {
                wrong("input.snapshot", "cannot be used with [input.changes]");
            }
            for (name, of_kind) in [("nodes", &tables.nodes), ("edges", &tables.edges)] {
                if of_kind.is_empty() {
                    let problem = "is missing; a snapshot has all tables of [input]";
                    wrong(&format!("input.snapshot.{name}"), problem);
                }
            }
        }
        let share = self.incremental.as_ref().and_then(|of| of.rebuild_share);
        if let Some(share) = share.filter(|of| !(0.0..=1.0).contains(of)) {
            let problem = format!("is {share}; allowed are shares from 0 to 1");
            wrong("incremental.rebuild_share", &problem);
        }
        let problem = match () {
            () if self.input.graphs.is_some() => "cannot be used with [input.graphs] so far",
            // With changes, streamed training is a mistake of its own.
            () if has_changes && self.is_streamed() => "",
            () if self.parents().iter().all(|parent| !parent.has_stage) => {
                "needs a table [infer] or [flatten], whose output has versions"
            }
            () => "",
        };
        if !problem.is_empty() {
            wrong("incremental", problem);
        }
        let of_infer = self.infer.as_ref();
        if of_infer.is_some_and(|infer| infer.method == Method::Neighborhoods) {
            wrong(
                "infer.method",
                "is \"neighborhoods\"; [incremental] needs \"layers\"",
            );
        }
        let samples = self.flatten.as_ref().and_then(|of| of.samples_per_target);
        if samples.is_some_and(|samples| samples > 1) {
            wrong(
                "flatten.samples_per_target",
                "must be 1 in a job with [incremental]",
            );
        }
        self.check_kept_training(found);
        if has_changes {
            self.check_version_stages(found);
        }
    }

    fn is_streamed(&self) -> bool {
        self.train.as_ref().is_some_and(|train| train.streamed)
    }

    /// Returns the parents that the stages of the job can have.
    fn parents(&self) -> [StageParent; 2] {
        let spec = self.incremental.as_ref();
        [
            StageParent {
                key: "incremental.parent",
                stage: "infer",
                has_stage: self.infer.is_some(),
                is_given: spec.is_some_and(|of| of.parent.is_some()),
            },
            StageParent {
                key: "incremental.features",
                stage: "flatten",
                has_stage: self.flatten.is_some() && !self.is_streamed(),
                is_given: spec.is_some_and(|of| of.features.is_some()),
            },
        ]
    }

    /// Checks that the rows of the model that the job trains can be kept.
    fn check_kept_training(&self, found: &mut Found) {
        let (Some(train), Some(_)) = (&self.train, &self.infer) else {
            return;
        };
        if train.model == TypedKind::Conv(LayerKind::LightGcn) {
            let problem = "is \"lightgcn\", which reads the rows of all layers; [incremental] cannot \
                           keep them";
            found.push(key("train.model", problem));
        }
    }

    /// Checks that a job of changes has no stage that does not read them.
    fn check_version_stages(&self, found: &mut Found) {
        if self.is_streamed() {
            let problem = "draws neighbourhoods from the tables of [input], without what has changed \
                           since; leave it out";
            found.push(key("train.streamed", problem));
        }
        if self.score.is_some() {
            let problem = "does not read what has changed so far; score the result of \
                           `graphflat compact` in a job of its own";
            found.push(key("score", problem));
        }
    }
}

/// The parent of a stage whose output has versions.
#[derive(Clone, Copy)]
struct StageParent {
    key: &'static str,
    stage: &'static str,
    has_stage: bool,
    is_given: bool,
}

impl StageParent {
    /// Returns what is wrong with the key.
    fn problem(&self, has_changes: bool, is_snapshot: bool) -> Option<String> {
        let stage = self.stage;
        match (self.has_stage, self.is_given, has_changes) {
            (true, false, true) => {
                let purpose = match is_snapshot {
                    false => "that [input.changes] are applied to",
                    true => "that [input.snapshot] is compared with",
                };
                Some(format!(
                    "is missing; it names the output of [{stage}] {purpose}"
                ))
            }
            (false, true, _) => Some(format!(
                "is an output of [{stage}], but the job has no table [{stage}]; leave it out"
            )),
            (true, true, false) => Some(
                "needs [input.changes], the tables of what has changed since, or [input.snapshot], \
                 the whole tables as they are now"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}
