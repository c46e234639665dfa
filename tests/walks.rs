//! Pairs of random walks: a job with `walks` in one process, in several, killed, checked, scored and
//! trained.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, StringArray};
use serde_json::Value;

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, IdKind, Job, assert_same_bytes, f32_lists, mix,
};
use crate::link_models::ints;
use crate::resume::run_and_kill;

const WALKS: &str = "[input.pairs]\nwalks = { length = 3, per_node = 2 }\nexclude = \"none\"\n\
                     from_edges = true\nshare = { train = 0.0, val = 0.1, test = 0.2 }\n\n";

const NODES: usize = 150;

fn graph() -> Graph {
    Graph::new(NODES, IdKind::Utf8, FeatureKind::List)
}

fn job(graph: &Graph) -> Job {
    let flatten = FLATTEN.replace(
        "targets_per_part = 16",
        "pairs_per_part = 40\nnegatives_per_part = 20",
    );
    Job::new(graph, &[WALKS, &flatten])
        .with("label = \"label\"\n", "")
        .with("split = \"split\"\n", "")
}

fn counts(bench: &Bench) -> [u64; 3] {
    let manifest = bench.manifest("out/features");
    let parts = manifest["parts"].as_array().unwrap();
    ["train", "val", "test"].map(|split| {
        let counts = parts.iter().map(|part| part["targets"][split].as_u64());
        counts.map(Option::unwrap).sum()
    })
}

#[test]
fn processes_workers_and_kills_change_no_walk() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let alone = job(&graph).with(
        "from_edges = true\nshare = { train = 0.0, val = 0.1, test = 0.2 }\n",
        "",
    );
    for job in [job(&graph), alone] {
        bench.run(&job, &["--fresh"]).ok();
        let expected = bench.data_files("out/features");
        for (processes, workers) in [("2", "1"), ("2", "4")] {
            let several = ["--fresh", "--processes", processes, "--workers", workers];
            bench.run(&job, &several).ok();
            let found = bench.data_files("out/features");
            assert_same_bytes(&expected, &found, &format!("{processes} processes"));
        }
        for events in [2, 4, 6] {
            bench.clear();
            run_and_kill(&bench, &job, events);
            bench.run(&job, &[]).ok();
            let found = bench.data_files("out/features");
            assert_same_bytes(&expected, &found, &format!("killed at event {events}"));
        }
    }
    let seeded = job(&graph).with("per_node = 2", "per_node = 2, seed = 8");
    bench.run(&job(&graph), &["--fresh"]).ok();
    let of_job = bench.data_files("out/features");
    bench.run(&seeded, &["--fresh"]).ok();
    assert!(bench.data_files("out/features") != of_job, "another seed");
}

#[test]
fn check_counts_the_pairs_of_walks() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = job(&graph);
    bench.write(&job);
    let checked = bench.graphflat(&["check", "job.toml", "--json"]).ok();
    let report: Value = serde_json::from_str(checked.stdout.lines().last().unwrap()).unwrap();
    bench.run(&job, &[]).ok();
    let [train, val, test] = counts(&bench);
    assert!(train > 200 && val > 20 && test > 40, "{train} {val} {test}");
    let pairs = serde_json::json!({ "train": train, "val": val, "test": test });
    assert_eq!(report["pairs"], pairs);
    assert_eq!(report["flatten"]["rows"], train + val + test);
}

#[test]
fn mistakes_in_walks_are_one_line_of_check_and_run() {
    let graph = graph();
    let check = |from: &str, to: &str, expected: &str| {
        let bench = Bench::new(&graph);
        let bad = job(&graph).with(from, to);
        let ran = bench.run(&bad, &[]);
        assert_ne!(ran.code, 0, "{to}");
        assert!(
            ran.stderr.contains(expected),
            "{} should say {expected}",
            ran.stderr
        );
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        let checked = bench.graphflat(&["check", "job.toml"]);
        assert_eq!(checked.stderr, ran.stderr.replace("stage flatten: ", ""));
        assert!(!bench.path("out/features").exists());
    };
    check(
        "length = 3",
        "length = 0",
        "`input.pairs.walks.length`: is 0; allowed is 1 to 1024",
    );
    check(
        "from_edges = true",
        "path = \"pairs.parquet\"",
        "`input.pairs.path`: and `walks` are both given",
    );
    check(
        "exclude = \"none\"\n",
        "",
        "`input.pairs.exclude`: is \"all\", but walks go along edges that carry messages",
    );
    check(
        "negatives_per_part = 20",
        "negatives_per_part = 151",
        "`flatten.negatives_per_part` is 151: the dst ends have a type of 150 nodes",
    );
}

