//! The targets of parts: nodes, or the ends of pairs with the negatives of the part.

use crate::group::Group;
use crate::{FlattenError, Parts, SamplePlan};
use cluster::gather_processes;
use schemas::{
    GraphMeta, HardNegatives, Layout, NodeIdx, PartPairs, Row, Split, SplitCounts, hash_int,
};
use std::collections::BTreeSet;
use std::ops::Range;
use store::{Pairs, Placement, Store};

/// Keeps the draw of negatives apart from other draws with the same seed: "negative" in ASCII.
const SALT: u64 = 0x6e65_6761_7469_7665;

/// What the parts of an output are made of.
#[derive(Debug)]
pub(crate) enum PartTargets {
    /// Nodes.
    Nodes(Parts<NodeIdx>),
    /// The ends of pairs, and negatives.
    Pairs(PairParts),
}

/// Pairs, cut into parts.
#[derive(Debug)]
pub(crate) struct PairParts {
    pairs: Pairs,
    /// The pairs of each part.
    parts: Vec<Range<usize>>,
    /// Random negatives of each part.
    num_random: usize,
    /// The nodes that negatives are drawn from.
    candidates: Candidates,
}

/// Nodes of a type, in the order of their ids.
#[derive(Debug)]
pub(crate) enum Candidates {
    /// All of a range.
    Range(Range<NodeIdx>),
    /// Those of a graph after changes.
    Listed(Vec<NodeIdx>),
}

impl Candidates {
    fn len(&self) -> usize {
        match self {
            Self::Range(range) => (range.end.raw() - range.start.raw()) as usize,
            Self::Listed(nodes) => nodes.len(),
        }
    }

    fn at(&self, place: u32) -> NodeIdx {
        match self {
            Self::Range(range) => range.start.after(place),
            Self::Listed(nodes) => nodes[place as usize],
        }
    }
}

/// Cuts pairs, which stand in the order train, val, test, into parts of at most `per_part` pairs of
/// one split.
pub(crate) fn cut_pairs(counts: &SplitCounts, per_part: usize) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut first = 0;
    for count in [counts.train, counts.val, counts.test] {
        let end = first + usize::try_from(count).unwrap_or(usize::MAX - first);
        let starts = (first..end).step_by(per_part);
        parts.extend(starts.map(|start| start..end.min(start + per_part)));
        first = end;
    }
    parts
}

/// The targets of one part.
pub(crate) struct OnePart {
    /// Distinct, ascending.
    pub(crate) nodes: Vec<NodeIdx>,
    pub(crate) pairs: Option<DrawnPairs>,
}

/// The pairs of one part, and its random negatives.
#[derive(Clone, Debug)]
pub(crate) struct DrawnPairs {
    range: Range<usize>,
    random: Vec<NodeIdx>,
}

impl PartTargets {
    /// Returns the number of parts of a sample.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Nodes(parts) => parts.len(),
            Self::Pairs(parts) => parts.len(),
        }
    }

    /// Returns the targets of a part; `seed` draws its random negatives.
    pub(crate) fn part(&self, part: usize, seed: u64) -> OnePart {
        match self {
            Self::Nodes(parts) => OnePart {
                nodes: parts.get(part).to_vec(),
                pairs: None,
            },
            Self::Pairs(parts) => parts.part(part, seed),
        }
    }

    /// Counts the pairs of a part by split; none if targets are nodes.
    pub(crate) fn pair_counts(&self, part: usize) -> Option<SplitCounts> {
        let Self::Pairs(parts) = self else {
            return None;
        };
        let mut counts = SplitCounts::default();
        let splits = &parts.pairs.split[parts.parts[part].clone()];
        splits.iter().for_each(|&split| counts.add(split));
        Some(counts)
    }

    /// Returns the pairs of a part as rows of the nodes of its group.
    pub(crate) fn place(&self, drawn: &DrawnPairs, group: &Group) -> PartPairs {
        let Self::Pairs(parts) = self else {
            unreachable!("only pairs are drawn as pairs");
        };
        parts.place(drawn, |node| group.row(node))
    }
}

