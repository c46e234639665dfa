//! Graphs as targets: jobs with `[input.graphs]` by the real binary, in several processes, killed,
//! checked and inspected, and their readout against a slow twin.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int64Array, StringArray};
use schemas::EmbeddingsDataset;
use serde_json::Value;

use crate::harness::{Bench, Job, assert_same_bytes, mix};
use crate::resume::run_and_kill;

const JOB: &str = r#"name = "graphs"
seed = 7
workers = 2

[input.nodes]
path = "nodes.parquet"
id = "id"
features = ["colour"]
graph = "graph"

[input.edges]
path = "edges.parquet"
src = "src"
dst = "dst"
undirected = true

[input.graphs]
path = "graphs.parquet"
id = "name"
label = "kind"
split = { train = 0.6, val = 0.2, test = 0.2 }

[flatten]
output = "out/features"
hops = 2
fanouts = ["all", "all"]

[train]
output = "out/model"
model = "sage"
hidden = [16, 16]
epochs = 20
batch_size = 32
dropout = 0.0

[infer]
output = "out/embeddings"
"#;

const GRAPHS: usize = 160;

/// Nodes of a graph: an even number, so that half of them have each colour.
fn size(graph: usize) -> usize {
    6 + 2 * usize::try_from(mix(1, graph as u64) % 5).unwrap()
}

/// The class of a graph: whether its edges join nodes of equal colour.
fn is_alike(graph: usize) -> bool {
    mix(2, graph as u64).is_multiple_of(2)
}

/// Nodes of all graphs, and the edges between them.
struct World {
    /// By node: its graph.
    graph: Vec<usize>,
    /// By node.
    colour: Vec<f32>,
    edges: Vec<(usize, usize)>,
}

impl World {
    /// Graphs in which every node has an edge. Nodes of a graph are not neighbours in the table.
    fn new() -> World {
        let mut world = World {
            graph: Vec::new(),
            colour: Vec::new(),
            edges: Vec::new(),
        };
        for graph in 0..GRAPHS {
            let first = world.graph.len();
            let half = size(graph) / 2;
            // Nodes of a graph: the red ones, then the blue ones.
            let red = |at: usize| first + at % half;
            let blue = |at: usize| first + half + at % half;
            for at in 0..size(graph) {
                world.graph.push(graph);
                world.colour.push(if at < half { 1.0 } else { -1.0 });
            }
            for at in 0..half {
                let step = 1 + usize::try_from(mix(3, (first + at) as u64) % 2).unwrap();
                world.edges.extend(match is_alike(graph) {
                    true => [(red(at), red(at + step)), (blue(at), blue(at + step))],
                    false => [(red(at), blue(at)), (red(at), blue(at + step))],
                });
            }
        }
        world
    }

    fn id(node: usize) -> i64 {
        // Spread over the table of ids, so that the nodes of a graph have different workers.
        i64::try_from(node * 7919 % 100_003).unwrap()
    }

    fn write(&self, bench: &Bench) {
        let ids = |nodes: Vec<usize>| -> ArrayRef {
            let ids = nodes.into_iter().map(Self::id);
            Arc::new(Int64Array::from_iter_values(ids))
        };
        let nodes = || 0..self.graph.len();
        let graphs = self.graph.iter().map(|&graph| name(graph));
        bench.write_table(
            "nodes.parquet",
            vec![
                ("id", ids(nodes().collect())),
                ("graph", strings(graphs.collect())),
                ("colour", Arc::new(Float32Array::from(self.colour.clone()))),
            ],
        );
        let ends = |of: fn(&(usize, usize)) -> usize| ids(self.edges.iter().map(of).collect());
        let weights = (0..self.edges.len()).map(|at| 0.5 + (mix(4, at as u64) % 8) as f32);
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("src", ends(|edge| edge.0)),
            ("dst", ends(|edge| edge.1)),
            ("weight", Arc::new(Float32Array::from_iter_values(weights))),
        ];
        bench.write_table("edges.parquet", columns);
        let kinds = (0..GRAPHS).map(|graph| match is_alike(graph) {
            true => "alike".to_owned(),
            false => "mixed".to_owned(),
        });
        bench.write_table(
            "graphs.parquet",
            vec![
                ("name", strings((0..GRAPHS).map(name).collect())),
                ("kind", strings(kinds.collect())),
            ],
        );
    }
}

