//! Keeps the items with the best scores of a query, block by block.

use super::instruction_set::run;

/// Scores that are compared with the threshold by one instruction, at most.
const LANES: usize = STEP as usize;

/// Items from one chunk of scores to the next.
const STEP: u32 = 16;

/// Scores of which one test tells whether any is above the threshold.
const GROUP: usize = 8 * LANES;

/// Kept items beyond those wanted, at least: fewer would be sorted out too often.
const SPARE_MIN: usize = 64;

/// The items with the best scores among those that were offered.
///
/// Scores are compared with a threshold, and those above are kept. When twice as many are kept as
/// wanted, the worse half is dropped, and the threshold rises to the worst of the rest. So most
/// scores cost a part of one vector instruction, and a kept one a few comparisons.
#[derive(Clone, Debug)]
pub struct BestItems {
    most: usize,
    /// An item that is offered later is among the best only if its score is higher.
    threshold: f32,
    /// The kept items, as [`key`].
    keys: Vec<u64>,
}

impl BestItems {
    /// Starts without items; at most `most` will be found.
    ///
    /// # Panics
    ///
    /// If `most` is 0.
    #[must_use]
    pub fn new(most: usize) -> Self {
        assert!(most > 0, "at least one item is wanted");
        Self {
            most,
            threshold: f32::NEG_INFINITY,
            keys: Vec::new(),
        }
    }

    /// Offers the items from number `first` on, one for each score. Their numbers are above those
    /// of all items before. An item without a score has negative infinity, and is never kept.
    pub fn offer(&mut self, first: u32, scores: &[f32]) {
        run(
            #[inline(always)]
            || self.scan(first, scores),
        );
    }

    #[inline(always)]
    fn scan(&mut self, first: u32, scores: &[f32]) {
        let (groups, rest) = scores.as_chunks::<GROUP>();
        for (item, group) in (first..).step_by(GROUP).zip(groups) {
            let (chunks, _) = group.as_chunks::<LANES>();
            // By lane: a bit for each chunk.
            let mut above = [0_u32; LANES];
            for (bit, chunk) in (0..).zip(chunks) {
                for (above, &score) in above.iter_mut().zip(chunk) {
                    *above |= u32::from(score > self.threshold) << bit;
                }
            }
            let mut above = above.into_iter().fold(0, std::ops::BitOr::bitor);
            while above != 0 {
                let at = above.trailing_zeros();
                self.take(item + at * STEP, &chunks[at as usize]);
                above &= above - 1;
            }
        }
        let before = u32::try_from(scores.len() - rest.len()).expect("items fit 32 bits");
        for (item, &score) in (first + before..).zip(rest) {
            if score > self.threshold {
                self.keep(item, score);
            }
        }
    }

    /// Keeps the items of a chunk whose score is above the threshold.
    #[inline(always)]
    fn take(&mut self, first: u32, chunk: &[f32; LANES]) {
        let mut above = 0_u32;
        for (lane, &score) in (0..).zip(chunk) {
            above |= u32::from(score > self.threshold) << lane;
        }
        while above != 0 {
            let lane = above.trailing_zeros();
            let score = chunk[lane as usize];
            // The threshold may have risen since.
            if score > self.threshold {
                self.keep(first + lane, score);
            }
            above &= above - 1;
        }
    }

    #[inline(always)]
    fn keep(&mut self, item: u32, score: f32) {
        self.keys.push(key(score, item));
        if self.keys.len() == self.most + self.most.max(SPARE_MIN) {
            self.drop_worst();
        }
    }

    /// Drops all but the best items.
    #[inline(never)]
    fn drop_worst(&mut self) {
        let worst = self.most - 1;
        self.keys
            .select_nth_unstable_by(worst, |left, right| right.cmp(left));
        self.keys.truncate(self.most);
        self.threshold = score_of(self.keys[worst]);
    }

    /// Returns the best items with their scores, the best first; of equal scores the item with the
    /// lower number first.
    #[must_use]
    pub fn finish(mut self) -> Vec<(u32, f32)> {
        if self.keys.len() > self.most {
            self.drop_worst();
        }
        self.keys.sort_unstable_by(|left, right| right.cmp(left));
        let found = self.keys.iter().map(|&key| (item_of(key), score_of(key)));
        found.collect()
    }
}

/// Returns a number that is higher for a higher score, and of equal scores for a lower item.
fn key(score: f32, item: u32) -> u64 {
    // The two zeros are equal scores.
    let bits = (score + 0.0).to_bits();
    let sign = 1 << 31;
    let ordered = if bits & sign == 0 { bits | sign } else { !bits };
    u64::from(ordered) << 32 | u64::from(!item)
}

fn score_of(key: u64) -> f32 {
    let (ordered, sign) = (high(key), 1 << 31);
    f32::from_bits(if ordered & sign == 0 {
        !ordered
    } else {
        ordered & !sign
    })
}

fn item_of(key: u64) -> u32 {
    !high(key << 32)
}

/// Returns the upper half.
fn high(key: u64) -> u32 {
    u32::try_from(key >> 32).expect("half of the bits are left")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scores with many ties, both zeros, the largest numbers, and items without a score.
    fn scores(seed: u64, len: u64) -> Vec<f32> {
        let draw = |at: u64| super::super::mask::mix(seed ^ super::super::mask::mix(at)) % 37;
        let score = |drawn: u64| match drawn {
            0 => f32::NEG_INFINITY,
            1 => -0.0,
            2 => f32::MAX,
            3 => f32::MIN,
            4 => f32::NAN,
            drawn => (drawn as f32 - 20.0) / 8.0,
        };
        (0..len).map(|at| score(draw(at))).collect()
    }

    #[test]
    fn the_best_items_are_those_of_sorting_all() {
        for (len, most) in [(0, 3), (5, 1), (17, 40), (3000, 1), (3000, 7), (5000, 300)] {
            let scores = scores(len + most as u64, len);
            let mut wanted: Vec<(u32, f32)> = (0..).zip(scores.iter().copied()).collect();
            wanted.retain(|(_, score)| *score > f32::NEG_INFINITY);
            wanted.sort_by(|left, right| {
                let by_score = right.1.partial_cmp(&left.1).unwrap();
                by_score.then(left.0.cmp(&right.0))
            });
            wanted.truncate(most);
            for block in [1, 13, 16, 1000] {
                let mut best = BestItems::new(most);
                for (at, some) in scores.chunks(block).enumerate() {
                    best.offer(u32::try_from(at * block).unwrap(), some);
                }
                assert_eq!(
                    best.finish(),
                    wanted,
                    "{len} scores, {most} in blocks of {block}"
                );
            }
        }
    }

    #[test]
    fn keys_ascend_with_scores_and_descend_with_items() {
        let scores = [
            f32::MIN,
            -1.5,
            -f32::MIN_POSITIVE,
            0.0,
            1e-40,
            2.0,
            f32::MAX,
        ];
        for pair in scores.windows(2) {
            assert!(key(pair[0], 0) < key(pair[1], u32::MAX - 1), "{pair:?}");
        }
        for score in scores {
            assert!(key(score, 1) > key(score, 2));
            assert_eq!(
                (score_of(key(score, 9)), item_of(key(score, 9))),
                (score, 9)
            );
        }
        assert_eq!(key(-0.0, 3), key(0.0, 3));
    }
}
