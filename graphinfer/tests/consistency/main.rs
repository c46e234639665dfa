//! Sliced inference equals whole-graph forward and forward on each GraphFeature.
#![cfg(test)]

#[expect(
    clippy::shadow_unrelated,
    reason = "loops name an element like its list"
)]
#[path = "../../../gnn/tests/support/twin.rs"]
mod formula;
mod graph;
mod hubs;
mod models;
mod refused;
mod rounds;
mod twin;
mod variants;

use gnn::{Aggregator, Dense, LayerKind, Mode};
use graph::{CLASSES, DIM, Graph, NUM_NODES, quiet};
use graphflat::{FlattenSpec, flatten};
use graphinfer::{InferContext, InferPlan, InferSpec, infer};
use graphtrainer::batch::{BlockOptions, Piece, blocks_of};
use models::{Trained, Variant};
use schemas::{
    EmbeddingRows, EmbeddingsDataset, ErrorKind, Fanout, GraphFeatureDataset, Layout, Manifest,
    Opened, Output, Sampling, keep_at_hop,
};
use std::collections::BTreeMap;
use std::path::Path;
use store::Store;
use variants::{PLAIN, variants};

/// Relative to the largest number of a node's embedding: sums of f32 in another order.
const TOLERANCE: f32 = 1e-5;

const SEED: u64 = 11;

/// Small parts, so that every test has several and the last one is short.
const ROWS_PER_PART: usize = 16;

const ALL: Fanout = Fanout::All;

/// One inference with its temporary folder.
struct Case<'a> {
    dir: &'a Path,
    graph: &'a Graph,
    trained: &'a Trained,
    sampling: Sampling,
}

impl Case<'_> {
    fn store(&self, workers: usize, keep: usize) -> Store {
        self.graph
            .store(self.dir, workers, keep, (self.sampling, SEED))
    }

    fn plan(&self, output: &str, extra: &str) -> InferPlan {
        plan(self.dir, &self.trained.dir, output, extra)
    }

    /// Runs inference with some workers and reads all rows back.
    fn infer(&self, workers: usize, keep: usize, extra: &str) -> (Manifest, EmbeddingRows) {
        let options: String = extra.chars().filter(char::is_ascii_alphanumeric).collect();
        let plan = self.plan(&format!("embeddings-{workers}-{keep}-{options}"), extra);
        let manifest = infer(&plan, &self.store(workers, keep), &quiet()).unwrap();
        (manifest, read(plan.output(), self.graph.num_nodes()))
    }
}

