//! Graphs as tables in memory, and their stores.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::{Float32Type, Int32Type};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use schemas::{ChangesSpec, GraphPlan, Ids, InputSpec, Progress, Sampling, TablePath};
use serde_json::{Value, json};
use store::sample::mix;
use store::{HUB_THRESHOLD, Store, StorePlan, open_or_build};

/// Random numbers of a test.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        usize::try_from(mix(self.0) % bound.max(1) as u64).unwrap()
    }

    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A table of edges.
#[derive(Clone)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// Positions of types.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) undirected: bool,
    pub(crate) reverse: Option<&'static str>,
}

/// Width of sparse features.
pub(crate) const SPARSE_WIDTH: usize = 8;

/// Where supervision pairs come from; they lead from and to the types of the first table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PairsOf {
    /// A table of their own, with a column of splits.
    Table,
    /// The edges of the first table, with a column of splits.
    Edges,
    /// The edges of the first table; a hash gives their splits.
    Shares,
    /// A table of their own, whose times give the splits.
    TimedTable,
    /// The edges of the first table, whose times give the splits.
    TimedEdges,
}

impl PairsOf {
    pub(crate) fn has_table(self) -> bool {
        matches!(self, Self::Table | Self::TimedTable)
    }

    pub(crate) fn has_times(self) -> bool {
        matches!(self, Self::TimedTable | Self::TimedEdges)
    }
}

