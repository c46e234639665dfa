//! Random typed graphs and batches of them.

use std::sync::Arc;

use gnn::typed::{
    RelationData, RelationRange, Schema, TypeNodes, TypedArchitecture, TypedBlock, TypedBlockData,
};
use gnn::{Dense, Input, NodeColumns, RangeData, ReadyInput, Sampling, SparseRows};

use crate::support::Random;

/// In-edges that a batch keeps of each node and relation: all, or at most this many by layer from
/// the last to the first.
pub(crate) const ALL: [usize; 3] = [usize::MAX; 3];

/// An edge, by the position of its src node in its type.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) src: usize,
    pub(crate) weight: f32,
    pub(crate) feature: Vec<f32>,
}

/// A graph whose edges have weights and two features.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) schema: Arc<Schema>,
    /// By type, the number of nodes.
    pub(crate) num_nodes: Vec<usize>,
    /// By relation and dst node.
    pub(crate) in_edges: Vec<Vec<Vec<Edge>>>,
}

pub(crate) const EDGE_DIM: usize = 2;

impl Graph {
    /// Draws a graph with parallel edges and, in relations of one type, self-loops. Node 0 of each
    /// type has no in-edges.
    pub(crate) fn random(schema: &Arc<Schema>, nodes: usize, edges: usize, seed: u64) -> Graph {
        let mut random = Random(seed);
        let num_nodes: Vec<usize> = (0..schema.types.len()).map(|t| nodes + 2 * t).collect();
        let mut in_edges = Vec::new();
        for ends in &schema.relations {
            let mut of_relation = vec![Vec::new(); num_nodes[ends.to]];
            for at in 0..edges {
                let dst = 1 + random.below(num_nodes[ends.to] - 1);
                let mut src = random.below(num_nodes[ends.from]);
                if ends.from == ends.to && at % 6 == 0 {
                    src = dst;
                }
                let edge = Edge {
                    src,
                    weight: 1.2 + random.signed(),
                    feature: vec![random.signed(), random.signed()],
                };
                of_relation[dst].push(edge.clone());
                if at % 5 == 0 {
                    of_relation[dst].push(edge);
                }
            }
            in_edges.push(of_relation);
        }
        Graph {
            schema: Arc::clone(schema),
            num_nodes,
            in_edges,
        }
    }

    fn kept(&self, relation: usize, node: usize, fanout: usize) -> &[Edge] {
        let all = &self.in_edges[relation][node];
        &all[..fanout.min(all.len())]
    }

    /// Returns one block per layer for the first `targets` nodes of a type, and the nodes of each
    /// type that block 1 reads.
    pub(crate) fn blocks(
        &self,
        layers: usize,
        (target, targets): (usize, usize),
        fanouts: [usize; 3],
    ) -> (Vec<TypedBlockData>, Vec<Vec<usize>>) {
        let mut nodes = vec![Vec::new(); self.num_nodes.len()];
        nodes[target] = (0..targets).collect();
        let count = |nodes: &[Vec<usize>]| nodes.iter().map(Vec::len).collect::<Vec<usize>>();
        let mut sizes = vec![count(&nodes)];
        for &fanout in &fanouts[..layers] {
            let before = sizes[sizes.len() - 1].clone();
            for (r, ends) in self.schema.relations.iter().enumerate() {
                for at in 0..before[ends.to] {
                    for edge in self.kept(r, nodes[ends.to][at], fanout) {
                        if !nodes[ends.from].contains(&edge.src) {
                            nodes[ends.from].push(edge.src);
                        }
                    }
                }
            }
            sizes.push(count(&nodes));
        }
        let block = |back: usize| self.block(&nodes, &sizes[back + 1], &sizes[back], fanouts[back]);
        ((0..layers).rev().map(block).collect(), nodes)
    }

    /// Returns the block of all nodes, without sampling.
    pub(crate) fn whole(&self) -> TypedBlockData {
        let nodes: Vec<Vec<usize>> = self.num_nodes.iter().map(|&n| (0..n).collect()).collect();
        self.block(&nodes, &self.num_nodes, &self.num_nodes, usize::MAX)
    }

    fn block(
        &self,
        nodes: &[Vec<usize>],
        num_src: &[usize],
        num_dst: &[usize],
        fanout: usize,
    ) -> TypedBlockData {
        let types = (0..nodes.len()).map(|t| TypeNodes {
            num_src: num_src[t],
            num_dst: num_dst[t],
            num_active: num_dst[t],
            node_key: nodes[t][..num_src[t]].iter().map(|&v| key(t, v)).collect(),
        });
        let relations = self.schema.relations.iter().enumerate().map(|(r, ends)| {
            let position = |node: usize| {
                let place = nodes[ends.from].iter().position(|&other| other == node);
                u32::try_from(place.unwrap()).unwrap()
            };
            let dst = &nodes[ends.to][..num_dst[ends.to]];
            let edges = |v: usize| self.kept(r, v, fanout);
            let of_nodes = self.columns(r, &nodes[ends.to][..num_src[ends.to]]);
            let list = edges_of(dst.iter().map(|&v| edges(v)), position);
            RelationData {
                in_offset: list.in_offset,
                in_src: list.in_src,
                edge_weight: list.edge_weight,
                edge_feature: list.edge_feature,
                in_degree: of_nodes.0,
                in_weight: Some(of_nodes.1),
                self_loops: (ends.from == ends.to).then_some(of_nodes.2),
                self_weight: (ends.from == ends.to).then_some(of_nodes.3),
                sampling: Sampling::Uniform,
            }
        });
        TypedBlockData {
            types: types.collect(),
            relations: relations.collect(),
        }
    }

