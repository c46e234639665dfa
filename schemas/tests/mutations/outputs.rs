//! Graph features in both layouts, and embeddings.

use std::ops::Range;
use std::path::Path;

use schemas::{
    EmbeddingBatch, EmbeddingColumns, EmbeddingsDataset, EmbeddingsWriter, Fanout, FeatureMeta,
    Features, FlattenMeta, GraphFeatureDataset, GraphShard, IdType, Ids, Labels, Layout, Manifest,
    Opened, Output, Precision, Sampling, Split, write_part,
};
use schemas::{
    Exclude, GraphMeta, HardNegatives, LabelKind, LabelMeta, NodeIdx, PairsMeta, PartPairs, Row,
    ShardEdges, SplitMeta, TypeMeta, UntypedMeta,
};

use crate::Subject;

const TARGETS: usize = 40;
const DIM: usize = 3;

fn meta(is_sparse: bool) -> GraphMeta {
    GraphMeta::from(UntypedMeta {
        id_type: IdType::Utf8,
        features: match is_sparse {
            true => FeatureMeta::Sparse { dim: 50 },
            false => FeatureMeta::Dense { dim: DIM },
        },
        columns: Vec::new(),
        label: Some(LabelMeta {
            data_type: "Utf8".to_owned(),
            kind: LabelKind::ClassName {
                names: ["admin", "libs"].map(str::to_owned).to_vec(),
            },
        }),
        split: Some(SplitMeta {
            data_type: "Utf8".to_owned(),
            values: None,
        }),
        edge_weight: true,
        edge_feature_dim: Some(2),
        self_loops: false,
    })
}

/// Targets with two in-edges each, from nodes of hop 1.
fn shard(part: usize, is_sparse: bool) -> GraphShard {
    let num_nodes = TARGETS * 2;
    let mut ids = Ids::new(IdType::Utf8);
    for node in 0..num_nodes {
        ids.push_str(&format!("node-{part}-{node:03}"));
    }
    let hop = |node: usize| u8::from(node >= TARGETS);
    let wide = |number: usize| u32::try_from(number).unwrap();
    let mut shard = GraphShard::empty(&meta(is_sparse));
    let (nodes, edges) = (&mut shard.nodes[0], &mut shard.edges[0]);
    nodes.ids = ids;
    nodes.hop = (0..num_nodes).map(hop).collect();
    edges.in_degree = (0..num_nodes).map(|node| wide(node % 9 + 2)).collect();
    edges.in_weight = Some((0..num_nodes).map(|node| node as f32 / 3.0).collect());
    nodes.features = match is_sparse {
        false => Features::Dense {
            dim: DIM,
            values: (0..num_nodes * DIM).map(|at| at as f32 / 7.0).collect(),
        },
        true => Features::Sparse {
            dim: 50,
            offset: (0..=num_nodes as u64).collect(),
            index: (0..num_nodes).map(|node| wide(node % 50)).collect(),
            value: (0..num_nodes).map(|node| node as f32).collect(),
        },
    };
    nodes.labels = Labels::Class((0..num_nodes).map(|node| wide(node % 2)).collect());
    let splits = [Split::Train, Split::Val, Split::Test, Split::None];
    nodes.split = (0..num_nodes).map(|node| splits[node % 4]).collect();
    nodes.is_target = (0..num_nodes).map(|node| node < TARGETS).collect();
    edges.in_offset = (0..=num_nodes)
        .map(|node| wide(node.min(TARGETS) * 2))
        .collect();
    let src = |edge: usize| TARGETS + (edge / 2 + edge % 2) % TARGETS;
    edges.in_src = (0..TARGETS * 2).map(|edge| wide(src(edge))).collect();
    edges.edge_weight = Some((0..TARGETS * 2).map(|edge| edge as f32).collect());
    edges.edge_feature = Some((0..TARGETS * 4).map(|at| at as f32).collect());
    shard
}

fn open(dir: &Path, stage: &str) -> Output {
    match Output::open(dir, stage, "plan", false).unwrap() {
        Opened::Open(output) => output,
        Opened::Done(_) => panic!("it is new"),
    }
}

