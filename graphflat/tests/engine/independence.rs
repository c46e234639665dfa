//! Workers, hubs, parts, files and earlier runs change no row of the output.

use crate::draw::Draw;
use crate::graph::{Edge, Features, Graph, Id, Kind, Shape, Weights};
use crate::run::{Choice, Settings, Tables, read_features, recorded, snapshot, snapshot_parts};
use crate::tables::Cut;
use graphflat::FlattenError;
use schemas::{ErrorKind, GraphFeature, IdType, Layout, Sampling};
use std::path::Path;

fn graph(seed: u64) -> Graph {
    let shape = Shape {
        id_type: IdType::Utf8,
        nodes: 60,
        edges: 400,
        features: Features::Sparse,
        labels: Kind::Multi,
        weights: Weights::Many,
        edge_dim: 2,
        undirected: true,
    };
    shape.graph(&mut Draw::new(seed))
}

const CUT: Cut = Cut {
    files: 3,
    row_group: 7,
};

#[test]
fn workers_hubs_and_memory_change_no_byte() {
    let tables = Tables::write(&graph(1), CUT);
    for layout in [Layout::Rows, Layout::Shards] {
        for sampling in [Sampling::Uniform, Sampling::Weighted, Sampling::Top] {
            let mut first = None;
            for (workers, hub_threshold, memory_budget) in [
                (1, u64::from(u32::MAX), 1 << 30),
                (1, 1, 0),
                (2, 1, 1 << 30),
                (2, 30, 20_000),
                (3, 3, 1 << 30),
                (4, u64::from(u32::MAX), 0),
                (8, 1, 1 << 30),
                (8, 30, 80_000),
            ] {
                let settings = Settings {
                    sampling,
                    layout,
                    workers,
                    hub_threshold,
                    memory_budget,
                    samples: 2,
                    targets_per_part: 11,
                    ..Settings::new("3,all")
                };
                let name = format!("{layout:?}-{sampling:?}-{workers}-{hub_threshold}");
                tables.flatten(&settings, &name).unwrap();
                let files = snapshot_parts(&tables.path(&name));
                assert!(files.len() >= 12, "{} files", files.len());
                assert!(*first.get_or_insert(files.clone()) == files, "{name}");
            }
        }
    }
}

/// Makes a graph with three hubs. Many of their in-edges are self-loops, and most are parallel to
/// edges far away in the table; weight and feature tell parallel edges apart.
fn hubs(seed: u64, id_type: IdType, undirected: bool, sorted: bool) -> Graph {
    let shape = Shape {
        id_type: IdType::Int64,
        nodes: 24,
        edges: 0,
        features: Features::Dense,
        labels: Kind::None,
        weights: Weights::Many,
        edge_dim: 1,
        undirected,
    };
    let mut draw = Draw::new(seed);
    let mut graph = shape.graph(&mut draw);
    graph.id_type = id_type;
    graph.ids = (0..24i128).map(Id::Int).collect();
    for row in 0..300u16 {
        let dsts = if draw.one_in(3) { 24 } else { 3 };
        let dst = draw.below(dsts);
        let src = if draw.one_in(9) { dst } else { draw.below(7) };
        graph.edges.push(Edge {
            src: graph.ids[src].clone(),
            dst: graph.ids[dst].clone(),
            weight: 1.0 + f32::from(row) / 512.0,
            feature: vec![f32::from(row)],
        });
    }
    if sorted {
        graph.edges.sort_by(|a, b| a.dst.cmp(&b.dst));
    }
    if id_type == IdType::Utf8 {
        let ends = graph
            .edges
            .iter_mut()
            .flat_map(|edge| [&mut edge.src, &mut edge.dst]);
        for id in graph.ids.iter_mut().chain(ends) {
            if let Id::Int(number) = id {
                *id = Id::Text(format!("n{number}"));
            }
        }
    }
    graph
}

