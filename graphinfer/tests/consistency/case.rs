//! Runs inference on a generated graph and compares its rows with the twins.

use crate::SEED;
use crate::graph::{Graph, quiet};
use crate::models::{self, Trained};
use crate::twin;
use gnn::{Dense, Mode};
use graphflat::{FlattenSpec, flatten};
use graphinfer::{InferContext, InferPlan, InferSpec, infer};
use graphtrainer::batch::{BlockOptions, EdgeColumns, Piece, blocks_of};
use schemas::{
    EmbeddingRows, EmbeddingsDataset, Fanout, GraphFeatureDataset, HopFanouts, Layout, Manifest,
    Sampling, keep_at_hop,
};
use std::collections::BTreeMap;
use std::path::Path;
use store::Store;

/// Largest error, relative to the largest number of the embedding: sums of f32 in another order.
const TOLERANCE: f32 = 1e-5;

/// Nodes in a part: few, so that every test has several parts and the last part is short.
const ROWS_PER_PART: usize = 16;

/// One graph and model in a temporary directory.
pub(crate) struct Case<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) graph: &'a Graph,
    pub(crate) trained: &'a Trained,
    pub(crate) sampling: Sampling,
}

impl<'a> Case<'a> {
    /// A model of uniform samples, in its directory.
    pub(crate) fn uniform(dir: &'a Path, graph: &'a Graph, trained: &'a Trained) -> Self {
        Self {
            dir,
            graph,
            trained,
            sampling: Sampling::Uniform,
        }
    }

    pub(crate) fn store(&self, workers: usize, keep: usize) -> Store {
        self.graph
            .store(self.dir, workers, keep, (self.sampling, SEED))
    }

    pub(crate) fn plan(&self, output: &str, extra: &str) -> InferPlan {
        plan(self.dir, &self.trained.dir, output, extra)
    }

    /// Runs inference with `workers` workers, a page cache that holds no file, and memory for few
    /// rows; reads all rows back.
    pub(crate) fn infer_from_disk(
        &self,
        (workers, memory_budget): (usize, usize),
        keep: usize,
        extra: &str,
    ) -> (Manifest, EmbeddingRows) {
        let options: String = extra.chars().filter(char::is_ascii_alphanumeric).collect();
        let output = format!("from-disk-{workers}-{memory_budget}-{keep}-{options}");
        let (of_store, draws) = ((workers, keep), (self.sampling, SEED));
        let store = self
            .graph
            .store_in(self.dir, of_store, draws, (memory_budget, Some(0)));
        let plan = self.plan(&output, extra);
        let manifest = infer(&plan, &store, &quiet()).unwrap();
        (manifest, read(plan.output(), self.graph.num_nodes()))
    }

    /// Runs inference with `workers` workers and reads all rows back.
    pub(crate) fn infer(
        &self,
        workers: usize,
        keep: usize,
        extra: &str,
    ) -> (Manifest, EmbeddingRows) {
        let options: String = extra.chars().filter(char::is_ascii_alphanumeric).collect();
        let plan = self.plan(&format!("embeddings-{workers}-{keep}-{options}"), extra);
        let manifest = infer(&plan, &self.store(workers, keep), &quiet()).unwrap();
        (manifest, read(plan.output(), self.graph.num_nodes()))
    }
}

pub(crate) fn plan(dir: &Path, model: &Path, output: &str, extra: &str) -> InferPlan {
    let text = format!(r#"{{"output": "{output}"{extra}}}"#);
    let mut spec: InferSpec = serde_json::from_str(&text).unwrap();
    spec.rows_per_part.get_or_insert(ROWS_PER_PART);
    // The twins compute the last layer's output, with or without a head.
    spec.layer = spec.layer.or_else(|| num_layers(model));
    let model = Some(model.to_owned());
    let ctx = InferContext {
        model,
        base: dir.to_owned(),
        input: None,
        nodes: None,
        work_dir: dir.join("work"),
        fresh: false,
    };
    spec.into_plan(ctx).unwrap()
}

/// Returns the number of layers of a model; none if the directory holds no model.
fn num_layers(model: &Path) -> Option<usize> {
    let (model, _) = gnn::load(model).ok()?;
    Some(model.architecture().num_layers)
}

pub(crate) fn read(dir: &Path, num_nodes: usize) -> EmbeddingRows {
    let dataset = EmbeddingsDataset::open(dir).unwrap();
    let mut parts = (0..dataset.num_parts()).map(|part| dataset.read_part(part).unwrap());
    let mut all = parts.next().unwrap();
    for part in parts {
        all.ids.extend_from(&part.ids, 0..part.ids.len());
        all.embedding.extend(part.embedding);
        all.prediction.extend(&part.prediction);
    }
    assert_eq!(all.ids.len(), num_nodes);
    let ascends = (1..num_nodes).all(|i| all.ids.cmp(i - 1, &all.ids, i).is_lt());
    assert!(ascends, "rows stand in order of ids");
    all
}

fn scale_of_row(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most: f32, x| most.max(x.abs()))
}

fn assert_close(scale: f32, what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (x, y) in got.iter().zip(expected) {
        let error = (x - y).abs() / scale.max(f32::MIN_POSITIVE);
        assert!(
            error <= TOLERANCE,
            "{what}: {x} is not {y}, relative error {error}"
        );
    }
}

pub(crate) fn assert_rows_close(what: &str, got: &EmbeddingRows, expected: &Dense) {
    assert_eq!(got.dim, expected.cols, "{what}");
    for (row, values) in got.embedding.chunks(got.dim).enumerate() {
        let what = format!("{what}, node {}", got.ids.display(row));
        let expected = expected.row(row);
        assert_close(scale_of(expected, got), &what, values, expected);
    }
}

