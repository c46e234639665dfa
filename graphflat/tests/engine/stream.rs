//! Parts drawn by [`Waves`] equal the shards that flatten writes.

use crate::draw::Draw;
use crate::graph::{Edge, Features, Graph, Id, Kind, Shape, Weights};
use crate::run::{Choice, Settings, Tables};
use crate::tables::Cut;
use graphflat::Waves;
use schemas::{DenseRows, GraphFeatureDataset, GraphShard, IdType, Layout, Sampling};

const CUT: Cut = Cut {
    files: 2,
    row_group: 9,
};

/// Draws a part and adds its dense features.
fn drawn(waves: &Waves, part: usize, seed: u64) -> GraphShard {
    let (mut shard, dense) = waves.draw(part, seed).unwrap();
    for rows in dense.into_iter().flatten() {
        let nodes = 0..shard.num_nodes();
        shard.nodes[0].features = schemas::Features::Dense {
            dim: rows.dim(),
            values: nodes.flat_map(|node| rows.row(node).to_vec()).collect(),
        };
    }
    shard
}

/// Draws all parts for several seeds from one store, and compares them with the output of flatten
/// for each seed.
fn check(graph: &Graph, settings: &Settings, seeds: u64) {
    let tables = Tables::write(graph, CUT);
    let settings = Settings {
        layout: Layout::Shards,
        redraw: true,
        ..settings.clone()
    };
    let store = tables.store(&settings).unwrap();
    let plan = tables.flatten_plan(&settings, "none", false);
    let waves = Waves::open(plan.sample(), &store).unwrap();
    let mut first = None;
    for seed in settings.seed..settings.seed + seeds {
        let other = Settings {
            seed,
            redraw: false,
            ..settings.clone()
        };
        let output = format!("out-{seed}");
        let manifest = tables.flatten(&other, &output).unwrap();
        let dataset = GraphFeatureDataset::open(&tables.path(&output)).unwrap();
        let counts = waves.target_counts();
        assert_eq!(counts.len(), dataset.num_parts(), "{settings:?}");
        let mut all = Vec::new();
        for (part, count) in counts.into_iter().enumerate() {
            let shard = drawn(&waves, part, seed);
            let expected = dataset.read_part(part).unwrap();
            // Compared as text, because a missing label is NaN, which equals nothing.
            let (text, written) = (format!("{shard:?}"), format!("{expected:?}"));
            assert_eq!(text, written, "part {part}, seed {seed}, {settings:?}");
            assert_eq!(dataset.part(part).targets, Some(count));
            all.push(shard);
        }
        if seed == settings.seed {
            assert_eq!(manifest.flatten, Some(waves.flatten_meta()));
            first = Some(all);
        }
    }
    // A repeated draw gives the same part, whatever was drawn in between.
    for (part, shard) in first.into_iter().flatten().enumerate() {
        let again = drawn(&waves, part, settings.seed);
        assert_eq!(format!("{again:?}"), format!("{shard:?}"));
    }
}

#[test]
fn drawn_shards_are_those_that_flatten_writes() {
    for round in 0..40 {
        let mut draw = Draw::new(500 + round);
        let shape = Shape {
            weights: draw.pick(&[Weights::Few, Weights::Many]),
            ..Shape::random(&mut draw)
        };
        let settings = Settings {
            sampling: draw.pick(&[Sampling::Uniform, Sampling::Weighted, Sampling::Top]),
            targets: draw.pick(&[Choice::Labelled, Choice::All, Choice::Train]),
            seed: draw.bits() >> 2,
            workers: 1 + draw.below(4),
            hub_threshold: draw.pick(&[1, 7, 1000]),
            targets_per_part: draw.pick(&[3, 11, 1000]),
            ..Settings::new(draw.pick(&["3", "2,5", "5,2", "1,all", "all,1", "4,1,3"]))
        };
        check(&shape.graph(&mut draw), &settings, 3);
    }
}

#[test]
fn unweighted_and_signed_graphs_are_drawn_too() {
    for (round, weights) in (0..).zip([Weights::None, Weights::Signed]) {
        let shape = Shape {
            id_type: IdType::Utf8,
            nodes: 50,
            edges: 300,
            features: Features::Dense,
            labels: Kind::Class,
            weights,
            edge_dim: 2,
            undirected: true,
        };
        let settings = Settings {
            workers: 2,
            hub_threshold: 10,
            targets_per_part: 20,
            ..Settings::new("3,2")
        };
        check(&shape.graph(&mut Draw::new(round)), &settings, 4);
    }
}

/// A hub with many parallel in-edges: streamed draws rank its in-edges as the store does.
#[test]
fn a_large_hub_is_drawn_as_it_is_ranked() {
    let mut draw = Draw::new(3);
    let mut graph = Graph::parse("0 0->1:1 1->0:1");
    graph.ids = (0..5_000).map(Id::Int).collect();
    graph.splits = Some(vec![schemas::Split::Train; graph.ids.len()]);
    graph.edges.extend((0..30_000u16).map(|i| Edge {
        src: draw.pick(&graph.ids),
        dst: Id::Int(0),
        weight: f32::from(i % 7),
        feature: Vec::new(),
    }));
    for (sampling, workers) in [(Sampling::Uniform, 1), (Sampling::Weighted, 3)] {
        let settings = Settings {
            sampling,
            workers,
            targets: Choice::Listed(vec![Id::Int(0), Id::Int(1)]),
            ..Settings::new("8,20")
        };
        check(&graph, &settings, 3);
    }
}

/// One store has the samples and all in-edges; a store without all in-edges is rebuilt.
#[test]
fn a_store_that_keeps_all_in_edges_serves_flatten_too() {
    let shape = Shape {
        id_type: IdType::Int64,
        nodes: 40,
        edges: 200,
        features: Features::Sparse,
        labels: Kind::Class,
        weights: Weights::Few,
        edge_dim: 0,
        undirected: false,
    };
    let tables = Tables::write(&shape.graph(&mut Draw::new(1)), CUT);
    let settings = |redraw| Settings {
        redraw,
        workers: 2,
        samples: 2,
        ..Settings::new("3,2")
    };
    tables.store(&settings(false)).unwrap();
    let store = tables.store(&settings(true)).unwrap();
    let built = store.meta().files.clone();
    assert!(store.meta().redraw && built.len() == 2 * 5);
    let again = tables.store(&settings(false)).unwrap();
    assert_eq!(again.meta().files, built);
    tables.flatten(&settings(false), "out").unwrap();
}
