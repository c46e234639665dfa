//! Trainings with learnable rows of nodes: against a dense twin, workers, modes, resume, files.

#![expect(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

mod random;

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use cluster::Cluster;
use gnn::kernel::Partitioning;
use gnn::typed::TypedModel;
use gnn::{Dense, Input, Labels, Mode, ReadyInput};
use graphtrainer::batch::{BlockOptions, Piece, TypedVectorised, typed_blocks_of};
use graphtrainer::server::TableSpec;
use graphtrainer::{
    AnyArchitecture, AnyModel, NodeEmbeddings, Source, TableFile, TrainContext, TrainPlan,
    TrainSpec, Trained, fit, load_any_with, train, train_among,
};
use random::processes::in_processes;
use random::typed::{TypedGraph, TypedShape, typed_flatten_meta};
use random::{Graph, Shape, flatten_meta};
use schemas::progress::Progress;
use schemas::{
    Fanout, FeatureMeta, Features, FlattenMeta, GraphShard, Layout, Manifest, Opened, Output,
    Sampling, Split, read_manifest, write_part,
};
use serde_json::json;

/// With several workers, the sums over a batch are split differently, and the optimiser carries the
/// differences from step to step.
const WORKERS_TOLERANCE: f64 = 1e-5;

/// The sums of a dense twin have another order, which a few steps carry on.
const TWIN_TOLERANCE: f32 = 1e-6;

/// Widths of the rows by type: of types with dense, with no, and with sparse or dense features.
fn widths() -> BTreeMap<String, usize> {
    [("t0", 4), ("t1", 3), ("t2", 5)]
        .map(|(name, width)| (name.to_owned(), width))
        .into()
}

fn plan_at(table: &str, output: &str, base: &Path, widths: BTreeMap<String, usize>) -> TrainPlan {
    let spec: TrainSpec = toml::from_str(&format!("output = \"{output}\"\n{table}")).unwrap();
    let plan = spec.into_plan(TrainContext {
        input: Some("features".into()),
        job_seed: 3,
        transform: None,
        one_hot: BTreeMap::new(),
        base: base.to_owned(),
        fresh: true,
    });
    plan.unwrap().with_embeddings(widths)
}

fn plan(table: &str) -> TrainPlan {
    plan_at(table, "model", Path::new(""), widths())
}

fn graph() -> TypedGraph {
    let shape = TypedShape {
        num_nodes: 120,
        num_edges: 400,
        ..TypedShape::default()
    };
    TypedGraph::new(shape, 6)
}

/// The same graph without any feature.
fn bare() -> TypedGraph {
    let mut graph = graph();
    graph.features.fill(Features::None);
    for of in &mut graph.meta.types {
        of.features = FeatureMeta::None;
    }
    graph
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

fn typed(trained: &Trained) -> &TypedModel {
    match &trained.model {
        AnyModel::Typed(model) => model,
        AnyModel::Untyped(_) => panic!("the graph has types"),
    }
}

/// A table with a row for every node of a type.
struct DenseTable {
    ids: schemas::Ids,
    dim: usize,
    values: Vec<f32>,
}

impl DenseTable {
    fn new(graph: &TypedGraph, node_type: usize, dim: usize) -> Self {
        let all: Vec<u32> = (0..u32::try_from(graph.ids[node_type].len()).unwrap()).collect();
        let ids = graph.ids_of(node_type, &all);
        let spec = TableSpec {
            name: graph.meta.types[node_type].name.clone(),
            id_type: ids.id_type(),
            dim,
            seed: 3,
            weight_decay: 0.0,
        };
        let rows = 0..ids.len();
        let values = rows.flat_map(|at| {
            let row = (0..dim).map(|column| spec.start_value(&ids, at, column));
            row.collect::<Vec<_>>()
        });
        Self {
            dim,
            values: values.collect(),
            ids,
        }
    }

    fn find(&self, ids: &schemas::Ids, at: usize) -> usize {
        let mut all = 0..self.ids.len();
        all.find(|&node| self.ids.equal(node, ids, at)).unwrap()
    }
}

/// All train targets of a graph as one batch.
struct WholeBatch<'a> {
    pieces: Vec<Piece<'a>>,
    vectorised: TypedVectorised,
}

