//! Compares each kernel's backward pass with central finite differences of its forward pass, in
//! f64.
#![cfg(test)]

mod support;

use std::sync::Arc;

use gnn::kernel::{
    Attention, BatchNorm, Csr, Dropout, Float, Forward, Gat, GatV2, Gine, Kernel, LayerNorm,
    Linear, Mask, RawGat, Saved, SegmentMax, Shared, Spmm, Update, column_statistics,
};
use gnn::{Activation, Block, BlockData};
use support::{Case, Graph, Random};

/// Half the step of a central difference in f64.
const STEP: f64 = 1e-6;

/// Error of the difference of values of order 10.
const TOLERANCE: f64 = 1e-7;

const DIM: usize = 6;
const HEADS: usize = 2;
const EDGE_DIM: usize = 3;

fn values(seed: u64, len: usize) -> Vec<f64> {
    let mut random = Random(seed);
    (0..len).map(|_| f64::from(random.signed())).collect()
}

/// One block with weights and edge features, not square: more src than dst nodes.
fn block() -> (Block, BlockData) {
    let case = Case {
        num_nodes: 20,
        num_edges: 30,
        weights: true,
        edge_dim: Some(EDGE_DIM),
        ..Case::default()
    };
    let data = Graph::random(&case).blocks(1).0.remove(0);
    assert!(data.num_src > data.num_dst);
    (Block::new(data.clone()).unwrap(), data)
}

fn views(inputs: &[Vec<f64>]) -> Vec<&[f64]> {
    inputs.iter().map(Vec::as_slice).collect()
}

/// Checks the gradient of `sum(out * r)` for fixed `r`, input by input.
///
/// `make` makes a kernel for each set of inputs, for kernels whose constants depend on the inputs.
fn check_made<K: Kernel>(make: impl Fn(&[Vec<f64>]) -> K, mut inputs: Vec<Vec<f64>>) {
    let forward = |given: &[Vec<f64>]| make(given).forward(&views(given));
    let done = forward(&inputs);
    let r = values(99, done.out.len());
    let value =
        |given: &[Vec<f64>]| -> f64 { forward(given).out.iter().zip(&r).map(|(a, b)| a * b).sum() };
    let needed = vec![true; inputs.len()];
    let grads = make(&inputs).backward(&views(&inputs), &done.saved, &r, &needed);
    assert_eq!(grads.len(), inputs.len());
    for input in 0..inputs.len() {
        assert_eq!(grads[input].len(), inputs[input].len(), "input {input}");
        for at in 0..inputs[input].len() {
            let old = inputs[input][at];
            inputs[input][at] = old + STEP;
            let above = value(&inputs);
            inputs[input][at] = old - STEP;
            let below = value(&inputs);
            inputs[input][at] = old;
            let (difference, got) = ((above - below) / (2.0 * STEP), grads[input][at]);
            assert!(
                (difference - got).abs() < TOLERANCE * difference.abs().max(1.0),
                "input {input}[{at}]: {got} is not {difference}",
            );
        }
    }
}

fn check<K: Kernel + Clone>(op: &K, inputs: Vec<Vec<f64>>) {
    check_made(|_| op.clone(), inputs);
}

#[test]
fn sums() {
    let (block, data) = block();
    let x = vec![values(1, data.num_src * DIM)];
    let (csr, edge) = (
        Arc::clone(block.csr()),
        Shared::from(data.edge_weight.unwrap()),
    );
    let (rows, own) = (data.num_dst, Some(vec![0.3; data.num_dst].into()));
    check(
        &Spmm {
            csr: Arc::clone(&csr),
            rows,
            edge: edge.clone(),
            own: None,
        },
        x.clone(),
    );
    let some_rows = Spmm {
        csr: Arc::clone(&csr),
        rows: rows - 3,
        edge: edge.clone(),
        own: None,
    };
    check(&some_rows, x.clone());
    check(
        &Spmm {
            csr,
            rows,
            edge,
            own,
        },
        x,
    );
}

