//! The loss of a batch of pairs, and its gradient with respect to embeddings and decoder.
//!
//! Scores are computed in the number type of the model. A pair's loss is computed from them in f64.
//! Blocks of pairs run in parallel and are added up in their order, so the bits do not depend on the
//! number of threads.

use std::borrow::Cow;
use std::ops::Range;

use rayon::prelude::*;

use super::decoder::{End, Weights, add_scaled};
use super::full::{ABSENT, FullSoftmax};
use super::pairs::{PairLoss, PairLossKind, Pairs};
use crate::kernel::Float;

/// Pairs of a block.
const BLOCK: usize = 256;

/// Blocks that are held in memory before they are added up.
const BLOCKS_HELD: usize = 32;

/// The loss of a batch of pairs and its gradient.
pub(crate) struct PairSlopes<F> {
    pub(crate) loss_sum: f64,
    /// `[num_rows, dim]`: of the embeddings.
    pub(crate) rows: Vec<F>,
    /// Of the decoder's parameters.
    pub(crate) parameters: Vec<F>,
}

/// Returns the loss sum, and the gradient of `loss sum / normalizer`.
pub(crate) fn loss_and_slope<F: Float>(
    weights: Weights<'_, F>,
    rows: &[F],
    pairs: &Pairs,
    normalizer: f64,
) -> PairSlopes<F> {
    let dim = weights.dim;
    let src = gather(rows, &pairs.src, dim);
    let ends = Ends {
        weights,
        pairs,
        normalizer,
        src: weights.ends(End::Src, &src),
        dst: weights.ends(End::Dst, rows),
    };
    let mut of_src = vec![F::ZERO; src.len()];
    let mut of_dst = vec![F::ZERO; rows.len()];
    let mut parameters = vec![F::ZERO; weights.values.len()];
    let mut loss_sum = 0.0;
    for section in ends.sections() {
        if let Some(position) = ends.full_positions(&section) {
            let (of_src, of_dst) = (&mut of_src, &mut of_dst);
            let section = (&section, &position[..]);
            loss_sum += ends.full(section, of_src, of_dst, &mut parameters);
            continue;
        }
        let blocks: Vec<Range<usize>> = section.blocks().collect();
        for held in blocks.chunks(BLOCKS_HELD) {
            let computed = held.par_iter().map(|block| ends.block(&section, block));
            let computed: Vec<BlockSlopes<F>> = computed.collect();
            for (block, of) in held.iter().zip(computed) {
                loss_sum += of.loss_sum;
                of_src[block.start * dim..block.end * dim].copy_from_slice(&of.src);
                scatter(&mut of_dst, &section.shared, &of.shared, dim);
                scatter(&mut of_dst, &of.own_rows, &of.own, dim);
                add_scaled(&mut parameters, F::ONE, &of.parameters);
            }
        }
    }
    let of_src = weights.ends_back(End::Src, (&src, &ends.src), of_src, &mut parameters);
    let mut of_rows = weights.ends_back(End::Dst, (rows, &ends.dst), of_dst, &mut parameters);
    scatter(&mut of_rows, &pairs.src, &of_src, dim);
    PairSlopes {
        loss_sum,
        rows: of_rows,
        parameters,
    }
}

/// Returns the range of some rows, if they follow each other.
fn range_of(which: &[u32]) -> Option<Range<usize>> {
    let first = *which.first()?;
    let follows = (first..).zip(which).all(|(row, &at)| row == at);
    follows.then(|| first as usize..first as usize + which.len())
}

/// Returns some rows; copies them unless they follow each other.
fn rows_of<'a, F: Float>(rows: &'a [F], which: &[u32], dim: usize) -> Cow<'a, [F]> {
    match range_of(which) {
        Some(range) => Cow::Borrowed(&rows[range.start * dim..range.end * dim]),
        None => Cow::Owned(gather(rows, which, dim)),
    }
}

/// Copies some rows.
fn gather<F: Float>(rows: &[F], which: &[u32], dim: usize) -> Vec<F> {
    let all = which.iter();
    let all = all.flat_map(|&row| &rows[row as usize * dim..(row as usize + 1) * dim]);
    all.copied().collect()
}