impl WholeBatch<'_> {
    /// Returns the node of a table that a row of the batch belongs to.
    fn node(&self, table: &DenseTable, node_type: usize, row: usize) -> usize {
        let place = &self.vectorised.nodes[node_type][row];
        let nodes = &self.pieces[place.piece as usize].shard.nodes[node_type];
        table.find(&nodes.ids, place.node as usize)
    }

    fn labels(&self) -> Vec<u32> {
        let classes = self.pieces.iter().flat_map(|piece| {
            let schemas::Labels::Class(all) = &piece.shard.target_nodes().labels else {
                panic!("targets have classes");
            };
            piece.targets.iter().map(|&at| all[at as usize])
        });
        classes.collect()
    }

    /// Puts the row of each node behind its features.
    fn input(&self, tables: &[DenseTable]) -> Vec<Option<ReadyInput>> {
        let of_type = |(at, raw): (usize, &Option<Input>)| {
            let (rows, table) = (self.vectorised.nodes[at].len(), &tables[at]);
            if rows == 0 {
                return None;
            }
            let features = raw.as_ref().map(|raw| match raw {
                Input::Dense(dense) => dense.clone(),
                Input::Sparse(sparse) => sparse.to_dense(sparse.rows),
            });
            let mut values = Vec::new();
            for row in 0..rows {
                let own = features.as_ref().map(|dense| dense.row(row));
                values.extend_from_slice(own.unwrap_or_default());
                let start = self.node(table, at, row) * table.dim;
                values.extend_from_slice(&table.values[start..start + table.dim]);
            }
            let cols = values.len() / rows;
            let complete = Dense { rows, cols, values };
            Some(ReadyInput::new(Input::Dense(complete)).unwrap())
        };
        self.vectorised
            .input
            .iter()
            .enumerate()
            .map(of_type)
            .collect()
    }

    /// Subtracts the gradient of a whole table, most of which is 0.
    fn descend(&self, tables: &mut [DenseTable], slopes: &[Option<Dense>], rate: f32) {
        for (at, table) in tables.iter_mut().enumerate() {
            let Some(of_rows) = &slopes[at] else {
                continue;
            };
            let mut gradient = vec![0.0; table.values.len()];
            for row in 0..of_rows.rows {
                let start = self.node(table, at, row) * table.dim;
                let sums = gradient[start..start + table.dim].iter_mut();
                sums.zip(of_rows.row(row))
                    .for_each(|(sum, slope)| *sum += slope);
            }
            let values = table.values.iter_mut().zip(&gradient);
            values.for_each(|(value, slope)| *value -= rate * slope);
        }
    }
}

/// Returns the positions of a shard's train targets.
fn train_targets(shard: &GraphShard) -> Vec<u32> {
    let nodes = shard.target_nodes();
    let is_train =
        |at: &u32| nodes.is_target[*at as usize] && nodes.split[*at as usize] == Split::Train;
    let all = 0..u32::try_from(nodes.len()).unwrap();
    all.filter(is_train).collect()
}

/// Trains by plain SGD on all train targets at once, with dense tables of all nodes; returns the flat
/// parameters and the tables.
fn dense_sgd(graph: &TypedGraph, trained: &Trained, rate: f32) -> (Vec<f32>, Vec<DenseTable>) {
    let arch = typed(trained).architecture();
    let mut model = TypedModel::init(arch, 3).unwrap();
    let any_arch = AnyArchitecture::Typed(Box::new(arch.clone()));
    let options = BlockOptions {
        node_keys: true,
        fanouts: graph.fanouts(2, 5),
        sampling: Sampling::Uniform,
        pruning: true,
        partitioning: Partitioning::default(),
        edges: any_arch.edge_columns(),
        source_degrees: any_arch.reads_source_degrees(),
    };
    let shards = graph.parts(3, &options.fanouts);
    let all_targets: Vec<Vec<u32>> = shards.iter().map(train_targets).collect();
    let pieces = shards.iter().zip(&all_targets);
    let pieces: Vec<Piece<'_>> = pieces
        .map(|(shard, targets)| Piece { shard, targets })
        .collect();
    let batch = WholeBatch {
        vectorised: typed_blocks_of(model.schema(), &pieces, &options).unwrap(),
        pieces,
    };
    let types = arch.types.iter().enumerate();
    let mut tables: Vec<DenseTable> = types
        .map(|(at, of)| DenseTable::new(graph, at, of.embedding_dim.unwrap()))
        .collect();
    let classes = batch.labels();
    let (count, labels) = (classes.len() as f32, Labels::Classes(classes));
    for _ in 0..trained.best_epoch {
        let (blocks, input) = (&batch.vectorised.blocks, batch.input(&tables));
        let mode = Mode::Train { seed: 0 };
        let step = model.loss_and_gradient(blocks, &input, &labels, count, mode);
        let step = step.unwrap();
        let mut flat = model.flat();
        let values = flat.iter_mut().zip(&step.gradient);
        values.for_each(|(value, slope)| *value -= rate * slope);
        model.set_flat(&flat);
        batch.descend(&mut tables, &step.rows, rate);
    }
    (model.flat(), tables)
}

