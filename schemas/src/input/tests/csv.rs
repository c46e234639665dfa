//! CSV tables: the same rows as from Parquet, inferred types and broken lines.

use std::io::Write as _;

use flate2::Compression as Level;
use flate2::write::GzEncoder;

use super::bad::assert_says;
use super::*;

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
