//! Some parts that stand for all of them.

use crate::Parts;

/// All parts, or some spread evenly over them.
pub(super) fn spread(parts: &Parts<u32>, most: usize) -> Vec<&[u32]> {
    let count = parts.len().min(most);
    (0..count)
        .map(|at| parts.get((2 * at + 1) * parts.len() / (2 * count)))
        .collect()
}
