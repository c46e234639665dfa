//! Training in processes: the same model as with threads, whichever process is killed or stopped.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, IdKind, Job, Outcome, TRAIN, assert_same_bytes, mix,
};

const OUTPUT: &str = "out/model";

fn graph() -> Graph {
    Graph::new(150, IdKind::Utf8, FeatureKind::List).with_weights()
}

/// A training with so many workers, whose global batches do not depend on their number.
fn job(graph: &Graph, workers: usize, more: &str) -> Job {
    Job::new(graph, &[FLATTEN, TRAIN])
        .with("epochs = 4", "epochs = 6")
        .with("batch_size = 16", &format!("batch_size = {}", 16 / workers))
        .and(&format!("workers = {workers}\n{more}"))
}

const PROCESSES: &str = "launch = \"processes\"";

/// The training losses of the epochs, as their manifest has them.
fn losses(bench: &Bench) -> Vec<f64> {
    let manifest = bench.manifest(OUTPUT);
    let epochs = manifest["report"]["epochs"].as_array().unwrap();
    epochs
        .iter()
        .map(|epoch| epoch["loss"].as_f64().unwrap())
        .collect()
}

/// Trains anew.
fn train(bench: &Bench, job: &Job) -> Outcome {
    bench.run(job, &["--stage", "train", "--fresh"])
}

#[test]
fn processes_train_the_model_of_threads() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&job(&graph, 1, ""), &["--stage", "flatten"]).ok();
    train(&bench, &job(&graph, 1, "")).ok();
    let of_one = losses(&bench);
    for workers in [1, 2, 4] {
        for format in ["f32", "bf16"] {
            let format = format!("gradient_format = \"{format}\"\ndropout = 0.3");
            train(&bench, &job(&graph, workers, &format)).ok();
            let (expected, of_threads) = (bench.data_files(OUTPUT), losses(&bench));
            for servers in [1, 2] {
                let more = format!("{format}\nservers = {servers}\n{PROCESSES}");
                train(&bench, &job(&graph, workers, &more)).ok();
                let what = format!("{workers} workers, {servers} servers, {format}");
                assert_same_bytes(&expected, &bench.data_files(OUTPUT), &what);
                assert_eq!(losses(&bench), of_threads, "{what}");
            }
        }
        train(&bench, &job(&graph, workers, PROCESSES)).ok();
        for (one, many) in of_one.iter().zip(losses(&bench)) {
            assert!(
                (one - many).abs() < 1e-5 * one,
                "{workers} workers: {one} {many}"
            );
        }
    }
}

#[test]
fn rounded_gradients_train_almost_alike() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&job(&graph, 2, PROCESSES), &[]).ok();
    let exact = losses(&bench);
    train(
        &bench,
        &job(
            &graph,
            2,
            &format!("{PROCESSES}\ngradient_format = \"bf16\""),
        ),
    )
    .ok();
    let rounded = losses(&bench);
    assert_ne!(exact, rounded);
    for (one, other) in exact.iter().zip(rounded) {
        assert!((one - other).abs() < 0.01 * one, "{one} {other}");
    }
}

/// Schedules, clipping, weighted classes and checkpoints within an epoch are those of threads.
#[test]
fn every_key_of_threads_works_in_processes() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&job(&graph, 1, ""), &["--stage", "flatten"]).ok();
    let more = "schedule = { kind = \"cosine\", warmup = 1.5 }\nclip_norm = 0.5\n\
                class_weights = \"balanced\"\ncheckpoint_every_steps = 3\nevaluate_every = 2";
    let files = |keys: &str| {
        train(&bench, &job(&graph, 2, keys)).ok();
        let lines = fs::read_to_string(bench.path(OUTPUT).join("epochs.jsonl")).unwrap();
        (bench.data_files(OUTPUT), lines)
    };
    let (expected, lines) = files(more);
    assert_eq!((expected, lines), files(&format!("{more}\n{PROCESSES}")));
    // Norms of gradients are those of the whole, over all servers.
    let several = more.replace("clip_norm = 0.5\n", "");
    assert_eq!(
        files(&several),
        files(&format!("{several}\n{PROCESSES}\nservers = 3"))
    );
}

#[test]
fn every_mode_trains_in_processes() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&job(&graph, 1, ""), &["--stage", "flatten"]).ok();
    for mode in ["mode = \"async\"", "mode = \"bounded\"\nstaleness = 1"] {
        let job = job(&graph, 2, &format!("{mode}\nservers = 2\n{PROCESSES}"));
        train(&bench, &job.with("epochs = 6", "epochs = 20")).ok();
        let losses = losses(&bench);
        assert!(losses[19] < 0.9 * losses[0], "{mode}: {losses:?}");
    }
}

