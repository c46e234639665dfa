//! One layer, or the head, on blocks that are ranges of the nodes of a whole graph.
//!
//! The rows of all nodes are one array that blocks share and read by position.
//! [`LayerSlice::project`] computes the row that a conv aggregates, once per node;
//! [`LayerSlice::run`] computes the rest. Both run the code of
//! [`Model::forward`](crate::Model::forward), and, on the processor, a row's bits do not depend on
//! the other rows of the call. A hub can be aggregated in parts ([`LayerSlice::aggregation`], then
//! [`LayerSlice::run_aggregated`]), with the same result up to rounding.
//!
//! Kernels split their work over the threads of the pool that they are called on. A caller that
//! runs many blocks in parallel gives each of its threads a pool of one thread.

use crate::check::{check_block, check_input};
use crate::layer::{Conv, PartialAggregation, Place, Src, plain};
use crate::stack::{Prepared, Stack};
use crate::{Block, Dense, GnnError, Input, LabelScale, ReadyInput};

/// One layer in eval mode.
pub struct LayerSlice<'a> {
    stack: Stack<'a>,
    /// 1-based.
    layer: usize,
    is_sparse: bool,
    projected_dim: Option<usize>,
}

/// The rows that a layer aggregates, of some nodes.
#[derive(Clone, Debug)]
pub struct Projected<T> {
    /// A row for each node, [`LayerSlice::src_dim`] wide.
    pub rows: T,
    /// A row for each node, [`LayerSlice::scores_dim`] wide, if the layer has scores.
    pub scores: Option<T>,
}

impl<'a> LayerSlice<'a> {
    pub(crate) fn new(stack: Stack<'a>, layer: usize, is_sparse: bool) -> Self {
        let projected_dim = stack.conv(layer).projected_dim(is_sparse);
        LayerSlice {
            stack,
            layer,
            is_sparse,
            projected_dim,
        }
    }

