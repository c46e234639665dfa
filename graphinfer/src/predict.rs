//! The prediction slice: logits of embeddings, and what they say.

use gnn::{Architecture, Dense, Task};
use schemas::Labels;

/// Reads logits as labels of the model's task, a row for each node.
pub(crate) fn labels(logits: &Dense, arch: &Architecture) -> Labels {
    let mut predicted = match arch.task {
        Task::Classes => Labels::Class(Vec::new()),
        Task::MultiLabel => Labels::Multi {
            width: arch.out_dim,
            values: Vec::new(),
            present: Vec::new(),
        },
        Task::Regression => Labels::Number(Vec::new()),
    };
    (0..logits.rows).for_each(|row| push(logits.row(row), &mut predicted));
    predicted
}

/// Reads one node's logits: the first largest one, each above 0 (a chance of more than a half), or
/// the number itself.
fn push(logits: &[f32], predicted: &mut Labels) {
    match predicted {
        Labels::None => {}
        Labels::Class(classes) => {
            let mut best = 0;
            for (class, logit) in logits.iter().enumerate() {
                if *logit > logits[best] {
                    best = class;
                }
            }
            classes.push(u32::try_from(best).expect("classes fit 32 bits"));
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
