//! Compares the engine with the slow twin: every setting, every kind of table, every layout.

use crate::draw::Draw;
use crate::graph::{Graph, Id, Kind, LabelColumn, Shape, Weights};
use crate::naive;
use crate::run::{Choice, Settings, Tables, extract_features, read_features};
use crate::tables::Cut;
use expect_test::expect;
use schemas::{GraphFeature, GraphFeatureDataset, IdType, Ids, Layout, Sampling};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Compares the engine's neighbourhoods with the twin's, in both layouts and by both readers.
fn check(graph: &Graph, cut: Cut, settings: &Settings) {
    let tables = Tables::write(graph, cut);
    let expected = naive::features(graph, settings);
    for layout in [Layout::Rows, Layout::Shards] {
        let settings = Settings {
            layout,
            ..settings.clone()
        };
        let name = format!("{layout:?}");
        tables.flatten(&settings, &name).unwrap();
        let output = tables.path(&name);
        assert_same(&read_features(&output), &expected, &settings);
        assert_same(&extract_features(&output), &expected, &settings);
        assert_parts_are_unions(&output, &expected, graph, &settings);
    }
}

/// Hop and in-edges of each node: sources with their weights, in rank order.
type Union = BTreeMap<String, (usize, Vec<(String, f32)>)>;

/// Checks that a part contains exactly the nodes and in-edges that its targets need.
fn assert_parts_are_unions(
    output: &Path,
    features: &[GraphFeature],
    graph: &Graph,
    settings: &Settings,
) {
    let dataset = GraphFeatureDataset::open(output).unwrap();
    let places = naive::part_order(graph);
    let mut in_order: Vec<&GraphFeature> = features.iter().collect();
    // Features are sorted by sample; each target occurs once per sample.
    let targets: BTreeSet<String> = features
        .iter()
        .map(|f| f.target_nodes().node_id.display(0))
        .collect();
    for sample in in_order.chunks_mut(targets.len().max(1)) {
        sample.sort_by_key(|feature| places[&feature.target_nodes().node_id.display(0)]);
    }
    let of_sample = naive::parts(targets.len(), settings);
    assert_eq!(
        dataset.num_parts(),
        of_sample.len() * in_order.len() / targets.len()
    );
    for part in 0..dataset.num_parts() {
        let shard = dataset.read_part(part).unwrap();
        let first = part / of_sample.len() * targets.len();
        let mine = &of_sample[part % of_sample.len()];
        assert_eq!(
            shard.targets().count(),
            mine.len(),
            "targets of part {part}"
        );
        let mut expected = Union::new();
        mine.iter()
            .for_each(|at| unite(&mut expected, in_order[first + at]));
        let mut found = Union::new();
        let (nodes, edges) = (&shard.nodes[0], &shard.edges[0]);
        for (i, range) in edges.in_offset.windows(2).enumerate() {
            let weight = edges.edge_weight.as_deref();
            let list = in_edges(range, &edges.in_src, weight, &nodes.ids);
            let hop = usize::from(nodes.hop[i]);
            let is_new = found.insert(nodes.ids.display(i), (hop, list)).is_none();
            assert!(is_new, "a node is in part {part} twice");
        }
        assert_eq!(found, expected, "part {part} of {}", output.display());
    }
}

/// A node of the union has its smallest hop and the longest of its in-edge lists.
fn unite(union: &mut Union, feature: &GraphFeature) {
    let (nodes, edges) = (&feature.nodes[0], &feature.edges[0]);
    let (weight, ids) = (edges.edge_weight.as_deref(), &nodes.node_id);
    for i in 0..ids.len() {
        let range = edges.in_offset.get(i..i + 2).unwrap_or(&[0, 0]);
        let list = in_edges(range, &edges.in_src, weight, ids);
        let is_at = |start: &u32| usize::try_from(*start).unwrap() <= i;
        let hop = nodes.hop_offset.partition_point(is_at) - 1;
        let known = union.entry(ids.display(i)).or_insert((hop, Vec::new()));
        known.0 = known.0.min(hop);
        if list.len() > known.1.len() {
            known.1 = list;
        }
    }
}

fn in_edges(
    range: &[u32],
    in_src: &[u32],
    weight: Option<&[f32]>,
    ids: &Ids,
) -> Vec<(String, f32)> {
    let place = |i: u32| usize::try_from(i).unwrap();
    let edge = |e: usize| {
        let src = ids.display(place(in_src[e]));
        (src, weight.map_or(1.0, |all| all[e]))
    };
    (place(range[0])..place(range[1])).map(edge).collect()
}