/// Returns the number that errors of a node's embedding are relative to: its largest number. An
/// embedding of one number may be near zero because large numbers cancelled out, so the largest
/// number of all nodes is returned.
fn scale_of(expected: &[f32], all: &EmbeddingRows) -> f32 {
    scale_of_row(if all.dim == 1 {
        &all.embedding
    } else {
        expected
    })
}

/// Compares inference by slices with forward on every target's GraphFeature, in both layouts, and
/// with forward on batches as the trainer makes them.
pub(crate) fn check_graph_features(case: &Case<'_>, fanouts: &[Fanout], got: &EmbeddingRows) {
    let num_nodes = case.graph.num_nodes();
    let row_of: BTreeMap<String, usize> = (0..num_nodes)
        .map(|row| (got.ids.display(row), row))
        .collect();
    let embedding = |id: &str| &got.embedding[row_of[id] * got.dim..][..got.dim];
    let store = case.store(2, keep_at_hop(fanouts, 0, 0));
    for layout in [Layout::Rows, Layout::Shards] {
        let dataset = flatten_all(case, &store, fanouts, layout);
        let mut num_targets = 0;
        for part in 0..dataset.num_parts() {
            for feature in dataset.read_features(part).unwrap() {
                let sampling = models::gnn_sampling(case.sampling);
                let expected = twin::neighbourhood(
                    &feature,
                    &case.trained.model,
                    &case.trained.transform,
                    (fanouts, sampling),
                );
                let id = feature.target_nodes().node_id.display(0);
                assert_close(
                    scale_of(&expected, got),
                    &format!("{layout:?}, target {id}"),
                    embedding(&id),
                    &expected,
                );
                num_targets += 1;
            }
            check_batch(case, fanouts, &dataset, part, got, embedding);
        }
        assert_eq!(num_targets, num_nodes);
    }
}

fn check_batch<'a>(
    case: &Case<'_>,
    fanouts: &[Fanout],
    dataset: &GraphFeatureDataset,
    part: usize,
    got: &EmbeddingRows,
    embedding: impl Fn(&str) -> &'a [f32],
) {
    let model = &case.trained.model;
    let arch = model.architecture();
    let shard = dataset.read_part(part).unwrap();
    let targets: Vec<u32> = shard.targets().collect();
    let options = BlockOptions {
        node_keys: true,
        fanouts: HopFanouts::untyped(fanouts),
        sampling: case.sampling,
        pruning: true,
        partitioning: gnn::kernel::Partitioning::EdgeBalanced,
        edges: vec![EdgeColumns {
            weight: arch.edge_weight,
            dim: arch.edge_dim,
        }],
        source_degrees: arch.layer.reads_source_degrees(),
    };
    let piece = Piece {
        shard: &shard,
        targets: &targets,
    };
    let mut batch = blocks_of(&[piece], &options).unwrap();
    case.trained.transform.apply(&mut batch.input).unwrap();
    let logits = model
        .forward(&batch.blocks, &batch.input, Mode::Eval)
        .unwrap();
    for (row, &target) in targets.iter().enumerate() {
        let id = shard.target_nodes().ids.display(target as usize);
        let values = embedding(&id).to_vec();
        let expected = model
            .forward_head(Dense {
                rows: 1,
                cols: values.len(),
                values,
            })
            .unwrap();
        // The logits of a head are no embedding: for them, only the row's own scale is known.
        let scale = match arch.has_head() {
            true => scale_of_row(logits.row(row)),
            false => scale_of(logits.row(row), got),
        };
        assert_close(
            scale,
            &format!("batch, target {id}"),
            &expected.values,
            logits.row(row),
        );
    }
}

fn flatten_all(
    case: &Case<'_>,
    store: &Store,
    fanouts: &[Fanout],
    layout: Layout,
) -> GraphFeatureDataset {
    let output = format!("graph-features-{layout:?}");
    let spec = serde_json::json!({
        "output": output,
        "hops": fanouts.len(),
        "fanouts": fanouts,
        "sampling": case.sampling,
        "layout": layout,
        "targets": "all",
        "targets_per_part": case.graph.num_nodes().div_ceil(3),
    });
    let spec: FlattenSpec = serde_json::from_value(spec).unwrap();
    flatten(&spec.into_plan(case.dir, false).unwrap(), store, &quiet()).unwrap();
    GraphFeatureDataset::open(&case.dir.join(output)).unwrap()
}

/// Runs a case with 1, 2, 3 and 8 workers, and with rows that are read from the disk in order; all
/// must write the same bytes. Returns the rows.
pub(crate) fn same_bytes_for_any_worker_count(
    case: &Case<'_>,
    keep: usize,
    extra: &str,
) -> EmbeddingRows {
    let (one, rows) = case.infer(1, keep, extra);
    assert!(one.parts.len() > 1, "several workers write");
    for workers in [2, 3, 8] {
        let (other, _) = case.infer(workers, keep, extra);
        assert_eq!(other.parts, one.parts, "{workers} workers");
        assert_eq!(other.fingerprint, one.fingerprint, "{workers} workers");
    }
    for workers in [1, 3] {
        let (other, _) = case.infer_from_disk((workers, 1 << 15), keep, extra);
        assert_eq!(other.parts, one.parts, "{workers} workers, from disk");
        assert_eq!(
            other.fingerprint, one.fingerprint,
            "{workers} workers, from disk"
        );
    }
    rows
}
