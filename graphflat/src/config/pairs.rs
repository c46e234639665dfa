//! Settings of pairs: how they are cut into parts, and the negatives of a part.

use super::{FlattenSpec, SamplePlan, Targets, key};
use crate::FlattenError;
use schemas::{FeatureMeta, GraphPlan, Layout};

/// Default number of random negatives in one part.
const NEGATIVES_PER_PART: usize = 1024;

/// How pairs are cut into parts, as written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairsCut {
    pub(crate) per_part: Option<usize>,
    pub(crate) negatives: Option<usize>,
}

impl FlattenSpec {
    /// Adds the mistakes of keys that only a job with pairs has, or only one without.
    pub(super) fn check_pairs(&self, graph: &GraphPlan, found: &mut Vec<FlattenError>) {
        let Some(pairs) = &graph.pairs else {
            for (name, is_given) in [
                ("flatten.pairs_per_part", self.pairs_per_part.is_some()),
                (
                    "flatten.negatives_per_part",
                    self.negatives_per_part.is_some(),
                ),
            ] {
                if is_given {
                    let needed = "needs [input.pairs], the pairs of a model of links";
                    found.push(key(name, "given", needed));
                }
            }
            return;
        };
        let ends = "with [input.pairs] the ends of pairs are the targets; leave it out";
        for (name, is_given) in [
            ("flatten.targets", self.targets != Targets::Labelled),
            ("flatten.targets_per_part", self.targets_per_part.is_some()),
        ] {
            if is_given {
                found.push(key(name, "given", ends));
            }
        }
        // With `where`, fewer rows may be nodes, which is an error of the flatten stage.
        let nodes = &graph.types[pairs.to()].nodes;
        let num_nodes = usize::try_from(nodes.num_rows()).unwrap_or(usize::MAX);
        if let Some(error) = self
            .negatives_per_part
            .and_then(|of| too_many(of, num_nodes))
        {
            found.push(error);
        }
    }
}

impl SamplePlan {
    /// Adds the type of the targets, and the settings of pairs if targets are their ends.
    pub(crate) fn add_graph(&self, settings: &mut serde_json::Value) {
        if let Some(name) = &self.target_type {
            settings["target_type"] = name.as_str().into();
        }
        if let Some(pairs) = self.pairs {
            settings["pairs_per_part"] = pairs.per_part.into();
            settings["negatives_per_part"] = pairs.negatives.into();
        }
    }

    /// Returns the number of random negatives of a part, which are drawn from so many nodes.
    ///
    /// # Errors
    ///
    /// If there are more negatives than nodes.
    pub fn negatives_per_part(&self, num_nodes: usize) -> Result<usize, FlattenError> {
        let written = self.pairs.and_then(|pairs| pairs.negatives);
        let wanted = written.unwrap_or(NEGATIVES_PER_PART.min(num_nodes));
        too_many(wanted, num_nodes).map_or(Ok(wanted), Err)
    }

    /// Returns the largest number of pairs in one part: a pair has two targets.
    pub(crate) fn pairs_per_part(
        &self,
        layout: Layout,
        num_pairs: usize,
        features: impl IntoIterator<Item = FeatureMeta>,
    ) -> usize {
        let written = self.pairs.and_then(|pairs| pairs.per_part);
        written.unwrap_or_else(|| {
            let most = self.targets_per_part(layout, 2 * num_pairs, features);
            most.div_ceil(2)
        })
    }
}

/// The error of more random negatives than nodes; none if there are enough nodes.
fn too_many(negatives: usize, num_nodes: usize) -> Option<FlattenError> {
    let allowed = format!("the dst ends have a type of {num_nodes} nodes; allowed are 0 to that");
    (negatives > num_nodes).then(|| key("flatten.negatives_per_part", negatives, allowed))
}
