//! The in-edges of all relations of a block in one list, for attention over all of them.

use std::ops::Range;
use std::sync::Arc;

use super::block::TypedBlock;
use crate::kernel::{Csr, Shared};

/// In-edges by dst node, relation and rank.
///
/// The rows are the dst nodes of type 0, then of type 1, and so on. The columns are, in a block
/// whose dst nodes are the first src nodes, the rows' own nodes in the same order, then the other
/// src nodes by type; in a block of a range, all src nodes by type.
#[derive(Debug)]
pub(crate) struct Union {
    /// A row for each dst node.
    pub(crate) csr: Arc<Csr>,
    /// A row for each dst node and relation into its type: the same edges in the same order.
    pub(crate) segments: Arc<Csr>,
    /// `[num_edges]`: the relation of each edge. A self-loop that was added has the number of
    /// relations.
    pub(crate) relation: Shared<u32>,
    /// The key of each column; empty in a block of a range.
    pub(crate) key: Shared<u64>,
    /// The columns of the rows' own nodes.
    pub(crate) own: Range<usize>,
}

/// Where the nodes of each type are among the columns.
struct Columns {
    num_cols: usize,
    /// By type: column of the first dst node, number of dst nodes before the other nodes, column
    /// of the first other node.
    starts: Vec<(usize, usize, usize)>,
}

impl Columns {
    fn of(block: &TypedBlock) -> Columns {
        let types = 0..block.schema().types.len();
        // In a block of a range, no node stands apart as a dst node.
        let num_dst = |t: usize| {
            if block.range().is_some() {
                0
            } else {
                block.num_dst(t)
            }
        };
        let (mut dst, mut rest) = (0, types.clone().map(num_dst).sum());
        let mut starts = Vec::new();
        for t in types {
            starts.push((dst, num_dst(t), rest));
            dst += num_dst(t);
            rest += block.num_src(t) - num_dst(t);
        }
        Columns {
            num_cols: rest,
            starts,
        }
    }

    /// Returns the column of a src node of a type.
    fn of_node(&self, node_type: usize, node: usize) -> usize {
        let (dst, num_dst, rest) = self.starts[node_type];
        if node < num_dst {
            dst + node
        } else {
            rest + node - num_dst
        }
    }
}

impl Union {
    /// Joins the relations of a block. With `loops`, one self-loop takes the place of each node's
    /// own ones.
    pub(super) fn of(block: &TypedBlock, loops: bool) -> Union {
        let (schema, columns) = (block.schema(), Columns::of(block));
        let (mut offset, mut segments) = (vec![0], vec![0]);
        let (mut col, mut relation) = (Vec::new(), Vec::new());
        for t in 0..schema.types.len() {
            let into: Vec<usize> = schema.into_type(t).collect();
            let first = block.range().map_or(0, |(_, range)| range.start);
            for v in 0..block.num_dst(t) {
                for &r in &into {
                    let from = schema.relations[r].from;
                    let own = (loops && from == t).then_some(first + v);
                    if let Some(of_relation) = block.relation(r) {
                        for edge in of_relation.csr().row(v) {
                            let src = of_relation.csr().col[edge] as usize;
                            if Some(src) != own {
                                col.push(position(columns.of_node(from, src)));
                                relation.push(position(r));
                            }
                        }
                    }
                    segments.push(position(col.len()));
                }
                if loops {
                    col.push(position(columns.of_node(t, first + v)));
                    relation.push(position(schema.relations.len()));
                }
                offset.push(position(col.len()));
            }
        }
        let own_start = block
            .range()
            .map_or(0, |(t, range)| columns.of_node(*t, range.start));
        let own = own_start..own_start + offset.len() - 1;
        let partitioning = block.partitioning();
        let list = |ends, cols| {
            let mut csr = Csr::new(ends, cols, columns.num_cols);
            (csr.partitioning, csr.first) = (partitioning, own.start);
            Arc::new(csr)
        };
        // Self-loops belong to no segment.
        let segments = if loops {
            list(vec![0], Vec::new())
        } else {
            list(segments, col.clone())
        };
        Union {
            segments,
            csr: list(offset, col),
            relation: relation.into(),
            key: keys(block, &columns).into(),
            own,
        }
    }
}

/// Returns the key of each column; none in a block of a range, which has no keys.
fn keys(block: &TypedBlock, columns: &Columns) -> Vec<u64> {
    if block.range().is_some() {
        return Vec::new();
    }
    let mut keys = vec![0; columns.num_cols];
    for t in 0..block.schema().types.len() {
        for (node, &key) in block.shared_key(t).iter().enumerate() {
            keys[columns.of_node(t, node)] = key;
        }
    }
    keys
}

fn position(at: usize) -> u32 {
    u32::try_from(at).expect("a block has fewer than 2^32 src nodes and in-edges")
}
