//! Batches of pairs: which nodes are computed, and which of them are negatives of which pair.
//!
//! All draws are pure functions of seed, epoch, the ids of the pair and the position of the draw.
//! Sections of pairs are cut out of the order of the epoch. So negatives depend neither on workers
//! nor on processes nor on kills.

use std::collections::BTreeSet;
use std::sync::Arc;

use gnn::Pairs;
use schemas::{Exclude, PairsMeta, PartPairs, Row, Split, hash_int};

use crate::batch::{LeftOut, Place};
use crate::config::{DrawBy, LinkPlan};
use crate::id_index::IdIndex;
use crate::order::mix;
use crate::source::Part;
use crate::vectorise::Chosen;

mod ranked;

pub(crate) use ranked::{KnownLinks, RankedPart, RowLinks};

/// Seed of the negatives that val and test pairs are ranked among; those of an epoch have its number.
const EVALUATION: u64 = u64::MAX;

/// How batches of pairs are made.
#[derive(Clone, Debug)]
pub(crate) struct LinkBatches {
    pub(crate) plan: LinkPlan,
    pub(crate) meta: PairsMeta,
    pub(crate) seed: u64,
}

/// The targets of a batch of pairs.
pub(crate) struct LinkTargets {
    /// By type: the targets.
    pub(crate) roots: Vec<Vec<Place>>,
    /// The pairs. A row is a position among the targets of the type of its end.
    pairs: Pairs,
    meta: (usize, usize),
    /// By type and target: number of the node among the nodes of the type.
    node: Vec<Vec<u32>>,
    /// By target of the type of dst ends: how often another pair of a section is expected there.
    shares: Vec<f32>,
    /// By target of the type of dst ends: how likely a random negative is the node, if they are drawn
    /// by degree.
    chances: Vec<f32>,
}

/// What the pairs of a part are drawn with.
#[derive(Debug, Default)]
pub(crate) struct PartFrequencies {
    /// By node of the type of dst ends: the train pairs that end there.
    ends: Vec<u32>,
    /// Number of train pairs.
    num_train: u32,
}

impl PartFrequencies {
    /// Counts the train pairs of a part by dst node; `num_nodes` is the number of those nodes.
    pub(crate) fn of(pairs: &PartPairs, num_nodes: usize) -> Self {
        let mut counts = Self {
            ends: vec![0; num_nodes],
            num_train: 0,
        };
        for (dst, split) in pairs.dst.iter().zip(&pairs.split) {
            if *split == Split::Train {
                counts.ends[dst.index()] += 1;
                counts.num_train += 1;
            }
        }
        counts
    }

    /// Returns how often another pair of a section, drawn from the other train pairs, is expected to
    /// end at a node.
    fn share(&self, node: u32) -> f32 {
        let others = self.num_train.saturating_sub(1).max(1);
        let share = f64::from(self.ends[node as usize]) / f64::from(others);
        #[expect(clippy::cast_possible_truncation, reason = "shares are kept as f32")]
        let share = share as f32;
        share
    }
}

/// Returns a key of a pair that depends on its ids alone.
pub(crate) fn pair_key(part: &Part, meta: &PairsMeta, pair: usize) -> u64 {
    let pairs = part.pairs();
    let src = part.shard.nodes[meta.from]
        .ids
        .hash(pairs.src[pair].index());
    let dst = part.shard.nodes[meta.to].ids.hash(pairs.dst[pair].index());
    mix(&[src, dst])
}

/// The train pairs of a part by src node.
#[derive(Debug, Default)]
pub(crate) struct BySrc {
    /// The src nodes that have train pairs, ascending.
    src: Vec<u32>,
    /// Where the pairs of each of them start.
    offset: Vec<u32>,
    /// The pairs, ascending for each src node.
    pairs: Vec<u32>,
    /// How many pairs of each of them are links.
    num_links: Vec<u32>,
}

impl BySrc {
    /// Groups the train pairs of a part.
    pub(crate) fn of(pairs: &PartPairs, train: &[u32]) -> Self {
        let src = |pair: u32| pairs.src[pair as usize].raw();
        let is_link = |pair: &&u32| match &pairs.label {
            None => true,
            Some(labels) => labels[**pair as usize] > 0.0,
        };
        let mut ordered = train.to_vec();
        ordered.sort_unstable_by_key(|&pair| (src(pair), pair));
        let mut groups = Self {
            offset: vec![0],
            ..Self::default()
        };
        for group in ordered.chunk_by(|&a, &b| src(a) == src(b)) {
            groups.src.push(src(group[0]));
            let start = groups.offset[groups.offset.len() - 1];
            groups.offset.push(start + narrow(group.len()));
            groups
                .num_links
                .push(narrow(group.iter().filter(is_link).count()));
        }
        groups.pairs = ordered;
        groups
    }

