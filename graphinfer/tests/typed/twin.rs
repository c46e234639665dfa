//! The slow twin: the formulas of all layers on the whole graph, with the in-edges of each layer.

use crate::formula::twin::Twin;
use crate::models::Trained;
use crate::support::twin::Rows;
use gnn::typed::{RelationData, TypeNodes, TypedBlockData};
use gnn::{Dense, Input, Transform};
use graphtrainer::convert;
use schemas::{Features, LocalIdx};
use std::collections::BTreeMap;
use store::{Partition, Store};

/// Rows after each layer, 0 for the projected features, by type; and the target type's logits.
pub(crate) struct Forward {
    pub(crate) layers: Vec<Vec<Rows>>,
    pub(crate) logits: Rows,
}

/// Returns the partition and position of each node of a type, in the order of ids.
pub(crate) fn places(store: &Store, node_type: usize) -> Vec<(&Partition, LocalIdx)> {
    let range = store.placement().type_range(node_type);
    let nodes = (range.start.raw()..range.end.raw()).map(schemas::NodeIdx::from_raw);
    let place = |node| {
        let (worker, local) = store.placement().owner_and_local(node);
        (store.partition(worker), local)
    };
    nodes.map(place).collect()
}

/// Computes all layers; `limits` has how many in-edges each layer reads of a relation and node.
pub(crate) fn forward(store: &Store, trained: &Trained, limits: &[Vec<usize>]) -> Forward {
    let meta = &store.meta().graph;
    let data: Vec<TypedBlockData> = limits.iter().map(|limits| block(store, limits)).collect();
    let types = &trained.model.architecture().types;
    let dims: Vec<usize> = types
        .iter()
        .map(|of| of.embedding_dim.unwrap_or(0))
        .collect();
    let raw = meta.types.iter().enumerate().map(|(at, of)| {
        let all = places(store, at);
        let mut features = Features::with_capacity(of.features, all.len());
        for (partition, local) in &all {
            partition.features_into(*local, &mut features);
        }
        let mut input = convert::input(features, all.len());
        let transform = trained.transforms.get(&of.name);
        transform
            .unwrap_or(&Transform::None)
            .apply(&mut input)
            .unwrap();
        let rows = trained.tables.get(&of.name);
        let input = match rows {
            Some(rows) => with_table(&convert::dense(input), rows, &all, dims[at]),
            None => input,
        };
        (input.cols() > 0).then_some(input)
    });
    let raw: Vec<Option<Input>> = raw.collect();
    let mut twin = Twin::new(&trained.model);
    let mut layers = vec![twin.project(&data, &raw)];
    for (layer, block) in (1..).zip(&data) {
        let rows = twin.layer(layer, block, &layers[layer - 1]);
        layers.push(rows);
    }
    let logits = twin.head(&layers[data.len()][meta.target_type]);
    Forward { layers, logits }
}

/// Puts the row of each node behind its features; nodes without one get the mean of all rows.
pub(crate) fn with_table(
    features: &Dense,
    rows: &BTreeMap<String, Vec<f32>>,
    all: &[(&Partition, LocalIdx)],
    dim: usize,
) -> Input {
    let count = rows.len().max(1) as f64;
    let mean = (0..dim).map(|column| {
        let sum: f64 = rows.values().map(|row| f64::from(row[column])).sum();
        #[expect(clippy::cast_possible_truncation, reason = "rows are f32")]
        let mean = (sum / count) as f32;
        mean
    });
    let mean: Vec<f32> = mean.collect();
    let mut values = Vec::new();
    for (at, (partition, local)) in all.iter().enumerate() {
        let (ids, node) = partition.id(*local);
        values.extend_from_slice(features.row(at));
        values.extend_from_slice(rows.get(&ids.display(node)).unwrap_or(&mean));
    }
    Input::Dense(Dense {
        rows: all.len(),
        cols: features.cols + dim,
        values,
    })
}

/// Collects the in-edges of a layer.
pub(crate) fn block(store: &Store, limits: &[usize]) -> TypedBlockData {
    let meta = &store.meta().graph;
    let types = (0..meta.types.len()).map(|at| {
        let count = store.placement().type_range(at);
        let count = count.end.index() - count.start.index();
        TypeNodes {
            num_src: count,
            num_dst: count,
            num_active: count,
            node_key: vec![0; count],
        }
    });
    let relations = meta.relations.iter().enumerate().map(|(relation, of)| {
        let first = store.placement().type_range(of.from).start.raw();
        let mut data = RelationData {
            in_offset: vec![0],
            edge_weight: of.edge_weight.then(Vec::new),
            in_weight: of.edge_weight.then(Vec::new),
            self_loops: (of.from == of.to).then(Vec::new),
            self_weight: (of.from == of.to && of.edge_weight).then(Vec::new),
            edge_feature: of.edge_feature_dim.map(|cols| Dense::zeros(0, cols)),
            ..RelationData::default()
        };
        for (partition, local) in places(store, of.to) {
            let edges = partition.in_edges(relation, 0, local, limits[relation]);
            data.in_src
                .extend(edges.src.iter().map(|src| src.raw() - first));
            data.in_offset
                .push(u32::try_from(data.in_src.len()).unwrap());
            data.in_degree.push(partition.in_degree(relation, local));
            if let (Some(all), Some(weights)) = (&mut data.edge_weight, edges.weight) {
                all.extend_from_slice(weights);
            }
            if let (Some(all), Some(features)) = (&mut data.edge_feature, edges.feature) {
                all.rows += edges.src.len();
                all.values.extend_from_slice(features);
            }
            if let Some(all) = &mut data.in_weight {
                all.push(partition.in_weight(relation, local).unwrap());
            }
            if let Some(all) = &mut data.self_loops {
                all.push(partition.self_loops(relation, local).unwrap_or(0));
            }
            if let Some(all) = &mut data.self_weight {
                all.push(partition.self_weight(relation, local).unwrap_or(0.0));
            }
        }
        data
    });
    TypedBlockData {
        types: types.collect(),
        relations: relations.collect(),
    }
}
