//! Times the store and flatten on one graph, phase by phase.
//!
//! ```text
//! cargo bench -p graphflat --bench flatten -- --data DIR [--targets PATH] ...
//! cargo bench -p graphflat --bench flatten -- --nodes 131072 --edges 2000000 --features 64 ...
//! ```
//!
//! `--data` names a directory that `graphflat generate --weights` wrote; its train nodes are the
//! targets. A directory of other data needs the same tables. If it holds `targets.parquet`, the
//! column `id` of this file lists the targets, and `split` must hold the numbers 0, 1, 2. Without
//! `--data` an R-MAT graph is generated.
//!
//! More options, with their defaults: `--workers 2`, `--fanouts 10,10`, `--sampling uniform`,
//! `--layout rows`, `--targets-per-part 4096`, `--hub-threshold 10000`, `--memory-mib 2048`,
//! `--repeat 3`.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use graphflat::generate::{GraphSpec, generate};
use graphflat::{FlattenSpec, flatten};
use schemas::progress::Progress;
use schemas::{EdgesSpec, GraphPlan, NodesSpec, Sampling};
use serde_json::json;
use store::{StorePlan, open_or_build};

/// The allocator of the program `graphflat`, which keeps freed memory for the next wave.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The file that lists the targets. In data with this file, the column `split` holds numbers.
const TARGETS_FILE: &str = "targets.parquet";

/// The options of the command line.
struct Settings {
    given: BTreeMap<String, String>,
}

