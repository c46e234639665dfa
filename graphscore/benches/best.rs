//! Times the best items of all queries beside the bare matrix products of the same blocks.
//!
//! ```text
//! cargo bench -p graphscore --bench best -- [--queries 1000000] [--items 100000] [--dim 64] ...
//! ```
//!
//! More options, with their defaults: `--decoder dot`, `--top-k 100`, `--workers 2`, `--tile 4096`
//! (items of a bare product), `--work DIR` for the embeddings and the output. Embeddings are hashes.
//! `score` is the whole stage, from the Parquet embeddings to the Parquet items; `product`
//! multiplies the same rows on the same cores with the same library, and drops the scores.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use cluster::Cluster;
use gnn::typed::{TypedArchitecture, TypedModel, TypedModelFile, save_typed};
use gnn::{Decoder, MODEL_JSON, MODEL_WEIGHTS, Scorer};
use graphscore::{ScoreContext, ScoreSpec, score};
use parquet::arrow::ArrowWriter;
use rayon::prelude::*;
use schemas::xxh::file_checksum;
use schemas::{
    EmbeddingBatch, EmbeddingColumns, EmbeddingsWriter, GraphPlan, IdType, Ids, InputSpec, Labels,
    Manifest, Opened, Output, Precision, Progress, hash_int,
};
use serde_json::{Value, json};

/// The allocator of the program, which keeps freed memory for the next block.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Nodes in one part of the embeddings, as `[infer]` has by default.
const ROWS_PER_PART: usize = 65_536;

/// The options of the command line, by name.
struct Settings(BTreeMap<String, String>);

impl Settings {
    fn from_args() -> Result<Self> {
        let mut given = BTreeMap::new();
        // `cargo bench` adds `--bench`.
        let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
        while let Some(name) = args.next() {
            let key = name.strip_prefix("--").ok_or(format!("what is {name}?"))?;
            let value = args.next().ok_or(format!("{name} needs a value"))?;
            given.insert(key.to_owned(), value);
        }
        Ok(Self(given))
    }

    fn number(&self, key: &str, default: usize) -> Result<usize> {
        let given = self.0.get(key).map(|text| text.parse());
        Ok(given.transpose()?.unwrap_or(default))
    }
}

fn main() -> Result<()> {
    let settings = Settings::from_args()?;
    let work = match settings.0.get("work") {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let workers = settings.number("workers", 2)?;
    rayon::ThreadPoolBuilder::new()
        .num_threads(workers)
        .build_global()?;
    let dim = settings.number("dim", 64)?;
    let counts = [
        ("user", settings.number("queries", 1_000_000)?),
        ("item", settings.number("items", 100_000)?),
    ];
    let graph = Arc::new(graph(work.path())?);
    let model = work.path().join("model");
    let decoder = settings.0.get("decoder").map_or("dot", |name| name);
    save_model(&model, dim, decoder)?;
    let input = work.path().join("embeddings");
    write_embeddings(&input, &model, (&graph, &counts), dim)?;
    let spec: ScoreSpec = serde_json::from_value(json!({
        "output": "scores", "top_k": settings.number("top-k", 100)?,
    }))?;
    let plan = spec.into_plan(ScoreContext {
        input: Some(input),
        model: Some(model),
        base: work.path().to_owned(),
        graph,
        memory_budget: 2 << 30,
        fresh: false,
    });
    let plan = plan.map_err(|mut errors| errors.swap_remove(0))?;
    let quiet: Progress = Arc::new(|_| {});
    let started = Instant::now();
    score(&plan, &Cluster::of_threads(workers), None, &quiet)?;
    let seconds = started.elapsed().as_secs_f64();
    let megabytes = peak_megabytes();
    let [queries, items] = counts.map(|(_, count)| count);
    let product = product(queries, items, dim, settings.number("tile", 4096)?);
    let flops = 2.0 * (queries * items * dim) as f64;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "score {seconds:.2} s with {megabytes} MB, product {product:.2} s ({:.0} GFLOP/s), ratio {:.2}",
        flops / product / 1e9,
        seconds / product,
    )?;
    Ok(())
}

/// Returns numbers from -1 to 1.
fn draw(seed: u64, at: usize) -> f32 {
    let hash = hash_int(seed ^ hash_int(at as u64)) >> 40;
    hash as f32 / (1 << 23) as f32 - 1.0
}

/// Plans two node types and a relation; the tables have the columns, and no further rows.
fn graph(dir: &Path) -> Result<GraphPlan> {
    let ids = || Arc::new(Int64Array::from(vec![0])) as ArrayRef;
    for (name, columns) in [
        ("user", vec![("id", ids())]),
        ("item", vec![("id", ids())]),
        ("buys", vec![("user", ids()), ("item", ids())]),
    ] {
        let table = RecordBatch::try_from_iter(columns)?;
        let file = std::fs::File::create(dir.join(name))?;
        let mut writer = ArrowWriter::try_new(file, table.schema(), None)?;
        writer.write(&table)?;
        writer.close()?;
    }
    let input: InputSpec = serde_json::from_value(json!({
        "nodes": {
            "user": { "path": "user", "id": "id", "embedding": 4 },
            "item": { "path": "item", "id": "id", "embedding": 4 },
        },
        "edges": {
            "buys": { "path": "buys", "from": "user", "to": "item", "src": "user", "dst": "item" },
        },
        "pairs": { "from_edges": "buys", "share": { "train": 1.0 } },
    }))?;
    Ok(input.into_plan(dir)?)
}

