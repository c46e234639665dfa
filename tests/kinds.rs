//! Every kind of label, feature, id and split runs through all stages of the real program.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{AsArray as _, Float32Array, Float64Array, Int32Array};
use arrow::datatypes::{Float32Type, Float64Type, Int32Type, Int64Type};

use schemas::{Ids, SplitShares};

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, NUM_CLASSES, TRAIN, assert_same_bytes,
    f32_lists, i32_lists,
};
use crate::infer::batches;
use crate::infer_outputs::vectors;
use crate::train::{model_json, number};

const MODEL: &str = "out/model";
const EMBEDDINGS: &str = "out/embeddings";

/// Forty epochs amplify the last bits of sums in another order.
const LOSS_TOLERANCE: f64 = 1e-3;

fn graph(ids: IdKind, features: FeatureKind) -> Graph {
    Graph::new(240, ids, features)
}

fn job(graph: &Graph) -> Job {
    Job::new(graph, &[FLATTEN, TRAIN, INFER]).with("epochs = 4", "epochs = 40\ndropout = 0.1")
}

/// A metric of the trained model.
#[track_caller]
fn metric(bench: &Bench, name: &str) -> f64 {
    let model = model_json(bench);
    number(&model, name).unwrap_or_else(|| panic!("no {name} in {model}"))
}

/// Runs a job with 1 and with 3 workers and expects the same bytes.
fn run(bench: &Bench, job: &Job) {
    bench.run(job, &["--workers", "1"]).ok();
    let outputs = [MODEL, EMBEDDINGS].map(|output| bench.data_files(output));
    bench.clear();
    bench.run(job, &["--workers", "3"]).ok();
    for (output, expected) in [MODEL, EMBEDDINGS].iter().zip(&outputs) {
        assert_same_bytes(expected, &bench.data_files(output), output);
    }
}

#[test]
fn several_labels_a_node_are_learned_and_predicted() {
    let graph = graph(IdKind::Utf8, FeatureKind::List);
    let bench = Bench::new(&graph);
    let of = |node: usize| vec![i32::from(node.is_multiple_of(3)), i32::from(node % 3 != 1)];
    let mut nodes = graph.nodes();
    nodes.set("tags", i32_lists((0..graph.num_nodes).map(of)));
    nodes.write(&bench.path("nodes.parquet"));
    let job = job(&graph).with("\"label\"", "\"tags\"");
    run(&bench, &job.and("logits = true\nprobabilities = true"));
    let (logits, probability) = (vectors(&bench, "logits"), vectors(&bench, "probability"));
    let micro_f1 = metric(&bench, "test_micro_f1");
    assert!(micro_f1 >= 0.7, "{micro_f1}");
    let (mut right, mut all) = (0, 0);
    for batch in batches(&bench, EMBEDDINGS) {
        let ids = batch.column_by_name("id").unwrap().as_string::<i32>();
        let lists = batch.column_by_name("prediction").unwrap().as_list::<i32>();
        for row in 0..batch.num_rows() {
            let values = lists.value(row);
            let found = values.as_primitive::<Int32Type>().values().to_vec();
            let node = (0..graph.num_nodes).find(|&node| graph.id(node) == ids.value(row));
            right += usize::from(found == of(node.unwrap()));
            // Each label is independent: it is predicted if its probability is above one half.
            for (label, logit) in logits[ids.value(row)].iter().enumerate() {
                let likely = probability[ids.value(row)][label];
                assert!((likely - 1.0 / (1.0 + (-logit).exp())).abs() < 1e-6);
                assert_eq!(found[label] == 1, likely > 0.5, "{likely}");
            }
            all += 1;
        }
    }
    assert_eq!(all, graph.num_nodes);
    assert!(right * 2 > all, "{right} of {all} right");
}

