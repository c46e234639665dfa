//! Times how changes of a graph are read and what they reach.
//!
//! ```text
//! cargo bench --workspace --bench reach -- DIR WORK [SHARE]
//! ```
//!
//! `DIR` has the tables that `graphflat generate` writes (`nodes.parquet`, `edges.parquet`). The
//! store and its out-edges stay in `WORK`. `SHARE` is the share of edges that change in a version,
//! half of them removed and half added at random; default 0.001. Five versions are made, each the
//! parent of the next. The model is a sampled `GraphSAGE`: two layers, fan-outs 10 and 10.

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use graphdelta::{Changes, Degrees, Numbers, OfStore, OutEdges, Overlay, ReachPlan, reach};
use parquet::arrow::ArrowWriter;
use schemas::{
    ChangesSpec, GraphPlan, InputSpec, LocalIdx, NodeIdx, Progress, Sampling, TablePath,
};
use serde_json::json;
use store::sample::mix;
use store::{HUB_THRESHOLD, Store, StorePlan, open_or_build};

/// The allocator of the program `graphflat`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const FANOUT: usize = 10;
const VERSIONS: u32 = 5;

#[expect(clippy::print_stdout, reason = "it reports to the terminal")]
fn report(what: &str, started: Instant) {
    println!("{what}: {:.1} ms", started.elapsed().as_secs_f64() * 1e3);
}

fn open(graph: &GraphPlan, work: &Path) -> Result<Store> {
    let plan = StorePlan {
        graph: Arc::new(graph.clone()),
        target_type: 0,
        seed: 1,
        sampling: Sampling::Uniform,
        keep: vec![FANOUT],
        samples: 1,
        redraw: true,
        left_out: false,
        hub_threshold: HUB_THRESHOLD,
        workers: 2,
        memory_budget: 8 << 30,
        page_cache: None,
        dir: work.join("store"),
        fresh: false,
    };
    let silent: Progress = Arc::new(|_| {});
    Ok(open_or_build(&plan, &silent)?)
}

fn id(store: &Store, node: NodeIdx) -> i64 {
    let (owner, local) = store.placement().owner_and_local(node);
    let (ids, row) = store.partition(owner).id(local);
    ids.value_bits(ids.as_int(row).expect("generated ids are integers"))
        .cast_signed()
}

/// Writes changes of a share of the edges, of other edges for each version.
fn write_changes(store: &Store, share: f64, version: u32, path: &Path) -> Result<usize> {
    let (mut src, mut dst, mut op) = (Vec::new(), Vec::new(), Vec::new());
    let mut seen = std::collections::BTreeSet::new();
    let mut push = |from: NodeIdx, to: NodeIdx, what| {
        if seen.insert((from, to)) {
            src.push(id(store, from));
            dst.push(id(store, to));
            op.push(what);
        }
    };
    let num_nodes = store.placement().num_nodes() as u64;
    let drawn =
        |salt: u64| NodeIdx::from_index(usize::try_from(mix(salt) % num_nodes).expect("a node"));
    let start = share / 2.0 * f64::from(version);
    for (worker, partition) in store.partitions().iter().enumerate() {
        for local in (0..partition.num_nodes()).map(LocalIdx::from_index) {
            let to = store.placement().node(worker, local);
            for &from in partition.unranked(0, local).src {
                let bits = mix(u64::from(from.raw()) << 32 | u64::from(to.raw()));
                let unit = (bits >> 11) as f64 / (1u64 << 53) as f64;
                if (start..start + share / 2.0).contains(&unit) {
                    push(from, to, "delete");
                    // New edges lead to nodes as often as old ones do.
                    push(drawn(bits ^ 0x55), to, "upsert");
                }
            }
        }
    }
    let count = op.len();
    let batch = RecordBatch::try_from_iter([
        (
            "src",
            Arc::new(Int64Array::from(src)) as arrow::array::ArrayRef,
        ),
        ("dst", Arc::new(Int64Array::from(dst))),
        ("op", Arc::new(StringArray::from(op))),
    ])?;
    let mut writer = ArrowWriter::try_new(File::create(path)?, batch.schema(), None)?;
    writer.write(&batch)?;
    writer.close()?;
    Ok(count)
}

#[expect(clippy::print_stdout, reason = "it reports to the terminal")]
fn main() -> Result<()> {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let [dir, work, rest @ ..] = &args[..] else {
        println!("usage: reach DIR WORK [SHARE]");
        return Ok(());
    };
    let share = rest.first().map_or(Ok(0.001), |share| share.parse())?;
    let (dir, work) = (Path::new(dir), Path::new(work));
    std::fs::create_dir_all(work)?;
    let input: InputSpec = serde_json::from_value(json!({
        "nodes": { "": { "path": "nodes.parquet", "id": "id", "features": ["features"] } },
        "edges": { "": { "path": "edges.parquet", "src": "src", "dst": "dst" } },
    }))?;
    let graph = input.into_plan(dir)?;
    let started = Instant::now();
    let store = open(&graph, work)?;
    report("store", started);
    let mapping = Instant::now();
    let out = OutEdges::open_or_write(&store, &[FANOUT], &work.join("out"))?;
    report("out-edges", mapping);
    run_versions(dir, work, &graph, (&store, &out), share)
}

/// Makes versions, each the parent of the next, and reports how long each step takes.
#[expect(clippy::print_stdout, reason = "it reports to the terminal")]
fn run_versions(
    dir: &Path,
    work: &Path,
    graph: &GraphPlan,
    (store, out): (&Store, &OutEdges),
    share: f64,
) -> Result<()> {
    let plan = ReachPlan {
        hops: vec![vec![FANOUT]; 2],
        layers: vec![vec![FANOUT]; 2],
        degrees: Degrees::None,
        weights: false,
        hub_edges: usize::MAX,
    };
    let mut parent: Option<PathBuf> = None;
    for version in 0..VERSIONS {
        let path = work.join(format!("changes-{version}.parquet"));
        let count = write_changes(store, share, version, &path)?;
        println!("version {version}: {count} changes");
        let spec = ChangesSpec {
            edges: [(
                String::new(),
                TablePath::from(path.to_string_lossy().into_owned()),
            )]
            .into(),
            ..ChangesSpec::default()
        };
        let all = Instant::now();
        let parent_read = parent
            .as_ref()
            .map(|from| Overlay::read(store, &[FANOUT], from));
        let overlay = parent_read.transpose()?.unwrap_or_default();
        report("  read the parent", all);
        let reading = Instant::now();
        let changes = Changes::read(&spec, dir, graph, OfStore::plain(Sampling::Uniform))?;
        report("  read the changes", reading);
        let numbering = Instant::now();
        let mut numbers = Numbers::of(store, graph, overlay)?;
        let night = numbers.apply(changes)?;
        report("  number", numbering);
        let reaching = Instant::now();
        let numbers = Arc::new(numbers);
        let (found, changed) = reach(&numbers, vec![night], out, &plan)?;
        report("  reach", reaching);
        let writing = Instant::now();
        let own = work.join(format!("version-{version}"));
        changed.write(store, &[FANOUT], &own)?;
        report("  write the version", writing);
        report("  all", all);
        let layers = found.layers.iter().map(Vec::len);
        println!(
            "  samples {}, rows {:?}, work {:?} of {:?}",
            found.in_edges.len(),
            layers.collect::<Vec<_>>(),
            found.work(&numbers, &plan, |_, _| true),
            found.full_work(&numbers, &plan, |_, _| true)
        );
        parent = Some(own);
    }
    Ok(())
}
