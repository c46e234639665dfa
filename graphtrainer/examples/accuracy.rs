//! Trains the `[train]` table of a job over several seeds and prints the mean of the test metrics.
//!
//! `cargo run --release -p graphtrainer --example accuracy -- JOB.toml [SEEDS] [KEY=VALUE ...]`
//!
//! The job's graph features must exist (`graphflat run JOB.toml --stage flatten`). A `KEY=VALUE`
//! replaces a key of `[train]`. The program writes no files.

#![expect(
    clippy::print_stdout,
    reason = "a program that reports on its standard output"
)]
#![expect(
    clippy::unwrap_used,
    reason = "a tool for developers: a panic reports the fault"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use graphtrainer::{Source, TrainContext, TrainSpec, Trained, fit};
use schemas::progress::Progress;
use toml::{Table, Value};

/// Returns the busy seconds of each stage over all epochs.
fn busy(trained: &Trained) -> String {
    let of = |stage: &str| {
        trained
            .history
            .iter()
            .map(|epoch| epoch.busy[stage])
            .sum::<f64>()
    };
    let stages = ["read", "vectorise", "compute"];
    stages
        .map(|stage| format!("{stage} {:.1} s", of(stage)))
        .join(", ")
}

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CACHE_BYTES: usize = 1 << 30;

fn main() {
    let mut args = std::env::args().skip(1);
    let job = args.next().expect("the first argument is a job file");
    let job: Table = std::fs::read_to_string(job).unwrap().parse().unwrap();
    let mut rest: Vec<String> = args.collect();
    let num_seeds = rest
        .first()
        .and_then(|text| text.parse().ok())
        .inspect(|_: &u64| {
            rest.remove(0);
        });
    let mut train = job["train"].as_table().unwrap().clone();
    for pair in &rest {
        let changed: Table = pair.parse().unwrap();
        train.extend(changed);
    }
    let input = job["flatten"]["output"].as_str().unwrap();
    let transform = job["input"]["nodes"].get("transform").cloned();
    let transform = transform.map(|name: Value| name.try_into().unwrap());
    let source = Source::open(Path::new(input), CACHE_BYTES).unwrap();
    let mut results = Vec::new();
    for seed in 0..num_seeds.unwrap_or(10) {
        train.insert(
            "seed".to_owned(),
            Value::Integer(i64::try_from(seed).unwrap()),
        );
        let spec: TrainSpec = Value::Table(train.clone()).try_into().unwrap();
        let ctx = TrainContext {
            input: Some(input.into()),
            job_seed: seed,
            transform,
            one_hot: std::collections::BTreeMap::new(),
            base: "".into(),
            fresh: false,
        };
        let plan = spec.into_plan(ctx).unwrap();
        let silent: Progress = Arc::new(|_| {});
        let start = Instant::now();
        let trained = fit(&plan, &source, None, &silent).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        let name = trained.monitor.map_or("loss", |monitor| monitor.name());
        let (val, test) = (
            trained.metrics[&format!("val_{name}")],
            trained.metrics[&format!("test_{name}")],
        );
        let (best, epochs) = (trained.best_epoch, trained.history.len());
        println!(
            "seed {seed}: val {name} {val:.4}, test {test:.4}, best epoch {best} of {epochs}, \
             {seconds:.1} s ({})",
            busy(&trained)
        );
        results.push(test);
    }
    let count = results.len() as f64;
    let mean = results.iter().sum::<f64>() / count;
    let spread = (results.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt();
    println!("test mean {mean:.4}, deviation {spread:.4} over {count} seeds");
}
