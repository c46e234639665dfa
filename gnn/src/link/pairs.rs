//! The wanted outputs of a batch of pairs: their ends, their negatives, and their loss.

use serde::{Deserialize, Serialize};

use crate::GnnError;

/// A loss of a pair and its negatives, which are pairs of the same src node with other dst nodes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PairLossKind {
    /// Cross-entropy of the pair among itself and its negatives. The score of a negative is lowered
    /// by the logarithm of the number of times that the pair expects this node among its
    /// negatives, so that the sum over negatives estimates the sum over all nodes without bias.
    #[default]
    Softmax,
    /// Binary cross-entropy of the pair, plus the mean of that of its negatives.
    BinaryCrossEntropy,
    /// Bayesian personalised ranking: the mean of `-ln sigmoid(score - score of the negative)`
    /// (Rendle et al., 2009).
    Bpr,
    /// The mean of `max(0, margin - score + score of the negative)`.
    Margin,
}

/// A loss with its constants.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct PairLoss {
    /// The loss.
    pub kind: PairLossKind,
    /// Divisor of every score.
    pub temperature: f32,
    /// Wanted distance between the scores of a pair and of its negatives, for
    /// [`PairLossKind::Margin`].
    pub margin: f32,
}

impl Default for PairLoss {
    fn default() -> PairLoss {
        PairLoss {
            kind: PairLossKind::default(),
            temperature: 1.0,
            margin: 1.0,
        }
    }
}

impl PairLossKind {
    /// Returns the name in job files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PairLossKind::Softmax => "softmax",
            PairLossKind::BinaryCrossEntropy => "binary_cross_entropy",
            PairLossKind::Bpr => "bpr",
            PairLossKind::Margin => "margin",
        }
    }
}

/// Pairs of the rows that a model computes, with their negatives.
///
/// A pair never has its own ends among its negatives: such hits are left out by the numbers of the
/// nodes.
///
/// # Shapes
///
/// Rows are those of the targets: of a typed graph, the targets of the first type, then those of the
/// next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pairs {
    /// The loss.
    pub loss: PairLoss,
    /// `[num_rows]`: number of each row's node; two rows of one node have one number.
    pub node: Vec<u32>,
    /// `[num_pairs]`: row of the src node.
    pub src: Vec<u32>,
    /// `[num_pairs]`: row of the dst node.
    pub dst: Vec<u32>,
    /// `[num_pairs]`: factor of the pair's loss; empty: 1.
    pub weight: Vec<f32>,
    /// `[num_pairs]`: false for a pair that is known not to exist; empty: all exist. A pair that
    /// does not exist has no negatives and is none; only binary cross-entropy allows it.
    pub exists: Vec<bool>,
    /// Sections of the pairs, ascending, the first from 0; the dst nodes of a section's pairs are
    /// negatives of each other's pairs. Empty: there are no such negatives.
    pub group_offset: Vec<u32>,
    /// `[num_pairs + 1]`: where each pair's own negatives start in `negative`; empty: none.
    pub negative_offset: Vec<u32>,
    /// Rows of the pairs' own negatives.
    pub negative: Vec<u32>,
    /// `[num_pairs]`: how many of the pair's own negatives, the last ones, are listed and not drawn;
    /// empty: none.
    pub num_hard: Vec<u32>,
    /// `[num_rows]`: how often another pair of a section is expected to end at the row's node; empty
    /// without sections.
    pub frequency: Vec<f32>,
    /// `[num_pairs]`: how often a node is expected among the pair's drawn own negatives; empty: 0.
    /// With `chance`, the number of draws.
    pub drawn: Vec<f32>,
    /// `[num_rows]`: how likely a draw is the row's node, where draws are not uniform; empty: they are,
    /// and `drawn` holds for every node.
    pub chance: Vec<f32>,
    /// Where the rows of each section start in `all`; empty: the negatives that the pairs of a
    /// section share are their dst nodes.
    pub all_offset: Vec<u32>,
    /// Rows that all pairs of a section have as negatives, each with an expected number of 1: for a
    /// softmax over all nodes.
    pub all: Vec<u32>,
}

