//! Compares every GPU kernel with the processor's in f64, on graphs with all special cases.

mod relational;

use std::sync::Arc;

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::ops::into_data_sync;
use burn_cubecl::tensor::CubeTensor;

use super::GpuKernel;
use crate::kernel::{
    Attention, BatchNorm, Csr, Dropout, Gat, GatV2, Gine, Kernel, LayerNorm, Linear, Mask,
    SegmentMax, Shared, Spmm, Update, column_statistics, mix,
};
use crate::{Activation, Block, BlockData, Dense};

/// Error of f32 sums of up to 3000 terms of order 1, relative to the largest value. Half of the
/// terms are equal and round the same way.
const TOLERANCE: f64 = 1e-4;

const HEADS: usize = 2;
const DIM: usize = 6;
const EDGE_DIM: usize = 3;
const NUM_DST: usize = 150;
const NUM_SRC: usize = 230;

/// In-edges of one row, half of them from one node. An adapter in software ends a shader after
/// 65535 iterations.
const HUB: u64 = 3000;

/// Returns the GPU for tests. Without one, tests fail if `GRAPHFLAT_TEST_GPU` is set; otherwise
/// they say `skipped`.
fn device() -> Option<CubeDevice> {
    let device = match crate::Device::gpu() {
        Ok(device) => device,
        Err(error) if std::env::var_os("GRAPHFLAT_TEST_GPU").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    };
    match device.backend().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.clone()),
        other => panic!("{other:?} is not a GPU"),
    }
}

/// Values in [-1, 1).
fn values(seed: u64, len: usize) -> Vec<f32> {
    let draw = |at| f32::from(u16::try_from(mix(seed << 32 ^ at) >> 48).unwrap());
    (0..len as u64).map(|at| draw(at) / 32768.0 - 1.0).collect()
}

/// In-edges with all special cases: nodes without any, self-loops, parallel edges and a hub.
fn in_edges() -> Vec<Vec<u32>> {
    let below = |key: u64, end: usize| u32::try_from(mix(key) % end as u64).unwrap();
    let row = |v: u64| -> Vec<u32> {
        match v {
            0 | 77 => vec![],
            1 => vec![1],
            2 => vec![2, 9, 9, 9, 2],
            5 => (0..HUB)
                .map(|at| if at % 2 == 0 { 7 } else { below(at, NUM_SRC) })
                .collect(),
            _ => (0..mix(v) % 7)
                .map(|at| below(v << 20 ^ at, NUM_SRC))
                .collect(),
        }
    };
    (0..NUM_DST as u64).map(row).collect()
}

fn block() -> Block {
    Block::new(data()).unwrap()
}

/// A block of a relation between two types. A column with the number of a row is another node.
fn block_of_two_types() -> Block {
    let dst_key: Vec<u64> = (1000..1000 + NUM_DST as u64).map(mix).collect();
    Block::bipartite(data(), &dst_key).unwrap()
}

/// A block of a relation between two types without in-edges.
fn block_without_edges() -> Block {
    let edge_feature = Some(Dense {
        rows: 0,
        cols: EDGE_DIM,
        values: Vec::new(),
    });
    let data = BlockData {
        num_src: 5,
        num_dst: 3,
        in_offset: vec![0; 4],
        in_degree: vec![0; 3],
        edge_feature,
        node_key: (0..5).map(mix).collect(),
        num_active: 3,
        ..BlockData::default()
    };
    Block::bipartite(data, &[7, 8, 9]).unwrap()
}

fn data() -> BlockData {
    let in_edges = in_edges();
    let in_src = in_edges.concat();
    let mut in_offset = vec![0];
    in_offset.extend(in_edges.iter().scan(0, |end, row| {
        *end += u32::try_from(row.len()).unwrap();
        Some(*end)
    }));
    let num_edges = in_src.len();
    BlockData {
        num_src: NUM_SRC,
        num_dst: NUM_DST,
        in_offset,
        in_src,
        in_degree: vec![u32::MAX; NUM_SRC],
        edge_feature: Some(Dense {
            rows: num_edges,
            cols: EDGE_DIM,
            values: values(50, num_edges * EDGE_DIM),
        }),
        node_key: (0..NUM_SRC as u64).map(mix).collect(),
        num_active: NUM_DST,
        ..BlockData::default()
    }
}

fn matrix(values: &[f32], [rows, cols]: [usize; 2], device: &CubeDevice) -> CubeTensor {
    let client = device.client();
    let bytes: &[u8] = bytemuck::cast_slice(values);
    // A buffer is never empty.
    let bytes = if bytes.is_empty() { &[0; 4] } else { bytes };
    let handle = client.create_from_slice(bytes);
    let shape = Shape::from([rows, cols]);
    CubeTensor::new_contiguous(client, device.clone(), shape, handle, DType::F32)
}

