//! Times the kernels and whole training steps; `cargo bench -p gnn -- PART_OF_NAME` prints
//! milliseconds.

use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use gnn::kernel::instruction_set::use_set;
use gnn::kernel::{
    Attention, Csr, Gat, GatV2, InstructionSet, Kernel, SegmentMax, Shared, Spmm, mix,
};
use gnn::{
    Activation, Aggregator, Architecture, Block, BlockData, Dense, Input, Labels, LayerKind, Mode,
    Model, Norm, Sampling, SparseRows, Task,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NODES: u32 = 100_000;
const EDGES: u32 = 1_000_000;
const DIM: usize = 64;
const HEADS: usize = 8;

/// Tells whether the command line names a benchmark.
fn asked(name: &str) -> bool {
    let mut parts = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"));
    parts.all(|part| name.contains(&part))
}

/// Runs a benchmark a few times and prints the best time, if the command line names it.
fn time(name: &str, mut work: impl FnMut()) {
    if !asked(name) {
        return;
    }
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    let threads = rayon::current_num_threads();
    writeln!(
        std::io::stdout(),
        "{name:<48} {threads} threads {:>9.2} ms",
        best * 1e3
    )
    .expect("standard output is open");
}

fn draw(at: u64, end: u32) -> u32 {
    u32::try_from(mix(at) % u64::from(end)).expect("below end")
}

#[expect(clippy::cast_precision_loss, reason = "test data")]
fn values(len: usize) -> Vec<f32> {
    (0..len as u64)
        .map(|at| (mix(at) >> 40) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

/// Random in-edges, sorted by dst.
fn random_csr(nodes: u32, edges: u32) -> Csr {
    let mut offset = vec![0_u32; nodes as usize + 1];
    for edge in 0..edges {
        offset[draw(u64::from(edge), nodes) as usize + 1] += 1;
    }
    for v in 0..nodes as usize {
        offset[v + 1] += offset[v];
    }
    let col = (0..edges)
        .map(|edge| draw(u64::from(edge) << 32, nodes))
        .collect();
    Csr::new(offset, col, nodes as usize)
}

fn kernel<K: Kernel>(name: &str, op: &K, inputs: &[&[f32]], width: usize) {
    if !asked(name) {
        return;
    }
    let grad = values(NODES as usize * width);
    time(&format!("{name} forward"), || {
        black_box(op.forward(inputs));
    });
    let saved = op.forward(inputs).saved;
    time(&format!("{name} backward"), || {
        black_box(op.backward(inputs, &saved, &grad, &[true; 4]));
    });
}

fn kernels() {
    let csr = Arc::new(random_csr(NODES, EDGES));
    time("transpose", || {
        black_box(random_csr(1, 0));
        let copy = Csr::new(csr.offset.clone(), csr.col.clone(), csr.num_cols);
        black_box(copy.transposed());
    });
    csr.transposed();
    let (nodes, edges) = (NODES as usize, EDGES as usize);
    let x = values(nodes * DIM);
    let edge = Shared::from(values(edges));
    let spmm = Spmm {
        csr: Arc::clone(&csr),
        rows: nodes,
        edge: edge.clone(),
        own: None,
    };
    kernel("spmm 100k x 1M x 64", &spmm, &[&x], DIM);
    let max = SegmentMax {
        csr: Arc::clone(&csr),
        edge: Some(edge),
    };
    kernel("segment max 100k x 1M x 64", &max, &[&x], DIM);
    let attention = Attention {
        csr,
        heads: HEADS,
        weight: None,
        dropout: None,
    };
    let att = values(DIM);
    let gat = Gat {
        attention: attention.clone(),
        edge_scores: false,
        scored: false,
    };
    kernel(
        "gat 100k x 1M x 8 heads x 8",
        &gat,
        &[&x, &att, &att, &[0.0]],
        DIM,
    );
    let gatv2 = GatV2 {
        attention,
        edge_feature: None,
    };
    kernel(
        "gatv2 100k x 1M x 8 heads x 8",
        &gatv2,
        &[&x, &x, &att, &[0.0]],
        DIM,
    );
}

fn architecture(layer: LayerKind, in_dim: usize, hidden: usize) -> Architecture {
    let heads = if layer.is_attention() { 8 } else { 1 };
    Architecture {
        layer,
        aggregator: Aggregator::Mean,
        in_dim,
        embedding_dim: None,
        edge_dim: None,
        edge_weight: false,
        hidden: vec![hidden],
        num_layers: 2,
        out_dim: 7,
        heads,
        out_heads: 1,
        dropout: 0.5,
        input_dropout: 0.5,
        attention_dropout: 0.0,
        norm: Norm::None,
        residual: false,
        activation: Activation::Relu,
        task: Task::Classes,
    }
}

fn block(nodes: u32, edges: u32) -> Block {
    let csr = random_csr(nodes, edges);
    let count = nodes as usize;
    let in_degree = csr
        .offset
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .collect();
    let data = BlockData {
        num_src: count,
        num_dst: count,
        in_offset: csr.offset,
        in_src: csr.col,
        in_degree,
        node_key: (0..u64::from(nodes)).map(mix).collect(),
        num_active: count,
        sampling: Sampling::Uniform,
        ..BlockData::default()
    };
    Block::new(data).expect("a random graph is a block")
}

/// Times a training step on a whole graph of Cora's size with a bag of words.
fn cora_step(layer: LayerKind, hidden: usize) {
    let (nodes, words) = (2708, 18);
    let blocks = [block(nodes, 10556), block(nodes, 10556)];
    let stored = nodes * words;
    let input = Input::Sparse(SparseRows {
        rows: nodes as usize,
        cols: 1433,
        offset: (0..=nodes).map(|v| v * words).collect(),
        index: (0..stored).map(|at| draw(u64::from(at), 1433)).collect(),
        value: vec![0.05; stored as usize],
    });
    let model = Model::init(&architecture(layer, 1433, hidden), 1).expect("a valid architecture");
    let labels = Labels::Classes((0..140).map(|at| at % 7).collect());
    let name = format!("{layer:?} step, 2708 x 1433 sparse, hidden {hidden}");
    time(&name, || {
        let mode = Mode::Train { seed: 1 };
        black_box(model.loss_and_gradient(&blocks, &input, &labels, 140.0, mode))
            .expect("the batch fits the model");
    });
}

/// Times a training step on 20 k nodes and 200 k edges with dense features.
fn dense_step(layer: LayerKind) {
    let nodes = 20_000;
    let blocks = [block(nodes, 200_000), block(nodes, 200_000)];
    let rows = nodes as usize;
    let input = Input::Dense(Dense {
        rows,
        cols: 128,
        values: values(rows * 128),
    });
    let model = Model::init(&architecture(layer, 128, 128), 1).expect("a valid architecture");
    let labels = Labels::Classes((0..nodes).map(|at| at % 7).collect());
    time(
        &format!("{layer:?} step, 20k x 200k, 128 -> 128 -> 7"),
        || {
            let mode = Mode::Train { seed: 1 };
            black_box(model.loss_and_gradient(&blocks, &input, &labels, 1.0, mode))
                .expect("the batch fits the model");
        },
    );
}

fn main() {
    if let Ok(name) = std::env::var("GRAPHFLAT_INSTRUCTION_SET") {
        let set = InstructionSet::named(&name).expect("a set of this kind of processor");
        use_set(set).expect("a set of this processor");
    }
    kernels();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .expect("a pool of one");
    pool.install(kernels);
    for (layer, hidden) in [
        (LayerKind::Gcn, 16),
        (LayerKind::Sage, 64),
        (LayerKind::Gat, 64),
        (LayerKind::Gin, 64),
    ] {
        cora_step(layer, hidden);
    }
    for layer in [
        LayerKind::Gcn,
        LayerKind::Sage,
        LayerKind::Gat,
        LayerKind::GatV2,
        LayerKind::Gin,
    ] {
        dense_step(layer);
    }
}
