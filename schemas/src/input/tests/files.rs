//! Files that a table's path leads to.

use super::bad::assert_says;
use super::*;
use parquet::file::properties::WriterVersion;

/// Writes a file of nodes whose ids are as given.
fn part(path: &Path, ids: impl IntoIterator<Item = i64>) {
    write(path, &vec![("id", ints(ids))], 2);
}

fn ids_at(base: &Path, path: &str) -> Result<Vec<String>> {
    let path = serde_json::from_str(path).unwrap_or_else(|_| path.into());
    let spec = NodesSpec {
        path,
        ..nodes_spec()
    };
    read_nodes(spec, base).map(|(_, rows)| ids_of(&rows.ids))
}

#[test]
fn several_paths_are_one_table() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path();
    part(&base.join("a/1.parquet"), [1]);
    part(&base.join("a/2.parquet"), [2]);
    part(&base.join("b/1.parquet"), [3]);
    part(&base.join("{c,d}.parquet"), [4]);
    let check = |path: &str, expected: &[&str]| {
        assert_eq!(ids_at(base, path).unwrap(), expected, "{path}");
    };
    check(r#"["b", "a"]"#, &["3", "1", "2"]);
    check(r#"["a/2.parquet", "b/*"]"#, &["2", "3"]);
    check("{b,a}", &["3", "1", "2"]);
    check("{a,b}/1.parquet", &["1", "3"]);
    check("{a/[2-9],b/*}.parquet", &["2", "3"]);
    check("{c,d}.parquet", &["4"]);
    // A file that is named several times is read once.
    check(r#"["a/2.parquet", "a", "a/*"]"#, &["2", "1"]);
    let missing = ids_at(base, "{a,x}");
    let problem = ["`input.nodes.path`: no such file", "x"];
    assert_says(missing, ErrorKind::Usage, &problem);
    let none = ids_at(base, "{a,x*}/1.parquet");
    assert_says(none, ErrorKind::Usage, &["no file matches", "x*/1.parquet"]);
}

#[cfg(unix)]
#[test]
fn files_behind_links_are_read_once() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("lake");
    part(&base.join("nodes/a/1.parquet"), [1, 2]);
    part(&base.join("nodes/b/1.parquet"), [3]);
    part(&base.join("edges.parquet"), [9]);
    part(&dir.path().join("beside/1.parquet"), [4]);
    let nodes = base.join("nodes");
    let check = |expected: &[&str]| {
        for path in [
            "nodes",
            "nodes/*",
            "nodes/**/*.parquet",
            "**/nodes/**/*.parquet",
        ] {
            assert_eq!(ids_at(&base, path).unwrap(), expected, "{path}");
        }
    };
    check(&["1", "2", "3"]);
    // Links to siblings, to the directory itself, to its parents, and to each other.
    symlink("a", nodes.join("c")).unwrap();
    symlink("1.parquet", nodes.join("b/2.parquet")).unwrap();
    check(&["1", "2", "3"]);
    symlink(".", nodes.join("self")).unwrap();
    symlink("..", nodes.join("up")).unwrap();
    symlink("../../..", nodes.join("a/root")).unwrap();
    symlink("../b", nodes.join("a/x")).unwrap();
    symlink("../a", nodes.join("b/y")).unwrap();
    let ids = |path| {
        let mut ids = ids_at(&base, path).unwrap();
        ids.sort();
        ids
    };
    for path in ["nodes", "nodes/**/*.parquet"] {
        assert_eq!(ids(path), ["1", "2", "3"], "{path}");
    }
    // A link to a directory beside the table is followed.
    symlink(dir.path().join("beside"), nodes.join("z")).unwrap();
    assert_eq!(ids("nodes"), ["1", "2", "3", "4"]);
    std::fs::remove_file(nodes.join("a/root")).unwrap();
    symlink("gone", nodes.join("b/3.parquet")).unwrap();
    let gone = ["cannot open ", "3.parquet"];
    assert_says(ids_at(&base, "nodes"), ErrorKind::Failed, &gone);
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path();
    part(&base.join("nodes/a.parquet"), [1]);
    // Opening a pipe would wait for a process that writes.
    let made = std::process::Command::new("mkfifo")
        .arg(base.join("nodes/b.parquet"))
        .status();
    assert!(made.unwrap().success());
    for path in ["nodes", "nodes/*", "nodes/b.parquet", "/dev/null"] {
        let expected = ["`input.nodes.path`: neither a file nor a directory: "];
        assert_says(ids_at(base, path), ErrorKind::Usage, &expected);
    }
}

#[test]
fn tables_with_versions_are_refused() {
    let check = |marker: &str, expected: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path();
        part(&base.join("t/p=1/live.parquet"), [1]);
        part(&base.join("t/p=1/dead.parquet"), [2]);
        let log = base.join("t").join(marker);
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        std::fs::write(&log, "{}").unwrap();
        for path in [
            "t",
            ".",
            "t/p=1",
            "t/*",
            "t/p=1/*.parquet",
            "t/**/*.parquet",
            "**/*.parquet",
        ] {
            assert_says(
                ids_at(base, path),
                ErrorKind::Usage,
                &["`input.nodes.path`: "],
            );
            assert_says(ids_at(base, path), ErrorKind::Usage, expected);
        }
        assert_eq!(ids_at(base, "t/p=1/live.parquet").unwrap(), ["1"]);
        // Another table may stand beside it.
        part(&base.join("u/1.parquet"), [3]);
        assert_eq!(ids_at(base, "u").unwrap(), ["3"]);
        assert_eq!(ids_at(base, "u/**/*.parquet").unwrap(), ["3"]);
    };
    check(
        "_delta_log/00000000000000000000.json",
        &[
            "t is a table of Delta Lake (it has `_delta_log`)",
            "name the live files",
        ],
    );
    check(
        ".hoodie/hoodie.properties",
        &["t is a table of Hudi (it has `.hoodie`)"],
    );
    check(
        "metadata/v1.metadata.json",
        &["t is a table of Iceberg (it has `metadata`)"],
    );
}

