//! What changes make of one worker's nodes, as it is sent to other processes.

use std::sync::Arc;

use cluster::Peer;
use schemas::NodeIdx;
use serde::{Deserialize, Serialize};

use super::{ChangedInEdges, OwnReach, Reach};
use crate::DeltaError;
use crate::in_edges::{Edits, KeptEdges};

/// [`OwnReach`] without shared values.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SentReach {
    hops: Vec<Vec<NodeIdx>>,
    layers: Vec<Vec<NodeIdx>>,
    edits: Vec<(InEdgesOf, Edits)>,
    kept: Vec<(InEdgesOf, KeptEdges, bool)>,
    /// Changed in-edges, with the first rank at which they differ; `kept` has the in-edges.
    changed: Vec<(InEdgesOf, Option<usize>)>,
}

/// Relation and destination of in-edges.
type InEdgesOf = (usize, NodeIdx);

/// Sends what the changes make of this worker's nodes to all other processes, whose first workers
/// receive it. Returns what this worker has and receives.
pub(super) fn exchange(peer: &mut Peer<'_>, own: OwnReach) -> Result<Vec<OwnReach>, DeltaError> {
    let mut others = peer.other_processes().peekable();
    if others.peek().is_none() {
        return Ok(vec![own]);
    }
    let sent = SentReach::of(&own);
    let received =
        peer.shuffle(others.map(|worker| Ok::<_, DeltaError>((worker, sent.clone()))))?;
    let received = received.into_iter().map(|(_, theirs)| theirs.into_own());
    Ok(std::iter::once(own).chain(received).collect())
}

impl SentReach {
    fn of(own: &OwnReach) -> Self {
        let edits = own.edits.iter();
        let kept = own.kept.iter();
        let changed = own.reach.in_edges.iter();
        Self {
            hops: own.reach.hops.clone(),
            layers: own.reach.layers.clone(),
            edits: edits.map(|(&key, of)| (key, of.as_ref().clone())).collect(),
            kept: kept
                .map(|(key, of, differs)| (*key, of.as_ref().clone(), *differs))
                .collect(),
            changed: changed
                .map(|of| ((of.relation, of.dst), of.first))
                .collect(),
        }
    }

    fn into_own(self) -> OwnReach {
        let kept = self.kept.into_iter();
        let kept: Vec<_> = kept
            .map(|(key, of, differs)| (key, Arc::new(of), differs))
            .collect();
        // Both ascend by relation and node.
        let in_edges = self.changed.into_iter().map(|((relation, dst), first)| {
            let at = kept.binary_search_by_key(&(relation, dst), |of| of.0);
            ChangedInEdges {
                relation,
                dst,
                first,
                kept: Arc::clone(&kept[at.expect("changed in-edges are kept")].1),
            }
        });
        let in_edges = in_edges.collect();
        OwnReach {
            reach: Reach {
                in_edges,
                hops: self.hops,
                layers: self.layers,
                moves_ids: false,
            },
            edits: self
                .edits
                .into_iter()
                .map(|(key, of)| (key, Arc::new(of)))
                .collect(),
            kept,
        }
    }
}
