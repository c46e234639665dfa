//! Learnable rows of nodes: trained, exported and read by inference, by the real binary.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Date32Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::Float32Type;
use schemas::{EmbeddingRows, EmbeddingsDataset, Labels};

use crate::harness::{Bench, Job, Table, assert_same_bytes, f32_lists, mix};

/// Papers have features and learnable rows, authors have rows alone.
pub(crate) const JOB: &str = r#"name = "embeddings"
seed = 7
workers = 2

[input.nodes.paper]
path = "papers.parquet"
id = "id"
features = ["x"]
embedding = 4
label = "label"
split = "split"

[input.nodes.author]
path = "authors.parquet"
id = "name"
embedding = 6

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
model = "sage"
hidden = [8]
epochs = 12
batch_size = 16
learning_rate = 0.03

[infer]
output = "out/embeddings"
"#;

/// The graph of papers alone, without features.
pub(crate) const UNTYPED: &str = r#"name = "embeddings"
seed = 7
workers = 2

[input.nodes]
path = "papers.parquet"
id = "id"
embedding = 8
label = "label"
split = "split"

[input.edges]
path = "cites.parquet"
src = "src"
dst = "dst"
undirected = true

[flatten]
output = "out/features"
hops = 2
fanouts = [4, 3]
targets = "all"

[train]
output = "out/model"
model = "sage"
hidden = [8]
epochs = 12
batch_size = 16
learning_rate = 0.03

[infer]
output = "out/embeddings"
"#;

const PAPERS: usize = 150;
const AUTHORS: usize = 200;

/// Largest difference between the two ways of inference: sums of f32 in another order.
const TOLERANCE: f32 = 1e-5;

fn draw(of: u64, at: usize, bound: usize) -> usize {
    usize::try_from(mix(of, at as u64) % bound as u64).unwrap()
}

fn label(paper: usize) -> usize {
    draw(2, paper, 3)
}

fn split(paper: usize) -> &'static str {
    ["train", "train", "val", "test"][paper % 4]
}

pub(crate) fn bench() -> Bench {
    let bench = Bench::empty();
    let ints = |values: &mut dyn Iterator<Item = usize>| -> ArrayRef {
        let values = values.map(|value| i64::try_from(value).unwrap());
        Arc::new(Int64Array::from_iter_values(values))
    };
    let rows = (0..PAPERS).map(|at| vec![at as f32 / 90.0, label(at) as f32]);
    let splits = StringArray::from_iter_values((0..PAPERS).map(split));
    let titles = (0..PAPERS).map(|paper| format!("title {paper}"));
    // Columns of which every seventh, fifth or third value is missing.
    let venues = (0..PAPERS).map(|at| (at % 7 > 0).then(|| format!("v{}", label(at) + at % 4)));
    let days = (0..PAPERS).map(|at| (at % 5 > 0).then(|| i32::try_from(9000 + 31 * at).unwrap()));
    let pages = (0..PAPERS).map(|at| (at % 3 > 0).then(|| i64::try_from(at % 20).unwrap()));
    let scores = (0..PAPERS).map(|at| {
        let gap = (at % 9 > 0).then_some(at as f32 / 30.0);
        (at % 7 > 0).then(|| vec![Some(label(at) as f32), gap])
    });
    let scores: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(scores));
    let papers: Vec<(&str, ArrayRef)> = vec![
        ("id", ints(&mut (0..PAPERS))),
        ("x", f32_lists(rows)),
        ("label", ints(&mut (0..PAPERS).map(label))),
        ("split", Arc::new(splits)),
        ("title", Arc::new(StringArray::from_iter_values(titles))),
        ("venue", Arc::new(venues.collect::<StringArray>())),
        ("day", Arc::new(days.collect::<Date32Array>())),
        ("pages", Arc::new(pages.collect::<Int64Array>())),
        ("scores", scores),
    ];
    bench.write_table("papers.parquet", papers);
    let name = |author: usize| format!("a{author}");
    let names = StringArray::from_iter_values((0..AUTHORS).map(name));
    let forms = StringArray::from_iter_values((0..AUTHORS).map(|at| format!("title {at}")));
    let people: Vec<(&str, ArrayRef)> = vec![("name", Arc::new(names)), ("title", Arc::new(forms))];
    bench.write_table("authors.parquet", people);
    let authors = (0..300).map(|at| name(draw(3, at, AUTHORS)));
    let authors: ArrayRef = Arc::new(StringArray::from_iter_values(authors));
    let drawn = |of: u64| ints(&mut (0..300).map(|at| draw(of, at, PAPERS)));
    bench.write_table(
        "writes.parquet",
        vec![("author", authors), ("paper", drawn(4))],
    );
    bench.write_table("cites.parquet", vec![("src", drawn(5)), ("dst", drawn(6))]);
    bench
}

