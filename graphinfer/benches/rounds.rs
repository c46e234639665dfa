//! Times inference on one graph, round by round.
//!
//! ```text
//! cargo bench -p graphinfer --bench rounds -- --data DIR [--workers 2] [--model sage] ...
//! ```
//!
//! `--data` takes a directory with `nodes.parquet` (`id`, `features`, `label`, `split` as 0, 1, 2)
//! and `edges.parquet` (`src`, `dst`). The model has random weights, one conv for each fan-out and
//! a linear head: `--model sage`, `--hidden 64`, `--heads 1`, `--activation relu` (`elu` for
//! attention, as in the peers' models). More options, with other values in brackets:
//!
//! - `--fanouts all,all` (`15,10`), `--prediction false` (`true`), `--repeat 3`
//! - `--work DIR`: directory for the store and the rows
//! - `--save DIR`: keeps the model, so that the program can run it
//!
//! `--types 4 --relations 6` times a typed graph and writes the rows of all types (`--model sage`,
//! `rgcn`, `simple_hgn`, ...). Its tables are those of `graphflat generate --weights` with the same
//! numbers and `--nodes 1048576 --edges 16777216 --features 64 --seed 1`; they are written to
//! `--data` if they are missing there.
//!
//! The printed `compute` is the time that peers report for their layers: the rounds from 1 on, and
//! round 0 for attention and for types, which project there. The time for writing parts is
//! subtracted.

#[path = "rounds/typed.rs"]
mod typed;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use gnn::{Architecture, Model, ModelFile, Transform};
use graphinfer::{InferContext, InferSpec, infer};
use schemas::xxh::file_checksum;
use schemas::{
    EdgesSpec, Fanout, FileEntry, GraphMeta, GraphPlan, Manifest, NodesSpec, Opened, Output,
    PartEntry, Progress, Sampling, keep_at_hop,
};
use serde_json::{Value, json};
use store::{Store, StorePlan, open_or_build};

/// The allocator of the program, which keeps freed memory for the next block.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The options of the command line, by name.
struct Settings {
    given: BTreeMap<String, String>,
}

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
        Ok(Self { given })
    }

    fn text<'a>(&'a self, key: &str, default: &'a str) -> &'a str {
        self.given.get(key).map_or(default, String::as_str)
    }

    fn number(&self, key: &str, default: &str) -> Result<usize> {
        let text = self.text(key, default);
        text.parse()
            .map_err(|e| format!("--{key} {text}: {e}").into())
    }

    fn fanouts(&self) -> Result<Vec<Fanout>> {
        let one = |text: &str| {
            let number = text.parse::<u32>().map(Value::from);
            serde_json::from_value(number.unwrap_or_else(|_| text.into())).map_err(Into::into)
        };
        self.text("fanouts", "all,all")
            .split(',')
            .map(one)
            .collect()
    }

    fn is_typed(&self) -> bool {
        self.given.contains_key("types")
    }
}

