//! Description of the supervision pairs of a graph.

use serde::{Deserialize, Serialize};

use super::{GraphMeta, RelationMeta, SplitMeta, TypeMeta};
use crate::config::Exclude;

/// Description of the supervision pairs of a graph: what a model of links is trained on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairsMeta {
    /// Position in [`GraphMeta::types`] of the type of the src ends; it is the target type.
    pub from: usize,
    /// Position in [`GraphMeta::types`] of the type of the dst ends.
    pub to: usize,
    /// Positions in [`GraphMeta::relations`] of the relations from which edges between the ends of
    /// a pair are left out, in either direction; ascending.
    pub relations: Vec<usize>,
    /// Which pairs carry no messages.
    pub exclude: Exclude,
    /// Whether pairs have labels: 1 for a link, 0 for none.
    pub label: bool,
    /// Whether pairs have weights.
    pub weight: bool,
    /// Whether pairs have hard negatives.
    pub negatives: bool,
    /// The splits of pairs.
    pub split: SplitMeta,
}

/// The form in which [`PairsMeta`] is written, with names in place of positions.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamedPairs {
    from: String,
    to: String,
    relations: Vec<String>,
    exclude: Exclude,
    label: bool,
    weight: bool,
    negatives: bool,
    split: SplitMeta,
}

impl PairsMeta {
    pub(super) fn named(&self, graph: &GraphMeta) -> NamedPairs {
        let relation = |&at: &usize| graph.relations[at].name.clone();
        NamedPairs {
            from: graph.types[self.from].name.clone(),
            to: graph.types[self.to].name.clone(),
            relations: self.relations.iter().map(relation).collect(),
            exclude: self.exclude,
            label: self.label,
            weight: self.weight,
            negatives: self.negatives,
            split: self.split.clone(),
        }
    }
}

impl NamedPairs {
    /// Replaces names by positions.
    pub(super) fn placed(
        self,
        types: &[TypeMeta],
        relations: &[RelationMeta],
    ) -> Result<PairsMeta, String> {
        let of_type = |name: &str| {
            let found = types.iter().position(|found| found.name == name);
            found.ok_or_else(|| format!("`{name}` is not one of the types"))
        };
        let of_relation = |name: &String| {
            let found = relations.iter().position(|found| found.name == *name);
            found.ok_or_else(|| format!("`{name}` is not one of the relations"))
        };
        Ok(PairsMeta {
            from: of_type(&self.from)?,
            to: of_type(&self.to)?,
            relations: self
                .relations
                .iter()
                .map(of_relation)
                .collect::<Result<_, _>>()?,
            exclude: self.exclude,
            label: self.label,
            weight: self.weight,
            negatives: self.negatives,
            split: self.split,
        })
    }
}
