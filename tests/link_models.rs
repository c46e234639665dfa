//! Models of links: trained on pairs and inferred by the real binary.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use schemas::{EmbeddingsDataset, Labels};
use serde_json::Value;

use crate::harness::{Bench, Job, assert_same_bytes, f32_lists, mix};
use crate::resume::run_and_kill;

/// Users have learnable rows alone, items have features.
pub(crate) const TYPED: &str = r#"name = "links"
seed = 7
workers = 2

[input.nodes.user]
path = "users.parquet"
id = "name"
embedding = 6

[input.nodes.item]
path = "items.parquet"
id = "id"
features = ["x"]

[input.edges.buys]
path = "buys.parquet"
from = "user"
to = "item"
src = "user"
dst = "item"
reverse = "bought_by"

[input.pairs]
from_edges = "buys"
share = { train = 0.4, val = 0.1, test = 0.2 }

[flatten]
output = "out/features"
hops = 2
fanouts = [{ buys = 4, bought_by = 4 }, 4]
target_type = "user"

[train]
output = "out/model"
model = "sage"
hidden = [16, 8]
decoder = "mlp"
epochs = 4
batch_size = 32
workers = 2
negatives = { random = 8, evaluation = 20 }

[infer]
output = "out/embeddings"
"#;

/// Pairs of random nodes, which are also edges of a graph in which each node has four in-edges and
/// four out-edges; only the edge itself tells that two nodes are a pair.
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

[input.pairs]
path = "pairs.parquet"
src = "src"
dst = "dst"
split = "split"

[flatten]
output = "out/features"
hops = 2
fanouts = ["all", "all"]

[train]
output = "out/model"
model = "sage"
hidden = [16, 16]
dropout = 0.0
epochs = 5
batch_size = 256
negatives = { random = 8, evaluation = 10 }
"#;

/// All purchases are train pairs, and carry messages.
pub(crate) const LIGHT: &str = r#"name = "light"
seed = 7
workers = 2

[input.nodes.user]
path = "users.parquet"
id = "name"
embedding = 8

[input.nodes.item]
path = "items.parquet"
id = "id"
embedding = 8

[input.edges.buys]
path = "buys.parquet"
from = "user"
to = "item"
src = "user"
dst = "item"
reverse = "bought_by"

[input.pairs]
from_edges = "buys"
share = { train = 1.0 }
exclude = "none"

[flatten]
output = "out/features"
hops = 2
fanouts = ["all", "all"]
pairs_per_part = 1000
negatives_per_part = 90

[train]
output = "out/model"
model = "lightgcn"
hidden = [8, 8]
epochs = 3
batch_by = "src"
batch_size = 32
src_power = 0.75
embedding_weight_decay = 0.0001
negatives = { all = true, evaluation = 20 }

[infer]
output = "out/embeddings"
"#;

pub(crate) const USERS: usize = 120;
pub(crate) const ITEMS: usize = 90;
const PLANTED_NODES: usize = 4000;
const PLANTED_PAIRS: usize = 12_000;

/// Largest distance of a planted AUC from 0.5. With 7,200 test pairs its deviation is 0.005.
const CHANCE: f64 = 0.02;

fn draw(of: u64, at: usize, bound: usize) -> usize {
    usize::try_from(mix(of, at as u64) % bound as u64).unwrap()
}

pub(crate) fn ints(values: impl Iterator<Item = usize>) -> ArrayRef {
    let values = values.map(|value| i64::try_from(value).unwrap());
    Arc::new(Int64Array::from_iter_values(values))
}

/// The user of a purchase.
pub(crate) fn buyer(at: usize) -> usize {
    draw(1, at, USERS)
}

/// The item of a purchase.
pub(crate) fn bought(at: usize) -> usize {
    3 * draw(2, at, ITEMS / 3) + buyer(at) % 3
}

