//! Writes a layer outside the crate, trains it, and runs it in slices of the graph.
//!
//! `cargo run --release -p gnn --example custom_layer`
//!
//! The layer mixes a node's own row with the mean over its in-edges by a learned gate:
//! `out[v] = g * own(x[v]) + (1 - g) * near(mean of x[u])` with `g = sigmoid(gate(x[v]))`. A node's
//! class is its own sign times the sign of its group. Noise hides the group in the node's own
//! features, so the class depends on the node and its in-edges together.

use std::sync::Arc;

use gnn::burn::tensor::Tensor;
use gnn::burn::tensor::activation::sigmoid;
use gnn::kernel::{Spmm, mix};
use gnn::{
    Activation, Aggregated, Aggregator, Architecture, Block, BlockData, Coefficients, Conv,
    ConvConfig, Dense, Features, Fused, GnnError, Input, Labels, LayerKind, LayerType, Mode, Model,
    NodeColumns, Norm, ParameterList, Projected, RangeData, ReadyInput, Scope, Src, Summed, Task,
};

/// The layer's name and options; an [`Architecture`] takes it as its kind.
static GATED: LayerType = LayerType {
    name: "gated",
    is_attention: false,
    takes_edge_features: false,
    takes_maximum: false,
    reads_source_degrees: false,
    conv: |config| Arc::new(Gated { config }),
};

/// One gated conv.
#[derive(Debug)]
struct Gated {
    config: ConvConfig,
}

impl Conv for Gated {
    fn parameters(&self, list: &mut ParameterList) {
        for name in ["own", "near", "gate"] {
            list.linear(name, self.config.out_dim, self.config.in_dim, true);
        }
    }

    fn prepare(&self, block: &Block) {
        drop(Coefficients::new(block, self.config.edge_weight).mean());
    }

    fn has_parameters_before(&self, _is_sparse: bool) -> bool {
        false
    }

    fn reads_own(&self) -> bool {
        true
    }

    fn aggregate(&self, scope: &Scope<'_>, block: &Block, src: Src, _: &Features) -> Tensor<2> {
        let mean = Fused::Spmm(Spmm {
            csr: Arc::clone(block.csr()),
            rows: block.num_dst(),
            edge: Coefficients::new(block, self.config.edge_weight).mean(),
            own: None,
        });
        mean.apply(scope.dense(src.rows)) // [num_dst, in]
    }

    fn update(
        &self,
        scope: &Scope<'_>,
        block: &Block,
        aggregated: Aggregated,
        own: &Features,
    ) -> Summed {
        let rows = block.num_dst();
        let gate = sigmoid(scope.linear("gate", own, rows)); // [num_dst, out]
        let near = scope.linear("near", &Features::Dense(aggregated.rows), rows);
        let own = scope.linear("own", own, rows);
        Summed {
            addend: Some(near.clone()),
            ..Summed::of(gate * (own - near))
        }
    }
}

const NODES: usize = 400;
const IN_EDGES: u32 = 8;
const SLICE: usize = 100;

/// A graph of two groups. A node's in-edges come from its own group.
struct Graph {
    features: Dense,
    classes: Vec<u32>,
    in_src: Vec<u32>,
}

