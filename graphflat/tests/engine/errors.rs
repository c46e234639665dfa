//! Bad input gives an error that names it, on every number of workers, and leaves no output.

use crate::graph::{Edge, Graph, Id};
use crate::naive;
use crate::run::{Choice, Settings, Tables, read_features};
use crate::tables::Cut;
use schemas::{Dangling, ErrorKind, IdType, Sampling, Split};

/// Tables of three files each, with row groups of two rows.
const CUT: Cut = Cut {
    files: 3,
    row_group: 2,
};

/// Expects the same error of kind `data` for every number of workers, and no output.
fn check(tables: &Tables, settings: &Settings, expected: &str) {
    for workers in 1..=4 {
        let settings = Settings {
            workers,
            hub_threshold: 2,
            ..settings.clone()
        };
        let error = tables.flatten(&settings, "out").unwrap_err();
        let dir = format!("{}/", tables.path("").display()).replace("//", "/");
        let text = error.to_string().replace(&dir, "");
        assert_eq!(text, expected, "{workers} workers");
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(!tables.path("out").exists(), "{workers} workers");
    }
}

fn edge(src: i128, dst: i128) -> Edge {
    Edge {
        src: Id::Int(src),
        dst: Id::Int(dst),
        weight: 1.0,
        feature: Vec::new(),
    }
}

const RING: &str = "0->1 1->2 2->3 3->4 4->5 5->6 6->7 7->8 8->0";

#[test]
fn an_id_that_stands_twice_is_named_with_both_rows() {
    let mut graph = Graph::parse(RING);
    graph.splits = None;
    graph.ids.insert(7, Id::Int(1));
    // Ten rows in three files: 0 to 2, 3 to 5, 6 to 9.
    let expected =
        "node id 1 occurs twice: row 1 of nodes/00.parquet and row 1 of nodes/02.parquet";
    check(&Tables::write(&graph, CUT), &Settings::new("1"), expected);
}

#[test]
fn an_edge_to_no_node_is_named() {
    for (src, dst, column, id) in [(3, 77, "to", 77), (88, 3, "from", 88), (88, 77, "from", 88)] {
        let mut graph = Graph::parse(RING);
        graph.edges[4] = edge(src, dst);
        // A second dangling edge: the error names the first and counts both.
        graph.edges[5] = edge(99, 1);
        let expected = format!(
            "column `{column}`, row 1 of edges/01.parquet: no node has the id {id}; 2 of 9 rows \
             have an end that is no node, 22 %: are these the ids of the nodes? `dangling = \
             \"drop\"` under [input.edges] leaves them out"
        );
        let one_group = Cut {
            files: 3,
            row_group: 10,
        };
        let tables = Tables::write(&graph, one_group);
        check(&tables, &Settings::new("1"), &expected);
    }
}

#[test]
fn dropped_edges_are_counted_and_leave_no_trace() {
    for undirected in [false, true] {
        let mut graph = Graph::parse("0->1:1 1->2:2 2->0:3 0->2:4 1->1:5");
        graph.undirected = undirected;
        let mut dangling = graph.clone();
        dangling.edges.insert(0, edge(50, 1));
        dangling.edges.insert(3, edge(1, 51));
        dangling.edges.push(edge(52, 53));
        let mut tables = Tables::write(&dangling, CUT);
        tables.edges.dangling = Dangling::Drop;
        for workers in 1..=4 {
            let settings = Settings {
                workers,
                sampling: Sampling::Weighted,
                hub_threshold: 1,
                ..Settings::new("all,2")
            };
            let store = tables.store(&settings).unwrap();
            assert_eq!(store.meta().edges.dropped_rows, 3);
            assert_eq!(store.meta().edges.in_edges, if undirected { 10 } else { 5 });
            assert!(tables.features(&settings) == naive::features(&graph, &settings));
        }
    }
}