#[test]
fn numbers_are_learned_and_predicted() {
    let graph = graph(IdKind::Utf8, FeatureKind::List);
    let bench = Bench::new(&graph);
    let numbers = (0..graph.num_nodes).map(|node| (node % NUM_CLASSES) as f32 - 1.0);
    let mut nodes = graph.nodes();
    nodes.set("number", Arc::new(Float32Array::from_iter_values(numbers)));
    nodes.write(&bench.path("nodes.parquet"));
    // The numbers are all whole, so the job must say that they are no classes.
    let missing = job(&graph).with("\"label\"", "\"number\"");
    bench.write(&missing);
    let outcome = bench.graphflat(&["check", "job.toml"]);
    assert_eq!(outcome.code, 2, "{}", outcome.stderr);
    let said = "`input.nodes.label_kind`: is missing";
    assert!(outcome.stderr.contains(said), "{}", outcome.stderr);
    run(
        &bench,
        &missing.with("\"number\"", "\"number\"\nlabel_kind = \"number\""),
    );
    // R2 of the mean is 0.
    let r2 = metric(&bench, "test_r2");
    assert!(r2 >= 0.3, "{r2}");
    for batch in batches(&bench, EMBEDDINGS) {
        let prediction = batch.column_by_name("prediction").unwrap();
        let values = prediction.as_primitive::<Float32Type>().values();
        assert!(values.iter().all(|number| number.is_finite()));
    }
}

/// Predictions, logits, losses and metrics have the unit of the labels, for any unit and any
/// method.
#[test]
fn numbers_far_from_one_are_learned_in_their_unit() {
    const DEVIATION: f64 = 3e5;
    let graph = graph(IdKind::Utf8, FeatureKind::List);
    let bench = Bench::new(&graph);
    let label = |node: usize| 1e7 + DEVIATION * (node % NUM_CLASSES) as f64 + 0.25;
    let labels = Float64Array::from_iter_values((0..graph.num_nodes).map(label));
    let mut nodes = graph.nodes();
    nodes.set("number", Arc::new(labels));
    nodes.write(&bench.path("nodes.parquet"));
    let job = job(&graph)
        .with("\"label\"", "\"number\"")
        .with("targets_per_part = 16", "targets = \"all\"")
        .and("logits = true");
    run(&bench, &job);
    let r2 = metric(&bench, "test_r2");
    assert!(r2 >= 0.3, "{r2}");
    let (loss, rmse) = (metric(&bench, "test_loss"), metric(&bench, "test_rmse"));
    assert!((0.01 * DEVIATION..DEVIATION).contains(&rmse), "{rmse}");
    assert!((loss.sqrt() / rmse - 1.0).abs() < 1e-6, "{loss}");
    let scale = &model_json(&bench)["label_scale"];
    let mean = scale["mean"][0].as_f64().unwrap();
    assert!((mean - 1e7 - DEVIATION).abs() < 0.5 * DEVIATION, "{scale}");
    let by_layers = vectors(&bench, "logits");
    for batch in batches(&bench, EMBEDDINGS) {
        let ids = batch.column_by_name("id").unwrap().as_string::<i32>();
        let prediction = batch.column_by_name("prediction").unwrap();
        let values = prediction.as_primitive::<Float64Type>().values();
        for (row, value) in values.iter().enumerate() {
            let numbers = by_layers[ids.value(row)].iter();
            assert_eq!(numbers.map(|x| f64::from(*x)).collect::<Vec<_>>(), [*value]);
            assert!((9e6..1.2e7).contains(value), "{value}");
        }
    }
    let outputs = [MODEL, EMBEDDINGS].map(|output| bench.data_files(output));
    bench.run(&job, &["--fresh", "--processes", "2"]).ok();
    for (output, expected) in [MODEL, EMBEDDINGS].iter().zip(&outputs) {
        assert_same_bytes(expected, &bench.data_files(output), output);
    }
    let stored = job.and("method = \"neighborhoods\"");
    bench.run(&stored, &["--fresh"]).ok();
    for (id, logits) in vectors(&bench, "logits") {
        // At this size f32 holds only whole numbers.
        assert!((logits[0] - by_layers[&id][0]).abs() <= 8.0, "{logits:?}");
    }
}

