//! The projection, one layer, or the head, on ranges of the nodes of one type of a whole graph.
//!
//! A layer aggregates rows of its [`Source`]s. [`TypedLayerSlice::project`] computes a source's row
//! once per node; [`TypedLayerSlice::run`] computes the rest for a range of one type's nodes. Both
//! run the code of [`TypedModel::forward`](super::TypedModel::forward), and, on the processor, a
//! row's bits do not depend on the other rows of the call. A hub's in-edges of a relation can be
//! aggregated in parts ([`TypedLayerSlice::aggregation`], then
//! [`TypedLayerSlice::run_aggregated`]), with the same
//! result up to rounding.

use burn::tensor::Tensor;

use super::block::{TypedBlock, block_error, of_relation};
use super::check::{check_block, check_raw, check_shape, input_error};
use super::hub;
use super::stack::{Rows, Source, TypedStack};
use crate::block::light_root;
use crate::layer::{Features, Src, plain};
use crate::{Dense, GnnError, Input, LabelScale, Projected, ReadyInput};
use std::ops::Range;

/// The linear maps of raw features, by type.
pub struct TypedProjection<'a> {
    stack: TypedStack<'a>,
}

impl<'a> TypedProjection<'a> {
    pub(super) fn new(stack: TypedStack<'a>) -> Self {
        TypedProjection { stack }
    }

    /// Tells whether [`run`](Self::run) needs the degrees of nodes.
    #[must_use]
    pub fn reads_degrees(&self) -> bool {
        self.stack.arch.is_light()
    }

    /// Returns the rows that layer 1 reads, of some nodes of a type. `input` has their raw features,
    /// and is none if the type has no features. `degrees` has their in-degrees in all relations, if
    /// they are [read](Self::reads_degrees).
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] if the features are not as wide as the architecture says.
    pub fn run(
        &self,
        node_type: usize,
        rows: usize,
        input: Option<ReadyInput>,
        degrees: &[f64],
    ) -> Result<Dense, GnnError> {
        check_raw(self.stack.arch, node_type, input.as_ref(), rows)?;
        if rows == 0 {
            return Ok(Dense::zeros(0, self.stack.arch.input_dim(1)));
        }
        if self.stack.is_graphs(node_type) {
            return Ok(Dense::zeros(rows, self.stack.arch.projection));
        }
        let features = self.stack.raw_features(node_type, input, rows);
        if self.reads_degrees() {
            let same = degrees.len() == rows;
            let problem = || input_error(format!("{} degrees for {rows} rows", degrees.len()));
            same.then_some(()).ok_or_else(problem)?;
            let start = self.stack.pass.dense(features);
            let roots = degrees.iter().map(|&degree| light_root(degree));
            let scaled = start.clone() * self.stack.column(roots.collect());
            return plain(Tensor::cat(vec![scaled, start], 1));
        }
        plain(self.stack.projection(node_type, &features, rows))
    }
}

/// One layer in eval mode.
pub struct TypedLayerSlice<'a> {
    pub(super) stack: TypedStack<'a>,
    /// 1-based.
    pub(super) layer: usize,
    sources: Vec<Source>,
}

impl<'a> TypedLayerSlice<'a> {
    pub(super) fn new(stack: TypedStack<'a>, layer: usize) -> Self {
        let sources = stack.sources(layer);
        TypedLayerSlice {
            stack,
            layer,
            sources,
        }
    }

    /// Lists the matrices that the layer aggregates. Each has a row for every node of its types,
    /// one type after the other.
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Lists the sources that nodes of a type read.
    #[must_use]
    pub fn sources_of(&self, node_type: usize) -> Vec<usize> {
        let all = 0..self.sources.len();
        if self.reads_by_relation() {
            self.stack.schema.into_type(node_type).collect()
        } else {
            all.collect()
        }
    }

    /// Returns the relations whose in-edges aggregate a source.
    #[must_use]
    pub fn relations_of(&self, source: usize) -> Range<usize> {
        if self.reads_by_relation() {
            source..source + 1
        } else {
            0..self.stack.schema.relations.len()
        }
    }

