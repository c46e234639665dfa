//! Flattening: right neighbourhoods, and the same bytes for any number of workers and any hub
//! threshold.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StringArray, UInt32Array};
use arrow::array::{AsArray as _, Int64Array};
use arrow::datatypes::Float32Type;
use arrow::record_batch::RecordBatch;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use schemas::{GraphFeature, GraphFeatureDataset};

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, IdKind, Job, Table, assert_same_bytes, files_below,
};

const OUTPUT: &str = "out/features";

fn kinds() -> [Graph; 5] {
    [
        Graph::new(60, IdKind::Int64, FeatureKind::List),
        Graph::new(60, IdKind::Utf8, FeatureKind::FixedList).with_weights(),
        Graph::new(60, IdKind::Utf8, FeatureKind::Columns),
        Graph::new(60, IdKind::Int64, FeatureKind::Sparse).with_weights(),
        Graph::new(60, IdKind::Int64, FeatureKind::None),
    ]
}

#[test]
fn workers_and_hub_thresholds_never_change_a_byte() {
    for graph in kinds() {
        let bench = Bench::new(&graph);
        for layout in ["rows", "shards"] {
            let job = Job::new(&graph, &[FLATTEN]).with("shards", layout);
            bench.run(&job, &["--workers", "1"]).ok();
            let expected = bench.data_files(OUTPUT);
            for (workers, hubs) in [
                ("2", ""),
                ("3", ""),
                ("4", ""),
                ("1", "5"),
                ("3", "2"),
                ("4", "7"),
            ] {
                bench.clear();
                let hub_key = format!("hub_threshold = {hubs}");
                let job = if hubs.is_empty() {
                    job.clone()
                } else {
                    job.and(&hub_key)
                };
                bench.run(&job, &["--workers", workers]).ok();
                let what = format!("{graph:?} {layout}, {workers} workers, hub_threshold {hubs:?}");
                assert_same_bytes(&expected, &bench.data_files(OUTPUT), &what);
            }
            bench.clear();
        }
    }
}

#[test]
fn another_seed_draws_another_sample() {
    let graph = Graph::new(60, IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN]);
    bench.run(&job, &[]).ok();
    let first = bench.data_files(OUTPUT);
    bench
        .run(&job.with("seed = 7", "seed = 8"), &["--fresh"])
        .ok();
    assert_ne!(first, bench.data_files(OUTPUT));
}

#[test]
fn both_layouts_hold_the_same_graph_features() {
    for graph in kinds() {
        for fanouts in ["[4, 3]", "[2, 5]", "[\"all\", \"all\"]"] {
            let bench = Bench::new(&graph);
            let job = Job::new(&graph, &[FLATTEN]).with("[4, 3]", fanouts);
            bench.run(&job, &[]).ok();
            let other = job.with("shards", "rows").with("out/features", "out/rows");
            bench.run(&other, &[]).ok();
            // Parts of the two layouts have different targets.
            let datasets = [OUTPUT, "out/rows"]
                .map(|output| GraphFeatureDataset::open(&bench.path(output)).unwrap());
            assert_eq!(datasets[0].num_parts(), datasets[1].num_parts());
            let [of_shards, of_rows] = datasets.map(|dataset| {
                let parts = 0..dataset.num_parts();
                let mut features: Vec<GraphFeature> = parts
                    .flat_map(|part| dataset.read_features(part).unwrap())
                    .collect();
                let id = |feature: &GraphFeature| feature.target_nodes().node_id.clone();
                features.sort_by(|a, b| id(a).cmp(0, &id(b), 0));
                features
            });
            assert!(of_shards == of_rows, "{graph:?}, fanouts {fanouts}");
        }
    }
}

/// One row of layout `rows`, with ids as text.
struct Row {
    target: String,
    nodes: Vec<String>,
    hop_offset: Vec<u32>,
    in_degree: Vec<u32>,
    /// `[src, dst]` of the kept edges.
    edges: Vec<(String, String)>,
    features: Option<Vec<f32>>,
}

fn text(ids: &ArrayRef) -> Vec<String> {
    match ids.as_any().downcast_ref::<Int64Array>() {
        Some(ids) => ids.values().iter().map(ToString::to_string).collect(),
        None => {
            let ids = ids.as_any().downcast_ref::<StringArray>().unwrap();
            ids.iter().map(|id| id.unwrap().to_owned()).collect()
        }
    }
}

