//! Measures how far embeddings of typed graphs from rows in 16 bits are from those in f32.
//!
//! Process 0 computes a sample of nodes of each written type again in f32, as in
//! [`crate::rounding`].

use super::last_round::{TypedParts, WrittenType};
use super::layer::TypedRounds;
use crate::InferError;
use crate::compare::{Difference, Outcome};
use crate::hubs::ReadColumns;
use crate::predict::labels;
use crate::rounding::{gather_in_16_bits, in_16_bits};
use crate::sample::{Reads, Sample, gather_rows};
use gnn::typed::{TypeNodes, TypedBlock, TypedBlockData};
use gnn::{Dense, Input, ReadyInput};
use schemas::{FeatureMeta, Labels, NodeIdx};

impl TypedParts<'_> {
    /// Compares the rows of the embedding layer, and the predictions, of a sample of nodes of each
    /// written type with those in f32. All processes call this together; process 0 compares.
    pub(super) fn rounding(&self) -> Result<Difference, InferError> {
        let reads = self.rounds.sample_reads();
        let mut all = Difference::default();
        for of_type in &self.types {
            all.add(&self.rounding_of(of_type, &reads)?);
        }
        Ok(all)
    }

    fn rounding_of(
        &self,
        of_type: &WrittenType,
        reads: &Reads<'_>,
    ) -> Result<Difference, InferError> {
        let (rounds, graph) = (&self.rounds, self.rounds.graph);
        let node_type = of_type.written.node_type;
        let predicts = of_type.written.columns.prediction.is_some();
        let Some(sample) = reads.sample(node_type)? else {
            return Ok(Difference::default());
        };
        let raw = rounds.raw(&sample)?;
        let last = rounds.limits.len();
        let layer = rounds.layer_on_processor(last, (&self.before, &self.hubs));
        let first = graph.own_rows_of(node_type).start;
        let rounded = gather_in_16_bits((&sample, node_type), |own| {
            let row = |&node: &NodeIdx| first + graph.row_of_type(node_type, node) as usize;
            let inner = (self.inner.as_ref(), predicts);
            in_16_bits(own.iter().map(row), inner, |row| layer.run(node_type, row))
        })?;
        let Some([of_rows, of_last]) = rounded else {
            return Ok(Difference::default());
        };
        let (embedding, logits) = rounds.in_f32((&sample, node_type), raw, predicts)?;
        let (model, task) = (&rounds.trained.model, rounds.trained.record.shape.task);
        let predicted = match &logits {
            Some(_) => labels(&model.head().run(of_last)?, task),
            None => Labels::None,
        };
        let in_f32 = logits.map_or(Labels::None, |logits| labels(&logits, task));
        Ok(Difference::between(
            &Outcome {
                rows: &embedding.values,
                dim: embedding.cols,
                predicted: &in_f32,
            },
            &Outcome {
                rows: &of_rows.values,
                dim: of_rows.cols,
                predicted: &predicted,
            },
        ))
    }
}

impl TypedRounds<'_> {
    /// Returns what the layers read of the graph.
    fn sample_reads(&self) -> Reads<'_> {
        let arch = self.trained.model.architecture();
        let of_layers = (1..=self.limits.len()).map(|layer| arch.input_dim(layer));
        // Raw features that are sparse have few numbers, whatever their width.
        let meta = self.graph.store().meta().graph.types.iter();
        let of_types = arch
            .types
            .iter()
            .zip(meta)
            .map(|(of, meta)| match meta.features {
                FeatureMeta::Sparse { .. } => of.embedding_dim.unwrap_or(0),
                FeatureMeta::None | FeatureMeta::Dense { .. } => of.features_dim(),
            });
        let relations = arch.relations.iter();
        Reads {
            store: self.graph.store(),
            limits: self.limits.to_vec(),
            columns: relations.map(ReadColumns::of_relation).collect(),
            width: of_layers.chain(of_types).max().unwrap_or(1),
        }
    }

    /// Gathers the raw features of a sample's nodes on process 0, by type; none of types without
    /// features or nodes.
    fn raw(&self, sample: &Sample<'_>) -> Result<Vec<Option<Input>>, InferError> {
        let of_type = |node_type: usize| {
            let nodes = sample.nodes(node_type);
            if nodes.is_empty() || !self.graph.has_input(node_type, self.trained) {
                return Ok(None);
            }
            gather_rows(self.graph.store(), nodes, |own| {
                let row = |&node: &NodeIdx| self.graph.row_of_type(node_type, node) as usize;
                let rows: Vec<usize> = own.iter().map(row).collect();
                let read = self.graph.input_of(node_type, &rows, self.trained)?;
                Ok(read.expect("the type has features or learnable rows"))
            })
        };
        let types = 0..self.trained.model.schema().types.len();
        types.map(of_type).collect()
    }

    /// Computes a sample in f32 from the raw features of all its nodes: its rows of the embedding
    /// layer, and its logits if `with_logits`.
    fn in_f32(
        &self,
        (sample, node_type): (&Sample<'_>, usize),
        raw: Vec<Option<Input>>,
        with_logits: bool,
    ) -> Result<(Dense, Option<Dense>), InferError> {
        let model = &self.trained.model;
        let num_layers = self.limits.len();
        let mut blocks = Vec::new();
        for layer in 1..=model.architecture().num_layers {
            // A layer after those that are computed is not run, so its block has no in-edges.
            let limits = self.limits.get(layer - 1);
            let hops = num_layers.saturating_sub(layer);
            let data = self.block_data(sample, (limits.map(Vec::as_slice), hops));
            blocks.push(TypedBlock::new(model.schema(), data)?);
        }
        let ready = |of_type: Option<Input>| of_type.map(ReadyInput::new).transpose();
        let input: Vec<Option<ReadyInput>> =
            raw.into_iter().map(ready).collect::<Result<_, _>>()?;
        let wanted = (self.embedding_layer, node_type);
        Ok(model.forward_embedding((&blocks, &input), wanted, with_logits)?)
    }

    /// Returns the block of a layer: the nodes that `hops` hops from a sample reach read those that
    /// one more hop reaches; without limits no in-edge is read.
    fn block_data(
        &self,
        sample: &Sample<'_>,
        (limits, hops): (Option<&[usize]>, usize),
    ) -> TypedBlockData {
        let dst_ends = sample.ends(hops).iter();
        let src_ends = sample.ends(hops + usize::from(limits.is_some()));
        let types = dst_ends
            .zip(src_ends)
            .map(|(&num_dst, &num_src)| TypeNodes {
                num_src,
                num_dst,
                num_active: num_dst,
                node_key: vec![0; num_src],
            });
        let sampling = self.graph.sampling();
        let relations = 0..self.trained.model.schema().relations.len();
        let relations = relations.map(|at| sample.relation(at, (limits, hops), sampling));
        TypedBlockData {
            types: types.collect(),
            relations: relations.collect(),
        }
    }
}
