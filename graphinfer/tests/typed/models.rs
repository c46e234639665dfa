//! Models of every kind with random weights, saved as the trainer saves models.

use crate::graph::{CLASSES, Draws};
use gnn::typed::{
    RelationAggregator, RelationInput, TypeInput, TypedArchitecture, TypedKind, TypedModel,
    TypedModelFile, save_typed,
};
use gnn::{Activation, Aggregator, LayerKind, Norm, Task, Transform};
use schemas::{FlattenMeta, GraphMeta};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A saved model.
pub(crate) struct Trained {
    pub(crate) dir: PathBuf,
    pub(crate) model: TypedModel,
    pub(crate) transforms: BTreeMap<String, Transform>,
}

/// A model without extras, of a graph.
pub(crate) fn plain(kind: TypedKind, graph: &GraphMeta) -> TypedArchitecture {
    let heads = if kind.is_attention() { 2 } else { 1 };
    let name = |at: usize| graph.types[at].name.clone();
    let types = graph.types.iter().map(|of| TypeInput {
        name: of.name.clone(),
        in_dim: Some(of.features.dim()).filter(|&dim| dim > 0),
        embedding_dim: None,
    });
    let relations = graph.relations.iter().map(|of| RelationInput {
        name: of.name.clone(),
        from: name(of.from),
        to: name(of.to),
        edge_weight: false,
        edge_dim: None,
    });
    TypedArchitecture {
        layer: kind,
        relation_aggregator: RelationAggregator::Sum,
        aggregator: Aggregator::Mean,
        types: types.collect(),
        relations: relations.collect(),
        target_type: name(graph.target_type),
        projection: 4,
        hidden: vec![6],
        num_layers: 2,
        out_dim: CLASSES.len(),
        heads,
        out_heads: 1,
        num_bases: None,
        relation_dim: (kind == TypedKind::SimpleHgn).then_some(3),
        attention_residual: 0.0,
        dropout: 0.0,
        input_dropout: 0.0,
        attention_dropout: 0.0,
        norm: Norm::None,
        residual: false,
        normalize_output: false,
        activation: Activation::Relu,
        task: Task::Classes,
    }
}

/// Every kind, plain and with the options that change what a layer reads.
pub(crate) fn architectures(kind: TypedKind, graph: &GraphMeta) -> Vec<TypedArchitecture> {
    let base = plain(kind, graph);
    let mut with_edges = TypedArchitecture {
        projection: 8,
        hidden: vec![4],
        norm: Norm::Layer,
        residual: kind != TypedKind::Hgt,
        activation: Activation::Elu,
        relation_aggregator: match kind {
            TypedKind::Conv(_) => RelationAggregator::Mean,
            _ => RelationAggregator::Sum,
        },
        num_bases: (kind == TypedKind::Rgcn).then_some(2),
        ..base.clone()
    };
    for (relation, of) in with_edges.relations.iter_mut().zip(&graph.relations) {
        relation.edge_weight = of.edge_weight && kind.takes_edge_weights();
        relation.edge_dim = of.edge_feature_dim.filter(|_| kind.takes_edge_features());
    }
    // A linear head follows; attention of the first layer is mixed into that of the second.
    let with_head = TypedArchitecture {
        hidden: vec![6, 4],
        attention_residual: if kind == TypedKind::SimpleHgn {
            0.3
        } else {
            0.0
        },
        normalize_output: kind == TypedKind::SimpleHgn,
        ..base.clone()
    };
    let mut list = vec![base, with_edges, with_head];
    if kind == TypedKind::Conv(LayerKind::Sage) {
        list.push(TypedArchitecture {
            aggregator: Aggregator::Max,
            relation_aggregator: RelationAggregator::Max,
            ..list[0].clone()
        });
    }
    list
}

impl Trained {
    /// Draws the parameters of a model and saves it.
    pub(crate) fn new(
        dir: PathBuf,
        arch: &TypedArchitecture,
        (flatten, graph): (&FlattenMeta, &GraphMeta),
    ) -> Self {
        let mut model = TypedModel::init(arch, 5).unwrap();
        let mut draws = Draws(9);
        // Biases are not 0 and norms are not 1.
        let moved = model.flat().into_iter();
        let moved: Vec<f32> = moved.map(|x| x + 0.1 * draws.number()).collect();
        model.set_flat(&moved);
        let first = arch.types.iter().find(|of| of.in_dim.is_some());
        let transforms = first.map(|of| (of.name.clone(), Transform::RowNormalize));
        let file = TypedModelFile {
            architecture: arch.clone(),
            transforms: transforms.into_iter().collect(),
            label_scale: None,
            label_names: None,
            metrics: BTreeMap::new(),
            fanouts: json!(flatten.fanouts),
            extra: BTreeMap::from([
                ("flatten".to_owned(), json!(flatten)),
                ("graph".to_owned(), json!(graph)),
            ]),
        };
        std::fs::create_dir_all(&dir).unwrap();
        save_typed(&dir, &model, &file).unwrap();
        Self {
            dir,
            model,
            transforms: file.transforms,
        }
    }
}

/// Changes a saved model's `model.json`.
pub(crate) fn edit(dir: &Path, from: &str, to: &str) {
    let path = dir.join(gnn::MODEL_JSON);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
}
