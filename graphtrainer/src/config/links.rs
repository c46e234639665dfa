//! Keys of `[train]` of a model of links, and what they say of a graph with pairs.

use gnn::typed::TypedKind;
use gnn::{Decoder, LayerKind, PairLoss, PairLossKind};
use schemas::Exclude;
use serde::{Deserialize, Serialize};

use super::{TrainPlan, TrainSpec, quoted};
use crate::TrainError;

/// Negatives of pairs, as written: pairs of the same src node with other dst nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NegativesSpec {
    /// Whether the dst nodes of other pairs of the batch are negatives, or of how many pairs. Default:
    /// true, or false with `all`.
    #[serde(default, serialize_with = "or_true")]
    pub in_batch: Option<InBatch>,
    /// Random negatives of each pair, drawn anew in each epoch from those of its part. Default: 32, or
    /// all of the part if it has fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random: Option<usize>,
    /// How likely each node is among them.
    #[serde(default, skip_serializing_if = "DrawBy::is_uniform")]
    pub by: DrawBy,
    /// Listed negatives (`input.pairs.negatives`) of each pair: the first ones.
    #[serde(default)]
    pub hard: usize,
    /// Whether all random negatives of its part are negatives of a pair, and no others.
    #[serde(default)]
    pub all: bool,
    /// Random negatives that a val or test pair is ranked among, always the same ones. Default: 100,
    /// or all of the part if it has fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<usize>,
}

/// Writes out the default of `in_batch`.
#[expect(clippy::ref_option, reason = "serde passes a reference")]
fn or_true<S: serde::Serializer>(of: &Option<InBatch>, serializer: S) -> Result<S::Ok, S::Error> {
    of.unwrap_or(InBatch::All(true)).serialize(serializer)
}

/// How random negatives are drawn, as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrawBy {
    /// All nodes are equally likely, and those of a pair are different.
    #[default]
    Uniform,
    /// In proportion to in-degree^0.75, with replacement.
    Degree,
}

impl DrawBy {
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    fn is_uniform(&self) -> bool {
        *self == Self::Uniform
    }
}

/// Pairs whose dst nodes are negatives of each other's pairs, as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "allowed is true, false, or a number of pairs from 2 to 1048576"
)]
pub enum InBatch {
    /// All or none of a worker's batch.
    All(bool),
    /// Sections of this many pairs.
    Sections(usize),
}

/// The unit that train pairs are put into batches by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchBy {
    /// A batch has `batch_size` pairs.
    #[default]
    Pair,
    /// A batch has `batch_size` src nodes, each with all train pairs of its part.
    Src,
}

/// Everything that decides the loss of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct LinkPlan {
    pub(crate) decoder: Decoder,
    pub(crate) loss: PairLoss,
    /// Pairs of a section, whose dst nodes are negatives of each other's pairs; none: they are not.
    pub(crate) section: Option<usize>,
    pub(crate) random: usize,
    #[serde(skip_serializing_if = "DrawBy::is_uniform")]
    pub(crate) by: DrawBy,
    pub(crate) hard: usize,
    pub(crate) all: bool,
    pub(crate) evaluation: usize,
    /// Whether a batch has src nodes with all their pairs.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) by_src: bool,
    /// The d train pairs of a src node weigh `d ^ src_power` together; none: d.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) src_power: Option<f32>,
    /// Whether the batches of a part have all its targets and edges; none: as `all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) whole_parts: Option<bool>,
}

