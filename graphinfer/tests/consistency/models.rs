//! Models with random weights, saved as the trainer saves models.

use crate::SEED;
use crate::graph::{CLASSES, DIM, Draws, Graph, LabelColumn};
use arrow::array::AsArray;
use gnn::{
    Activation, Aggregator, Architecture, Decoder, Dense, LayerKind, Model, ModelFile, Norm, Task,
    Transform,
};
use schemas::xxh::file_checksum;
use schemas::{
    Fanout, FileEntry, FlattenMeta, HopFanouts, LabelKind, LabelMeta, Labels, Layout, Manifest,
    Opened, Output, PartEntry, Sampling,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The options in which a model differs from others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) layer: LayerKind,
    pub(crate) aggregator: Aggregator,
    pub(crate) in_dim: usize,
    pub(crate) heads: usize,
    pub(crate) edge_dim: Option<usize>,
    pub(crate) edge_weight: bool,
    pub(crate) norm: Norm,
    pub(crate) residual: bool,
    pub(crate) head: bool,
    /// Of a model of links.
    pub(crate) decoder: Option<Decoder>,
}

impl Default for Variant {
    fn default() -> Self {
        Self {
            layer: LayerKind::Gcn,
            aggregator: Aggregator::Mean,
            in_dim: DIM,
            heads: 1,
            edge_dim: None,
            edge_weight: false,
            norm: Norm::None,
            residual: false,
            head: false,
            decoder: None,
        }
    }
}

/// A saved model and the directory that holds it.
pub(crate) struct Trained {
    pub(crate) dir: PathBuf,
    pub(crate) model: Model,
    pub(crate) transform: Transform,
    file: ModelFile,
}

impl Trained {
    /// Draws a model with one layer for each fan-out and saves it below `dir`.
    pub(crate) fn new(
        dir: &Path,
        variant: &Variant,
        graph: &Graph,
        (fanouts, sampling): (&[Fanout], Sampling),
    ) -> Self {
        let (label, task, out_dim) = match graph.kind.labels {
            LabelColumn::Name => {
                let names = CLASSES.map(str::to_owned).to_vec();
                (
                    label("Utf8", LabelKind::ClassName { names }),
                    Task::Classes,
                    CLASSES.len(),
                )
            }
            LabelColumn::Number => (label("Float32", LabelKind::Number), Task::Regression, 1),
        };
        let (task, out_dim) = match variant.decoder {
            Some(decoder) => (Task::Links(decoder), 6),
            None => (task, out_dim),
        };
        let arch = architecture(variant, fanouts.len(), task, out_dim);
        let mut model = Model::init(&arch, 3).unwrap();
        let mut draws = Draws::new(17);
        let mut spread = |x: &f32| x + 0.1 * draws.number();
        let flat: Vec<f32> = model.flat().iter().map(&mut spread).collect();
        model.set_flat(&flat);
        let buffers: Vec<f32> = model.buffers().iter().map(&mut spread).collect();
        model.set_buffers(&buffers);
        let transform = transform_of(variant, graph);
        let flatten = FlattenMeta {
            hops: fanouts.len(),
            fanouts: HopFanouts::untyped(fanouts),
            sampling,
            seed: SEED,
            samples_per_target: 1,
            layout: Layout::Shards,
        };
        let graph = json!({
            "id_type": "int64",
            "features": { "dense": { "dim": graph.dim } },
            "label": label,
            "split": null,
            "edge_weight": graph.kind.weights,
            "edge_feature_dim": null,
            "self_loops": graph.kind.self_loops,
        });
        let file = ModelFile {
            architecture: arch,
            transform: transform.clone(),
            label_scale: None,
            label_names: None,
            metrics: BTreeMap::new(),
            fanouts: json!(fanouts),
            extra: BTreeMap::from([
                ("flatten".to_owned(), serde_json::to_value(flatten).unwrap()),
                ("graph".to_owned(), graph),
            ]),
        };
        let dir = dir.join("model");
        save(&dir, &model, &file);
        Self {
            dir,
            model,
            transform,
            file,
        }
    }