fn name(graph: usize) -> String {
    format!("g{graph}")
}

fn strings(values: Vec<String>) -> ArrayRef {
    Arc::new(StringArray::from(values))
}

fn bench() -> (Bench, World) {
    let (bench, world) = (Bench::empty(), World::new());
    world.write(&bench);
    (bench, world)
}

fn test_accuracy(bench: &Bench) -> f64 {
    let file = std::fs::read(bench.path("out/model/model.json")).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    file["metrics"]["test_accuracy"].as_f64().unwrap()
}

/// The embeddings of a type by id.
fn embeddings(bench: &Bench, of_type: &str) -> BTreeMap<String, Vec<f32>> {
    let dataset = EmbeddingsDataset::open(&bench.path("out/embeddings")).unwrap();
    let mut rows = BTreeMap::new();
    for part in dataset.parts_of(of_type) {
        let read = dataset.read_part(part).unwrap();
        for at in 0..read.ids.len() {
            let row = &read.embedding[at * read.dim..(at + 1) * read.dim];
            rows.insert(read.ids.display(at), row.to_vec());
        }
    }
    rows
}

#[track_caller]
fn assert_close(found: &BTreeMap<String, Vec<f32>>, expected: &BTreeMap<String, Vec<f32>>) {
    assert!(found.keys().eq(expected.keys()));
    for (id, row) in expected {
        let largest = row.iter().fold(1.0f32, |most, x| most.max(x.abs()));
        for (x, y) in found[id].iter().zip(row) {
            assert!((x - y).abs() <= 1e-5 * largest, "{id}: {x} is not {y}");
        }
    }
}

#[test]
fn a_model_learns_what_edges_say_of_a_graph() {
    let (bench, _) = bench();
    let job = Job::of_text(JOB);
    bench.run(&job, &[]).ok();
    let accuracy = test_accuracy(&bench);
    assert!(accuracy > 0.95, "{accuracy}");
    assert_eq!(embeddings(&bench, "graph").len(), GRAPHS);
    // Nodes of both colours are equally many, so without edges the classes look the same.
    let ids: Vec<i64> = (0..World::new().graph.len()).map(World::id).collect();
    let ids: ArrayRef = Arc::new(Int64Array::from(ids));
    let loops = vec![("src", Arc::clone(&ids)), ("dst", ids)];
    bench.write_table("edges.parquet", loops);
    bench.clear();
    bench.run(&job.with("undirected = true\n", ""), &[]).ok();
    let blind = test_accuracy(&bench);
    assert!(blind < 0.75, "{blind}");
}

#[test]
fn the_readout_is_that_of_the_rows_of_nodes() {
    let (bench, world) = bench();
    let uniform = Job::of_text(JOB)
        .with("epochs = 20", "epochs = 2")
        .with("out/embeddings\"", "out/embeddings\"\ntypes = \"all\"");
    let weighted = uniform
        .with("dst = \"dst\"\n", "dst = \"dst\"\nweight = \"weight\"\n")
        .with("hops = 2", "hops = 2\nsampling = \"weighted\"");
    for (sampled, readout, fanouts) in [
        (&uniform, "mean", "[\"all\", \"all\"]"),
        (&uniform, "sum", "[2, 1]"),
        (&weighted, "max", "[1, 2]"),
    ] {
        bench.clear();
        let keys = format!("model = \"sage\"\nreadout = \"{readout}\"");
        let job = sampled
            .with("model = \"sage\"", &keys)
            .with("[\"all\", \"all\"]", fanouts);
        bench.run(&job, &[]).ok();
        let nodes = embeddings(&bench, "node");
        let found = embeddings(&bench, "graph");
        let mut expected: BTreeMap<String, Vec<f32>> = BTreeMap::new();
        for (node, &graph) in world.graph.iter().enumerate() {
            let row = &nodes[&World::id(node).to_string()];
            let mut first = false;
            let sums = expected.entry(name(graph)).or_insert_with(|| {
                first = true;
                row.clone()
            });
            for (own, &x) in sums.iter_mut().zip(row).filter(|_| !first) {
                match readout {
                    "max" => *own = own.max(x),
                    _ => *own += x,
                }
            }
        }
        if readout == "mean" {
            for (graph, row) in &mut expected {
                let graph: usize = graph[1..].parse().unwrap();
                row.iter_mut().for_each(|x| *x /= size(graph) as f32);
            }
        }
        assert_close(&found, &expected);
        // The forward of training, on the stored neighbourhoods.
        let stored = job.with("types = \"all\"", "method = \"neighborhoods\"");
        bench.run(&stored, &["--stage", "infer", "--fresh"]).ok();
        assert_close(&embeddings(&bench, "graph"), &found);
    }
}