fn list(batch: &RecordBatch, column: &str, row: usize) -> ArrayRef {
    batch
        .column_by_name(column)
        .unwrap()
        .as_list::<i32>()
        .value(row)
}

fn numbers(batch: &RecordBatch, column: &str, row: usize) -> Vec<u32> {
    let values = list(batch, column, row);
    values
        .as_any()
        .downcast_ref::<UInt32Array>()
        .unwrap()
        .values()
        .to_vec()
}

/// Reads layout `rows` with only a Parquet reader.
fn rows(bench: &Bench) -> Vec<Row> {
    let mut rows = Vec::new();
    for path in files_below(&bench.path(OUTPUT)) {
        if path
            .extension()
            .is_none_or(|extension| extension != "parquet")
        {
            continue;
        }
        let file = std::fs::File::open(path).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(file)
            .unwrap()
            .build()
            .unwrap();
        for batch in reader {
            let batch = batch.unwrap();
            let targets = text(batch.column_by_name("target").unwrap());
            for (row, target) in targets.into_iter().enumerate() {
                let nodes = text(&list(&batch, "node_id", row));
                let (offset, src) = (
                    numbers(&batch, "in_offset", row),
                    numbers(&batch, "in_src", row),
                );
                let mut edges = Vec::new();
                for dst in 0..offset.len() - 1 {
                    for &s in &src[offset[dst] as usize..offset[dst + 1] as usize] {
                        edges.push((nodes[s as usize].clone(), nodes[dst].clone()));
                    }
                }
                let features = batch.column_by_name("node_feature").map(|_| {
                    list(&batch, "node_feature", row)
                        .as_primitive::<Float32Type>()
                        .values()
                        .to_vec()
                });
                let hop_offset = numbers(&batch, "hop_offset", row);
                let in_degree = numbers(&batch, "in_degree", row);
                rows.push(Row {
                    target,
                    nodes,
                    hop_offset,
                    in_degree,
                    edges,
                    features,
                });
            }
        }
    }
    rows
}

/// The slow twin: finds the distance of every node within `hops` by walking against the edges.
fn distances(graph: &Graph, target: &str, hops: usize) -> BTreeMap<String, usize> {
    let mut hop_of = BTreeMap::from([(target.to_owned(), 0)]);
    let mut frontier = BTreeSet::from([target.to_owned()]);
    for hop in 1..=hops {
        let mut next = BTreeSet::new();
        for &(src, dst) in &graph.edges {
            let src = graph.id(src);
            if frontier.contains(&graph.id(dst)) && !hop_of.contains_key(&src) {
                next.insert(src);
            }
        }
        hop_of.extend(next.iter().map(|node| (node.clone(), hop)));
        frontier = next;
    }
    hop_of
}

#[test]
fn without_sampling_a_row_is_the_exact_neighbourhood() {
    for graph in kinds() {
        let bench = Bench::new(&graph);
        let job = Job::new(&graph, &[FLATTEN]).with("[4, 3]", "[\"all\", \"all\"]");
        let job = job
            .with("shards", "rows")
            .and("targets = \"all\"\nhub_threshold = 6");
        bench.run(&job, &[]).ok();
        let rows = rows(&bench);
        assert_eq!(rows.len(), graph.num_nodes);
        let place: BTreeMap<String, usize> =
            (0..graph.num_nodes).map(|n| (graph.id(n), n)).collect();
        for row in rows {
            let expected = distances(&graph, &row.target, 2);
            let mut have = BTreeMap::new();
            for hop in 0..=2 {
                let (from, to) = (
                    row.hop_offset[hop] as usize,
                    row.hop_offset[hop + 1] as usize,
                );
                have.extend(row.nodes[from..to].iter().map(|node| (node.clone(), hop)));
            }
            assert_eq!(have, expected, "nodes by hop of {}", row.target);
            let inner = |node: usize| expected.get(&graph.id(node)).is_some_and(|&hop| hop < 2);
            let mut wanted: Vec<(String, String)> = (graph.edges.iter())
                .filter(|&&(_, dst)| inner(dst))
                .map(|&(src, dst)| (graph.id(src), graph.id(dst)))
                .collect();
            let mut edges = row.edges.clone();
            wanted.sort();
            edges.sort();
            assert_eq!(edges, wanted, "edges of {}", row.target);
            for (node, degree) in row.nodes.iter().zip(&row.in_degree) {
                let node = place[node];
                let in_edges = graph.edges.iter().filter(|&&(_, dst)| dst == node).count();
                assert_eq!(*degree as usize, in_edges);
            }
            if let Some(features) = row.features {
                let input: Vec<f32> = row
                    .nodes
                    .iter()
                    .flat_map(|node| graph.feature(place[node]))
                    .collect();
                assert_eq!(features, input, "features of {}", row.target);
            }
        }
    }
}

