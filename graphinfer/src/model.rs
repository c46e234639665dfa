//! Reads a trained model and the record of its training from the directory of the model.

use crate::InferError;
use crate::config::{InferSampling, InferTypes};
use crate::plan::InferPlan;
use gnn::typed::{TypedKind, TypedModel};
use gnn::{LayerKind, Model, Task, Transform};
use graphtrainer::batch::EdgeColumns;
use graphtrainer::{
    AnyArchitecture, AnyModel, AnyModelFile, NodeEmbeddings, TableFile, load_any_with,
};
use schemas::dataset::{holds_output, verify_checksums};
use schemas::storage::entries;
use schemas::xxh::file_checksum;
use schemas::{
    FeatureMeta, FileEntry, FlattenMeta, GraphColumns, GraphMeta, LabelKind, LabelMeta, Sampling,
    SchemaError, TypeMeta, TypedColumns, keep_at_hop, read_manifest, use_at_layer,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a store must hold for a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreNeed {
    /// In-edges kept per node, for each relation of the model; `usize::MAX`: all.
    pub keep: Vec<usize>,
    /// The sample of in-edges; none: the model reads all in-edges, so the store must keep all.
    pub sample: Option<Sample>,
}

/// How the kept in-edges of a node are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// How in-edges are ranked.
    pub sampling: Sampling,
    /// Random seed of the ranking.
    pub seed: u64,
}

/// What was read of a model's directory besides its parameters.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) dir: PathBuf,
    /// Checksum of each file, by name.
    pub(crate) files: BTreeMap<String, String>,
    pub(crate) shape: Shape,
    /// How the neighbourhoods of the training were sampled; none if only all in-edges are read.
    pub(crate) sampled: Option<FlattenMeta>,
    /// Whether all in-edges are read, for the output or for the comparison.
    reads_all: bool,
    /// The graph of the training; none if the model does not record it.
    trained_on: Option<GraphMeta>,
    label_names: Option<Vec<String>>,
    /// By type with learnable rows: its table, and the file of the table.
    tables: BTreeMap<String, (TableFile, FileEntry)>,
}

/// The part of an architecture that does not depend on node types.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) num_layers: usize,
    /// Widths of the hidden layers.
    pub(crate) hidden: Vec<usize>,
    pub(crate) out_dim: usize,
    pub(crate) task: Task,
    /// Whether the last layer is the readout of graphs.
    pub(crate) has_readout: bool,
    pub(crate) num_types: usize,
    /// Number of relations; 1 if nodes have no types.
    pub(crate) num_relations: usize,
    /// Whether the only embedding is the output of the last layer.
    pub(crate) is_light: bool,
}

impl Shape {
    fn of(arch: &AnyArchitecture) -> Self {
        let (num_layers, hidden, layer) = match arch {
            AnyArchitecture::Untyped(arch) => {
                let layer = TypedKind::Conv(arch.layer);
                (arch.num_layers, arch.hidden.clone(), layer)
            }
            AnyArchitecture::Typed(arch) => (arch.num_layers, arch.hidden.clone(), arch.layer),
        };
        Self {
            num_layers,
            hidden,
            out_dim: arch.out_dim(),
            task: arch.task(),
            has_readout: arch.readout().is_some(),
            num_types: arch.type_names().len(),
            num_relations: arch.edge_columns().len(),
            is_light: layer == TypedKind::Conv(LayerKind::LightGcn),
        }
    }

    /// Returns the output width of a layer, from 1.
    pub(crate) fn output_dim(&self, layer: usize) -> usize {
        self.hidden.get(layer - 1).copied().unwrap_or(self.out_dim)
    }
}

/// A model with the record of its training.
#[derive(Debug)]
pub(crate) struct TrainedModel {
    pub(crate) model: Model,
    pub(crate) transform: Transform,
    /// The trained rows of nodes; none before the model is bound to a graph, or without such rows.
    pub(crate) embedding: Option<NodeEmbeddings>,
    /// The columns of the graph of the training; none in models of older programs.
    pub(crate) columns: Option<GraphColumns>,
    pub(crate) record: Record,
}

/// A model of a graph with node types, with the record of its training.
#[derive(Debug)]
pub(crate) struct TypedTrained {
    pub(crate) model: TypedModel,
    /// The transform of each type's raw features.
    pub(crate) transforms: Vec<Transform>,
    /// By type, the trained rows of its nodes; none before the model is bound to a graph, or without
    /// such rows.
    pub(crate) embeddings: Vec<Option<NodeEmbeddings>>,
    /// The columns of the graph of the training; none if the model does not record them.
    pub(crate) columns: Option<TypedColumns>,
    pub(crate) record: Record,
}

