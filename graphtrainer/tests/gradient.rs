//! Pruning and edge partitioning change neither loss nor gradient, for every layer.

#![expect(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

mod random;

use gnn::kernel::Partitioning;
use gnn::{
    Activation, Aggregator, Architecture, Labels, LayerKind, LossAndGradient, Mode, Model, Norm,
    Task,
};
use graphtrainer::batch::{BlockOptions, EdgeColumns, Piece, blocks_of};
use random::{Graph, Shape};
use schemas::{Fanout, HopFanouts, Sampling};

/// Pruning leaves out rows, but keeps the order of sums over needed rows. Only the splits of matrix
/// products differ.
const TOLERANCE: f64 = 1e-6;

/// Batch norm divides by deviations of a few rows, which enlarges rounding.
const BATCH_NORM_TOLERANCE: f64 = 1e-5;

fn architecture(layer: LayerKind, graph: &Graph, hops: usize) -> Architecture {
    let heads = if layer.is_attention() { 2 } else { 1 };
    let takes = layer.is_attention() || layer == LayerKind::Gin;
    Architecture {
        layer,
        aggregator: Aggregator::Mean,
        in_dim: graph.shape.dim,
        embedding_dim: None,
        edge_dim: graph.shape.edge_dim.filter(|_| takes),
        edge_weight: graph.shape.weights,
        hidden: vec![8; hops - 1],
        num_layers: hops,
        out_dim: graph.shape.num_classes as usize,
        heads,
        out_heads: heads,
        dropout: 0.5,
        input_dropout: 0.2,
        attention_dropout: if layer.is_attention() { 0.3 } else { 0.0 },
        norm: Norm::None,
        residual: false,
        activation: Activation::Elu,
        task: Task::Classes,
    }
}

fn compute(arch: &Architecture, graph: &Graph, options: &BlockOptions) -> LossAndGradient {
    let shards = graph.parts(2, &options.fanouts);
    let pieces = [
        Piece {
            shard: &shards[0],
            targets: &[4, 17, 9],
        },
        Piece {
            shard: &shards[1],
            targets: &[0, 2],
        },
    ];
    let vectorised = blocks_of(&pieces, options).unwrap();
    let mut labels = pieces[0].shard.target_nodes().labels.empty_like();
    for piece in pieces {
        labels.extend_gather(&piece.shard.target_nodes().labels, piece.targets);
    }
    let schemas::Labels::Class(classes) = labels else {
        panic!("a graph of classes")
    };
    let model = Model::init(arch, 5).unwrap();
    let mode = Mode::Train { seed: 11 };
    let (blocks, input) = (&vectorised.blocks, &vectorised.input);
    model
        .loss_and_gradient(blocks, input, &Labels::Classes(classes), 5.0, mode)
        .unwrap()
}

fn check(arch: &Architecture, graph: &Graph, fanouts: &[Fanout], sampling: Sampling) {
    let pruned = BlockOptions {
        node_keys: true,
        fanouts: HopFanouts::untyped(fanouts),
        sampling,
        pruning: true,
        partitioning: Partitioning::EdgeBalanced,
        edges: vec![EdgeColumns {
            weight: arch.edge_weight,
            dim: arch.edge_dim,
        }],
        source_degrees: arch.layer.reads_source_degrees(),
    };
    let wanted = compute(arch, graph, &pruned);
    let all_degrees = BlockOptions {
        source_degrees: true,
        ..pruned.clone()
    };
    let with_degrees = compute(arch, graph, &all_degrees);
    assert_eq!(wanted.gradient, with_degrees.gradient, "{arch:?}");
    let base = compute(
        arch,
        graph,
        &BlockOptions {
            pruning: false,
            ..pruned.clone()
        },
    );
    let unsplit = BlockOptions {
        partitioning: Partitioning::Off,
        ..pruned
    };
    let unsplit = compute(arch, graph, &unsplit);
    assert_eq!(
        wanted.loss_sum.to_bits(),
        unsplit.loss_sum.to_bits(),
        "{arch:?}"
    );
    assert_eq!(
        wanted.gradient, unsplit.gradient,
        "partitioning changes bits of {arch:?}"
    );
    let tolerance = if arch.norm == Norm::Batch {
        BATCH_NORM_TOLERANCE
    } else {
        TOLERANCE
    };
    let scale = wanted
        .gradient
        .iter()
        .map(|g| f64::from(g.abs()))
        .fold(1e-3, f64::max);
    assert!(scale > 1e-3, "a gradient of nothing shows nothing");
    let loss_error = (wanted.loss_sum - base.loss_sum).abs() / wanted.loss_sum;
    assert!(
        loss_error < tolerance,
        "{arch:?}: loss {} {}",
        wanted.loss_sum,
        base.loss_sum
    );
    for (a, b) in wanted.gradient.iter().zip(&base.gradient) {
        let error = f64::from((a - b).abs()) / scale;
        assert!(
            error < tolerance,
            "{arch:?} {fanouts:?}: gradient {a} pruned, {b} not"
        );
    }
}

const KINDS: [LayerKind; 5] = [
    LayerKind::Gcn,
    LayerKind::Sage,
    LayerKind::Gat,
    LayerKind::GatV2,
    LayerKind::Gin,
];

/// Every kind of layer; GraphSAGE with both aggregators.
fn architectures(graph: &Graph, hops: usize) -> Vec<Architecture> {
    let mut all: Vec<_> = KINDS.map(|kind| architecture(kind, graph, hops)).into();
    all.push(Architecture {
        aggregator: Aggregator::Max,
        ..architecture(LayerKind::Sage, graph, hops)
    });
    all
}

#[test]
fn pruning_and_partitioning_are_free_for_every_layer() {
    let shape = Shape {
        weights: true,
        edge_dim: Some(3),
        num_edges: 400,
        strings: true,
        hub_edges: 100,
        ..Shape::default()
    };
    let graph = Graph::new(shape, 1);
    for arch in architectures(&graph, 2) {
        for fanouts in [
            [Fanout::Count(3), Fanout::Count(6)],
            [Fanout::All, Fanout::Count(2)],
        ] {
            check(&arch, &graph, &fanouts, Sampling::Uniform);
            check(&arch, &graph, &fanouts, Sampling::Weighted);
        }
    }
    for arch in architectures(&graph, 3) {
        check(&arch, &graph, &[Fanout::All; 3], Sampling::Top);
    }
}

#[test]
fn options_of_a_model_keep_pruning_free() {
    let graph = Graph::new(
        Shape {
            sparse: true,
            ..Shape::default()
        },
        2,
    );
    for kind in KINDS {
        let plain = architecture(kind, &graph, 2);
        let head = Architecture {
            hidden: vec![8, 4],
            out_heads: 1,
            ..plain.clone()
        };
        let fanouts = [Fanout::Count(4), Fanout::Count(2)];
        for norm in [Norm::Batch, Norm::Layer] {
            let normed = Architecture {
                norm,
                residual: true,
                ..head.clone()
            };
            check(&normed, &graph, &fanouts, Sampling::Uniform);
        }
        check(&head, &graph, &fanouts, Sampling::Uniform);
    }
}
