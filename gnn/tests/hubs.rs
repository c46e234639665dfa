//! Compares in-edges aggregated in parts, as inference does at hubs, with the layer's kernel.
#![cfg(test)]

mod support;

use std::sync::Arc;

use gnn::kernel::round_all_to_bf16;
use gnn::{
    Architecture, Block, Dense, Input, LayerSlice, Model, NodeColumns, Projected, RangeData,
    ReadyInput, RowFormat, RowValues, SharedRows, SomeInEdges, SrcRows,
};
use support::{Random, architectures};

/// The hub; its in-edges come from all other nodes.
const HUB: usize = 7;
const EDGE_DIM: usize = 2;
/// Error of f32 sums in another order.
const TOLERANCE: f32 = 1e-5;

fn range(edges: &SomeInEdges) -> RangeData {
    RangeData {
        first: HUB,
        in_offset: vec![0, u32::try_from(edges.src.len()).unwrap()],
        in_src: edges.src.clone(),
        edge_weight: edges.weight.clone(),
        edge_feature: edges.feature.clone(),
        ..RangeData::default()
    }
}

/// In-edges of the hub from some of the other nodes.
fn pick(all: &SomeInEdges, from: std::ops::Range<usize>) -> SomeInEdges {
    let feature = all.feature.as_ref().map(|all| Dense {
        rows: from.len(),
        cols: EDGE_DIM,
        values: all.values[from.start * EDGE_DIM..from.end * EDGE_DIM].to_vec(),
    });
    SomeInEdges {
        src: all.src[from.clone()].to_vec(),
        weight: all.weight.as_ref().map(|all| all[from].to_vec()),
        feature,
    }
}

fn mean(feature: &Dense) -> Dense {
    let mean = |col| {
        (0..feature.rows)
            .map(|row| feature.row(row)[col])
            .sum::<f32>()
            / 7.0
    };
    Dense {
        rows: 1,
        cols: EDGE_DIM,
        values: (0..EDGE_DIM).map(mean).collect(),
    }
}

/// Returns rows as inference keeps them.
fn shared(rows: &Dense, format: RowFormat) -> SharedRows {
    let bytes: Vec<u8> = match format {
        RowFormat::F32 => bytemuck::cast_slice(&rows.values).to_vec(),
        RowFormat::Bf16 => bytemuck::cast_slice(&round_all_to_bf16(&rows.values)).to_vec(),
    };
    SharedRows::new(bytes.into(), rows.cols, format).unwrap()
}

/// Computes the hub's row from parts of its in-edges.
fn in_parts(
    slice: &LayerSlice<'_>,
    (src, own, format): (&Projected<Dense>, &ReadyInput, RowFormat),
    nodes: &Arc<NodeColumns>,
    edges: &SomeInEdges,
) -> Dense {
    let aggregation = slice.aggregation().unwrap();
    let scores = src.scores.as_ref();
    let query = slice.query(scores.map(|all| all.row(HUB)), Some(own.clone()));
    let query = query.unwrap();
    assert_eq!(query.len(), aggregation.query_dim());
    let of_src = shared(&src.rows, format);
    let rows = SrcRows {
        rows: of_src.values(),
        scores: scores.map(|all| RowValues::F32(&all.values)),
        nodes,
    };
    let mean = edges.feature.as_ref().map(mean);
    let mean = mean.filter(|_| aggregation.adds_loop());
    let own_state = aggregation.own_state(7, mean, rows, &query);
    let parts = [0..2, 2..3, 3..7].map(|from| aggregation.state(&pick(edges, from), rows, &query));
    let states: Vec<&[f32]> = own_state
        .iter()
        .chain(&parts)
        .map(|state| &state[..])
        .collect();
    assert!(
        states
            .iter()
            .all(|state| state.len() == aggregation.state_dim())
    );
    let merged = aggregation.merge(7, &states, nodes);
    let block = Block::of_range(range(&pick(edges, 0..0)), nodes).unwrap();
    slice
        .run_aggregated(&block, &ready(src, format), Some(own.clone()), merged)
        .unwrap()
}

fn ready(src: &Projected<Dense>, format: RowFormat) -> Projected<ReadyInput> {
    let ready = |dense: &Dense| ReadyInput::new(Input::Dense(dense.clone())).unwrap();
    Projected {
        rows: ReadyInput::shared(&shared(&src.rows, format)),
        scores: src.scores.as_ref().map(ready),
    }
}

fn check(arch: &Architecture) {
    let mut random = Random(5);
    let weights: Vec<f32> = (1..8).map(|at| at as f32 / 4.0).collect();
    let degrees = [0, 0, 0, 0, 0, 0, 0, 7].to_vec();
    let sums = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0].to_vec();
    let nodes = NodeColumns::new(degrees, arch.edge_weight.then_some(sums), None, None);
    let nodes = Arc::new(nodes.unwrap());
    let edges = SomeInEdges {
        src: (0..7).collect(),
        weight: arch.edge_weight.then_some(weights),
        feature: arch.edge_dim.map(|cols| random.dense(7, cols)),
    };
    let model = Model::init(arch, 3).unwrap();
    let slice = model.layer_slice(1, false);
    let rows = random.dense(8, arch.in_dim);
    let own = ReadyInput::new(Input::Dense(Dense {
        rows: 1,
        cols: arch.in_dim,
        values: rows.row(HUB).to_vec(),
    }));
    let own = own.unwrap();
    let src = slice
        .project(ReadyInput::new(Input::Dense(rows)).unwrap())
        .unwrap();
    let block = Block::of_range(range(&edges), &nodes).unwrap();
    let run = |given, format| {
        let at_once = slice.run(&block, &ready(given, format), Some(own.clone()));
        let merged = in_parts(&slice, (given, &own, format), &nodes, &edges);
        (at_once.unwrap(), merged)
    };
    let (whole, parts) = run(&src, RowFormat::F32);
    let most = whole
        .values
        .iter()
        .fold(1.0_f32, |most, x| most.max(x.abs()));
    for (a, b) in whole.values.iter().zip(&parts.values) {
        assert!(
            (a - b).abs() <= TOLERANCE * most,
            "{arch:?}: {whole:?} is not {parts:?}"
        );
    }
    // Rows in 16 bits give the bits of the same rows in 32 bits.
    let rounded = Projected {
        rows: shared(&src.rows, RowFormat::Bf16).to_dense(),
        ..src.clone()
    };
    assert_ne!(rounded.rows, src.rows, "rounding changes some number");
    let in_16_bits = run(&src, RowFormat::Bf16);
    assert_eq!(in_16_bits, run(&rounded, RowFormat::F32), "{arch:?}");
    assert_ne!(in_16_bits.0, whole, "{arch:?}");
}

#[test]
fn parts_of_the_in_edges_merge_into_the_row_of_all() {
    architectures().iter().for_each(check);
}
