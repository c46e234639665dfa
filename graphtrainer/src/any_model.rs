//! A model of an untyped or of a typed graph, behind one set of calls.

mod file;

use std::sync::Arc;

use gnn::kernel::Partitioning;
use gnn::typed::{
    RelationEnds, Schema, TypedArchitecture, TypedBlock, TypedBlockData, TypedKind, TypedModel,
};
use gnn::{
    Architecture, Block, BlockData, Dense, Device, GnnError, LabelScale, Labels, LayerKind,
    LossAndGradient, Mode, Model, ParameterInfo, Readout, ReadyInput, Scorer, Task,
};
use schemas::GraphMeta;
use serde::Serialize;

use crate::batch::EdgeColumns;

pub(crate) use file::About;
pub use file::{AnyModelFile, load_any_with};

/// The architecture of a model of an untyped or of a typed graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum AnyArchitecture {
    /// Of a graph with one unnamed type and one unnamed relation.
    Untyped(Box<Architecture>),
    /// Of a graph with named types and relations.
    Typed(Box<TypedArchitecture>),
}

/// A model of an untyped or of a typed graph.
#[derive(Clone, Debug)]
pub enum AnyModel {
    /// Of a graph with one unnamed type and one unnamed relation.
    Untyped(Box<Model>),
    /// Of a graph with named types and relations.
    Typed(Box<TypedModel>),
}

/// The blocks of a batch, layer 1 first, and the input of layer 1.
#[derive(Clone, Debug)]
pub enum AnyBlocks {
    /// Of an untyped graph. The input is none if nodes have learnable rows.
    Untyped(Vec<Block>, Box<Option<ReadyInput>>),
    /// Of a typed graph; the input is by type, and none of a type without features, or whose nodes
    /// have learnable rows.
    Typed(Vec<TypedBlock>, Vec<Option<ReadyInput>>),
}

/// Evaluates an expression on what either variant holds.
macro_rules! on_either {
    ($enum:ident, $value:expr, $held:ident => $result:expr) => {
        match $value {
            $enum::Untyped($held) => $result,
            $enum::Typed($held) => $result,
        }
    };
}

/// Why a model can always compute its batch.
const SAME_KIND: &str = "a model and its blocks are of one graph";

/// Returns the types and relations of a graph.
pub fn schema_of(graph: &GraphMeta) -> Schema {
    let relations = graph.relations.iter().map(|relation| RelationEnds {
        name: relation.name.clone(),
        from: relation.from,
        to: relation.to,
    });
    Schema {
        types: graph.types.iter().map(|of| of.name.clone()).collect(),
        relations: relations.collect(),
    }
}

/// Tells whether a graph has named types and relations.
fn is_typed(schema: &Schema) -> bool {
    schema.types.iter().any(|name| !name.is_empty())
}

impl AnyArchitecture {
    /// Checks that the keys fit together.
    ///
    /// # Errors
    ///
    /// [`GnnError::Architecture`] names the first key that does not fit.
    pub fn validate(&self) -> Result<(), GnnError> {
        on_either!(AnyArchitecture, self, arch => arch.validate())
    }

    /// Lists the parameters of a model of this architecture.
    ///
    /// # Panics
    ///
    /// If the architecture is not valid.
    pub fn parameters(&self) -> Vec<ParameterInfo> {
        on_either!(AnyArchitecture, self, arch => arch.parameters())
    }

    /// Sets the widths of the transformed features, by type; learnable rows come after them.
    pub(crate) fn set_feature_dims(&mut self, widths: &[usize]) {
        match self {
            Self::Untyped(arch) => arch.in_dim = widths[0] + arch.embedding_dim.unwrap_or(0),
            Self::Typed(arch) => {
                for (of_type, &width) in arch.types.iter_mut().zip(widths) {
                    let in_dim = width + of_type.embedding_dim.unwrap_or(0);
                    of_type.in_dim = of_type.in_dim.map(|_| in_dim);
                }
            }
        }
    }