    /// Returns the number of src nodes that have train pairs.
    pub(crate) fn len(&self) -> usize {
        self.src.len()
    }

    /// Returns a src node, by its position among those that have train pairs.
    pub(crate) fn node(&self, at: u32) -> usize {
        self.src[at as usize] as usize
    }

    /// Returns the pairs of some src nodes, node after node.
    pub(crate) fn pairs_of(&self, which: &[u32]) -> Vec<u32> {
        let range = |at: u32| {
            let ends = &self.offset[at as usize..at as usize + 2];
            ends[0] as usize..ends[1] as usize
        };
        let all = which.iter().flat_map(|&at| &self.pairs[range(at)]);
        all.copied().collect()
    }

    /// Returns the number of train pairs of a node that are links.
    fn degree(&self, node: Row) -> u32 {
        let at = self.src.binary_search(&node.raw());
        at.map_or(0, |at| self.num_links[at])
    }
}

/// Draws `count` distinct positions below `len`, or all if there are no more (Floyd's algorithm).
fn draw(key: u64, count: usize, len: usize) -> Vec<usize> {
    if count >= len {
        return (0..len).collect();
    }
    let mut drawn = BTreeSet::new();
    let mut order = Vec::with_capacity(count);
    for last in len - count..len {
        let at = hash_int(key ^ hash_int(last as u64)) % (last as u64 + 1);
        let at = usize::try_from(at).expect("it is below a length");
        let new = if drawn.contains(&at) { last } else { at };
        drawn.insert(new);
        order.push(new);
    }
    order
}

/// Draws as [`draw`], in a random order: AUC and average precision compare a pair with its first
/// negative, the first position that is not an end of the pair.
fn ranked(key: u64, count: usize, len: usize) -> Vec<usize> {
    let mut order = draw(key, count, len);
    order.sort_unstable_by_key(|&at| hash_int(!key ^ hash_int(at as u64)));
    order
}

/// Collects the targets of a batch, each node of a part once.
#[derive(Clone, Debug)]
struct Rows {
    /// By type.
    roots: Vec<Vec<Place>>,
    /// By type and target: number of the node.
    node: Vec<Vec<u32>>,
    /// By type: the distinct ids.
    index: Vec<IdIndex>,
}

/// By type and node of a part: its position among the batch's targets.
type Positions = Vec<Vec<u32>>;

/// A node that is no target yet.
const ABSENT: u32 = u32::MAX;

impl Rows {
    fn new(part: Option<&Arc<Part>>, num_types: usize) -> Self {
        let types = part.map_or(&[][..], |part| &part.shard.nodes);
        let index = types.iter().map(|nodes| IdIndex::new(nodes.ids.id_type()));
        Self {
            roots: vec![Vec::new(); num_types],
            node: vec![Vec::new(); num_types],
            index: index.collect(),
        }
    }

    /// Returns the position of a node of a type among the batch's targets, which it joins.
    fn enter(
        &mut self,
        positions: &mut Positions,
        (piece, part): (u32, &Part),
        (of, node): (usize, Row),
    ) -> u32 {
        let at = &mut positions[of][node.index()];
        if *at == ABSENT {
            *at = narrow(self.roots[of].len());
            let node = node.raw();
            self.roots[of].push(Place { piece, node });
            let ids = &part.shard.nodes[of].ids;
            let (number, _) = self.index[of].insert(ids, node as usize);
            self.node[of].push(narrow(number));
        }
        *at
    }
}

fn narrow(position: usize) -> u32 {
    u32::try_from(position).expect("a batch has fewer than 2^32 targets")
}

/// All targets of a part as targets of a batch, which other batches of the part can share.
#[derive(Clone, Debug)]
pub(crate) struct SharedTargets {
    rows: Rows,
    positions: Positions,
}

impl SharedTargets {
    /// Collects the targets of a part.
    pub(crate) fn of(part: &Arc<Part>, num_types: usize) -> Self {
        let mut rows = Rows::new(Some(part), num_types);
        let mut positions = absent(part);
        for of in 0..num_types {
            for node in part.shard.targets_of(of) {
                let node = Row::from_index(node as usize);
                rows.enter(&mut positions, (0, part), (of, node));
            }
        }
        Self { rows, positions }
    }

    /// Returns the targets by type.
    pub(crate) fn roots(&self) -> &[Vec<Place>] {
        &self.rows.roots
    }
}

