//! Forward passes against the slow twin, and their independence of batching and threads.
#![cfg(test)]

mod support;

use gnn::kernel::Partitioning;
use gnn::{
    Architecture, Block, Dense, Input, LayerKind, LossAndGradient, Mode, Model, Norm, Sampling,
};
use support::twin::{Twin, rows_of};
use support::{Batch, Case, architectures, batch, case_for, labels, plain};

/// f32 against f64, for values of order 1 that sum a few dozen terms.
const TOLERANCE: f64 = 1e-5;

fn assert_close(got: &Dense, expected: &[Vec<f64>], what: &str) {
    assert_eq!(got.rows, expected.len(), "{what}: rows");
    for (v, (row, wanted)) in rows_of(got).iter().zip(expected).enumerate() {
        assert_eq!(row.len(), wanted.len(), "{what}: columns");
        for (x, y) in row.iter().zip(wanted) {
            let bound = TOLERANCE * y.abs().max(1.0);
            assert!((x - y).abs() <= bound, "{what}, row {v}: {x} is not {y}");
        }
    }
}

fn check(case: &Case, arch: &Architecture, sparse: bool) {
    let Batch {
        data,
        blocks,
        input,
        ..
    } = batch(case, arch, sparse);
    let model = Model::init(arch, case.seed).unwrap();
    let got = model.forward(&blocks, &input, Mode::Eval).unwrap();
    let what = format!("{case:?} {arch:?} sparse {sparse}");
    assert_close(&got, &Twin::new(&model).forward(&data, &input), &what);
}

#[test]
fn every_architecture_equals_its_slow_twin() {
    for arch in architectures() {
        for seed in 1..4 {
            for sparse in [false, true] {
                check(
                    &Case {
                        seed,
                        ..case_for(&arch)
                    },
                    &arch,
                    sparse,
                );
            }
        }
    }
}

#[test]
fn samples_are_scaled_as_the_twin_scales_them() {
    for arch in architectures() {
        for sampling in [Sampling::Uniform, Sampling::Weighted, Sampling::Top] {
            for fanouts in [vec![2], vec![1, 3]] {
                check(
                    &Case {
                        sampling,
                        fanouts,
                        ..case_for(&arch)
                    },
                    &arch,
                    false,
                );
            }
        }
    }
}

#[test]
fn blocks_run_like_chained_layers() {
    for arch in architectures() {
        let Batch { blocks, input, .. } = batch(&case_for(&arch), &arch, true);
        let model = Model::init(&arch, 3).unwrap();
        let mut x = input.clone();
        for (layer, block) in (1..).zip(&blocks) {
            x = Input::Dense(model.forward_layer(layer, block, &x).unwrap());
        }
        let Input::Dense(x) = x else {
            panic!("layers return dense rows")
        };
        let chained = model.forward_head(x).unwrap();
        assert_eq!(
            chained,
            model.forward(&blocks, &input, Mode::Eval).unwrap(),
            "{arch:?}"
        );
    }
}

fn with_dropout(arch: &Architecture) -> Architecture {
    let attention_dropout = if arch.layer.is_attention() { 0.3 } else { 0.0 };
    Architecture {
        dropout: 0.4,
        input_dropout: 0.2,
        attention_dropout,
        ..arch.clone()
    }
}

fn step(arch: &Architecture, case: &Case, partitioning: Partitioning) -> LossAndGradient {
    let Batch { data, input, .. } = batch(case, arch, true);
    let block = |plain: gnn::BlockData| Block::new(plain).unwrap().with_partitioning(partitioning);
    let blocks: Vec<Block> = data.into_iter().map(block).collect();
    let labels = labels(arch, case.targets);
    let model = Model::init(arch, 5).unwrap();
    model
        .loss_and_gradient(&blocks, &input, &labels, 4.0, Mode::Train { seed: 9 })
        .unwrap()
}