    /// Returns the widths of the learnable rows, by type.
    pub fn embedding_dims(&self) -> Vec<Option<usize>> {
        match self {
            Self::Untyped(arch) => vec![arch.embedding_dim],
            Self::Typed(arch) => arch.types.iter().map(|of| of.embedding_dim).collect(),
        }
    }

    /// Returns the names of the types; one empty name in an untyped graph.
    pub fn type_names(&self) -> Vec<&str> {
        match self {
            Self::Untyped(_) => vec![""],
            Self::Typed(arch) => arch.types.iter().map(|of| &of.name[..]).collect(),
        }
    }

    /// Tells whether training drops values; masks depend on the keys of nodes.
    pub fn has_dropout(&self) -> bool {
        on_either!(AnyArchitecture, self, arch => {
            let rates = [arch.dropout, arch.input_dropout, arch.attention_dropout];
            rates.into_iter().any(|rate| rate > 0.0)
        })
    }

    /// Returns the meaning of the logits.
    pub fn task(&self) -> Task {
        on_either!(AnyArchitecture, self, arch => arch.task)
    }

    /// Returns the width of the logits.
    pub fn out_dim(&self) -> usize {
        on_either!(AnyArchitecture, self, arch => arch.out_dim)
    }

    /// Returns the readout of a model whose targets are graphs.
    pub fn readout(&self) -> Option<Readout> {
        match self {
            Self::Untyped(_) => None,
            Self::Typed(arch) => arch.readout,
        }
    }

    /// Returns the number of layers, a linear head included and the readout, which has no
    /// parameters, left out.
    pub(crate) fn last_layer(&self) -> usize {
        let all = on_either!(AnyArchitecture, self, arch => arch.num_layers + usize::from(arch.has_head()));
        all - usize::from(self.readout().is_some())
    }

    /// Returns the layer that a parameter counts to. The head is the layer after the last; the
    /// projections of features count to layer 1.
    pub(crate) fn layer_of(&self, parameter: &ParameterInfo) -> usize {
        match (self, parameter.layer) {
            (Self::Typed(_), 0) if parameter.name.starts_with("lins.") => 1,
            (_, 0) => self.last_layer(),
            (_, layer) => layer,
        }
    }

    /// Returns the columns of edges that the model reads, by relation.
    pub fn edge_columns(&self) -> Vec<EdgeColumns> {
        match self {
            Self::Untyped(arch) => vec![EdgeColumns {
                weight: arch.edge_weight,
                dim: arch.edge_dim,
            }],
            Self::Typed(arch) => {
                let columns = arch.relations.iter().map(|relation| EdgeColumns {
                    weight: relation.edge_weight,
                    dim: relation.edge_dim,
                });
                columns.collect()
            }
        }
    }

    /// Tells whether the model reads degrees, sums of weights or self-loops of sources.
    pub fn reads_source_degrees(&self) -> bool {
        on_either!(AnyArchitecture, self, arch => arch.layer.reads_source_degrees())
    }

    /// Tells for each type whether the model reads features of its nodes.
    pub(crate) fn reads_features(&self) -> Vec<bool> {
        match self {
            Self::Untyped(arch) => vec![arch.features_dim() > 0],
            Self::Typed(arch) => arch.types.iter().map(|of| of.features_dim() > 0).collect(),
        }
    }
}

impl AnyModel {
    /// Makes a model whose parameters are drawn by a pure function of `arch` and `seed`.
    ///
    /// # Errors
    ///
    /// [`GnnError::Architecture`] if `arch` is invalid or too large.
    pub fn init(arch: &AnyArchitecture, seed: u64) -> Result<Self, GnnError> {
        Ok(match arch {
            AnyArchitecture::Untyped(arch) => Self::Untyped(Box::new(Model::init(arch, seed)?)),
            AnyArchitecture::Typed(arch) => Self::Typed(Box::new(TypedModel::init(arch, seed)?)),
        })
    }

