//! An edge of the surveyed input.

/// An edge by the positions of its ends, with its row over all files.
#[derive(Clone, Copy)]
pub(super) struct Edge {
    pub(super) src: u32,
    pub(super) dst: u32,
    pub(super) row: u64,
}
