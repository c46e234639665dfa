//! The model of `docs/capacity.md` predicts the figures that the program reports for a generated
//! graph.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::{Bench, Outcome, files_below};
#[cfg(target_os = "linux")]
use crate::hosts::Net;
use crate::needs::{checkout, python, slow};

/// Greatest relative error of the model, by the statistics it uses: "degrees" treats edges as
/// independent; "edges" uses the real edges, but not that nodes are reached together.
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

/// An R-MAT graph, and a hub with in-edges from three quarters of all other nodes.
const GRAPH: &str = "generate data --nodes 20000 --edges 300000 --features 4 --seed 9 --weights \
                     --hubs 1 --hub-in-edges 15000";

/// A figure of each worker in a round, from the report.
fn figures(round: &Value, figure: &str) -> Vec<f64> {
    let workers = round["workers"].as_array().unwrap();
    let figures = workers.iter().map(|did| did[figure].as_f64().unwrap());
    figures.collect()
}

/// The sum of a figure over all workers.
fn sum(round: &Value, figure: &str) -> f64 {
    figures(round, figure).iter().sum()
}

fn generate(bench: &Bench) {
    let words: Vec<&str> = GRAPH.split_whitespace().collect();
    bench.graphflat(&words).ok();
}

/// Half of the nodes have no in-edge, and others have very many: parts must be even all the same.
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
            assert_even(&format!("{figure} of {targets}"), &figures(written, figure));
        }
    }
}

/// Four processes have equal shares of a graph with a hub: of the store, of the answers in each
/// round, and of the output if there are eight parts for each.
#[test]
fn no_process_has_more_than_its_share() {
    let bench = Bench::empty();
    generate(&bench);
    for layout in ["shards", "rows"] {
        let job = JOB.replace("shards", layout).replace("= 1000", "= 625");
        std::fs::write(bench.path("job.toml"), job).unwrap();
        let run = [
            "run",
            "job.toml",
            "--quiet",
            "--fresh",
            "--processes",
            "4",
            "--workers",
            "1",
        ];
        bench.graphflat(&run).ok();
        let stored = (0..4).map(|process| {
            let store = bench.path(&format!("work/capacity/process-{process:03}/store"));
            let files = files_below(&store).into_iter();
            files
                .map(|file| file.metadata().unwrap().len() as f64)
                .sum()
        });
        assert_even(&format!("{layout}: store"), &stored.collect::<Vec<f64>>());
        let rounds = bench.manifest("out")["report"]["rounds"].clone();
        for round in rounds.as_array().unwrap() {
            for figure in ["nodes", "in_edges", "bytes"] {
                let what = format!("{layout}: {figure} of {}", round["name"]);
                assert_even(&what, &figures(round, figure));
            }
        }
    }
}

#[track_caller]
fn assert_even(what: &str, figures: &[f64]) {
    let mean = figures.iter().sum::<f64>() / figures.len() as f64;
    assert!(
        figures.iter().all(|&has| has <= 1.3 * mean),
        "{what}: {figures:?}"
    );
}

/// Bytes on the links of four hosts, with packet headers, from the building of the store to the
/// last part.
#[cfg(target_os = "linux")]
#[test]
fn the_model_tells_what_crosses_between_hosts() {
    if !slow() {
        return;
    }
    let bench = Bench::empty();
    let (Some(python), Some(net)) = (python(), Net::new(&bench, 4)) else {
        return;
    };
    generate(&bench);
    std::fs::write(bench.path("job.toml"), JOB).unwrap();
    let run = || {
        let sent = || -> Vec<f64> { (0..4).map(|host| net.bytes_sent(host) as f64).collect() };
        let before = sent();
        net.run(&bench, &["--quiet", "--workers", "1"]);
        let both = sent().into_iter().zip(before);
        both.map(|(now, then)| now - then).collect::<Vec<f64>>()
    };
    let with_store = run();
    // The table is one row group, which one host reads; after the store is built, all hosts send
    // the same number of bytes.
    std::fs::remove_dir_all(bench.path("out")).unwrap();
    let flatten = run();
    assert_even("bytes sent", &flatten);
    let said = model(&python, &bench, "--processes 4 --workers 1 --by edges");
    let crossing = |is_meant: fn(&str) -> bool| -> f64 {
        let rounds = said["rounds"].as_array().unwrap().iter();
        let meant = rounds.filter(|round| is_meant(round["name"].as_str().unwrap()));
        meant.map(|round| round["crossing"].as_f64().unwrap()).sum()
    };
    for (what, sent, expected) in [
        ("all", &with_store, crossing(|_| true)),
        (
            "from the store on",
            &flatten,
            crossing(|name| !["numbering", "node rows", "edges"].contains(&name)),
        ),
    ] {
        let measured: f64 = sent.iter().sum();
        let off = expected / measured - 1.0;
        assert!(off.abs() < 0.1, "{what}: {expected} bytes are {measured}");
    }
}

/// Returns the predictions of the model for the job.
fn model(python: &Path, bench: &Bench, options: &str) -> Value {
    let mut model = Command::new(python);
    model.arg(checkout().join("docs/capacity.py"));
    model.arg("--edges").arg(bench.path("data/edges.parquet"));
    let of_job = "--nodes 20000 --ids-without-gaps --features 4 --weights --fanouts 10,5,5 \
                  --targets-per-part 1000 --json";
    model
        .args(of_job.split_whitespace())
        .args(options.split_whitespace());
    let outcome = Outcome::of(&model.output().unwrap()).ok();
    serde_json::from_str(&outcome.stdout).unwrap()
}

#[test]
fn the_model_tells_the_bytes_of_each_round() {
    if !slow() {
        return;
    }
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
        let options = format!("--processes 2 --workers 2 --by {statistics}");
        let said = model(&python, &bench, &options);
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
