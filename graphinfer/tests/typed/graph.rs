//! Random typed graphs, written as Parquet tables.

use arrow::array::{ArrayRef, Float32Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::{Float32Type, UInt32Type};
use parquet::arrow::ArrowWriter;
use schemas::{GraphPlan, InputSpec, Progress, Sampling};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use store::{Store, StorePlan, open_or_build};

pub(crate) const SEED: u64 = 11;
pub(crate) const CLASSES: [&str; 3] = ["apple", "pear", "plum"];

/// Random numbers that only the seed decides.
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((x ^ (x >> 31)) % bound.max(1) as u64).unwrap()
    }

    /// Returns a number in [-1, 1).
    pub(crate) fn number(&mut self) -> f32 {
        self.below(65536) as f32 / 32768.0 - 1.0
    }
}

#[derive(Debug)]
struct Type {
    name: String,
    num_nodes: usize,
    has_text: bool,
    /// Width of the features; 0: none.
    dim: usize,
    sparse: bool,
}

#[derive(Debug)]
struct Relation {
    name: String,
    from: usize,
    to: usize,
    undirected: bool,
    reverse: Option<String>,
    weights: bool,
    features: bool,
    ends: Vec<(usize, usize)>,
}

/// A graph with types that share ids, a self relation, two relations between the same types, a type
/// without edges and sometimes without nodes, parallel edges, and a hub in one relation.
#[derive(Debug)]
pub(crate) struct Graph {
    types: Vec<Type>,
    relations: Vec<Relation>,
    pub(crate) target: usize,
}

impl Graph {
    /// Draws a graph of 2 to 5 types and 1 to 8 relations; with `within`, no relation joins two
    /// types.
    pub(crate) fn random(seed: u64, within: bool) -> Self {
        let mut draws = Draws(seed);
        let num_types = 2 + draws.below(4);
        let types = (0..num_types).map(|at| Type {
            // Names whose order is not that of the tables.
            name: format!("t{}", (at * 3 + 1) % 7),
            num_nodes: 3 + draws.below(40),
            has_text: draws.below(3) == 0,
            dim: draws.below(5),
            sparse: draws.below(3) == 0,
        });
        let mut types: Vec<Type> = types.collect();
        // The last of several types has no relation.
        let joined = num_types - usize::from(num_types > 2);
        let target = draws.below(joined);
        if joined < num_types && seed.is_multiple_of(2) {
            types[joined].num_nodes = 0;
        }
        let num_tables = 1 + draws.below(5);
        let mut relations: Vec<Relation> = Vec::new();
        for at in 0..num_tables {
            let mut to = if at == 0 { target } else { draws.below(joined) };
            let mut from = if within || at == 1 {
                to
            } else {
                draws.below(joined)
            };
            if at == 2 {
                (from, to) = (relations[0].from, relations[0].to);
            }
            let undirected = from == to && draws.below(2) == 0;
            let is_reversed = !undirected && draws.below(2) == 0;
            let (num_src, num_dst) = (types[from].num_nodes, types[to].num_nodes);
            let ends = (0..20 + draws.below(100)).map(|_| {
                let is_hub = at == 0 && draws.below(2) == 0;
                let dst = if is_hub { 0 } else { draws.below(num_dst) };
                (draws.below(num_src), dst)
            });
            let ends = ends.collect();
            relations.push(Relation {
                name: format!("r{}", (at * 5 + 2) % 11),
                from,
                to,
                undirected,
                reverse: is_reversed.then(|| format!("a{at}")),
                weights: draws.below(2) == 0,
                features: draws.below(2) == 0,
                ends,
            });
        }
        Self {
            types,
            relations,
            target,
        }
    }

    /// Leaves out the features of all nodes.
    pub(crate) fn without_features(mut self) -> Self {
        self.types.iter_mut().for_each(|of| of.dim = 0);
        self
    }

    /// Draws a graph of two types whose nodes have these numbers of in-edges more, by relation, node
    /// and number. Relations 0 and 1 lead from the target type to itself, 2 and 3 from the other
    /// type to it, and 4 back, all with few in-edges a node. With `within`, there are only the first
    /// two, and relation 2 leads from the other type to itself.
    pub(crate) fn with_in_edges(seed: u64, within: bool, more: &[(usize, usize, usize)]) -> Self {
        let mut draws = Draws(seed);
        let types = [("t0", 43), ("t1", 37)].map(|(name, num_nodes)| Type {
            name: name.to_owned(),
            num_nodes,
            has_text: false,
            dim: 3,
            sparse: false,
        });
        let types_of_ends: &[(usize, usize)] = match within {
            true => &[(0, 0), (0, 0), (1, 1)],
            false => &[(0, 0), (0, 0), (1, 0), (1, 0), (0, 1)],
        };
        let relations = types_of_ends.iter().enumerate().map(|(at, &(from, to))| {
            let (num_src, num_dst) = (types[from].num_nodes, types[to].num_nodes);
            let few = (0..90).map(|_| (draws.below(num_src), draws.below(num_dst)));
            let mut ends: Vec<(usize, usize)> = few.collect();
            for &(_, dst, count) in more.iter().filter(|(relation, ..)| *relation == at) {
                ends.extend((0..count).map(|_| (draws.below(num_src), dst)));
            }
            Relation {
                name: format!("r{at}"),
                from,
                to,
                undirected: false,
                reverse: None,
                weights: at % 2 == 0,
                features: at != 1,
                ends,
            }
        });
        let relations = relations.collect();
        Self {
            types: types.into(),
            relations,
            target: 0,
        }
    }

