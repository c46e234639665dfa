//! `docs/tables.md` shows the keys and columns of a job's outputs.

use std::collections::BTreeSet;
use std::fs;

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use serde_json::Value;

use crate::harness::{Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, TRAIN};

/// The names in the first column of the table that follows a line of the page, in order.
fn documented(after: &str) -> Vec<String> {
    let page = include_str!("../docs/tables.md");
    let (_, rest) = page
        .split_once(after)
        .unwrap_or_else(|| panic!("no `{after}`"));
    let rows = rest.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = rows.skip(1).take_while(|line| line.starts_with('|'));
    let names = |row: &str| {
        let first = row.split('|').nth(1).unwrap().to_owned();
        let names = first
            .split(", ")
            .map(|name| name.trim().trim_matches('`').to_owned());
        names.collect::<Vec<_>>()
    };
    rows.flat_map(names).collect()
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

#[track_caller]
fn check(after: &str, found: &Value) {
    let mut documented: BTreeSet<String> = documented(after).into_iter().collect();
    // Only outputs of labels that are numbers have this key.
    documented.remove("label_scale");
    assert_eq!(documented, keys(found), "{after}");
}

#[test]
fn the_page_of_tables_shows_every_key_and_column() {
    let graph = Graph::new(60, IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let infer = INFER.replace("[infer]", "[infer]\nlogits = true\nprobabilities = true");
    let train = TRAIN.replace("[train]", "[train]\nevaluate_every = 1");
    let job = Job::new(&graph, &[FLATTEN, &train, &infer]);
    bench
        .run(&job.with("label = \"label\"", "label = \"name\""), &[])
        .ok();

    let file = fs::File::open(bench.path("out/embeddings/part-00000.parquet")).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let schema = reader.metadata().file_metadata().schema_descr();
    let columns = schema.root_schema().get_fields().iter();
    let columns: Vec<String> = columns.map(|field| field.name().to_owned()).collect();
    let mut expected = documented("## Embeddings");
    expected.retain(|name| name != "others");
    assert_eq!(columns, expected);

    let read = |name: &str| -> Value {
        let text = fs::read_to_string(bench.path("out/model").join(name)).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    check("`model.json` says", &read("model.json"));
    let lines = fs::read_to_string(bench.path("out/model/epochs.jsonl")).unwrap();
    let first = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    check("`epochs.jsonl` has", &first);
    check("## The manifest", &bench.manifest("out/model"));

    let evaluation = read("evaluation.json");
    let mut found = keys(&evaluation);
    let scores = &evaluation["splits"]["test"];
    found.extend(keys(scores).iter().map(|key| format!("splits.*.{key}")));
    let label = keys(&scores["labels"][0]);
    let documented: BTreeSet<String> = documented("`evaluation.json` says").into_iter().collect();
    for key in label {
        let dotted = format!("splits.*.labels[].{key}");
        assert!(
            documented.contains(&dotted) || documented.contains(&key),
            "{key}"
        );
    }
    let is_of_label =
        |key: &String| key.contains("[]") || !(key.contains('.') || found.contains(key));
    let rest: BTreeSet<String> = documented
        .iter()
        .filter(|key| !is_of_label(key))
        .cloned()
        .collect();
    assert_eq!(rest, found);
}
