//! Graphs of several types and relations, and tables that share their files.

use serde_json::json;

use super::*;
use crate::config::InputSpec;
use crate::error::SchemaError;
use crate::input::{GraphPlan, Unit};

/// Returns the texts of all mistakes of an input, with file names in place of paths.
fn problems(base: &Path, input: &serde_json::Value) -> Vec<String> {
    let spec: InputSpec = serde_json::from_value(input.clone()).unwrap();
    let found = spec.plan(base).err().unwrap_or_default();
    let dir = format!("{}/", base.display());
    let texts = found
        .iter()
        .map(|error: &SchemaError| error.to_string().replace(&dir, ""));
    texts.collect()
}

fn plan(base: &Path, input: serde_json::Value) -> GraphPlan {
    let spec: InputSpec = serde_json::from_value(input).unwrap();
    spec.plan(base).unwrap()
}

/// Authors have strings and papers integers as ids. All edges are in one file, in two row groups.
fn tables() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path();
    let kind = [
        Some("author"),
        Some("venue"),
        None,
        Some("author"),
        Some("venue"),
    ];
    let people = vec![
        ("name", strings(&["ann", "b", "?", "bob", "b"].map(Some))),
        ("kind", with_type(&strings(&kind), &dictionary())),
        ("x", floats([0.0, 1.0, 2.0, 3.0, 4.0])),
        ("field", ints([Some(1), None, Some(7), Some(0), None])),
    ];
    write(&base.join("people.parquet"), &people, 3);
    let papers = vec![("id", ints([10, 20])), ("x", floats([0.5, 1.5]))];
    write(&base.join("papers.parquet"), &papers, 2);
    let number = [Some("ann"), Some("10"), Some("bob"), Some("x"), Some("ann")];
    let edges = vec![
        ("who", strings(&number)),
        ("paper", ints([10, 10, 20, 20, 20])),
        ("other", ints([20, 20, 10, 10, 10])),
        ("type", strings(&["w", "c", "w", "c", "w"].map(Some))),
        ("year", ints([Some(1), Some(2), None, Some(1), Some(2)])),
        (
            "good",
            Arc::new(BooleanArray::from(vec![true, true, false, true, true])),
        ),
    ];
    write(&base.join("edges.parquet"), &edges, 3);
    dir
}

fn input() -> serde_json::Value {
    let edges = |more: serde_json::Value| {
        let mut table = json!({ "path": "edges.parquet" });
        let more = more.as_object().unwrap().clone();
        table.as_object_mut().unwrap().extend(more);
        table
    };
    json!({
        "nodes": {
            "author": { "path": "people.parquet", "id": "name", "where": { "kind": "author" },
                "label": "field", "features": ["x"] },
            "paper": { "path": "papers.parquet", "id": "id", "features": ["x"] },
        },
        "edges": {
            "writes": edges(json!({ "from": "author", "to": "paper", "src": "who", "dst": "paper",
                "where": { "type": "w" }, "reverse": "by" })),
            "cites": edges(json!({ "from": "paper", "to": "paper", "src": "paper", "dst": "other",
                "where": { "type": "c", "year": 1, "good": true } })),
        },
    })
}

#[test]
fn types_and_relations_are_sorted_and_a_reverse_has_the_table_of_its_relation() {
    let dir = tables();
    let plan = plan(dir.path(), input());
    let names: Vec<&str> = plan.types.iter().map(|of| of.name.as_str()).collect();
    assert_eq!((names, plan.is_typed()), (vec!["author", "paper"], true));
    let relations = plan.relations.iter();
    let relations: Vec<_> = relations
        .map(|r| (r.name.as_str(), r.from, r.to, r.reversed))
        .collect();
    assert_eq!(
        relations,
        [
            ("by", 1, 0, true),
            ("cites", 1, 1, false),
            ("writes", 0, 1, false)
        ]
    );
    let [by, cites, writes] = &plan.relations[..] else {
        panic!("three relations");
    };
    assert!(Arc::ptr_eq(&by.edges, &writes.edges) && !Arc::ptr_eq(&by.edges, &cites.edges));
    assert_eq!(writes.edges.src_type(), IdType::Utf8);
    assert_eq!(writes.edges.dst_type(), IdType::Int64);
    assert_eq!(
        (plan.type_idx("paper"), plan.relation_idx("x")),
        (Some(1), None)
    );
    let checked = plan.with_non_negative_weights();
    assert!(Arc::ptr_eq(
        &checked.relations[0].edges,
        &checked.relations[2].edges
    ));
}

