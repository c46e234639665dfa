//! Bad jobs and bad input: one clear line, the right exit code, nothing half-written.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, Float32Array, Float64Array, Int8Array, Int32Array, Int64Array, StringArray,
    Time64NanosecondArray, UInt64Array,
};
use expect_test::{Expect, expect};

use crate::harness::{
    Bench, FEATURE_DIM, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, TRAIN, Table, f32_lists,
    i32_lists,
};

const USAGE: i32 = 2;
const DATA: i32 = 3;

/// A good job and its tables, which a test then spoils.
struct Case {
    nodes: Table,
    edges: Table,
    job: Job,
    /// Directory in which the job runs.
    dir: PathBuf,
}

fn graph() -> Graph {
    Graph::new(60, IdKind::Int64, FeatureKind::List).with_weights()
}

/// Spoils a good job with `spoil`; `check` and `run` must refuse it with the line `expected`.
#[track_caller]
fn check(code: i32, expected: Expect, spoil: impl FnOnce(&mut Case)) {
    check_on(&graph(), code, expected, spoil);
}

#[track_caller]
fn check_on(graph: &Graph, code: i32, expected: Expect, spoil: impl FnOnce(&mut Case)) {
    let (bench, job) = spoilt(graph, spoil);
    let outcome = bench.run(&job, &[]);
    assert_eq!(outcome.code, code, "{outcome:#?}");
    expected.assert_eq(&outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1);
    assert_eq!(outcome.stdout, "");
    let left: Vec<_> = ["out/features", "out/model", "out/embeddings"]
        .into_iter()
        .filter(|output| bench.path(output).exists())
        .collect();
    assert!(left.is_empty(), "half-written: {left:?}");
    let checked = bench.graphflat(&["check", "job.toml"]);
    assert_eq!(checked.code, code, "{checked:#?}");
    assert_eq!(
        checked.stderr,
        outcome.stderr.replace("stage flatten: ", "")
    );
}

/// Spoils a good job; only `check` must see it before the first stage is done.
#[track_caller]
fn check_ahead(graph: &Graph, code: i32, expected: Expect, spoil: impl FnOnce(&mut Case)) {
    let (bench, job) = spoilt(graph, spoil);
    bench.write(&job);
    let checked = bench.graphflat(&["check", "job.toml"]);
    assert_eq!(checked.code, code, "{checked:#?}");
    expected.assert_eq(&checked.stderr);
    let outcome = bench.run(&job, &[]);
    assert_eq!(outcome.code, code, "{outcome:#?}");
    assert_eq!(outcome.stderr.lines().count(), 1);
    assert!(!bench.path("out/model").exists());
}

