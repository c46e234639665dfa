//! Architectures of every kind with every option that changes the forward pass.

use std::sync::Arc;

use gnn::typed::{
    RelationAggregator, RelationInput, Schema, TypeInput, TypedArchitecture, TypedKind, TypedModel,
};
use gnn::{Activation, Aggregator, Labels, LayerKind, Norm, Readout, Task};

use crate::graph::EDGE_DIM;
use crate::support::Random;

/// Types of the test graphs: `place` has no features, no relation leads to `venue`.
pub(crate) const TYPES: [(&str, Option<usize>); 4] = [
    ("author", Some(5)),
    ("paper", Some(7)),
    ("place", None),
    ("venue", Some(3)),
];

/// Relations of the test graphs: two join the same types, two are of one type.
pub(crate) const RELATIONS: [(&str, &str, &str); 6] = [
    ("cites", "paper", "paper"),
    ("hosts", "venue", "paper"),
    ("knows", "author", "author"),
    ("reads", "paper", "author"),
    ("visits", "author", "place"),
    ("written_by", "paper", "author"),
];

/// A two-layer architecture without extras.
pub(crate) fn plain(layer: TypedKind) -> TypedArchitecture {
    let is_gcn = layer == TypedKind::Conv(LayerKind::Gcn);
    let heads = if layer.is_attention() { 2 } else { 1 };
    let types = TYPES.map(|(name, in_dim)| TypeInput {
        name: name.to_owned(),
        in_dim,
        embedding_dim: None,
    });
    let relation = |&(name, from, to): &(&str, &str, &str)| RelationInput {
        name: name.to_owned(),
        from: from.to_owned(),
        to: to.to_owned(),
        edge_weight: false,
        edge_dim: None,
    };
    let relations = RELATIONS
        .iter()
        .filter(|(_, from, to)| !is_gcn || from == to);
    TypedArchitecture {
        layer,
        relation_aggregator: RelationAggregator::Sum,
        aggregator: Aggregator::Mean,
        types: types.to_vec(),
        relations: relations.map(relation).collect(),
        target_type: "author".to_owned(),
        projection: 4,
        hidden: vec![6],
        num_layers: 2,
        out_dim: if layer == TypedKind::Hgt { 4 } else { 3 },
        heads,
        out_heads: heads,
        num_bases: None,
        relation_dim: (layer == TypedKind::SimpleHgn).then_some(3),
        attention_residual: 0.0,
        dropout: 0.0,
        input_dropout: 0.0,
        attention_dropout: 0.0,
        norm: Norm::None,
        residual: false,
        normalize_output: layer == TypedKind::SimpleHgn,
        activation: Activation::Relu,
        task: Task::Classes,
        readout: None,
    }
}

fn with_edges(arch: TypedArchitecture) -> TypedArchitecture {
    let mut arch = arch;
    for (at, relation) in arch.relations.iter_mut().enumerate() {
        relation.edge_weight = arch.layer.takes_edge_weights() && at != 1;
        relation.edge_dim = (arch.layer.takes_edge_features() && at != 2).then_some(EDGE_DIM);
    }
    arch
}

/// Every kind that reads features.
pub(crate) fn kinds() -> impl Iterator<Item = TypedKind> {
    TypedKind::all().filter(|kind| *kind != TypedKind::Conv(LayerKind::LightGcn))
}