/// Draws a number in -1 to 1.
#[expect(clippy::cast_precision_loss, reason = "draws keep 24 bits")]
fn draw(at: u64) -> f32 {
    (mix(at) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn graph() -> Graph {
    let (mut values, mut classes, mut in_src) = (Vec::new(), Vec::new(), Vec::new());
    let mut number = 0_u32;
    for v in 0..NODES as u64 {
        let (group, sign) = (if v % 2 == 0 { 1.0 } else { -1.0 }, draw(v).signum());
        values.extend([sign, group + 2.0 * draw(NODES as u64 + v)]);
        classes.push(u32::from(sign * group > 0.0));
        for _ in 0..IN_EDGES {
            let far = mix(u64::from(number)) % (NODES as u64 / 2);
            in_src.push(u32::try_from(2 * far + v % 2).expect("few nodes"));
            number += 1;
        }
    }
    let features = Dense {
        rows: NODES,
        cols: 2,
        values,
    };
    Graph {
        features,
        classes,
        in_src,
    }
}

/// Returns where the in-edges of `num_nodes` nodes start.
fn offsets(num_nodes: usize) -> Vec<u32> {
    (0..=num_nodes)
        .map(|v| u32::try_from(v).expect("few nodes") * IN_EDGES)
        .collect()
}

/// One block of all nodes, which every layer runs on.
fn block(graph: &Graph) -> Result<Block, GnnError> {
    Block::new(BlockData {
        num_src: NODES,
        num_dst: NODES,
        in_offset: offsets(NODES),
        in_src: graph.in_src.clone(),
        in_degree: vec![IN_EDGES; NODES],
        node_key: (0..NODES as u64).map(mix).collect(),
        num_active: NODES,
        ..BlockData::default()
    })
}

fn architecture() -> Architecture {
    Architecture {
        layer: LayerKind::Custom(&GATED),
        aggregator: Aggregator::Mean,
        in_dim: 2,
        embedding_dim: None,
        edge_dim: None,
        edge_weight: false,
        hidden: vec![16],
        num_layers: 2,
        out_dim: 2,
        heads: 1,
        out_heads: 1,
        dropout: 0.0,
        input_dropout: 0.0,
        attention_dropout: 0.0,
        norm: Norm::None,
        residual: false,
        activation: Activation::Elu,
        task: Task::Classes,
    }
}

/// Runs gradient descent on the mean loss, with momentum.
fn train(
    model: &mut Model,
    (blocks, input): (&[Block], &ReadyInput),
    labels: &Labels,
) -> Result<(), GnnError> {
    let mut speeds = vec![0.0; model.flat().len()];
    for seed in 0..300 {
        let mode = Mode::Train { seed };
        let given = model.loss_and_gradient(blocks, input, labels, 400.0, mode)?;
        let mut flat = model.flat();
        for ((x, speed), slope) in flat.iter_mut().zip(&mut speeds).zip(&given.gradient) {
            *speed = 0.9 * *speed + slope;
            *x -= 0.1 * *speed;
        }
        model.set_flat(&flat);
    }
    Ok(())
}

/// Runs a model layer by layer on ranges of nodes, as inference does, and returns the logits.
fn in_slices(model: &Model, graph: &Graph) -> Result<Vec<f32>, GnnError> {
    let degrees = vec![IN_EDGES; NODES];
    let nodes = Arc::new(NodeColumns::new(degrees, None, None, None)?);
    let mut rows = graph.features.clone();
    for layer in 1..=model.architecture().num_layers {
        let slice = model.layer_slice(layer, false);
        let src = Projected {
            rows: ReadyInput::new(Input::Dense(rows.clone()))?,
            scores: None,
        };
        let mut out = Dense::zeros(0, slice.output_dim());
        for first in (0..NODES).step_by(SLICE) {
            let edges = first * IN_EDGES as usize..(first + SLICE) * IN_EDGES as usize;
            let range = RangeData {
                first,
                in_offset: offsets(SLICE),
                in_src: graph.in_src[edges].to_vec(),
                ..RangeData::default()
            };
            let own = Dense {
                rows: SLICE,
                cols: rows.cols,
                values: rows.values[first * rows.cols..(first + SLICE) * rows.cols].to_vec(),
            };
            let own = ReadyInput::new(Input::Dense(own))?;
            let part = slice.run(&Block::of_range(range, &nodes)?, &src, Some(own))?;
            out.rows += part.rows;
            out.values.extend(part.values);
        }
        rows = out;
    }
    Ok(rows.values)
}

fn main() -> Result<(), GnnError> {
    let graph = graph();
    let blocks = [block(&graph)?, block(&graph)?];
    let input = ReadyInput::new(Input::Dense(graph.features.clone()))?;
    let labels = Labels::Classes(graph.classes.clone());
    let mut model = Model::init(&architecture(), 7)?;
    train(&mut model, (&blocks, &input), &labels)?;

    let logits = model.forward(&blocks, &input, Mode::Eval)?;
    let is_right = |&(v, &class): &(usize, &u32)| {
        let row = logits.row(v);
        u32::from(row[1] > row[0]) == class
    };
    let right = graph.classes.iter().enumerate().filter(is_right).count();
    assert!(
        right >= 360,
        "{right} of {NODES} nodes are classified right"
    );

    let sliced = in_slices(&model, &graph)?;
    assert_eq!(
        sliced, logits.values,
        "slices give the bits of whole batches"
    );

    let mut names = model.parameters().iter().map(|info| &info.name[..]);
    assert!(names.any(|name| name == "convs.1.gate.weight"));
    Ok(())
}
