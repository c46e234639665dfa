//! Pairs: parts have the pairs and the message graph of a slow twin, for any number of workers.

mod errors;
mod walks;
mod world;

use crate::draw::Draw;
use crate::run::{silent, snapshot_parts, temporary_dir};
use graphflat::{FlattenPlan, FlattenSpec, Waves, flatten};
use schemas::{GraphFeatureDataset, GraphPlan, GraphShard, Sampling, Split};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{Store, StoreError, StorePlan, open_or_build};
use world::{Ends, Known, World};

/// A written graph.
struct Tables {
    dir: tempfile::TempDir,
    plan: Arc<GraphPlan>,
}

impl Tables {
    fn write(world: &World) -> Self {
        let dir = temporary_dir();
        world.write(dir.path());
        let plan = Arc::new(world.input().into_plan(dir.path()).unwrap());
        Self { dir, plan }
    }

    fn target_type(&self) -> usize {
        self.plan.target_type(None).unwrap()
    }

    fn flatten_plan(&self, flatten: &Value, output: &str) -> FlattenPlan {
        let mut spec = flatten.clone();
        spec["output"] = output.into();
        let spec: FlattenSpec = serde_json::from_value(spec).unwrap();
        let graph = (&*self.plan, self.target_type());
        spec.into_plan_of(graph, self.dir.path(), false).unwrap()
    }

    fn store(&self, plan: &FlattenPlan, workers: usize, name: &str) -> Result<Store, StoreError> {
        let plan = StorePlan {
            graph: Arc::clone(&self.plan),
            target_type: self.target_type(),
            seed: 3,
            sampling: Sampling::Uniform,
            keep: plan.sample().keep_by_relation(),
            samples: plan.samples(),
            redraw: true,
            left_out: false,
            hub_threshold: 10,
            workers,
            memory_budget: 1 << 24,
            page_cache: None,
            dir: self.dir.path().join(name),
            fresh: false,
        };
        open_or_build(&plan, &silent())
    }

    fn flatten(&self, flatten_spec: &Value, workers: usize) -> PathBuf {
        let output = format!("out-{workers}");
        let plan = self.flatten_plan(flatten_spec, &output);
        let store = self
            .store(&plan, workers, &format!("store-{workers}"))
            .unwrap();
        flatten(&plan, &store, &silent()).unwrap();
        self.dir.path().join(output)
    }
}

/// The parts that a part's pairs and edges make, by ids.
#[derive(Debug, Default)]
struct Found {
    pairs: Vec<(Ends, Known)>,
    /// By relation.
    edges: BTreeMap<String, BTreeSet<Ends>>,
    /// In-degree of each node, by relation and id.
    in_degree: BTreeMap<(String, String), u32>,
    /// By part: the split of its pairs, and its random negatives.
    random: Vec<(Split, Vec<String>)>,
}

fn read(output: &Path) -> Found {
    let dataset = GraphFeatureDataset::open(output).unwrap();
    dataset.verify().unwrap();
    let (mut found, meta) = (Found::default(), dataset.meta());
    let ends = meta.pairs.as_ref().unwrap();
    for index in 0..dataset.num_parts() {
        let shard: GraphShard = dataset.read_part(index).unwrap();
        let pairs = shard.pairs.as_ref().unwrap();
        let src = |row: usize| shard.nodes[ends.from].ids.display(row);
        let dst = |row: usize| shard.nodes[ends.to].ids.display(row);
        for pair in 0..pairs.len() {
            let negatives = pairs.hard.as_ref().map_or(&[][..], |of| of.of(pair));
            let known = Known {
                split: pairs.split[pair],
                weight: pairs.weight.as_ref().map_or(1.0, |of| of[pair]),
                label: pairs.label.as_ref().map_or(1.0, |of| of[pair]),
                negatives: negatives.iter().map(|row| dst(row.index())).collect(),
            };
            let both = (src(pairs.src[pair].index()), dst(pairs.dst[pair].index()));
            found.pairs.push((both, known));
        }
        let random = pairs.random.iter().map(|row| dst(row.index()));
        let splits: BTreeSet<Split> = pairs.split.iter().copied().collect();
        assert_eq!(splits.len(), 1, "part {index} has pairs of one split");
        found.random.push((pairs.split[0], random.collect()));
        assert_eq!(dataset.part(index).rows, pairs.len() as u64);
        for (edges, of) in shard.edges.iter().zip(&meta.relations) {
            let (from, to) = (&shard.nodes[of.from].ids, &shard.nodes[of.to].ids);
            let all = found.edges.entry(of.name.clone()).or_default();
            for node in 0..to.len() {
                let degree = edges.in_degree[node];
                let name = (of.name.clone(), to.display(node));
                assert_eq!(*found.in_degree.entry(name).or_insert(degree), degree);
                for edge in edges.in_edges(u32::try_from(node).unwrap()) {
                    let source = from.display(edges.in_src[edge] as usize);
                    all.insert((source, to.display(node)));
                }
            }
        }
    }
    found
}

