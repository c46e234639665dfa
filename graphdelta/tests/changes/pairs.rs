//! Supervision pairs of random graphs, and the edges that carry messages beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use schemas::{GraphPlan, Split};
use serde_json::{Value, json};

use crate::case::{Draw, Edge, PairsOf, Shape, Snapshot, Table, write};

const SPLITS: [&str; 4] = ["train", "val", "test", "none"];

impl Shape {
    /// Draws pairs, some of which are edges, with their splits; none if they have no table.
    pub(crate) fn draw_pairs(
        &self,
        now: &Snapshot,
        count: usize,
        draw: &mut Draw,
    ) -> Vec<((i64, i64), &'static str)> {
        if !matches!(self.pairs, Some((PairsOf::Table, _))) {
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

    /// Returns the column of splits of some edges, if the table has one: parallel edges have one
    /// split, which another number of them changes.
    pub(crate) fn split_column(
        &self,
        table: &Table,
        edges: &[Edge],
    ) -> Option<(&'static str, ArrayRef)> {
        let is_split = self.pairs.is_some_and(|(of, _)| of == PairsOf::Edges);
        (is_split && table.name == self.tables[0].name).then(|| {
            let splits = edges.iter().map(|edge| split_of(edge, edges));
            let splits = StringArray::from_iter_values(splits);
            ("split", Arc::new(splits) as ArrayRef)
        })
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
        match of {
            PairsOf::Table => {
                let columns =
                    self.pair_columns(snapshot.pairs.iter().map(|(&ends, &split)| (ends, split)));
                write(&dir.join("pairs-.parquet"), columns);
                pairs["path"] = "pairs-.parquet".into();
                (pairs["src"], pairs["dst"]) = ("src".into(), "dst".into());
                if is_typed {
                    pairs["from"] = self.types[table.from].into();
                    pairs["to"] = self.types[table.to].into();
                }
                pairs["split"] = "split".into();
            }
            PairsOf::Edges => {
                pairs["from_edges"] = relation();
                pairs["split"] = "split".into();
            }
            PairsOf::Shares => {
                pairs["from_edges"] = relation();
                pairs["share"] = json!({ "train": 0.3, "val": 0.1, "test": 0.1 });
            }
        }
        input["pairs"] = pairs;
    }

    /// Returns the columns of a table of pairs.
    pub(crate) fn pair_columns(
        &self,
        pairs: impl Iterator<Item = ((i64, i64), &'static str)> + Clone,
    ) -> Vec<(&'static str, ArrayRef)> {
        let table = &self.tables[0];
        let splits = pairs.clone().map(|(_, split)| split);
        vec![
            ("src", self.ids(table.from, pairs.clone().map(|of| of.0.0))),
            ("dst", self.ids(table.to, pairs.map(|of| of.0.1))),
            ("split", Arc::new(StringArray::from_iter_values(splits))),
        ]
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
            _ => of_edges.collect(),
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
            if at == 0 || of == PairsOf::Table {
                let ends = |edge: &Edge| ((table.from, edge.src), (table.to, edge.dst));
                all.retain(|edge| !left_out.contains(&ends(edge)));
            }
        }
        left
    }
}

/// Returns the split of an edge among some that have all of its parallel edges.
fn split_of(edge: &Edge, edges: &[Edge]) -> &'static str {
    let ends = (edge.src, edge.dst);
    let parallel = edges.iter().filter(|of| (of.src, of.dst) == ends).count();
    let place = usize::try_from(edge.src * 7 + edge.dst * 3 + 3).unwrap() + parallel;
    SPLITS[place % SPLITS.len()]
}
