//! Compares blocks with the neighbourhoods of their targets.

use schemas::{Fanout, HopFanouts};

use super::*;

use crate::random::{Graph, Shape};

fn options(fanouts: &[Fanout], pruning: bool) -> BlockOptions {
    BlockOptions {
        node_keys: true,
        fanouts: HopFanouts::untyped(fanouts),
        sampling: Sampling::Uniform,
        pruning,
        partitioning: Partitioning::EdgeBalanced,
        edges: vec![EdgeColumns::default()],
        source_degrees: true,
    }
}

const UNEQUAL: [[Fanout; 2]; 3] = [
    [Fanout::Count(2), Fanout::Count(5)],
    [Fanout::Count(5), Fanout::Count(2)],
    [Fanout::All, Fanout::All],
];

/// Returns the in-edges of a block's dst row, as hashes of their sources' ids, in order.
fn row(vectorised: &Vectorised, shard: &GraphShard, layer: usize, dst: usize) -> Vec<u64> {
    let csr = vectorised.blocks[layer - 1].csr();
    let node = |src: &u32| vectorised.nodes[*src as usize].node as usize;
    csr.col[csr.row(dst)]
        .iter()
        .map(|src| shard.nodes[0].ids.hash(node(src)))
        .collect()
}

#[test]
fn every_layer_reads_the_first_in_edges_of_its_fanout() {
    let graph = Graph::new(Shape::default(), 1);
    for fanouts in UNEQUAL {
        let targets: Vec<u32> = (5..25).collect();
        let shard = graph.shard(&targets, &fanouts);
        for pruning in [true, false] {
            let own = [3, 9, 4];
            let pieces = [Piece {
                shard: &shard,
                targets: &own,
            }];
            let vectorised = blocks_of(&pieces, &options(&fanouts, pruning)).unwrap();
            for layer in [1, 2] {
                let block = &vectorised.blocks[layer - 1];
                for dst in 0..block.num_active() {
                    let node = vectorised.nodes[dst].node as usize;
                    let raw = graph
                        .ids
                        .iter()
                        .position(|id| schemas::hash_int(*id) == shard.nodes[0].ids.hash(node));
                    let limit = use_at_layer(&fanouts, 0, layer);
                    let kept = graph.in_edges[raw.unwrap()].iter().take(limit);
                    let wanted: Vec<u64> = kept
                        .map(|edge| schemas::hash_int(graph.ids[edge.0 as usize]))
                        .collect();
                    assert_eq!(
                        row(&vectorised, &shard, layer, dst),
                        wanted,
                        "layer {layer}"
                    );
                }
            }
            let first: Vec<u32> = vectorised.nodes[..3]
                .iter()
                .map(|place| place.node)
                .collect();
            assert_eq!(first, own, "the targets come first, in their order");
            let last = &vectorised.blocks[1];
            assert_eq!(last.num_active(), 3);
            assert_eq!(vectorised.input.rows(), vectorised.blocks[0].num_src());
            if pruning {
                assert_eq!(last.num_dst(), 3);
                assert_eq!(last.num_src(), vectorised.blocks[0].num_dst());
            } else {
                assert_eq!(last.num_dst(), vectorised.input.rows());
            }
        }
    }
}

#[test]
fn pieces_stand_side_by_side() {
    let graph = Graph::new(Shape::default(), 2);
    let fanouts = UNEQUAL[0];
    let shards = graph.parts(3, &fanouts);
    let pieces = [
        Piece {
            shard: &shards[2],
            targets: &[1, 0],
        },
        Piece {
            shard: &shards[0],
            targets: &[],
        },
        Piece {
            shard: &shards[1],
            targets: &[7],
        },
    ];
    let whole = blocks_of(&pieces, &options(&fanouts, true)).unwrap();
    let alone = pieces.map(|piece| blocks_of(&[piece], &options(&fanouts, true)).unwrap());
    for layer in 0..2 {
        let sum = |count: fn(&Block) -> usize| -> usize {
            alone.iter().map(|v| count(&v.blocks[layer])).sum()
        };
        assert_eq!(whole.blocks[layer].num_src(), sum(Block::num_src));
        assert_eq!(whole.blocks[layer].num_edges(), sum(Block::num_edges));
    }
}

#[test]
fn no_targets_give_empty_blocks() {
    let graph = Graph::new(Shape::default(), 3);
    let shard = graph.shard(&[1, 2], &UNEQUAL[0]);
    for pieces in [
        &[][..],
        &[Piece {
            shard: &shard,
            targets: &[],
        }],
    ] {
        let vectorised = blocks_of(pieces, &options(&UNEQUAL[0], true)).unwrap();
        assert_eq!(
            (vectorised.blocks[0].num_src(), vectorised.input.rows()),
            (0, 0)
        );
    }
}

#[test]
fn weights_that_are_not_used_leave_the_blocks() {
    let graph = Graph::new(
        Shape {
            weights: true,
            edge_dim: Some(2),
            ..Shape::default()
        },
        4,
    );
    let shard = graph.shard(&[8, 9, 10, 11], &UNEQUAL[2]);
    let pieces = [Piece {
        shard: &shard,
        targets: &[0, 1, 2, 3],
    }];
    let used = BlockOptions {
        edges: vec![EdgeColumns {
            weight: true,
            dim: Some(2),
        }],
        ..options(&UNEQUAL[2], true)
    };
    let with = blocks_of(&pieces, &used).unwrap();
    let block = &with.blocks[1];
    let offset = &block.csr().offset;
    let kept: Vec<f32> = graph.in_edges[8].iter().map(|edge| edge.1).collect();
    assert_eq!(&block.edge_weight().unwrap()[..offset[1] as usize], kept);
    assert_eq!(block.edge_feature().unwrap().rows, block.num_edges());
    let sum: f32 = kept.iter().sum();
    assert_eq!(block.in_weight().unwrap()[0], sum);
    let without = blocks_of(&pieces, &options(&UNEQUAL[2], true)).unwrap();
    let plain = &without.blocks[1];
    assert!(plain.edge_weight().is_none() && plain.in_weight().is_none());
    assert!(plain.edge_feature().is_none());
    assert!(plain.self_weight().is_none());
    assert_eq!(plain.self_loops(), block.self_loops());
}

#[test]
fn degrees_of_nodes_that_no_layer_computes_are_0_if_they_are_not_read() {
    let fanouts = UNEQUAL[2];
    let graph = Graph::new(Shape::default(), 4);
    let shard = graph.shard(&[8, 9], &fanouts);
    let pieces = [Piece {
        shard: &shard,
        targets: &[0, 1],
    }];
    let blocks = |source_degrees| {
        let options = BlockOptions {
            source_degrees,
            ..options(&fanouts, true)
        };
        blocks_of(&pieces, &options).unwrap().blocks
    };
    let [first, last] = &blocks(false)[..] else {
        panic!("two layers")
    };
    let [all_of_first, all_of_last] = &blocks(true)[..] else {
        panic!("two layers")
    };
    assert_eq!(last.in_degree(), all_of_last.in_degree());
    let (computed, outer) = first.in_degree().split_at(first.num_dst());
    assert_eq!(computed, &all_of_first.in_degree()[..first.num_dst()]);
    assert!(!outer.is_empty() && outer.iter().all(|&degree| degree == 0));
    let real = &all_of_first.in_degree()[first.num_dst()..];
    assert!(real.iter().any(|&degree| degree > 0));
}
