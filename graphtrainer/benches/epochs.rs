//! Times the epochs of a training and of its variants, in turn.
//!
//! ```text
//! cargo bench -p graphtrainer --bench epochs -- DIR KEY=VALUE ... [vs KEY=VALUE ...] ...
//! cargo bench -p graphtrainer --bench epochs -- out/graphfeatures 'model="sage"' 'hidden=[64]' \
//!     batch_size=1024 epochs=5 vs pruning=false vs edge_partitioning=false
//! ```
//!
//! `DIR` holds graph features; the keys are those of `[train]` in a job file. Every variant has the
//! keys before the first `vs` and its own keys. The variants run one after the other, `REPEAT`
//! times, so that other load on the machine affects all variants alike. Prints a JSON line for each
//! variant: the median and the smallest seconds of an epoch after the first, the median busy
//! seconds of each stage, and the last loss.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use graphtrainer::{EpochReport, Source, TrainContext, TrainPlan, TrainSpec, fit};
use serde_json::json;

/// The program's allocator: it keeps memory for the next batch.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Number of rounds over all variants.
const REPEAT: usize = 3;

/// Memory for decoded parts.
const CACHE_BYTES: usize = 1 << 28;

fn main() -> Result<()> {
    // `cargo bench` adds `--bench`.
    let args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let args: Vec<String> = args.collect();
    let (dir, given) = args
        .split_first()
        .ok_or("the first argument is a directory of graph features")?;
    let groups: Vec<&[String]> = given.split(|arg| arg == "vs").collect();
    let variants = match groups[..] {
        [common] => vec![common.to_vec()],
        [common, ref others @ ..] => std::iter::once(common.to_vec())
            .chain(others.iter().map(|own| [common, own].concat()))
            .collect(),
        [] => Vec::new(),
    };
    let mut of_variants = vec![Vec::new(); variants.len()];
    for _ in 0..REPEAT {
        for (keys, epochs) in variants.iter().zip(&mut of_variants) {
            epochs.extend(run(dir, keys)?);
        }
    }
    for (keys, epochs) in variants.iter().zip(of_variants) {
        print(keys, &epochs)?;
    }
    Ok(())
}

/// Trains once; returns the epochs without the first, in which parts are decoded.
fn run(dir: &str, keys: &[String]) -> Result<Vec<EpochReport>> {
    let source = Source::open(dir.as_ref(), CACHE_BYTES)?;
    let plan = plan(dir, keys)?;
    let quiet = Arc::new(|_: &schemas::progress::Event| {});
    let trained = fit(&plan, &source, None, &(quiet as _))?;
    Ok(trained.history.into_iter().skip(1).collect())
}

fn plan(dir: &str, keys: &[String]) -> Result<TrainPlan> {
    // If a key has several values, the last one is used.
    let mut table = toml::Table::new();
    table.insert("output".to_owned(), "none".into());
    for key in keys {
        table.extend(key.parse::<toml::Table>()?);
    }
    let spec: TrainSpec = table.try_into()?;
    Ok(spec.into_plan(TrainContext {
        input: Some(dir.into()),
        job_seed: 7,
        transform: None,
        one_hot: std::collections::BTreeMap::new(),
        base: PathBuf::new(),
        fresh: true,
    })?)
}

fn print(keys: &[String], epochs: &[EpochReport]) -> Result<()> {
    let median = |mut values: Vec<f64>| -> f64 {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let seconds: Vec<f64> = epochs.iter().map(|epoch| epoch.seconds).collect();
    let stages = epochs.first().map(|epoch| epoch.busy.keys()).into_iter();
    let busy: BTreeMap<_, f64> = stages
        .flatten()
        .map(|stage| {
            (
                stage,
                median(epochs.iter().map(|epoch| epoch.busy[stage]).collect()),
            )
        })
        .collect();
    let line = json!({
        "keys": keys,
        "seconds": median(seconds.clone()),
        "least": seconds.iter().copied().fold(f64::INFINITY, f64::min),
        "busy": busy,
        "loss": epochs.last().map(|epoch| epoch.loss),
    });
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}
