//! The slow twin: computes every layer by its formula, one node and one edge at a time, in f64.

use std::collections::BTreeMap;

use gnn::{Activation, Aggregator, BlockData, Dense, Input, LayerKind, Model, Norm, Sampling};

pub(crate) type Rows = Vec<Vec<f64>>;

/// Parameters and running statistics by name.
pub(crate) struct Twin<'a> {
    model: &'a Model,
    tensors: BTreeMap<String, Vec<f64>>,
}

pub(crate) fn rows(input: &Input) -> Rows {
    let dense = match input {
        Input::Dense(dense) => dense.clone(),
        Input::Sparse(sparse) => sparse.to_dense(sparse.rows),
    };
    rows_of(&dense)
}

pub(crate) fn rows_of(dense: &Dense) -> Rows {
    (0..dense.rows)
        .map(|v| dense.row(v).iter().map(|&x| f64::from(x)).collect())
        .collect()
}

impl<'a> Twin<'a> {
    pub(crate) fn new(model: &'a Model) -> Twin<'a> {
        let (flat, mut start, mut tensors) = (model.flat(), 0, BTreeMap::new());
        for info in model.parameters() {
            let values = &flat[start..start + info.len()];
            start += info.len();
            let values = values.iter().map(|&x| f64::from(x)).collect();
            tensors.insert(info.name.clone(), values);
        }
        let arch = model.architecture();
        let mut statistics = model.buffers();
        let layers = if statistics.is_empty() {
            0
        } else {
            arch.num_layers
        };
        for layer in 0..layers {
            let inner = format!("convs.{layer}.nn.norms.0");
            let norms = [
                (arch.layer == LayerKind::Gin).then_some(inner),
                (layer < arch.hidden.len()).then(|| format!("norms.{layer}")),
            ];
            for norm in norms.into_iter().flatten() {
                for name in ["mean", "var"] {
                    let (values, rest) = statistics.split_at(arch.output_dim(layer + 1));
                    let values = values.iter().map(|&x| f64::from(x)).collect();
                    tensors.insert(format!("{norm}.{name}"), values);
                    statistics = rest;
                }
            }
        }
        Twin { model, tensors }
    }

    fn get(&self, name: &str) -> &[f64] {
        self.tensors
            .get(name)
            .unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// `weight * x`, plus bias if there is one.
    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.get(&format!("{name}.weight"));
        let bias = self.tensors.get(&format!("{name}.bias"));
        let out = weight.len() / x.len();
        let row = |at: usize| -> f64 {
            let row = &weight[at * x.len()..(at + 1) * x.len()];
            row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + bias.map_or(0.0, |b| b[at])
        };
        (0..out).map(row).collect()
    }

    /// The whole model in eval mode.
    pub(crate) fn forward(&self, data: &[BlockData], input: &Input) -> Rows {
        let mut x = rows(input);
        for (layer, block) in (1..).zip(data) {
            x = self.layer(layer, block, &x);
        }
        if self.model.architecture().has_head() {
            x = x.iter().map(|row| self.linear("lin", row)).collect();
        }
        x
    }

    pub(crate) fn layer(&self, layer: usize, block: &BlockData, x: &Rows) -> Rows {
        let arch = self.model.architecture();
        (0..block.num_dst)
            .map(|v| {
                let node = Node {
                    twin: self,
                    conv: format!("convs.{}", layer - 1),
                    block,
                    x,
                    v,
                };
                let mut out = match arch.layer {
                    LayerKind::Gcn => node.gcn(),
                    LayerKind::Sage => node.sage(),
                    LayerKind::Gat => node.attention(layer, false),
                    LayerKind::GatV2 => node.attention(layer, true),
                    LayerKind::Gin => node.gin(),
                    LayerKind::LightGcn => panic!("its tests have a twin of their own"),
                    LayerKind::Custom(_) => panic!("the twin has the kinds of this crate"),
                };
                if arch.residual {
                    let name = format!("res.{}", layer - 1);
                    let own = if self.tensors.contains_key(&format!("{name}.weight")) {
                        self.linear(&name, &x[v])
                    } else {
                        x[v].clone()
                    };
                    add(&mut out, 1.0, &own);
                }
                if layer <= arch.hidden.len() {
                    self.norm(&format!("norms.{}", layer - 1), &mut out);
                    self.activate(&mut out);
                }
                out
            })
            .collect()
    }

    fn activate(&self, x: &mut [f64]) {
        let elu = self.model.architecture().activation == Activation::Elu;
        for x in x.iter_mut().filter(|x| **x < 0.0) {
            *x = if elu { x.exp() - 1.0 } else { 0.0 };
        }
    }

    /// Batch norm with the model's running statistics, or layer norm.
    fn norm(&self, name: &str, x: &mut [f64]) {
        let count = x.len() as f64;
        let layer_norm = |x: &[f64]| {
            let mean = x.iter().sum::<f64>() / count;
            let var = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
            (vec![mean; x.len()], vec![var; x.len()])
        };
        let (parameters, (mean, var)) = match self.model.architecture().norm {
            Norm::None => return,
            Norm::Batch => {
                let of = |what: &str| self.get(&format!("{name}.{what}")).to_vec();
                (format!("{name}.module"), (of("mean"), of("var")))
            }
            Norm::Layer => (name.to_owned(), layer_norm(x)),
        };
        let (weight, bias) = (
            self.get(&format!("{parameters}.weight")),
            self.get(&format!("{parameters}.bias")),
        );
        for (at, x) in x.iter_mut().enumerate() {
            *x = (*x - mean[at]) / (var[at] + 1e-5).sqrt() * weight[at] + bias[at];
        }
    }
}

/// One dst node of one layer.
struct Node<'a> {
    twin: &'a Twin<'a>,
    conv: String,
    block: &'a BlockData,
    x: &'a Rows,
    v: usize,
}

