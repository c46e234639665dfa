//! Typed graphs: the engine gives the neighbourhoods of the slow twin, for any number of workers.

mod graph;
mod twin;

use crate::draw::Draw;
use crate::graph::{Edge, Graph, Id, Weights};
use crate::lawful::{Outcome, excess, law};
use crate::run::{
    Choice, Settings, extract_features, read_features, silent, snapshot_parts, temporary_dir,
};
use graph::{NodeType, Relation, TypedGraph, rename_types};
use graphflat::{FlattenPlan, FlattenSpec, HopSpec, Targets, Waves, flatten};
use schemas::{
    DenseRows, Fanout, Features, GraphFeature, GraphFeatureDataset, GraphPlan, GraphShard, Layout,
    Sampling, SplitCounts,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{Store, StorePlan, open_or_build};
use tempfile::TempDir;

/// The tables of a typed graph, in a directory that also holds its stores and outputs.
struct Tables {
    dir: TempDir,
    plan: Arc<GraphPlan>,
    target_type: usize,
}

impl Tables {
    fn write(graph: &TypedGraph, settings: &Settings) -> Self {
        let dir = temporary_dir();
        graph.write(dir.path());
        let mut plan = graph.input().into_plan(dir.path()).unwrap();
        if settings.sampling == Sampling::Weighted {
            plan = plan.with_non_negative_weights();
        }
        Self {
            dir,
            plan: Arc::new(plan),
            target_type: graph.target_type,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn flatten_plan(&self, settings: &Settings, hops: &[HopSpec], output: &str) -> FlattenPlan {
        let spec = FlattenSpec {
            pairs_per_part: None,
            negatives_per_part: None,
            output: Some(PathBuf::from(output)),
            hops: hops.len(),
            fanouts: hops.to_vec(),
            sampling: settings.sampling,
            layout: Some(settings.layout),
            targets: match settings.targets {
                Choice::Labelled => Targets::Labelled,
                Choice::Train => Targets::Train,
                Choice::All | Choice::Listed(_) => Targets::All,
            },
            hub_threshold: Some(settings.hub_threshold),
            samples_per_target: Some(settings.samples),
            targets_per_part: Some(settings.targets_per_part),
            target_type: None,
        };
        let graph = (&*self.plan, self.target_type);
        spec.into_plan_of(graph, self.dir.path(), false).unwrap()
    }

    fn store(&self, settings: &Settings, plan: &FlattenPlan, name: &str) -> Store {
        let plan = StorePlan {
            graph: Arc::clone(&self.plan),
            target_type: self.target_type,
            seed: settings.seed,
            sampling: settings.sampling,
            keep: plan.sample().keep_by_relation(),
            samples: settings.samples,
            redraw: settings.redraw,
            left_out: false,
            hub_threshold: settings.hub_threshold,
            workers: settings.workers,
            memory_budget: settings.memory_budget,
            page_cache: None,
            dir: self.path(name),
            fresh: false,
        };
        open_or_build(&plan, &silent()).unwrap()
    }

    /// Flattens into `output`, from a store of its own.
    fn flatten(&self, settings: &Settings, hops: &[HopSpec], output: &str) -> PathBuf {
        let plan = self.flatten_plan(settings, hops, output);
        let store = self.store(settings, &plan, &format!("{output}-store"));
        flatten(&plan, &store, &silent()).unwrap();
        self.path(output)
    }
}

/// Compares the rendered text, because a missing label is NaN.
fn assert_same(found: &[GraphFeature], expected: &[GraphFeature], what: &str) {
    assert_eq!(found.len(), expected.len(), "targets; {what}");
    for (i, (one, wanted)) in found.iter().zip(expected).enumerate() {
        let (text, wanted_text) = (format!("{one:#?}"), format!("{wanted:#?}"));
        assert_eq!(text, wanted_text, "target {i}; {what}");
    }
}

fn random_settings(draw: &mut Draw, graph: &TypedGraph) -> Settings {
    Settings {
        sampling: match graph.has_signed_weights() {
            true => draw.pick(&[Sampling::Uniform, Sampling::Top]),
            false => draw.pick(&[Sampling::Uniform, Sampling::Weighted, Sampling::Top]),
        },
        targets: draw.pick(&[Choice::All, Choice::Labelled, Choice::Train]),
        seed: draw.bits() >> 2,
        samples: draw.pick(&[1, 1, 2]),
        hub_threshold: draw.pick(&[1, 4, 1000]),
        targets_per_part: draw.pick(&[3, 10, 1000]),
        memory_budget: draw.pick(&[1 << 16, 1 << 30]),
        ..Settings::new("1")
    }
}

#[test]
fn the_engine_gives_the_neighbourhoods_of_the_twin() {
    for case in 0..40 {
        let mut draw = Draw::new(9000 + case);
        let graph = TypedGraph::random(&mut draw);
        let hops = graph.random_hops(&mut draw);
        let settings = random_settings(&mut draw, &graph);
        let tables = Tables::write(&graph, &settings);
        let expected = twin::features(&graph, &hops, &settings);
        let mut bytes = None;
        for layout in [Layout::Rows, Layout::Shards] {
            for workers in [1, 2, 3, 8] {
                let settings = Settings {
                    layout,
                    workers,
                    ..settings.clone()
                };
                let what = format!("case {case}, {hops:?}, {settings:?}");
                let output = tables.flatten(&settings, &hops, &format!("{layout:?}-{workers}"));
                assert_same(&read_features(&output), &expected, &what);
                let parts = snapshot_parts(&output);
                let (first_layout, first) = bytes.get_or_insert_with(|| {
                    assert_same(&extract_features(&output), &expected, &what);
                    (layout, parts.clone())
                });
                if *first_layout != layout {
                    bytes = Some((layout, parts));
                } else {
                    assert!(*first == parts, "other bytes; {what}");
                }
            }
        }
    }
}

/// Draws a part and adds its dense features.
fn drawn(waves: &Waves, part: usize, seed: u64) -> GraphShard {
    let (mut shard, dense) = waves.draw(part, seed).unwrap();
    for (nodes, rows) in shard.nodes.iter_mut().zip(dense) {
        if let Some(rows) = rows {
            let all = 0..nodes.len();
            nodes.features = Features::Dense {
                dim: rows.dim(),
                values: all.flat_map(|node| rows.row(node).to_vec()).collect(),
            };
        }
    }
    shard
}

#[test]
fn drawn_parts_are_those_that_flatten_writes() {
    for case in 0..20 {
        let mut draw = Draw::new(9500 + case);
        let graph = TypedGraph::random(&mut draw);
        let hops = graph.random_hops(&mut draw);
        let settings = Settings {
            layout: Layout::Shards,
            workers: 1 + draw.below(4),
            samples: 1,
            redraw: true,
            ..random_settings(&mut draw, &graph)
        };
        let tables = Tables::write(&graph, &settings);
        let plan = tables.flatten_plan(&settings, &hops, "none");
        let store = tables.store(&settings, &plan, "redraw-store");
        let waves = Waves::open(plan.sample(), &store).unwrap();
        for seed in settings.seed..settings.seed + 3 {
            let other = Settings {
                seed,
                redraw: false,
                ..settings.clone()
            };
            let output = tables.flatten(&other, &hops, &format!("out-{seed}"));
            let dataset = GraphFeatureDataset::open(&output).unwrap();
            let counts: Vec<SplitCounts> = waves.target_counts();
            assert_eq!(counts.len(), dataset.num_parts());
            for (part, count) in counts.into_iter().enumerate() {
                let (shard, written) = (drawn(&waves, part, seed), dataset.read_part(part));
                let (text, expected) = (format!("{shard:?}"), format!("{:?}", written.unwrap()));
                assert_eq!(text, expected, "case {case}, part {part}, seed {seed}");
                assert_eq!(dataset.part(part).targets, Some(count));
            }
        }
    }
}

/// Rows of the one layout as text, without the order of types and the names of relations' types.
fn rows_by_type(output: &Path, names: &[String]) -> Vec<String> {
    let dataset = GraphFeatureDataset::open(output).unwrap();
    let types = &dataset.meta().types;
    let position = |name: &String| types.iter().position(|of| of.name == *name).unwrap();
    let order: Vec<usize> = names.iter().map(position).collect();
    let mut rows = Vec::new();
    for part in 0..dataset.num_parts() {
        for feature in dataset.read_features(part).unwrap() {
            let nodes: Vec<_> = order.iter().map(|&at| &feature.nodes[at]).collect();
            let edges = feature.edges.iter().map(|edges| {
                (
                    &edges.in_degree,
                    &edges.in_weight,
                    &edges.self_loops,
                    &edges.in_offset,
                    &edges.in_src,
                    &edges.edge_weight,
                    &edges.edge_feature,
                )
            });
            let edges: Vec<_> = edges.collect();
            let (labels, split) = (&feature.labels, feature.split);
            rows.push(format!("{part} {labels:?} {split:?} {nodes:?} {edges:?}"));
        }
    }
    rows
}

/// The samples, and the part of each target, do not depend on the names of types, which decide how
/// nodes are numbered.
#[test]
fn renamed_types_change_no_row() {
    for case in 0..20 {
        let mut draw = Draw::new(9700 + case);
        let graph = TypedGraph::random(&mut draw);
        let hops = graph.random_hops(&mut draw);
        let settings = random_settings(&mut draw, &graph);
        let (renamed, new_names) = rename_types(&graph);
        let old_names: Vec<String> = graph.types.iter().map(|of| of.name.clone()).collect();
        let rows = [(&graph, &old_names), (&renamed, &new_names)].map(|(written, names)| {
            let tables = Tables::write(written, &settings);
            rows_by_type(&tables.flatten(&settings, &hops, "out"), names)
        });
        assert_eq!(rows[0], rows[1], "case {case}");
    }
}

/// Returns the ranks of in-edges of two relations between the same types, which have the same
/// edges: for each destination and sample, the positions of the sources kept of one relation, then
/// of the other.
fn draws_of_two_relations(sampling: Sampling, weights: &[f32], fanout: u32) -> Vec<[Outcome; 2]> {
    let (num_dst, samples) = (300, 100);
    let id = |number: usize| Id::Int(i128::try_from(number).unwrap());
    let type_of = |name: &str, count: usize| {
        let mut nodes = Graph::parse("0");
        nodes.ids = (0..count).map(id).collect();
        nodes.splits = None;
        NodeType {
            name: name.to_owned(),
            nodes,
        }
    };
    let edges = (0..num_dst).flat_map(|dst| {
        weights.iter().enumerate().map(move |(src, &weight)| Edge {
            src: id(src),
            dst: id(dst),
            weight,
            feature: Vec::new(),
        })
    });
    let edges: Vec<Edge> = edges.collect();
    let relation_of = |name: &str| Relation {
        name: name.to_owned(),
        from: 0,
        to: 1,
        edges: edges.clone(),
        weights: Weights::Many,
        edge_dim: 0,
        undirected: false,
        reverse: None,
    };
    let graph = TypedGraph {
        types: vec![type_of("a", weights.len()), type_of("b", num_dst)],
        relations: vec![relation_of("likes"), relation_of("likes-too")],
        target_type: 1,
    };
    let settings = Settings {
        sampling,
        targets: Choice::All,
        samples,
        ..Settings::new("1")
    };
    let tables = Tables::write(&graph, &settings);
    let hops = [HopSpec::Every(Fanout::Count(fanout))];
    let plan = tables.flatten_plan(&settings, &hops, "unused");
    let store = tables.store(&settings, &plan, "store");
    let of_node = |dst: usize, sample: usize| {
        // Nodes of type `a` have the first numbers.
        let node = schemas::NodeIdx::from_index(weights.len() + dst);
        let (owner, local) = store.placement().owner_and_local(node);
        [0, 1].map(|relation| {
            let partition = store.partition(owner);
            let kept = partition.in_edges(relation, sample, local, usize::MAX);
            kept.src.iter().map(|src| src.index()).collect::<Outcome>()
        })
    };
    let samples = usize::try_from(samples).unwrap();
    let all = (0..num_dst).flat_map(|dst| (0..samples).map(move |sample| (dst, sample)));
    all.map(|(dst, sample)| of_node(dst, sample)).collect()
}

/// Each relation's sample follows the law of an untyped graph, and those of two relations with the
/// same edges are independent.
#[test]
fn samples_are_lawful_by_relation_and_independent_between_relations() {
    let weights = [1.0, 2.0, 3.0, 4.0, 0.5];
    for (sampling, by_law) in [(Sampling::Uniform, [1.0; 5]), (Sampling::Weighted, weights)] {
        let draws = draws_of_two_relations(sampling, &weights, 2);
        for relation in [0, 1] {
            let excess = excess(draws.iter().map(|of| &of[relation]), &law(&by_law, 2));
            assert!(excess < 1.0, "{sampling:?}, relation {relation}: {excess}");
        }
        let firsts: Vec<Outcome> = draws.iter().map(|[a, b]| vec![a[0], b[0]]).collect();
        let first = law(&by_law, 1);
        let pairs = first
            .iter()
            .flat_map(|(a, p)| first.iter().map(move |(b, q)| (vec![a[0], b[0]], p * q)));
        let excess = excess(firsts.iter(), &pairs.collect());
        assert!(excess < 1.0, "{sampling:?}, pairs of relations: {excess}");
    }
}