impl PairParts {
    /// Returns the pairs of a part as rows; `row` is that of a node.
    pub(crate) fn place(&self, drawn: &DrawnPairs, row: impl Fn(NodeIdx) -> Row) -> PartPairs {
        let (pairs, range) = (&self.pairs, drawn.range.clone());
        let rows =
            |nodes: &[NodeIdx]| -> Vec<Row> { nodes.iter().map(|&node| row(node)).collect() };
        let floats =
            |values: &Option<Vec<f32>>| values.as_ref().map(|of| of[range.clone()].to_vec());
        let hard = pairs.hard.as_ref().map(|_| {
            let mut hard = HardNegatives::default();
            for pair in range.clone() {
                hard.nodes.extend(rows(pairs.negatives(pair)));
                let end = u32::try_from(hard.nodes.len());
                hard.offset
                    .push(end.expect("a part has below 2^32 negatives"));
            }
            hard
        });
        PartPairs {
            src: rows(&pairs.src[range.clone()]),
            dst: rows(&pairs.dst[range.clone()]),
            label: floats(&pairs.label),
            weight: floats(&pairs.weight),
            split: pairs.split[range.clone()].to_vec(),
            hard,
            random: rows(&drawn.random),
        }
    }

    /// Collects the pairs of all processes, and cuts them into parts.
    ///
    /// # Errors
    ///
    /// If a part has more random negatives than there are nodes, or a process is lost.
    pub(crate) fn gather(
        plan: &SamplePlan,
        layout: Layout,
        store: &Store,
    ) -> Result<Self, FlattenError> {
        let partitions = store.partitions().iter();
        let own: Vec<Pairs> = partitions.filter_map(|of| of.pairs().cloned()).collect();
        let pairs = Pairs::join(&gather_processes(store.cluster(), own)?.concat());
        let graph = &store.meta().graph;
        let to = graph.pairs.as_ref().map_or(0, |meta| meta.to);
        let candidates = Candidates::Range(store.placement().type_range(to));
        Self::cut((plan, layout), graph, pairs, candidates)
    }

    /// Cuts pairs, in the order of [`Pairs::join`], into parts.
    ///
    /// # Errors
    ///
    /// If a part has more random negatives than there are candidates.
    pub(crate) fn cut(
        (plan, layout): (&SamplePlan, Layout),
        graph: &GraphMeta,
        pairs: Pairs,
        candidates: Candidates,
    ) -> Result<Self, FlattenError> {
        let features = graph.types.iter().map(|of| of.features);
        let per_part = plan.pairs_per_part(layout, pairs.len(), features);
        let mut counts = SplitCounts::default();
        pairs.split.iter().for_each(|&split| counts.add(split));
        Ok(Self {
            parts: cut_pairs(&counts, per_part),
            num_random: plan.negatives_per_part(candidates.len())?,
            pairs,
            candidates,
        })
    }

    /// Returns the number of parts.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns the number of pairs.
    pub(crate) fn num_pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Returns the targets of a part; `seed` draws its random negatives.
    pub(crate) fn part(&self, part: usize, seed: u64) -> OnePart {
        let (range, random) = (self.parts[part].clone(), self.draw_random(part, seed));
        let mut nodes = self.pairs.src[range.clone()].to_vec();
        nodes.extend_from_slice(&self.pairs.dst[range.clone()]);
        let hard = range.clone().map(|pair| self.pairs.negatives(pair));
        hard.for_each(|negatives| nodes.extend_from_slice(negatives));
        nodes.extend_from_slice(&random);
        nodes.sort_unstable();
        nodes.dedup();
        OnePart {
            nodes,
            pairs: Some(DrawnPairs { range, random }),
        }
    }

    /// Draws the random negatives of a part by hashes of (seed, part, number of the draw); in the order
    /// of ids. All parts of val and test pairs have the same ones, so that ranks among them do not depend on
    /// how pairs are cut, and no part of train pairs has these.
    fn draw_random(&self, part: usize, seed: u64) -> Vec<NodeIdx> {
        let number = match self.pairs.split[self.parts[part].start] {
            Split::Train => part as u64,
            _ => u64::MAX,
        };
        let of_part = hash_int(number ^ hash_int(seed ^ SALT));
        let mut drawn = BTreeSet::new();
        let mut draws = 0u64..;
        while drawn.len() < self.num_random {
            let hash = hash_int(of_part.wrapping_add(draws.next().expect("it has no end")));
            let at = (u128::from(hash) * self.candidates.len() as u128) >> 64;
            drawn.insert(u32::try_from(at).expect("below the number of nodes"));
        }
        let drawn = drawn.into_iter().map(|at| self.candidates.at(at));
        drawn.collect()
    }

    /// Returns the number of targets of the part with most pairs, by node type.
    pub(crate) fn most_targets(&self, placement: &Placement) -> Vec<usize> {
        let ranges = (0..placement.num_types()).map(|at| placement.type_range(at));
        let largest = (0..self.parts.len()).max_by_key(|&part| self.parts[part].len());
        let nodes = largest.map_or_else(Vec::new, |part| self.part(part, 0).nodes);
        let count =
            |range: Range<NodeIdx>| nodes.iter().filter(|node| range.contains(node)).count();
        ranges.map(count).collect()
    }
}
