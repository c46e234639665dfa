//! Finds the edges of a table that differ from those of the parent.
//!
//! All edges of the snapshot are held as numbers of nodes, cut into pieces by destination. The
//! destinations of a piece lie one after the other in the store. Of each destination, the in-edges
//! are sorted by source, as the store has them, and compared with these. Of several processes, each
//! reads some units and compares some pieces.

use std::sync::Arc;

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;
use schemas::{EdgeRows, EdgesPlan, Ids, NodeIdx, RowNumbers, Unit};
use serde::{Deserialize, Serialize};

use super::known::Known;
use super::per_unit;
use super::shares::{exchange, tell_all};
use crate::changes::EdgeChanges;
use crate::in_edges::{Draws, has_bits};
use crate::numbers::no_node;
use crate::{DeltaError, is_own_part};

/// Most destinations of a piece.
const NODES: usize = 1 << 12;

/// Pieces that each of several processes compares, at least, if there are as many nodes.
const PIECES_MIN: usize = 8;

/// The edges of a table, in the snapshot and in the parent.
struct Table<'a> {
    relation: usize,
    plan: &'a EdgesPlan,
    known: &'a Known<'a>,
    /// Whether edges of the same ends may differ.
    has_values: bool,
    /// Destinations of a piece.
    piece_nodes: usize,
    num_pieces: usize,
}

/// The in-edges of a unit.
#[derive(Clone, Serialize, Deserialize)]
struct UnitEdges {
    /// Place of the destination ([`Known::place`]) and source; ascending by piece, in a piece by row.
    ends: Vec<(u32, NodeIdx)>,
    /// `[pieces + 1]`.
    starts: Vec<u32>,
    /// Of each in-edge, the row of its values; empty if edges have none.
    rows: Vec<u32>,
    /// Of each row.
    weight: Vec<f32>,
    /// `[rows * feature_dim]`.
    feature: Vec<f32>,
}

/// An in-edge of the snapshot.
#[derive(Clone, Copy, Debug)]
struct InEdge {
    src: NodeIdx,
    /// Unit and row of its values, which are not read if edges have none.
    unit: u32,
    row: u32,
}

/// The in-edges of a piece, each as a key that starts with its source.
struct Piece<K> {
    /// By destination, in the order of places: where its in-edges start.
    starts: Vec<usize>,
    /// Of each destination they are ascending.
    keys: Vec<K>,
}

/// What has changed in a piece.
#[derive(Default)]
struct Changed {
    /// Destinations and in-edges that replace those of the same ends.
    upserts: Vec<(NodeIdx, InEdge)>,
    /// Destinations and sources of edges that are gone.
    deletes: Vec<(NodeIdx, NodeIdx)>,
}

/// Finds the edges of the table of a relation that are new, differ or are gone. All nodes of the
/// snapshot are in `known`.
///
/// # Errors
///
/// If a value is not allowed, or an end is no node of the snapshot: names file, column and row.
pub(super) fn changes(
    relation: usize,
    plan: &Arc<EdgesPlan>,
    known: &Known<'_>,
) -> Result<EdgeChanges, DeltaError> {
    let cluster = known.numbers().store().cluster();
    let processes = cluster.num_processes();
    let piece_nodes = match processes {
        1 => NODES,
        _ => known.end().div_ceil(PIECES_MIN * processes).clamp(1, NODES),
    };
    let table = Table {
        relation,
        plan,
        known,
        has_values: plan.has_weight() || plan.feature_dim().is_some(),
        piece_nodes,
        num_pieces: known.end().div_ceil(piece_nodes),
    };
    let read = per_unit(cluster, plan.units(), |ends, unit| table.read(unit, ends))?;
    let dim = plan.feature_dim().unwrap_or(0);
    let of_process = move |process: usize, unit: &UnitEdges| {
        unit.only(dim, |piece| piece % processes == process)
    };
    let units = exchange(cluster, read, of_process)?.into_iter();
    let units: Vec<UnitEdges> = units.map(|(_, of_unit)| of_unit).collect();
    let pieces = (0..table.num_pieces).into_par_iter();
    let pieces = pieces.filter(|piece| is_own_part(cluster, *piece));
    let pieces: Vec<Changed> = pieces.map(|piece| table.compare(piece, &units)).collect();
    let (new, gone) = table.rows(pieces, &units);
    let own = vec![(cluster.process(), (Columns::of(new), Columns::of(gone)))];
    let all = tell_all(cluster, own)?.into_iter();
    let (upserts, deletes) = all
        .map(|(upserts, deletes)| (upserts.rows(), deletes.rows()))
        .unzip();
    Ok(EdgeChanges {
        relation,
        plan: Arc::clone(plan),
        upserts,
        deletes,
    })
}

