//! The model of `docs/capacity.md`: what it says of a generated graph is what the program reports.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Bench, Outcome};
use crate::real::{checkout, python};

/// How far the model may be off, by its statistics: edges of each other know nothing of each other in
/// one, and everything in the other but that nodes are met together.
const TOLERANCES: [(&str, f64); 2] = [("degrees", 0.1), ("edges", 0.03)];

const JOB: &str = r#"
name = "capacity"
seed = 7
workers = 2

[input.nodes]
path = "data/nodes.parquet"
id = "id"
features = ["features"]
label = "label"
split = "split"

[input.edges]
path = "data/edges.parquet"
src = "src"
dst = "dst"
weight = "weight"

[flatten]
output = "out"
hops = 3
fanouts = [10, 5, 5]
targets = "all"
layout = "shards"
targets_per_part = 1000
"#;

/// R-MAT, and a node that three quarters of all others lead to.
const GRAPH: &str = "generate data --nodes 20000 --edges 300000 --features 4 --seed 9 --weights \
                     --hubs 1 --hub-in-edges 15000";

/// What each worker did in a round, as the report has it.
fn figures(round: &Value, figure: &str) -> Vec<f64> {
    let workers = round["workers"].as_array().unwrap();
    let figures = workers.iter().map(|did| did[figure].as_f64().unwrap());
    figures.collect()
}

/// What all workers did.
fn sum(round: &Value, figure: &str) -> f64 {
    figures(round, figure).iter().sum()
}

fn generate(bench: &Bench) {
    let words: Vec<&str> = GRAPH.split_whitespace().collect();
    bench.graphflat(&words).ok();
}

/// Half of the nodes have no in-edge, and others very many: parts must not be cut by that.
#[test]
fn few_parts_of_rows_are_even() {
    let bench = Bench::empty();
    generate(&bench);
    let job = JOB.replace("workers = 2", "workers = 4");
    let job = job.replace("shards", "rows");
    for (targets, per_part) in [("all", 5000), ("labelled", 1000), ("train", 500)] {
        let job = job.replace("\"all\"", &format!("\"{targets}\""));
        let job = job.replace("= 1000", &format!("= {per_part}"));
        std::fs::write(bench.path("job.toml"), job).unwrap();
        bench
            .graphflat(&["run", "job.toml", "--quiet", "--fresh"])
            .ok();
        let manifest = bench.manifest("out");
        assert_eq!(manifest["parts"].as_array().unwrap().len(), 4, "{targets}");
        let rounds = manifest["report"]["rounds"].as_array().unwrap();
        let written = rounds.last().unwrap();
        for figure in ["nodes", "in_edges", "bytes"] {
            let figures = figures(written, figure);
            let mean = figures.iter().sum::<f64>() / 4.0;
            let is_even = figures.iter().all(|&did| did < 1.3 * mean);
            assert!(is_even, "{figure} of {targets}: {figures:?}");
        }
    }
}

#[test]
fn the_model_tells_the_bytes_of_each_round() {
    let Some(python) = python() else {
        return;
    };
    let bench = Bench::empty();
    generate(&bench);
    std::fs::write(bench.path("job.toml"), JOB).unwrap();
    let run = ["run", "job.toml", "--quiet", "--processes", "2"];
    bench.graphflat(&run).ok();
    let report = bench.manifest("out")["report"].clone();
    for (statistics, tolerance) in TOLERANCES {
        let mut model = Command::new(&python);
        model.arg(checkout().join("docs/capacity.py"));
        model.arg("--edges").arg(bench.path("data/edges.parquet"));
        let options = "--nodes 20000 --features 4 --weights --fanouts 10,5,5 --processes 2 \
                       --targets-per-part 1000 --workers 2 --json --by";
        model.args(options.split_whitespace()).arg(statistics);
        let outcome = Outcome::of(&model.output().unwrap()).ok();
        let said: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let expected = said["rounds"].as_array().unwrap();
        let measured = report["rounds"].as_array().unwrap();
        assert_eq!(measured.len(), 5);
        for round in measured {
            let name = &round["name"];
            let same = expected.iter().find(|other| other["name"] == *name);
            let same = same.unwrap_or_else(|| panic!("the model has no {name}"));
            for figure in ["nodes", "bytes"] {
                let (predicted, did) = (same[figure].as_f64().unwrap(), sum(round, figure));
                let off = predicted / did - 1.0;
                let what = format!("{statistics}, {name}: {predicted} {figure} are {did}");
                assert!(off.abs() < tolerance, "{what}");
            }
        }
    }
}
