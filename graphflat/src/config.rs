//! Flatten settings: as written in the job file (`Spec`) and as checked (`Plan`).

mod fanouts;
mod pairs;

use crate::{FlattenError, Parts};
use schemas::storage;
use schemas::{FeatureMeta, GraphPlan, HopFanouts, Layout, Sampling};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use store::HUB_THRESHOLD;

pub use fanouts::{HopSpec, RelationFanout};
pub(crate) use pairs::PairsCut;

/// Default number of targets in one part of layout `rows`: with 64 features a part is about 64 MiB.
const ROWS_PER_PART: usize = 4096;

/// Smallest and largest default number of targets in one part of layout `shards`: the more targets
/// a shard has, the fewer nodes are in several shards.
const TARGETS_PER_SHARD: (usize, usize) = (8192, 262_144);

/// Dense features per node up to which a shard may have the most targets. With wider features it
/// has fewer targets, so that its features take no more memory when it is read.
const SHARD_FEATURES: usize = 64;

/// Default bytes of memory that waves may take.
const MEMORY_BUDGET: usize = 2 << 30;

/// Number of shards that all targets are cut into, within the bounds above.
const SHARDS: usize = 4;

/// Largest number of samples per target: each sample is a whole set of parts.
const SAMPLES_MAX: u32 = 1024;

/// Largest number of targets of a part: a graph has no more nodes.
const TARGETS_MAX: u64 = u32::MAX as u64 - 1;

/// Largest in-degree threshold of hubs: a node has no more in-edges.
const HUB_THRESHOLD_MAX: u64 = u32::MAX as u64;

/// Largest number of hops: `hop` is stored in 8 bits.
const HOPS_MAX: usize = 255;

/// The table `[flatten]` as written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlattenSpec {
    /// Directory to write; absent for streamed training, which writes no graph features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
    /// Greatest distance of a node from its target; must equal the number of fan-outs.
    pub hops: usize,
    /// In-edges kept per node, hop 1 first; `"all"` keeps every in-edge. With node types, a hop may
    /// have one number for every relation, or a table of numbers by relation.
    pub fanouts: Vec<HopSpec>,
    /// Node type of the targets. Default: the one with labels; none if nodes have no types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_type: Option<String>,
    /// Order in which in-edges are kept. Default: `uniform`.
    #[serde(default = "default_sampling")]
    pub sampling: Sampling,
    /// Layout of the output. Default: `shards`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// The nodes that get a neighbourhood. Default: `labelled`.
    #[serde(default)]
    pub targets: Targets,
    /// In-degree above which a node's in-edges are spread over all workers. Default: 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub_threshold: Option<u64>,
    /// Independent samples of each target's neighbourhood. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_target: Option<u32>,
    /// Largest number of targets in one part. Default in layout `rows`: 4096. Default in layout
    /// `shards`: a quarter of all targets, but 8192 to 262144, and fewer with more than 64 dense
    /// features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets_per_part: Option<usize>,
    /// With `[input.pairs]`, largest number of pairs in one part. Default: a quarter of all pairs,
    /// but 4096 to 131072, and fewer with more than 64 dense features; 2048 in layout `rows`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs_per_part: Option<usize>,
    /// With `[input.pairs]`, random negatives of one part. Default: 1024, or all nodes of the type
    /// if there are fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub negatives_per_part: Option<usize>,
}

fn default_sampling() -> Sampling {
    Sampling::Uniform
}

/// The nodes that get a neighbourhood.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Targets {
    /// Nodes with a split.
    #[default]
    Labelled,
    /// Every node.
    All,
    /// Nodes of the train split.
    Train,
    /// The ids in a Parquet table, in a column with the name of the nodes' id column.
    Listed(PathBuf),
}

impl Serialize for Targets {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Labelled => serializer.serialize_str("labelled"),
            Self::All => serializer.serialize_str("all"),
            Self::Train => serializer.serialize_str("train"),
            Self::Listed(path) => path.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Targets {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(match text.as_str() {
            "labelled" => Self::Labelled,
            "all" => Self::All,
            "train" => Self::Train,
            _ => Self::Listed(PathBuf::from(text)),
        })
    }
}

/// The checked settings of a sample: its targets, and the in-edges that are kept.
#[derive(Clone, Debug)]
pub struct SamplePlan {
    /// Hop 1 first.
    pub(crate) fanouts: Vec<HopFanouts>,
    pub(crate) sampling: Sampling,
    pub(crate) targets: Targets,
    /// Name of the targets' node type; none if nodes have no types.
    pub(crate) target_type: Option<String>,
    pub(crate) targets_per_part: Option<usize>,
    /// Where targets are the ends of pairs.
    pub(crate) pairs: Option<PairsCut>,
    pub(crate) hub_threshold: u64,
}

