//! Typed graphs on disk: columns, files and errors carry the names of types and relations.

use std::path::Path;

use super::super::layout::{edges_schema, nodes_schema, rows_schema};
use super::super::{GraphShard, ShardEdges, ShardNodes, write_part};
use super::{open, written};
use crate::columns::{
    FeatureMeta, Features, GraphMeta, LabelKind, LabelMeta, Labels, NO_CLASS, RelationMeta, Split,
    SplitMeta, TypeMeta,
};
use crate::dataset::{Opened, Output};
use crate::fanout::{Fanout, FlattenMeta, Layout, Sampling};
use crate::ids::{IdType, Ids};

/// Authors write papers, and papers cite papers; targets are authors.
fn meta() -> GraphMeta {
    let relation = |name: &str, from, to| RelationMeta {
        name: name.to_owned(),
        from,
        to,
        edge_weight: name == "cites",
        edge_feature_dim: (name == "writes").then_some(1),
        self_loops: name == "cites",
    };
    GraphMeta {
        types: vec![
            TypeMeta {
                name: "author".to_owned(),
                id_type: IdType::Utf8,
                features: FeatureMeta::None,
                columns: Vec::new(),
                label: Some(LabelMeta {
                    data_type: "Int16".to_owned(),
                    kind: LabelKind::Class { num_classes: 3 },
                }),
                split: Some(SplitMeta {
                    data_type: "Utf8".to_owned(),
                    values: None,
                }),
            },
            TypeMeta {
                name: "paper".to_owned(),
                id_type: IdType::UInt64,
                features: FeatureMeta::Dense { dim: 2 },
                columns: Vec::new(),
                label: None,
                split: None,
            },
        ],
        relations: vec![
            relation("cites", 1, 1),
            relation("writes", 0, 1),
            relation("written-by", 1, 0),
        ],
        target_type: 0,
        pairs: None,
    }
}

/// Author "a" has written papers 1 and 2; paper 2 has the authors "a" and "b"; paper 1 cites itself.
fn shard() -> GraphShard {
    let mut authors = Ids::new(IdType::Utf8);
    ["a", "b"].iter().for_each(|id| authors.push_str(id));
    let mut papers = Ids::new(IdType::UInt64);
    [1, 2].into_iter().for_each(|key| papers.push_key(key));
    let edges = |from, to, in_degree: &[u32], in_offset: &[u32], in_src: &[u32]| ShardEdges {
        from,
        to,
        in_degree: in_degree.to_vec(),
        in_weight: None,
        self_loops: None,
        self_weight: None,
        in_offset: in_offset.to_vec(),
        in_src: in_src.to_vec(),
        edge_weight: None,
        edge_feature: None,
    };
    GraphShard {
        target_type: 0,
        nodes: vec![
            ShardNodes {
                ids: authors,
                hop: vec![0, 2],
                features: Features::None,
                labels: Labels::Class(vec![2, NO_CLASS]),
                split: vec![Split::Train, Split::None],
                is_target: vec![true, false],
            },
            ShardNodes {
                ids: papers,
                hop: vec![1, 1],
                features: Features::Dense {
                    dim: 2,
                    values: vec![0.5, 1.5, 2.5, 3.5],
                },
                labels: Labels::None,
                split: vec![Split::None; 2],
                is_target: vec![false; 2],
            },
        ],
        edges: vec![
            ShardEdges {
                in_weight: Some(vec![0.25, 0.0]),
                self_loops: Some(vec![1, 0]),
                self_weight: Some(vec![0.25, 0.0]),
                edge_weight: Some(vec![0.25]),
                ..edges(1, 1, &[1, 0], &[0, 1, 1], &[0])
            },
            ShardEdges {
                edge_feature: Some(vec![1.0, 2.0, 3.0]),
                ..edges(0, 1, &[1, 2], &[0, 1, 3], &[0, 1, 0])
            },
            edges(1, 0, &[2, 1], &[0, 2, 2], &[1, 0]),
        ],
        pairs: None,
    }
}

fn flatten(layout: Layout) -> FlattenMeta {
    FlattenMeta {
        hops: 2,
        fanouts: vec![vec![Fanout::All; 3].into(); 2],
        sampling: Sampling::Uniform,
        seed: 1,
        samples_per_target: 1,
        layout,
    }
}

#[test]
fn columns_have_the_names_of_types_and_relations() {
    let check = |schema: arrow::datatypes::Schema, expected: &str| {
        let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
    };
    check(
        rows_schema(&meta()).unwrap(),
        "target label split \
         author.node_id author.hop_offset written-by.in_degree \
         paper.node_id paper.hop_offset \
         cites.in_degree cites.in_weight cites.self_loops cites.self_weight writes.in_degree \
         paper.node_feature \
         cites.in_offset cites.in_src cites.edge_weight \
         writes.in_offset writes.in_src writes.edge_feature \
         written-by.in_offset written-by.in_src",
    );
    check(
        nodes_schema(&meta(), 0).unwrap(),
        "id hop written-by.in_degree label split is_target",
    );
    check(
        nodes_schema(&meta(), 1).unwrap(),
        "id hop cites.in_degree cites.in_weight cites.self_loops cites.self_weight \
         writes.in_degree feature",
    );
    let [cites, writes] = [0, 1].map(|relation| edges_schema(&meta().relations[relation]));
    check(cites, "dst rank src weight");
    check(writes, "dst rank src feature");
}