fn assert_near(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (at, (value, wanted)) in got.iter().zip(expected).enumerate() {
        let error = (value - wanted).abs();
        assert!(
            error <= TWIN_TOLERANCE * wanted.abs().max(1.0),
            "{what} {at}: {value} {wanted}"
        );
    }
}

#[test]
fn one_worker_with_plain_sgd_equals_dense_tables() {
    for (graph, model, rate, epochs) in [
        (graph(), "model = \"sage\"\nhidden = [8]", 0.5, 5),
        (
            graph(),
            "model = \"rgcn\"\nhidden = [8]\nmode = \"async\"",
            0.5,
            5,
        ),
        (bare(), "model = \"hgt\"\nhidden = [8]\nheads = 2", 4.0, 12),
    ] {
        let table = format!(
            "{model}\nepochs = {epochs}\nbatch_size = 1000\ndropout = 0.0\noptimizer = \"sgd\"\n\
             learning_rate = {rate:?}\nweight_decay = 0.0"
        );
        // Without val targets, the last epoch is the best.
        let mut graph = graph;
        let val = graph.split.iter_mut().filter(|split| **split == Split::Val);
        val.for_each(|split| *split = Split::None);
        let trained = fit(&plan(&table), &source_of(&graph), None, &silent()).unwrap();
        assert_eq!(trained.best_epoch, epochs);
        let (flat, tables) = dense_sgd(&graph, &trained, rate);
        assert_near(model, &trained.model.flat(), &flat);
        let (mut touched, mut untouched, mut moved) = (0, 0, 0.0_f32);
        for (dense, got) in tables.iter().zip(&trained.embeddings) {
            let start = DenseTable::new(&graph, touched_type(&graph, got), got.dim());
            for node in 0..dense.ids.len() {
                let own = node * dense.dim..(node + 1) * dense.dim;
                let has_row = (0..got.ids().len()).any(|at| got.ids().equal(at, &dense.ids, node));
                if has_row {
                    let row = got.row(&dense.ids, node);
                    assert_near(model, row, &dense.values[own.clone()]);
                    let both = row.iter().zip(&start.values[own]);
                    moved = both.fold(moved, |most, (a, b)| most.max((a - b).abs()));
                    touched += 1;
                } else {
                    assert_eq!(dense.values[own.clone()], start.values[own], "no gradient");
                    assert_eq!(got.row(&dense.ids, node), got.mean());
                    untouched += 1;
                }
            }
        }
        assert!(
            touched > 100 && untouched > 10 && moved > 1e-3,
            "{touched} {untouched} {moved}"
        );
    }
}

fn touched_type(graph: &TypedGraph, table: &NodeEmbeddings) -> usize {
    let mut types = graph.meta.types.iter();
    types.position(|of| of.name == table.name()).unwrap()
}

/// Returns the values of all rows.
fn rows(trained: &Trained) -> Vec<f32> {
    let tables = trained.embeddings.iter();
    let rows = tables.flat_map(|table| {
        let ids = table.ids();
        (0..ids.len()).flat_map(|at| table.row(ids, at).to_vec())
    });
    rows.collect()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let apart = square(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b)));
    (apart / square(&mut a.iter().map(|&a| f64::from(a)))).sqrt()
}

const MODELS: [&str; 3] = [
    "model = \"sage\"\nhidden = [8]\noptimizer = \"sgd\"\nmomentum = 0.9\nlearning_rate = 0.05",
    "model = \"rgcn\"\nhidden = [8]\nbases = 2",
    "model = \"simple_hgn\"\nhidden = [8]\nheads = 2\nresidual = true\nrelation_dim = 4\n\
     optimizer = \"sgd\"\nlearning_rate = 0.1",
];

#[test]
fn sync_workers_equal_one_worker_with_the_same_global_batches() {
    for model in MODELS {
        let [one, many] = [(1, 24), (3, 8)].map(|(workers, batch_size)| {
            run(&format!(
                "{model}\nepochs = 4\nworkers = {workers}\nbatch_size = {batch_size}"
            ))
        });
        let ids = |trained: &Trained| -> Vec<schemas::Ids> {
            trained
                .embeddings
                .iter()
                .map(|table| table.ids().clone())
                .collect()
        };
        assert_eq!(ids(&one), ids(&many), "{model}");
        let apart = distance(&one.model.flat(), &many.model.flat());
        let rows_apart = distance(&rows(&one), &rows(&many));
        assert!(apart < WORKERS_TOLERANCE, "{model}: {apart} apart");
        assert!(
            rows_apart < WORKERS_TOLERANCE,
            "{model}: rows {rows_apart} apart"
        );
    }
}

