//! Every kernel gives the same bits with every instruction set and any number of threads.
//!
//! The set is one for the whole process, so this file has one test.
#![cfg(test)]

use std::sync::Arc;

use gnn::kernel::instruction_set::use_set;
use gnn::kernel::{
    Attention, BatchNorm, Csr, DotScores, Dropout, EdgeDropout, EdgeFeatures, EdgeScores,
    EdgeSoftmax, EdgeTerm, Float, Gat, GatV2, Gine, HeadSum, InstructionSet, Kernel, LayerNorm,
    Linear, Mask, NodeScores, RawGat, RowNormalize, SegmentMax, Shared, Spmm, Update,
    column_statistics, mix,
};
use gnn::{Activation, Dense};

/// Enough for several pieces of rows, so that several threads work.
const NODES: u32 = 300;
const EDGES: u32 = 3000;
const EDGE_DIM: usize = 3;

/// The bits of outputs and gradients, with the kernel that they are of.
type Bits = Vec<(String, Vec<u64>)>;

fn values<F: Float>(seed: u64, len: usize) -> Vec<F> {
    let draw = |at: u64| u16::try_from(mix(at.wrapping_add(seed << 32)) >> 48).unwrap();
    let value = |at| F::from_f32(f32::from(draw(at)) / 32_768.0 - 1.0);
    (0..len as u64).map(value).collect()
}

fn random_csr() -> Csr {
    let draw = |at: u64| u32::try_from(mix(at) % u64::from(NODES)).unwrap();
    let mut offset = vec![0; NODES as usize + 1];
    for edge in 0..u64::from(EDGES) {
        // Half of the edges lead to one node, a hub.
        let row = if edge % 2 == 0 { 7 } else { draw(edge) };
        offset[row as usize + 1] += 1;
    }
    for row in 0..NODES as usize {
        offset[row + 1] += offset[row];
    }
    let col = (0..u64::from(EDGES)).map(|edge| draw(edge << 20)).collect();
    Csr::new(offset, col, NODES as usize)
}

/// Appends the bits of a kernel's output, saved values and gradients.
fn record<F: Float, K: Kernel>(bits: &mut Bits, name: &str, op: &K, inputs: &[&[F]]) {
    record_needed(bits, name, op, inputs, &vec![true; inputs.len()]);
}

fn record_needed<F: Float, K: Kernel>(
    bits: &mut Bits,
    name: &str,
    op: &K,
    inputs: &[&[F]],
    needed: &[bool],
) {
    let done = op.forward(inputs);
    let grad = values(99, done.out.len());
    let grads = op.backward(inputs, &done.saved, &grad, needed);
    let all = [done.out, done.saved.values].into_iter().chain(grads);
    let all = all.flatten().map(|x: F| x.to_f64().to_bits());
    let positions = done.saved.positions.into_iter().map(u64::from);
    bits.push((name.to_owned(), all.chain(positions).collect()));
}

fn record_sums<F: Float>(bits: &mut Bits, csr: &Arc<Csr>, dim: usize) {
    let (nodes, edges) = (csr.num_rows(), csr.num_edges());
    let x = &values::<F>(1, nodes * dim)[..];
    let edge = Shared::from(values::<f32>(2, edges));
    let of_dim = &values::<F>(3, dim)[..];
    let name = |kernel: &str| format!("{kernel}, {dim} wide");
    let spmm = Spmm {
        csr: Arc::clone(csr),
        rows: nodes,
        edge: edge.clone(),
        own: Some(values::<f32>(4, nodes).into()),
    };
    record(bits, &name("Spmm"), &spmm, &[x]);
    let max = SegmentMax {
        csr: Arc::clone(csr),
        edge: Some(edge.clone()),
    };
    record(bits, &name("SegmentMax"), &max, &[x]);
    let feature = Dense {
        rows: edges,
        cols: EDGE_DIM,
        values: values(5, edges * EDGE_DIM),
    };
    let gine = Gine {
        csr: Arc::clone(csr),
        feature: Arc::new(EdgeFeatures::from(feature)),
        edge,
    };
    let weight = values::<F>(6, dim * EDGE_DIM);
    record(bits, &name("Gine"), &gine, &[x, &weight, of_dim]);
}

fn record_rows<F: Float>(bits: &mut Bits, nodes: usize, dim: usize) {
    let x = &values::<F>(1, nodes * dim)[..];
    let (weight, bias) = (&values::<F>(3, dim)[..], &values::<F>(4, dim)[..]);
    let key = Shared::from((0..nodes as u64).collect::<Vec<u64>>());
    let name = |kernel: &str| format!("{kernel}, {dim} wide");
    let mask = Mask::new(1, 0.4);
    let dropout = Dropout {
        mask,
        key: key.clone(),
        cols: dim,
    };
    record(bits, &name("Dropout"), &dropout, &[x]);
    for activation in [Activation::Relu, Activation::Elu] {
        let update = Update {
            cols: dim,
            addend: true,
            bias: true,
            activation: Some(activation),
            dropout: Some((mask, key.clone())),
        };
        record(bits, &name("Update"), &update, &[x, x, bias]);
    }
    let inputs = [x, weight, bias];
    record(bits, &name("LayerNorm"), &LayerNorm { cols: dim }, &inputs);
    let (mean, var) = column_statistics(x, dim, nodes);
    let active = nodes;
    let norm = BatchNorm { mean, var, active };
    record(bits, &name("BatchNorm"), &norm, &inputs);
    record(
        bits,
        &name("RowNormalize"),
        &RowNormalize { cols: dim },
        &[x],
    );
    let linear = Linear {
        rows: nodes,
        cols: 5,
    };
    let map = values::<F>(5, 5 * dim);
    record(bits, &name("Linear"), &linear, &[x, &map]);
}

