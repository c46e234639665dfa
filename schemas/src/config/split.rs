//! The splits of the node table as written: a column, or shares.

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::columns::Split;
use crate::ids::hash_int;

/// Keeps the draw of splits apart from other draws with the same seed: "split" in ASCII.
const SALT: u64 = 0x0073_706c_6974;

/// Greatest error of the sum of shares: sums of decimal fractions are not exact.
const SUM_TOLERANCE: f64 = 1e-9;

/// `split` as written: a column's name, or shares.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum SplitSpec {
    /// The column that holds the splits.
    Column(String),
    /// Shares of the nodes, drawn by a hash.
    Shares(SplitShares),
}

/// `split = { train, val, test }` as written: shares of the nodes that have a label, or of all
/// nodes where the table has no labels. The nodes beyond the sum of the shares are in no split.
///
/// A node's split is a function of seed and id, so it does not depend on the order of rows, the
/// number of workers or other nodes. With `h` of 64 bits,
///
/// ```text
/// h = hash_int(hash(id) ^ hash_int(seed ^ 0x73706c6974))
/// ```
///
/// where `hash` is [`Ids::hash`](crate::Ids::hash) and `hash_int` is
/// [`hash_int`](crate::hash_int()), the draw is `u = floor(h / 2^11) / 2^53`: the node is in
/// `train` if `u < train`, else in `val` if `u < train + val`, else in `test` if
/// `u < train + val + test`.
///
/// # Examples
///
/// ```
/// use schemas::{IdType, Ids, Split, SplitShares};
///
/// let shares = SplitShares { train: 0.8, val: 0.1, test: 0.1, seed: Some(7) };
/// let ids = Ids::from_keys(IdType::Int64, (0..10_000).collect());
/// let splits: Vec<Split> = (0..10_000).map(|i| shares.draw(ids.hash(i))).collect();
/// let train = splits.iter().filter(|split| **split == Split::Train).count();
/// assert!((7_800..8_200).contains(&train));
/// assert!(!splits.contains(&Split::None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitShares {
    /// Share of the nodes to train on.
    pub train: f64,
    /// Share of the nodes that choose the best epoch.
    #[serde(default)]
    pub val: f64,
    /// Share of the nodes that measure the result.
    #[serde(default)]
    pub test: f64,
    /// Seed of the draw. Default: the seed of the job.
    #[serde(default)]
    pub seed: Option<u64>,
}

impl SplitShares {
    /// Returns the split of a node with a label; `id_hash` is [`Ids::hash`](crate::Ids::hash).
    pub fn draw(&self, id_hash: u64) -> Split {
        let seed = self.seed.unwrap_or_default();
        let hash = hash_int(id_hash ^ hash_int(seed ^ SALT));
        let draw = (hash >> 11) as f64 / (1u64 << 53) as f64;
        let whole = self.sum() >= 1.0 - SUM_TOLERANCE;
        if draw < self.train {
            Split::Train
        } else if draw < self.train + self.val {
            Split::Val
        } else if draw < self.sum() {
            Split::Test
        } else if whole {
            self.last()
        } else {
            Split::None
        }
    }

    /// Returns how many of `count` things are in test; in test or val; in test, val or train, if the
    /// latest ones are in test, and those before in val.
    pub fn latest(&self, count: u64) -> [u64; 3] {
        let later = self.test + self.val;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a count is between 0 and the count"
        )]
        let of = |share: f64| (share.min(1.0) * count as f64).round() as u64;
        [self.test, later, self.sum()].map(|share| of(share).min(count))
    }

    /// Returns which share is not allowed, and which shares are.
    pub(crate) fn problem(&self) -> Option<String> {
        let shares = [
            ("train", self.train),
            ("val", self.val),
            ("test", self.test),
        ];
        let wrong = |share: &f64| !(0.0..=1.0).contains(share);
        if let Some((name, share)) = shares.into_iter().find(|(_, share)| wrong(share)) {
            return Some(format!(
                "`{name}` is {share}; allowed are shares from 0 to 1"
            ));
        }
        let sum = self.sum();
        (sum > 1.0 + SUM_TOLERANCE)
            .then(|| format!("the shares sum to {sum}; allowed is at most 1"))
    }

    fn sum(&self) -> f64 {
        self.train + self.val + self.test
    }

    /// The last split that has a share.
    fn last(&self) -> Split {
        if self.test > 0.0 {
            Split::Test
        } else if self.val > 0.0 {
            Split::Val
        } else {
            Split::Train
        }
    }
}

