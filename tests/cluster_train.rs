//! Training in several processes gives the model of one process, even if processes are killed,
//! stopped or fail.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::cluster::{stop_one, survive_kills};
use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, IdKind, Job, Outcome, TRAIN, assert_same_bytes, files_below,
};
use crate::hosts::{Hosts, end, wait_for};
use crate::needs::slow;

const OUTPUT: &str = "out/model";
/// Longest wait for the first checkpoint of a training.
const CHECKPOINT_MAX: Duration = Duration::from_secs(60);
const TRAINED: [&str; 2] = ["--stage", "train"];

fn graph() -> Graph {
    Graph::new(150, IdKind::Utf8, FeatureKind::List).with_weights()
}

/// A training with `workers` workers.
fn job(graph: &Graph, workers: usize, more: &str) -> Job {
    Job::new(graph, &[FLATTEN, TRAIN])
        .with("workers = 2", "workers = 1")
        .with("batch_size = 16", "batch_size = 4")
        .and(&format!("workers = {workers}\n{more}"))
}

/// A bench with graph features.
fn flattened(graph: &Graph) -> Bench {
    let bench = Bench::new(graph);
    bench.run(&job(graph, 1, ""), &["--stage", "flatten"]).ok();
    bench
}

fn train(bench: &Bench, job: &Job, args: &[&str]) -> Outcome {
    bench.run(job, &[&TRAINED, args].concat())
}

fn losses(bench: &Bench) -> Vec<f64> {
    let manifest = bench.manifest(OUTPUT);
    let epochs = manifest["report"]["epochs"].as_array().unwrap();
    let loss = |epoch: &serde_json::Value| epoch["loss"].as_f64().unwrap();
    epochs.iter().map(loss).collect()
}

fn start(hosts: &Hosts, bench: &Bench, num: usize, args: &[&str]) -> Vec<Child> {
    let args = [&TRAINED, args].concat();
    (0..num)
        .map(|process| hosts.start(bench, process, &args))
        .collect()
}

fn remove(path: &Path) {
    if path.exists() {
        std::fs::remove_dir_all(path).unwrap();
    }
}

#[test]
fn processes_train_the_model_of_one() {
    let graph = graph();
    let bench = flattened(&graph);
    for workers in [1, 3, 4] {
        for more in [
            "dropout = 0.3",
            "dropout = 0.3\ngradient_format = \"bf16\"\nclass_weights = \"balanced\"\n\
             checkpoint_every_steps = 2\nevaluate_every = 2\n\
             schedule = { kind = \"cosine\", warmup = 1.5 }",
        ] {
            train(&bench, &job(&graph, workers, more), &["--fresh"]).ok();
            let (expected, of_one) = (bench.data_files(OUTPUT), losses(&bench));
            assert_eq!(expected.len(), 3, "{:?}", expected.keys());
            for (processes, servers) in [("2", 1), ("2", 3), ("4", 1), ("4", 3)] {
                let job = job(&graph, workers, &format!("{more}\nservers = {servers}"));
                train(&bench, &job, &["--fresh", "--processes", processes]).ok();
                let what = format!("{processes} processes, {workers} workers, {servers} servers");
                assert_same_bytes(&expected, &bench.data_files(OUTPUT), &what);
                assert_eq!(of_one, losses(&bench), "{what}");
            }
        }
    }
}

/// Gradients of 16 bits train almost the same model.
#[test]
fn rounded_gradients_train_almost_alike() {
    let graph = graph();
    let bench = flattened(&graph);
    let processes = ["--fresh", "--processes", "2"];
    train(&bench, &job(&graph, 2, ""), &processes).ok();
    let exact = losses(&bench);
    let rounding = job(&graph, 2, "gradient_format = \"bf16\"");
    train(&bench, &rounding, &processes).ok();
    let rounded = losses(&bench);
    assert_ne!(exact, rounded);
    for (one, other) in exact.iter().zip(rounded) {
        assert!((one - other).abs() < 0.01 * one, "{one} {other}");
    }
}

/// The report of an epoch includes the busy seconds of all processes.
#[test]
fn busy_seconds_of_followers_are_reported() {
    let graph = graph();
    let bench = flattened(&graph);
    train(&bench, &job(&graph, 2, ""), &["--processes", "2"]).ok();
    let manifest = bench.manifest(OUTPUT);
    let epochs = manifest["report"]["epochs"].as_array().unwrap();
    assert_eq!(epochs.len(), 4);
    for epoch in epochs {
        let seconds = |stage| epoch["busy"][stage].as_f64().unwrap_or_default();
        assert!(seconds("compute") > 0.0, "{epoch}");
    }
}

