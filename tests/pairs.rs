//! Pairs of links: a job with `[input.pairs]` in one process, in several, killed, checked and
//! inspected, and its parts in other tools.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, ListBuilder, StringArray, StringBuilder};
use schemas::GraphFeatureDataset;
use serde_json::Value;

use crate::harness::{Bench, FLATTEN, FeatureKind, Graph, IdKind, Job, Outcome, assert_same_bytes};
use crate::needs::{checkout, python};
use crate::resume::run_and_kill;

const PAIRS: &str = "[input.pairs]\nfrom_edges = true\nshare = { train = 0.5, val = 0.1, test = \
                     0.2 }\n\n";

const NODES: usize = 150;

fn graph() -> Graph {
    Graph::new(NODES, IdKind::Utf8, FeatureKind::List)
}

/// The job of a graph without labels and splits of nodes.
fn job(graph: &Graph) -> Job {
    let flatten = FLATTEN.replace(
        "targets_per_part = 16",
        "pairs_per_part = 40\nnegatives_per_part = 20",
    );
    Job::new(graph, &[PAIRS, &flatten])
        .with("label = \"label\"\n", "")
        .with("split = \"split\"\n", "")
}

/// The job of a graph whose pairs are in a table.
fn job_of_table(graph: &Graph, keys: &str) -> Job {
    let pairs =
        format!("[input.pairs]\nsrc = \"from\"\ndst = \"to\"\nsplit = \"split\"\n{keys}\n\n");
    job(graph).with(PAIRS, &pairs)
}

/// Ends of a pair, and its hard negatives.
type HardPair = ([String; 2], [String; 2]);

/// The pairs of a table.
fn table_of_pairs(graph: &Graph) -> Vec<HardPair> {
    let id = |node: usize| graph.id(node % NODES);
    let of = |at: usize| ([id(at), id(7 * at + 3)], [id(at + 50), id(11 * at + 92)]);
    (0..NODES).map(of).collect()
}

/// The columns `from` and `to`.
fn columns_of_ends(pairs: &[HardPair]) -> Vec<(&'static str, ArrayRef)> {
    let column = |end: usize| -> ArrayRef {
        let ids = pairs.iter().map(|(ends, _)| &ends[end]);
        Arc::new(StringArray::from_iter_values(ids))
    };
    vec![("from", column(0)), ("to", column(1))]
}

/// The sums of the parts' pairs by split.
fn counts(bench: &Bench) -> [u64; 3] {
    let manifest = bench.manifest("out/features");
    let parts = manifest["parts"].as_array().unwrap();
    ["train", "val", "test"].map(|split| {
        let counts = parts.iter().map(|part| part["targets"][split].as_u64());
        counts.map(Option::unwrap).sum()
    })
}

#[test]
fn processes_workers_and_kills_do_not_change_parts() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let undirected = job(&graph).with("dst = \"dst\"\n", "dst = \"dst\"\nundirected = true\n");
    for job in [job(&graph), undirected] {
        bench.run(&job, &["--fresh"]).ok();
        let expected = bench.data_files("out/features");
        let tables = ["nodes/", "edges/", "pairs/"];
        let is_there = |table: &str| expected.keys().any(|name| name.starts_with(table));
        assert!(tables.into_iter().all(is_there), "{:?}", expected.keys());
        for (processes, workers) in [("2", "1"), ("3", "2")] {
            let several = ["--fresh", "--processes", processes, "--workers", workers];
            bench.run(&job, &several).ok();
            let found = bench.data_files("out/features");
            assert_same_bytes(&expected, &found, &format!("{processes} processes"));
        }
        for events in [2, 4, 5, 6, 7] {
            bench.clear();
            run_and_kill(&bench, &job, events);
            bench.run(&job, &[]).ok();
            let found = bench.data_files("out/features");
            assert_same_bytes(&expected, &found, &format!("killed at event {events}"));
        }
    }
}

