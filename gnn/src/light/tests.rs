//! Compares the training pass of a `LightGCN` with plain sums on random graphs of users and items.

use std::sync::Arc;

use super::{Light, LightLayer, Read};
use crate::kernel::mix;
use crate::link::{Decoder, Pairs, Weights};
use crate::typed::{
    RelationAggregator, RelationData, RelationEnds, RelationInput, Schema, TypeInput, TypeNodes,
    TypedArchitecture, TypedBlock, TypedBlockData, TypedKind, TypedModel,
};
use crate::{
    Activation, Aggregator, Dense, Input, Labels, LayerKind, Mode, Norm, ReadyInput, Task,
};

/// Largest relative error of sums of f32.
const TOLERANCE: f64 = 1e-5;

/// Largest relative error of finite differences in f64.
const DIFFERENCE: f64 = 1e-6;

const DIM: usize = 20;

const TYPES: [&str; 2] = ["reader", "story"];

/// Relations between and among users, who read, and items.
const ENDS: [(&str, usize, usize); 3] = [("follows", 0, 0), ("read_by", 1, 0), ("reads", 0, 1)];

fn below(seed: u64, at: usize, end: usize) -> usize {
    usize::try_from(mix(seed ^ mix(at as u64)) % end as u64).unwrap()
}

fn number(seed: u64, at: usize) -> f64 {
    below(seed, at, 1 << 20) as f64 / f64::from(1 << 19) - 1.0
}

fn schema() -> Arc<Schema> {
    let relations = ENDS.map(|(name, from, to)| RelationEnds {
        name: name.to_owned(),
        from,
        to,
    });
    Arc::new(Schema {
        types: TYPES.map(str::to_owned).into(),
        relations: relations.into(),
    })
}

/// Draws a layer between the first `num_dst` of `num_src` nodes of each type. Some nodes have no
/// in-edges, and some have more in the whole graph than here.
fn layer(seed: u64, num_src: [usize; 2], num_dst: [usize; 2]) -> TypedBlockData {
    let types = [0, 1].map(|of| TypeNodes {
        num_src: num_src[of],
        num_dst: num_dst[of],
        num_active: num_dst[of],
        node_key: (0..num_src[of] as u64).collect(),
    });
    let relations = ENDS.iter().enumerate().map(|(at, &(_, from, to))| {
        let seed = mix(seed ^ at as u64);
        let mut data = RelationData {
            in_offset: vec![0],
            ..RelationData::default()
        };
        for dst in 0..num_src[to] {
            // The degrees of a node are those of the whole graph, so the same in every layer.
            let degree = below(at as u64, dst, 9).saturating_sub(2);
            data.in_degree.push(u32::try_from(degree).unwrap());
            if dst < num_dst[to] {
                let kept = degree.min(5);
                let edges = (0..kept).map(|edge| below(seed, 10 * dst + edge, num_src[from]));
                data.in_src
                    .extend(edges.map(|src| u32::try_from(src).unwrap()));
                data.in_offset
                    .push(u32::try_from(data.in_src.len()).unwrap());
            }
        }
        data
    });
    TypedBlockData {
        types: types.into(),
        relations: relations.collect(),
    }
}

/// The embeddings, type after type, sum by sum.
fn twin(layers: &[TypedBlockData], start: &[Vec<f64>; 2]) -> Vec<f64> {
    let mut rows = start.clone();
    for layer in layers {
        let degree = |of: usize, node: usize| -> f64 {
            let into = layer
                .relations
                .iter()
                .zip(ENDS)
                .filter(|(_, ends)| ends.2 == of);
            into.map(|(edges, _)| f64::from(edges.in_degree[node]))
                .sum()
        };
        let root = |of, node| match degree(of, node) {
            0.0 => 0.0,
            degree => 1.0 / degree.sqrt(),
        };
        let mut next = [0, 1].map(|of| start[of][..layer.types[of].num_dst * DIM].to_vec());
        for (edges, (_, from, to)) in layer.relations.iter().zip(ENDS) {
            for dst in 0..layer.types[to].num_dst {
                let own = edges.in_offset[dst] as usize..edges.in_offset[dst + 1] as usize;
                let scale = f64::from(edges.in_degree[dst]) / own.len() as f64;
                for &src in &edges.in_src[own] {
                    let src = src as usize;
                    let factor = scale * root(from, src) * root(to, dst);
                    for col in 0..DIM {
                        next[to][dst * DIM + col] += factor * rows[from][src * DIM + col];
                    }
                }
            }
        }
        rows = next;
    }
    let share = (layers.len() + 1) as f64;
    rows.concat().into_iter().map(|x| x / share).collect()
}

