//! CSV tables: the same rows as from Parquet, inferred types and broken lines.

use std::io::Write as _;

use flate2::Compression as Level;
use flate2::write::GzEncoder;
use serde_json::json;

use super::bad::assert_says;
use super::*;
use crate::config::{ColumnKind, InputSpec};
use crate::input::{GraphPlan, KnownInput, KnownNodes};

const NODES: &str = "\
id,x,flag,label,split
7,0.5,true,a,train
3,,false,\"b, c\",val
9,-2e3,true,,
";

fn gzip(text: &str) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Level::default());
    packed.write_all(text.as_bytes()).unwrap();
    packed.finish().unwrap()
}

fn spec(path: &str) -> NodesSpec {
    NodesSpec {
        path: path.into(),
        label: Some("label".to_owned()),
        split: Some(SplitSpec::Column("split".to_owned())),
        ..nodes_spec()
    }
}

/// Reads `features` of a table, in all formats that hold its text.
fn read_all(base: &Path, text: &str, features: &[&str]) -> Vec<(Option<LabelKind>, NodeRows)> {
    std::fs::write(base.join("n.csv"), text).unwrap();
    std::fs::write(base.join("n.CSV.gz"), gzip(text)).unwrap();
    let tabs = text
        .replace("\"b, c\"", "\t")
        .replace(',', "\t")
        .replace("\t\t\t", "\tb, c\t");
    std::fs::write(base.join("n.tsv"), tabs).unwrap();
    let read = |name: &&str| {
        let mut spec = spec(name);
        spec.features = features.iter().map(|&feature| feature.to_owned()).collect();
        read_nodes(spec, base).unwrap()
    };
    ["n.csv", "n.CSV.gz", "n.tsv"].iter().map(read).collect()
}

#[test]
fn csv_gives_the_rows_of_parquet() {
    let dir = tempfile::tempdir().unwrap();
    let columns = vec![
        ("id", ints([7, 3, 9])),
        (
            "flag",
            Arc::new(BooleanArray::from(vec![true, false, true])) as ArrayRef,
        ),
        ("label", strings(&[Some("a"), Some("b, c"), None])),
        ("split", strings(&[Some("train"), Some("val"), None])),
    ];
    write(&dir.path().join("n.parquet"), &columns, 2);
    let mut of_parquet = spec("n.parquet");
    of_parquet.features = vec!["flag".to_owned()];
    let expected = read_nodes(of_parquet, dir.path()).unwrap();
    for found in read_all(dir.path(), NODES, &["flag"]) {
        assert_eq!(found, expected);
    }
}

#[test]
fn edges_are_read_from_csv() {
    let dir = tempfile::tempdir().unwrap();
    let text = "src,dst,w\n1,2,0.5\n2,1,3\n\n";
    std::fs::write(dir.path().join("e.csv"), text).unwrap();
    let spec = EdgesSpec {
        path: "e.csv".into(),
        weight: Some("w".to_owned()),
        ..edges_spec()
    };
    let plan = spec.into_plan(dir.path()).unwrap();
    assert_eq!((plan.num_rows(), plan.units().len()), (2, 1));
    let rows = plan.read(&plan.units()[0]).unwrap();
    assert_eq!(
        (ids_of(&rows.src), ids_of(&rows.dst)),
        (
            vec!["1".to_owned(), "2".to_owned()],
            vec!["2".to_owned(), "1".to_owned()]
        )
    );
    assert_eq!(rows.weight, Some(vec![0.5, 3.0]));
}

#[test]
fn types_are_inferred_from_all_files_of_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    file("t/a.csv", "id,x\n1,2\n");
    file("t/b.csv", "x,id\n,b2\n0.25,3\n");
    file("t/empty.csv", "id,x\n");
    let read = || {
        let mut spec = nodes_spec();
        spec.path = "t".into();
        read_nodes(spec, dir.path()).map(|(_, rows)| ids_of(&rows.ids))
    };
    assert_eq!(read().unwrap(), ["1", "b2", "3"]);
    // An integer that int64 does not hold makes all ids strings.
    file("t/b.csv", "x,id\n,18446744073709551615\n0.25,3\n");
    assert_eq!(read().unwrap(), ["1", "18446744073709551615", "3"]);
    // Of a directory with Parquet files, only these are the table.
    write(&dir.path().join("t/c.parquet"), &vec![("id", ints([5]))], 1);
    assert_eq!(read().unwrap(), ["5"]);
    file("u/a.csv", "id\n");
    file("u/b.csv", "other\n1\n");
    let mut spec = nodes_spec();
    spec.path = "u".into();
    assert_says(
        read_nodes(spec, dir.path()),
        ErrorKind::Usage,
        &["no column `id` in", "b.csv", "are other"],
    );
}