/// Users buy items of their own third.
pub(crate) fn shop() -> Bench {
    let bench = Bench::empty();
    let name = |user: usize| format!("u{user}");
    let names: ArrayRef = Arc::new(StringArray::from_iter_values((0..USERS).map(name)));
    bench.write_table("users.parquet", vec![("name", names)]);
    let rows = (0..ITEMS).map(|at| vec![(at % 3) as f32, draw(3, at, 100) as f32 / 100.0]);
    let items = vec![("id", ints(0..ITEMS)), ("x", f32_lists(rows))];
    bench.write_table("items.parquet", items);
    let buyers = StringArray::from_iter_values((0..900).map(|at| name(buyer(at))));
    let buyers: ArrayRef = Arc::new(buyers);
    let buys = vec![("user", buyers), ("item", ints((0..900).map(bought)))];
    bench.write_table("buys.parquet", buys);
    bench
}

fn metrics(bench: &Bench) -> Value {
    bench.manifest("out/model")["report"]["metrics"].clone()
}

fn model_file(bench: &Bench, file: &str) -> Vec<u8> {
    std::fs::read(bench.path(&format!("out/model/{file}"))).unwrap()
}

#[test]
fn links_of_two_types_are_trained_and_inferred() {
    let bench = shop();
    let job = Job::of_text(TYPED);
    bench.run(&job, &[]).ok();
    let metrics = metrics(&bench);
    assert!(metrics["test_mrr"].as_f64().unwrap() > 0.2, "{metrics}");
    let notes = bench.manifest("out/model")["report"]["notes"].to_string();
    let protocol = "exclude = \\\"all\\\": no pair carries messages";
    assert!(notes.contains(protocol), "{notes}");
    let model: Value = serde_json::from_slice(&model_file(&bench, "model.json")).unwrap();
    assert_eq!(model["architecture"]["task"]["links"], "mlp");
    assert_eq!(model["extra"]["links"]["random"], 8);
    let scores: Value = serde_json::from_slice(&model_file(&bench, "evaluation.json")).unwrap();
    let candidates = scores["splits"]["test"]["candidates"].as_f64().unwrap();
    assert!((15.0..=21.0).contains(&candidates), "{candidates}");
    let embeddings = EmbeddingsDataset::open(&bench.path("out/embeddings")).unwrap();
    for (name, num_nodes) in [("user", USERS), ("item", ITEMS)] {
        let parts = embeddings.parts_of(name).into_iter();
        let rows: Vec<_> = parts
            .map(|part| embeddings.read_part(part).unwrap())
            .collect();
        assert_eq!(
            rows.iter().map(|rows| rows.ids.len()).sum::<usize>(),
            num_nodes
        );
        assert!(
            rows.iter()
                .all(|rows| rows.dim == 8 && rows.prediction == Labels::None)
        );
    }
    // Two processes train the same bits.
    let files = [
        "model.safetensors",
        "model.json",
        "epochs.jsonl",
        "evaluation.json",
    ];
    let of_one = files.map(|file| model_file(&bench, file));
    bench
        .run(&job, &["--fresh", "--stage", "train", "--processes", "2"])
        .ok();
    assert!(files.map(|file| model_file(&bench, file)) == of_one);
}

#[test]
fn streamed_pairs_are_trained_and_resumed() {
    let bench = shop();
    let job = Job::of_text(TYPED)
        .with("output = \"out/features\"\n", "")
        .with("[train]\n", "[train]\nstreamed = true\n")
        .with("epochs = 4", "epochs = 12\ncheckpoint_every_steps = 3");
    bench.run(&job, &[]).ok();
    let of_one = bench.data_files("out");
    let test_mrr = metrics(&bench)["test_mrr"].as_f64().unwrap();
    assert!(test_mrr > 0.2, "{test_mrr}");
    assert!(!bench.path("out/features").exists());
    let mut killed = 0;
    for events in [6, 9, 14] {
        bench.clear();
        killed += usize::from(run_and_kill(&bench, &job, events));
        bench.run(&job, &[]).ok();
        let after = format!("after a kill at event {events}");
        assert_same_bytes(&of_one, &bench.data_files("out"), &after);
    }
    assert!(killed >= 2, "{killed} runs were killed");
}

