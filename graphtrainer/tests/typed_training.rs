//! Whole trainings on random typed graphs: workers, modes, resume, files, refusals.

#![expect(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

mod random;

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use cluster::Cluster;
use graphtrainer::{
    AnyModelFile, Source, TrainContext, TrainError, TrainPlan, TrainSpec, Trained, fit,
    load_any_with, train, train_among,
};
use random::processes::in_processes;
use random::typed::{TypedGraph, TypedShape, typed_flatten_meta};
use schemas::progress::Progress;
use schemas::{
    DenseRows, Features, FlattenMeta, GraphShard, Layout, Manifest, Neighborhoods, Opened, Output,
    Split, Transform, write_part,
};
use serde_json::{Value, json};

/// With several workers, the sums over a batch are split differently, and the optimiser carries the
/// differences from step to step.
const WORKERS_TOLERANCE: f64 = 1e-5;

/// Tables of every kind of model that relations between types allow.
const MODELS: [&str; 8] = [
    "model = \"sage\"\nhidden = [8]",
    "model = \"sage\"\nhidden = [8]\nrelation_aggregator = \"max\"\nnorm = \"layer\"",
    "model = \"gat\"\nhidden = [8]\nheads = 2\nrelation_aggregator = \"mean\"\n\
     attention_dropout = 0.3\noptimizer = \"sgd\"\nlearning_rate = 0.1",
    "model = \"gatv2\"\nhidden = [8]\nheads = 2\noptimizer = \"sgd\"\nlearning_rate = 0.1",
    "model = \"gin\"\nhidden = [8]\noptimizer = \"sgd\"\nlearning_rate = 0.001\nresidual = true",
    "model = \"rgcn\"\nhidden = [8, 8]\nbases = 2\nprojection = 6\nweight_decay = 0.001\n\
     weight_decay_layers = [1, 3]",
    "model = \"simple_hgn\"\nhidden = [8]\nheads = 2\nresidual = true\nrelation_dim = 4\n\
     attention_residual = 0.1\noptimizer = \"sgd\"\nlearning_rate = 0.1",
    "model = \"hgt\"\nhidden = [8, 8]\nheads = 2\noptimizer = \"sgd\"\nlearning_rate = 0.1",
];

fn plan_at(table: &str, input: &Path, base: &Path) -> Result<TrainPlan, TrainError> {
    let spec: TrainSpec = toml::from_str(&format!("output = \"model\"\n{table}")).unwrap();
    spec.into_plan(TrainContext {
        input: Some(input.to_owned()),
        job_seed: 3,
        transform: None,
        one_hot: std::collections::BTreeMap::new(),
        base: base.to_owned(),
        fresh: false,
    })
}

fn plan(table: &str) -> TrainPlan {
    plan_at(table, Path::new("memory"), Path::new("")).unwrap()
}

fn graph() -> TypedGraph {
    let shape = TypedShape {
        num_nodes: 120,
        num_edges: 400,
        ..TypedShape::default()
    };
    TypedGraph::new(shape, 6)
}

fn source_of(graph: &TypedGraph) -> Source {
    let fanouts = graph.fanouts(2, 5);
    let shards = graph.parts(3, &fanouts);
    let counts = shards.iter().map(GraphShard::split_counts).collect();
    let metas = (graph.meta.clone(), typed_flatten_meta(&fanouts));
    let read = move |idx: usize| Ok(shards[idx].clone());
    Source::new("memory".into(), metas, counts, 1 << 20, read)
}

fn silent() -> Progress {
    Arc::new(|_| {})
}

fn run(table: &str) -> Trained {
    fit(&plan(table), &source_of(&graph()), None, &silent()).unwrap()
}

/// Returns the relative distance of two parameter vectors.
fn distance(a: &Trained, b: &Trained) -> f64 {
    let (a, b) = (a.model.flat(), b.model.flat());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let apart = square(&mut a.iter().zip(&b).map(|(a, b)| f64::from(a - b)));
    (apart / square(&mut a.iter().map(|&a| f64::from(a)))).sqrt()
}

#[test]
fn sync_workers_equal_one_worker_with_the_same_global_batches() {
    for model in MODELS {
        let [one, many] = [(1, 24), (3, 8)].map(|(workers, batch_size)| {
            run(&format!(
                "{model}\nepochs = 4\nworkers = {workers}\nbatch_size = {batch_size}"
            ))
        });
        for (a, b) in one.history.iter().zip(&many.history) {
            let error = (a.loss - b.loss).abs() / a.loss;
            assert!(error < WORKERS_TOLERANCE, "{model}: {} {}", a.loss, b.loss);
        }
        assert_eq!(one.best_epoch, many.best_epoch, "{model}");
        let apart = distance(&one, &many);
        assert!(apart < WORKERS_TOLERANCE, "{model}: {apart} apart");
    }
}