#[test]
fn servers_and_caches_change_no_row() {
    let table = "model = \"rgcn\"\nhidden = [8]\nepochs = 3\nbatch_size = 16\nworkers = 2\n";
    let plain = run(table);
    for tuning in ["servers = 3", "cache_bytes = \"0B\"", "pruning = true"] {
        let tuned = run(&format!("{table}{tuning}"));
        assert_eq!(tuned.embeddings, plain.embeddings, "{tuning}");
        assert_eq!(tuned.model.flat(), plain.model.flat(), "{tuning}");
    }
}

#[test]
fn rows_alone_learn_the_train_targets_in_every_mode() {
    for mode in [
        "mode = \"sync\"",
        "mode = \"async\"",
        "mode = \"bounded\"\nstaleness = 1",
    ] {
        // At a rate of 0.05, gradients of old parameters let about 2 % of the async runs diverge.
        let table = format!(
            "model = \"sage\"\nhidden = [16]\nepochs = 60\nworkers = 2\nbatch_size = 20\n\
             dropout = 0.0\nlearning_rate = 0.02\n{mode}"
        );
        let trained = fit(&plan(&table), &source_of(&bare()), None, &silent()).unwrap();
        let (first, last) = (&trained.history[0], &trained.history[59]);
        assert!(
            last.loss < 0.2 * first.loss,
            "{mode}: {} {}",
            first.loss,
            last.loss
        );
        // Without rows, the nodes of a type differ by their neighbourhoods only.
        let without = plan(&table).with_embeddings(BTreeMap::new());
        let without = fit(&without, &source_of(&bare()), None, &silent()).unwrap();
        let constant = without.history[59].loss;
        assert!(
            last.loss < 0.5 * constant,
            "{mode}: {} {constant}",
            last.loss
        );
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
fn a_killed_training_ends_with_the_same_rows() {
    for keys in [
        "workers = 2\nbatch_size = 10",
        "batch_size = 20\nservers = 2",
    ] {
        let table = format!(
            "model = \"sage\"\nhidden = [8]\nepochs = 6\ncheckpoint_every_steps = 3\n{keys}"
        );
        let whole = run(&table);
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = dir.path().join("checkpoint");
        for epoch in [1, 3, 4] {
            assert!(run_until(&table, epoch, &checkpoint));
        }
        let source = source_of(&graph());
        let resumed = fit(&plan(&table), &source, Some(checkpoint), &silent()).unwrap();
        assert_eq!(resumed.embeddings, whole.embeddings, "{table}");
        assert_eq!(resumed.model.flat(), whole.model.flat(), "{table}");
        assert_eq!(resumed.metrics, whole.metrics);
    }
}

#[test]
fn an_untyped_graph_trains_rows_with_and_without_features() {
    const FANOUTS: [Fanout; 2] = [Fanout::Count(4), Fanout::Count(3)];
    for with_features in [true, false] {
        let shape = Shape {
            num_nodes: 200,
            num_edges: 900,
            ..Shape::default()
        };
        let graph = Graph::new(shape, 6);
        let mut shards = graph.parts(3, &FANOUTS);
        let mut meta = graph.meta();
        if !with_features {
            meta.types[0].features = FeatureMeta::None;
            shards
                .iter_mut()
                .for_each(|shard| shard.nodes[0].features = Features::None);
        }
        let counts = shards.iter().map(GraphShard::split_counts).collect();
        let metas = (meta, flatten_meta(&FANOUTS, Sampling::Uniform));
        let read = move |idx: usize| Ok(shards[idx].clone());
        let source = Source::new("memory".into(), metas, counts, 1 << 20, read);
        for model in ["gcn", "sage", "gat", "gatv2", "gin"] {
            let run = |workers: usize, batch_size: usize| {
                let table = format!(
                    "model = \"{model}\"\nhidden = [8]\nepochs = 20\nworkers = {workers}\n\
                     batch_size = {batch_size}\noptimizer = \"sgd\"\nlearning_rate = 0.05\n\
                     dropout = 0.0"
                );
                let widths = BTreeMap::from([(String::new(), 6)]);
                let plan = plan_at(&table, "model", Path::new(""), widths);
                fit(&plan, &source, None, &silent()).unwrap()
            };
            let (one, many) = (run(1, 30), run(3, 10));
            let (first, last) = (one.history[0].loss, one.history[19].loss);
            assert!(last < first, "{model}: {first} {last}");
            let apart = distance(&rows(&one), &rows(&many));
            assert!(apart < 1e-4, "{model}: {apart} apart");
            let AnyModel::Untyped(of) = &one.model else {
                panic!("the graph has no types");
            };
            assert_eq!(of.architecture().embedding_dim, Some(6));
            assert_eq!(of.architecture().features_dim() > 0, with_features);
        }
    }
}

/// Writes the graph features of a graph to `dir`.
fn flatten(dir: &Path, graph: &TypedGraph) {
    let fanouts = graph.fanouts(2, 5);
    let meta = FlattenMeta {
        layout: Layout::Shards,
        ..typed_flatten_meta(&fanouts)
    };
    let Opened::Open(output) = Output::open(dir, "flatten", "of a test", false).unwrap() else {
        panic!("a fresh directory");
    };
    for (idx, shard) in graph.parts(3, &fanouts).iter().enumerate() {
        let part = write_part(&output, idx, shard, &[], &graph.meta, &meta).unwrap();
        output.commit_part(idx, part).unwrap();
    }
    let made_from = (
        json!(null),
        json!({ "columns": { "nodes": {}, "edges": {} } }),
    );
    let manifest = Manifest {
        graph: Some(graph.meta.clone()),
        flatten: Some(meta),
        parts: output.parts(),
        ..Manifest::new("flatten", "of a test".to_owned(), made_from, 1)
    };
    output.finish(&manifest).unwrap();
}

#[test]
fn several_processes_write_the_tables_of_one_which_come_back() {
    let graph = graph();
    let dir = tempfile::tempdir().unwrap();
    flatten(&dir.path().join("features"), &graph);
    let keys = "model = \"rgcn\"\nhidden = [8]\nepochs = 3\nbatch_size = 12\nworkers = 2\n\
                 servers = 2\ngradient_format = \"bf16\"";
    let plan_to = |output: &str| plan_at(keys, output, dir.path(), widths());
    train(&plan_to("one"), &silent()).unwrap();
    let run = |cluster: &Cluster| train_among(&plan_to("many"), cluster, &silent()).unwrap();
    let manifests = in_processes(2, run);
    assert_eq!(manifests[0], manifests[1]);
    let bytes = |output: &str, file: &str| fs::read(dir.path().join(output).join(file)).unwrap();
    for file in [
        "model.safetensors",
        "model.json",
        "embeddings/t0.parquet",
        "embeddings/t1.parquet",
        "embeddings/t2.parquet",
    ] {
        assert!(bytes("many", file) == bytes("one", file), "{file}");
    }
    let source = Source::open(&dir.path().join("features"), 1 << 20).unwrap();
    let again = fit(&plan_to("one"), &source, None, &silent()).unwrap();
    let model_dir = dir.path().join("one");
    let (_, file) = load_any_with(&model_dir, |path| fs::read(path)).unwrap();
    let tables: BTreeMap<String, TableFile> =
        serde_json::from_value(file.extra()["embeddings"].clone()).unwrap();
    let manifest = read_manifest(&model_dir).unwrap();
    let files: Vec<_> = manifest.parts.iter().flat_map(|part| &part.files).collect();
    assert_eq!(tables.len(), 3);
    for ((name, table), trained) in tables.iter().zip(&again.embeddings) {
        let entry = files.iter().find(|entry| entry.path == table.file).unwrap();
        let read = NodeEmbeddings::read(&model_dir, name, table, entry).unwrap();
        assert_eq!((read.ids(), read.mean()), (trained.ids(), trained.mean()));
        assert_eq!(table.mean, trained.mean());
        let same = |at| read.row(read.ids(), at) == trained.row(read.ids(), at);
        assert!((0..read.ids().len()).all(same));
        let wrong = TableFile {
            rows: table.rows + 1,
            ..table.clone()
        };
        let error = NodeEmbeddings::read(&model_dir, name, &wrong, entry).unwrap_err();
        assert!(error.to_string().contains("model.json says"), "{error}");
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let check = |plan: &TrainPlan, expected: &str| {
        let error = fit(plan, &source_of(&graph()), None, &silent());
        let got = error.unwrap_err().to_string();
        assert!(got.contains(expected), "`{got}` lacks `{expected}`");
    };
    let table = "model = \"sage\"\nhidden = [4]\nepochs = 1";
    let unknown = BTreeMap::from([("t9".to_owned(), 3)]);
    check(
        &plan(table).with_embeddings(unknown),
        "a type whose nodes have learnable rows (`input.nodes.TYPE.embedding`) is none of its node types",
    );
}