/// A model of either kind.
#[derive(Debug)]
pub(crate) enum Trained {
    Untyped(Box<TrainedModel>),
    Typed(Box<TypedTrained>),
}

impl Trained {
    /// Reads the model of a plan and checks its files.
    pub(crate) fn open(plan: &InferPlan) -> Result<Self, InferError> {
        let dir = &plan.model;
        let mut files = files(dir)?;
        let (model, file) = load_any_with(dir, schemas::storage::read_existing_io)?;
        let (shape, extra) = (Shape::of(&file.architecture()), file.extra());
        let tables = tables(dir, &file, &mut files)?;
        let files = (files, tables);
        Ok(match (model, &file) {
            (AnyModel::Untyped(model), AnyModelFile::Untyped(of)) => {
                Self::Untyped(Box::new(TrainedModel {
                    record: Record::new(plan, files, (shape, extra, of.label_names.clone()))?,
                    transform: of.transform.clone(),
                    embedding: None,
                    columns: entry(extra, "columns").map_err(|problem| broken(dir, problem))?,
                    model: *model,
                }))
            }
            (AnyModel::Typed(model), AnyModelFile::Typed(of)) => {
                Self::Typed(Box::new(TypedTrained {
                    record: Record::new(plan, files, (shape, extra, of.label_names.clone()))?,
                    transforms: file.transforms(),
                    embeddings: Vec::new(),
                    columns: entry(extra, "columns").map_err(|problem| broken(dir, problem))?,
                    model: *model,
                }))
            }
            _ => unreachable!("a model and its file are of one kind"),
        })
    }

    /// Sets the device that the model computes on.
    pub(crate) fn set_device(&mut self, device: gnn::Device) {
        match self {
            Self::Untyped(trained) => trained.model.set_device(device),
            Self::Typed(trained) => trained.model.set_device(device),
        }
    }

    /// Returns what was read besides the parameters.
    pub(crate) fn record(&self) -> &Record {
        match self {
            Self::Untyped(trained) => &trained.record,
            Self::Typed(trained) => &trained.record,
        }
    }

    /// Returns the columns of edges that the model reads, by relation.
    pub(crate) fn edge_columns(&self) -> Vec<EdgeColumns> {
        self.architecture().edge_columns()
    }

    /// Returns the shape of the model.
    pub(crate) fn architecture(&self) -> AnyArchitecture {
        match self {
            Self::Untyped(of) => {
                AnyArchitecture::Untyped(Box::new(of.model.architecture().clone()))
            }
            Self::Typed(of) => AnyArchitecture::Typed(Box::new(of.model.architecture().clone())),
        }
    }

    /// Returns the settings that decide the bytes of the output, with the layer of the embedding
    /// and the written types.
    pub(crate) fn settings(&self, plan: &InferPlan) -> Result<Value, InferError> {
        let plan = &self.record().completed(plan);
        match self {
            Self::Untyped(trained) => trained.record.settings(plan),
            Self::Typed(trained) => trained.settings(plan),
        }
    }

    /// Returns the kind of the layers.
    pub(crate) fn kind(&self) -> TypedKind {
        match self {
            Self::Untyped(trained) => TypedKind::Conv(trained.model.architecture().layer),
            Self::Typed(trained) => trained.model.architecture().layer,
        }
    }
}

impl TrainedModel {
    /// Tells whether a layer, from 1, reads sparse rows, for nodes with these features.
    pub(crate) fn reads_sparse(&self, layer: usize, features: FeatureMeta) -> bool {
        let is_sparse = matches!(features, FeatureMeta::Sparse { .. });
        // Learnable rows make the input of layer 1 dense.
        let stays = self.embedding.is_none();
        layer == 1 && stays && (is_sparse || self.transform.makes_sparse())
    }

    /// Logs warnings: columns cannot be checked, or the embeddings are the logits.
    pub(crate) fn warn(&self, plan: &InferPlan) {
        if plan.check_columns && self.columns.is_none() {
            let dir = self.record.dir.display();
            tracing::warn!(
                "the model in {dir} does not record the columns it was trained on (models of \
                 older versions do not), so columns and direction of the graph are not checked"
            );
        }
        self.record.warn(plan);
    }
}

