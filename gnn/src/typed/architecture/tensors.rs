//! The convs and the parameters of a typed architecture.

use std::sync::Arc;

use super::TypedArchitecture;
use crate::Task;
use crate::layer::{Conv, ConvConfig, readout_conv, rgcn_conv};
use crate::parameter::{ParameterList, Start};
use crate::typed::{Schema, TypedKind};

impl TypedArchitecture {
    /// Makes the convs of each layer, one for each relation; none for kinds that are no convs by
    /// relation.
    pub(crate) fn convs(&self) -> Vec<Vec<Arc<dyn Conv>>> {
        let relations = 0..self.relations.len();
        let of_layer = |layer: usize| match self.layer {
            TypedKind::Conv(kind) => {
                let conv = |relation: usize| match self.readout {
                    Some(readout) if self.reads_out(layer, relation) => readout_conv(readout),
                    _ => kind.conv(self.conv_config(layer, relation)),
                };
                relations.clone().map(conv).collect()
            }
            TypedKind::Rgcn => {
                let conv = |relation| {
                    rgcn_conv(self.conv_config(layer, relation), relation, self.num_bases)
                };
                relations.clone().map(conv).collect()
            }
            TypedKind::SimpleHgn | TypedKind::Hgt => Vec::new(),
        };
        (1..=self.num_layers).map(of_layer).collect()
    }

    /// Tells whether a relation has no conv in a layer: it leads to graphs, or the layer is the
    /// readout.
    fn reads_out(&self, layer: usize, relation: usize) -> bool {
        self.is_readout(layer) || self.is_graphs(&self.relations[relation].to)
    }

    fn conv_config(&self, layer: usize, relation: usize) -> ConvConfig {
        let relation = &self.relations[relation];
        ConvConfig {
            in_dim: self.input_dim(layer),
            out_dim: self.output_dim(layer),
            edge_dim: relation.edge_dim,
            edge_weight: relation.edge_weight,
            aggregator: self.aggregator,
            heads: self.heads_of(layer),
            averages_heads: !self.is_hidden(layer),
            attention_dropout: self.attention_dropout,
            norm: self.norm,
            activation: self.activation,
            carried_dim: self.output_dim(self.num_layers),
            of_relation: true,
            bipartite: relation.from != relation.to,
        }
    }

    /// Lists the tensors of the projections, of each conv with its residuals and norms, and of the
    /// head.
    pub(crate) fn tensors(&self, convs: &[Vec<Arc<dyn Conv>>]) -> ParameterList {
        let (mut list, schema) = (ParameterList::default(), self.schema());
        list.enter(0, String::new());
        let projected =
            (self.types.iter()).filter(|of| !self.is_light() && !self.is_graphs(&of.name));
        for of in projected {
            let name = format!("lins.{}", of.name);
            let cols = of.in_dim.unwrap_or(1);
            if self.layer == TypedKind::SimpleHgn {
                let weight = [self.projection, cols];
                list.push(
                    &format!("{name}.weight"),
                    &weight,
                    xavier(self.projection + cols),
                );
                list.push(
                    &format!("{name}.bias"),
                    &[self.projection],
                    Start::Linear(cols),
                );
            } else {
                list.linear(&name, self.projection, cols, true);
            }
        }
        for (at, of_relations) in convs.iter().enumerate() {
            let layer = at + 1;
            list.enter(layer, format!("convs.{at}."));
            match self.layer {
                TypedKind::Conv(_) => {
                    for (relation, conv) in of_relations.iter().enumerate() {
                        list.enter(layer, relation_prefix(&schema, layer, relation));
                        conv.parameters(&mut list);
                    }
                }
                TypedKind::Rgcn => self.rgcn_tensors(layer, &mut list),
                TypedKind::SimpleHgn => self.simple_hgn_tensors(layer, &mut list),
                TypedKind::Hgt => self.hgt_tensors(layer, &schema, &mut list),
            }
            list.enter(layer, String::new());
            self.tensors_around(layer, &schema, &mut list);
        }
        if self.has_head() {
            list.enter(0, String::new());
            list.linear("lin", self.out_dim, self.output_dim(self.num_layers), true);
        }
        if let Task::Links(decoder) = self.task {
            list.enter(0, "decoder.".to_owned());
            decoder.parameters(self.out_dim, &mut list);
        }
        list
    }

    /// Lists the residuals, the maps of types without in-relations, and the norms.
    fn tensors_around(&self, layer: usize, schema: &Schema, list: &mut ParameterList) {
        let (at, rows, cols) = (layer - 1, self.output_dim(layer), self.input_dim(layer));
        let types = schema.types.iter().enumerate();
        for (node_type, name) in types.filter(|(_, name)| !self.is_graphs(name)) {
            if self.is_readout(layer) {
                continue;
            }
            if self.has_skip(schema, node_type) {
                list.linear(&format!("skips.{at}.{name}"), rows, cols, true);
            }
            if self.residual && rows != cols && self.layer != TypedKind::SimpleHgn {
                list.linear(&format!("res.{at}.{name}"), rows, cols, false);
            }
            if self.is_hidden(layer) {
                list.norm(&format!("norms.{at}.{name}"), self.norm, rows);
            }
        }
    }

