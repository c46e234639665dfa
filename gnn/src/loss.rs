//! Computes the loss of a node task, and its gradient with respect to the logits.
//!
//! Losses are f64 and are summed in the order of rows.

use rayon::prelude::*;

use crate::{Dense, GnnError, LabelScale, Pairs, Task};

/// Fewest rows that one thread handles at a time.
const ROWS_MIN: usize = 128;

/// The wanted outputs of a batch: row `i` is wanted for row `i` of the logits.
#[derive(Clone, Debug, PartialEq)]
pub enum Labels {
    /// Class numbers.
    Classes(Vec<u32>),
    /// 0 or 1 per class.
    MultiLabel(Dense),
    /// Numbers.
    Regression(Dense),
    /// Pairs of rows; all rows of the logits are embeddings of targets.
    Pairs(Box<Pairs>),
}

impl Labels {
    /// Returns the number of labelled rows, or of pairs.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Labels::Classes(classes) => classes.len(),
            Labels::MultiLabel(wanted) | Labels::Regression(wanted) => wanted.rows,
            Labels::Pairs(pairs) => pairs.len(),
        }
    }

    /// Checks that the labels fit a model's task and width, and that there are rows for them.
    pub(crate) fn check(&self, task: Task, width: usize, rows: usize) -> Result<(), GnnError> {
        let problem = match (self, task) {
            (Labels::Pairs(pairs), Task::Links(_)) => return pairs.check(rows),
            (Labels::Classes(classes), Task::Classes) => classes
                .iter()
                .find(|&&class| class as usize >= width)
                .map(|class| format!("class {class} is not below the {width} logits")),
            (Labels::MultiLabel(wanted), Task::MultiLabel)
            | (Labels::Regression(wanted), Task::Regression) => {
                let fits = wanted.cols == width && wanted.values.len() == wanted.rows * width;
                (!fits).then(|| format!("{} wide, but the logits are {width}", wanted.cols))
            }
            _ => Some(format!("are not of the kind that task {task:?} needs")),
        };
        let missing = self.rows() > rows;
        let problem =
            problem.or_else(|| missing.then(|| format!("{} for {rows} dst nodes", self.rows())));
        problem.map_or(Ok(()), |problem| Err(GnnError::Labels { problem }))
    }
}

/// Class weights and label scale, which change the loss of a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weighing<'a> {
    /// For each class, the factor of the loss of its rows; empty if all factors are 1.
    pub(crate) class_weights: &'a [f32],
    /// Scale of a regression's labels, if they are scaled.
    pub(crate) label_scale: Option<&'a LabelScale>,
}

/// Returns the loss, summed over the labelled rows.
///
/// The loss of a row is the cross-entropy for classes, else the mean over columns of the binary
/// cross-entropy or of the squared error. The returned sum, divided by the number of rows, is the
/// loss of `PyTorch` with the reduction `mean`. Logits after the labelled rows are ignored.
///
/// The loss of pairs is [`Scorer::loss`](crate::Scorer::loss).
///
/// # Panics
///
/// If the labels are not of the task's kind, or a class number is not below the logits' width.
#[must_use]
pub fn loss(task: Task, logits: &Dense, labels: &Labels) -> f64 {
    let values: Vec<f64> = logits.values.iter().map(|&x| f64::from(x)).collect();
    loss_and_slope(task, &values, logits.cols, labels, Weighing::default()).0
}

/// Returns the loss sum and its gradient with respect to the logits of the labelled rows. Class
/// weights multiply the loss and the gradient of each row of their class.
///
/// With a label scale, `logits` are in scaled units. The loss is in the unit of the labels, but the
/// gradient is the gradient of the loss in scaled units.
pub(crate) fn loss_and_slope(
    task: Task,
    logits: &[f64],
    width: usize,
    labels: &Labels,
    weighing: Weighing<'_>,
) -> (f64, Vec<f64>) {
    let mut slope = vec![0.0; labels.rows() * width];
    let mut losses = vec![0.0; labels.rows()];
    let rows = logits
        .par_chunks(width.max(1))
        .zip(slope.par_chunks_mut(width.max(1)));
    let rows = losses
        .par_iter_mut()
        .zip(rows)
        .enumerate()
        .with_min_len(ROWS_MIN);
    match (task, labels) {
        (Task::Classes, Labels::Classes(classes)) => {
            rows.for_each(|(row, (loss, (x, d)))| {
                let class = classes[row] as usize;
                *loss = cross_entropy(x, class, d);
                if let Some(&weight) = weighing.class_weights.get(class) {
                    *loss *= f64::from(weight);
                    d.iter_mut().for_each(|d| *d *= f64::from(weight));
                }
            });
        }
        (Task::MultiLabel, Labels::MultiLabel(wanted)) => {
            rows.for_each(|(row, (loss, (x, d)))| {
                *loss = binary_cross_entropy(x, wanted.row(row), d);
            });
        }
        (Task::Regression, Labels::Regression(wanted)) => {
            rows.for_each(|(row, (loss, (x, d)))| {
                *loss = squared_error(x, wanted.row(row), d, weighing.label_scale);
            });
        }
        _ => panic!("labels were checked against task {task:?}"),
    }
    (losses.iter().sum(), slope)
}