/// Reads the rows of papers, in the order of ids.
fn papers(bench: &Bench) -> EmbeddingRows {
    let dataset = EmbeddingsDataset::open(&bench.path("out/embeddings")).unwrap();
    let name = if dataset.type_of_part(0).is_empty() {
        ""
    } else {
        "paper"
    };
    let parts = dataset.parts_of(name);
    let parts = parts
        .into_iter()
        .map(|part| dataset.read_part(part).unwrap());
    parts
        .reduce(|mut all, part| {
            all.ids.extend_from(&part.ids, 0..part.ids.len());
            all.embedding.extend(part.embedding);
            all.prediction.extend(&part.prediction);
            all
        })
        .unwrap()
}

/// Returns the share of right predictions in each split.
fn accuracy(rows: &EmbeddingRows) -> BTreeMap<&'static str, f64> {
    let Labels::Class(classes) = &rows.prediction else {
        panic!("papers have classes");
    };
    let mut counts: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (at, &class) in classes.iter().enumerate() {
        let paper: usize = rows.ids.display(at).parse().unwrap();
        let (right, all) = counts.entry(split(paper)).or_default();
        *right += f64::from(u8::from(class as usize == label(paper)));
        *all += 1.0;
    }
    counts
        .into_iter()
        .map(|(name, (right, all))| (name, right / all))
        .collect()
}

/// Checks that training and both ways of inference agree on every node, trained or not.
fn check(job: &Job, tables: &[(&str, usize)]) {
    let bench = bench();
    bench.run(job, &[]).ok();
    let model = |file: &str| std::fs::read(bench.path(&format!("out/model/{file}"))).unwrap();
    let described: serde_json::Value = serde_json::from_slice(&model("model.json")).unwrap();
    for (name, most) in tables {
        let table = &described["extra"]["embeddings"][name];
        let rows = table["rows"].as_u64().unwrap();
        assert!(
            0 < rows && rows < *most as u64,
            "{name}: some of {most} have a row: {table}"
        );
        assert!(!model(table["file"].as_str().unwrap()).is_empty());
    }
    let rows = papers(&bench);
    assert_eq!(rows.ids.len(), PAPERS);
    let evaluation: serde_json::Value = serde_json::from_slice(&model("evaluation.json")).unwrap();
    for (split, got) in accuracy(&rows) {
        let trained = evaluation["splits"][split]["metrics"]["accuracy"]
            .as_f64()
            .unwrap();
        assert!((got - trained).abs() < 1e-9, "{split}: {got} {trained}");
    }
    let whole = bench.data_files("out/embeddings");
    bench
        .run(job, &["--workers", "3", "--fresh", "--stage", "infer"])
        .ok();
    assert_same_bytes(&bench.data_files("out/embeddings"), &whole, "3 workers");
    let near = job.with(
        "out/embeddings\"\n",
        "out/embeddings\"\nmethod = \"neighborhoods\"\n",
    );
    bench.run(&near, &["--stage", "infer", "--fresh"]).ok();
    let others = papers(&bench);
    let order = others.ids.sort_permutation();
    let scale = rows
        .embedding
        .iter()
        .fold(1e-3_f32, |most, x| most.max(x.abs()));
    for (at, other) in order.into_iter().enumerate() {
        let other = other as usize * rows.dim;
        for column in 0..rows.dim {
            let (a, b) = (
                rows.embedding[at * rows.dim + column],
                others.embedding[other + column],
            );
            assert!(
                (a - b).abs() <= TOLERANCE * scale,
                "{}: {a} {b}",
                rows.ids.display(at)
            );
        }
    }
}

#[test]
fn training_and_both_ways_of_inference_agree_on_a_typed_graph() {
    check(
        &Job(JOB.to_owned()),
        &[("author", AUTHORS), ("paper", PAPERS)],
    );
}