/// Records attention over rows `x` and, with the first of their features, over raw rows.
fn record_gat<F: Float>(
    bits: &mut Bits,
    name: impl Fn(&str) -> String,
    gat: Gat,
    [x, att, alpha]: [&[F]; 3],
) {
    record(bits, &name("Gat"), &gat, &[x, att, att, alpha]);
    let width = att.len() / gat.attention.heads;
    let (map, maps) = (
        values::<F>(7, width * att.len()),
        values::<F>(8, 2 * att.len()),
    );
    let op = RawGat(Gat {
        scored: true,
        ..gat
    });
    let inputs = [&x[..x.len() / att.len() * width], &map, &maps, alpha];
    let needed = [false, true, true, true];
    record_needed(bits, &name("RawGat"), &op, &inputs, &needed);
}

fn record_attention<F: Float>(bits: &mut Bits, csr: &Arc<Csr>, heads: usize, dim: usize) {
    let (nodes, edges, width) = (csr.num_rows(), csr.num_edges(), heads * dim);
    let (x, y) = (values::<F>(1, nodes * width), values::<F>(2, nodes * width));
    let (att, alpha) = (values::<F>(3, width), values::<F>(4, edges * heads));
    let key = Shared::from((0..nodes as u64).collect::<Vec<u64>>());
    let mask = Mask::new(3, 0.4);
    for drops in [false, true] {
        let name = |kernel: &str| format!("{kernel}, {heads} x {dim}, dropout {drops}");
        let attention = Attention {
            csr: Arc::clone(csr),
            heads,
            weight: drops.then(|| values::<f32>(5, edges).into()),
            dropout: drops.then(|| (mask, key.clone())),
        };
        let gat = Gat {
            attention: attention.clone(),
            edge_scores: drops,
            scored: false,
        };
        record_gat(bits, name, gat, [&x, &att, &alpha]);
        let feature = Dense {
            rows: edges,
            cols: EDGE_DIM,
            values: values(5, edges * EDGE_DIM),
        };
        let gatv2 = GatV2 {
            attention,
            edge_feature: drops.then(|| Arc::new(feature.into())),
        };
        let weight = values::<F>(6, if drops { width * EDGE_DIM } else { 0 });
        record(bits, &name("GatV2"), &gatv2, &[&x, &y, &att, &weight]);
        let softmax = EdgeSoftmax {
            csr: Arc::clone(csr),
            heads,
            weight: None,
            dropout: drops.then(|| EdgeDropout {
                mask,
                key: key.clone(),
                relation: None,
            }),
        };
        record(bits, &name("EdgeSoftmax"), &softmax, &[&alpha]);
    }
    let name = |kernel: &str| format!("{kernel}, {heads} x {dim}");
    let csr = || Arc::clone(csr);
    let dots = DotScores {
        csr: csr(),
        heads,
        width,
    };
    record(bits, &name("DotScores"), &dots, &[&x, &y]);
    let sum = HeadSum {
        csr: csr(),
        heads,
        width,
    };
    record(bits, &name("HeadSum"), &sum, &[&alpha, &x]);
    record(
        bits,
        &name("NodeScores"),
        &NodeScores { heads },
        &[&x, &att],
    );
    let scores = EdgeScores {
        csr: csr(),
        heads,
        first: 0,
        term: EdgeTerm::Edge,
    };
    let ends = values::<F>(7, nodes * heads);
    record(bits, &name("EdgeScores"), &scores, &[&ends, &ends, &alpha]);
}

fn record_all<F: Float>() -> Bits {
    let (mut bits, csr) = (Vec::new(), Arc::new(random_csr()));
    for dim in [1, 7, 16, 48, 100, 130] {
        record_sums::<F>(&mut bits, &csr, dim);
        record_rows::<F>(&mut bits, csr.num_rows(), dim);
    }
    for (heads, dim) in [(8, 8), (4, 16), (2, 32), (1, 64), (3, 7)] {
        record_attention::<F>(&mut bits, &csr, heads, dim);
    }
    bits
}

fn check<F: Float>() {
    let mut first: Option<Bits> = None;
    for set in InstructionSet::available() {
        use_set(set).unwrap();
        for threads in [1, 2, 4] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            let bits = pool.build().unwrap().install(record_all::<F>);
            let Some(known) = &first else {
                first = Some(bits);
                continue;
            };
            assert_eq!(bits.len(), known.len());
            for ((name, of_kernel), (_, expected)) in bits.iter().zip(known) {
                assert!(of_kernel == expected, "{name}: {set}, {threads} threads");
            }
        }
    }
}

#[test]
fn kernels_give_the_same_bits_with_every_instruction_set() {
    check::<f32>();
    check::<f64>();
}
