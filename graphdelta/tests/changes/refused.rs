//! Changes that cannot be applied are errors that name the row.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int64Array, StringArray};
use graphdelta::{
    Changes, Degrees, DeltaError, Numbers, OfStore, OutEdges, Overlay, ReachPlan, reach,
};
use schemas::{ChangesSpec, ErrorKind, InputSpec, Sampling, TablePath, error_chain};

use crate::case::{Edge, PairsOf, Shape, Snapshot, build, write};

type Nodes<'a> = &'a [(i64, f32, &'a str)];
type Edges<'a> = &'a [(i64, i64, &'a str)];
/// Ends, split and operation of pairs.
type Pairs<'a> = &'a [(i64, i64, &'static str, &'a str)];

fn apply(dir: &Path, nodes: Nodes<'_>, edges: Edges<'_>) -> Result<(), DeltaError> {
    apply_to(dir, &Shape::untyped(false), (nodes, edges, &[]))
}

/// Applies changes to a graph of the nodes 0 to 5. If pairs have a table of their own, these are
/// (0, 1) to train on and (1, 2) to validate; (2, 4) is in no split.
fn apply_to(
    dir: &Path,
    shape: &Shape,
    (nodes, edges, pairs): (Nodes<'_>, Edges<'_>, Pairs<'_>),
) -> Result<(), DeltaError> {
    let graph = shape.write(&of_pairs(), dir);
    let ops = |ops: Vec<&str>| Arc::new(StringArray::from(ops)) as ArrayRef;
    let numbers = |of: Vec<i64>| Arc::new(Int64Array::from(of)) as ArrayRef;
    let features = Float32Array::from_iter_values(nodes.iter().map(|row| row.1));
    let node_columns = vec![
        ("id", numbers(nodes.iter().map(|row| row.0).collect())),
        ("f", Arc::new(features) as ArrayRef),
        ("op", ops(nodes.iter().map(|row| row.2).collect())),
    ];
    write(&dir.join("n.parquet"), node_columns);
    let edge_columns = vec![
        ("src", numbers(edges.iter().map(|row| row.0).collect())),
        ("dst", numbers(edges.iter().map(|row| row.1).collect())),
        (
            "weight",
            Arc::new(Float32Array::from(vec![2.0; edges.len()])) as ArrayRef,
        ),
        ("op", ops(edges.iter().map(|row| row.2).collect())),
    ];
    write(&dir.join("e.parquet"), edge_columns);
    let rows = pairs.iter().map(|row| ((row.0, row.1), row.2));
    let mut pair_columns = shape.pair_columns(rows);
    pair_columns.push(("op", ops(pairs.iter().map(|row| row.3).collect())));
    write(&dir.join("p.parquet"), pair_columns);
    let spec = ChangesSpec {
        nodes: [(String::new(), TablePath::from("n.parquet"))].into(),
        edges: [(String::new(), TablePath::from("e.parquet"))].into(),
        pairs: (!pairs.is_empty()).then(|| TablePath::from("p.parquet")),
    };
    let keep = vec![2];
    let store = build(&graph, &dir.join("store"), (Sampling::Uniform, &keep), 2);
    let mut all = Numbers::of(&store, &graph, Overlay::default())?;
    let night = all.apply(Changes::read(
        &spec,
        dir,
        &graph,
        OfStore::plain(Sampling::Uniform),
    )?)?;
    let out = OutEdges::open_or_write(&store, &keep, &dir.join("out"))?;
    let plan = ReachPlan {
        hops: vec![keep.clone()],
        layers: vec![keep],
        degrees: Degrees::None,
        weights: false,
        hub_edges: usize::MAX,
    };
    reach(&Arc::new(all), vec![night], &out, &plan).map(|_| ())
}

/// The graph that changes are applied to.
fn of_pairs() -> Snapshot {
    let edge = |src, dst| Edge {
        src,
        dst,
        weight: 1.0,
    };
    Snapshot {
        nodes: vec![(0..6).map(|id| (id, id as f32)).collect()],
        edges: vec![vec![edge(0, 1), edge(0, 1), edge(1, 2), edge(3, 3)]],
        pairs: [((0, 1), "train"), ((1, 2), "val"), ((2, 4), "none")].into(),
    }
}

fn refused(nodes: Nodes<'_>, edges: Edges<'_>, expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let error = apply(dir.path(), nodes, edges).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
    let shown = error_chain(&error).replace(&format!("{}/", dir.path().display()), "");
    assert_eq!(shown, expected);
}

#[test]
fn changes_of_nodes_and_edges_that_are_not_there_are_refused() {
    refused(
        &[(1, 0.0, "upsert"), (9, 0.0, "delete")],
        &[],
        "row 1 of n.parquet: no node has the id 9 to delete",
    );
    refused(
        &[],
        &[(0, 9, "upsert")],
        "row 0 of e.parquet: column `dst`: no node has the id 9",
    );
    refused(
        &[],
        &[(1, 2, "upsert"), (2, 1, "delete")],
        "row 1 of e.parquet: no edge leads from 2 to 1 to delete",
    );
}

#[test]
fn two_changes_of_one_node_or_edge_are_refused() {
    for ops in [
        ["upsert", "delete"],
        ["upsert", "upsert"],
        ["delete", "delete"],
    ] {
        let last = usize::from(ops != ["upsert", "delete"]);
        let expected = format!("row {last} of n.parquet: node 4 is changed twice");
        refused(&[(4, 0.0, ops[0]), (4, 0.0, ops[1])], &[], &expected);
    }
    refused(
        &[],
        &[(1, 2, "delete"), (1, 2, "upsert")],
        "row 1 of e.parquet: the edge is upserted and deleted in one table",
    );
    refused(
        &[],
        &[(1, 2, "delete"), (1, 2, "delete")],
        "row 1 of e.parquet: the edge is deleted twice",
    );
}

#[test]
fn removed_nodes_must_have_no_edges() {
    refused(
        &[(1, 0.0, "delete")],
        &[(1, 2, "upsert")],
        "row 0 of e.parquet: column `src`: no node has the id 1",
    );
    refused(
        &[(1, 0.0, "delete")],
        &[(0, 1, "delete")],
        "row 0 of n.parquet: node 1 is deleted, but 0 edges lead to it and 1 from it; delete them \
         in the same night",
    );
    refused(
        &[(3, 0.0, "delete")],
        &[],
        "row 0 of n.parquet: node 3 is deleted, but 1 edges lead to it and 1 from it; delete them \
         in the same night",
    );
}

#[test]
fn changes_of_pairs_that_do_not_fit_are_refused() {
    let refused = |tables: (Nodes<'_>, Edges<'_>, Pairs<'_>), expected: &str| {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape {
            pairs: Some((PairsOf::Table, "all")),
            ..Shape::untyped(false)
        };
        let error = apply_to(dir.path(), &shape, tables).unwrap_err();
        let shown = error_chain(&error).replace(&format!("{}/", dir.path().display()), "");
        assert_eq!(shown, expected);
    };
    refused(
        (&[], &[], &[(0, 9, "train", "delete")]),
        "row 0 of p.parquet: column `dst`: no node has the id 9",
    );
    refused(
        (&[], &[], &[(0, 9, "train", "upsert")]),
        "column `dst` of p.parquet, row 0: is 9, which is no node's id",
    );
    refused(
        (&[], &[], &[(3, 3, "train", "upsert")]),
        "column `dst` of p.parquet, row 0: is 3, which is the pair's src as well; a pair has two nodes",
    );
    let twice = [(1, 2, "val", "delete"), (1, 2, "none", "delete")];
    refused(
        (&[], &[], &twice),
        "row 1 of p.parquet: the pair is deleted twice",
    );
    for split in ["test", "none"] {
        refused(
            (&[], &[], &[(1, 2, split, "upsert"), (1, 2, "", "delete")]),
            "row 0 of p.parquet: the pair is upserted and deleted in one table",
        );
    }
    refused(
        (&[], &[], &[(1, 2, "val", "update")]),
        "row 0 of p.parquet: column `op` is neither `upsert` nor `delete`",
    );
    refused(
        (&[], &[], &[(0, 1, "test", "upsert")]),
        "`input.pairs.split`: puts no pair in split `train`: the column names it nowhere",
    );
    refused(
        (&[(2, 0.0, "delete")], &[(1, 2, "delete")], &[]),
        "row 0 of n.parquet: node 2 is deleted, but the pair of 1 and 2 has it; delete the pair in \
         the same night",
    );
    // Without its pair, the edge carries messages.
    refused(
        (&[(2, 0.0, "delete")], &[], &[(1, 2, "", "delete")]),
        "row 0 of n.parquet: node 2 is deleted, but 1 edges lead to it and 0 from it; delete them in \
         the same night",
    );
    refused(
        (&[], &[(2, 1, "delete")], &[]),
        "row 0 of e.parquet: no edge leads from 2 to 1 to delete",
    );
}

#[test]
fn tables_of_pairs_that_a_job_does_not_have_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |shape: Shape, expected: &str| {
        let tables: (Nodes<'_>, Edges<'_>, Pairs<'_>) = (&[], &[], &[(0, 1, "val", "upsert")]);
        let error = apply_to(dir.path(), &shape, tables).unwrap_err();
        assert_eq!(error_chain(&error), expected);
    };
    refused(
        Shape::untyped(false),
        "`input.changes.pairs`: the job has no [input.pairs]",
    );
    refused(
        Shape {
            pairs: Some((PairsOf::Edges, "all")),
            ..Shape::untyped(false)
        },
        "`input.changes.pairs`: the pairs are edges: their changes are those of `input.changes.edges`",
    );
}

#[test]
fn other_operations_and_columns_are_refused() {
    refused(
        &[(1, 0.0, "upsert"), (2, 0.0, "update")],
        &[],
        "row 1 of n.parquet: column `op` is neither `upsert` nor `delete`",
    );
    refused(
        &[],
        &[(1, 2, "")],
        "row 0 of e.parquet: column `op` is neither `upsert` nor `delete`",
    );
}

/// Rows to delete need ids alone, also where a column has no value that shows its type.
#[test]
fn tables_of_deletes_need_ids_alone() {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape {
        pairs: Some((PairsOf::Table, "all")),
        ..Shape::untyped(false)
    };
    let text = |name: &str, rows: &str| std::fs::write(dir.path().join(name), rows).unwrap();
    text("n.csv", "id,f,op\n5,,delete\n");
    text("e.csv", "src,dst,weight,op\n3,3,,delete\n");
    text("p.csv", "src,dst,op\n1,2,delete\n");
    let spec = ChangesSpec {
        nodes: [(String::new(), TablePath::from("n.csv"))].into(),
        edges: [(String::new(), TablePath::from("e.csv"))].into(),
        pairs: Some(TablePath::from("p.csv")),
    };
    let (of_store, keep) = (OfStore::plain(Sampling::Uniform), [2]);
    let graph = shape.write(&of_pairs(), dir.path());
    Changes::check(&spec, dir.path(), &graph, of_store).unwrap();
    let store = build(
        &graph,
        &dir.path().join("new"),
        (Sampling::Uniform, &keep),
        2,
    );
    let mut all = Numbers::of(&store, &graph, Overlay::default()).unwrap();
    let changes = Changes::read(&spec, dir.path(), &graph, of_store).unwrap();
    all.apply(changes).unwrap();
    assert_eq!(all.num_nodes(), 5);
}

/// A night's few ids may all be digits where the nodes' ids are strings.
#[test]
fn digits_in_csv_are_strings_where_ids_are() {
    let dir = tempfile::tempdir().unwrap();
    let text = |name: &str, rows: &str| std::fs::write(dir.path().join(name), rows).unwrap();
    text("nodes.csv", "id,f\na,1\n17,2\n18,3\n");
    text("edges.csv", "src,dst\na,17\n");
    text("n.csv", "id,f,op\n18,,delete\n007,4,upsert\n");
    text("deleted.csv", "id,op\n18,delete\n");
    text("e.csv", "src,dst,op\n007,17,upsert\n");
    let input: InputSpec = serde_json::from_value(serde_json::json!({
        "nodes": { "": { "path": "nodes.csv", "id": "id", "features": ["f"] } },
        "edges": { "": { "path": "edges.csv", "src": "src", "dst": "dst" } },
    }))
    .unwrap();
    let graph = input.into_plan(dir.path()).unwrap();
    let (of_store, keep) = (OfStore::plain(Sampling::Uniform), [2]);
    let store = build(
        &graph,
        &dir.path().join("store"),
        (Sampling::Uniform, &keep),
        2,
    );
    for (nodes, edges, num_nodes) in [("n.csv", Some("e.csv"), 3), ("deleted.csv", None, 2)] {
        let table = |path: &str| (String::new(), TablePath::from(path));
        let spec = ChangesSpec {
            nodes: [table(nodes)].into(),
            edges: edges.into_iter().map(table).collect(),
            pairs: None,
        };
        Changes::check(&spec, dir.path(), &graph, of_store).unwrap();
        let mut all = Numbers::of(&store, &graph, Overlay::default()).unwrap();
        let changes = Changes::read(&spec, dir.path(), &graph, of_store).unwrap();
        all.apply(changes).unwrap();
        assert_eq!(all.num_nodes(), num_nodes, "{nodes}");
    }
}

#[test]
fn tables_with_other_columns_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    apply(dir.path(), &[], &[]).unwrap();
    let shape = Shape::untyped(false);
    let snapshot = Snapshot {
        nodes: vec![[(0, 1.0)].into()],
        edges: vec![Vec::new()],
        pairs: BTreeMap::new(),
    };
    let graph = shape.write(&snapshot, dir.path());
    let text = |values: &[&str]| Arc::new(StringArray::from(values.to_vec())) as ArrayRef;
    let one = || Arc::new(Int64Array::from(vec![1])) as ArrayRef;
    let check = |is_nodes: bool, columns: Vec<(&str, ArrayRef)>, expected: &str| {
        write(&dir.path().join("c.parquet"), columns);
        let table = [(String::new(), TablePath::from("c.parquet"))].into();
        let spec = match is_nodes {
            true => ChangesSpec {
                nodes: table,
                ..ChangesSpec::default()
            },
            false => ChangesSpec {
                edges: table,
                ..ChangesSpec::default()
            },
        };
        let read = Changes::read(&spec, dir.path(), &graph, OfStore::plain(Sampling::Uniform));
        let error = read.unwrap_err();
        let shown = error_chain(&error).replace(&format!("{}/", dir.path().display()), "");
        assert_eq!(shown, expected);
    };
    let op = || text(&["upsert"]);
    check(
        true,
        vec![("id", one()), ("op", op())],
        "`input.changes.nodes`: no column `f` in c.parquet; its columns are id, op",
    );
    check(
        true,
        vec![("id", one()), ("f", one())],
        "`input.changes.nodes`: no column `op` in c.parquet; its columns are id, f",
    );
    check(
        true,
        vec![("id", one()), ("f", one()), ("op", one())],
        "column `op` of c.parquet is int64, allowed for the kind of a change: strings, which are \
         upsert or delete",
    );
    check(
        true,
        vec![("id", text(&["a"])), ("f", one()), ("op", op())],
        "the changes of `input.nodes` have ids of type strings, but the table has int64",
    );
    check(
        true,
        vec![("id", one()), ("f", text(&["a"])), ("op", op())],
        "the changes of `input.nodes` have a column `f` of category, but the table has one of number",
    );
    check(
        false,
        vec![
            ("src", text(&["a"])),
            ("dst", text(&["b"])),
            ("weight", one()),
            ("op", op()),
        ],
        "`input.changes.edges` table: column `src` has strings, but column `id` of `input.nodes` has \
         integers; both must be integers or both strings",
    );
}

#[test]
fn out_edges_of_another_store_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    apply(dir.path(), &[], &[]).unwrap();
    let other = tempfile::tempdir().unwrap();
    std::fs::create_dir(other.path().join("out")).unwrap();
    for entry in std::fs::read_dir(dir.path().join("out")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        std::fs::copy(&path, other.path().join("out").join(name)).unwrap();
    }
    // The same store accepts them.
    apply(other.path(), &[], &[]).unwrap();
    let store = other.path().join("out/out-edges.json");
    let text = std::fs::read_to_string(&store).unwrap();
    let mut meta: serde_json::Value = serde_json::from_str(&text).unwrap();
    meta["store"] = "xxh3:0".into();
    std::fs::write(&store, meta.to_string()).unwrap();
    let error = apply(other.path(), &[], &[]).unwrap_err();
    let expected = format!(
        "the out-edges at {} are those of another store; remove them",
        other.path().join("out").display()
    );
    assert_eq!(error_chain(&error), expected);
}