fn layers_of(data: &[TypedBlockData]) -> Vec<LightLayer> {
    let blocks = data
        .iter()
        .map(|data| TypedBlock::new(&schema(), data.clone()).unwrap());
    blocks.map(|block| block.light_layer().clone()).collect()
}

/// Graphs of whole layers, and of layers that compute ever fewer rows.
fn graphs() -> [Vec<TypedBlockData>; 2] {
    let all = [60, 70];
    let whole = vec![layer(1, all, all); 3];
    let pruned = vec![layer(2, all, [50, 65]), layer(3, [50, 65], [40, 33])];
    [whole, pruned]
}

fn start() -> [Vec<f64>; 2] {
    [(5, 60), (6, 70)].map(|(seed, rows)| (0..rows * DIM).map(|at| number(seed, at)).collect())
}

/// Pairs of some of the last users with all items; 5 users have 4 to 8 pairs each.
fn pairs(layers: &[TypedBlockData]) -> Pairs {
    let last = &layers[layers.len() - 1].types;
    let (users, items) = (last[0].num_dst, last[1].num_dst);
    let row = |row: usize| u32::try_from(row).unwrap();
    let count = 30;
    Pairs {
        node: (0..row(users + items)).collect(),
        src: (0..count).map(|at| row(users - 1 - at % 5)).collect(),
        dst: (0..count)
            .map(|at| row(users + below(9, at, items)))
            .collect(),
        weight: (0..count).map(|at| 0.25 + at as f32 / 16.0).collect(),
        group_offset: vec![0, row(count)],
        all_offset: vec![0, row(items)],
        all: (row(users)..row(users + items)).collect(),
        ..Pairs::default()
    }
}

fn assert_close(got: &[f64], wanted: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (at, (x, y)) in got.iter().zip(wanted).enumerate() {
        let off = (x - y).abs();
        assert!(off <= tolerance * y.abs().max(1.0), "{what} {at}: {x}, {y}");
    }
}

