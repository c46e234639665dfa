//! Bad jobs and bad input: one clear line, the right exit code, nothing half-written.

use std::fs;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float32Array, Int32Array, Int64Array, StringArray};

use crate::harness::{
    Bench, FEATURE_DIM, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, TRAIN, Table, f32_lists,
    i32_lists,
};

const USAGE: i32 = 2;
const DATA: i32 = 3;

/// A job on its tables, to be spoilt.
struct Case {
    nodes: Table,
    edges: Table,
    job: Job,
}

fn graph() -> Graph {
    Graph::new(60, IdKind::Int64, FeatureKind::List).with_weights()
}

/// Spoils a good job with `spoil` and expects one line with every one of `words`.
#[track_caller]
fn check(code: i32, words: &[&str], spoil: impl FnOnce(&mut Case)) {
    check_on(&graph(), code, words, spoil);
}

#[track_caller]
fn check_on(graph: &Graph, code: i32, words: &[&str], spoil: impl FnOnce(&mut Case)) {
    let job = Job::new(graph, &[FLATTEN, TRAIN, INFER]);
    let mut case = Case {
        nodes: graph.nodes(),
        edges: graph.edge_table(),
        job,
    };
    spoil(&mut case);
    let bench = Bench::empty();
    case.nodes.write(&bench.path("nodes.parquet"));
    case.edges.write(&bench.path("edges.parquet"));
    let outcome = bench.run(&case.job, &[]);
    assert_eq!(outcome.code, code, "{outcome:#?}");
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "one line, not {lines:#?}");
    assert!(lines[0].starts_with("error: "), "{}", lines[0]);
    for word in words {
        assert!(lines[0].contains(word), "no {word:?} in: {}", lines[0]);
    }
    assert_eq!(outcome.stdout, "");
    let left: Vec<_> = ["out/features", "out/model", "out/embeddings"]
        .into_iter()
        .filter(|output| bench.path(output).exists())
        .collect();
    assert!(left.is_empty(), "half-written: {left:?}");
}

/// The values of an int64 column with one replaced.
fn with_id(column: &ArrayRef, row: usize, value: Option<i64>) -> ArrayRef {
    let ids = column.as_any().downcast_ref::<Int64Array>().unwrap();
    let mut ids: Vec<Option<i64>> = ids.iter().collect();
    ids[row] = value;
    Arc::new(Int64Array::from(ids))
}

/// The values of a float column with one replaced.
fn with_float(column: &ArrayRef, row: usize, value: Option<f32>) -> ArrayRef {
    let values = column.as_any().downcast_ref::<Float32Array>().unwrap();
    let mut values: Vec<Option<f32>> = values.iter().collect();
    values[row] = value;
    Arc::new(Float32Array::from(values))
}

/// The generated features with one row replaced.
fn with_feature(row: usize, value: Vec<f32>) -> ArrayRef {
    let graph = graph();
    let mut rows: Vec<Vec<f32>> = (0..graph.num_nodes)
        .map(|node| graph.feature(node).to_vec())
        .collect();
    rows[row] = value;
    f32_lists(rows.into_iter())
}

/// The generated labels with one replaced.
fn with_label(row: usize, value: i32) -> ArrayRef {
    let mut labels: Vec<i32> = (0..graph().num_nodes)
        .map(|node| i32::try_from(node % 3).unwrap())
        .collect();
    labels[row] = value;
    Arc::new(Int32Array::from(labels))
}

#[test]
fn unknown_keys_name_line_key_and_the_nearest_key() {
    check(
        USAGE,
        &["job.toml:1:", "`nam`", "did you mean `name`", "seed"],
        |case| {
            case.job = case.job.with("name =", "nam =");
        },
    );
    check(
        USAGE,
        &["job.toml:", "`flatten.fanout`", "did you mean `fanouts`"],
        |case| {
            case.job = case.job.with("fanouts =", "fanout =");
        },
    );
    check(
        USAGE,
        &["`input.nodes.feature`", "did you mean `features`"],
        |case| {
            case.job = case.job.with("features =", "feature =");
        },
    );
    check(USAGE, &["`train.epoch`", "did you mean `epochs`"], |case| {
        case.job = case.job.with("epochs =", "epoch =");
    });
    check(
        USAGE,
        &["`infer.outptu`", "did you mean `output`"],
        |case| {
            case.job = case
                .job
                .with(INFER, "[infer]\noutptu = \"out/embeddings\"\n");
        },
    );
    check(USAGE, &["`training`", "allowed"], |case| {
        case.job = case.job.with("[train]", "[training]");
    });
}

