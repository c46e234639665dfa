//! The output of `graphflat inspect` for every kind of directory.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::harness::{Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, TRAIN};

/// Masks sizes, checksums and decimals, which depend on file formats and on the last bits of a
/// training.
fn masked(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        for at in 0..words.len() {
            if at > 0 && words[at].starts_with("bytes") {
                words[at - 1] = "N".to_owned();
            }
            if at > 0 && words[at - 1] == "fingerprint" {
                words[at] = "F".to_owned();
            }
            let [before, after] = [['[', '-'], [']', ',']];
            let tail = words[at].trim_start_matches(before);
            let plain = tail.trim_end_matches(after);
            if plain.contains('.') && plain.parse::<f64>().is_ok() {
                let opening = if words[at].starts_with('[') { "[" } else { "" };
                words[at] = format!("{opening}x{}", &tail[plain.len()..]);
            }
        }
        lines.push(words.join(" "));
    }
    lines.join("\n") + "\n"
}

fn graph() -> Graph {
    Graph::new(12, IdKind::Utf8, FeatureKind::List).with_weights()
}

fn whole_job(layout: &str) -> Bench {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN, TRAIN, INFER]).with("\"label\"", "\"name\"");
    bench.run(&job.with("shards", layout), &[]).ok();
    bench
}

#[track_caller]
fn check(bench: &Bench, args: &[&str], expected: Expect) {
    let outcome = bench.graphflat(&[&["inspect"], args].concat()).ok();
    expected.assert_eq(&masked(&outcome.stdout));
}

#[track_caller]
fn refused(bench: &Bench, args: &[&str], expected: Expect) {
    let outcome = bench.graphflat(&[&["inspect"], args].concat());
    assert_eq!(outcome.code, 2, "{outcome:#?}");
    let first = outcome.stderr.lines().next().unwrap_or_default();
    expected.assert_eq(&format!("{first}\n"));
}

