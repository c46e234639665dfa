//! Models load into PyG as docs/pyg.md says, and give the outputs there that inference and scoring
//! wrote.
//!
//! The tests need a Python with torch and torch_geometric: `GRAPHFLAT_TEST_PYG` or
//! `GRAPHFLAT_TEST_PYTHON` names one. PyPI's packages of these take 5 GB; `.ci/run` installs them
//! where no test may be skipped.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, StringArray};

use crate::embeddings::{self, JOB, UNTYPED};
use crate::forward::{infer, job, train, write};
use crate::harness::{Bench, FLATTEN, FeatureKind, Graph, IdKind, Job, Outcome, mix};
use crate::link_models::{self, ITEMS, bought, buyer, ints};
use crate::needs::{checkout, skip};

/// Models that load into PyG's whole models.
const WHOLE: [&str; 13] = [
    "model = \"gcn\"",
    "model = \"gcn\"\nnorm = \"layer\"\nhidden = [8, 8]",
    "model = \"gcn\"\nnorm = \"batch\"\nactivation = \"elu\"\nedge_weight = true",
    "model = \"sage\"",
    "model = \"sage\"\naggregator = \"max\"\nnorm = \"batch\"",
    "model = \"sage\"\nnorm = \"layer\"\nhidden = [8, 8]",
    "model = \"gin\"",
    "model = \"gin\"\nnorm = \"batch\"\nhidden = [8, 8]",
    "model = \"gin\"\nnorm = \"layer\"",
    "model = \"gat\"\nheads = 2\nout_heads = 2\nactivation = \"elu\"",
    "model = \"gat\"\nheads = 2\nout_heads = 2\nedge_features = true",
    "model = \"gat\"\nheads = 2\nhidden = [8, 8]\nnorm = \"layer\"",
    "model = \"gatv2\"\nheads = 4\nout_heads = 4\nedge_features = true\nnorm = \"batch\"",
];

/// Models that load as stacks of PyG's convs only.
const STACK: [&str; 7] = [
    "model = \"gcn\"\nresidual = true\nnorm = \"batch\"",
    "model = \"gcn\"\nhidden = [8, 6]",
    "model = \"sage\"\nresidual = true\nhidden = [6, 8]",
    "model = \"gin\"\nedge_features = true\nnorm = \"layer\"",
    "model = \"gat\"\nheads = 2",
    "model = \"gat\"\nheads = 2\nout_heads = 3\nresidual = true\nedge_features = true",
    "model = \"gatv2\"\nheads = 2\nhidden = [8, 4]\nedge_features = true",
];

/// Models of graphs with node types.
const TYPED: [&str; 4] = [
    "model = \"sage\"\nhidden = [8]",
    "model = \"gat\"\nheads = 2\nresidual = true\nnorm = \"layer\"\nhidden = [8]",
    "model = \"rgcn\"\nbases = 2\nhidden = [8]",
    "model = \"hgt\"\nheads = 2\nhidden = [8, 8]",
];

/// Encoders of links.
const CONVS: [&str; 5] = [
    "model = \"gcn\"",
    "model = \"sage\"",
    "model = \"gat\"\nheads = 2\nout_heads = 2",
    "model = \"gatv2\"\nheads = 2\nactivation = \"elu\"",
    "model = \"gin\"",
];

/// Decoders of links.
const DECODERS: [&str; 4] = ["dot", "cosine", "distmult", "mlp"];

/// Edges with a split are pairs. All nodes are negatives, and all edges are scored.
const LINKS: &str = r#"name = "links"
seed = 7
workers = 2

[input.nodes]
path = "nodes.parquet"
id = "id"
features = ["features"]
transform = "standardize"

[input.edges]
path = "edges.parquet"
src = "src"
dst = "dst"

[input.pairs]
from_edges = true
split = "split"
exclude = "all"

[flatten]
output = "out/features"
hops = 2
fanouts = [3, 2]
pairs_per_part = 80
negatives_per_part = 120

[train]
output = "out/0/model"
model = "sage"
hidden = [16, 8]
decoder = "dot"
epochs = 2
batch_size = 64
negatives = { evaluation = 120 }

[infer]
output = "out/0/embeddings"

[score]
output = "out/0/scores"
pairs = { path = "edges.parquet", src = "src", dst = "dst" }
"#;

