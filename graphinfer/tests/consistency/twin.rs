//! Slow twins of inference by slices: forward on the whole graph, and on one neighbourhood.

use crate::formula;
use crate::graph::Graph;
use gnn::{
    Block, BlockData, Dense, Input, Model, Projected, ReadyInput, Sampling, SparseRows, Transform,
};
use schemas::{Fanout, Features, GraphFeature, use_at_layer};

/// Returns the rows of all nodes after `layers` layers of the whole graph, in the order of ids.
/// Computed from the rows of the tables, without store, sample or partition.
pub(crate) fn whole_graph(
    graph: &Graph,
    model: &Model,
    transform: &Transform,
    layers: usize,
) -> Dense {
    let block = Block::new(whole_block(graph, model)).unwrap();
    let mut input = whole_input(graph);
    transform.apply(&mut input).unwrap();
    for layer in 1..=layers {
        input = Input::Dense(model.forward_layer(layer, &block, &input).unwrap());
    }
    let Input::Dense(by_row) = input else {
        panic!("a conv's output is dense")
    };
    by_id(graph, &by_row)
}

/// Returns the rows of all nodes as [`whole_graph`] does, but rounds to 16 bits the rows that nodes
/// read from each other, and their own rows unless these are the features.
pub(crate) fn rounded_graph(
    graph: &Graph,
    model: &Model,
    transform: &Transform,
    layers: usize,
) -> Dense {
    let block = Block::new(whole_block(graph, model)).unwrap();
    let mut input = whole_input(graph);
    transform.apply(&mut input).unwrap();
    let ready = |rows: Dense| ReadyInput::new(Input::Dense(rows)).unwrap();
    for layer in 1..=layers {
        let is_sparse = matches!(input, Input::Sparse(_));
        let slice = model.layer_slice(layer, is_sparse);
        let given = ReadyInput::new(input.clone()).unwrap();
        let (src, own) = match input {
            Input::Dense(rows) if !slice.projects() => {
                let src = Projected {
                    rows: rounded(rows),
                    scores: None,
                };
                let own = ready(src.rows.clone());
                (src, own)
            }
            of_layer => {
                let projected = slice.project(given.clone()).unwrap();
                let own = match of_layer {
                    Input::Dense(rows) if layer > 1 => ready(rounded(rows)),
                    _ => given,
                };
                let rows = rounded(projected.rows);
                (Projected { rows, ..projected }, own)
            }
        };
        let src = Projected {
            rows: ready(src.rows),
            scores: src.scores.map(ready),
        };
        input = Input::Dense(slice.run(&block, &src, Some(own)).unwrap());
    }
    let Input::Dense(by_row) = input else {
        panic!("a conv's output is dense")
    };
    by_id(graph, &by_row)
}

/// Rounds numbers to the upper 16 bits of their 32, to nearest, ties to even.
fn rounded(mut rows: Dense) -> Dense {
    for x in &mut rows.values {
        let bits = x.to_bits();
        let (low, high) = (bits & 0xffff, bits >> 16);
        let up = low > 0x8000 || (low == 0x8000 && high & 1 == 1);
        *x = f32::from_bits((high + u32::from(up)) << 16);
    }
    rows
}

/// Returns the rows after all layers, in the order of ids, from the layers' formulas in f64.
pub(crate) fn whole_graph_f64(graph: &Graph, model: &Model, transform: &Transform) -> Dense {
    let block = whole_block(graph, model);
    let mut input = whole_input(graph);
    transform.apply(&mut input).unwrap();
    let blocks = vec![block; model.architecture().num_layers];
    let rows = formula::Twin::new(model).forward(&blocks, &input);
    let cols = rows[0].len();
    let rounded = rows.into_iter().flatten().map(gnn::kernel::Float::from_f64);
    by_id(
        graph,
        &Dense {
            rows: graph.num_nodes(),
            cols,
            values: rounded.collect(),
        },
    )
}

fn by_id(graph: &Graph, by_row: &Dense) -> Dense {
    let mut by_id = Dense::zeros(graph.num_nodes(), by_row.cols);
    for (node, &place) in graph.order.iter().enumerate() {
        by_id.values[place * by_row.cols..][..by_row.cols].copy_from_slice(by_row.row(node));
    }
    by_id
}

fn whole_input(graph: &Graph) -> Input {
    if !graph.kind.sparse {
        let values = graph.features.clone();
        return Input::Dense(Dense {
            rows: graph.num_nodes(),
            cols: graph.dim,
            values,
        });
    }
    let mut sparse = SparseRows {
        rows: graph.num_nodes(),
        cols: graph.dim,
        offset: vec![0],
        ..Default::default()
    };
    for row in graph.features.chunks(graph.dim) {
        for (at, &value) in row.iter().enumerate().filter(|(_, value)| **value != 0.0) {
            sparse.index.push(u32::try_from(at).unwrap());
            sparse.value.push(value);
        }
        sparse
            .offset
            .push(u32::try_from(sparse.index.len()).unwrap());
    }
    Input::Sparse(sparse)
}