/// A checked flatten job.
#[derive(Clone, Debug)]
pub struct FlattenPlan {
    pub(crate) output: PathBuf,
    pub(crate) sample: SamplePlan,
    pub(crate) layout: Layout,
    pub(crate) samples: u32,
    pub(crate) memory_budget: usize,
    /// Working directory in which what versions need is kept; none if the output has no versions.
    pub(crate) kept_in: Option<PathBuf>,
    pub(crate) fresh: bool,
}

impl FlattenSpec {
    /// Returns all mistakes of the table, one error each.
    ///
    /// Streamed training writes no graph features, so with `is_streamed` the keys of the output are
    /// mistakes.
    pub fn mistakes(&self, is_streamed: bool) -> Vec<FlattenError> {
        let mut found = Vec::new();
        let written = [
            ("flatten.output", self.output.is_some()),
            ("flatten.layout", self.layout.is_some()),
            (
                "flatten.samples_per_target",
                self.samples_per_target.is_some(),
            ),
        ];
        let unused = written
            .iter()
            .filter(|(_, is_given)| is_streamed && *is_given);
        let why = "streamed training writes no graph features; leave it out";
        found.extend(unused.map(|(name, _)| key(name, "given", why)));
        if self.output.is_none() && !is_streamed {
            let needed = "the directory to write is needed, unless training is streamed";
            found.push(key("flatten.output", "missing", needed));
        }
        let hops = self.fanouts.len();
        if !(1..=HOPS_MAX).contains(&hops) {
            let list = format!("a list of {hops}");
            let allowed = "one fan-out a hop, 1 to 255 hops";
            found.push(key("flatten.fanouts", list, allowed));
        }
        if self.hops != hops {
            let allowed = format!("must equal the number of `flatten.fanouts`, {hops}");
            found.push(key("flatten.hops", self.hops, allowed));
        }
        for (name, count, most) in [
            (
                "flatten.samples_per_target",
                self.samples_per_target.map(u64::from),
                u64::from(SAMPLES_MAX),
            ),
            (
                "flatten.hub_threshold",
                self.hub_threshold,
                HUB_THRESHOLD_MAX,
            ),
            (
                "flatten.targets_per_part",
                self.targets_per_part.map(|count| count as u64),
                TARGETS_MAX,
            ),
            (
                "flatten.pairs_per_part",
                self.pairs_per_part.map(|count| count as u64),
                TARGETS_MAX,
            ),
        ] {
            if let Some(count) = count.filter(|count| !(1..=most).contains(count)) {
                found.push(key(name, count, format!("allowed is 1 to {most}")));
            }
        }
        found
    }

    /// Checks the settings; relative paths start at `base`.
    ///
    /// # Errors
    ///
    /// The first of [`FlattenSpec::mistakes`]; fan-outs by relation; a list of targets that does not
    /// exist.
    pub fn into_plan(self, base: &Path, fresh: bool) -> Result<FlattenPlan, FlattenError> {
        if let Some(first) = self.mistakes(false).into_iter().next() {
            return Err(first);
        }
        let fanouts = fanouts::untyped(&self.fanouts)?;
        let mut plan = self.plan(fanouts, base, fresh)?;
        plan.sample.pairs = None;
        Ok(plan)
    }

    /// Checks the settings of a graph whose targets are of the type `target_type`; relative paths
    /// start at `base`.
    ///
    /// # Errors
    ///
    /// [`FlattenSpec::mistakes`]; a fan-out of a relation that does not exist or is not reached; a
    /// list of targets that does not exist.
    pub fn into_plan_of(
        self,
        (graph, target_type): (&GraphPlan, usize),
        base: &Path,
        fresh: bool,
    ) -> Result<FlattenPlan, Vec<FlattenError>> {
        let mut found = self.mistakes(false);
        self.check_pairs(graph, &mut found);
        match fanouts::by_relation(&self.fanouts, graph, target_type) {
            Ok(fanouts) if found.is_empty() => {
                let plan = self.plan(fanouts, base, fresh);
                let plan = plan.map(|mut plan| {
                    plan.sample = plan.sample.of(graph, target_type);
                    plan
                });
                plan.map_err(|error| vec![error])
            }
            checked => {
                found.extend(checked.err().into_iter().flatten());
                Err(found)
            }
        }
    }

