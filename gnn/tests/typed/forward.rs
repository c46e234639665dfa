//! Forward passes against the slow twin, and their independence of batching and threads.

use gnn::kernel::Partitioning;
use gnn::typed::{TypedArchitecture, TypedBlock, TypedModel};
use gnn::{Dense, LossAndGradient, Mode, Norm};

use crate::graph::{ALL, Batch, Graph};
use crate::models::{architectures, labels, model, schema, with_dropout};
use crate::support::twin::{Rows, rows_of};
use crate::twin::Twin;

/// f32 against f64, for values of order 1 that sum a few dozen terms.
pub(crate) const TOLERANCE: f64 = 1e-5;

pub(crate) fn assert_close(got: &Dense, expected: &Rows, what: &str) {
    assert_eq!(got.rows, expected.len(), "{what}: rows");
    for (v, (row, wanted)) in rows_of(got).iter().zip(expected).enumerate() {
        assert_eq!(row.len(), wanted.len(), "{what}: columns");
        for (x, y) in row.iter().zip(wanted) {
            let bound = TOLERANCE * y.abs().max(1.0);
            assert!((x - y).abs() <= bound, "{what}, row {v}: {x} is not {y}");
        }
    }
}

fn check(graph: &Graph, arch: &TypedArchitecture, model: &TypedModel, fanouts: [usize; 3]) {
    let batch = Batch::of(graph, arch, 6, fanouts);
    let got = model
        .forward(&batch.blocks, &batch.input, Mode::Eval)
        .unwrap();
    let what = format!("{fanouts:?} {arch:?}");
    let expected = Twin::new(model).forward(&batch.data, &batch.raw);
    assert!(
        expected.iter().flatten().any(|x| x.abs() > 0.01),
        "{what}: all is 0"
    );
    assert_close(&got, &expected, &what);
}

#[test]
fn every_architecture_equals_its_slow_twin() {
    for arch in architectures() {
        for seed in 1..4 {
            let graph = Graph::random(&schema(&arch), 9, 25, seed);
            check(&graph, &arch, &model(&arch, seed), ALL);
        }
    }
}

#[test]
fn sums_of_samples_are_scaled_by_relation_as_the_twin_scales_them() {
    for arch in architectures() {
        let graph = Graph::random(&schema(&arch), 9, 40, 7);
        for fanouts in [[2, 1, 3], [1, 3, 2]] {
            check(&graph, &arch, &model(&arch, 2), fanouts);
        }
    }
}

#[test]
fn relations_without_edges_and_types_without_nodes_are_fine() {
    for arch in architectures() {
        let mut graph = Graph::random(&schema(&arch), 9, 0, 7);
        check(&graph, &arch, &model(&arch, 2), ALL);
        // The batch reads no node of types that are no target.
        let batch = Batch::of(&graph, &arch, 3, ALL);
        let labels = labels(&arch, 3);
        let step = model(&arch, 2).loss_and_gradient(
            &batch.blocks,
            &batch.input,
            &labels,
            1.0,
            Mode::Train { seed: 1 },
        );
        assert!(step.unwrap().gradient.iter().all(|slope| slope.is_finite()));
        // One edge of one relation: the other relations have none.
        let full = Graph::random(&schema(&arch), 9, 25, 7);
        let last = graph.in_edges.len() - 1;
        graph.in_edges[last] = full.in_edges[last].clone();
        check(&graph, &arch, &model(&arch, 2), ALL);
    }
}

#[test]
fn no_targets_give_no_loss_and_no_gradient() {
    for arch in architectures() {
        let graph = Graph::random(&schema(&arch), 9, 25, 7);
        let batch = Batch::of(&graph, &arch, 0, ALL);
        let (model, none) = (model(&arch, 2), labels(&arch, 0));
        let step = model
            .loss_and_gradient(&batch.blocks, &batch.input, &none, 1.0, Mode::Eval)
            .unwrap();
        assert_eq!(step.loss_sum, 0.0);
        assert_eq!(step.gradient, vec![0.0; model.flat().len()]);
    }
}