/// Returns positions of no node of a part.
fn absent(part: &Part) -> Positions {
    let nodes = part.shard.nodes.iter();
    nodes.map(|nodes| vec![ABSENT; nodes.ids.len()]).collect()
}

impl LinkBatches {
    /// Tells whether batches have the same blocks, given that each has all targets of its part.
    pub(crate) fn shares_blocks(&self) -> bool {
        self.plan.has_whole_parts(self.meta.exclude)
    }

    /// Tells whether pairs are ranked among all targets of their part, given that batches share its
    /// blocks. A node of the type of both ends would be a candidate of its own.
    pub(crate) fn ranks(&self) -> bool {
        self.meta.from != self.meta.to
    }

    /// Returns the targets of a part as rows of a model's output with `num_dst` rows of each type.
    pub(crate) fn ranked(&self, targets: &Arc<SharedTargets>, num_dst: &[usize]) -> RankedPart {
        RankedPart::new(targets, (self.meta.from, self.meta.to), first_rows(num_dst))
    }

    /// Tells whether the weight of a batch depends on which pairs it has.
    pub(crate) fn weighs(&self) -> bool {
        self.meta.weight || self.plan.by_src || self.plan.src_power.is_some()
    }

    /// Returns the weight of a pair in an epoch of training, or in evaluation.
    fn weight(&self, part: &Part, pair: usize, is_trained: bool) -> f32 {
        let pairs = part.pairs();
        let own = pairs.weight.as_ref().map_or(1.0, |weights| weights[pair]);
        match self.plan.src_power.filter(|_| is_trained) {
            None => own,
            Some(power) => {
                let degree = part.by_src().degree(pairs.src[pair]);
                let factor = f64::from(degree.max(1)).powf(f64::from(power) - 1.0);
                #[expect(clippy::cast_possible_truncation, reason = "weights are kept as f32")]
                let weight = (f64::from(own) * factor) as f32;
                weight
            }
        }
    }

    /// Returns the total weight of some pairs of a part.
    pub(crate) fn total_weight(&self, part: &Part, which: &[u32], is_trained: bool) -> f64 {
        if part.pairs().weight.is_none() && self.plan.src_power.is_none() {
            return which.len() as f64;
        }
        let weights = which.iter();
        let weights = weights.map(|&pair| self.weight(part, pair as usize, is_trained));
        weights.map(f64::from).sum()
    }

    /// Collects the targets of the chosen pairs and draws their negatives. `shared` has the targets
    /// of the one part that the pairs are of.
    pub(crate) fn targets(
        &self,
        chosen: &Chosen,
        num_types: usize,
        shared: Option<&SharedTargets>,
    ) -> LinkTargets {
        let mut rows = match shared {
            Some(shared) => shared.rows.clone(),
            None => Rows::new(chosen.pieces.first().map(|(_, part, _)| part), num_types),
        };
        let mut pairs = Pairs {
            loss: self.plan.loss,
            negative_offset: vec![0],
            ..Pairs::default()
        };
        let (mut shares, mut chances): (Vec<f32>, Vec<f32>) = (Vec::new(), Vec::new());
        for (piece, (_, part, own)) in chosen.pieces.iter().enumerate() {
            let of_piece = (narrow(piece), &**part);
            let mut positions = match shared {
                Some(shared) => shared.positions.clone(),
                None => absent(part),
            };
            let mut enter = |of, node| rows.enter(&mut positions, of_piece, (of, node));
            self.add_pairs(&mut enter, &mut pairs, part, (own, chosen.epoch));
            if self.is_by_degree(chosen.epoch) {
                let of_part = part.degree_draws(self.meta.to);
                let entered = rows.roots[self.meta.to][chances.len()..].iter();
                chances.extend(entered.map(|place| of_part.chance(place.node)));
            }
            let section = self.section(own.len());
            let Some(section) = section.filter(|_| chosen.epoch.is_some()) else {
                continue;
            };
            cut_sections(&mut pairs.group_offset, own.len(), section);
            if !self.plan.all {
                // A node of several parts has a target for each, with the share of its part.
                let of_part = part.frequencies();
                let entered = rows.roots[self.meta.to][shares.len()..].iter();
                shares.extend(entered.map(|place| of_part.share(place.node)));
            }
        }
        LinkTargets {
            roots: rows.roots,
            pairs,
            meta: (self.meta.from, self.meta.to),
            node: rows.node,
            shares,
            chances,
        }
    }