#[test]
fn check_and_inspect_show_the_pairs() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = job(&graph);
    bench.write(&job);
    let checked = bench.graphflat(&["check", "job.toml", "--json"]).ok();
    let report: Value = serde_json::from_str(checked.stdout.lines().last().unwrap()).unwrap();
    bench.run(&job, &[]).ok();
    let [train, val, test] = counts(&bench);
    assert!(train > 100 && val > 20 && test > 40, "{train} {val} {test}");
    let pairs = serde_json::json!({ "train": train, "val": val, "test": test });
    assert_eq!(report["pairs"], pairs);
    assert_eq!(report["flatten"]["rows"], train + val + test);
    let parts = bench.manifest("out/features")["parts"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(report["flatten"]["parts"], parts);
    let lines = bench.graphflat(&["check", "job.toml"]).ok().stdout;
    let line = format!("pairs    {train} train, {val} val, {test} test\n");
    assert!(lines.contains(&line), "{lines}");
    let text = bench.graphflat(&["inspect", "out/features"]).ok().stdout;
    let first = format!("pairs: {train} train, {val} val, {test} test, ");
    assert!(text.contains(&first), "{text}");
    let json = bench.graphflat(&["inspect", "out/features", "--json"]).ok();
    let shown: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(shown["pairs"]["train"], train);
    assert_eq!(shown["pairs"]["exclude"], "all");
}

#[test]
fn a_table_of_pairs_may_be_csv() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let pairs = table_of_pairs(&graph);
    let split = |at: usize| ["train", "train", "val", "test"][at % 4];
    let weight = |at: usize| (at % 5) as f32 / 2.0;
    let splits: ArrayRef = Arc::new(StringArray::from_iter_values((0..NODES).map(split)));
    let weights: ArrayRef = Arc::new(Float32Array::from_iter_values((0..NODES).map(weight)));
    let mut columns = columns_of_ends(&pairs);
    columns.extend([("split", splits), ("times", weights)]);
    bench.write_table("pairs.parquet", columns);
    let mut lines = "from,to,split,times\n".to_owned();
    for (at, ([from, to], _)) in pairs.iter().enumerate() {
        lines += &format!("{from},{to},{},{}\n", split(at), weight(at));
    }
    std::fs::write(bench.path("pairs.csv"), lines).unwrap();
    let [of_parquet, of_csv] = ["pairs.parquet", "pairs.csv"].map(|path| {
        let keys = format!("path = \"{path}\"\nweight = \"times\"");
        bench.run(&job_of_table(&graph, &keys), &["--fresh"]).ok();
        assert_eq!(counts(&bench), [76, 37, 37]);
        bench.data_files("out/features")
    });
    assert_same_bytes(&of_parquet, &of_csv, "pairs in CSV");
}

#[test]
fn hard_negatives_are_ids_of_nodes() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let pairs = table_of_pairs(&graph);
    let mut lists = ListBuilder::new(StringBuilder::new());
    for (_, hard) in &pairs {
        lists.append_value(hard.iter().map(Some));
    }
    let split: ArrayRef = Arc::new(StringArray::from_iter_values(pairs.iter().map(|_| "train")));
    let other: ArrayRef = Arc::new(lists.finish());
    let mut columns = columns_of_ends(&pairs);
    columns.extend([("split", split), ("other", other)]);
    bench.write_table("pairs.parquet", columns);
    let job = job_of_table(&graph, "path = \"pairs.parquet\"\nnegatives = \"other\"");
    bench.run(&job, &[]).ok();
    let dataset = GraphFeatureDataset::open(&bench.path("out/features")).unwrap();
    let mut found = BTreeMap::new();
    for part in 0..dataset.num_parts() {
        let shard = dataset.read_part(part).unwrap();
        let ids = &shard.nodes[0].ids;
        let id = |at: usize| ids.as_str(at).unwrap().to_owned();
        let stored = shard.pairs.as_ref().unwrap();
        let hard = stored.hard.as_ref().unwrap();
        for at in 0..stored.len() {
            let mut negatives: Vec<String> =
                hard.of(at).iter().map(|row| id(row.index())).collect();
            negatives.sort();
            found.insert(
                [stored.src[at], stored.dst[at]].map(|row| id(row.index())),
                negatives,
            );
        }
    }
    let expected: BTreeMap<_, _> = pairs
        .into_iter()
        .map(|(of_pair, mut hard)| {
            hard.sort();
            (of_pair, hard.to_vec())
        })
        .collect();
    assert_eq!(found, expected);
}

/// Finds, in the parts, an edge that equals a pair of a part or its reverse; counts pairs.
const LEAKS: &str = r#"
import glob, os, sys
import duckdb, pandas, polars, pyarrow.parquet as pq
root, pairs, edges = sys.argv[1], set(), set()
for path in sorted(glob.glob(f"{root}/pairs/*.parquet")):
    name = os.path.basename(path)
    ids = pq.read_table(f"{root}/nodes/{name}").column("id").to_pylist()
    table = pq.read_table(path)
    rows = table.to_pylist()
    frame = pandas.read_parquet(path)
    assert frame.src.isna().sum() == 20 and len(polars.read_parquet(path)) == len(rows)
    count = duckdb.sql(f"select count(src) from '{path}'").fetchall()[0][0]
    assert count == len(rows) - 20
    pairs |= {(ids[row["src"]], ids[row["dst"]]) for row in rows if row["src"] is not None}
    for row in pq.read_table(f"{root}/edges/{name}").to_pylist():
        edges.add((ids[row["src"]], ids[row["dst"]]))
