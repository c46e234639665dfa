//! Graphs with node types and relations: inference by the real binary.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int64Array, StringArray};
use schemas::EmbeddingsDataset;
use serde_json::json;

use crate::harness::{Bench, Job, assert_same_bytes, f32_lists, mix};

/// Papers have integer ids and labels; authors have string ids and no features.
pub(crate) const JOB: &str = r#"name = "typed"
seed = 7
workers = 2

[input.nodes.paper]
path = "papers.parquet"
id = "id"
features = ["x"]
label = "label"
split = { train = 0.6, val = 0.2, test = 0.2 }

[input.nodes.author]
path = "authors.parquet"
id = "name"

[input.edges.writes]
path = "writes.parquet"
from = "author"
to = "paper"
src = "author"
dst = "paper"
reverse = "written_by"

[input.edges.cites]
path = "cites.parquet"
from = "paper"
to = "paper"
src = "src"
dst = "dst"

[flatten]
output = "out/features"
hops = 2
fanouts = [{ writes = 3, cites = 2 }, 4]
targets = "all"

[train]
output = "out/model"
model = "rgcn"
hidden = [8]
epochs = 3
batch_size = 16

[infer]
output = "out/embeddings"
types = "all"
"#;

const PAPERS: usize = 90;
const AUTHORS: usize = 40;

fn draw(of: u64, at: usize, bound: usize) -> usize {
    usize::try_from(mix(of, at as u64) % bound as u64).unwrap()
}

pub(crate) fn bench() -> Bench {
    bench_of(AUTHORS, 0)
}

/// The paper that gets more in-edges.
const HUB: i64 = 3;

/// A graph with `num_authors` authors, and so many more in-edges of one paper, in `writes` and in
/// `cites`.
pub(crate) fn bench_of(num_authors: usize, more: usize) -> Bench {
    let bench = Bench::empty();
    let ints = |of: u64, count: usize, bound: usize| -> ArrayRef {
        let drawn = (0..count).map(|at| i64::try_from(draw(of, at, bound)).unwrap());
        Arc::new(Int64Array::from_iter_values(drawn))
    };
    // As `ints`, and the hub `more` times behind.
    let dsts = |of: u64, count: usize| -> ArrayRef {
        let drawn = (0..count).map(|at| i64::try_from(draw(of, at, PAPERS)).unwrap());
        Arc::new(Int64Array::from_iter_values(
            drawn.chain(std::iter::repeat_n(HUB, more)),
        ))
    };
    let ids = (0..PAPERS).map(|at| i64::try_from(at).unwrap());
    let rows = (0..PAPERS).map(|at| vec![at as f32 / 90.0, draw(1, at, 9) as f32]);
    let papers: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(ids))),
        ("x", f32_lists(rows)),
        ("label", ints(2, PAPERS, 3)),
    ];
    bench.write_table("papers.parquet", papers);
    // One author has the id of a paper.
    let name = |author: usize| match author {
        8 => "8".to_owned(),
        _ => format!("a{author}"),
    };
    let names = StringArray::from_iter_values((0..num_authors).map(name));
    bench.write_table("authors.parquet", vec![("name", Arc::new(names))]);
    let authors = (0..200 + more).map(|at| name(draw(3, at, num_authors)));
    let authors = Arc::new(StringArray::from_iter_values(authors));
    bench.write_table(
        "writes.parquet",
        vec![("author", authors), ("paper", dsts(4, 200))],
    );
    let weights = (0..150 + more).map(|at| 0.5 + draw(7, at, 8) as f32);
    let cites = vec![
        ("src", ints(5, 150 + more, PAPERS)),
        ("dst", dsts(6, 150)),
        ("weight", Arc::new(Float32Array::from_iter_values(weights))),
    ];
    bench.write_table("cites.parquet", cites);
    bench
}

