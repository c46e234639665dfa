//! Models of every kind with random weights, saved as the trainer saves models.

use crate::graph::{CLASSES, Draws};
use crate::twin::places;
use arrow::array::Int64Array;
use gnn::typed::{
    RelationAggregator, RelationInput, TypeInput, TypedArchitecture, TypedKind, TypedModel,
    TypedModelFile, save_typed,
};
use gnn::{Activation, Aggregator, LayerKind, Norm, Task, Transform};
use schemas::{
    EmbeddingBatch, EmbeddingColumns, EmbeddingsWriter, FlattenMeta, GraphMeta, IdType, Ids,
    Labels, Opened, Output, Precision,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use store::Store;

/// A saved model.
pub(crate) struct Trained {
    pub(crate) dir: PathBuf,
    pub(crate) model: TypedModel,
    pub(crate) transforms: BTreeMap<String, Transform>,
    pub(crate) tables: Tables,
}

/// By type: the trained row of each node that has one, by its shown id.
pub(crate) type Tables = BTreeMap<String, BTreeMap<String, Vec<f32>>>;

/// The same architecture, with learnable rows of every type; those of the first come alone.
pub(crate) fn with_rows(arch: &TypedArchitecture) -> TypedArchitecture {
    let mut arch = arch.clone();
    for (at, of) in arch.types.iter_mut().enumerate() {
        let dim = 2 + at;
        of.in_dim = Some(of.in_dim.unwrap_or(0) + dim);
        of.embedding_dim = Some(dim);
    }
    arch
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
        readout: None,
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
        of_graph: (&FlattenMeta, &GraphMeta),
    ) -> Self {
        Self::save(dir, arch, of_graph, Tables::new())
    }

    /// As `new`, with a trained row for two thirds of the nodes of each type with learnable rows.
    pub(crate) fn with_tables(
        dir: PathBuf,
        arch: &TypedArchitecture,
        of_graph: (&FlattenMeta, &GraphMeta),
        store: &Store,
    ) -> Self {
        let mut draws = Draws(13);
        let types = arch.types.iter().enumerate();
        let tables = types.filter_map(|(at, of)| {
            let dim = of.embedding_dim?;
            let mut rows = BTreeMap::new();
            for (partition, local) in places(store, at) {
                let (ids, node) = partition.id(local);
                if draws.below(3) > 0 {
                    let row = (0..dim).map(|_| draws.number()).collect();
                    rows.insert(ids.display(node), row);
                }
            }
            Some((of.name.clone(), rows))
        });
        let tables = tables.collect();
        Self::save(dir, arch, of_graph, tables)
    }

    fn save(
        dir: PathBuf,
        arch: &TypedArchitecture,
        (flatten, graph): (&FlattenMeta, &GraphMeta),
        tables: Tables,
    ) -> Self {
        let mut model = TypedModel::init(arch, 5).unwrap();
        let mut draws = Draws(9);
        // Biases are not 0 and norms are not 1.
        let moved = model.flat().into_iter();
        let moved: Vec<f32> = moved.map(|x| x + 0.1 * draws.number()).collect();
        model.set_flat(&moved);
        let first = arch.types.iter().find(|of| of.features_dim() > 0);
        let transforms = first.map(|of| (of.name.clone(), Transform::RowNormalize));
        std::fs::create_dir_all(&dir).unwrap();
        let described = tables.iter().map(|(name, rows)| {
            let mut types = arch.types.iter().zip(&graph.types);
            let (of, meta) = types.find(|(of, _)| of.name == *name).unwrap();
            let dim = of.embedding_dim.unwrap();
            (name, write_table(&dir, name, (meta.id_type, dim), rows))
        });
        let described: BTreeMap<&String, serde_json::Value> = described.collect();
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
                ("embeddings".to_owned(), json!(described)),
            ]),
        };
        save_typed(&dir, &model, &file).unwrap();
        Self {
            dir,
            model,
            transforms: file.transforms,
            tables,
        }
    }
}

/// Writes a table as the trainer does; returns what `model.json` says about it.
fn write_table(
    dir: &Path,
    name: &str,
    (id_type, dim): (IdType, usize),
    rows: &BTreeMap<String, Vec<f32>>,
) -> serde_json::Value {
    let mut ids = Ids::new(id_type);
    for shown in rows.keys() {
        match id_type {
            IdType::Utf8 => ids.push_str(shown),
            _ => ids.extend_from(
                &Ids::from_array(&Int64Array::from_iter_values([shown
                    .parse::<i64>()
                    .unwrap()]))
                .unwrap(),
                0..1,
            ),
        }
    }
    let order = ids.sort_permutation();
    let all: Vec<&Vec<f32>> = rows.values().collect();
    let values: Vec<f32> = order
        .iter()
        .flat_map(|&at| all[at as usize].clone())
        .collect();
    let scratch = dir.join(format!("scratch-{name}"));
    let opened = Output::open(&scratch, "train", "of a test", false).unwrap();
    let Opened::Open(output) = opened else {
        panic!("a fresh directory");
    };
    let columns = EmbeddingColumns {
        are_changes: false,
        id_type,
        passed: None,
        vectors: vec![("embedding", dim)],
        precision: Precision::F32,
        prediction: None,
    };
    let mut writer = EmbeddingsWriter::table(&output, name, &columns).unwrap();
    let batch = EmbeddingBatch {
        ids: &ids.gather(&order),
        nodes: &[],
        vectors: &[values],
        prediction: &Labels::None,
    };
    writer.write(batch).unwrap();
    let path = writer.finish().unwrap().files[0].path.clone();
    std::fs::create_dir_all(dir.join("embeddings")).unwrap();
    std::fs::copy(output.parts_dir().join(&path), dir.join(&path)).unwrap();
    let mean = vec![0.0_f32; dim];
    json!({ "file": path, "id_type": id_type, "dim": dim, "rows": rows.len(), "mean": mean })
}

/// Changes a saved model's `model.json`.
pub(crate) fn edit(dir: &Path, from: &str, to: &str) {
    let path = dir.join(gnn::MODEL_JSON);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
}
