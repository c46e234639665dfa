//! CSV tables as they change from day to day: ids, empty columns, words for missing values, and the
//! errors of broken files.

use std::fmt::Write as _;
use std::fs;

use arrow::datatypes::DataType;

use crate::harness::{Bench, FLATTEN, INFER, Job, TRAIN, mix};
use crate::infer::batches;

const NODES: usize = 60;

const INPUT: &str = r#"name = "daily"
seed = 7
workers = 2

[input.nodes]
path = "nodes.csv"
id = "id"
features = ["age", "zip"]
label = "label"
split = "split"

[input.edges]
path = "edges.csv"
src = "src"
dst = "dst"

"#;

fn job() -> Job {
    Job(format!("{INPUT}{FLATTEN}{TRAIN}{INFER}"))
}

/// The fields of a node: its id, its age and its zip code.
type Fields = fn(usize) -> [String; 3];

/// The day of the training: some ids and zip codes have letters, and some ages are missing.
fn first_day(node: usize) -> [String; 3] {
    let letter = if node.is_multiple_of(7) { "x" } else { "" };
    let age = match node % 5 {
        0 => String::new(),
        _ => (mix(3, node as u64) % 80).to_string(),
    };
    [
        format!("{letter}0{node}"),
        age,
        format!("{letter}{}", node % 4),
    ]
}

/// A day on which all ids and zip codes are digits, and all ages are missing.
fn later_day(node: usize) -> [String; 3] {
    [format!("0{node}"), String::new(), (node % 3).to_string()]
}

fn write_tables(bench: &Bench, fields: Fields) {
    let mut nodes = "id,age,zip,label,split\n".to_owned();
    let mut edges = "src,dst\n".to_owned();
    for node in 0..NODES {
        let [id, age, zip] = fields(node);
        let split = ["train", "train", "val", "test"][node % 4];
        writeln!(nodes, "{id},{age},{zip},{},{split}", node % 3).unwrap();
        for other in [node + 1, node + 7] {
            writeln!(edges, "{id},{}", fields(other % NODES)[0]).unwrap();
        }
    }
    fs::write(bench.path("nodes.csv"), nodes).unwrap();
    fs::write(bench.path("edges.csv"), edges).unwrap();
}

/// Replaces the first occurrence of a text in a file.
#[track_caller]
fn replace(bench: &Bench, name: &str, from: &str, to: &str) {
    let text = fs::read_to_string(bench.path(name)).unwrap();
    assert!(text.contains(from), "{from:?} is not in {name}");
    fs::write(bench.path(name), text.replacen(from, to, 1)).unwrap();
}

