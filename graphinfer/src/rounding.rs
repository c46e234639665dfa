//! Measures how far embeddings from rows in 16 bits are from embeddings in f32.
//!
//! Process 0 computes a sample of nodes again in f32, from the raw features of all nodes that its
//! layers read. The sample is small, so this costs little beside the rounds.

use crate::InferError;
use crate::compare::{Difference, Outcome};
use crate::hubs::ReadColumns;
use crate::layer::{LayerInput, Rounds};
use crate::predict::labels;
use crate::sample::{Reads, Sample, gather_rows};
use gnn::{Block, BlockData, Dense, Input, SharedRows};
use schemas::{FeatureMeta, Labels, NodeIdx};
use std::ops::Range;

/// Returns what the rounds have for some own rows: the rows of the embedding layer, and of the last
/// layer.
///
/// `inner` has the rows of the embedding layer, unless it is the last; `run` computes the last
/// layer, which is left out if neither the embedding nor a prediction needs it.
pub(crate) fn in_16_bits(
    rows: impl Iterator<Item = usize>,
    (inner, predicts): (Option<&SharedRows>, bool),
    run: impl Fn(Range<usize>) -> Result<Dense, InferError>,
) -> Result<[Dense; 2], InferError> {
    let mut found = [Dense::zeros(0, 0), Dense::zeros(0, 0)];
    for row in rows {
        let last = match inner.is_none() || predicts {
            true => run(row..row + 1)?,
            false => Dense::zeros(1, 0),
        };
        let embedding = match inner {
            Some(inner) => inner.slice(row..row + 1).to_dense(),
            None => last.clone(),
        };
        for (all, of_node) in found.iter_mut().zip([embedding, last]) {
            all.rows += 1;
            all.cols = of_node.cols;
            all.values.extend(of_node.values);
        }
    }
    Ok(found)
}

/// Gathers on process 0 what the rounds have for a sample; `of_own` returns it for own nodes, as
/// [`in_16_bits`] does.
///
/// All processes call this together.
pub(crate) fn gather_in_16_bits(
    (sample, node_type): (&Sample<'_>, usize),
    of_own: impl Fn(&[NodeIdx]) -> Result<[Dense; 2], InferError>,
) -> Result<Option<[Dense; 2]>, InferError> {
    let own = of_own(&sample.own_drawn(node_type))?;
    let gather = |rows: Dense| {
        let gathered = gather_rows(sample.store(), sample.drawn(node_type), |_| {
            Ok(Input::Dense(rows))
        })?;
        Ok::<_, InferError>(gathered.map(graphtrainer::convert::dense))
    };
    let [embedding, last] = own;
    let (embedding, last) = (gather(embedding)?, gather(last)?);
    Ok(embedding
        .zip(last)
        .map(|(embedding, last)| [embedding, last]))
}

impl Rounds<'_> {
    /// Compares the rows of the embedding layer, and the predictions, of a sample of nodes with
    /// those in f32. All processes call this together; process 0 compares.
    pub(crate) fn rounding(
        &self,
        input: &LayerInput,
        (inner, predicts): (Option<&SharedRows>, bool),
    ) -> Result<Difference, InferError> {
        let arch = self.trained.model.architecture();
        // Raw features that are sparse have few numbers, whatever their width.
        let is_sparse = matches!(self.graph.features(), FeatureMeta::Sparse { .. });
        let layers = 1 + usize::from(is_sparse)..=self.slices.len();
        let widths = layers.map(|layer| arch.input_dim(layer));
        let reads = Reads {
            store: self.graph.store(),
            limits: self.slices.iter().map(|of| vec![of.limit]).collect(),
            columns: vec![ReadColumns::of(arch)],
            width: widths.max().unwrap_or(1),
        };
        let Some(sample) = reads.sample(0)? else {
            return Ok(Difference::default());
        };
        let raw = gather_rows(reads.store, sample.nodes(0), |own| {
            self.graph.input_of(&self.own_rows_of(own), self.trained)
        })?;
        let layer = self.layer_on_processor(input);
        let rounded = gather_in_16_bits((&sample, 0), |own| {
            let rows = self.own_rows_of(own).into_iter();
            in_16_bits(rows, (inner, predicts), |row| layer.run(row))
        })?;
        let (Some(raw), Some([of_rows, of_last])) = (raw, rounded) else {
            return Ok(Difference::default());
        };
        let [embedding, last] = self.in_f32(&sample, raw)?;
        let predicted = |rows: Dense| -> Result<Labels, InferError> {
            if !predicts {
                return Ok(Labels::None);
            }
            let logits = self.trained.model.head().run(rows)?;
            Ok(labels(&logits, self.trained.model.architecture().task))
        };
        let (of_16_bits, of_f32) = (predicted(of_last)?, predicted(last)?);
        Ok(Difference::between(
            &Outcome {
                rows: &embedding.values,
                dim: embedding.cols,
                predicted: &of_f32,
            },
            &Outcome {
                rows: &of_rows.values,
                dim: of_rows.cols,
                predicted: &of_16_bits,
            },
        ))
    }

    /// Returns the rows of nodes of this process.
    fn own_rows_of(&self, nodes: &[NodeIdx]) -> Vec<usize> {
        nodes
            .iter()
            .map(|&node| self.graph.row(node).index())
            .collect()
    }

    /// Computes a sample in f32 from the raw features of all its nodes: its rows of the embedding
    /// layer and of the last layer.
    fn in_f32(&self, sample: &Sample<'_>, raw: Input) -> Result<[Dense; 2], InferError> {
        let model = &self.trained.model;
        let num_layers = self.slices.len();
        let num_drawn = sample.drawn(0).len();
        let (mut input, mut found) = (raw, None);
        for (at, slice) in self.slices.iter().enumerate() {
            let hops = num_layers - 1 - at;
            let block = Block::new(self.block_data(sample, (slice.limit, hops)))?;
            let rows = model.forward_layer(slice.layer, &block, &input)?;
            if slice.layer == self.embedding_layer {
                found = Some(first_rows(&rows, num_drawn));
            }
            input = Input::Dense(rows);
        }
        let Input::Dense(last) = input else {
            unreachable!("a model has a layer, and its output is dense");
        };
        let found = found.expect("the embedding layer is one of those that are computed");
        Ok([found, last])
    }

    /// Returns the block of a layer: the nodes that `hops` hops from a sample reach read those that
    /// one more hop reaches.
    fn block_data(&self, sample: &Sample<'_>, (limit, hops): (usize, usize)) -> BlockData {
        let (num_dst, num_src) = (sample.ends(hops)[0], sample.ends(hops + 1)[0]);
        let of = sample.relation(0, (Some(&[limit]), hops), self.graph.sampling());
        BlockData {
            num_src,
            num_dst,
            num_active: num_dst,
            in_offset: of.in_offset,
            in_src: of.in_src,
            edge_weight: of.edge_weight,
            edge_feature: of.edge_feature,
            in_degree: of.in_degree,
            in_weight: of.in_weight,
            self_loops: of.self_loops,
            self_weight: of.self_weight,
            node_key: vec![0; num_src],
            sampling: of.sampling,
        }
    }
}

fn first_rows(all: &Dense, rows: usize) -> Dense {
    Dense {
        rows,
        cols: all.cols,
        values: all.values[..rows * all.cols].to_vec(),
    }
}
