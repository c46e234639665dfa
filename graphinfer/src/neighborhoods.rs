//! Infers from stored graph features, one neighbourhood at a time: the baseline of AGL's paper.
//!
//! It gives the numbers of [`infer`](crate::infer) up to rounding, but computes a node again for
//! each batch of neighbourhoods that contain it.

use crate::InferError;
use crate::embedding::{GROUP_BYTES, embedding_columns, vectors};
use crate::graph::completed;
use crate::model::{Trained, TrainedModel, TypedTrained};
use crate::plan::InferPlan;
use crate::predict::labels;
use crate::threads::Threads;
use gnn::kernel::Partitioning;
use gnn::{Dense, Input, ReadyInput};
use graphtrainer::batch::{BlockOptions, Piece, blocks_of, typed_blocks_of};
use graphtrainer::report_device;
use schemas::{
    EmbeddingBatch, EmbeddingColumns, EmbeddingsWriter, Event, GraphColumns, GraphFeatureDataset,
    GraphShard, Ids, Labels, Manifest, Opened, Output, Progress, TypedColumns,
};
use std::time::Instant;

/// Targets whose neighbourhoods are computed together.
const BATCH_TARGETS: usize = 1024;

/// Plan, model and data that the threads share.
struct Inference<'a> {
    plan: &'a InferPlan,
    trained: &'a Trained,
    dataset: &'a GraphFeatureDataset,
    options: BlockOptions,
    columns: EmbeddingColumns,
    embedding_layer: usize,
    output: &'a Output,
}

/// Computed rows that are not written yet.
struct EmbeddedRows {
    ids: Ids,
    vectors: Vec<Vec<f32>>,
    predicted: Labels,
}

/// The embeddings of some targets, and their logits if they are read.
type Outputs = (Dense, Option<Dense>);

/// Computes the embedding and the prediction of every target of stored graph features, commits them
/// and returns the manifest. Part `p` holds the targets of part `p` of the graph features.
///
/// # Errors
///
/// If the model or the graph features are missing or do not fit each other, before anything is
/// written; if the output directory holds something else; if a part cannot be read or written.
pub fn infer_neighborhoods(plan: &InferPlan, progress: &Progress) -> Result<Manifest, InferError> {
    let started = Instant::now();
    let input = plan.input.as_ref().expect("checked with the plan");
    let dataset = GraphFeatureDataset::open(input)?;
    let mut trained = open_model(plan, &dataset)?;
    let embedding_layer = trained.record().embedding_layer(plan)?;
    let mut plan_json = trained.settings(plan)?;
    plan_json["model"] = serde_json::json!(trained.record().files);
    plan_json["input"] = serde_json::json!(dataset.manifest().fingerprint);
    let fingerprint = schemas::xxh::fingerprint(plan_json.to_string().as_bytes());
    if let Some(manifest) = finished(plan, &fingerprint)? {
        return Ok(manifest);
    }
    let device = set_device(plan, &mut trained, progress)?;
    let output = match Output::open(&plan.output, "infer", &fingerprint, plan.fresh)? {
        // Another run has finished the output in the meantime.
        Opened::Done(manifest) => return Ok(*manifest),
        Opened::Open(output) => output,
    };
    let (graph, record) = (dataset.meta(), trained.record());
    let columns = embedding_columns(plan, record, graph.target().id_type, embedding_layer)?;
    let label = columns.prediction.clone();
    let flatten = dataset.flatten();
    let inference = Inference {
        plan,
        trained: &trained,
        dataset: &dataset,
        options: BlockOptions {
            fanouts: flatten.fanouts.clone(),
            sampling: flatten.sampling,
            pruning: true,
            partitioning: Partitioning::default(),
            edges: trained.edge_columns(),
            node_keys: false,
            source_degrees: trained.architecture().reads_source_degrees(),
        },
        columns,
        embedding_layer,
        output: &output,
    };
    let parts = 0..dataset.num_parts();
    let open: Vec<usize> = parts
        .filter(|&part| output.committed(part).is_none())
        .collect();
    let threads = Threads::new(rayon::current_num_threads())?;
    threads.run(open.len(), || (), |(), at| inference.part(open[at]))?;
    progress(&Event {
        stage: "infer",
        phase: "round".to_owned(),
        done: 1,
        total: 1,
        message: None,
        fields: serde_json::json!({}),
    });
    let made_from = dataset.manifest();
    let manifest = Manifest {
        graph: Some(graph.clone().with_label(label)),
        parts: output.parts(),
        report: serde_json::json!({
            "seconds": started.elapsed().as_secs_f64(),
            "embedding": record.embedding_report(embedding_layer),
            "device": device,
        }),
        ..Manifest::new(
            "infer",
            fingerprint,
            (plan_json, made_from.input.clone()),
            made_from.seed,
        )
    };
    output.finish(&manifest)?;
    Ok(manifest)
}