#[test]
fn nodes_of_other_types_may_have_neighbours_in_several_graphs() {
    let (bench, world) = bench();
    let paints: Vec<(&str, ArrayRef)> = vec![
        ("name", strings(vec!["red".to_owned(), "blue".to_owned()])),
        ("value", Arc::new(Float32Array::from(vec![1.0, -1.0]))),
    ];
    bench.write_table("paints.parquet", paints);
    let ids = (0..world.graph.len()).map(World::id);
    let paint = |colour: &f32| if *colour > 0.0 { "red" } else { "blue" }.to_owned();
    let painted: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(ids))),
        ("paint", strings(world.colour.iter().map(paint).collect())),
    ];
    bench.write_table("painted.parquet", painted);
    let job = Job::of_text(JOB)
        .with("[input.nodes]", "[input.nodes.atom]")
        .with("features = [\"colour\"]\n", "")
        .with(
            "[input.edges]",
            "[input.edges.bond]\nfrom = \"atom\"\nto = \"atom\"",
        )
        .with(
            "[input.graphs]",
            "[input.nodes.paint]\npath = \"paints.parquet\"\nid = \"name\"\nfeatures = \
             [\"value\"]\n\n[input.edges.paints]\nfrom = \"paint\"\nto = \"atom\"\npath = \
             \"painted.parquet\"\nsrc = \"paint\"\ndst = \"id\"\n\n[input.graphs]",
        )
        .with(
            "[\"all\", \"all\"]",
            "[{ bond = \"all\" }, 3, { paints = 1 }]",
        )
        .with("hops = 2", "hops = 3")
        .with("hidden = [16, 16]", "hidden = [16, 16, 16]")
        .with(
            "out/embeddings\"",
            "out/embeddings\"\ntypes = [\"atom\", \"graph\"]",
        );
    bench.run(&job, &[]).ok();
    let accuracy = test_accuracy(&bench);
    assert!(accuracy > 0.9, "{accuracy}");
    let (atoms, found) = (embeddings(&bench, "atom"), embeddings(&bench, "graph"));
    for (graph, row) in found {
        let graph: usize = graph[1..].parse().unwrap();
        let nodes = (0..world.graph.len()).filter(|&node| world.graph[node] == graph);
        let rows: Vec<&Vec<f32>> = nodes
            .map(|node| &atoms[&World::id(node).to_string()])
            .collect();
        for (at, x) in row.iter().enumerate() {
            let mean = rows.iter().map(|of| of[at]).sum::<f32>() / rows.len() as f32;
            assert!(
                (x - mean).abs() <= 1e-5 * mean.abs().max(1.0),
                "{x} is not {mean}"
            );
        }
    }
}

