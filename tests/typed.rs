//! Graphs with node types and relations: flatten and train by the real binary.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, StringArray};
use serde_json::{Value, json};

use crate::harness::{Bench, Job, Table, assert_same_bytes, f32_lists, mix};

const MODEL: &str = "out/model";

/// Authors have string ids, labels and splits; papers have integer ids; venues have no features.
const AUTHORS: usize = 120;
const PAPERS: usize = 200;
const VENUES: usize = 6;
/// An author's label; also the first feature of most of the author's papers.
const LABELS: usize = 3;

const JOB: &str = r#"name = "typed"
seed = 7
workers = 2

[input.nodes.author]
path = "authors.parquet"
id = "name"
features = ["features"]
label = "label"
split = { train = 0.6, val = 0.2, test = 0.2 }
transform = "standardize"

[input.nodes.paper]
path = "papers.parquet"
id = "id"
features = ["features"]
transform = "standardize"

[input.nodes.venue]
path = "venues.parquet"
id = "id"

[input.edges.writes]
path = "writes.parquet"
from = "author"
to = "paper"
src = "author"
dst = "paper"
reverse = "written_by"

[input.edges.cites]
path = "links.parquet"
from = "paper"
to = "paper"
src = "src"
dst = "dst"
where = { kind = "cites" }

[input.edges.shown_at]
path = "links.parquet"
from = "paper"
to = "venue"
src = "src"
dst = "dst"
where = { kind = "shown_at" }
reverse = "shows"

[flatten]
output = "out/features"
hops = 2
fanouts = [{ written_by = 5 }, 4]
layout = "shards"
targets_per_part = 16

[train]
output = "out/model"
model = "sage"
hidden = [16]
epochs = 30
batch_size = 16
learning_rate = 0.01
"#;

fn label(author: usize) -> usize {
    usize::try_from(mix(3, author as u64) % LABELS as u64).unwrap()
}

/// Returns a number below `bound`, drawn by `of` and `at`.
fn draw(of: u64, at: usize, bound: usize) -> usize {
    usize::try_from(mix(of, at as u64) % bound as u64).unwrap()
}

fn ints(values: impl Iterator<Item = usize>) -> ArrayRef {
    let values = values.map(|value| i64::try_from(value).unwrap());
    Arc::new(Int64Array::from_iter_values(values))
}

