//! Inference: every node once, and the same bytes for any number of workers and any hub threshold.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;

use arrow::array::{Array, AsArray as _, Float32Array, StringArray};
use arrow::datatypes::{Float32Type, Int32Type};
use arrow::record_batch::RecordBatch;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

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
fn the_default_embedding_is_the_last_hidden_layer() {
    let graph = graph();
    let job = Job::new(&graph, &[FLATTEN, TRAIN, INFER]);
    let head = job.with("hidden = [8]", "hidden = [8, 5]");
    let one_hop = job
        .with("hops = 2\nfanouts = [4, 3]", "hops = 1\nfanouts = [4]")
        .with("hidden = [8]", "hidden = []");
    let cases = [(&job, "layer = 1", 8), (&head, "layer = 2", 5)];
    for (case, same, width) in cases.into_iter().chain([(&one_hop, "layer = 1", 3)]) {
        let bench = Bench::new(&graph);
        bench.run(case, &[]).ok();
        let inner = embeddings(&bench, OUTPUT);
        assert_eq!(inner.len(), graph.num_nodes);
        assert!(inner.values().all(|embedding| embedding.len() == width));
        let expected = bench.data_files(OUTPUT);
        let named = case.with("out/embeddings", "out/named").and(same);
        bench.run(&named, &["--stage", "infer"]).ok();
        assert_same_bytes(&expected, &bench.data_files("out/named"), same);
    }
}

/// Older programs took the last layer, even if it gave the logits.
#[test]
fn an_output_of_another_layer_is_not_finished() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN, TRAIN, INFER]);
    bench.run(&job.and("layer = 2"), &[]).ok();
    bench.write(&job);
    for command in ["run", "check"] {
        let refused = bench.graphflat(&[command, "job.toml"]);
        assert_eq!(refused.code, 2, "{refused:#?}");
        assert!(refused.stderr.contains("another plan"), "{refused:#?}");
    }
    bench.run(&job, &["--stage", "infer", "--fresh"]).ok();
    let again = aloud(&bench, &job, &[]);
    assert_eq!(again.matches("finished before").count(), 3, "{again}");
    bench.graphflat(&["check", "job.toml"]).ok();
}

/// Runs a job with log lines.
fn aloud(bench: &Bench, job: &Job, args: &[&str]) -> String {
    bench.write(job);
    let said = bench.graphflat(&[&["run", "job.toml"], args].concat());
    said.ok().stderr
}

/// If there is no hidden layer, a notice says that embeddings are the logits.
#[test]
fn embeddings_that_are_logits_are_told() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN, TRAIN, INFER])
        .with("hops = 2\nfanouts = [4, 3]", "hops = 1\nfanouts = [4]")
        .with("hidden = [8]", "hidden = []");
    let said = aloud(&bench, &job, &[]);
    let notice = "the model in out/model has no hidden layer: its embeddings are the logits";
    assert!(said.contains(notice), "{said}");
    let report = &bench.manifest(OUTPUT)["report"]["embedding"];
    assert_eq!(report["is_logits"], true, "{report}");
}

/// A job that only infers, on a model that another job has trained.
fn alone(graph: &Graph) -> Job {
    Job::new(graph, &[INFER])
        .with("out/embeddings", "out/again")
        .and("model = \"out/model\"")
}

#[test]
fn tables_of_other_columns_than_the_training_s_are_refused() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench
        .run(&Job::new(&graph, &[FLATTEN, TRAIN, INFER]), &[])
        .ok();
    let job = alone(&graph);
    let both = job.with("dst = \"dst\"\n", "dst = \"dst\"\nundirected = true\n");
    let reversed = job
        .with("src = \"src\"", "src = \"other\"")
        .with("dst = \"dst\"", "dst = \"src\"")
        .with("src = \"other\"", "src = \"dst\"");
    let cases = [
        (
            &both,
            "`input.edges.undirected` is true, the model was trained with false",
        ),
        (
            &reversed,
            "`input.edges.src` is \"dst\", the model was trained with \"src\"",
        ),
    ];
    for (case, expected) in cases {
        for command in ["check", "run"] {
            bench.write(case);
            let refused = bench.graphflat(&[command, "job.toml"]);
            assert_eq!(refused.code, 2, "{refused:#?}");
            assert!(refused.stderr.contains(expected), "{refused:#?}");
            assert!(!bench.path("out/again").exists());
        }
    }
    bench.run(&both.and("check_columns = false"), &[]).ok();
}

