//! Inference: every node once, and the same bytes for any number of workers and any hub threshold.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;

use arrow::array::{Array, AsArray as _, Float32Array, StringArray};
use arrow::datatypes::{Float32Type, Int32Type};
use arrow::record_batch::RecordBatch;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, TRAIN, assert_same_bytes, files_below,
};

const OUTPUT: &str = "out/embeddings";

/// Returns the embedding of each node by its id; each must be finite and occur once.
fn embeddings(bench: &Bench, output: &str) -> BTreeMap<String, Vec<f32>> {
    let mut embeddings = BTreeMap::new();
    for batch in batches(bench, output) {
        let ids = batch.column_by_name("id").unwrap();
        let ids = ids.as_any().downcast_ref::<StringArray>().unwrap();
        let vectors = batch
            .column_by_name("embedding")
            .unwrap()
            .as_fixed_size_list();
        for row in 0..batch.num_rows() {
            let values = vectors
                .value(row)
                .as_primitive::<Float32Type>()
                .values()
                .to_vec();
            assert!(values.iter().all(|value| value.is_finite()));
            assert!(
                embeddings
                    .insert(ids.value(row).to_owned(), values)
                    .is_none(),
                "a node twice"
            );
        }
    }
    embeddings
}

pub(crate) fn batches(bench: &Bench, output: &str) -> Vec<RecordBatch> {
    let mut batches = Vec::new();
    for path in files_below(&bench.path(output)) {
        if path
            .extension()
            .is_some_and(|extension| extension == "parquet")
        {
            let file = File::open(path).unwrap();
            let reader = ParquetRecordBatchReaderBuilder::try_new(file)
                .unwrap()
                .build()
                .unwrap();
            batches.extend(reader.map(Result::unwrap));
        }
    }
    batches
}

fn graph() -> Graph {
    Graph::new(90, IdKind::Utf8, FeatureKind::List).with_weights()
}

#[test]
fn every_node_is_embedded_once_and_workers_and_hubs_do_not_show() {
    let graph = graph();
    let bench = Bench::new(&graph);
    for sampling in ["as_trained", "none"] {
        let job = Job::new(&graph, &[FLATTEN, TRAIN, INFER]);
        let job = job.and(&format!("sampling = \"{sampling}\""));
        bench.run(&job, &["--workers", "1"]).ok();
        let expected = bench.data_files(OUTPUT);
        let ids: BTreeSet<String> = (0..graph.num_nodes).map(|node| graph.id(node)).collect();
        assert_eq!(
            embeddings(&bench, OUTPUT)
                .into_keys()
                .collect::<BTreeSet<_>>(),
            ids
        );
        for (workers, hubs) in [("2", ""), ("4", ""), ("3", "hub_threshold = 4\n")] {
            bench.clear();
            let job = job.with("[flatten]\n", &format!("[flatten]\n{hubs}"));
            bench.run(&job, &["--workers", workers]).ok();
            let what = format!("{sampling}, {workers} workers, {hubs:?}");
            assert_same_bytes(&expected, &bench.data_files(OUTPUT), &what);
        }
        bench.clear();
    }
}

#[test]
fn predictions_are_labels_as_given() {
    let graph = graph();
    for (label, expected) in [("label", "Int32"), ("name", "Utf8")] {
        let bench = Bench::new(&graph);
        let job = Job::new(&graph, &[FLATTEN, TRAIN, INFER]).with("epochs = 4", "epochs = 40");
        bench
            .run(
                &job.with("label = \"label\"", &format!("label = \"{label}\"")),
                &[],
            )
            .ok();
        let mut right = 0;
        let mut rows = 0;
        for batch in batches(&bench, OUTPUT) {
            let ids = batch.column_by_name("id").unwrap().as_string::<i32>();
            let predictions = batch.column_by_name("prediction").unwrap();
            assert_eq!(predictions.data_type().to_string(), expected);
            for row in 0..batch.num_rows() {
                let node = (0..graph.num_nodes)
                    .find(|&n| graph.id(n) == ids.value(row))
                    .unwrap();
                let prediction = match label {
                    "label" => predictions
                        .as_primitive::<Int32Type>()
                        .value(row)
                        .to_string(),
                    _ => predictions.as_string::<i32>().value(row).to_owned(),
                };
                let class = node % crate::harness::NUM_CLASSES;
                right += usize::from(prediction.trim_start_matches("class ") == class.to_string());
                rows += 1;
            }
        }
        assert_eq!(rows, graph.num_nodes);
        assert!(right * 2 > rows, "{right} of {rows} right");
    }
}

#[test]
fn embeddings_of_an_inner_layer_are_as_wide_as_it() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN, TRAIN, INFER]);
    bench.run(&job.and("layer = 1"), &[]).ok();
    let inner = embeddings(&bench, OUTPUT);
    assert_eq!(inner.len(), graph.num_nodes);
    assert!(inner.values().all(|embedding| embedding.len() == 8));
}

#[test]
fn a_model_of_another_job_embeds_with_its_own_sample() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench
        .run(&Job::new(&graph, &[FLATTEN, TRAIN, INFER]), &[])
        .ok();
    let expected = bench.data_files(OUTPUT);
    let alone = Job::new(&graph, &[INFER])
        .with("seed = 7", "seed = 99")
        .and("model = \"out/model\"");
    bench
        .run(&alone.with("out/embeddings", "out/again"), &[])
        .ok();
    assert_same_bytes(
        &expected,
        &bench.data_files("out/again"),
        "the model brings its sample",
    );
}

/// Weights of another table are checked like those of the table of the training.
#[test]
fn a_model_of_weighted_samples_refuses_tables_that_cannot_be_drawn_by_weight() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN, TRAIN])
        .with("sampling = \"uniform\"", "sampling = \"weighted\"")
        .and("edge_weight = false");
    bench.run(&job, &[]).ok();
    let mut edges = graph.edge_table();
    let weights = (0..graph.edges.len()).map(|edge| if edge == 3 { -1.0 } else { 1.0 });
    let weights: Vec<f32> = weights.collect();
    edges.set("weight", Arc::new(Float32Array::from(weights)));
    edges.write(&bench.path("edges.parquet"));
    let alone = Job::new(&graph, &[INFER]).and("model = \"out/model\"");
    let negative = bench.run(&alone, &[]);
    assert_eq!(
        (negative.code, negative.stderr.trim_end()),
        (
            3,
            "error: job job.toml: stage infer: column `weight` of edges.parquet, row 3: is -1; \
             weighted sampling allows no negative weight"
        )
    );
    let unweighted = alone.with("weight = \"weight\"\n", "");
    let missing = bench.run(&unweighted, &[]);
    let what = "`infer.sampling`: the model was trained on in-edges chosen by weight, which needs \
                `input.edges.weight`; `sampling = \"none\"` takes all in-edges";
    assert_eq!(missing.code, 2, "{missing:#?}");
    assert!(missing.stderr.contains(what), "{}", missing.stderr);
    assert!(!bench.path(OUTPUT).exists());
}