#[test]
fn pairs_are_trained_over_processes_in_every_mode() {
    let bench = shop();
    let job = Job::of_text(TYPED);
    bench.run(&job, &["--stage", "flatten"]).ok();
    for mode in ["mode = \"async\"", "mode = \"bounded\"\nstaleness = 2"] {
        let job = job.with("epochs = 4", &format!("epochs = 4\n{mode}"));
        let train = ["--fresh", "--stage", "train", "--processes", "2"];
        bench.run(&job, &train).ok();
        let test_mrr = metrics(&bench)["test_mrr"].as_f64().unwrap();
        assert!(test_mrr > 0.2, "{mode}: {test_mrr}");
    }
}

#[test]
fn lightgcn_is_trained_inferred_and_resumed() {
    let bench = shop();
    let job = Job::of_text(LIGHT);
    bench.run(&job, &[]).ok();
    let files = ["model.safetensors", "model.json", "epochs.jsonl"];
    let tables = ["user", "item"].map(|name| format!("embeddings/{name}.parquet"));
    let all = || -> Vec<Vec<u8>> {
        let tables = tables.iter().map(String::as_str);
        files
            .into_iter()
            .chain(tables)
            .map(|file| model_file(&bench, file))
            .collect()
    };
    let of_one = all();
    let notes = bench.manifest("out/model")["report"]["notes"].to_string();
    assert!(
        notes.contains("exclude = \\\"none\\\": train pairs carry messages"),
        "{notes}"
    );
    let train = ["--fresh", "--stage", "train"];
    bench
        .run(&job, &[&train[..], &["--processes", "2"]].concat())
        .ok();
    assert!(all() == of_one, "two processes train the same bits");
    let two = job.with("batch_size = 32", "batch_size = 16\nworkers = 2");
    bench.run(&two, &train).ok();
    let losses = |text: &[u8]| -> Vec<f64> {
        let lines = std::str::from_utf8(text).unwrap().lines();
        let value = |line| serde_json::from_str::<Value>(line).unwrap();
        lines
            .map(|line| value(line)["loss"].as_f64().unwrap())
            .collect()
    };
    for (got, wanted) in losses(&all()[2]).iter().zip(losses(&of_one[2])) {
        assert!((got / wanted - 1.0).abs() < 1e-5, "{got}, {wanted}");
    }
}

/// The parts of val and test pairs have all nodes, and no train pair, which is no candidate either.
#[test]
fn training_ranks_pairs_as_score_does() {
    let bench = shop();
    let shares = "share = { train = 0.6, val = 0.2, test = 0.2 }";
    let job = Job::of_text(LIGHT)
        .with("share = { train = 1.0 }", shares)
        .with(
            "epochs = 3",
            "epochs = 30\npatience = 4\nmonitor = \"recall@20\"",
        )
        .and("[score]\noutput = \"out/scores\"\nevaluate = true\ncutoffs = [20]");
    bench.run(&job, &[]).ok();
    let read = |file: &str| -> Value {
        serde_json::from_slice(&std::fs::read(bench.path(file)).unwrap()).unwrap()
    };
    let trained = read("out/model/evaluation.json");
    let ranked = read("out/scores/ranking.json");
    for split in ["val", "test"] {
        let of_score = &ranked["splits"][split]["at"][0];
        let of_training = &trained["splits"][split]["metrics"];
        for name in ["recall", "ndcg"] {
            let wanted = of_score[name].as_f64().unwrap();
            let got = of_training[format!("{name}@20")].as_f64().unwrap();
            assert!(
                (got - wanted).abs() < 1e-9,
                "{split} {name}: {got}, {wanted}"
            );
        }
    }
    let epochs = String::from_utf8(model_file(&bench, "epochs.jsonl")).unwrap();
    let recall = |line| -> f64 {
        let line: Value = serde_json::from_str(line).unwrap();
        line["val"]["recall@20"].as_f64().unwrap()
    };
    let recall: Vec<f64> = epochs.lines().map(recall).collect();
    assert!((5..30).contains(&recall.len()), "{recall:?}");
    let before = recall[..recall.len() - 4].iter().copied();
    let last = recall[recall.len() - 4..].iter().copied();
    assert!(
        before.fold(0.0, f64::max) >= last.fold(0.0, f64::max),
        "{recall:?}"
    );
}

