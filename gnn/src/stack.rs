//! The layers of a model in one forward pass: convs with residual, norm, activation and dropout.

use std::sync::Arc;

use burn::tensor::Tensor;

use crate::kernel::Spmm;
use crate::layer::{Aggregated, Conv, Features, MaskKind, Pass, Place, Scope, Src, lightgcn};
use crate::ops::Fused;
use crate::{Architecture, Block, Coefficients, LayerKind, ReadyInput};

/// The convs of a model and a pass over them.
pub(crate) struct Stack<'a> {
    pub(crate) arch: &'a Architecture,
    pub(crate) convs: &'a [Arc<dyn Conv>],
    pub(crate) pass: Pass<'a>,
}

/// The input of the last steps of a conv: its rows, and results that were computed before.
pub(crate) struct Prepared {
    pub(crate) src: Src,
    pub(crate) is_projected: bool,
    /// Aggregated rows of the dst nodes, if they were computed before.
    pub(crate) aggregated: Option<Tensor<2>>,
    pub(crate) residual: Option<Tensor<2>>,
}

impl<'a> Stack<'a> {
    /// Runs all layers: `[num_src of the first block, in_dim]` to `[num_dst of the last, out_dim]`.
    pub(crate) fn run(&self, blocks: &[Block], input: ReadyInput) -> Tensor<2> {
        let mut features = match self.arch.embedding_dim {
            Some(cols) => self.pass.learnable(0, input, cols),
            None => self.pass.features(input),
        };
        if self.arch.layer == LayerKind::LightGcn {
            return self.head(self.propagated(blocks, self.pass.dense(features)));
        }
        if let Some(block) = blocks.first() {
            let (rate, key) = (self.arch.input_dropout, block.shared_key());
            features = self.pass.drop_features((1, rate), key, features);
        }
        for (layer, block) in (1..).zip(blocks) {
            features = Features::Dense(self.layer(Place { layer, block }, features));
        }
        self.head(self.pass.dense(features))
    }

    /// Returns the mean of the learnable rows and of all layers of `LightGCN`, as its convs compute
    /// it, without rows in two halves.
    fn propagated(&self, blocks: &[Block], start: Tensor<2>) -> Tensor<2> {
        let mut rows = start.clone();
        for block in blocks {
            let sum = Fused::Spmm(Spmm {
                csr: Arc::clone(block.csr()),
                rows: block.num_dst(),
                edge: Coefficients::new(block, false).light(),
                own: None,
            });
            rows = sum.apply(rows) + start.clone().narrow(0, 0, block.num_dst());
        }
        lightgcn::mean(rows, blocks.len())
    }

    /// Runs one conv with residual, norm, activation, and dropout for the next layer:
    /// `[num_src, _]` to `[num_dst, _]`.
    pub(crate) fn layer(&self, place: Place<'_>, input: Features) -> Tensor<2> {
        let residual = self.arch.residual.then(|| self.residual(place, &input));
        let aggregated = self.aggregate_raw(place, &input);
        let projected = match aggregated {
            Some(_) => None,
            None => self.project(place.layer, &input, place.block.num_src()),
        };
        let prepared = Prepared {
            is_projected: projected.is_some() || aggregated.is_some(),
            src: Src {
                rows: projected.map_or_else(|| input.clone(), Features::Dense),
                scores: None,
            },
            aggregated,
            residual,
        };
        self.finish(place, prepared, &input)
    }

    /// Aggregates the raw features of layer 1 if a training step is faster so. Passes without
    /// gradients project them first, as inference does, and have the bits of inference.
    fn aggregate_raw(&self, place: Place<'_>, input: &Features) -> Option<Tensor<2>> {
        let Features::Dense(rows) = input else {
            return None;
        };
        let has_gradients = self.pass.device.is_autodiff() && !self.pass.on_gpu;
        let is_raw = place.layer == 1 && self.arch.embedding_dim.is_none();
        let conv = self.conv(place.layer);
        let pays = has_gradients && is_raw && conv.aggregates_raw();
        pays.then(|| conv.aggregate_raw(&self.scope(place.layer), place.block, rows.clone()))
    }