/// Compares the rendered text, because a missing label is NaN.
fn assert_same(found: &[GraphFeature], expected: &[GraphFeature], settings: &Settings) {
    assert_eq!(found.len(), expected.len(), "targets; {settings:?}");
    for (i, (one, wanted)) in found.iter().zip(expected).enumerate() {
        if one != wanted {
            let (text, wanted_text) = (format!("{one:#?}"), format!("{wanted:#?}"));
            assert_eq!(text, wanted_text, "target {i}; {settings:?}");
        }
    }
}

const FANOUTS: [&str; 8] = [
    "all", "1", "3,2", "2,3", "all,all", "5,all,1", "2,2,2", "1,4,2,3",
];

const WHOLE: Cut = Cut {
    files: 1,
    row_group: 1000,
};

fn random_settings(draw: &mut Draw, graph: &Graph, weights: Weights) -> Settings {
    let sampling = match weights {
        Weights::Few | Weights::Many => {
            draw.pick(&[Sampling::Uniform, Sampling::Weighted, Sampling::Top])
        }
        Weights::Signed | Weights::None => draw.pick(&[Sampling::Uniform, Sampling::Top]),
    };
    let mut listed: Vec<Id> = (0..1 + draw.below(8))
        .map(|_| draw.pick(&graph.ids))
        .collect();
    draw.shuffle(&mut listed);
    Settings {
        sampling,
        targets: draw.pick(&[
            Choice::Labelled,
            Choice::All,
            Choice::Train,
            Choice::Listed(listed),
        ]),
        seed: draw.bits() >> 20,
        samples: draw.pick(&[1, 1, 3]),
        workers: 1 + draw.below(4),
        hub_threshold: draw.pick(&[1, 3, 100, u64::from(u32::MAX)]),
        targets_per_part: draw.pick(&[1, 5, 1000]),
        ..Settings::new(&draw.pick(&FANOUTS.map(str::to_owned)))
    }
}

#[test]
fn random_graphs_flatten_as_the_twin_says() {
    for case in 0..150 {
        let mut draw = Draw::new(case);
        let shape = Shape::random(&mut draw);
        let graph = shape.graph(&mut draw);
        let cut = Cut {
            files: 1 + draw.below(3),
            row_group: draw.pick(&[3, 17, 1000]),
        };
        let settings = random_settings(&mut draw, &graph, shape.weights);
        check(&graph, cut, &settings);
    }
}

#[test]
fn every_fanout_and_sampling_agrees_for_every_worker_count_and_hub_threshold() {
    let mut draw = Draw::new(1);
    let shape = Shape {
        id_type: IdType::Utf8,
        nodes: 25,
        edges: 150,
        features: crate::graph::Features::Dense,
        labels: Kind::Name,
        weights: Weights::Few,
        edge_dim: 2,
        undirected: false,
    };
    let mut graph = shape.graph(&mut draw);
    let mut run = 0;
    for undirected in [false, true] {
        graph.undirected = undirected;
        for fanouts in FANOUTS {
            for sampling in [Sampling::Uniform, Sampling::Weighted, Sampling::Top] {
                // Worker counts and thresholds alternate: each pair occurs six times.
                let settings = Settings {
                    sampling,
                    workers: 1 + run % 4,
                    hub_threshold: [1, 3, 20, u64::from(u32::MAX)][run / 4 % 4],
                    ..Settings::new(fanouts)
                };
                check(&graph, WHOLE, &settings);
                run += 1;
            }
        }
    }
}

#[test]
fn every_kind_of_label_stays_with_its_target() {
    for labels in [
        Kind::None,
        Kind::Class,
        Kind::Name,
        Kind::Multi,
        Kind::Number,
    ] {
        let shape = Shape {
            labels,
            ..Shape::random(&mut Draw::new(3))
        };
        let graph = shape.graph(&mut Draw::new(4));
        check(&graph, WHOLE, &Settings::new("2"));
        let mut no_splits = graph;
        no_splits.splits = None;
        check(&no_splits, WHOLE, &Settings::new("2"));
    }
}

#[test]
fn small_graphs_flatten_as_the_twin_says() {
    for text in [
        "0",
        "0 1 2",
        "0->0",
        "0->0 0->0 1->0",
        "0->1 1->0",
        "0->1 0->1 0->1 2->1",
        "0->1 1->2 2->3 3->4 4->0",
        "1->0 2->0 3->0 4->0 5->0 6->1 6->2",
    ] {
        for workers in [1, 2, 4, 8] {
            let settings = Settings {
                workers,
                hub_threshold: 2,
                ..Settings::new("all,2,all")
            };
            check(&Graph::parse(text), WHOLE, &settings);
        }
    }
}

