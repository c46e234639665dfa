//! Tests the whole stage, from input directory to output directory.

#![expect(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

mod random;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use graphtrainer::scores::EvaluationFile;
use graphtrainer::{TrainContext, TrainError, TrainPlan, TrainSpec, train, train_among};
use random::processes::in_processes;
use random::{Graph, Shape, flatten_meta};
use schemas::progress::Progress;
use schemas::{
    ErrorKind, Fanout, FlattenMeta, Labels, Layout, Manifest, Opened, Output, Sampling, Split,
    read_manifest, write_part,
};

const FANOUTS: [Fanout; 2] = [Fanout::Count(4), Fanout::Count(3)];

const TABLE: &str = "model = \"gcn\"\nhidden = [8]\nepochs = 6\nbatch_size = 16\n";

/// Writes the graph features of a random graph to `dir`.
fn flatten(dir: &Path, shape: Shape, layout: Layout) {
    flatten_graph(dir, &Graph::new(shape, 4), layout);
}

fn flatten_graph(dir: &Path, graph: &Graph, layout: Layout) {
    let meta = FlattenMeta {
        layout,
        ..flatten_meta(&FANOUTS, Sampling::Uniform)
    };
    let Opened::Open(output) = Output::open(dir, "flatten", "of a test", false).unwrap() else {
        panic!("a fresh directory");
    };
    for (idx, shard) in graph.parts(3, &FANOUTS).iter().enumerate() {
        let part = write_part(&output, idx, shard, &[], &graph.meta(), &meta).unwrap();
        output.commit_part(idx, part).unwrap();
    }
    let manifest = Manifest {
        graph: Some(graph.meta()),
        flatten: Some(meta),
        parts: output.parts(),
        ..Manifest::new(
            "flatten",
            "of a test".to_owned(),
            (serde_json::Value::Null, serde_json::Value::Null),
            1,
        )
    };
    output.finish(&manifest).unwrap();
}

fn run(dir: &Path, table: &str, fresh: bool, progress: &Progress) -> Result<Manifest, TrainError> {
    let plan = plan_of(dir, &format!("output = \"model\"\n{table}"), fresh)?;
    train(&plan, progress)
}

fn plan_of(dir: &Path, table: &str, fresh: bool) -> Result<TrainPlan, TrainError> {
    let spec: TrainSpec = toml::from_str(table).unwrap();
    let ctx = TrainContext {
        input: Some("features".into()),
        job_seed: 3,
        transform: Some(schemas::Transform::RowNormalize),
        one_hot: std::collections::BTreeMap::new(),
        base: dir.to_owned(),
        fresh,
    };
    spec.into_plan(ctx)
}

fn silent() -> Progress {
    Arc::new(|_| {})
}

/// Lists the names of all files of a directory.
fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The first run trains. Later runs with keys of the same result train nothing.
#[test]
fn a_model_directory_is_whole_and_is_not_made_twice() {
    for (sparse, layout) in [(false, Layout::Shards), (true, Layout::Rows)] {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape {
            sparse,
            ..Shape::default()
        };
        flatten(&dir.path().join("features"), shape, layout);
        let manifest = run(dir.path(), TABLE, false, &silent()).unwrap();
        let model_dir = dir.path().join("model");
        let names = [
            "_SUCCESS",
            "_manifest.json",
            "epochs.jsonl",
            "evaluation.json",
            "model.json",
            "model.safetensors",
        ];
        assert_eq!(files(&model_dir), names);
        let (model, file) = gnn::load(&model_dir).unwrap();
        assert_eq!(model.architecture().in_dim, shape.dim);
        assert_eq!(file.transform, gnn::Transform::RowNormalize);
        assert_eq!(file.fanouts, serde_json::json!([4, 3]));
        assert_eq!(file.extra["flatten"]["seed"], 1);
        for name in [
            "train_loss",
            "val_accuracy",
            "test_accuracy",
            "test_macro_f1",
        ] {
            assert!(file.metrics.contains_key(name), "{name}");
        }
        // Later runs return the manifest as read from its file. Its floats may differ in the last
        // digit from the floats in memory, so the test reads the file too.
        let written = read_manifest(&model_dir).unwrap();
        assert_eq!(written.parts, manifest.parts);
        assert_eq!(manifest.report["epochs"].as_array().unwrap().len(), 6);
        check_evaluation(&model_dir, &file);
        let never: Progress = Arc::new(|event| panic!("nothing is left to do: {event:?}"));
        assert_eq!(run(dir.path(), TABLE, false, &never).unwrap(), written);
        // Changed keys that do not change the result do not start another training.
        let tuned = format!("{TABLE}servers = 2\npruning = false\n");
        assert_eq!(run(dir.path(), &tuned, false, &never).unwrap(), written);
        // Default values written into the table do not start another training either.
        let explicit = format!(
            "{TABLE}layers = 2\nloss = \"cross_entropy\"\nmonitor = \"accuracy\"\nheads = 1\n\
             aggregator = \"mean\"\nedge_weight = false\nedge_features = false\nworkers = 1\n\
             weight_decay_layers = [1, 2]\nseed = 3\nmode = \"sync\"\n"
        );
        assert_eq!(run(dir.path(), &explicit, false, &never).unwrap(), written);
    }
}