#[test]
fn sparse_features_are_those_of_a_list() {
    let graph = graph(IdKind::Utf8, FeatureKind::Sparse);
    let bench = Bench::new(&graph);
    run(&bench, &job(&graph));
    let sparse = metric(&bench, "test_loss");
    assert!(metric(&bench, "test_accuracy") >= 0.6);

    let listed = Bench::new(&graph);
    let mut nodes = graph.nodes();
    let rows = (0..graph.num_nodes).map(|node| graph.feature(node).to_vec());
    nodes.set("features", f32_lists(rows));
    nodes.write(&listed.path("nodes.parquet"));
    let dense = Graph {
        features: FeatureKind::List,
        ..graph
    };
    listed.run(&job(&dense), &[]).ok();
    let listed = metric(&listed, "test_loss");
    assert!(
        (sparse - listed).abs() <= LOSS_TOLERANCE,
        "{sparse} is not {listed}"
    );
}

#[test]
fn columns_of_numbers_are_features_side_by_side() {
    let listed = graph(IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&listed);
    run(&bench, &job(&listed));
    for features in [FeatureKind::Columns, FeatureKind::FixedList] {
        let graph = graph(IdKind::Int64, features);
        let other = Bench::new(&graph);
        other.run(&job(&graph), &[]).ok();
        for output in [MODEL, EMBEDDINGS] {
            let what = format!("{output} of {features:?}");
            assert_same_bytes(&bench.data_files(output), &other.data_files(output), &what);
        }
    }
    let expected: BTreeSet<String> = (0..listed.num_nodes).map(|node| listed.id(node)).collect();
    let mut found = BTreeSet::new();
    for batch in batches(&bench, EMBEDDINGS) {
        let ids = batch.column_by_name("id").unwrap();
        let ids = ids.as_primitive::<Int64Type>().values();
        found.extend(ids.iter().map(ToString::to_string));
    }
    assert_eq!(found, expected);
}

#[test]
fn splits_may_be_chosen_numbers() {
    let graph = graph(IdKind::Utf8, FeatureKind::List);
    let bench = Bench::new(&graph);
    bench.run(&job(&graph), &[]).ok();
    let words = bench.data_files(MODEL);
    bench.clear();
    let numbers = (0..graph.num_nodes).map(|node| match graph.split(node) {
        Some("train") => Some(10),
        Some("val") => Some(20),
        Some(_) => Some(30),
        None => (node % 2 == 0).then_some(-1),
    });
    let mut nodes = graph.nodes();
    nodes.set("split", Arc::new(numbers.collect::<Int32Array>()));
    nodes.write(&bench.path("nodes.parquet"));
    let values = "split_values = { train = 10, val = 20, test = 30 }";
    let numbered = job(&graph).with("\n\n[input.edges]", &format!("\n{values}\n\n[input.edges]"));
    bench.run(&numbered, &[]).ok();
    assert_same_bytes(&words, &bench.data_files(MODEL), "words and numbers");
}

#[test]
fn undirected_edges_are_edges_both_ways() {
    let graph = graph(IdKind::Utf8, FeatureKind::List);
    let bench = Bench::new(&graph);
    let undirected = job(&graph).with("[flatten]", "undirected = true\n[flatten]");
    run(&bench, &undirected);
    let expected = [MODEL, EMBEDDINGS].map(|output| bench.data_files(output));
    let mut both = graph.clone();
    both.edges
        .extend(graph.edges.iter().map(|&(src, dst)| (dst, src)));
    let written_out = Bench::new(&both);
    written_out.run(&job(&both), &[]).ok();
    for (output, wanted) in [MODEL, EMBEDDINGS].iter().zip(&expected) {
        assert_same_bytes(wanted, &written_out.data_files(output), output);
    }
}