#[test]
fn pruning_partitioning_servers_and_caches_change_nothing() {
    for model in [MODELS[0], MODELS[5], MODELS[6], MODELS[7]] {
        let table = format!("{model}\nepochs = 3\nbatch_size = 16\nworkers = 2\n");
        let plain = run(&table);
        for tuning in [
            "edge_partitioning = false",
            "servers = 3",
            "cache_bytes = \"0B\"",
        ] {
            let tuned = run(&format!("{table}{tuning}"));
            assert_eq!(tuned.model.flat(), plain.model.flat(), "{model}: {tuning}");
        }
        let unpruned = run(&format!("{table}pruning = false"));
        let apart = distance(&unpruned, &plain);
        assert!(apart < WORKERS_TOLERANCE, "{model}: {apart} apart");
    }
}

#[test]
fn every_mode_learns() {
    for mode in [
        "mode = \"sync\"",
        "mode = \"async\"",
        "mode = \"bounded\"\nstaleness = 1",
    ] {
        // Without a residual, Simple-HGN learns little of its own row.
        for model in ["sage", "rgcn", "simple_hgn", "hgt"] {
            let trained = run(&format!(
                "model = \"{model}\"\nhidden = [16, 16]\nepochs = 100\nworkers = 2\n\
                 batch_size = 20\ndropout = 0.0\nresidual = {}\n{mode}",
                model == "simple_hgn"
            ));
            let (first, last) = (trained.history[0].loss, trained.history[99].loss);
            assert!(last < 0.8 * first, "{model} {mode}: {first} {last}");
        }
    }
}

/// Runs until an epoch is reported, then panics.
fn run_until(table: &str, epoch: u64, checkpoint: &Path) -> bool {
    let kill: Progress = Arc::new(move |event| {
        assert!(event.phase != "epoch" || event.done != epoch, "killed");
    });
    let source = source_of(&graph());
    let work = || fit(&plan(table), &source, Some(checkpoint.to_owned()), &kill);
    catch_unwind(AssertUnwindSafe(work)).is_err()
}

#[test]
fn a_killed_training_ends_with_the_same_bits() {
    for model in [
        "model = \"sage\"\nhidden = [8]\nnorm = \"batch\"\nbatch_size = 20",
        "model = \"rgcn\"\nhidden = [8]\nbases = 2\nworkers = 2\nbatch_size = 10",
        "model = \"hgt\"\nhidden = [8]\nheads = 2\nbatch_size = 20\nservers = 2",
    ] {
        let table = format!("{model}\nepochs = 6\ncheckpoint_every_steps = 3");
        let whole = run(&table);
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = dir.path().join("checkpoint");
        for epoch in [1, 3, 4] {
            assert!(run_until(&table, epoch, &checkpoint));
        }
        let source = source_of(&graph());
        let resumed = fit(&plan(&table), &source, Some(checkpoint), &silent()).unwrap();
        assert_eq!(resumed.model.flat(), whole.model.flat(), "{table}");
        assert_eq!(resumed.model.buffers(), whole.model.buffers());
        assert_eq!(resumed.metrics, whole.metrics);
        let losses = |trained: &Trained| {
            let losses = trained.history.iter().map(|epoch| epoch.loss.to_bits());
            losses.collect::<Vec<_>>()
        };
        assert_eq!(losses(&resumed), losses(&whole));
    }
}

/// Returns columns of input tables, as a manifest of a typed graph records them.
fn columns() -> Value {
    json!({ "nodes": { "t0": { "features": ["a"] } }, "edges": {} })
}

/// Writes the graph features of a graph to `dir`.
fn flatten(dir: &Path, graph: &TypedGraph, layout: Layout) {
    let fanouts = graph.fanouts(2, 5);
    let meta = FlattenMeta {
        layout,
        ..typed_flatten_meta(&fanouts)
    };
    let Opened::Open(output) = Output::open(dir, "flatten", "of a test", false).unwrap() else {
        panic!("a fresh directory");
    };
    for (idx, shard) in graph.parts(3, &fanouts).iter().enumerate() {
        let part = write_part(&output, idx, shard, &[], &graph.meta, &meta).unwrap();
        output.commit_part(idx, part).unwrap();
    }
    let manifest = Manifest {
        graph: Some(graph.meta.clone()),
        flatten: Some(meta),
        parts: output.parts(),
        ..Manifest::new(
            "flatten",
            "of a test".to_owned(),
            (json!(null), json!({ "columns": columns() })),
            1,
        )
    };
    output.finish(&manifest).unwrap();
}