/// Returns the manifest of a finished output.
fn finished(plan: &InferPlan, fingerprint: &str) -> Result<Option<Manifest>, InferError> {
    Ok(match plan.fresh {
        true => None,
        false => Output::done(&plan.output, "infer", fingerprint)?,
    })
}

/// Puts a model on the device of the plan and reports the device; returns its name.
fn set_device(
    plan: &InferPlan,
    trained: &mut Trained,
    progress: &Progress,
) -> Result<String, InferError> {
    let device = plan.open_device()?;
    report_device("infer", &device, progress);
    let name = device.name().to_owned();
    trained.set_device(device);
    Ok(name)
}

/// Opens the model of a plan and checks that it fits graph features; logs warnings about the model.
fn open_model(plan: &InferPlan, dataset: &GraphFeatureDataset) -> Result<Trained, InferError> {
    let trained = Trained::open(plan)?;
    match &trained {
        Trained::Untyped(trained) => {
            trained.check_graph(dataset.meta())?;
            let columns = GraphColumns::of_manifest(&dataset.manifest().input);
            trained.check_columns(plan, columns.as_ref())?;
            trained.check_plan(plan)?;
            trained.warn(plan);
        }
        Trained::Typed(trained) => {
            trained.check_graph(dataset.meta())?;
            let columns = TypedColumns::of_manifest(&dataset.manifest().input);
            trained.check_columns(plan, columns.as_ref())?;
            trained.check_plan(plan)?;
            trained.record.warn(plan);
        }
    }
    trained.record().check_flatten(dataset.flatten())?;
    trained.bound_to(dataset.meta())
}

