//! Variants of models and graphs: every layer kind, each with other options.

use crate::graph::{Kind, LabelColumn};
use crate::models::Variant;
use gnn::{Aggregator, LayerKind, Norm};

/// A graph with integer ids, dense features and class labels, and nothing else.
pub(crate) const PLAIN: Kind = Kind {
    string_ids: false,
    weights: false,
    edge_dim: 0,
    sparse: false,
    self_loops: false,
    labels: LabelColumn::Name,
};

pub(crate) fn variants() -> Vec<(Variant, Kind)> {
    let all = [convolutions(), samples(), attentions(), isomorphisms()];
    all.into_iter().flatten().collect()
}

fn convolutions() -> Vec<(Variant, Kind)> {
    let plain = Variant {
        layer: LayerKind::Gcn,
        ..Variant::default()
    };
    let full = Variant {
        edge_weight: true,
        norm: Norm::Batch,
        residual: true,
        ..plain
    };
    let weighted = Kind {
        weights: true,
        self_loops: true,
        ..PLAIN
    };
    let strings = Kind {
        string_ids: true,
        ..weighted
    };
    let sparse = Kind {
        sparse: true,
        ..weighted
    };
    // The last model does not use the weights of its graph.
    vec![(plain, PLAIN), (full, strings), (plain, sparse)]
}

fn samples() -> Vec<(Variant, Kind)> {
    let plain = Variant {
        layer: LayerKind::Sage,
        ..Variant::default()
    };
    let head = Variant {
        head: true,
        ..plain
    };
    let weighted = Variant {
        edge_weight: true,
        norm: Norm::Layer,
        ..plain
    };
    let max = Variant {
        aggregator: Aggregator::Max,
        residual: true,
        ..plain
    };
    let sparse = Kind {
        sparse: true,
        self_loops: true,
        ..PLAIN
    };
    let numbers = Kind {
        weights: true,
        labels: LabelColumn::Number,
        ..PLAIN
    };
    let strings = Kind {
        string_ids: true,
        self_loops: true,
        ..PLAIN
    };
    vec![(head, sparse), (weighted, numbers), (max, strings)]
}

fn attentions() -> Vec<(Variant, Kind)> {
    let first = Variant {
        layer: LayerKind::Gat,
        heads: 2,
        edge_dim: Some(3),
        ..Variant::default()
    };
    let second = Variant {
        layer: LayerKind::GatV2,
        heads: 3,
        edge_weight: true,
        norm: Norm::Layer,
        ..Variant::default()
    };
    let featured = Kind {
        edge_dim: 3,
        self_loops: true,
        ..PLAIN
    };
    let sparse = Kind {
        weights: true,
        sparse: true,
        self_loops: true,
        ..PLAIN
    };
    vec![(first, featured), (second, sparse)]
}

fn isomorphisms() -> Vec<(Variant, Kind)> {
    let weighted = Variant {
        layer: LayerKind::Gin,
        norm: Norm::Batch,
        edge_weight: true,
        ..Variant::default()
    };
    let featured = Variant {
        layer: LayerKind::Gin,
        edge_dim: Some(2),
        head: true,
        residual: true,
        ..Variant::default()
    };
    let weights = Kind {
        weights: true,
        ..PLAIN
    };
    let features = Kind {
        edge_dim: 2,
        string_ids: true,
        self_loops: true,
        ..PLAIN
    };
    vec![(weighted, weights), (featured, features)]
}