    /// Returns a conv.
    pub(crate) fn conv(&self, layer: usize) -> &'a dyn Conv {
        &*self.convs[layer - 1]
    }

    /// Returns the scope of a conv.
    pub(crate) fn scope(&self, layer: usize) -> Scope<'_> {
        Scope::new(&self.pass, layer)
    }

    /// Projects the first `rows` rows; none if the conv aggregates the rows themselves.
    pub(crate) fn project(&self, layer: usize, input: &Features, rows: usize) -> Option<Tensor<2>> {
        let conv = self.conv(layer);
        let is_sparse = matches!(input, Features::Sparse(_));
        conv.projected_dim(is_sparse)
            .map(|_| conv.project(&self.scope(layer), input, rows))
    }

    /// Runs the last steps of a conv; its dst nodes are the first rows of `own`.
    pub(crate) fn finish(
        &self,
        Place { layer, block }: Place<'_>,
        prepared: Prepared,
        own: &Features,
    ) -> Tensor<2> {
        let (conv, scope) = (self.conv(layer), self.scope(layer));
        let Prepared {
            src,
            is_projected,
            aggregated,
            residual,
        } = prepared;
        let rows = aggregated.unwrap_or_else(|| conv.aggregate(&scope, block, src, own));
        let rows = Aggregated { rows, is_projected };
        let summed = conv.update(&scope, block, rows, own).plus(residual);
        if self.arch.layer == LayerKind::LightGcn {
            let own = self.pass.dense(own.clone()).narrow(0, 0, block.num_dst());
            let place = (layer, self.arch.num_layers);
            return lightgcn::carry(&self.pass, place, summed, own, None);
        }
        if !self.arch.is_hidden(layer) {
            return self.pass.sum(summed, None, None);
        }
        let mask = self
            .pass
            .mask(layer + 1, MaskKind::Input, self.arch.dropout);
        let dropout = mask.map(|mask| (mask, block.shared_key().clone()));
        let name = format!("norms.{}", layer - 1);
        let norm = (self.arch.norm, name.as_str());
        let (active, activation) = (block.num_active(), Some(self.arch.activation));
        self.pass.hidden(summed, norm, active, activation, dropout)
    }

    /// Returns the rows that a residual adds to a conv's output.
    pub(crate) fn residual(
        &self,
        Place { layer, block }: Place<'_>,
        input: &Features,
    ) -> Tensor<2> {
        let name = format!("res.{}.weight", layer - 1);
        let rows = block.num_dst();
        if self.pass.parameters.contains_key(name.as_str()) {
            self.pass.product(input, rows, &name)
        } else {
            self.pass.dense(input.clone()).narrow(0, 0, rows)
        }
    }

    /// Turns embeddings of the last conv, after dropout, into logits.
    pub(crate) fn head(&self, embedding: Tensor<2>) -> Tensor<2> {
        if !self.arch.has_head() {
            return embedding;
        }
        let rows = embedding.dims()[0];
        self.pass.linear("lin", &Features::Dense(embedding), rows)
    }
}

/// Computes coefficients and transposes of a batch's blocks before its first training pass.
///
/// `input` is none if it is learnable, so that it needs a gradient.
pub(crate) fn prepare(
    convs: &[Arc<dyn Conv>],
    blocks: &[Block],
    (input, on_gpu): (Option<&ReadyInput>, bool),
) {
    let is_sparse = input.is_some_and(ReadyInput::transpose_sparse);
    for (layer, (conv, block)) in (1..).zip(convs.iter().zip(blocks)) {
        conv.prepare(block);
        // Layers that aggregate raw features compute no gradient of them, so need no transpose.
        let aggregates_raw = !on_gpu && !is_sparse && conv.aggregates_raw();
        let reads_raw = !conv.has_parameters_before(is_sparse) || aggregates_raw;
        if layer > 1 || input.is_none() || !reads_raw {
            block.csr().transposed();
        }
    }
}