fn plan(dir: &Path, model: &Path, output: &str, extra: &str) -> InferPlan {
    let text = format!(r#"{{"output": "{output}"{extra}}}"#);
    let mut spec: InferSpec = serde_json::from_str(&text).unwrap();
    spec.rows_per_part.get_or_insert(ROWS_PER_PART);
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

fn read(dir: &Path, num_nodes: usize) -> EmbeddingRows {
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

fn assert_rows_close(what: &str, got: &EmbeddingRows, expected: &Dense) {
    assert_eq!(got.dim, expected.cols, "{what}");
    for (row, values) in got.embedding.chunks(got.dim).enumerate() {
        let what = format!("{what}, node {}", got.ids.display(row));
        let expected = expected.row(row);
        assert_close(scale_of(expected, got), &what, values, expected);
    }
}

/// What errors of a node's embedding are relative to: its largest number. A single number near zero
/// is what large ones left of each other: as exact as those of other nodes.
fn scale_of(expected: &[f32], all: &EmbeddingRows) -> f32 {
    scale_of_row(if all.dim == 1 {
        &all.embedding
    } else {
        expected
    })
}

/// Compares sliced inference with forward on every target's GraphFeature, in both layouts, and in
/// batches as the trainer makes them.
fn check_graph_features(case: &Case<'_>, fanouts: &[Fanout], got: &EmbeddingRows) {
    let num_nodes = case.graph.num_nodes();
    let row_of: BTreeMap<String, usize> = (0..num_nodes)
        .map(|row| (got.ids.display(row), row))
        .collect();
    let embedding = |id: &str| &got.embedding[row_of[id] * got.dim..][..got.dim];
    let store = case.store(2, keep_at_hop(fanouts, 0));
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
                let id = feature.node_id.display(0);
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
    let targets: Vec<u32> = (0u32..)
        .zip(&shard.is_target)
        .filter_map(|(node, is_target)| is_target.then_some(node))
        .collect();
    let options = BlockOptions {
        fanouts: fanouts.to_vec(),
        sampling: case.sampling,
        pruning: true,
        partitioning: gnn::kernel::Partitioning::EdgeBalanced,
        edge_weight: arch.edge_weight,
        edge_dim: arch.edge_dim,
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
        let id = shard.ids.display(target as usize);
        let values = embedding(&id).to_vec();
        let expected = model
            .forward_head(Dense {
                rows: 1,
                cols: values.len(),
                values,
            })
            .unwrap();
        // A head's logits are no embedding: of those, only the row's own scale is known.
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

/// Runs a variant with 1 to 4 workers; all must write the same bytes. Returns the rows.
fn same_bytes_for_any_worker_count(case: &Case<'_>, keep: usize, extra: &str) -> EmbeddingRows {
    let (one, rows) = case.infer(1, keep, extra);
    assert!(one.parts.len() > 1, "several workers write");
    for workers in [2, 3, 8] {
        let (other, _) = case.infer(workers, keep, extra);
        assert_eq!(other.parts, one.parts, "{workers} workers");
        assert_eq!(other.fingerprint, one.fingerprint, "{workers} workers");
    }
    rows
}

#[test]
fn without_sampling_all_paths_agree() {
    for (seed, (variant, kind)) in (0..).zip(variants()) {
        let dir = tempfile::tempdir().unwrap();
        let graph = Graph::random(kind, seed);
        let fanouts = [ALL, ALL];
        let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, Sampling::Uniform));
        let case = Case {
            dir: dir.path(),
            graph: &graph,
            trained: &trained,
            sampling: Sampling::Uniform,
        };
        let rows = same_bytes_for_any_worker_count(&case, usize::MAX, "");
        let expected = twin::whole_graph(&graph, &trained.model, &trained.transform, fanouts.len());
        assert_rows_close(&format!("{variant:?} {kind:?}"), &rows, &expected);
        check_graph_features(&case, &fanouts, &rows);
    }
}

/// Invariants 1 and 2 target by target, and 3 for inference, on a real graph.
fn agrees_on_cora(variants: &[(LayerKind, Aggregator)]) {
    let Some(graph) = Graph::cora(PLAIN) else {
        return;
    };
    let choices = [[ALL, ALL], [Fanout::Count(3), Fanout::Count(5)]];
    for (&(layer, aggregator), fanouts) in variants.iter().flat_map(|v| choices.map(|f| (v, f))) {
        let variant = Variant {
            layer,
            aggregator,
            in_dim: graph.dim,
            ..Variant::default()
        };
        let dir = tempfile::tempdir().unwrap();
        let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, Sampling::Uniform));
        let case = Case {
            dir: dir.path(),
            graph: &graph,
            trained: &trained,
            sampling: Sampling::Uniform,
        };
        let keep = keep_at_hop(&fanouts, 0);
        let extra = r#", "rows_per_part": 500"#;
        let rows = same_bytes_for_any_worker_count(&case, keep, extra);
        if fanouts == [ALL, ALL] {
            let expected = twin::whole_graph(&graph, &trained.model, &trained.transform, 2);
            assert_rows_close(&format!("{variant:?} on Cora"), &rows, &expected);
        }
        check_graph_features(&case, &fanouts, &rows);
    }
}

#[test]
fn convolutions_agree_on_cora() {
    agrees_on_cora(&[
        (LayerKind::Gcn, Aggregator::Mean),
        (LayerKind::Gin, Aggregator::Mean),
    ]);
}

#[test]
fn samples_agree_on_cora() {
    agrees_on_cora(&[
        (LayerKind::Sage, Aggregator::Mean),
        (LayerKind::Sage, Aggregator::Max),
    ]);
}

#[test]
fn attentions_agree_on_cora() {
    agrees_on_cora(&[
        (LayerKind::Gat, Aggregator::Mean),
        (LayerKind::GatV2, Aggregator::Mean),
    ]);
}

/// Some workers then own no node at all.
#[test]
fn more_workers_than_nodes_give_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::sized(PLAIN, 5, (10, DIM));
    let (fanouts, sampling) = ([Fanout::Count(2), ALL], Sampling::Uniform);
    let variant = Variant::default();
    let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, sampling));
    let case = Case {
        dir: dir.path(),
        graph: &graph,
        trained: &trained,
        sampling,
    };
    let extra = r#", "rows_per_part": 3"#;
    let (one, _) = case.infer(1, usize::MAX, extra);
    for workers in [9, 10, 11, 32] {
        let (other, _) = case.infer(workers, usize::MAX, extra);
        assert_eq!(other.parts, one.parts, "{workers} workers");
    }
}