    fn plan(
        mut self,
        fanouts: Vec<HopFanouts>,
        base: &Path,
        fresh: bool,
    ) -> Result<FlattenPlan, FlattenError> {
        let output = self.output.take().expect("it was checked to be there");
        let (layout, samples) = (self.layout.take(), self.samples_per_target.take());
        Ok(FlattenPlan {
            output: schemas::path::join(base, &output),
            sample: self.sample_plan(fanouts, base)?,
            layout: layout.unwrap_or(Layout::Shards),
            samples: samples.unwrap_or(1),
            memory_budget: MEMORY_BUDGET,
            kept_in: None,
            fresh,
        })
    }

    /// Checks the settings of streamed training, which writes no graph features.
    ///
    /// # Errors
    ///
    /// As [`FlattenSpec::into_plan`].
    pub fn into_sample_plan(self, base: &Path) -> Result<SamplePlan, FlattenError> {
        if let Some(first) = self.mistakes(true).into_iter().next() {
            return Err(first);
        }
        let fanouts = fanouts::untyped(&self.fanouts)?;
        let mut plan = self.sample_plan(fanouts, base)?;
        plan.pairs = None;
        Ok(plan)
    }

    /// Checks the settings of streamed training on a graph whose targets are of the type
    /// `target_type`.
    ///
    /// # Errors
    ///
    /// As [`FlattenSpec::into_plan_of`].
    pub fn into_sample_plan_of(
        self,
        (graph, target_type): (&GraphPlan, usize),
        base: &Path,
    ) -> Result<SamplePlan, Vec<FlattenError>> {
        let mut found = self.mistakes(true);
        self.check_pairs(graph, &mut found);
        match fanouts::by_relation(&self.fanouts, graph, target_type) {
            Ok(fanouts) if found.is_empty() => {
                let plan = self.sample_plan(fanouts, base);
                let plan = plan.map(|plan| plan.of(graph, target_type));
                plan.map_err(|error| vec![error])
            }
            checked => {
                found.extend(checked.err().into_iter().flatten());
                Err(found)
            }
        }
    }

    fn sample_plan(
        self,
        fanouts: Vec<HopFanouts>,
        base: &Path,
    ) -> Result<SamplePlan, FlattenError> {
        let targets = match self.targets {
            Targets::Listed(path) => {
                let path = schemas::path::join(base, &path);
                if !storage::exists(&path)? {
                    let allowed = "must be \"labelled\", \"all\", \"train\" or a Parquet file";
                    return Err(key("flatten.targets", path.display(), allowed));
                }
                Targets::Listed(path)
            }
            other => other,
        };
        Ok(SamplePlan {
            fanouts,
            sampling: self.sampling,
            targets,
            target_type: None,
            targets_per_part: self.targets_per_part,
            pairs: Some(PairsCut {
                per_part: self.pairs_per_part,
                negatives: self.negatives_per_part,
            }),
            hub_threshold: self.hub_threshold.unwrap_or(HUB_THRESHOLD),
        })
    }
}

fn key(key: &'static str, value: impl Display, allowed: impl Into<String>) -> FlattenError {
    FlattenError::Key {
        key,
        value: value.to_string(),
        allowed: allowed.into(),
    }
}

impl SamplePlan {
    /// Returns the sample of a graph whose targets are of the type `target_type`.
    fn of(mut self, graph: &GraphPlan, target_type: usize) -> Self {
        self.pairs = self.pairs.filter(|_| graph.pairs.is_some());
        let name = &graph.types[target_type].name;
        self.target_type = (!name.is_empty()).then(|| name.clone());
        self
    }

    /// Returns the fan-outs, hop 1 first.
    pub fn fanouts(&self) -> &[HopFanouts] {
        &self.fanouts
    }

    /// Returns the settings that shards of a seed depend on, as a manifest records them.
    pub fn settings(&self, seed: u64) -> serde_json::Value {
        let mut settings = serde_json::json!({
            "seed": seed,
            "fanouts": self.fanouts,
            "sampling": self.sampling,
            "targets": self.targets,
            "targets_per_part": self.targets_per_part,
        });
        self.add_graph(&mut settings);
        settings
    }

    /// Returns the order in which in-edges are kept.
    pub fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// Returns the nodes that get a neighbourhood.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Returns the in-degree above which a node counts as a hub.
    pub fn hub_threshold(&self) -> u64 {
        self.hub_threshold
    }

    /// Returns how many in-edges of a node the store must keep for this sample.
    pub fn keep(&self) -> usize {
        schemas::keep_at_hop(&self.fanouts, 0, 0)
    }

    /// Returns how many in-edges of a node the store must keep for this sample, for each relation.
    pub fn keep_by_relation(&self) -> Vec<usize> {
        let relations = self.fanouts.first().map_or(0, |hop| hop.as_ref().len());
        let keep = |relation| schemas::keep_at_hop(&self.fanouts, relation, 0);
        (0..relations).map(keep).collect()
    }

