//! Shards and graph features against their slow twins, in memory and through files.

mod documented;
mod pairs;
mod twin;
mod typed;

use std::fmt::Debug;
use std::path::Path;

use twin::Graph;

use super::write::write_in_batches;
use super::{
    ExtractScratch, GraphFeature, GraphFeatureDataset, GraphShard, ShardEdges, ShardNodes,
    write_part,
};
use crate::columns::{FeatureMeta, Features, GraphMeta, Labels, Split, UntypedMeta};
use crate::dataset::{Manifest, Opened, Output, PartEntry, SplitCounts};
use crate::error::ErrorKind;
use crate::fanout::{Fanout, FlattenMeta, Layout, Sampling};
use crate::ids::{IdType, Ids};

const NUM_GRAPHS: u64 = 300;
/// Fewer where each graph is written and flushed to disk.
const NUM_GRAPHS_WRITTEN: u64 = 60;

/// Compares values; NaN, a missing number label, equals itself.
fn assert_same<T: Debug>(left: &T, right: &T, what: &str) {
    assert_eq!(format!("{left:?}"), format!("{right:?}"), "{what}");
}

fn extract_all(shard: &GraphShard, flatten: &FlattenMeta) -> Vec<GraphFeature> {
    let mut scratch = ExtractScratch::new(shard);
    shard
        .targets()
        .map(|t| shard.extract(t, &flatten.fanouts, &mut scratch))
        .collect()
}

fn open(dir: &Path) -> Output {
    match Output::open(dir, "flatten", "plan", false).unwrap() {
        Opened::Open(output) => output,
        Opened::Done(_) => panic!("nothing is finished yet"),
    }
}

fn finish(output: Output, parts: Vec<PartEntry>, meta: &GraphMeta, flatten: &FlattenMeta) {
    let manifest = Manifest {
        graph: Some(meta.clone()),
        flatten: Some(flatten.clone()),
        parts,
        ..Manifest::new(
            "flatten",
            "plan".to_owned(),
            (serde_json::Value::Null, serde_json::Value::Null),
            flatten.seed,
        )
    };
    output.finish(&manifest).unwrap();
}

/// Writes shards as parts and opens the result.
fn written(
    dir: &Path,
    shards: &[&GraphShard],
    meta: &GraphMeta,
    flatten: &FlattenMeta,
) -> GraphFeatureDataset {
    written_in_batches(dir, shards, meta, flatten, 1 << 20)
}

fn written_in_batches(
    dir: &Path,
    shards: &[&GraphShard],
    meta: &GraphMeta,
    flatten: &FlattenMeta,
    batch_values: usize,
) -> GraphFeatureDataset {
    let output = open(dir);
    for (index, shard) in shards.iter().enumerate() {
        let part =
            write_in_batches(&output, index, shard, &[], meta, flatten, batch_values).unwrap();
        output.commit_part(index, part).unwrap();
    }
    let parts = output.parts();
    finish(output, parts, meta, flatten);
    GraphFeatureDataset::open(dir).unwrap()
}

#[test]
fn extraction_equals_a_walk_on_the_whole_graph() {
    for seed in 0..NUM_GRAPHS {
        let graph = Graph::random(seed);
        let flatten = graph.flatten(seed, Layout::Rows);
        let targets = graph.some_targets(seed);
        let shard = graph.shard(&targets, &flatten.fanouts);
        shard.validate(&graph.meta).unwrap();
        shard
            .agrees_with(&shard.feature_metas(), &graph.meta, flatten.hops)
            .unwrap();
        let extracted = extract_all(&shard, &flatten);
        for (feature, &target) in extracted.iter().zip(&targets) {
            feature.validate(&graph.meta).unwrap();
            let twin = graph.feature(target, &flatten.fanouts);
            assert_same(feature, &twin, &format!("graph {seed}, target {target}"));
        }
        assert_eq!(extracted.len(), targets.len());
    }
}