    /// Degrees, weights, self-loops and their weights of some dst nodes of a relation.
    fn columns(&self, r: usize, nodes: &[usize]) -> (Vec<u32>, Vec<f32>, Vec<u32>, Vec<f32>) {
        let all = |v: usize| self.in_edges[r][v].iter();
        let own = |v: usize| all(v).filter(move |e| e.src == v);
        let count = |n: usize| u32::try_from(n).unwrap();
        (
            nodes.iter().map(|&v| count(all(v).count())).collect(),
            nodes
                .iter()
                .map(|&v| all(v).map(|e| e.weight).sum())
                .collect(),
            nodes.iter().map(|&v| count(own(v).count())).collect(),
            nodes
                .iter()
                .map(|&v| own(v).map(|e| e.weight).sum())
                .collect(),
        )
    }

    /// Returns the block of a range of one type's nodes, without sampling.
    pub(crate) fn range(&self, t: usize, range: std::ops::Range<usize>) -> TypedBlock {
        let edges = self.schema.into_type(t).map(|r| {
            let ends = &self.schema.relations[r];
            let nodes: Vec<usize> = (0..self.num_nodes[t]).collect();
            let (degree, weight, loops, own) = self.columns(r, &nodes);
            let is_one_type = ends.from == ends.to;
            let columns = NodeColumns::new(
                degree,
                Some(weight),
                is_one_type.then_some(loops),
                is_one_type.then_some(own),
            );
            let lists = range.clone().map(|v| &self.in_edges[r][v][..]);
            RelationRange {
                relation: r,
                edges: RangeData {
                    first: range.start,
                    ..edges_of(lists, |node| u32::try_from(node).unwrap())
                },
                nodes: Arc::new(columns.unwrap()),
            }
        });
        let edges = edges.collect();
        TypedBlock::of_range(&self.schema, &self.num_nodes, (t, range.clone()), edges).unwrap()
    }
}

fn edges_of<'a>(
    lists: impl Iterator<Item = &'a [Edge]>,
    position: impl Fn(usize) -> u32,
) -> RangeData {
    let mut data = RangeData {
        in_offset: vec![0],
        ..RangeData::default()
    };
    let (mut weight, mut values) = (Vec::new(), Vec::new());
    for list in lists {
        for edge in list {
            data.in_src.push(position(edge.src));
            weight.push(edge.weight);
            values.extend_from_slice(&edge.feature);
        }
        data.in_offset
            .push(u32::try_from(data.in_src.len()).unwrap());
    }
    data.edge_feature = Some(Dense {
        rows: weight.len(),
        cols: EDGE_DIM,
        values,
    });
    data.edge_weight = Some(weight);
    data
}

/// The hash of a node's raw id.
fn key(t: usize, node: usize) -> u64 {
    Random(1 + 1000 * t as u64 + node as u64).next()
}

/// The raw features of some nodes of a type; type 1 has sparse rows.
pub(crate) fn features(arch: &TypedArchitecture, t: usize, nodes: &[usize]) -> Option<Input> {
    let cols = arch.types[t].in_dim?;
    let mut rows = SparseRows {
        cols,
        offset: vec![0],
        ..SparseRows::default()
    };
    for &node in nodes {
        let mut random = Random(77 + 1000 * t as u64 + node as u64);
        for col in 0..cols {
            if t != 1 || random.below(2) == 0 {
                rows.index.push(u32::try_from(col).unwrap());
                rows.value.push(random.signed());
            }
        }
        rows.rows += 1;
        rows.offset.push(u32::try_from(rows.index.len()).unwrap());
    }
    Some(if t == 1 {
        Input::Sparse(rows)
    } else {
        Input::Dense(rows.to_dense(rows.rows))
    })
}

/// A batch, and its plain data for the twin.
pub(crate) struct Batch {
    pub(crate) data: Vec<TypedBlockData>,
    pub(crate) blocks: Vec<TypedBlock>,
    pub(crate) raw: Vec<Option<Input>>,
    pub(crate) input: Vec<Option<ReadyInput>>,
}

impl Batch {
    pub(crate) fn of(
        graph: &Graph,
        arch: &TypedArchitecture,
        targets: usize,
        fanouts: [usize; 3],
    ) -> Batch {
        let (data, nodes) = graph.blocks(arch.num_layers, (arch.target(), targets), fanouts);
        let make = |data: &TypedBlockData| TypedBlock::new(&graph.schema, data.clone()).unwrap();
        let raw: Vec<Option<Input>> = nodes
            .iter()
            .enumerate()
            .map(|(t, nodes)| features(arch, t, nodes))
            .collect();
        Batch {
            blocks: data.iter().map(make).collect(),
            data,
            input: ready(&raw),
            raw,
        }
    }
}

pub(crate) fn ready(raw: &[Option<Input>]) -> Vec<Option<ReadyInput>> {
    let one = |of: &Option<Input>| of.clone().map(|input| ReadyInput::new(input).unwrap());
    raw.iter().map(one).collect()
}