    /// Tells whether random negatives are drawn by degree; those of evaluation are not.
    fn is_by_degree(&self, epoch: Option<u64>) -> bool {
        self.plan.by == DrawBy::Degree && epoch.is_some()
    }

    /// Returns the edges that a training batch does not read, if train pairs carry messages in the
    /// batches of other pairs.
    pub(crate) fn left_out(&self, chosen: &Chosen, num_relations: usize) -> Option<LeftOut> {
        if self.meta.exclude != Exclude::Batch || chosen.epoch.is_none() {
            return None;
        }
        let mut relations = vec![false; num_relations];
        self.meta
            .relations
            .iter()
            .for_each(|&at| relations[at] = true);
        // Those of the other workers too, so that workers do not show in the result.
        let pieces = (0..).zip(chosen.pieces.iter().zip(&chosen.of_batch));
        let pairs = pieces.flat_map(|(piece, ((_, part, _), of_batch))| {
            let of_part = part.pairs();
            of_batch.iter().map(move |&pair| {
                let ends = [&of_part.src, &of_part.dst].map(|ends| ends[pair as usize].raw());
                (piece, ends[0], ends[1])
            })
        });
        Some(LeftOut {
            from: self.meta.from,
            to: self.meta.to,
            relations,
            pairs: pairs.collect(),
        })
    }

    /// Returns the number of pairs in a section of `num_pairs` pairs of a part; none without sections.
    fn section(&self, num_pairs: usize) -> Option<usize> {
        let section = self.plan.section?;
        // The pairs of a src node may be more than `batch_size`.
        Some(if self.plan.by_src {
            num_pairs.max(1)
        } else {
            section
        })
    }

    /// Adds some pairs of one part and their own negatives; `enter` returns the row of a node.
    fn add_pairs(
        &self,
        enter: &mut dyn FnMut(usize, Row) -> u32,
        pairs: &mut Pairs,
        part: &Part,
        (own, epoch): (&[u32], Option<u64>),
    ) {
        let (from, to, of_part) = (self.meta.from, self.meta.to, part.pairs());
        let section = self.section(own.len());
        if let Some(section) = section.filter(|_| self.plan.all && epoch.is_some()) {
            let all: Vec<u32> = of_part.random.iter().map(|&node| enter(to, node)).collect();
            if pairs.all_offset.is_empty() {
                pairs.all_offset.push(0);
            }
            for _ in 0..own.len().div_ceil(section) {
                pairs.all.extend_from_slice(&all);
                pairs.all_offset.push(narrow(pairs.all.len()));
            }
        }
        let pool = &of_part.random;
        let wanted = match epoch {
            Some(_) => self.plan.random,
            None => self.plan.evaluation,
        };
        let by_degree = self.is_by_degree(epoch).then(|| part.degree_draws(to));
        let expected = match by_degree {
            Some(_) => wanted as f64,
            None => wanted.min(pool.len()) as f64 / pool.len().max(1) as f64,
        };
        #[expect(clippy::cast_possible_truncation, reason = "shares are kept as f32")]
        let expected = expected as f32;
        for at in own.iter().map(|&pair| pair as usize) {
            let exists = exists(of_part, at);
            pairs.src.push(enter(from, of_part.src[at]));
            pairs.dst.push(enter(to, of_part.dst[at]));
            pairs.drawn.push(expected);
            if of_part.label.is_some() {
                pairs.exists.push(exists);
            }
            if of_part.weight.is_some() || self.plan.src_power.is_some() {
                pairs.weight.push(self.weight(part, at, epoch.is_some()));
            }
            if exists {
                let key = pair_key(part, &self.meta, at);
                let key = mix(&[self.seed, epoch.unwrap_or(EVALUATION), key]);
                let drawn = match by_degree {
                    Some(draws) => draws.draw(key, wanted).collect(),
                    None if epoch.is_none() => ranked(key, wanted, pool.len()),
                    None => draw(key, wanted, pool.len()),
                };
                let drawn = drawn.into_iter();
                pairs
                    .negative
                    .extend(drawn.map(|place| enter(to, pool[place])));
            }
            if let Some(hard) = &of_part.hard {
                let is_used = exists && epoch.is_some();
                let hard = if is_used { hard.of(at) } else { &[] };
                let hard = &hard[..hard.len().min(self.plan.hard)];
                pairs
                    .negative
                    .extend(hard.iter().map(|&node| enter(to, node)));
                pairs.num_hard.push(narrow(hard.len()));
            }
            pairs.negative_offset.push(narrow(pairs.negative.len()));
        }
    }
}

