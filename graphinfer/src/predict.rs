//! Turns logits into labels and probabilities, and normalizes embeddings.

use gnn::kernel::Float;
use gnn::{Dense, Task};
use schemas::Labels;

/// Returns the labels that logits predict, one for each row.
pub(crate) fn labels(logits: &Dense, task: Task) -> Labels {
    let mut predicted = match task {
        Task::Classes => Labels::Class(Vec::new()),
        Task::MultiLabel => Labels::Multi {
            width: logits.cols,
            values: Vec::new(),
            present: Vec::new(),
        },
        Task::Regression => Labels::Number(Vec::new()),
        Task::Links(_) => Labels::None,
    };
    (0..logits.rows).for_each(|row| push(logits.row(row), &mut predicted));
    predicted
}

/// Turns logits into probabilities: softmax for classes, the sigmoid of each logit for other tasks.
pub(crate) fn probabilities(logits: &Dense, task: Task) -> Vec<f32> {
    let mut values = logits.values.clone();
    for row in values.chunks_exact_mut(logits.cols) {
        if task == Task::Classes {
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter_mut().for_each(|x| *x = Float::exp(*x - most));
            let sum: f32 = row.iter().sum();
            row.iter_mut().for_each(|x| *x /= sum);
        } else {
            row.iter_mut()
                .for_each(|x| *x = 1.0 / (1.0 + Float::exp(-*x)));
        }
    }
    values
}

/// Divides each row by its Euclidean length; rows of zeros stay.
pub(crate) fn normalize(values: &mut [f32], dim: usize) {
    for row in values.chunks_exact_mut(dim) {
        let square: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
        if square > 0.0 {
            let length = square.sqrt();
            row.iter_mut()
                .for_each(|x| *x = Float::from_f64(f64::from(*x) / length));
        }
    }
}

/// Adds the label of one node: the first class with the largest logit, all classes with a logit
/// above 0 (probability above one half), or the number itself.
fn push(logits: &[f32], predicted: &mut Labels) {
    match predicted {
        Labels::None => {}
        Labels::Class(classes) => {
            let (mut best, mut most) = (0, logits[0]);
            for (class, &logit) in (0..).zip(logits) {
                if logit > most {
                    (best, most) = (class, logit);
                }
            }
            classes.push(best);
        }
        Labels::Multi {
            values, present, ..
        } => {
            values.extend(logits.iter().map(|&logit| f32::from(u8::from(logit > 0.0))));
            present.push(true);
        }
        Labels::Number(numbers) => numbers.push(logits[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(logits: &[f32], mut predicted: Labels, expected: &Labels) {
        push(logits, &mut predicted);
        assert_eq!(&predicted, expected);
    }

    #[test]
    fn rows_are_divided_by_their_length_and_logits_turned_into_shares() {
        let mut values = [3.0, 4.0, 0.0, 0.0];
        normalize(&mut values, 2);
        assert_eq!(values, [0.6, 0.8, 0.0, 0.0]);
        let logits = Dense {
            rows: 2,
            cols: 2,
            values: vec![1.0, 1.0, 900.0, -900.0],
        };
        let of_classes = probabilities(&logits, Task::Classes);
        assert_eq!(of_classes, [0.5, 0.5, 1.0, 0.0]);
        let each = probabilities(&logits, Task::MultiLabel);
        assert_eq!((each[0], each[2]), (each[1], 1.0));
        assert!(each[3] < 1e-30, "{each:?}");
        assert!((each[0] - 0.731_058_6).abs() < 1e-6, "{each:?}");
    }

    #[test]
    fn the_first_largest_logit_names_the_class() {
        check(
            &[0.5, 2.0, 2.0],
            Labels::Class(vec![]),
            &Labels::Class(vec![1]),
        );
        check(
            &[-3.0, -4.0],
            Labels::Class(vec![]),
            &Labels::Class(vec![0]),
        );
    }

    #[test]
    fn several_classes_are_those_above_a_half() {
        let none = Labels::Multi {
            width: 3,
            values: vec![],
            present: vec![],
        };
        let values = vec![1.0, 0.0, 0.0];
        let expected = Labels::Multi {
            width: 3,
            values,
            present: vec![true],
        };
        check(&[0.1, 0.0, -2.0], none, &expected);
    }

    #[test]
    fn a_number_is_predicted_as_it_is() {
        check(&[1.5], Labels::Number(vec![]), &Labels::Number(vec![1.5]));
    }
}