#[test]
fn broken_lines_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let check = |name: &str, bytes: &[u8], expected: &[&str]| {
        std::fs::write(dir.path().join(name), bytes).unwrap();
        let mut spec = nodes_spec();
        spec.path = name.into();
        let read = read_nodes(spec, dir.path());
        assert_says(read, ErrorKind::Data, expected);
    };
    // The second row has a line break in a field, so the third one starts at line 5.
    let short = "id,name\n1,a\n2,\"b\nc\"\n3\n4,d\n";
    let too_few = "n.csv, line 5: has 1 fields, the header has 2";
    check("n.csv", short.as_bytes(), &[too_few]);
    let packed = gzip(&short.replace("3\n", "3,c,\n"));
    let too_many = "n.csv.gz, line 5: has 3 fields, the header has 2";
    check("n.csv.gz", &packed, &[too_many]);
    check(
        "n.csv",
        b"id,name\n1,\xff\n",
        &["n.csv, line 2: field 2 is no UTF-8 text"],
    );
    check("n.csv", b"", &["n.csv, line 1: has no header"]);
    check("n.csv.gz", b"id\n1\n", &["n.csv.gz"]);
    check("n.csv.gz", &packed[..packed.len() - 9], &["n.csv.gz"]);
}

#[test]
fn csv_objects_of_a_store_are_read_in_pieces() {
    let root = Path::new("swapping://csv-of-tables");
    let rows: String = (0..5000).map(|id| format!("{id},{}.5\n", id % 7)).collect();
    let text = format!("id,x\n{rows}");
    crate::storage::write_whole(&root.join("n.csv"), text.as_bytes()).unwrap();
    crate::storage::write_whole(&root.join("n.csv.gz"), &gzip(&text)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("n.csv"), &text).unwrap();
    let read = |path: String| {
        let mut spec = nodes_spec();
        spec.path = path.into();
        spec.features = vec!["x".to_owned()];
        read_nodes(spec, Path::new("")).unwrap()
    };
    let expected = read(dir.path().join("n.csv").display().to_string());
    assert_eq!(expected.1.ids.len(), 5000);
    for name in ["n.csv", "n.csv.gz"] {
        assert_eq!(read(format!("{}/{name}", root.display())), expected);
    }
}

/// Writes files, and plans a typed graph of them.
pub(super) fn graph_of(
    dir: &Path,
    files: &[(&str, &str)],
    input: serde_json::Value,
) -> Result<GraphPlan> {
    for (name, text) in files {
        std::fs::write(dir.join(name), text).unwrap();
    }
    let input: InputSpec = serde_json::from_value(input).unwrap();
    input.into_plan(dir)
}

/// An untyped graph of a node file and an edge file.
pub(super) fn untyped(nodes: &str, edges: &str) -> serde_json::Value {
    json!({
        "nodes": { "": { "path": nodes, "id": "id" } },
        "edges": { "": { "path": edges, "src": "src", "dst": "dst" } },
    })
}

/// Returns the ends of all edges of an untyped graph, and the ids of its nodes.
pub(super) fn ends_and_ids(graph: &GraphPlan) -> (Vec<String>, Vec<String>) {
    let (nodes, edges) = (&graph.types[0].nodes, &graph.relations[0].edges);
    let ids = nodes.read_keys(&nodes.units()[0]).unwrap().ids;
    let rows = edges.read(&edges.units()[0]).unwrap();
    assert_eq!(rows.src.id_type(), ids.id_type());
    let ends =
        (0..rows.src.len()).map(|at| format!("{}-{}", rows.src.display(at), rows.dst.display(at)));
    (ends.collect(), ids_of(&ids))
}

