//! Random graphs, written as Parquet tables.

use arrow::array::{
    ArrayRef, AsArray as _, Float32Array, Int64Array, ListArray, RecordBatch, StringArray,
};
use arrow::datatypes::{DataType, Field, Float32Type, Int64Type, UInt32Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use schemas::{EdgesSpec, GraphPlan, NodesSpec, Progress, Sampling};
use std::fs::File;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{Store, StorePlan, open_or_build};

/// The store's hub threshold, low enough that the graphs have hubs.
pub(crate) const HUB_THRESHOLD: u64 = 20;

/// Number of nodes without edges, the last in the node table.
const NUM_ISOLATED: usize = 4;

/// Random numbers that only the seed decides.
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    /// Returns a number in [-1, 1).
    pub(crate) fn number(&mut self) -> f32 {
        let bits = u16::try_from(self.next() >> 48).unwrap();
        f32::from(bits) / 32768.0 - 1.0
    }
}

/// Which ids, columns and self-loops a graph has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) string_ids: bool,
    pub(crate) weights: bool,
    pub(crate) edge_dim: usize,
    pub(crate) sparse: bool,
    pub(crate) self_loops: bool,
    pub(crate) labels: LabelColumn,
}

/// How the label column is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LabelColumn {
    Name,
    Number,
}

pub(crate) const DIM: usize = 7;
pub(crate) const NUM_NODES: usize = 70;
pub(crate) const CLASSES: [&str; 3] = ["apple", "pear", "plum"];

/// A graph in memory; a node's number is its row in the node table, not its id.
pub(crate) struct Graph {
    pub(crate) kind: Kind,
    /// Features of each node.
    pub(crate) dim: usize,
    /// `[n]`: position of node `i` among all ids in ascending order.
    pub(crate) order: Vec<usize>,
    /// `[n * dim]`.
    pub(crate) features: Vec<f32>,
    pub(crate) edges: Vec<Edge>,
}

pub(crate) struct Edge {
    pub(crate) src: usize,
    pub(crate) dst: usize,
    pub(crate) weight: f32,
    pub(crate) features: Vec<f32>,
}

impl Graph {
    /// Returns a graph with a hub, parallel edges, isolated nodes and, if `kind` has them,
    /// self-loops, two of them on one node.
    pub(crate) fn random(kind: Kind, seed: u64) -> Self {
        Self::sized(kind, seed, (NUM_NODES, DIM))
    }

    /// Returns such a graph with `num_nodes` nodes of `dim` features.
    pub(crate) fn sized(kind: Kind, seed: u64, (num_nodes, dim): (usize, usize)) -> Self {
        let mut draws = Draws::new(seed);
        let mut order: Vec<usize> = (0..num_nodes).collect();
        (1..num_nodes)
            .rev()
            .for_each(|i| order.swap(i, draws.below(i + 1)));
        let features = (0..num_nodes * dim)
            .map(|_| {
                if draws.below(2) == 0 {
                    0.0
                } else {
                    draws.number()
                }
            })
            .collect();
        let connected = num_nodes - NUM_ISOLATED;
        let mut ends: Vec<(usize, usize)> = (0..5 * num_nodes)
            .map(|_| (draws.below(connected), draws.below(connected)))
            .filter(|(src, dst)| src != dst)
            .collect();
        ends.extend((0..40).map(|_| (1 + draws.below(connected - 1), 0)));
        let again: Vec<_> = ends.iter().copied().step_by(9).collect();
        ends.extend(again);
        if kind.self_loops {
            ends.extend([
                (0, 0),
                (3, 3),
                (5, 5),
                (5, 5),
                (connected - 1, connected - 1),
            ]);
        }
        let edges = ends
            .into_iter()
            .map(|(src, dst)| Edge {
                src,
                dst,
                weight: draws.number().abs() + 0.05,
                features: (0..kind.edge_dim).map(|_| draws.number()).collect(),
            })
            .collect();
        Self {
            kind,
            dim,
            order,
            features,
            edges,
        }
    }

    /// Adds in-edges to some nodes, from random connected nodes; self-loops only if the graph has
    /// them.
    pub(crate) fn add_in_edges(&mut self, seed: u64, nodes: &[(usize, usize)]) {
        let connected = self.num_nodes() - NUM_ISOLATED;
        self.add_in_edges_from(seed, nodes, 0..connected);
    }

