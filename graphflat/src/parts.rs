//! How targets that stand in their order are cut into parts.

use schemas::Layout;
use std::ops::Range;

/// Stretches of the order that the parts of layout `rows` are made of, about, where the parts are
/// fewer.
const STRETCHES: usize = 256;

/// Targets, cut into parts.
#[derive(Clone, Debug)]
pub struct Parts<T> {
    /// Part by part.
    targets: Vec<T>,
    /// The last part may have fewer.
    per_part: usize,
}

impl<T: Copy> Parts<T> {
    /// Cuts targets into as few parts as hold `most` each.
    ///
    /// In the order, targets of many in-edges stand first and those without any last. In layout
    /// `rows` a target takes as much wherever it stands: parts are of one size, and where they are few
    /// each takes several stretches of the order, dealt from the first part to the last and back, so
    /// that all have about as many nodes and edges. Shards are cut from the order as it is: in a
    /// shard each node stands once, and if all of them had targets of many in-edges, nearly all would
    /// have the same nodes.
    ///
    /// # Panics
    ///
    /// If there is no target, or `most` is 0.
    pub fn cut(in_order: Vec<T>, most: usize, layout: Layout) -> Self {
        match layout {
            Layout::Shards => Self {
                targets: in_order,
                per_part: most,
            },
            Layout::Rows => {
                let per_part = in_order.len().div_ceil(in_order.len().div_ceil(most));
                Self::deal(&in_order, per_part)
            }
        }
    }

    fn deal(in_order: &[T], per_part: usize) -> Self {
        let mut parts = Self {
            targets: in_order.to_vec(),
            per_part,
        };
        let len = parts.len();
        // None where there are more parts: then each stays the stretch that it is.
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
        self.targets.len().div_ceil(self.per_part)
    }

    /// Returns the targets of a part.
    ///
    /// # Panics
    ///
    /// If there is no such part.
    pub fn get(&self, part: usize) -> &[T] {
        &self.targets[self.range(part)]
    }

    /// Returns the targets of each part.
    pub fn iter(&self) -> impl Iterator<Item = &[T]> {
        self.targets.chunks(self.per_part)
    }

    fn range(&self, part: usize) -> Range<usize> {
        let first = part * self.per_part;
        first..(first + self.per_part).min(self.targets.len())
    }
}
