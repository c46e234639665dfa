//! LightGCN: inference, forward on graph features and plain sums give the same embeddings.

use crate::case::{Case, TOLERANCE, assert_reported, assert_rounded, assert_within, read};
use crate::graph::{Draws, Graph};
use crate::models::{Trained, plain};
use crate::support::twin::Rows;
use crate::{sampled, twin};
use gnn::kernel::Partitioning;
use gnn::typed::{TypedArchitecture, TypedBlockData, TypedKind};
use gnn::{Decoder, Dense, Input, LayerKind, Mode, ReadyInput, Task};
use graphinfer::infer;
use graphtrainer::batch::{BlockOptions, EdgeColumns, Piece, typed_blocks_of};
use schemas::{
    FlattenMeta, GraphFeatureDataset, GraphMeta, GraphShard, Layout, Sampling, use_at_layer,
};
use serde_json::json;
use std::path::PathBuf;
use store::Store;

const DIM: usize = 6;

const LAYERS: usize = 2;

fn architecture(meta: &GraphMeta) -> TypedArchitecture {
    let mut arch = TypedArchitecture {
        projection: DIM,
        hidden: vec![DIM],
        out_dim: DIM,
        task: Task::Links(Decoder::Dot),
        ..plain(TypedKind::Conv(LayerKind::LightGcn), meta)
    };
    for of in &mut arch.types {
        (of.in_dim, of.embedding_dim) = (Some(DIM), Some(DIM));
    }
    arch
}

/// The learnable row of each node, by type.
fn start(store: &Store, trained: &Trained) -> Vec<Rows> {
    let types = store.meta().graph.types.iter().enumerate();
    let of_type = |(at, of): (usize, &schemas::TypeMeta)| {
        let all = twin::places(store, at);
        let none = Dense::zeros(all.len(), 0);
        let rows = twin::with_table(&none, &trained.tables[&of.name], &all, DIM);
        let Input::Dense(rows) = rows else {
            unreachable!("a table is dense")
        };
        let rows = rows.values.chunks(DIM);
        rows.map(|row| row.iter().map(|&x| f64::from(x)).collect())
            .collect()
    };
    types.map(of_type).collect()
}

/// The embeddings by type, sum by sum; the sum over a part of a node's in-edges is scaled to all.
fn embeddings(meta: &GraphMeta, layers: &[TypedBlockData], start: &[Rows]) -> Vec<Rows> {
    let mut rows = start.to_vec();
    for layer in layers {
        let relations = || layer.relations.iter().zip(&meta.relations);
        let root = |of: usize, node: usize| {
            let into = relations().filter(|(_, relation)| relation.to == of);
            let degree: u32 = into.map(|(edges, _)| edges.in_degree[node]).sum();
            match degree {
                0 => 0.0,
                degree => 1.0 / f64::from(degree).sqrt(),
            }
        };
        let mut next = start.to_vec();
        for (edges, relation) in relations() {
            for (dst, ends) in edges.in_offset.windows(2).enumerate() {
                let own = ends[0] as usize..ends[1] as usize;
                let scale = f64::from(edges.in_degree[dst]) / own.len() as f64;
                for &src in &edges.in_src[own] {
                    let src = src as usize;
                    let factor = scale * root(relation.from, src) * root(relation.to, dst);
                    let read = &rows[relation.from][src];
                    let sums = next[relation.to][dst].iter_mut().zip(read);
                    sums.for_each(|(sum, x)| *sum += factor * x);
                }
            }
        }
        rows = next;
    }
    let share = (LAYERS + 1) as f64;
    let all = rows.iter_mut().flatten().flatten();
    all.for_each(|x| *x /= share);
    rows
}

/// A model on a graph, with what inference must give.
struct Light {
    case: Case,
    keep: Vec<usize>,
    flatten: FlattenMeta,
    features: PathBuf,
    meta: GraphMeta,
    trained: Trained,
}