fn check_hubs(graph: &Graph, cut: Cut, sampling: Sampling) {
    let tables = Tables::write(graph, cut);
    let in_edges = graph.edges.len() * (1 + usize::from(graph.undirected));
    let mut first = None;
    for workers in [1, 2, 3, 8] {
        for (i, hub_threshold) in [1, 2, 3, 20, u64::from(u32::MAX)].into_iter().enumerate() {
            let settings = Settings {
                sampling,
                workers,
                hub_threshold,
                memory_budget: [0, 30_000, 1 << 30][(workers + i) % 3],
                samples: 2,
                ..Settings::new("5,all")
            };
            let name = format!("{workers}-{hub_threshold}");
            tables.flatten(&settings, &name).unwrap();
            let counts = tables.store(&settings).unwrap().meta().edges.clone();
            assert_eq!(counts.in_edges, in_edges as u64);
            assert_eq!(
                counts.received_by_worker.iter().sum::<u64>(),
                in_edges as u64
            );
            let files = snapshot_parts(&tables.path(&name));
            let expected = first.get_or_insert_with(|| {
                let features = read_features(&tables.path(&name));
                assert!(features == crate::naive::features(graph, &settings));
                files.clone()
            });
            assert!(files == *expected, "{cut:?}, {sampling:?}, {name}");
            std::fs::remove_dir_all(tables.path("store")).unwrap();
        }
    }
}

/// A hub is detected after some of its edges have gone to its owner.
#[test]
fn hubs_found_on_the_way_change_no_byte() {
    for (seed, row_group) in [(1, 5), (2, 64)] {
        let cut = Cut {
            files: 3,
            row_group,
        };
        for undirected in [false, true] {
            for sorted in [false, true] {
                let graph = hubs(seed, IdType::Int64, undirected, sorted);
                for sampling in [Sampling::Uniform, Sampling::Weighted] {
                    check_hubs(&graph, cut, sampling);
                }
            }
        }
        let graph = hubs(seed, IdType::Utf8, true, false);
        check_hubs(&graph, cut, Sampling::Uniform);
    }
}

/// The hub's edges come from one worker or from all.
#[test]
fn a_hub_is_spread_evenly() {
    let mut graph = Graph::parse("0");
    graph.ids = (0..4000).map(Id::Int).collect();
    graph.splits = None;
    for src in &graph.ids {
        graph.edges.push(Edge {
            src: src.clone(),
            dst: Id::Int(7),
            weight: 1.0,
            feature: Vec::new(),
        });
    }
    for (row_group, hub_threshold) in [(100, 1), (100, 3000), (4000, 3000)] {
        let cut = Cut {
            files: 1,
            row_group,
        };
        let settings = Settings {
            workers: 4,
            hub_threshold,
            ..Settings::new("3")
        };
        let store = Tables::write(&graph, cut).store(&settings).unwrap();
        let ranked = &store.meta().edges.received_by_worker;
        let is_even = ranked.iter().all(|count| (850..1150).contains(count));
        assert!(is_even, "{ranked:?}");
    }
}

#[test]
fn the_same_job_writes_the_same_directory() {
    let settings = Settings {
        workers: 3,
        targets_per_part: 10,
        ..Settings::new("2,2")
    };
    let [first, second] = [1, 2].map(|_| {
        let tables = Tables::write(&graph(2), CUT);
        tables.flatten(&settings, "out").unwrap();
        snapshot(&tables.path("out"))
    });
    assert!(first.contains_key("_manifest.json") && first.contains_key("_SUCCESS"));
    assert!(first == second);
}