#[test]
fn graph_features_of_both_layouts_read_alike() {
    let shards = whole_job("shards");
    check(
        &shards,
        &["out/features", "--limit", "1"],
        expect![[r#"
        flatten: 11 rows, 1 parts, N bytes, seed 7, by graphflat 0.1.0, fingerprint F
        hops 2, fanouts 4, 3
        target node/147-3, split val, label class 0: 6 nodes, 10 edges
          hop 0 node/147-3 in-degree 6 features [x, x, x, x, x, x] (6)
          hop 1 node/44-6 in-degree 3 features [x, x, x, x, x, x] (6)
          hop 1 node/6f8-2 in-degree 5 features [x, x, x, x, x, x] (6)
          hop 2 node/9e8-9 in-degree 1 features [x, x, x, x, x, x] (6)
          hop 2 node/dc5-5 in-degree 4 features [x, x, x, x, x, x] (6)
          hop 2 node/f2b-8 in-degree 2 features [x, x, x, x, x, x] (6)
          node/44-6 -> node/147-3 weight x
          node/6f8-2 -> node/147-3 weight x
          node/6f8-2 -> node/147-3 weight x
          node/6f8-2 -> node/147-3 weight x
          node/147-3 -> node/44-6 weight x
          node/147-3 -> node/44-6 weight 1
          node/147-3 -> node/44-6 weight x
          node/dc5-5 -> node/6f8-2 weight 1
          node/f2b-8 -> node/6f8-2 weight x
          node/9e8-9 -> node/6f8-2 weight x
    "#]],
    );
    let rows = whole_job("rows");
    let shown = |bench: &Bench, args: &[&str]| {
        let outcome = bench
            .graphflat(&[&["inspect", "out/features"], args].concat())
            .ok();
        let (_, neighbourhoods) = outcome.stdout.split_once('\n').unwrap();
        neighbourhoods.to_owned()
    };
    let target = graph().id(0);
    for args in [&["--limit", "100"][..], &["--target", &target], &[]] {
        assert_eq!(shown(&shards, args), shown(&rows, args), "{args:?}");
    }
    assert_eq!(shown(&shards, &[]).matches("target ").count(), 5);
    assert!(shown(&shards, &["--limit", "0"]).starts_with("hops 2, fanouts 4, 3"));
}

#[test]
fn one_neighbourhood_is_drawn() {
    let bench = whole_job("rows");
    let target = graph().id(2);
    check(
        &bench,
        &["out/features", "--target", &target, "--dot"],
        expect![[r#"
            digraph "node/6f8-2" {
              rankdir = RL;
              n0 [label = "node/6f8-2", hop = 0, shape = box];
              n1 [label = "node/9e8-9", hop = 1];
              n2 [label = "node/dc5-5", hop = 1];
              n3 [label = "node/f2b-8", hop = 1];
              n4 [label = "node/44-6", hop = 2];
              n5 [label = "node/945-4", hop = 2];
              n2 -> n0 [label = "1"];
              n3 -> n0 [label = "1.75"];
              n1 -> n0 [label = "1.5"];
              n2 -> n0 [label = "1"];
              n4 -> n1 [label = "1"];
              n0 -> n2 [label = "0.25"];
              n3 -> n2 [label = "1.5"];
              n4 -> n2 [label = "0.75"];
              n2 -> n3 [label = "0.75"];
              n5 -> n3 [label = "0.5"];
            }
        "#]],
    );
}

#[test]
fn stores_models_and_embeddings_are_described() {
    let bench = whole_job("shards");
    check(
        &bench,
        &["work/small/store"],
        expect![[r#"
        store: 12 nodes in 2 partitions, up to 4 in-edges a node, uniform sampling, seed 7, 1 sample(s), N bytes
        edges: {"dropped_rows":0,"in_edges":51,"received_by_worker":[18,33]}
    "#]],
    );
    check(
        &bench,
        &["out/model"],
        expect![[r#"
            train: 0 rows, 1 parts, N bytes, seed 7, by graphflat 0.1.0, fingerprint F
            architecture: {"layer":"sage","aggregator":"mean","in_dim":6,"edge_dim":null,"edge_weight":true,"hidden":[8],"num_layers":2,"out_dim":3,"heads":1,"out_heads":1,"dropout":0.5,"input_dropout":0.0,"attention_dropout":0.0,"norm":"none","residual":false,"activation":"relu","task":"classes"}
            fanouts: [4,3]
            test_accuracy: x
            test_loss: x
            test_macro_f1: x
            test_micro_f1: x
            train_accuracy: x
            train_loss: x
            train_macro_f1: x
            train_micro_f1: x
            val_accuracy: x
            val_loss: x
            val_macro_f1: x
            val_micro_f1: x
            test targets by label, of 3:
              class 0: support 1, precision x, recall x, f1 x
              class 1: support 1, precision x, recall x, f1 x
              class 2: support 1, precision x, recall x, f1 x
            test targets by label (row) and prediction (column):
              class 0: 1 0 0
              class 1: 1 0 0
              class 2: 1 0 0
            convs.0.lin_l.weight [8, 6]
            convs.0.lin_l.bias [8]
            convs.0.lin_r.weight [8, 6]
            convs.1.lin_l.weight [3, 8]
            convs.1.lin_l.bias [3]
            convs.1.lin_r.weight [3, 8]
        "#]],
    );
    check(
        &bench,
        &["out/embeddings", "--limit", "2"],
        expect![[r#"
        infer: 12 rows, 1 parts, N bytes, seed 7, by graphflat 0.1.0, fingerprint F
        node/147-3: [x, x, x, x, x, x, ...] (8) -> class 0
        node/35a-1: [x, x, x, x, x, x, ...] (8) -> class 0
    "#]],
    );
    let target = graph().id(7);
    check(
        &bench,
        &["out/embeddings", "--target", &target],
        expect![[r#"
            infer: 12 rows, 1 parts, N bytes, seed 7, by graphflat 0.1.0, fingerprint F
            node/b21-7: [x, x, x, x, x, x, ...] (8) -> class 0
        "#]],
    );
}

#[test]
fn json_has_whole_values() {
    let bench = whole_job("shards");
    let read = |args: &[&str]| -> Value {
        let outcome = bench.graphflat(&[&["inspect", "--json"], args].concat());
        serde_json::from_str(&outcome.ok().stdout).unwrap()
    };
    let features = read(&["out/features", "--limit", "1"]);
    let heading = ["kind", "rows", "hops", "fanouts", "relations"].map(|key| &features[key]);
    assert_eq!(json!(heading), json!(["flatten", 11, 2, [4, 3], []]));
    let target = &features["targets"][0];
    let of_target = ["id", "split", "label", "type"].map(|key| &target[key]);
    assert_eq!(
        json!(of_target),
        json!(["node/147-3", "val", "class 0", null])
    );
    let lengths = ["nodes", "edges"].map(|key| target[key].as_array().unwrap().len());
    assert_eq!(lengths, [6, 10]);
    assert_eq!(target["nodes"][0]["in_degree"], 6);
    assert_eq!(target["nodes"][5]["features"].as_array().unwrap().len(), 6);
    let edge = &target["edges"][5];
    let position = |key| usize::try_from(edge[key].as_u64().unwrap()).unwrap();
    let ends = ["src", "dst"].map(position);
    let ids = ends.map(|at| &target["nodes"][at]["id"]);
    assert_eq!(json!(ids), json!(["node/147-3", "node/44-6"]));
    assert_eq!(edge["weight"], 1.0);
    let model = read(&["out/model"]);
    assert_eq!(model["architecture"]["hidden"], json!([8]));
    assert_eq!(model["test"]["confusion"].as_array().unwrap().len(), 3);
    let first = json!({ "name": "convs.0.lin_l.weight", "shape": [8, 6] });
    assert_eq!(model["parameters"][0], first);
    let id = graph().id(7);
    let embeddings = read(&["out/embeddings", "--target", &id]);
    let node = &embeddings["nodes"][0];
    assert_eq!(node["embedding"].as_array().unwrap().len(), 8);
    assert_eq!(
        (&node["id"], &node["prediction"]),
        (&json!(id), &json!("class 0"))
    );
    assert_eq!(read(&["work/small/store"])["in_edges"], 51);
}

#[test]
fn flags_that_say_nothing_are_refused() {
    let bench = whole_job("shards");
    refused(
        &bench,
        &["work/small/store", "--dot"],
        expect![[r#"
        error: work/small/store holds a store, so --dot does not apply
    "#]],
    );
    refused(
        &bench,
        &["out/model", "--limit", "3"],
        expect![[r#"
        error: out/model holds a model, so --limit does not apply
    "#]],
    );
    refused(
        &bench,
        &["out/embeddings", "--dot"],
        expect![[r#"
        error: out/embeddings holds embeddings, so --dot does not apply
    "#]],
    );
    refused(
        &bench,
        &["out/features", "--target", "x", "--limit", "0"],
        expect![[r#"
            error: the argument '--target <ID>' cannot be used with '--limit <N>'
        "#]],
    );
    refused(
        &bench,
        &["out/features", "--target", "nobody"],
        expect![[r#"
            error: out/features has no target nobody
        "#]],
    );
    refused(
        &bench,
        &["out/embeddings", "--target", "nobody"],
        expect![[r#"
            error: out/embeddings has no node nobody
        "#]],
    );
}