/// Items that users view, which are no pairs.
const VIEWS: &str = r#"[input.edges.views]
path = "views.parquet"
from = "user"
to = "item"
src = "user"
dst = "item"
"#;

/// Every graph has a class.
const GRAPHS: &str = r#"name = "graphs"
seed = 7
workers = 2

[input.nodes]
path = "nodes.parquet"
id = "id"
features = ["features"]
graph = "graph"

[input.edges]
path = "edges.parquet"
src = "src"
dst = "dst"

[input.graphs]
path = "graphs.parquet"
id = "id"
label = "kind"
split = { train = 0.6, val = 0.2, test = 0.2 }

[flatten]
output = "out/features"
hops = 2
fanouts = ["all", "all"]

[train]
output = "out/0/model"
model = "sage"
hidden = [8, 8]
epochs = 20
batch_size = 8
learning_rate = 0.02
dropout = 0.0

[infer]
output = "out/0/embeddings"
logits = true
"#;

/// Nodes of the graph of [`LINKS`].
const NODES: usize = 120;
/// Purchases of the shop.
const BUYS: usize = 900;
/// Graphs of [`GRAPHS`], of ten nodes each.
const NUM_GRAPHS: usize = 24;

/// A Python with PyG.
pub(crate) fn python() -> Option<PathBuf> {
    let named = ["GRAPHFLAT_TEST_PYG", "GRAPHFLAT_TEST_PYTHON"].map(std::env::var_os);
    let works = |python: &PathBuf| {
        let mut run = Command::new(python);
        run.args(["-c", "import torch_geometric, safetensors, pyarrow"]);
        run.output().is_ok_and(|output| output.status.success())
    };
    let mut candidates = named.into_iter().flatten().map(PathBuf::from);
    candidates
        .find(works)
        .or_else(|| skip("no Python with torch_geometric (GRAPHFLAT_TEST_PYG names one)"))
}

/// Trains each model, infers, and compares the outputs with PyG's.
fn check(kind: &str, all: &[&str], label: Option<ArrayRef>) {
    let Some(python) = python() else {
        return;
    };
    let mut graph = Graph::new(120, IdKind::Utf8, FeatureKind::List).with_weights();
    // PyG's GCN keeps one of several parallel self-loops with weights; the GCN here sums them.
    let mut loops = Vec::new();
    graph.edges.retain(|&(src, dst)| {
        let is_other = src == dst && loops.contains(&src);
        loops.extend((src == dst).then_some(src));
        !is_other
    });
    let bench = Bench::empty();
    write(&bench, &graph, "");
    if let Some(label) = label {
        let mut nodes = graph.nodes();
        nodes.set("label", label);
        nodes.write(&bench.path("nodes.parquet"));
    }
    let mut checker = Command::new(&python);
    checker.arg(checkout().join("tests/pyg.py"));
    for table in ["nodes", "edges"] {
        let path = bench.path(&format!("{table}.parquet"));
        checker.arg(format!("--{table}")).arg(path);
    }
    for (at, keys) in all.iter().enumerate() {
        let stages = [FLATTEN, &train(at, keys), &infer(at, "now")];
        bench.run(&job(&graph, &stages, ""), &[]).ok();
        let of = |name: &str| bench.path(&format!("out/{at}/{name}"));
        checker
            .args(["--case", kind])
            .args([of("model"), of("now")]);
    }
    assert_right(&mut checker, all.len());
}

/// Runs tests/pyg.py, and checks that each of its cases is right.
fn assert_right(checker: &mut Command, num_cases: usize) {
    let outcome = Outcome::of(&checker.output().unwrap());
    assert_eq!(outcome.code, 0, "{outcome:#?} of {checker:?}");
    let right = outcome.stdout.lines().filter(|l| l.starts_with("ok:"));
    assert_eq!(right.count(), num_cases);
}

/// Runs jobs, and after each the code of docs/pyg.md: blocks of a section, as tests/pyg.py takes
/// them. The outputs of the code must be those of the job.
fn check_page(section: &str, cases: &[(&str, Job)]) {
    let Some(python) = python() else {
        return;
    };
    let mut checker = Command::new(&python);
    checker.arg(checkout().join("tests/pyg.py"));
    let mut benches = Vec::new();
    for (blocks, job) in cases {
        let bench = embeddings::bench();
        let all_edges = job.and("sampling = \"none\"\nlogits = true");
        bench.run(&all_edges, &[]).ok();
        checker.args(["--page", section]).arg(blocks);
        checker.arg(bench.path(""));
        benches.push(bench);
    }
    assert_right(&mut checker, cases.len());
}