#[test]
fn missing_keys_and_wrong_values_name_key_and_line() {
    check(USAGE, &["job.toml", "missing", "seed"], |case| {
        case.job = case.job.with("seed = 7\n", "");
    });
    check(USAGE, &["job.toml", "missing", "hops"], |case| {
        case.job = case.job.with("hops = 2\n", "");
    });
    check(USAGE, &["job.toml:2:", "`seed`", "whole number"], |case| {
        case.job = case.job.with("seed = 7", "seed = \"seven\"");
    });
    check(USAGE, &["job.toml:3:", "workers"], |case| {
        case.job = case.job.with("workers = 2", "workers = 0");
    });
    check(USAGE, &["layout", "shards", "rows"], |case| {
        case.job = case.job.with("layout = \"shards\"", "layout = \"shard\"");
    });
    check(USAGE, &["fanouts", "all"], |case| {
        case.job = case.job.with("[4, 3]", "[4, \"most\"]");
    });
    check(USAGE, &["fanouts"], |case| {
        case.job = case.job.with("[4, 3]", "[4, 0]")
    });
    check(USAGE, &["model", "gcn", "sage", "gat"], |case| {
        case.job = case.job.with("\"sage\"", "\"mlp\"");
    });
    check(USAGE, &["job.toml", "memory_budget"], |case| {
        case.job = case.job.with("workers = 2", "memory_budget = \"lots\"");
    });
    check(USAGE, &["job.toml:1:"], |case| {
        case.job = case.job.with("name = ", "name ")
    });
}

#[test]
fn impossible_combinations_are_named_before_any_work() {
    check(
        USAGE,
        &["job.toml:", "`flatten.hops` is 3", "fan-outs, 2"],
        |case| {
            case.job = case.job.with("hops = 2", "hops = 3");
        },
    );
    check(
        USAGE,
        &["job.toml", "`train.output`", "out/features"],
        |case| {
            case.job = case.job.with("out/model", "out/features");
        },
    );
    check(USAGE, &["train", "input", "flatten"], |case| {
        case.job = case.job.with(FLATTEN, "")
    });
    check(USAGE, &["infer", "model", "train"], |case| {
        case.job = case.job.with(TRAIN, "")
    });
    check(USAGE, &["flatten", "train", "infer"], |case| {
        case.job = case.job.with(FLATTEN, "").with(TRAIN, "").with(INFER, "");
    });
    check(USAGE, &["sampling", "weighted", "weight"], |case| {
        case.job = case
            .job
            .with("uniform", "weighted")
            .with("weight = \"weight\"\n", "");
    });
    check(USAGE, &["layers", "2"], |case| {
        case.job = case.job.with("epochs", "layers = 3\nepochs")
    });
    check(USAGE, &["s3://", "nodes", "path"], |case| {
        case.job = case
            .job
            .with("\"nodes.parquet\"", "\"s3://bucket/nodes.parquet\"");
    });
    check(USAGE, &["`infer.layer`", "2"], |case| {
        case.job = case.job.and("layer = 3")
    });
    check(USAGE, &["job.toml", "name"], |case| {
        case.job = case.job.with("name = \"small\"", "name = \"../small\"");
    });
}

#[test]
fn missing_files_and_columns_are_named() {
    check(USAGE, &["input.nodes.path", "node.parquet"], |case| {
        case.job = case.job.with("nodes.parquet", "node.parquet");
    });
    check(USAGE, &["input.edges.path", "edge.parquet"], |case| {
        case.job = case.job.with("edges.parquet", "edge.parquet");
    });
    check(
        USAGE,
        &[
            "input.nodes.features",
            "`features`",
            "nodes.parquet",
            "split",
        ],
        |case| {
            case.nodes.remove("features");
        },
    );
    check(
        USAGE,
        &["input.nodes.label", "`label`", "nodes.parquet"],
        |case| {
            case.nodes.remove("label");
        },
    );
    check(
        USAGE,
        &["input.edges.dst", "`dst`", "edges.parquet", "src"],
        |case| {
            case.edges.remove("dst");
        },
    );
}