/// Rows of changed edges, as they are sent to other processes.
#[derive(Clone, Serialize, Deserialize)]
struct Columns {
    src: Ids,
    dst: Ids,
    weight: Option<Vec<f32>>,
    feature: Option<Vec<f32>>,
}

impl Columns {
    fn of(rows: EdgeRows) -> Self {
        Self {
            src: rows.src,
            dst: rows.dst,
            weight: rows.weight,
            feature: rows.feature,
        }
    }

    /// Returns the rows. No later check can fail on them, so their numbers are 0.
    fn rows(self) -> EdgeRows {
        EdgeRows {
            rows: RowNumbers::listed(vec![0; self.src.len()]),
            src: self.src,
            dst: self.dst,
            weight: self.weight,
            feature: self.feature,
        }
    }
}

impl<K> Piece<K> {
    /// Returns the keys of a destination.
    fn of(&self, at: usize) -> &[K] {
        &self.keys[self.starts[at]..self.starts[at + 1]]
    }
}

/// Returns source and position in a key.
fn parts_of(key: u64) -> (NodeIdx, usize) {
    let half = |of: u64| u32::try_from(of & u64::from(u32::MAX)).expect("32 bits");
    (NodeIdx::from_raw(half(key >> 32)), half(key) as usize)
}

/// Calls `visit` with each source of which two ascending lists have not as many, and how many the
/// first one has.
fn differences(new: &[NodeIdx], old: &[NodeIdx], mut visit: impl FnMut(NodeIdx, usize)) {
    let count = |list: &[NodeIdx], src| list.iter().take_while(|of| **of == src).count();
    let (mut at, mut at_old) = (0, 0);
    loop {
        let both = new[at..].iter().zip(&old[at_old..]);
        let same = both.take_while(|(of, before)| of == before).count();
        (at, at_old) = (at + same, at_old + same);
        let next = [new.get(at), old.get(at_old)];
        let Some(&src) = next.into_iter().flatten().min() else {
            return;
        };
        let before = new[..at].iter().rev().take_while(|of| **of == src).count();
        let rest = count(&new[at..], src);
        visit(src, before + rest);
        (at, at_old) = (at + rest, at_old + count(&old[at_old..], src));
    }
}

/// Tells whether ascending sources are those of two ascending lists, which have none in common.
fn are_merged(sources: &[NodeIdx], [mut a, mut b]: [&[NodeIdx]; 2]) -> bool {
    for &src in sources {
        let list = if a.first() == Some(&src) {
            &mut a
        } else {
            &mut b
        };
        match list.split_first() {
            Some((first, rest)) if *first == src => *list = rest,
            _ => return false,
        }
    }
    a.is_empty() && b.is_empty()
}

fn narrow(at: usize) -> u32 {
    u32::try_from(at).expect("nodes, and rows and edges of a unit, are fewer than 2^32")
}

