//! Pairs of a part: the table on disk holds them, and broken pairs are neither written nor accepted.

use std::fs::File;

use arrow::array::ArrayRef;
use arrow::datatypes::Schema;
use arrow::util::display::array_value_to_string;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::super::write::write_in_batches;
use super::super::{
    ExtractScratch, GraphFeature, GraphFeatureDataset, GraphShard, HardNegatives, PartPairs,
    ShardEdges, ShardNodes,
};
use super::{finish, open, written};
use crate::columns::{
    FeatureMeta, Features, GraphMeta, Labels, PairsMeta, RelationMeta, Split, SplitMeta, TypeMeta,
};
use crate::config::{Exclude, SplitValues};
use crate::dataset::SplitCounts;
use crate::fanout::{Fanout, FlattenMeta, Layout, Sampling};
use crate::ids::{IdType, Ids};
use crate::idx::Row;

/// Users like items, and items are liked by users; pairs are users with items.
fn meta() -> GraphMeta {
    let of_type = |name: &str, id_type| TypeMeta {
        name: name.to_owned(),
        id_type,
        features: FeatureMeta::None,
        columns: Vec::new(),
        label: None,
        split: None,
    };
    let relation = |name: &str, from, to| RelationMeta {
        name: name.to_owned(),
        from,
        to,
        edge_weight: false,
        edge_feature_dim: None,
        self_loops: false,
    };
    GraphMeta {
        types: vec![
            of_type("item", IdType::Utf8),
            of_type("user", IdType::UInt64),
        ],
        relations: vec![relation("liked-by", 0, 1), relation("likes", 1, 0)],
        target_type: 1,
        pairs: Some(PairsMeta {
            from: 1,
            to: 0,
            relations: vec![0, 1],
            exclude: Exclude::All,
            label: true,
            weight: true,
            negatives: true,
            split: SplitMeta {
                data_type: "Int8".to_owned(),
                values: Some(SplitValues {
                    train: 1,
                    val: 2,
                    test: 3,
                    none: None,
                }),
            },
        }),
    }
}

/// Users 1 and 2 are paired with the items "a" to "c"; "d" is a random negative. User 3 likes "a".
fn shard() -> GraphShard {
    let mut items = Ids::new(IdType::Utf8);
    ["a", "b", "c", "d"]
        .iter()
        .for_each(|id| items.push_str(id));
    let nodes = |ids: Ids, hop: Vec<u8>| ShardNodes {
        features: Features::None,
        labels: Labels::None,
        split: vec![Split::None; hop.len()],
        is_target: hop.iter().map(|&hop| hop == 0).collect(),
        hop,
        ids,
    };
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
    let rows = |rows: &[u32]| Row::slice(rows).to_vec();
    GraphShard {
        target_type: 1,
        nodes: vec![
            nodes(items, vec![0; 4]),
            nodes(Ids::from_keys(IdType::UInt64, vec![1, 2, 3]), vec![0, 0, 1]),
        ],
        edges: vec![
            edges(0, 1, &[0, 0, 1], &[0; 4], &[]),
            edges(1, 0, &[1, 0, 0, 0], &[0, 1, 1, 1, 1], &[2]),
        ],
        pairs: Some(PartPairs {
            src: rows(&[1, 0, 1]),
            dst: rows(&[0, 1, 1]),
            label: Some(vec![1.0, 0.0, 1.0]),
            weight: Some(vec![0.5, 2.0, 1.0]),
            split: vec![Split::Train, Split::Test, Split::Train],
            hard: Some(HardNegatives {
                offset: vec![0, 2, 2, 3],
                nodes: rows(&[2, 1, 2]),
            }),
            random: rows(&[1, 3]),
        }),
    }
}

fn flatten() -> FlattenMeta {
    FlattenMeta {
        hops: 1,
        fanouts: vec![vec![Fanout::All; 2].into()],
        sampling: Sampling::Uniform,
        seed: 1,
        samples_per_target: 1,
        layout: Layout::Shards,
    }
}

