//! Lists of the in-edges of consecutive rows, and the edges of a block that are made of them.

use crate::hubs::{ReadColumns, is_hub};
use crate::locate::narrow;
use gnn::kernel::prefetch_values;
use gnn::{Dense, RangeData, Sampling};
use schemas::{LocalIdx, NodeIdx};
use store::{InEdges, Partition};

/// Nodes ahead at which the start of a list of in-edges is prefetched.
const NODES_AHEAD: usize = 16;

/// Looks up the first `limit` in-edges of a relation of each of some nodes in rank order, and no
/// in-edges of hubs; `in_degrees` are those of the nodes.
///
/// All lists are looked up and prefetched before one is read, so that cache misses overlap.
pub(crate) fn look_up<'a>(
    places: &[(&'a Partition, LocalIdx)],
    in_degrees: &[u32],
    (relation, limit): (usize, usize),
) -> Vec<InEdges<'a>> {
    let of_node = |(at, &in_degree): (usize, &u32)| {
        if let Some(&(partition, local)) = places.get(at + NODES_AHEAD) {
            partition.prefetch_in_edges(relation, 0, local);
        }
        let (partition, local) = places[at];
        let limit = if is_hub(in_degree, limit) { 0 } else { limit };
        let found = partition.in_edges(relation, 0, local, limit);
        prefetch_values(found.src);
        found
    };
    in_degrees.iter().enumerate().map(of_node).collect()
}

/// Joins the in-edges of consecutive nodes; `first` is the row of the first one. `add_rows` appends
/// the rows of sources.
pub(crate) fn join(
    first: usize,
    lists: &[InEdges<'_>],
    read: ReadColumns,
    sampling: Sampling,
    add_rows: impl Fn(&mut Vec<u32>, &[NodeIdx]),
) -> RangeData {
    let num_edges = lists.iter().map(|list| list.src.len()).sum();
    let mut in_offset = Vec::with_capacity(lists.len() + 1);
    let mut in_src = Vec::with_capacity(num_edges);
    in_offset.push(0);
    for list in lists {
        add_rows(&mut in_src, list.src);
        in_offset.push(narrow(in_src.len()));
    }
    let checked = "checked against the store";
    let weights = || lists.iter().flat_map(|list| list.weight.expect(checked));
    let features = || lists.iter().flat_map(|list| list.feature.expect(checked));
    RangeData {
        first,
        in_offset,
        in_src,
        edge_weight: read.edge_weight.then(|| weights().copied().collect()),
        edge_feature: read.edge_dim.map(|cols| Dense {
            rows: num_edges,
            cols,
            values: features().copied().collect(),
        }),
        sampling,
    }
}