#[test]
fn the_union_of_all_extractions_is_the_shard() {
    for seed in 0..NUM_GRAPHS {
        let graph = Graph::random(seed);
        let flatten = graph.flatten(seed, Layout::Rows);
        let shard = graph.shard(&graph.some_targets(seed), &flatten.fanouts);
        let mut features = extract_all(&shard, &flatten);
        let union = GraphShard::from_features(&features, &graph.meta).unwrap();
        assert_same(&union, &shard, &format!("graph {seed}"));
        features.reverse();
        let reversed = GraphShard::from_features(&features, &graph.meta).unwrap();
        assert_same(&reversed, &shard, &format!("graph {seed} in reverse"));
    }
}

#[test]
fn both_layouts_return_what_was_written() {
    for seed in 0..NUM_GRAPHS_WRITTEN {
        let graph = Graph::random(seed);
        let fanouts = graph.flatten(seed, Layout::Rows).fanouts;
        let targets = graph.some_targets(seed);
        let (left, right) = targets.split_at(targets.len().div_ceil(2));
        let parts = [left, right].map(|part| {
            // An empty part is a part too.
            if part.is_empty() {
                GraphShard::from_features([], &graph.meta).unwrap()
            } else {
                graph.shard(part, &fanouts)
            }
        });
        for layout in [Layout::Rows, Layout::Shards] {
            let flatten = graph.flatten(seed, layout);
            let dir = tempfile::tempdir().unwrap();
            let (shards, batch_values) = ([&parts[0], &parts[1]], [1, 30, 1 << 20][at(seed, 3)]);
            let dataset =
                written_in_batches(dir.path(), &shards, &graph.meta, &flatten, batch_values);
            dataset.verify().unwrap();
            assert_eq!(dataset.num_parts(), 2);
            for (index, shard) in parts.iter().enumerate() {
                let what = format!("graph {seed}, {layout:?}, part {index}");
                assert_same(&dataset.read_part(index).unwrap(), shard, &what);
                let features = dataset.read_features(index).unwrap();
                assert_same(&features, &extract_all(shard, &flatten), &what);
                let limit = 1 + at(seed, 3);
                let first = dataset.find_features(index, None, limit).unwrap();
                let start = features.iter().take(limit).cloned().collect();
                assert_same(&first, &start, &what);
                if let Some(last) = features.last() {
                    let id = last.target_nodes().node_id.display(0);
                    let found = dataset.find_features(index, Some(&id), usize::MAX).unwrap();
                    let is_wanted = |of: &&GraphFeature| of.target_nodes().node_id.display(0) == id;
                    let wanted: Vec<_> = features.iter().filter(is_wanted).cloned().collect();
                    assert_same(&found, &wanted, &what);
                }
                let part = dataset.part(index);
                assert_eq!(part.rows, features.len() as u64);
                let mut counts = SplitCounts::default();
                features
                    .iter()
                    .for_each(|feature| counts.add(feature.split));
                assert_eq!(part.targets, Some(counts), "{what}");
            }
        }
    }
}

fn at(seed: u64, choices: u64) -> usize {
    usize::try_from(seed % choices).unwrap()
}

