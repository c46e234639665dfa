//! Supervision pairs of random graphs, and the edges that carry messages beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use schemas::{GraphPlan, Split};
use serde_json::{Value, json};

use crate::case::{Draw, Edge, PairsOf, Shape, Snapshot, Table, write};

const SPLITS: [&str; 4] = ["train", "val", "test", "none"];

impl Shape {
    pub(crate) fn has_table_of_pairs(&self) -> bool {
        self.pairs.is_some_and(|(of, _)| of.has_table())
    }

    /// Draws pairs, some of which are edges, with their splits, which their times follow from where
    /// pairs have times; none if they have no table.
    pub(crate) fn draw_pairs(
        &self,
        now: &Snapshot,
        count: usize,
        draw: &mut Draw,
    ) -> Vec<((i64, i64), &'static str)> {
        if !self.has_table_of_pairs() {
            return Vec::new();
        }
        let table = &self.tables[0];
        let [from, to] = [table.from, table.to].map(|of| now.nodes[of].keys().copied().collect());
        let (from, to): (Vec<i64>, Vec<i64>) = (from, to);
        let pairs = (0..count).map(|_| {
            let edge = draw.of(&now.edges[0]);
            let other = (draw.of(&from), draw.of(&to));
            (draw.of(&[(edge.src, edge.dst), other]), draw.of(&SPLITS))
        });
        let is_loop = |(src, dst): (i64, i64)| table.from == table.to && src == dst;
        pairs.filter(|(ends, _)| !is_loop(*ends)).collect()
    }

    /// Returns the column of splits or of times of some edges, if the table has one: parallel edges
    /// have one split, which another number of them changes, and several times.
    pub(crate) fn column_of_splits(
        &self,
        table: &Table,
        edges: &[Edge],
    ) -> Option<(&'static str, ArrayRef)> {
        let is_first = table.name == self.tables[0].name;
        let (of, _) = self.pairs.filter(|_| is_first)?;
        let column: (_, ArrayRef) = match of {
            PairsOf::Edges => {
                let splits = edges.iter().map(|edge| split_of(edge, edges));
                ("split", Arc::new(StringArray::from_iter_values(splits)))
            }
            PairsOf::TimedEdges => {
                let times = edges.iter().map(time_of_edge);
                ("time", Arc::new(Int64Array::from_iter_values(times)))
            }
            PairsOf::Table | PairsOf::TimedTable | PairsOf::Shares => return None,
        };
        Some(column)
    }

    /// Writes the table of pairs, and adds the pairs to the tables of a job.
    pub(crate) fn write_pairs(&self, snapshot: &Snapshot, dir: &Path, input: &mut Value) {
        let Some((of, exclude)) = self.pairs else {
            return;
        };
        let (table, is_typed) = (&self.tables[0], self.types.len() > 1);
        let relation = || match is_typed {
            true => json!(table.name),
            false => json!(true),
        };
        let mut pairs = json!({ "exclude": exclude });
        match of.has_table() {
            true => {
                let columns =
                    self.pair_columns(snapshot.pairs.iter().map(|(&ends, &split)| (ends, split)));
                write(&dir.join("pairs-.parquet"), columns);
                pairs["path"] = "pairs-.parquet".into();
                (pairs["src"], pairs["dst"]) = ("src".into(), "dst".into());
                if is_typed {
                    pairs["from"] = self.types[table.from].into();
                    pairs["to"] = self.types[table.to].into();
                }
            }
            false => pairs["from_edges"] = relation(),
        }
        match of {
            PairsOf::Table | PairsOf::Edges => pairs["split"] = "split".into(),
            _ => pairs["share"] = json!({ "train": 0.3, "val": 0.1, "test": 0.1 }),
        }
        if of.has_times() {
            pairs["time"] = "time".into();
        }
        input["pairs"] = pairs;
    }