#[test]
fn every_epoch_is_a_line_and_a_kill_changes_none() {
    let dir = tempfile::tempdir().unwrap();
    flatten(
        &dir.path().join("features"),
        Shape::default(),
        Layout::Shards,
    );
    let table = format!("{TABLE}evaluate_every = 2\n");
    let manifest = run(dir.path(), &table, false, &silent()).unwrap();
    let path = dir.path().join("model/epochs.jsonl");
    let whole = fs::read_to_string(&path).unwrap();
    let lines: Vec<serde_json::Value> = whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 6);
    for (line, epoch) in lines.iter().zip(1..) {
        assert_eq!(line["epoch"], epoch);
        assert!(line["loss"].as_f64().unwrap() > 0.0);
        assert!(line["gradient_norm"].as_f64().unwrap() > 0.0);
        assert_eq!(line["learning_rate"], 0.01);
        let evaluated = line["val"]["accuracy"].is_number();
        assert_eq!(evaluated, epoch % 2 == 0, "{line}");
        assert_eq!(line.as_object().unwrap().len(), 4 + usize::from(evaluated));
    }
    let mut files = manifest.parts[0].files.iter();
    assert!(files.any(|file| file.path == "epochs.jsonl"));
    for epoch in [1, 3, 5] {
        fs::remove_dir_all(dir.path().join("model")).unwrap();
        let kill: Progress = Arc::new(move |event| assert_ne!(event.done, epoch, "killed"));
        let killed = || run(dir.path(), &table, false, &kill);
        assert!(catch_unwind(AssertUnwindSafe(killed)).is_err());
        run(dir.path(), &table, false, &silent()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), whole, "{epoch}");
    }
}

/// Val and test each have two batches of evaluation, train has three.
#[test]
fn processes_evaluate_as_one_does() {
    let shape = Shape {
        num_nodes: 6000,
        num_edges: 6000,
        num_classes: 2,
        ..Shape::default()
    };
    let classes = Graph::new(shape, 4);
    let (rows, width) = (classes.ids.len(), 3);
    let of_labels = |labels: Labels| Graph {
        labels,
        ..classes.clone()
    };
    let several = Labels::Multi {
        width,
        values: (0..rows * width).map(|at| (at % 5 / 3) as f32).collect(),
        present: vec![true; rows],
    };
    let numbers = Labels::Number((0..rows).map(|at| (at % 7) as f32).collect());
    let graphs = [of_labels(several), of_labels(numbers), classes];
    for (graph, metric) in graphs.iter().zip(["auc", "r2", "auc"]) {
        let dir = tempfile::tempdir().unwrap();
        flatten_graph(&dir.path().join("features"), graph, Layout::Shards);
        let table = |output: &str| {
            format!(
                "output = \"{output}\"\nmodel = \"gcn\"\nhidden = [8]\nepochs = 3\nbatch_size = 500\n\
                 workers = 2\n"
            )
        };
        let plan = |output: &str| plan_of(dir.path(), &table(output), false).unwrap();
        train(&plan("one"), &silent()).unwrap();
        for processes in [2, 3, 5] {
            let output = format!("{processes}");
            in_processes(processes, |cluster| {
                train_among(&plan(&output), cluster, &silent()).unwrap()
            });
            for file in ["epochs.jsonl", "evaluation.json", "model.safetensors"] {
                let read = |of: &str| fs::read(dir.path().join(of).join(file)).unwrap();
                assert!(
                    read(&output) == read("one"),
                    "{processes} processes, {file}"
                );
            }
        }
        let written = EvaluationFile::read(&dir.path().join("one"))
            .unwrap()
            .unwrap();
        assert!(
            written.splits["val"].metrics.contains_key(metric),
            "{metric}"
        );
        assert_eq!(written.splits["test"].num_targets, 1500);
    }
}

