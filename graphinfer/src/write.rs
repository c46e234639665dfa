//! Embeddings to part files: each part a range of nodes by id, put together by one worker.

use crate::InferError;
use graphflat::{NodeIdx, Peer, Store};
use schemas::{EmbeddingsWriter, Ids, LabelMeta, Labels, Output};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// Rows sent to a part's writer at a time.
const PORTION_ROWS: usize = 4096;

/// Rows handed to the file at a time; part of what decides its bytes.
const BATCH_ROWS: usize = 8192;

/// What is written, and where.
#[derive(Clone, Debug)]
pub(crate) struct WriteContext {
    pub(crate) store: Store,
    pub(crate) output: Arc<Output>,
    pub(crate) rows_per_part: usize,
    /// Width of an embedding.
    pub(crate) dim: usize,
    /// How predictions are written, where they are.
    pub(crate) prediction: Option<LabelMeta>,
}

/// What one worker computed, by own node.
pub(crate) struct Computed<'a> {
    /// `[num_own * dim]`.
    pub(crate) embedding: &'a [f32],
    /// `[num_own]`, or none.
    pub(crate) prediction: &'a Labels,
}

/// Rows of a part on their way to its writer; nodes ascend.
#[derive(Clone, Serialize, Deserialize)]
struct Rows {
    nodes: Vec<NodeIdx>,
    ids: Ids,
    embedding: Vec<f32>,
    prediction: Labels,
}

/// Sends own rows to the parts they belong to and writes the parts that are this worker's.
///
/// Part `p` holds the nodes `p * rows_per_part..` in order of id, whatever the number of workers.
/// As many parts as there are workers are under way at once.
pub(crate) fn write_parts(
    peer: &mut Peer<'_>,
    context: &WriteContext,
    computed: &Computed<'_>,
) -> Result<(), InferError> {
    let num_nodes = context.store.placement().num_nodes();
    let num_parts = num_nodes.div_ceil(context.rows_per_part);
    let peers = peer.peers();
    for first in (0..num_parts).step_by(peers) {
        let me = peer.index();
        let parts = (first..num_parts.min(first + peers))
            .filter(|&part| context.output.committed(part).is_none());
        let portions = parts.flat_map(|part| {
            let portions = context.own_portions(me, part);
            portions.map(move |nodes| (part % peers, nodes))
        });
        let portions = portions
            .map(|(to, nodes)| Ok::<_, InferError>((to, context.rows_of(&nodes, computed))));
        let received = peer.shuffle(portions)?;
        let mine = (first..num_parts.min(first + peers)).find(|part| part % peers == me);
        let open = mine.filter(|&part| context.output.committed(part).is_none());
        // Workers that look later must see the same parts committed, so all wait for all.
        let written = match peer.agree(Ok::<_, InferError>(open))? {
            Some(part) => context.write(part, received.into_iter().map(|(_, rows)| rows)),
            None => Ok(()),
        };
        peer.agree(written)?;
    }
    Ok(())
}

impl WriteContext {
    fn range(&self, part: usize) -> Range<usize> {
        let start = part * self.rows_per_part;
        start..(start + self.rows_per_part).min(self.store.placement().num_nodes())
    }

    /// A worker's own nodes of a part: node and own position, ascending by node, in portions.
    fn own_portions(&self, me: usize, part: usize) -> impl Iterator<Item = Vec<(NodeIdx, usize)>> {
        let placement = self.store.placement();
        let nodes = self
            .range(part)
            .map(|node| u32::try_from(node).expect("nodes fit 32 bits"));
        let mut own = nodes
            .filter(move |&node| placement.owner(node) == me)
            .map(|node| (node, placement.local(node)));
        std::iter::from_fn(move || {
            let portion: Vec<_> = own.by_ref().take(PORTION_ROWS).collect();
            (!portion.is_empty()).then_some(portion)
        })
    }

    fn rows_of(&self, nodes: &[(NodeIdx, usize)], computed: &Computed<'_>) -> Rows {
        let partition = self.store.partition(self.worker_of(nodes));
        let rows: Vec<u32> = nodes
            .iter()
            .map(|&(_, local)| u32::try_from(local).expect("nodes fit 32 bits"))
            .collect();
        let mut embedding = Vec::with_capacity(nodes.len() * self.dim);
        for &(_, local) in nodes {
            embedding.extend_from_slice(&computed.embedding[local * self.dim..][..self.dim]);
        }
        Rows {
            nodes: nodes.iter().map(|&(node, _)| node).collect(),
            ids: partition.ids().gather(&rows),
            embedding,
            prediction: computed.prediction.gather(&rows),
        }
    }

    fn worker_of(&self, nodes: &[(NodeIdx, usize)]) -> usize {
        nodes
            .first()
            .map_or(0, |&(node, _)| self.store.placement().owner(node))
    }

    /// Puts the rows of a part in order and writes and commits it.
    fn write(&self, part: usize, received: impl Iterator<Item = Rows>) -> Result<(), InferError> {
        let range = self.range(part);
        let id_type = self.store.meta().graph.id_type;
        let mut ids = Ids::with_capacity(id_type, range.len());
        let mut embedding = Vec::with_capacity(range.len() * self.dim);
        let mut prediction = Labels::empty(self.prediction.as_ref());
        let mut came = vec![u32::MAX; range.len()];
        let mut count = 0;
        for rows in received {
            for &node in &rows.nodes {
                came[node as usize - range.start] = count;
                count += 1;
            }
            ids.extend_from(&rows.ids, 0..rows.ids.len());
            embedding.extend_from_slice(&rows.embedding);
            prediction.extend(&rows.prediction);
        }
        assert!(
            !came.contains(&u32::MAX),
            "each node of a part has one owner, who sent it"
        );
        let label = self.prediction.as_ref();
        let mut writer = EmbeddingsWriter::create(&self.output, part, id_type, self.dim, label)?;
        for batch in came.chunks(BATCH_ROWS) {
            let mut values = Vec::with_capacity(batch.len() * self.dim);
            for &row in batch {
                values.extend_from_slice(&embedding[row as usize * self.dim..][..self.dim]);
            }
            writer.write(&ids.gather(batch), &values, &prediction.gather(batch))?;
        }
        let entry = writer.finish()?;
        Ok(self.output.commit_part(part, entry)?)
    }
}