/// Files are decoded some thousands of rows at a time; this one takes several batches.
#[test]
fn a_hub_with_ten_thousand_sources_returns() {
    let n: u32 = 10_000;
    let mut ids = Ids::new(IdType::Utf8);
    ids.push_str("hub");
    (1..n).for_each(|i| ids.push_str(&format!("node-{i:05}")));
    let entries = (0..n).map(|i| i % 3).collect::<Vec<_>>();
    let mut offset = vec![0];
    entries
        .iter()
        .for_each(|&len| offset.push(offset[offset.len() - 1] + u64::from(len)));
    let num_entries = offset[offset.len() - 1];
    let nodes = ShardNodes {
        ids,
        hop: (0..n).map(|i| u8::from(i > 0)).collect(),
        features: Features::Sparse {
            dim: 7,
            offset,
            index: (0..num_entries)
                .map(|i| u32::try_from(i % 7).unwrap())
                .collect(),
            value: (0..num_entries).map(|i| i as f32).collect(),
        },
        labels: Labels::None,
        split: vec![Split::None; n as usize],
        is_target: (0..n).map(|i| i == 0).collect(),
    };
    let edges = ShardEdges {
        from: 0,
        to: 0,
        in_degree: (0..n).collect(),
        in_weight: None,
        self_loops: None,
        self_weight: None,
        in_offset: (0..=n).map(|i| if i == 0 { 0 } else { n - 1 }).collect(),
        in_src: (1..n).rev().collect(),
        edge_weight: None,
        edge_feature: Some((0..(n - 1) * 2).map(|i| i as f32).collect()),
    };
    let shard = GraphShard {
        target_type: 0,
        nodes: vec![nodes],
        edges: vec![edges],
        pairs: None,
    };
    let meta = GraphMeta::from(UntypedMeta {
        id_type: IdType::Utf8,
        features: FeatureMeta::Sparse { dim: 7 },
        columns: Vec::new(),
        label: None,
        split: None,
        edge_weight: false,
        edge_feature_dim: Some(2),
        self_loops: false,
    });
    for layout in [Layout::Rows, Layout::Shards] {
        let flatten = FlattenMeta {
            hops: 1,
            fanouts: vec![Fanout::All.into()],
            sampling: Sampling::Uniform,
            seed: 1,
            samples_per_target: 1,
            layout,
        };
        let dir = tempfile::tempdir().unwrap();
        let dataset = written(dir.path(), &[&shard], &meta, &flatten);
        assert!(dataset.read_part(0).unwrap() == shard, "{layout:?}");
    }
}

#[test]
fn the_same_shard_gives_the_same_bytes() {
    for (seed, layout) in [2, 3]
        .into_iter()
        .flat_map(|seed| [(seed, Layout::Rows), (seed, Layout::Shards)])
    {
        let graph = Graph::random(seed);
        let flatten = graph.flatten(seed, layout);
        let shard = graph.shard(&graph.some_targets(seed), &flatten.fanouts);
        let parts = [(), ()].map(|()| {
            let dir = tempfile::tempdir().unwrap();
            written(dir.path(), &[&shard], &graph.meta, &flatten)
                .part(0)
                .clone()
        });
        assert_eq!(parts[0], parts[1]);
    }
}

/// A valid untyped shard with dense features, weights and edge features.
fn rich_shard() -> (Graph, GraphShard, FlattenMeta) {
    for seed in (0..).step_by(2) {
        let graph = Graph::random(seed);
        let flatten = graph.flatten(seed, Layout::Shards);
        let shard = graph.shard(&graph.some_targets(seed), &flatten.fanouts);
        let (nodes, edges) = (&shard.nodes[0], &shard.edges[0]);
        let is_rich = matches!(nodes.features, Features::Dense { .. })
            && edges.edge_weight.is_some()
            && edges.edge_feature.is_some()
            && nodes.hop.iter().filter(|&&hop| hop == 1).count() > 1
            && flatten.hops == 2;
        if is_rich {
            return (graph, shard, flatten);
        }
    }
    unreachable!("some random graph has it all")
}

#[test]
fn broken_shards_are_neither_written_nor_accepted() {
    let (graph, shard, flatten) = rich_shard();
    let check = |break_it: &dyn Fn(&mut GraphShard), expected: &str| {
        let mut broken = shard.clone();
        break_it(&mut broken);
        let dir = tempfile::tempdir().unwrap();
        let output = open(dir.path());
        let error = write_part(&output, 0, &broken, &[], &graph.meta, &flatten).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Failed);
        assert!(
            error.to_string().contains(expected),
            "{error} should say: {expected}"
        );
        assert!(!dir.path().join("nodes").exists());
    };
    let last = shard.num_nodes() - 1;
    let first_of_hop_1 = shard.nodes[0].hop.partition_point(|&hop| hop == 0);
    check(&|s| s.nodes[0].hop[0] = 1, "`hop` falls");
    check(&|s| s.nodes[0].hop[last] = 3, "an edge leads from hop 3");
    check(
        &|s| s.nodes[0].is_target[0] = false,
        "targets and the nodes of hop 0",
    );
    check(&|s| s.edges[0].in_degree.truncate(1), "`in_degree` holds");
    check(&|s| s.nodes[0].split.truncate(1), "`split` holds");
    check(
        &|s| s.edges[0].in_offset[1] = u32::MAX,
        "`in_offset` does not rise",
    );
    check(&|s| s.edges[0].in_src[0] = 1000, "source 1000 of");
    check(
        &|s| s.edges[0].edge_weight = None,
        "`edge_weight`: the graph needs",
    );
    check(
        &|s| s.edges[0].edge_feature = Some(vec![0.0]),
        "`edge_feature` holds 1 values",
    );
    check(
        &|s| {
            s.nodes[0].features = Features::Dense {
                dim: 3,
                values: vec![],
            }
        },
        "`feature` holds 0",
    );
    check(
        &|s| s.nodes[0].features = Features::None,
        "features are None",
    );
    check(
        &|s| s.edges[0].in_src.iter_mut().for_each(|src| *src = 0),
        "no edge leads from node",
    );
    check(
        &|s| {
            let mut order: Vec<u32> = (0..).take(last + 1).collect();
            order.swap(first_of_hop_1, first_of_hop_1 + 1);
            s.nodes[0].ids = s.nodes[0].ids.gather(&order);
        },
        "ids must ascend",
    );
}

