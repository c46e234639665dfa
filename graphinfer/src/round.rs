//! One inference round: the rows that peers read go to them, then a slice runs on every own node.

use crate::InferError;
use crate::block::{BlockContext, LayerRows, OwnRows, Scratch, block_ranges};
use crate::halo::{Halo, class_of};
use crate::slice::{Slice, TrainedModel};
use gnn::{Block, Dense};
use graphflat::{Peer, Store};
use schemas::{FeatureMeta, Features};
use serde::{Deserialize, Serialize};

/// What a round moved, from and to one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoundStats {
    /// Rows it sent.
    pub(crate) rows: u64,
    /// Bytes it sent.
    pub(crate) bytes: u64,
    /// Lower bound of the rows it is sent: distinct nodes of peers that its in-edges read.
    pub(crate) rows_needed: u64,
    /// The numbers in these rows, in bytes.
    pub(crate) bytes_needed: u64,
}

/// What the rounds of one worker share.
pub(crate) struct RoundContext<'a> {
    pub(crate) store: &'a Store,
    pub(crate) trained: &'a TrainedModel,
    pub(crate) slices: &'a [Slice],
    pub(crate) halo: &'a Halo,
}

impl RoundContext<'_> {
    /// Sends peers what they read of the layer before `slice` and computes the slice's embeddings
    /// of all own nodes, `[num_own * output width]`.
    pub(crate) fn run(
        &self,
        peer: &mut Peer<'_>,
        slice: Slice,
        own: OwnRows<'_>,
        scratch: &mut Scratch,
    ) -> Result<(Vec<f32>, RoundStats), InferError> {
        let (rows, stats) = self.exchange(peer, slice, own)?;
        let computed = self.compute(peer.index(), slice, &rows, scratch);
        Ok((peer.agree(computed)?, stats))
    }

    fn exchange<'a>(
        &self,
        peer: &mut Peer<'_>,
        slice: Slice,
        own: OwnRows<'a>,
    ) -> Result<(LayerRows<'a>, RoundStats), InferError> {
        let mut stats = RoundStats::default();
        let class = class_of(self.slices, slice);
        let shape = self.shape_before(slice);
        let portions = self.halo.owed_portions(class).map(|(to, local)| {
            let mut rows = Features::empty(shape);
            local
                .iter()
                .for_each(|&local| own.push_to(local as usize, &mut rows));
            stats.rows += local.len() as u64;
            stats.bytes += rows.size_bytes() as u64;
            Ok::<_, InferError>((to, rows))
        });
        let received = peer.shuffle(portions)?;
        stats.rows_needed = self.halo.num_needed(class) as u64;
        stats.bytes_needed = received.iter().map(|(_, rows)| payload_bytes(rows)).sum();
        let halo = self.halo.arrange(received, class);
        Ok((LayerRows { own, halo }, stats))
    }

    /// The shape of what a slice reads.
    fn shape_before(&self, slice: Slice) -> FeatureMeta {
        match slice.layer {
            1 => self.store.meta().graph.features,
            layer => FeatureMeta::Dense {
                dim: self.trained.model.architecture().input_dim(layer),
            },
        }
    }

    fn compute(
        &self,
        worker: usize,
        slice: Slice,
        rows: &LayerRows<'_>,
        scratch: &mut Scratch,
    ) -> Result<Vec<f32>, InferError> {
        let (model, partition) = (&self.trained.model, self.store.partition(worker));
        let arch = model.architecture();
        let context = BlockContext {
            store: self.store,
            partition,
            halo: self.halo,
            arch,
        };
        let width = arch.output_dim(slice.layer);
        let mut embedding = Vec::with_capacity(partition.num_nodes() * width);
        for range in block_ranges(partition, slice.limit) {
            let gathered = context.gather(&range, scratch);
            let mut input = context.input(rows, &gathered, arch.input_dim(slice.layer));
            if slice.layer == 1 {
                self.trained.transform.apply(&mut input)?;
            }
            let block = Block::new(gathered.data)?;
            let Dense { values, .. } = model.forward_layer(slice.layer, &block, &input)?;
            let values = &values[..range.nodes.len() * width];
            if let Some(bad) = values.iter().position(|value| !value.is_finite()) {
                return Err(InferError::NotFinite {
                    dir: self.trained.dir.clone(),
                    layer: slice.layer,
                    id: partition.ids().display(range.nodes.start + bad / width),
                });
            }
            embedding.extend_from_slice(values);
        }
        Ok(embedding)
    }
}

/// The numbers in some rows, in bytes; a stored value of a sparse row comes with its position.
fn payload_bytes(rows: &Features) -> u64 {
    let words = match rows {
        Features::None => 0,
        Features::Dense { values, .. } => values.len(),
        Features::Sparse { value, .. } => 2 * value.len(),
    };
    4 * words as u64
}