#[test]
fn edges_that_are_all_dropped_leave_nodes_alone() {
    let mut graph = Graph::parse("0 1 2");
    graph.edges = vec![edge(5, 1), edge(2, 6)];
    let mut tables = Tables::write(&graph, CUT);
    tables.edges.dangling = Dangling::Drop;
    graph.edges.clear();
    for workers in 1..=4 {
        let settings = Settings {
            workers,
            ..Settings::new("all,2")
        };
        assert!(tables.features(&settings) == naive::features(&graph, &settings));
    }
}

#[test]
fn a_job_without_targets_says_what_would_help() {
    let mut graph = Graph::parse(RING);
    graph.splits = Some(vec![Split::None; 9]);
    let tables = Tables::write(&graph, CUT);
    let choose = |targets: Choice| Settings {
        targets,
        ..Settings::new("1")
    };
    check(
        &tables,
        &choose(Choice::Labelled),
        "no node is a target: no node has a split (train, val or test) in the `split` column of \
         [input.nodes]; `targets = \"all\"` takes every node",
    );
    check(
        &tables,
        &choose(Choice::Train),
        "no node is a target: no node has the split `train` in the `split` column of [input.nodes]",
    );
    check(
        &tables,
        &choose(Choice::Listed(Vec::new())),
        "no node is a target: the list in `flatten.targets` is empty",
    );
    // The same output is written after the mistake is corrected.
    tables.flatten(&choose(Choice::All), "out").unwrap();
    assert_eq!(read_features(&tables.path("out")).len(), 9);
}

#[test]
fn a_graph_without_nodes_has_no_targets() {
    let mut graph = Graph::parse("");
    graph.splits = None;
    let no_target = "no node is a target: the node table is empty";
    check(&Tables::write(&graph, CUT), &Settings::new("2"), no_target);
    graph.edges = vec![edge(1, 2)];
    let no_end = "column `from`, row 0 of edges/02.parquet: no node has the id 1; 1 of 1 \
                  rows have an end that is no node, 100 %: are these the ids of the nodes? \
                  `dangling = \"drop\"` under [input.edges] leaves them out";
    check(&Tables::write(&graph, CUT), &Settings::new("2"), no_end);
}

#[test]
fn a_listed_target_that_is_no_node_is_named() {
    let listed = |ids: &[i128]| Settings {
        targets: Choice::Listed(ids.iter().copied().map(Id::Int).collect()),
        ..Settings::new("1")
    };
    let mut graph = Graph::parse(RING);
    check(
        &Tables::write(&graph, CUT),
        &listed(&[3, 2, 40, 41, 2]),
        "column `name` of targets.parquet, row 2: is 40, which is no node's id",
    );
    // An id beyond the nodes' type belongs to no node.
    graph.id_type = IdType::Int32;
    let tables = Tables::write(&graph, CUT);
    tables.list_type.set(IdType::Int64);
    check(
        &tables,
        &listed(&[3, 5_000_000_000]),
        "column `name` of targets.parquet, row 1: is 5000000000, but the nodes' ids are int32",
    );
    tables.flatten(&listed(&[3, 3, 8]), "out").unwrap();
    assert_eq!(read_features(&tables.path("out")).len(), 2);
}

/// A bad value that only one worker reads ends the run on all workers.
#[test]
fn a_bad_value_ends_all_workers() {
    let mut graph = Graph::parse(RING);
    graph.weighted = true;
    graph.edges[8].weight = -1.5;
    let tables = Tables::write(&graph, CUT);
    let weighted = Settings {
        sampling: Sampling::Weighted,
        ..Settings::new("1")
    };
    let expected = "column `weight` of edges/02.parquet, row 2: is -1.5; weighted sampling allows \
                    no negative weight";
    check(&tables, &weighted, expected);
    assert!(!tables.path("store/store.json").exists());
    tables.flatten(&Settings::new("1"), "uniform").unwrap();
    graph.edges[4].weight = f32::NAN;
    let error = Tables::write(&graph, CUT)
        .flatten(&Settings::new("1"), "out")
        .unwrap_err();
    assert!(error.to_string().contains("edges/01.parquet, row 1"));
}