impl Inference<'_> {
    /// Computes and writes the targets of a part.
    fn part(&self, index: usize) -> Result<(), InferError> {
        let shard = self.dataset.read_part(index)?;
        let targets: Vec<u32> = shard.targets().collect();
        let name = &self.dataset.meta().target().name;
        let mut writer = match name.is_empty() {
            true => EmbeddingsWriter::create(self.output, index, &self.columns)?,
            false => EmbeddingsWriter::of_type(self.output, name, index, &self.columns)?,
        };
        let widths = self.columns.vectors.iter().map(|(_, width)| width);
        let group_rows = (GROUP_BYTES / (4 * widths.sum::<usize>())).max(1);
        let mut rows = self.no_rows(&shard);
        for batch in targets.chunks(BATCH_TARGETS) {
            self.batch(&shard, batch, &mut rows)?;
            if rows.ids.len() >= group_rows {
                write(&mut writer, &rows)?;
                rows = self.no_rows(&shard);
            }
        }
        if !rows.ids.is_empty() {
            write(&mut writer, &rows)?;
        }
        let entry = writer.finish()?;
        Ok(self.output.commit_part(index, entry)?)
    }

    fn no_rows(&self, shard: &GraphShard) -> EmbeddedRows {
        EmbeddedRows {
            ids: Ids::new(shard.target_nodes().ids.id_type()),
            vectors: vec![Vec::new(); self.columns.vectors.len()],
            predicted: Labels::empty(self.columns.prediction.as_ref()),
        }
    }

    /// Runs the model on the neighbourhoods of some targets, and adds their rows.
    fn batch(
        &self,
        shard: &GraphShard,
        targets: &[u32],
        rows: &mut EmbeddedRows,
    ) -> Result<(), InferError> {
        let piece = Piece { shard, targets };
        let (embedding, logits) = match self.trained {
            Trained::Untyped(trained) => self.run(trained, piece)?,
            Trained::Typed(trained) => self.run_typed(trained, piece)?,
        };
        let (record, shape) = (self.trained.record(), &self.trained.record().shape);
        let computed = [
            (Some(&embedding), self.embedding_layer),
            (logits.as_ref(), shape.num_layers),
        ];
        for (given, layer) in computed {
            let Some(given) = given else { continue };
            if let Some(bad) = given.values.iter().position(|value| !value.is_finite()) {
                return Err(InferError::NotFinite {
                    dir: record.dir.clone(),
                    layer,
                    id: shard
                        .target_nodes()
                        .ids
                        .display(targets[bad / given.cols] as usize),
                });
            }
        }
        if let (Some(logits), true) = (&logits, self.plan.prediction) {
            rows.predicted.extend(&labels(logits, shape.task));
        }
        let settings = (shape.task, self.plan.normalize);
        let more = vectors(&self.columns, embedding, logits.as_ref(), settings);
        for (all, values) in rows.vectors.iter_mut().zip(more) {
            all.extend(values);
        }
        rows.ids.extend_gather(&shard.target_nodes().ids, targets);
        Ok(())
    }

    fn run(&self, trained: &TrainedModel, piece: Piece<'_>) -> Result<Outputs, InferError> {
        let model = &trained.model;
        let mut batch = blocks_of(&[piece], &self.options)?;
        trained.transform.apply(&mut batch.input)?;
        let own = &piece.shard.nodes[0].ids;
        let ids = batch.nodes.iter().map(|place| (own, place.node as usize));
        let input_rows = match &trained.embedding {
            Some(embedding) => completed(batch.input, embedding, ids),
            None => batch.input,
        };
        let mut input = ReadyInput::new(input_rows)?;
        let mut embedding = None;
        let mut last = Dense::default();
        for (layer, block) in (1..).zip(&batch.blocks) {
            last = model.forward_layer(layer, block, &input)?;
            if layer == self.embedding_layer {
                let (rows, cols) = (piece.targets.len(), last.cols);
                embedding = Some(Dense {
                    rows,
                    cols,
                    values: last.values[..rows * cols].to_vec(),
                });
                if !self.plan.reads_logits() {
                    break;
                }
            }
            input = ReadyInput::new(Input::Dense(last.clone()))?;
        }
        let logits = match self.plan.reads_logits() {
            true => Some(model.forward_head(last)?),
            false => None,
        };
        Ok((embedding.expect("the model has the layer"), logits))
    }

    fn run_typed(&self, trained: &TypedTrained, piece: Piece<'_>) -> Result<Outputs, InferError> {
        let model = &trained.model;
        let batch = typed_blocks_of(model.schema(), &[piece], &self.options)?;
        let of_types = batch.input.into_iter().zip(&trained.transforms).enumerate();
        let input = of_types.map(|(node_type, (mut features, transform))| {
            if let Some(features) = &mut features {
                transform.apply(features)?;
            }
            let places = &batch.nodes[node_type];
            let own = &piece.shard.nodes[node_type].ids;
            let ids = places.iter().map(|place| (own, place.node as usize));
            let completed = match &trained.embeddings[node_type] {
                Some(_) if places.is_empty() => None,
                Some(embedding) => {
                    let no_features = || Input::Dense(Dense::zeros(places.len(), 0));
                    let features = features.unwrap_or_else(no_features);
                    Some(completed(features, embedding, ids))
                }
                None => features,
            };
            Ok::<_, InferError>(completed.map(ReadyInput::new).transpose()?)
        });
        let input = input.collect::<Result<Vec<Option<ReadyInput>>, _>>()?;
        let with_logits = self.plan.reads_logits();
        let wanted = (self.embedding_layer, model.architecture().target());
        Ok(model.forward_embedding((&batch.blocks, &input), wanted, with_logits)?)
    }
}

fn write(writer: &mut EmbeddingsWriter, rows: &EmbeddedRows) -> Result<(), InferError> {
    Ok(writer.write(EmbeddingBatch {
        ids: &rows.ids,
        nodes: &[],
        vectors: &rows.vectors,
        prediction: &rows.predicted,
    })?)
}