fn main() -> Result<()> {
    let settings = Settings::from_args()?;
    let work = match settings.given.get("work") {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let data = PathBuf::from(settings.given.get("data").ok_or("--data is needed")?);
    let workers = settings.number("workers", "2")?;
    rayon::ThreadPoolBuilder::new()
        .num_threads(workers)
        .build_global()?;
    let fanouts = settings.fanouts()?;
    let graph = match settings.is_typed() {
        true => typed::graph(&settings, &data)?,
        false => graph_of(&data)?,
    };
    let started = Instant::now();
    let keep = keep_at_hop(&fanouts, 0, 0);
    let store = store_of(graph, work.path(), workers, keep)?;
    say(&format!("store {:.2} s", started.elapsed().as_secs_f64()));
    let model = settings.given.get("save");
    let model = model.map_or_else(|| work.path().join("model"), PathBuf::from);
    save_model(&settings, &store, &fanouts, &model)?;
    let types = match settings.is_typed() {
        true => json!("all"),
        false => Value::Null,
    };
    for turn in 0..settings.number("repeat", "3")? {
        let output = work.path().join(format!("embeddings-{turn}"));
        let spec: InferSpec = serde_json::from_value(json!({
            // The last layer, not the default layer: earlier figures were measured with it.
            "output": output, "model": model, "layer": fanouts.len(),
            "prediction": settings.text("prediction", "false") == "true", "types": types,
        }))?;
        let base = work.path().to_owned();
        let plan = spec.into_plan(InferContext {
            model: None,
            base,
            input: None,
            nodes: None,
            work_dir: work.path().join("work"),
            fresh: false,
        })?;
        let (rounds, progress) = stopwatch();
        let run_started = Instant::now();
        let manifest = infer(&plan, &store, &progress)?;
        let seconds = run_started.elapsed().as_secs_f64();
        let rounds = rounds.lock().map_err(|_| "a worker panicked")?.join(", ");
        let compute = compute_seconds(&manifest.report, &settings, workers)?;
        say(&format!(
            "infer {seconds:.2} s, compute {compute:.3} s: {rounds}"
        ));
        if turn == 0 {
            say(&manifest.report.to_string());
        }
    }
    say(&peak_memory());
    Ok(())
}

/// Returns the seconds of the rounds that peers count as their layers.
fn compute_seconds(report: &Value, settings: &Settings, workers: usize) -> Result<f64> {
    let rounds = report["rounds"].as_array().ok_or("the report has rounds")?;
    // Else round 0 only moves features between files; peers hold them in memory.
    let projects = settings.is_typed() || settings.text("model", "sage").starts_with("gat");
    let first = match projects {
        true => 0,
        false => 1,
    };
    let mut seconds = 0.0;
    for round in &rounds[first..] {
        let figure = |name: &str| round[name].as_f64().ok_or("a round has seconds");
        seconds +=
            figure("seconds")? - figure("writing")? / u32::try_from(workers).map(f64::from)?;
    }
    Ok(seconds)
}

/// Returns the seconds of each round, as text, and the progress that records them.
fn stopwatch() -> (Arc<Mutex<Vec<String>>>, Progress) {
    let rounds = Arc::new(Mutex::new(Vec::new()));
    let (noted, last) = (Arc::clone(&rounds), Mutex::new(Instant::now()));
    let progress: Progress = Arc::new(move |event| {
        if let (Ok(mut noted), Ok(mut last)) = (noted.lock(), last.lock()) {
            let seconds = last.elapsed().as_secs_f64();
            noted.push(format!("round {} {seconds:.2} s", event.done));
            *last = Instant::now();
        }
    });
    (rounds, progress)
}

fn graph_of(data: &Path) -> Result<GraphPlan> {
    let nodes: NodesSpec = serde_json::from_value(json!({
        "path": "nodes.parquet", "id": "id", "features": ["features"], "label": "label",
        "split": "split", "split_values": { "train": 0, "val": 1, "test": 2 },
    }))?;
    let edges: EdgesSpec = serde_json::from_value(json!({
        "path": "edges.parquet", "src": "src", "dst": "dst",
    }))?;
    Ok(GraphPlan::untyped(
        nodes.into_plan(data)?,
        edges.into_plan(data)?,
    )?)
}

fn store_of(graph: GraphPlan, work: &Path, workers: usize, keep: usize) -> Result<Store> {
    let plan = StorePlan {
        keep: vec![keep; graph.relations.len()],
        graph: Arc::new(graph),
        target_type: 0,
        seed: 1,
        sampling: Sampling::Uniform,
        samples: 1,
        redraw: false,
        left_out: false,
        hub_threshold: 10_000,
        workers,
        memory_budget: 2 << 30,
        page_cache: None,
        dir: work.join("store"),
        fresh: false,
    };
    let quiet: Progress = Arc::new(|_| {});
    Ok(open_or_build(&plan, &quiet)?)
}

/// Saves a model with random weights as the trainer saves models.
fn save_model(settings: &Settings, store: &Store, fanouts: &[Fanout], dir: &Path) -> Result<()> {
    let Opened::Open(output) = Output::open(dir, "train", "random", false)? else {
        return Err("the directory is a new one".into());
    };
    let graph = &store.meta().graph;
    let flatten = json!({
        "hops": fanouts.len(), "fanouts": fanouts, "sampling": "uniform", "seed": 1,
        "samples_per_target": 1, "layout": "shards",
    });
    let extra = BTreeMap::from([
        ("flatten".to_owned(), flatten),
        ("graph".to_owned(), serde_json::to_value(graph)?),
    ]);
    match settings.is_typed() {
        true => typed::save_model(settings, graph, (fanouts, extra), dir)?,
        false => save_untyped(settings, graph, (fanouts, extra), dir)?,
    }
    let mut files = Vec::new();
    for name in [gnn::MODEL_WEIGHTS, gnn::MODEL_JSON] {
        let path = dir.join(name);
        let (bytes, checksum) = (path.metadata()?.len(), file_checksum(&path)?);
        files.push(FileEntry {
            path: name.to_owned(),
            bytes,
            checksum,
        });
    }
    let part = PartEntry {
        name: "model".to_owned(),
        files,
        rows: 0,
        targets: None,
    };
    output.commit_part(0, part)?;
    let parts = output.parts();
    Ok(output.finish(&manifest_of(parts))?)
}

/// The fan-outs, and what `model.json` has besides the architecture.
type Recorded<'a> = (&'a [Fanout], BTreeMap<String, Value>);

fn save_untyped(
    settings: &Settings,
    graph: &GraphMeta,
    (fanouts, extra): Recorded<'_>,
    dir: &Path,
) -> Result<()> {
    let arch: Architecture = serde_json::from_value(json!({
        "layer": settings.text("model", "sage"), "aggregator": "mean",
        "in_dim": graph.types[0].features.dim(), "edge_dim": null, "edge_weight": false,
        "hidden": vec![settings.number("hidden", "64")?; fanouts.len()],
        "num_layers": fanouts.len(), "out_dim": num_classes(graph)?,
        "heads": settings.number("heads", "1")?, "out_heads": 1,
        "dropout": 0.0, "input_dropout": 0.0, "attention_dropout": 0.0,
        "norm": "none", "residual": false, "activation": settings.text("activation", "relu"),
        "task": "classes",
    }))?;
    let model = Model::init(&arch, 1)?;
    let file = ModelFile {
        architecture: arch,
        transform: Transform::None,
        label_scale: None,
        label_names: None,
        metrics: BTreeMap::new(),
        fanouts: json!(fanouts),
        extra,
    };
    Ok(gnn::save(dir, &model, &file)?)
}

fn num_classes(graph: &GraphMeta) -> Result<usize> {
    let label = graph.target().label.as_ref();
    Ok(label.ok_or("the nodes have no label")?.kind.width())
}

fn manifest_of(parts: Vec<PartEntry>) -> Manifest {
    Manifest {
        parts,
        ..Manifest::new("train", "random".to_owned(), (Value::Null, Value::Null), 1)
    }
}

/// Returns the largest resident memory so far, from `/proc/self/status`.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.unwrap_or("peak memory unknown").to_owned()
}

fn say(line: &str) {
    // A closed standard output is not an error here.
    writeln!(std::io::stdout(), "{line}").ok();
}