    /// Cuts ordered targets into the parts of a layout; `features` are those of each node type.
    pub fn cut<T: Copy>(
        &self,
        in_order: Vec<T>,
        layout: Layout,
        features: impl IntoIterator<Item = FeatureMeta>,
    ) -> Parts<T> {
        let most = self.targets_per_part(layout, in_order.len(), features);
        Parts::cut(in_order, most, layout)
    }

    /// Returns the largest number of targets in one part of a layout.
    pub(crate) fn targets_per_part(
        &self,
        layout: Layout,
        num_targets: usize,
        features: impl IntoIterator<Item = FeatureMeta>,
    ) -> usize {
        let (least, most) = TARGETS_PER_SHARD;
        let dense = features.into_iter().map(|of_type| match of_type {
            FeatureMeta::Dense { dim } => dim,
            FeatureMeta::None | FeatureMeta::Sparse { .. } => 0,
        });
        let width = dense.max().unwrap_or(0).max(SHARD_FEATURES);
        let most = (most * SHARD_FEATURES / width).max(least);
        self.targets_per_part.unwrap_or(match layout {
            Layout::Rows => ROWS_PER_PART,
            Layout::Shards => num_targets.div_ceil(SHARDS).clamp(least, most),
        })
    }
}

impl FlattenPlan {
    /// Returns the directory that will be written.
    pub fn output(&self) -> &Path {
        &self.output
    }

    /// Returns the settings of the sample.
    pub fn sample(&self) -> &SamplePlan {
        &self.sample
    }

    /// Returns the layout of the output.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns how many independent samples each target gets.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Returns only the settings that change the output.
    pub fn settings(&self) -> serde_json::Value {
        let mut settings = serde_json::json!({
            "fanouts": self.sample.fanouts,
            "sampling": self.sample.sampling,
            "layout": self.layout,
            "targets": self.sample.targets,
            "samples_per_target": self.samples,
            "targets_per_part": self.sample.targets_per_part,
        });
        self.sample.add_graph(&mut settings);
        settings
    }

    /// Keeps what versions of the output need in a working directory; nothing without one.
    pub fn with_versions_in(mut self, work_dir: Option<&Path>) -> Self {
        self.kept_in = work_dir.map(Path::to_owned);
        self
    }

    /// Sets the bytes of memory that waves in flight may take.
    pub fn with_memory_budget(mut self, bytes: usize) -> Self {
        self.memory_budget = bytes;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let spec: FlattenSpec = serde_json::from_str(text).unwrap();
        let error = spec.into_plan(Path::new("."), false).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn impossible_settings_name_the_key() {
        check(
            r#"{"output": "o", "hops": 3, "fanouts": [15, 10]}"#,
            "`flatten.hops` is 3: must equal the number of `flatten.fanouts`, 2",
        );
        check(
            r#"{"output": "o", "hops": 0, "fanouts": []}"#,
            "`flatten.fanouts` is a list of 0: one fan-out a hop, 1 to 255 hops",
        );
        check(
            r#"{"output": "o", "hops": 1, "fanouts": ["all"], "hub_threshold": 0}"#,
            "`flatten.hub_threshold` is 0: allowed is 1 to 4294967295",
        );
        check(
            r#"{"output": "o", "hops": 1, "fanouts": [2], "samples_per_target": 0}"#,
            "`flatten.samples_per_target` is 0: allowed is 1 to 1024",
        );
        check(
            r#"{"hops": 1, "fanouts": [2]}"#,
            "`flatten.output` is missing: the directory to write is needed, unless training is \
             streamed",
        );
    }

    #[test]
    fn what_is_streamed_is_not_written() {
        let check = |text: &str, expected: Option<&str>| {
            let spec: FlattenSpec = serde_json::from_str(text).unwrap();
            let error = spec.into_sample_plan(Path::new(".")).err();
            let why = "streamed training writes no graph features; leave it out";
            let expected = expected.map(|key| format!("`flatten.{key}` is given: {why}"));
            assert_eq!(error.map(|e| e.to_string()), expected);
        };
        let rest = r#""hops": 1, "fanouts": [2]"#;
        check(&format!("{{{rest}}}"), None);
        check(&format!(r#"{{{rest}, "output": "o"}}"#), Some("output"));
        check(&format!(r#"{{{rest}, "layout": "rows"}}"#), Some("layout"));
        let samples = format!(r#"{{{rest}, "samples_per_target": 1}}"#);
        check(&samples, Some("samples_per_target"));
    }
}
