//! Small graphs in memory: drawn at random, or written as text.

use crate::draw::Draw;
use schemas::{IdType, Split};

/// A node id; its derived order is that of integers, and bytewise for strings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Id {
    Int(i128),
    Text(String),
}

/// Features of the nodes, one row per node.
#[derive(Clone, Debug)]
pub(crate) enum NodeFeatures {
    None,
    Dense(Vec<Vec<f32>>),
    Sparse {
        width: u32,
        rows: Vec<Vec<(u32, f32)>>,
    },
}

/// Labels of the nodes, one row per node.
#[derive(Clone, Debug)]
pub(crate) enum LabelColumn {
    None,
    Class(Vec<Option<u32>>),
    Name(Vec<Option<&'static str>>),
    Multi(Vec<Option<Vec<bool>>>),
    Number(Vec<Option<f32>>),
}

#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) src: Id,
    pub(crate) dst: Id,
    pub(crate) weight: f32,
    pub(crate) feature: Vec<f32>,
}

/// A graph as in its tables: nodes and edges in the order of their rows.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) id_type: IdType,
    pub(crate) ids: Vec<Id>,
    pub(crate) features: NodeFeatures,
    pub(crate) labels: LabelColumn,
    pub(crate) splits: Option<Vec<Split>>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) weighted: bool,
    pub(crate) edge_dim: usize,
    pub(crate) undirected: bool,
}