fn strings(values: impl Iterator<Item = String>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

/// Writes the tables. Only an author's papers show the label of the author.
fn bench() -> Bench {
    let bench = Bench::empty();
    let noise = |of: u64, at: usize| draw(of, at, 100) as f32 / 100.0;
    let labels = (0..AUTHORS).map(|author| i32::try_from(label(author)).unwrap());
    bench.write_table(
        "authors.parquet",
        vec![
            (
                "name",
                strings((0..AUTHORS).map(|author| format!("a{author}"))),
            ),
            (
                "features",
                f32_lists((0..AUTHORS).map(|at| vec![noise(5, at), noise(6, at)])),
            ),
            ("label", Arc::new(Int32Array::from_iter_values(labels))),
        ],
    );
    // Paper p is of author p % AUTHORS, and of a second author.
    let shown = |paper: usize| {
        let mut row = vec![noise(7, paper); LABELS + 1];
        row[label(paper % AUTHORS)] += 2.0;
        row
    };
    bench.write_table(
        "papers.parquet",
        vec![
            ("id", ints((0..PAPERS).map(|paper| 1000 + paper))),
            ("features", f32_lists((0..PAPERS).map(shown))),
        ],
    );
    bench.write_table("venues.parquet", vec![("id", ints(0..VENUES))]);
    let papers = || (0..PAPERS).chain(0..PAPERS / 4);
    let authors = (0..PAPERS)
        .map(|paper| paper % AUTHORS)
        .chain((0..PAPERS / 4).map(|paper| draw(8, paper, AUTHORS)));
    bench.write_table(
        "writes.parquet",
        vec![
            (
                "author",
                strings(authors.map(|author| format!("a{author}"))),
            ),
            ("paper", ints(papers().map(|paper| 1000 + paper))),
        ],
    );
    let cites = (0..2 * PAPERS).map(|at| (1000 + draw(9, at, PAPERS), 1000 + draw(10, at, PAPERS)));
    let shown_at = (0..PAPERS).map(|paper| (1000 + paper, draw(11, paper, VENUES)));
    let links: Vec<(usize, usize)> = cites.chain(shown_at).collect();
    let kind = |at: usize| if at < 2 * PAPERS { "cites" } else { "shown_at" };
    bench.write_table(
        "links.parquet",
        vec![
            ("src", ints(links.iter().map(|link| link.0))),
            ("dst", ints(links.iter().map(|link| link.1))),
            (
                "kind",
                strings((0..links.len()).map(|at| kind(at).to_owned())),
            ),
        ],
    );
    bench
}

#[test]
fn layouts_and_workers_train_the_same_model_and_it_learns() {
    let bench = bench();
    let keys = [
        "model = \"sage\"",
        "model = \"gat\"\nheads = 2\nrelation_aggregator = \"mean\"",
        "model = \"rgcn\"\nbases = 2",
        "model = \"simple_hgn\"\nheads = 2\nrelation_dim = 4\nresidual = true",
        "model = \"hgt\"",
    ];
    for model in keys {
        // With one part for all targets, the parts of both layouts have the same targets.
        let job = Job::of_text(JOB)
            .with("model = \"sage\"", model)
            .with("targets_per_part = 16", "targets_per_part = 1000");
        bench.clear();
        bench.run(&job, &[]).ok();
        let expected = bench.data_files(MODEL);
        let file = std::fs::read(bench.path(MODEL).join("model.json")).unwrap();
        let file: serde_json::Value = serde_json::from_slice(&file).unwrap();
        let accuracy = file["metrics"]["test_accuracy"].as_f64().unwrap();
        assert!(accuracy > 0.7, "{model}: {}", file["metrics"]);
        bench.clear();
        let rows = job.with("\"shards\"", "\"rows\"");
        bench.run(&rows, &["--workers", "1"]).ok();
        let what = format!("{model}, layout rows, one worker");
        assert_same_bytes(&expected, &bench.data_files(MODEL), &what);
    }
}

#[test]
fn workers_change_no_model_of_many_parts() {
    let bench = bench();
    let job = Job::of_text(JOB).with("epochs = 30", "epochs = 3");
    for layout in ["rows", "shards"] {
        let of_layout = job.with("\"shards\"", &format!("\"{layout}\""));
        bench.clear();
        bench.run(&of_layout, &["--workers", "1"]).ok();
        let outputs = ["out/features", MODEL].map(|output| bench.data_files(output));
        for workers in ["2", "4"] {
            bench.clear();
            bench.run(&of_layout, &["--workers", workers]).ok();
            for (output, expected) in ["out/features", MODEL].iter().zip(&outputs) {
                let what = format!("{output}, {layout}, {workers} workers");
                assert_same_bytes(expected, &bench.data_files(output), &what);
            }
        }
    }
}

#[test]
fn the_first_epoch_of_a_stream_is_that_of_stored_features() {
    let bench = bench();
    let stored = Job::of_text(JOB).with("epochs = 30", "epochs = 1");
    bench.run(&stored, &[]).ok();
    let expected = bench.data_files(MODEL);
    bench.clear();
    let streamed = stored
        .with("output = \"out/features\"\n", "")
        .with("layout = \"shards\"\n", "")
        .with("[train]\n", "[train]\nstreamed = true\n");
    bench.run(&streamed, &[]).ok();
    assert!(!bench.path("out/features").exists());
    assert_same_bytes(&expected, &bench.data_files(MODEL), "streamed");
}

#[test]
fn a_model_that_does_not_fit_the_relations_is_refused_before_any_work() {
    let bench = bench();
    let job = Job::of_text(JOB).with("\"sage\"", "\"gcn\"");
    let outcome = bench.run(&job, &[]);
    assert_eq!(outcome.code, 2, "{outcome:?}");
    let problem = "its relation `shown_at` leads from `paper` to `venue`, and gcn needs relations \
                   within a type";
    assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
    assert!(!bench.path("work").exists());
}

#[test]
fn check_counts_by_type_and_relation_and_predicts_the_output() {
    let bench = bench();
    bench.write(&Job::of_text(JOB));
    let outcome = bench.graphflat(&["check", "job.toml"]).ok();
    let starts = [
        "nodes    author: 120, 2 features, targets, 3 classes; ",
        "nodes    paper: 200, 4 features",
        "nodes    venue: 6, 0 features",
        "edges    cites: 400 from paper to paper, in-degree at most ",
        "edges    shown_at: 200 from paper to venue, in-degree at most ",
        "edges    shows: 200 from venue to paper, in-degree at most 1, 0 hubs",
        "edges    writes: 250 from author to paper, in-degree at most 2, 0 hubs",
        "edges    written_by: 250 from paper to author, in-degree at most ",
        "flatten  120 rows in 8 parts, about ",
        "bytes    about ",
        "memory   about ",
        "ok       typed: flatten, train",
    ];
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines.len(), starts.len(), "{}", outcome.stdout);
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
    let json = bench.graphflat(&["check", "job.toml", "--json"]).ok();
    let report = &json.events()[0];
    assert_eq!(report["target_type"], "author");
    assert_eq!(report["relations"][2]["in_degree_max"], 1);
    assert_eq!(report["splits"]["none"], 0);
}