#[test]
fn processes_workers_and_kills_change_no_byte() {
    let (bench, _) = bench();
    let job = Job::of_text(JOB)
        .with("hops = 2", "hops = 2\ntargets_per_part = 30")
        .with("[\"all\", \"all\"]", "[2, \"all\"]")
        .with("epochs = 20", "epochs = 3");
    let outputs = ["out/features", "out/model", "out/embeddings"];
    bench.run(&job, &[]).ok();
    let written = outputs.map(|output| bench.data_files(output));
    let tables = [
        "nodes/graph/",
        "nodes/node/",
        "edges/edge/",
        "edges/in_graph/",
    ];
    let is_there = |table: &str| written[0].keys().any(|name| name.starts_with(table));
    assert!(tables.into_iter().all(is_there), "{:?}", written[0].keys());
    let check = |what: &str| {
        for (output, expected) in outputs.iter().zip(&written) {
            assert_same_bytes(expected, &bench.data_files(output), what);
        }
    };
    bench.clear();
    bench.run(&job, &["--workers", "1"]).ok();
    check("one worker");
    bench.clear();
    bench
        .run(&job, &["--processes", "2", "--workers", "1"])
        .ok();
    check("two processes");
    for events in [3, 6, 10, 16] {
        bench.clear();
        run_and_kill(&bench, &job, events);
        bench.run(&job, &[]).ok();
        check(&format!("killed at event {events}"));
    }
}

#[test]
fn streamed_and_async_training_and_rows_work_as_for_nodes() {
    let (bench, _) = bench();
    let stored = Job::of_text(JOB).with("\n[infer]\noutput = \"out/embeddings\"\n", "");
    let streamed = stored
        .with("output = \"out/features\"\n", "")
        .with("epochs = 20", "epochs = 20\nstreamed = true");
    let rows = stored.with("hops = 2", "hops = 2\nlayout = \"rows\"");
    let with_async = stored.with("epochs = 20", "epochs = 20\nworkers = 2\nmode = \"async\"");
    for job in [streamed, rows, with_async] {
        bench.clear();
        bench.run(&job, &[]).ok();
        let accuracy = test_accuracy(&bench);
        assert!(accuracy > 0.9, "{accuracy}");
    }
}

#[test]
fn check_and_inspect_show_the_graphs() {
    let (bench, world) = bench();
    let job = Job::of_text(JOB).with("epochs = 20", "epochs = 1");
    bench.write(&job);
    let checked = bench.graphflat(&["check", "job.toml", "--json"]).ok();
    let report: Value = serde_json::from_str(checked.stdout.lines().last().unwrap()).unwrap();
    bench.run(&job, &[]).ok();
    assert_eq!(report["flatten"]["rows"], GRAPHS);
    let types = report["types"].as_array().unwrap().iter();
    let types: Vec<(&str, u64)> = types
        .map(|of| (of["name"].as_str().unwrap(), of["nodes"].as_u64().unwrap()))
        .collect();
    let num_nodes = world.graph.len() as u64;
    assert_eq!(types, [("graph", GRAPHS as u64), ("node", num_nodes)]);
    assert_eq!(report["relations"][1]["name"], "in_graph");
    assert_eq!(report["relations"][1]["edges"], num_nodes);
    for (output, word) in [
        ("out/features", "in_graph"),
        ("out/embeddings", "graph g3: "),
    ] {
        let shown = bench.graphflat(&["inspect", output, "--target", "g3"]).ok();
        assert!(shown.stdout.contains(word), "{}", shown.stdout);
    }
}

/// Checks that a job fails with one line that has these words, whatever the workers.
#[track_caller]
fn check_error(bench: &Bench, job: &Job, words: &[&str]) {
    for workers in ["1", "3"] {
        bench.clear();
        let failed = bench.run(job, &["--workers", workers]);
        assert_ne!(failed.code, 0);
        let lines: Vec<&str> = failed.stderr.lines().collect();
        let line = lines.iter().find(|line| line.starts_with("error: "));
        let line = line.unwrap_or_else(|| panic!("{}", failed.stderr));
        for word in words {
            assert!(line.contains(word), "{word} is not in: {}", failed.stderr);
        }
        assert!(!bench.path("out/features").exists());
    }
    let checked = bench.graphflat(&["check", "job.toml"]);
    for word in words {
        assert!(
            checked.stderr.contains(word),
            "check: {word} is not in: {}",
            checked.stderr
        );
    }
}