/// One command flattens and trains; for a second one, both are finished in every process.
#[test]
fn stages_follow_each_other_and_are_not_done_twice() {
    let graph = graph();
    let bench = flattened(&graph);
    let job = job(&graph, 2, "");
    train(&bench, &job, &[]).ok();
    let expected = bench.data_files(OUTPUT);
    bench.clear();
    let hosts = Hosts::new(&bench, 3);
    let run = |args: &[&str]| {
        let start = |process| hosts.start(&bench, process, args);
        let children: Vec<Child> = (0..3).map(start).collect();
        children.into_iter().map(end).map(Outcome::ok).collect()
    };
    let first: Vec<Outcome> = run(&[]);
    assert_same_bytes(&expected, &bench.data_files(OUTPUT), "both stages");
    let said: Vec<&Outcome> = first
        .iter()
        .filter(|outcome| outcome.stderr.contains("2 of 3 processes train"))
        .collect();
    assert_eq!(
        said.len(),
        1,
        "the first process says who trains: {first:?}"
    );
    let manifest = bench.manifest(OUTPUT);
    let notes = manifest["report"]["notes"].to_string();
    assert!(notes.contains("`train.workers` is 2"), "{notes}");
    let again: Vec<Outcome> = run(&[]);
    for outcome in &again {
        let skipped = outcome.stderr.matches("finished before").count();
        assert_eq!(skipped, 2, "{outcome:?}");
    }
    assert_eq!(manifest, bench.manifest(OUTPUT));
}

#[test]
fn workers_that_do_not_wait_train_a_model_too() {
    let graph = graph();
    let bench = flattened(&graph);
    for mode in ["mode = \"async\"", "mode = \"bounded\"\nstaleness = 2"] {
        let job = job(&graph, 4, &format!("{mode}\nservers = 2"));
        train(&bench, &job, &["--fresh", "--processes", "3"]).ok();
        let losses = losses(&bench);
        assert_eq!(losses.len(), 4);
        assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    }
}

/// If any process dies, all others end and name it; the next run continues the training and ends
/// with the same bytes.
#[test]
fn a_process_that_is_killed_ends_the_training_and_the_next_run_goes_on() {
    if !slow() {
        return;
    }
    let graph = graph();
    let bench = flattened(&graph);
    let more = "servers = 2\ncheckpoint_every_steps = 5";
    let job = job(&graph, 3, more).with("epochs = 4", "epochs = 40");
    survive_kills(&bench, &job, ("train", "train, epoch "), OUTPUT);
}

/// One process can continue a training of several processes, and several can continue one of one
/// process.
#[test]
fn checkpoints_are_those_of_one_process() {
    let graph = graph();
    let bench = flattened(&graph);
    let more = "servers = 3\ncheckpoint_every_steps = 3";
    let job = job(&graph, 2, more).with("epochs = 4", "epochs = 400");
    let done = [&TRAINED[..], &["--processes", "2"]].concat();
    train(&bench, &job, &[]).ok();
    let expected = bench.data_files(OUTPUT);
    for (first, then) in [(&TRAINED[..], &done[..]), (&done, &TRAINED)] {
        remove(&bench.path(OUTPUT));
        let mut child = bench
            .command(&[&["run", "job.toml", "--quiet"], first].concat())
            .spawn()
            .unwrap();
        wait_for(
            &bench.path(OUTPUT).join("_progress/checkpoint"),
            CHECKPOINT_MAX,
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!bench.path(OUTPUT).join("_SUCCESS").exists());
        let deadline = Instant::now() + Duration::from_secs(20);
        // After process 0 is killed, the others end a moment later.
        let outcome = loop {
            let outcome = bench.run(&job, then);
            if outcome.code == 0 || Instant::now() > deadline {
                break outcome;
            }
        };
        outcome.ok();
        assert_same_bytes(&expected, &bench.data_files(OUTPUT), &format!("{then:?}"));
    }
}

/// A stopped process is noticed like a killed one.
#[cfg(unix)]
#[test]
fn a_process_that_is_stopped_ends_the_training() {
    let graph = graph();
    let bench = flattened(&graph);
    let job = job(&graph, 3, "").with("epochs = 4", "epochs = 100000");
    bench.write(&job);
    let hosts = Hosts::new(&bench, 3);
    let children = start(&hosts, &bench, 3, &[]);
    wait_for(
        &bench.path(OUTPUT).join("_progress/checkpoint"),
        CHECKPOINT_MAX,
    );
    stop_one(&hosts, children, 2, "train, epoch ");
}

/// Copies graph features to another bench, which stands for another disk.
fn copy(from: &Bench, to: &Bench) {
    for file in files_below(&from.path("out/features")) {
        let name = file.strip_prefix(from.path("out/features")).unwrap();
        let copied = to.path("out/features").join(name);
        std::fs::create_dir_all(copied.parent().unwrap()).unwrap();
        std::fs::copy(&file, copied).unwrap();
    }
}