    /// Returns the meaning of the logits.
    pub fn task(&self) -> Task {
        on_either!(AnyModel, self, model => model.architecture().task)
    }

    /// Tells whether the model is a `LightGCN`.
    pub(crate) fn is_light(&self) -> bool {
        match self {
            Self::Untyped(model) => model.architecture().layer == LayerKind::LightGcn,
            Self::Typed(model) => {
                model.architecture().layer == TypedKind::Conv(LayerKind::LightGcn)
            }
        }
    }

    /// Returns the width of the logits.
    pub fn out_dim(&self) -> usize {
        on_either!(AnyModel, self, model => model.architecture().out_dim)
    }

    /// Lists the parameters; the flat vector is their concatenation in this order.
    pub fn parameters(&self) -> &[ParameterInfo] {
        on_either!(AnyModel, self, model => model.parameters())
    }

    /// Returns the number of values of all parameters.
    pub fn num_values(&self) -> usize {
        self.parameters().iter().map(ParameterInfo::len).sum()
    }

    /// Returns a copy of the flat parameters.
    pub fn flat(&self) -> Vec<f32> {
        on_either!(AnyModel, self, model => model.flat())
    }

    /// Replaces the flat parameters.
    ///
    /// # Panics
    ///
    /// If the length differs.
    pub fn set_flat(&mut self, values: &[f32]) {
        on_either!(AnyModel, self, model => model.set_flat(values));
    }

    /// Returns batch norm's running means and variances; empty without batch norm.
    pub fn buffers(&self) -> &[f32] {
        on_either!(AnyModel, self, model => model.buffers())
    }

    /// Replaces batch norm's running means and variances.
    ///
    /// # Panics
    ///
    /// If the length differs.
    pub fn set_buffers(&mut self, values: &[f32]) {
        on_either!(AnyModel, self, model => model.set_buffers(values));
    }

    /// Sets class weights, as [`Model::set_class_weights`].
    ///
    /// # Panics
    ///
    /// If there are weights, but not one per class.
    pub fn set_class_weights(&mut self, weights: Vec<f32>) {
        on_either!(AnyModel, self, model => model.set_class_weights(weights));
    }

    /// Sets the unit of a regression's labels, as [`Model::set_label_scale`].
    ///
    /// # Errors
    ///
    /// [`GnnError::Transform`] if the model is not a regression, or the scale has another width.
    pub fn set_label_scale(&mut self, scale: LabelScale) -> Result<(), GnnError> {
        on_either!(AnyModel, self, model => model.set_label_scale(scale))
    }

    /// Returns the unit of a regression's labels, if one was set.
    pub fn label_scale(&self) -> Option<&LabelScale> {
        on_either!(AnyModel, self, model => model.label_scale())
    }

    /// Returns the decoder with its parameters, for a model of links.
    pub fn scorer(&self) -> Option<Scorer> {
        on_either!(AnyModel, self, model => model.scorer())
    }

    /// Sets the device that the model computes on; the default is the processor.
    pub(crate) fn set_device(&mut self, device: Device) {
        on_either!(AnyModel, self, model => model.set_device(device));
    }

    /// Returns the device that the model computes on.
    pub fn device(&self) -> &Device {
        on_either!(AnyModel, self, model => model.device())
    }

    /// Computes coefficients and transposes of a batch's blocks before its first training pass; the
    /// blocks keep them.
    ///
    /// # Panics
    ///
    /// If the blocks are of another kind of graph.
    pub fn prepare(&self, blocks: &AnyBlocks) {
        match (self, blocks) {
            (Self::Untyped(model), AnyBlocks::Untyped(blocks, input)) => {
                model.prepare(blocks, Option::as_ref(input));
            }
            (Self::Typed(model), AnyBlocks::Typed(blocks, input)) => model.prepare(blocks, input),
            _ => unreachable!("{SAME_KIND}"),
        }
    }

