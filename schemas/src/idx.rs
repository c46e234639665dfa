//! Node numbers as three types, so that one kind cannot be used in place of another.

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

/// Defines a number of 32 bits with its named conversions.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone,
            Copy,
            Debug,
            Default,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Hash,
            Pod,
            Zeroable,
            Serialize,
            Deserialize,
        )]
        #[repr(transparent)]
        #[serde(transparent)]
        pub struct $name(u32);

        impl $name {
            /// The greatest number.
            pub const MAX: Self = Self(u32::MAX);

            /// Wraps the number that a column, a message or a block holds.
            #[inline]
            pub const fn from_raw(raw: u32) -> Self {
                Self(raw)
            }

            /// Returns the number as columns, messages and blocks hold it.
            #[inline]
            pub const fn raw(self) -> u32 {
                self.0
            }

            /// Returns the number of the node at a position of an array with one entry a node.
            ///
            /// # Panics
            ///
            /// If it does not fit 32 bits.
            #[inline]
            pub fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("arrays of nodes have below 2^32 entries"))
            }

            /// Returns the number plus `count`.
            #[inline]
            pub const fn after(self, count: u32) -> Self {
                Self(self.0 + count)
            }

            /// Returns the node's position in an array with one entry a node.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// Wraps the numbers of a column.
            #[inline]
            pub fn slice(raw: &[u32]) -> &[Self] {
                bytemuck::cast_slice(raw)
            }

            /// Returns the numbers as a column holds them.
            #[inline]
            pub fn raw_slice(numbers: &[Self]) -> &[u32] {
                bytemuck::cast_slice(numbers)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A node's position in the ascending order of all ids of the node table.
    ///
    /// Comparing two of them compares the raw ids. At most `u32::MAX - 1` nodes.
    NodeIdx
}

number! {
    /// A node's position among the nodes of one partition of a store.
    LocalIdx
}

number! {
    /// A node's row in a part, or among the rows that a process holds of a layer.
    Row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_same_in_columns_and_messages() {
        let raw = [3, 0, u32::MAX];
        let nodes = NodeIdx::slice(&raw);
        assert_eq!(NodeIdx::raw_slice(nodes), raw);
        assert_eq!(nodes.iter().map(|node| node.raw()).max(), Some(u32::MAX));
        assert_eq!(nodes[1], NodeIdx::from_index(0));
        let told = serde_json::to_string(nodes).unwrap();
        assert_eq!(told, serde_json::to_string(&raw).unwrap());
        assert_eq!(serde_json::from_str::<Vec<NodeIdx>>(&told).unwrap(), nodes);
    }
}