#[test]
fn ends_in_csv_are_read_in_the_type_of_the_ids() {
    let dir = tempfile::tempdir().unwrap();
    let check = |files: &[(&str, &str)], names: [&str; 2], ends: &[&str], ids: &[&str]| {
        let graph = graph_of(dir.path(), files, untyped(names[0], names[1])).unwrap();
        let (found_ends, found_ids) = ends_and_ids(&graph);
        assert_eq!((found_ends, found_ids), (texts(ends), texts(ids)));
    };
    // Ids are strings; all ends are digits, in one column or in both.
    let names = ("n.csv", "id\n007\nx\n8\n");
    let ids = ["007", "x", "8"];
    let digits = ("e.csv", "src,dst\n007,8\n8,8\n");
    check(
        &[names, digits],
        ["n.csv", "e.csv"],
        &["007-8", "8-8"],
        &ids,
    );
    let mixed = ("e.csv", "src,dst\n007,x\n8,8\n");
    check(&[names, mixed], ["n.csv", "e.csv"], &["007-x", "8-8"], &ids);
    let in_parquet = vec![("id", strings(&[Some("007"), Some("8")]))];
    write(&dir.path().join("n.parquet"), &in_parquet, 9);
    let in_file = ["n.parquet", "e.csv"];
    check(&[digits], in_file, &["007-8", "8-8"], &["007", "8"]);
    // Ids are digits, and Parquet has ends as strings.
    let ends = vec![
        ("src", strings(&[Some("007")])),
        ("dst", strings(&[Some("8")])),
    ];
    write(&dir.path().join("e.parquet"), &ends, 9);
    let only_digits = ("n.csv", "id\n007\n8\n");
    check(
        &[only_digits],
        ["n.csv", "e.parquet"],
        &["007-8"],
        &["007", "8"],
    );
    // Ids are integers; ends of a column with other text are parsed.
    let graph = untyped("n.csv", "e.csv");
    let with_text = ("e.csv", "src,dst\n07,8\n\n7,x\n");
    let plan = graph_of(dir.path(), &[only_digits, with_text], graph.clone()).unwrap();
    let edges = &plan.relations[0].edges;
    assert_says(
        edges.read(&edges.units()[0]),
        ErrorKind::Data,
        &[
            "column `dst` of",
            "e.csv, line ",
            ": is \"x\", but the nodes' ids are int64",
        ],
    );
    let mut dropping = graph;
    dropping["edges"][""]["dangling"] = json!("drop");
    let dropping = graph_of(dir.path(), &[], dropping).unwrap();
    let kept = &dropping.relations[0].edges;
    let rows = kept.read(&kept.units()[0]).unwrap();
    let nowhere = Ids::from_keys(IdType::Int64, vec![crate::ids::NOWHERE]).display(0);
    assert_eq!(ids_of(&rows.dst), ["8", &nowhere]);
    assert_eq!(ids_of(&rows.src), ["7", "7"]);
}

fn texts(of: &[&str]) -> Vec<String> {
    of.iter().map(|&text| text.to_owned()).collect()
}

#[test]
fn relations_of_one_csv_file_read_it_once_also_if_their_ids_are_of_two_types() {
    let dir = tempfile::tempdir().unwrap();
    let files = [
        ("people.csv", "id\nann\n01\n"),
        ("papers.csv", "id\n10\n20\n"),
        ("e.csv", "src,dst,kind\n01,10,writes\n10,020,cites\n"),
    ];
    let edges = |kind: &str, from: &str| {
        json!({ "path": "e.csv", "src": "src", "dst": "dst", "from": from, "to": "paper",
            "where": { "kind": kind } })
    };
    let input = json!({
        "nodes": { "person": { "path": "people.csv", "id": "id" },
            "paper": { "path": "papers.csv", "id": "id" } },
        "edges": { "writes": edges("writes", "person"), "cites": edges("cites", "paper") },
    });
    let graph = graph_of(dir.path(), &files, input).unwrap();
    let sources = graph.edge_sources();
    assert_eq!(sources.len(), 1);
    let batches = sources[0].batches(&sources[0].units()[0]).unwrap();
    let rows: Vec<Vec<EdgeRows>> = batches.map(|batch| batch.unwrap()).collect();
    let shown = |of: &EdgeRows| (ids_of(&of.src), ids_of(&of.dst), of.src.id_type());
    // `cites` comes before `writes`.
    assert_eq!(
        shown(&rows[0][0]),
        (texts(&["10"]), texts(&["20"]), IdType::Int64)
    );
    assert_eq!(
        shown(&rows[0][1]),
        (texts(&["01"]), texts(&["10"]), IdType::Utf8)
    );
}