#[test]
fn sums_of_every_tile_width() {
    let csr = Arc::new(Csr::new(vec![0, 2, 2, 3], vec![1, 1, 0], 4));
    for dim in [1, 15, 16, 17, 64, 100] {
        let own = Some(vec![1.0, 0.5, -2.0].into());
        let op = Spmm {
            csr: Arc::clone(&csr),
            rows: 3,
            edge: vec![0.5, -1.0, 2.0].into(),
            own,
        };
        let x = values(1, 4 * dim);
        let out = op.forward(&[&x[..]]).out;
        for at in 0..dim {
            let column = |row: usize| x[row * dim + at];
            assert_eq!(out[at], column(0) + 0.5 * column(1) - column(1));
            assert_eq!(out[dim + at], 0.5 * column(1));
            assert_eq!(out[2 * dim + at], -2.0 * column(2) + 2.0 * column(0));
        }
        check(&op, vec![x]);
    }
}

#[test]
fn maxima() {
    let (block, data) = block();
    let x = vec![values(1, data.num_src * DIM)];
    let csr = Arc::clone(block.csr());
    check(
        &SegmentMax {
            csr: Arc::clone(&csr),
            edge: None,
        },
        x.clone(),
    );
    check(
        &SegmentMax {
            csr,
            edge: data.edge_weight.map(Shared::from),
        },
        x,
    );
}

fn attention(block: &Block, data: &BlockData, extras: bool) -> Attention {
    Attention {
        csr: Arc::clone(block.csr()),
        heads: HEADS,
        weight: data
            .edge_weight
            .clone()
            .filter(|_| extras)
            .map(Shared::from),
        dropout: extras.then(|| (Mask::new(5, 0.4), data.node_key.clone().into())),
    }
}

#[test]
fn attention_by_sums() {
    let (block, data) = block();
    let h = values(1, data.num_src * DIM);
    let (src, dst) = (values(2, DIM), values(4, DIM));
    for extras in [false, true] {
        let attention = attention(&block, &data, extras);
        let z = values(3, if extras { data.in_src.len() * HEADS } else { 0 });
        check(
            &Gat {
                attention,
                edge_scores: extras,
                scored: false,
            },
            vec![h.clone(), src.clone(), dst.clone(), z],
        );
    }
}

#[test]
fn attention_of_every_tile_width() {
    let (block, data) = block();
    for (heads, dim) in [(9, 8), (8, 8), (5, 16), (4, 16), (3, 32), (2, 64), (1, 7)] {
        let width = heads * dim;
        for extras in [false, true] {
            let attention = Attention {
                heads,
                ..attention(&block, &data, extras)
            };
            let op = Gat {
                attention,
                edge_scores: false,
                scored: false,
            };
            let h = values(1, data.num_src * width);
            check(&op, vec![h, values(2, width), values(4, width), vec![]]);
        }
    }
}

/// A [`RawGat`] with fixed rows, which get no gradient.
#[derive(Clone)]
struct OfRows {
    op: RawGat,
    rows: Vec<f64>,
}

impl OfRows {
    fn inputs<'a, F>(rows: &'a [F], inputs: &[&'a [F]]) -> Vec<&'a [F]> {
        let rows = std::iter::once(rows);
        rows.chain(inputs.iter().copied()).collect()
    }

    fn rows<F: Float>(&self) -> Vec<F> {
        self.rows.iter().map(|&x| F::from_f64(x)).collect()
    }
}

impl Kernel for OfRows {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        self.op.forward(&Self::inputs(&self.rows(), inputs))
    }

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        saved: &Saved<F>,
        grad: &[F],
        needed: &[bool],
    ) -> Vec<Vec<F>> {
        let needed: Vec<bool> = std::iter::once(false)
            .chain(needed.iter().copied())
            .collect();
        let rows = self.rows();
        let inputs = Self::inputs(&rows, inputs);
        self.op.backward(&inputs, saved, grad, &needed).split_off(1)
    }
}

