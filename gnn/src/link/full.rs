//! The softmax over all nodes: the pairs of a src node share its scores with all of them.
//!
//! The scores of some src nodes with all dst nodes are computed in tiles. A tile is read while it is in
//! the cache: for the sum of the exponentials and the gradient of the src nodes. When all sums are
//! known, the exponentials give the gradient of the dst nodes. At most [`HELD_BYTES`] of exponentials
//! are in memory. Tiles depend on the shapes alone, and are added up in their order, so the bits do
//! not depend on the number of threads.

use std::ops::Range;

use rayon::prelude::*;

use super::decoder::{Weights, add_scaled};
use super::pairs::Pairs;
use crate::kernel::Float;
use crate::kernel::product::{Matrix, multiply};

/// Largest number of src nodes whose exponentials are held.
const HELD_MAX: usize = 256;

/// Smallest number of src nodes whose exponentials are held.
const HELD_MIN: usize = 16;

/// Memory of the exponentials that are held, in bytes, unless [`HELD_MIN`] src nodes take more.
const HELD_BYTES: usize = 64 << 20;

/// Dst nodes of a tile.
const TILE: usize = 512;

/// Sums that are added up side by side, so that the compiler uses vectors.
const LANES: usize = 16;

/// Position of a node that is not among all dst nodes.
pub(super) const ABSENT: u32 = u32::MAX;

/// A src node with its pairs.
struct SrcNode {
    pairs: Vec<usize>,
    /// Position of the src node itself among all dst nodes, which is left out.
    own: Option<usize>,
}

/// A softmax over all of some dst nodes.
pub(super) struct FullSoftmax<'a, F> {
    pub(super) weights: Weights<'a, F>,
    pub(super) pairs: &'a Pairs,
    pub(super) normalizer: f64,
    /// `[num_all, dim]`: the rows of all dst nodes.
    pub(super) all: &'a [F],
    /// By number of a node, its position among all dst nodes, or [`ABSENT`].
    pub(super) position: &'a [u32],
}

/// The loss of some pairs and its gradient, but for the dst rows of the pairs themselves.
pub(super) struct FullSlopes<F> {
    pub(super) loss_sum: f64,
    /// `[pairs, dim]`: the gradient of a src row is at the first pair of its node.
    pub(super) src: Vec<F>,
    /// `[pairs]`: of the pairs' own scores.
    pub(super) own: Vec<F>,
}

/// The sums of a tile.
struct Tile<F> {
    /// `[src nodes]`: the largest logit.
    most: Vec<F>,
    /// `[src nodes]`: sum of `exp(logit - most)`.
    sum: Vec<F>,
    /// `[src nodes, dim]`: sum of `exp(logit - most)` times dst rows.
    src: Vec<F>,
}

/// The loss of the pairs of a src node and its gradient.
struct NodeSlopes<F> {
    loss_sum: f64,
    /// `[dim]`: of the src row.
    src: Vec<F>,
    /// By pair: of its own score.
    own: Vec<F>,
    /// By tile: derivative of the loss by a logit over `exp(logit - most)`.
    shares: Vec<F>,
}

