//! Outputs do not depend on the instruction set of the kernels, nor on the number of workers.
//!
//! The variable chooses the set of the kernels. The libraries that multiply matrices and compute
//! mathematical functions choose by themselves (`docs/decisions/instruction-sets.md`).

use std::collections::BTreeMap;

use crate::harness::{Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, Outcome, TRAIN};

const VARIABLE: &str = "GRAPHFLAT_INSTRUCTION_SET";

/// Names of all sets of this kind of processor, and texts of `--version` for them.
#[cfg(target_arch = "x86_64")]
const SETS: [(&str, &str); 3] = [
    ("v2", "x86-64-v2: SSE4.2"),
    ("v3", "x86-64-v3: AVX2"),
    ("v4", "x86-64-v4: AVX-512"),
];
#[cfg(target_arch = "aarch64")]
const SETS: [(&str, &str); 1] = [("base", "arm64: NEON")];

fn run_with(bench: &Bench, set: &str, args: &[&str]) -> Outcome {
    Outcome::of(&bench.command(args).env(VARIABLE, set).output().unwrap())
}

/// Returns the sets that this processor has, the smallest first.
fn available() -> Vec<(&'static str, &'static str)> {
    let has = |set: &(&str, &str)| run_with(&Bench::empty(), set.0, &["--version"]).code == 0;
    let sets: Vec<_> = SETS.into_iter().filter(has).collect();
    assert_eq!(sets.first(), SETS.first());
    sets
}

#[test]
fn version_names_the_instruction_set_in_use() {
    let (bench, sets) = (Bench::empty(), available());
    let line = |text: &str| format!("graphflat {} ({text})\n", env!("CARGO_PKG_VERSION"));
    for (set, text) in &sets {
        assert_eq!(
            run_with(&bench, set, &["--version"]).ok().stdout,
            line(text)
        );
    }
    let best = sets.last().unwrap().1;
    assert_eq!(bench.graphflat(&["--version"]).ok().stdout, line(best));
}

#[test]
fn an_instruction_set_that_cannot_be_used_is_one_error() {
    let bench = Bench::empty();
    let outcome = run_with(&bench, "v5", &["run", "job.toml"]);
    let all = SETS.map(|(set, _)| set).join(", ");
    let wanted =
        format!("error: {VARIABLE}: there is no instruction set \"v5\"; allowed are {all}\n");
    assert_eq!((outcome.code, outcome.stderr), (2, wanted));
    for (set, text) in SETS {
        let shown = run_with(&bench, set, &["--version"]);
        let problem = format!("error: {VARIABLE}: this processor does not have {text}; it has ");
        let is_absent = shown.code == 2 && shown.stderr.starts_with(&problem);
        assert!(shown.code == 0 || is_absent, "{shown:?}");
    }
}

/// Checks that a model of a kind gives the same bytes in all stages.
fn check(model: &[(&str, &str)]) {
    let graph = Graph::new(150, IdKind::Int64, FeatureKind::List).with_in_edges(200);
    let job = Job::new(&graph, &[FLATTEN, TRAIN, INFER]);
    let job = model.iter().fold(job, |job, (from, to)| job.with(from, to));
    let bench = Bench::new(&graph);
    bench.write(&job);
    let mut first: Option<Vec<BTreeMap<String, Vec<u8>>>> = None;
    for (set, _) in available() {
        for workers in ["1", "2", "4"] {
            bench.clear();
            let args = ["run", "job.toml", "--quiet", "--workers", workers];
            run_with(&bench, set, &args).ok();
            let outputs = ["out/features", "out/model", "out/embeddings"];
            let files = outputs.map(|output| bench.data_files(output)).to_vec();
            let first = first.get_or_insert_with(|| files.clone());
            assert!(files == *first, "{model:?}, {set}, {workers} workers");
        }
    }
}

#[test]
fn outputs_have_the_same_bytes_with_every_instruction_set() {
    check(&[("\"sage\"", "\"gcn\"\ndropout = 0.3")]);
    check(&[("\"sage\"", "\"sage\"\naggregator = \"max\"")]);
    check(&[("\"sage\"", "\"gat\"\nheads = 2")]);
    check(&[
        ("\"sage\"", "\"gatv2\"\nheads = 2\nnorm = \"layer\""),
        ("hidden = [8]", "hidden = [24]"),
    ]);
}