fn finish(output: Output, stage: &str, graph: GraphMeta, flatten: Option<FlattenMeta>) {
    let manifest = Manifest {
        graph: Some(graph),
        flatten,
        parts: output.parts(),
        ..Manifest::new(
            stage,
            "plan".to_owned(),
            (serde_json::json!({ "hops": 1 }), serde_json::Value::Null),
            7,
        )
    };
    output.finish(&manifest).unwrap();
}

/// The same graph with two types: targets, and the sources of their in-edges.
fn typed_meta(is_sparse: bool) -> GraphMeta {
    let mut meta = meta(is_sparse);
    let targets = &mut meta.types[0];
    targets.name = "target".to_owned();
    let sources = TypeMeta {
        name: "source".to_owned(),
        label: None,
        split: None,
        ..targets.clone()
    };
    meta.types.insert(0, sources);
    meta.relations[0].name = "feeds".to_owned();
    (meta.relations[0].to, meta.target_type) = (1, 1);
    meta
}

fn typed_shard(part: usize, is_sparse: bool) -> GraphShard {
    let flat = shard(part, is_sparse);
    let mut typed = GraphShard::empty(&typed_meta(is_sparse));
    let wide = |number: usize| u32::try_from(number).unwrap();
    let of_types = [TARGETS..TARGETS * 2, 0..TARGETS];
    for (nodes, range) in typed.nodes.iter_mut().zip(of_types) {
        let all = &flat.nodes[0];
        let own: Vec<u32> = range.clone().map(wide).collect();
        nodes.ids = all.ids.gather(&own);
        nodes.hop = all.hop[range.clone()].to_vec();
        nodes.features = all.features.gather(&own);
        nodes.is_target = all.is_target[range].to_vec();
        nodes.split = vec![Split::None; TARGETS];
    }
    let targets: Vec<u32> = (0..TARGETS).map(wide).collect();
    typed.nodes[1].labels = flat.nodes[0].labels.gather(&targets);
    typed.nodes[1].split = flat.nodes[0].split[..TARGETS].to_vec();
    let all = &flat.edges[0];
    typed.edges[0] = ShardEdges {
        from: 0,
        to: 1,
        in_degree: all.in_degree[..TARGETS].to_vec(),
        in_weight: all.in_weight.as_ref().map(|sums| sums[..TARGETS].to_vec()),
        in_offset: all.in_offset[..=TARGETS].to_vec(),
        in_src: all.in_src.iter().map(|src| src - wide(TARGETS)).collect(),
        ..all.clone()
    };
    typed
}

/// The same graph without labels and splits, with pairs of targets.
fn meta_of_pairs() -> GraphMeta {
    let mut meta = meta(false);
    let split = meta.types[0].split.take();
    meta.types[0].label = None;
    meta.pairs = Some(PairsMeta {
        from: 0,
        to: 0,
        relations: vec![0],
        exclude: Exclude::None,
        label: true,
        weight: true,
        negatives: true,
        split: split.expect("the graph has splits"),
    });
    meta
}

fn shard_of_pairs(part: usize) -> GraphShard {
    let mut shard = shard(part, false);
    let nodes = &mut shard.nodes[0];
    nodes.labels = Labels::None;
    nodes.split = vec![Split::None; 2 * TARGETS];
    let num_pairs = TARGETS - 4;
    let rows = |of: Range<usize>| of.map(Row::from_index).collect();
    let splits = [Split::Train, Split::Val, Split::Test];
    shard.pairs = Some(PartPairs {
        src: rows(0..num_pairs),
        dst: rows(1..num_pairs + 1),
        label: Some((0..num_pairs).map(|pair| (pair % 2) as f32).collect()),
        weight: Some((0..num_pairs).map(|pair| pair as f32).collect()),
        split: (0..num_pairs).map(|pair| splits[pair % 3]).collect(),
        hard: Some(HardNegatives {
            offset: (0..=u32::try_from(num_pairs).unwrap()).collect(),
            nodes: rows(2..num_pairs + 2),
        }),
        random: rows(num_pairs..TARGETS),
    });
    shard
}

