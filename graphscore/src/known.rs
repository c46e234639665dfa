//! The known pairs of a store, by split.

use cluster::gather_processes;
use rayon::prelude::*;
use schemas::{NodeIdx, Split};
use store::{Pairs, Store};

use crate::ScoreError;
use crate::plan::ScorePlan;

/// A pair: rows of its src end and its dst end among the nodes of their types.
pub(crate) type RowPair = (u32, u32);

/// The pairs of a job, and the edges that are known links but no pairs.
#[derive(Debug, Default)]
pub(crate) struct KnownPairs {
    /// Links by split: train, val, test.
    pub(crate) links: [Vec<RowPair>; 3],
    /// Pairs that are known to be no links.
    pub(crate) absent: Vec<RowPair>,
    /// The ends of edges that carry messages.
    pub(crate) edges: Vec<RowPair>,
    /// Whether the reverse of a link is a link.
    pub(crate) are_both_directions_known: bool,
}

/// For each row of a type: rows of the other type, ascending and distinct.
#[derive(Debug, Default)]
pub(crate) struct RowLists {
    offset: Vec<usize>,
    rows: Vec<u32>,
}

impl KnownPairs {
    /// Collects the pairs of all processes; pairs of walks are no links.
    pub(crate) fn gather(plan: &ScorePlan, store: &Store) -> Result<Self, ScoreError> {
        let [from, to] = [plan.pairs.from(), plan.pairs.to()];
        let first = |of: usize| store.placement().type_range(of).start.raw();
        let row = |(src, dst): (NodeIdx, NodeIdx)| (src.raw() - first(from), dst.raw() - first(to));
        let partitions = store.partitions().iter();
        let own: Vec<Pairs> = partitions.filter_map(|of| of.pairs().cloned()).collect();
        let pairs = Pairs::join(&gather_processes(store.cluster(), own)?.concat());
        let mut known = Self {
            are_both_directions_known: plan.are_both_directions_known(),
            ..Self::default()
        };
        for at in 0..pairs.len() {
            let pair = row((pairs.src[at], pairs.dst[at]));
            let is_link = pairs.label.as_ref().is_none_or(|label| label[at] > 0.0);
            match (is_link, pairs.split[at]) {
                (false, _) => known.absent.push(pair),
                (_, Split::Val) => known.links[1].push(pair),
                (_, Split::Test) => known.links[2].push(pair),
                (_, Split::Train | Split::None) if plan.pairs.walks().is_some() => {}
                (_, Split::Train | Split::None) => known.links[0].push(pair),
            }
        }
        if let Some(relation) = plan.known_relation() {
            let mut edges = Vec::new();
            for (partition, worker) in store
                .partitions()
                .iter()
                .zip(store.cluster().first_worker()..)
            {
                for local in partition.locals(to) {
                    let dst = store.placement().node(worker, local);
                    let in_edges = partition.in_edges(relation, 0, local, usize::MAX);
                    edges.extend(in_edges.src.iter().map(|&src| row((src, dst))));
                }
            }
            known.edges = gather_processes(store.cluster(), edges)?.concat();
        }
        Ok(known)
    }

    /// Lists all known pairs by the row of the query.
    pub(crate) fn all(&self, num_queries: usize, is_reversed: bool) -> RowLists {
        let links = self
            .links
            .iter()
            .chain([&self.absent, &self.edges])
            .flatten();
        let mut pairs: Vec<RowPair> = links.copied().collect();
        self.add_reverses(&mut pairs);
        if is_reversed {
            pairs
                .iter_mut()
                .for_each(|(src, dst)| std::mem::swap(src, dst));
        }
        RowLists::new(num_queries, pairs)
    }

    /// Lists the links that are known when a split is ranked: those of the splits before it, and
    /// the edges that carry messages. Where the reverse of a link is one, the links of the split itself
    /// are known from their other end.
    pub(crate) fn before(&self, split: usize, num_queries: usize) -> RowLists {
        let links = self.links[..split].iter().chain([&self.edges]).flatten();
        let mut pairs: Vec<RowPair> = links.copied().collect();
        self.add_reverses(&mut pairs);
        if self.are_both_directions_known {
            pairs.extend(self.links[split].iter().map(|&(src, dst)| (dst, src)));
        }
        RowLists::new(num_queries, pairs)
    }

    fn add_reverses(&self, pairs: &mut Vec<RowPair>) {
        if self.are_both_directions_known {
            let reverses: Vec<RowPair> = pairs.iter().map(|&(src, dst)| (dst, src)).collect();
            pairs.extend(reverses);
        }
    }
}

impl RowLists {
    /// Makes the lists of `len` rows.
    pub(crate) fn new(len: usize, mut pairs: Vec<RowPair>) -> Self {
        pairs.par_sort_unstable();
        pairs.dedup();
        let mut offset = Vec::with_capacity(len + 1);
        let mut at = 0;
        for row in 0..len {
            offset.push(at);
            let own = pairs[at..].iter().take_while(|(of, _)| *of as usize == row);
            at += own.count();
        }
        offset.push(at);
        Self {
            offset,
            rows: pairs.into_iter().map(|(_, other)| other).collect(),
        }
    }

    /// Returns the list of a row; nothing if there are no lists.
    pub(crate) fn of(&self, row: usize) -> &[u32] {
        match self.offset.get(row..row + 2) {
            Some(ends) => &self.rows[ends[0]..ends[1]],
            None => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_ascending_and_distinct() {
        let lists = RowLists::new(4, vec![(2, 5), (0, 3), (2, 1), (0, 3), (0, 9), (2, 5)]);
        let found: Vec<&[u32]> = (0..4).map(|row| lists.of(row)).collect();
        assert_eq!(found, [&[3, 9][..], &[], &[1, 5], &[]]);
        assert_eq!(RowLists::default().of(0), [0; 0]);
    }

    #[test]
    fn a_split_knows_the_links_before_it() {
        let known = KnownPairs {
            links: [vec![(0, 1)], vec![(0, 2)], vec![(1, 2)]],
            absent: vec![(0, 3)],
            edges: vec![(2, 0)],
            are_both_directions_known: false,
        };
        let lists =
            |of: RowLists| -> Vec<Vec<u32>> { (0..4).map(|row| of.of(row).to_vec()).collect() };
        assert_eq!(
            lists(known.before(1, 4)),
            [vec![1], vec![], vec![0], vec![]]
        );
        assert_eq!(
            lists(known.before(2, 4)),
            [vec![1, 2], vec![], vec![0], vec![]]
        );
        assert_eq!(
            lists(known.all(4, false)),
            [vec![1, 2, 3], vec![2], vec![0], vec![]]
        );
        assert_eq!(
            lists(known.all(4, true)),
            [vec![2], vec![0], vec![0, 1], vec![0]]
        );
        let both = KnownPairs {
            are_both_directions_known: true,
            ..known
        };
        // The test link of 1 and 2 is no negative of node 2 either.
        assert_eq!(
            lists(both.before(2, 4)),
            [vec![1, 2], vec![0], vec![0, 1], vec![]]
        );
    }
}