#[test]
fn graph_features_of_another_type_are_another_plan() {
    let bench = bench();
    let (flatten, _) = JOB.split_once("[train]").unwrap();
    let of_type = |name: &str| {
        Job::of_text(flatten).with(
            "fanouts = [{ written_by = 5 }, 4]",
            &format!("fanouts = [5, 4]\ntargets = \"all\"\ntarget_type = \"{name}\""),
        )
    };
    bench.run(&of_type("author"), &[]).ok();
    let features = bench.data_files("out/features");
    let other = bench.run(&of_type("paper"), &[]);
    assert_eq!(other.code, 2, "{other:#?}");
    assert!(other.stderr.contains("of another plan"), "{other:#?}");
    assert_same_bytes(&features, &bench.data_files("out/features"), "refused");
    bench.run(&of_type("paper"), &["--fresh"]).ok();
    let plan = &bench.manifest("out/features")["plan"];
    assert_eq!(plan["target_type"], "paper");
}

#[test]
fn a_where_without_rows_is_a_warning() {
    let bench = bench();
    let job = Job::of_text(JOB).with("\"cites\" }", "\"citez\" }");
    bench.write(&job);
    let run = ["run", "job.toml", "--stage", "flatten"];
    let ran = bench.graphflat(&run).ok();
    let warning = "`input.edges.cites` has no rows with kind = \"citez\"";
    assert_eq!(ran.stderr.matches(warning).count(), 1, "{}", ran.stderr);
    let checked = bench.graphflat(&["check", "job.toml", "--fresh"]).ok();
    let line = "edges    cites: 0 from paper to paper, in-degree at most 0, 0 hubs; no row has \
                kind = \"citez\"\n";
    assert!(checked.stdout.contains(line), "{}", checked.stdout);
}

#[test]
fn inspect_names_types_and_relations() {
    let bench = bench();
    for layout in ["shards", "rows"] {
        bench.clear();
        let job = Job::of_text(JOB).with("\"shards\"", &format!("\"{layout}\""));
        bench.run(&job, &["--stage", "flatten"]).ok();
        let inspect = |args: &[&str]| {
            let all = [&["inspect", "out/features", "--target", "a1"], args].concat();
            bench.graphflat(&all).ok().stdout
        };
        let text = inspect(&[]);
        assert!(text.contains("\ntarget author a1, split "), "{text}");
        assert!(
            text.contains("\n  hop 0 author a1 in-degree written_by "),
            "{text}"
        );
        assert!(
            text.contains("\n  hop 1 paper 1001 in-degree cites "),
            "{text}"
        );
        assert!(
            text.contains("\n  paper 1001 -> author a1 by written_by\n"),
            "{text}"
        );
        let dot = inspect(&["--dot"]);
        let target = "  n0 [label = \"a1\", type = \"author\", tooltip = \"author\", style = filled, \
                      fillcolor = 1, hop = 0, shape = box];\n";
        assert!(dot.contains(target), "{dot}");
        assert!(dot.contains(" -> n0 [label = \"written_by\"];\n"), "{dot}");
        let store = bench
            .graphflat(&["inspect", "work/typed/store"])
            .ok()
            .stdout;
        assert!(store.contains("326 nodes"), "{store}");
        assert!(store.contains("\n  cites from paper to paper: "), "{store}");
        json_has_the_same(&bench, &inspect(&["--json"]), &text);
    }
}

