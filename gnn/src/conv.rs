//! One conv, or the head, on blocks that are ranges of the nodes of a whole graph.
//!
//! The rows of all nodes lie in one array that blocks share and read by position. What a conv makes of
//! each row before it aggregates is computed once a node, by [`Conv::project`]; [`Conv::run`] is the
//! rest. Both run the code that [`Model::forward`] runs, and a row's bits do not depend on the rows
//! that it is computed with. A node with very many in-edges can be aggregated some of them at a time
//! ([`Conv::aggregation`], then [`Conv::run_aggregated`]), with the same result up to rounding.
//!
//! Kernels split their work over the threads of the pool they are called on; a caller that runs many
//! blocks side by side gives each of its threads a pool of one.

use crate::aggregation::{Aggregation, Kind};
use crate::kernel::node_scores;
use crate::layer::{Pass, Place, Src, projection, reads_own};
use crate::model::{check_input, plain};
use crate::{Aggregator, Block, Dense, GnnError, Input, LayerKind, Model, ReadyInput};

/// One conv in eval mode.
pub struct Conv<'a> {
    model: &'a Model,
    pass: Pass<'a>,
    layer: usize,
    is_sparse: bool,
    projection: Option<String>,
}

/// What a conv aggregates of some nodes.
#[derive(Clone, Debug)]
pub struct Projected<T> {
    /// A row for each node, [`Conv::src_dim`] wide.
    pub rows: T,
    /// A row for each node, [`Conv::scores_dim`] wide, where there are such.
    pub scores: Option<T>,
}

impl<'a> Conv<'a> {
    pub(crate) fn new(model: &'a Model, pass: Pass<'a>, layer: usize, is_sparse: bool) -> Self {
        let projection = projection(model.architecture(), layer, is_sparse);
        Conv {
            model,
            pass,
            layer,
            is_sparse,
            projection,
        }
    }

    /// Tells whether what is aggregated differs from the rows that the conv reads.
    #[must_use]
    pub fn projects(&self) -> bool {
        self.projection.is_some() || self.is_sparse
    }

    /// Tells whether [`run`](Conv::run) needs the rows of the dst nodes besides what is aggregated.
    #[must_use]
    pub fn reads_own(&self) -> bool {
        reads_own(self.model.architecture())
    }

    /// Returns the width of what is aggregated.
    #[must_use]
    pub fn src_dim(&self) -> usize {
        match &self.projection {
            Some(map) => self.pass.parameter(&format!("{map}.weight")).dims()[0],
            None => self.model.architecture().input_dim(self.layer),
        }
    }

    /// Returns the width of the scores, where the conv has such.
    #[must_use]
    pub fn scores_dim(&self) -> Option<usize> {
        let arch = self.model.architecture();
        (arch.layer == LayerKind::Gat).then(|| 2 * arch.heads_of(self.layer).0)
    }

    /// Returns the width of the output.
    #[must_use]
    pub fn output_dim(&self) -> usize {
        self.model.architecture().output_dim(self.layer)
    }