#[test]
fn a_node_stands_in_one_hop_only() {
    let meta = GraphMeta::from(UntypedMeta {
        id_type: IdType::UInt64,
        features: FeatureMeta::None,
        columns: Vec::new(),
        label: None,
        split: None,
        edge_weight: false,
        edge_feature_dim: None,
        self_loops: false,
    });
    let mut shard = GraphShard::empty(&meta);
    let (nodes, edges) = (&mut shard.nodes[0], &mut shard.edges[0]);
    nodes.ids = Ids::from_keys(IdType::UInt64, vec![7, 7]);
    nodes.hop = vec![0, 1];
    nodes.split = vec![Split::None; 2];
    nodes.is_target = vec![true, false];
    edges.in_degree = vec![1, 0];
    edges.in_offset = vec![0, 1, 1];
    edges.in_src = vec![1];
    let error = shard.validate(&meta).unwrap_err();
    assert_eq!(error.to_string(), "invalid shard: node 7 occurs twice");
}

#[test]
fn neighbourhoods_of_different_samples_do_not_unite() {
    let (graph, shard, flatten) = rich_shard();
    let features = extract_all(&shard, &flatten);
    let with_two = features.iter().position(|f| {
        let (edges, in_src) = (f.edges[0].in_edges(0), &f.edges[0].in_src);
        edges.len() > 1 && in_src[edges.start] != in_src[edges.start + 1]
    });
    let mut other = features[with_two.unwrap()].clone();
    other.edges[0].in_src.swap(0, 1);
    let both = [&features[with_two.unwrap()], &other];
    let error = GraphShard::from_features(both, &graph.meta).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("keep different in-edges of node"),
        "{error}"
    );
}

#[test]
fn damaged_files_are_errors_that_name_them() {
    let (graph, shard, flatten) = rich_shard();
    for layout in [Layout::Rows, Layout::Shards] {
        let flatten = FlattenMeta {
            layout,
            ..flatten.clone()
        };
        let dir = tempfile::tempdir().unwrap();
        let dataset = written(dir.path(), &[&shard], &graph.meta, &flatten);
        for file in &dataset.part(0).files {
            let path = dir.path().join(&file.path);
            let bytes = std::fs::read(&path).unwrap();
            let mut flipped = bytes.clone();
            flipped[bytes.len() / 3] ^= 0x10;
            std::fs::write(&path, &flipped).unwrap();
            let differs = dataset.verify().unwrap_err();
            assert!(differs.to_string().contains(&file.path), "{differs}");
            std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
            for error in [
                GraphFeatureDataset::open(dir.path()).unwrap_err(),
                dataset.read_part(0).map(|_| ()).unwrap_err(),
                dataset.read_features(0).map(|_| ()).unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::Failed);
                assert!(error.to_string().contains(&file.path), "{error}");
            }
            std::fs::write(&path, &bytes).unwrap();
        }
        dataset.verify().unwrap();
    }
}