fn whole_block(graph: &Graph, model: &Model) -> BlockData {
    let arch = model.architecture();
    let use_weight = arch.edge_weight;
    let mut data = BlockData {
        num_src: graph.num_nodes(),
        num_dst: graph.num_nodes(),
        num_active: graph.num_nodes(),
        in_offset: vec![0],
        in_degree: vec![0; graph.num_nodes()],
        node_key: vec![0; graph.num_nodes()],
        sampling: Sampling::Uniform,
        ..BlockData::default()
    };
    let mut in_weight = vec![0.0; graph.num_nodes()];
    let mut self_loops = vec![0; graph.num_nodes()];
    let mut self_weight = vec![0.0; graph.num_nodes()];
    let (mut weight, mut feature) = (Vec::new(), Vec::new());
    for dst in 0..graph.num_nodes() {
        for edge in graph.edges.iter().filter(|edge| edge.dst == dst) {
            data.in_src.push(u32::try_from(edge.src).unwrap());
            data.in_degree[dst] += 1;
            weight.push(edge.weight);
            feature.extend_from_slice(&edge.features);
            in_weight[dst] += edge.weight;
            if edge.src == dst {
                self_loops[dst] += 1;
                self_weight[dst] += edge.weight;
            }
        }
        data.in_offset
            .push(u32::try_from(data.in_src.len()).unwrap());
    }
    let rows = data.in_src.len();
    data.edge_weight = use_weight.then_some(weight);
    data.in_weight = use_weight.then_some(in_weight);
    data.self_loops = graph.kind.self_loops.then_some(self_loops);
    data.self_weight = (graph.kind.self_loops && use_weight).then_some(self_weight);
    data.edge_feature = arch.edge_dim.map(|cols| Dense {
        rows,
        cols,
        values: feature,
    });
    data
}

/// Returns the embedding of one target, from its stored neighbourhood alone.
pub(crate) fn neighbourhood(
    feature: &GraphFeature,
    model: &Model,
    transform: &Transform,
    (fanouts, sampling): (&[Fanout], Sampling),
) -> Vec<f32> {
    let mut input = match feature.nodes[0].features.clone() {
        Features::Dense { dim, values } => Input::Dense(Dense {
            rows: values.len() / dim,
            cols: dim,
            values,
        }),
        Features::Sparse {
            dim,
            offset,
            index,
            value,
        } => {
            let offset = offset
                .iter()
                .map(|&at| u32::try_from(at).unwrap())
                .collect::<Vec<_>>();
            Input::Sparse(SparseRows {
                rows: offset.len() - 1,
                cols: dim,
                offset,
                index,
                value,
            })
        }
        Features::None => panic!("the tests' graphs have features"),
    };
    transform.apply(&mut input).unwrap();
    let mut num_src = input.rows();
    for layer in 1..=fanouts.len() {
        // Layer l of K computes the nodes up to hop K - l from the nodes up to hop K - l + 1.
        let num_dst = feature.nodes[0].hop_offset[fanouts.len() - layer + 1] as usize;
        let limit = use_at_layer(fanouts, 0, layer);
        let data = block_of(feature, model, (num_src, num_dst), limit, sampling);
        let block = Block::new(data).unwrap();
        input = Input::Dense(model.forward_layer(layer, &block, &input).unwrap());
        num_src = num_dst;
    }
    let Input::Dense(output) = input else {
        panic!("a conv's output is dense")
    };
    assert_eq!(output.rows, 1, "hop 0 is the target");
    output.values
}

fn block_of(
    feature: &GraphFeature,
    model: &Model,
    (num_src, num_dst): (usize, usize),
    limit: usize,
    sampling: Sampling,
) -> BlockData {
    let (arch, edges) = (model.architecture(), &feature.edges[0]);
    let mut data = BlockData {
        num_src,
        num_dst,
        num_active: num_dst,
        in_offset: vec![0],
        in_degree: edges.in_degree[..num_src].to_vec(),
        node_key: vec![0; num_src],
        sampling,
        ..BlockData::default()
    };
    let (mut weight, mut values) = (Vec::new(), Vec::new());
    for dst in 0..num_dst {
        for edge in edges.in_edges(dst).take(limit) {
            data.in_src.push(edges.in_src[edge]);
            weight.extend(edges.edge_weight.as_ref().map(|all| all[edge]));
            if let (Some(dim), Some(all)) = (arch.edge_dim, &edges.edge_feature) {
                values.extend_from_slice(&all[edge * dim..(edge + 1) * dim]);
            }
        }
        data.in_offset
            .push(u32::try_from(data.in_src.len()).unwrap());
    }
    let first = |column: &Option<Vec<f32>>| column.as_ref().map(|all| all[..num_src].to_vec());
    let rows = data.in_src.len();
    data.edge_weight = arch.edge_weight.then_some(weight);
    data.in_weight = first(&edges.in_weight).filter(|_| arch.edge_weight);
    data.self_loops = edges.self_loops.as_ref().map(|all| all[..num_src].to_vec());
    data.self_weight = first(&edges.self_weight).filter(|_| arch.edge_weight);
    data.edge_feature = arch.edge_dim.map(|cols| Dense { rows, cols, values });
    data
}