/// Runs a training whose last process works in another directory.
fn train_apart(bench: &Bench, apart: &Bench, job: &Job) -> Vec<Outcome> {
    bench.write(job);
    apart.write(job);
    let hosts = Hosts::new(bench, 3);
    let mut children = start(&hosts, bench, 2, &[]);
    children.push(hosts.start(apart, 2, &TRAINED));
    children.into_iter().map(end).collect()
}

/// A worker that fails in another process ends all processes with its error, and no output stays.
#[test]
fn the_error_of_a_worker_is_that_of_all() {
    let graph = graph();
    let bench = flattened(&graph);
    let apart = Bench::new(&graph);
    copy(&bench, &apart);
    let parts = files_below(&apart.path("out/features"));
    let parts = parts
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "parquet"));
    for part in parts {
        let mut bytes = std::fs::read(part).unwrap();
        let middle = bytes.len() / 3;
        bytes[middle..middle + 64]
            .iter_mut()
            .for_each(|byte| *byte ^= 0x5a);
        std::fs::write(part, bytes).unwrap();
    }
    let job = job(&graph, 3, "servers = 3").with("epochs = 4", "epochs = 100000");
    let alone = train(&apart, &job, &[]);
    assert_ne!(alone.code, 0);
    // The order of time decides which part is read first.
    let names_part = |outcome: &Outcome| {
        let text = &outcome.stderr;
        text.contains("stage train: out/features/") && text.contains(" is broken: checksum ")
    };
    assert!(names_part(&alone), "{alone:?}");
    for outcome in train_apart(&bench, &apart, &job) {
        assert_eq!(outcome.code, alone.code, "{outcome:?} but {alone:?}");
        assert!(names_part(&outcome), "{outcome:?}");
    }
    let is_left = |on: &Bench| on.path(OUTPUT).exists();
    assert_eq!(is_left(&bench), is_left(&apart), "as in one process");
}

#[test]
fn a_training_that_diverges_says_so_in_all_processes() {
    let graph = graph();
    let bench = flattened(&graph);
    let job = job(
        &graph,
        3,
        "servers = 2\noptimizer = \"sgd\"\nlearning_rate = 1000\nweight_decay = 1000",
    );
    bench.write(&job);
    let hosts = Hosts::new(&bench, 3);
    for child in start(&hosts, &bench, 3, &[]) {
        let outcome = end(child);
        assert_eq!(outcome.code, 1, "{outcome:?}");
        assert!(
            outcome.stderr.contains("training diverged in epoch "),
            "{outcome:?}"
        );
    }
    assert!(
        !bench.path(OUTPUT).exists(),
        "the corrected plan finds its output free"
    );
}

#[test]
fn processes_that_read_other_graph_features_say_so() {
    let graph = graph();
    let bench = flattened(&graph);
    let apart = flattened(&Graph::new(140, IdKind::Utf8, FeatureKind::List).with_weights());
    for outcome in train_apart(&bench, &apart, &job(&graph, 3, "")) {
        assert_eq!(outcome.code, 1, "{outcome:?}");
        let named = "process 2 has another `train.input` than process 0";
        assert!(outcome.stderr.contains(named), "{outcome:?}");
    }
    assert!(!bench.path(OUTPUT).exists(), "nothing was begun");
}

#[test]
fn keys_that_several_processes_cannot_have_are_refused() {
    let graph = graph();
    let bench = flattened(&graph);
    for (more, problem) in [
        (
            "servers = 65",
            "`train.servers` is 65: in several processes allowed is 1 to 64",
        ),
        ("servers = 2\nclip_norm = 1.0", "`train.clip_norm` is 1"),
    ] {
        let outcome = train(&bench, &job(&graph, 2, more), &["--processes", "2"]);
        assert_eq!(outcome.code, 2, "{outcome:?}");
        assert!(outcome.stderr.contains(problem), "{outcome:?}");
    }
    let wide = job(&graph, 2, "servers = 2").with("hidden = [8]", "hidden = [20000, 20000]");
    let outcome = train(&bench, &wide, &["--processes", "2"]);
    assert_eq!(outcome.code, 2, "{outcome:?}");
    let problem = "`train.servers` is 2: parameters and optimiser's state of a server must fit";
    assert!(outcome.stderr.contains(problem), "{outcome:?}");
    assert!(!bench.path(OUTPUT).exists(), "nothing was begun");
    let streamed = "[flatten]\nhops = 2\nfanouts = [4, 3]\n\n";
    let streamed = Job::new(&graph, &[streamed, TRAIN]).and("streamed = true");
    let refused = bench.run(&streamed, &["--processes", "2"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(
        refused.stderr.contains("`train.streamed` is true"),
        "{refused:?}"
    );
    // A single server can clip.
    let clipped = job(&graph, 2, "clip_norm = 0.5");
    train(&bench, &clipped, &[]).ok();
    let expected = bench.data_files(OUTPUT);
    train(&bench, &clipped, &["--fresh", "--processes", "2"]).ok();
    assert_same_bytes(&expected, &bench.data_files(OUTPUT), "clipped");
}