impl Pairs {
    /// Returns the number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.src.len()
    }

    /// Tells whether there are no pairs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.src.is_empty()
    }

    /// Tells whether a pair exists.
    #[must_use]
    pub fn exists(&self, pair: usize) -> bool {
        self.exists.get(pair).is_none_or(|&exists| exists)
    }

    /// Returns the factor of a pair's loss.
    #[must_use]
    pub fn weight(&self, pair: usize) -> f64 {
        self.weight.get(pair).map_or(1.0, |&weight| weight.into())
    }

    /// Returns the rows of a pair's own negatives.
    #[must_use]
    pub fn own_negatives(&self, pair: usize) -> &[u32] {
        match self.negative_offset.get(pair..pair + 2) {
            Some(ends) => &self.negative[ends[0] as usize..ends[1] as usize],
            None => &[],
        }
    }

    /// Returns the rows of a pair's listed negatives.
    pub(crate) fn hard(&self, pair: usize) -> &[u32] {
        let own = self.own_negatives(pair);
        let num_hard = self.num_hard.get(pair).copied().unwrap_or(0);
        &own[own.len() - num_hard as usize..]
    }

    /// Returns how often a row's node is expected among a pair's drawn own negatives.
    pub(crate) fn drawn(&self, pair: usize, row: u32) -> f64 {
        let chance = self.chance.get(row as usize);
        let chance = chance.map_or(1.0, |&chance| f64::from(chance));
        self.drawn
            .get(pair)
            .map_or(0.0, |&drawn| f64::from(drawn) * chance)
    }

    /// Tells whether a row is of a node that cannot be a negative of a pair: an end of it.
    ///
    /// # Panics
    ///
    /// If there is no such row or pair.
    #[must_use]
    pub fn is_hit(&self, pair: usize, row: u32) -> bool {
        let node = self.node[row as usize];
        let end = |row: u32| self.node[row as usize];
        node == end(self.dst[pair]) || node == end(self.src[pair])
    }

    /// Returns the approximate memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let words = [
            &self.node,
            &self.src,
            &self.dst,
            &self.group_offset,
            &self.negative_offset,
            &self.negative,
            &self.num_hard,
            &self.all,
            &self.all_offset,
        ];
        let words: usize = words.into_iter().map(Vec::len).sum();
        let floats = [&self.weight, &self.frequency, &self.drawn, &self.chance];
        let floats: usize = floats.into_iter().map(Vec::len).sum();
        4 * (words + floats) + self.exists.len()
    }

    /// Checks that columns fit each other and `rows` rows.
    pub(crate) fn check(&self, rows: usize) -> Result<(), GnnError> {
        let num_pairs = self.len();
        let may = |len: usize| len == 0 || len == num_pairs;
        let within = |all: &[u32]| all.iter().all(|&row| (row as usize) < rows);
        let ascends = |offset: &[u32], len: usize| {
            let ends = (offset.first(), offset.last());
            offset.windows(2).all(|pair| pair[0] <= pair[1])
                && ends == (Some(&0), u32::try_from(len).ok().as_ref())
        };
        let lens = [
            self.exists.len(),
            self.weight.len(),
            self.num_hard.len(),
            self.drawn.len(),
        ];
        let hard_fits = |pair: usize| {
            let num_hard = self.num_hard.get(pair).copied().unwrap_or(0);
            num_hard as usize <= self.own_negatives(pair).len()
        };
        let is_never_drawn = |pair: usize| {
            let own = self.own_negatives(pair);
            let num_hard = self.num_hard.get(pair).copied().unwrap_or(0);
            let drawn = &own[..own.len().saturating_sub(num_hard as usize)];
            drawn.iter().any(|&row| self.drawn(pair, row) <= 0.0)
        };
        let problem = if self.dst.len() != num_pairs || !lens.into_iter().all(may) {
            format!("columns are not all as long as the {num_pairs} pairs")
        } else if self.node.len() != rows {
            format!("{} node numbers for {rows} rows", self.node.len())
        } else if !self.chance.is_empty() && self.chance.len() != rows {
            format!("{} chances for {rows} rows", self.chance.len())
        } else if ![&self.src, &self.dst, &self.negative, &self.all]
            .into_iter()
            .all(|rows_of| within(rows_of))
        {
            format!("an end of a pair is not below the {rows} rows")
        } else if !self.group_offset.is_empty()
            && (!ascends(&self.group_offset, num_pairs)
                || (self.all_offset.is_empty() && self.frequency.len() != rows))
        {
            "sections do not fit the pairs, or have no frequencies".to_owned()
        } else if !self.all_offset.is_empty()
            && (self.all_offset.len() != self.group_offset.len()
                || !ascends(&self.all_offset, self.all.len()))
        {
            "negatives of all pairs do not fit the sections".to_owned()
        } else if !self.negative_offset.is_empty()
            && (self.negative_offset.len() != num_pairs + 1
                || !ascends(&self.negative_offset, self.negative.len()))
        {
            "negatives do not fit the pairs".to_owned()
        } else if self.all_offset.is_empty()
            && self
                .group_offset
                .windows(2)
                .any(|ends| ends[1] - ends[0] > 1)
            && (self.dst.iter()).any(|&row| self.frequency[row as usize] <= 0.0)
        {
            "the node at the end of a pair has a frequency of 0".to_owned()
        } else if (0..num_pairs).any(is_never_drawn) {
            "drawn negatives are expected 0 times".to_owned()
        } else if !(0..num_pairs).all(hard_fits) {
            "a pair has more listed negatives than negatives".to_owned()
        } else if self.loss.kind != PairLossKind::BinaryCrossEntropy
            && self.exists.iter().any(|&exists| !exists)
        {
            "pairs that do not exist need binary cross-entropy".to_owned()
        } else {
            return Ok(());
        };
        Err(GnnError::Labels { problem })
    }
}