#[test]
fn blocks_of_any_size_give_the_same_bytes() {
    // More nodes than a block is filled up to, and features wider than what the matrix library
    // sums in one go.
    let size = (2_100, 600);
    let fanouts = [ALL, ALL];
    for (seed, (variant, kind)) in (0..).zip(variants()) {
        let variant = Variant {
            in_dim: size.1,
            ..variant
        };
        let dir = tempfile::tempdir().unwrap();
        let graph = Graph::sized(kind, seed, size);
        let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, Sampling::Uniform));
        let case = Case {
            dir: dir.path(),
            graph: &graph,
            trained: &trained,
            sampling: Sampling::Uniform,
        };
        let extra = r#", "rows_per_part": 500"#;
        let rows = same_bytes_for_any_worker_count(&case, usize::MAX, extra);
        let expected = twin::whole_graph(&graph, &trained.model, &trained.transform, fanouts.len());
        assert_rows_close(&format!("{variant:?} {kind:?}"), &rows, &expected);
    }
}

#[test]
fn with_sampling_inference_is_forward_on_the_graph_feature() {
    let fanouts: [&[Fanout]; 4] = [
        &[Fanout::Count(5), Fanout::Count(2)],
        &[Fanout::Count(2), Fanout::Count(5)],
        &[ALL, Fanout::Count(3)],
        &[Fanout::Count(2), Fanout::Count(4), Fanout::Count(3)],
    ];
    for (seed, (variant, kind)) in (0..).zip(variants()) {
        let samplings: &[Sampling] = match kind.weights {
            true => &[Sampling::Uniform, Sampling::Weighted, Sampling::Top],
            false => &[Sampling::Uniform],
        };
        for (turn, &sampling) in samplings.iter().enumerate() {
            let fanouts = fanouts[(usize::try_from(seed).unwrap() + turn) % fanouts.len()];
            let dir = tempfile::tempdir().unwrap();
            let graph = Graph::random(kind, 100 + seed);
            let trained = Trained::new(dir.path(), &variant, &graph, (fanouts, sampling));
            let case = Case {
                dir: dir.path(),
                graph: &graph,
                trained: &trained,
                sampling,
            };
            let keep = keep_at_hop(fanouts, 0);
            let rows = same_bytes_for_any_worker_count(&case, keep, "");
            check_graph_features(&case, fanouts, &rows);
        }
    }
}

#[test]
fn a_store_that_keeps_more_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 5);
    let fanouts = [Fanout::Count(3), Fanout::Count(2)];
    let sampling = Sampling::Uniform;
    let variant = Variant::default();
    let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, sampling));
    let case = Case {
        dir: dir.path(),
        graph: &graph,
        trained: &trained,
        sampling,
    };
    let (few, _) = case.infer(2, 3, "");
    let (many, _) = case.infer(2, usize::MAX, "");
    assert_eq!(few.parts, many.parts);
    assert_eq!(case.plan("o", "").store_need().unwrap().keep, 3);
}

#[test]
fn sampling_none_reads_every_in_edge_of_a_model_trained_on_a_sample() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 6);
    let fanouts = [Fanout::Count(3), Fanout::Count(2)];
    let sampling = Sampling::Uniform;
    let trained = Trained::new(
        dir.path(),
        &Variant::default(),
        &graph,
        (&fanouts, sampling),
    );
    let case = Case {
        dir: dir.path(),
        graph: &graph,
        trained: &trained,
        sampling,
    };
    let rows = same_bytes_for_any_worker_count(&case, usize::MAX, r#", "sampling": "none""#);
    let expected = twin::whole_graph(&graph, &trained.model, &trained.transform, 2);
    assert_rows_close("none", &rows, &expected);
    let plan = case.plan("few", r#", "sampling": "none""#);
    let error = infer(&plan, &case.store(1, 3), &quiet()).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("reads more in-edges a node than the store's 3"),
        "{error}"
    );
}