#[test]
fn tables_that_contradict_each_other_are_errors_of_one_line() {
    let (bench, world) = bench();
    let job = Job::of_text(JOB);
    let ids = |nodes: &[usize]| -> ArrayRef {
        let ids = nodes.iter().map(|&node| World::id(node));
        Arc::new(Int64Array::from_iter_values(ids))
    };
    // An edge between nodes of the first and the last graph.
    let last = world.graph.len() - 1;
    let ends = [ids(&[0, 0]), ids(&[1, last])];
    let [src, dst] = ends;
    bench.write_table("edges.parquet", vec![("src", src), ("dst", dst)]);
    let crossing = format!("from {} to {}, which", World::id(0), World::id(last));
    check_error(
        &bench,
        &job,
        &["edges.parquet", "row 1:", &crossing, "two graphs"],
    );
    world.write(&bench);
    // A graph that is not in the table of graphs, and one without nodes.
    let graphs = |of: &dyn Fn(usize) -> String, count: usize| {
        let kinds = vec!["alike".to_owned(); count];
        bench.write_table(
            "graphs.parquet",
            vec![
                ("name", strings((0..count).map(of).collect())),
                ("kind", strings(kinds)),
            ],
        );
    };
    graphs(&name, GRAPHS - 1);
    let unknown = format!(
        "row {}: is {}, which is no graph",
        last + 1 - size(GRAPHS - 1),
        name(GRAPHS - 1)
    );
    check_error(&bench, &job, &["`graph`", "nodes.parquet", &unknown]);
    graphs(&name, GRAPHS + 1);
    let empty = format!("row {GRAPHS}: is {}, a graph without nodes", name(GRAPHS));
    check_error(&bench, &job, &["`name`", "graphs.parquet", &empty]);
    graphs(&|at| name(at % GRAPHS), GRAPHS + 1);
    check_error(&bench, &job, &["graphs.parquet", "row 0", "g0"]);
    // A train graph without a label.
    let kinds = (0..GRAPHS).map(|at| (at != 5).then_some("alike"));
    let unlabelled: Vec<(&str, ArrayRef)> = vec![
        ("name", strings((0..GRAPHS).map(name).collect())),
        ("kind", Arc::new(StringArray::from_iter(kinds))),
        ("split", strings(vec!["train".to_owned(); GRAPHS])),
    ];
    bench.write_table("graphs.parquet", unlabelled);
    let all = job.with("{ train = 0.6, val = 0.2, test = 0.2 }", "\"split\"");
    check_error(
        &bench,
        &all,
        &[
            "`kind`",
            "graphs.parquet",
            "row 5:",
            "the graph is a target",
        ],
    );
}

#[test]
fn keys_that_do_not_fit_graphs_are_errors_of_one_line() {
    let (bench, _) = bench();
    let job = Job::of_text(JOB);
    let check = |from: &str, to: &str, words: &[&str]| {
        check_error(&bench, &job.with(from, to), words);
    };
    let train = "model = \"sage\"";
    check(
        train,
        "model = \"hgt\"",
        &["model", "targets are graphs", "gcn, sage"],
    );
    check(
        "hidden = [16, 16]",
        "hidden = [16]",
        &["hidden", "targets are graphs"],
    );
    check(
        "[infer]\n",
        "[infer]\nlayer = 1\n",
        &["`infer.layer`", "readout"],
    );
    check("label = \"kind\"\n", "", &["`input.graphs.label`"]);
    check("graph = \"graph\"\n", "", &["`input.graphs`", "`graph`"]);
    let without = job
        .with(
            "graph = \"graph\"\n",
            "label = \"graph\"\nsplit = { train = 1.0 }\n",
        )
        .with(
            "[input.graphs]\npath = \"graphs.parquet\"\nid = \"name\"\nlabel = \"kind\"\nsplit = { \
             train = 0.6, val = 0.2, test = 0.2 }\n",
            "",
        )
        .with(train, "model = \"sage\"\nreadout = \"sum\"");
    check_error(&bench, &without, &["`train.readout`", "[input.graphs]"]);
}