/// Renders a neighbourhood: nodes by hop, then the in-edges of each node that has some.
fn render(feature: &GraphFeature) -> String {
    let (nodes, edges) = (&feature.nodes[0], &feature.edges[0]);
    let id = |i: u32| nodes.node_id.display(usize::try_from(i).unwrap());
    let hops = nodes.hop_offset.windows(2);
    let hops: Vec<String> = hops
        .map(|range| (range[0]..range[1]).map(id).collect::<Vec<_>>().join(" "))
        .collect();
    let mut text = hops.join(" | ");
    for (dst, range) in (0..).zip(edges.in_offset.windows(2)) {
        let list = range[0]..range[1];
        let list = list.map(|e| id(edges.in_src[usize::try_from(e).unwrap()]));
        let list: Vec<String> = list.collect();
        if !list.is_empty() {
            text += &format!("; {} <- {}", id(dst), list.join(" "));
        }
    }
    text
}

/// Flattens the neighbourhood of node 0, heaviest in-edges first.
fn check_text(graph: &str, fanouts: &str, expected: &str) {
    let settings = Settings {
        sampling: Sampling::Top,
        targets: Choice::Listed(vec![Id::Int(0)]),
        ..Settings::new(fanouts)
    };
    let features = Tables::whole(&Graph::parse(graph)).features(&settings);
    assert_eq!(features.len(), 1);
    assert_eq!(render(&features[0]), expected, "{graph} with {fanouts}");
}

#[test]
fn neighbourhoods_read_as_written_by_hand() {
    let path = "1->0:1 2->0:3 3->0:2 4->2:1 5->2:2 2->3:1";
    check_text(path, "all", "0 | 1 2 3; 0 <- 2 3 1");
    check_text(path, "2", "0 | 2 3; 0 <- 2 3");
    check_text(path, "2,1", "0 | 2 3 | 5; 0 <- 2 3; 2 <- 5; 3 <- 2");
    // The target also serves a later hop, so it keeps three in-edges, and its sources keep three.
    check_text(path, "1,3", "0 | 1 2 3 | 4 5; 0 <- 2 3 1; 2 <- 5 4; 3 <- 2");
    check_text("1 2->1:1 0", "5,5", "0 |  | ");
    check_text("0->0:1 1->0:2", "3,3", "0 | 1 | ; 0 <- 1 0");
    check_text("1->0:1 1->0:3 1->0:2", "2", "0 | 1; 0 <- 1 1");
    check_text("1->0:1 0->1:1", "1,1", "0 | 1 | ; 0 <- 1; 1 <- 0");
    // With equal weights, the smaller source comes first.
    check_text("3->0:1 1->0:1 2->0:1", "2", "0 | 1 2; 0 <- 1 2");
}