    /// Adds in-edges to some nodes, from random nodes of a range; self-loops only if the graph has
    /// them.
    pub(crate) fn add_in_edges_from(
        &mut self,
        seed: u64,
        nodes: &[(usize, usize)],
        srcs: Range<usize>,
    ) {
        let mut draws = Draws::new(seed ^ 0x5eed);
        for &(dst, count) in nodes {
            for _ in 0..count {
                let src = srcs.start + draws.below(srcs.len());
                if src == dst && !self.kind.self_loops {
                    continue;
                }
                let edge = Edge {
                    src,
                    dst,
                    weight: draws.number().abs() + 0.05,
                    features: (0..self.kind.edge_dim).map(|_| draws.number()).collect(),
                };
                self.edges.push(edge);
            }
        }
    }

    /// Returns Cora's nodes, features and edges; none, with a notice, if the data set is missing.
    pub(crate) fn cora(kind: Kind) -> Option<Self> {
        let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
        let data = std::env::var_os("GRAPHFLAT_DATA").map_or_else(beside, PathBuf::from);
        let data = data.join("cora");
        if !data.is_dir() {
            let reason = format!("{} is missing", data.display());
            assert!(
                std::env::var_os("GRAPHFLAT_TEST_ALL").is_none(),
                "{reason}, and GRAPHFLAT_TEST_ALL forbids to skip a test"
            );
            // Written to stderr, which the test harness does not capture: the skipped test is
            // visible.
            writeln!(std::io::stderr(), "skipped: {reason}").unwrap();
            return None;
        }
        let nodes = read_table(&data.join("nodes.parquet"));
        let ids = nodes["id"].as_primitive::<Int64Type>().values().to_vec();
        let lists = nodes["features"].as_fixed_size_list();
        let mut ascending: Vec<usize> = (0..ids.len()).collect();
        ascending.sort_by_key(|&node| ids[node]);
        let mut order = vec![0; ids.len()];
        for (place, &node) in ascending.iter().enumerate() {
            order[node] = place;
        }
        let edges = read_table(&data.join("edges.parquet"));
        let node_of = |name: &str| -> Vec<usize> {
            let ends = edges[name].as_primitive::<Int64Type>().values();
            let find = |id: &i64| ids.iter().position(|other| other == id).unwrap();
            ends.iter().map(find).collect()
        };
        let ends = node_of("src").into_iter().zip(node_of("dst"));
        let edge = |(src, dst)| Edge {
            src,
            dst,
            weight: 1.0,
            features: Vec::new(),
        };
        Some(Self {
            kind,
            dim: usize::try_from(lists.value_length()).unwrap(),
            order,
            features: lists
                .values()
                .as_primitive::<Float32Type>()
                .values()
                .to_vec(),
            edges: ends.map(edge).collect(),
        })
    }

    pub(crate) fn num_nodes(&self) -> usize {
        self.order.len()
    }

    fn id_column(&self, nodes: impl Iterator<Item = usize>) -> ArrayRef {
        // Ids whose order differs from the order of the rows.
        if self.kind.string_ids {
            let ids = nodes.map(|node| format!("node-{:04}", self.order[node]));
            Arc::new(StringArray::from_iter_values(ids))
        } else {
            let ids = nodes.map(|node| 10 * i64::try_from(self.order[node]).unwrap() - 300);
            Arc::new(Int64Array::from_iter_values(ids))
        }
    }

