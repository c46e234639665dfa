//! Batches of typed graphs: pruning, partitioning and batching change neither logits nor gradients.

#![expect(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

mod random;

use std::sync::Arc;

use gnn::kernel::Partitioning;
use gnn::typed::{
    RelationAggregator, RelationData, RelationEnds, RelationInput, Schema, TypeInput, TypeNodes,
    TypedArchitecture, TypedBlock, TypedBlockData, TypedKind, TypedModel,
};
use gnn::{
    Activation, Aggregator, Dense, Labels, LayerKind, LossAndGradient, Mode, Norm, ReadyInput, Task,
};
use graphtrainer::batch::{BlockOptions, EdgeColumns, Piece, TypedVectorised, typed_blocks_of};
use graphtrainer::convert;
use random::typed::{NUM_CLASSES, TypedGraph, TypedShape, shown};
use schemas::{HopFanouts, Sampling, use_at_layer};

/// Pruning leaves out rows, but keeps the order of sums over needed rows. Only the splits of matrix
/// products differ.
const PRUNING_TOLERANCE: f64 = 1e-6;

/// Batch norm divides by deviations of a few rows, which enlarges rounding.
const BATCH_NORM_TOLERANCE: f64 = 1e-5;

/// Sums of a few dozen terms of order 1 in another order.
const TOLERANCE: f32 = 1e-5;

fn schema(graph: &TypedGraph) -> Arc<Schema> {
    let relations = graph.meta.relations.iter().map(|of| RelationEnds {
        name: of.name.clone(),
        from: of.from,
        to: of.to,
    });
    Arc::new(Schema {
        types: graph.meta.types.iter().map(|of| of.name.clone()).collect(),
        relations: relations.collect(),
    })
}

fn architecture(layer: TypedKind, graph: &TypedGraph, hops: usize) -> TypedArchitecture {
    let types = &graph.meta.types;
    let heads = if layer.is_attention() { 2 } else { 1 };
    let relations = graph.meta.relations.iter().map(|of| RelationInput {
        name: of.name.clone(),
        from: types[of.from].name.clone(),
        to: types[of.to].name.clone(),
        edge_weight: of.edge_weight && layer.takes_edge_weights(),
        edge_dim: of.edge_feature_dim.filter(|_| layer.takes_edge_features()),
    });
    let is_hgn = layer == TypedKind::SimpleHgn;
    TypedArchitecture {
        layer,
        relation_aggregator: RelationAggregator::Sum,
        aggregator: Aggregator::Mean,
        types: types
            .iter()
            .map(|of| TypeInput {
                name: of.name.clone(),
                in_dim: Some(of.features.dim()).filter(|&dim| dim > 0),
                embedding_dim: None,
            })
            .collect(),
        relations: relations.collect(),
        target_type: graph.meta.target().name.clone(),
        projection: 8,
        hidden: vec![8; hops],
        num_layers: hops,
        out_dim: NUM_CLASSES as usize,
        heads,
        out_heads: 1,
        num_bases: None,
        relation_dim: is_hgn.then_some(4),
        attention_residual: if is_hgn { 0.05 } else { 0.0 },
        dropout: 0.4,
        input_dropout: 0.2,
        attention_dropout: if layer.is_attention() { 0.3 } else { 0.0 },
        norm: Norm::None,
        residual: false,
        normalize_output: is_hgn,
        activation: Activation::Elu,
        task: Task::Classes,
        readout: None,
    }
}

/// Returns graphs and architectures: every kind that reads features, with its options.
fn cases(seed: u64) -> Vec<(TypedGraph, TypedArchitecture)> {
    let mut cases = Vec::new();
    let reads_features = |kind: &TypedKind| *kind != TypedKind::Conv(LayerKind::LightGcn);
    for (at, layer) in (0..).zip(TypedKind::all().filter(reads_features)) {
        let shape = TypedShape {
            num_types: 2 + (at + usize::try_from(seed).unwrap()) % 4,
            num_relations: 1 + (3 * at + usize::try_from(seed).unwrap()) % 8,
            within: layer == TypedKind::Conv(LayerKind::Gcn),
            ..TypedShape::default()
        };
        let graph = TypedGraph::new(shape, seed + at as u64);
        let plain = architecture(layer, &graph, 2);
        let more = TypedArchitecture {
            residual: layer != TypedKind::Hgt,
            norm: if at % 2 == 0 {
                Norm::Layer
            } else {
                Norm::Batch
            },
            num_bases: (layer == TypedKind::Rgcn).then_some(2),
            relation_aggregator: match (layer, at % 2) {
                (TypedKind::Conv(_), 0) => RelationAggregator::Mean,
                (TypedKind::Conv(_), _) => RelationAggregator::Max,
                _ => RelationAggregator::Sum,
            },
            ..plain.clone()
        };
        let without_head = TypedArchitecture {
            hidden: vec![8],
            ..plain.clone()
        };
        cases.extend([plain, more, without_head].map(|arch| (graph.clone(), arch)));
    }
    cases
}