#[test]
fn a_graph_without_features_flattens_to_its_structure() {
    let graph = graph(IdKind::Utf8, FeatureKind::None);
    let bench = Bench::new(&graph);
    bench.run(&Job::new(&graph, &[FLATTEN]), &[]).ok();
    let outcome = bench
        .graphflat(&["inspect", "out/features", "--limit", "1"])
        .ok();
    assert!(!outcome.stdout.contains(" features "), "{}", outcome.stdout);
    // Every model reads features, so none fits a graph without features.
    let with_features = self::graph(IdKind::Utf8, FeatureKind::List);
    with_features.nodes().write(&bench.path("nodes.parquet"));
    bench
        .run(&Job::new(&with_features, &[FLATTEN, TRAIN]), &["--fresh"])
        .ok();
    graph.nodes().write(&bench.path("nodes.parquet"));
    let infer = Job::new(&graph, &[INFER]).and("model = \"out/model\"");
    let refused = bench.run(&infer, &[]);
    assert_eq!(refused.code, 2, "{refused:#?}");
    let problem = "it reads 6 features a node, `input.nodes.features` have 0";
    assert!(refused.stderr.trim_end().ends_with(problem), "{refused:#?}");
}

/// Nodes without a label get no split, so they are no targets.
#[test]
fn splits_are_drawn_alike_by_any_number_of_workers_and_processes() {
    const FEATURES: &str = "out/features";
    let graph = graph(IdKind::Utf8, FeatureKind::List);
    let bench = Bench::new(&graph);
    let class = |node: usize| {
        let class = i32::try_from(node % NUM_CLASSES).unwrap();
        (!node.is_multiple_of(5)).then_some(class)
    };
    let mut nodes = graph.nodes();
    nodes.set(
        "label",
        Arc::new(Int32Array::from_iter((0..graph.num_nodes).map(class))),
    );
    nodes.remove("split");
    nodes.write(&bench.path("nodes.parquet"));
    let shares = SplitShares {
        train: 0.6,
        val: 0.2,
        test: 0.1,
        seed: Some(7),
    };
    let mut expected = [0u64; 4];
    let ids = Ids::from_array(&nodes.column("id")).unwrap();
    for node in (0..graph.num_nodes).filter(|node| class(*node).is_some()) {
        expected[shares.draw(ids.hash(node)) as usize] += 1;
    }
    let job = Job::new(&graph, &[FLATTEN, TRAIN]).with(
        "split = \"split\"",
        "split = { train = 0.6, val = 0.2, test = 0.1 }",
    );
    let mut first = None;
    for args in [["--workers", "1"], ["--workers", "3"], ["--processes", "2"]] {
        bench.run(&job, &[&["--fresh"][..], &args].concat()).ok();
        let files = [FEATURES, MODEL].map(|output| bench.data_files(output));
        let before = first.get_or_insert_with(|| files.clone());
        for (output, (earlier, found)) in [FEATURES, MODEL].iter().zip(before.iter().zip(&files)) {
            assert_same_bytes(earlier, found, output);
        }
        let manifest = bench.manifest(FEATURES);
        let parts = manifest["parts"].as_array().unwrap();
        for (split, num_expected) in [
            ("train", expected[1]),
            ("val", expected[2]),
            ("test", expected[3]),
            ("none", 0),
        ] {
            let found = parts
                .iter()
                .map(|part| part["targets"][split].as_u64().unwrap());
            assert_eq!(found.sum::<u64>(), num_expected, "{split}");
        }
    }
    // With their own seed, the splits stay the same when the job's seed changes.
    bench.clear();
    let other = job
        .with("seed = 7\n", "seed = 8\n")
        .with("test = 0.1 }", "test = 0.1, seed = 7 }");
    bench.run(&other, &["--stage", "flatten"]).ok();
    let manifest = bench.manifest(FEATURES);
    let counts = manifest["parts"].as_array().unwrap().iter();
    let trained = counts.map(|part| part["targets"]["train"].as_u64().unwrap());
    assert_eq!(trained.sum::<u64>(), expected[1]);
}
