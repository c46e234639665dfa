//! Compares gradients of whole models with central finite differences, in f64.
#![cfg(test)]

mod support;

use gnn::{Architecture, LayerKind, Mode, Model};
use support::{Batch, Case, architectures, batch, case_for, labels, plain};

/// Half the step of a central difference in f64: error about 1e-10 in the difference.
const STEP: f64 = 1e-6;

/// Bounds the error of the difference, and a few kinks (relu, max) that a step may cross.
const TOLERANCE: f64 = 1e-6;

fn check(case: &Case, arch: &Architecture, mode: Mode, sparse: bool) {
    let Batch { blocks, input, .. } = batch(case, arch, sparse);
    let model = Model::init(arch, 11).unwrap();
    // Biases start at 0 and norms at 1; other values hide no term.
    let mut random = support::Random(5);
    let mut flat: Vec<f64> = model
        .flat()
        .iter()
        .map(|&x| f64::from(x) + 0.1 * f64::from(random.signed()))
        .collect();
    let labels = labels(arch, case.targets - 1);
    let run = |values: &[f64]| {
        model
            .loss_and_gradient_f64(values, &blocks, &input, &labels, 2.0, mode)
            .unwrap()
    };
    let (_, gradient) = run(&flat);
    let mut start = 0;
    for info in model.parameters() {
        for at in start..start + info.len() {
            let value = flat[at];
            flat[at] = value + STEP;
            let above = run(&flat).0;
            flat[at] = value - STEP;
            let below = run(&flat).0;
            flat[at] = value;
            let (difference, got) = ((above - below) / (2.0 * STEP) / 2.0, gradient[at]);
            assert!(
                (difference - got).abs() < TOLERANCE * difference.abs().max(1.0),
                "{}[{}] {got} is not {difference}: {arch:?} {mode:?}",
                info.name,
                at - start,
            );
        }
        let used = gradient[start..start + info.len()]
            .iter()
            .any(|&g| g != 0.0);
        // A bias before batch norm has no effect.
        let idle = arch.norm == gnn::Norm::Batch && info.name.contains("bias");
        assert!(used || idle, "{} has a gradient: {arch:?}", info.name);
        start += info.len();
    }
}

#[test]
fn gradients_equal_finite_differences() {
    for arch in architectures() {
        check(&case_for(&arch), &arch, Mode::Eval, false);
    }
}

#[test]
fn gradients_equal_finite_differences_with_dropout_and_samples() {
    for arch in architectures() {
        let attention_dropout = if arch.layer.is_attention() { 0.3 } else { 0.0 };
        let arch = Architecture {
            dropout: 0.2,
            input_dropout: 0.2,
            attention_dropout,
            ..arch
        };
        let case = Case {
            fanouts: vec![4, 3],
            pruned: false,
            ..case_for(&arch)
        };
        check(&case, &arch, Mode::Train { seed: 3 }, true);
    }
}

#[test]
fn single_precision_gives_the_same_gradient() {
    let arch = plain(LayerKind::Gcn);
    let case = case_for(&arch);
    let Batch { blocks, input, .. } = batch(&case, &arch, false);
    let model = Model::init(&arch, 11).unwrap();
    let labels = labels(&arch, case.targets);
    let single = model
        .loss_and_gradient(&blocks, &input, &labels, 6.0, Mode::Eval)
        .unwrap();
    let flat: Vec<f64> = model.flat().iter().map(|&x| f64::from(x)).collect();
    let double = model
        .loss_and_gradient_f64(&flat, &blocks, &input, &labels, 6.0, Mode::Eval)
        .unwrap();
    assert!((single.loss_sum - double.0).abs() < 1e-5);
    for (f, d) in single.gradient.iter().zip(double.1) {
        assert!((f64::from(*f) - d).abs() < 1e-5);
    }
}

/// Passes with gradients sum raw rows, the others project first; see `Conv::aggregate_raw`.
#[test]
fn attention_over_raw_rows_has_the_logits_of_projected_rows() {
    let kinds = architectures();
    let mut of_gat = kinds
        .iter()
        .filter(|arch| arch.layer == LayerKind::Gat)
        .peekable();
    assert!(of_gat.peek().is_some());
    for arch in of_gat {
        let case = case_for(arch);
        let Batch { blocks, input, .. } = batch(&case, arch, false);
        let model = Model::init(arch, 11).unwrap();
        let labels = labels(arch, case.targets - 1);
        let wanted = model.forward(&blocks, &input, Mode::Eval).unwrap();
        let got = model.loss_and_gradient(&blocks, &input, &labels, 2.0, Mode::Eval);
        for (x, y) in got.unwrap().logits.values.iter().zip(&wanted.values) {
            assert!(
                (x - y).abs() <= 1e-5 * y.abs().max(1.0),
                "{x} and {y}: {arch:?}"
            );
        }
    }
}