impl UnitEdges {
    /// Sorts in-edges by piece.
    fn sorted(in_edges: &[(u32, NodeIdx)], rows: &[u32], table: &Table<'_>) -> Self {
        let num_pieces = table.num_pieces;
        let piece = |ends: &(u32, NodeIdx)| ends.0 as usize / table.piece_nodes;
        let mut starts = vec![0; num_pieces + 1];
        in_edges
            .iter()
            .for_each(|ends| starts[piece(ends) + 1] += 1);
        for at in 0..num_pieces {
            starts[at + 1] += starts[at];
        }
        let mut next = starts.clone();
        let mut sorted = Self {
            ends: vec![Default::default(); in_edges.len()],
            starts,
            rows: vec![0; rows.len()],
            weight: Vec::new(),
            feature: Vec::new(),
        };
        for (at, ends) in in_edges.iter().enumerate() {
            let place = &mut next[piece(ends)];
            sorted.ends[*place as usize] = *ends;
            if let Some(row) = rows.get(at) {
                sorted.rows[*place as usize] = *row;
            }
            *place += 1;
        }
        sorted
    }

    /// Takes the in-edges of some pieces, with their values; edges have `dim` features.
    fn only(&self, dim: usize, is_taken: impl Fn(usize) -> bool) -> Self {
        let mut taken = Self {
            ends: Vec::new(),
            starts: vec![0],
            rows: Vec::new(),
            weight: Vec::new(),
            feature: Vec::new(),
        };
        // Without direction, two in-edges have the values of one row.
        let num_rows = self.rows.iter().max().map_or(0, |last| *last as usize + 1);
        let (mut new_rows, mut num_new) = (vec![None; num_rows], 0);
        for (piece, bounds) in self.starts.windows(2).enumerate() {
            let of_piece = bounds[0] as usize..bounds[1] as usize;
            if is_taken(piece) {
                taken.ends.extend_from_slice(&self.ends[of_piece.clone()]);
                let rows = self.rows.get(of_piece).unwrap_or_default();
                for row in rows.iter().map(|&row| row as usize) {
                    let new = *new_rows[row].get_or_insert_with(|| {
                        taken.weight.extend(self.weight.get(row));
                        let values = &self.feature[row * dim..(row + 1) * dim];
                        taken.feature.extend_from_slice(values);
                        num_new += 1;
                        num_new - 1
                    });
                    taken.rows.push(new);
                }
            }
            taken.starts.push(narrow(taken.ends.len()));
        }
        taken
    }

    /// Calls `visit` with place of the destination and in-edge of all in-edges of a piece.
    fn visit(&self, piece: usize, unit: usize, mut visit: impl FnMut(usize, InEdge)) {
        for at in self.starts[piece] as usize..self.starts[piece + 1] as usize {
            let (place, src) = self.ends[at];
            let row = self.rows.get(at).copied().unwrap_or_default();
            let unit = narrow(unit);
            visit(place as usize, InEdge { src, unit, row });
        }
    }
}

