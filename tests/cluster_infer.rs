//! Inference in several processes: the same bytes as in one.

use crate::cluster::survive_kills;
use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, TRAIN, assert_same_bytes,
};
use crate::needs::slow;

const OUTPUT: &str = "out/embeddings";

fn graph(ids: IdKind, features: FeatureKind) -> Graph {
    Graph::new(150, ids, features).with_weights()
}

fn graph_of(num_nodes: usize) -> Graph {
    Graph::new(num_nodes, IdKind::Utf8, FeatureKind::List).with_weights()
}

/// A job with fewer parts than, as many parts as, or more parts than the workers of a run.
fn job(graph: &Graph, model: &str) -> Job {
    let train = TRAIN.replace("\"sage\"", model);
    Job::new(graph, &[FLATTEN, &train, INFER]).and("rows_per_part = 20")
}

/// A job on thousands of nodes, in few batches and parts.
fn large_job(graph: &Graph, model: &str) -> Job {
    job(graph, model)
        .with("epochs = 4", "epochs = 1")
        .with("batch_size = 16", "batch_size = 1024")
        .with("targets_per_part = 16", "targets_per_part = 4096")
        .with("rows_per_part = 20", "rows_per_part = 1000")
}

/// Infers in one process and then in several, and compares the outputs.
fn check(bench: &Bench, job: &Job, what: &str) {
    check_among(bench, job, what, &[("2", "1"), ("3", "2"), ("4", "1")]);
}

fn check_among(bench: &Bench, job: &Job, what: &str, among: &[(&str, &str)]) {
    let infer = ["--stage", "infer", "--fresh"];
    bench.run(job, &infer).ok();
    let expected = bench.data_files(OUTPUT);
    assert!(!expected.is_empty(), "{what}");
    let error_of_16_bits = || bench.manifest(OUTPUT)["report"]["rows_compared"].clone();
    let error = error_of_16_bits();
    for (processes, workers) in among {
        let several = ["--processes", processes, "--workers", workers];
        bench.run(job, &[&infer[..], &several].concat()).ok();
        let what = format!("{what}, {processes} processes");
        assert_same_bytes(&expected, &bench.data_files(OUTPUT), &what);
        assert_eq!(error_of_16_bits(), error, "{what}");
    }
}

#[test]
fn every_layer_gives_the_bytes_of_one_process() {
    for (model, features) in [
        ("\"sage\"", FeatureKind::List),
        ("\"sage\"\naggregator = \"max\"", FeatureKind::Sparse),
        ("\"gcn\"\nedge_weight = true", FeatureKind::List),
        ("\"gat\"\nheads = 2", FeatureKind::Sparse),
        ("\"gatv2\"\nheads = 2", FeatureKind::List),
        ("\"gin\"", FeatureKind::List),
    ] {
        let graph = graph(IdKind::Utf8, features);
        let bench = Bench::new(&graph);
        let job = job(&graph, model);
        let both = ["--stage", "flatten", "--stage", "train"];
        bench.run(&job, &both).ok();
        check(&bench, &job, model);
        check(
            &bench,
            &job.and("sampling = \"none\""),
            &format!("{model}, all"),
        );
        let in_16_bits = job.and("rows = \"bf16\"");
        check_among(&bench, &in_16_bits, model, &[("3", "2")]);
        let compared = &bench.manifest(OUTPUT)["report"]["rows_compared"];
        assert!(compared["nodes"].as_u64() > Some(30), "{compared}");
    }
}