    /// Computes what is aggregated of some nodes from their rows.
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] if the rows are not as wide as the conv reads them.
    pub fn project(&self, input: ReadyInput) -> Result<Projected<Dense>, GnnError> {
        let num_rows = input.rows();
        check_input(
            &input,
            num_rows,
            self.model.architecture().input_dim(self.layer),
        )?;
        if num_rows == 0 {
            return Ok(Projected {
                rows: Dense::zeros(0, self.src_dim()),
                scores: self.scores_dim().map(|cols| Dense::zeros(0, cols)),
            });
        }
        let features = self.pass.features(input);
        let projected = self.pass.project(self.layer, &features, num_rows);
        let rows = plain(projected.unwrap_or_else(|| self.pass.dense(features)))?;
        let scores = self.scores_dim().map(|cols| self.scores(&rows, cols));
        let scores = scores.transpose()?;
        Ok(Projected { rows, scores })
    }

    fn scores(&self, rows: &Dense, cols: usize) -> Result<Dense, GnnError> {
        let att = |name| plain(self.pass.own(self.layer, name));
        let (src, dst) = (att("att_src")?, att("att_dst")?);
        Ok(Dense {
            rows: rows.rows,
            cols,
            values: node_scores(&rows.values, [&src.values, &dst.values], cols / 2),
        })
    }

    /// Runs the conv with its residual, norm and activation.
    ///
    /// # Shapes
    ///
    /// - `src`: `[num_src of the block, _]`, as [`project`](Conv::project) gives it, or the rows
    ///   themselves where nothing is projected
    /// - `own`: `[num_dst of the block, input width]`, read where [`reads_own`](Conv::reads_own)
    /// - returns: `[num_dst of the block, output width]`
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] or [`GnnError::Block`] if the shapes do not fit the conv.
    pub fn run(
        &self,
        block: &Block,
        src: &Projected<ReadyInput>,
        own: Option<ReadyInput>,
    ) -> Result<Dense, GnnError> {
        self.model.check_block(block)?;
        check_input(&src.rows, block.num_src(), self.src_dim())?;
        if let (Some(scores), Some(cols)) = (&src.scores, self.scores_dim()) {
            check_input(scores, block.num_src(), cols)?;
        }
        self.finish(block, src, own, None)
    }

    /// Does the rest of [`run`](Conv::run) for one dst node whose in-edges are aggregated already; its
    /// block needs none.
    ///
    /// # Errors
    ///
    /// As [`run`](Conv::run).
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
            Some(own) => {
                let cols = self.model.architecture().input_dim(self.layer);
                check_input(own, block.num_dst(), cols)?;
            }
            None if self.reads_own() => {
                let problem = "the rows of the dst nodes are missing".to_owned();
                return Err(GnnError::Input { problem });
            }
            None => {}
        }
        if block.num_dst() == 0 {
            return Ok(Dense::zeros(0, self.output_dim()));
        }
        let (pass, layer) = (&self.pass, self.layer);
        let place = Place { layer, block };
        let dense = |input| pass.dense(pass.features(input));
        let rows = pass.features(src.rows.clone());
        // A conv that does not read them is handed what it aggregates, which costs nothing.
        let own = own.map_or_else(|| rows.clone(), |input| pass.features(input));
        let residual = self.model.architecture().residual;
        let residual = residual.then(|| pass.residual(place, &own));
        let src = Src {
            rows,
            is_projected: self.projection.is_some(),
            scores: src.scores.clone().map(dense),
            aggregated: aggregated.map(dense),
        };
        plain(pass.aggregate(place, src, own, residual))
    }

    /// Returns how the conv aggregates some in-edges of a node at a time.
    ///
    /// # Errors
    ///
    /// [`GnnError::Device`] if parameters cannot be read.
    pub fn aggregation(&self) -> Result<Aggregation, GnnError> {
        let (arch, layer) = (self.model.architecture(), self.layer);
        let values = |name: &str| Ok(plain(self.pass.own(layer, name))?.values);
        let has_features = arch.edge_dim.is_some();
        let heads = arch.heads_of(layer).0;
        let kind = match (arch.layer, arch.aggregator) {
            (LayerKind::Gcn, _) => Kind::Gcn,
            (LayerKind::Sage, Aggregator::Mean) => Kind::Mean,
            (LayerKind::Sage, Aggregator::Max) => Kind::Max,
            (LayerKind::Gin, _) if has_features => Kind::Gine {
                weight: values("lin.weight")?,
                bias: values("lin.bias")?,
            },
            (LayerKind::Gin, _) => Kind::Sum,
            (LayerKind::Gat, _) => {
                let edge = has_features.then(|| plain(self.pass.edge_map(layer)));
                let edge = edge.transpose()?;
                Kind::Gat { heads, edge }
            }
            (LayerKind::GatV2, _) => {
                let edge = has_features.then(|| values("lin_edge.weight"));
                Kind::GatV2 {
                    heads,
                    att: values("att")?,
                    edge: edge.transpose()?,
                }
            }
        };
        Ok(Aggregation {
            kind,
            dim: self.src_dim(),
            edge_weight: arch.edge_weight,
        })
    }

    /// Returns what attention has to know of a dst node besides its in-edges, [`Aggregation::query_dim`]
    /// wide: of `scores` those of its row, and the row that the conv reads of it.
    ///
    /// # Errors
    ///
    /// [`GnnError::Device`] if the row cannot be read.
    pub fn query(
        &self,
        scores: Option<&[f32]>,
        own: Option<ReadyInput>,
    ) -> Result<Vec<f32>, GnnError> {
        let features = own.map(|row| self.pass.features(row));
        match (self.model.architecture().layer, scores, features) {
            (LayerKind::Gat, Some(scores), _) => Ok(scores[scores.len() / 2..].to_vec()),
            (LayerKind::GatV2, _, Some(row)) => {
                Ok(plain(self.pass.project_dst(self.layer, &row, 1))?.values)
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// The linear map from embeddings of the last conv to logits, where the model has one.
pub struct Head<'a> {
    model: &'a Model,
    pass: Pass<'a>,
}

impl<'a> Head<'a> {
    pub(crate) fn new(model: &'a Model, pass: Pass<'a>) -> Self {
        Head { model, pass }
    }

    /// Turns embeddings of the last conv into logits; without a head they are the logits.
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] if the width is not that of the last conv.
    pub fn run(&self, embedding: Dense) -> Result<Dense, GnnError> {
        let arch = self.model.architecture();
        let rows = embedding.rows;
        let input = ReadyInput::new(Input::Dense(embedding))?;
        check_input(&input, rows, arch.output_dim(arch.num_layers))?;
        if rows == 0 {
            return Ok(Dense::zeros(0, arch.out_dim));
        }
        let features = self.pass.features(input);
        plain(self.pass.head(self.pass.dense(features)))
    }
}