#[test]
fn all_tables_of_a_file_are_read_in_one_pass() {
    let dir = tables();
    let mut all = input();
    all["nodes"]["venue"] =
        json!({ "path": "people.parquet", "id": "x", "where": { "kind": "venue" } });
    // Ids are no floats.
    assert!(!problems(dir.path(), &all).is_empty());
    all["nodes"]["venue"]["id"] = json!("field");
    all["nodes"]["venue"]["where"] = json!({ "name": "bob" });
    let plan = plan(dir.path(), all);
    let sources = plan.node_sources();
    let types: Vec<Vec<usize>> = sources
        .iter()
        .map(|s| s.types().iter().map(|(idx, _)| *idx).collect())
        .collect();
    assert_eq!(types, [vec![0, 2], vec![1]]);
    let people = &sources[0];
    let mut read = Vec::new();
    for unit in people.units() {
        let keys = people.read_keys(unit).unwrap();
        let shown = keys.iter().map(|keys| {
            let rows: Vec<u64> = keys.rows.iter().collect();
            (ids_of(&keys.ids).join(" "), rows, keys.max_class)
        });
        read.extend(shown);
    }
    let none = || (String::new(), Vec::new(), None);
    let expected = [
        ("ann".to_owned(), vec![0], Some(1)),
        none(),
        ("bob".to_owned(), vec![3], Some(0)),
        ("0".to_owned(), vec![3], None),
    ];
    assert_eq!(read, expected);
    assert_eq!(plan.types[0].nodes.units_read(), 2);
    check_rows(&plan);
    assert_eq!(plan.types[0].nodes.units_read(), 4 + 2 * 2);
    let edge_sources = plan.edge_sources();
    let [edges] = &edge_sources[..] else {
        panic!("one file of edges");
    };
    assert_eq!(edges.relations(), [(0, 0), (1, 1), (2, 0)]);
    let (mut ends, mut rows) = (Vec::new(), Vec::new());
    for unit in edges.units() {
        rows.extend(edges.batches(unit).unwrap().map(Result::unwrap));
        ends.extend(edges.end_batches(unit).unwrap().map(Result::unwrap));
    }
    assert_eq!(plan.relations[1].edges.units_read(), 4);
    assert_eq!(ends, rows);
    for (table, of_table) in edges.tables().iter().enumerate() {
        let alone: Vec<EdgeRows> = edges
            .units()
            .iter()
            .map(|u| of_table.read(u).unwrap())
            .collect();
        let together: Vec<EdgeRows> = rows.iter().map(|batch| batch[table].clone()).collect();
        assert_eq!(alone, together);
    }
    let shown: Vec<String> = rows.iter().flatten().map(shown).collect();
    assert_eq!(shown, ["ann>10@0 bob>20@2", "", "ann>20@4", "20>10@3"]);
}

fn shown(rows: &EdgeRows) -> String {
    let row = |i: usize| {
        let (src, dst, row) = (rows.src.display(i), rows.dst.display(i), rows.rows.row(i));
        format!("{src}>{dst}@{row}")
    };
    let edges: Vec<String> = (0..rows.src.len()).map(row).collect();
    edges.join(" ")
}

/// Reads all columns of the types of one file together, and each table alone.
fn check_rows(plan: &GraphPlan) {
    let [people, _] = &plan.node_sources()[..] else {
        panic!("two files of nodes");
    };
    let tables: Vec<_> = people
        .types()
        .iter()
        .map(|(_, table)| Arc::clone(table))
        .collect();
    let label = tables[0].label_meta(Vec::new(), Some(1)).unwrap();
    let labels = [label.as_ref(), None];
    let mut together: Vec<NodeRows> = tables
        .iter()
        .zip(labels)
        .map(|(table, meta)| table.no_rows(meta, 0))
        .collect();
    let mut alone = together.clone();
    let read_all = |unit: &Unit, rows: &mut [NodeRows]| {
        let mut reader = people
            .reader(unit, &labels.map(|meta| (meta, &[][..])))
            .unwrap();
        reader.read_each(unit.num_rows, rows).unwrap();
    };
    for unit in people.units() {
        read_all(unit, &mut together);
        for ((table, meta), rows) in tables.iter().zip(labels).zip(&mut alone) {
            let read = table.read_rows(unit, meta, &[]).unwrap();
            rows.ids.extend_from(&read.ids, 0..read.ids.len());
            rows.features.extend(&read.features);
            rows.labels.extend(&read.labels);
            rows.split.extend(read.split);
        }
    }
    assert_eq!(together, alone);
    assert_eq!(ids_of(&together[0].ids), ["ann", "bob"]);
    let expected = Features::Dense {
        dim: 1,
        values: vec![0.0, 3.0],
    };
    assert_eq!(together[0].features, expected);
}