#[test]
fn a_pair_does_not_leak_into_its_embeddings() {
    let bench = Bench::empty();
    let features = (0..PLANTED_NODES).map(|node| {
        let value = |col: usize| draw(col as u64 + 10, node, 1000) as f32 / 500.0 - 1.0;
        (0..8).map(value).collect()
    });
    let nodes = vec![("id", ints(0..PLANTED_NODES)), ("x", f32_lists(features))];
    bench.write_table("nodes.parquet", nodes);
    let pair = |end: u64| {
        (0..PLANTED_PAIRS).map(move |at| {
            let [src, dst] = [1, 2].map(|of| draw(of, at, PLANTED_NODES));
            let is_loop = usize::from(src == dst);
            if end == 1 {
                src
            } else {
                (dst + is_loop) % PLANTED_NODES
            }
        })
    };
    // Equal pairs have equal splits, in either direction.
    let splits = pair(1).zip(pair(2)).map(|(src, dst)| {
        let unordered = src.min(dst) * PLANTED_NODES + src.max(dst);
        match draw(3, unordered, 10) {
            0..=2 => "train",
            3 => "val",
            _ => "test",
        }
    });
    let splits: ArrayRef = Arc::new(StringArray::from_iter_values(splits));
    let pairs = vec![
        ("src", ints(pair(1))),
        ("dst", ints(pair(2))),
        ("split", splits),
    ];
    bench.write_table("pairs.parquet", pairs);
    // The other edges form four permutations of the nodes.
    let steps = [7, 311, 1229, 2753];
    let regular = |end: usize| {
        let of_step =
            move |step| (0..PLANTED_NODES).map(move |node| (node + end * step) % PLANTED_NODES);
        steps.into_iter().flat_map(of_step)
    };
    let edges = vec![
        ("src", ints(regular(0).chain(pair(1)))),
        ("dst", ints(regular(1).chain(pair(2)))),
    ];
    bench.write_table("edges.parquet", edges);
    // The loss of train pairs in the last epoch.
    let last_loss = |exclude: &str, loss: &str| {
        let job = Job::of_text(PLANTED).and(&format!("loss = \"{loss}\""));
        let keys = format!("split = \"split\"\nexclude = \"{exclude}\"");
        bench
            .run(&job.with("split = \"split\"", &keys), &["--fresh"])
            .ok();
        let metrics = metrics(&bench);
        let auc = metrics["test_auc"].as_f64().unwrap();
        assert!((auc - 0.5).abs() < CHANCE, "{exclude}, {loss}: {metrics}");
        let epochs = String::from_utf8(model_file(&bench, "epochs.jsonl")).unwrap();
        let last: Value = serde_json::from_str(epochs.lines().last().unwrap()).unwrap();
        last["loss"].as_f64().unwrap()
    };
    for loss in ["softmax", "binary_cross_entropy"] {
        let [all, batch, none] = ["all", "batch", "none"].map(|exclude| last_loss(exclude, loss));
        // Train pairs that carry messages show in their embeddings, so a leak would be seen.
        let leak = all - none;
        assert!(leak > 0.05, "{loss}: {all}, {none}");
        // Without the edges of its pairs, a batch teaches as little as a graph without them.
        assert!((all - batch).abs() < leak / 20.0, "{loss}: {all}, {batch}");
    }
}

#[test]
fn a_graph_without_labels_and_pairs_is_refused_in_one_line() {
    let bench = shop();
    let without = TYPED.replace(
        "[input.pairs]\nfrom_edges = \"buys\"\nshare = { train = 0.4, val = 0.1, test = 0.2 }\n",
        "",
    );
    let without = without.replace("decoder = \"mlp\"\n", "");
    let outcome = bench.run(&Job::of_text(&without), &[]);
    assert_eq!(outcome.code, 2, "{}", outcome.stderr);
    assert!(!bench.path("out").exists(), "nothing is written");
}
