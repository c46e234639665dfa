//! Broken files of a whole job: stores, models, outputs and job files with changed bytes. Failed
//! runs that would have replaced a finished output.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, Outcome, TRAIN, assert_same_bytes,
    files_below, mix,
};

/// Address space of a run, in KiB: the stacks of its threads and its allocator reserve most of it.
const SPACE_KIB: u64 = 8 << 20;

fn graph() -> Graph {
    Graph::new(40, IdKind::Utf8, FeatureKind::List)
}

fn job(graph: &Graph) -> Job {
    let job = Job::new(graph, &[FLATTEN, TRAIN, INFER]);
    job.with("workers = 2\n", "workers = 2\nwork_dir = \"work\"\n")
}

/// Number of mutations of one test: all mutations divided by `share`, since each one runs the
/// program.
fn num_mutations(share: u64) -> u64 {
    let wanted = std::env::var("GRAPHFLAT_TEST_MUTATIONS").ok();
    let is_slow = std::env::var_os("GRAPHFLAT_TEST_SLOW").is_some();
    let wanted = wanted.map(|text| text.parse().expect("a number of mutations"));
    wanted.unwrap_or(if is_slow { 20_000 } else { 2_000 }) / share
}

/// Changes one byte, or cuts the file; returns its old bytes and a description of the change.
fn change(path: &Path, number: u64) -> (Vec<u8>, String) {
    let whole = fs::read(path).unwrap();
    let mut bytes = whole.clone();
    let draw =
        |salt: u64, bound: usize| usize::try_from(mix(salt, number) % bound.max(1) as u64).unwrap();
    let at = draw(1, bytes.len());
    let what = match draw(2, 4) {
        _ if bytes.is_empty() => return (whole, "no change".to_owned()),
        0 => {
            bytes.truncate(at);
            format!("cut after {at} bytes")
        }
        1 => {
            let byte = [0, b'0', b'9', b'-', b'"', b'{', 0x80, 0xff][draw(3, 8)];
            bytes[at] = byte;
            format!("byte {at} set to {byte}")
        }
        _ => {
            let bit = draw(3, 8);
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at} flipped")
        }
    };
    fs::write(path, bytes).unwrap();
    (whole, what)
}

/// Runs the program with bounded memory.
fn bounded(bench: &Bench, args: &[&str]) -> Outcome {
    let mut command = Command::new("sh");
    let limit = format!("ulimit -v {SPACE_KIB}; exec \"$0\" \"$@\"");
    command
        .args(["-c", &limit])
        .arg(env!("CARGO_BIN_EXE_graphflat"))
        .args(args)
        .current_dir(bench.path(""));
    Outcome::of(&command.output().unwrap())
}

/// Checks that the exit code is one of the documented codes and, if it is not 0, that there is an
/// error and no panic.
#[track_caller]
fn check_told(outcome: &Outcome, what: &str) {
    assert!((0..4).contains(&outcome.code), "{what}: {outcome:#?}");
    assert!(!outcome.stderr.contains("panicked"), "{what}: {outcome:#?}");
    let is_told = outcome
        .stderr
        .lines()
        .any(|line| line.starts_with("error: "));
    assert_eq!(is_told, outcome.code != 0, "{what}: {outcome:#?}");
}

/// Changes files below a directory one after the other, and calls `check` after each change.
fn change_each(bench: &Bench, dir: &str, count: u64, mut check: impl FnMut(&str)) {
    let files: Vec<PathBuf> = files_below(&bench.path(dir));
    for number in 0..count {
        let file = &files[usize::try_from(mix(9, number) % files.len() as u64).unwrap()];
        let (whole, what) = change(file, number);
        check(&format!("{number}: {} with {what}", file.display()));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, whole).unwrap();
    }
}