impl<'de> Deserialize<'de> for SplitSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SplitVisitor)
    }
}

struct SplitVisitor;

impl<'de> Visitor<'de> for SplitVisitor {
    type Value = SplitSpec;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a column, or shares such as { train = 0.8, val = 0.1, test = 0.1 }")
    }

    fn visit_str<E: de::Error>(self, column: &str) -> Result<SplitSpec, E> {
        Ok(SplitSpec::Column(column.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SplitSpec, A::Error> {
        SplitShares::deserialize(MapAccessDeserializer::new(map)).map(SplitSpec::Shares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(train: f64, val: f64, test: f64) -> SplitShares {
        let seed = Some(7);
        SplitShares {
            train,
            val,
            test,
            seed,
        }
    }

    /// Counts the nodes of each split among the integer ids from 0.
    fn counts(shares: &SplitShares, num_nodes: u64) -> [usize; 4] {
        let mut counts = [0; 4];
        for id in 0..num_nodes {
            counts[shares.draw(hash_int(id)) as usize] += 1;
        }
        counts
    }

    /// Splits must never change: they decide on which nodes a model is trained.
    #[test]
    fn draws_are_fixed_for_good() {
        let draw = |seed: u64, id: u64| {
            let shares = SplitShares {
                seed: Some(seed),
                ..shares(0.5, 0.25, 0.25)
            };
            shares.draw(hash_int(id)).as_str()
        };
        let first: Vec<&str> = (0..8).map(|id| draw(7, id)).collect();
        let other: Vec<&str> = (0..8).map(|id| draw(8, id)).collect();
        assert_eq!(
            first,
            [
                "train", "train", "val", "train", "train", "val", "train", "train"
            ]
        );
        assert_eq!(
            other,
            [
                "train", "test", "train", "test", "val", "train", "test", "test"
            ]
        );
    }

    #[test]
    fn each_split_gets_its_share() {
        let deviations = |shares: SplitShares, expected: [f64; 4]| {
            let num_nodes = 100_000;
            let found = counts(&shares, num_nodes);
            for (count, share) in found.into_iter().zip(expected) {
                // Five standard deviations of a binomial count.
                let mean = share * num_nodes as f64;
                let allowed = 5.0 * (mean * (1.0 - share)).sqrt();
                assert!(
                    (count as f64 - mean).abs() <= allowed,
                    "{shares:?}: {found:?}"
                );
            }
        };
        deviations(shares(0.8, 0.1, 0.1), [0.0, 0.8, 0.1, 0.1]);
        deviations(shares(0.1, 0.2, 0.3), [0.4, 0.1, 0.2, 0.3]);
        deviations(shares(1.0, 0.0, 0.0), [0.0, 1.0, 0.0, 0.0]);
        deviations(shares(0.0, 0.0, 0.0), [1.0, 0.0, 0.0, 0.0]);
        // In floats these sum to less than 1.
        deviations(shares(0.7, 0.2, 0.1), [0.0, 0.7, 0.2, 0.1]);
    }

    #[test]
    fn shares_are_shares() {
        let check = |shares: SplitShares, expected: Option<&str>| {
            assert_eq!(shares.problem().as_deref(), expected);
        };
        check(shares(0.8, 0.1, 0.1), None);
        check(shares(0.6, 0.3, 0.1), None);
        check(shares(0.0, 0.0, 0.0), None);
        let range = "allowed are shares from 0 to 1";
        check(
            shares(0.8, -0.1, 0.1),
            Some(&format!("`val` is -0.1; {range}")),
        );
        check(
            shares(80.0, 10.0, 10.0),
            Some(&format!("`train` is 80; {range}")),
        );
        check(
            shares(f64::NAN, 0.1, 0.1),
            Some(&format!("`train` is NaN; {range}")),
        );
        let sum = "the shares sum to 1.5; allowed is at most 1";
        check(shares(0.5, 0.5, 0.5), Some(sum));
    }
}