/// A graph whose features are written.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Dense,
    Sparse,
    Typed,
    Pairs,
}

fn write_features(dir: &Path, layout: Layout, kind: Kind) {
    let flatten = FlattenMeta {
        hops: 1,
        fanouts: vec![Fanout::Count(2).into()],
        sampling: Sampling::Uniform,
        seed: 7,
        samples_per_target: 1,
        layout,
    };
    let output = open(dir, "flatten");
    let graph = match kind {
        Kind::Dense => meta(false),
        Kind::Sparse => meta(true),
        Kind::Typed => typed_meta(false),
        Kind::Pairs => meta_of_pairs(),
    };
    for index in 0..2 {
        let shard = match kind {
            Kind::Dense => shard(index, false),
            Kind::Sparse => shard(index, true),
            Kind::Typed => typed_shard(index, false),
            Kind::Pairs => shard_of_pairs(index),
        };
        let part = write_part(&output, index, &shard, &[], &graph, &flatten).unwrap();
        output.commit_part(index, part).unwrap();
    }
    finish(output, "flatten", graph, Some(flatten));
}

fn read_features(dir: &Path) -> schemas::Result<u64> {
    let dataset = GraphFeatureDataset::open(dir)?;
    let mut text = format!("{:?} {:?}", dataset.meta(), dataset.flatten());
    for part in 0..dataset.num_parts() {
        text.push_str(&format!("{:?}", dataset.read_part(part)?));
        text.push_str(&format!("{:?}", dataset.read_features(part)?));
    }
    Ok(schemas::xxh::hash_bytes(text.as_bytes()))
}

fn write_embeddings(dir: &Path, precision: Precision) {
    let output = open(dir, "infer");
    let graph = meta(false);
    let columns = EmbeddingColumns {
        are_changes: false,
        id_type: IdType::Utf8,
        passed: None,
        vectors: vec![("embedding", DIM)],
        precision,
        prediction: graph.target().label.clone(),
    };
    let of = shard(0, false);
    let mut writer = EmbeddingsWriter::create(&output, 0, &columns).unwrap();
    let nodes: Vec<u32> = (0..u32::try_from(of.num_nodes()).unwrap()).collect();
    let values = (0..of.num_nodes() * DIM)
        .map(|at| at as f32 / 7.0)
        .collect();
    let batch = EmbeddingBatch {
        ids: &of.nodes[0].ids,
        nodes: NodeIdx::slice(&nodes),
        vectors: &[values],
        prediction: &of.nodes[0].labels,
    };
    writer.write(batch).unwrap();
    output.commit_part(0, writer.finish().unwrap()).unwrap();
    finish(output, "infer", graph, None);
}

fn read_embeddings(dir: &Path) -> schemas::Result<u64> {
    let dataset = EmbeddingsDataset::open(dir)?;
    let mut text = String::new();
    for part in 0..dataset.num_parts() {
        text.push_str(&format!("{:?}", dataset.read_part(part)?));
    }
    Ok(schemas::xxh::hash_bytes(text.as_bytes()))
}

pub(crate) fn subjects(root: &Path) -> Vec<Subject> {
    let mut subjects = Vec::new();
    for layout in [Layout::Shards, Layout::Rows] {
        for kind in [Kind::Dense, Kind::Sparse, Kind::Typed, Kind::Pairs] {
            let dir = root.join(format!("{layout:?}-{kind:?}"));
            write_features(&dir, layout, kind);
            let name = format!("graph features, {layout:?}, {kind:?}");
            let read = dir.clone();
            subjects.push(Subject::new(&name, &dir, true, move || {
                read_features(&read)
            }));
        }
    }
    for precision in [Precision::F32, Precision::F16] {
        let dir = root.join(format!("embeddings-{precision:?}"));
        write_embeddings(&dir, precision);
        let (name, read) = (format!("embeddings, {precision:?}"), dir.clone());
        subjects.push(Subject::new(&name, &dir, true, move || {
            read_embeddings(&read)
        }));
    }
    subjects
}