#[test]
fn walks_need_edges() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let ends = |name| (name, graph.edge_table().slice(0, 0).column(name));
    bench.write_table("edges.parquet", vec![ends("src"), ends("dst")]);
    let ran = bench.run(&job(&graph), &[]);
    let expected = "`input.pairs.walks`: cannot take a step: no edge leads to a node; a walk goes \
                    from a node to the src of one of its in-edges";
    assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(!bench.path("out").exists(), "nothing is written");
    // Self-loops alone lead to no other node, which shows when edges are read.
    let loops = |name| (name, graph.edge_table().column("src"));
    let renamed = ["src", "dst"].map(|name| (name, loops(name).1));
    bench.write_table("edges.parquet", renamed.to_vec());
    let alone = job(&graph).with(
        "from_edges = true\nshare = { train = 0.0, val = 0.1, test = 0.2 }\n",
        "",
    );
    let looped = bench.run(&alone, &[]);
    assert!(
        looped.stderr.contains("`input.pairs.walks`: gives no pair"),
        "{}",
        looped.stderr
    );
    let checked = bench.graphflat(&["check", "job.toml"]);
    assert_eq!(checked.stderr, looped.stderr.replace("stage flatten: ", ""));
}

/// Nodes of four communities. The features are noise, so only edges tell which nodes belong together.
const COMMUNITIES: &str = r#"name = "communities"
seed = 7
workers = 2

[input.nodes]
path = "nodes.parquet"
id = "id"
features = ["x"]
embedding = 16

[input.edges]
path = "edges.parquet"
src = "src"
dst = "dst"
undirected = true

[input.pairs]
walks = { length = 4, per_node = 5 }
from_edges = true
share = { train = 0.0, val = 0.05, test = 0.1 }
exclude = "none"

[flatten]
output = "out/features"
hops = 1
fanouts = [10]

[train]
output = "out/model"
model = "sage"
hidden = [16]
dropout = 0.0
epochs = 5
batch_size = 128
negatives = { random = 16, by = "degree", evaluation = 20 }

[infer]
output = "out/embeddings"

[score]
output = "out/scores"
top_k = 5
exclude_known = true
evaluate = true
"#;

const COMMUNITY_NODES: usize = 240;

fn communities() -> Bench {
    let bench = Bench::empty();
    let draw = |of: u64, at: usize, bound: usize| {
        usize::try_from(mix(of, at as u64) % bound as u64).unwrap()
    };
    let noise = (0..COMMUNITY_NODES).map(|at| draw(5, at, 1000) as f32 / 1000.0);
    let noise: ArrayRef = Arc::new(Float32Array::from_iter_values(noise));
    bench.write_table(
        "nodes.parquet",
        vec![("id", ints(0..COMMUNITY_NODES)), ("x", noise)],
    );
    let src = |at: usize| draw(1, at, COMMUNITY_NODES);
    // One edge of ten leads to any node, the others to a node of the same community.
    let dst = move |at: usize| match draw(2, at, 10) {
        0 => draw(3, at, COMMUNITY_NODES),
        _ => 4 * draw(3, at, COMMUNITY_NODES / 4) + src(at) % 4,
    };
    let edges = vec![
        ("src", ints((0..1500).map(src))),
        ("dst", ints((0..1500).map(dst))),
    ];
    bench.write_table("edges.parquet", edges);
    bench
}

