//! Times the build of a store, phase by phase.
//!
//! ```text
//! cargo bench -p store --bench build -- --data DIR [--lists all] ...
//! ```
//!
//! `--data` names a directory with the tables that `graphflat generate --weights` writes:
//! `nodes.parquet` with `id`, `features` and `label`, and `edges.parquet` with `src`, `dst` and
//! `weight`.
//!
//! `--lists` is what the store keeps: `all` in-edges without weights, as inference reads them, or
//! `sample` for ten in-edges a node with weights, as flatten reads them.
//!
//! More options, with their defaults: `--workers 2`, `--memory-mib 8192`, `--repeat 3`, and `--keep
//! DIR`, where the last store stays.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use schemas::progress::Progress;
use schemas::{EdgesSpec, GraphPlan, NodesSpec, Sampling};
use serde_json::json;
use store::{HUB_THRESHOLD, StorePlan, open_or_build};

/// The allocator of the program `graphflat`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// In-edges that a store of the lists `sample` keeps of each node.
const SAMPLE_KEEP: usize = 10;

/// `mi_option_purge_delay`: milliseconds until the allocator returns free memory.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Least budget in MiB with which the program keeps free memory.
const AMPLE_MIB: usize = 1024;

/// The options of the command line.
struct Settings {
    given: BTreeMap<String, String>,
}

/// What the system counts of this process.
#[derive(Clone, Copy)]
struct Usage {
    user: f64,
    system: f64,
    page_faults: u64,
}

/// Recorded events: name, wall-clock seconds since the start, and use so far.
type Phases = Arc<Mutex<Vec<(String, f64, Usage)>>>;

impl Settings {
    fn from_args() -> Result<Self> {
        let mut given = BTreeMap::new();
        // `cargo bench` adds `--bench`.
        let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
        while let Some(name) = args.next() {
            let key = name.strip_prefix("--");
            let key = key.ok_or(format!("unknown argument {name}"))?;
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
    let data = settings.given.get("data").ok_or("--data is missing")?;
    let work = tempfile::tempdir()?;
    let dir = match settings.given.get("keep") {
        Some(dir) => PathBuf::from(dir),
        None => work.path().join("store"),
    };
    keep_free_memory(settings.number("memory-mib", "8192")? >= AMPLE_MIB);
    for _ in 0..settings.number("repeat", "3")? {
        build(&settings, Path::new(data), &dir)?;
    }
    Ok(())
}

/// Makes the allocator keep free memory, or return it soon, as the program does.
fn keep_free_memory(is_ample: bool) {
    #[expect(
        unsafe_code,
        reason = "the allocator has no other way to set an option"
    )]
    // SAFETY: the number is one of mimalloc's options, and there is no other thread yet.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, if is_ample { i32::MAX.into() } else { 10 });
    }
}

/// Builds a store and prints the times.
fn build(settings: &Settings, data: &Path, dir: &Path) -> Result<()> {
    let plan = store_plan(settings, data, dir)?;
    let (started, before) = (Instant::now(), usage());
    let (progress, phases) = stopwatch(started);
    let store = open_or_build(&plan, &progress)?;
    let (seconds, after) = (started.elapsed().as_secs_f64(), usage());
    let mut noted = phases.lock().expect("no thread panicked").clone();
    noted.push(("open".to_owned(), seconds, after));
    let (mut begun, mut at, mut so_far) = ("fingerprint".to_owned(), 0.0, before);
    for (name, until, used) in noted {
        print(&format!("  {}  {begun}", line(until - at, so_far, used)));
        (begun, at, so_far) = (name, until, used);
    }
    print(&format!("  {}  {begun}", line(seconds - at, so_far, after)));
    let bytes: u64 = store.meta().files.iter().map(|file| file.bytes).sum();
    print(&format!(
        "{}  store of {:.0} MB, peak {:.0} MB, anonymous {:.0} MB",
        line(seconds, before, after),
        bytes as f64 / 1e6,
        status_bytes("VmHWM:") / 1e6,
        status_bytes("RssAnon:") / 1e6,
    ));
    Ok(())
}

fn line(seconds: f64, before: Usage, after: Usage) -> String {
    format!(
        "{seconds:7.3} s {:6.2} user s {:6.2} system s {:8} page faults",
        after.user - before.user,
        after.system - before.system,
        after.page_faults - before.page_faults,
    )
}

fn store_plan(settings: &Settings, data: &Path, dir: &Path) -> Result<StorePlan> {
    let (keep, is_weighted) = match settings.text("lists", "all") {
        "all" => (usize::MAX, false),
        "sample" => (SAMPLE_KEEP, true),
        other => return Err(format!("--lists {other}: `all` or `sample`").into()),
    };
    let nodes: NodesSpec = serde_json::from_value(json!({
        "path": "nodes.parquet", "id": "id", "features": ["features"], "label": "label",
    }))?;
    let edges: EdgesSpec = serde_json::from_value(json!({
        "path": "edges.parquet", "src": "src", "dst": "dst",
        "weight": is_weighted.then_some("weight"),
    }))?;
    Ok(StorePlan {
        graph: Arc::new(GraphPlan::untyped(
            nodes.into_plan(data)?,
            edges.into_plan(data)?,
        )?),
        target_type: 0,
        seed: 7,
        sampling: Sampling::Uniform,
        keep: vec![keep],
        samples: 1,
        redraw: false,
        left_out: false,
        hub_threshold: HUB_THRESHOLD,
        workers: settings.number("workers", "2")?,
        memory_budget: settings.number("memory-mib", "8192")? << 20,
        page_cache: None,
        dir: dir.to_owned(),
        fresh: true,
    })
}

/// Records when each phase began.
fn stopwatch(started: Instant) -> (Progress, Phases) {
    let phases = Phases::default();
    let noted = Arc::clone(&phases);
    let progress: Progress = Arc::new(move |event| {
        let line = (
            event.phase.clone(),
            started.elapsed().as_secs_f64(),
            usage(),
        );
        noted.lock().expect("no thread panicked").push(line);
    });
    (progress, phases)
}

/// Returns the use of this process so far; zeros if the system does not report it.
///
/// Other load on the machine changes CPU seconds less than the wall-clock time.
fn usage() -> Usage {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields are counted from 3 on; field 2, the name, ends with the last parenthesis.
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = fields.split(' ').collect();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or_default();
    let ticks = |number: usize| field(number).parse::<f64>().unwrap_or_default();
    Usage {
        user: ticks(14) / 100.0,
        system: ticks(15) / 100.0,
        page_faults: field(10).parse().unwrap_or_default(),
    }
}

/// Returns a size of `/proc/self/status`; 0 if the system does not report it.
fn status_bytes(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(0.0) * 1024.0
}

#[expect(clippy::print_stdout, reason = "a bench reports to whoever runs it")]
fn print(line: &str) {
    println!("{line}");
}