fn cross_entropy(logits: &[f64], class: usize, slope: &mut [f64]) -> f64 {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    for (d, x) in slope.iter_mut().zip(logits) {
        *d = (x - max).exp();
    }
    let total: f64 = slope.iter().sum();
    slope.iter_mut().for_each(|d| *d /= total);
    slope[class] -= 1.0;
    total.ln() + max - logits[class]
}

fn binary_cross_entropy(logits: &[f64], wanted: &[f32], slope: &mut [f64]) -> f64 {
    let (mut sum, width) = (0.0, f64_of(logits.len()));
    for ((&x, &y), d) in logits.iter().zip(wanted).zip(slope) {
        let y = f64::from(y);
        // log(1 + exp(-|x|)) neither overflows nor loses small losses.
        sum += x.max(0.0) - x * y + (-x.abs()).exp().ln_1p();
        *d = (1.0 / (1.0 + (-x).exp()) - y) / width;
    }
    sum / width
}

fn squared_error(
    logits: &[f64],
    wanted: &[f32],
    slope: &mut [f64],
    scale: Option<&LabelScale>,
) -> f64 {
    let (mut sum, width) = (0.0, f64_of(logits.len()));
    for (at, ((&x, &y), d)) in logits.iter().zip(wanted).zip(slope).enumerate() {
        let (mean, deviation) = scale.map_or((0.0, 1.0), |scale| {
            (f64::from(scale.mean[at]), f64::from(scale.deviation[at]))
        });
        let error = x - (f64::from(y) - mean) / deviation;
        sum += (error * deviation) * (error * deviation);
        *d = 2.0 * error / width;
    }
    sum / width
}

#[expect(clippy::cast_precision_loss, reason = "widths are far below 2^52")]
fn f64_of(width: usize) -> f64 {
    width as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest error of f64 finite differences of smooth functions with values near 1.
    const TOLERANCE: f64 = 1e-7;

    fn dense(cols: usize, values: &[f32]) -> Dense {
        Dense {
            rows: values.len() / cols,
            cols,
            values: values.to_vec(),
        }
    }

    fn check(task: Task, labels: &Labels, weights: &[f32], expected: f64) {
        let logits = vec![0.5, -1.0, 2.0, 0.0, 0.0, 0.0, 9.0, 9.0, 9.0];
        let weighing = Weighing {
            class_weights: weights,
            label_scale: None,
        };
        let (sum, slope) = loss_and_slope(task, &logits, 3, labels, weighing);
        assert!(
            (sum - expected).abs() < TOLERANCE,
            "{task:?}: {sum} is not {expected}"
        );
        for (at, d) in slope.iter().enumerate() {
            let mut moved = logits.clone();
            moved[at] += 1e-5;
            let above = loss_and_slope(task, &moved, 3, labels, weighing).0;
            moved[at] -= 2e-5;
            let below = loss_and_slope(task, &moved, 3, labels, weighing).0;
            let difference = (above - below) / 2e-5;
            assert!((difference - d).abs() < TOLERANCE, "{task:?} {at}");
        }
    }

    #[test]
    fn losses_equal_hand_computed_sums_and_their_slopes_differences() {
        let norm = (0.5_f64.exp() + (-1.0_f64).exp() + 2.0_f64.exp()).ln();
        check(
            Task::Classes,
            &Labels::Classes(vec![2, 0]),
            &[],
            norm - 2.0 + 3.0_f64.ln(),
        );
        check(
            Task::Classes,
            &Labels::Classes(vec![2, 0]),
            &[0.25, 9.0, 3.0],
            3.0 * (norm - 2.0) + 0.25 * 3.0_f64.ln(),
        );
        let wanted = dense(3, &[1.0, 0.0, 0.0]);
        let soft = |x: f64| (1.0 + x.exp()).ln();
        let expected = (soft(-0.5) + soft(-1.0) + soft(2.0)) / 3.0;
        check(
            Task::MultiLabel,
            &Labels::MultiLabel(wanted.clone()),
            &[],
            expected,
        );
        check(
            Task::Regression,
            &Labels::Regression(wanted),
            &[],
            (0.25 + 1.0 + 4.0) / 3.0,
        );
    }

    #[test]
    fn a_scaled_regression_has_the_loss_of_its_labels_and_the_slope_of_scaled_ones() {
        let labels = Labels::Regression(dense(1, &[1e7, 1.2e7]));
        let scale = LabelScale {
            mean: vec![1.1e7],
            deviation: vec![1e6],
        };
        let weighing = Weighing {
            class_weights: &[],
            label_scale: Some(&scale),
        };
        // Outputs of 1.1e7 and 1.25e7.
        let (sum, slope) = loss_and_slope(Task::Regression, &[0.0, 1.5], 1, &labels, weighing);
        assert!((sum / (1e12 + 0.25e12) - 1.0).abs() < TOLERANCE, "{sum}");
        assert!((slope[0] - 2.0).abs() < TOLERANCE && (slope[1] - 1.0).abs() < TOLERANCE);
    }

    #[test]
    fn huge_logits_stay_finite() {
        let logits = dense(2, &[1e4, -1e4]);
        assert_eq!(loss(Task::Classes, &logits, &Labels::Classes(vec![1])), 2e4);
        let labels = Labels::MultiLabel(dense(2, &[0.0, 1.0]));
        assert_eq!(loss(Task::MultiLabel, &logits, &labels), 1e4);
    }
}