    /// Tells whether there is one source for each relation.
    pub(super) fn reads_by_relation(&self) -> bool {
        !self.stack.convs[self.layer - 1].is_empty()
    }

    /// Returns the width of the rows that the layer reads.
    #[must_use]
    pub fn input_dim(&self) -> usize {
        self.stack.arch.input_dim(self.layer)
    }

    /// Returns the width of the output.
    #[must_use]
    pub fn output_dim(&self) -> usize {
        self.stack.arch.output_dim(self.layer)
    }

    /// Returns the width of the scores that [`project`](Self::project) needs of the layer before;
    /// none unless the layer mixes in the attention of earlier layers.
    #[must_use]
    pub fn carried_dim(&self) -> Option<usize> {
        let earlier = self.stack.arch.mixed_layers(self.layer) - 1;
        (earlier > 0).then(|| 2 * self.stack.arch.heads * earlier)
    }

    /// Turns the rows of some nodes of a type into rows of a source. `carried` has the scores of
    /// the same nodes in the source of the layer before, if [`carried_dim`](Self::carried_dim)
    /// says so.
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] if a shape does not fit, or the type is none of the source's types.
    ///
    /// # Panics
    ///
    /// If there is no such source.
    pub fn project(
        &self,
        source: usize,
        node_type: usize,
        input: ReadyInput,
        carried: Option<ReadyInput>,
    ) -> Result<Projected<Dense>, GnnError> {
        let (of_source, num_rows) = (&self.sources[source], input.rows());
        let Some(name) = self.stack.schema.types.get(node_type) else {
            return Err(input_error(format!("there is no type {node_type}")));
        };
        if !of_source.types.contains(&node_type) {
            return Err(input_error(format!(
                "source {source} has no rows of `{name}`"
            )));
        }
        check_shape(name, &input, (num_rows, self.input_dim()))?;
        let carried = match (carried, self.carried_dim()) {
            (Some(carried), Some(cols)) => {
                check_shape(name, &carried, (num_rows, cols))?;
                Some(carried)
            }
            (None, Some(_)) => {
                let problem = format!("the scores of `{name}` in the layer before are missing");
                return Err(input_error(problem));
            }
            (_, None) => None,
        };
        if num_rows == 0 {
            return Ok(Projected {
                rows: Dense::zeros(0, of_source.dim),
                scores: of_source.scores_dim.map(|cols| Dense::zeros(0, cols)),
            });
        }
        let pass = &self.stack.pass;
        let features = pass.features(input);
        let carried = carried.map(|carried| pass.dense(pass.features(carried)));
        let src = self.stack.project(
            self.layer,
            source,
            node_type,
            (&features, num_rows),
            carried,
        );
        let rows = plain(pass.dense(src.rows))?;
        let scores = match src.scores {
            Some(scores) => Some(plain(scores)?),
            None => self.stack.scores(self.layer, source, &rows)?,
        };
        Ok(Projected { rows, scores })
    }

    /// Runs the layer with its residual, norm and activation on a block made by
    /// [`TypedBlock::of_range`].
    ///
    /// # Shapes
    ///
    /// - `src`: by source, for those of [`sources_of`](Self::sources_of)
    ///   `[all nodes of the source's types, _]`: what [`project`](Self::project) returns, or the
    ///   rows that the layer reads if the source does not [project](Source::projects)
    /// - `own`: `[num_dst of the block, input width]`
    /// - returns: `[num_dst of the block, output width]`
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`], [`GnnError::Block`] or [`GnnError::Relation`] if the shapes do not fit
    /// the layer.
    pub fn run(
        &self,
        block: &TypedBlock,
        src: &[Option<Projected<ReadyInput>>],
        own: &ReadyInput,
    ) -> Result<Dense, GnnError> {
        self.run_with(block, (src, own), &[])
    }

    /// Runs the layer. If some relations' in-edges of the only dst node are `aggregated`, the block
    /// has none of them.
    pub(super) fn run_with(
        &self,
        block: &TypedBlock,
        (src, own): (&[Option<Projected<ReadyInput>>], &ReadyInput),
        aggregated: &[(usize, Vec<f32>)],
    ) -> Result<Dense, GnnError> {
        check_block(self.stack.arch, self.stack.schema, block)?;
        let Some((node_type, range)) = block.range() else {
            let problem = "is missing: the block is not one of a range".to_owned();
            return Err(block_error("first", problem));
        };
        let name = &self.stack.schema.types[*node_type];
        check_shape(name, own, (range.len(), self.input_dim()))?;
        if src.len() != self.sources.len() {
            let (got, wanted) = (src.len(), self.sources.len());
            return Err(input_error(format!(
                "{got} sources are given, but there are {wanted}"
            )));
        }
        for at in self.sources_of(*node_type) {
            self.check_source(at, block, src[at].as_ref())
                .map_err(|source| self.name_source(at, source))?;
        }
        if range.is_empty() {
            return Ok(Dense::zeros(0, self.output_dim()));
        }
        let pass = &self.stack.pass;
        let ready = src.iter().map(|of| {
            let of = of.clone().filter(|of| of.rows.rows() > 0)?;
            Some(Src {
                rows: pass.features(of.rows),
                scores: of.scores.map(|scores| pass.dense(pass.features(scores))),
            })
        });
        let ready: Vec<Option<Src>> = ready.collect();
        let mut own_rows = vec![None; self.stack.schema.types.len()];
        own_rows[*node_type] = Some(Features::Dense(pass.dense(pass.features(own.clone()))));
        let summed = match aggregated {
            [] => {
                let given = (&ready[..], Rows::Projected);
                let mut outs = self.stack.conv(self.layer, block, given, &own_rows);
                outs.swap_remove(*node_type)
            }
            given => hub::conv(&self.stack, self.layer, block, (&ready, given), &own_rows)?,
        };
        let (Some(summed), Some(features)) = (summed, &own_rows[*node_type]) else {
            return Err(input_error(format!("no rows of `{name}` were computed")));
        };
        plain(
            self.stack
                .finish(self.layer, block, *node_type, summed, features),
        )
    }

    fn check_source(
        &self,
        at: usize,
        block: &TypedBlock,
        src: Option<&Projected<ReadyInput>>,
    ) -> Result<(), GnnError> {
        let source = &self.sources[at];
        let rows: usize = source.types.clone().map(|t| block.num_src(t)).sum();
        let name = format!("source {at}");
        let Some(src) = src else {
            return Err(input_error(format!("{name} is missing")));
        };
        check_shape(&name, &src.rows, (rows, source.dim))?;
        match (&src.scores, source.scores_dim) {
            (Some(scores), Some(cols)) => check_shape(&name, scores, (rows, cols)),
            (None, Some(_)) => Err(input_error(format!("the scores of {name} are missing"))),
            (_, None) => Ok(()),
        }
    }

    fn name_source(&self, at: usize, error: GnnError) -> GnnError {
        if self.reads_by_relation() {
            of_relation(&self.stack.schema.relations[at].name, error)
        } else {
            error
        }
    }
}

/// The step from embeddings of the last conv to logits.
pub struct TypedHead<'a> {
    stack: TypedStack<'a>,
    label_scale: Option<&'a LabelScale>,
}

impl<'a> TypedHead<'a> {
    pub(super) fn new(stack: TypedStack<'a>, label_scale: Option<&'a LabelScale>) -> Self {
        TypedHead { stack, label_scale }
    }

    /// Turns embeddings of the last conv into logits: the linear head, if the model has one, and
    /// the division by the length, if it normalises its output. For a regression, logits are in the
    /// unit of its labels.
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] if the width is not that of the last conv.
    pub fn run(&self, embedding: Dense) -> Result<Dense, GnnError> {
        let (arch, pass) = (self.stack.arch, &self.stack.pass);
        let rows = embedding.rows;
        let input = ReadyInput::new(Input::Dense(embedding))?;
        let wanted = (rows, arch.output_dim(arch.num_layers));
        check_shape(&arch.target_type, &input, wanted)?;
        if rows == 0 {
            return Ok(Dense::zeros(0, arch.out_dim));
        }
        let mut logits = plain(self.stack.head(pass.dense(pass.features(input))))?;
        if let Some(scale) = self.label_scale {
            scale.undo(&mut logits);
        }
        Ok(logits)
    }
}