fn read(matrix: CubeTensor) -> Vec<f32> {
    into_data_sync(matrix).try_to_vec().unwrap()
}

fn assert_close(got: CubeTensor, wanted: &[f64], what: &str) {
    let got = read(got);
    assert_eq!(got.len(), wanted.len(), "{what}: length");
    let most = wanted.iter().fold(1.0_f64, |most, x| most.max(x.abs()));
    for (at, (&x, y)) in got.iter().zip(wanted).enumerate() {
        let error = (f64::from(x) - y).abs();
        assert!(error <= TOLERANCE * most, "{what}[{at}]: {x} is not {y}");
    }
}

/// Checks output and gradients on inputs of some shapes.
fn check<K: Kernel + GpuKernel>(what: &str, op: &K, shapes: &[[usize; 2]]) {
    let inputs = (1..)
        .zip(shapes)
        .map(|(seed, [rows, cols])| values(seed, rows * cols));
    check_on(what, op, shapes, &inputs.collect::<Vec<_>>());
}

fn check_on<K: Kernel + GpuKernel>(what: &str, op: &K, shapes: &[[usize; 2]], inputs: &[Vec<f32>]) {
    let Some(device) = device() else { return };
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let wanted_inputs: Vec<Vec<f64>> = inputs.iter().map(|input| wide(input)).collect();
    let views: Vec<&[f64]> = wanted_inputs.iter().map(Vec::as_slice).collect();
    let wanted = Kernel::forward(op, &views);
    let pairs = inputs.iter().zip(shapes);
    let given: Vec<CubeTensor> = pairs.map(|(x, &shape)| matrix(x, shape, &device)).collect();
    let (out, saved) = GpuKernel::forward(op, &given);
    assert_eq!(out.meta.shape()[1], wanted.cols, "{what}: columns");
    let shape = [out.meta.shape()[0], wanted.cols];
    assert_close(out, &wanted.out, &format!("{what}, output"));

    let grad = values(99, wanted.out.len());
    let needed = vec![true; inputs.len()];
    let slopes = Kernel::backward(op, &views, &wanted.saved, &wide(&grad), &needed);
    let grad = matrix(&grad, shape, &device);
    let computed = GpuKernel::backward(op, &given, &saved, &grad, &needed);
    assert_eq!(computed.len(), slopes.len(), "{what}: gradients");
    for (at, (got, slope)) in computed.into_iter().zip(&slopes).enumerate() {
        let what = format!("{what}, gradient of input {at}");
        if let Some(got) = got {
            assert_eq!(got.meta.shape(), given[at].meta.shape(), "{what}: shape");
            assert_close(got, slope, &what);
        } else {
            assert!(slope.iter().all(|&x| x == 0.0), "{what}: none");
        }
    }
}

#[test]
fn sums() {
    let block = block();
    let edge = Shared::from(values(60, block.num_edges()));
    for (rows, own) in [(NUM_DST, false), (NUM_DST, true), (NUM_DST - 20, true)] {
        let op = Spmm {
            csr: Arc::clone(block.csr()),
            rows,
            edge: edge.clone(),
            own: own.then(|| values(61, rows).into()),
        };
        check("spmm", &op, &[[NUM_SRC, DIM]]);
    }
    let nothing = Spmm {
        csr: Arc::new(Csr::new(vec![0; 4], Vec::new(), 5)),
        rows: 3,
        edge: Vec::new().into(),
        own: None,
    };
    check("spmm without edges", &nothing, &[[5, DIM]]);
    let two_types = Spmm {
        csr: Arc::clone(block_of_two_types().csr()),
        rows: NUM_DST,
        edge: edge.clone(),
        own: None,
    };
    check("spmm of two types", &two_types, &[[NUM_SRC, DIM]]);
}

#[test]
fn maxima() {
    let block = block();
    for edge in [None, Some(values(60, block.num_edges()).into())] {
        let csr = Arc::clone(block.csr());
        check("max", &SegmentMax { csr, edge }, &[[NUM_SRC, DIM]]);
    }
    let csr = Arc::clone(block_without_edges().csr());
    let op = SegmentMax { csr, edge: None };
    check("max without edges", &op, &[[5, DIM]]);
}