#[test]
fn a_model_with_a_changed_byte_is_refused() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&job(&graph), &[]).ok();
    let whole = bench.graphflat(&["inspect", "out/model"]).ok();
    let embeddings = bench.data_files("out/embeddings");
    change_each(&bench, "out/model", num_mutations(50), |what| {
        let shown = bounded(&bench, &["inspect", "out/model"]);
        check_told(&shown, what);
        assert!(
            shown.code != 0 || numbers(&shown) == numbers(&whole),
            "{what}: {shown:#?}"
        );
    });
    change_each(&bench, "out/model", num_mutations(400), |what| {
        fs::remove_dir_all(bench.path("out/embeddings")).unwrap();
        let inferred = bounded(&bench, &["run", "job.toml", "--quiet", "--stage", "infer"]);
        check_told(&inferred, what);
        if inferred.code == 0 {
            assert_same_bytes(&embeddings, &bench.data_files("out/embeddings"), what);
        } else {
            fs::create_dir_all(bench.path("out/embeddings")).unwrap();
        }
    });
}

/// The description of a model without the line of its manifest.
fn numbers(shown: &Outcome) -> Vec<&str> {
    shown.stdout.lines().skip(1).collect()
}

#[test]
fn a_store_with_a_changed_byte_is_built_again() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let args = ["run", "job.toml", "--quiet", "--stage", "flatten"];
    bench.run(&job(&graph), &["--stage", "flatten"]).ok();
    let features = bench.data_files("out/features");
    change_each(&bench, "work", num_mutations(200), |what| {
        fs::remove_dir_all(bench.path("out")).unwrap();
        let outcome = bounded(&bench, &args);
        assert_eq!(outcome.code, 0, "{what}: {outcome:#?}");
        assert_same_bytes(&features, &bench.data_files("out/features"), what);
    });
}

#[test]
fn graph_features_with_a_changed_byte_train_no_other_model() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&job(&graph), &["--stage", "flatten,train"]).ok();
    let model = bench.data_files("out/model");
    change_each(&bench, "out/features", num_mutations(200), |what| {
        fs::remove_dir_all(bench.path("out/model")).ok();
        let outcome = bounded(&bench, &["run", "job.toml", "--quiet", "--stage", "train"]);
        check_told(&outcome, what);
        if outcome.code == 0 {
            assert_same_bytes(&model, &bench.data_files("out/model"), what);
        }
    });
}

#[test]
fn a_job_file_with_a_changed_byte_is_checked_or_refused() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.write(&job(&graph));
    let whole = fs::read(bench.path("job.toml")).unwrap();
    for number in 0..num_mutations(40) {
        let path = bench.path("job.toml");
        let (_, what) = change(&path, number);
        check_told(&bounded(&bench, &["check", "job.toml"]), &what);
        fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn a_training_that_fails_leaves_the_model_there_was() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&job(&graph), &[]).ok();
    let model = bench.data_files("out/model");
    let all = files_below(&bench.path("out"));
    let part = bench.path("out/features/edges/part-00000.parquet");
    let whole = fs::read(&part).unwrap();
    let mut broken = whole.clone();
    broken[100] ^= 1;
    fs::write(&part, broken).unwrap();
    let failed = bench.run(&job(&graph), &["--stage", "train", "--fresh"]);
    assert_eq!(failed.code, 1, "{failed:#?}");
    assert!(failed.stderr.contains("checksum xxh3:"), "{failed:#?}");
    assert_same_bytes(&model, &bench.data_files("out/model"), "the earlier model");
    let left = files_below(&bench.path("out"));
    assert_eq!(left, all, "the failed training leaves no file");
    bench.graphflat(&["inspect", "out/model"]).ok();
    fs::write(&part, whole).unwrap();
    bench
        .run(&job(&graph), &["--stage", "train", "--fresh"])
        .ok();
    assert_same_bytes(&model, &bench.data_files("out/model"), "trained anew");
    assert_eq!(files_below(&bench.path("out")), all);
}

#[test]
fn several_processes_replace_a_finished_output() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&job(&graph), &["--stage", "flatten"]).ok();
    let features = bench.data_files("out/features");
    let before = bench.manifest("out/features");
    let args = ["--stage", "flatten", "--fresh", "--processes", "2"];
    bench.run(&job(&graph), &args).ok();
    let again = bench.data_files("out/features");
    assert_same_bytes(&features, &again, "in two processes");
    assert_ne!(
        bench.manifest("out/features"),
        before,
        "it was written again"
    );
    let names = ["_new", "_progress", "_lock"];
    let left = names.map(|name| bench.path("out/features").join(name).exists());
    assert_eq!(left, [false; 3]);
}
