//! `check` accepts the jobs that `run` runs, and refuses the others with the message of `run`,
//! which refuses them before any stage runs.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float32Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::Float32Type;

use serde_json::json;

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, TRAIN, Table, assert_same_bytes,
    files_below,
};

/// A good job and its tables, which a case then spoils.
struct Case<'a> {
    nodes: Table,
    edges: Table,
    job: Job,
    dir: &'a Path,
}

impl Case<'_> {
    fn key(&mut self, table: &str, line: &str) {
        let head = format!("[{table}]\n");
        self.job = self.job.with(&head, &format!("{head}{line}\n"));
    }

    fn replace(&mut self, from: &str, to: &str) {
        self.job = self.job.with(from, to);
    }

    fn set_label(&mut self, label: ArrayRef) {
        self.nodes.set("label", label);
    }

    fn list(&self, name: &str, ids: Vec<i64>) {
        let mut list = Table::default();
        list.set("id", Arc::new(Int64Array::from(ids)));
        list.write(&self.dir.join(name));
    }

    fn num_nodes(&self) -> usize {
        self.nodes.column("id").len()
    }
}

type Spoil = fn(&mut Case<'_>);

/// Exit code and part of the message of both commands if they accept the job.
const OK: (i32, &str) = (0, "");

const CASES: &[(&str, (i32, &str), Spoil)] = &[
    ("as it is", OK, |_| {}),
    ("no edges", OK, |case| case.edges = case.edges.slice(0, 0)),
    (
        "no edges, whose features are lists",
        (3, "without edges the width of the lists"),
        |case| {
            edge_lists(case);
            case.edges = case.edges.slice(0, 0);
            case.replace("\"sage\"", "\"gat\"");
        },
    ),
    ("no edges, whose lists are not read", OK, |case| {
        edge_lists(case);
        case.edges = case.edges.slice(0, 0);
        case.replace("\"sage\"", "\"gat\"\nedge_features = false");
    }),
    ("one edge, whose features are a list", OK, |case| {
        edge_lists(case);
        case.edges = case.edges.slice(0, 1);
        case.replace("\"sage\"", "\"gat\"");
    }),
    ("features of none", (2, "input.nodes.features"), |case| {
        case.replace("features = [\"features\"]", "features = []");
    }),
    ("one edge", OK, |case| case.edges = case.edges.slice(0, 1)),
    ("no nodes", (3, "puts no target into `train`"), |case| {
        case.nodes = case.nodes.slice(0, 0);
        case.edges = case.edges.slice(0, 0);
    }),
    (
        "every edge dangles",
        (3, "100 %: are these the ids"),
        |case| {
            let ends = vec![5_i64; case.edges.column("src").len()];
            case.edges.set("src", Arc::new(Int64Array::from(ends)));
        },
    ),
    ("a file above an output", (2, "a file"), |case| {
        fs::write(case.dir.join("plain"), "text").unwrap();
        case.replace("out/embeddings", "plain/embeddings");
    }),
    (
        "an output that cannot be written",
        (1, "/proc/out"),
        |case| {
            case.replace("out/embeddings", "/proc/out");
        },
    ),
    (
        "a work_dir that cannot be written",
        (1, "/proc/work"),
        |case| {
            case.replace("workers = 2", "workers = 2\nwork_dir = \"/proc/work\"");
        },
    ),
    ("a work_dir that is a file", (1, "plain"), |case| {
        fs::write(case.dir.join("plain"), "text").unwrap();
        case.replace("workers = 2", "workers = 2\nwork_dir = \"plain\"");
    }),
    (
        "probabilities of numbers",
        (2, "infer.probabilities"),
        |case| {
            let labels = (0..case.num_nodes()).map(|node| node as f32 / 7.0);
            case.set_label(Arc::new(Float32Array::from_iter_values(labels)));
            case.key("infer", "probabilities = true");
        },
    ),
    ("probabilities of classes", OK, |case| {
        case.key("infer", "probabilities = true")
    }),
    ("a loss of other labels", (2, "train.loss"), |case| {
        case.key("train", "loss = \"mean_squared_error\"");
    }),
    ("a metric of other labels", (2, "train.monitor"), |case| {
        case.key("train", "monitor = \"r2\"");
    }),
    (
        "too few class weights",
        (2, "train.class_weights"),
        |case| {
            case.key("train", "class_weights = [1.0, 2.0]");
        },
    ),
    ("a layer that is not there", (2, "infer.layer"), |case| {
        case.key("infer", "layer = 3")
    }),
    ("a listed node to write", OK, |case| {
        case.list("list.parquet", vec![-18_999_967]);
        case.key("infer", "targets = \"list.parquet\"");
    }),
    (
        "an unknown node to write",
        (3, "row 1: is 5, which is no node's id"),
        |case| {
            case.list("list.parquet", vec![-18_999_967, 5]);
            case.key("infer", "targets = \"list.parquet\"");
        },
    ),
    (
        "an unknown target",
        (3, "puts no target into `train`"),
        |case| {
            case.list("list.parquet", vec![5]);
            case.key("flatten", "targets = \"list.parquet\"");
        },
    ),
    ("a column that is not there", (2, "infer.columns"), |case| {
        case.key("infer", "columns = [\"year\"]");
    }),
    (
        "neighbourhoods of two samples",
        (2, "flatten.samples_per_target"),
        |case| {
            case.key("flatten", "samples_per_target = 2");
            case.key("infer", "method = \"neighborhoods\"");
        },
    ),
    ("neighbourhoods", OK, |case| {
        case.key("infer", "method = \"neighborhoods\"")
    }),
    (
        "no graph features to train on",
        (2, "features/of/others"),
        |case| {
            case.key("train", "input = \"features/of/others\"");
        },
    ),
    ("no model to run", (2, "models/of/others"), |case| {
        case.key("infer", "model = \"models/of/others\"");
    }),
    ("two nodes of one id", (3, "occurs twice"), |case| {
        let twice = vec![7_i64; case.num_nodes()];
        case.nodes.set("id", Arc::new(Int64Array::from(twice)));
    }),
    (
        "a split of nothing",
        (3, "puts no target into `train`"),
        |case| {
            let split = vec!["test"; case.num_nodes()];
            case.nodes.set("split", Arc::new(StringArray::from(split)));
        },
    ),
    ("patience without val", (3, "train.patience"), |case| {
        let split = vec!["train"; case.num_nodes()];
        case.nodes.set("split", Arc::new(StringArray::from(split)));
        case.key("train", "patience = 2");
    }),
    ("targets without a split", (2, "flatten.targets"), |case| {
        case.replace("split = \"split\"\n", "");
    }),
    ("a negative weight to draw by", (3, "weight"), |case| {
        let weights = vec![-1.0_f32; case.edges.column("src").len()];
        case.edges
            .set("weight", Arc::new(Float32Array::from(weights)));
        case.replace("sampling = \"uniform\"", "sampling = \"weighted\"");
    }),
    (
        "sparse batch norm of two workers",
        (2, "train.workers"),
        |case| {
            case.key("train", "norm = \"batch\"\nworkers = 2");
        },
    ),
];

/// Adds a list column of edge features.
fn edge_lists(case: &mut Case<'_>) {
    let num_edges = case.edges.column("src").len();
    let rows = (0..num_edges).map(|edge| Some([Some(edge as f32), Some(0.5)]));
    let lists = ListArray::from_iter_primitive::<Float32Type, _, _>(rows);
    case.edges.set("features", Arc::new(lists));
    case.replace(
        "dst = \"dst\"\n",
        "dst = \"dst\"\nfeatures = [\"features\"]\n",
    );
}

#[test]
fn check_and_run_agree() {
    let mut wrong = Vec::new();
    for (name, (code, words), spoil) in CASES {
        let graph = Graph::new(60, IdKind::Int64, FeatureKind::List).with_weights();
        let bench = Bench::empty();
        let dir = bench.path("");
        let mut case = Case {
            nodes: graph.nodes(),
            edges: graph.edge_table(),
            job: Job::new(&graph, &[FLATTEN, TRAIN, INFER]),
            dir: &dir,
        };
        spoil(&mut case);
        case.nodes.write(&bench.path("nodes.parquet"));
        case.edges.write(&bench.path("edges.parquet"));
        bench.write(&case.job);
        let before = files_below(&dir);
        let checked = bench.graphflat(&["check", "job.toml"]);
        assert_eq!(files_below(&dir), before, "{name}: check leaves nothing");
        assert!(!bench.path("out").exists(), "{name}: check leaves nothing");
        let ran = bench.run(&case.job, &[]);
        let said = ran.stderr.replace("stage flatten: ", "");
        let is_early = *code == 0 || !bench.path("out/model").exists();
        let is_right = (checked.code, ran.code) == (*code, *code)
            && ran.stderr.contains(words)
            && (*code == 0 || checked.stderr == said)
            && is_early;
        if !is_right {
            wrong.push(format!(
                "{name}: {checked:#?} {ran:#?}, before any work: {is_early}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Makes an unfinished output of a finished one, as a killed run leaves it.
fn unfinish(dir: &Path) {
    let manifest = dir.join("_manifest.json");
    let text = fs::read(&manifest).unwrap();
    let read: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let plan = json!({ "stage": read["stage"], "fingerprint": read["fingerprint"] });
    fs::create_dir(dir.join("_progress")).unwrap();
    fs::write(dir.join("_progress/plan.json"), plan.to_string()).unwrap();
    fs::remove_file(dir.join("_SUCCESS")).unwrap();
    fs::remove_file(manifest).unwrap();
}

#[test]
fn unfinished_graph_features_of_another_plan_are_refused_before_any_work() {
    let graph = Graph::new(60, IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN]);
    bench.run(&job, &[]).ok();
    let expected = bench.data_files("out/features");
    unfinish(&bench.path("out/features"));
    fs::remove_dir_all(bench.path("work")).unwrap();
    let edges = graph.edge_table();
    let reseeded = job.with("seed = 7", "seed = 8");
    for (other, rows) in [(&reseeded, edges.column("src").len()), (&job, 100)] {
        edges.slice(0, rows).write(&bench.path("edges.parquet"));
        bench.write(other);
        let checked = bench.graphflat(&["check", "job.toml"]);
        let ran = bench.run(other, &[]);
        assert_eq!((checked.code, ran.code), (2, 2), "{checked:#?} {ran:#?}");
        let words = "of another plan or input";
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
        assert_eq!(checked.stderr, ran.stderr);
        assert!(!bench.path("work").exists(), "no store was built");
    }
    edges.write(&bench.path("edges.parquet"));
    bench.write(&job);
    bench.graphflat(&["check", "job.toml"]).ok();
    bench.run(&job, &[]).ok();
    assert_same_bytes(&expected, &bench.data_files("out/features"), "continued");
}

#[test]
fn a_streamed_model_of_other_tables_is_refused_before_any_work() {
    let graph = Graph::new(60, IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN, TRAIN])
        .with("output = \"out/features\"\n", "")
        .with("layout = \"shards\"\n", "")
        .with("[train]\n", "[train]\nstreamed = true\n");
    bench.run(&job, &[]).ok();
    bench.graphflat(&["check", "job.toml"]).ok();
    let edges = graph.edge_table();
    edges.slice(0, 100).write(&bench.path("edges.parquet"));
    let before = files_below(&bench.path("work"));
    let checked = bench.graphflat(&["check", "job.toml"]);
    let ran = bench.run(&job, &[]);
    assert_eq!((checked.code, ran.code), (2, 2), "{checked:#?} {ran:#?}");
    let words = "out/model holds the output of another plan or input";
    assert!(ran.stderr.contains(words), "{}", ran.stderr);
    assert_eq!(checked.stderr, ran.stderr);
    assert_eq!(files_below(&bench.path("work")), before);
}

#[test]
fn outputs_of_other_tables_are_refused_before_any_work() {
    let graph = Graph::new(60, IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN, TRAIN, INFER]);
    bench.run(&job, &[]).ok();
    let edges = graph.edge_table();
    edges.slice(0, 100).write(&bench.path("edges.parquet"));
    for gone in ["", "out/features", "out/model"] {
        if !gone.is_empty() {
            fs::remove_dir_all(bench.path(gone)).unwrap();
        }
        let checked = bench.graphflat(&["check", "job.toml"]);
        let ran = bench.run(&job, &[]);
        assert_eq!((checked.code, ran.code), (2, 2), "{checked:#?} {ran:#?}");
        assert!(
            ran.stderr.contains("of another plan or input"),
            "{}",
            ran.stderr
        );
        assert_eq!(checked.stderr, ran.stderr.replace("stage flatten: ", ""));
        let is_kept = !bench.path("out/model").exists() || gone != "out/model";
        assert!(is_kept, "nothing was trained");
    }
    edges.write(&bench.path("edges.parquet"));
    bench.graphflat(&["check", "job.toml"]).ok();
    bench.run(&job, &[]).ok();
}
