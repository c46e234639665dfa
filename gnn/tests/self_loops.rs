//! Compares GCN's normalised adjacency with figures of `PyG`'s `gcn_norm`, computed by hand.
#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test")]

use gnn::{
    Activation, Aggregator, Architecture, Block, BlockData, Dense, Input, LayerKind, Mode, Model,
    Norm, Task,
};

const NUM_NODES: usize = 3;
/// The figures are written with seven digits.
const TOLERANCE: f32 = 1e-6;

/// Makes one block of the edges (src, dst, weight) of a graph.
fn block(edges: &[(usize, usize, f32)]) -> Block {
    let mut data = BlockData {
        num_src: NUM_NODES,
        num_dst: NUM_NODES,
        num_active: NUM_NODES,
        in_offset: vec![0],
        node_key: vec![0; NUM_NODES],
        ..BlockData::default()
    };
    let (mut weight, mut in_weight) = (Vec::new(), Vec::new());
    let (mut self_loops, mut self_weight) = (Vec::new(), Vec::new());
    for v in 0..NUM_NODES {
        let in_edges: Vec<_> = edges.iter().filter(|edge| edge.1 == v).collect();
        let loops: Vec<_> = in_edges.iter().filter(|edge| edge.0 == v).collect();
        data.in_src
            .extend(in_edges.iter().map(|e| u32::try_from(e.0).unwrap()));
        data.in_offset
            .push(u32::try_from(data.in_src.len()).unwrap());
        data.in_degree.push(u32::try_from(in_edges.len()).unwrap());
        weight.extend(in_edges.iter().map(|edge| edge.2));
        in_weight.push(in_edges.iter().map(|edge| edge.2).sum());
        self_loops.push(u32::try_from(loops.len()).unwrap());
        self_weight.push(loops.iter().map(|edge| edge.2).sum());
    }
    data.edge_weight = Some(weight);
    data.in_weight = Some(in_weight);
    data.self_loops = Some(self_loops);
    data.self_weight = Some(self_weight);
    Block::new(data).unwrap()
}

/// Runs one GCN layer with identity weight and bias 0 on one-hot features: its output is the
/// normalised adjacency, one row per dst node.
fn check(
    edges: &[(usize, usize, f32)],
    edge_weight: bool,
    expected: [[f32; NUM_NODES]; NUM_NODES],
) {
    let arch = Architecture {
        layer: LayerKind::Gcn,
        aggregator: Aggregator::Mean,
        in_dim: NUM_NODES,
        embedding_dim: None,
        edge_dim: None,
        edge_weight,
        hidden: vec![],
        num_layers: 1,
        out_dim: NUM_NODES,
        heads: 1,
        out_heads: 1,
        dropout: 0.0,
        input_dropout: 0.0,
        attention_dropout: 0.0,
        norm: Norm::None,
        residual: false,
        activation: Activation::Relu,
        task: Task::Regression,
    };
    let mut identity = Dense::zeros(NUM_NODES, NUM_NODES);
    (0..NUM_NODES).for_each(|i| identity.values[i * NUM_NODES + i] = 1.0);
    let mut model = Model::init(&arch, 1).unwrap();
    let mut flat = Vec::new();
    for info in model.parameters() {
        if info.name.ends_with("bias") {
            flat.resize(flat.len() + info.len(), 0.0);
        } else {
            flat.extend_from_slice(&identity.values);
        }
    }
    model.set_flat(&flat);
    let input = Input::Dense(identity);
    let got = model.forward(&[block(edges)], &input, Mode::Eval).unwrap();
    for (v, row) in expected.iter().enumerate() {
        for (x, y) in got.row(v).iter().zip(row) {
            assert!(
                (x - y).abs() <= TOLERANCE,
                "edge_weight {edge_weight}, node {v}: {:?} is not {row:?}",
                got.row(v)
            );
        }
    }
}

/// Node 0 has two self-loops, node 1 none, node 2 one of weight 0.
const PARALLEL: [(usize, usize, f32); 7] = [
    (1, 0, 2.0),
    (0, 0, 0.5),
    (0, 0, 1.5),
    (2, 1, 3.0),
    (0, 1, 1.0),
    (2, 2, 0.0),
    (0, 2, 4.0),
];

#[test]
fn without_weights_a_node_has_one_self_loop_however_many_it_had() {
    // `add_remaining_self_loops` leaves one self-loop per node: degrees 2, 3 and 2.
    let expected = [
        [0.5, 0.408_248_3, 0.0], // 1/2, 1/sqrt(3 * 2)
        [0.408_248_3, 0.333_333_3, 0.408_248_3],
        [0.5, 0.0, 0.5], // 1/sqrt(2 * 2), 1/2
    ];
    check(&PARALLEL, false, expected);
}

#[test]
fn weighted_self_loops_are_summed_and_one_of_weight_zero_stays() {
    // Self-loops have weights 0.5 + 1.5, 1 (added) and 0: degrees 4, 5 and 4.
    let expected = [
        [0.5, 0.447_213_6, 0.0],         // 2/4, 2/sqrt(5 * 4)
        [0.223_606_8, 0.2, 0.670_820_4], // 1/sqrt(4 * 5), 1/5, 3/sqrt(4 * 5)
        [1.0, 0.0, 0.0],                 // 4/sqrt(4 * 4), 0/4
    ];
    check(&PARALLEL, true, expected);
}

#[test]
fn the_reverse_of_a_self_loop_counts_as_a_parallel_one() {
    // Edges 0-1 of weight 2 and 0-0 of weight 1, with the reverse of each. PyG's to_undirected
    // merges the two directions of the loop and sums their weights.
    let edges = [(1, 0, 2.0), (0, 1, 2.0), (0, 0, 1.0), (0, 0, 1.0)];
    let alone = [0.0, 0.0, 1.0];
    // Degrees 2 and 2.
    check(&edges, false, [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], alone]);
    // Degrees 2 + 2 and 2 + 1.
    let expected = [
        [0.5, 0.577_350_3, 0.0], // 2/4, 2/sqrt(3 * 4)
        [0.577_350_3, 0.333_333_3, 0.0],
        alone,
    ];
    check(&edges, true, expected);
}