#[test]
fn undirected_adds_the_reverse_of_every_edge() {
    let graph = Graph::new(60, IdKind::Utf8, FeatureKind::List);
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN])
        .with("[4, 3]", "[\"all\", \"all\"]")
        .with("shards", "rows");
    bench
        .run(
            &job.with("dst = \"dst\"", "dst = \"dst\"\nundirected = true"),
            &[],
        )
        .ok();
    let sorted = |of: &Bench| -> Vec<(String, Vec<(String, String)>)> {
        let mut all: Vec<_> = rows(of)
            .into_iter()
            .map(|mut row| {
                row.edges.sort();
                (row.target, row.edges)
            })
            .collect();
        all.sort();
        all
    };
    let undirected = sorted(&bench);
    let mut both = graph.clone();
    both.edges
        .extend(graph.edges.iter().map(|&(src, dst)| (dst, src)));
    let other = Bench::new(&both);
    other.run(&job, &[]).ok();
    assert_eq!(undirected, sorted(&other));
}

#[test]
fn targets_are_those_asked_for() {
    let graph = Graph::new(60, IdKind::Utf8, FeatureKind::List);
    let bench = Bench::new(&graph);
    let mut list = Table::default();
    let wanted: Vec<String> = [5, 59, 0].into_iter().map(|node| graph.id(node)).collect();
    list.set("id", Arc::new(StringArray::from(wanted.clone())));
    list.write(&bench.path("targets.parquet"));
    let in_split = |keep: &dyn Fn(Option<&str>) -> bool| -> BTreeSet<String> {
        (0..60)
            .filter(|&node| keep(graph.split(node)))
            .map(|node| graph.id(node))
            .collect()
    };
    for (targets, expected) in [
        ("labelled", in_split(&|split| split.is_some())),
        ("train", in_split(&|split| split == Some("train"))),
        ("all", in_split(&|_| true)),
        ("targets.parquet", wanted.iter().cloned().collect()),
    ] {
        let job = Job::new(&graph, &[FLATTEN]).with("shards", "rows");
        bench
            .run(&job.and(&format!("targets = \"{targets}\"")), &["--fresh"])
            .ok();
        let have: Vec<String> = rows(&bench).into_iter().map(|row| row.target).collect();
        assert_eq!(have.len(), expected.len(), "{targets}: none twice");
        assert_eq!(
            have.into_iter().collect::<BTreeSet<_>>(),
            expected,
            "{targets}"
        );
    }
}

#[test]
fn several_samples_a_target_are_written() {
    let graph = Graph::new(60, IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN])
        .with("shards", "rows")
        .with("[4, 3]", "[2, 1]");
    bench.run(&job.and("samples_per_target = 3"), &[]).ok();
    let mut samples: BTreeMap<String, Vec<Vec<(String, String)>>> = BTreeMap::new();
    for row in rows(&bench) {
        samples.entry(row.target).or_default().push(row.edges);
    }
    assert!(samples.values().all(|draws| draws.len() == 3));
    assert!(
        samples.values().any(|draws| draws[0] != draws[1]),
        "samples differ"
    );

    bench.run(&job, &["--fresh"]).ok();
    for row in rows(&bench) {
        assert!(
            samples[&row.target].contains(&row.edges),
            "sample 0 is the plain one"
        );
    }
}