/// Adds rows to some rows of `all`.
fn scatter<F: Float>(all: &mut [F], which: &[u32], rows: &[F], dim: usize) {
    for (&row, values) in which.iter().zip(rows.chunks_exact(dim)) {
        add_scaled(&mut all[row as usize * dim..][..dim], F::ONE, values);
    }
}

/// The rows of both ends of a batch's pairs.
struct Ends<'a, F: Float> {
    weights: Weights<'a, F>,
    pairs: &'a Pairs,
    normalizer: f64,
    /// `[num_pairs, dim]`.
    src: Cow<'a, [F]>,
    /// `[num_rows, dim]`.
    dst: Cow<'a, [F]>,
}

/// Pairs that share negatives.
struct Section<'a, F: Float> {
    pairs: Range<usize>,
    /// Rows of the shared negatives.
    shared: Vec<u32>,
    /// Their rows of the decoder.
    dst: Cow<'a, [F]>,
    /// Expected number of each shared negative, without a pair's own negatives.
    expected: Vec<f64>,
    /// Number of pairs that a section takes a pair's negatives from, which is 0 without sections.
    others: f64,
}

impl<F: Float> Section<'_, F> {
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let end = self.pairs.end;
        let starts = self.pairs.clone().step_by(BLOCK);
        starts.map(move |start| start..end.min(start + BLOCK))
    }
}

/// The loss of a block of pairs and its gradient.
struct BlockSlopes<F> {
    loss_sum: f64,
    /// `[pairs, dim]`.
    src: Vec<F>,
    /// `[shared, dim]`.
    shared: Vec<F>,
    /// The rows of the pairs' dst nodes and own negatives, pair after pair.
    own_rows: Vec<u32>,
    own: Vec<F>,
    parameters: Vec<F>,
}