#[test]
fn training_and_both_ways_of_inference_agree_on_an_untyped_graph() {
    check(&Job(UNTYPED.to_owned()), &[("", PAPERS)]);
}

#[test]
fn streamed_training_gives_the_rows_of_stored_graph_features() {
    let bench = bench();
    for text in [JOB, UNTYPED] {
        let stored = Job(text.replace("epochs = 12", "epochs = 1"));
        let streamed = stored.with("output = \"out/features\"\n", "");
        let streamed = streamed.with("[train]\n", "[train]\nstreamed = true\n");
        let run = |job: &Job, args: &[&str]| {
            bench.clear();
            bench.run(job, args).ok();
            ["out/model", "out/embeddings"].map(|output| bench.data_files(output))
        };
        let expected = run(&stored, &[]);
        assert!(expected[0].keys().any(|name| name.contains("embeddings")));
        for workers in ["1", "3"] {
            let got = run(&streamed, &["--workers", workers]);
            assert_same_bytes(&expected[0], &got[0], "the model");
            assert_same_bytes(&expected[1], &got[1], "the embeddings");
        }
    }
}

#[test]
fn check_shows_learnable_rows_and_refuses_what_does_not_fit() {
    let bench = bench();
    let job = Job(JOB.to_owned());
    bench.write(&job);
    let shown = bench.graphflat(&["check", "job.toml"]).ok();
    let line = format!("author: {AUTHORS}, 0 features, a learnable row of 6");
    assert!(shown.stdout.contains(&line), "{}", shown.stdout);
    // Names of the target type would be useless; those of other types are like learnable rows.
    let useless = "most of them belong to one node only";
    for (key, is_useless) in [("embedding = 6", false), ("features = [\"x\"]", true)] {
        let named = job.with(key, "features = [\"title\"]");
        bench.write(&named);
        let said = bench.graphflat(&["check", "job.toml"]).ok().stdout;
        assert!(said.contains("a learnable code each"), "{said}");
        assert_eq!(said.contains(useless), is_useless, "{said}");
    }
    let refused = |changed: &Job, expected: &str| {
        let outcome = bench.run(changed, &[]);
        assert_ne!(outcome.code, 0, "{expected}");
        assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
        assert!(!bench.path("out").exists(), "nothing is written");
    };
    for width in ["0", "4097"] {
        refused(
            &job.with("embedding = 6", &format!("embedding = {width}")),
            &format!("`input.nodes.author.embedding`: is {width}; allowed is 1 to 4096"),
        );
    }
    bench
        .run(&job, &["--stage", "flatten", "--stage", "train"])
        .ok();
    let brought = |text: &str| {
        let (before, rest) = text.split_once("[flatten]").unwrap();
        let infer = &rest[rest.find("[infer]").unwrap()..];
        let infer = infer.replace("[infer]\n", "[infer]\nmodel = \"out/model\"\n");
        Job(format!("{before}{infer}"))
    };
    for (change, expected) in [
        (
            ("embedding = 6", "embedding = 5"),
            "`input.nodes.author.embedding` is 5, the model has learnable rows of 6 numbers there",
        ),
        (
            ("features = [\"x\"]", "features = [\"x\", \"title\"]"),
            "it reads 2 features a node, `input.nodes.paper.features` have 3",
        ),
    ] {
        let changed = JOB.replacen(change.0, change.1, 1);
        let outcome = bench.run(&brought(&changed), &[]);
        assert_eq!(outcome.code, 2, "{outcome:?}");
        assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
    }
    // The same papers, and authors with numbers for names.
    let ids = Int64Array::from_iter_values((0..AUTHORS as i64).collect::<Vec<_>>());
    let mut authors = Table::default();
    authors.set("name", Arc::new(ids));
    authors.write(&bench.path("authors.parquet"));
    let ends = (0..300).map(|at| i64::try_from(draw(3, at, AUTHORS)).unwrap());
    let papers = (0..300).map(|at| i64::try_from(draw(4, at, PAPERS)).unwrap());
    let mut writes = Table::default();
    writes.set("author", Arc::new(Int64Array::from_iter_values(ends)));
    writes.set("paper", Arc::new(Int64Array::from_iter_values(papers)));
    writes.write(&bench.path("writes.parquet"));
    let outcome = bench.run(&brought(JOB), &[]);
    let expected = "its learnable rows are of nodes of type `author` whose ids are";
    assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
}