impl Settings {
    fn from_args() -> Result<Self> {
        let mut given = BTreeMap::new();
        // `cargo bench` adds `--bench`.
        let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
        while let Some(name) = args.next() {
            let key = name
                .strip_prefix("--")
                .ok_or(format!("unknown argument {name}"))?;
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
}

fn main() -> Result<()> {
    let settings = Settings::from_args()?;
    let work = tempfile::tempdir()?;
    let data = match settings.given.get("data") {
        Some(dir) => PathBuf::from(dir),
        None => {
            write_graph(&settings, work.path())?;
            work.path().to_owned()
        }
    };
    for _ in 0..settings.number("repeat", "3")? {
        run(&settings, &data, work.path())?;
    }
    Ok(())
}

/// Rebuilds the store, flattens into an empty directory and prints the times of both.
fn run(settings: &Settings, data: &Path, work: &Path) -> Result<()> {
    let output = work.join("out");
    if output.exists() {
        std::fs::remove_dir_all(&output)?;
    }
    let fanouts = fanouts(settings.text("fanouts", "10,10"))?;
    let listed = data.join(TARGETS_FILE).exists();
    let targets = settings.text("targets", if listed { TARGETS_FILE } else { "train" });
    let spec: FlattenSpec = serde_json::from_value(json!({
        "output": output,
        "hops": fanouts.len(),
        "fanouts": fanouts,
        "sampling": settings.text("sampling", "uniform"),
        "layout": settings.text("layout", "rows"),
        "targets": targets,
        "hub_threshold": settings.number("hub-threshold", "10000")?,
        "targets_per_part": settings.number("targets-per-part", "4096")?,
    }))?;
    let plan = spec.into_plan(data, true)?;
    let sample = plan.sample();
    let store_plan = store_plan(settings, data, work, sample.sampling(), sample.keep())?;
    let (started, cpu_before) = (Instant::now(), cpu_seconds());
    let (progress, phases) = stopwatch(started);
    let store = open_or_build(&store_plan, &progress)?;
    let built = started.elapsed().as_secs_f64();
    let manifest = flatten(&plan, &store, &progress)?;
    let total = started.elapsed().as_secs_f64();
    for (name, at, cpu) in phases.lock().expect("no thread panicked").iter() {
        print(&format!(
            "  {at:8.3} s  {:8.2} cpu s  {name}",
            cpu - cpu_before
        ));
    }
    let in_edges = store.meta().edges.in_edges as f64;
    let files = manifest.parts.iter().flat_map(|part| &part.files);
    let bytes: u64 = files.map(|file| file.bytes).sum();
    let rows: u64 = manifest.parts.iter().map(|part| part.rows).sum();
    let round = |n: f64| n / 1e6;
    print(&format!(
        "store {built:.3} s ({:.2} M in-edges/s), flatten {:.3} s ({:.0} targets/s, {:.0} MB \
         written), in all {total:.3} s, {:.2} cpu s, peak {:.0} MB",
        round(in_edges / built),
        total - built,
        rows as f64 / (total - built),
        round(bytes as f64),
        cpu_seconds() - cpu_before,
        round(peak_bytes()),
    ));
    Ok(())
}

fn fanouts(text: &str) -> Result<Vec<serde_json::Value>> {
    let fanout = |word: &str| match word {
        "all" => Ok(json!("all")),
        count => Ok(json!(count.parse::<u32>()?)),
    };
    text.split(',').map(fanout).collect()
}

fn store_plan(
    settings: &Settings,
    data: &Path,
    work: &Path,
    sampling: Sampling,
    keep: usize,
) -> Result<StorePlan> {
    let numbers = data.join(TARGETS_FILE).exists();
    let split_values = numbers.then(|| json!({ "train": 0, "val": 1, "test": 2 }));
    let nodes: NodesSpec = serde_json::from_value(json!({
        "path": "nodes.parquet", "id": "id", "features": ["features"], "label": "label",
        "split": "split", "split_values": split_values,
    }))?;
    let edges: EdgesSpec = serde_json::from_value(json!({
        "path": "edges.parquet", "src": "src", "dst": "dst", "weight": "weight",
    }))?;
    let nodes = nodes.into_plan(data)?;
    let edges = edges.into_plan(data)?;
    Ok(StorePlan {
        graph: Arc::new(GraphPlan::untyped(nodes, edges)?),
        target_type: 0,
        seed: 7,
        sampling,
        keep: vec![keep],
        samples: 1,
        redraw: false,
        left_out: false,
        hub_threshold: settings.number("hub-threshold", "10000")? as u64,
        workers: settings.number("workers", "2")?,
        memory_budget: settings.number("memory-mib", "2048")? << 20,
        page_cache: None,
        dir: work.join("store"),
        fresh: true,
    })
}

/// Recorded events: name, wall-clock seconds since the start, and [`cpu_seconds`].
type Phases = Arc<Mutex<Vec<(String, f64, f64)>>>;

/// Records when each phase began, and when the first and the last wave ended.
fn stopwatch(started: Instant) -> (Progress, Phases) {
    let phases = Phases::default();
    let noted = Arc::clone(&phases);
    let progress: Progress = Arc::new(move |event| {
        let at = started.elapsed().as_secs_f64();
        let is_wave = event.stage == "flatten";
        if !is_wave || event.done == 1 || event.done == event.total {
            let count = if is_wave {
                format!(" {} of {} sent", event.done, event.total)
            } else {
                String::new()
            };
            let name = format!("{} {}{count}", event.stage, event.phase);
            let line = (name, at, cpu_seconds());
            noted.lock().expect("no thread panicked").push(line);
        }
    });
    (progress, phases)
}

/// Returns the CPU seconds of all threads so far; 0 if the system does not report them.
///
/// Other load on the machine changes this time less than the wall-clock time.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 14 and 15; field 2, the name, ends with the last parenthesis.
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: f64 = ticks.filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// Returns the largest resident set of the process so far; 0 if the system does not report it.
fn peak_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(0.0) * 1024.0
}

#[expect(clippy::print_stdout, reason = "a bench reports to whoever runs it")]
fn print(line: &str) {
    println!("{line}");
}

/// Writes an R-MAT graph.
fn write_graph(settings: &Settings, dir: &Path) -> Result<()> {
    let spec = GraphSpec {
        nodes: settings.number("nodes", "131072")? as u64,
        edges: settings.number("edges", "2000000")? as u64,
        features: u32::try_from(settings.number("features", "64")?)?,
        classes: 16,
        hubs: 0,
        hub_in_edges: 0,
        weights: true,
        seed: 42,
    };
    Ok(generate(&spec.into_plan()?, dir)?)
}
