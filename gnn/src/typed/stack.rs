//! The layers of a typed model in one forward pass.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::Tensor;

use super::architecture::TypedArchitecture;
use super::block::TypedBlock;
use super::kind::TypedKind;
use super::schema::Schema;
use super::{hgt, linear, per_relation, simple_hgn};
use crate::coefficient::round;
use crate::kernel::{Relational, RowNormalize, Spmm};
use crate::layer::{Conv, Features, MaskKind, Pass, Scope, Src, Summed, lightgcn};
use crate::ops::Fused;
use crate::{Dense, GnnError, ReadyInput, Task};

/// Layer of dropout masks on raw features; convs count from 1.
const RAW: usize = 0;

/// The convs of a typed model and a pass over them.
pub(super) struct TypedStack<'a> {
    pub(super) arch: &'a TypedArchitecture,
    pub(super) schema: &'a Schema,
    /// By layer and relation; none for kinds that are no convs by relation.
    pub(super) convs: &'a [Vec<Arc<dyn Conv>>],
    pub(super) pass: Pass<'a>,
}

/// A matrix that a layer aggregates: a row for each node of some types, one type after the other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    /// The types, by position.
    pub types: Range<usize>,
    /// Width of a row.
    pub dim: usize,
    /// Width of a row's scores, if the layer has scores. If the layer mixes in the attention of
    /// earlier layers, those layers' scores come last.
    pub scores_dim: Option<usize>,
    /// Whether rows differ from the rows that the layer reads.
    pub projects: bool,
}

/// The rows that a layer gets for each of its sources.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Rows<'a> {
    /// The rows that the layer reads, also where the source projects; of the types with true in
    /// `raw`, raw features, whose projection is still to be applied.
    Read { raw: &'a [bool] },
    /// Projected, where the source projects.
    Projected,
}

/// The rows of a type's nodes between two layers.
#[derive(Clone)]
pub(super) struct TypeRows {
    /// `[num_nodes, _]`.
    pub(super) rows: Tensor<2>,
    /// Raw features of all nodes, if the next layer sums these; `rows` then has only the dst nodes
    /// of the next layer.
    pub(super) raw: Option<Tensor<2>>,
    /// Scores of earlier layers, if the next layer mixes in their attention.
    pub(super) carried: Option<Tensor<2>>,
}

impl<'a> TypedStack<'a> {
    /// Runs all layers and the head; returns the logits of the target type's dst nodes. For links,
    /// returns the embeddings of the dst nodes of all types.
    pub(super) fn run(&self, blocks: &[TypedBlock], input: &[Option<ReadyInput>]) -> Tensor<2> {
        let mut rows = match self.arch.is_light() {
            true => self.propagated(blocks, input),
            false => {
                let mut rows = self.input_rows(&blocks[0], input);
                for (layer, block) in (1..).zip(blocks) {
                    rows = self.layer(layer, block, rows);
                }
                rows
            }
        };
        if let Task::Links(_) = self.arch.task {
            let all = rows.into_iter().flatten().map(|of| of.rows);
            return Tensor::cat(all.collect(), 0);
        }
        let target = rows.swap_remove(self.arch.target());
        self.head(
            target
                .expect("the caller has checked that there are targets")
                .rows,
        )
    }

    /// Runs the first layers; returns the rows of a type's dst nodes after layer `wanted`, and after
    /// the last of them.
    pub(super) fn run_layers(
        &self,
        blocks: &[TypedBlock],
        input: &[Option<ReadyInput>],
        (wanted, node_type): (usize, usize),
    ) -> [Option<Tensor<2>>; 2] {
        let of_type = |rows: &[Option<TypeRows>]| {
            let found = rows[node_type].as_ref();
            found.map(|of| of.rows.clone())
        };
        if self.arch.is_light() {
            assert_eq!(wanted, self.arch.num_layers, "LightGCN has one embedding");
            let rows = of_type(&self.propagated(blocks, input));
            return [rows.clone(), rows];
        }
        let mut rows = self.input_rows(&blocks[0], input);
        let mut found = None;
        for (layer, block) in (1..).zip(blocks) {
            rows = self.layer(layer, block, rows);
            if layer == wanted {
                found = of_type(&rows);
            }
        }
        [found, of_type(&rows)]
    }