leaks = [edge for edge in edges if edge in pairs or edge[::-1] in pairs]
print(len(pairs), len(edges), len(leaks))
"#;

#[test]
fn other_tools_find_no_pair_among_the_edges() {
    let Some(python) = python() else { return };
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&job(&graph), &[]).ok();
    let mut command = Command::new(python);
    command.args(["-c", LEAKS]).arg(bench.path("out/features"));
    let outcome = Outcome::of(&command.output().unwrap()).ok();
    let found: Vec<u64> = outcome
        .stdout
        .split_whitespace()
        .map(|count| count.parse().unwrap())
        .collect();
    assert_eq!(found[0], counts(&bench).into_iter().sum::<u64>());
    assert!(found[1] > 50, "{found:?}");
    assert_eq!(found[2], 0, "edges that equal a pair");
}

/// A job that trains on rows of pairs.
fn job_of_rows(graph: &Graph) -> Job {
    let train = "[train]\noutput = \"out/model\"\nmodel = \"sage\"\nhidden = [8, 4]\n\
                 epochs = 2\nbatch_size = 32\nnegatives = { random = 8, evaluation = 10 }\n";
    as_rows(&job(graph).and(train))
}

fn as_rows(shards: &Job) -> Job {
    shards.with("layout = \"shards\"", "layout = \"rows\"")
}

#[test]
fn rows_of_pairs_train_the_model_of_shards() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let rows = job_of_rows(&graph);
    let shards = rows.with("layout = \"rows\"\n", "");
    let model = || std::fs::read(bench.path("out/model/model.safetensors")).unwrap();
    bench.run(&shards, &[]).ok();
    let of_shards = model();
    bench.run(&rows, &["--fresh"]).ok();
    assert!(model() == of_shards, "a model of rows");
    let expected = bench.data_files("out/features");
    let text = bench.graphflat(&["inspect", "out/features"]).ok().stdout;
    assert!(text.contains("\npair n"), "{text}");
    let json = bench.graphflat(&["inspect", "out/features", "--json"]).ok();
    let shown: Value = serde_json::from_str(&json.stdout).unwrap();
    let first = &shown["targets"][0];
    let end = |key: &str| {
        let at = usize::try_from(first[key].as_u64().unwrap()).unwrap();
        first["nodes"][at]["id"].clone()
    };
    let pair = &shown["pairs"]["pairs"][0];
    assert_eq!(
        [end("src"), end("dst")],
        ["src", "dst"].map(|key| pair[key].clone())
    );
    bench.graphflat(&["inspect", "out/features", "--dot"]).ok();
    for processes in ["2", "3"] {
        let several = ["--fresh", "--stage", "flatten", "--processes", processes];
        bench.run(&rows, &several).ok();
        let found = bench.data_files("out/features");
        assert_same_bytes(&expected, &found, &format!("{processes} processes"));
    }
    bench.clear();
    run_and_kill(&bench, &rows, 6);
    bench.run(&rows, &["--stage", "flatten"]).ok();
    assert_same_bytes(&expected, &bench.data_files("out/features"), "after a kill");
}

#[test]
fn check_predicts_the_bytes_of_rows_of_pairs() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let rows = job_of_rows(&graph);
    bench.run(&rows, &["--stage", "flatten"]).ok();
    let checked = bench.graphflat(&["check", "job.toml", "--json"]).ok();
    let report: Value = serde_json::from_str(checked.stdout.lines().last().unwrap()).unwrap();
    let predicted = report["flatten"]["bytes"]["rows"].as_f64().unwrap();
    let parts = bench.manifest("out/features")["parts"].clone();
    let parts = parts.as_array().unwrap().iter();
    let bytes = parts.map(|part| part["files"][0]["bytes"].as_f64().unwrap());
    let written: f64 = bytes.sum();
    let ratio = predicted / written;
    // Parts of 40 pairs are small: the probe has other neighbourhoods.
    assert!(
        (0.5..2.0).contains(&ratio),
        "{predicted}, written {written}"
    );
}