/// Widths of rows and heads around the tiles of sums: whole ones, parts, and single heads.
const RAW_SHAPES: [(usize, usize, usize); 6] = [
    (4, 64, 5),
    (5, 16, 3),
    (9, 53, 2),
    (1, 32, 4),
    (8, 7, 1),
    (2, 128, 16),
];

#[test]
fn attention_over_raw_rows() {
    let (block, data) = block();
    for (heads, in_dim, head_dim) in RAW_SHAPES {
        for extras in [false, true] {
            let attention = Attention {
                heads,
                ..attention(&block, &data, extras)
            };
            let op = OfRows {
                op: RawGat(Gat {
                    attention,
                    edge_scores: extras,
                    scored: true,
                }),
                rows: values(1, data.num_src * in_dim),
            };
            let z = if extras { data.in_src.len() * heads } else { 0 };
            let weight = values(2, heads * head_dim * in_dim);
            // Small maps keep the scores away from the softmax's ends.
            let maps = values(4, 2 * heads * in_dim)
                .into_iter()
                .map(|map| map / 8.0);
            check(&op, vec![weight, maps.collect(), values(3, z)]);
        }
    }
}

/// Returns the product of two row-major matrices, the second transposed.
fn product(a: &[f64], b: &[f64], width: usize) -> Vec<f64> {
    let of_row = |row: &[f64]| {
        let of_col = |col: &[f64]| row.iter().zip(col).map(|(x, y)| x * y).sum::<f64>();
        Vec::from_iter(b.chunks_exact(width).map(of_col))
    };
    a.chunks_exact(width).flat_map(of_row).collect()
}

/// Returns the transpose of a row-major matrix.
fn turned(a: &[f64], width: usize) -> Vec<f64> {
    let cols = (0..width).flat_map(|at| a.iter().skip(at).step_by(width));
    cols.copied().collect()
}

fn assert_close(got: &[f64], wanted: &[f64], what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (x, y) in got.iter().zip(wanted) {
        assert!(
            (x - y).abs() <= 1e-9 * y.abs().max(1.0),
            "{what}: {x} and {y}"
        );
    }
}

/// A block of about 500 rows: several pieces if there are many edges, and several chunks of rows in
/// one piece if there are few.
fn large_block(num_edges: usize) -> (Block, BlockData) {
    let case = Case {
        num_nodes: 700,
        num_edges,
        weights: true,
        edge_dim: Some(EDGE_DIM),
        targets: 500,
        ..Case::default()
    };
    let data = Graph::random(&case).blocks(1).0.remove(0);
    assert!(data.num_dst > 400 && data.in_src.len() > num_edges / 2);
    (Block::new(data.clone()).unwrap(), data)
}

/// The map of all heads and the scoring vectors, `[heads * head_dim, in_dim]` and `[heads, head_dim]`.
struct Maps {
    weight: Vec<f64>,
    vectors: [Vec<f64>; 2],
    head_dim: usize,
    in_dim: usize,
}

impl Maps {
    fn new((heads, in_dim, head_dim): (usize, usize, usize)) -> Maps {
        let wide = heads * head_dim;
        Maps {
            weight: values(2, wide * in_dim),
            vectors: [values(4, wide), values(5, wide)],
            head_dim,
            in_dim,
        }
    }

    /// Returns the maps from raw rows to scores, as src and then as dst.
    fn maps(&self) -> Vec<f64> {
        let of_heads = self.vectors.iter().flat_map(|vector| {
            let weights = self.weight.chunks_exact(self.head_dim * self.in_dim);
            vector.chunks_exact(self.head_dim).zip(weights)
        });
        let map = |(vector, weight): (&[f64], &[f64])| {
            product(vector, &turned(weight, self.in_dim), self.head_dim)
        };
        of_heads.flat_map(map).collect()
    }

