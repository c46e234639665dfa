//! Attention of the slow twin: GAT, GATv2, Simple-HGN and HGT.

use gnn::typed::RelationInput;

use super::{InEdge, Node, add, dot};

fn leaky(x: f64) -> f64 {
    if x > 0.0 { x } else { 0.2 * x }
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let total: f64 = scores.iter().map(|score| score.exp()).sum();
    scores.iter().map(|score| score.exp() / total).collect()
}

/// The error function by its series.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// The row of an in-edge's src node, the edge's weight and its feature.
type Message<'a> = (&'a [f64], f64, Option<Vec<f64>>);

impl Node<'_> {
    /// GAT or GATv2; relations of one type have one self-loop a node, whose feature is the mean.
    pub(super) fn attention(&self, relation: usize, v2: bool) -> Vec<f64> {
        let (name, (heads, width)) = (self.prefix(relation), (self.heads(), self.width()));
        let (from, to) = self.twin.ends(relation);
        let hidden = self.layer <= self.arch().hidden.len();
        let dim = if hidden { width / heads } else { width };
        let others = self
            .in_edges(relation)
            .into_iter()
            .filter(|&edge| !self.is_own(edge));
        let mut edges: Vec<Message<'_>> = others
            .map(|edge| (self.row(edge), edge.weight, self.edge_feature(edge)))
            .collect();
        if from == to {
            let mean = self.arch().relations[relation].edge_dim.map(|dim| {
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
            edges.push((self.own(), 1.0, mean));
        }
        let (src, dst) = match (v2, from == to) {
            (true, _) => ("lin_l", "lin_r"),
            (false, true) => ("lin", "lin"),
            (false, false) => ("lin_src", "lin_dst"),
        };
        let part = |name_of: &str, x: &[f64]| self.twin.linear(&format!("{name}.{name_of}"), x);
        let mut wide = vec![0.0; heads * dim];
        for head in 0..heads {
            let part_of = head * dim..(head + 1) * dim;
            let att = |of: &str| &self.twin.get(&format!("{name}.{of}"))[part_of.clone()];
            let score = |x: &[f64], feature: &Option<Vec<f64>>| {
                let l = part(src, x)[part_of.clone()].to_vec();
                let r = part(dst, self.own())[part_of.clone()].to_vec();
                let z = feature
                    .as_ref()
                    .map(|f| part("lin_edge", f)[part_of.clone()].to_vec());
                if v2 {
                    let mut sum = l;
                    add(&mut sum, 1.0, &r);
                    z.iter().for_each(|z| add(&mut sum, 1.0, z));
                    sum.iter_mut().for_each(|x| *x = leaky(*x));
                    return dot(&sum, att("att"));
                }
                let of_edge = z.map_or(0.0, |z| dot(&z, att("att_edge")));
                leaky(dot(&l, att("att_src")) + dot(&r, att("att_dst")) + of_edge)
            };
            let scores: Vec<f64> = edges.iter().map(|(x, _, f)| score(x, f)).collect();
            for ((x, weight, _), alpha) in edges.iter().zip(softmax(&scores)) {
                let l = &part(src, x)[part_of.clone()];
                add(&mut wide[part_of.clone()], weight * alpha, l);
            }
        }
        let mut out = self.twin.get(&format!("{name}.bias")).to_vec();
        self.add_heads(&wide, hidden, &mut out);
        out
    }

    /// Adds heads side by side, or their mean.
    fn add_heads(&self, wide: &[f64], hidden: bool, out: &mut [f64]) {
        let heads = if hidden { 1 } else { self.heads() };
        for head in wide.chunks(wide.len() / heads) {
            add(out, 1.0 / heads as f64, head);
        }
    }

    pub(super) fn simple_hgn(&self) -> Vec<f64> {
        let arch = self.arch();
        let hidden = self.layer <= arch.hidden.len();
        let mut edges: Vec<InEdge> = self
            .relations()
            .into_iter()
            .flat_map(|relation| self.in_edges(relation))
            .filter(|&edge| !self.is_own(edge))
            .collect();
        edges.push(InEdge {
            from: self.t,
            src: self.v,
            relation: arch.relations.len(),
            edge: 0,
            weight: 1.0,
        });
        let projected = &self.twin.before[self.layer - 1];
        let wide = projected[self.t][self.v].len();
        let dim = wide / self.heads();
        let mut out = vec![0.0; wide];
        for head in 0..self.heads() {
            let mut alpha = self.hgn_attention(self.layer, head, &edges);
            if arch.attention_residual > 0.0 && hidden {
                let share = f64::from(arch.attention_residual);
                alpha = self.hgn_attention(1, head, &edges);
                for layer in 2..=self.layer {
                    let own = self.hgn_attention(layer, head, &edges);
                    for (alpha, own) in alpha.iter_mut().zip(own) {
                        *alpha = (1.0 - share) * own + share * *alpha;
                    }
                }
            }
            let part = head * dim..(head + 1) * dim;
            for (edge, alpha) in edges.iter().zip(alpha) {
                let row = &projected[edge.from][edge.src][part.clone()];
                add(&mut out[part.clone()], alpha, row);
            }
        }
        if arch.residual && self.layer > 1 {
            let map = format!("convs.{}.res_fc", self.layer - 1);
            let has_map = self.twin.tensors.contains_key(&format!("{map}.weight"));
            let own = if has_map {
                self.twin.linear(&map, self.own())
            } else {
                self.own().to_vec()
            };
            add(&mut out, 1.0, &own);
        }
        let mut merged = vec![0.0; self.width()];
        self.add_heads(&out, hidden, &mut merged);
        merged
    }

    /// The attention of one head of a layer over some in-edges.
    fn hgn_attention(&self, layer: usize, head: usize, edges: &[InEdge]) -> Vec<f64> {
        let projected = &self.twin.before[layer - 1];
        let get = |name: &str| self.twin.get(&format!("convs.{}.{name}", layer - 1));
        let own = &projected[self.t][self.v];
        let dim = own.len() / self.heads();
        let part = head * dim..(head + 1) * dim;
        let score = |edge: &InEdge| {
            let relation_dim = self.arch().relation_dim.unwrap();
            let vector = &get("edge_emb.weight")[edge.relation * relation_dim..][..relation_dim];
            let name = format!("convs.{}.fc_e", layer - 1);
            let of_relation = self.twin.linear(&name, vector);
            let heads = head * relation_dim..(head + 1) * relation_dim;
            let src = &projected[edge.from][edge.src];
            leaky(
                dot(&src[part.clone()], &get("attn_l")[part.clone()])
                    + dot(&own[part.clone()], &get("attn_r")[part.clone()])
                    + dot(&of_relation[heads.clone()], &get("attn_e")[heads]),
            )
        };
        softmax(&edges.iter().map(score).collect::<Vec<f64>>())
    }

    pub(super) fn hgt(&self) -> Vec<f64> {
        let (arch, heads, width) = (self.arch(), self.heads(), self.width());
        let (at, dim, count) = (self.layer - 1, width / heads, arch.relations.len());
        let name = |t: usize| &arch.types[t].name;
        let kqv = |t: usize, x: &[f64], place: usize| {
            let all = self
                .twin
                .linear(&format!("convs.{at}.kqv_lin.lins.{}", name(t)), x);
            all[place * width..(place + 1) * width].to_vec()
        };
        // `x` of one head times the map of a relation.
        let mapped = |x: &[f64], tensor: &str, relation: usize, head: usize| {
            let all = self.twin.get(&format!("convs.{at}.{tensor}.weight"));
            let map = &all[(head * count + relation) * dim * dim..][..dim * dim];
            let mut out = vec![0.0; dim];
            for (x, row) in x.iter().zip(map.chunks(dim)) {
                add(&mut out, *x, row);
            }
            out
        };
        let relations = self.relations().into_iter();
        let edges: Vec<InEdge> = relations.flat_map(|r| self.in_edges(r)).collect();
        let query = kqv(self.t, self.own(), 1);
        let mut sum = vec![0.0; width];
        for head in 0..heads {
            let part = head * dim..(head + 1) * dim;
            let of = |edge: &InEdge, place: usize, tensor: &str| {
                let all = kqv(edge.from, self.row(*edge), place);
                mapped(&all[part.clone()], tensor, edge.relation, head)
            };
            let score = |edge: &InEdge| {
                let RelationInput { from, name, to, .. } = &arch.relations[edge.relation];
                let prior = self
                    .twin
                    .get(&format!("convs.{at}.p_rel.{from}__{name}__{to}"))[head];
                dot(&query[part.clone()], &of(edge, 0, "k_rel")) * prior / (dim as f64).sqrt()
            };
            let alpha = softmax(&edges.iter().map(score).collect::<Vec<f64>>());
            for (edge, alpha) in edges.iter().zip(alpha) {
                add(&mut sum[part.clone()], alpha, &of(edge, 2, "v_rel"));
            }
        }
        for x in &mut sum {
            *x *= 0.5 * (1.0 + erf(*x / 2.0_f64.sqrt()));
        }
        let out_lin = format!("convs.{at}.out_lin.lins.{}", name(self.t));
        let mut out = self.twin.linear(&out_lin, &sum);
        if out.len() == self.own().len() {
            let skip = self.twin.get(&format!("convs.{at}.skip.{}", name(self.t)))[0];
            let share = 1.0 / (1.0 + (-skip).exp());
            out.iter_mut().for_each(|x| *x *= share);
            add(&mut out, 1.0 - share, self.own());
        }
        out
    }
}
