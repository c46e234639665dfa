//! Names of types and relations, the order of their tables in the job file, and a type split in
//! two: none of these changes an embedding.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int64Array, StringArray};
use schemas::EmbeddingsDataset;
use serde_json::{Value, json};

use crate::harness::{Bench, Job, assert_same_bytes, f32_lists, mix};

/// Authors are read by papers and read papers; readers read papers only, so no relation leads from
/// them. No name is part of another or of a tensor's name.
const JOB: &str = r#"name = "names"
seed = 7
workers = 2

[input.nodes.author]
path = "people.parquet"
id = "name"
features = ["age"]
embedding = 3

[input.nodes.paper]
path = "papers.parquet"
id = "id"
features = ["x"]
label = "label"
split = { train = 0.6, val = 0.2, test = 0.2 }

[input.nodes.reader]
path = "people.parquet"
id = "name"
features = ["age"]

[input.edges.cites]
path = "cites.parquet"
from = "paper"
to = "paper"
src = "src"
dst = "dst"

[input.edges.reads]
path = "person_work.parquet"
from = "paper"
to = "reader"
src = "work"
dst = "person"

[input.edges.writes]
path = "person_work.parquet"
from = "author"
to = "paper"
src = "person"
dst = "work"

[input.edges.writtenby]
path = "person_work.parquet"
from = "paper"
to = "author"
src = "work"
dst = "person"

[flatten]
output = "out/features"
hops = 2
fanouts = ["all", "all"]

[train]
output = "out/model"
model = "sage"
hidden = [8]
activation = "elu"
epochs = 2
batch_size = 16

[infer]
output = "out/embeddings"
types = "all"
layer = 2
"#;

/// Models whose layers aggregate each relation on its own.
const BY_RELATION: [&str; 5] = [
    "model = \"sage\"",
    "model = \"gat\"\nheads = 2\nrelation_aggregator = \"mean\"",
    "model = \"gin\"",
    "model = \"rgcn\"",
    "model = \"rgcn\"\nbases = 2",
];
/// Models whose layers take one softmax over the in-edges of all relations.
const OVER_ALL: [&str; 2] = [
    "model = \"hgt\"\nheads = 2",
    "model = \"simple_hgn\"\nheads = 2\nrelation_dim = 4\nresidual = true",
];

/// Largest difference of a number, relative to the largest of its row or to [`SMALL`]: sums of some
/// dozen f32 in another order.
const TOLERANCE: f32 = 1e-5;
const SMALL: f32 = 0.1;

const PAPERS: usize = 80;
const PEOPLE: usize = 50;

fn draw(of: u64, at: usize, bound: usize) -> usize {
    usize::try_from(mix(of, at as u64) % bound as u64).unwrap()
}

fn half(person: usize) -> &'static str {
    ["one", "two"][draw(1, person, 2)]
}

fn bench() -> Bench {
    let bench = Bench::empty();
    let ints = |values: &mut dyn Iterator<Item = usize>| -> ArrayRef {
        let values = values.map(|value| i64::try_from(value).unwrap());
        Arc::new(Int64Array::from_iter_values(values))
    };
    let halves = |people: &mut dyn Iterator<Item = usize>| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(people.map(half)))
    };
    let names = |people: &mut dyn Iterator<Item = usize>| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(
            people.map(|at| format!("p{at}")),
        ))
    };
    let rows = (0..PAPERS).map(|at| vec![at as f32 / 80.0, draw(2, at, 9) as f32 / 9.0]);
    let papers = vec![
        ("id", ints(&mut (0..PAPERS))),
        ("x", f32_lists(rows)),
        ("label", ints(&mut (0..PAPERS).map(|at| draw(3, at, 3)))),
    ];
    bench.write_table("papers.parquet", papers);
    let ages = (0..PEOPLE).map(|at| draw(4, at, 60) as f32 / 60.0);
    let people: Vec<(&str, ArrayRef)> = vec![
        ("name", names(&mut (0..PEOPLE))),
        ("age", Arc::new(Float32Array::from_iter_values(ages))),
        ("half", halves(&mut (0..PEOPLE))),
    ];
    bench.write_table("people.parquet", people);
    let person = |at: usize| draw(5, at, PEOPLE);
    let work = vec![
        ("person", names(&mut (0..250).map(person))),
        ("work", ints(&mut (0..250).map(|at| draw(6, at, PAPERS)))),
        ("half", halves(&mut (0..250).map(person))),
    ];
    bench.write_table("person_work.parquet", work);
    let cites = vec![
        ("src", ints(&mut (0..150).map(|at| draw(7, at, PAPERS)))),
        ("dst", ints(&mut (0..150).map(|at| draw(8, at, PAPERS)))),
    ];
    bench.write_table("cites.parquet", cites);
    bench
}