fn narrow(values: &[f64]) -> Vec<f32> {
    #[expect(clippy::cast_possible_truncation, reason = "this function rounds")]
    let narrow = |x: &f64| *x as f32;
    values.iter().map(narrow).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

#[test]
fn propagation_is_that_of_plain_sums() {
    for (which, data) in graphs().iter().enumerate() {
        let wanted = twin(data, &start());
        let layers = layers_of(data);
        let light = Light {
            layers: &layers,
            dim: DIM,
        };
        let read: Read = vec![None, None];
        let rows = start().map(|rows| narrow(&rows));
        let got: Vec<f32> = light.forward(&[&rows[0], &rows[1]], &read);
        assert_close(&wide(&got), &wanted, TOLERANCE, &format!("graph {which}"));
        // Rows that are not read are not computed.
        let few: Read = vec![Some(vec![3, 8, 39]), None];
        let some: Vec<f32> = light.forward(&[&rows[0], &rows[1]], &few);
        let users = layers[layers.len() - 1].num_dst[0];
        for row in 0..users {
            let own = row * DIM..(row + 1) * DIM;
            let expected = match [3, 8, 39].contains(&row) {
                true => &got[own.clone()],
                false => &[0.0; DIM],
            };
            assert_eq!(&some[own], expected, "graph {which}, row {row}");
        }
        assert_eq!(some[users * DIM..], got[users * DIM..]);
    }
}

#[test]
fn the_gradient_of_learnable_rows_is_that_of_differences() {
    for (which, data) in graphs().iter().enumerate() {
        let (layers, pairs, rows) = (layers_of(data), pairs(data), start());
        let light = Light {
            layers: &layers,
            dim: DIM,
        };
        let weights: Weights<'_, f64> = Weights::new(Decoder::Dot, DIM, &[]);
        let loss = |[users, items]: &[Vec<f64>; 2]| {
            let start = [&users[..], &items[..]];
            light.loss_and_slopes(weights, &start, &pairs, 4.0)
        };
        assert!(light.read(&pairs)[0].is_some(), "few users are read");
        assert!(light.read(&pairs)[1].is_none(), "all items are read");
        let slopes = loss(&rows);
        for at in 0..300 {
            let of = at % 2;
            let place = below(17, at, rows[of].len());
            let moved = |by: f64| {
                let mut rows = rows.clone();
                rows[of][place] += by;
                loss(&rows).loss_sum
            };
            let difference = (moved(1e-5) - moved(-1e-5)) / 2e-5 / 4.0;
            let got = slopes.start[of][place];
            let off = (got - difference).abs();
            assert!(
                off < DIFFERENCE,
                "graph {which}, type {of}, {place}: {got}, {difference}"
            );
        }
    }
}

fn model() -> TypedModel {
    let input = |name: &str| TypeInput {
        name: name.to_owned(),
        in_dim: Some(DIM),
        embedding_dim: Some(DIM),
    };
    let types: Vec<TypeInput> = TYPES.map(input).into();
    let relations = ENDS.map(|(name, from, to)| RelationInput {
        name: name.to_owned(),
        from: types[from].name.clone(),
        to: types[to].name.clone(),
        edge_weight: false,
        edge_dim: None,
    });
    let arch = TypedArchitecture {
        layer: TypedKind::Conv(LayerKind::LightGcn),
        relation_aggregator: RelationAggregator::Sum,
        readout: None,
        aggregator: Aggregator::Mean,
        types,
        relations: relations.into(),
        target_type: TYPES[0].to_owned(),
        projection: DIM,
        hidden: vec![DIM; 2],
        num_layers: 3,
        out_dim: DIM,
        heads: 1,
        out_heads: 1,
        num_bases: None,
        relation_dim: None,
        attention_residual: 0.0,
        dropout: 0.0,
        input_dropout: 0.0,
        attention_dropout: 0.0,
        norm: Norm::None,
        residual: false,
        normalize_output: false,
        activation: Activation::Relu,
        task: Task::Links(Decoder::Dot),
    };
    TypedModel::init(&arch, 1).unwrap()
}

/// The training pass has the embeddings of the forward pass, and the loss that the decoder gives them.
#[test]
fn a_model_trains_on_the_rows_of_its_forward_pass() {
    let [whole, _] = graphs();
    let (model, pairs, rows) = (model(), pairs(&whole), start());
    let blocks = whole
        .iter()
        .map(|data| TypedBlock::new(&schema(), data.clone()).unwrap());
    let blocks: Vec<TypedBlock> = blocks.collect();
    let input = rows.each_ref().map(|of_type| {
        let values = narrow(of_type);
        let dense = Dense {
            rows: values.len() / DIM,
            cols: DIM,
            values,
        };
        Some(ReadyInput::new(Input::Dense(dense)).unwrap())
    });
    let labels = Labels::Pairs(Box::new(pairs.clone()));
    let mode = Mode::Train { seed: 1 };
    let step = model
        .loss_and_gradient(&blocks, &input, &labels, 4.0, mode)
        .unwrap();
    let forward = model.forward(&blocks, &input, Mode::Eval).unwrap();
    let of_twin = twin(&whole, &rows);
    assert_close(&wide(&forward.values), &of_twin, TOLERANCE, "forward");
    for row in (0..forward.rows).filter(|row| *row >= 55) {
        let (got, wanted) = (step.logits.row(row), forward.row(row));
        assert_close(&wide(got), &wide(wanted), TOLERANCE, "embedding");
    }
    let loss = model.scorer().unwrap().loss(&forward, &pairs);
    assert!(
        (step.loss_sum / loss - 1.0).abs() < TOLERANCE,
        "{} {loss}",
        step.loss_sum
    );
    assert!(step.gradient.is_empty(), "it has no parameters");
    assert_eq!(step.rows.iter().flatten().count(), 2);
}