#[test]
fn linear_maps() {
    for rows in [NUM_SRC, NUM_DST] {
        let op = Linear { rows, cols: 5 };
        let pair = [[NUM_SRC, DIM], [5, DIM]];
        check("linear", &op, &pair);
        check(
            "two linear",
            &op,
            &[pair[0], pair[1], [NUM_SRC, 70], [5, 70]],
        );
    }
}

#[test]
fn updates() {
    let key = Shared::from(Vec::from_iter((0..NUM_DST as u64).map(mix)));
    for activation in [None, Some(Activation::Relu), Some(Activation::Elu)] {
        for (addend, bias) in [(false, false), (true, false), (false, true), (true, true)] {
            let op = Update {
                cols: DIM,
                addend,
                bias,
                activation,
                dropout: addend.then(|| (Mask::new(2, 0.3), key.clone())),
            };
            let others = [(addend, [NUM_DST, DIM]), (bias, [1, DIM])];
            let others = others.into_iter().filter(|(is_there, _)| *is_there);
            let shapes = std::iter::once([NUM_DST, DIM]).chain(others.map(|(_, shape)| shape));
            check("update", &op, &shapes.collect::<Vec<_>>());
        }
    }
}

/// Every element is dropped or kept as on the processor, bit for bit.
#[test]
fn masks_are_those_of_the_processor() {
    let Some(device) = device() else { return };
    for (seed, rate) in [(0, 0.5), (u64::MAX, 0.1), (mix(3), 0.9)] {
        let op = Dropout {
            mask: Mask::new(seed, rate),
            key: Vec::from_iter((0..300).map(mix)).into(),
            cols: 41,
        };
        let ones = vec![1.0; 300 * 41];
        let wanted = Kernel::forward(&op, &[&ones[..]]).out;
        let ones = matrix(&ones, [300, 41], &device);
        assert_eq!(read(GpuKernel::forward(&op, &[ones]).0), wanted);
    }
}

#[test]
fn norms() {
    let shapes = [[NUM_DST, DIM], [1, DIM], [1, DIM]];
    check("layer norm", &LayerNorm { cols: DIM }, &shapes);
    let x = values(1, NUM_DST * DIM);
    for active in [0, 70, NUM_DST] {
        let (mean, var) = column_statistics(&x, DIM, active.max(1));
        let var = var.iter().map(|var| var.max(0.1)).collect();
        let op = BatchNorm { mean, var, active };
        check("batch norm", &op, &shapes);
    }
}

/// Attention without weights and dropout, with weights, and with both.
fn attentions(block: &Block) -> Vec<Attention> {
    let weight = Shared::from(values(60, block.num_edges()));
    let dropout = (Mask::new(5, 0.4), block.shared_key().clone());
    let extras = [
        (None, None),
        (Some(weight.clone()), None),
        (Some(weight), Some(dropout)),
    ];
    extras
        .map(|(of_edges, drops)| Attention {
            csr: Arc::clone(block.csr()),
            heads: HEADS,
            weight: of_edges,
            dropout: drops,
        })
        .into()
}

#[test]
fn attention_by_sums() {
    let block = block();
    for attention in attentions(&block) {
        for edge_scores in [false, true] {
            let op = Gat {
                attention: attention.clone(),
                edge_scores,
                scored: false,
            };
            let z = if edge_scores {
                [block.num_edges(), HEADS]
            } else {
                [1, 1]
            };
            let vector = [HEADS, DIM / HEADS];
            check("gat", &op, &[[NUM_SRC, DIM], vector, vector, z]);
        }
    }
}

#[test]
fn attention_by_products() {
    for block in [block(), block_of_two_types(), block_without_edges()] {
        let (num_src, num_dst) = (block.num_src(), block.num_dst());
        for attention in attentions(&block) {
            for features in [false, true] {
                let op = GatV2 {
                    attention: attention.clone(),
                    edge_feature: block.edge_feature().filter(|_| features).cloned(),
                };
                let weight = if features { [DIM, EDGE_DIM] } else { [1, 1] };
                let vector = [HEADS, DIM / HEADS];
                let shapes = [[num_src, DIM], [num_dst, DIM], vector, weight];
                check("gatv2", &op, &shapes);
            }
        }
    }
}

#[test]
fn sums_of_edge_messages() {
    for block in [block(), block_of_two_types(), block_without_edges()] {
        let op = Gine {
            csr: Arc::clone(block.csr()),
            feature: Arc::clone(block.edge_feature().expect("the block has edge features")),
            edge: values(60, block.num_edges()).into(),
        };
        let shapes = [[block.num_src(), DIM], [DIM, EDGE_DIM], [1, DIM]];
        check("gine", &op, &shapes);
    }
}