/// Old names of types and relations by their new names.
type OldNames = BTreeMap<String, String>;

/// Replaces each word of a text that is a new name by the old one.
fn to_old(text: &str, names: &OldNames) -> String {
    let mut words: Vec<String> = vec![String::new()];
    for letter in text.chars() {
        if letter.is_alphanumeric() {
            words.last_mut().unwrap().push(letter);
        } else {
            words.extend([letter.to_string(), String::new()]);
        }
    }
    let old = |word: String| names.get(&word).cloned().unwrap_or(word);
    words.into_iter().map(old).collect()
}

/// The job with types and relations renamed.
fn renamed(job: &Job, names: &OldNames) -> Job {
    let mut text = job.0.clone();
    for (new, old) in names {
        for kind in ["nodes", "edges"] {
            let table = |name: &str| format!("[input.{kind}.{name}]");
            text = text.replace(&table(old), &table(new));
        }
        for end in ["from", "to"] {
            let key = |name: &str| format!("\n{end} = \"{name}\"\n");
            text = text.replace(&key(old), &key(new));
        }
    }
    Job(text)
}

/// The job with a type split in two, and so all its relations.
fn split(job: &Job, of_type: &str) -> (Job, OldNames) {
    let (mut blocks, mut names) = (Vec::new(), OldNames::new());
    for block in job.0.split("\n\n") {
        let header = block.lines().next().unwrap();
        let is_type = header == format!("[input.nodes.{of_type}]");
        let joins = ["from", "to"].map(|end| format!("\n{end} = \"{of_type}\"\n"));
        if !is_type && !joins.iter().any(|join| block.contains(join)) {
            blocks.push(block.to_owned());
            continue;
        }
        let name = header.trim_end_matches(']').rsplit_once('.').unwrap().1;
        for half in ["one", "two"] {
            let new = |old: &str| (format!("{old}{half}"), old.to_owned());
            names.extend([new(name), new(of_type)]);
            let only = OldNames::from([new(name), new(of_type)]);
            let block = renamed(&Job(format!("{block}\n")), &only).0;
            blocks.push(format!("{block}where = {{ half = \"{half}\" }}"));
        }
    }
    (Job(blocks.join("\n\n")), names)
}

/// A tensor of `model.safetensors`: its shape, and its rows along the first dimension.
type Tensor = (Vec<usize>, Vec<Vec<u8>>);

fn read_tensors(model: &Path) -> BTreeMap<String, Tensor> {
    let bytes = fs::read(model.join("model.safetensors")).unwrap();
    let (length, rest) = bytes.split_at(8);
    let length = usize::try_from(u64::from_le_bytes(length.try_into().unwrap())).unwrap();
    let (header, data) = rest.split_at(length);
    let header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
    let tensors = header
        .into_iter()
        .filter(|(name, _)| name != "__metadata__");
    let read = |(name, of): (String, Value)| {
        let numbers =
            |key: &str| -> Vec<usize> { serde_json::from_value(of[key].clone()).unwrap() };
        let (shape, ends) = (numbers("shape"), numbers("data_offsets"));
        let of_tensor = &data[ends[0]..ends[1]];
        let rows = of_tensor.chunks(of_tensor.len() / shape[0]);
        (name, (shape.clone(), rows.map(<[u8]>::to_vec).collect()))
    };
    tensors.map(read).collect()
}

fn write_tensors(model: &Path, tensors: &BTreeMap<String, Tensor>) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (shape, rows)) in tensors {
        let start = data.len();
        data.extend(rows.iter().flatten());
        let of = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
        header.insert(name.clone(), of);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let length = u64::try_from(header.len()).unwrap().to_le_bytes();
    let bytes = [&length[..], &header, &data].concat();
    fs::write(model.join("model.safetensors"), bytes).unwrap();
}

fn describe(model: &Path) -> Value {
    serde_json::from_slice(&fs::read(model.join("model.json")).unwrap()).unwrap()
}