/// Runs jobs with the same input, the one at a position with outputs in `out/POSITION` in place of
/// `out/0`, and compares the outputs with PyG's by tests/pyg_jobs.py.
fn check_jobs(bench: &Bench, kind: &str, jobs: &[Job]) {
    let Some(python) = python() else {
        return;
    };
    let mut checker = Command::new(&python);
    checker
        .arg(checkout().join("tests/pyg_jobs.py"))
        .args([bench.path("job.toml"), kind.into()]);
    for (at, job) in jobs.iter().enumerate() {
        let folder = format!("out/{at}");
        let job = Job(job.0.replace("out/0", &folder));
        bench.run(&job, &[]).ok();
        checker.arg(bench.path(&folder));
    }
    assert_right(&mut checker, jobs.len());
}

/// The job of links with another model.
fn with_model(job: &Job, conv: &str, decoder: &str) -> Job {
    job.with("model = \"sage\"", conv)
        .with("\"dot\"", &format!("\"{decoder}\""))
}

/// The jobs of links with every conv and every decoder.
fn with_every_model(job: &Job) -> Vec<Job> {
    let of_conv = |conv: &&str| DECODERS.map(|decoder| with_model(job, conv, decoder));
    CONVS.iter().flat_map(of_conv).collect()
}

/// The job of links whose inference has all in-edges.
fn with_all_in_edges(job: &Job) -> Job {
    job.with("[infer]\n", "[infer]\nsampling = \"none\"\n")
}

/// The split of the edges between two nodes, if these are a pair.
fn split(src: usize, dst: usize) -> Option<&'static str> {
    match mix(41, (src * NODES + dst) as u64) % 20 {
        0..7 => Some("train"),
        7..9 => Some("val"),
        9..12 => Some("test"),
        _ => None,
    }
}

/// The tables of [`LINKS`]: the reverse of a pair may have another split, or none.
fn link_tables() -> Bench {
    let graph = Graph::new(NODES, IdKind::Utf8, FeatureKind::List);
    let bench = Bench::new(&graph);
    let splits = graph.edges.iter().map(|&(src, dst)| split(src, dst));
    let mut edges = graph.edge_table();
    edges.set("split", Arc::new(splits.collect::<StringArray>()));
    edges.write(&bench.path("edges.parquet"));
    bench
}

/// The shop with splits of purchases, and views: half of these are views of a bought item.
fn shop_with_views() -> Bench {
    let bench = link_models::shop();
    let users = |of: &mut dyn Iterator<Item = usize>| -> ArrayRef {
        let names = of.map(|at| format!("u{}", buyer(at)));
        Arc::new(StringArray::from_iter_values(names))
    };
    let splits = (0..BUYS).map(|at| split(buyer(at), bought(at)));
    let buys: Vec<(&str, ArrayRef)> = vec![
        ("user", users(&mut (0..BUYS))),
        ("item", ints((0..BUYS).map(bought))),
        ("split", Arc::new(splits.collect::<StringArray>())),
    ];
    bench.write_table("buys.parquet", buys);
    let every_third = || (0..BUYS).step_by(3);
    let viewed = every_third().map(|at| (bought(at) + at % 2) % ITEMS);
    let views = vec![("user", users(&mut every_third())), ("item", ints(viewed))];
    bench.write_table("views.parquet", views);
    bench
}

/// The tables of [`GRAPHS`].
fn graph_tables() -> Bench {
    let mut graph = Graph::new(10 * NUM_GRAPHS, IdKind::Utf8, FeatureKind::List);
    let is_inside = |&(src, dst): &(usize, usize)| src % NUM_GRAPHS == dst % NUM_GRAPHS;
    graph.edges.retain(is_inside);
    let bench = Bench::new(&graph);
    let mut nodes = graph.nodes();
    let of_nodes = (0..graph.num_nodes).map(|node| node % NUM_GRAPHS);
    nodes.set("graph", ints(of_nodes));
    nodes.write(&bench.path("nodes.parquet"));
    let kinds = (0..NUM_GRAPHS).map(|at| format!("kind {}", at % 3));
    let kinds: ArrayRef = Arc::new(StringArray::from_iter_values(kinds));
    let columns = vec![("id", ints(0..NUM_GRAPHS)), ("kind", kinds)];
    bench.write_table("graphs.parquet", columns);
    bench
}