/// Process 1 runs no worker, so it reads a broken part in evaluation alone.
#[test]
fn a_share_that_cannot_be_evaluated_ends_all_processes() {
    let shape = Shape {
        num_nodes: 6000,
        num_edges: 6000,
        ..Shape::default()
    };
    let graph = Graph::new(shape, 4);
    let dirs = [0, 1].map(|_| tempfile::tempdir().unwrap());
    for dir in &dirs {
        flatten_graph(&dir.path().join("features"), &graph, Layout::Shards);
    }
    for folder in ["nodes", "edges"] {
        let path = dirs[1]
            .path()
            .join(format!("features/{folder}/part-00002.parquet"));
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let table = "output = \"model\"\nmodel = \"gcn\"\nhidden = [8]\nepochs = 3\nbatch_size = 500\n";
    let ended = in_processes(2, |cluster| {
        let dir = dirs[cluster.process()].path();
        train_among(&plan_of(dir, table, false).unwrap(), cluster, &silent())
    });
    let errors: Vec<TrainError> = ended.into_iter().map(Result::unwrap_err).collect();
    for error in &errors {
        let text = schemas::error_chain(error);
        assert!(text.contains("part-00002.parquet"), "{text}");
    }
    assert!(
        errors[0].is_peer_failure() && !errors[1].is_peer_failure(),
        "{errors:?}"
    );
}

#[test]
fn processes_train_without_val_targets() {
    let mut graph = Graph::new(Shape::default(), 4);
    graph
        .split
        .iter_mut()
        .filter(|of| **of == Split::Val)
        .for_each(|of| *of = Split::Train);
    let dir = tempfile::tempdir().unwrap();
    flatten_graph(&dir.path().join("features"), &graph, Layout::Shards);
    let plan = |output: &str| {
        let table = format!("output = \"{output}\"\n{TABLE}");
        plan_of(dir.path(), &table, false).unwrap()
    };
    train(&plan("one"), &silent()).unwrap();
    in_processes(3, |cluster| {
        train_among(&plan("many"), cluster, &silent()).unwrap()
    });
    for file in ["epochs.jsonl", "evaluation.json", "model.safetensors"] {
        let read = |of: &str| fs::read(dir.path().join(of).join(file)).unwrap();
        assert!(read("many") == read("one"), "{file}");
    }
}

/// Checks `evaluation.json` against the metrics of the model file, and its scores against its
/// confusion matrices.
fn check_evaluation(model_dir: &Path, file: &gnn::ModelFile) {
    let evaluation = EvaluationFile::read(model_dir).unwrap().unwrap();
    assert_eq!(file.extra["best_epoch"], evaluation.best_epoch);
    assert_eq!(
        Vec::from_iter(evaluation.splits.keys()),
        ["test", "train", "val"]
    );
    for (split, scores) in &evaluation.splits {
        for (metric, value) in &scores.metrics {
            let of_model = file.metrics[&format!("{split}_{metric}")];
            assert!((of_model - value).abs() < 1e-12, "{split} {metric}");
        }
        assert_eq!(scores.metrics.len(), 4);
        let confusion = scores.confusion.as_ref().unwrap();
        let mut right = 0;
        for (at, label) in scores.labels.iter().enumerate() {
            assert_eq!(confusion[at].iter().sum::<u64>(), label.support);
            let column = confusion.iter().map(|row| row[at]);
            assert_eq!(column.sum::<u64>(), label.predicted);
            right += confusion[at][at];
        }
        let total: u64 = confusion.iter().flatten().sum();
        let num_targets = if split == "train" { 30 } else { 15 };
        assert_eq!((total, scores.num_targets), (num_targets, num_targets));
        let macro_f1 = scores.labels.iter().map(|label| label.f1).sum::<f64>();
        #[expect(clippy::cast_precision_loss, reason = "thirty targets")]
        let wanted = [
            macro_f1 / scores.labels.len() as f64,
            right as f64 / num_targets as f64,
        ];
        for (name, value) in ["macro_f1", "accuracy"].iter().zip(wanted) {
            assert!(
                (scores.metrics[*name] - value).abs() < 1e-12,
                "{split} {name}"
            );
        }
    }
}

#[test]
fn both_layouts_train_the_same_model() {
    let weights = [Layout::Shards, Layout::Rows].map(|layout| {
        let dir = tempfile::tempdir().unwrap();
        flatten(&dir.path().join("features"), Shape::default(), layout);
        run(dir.path(), TABLE, false, &silent()).unwrap();
        fs::read(dir.path().join("model/model.safetensors")).unwrap()
    });
    assert_eq!(weights[0], weights[1]);
}

/// A plan that is refused does not change the model that it would replace.
#[test]
fn another_plan_is_refused_unless_it_is_fresh() {
    let dir = tempfile::tempdir().unwrap();
    flatten(
        &dir.path().join("features"),
        Shape::default(),
        Layout::Shards,
    );
    run(dir.path(), TABLE, false, &silent()).unwrap();
    let before = fs::read(dir.path().join("model/model.safetensors")).unwrap();
    let other = format!("{TABLE}learning_rate = 0.05");
    let error = run(dir.path(), &other, false, &silent()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(
        error
            .to_string()
            .contains("holds the output of another plan"),
        "{error}"
    );
    assert_eq!(
        fs::read(dir.path().join("model/model.safetensors")).unwrap(),
        before
    );
    run(dir.path(), &other, true, &silent()).unwrap();
    assert_ne!(
        fs::read(dir.path().join("model/model.safetensors")).unwrap(),
        before
    );
}

#[test]
fn a_killed_stage_leaves_no_model_and_then_the_same_one() {
    let dir = tempfile::tempdir().unwrap();
    flatten(
        &dir.path().join("features"),
        Shape::default(),
        Layout::Shards,
    );
    let kill: Progress = Arc::new(|event| assert_ne!(event.done, 4, "killed"));
    let killed = || run(dir.path(), TABLE, false, &kill);
    assert!(catch_unwind(AssertUnwindSafe(killed)).is_err());
    let model = dir.path().join("model");
    assert!(read_manifest(&model).is_err());
    run(dir.path(), TABLE, false, &silent()).unwrap();
    let resumed = fs::read(model.join("model.safetensors")).unwrap();
    run(dir.path(), TABLE, true, &silent()).unwrap();
    assert_eq!(fs::read(model.join("model.safetensors")).unwrap(), resumed);
}

#[test]
fn a_plan_that_does_not_fit_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    flatten(
        &dir.path().join("features"),
        Shape::default(),
        Layout::Shards,
    );
    let error = run(dir.path(), &format!("{TABLE}layers = 3"), false, &silent()).unwrap_err();
    assert!(error.to_string().contains("`train.layers` = 3"), "{error}");
    assert!(!dir.path().join("model").exists());
    fs::remove_file(dir.path().join("features/_SUCCESS")).unwrap();
    assert!(run(dir.path(), TABLE, false, &silent()).is_err());
    assert!(!dir.path().join("model").exists());
}

/// Runs a table, and checks that it fails with the message `expected` and leaves no output.
fn fails_without_a_trace(dir: &Path, table: &str, expected: &str) {
    let error = run(dir, table, false, &silent()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
    assert!(!dir.join("model").exists());
}

#[test]
fn a_training_that_failed_for_good_makes_room_for_the_corrected_one() {
    let dir = tempfile::tempdir().unwrap();
    let features = dir.path().join("features");
    flatten(&features, Shape::default(), Layout::Shards);
    // The first epoch ends with finite weights, so a checkpoint is written.
    let table = "model = \"gcn\"\nhidden = [8]\nepochs = 12\nbatch_size = 999\n\
                 optimizer = \"sgd\"\nlearning_rate = 1000\nweight_decay = 1000";
    fails_without_a_trace(dir.path(), table, "training diverged in epoch ");
    run(dir.path(), TABLE, false, &silent()).unwrap();
    fs::remove_dir_all(dir.path().join("model")).unwrap();
    fs::remove_dir_all(&features).unwrap();
    let mut graph = Graph::new(Shape::default(), 4);
    if let schemas::Labels::Class(classes) = &mut graph.labels {
        classes[5] = schemas::NO_CLASS;
    }
    flatten_graph(&features, &graph, Layout::Shards);
    fails_without_a_trace(dir.path(), TABLE, "has no label");
}

#[test]
fn a_torn_checkpoint_is_noted_and_the_training_starts_over() {
    let dir = tempfile::tempdir().unwrap();
    flatten(
        &dir.path().join("features"),
        Shape::default(),
        Layout::Shards,
    );
    let model = dir.path().join("model");
    run(dir.path(), TABLE, false, &silent()).unwrap();
    let whole = fs::read(model.join("model.safetensors")).unwrap();
    fs::remove_dir_all(&model).unwrap();
    let kill: Progress = Arc::new(|event| assert_ne!(event.done, 4, "killed"));
    let killed = || run(dir.path(), TABLE, false, &kill);
    assert!(catch_unwind(AssertUnwindSafe(killed)).is_err());
    let checkpoint = model.join("_progress/checkpoint");
    let bytes = fs::read(&checkpoint).unwrap();
    fs::write(&checkpoint, &bytes[..bytes.len() / 2]).unwrap();
    let manifest = run(dir.path(), TABLE, false, &silent()).unwrap();
    let note = manifest.report["notes"][0].as_str().unwrap();
    assert!(
        note.starts_with("training started over: checkpoint ")
            && note.ends_with("is broken: its checksum does not match"),
        "{note}"
    );
    assert_eq!(fs::read(model.join("model.safetensors")).unwrap(), whole);
}