/// Reads a figure of every worker in every round from the manifest, by the round's name.
fn rounds(output: &Path, figure: &str) -> Vec<(String, Vec<u64>)> {
    let text = std::fs::read(output.join("_manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let rounds = manifest["report"]["rounds"].as_array().unwrap().iter();
    let of_workers = |round: &serde_json::Value| {
        let workers = round["workers"].as_array().unwrap().iter();
        workers.map(|w| w[figure].as_u64().unwrap()).collect()
    };
    rounds
        .map(|round| {
            (
                round["name"].as_str().unwrap().to_owned(),
                of_workers(round),
            )
        })
        .collect()
}

#[test]
fn what_each_worker_did_is_written_down() {
    let tables = Tables::write(&graph(9), CUT);
    let settings = Settings {
        workers: 3,
        targets_per_part: 8,
        ..Settings::new("2,2")
    };
    tables.flatten(&settings, "out").unwrap();
    let out = tables.path("out");
    let nodes = rounds(&out, "nodes");
    let names: Vec<&str> = nodes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["round 1", "round 2", "features", "write"]);
    assert!(nodes.iter().all(|(_, workers)| workers.len() == 3));
    let total = |round: usize| nodes[round].1.iter().sum::<u64>();
    // Every node is a target; each part fetches each of its nodes once, and writes it.
    assert_eq!(total(0), 60);
    assert_eq!(total(2), total(3));
    assert!(total(0) + total(1) <= total(2), "{nodes:?}");
    let in_edges = rounds(&out, "in_edges");
    let sent: u64 = in_edges[..2].iter().flat_map(|(_, w)| w).sum();
    assert_eq!(sent, in_edges[3].1.iter().sum::<u64>());
    let files = snapshot_parts(&out).into_values();
    let written: usize = files.map(|bytes| bytes.len()).sum();
    let (_, bytes) = rounds(&out, "bytes").swap_remove(3);
    assert_eq!(bytes.iter().sum::<u64>(), written as u64);
}

#[test]
fn parts_and_waves_change_no_row() {
    let tables = Tables::write(&graph(3), CUT);
    let mut first: Option<Vec<GraphFeature>> = None;
    for layout in [Layout::Rows, Layout::Shards] {
        for targets_per_part in [1, 2, 7, 60, 1000] {
            let settings = Settings {
                layout,
                targets_per_part,
                samples: 3,
                workers: 2,
                ..Settings::new("2,3")
            };
            let features = tables.features(&settings);
            assert_eq!(features.len(), 180);
            let expected = first.get_or_insert(features.clone());
            assert!(features == *expected, "{layout:?}, {targets_per_part}");
        }
    }
}

#[test]
fn the_cut_of_the_input_changes_no_row() {
    let graph = graph(4);
    let mut first: Option<Vec<GraphFeature>> = None;
    for files in [1, 2, 5] {
        for row_group in [1, 13, 1000] {
            let settings = Settings {
                workers: files,
                ..Settings::new("2,3")
            };
            let features = Tables::write(&graph, Cut { files, row_group }).features(&settings);
            let expected = first.get_or_insert(features.clone());
            assert!(features == *expected, "{files} files, {row_group} rows");
        }
    }
}

/// Drops parallel edges: their ordinals depend on their rows in the input.
fn without_parallel_edges(graph: &mut Graph) {
    let mut seen = std::collections::BTreeSet::new();
    let undirected = graph.undirected;
    graph.edges.retain(|edge| {
        let mut ends = [edge.src.clone(), edge.dst.clone()];
        if undirected {
            ends.sort();
        }
        edge.src != edge.dst && seen.insert(ends)
    });
}

#[test]
fn the_order_of_the_rows_changes_no_row() {
    let mut graph = graph(5);
    without_parallel_edges(&mut graph);
    let settings = Settings {
        sampling: Sampling::Weighted,
        hub_threshold: 5,
        workers: 2,
        ..Settings::new("2,3")
    };
    let expected = Tables::write(&graph, CUT).features(&settings);
    for seed in 0..3 {
        Draw::new(seed).shuffle(&mut graph.edges);
        let features = Tables::write(&graph, CUT).features(&settings);
        assert!(features == expected);
    }
}

#[test]
fn ids_of_any_width_draw_the_same_samples() {
    let shape = Shape {
        id_type: IdType::Int32,
        nodes: 40,
        edges: 300,
        features: Features::None,
        labels: Kind::None,
        weights: Weights::None,
        edge_dim: 0,
        undirected: false,
    };
    let mut graph = shape.graph(&mut Draw::new(7));
    let positive = |id: &mut Id| {
        if let Id::Int(number) = id {
            *number += 1 << 31;
            *number /= 2;
        }
    };
    graph.ids.iter_mut().for_each(positive);
    graph.edges.iter_mut().for_each(|edge| {
        positive(&mut edge.src);
        positive(&mut edge.dst);
    });
    let mut first: Option<Vec<String>> = None;
    for id_type in [IdType::Int32, IdType::Int64, IdType::UInt64] {
        graph.id_type = id_type;
        let features = Tables::whole(&graph).features(&Settings::new("2,2"));
        let render = |f: &GraphFeature| {
            let (ids, edges) = (&f.nodes[0].node_id, &f.edges[0]);
            let ids: Vec<_> = (0..ids.len()).map(|i| ids.display(i)).collect();
            format!("{ids:?} {:?} {:?}", edges.in_offset, edges.in_src)
        };
        let rendered: Vec<String> = features.iter().map(render).collect();
        assert_eq!(*first.get_or_insert(rendered.clone()), rendered);
    }
}

/// Builds or opens the store; returns whether it was built.
fn builds(tables: &Tables, settings: &Settings) -> bool {
    let (progress, events) = recorded();
    let plan = tables.store_plan(settings).unwrap();
    store::open_or_build(&plan, &progress).unwrap();
    let events = events.lock().unwrap();
    events.iter().any(|event| event.starts_with("store"))
}

#[test]
fn a_store_is_built_again_only_if_it_does_not_fit() {
    let mut tables = Tables::write(&graph(7), CUT);
    let settings = Settings {
        workers: 2,
        ..Settings::new("4")
    };
    assert!(builds(&tables, &settings), "there is none");
    let before = snapshot(&tables.path("store"));
    assert!(!builds(&tables, &settings), "it is there");
    for fits in [
        Settings::new("2"),
        Settings::new("4,3,1"),
        Settings {
            hub_threshold: 3,
            targets_per_part: 2,
            layout: Layout::Shards,
            ..Settings::new("4")
        },
    ] {
        let fits = Settings { workers: 2, ..fits };
        assert!(!builds(&tables, &fits), "{fits:?}");
    }
    assert!(before == snapshot(&tables.path("store")));
    for other in [
        Settings::new("4"),
        Settings {
            workers: 2,
            ..Settings::new("5")
        },
        Settings {
            workers: 2,
            seed: 8,
            ..Settings::new("4")
        },
        Settings {
            workers: 2,
            sampling: Sampling::Top,
            ..Settings::new("4")
        },
        Settings {
            workers: 2,
            samples: 2,
            ..Settings::new("all")
        },
    ] {
        assert!(builds(&tables, &other), "{other:?}");
        assert!(!builds(&tables, &other), "{other:?}");
        // A store that keeps more in-edges serves a job that needs fewer.
        let keeps_more = other.fanouts == Settings::new("5").fanouts;
        assert!(builds(&tables, &settings) != keeps_more, "{other:?}");
    }
    tables.edges.undirected = false;
    assert!(builds(&tables, &settings), "other edges");
    tables.rewrite(&graph(8), CUT);
    assert!(builds(&tables, &settings), "other input");
}

#[test]
fn a_store_that_keeps_more_gives_the_same_bytes() {
    let tables = Tables::write(&graph(9), CUT);
    let small = Settings {
        sampling: Sampling::Weighted,
        workers: 2,
        ..Settings::new("2,1")
    };
    tables.flatten(&small, "small").unwrap();
    let large = Settings {
        fanouts: Settings::new("all").fanouts,
        ..small.clone()
    };
    tables.flatten(&large, "large").unwrap();
    assert!(!builds(&tables, &small));
    tables.flatten(&small, "again").unwrap();
    assert!(snapshot_parts(&tables.path("small")) == snapshot_parts(&tables.path("again")));
}

/// Damages a file of the store, then expects a new store and the same output.
fn check_damage(damage: impl Fn(&Path)) {
    let tables = Tables::write(&graph(10), CUT);
    let settings = Settings {
        workers: 2,
        ..Settings::new("3,2")
    };
    tables.flatten(&settings, "before").unwrap();
    let expected = snapshot_parts(&tables.path("before"));
    let names: Vec<String> = snapshot(&tables.path("store")).into_keys().collect();
    assert_eq!(names.len(), 7, "{names:?}");
    for name in names {
        damage(&tables.path("store").join(&name));
        assert!(builds(&tables, &settings), "{name}");
        let output = format!("after-{name}");
        tables.flatten(&settings, &output).unwrap();
        assert!(snapshot_parts(&tables.path(&output)) == expected, "{name}");
    }
}

#[test]
fn where_the_tables_lie_does_not_count() {
    let mut tables = Tables::write(&graph(4), CUT);
    let settings = Settings::new("2,2");
    let first = tables.flatten(&settings, "out").unwrap();
    let store = snapshot(&tables.path("store"));
    tables.nodes.path = format!("./{}", tables.nodes.path).into();
    tables.edges.path = format!("./{}", tables.edges.path).into();
    let again = tables.flatten(&settings, "out").unwrap();
    assert_eq!(again.fingerprint, first.fingerprint);
    assert!(snapshot(&tables.path("store")) == store);
}

#[test]
fn a_damaged_store_is_built_again() {
    check_damage(|path| {
        // The old file may still be mapped, so a damaged copy replaces it.
        let mut bytes = std::fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, bytes).unwrap();
    });
    check_damage(|path| {
        let bytes = std::fs::read(path).unwrap();
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() / 3]).unwrap();
    });
    check_damage(|path| std::fs::remove_file(path).unwrap());
}