impl<F: Float> FullSoftmax<'_, F> {
    /// Computes the pairs of a section, and adds the gradient of all dst rows to `of_all`. `src` has
    /// the src row of each pair, and `own` the pairs' own scores.
    pub(super) fn slopes(
        &self,
        pairs: &Range<usize>,
        (src, own): (&[F], &[F]),
        of_all: &mut [F],
    ) -> FullSlopes<F> {
        let mut out = FullSlopes {
            loss_sum: 0.0,
            src: vec![F::ZERO; src.len()],
            own: vec![F::ZERO; pairs.len()],
        };
        let nodes = self.src_nodes(pairs);
        let num_all = self.all.len() / self.weights.dim;
        let held = HELD_BYTES / (size_of::<F>() * num_all.max(1));
        let held = held.clamp(HELD_MIN, HELD_MAX).min(nodes.len().max(1));
        let mut exponentials = vec![F::ZERO; held * num_all];
        for nodes in nodes.chunks(held) {
            let exponentials = &mut exponentials[..nodes.len() * num_all];
            let given = (pairs.start, src, own);
            self.held(nodes, given, exponentials, (&mut out, of_all));
        }
        out
    }

    /// Groups pairs by their src rows, in the order of first appearance.
    fn src_nodes(&self, pairs: &Range<usize>) -> Vec<SrcNode> {
        let src = &self.pairs.src;
        let most = src[pairs.clone()].iter().max();
        let mut place = vec![ABSENT; most.map_or(0, |&most| most as usize + 1)];
        let mut nodes: Vec<SrcNode> = Vec::new();
        for pair in pairs.clone() {
            let at = &mut place[src[pair] as usize];
            if *at == ABSENT {
                *at = u32::try_from(nodes.len()).expect("pairs are counted in 32 bits");
                nodes.push(SrcNode {
                    pairs: Vec::new(),
                    own: self.place(src[pair]),
                });
            }
            nodes[*at as usize].pairs.push(pair);
        }
        nodes
    }

    /// Returns the position of a row's node among all dst nodes.
    fn place(&self, row: u32) -> Option<usize> {
        let at = self.position[self.pairs.node[row as usize] as usize];
        (at != ABSENT).then_some(at as usize)
    }

    fn factor(&self) -> f64 {
        1.0 / f64::from(self.pairs.loss.temperature)
    }

    /// Computes the pairs of some src nodes.
    fn held(
        &self,
        nodes: &[SrcNode],
        (first, src, own): (usize, &[F], &[F]),
        exponentials: &mut [F],
        (out, of_all): (&mut FullSlopes<F>, &mut [F]),
    ) {
        let dim = self.weights.dim;
        let factor = F::from_f64(self.factor());
        let rows = nodes.iter().flat_map(|node| {
            let start = (node.pairs[0] - first) * dim;
            src[start..start + dim].iter()
        });
        let scaled: Vec<F> = rows.map(|&x| x * factor).collect();
        let tiles = exponentials.par_chunks_mut(TILE * nodes.len());
        let tiles = tiles.zip(self.all.par_chunks(TILE * dim)).enumerate();
        let tiles = tiles.map(|(at, (exponentials, dst))| {
            let excluded = excluded(nodes, at * TILE, dst.len() / dim);
            tile(dim, (&scaled, dst), exponentials, &excluded)
        });
        let tiles: Vec<Tile<F>> = tiles.collect();
        let slopes = nodes.par_iter().enumerate();
        let slopes = slopes.map(|(at, node)| self.node((at, node), (first, own), &tiles));
        let slopes: Vec<NodeSlopes<F>> = slopes.collect();
        for (node, slopes) in nodes.iter().zip(&slopes) {
            out.loss_sum += slopes.loss_sum;
            let start = (node.pairs[0] - first) * dim;
            out.src[start..start + dim].copy_from_slice(&slopes.src);
            for (&pair, &slope) in node.pairs.iter().zip(&slopes.own) {
                out.own[pair - first] = slope;
            }
        }
        let all = of_all.par_chunks_mut(TILE * dim);
        let tiles = all.zip(exponentials.par_chunks(TILE * nodes.len()));
        tiles.enumerate().for_each(|(at, (all, exponentials))| {
            let rows = scaled.chunks_exact(dim).zip(&slopes);
            let shares = rows.flat_map(|(row, slopes)| {
                let share = slopes.shares[at];
                row.iter().map(move |&x| x * share)
            });
            let shares: Vec<F> = shares.collect();
            let by_dst = Matrix::new(exponentials, all.len() / dim).transposed();
            multiply(by_dst, Matrix::new(&shares, dim), all, true);
        });
    }

    /// Computes the pairs of a src node from the sums of the tiles.
    fn node(
        &self,
        (at, node): (usize, &SrcNode),
        (first, own): (usize, &[F]),
        tiles: &[Tile<F>],
    ) -> NodeSlopes<F> {
        let (dim, factor) = (self.weights.dim, self.factor());
        // A pair whose dst node is not among all nodes has a logit of its own.
        let positive = |pair: usize| own[pair - first].to_f64() * factor;
        let most = tiles.iter().map(|tile| tile.most[at].to_f64());
        // Lowest, not infinite, if all dst nodes are left out: the sum is 0 then.
        let most = most.fold(f64::MIN, f64::max);
        let scales = tiles
            .iter()
            .map(|tile| (tile.most[at].to_f64() - most).exp());
        let scales: Vec<f64> = scales.collect();
        let sums = tiles.iter().zip(&scales);
        let sum: f64 = sums
            .map(|(tile, scale)| tile.sum[at].to_f64() * scale)
            .sum();
        let (mut loss_sum, mut slope) = (0.0, 0.0);
        let mut of_own = Vec::with_capacity(node.pairs.len());
        for &pair in &node.pairs {
            let (weight, logit) = (self.pairs.weight(pair), positive(pair));
            let place = self.place(self.pairs.dst[pair]);
            let is_apart = place.is_none() || place == node.own;
            // The largest logit of the pair, so that its own sum is never 0.
            let largest = if is_apart { most.max(logit) } else { most };
            let apart = if is_apart {
                (logit - largest).exp()
            } else {
                0.0
            };
            let scale = (most - largest).exp();
            let total = sum * scale + apart;
            let scaled = weight / self.normalizer;
            loss_sum += weight * (total.ln() + largest - logit);
            slope += scaled * scale / total;
            of_own.push(F::from_f64(scaled * factor * (apart / total - 1.0)));
        }
        let mut src = vec![F::ZERO; dim];
        for (tile, scale) in tiles.iter().zip(&scales) {
            let row = &tile.src[at * dim..(at + 1) * dim];
            add_scaled(&mut src, F::from_f64(slope * scale * factor), row);
        }
        let shares = scales.iter().map(|scale| F::from_f64(slope * scale));
        NodeSlopes {
            loss_sum,
            src,
            own: of_own,
            shares: shares.collect(),
        }
    }
}