impl LinkPlan {
    /// Tells whether all batches of a part have all its targets and edges.
    pub(crate) fn has_whole_parts(&self, exclude: Exclude) -> bool {
        self.whole_parts.unwrap_or(self.all) && exclude != Exclude::Batch
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// Largest number of negatives of a pair.
pub(crate) const NEGATIVES_MAX: usize = 1 << 20;

/// Largest margin between two scores.
const MARGIN_MAX: f32 = 1e6;

/// Temperature of a cosine, which is at most 1.
const COSINE_TEMPERATURE: f32 = 0.1;

impl NegativesSpec {
    fn in_batch(&self) -> InBatch {
        self.in_batch.unwrap_or(InBatch::All(true))
    }

    fn random(&self) -> usize {
        self.random.unwrap_or(32)
    }

    fn evaluation(&self) -> usize {
        self.evaluation.unwrap_or(100)
    }
}

/// The keys of links, as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct LinkKeys {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decoder: Option<Decoder>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) temperature: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) margin: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) negatives: Option<NegativesSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch_by: Option<BatchBy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) src_power: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) whole_parts: Option<bool>,
}

impl LinkKeys {
    /// Returns the first key that is given, with its value.
    pub(crate) fn first(&self) -> Option<(&'static str, String)> {
        let number = |value: Option<f32>| value.map(|value| value.to_string());
        let decoder = self.decoder.map(|decoder| format!("{:?}", decoder.name()));
        let negatives = self.negatives.map(|_| "given".to_owned());
        let batch_by = self.batch_by.map(quoted);
        let all = [
            ("decoder", decoder),
            ("temperature", number(self.temperature)),
            ("margin", number(self.margin)),
            ("negatives", negatives),
            ("batch_by", batch_by),
            ("src_power", number(self.src_power)),
            (
                "whole_parts",
                self.whole_parts.map(|value| value.to_string()),
            ),
        ];
        all.into_iter().find_map(|(key, value)| Some((key, value?)))
    }

    /// Fills in the defaults.
    pub(crate) fn plan(&self, kind: PairLossKind, batch_size: usize) -> LinkPlan {
        let decoder = self.decoder.unwrap_or_default();
        let default = match decoder {
            Decoder::Cosine => COSINE_TEMPERATURE,
            Decoder::Dot | Decoder::Distmult | Decoder::Mlp => 1.0,
        };
        let negatives = self.negatives.unwrap_or_default();
        LinkPlan {
            decoder,
            loss: PairLoss {
                kind,
                temperature: self.temperature.unwrap_or(default),
                margin: self.margin.unwrap_or(1.0),
            },
            section: match negatives.in_batch() {
                _ if negatives.all => Some(batch_size),
                InBatch::All(false) => None,
                InBatch::All(true) => Some(batch_size),
                InBatch::Sections(pairs) => Some(pairs),
            },
            random: if negatives.all { 0 } else { negatives.random() },
            by: negatives.by,
            hard: if negatives.all { 0 } else { negatives.hard },
            all: negatives.all,
            evaluation: negatives.evaluation(),
            by_src: self.batch_by == Some(BatchBy::Src),
            src_power: self.src_power,
            // A plan that writes out the default is the same plan.
            whole_parts: self.whole_parts.filter(|&whole| whole != negatives.all),
        }
    }
}

impl TrainPlan {
    /// Tells whether batches of pairs share the blocks of a whole part.
    pub fn shares_blocks(&self, exclude: Exclude) -> bool {
        let is_light = self.result.layer == TypedKind::Conv(LayerKind::LightGcn);
        is_light && self.result.links().has_whole_parts(exclude)
    }

    /// Tells whether a batch of pairs has src nodes, each with all of its pairs.
    pub fn is_by_src(&self) -> bool {
        self.result.links().by_src
    }

    /// Checks that parts with `per_part` random negatives have as many as `[train]` asks for.
    ///
    /// # Errors
    ///
    /// [`TrainError::Key`] if it asks for more.
    pub fn check_negatives(&self, per_part: usize) -> Result<(), TrainError> {
        let Some(negatives) = self.result.links.negatives else {
            return Ok(());
        };
        if negatives.all && !(1..=NEGATIVES_MAX).contains(&per_part) {
            let allowed = format!(
                "they are the random negatives of a part, {per_part} \
                 (`flatten.negatives_per_part`); allowed are 1 to {NEGATIVES_MAX}"
            );
            return Err(TrainError::of_key("negatives.all", true, allowed));
        }
        let is_drawn_once = negatives.by == DrawBy::Uniform && !negatives.all;
        for (key, wanted) in [
            (
                "negatives.random",
                negatives.random.filter(|_| is_drawn_once),
            ),
            ("negatives.evaluation", negatives.evaluation),
        ] {
            if let Some(wanted) = wanted.filter(|wanted| *wanted > per_part) {
                let allowed = format!(
                    "a part has {per_part} random negatives (`flatten.negatives_per_part`, at most \
                     all nodes of the type of dst ends); allowed is at most as many"
                );
                return Err(TrainError::of_key(key, wanted, allowed));
            }
        }
        Ok(())
    }
}

impl TrainSpec {
    /// Returns the keys of links.
    pub(super) fn link_keys(&self) -> LinkKeys {
        LinkKeys {
            decoder: self.decoder,
            temperature: self.temperature,
            margin: self.margin,
            negatives: self.negatives,
            batch_by: self.batch_by,
            src_power: self.src_power,
            whole_parts: self.whole_parts,
        }
    }