/// Checks the JSON of target `a1` of graph features, and that of their store, against the text.
fn json_has_the_same(bench: &Bench, features: &str, text: &str) {
    let features: Value = serde_json::from_str(features).unwrap();
    let [target] = &features["targets"].as_array().unwrap()[..] else {
        panic!("{features}");
    };
    assert_eq!(
        (&target["type"], &target["id"]),
        (&json!("author"), &json!("a1"))
    );
    let (nodes, edges) = (&target["nodes"], &target["edges"]);
    let counts = (
        nodes.as_array().unwrap().len(),
        edges.as_array().unwrap().len(),
    );
    let heading = format!(": {} nodes, {} edges\n", counts.0, counts.1);
    assert!(text.contains(&heading), "{target}");
    let name = |at: &Value| {
        let node = &nodes[usize::try_from(at.as_u64().unwrap()).unwrap()];
        let id = node["id"].to_string();
        format!(
            "{} {}",
            node["type"].as_str().unwrap(),
            id.trim_matches('"')
        )
    };
    for edge in edges.as_array().unwrap().iter().take(20) {
        let relation = edge["relation"].as_str().unwrap();
        let (src, dst) = (name(&edge["src"]), name(&edge["dst"]));
        let of_edge = format!("  {src} -> {dst} by {relation}");
        assert!(text.contains(&of_edge), "no {of_edge} in {text}");
    }
    assert_eq!(nodes[0]["hop"], 0);
    let in_degrees = nodes[0]["in_degree"].as_object().unwrap();
    for (relation, count) in in_degrees {
        let first = text
            .lines()
            .find(|line| line.starts_with("  hop 0 "))
            .unwrap();
        assert!(first.contains(&format!("{relation} {count}")), "{first}");
    }
    let args = ["inspect", "work/typed/store", "--json"];
    let store: Value = serde_json::from_str(&bench.graphflat(&args).ok().stdout).unwrap();
    assert_eq!(store["nodes"], 326);
    let of_types = store["types"].as_object().unwrap().values();
    assert_eq!(
        of_types.map(|count| count.as_u64().unwrap()).sum::<u64>(),
        326
    );
    let relations = store["relations"].as_object().unwrap().values();
    let in_edges: u64 = relations.map(|of| of["in_edges"].as_u64().unwrap()).sum();
    assert_eq!(store["in_edges"], in_edges);
    assert_eq!(store["relations"]["cites"]["from"], "paper");
}

#[test]
fn an_end_that_is_no_node_of_its_type_is_named() {
    let bench = bench();
    let mut few = Table::default();
    few.set("id", ints(1..VENUES));
    few.write(&bench.path("venues.parquet"));
    bench.write(&Job::of_text(JOB));
    for args in [["check", "job.toml"], ["run", "job.toml"]] {
        let outcome = bench.graphflat(&args);
        assert_ne!(outcome.code, 0, "{outcome:?}");
        let (stderr, table) = (&outcome.stderr, "[input.edges.shown_at]");
        assert!(
            stderr.contains("links.parquet") && stderr.contains(table),
            "{stderr}"
        );
    }
    let dropped = Job::of_text(JOB).with("\"shown_at\" }", "\"shown_at\" }\ndangling = \"drop\"");
    bench.write(&dropped);
    let outcome = bench.graphflat(&["check", "job.toml"]).ok();
    assert!(
        outcome.stdout.contains("rows dropped, an end is no node"),
        "{}",
        outcome.stdout
    );
}