/// Tells whether a pair of a part is a link.
fn exists(pairs: &PartPairs, pair: usize) -> bool {
    pairs.label.as_ref().is_none_or(|labels| labels[pair] > 0.0)
}

/// Returns the first row of each type, given the rows of each.
fn first_rows(num_dst: &[usize]) -> Vec<u32> {
    let mut first_rows = vec![0];
    for &rows in num_dst {
        first_rows.push(first_rows[first_rows.len() - 1] + narrow(rows));
    }
    first_rows
}

/// Appends the ends of sections of `num_pairs` pairs.
fn cut_sections(offset: &mut Vec<u32>, num_pairs: usize, section: usize) {
    if offset.is_empty() {
        offset.push(0);
    }
    let start = offset[offset.len() - 1];
    let ends = (1..=num_pairs.div_ceil(section)).map(|at| (at * section).min(num_pairs));
    offset.extend(ends.map(|end| start + narrow(end)));
}

impl LinkTargets {
    /// Turns positions among the targets of a type into rows of a model's output, which has
    /// `num_dst` rows of each type, the targets first.
    pub(crate) fn into_pairs(self, num_dst: &[usize]) -> Pairs {
        let Self {
            roots,
            mut pairs,
            meta: (from, to),
            node,
            shares,
            chances,
        } = self;
        let first_rows = first_rows(num_dst);
        pairs
            .src
            .iter_mut()
            .for_each(|row| *row += first_rows[from]);
        let of_dst = pairs
            .dst
            .iter_mut()
            .chain(&mut pairs.negative)
            .chain(&mut pairs.all);
        of_dst.for_each(|row| *row += first_rows[to]);
        let has_shares = !pairs.group_offset.is_empty() && pairs.all_offset.is_empty();
        let has_chances = !chances.is_empty();
        let mut first_number = 0;
        for (of, (numbers, &rows)) in node.into_iter().zip(num_dst).enumerate() {
            let distinct = numbers.iter().max().map_or(0, |most| most + 1);
            let end = pairs.node.len() + rows;
            pairs
                .node
                .extend(numbers.iter().map(|number| first_number + number));
            // Rows after the targets are the end of no pair.
            pairs.node.resize(end, u32::MAX);
            first_number += distinct;
            if has_shares {
                debug_assert!(
                    of != to || shares.len() == roots[of].len(),
                    "a share a target"
                );
                if of == to {
                    pairs.frequency.extend(&shares);
                }
                pairs.frequency.resize(end, 0.0);
            }
            if has_chances {
                if of == to {
                    pairs.chance.extend(&chances);
                }
                pairs.chance.resize(end, 0.0);
            }
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AUC compares a pair with its first negative, so a node must not come first more often.
    #[test]
    fn the_first_of_ranked_negatives_is_drawn_evenly() {
        const PAIRS: u64 = 20_000;
        const OWN: usize = 7;
        for (count, len) in [(20, 20), (16, 20), (1, 20), (30, 20)] {
            let mut first = vec![0_u64; len];
            for pair in 0..PAIRS {
                let drawn = ranked(hash_int(pair), count, len);
                let distinct: BTreeSet<usize> = drawn.iter().copied().collect();
                assert_eq!((drawn.len(), distinct.len()), (count.min(len), drawn.len()));
                // The pair's own end, if it is drawn, is no negative.
                let others = drawn.into_iter().filter(|&at| at != OWN || count == 1);
                first[others.into_iter().next().unwrap()] += 1;
            }
            // Six standard deviations around the mean.
            let (mean, own) = match count {
                1 => (PAIRS / 20, PAIRS / 20),
                _ => (PAIRS / 19, 0),
            };
            for (at, &times) in first.iter().enumerate() {
                let expected = if at == OWN { own } else { mean };
                let is_even = times.abs_diff(expected) < 200;
                assert!(is_even, "{count} of {len}: {first:?}");
            }
        }
        assert!(ranked(1, 3, 0).is_empty());
    }

    #[test]
    fn the_degree_of_a_src_node_counts_links_alone() {
        let pairs = PartPairs {
            src: [3, 0, 3, 0, 3].map(Row::from_index).to_vec(),
            label: Some(vec![1.0, 0.0, 0.0, 0.0, 1.0]),
            ..PartPairs::default()
        };
        let groups = BySrc::of(&pairs, &[0, 1, 2, 3, 4]);
        let degrees = [0, 1, 3].map(|node| groups.degree(Row::from_index(node)));
        assert_eq!(degrees, [0, 0, 2]);
        assert_eq!(
            groups.pairs_of(&[1, 0]),
            [0, 2, 4, 1, 3],
            "all are trained on"
        );
    }
}
