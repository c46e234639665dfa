//! Real graphs with node types: logits of inference equal those of PyG or numpy on the whole graph.
//!
//! The slow tests run the jobs of the repository on their data sets, for a few epochs. Those of
//! `rgcn` and `hgt` also need PyG.

use std::path::PathBuf;
use std::process::Command;

use crate::harness::{Bench, Job, Outcome};
use crate::needs::{checkout, data, python, slow};
use crate::pyg;
use crate::real::DATA_VARIABLE;

/// Jobs with all in-edges, and fan-outs to sample them instead.
const JOBS: [(&str, &str); 7] = [
    ("hgb-dblp-rgcn", DBLP_FANOUTS),
    ("hgb-dblp-hgt", DBLP_FANOUTS),
    ("hgb-dblp-simple_hgn", DBLP_FANOUTS),
    ("hgb-acm-rgcn", ACM_FANOUTS),
    ("hgb-acm-hgt", ACM_FANOUTS),
    ("hgb-acm-simple_hgn", "[10, 5, 5]"),
    ("aifb-rgcn", "[10, 5]"),
];
const DBLP_FANOUTS: &str = "[{ paper-author = 10 }, { author-paper = 3, term-paper = 5, \
                            venue-paper = \"all\" }, 10]";
const ACM_FANOUTS: &str = "[{ author-paper = 10, paper-cite-paper = 5, paper-ref-paper = 5, \
                           term-paper = 10 }, 5]";

/// A job of the repository that trains for two epochs and writes the logits of all targets.
fn short(name: &str, data: &str) -> Job {
    let text = std::fs::read_to_string(checkout().join(format!("jobs/{name}.toml"))).unwrap();
    Job::of_text(&text.replace(DATA_VARIABLE, data))
        .with("[flatten]\n", "[flatten]\ntargets = \"all\"\n")
        .with("[infer]\n", "[infer]\nlogits = true\n")
}

/// Runs the stages of a job and then `method = "neighborhoods"` on its graph features; returns the
/// outputs of both methods.
fn infer_both_ways(bench: &Bench, job: &Job, name: &str) -> [PathBuf; 2] {
    let run = ["--set", "train.epochs=2"];
    bench.run(job, &run).ok();
    let near = job
        .with(
            &format!("out/{name}/embeddings"),
            &format!("out/{name}/near"),
        )
        .with("[infer]\n", "[infer]\nmethod = \"neighborhoods\"\n");
    bench.run(&near, &run).ok();
    ["embeddings", "near"].map(|output| bench.path(&format!("out/{name}/{output}")))
}

/// Runs tests/typed_forward.py, which compares logits of some outputs.
fn assert_right(checker: &mut Command, num_outputs: usize, what: &str) {
    checker.env("PYTHONWARNINGS", "ignore");
    let outcome = Outcome::of(&checker.output().unwrap());
    eprint!("{what}\n{}", outcome.stdout);
    assert_eq!(outcome.code, 0, "{what}: {outcome:#?}");
    let right = outcome.stdout.lines().filter(|l| l.starts_with("ok:"));
    assert_eq!(right.count(), num_outputs, "{what}");
}

/// Compares the logits of both methods with those of the whole graph, then of both with sampling.
fn check(kind: &str, python: impl Fn() -> Option<PathBuf>) {
    if !slow() {
        return;
    }
    let (Some(data), Some(python)) = (data(), python()) else {
        return;
    };
    let jobs = JOBS.iter().filter(|(name, _)| name.ends_with(kind));
    for (name, fanouts) in jobs {
        let bench = Bench::empty();
        let job = short(name, &data.display().to_string());
        let program = || {
            let mut checker = Command::new(&python);
            checker.arg(checkout().join("tests/typed_forward.py"));
            checker
        };
        let outputs = infer_both_ways(&bench, &job, name);
        let mut whole = program();
        whole.args([
            bench.path("job.toml"),
            bench.path(&format!("out/{name}/model")),
        ]);
        assert_right(whole.args(outputs), 2, &format!("{name}, all in-edges"));
        bench.clear();
        let (before, after) = job.0.split_once("fanouts = ").unwrap();
        let (_, after) = after.split_once('\n').unwrap();
        let sampled = Job(format!("{before}fanouts = {fanouts}\n{after}"));
        let of_sample = infer_both_ways(&bench, &sampled, name);
        let what = format!("{name}, fan-outs {fanouts}");
        assert_right(program().arg("--same").args(of_sample), 1, &what);
    }
}

#[test]
fn rgcn_on_real_graphs_is_that_of_pyg() {
    check("rgcn", pyg::python);
}

#[test]
fn hgt_on_real_graphs_is_that_of_pyg() {
    check("hgt", pyg::python);
}

#[test]
fn simple_hgn_on_real_graphs_is_its_formulas() {
    check("simple_hgn", python);
}