    /// Adds to the slopes of `weight` what comes through the maps; returns those of the vectors.
    fn through_maps(&self, d_maps: &[f64], d_weight: &mut [f64]) -> [Vec<f64>; 2] {
        let (head_dim, in_dim) = (self.head_dim, self.in_dim);
        let (of_src, of_dst) = d_maps.split_at(d_maps.len() / 2);
        let vectors = self.vectors.iter().zip([of_src, of_dst]);
        let slopes = vectors.map(|(vector, of_maps)| {
            let of_value = |(at, value): (usize, &f64)| {
                let of_map = &of_maps[at / head_dim * in_dim..][..in_dim];
                let row = at * in_dim..(at + 1) * in_dim;
                for (slope, d) in d_weight[row.clone()].iter_mut().zip(of_map) {
                    *slope += value * d;
                }
                product(&self.weight[row], of_map, in_dim)[0]
            };
            Vec::from_iter(vector.iter().enumerate().map(of_value))
        });
        Vec::from_iter(slopes).try_into().unwrap()
    }
}

#[test]
fn raw_rows_give_what_projected_rows_give() {
    for (shape, num_edges) in RAW_SHAPES.iter().flat_map(|&of| [(of, 3000), (of, 20_000)]) {
        let (block, data) = large_block(num_edges);
        let (heads, in_dim, _) = shape;
        for extras in [false, true] {
            let attention = Attention {
                heads,
                ..attention(&block, &data, extras)
            };
            let gat = Gat {
                attention,
                edge_scores: extras,
                scored: false,
            };
            let z = values(3, if extras { data.in_src.len() * heads } else { 0 });
            let (x, given) = (values(1, data.num_src * in_dim), Maps::new(shape));
            let [src, dst] = &given.vectors;
            let h = product(&x, &given.weight, in_dim);
            let projected = [&h[..], src, dst, &z];
            let wanted = gat.forward(&projected);
            let (op, maps) = (RawGat(gat.clone()), given.maps());
            let raw = [&x[..], &given.weight, &maps, &z];
            let got = op.forward(&raw);
            assert_close(&got.out, &wanted.out, "output");
            let grad = values(6, wanted.out.len());
            let slopes = gat.backward(&projected, &wanted.saved, &grad, &[true; 4]);
            let needed = [false, true, true, true];
            let mut own = op.backward(&raw, &got.saved, &grad, &needed);
            let wide = given.weight.len() / in_dim;
            let d_weight = product(&turned(&slopes[0], wide), &turned(&x, in_dim), data.num_src);
            let d_maps = own[2].clone();
            let [d_src, d_dst] = given.through_maps(&d_maps, &mut own[1]);
            assert_close(&own[1], &d_weight, "weight");
            assert_close(&d_src, &slopes[1], "src");
            assert_close(&d_dst, &slopes[2], "dst");
            assert_close(&own[3], &slopes[3], "edges");
        }
    }
}

#[test]
fn sums_of_raw_rows_have_the_same_bits_on_any_number_of_threads() {
    let (block, data) = large_block(20_000);
    let (heads, in_dim, head_dim) = (4, 64, 16);
    let floats = |seed: u64, len: usize| -> Vec<f32> {
        let mut random = Random(seed);
        (0..len).map(|_| random.signed()).collect()
    };
    let op = RawGat(Gat {
        attention: Attention {
            heads,
            ..attention(&block, &data, true)
        },
        edge_scores: false,
        scored: true,
    });
    let (x, weight) = (
        floats(1, data.num_src * in_dim),
        floats(2, heads * head_dim * in_dim),
    );
    let (maps, z) = (floats(3, 2 * heads * in_dim), Vec::new());
    let inputs: [&[f32]; 4] = [&x, &weight, &maps, &z];
    let bits = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build().unwrap().install(|| {
            let done = op.forward(&inputs);
            let grad = floats(4, done.out.len());
            let needed = [false, true, true, true];
            let slopes = op.backward(&inputs, &done.saved, &grad, &needed);
            let all = std::iter::once(done.out).chain(slopes).flatten();
            Vec::from_iter(all.map(f32::to_bits))
        })
    };
    assert_eq!(bits(1), bits(3));
}