    /// Returns the columns of a table of pairs.
    pub(crate) fn pair_columns(
        &self,
        pairs: impl Iterator<Item = ((i64, i64), &'static str)> + Clone,
    ) -> Vec<(&'static str, ArrayRef)> {
        let table = &self.tables[0];
        let last: (_, ArrayRef) = match self.pairs.is_some_and(|(of, _)| of.has_times()) {
            false => {
                let splits = pairs.clone().map(|(_, split)| split);
                ("split", Arc::new(StringArray::from_iter_values(splits)))
            }
            true => {
                let times = pairs.clone().map(time_of_pair);
                ("time", Arc::new(Int64Array::from_iter_values(times)))
            }
        };
        vec![
            ("src", self.ids(table.from, pairs.clone().map(|of| of.0.0))),
            ("dst", self.ids(table.to, pairs.map(|of| of.0.1))),
            last,
        ]
    }

    /// Returns the splits of all pairs by their times: of a split and those after it, the latest
    /// pairs, as many as the shares say.
    fn by_time(&self, now: &Snapshot, graph: &GraphPlan) -> BTreeMap<(i64, i64), &'static str> {
        let (plan, first) = (graph.pairs.as_ref().unwrap(), &self.tables[0]);
        let mut times: BTreeMap<(i64, i64), i64> = BTreeMap::new();
        let of_edges = now.edges[0].iter();
        let of_edges = of_edges.map(|edge| ((edge.src, edge.dst), time_of_edge(edge)));
        let of_table = now.pairs.iter();
        let of_table = of_table.map(|(&ends, &split)| (ends, time_of_pair((ends, split))));
        let all: Vec<((i64, i64), i64)> = match self.has_table_of_pairs() {
            true => of_table.collect(),
            false => of_edges.collect(),
        };
        for (ends, time) in all {
            if first.from != first.to || ends.0 != ends.1 {
                let earliest = times.entry(ends).or_insert(time);
                *earliest = time.min(*earliest);
            }
        }
        let keys: BTreeMap<(i64, i64), (i64, u64)> = times
            .into_iter()
            .map(|(ends, time)| {
                let [src, dst] = [(first.from, ends.0), (first.to, ends.1)];
                let hash = plan.hash(self.hash(src.0, src.1), self.hash(dst.0, dst.1));
                (ends, (time, hash))
            })
            .collect();
        let most = plan.shares().unwrap().latest(keys.len() as u64);
        let splits = keys.iter().map(|(&ends, key)| {
            let later = keys.values().filter(|other| *other >= key).count() as u64;
            let found = most.iter().position(|&most| later <= most);
            (
                ends,
                found.map_or("none", |at| ["test", "val", "train"][at]),
            )
        });
        splits.collect()
    }

    /// Returns the tables without the edges that carry no messages; `graph` is the plan of some of
    /// the tables.
    pub(crate) fn messages(&self, snapshot: &Snapshot, graph: &GraphPlan) -> Snapshot {
        let mut left = snapshot.clone();
        let Some((of, exclude)) = self.pairs else {
            return left;
        };
        let first = &self.tables[0];
        let leaves = |split: &str| match split {
            "val" | "test" => true,
            "train" => exclude == "all",
            _ => false,
        };
        let plan = graph.pairs.as_ref().unwrap();
        let drawn = |edge: &Edge| {
            let [src, dst] = [(first.from, edge.src), (first.to, edge.dst)];
            let hash = plan.hash(self.hash(src.0, src.1), self.hash(dst.0, dst.1));
            match plan.shares().unwrap().draw(hash) {
                Split::None => "none",
                Split::Train => "train",
                Split::Val => "val",
                Split::Test => "test",
            }
        };
        let edges = &snapshot.edges[0];
        let of_edges = edges.iter().map(|edge| {
            let split = match of {
                PairsOf::Edges => split_of(edge, edges),
                _ => drawn(edge),
            };
            ((edge.src, edge.dst), split)
        });
        let pairs: BTreeMap<(i64, i64), &str> = match of {
            PairsOf::Table => snapshot.pairs.clone(),
            PairsOf::Edges | PairsOf::Shares => of_edges.collect(),
            PairsOf::TimedTable | PairsOf::TimedEdges => self.by_time(snapshot, graph),
        };
        let is_loop = |(src, dst): (i64, i64)| first.from == first.to && src == dst;
        let leaving = pairs.into_iter().filter(|(_, split)| leaves(split));
        let leaving = leaving.filter(|(ends, _)| !is_loop(*ends));
        let both = leaving.flat_map(|((src, dst), _)| {
            let [src, dst] = [(first.from, src), (first.to, dst)];
            [(src, dst), (dst, src)]
        });
        let left_out: BTreeSet<((usize, i64), (usize, i64))> = both.collect();
        for (at, (table, all)) in self.tables.iter().zip(&mut left.edges).enumerate() {
            if at == 0 || of.has_table() {
                let ends = |edge: &Edge| ((table.from, edge.src), (table.to, edge.dst));
                all.retain(|edge| !left_out.contains(&ends(edge)));
            }
        }
        left
    }
}

/// Returns the time of a row of an edge, which differs between parallel edges.
fn time_of_edge(edge: &Edge) -> i64 {
    let weight = [1.0, 2.0, 3.0].into_iter().position(|of| of == edge.weight);
    let weight = i64::try_from(weight.unwrap_or(0)).unwrap();
    (edge.src * 5 + edge.dst * 3).rem_euclid(11) - 2 * weight
}

/// Returns the time of a pair of a table; an upsert may change it.
fn time_of_pair(((src, dst), split): ((i64, i64), &'static str)) -> i64 {
    let later = SPLITS.iter().position(|of| *of == split).unwrap();
    (src * 5 + dst * 3).rem_euclid(11) + 3 * i64::try_from(later).unwrap()
}

/// Returns the split of an edge among some that have all of its parallel edges.
fn split_of(edge: &Edge, edges: &[Edge]) -> &'static str {
    let ends = (edge.src, edge.dst);
    let parallel = edges.iter().filter(|of| (of.src, of.dst) == ends).count();
    let place = usize::try_from(edge.src * 7 + edge.dst * 3 + 3).unwrap() + parallel;
    SPLITS[place % SPLITS.len()]
}