#[test]
fn every_choice_of_output_gives_the_bytes_of_one_process() {
    let graph = graph(IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let job = job(&graph, "\"gat\"\nheads = 2");
    bench
        .run(&job, &["--stage", "flatten", "--stage", "train"])
        .ok();
    let mut list = graph.nodes();
    list = list.slice(40, 37);
    list.write(&bench.path("list.parquet"));
    for choice in [
        "logits = true\nprobabilities = true\nnormalize = true\nprecision = \"f16\"",
        "layer = 1",
        "layer = 1\nprediction = false\ncolumns = [\"name\", \"label\"]",
        "compare_sampling = true",
        "rows = \"bf16\"",
        "layer = 1\nrows = \"bf16\"",
        "targets = \"list.parquet\"",
    ] {
        check(&bench, &job.and(choice), choice);
    }
    let compared = job.and("compare_sampling = true");
    let told = |args: &[&str]| {
        let args = [&["--stage", "infer", "--fresh"][..], args].concat();
        bench.run(&compared, &args).ok();
        bench.manifest(OUTPUT)["report"].clone()
    };
    let (one, three) = (told(&[]), told(&["--processes", "3"]));
    assert_eq!(one["sampling_compared"]["nodes"], graph.num_nodes);
    for key in ["nodes", "other_predictions", "largest_distance"] {
        let figure = |report: &serde_json::Value| report["sampling_compared"][key].clone();
        assert_eq!(figure(&one), figure(&three), "{key}");
    }
    let unknown = "targets = \"list.parquet\"";
    let column = arrow::array::Int64Array::from_iter_values(0..37);
    list.set("id", std::sync::Arc::new(column));
    list.write(&bench.path("list.parquet"));
    let args = ["--stage", "infer", "--fresh", "--processes", "3"];
    let refused = bench.run(&job.and(unknown), &args);
    assert_eq!(refused.code, 3, "{refused:?}");
    assert!(refused.stderr.contains("list.parquet"), "{refused:?}");
}

/// Enough rows that each worker reads, sends and receives several blocks.
#[test]
fn blocks_of_rows_cross_from_all_workers_at_once() {
    let graph = graph_of(12_000);
    let bench = Bench::new(&graph);
    let job = large_job(&graph, "\"gat\"\nheads = 4")
        .with("hidden = [8]", "hidden = [64]")
        .with("rows_per_part = 1000", "rows_per_part = 3000");
    bench
        .run(&job, &["--stage", "flatten", "--stage", "train"])
        .ok();
    check(&bench, &job.and("sampling = \"none\""), "blocks");
}

/// A node with enough in-edges to be aggregated by segments, each in the process that holds its
/// rows.
#[test]
fn a_hub_gives_the_bytes_of_one_process() {
    for model in [
        "\"sage\"",
        "\"sage\"\naggregator = \"max\"",
        "\"gcn\"\nedge_weight = true",
        "\"gat\"\nheads = 2\nedge_features = true",
        "\"gatv2\"\nheads = 2\nedge_weight = true\nedge_features = true",
        "\"gin\"\nedge_features = true",
    ] {
        let graph = graph(IdKind::Int64, FeatureKind::List).with_in_edges(9000);
        let bench = Bench::new(&graph);
        let weight = "weight = \"weight\"\n";
        let job = job(&graph, model)
            .with(weight, &format!("{weight}features = [\"weight\"]\n"))
            .and("sampling = \"none\"\ncompare_sampling = true");
        bench
            .run(&job, &["--stage", "flatten", "--stage", "train"])
            .ok();
        // With seven processes, all but six of 240 segments have their nodes in one process.
        check_among(&bench, &job, model, &[("2", "1"), ("3", "2"), ("7", "1")]);
        let in_16_bits = job.and("rows = \"bf16\"");
        check_among(&bench, &in_16_bits, model, &[("3", "2")]);
    }
}

/// A hub of one layer or sampling is no hub of another that reads fewer of its in-edges.
#[test]
fn a_hub_of_some_layers_gives_the_bytes_of_one_process() {
    if !slow() {
        return;
    }
    let graph = graph_of(12_000).with_in_edges(20_000);
    let bench = Bench::new(&graph);
    for (model, fanouts, infer) in [
        ("\"sage\"", "[4, 3]", "compare_sampling = true"),
        ("\"gcn\"\nedge_weight = true", "[\"all\", 3]", "layer = 2"),
        (
            "\"gat\"\nheads = 2",
            "[3, \"all\"]",
            "compare_sampling = true",
        ),
    ] {
        let job = large_job(&graph, model)
            .with("fanouts = [4, 3]", &format!("fanouts = {fanouts}"))
            .and(infer);
        let both = ["--stage", "flatten", "--stage", "train", "--fresh"];
        bench.run(&job, &both).ok();
        let told = |args: &[&str]| {
            let args = [&["--stage", "infer", "--fresh"][..], args].concat();
            bench.run(&job, &args).ok();
            bench.manifest(OUTPUT)["report"]["sampling_compared"]["largest_distance"].clone()
        };
        assert_eq!(told(&[]), told(&["--processes", "4"]), "{model}");
        check(&bench, &job, model);
    }
}

/// A process with a hub that has in-edges from most nodes receives no more than its share of rows.
#[test]
fn no_process_gets_more_rows_because_of_a_hub() {
    let graph = graph_of(15_000).with_in_edges(14_000);
    let bench = Bench::new(&graph);
    let job = large_job(&graph, "\"sage\"").and("sampling = \"none\"");
    bench
        .run(&job, &["--stage", "flatten", "--stage", "train"])
        .ok();
    let args = ["--stage", "infer", "--processes", "4", "--workers", "1"];
    bench.run(&job, &args).ok();
    let report = bench.manifest(OUTPUT)["report"].clone();
    let processes = report["processes"].as_array().unwrap();
    for round in 0..3 {
        let received = |of: &serde_json::Value| {
            let bytes = of[round]["crossing"]["bytes_received"].as_u64();
            u32::try_from(bytes.unwrap()).unwrap()
        };
        let received: Vec<u32> = processes.iter().map(received).collect();
        let mean = f64::from(received.iter().sum::<u32>()) / 4.0;
        let most = f64::from(*received.iter().max().unwrap());
        assert!(most <= 1.3 * mean, "round {round}: {received:?}");
    }
}

/// By the report, the row of a node is sent once to each process that reads it.
#[test]
fn rows_cross_once_a_round_and_process() {
    let graph = graph(IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let job = job(&graph, "\"sage\"").and("sampling = \"none\"");
    bench
        .run(&job, &["--stage", "flatten", "--stage", "train"])
        .ok();
    let args = [
        "--stage",
        "infer",
        "--fresh",
        "--processes",
        "2",
        "--workers",
        "1",
    ];
    bench.run(&job, &args).ok();
    let report = bench.manifest(OUTPUT)["report"].clone();
    let processes = report["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 2);
    let sum = |round: usize, key: &str| -> u64 {
        let figures = processes
            .iter()
            .map(|of| of[round]["crossing"][key].as_u64().unwrap());
        figures.sum()
    };
    for round in 0..3 {
        assert_eq!(sum(round, "bytes_sent"), sum(round, "bytes_received"));
        assert!(sum(round, "bytes_least") <= sum(round, "bytes_received"));
    }
    // The hidden layer is 8 wide: each node's row is sent at most once, to the one other process.
    assert!(sum(1, "bytes_sent") > 0);
    assert!(sum(1, "bytes_sent") <= 4 * 8 * graph.num_nodes as u64);
}

/// The report's least number of bytes is checked on graphs where it is known for any placement of
/// nodes.
#[test]
fn the_fewer_of_rows_and_partial_aggregates_are_counted() {
    let learned = graph(IdKind::Utf8, FeatureKind::List);
    let bench = Bench::new(&learned);
    let train = job(&learned, "\"sage\"").with("hidden = [8]", "hidden = [3]");
    bench
        .run(&train, &["--stage", "flatten", "--stage", "train"])
        .ok();
    // Layer 2 reads rows of 3 numbers; SAGE's partial aggregates are as wide.
    let row = 4 * 3;
    for (edges, num_nodes, least, is_less) in [
        // One node has edges to all others: its row is sent, not an aggregate for each of them.
        (
            (1..60).map(|dst| (0, dst)).collect::<Vec<_>>(),
            60,
            row,
            false,
        ),
        // All others have edges to one node: one aggregate could replace their rows.
        ((1..60).map(|src| (src, 0)).collect(), 60, row, true),
        // Enough in-edges for a hub, whose partial aggregates are sent: one could replace those of
        // all segments.
        ((1..9600).map(|src| (src, 0)).collect(), 9600, row, true),
    ] {
        let star = Graph {
            num_nodes,
            edges,
            ..learned.clone()
        };
        let other = Bench::new(&star);
        let model = format!("model = {:?}\nsampling = \"none\"", bench.path("out/model"));
        let infer = Job::new(&star, &[INFER]).and(&model);
        other
            .run(&infer, &["--processes", "2", "--workers", "1"])
            .ok();
        let report = other.manifest(OUTPUT)["report"].clone();
        let sum = |key: &str| -> u64 {
            let of = report["processes"].as_array().unwrap().iter();
            of.map(|rounds| rounds[1]["crossing"][key].as_u64().unwrap())
                .sum()
        };
        let (received, told) = (sum("bytes_received"), sum("bytes_least"));
        assert_eq!(told, least, "of {received} with {num_nodes} nodes");
        assert_eq!(received > told, is_less, "{received}, {num_nodes} nodes");
    }
}

#[test]
fn a_process_that_is_killed_loses_no_finished_round() {
    if !slow() {
        return;
    }
    let graph = graph_of(600).with_in_edges(9000);
    let bench = Bench::new(&graph);
    let job = job(&graph, "\"gat\"\nheads = 2")
        .with("targets_per_part = 16", "targets_per_part = 64")
        .with("rows_per_part = 20", "rows_per_part = 8")
        .and("sampling = \"none\"");
    bench
        .run(&job, &["--stage", "flatten", "--stage", "train"])
        .ok();
    survive_kills(&bench, &job, ("infer", "infer, "), OUTPUT);
    let left = bench.path("work/small/process-001/infer");
    assert!(!left.exists(), "rounds are removed in the end");
}

#[test]
fn stored_neighbourhoods_are_inferred_in_one_process() {
    let graph = graph(IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let job = job(&graph, "\"sage\"").with("rows_per_part = 20", "method = \"neighborhoods\"");
    let refused = bench.run(&job, &["--stage", "infer", "--processes", "2"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("`infer.method`"), "{refused:?}");
}