/// A run of the program whose events are read one by one.
struct Run {
    child: Child,
    events: BufReader<ChildStdout>,
}

impl Run {
    fn start(bench: &Bench) -> Run {
        let args = ["run", "job.toml", "--json", "--stage", "train"];
        let mut child = bench.command(&args).spawn().unwrap();
        let events = BufReader::new(child.stdout.take().unwrap());
        Run { child, events }
    }

    /// Waits for the end of so many epochs; returns whether they came.
    fn wait_for(&mut self, epochs: usize) -> bool {
        let mut line = String::new();
        for _ in 0..epochs {
            line.clear();
            if self.events.read_line(&mut line).unwrap() == 0 || !line.contains("\"epoch\"") {
                return false;
            }
        }
        true
    }

    /// The processes of a role that the run has started, by their number.
    fn pids(&self, role: &str) -> Vec<u32> {
        let mut found: Vec<(String, u32)> = Vec::new();
        for entry in fs::read_dir("/proc").unwrap() {
            let name = entry.unwrap().file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // What is gone in the meantime is none.
            let text = |file| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let parent = format!("PPid:\t{}\n", self.child.id());
            let args = text("cmdline");
            if args.contains(&format!("train-process\0{role}\0"))
                && text("status").contains(&parent)
            {
                found.push((args, pid));
            }
        }
        found.sort();
        found.into_iter().map(|(_, pid)| pid).collect()
    }

    fn end(mut self) -> Outcome {
        let mut stdout = String::new();
        self.events.read_to_string(&mut stdout).unwrap();
        let ended = Outcome::of(&self.child.wait_with_output().unwrap());
        Outcome { stdout, ..ended }
    }
}

fn signal(name: &str, pid: u32) {
    // It may have ended on its own.
    let mut kill = Command::new("sh");
    kill.args(["-c", &format!("kill -{name} {pid}")])
        .stderr(Stdio::null());
    kill.status().unwrap();
}

/// Whether a process is there and no zombie.
fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

/// A training that lasts long enough to be disturbed.
fn long_job(graph: &Graph, more: &str) -> Job {
    job(graph, 2, &format!("servers = 2\n{PROCESSES}\n{more}"))
        .with("epochs = 6", "epochs = 200")
        .and("dropout = 0.3")
}

/// Kills of [`kills_at_random_moments_change_no_bit`].
const RANDOM_KILLS: u64 = 20;

#[test]
fn kills_at_random_moments_change_no_bit() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let restarting = long_job(&graph, "worker_failure = \"restart\"");
    let ending = long_job(
        &graph,
        "worker_failure = \"end\"\ncheckpoint_every_steps = 3",
    );
    bench.run(&restarting, &[]).ok();
    let (expected, all_losses) = (bench.data_files(OUTPUT), losses(&bench));
    for draw in 0..RANDOM_KILLS {
        let roles = ["worker", "worker", "server", "launcher"];
        let role = roles[usize::try_from(draw % 4).unwrap()];
        // A policy is for workers: a server that is lost never ends the training.
        let ends = matches!(draw % 8, 1 | 2);
        bench.write(if ends { &ending } else { &restarting });
        fs::remove_dir_all(bench.path(OUTPUT)).unwrap();
        let mut run = Run::start(&bench);
        let epochs = usize::try_from(mix(1, draw) % 30).unwrap();
        let what = format!("draw {draw}: {role} after {epochs} epochs");
        assert!(run.wait_for(epochs.max(1)), "{what}");
        std::thread::sleep(Duration::from_micros(mix(2, draw) % 20_000));
        let children = [run.pids("worker"), run.pids("server")].concat();
        let pid = match role {
            "launcher" => run.child.id(),
            role => {
                let pids = run.pids(role);
                let which = usize::try_from(mix(3, draw)).unwrap() % pids.len().max(1);
                pids.get(which).copied().unwrap_or(run.child.id())
            }
        };
        signal("KILL", pid);
        let outcome = run.end();
        if role == "launcher" {
            assert_ne!(outcome.code, 0, "{what}");
        } else if ends && role == "worker" {
            let line = outcome.stderr.trim_end();
            assert_eq!(
                (outcome.code, line.lines().count()),
                (1, 1),
                "{what}: {outcome:#?}"
            );
            assert!(
                line.contains(" was lost: signal: 9 (SIGKILL)"),
                "{what}: {line}"
            );
        } else {
            assert_eq!(outcome.code, 0, "{what}: {outcome:#?}");
            assert!(outcome.stderr.contains("was lost"), "{what}: {outcome:#?}");
        }
        bench.run(&restarting, &["--stage", "train"]).ok();
        assert_same_bytes(&expected, &bench.data_files(OUTPUT), &what);
        assert_eq!(losses(&bench), all_losses, "{what}");
        assert!(
            !children.into_iter().any(is_alive),
            "{what}: a process stayed"
        );
    }
}