#[test]
fn a_part_has_a_file_for_each_type_and_relation() {
    let check = |layout, expected: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let dataset = written(dir.path(), &[&shard()], &meta(), &flatten(layout));
        let files = dataset.part(0).files.iter();
        let paths: Vec<&str> = files.map(|file| file.path.as_str()).collect();
        assert_eq!(paths, expected);
        assert!(dataset.read_part(0).unwrap() == shard(), "{layout:?}");
    };
    check(Layout::Rows, &["part-00000.parquet"]);
    check(
        Layout::Shards,
        &[
            "nodes/author/part-00000.parquet",
            "nodes/paper/part-00000.parquet",
            "edges/cites/part-00000.parquet",
            "edges/writes/part-00000.parquet",
            "edges/written-by/part-00000.parquet",
        ],
    );
}

#[test]
fn errors_name_the_type_or_the_relation() {
    let check = |break_it: &dyn Fn(&mut GraphShard), expected: &str| {
        let mut broken = shard();
        break_it(&mut broken);
        let dir = tempfile::tempdir().unwrap();
        let output = open(dir.path());
        let meta = meta();
        let written = write_part(&output, 0, &broken, &[], &meta, &flatten(Layout::Shards));
        let error = written.unwrap_err().to_string();
        assert_eq!(error, format!("invalid shard: {expected}"));
    };
    check(
        &|s| s.nodes.truncate(1),
        "1 node types with targets of type 0, the graph has 2 with targets of type 0",
    );
    check(
        &|s| s.target_type = 1,
        "2 node types with targets of type 1, the graph has 2 with targets of type 0",
    );
    let others = "the relations are not those of the graph";
    check(&|s| s.edges.swap(0, 1), others);
    check(&|s| s.edges.truncate(2), others);
    check(
        &|s| s.nodes[1].is_target[0] = true,
        "`paper`: targets and the nodes of hop 0 are not the same",
    );
    check(
        &|s| (s.nodes[1].is_target[0], s.nodes[1].hop[0]) = (true, 0),
        "`paper`: targets are of another type",
    );
    check(
        &|s| s.nodes[1].labels = Labels::Class(vec![0, 0]),
        "`paper`: labels are of another kind than the graph's",
    );
    check(
        &|s| s.edges[1].in_degree.truncate(1),
        "`writes`: `in_degree` holds 1 values, not 2",
    );
    check(
        &|s| s.edges[1].in_src[0] = 2,
        "`writes`: source 2 of 2 nodes",
    );
    check(
        &|s| s.edges[1].in_src[1] = 0,
        "`author`: no edge leads from node 1 of hop 2 to the hop before",
    );
    check(
        &|s| s.edges[0].self_weight = None,
        "`cites`: `self_weight`: the graph needs such a column",
    );
    check(
        &|s| s.nodes[1].ids = Ids::from_keys(IdType::UInt64, vec![1, 1]),
        "`paper`: node 1 follows 1 within a hop; ids must ascend",
    );
}

/// A node id may occur in two types, but not twice in one.
#[test]
fn types_have_ids_of_their_own() {
    let mut meta = meta();
    meta.types[0].id_type = IdType::UInt64;
    let mut same = shard();
    same.nodes[0].ids = same.nodes[1].ids.clone();
    for layout in [Layout::Rows, Layout::Shards] {
        let dir = tempfile::tempdir().unwrap();
        let dataset = written(dir.path(), &[&same], &meta, &flatten(layout));
        assert!(dataset.read_part(0).unwrap() == same, "{layout:?}");
    }
}

fn begin(dir: &Path) -> Output {
    match Output::open(dir, "flatten", "plan", true).unwrap() {
        Opened::Open(output) => output,
        Opened::Done(_) => panic!("a fresh output is not finished"),
    }
}

/// A fresh run removes the folders of the types and relations of the output before.
#[test]
fn a_replaced_typed_output_leaves_no_folders() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    written(path, &[&shard()], &meta(), &flatten(Layout::Shards));
    // A killed run has left a part that no manifest lists.
    std::fs::write(path.join("edges/cites/part-00007.parquet"), "left").unwrap();
    let output = begin(path);
    let (meta, flatten) = (meta(), flatten(Layout::Rows));
    let part = write_part(&output, 0, &shard(), &[], &meta, &flatten).unwrap();
    output.commit_part(0, part).unwrap();
    let parts = output.parts();
    super::finish(output, parts, &meta, &flatten);
    for table in ["nodes", "edges"] {
        assert!(!path.join(table).exists(), "{table}");
    }
}

/// A finished output is written beside the old one, and its folders move to their places.
#[test]
fn a_typed_output_replaces_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    written(path, &[&shard()], &meta(), &flatten(Layout::Rows));
    let output = begin(path);
    let (meta, flatten) = (meta(), flatten(Layout::Shards));
    let part = write_part(&output, 0, &shard(), &[], &meta, &flatten).unwrap();
    output.commit_part(0, part).unwrap();
    let parts = output.parts();
    super::finish(output, parts, &meta, &flatten);
    let dataset = super::GraphFeatureDataset::open(path).unwrap();
    dataset.verify().unwrap();
    assert!(dataset.read_part(0).unwrap() == shard());
    assert!(!path.join("part-00000.parquet").exists());
    let left: Vec<_> = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !["nodes", "edges", "_SUCCESS", "_manifest.json"].contains(&name.as_str()))
        .collect();
    assert_eq!(left, Vec::<String>::new());
}