    /// Returns the mistakes in the keys of links.
    pub(super) fn link_mistakes(&self) -> Vec<TrainError> {
        let mut found = Vec::new();
        let mut require = |holds: bool, key, value: String, allowed: String| {
            if !holds {
                found.push(TrainError::of_key(key, value, allowed));
            }
        };
        for (key, value) in [("temperature", self.temperature), ("margin", self.margin)] {
            let value = value.unwrap_or(1.0);
            let fits = value > 0.0 && value <= MARGIN_MAX;
            let allowed = format!("allowed is above 0, at most {MARGIN_MAX}");
            require(fits, key, value.to_string(), allowed);
        }
        if let Some(margin) = self.margin {
            let has_margin =
                self.loss.and_then(super::Loss::pair_kind) == Some(PairLossKind::Margin);
            let only = "only `train.loss` = \"margin\" has one".to_owned();
            require(has_margin, "margin", margin.to_string(), only);
        }
        found.extend(self.batch_mistakes());
        found.extend(
            self.negatives
                .iter()
                .flat_map(|of| self.negative_mistakes(of)),
        );
        found
    }

    /// Returns the mistakes in the keys that say which pairs are a batch, and how they weigh.
    fn batch_mistakes(&self) -> Option<TrainError> {
        let power = self.src_power.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&power) {
            return Some(TrainError::of_key("src_power", power, "allowed is 0 to 1"));
        }
        let sections = self.negatives.unwrap_or_default();
        let has_sections = !sections.all && sections.in_batch() != InBatch::All(false);
        (self.batch_by == Some(BatchBy::Src) && has_sections).then(|| {
            let problem = "negatives come from other pairs of the batch: set `negatives = { all = \
                           true }` or `in_batch = false`";
            TrainError::of_key("batch_by", quoted(BatchBy::Src), problem)
        })
    }

    /// Returns the mistakes in `negatives`.
    fn negative_mistakes(&self, negatives: &NegativesSpec) -> Vec<TrainError> {
        let mut found = Vec::new();
        let mut require = |holds: bool, key, value: String, allowed: String| {
            if !holds {
                found.push(TrainError::of_key(key, value, allowed));
            }
        };
        if let InBatch::Sections(pairs) = negatives.in_batch() {
            let allowed = format!("allowed is true, false, or 2 to {NEGATIVES_MAX} pairs");
            let fits = (2..=NEGATIVES_MAX).contains(&pairs);
            require(fits, "negatives.in_batch", pairs.to_string(), allowed);
        }
        for (key, count, least) in [
            ("negatives.random", negatives.random(), 0),
            ("negatives.hard", negatives.hard, 0),
            ("negatives.evaluation", negatives.evaluation(), 1),
        ] {
            let allowed = format!("allowed is {least} to {NEGATIVES_MAX}");
            let fits = (least..=NEGATIVES_MAX).contains(&count);
            require(fits, key, count.to_string(), allowed);
        }
        let beside_all = [
            ("negatives.in_batch", negatives.in_batch.is_some()),
            ("negatives.random", negatives.random.is_some()),
            ("negatives.hard", negatives.hard > 0),
        ];
        for (key, is_given) in beside_all {
            require(
                !(negatives.all && is_given),
                key,
                "given".to_owned(),
                "with `all`, all random negatives of a part are negatives, and no others: leave \
                 one of them out"
                    .to_owned(),
            );
        }
        let draws_none = negatives.all || negatives.random() == 0;
        require(
            negatives.by == DrawBy::Uniform || !draws_none,
            "negatives.by",
            "\"degree\"".to_owned(),
            "it needs random negatives: `random` above 0, without `all`".to_owned(),
        );
        // A batch of one pair has no other pairs.
        let is_none = negatives.in_batch() == InBatch::All(false) || self.batch_size == 1;
        let none = is_none && !negatives.all && negatives.random() + negatives.hard == 0;
        let is_cross_entropy =
            self.loss.and_then(super::Loss::pair_kind) == Some(PairLossKind::BinaryCrossEntropy);
        require(
            !none || is_cross_entropy,
            "negatives",
            "none".to_owned(),
            "the loss compares a pair with negatives: give `in_batch` (and a `batch_size` above 1), \
             `random` or `hard`"
                .to_owned(),
        );
        found
    }
}