fn options(arch: &TypedArchitecture, fanouts: &[HopFanouts]) -> BlockOptions {
    let edges = arch.relations.iter().map(|of| EdgeColumns {
        weight: of.edge_weight,
        dim: of.edge_dim,
    });
    BlockOptions {
        node_keys: true,
        fanouts: fanouts.to_vec(),
        sampling: Sampling::Uniform,
        pruning: true,
        partitioning: Partitioning::EdgeBalanced,
        edges: edges.collect(),
        source_degrees: arch.layer.reads_source_degrees(),
    }
}

/// The targets of a batch of two pieces, by their positions in the graph.
const TARGETS: [u32; 5] = [14, 27, 19, 4, 0];

/// Makes the batch of the targets from two shards.
fn batch(graph: &TypedGraph, options: &BlockOptions) -> (TypedVectorised, Vec<u32>) {
    let own = [&TARGETS[..3], &TARGETS[3..]];
    let others = [[30, 11], [2, 12]];
    let shards = [0, 1].map(|at| {
        let all: Vec<u32> = own[at].iter().chain(&others[at]).copied().collect();
        graph.shard(&all, &options.fanouts)
    });
    let positions = [0, 1].map(|at| {
        let ids = &graph.ids[graph.meta.target_type];
        let nodes = shards[at].target_nodes();
        let position = |target: &u32| {
            let id = shown(&graph.meta, graph.meta.target_type, ids[*target as usize]);
            let mut all = 0..u32::try_from(nodes.len()).unwrap();
            all.find(|&node| nodes.ids.display(node as usize) == id)
                .unwrap()
        };
        own[at].iter().map(position).collect::<Vec<u32>>()
    });
    let pieces = [0, 1].map(|at| Piece {
        shard: &shards[at],
        targets: &positions[at],
    });
    let classes = TARGETS.map(|target| graph.classes[target as usize]);
    let vectorised = typed_blocks_of(&schema(graph), &pieces, options).unwrap();
    (vectorised, classes.to_vec())
}

fn ready(input: &[Option<gnn::Input>]) -> Vec<Option<ReadyInput>> {
    let ready = |of_type: &gnn::Input| ReadyInput::new(of_type.clone()).unwrap();
    input
        .iter()
        .map(|input| input.as_ref().map(ready))
        .collect()
}

fn compute(
    (graph, arch): (&TypedGraph, &TypedArchitecture),
    options: &BlockOptions,
) -> LossAndGradient {
    let (vectorised, classes) = batch(graph, options);
    let model = TypedModel::init(arch, 5).unwrap();
    let labels = Labels::Classes(classes);
    let mode = Mode::Train { seed: 11 };
    let input = ready(&vectorised.input);
    model.prepare(&vectorised.blocks, &input);
    model
        .loss_and_gradient(&vectorised.blocks, &input, &labels, 5.0, mode)
        .unwrap()
}

fn check_pruning(graph: &TypedGraph, arch: &TypedArchitecture, fanouts: &[HopFanouts]) {
    let case = (graph, arch);
    let pruned = options(arch, fanouts);
    let wanted = compute(case, &pruned);
    let all_degrees = BlockOptions {
        source_degrees: true,
        ..pruned.clone()
    };
    let with_degrees = compute(case, &all_degrees);
    assert_eq!(
        wanted.gradient, with_degrees.gradient,
        "degrees of {arch:?}"
    );
    let unsplit = BlockOptions {
        partitioning: Partitioning::Off,
        ..pruned.clone()
    };
    let unsplit = compute(case, &unsplit);
    assert_eq!(wanted.loss_sum.to_bits(), unsplit.loss_sum.to_bits());
    assert_eq!(
        wanted.gradient, unsplit.gradient,
        "partitioning of {arch:?}"
    );
    let unpruned = BlockOptions {
        pruning: false,
        ..pruned
    };
    let base = compute(case, &unpruned);
    let tolerance = match arch.norm {
        Norm::Batch => BATCH_NORM_TOLERANCE,
        _ => PRUNING_TOLERANCE,
    };
    let sizes = wanted.gradient.iter().map(|g| f64::from(g.abs()));
    let scale = sizes.fold(1e-3, f64::max);
    assert!(scale > 1e-3, "a gradient of nothing shows nothing");
    let loss_error = (wanted.loss_sum - base.loss_sum).abs() / wanted.loss_sum;
    assert!(loss_error < tolerance, "{arch:?}: loss {loss_error}");
    for (at, (a, b)) in wanted.gradient.iter().zip(&base.gradient).enumerate() {
        let error = f64::from((a - b).abs()) / scale;
        assert!(
            error < tolerance,
            "{arch:?} {fanouts:?}: gradient {at} is {a} pruned, {b} not"
        );
    }
}