/// Names of the relations, in the order of a model's tensors.
fn relations(described: &Value) -> Vec<String> {
    let all = described["architecture"]["relations"].as_array().unwrap();
    let name = |of: &Value| of["name"].as_str().unwrap().to_owned();
    all.iter().map(name).collect()
}

/// Gives the model `to` the weights and the learnable rows of `from`, whose names are the old ones.
fn carry_over(from: &Path, to: &Path, names: &OldNames) {
    let (old, mut described) = (describe(from), describe(to));
    let (relations_from, relations_to) = (relations(&old), relations(&described));
    let position = |new: &String| {
        let name = names.get(new).unwrap_or(new);
        relations_from.iter().position(|of| of == name).unwrap()
    };
    let weights = read_tensors(from);
    let mut tensors = read_tensors(to);
    for (name, (shape, rows)) in &mut tensors {
        let (old_shape, old_rows) = &weights[&to_old(name, names)];
        let stacks = ["edge_emb.weight", "k_rel.weight", "v_rel.weight", ".comp"];
        let has_bases = !described["architecture"]["num_bases"].is_null();
        let is_rgcn = name.split('.').count() == 3 && name.ends_with(".weight") && !has_bases;
        let of_convs = name.starts_with("convs.");
        if of_convs && (is_rgcn || stacks.iter().any(|end| name.ends_with(end))) {
            // Rows of all relations for each head; the last one of `edge_emb` is of self-loops.
            let (num_from, num_to) = (relations_from.len(), relations_to.len());
            let heads = rows.len() / num_to;
            let of_head = |head: usize| {
                let of_relation = move |new: &String| head * num_from + position(new);
                relations_to.iter().map(of_relation)
            };
            let order = (0..heads).flat_map(of_head);
            let order = order.chain(heads * num_from..old_rows.len());
            *rows = order.map(|at| old_rows[at].clone()).collect();
            assert_eq!(rows.len(), shape[0], "{name}");
        } else {
            assert_eq!(shape, old_shape, "{name}");
            rows.clone_from(old_rows);
        }
    }
    write_tensors(to, &tensors);
    let tables = described["extra"]["embeddings"].as_object_mut();
    for (name, table) in tables.into_iter().flatten() {
        let file = table["file"].take();
        let old_name = names.get(name).unwrap_or(name);
        *table = old["extra"]["embeddings"][old_name].clone();
        let of_old = from.join(table["file"].as_str().unwrap());
        fs::copy(of_old, to.join(file.as_str().unwrap())).unwrap();
        table["file"] = file;
    }
    fs::write(to.join("model.json"), described.to_string()).unwrap();
    // The manifest has the checksums of other weights.
    for name in ["_manifest.json", "_SUCCESS"] {
        fs::remove_file(to.join(name)).unwrap();
    }
}

type Rows = BTreeMap<(String, String), Vec<f32>>;

/// Reads the rows of all types by old type name and id.
fn read_rows(bench: &Bench, names: &OldNames) -> Rows {
    let dataset = EmbeddingsDataset::open(&bench.path("out/embeddings")).unwrap();
    let mut rows = Rows::new();
    for part in 0..dataset.num_parts() {
        let of_part = dataset.read_part(part).unwrap();
        let of_type = to_old(dataset.type_of_part(part), names);
        for (at, row) in of_part.embedding.chunks(of_part.dim).enumerate() {
            let node = (of_type.clone(), of_part.ids.display(at).to_string());
            assert!(rows.insert(node, row.to_vec()).is_none());
        }
    }
    rows
}

/// Largest difference of a number of two outputs, relative to the largest of its row.
fn difference(found: &Rows, expected: &Rows) -> f32 {
    assert!(found.keys().eq(expected.keys()), "the same nodes");
    let off = found.iter().zip(expected).map(|((_, row), (_, wanted))| {
        let scale = wanted.iter().fold(SMALL, |most, x| most.max(x.abs()));
        let off = row.iter().zip(wanted).map(|(a, b)| (a - b).abs());
        off.fold(0.0, f32::max) / scale
    });
    off.fold(0.0, f32::max)
}