#[test]
fn wrong_types_are_named() {
    check(DATA, &["`id`", "nodes.parquet", "Float32"], |case| {
        case.nodes
            .set("id", Arc::new(Float32Array::from(vec![0.5; 60])));
    });
    check(DATA, &["`features`", "nodes.parquet", "Utf8"], |case| {
        case.nodes
            .set("features", Arc::new(StringArray::from(vec!["x"; 60])));
    });
    check(DATA, &["`src`", "edges table", "utf8", "int64"], |case| {
        let rows = case.edges.column("src").len();
        case.edges
            .set("src", Arc::new(StringArray::from(vec!["x"; rows])));
    });
    check(DATA, &["`weight`", "edges.parquet", "Utf8"], |case| {
        let rows = case.edges.column("src").len();
        case.edges
            .set("weight", Arc::new(StringArray::from(vec!["x"; rows])));
    });
    check(
        USAGE,
        &["`input.nodes.split_values`", "`split` holds numbers"],
        |case| {
            case.nodes
                .set("split", Arc::new(Int32Array::from(vec![0; 60])));
        },
    );
}

#[test]
fn bad_ids_name_file_column_and_row() {
    check(DATA, &["`id`", "nodes.parquet", "row 45", "null"], |case| {
        case.nodes
            .set("id", with_id(&case.nodes.column("id"), 45, None));
    });
    let twin = graph().id(3);
    check(DATA, &["nodes.parquet", "row 3", "row 50", &twin], |case| {
        let value = twin.parse().unwrap();
        case.nodes
            .set("id", with_id(&case.nodes.column("id"), 50, Some(value)));
    });
    check(
        DATA,
        &["`src`", "edges.parquet", "row 41", "null"],
        |case| {
            case.edges
                .set("src", with_id(&case.edges.column("src"), 41, None));
        },
    );
    check(
        DATA,
        &["`dst`", "edges.parquet", "row 70", "5", "drop"],
        |case| {
            case.edges
                .set("dst", with_id(&case.edges.column("dst"), 70, Some(5)));
        },
    );
}

#[test]
fn dangling_edges_are_dropped_and_counted_on_request() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let mut edges = graph.edge_table();
    edges.set("dst", with_id(&edges.column("dst"), 70, Some(5)));
    edges.set("src", with_id(&edges.column("src"), 71, Some(5)));
    edges.write(&bench.path("edges.parquet"));
    let job =
        Job::new(&graph, &[FLATTEN]).with("dst = \"dst\"", "dst = \"dst\"\ndangling = \"drop\"");
    bench.run(&job, &[]).ok();
    let dropped = bench.data_files("out/features");
    let report = bench.manifest("out/features").to_string();
    assert!(report.contains("\"dropped_rows\":2"), "{report}");

    let mut without = graph.clone();
    without.edges.drain(70..72);
    let rest: Vec<f32> = (0..graph.edges.len())
        .filter(|edge| !(70..72).contains(edge))
        .map(|edge| graph.weight(edge))
        .collect();
    let mut kept_edges = without.edge_table();
    kept_edges.set("weight", Arc::new(Float32Array::from(rest)));
    let other = Bench::new(&without);
    kept_edges.write(&other.path("edges.parquet"));
    other.run(&Job::new(&without, &[FLATTEN]), &[]).ok();
    crate::harness::assert_same_bytes(&dropped, &other.data_files("out/features"), "dropped edges");
}

#[test]
fn bad_features_name_file_column_and_row() {
    check(DATA, &["`features`", "nodes.parquet", "row 44"], |case| {
        case.nodes
            .set("features", with_feature(44, vec![1.0; FEATURE_DIM - 1]));
    });
    for bad in [f32::NAN, f32::INFINITY] {
        check(DATA, &["`features`", "nodes.parquet", "row 3"], |case| {
            let mut row = vec![0.0; FEATURE_DIM];
            row[2] = bad;
            case.nodes.set("features", with_feature(3, row));
        });
    }
    let columns = Graph::new(60, IdKind::Utf8, FeatureKind::Columns).with_weights();
    check_on(
        &columns,
        DATA,
        &["`f1`", "nodes.parquet", "row 52"],
        |case| {
            case.nodes.set(
                "f1",
                with_float(&case.nodes.column("f1"), 52, Some(f32::NAN)),
            );
        },
    );
    let sparse = Graph::new(60, IdKind::Utf8, FeatureKind::Sparse).with_weights();
    check_on(
        &sparse,
        DATA,
        &["`feat_idx`", "nodes.parquet", "row 0", "6"],
        |case| {
            let index = (0..60).map(|_| vec![i32::try_from(FEATURE_DIM).unwrap()]);
            case.nodes.set("feat_idx", i32_lists(index));
            case.nodes
                .set("feat_val", f32_lists((0..60).map(|_| vec![1.0])));
        },
    );
    check_on(
        &sparse,
        DATA,
        &["feat_val", "nodes.parquet", "row 0"],
        |case| {
            case.nodes
                .set("feat_val", f32_lists((0..60).map(|_| vec![1.0; 9])));
        },
    );
}

