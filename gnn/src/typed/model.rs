//! A typed model: its parameters and its forward pass.

use std::sync::Arc;

use burn::tensor::Element;

use super::architecture::TypedArchitecture;
use super::block::TypedBlock;
use super::check::{check, check_block, check_shape, input_error};
use super::schema::Schema;
use super::slice::{TypedHead, TypedLayerSlice, TypedProjection};
use super::stack::{self, TypeRows, TypedStack};
use crate::kernel::Float;
use crate::layer::{Conv, plain};
use crate::model::{ModelState, compute_on};
use crate::{Dense, Device, GnnError, Input, LabelScale, Mode, ParameterInfo, ReadyInput, Scorer};

/// A typed model: an architecture and its parameters.
#[derive(Clone, Debug)]
pub struct TypedModel {
    pub(super) arch: TypedArchitecture,
    pub(super) schema: Arc<Schema>,
    pub(super) convs: Vec<Vec<Arc<dyn Conv>>>,
    pub(super) state: ModelState,
    pub(super) class_weights: Vec<f32>,
    pub(super) label_scale: Option<LabelScale>,
    pub(super) device: Device,
}

impl TypedModel {
    /// Makes a model whose parameters are drawn by a pure function of `arch` and `seed`.
    ///
    /// # Errors
    ///
    /// [`GnnError::Architecture`] if `arch` is invalid or too large.
    pub fn init(arch: &TypedArchitecture, seed: u64) -> Result<TypedModel, GnnError> {
        arch.validate()?;
        let convs = arch.convs();
        Ok(TypedModel {
            arch: arch.clone(),
            schema: Arc::new(arch.schema()),
            state: ModelState::draw(arch.tensors(&convs), seed),
            convs,
            class_weights: Vec::new(),
            label_scale: None,
            device: Device::cpu(),
        })
    }

    /// Returns the architecture.
    #[must_use]
    pub fn architecture(&self) -> &TypedArchitecture {
        &self.arch
    }

    /// Returns the types and relations, with which blocks are made.
    #[must_use]
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Lists the parameters; the flat vector is their concatenation in this order.
    #[must_use]
    pub fn parameters(&self) -> &[ParameterInfo] {
        &self.state.infos
    }

    /// Returns a copy of the flat parameters.
    #[must_use]
    pub fn flat(&self) -> Vec<f32> {
        self.state.flat.clone()
    }

    /// Replaces the flat parameters.
    ///
    /// # Panics
    ///
    /// If the length differs.
    pub fn set_flat(&mut self, values: &[f32]) {
        self.state.flat.copy_from_slice(values);
    }

    /// Returns batch norm's running means and variances; empty without batch norm.
    #[must_use]
    pub fn buffers(&self) -> &[f32] {
        &self.state.buffers
    }

    /// Replaces batch norm's running means and variances.
    ///
    /// # Panics
    ///
    /// If the length differs.
    pub fn set_buffers(&mut self, values: &[f32]) {
        self.state.buffers.copy_from_slice(values);
    }

    /// Sets the device that the model computes on; the default is the processor.
    pub fn set_device(&mut self, device: Device) {
        self.device = device;
    }

    /// Returns a copy of the model on a device.
    #[must_use]
    pub fn on(&self, device: Device) -> TypedModel {
        let mut model = self.clone();
        model.set_device(device);
        model
    }

    /// Returns the device that the model computes on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Sets class weights, as [`Model::set_class_weights`](crate::Model::set_class_weights).
    ///
    /// # Panics
    ///
    /// If there are weights, but not one per class.
    pub fn set_class_weights(&mut self, weights: Vec<f32>) {
        let fits = weights.is_empty() || weights.len() == self.arch.out_dim;
        assert!(fits, "one weight per class");
        self.class_weights = weights;
    }

    /// Sets the unit of a regression's labels, as
    /// [`Model::set_label_scale`](crate::Model::set_label_scale).
    ///
    /// # Errors
    ///
    /// [`GnnError::Transform`] if the model is not a regression, or the scale has another width.
    pub fn set_label_scale(&mut self, scale: LabelScale) -> Result<(), GnnError> {
        scale.check(self.arch.task, self.arch.out_dim)?;
        self.label_scale = Some(scale);
        Ok(())
    }