/// Trains a model of the job; infers with its weights on the job with other names.
fn infer_both(job: &Job, other: &Job, names: &OldNames) -> [Rows; 2] {
    let bench = bench();
    bench.run(job, &[]).ok();
    let expected = read_rows(&bench, &OldNames::new());
    assert_eq!(expected.len(), PAPERS + 2 * PEOPLE);
    fs::rename(bench.path("out/model"), bench.path("before")).unwrap();
    bench.clear();
    let stages = ["--stage", "flatten", "--stage", "train"];
    bench.run(other, &stages).ok();
    fs::rename(bench.path("out/model"), bench.path("after")).unwrap();
    carry_over(&bench.path("before"), &bench.path("after"), names);
    let (input, _) = other.0.split_once("[flatten]").unwrap();
    let (_, infer) = other.0.split_once("[infer]").unwrap();
    let alone = Job(format!("{input}[infer]\nmodel = \"after\"{infer}"));
    bench.run(&alone, &["--fresh"]).ok();
    [read_rows(&bench, names), expected]
}

fn names(pairs: &[(&str, &str)]) -> OldNames {
    let owned = |(new, old): &(&str, &str)| ((*new).to_owned(), (*old).to_owned());
    pairs.iter().map(owned).collect()
}

#[test]
fn the_order_of_tables_changes_no_byte() {
    let sampled = "fanouts = [{ writes = 2, cites = 3 }, 2]";
    for model in ["model = \"sage\"", OVER_ALL[0]] {
        let job = Job::of_text(JOB)
            .with("model = \"sage\"", model)
            .with("fanouts = [\"all\", \"all\"]", sampled);
        let mut blocks: Vec<&str> = job.0.split("\n\n").collect();
        let (first, inputs) = (blocks.remove(0), blocks.len() - 3);
        blocks[..inputs].reverse();
        blocks.insert(0, first);
        let reversed = Job(blocks.join("\n\n"));
        let outputs = [&job, &reversed].map(|job| {
            let bench = bench();
            bench.run(job, &[]).ok();
            ["out/features", "out/model", "out/embeddings"].map(|output| bench.data_files(output))
        });
        for (at, output) in outputs[0].iter().enumerate() {
            assert_same_bytes(output, &outputs[1][at], model);
        }
    }
}

#[test]
fn other_names_of_types_change_no_row() {
    // Their order is reversed.
    let types = names(&[("zoe", "author"), ("moe", "paper"), ("ann", "reader")]);
    for model in BY_RELATION.into_iter().chain(OVER_ALL) {
        let job = Job::of_text(JOB).with("model = \"sage\"", model);
        let [found, expected] = infer_both(&job, &renamed(&job, &types), &types);
        assert_eq!(found, expected, "{model}");
    }
}

/// Names of relations decide the order of sums.
#[test]
fn other_names_of_relations_change_rows_by_rounding_only() {
    let relations = names(&[
        ("zet", "cites"),
        ("yes", "reads"),
        ("kit", "writes"),
        ("bid", "writtenby"),
    ]);
    for model in BY_RELATION.into_iter().chain(OVER_ALL) {
        let job = Job::of_text(JOB).with("model = \"sage\"", model);
        let [found, expected] = infer_both(&job, &renamed(&job, &relations), &relations);
        let off = difference(&found, &expected);
        assert!(off <= TOLERANCE, "{model}: {off:e}");
    }
}

/// A type that no relation leads from can be split in any model: all in-edges of a node stay in one
/// relation.
#[test]
fn a_type_that_is_read_by_none_can_be_split_in_every_model() {
    for model in BY_RELATION.into_iter().chain(OVER_ALL) {
        let job = Job::of_text(JOB).with("model = \"sage\"", model);
        let (halves, names) = split(&job, "reader");
        let [found, expected] = infer_both(&job, &halves, &names);
        let off = difference(&found, &expected);
        assert!(off <= TOLERANCE, "{model}: {off:e}");
    }
}

/// The in-edges of a paper are then in two relations more. A softmax over all of them is the same;
/// the mean, the softmax or the perceptron of each relation is not, and no model sums relations
/// alone.
#[test]
fn a_type_that_others_read_can_be_split_in_models_that_attend_over_all_relations() {
    for (models, holds) in [(&OVER_ALL[..], true), (&BY_RELATION[..], false)] {
        for model in models {
            let job = Job::of_text(JOB).with("model = \"sage\"", model);
            let (halves, names) = split(&job, "author");
            let [found, expected] = infer_both(&job, &halves, &names);
            let off = difference(&found, &expected);
            assert_eq!(off <= TOLERANCE, holds, "{model}: {off:e}");
            assert!(holds || off > 1e-3, "{model}: {off:e}");
        }
    }
}