/// Two columns of one width, read in another order, are a silent error without the model's record.
#[test]
fn swapped_feature_columns_are_refused() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let mut nodes = graph.nodes();
    let value = |node: usize, at: usize| ((node * 7 + at * 3) % 11) as f32;
    for (at, name) in ["left", "right"].into_iter().enumerate() {
        let values = (0..graph.num_nodes).map(|node| value(node, at));
        nodes.set(name, Arc::new(Float32Array::from_iter_values(values)));
    }
    nodes.write(&bench.path("nodes.parquet"));
    let columns = "features = [\"left\", \"right\"]";
    let features = |job: Job| job.with("features = [\"features\"]", columns);
    bench
        .run(&features(Job::new(&graph, &[FLATTEN, TRAIN, INFER])), &[])
        .ok();
    let same = features(alone(&graph));
    let swapped = same.with(columns, "features = [\"right\", \"left\"]");
    let refused = bench.run(&swapped, &[]);
    assert_eq!(refused.code, 2, "{refused:#?}");
    let expected = "`input.nodes.features` is [\"right\", \"left\"], the model was trained with \
                    [\"left\", \"right\"]";
    assert!(refused.stderr.contains(expected), "{refused:#?}");
    let mend = "`infer.check_columns` = false takes them as they are";
    assert!(refused.stderr.contains(mend), "{refused:#?}");
    bench.run(&same, &[]).ok();
}

/// Models of older programs have no record of columns; a model of another program has no manifest.
#[test]
fn the_two_files_of_a_model_are_enough() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench
        .run(&Job::new(&graph, &[FLATTEN, TRAIN, INFER]), &[])
        .ok();
    let expected = bench.data_files(OUTPUT);
    let bare = bench.path("bare");
    std::fs::create_dir(&bare).unwrap();
    for file in ["model.json", "model.safetensors"] {
        std::fs::copy(bench.path("out/model").join(file), bare.join(file)).unwrap();
    }
    let job = alone(&graph).with("out/model", "bare");
    let said = aloud(&bench, &job, &[]);
    assert!(!said.contains("does not record the columns"), "{said}");
    assert_same_bytes(&expected, &bench.data_files("out/again"), "the model alone");

    let json = bare.join("model.json");
    let mut model: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    model["extra"]["columns"].take();
    std::fs::write(&json, model.to_string()).unwrap();
    let warned = aloud(&bench, &job, &["--fresh"]);
    let silent = "does not record the columns it was trained on";
    assert!(warned.contains(silent), "{warned}");
    assert_same_bytes(&expected, &bench.data_files("out/again"), "an older model");

    let refused = |problem: &str| {
        let outcome = bench.run(&job, &["--fresh"]);
        assert_eq!(outcome.code, 2, "{outcome:#?}");
        assert!(outcome.stderr.contains(problem), "{outcome:#?}");
    };
    model["architecture"]["hidden"] = serde_json::json!([9]);
    std::fs::write(&json, model.to_string()).unwrap();
    refused("where the architecture needs [9, 6]");
    model["architecture"]["hidden"] = serde_json::json!([8]);
    std::fs::write(&json, model.to_string()).unwrap();
    let weights = bare.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &whole[..whole.len() - 4]).unwrap();
    refused("model.safetensors");
    let mut broken = whole.clone();
    let end = broken.len();
    broken[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&weights, broken).unwrap();
    refused("not a finite number");
    std::fs::remove_file(&weights).unwrap();
    refused("the model in bare has no file model.safetensors");
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