impl Table<'_> {
    /// Reads the rows of a unit; `in_edges` is scratch memory.
    fn read(
        &self,
        unit: &Unit,
        in_edges: &mut Vec<(u32, NodeIdx)>,
    ) -> Result<UnitEdges, DeltaError> {
        in_edges.clear();
        in_edges.reserve(unit.num_rows_reserved());
        let (mut of_rows, mut weight, mut feature) = (Vec::new(), Vec::new(), Vec::new());
        let place = |node| narrow(self.known.place(node));
        let mut row = 0;
        for batch in self.plan.batches(unit)? {
            let rows = batch?;
            let [sources, destinations] = self.ends(&rows)?;
            for (src, dst) in sources.into_iter().zip(destinations) {
                in_edges.push((place(dst), src));
                in_edges.extend(self.plan.undirected().then(|| (place(src), dst)));
                if self.has_values {
                    of_rows.resize(in_edges.len(), row);
                }
                row += 1;
            }
            weight.extend(rows.weight.unwrap_or_default());
            feature.extend(rows.feature.unwrap_or_default());
        }
        Ok(UnitEdges {
            weight,
            feature,
            ..UnitEdges::sorted(in_edges, &of_rows, self)
        })
    }

    /// Returns sources and destinations of rows.
    fn ends(&self, rows: &EdgeRows) -> Result<[Vec<NodeIdx>; 2], DeltaError> {
        let graph = &self.known.numbers().store().meta().graph;
        let (own, spec) = (&graph.relations[self.relation], self.plan.spec());
        let found = [
            (&spec.src, &rows.src, own.from),
            (&spec.dst, &rows.dst, own.to),
        ]
        .map(|(column, ids, type_idx)| {
            let found = self.known.find_all(type_idx, ids);
            found.map_err(|at| (at, column, ids))
        });
        match found {
            [Ok(src), Ok(dst)] => Ok([src, dst]),
            found => {
                let missing = found.into_iter().filter_map(Result::err);
                let first = missing.min_by_key(|(at, ..)| *at);
                let (at, column, ids) = first.expect("an end is missing");
                Err(no_node(self.plan, column, (ids, rows), at))
            }
        }
    }

    /// Returns weight and features of an edge.
    fn values<'u>(&self, edge: &InEdge, units: &'u [UnitEdges]) -> (f32, &'u [f32]) {
        let (unit, row) = (&units[edge.unit as usize], edge.row as usize);
        let weight = unit.weight.get(row).copied().unwrap_or(1.0);
        let dim = self.plan.feature_dim().unwrap_or(0);
        let feature = match dim {
            0 => &[],
            _ => &unit.feature[row * dim..(row + 1) * dim],
        };
        (weight, feature)
    }

    /// Tells whether an edge has these bits.
    fn has_values(
        &self,
        edge: &InEdge,
        units: &[UnitEdges],
        (weight, feature): (f32, &[f32]),
    ) -> bool {
        if !self.has_values {
            return true;
        }
        let own = self.values(edge, units);
        own.0.to_bits() == weight.to_bits() && has_bits(own.1, feature)
    }

    /// Gathers the in-edges of a piece; `key` is called for each, by unit and row.
    fn gather<K: Copy + Default + Ord>(
        &self,
        piece: usize,
        units: &[UnitEdges],
        mut key: impl FnMut(InEdge) -> K,
    ) -> Piece<K> {
        let (first, num_nodes) = (piece * self.piece_nodes, self.piece_nodes);
        let mut starts = vec![0; num_nodes + 1];
        for unit in units {
            unit.visit(piece, 0, |place, _| starts[place - first + 1] += 1);
        }
        for at in 0..num_nodes {
            starts[at + 1] += starts[at];
        }
        let mut next = starts.clone();
        let mut keys = vec![K::default(); starts[num_nodes]];
        for (number, unit) in units.iter().enumerate() {
            unit.visit(piece, number, |place, edge| {
                let next: &mut usize = &mut next[place - first];
                keys[*next] = key(edge);
                *next += 1;
            });
        }
        for of_dst in starts.windows(2) {
            keys[of_dst[0]..of_dst[1]].sort_unstable();
        }
        Piece { starts, keys }
    }

    /// Compares the in-edges of the destinations of a piece.
    fn compare(&self, piece: usize, units: &[UnitEdges]) -> Changed {
        match self.has_values {
            true => self.compare_values(piece, units),
            false => self.compare_sources(piece, units),
        }
    }

    /// Compares in-edges that have no values: their sources suffice.
    fn compare_sources(&self, piece: usize, units: &[UnitEdges]) -> Changed {
        let gathered = self.gather(piece, units, |edge| edge.src);
        let draws = Draws::new(self.known.numbers(), self.relation, 0);
        let (mut changed, mut own) = (Changed::default(), Vec::new());
        for (at, dst) in self.destinations(piece).enumerate() {
            let sources = gathered.of(at);
            let edge = |src| InEdge {
                src,
                unit: 0,
                row: 0,
            };
            match draws.unedited(dst) {
                Some([stored, []]) => differences(sources, stored, |src, count| {
                    let new = std::iter::repeat_n(edge(src), count);
                    self.push_changed((dst, src), new, &mut changed);
                }),
                Some(stored) if are_merged(sources, stored) => {}
                _ => {
                    own.clear();
                    own.extend(sources.iter().map(|&src| edge(src)));
                    self.compare_node((dst, &own), units, (&draws, &mut changed));
                }
            }
        }
        changed
    }

    /// Compares in-edges with their values.
    fn compare_values(&self, piece: usize, units: &[UnitEdges]) -> Changed {
        // Source and position in one integer, which sorts faster than a pair: parallel edges come in
        // the order of their rows, as the store ranks them.
        let mut edges = Vec::new();
        let gathered = self.gather(piece, units, |edge| {
            let at = u32::try_from(edges.len()).expect("a piece has below 2^32 edges");
            edges.push((edge.unit, edge.row));
            u64::from(edge.src.raw()) << 32 | u64::from(at)
        });
        let draws = Draws::new(self.known.numbers(), self.relation, 0);
        let (mut changed, mut own) = (Changed::default(), Vec::new());
        for (at, dst) in self.destinations(piece).enumerate() {
            own.clear();
            own.extend(gathered.of(at).iter().map(|&key| {
                let (src, place) = parts_of(key);
                let (unit, row) = edges[place];
                InEdge { src, unit, row }
            }));
            self.compare_node((dst, &own), units, (&draws, &mut changed));
        }
        changed
    }

    /// Lists the destinations of a piece.
    fn destinations(&self, piece: usize) -> impl Iterator<Item = NodeIdx> {
        let first = piece * self.piece_nodes;
        let end = self.known.end().min(first + self.piece_nodes);
        (first..end).map(|place| self.known.at_place(place))
    }

    /// Compares the sorted in-edges of a node.
    fn compare_node(
        &self,
        (dst, own): (NodeIdx, &[InEdge]),
        units: &[UnitEdges],
        (draws, changed): (&Draws<'_>, &mut Changed),
    ) {
        let (mut at, mut all_same) = (0, true);
        draws.visit_table(dst, |src, weight, feature| {
            let is_next =
                |of: &InEdge| of.src == src && self.has_values(of, units, (weight, feature));
            all_same = all_same && own.get(at).is_some_and(is_next);
            at += 1;
        });
        if all_same && at == own.len() {
            return;
        }
        let dim = self.plan.feature_dim().unwrap_or(0);
        let (mut old, mut features) = (Vec::with_capacity(at), Vec::new());
        draws.visit_table(dst, |src, weight, feature| {
            old.push((src, old.len(), weight));
            features.extend_from_slice(feature);
        });
        // Sources whose edges were edited come last.
        old.sort_unstable_by_key(|&(src, place, _)| (src, place));
        let (mut own, mut old) = (own, &old[..]);
        loop {
            let next = [own.first().map(|of| of.src), old.first().map(|of| of.0)];
            let Some(src) = next.into_iter().flatten().min() else {
                return;
            };
            let num_new = own.iter().take_while(|of| of.src == src).count();
            let num_old = old.iter().take_while(|of| of.0 == src).count();
            let (new, before) = (&own[..num_new], &old[..num_old]);
            (own, old) = (&own[num_new..], &old[num_old..]);
            let same = |(of, &(_, place, weight)): (&InEdge, &(NodeIdx, usize, f32))| {
                self.has_values(of, units, (weight, &features[place * dim..][..dim]))
            };
            if !(num_new == num_old && new.iter().zip(before).all(same)) {
                self.push_changed((dst, src), new.iter().copied(), changed);
            }
        }
    }

    /// Notes that the edges from `src` to `dst` are now `new`.
    fn push_changed(
        &self,
        (dst, src): (NodeIdx, NodeIdx),
        new: impl ExactSizeIterator<Item = InEdge>,
        changed: &mut Changed,
    ) {
        // Without direction, an edge is an in-edge of both ends, and a self-loop is one twice.
        let is_undirected = self.plan.undirected();
        if is_undirected && dst < src {
            return;
        }
        changed
            .deletes
            .extend((new.len() == 0).then_some((dst, src)));
        let step = if is_undirected && dst == src { 2 } else { 1 };
        let rows = new.step_by(step);
        changed.upserts.extend(rows.map(|of| (dst, of)));
    }

    /// Returns the rows of what has changed, without their numbers, by destination.
    fn rows(&self, pieces: Vec<Changed>, units: &[UnitEdges]) -> (EdgeRows, EdgeRows) {
        let mut all = Changed::default();
        for of in pieces {
            all.upserts.extend(of.upserts);
            all.deletes.extend(of.deletes);
        }
        // Stable: of a destination, parallel edges stay in the order of their rows.
        all.upserts.par_sort_by_key(|of| of.0);
        all.deletes.par_sort_by_key(|of| of.0);
        let (mut upserts, mut deletes) = (self.no_rows(), self.no_rows());
        (deletes.weight, deletes.feature) = (None, None);
        for (dst, edge) in &all.upserts {
            self.push_ends(&mut upserts, (*dst, edge.src));
            let (of_edge, values) = self.values(edge, units);
            if let Some(weight) = &mut upserts.weight {
                weight.push(of_edge);
            }
            if let Some(feature) = &mut upserts.feature {
                feature.extend_from_slice(values);
            }
        }
        for &ends in &all.deletes {
            self.push_ends(&mut deletes, ends);
        }
        (upserts, deletes)
    }

    fn push_ends(&self, rows: &mut EdgeRows, (dst, src): (NodeIdx, NodeIdx)) {
        for (node, ids) in [(src, &mut rows.src), (dst, &mut rows.dst)] {
            let (known, row) = self.known.id(node);
            ids.push_from(known, row);
        }
    }

    fn no_rows(&self) -> EdgeRows {
        EdgeRows {
            src: Ids::new(self.plan.src_type()),
            dst: Ids::new(self.plan.dst_type()),
            weight: self.plan.has_weight().then(Vec::new),
            feature: self.plan.feature_dim().map(|_| Vec::new()),
            rows: RowNumbers::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// All ascending lists of up to three edges of each of three sources.
    fn lists() -> Vec<Vec<NodeIdx>> {
        let lists = (0..64usize).map(|code| {
            let counts = [code % 4, code / 4 % 4, code / 16];
            let edges = (0..).zip(counts);
            edges
                .flat_map(|(src, count)| std::iter::repeat_n(NodeIdx::from_raw(src), count))
                .collect()
        });
        lists.collect()
    }

    fn counts(list: &[NodeIdx]) -> BTreeMap<NodeIdx, usize> {
        let mut counts = BTreeMap::new();
        for src in list {
            *counts.entry(*src).or_insert(0) += 1;
        }
        counts
    }

    #[test]
    fn differences_are_the_sources_with_other_counts() {
        for new in lists() {
            for old in lists() {
                let mut found = Vec::new();
                differences(&new, &old, |src, count| found.push((src, count)));
                let (of_new, of_old) = (counts(&new), counts(&old));
                let count = |of: &BTreeMap<NodeIdx, usize>, src| of.get(&src).copied().unwrap_or(0);
                let all = (0..3).map(NodeIdx::from_raw);
                let changed = all.filter(|&src| count(&of_new, src) != count(&of_old, src));
                let expected: Vec<_> = changed.map(|src| (src, count(&of_new, src))).collect();
                assert_eq!(found, expected, "{new:?} {old:?}");
            }
        }
    }

    #[test]
    fn lists_are_merged_if_both_together_are_the_sources() {
        let all = lists();
        for sources in &all {
            for a in &all {
                for b in &all {
                    if a.iter().any(|src| b.contains(src)) {
                        continue;
                    }
                    let mut both = [&a[..], b].concat();
                    both.sort_unstable();
                    assert_eq!(are_merged(sources, [a, b]), both == *sources);
                }
            }
        }
    }
}