#[test]
fn a_stopped_process_is_noticed() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&long_job(&graph, ""), &[]).ok();
    let expected = bench.data_files(OUTPUT);
    for (role, policy) in [("worker", "end"), ("worker", "restart"), ("server", "end")] {
        let more = format!("timeout_ms = 1500\nworker_failure = \"{policy}\"");
        bench.write(&long_job(&graph, &more));
        fs::remove_dir_all(bench.path(OUTPUT)).unwrap();
        let mut run = Run::start(&bench);
        assert!(run.wait_for(3));
        let pid = run.pids(role)[1];
        signal("STOP", pid);
        let outcome = run.end();
        assert!(!is_alive(pid), "{role} is still there");
        let text = &outcome.stderr;
        if (role, policy) == ("worker", "end") {
            assert_eq!(outcome.code, 1, "{outcome:#?}");
            let problem = "worker 1 was lost: no sign of life for 1.5 s";
            assert!(text.contains(problem), "{text}");
        } else {
            assert_eq!(outcome.code, 0, "{outcome:#?}");
            assert!(text.contains("was lost"), "{text}");
        }
        bench
            .run(&long_job(&graph, &more), &["--stage", "train"])
            .ok();
        assert_same_bytes(&expected, &bench.data_files(OUTPUT), role);
    }
}

/// A run that lives so long hangs.
const HANGS_AFTER: Duration = Duration::from_secs(120);

#[test]
fn a_process_that_is_lost_again_and_again_ends_the_training() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench
        .run(&long_job(&graph, ""), &["--stage", "flatten"])
        .ok();
    for (role, policy) in [
        ("worker", "restart"),
        ("server", "restart"),
        ("server", "end"),
    ] {
        let job = long_job(&graph, &format!("worker_failure = \"{policy}\""));
        bench.write(&job.with("epochs = 200", "epochs = 5000"));
        let mut run = Run::start(&bench);
        let started = Instant::now();
        // Whatever it is up to, it does not come far.
        while run.child.try_wait().unwrap().is_none() {
            if started.elapsed() > HANGS_AFTER {
                run.child.kill().unwrap();
                panic!("{role}, {policy}: the run hangs");
            }
            let pids = run.pids(role);
            pids.into_iter().take(1).for_each(|pid| signal("KILL", pid));
        }
        let outcome = run.end();
        assert_eq!(outcome.code, 1, "{outcome:#?}");
        let line = outcome.stderr.lines().last().unwrap_or_default();
        assert!(
            line.starts_with("error: ") && line.contains(" was lost: "),
            "{line}"
        );
        assert!(line.contains(role), "{line}");
    }
}

#[test]
fn errors_of_a_worker_read_as_those_of_a_thread() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&job(&graph, 2, ""), &["--stage", "flatten"]).ok();
    // The part is there for the launcher's checks, and broken for whoever decodes it.
    let parts = bench.path("out/features");
    let broken = crate::harness::files_below(&parts);
    let part = broken
        .iter()
        .find(|path| path.to_string_lossy().ends_with(".parquet"))
        .unwrap();
    let bytes = fs::read(part).unwrap();
    fs::write(
        part,
        [&bytes[..bytes.len() / 2], &bytes[bytes.len() / 2 + 1..]].concat(),
    )
    .unwrap();
    let texts = ["", PROCESSES].map(|launch| {
        let outcome = train(&bench, &job(&graph, 2, launch));
        assert_ne!(outcome.code, 0);
        (outcome.code, outcome.stderr)
    });
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn a_process_of_a_training_cannot_be_started_by_hand() {
    let bench = Bench::empty();
    for role in ["worker", "server"] {
        let outcome = bench.graphflat(&["train-process", role, "0"]);
        let expected = "error: `train-process` is started by `graphflat run`, not by hand\n";
        assert_eq!((outcome.code, outcome.stderr.as_str()), (2, expected));
    }
    let help = bench.graphflat(&["--help"]).ok().stdout;
    assert!(!help.contains("train-process"), "{help}");
}

/// Every event of an epoch tells what the stages of all workers were busy.
#[test]
fn busy_seconds_of_processes_are_reported() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&job(&graph, 2, PROCESSES), &[]).ok();
    let epochs = &bench.manifest(OUTPUT)["report"]["epochs"];
    for epoch in epochs.as_array().unwrap() {
        let seconds = |stage| epoch["busy"][stage].as_f64().unwrap_or_default();
        assert!(seconds("compute") > 0.0, "{epoch}");
    }
    assert!(matches!(epochs, Value::Array(all) if all.len() == 6));
}