#[test]
fn rows_of_pairs_agree_with_the_input() {
    let Some(python) = python() else { return };
    let graph = graph();
    let bench = Bench::new(&graph);
    let script = checkout().join("tests/pair_rows.py");
    for undirected in [false, true] {
        let edges = match undirected {
            true => "dst = \"dst\"\nundirected = true\n",
            false => "dst = \"dst\"\n",
        };
        let shards = job(&graph).with("dst = \"dst\"\n", edges);
        let rows = as_rows(&shards).with("out/features", "out/rows");
        bench.run(&shards, &["--fresh"]).ok();
        bench.run(&rows, &["--fresh"]).ok();
        let mut command = Command::new(&python);
        command.arg(&script);
        for path in ["nodes.parquet", "edges.parquet", "out/rows", "out/features"] {
            command.arg(bench.path(path));
        }
        command.arg("4,3");
        command.args(undirected.then_some("undirected"));
        let outcome = Outcome::of(&command.output().unwrap()).ok();
        let found = outcome.stdout.split_whitespace();
        let found: Vec<u64> = found.map(|count| count.parse().unwrap()).collect();
        let num_parts = bench.manifest("out/rows")["parts"]
            .as_array()
            .unwrap()
            .len() as u64;
        assert_eq!(found[1], 20 * num_parts, "random negatives");
        assert_eq!(found[0], counts(&bench).into_iter().sum::<u64>() + found[1]);
    }
}

#[test]
fn mistakes_in_pairs_are_one_line_of_check_and_run() {
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
        "from_edges = true",
        "from_edges = \"buys\"",
        "`input.pairs.from_edges`: is \"buys\", but the edges have no relations",
    );
    let shares = "share = { train = 0.5, val = 0.1, test = 0.2 }";
    check(
        shares,
        "",
        "`input.pairs.share`: is missing; pairs need `share`",
    );
    check(shares, "time = \"at\"", "`input.pairs.time`: needs `share`");
    check(
        shares,
        "share = { train = 0.5, val = 0.1, test = 0.6 }",
        "`input.pairs.share`: the shares sum to 1.2; allowed is at most 1",
    );
    check(
        shares,
        "share = { train = 0.5, val = 0.00001 }",
        "`input.pairs.share`: puts no pair in split `val`: its share by hash is 0.00001",
    );
    check(
        "from_edges = true",
        "from_edge = true",
        "unknown key `input.pairs.from_edge`; did you mean `from_edges`?",
    );
    check(
        "from_edges = true",
        "from_edges = true\nsrc = \"src\"",
        "`input.pairs.src`: is for a table of pairs",
    );
    check(
        "features = [",
        "label = \"label\"\nfeatures = [",
        "`input.nodes.label`: is for models of nodes",
    );
    check(
        "negatives_per_part = 20",
        "negatives_per_part = 151",
        "`flatten.negatives_per_part` is 151: the dst ends have a type of 150 nodes",
    );
    check(
        "pairs_per_part = 40",
        "targets_per_part = 40",
        "`flatten.targets_per_part` is given: with [input.pairs]",
    );
    check(
        "from_edges = true",
        "from_edges = 3",
        "allowed is true, or the name of a relation",
    );
}

/// Its embedding ranks itself best, so such a pair says nothing of links.
#[test]
fn a_pair_of_a_node_with_itself_is_an_error() {
    let graph = graph();
    let mut pairs = table_of_pairs(&graph);
    pairs[5].0[1] = pairs[5].0[0].clone();
    let bench = Bench::new(&graph);
    let mut columns = columns_of_ends(&pairs);
    let splits = (0..NODES).map(|at| ["train", "val", "test"][at % 3]);
    columns.push((
        "split",
        Arc::new(StringArray::from_iter_values(splits)) as ArrayRef,
    ));
    bench.write_table("pairs.parquet", columns);
    let bad = job_of_table(&graph, "path = \"pairs.parquet\"");
    let ran = bench.run(&bad, &[]);
    let expected = format!(
        "column `to` of pairs.parquet, row 5: is {}, which is the pair's src as well; a pair has \
         two nodes",
        pairs[5].0[0]
    );
    assert!(ran.stderr.contains(&expected), "{}", ran.stderr);
    let checked = bench.graphflat(&["check", "job.toml"]);
    assert!(checked.stderr.contains(&expected), "{}", checked.stderr);
    assert!(!bench.path("out/features").exists());
}