    /// Returns the mean of the learnable rows and of all layers of `LightGCN`, by type, as its convs
    /// compute it, without rows in two halves.
    fn propagated(
        &self,
        blocks: &[TypedBlock],
        input: &[Option<ReadyInput>],
    ) -> Vec<Option<TypeRows>> {
        let learnable = |(t, given): (usize, &Option<ReadyInput>)| {
            let given = given.as_ref().filter(|given| given.rows() > 0)?;
            let features = self.raw_features(t, Some(given.clone()), given.rows());
            Some(self.pass.dense(features))
        };
        let start: Vec<Option<Tensor<2>>> = input.iter().enumerate().map(learnable).collect();
        let mut rows = start.clone();
        for block in blocks {
            let of_type = |(t, own): (usize, &Option<Tensor<2>>)| {
                let num_dst = block.num_dst(t);
                let own = own.as_ref().filter(|_| num_dst > 0)?;
                let relations = self.schema.into_type(t).filter_map(|relation| {
                    let edges = block.relation(relation)?;
                    let src = rows[self.schema.relations[relation].from].as_ref()?;
                    let sum = Fused::Spmm(Spmm {
                        csr: Arc::clone(edges.csr()),
                        rows: num_dst,
                        edge: block.light()[relation].clone(),
                        own: None,
                    });
                    Some(sum.apply(src.clone()))
                });
                Some(relations.fold(own.clone().narrow(0, 0, num_dst), |sum, of| sum + of))
            };
            rows = start.iter().enumerate().map(of_type).collect();
        }
        let mean = |sum: Tensor<2>| TypeRows {
            rows: lightgcn::mean(sum, blocks.len()),
            raw: None,
            carried: None,
        };
        rows.into_iter().map(|of| of.map(mean)).collect()
    }

    /// Projects the raw features of the src nodes of the first block, by type.
    fn input_rows(
        &self,
        block: &TypedBlock,
        input: &[Option<ReadyInput>],
    ) -> Vec<Option<TypeRows>> {
        let of_type = |t: usize| {
            let num_src = block.num_src(t);
            if num_src == 0 {
                return None;
            }
            if self.is_graphs(t) {
                return Some(self.graph_rows(1, num_src));
            }
            let key = block.shared_key(t);
            let mut features = self.raw_features(t, input[t].clone(), num_src);
            if input[t].is_some() {
                let rate = (RAW, self.arch.input_dropout);
                features = self.pass.drop_features(rate, key, features);
            }
            let raw = match &features {
                Features::Dense(raw) if self.sums_raw(raw.dims()[1]) => Some(raw.clone()),
                _ => None,
            };
            // At least one, for a tensor has no fewer rows.
            let projected = raw.as_ref().map_or(num_src, |_| block.num_dst(t).max(1));
            let rows = Features::Dense(self.projection(t, &features, projected));
            let rows = self.pass.drop_features((1, self.arch.dropout), key, rows);
            Some(TypeRows {
                rows: self.pass.dense(rows),
                raw,
                carried: None,
            })
        };
        (0..input.len()).map(of_type).collect()
    }

    /// Tells whether a type is that of the graphs, whose rows only the readout gives.
    pub(super) fn is_graphs(&self, node_type: usize) -> bool {
        self.arch.is_graphs(&self.schema.types[node_type])
    }

    /// Returns the rows of graphs that a layer before the readout reads: zeros, which no row depends
    /// on.
    fn graph_rows(&self, layer: usize, rows: usize) -> TypeRows {
        TypeRows {
            rows: self.zeros(rows, self.arch.input_dim(layer)),
            raw: None,
            carried: None,
        }
    }

    fn zeros(&self, rows: usize, cols: usize) -> Tensor<2> {
        self.pass.constant(rows, cols, &vec![0.0; rows * cols])
    }

    /// Returns the output of a type whose rows a layer does not aggregate, where the model has a
    /// readout: zeros of graphs before the readout, and the own rows of nodes in the readout.
    pub(super) fn passed_by(
        &self,
        layer: usize,
        node_type: usize,
        own: &Features,
        num_dst: usize,
    ) -> Option<Summed> {
        self.arch.readout?;
        match (self.is_graphs(node_type), self.arch.is_readout(layer)) {
            (true, false) => Some(Summed::of(self.zeros(num_dst, self.arch.output_dim(layer)))),
            (false, true) => {
                let rows = self.pass.dense(own.clone()).narrow(0, 0, num_dst);
                Some(Summed::of(rows))
            }
            (true, true) | (false, false) => None,
        }
    }

    /// Tells whether the first layer sums raw rows of this width. It does so only in training, for
    /// inference projects each node once, and its rows have the bits of the eval mode.
    fn sums_raw(&self, in_dim: usize) -> bool {
        let convs = self.convs.first().filter(|_| self.pass.train.is_some());
        convs.is_some_and(|convs| linear::sums_raw(self.arch, convs, in_dim))
    }