#[test]
fn values_of_where_fit_the_columns() {
    let dir = tables();
    let with = |filter: serde_json::Value| {
        let mut all = input();
        all["edges"]["cites"]["where"] = filter;
        problems(dir.path(), &all)
    };
    let all = json!({ "kind": "c", "type": 1, "year": "2", "good": "yes", "who": true });
    assert_eq!(
        with(all),
        [
            "column `good` of edges.parquet is boolean, allowed for a string of `where`: strings",
            "`input.edges.cites.where.kind`: no column `kind` in edges.parquet; its columns are \
             who, paper, other, type, year, good",
            "column `type` of edges.parquet is string, allowed for a whole number of `where`: integers",
            "column `who` of edges.parquet is string, allowed for true or false of `where`: booleans",
            "column `year` of edges.parquet is int64, allowed for a string of `where`: strings",
        ]
    );
    assert_eq!(
        with(json!({ "tipe": "c" })),
        [
            "`input.edges.cites.where.tipe`: no column `tipe` in edges.parquet; did you mean `type`? its \
          columns are who, paper, other, type, year, good"
        ]
    );
}

#[test]
fn where_takes_rows_by_strings_integers_and_booleans() {
    let dir = tempfile::tempdir().unwrap();
    let text = strings(&[Some("a"), None, Some("b"), Some("a")]);
    let check = |array: ArrayRef, value: serde_json::Value, expected: &[&str]| {
        let columns = vec![("id", ints([1, 2, 3, 4])), ("k", array)];
        write(&dir.path().join("nodes.parquet"), &columns, 2);
        let mut spec = nodes_spec();
        spec.rows_where = serde_json::from_value(json!({ "k": value })).unwrap();
        let (_, rows) = read_some(spec, dir.path());
        assert_eq!(ids_of(&rows.ids), expected);
    };
    for data_type in [
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Utf8View,
        DataType::Binary,
        DataType::BinaryView,
        dictionary(),
    ] {
        check(with_type(&text, &data_type), json!("a"), &["1", "4"]);
        check(with_type(&text, &data_type), json!("c"), &[]);
    }
    let numbers = ints([Some(1), None, Some(-2), Some(1)]);
    for data_type in [DataType::Int8, DataType::Int32, DataType::Int64] {
        check(with_type(&numbers, &data_type), json!(1), &["1", "4"]);
        check(with_type(&numbers, &data_type), json!(-2), &["3"]);
    }
    // No number of the column's type equals it.
    check(with_type(&numbers, &DataType::Int8), json!(1000), &[]);
    check(
        with_type(&ints([1, 2, 3, 4]), &DataType::UInt64),
        json!(4),
        &["4"],
    );
    check(
        with_type(&ints([1, 2, 3, 4]), &DataType::UInt64),
        json!(-1),
        &[],
    );
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![
        Some(true),
        None,
        Some(false),
        None,
    ]));
    check(Arc::clone(&flags), json!(true), &["1"]);
    check(flags, json!(false), &["3"]);
}

/// Reads the rows that a table takes.
fn read_some(spec: NodesSpec, base: &Path) -> (usize, NodeRows) {
    let plan = spec.into_plan(base).unwrap();
    let mut rows = plan.no_rows(None, 0);
    for unit in plan.units() {
        let read = plan.read_rows(unit, None, &[]).unwrap();
        assert_eq!(plan.read_keys(unit).unwrap().ids, read.ids);
        assert_eq!(plan.read_splits(unit).unwrap().split, read.split);
        rows.ids.extend_from(&read.ids, 0..read.ids.len());
    }
    (plan.units().len(), rows)
}

