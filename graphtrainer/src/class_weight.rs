//! Weights of classes in the loss.

use gnn::Task;
use schemas::{Labels, Split};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::TrainError;
use crate::source::Source;

/// Key `class_weights` of `[train]`: a list with one weight per class, or `"balanced"`.
#[derive(Clone, PartialEq)]
pub enum ClassWeights {
    /// Inverse proportion to the number of train targets of each class, as in scikit-learn. The
    /// weights of all train targets add up to the number of train targets.
    Balanced,
    /// One weight per class.
    Listed(Vec<f32>),
}

impl ClassWeights {
    /// Returns why the weights do not fit the labels of `task`, or none if they fit. If the labels
    /// are classes, `width` is the number of classes.
    pub fn problem(&self, task: Task, width: usize) -> Option<String> {
        match (task, self) {
            (Task::MultiLabel | Task::Regression, _) => {
                Some("its labels are not classes; only classes have weights".to_owned())
            }
            (Task::Links(_), _) => Some("it has pairs; only classes have weights".to_owned()),
            (Task::Classes, Self::Listed(weights)) if weights.len() != width => Some(format!(
                "it has {width} classes, but this list has {} weights",
                weights.len()
            )),
            (Task::Classes, _) => None,
        }
    }
}

impl std::fmt::Debug for ClassWeights {
    /// Formats the weights as written in a job file.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Balanced => f.write_str("\"balanced\""),
            Self::Listed(weights) => weights.fmt(f),
        }
    }
}

impl Serialize for ClassWeights {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Balanced => serializer.serialize_str("balanced"),
            Self::Listed(weights) => weights.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ClassWeights {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WeightsVisitor)
    }
}

struct WeightsVisitor;

impl<'de> de::Visitor<'de> for WeightsVisitor {
    type Value = ClassWeights;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of numbers, one per class, or \"balanced\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ClassWeights, E> {
        match text {
            "balanced" => Ok(ClassWeights::Balanced),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<ClassWeights, A::Error> {
        let mut weights = Vec::new();
        while let Some(weight) = seq.next_element()? {
            weights.push(weight);
        }
        Ok(ClassWeights::Listed(weights))
    }
}

/// Computes the balanced weights of `num_classes` classes.
///
/// Weight = train targets / (classes with train targets * train targets of the class). A class
/// without train targets gets 0, which no train target uses.
pub(crate) fn balanced(source: &Source, num_classes: usize) -> Result<Vec<f32>, TrainError> {
    let mut counts = vec![0_u64; num_classes];
    for idx in 0..source.counts.len() {
        let part = source.part(source.key(idx, None))?;
        if let Labels::Class(classes) = &part.shard.target_nodes().labels {
            for &target in part.targets(Split::Train) {
                // A class out of range is not counted; the model refuses it.
                if let Some(count) = counts.get_mut(classes[target as usize] as usize) {
                    *count += 1;
                }
            }
        }
    }
    Ok(shares(&counts))
}

/// Returns the balanced weight of each class, from the number of train targets of each class.
#[expect(clippy::cast_possible_truncation, reason = "weights are f32")]
fn shares(counts: &[u64]) -> Vec<f32> {
    let num_present = counts.iter().filter(|&&count| count > 0).count();
    let share = counts.iter().sum::<u64>() as f64 / num_present as f64;
    let weight = |&count: &u64| match count {
        0 => 0.0,
        _ => (share / count as f64) as f32,
    };
    counts.iter().map(weight).collect()
}

/// Returns the sum of the weights of some targets; without class weights their number.
pub(crate) fn total(weights: &[f32], labels: &Labels, targets: &[u32]) -> f64 {
    match labels {
        Labels::Class(classes) if !weights.is_empty() => {
            let of = |&target: &u32| weights.get(classes[target as usize] as usize);
            targets.iter().filter_map(of).copied().map(f64::from).sum()
        }
        _ => targets.len() as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balanced_weights_are_scikit_learns() {
        // compute_class_weight("balanced", classes=[0, 2, 3], y=[0, 0, 0, 2, 3, 3])
        assert_eq!(shares(&[3, 0, 1, 2]), [2.0 / 3.0, 0.0, 2.0, 1.0]);
        assert_eq!(shares(&[4]), [1.0]);
    }

    #[test]
    fn targets_count_by_their_class() {
        let labels = Labels::Class(vec![1, 0, 0, 1]);
        assert_eq!(total(&[0.5, 2.0], &labels, &[0, 1, 3]), 4.5);
        assert_eq!(total(&[], &labels, &[0, 1, 3]), 3.0);
    }
}