/// A store lists files in one way and looks up directories in another.
#[test]
fn tables_of_stores_follow_the_same_rules() {
    let dir = tempfile::tempdir().unwrap();
    let base = Path::new("");
    let root = "swapping://files-of-tables";
    let put = |name: &str, ids: &[i64]| {
        let local = dir.path().join("local.parquet");
        part(&local, ids.iter().copied());
        let bytes = std::fs::read(&local).unwrap();
        crate::storage::write_whole(&Path::new(root).join(name), &bytes).unwrap();
    };
    put("a/1.parquet", &[1]);
    put("b/2.parquet", &[2]);
    put("b/_hidden/3.parquet", &[3]);
    put("c/d/4.parquet", &[4]);
    let read = |path: &str| ids_at(base, &format!("{root}/{path}"));
    assert_eq!(read("{b,a}").unwrap(), ["2", "1"]);
    assert_eq!(read("{a,b}/*.parquet").unwrap(), ["1", "2"]);
    assert_eq!(read("**/*.parquet").unwrap(), ["1", "2", "4"]);
    put("c/_delta_log/0.json", &[]);
    for path in ["c", "c/d", "c/d/*", "c/*/4.parquet"] {
        assert_says(
            read(path),
            ErrorKind::Usage,
            &["/c is a table of Delta Lake"],
        );
    }
    assert_eq!(read("a").unwrap(), ["1"]);
}

#[test]
fn files_of_other_formats_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path();
    let check = |name: &str, bytes: &[u8], expected: &str| {
        std::fs::write(base.join(name), bytes).unwrap();
        let expected = [name, " as Parquet", expected];
        assert_says(ids_at(base, name), ErrorKind::Data, &expected);
    };
    check("n.json", b"{}", "it is JSON;");
    check(
        "text",
        "id,name\n1,\u{fc}\n".as_bytes(),
        "it is text, such as CSV; only Parquet is read",
    );
    check("orc", b"ORC\x0a\x00\xff", "it is ORC;");
    check("n.parquet", b"PAR1\x00", "as Parquet");
    check("zeros.parquet", &[0; 64], "as Parquet");
    std::fs::create_dir(base.join("json")).unwrap();
    std::fs::write(base.join("json/n.json"), "{}").unwrap();
    let no_table = ["no *.parquet or *.csv file, but `n.json`, below (a glob such as `DIR/*`"];
    assert_says(ids_at(base, "json"), ErrorKind::Usage, &no_table);
}

#[test]
fn a_part_of_a_row_group_holds_its_rows_whatever_their_pages() {
    let texts: Vec<String> = (0..1000).map(|at| format!("node {at}")).collect();
    let texts: Vec<Option<&str>> = texts.iter().map(|text| Some(text.as_str())).collect();
    let rows = (0..1000u16).map(|at| [f32::from(at), -1.0, 0.5 * f32::from(at)]);
    let rows: Vec<[f32; 3]> = rows.collect();
    let rows: Vec<Option<&[f32]>> = rows.iter().map(|row| Some(&row[..])).collect();
    let columns = vec![
        ("id", strings(&texts)),
        ("x", float_lists(&rows)),
        ("src", ints(0..1000)),
        ("dst", ints((0..1000).rev())),
        ("w", floats((0..1000u16).map(f32::from))),
    ];
    let dir = tempfile::tempdir().unwrap();
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        let properties = WriterProperties::builder()
            .set_writer_version(version)
            .set_write_batch_size(10)
            .set_data_page_row_count_limit(70);
        for name in ["nodes.parquet", "edges.parquet"] {
            write_with(&dir.path().join(name), &columns, properties.clone().build());
        }
        let mut spec = nodes_spec();
        spec.features = vec!["x".to_owned()];
        let nodes = spec.into_plan(dir.path()).unwrap();
        let weighted = EdgesSpec {
            weight: Some("w".to_owned()),
            ..edges_spec()
        };
        let edges = weighted.into_plan(dir.path()).unwrap();
        let (whole, of_edges) = (nodes.units()[0], edges.units()[0]);
        assert!((nodes.units().len(), whole.num_rows) == (1, 1000) && whole.is_divisible());
        let all = nodes.read_rows(&whole, None, &[]).unwrap();
        let all_edges = edges.read(&of_edges).unwrap();
        for cuts in [vec![0, 500, 1000], vec![0, 1, 70, 71, 139, 999, 1000]] {
            let mut joined = nodes.no_rows(None, 0);
            for range in cuts.windows(2) {
                let range = range[0]..range[1];
                let part = nodes
                    .read_rows(&whole.part(range.clone()), None, &[])
                    .unwrap();
                joined.ids.extend_from(&part.ids, 0..part.ids.len());
                joined.features.extend(&part.features);
                joined.split.extend(&part.split);
                let some = edges.read(&of_edges.part(range.clone())).unwrap();
                assert_eq!(ids_of(&some.dst), ids_of(&all_edges.dst)[range.clone()]);
                let weights = all_edges.weight.as_ref().unwrap();
                assert_eq!(some.weight.unwrap(), weights[range]);
            }
            assert_eq!(joined, all, "{cuts:?}");
        }
    }
}
