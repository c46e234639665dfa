//! Compares gradients of whole typed models with central finite differences, in f64.

use gnn::typed::{TypedArchitecture, TypedKind};
use gnn::{LayerKind, Mode, Norm};

use crate::graph::{ALL, Batch, Graph};
use crate::models::{architectures, labels, model, schema, with_dropout};

/// Half the step of a central difference in f64: error about 1e-10 in the difference.
const STEP: f64 = 1e-6;

/// Bounds the error of the difference, and a few kinks (relu, max) that a step may cross.
const TOLERANCE: f64 = 1e-6;

/// Most values of a parameter that are moved, spread over all its heads and relations.
const VALUES_MAX: usize = 4;

/// Returns the largest slope of each parameter.
fn check(arch: &TypedArchitecture, mode: Mode, fanouts: [usize; 3]) -> Vec<(String, f64)> {
    let graph = Graph::random(&schema(arch), 5, 10, 5);
    let batch = Batch::of(&graph, arch, 5, fanouts);
    let model = model(arch, 11);
    let mut flat: Vec<f64> = model.flat().iter().map(|&x| f64::from(x)).collect();
    let labels = labels(arch, 4);
    let run = |values: &[f64]| {
        let (blocks, input) = (&batch.blocks, &batch.input);
        let step = model.loss_and_gradient_f64(values, blocks, input, &labels, 2.0, mode);
        step.unwrap()
    };
    let (_, gradient) = run(&flat);
    let (mut start, mut largest) = (0, Vec::new());
    for info in model.parameters() {
        let step = info.len().div_ceil(VALUES_MAX) | 1;
        for at in (start..start + info.len()).step_by(step) {
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
        let of_parameter = &gradient[start..start + info.len()];
        let most = of_parameter
            .iter()
            .fold(0.0, |most: f64, slope| most.max(slope.abs()));
        largest.push((info.name.clone(), most));
        start += info.len();
    }
    largest
}

/// Tells whether the logits of authors certainly depend on a parameter. Left out are those of the
/// last layer, which has convs for other types too, of types that authors do not read, of HGT's
/// residual, which needs equal widths, and biases before batch norm.
fn is_used(arch: &TypedArchitecture, name: &str) -> bool {
    let last = format!(".{}.", arch.num_layers - 1);
    let idle = arch.norm == Norm::Batch && name.contains("bias");
    let is_gcn = arch.layer == TypedKind::Conv(LayerKind::Gcn);
    let unread = [
        "place",
        "venue",
        ".skip.",
        &last,
        if is_gcn { "paper" } else { "place" },
    ];
    !idle && !unread.iter().any(|part| name.contains(part))
}

#[test]
fn gradients_equal_finite_differences() {
    for arch in architectures() {
        let largest = check(&arch, Mode::Eval, ALL);
        for (name, most) in largest {
            let is_used = arch.target_type == "author" && is_used(&arch, &name);
            assert!(most > 0.0 || !is_used, "{name} has a gradient: {arch:?}");
        }
    }
}

#[test]
fn gradients_equal_finite_differences_with_dropout_and_samples() {
    for arch in architectures() {
        check(&with_dropout(&arch), Mode::Train { seed: 3 }, [3, 2, 2]);
    }
}

/// In training, linear convs of the first layer sum raw rows, if these are not wider than projected
/// ones, and project the sums.
#[test]
fn training_without_dropout_gives_the_loss_and_gradient_of_the_eval_mode() {
    let wide = |arch: TypedArchitecture| TypedArchitecture {
        projection: 8,
        hidden: vec![8; arch.hidden.len()],
        ..arch
    };
    let archs = architectures().into_iter();
    let archs = archs.filter(|arch| arch.norm != Norm::Batch);
    for arch in archs.flat_map(|arch| [arch.clone(), wide(arch)]) {
        let graph = Graph::random(&schema(&arch), 13, 60, 5);
        let (batch, model) = (Batch::of(&graph, &arch, 6, ALL), model(&arch, 11));
        let flat: Vec<f64> = model.flat().iter().map(|&x| f64::from(x)).collect();
        let [eval, train] = [Mode::Eval, Mode::Train { seed: 3 }].map(|mode| {
            let (blocks, input, labels) = (&batch.blocks, &batch.input, labels(&arch, 6));
            let step = model.loss_and_gradient_f64(&flat, blocks, input, &labels, 6.0, mode);
            step.unwrap()
        });
        // The sums of coefficients are rounded to f32.
        let is_close = |a: f64, b: f64| (a - b).abs() < 1e-6 * a.abs().max(1.0);
        assert!(
            is_close(eval.0, train.0),
            "{arch:?}: {} {}",
            eval.0,
            train.0
        );
        for (at, (&a, &b)) in eval.1.iter().zip(&train.1).enumerate() {
            assert!(is_close(a, b), "{arch:?}: {a} {b} at {at}");
        }
    }
}

#[test]
fn single_precision_gives_the_same_gradient() {
    for arch in architectures() {
        let graph = Graph::random(&schema(&arch), 9, 25, 5);
        let (batch, model) = (Batch::of(&graph, &arch, 6, ALL), model(&arch, 11));
        let (blocks, input, labels) = (&batch.blocks, &batch.input, labels(&arch, 6));
        let single = model.loss_and_gradient(blocks, input, &labels, 6.0, Mode::Eval);
        let single = single.unwrap();
        let flat: Vec<f64> = model.flat().iter().map(|&x| f64::from(x)).collect();
        let double = model
            .loss_and_gradient_f64(&flat, blocks, input, &labels, 6.0, Mode::Eval)
            .unwrap();
        assert!(
            (single.loss_sum - double.0).abs() < 1e-4 * double.0.abs().max(1.0),
            "{arch:?}"
        );
        for (f, d) in single.gradient.iter().zip(double.1) {
            assert!(
                (f64::from(*f) - d).abs() < 1e-4 * d.abs().max(1.0),
                "{arch:?}: {f} {d}"
            );
        }
    }
}