#[test]
fn how_the_tables_are_cut_into_files_does_not_show() {
    let graph = Graph::new(60, IdKind::Utf8, FeatureKind::List);
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN]);
    bench.run(&job, &[]).ok();
    let expected = bench.data_files(OUTPUT);
    std::fs::create_dir_all(bench.path("edges/b")).unwrap();
    let table = graph.edge_table();
    let rows = table.column("src").len();
    for (from, to, name) in [(0, 50, "edges/a.parquet"), (50, rows, "edges/b/c.parquet")] {
        let mut part = Table::default();
        for column in ["src", "dst"] {
            part.set(column, table.column(column).slice(from, to - from));
        }
        part.write(&bench.path(name));
    }
    for path in ["edges", "edges/**/*.parquet"] {
        bench.clear();
        bench.run(&job.with("edges.parquet", path), &[]).ok();
        assert_same_bytes(&expected, &bench.data_files(OUTPUT), path);
    }
}

#[test]
fn a_scheduled_job_reads_the_tables_of_a_day() {
    let graph = Graph::new(60, IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN]);
    bench.run(&job, &[]).ok();
    let expected = bench.data_files(OUTPUT);
    bench.clear();
    let day = bench.path("dt=2026-02-28");
    fs::create_dir(&day).unwrap();
    for table in ["nodes.parquet", "edges.parquet"] {
        fs::rename(bench.path(table), day.join(table)).unwrap();
    }
    let dated = job
        .with("nodes.parquet", "dt=${date:%F,-1d}/nodes.parquet")
        .with("edges.parquet", "dt=${date:%F,-1d}/edges.parquet")
        .with("hops = 2", "hops = 3");
    let given = ["--date", "2026-03-01", "--set", "flatten.hops=2"];
    bench.run(&dated, &given).ok();
    assert_same_bytes(&expected, &bench.data_files(OUTPUT), "a day's tables");
    // Another day has no tables.
    let outcome = bench.run(&dated, &["--date", "2026-03-02T12:00:00Z", "--fresh"]);
    assert_eq!(outcome.code, 2, "{outcome:#?}");
    assert!(
        outcome.stderr.contains("dt=2026-03-01/nodes.parquet"),
        "{outcome:#?}"
    );
}

#[test]
fn a_graph_without_edges_still_flattens() {
    let mut graph = Graph::new(12, IdKind::Int64, FeatureKind::List);
    graph.edges.clear();
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN])
        .with("shards", "rows")
        .and("targets = \"all\"");
    bench.run(&job, &[]).ok();
    let rows = rows(&bench);
    assert_eq!(rows.len(), 12);
    assert!(
        rows.iter()
            .all(|row| row.nodes.len() == 1 && row.edges.is_empty())
    );
}

/// Checks that `check` predicts the bytes of flattening to each layout within 30 %.
#[track_caller]
fn assert_predicted(graph: &Graph, fanouts: &str) {
    let bench = Bench::new(graph);
    for layout in ["shards", "rows"] {
        let job = Job::new(graph, &[FLATTEN])
            .with("[4, 3]", fanouts)
            .with("targets_per_part = 16", "targets_per_part = 300")
            .with("shards", layout)
            .and("targets = \"all\"");
        bench.clear();
        bench.write(&job);
        let checked = bench.graphflat(&["check", "job.toml", "--json"]).ok();
        let predicted = &checked.events()[0]["flatten"];
        bench.run(&job, &[]).ok();
        let manifest = bench.manifest(OUTPUT);
        let parts = manifest["parts"].as_array().unwrap();
        assert_eq!(predicted["parts"], parts.len(), "{layout}, {fanouts}");
        let files = parts
            .iter()
            .flat_map(|part| part["files"].as_array().unwrap());
        let written: f64 = files.map(|file| file["bytes"].as_f64().unwrap()).sum();
        let factor = predicted["bytes"][layout].as_f64().unwrap() / written;
        assert!(
            (0.7..1.3).contains(&factor),
            "{layout}, {fanouts}: {factor} of {written} bytes"
        );
    }
}

#[test]
fn check_predicts_a_graph_of_which_half_has_no_in_edges() {
    let int = Graph::new(1000, IdKind::Int64, FeatureKind::List);
    let text = Graph::new(6000, IdKind::Utf8, FeatureKind::FixedList).with_weights();
    for mut graph in [int, text] {
        // Half of the nodes have no in-edges; they come last in the order of the targets.
        graph.edges.retain(|(_, dst)| dst % 2 == 0);
        assert_predicted(&graph, "[4, 3]");
        assert_predicted(&graph, "[\"all\", 2]");
    }
}