/// Every kind with every option that changes its forward pass.
pub(crate) fn architectures() -> Vec<TypedArchitecture> {
    let mut list = Vec::new();
    for kind in kinds() {
        let base = plain(kind);
        list.push(base.clone());
        list.push(with_edges(TypedArchitecture {
            norm: Norm::Batch,
            activation: Activation::Elu,
            residual: kind != TypedKind::Hgt,
            ..base.clone()
        }));
        list.push(TypedArchitecture {
            hidden: vec![4, 8],
            out_heads: 1,
            norm: Norm::Layer,
            residual: kind != TypedKind::Hgt,
            task: Task::MultiLabel,
            normalize_output: true,
            ..base.clone()
        });
        // Narrow outputs: convs project before they aggregate.
        list.push(with_edges(TypedArchitecture {
            projection: 8,
            hidden: vec![4],
            task: Task::Regression,
            normalize_output: false,
            ..base
        }));
    }
    for aggregator in [RelationAggregator::Mean, RelationAggregator::Max] {
        list.push(TypedArchitecture {
            relation_aggregator: aggregator,
            ..plain(TypedKind::Conv(LayerKind::Sage))
        });
    }
    list.push(with_edges(TypedArchitecture {
        aggregator: Aggregator::Max,
        relation_aggregator: RelationAggregator::Max,
        ..plain(TypedKind::Conv(LayerKind::Sage))
    }));
    list.push(TypedArchitecture {
        num_bases: Some(2),
        ..plain(TypedKind::Rgcn)
    });
    list.push(TypedArchitecture {
        attention_residual: 0.05,
        num_layers: 3,
        hidden: vec![6, 6],
        residual: true,
        ..plain(TypedKind::SimpleHgn)
    });
    list.push(TypedArchitecture {
        attention_residual: 0.3,
        hidden: vec![6, 6],
        out_heads: 1,
        ..plain(TypedKind::SimpleHgn)
    });
    list.push(TypedArchitecture {
        target_type: "paper".to_owned(),
        ..plain(TypedKind::Hgt)
    });
    list.extend(readouts());
    list
}

/// A readout of each conv.
fn readouts() -> Vec<TypedArchitecture> {
    let mut list = Vec::new();
    for (kind, readout) in LayerKind::ALL.iter().zip([
        Readout::Mean,
        Readout::Sum,
        Readout::Max,
        Readout::Mean,
        Readout::Sum,
    ]) {
        list.push(with_readout(plain(TypedKind::Conv(*kind)), readout));
    }
    list.push(TypedArchitecture {
        norm: Norm::Batch,
        residual: true,
        projection: 8,
        task: Task::Regression,
        ..with_readout(plain(TypedKind::Conv(LayerKind::Sage)), Readout::Max)
    });
    list
}

/// Targets are graphs of authors.
fn with_readout(arch: TypedArchitecture, readout: Readout) -> TypedArchitecture {
    let graphs = TypeInput {
        name: "graph".to_owned(),
        in_dim: None,
        embedding_dim: None,
    };
    let mut arch = TypedArchitecture {
        target_type: graphs.name.clone(),
        hidden: vec![6, 6],
        num_layers: 2,
        out_heads: 1,
        readout: Some(readout),
        ..arch
    };
    arch.types.insert(1, graphs);
    let of_authors = arch.relations.iter().find(|of| of.name == "knows").cloned();
    let mut of_authors = of_authors.unwrap();
    (of_authors.name, of_authors.to) = ("in_graph".to_owned(), "graph".to_owned());
    arch.relations.push(of_authors);
    arch.relations.sort_by(|a, b| a.name.cmp(&b.name));
    arch
}

pub(crate) fn with_dropout(arch: &TypedArchitecture) -> TypedArchitecture {
    TypedArchitecture {
        dropout: 0.2,
        input_dropout: 0.2,
        attention_dropout: if arch.layer.is_attention() { 0.3 } else { 0.0 },
        ..arch.clone()
    }
}

pub(crate) fn schema(arch: &TypedArchitecture) -> Arc<Schema> {
    Arc::new(arch.schema())
}

/// A model whose biases are not 0 and whose norms are not 1.
pub(crate) fn model(arch: &TypedArchitecture, seed: u64) -> TypedModel {
    let mut model = TypedModel::init(arch, seed).unwrap();
    let mut random = Random(5);
    let moved: Vec<f32> = model
        .flat()
        .iter()
        .map(|x| x + 0.1 * random.signed())
        .collect();
    model.set_flat(&moved);
    model
}

/// Labels for the first `rows` dst nodes.
pub(crate) fn labels(arch: &TypedArchitecture, rows: usize) -> Labels {
    let mut random = Random(77);
    match arch.task {
        Task::Classes => {
            let class = |_| u32::try_from(random.below(arch.out_dim)).unwrap();
            Labels::Classes((0..rows).map(class).collect())
        }
        Task::MultiLabel => {
            let mut wanted = random.dense(rows, arch.out_dim);
            let set = |y: &mut f32| *y = f32::from(u8::from(*y > 0.0));
            wanted.values.iter_mut().for_each(set);
            Labels::MultiLabel(wanted)
        }
        Task::Regression => Labels::Regression(random.dense(rows, arch.out_dim)),
        Task::Links(_) => unreachable!("no architecture of these tests is of links"),
    }
}