/// Returns the transform of each type that has dense features.
fn transforms(graph: &TypedGraph) -> BTreeMap<String, Transform> {
    let types = graph.meta.types.iter().zip(&graph.features);
    let dense = types.filter(|(_, features)| matches!(features, Features::Dense { .. }));
    dense
        .map(|(of, _)| (of.name.clone(), Transform::Standardize))
        .collect()
}

#[test]
fn both_layouts_train_a_model_that_comes_back_from_its_files() {
    let graph = graph();
    let table = "model = \"rgcn\"\nhidden = [8]\nbases = 2\nepochs = 4\nbatch_size = 16";
    let weights = [Layout::Shards, Layout::Rows].map(|layout| {
        let dir = tempfile::tempdir().unwrap();
        flatten(&dir.path().join("features"), &graph, layout);
        let plan = plan_at(table, Path::new("features"), dir.path()).unwrap();
        let plan = plan.with_transforms(transforms(&graph));
        train(&plan, &silent()).unwrap();
        let model_dir = dir.path().join("model");
        let (model, file) = load_any_with(&model_dir, |path| fs::read(path)).unwrap();
        let AnyModelFile::Typed(file) = file else {
            panic!("a model of a typed graph");
        };
        assert_eq!(file.transforms.len(), transforms(&graph).len());
        assert_eq!(file.architecture.num_bases, Some(2));
        let extra: schemas::GraphMeta =
            serde_json::from_value(file.extra["graph"].clone()).unwrap();
        assert_eq!(extra, graph.meta);
        assert_eq!(file.extra["columns"], columns());
        let saved = Source::open(&dir.path().join("features"), 1 << 20).unwrap();
        let again = fit(&plan, &saved, None, &silent()).unwrap();
        assert_eq!(model.flat(), again.model.flat());
        assert_eq!(AnyModelFile::Typed(file).transforms(), again.transforms);
        fs::read(model_dir.join("model.safetensors")).unwrap()
    });
    assert_eq!(weights[0], weights[1]);
}

#[test]
fn several_processes_train_the_model_of_one() {
    let graph = graph();
    let dir = tempfile::tempdir().unwrap();
    flatten(&dir.path().join("features"), &graph, Layout::Shards);
    let model = |output: &str| fs::read(dir.path().join(output).join("model.safetensors")).unwrap();
    for model_keys in [MODELS[5], MODELS[7]] {
        let plan_to = |output: &str| {
            let table =
                format!("{model_keys}\nepochs = 3\nbatch_size = 12\nworkers = 2\nservers = 2");
            let spec: TrainSpec =
                toml::from_str(&format!("output = \"{output}\"\n{table}")).unwrap();
            let ctx = TrainContext {
                input: Some("features".into()),
                job_seed: 3,
                transform: None,
                one_hot: std::collections::BTreeMap::new(),
                base: dir.path().to_owned(),
                fresh: true,
            };
            spec.into_plan(ctx).unwrap()
        };
        train(&plan_to("one"), &silent()).unwrap();
        let run = |cluster: &Cluster| train_among(&plan_to("many"), cluster, &silent()).unwrap();
        let manifests = in_processes(2, run);
        assert_eq!(manifests[0], manifests[1]);
        assert_eq!(model("many"), model("one"), "{model_keys}");
    }
}

struct Rows {
    dim: usize,
    values: Vec<f32>,
}

impl DenseRows for Rows {
    fn dim(&self) -> usize {
        self.dim
    }

    fn row(&self, node: usize) -> &[f32] {
        &self.values[node * self.dim..(node + 1) * self.dim]
    }
}

/// Makes a streamed source, with dense features in the shards or beside them.
fn streamed(graph: &TypedGraph, beside: bool) -> Source {
    let fanouts = graph.fanouts(2, 5);
    let shards = graph.parts(3, &fanouts);
    let counts = shards.iter().map(GraphShard::split_counts).collect();
    let metas = (graph.meta.clone(), typed_flatten_meta(&fanouts));
    let draw = move |part: usize, _seed: u64| {
        let mut shard = shards[part].clone();
        let dense = shard.nodes.iter_mut().map(|nodes| match &nodes.features {
            Features::Dense { dim, values } if beside => {
                let (dim, values) = (*dim, values.clone());
                nodes.features = Features::None;
                let rows: Box<dyn DenseRows + Send + Sync> = Box::new(Rows { dim, values });
                Some(rows)
            }
            _ => None,
        });
        let dense = dense.collect();
        Ok(Neighborhoods { shard, dense })
    };
    Source::streamed("memory".into(), metas, counts, 1 << 20, draw)
}