    /// Returns the features of a type's nodes; 1 each if the type has none.
    pub(super) fn raw_features(
        &self,
        node_type: usize,
        input: Option<ReadyInput>,
        rows: usize,
    ) -> Features {
        match (input, self.arch.types[node_type].embedding_dim) {
            (Some(input), Some(cols)) => self.pass.learnable(node_type, input, cols),
            (Some(input), None) => self.pass.features(input),
            (None, _) => Features::Dense(self.pass.constant(rows, 1, &vec![1.0; rows])),
        }
    }

    /// Returns weight and bias of the linear map of a type's raw features.
    pub(super) fn projection_parameters(&self, node_type: usize) -> [Tensor<2>; 2] {
        let name = format!("lins.{}", self.schema.types[node_type]);
        ["weight", "bias"].map(|part| self.pass.parameter(&format!("{name}.{part}")))
    }

    /// Applies the linear map of a type to its raw features.
    pub(super) fn projection(
        &self,
        node_type: usize,
        features: &Features,
        rows: usize,
    ) -> Tensor<2> {
        let name = format!("lins.{}", self.schema.types[node_type]);
        let projected = self.pass.linear(&name, features, rows);
        match self.arch.layer {
            // Its non-linearity is inside a layer, where the residual goes around it.
            TypedKind::Hgt => {
                let activation = Some(self.arch.activation);
                self.pass.sum(Summed::of(projected), activation, None)
            }
            TypedKind::Conv(_) | TypedKind::Rgcn | TypedKind::SimpleHgn => projected,
        }
    }

    /// Runs one conv with residual, norm, activation, and dropout for the next layer: the rows of
    /// src nodes to those of dst nodes, by type.
    pub(super) fn layer(
        &self,
        layer: usize,
        block: &TypedBlock,
        input: Vec<Option<TypeRows>>,
    ) -> Vec<Option<TypeRows>> {
        let own: Vec<Option<Features>> = input
            .iter()
            .map(|of| of.as_ref().map(|of| Features::Dense(of.rows.clone())))
            .collect();
        let mut carried = vec![None; input.len()];
        let raw: Vec<bool> = input
            .iter()
            .map(|of| of.as_ref().is_some_and(|of| of.raw.is_some()))
            .collect();
        let given = match self.is_linear(layer) {
            true => Rows::Read { raw: &raw },
            false => Rows::Projected,
        };
        let sources = self.sources(layer).into_iter().enumerate();
        let src = sources.map(|(at, source)| {
            let mut parts: Vec<Option<Src>> = vec![None; input.len()];
            for t in source.types.clone() {
                let Some((of, own)) = input[t].as_ref().zip(own[t].as_ref()) else {
                    continue;
                };
                if given != Rows::Projected {
                    let rows = of.raw.clone().map(Features::Dense);
                    let (rows, scores) = (rows.unwrap_or_else(|| own.clone()), None);
                    parts[t] = Some(Src { rows, scores });
                    continue;
                }
                let part = self.project(layer, at, t, (own, block.num_src(t)), of.carried.clone());
                if self.arch.mixed_layers(layer + 1) > 1 && layer < self.arch.num_layers {
                    carried[t].clone_from(&part.scores);
                }
                parts[t] = Some(part);
            }
            self.join(block, source.types, parts)
        });
        let src: Vec<Option<Src>> = src.collect();
        let outs = self
            .conv(layer, block, (&src, given), &own)
            .into_iter()
            .enumerate();
        outs.map(|(t, summed)| {
            let rows = self.finish(layer, block, t, summed?, own[t].as_ref()?);
            let carried = carried[t].take();
            Some(TypeRows {
                rows,
                raw: None,
                carried: carried.map(|scores| scores.narrow(0, 0, block.num_dst(t))),
            })
        })
        .collect()
    }