/// A change of these samples is a change of the format, which needs a new `ENGINE_VERSION`.
#[test]
fn samples_are_the_same_on_every_machine_and_in_every_version() {
    let numbers = Graph::parse("1->0:1 2->0:2 3->0:3 4->0:4 4->0:5 5->0:0 6->2:1 7->2:1 8->2:9");
    let mut names = numbers.clone();
    names.id_type = IdType::Utf8;
    let rename = |id: &mut Id| {
        if let Id::Int(number) = id {
            *id = Id::Text(format!("n{number}"));
        }
    };
    names.ids.iter_mut().for_each(rename);
    for edge in &mut names.edges {
        rename(&mut edge.src);
        rename(&mut edge.dst);
    }
    let mut rendered = String::new();
    for graph in [numbers, names] {
        for sampling in [Sampling::Uniform, Sampling::Weighted, Sampling::Top] {
            let settings = Settings {
                sampling,
                targets: Choice::Listed(vec![graph.ids[0].clone()]),
                samples: 2,
                ..Settings::new("4,2")
            };
            for feature in Tables::whole(&graph).features(&settings) {
                rendered += &format!("{sampling:?}: {}\n", render(&feature));
            }
        }
    }
    expect![[r#"
        Uniform: 0 | 1 2 4 5 | 7 8; 0 <- 4 5 1 2; 2 <- 7 8
        Uniform: 0 | 1 2 4 5 | 6 7; 0 <- 5 2 1 4; 2 <- 6 7
        Weighted: 0 | 2 3 4 | 6 8; 0 <- 3 4 4 2; 2 <- 6 8
        Weighted: 0 | 1 3 4 | ; 0 <- 3 4 4 1
        Top: 0 | 2 3 4 | 6 8; 0 <- 4 4 3 2; 2 <- 8 6
        Top: 0 | 2 3 4 | 6 8; 0 <- 4 4 3 2; 2 <- 8 6
        Uniform: n0 | n1 n2 n4 n5 | n6 n8; n0 <- n2 n1 n5 n4; n2 <- n6 n8
        Uniform: n0 | n1 n2 n4 | n6 n7; n0 <- n4 n1 n4 n2; n2 <- n7 n6
        Weighted: n0 | n2 n3 n4 | n7 n8; n0 <- n4 n3 n4 n2; n2 <- n8 n7
        Weighted: n0 | n2 n3 n4 | n6 n8; n0 <- n3 n4 n2 n4; n2 <- n8 n6
        Top: n0 | n2 n3 n4 | n6 n8; n0 <- n4 n4 n3 n2; n2 <- n8 n6
        Top: n0 | n2 n3 n4 | n6 n8; n0 <- n4 n4 n3 n2; n2 <- n8 n6
    "#]]
    .assert_eq(&rendered);
}

/// A negative zero is a zero: an edge with this weight is drawn last, not first.
#[test]
fn a_weight_of_minus_zero_is_drawn_last() {
    for seed in 0..20 {
        let settings = Settings {
            sampling: Sampling::Weighted,
            seed,
            targets: Choice::Listed(vec![Id::Int(0)]),
            ..Settings::new("all")
        };
        let graph = Graph::parse("1->0:1 2->0:-0 3->0:5 4->0:0");
        let features = Tables::whole(&graph).features(&settings);
        let sources = &features[0].edges[0].in_src;
        assert_eq!(sources[2..], [2, 4], "seed {seed}: {sources:?}");
    }
}

#[test]
fn only_nodes_above_the_threshold_are_hubs() {
    let check = |threshold: u64, expected: &[(&str, u64)]| {
        for workers in [1, 2, 3, 8] {
            let graph = Graph::parse("1->0 2->0 3->0 1->5 2->5 2->5 3->5 1->6 0->0");
            let settings = Settings {
                workers,
                hub_threshold: threshold,
                ..Settings::new("2")
            };
            let cut = Cut {
                files: 2,
                row_group: 2,
            };
            let manifest = Tables::write(&graph, cut)
                .flatten(&settings, "out")
                .unwrap();
            let expected = expected
                .iter()
                .map(|(id, in_degree)| serde_json::json!({ "id": id, "in_degree": in_degree }));
            let expected = serde_json::Value::Array(expected.collect());
            let hubs = &manifest.report["hubs"];
            assert_eq!(*hubs, expected, "{workers} workers, threshold {threshold}");
        }
    };
    check(1, &[("0", 4), ("5", 4)]);
    check(3, &[("0", 4), ("5", 4)]);
    check(4, &[]);
    check(5, &[]);
}

/// More nodes than a record batch of the store, more edges than one message, many waves.
#[test]
fn a_graph_of_many_batches_flattens_as_the_twin_says() {
    let nodes = 40_000;
    let mut draw = Draw::new(9);
    let mut graph = Graph::parse("0");
    graph.ids = (0..nodes).map(Id::Int).collect();
    draw.shuffle(&mut graph.ids);
    graph.splits = None;
    graph.labels = LabelColumn::Class(
        (0..graph.ids.len())
            .map(|row| Some(u32::try_from(row % 5).unwrap()))
            .collect(),
    );
    graph.weighted = true;
    for _ in 0..150_000 {
        let (src, dst) = (draw.pick(&graph.ids), draw.pick(&graph.ids));
        let dst = if draw.one_in(20) { Id::Int(17) } else { dst };
        let weight = f32::from(u16::try_from(draw.below(99)).unwrap());
        graph.edges.push(crate::graph::Edge {
            src,
            dst,
            weight,
            feature: Vec::new(),
        });
    }
    let mut listed: Vec<Id> = (0..300).map(|_| draw.pick(&graph.ids)).collect();
    listed.push(Id::Int(17));
    let cut = Cut {
        files: 2,
        row_group: 10_000,
    };
    for workers in [1, 3] {
        let settings = Settings {
            sampling: Sampling::Weighted,
            targets: Choice::Listed(listed.clone()),
            workers,
            targets_per_part: 7,
            ..Settings::new("4,3")
        };
        check(&graph, cut, &settings);
    }
}
