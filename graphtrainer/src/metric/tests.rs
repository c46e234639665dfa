//! Compares metrics with values computed by hand.

use super::*;

/// Metrics are sums and quotients of a few small numbers.
const TOLERANCE: f64 = 1e-12;

fn dense(cols: usize, values: &[f32]) -> Dense {
    Dense {
        rows: values.len() / cols,
        cols,
        values: values.to_vec(),
    }
}

fn evaluate(task: Task, logits: &Dense, labels: &Labels) -> Metrics {
    let mut evaluation = Evaluation::new(task, logits.cols);
    evaluation.add(logits, labels, 3.0);
    evaluation.finish()
}

fn check(metrics: &Metrics, name: &str, expected: f64) {
    let value = metrics[name];
    assert!(
        (value - expected).abs() < TOLERANCE,
        "{name}: {value} instead of {expected}"
    );
}

#[test]
fn classes_are_counted_as_scikit_learn_does() {
    // Predictions 0 0 1 2 of truths 0 1 1 0: class 2 is only predicted, class 3 never occurs.
    let logits = dense(
        4,
        &[
            9., 1., 1., 1., 9., 1., 1., 1., 1., 9., 1., 1., 1., 1., 9., 1.,
        ],
    );
    let metrics = evaluate(Task::Classes, &logits, &Labels::Classes(vec![0, 1, 1, 0]));
    check(&metrics, "accuracy", 0.5);
    check(&metrics, "micro_f1", 0.5);
    // F1: class 0 = 2/(2+1+1), class 1 = 2/(2+0+1), class 2 = 0, class 3 does not count.
    check(&metrics, "macro_f1", (0.5 + 2.0 / 3.0 + 0.0) / 3.0);
    check(&metrics, "loss", 0.75);
    assert!(!metrics.contains_key("auc"), "AUC needs two classes");
}

#[test]
fn equal_logits_predict_the_first_class() {
    let metrics = evaluate(
        Task::Classes,
        &dense(3, &[1., 1., 1.]),
        &Labels::Classes(vec![0]),
    );
    check(&metrics, "accuracy", 1.0);
}

#[test]
fn auc_counts_ties_as_half() {
    // Scores 1 2 2 3 with truths - + - +: pairs (2,1) win, (2,2) tie, (3,1) win, (3,2) win.
    let logits = dense(2, &[0., 1., 0., 2., 0., 2., 0., 3.]);
    let metrics = evaluate(Task::Classes, &logits, &Labels::Classes(vec![0, 1, 0, 1]));
    check(&metrics, "auc", 3.5 / 4.0);
    // All scores are equal: 0.5 for any order of the rows. -0 equals 0.
    let equal = dense(2, &[0., 0., 0., -0., 0., 0.]);
    let tied = evaluate(Task::Classes, &equal, &Labels::Classes(vec![1, 0, 0]));
    check(&tied, "auc", 0.5);
}

#[test]
fn auc_is_undefined_with_one_class() {
    let logits = dense(2, &[0., 1., 0., 2.]);
    let metrics = evaluate(Task::Classes, &logits, &Labels::Classes(vec![1, 1]));
    assert!(!metrics.contains_key("auc"));
}

#[test]
fn labels_of_a_multi_label_task_are_averaged() {
    // Label 0: predictions + + -, truths + - +: tp 1, fp 1, fn 1; label 1: - - -, truths - - -.
    let logits = dense(2, &[1., -1., 2., -1., -1., -1.]);
    let truth = dense(2, &[1., 0., 0., 0., 1., 0.]);
    let metrics = evaluate(Task::MultiLabel, &logits, &Labels::MultiLabel(truth));
    check(&metrics, "micro_f1", 0.5);
    check(&metrics, "macro_f1", 0.25);
    // Label 0: positives score 1 and -1, the negative 2: no win. Label 1 has no positives.
    check(&metrics, "auc", 0.0);
}

#[test]
fn numbers_are_compared_by_their_errors() {
    let logits = dense(1, &[1., 2., 5.]);
    let truth = dense(1, &[1., 3., 3.]);
    let metrics = evaluate(Task::Regression, &logits, &Labels::Regression(truth));
    check(&metrics, "mae", 1.0);
    check(&metrics, "rmse", (5.0_f64 / 3.0).sqrt());
    // Spread of 1 3 3 around its mean 7/3: 8/3.
    check(&metrics, "r2", 1.0 - 5.0 / (8.0 / 3.0));
}

#[test]
fn batches_add_up_and_nothing_is_no_metric() {
    let mut evaluation = Evaluation::new(Task::Classes, 2);
    evaluation.add(&dense(2, &[1., 0.]), &Labels::Classes(vec![0]), 1.0);
    evaluation.add(
        &dense(2, &[1., 0., 0., 1.]),
        &Labels::Classes(vec![1, 1]),
        2.0,
    );
    let metrics = evaluation.finish();
    check(&metrics, "accuracy", 2.0 / 3.0);
    check(&metrics, "loss", 1.0);
    assert!(Evaluation::new(Task::Regression, 1).finish().is_empty());
}
