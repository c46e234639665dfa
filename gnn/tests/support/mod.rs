//! Random graphs and batches of them, shared by the tests of this folder.
#![allow(
    dead_code,
    clippy::shadow_unrelated,
    clippy::unwrap_used,
    reason = "each test program uses its own part; loops name an element like its list"
)]

pub(crate) mod twin;

use gnn::{
    Activation, Aggregator, Architecture, Block, BlockData, Dense, Input, Labels, LayerKind, Norm,
    Sampling, SparseRows, Task,
};

/// A small generator of test data.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    /// Uniform in [-1, 1).
    #[allow(clippy::cast_possible_truncation, reason = "test data")]
    pub(crate) fn signed(&mut self) -> f32 {
        ((self.next() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0) as f32
    }

    pub(crate) fn dense(&mut self, rows: usize, cols: usize) -> Dense {
        Dense {
            rows,
            cols,
            values: (0..rows * cols).map(|_| self.signed()).collect(),
        }
    }
}

/// The properties of a test graph and its batch.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) num_nodes: usize,
    pub(crate) num_edges: usize,
    pub(crate) weights: bool,
    pub(crate) edge_dim: Option<usize>,
    pub(crate) sampling: Sampling,
    /// In-edges kept per node, by layer from the last to the first; short lists repeat the last.
    pub(crate) fanouts: Vec<usize>,
    pub(crate) pruned: bool,
    pub(crate) targets: usize,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            seed: 1,
            num_nodes: 14,
            num_edges: 50,
            weights: false,
            edge_dim: None,
            sampling: Sampling::Uniform,
            fanouts: vec![usize::MAX],
            pruned: true,
            targets: 6,
        }
    }
}

/// An edge of a test graph.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(crate) src: usize,
    pub(crate) weight: f32,
    pub(crate) feature: Vec<f32>,
}

/// A graph with parallel edges, self-loops and, as node 0, an isolated node.
pub(crate) struct Graph {
    pub(crate) case: Case,
    pub(crate) in_edges: Vec<Vec<Edge>>,
}

impl Graph {
    pub(crate) fn random(case: &Case) -> Graph {
        let mut random = Random(case.seed);
        let mut in_edges = vec![Vec::new(); case.num_nodes];
        for at in 0..case.num_edges {
            let dst = 1 + random.below(case.num_nodes - 1);
            let mut src = 1 + random.below(case.num_nodes - 1);
            if at % 7 == 0 {
                src = dst;
            }
            let edge = Edge {
                src,
                weight: if case.weights {
                    1.2 + random.signed()
                } else {
                    1.0
                },
                feature: (0..case.edge_dim.unwrap_or(0))
                    .map(|_| random.signed())
                    .collect(),
            };
            in_edges[dst].push(edge.clone());
            if at % 5 == 0 {
                in_edges[dst].push(Edge {
                    weight: edge.weight * 0.5,
                    ..edge
                });
            }
        }
        // The last node has only a self-loop.
        let last = case.num_nodes - 1;
        let feature = vec![0.5; case.edge_dim.unwrap_or(0)];
        in_edges[last] = vec![Edge {
            src: last,
            weight: 1.0,
            feature,
        }];
        Graph {
            case: case.clone(),
            in_edges,
        }
    }

    /// Returns one block per layer for targets 0, 1, ..., and the nodes that block 1 reads.
    pub(crate) fn blocks(&self, num_layers: usize) -> (Vec<BlockData>, Vec<usize>) {
        let mut nodes: Vec<usize> = (0..self.case.targets - 1).collect();
        nodes.push(self.case.num_nodes - 1);
        let mut sizes = vec![nodes.len()];
        for back in 0..num_layers {
            for v in 0..nodes.len() {
                for edge in self.kept(nodes[v], back) {
                    if !nodes.contains(&edge.src) {
                        nodes.push(edge.src);
                    }
                }
            }
            sizes.push(nodes.len());
        }
        let block = |back: usize| {
            let (active, all) = (sizes[back], *sizes.last().unwrap());
            if self.case.pruned {
                self.block(&nodes[..sizes[back + 1]], active, active, back)
            } else {
                self.block(&nodes, all, active, back)
            }
        };
        ((0..num_layers).rev().map(block).collect(), nodes)
    }

    fn kept(&self, node: usize, back: usize) -> &[Edge] {
        let fanout = self
            .case
            .fanouts
            .get(back)
            .or(self.case.fanouts.last())
            .copied()
            .unwrap();
        &self.in_edges[node][..fanout.min(self.in_edges[node].len())]
    }