fn add(out: &mut [f64], factor: f64, x: &[f64]) {
    assert_eq!(out.len(), x.len());
    out.iter_mut()
        .zip(x)
        .for_each(|(out, x)| *out += factor * x);
}

fn leaky(x: f64) -> f64 {
    if x > 0.0 { x } else { 0.2 * x }
}

impl Node<'_> {
    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.conv)
    }

    fn uses_weights(&self) -> bool {
        self.twin.model.architecture().edge_weight
    }

    /// (edge, src, weight) of each kept in-edge.
    fn in_edges(&self) -> Vec<(usize, usize, f64)> {
        let range =
            self.block.in_offset[self.v] as usize..self.block.in_offset[self.v + 1] as usize;
        range
            .map(|e| {
                let weight = match &self.block.edge_weight {
                    Some(weight) if self.uses_weights() => f64::from(weight[e]),
                    _ => 1.0,
                };
                (e, self.block.in_src[e] as usize, weight)
            })
            .collect()
    }

    /// Returns in-edges with the coefficients of a sum that estimates the sum over all in-edges.
    fn sum_edges(&self) -> Vec<(usize, usize, f64)> {
        let mut edges = self.in_edges();
        let (kept, degree) = (edges.len() as f64, f64::from(self.block.in_degree[self.v]));
        if kept == degree || self.block.sampling == Sampling::Top {
            return edges;
        }
        if self.block.sampling == Sampling::Weighted && self.uses_weights() {
            return self.raj(&edges);
        }
        for (_, _, weight) in &mut edges {
            *weight *= degree / kept;
        }
        edges
    }

    /// Returns the mean of Raj's estimates, one for each draw: the edges drawn before, plus the
    /// edge of this draw times all weight not drawn before.
    fn raj(&self, edges: &[(usize, usize, f64)]) -> Vec<(usize, usize, f64)> {
        let mut total = edges.to_vec();
        total.iter_mut().for_each(|edge| edge.2 = 0.0);
        let all = f64::from(self.block.in_weight.as_ref().unwrap()[self.v]);
        for draw in 0..edges.len() {
            let before: f64 = edges[..draw].iter().map(|edge| edge.2).sum();
            for earlier in 0..draw {
                total[earlier].2 += edges[earlier].2 / edges.len() as f64;
            }
            total[draw].2 += (all - before) / edges.len() as f64;
        }
        total
    }

    /// Returns the weight of a node's one self-loop.
    fn own(&self, u: usize) -> f64 {
        let loops = self.block.self_loops.as_ref().map_or(0, |loops| loops[u]);
        match &self.block.self_weight {
            Some(weight) if self.uses_weights() && loops > 0 => f64::from(weight[u]),
            _ => 1.0,
        }
    }

    /// Returns the sum over all in-edges from other nodes, plus the one self-loop.
    fn degree(&self, u: usize) -> f64 {
        let others = match (&self.block.in_weight, &self.block.self_weight) {
            (Some(all), loops) if self.uses_weights() => {
                f64::from(all[u]) - loops.as_ref().map_or(0.0, |loops| f64::from(loops[u]))
            }
            _ => {
                let loops = self.block.self_loops.as_ref().map_or(0, |loops| loops[u]);
                f64::from(self.block.in_degree[u] - loops)
            }
        };
        others + self.own(u)
    }

    fn gcn(&self) -> Vec<f64> {
        let project = |u: usize| self.twin.linear(&self.name("lin"), &self.x[u]);
        let mut out = self.twin.get(&self.name("bias")).to_vec();
        let own = self.own(self.v) / self.degree(self.v);
        add(&mut out, own, &project(self.v));
        for (_, u, weight) in self.sum_edges() {
            if u != self.v {
                let root = (self.degree(u) * self.degree(self.v)).sqrt();
                add(&mut out, weight / root, &project(u));
            }
        }
        out
    }

    fn sage(&self) -> Vec<f64> {
        let max = self.twin.model.architecture().aggregator == Aggregator::Max;
        let edges = if max {
            self.in_edges()
        } else {
            self.sum_edges()
        };
        let degree = match self.block.sampling {
            Sampling::Top => edges.len() as f64,
            _ => f64::from(self.block.in_degree[self.v]),
        };
        let mut joined = vec![0.0; self.x[self.v].len()];
        for (at, joined) in joined.iter_mut().enumerate() {
            let messages = edges.iter().map(|&(_, u, weight)| weight * self.x[u][at]);
            *joined = match (edges.is_empty(), max) {
                (true, _) => 0.0,
                (false, true) => messages.fold(f64::NEG_INFINITY, f64::max),
                (false, false) => messages.sum::<f64>() / degree,
            };
        }
        let mut out = self.twin.linear(&self.name("lin_l"), &joined);
        add(
            &mut out,
            1.0,
            &self.twin.linear(&self.name("lin_r"), &self.x[self.v]),
        );
        out
    }

    fn gin(&self) -> Vec<f64> {
        let mut sum = self.x[self.v].clone();
        for (e, u, weight) in self.sum_edges() {
            let mut message = self.x[u].clone();
            if let Some(feature) = self.edge_feature(e) {
                add(
                    &mut message,
                    1.0,
                    &self.twin.linear(&self.name("lin"), &feature),
                );
                message.iter_mut().for_each(|x| *x = x.max(0.0));
            }
            add(&mut sum, weight, &message);
        }
        let mut hidden = self.twin.linear(&self.name("nn.lins.0"), &sum);
        self.twin.norm(&self.name("nn.norms.0"), &mut hidden);
        self.twin.activate(&mut hidden);
        self.twin.linear(&self.name("nn.lins.1"), &hidden)
    }

    fn edge_feature(&self, e: usize) -> Option<Vec<f64>> {
        self.twin.model.architecture().edge_dim?;
        let feature = self.block.edge_feature.as_ref().unwrap();
        Some(feature.row(e).iter().map(|&x| f64::from(x)).collect())
    }

    /// (src, weight, edge feature): self-loops replaced by exactly one, whose feature is the mean.
    fn attention_edges(&self) -> Vec<(usize, f64, Option<Vec<f64>>)> {
        let mut edges: Vec<_> = self
            .in_edges()
            .into_iter()
            .filter(|&(_, u, _)| u != self.v)
            .map(|(e, u, weight)| (u, weight, self.edge_feature(e)))
            .collect();
        let mean = self.twin.model.architecture().edge_dim.map(|dim| {
            let mut mean = vec![0.0; dim];
            for (_, _, feature) in &edges {
                add(
                    &mut mean,
                    1.0 / edges.len() as f64,
                    feature.as_ref().unwrap(),
                );
            }
            mean
        });
        edges.push((self.v, 1.0, mean));
        edges
    }

    fn attention(&self, layer: usize, v2: bool) -> Vec<f64> {
        let arch = self.twin.model.architecture();
        let hidden = layer <= arch.hidden.len();
        let heads = if hidden { arch.heads } else { arch.out_heads };
        let width = arch.output_dim(layer);
        let dim = if hidden { width / heads } else { width };
        let edges = self.attention_edges();
        let (own, other) = if v2 {
            ("lin_r", "lin_l")
        } else {
            ("lin", "lin")
        };
        let project = |part: &str, u: usize| self.twin.linear(&self.name(part), &self.x[u]);
        let x_dst = project(own, self.v);
        let mut wide = vec![0.0; heads * dim];
        for head in 0..heads {
            let part = head * dim..(head + 1) * dim;
            let att = |name: &str| self.twin.get(&self.name(name))[part.clone()].to_vec();
            let score = |u: usize, feature: &Option<Vec<f64>>| -> f64 {
                let x_src = project(other, u);
                let edge = feature
                    .as_ref()
                    .map(|f| self.twin.linear(&self.name("lin_edge"), f));
                let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                if v2 {
                    let mut sum = x_src[part.clone()].to_vec();
                    add(&mut sum, 1.0, &x_dst[part.clone()]);
                    if let Some(edge) = edge {
                        add(&mut sum, 1.0, &edge[part.clone()]);
                    }
                    sum.iter_mut().for_each(|x| *x = leaky(*x));
                    return dot(&sum, &att("att"));
                }
                let mut score = dot(&x_src[part.clone()], &att("att_src"));
                score += dot(&x_dst[part.clone()], &att("att_dst"));
                if let Some(edge) = edge {
                    score += dot(&edge[part.clone()], &att("att_edge"));
                }
                leaky(score)
            };
            let scores: Vec<f64> = edges.iter().map(|(u, _, f)| score(*u, f)).collect();
            let total: f64 = scores.iter().map(|score| score.exp()).sum();
            for ((u, weight, _), score) in edges.iter().zip(&scores) {
                let x_src = project(other, *u);
                add(
                    &mut wide[part.clone()],
                    weight * score.exp() / total,
                    &x_src[part.clone()],
                );
            }
        }
        let mut out = self.twin.get(&self.name("bias")).to_vec();
        if hidden {
            add(&mut out, 1.0, &wide);
        } else {
            for head in 0..heads {
                add(
                    &mut out,
                    1.0 / heads as f64,
                    &wide[head * dim..(head + 1) * dim],
                );
            }
        }
        out
    }
}