    /// Returns the logits of the targets, as [`Model::forward`]. `learnable` has the input of types
    /// whose nodes have learnable rows, by type; it may be empty if there are none.
    ///
    /// # Errors
    ///
    /// As [`Model::forward`].
    ///
    /// # Panics
    ///
    /// If the blocks are of another kind of graph.
    pub fn forward(
        &self,
        blocks: &AnyBlocks,
        learnable: &[Option<ReadyInput>],
        mode: Mode,
    ) -> Result<Dense, GnnError> {
        match (self, blocks) {
            (Self::Untyped(model), AnyBlocks::Untyped(blocks, input)) => {
                model.forward(blocks, &untyped_input(input, learnable)?, mode)
            }
            (Self::Typed(model), AnyBlocks::Typed(blocks, input)) => {
                model.forward(blocks, &typed_input(input, learnable), mode)
            }
            _ => unreachable!("{SAME_KIND}"),
        }
    }

    /// Returns the loss of a batch and its gradient, as [`Model::loss_and_gradient`]. The input
    /// `learnable` is that of [`forward`](Self::forward).
    ///
    /// # Errors
    ///
    /// As [`Model::loss_and_gradient`].
    ///
    /// # Panics
    ///
    /// If the blocks are of another kind of graph.
    pub fn loss_and_gradient(
        &self,
        (blocks, learnable): (&AnyBlocks, &[Option<ReadyInput>]),
        labels: &Labels,
        normalizer: f32,
        mode: Mode,
    ) -> Result<LossAndGradient, GnnError> {
        match (self, blocks) {
            (Self::Untyped(model), AnyBlocks::Untyped(blocks, input)) => {
                let input = untyped_input(input, learnable)?;
                model.loss_and_gradient(blocks, &input, labels, normalizer, mode)
            }
            (Self::Typed(model), AnyBlocks::Typed(blocks, input)) => {
                let input = typed_input(input, learnable);
                model.loss_and_gradient(blocks, &input, labels, normalizer, mode)
            }
            _ => unreachable!("{SAME_KIND}"),
        }
    }
}

/// Returns the input of an untyped graph's nodes: of the batch, or with their learnable rows.
fn untyped_input(
    input: &Option<ReadyInput>,
    learnable: &[Option<ReadyInput>],
) -> Result<ReadyInput, GnnError> {
    let found = input
        .as_ref()
        .or(learnable.first().and_then(Option::as_ref));
    found.cloned().ok_or_else(|| GnnError::Input {
        problem: "the learnable rows are missing".to_owned(),
    })
}

/// Returns the input by type: of the batch, or with learnable rows.
fn typed_input(
    input: &[Option<ReadyInput>],
    learnable: &[Option<ReadyInput>],
) -> Vec<Option<ReadyInput>> {
    let mut all = input.to_vec();
    for (of_type, with_rows) in all.iter_mut().zip(learnable) {
        if with_rows.is_some() {
            of_type.clone_from(with_rows);
        }
    }
    all
}

impl AnyBlocks {
    /// Makes the blocks of `data`, layer 1 first, of a graph with these types and relations.
    ///
    /// # Errors
    ///
    /// [`GnnError::Block`] if the data contradict themselves.
    pub(crate) fn new(
        schema: &Arc<Schema>,
        data: Vec<TypedBlockData>,
        mut input: Vec<Option<ReadyInput>>,
        partitioning: Partitioning,
    ) -> Result<Self, GnnError> {
        if is_typed(schema) {
            return Ok(Self::Typed(
                typed_blocks(schema, data, partitioning)?,
                input,
            ));
        }
        let input = input.pop().flatten();
        let blocks = untyped_blocks(data, partitioning)?;
        Ok(Self::Untyped(blocks, Box::new(input)))
    }