/// Saves a model of links, of which the decoder is used.
fn save_model(dir: &Path, dim: usize, decoder: &str) -> Result<()> {
    let types = json!([{ "name": "item", "in_dim": 1 }, { "name": "user", "in_dim": 1 }]);
    let architecture: TypedArchitecture = serde_json::from_value(json!({
        "layer": "sage", "relation_aggregator": "sum", "aggregator": "mean", "types": types,
        "relations": [{
            "name": "buys", "from": "user", "to": "item", "edge_weight": false, "edge_dim": null,
        }],
        "target_type": "user", "projection": dim, "hidden": [], "num_layers": 1, "out_dim": dim,
        "heads": 1, "out_heads": 1, "num_bases": null, "relation_dim": null,
        "attention_residual": 0.0, "dropout": 0.0, "input_dropout": 0.0, "attention_dropout": 0.0,
        "norm": "none", "residual": false, "normalize_output": false, "activation": "relu",
        "task": { "links": decoder },
    }))?;
    let model = TypedModel::init(&architecture, 1)?;
    let file = TypedModelFile {
        architecture,
        transforms: BTreeMap::new(),
        label_scale: None,
        label_names: None,
        metrics: BTreeMap::new(),
        fanouts: Value::Null,
        extra: BTreeMap::new(),
    };
    std::fs::create_dir(dir)?;
    Ok(save_typed(dir, &model, &file)?)
}

/// Writes embeddings as `[infer]` does.
fn write_embeddings(
    dir: &Path,
    model: &Path,
    (graph, counts): (&GraphPlan, &[(&str, usize)]),
    dim: usize,
) -> Result<()> {
    let Opened::Open(output) = Output::open(dir, "infer", "bench", true)? else {
        return Err("the directory is new".into());
    };
    let columns = EmbeddingColumns {
        are_changes: false,
        id_type: IdType::Int64,
        passed: None,
        vectors: vec![("embedding", dim)],
        precision: Precision::F32,
        prediction: None,
    };
    let mut next = 0;
    for (seed, &(name, count)) in (0..).zip(counts) {
        for (part, start) in (0..count).step_by(ROWS_PER_PART).enumerate() {
            let rows = start..count.min(start + ROWS_PER_PART);
            let keys = rows.clone().map(|row| row as u64 ^ (1 << 63)).collect();
            let values = (rows.start * dim..rows.end * dim).map(|at| draw(seed, at));
            let mut writer = EmbeddingsWriter::of_type(&output, name, part, &columns)?;
            writer.write(EmbeddingBatch {
                ids: &Ids::from_keys(IdType::Int64, keys),
                nodes: &[],
                vectors: &[values.collect()],
                prediction: &Labels::None,
            })?;
            output.commit_part(next, writer.finish()?)?;
            next += 1;
        }
    }
    let mut checksums = BTreeMap::new();
    for file in [MODEL_JSON, MODEL_WEIGHTS] {
        checksums.insert(file, file_checksum(&model.join(file))?);
    }
    let plan = json!({ "model": checksums, "targets": "all", "normalize": false });
    let manifest = Manifest {
        graph: Some(graph.meta(1, None)),
        parts: output.parts(),
        report: json!({ "embedding": { "layer": 1, "layers": 1 } }),
        ..Manifest::new("infer", "bench".to_owned(), (plan, Value::Null), 1)
    };
    Ok(output.finish(&manifest)?)
}

/// Returns the seconds of the products of all queries with all items.
fn product(queries: usize, items: usize, dim: usize, tile: usize) -> f64 {
    let scorer = Scorer::new(Decoder::Dot, dim, Vec::new());
    let block = Scorer::block_rows();
    let rows = |seed, count: usize| -> Vec<f32> {
        (0..count * dim)
            .into_par_iter()
            .map(|at| draw(seed, at))
            .collect()
    };
    let (src, dst) = (rows(0, queries), rows(1, items));
    let started = Instant::now();
    src.par_chunks(block * dim)
        .for_each_init(Vec::new, |scores, src| {
            for of_items in dst.chunks(tile * dim) {
                scorer.block_into(src, of_items, scores);
                std::hint::black_box(&*scores);
            }
        });
    started.elapsed().as_secs_f64()
}

/// Returns the peak of the resident memory of this process, where the system tells it.
fn peak_megabytes() -> usize {
    let status = std::fs::read_to_string(PathBuf::from("/proc/self/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kilobytes.unwrap_or_default() / 1024
}