    fn block(&self, nodes: &[usize], num_dst: usize, num_active: usize, back: usize) -> BlockData {
        let position = |node: usize| nodes.iter().position(|&other| other == node);
        let (mut offset, mut src, mut weight, mut feature) = (vec![0], vec![], vec![], vec![]);
        for &dst in &nodes[..num_dst] {
            // Without pruning, the sources of a node at the rim are not in the block: it has no
            // in-edges here.
            let kept = self.kept(dst, back);
            let kept = if kept.iter().all(|e| position(e.src).is_some()) {
                kept
            } else {
                &[]
            };
            for edge in kept {
                src.push(u32::try_from(position(edge.src).unwrap()).unwrap());
                weight.push(edge.weight);
                feature.extend_from_slice(&edge.feature);
            }
            offset.push(u32::try_from(src.len()).unwrap());
        }
        let sum = |wanted: &dyn Fn(usize, &Edge) -> bool| -> Vec<f32> {
            let of = |&v: &usize| {
                self.in_edges[v]
                    .iter()
                    .filter(|e| wanted(v, e))
                    .map(|e| e.weight)
                    .sum()
            };
            nodes.iter().map(of).collect()
        };
        let dim = self.case.edge_dim;
        BlockData {
            num_src: nodes.len(),
            num_dst,
            in_offset: offset,
            edge_feature: dim.map(|cols| Dense {
                rows: src.len(),
                cols,
                values: feature,
            }),
            in_src: src,
            edge_weight: self.case.weights.then_some(weight),
            in_degree: nodes
                .iter()
                .map(|&v| u32::try_from(self.in_edges[v].len()).unwrap())
                .collect(),
            in_weight: self.case.weights.then(|| sum(&|_, _| true)),
            self_loops: Some(
                nodes
                    .iter()
                    .map(|&v| self.in_edges[v].iter().filter(|e| e.src == v).count())
                    .map(|count| u32::try_from(count).unwrap())
                    .collect(),
            ),
            self_weight: self.case.weights.then(|| sum(&|v, edge| edge.src == v)),
            node_key: nodes.iter().map(|&v| Random(v as u64).next()).collect(),
            num_active,
            sampling: self.case.sampling,
        }
    }
}

/// A batch, and its plain data for the twin.
pub(crate) struct Batch {
    pub(crate) data: Vec<BlockData>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) nodes: Vec<usize>,
    pub(crate) input: Input,
}

/// Builds the batch of a case; features depend on the node alone.
pub(crate) fn batch(case: &Case, arch: &Architecture, sparse: bool) -> Batch {
    let graph = Graph::random(case);
    let (data, nodes) = graph.blocks(arch.num_layers);
    let blocks = data
        .iter()
        .map(|data| Block::new(data.clone()).unwrap())
        .collect();
    let mut rows = SparseRows {
        cols: arch.in_dim,
        offset: vec![0],
        ..SparseRows::default()
    };
    for &node in &nodes {
        let mut random = Random(1000 + node as u64);
        for col in 0..arch.in_dim {
            if !sparse || random.below(3) == 0 {
                rows.index.push(u32::try_from(col).unwrap());
                rows.value.push(random.signed());
            }
        }
        rows.rows += 1;
        rows.offset.push(u32::try_from(rows.index.len()).unwrap());
    }
    let input = if sparse {
        Input::Sparse(rows)
    } else {
        Input::Dense(rows.to_dense(rows.rows))
    };
    Batch {
        data,
        blocks,
        nodes,
        input,
    }
}

/// Labels for the first `rows` dst nodes.
pub(crate) fn labels(arch: &Architecture, rows: usize) -> Labels {
    let mut random = Random(77);
    match arch.task {
        Task::Classes => {
            let class = |_| u32::try_from(random.below(arch.out_dim)).unwrap();
            Labels::Classes((0..rows).map(class).collect())
        }
        Task::MultiLabel => {
            let mut wanted = random.dense(rows, arch.out_dim);
            wanted
                .values
                .iter_mut()
                .for_each(|y| *y = f32::from(u8::from(*y > 0.0)));
            Labels::MultiLabel(wanted)
        }
        Task::Regression => Labels::Regression(random.dense(rows, arch.out_dim)),
        Task::Links(_) => unreachable!("no architecture of these tests is of links"),
    }
}

/// A two-layer architecture without extras.
pub(crate) fn plain(layer: LayerKind) -> Architecture {
    let heads = if layer.is_attention() { 2 } else { 1 };
    Architecture {
        layer,
        aggregator: Aggregator::Mean,
        in_dim: 5,
        embedding_dim: None,
        edge_dim: None,
        edge_weight: false,
        hidden: vec![6],
        num_layers: 2,
        out_dim: 3,
        heads,
        out_heads: heads,
        dropout: 0.0,
        input_dropout: 0.0,
        attention_dropout: 0.0,
        norm: Norm::None,
        residual: false,
        activation: Activation::Relu,
        task: Task::Classes,
    }
}

pub(crate) const KINDS: [LayerKind; 5] = [
    LayerKind::Gcn,
    LayerKind::Sage,
    LayerKind::Gat,
    LayerKind::GatV2,
    LayerKind::Gin,
];

/// Every layer kind with every option that changes its forward pass.
pub(crate) fn architectures() -> Vec<Architecture> {
    let mut list = Vec::new();
    for kind in KINDS {
        let base = plain(kind);
        let edge_dim = (base.layer.is_attention() || kind == LayerKind::Gin).then_some(2);
        list.push(base.clone());
        list.push(Architecture {
            edge_weight: true,
            in_dim: 9,
            ..base.clone()
        });
        list.push(Architecture {
            edge_weight: true,
            edge_dim,
            residual: true,
            ..base.clone()
        });
        list.push(Architecture {
            hidden: vec![4, 8],
            out_heads: 1,
            norm: Norm::Batch,
            activation: Activation::Elu,
            task: Task::MultiLabel,
            ..base.clone()
        });
        list.push(Architecture {
            num_layers: 3,
            hidden: vec![6, 6],
            edge_dim,
            norm: Norm::Layer,
            residual: true,
            task: Task::Regression,
            out_heads: if kind.is_attention() { 3 } else { 1 },
            ..base
        });
    }
    let max = Architecture {
        aggregator: Aggregator::Max,
        ..plain(LayerKind::Sage)
    };
    list.push(Architecture {
        edge_weight: true,
        ..max.clone()
    });
    list.push(max);
    list
}

/// The case that gives an architecture the weights and edge features it uses.
pub(crate) fn case_for(arch: &Architecture) -> Case {
    Case {
        weights: arch.edge_weight,
        edge_dim: arch.edge_dim,
        ..Case::default()
    }
}