#[test]
fn bad_weights_name_file_column_and_row() {
    for bad in [Some(f32::NAN), Some(f32::NEG_INFINITY), None] {
        check(DATA, &["`weight`", "edges.parquet", "row 90"], |case| {
            case.edges
                .set("weight", with_float(&case.edges.column("weight"), 90, bad));
        });
    }
    check(
        DATA,
        &["`weight`", "edges.parquet", "row 90", "weighted"],
        |case| {
            case.job = case.job.with("uniform", "weighted");
            case.edges.set(
                "weight",
                with_float(&case.edges.column("weight"), 90, Some(-1.0)),
            );
        },
    );
}

#[test]
fn bad_labels_and_splits_are_named() {
    check(
        DATA,
        &["`label`", "nodes.parquet", "row 47", "-2"],
        |case| {
            case.nodes.set("label", with_label(47, -2));
        },
    );
    check(DATA, &["`label`", "nodes.parquet", "row 47", "3"], |case| {
        case.job = case.job.with("split =", "num_classes = 3\nsplit =");
        case.nodes.set("label", with_label(47, 3));
    });
    check(
        DATA,
        &["`split`", "nodes.parquet", "row 0", "dev"],
        |case| {
            case.nodes
                .set("split", Arc::new(StringArray::from(vec!["dev"; 60])));
        },
    );
}

/// Flatten may be whole by then; the model and what follows must not exist.
#[test]
fn an_empty_split_is_an_error_of_training() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let mut nodes = graph.nodes();
    nodes.set("split", Arc::new(StringArray::from(vec!["test"; 60])));
    nodes.write(&bench.path("nodes.parquet"));
    let outcome = bench.run(&Job::new(&graph, &[FLATTEN, TRAIN, INFER]), &[]);
    assert_eq!(outcome.code, DATA, "{outcome:#?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
    assert!(outcome.stderr.contains("train"), "{outcome:#?}");
    assert!(!bench.path("out/model/_SUCCESS").exists());
    assert!(!bench.path("out/embeddings").exists());
}

#[test]
fn an_output_of_another_plan_is_left_alone() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN]);
    bench.run(&job, &[]).ok();
    let before = bench.data_files("out/features");
    let other = job.with("[4, 3]", "[2, 2]");
    let outcome = bench.run(&other, &[]);
    assert_eq!(outcome.code, USAGE, "{outcome:#?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
    for word in ["out/features", "--fresh"] {
        assert!(outcome.stderr.contains(word), "no {word}: {outcome:#?}");
    }
    crate::harness::assert_same_bytes(&before, &bench.data_files("out/features"), "untouched");

    bench.run(&other, &["--fresh"]).ok();
    assert_ne!(
        before,
        bench.data_files("out/features"),
        "--fresh starts over"
    );
}

#[test]
fn foreign_files_in_an_output_are_never_removed() {
    let graph = graph();
    let bench = Bench::new(&graph);
    fs::create_dir_all(bench.path("out/features")).unwrap();
    fs::write(bench.path("out/features/thesis.txt"), "years of work").unwrap();
    for args in [&[][..], &["--fresh"][..]] {
        let outcome = bench.run(&Job::new(&graph, &[FLATTEN]), args);
        assert_eq!(outcome.code, USAGE, "{outcome:#?}");
        assert!(outcome.stderr.contains("out/features"), "{outcome:#?}");
        let text = fs::read_to_string(bench.path("out/features/thesis.txt")).unwrap();
        assert_eq!(text, "years of work");
    }
}

#[test]
fn wrong_arguments_are_usage_errors() {
    let bench = Bench::new(&graph());
    bench.write(&Job::new(&graph(), &[FLATTEN]));
    for args in [
        &["run"][..],
        &["run", "job.toml", "--stage", "flattn"],
        &["run", "job.toml", "--stage", "train"],
        &["run", "no-such.toml"],
        &["run", "job.toml", "--workers", "0"],
        &["check", "no-such.toml"],
        &["inspect", "no-such-directory"],
        &["inspect", "."],
        &["fly"],
    ] {
        let outcome = bench.graphflat(args);
        assert_eq!(outcome.code, USAGE, "{args:?}: {outcome:#?}");
        assert!(!outcome.stderr.is_empty());
        assert!(!bench.path("out").exists());
    }
}

#[test]
fn a_closed_pipe_does_not_fail_a_check() {
    let bench = Bench::new(&graph());
    bench.write(&Job::new(&graph(), &[FLATTEN]));
    let mut child = bench.command(&["check", "job.toml"]).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