/// Types and tables; ids of odd types are strings.
#[derive(Clone)]
pub(crate) struct Shape {
    /// Supervision pairs, and which of them carry no messages.
    pub(crate) pairs: Option<(PairsOf, &'static str)>,
    /// Whether ids have gaps.
    pub(crate) gaps: bool,
    /// Whether edges have weights; else all are 1.
    pub(crate) weighted: bool,
    /// Whether features are sparse, [`SPARSE_WIDTH`] wide, in place of one number.
    pub(crate) sparse: bool,
    pub(crate) types: Vec<&'static str>,
    pub(crate) tables: Vec<Table>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Edge {
    pub(crate) src: i64,
    pub(crate) dst: i64,
    pub(crate) weight: f32,
}

/// The tables of one day.
#[derive(Clone)]
pub(crate) struct Snapshot {
    /// By type: the feature of each node.
    pub(crate) nodes: Vec<BTreeMap<i64, f32>>,
    /// By table.
    pub(crate) edges: Vec<Vec<Edge>>,
    /// Splits of pairs with a table of their own.
    pub(crate) pairs: BTreeMap<(i64, i64), &'static str>,
}

impl Shape {
    pub(crate) fn untyped(undirected: bool) -> Self {
        let table = Table {
            name: "",
            from: 0,
            to: 0,
            undirected,
            reverse: None,
        };
        Self {
            pairs: None,
            gaps: true,
            weighted: true,
            sparse: false,
            types: vec![""],
            tables: vec![table],
        }
    }

    pub(crate) fn typed() -> Self {
        let table = |name, from, to, undirected, reverse| Table {
            name,
            from,
            to,
            undirected,
            reverse,
        };
        Self {
            pairs: None,
            gaps: true,
            weighted: true,
            sparse: false,
            types: vec!["a", "b"],
            tables: vec![
                table("likes", 0, 1, false, Some("are_liked")),
                table("near", 1, 1, true, None),
                table("of", 1, 0, false, None),
            ],
        }
    }

    /// Returns id, source type and destination type of each relation, in the order of names.
    pub(crate) fn relations(&self) -> Vec<(&'static str, usize, usize)> {
        let own = self.tables.iter().map(|of| (of.name, of.from, of.to));
        let reverse = self.tables.iter();
        let reverse = reverse.filter_map(|of| Some((of.reverse?, of.to, of.from)));
        let mut all: Vec<_> = own.chain(reverse).collect();
        all.sort_unstable();
        all
    }

    pub(crate) fn id(&self, type_idx: usize, id: i64) -> String {
        match type_idx % 2 {
            0 => id.to_string(),
            _ => format!("n{id}"),
        }
    }

    pub(crate) fn ids(&self, type_idx: usize, ids: impl Iterator<Item = i64>) -> ArrayRef {
        match type_idx % 2 {
            0 => Arc::new(Int64Array::from_iter_values(ids)),
            _ => Arc::new(StringArray::from_iter_values(
                ids.map(|id| self.id(type_idx, id)),
            )),
        }
    }

    pub(crate) fn hash(&self, type_idx: usize, id: i64) -> u64 {
        let ids = Ids::from_array(&self.ids(type_idx, std::iter::once(id)));
        ids.unwrap().hash(0)
    }

    /// Returns the columns of features of some nodes; null where nodes are removed.
    pub(crate) fn features(
        &self,
        nodes: impl Iterator<Item = Option<f32>> + Clone,
    ) -> Vec<(&'static str, ArrayRef)> {
        if !self.sparse {
            return vec![("f", Arc::new(nodes.collect::<Float32Array>()))];
        }
        // Up to two numbers a node; a node of feature 0 has none.
        let numbers = |feature: f32| {
            let least = [1.0, 2.0, 3.0, 4.0, 5.0];
            let below = least.into_iter().filter(|&least| least < feature);
            let at = i32::try_from(below.count()).unwrap();
            let numbers = [(at, feature), (7, feature / 2.0)];
            let count = usize::from(feature > 0.0) + usize::from(feature > 3.0);
            numbers.into_iter().take(count)
        };
        let index = nodes.clone().map(|feature| {
            let of_node = numbers(feature?).map(|(at, _)| Some(at));
            Some(of_node.collect::<Vec<Option<i32>>>())
        });
        let value = nodes.map(|feature| {
            let of_node = numbers(feature?).map(|(_, value)| Some(value));
            Some(of_node.collect::<Vec<Option<f32>>>())
        });
        let index = ListArray::from_iter_primitive::<Int32Type, _, _>(index);
        let value = ListArray::from_iter_primitive::<Float32Type, _, _>(value);
        vec![("i", Arc::new(index)), ("f", Arc::new(value))]
    }

    /// Returns the samplings that the edges allow.
    pub(crate) fn samplings(&self) -> &'static [Sampling] {
        match self.weighted {
            true => &[Sampling::Uniform, Sampling::Weighted, Sampling::Top],
            false => &[Sampling::Uniform],
        }
    }

    /// Draws the weight of an edge.
    pub(crate) fn weight(&self, draw: &mut Draw) -> f32 {
        let weight = 1.0 + draw.below(3) as f32;
        if self.weighted { weight } else { 1.0 }
    }

    /// Draws a graph with parallel edges, self-loops and a hub.
    pub(crate) fn draw(&self, draw: &mut Draw) -> Snapshot {
        let nodes = self.types.iter().map(|_| {
            let ids = (0..20 + draw.below(20) as i64).filter(|id| !self.gaps || id % 7 != 3);
            let step = if self.gaps { 3 } else { 1 };
            ids.map(|id| (id * step, id as f32)).collect()
        });
        let nodes: Vec<BTreeMap<i64, f32>> = nodes.collect();
        let edges = self.tables.iter().map(|of| {
            let [from, to] = [of.from, of.to].map(|at| nodes[at].keys().copied().collect());
            let (from, to): (Vec<i64>, Vec<i64>) = (from, to);
            let edge = |_| {
                let is_of_hub = draw.below(6) == 0;
                let dst = if is_of_hub { to[0] } else { draw.of(&to) };
                Edge {
                    src: draw.of(&from),
                    dst,
                    weight: self.weight(draw),
                }
            };
            (0..150).map(edge).collect()
        });
        let mut drawn = Snapshot {
            edges: edges.collect(),
            pairs: BTreeMap::new(),
            nodes,
        };
        drawn.pairs = self.draw_pairs(&drawn, 40, draw).into_iter().collect();
        drawn
    }

    /// Writes the tables of a snapshot and returns their plan.
    pub(crate) fn write(&self, snapshot: &Snapshot, dir: &Path) -> GraphPlan {
        let typed = self.types.len() > 1;
        let mut input = json!({ "nodes": {}, "edges": {} });
        for (at, name) in self.types.iter().enumerate() {
            let nodes = &snapshot.nodes[at];
            let mut columns = vec![("id", self.ids(at, nodes.keys().copied()))];
            columns.extend(self.features(nodes.values().map(|&value| Some(value))));
            let file = format!("nodes-{name}.parquet");
            write(&dir.join(&file), columns);
            let mut table = json!({ "path": file, "id": "id" });
            match self.sparse {
                false => table["features"] = json!(["f"]),
                true => {
                    table["sparse"] = json!({ "index": "i", "value": "f", "width": SPARSE_WIDTH });
                }
            }
            input["nodes"][name] = table;
        }
        for (of, edges) in self.tables.iter().zip(&snapshot.edges) {
            let weights = edges.iter().map(|edge| edge.weight);
            let file = format!("edges-{}.parquet", of.name);
            let mut columns = vec![
                ("src", self.ids(of.from, edges.iter().map(|edge| edge.src))),
                ("dst", self.ids(of.to, edges.iter().map(|edge| edge.dst))),
                (
                    "weight",
                    Arc::new(Float32Array::from_iter_values(weights)) as ArrayRef,
                ),
            ];
            columns.extend(self.column_of_splits(of, edges));
            write(&dir.join(&file), columns);
            let mut table = json!({ "path": file, "src": "src", "dst": "dst" });
            if self.weighted {
                table["weight"] = "weight".into();
            }
            table["undirected"] = of.undirected.into();
            if typed {
                table["from"] = self.types[of.from].into();
                table["to"] = self.types[of.to].into();
            }
            if let Some(reverse) = of.reverse {
                table["reverse"] = Value::from(reverse);
            }
            input["edges"][of.name] = table;
        }
        self.write_pairs(snapshot, dir, &mut input);
        let input: InputSpec = serde_json::from_value(input).unwrap();
        input.into_plan(dir).unwrap()
    }

    /// Writes the tables of a snapshot to a new directory and returns their paths.
    pub(crate) fn write_whole(&self, snapshot: &Snapshot, dir: &Path) -> ChangesSpec {
        std::fs::create_dir_all(dir).unwrap();
        self.write(snapshot, dir);
        let path = |kind: &str, name: &str| {
            let path = dir.join(format!("{kind}-{name}.parquet"));
            (
                name.to_owned(),
                TablePath::from(path.to_string_lossy().into_owned()),
            )
        };
        ChangesSpec {
            nodes: self.types.iter().map(|name| path("nodes", name)).collect(),
            edges: self
                .tables
                .iter()
                .map(|of| path("edges", of.name))
                .collect(),
            pairs: self.has_table_of_pairs().then(|| path("pairs", "").1),
        }
    }
}

pub(crate) fn write(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    // Several row groups, so that several units are read.
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(40));
    let (file, properties) = (File::create(path).unwrap(), properties.build());
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties));
    writer.as_mut().unwrap().write(&batch).unwrap();
    writer.unwrap().close().unwrap();
}

/// Builds the store of some tables; it also holds all in-edges.
pub(crate) fn build(
    graph: &GraphPlan,
    dir: &Path,
    (sampling, keep): (Sampling, &[usize]),
    workers: usize,
) -> Store {
    let plan = store_plan(graph, dir, (sampling, keep), workers);
    let silent: Progress = Arc::new(|_| {});
    open_or_build(&plan, &silent).unwrap()
}

/// Returns the plan of such a store.
pub(crate) fn store_plan(
    graph: &GraphPlan,
    dir: &Path,
    (sampling, keep): (Sampling, &[usize]),
    workers: usize,
) -> StorePlan {
    StorePlan {
        graph: Arc::new(graph.clone()),
        target_type: 0,
        seed: 11,
        sampling,
        keep: keep.to_vec(),
        samples: 1,
        redraw: true,
        left_out: true,
        hub_threshold: HUB_THRESHOLD,
        workers,
        memory_budget: 1 << 24,
        page_cache: None,
        dir: dir.to_owned(),
        fresh: false,
    }
}