impl TypedTrained {
    /// Returns the settings that decide the bytes of the output, with the layer of the embedding
    /// and the written types.
    pub(crate) fn settings(&self, plan: &InferPlan) -> Result<Value, InferError> {
        let mut settings = self.record.settings(plan)?;
        let arch = self.model.architecture();
        let names: Vec<&str> = arch.types.iter().map(|of| &of.name[..]).collect();
        let written = plan.written_types(&names, arch.target())?;
        let written: Vec<&str> = written.into_iter().map(|at| names[at]).collect();
        settings["types"] = serde_json::json!(written);
        Ok(settings)
    }
}

fn broken(dir: &Path, problem: String) -> InferError {
    InferError::Model {
        dir: dir.to_owned(),
        problem,
    }
}

impl Record {
    /// Reads what the trainer adds to `model.json`.
    fn new(
        plan: &InferPlan,
        (files, tables): (Files, BTreeMap<String, (TableFile, FileEntry)>),
        (shape, extra, label_names): (Shape, &BTreeMap<String, Value>, Option<Vec<String>>),
    ) -> Result<Self, InferError> {
        let dir = plan.model.clone();
        let broken = |problem: String| broken(&dir, problem);
        let sampled = match (plan.sampling, plan.compare_sampling) {
            (InferSampling::None, false) => None,
            (InferSampling::AsTrained, _) | (_, true) => {
                let meta: Option<FlattenMeta> = entry(extra, "flatten").map_err(broken)?;
                let silent = "does not say which in-edges it was trained on; \
                              `infer.sampling` = \"none\" reads all";
                Some(meta.ok_or_else(|| broken(silent.to_owned()))?)
            }
        };
        if let Some(meta) = &sampled {
            let (layers, fanouts) = (shape.num_layers, meta.fanouts.len());
            if fanouts != layers {
                let problem = format!("has {layers} layers but {fanouts} fan-outs");
                return Err(broken(problem));
            }
            let relations = shape.num_relations;
            let mut counts = meta.fanouts.iter().map(|of_hop| of_hop.as_ref().len());
            if let Some(count) = counts.find(|&count| count != relations) {
                let problem = format!("has {relations} relations but {count} fan-outs a hop");
                return Err(broken(problem));
            }
        }
        let checksums = files.into_iter();
        Ok(Self {
            files: checksums
                .map(|(name, entry)| (name, entry.checksum))
                .collect(),
            tables,
            shape,
            sampled,
            reads_all: plan.sampling == InferSampling::None || plan.compare_sampling,
            trained_on: entry(extra, "graph").map_err(broken)?,
            label_names,
            dir,
        })
    }

    /// Reads the trained rows of a type; none if its nodes have no learnable rows.
    pub(crate) fn embeddings(&self, name: &str) -> Result<Option<NodeEmbeddings>, InferError> {
        let table = self.tables.get(name);
        let read = table.map(|(of, entry)| NodeEmbeddings::read(&self.dir, name, of, entry));
        Ok(read.transpose()?)
    }

    /// Returns a sentence if the ids of a type of the graph cannot be those of its trained rows.
    pub(crate) fn misfit_of_ids(&self, of: &TypeMeta) -> Option<String> {
        let (table, _) = self.tables.get(&of.name)?;
        let (trained, given) = (table.id_type, of.id_type);
        let nodes = match of.name.as_str() {
            "" => "nodes".to_owned(),
            name => format!("nodes of type `{name}`"),
        };
        (trained.is_integer() != given.is_integer()).then(|| {
            format!("its learnable rows are of {nodes} whose ids are {trained}, those of the graph are {given}")
        })
    }

    /// Returns what a store must hold so that the slices find their in-edges.
    pub(crate) fn store_need(&self) -> StoreNeed {
        let relations = 0..self.shape.num_relations;
        let Some(meta) = &self.sampled else {
            return StoreNeed {
                keep: vec![usize::MAX; relations.len()],
                sample: None,
            };
        };
        let sample = Sample {
            sampling: meta.sampling,
            seed: meta.seed,
        };
        let keep = |relation| match self.reads_all {
            true => usize::MAX,
            false => keep_at_hop(&meta.fanouts, relation, 0),
        };
        StoreNeed {
            keep: relations.map(keep).collect(),
            sample: Some(sample),
        }
    }

    /// Returns the plan with the defaults of the model's task: a model of links predicts nothing,
    /// and gives the embeddings of all types.
    pub(crate) fn completed(&self, plan: &InferPlan) -> InferPlan {
        let mut plan = plan.clone();
        if self.is_of_links() {
            plan.prediction = false;
            if self.shape.num_types > 1 {
                plan.types.get_or_insert(InferTypes::All);
            }
        }
        plan
    }