/// A column of splits is read with the store, before graph features are written.
#[test]
fn splits_that_later_stages_need_are_checked_before_any_output() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let mut columns = columns_of_ends(&table_of_pairs(&graph));
    let all_train = StringArray::from_iter_values((0..NODES).map(|_| "train"));
    columns.push(("split", Arc::new(all_train) as ArrayRef));
    bench.write_table("pairs.parquet", columns);
    let table = job_of_table(&graph, "path = \"pairs.parquet\"");
    let train = |keys: &str| {
        format!(
            "[train]\noutput = \"out/model\"\nmodel = \"sage\"\nhidden = [8, 4]\nepochs = 1\n\
             {keys}\n"
        )
    };
    let score = "[infer]\noutput = \"out/embeddings\"\n[score]\noutput = \"out/scores\"\nevaluate \
                 = true\n";
    let check = |bad: &Job, expected: &str| {
        let ran = bench.run(bad, &[]);
        assert_ne!(ran.code, 0, "{expected}");
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
        assert!(!bench.path("out/features").exists(), "{expected}");
    };
    check(
        &table.clone().and(&train("patience = 1")),
        "`train.patience`: needs a metric of val pairs, but `input.pairs.split` puts none in this \
         split",
    );
    check(
        &table.clone().and(&train("monitor = \"mrr\"")),
        "`train.monitor`: needs a metric of val pairs",
    );
    check(
        &table.and(&train("")).and(score),
        "`score.evaluate` is true, but `input.pairs.split` puts no pair in the splits val and test",
    );
    let shares = "share = { train = 0.5, val = 0.1, test = 0.2 }";
    let by_hash = job(&graph).with(shares, "share = { train = 0.5, test = 0.2 }");
    check(
        &by_hash.and(&train("patience = 1")),
        "`train.patience`: needs a metric of val pairs, but `input.pairs.share` puts none in this \
         split",
    );
}

#[test]
fn a_training_that_does_not_fit_pairs_is_one_line_before_any_work() {
    let graph = graph();
    let check = |keys: &str, expected: &str| {
        let bench = Bench::new(&graph);
        let train = format!(
            "[train]\ninput = \"out/features\"\noutput = \"out/model\"\nmodel = \"sage\"\nhidden = \
             [8, 4]\nepochs = 1\n{keys}\n"
        );
        let bad = job(&graph).and(&train);
        let ran = bench.run(&bad, &[]);
        assert_ne!(ran.code, 0, "{keys}");
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        let checked = bench.graphflat(&["check", "job.toml"]);
        assert_eq!(checked.code, ran.code, "{}", checked.stderr);
        assert!(checked.stderr.contains(expected), "{}", checked.stderr);
        assert!(!bench.path("work").exists() && !bench.path("out").exists());
    };
    check(
        "negatives = { random = 21 }",
        "`train.negatives.random` is 21: a part has 20 random negatives",
    );
    check(
        "negatives = { evaluation = 21 }",
        "`train.negatives.evaluation` is 21: a part has 20 random negatives",
    );
    check(
        "negatives = { in_batch = \"yes\" }",
        "allowed is true, false, or a number of pairs from 2 to 1048576",
    );
    check(
        "monitor = \"accuracy\"",
        "allowed for pairs: mrr, hits@1, hits@10, hits@50, ndcg@10, ndcg@50, auc, \
         average_precision, loss",
    );
}

#[test]
fn keys_of_pairs_are_refused_for_labels_before_any_work() {
    let graph = Graph::new(60, IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let train = "[train]\noutput = \"out/model\"\nmodel = \"sage\"\nhidden = [8]\nepochs = 1\n\
                 decoder = \"dot\"\n";
    let ran = bench.run(&Job::new(&graph, &[FLATTEN, train]), &[]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    let wanted = "`train.decoder` = \"dot\": it has no pairs (`[input.pairs]`): leave the key out";
    assert!(ran.stderr.contains(wanted), "{}", ran.stderr);
    assert!(!bench.path("work").exists() && !bench.path("out").exists());
}

#[test]
fn a_relation_almost_without_messages_is_a_warning() {
    let graph = graph();
    let whole = "share = { train = 0.7, val = 0.1, test = 0.2 }";
    let all_pairs = job(&graph).with("share = { train = 0.5, val = 0.1, test = 0.2 }", whole);
    let run = |job: &Job| {
        let bench = Bench::new(&graph);
        bench.write(job);
        bench.graphflat(&["run", "job.toml"]).ok().stderr
    };
    let warning = "are pairs, which `input.pairs.exclude` = \"all\" leaves out: take fewer edges";
    let warned = run(&all_pairs);
    assert!(warned.contains(warning), "{warned}");
    assert!(!run(&job(&graph)).contains(warning));
    let in_batches = all_pairs.with(whole, &format!("{whole}\nexclude = \"batch\""));
    assert!(!run(&in_batches).contains(warning));
}