    /// Returns the number of in-edges of a node in a relation.
    pub(crate) fn in_degree(&self, relation: usize, node: usize) -> usize {
        let ends = self.relations[relation].ends.iter();
        ends.filter(|(_, dst)| *dst == node).count()
    }

    pub(crate) fn target_name(&self) -> &str {
        &self.types[self.target].name
    }

    fn ids(&self, of: usize, nodes: impl Iterator<Item = usize>) -> ArrayRef {
        match self.types[of].has_text {
            true => Arc::new(StringArray::from_iter_values(
                nodes.map(|node| (7 * node % 101).to_string()),
            )),
            false => Arc::new(Int64Array::from_iter_values(
                nodes.map(|node| (7 * node % 101) as i64),
            )),
        }
    }

    /// Writes all tables and returns their plan.
    pub(crate) fn write(&self, dir: &Path) -> Arc<GraphPlan> {
        let mut draws = Draws(77);
        let mut nodes = Map::new();
        for at in 0..self.types.len() {
            let table = self.write_nodes(dir, at, &mut draws);
            nodes.insert(self.types[at].name.clone(), table);
        }
        let mut edges = Map::new();
        for of in &self.relations {
            let table = self.write_edges(dir, of, &mut draws);
            edges.insert(of.name.clone(), table);
        }
        let input: InputSpec =
            serde_json::from_value(json!({ "nodes": nodes, "edges": edges })).unwrap();
        Arc::new(input.into_plan(dir).unwrap())
    }

    fn write_nodes(&self, dir: &Path, at: usize, draws: &mut Draws) -> Value {
        let of = &self.types[at];
        let all = || 0..of.num_nodes;
        let values: Vec<Vec<f32>> = all()
            .map(|_| (0..of.dim).map(|_| draws.number()).collect())
            .collect();
        let mut columns = vec![("id", self.ids(at, all()))];
        let mut table = json!({ "path": format!("{}.parquet", of.name), "id": "id" });
        if of.sparse && of.dim > 0 {
            let index = all().map(|node| Some([Some(u32::try_from(node % of.dim).unwrap())]));
            let index = ListArray::from_iter_primitive::<UInt32Type, _, _>(index);
            let value = values.iter().map(|row| Some([Some(row[0])]));
            let value = ListArray::from_iter_primitive::<Float32Type, _, _>(value);
            columns.push(("at", Arc::new(index)));
            columns.push(("is", Arc::new(value)));
            table["sparse"] = json!({ "index": "at", "value": "is", "width": of.dim });
        } else if of.dim > 0 {
            let lists = values.iter().map(|row| Some(row.iter().map(|&x| Some(x))));
            let lists = ListArray::from_iter_primitive::<Float32Type, _, _>(lists);
            columns.push(("x", Arc::new(lists)));
            table["features"] = json!(["x"]);
        }
        if at == self.target {
            let names = all().map(|node| CLASSES[node % CLASSES.len()]);
            columns.push(("label", Arc::new(StringArray::from_iter_values(names))));
            let split = all().map(|node| ["train", "val", "test"][node % 3]);
            columns.push(("split", Arc::new(StringArray::from_iter_values(split))));
            (table["label"], table["split"]) = (json!("label"), json!("split"));
            let tags = all().map(|node| format!("tag {}", 7 * node % 101));
            columns.push(("tag", Arc::new(StringArray::from_iter_values(tags))));
        }
        write_table(&dir.join(format!("{}.parquet", of.name)), columns);
        table
    }

    fn write_edges(&self, dir: &Path, of: &Relation, draws: &mut Draws) -> Value {
        let path = format!("{}-edges.parquet", of.name);
        let src = self.ids(of.from, of.ends.iter().map(|(src, _)| *src));
        let dst = self.ids(of.to, of.ends.iter().map(|(_, dst)| *dst));
        let mut columns = vec![("s", src), ("d", dst)];
        let mut table = json!({
            "path": path, "from": self.types[of.from].name, "to": self.types[of.to].name,
            "src": "s", "dst": "d", "undirected": of.undirected, "reverse": of.reverse,
        });
        if of.weights {
            let weights = of.ends.iter().map(|_| draws.number().abs() + 0.05);
            columns.push(("w", Arc::new(Float32Array::from_iter_values(weights))));
            table["weight"] = json!("w");
        }
        if of.features {
            let rows = of.ends.iter();
            let rows = rows.map(|_| Some([Some(draws.number()), Some(draws.number())]));
            let lists = ListArray::from_iter_primitive::<Float32Type, _, _>(rows);
            columns.push(("e", Arc::new(lists)));
            table["features"] = json!(["e"]);
        }
        write_table(&dir.join(path), columns);
        table
    }
}

/// Opens or builds the store of a graph.
pub(crate) fn store(
    (dir, plan): (&Path, &Arc<GraphPlan>),
    target: usize,
    workers: usize,
    keep: &[usize],
) -> Store {
    let name = format!("store-{workers}-{keep:?}").replace(['[', ']', ' ', ','], "_");
    let plan = StorePlan {
        graph: Arc::clone(plan),
        target_type: target,
        seed: SEED,
        sampling: Sampling::Uniform,
        keep: keep.to_vec(),
        samples: 1,
        redraw: false,
        left_out: false,
        hub_threshold: 20,
        workers,
        memory_budget: 1 << 24,
        page_cache: None,
        dir: dir.join(name),
        fresh: false,
    };
    open_or_build(&plan, &quiet()).unwrap()
}

pub(crate) fn quiet() -> Progress {
    Arc::new(|_| {})
}

fn write_table(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}
