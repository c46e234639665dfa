//! Finds the partition and the position of a node.

use schemas::{LocalIdx, NodeIdx};
use store::{Partition, Store};

/// Returns the partition of a node of this process and its position there.
pub(crate) fn locate(store: &Store, node: NodeIdx) -> (&Partition, LocalIdx) {
    let (owner, local) = store.placement().owner_and_local(node);
    (store.partition(owner), local)
}

/// Converts the number of a node, or a position in a block, to 32 bits.
pub(crate) fn narrow(position: usize) -> u32 {
    u32::try_from(position).expect("there are fewer than 2^32 nodes, and edges of a block")
}