impl<F: Float> Ends<'_, F> {
    fn sections(&self) -> Vec<Section<'_, F>> {
        let pairs = self.pairs;
        let whole = vec![
            0,
            u32::try_from(pairs.len()).expect("pairs are counted in 32 bits"),
        ];
        let is_cut = !pairs.group_offset.is_empty();
        let offset = if is_cut { &pairs.group_offset } else { &whole };
        let section = |(at, ends): (usize, &[u32])| {
            let range = ends[0] as usize..ends[1] as usize;
            let all = pairs.all_offset.get(at..at + 2);
            let all = all.map(|ends| &pairs.all[ends[0] as usize..ends[1] as usize]);
            let (shared, others) = match all {
                Some(all) => (all.to_vec(), 0.0),
                None if is_cut => {
                    let others = count(range.len().saturating_sub(1));
                    (pairs.dst[range.clone()].to_vec(), others)
                }
                None => (Vec::new(), 0.0),
            };
            let expected = shared.iter().map(|&row| match all {
                Some(_) => 1.0,
                None => self.in_section(others, row),
            });
            Section {
                expected: expected.collect(),
                dst: rows_of(&self.dst, &shared, self.weights.dim),
                pairs: range,
                shared,
                others,
            }
        };
        offset.windows(2).enumerate().map(section).collect()
    }

    /// Returns the position of each node among the shared negatives of a section, or [`ABSENT`], if
    /// the section's loss is a softmax over all of these, with a decoder whose scores are products.
    /// None if it is not, or if a node has several rows.
    fn full_positions(&self, section: &Section<'_, F>) -> Option<Vec<u32>> {
        let pairs = self.pairs;
        let draws_none = |pair: usize| pairs.drawn.get(pair).is_none_or(|&drawn| drawn <= 0.0);
        let has_none = |pair| pairs.own_negatives(pair).is_empty() && draws_none(pair);
        let is_full = pairs.loss.kind == PairLossKind::Softmax
            && !pairs.all_offset.is_empty()
            && self.weights.decoder.is_product()
            && section.pairs.clone().all(has_none);
        if !is_full {
            return None;
        }
        let known = pairs.node.iter().filter(|&&node| node != u32::MAX);
        let num_nodes = known.max().map_or(0, |&most| most as usize + 1);
        let mut position = vec![ABSENT; num_nodes];
        for (at, &row) in (0..).zip(&section.shared) {
            let place = &mut position[pairs.node[row as usize] as usize];
            if *place != ABSENT {
                return None;
            }
            *place = at;
        }
        let is_shared = |pair: usize| {
            let dst = pairs.dst[pair];
            let at = position[pairs.node[dst as usize] as usize];
            at == ABSENT || section.shared[at as usize] == dst
        };
        section.pairs.clone().all(is_shared).then_some(position)
    }

    /// Returns the loss of a section with [positions](Self::full_positions), and adds its gradient.
    fn full(
        &self,
        (section, position): (&Section<'_, F>, &[u32]),
        of_src: &mut [F],
        of_dst: &mut [F],
        parameters: &mut [F],
    ) -> f64 {
        let (pairs, weights, dim) = (self.pairs, self.weights, self.weights.dim);
        let full = FullSoftmax {
            weights,
            pairs,
            normalizer: self.normalizer,
            all: &section.dst,
            position,
        };
        let rows = section.pairs.start * dim..section.pairs.end * dim;
        let each = || section.pairs.clone().into_par_iter();
        let own = each().map(|pair| {
            let dst = self.dst_row(pairs.dst[pair]);
            weights.join(self.src_row(pair), dst)
        });
        let own: Vec<F> = own.collect();
        let given = (&self.src[rows.clone()], &own[..]);
        let slopes = match range_of(&section.shared) {
            Some(all) => {
                let of_all = &mut of_dst[all.start * dim..all.end * dim];
                full.slopes(&section.pairs, given, of_all)
            }
            None => {
                let mut of_all = vec![F::ZERO; section.dst.len()];
                let slopes = full.slopes(&section.pairs, given, &mut of_all);
                scatter(of_dst, &section.shared, &of_all, dim);
                slopes
            }
        };
        of_src[rows].copy_from_slice(&slopes.src);
        for (pair, slope) in section.pairs.clone().zip(slopes.own) {
            let dst = pairs.dst[pair];
            let ends = (self.src_row(pair), self.dst_row(dst));
            let of_pair = (
                &mut of_src[pair * dim..(pair + 1) * dim],
                &mut of_dst[dst as usize * dim..(dst as usize + 1) * dim],
            );
            weights.join_back(slope, ends, of_pair, parameters);
        }
        slopes.loss_sum
    }

    /// Returns how often a row's node is expected at the ends of a section's other pairs.
    fn in_section(&self, others: f64, row: u32) -> f64 {
        let frequency = self.pairs.frequency.get(row as usize);
        others * frequency.map_or(0.0, |&share| f64::from(share))
    }

    fn src_row(&self, pair: usize) -> &[F] {
        &self.src[pair * self.weights.dim..][..self.weights.dim]
    }

    fn dst_row(&self, row: u32) -> &[F] {
        &self.dst[row as usize * self.weights.dim..][..self.weights.dim]
    }

    fn block(&self, section: &Section<'_, F>, block: &Range<usize>) -> BlockSlopes<F> {
        let (dim, weights) = (self.weights.dim, self.weights);
        let src = &self.src[block.start * dim..block.end * dim];
        let mut scores = weights.join_all(src, &section.dst);
        let num_shared = section.shared.len();
        let mut out = BlockSlopes {
            loss_sum: 0.0,
            src: Vec::new(),
            shared: Vec::new(),
            own_rows: Vec::new(),
            own: Vec::new(),
            parameters: vec![F::ZERO; weights.values.len()],
        };
        let mut of_own = Vec::new();
        for (at, pair) in block.clone().enumerate() {
            let shared = &mut scores[at * num_shared..(at + 1) * num_shared];
            out.loss_sum += self.pair(section, pair, shared, &mut of_own);
        }
        (out.src, out.shared) =
            weights.join_all_back(&scores, (src, &section.dst), &mut out.parameters);
        let mut slopes = of_own.into_iter();
        for (at, pair) in block.clone().enumerate() {
            let of_src = &mut out.src[at * dim..(at + 1) * dim];
            let own = std::iter::once(self.pairs.dst[pair]);
            for row in own.chain(self.pairs.own_negatives(pair).iter().copied()) {
                let slope = slopes.next().expect("a slope for each own row");
                let start = out.own.len();
                out.own.resize(start + dim, F::ZERO);
                let ends = (self.src_row(pair), self.dst_row(row));
                let of_dst = &mut out.own[start..];
                weights.join_back(slope, ends, (&mut *of_src, of_dst), &mut out.parameters);
                out.own_rows.push(row);
            }
        }
        out
    }

    /// Returns the loss of a pair. Replaces the scores of shared negatives by the gradient of the
    /// loss, and appends the gradients of the pair's own score and of its own negatives.
    fn pair(
        &self,
        section: &Section<'_, F>,
        pair: usize,
        shared: &mut [F],
        of_own: &mut Vec<F>,
    ) -> f64 {
        let (pairs, src) = (self.pairs, self.src_row(pair));
        let (own, hard) = (pairs.own_negatives(pair), pairs.hard(pair));
        let factor = 1.0 / f64::from(pairs.loss.temperature);
        let weight = pairs.weight(pair);
        let score = self.weights.join(src, self.dst_row(pairs.dst[pair]));
        let positive = score.to_f64() * factor;
        let scale = weight * factor / self.normalizer;
        if !pairs.exists(pair) {
            let slope = sigmoid(positive);
            shared.fill(F::ZERO);
            of_own.push(F::from_f64(slope * scale));
            of_own.resize(of_own.len() + own.len(), F::ZERO);
            return weight * softplus(positive);
        }
        let is_softmax = pairs.loss.kind == PairLossKind::Softmax;
        let logit = |score: F, row: u32, expected: f64| {
            if pairs.is_hit(pair, row) {
                return f64::NEG_INFINITY;
            }
            let score = score.to_f64() * factor;
            if !is_softmax {
                return score;
            }
            let expected = expected + pairs.drawn(pair, row);
            let node = pairs.node[row as usize];
            let is_node = |row: &&u32| pairs.node[**row as usize] == node;
            score - (expected + count(hard.iter().filter(is_node).count())).ln()
        };
        let negatives = shared.iter().zip(&section.shared).zip(&section.expected);
        let mut logits: Vec<f64> = negatives
            .map(|((&score, &row), &expected)| logit(score, row, expected))
            .collect();
        logits.extend(own.iter().map(|&row| {
            let score = self.weights.join(src, self.dst_row(row));
            logit(score, row, self.in_section(section.others, row))
        }));
        let (loss, slope) = slopes(pairs.loss, positive, &mut logits);
        of_own.push(F::from_f64(slope * scale));
        let (of_shared, rest) = logits.split_at(shared.len());
        let both = shared.iter_mut().zip(of_shared);
        both.for_each(|(out, slope)| *out = F::from_f64(slope * scale));
        of_own.extend(rest.iter().map(|slope| F::from_f64(slope * scale)));
        weight * loss
    }
}

