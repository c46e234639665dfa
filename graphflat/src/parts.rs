//! Cuts ordered targets into parts.

use schemas::Layout;
use std::ops::Range;

/// Number of stretches that the order is cut into, about, if layout `rows` has fewer parts.
const STRETCHES: usize = 256;

/// Targets, cut into parts.
#[derive(Clone, Debug)]
pub struct Parts<T> {
    /// The targets of part 0, then of part 1, and so on.
    targets: Vec<T>,
    /// Where the targets of each part end.
    ends: Vec<usize>,
}

impl<T: Copy> Parts<T> {
    /// Cuts ordered targets into as few parts as possible, with at most `most` targets each.
    ///
    /// Targets with many in-edges tend to come early in the order, and targets without in-edges
    /// come last. In layout `rows` the size of a target does not depend on its part. So parts have
    /// equal numbers of targets, and if there are few parts, each takes several stretches of the
    /// order, dealt from the first part to the last and back: all parts have about as many nodes
    /// and edges. In layout `shards` parts are consecutive ranges of the order. A shard has each
    /// node once, and if every shard had targets with many in-edges, nearly all shards would have
    /// the same nodes.
    ///
    /// # Panics
    ///
    /// If there is no target, or `most` is 0.
    pub fn cut(in_order: Vec<T>, most: usize, layout: Layout) -> Self {
        match layout {
            Layout::Shards => Self::equal(in_order, most),
            Layout::Rows => {
                let per_part = in_order.len().div_ceil(in_order.len().div_ceil(most));
                Self::deal(&in_order, per_part)
            }
        }
    }

    /// Makes parts of `per_part` targets each; the last part may have fewer.
    fn equal(targets: Vec<T>, per_part: usize) -> Self {
        let ends = (0..targets.len()).step_by(per_part);
        let ends = ends.map(|first| first.saturating_add(per_part).min(targets.len()));
        Self {
            ends: ends.collect(),
            targets,
        }
    }

    /// Makes parts of given targets.
    pub(crate) fn of_lists(lists: Vec<Vec<T>>) -> Self {
        let mut end = 0;
        let ends = lists.iter().map(|list| {
            end += list.len();
            end
        });
        Self {
            ends: ends.collect(),
            targets: lists.concat(),
        }
    }

    fn deal(in_order: &[T], per_part: usize) -> Self {
        let mut parts = Self::equal(in_order.to_vec(), per_part);
        let len = parts.len();
        // 0 if there are more parts than stretches: each part then stays one range of the order.
        let rounds = STRETCHES / len;
        let mut left = in_order;
        for round in 0..rounds {
            for turn in 0..len {
                let is_forth = round % 2 == 0;
                let part = parts.range(if is_forth { turn } else { len - 1 - turn });
                let dealt = part.len() * round / rounds..part.len() * (round + 1) / rounds;
                let (stretch, others) = left.split_at(dealt.len());
                parts.targets[part][dealt].copy_from_slice(stretch);
                left = others;
            }
        }
        parts
    }

    /// Returns the number of parts.
    #[expect(clippy::len_without_is_empty, reason = "there is always a part")]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the targets of a part.
    ///
    /// # Panics
    ///
    /// If `part` is not below [`len`](Parts::len).
    pub fn get(&self, part: usize) -> &[T] {
        &self.targets[self.range(part)]
    }

    /// Returns the targets of each part.
    pub fn iter(&self) -> impl Iterator<Item = &[T]> {
        (0..self.len()).map(|part| self.get(part))
    }

    fn range(&self, part: usize) -> Range<usize> {
        let first = part.checked_sub(1).map_or(0, |before| self.ends[before]);
        first..self.ends[part]
    }
}
