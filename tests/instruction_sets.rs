//! Outputs depend neither on the instruction set of the kernels, nor on the number of workers, nor on
//! memory.
//!
//! The variable chooses the set of the kernels. The libraries that multiply matrices and compute
//! mathematical functions choose by themselves (`docs/decisions/instruction-sets.md`).

use std::collections::BTreeMap;

use crate::harness::{Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, Outcome, TRAIN};
use crate::typed_infer;

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

/// Runs a job in an emptied directory, and returns the files of all outputs.
fn outputs(
    bench: &Bench,
    job: &Job,
    set: &str,
    (workers, budget, cache): (&str, &str, Option<&str>),
) -> Vec<BTreeMap<String, Vec<u8>>> {
    bench.clear();
    bench.write(&Job::of_text(&format!(
        "memory_budget = \"{budget}\"\n{}",
        job.0
    )));
    let mut command = bench.command(&["run", "job.toml", "--quiet", "--workers", workers]);
    command.env(VARIABLE, set);
    if let Some(bytes) = cache {
        command.env("GRAPHFLAT_PAGE_CACHE", bytes);
    }
    Outcome::of(&command.output().unwrap()).ok();
    ["out/features", "out/model", "out/embeddings"]
        .iter()
        .filter(|output| bench.path(output).exists())
        .map(|output| bench.data_files(output))
        .collect()
}

/// Checks that all stages of a job give the same bytes with every instruction set and number of
/// workers, with the least memory, and where the page cache cannot hold the files.
fn check(bench: &Bench, job: &Job) {
    let sets = available();
    let plain = |workers| (workers, "1GiB", None);
    let first = outputs(bench, job, sets[0].0, plain("1"));
    assert!(first.len() >= 2 && first.iter().all(|files| !files.is_empty()));
    let in_little_memory = ("2", "64MiB", Some("0"));
    for (set, _) in sets {
        for settings in [plain("1"), plain("2"), plain("4"), in_little_memory] {
            let files = outputs(bench, job, set, settings);
            assert!(files == first, "{set}, {settings:?}\n{}", job.0);
        }
    }
}

/// Checks a job of a graph without node types, with some changes.
fn check_untyped(changes: &[(&str, &str)]) {
    let graph = Graph::new(150, IdKind::Int64, FeatureKind::List).with_in_edges(200);
    let job = Job::new(&graph, &[FLATTEN, TRAIN, INFER]);
    let job = changes
        .iter()
        .fold(job, |job, (from, to)| job.with(from, to));
    check(&Bench::new(&graph), &job);
}

#[test]
fn outputs_have_the_same_bytes_with_every_instruction_set() {
    check_untyped(&[("\"sage\"", "\"gcn\"\ndropout = 0.3")]);
    check_untyped(&[("\"sage\"", "\"sage\"\naggregator = \"max\"")]);
    check_untyped(&[("\"sage\"", "\"gat\"\nheads = 2")]);
    check_untyped(&[
        ("\"sage\"", "\"gatv2\"\nheads = 2\nnorm = \"layer\""),
        ("hidden = [8]", "hidden = [24]"),
    ]);
}

#[test]
fn so_have_rows_in_16_bits_streamed_samples_and_types() {
    let in_16_bits = "[infer]\nrows = \"bf16\"\n";
    check_untyped(&[("[infer]\n", in_16_bits)]);
    check_untyped(&[
        ("output = \"out/features\"\n", ""),
        ("layout = \"shards\"\n", ""),
        ("[train]\n", "[train]\nstreamed = true\n"),
    ]);
    let typed = Job::of_text(typed_infer::JOB).with("workers = 2\n", "");
    check(&typed_infer::bench(), &typed.with("[infer]\n", in_16_bits));
}
