//! The slow twin of typed models: every layer by its formula, one node and one edge at a time, in
//! f64.

mod attention;

use std::collections::BTreeMap;

use gnn::typed::{RelationAggregator, TypedArchitecture, TypedBlockData, TypedKind, TypedModel};
use gnn::{Activation, Aggregator, Input, LayerKind, Norm, Readout};

use crate::support::twin::{Rows, rows};

/// Parameters by name.
pub(crate) struct Twin<'a> {
    arch: &'a TypedArchitecture,
    tensors: BTreeMap<String, Vec<f64>>,
    /// Of Simple-HGN, by earlier layer: the projected rows by type.
    before: Vec<Vec<Rows>>,
}

/// An in-edge: the src node's type and position, the relation, the edge's position in it, and the
/// edge's factor in a sum.
#[derive(Clone, Copy)]
struct InEdge {
    from: usize,
    src: usize,
    relation: usize,
    edge: usize,
    weight: f64,
}

fn add(out: &mut [f64], factor: f64, x: &[f64]) {
    assert_eq!(out.len(), x.len());
    out.iter_mut()
        .zip(x)
        .for_each(|(out, x)| *out += factor * x);
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl<'a> Twin<'a> {
    pub(crate) fn new(model: &'a TypedModel) -> Twin<'a> {
        let (flat, mut start, mut tensors) = (model.flat(), 0, BTreeMap::new());
        for info in model.parameters() {
            let values = &flat[start..start + info.len()];
            start += info.len();
            let values = values.iter().map(|&x| f64::from(x)).collect();
            tensors.insert(info.name.clone(), values);
        }
        Twin {
            arch: model.architecture(),
            tensors,
            before: Vec::new(),
        }
    }

    fn get(&self, name: &str) -> &[f64] {
        let tensor = self.tensors.get(name);
        tensor.unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// `weight * x`, plus bias if there is one.
    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.get(&format!("{name}.weight")).chunks(x.len());
        let bias = self.tensors.get(&format!("{name}.bias"));
        let row = |(at, row): (usize, &[f64])| dot(row, x) + bias.map_or(0.0, |b| b[at]);
        weight.enumerate().map(row).collect()
    }

    fn position(&self, name: &str) -> usize {
        self.arch
            .types
            .iter()
            .position(|of| of.name == name)
            .unwrap()
    }

    fn ends(&self, relation: usize) -> (usize, usize) {
        let of = &self.arch.relations[relation];
        (self.position(&of.from), self.position(&of.to))
    }

    /// The projected features of each type.
    pub(crate) fn project(&self, data: &[TypedBlockData], raw: &[Option<Input>]) -> Vec<Rows> {
        let mut x: Vec<Rows> = Vec::new();
        for (t, raw) in raw.iter().enumerate() {
            let num_src = data[0].types[t].num_src;
            if self.is_graphs(t) {
                x.push(vec![vec![0.0; self.arch.projection]; num_src]);
                continue;
            }
            let ones = || vec![vec![1.0]; num_src];
            let features = raw.as_ref().map_or_else(ones, rows);
            let name = format!("lins.{}", self.arch.types[t].name);
            let mut projected: Rows = features.iter().map(|row| self.linear(&name, row)).collect();
            if self.arch.layer == TypedKind::Hgt {
                projected.iter_mut().for_each(|row| self.activate(row));
            }
            x.push(projected);
        }
        x
    }

    /// The whole model in eval mode: the logits of the target type's dst nodes.
    pub(crate) fn forward(&mut self, data: &[TypedBlockData], raw: &[Option<Input>]) -> Rows {
        let mut x = self.project(data, raw);
        for (layer, block) in (1..).zip(data) {
            x = self.layer(layer, block, &x);
        }
        self.head(&x[self.position(&self.arch.target_type)])
    }

    /// The logits, from the rows of the last layer.
    pub(crate) fn head(&self, rows: &Rows) -> Rows {
        let mut out = rows.clone();
        if self.arch.has_head() {
            out = out.iter().map(|row| self.linear("lin", row)).collect();
        }
        if self.arch.normalize_output {
            for row in &mut out {
                let length = dot(row, row).sqrt().max(1e-12);
                row.iter_mut().for_each(|x| *x /= length);
            }
        }
        out
    }

    fn is_graphs(&self, t: usize) -> bool {
        self.arch.readout.is_some() && self.arch.types[t].name == self.arch.target_type
    }

    /// The rows of graphs: the readout of the nodes that an in-edge leads from; 0 before the last
    /// layer.
    fn graphs(&self, layer: usize, block: &TypedBlockData, x: &[Rows], t: usize) -> Rows {
        let dim = self.arch.output_dim(layer);
        let relation = (0..self.arch.relations.len()).find(|&r| self.ends(r).1 == t);
        let relation = relation.unwrap();
        let edges = &block.relations[relation];
        let of_graph = |graph: usize| {
            let mut out = vec![0.0; dim];
            if layer < self.arch.num_layers {
                return out;
            }
            let range = edges.in_offset[graph] as usize..edges.in_offset[graph + 1] as usize;
            let count = range.len() as f64;
            for (at, &src) in edges.in_src[range].iter().enumerate() {
                let row = &x[self.ends(relation).0][src as usize];
                for (out, &x) in out.iter_mut().zip(row) {
                    match self.arch.readout.unwrap() {
                        Readout::Mean => *out += x / count,
                        // A sample's sum estimates that of all in-edges.
                        Readout::Sum => *out += x * f64::from(edges.in_degree[graph]) / count,
                        Readout::Max if at == 0 => *out = x,
                        Readout::Max => *out = out.max(x),
                    }
                }
            }
            out
        };
        (0..block.types[t].num_dst).map(of_graph).collect()
    }

    /// One layer for all types.
    pub(crate) fn layer(&mut self, layer: usize, block: &TypedBlockData, x: &[Rows]) -> Vec<Rows> {
        if self.arch.layer == TypedKind::SimpleHgn {
            let name = format!("convs.{}.fc", layer - 1);
            let project = |rows: &Rows| rows.iter().map(|row| self.linear(&name, row)).collect();
            let projected = x.iter().map(project).collect();
            self.before.push(projected);
        }
        let types = 0..self.arch.types.len();
        let of_type = |t: usize| {
            if self.is_graphs(t) {
                return self.graphs(layer, block, x, t);
            }
            let nodes = 0..block.types[t].num_dst;
            if self.arch.is_readout(layer) {
                return x[t][nodes].to_vec();
            }
            let run = |v| {
                let node = Node {
                    twin: self,
                    layer,
                    block,
                    x,
                    t,
                    v,
                };
                let mut out = node.conv();
                self.finish(layer, t, &x[t][v], &mut out);
                out
            };
            nodes.map(run).collect()
        };
        types.map(of_type).collect()
    }

    /// Residual, norm and activation.
    fn finish(&self, layer: usize, t: usize, own: &[f64], out: &mut [f64]) {
        let (arch, name) = (self.arch, &self.arch.types[t].name);
        if arch.residual && arch.layer != TypedKind::SimpleHgn {
            let map = format!("res.{}.{name}", layer - 1);
            let has_map = self.tensors.contains_key(&format!("{map}.weight"));
            let own = if has_map {
                self.linear(&map, own)
            } else {
                own.to_vec()
            };
            add(out, 1.0, &own);
        }
        if layer <= arch.hidden.len() {
            self.norm(&format!("norms.{}.{name}", layer - 1), out);
            if arch.layer != TypedKind::Hgt {
                self.activate(out);
            }
        }
    }

    fn activate(&self, x: &mut [f64]) {
        let elu = self.arch.activation == Activation::Elu;
        for x in x.iter_mut().filter(|x| **x < 0.0) {
            *x = if elu { x.exp() - 1.0 } else { 0.0 };
        }
    }

    /// Batch norm with running statistics that no batch has moved, or layer norm.
    fn norm(&self, name: &str, x: &mut [f64]) {
        let count = x.len() as f64;
        let (name, mean, var) = match self.arch.norm {
            Norm::None => return,
            Norm::Batch => (format!("{name}.module"), 0.0, 1.0),
            Norm::Layer => {
                let mean = x.iter().sum::<f64>() / count;
                let var = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
                (name.to_owned(), mean, var)
            }
        };
        let weight = self.get(&format!("{name}.weight"));
        let bias = self.get(&format!("{name}.bias"));
        for (at, x) in x.iter_mut().enumerate() {
            *x = (*x - mean) / (var + 1e-5).sqrt() * weight[at] + bias[at];
        }
    }
}

/// One dst node of one layer.
struct Node<'a> {
    twin: &'a Twin<'a>,
    layer: usize,
    block: &'a TypedBlockData,
    x: &'a [Rows],
    t: usize,
    v: usize,
}

impl Node<'_> {
    fn arch(&self) -> &TypedArchitecture {
        self.twin.arch
    }

    fn own(&self) -> &[f64] {
        &self.x[self.t][self.v]
    }

    fn relations(&self) -> Vec<usize> {
        let all = 0..self.arch().relations.len();
        all.filter(|&r| self.twin.ends(r).1 == self.t).collect()
    }

    fn heads(&self) -> usize {
        if self.layer <= self.arch().hidden.len() {
            self.arch().heads
        } else {
            self.arch().out_heads
        }
    }

    fn width(&self) -> usize {
        self.arch().output_dim(self.layer)
    }

    /// The kept in-edges of a relation, with their weights.
    fn in_edges(&self, relation: usize) -> Vec<InEdge> {
        let edges = &self.block.relations[relation];
        let range = edges.in_offset[self.v] as usize..edges.in_offset[self.v + 1] as usize;
        let weighted = self.arch().relations[relation].edge_weight;
        let of_edge = |edge: usize| InEdge {
            from: self.twin.ends(relation).0,
            src: edges.in_src[edge] as usize,
            relation,
            edge,
            weight: match &edges.edge_weight {
                Some(weight) if weighted => f64::from(weight[edge]),
                _ => 1.0,
            },
        };
        range.map(of_edge).collect()
    }

    /// In-edges with the factors of a sum that estimates the sum over all in-edges.
    fn sum_edges(&self, relation: usize) -> Vec<InEdge> {
        let mut edges = self.in_edges(relation);
        let degree = f64::from(self.block.relations[relation].in_degree[self.v]);
        let kept = edges.len() as f64;
        edges
            .iter_mut()
            .for_each(|edge| edge.weight *= degree / kept);
        edges
    }

    fn conv(&self) -> Vec<f64> {
        let at = self.layer - 1;
        let relations = self.relations();
        match self.arch().layer {
            TypedKind::Rgcn => self.rgcn(),
            TypedKind::SimpleHgn => self.simple_hgn(),
            _ if relations.is_empty() => {
                let name = format!("skips.{at}.{}", self.arch().types[self.t].name);
                self.twin.linear(&name, self.own())
            }
            TypedKind::Hgt => self.hgt(),
            TypedKind::Conv(kind) => {
                let outs = relations.iter().map(|&r| self.of_relation(kind, r));
                let outs: Vec<Vec<f64>> = outs.collect();
                let column = |col: usize| outs.iter().map(move |out| out[col]);
                let join = |col: usize| match self.arch().relation_aggregator {
                    RelationAggregator::Sum => column(col).sum(),
                    RelationAggregator::Mean => column(col).sum::<f64>() / outs.len() as f64,
                    RelationAggregator::Max => column(col).fold(f64::NEG_INFINITY, f64::max),
                };
                (0..outs[0].len()).map(join).collect()
            }
        }
    }

    fn prefix(&self, relation: usize) -> String {
        let of = &self.arch().relations[relation];
        let at = self.layer - 1;
        format!("convs.{at}.convs.<{}___{}___{}>", of.from, of.name, of.to)
    }

    fn of_relation(&self, kind: LayerKind, relation: usize) -> Vec<f64> {
        match kind {
            LayerKind::Gcn => self.gcn(relation),
            LayerKind::Sage => self.sage(relation),
            LayerKind::Gat => self.attention(relation, false),
            LayerKind::GatV2 => self.attention(relation, true),
            LayerKind::Gin => self.gin(relation),
            LayerKind::LightGcn => panic!("its tests have a twin of their own"),
            LayerKind::Custom(_) => panic!("the twin has the kinds of this crate"),
        }
    }

    fn row(&self, edge: InEdge) -> &[f64] {
        &self.x[edge.from][edge.src]
    }

    fn is_own(&self, edge: InEdge) -> bool {
        (edge.from, edge.src) == (self.t, self.v)
    }

    fn gcn(&self, relation: usize) -> Vec<f64> {
        let (edges, name) = (&self.block.relations[relation], self.prefix(relation));
        let weighted = self.arch().relations[relation].edge_weight;
        let loops = edges.self_loops.as_ref().unwrap();
        let own = |u: usize| match &edges.self_weight {
            Some(weight) if weighted && loops[u] > 0 => f64::from(weight[u]),
            _ => 1.0,
        };
        let degree = |u: usize| {
            let others = if weighted {
                let (all, own) = (&edges.in_weight, &edges.self_weight);
                f64::from(all.as_ref().unwrap()[u]) - f64::from(own.as_ref().unwrap()[u])
            } else {
                f64::from(edges.in_degree[u] - loops[u])
            };
            others + own(u)
        };
        let project = |row: &[f64]| self.twin.linear(&format!("{name}.lin"), row);
        let mut out = self.twin.get(&format!("{name}.bias")).to_vec();
        add(&mut out, own(self.v) / degree(self.v), &project(self.own()));
        for edge in self.sum_edges(relation) {
            if !self.is_own(edge) {
                let root = (degree(edge.src) * degree(self.v)).sqrt();
                add(&mut out, edge.weight / root, &project(self.row(edge)));
            }
        }
        out
    }

    fn sage(&self, relation: usize) -> Vec<f64> {
        let (name, max) = (
            self.prefix(relation),
            self.arch().aggregator == Aggregator::Max,
        );
        let mean = self.mean(relation);
        let mut joined = mean;
        if max {
            let edges = self.in_edges(relation);
            for (at, joined) in joined.iter_mut().enumerate() {
                let messages = edges.iter().map(|&edge| edge.weight * self.row(edge)[at]);
                *joined = messages.reduce(f64::max).unwrap_or(0.0);
            }
        }
        let mut out = self.twin.linear(&format!("{name}.lin_l"), &joined);
        add(
            &mut out,
            1.0,
            &self.twin.linear(&format!("{name}.lin_r"), self.own()),
        );
        out
    }

    /// The mean over a relation's in-edges, 0 without any.
    fn mean(&self, relation: usize) -> Vec<f64> {
        let edges = self.sum_edges(relation);
        let degree = f64::from(self.block.relations[relation].in_degree[self.v]);
        let mut mean = vec![0.0; self.own().len()];
        for edge in edges {
            add(&mut mean, edge.weight / degree, self.row(edge));
        }
        mean
    }

    fn gin(&self, relation: usize) -> Vec<f64> {
        let name = self.prefix(relation);
        let mut sum = self.own().to_vec();
        for edge in self.sum_edges(relation) {
            let mut message = self.row(edge).to_vec();
            if let Some(feature) = self.edge_feature(edge) {
                add(
                    &mut message,
                    1.0,
                    &self.twin.linear(&format!("{name}.lin"), &feature),
                );
                message.iter_mut().for_each(|x| *x = x.max(0.0));
            }
            add(&mut sum, edge.weight, &message);
        }
        let mut hidden = self.twin.linear(&format!("{name}.nn.lins.0"), &sum);
        self.twin.norm(&format!("{name}.nn.norms.0"), &mut hidden);
        self.twin.activate(&mut hidden);
        self.twin.linear(&format!("{name}.nn.lins.1"), &hidden)
    }

    fn edge_feature(&self, edge: InEdge) -> Option<Vec<f64>> {
        self.arch().relations[edge.relation].edge_dim?;
        let feature = self.block.relations[edge.relation]
            .edge_feature
            .as_ref()
            .unwrap();
        Some(
            feature
                .row(edge.edge)
                .iter()
                .map(|&x| f64::from(x))
                .collect(),
        )
    }

    fn rgcn(&self) -> Vec<f64> {
        let (at, width) = (self.layer - 1, self.width());
        let get = |name: &str| self.twin.get(&format!("convs.{at}.{name}"));
        let times = |x: &[f64], weight: &[f64], factor: f64, out: &mut [f64]| {
            for (x, row) in x.iter().zip(weight.chunks(width)) {
                add(out, factor * x, row);
            }
        };
        let mut out = get("bias").to_vec();
        times(self.own(), get("root"), 1.0, &mut out);
        let size = self.own().len() * width;
        for relation in self.relations() {
            let mean = self.mean(relation);
            match self.arch().num_bases {
                None => times(
                    &mean,
                    &get("weight")[relation * size..][..size],
                    1.0,
                    &mut out,
                ),
                Some(bases) => {
                    for base in 0..bases {
                        let share = get("comp")[relation * bases + base];
                        times(
                            &mean,
                            &get("weight")[base * size..][..size],
                            share,
                            &mut out,
                        );
                    }
                }
            }
        }
        out
    }
}