    fn is_of_links(&self) -> bool {
        matches!(self.shape.task, Task::Links(_))
    }

    /// Returns the layer whose output is the embedding: the planned layer, or else the last hidden
    /// layer; of a model of links and of lightgcn the last layer. A model of one layer without a
    /// linear head has no hidden layer; then its layer is returned, whose output are the logits.
    pub(crate) fn embedding_layer(&self, plan: &InferPlan) -> Result<usize, InferError> {
        let layers = self.shape.num_layers;
        if let Some(layer) = plan.layer.filter(|_| self.shape.has_readout) {
            return Err(InferError::Key {
                key: "infer.layer",
                value: layer.to_string(),
                allowed: "the embedding of a graph is its readout; leave the key out".to_owned(),
            });
        }
        match plan.layer {
            None if self.is_of_links() || self.shape.is_light => Ok(layers),
            Some(layer) if self.shape.is_light && layer != layers => Err(InferError::Key {
                key: "infer.layer",
                value: layer.to_string(),
                allowed: format!("lightgcn has one embedding, the mean over all {layers} layers"),
            }),
            None => Ok(self.shape.hidden.len().max(1)),
            Some(layer) if (1..=layers).contains(&layer) => Ok(layer),
            Some(layer) => Err(InferError::Key {
                key: "infer.layer",
                value: layer.to_string(),
                allowed: format!("the model has layers 1 to {layers}"),
            }),
        }
    }

    /// Returns the settings that decide the bytes of the output, with the layer of the embedding.
    /// The layer is null if the plan names none and the embedding is the output of the last layer.
    pub(crate) fn settings(&self, plan: &InferPlan) -> Result<Value, InferError> {
        let found = self.embedding_layer(plan)?;
        let inner = Some(found).filter(|&layer| layer < self.shape.num_layers);
        let mut settings = plan.settings();
        settings["layer"] = serde_json::json!(plan.layer.or(inner));
        Ok(settings)
    }

    /// Returns the entry of the report that describes the embedding.
    pub(crate) fn embedding_report(&self, layer: usize) -> Value {
        let layers = self.shape.num_layers;
        serde_json::json!({
            "layer": layer,
            "layers": layers,
            "is_logits": self.gives_logits(layer),
        })
    }

    /// Logs a warning if the embeddings are the logits.
    pub(crate) fn warn(&self, plan: &InferPlan) {
        if plan.layer.is_none() && self.shape.hidden.is_empty() && !self.is_of_links() {
            let dir = self.dir.display();
            tracing::warn!("the model in {dir} has no hidden layer: its embeddings are the logits");
        }
    }

    /// Tells whether the output of a layer are logits.
    fn gives_logits(&self, layer: usize) -> bool {
        layer > self.shape.hidden.len() && !self.is_of_links()
    }

    /// Returns for each of the first `layers` layers how many in-edges of a relation it reads of a
    /// node.
    pub(crate) fn limits(
        &self,
        layers: usize,
        relation: usize,
        sampling: InferSampling,
    ) -> Vec<usize> {
        let sampled = self.sampled.as_ref();
        let sampled = sampled.filter(|_| sampling == InferSampling::AsTrained);
        let limit = |layer| match sampled {
            Some(meta) => use_at_layer(&meta.fanouts, relation, layer),
            None => usize::MAX,
        };
        (1..=layers).map(limit).collect()
    }

    /// Checks that the model has the planned layer and can give the planned columns.
    pub(crate) fn check_plan(&self, plan: &InferPlan) -> Result<(), InferError> {
        self.embedding_layer(plan)?;
        if self.is_of_links() {
            return plan.check_for_pairs();
        }
        if plan.probabilities && self.shape.task == Task::Regression {
            return Err(InferError::Key {
                key: "infer.probabilities",
                value: "true".to_owned(),
                allowed: "the model gives a number, which has no probability".to_owned(),
            });
        }
        Ok(())
    }

