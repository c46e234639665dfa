//! Training: it learns, and the same job gives the same weights.

use serde_json::Value;

use crate::harness::{Bench, FLATTEN, FeatureKind, Graph, IdKind, Job, TRAIN, assert_same_bytes};

const OUTPUT: &str = "out/model";

/// A guess is right in one of three cases; the generated classes are easy to learn.
const ACCURACY_MIN: f64 = 0.6;

fn graph() -> Graph {
    Graph::new(240, IdKind::Utf8, FeatureKind::List)
}

pub(crate) fn model_json(bench: &Bench) -> Value {
    let text = std::fs::read_to_string(bench.path(OUTPUT).join("model.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Finds a number by its key, at any depth.
pub(crate) fn number(value: &Value, key: &str) -> Option<f64> {
    match value {
        Value::Object(map) => map
            .get(key)
            .and_then(Value::as_f64)
            .or_else(|| map.values().find_map(|inner| number(inner, key))),
        Value::Array(items) => items.iter().find_map(|inner| number(inner, key)),
        _ => None,
    }
}

#[test]
fn every_model_learns_the_classes() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&Job::new(&graph, &[FLATTEN]), &[]).ok();
    for (model, more) in [
        ("gcn", ""),
        ("sage", ""),
        ("sage", "aggregator = \"max\""),
        ("gat", "heads = 2"),
        ("gatv2", "heads = 2"),
        ("gin", ""),
    ] {
        let job = Job::new(&graph, &[FLATTEN, TRAIN]).with("\"sage\"", &format!("\"{model}\""));
        let job = job
            .with("epochs = 4", "epochs = 40")
            .and("dropout = 0.1")
            .and(more);
        bench.run(&job, &["--stage", "train", "--fresh"]).ok();
        let metrics = model_json(&bench);
        let accuracy = number(&metrics, "test_accuracy").expect("test_accuracy");
        assert!(
            accuracy >= ACCURACY_MIN,
            "{model} {more}: {accuracy} in {metrics}"
        );
    }
}

#[test]
fn workers_layouts_and_reruns_give_the_same_weights() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN, TRAIN]).and("dropout = 0.5");
    let weights = |of: &Job, workers: &str| {
        bench.clear();
        bench.run(of, &["--workers", workers]).ok();
        bench.data_files(OUTPUT)
    };
    // With one part for all targets, the parts of both layouts have the same targets.
    let in_one = job.with("targets_per_part = 16", "targets_per_part = 1000");
    let rows = |of: &Job| of.with("shards", "rows");
    for (one, other) in [
        (&in_one, &rows(&in_one)),
        (&job, &job),
        (&rows(&job), &rows(&job)),
    ] {
        let expected = weights(one, "1");
        for workers in ["1", "2", "3"] {
            let what = format!("{other:?}, {workers} workers");
            assert_same_bytes(&expected, &weights(other, workers), &what);
        }
    }
    let expected = weights(&job, "1");
    let other = weights(&job.with("seed = 7", "seed = 8"), "2");
    assert_ne!(expected, other, "another seed");
}

#[test]
fn class_names_are_kept_with_the_model() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN, TRAIN]).with("label = \"label\"", "label = \"name\"");
    bench.run(&job, &[]).ok();
    let names = &model_json(&bench)["label_names"];
    assert_eq!(*names, serde_json::json!(["class 0", "class 1", "class 2"]));
}

#[test]
fn a_model_trains_on_features_flattened_by_another_job() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&Job::new(&graph, &[FLATTEN]), &[]).ok();
    let job = Job::new(&graph, &[TRAIN]).and("input = \"out/features\"");
    bench.run(&job, &[]).ok();
    let alone = bench.data_files(OUTPUT);
    bench.clear();
    bench.run(&Job::new(&graph, &[FLATTEN, TRAIN]), &[]).ok();
    assert_same_bytes(&alone, &bench.data_files(OUTPUT), "in one job or in two");
}