/// Reads the feature `x` of a CSV table with `kind`, as the model of `known` had it.
pub(super) fn read_x(
    text: &str,
    kind: Option<ColumnKind>,
    known: Option<ColumnKind>,
) -> Result<(ColumnKind, Vec<f32>)> {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = json!({ "path": "n.csv", "id": "id", "features": ["x"] });
    if let Some(kind) = kind {
        nodes["columns"] = json!({ "x": { "kind": kind } });
    }
    std::fs::write(dir.path().join("n.csv"), text).unwrap();
    std::fs::write(dir.path().join("e.csv"), "src,dst\n").unwrap();
    let mut input = untyped("n.csv", "e.csv");
    input["nodes"][""] = nodes;
    let input: InputSpec = serde_json::from_value(input).unwrap();
    let of_model = KnownNodes {
        id_type: None,
        kinds: known
            .map(|given| ("x".to_owned(), given))
            .into_iter()
            .collect(),
    };
    let of_models = KnownInput::from([(String::new(), of_model)]);
    let planned = input.plan_like(dir.path(), &of_models);
    let graph = planned.map_err(|mut found| found.swap_remove(0))?;
    let table = &graph.types[0].nodes;
    let unit = &table.units()[0];
    let columns = table.column_meta(table.read_keys(unit)?.categories, &[]);
    let values = match table.read_rows(unit, None, &columns)?.features {
        Features::Dense { values, .. } => values,
        other => panic!("{other:?}"),
    };
    Ok((columns[0].kind(), values))
}

#[test]
fn words_for_a_missing_value_are_gaps_of_numbers_and_times() {
    let text = "id,x\n1,2.5\n2,NA\n3,\n4,N/A\n5,null\n6,NULL\n7,nan\n8,NaN\n9,-1e3\n";
    for given in [
        (Some(ColumnKind::Number), None),
        (None, Some(ColumnKind::Number)),
    ] {
        let (kind, values) = read_x(text, given.0, given.1).unwrap();
        assert_eq!(kind, ColumnKind::Number);
        assert_eq!((values[0], values[8]), (2.5, -1000.0));
        assert!(
            values[1..8].iter().all(|value| value.is_nan()),
            "{values:?}"
        );
    }
    // As text, the words are categories.
    let (kind, values) = read_x(text, None, None).unwrap();
    assert_eq!(kind, ColumnKind::Category);
    assert_eq!(values.iter().filter(|value| value.is_nan()).count(), 1);
    let days = "id,x\n1,1970-01-03\n2,NA\n3,1970-01-02T12:00:00\n";
    let (of_days, times) = read_x(days, Some(ColumnKind::Time), None).unwrap();
    assert_eq!((of_days, times[0], times[2]), (ColumnKind::Time, 2.0, 1.5));
    assert!(times[1].is_nan());
    // The first field of row 2 has a line break, so the row at fault is at line 5.
    let bad = "id,x\n1,2\n\"2\n\",NA\n\"3\",-\n";
    assert_says(
        read_x(bad, Some(ColumnKind::Number), None),
        ErrorKind::Data,
        &[
            "column `x` of",
            "n.csv, line 5: is \"-\", which is no number",
        ],
    );
    assert_says(
        read_x("id,x\n1,inf\n2,NA\n", Some(ColumnKind::Number), None),
        ErrorKind::Data,
        &["n.csv, line 2: is \"inf\", which is no number"],
    );
    // Without other words, infinite numbers and NaN are numbers of their column.
    assert_says(
        read_x("id,x\n1,inf\n", None, None),
        ErrorKind::Data,
        &["n.csv, line 2: is inf; allowed are finite"],
    );
    assert_says(
        read_x("id,x\n1,soon\n", Some(ColumnKind::Time), None),
        ErrorKind::Data,
        &["n.csv, line 2: is \"soon\", which is no time"],
    );
}