    /// Returns the unit of a regression's labels, if one was set.
    #[must_use]
    pub fn label_scale(&self) -> Option<&LabelScale> {
        self.label_scale.as_ref()
    }

    /// Computes coefficients and transposes of a batch's blocks before its first training pass; the
    /// blocks keep them.
    pub fn prepare(&self, blocks: &[TypedBlock], input: &[Option<ReadyInput>]) {
        stack::prepare(&self.arch, &self.convs, blocks, input);
    }

    /// Returns the logits of the last block's dst nodes of the target type; for a regression with a
    /// label scale, numbers in the unit of the labels. For links, returns the embeddings of the dst
    /// nodes of all types, type after type.
    ///
    /// # Shapes
    ///
    /// - `blocks`: one per conv, the first for conv 1; the src nodes of a block are the dst nodes
    ///   of the one before
    /// - `input`: for each type `[num_src of blocks[0], in_dim]`; none for types without features,
    ///   and for types without src nodes
    /// - returns: `[num_dst of the last block, out_dim]`
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`], [`GnnError::Block`] or [`GnnError::Relation`] if the shapes do not fit
    /// the model; [`GnnError::Device`] if a GPU fails.
    pub fn forward(
        &self,
        blocks: &[TypedBlock],
        input: &[Option<ReadyInput>],
        mode: Mode,
    ) -> Result<Dense, GnnError> {
        let targets = check(&self.arch, &self.schema, blocks, input)?;
        if targets == 0 {
            return Ok(Dense::zeros(0, self.arch.out_dim));
        }
        compute_on(&self.device, || {
            let stack = self.stack(&self.state.flat, (&self.device, false), mode, |_| true);
            let logits = self.in_label_unit(plain(stack.run(blocks, input))?);
            stack.pass.failure.take().map_or(Ok(logits), Err)
        })
    }

    /// Returns the rows of the last block's dst nodes of a type after conv `layer` (1-based), in
    /// eval mode, and their logits if `with_logits`.
    ///
    /// # Shapes
    ///
    /// As [`TypedModel::forward`]; the rows are `[num_dst of the last block, output width]`.
    ///
    /// # Errors
    ///
    /// As [`TypedModel::forward`].
    ///
    /// # Panics
    ///
    /// If the model has no layer `layer`, or with logits of another type than the target type.
    pub fn forward_embedding(
        &self,
        (blocks, input): (&[TypedBlock], &[Option<ReadyInput>]),
        (layer, node_type): (usize, usize),
        with_logits: bool,
    ) -> Result<(Dense, Option<Dense>), GnnError> {
        self.assert_layer(layer);
        assert!(
            !with_logits || node_type == self.arch.target(),
            "nodes of the target type have logits"
        );
        check(&self.arch, &self.schema, blocks, input)?;
        let num_rows = blocks.last().map_or(0, |last| last.num_dst(node_type));
        let cols = self.arch.output_dim(layer);
        if num_rows == 0 {
            let logits = with_logits.then(|| Dense::zeros(0, self.arch.out_dim));
            return Ok((Dense::zeros(0, cols), logits));
        }
        compute_on(&self.device, || {
            let on = (&self.device, false);
            let stack = self.stack(&self.state.flat, on, Mode::Eval, |_| true);
            let num_layers = if with_logits { blocks.len() } else { layer };
            let wanted = (layer, node_type);
            let [rows, last] = stack.run_layers(&blocks[..num_layers], input, wanted);
            let there = "the caller has checked that there are rows";
            let rows = rows.expect(there).narrow(0, 0, num_rows);
            let logits = with_logits.then(|| stack.head(last.expect(there)));
            let logits = logits.map(|logits| Ok(self.in_label_unit(plain(logits)?)));
            let done = (plain(rows)?, logits.transpose()?);
            stack.pass.failure.take().map_or(Ok(done), Err)
        })
    }

    /// Runs conv `layer` (1-based) with its residual, norm and activation in eval mode, for all
    /// types. Types without nodes have no rows.
    ///
    /// Not for models that mix the attention of several layers:
    /// [`forward`](TypedModel::forward) and [`layer_slice`](TypedModel::layer_slice) carry it from
    /// layer to layer.
    ///
    /// # Errors
    ///
    /// As [`TypedModel::forward`].
    ///
    /// # Panics
    ///
    /// If the model has no layer `layer`, or the layer mixes the attention of several.
    pub fn forward_layer(
        &self,
        layer: usize,
        block: &TypedBlock,
        input: &[Option<Dense>],
    ) -> Result<Vec<Option<Dense>>, GnnError> {
        self.assert_layer(layer);
        assert_eq!(
            self.arch.mixed_layers(layer),
            1,
            "the layer mixes in no attention of earlier layers"
        );
        check_block(&self.arch, &self.schema, block)?;
        if input.len() != self.schema.types.len() {
            let (got, wanted) = (input.len(), self.schema.types.len());
            return Err(input_error(format!("{got} matrices for {wanted} types")));
        }
        compute_on(&self.device, || {
            let of_layer = |info: &ParameterInfo| info.layer == layer;
            let on = (&self.device, false);
            let stack = self.stack(&self.state.flat, on, Mode::Eval, of_layer);
            let mut rows = Vec::new();
            for (t, of_type) in input.iter().enumerate() {
                let num_src = block.num_src(t);
                let Some(of_type) = of_type.clone().filter(|_| num_src > 0) else {
                    rows.push(None);
                    continue;
                };
                let ready = ReadyInput::new(Input::Dense(of_type))?;
                let wanted = (num_src, self.arch.input_dim(layer));
                check_shape(&self.schema.types[t], &ready, wanted)?;
                let (rows_of_type, carried) = (stack.pass.dense(stack.pass.features(ready)), None);
                rows.push(Some(TypeRows {
                    raw: None,
                    rows: rows_of_type,
                    carried,
                }));
            }
            let read = |of: Option<TypeRows>| of.map(|of| plain(of.rows)).transpose();
            let outs = stack.layer(layer, block, rows);
            outs.into_iter().map(read).collect()
        })
    }

    /// Returns the linear maps of raw features, which run on many rows.
    #[must_use]
    pub fn projection(&self) -> TypedProjection<'_> {
        let wanted = |info: &ParameterInfo| info.layer == 0;
        let stack = self.stack(&self.state.flat, (&self.device, false), Mode::Eval, wanted);
        TypedProjection::new(stack)
    }

    /// Returns a layer (1-based) that runs on many blocks in eval mode, each a range of the nodes of
    /// one type of a graph.
    ///
    /// # Panics
    ///
    /// If the model has no layer `layer`.
    #[must_use]
    pub fn layer_slice(&self, layer: usize) -> TypedLayerSlice<'_> {
        self.assert_layer(layer);
        let oldest = layer + 1 - self.arch.mixed_layers(layer);
        let wanted = |info: &ParameterInfo| (oldest..=layer).contains(&info.layer);
        let stack = self.stack(&self.state.flat, (&self.device, false), Mode::Eval, wanted);
        TypedLayerSlice::new(stack, layer)
    }

    /// Returns the head, which runs on many rows.
    #[must_use]
    pub fn head(&self) -> TypedHead<'_> {
        let wanted = |info: &ParameterInfo| info.layer == 0;
        let stack = self.stack(&self.state.flat, (&self.device, false), Mode::Eval, wanted);
        TypedHead::new(stack, self.label_scale.as_ref())
    }

    fn assert_layer(&self, layer: usize) {
        assert!(
            (1..=self.arch.num_layers).contains(&layer),
            "layers count from 1"
        );
    }

    /// Makes tensors of the parameters that `wanted` picks, in the number type of `flat` and on a
    /// device, with gradients if `tracked`.
    pub(super) fn stack<'a, F: Float + Element>(
        &'a self,
        flat: &[F],
        (on, tracked): (&Device, bool),
        mode: Mode,
        wanted: impl Fn(&ParameterInfo) -> bool,
    ) -> TypedStack<'a> {
        TypedStack {
            arch: &self.arch,
            schema: &self.schema,
            convs: &self.convs,
            pass: self.state.pass(flat, (on, tracked), mode, wanted),
        }
    }

    /// Returns the decoder with its parameters, for a model of links.
    #[must_use]
    pub fn scorer(&self) -> Option<Scorer> {
        self.state.scorer(self.arch.task, self.arch.out_dim)
    }

    /// Undoes the scaling of labels.
    pub(super) fn in_label_unit(&self, mut outputs: Dense) -> Dense {
        if let Some(scale) = &self.label_scale {
            scale.undo(&mut outputs);
        }
        outputs
    }
}