#[test]
fn pruning_and_partitioning_are_free_for_every_typed_layer() {
    for seed in [1, 2] {
        for (graph, arch) in cases(seed) {
            check_pruning(&graph, &arch, &graph.fanouts(2, seed));
            check_pruning(&graph, &arch, &graph.all(2));
        }
    }
}

/// Returns a layer of the whole graph as one block, by plain loops: every node keeps its first
/// in-edges of each relation.
fn whole_layer(graph: &TypedGraph, arch: &TypedArchitecture, keep: &[usize]) -> TypedBlockData {
    let types = graph.ids.iter().map(|ids| TypeNodes {
        num_src: ids.len(),
        num_dst: ids.len(),
        num_active: ids.len(),
        node_key: vec![0; ids.len()],
    });
    let mut relations = Vec::new();
    for (at, all) in graph.in_edges.iter().enumerate() {
        let (meta, columns) = (&graph.meta.relations[at], &arch.relations[at]);
        let mut of = RelationData {
            in_offset: vec![0],
            ..RelationData::default()
        };
        let (mut weights, mut features) = (Vec::new(), Vec::new());
        let (mut sums, mut loops, mut loop_sums) = (Vec::new(), Vec::new(), Vec::new());
        for (node, edges) in (0..).zip(all) {
            for (src, weight, values) in edges.iter().take(keep[at]) {
                of.in_src.push(*src);
                weights.push(*weight);
                features.extend_from_slice(values);
            }
            of.in_offset.push(u32::try_from(of.in_src.len()).unwrap());
            of.in_degree.push(u32::try_from(edges.len()).unwrap());
            let own = || {
                edges
                    .iter()
                    .filter(|edge| meta.self_loops && edge.0 == node)
            };
            sums.push(edges.iter().map(|edge| edge.1).sum::<f32>());
            loops.push(u32::try_from(own().count()).unwrap());
            loop_sums.push(own().map(|edge| edge.1).sum::<f32>());
        }
        of.edge_feature = columns.edge_dim.map(|cols| Dense {
            rows: of.in_src.len(),
            cols,
            values: features,
        });
        of.self_loops = meta.self_loops.then_some(loops);
        if columns.edge_weight {
            (of.edge_weight, of.in_weight) = (Some(weights), Some(sums));
            of.self_weight = meta.self_loops.then_some(loop_sums);
        }
        relations.push(of);
    }
    TypedBlockData {
        types: types.collect(),
        relations,
    }
}

#[test]
fn a_batch_computes_the_logits_of_the_whole_graph() {
    for seed in [3, 4] {
        for (graph, arch) in cases(seed) {
            for fanouts in [graph.all(2), graph.fanouts(2, seed)] {
                let model = TypedModel::init(&arch, 9).unwrap();
                let layers = (1..=2).map(|layer| {
                    let relations = 0..graph.in_edges.len();
                    let keep: Vec<usize> = relations
                        .map(|relation| use_at_layer(&fanouts, relation, layer))
                        .collect();
                    TypedBlock::new(&schema(&graph), whole_layer(&graph, &arch, &keep)).unwrap()
                });
                let layers: Vec<TypedBlock> = layers.collect();
                let features = graph.features.iter().zip(&graph.ids);
                let input: Vec<_> = features
                    .map(|(features, ids)| {
                        let input = convert::input(features.clone(), ids.len());
                        (input.cols() > 0).then_some(input)
                    })
                    .collect();
                let whole = model.forward(&layers, &ready(&input), Mode::Eval).unwrap();
                let (own, _) = batch(&graph, &options(&arch, &fanouts));
                let own_input = ready(&own.input);
                let logits = model.forward(&own.blocks, &own_input, Mode::Eval).unwrap();
                for (row, &target) in TARGETS.iter().enumerate() {
                    let (got, wanted) = (logits.row(row), whole.row(target as usize));
                    let scale = wanted.iter().fold(1.0_f32, |most, x| most.max(x.abs()));
                    for (a, b) in got.iter().zip(wanted) {
                        assert!(
                            (a - b).abs() <= TOLERANCE * scale,
                            "{arch:?} {fanouts:?}: target {target} has {got:?}, not {wanted:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_batch_without_targets_has_empty_blocks() {
    let graph = TypedGraph::new(TypedShape::default(), 1);
    let arch = architecture(TypedKind::Hgt, &graph, 2);
    let options = options(&arch, &graph.all(2));
    let shard = graph.shard(&[1, 2], &options.fanouts);
    let piece = Piece {
        shard: &shard,
        targets: &[],
    };
    for pieces in [&[][..], &[piece]] {
        let own = typed_blocks_of(&schema(&graph), pieces, &options).unwrap();
        let block = &own.blocks[0];
        assert_eq!((0..3).map(|at| block.num_src(at)).sum::<usize>(), 0);
        assert_eq!(block.num_edges(), 0);
        assert!(own.nodes.iter().all(Vec::is_empty));
    }
}