impl Light {
    fn new(graph: &Graph, hops: impl Fn(&Case) -> serde_json::Value, keeps_all: bool) -> Self {
        let case = Case::new(graph);
        let plan = case.sample(&hops(&case), Layout::Shards);
        let mut keep = plan.sample().keep_by_relation();
        if keeps_all {
            keep.fill(usize::MAX);
        }
        let (features, flatten) = case.flatten(&plan);
        let meta = case.store(1, &keep).meta().graph.clone();
        let (dir, arch) = (case.path().join("model"), architecture(&meta));
        let of_graph = (&flatten, &meta);
        let trained = Trained::with_tables(dir, &arch, of_graph, &case.store(1, &keep));
        Self {
            case,
            keep,
            flatten,
            features,
            meta,
            trained,
        }
    }

    /// Compares inference with plain sums, for several numbers of workers.
    fn check(&self, what: &str, (reads_all, tolerance): (bool, f64)) {
        let relations = 0..self.meta.relations.len();
        let store = self.case.store(1, &self.keep);
        let layer = |layer| {
            let limit = |of| match reads_all {
                true => usize::MAX,
                false => use_at_layer(&self.flatten.fanouts, of, layer),
            };
            let limits: Vec<usize> = relations.clone().map(limit).collect();
            twin::block(&store, &limits)
        };
        let layers: Vec<TypedBlockData> = (1..=LAYERS).map(layer).collect();
        let start = start(&store, &self.trained);
        let wanted = embeddings(&self.meta, &layers, &start);
        let sampling = if reads_all {
            r#", "sampling": "none""#
        } else {
            ""
        };
        let rows = |workers, name: &str, more: &str| {
            let (output, extra) = (
                format!("out-{name}-{workers}"),
                format!(r#", "types": "all"{sampling}{more}"#),
            );
            let written = self
                .case
                .infer(&self.trained, (workers, &self.keep), (&output, &extra));
            let types = self.meta.types.iter();
            let of_types = types.map(|of| read(&written.1, &of.name));
            (written.0, of_types.collect::<Vec<_>>())
        };
        let got = rows(1, "f32", "").1;
        for (of_type, rows_of) in got.iter().enumerate() {
            assert!(rows_of.dim == DIM || rows_of.ids.is_empty());
            let what = format!("{what}, type {of_type}");
            assert_within(tolerance, &what, rows_of, &wanted[of_type]);
        }
        for workers in [2, 8] {
            let others = rows(workers, "f32", "").1;
            assert!(got == others, "{what}: {workers} workers");
        }
        let (manifest, rounded) = rows(1, "bf16", r#", "rows": "bf16""#);
        // Nodes that read hubs are not in the sample.
        if !reads_all {
            assert_reported(what, &manifest, (&got, &rounded));
        }
        let all = [start, wanted];
        for (of_type, rows_of) in rounded.iter().enumerate() {
            assert_rounded(&format!("{what}, 16 bits"), rows_of, (&all, of_type));
        }
        let of_three = rows(3, "bf16", r#", "rows": "bf16""#).1;
        assert!(rounded == of_three, "{what}");
    }

    /// Compares inference with the forward pass of training on graph features.
    fn check_graph_features(&self, what: &str) {
        let dataset = GraphFeatureDataset::open(&self.features).unwrap();
        let options = BlockOptions {
            node_keys: true,
            fanouts: self.flatten.fanouts.clone(),
            sampling: Sampling::Uniform,
            pruning: true,
            partitioning: Partitioning::EdgeBalanced,
            edges: vec![EdgeColumns::default(); self.meta.relations.len()],
            source_degrees: true,
        };
        let extra = r#", "types": "all""#;
        let written = self
            .case
            .infer(&self.trained, (2, &self.keep), ("near", extra));
        let target = self.meta.target_type;
        let wanted = read(&written.1, &self.meta.types[target].name);
        let most = wanted
            .embedding
            .iter()
            .fold(1e-3_f32, |most, x| most.max(x.abs()));
        let mut count = 0;
        for part in 0..dataset.num_parts() {
            let shard = dataset.read_part(part).unwrap();
            let (ids, rows) = self.forward(&shard, &options);
            for (id, row) in ids.iter().zip(rows.values.chunks(DIM)) {
                let mut all = 0..wanted.ids.len();
                let at = all.find(|&at| wanted.ids.display(at) == *id).unwrap();
                for (x, y) in row.iter().zip(&wanted.embedding[at * DIM..]) {
                    let error = f64::from((x - y).abs() / most);
                    assert!(error <= TOLERANCE, "{what}, node {id}: {x} is not {y}");
                }
                count += 1;
            }
        }
        assert_eq!(count, wanted.ids.len(), "{what}");
    }

    /// Returns the ids and the embeddings of the targets of a shard.
    fn forward(&self, shard: &GraphShard, options: &BlockOptions) -> (Vec<String>, Dense) {
        let target = self.meta.target_type;
        let targets: Vec<u32> = shard.targets_of(target).collect();
        let piece = Piece {
            shard,
            targets: &targets,
        };
        let model = &self.trained.model;
        let blocks = typed_blocks_of(model.schema(), &[piece], options).unwrap();
        let types = self.meta.types.iter().zip(&blocks.nodes).enumerate();
        let input = types.map(|(at, (of, places))| {
            let rows = &self.trained.tables[&of.name];
            let count = rows.len().max(1) as f64;
            let ids = &shard.nodes[at].ids;
            let values = places.iter().flat_map(|place| {
                let shown = ids.display(place.node as usize);
                rows.get(&shown).cloned().unwrap_or_else(|| {
                    let column = |column: usize| {
                        let sum: f64 = rows.values().map(|row| f64::from(row[column])).sum();
                        #[expect(clippy::cast_possible_truncation, reason = "rows are f32")]
                        let mean = (sum / count) as f32;
                        mean
                    };
                    (0..DIM).map(column).collect()
                })
            });
            let dense = Dense {
                rows: places.len(),
                cols: DIM,
                values: values.collect(),
            };
            (dense.rows > 0).then(|| ReadyInput::new(Input::Dense(dense)).unwrap())
        });
        let input: Vec<Option<ReadyInput>> = input.collect();
        let rows = model.forward(&blocks.blocks, &input, Mode::Eval).unwrap();
        let ids = targets
            .iter()
            .map(|&node| shard.nodes[target].ids.display(node as usize));
        // Targets of other types come first or last; these graph features have one type of targets.
        (ids.collect(), rows)
    }
}

#[test]
fn inference_is_that_of_plain_sums_and_of_graph_features() {
    for seed in 60..63 {
        let graph = Graph::random(seed, seed == 62).without_features();
        let hops = |case: &Case| match seed {
            60 => json!(["all", "all"]),
            _ => sampled(&case.graph, case.target, &mut Draws(seed)),
        };
        let light = Light::new(&graph, hops, false);
        let what = format!("graph {seed}");
        light.check(&what, (false, TOLERANCE));
        light.check_graph_features(&what);
    }
}

#[test]
fn hubs_agree_with_plain_sums() {
    let hubs = [(0, 0, 20_000), (2, 0, 9000), (1, 3, 8500)];
    let graph = Graph::with_in_edges(5, false, &hubs).without_features();
    let light = Light::new(&graph, |_| json!([2, 2]), true);
    light.check("hubs", (true, TOLERANCE));
}

/// The mean over layers is the only embedding.
#[test]
fn an_earlier_layer_is_refused() {
    let light = Light::new(
        &Graph::random(60, false).without_features(),
        |_| json!([2, 2]),
        false,
    );
    let plan = light.case.plan(&light.trained, "out", r#", "layer": 1"#);
    let store = light.case.store(1, &light.keep);
    let error = infer(&plan, &store, &crate::graph::quiet()).unwrap_err();
    let expected = "`infer.layer` is 1: lightgcn has one embedding";
    assert!(error.to_string().contains(expected), "{error}");
}