#[test]
fn models_load_into_whole_models_of_pyg() {
    check("whole", &WHOLE, None);
}

#[test]
fn other_models_load_as_stacks_of_convs_of_pyg() {
    check("stack", &STACK, None);
}

#[test]
fn a_regression_has_the_unit_of_its_labels_in_pyg() {
    let label = |node: u64| 1e7 + (mix(31, node) % 1000) as f64 * 1e3 + 0.25;
    let labels = Float64Array::from_iter_values((0..120).map(label));
    check("whole", &["model = \"sage\""], Some(Arc::new(labels)));
}

#[test]
fn models_with_node_types_load_into_convs_of_pyg() {
    let mut cases = Vec::new();
    for model in TYPED {
        let job = Job::of_text(JOB)
            .with("model = \"sage\"\nhidden = [8]", model)
            .with("[\"x\"]\n", "[\"x\"]\ntransform = \"standardize\"\n");
        // Authors have neither features nor rows.
        let without_rows = job.with("embedding = 4\n", "").with("embedding = 6\n", "");
        cases.extend([("0,1,2", job), ("0,2", without_rows)]);
    }
    check_page("Node types", &cases);
}

#[test]
fn learnable_rows_stand_behind_the_features_in_pyg() {
    let features = "features = [\"x\"]\ntransform = \"row_normalize\"\nembedding = 8\n";
    let job = Job::of_text(UNTYPED).with("embedding = 8\n", features);
    check_page("Learnable rows", &[("0", job)]);
}

#[test]
fn categories_times_and_gaps_are_encoded_in_pyg() {
    let columns = "features = [\"x\", \"venue\", \"day\", \"pages\", \"scores\"]\n";
    let mut cases = Vec::new();
    for transform in [
        "",
        "transform = \"standardize\"\n",
        "transform = \"row_normalize\"\n",
    ] {
        let keys = format!("{columns}{transform}");
        let job = Job::of_text(UNTYPED).with("embedding = 8\n", &keys);
        cases.push(("0", job));
    }
    check_page("Categories, times and gaps", &cases);
}

#[test]
fn links_have_the_embeddings_and_scores_of_pyg() {
    let job = with_all_in_edges(&Job::of_text(LINKS));
    check_jobs(&link_tables(), "links", &with_every_model(&job));
}

#[test]
fn links_have_those_of_pyg_if_train_pairs_carry_messages() {
    let job = with_all_in_edges(&Job::of_text(LINKS))
        .with("dst = \"dst\"\n", "dst = \"dst\"\nundirected = true\n")
        .with("exclude = \"all\"", "exclude = \"none\"");
    let models = CONVS.iter().zip(DECODERS.iter().cycle());
    let jobs: Vec<Job> = models
        .map(|(conv, decoder)| with_model(&job, conv, decoder))
        .collect();
    check_jobs(&link_tables(), "links", &jobs);
}

#[test]
fn sampled_links_have_the_embeddings_and_scores_of_pyg_on_their_parts() {
    let jobs = with_every_model(&Job::of_text(LINKS));
    check_jobs(&link_tables(), "parts", &jobs);
}

#[test]
fn links_between_types_have_the_embeddings_and_scores_of_pyg() {
    let share = "share = { train = 0.4, val = 0.1, test = 0.2 }";
    let listed = "pairs = { path = \"buys.parquet\", src = \"user\", dst = \"item\" }";
    let job = with_all_in_edges(&Job::of_text(link_models::TYPED))
        .with("[input.pairs]", &format!("{VIEWS}\n[input.pairs]"))
        .with(share, "split = \"split\"\nexclude = \"all\"")
        .with("[{ buys = 4, bought_by = 4 }, 4]", "[4, 3]")
        .with("out/model", "out/0/model")
        .with("\"mlp\"", "\"dot\"")
        .with("out/embeddings", "out/0/embeddings")
        .and(&format!("\n[score]\noutput = \"out/0/scores\"\n{listed}"));
    let jobs = [
        ("model = \"sage\"", "mlp"),
        ("model = \"gat\"\nheads = 2\nout_heads = 2", "distmult"),
        ("model = \"gatv2\"\nheads = 2\nresidual = true", "cosine"),
        ("model = \"rgcn\"\nbases = 2", "dot"),
        ("model = \"hgt\"\nheads = 2", "distmult"),
    ]
    .map(|(conv, decoder)| with_model(&job, conv, decoder));
    check_jobs(&shop_with_views(), "links", &jobs);
}