    /// Replaces the saved model by the model in memory.
    pub(crate) fn save_again(&self) {
        std::fs::remove_dir_all(&self.dir).unwrap();
        save(&self.dir, &self.model, &self.file);
    }
}

fn label(data_type: &str, kind: LabelKind) -> LabelMeta {
    LabelMeta {
        data_type: data_type.to_owned(),
        kind,
    }
}

/// Returns the transform of a variant; each transform occurs in some variant.
fn transform_of(variant: &Variant, graph: &Graph) -> Transform {
    match (variant.norm, graph.kind.sparse) {
        (_, true) => Transform::RowNormalize,
        (Norm::Layer, false) => Transform::Standardize {
            mean: vec![0.25; graph.dim],
            scale: vec![1.5; graph.dim],
        },
        _ => Transform::None,
    }
}

fn architecture(variant: &Variant, layers: usize, task: Task, out_dim: usize) -> Architecture {
    // Wider, narrower and wider again: the product comes before aggregation or after it.
    let widths = [12, 6, 18];
    let hidden = if variant.head { layers } else { layers - 1 };
    Architecture {
        layer: variant.layer,
        aggregator: variant.aggregator,
        in_dim: variant.in_dim,
        embedding_dim: None,
        edge_dim: variant.edge_dim,
        edge_weight: variant.edge_weight,
        hidden: widths[..hidden].to_vec(),
        num_layers: layers,
        out_dim,
        heads: variant.heads,
        out_heads: if variant.head { 1 } else { variant.heads },
        dropout: 0.5,
        input_dropout: 0.1,
        attention_dropout: 0.0,
        norm: variant.norm,
        residual: variant.residual,
        activation: Activation::Elu,
        task,
    }
}

fn save(dir: &Path, model: &Model, file: &ModelFile) {
    let Opened::Open(output) = Output::open(dir, "train", "model", false).unwrap() else {
        panic!("a test saves its model once");
    };
    gnn::save(dir, model, file).unwrap();
    let files = [gnn::MODEL_WEIGHTS, gnn::MODEL_JSON].map(|name| FileEntry {
        path: name.to_owned(),
        bytes: dir.join(name).metadata().unwrap().len(),
        checksum: file_checksum(&dir.join(name)).unwrap(),
    });
    let part = PartEntry {
        name: "model".to_owned(),
        files: files.to_vec(),
        rows: 0,
        targets: None,
    };
    output.commit_part(0, part).unwrap();
    let manifest = Manifest {
        parts: output.parts(),
        ..Manifest::new(
            "train",
            "model".to_owned(),
            (json!(null), json!(null)),
            SEED,
        )
    };
    output.finish(&manifest).unwrap();
}

pub(crate) fn gnn_sampling(sampling: Sampling) -> gnn::Sampling {
    match sampling {
        Sampling::Uniform => gnn::Sampling::Uniform,
        Sampling::Weighted => gnn::Sampling::Weighted,
        Sampling::Top => gnn::Sampling::Top,
    }
}

/// Returns the classes with the largest logits.
pub(crate) fn classes_of(logits: &Dense) -> Labels {
    let best = |row: usize| {
        let row = logits.row(row);
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        u32::try_from(row.iter().position(|&x| x == most).unwrap()).unwrap()
    };
    Labels::Class((0..logits.rows).map(best).collect())
}

/// Reads a string column of a Parquet file.
pub(crate) fn read_strings(path: &Path, column: &str) -> Vec<String> {
    let file = std::fs::File::open(path).unwrap();
    let reader =
        parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let mut strings = Vec::new();
    for batch in reader.build().unwrap() {
        let batch = batch.unwrap();
        let column = batch.column_by_name(column).unwrap();
        strings.extend(
            column
                .as_string::<i32>()
                .iter()
                .map(|s| s.unwrap().to_owned()),
        );
    }
    strings
}