/// The properties of a random graph.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) id_type: IdType,
    pub(crate) nodes: usize,
    pub(crate) edges: usize,
    pub(crate) features: Features,
    pub(crate) labels: Kind,
    pub(crate) weights: Weights,
    pub(crate) edge_dim: usize,
    pub(crate) undirected: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Features {
    None,
    Dense,
    Sparse,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    None,
    Class,
    Name,
    Multi,
    Number,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Weights {
    None,
    /// Not negative, many of them equal.
    Few,
    /// Not negative, few of them equal.
    Many,
    /// Some of them negative.
    Signed,
}

const DENSE_DIM: usize = 4;
const SPARSE_WIDTH: u32 = 50;
const MULTI_WIDTH: usize = 3;

impl Shape {
    /// Draws a shape; every kind of id, feature, label and weight has a chance.
    pub(crate) fn random(draw: &mut Draw) -> Self {
        use IdType::{Int32, Int64, UInt64, Utf8};
        Self {
            id_type: draw.pick(&[Int32, Int64, UInt64, Utf8]),
            nodes: 1 + draw.below(60),
            edges: draw.below(300),
            features: draw.pick(&[Features::None, Features::Dense, Features::Sparse]),
            labels: draw.pick(&[
                Kind::None,
                Kind::Class,
                Kind::Name,
                Kind::Multi,
                Kind::Number,
            ]),
            weights: draw.pick(&[Weights::None, Weights::Few, Weights::Many, Weights::Signed]),
            edge_dim: draw.pick(&[0, 0, 1, 3]),
            undirected: draw.one_in(2),
        }
    }

    /// Draws a graph with parallel edges, self-loops, isolated nodes and two hubs.
    pub(crate) fn graph(&self, draw: &mut Draw) -> Graph {
        let mut ids = draw_ids(draw, self.id_type, self.nodes);
        draw.shuffle(&mut ids);
        // One in five nodes has no edge.
        let joined = ids.len() - ids.len() / 5;
        let mut edges: Vec<Edge> = Vec::new();
        for _ in 0..self.edges {
            if !edges.is_empty() && draw.one_in(6) {
                let parallel = draw.below(edges.len());
                let (src, dst) = (edges[parallel].src.clone(), edges[parallel].dst.clone());
                edges.push(self.edge(draw, src, dst));
                continue;
            }
            let src = ids[draw.below(joined)].clone();
            let dst = match draw.below(10) {
                0 => src.clone(),
                1..4 => ids[draw.below(joined.min(2))].clone(),
                _ => ids[draw.below(joined)].clone(),
            };
            edges.push(self.edge(draw, src, dst));
        }
        draw.shuffle(&mut edges);
        let splits = (0..self.nodes).map(|_| {
            use Split::{None, Test, Train, Val};
            draw.pick(&[None, Train, Train, Val, Test])
        });
        let mut splits: Vec<Split> = splits.collect();
        // At least one node for every choice of targets.
        splits[0] = Split::Train;
        Graph {
            id_type: self.id_type,
            features: self.draw_features(draw),
            labels: self.draw_labels(draw),
            splits: Some(splits),
            ids,
            edges,
            weighted: self.weights != Weights::None,
            edge_dim: self.edge_dim,
            undirected: self.undirected,
        }
    }

    pub(crate) fn edge(&self, draw: &mut Draw, src: Id, dst: Id) -> Edge {
        let weight = match self.weights {
            Weights::None => 1.0,
            Weights::Few => small(draw, 6) / 4.0,
            // Multiples of 2^-20: sums of hundreds of them are exact in f64.
            Weights::Many => small(draw, 1 << 22) / f32::from(1u16 << 10) / f32::from(1u16 << 10),
            Weights::Signed => (small(draw, 40) - 20.0) / 8.0,
        };
        let feature = (0..self.edge_dim)
            .map(|_| small(draw, 1000) - 500.0)
            .collect();
        Edge {
            src,
            dst,
            weight,
            feature,
        }
    }

    fn draw_features(&self, draw: &mut Draw) -> NodeFeatures {
        let rows = 0..self.nodes;
        match self.features {
            Features::None => NodeFeatures::None,
            Features::Dense => NodeFeatures::Dense(
                rows.map(|_| (0..DENSE_DIM).map(|_| small(draw, 99) / 8.0).collect())
                    .collect(),
            ),
            Features::Sparse => {
                let row = |_| {
                    let entries = draw.below(5);
                    let mut entry = || (u32::try_from(draw.below(50)).unwrap(), small(draw, 9));
                    (0..entries).map(|_| entry()).collect()
                };
                NodeFeatures::Sparse {
                    width: SPARSE_WIDTH,
                    rows: rows.map(row).collect(),
                }
            }
        }
    }

    /// Draws labels: the first node has one, and one node in five has none.
    fn draw_labels(&self, draw: &mut Draw) -> LabelColumn {
        fn column<T>(nodes: usize, draw: &mut Draw, value: fn(&mut Draw) -> T) -> Vec<Option<T>> {
            (0..nodes)
                .map(|row| {
                    let drawn = value(draw);
                    (row == 0 || !draw.one_in(5)).then_some(drawn)
                })
                .collect()
        }
        match self.labels {
            Kind::None => LabelColumn::None,
            Kind::Class => {
                let class = |d: &mut Draw| u32::try_from(d.below(4)).unwrap();
                LabelColumn::Class(column(self.nodes, draw, class))
            }
            Kind::Name => {
                let name = |d: &mut Draw| d.pick(&["web", "admin", "été", "x11"]);
                LabelColumn::Name(column(self.nodes, draw, name))
            }
            Kind::Multi => {
                let classes = |d: &mut Draw| (0..MULTI_WIDTH).map(|_| d.one_in(2)).collect();
                LabelColumn::Multi(column(self.nodes, draw, classes))
            }
            Kind::Number => {
                LabelColumn::Number(column(self.nodes, draw, |d| small(d, 100) / 16.0 - 3.0))
            }
        }
    }
}

/// Returns a whole number below `limit`, which `f32` represents exactly.
fn small(draw: &mut Draw, limit: u32) -> f32 {
    let number = u32::try_from(draw.below(usize::try_from(limit).unwrap())).unwrap();
    let (high, low) = (number >> 16, number & 0xffff);
    f32::from(u16::try_from(high).unwrap()) * 65536.0 + f32::from(u16::try_from(low).unwrap())
}

/// Draws distinct ids: consecutive integers, or ids that include the smallest and the largest.
fn draw_ids(draw: &mut Draw, id_type: IdType, count: usize) -> Vec<Id> {
    let close = id_type.is_integer() && draw.below(2) == 0;
    let mut ids: Vec<Id> = match id_type {
        _ if close => Vec::new(),
        IdType::Int32 => ints(&[i32::MIN.into(), i32::MAX.into(), 0, -1]),
        IdType::Int64 => ints(&[i64::MIN.into(), i64::MAX.into(), 0, -1]),
        IdType::UInt64 => ints(&[0, u64::MAX.into(), i128::from(i64::MAX) + 1, 1]),
        IdType::Utf8 => ["", "a", "ab", "Ä", "日本", "a b"]
            .map(|text| Id::Text(text.to_owned()))
            .to_vec(),
    };
    while ids.len() < count {
        let id = match id_type {
            _ if close => Id::Int(i128::try_from(draw.below(3 * count + 9)).unwrap() + 70),
            IdType::Int32 => Id::Int(i128::from(draw.bits() % 2000) - 1000),
            IdType::Int64 => Id::Int(i128::from(draw.bits().cast_signed())),
            IdType::UInt64 => Id::Int(i128::from(draw.bits())),
            IdType::Utf8 => Id::Text(format!("{:x}", draw.bits() % 100_000)),
        };
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids.truncate(count);
    ids
}

fn ints(ids: &[i128]) -> Vec<Id> {
    ids.iter().copied().map(Id::Int).collect()
}

impl Graph {
    /// Reads a graph with int64 ids: `1->0` is an edge, `1->0:2.5` an edge with a weight, `7` a
    /// node without edges. Nodes come in ascending order, all in the split `train`.
    pub(crate) fn parse(text: &str) -> Self {
        let id = |digits: &str| Id::Int(digits.parse().unwrap());
        let (mut ids, mut edges) = (Vec::new(), Vec::new());
        for word in text.split_whitespace() {
            let (ends, weight) = word.split_once(':').unwrap_or((word, "1"));
            match ends.split_once("->") {
                None => ids.push(id(ends)),
                Some((src, dst)) => {
                    ids.extend([id(src), id(dst)]);
                    edges.push(Edge {
                        src: id(src),
                        dst: id(dst),
                        weight: weight.parse().unwrap(),
                        feature: Vec::new(),
                    });
                }
            }
        }
        ids.sort();
        ids.dedup();
        Self {
            id_type: IdType::Int64,
            features: NodeFeatures::None,
            labels: LabelColumn::None,
            splits: Some(vec![Split::Train; ids.len()]),
            ids,
            edges,
            weighted: text.contains(':'),
            edge_dim: 0,
            undirected: false,
        }
    }
}