#[test]
fn pairs_are_read_as_they_were_written() {
    let dir = tempfile::tempdir().unwrap();
    let dataset = written(dir.path(), &[&shard()], &meta(), &flatten());
    assert_eq!(dataset.read_part(0).unwrap(), shard());
    let part = dataset.part(0);
    let counts = SplitCounts {
        train: 2,
        test: 1,
        ..SplitCounts::default()
    };
    assert_eq!((part.rows, part.targets), (3, Some(counts)));
    assert_eq!(part.files[4].path, "pairs/part-00000.parquet");
    let file = File::open(dir.path().join("pairs/part-00000.parquet")).unwrap();
    let mut rows = ParquetRecordBatchReaderBuilder::try_new(file)
        .unwrap()
        .build()
        .unwrap();
    let batch = rows.next().unwrap().unwrap();
    let names = batch.schema();
    let names: Vec<&String> = names.fields().iter().map(|field| field.name()).collect();
    let columns = ["src", "dst", "label", "weight", "split", "negatives"];
    assert_eq!(names, columns);
    let shown = |row| {
        let value = |column: &ArrayRef| array_value_to_string(column, row).unwrap();
        batch.columns().iter().map(value).collect::<Vec<_>>()
    };
    let expected = [
        ["1", "0", "1.0", "0.5", "1", "[2, 1]"],
        ["0", "1", "0.0", "2.0", "3", "[]"],
        ["1", "1", "1.0", "1.0", "1", "[2]"],
        ["", "1", "", "", "", "[]"],
        ["", "3", "", "", "", "[]"],
    ];
    assert_eq!((0..5).map(shown).collect::<Vec<_>>(), expected);
}

#[test]
fn batches_of_any_size_give_the_same_pairs() {
    for batch_values in 1..6 {
        let dir = tempfile::tempdir().unwrap();
        let output = open(dir.path());
        let (meta, flatten) = (meta(), flatten());
        let part =
            write_in_batches(&output, 0, &shard(), &[], &meta, &flatten, batch_values).unwrap();
        output.commit_part(0, part.clone()).unwrap();
        let path = dir.path().join(&part.files[4].path);
        let reader = crate::parquet_file::TableReader::open(
            &path,
            &part.files[4],
            super::super::layout::SCHEMA_KEY,
        );
        let read = PartPairs::read(reader.unwrap(), meta.pairs.as_ref().unwrap()).unwrap();
        assert_eq!(Some(read), shard().pairs, "{batch_values}");
    }
}

/// The shard as rows: three pairs and two random negatives.
fn as_rows() -> FlattenMeta {
    FlattenMeta {
        layout: Layout::Rows,
        ..flatten()
    }
}

#[test]
fn rows_of_pairs_give_the_same_shard() {
    for batch_values in [1, 2, 3, 1000] {
        let dir = tempfile::tempdir().unwrap();
        let output = open(dir.path());
        let (meta, flatten) = (meta(), as_rows());
        let part =
            write_in_batches(&output, 0, &shard(), &[], &meta, &flatten, batch_values).unwrap();
        assert_eq!((part.rows, part.files.len()), (3, 1));
        output.commit_part(0, part.clone()).unwrap();
        finish(output, vec![part], &meta, &flatten);
        let dataset = GraphFeatureDataset::open(dir.path()).unwrap();
        assert_eq!(dataset.read_part(0).unwrap(), shard(), "{batch_values}");
        let features = dataset.read_features(0).unwrap();
        let roots = |of: &GraphFeature| -> Vec<Vec<String>> {
            let ids = of.nodes.iter().map(|nodes| {
                let roots = 0..nodes.hop_offset[1] as usize;
                roots.map(|at| nodes.node_id.display(at)).collect()
            });
            ids.collect()
        };
        let expected: [[&[&str]; 2]; 5] = [
            [&["a", "b", "c"], &["2"]],
            [&["b"], &["1"]],
            [&["b", "c"], &["2"]],
            [&["b"], &[]],
            [&["d"], &[]],
        ];
        assert_eq!(features.iter().map(roots).collect::<Vec<_>>(), expected);
        let with_d = dataset.find_features(0, Some("d"), 9).unwrap();
        assert_eq!(with_d, features[4..]);
        assert_eq!(
            dataset.find_features(0, Some("c"), 1).unwrap(),
            features[..1]
        );
    }
}

