//! Embeddings and logits of whole graphs equal those of a Python program that uses the published
//! formulas.

use std::process::Command;
use std::sync::Arc;

use arrow::array::Float32Array;

use crate::harness::{Bench, FLATTEN, FeatureKind, Graph, IdKind, Job, Outcome, f32_lists, mix};
use crate::needs::{checkout, python};

/// Width of the edge features.
const EDGE_DIM: usize = 2;

/// Every layer with all its inputs; each is run with and without edge weights.
const LAYERS: [&str; 9] = [
    "model = \"gcn\"",
    "model = \"sage\"",
    "model = \"sage\"\naggregator = \"max\"",
    "model = \"gin\"",
    "model = \"gin\"\nedge_features = true",
    "model = \"gat\"\nheads = 2",
    "model = \"gat\"\nheads = 2\nedge_features = true",
    "model = \"gatv2\"\nheads = 2",
    "model = \"gatv2\"\nheads = 2\nedge_features = true",
];

/// Norms, residuals, activations and heads, spread over the kinds of layers. The hidden width is 8,
/// the width of the features 6.
const AROUND: [&str; 9] = [
    "model = \"gcn\"\nnorm = \"batch\"\nresidual = true",
    "model = \"gcn\"\nnorm = \"layer\"\nhidden = [8, 6]\nedge_weight = true",
    "model = \"sage\"\nnorm = \"layer\"\nactivation = \"elu\"\nhidden = [6, 8]\nresidual = true",
    "model = \"sage\"\naggregator = \"max\"\nnorm = \"batch\"\nedge_weight = true",
    "model = \"gin\"\nnorm = \"batch\"\nhidden = [8, 8]\nresidual = true",
    "model = \"gin\"\nnorm = \"layer\"\nactivation = \"elu\"\nedge_features = true",
    "model = \"gat\"\nheads = 2\nout_heads = 3\nresidual = true\nactivation = \"elu\"",
    "model = \"gatv2\"\nheads = 4\nnorm = \"batch\"\nhidden = [8, 8]\nedge_weight = true",
    "model = \"gatv2\"\nheads = 2\nout_heads = 2\nnorm = \"layer\"\nresidual = true\n\
     edge_features = true",
];

/// Writes tables of a graph whose edges have weights and features.
pub(crate) fn write(bench: &Bench, graph: &Graph, prefix: &str) {
    let nodes = bench.path(&format!("{prefix}nodes.parquet"));
    graph.nodes().write(&nodes);
    let value = |at: usize| (mix(29, at as u64) % 1000) as f32 / 500.0 - 1.0;
    let of = |edge: usize| (0..EDGE_DIM).map(move |column| value(edge * EDGE_DIM + column));
    let mut edges = graph.edge_table();
    // Weights of parallel edges must not sum to 1 by accident.
    let weights = (0..graph.edges.len()).map(|edge| 0.1 + value(edge).abs() * 1.7);
    edges.set("weight", Arc::new(Float32Array::from_iter_values(weights)));
    let rows = (0..graph.edges.len()).map(|edge| of(edge).collect());
    edges.set("distance", f32_lists(rows));
    edges.write(&bench.path(&format!("{prefix}edges.parquet")));
}

/// A job on the tables of [`write`].
pub(crate) fn job(graph: &Graph, stages: &[&str], edge_keys: &str) -> Job {
    let keys = format!("dst = \"dst\"\nfeatures = [\"distance\"]\n{edge_keys}");
    Job::new(graph, stages).with("dst = \"dst\"\n", &keys)
}

/// `[train]` of a model; options that `keys` does not name are off.
pub(crate) fn train(at: usize, keys: &str) -> String {
    let given = |key: &str| keys.contains(&format!("{key} = "));
    let mut text = format!(
        "[train]\noutput = \"out/{at}/model\"\nepochs = 2\nbatch_size = 16\n\
         learning_rate = 0.05\ndropout = 0.2\n{keys}\n"
    );
    for (key, default) in [
        ("hidden", "[8]"),
        ("edge_weight", "false"),
        ("edge_features", "false"),
    ] {
        if !given(key) {
            text.push_str(&format!("{key} = {default}\n"));
        }
    }
    text
}

/// `[infer]` of that model, with all in-edges.
pub(crate) fn infer(at: usize, output: &str) -> String {
    format!(
        "[infer]\noutput = \"out/{at}/{output}\"\nmodel = \"out/{at}/model\"\n\
         sampling = \"none\"\nlogits = true\nrows_per_part = 64\n"
    )
}

/// Trains a model for each of `all`, infers on the tables and on later ones, and lets Python
/// compare the outputs.
fn check(all: &[String], edge_keys: &str) {
    let Some(python) = python() else {
        return;
    };
    let graph = Graph::new(120, IdKind::Utf8, FeatureKind::List).with_weights();
    // Other nodes and edges; one node has enough in-edges to be aggregated in parts.
    let later = Graph::new(170, IdKind::Utf8, FeatureKind::List);
    let later = later.with_weights().with_in_edges(9000);
    let bench = Bench::empty();
    write(&bench, &graph, "");
    write(&bench, &later, "later-");
    for (at, keys) in all.iter().enumerate() {
        let (train, now, then) = (train(at, keys), infer(at, "now"), infer(at, "later"));
        bench
            .run(&job(&graph, &[FLATTEN, &train, &now], edge_keys), &[])
            .ok();
        let on_later = job(&later, &[&then], edge_keys)
            .with("nodes.parquet", "later-nodes.parquet")
            .with("edges.parquet", "later-edges.parquet");
        bench.run(&on_later, &[]).ok();
    }
    for (prefix, output) in [("", "now"), ("later-", "later")] {
        let mut checker = Command::new(&python);
        checker.arg(checkout().join("tests/forward.py"));
        for table in ["nodes", "edges"] {
            let path = bench.path(&format!("{prefix}{table}.parquet"));
            checker.arg(format!("--{table}")).arg(path);
        }
        if edge_keys.contains("undirected") {
            checker.arg("--undirected");
        }
        for at in 0..all.len() {
            let of = |name: &str| bench.path(&format!("out/{at}/{name}"));
            checker.arg("--case").args([of("model"), of(output)]);
        }
        let outcome = Outcome::of(&checker.output().unwrap());
        let cases: Vec<(usize, &String)> = all.iter().enumerate().collect();
        assert_eq!(outcome.code, 0, "{outcome:#?} of {cases:#?}");
        let right = outcome.stdout.lines().filter(|l| l.starts_with("ok:"));
        assert_eq!(right.count(), 2 * all.len(), "embeddings and logits");
    }
}

#[test]
fn every_layer_is_its_formula() {
    let with = |weight: bool| move |keys| format!("{keys}\nedge_weight = {weight}");
    let plain = LAYERS.iter().map(with(false));
    check(
        &plain
            .chain(LAYERS.iter().map(with(true)))
            .collect::<Vec<_>>(),
        "",
    );
}

#[test]
fn norms_residuals_and_heads_are_their_formulas() {
    check(&AROUND.map(str::to_owned), "");
}

#[test]
fn undirected_edges_take_part_both_ways() {
    let layers = LAYERS.map(|keys| format!("{keys}\nedge_weight = true"));
    check(&layers, "undirected = true\n");
}
