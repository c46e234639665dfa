//! Node rows on their way from the reader to the worker that owns them.

use super::WorkUnits;
use crate::{FlattenError, NodeIdx, Peer, Placement};
use schemas::{Features, GraphMeta, Ids, Labels, NodesPlan, Split};
use serde::{Deserialize, Serialize};

/// Node rows of one worker's partition, as they arrived.
pub(super) struct OwnedNodes {
    batches: Vec<NodeBatch>,
    /// Batch and row of each local node.
    places: Vec<(u32, u32)>,
}

/// Columns of some nodes.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct NodeBatch {
    nodes: Vec<NodeIdx>,
    pub(super) ids: Ids,
    pub(super) features: Features,
    pub(super) labels: Labels,
    pub(super) split: Vec<Split>,
}

/// Reads the node rows and moves each to its owner.
///
/// `numbers` holds the number of each row, unit by unit.
///
/// # Errors
///
/// An unreadable table or a value that cannot be used.
pub(super) fn place_nodes(
    peer: &mut Peer<'_>,
    plan: &NodesPlan,
    work: &WorkUnits,
    numbers: &[Vec<NodeIdx>],
    meta: &GraphMeta,
    placement: &Placement,
) -> Result<OwnedNodes, FlattenError> {
    let units = work.of(plan.units()).zip(numbers);
    let outgoing =
        units.flat_map(
            |(unit, nodes)| match plan.read_rows(unit, meta.label.as_ref()) {
                Ok(rows) => {
                    let whole = NodeBatch {
                        nodes: nodes.clone(),
                        ids: rows.ids,
                        features: rows.features,
                        labels: rows.labels,
                        split: rows.split,
                    };
                    split_by_owner(&whole, placement)
                        .into_iter()
                        .map(Ok)
                        .collect()
                }
                Err(e) => vec![Err(FlattenError::from(e))],
            },
        );
    let received = peer.shuffle::<NodeBatch, FlattenError>(outgoing)?;
    let batches: Vec<_> = received.into_iter().map(|(_, batch)| batch).collect();
    let mut places = vec![(u32::MAX, u32::MAX); placement.num_local(peer.index())];
    for (b, batch) in (0..).zip(&batches) {
        for (row, &node) in (0..).zip(&batch.nodes) {
            places[placement.local(node)] = (b, row);
        }
    }
    assert!(
        places.iter().all(|p| p.0 != u32::MAX),
        "each number belongs to one row"
    );
    Ok(OwnedNodes { batches, places })
}

fn split_by_owner(whole: &NodeBatch, placement: &Placement) -> Vec<(usize, NodeBatch)> {
    if placement.workers() == 1 {
        return vec![(0, whole.clone())];
    }
    let mut rows = vec![Vec::new(); placement.workers()];
    for (row, &node) in (0u32..).zip(&whole.nodes) {
        rows[placement.owner(node)].push(row);
    }
    let gather = |mine: &Vec<u32>| NodeBatch {
        nodes: mine.iter().map(|&r| whole.nodes[r as usize]).collect(),
        ids: whole.ids.gather(mine),
        features: whole.features.gather(mine),
        labels: whole.labels.gather(mine),
        split: mine.iter().map(|&r| whole.split[r as usize]).collect(),
    };
    rows.iter().map(gather).enumerate().collect()
}

impl OwnedNodes {
    /// Returns the number of nodes.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Collects the columns of local nodes `range`.
    pub(super) fn columns(&self, range: std::ops::Range<usize>, meta: &GraphMeta) -> NodeBatch {
        let mut columns = NodeBatch {
            nodes: Vec::new(),
            ids: Ids::new(meta.id_type),
            features: Features::empty(meta.features),
            labels: Labels::empty(meta.label.as_ref()),
            split: Vec::new(),
        };
        for &(batch, row) in &self.places[range] {
            let batch = &self.batches[batch as usize];
            columns.ids.push_from(&batch.ids, row as usize);
            columns.features.push_from(&batch.features, row);
            columns.labels.push_from(&batch.labels, row);
            columns.split.push(batch.split[row as usize]);
        }
        columns
    }
}