#[test]
fn a_column_without_values_has_the_kind_that_is_given() {
    let text = "id,x\n1,\n2,\n";
    for kind in [ColumnKind::Number, ColumnKind::Time, ColumnKind::Category] {
        for (declared, known) in [(Some(kind), None), (None, Some(kind))] {
            let (found, values) = read_x(text, declared, known).unwrap();
            assert_eq!(found, kind);
            assert!(values.iter().all(|value| value.is_nan()), "{values:?}");
        }
    }
    assert_says(
        read_x(text, None, None),
        ErrorKind::Data,
        &[
            "column `x` of ",
            "n.csv has no value in any row, so its type is not known; set \
             `input.nodes.columns.x.kind`, or leave the column out of `features`",
        ],
    );
    // Digits are categories if they were at training, and an integer is not a date.
    let digits = "id,x\n1,07\n2,7\n";
    let (kind, values) = read_x(digits, None, Some(ColumnKind::Category)).unwrap();
    assert_eq!((kind, values), (ColumnKind::Category, vec![0.0, 1.0]));
    let (of_digits, _) = read_x(digits, None, Some(ColumnKind::Time)).unwrap();
    assert_eq!(of_digits, ColumnKind::Number);
}

#[test]
fn values_of_csv_files_are_named_by_line() {
    let dir = tempfile::tempdir().unwrap();
    // Row 1 has a line break, so row 2 starts at line 5.
    let nodes = "id,s\n1,train\n2,\"tr\nain\"\n3,late\n";
    std::fs::write(dir.path().join("n.csv"), nodes).unwrap();
    let mut spec = nodes_spec();
    spec.path = "n.csv".into();
    spec.split = Some(SplitSpec::Column("s".to_owned()));
    assert_says(
        read_nodes(spec.clone(), dir.path()),
        ErrorKind::Data,
        &["column `s` of", "n.csv, line 3: is \"tr\\nain\""],
    );
    let plan = spec.into_plan(dir.path()).unwrap();
    let lines = [0, 1, 2].map(|row| plan.locate(row).1);
    assert_eq!(lines, [2, 3, 5].map(RowPlace::Line));
}

#[test]
fn other_delimiters_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let check = |name: &str, text: &str, expected: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        let mut spec = nodes_spec();
        spec.path = name.into();
        let mend = "write commas in `*.csv` files, tabs in `*.tsv` files";
        assert_says(
            read_nodes(spec, dir.path()),
            ErrorKind::Data,
            &[expected, mend],
        );
    };
    let semicolons = "line 1: the header is one field, \"id;x\"; ';' does not separate fields";
    check("n.csv", "id;x\n1;2\n", semicolons);
    // A decimal comma divides the row.
    check("n.csv", "id;x\n1;2,5\n", semicolons);
    check("n.csv", "id\tx\n1\t2\n", "'\\t' does not separate fields");
    check("n.tsv", "id,x\n1,2\n", "',' does not separate fields");
}

#[test]
fn mostly_numbers_are_odd_as_categories() {
    let dir = tempfile::tempdir().unwrap();
    let check = |table: &str, expected: Option<(ColumnKind, u64, u64, &str, u64, bool)>| {
        let path = dir.path().join("n.csv");
        std::fs::write(&path, table).unwrap();
        let csv = crate::storage::CsvInput::open(&path).unwrap();
        let found = csv.odd_values(&[1]).unwrap().remove(0);
        let found = found.map(|odd| {
            let (value, line) = odd.first;
            (odd.kind, odd.fitting, odd.others, value, line, odd.are_gaps)
        });
        let expected = expected.map(|(kind, fitting, others, text, line, are_gaps)| {
            let first = (text.to_owned(), RowPlace::Line(line));
            (kind, fitting, others, first.0, first.1, are_gaps)
        });
        assert_eq!(found, expected, "{table}");
    };
    let number = ColumnKind::Number;
    let gaps = "id,x\n1,1\n2,\n3,2.5\n4,NA\n5,nan\n6,3\n";
    check(gaps, Some((number, 3, 2, "NA", 5, true)));
    let codes = "id,x\n1,1\n2,2\n3,K1A\n";
    check(codes, Some((number, 2, 1, "K1A", 4, false)));
    let days = "id,x\n1,2026-01-02\n2,NA\n3,2026-01-03\n";
    check(days, Some((ColumnKind::Time, 2, 1, "NA", 3, true)));
    check("id,x\n1,a\n2,1\n3,b\n", None);
    check("id,x\n1,1\n2,2\n", None);
    // After many values that are mostly text, the rest is not counted.
    let names: String = (0..1000).map(|row| format!("{row},n{row}\n")).collect();
    let numbers: String = (0..3000).map(|row| format!("{row},{row}\n")).collect();
    check(&format!("id,x\n{names}{numbers}"), None);
}