    fn conv(&self) -> &'a dyn Conv {
        self.stack.conv(self.layer)
    }

    fn input_dim(&self) -> usize {
        self.stack.arch.input_dim(self.layer)
    }

    /// Tells whether the aggregated rows differ from the rows that the layer reads.
    #[must_use]
    pub fn projects(&self) -> bool {
        self.projected_dim.is_some() || self.is_sparse
    }

    /// Tells whether [`run`](Self::run) needs the rows of the dst nodes besides the aggregated
    /// rows.
    #[must_use]
    pub fn reads_own(&self) -> bool {
        self.stack.arch.residual || self.conv().reads_own()
    }

    /// Tells whether [`run`](Self::run) may read rows of dst nodes among the aggregated rows.
    #[must_use]
    pub fn aggregates_own(&self) -> bool {
        self.conv().aggregates_own()
    }

    /// Returns the width of the aggregated rows.
    #[must_use]
    pub fn src_dim(&self) -> usize {
        self.projected_dim.unwrap_or_else(|| self.input_dim())
    }

    /// Returns the width of the scores, if the layer has scores.
    #[must_use]
    pub fn scores_dim(&self) -> Option<usize> {
        self.conv().scores_dim()
    }

    /// Returns the width of the output.
    #[must_use]
    pub fn output_dim(&self) -> usize {
        self.stack.arch.output_dim(self.layer)
    }

    /// Turns the rows of some nodes into the rows that the layer aggregates.
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] if the rows are not as wide as the layer reads them.
    pub fn project(&self, input: ReadyInput) -> Result<Projected<Dense>, GnnError> {
        let num_rows = input.rows();
        check_input(&input, num_rows, self.input_dim())?;
        if num_rows == 0 {
            return Ok(Projected {
                rows: Dense::zeros(0, self.src_dim()),
                scores: self.scores_dim().map(|cols| Dense::zeros(0, cols)),
            });
        }
        let pass = &self.stack.pass;
        let features = pass.features(input);
        let projected = self.stack.project(self.layer, &features, num_rows);
        let rows = plain(projected.unwrap_or_else(|| pass.dense(features)))?;
        let scope = self.stack.scope(self.layer);
        let scores = self.scores_dim().map(|_| self.conv().scores(&scope, &rows));
        let scores = scores.transpose()?;
        Ok(Projected { rows, scores })
    }

    /// Runs the layer with its residual, norm and activation.
    ///
    /// # Shapes
    ///
    /// - `src`: `[num_src of the block, _]`, as [`project`](Self::project) returns it, or the rows
    ///   themselves if [`projects`](Self::projects) is false
    /// - `own`: `[num_dst of the block, input width]`, read if [`reads_own`](Self::reads_own)
    /// - returns: `[num_dst of the block, output width]`
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] or [`GnnError::Block`] if the shapes do not fit the layer.
    pub fn run(
        &self,
        block: &Block,
        src: &Projected<ReadyInput>,
        own: Option<ReadyInput>,
    ) -> Result<Dense, GnnError> {
        check_block(self.stack.arch, block)?;
        check_input(&src.rows, block.num_src(), self.src_dim())?;
        if let (Some(scores), Some(cols)) = (&src.scores, self.scores_dim()) {
            check_input(scores, block.num_src(), cols)?;
        }
        self.finish(block, src, own, None)
    }

    /// Runs the rest of the layer for one dst node whose in-edges are already aggregated; its block
    /// needs no in-edges.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_aggregated(
        &self,
        block: &Block,
        src: &Projected<ReadyInput>,
        own: Option<ReadyInput>,
        aggregated: Vec<f32>,
    ) -> Result<Dense, GnnError> {
        let aggregated = ReadyInput::new(Input::Dense(Dense {
            rows: 1,
            cols: self.src_dim(),
            values: aggregated,
        }))?;
        check_input(&aggregated, block.num_dst(), self.src_dim())?;
        self.finish(block, src, own, Some(aggregated))
    }

    fn finish(
        &self,
        block: &Block,
        src: &Projected<ReadyInput>,
        own: Option<ReadyInput>,
        aggregated: Option<ReadyInput>,
    ) -> Result<Dense, GnnError> {
        let own = own.filter(|_| self.reads_own());
        match &own {
            Some(own) => check_input(own, block.num_dst(), self.input_dim())?,
            None if self.reads_own() => {
                let problem = "the rows of the dst nodes are missing".to_owned();
                return Err(GnnError::Input { problem });
            }
            None => {}
        }
        if block.num_dst() == 0 {
            return Ok(Dense::zeros(0, self.output_dim()));
        }
        let (pass, layer) = (&self.stack.pass, self.layer);
        let place = Place { layer, block };
        let dense = |input| pass.dense(pass.features(input));
        let rows = pass.features(src.rows.clone());
        // A conv that does not read `own` gets the aggregated rows, which need no copy.
        let own = own.map_or_else(|| rows.clone(), |input| pass.features(input));
        let residual = self.stack.arch.residual;
        let prepared = Prepared {
            residual: residual.then(|| self.stack.residual(place, &own)),
            src: Src {
                rows,
                scores: src.scores.clone().map(dense),
            },
            is_projected: self.projected_dim.is_some(),
            aggregated: aggregated.map(dense),
        };
        plain(self.stack.finish(place, prepared, &own))
    }

    /// Returns the partial aggregation of the layer, for hubs.
    ///
    /// # Errors
    ///
    /// [`GnnError::Architecture`] if the kind of layer has none; [`GnnError::Device`] if parameters
    /// cannot be read.
    pub fn aggregation(&self) -> Result<Box<dyn PartialAggregation>, GnnError> {
        let scope = self.stack.scope(self.layer);
        let partial = self.conv().partial(&scope, self.src_dim())?;
        partial.ok_or_else(|| GnnError::Architecture {
            key: "layer",
            problem: format!(
                "{} cannot aggregate the in-edges of a hub in parts",
                self.stack.arch.layer.name()
            ),
        })
    }

    /// Returns the query of a dst node, [`PartialAggregation::query_dim`] wide, computed from its
    /// `scores` or from its row `own`.
    ///
    /// # Errors
    ///
    /// [`GnnError::Device`] if the row cannot be read.
    pub fn query(
        &self,
        scores: Option<&[f32]>,
        own: Option<ReadyInput>,
    ) -> Result<Vec<f32>, GnnError> {
        let features = own.map(|row| self.stack.pass.features(row));
        let scope = self.stack.scope(self.layer);
        self.conv().query(&scope, scores, features.as_ref())
    }
}

/// The linear map from embeddings of the last conv to logits, if the model has one.
pub struct Head<'a> {
    stack: Stack<'a>,
    label_scale: Option<&'a LabelScale>,
}

impl<'a> Head<'a> {
    pub(crate) fn new(stack: Stack<'a>, label_scale: Option<&'a LabelScale>) -> Self {
        Head { stack, label_scale }
    }

    /// Turns embeddings of the last conv into logits, for a regression in the unit of its labels.
    /// Without a head, the embeddings are the logits.
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] if the width is not that of the last conv.
    pub fn run(&self, embedding: Dense) -> Result<Dense, GnnError> {
        let (arch, pass) = (self.stack.arch, &self.stack.pass);
        let rows = embedding.rows;
        let input = ReadyInput::new(Input::Dense(embedding))?;
        check_input(&input, rows, arch.output_dim(arch.num_layers))?;
        if rows == 0 {
            return Ok(Dense::zeros(0, arch.out_dim));
        }
        let features = pass.features(input);
        let mut logits = plain(self.stack.head(pass.dense(features)))?;
        if let Some(scale) = self.label_scale {
            scale.undo(&mut logits);
        }
        Ok(logits)
    }
}