#[test]
fn a_job_writes_the_embeddings_of_each_type() {
    let bench = bench();
    let job = Job(JOB.to_owned());
    bench.run(&job, &[]).ok();
    let manifest = bench.manifest("out/embeddings");
    assert_eq!(manifest["plan"]["types"], json!(["author", "paper"]));
    let dataset = EmbeddingsDataset::open(&bench.path("out/embeddings")).unwrap();
    let rows = |name: &str| dataset.read_part(dataset.parts_of(name)[0]).unwrap();
    assert_eq!(
        (rows("author").ids.len(), rows("paper").ids.len()),
        (AUTHORS, PAPERS)
    );
    assert_eq!((rows("author").dim, rows("paper").dim), (8, 8));
    let shown = bench
        .graphflat(&["inspect", "out/embeddings", "--target", "a7"])
        .ok();
    assert!(shown.stdout.contains("author a7: "), "{}", shown.stdout);
    let of_both = ["inspect", "out/embeddings", "--target", "8"];
    let both = bench.graphflat(&of_both).ok().stdout;
    for line in ["\nauthor 8: ", "\npaper 8: "] {
        assert!(both.contains(line), "{both}");
    }
    let whole = bench.data_files("out/embeddings");
    // A finished job is skipped; other workers and another run write the same bytes.
    let again = bench.run(&job, &[]).ok();
    assert_eq!(
        bench.data_files("out/embeddings"),
        whole,
        "{}",
        again.stderr
    );
    bench.run(&job, &["--workers", "3", "--fresh"]).ok();
    let others = bench.data_files("out/embeddings");
    assert_same_bytes(&others, &whole, "3 workers");
    // The target type alone replaces both: no folder of the other type is left.
    let alone = job.with("types = \"all\"\n", "");
    bench.run(&alone, &["--stage", "infer", "--fresh"]).ok();
    assert!(!bench.path("out/embeddings/embeddings/author").exists());
    // From graph features.
    let near = job.with("types = \"all\"\n", "method = \"neighborhoods\"\n");
    bench.run(&near, &["--stage", "infer", "--fresh"]).ok();
    let near_dataset = EmbeddingsDataset::open(&bench.path("out/embeddings")).unwrap();
    assert_eq!(near_dataset.type_of_part(0), "paper");
}

#[test]
fn what_does_not_fit_is_refused_before_any_work() {
    let bench = bench();
    let job = Job(JOB.to_owned());
    let refused = |changed: &Job, args: &[&str], expected: &str| {
        let outcome = bench.run(changed, args);
        assert_eq!(outcome.code, 2, "{outcome:#?}");
        assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
    };
    let unknown = job.with("types = \"all\"", "types = [\"book\"]");
    let allowed = "there is no node type `book`; allowed are author, paper";
    refused(&unknown, &[], allowed);
    assert!(!bench.path("out").exists(), "nothing is written");
    bench.run(&job, &[]).ok();
    // The model on a graph with another relation, and with another column.
    let elsewhere = job
        .with("[infer]\n", "[infer]\nmodel = \"out/model\"\n")
        .with("out/embeddings", "out/other");
    let (before, rest) = elsewhere.0.split_once("[flatten]").unwrap();
    let infer = &rest[rest.find("[infer]").unwrap()..];
    let target = "label = \"label\"\n";
    let alone = Job(format!("{before}{infer}"));
    assert!(alone.0.contains(target));
    bench.run(&alone, &[]).ok();
    // Tables without labels: the model knows the target type.
    let labels = "label = \"label\"\nsplit = { train = 0.6, val = 0.2, test = 0.2 }\n";
    let unlabelled = alone.with(labels, "").with("out/other", "out/third");
    bench.run(&unlabelled, &[]).ok();
    let files = ["out/other", "out/third"].map(|output| bench.data_files(output));
    assert_same_bytes(&files[0], &files[1], "without labels");
    let renamed = alone.with("edges.cites]", "edges.quotes]");
    refused(
        &renamed,
        &[],
        "it was trained on relation `cites`, which the graph lacks",
    );
    let swapped = alone.with(
        "src = \"src\"\ndst = \"dst\"",
        "src = \"dst\"\ndst = \"src\"",
    );
    refused(
        &swapped,
        &[],
        "`input.edges.cites.src` is \"dst\", the model was trained with \"src\"",
    );
}