    /// Returns the type of predictions: the type of the labels that the model was trained on; none
    /// for a model of links.
    pub(crate) fn prediction(&self) -> Option<LabelMeta> {
        let graph = self.trained_on.as_ref().filter(|_| !self.is_of_links());
        if let Some(label) = graph.and_then(|graph| graph.target().label.clone()) {
            return Some(label);
        }
        let out_dim = self.shape.out_dim;
        let (data_type, kind) = match (self.shape.task, &self.label_names) {
            (Task::Classes, Some(names)) => (
                "Utf8",
                LabelKind::ClassName {
                    names: names.clone(),
                },
            ),
            (Task::Classes, None) => {
                let num_classes = u32::try_from(out_dim).expect("classes fit 32 bits");
                ("Int64", LabelKind::Class { num_classes })
            }
            (Task::MultiLabel, _) => ("List(Float32)", LabelKind::MultiLabel { width: out_dim }),
            (Task::Regression, _) => ("Float32", LabelKind::Number),
            (Task::Links(_), _) => return None,
        };
        Some(LabelMeta {
            data_type: data_type.to_owned(),
            kind,
        })
    }
}

/// The files of a model, by name.
type Files = BTreeMap<String, FileEntry>;

/// Lists the embedding tables of a model by type, and checks that they fit its architecture. Adds
/// their files to `files`, if these lack them.
fn tables(
    dir: &Path,
    file: &AnyModelFile,
    files: &mut Files,
) -> Result<BTreeMap<String, (TableFile, FileEntry)>, InferError> {
    let described: Option<BTreeMap<String, TableFile>> =
        entry(file.extra(), "embeddings").map_err(|problem| broken(dir, problem))?;
    let mut described = described.unwrap_or_default();
    let arch = file.architecture();
    let mut found = BTreeMap::new();
    for (name, dim) in arch.type_names().into_iter().zip(arch.embedding_dims()) {
        let Some(dim) = dim else { continue };
        let table = described.remove(name).filter(|table| table.dim == dim);
        let table = table.ok_or_else(|| {
            let problem = format!(
                "reads {dim} learnable numbers a node of type `{name}`, and names no such table \
                 under `embeddings` in model.json"
            );
            broken(dir, problem)
        })?;
        let entry = match files.get(&table.file) {
            Some(entry) => entry.clone(),
            None => file_entry(dir, &table.file)?,
        };
        files.insert(table.file.clone(), entry.clone());
        found.insert(name.to_owned(), (table, entry));
    }
    Ok(found)
}

/// Describes a file of a model without a manifest.
fn file_entry(dir: &Path, name: &str) -> Result<FileEntry, InferError> {
    let path = dir.join(name);
    let bytes = schemas::storage::size(&path)?;
    let bytes = bytes.ok_or_else(|| broken(dir, format!("has no file {name}")))?;
    Ok(FileEntry {
        path: name.to_owned(),
        bytes,
        checksum: file_checksum(&path)?,
    })
}

/// Returns the files of a model, by name.
///
/// The output of a finished training has a manifest, whose checksums are verified. If a directory
/// has only the two files of a model and no manifest, the files are hashed.
fn files(dir: &Path) -> Result<Files, InferError> {
    let broken = |problem: String| broken(dir, problem);
    let manifest = match read_manifest(dir) {
        Ok(manifest) => manifest,
        Err(unfinished @ SchemaError::NotFinished { .. }) => {
            let own = [gnn::MODEL_JSON, gnn::MODEL_WEIGHTS];
            let names = entries(dir)?;
            let is_there = own.map(|own| names.iter().any(|name| name == own));
            return match is_there {
                _ if holds_output(dir)? => Err(unfinished.into()),
                [false, false] => Err(unfinished.into()),
                [true, true] => own
                    .into_iter()
                    .map(|name| Ok((name.to_owned(), file_entry(dir, name)?)))
                    .collect(),
                [has_json, _] => {
                    let missing = own[usize::from(has_json)];
                    Err(broken(format!("has no file {missing}")))
                }
            };
        }
        Err(error) => return Err(error.into()),
    };
    if manifest.stage != "train" {
        let stage = manifest.stage;
        return Err(broken(format!(
            "is none: the directory is output of stage `{stage}`"
        )));
    }
    verify_checksums(dir, &manifest.parts)?;
    let files = manifest.parts.into_iter().flat_map(|part| part.files);
    Ok(files.map(|entry| (entry.path.clone(), entry)).collect())
}

/// Reads an entry that the trainer adds to `model.json`; none if it is missing or null.
fn entry<T: serde::de::DeserializeOwned>(
    extra: &BTreeMap<String, Value>,
    name: &str,
) -> Result<Option<T>, String> {
    let value = extra.get(name).cloned().filter(|value| !value.is_null());
    let broken = |e| format!("has an entry `{name}` in model.json that cannot be read: {e}");
    value
        .map(serde_json::from_value)
        .transpose()
        .map_err(broken)
}