#[test]
fn a_row_of_a_pair_names_its_ends() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), &[&shard()], &meta(), &as_rows());
    let dataset = GraphFeatureDataset::open(dir.path()).unwrap();
    let check = |break_it: &dyn Fn(&mut GraphFeature), expected: &str| {
        let mut broken = dataset.read_features(0).unwrap().swap_remove(0);
        break_it(&mut broken);
        let error = broken.validate(&meta()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}: {expected}");
    };
    let ends = |of: &mut GraphFeature| of.pairs.as_mut().unwrap().dst[0] = Row::from_raw(3);
    check(&ends, "end 3 of a pair is not of hop 0");
    let none = |of: &mut GraphFeature| of.pairs.as_mut().unwrap().src.clear();
    check(&none, "a node of hop 0 is no end and no negative");
    let feature = dataset.read_features(0).unwrap().swap_remove(0);
    let without = GraphMeta {
        pairs: None,
        ..meta()
    };
    let error = feature.validate(&without).unwrap_err();
    assert!(error.to_string().contains("the graph has no pairs"));
}

#[test]
fn both_types_of_ends_are_targets() {
    let meta = meta();
    let columns = |at| super::super::layout::nodes_schema(&meta, at).unwrap();
    let has = |schema: Schema| schema.column_with_name("is_target").is_some();
    assert!(has(columns(0)) && has(columns(1)));
    let (shard, mut scratch) = (shard(), ExtractScratch::new(&shard()));
    let feature = shard.extract_of((0, 0), &flatten().fanouts, &mut scratch);
    assert_eq!(feature.pairs, None);
    feature.validate(&meta).unwrap();
    let ids = |at: usize| feature.nodes[at].node_id.display(0);
    assert_eq!([ids(0), ids(1)], ["a", "3"]);
}

#[test]
fn broken_pairs_are_neither_written_nor_accepted() {
    let check = |break_it: &dyn Fn(&mut PartPairs), expected: &str| {
        let mut broken = shard();
        break_it(broken.pairs.as_mut().unwrap());
        let error = broken.validate(&meta()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}: {expected}");
    };
    check(&|of| of.dst.truncate(2), "`dst` holds 2 values, not 3");
    check(&|of| of.split.truncate(2), "`split` holds 2 values, not 3");
    check(&|of| of.label = None, "`label`: the graph's pairs say true");
    check(&|of| of.weight = Some(vec![1.0]), "`weight` holds 1 values");
    check(&|of| of.split[0] = Split::None, "a pair is in no split");
    check(&|of| of.hard = None, "`negatives`: the graph's pairs say");
    let rise = "do not rise from 0 to their number";
    check(&|of| of.hard.as_mut().unwrap().offset[1] = 3, rise);
    check(&|of| of.random.reverse(), "random negatives do not ascend");
    let no_target = "node 2 of 3 nodes of its type is no target";
    check(&|of| of.src[0] = Row::from_raw(2), no_target);
    let beyond = "node 9 of 4 nodes of its type is no target";
    check(&|of| of.dst[0] = Row::from_raw(9), beyond);
    let unpaired = "a target is the end of no pair";
    check(&|of| of.random.truncate(1), unpaired);
    let mut without = shard();
    without.pairs = None;
    let error = without.validate(&meta()).unwrap_err();
    assert!(error.to_string().contains("`pairs`: the graph needs"));
}