/// Makes a graph and widths large enough that kernels use several threads.
fn large(arch: &TypedArchitecture) -> (TypedArchitecture, Graph) {
    let mut arch = with_dropout(arch);
    arch.projection = 64;
    arch.hidden.iter_mut().for_each(|width| *width *= 8);
    let graph = Graph::random(&schema(&arch), 300, 2500, 3);
    (arch, graph)
}

fn step(arch: &TypedArchitecture, graph: &Graph, partitioning: Partitioning) -> LossAndGradient {
    let mut batch = Batch::of(graph, arch, 200, [4, 3, 2]);
    let block = |data| {
        let block = TypedBlock::new(&graph.schema, data).unwrap();
        block.with_partitioning(partitioning)
    };
    batch.blocks = batch.data.into_iter().map(block).collect();
    let labels = labels(arch, 200);
    let mode = Mode::Train { seed: 9 };
    let model = TypedModel::init(arch, 5).unwrap();
    model.prepare(&batch.blocks, &batch.input);
    model
        .loss_and_gradient(&batch.blocks, &batch.input, &labels, 4.0, mode)
        .unwrap()
}

#[test]
fn thread_count_and_partitioning_change_no_bit() {
    for arch in architectures() {
        let (arch, graph) = large(&arch);
        let run = |threads: usize, partitioning: Partitioning| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            let pool = pool.build().unwrap();
            pool.install(|| step(&arch, &graph, partitioning))
        };
        let one = run(1, Partitioning::EdgeBalanced);
        assert!(
            one.gradient.iter().all(|slope| slope.is_finite()),
            "{arch:?}"
        );
        for (threads, partitioning) in [(2, Partitioning::Off), (4, Partitioning::EdgeBalanced)] {
            let other = run(threads, partitioning);
            let what = format!("{threads} threads, {partitioning:?}, {arch:?}");
            assert_eq!(
                other.loss_sum.to_bits(),
                one.loss_sum.to_bits(),
                "{what}: loss"
            );
            assert_eq!(other.gradient, one.gradient, "{what}: gradient");
            assert_eq!(other.logits, one.logits, "{what}: logits");
            assert_eq!(other.buffers, one.buffers, "{what}: buffers");
        }
    }
}

#[test]
fn dropout_is_drawn_by_node_and_edge_and_not_by_position() {
    for arch in architectures() {
        let arch = TypedArchitecture {
            norm: Norm::None,
            ..with_dropout(&arch)
        };
        let graph = Graph::random(&schema(&arch), 9, 40, 7);
        let model = model(&arch, 3);
        let logits = |targets: usize, seed: u64| {
            let batch = Batch::of(&graph, &arch, targets, [3, 2, 2]);
            let mode = Mode::Train { seed };
            model.forward(&batch.blocks, &batch.input, mode).unwrap()
        };
        let (small, large) = (logits(3, 1), logits(8, 1));
        for v in 0..3 {
            for (a, b) in small.row(v).iter().zip(large.row(v)) {
                assert!(f64::from(a - b).abs() < TOLERANCE, "{arch:?}: {a} {b}");
            }
        }
        assert_ne!(
            logits(8, 1),
            logits(8, 2),
            "another seed draws another mask"
        );
    }
}

#[test]
fn layers_run_one_by_one_like_the_forward_pass() {
    let carries = |arch: &TypedArchitecture| arch.attention_residual > 0.0;
    for arch in architectures().into_iter().filter(|arch| !carries(arch)) {
        let graph = Graph::random(&schema(&arch), 9, 25, 4);
        let (batch, model) = (Batch::of(&graph, &arch, 6, ALL), model(&arch, 4));
        let projection = model.projection();
        let mut rows: Vec<Option<Dense>> = batch
            .input
            .iter()
            .enumerate()
            .map(|(t, input)| {
                let num_src = batch.blocks[0].num_src(t);
                Some(projection.run(t, num_src, input.clone(), &[]).unwrap())
            })
            .collect();
        for (layer, block) in (1..).zip(&batch.blocks) {
            rows = model.forward_layer(layer, block, &rows).unwrap();
        }
        let chained = model
            .head()
            .run(rows.swap_remove(arch.target()).unwrap())
            .unwrap();
        let whole = model
            .forward(&batch.blocks, &batch.input, Mode::Eval)
            .unwrap();
        assert_eq!(chained, whole, "{arch:?}");
    }
}