    fn feature_columns(&self) -> Vec<(&'static str, ArrayRef)> {
        let rows = || self.features.chunks(self.dim);
        if !self.kind.sparse {
            let lists = rows().map(|row| Some(row.iter().map(|&x| Some(x))));
            let lists = ListArray::from_iter_primitive::<Float32Type, _, _>(lists);
            return vec![("x", Arc::new(lists))];
        }
        let stored = || rows().map(|row| row.iter().enumerate().filter(|(_, x)| **x != 0.0));
        let index = stored().map(|row| {
            Some(
                row.map(|(at, _)| Some(u32::try_from(at).unwrap()))
                    .collect::<Vec<_>>(),
            )
        });
        let value = stored().map(|row| Some(row.map(|(_, &x)| Some(x)).collect::<Vec<_>>()));
        vec![
            (
                "at",
                Arc::new(ListArray::from_iter_primitive::<UInt32Type, _, _>(index)),
            ),
            (
                "is",
                Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(value)),
            ),
        ]
    }

    /// Writes both tables and returns the specs that name their columns.
    fn write(&self, dir: &Path) -> (NodesSpec, EdgesSpec) {
        let mut columns = vec![("id", self.id_column(0..self.num_nodes()))];
        columns.extend(self.feature_columns());
        let label: ArrayRef = match self.kind.labels {
            LabelColumn::Name => {
                let names = (0..self.num_nodes()).map(|node| CLASSES[node % CLASSES.len()]);
                Arc::new(StringArray::from_iter_values(names))
            }
            LabelColumn::Number => Arc::new(Float32Array::from_iter_values(
                self.features.iter().step_by(self.dim).copied(),
            )),
        };
        columns.push(("label", label));
        let split = (0..self.num_nodes()).map(|node| ["train", "val", "test"][node % 3]);
        columns.push(("split", Arc::new(StringArray::from_iter_values(split))));
        write_table(&dir.join("nodes.parquet"), columns);
        let mut of_edges = vec![
            (
                "src",
                self.id_column(self.edges.iter().map(|edge| edge.src)),
            ),
            (
                "dst",
                self.id_column(self.edges.iter().map(|edge| edge.dst)),
            ),
        ];
        let weights = self.edges.iter().map(|edge| edge.weight);
        of_edges.push(("w", Arc::new(Float32Array::from_iter_values(weights))));
        let lists = self
            .edges
            .iter()
            .map(|edge| Some(edge.features.iter().map(|&x| Some(x))));
        let lists = ListArray::from_iter_primitive::<Float32Type, _, _>(lists);
        of_edges.push(("e", Arc::new(lists)));
        write_table(&dir.join("edges.parquet"), of_edges);
        self.specs()
    }

    fn specs(&self) -> (NodesSpec, EdgesSpec) {
        let mut nodes = serde_json::json!({
            "path": "nodes.parquet", "id": "id", "label": "label", "split": "split",
        });
        if matches!(self.kind.labels, LabelColumn::Number) {
            // By chance all labels may be whole numbers, which would be read as classes.
            nodes["label_kind"] = serde_json::json!("number");
        }
        if self.kind.sparse {
            nodes["sparse"] =
                serde_json::json!({ "index": "at", "value": "is", "width": self.dim });
        } else {
            nodes["features"] = serde_json::json!(["x"]);
        }
        let mut edges = serde_json::json!({ "path": "edges.parquet", "src": "src", "dst": "dst" });
        if self.kind.weights {
            edges["weight"] = serde_json::json!("w");
        }
        if self.kind.edge_dim > 0 {
            edges["features"] = serde_json::json!(["e"]);
        }
        (
            serde_json::from_value(nodes).unwrap(),
            serde_json::from_value(edges).unwrap(),
        )
    }

    /// Writes the tables into `dir` and builds a store of them that keeps `keep` in-edges a node.
    pub(crate) fn store(
        &self,
        dir: &Path,
        workers: usize,
        keep: usize,
        draws: (Sampling, u64),
    ) -> Store {
        self.store_in(dir, (workers, keep), draws, (1 << 30, None))
    }

    /// [`store`](Self::store), with a memory budget and the bytes of files that the page cache can
    /// hold.
    pub(crate) fn store_in(
        &self,
        dir: &Path,
        (workers, keep): (usize, usize),
        (sampling, seed): (Sampling, u64),
        (memory_budget, page_cache): (usize, Option<u64>),
    ) -> Store {
        let (nodes, edges) = self.write(dir);
        let nodes = nodes.into_plan(dir).unwrap();
        let edges = edges.into_plan(dir).unwrap();
        let plan = StorePlan {
            graph: Arc::new(GraphPlan::untyped(nodes, edges).unwrap()),
            target_type: 0,
            seed,
            sampling,
            keep: vec![keep],
            samples: 1,
            redraw: false,
            left_out: false,
            hub_threshold: HUB_THRESHOLD,
            workers,
            memory_budget,
            page_cache,
            dir: dir.join(format!("store-{workers}-{keep}-{sampling:?}-{seed}")),
            fresh: false,
        };
        open_or_build(&plan, &quiet()).unwrap()
    }
}

/// Returns a progress that ignores all events.
pub(crate) fn quiet() -> Progress {
    Arc::new(|_| {})
}

fn read_table(path: &Path) -> RecordBatch {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let batches = reader.with_batch_size(1 << 20).build().unwrap();
    let batches: Vec<RecordBatch> = batches.map(Result::unwrap).collect();
    assert_eq!(batches.len(), 1, "one row group");
    batches.into_iter().next().unwrap()
}

fn write_table(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let fields = columns.iter().map(|(name, array)| {
        let item_is_null = matches!(array.data_type(), DataType::List(_));
        Field::new(*name, array.data_type().clone(), item_is_null)
    });
    let schema = Arc::new(arrow::datatypes::Schema::new(fields.collect::<Vec<_>>()));
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).unwrap();
    let file = File::create(path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, schema, None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}