/// Checks that the edges of parts are those of the message graph, and the in-degrees its own.
fn has_messages(
    found: &BTreeMap<String, BTreeSet<Ends>>,
    in_degree: &BTreeMap<(String, String), u32>,
    relations: &BTreeMap<&'static str, Vec<Ends>>,
    what: &str,
) {
    for (relation, edges) in relations {
        let own = &found[*relation];
        let all: BTreeSet<Ends> = edges.iter().cloned().collect();
        assert!(
            own.is_subset(&all),
            "{relation}: {:?}; {what}",
            own.difference(&all)
        );
        for ((of, id), degree) in in_degree {
            if of == relation {
                let in_edges = edges.iter().filter(|(_, dst)| dst == id);
                assert_eq!(
                    *degree as usize,
                    in_edges.count(),
                    "{relation} to {id}; {what}"
                );
            }
        }
    }
}

/// Checks the parts of a graph against the twin.
fn check(world: &World, what: &str) {
    let tables = Tables::write(world);
    let spec = json!({
        "hops": 2, "fanouts": ["all", "all"], "pairs_per_part": 17, "negatives_per_part": 5,
    });
    let expected = world.pairs();
    let output = tables.flatten(&spec, 1);
    let found = read(&output);
    let mut pairs = BTreeMap::new();
    for (ends, known) in found.pairs {
        let before = pairs.insert(ends.clone(), known);
        assert_eq!(before, None, "{ends:?} is there twice; {what}");
    }
    assert_eq!(pairs, expected, "{what}");
    let leaving = world.leaving(&expected);
    let relations = world.in_edges(&leaving);
    has_messages(&found.edges, &found.in_degree, &relations, what);
    let evaluation: Vec<_> = (found.random.iter())
        .filter(|(split, _)| *split != Split::Train)
        .collect();
    for (split, random) in &found.random {
        let distinct: BTreeSet<&String> = random.iter().collect();
        assert_eq!(distinct.len(), 5, "{what}");
        let is_that_of_evaluation = evaluation.iter().any(|(_, other)| other == random);
        let all_equal = evaluation.iter().all(|(_, other)| other == random);
        match split {
            Split::Train => assert!(!is_that_of_evaluation, "{what}"),
            _ => assert!(all_equal, "{what}"),
        }
    }
    for workers in [2, 3, 8] {
        let other = tables.flatten(&spec, workers);
        assert!(
            snapshot_parts(&other) == snapshot_parts(&output),
            "{workers} workers; {what}"
        );
    }
    drawn_equals_written(&tables, &spec, &output, what);
    rows_equal_shards(&tables, &spec, &output, what);
}

/// Parts of layout `rows` are those of layout `shards`, for any number of workers.
fn rows_equal_shards(tables: &Tables, spec: &Value, shards: &Path, what: &str) {
    let mut spec = spec.clone();
    spec["layout"] = "rows".into();
    let (mut read, mut first) = (false, None);
    for workers in [1, 3] {
        let plan = tables.flatten_plan(&spec, &format!("rows-{workers}"));
        let store = tables
            .store(&plan, workers, &format!("store-{workers}"))
            .unwrap();
        flatten(&plan, &store, &silent()).unwrap();
        let output = tables.dir.path().join(format!("rows-{workers}"));
        let bytes = snapshot_parts(&output);
        assert!(
            *first.get_or_insert_with(|| bytes.clone()) == bytes,
            "{what}"
        );
        if !std::mem::replace(&mut read, true) {
            let [rows, shards] =
                [&output, shards].map(|dir| GraphFeatureDataset::open(dir).unwrap());
            assert_eq!(rows.num_parts(), shards.num_parts(), "{what}");
            for part in 0..rows.num_parts() {
                let (of_rows, of_shards) = (rows.read_part(part), shards.read_part(part));
                assert_eq!(of_rows.unwrap(), of_shards.unwrap(), "part {part}; {what}");
                assert_eq!(rows.part(part).targets, shards.part(part).targets);
            }
        }
    }
}

/// Streamed draws give the parts that flatten writes.
fn drawn_equals_written(tables: &Tables, spec: &Value, output: &Path, what: &str) {
    let plan = tables.flatten_plan(spec, "unused");
    let store = tables.store(&plan, 3, "store-3").unwrap();
    let waves = Waves::open(plan.sample(), &store).unwrap();
    let dataset = GraphFeatureDataset::open(output).unwrap();
    let counts = waves.target_counts();
    assert_eq!(counts.len(), dataset.num_parts(), "{what}");
    for (part, of_part) in counts.iter().enumerate() {
        let (shard, _) = waves.draw(part, 3).unwrap();
        assert_eq!(
            shard,
            dataset.read_part(part).unwrap(),
            "part {part}; {what}"
        );
        assert_eq!(Some(*of_part), dataset.part(part).targets);
        let (other, _) = waves.draw(part, 4).unwrap();
        let random = |of: &GraphShard| {
            let pairs = of.pairs.as_ref().unwrap();
            let to = &of.nodes[tables.plan.pairs.as_ref().unwrap().to()].ids;
            let ids = pairs.random.iter().map(|row| to.display(row.index()));
            (pairs.split.clone(), ids.collect::<Vec<_>>())
        };
        let (one, two) = (random(&shard), random(&other));
        assert_eq!(
            one.0, two.0,
            "the pairs of a part do not depend on the seed"
        );
        assert_ne!(one.1, two.1, "random negatives do");
    }
}

#[test]
fn parts_hold_the_pairs_and_the_message_graph_of_the_twin() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let world = World::random(&mut Draw::new(seed));
        seen.insert((world.is_typed, world.table.is_some(), world.by_time));
        check(&world, &format!("graph {seed}"));
    }
    assert_eq!(seen.len(), 8, "every source of pairs and splits is tried");
}