#[test]
fn unfinished_or_foreign_outputs_are_refused() {
    let check = |dir: &Path, expected: &str| {
        let error = GraphFeatureDataset::open(dir).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(
            error.to_string().contains(expected),
            "{error} should say: {expected}"
        );
    };
    let (graph, shard, flatten) = rich_shard();
    let dir = tempfile::tempdir().unwrap();
    check(&dir.path().join("missing"), "there is no such directory");
    check(dir.path(), "_SUCCESS is missing");
    let output = open(dir.path());
    let part = write_part(&output, 0, &shard, &[], &graph.meta, &flatten).unwrap();
    output.commit_part(0, part).unwrap();
    check(dir.path(), "_SUCCESS is missing");
    let parts = output.parts();
    finish(output, parts, &graph.meta, &flatten);
    GraphFeatureDataset::open(dir.path()).unwrap();
    let path = dir.path().join("_manifest.json");
    let mut manifest = crate::read_manifest(dir.path()).unwrap();
    manifest.flatten = None;
    manifest.stage = "train".to_owned();
    std::fs::write(&path, serde_json::to_vec(&manifest).unwrap()).unwrap();
    check(
        dir.path(),
        "the output of stage `train`, not graph features",
    );
}

/// Without a check of checksums, 16 of 60 flipped bits changed the trained model.
#[test]
fn a_flipped_bit_of_a_part_is_refused_and_named() {
    let (graph, shard, flatten) = rich_shard();
    for layout in [Layout::Rows, Layout::Shards] {
        let flatten = FlattenMeta {
            layout,
            ..flatten.clone()
        };
        let dir = tempfile::tempdir().unwrap();
        let dataset = written(dir.path(), &[&shard], &graph.meta, &flatten);
        dataset.read_part(0).unwrap();
        for file in &dataset.part(0).files {
            let path = dir.path().join(&file.path);
            let whole = std::fs::read(&path).unwrap();
            for at in (0..whole.len()).step_by(whole.len() / 30) {
                let mut broken = whole.clone();
                broken[at] ^= 1 << (at % 8);
                std::fs::write(&path, broken).unwrap();
                let error = dataset.read_part(0).unwrap_err().to_string();
                let says = error.contains(&file.path) && error.contains("checksum xxh3:");
                assert!(says, "byte {at}: {error}");
                dataset.read_features(0).unwrap_err();
            }
            std::fs::write(&path, whole).unwrap();
        }
        dataset.read_part(0).unwrap();
    }
}

#[test]
fn a_manifest_that_says_other_things_than_its_parts_is_refused() {
    let (graph, shard, flatten) = rich_shard();
    let check = |change: &dyn Fn(&mut Manifest), expected: &str| {
        let dir = tempfile::tempdir().unwrap();
        written(dir.path(), &[&shard], &graph.meta, &flatten);
        let mut manifest = crate::read_manifest(dir.path()).unwrap();
        change(&mut manifest);
        let text = serde_json::to_vec(&manifest).unwrap();
        std::fs::write(dir.path().join("_manifest.json"), text).unwrap();
        let dataset = GraphFeatureDataset::open(dir.path()).unwrap();
        let error = dataset.read_part(0).unwrap_err().to_string();
        assert!(error.contains("part-00000.parquet is broken: "), "{error}");
        assert!(error.contains(expected), "{error} should say: {expected}");
    };
    let flattened = |change: &dyn Fn(&mut FlattenMeta), expected: &str| {
        let change = |manifest: &mut Manifest| change(manifest.flatten.as_mut().unwrap());
        check(&change, expected);
    };
    flattened(
        &|meta| meta.fanouts = vec![Fanout::Count(77).into(); meta.hops],
        "its metadata says `fanouts` = ",
    );
    flattened(
        &|meta| meta.samples_per_target = 9,
        "its metadata says `samples_per_target` = 1, its manifest 9",
    );
    check(
        &|manifest| manifest.graph.as_mut().unwrap().relations[0].edge_feature_dim = Some(1000),
        "its metadata says `edge_feature_dim` = ",
    );
    check(
        &|manifest| manifest.parts[0].targets.as_mut().unwrap().train += 1,
        "its manifest says SplitCounts",
    );
}