    /// Joins a source's rows of several types in the order of the columns of a block's union.
    fn join(
        &self,
        block: &TypedBlock,
        types: Range<usize>,
        mut parts: Vec<Option<Src>>,
    ) -> Option<Src> {
        if types.len() == 1 {
            return parts.swap_remove(types.start);
        }
        let gather = |of: &dyn Fn(&Src) -> Option<Tensor<2>>| {
            let (mut dst, mut rest) = (Vec::new(), Vec::new());
            for (t, part) in parts.iter().enumerate() {
                let Some(rows) = part.as_ref().and_then(of) else {
                    continue;
                };
                let (num_dst, num_src) = (block.num_dst(t), block.num_src(t));
                if num_dst > 0 {
                    dst.push(rows.clone().narrow(0, 0, num_dst));
                }
                if num_src > num_dst {
                    rest.push(rows.narrow(0, num_dst, num_src - num_dst));
                }
            }
            dst.extend(rest);
            (!dst.is_empty()).then(|| Tensor::cat(dst, 0))
        };
        let rows = gather(&|part| Some(self.pass.dense(part.rows.clone())))?;
        Some(Src {
            rows: Features::Dense(rows),
            scores: gather(&|part| part.scores.clone()),
        })
    }

    /// Lists the matrices that a layer aggregates.
    pub(super) fn sources(&self, layer: usize) -> Vec<Source> {
        match self.arch.layer {
            TypedKind::Conv(_) | TypedKind::Rgcn => per_relation::sources(self, layer),
            TypedKind::SimpleHgn => simple_hgn::sources(self, layer),
            TypedKind::Hgt => hgt::sources(self, layer),
        }
    }

    /// Computes the rows of a source from the first `num_rows` rows of a type.
    pub(super) fn project(
        &self,
        layer: usize,
        source: usize,
        node_type: usize,
        (rows, num_rows): (&Features, usize),
        carried: Option<Tensor<2>>,
    ) -> Src {
        match self.arch.layer {
            TypedKind::Conv(_) | TypedKind::Rgcn => {
                per_relation::project(self, layer, source, (rows, num_rows))
            }
            TypedKind::SimpleHgn => simple_hgn::project(self, layer, (rows, num_rows), carried),
            TypedKind::Hgt => hgt::project(self, layer, source, node_type, (rows, num_rows)),
        }
    }

    /// Computes the scores of a source's rows, unless [`project`](Self::project) has.
    pub(super) fn scores(
        &self,
        layer: usize,
        source: usize,
        rows: &Dense,
    ) -> Result<Option<Dense>, GnnError> {
        match self.arch.layer {
            TypedKind::Conv(_) | TypedKind::Rgcn => per_relation::scores(self, layer, source, rows),
            TypedKind::SimpleHgn | TypedKind::Hgt => Ok(None),
        }
    }