    /// Tells whether a linear map of a type's own rows takes the place of a conv: no relation leads
    /// to the type, and the kind reads own rows only by relation.
    pub(crate) fn has_skip(&self, schema: &Schema, node_type: usize) -> bool {
        let by_relation = matches!(self.layer, TypedKind::Conv(_) | TypedKind::Hgt);
        by_relation && !self.is_light() && schema.into_type(node_type).next().is_none()
    }

    /// Lists the tensors of `PyG`'s `RGCNConv`.
    fn rgcn_tensors(&self, layer: usize, list: &mut ParameterList) {
        let (rows, cols) = (self.input_dim(layer), self.output_dim(layer));
        let num_relations = self.relations.len();
        let weights = self.num_bases.unwrap_or(num_relations);
        list.push("weight", &[weights, rows, cols], Start::Glorot);
        if let Some(num_bases) = self.num_bases {
            list.push("comp", &[num_relations, num_bases], Start::Glorot);
        }
        list.push("root", &[rows, cols], Start::Glorot);
        list.push("bias", &[cols], Start::Zeros);
    }

    /// Lists the tensors of a layer of Simple-HGN, named and with the variances as by its authors
    /// (`myGATConv`). The first layer has no residual.
    fn simple_hgn_tensors(&self, layer: usize, list: &mut ParameterList) {
        let (heads, head_dim) = self.simple_hgn_heads(layer);
        let (cols, wide) = (self.input_dim(layer), heads * head_dim);
        let dim = self.relation_dim.unwrap_or(1);
        let relations = [self.relations.len() + 1, dim];
        list.push("edge_emb.weight", &relations, Start::Variance(1.0));
        let mut map = |name, shape: &[usize], ends| list.push(name, shape, xavier(ends));
        map("fc.weight", &[wide, cols], wide + cols);
        map("fc_e.weight", &[dim * heads, dim], dim * heads + dim);
        map("attn_l", &[1, heads, head_dim], wide + head_dim);
        map("attn_r", &[1, heads, head_dim], wide + head_dim);
        map("attn_e", &[1, heads, dim], dim * heads + dim);
        if self.has_residual(layer) && wide != cols {
            map("res_fc.weight", &[wide, cols], wide + cols);
        }
    }

    /// Tells whether a layer adds its input rows to its output. The first layer of Simple-HGN does
    /// not, as by its authors.
    pub(crate) fn has_residual(&self, layer: usize) -> bool {
        self.residual && (layer > 1 || self.layer != TypedKind::SimpleHgn)
    }

    /// Returns the heads of a layer of Simple-HGN and the width of one.
    pub(crate) fn simple_hgn_heads(&self, layer: usize) -> (usize, usize) {
        let (heads, width) = (self.heads_of(layer), self.output_dim(layer));
        if self.is_hidden(layer) {
            (heads, width / heads)
        } else {
            (heads, width)
        }
    }

    /// Lists the tensors of `PyG`'s `HGTConv`.
    fn hgt_tensors(&self, layer: usize, schema: &Schema, list: &mut ParameterList) {
        let (cols, width, heads) = (
            self.input_dim(layer),
            self.output_dim(layer),
            self.heads_of(layer),
        );
        let (dim, num_relations) = (width / heads, self.relations.len());
        for name in &schema.types {
            list.linear(&format!("kqv_lin.lins.{name}"), 3 * width, cols, true);
        }
        for name in &schema.types {
            list.linear(&format!("out_lin.lins.{name}"), width, width, true);
        }
        for name in ["k_rel.weight", "v_rel.weight"] {
            let shape = [heads * num_relations, dim, dim];
            list.push(name, &shape, Start::Linear(dim));
        }
        for name in &schema.types {
            list.push(&format!("skip.{name}"), &[1], Start::Ones);
        }
        for relation in 0..num_relations {
            let name = format!("p_rel.{}", schema.joined(relation, "__"));
            list.push(&name, &[1, heads], Start::Ones);
        }
    }
}

/// Returns the start of a map of Simple-HGN: the variance of `torch.nn.init.xavier_normal_` with a
/// gain of `sqrt(2)`; `ends` is the sum of its fan-in and fan-out.
#[expect(clippy::cast_precision_loss, reason = "widths are small")]
fn xavier(ends: usize) -> Start {
    Start::Variance(4.0 / ends as f64)
}

/// Returns the prefix of the parameters of a relation's conv, as in `PyG`'s `HeteroConv`.
pub(crate) fn relation_prefix(schema: &Schema, layer: usize, relation: usize) -> String {
    let name = schema.joined(relation, "___");
    format!("convs.{}.convs.<{name}>.", layer - 1)
}
