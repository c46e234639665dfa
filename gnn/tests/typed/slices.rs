//! Layer by layer on ranges of one type's nodes: the same bits as the forward pass.

use gnn::kernel::round_all_to_bf16;
use gnn::typed::{TypedArchitecture, TypedBlock, TypedModel};
use gnn::{Dense, Input, Mode, Projected, ReadyInput, RowFormat, SharedRows};

use crate::graph::{ALL, Batch, Graph, features};
use crate::models::{architectures, model, schema};

/// How rows are given to the layers.
#[derive(Clone, Copy, Debug)]
struct Given {
    /// Nodes of a range.
    range: usize,
    /// In shared memory, as inference gives them.
    shared: bool,
    aggregated: Aggregated,
}

/// How the rows that a layer aggregates are given.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Aggregated {
    AsTheyAre,
    /// Rounded to 16 bits, in 32 bits.
    Rounded,
    /// In 16 bits.
    InBf16,
}

impl Given {
    fn ready(self, rows: &Dense) -> ReadyInput {
        if self.shared && rows.rows > 0 {
            let bytes = bytemuck::cast_slice(&rows.values).to_vec();
            let rows = SharedRows::new(bytes.into(), rows.cols, RowFormat::F32);
            return ReadyInput::shared(&rows.unwrap());
        }
        ReadyInput::new(Input::Dense(rows.clone())).unwrap()
    }

    fn aggregated(self, rows: &Dense) -> ReadyInput {
        if self.aggregated == Aggregated::AsTheyAre || rows.rows == 0 {
            return self.ready(rows);
        }
        let bytes = bytemuck::cast_slice(&round_all_to_bf16(&rows.values)).to_vec();
        let rounded = SharedRows::new(bytes.into(), rows.cols, RowFormat::Bf16).unwrap();
        match self.aggregated {
            Aggregated::InBf16 => ReadyInput::shared(&rounded),
            _ => self.ready(&rounded.to_dense()),
        }
    }
}

/// Joins matrices of equally wide rows.
fn stacked(parts: &[Dense]) -> Dense {
    Dense {
        rows: parts.iter().map(|part| part.rows).sum(),
        cols: parts[0].cols,
        values: parts.iter().flat_map(|part| part.values.clone()).collect(),
    }
}

fn rows_of(all: &Dense, range: std::ops::Range<usize>) -> Dense {
    Dense {
        rows: range.len(),
        cols: all.cols,
        values: all.values[range.start * all.cols..range.end * all.cols].to_vec(),
    }
}

/// Runs a model on all nodes of a graph, layer by layer, as inference does; returns the logits of
/// the target type.
fn sliced(graph: &Graph, arch: &TypedArchitecture, model: &TypedModel, given: Given) -> Dense {
    let ready = |rows: &Dense| given.ready(rows);
    let types = 0..graph.num_nodes.len();
    let projection = model.projection();
    let mut rows: Vec<Dense> = types
        .clone()
        .map(|t| {
            let nodes: Vec<usize> = (0..graph.num_nodes[t]).collect();
            let input = features(arch, t, &nodes).map(|input| ReadyInput::new(input).unwrap());
            projection.run(t, nodes.len(), input, &[]).unwrap()
        })
        .collect();
    let mut scores: Vec<Option<Dense>> = vec![None; rows.len()];
    for layer in 1..=arch.num_layers {
        let slice = model.layer_slice(layer);
        let (mut src, mut new_scores) = (Vec::new(), vec![None; rows.len()]);
        for (at, source) in slice.sources().iter().enumerate() {
            let (mut of_types, mut their_scores) = (Vec::new(), Vec::new());
            for t in source.types.clone() {
                let carried = slice.carried_dim().and(scores[t].as_ref()).map(&ready);
                let projected = slice.project(at, t, ready(&rows[t]), carried).unwrap();
                assert_eq!(projected.rows.cols, source.dim);
                assert_eq!(projected.scores.as_ref().map(|s| s.cols), source.scores_dim);
                assert!(source.projects || projected.rows == rows[t]);
                of_types.push(projected.rows);
                new_scores[t].clone_from(&projected.scores);
                their_scores.extend(projected.scores);
            }
            src.push(Some(Projected {
                rows: given.aggregated(&stacked(&of_types)),
                scores: source.scores_dim.map(|_| ready(&stacked(&their_scores))),
            }));
        }
        scores = new_scores;
        let of_type = |t: usize| {
            let starts = (0..graph.num_nodes[t]).step_by(given.range);
            let parts = starts.map(|start| {
                let range = start..(start + given.range).min(graph.num_nodes[t]);
                let own = ready(&rows_of(&rows[t], range.clone()));
                // A caller passes the sources that the type reads, and no others.
                let read = slice.sources_of(t);
                let of_source = |at: usize| src[at].clone().filter(|_| read.contains(&at));
                let of_layer: Vec<_> = (0..src.len()).map(of_source).collect();
                slice.run(&graph.range(t, range), &of_layer, &own).unwrap()
            });
            stacked(&parts.collect::<Vec<Dense>>())
        };
        rows = types.clone().map(of_type).collect();
    }
    model.head().run(rows.swap_remove(arch.target())).unwrap()
}

/// Returns the logits of the target type, computed by the forward pass of the whole graph.
fn forward(graph: &Graph, arch: &TypedArchitecture, model: &TypedModel) -> Dense {
    let whole = TypedBlock::new(&graph.schema, graph.whole()).unwrap();
    let blocks = vec![whole; arch.num_layers];
    let of_type = |t: usize| features(arch, t, &(0..graph.num_nodes[t]).collect::<Vec<_>>());
    let raw: Vec<Option<Input>> = (0..graph.num_nodes.len()).map(of_type).collect();
    let input = crate::graph::ready(&raw);
    model.forward(&blocks, &input, Mode::Eval).unwrap()
}

#[test]
fn slices_equal_the_forward_pass_to_the_bit() {
    for arch in architectures() {
        for seed in 1..3 {
            let graph = Graph::random(&schema(&arch), 9, 25, seed);
            let model = model(&arch, seed);
            let whole = forward(&graph, &arch, &model);
            for shared in [false, true] {
                let given = |aggregated| Given {
                    range: 4,
                    shared,
                    aggregated,
                };
                let got = sliced(&graph, &arch, &model, given(Aggregated::AsTheyAre));
                assert_eq!(got, whole, "whole graph, shared {shared}, {arch:?}");
                let rounded = sliced(&graph, &arch, &model, given(Aggregated::Rounded));
                assert_ne!(rounded, whole, "rounding changes the logits, {arch:?}");
                let in_16_bits = sliced(&graph, &arch, &model, given(Aggregated::InBf16));
                assert_eq!(in_16_bits, rounded, "shared {shared}, {arch:?}");
            }
            // Batches of a few targets have other src nodes in another order.
            let batch = Batch::of(&graph, &arch, 5, ALL);
            let few = model
                .forward(&batch.blocks, &batch.input, Mode::Eval)
                .unwrap();
            assert_eq!(rows_of(&whole, 0..5), few, "batch, {arch:?}");
        }
    }
}

/// Rows are multiplied 256 at a time.
#[test]
fn slices_of_several_groups_equal_the_forward_pass_to_the_bit() {
    for arch in architectures() {
        let graph = Graph::random(&schema(&arch), 700, 3000, 3);
        let model = model(&arch, 3);
        let given = Given {
            range: 600,
            shared: true,
            aggregated: Aggregated::AsTheyAre,
        };
        let got = sliced(&graph, &arch, &model, given);
        assert_eq!(got, forward(&graph, &arch, &model), "{arch:?}");
    }
}