/// Returns the src nodes that are themselves among some dst nodes, each with its place there.
fn excluded(nodes: &[SrcNode], start: usize, len: usize) -> Vec<(usize, usize)> {
    let places = nodes.iter().enumerate();
    let places = places.filter_map(|(at, node)| Some((at, node.own?.checked_sub(start)?)));
    places.filter(|&(_, place)| place < len).collect()
}

/// Computes a tile and its `exp(logit - most)`, `[src nodes, dst nodes]`.
fn tile<F: Float>(
    dim: usize,
    (src, dst): (&[F], &[F]),
    exponentials: &mut [F],
    excluded: &[(usize, usize)],
) -> Tile<F> {
    let (num_src, num_dst) = (src.len() / dim, dst.len() / dim);
    let by_dst = Matrix::new(dst, dim).transposed();
    multiply(Matrix::new(src, dim), by_dst, exponentials, false);
    for &(node, place) in excluded {
        exponentials[node * num_dst + place] = F::NEG_INFINITY;
    }
    let mut tile = Tile {
        most: Vec::with_capacity(num_src),
        sum: Vec::with_capacity(num_src),
        src: vec![F::ZERO; src.len()],
    };
    F::run(
        #[inline(always)]
        || {
            for row in exponentials.chunks_exact_mut(num_dst) {
                let (most, sum) = exponentiate(row);
                tile.most.push(most);
                tile.sum.push(sum);
            }
        },
    );
    let by_src = Matrix::new(exponentials, num_dst);
    multiply(by_src, Matrix::new(dst, dim), &mut tile.src, false);
    tile
}

/// Replaces logits by the exponentials of their distances to the largest one; returns this one and
/// the sum of the exponentials.
#[inline(always)]
fn exponentiate<F: Float>(row: &mut [F]) -> (F, F) {
    let mut most = [F::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (most, &x) in most.iter_mut().zip(chunk) {
            *most = larger(*most, x);
        }
    }
    let most = most.iter().chain(rest).copied();
    let most = most.fold(F::NEG_INFINITY, larger);
    if most == F::NEG_INFINITY {
        row.fill(F::ZERO);
        return (most, F::ZERO);
    }
    let mut sums = [F::ZERO; LANES];
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *x = (*x - most).exp();
            *sum += *x;
        }
    }
    let mut sum: F = sums.into_iter().sum();
    for x in rest {
        *x = (*x - most).exp();
        sum += *x;
    }
    (most, sum)
}

#[inline(always)]
fn larger<F: Float>(a: F, b: F) -> F {
    if a > b { a } else { b }
}