fn assert_same_bits(got: &LossAndGradient, expected: &LossAndGradient, what: &str) {
    assert_eq!(
        got.loss_sum.to_bits(),
        expected.loss_sum.to_bits(),
        "{what}: loss"
    );
    assert_eq!(got.gradient, expected.gradient, "{what}: gradient");
    assert_eq!(got.logits, expected.logits, "{what}: logits");
    assert_eq!(got.buffers, expected.buffers, "{what}: buffers");
}

/// Makes an architecture and a case large enough that kernels and matrix products use several
/// threads.
fn large(arch: &Architecture) -> (Architecture, Case) {
    let mut arch = with_dropout(arch);
    arch.in_dim = 72;
    arch.hidden.iter_mut().for_each(|width| *width *= 16);
    let case = Case {
        num_nodes: 400,
        num_edges: 6000,
        targets: 300,
        ..case_for(&arch)
    };
    (arch, case)
}

#[test]
fn thread_count_and_partitioning_change_no_bit() {
    for arch in architectures() {
        let (arch, case) = large(&arch);
        let run = |threads: usize, partitioning: Partitioning| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| step(&arch, &case, partitioning))
        };
        let one = run(1, Partitioning::EdgeBalanced);
        assert!(one.gradient.iter().all(|g| g.is_finite()), "{arch:?}");
        for threads in [2, 4] {
            for partitioning in [Partitioning::EdgeBalanced, Partitioning::Off] {
                let what = format!("{threads} threads, {partitioning:?}, {arch:?}");
                assert_same_bits(&run(threads, partitioning), &one, &what);
            }
        }
    }
}

#[test]
fn thread_count_changes_no_bit_of_matrix_products() {
    let arch = Architecture {
        in_dim: 300,
        hidden: vec![256],
        norm: Norm::Batch,
        ..with_dropout(&plain(LayerKind::Sage))
    };
    let case = Case {
        num_nodes: 1200,
        num_edges: 5000,
        targets: 1000,
        ..case_for(&arch)
    };
    let Batch { blocks, input, .. } = batch(&case, &arch, false);
    let labels = labels(&arch, case.targets);
    let model = Model::init(&arch, 5).unwrap();
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        let mode = Mode::Train { seed: 9 };
        let step = || model.loss_and_gradient(&blocks, &input, &labels, 4.0, mode);
        pool.install(step).unwrap()
    };
    let one = run(1);
    for threads in [2, 3, 4] {
        assert_same_bits(&run(threads), &one, &format!("{threads} threads"));
    }
}

#[test]
fn pruning_changes_neither_loss_nor_gradient() {
    for arch in architectures() {
        let arch = with_dropout(&arch);
        let case = Case {
            fanouts: vec![3, 2],
            ..case_for(&arch)
        };
        let pruned = step(&arch, &case, Partitioning::default());
        let full = step(
            &arch,
            &Case {
                pruned: false,
                ..case
            },
            Partitioning::default(),
        );
        let what = format!("{arch:?}");
        assert!(
            (pruned.loss_sum - full.loss_sum).abs() < TOLERANCE,
            "{what}: loss"
        );
        for (a, b) in pruned.gradient.iter().zip(&full.gradient) {
            assert!(
                f64::from(a - b).abs() < TOLERANCE,
                "{what}: gradient {a} {b}"
            );
        }
        assert_eq!(pruned.buffers.len(), full.buffers.len());
        for (a, b) in pruned.buffers.iter().zip(&full.buffers) {
            assert!(
                f64::from(a - b).abs() < TOLERANCE,
                "{what}: buffers {a} {b}"
            );
        }
    }
}