#[test]
fn attention_by_vectors() {
    let (block, data) = block();
    let (l, r) = (values(1, data.num_src * DIM), values(2, data.num_dst * DIM));
    for extras in [false, true] {
        let attention = attention(&block, &data, extras);
        let edge_feature = extras.then(|| Arc::clone(block.edge_feature().unwrap()));
        let weight = values(3, if extras { DIM * EDGE_DIM } else { 0 });
        let inputs = vec![l.clone(), r.clone(), values(4, DIM), weight];
        check(
            &GatV2 {
                attention,
                edge_feature,
            },
            inputs,
        );
    }
}

#[test]
fn sums_of_messages_with_edge_features() {
    let (block, data) = block();
    let inputs = vec![
        values(1, data.num_src * DIM),
        values(2, DIM * EDGE_DIM),
        values(3, DIM),
    ];
    check(
        &Gine {
            csr: Arc::clone(block.csr()),
            feature: Arc::clone(block.edge_feature().unwrap()),
            edge: data.edge_weight.unwrap().into(),
        },
        inputs,
    );
}

#[test]
fn element_by_element() {
    let x = vec![values(1, 7 * DIM)];
    let key = Shared::from(Vec::from_iter(0..7));
    check(
        &Dropout {
            mask: Mask::new(1, 0.5),
            key,
            cols: DIM,
        },
        x.clone(),
    );
    for activation in [None, Some(Activation::Relu), Some(Activation::Elu)] {
        for (addend, bias) in [(false, false), (true, false), (false, true), (true, true)] {
            let others = [(addend, 7 * DIM), (bias, DIM)];
            let others = others.into_iter().filter(|(is_there, _)| *is_there);
            let inputs = x
                .iter()
                .cloned()
                .chain(others.map(|(_, len)| values(3, len)));
            let op = Update {
                cols: DIM,
                addend,
                bias,
                activation,
                dropout: addend.then(|| (Mask::new(2, 0.3), Vec::from_iter(0..7).into())),
            };
            check(&op, inputs.collect());
        }
    }
}

#[test]
fn linear_maps() {
    // More rows than one product has, and rows of `x` that are not read.
    for (rows, spare) in [(5, 2), (300, 1)] {
        let op = Linear { rows, cols: 3 };
        let pair = |seed: u64, cols: usize| {
            let x = values(seed, (rows + spare) * cols);
            vec![x, values(seed + 1, 3 * cols)]
        };
        check(&op, pair(1, 2));
        check(&op, [pair(1, 2), pair(3, 4)].concat());
        let [x, weight] = &pair(1, 2)[..] else {
            panic!("a pair")
        };
        let out = op.forward(&[x, weight]).out;
        assert_eq!(out.len(), rows * 3);
        for (at, &got) in out.iter().enumerate() {
            let (v, col) = (at / 3, at % 3);
            let wanted = x[2 * v] * weight[2 * col] + x[2 * v + 1] * weight[2 * col + 1];
            assert!((got - wanted).abs() < 1e-12, "{v}, {col}");
        }
    }
}

#[test]
fn norms() {
    let inputs = vec![values(1, 7 * DIM), values(2, DIM), values(3, DIM)];
    check(&LayerNorm { cols: DIM }, inputs.clone());
    for active in [7, 4] {
        let of_batch = |moved: &[Vec<f64>]| {
            let (mean, var) = column_statistics(&moved[0], DIM, active);
            BatchNorm { mean, var, active }
        };
        check_made(of_batch, inputs.clone());
    }
    let running = BatchNorm {
        mean: vec![0.2; DIM],
        var: vec![1.5; DIM],
        active: 0,
    };
    check(&running, inputs);
}