#[test]
fn walks_learn_which_nodes_belong_together() {
    let bench = communities();
    let job = Job::of_text(COMMUNITIES);
    bench.run(&job, &[]).ok();
    let metrics = &bench.manifest("out/model")["report"]["metrics"];
    // Of a pair's negatives a quarter is of its community: AUC is at most about 0.85.
    let auc = metrics["test_auc"].as_f64().unwrap();
    assert!(auc > 0.7, "{metrics}");
    let ranking = std::fs::read(bench.path("out/scores/ranking.json")).unwrap();
    let ranking: Value = serde_json::from_slice(&ranking).unwrap();
    // Val pairs and edges are known, pairs of walks are not: hundreds of nodes are candidates.
    let candidates = ranking["splits"]["test"]["candidates"].as_f64().unwrap();
    assert!(candidates > 220.0, "{candidates}");
    let alone = job
        .with(
            "from_edges = true\nshare = { train = 0.0, val = 0.05, test = 0.1 }\n",
            "",
        )
        .with("exclude_known = true\nevaluate = true\n", "");
    bench.run(&alone, &["--fresh"]).ok();
    let unknown = alone.with("top_k = 5\n", "top_k = 5\nexclude_known = true\n");
    let ran = bench.run(&unknown, &[]);
    let expected = "`score.exclude_known` is true, but pairs of `input.pairs.walks` are no links";
    assert!(ran.stderr.contains(expected), "{}", ran.stderr);
}

/// Test pairs are random edges of a graph in which each node has four in-edges and four out-edges:
/// only the held-out edge itself tells that two nodes are a pair.
const PLANTED: &str = r#"name = "planted"
seed = 7
workers = 2

[input.nodes]
path = "nodes.parquet"
id = "id"
features = ["x"]

[input.edges]
path = "edges.parquet"
src = "src"
dst = "dst"
undirected = true

[input.pairs]
walks = { length = 2, per_node = 2 }
from_edges = true
split = "split"
exclude = "none"

[flatten]
output = "out/features"
hops = 2
fanouts = ["all", "all"]

[train]
output = "out/model"
model = "sage"
hidden = [16, 16]
dropout = 0.0
epochs = 4
batch_size = 256
negatives = { random = 8, evaluation = 10 }
"#;

const PLANTED_NODES: usize = 4000;
const PLANTED_PAIRS: usize = 8000;

/// Largest distance of a planted AUC from 0.5. With 8,000 test pairs its deviation is 0.005.
const CHANCE: f64 = 0.02;

#[test]
fn a_held_out_edge_does_not_leak_into_walks() {
    let bench = Bench::empty();
    let draw = |of: u64, at: usize, bound: usize| {
        usize::try_from(mix(of, at as u64) % bound as u64).unwrap()
    };
    let features = (0..PLANTED_NODES).map(|node| {
        let value = |col: usize| draw(col as u64 + 10, node, 1000) as f32 / 500.0 - 1.0;
        (0..8).map(value).collect()
    });
    let nodes = vec![("id", ints(0..PLANTED_NODES)), ("x", f32_lists(features))];
    bench.write_table("nodes.parquet", nodes);
    // The edges without a split form four permutations of the nodes.
    let regular = |end: usize| {
        let of_step =
            move |step| (0..PLANTED_NODES).map(move |node| (node + end * step) % PLANTED_NODES);
        [7, 311, 1229, 1753].into_iter().flat_map(of_step)
    };
    let pair = |of: u64| (0..PLANTED_PAIRS).map(move |at| draw(of, at, PLANTED_NODES));
    let none = (0..4 * PLANTED_NODES).map(|_| None);
    let splits: StringArray = none
        .chain((0..PLANTED_PAIRS).map(|_| Some("test")))
        .collect();
    let splits: ArrayRef = Arc::new(splits);
    let edges = vec![
        ("src", ints(regular(0).chain(pair(1)))),
        ("dst", ints(regular(1).chain(pair(2)))),
        ("split", splits),
    ];
    bench.write_table("edges.parquet", edges);
    bench.run(&Job::of_text(PLANTED), &[]).ok();
    let metrics = &bench.manifest("out/model")["report"]["metrics"];
    let auc = |split: &str| metrics[format!("{split}_auc")].as_f64().unwrap();
    assert!((auc("test") - 0.5).abs() < CHANCE, "{metrics}");
    // What walks visit is learnt.
    assert!(auc("train") > 0.5 + CHANCE, "{metrics}");
}