#[test]
fn an_error_names_the_row_of_the_file_also_with_where() {
    let dir = tempfile::tempdir().unwrap();
    let columns = vec![
        ("id", ints([Some(1), None, Some(3), Some(4), None])),
        ("k", ints([0, 0, 1, 1, 1])),
    ];
    write(&dir.path().join("nodes.parquet"), &columns, 5);
    let mut spec = nodes_spec();
    spec.rows_where = serde_json::from_value(json!({ "k": 1 })).unwrap();
    let plan = spec.into_plan(dir.path()).unwrap();
    let error = plan.read_keys(&plan.units()[0]).unwrap_err().to_string();
    assert!(error.ends_with("nodes.parquet, row 4: is null"), "{error}");
}

#[test]
fn all_mistakes_of_a_graph_are_told_at_once() {
    let dir = tables();
    let all = json!({
        "nodes": {
            "a": { "path": "people.parquet", "id": "nam" },
            "b": { "path": "none.parquet", "id": "id" },
        },
        "edges": {
            "r": { "path": "edges.parquet", "from": "a", "to": "c", "src": "who", "dst": "x" },
            "s": { "path": "edges.parquet", "from": "a", "to": "b", "src": "who", "dst": "paper",
                "reverse": "r" },
        },
    });
    assert_eq!(
        problems(dir.path(), &all),
        [
            "`input.edges.s.reverse`: is \"r\", which is the name of another relation; each has its own",
            "`input.edges.r.to`: is \"c\", which is no node type; did you mean a? allowed are a, b",
            "`input.nodes.a.id`: no column `nam` in people.parquet; did you mean `name`? its columns \
             are name, kind, x, field",
            "`input.nodes.b.path`: no such file or directory: none.parquet",
            "`input.edges.r.dst`: no column `x` in edges.parquet; its columns are who, paper, other, \
             type, year, good",
        ]
    );
}

#[test]
fn ends_have_the_ids_of_their_types() {
    let dir = tables();
    let mut all = input();
    all["edges"]["writes"]["src"] = json!("paper");
    all["edges"]["writes"]["dst"] = json!("who");
    all["edges"]["cites"]["dst"] = json!("who");
    assert_eq!(
        problems(dir.path(), &all),
        [
            "`input.edges.cites` table: column `paper` has int64 and column `who` has strings; both must \
             be integers or both strings",
            "`input.edges.writes` table: column `paper` has integers, but column `name` of \
             `input.nodes.author` has strings; both must be integers or both strings",
            "`input.edges.writes` table: column `who` has strings, but column `id` of \
             `input.nodes.paper` has integers; both must be integers or both strings",
        ]
    );
}

#[test]
fn one_type_has_the_targets() {
    let dir = tables();
    let target = |change: &dyn Fn(&mut serde_json::Value), named: Option<&str>| {
        let mut all = input();
        change(&mut all);
        let target = plan(dir.path(), all).target_type(named);
        target.map_err(|error| error.to_string())
    };
    let as_is = |_: &mut serde_json::Value| {};
    assert_eq!(target(&as_is, None), Ok(0));
    assert_eq!(target(&as_is, Some("paper")), Ok(1));
    let key = "`flatten.target_type`: is";
    assert_eq!(
        target(&as_is, Some("papers")),
        Err(format!(
            "{key} \"papers\", which is no node type; did you mean paper? allowed are author, paper"
        ))
    );
    let unlabelled = |all: &mut serde_json::Value| all["nodes"]["author"]["label"].take();
    assert_eq!(
        target(&|all| drop(unlabelled(all)), None),
        Err(format!(
            "{key} missing, and no node type has `label`; allowed are author, paper"
        ))
    );
    let both = |all: &mut serde_json::Value| all["nodes"]["paper"]["label"] = json!("id");
    assert_eq!(
        target(&both, None),
        Err(format!(
            "{key} missing, and several node types have `label`; allowed are author, paper"
        ))
    );
    let untyped = json!({
        "nodes": { "": { "path": "papers.parquet", "id": "id" } },
        "edges": { "": { "path": "edges.parquet", "src": "paper", "dst": "other" } },
    });
    let untyped = plan(dir.path(), untyped);
    assert_eq!(untyped.target_type(None).unwrap(), 0);
    assert_eq!(
        untyped.target_type(Some("x")).unwrap_err().to_string(),
        "`flatten.target_type`: is for node types, as in [input.nodes.TYPE]; leave it out"
    );
}