    /// Runs a layer's convs: by type, the output of its dst nodes before residual, norm and
    /// activation. `own` has the rows of each type's dst nodes first.
    pub(super) fn conv(
        &self,
        layer: usize,
        block: &TypedBlock,
        (src, given): (&[Option<Src>], Rows<'_>),
        own: &[Option<Features>],
    ) -> Vec<Option<Summed>> {
        match self.arch.layer {
            TypedKind::Conv(_) | TypedKind::Rgcn => {
                let types = 0..self.schema.types.len();
                let run =
                    |t| per_relation::run(self, layer, block, t, (src, given), own[t].as_ref());
                types.map(run).collect()
            }
            TypedKind::SimpleHgn => simple_hgn::run(self, layer, block, src, own),
            TypedKind::Hgt => hgt::run(self, layer, block, src, own),
        }
    }

    /// Tells whether the convs of a layer are linear in what they aggregate.
    fn is_linear(&self, layer: usize) -> bool {
        linear::is_linear(self.arch, &self.convs[layer - 1])
    }

    /// Adds the residual of a type's output and applies norm, activation and dropout.
    pub(super) fn finish(
        &self,
        layer: usize,
        block: &TypedBlock,
        node_type: usize,
        summed: Summed,
        own: &Features,
    ) -> Tensor<2> {
        let (arch, pass, num_dst) = (self.arch, &self.pass, block.num_dst(node_type));
        if arch.is_light() {
            let first = block.range().map_or(0, |(_, range)| range.start);
            let roots = block.light_roots(node_type, first..first + num_dst);
            let own = pass.dense(own.clone()).narrow(0, 0, num_dst);
            let root = Some(self.column(roots));
            return lightgcn::carry(pass, (layer, arch.num_layers), summed, own, root);
        }
        let name = &self.schema.types[node_type];
        let dropout = || {
            let mask = pass.mask(layer + 1, MaskKind::Input, arch.dropout);
            mask.map(|mask| (mask, block.shared_key(node_type).clone()))
        };
        if arch.is_readout(layer) {
            return pass.sum(summed, None, dropout());
        }
        if self.is_graphs(node_type) {
            return pass.sum(summed, None, None);
        }
        let has_residual = arch.residual && arch.layer != TypedKind::SimpleHgn;
        let residual = has_residual.then(|| {
            let map = format!("res.{}.{name}.weight", layer - 1);
            self.residual(&map, own, num_dst)
        });
        let summed = summed.plus(residual);
        if !arch.is_hidden(layer) {
            return pass.sum(summed, None, None);
        }
        let norm = format!("norms.{}.{name}", layer - 1);
        let active = block.num_active(node_type);
        let activation = Some(arch.activation).filter(|_| arch.layer != TypedKind::Hgt);
        pass.hidden(summed, (arch.norm, &norm), active, activation, dropout())
    }

    /// Makes a constant matrix of one column.
    pub(super) fn column(&self, values: Vec<f64>) -> Tensor<2> {
        let values: Vec<f32> = values.into_iter().map(round).collect();
        self.pass.constant(values.len(), 1, &values)
    }

    /// Returns the first rows of `own`, times the parameter `map` if there is one.
    pub(super) fn residual(&self, map: &str, own: &Features, rows: usize) -> Tensor<2> {
        if self.pass.parameters.contains_key(map) {
            self.pass.product(own, rows, map)
        } else {
            self.pass.dense(own.clone()).narrow(0, 0, rows)
        }
    }

    /// Returns the output of a type that no relation leads to: a linear map of its own rows.
    pub(super) fn skip(
        &self,
        layer: usize,
        node_type: usize,
        own: &Features,
        rows: usize,
    ) -> Summed {
        let name = format!("skips.{}.{}", layer - 1, self.schema.types[node_type]);
        Summed {
            bias: Some(self.pass.parameter(&format!("{name}.bias"))),
            ..Summed::of(self.pass.product(own, rows, &format!("{name}.weight")))
        }
    }

    /// Returns the scope of a layer whose parameters belong to no single relation; `prefix` is
    /// [`layer_prefix`] of the layer.
    pub(super) fn scope<'s>(&'s self, layer: usize, prefix: &'s str) -> Scope<'s> {
        Scope::of_relation(&self.pass, layer, prefix, 0)
    }

    /// Turns embeddings of the last conv into logits.
    pub(super) fn head(&self, embedding: Tensor<2>) -> Tensor<2> {
        let mut logits = embedding;
        if self.arch.has_head() {
            let rows = logits.dims()[0];
            logits = self.pass.linear("lin", &Features::Dense(logits), rows);
        }
        if self.arch.normalize_output {
            let cols = self.arch.out_dim;
            let normalize = Relational::RowNormalize(RowNormalize { cols });
            logits = Fused::Relational(normalize).apply(logits);
        }
        logits
    }
}

/// Returns the prefix of a layer's parameters that belong to no single relation.
pub(super) fn layer_prefix(layer: usize) -> String {
    format!("convs.{}.", layer - 1)
}

/// Computes coefficients and transposes of a batch's blocks before its first training pass.
pub(super) fn prepare(
    arch: &TypedArchitecture,
    convs: &[Vec<Arc<dyn Conv>>],
    blocks: &[TypedBlock],
    input: &[Option<ReadyInput>],
) {
    for of_type in input.iter().flatten() {
        of_type.transpose_sparse();
    }
    for (layer, (of_relations, block)) in (1..).zip(convs.iter().zip(blocks)) {
        match arch.layer {
            TypedKind::Conv(_) | TypedKind::Rgcn => {
                if arch.is_light() {
                    block.light_layer();
                    continue;
                }
                for (relation, conv) in of_relations.iter().enumerate() {
                    if let Some(edges) = block.relation(relation) {
                        conv.prepare(edges);
                    }
                }
                if linear::is_linear(arch, of_relations) {
                    let is_constant = |(t, of): (usize, &Option<ReadyInput>)| {
                        let raw = of.as_ref().map_or(Some(1), ReadyInput::dense_dim);
                        let sums = |dim| linear::sums_raw(arch, of_relations, dim);
                        let learns = arch.types[t].embedding_dim.is_some();
                        layer == 1 && !learns && raw.is_some_and(sums)
                    };
                    let constant: Vec<bool> = input.iter().enumerate().map(is_constant).collect();
                    linear::prepare(of_relations, block, &constant);
                } else {
                    let relations = 0..of_relations.len();
                    for edges in relations.filter_map(|relation| block.relation(relation)) {
                        edges.csr().transposed();
                    }
                }
            }
            TypedKind::SimpleHgn => {
                block.union(true).csr.transposed();
            }
            TypedKind::Hgt => {
                block.union(false).segments.transposed();
            }
        }
    }
}
