//! Tables of changes of one night, drawn at random, and their slow application to the tables.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, StringArray};
use schemas::{ChangesSpec, TablePath};

use crate::case::{Draw, Edge, Shape, Snapshot, write};

/// Changes of one night; `None` deletes.
#[derive(Clone, Default)]
pub(crate) struct NightTables {
    /// By type.
    pub(crate) nodes: Vec<Vec<(i64, Option<f32>)>>,
    /// By table: ends and weight.
    pub(crate) edges: Vec<Vec<(i64, i64, Option<f32>)>>,
    /// Splits of pairs with a table of their own.
    pub(crate) pairs: PairRows,
}

/// Splits of pairs by their ends.
type PairRows = BTreeMap<(i64, i64), Option<&'static str>>;

/// Changes of nodes by id, and weights of the new edges by ends.
type NodeRows = BTreeMap<i64, Option<f32>>;
type EdgeRows = BTreeMap<(i64, i64), Vec<f32>>;

/// The ends that name edges of a table: in both directions if it is undirected.
fn key(undirected: bool, src: i64, dst: i64) -> (i64, i64) {
    match undirected {
        true => (src.min(dst), src.max(dst)),
        false => (src, dst),
    }
}

impl NightTables {
    /// Draws changes of every kind.
    pub(crate) fn draw(shape: &Shape, now: &Snapshot, draw: &mut Draw) -> Self {
        let mut nodes: Vec<NodeRows> = vec![BTreeMap::new(); now.nodes.len()];
        let mut edges: Vec<EdgeRows> = vec![BTreeMap::new(); now.edges.len()];
        for (of_type, changes) in now.nodes.iter().zip(&mut nodes) {
            let ids: Vec<i64> = of_type.keys().copied().collect();
            for _ in 0..draw.below(3) {
                let id = draw.of(&ids);
                let feature = [of_type[&id], draw.below(9) as f32][draw.below(2)];
                changes.insert(id, Some(feature));
            }
            for _ in 0..draw.below(3) {
                // Between the ids that are there, and behind them.
                let id = draw.below(45) as i64 * 3 + 1;
                if !of_type.contains_key(&id) {
                    changes.insert(id, Some(draw.below(9) as f32));
                }
            }
            // Of the first nodes, one that was removed is added again as it was.
            let first = (0..20).filter(|id| id % 7 != 3);
            let mut gone = first.filter(|id| !of_type.contains_key(&(id * 3)));
            if let Some(id) = gone.next_back() {
                changes.insert(id * 3, Some(id as f32));
            }
        }
        for (at, of) in shape.tables.iter().enumerate() {
            let ends = |of_type: usize| -> Vec<i64> {
                let known = now.nodes[of_type].keys().chain(nodes[of_type].keys());
                known.copied().collect()
            };
            let (from, to) = (ends(of.from), ends(of.to));
            // The hub has edges of many sources, so some have the priority of the new node's.
            let known = &now.nodes[of.from];
            let added = nodes[of.from].keys().filter(|id| !known.contains_key(id));
            for &id in added {
                let weight = shape.weight(draw);
                edges[at].insert(key(of.undirected, id, to[0]), vec![weight]);
            }
            for _ in 0..draw.below(8) {
                let old = draw.of(&now.edges[at]);
                let new = (draw.of(&from), draw.of(&to));
                let hub = (draw.of(&from), to[0]);
                let (src, dst) = draw.of(&[(old.src, old.dst), new, hub]);
                let weights = (0..1 + draw.below(3)).map(|_| shape.weight(draw));
                let weights = weights.collect();
                edges[at].insert(key(of.undirected, src, dst), weights);
            }
            for _ in 0..draw.below(6) {
                let old = draw.of(&now.edges[at]);
                edges[at].insert(key(of.undirected, old.src, old.dst), Vec::new());
            }
        }
        let removed =
            (draw.below(2) == 0).then(|| remove_node(shape, now, draw, (&mut nodes, &mut edges)));
        let pairs = draw_pairs(shape, now, draw, removed);
        let edges = edges.into_iter().map(|of| {
            let rows = of
                .into_iter()
                .flat_map(|((src, dst), weights)| match &weights[..] {
                    [] => vec![(src, dst, None)],
                    weights => weights
                        .iter()
                        .map(|&weight| (src, dst, Some(weight)))
                        .collect(),
                });
            rows.collect()
        });
        let nodes = nodes.into_iter().map(|of| of.into_iter().collect());
        Self {
            nodes: nodes.collect(),
            edges: edges.collect(),
            pairs,
        }
    }

    /// Applies the changes row by row.
    pub(crate) fn apply(&self, shape: &Shape, snapshot: &mut Snapshot) {
        for (nodes, changes) in snapshot.nodes.iter_mut().zip(&self.nodes) {
            for &(id, feature) in changes {
                match feature {
                    Some(feature) => nodes.insert(id, feature),
                    None => nodes.remove(&id),
                };
            }
        }
        for (at, of) in shape.tables.iter().enumerate() {
            let changed = |edge: &Edge| {
                let own = key(of.undirected, edge.src, edge.dst);
                let mut rows = self.edges[at].iter();
                rows.any(|&(src, dst, _)| key(of.undirected, src, dst) == own)
            };
            snapshot.edges[at].retain(|edge| !changed(edge));
            let new = self.edges[at].iter();
            let new = new.filter_map(|&(src, dst, weight)| {
                let weight = weight?;
                Some(Edge { src, dst, weight })
            });
            snapshot.edges[at].extend(new);
        }
        for (&ends, &split) in &self.pairs {
            match split {
                Some(split) => snapshot.pairs.insert(ends, split),
                None => snapshot.pairs.remove(&ends),
            };
        }
    }