#[test]
fn features_of_each_type_may_lie_beside_the_shards() {
    let graph = graph();
    let plan = plan("model = \"gat\"\nhidden = [8]\nepochs = 3\nbatch_size = 20");
    let plan = plan.with_transforms(transforms(&graph));
    let run = |source: &Source| fit(&plan, source, None, &silent()).unwrap();
    let (within, beside) = (run(&streamed(&graph, false)), run(&streamed(&graph, true)));
    assert_eq!(beside.transforms, within.transforms);
    assert_eq!(beside.metrics, within.metrics);
    assert_eq!(beside.model.flat(), within.model.flat());
    assert_eq!(within.model.flat(), run(&source_of(&graph)).model.flat());
}

/// The rows of another type that no train target reaches do not enter the type's transform.
#[test]
fn transforms_are_fitted_to_the_neighbourhoods_of_train_targets() {
    let mut graph = graph();
    let target_type = graph.meta.target_type;
    let fanouts = graph.fanouts(2, 5);
    let train: Vec<u32> = (0..)
        .zip(&graph.split)
        .filter(|(_, split)| **split == Split::Train)
        .map(|(node, _)| node)
        .collect();
    let shard = graph.shard(&train, &fanouts);
    let mut changed = 0;
    for (at, features) in graph.features.iter_mut().enumerate() {
        let Features::Dense { dim, values } = features else {
            continue;
        };
        let reached: Vec<String> = (0..shard.nodes[at].len())
            .filter(|&node| at != target_type || shard.nodes[at].is_target[node])
            .map(|node| shard.nodes[at].ids.display(node))
            .collect();
        let all = graph.ids[at].iter().zip(values.chunks_exact_mut(*dim));
        for (id, row) in all {
            let is_reached = reached.contains(&random::typed::shown(&graph.meta, at, *id));
            row.fill(if is_reached { 2.0 } else { 1000.0 });
            changed += usize::from(!is_reached && at != target_type);
        }
    }
    assert!(changed > 0, "some node of another type is not reached");
    let plan =
        plan("model = \"sage\"\nhidden = [4]\nepochs = 1").with_transforms(transforms(&graph));
    let trained = fit(&plan, &source_of(&graph), None, &silent()).unwrap();
    let by_type = graph.features.iter().zip(&shard.nodes);
    for ((features, reached), transform) in by_type.zip(&trained.transforms) {
        let mean = if reached.len() > 0 { 2.0 } else { 0.0 };
        let wanted = match features {
            Features::Dense { dim, .. } => gnn::Transform::Standardize {
                mean: vec![mean; *dim],
                scale: vec![1.0; *dim],
            },
            _ => gnn::Transform::None,
        };
        assert_eq!(*transform, wanted);
    }
}

#[test]
fn keys_that_do_not_fit_a_typed_graph_are_named() {
    let check = |table: &str, expected: &str| {
        let error = fit(
            &plan(&format!("{table}\nepochs = 1")),
            &source_of(&graph()),
            None,
            &silent(),
        );
        let got = error.unwrap_err().to_string();
        assert!(got.contains(expected), "`{got}` lacks `{expected}`");
    };
    check(
        "model = \"gcn\"\nhidden = [4]",
        "and gcn needs relations within a type: allowed are sage, gat, gatv2, gin, lightgcn, rgcn, simple_hgn, hgt",
    );
    check(
        "model = \"hgt\"\nhidden = [4]\nedge_weight = true",
        "`train.edge_weight` = true: only gcn, sage, gat, gatv2, gin and rgcn use edge weights",
    );
    check(
        "model = \"rgcn\"\nhidden = [4]\nedge_features = true",
        "`train.edge_features` = true: only gat, gatv2 and gin take edge features",
    );
    check(
        "model = \"rgcn\"\nhidden = [4, 4, 4]",
        "`train.hidden` = [4, 4, 4]: its neighbourhoods have 2 hops",
    );
    check(
        "model = \"hgt\"\nhidden = [4]\nheads = 2\nout_heads = 2",
        "out_heads",
    );
}