fn spoilt(graph: &Graph, spoil: impl FnOnce(&mut Case)) -> (Bench, Job) {
    let bench = Bench::empty();
    let mut case = Case {
        nodes: graph.nodes(),
        edges: graph.edge_table(),
        job: Job::new(graph, &[FLATTEN, TRAIN, INFER]),
        dir: bench.path(""),
    };
    spoil(&mut case);
    // The test may have written this table itself.
    for (name, table) in [
        ("nodes.parquet", &case.nodes),
        ("edges.parquet", &case.edges),
    ] {
        if !bench.path(name).exists() {
            table.write(&bench.path(name));
        }
    }
    (bench, case.job)
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

/// Features of another width.
fn with_feature_width(width: usize) -> ArrayRef {
    f32_lists((0..graph().num_nodes).map(|_| vec![0.5; width]))
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
        expect![[r#"
        error: job.toml:1: unknown key `nam`; did you mean `name`? allowed: name, seed, work_dir, workers, memory_budget, storage, input, incremental, flatten, train, infer, score
    "#]],
        |case| {
            case.job = case.job.with("name =", "nam =");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:21: unknown key `flatten.fanout`; did you mean `fanouts`? allowed: output, hops, fanouts, target_type, sampling, layout, targets, hub_threshold, samples_per_target, targets_per_part, pairs_per_part, negatives_per_part
    "#]],
        |case| {
            case.job = case.job.with("fanouts =", "fanout =");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:8: unknown key `input.nodes.feature`; did you mean `features`? allowed: path, id, features, columns, sparse, label, label_kind, num_classes, split, split_values, graph, transform, embedding, where
    "#]],
        |case| {
            case.job = case.job.with("features =", "feature =");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:30: unknown key `train.epoch`; did you mean `epochs`? allowed: model, hidden, layers, heads, out_heads, aggregator, relation_aggregator, readout, projection, bases, relation_dim, attention_residual, normalize_output, activation, dropout, input_dropout, attention_dropout, norm, residual, edge_weight, edge_features, optimizer, learning_rate, schedule, clip_norm, momentum, weight_decay, embedding_weight_decay, weight_decay_layers, epochs, batch_size, evaluate_every, patience, monitor, loss, decoder, temperature, margin, negatives, batch_by, src_power, whole_parts, class_weights, seed, workers, servers, mode, staleness, gradient_format, device, pruning, edge_partitioning, checkpoint_every, checkpoint_every_steps, cache_bytes, streamed, input, output
    "#]],
        |case| {
            case.job = case.job.with("epochs =", "epoch =");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:34: unknown key `infer.outptu`; did you mean `output`? allowed: output, model, input, check_columns, sampling, layer, method, rows_per_part, prediction, logits, probabilities, precision, device, rows, normalize, targets, types, columns, compare_sampling
    "#]],
        |case| {
            case.job = case
                .job
                .with(INFER, "[infer]\noutptu = \"out/embeddings\"\n");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:26: unknown key `training`; did you mean `train`? allowed: name, seed, work_dir, workers, memory_budget, storage, input, incremental, flatten, train, infer, score
    "#]],
        |case| {
            case.job = case.job.with("[train]", "[training]");
        },
    );
}

#[test]
fn missing_keys_and_wrong_values_name_key_and_line() {
    check(
        USAGE,
        expect![[r#"
        error: job.toml:1: missing key `seed`
    "#]],
        |case| {
            case.job = case.job.with("seed = 7\n", "");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:18: missing key `flatten.hops`
    "#]],
        |case| {
            case.job = case.job.with("hops = 2\n", "");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:2: `seed` is the string "seven"; allowed is a whole number from 0
    "#]],
        |case| {
            case.job = case.job.with("seed = 7", "seed = \"seven\"");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:3: `workers`: is 0; allowed is 1 to 1024
    "#]],
        |case| {
            case.job = case.job.with("workers = 2", "workers = 0");
        },
    );
}

/// More workers than a machine can use are refused before they take memory.
#[test]
fn workers_are_bounded_by_cores_and_budget() {
    let (bench, job) = spoilt(&graph(), |case| {
        let many = "workers = 1000\nmemory_budget = \"64MiB\"";
        case.job = case.job.with("workers = 2", many);
    });
    let outcome = bench.run(&job, &[]);
    assert_eq!(outcome.code, USAGE, "{outcome:#?}");
    let line = outcome.stderr.trim_end();
    assert!(
        line.starts_with("error: job.toml:3: `workers`: is 1000; "),
        "{line}"
    );
    assert!(
        line.contains("memory budget of 64.0 MiB allow 1 to 16"),
        "{line}"
    );
    let default = job.with("workers = 1000\n", "");
    bench.run(&default, &["--stage", "flatten"]).ok();
}

#[test]
fn what_a_step_cannot_be_is_named() {
    for (keys, expected) in [
        (
            "schedule = { kind = \"cosine\", warmup = 4 }",
            expect![[r#"
                error: job.toml:31: `train.schedule.warmup` is 4: allowed is 0 to below `train.epochs`, 4
            "#]],
        ),
        (
            "schedule = { kind = \"step\" }",
            expect![[r#"
            error: job job.toml: `train.schedule.every` is missing: epochs between two falls of kind "step"
        "#]],
        ),
        (
            "class_weights = \"fair\"",
            expect![[r#"
            error: job.toml:31: `train.class_weights` is the string "fair"; allowed is a list of numbers, one per class, or "balanced"
        "#]],
        ),
        (
            "class_weights = [1, -2, 1]",
            expect![[r#"
            error: job.toml:31: `train.class_weights` is -2: allowed is 0 to 1000000000
        "#]],
        ),
        (
            "clip_norm = 0",
            expect![[r#"
            error: job.toml:31: `train.clip_norm` is 0: allowed is above 0, at most 1000000000
        "#]],
        ),
    ] {
        check(USAGE, expected, |case| {
            let with_keys = format!("epochs = 4\n{keys}");
            case.job = case.job.with("epochs = 4", &with_keys);
        });
    }
}

#[test]
fn wrong_words_and_numbers_name_what_is_allowed() {
    check(
        USAGE,
        expect![[r#"
        error: job.toml:23: `flatten.layout` cannot be `shard`; did you mean `shards`? allowed: rows, shards
    "#]],
        |case| {
            case.job = case.job.with("layout = \"shards\"", "layout = \"shard\"");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:34: `infer.rows` cannot be `f16`; did you mean `bf16`? allowed: f32, bf16
    "#]],
        |case| {
            case.job = case.job.with("[infer]\n", "[infer]\nrows = \"f16\"\n");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:35: `infer.rows` is "bf16": `method = "neighborhoods"` computes the targets of stored graph features, part by part, on the in-edges that these hold; leave the key out, or set `method = "layers"`
    "#]],
        |case| {
            let keys = "[infer]\nmethod = \"neighborhoods\"\nrows = \"bf16\"\n";
            case.job = case.job.with("[infer]\n", keys);
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:21: `flatten.fanouts` is the string "most"; allowed is a number of in-edges from 1 to 4294967295, or "all"
    "#]],
        |case| {
            case.job = case.job.with("[4, 3]", "[4, \"most\"]");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:21: `flatten.fanouts` is the number 0; allowed is a number of in-edges from 1 to 4294967295, or "all"
    "#]],
        |case| case.job = case.job.with("[4, 3]", "[4, 0]"),
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:28: `train.model` cannot be `mlp`; allowed: gcn, sage, gat, gatv2, gin, lightgcn, rgcn, simple_hgn, hgt
    "#]],
        |case| {
            case.job = case.job.with("\"sage\"", "\"mlp\"");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:3: `memory_budget` is the string "lots"; allowed is a size, such as "2GiB"
    "#]],
        |case| {
            case.job = case.job.with("workers = 2", "memory_budget = \"lots\"");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:1: key with no value, expected `=`
    "#]],
        |case| case.job = case.job.with("name = ", "name "),
    );
}

#[test]
fn impossible_combinations_are_named_before_any_work() {
    check(
        USAGE,
        expect![[r#"
        error: job.toml:20: `flatten.hops` is 3: must equal the number of `flatten.fanouts`, 2
    "#]],
        |case| {
            case.job = case.job.with("hops = 2", "hops = 3");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:27: `train.output`: out/features overlaps `flatten.output`, out/features; each needs a directory of its own
    "#]],
        |case| {
            case.job = case.job.with("out/model", "out/features");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job job.toml: `train.input` is missing: a directory of graph features, where the job has no table [flatten]
    "#]],
        |case| case.job = case.job.with(FLATTEN, ""),
    );
    check(
        USAGE,
        expect![[r#"
        error: job job.toml: `infer.model` is missing: a directory with a trained model, where the job has no table [train]
    "#]],
        |case| case.job = case.job.with(TRAIN, ""),
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:1: `name`: no stage to run; at least one of the tables flatten, train, infer, score is needed
    "#]],
        |case| {
            case.job = case.job.with(FLATTEN, "").with(TRAIN, "").with(INFER, "");
        },
    );
}

#[test]
fn keys_of_counts_start_at_1() {
    check(
        USAGE,
        expect![[r#"
        error: job.toml:8: `input.nodes.embedding` is the string "x"; allowed is a whole number from 1
    "#]],
        |case| {
            case.job = case.job.with("features =", "embedding = \"x\"\nfeatures =");
        },
    );
}

#[test]
fn impossible_values_are_named_before_any_work() {
    check(
        USAGE,
        expect![[r#"
        error: job.toml:21: `flatten.sampling`: "weighted" and "top" need `input.edges.weight`; "uniform" does not
    "#]],
        |case| {
            case.job = case
                .job
                .with("uniform", "weighted")
                .with("weight = \"weight\"\n", "");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:30: `train.layers`: is 3; must equal `flatten.hops`, 2
    "#]],
        |case| case.job = case.job.with("epochs", "layers = 3\nepochs"),
    );
    // The tests run on a program without the feature `gpu`.
    check(
        USAGE,
        expect![[r#"
        error: job.toml:30: `train.device` is "gpu": this program was built without GPUs: build it with `cargo build --release --features gpu`, or take one of "auto", "cpu"
    "#]],
        |case| case.job = case.job.with("epochs", "device = \"gpu\"\nepochs"),
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:6: `input.nodes.path`: gs://bucket/nodes.parquet is the URL of a store that is not supported; allowed are s3://, hdfs://, file:// and plain paths
    "#]],
        |case| {
            case.job = case
                .job
                .with("\"nodes.parquet\"", "\"gs://bucket/nodes.parquet\"");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:35: `infer.layer`: is 3; the model has layers 1 to 2
    "#]],
        |case| case.job = case.job.and("layer = 3"),
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:1: `name`: must be letters, digits, `_`, `-` or `.`, and not start with `.`
    "#]],
        |case| {
            case.job = case.job.with("name = \"small\"", "name = \"../small\"");
        },
    );
}

#[test]
fn missing_files_and_columns_are_named() {
    check(
        USAGE,
        expect![[r#"
        error: job.toml:6: `input.nodes.path`: no such file or directory: node.parquet
    "#]],
        |case| {
            case.job = case.job.with("nodes.parquet", "node.parquet");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:13: `input.edges.path`: no such file or directory: edge.parquet
    "#]],
        |case| {
            case.job = case.job.with("edges.parquet", "edge.parquet");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:8: `input.nodes.features`: no column `features` in nodes.parquet; its columns are id, label, name, split
    "#]],
        |case| {
            case.nodes.remove("features");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:9: `input.nodes.label`: no column `label` in nodes.parquet; its columns are id, features, name, split
    "#]],
        |case| {
            case.nodes.remove("label");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:15: `input.edges.dst`: no column `dst` in edges.parquet; its columns are src, weight
    "#]],
        |case| {
            case.edges.remove("dst");
        },
    );
}

#[test]
fn wrong_types_are_named() {
    check(
        DATA,
        expect![[r#"
        error: job job.toml: column `id` of nodes.parquet is float32, allowed for ids: integers and strings; write numbers without a fraction as integers
    "#]],
        |case| {
            case.nodes
                .set("id", Arc::new(Float32Array::from(vec![0.5; 60])));
        },
    );
    check(
        DATA,
        expect![[r#"
        error: job job.toml: column `features` of nodes.parquet is time of day, allowed for features: numbers, lists of numbers, strings, dictionaries, dates and timestamps; write it as a number, such as seconds, or as a timestamp
    "#]],
        |case| {
            let times = Time64NanosecondArray::from(vec![1; 60]);
            case.nodes.set("features", Arc::new(times));
        },
    );
    check(
        DATA,
        expect![[r#"
        error: job job.toml: edges table: column `src` has strings and column `dst` has int64; both must be integers or both strings
    "#]],
        |case| {
            let rows = case.edges.column("src").len();
            case.edges
                .set("src", Arc::new(StringArray::from(vec!["x"; rows])));
        },
    );
    check(
        DATA,
        expect![[r#"
        error: job job.toml: column `weight` of edges.parquet is string, allowed for weights: numbers
    "#]],
        |case| {
            let rows = case.edges.column("src").len();
            case.edges
                .set("weight", Arc::new(StringArray::from(vec!["x"; rows])));
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job job.toml: `input.nodes.split_values`: column `split` holds numbers; say which, as in { train = 0, val = 1, test = 2 }
    "#]],
        |case| {
            case.nodes
                .set("split", Arc::new(Int32Array::from(vec![0; 60])));
        },
    );
}

#[test]
fn bad_ids_name_file_column_and_row() {
    check(
        DATA,
        expect![[r#"
        error: job job.toml: stage flatten: column `id` of nodes.parquet, row 45: is null
    "#]],
        |case| {
            case.nodes
                .set("id", with_id(&case.nodes.column("id"), 45, None));
        },
    );
    let twin = graph().id(3);
    check(
        DATA,
        expect![[r#"
        error: job job.toml: stage flatten: node id 92000366 occurs twice: row 3 of nodes.parquet and row 50 of nodes.parquet
    "#]],
        |case| {
            let value = twin.parse().unwrap();
            case.nodes
                .set("id", with_id(&case.nodes.column("id"), 50, Some(value)));
        },
    );
    check(
        DATA,
        expect![[r#"
        error: job job.toml: stage flatten: column `src` of edges.parquet, row 41: is null
    "#]],
        |case| {
            case.edges
                .set("src", with_id(&case.edges.column("src"), 41, None));
        },
    );
    check(
        DATA,
        expect![[r#"
        error: job job.toml: stage flatten: column `dst`, row 70 of edges.parquet: no node has the id 5; 1 of 301 rows have an end that is no node, 0.3 %; `dangling = "drop"` under [input.edges] leaves them out
    "#]],
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
    check(
        DATA,
        expect![[r#"
        error: job job.toml: stage flatten: column `features` of nodes.parquet, row 44: holds 5 numbers, the first row holds 6
    "#]],
        |case| {
            case.nodes
                .set("features", with_feature(44, vec![1.0; FEATURE_DIM - 1]));
        },
    );
    check(
        DATA,
        expect![[r#"
        error: job job.toml: stage flatten: column `features` of nodes.parquet, row 3: is inf; allowed are finite float32 numbers, and null or NaN for a missing one
    "#]],
        |case| {
            let mut row = vec![0.0; FEATURE_DIM];
            row[2] = f32::INFINITY;
            case.nodes.set("features", with_feature(3, row));
        },
    );
    let columns = Graph::new(60, IdKind::Utf8, FeatureKind::Columns).with_weights();
    check_on(
        &columns,
        DATA,
        expect![[r#"
        error: job job.toml: stage flatten: column `f1` of nodes.parquet, row 52: is -inf; allowed are finite float32 numbers, and null or NaN for a missing one
    "#]],
        |case| {
            case.nodes.set(
                "f1",
                with_float(&case.nodes.column("f1"), 52, Some(f32::NEG_INFINITY)),
            );
        },
    );
    check_on(
        &columns,
        DATA,
        expect![[r#"
        error: job job.toml: stage flatten: column `f1` of nodes.parquet, row 7: is 1e300, beyond 32-bit floats; allowed are finite float32 numbers, and null or NaN for a missing one
    "#]],
        |case| {
            let mut wide = vec![0.5; 60];
            wide[7] = 1e300;
            case.nodes.set("f1", Arc::new(Float64Array::from(wide)));
        },
    );
}

#[test]
fn bad_sparse_features_name_file_column_and_row() {
    let sparse = Graph::new(60, IdKind::Utf8, FeatureKind::Sparse).with_weights();
    check_on(
        &sparse,
        DATA,
        expect![[r#"
        error: job job.toml: stage flatten: column `feat_idx` of nodes.parquet, row 0: holds 6; allowed are 0 to 5
    "#]],
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
        expect![[r#"
        error: job job.toml: stage flatten: column `feat_val` of nodes.parquet, row 0: holds 9 numbers for the 4 positions in column `feat_idx`
    "#]],
        |case| {
            case.nodes
                .set("feat_val", f32_lists((0..60).map(|_| vec![1.0; 9])));
        },
    );
}

#[test]
fn bad_weights_name_file_column_and_row() {
    for (bad, expected) in [
        (
            Some(f32::NAN),
            expect![[r#"
            error: job job.toml: stage flatten: column `weight` of edges.parquet, row 90: is NaN; allowed are finite float32 numbers
        "#]],
        ),
        (
            Some(f32::NEG_INFINITY),
            expect![[r#"
            error: job job.toml: stage flatten: column `weight` of edges.parquet, row 90: is -inf; allowed are finite float32 numbers
        "#]],
        ),
        (
            None,
            expect![[r#"
            error: job job.toml: stage flatten: column `weight` of edges.parquet, row 90: is null
        "#]],
        ),
    ] {
        check(DATA, expected, |case| {
            case.edges
                .set("weight", with_float(&case.edges.column("weight"), 90, bad));
        });
    }
    check(
        DATA,
        expect![[r#"
        error: job job.toml: stage flatten: column `weight` of edges.parquet, row 90: is -1; weighted sampling allows no negative weight
    "#]],
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
        expect![[r#"
        error: job job.toml: column `label` of nodes.parquet, row 47: is -2; allowed are class numbers from 0 below 1048576, and -1 or null for none
    "#]],
        |case| {
            case.nodes.set("label", with_label(47, -2));
        },
    );
    check(
        DATA,
        expect![[r#"
        error: job job.toml: column `label` of nodes.parquet, row 47: is 3; allowed are class numbers from 0 below 3, and -1 or null for none
    "#]],
        |case| {
            case.job = case.job.with("split =", "num_classes = 3\nsplit =");
            case.nodes.set("label", with_label(47, 3));
        },
    );
    check(
        DATA,
        expect![[r#"
        error: job job.toml: column `split` of nodes.parquet, row 0: is "dev"; allowed are "train", "val", "test", and "none", "" or null for none
    "#]],
        |case| {
            case.nodes
                .set("split", Arc::new(StringArray::from(vec!["dev"; 60])));
        },
    );
    check(
        DATA,
        expect![[r#"
        error: job job.toml: column `label` of nodes.parquet, row 47: is 3000000000; allowed are class numbers from 0 below 1048576, and -1 or null for none
    "#]],
        |case| {
            let mut labels = vec![0; 60];
            labels[47] = 3_000_000_000;
            case.nodes.set("label", Arc::new(Int64Array::from(labels)));
        },
    );
}

#[test]
fn training_needs_targets_in_its_splits() {
    check(
        DATA,
        expect![[r#"
        error: job job.toml: `input.nodes.split`: column `split` of nodes.parquet puts no target into `train`, but training needs at least one
    "#]],
        |case| {
            case.nodes
                .set("split", Arc::new(StringArray::from(vec!["test"; 60])));
        },
    );
    check(
        DATA,
        expect![[r#"
        error: job job.toml: `input.nodes.split`: column `split` of nodes.parquet puts no target into `val`, but `train.patience` needs a metric of it
    "#]],
        |case| {
            case.job = case.job.with("epochs = 4", "epochs = 4\npatience = 2");
            case.nodes
                .set("split", Arc::new(StringArray::from(vec!["train"; 60])));
        },
    );
    check(
        DATA,
        expect![[r#"
        error: job job.toml: `input.nodes.split`: column `split` of nodes.parquet puts no target into `val`, but `train.monitor` is a metric of it
    "#]],
        |case| {
            case.job = case
                .job
                .with("fanouts", "targets = \"train\"\nfanouts")
                .with("epochs = 4", "epochs = 4\nmonitor = \"loss\"");
        },
    );
}

#[test]
fn targets_in_a_split_have_labels() {
    let graph = graph();
    let in_split = |split| {
        (0..60)
            .find(|&node| graph.split(node) == Some(split))
            .unwrap()
    };
    for (split, expected) in [
        (
            "train",
            expect![[r#"
            error: job job.toml: column `label` of nodes.parquet, row 0: holds no label, but the node is a target in split `train`
        "#]],
        ),
        (
            "val",
            expect![[r#"
            error: job job.toml: column `label` of nodes.parquet, row 3: holds no label, but the node is a target in split `val`
        "#]],
        ),
        (
            "test",
            expect![[r#"
            error: job job.toml: column `label` of nodes.parquet, row 6: holds no label, but the node is a target in split `test`
        "#]],
        ),
    ] {
        check(DATA, expected, |case| {
            case.nodes.set("label", with_label(in_split(split), -1));
        });
    }
    check(
        DATA,
        expect![[r#"
        error: job job.toml: column `name` of nodes.parquet, row 3: holds no label, but the node is a target in split `val`
    "#]],
        |case| {
            case.job = case.job.with("label = \"label\"", "label = \"name\"");
            let names = (0..60).map(|node| (node != in_split("val")).then_some("a"));
            case.nodes
                .set("name", Arc::new(StringArray::from_iter(names)));
        },
    );
    // No target of this job is in the test split.
    let bench = Bench::new(&graph);
    let mut nodes = graph.nodes();
    nodes.set("label", with_label(in_split("test"), -1));
    nodes.write(&bench.path("nodes.parquet"));
    let job = Job::new(&graph, &[FLATTEN, TRAIN]);
    bench
        .run(&job.with("fanouts", "targets = \"train\"\nfanouts"), &[])
        .ok();
}

#[test]
fn lists_of_targets_are_of_nodes() {
    let list = |ids: ArrayRef, column: &'static str| {
        move |case: &mut Case| {
            let mut table = Table::default();
            table.set(column, ids);
            table.write(&case.dir.join("list.parquet"));
            case.job = case
                .job
                .with("fanouts", "targets = \"list.parquet\"\nfanouts");
        }
    };
    let ids = |ids: &[Option<i64>]| Arc::new(Int64Array::from(ids.to_vec())) as ArrayRef;
    let known: Option<i64> = graph().id(0).parse().ok(); // in the train split
    check(
        USAGE,
        expect![[r#"
        error: job.toml:21: `flatten.targets` is none.parquet: must be "labelled", "all", "train" or a Parquet file
    "#]],
        |case| {
            case.job = case
                .job
                .with("fanouts", "targets = \"none.parquet\"\nfanouts");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job job.toml: `flatten.targets`: no column `id` in list.parquet; did you mean `ids`? its columns are ids
    "#]],
        list(ids(&[known]), "ids"),
    );
    check(
        DATA,
        expect![[r#"
            error: job job.toml: stage flatten: column `id` of list.parquet, row 1: is 5, which is no node's id
        "#]],
        list(ids(&[known, Some(5)]), "id"),
    );
    check(
        DATA,
        expect![[r#"
        error: job job.toml: column `id` of list.parquet, row 1: is null
    "#]],
        list(ids(&[known, None]), "id"),
    );
    let text = Arc::new(StringArray::from(vec!["x"]));
    check(
        DATA,
        expect![[r#"
        error: job job.toml: column `id` of list.parquet is string, allowed for listed ids: integers, as the nodes have
    "#]],
        list(text, "id"),
    );
    check(
        DATA,
        expect![[r#"
            error: job job.toml: no node is a target: the list in `flatten.targets` is empty
        "#]],
        list(ids(&[]), "id"),
    );
    check(
        DATA,
        expect![[r#"
        error: job job.toml: cannot read list.parquet as Parquet: it is text, such as CSV; only Parquet is read, which pandas (`to_parquet`), pyarrow and DuckDB (`COPY ... TO 'FILE.parquet'`) write, and CSV in files named `*.csv`, `*.csv.gz` or `*.tsv`
    "#]],
        |case| {
            list(ids(&[]), "id")(case);
            fs::write(case.dir.join("list.parquet"), "id\n3\n").unwrap();
        },
    );
}

#[test]
fn input_that_is_no_parquet_is_named() {
    check(
        DATA,
        expect![[r#"
        error: job job.toml: cannot read nodes.parquet as Parquet: it is text, such as CSV; only Parquet is read, which pandas (`to_parquet`), pyarrow and DuckDB (`COPY ... TO 'FILE.parquet'`) write, and CSV in files named `*.csv`, `*.csv.gz` or `*.tsv`
    "#]],
        |case| {
            fs::write(case.dir.join("nodes.parquet"), "id,label\n1,2\n").unwrap();
        },
    );
    check(
        DATA,
        expect![[r#"
        error: job job.toml: cannot read edges.parquet as Parquet: Parquet argument error: Parquet error: Invalid Parquet file. Corrupt footer
    "#]],
        |case| {
            let path = case.dir.join("edges.parquet");
            case.edges.write(&path);
            let bytes = fs::read(&path).unwrap();
            fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        },
    );
}

#[test]
fn remote_and_unusable_outputs_are_refused() {
    check(
        USAGE,
        expect![[r#"
        error: job.toml:19: `flatten.output`: gs://bucket/features is the URL of a store that is not supported; allowed are s3://, hdfs://, file:// and plain paths
    "#]],
        |case| {
            case.job = case.job.with("out/features", "gs://bucket/features");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:27: `train.output`: gs://bucket/model is the URL of a store that is not supported; allowed are s3://, hdfs://, file:// and plain paths
    "#]],
        |case| {
            case.job = case.job.with("out/model", "gs://bucket/model");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:34: `infer.output`: abfs://host/embeddings is the URL of a store that is not supported; allowed are s3://, hdfs://, file:// and plain paths
    "#]],
        |case| {
            case.job = case.job.with("out/embeddings", "abfs://host/embeddings");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:3: `work_dir`: gs://bucket is the URL of a store that is not supported; allowed are s3://, hdfs://, file:// and plain paths
    "#]],
        |case| {
            case.job = case
                .job
                .with("seed = 7", "seed = 7\nwork_dir = \"gs://bucket\"");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:19: `flatten.output`: is empty; a path is needed
    "#]],
        |case| {
            case.job = case.job.with("out/features", "");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job job.toml: output job.toml/embeddings lies below job.toml, a file; name another `output`
    "#]],
        |case| {
            case.job = case.job.with("out/embeddings", "job.toml/embeddings");
        },
    );
    check(
        USAGE,
        expect![[r#"
        error: job.toml:34: `infer.output`: . overlaps `flatten.output`, out/features; each needs a directory of its own
    "#]],
        |case| {
            case.job = case.job.with("out/embeddings", ".");
        },
    );
}

#[test]
fn a_model_has_to_be_there_and_fit() {
    let brought = |case: &mut Case| {
        case.job = case
            .job
            .with("[infer]\n", "[infer]\nmodel = \"models/old\"\n");
    };
    check(
        USAGE,
        expect![[r#"
        error: job job.toml: models/old holds no finished output: there is no such directory
    "#]],
        brought,
    );
    let mut other = graph();
    other.features = FeatureKind::Columns;
    let bench = Bench::new(&other);
    bench.run(&Job::new(&other, &[FLATTEN, TRAIN]), &[]).ok();
    let narrow = with_feature_width(3);
    let mut nodes = graph().nodes();
    nodes.set("features", narrow);
    nodes.write(&bench.path("nodes.parquet"));
    let job = Job::new(&graph(), &[INFER]).and("model = \"out/model\"");
    for args in [&["check", "job.toml"][..], &["run", "job.toml", "--quiet"]] {
        bench.write(&job);
        let outcome = bench.graphflat(args);
        assert_eq!(outcome.code, USAGE, "{outcome:#?}");
        let expected = "it reads 6 features a node, `input.nodes.features` have 3";
        assert!(
            outcome.stderr.trim_end().ends_with(expected),
            "{outcome:#?}"
        );
        assert!(!bench.path("out/embeddings").exists());
    }
}

#[test]
fn a_stage_alone_finds_its_model_before_it_makes_a_store() {
    let bench = Bench::new(&graph());
    let job = Job::new(&graph(), &[FLATTEN, TRAIN, INFER]);
    for work in ["", "sampling = \"none\"\n"] {
        let outcome = bench.run(&job.and(work), &["--stage", "infer"]);
        assert_eq!(outcome.code, USAGE, "{outcome:#?}");
        let expected = "out/model holds no finished output: there is no such directory\n";
        assert!(outcome.stderr.ends_with(expected), "{outcome:#?}");
        assert!(!bench.path("work").exists(), "there is no store");
    }
}

/// The errors of keys of earlier versions name the replacement.
#[test]
fn removed_keys_say_what_to_use_instead() {
    for (key, value, instead) in [
        (
            "launch",
            "\"processes\"",
            "`run --processes N` runs a job in several processes; without it a training is threads",
        ),
        (
            "launch",
            "\"threads\"",
            "`run --processes N` runs a job in several processes; without it a training is threads",
        ),
        (
            "worker_failure",
            "\"restart\"",
            "`run --processes N --restarts R` starts a job again that lost a process",
        ),
        (
            "timeout_ms",
            "6000",
            "processes that say nothing for 10 s count as lost",
        ),
    ] {
        let (bench, job) = spoilt(&graph(), |case| {
            let more = format!("hidden = [8]\n{key} = {value}\n");
            case.job = case.job.with("hidden = [8]\n", &more);
        });
        let outcome = bench.run(&job, &[]);
        assert_eq!(outcome.code, USAGE, "{outcome:#?}");
        let text = format!("`train.{key}` is no key any more: {instead}\n");
        assert!(outcome.stderr.ends_with(&text), "{outcome:#?}");
    }
}

#[test]
fn loss_and_metric_are_of_the_kind_of_the_labels() {
    check_ahead(
        &graph(),
        USAGE,
        expect![[r#"
        error: job job.toml: out/features cannot be trained on with `train.loss` = "mean_squared_error": its labels are Class { num_classes: 3 }, allowed is "cross_entropy"
    "#]],
        |case| {
            case.job = case
                .job
                .with("epochs = 4", "epochs = 4\nloss = \"mean_squared_error\"");
        },
    );
    check_ahead(
        &graph(),
        USAGE,
        expect![[r#"
        error: job job.toml: out/features cannot be trained on with `train.monitor` = "r2": allowed for its labels: accuracy, micro_f1, macro_f1, loss
    "#]],
        |case| {
            case.job = case.job.with("epochs = 4", "epochs = 4\nmonitor = \"r2\"");
        },
    );
    check_ahead(
        &graph(),
        USAGE,
        expect![[r#"
        error: job job.toml: out/features cannot be trained on with `train.class_weights` = [1.0,2.0]: it has 3 classes, but this list has 2 weights
    "#]],
        |case| {
            case.job = case
                .job
                .with("epochs = 4", "epochs = 4\nclass_weights = [1, 2]");
        },
    );
}

#[test]
fn labels_and_splits_are_of_one_type_in_all_files() {
    check(
        DATA,
        expect![[r#"
        error: job job.toml: column `label` of nodes/b.parquet is int32, allowed for labels: int8, as in nodes/a.parquet
    "#]],
        |case| {
            case.job = case.job.with("nodes.parquet", "nodes");
            fs::create_dir(case.dir.join("nodes")).unwrap();
            case.nodes.write(&case.dir.join("nodes/b.parquet"));
            let labels = Int8Array::from_iter_values((0..60).map(|node| node % 3));
            case.nodes.set("label", Arc::new(labels));
            case.nodes.write(&case.dir.join("nodes/a.parquet"));
        },
    );
}

#[test]
fn ends_that_no_node_can_have_are_dangling() {
    let spoil = |case: &mut Case| {
        let ids = Arc::new(UInt64Array::from_iter_values(0..60));
        case.nodes.set("id", ids);
        let mut ends: Vec<i64> = (0..case.edges.column("src").len() as i64).collect();
        ends.iter_mut().for_each(|end| *end %= 60);
        case.edges
            .set("src", Arc::new(Int64Array::from(ends.clone())));
        ends[90] = -1;
        case.edges.set("dst", Arc::new(Int64Array::from(ends)));
    };
    check(
        DATA,
        expect![[r#"
        error: job job.toml: stage flatten: column `dst` of edges.parquet, row 90: is -1, but the nodes' ids are uint64 (`dangling = "drop"` under [input.edges] leaves such edges out)
    "#]],
        spoil,
    );
    let (bench, job) = spoilt(&graph(), spoil);
    bench
        .run(
            &job.with("[flatten]", "dangling = \"drop\"\n[flatten]"),
            &[],
        )
        .ok();
    let report = bench.manifest("out/features").to_string();
    assert!(report.contains("\"dropped_rows\":1"), "{report}");
    let checked = bench.graphflat(&["check", "job.toml", "--json"]).ok();
    assert_eq!(checked.events()[0]["dropped_edges"], 1);
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
    let checked = bench.graphflat(&["check", "job.toml"]);
    assert_eq!(checked.code, USAGE, "{checked:#?}");
    assert_eq!(
        checked.stderr,
        outcome.stderr.replace("stage flatten: ", "")
    );
    bench.graphflat(&["check", "job.toml", "--fresh"]).ok();
    bench.write(&job);
    bench.graphflat(&["check", "job.toml"]).ok();

    bench.run(&other, &["--fresh"]).ok();
    assert_ne!(
        before,
        bench.data_files("out/features"),
        "--fresh starts over"
    );
}

#[test]
fn a_model_of_another_plan_is_refused_and_one_of_the_same_is_not() {
    let bench = Bench::new(&graph());
    let job = Job::new(&graph(), &[FLATTEN, TRAIN, INFER]);
    bench.run(&job, &[]).ok();
    for (lines, code) in [
        (
            "layers = 2\nloss = \"cross_entropy\"\nlearning_rate = 0.01",
            0,
        ),
        ("learning_rate = 0.02", USAGE),
    ] {
        let changed = job.with("epochs = 4", &format!("epochs = 4\n{lines}"));
        let outcome = bench.run(&changed, &[]);
        let checked = bench.graphflat(&["check", "job.toml"]);
        assert_eq!(
            (outcome.code, checked.code),
            (code, code),
            "{outcome:#?} {checked:#?}"
        );
        assert_eq!(checked.stderr, outcome.stderr.replace("stage train: ", ""));
    }
    // The settings are the same, but not the graph features on which the model was trained.
    let train_alone = Job::new(&graph(), &[TRAIN]).and("input = \"out/features\"");
    bench
        .run(
            &job.with("[4, 3]", "[2, 2]"),
            &["--stage", "flatten", "--fresh"],
        )
        .ok();
    let outcome = bench.run(&train_alone, &[]);
    let checked = bench.graphflat(&["check", "job.toml"]);
    assert_eq!((outcome.code, checked.code), (USAGE, USAGE), "{checked:#?}");
    assert_eq!(checked.stderr, outcome.stderr.replace("stage train: ", ""));
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