#[test]
fn a_finished_output_is_left_alone() {
    let tables = Tables::write(&graph(11), CUT);
    let settings = Settings::new("3,2");
    let manifest = tables.flatten(&settings, "out").unwrap();
    let times = || {
        let files = std::fs::read_dir(tables.path("out")).unwrap();
        let mut times: Vec<_> = files
            .map(|entry| {
                let entry = entry.unwrap();
                let modified = entry.metadata().unwrap().modified().unwrap();
                (entry.file_name(), modified)
            })
            .collect();
        times.sort();
        times
    };
    let before = times();
    // The number of workers and the hub threshold do not change the output.
    let other_means = Settings {
        workers: 3,
        hub_threshold: 1,
        ..settings.clone()
    };
    assert_eq!(tables.flatten(&other_means, "out").unwrap(), manifest);
    assert_eq!(times(), before);
}

#[test]
fn the_output_of_another_plan_is_refused() {
    let tables = Tables::write(&graph(12), CUT);
    let settings = Settings::new("3,2");
    tables.flatten(&settings, "out").unwrap();
    let before = snapshot(&tables.path("out"));
    for other in [
        Settings::new("3,1"),
        Settings {
            seed: 8,
            ..settings.clone()
        },
        Settings {
            layout: Layout::Shards,
            ..settings.clone()
        },
        Settings {
            targets: Choice::Train,
            ..settings.clone()
        },
        Settings {
            targets_per_part: 3,
            ..settings.clone()
        },
        Settings {
            samples: 2,
            ..settings.clone()
        },
    ] {
        let error = tables.flatten(&other, "out").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(error.to_string().contains("another plan or input"));
        assert!(snapshot(&tables.path("out")) == before, "{other:?}");
    }
    let (progress, _) = recorded();
    let train = Settings {
        targets: Choice::Train,
        ..settings
    };
    tables.flatten_with(&train, "out", true, &progress).unwrap();
    let expected = crate::naive::features(&graph(12), &train);
    assert_eq!(read_features(&tables.path("out")).len(), expected.len());
}

/// A list of targets is identified by its content: the same path with other ids is another plan.
#[test]
fn another_list_of_targets_is_another_plan() {
    let graph = graph(13);
    let tables = Tables::write(&graph, CUT);
    let listed = |ids: &[Id]| Settings {
        targets: Choice::Listed(ids.to_vec()),
        ..Settings::new("2")
    };
    let (two, three) = (&graph.ids[..2], &graph.ids[..3]);
    let manifest = tables.flatten(&listed(two), "out").unwrap();
    assert_eq!(tables.flatten(&listed(two), "out").unwrap(), manifest);
    let error = tables.flatten(&listed(three), "out").unwrap_err();
    assert!(matches!(error, FlattenError::Schema(_)), "{error}");
    assert_eq!(tables.flatten(&listed(two), "out").unwrap(), manifest);
}
