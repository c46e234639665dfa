//! Picks parts that represent all parts.

use crate::Parts;

/// Returns all parts, or `most` parts spread evenly over them.
pub(super) fn spread(parts: &Parts<u32>, most: usize) -> Vec<&[u32]> {
    let count = parts.len().min(most);
    (0..count)
        .map(|at| parts.get((2 * at + 1) * parts.len() / (2 * count)))
        .collect()
}