    /// Returns the blocks of each layer and relation.
    pub(crate) fn each(&self) -> Vec<&Block> {
        match self {
            Self::Untyped(blocks, _) => blocks.iter().collect(),
            Self::Typed(blocks, _) => {
                let relations = |block: &TypedBlock| 0..block.schema().relations.len();
                let all = blocks
                    .iter()
                    .flat_map(|block| relations(block).filter_map(|at| block.relation(at)));
                all.collect()
            }
        }
    }

    /// Returns the approximate memory of the input in bytes.
    pub(crate) fn input_bytes(&self) -> usize {
        match self {
            Self::Untyped(_, input) => Option::as_ref(input).map_or(0, ReadyInput::bytes),
            Self::Typed(_, input) => input.iter().flatten().map(ReadyInput::bytes).sum(),
        }
    }
}

/// Makes the blocks of a typed graph.
pub(crate) fn typed_blocks(
    schema: &Arc<Schema>,
    data: Vec<TypedBlockData>,
    partitioning: Partitioning,
) -> Result<Vec<TypedBlock>, GnnError> {
    let block = |layer| Ok(TypedBlock::new(schema, layer)?.with_partitioning(partitioning));
    data.into_iter().map(block).collect()
}

/// Makes the blocks of an untyped graph from the data of its one type and one relation.
pub(crate) fn untyped_blocks(
    data: Vec<TypedBlockData>,
    partitioning: Partitioning,
) -> Result<Vec<Block>, GnnError> {
    let block = |layer| Ok(Block::new(untyped(layer))?.with_partitioning(partitioning));
    data.into_iter().map(block).collect()
}

fn untyped(mut data: TypedBlockData) -> BlockData {
    let nodes = data.types.pop().expect("an untyped graph has one type");
    let edges = data.relations.pop();
    let edges = edges.expect("an untyped graph has one relation");
    BlockData {
        num_src: nodes.num_src,
        num_dst: nodes.num_dst,
        num_active: nodes.num_active,
        node_key: nodes.node_key,
        in_offset: edges.in_offset,
        in_src: edges.in_src,
        edge_weight: edges.edge_weight,
        edge_feature: edges.edge_feature,
        in_degree: edges.in_degree,
        in_weight: edges.in_weight,
        self_loops: edges.self_loops,
        self_weight: edges.self_weight,
        sampling: edges.sampling,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projections_count_to_the_first_layer_and_the_head_to_the_last() {
        let arch = serde_json::json!({
            "layer": "rgcn", "relation_aggregator": "sum", "aggregator": "mean",
            "types": [{ "name": "a", "in_dim": 3 }, { "name": "b", "in_dim": null }],
            "relations": [{
                "name": "r", "from": "a", "to": "b", "edge_weight": false, "edge_dim": null,
            }],
            "target_type": "b", "projection": 4, "hidden": [4, 4], "num_layers": 2, "out_dim": 3,
            "heads": 1, "out_heads": 1, "num_bases": null, "relation_dim": null,
            "attention_residual": 0.0, "dropout": 0.5, "input_dropout": 0.0,
            "attention_dropout": 0.0, "norm": "none", "residual": false,
            "normalize_output": false, "activation": "relu", "task": "classes",
        });
        let arch = AnyArchitecture::Typed(serde_json::from_value(arch).unwrap());
        arch.validate().unwrap();
        assert_eq!(arch.reads_features(), [true, false]);
        let mut layers = std::collections::BTreeMap::new();
        for info in arch.parameters() {
            let start = info.name.split('.').take(2).collect::<Vec<_>>().join(".");
            layers.insert(start, arch.layer_of(&info));
        }
        let wanted = [
            ("convs.0", 1),
            ("convs.1", 2),
            ("lin.bias", 3),
            ("lin.weight", 3),
            ("lins.a", 1),
            ("lins.b", 1),
        ];
        assert_eq!(
            layers,
            wanted.map(|(name, layer)| (name.to_owned(), layer)).into()
        );
    }
}