    /// Writes the tables.
    pub(crate) fn write(&self, shape: &Shape, dir: &Path) -> ChangesSpec {
        std::fs::create_dir_all(dir).unwrap();
        let op = |is_upsert: bool| if is_upsert { "upsert" } else { "delete" };
        let path = |file: &str| TablePath::from(dir.join(file).to_string_lossy().into_owned());
        let mut spec = ChangesSpec::default();
        for (at, rows) in self.nodes.iter().enumerate() {
            let ops = rows.iter().map(|row| op(row.1.is_some()));
            let ops: ArrayRef = Arc::new(StringArray::from_iter_values(ops));
            let ids = shape.ids(at, rows.iter().map(|row| row.0));
            let mut columns = vec![("id", ids), ("op", ops)];
            columns.extend(shape.features(rows.iter().map(|row| row.1)));
            let file = format!("nodes-{at}.parquet");
            write(&dir.join(&file), columns);
            spec.nodes.insert(shape.types[at].to_owned(), path(&file));
        }
        for (at, rows) in self.edges.iter().enumerate() {
            let of = &shape.tables[at];
            let ops = rows.iter().map(|row| op(row.2.is_some()));
            let weights = rows.iter().map(|row| row.2).collect::<Float32Array>();
            let mut columns = vec![
                ("src", shape.ids(of.from, rows.iter().map(|row| row.0))),
                ("dst", shape.ids(of.to, rows.iter().map(|row| row.1))),
                ("weight", Arc::new(weights) as ArrayRef),
                ("op", Arc::new(StringArray::from_iter_values(ops))),
            ];
            let edges = rows.iter().map(|&(src, dst, weight)| Edge {
                src,
                dst,
                weight: weight.unwrap_or_default(),
            });
            columns.extend(shape.column_of_splits(of, &edges.collect::<Vec<_>>()));
            let file = format!("edges-{at}.parquet");
            write(&dir.join(&file), columns);
            spec.edges.insert(of.name.to_owned(), path(&file));
        }
        if shape.has_table_of_pairs() {
            let ops = self.pairs.values().map(|split| op(split.is_some()));
            let rows = self.pairs.iter();
            let rows = rows.map(|(&ends, split)| (ends, split.unwrap_or("none")));
            let mut columns = shape.pair_columns(rows);
            columns.push(("op", Arc::new(StringArray::from_iter_values(ops))));
            write(&dir.join("pairs.parquet"), columns);
            spec.pairs = Some(path("pairs.parquet"));
        }
        spec
    }
}

/// Draws pairs that are added, replaced and removed; those of a removed node, its type and id, are
/// removed.
fn draw_pairs(
    shape: &Shape,
    now: &Snapshot,
    draw: &mut Draw,
    removed: Option<(usize, i64)>,
) -> PairRows {
    let new = shape.draw_pairs(now, 6, draw).into_iter();
    let mut pairs: PairRows = new.map(|(ends, split)| (ends, Some(split))).collect();
    // A pair that a column puts in no split is none.
    let has_times = shape.pairs.is_some_and(|(of, _)| of.has_times());
    let known = now.pairs.iter();
    let known = known.filter(|(_, split)| has_times || **split != "none");
    let known: Vec<(i64, i64)> = known.map(|(&ends, _)| ends).collect();
    for _ in 0..if known.is_empty() { 0 } else { draw.below(6) } {
        pairs.insert(draw.of(&known), None);
    }
    let Some((type_idx, id)) = removed else {
        return pairs;
    };
    let table = &shape.tables[0];
    let names = |&(src, dst): &(i64, i64)| {
        (table.from == type_idx && src == id) || (table.to == type_idx && dst == id)
    };
    pairs.retain(|ends, _| !names(ends));
    let gone = known.into_iter().filter(|ends| names(ends));
    pairs.extend(gone.map(|ends| (ends, None)));
    pairs
}

/// Removes a node and all its edges; returns its type and id.
fn remove_node(
    shape: &Shape,
    now: &Snapshot,
    draw: &mut Draw,
    (nodes, edges): (&mut [NodeRows], &mut [EdgeRows]),
) -> (usize, i64) {
    let type_idx = draw.below(now.nodes.len());
    let ids: Vec<i64> = now.nodes[type_idx].keys().copied().collect();
    let id = draw.of(&ids);
    nodes[type_idx].insert(id, None);
    for (at, of) in shape.tables.iter().enumerate() {
        let names = |src: i64, dst: i64| {
            (of.from == type_idx && src == id) || (of.to == type_idx && dst == id)
        };
        edges[at].retain(|&(src, dst), _| !names(src, dst));
        for edge in &now.edges[at] {
            if names(edge.src, edge.dst) {
                edges[at].insert(key(of.undirected, edge.src, edge.dst), Vec::new());
            }
        }
    }
    (type_idx, id)
}
