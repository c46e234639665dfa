//! The table `[incremental]`: versions of embeddings, and which jobs can have them.

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
}

/// How a job keeps and continues versions.
#[derive(Debug)]
pub(crate) struct Versions {
    /// Whether what later versions need is kept.
    pub(crate) are_kept: bool,
    /// The output that the changes are applied to, if the job writes a version.
    pub(crate) parent: Option<PathBuf>,
    /// What has changed since, night by night.
    pub(crate) changes: Vec<ChangesSpec>,
    /// The whole tables as they are now, in place of what has changed.
    pub(crate) snapshot: Option<ChangesSpec>,
    /// Whether a version computes all rows.
    pub(crate) full: bool,
}

impl Versions {
    pub(super) fn new(
        spec: Option<IncrementalSpec>,
        (changes, snapshot): (Vec<ChangesSpec>, Option<ChangesSpec>),
    ) -> Versions {
        Versions {
            are_kept: spec.is_some(),
            parent: spec.and_then(|spec| spec.parent),
            changes,
            snapshot,
            full: false,
        }
    }
}

impl JobSpec {
    /// Checks `[incremental]` and `[input.changes]` against the rest of the job.
    pub(super) fn check_incremental(&self, found: &mut Found) {
        let parent = self.incremental.as_ref().map(|of| of.parent.is_some());
        let mut wrong = |name: &str, problem: &str| found.push(key(name, problem));
        let (changes, snapshot) = (&self.input.changes, self.input.snapshot.as_ref());
        match (parent, changes.is_empty() && snapshot.is_none()) {
            (None, true) => return,
            (None | Some(false), false) => {
                let problem = match snapshot {
                    None => "is missing; it names the output that [input.changes] are applied to",
                    Some(_) => {
                        "is missing; it names the output that [input.snapshot] is compared with"
                    }
                };
                wrong("incremental.parent", problem);
            }
            (Some(true), true) => {
                let problem = "needs [input.changes], the tables of what has changed since, or \
                               [input.snapshot], the whole tables as they are now";
                wrong("incremental.parent", problem);
            }
            (Some(_), _) => {}
        }
        if changes.iter().any(|night| night.is_empty()) {
            wrong(
                "input.changes",
                "names no table; `nodes` or `edges` is needed",
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
        let problem = match () {
            () if self.infer.is_none() => "needs a table [infer], whose output has versions",
            () if self.input.pairs.is_some() => "cannot be used with [input.pairs] so far",
            () if self.input.graphs.is_some() => "cannot be used with [input.graphs] so far",
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
        if parent == Some(true) {
            self.check_version_stages(found);
        }
    }

    /// Checks that the rows of the model that the job trains can be kept.
    fn check_kept_training(&self, found: &mut Found) {
        let Some(train) = &self.train else { return };
        if train.model == TypedKind::Conv(LayerKind::LightGcn) {
            let problem = "is \"lightgcn\", which reads the rows of all layers; [incremental] cannot \
                           keep them";
            found.push(key("train.model", problem));
        }
    }

    /// Checks that a job of changes has no stage that does not read them.
    fn check_version_stages(&self, found: &mut Found) {
        let others = [
            ("flatten", self.flatten.is_some()),
            ("train", self.train.is_some()),
            ("score", self.score.is_some()),
        ];
        for (name, _) in others.into_iter().filter(|(_, is_there)| *is_there) {
            let problem = "does not read what has changed so far; with `incremental.parent` a job has \
                           the stage [infer] alone, with `infer.model`";
            found.push(key(name, problem));
        }
    }
}