#[test]
fn an_inner_layer_can_be_the_embedding_beside_the_prediction() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 7);
    let variant = Variant {
        head: true,
        ..Variant::default()
    };
    let trained = Trained::new(
        dir.path(),
        &variant,
        &graph,
        (&[ALL, ALL], Sampling::Uniform),
    );
    let case = Case {
        dir: dir.path(),
        graph: &graph,
        trained: &trained,
        sampling: Sampling::Uniform,
    };
    let rows = same_bytes_for_any_worker_count(&case, usize::MAX, r#", "layer": 1"#);
    let expected = twin::whole_graph(&graph, &trained.model, &trained.transform, 1);
    assert_rows_close("layer 1", &rows, &expected);
    let last = twin::whole_graph(&graph, &trained.model, &trained.transform, 2);
    let logits = trained.model.forward_head(last).unwrap();
    assert_eq!(rows.prediction, models::classes_of(&logits));
    let (manifest, alone) = case.infer(2, usize::MAX, r#", "layer": 1, "prediction": false"#);
    assert_eq!(alone.embedding, rows.embedding);
    assert_eq!(alone.prediction, schemas::Labels::None);
    let rounds = manifest.report["rounds"].as_array().unwrap().len();
    assert_eq!(rounds, 2, "layers beyond the embedding are not computed");
}

#[test]
fn predictions_are_written_as_labels_were_given() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 8);
    let trained = Trained::new(
        dir.path(),
        &Variant::default(),
        &graph,
        (&[ALL], Sampling::Uniform),
    );
    let case = Case {
        dir: dir.path(),
        graph: &graph,
        trained: &trained,
        sampling: Sampling::Uniform,
    };
    let (manifest, rows) = case.infer(3, usize::MAX, "");
    let logits = Dense {
        rows: NUM_NODES,
        cols: rows.dim,
        values: rows.embedding.clone(),
    };
    assert_eq!(rows.prediction, models::classes_of(&logits));
    let file = &manifest.parts[0].files[0].path;
    let output = dir.path().join(format!("embeddings-3-{}-", usize::MAX));
    let names = models::read_strings(&output.join(file), "prediction");
    assert!(
        names.iter().all(|name| CLASSES.contains(&name.as_str())),
        "{names:?}"
    );
}

#[test]
fn a_finished_output_is_returned_and_another_plans_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 10);
    let trained = Trained::new(
        dir.path(),
        &Variant::default(),
        &graph,
        (&[ALL, ALL], Sampling::Uniform),
    );
    let case = Case {
        dir: dir.path(),
        graph: &graph,
        trained: &trained,
        sampling: Sampling::Uniform,
    };
    let store = case.store(2, usize::MAX);
    let first = infer(&case.plan("out", ""), &store, &quiet()).unwrap();
    let again = infer(&case.plan("out", ""), &store, &quiet()).unwrap();
    assert_eq!(first, again);
    let other = infer(&case.plan("out", r#", "layer": 1"#), &store, &quiet()).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Usage);
    assert!(other.to_string().contains("another plan"), "{other}");
    assert_eq!(
        read(case.plan("out", "").output(), NUM_NODES).ids.len(),
        NUM_NODES
    );
}

#[test]
fn a_killed_run_keeps_its_committed_parts_and_ends_with_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 12);
    let variant = Variant::default();
    let trained = Trained::new(dir.path(), &variant, &graph, (&[ALL], Sampling::Uniform));
    let case = Case {
        dir: dir.path(),
        graph: &graph,
        trained: &trained,
        sampling: Sampling::Uniform,
    };
    let store = case.store(2, usize::MAX);
    let whole = infer(&case.plan("whole", ""), &store, &quiet()).unwrap();
    // What a run leaves that is killed after its second part: that part, its entry, no manifest.
    let cut = dir.path().join("cut");
    let Opened::Open(output) = Output::open(&cut, "infer", &whole.fingerprint, false).unwrap()
    else {
        panic!("the directory is a new one");
    };
    let file = &whole.parts[1].files[0].path;
    std::fs::copy(dir.path().join("whole").join(file), cut.join(file)).unwrap();
    output.commit_part(1, whole.parts[1].clone()).unwrap();
    drop(output);
    assert!(
        EmbeddingsDataset::open(&cut).is_err(),
        "no reader sees a part of an output"
    );
    let written = std::fs::metadata(cut.join(file))
        .unwrap()
        .modified()
        .unwrap();
    let resumed = infer(&case.plan("cut", ""), &store, &quiet()).unwrap();
    assert_eq!(resumed.parts, whole.parts);
    assert_eq!(
        std::fs::metadata(cut.join(file))
            .unwrap()
            .modified()
            .unwrap(),
        written
    );
    assert_eq!(
        read(&cut, NUM_NODES),
        read(&dir.path().join("whole"), NUM_NODES)
    );
}
