//! Compares whole models on a GPU with the processor. Without a GPU these tests say `skipped` and
//! pass, unless `GRAPHFLAT_TEST_GPU` is set.
#![cfg(test)]
#![cfg(feature = "gpu")]

#[allow(
    dead_code,
    clippy::shadow_unrelated,
    reason = "other test programs use other parts; loops name an element like its list"
)]
#[path = "typed/graph.rs"]
mod graph;
#[allow(dead_code, reason = "other test programs use other parts")]
#[path = "typed/models.rs"]
mod models;
mod support;

use std::path::Path;
use std::process::Command;

use gnn::typed::{TypedArchitecture, TypedModel};
use gnn::{Architecture, Device, LayerKind, LossAndGradient, Mode, Model, Norm, ReadyInput};
use support::{Batch, Case, architectures, batch, case_for, labels, plain};

/// f32 against f32, summed in another order, through up to three layers.
const TOLERANCE: f32 = 1e-4;

fn device() -> Option<Device> {
    match Device::gpu() {
        Ok(device) => Some(device),
        Err(error) if std::env::var_os("GRAPHFLAT_TEST_GPU").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn assert_close(got: &[f32], wanted: &[f32], what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}: length");
    for (at, (x, y)) in got.iter().zip(wanted).enumerate() {
        let bound = TOLERANCE * y.abs().max(1.0);
        assert!((x - y).abs() <= bound, "{what}[{at}]: {x} is not {y}");
    }
}

/// Compares loss, gradients, logits and running statistics of a batch.
fn assert_same_step(got: &LossAndGradient, wanted: &LossAndGradient, what: &str) {
    let error = (got.loss_sum - wanted.loss_sum).abs();
    let bound = f64::from(TOLERANCE) * wanted.loss_sum.max(1.0);
    assert!(error <= bound, "{what}: loss {}", got.loss_sum);
    assert_close(
        &got.gradient,
        &wanted.gradient,
        &format!("gradient, {what}"),
    );
    assert_eq!(got.rows.len(), wanted.rows.len(), "{what}: types");
    for types in got.rows.iter().zip(&wanted.rows) {
        match types {
            (None, None) => {}
            (Some(rows), Some(expected)) => {
                let what = format!("learnable rows, {what}");
                assert_close(&rows.values, &expected.values, &what);
            }
            other => panic!("learnable rows, {what}: {other:?}"),
        }
    }
    assert_close(
        &got.logits.values,
        &wanted.logits.values,
        &format!("logits, {what}"),
    );
    assert_close(&got.buffers, &wanted.buffers, &format!("buffers, {what}"));
}

/// Checks loss, gradient, logits and running statistics of a batch.
fn check(case: &Case, arch: &Architecture, mode: Mode, sparse: bool) {
    let Some(device) = device() else { return };
    let Batch { blocks, input, .. } = batch(case, arch, sparse);
    let input = ReadyInput::new(input).unwrap();
    let labels = labels(arch, case.targets - 1);
    let mut model = Model::init(arch, 11).unwrap();
    let run = |of: &Model| {
        let computed = of.loss_and_gradient(&blocks, &input, &labels, 2.0, mode);
        computed.unwrap()
    };
    let wanted = run(&model);
    let forward = model.forward(&blocks, &input, Mode::Eval).unwrap();
    model.set_device(device);
    let what = format!("{case:?} {arch:?} {mode:?} sparse {sparse}");
    // Twice: the second run reuses the uploads and must give the same bits.
    let (got, again) = (run(&model), run(&model));
    assert_eq!(got.gradient, again.gradient, "{what}: twice");
    assert_same_step(&got, &wanted, &what);
    let evaluated = model.forward(&blocks, &input, Mode::Eval).unwrap();
    assert_close(
        &evaluated.values,
        &forward.values,
        &format!("forward, {what}"),
    );
}

#[test]
fn every_architecture_gives_the_same_gradient() {
    for arch in architectures() {
        check(&case_for(&arch), &arch, Mode::Eval, false);
    }
}

#[test]
fn dropout_samples_and_sparse_features_give_the_same_gradient() {
    for arch in architectures() {
        let arch = Architecture {
            dropout: 0.2,
            input_dropout: 0.2,
            attention_dropout: if arch.layer.is_attention() { 0.3 } else { 0.0 },
            ..arch
        };
        for sparse in [false, true] {
            let case = Case {
                fanouts: vec![4, 3],
                pruned: sparse,
                ..case_for(&arch)
            };
            check(&case, &arch, Mode::Train { seed: 3 }, sparse);
        }
    }
}

/// Checks a training step, logits and embeddings of a batch of a typed graph.
fn check_typed(arch: &TypedArchitecture, edges: usize, mode: Mode, fanouts: [usize; 3]) {
    let Some(device) = device() else { return };
    let graph = graph::Graph::random(&models::schema(arch), 9, edges, 5);
    let batch = graph::Batch::of(&graph, arch, 6, fanouts);
    let (blocks, input) = (&batch.blocks[..], &batch.input[..]);
    let labels = models::labels(arch, 5);
    let mut model = models::model(arch, 11);
    let step = |of: &TypedModel| {
        let computed = of.loss_and_gradient(blocks, input, &labels, 2.0, mode);
        computed.unwrap()
    };
    let evaluate = |of: &TypedModel| {
        let wanted = (1, arch.target());
        let (rows, logits) = of.forward_embedding((blocks, input), wanted, true).unwrap();
        let forward = of.forward(blocks, input, Mode::Eval).unwrap();
        assert_eq!(logits.as_ref(), Some(&forward));
        [rows.values, forward.values]
    };
    let (wanted, outputs) = (step(&model), evaluate(&model));
    model.set_device(device);
    let what = format!("{arch:?} {mode:?} {edges} edges");
    // Twice: the second run reuses the uploads and must give the same bits.
    let (got, again) = (step(&model), step(&model));
    assert_eq!(got.gradient, again.gradient, "{what}: twice");
    assert_same_step(&got, &wanted, &what);
    for (rows, expected) in evaluate(&model).iter().zip(&outputs) {
        assert_close(rows, expected, &format!("forward, {what}"));
    }
}

#[test]
fn every_typed_architecture_gives_the_same_gradient() {
    for arch in models::architectures() {
        check_typed(&arch, 25, Mode::Eval, graph::ALL);
    }
}

#[test]
fn typed_dropout_and_samples_give_the_same_gradient() {
    for arch in models::architectures() {
        let arch = models::with_dropout(&arch);
        check_typed(&arch, 40, Mode::Train { seed: 3 }, [3, 2, 2]);
    }
}

#[test]
fn learnable_rows_get_the_same_gradient() {
    for mut arch in models::kinds().map(models::plain) {
        for of in &mut arch.types {
            let in_dim = *of.in_dim.get_or_insert(3);
            of.embedding_dim = Some(in_dim.min(2));
        }
        check_typed(&arch, 25, Mode::Eval, graph::ALL);
    }
}

#[test]
fn typed_models_run_on_nodes_without_in_edges() {
    for arch in models::architectures() {
        check_typed(&arch, 0, Mode::Eval, graph::ALL);
    }
}

/// Running out of GPU memory is an error, also while batch norm reads statistics from the GPU.
#[test]
fn more_than_the_memory_of_the_gpu_is_an_error() {
    let Some(device) = device() else { return };
    for norm in [Norm::None, Norm::Batch] {
        let arch = Architecture {
            hidden: vec![1_000_000],
            norm,
            ..plain(LayerKind::Gcn)
        };
        let case = Case {
            num_nodes: 3000,
            num_edges: 9000,
            targets: 2000,
            ..case_for(&arch)
        };
        let Batch { blocks, input, .. } = batch(&case, &arch, false);
        let mut model = Model::init(&arch, 11).unwrap();
        model.set_device(device.clone());
        let labels = labels(&arch, 10);
        let mode = Mode::Train { seed: 1 };
        let failed = model.loss_and_gradient(&blocks, &input, &labels, 2.0, mode);
        let error = failed.unwrap_err().to_string();
        assert!(error.starts_with("the device failed"), "{error}");
    }
}

/// Runs in a process of its own, since a process looks for drivers only once.
#[test]
fn without_a_driver_there_is_an_error_and_no_panic() {
    const CHILD: &str = "GRAPHFLAT_TEST_NO_DRIVER";
    if std::env::var_os(CHILD).is_some() {
        let error = Device::gpu().unwrap_err().to_string();
        assert!(error.starts_with("no GPU was found"), "{error}");
        let of_hardware = Device::hardware().unwrap_err().to_string();
        assert!(
            of_hardware.starts_with("no GPU in hardware"),
            "{of_hardware}"
        );
        assert_eq!(Device::auto().kind(), "cpu");
        return;
    }
    let nowhere = Path::new("/nonexistent");
    // An OpenGL driver, if there is one, must not be used instead.
    for hidden in [&["__EGL_VENDOR_LIBRARY_FILENAMES"][..], &[]] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "without_a_driver_there_is_an_error_and_no_panic"])
            .env(CHILD, "1")
            .env("VK_DRIVER_FILES", nowhere)
            .env("VK_ICD_FILENAMES", nowhere)
            .envs(hidden.iter().map(|name| (name, nowhere)));
        let ended = child.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

/// The device chosen for the user is never slower than the processor.
#[test]
fn a_gpu_in_software_is_not_chosen() {
    let chosen = Device::auto();
    assert!(!chosen.is_software(), "{}", chosen.name());
}
