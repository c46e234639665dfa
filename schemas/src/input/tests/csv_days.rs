//! CSV tables whose inferred types differ from day to day, and the lines that errors name.

use std::path::Path;

use serde_json::json;

use super::bad::assert_says;
use super::csv::{ends_and_ids, graph_of, read_x, untyped};
use super::*;
use crate::config::{ColumnKind, InputSpec};
use crate::input::{KnownInput, KnownNodes};

#[test]
fn lines_are_those_of_an_editor() {
    let dir = tempfile::tempdir().unwrap();
    let lines = |text: &str| {
        std::fs::write(dir.path().join("n.csv"), text).unwrap();
        let mut spec = nodes_spec();
        spec.path = "n.csv".into();
        let plan = spec.into_plan(dir.path()).unwrap();
        [0, 1, 2].map(|row| plan.locate(row).1)
    };
    let of = |numbers: [u64; 3]| numbers.map(RowPlace::Line);
    assert_eq!(lines("id,x\n1,a\n2,b\n3,c"), of([2, 3, 4]));
    assert_eq!(lines("id,x\r\n1,a\r\n2,b\r\n3,c\r\n"), of([2, 3, 4]));
    assert_eq!(
        lines("id,x\r\n\r\n1,a\r\n\r\n\r\n2,b\r\n3,c"),
        of([3, 6, 7])
    );
    assert_eq!(lines("id,x\n1,\"a\n\n\"\n\n2,b\n3,c\n\n"), of([2, 6, 7]));
    let broken = |text: &str, expected: &str| {
        std::fs::write(dir.path().join("n.csv"), text).unwrap();
        let mut spec = nodes_spec();
        spec.path = "n.csv".into();
        assert_says(read_nodes(spec, dir.path()), ErrorKind::Data, &[expected]);
    };
    broken("id,x\r\n1,a\r\n\r\n2\r\n", "n.csv, line 4: has 1 fields");
    let path = dir.path().join("odd.csv");
    std::fs::write(&path, "id,x\r\n1,1\r\n\r\n2,NA\r\n3,2\r\n").unwrap();
    let csv = crate::storage::CsvInput::open(&path).unwrap();
    let odd = csv.odd_values(&[1]).unwrap().remove(0).unwrap();
    assert_eq!(odd.first, ("NA".to_owned(), RowPlace::Line(4)));
}

#[test]
fn categories_do_not_depend_on_the_other_values_of_a_day() {
    // 10 is 1.0 times ten, and stays as it is.
    let days = ["1\n2\n10\n", "1.0\n2.0\n10.0\n", "1\n2.00\n10\n"];
    for day in days {
        let table = format!("x,id\n{}", day.replace('\n', ",0\n"));
        let (_, values) = read_x(&table, Some(ColumnKind::Category), None).unwrap();
        // In the order of their text: 1, 10, 2.
        assert_eq!(values, [0.0, 2.0, 1.0], "{day}");
    }
    let flags = "x,id\nTrue,0\ntrue,1\nFALSE,2\n-0.0,3\n0,4\n-3.0,5\n1.5,6\n.0,7\n";
    let (_, values) = read_x(flags, Some(ColumnKind::Category), None).unwrap();
    // -3, .0, 0, 1.5, false, true.
    assert_eq!(values, [5.0, 5.0, 4.0, 2.0, 2.0, 0.0, 3.0, 1.0]);
    // A boolean is a number, also beside a gap.
    let gaps = "x,id\nTrue,0\nNA,1\nfalse,2\n";
    let (kind, numbers) = read_x(gaps, None, Some(ColumnKind::Number)).unwrap();
    assert_eq!(
        (kind, numbers[0], numbers[2]),
        (ColumnKind::Number, 1.0, 0.0)
    );
    assert!(numbers[1].is_nan());
}

#[test]
fn where_compares_digits_with_text() {
    let dir = tempfile::tempdir().unwrap();
    let mut input = untyped("n.csv", "e.csv");
    input["nodes"][""]["where"] = json!({ "kind": "07" });
    input["edges"][""]["where"] = json!({ "kind": "true" });
    let files = [
        ("n.csv", "id,kind\n1,07\n2,7\n3,07\n"),
        ("e.csv", "src,dst,kind\n1,3,true\n3,1,false\n"),
    ];
    let graph = graph_of(dir.path(), &files, input).unwrap();
    let (ends, ids) = ends_and_ids(&graph);
    assert_eq!(
        (ends, ids),
        (vec!["1-3".to_owned()], vec!["1".to_owned(), "3".to_owned()])
    );
}

#[test]
fn ends_with_a_fraction_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let files = [("n.csv", "id\n1\n2\n"), ("e.csv", "src,dst\n1,2.0\n2,\n")];
    let mut input = untyped("n.csv", "e.csv");
    input["edges"][""]["dangling"] = json!("drop");
    assert_says(
        graph_of(dir.path(), &files, input.clone()),
        ErrorKind::Data,
        &[
            "column `dst` has numbers with a fraction",
            "write them as integers",
        ],
    );
    // As text, they are the ids as written.
    let words = ("n.csv", "id\n1\n2\n2.0\nx\n");
    let ends = ("e.csv", "src,dst\n1,2.0\n");
    let graph = graph_of(dir.path(), &[words, ends], input).unwrap();
    assert_eq!(ends_and_ids(&graph).0, ["1-2.0"]);
}

#[test]
fn a_model_can_be_used_on_a_day_without_labels() {
    let dir = tempfile::tempdir().unwrap();
    let plan = |known: &KnownInput| {
        let nodes = json!({ "path": "n.csv", "id": "id", "label": "y", "num_classes": 3 });
        let mut input = untyped("n.csv", "e.csv");
        input["nodes"][""] = nodes;
        write_day(dir.path());
        let input: InputSpec = serde_json::from_value(input).unwrap();
        input.plan_like(dir.path(), known)
    };
    let known = KnownInput::from([(String::new(), KnownNodes::default())]);
    let graph = plan(&known).unwrap();
    assert!(!graph.types[0].nodes.has_label());
    assert!(plan(&KnownInput::new()).is_err());
}

fn write_day(dir: &Path) {
    std::fs::write(dir.join("n.csv"), "id,y\n1,\n2,\n").unwrap();
    std::fs::write(dir.join("e.csv"), "src,dst\n1,2\n").unwrap();
}