/// Runs and checks a job that must fail with one line that contains `expected`.
#[track_caller]
fn assert_refused(bench: &Bench, job: &Job, expected: &str) {
    let ran = bench.run(job, &["--fresh"]);
    let checked = bench.graphflat(&["check", "job.toml", "--fresh"]);
    for outcome in [ran, checked] {
        assert!((2..=3).contains(&outcome.code), "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
        assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
    }
}

#[test]
fn inference_reads_the_columns_of_another_day_as_the_training_did() {
    let bench = Bench::empty();
    write_tables(&bench, first_day);
    let kind = "columns = { zip = { kind = \"category\" } }\nlabel =";
    bench.run(&job().with("label =", kind), &[]).ok();
    write_tables(&bench, later_day);
    fs::remove_dir_all(bench.path("out/embeddings")).unwrap();
    // The model gives the kind of both columns, and the type of the ids.
    bench.write(&job());
    let run = ["run", "job.toml", "--stage", "infer"];
    let ran = bench.graphflat(&run).ok();
    assert!(!ran.stderr.contains("WARN"), "{}", ran.stderr);
    let found = batches(&bench, "out/embeddings");
    let rows: usize = found.iter().map(|batch| batch.num_rows()).sum();
    assert_eq!(rows, NODES);
    let ids = found[0].column_by_name("id").unwrap();
    assert_eq!(*ids.data_type(), DataType::Utf8);
    // A training of that day needs the kind of the empty column.
    let problem = "nodes.csv has no value in any row, so its type is not known; set \
                   `input.nodes.columns.age.kind`";
    bench.clear();
    assert_refused(&bench, &job(), problem);
    let declared = "columns = { age = { kind = \"number\" } }\nlabel =";
    bench.run(&job().with("label =", declared), &[]).ok();
}

#[test]
fn a_few_words_among_numbers_are_a_warning() {
    let bench = Bench::empty();
    write_tables(&bench, later_day);
    let ages: Fields = |node| {
        let [id, _, zip] = later_day(node);
        let age = match node {
            20 | 40 => "NA".to_owned(),
            _ => node.to_string(),
        };
        [id, age, zip]
    };
    write_tables(&bench, ages);
    let warning = "column `age` of nodes.csv is read as categories: 2 of 60 values are no numbers \
                   (first: \"NA\", line 22); `input.nodes.columns.age.kind` = \"number\" makes them \
                   missing values, \"category\" ends this warning";
    bench.write(&job());
    let ran = bench.graphflat(&["run", "job.toml"]).ok();
    let checked = bench.graphflat(&["check", "job.toml", "--fresh"]).ok();
    for outcome in [ran, checked] {
        assert_eq!(
            outcome.stderr.matches(warning).count(),
            1,
            "{}",
            outcome.stderr
        );
    }
    // The same among class numbers.
    let nodes = fs::read_to_string(bench.path("nodes.csv")).unwrap();
    replace(&bench, "nodes.csv", ",0,train", ",NA,train");
    let of_labels = bench.graphflat(&["check", "job.toml", "--fresh"]).ok();
    let of_label = "column `label` of nodes.csv is read as class names: 1 of 60 values is no number \
                    (first: \"NA\", line 2); empty fields in place of it are missing labels";
    assert!(of_labels.stderr.contains(of_label), "{}", of_labels.stderr);
    fs::write(bench.path("nodes.csv"), nodes).unwrap();
    for kind in ["number", "category"] {
        let declared = format!("columns = {{ age = {{ kind = \"{kind}\" }} }}\nlabel =");
        bench.write(&job().with("label =", &declared));
        let silent = bench.graphflat(&["check", "job.toml", "--fresh"]).ok();
        assert!(!silent.stderr.contains("no numbers"), "{}", silent.stderr);
    }
    replace(&bench, "nodes.csv", "NA", "old");
    let declared = "columns = { age = { kind = \"number\" } }\nlabel =";
    let failed = bench.run(&job().with("label =", declared), &["--fresh"]);
    let problem = "column `age` of nodes.csv, line 22: is \"old\", which is no number";
    assert!(failed.stderr.contains(problem), "{}", failed.stderr);
}

#[test]
fn broken_csv_tables_are_named_by_line() {
    let bench = Bench::empty();
    write_tables(&bench, first_day);
    let fresh = || write_tables(&bench, first_day);
    replace(&bench, "nodes.csv", "test", "later");
    let late = bench.run(&job(), &["--fresh"]).stderr;
    assert!(
        late.contains("column `split` of nodes.csv, line 5: is \"later\""),
        "{late}"
    );
    fresh();
    replace(&bench, "nodes.csv", "\n02,", "\n01,");
    let twice = bench.run(&job(), &["--fresh"]).stderr;
    let problem = "node id 01 occurs twice: line 3 of nodes.csv and line 4 of nodes.csv";
    assert!(twice.contains(problem), "{twice}");
    fresh();
    replace(&bench, "edges.csv", "\n01,02\n", "\n01,none\n");
    let dangling = bench.run(&job(), &["--fresh"]).stderr;
    let no_node = "column `dst`, line 4 of edges.csv: no node has the id none";
    assert!(dangling.contains(no_node), "{dangling}");
    fresh();
    let text = fs::read_to_string(bench.path("nodes.csv")).unwrap();
    fs::write(bench.path("nodes.csv"), text.replace(',', ";")).unwrap();
    assert_refused(
        &bench,
        &job(),
        "nodes.csv, line 1: the header is one field, \"id;age;zip;label;split\"; ';' does not \
         separate fields: write commas in `*.csv` files, tabs in `*.tsv` files",
    );
}

#[test]
fn check_lists_inferred_types_for_machines() {
    let bench = Bench::empty();
    write_tables(&bench, first_day);
    // Without its kind, the column `zip` is a warning, which is an event too.
    let kind = "columns = { zip = { kind = \"category\" } }\nlabel =";
    bench.write(&job().with("label =", kind));
    let checked = bench.graphflat(&["check", "job.toml", "--json"]).ok();
    let found = &checked.events()[0]["inferred"];
    let expected = serde_json::json!({
        "nodes": { "id": "string", "age": "int64", "zip": "string", "label": "int64",
            "split": "string" },
        "edges": { "src": "string", "dst": "string" },
    });
    assert_eq!(*found, expected);
    let typed = INPUT
        .replace("[input.nodes]", "[input.nodes.person]")
        .replace(
            "[input.edges]",
            "[input.edges.knows]\nfrom = \"person\"\nto = \"person\"",
        );
    bench.write(&Job(format!("{typed}{FLATTEN}")).with("label =", kind));
    let of_types = bench.graphflat(&["check", "job.toml", "--json"]).ok();
    let report = &of_types.events()[0];
    assert_eq!(report["types"][0]["inferred"], expected["nodes"]);
    assert_eq!(report["relations"][0]["inferred"], expected["edges"]);
}

#[test]
fn directory_names_are_no_columns() {
    let bench = Bench::empty();
    write_tables(&bench, first_day);
    let dir = bench.path("nodes/day=2026-11-01");
    fs::create_dir_all(&dir).unwrap();
    fs::rename(bench.path("nodes.csv"), dir.join("nodes.csv")).unwrap();
    let job = job()
        .with("nodes.csv", "nodes")
        .with("[\"age\", \"zip\"]", "[\"age\", \"day\"]");
    let problem = "no column `day` in nodes/day=2026-11-01/nodes.csv; directory names such as \
                   day=2026-11-01 are no columns: write it into the files; its columns are id, age";
    assert_refused(&bench, &job, problem);
}