/// Returns the loss of a pair and its derivative by the pair's logit, and replaces the logits of
/// the negatives by the derivatives by them. A logit of minus infinity is no negative.
fn slopes(loss: PairLoss, positive: f64, negatives: &mut [f64]) -> (f64, f64) {
    if loss.kind == PairLossKind::Softmax {
        let most = negatives.iter().copied().fold(positive, f64::max);
        let own = (positive - most).exp();
        negatives.iter_mut().for_each(|x| *x = (*x - most).exp());
        let total = own + negatives.iter().sum::<f64>();
        negatives.iter_mut().for_each(|x| *x /= total);
        return (total.ln() + most - positive, own / total - 1.0);
    }
    let is_negative = |x: &&f64| **x != f64::NEG_INFINITY;
    let share = 1.0 / count(negatives.iter().filter(is_negative).count().max(1));
    let (mut sum, mut of_positive) = (0.0, 0.0);
    for x in negatives.iter_mut() {
        let (value, slope) = match loss.kind {
            PairLossKind::BinaryCrossEntropy => (softplus(*x), sigmoid(*x)),
            PairLossKind::Bpr => (softplus(*x - positive), sigmoid(*x - positive)),
            PairLossKind::Softmax | PairLossKind::Margin => {
                let missing = f64::from(loss.margin) + *x - positive;
                let misses = if missing > 0.0 { 1.0 } else { 0.0 };
                (missing.max(0.0), misses)
            }
        };
        sum += value * share;
        *x = slope * share;
        of_positive -= *x;
    }
    if loss.kind == PairLossKind::BinaryCrossEntropy {
        return (sum + softplus(-positive), -sigmoid(-positive));
    }
    (sum, of_positive)
}

/// Returns `ln(1 + exp(x))`, which neither overflows nor loses small values.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn count(of: usize) -> f64 {
    of as f64
}