#[test]
fn models_of_graphs_have_the_predictions_of_pyg() {
    let job = Job::of_text(GRAPHS);
    let jobs = [
        "model = \"sage\"\nreadout = \"mean\"",
        "model = \"gin\"\nreadout = \"sum\"",
        "model = \"gat\"\nheads = 2\nreadout = \"max\"",
    ]
    .map(|keys| job.with("model = \"sage\"", keys));
    check_jobs(&graph_tables(), "graphs", &jobs);
}

#[test]
fn lightgcn_has_the_embeddings_of_pyg() {
    let Some(python) = python() else {
        return;
    };
    let bench = link_models::shop();
    bench.run(&Job::of_text(link_models::LIGHT), &[]).ok();
    let run = Command::new(&python)
        .args(["-c", COMPARE_LIGHT])
        .arg(checkout().join("docs/pyg.md"))
        .env("PYTHONPATH", checkout().join("docs"))
        .current_dir(bench.path(""))
        .output();
    let outcome = Outcome::of(&run.unwrap()).ok();
    let off: f64 = outcome.stdout.trim().parse().unwrap();
    assert!(off < 1e-5, "{off}");
}

/// Runs the code of the section on LightGCN, and prints the largest error of an embedding relative
/// to the largest number.
const COMPARE_LIGHT: &str = r#"
import glob, sys
text = open(sys.argv[1]).read().split("\n## LightGCN\n")[1].split("\n## ")[0]
exec(text.split("```python\n")[1].split("```")[0])
parts = {}
for kind, ids in (("user", users["name"]), ("item", items["id"])):
    found = sorted(glob.glob(f"out/embeddings/embeddings/{kind}/*.parquet"))
    rows = {}
    for path in found:
        table = pq.read_table(path).to_pydict()
        rows.update(zip(table["id"], table["embedding"]))
    parts[kind] = [rows[id] for id in ids.to_pylist()]
wanted = torch.tensor(parts["user"] + parts["item"])
print(((z - wanted).abs().max() / wanted.abs().max()).item())
"#;

#[test]
fn pyg_names_what_it_cannot_load() {
    let Some(python) = python() else {
        return;
    };
    // The splits are a category among the features.
    let drawn = "split = { train = 0.6, val = 0.2, test = 0.2 }";
    let job = Job::of_text(JOB)
        .with("split = \"split\"", drawn)
        .with("[\"x\"]", "[\"x\", \"split\"]")
        .with("\"sage\"", "\"simple_hgn\"");
    let bench = embeddings::bench();
    bench
        .run(&job, &["--stage", "flatten", "--stage", "train"])
        .ok();
    let calls = [
        ("load(model)", "PyG has no conv for simple_hgn"),
        ("load_whole(model)", "PyG's whole models have no node types"),
        (
            "transform(model, None, 'paper')",
            "transform() cannot encode the columns `split` (category); encode() can",
        ),
        (
            "transform(model, None, 'book')",
            "node_type is 'book'; the model has ['author', 'paper']",
        ),
        (
            "learnable_rows(model, [1])",
            "node_type is None; the model has learnable rows of ['author', 'paper']",
        ),
    ];
    let mut code = "import pyg\nmodel = 'out/model'\n".to_owned();
    for (call, _) in calls {
        code.push_str("try:\n    pyg.");
        code.push_str(call);
        code.push_str("\nexcept ValueError as error:\n    print(error)\n");
    }
    let run = Command::new(&python)
        .args(["-c", &code])
        .env("PYTHONPATH", checkout().join("docs"))
        .current_dir(bench.path(""))
        .output();
    let outcome = Outcome::of(&run.unwrap()).ok();
    let expected = calls.map(|(_, error)| error);
    let errors: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(errors, expected);
}