#[test]
fn dropout_is_drawn_by_node_and_not_by_position() {
    for arch in architectures() {
        let arch = Architecture {
            norm: Norm::None,
            ..with_dropout(&arch)
        };
        let model = Model::init(&arch, 5).unwrap();
        let logits = |targets: usize, seed: u64| {
            let case = Case {
                targets,
                ..case_for(&arch)
            };
            let Batch { blocks, input, .. } = batch(&case, &arch, false);
            model
                .forward(&blocks, &input, Mode::Train { seed })
                .unwrap()
        };
        let (small, large) = (logits(3, 1), logits(9, 1));
        // The last row is another node; the rest are the same nodes in another batch.
        for v in 0..2 {
            for (a, b) in small.row(v).iter().zip(large.row(v)) {
                assert!(f64::from(a - b).abs() < TOLERANCE, "{arch:?}: {a} {b}");
            }
        }
        assert_ne!(
            logits(9, 1),
            logits(9, 2),
            "another seed draws another mask"
        );
        assert_eq!(
            logits(9, 1),
            logits(9, 1),
            "the same seed draws the same mask"
        );
    }
}

#[test]
fn an_empty_batch_has_no_loss_and_no_gradient() {
    for kind in support::KINDS {
        let arch = plain(kind);
        let block = || {
            let data = gnn::BlockData {
                in_offset: vec![0],
                ..gnn::BlockData::default()
            };
            Block::new(data).unwrap()
        };
        let blocks = [block(), block()];
        let input = Input::Dense(Dense::zeros(0, arch.in_dim));
        let model = Model::init(&arch, 1).unwrap();
        let labels = gnn::Labels::Classes(vec![]);
        let step = model
            .loss_and_gradient(&blocks, &input, &labels, 1.0, Mode::Eval)
            .unwrap();
        assert_eq!(step.loss_sum, 0.0);
        assert_eq!(step.gradient, vec![0.0; model.flat().len()]);
        let flat = vec![0.5; model.flat().len()];
        let exact = model
            .loss_and_gradient_f64(&flat, &blocks, &input, &labels, 1.0, Mode::Eval)
            .unwrap();
        assert_eq!(exact, (0.0, vec![0.0; flat.len()]));
        assert_eq!(
            model.forward_layer(1, &blocks[0], &input).unwrap(),
            Dense::zeros(0, 6)
        );
    }
}

#[test]
fn a_graph_without_edges_is_fine() {
    for arch in architectures() {
        let case = Case {
            num_edges: 0,
            ..case_for(&arch)
        };
        check(&case, &arch, false);
        step(&arch, &case, Partitioning::default());
    }
}

#[test]
fn batch_norm_in_training_uses_active_rows_and_moves_the_running_statistics() {
    let arch = Architecture {
        norm: Norm::Batch,
        ..plain(LayerKind::Gcn)
    };
    let Batch {
        data,
        blocks,
        input,
        ..
    } = batch(&case_for(&arch), &arch, false);
    let model = Model::init(&arch, 5).unwrap();
    let labels = labels(&arch, 2);
    let mode = Mode::Train { seed: 1 };
    let step = model
        .loss_and_gradient(&blocks, &input, &labels, 1.0, mode)
        .unwrap();
    let bare = Architecture {
        norm: Norm::None,
        hidden: vec![],
        num_layers: 1,
        out_dim: 6,
        ..arch
    };
    let mut conv = Model::init(&bare, 0).unwrap();
    let (first, width) = (conv.flat().len(), 6);
    conv.set_flat(&model.flat()[..first]);
    let before = Twin::new(&conv).layer(1, &data[0], &support::twin::rows(&input));
    let count = before.len() as f64;
    for col in 0..width {
        let mean = before.iter().map(|row| row[col]).sum::<f64>() / count;
        let var = before
            .iter()
            .map(|row| (row[col] - mean).powi(2))
            .sum::<f64>()
            / (count - 1.0);
        let (got_mean, got_var) = (step.buffers[col], step.buffers[width + col]);
        assert!((f64::from(got_mean) - 0.1 * mean).abs() < TOLERANCE);
        assert!((f64::from(got_var) - 0.9 - 0.1 * var).abs() < TOLERANCE);
    }
}
