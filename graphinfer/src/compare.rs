//! Measures how far predictions from sampled in-edges are from predictions from all in-edges.

use crate::layer::{LayerInput, Rounds};
use schemas::Labels;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The rounds of the other sampling, and the input of its last round.
pub(crate) struct Other<'a> {
    pub(crate) rounds: &'a Rounds<'a>,
    pub(crate) input: LayerInput,
}

/// The rows of the last computed layer for some nodes, and the predictions made from them.
pub(crate) struct Outcome<'a> {
    /// `[num_nodes * dim]`.
    pub(crate) rows: &'a [f32],
    pub(crate) dim: usize,
    /// `[num_nodes]`, or `Labels::None`.
    pub(crate) predicted: &'a Labels,
}

/// How two outcomes differ, added up over nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Difference {
    nodes: u64,
    /// Number of nodes whose predicted class, or set of classes, differs.
    other_classes: u64,
    has_classes: bool,
    /// Sum over nodes of the distance between the two rows, divided by the length of the first row.
    distance: f64,
    /// The largest of these relative distances.
    largest: f64,
}

impl Difference {
    /// Compares two outcomes for the same nodes.
    pub(crate) fn between(first: &Outcome<'_>, second: &Outcome<'_>) -> Self {
        let mut difference = Self::default();
        let pairs = first
            .rows
            .chunks_exact(first.dim)
            .zip(second.rows.chunks_exact(first.dim));
        for (at, (row, other)) in pairs.enumerate() {
            let of = |values: &mut dyn Iterator<Item = f32>| {
                values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt()
            };
            let length = of(&mut row.iter().copied());
            let distance = of(&mut row.iter().zip(other).map(|(x, y)| x - y));
            let relative = if distance > 0.0 {
                distance / length.max(f64::from(f32::MIN_POSITIVE))
            } else {
                0.0
            };
            difference.nodes += 1;
            difference.distance += relative;
            difference.largest = difference.largest.max(relative);
            if let Some(same) = is_same(first.predicted, second.predicted, at) {
                difference.has_classes = true;
                difference.other_classes += u64::from(!same);
            }
        }
        difference
    }

    /// Adds the difference of other nodes.
    pub(crate) fn add(&mut self, other: &Self) {
        self.nodes += other.nodes;
        self.other_classes += other.other_classes;
        self.has_classes |= other.has_classes;
        self.distance += other.distance;
        self.largest = self.largest.max(other.largest);
    }

    /// Returns the entry of the report.
    pub(crate) fn report(&self) -> Value {
        #[expect(clippy::cast_precision_loss, reason = "counts of nodes are below 2^52")]
        let share = |sum: f64| sum / (self.nodes.max(1) as f64);
        #[expect(clippy::cast_precision_loss, reason = "counts of nodes are below 2^52")]
        let other_classes = self.other_classes as f64;
        json!({
            "nodes": self.nodes,
            "other_predictions": self.has_classes.then(|| share(other_classes)),
            "mean_distance": share(self.distance),
            "largest_distance": self.largest,
        })
    }
}

/// Tells whether both predict the same class or classes for node `at`; none for numbers.
fn is_same(first: &Labels, second: &Labels, at: usize) -> Option<bool> {
    match (first, second) {
        (Labels::Class(first), Labels::Class(second)) => Some(first[at] == second[at]),
        (Labels::Multi { width, values, .. }, Labels::Multi { values: other, .. }) => {
            let row = at * width..(at + 1) * width;
            Some(values[row.clone()] == other[row])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_relative_and_classes_are_counted() {
        let outcome = |rows, predicted| Outcome {
            rows,
            dim: 2,
            predicted,
        };
        let classes = [Labels::Class(vec![0, 1]), Labels::Class(vec![0, 2])];
        let first = outcome(&[3.0, 4.0, 0.0, 2.0], &classes[0]);
        let second = outcome(&[3.0, 3.0, 0.0, 2.0], &classes[1]);
        let mut difference = Difference::between(&first, &second);
        difference.add(&Difference::between(&first, &first));
        let expected = json!({
            "nodes": 4, "other_predictions": 0.25, "mean_distance": 0.05, "largest_distance": 0.2,
        });
        assert_eq!(difference.report(), expected);
        let none = outcome(&[1.0, 1.0], &Labels::None);
        let report = Difference::between(&none, &none).report();
        assert_eq!(report["other_predictions"], Value::Null);
    }
}
