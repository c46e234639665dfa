//! Runs that end early: killed, interrupted, without threads, after a lost process.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, Outcome, TRAIN, assert_same_bytes,
    files_below, mix,
};
use crate::hosts::{Hosts, end, send_signal, wait_until};
use crate::needs::skip;

/// Longest wait for an event that must happen: a limit, not a measure of speed.
const LONG: Duration = Duration::from_secs(60);

const OUTPUTS: [&str; 3] = ["out/features", "out/model", "out/embeddings"];

/// Number of random attempts: more if slow tests run.
fn draws(few: usize, many: usize) -> usize {
    match std::env::var_os("GRAPHFLAT_TEST_SLOW") {
        None => few,
        Some(_) => many,
    }
}

fn graph() -> Graph {
    Graph::new(600, IdKind::Utf8, FeatureKind::List).with_weights()
}

/// A job with `epochs` epochs, whose stages last long enough to be interrupted.
fn job(graph: &Graph, epochs: u32) -> Job {
    let flatten = FLATTEN.replace("targets_per_part = 16", "targets_per_part = 1");
    let train = TRAIN.replace("epochs = 4", &format!("epochs = {epochs}"));
    Job::new(graph, &[&flatten, &train, INFER])
        .with("workers = 2", "workers = 1")
        .with("batch_size = 16", "batch_size = 4\nworkers = 3")
        .and("rows_per_part = 8")
}

/// The processes that a launcher has started.
fn children(launcher: &Child) -> Vec<u32> {
    let path = format!("/proc/{0}/task/{0}/children", launcher.id());
    let listed = fs::read_to_string(path).unwrap_or_default();
    listed.split_whitespace().flat_map(str::parse).collect()
}

/// Tells whether a process exists and is no zombie.
fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

fn signal(name: &str, pid: u32) {
    // The process may have ended on its own.
    let mut kill = Command::new("kill");
    kill.args([name, &pid.to_string()]).stderr(Stdio::null());
    kill.status().unwrap();
}

fn start(bench: &Bench, args: &[&str]) -> Child {
    let args = [&["run", "job.toml", "--quiet"], args].concat();
    bench.command(&args).spawn().unwrap()
}

/// Waits until the first file of a stage's output exists.
fn wait_for_output(bench: &Bench, output: &str) {
    let dir = bench.path(output).join("_progress");
    wait_until(output, LONG, || dir.exists());
}

/// Temporary files and locks that a run has left.
fn left(dir: &Path) -> Vec<String> {
    let is_left = |path: &String| {
        let name = path.rsplit('/').next().unwrap_or_default();
        path.contains("/tmp/") || name.ends_with(".tmp") || name == "_lock"
    };
    let files = files_below(dir).into_iter();
    let names = files.map(|path| path.strip_prefix(dir).unwrap().display().to_string());
    names.filter(is_left).collect()
}

/// The children of the first process end with it, however early it is killed.
#[test]
fn a_launcher_that_is_killed_takes_its_children_along() {
    let bench = Bench::new(&graph());
    bench.write(&job(&graph(), 4));
    for draw in 0..draws(6, 60) as u64 {
        let mut launcher = start(&bench, &["--processes", "4", "--start-timeout", "3600"]);
        wait_until("a child", LONG, || !children(&launcher).is_empty());
        std::thread::sleep(Duration::from_micros(mix(51, draw) % 60_000));
        // A stopped child keeps the processes from meeting.
        let started = children(&launcher);
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        for child in started {
            wait_until("the end of a child", LONG, || !is_alive(child));
        }
        bench.clear();
    }
}

/// An interrupted run prints one line and leaves no temporary file, and the next run continues it:
/// at every stage, in one process and in several.
#[test]
fn interrupted_runs_say_so_and_go_on() {
    let bench = Bench::new(&graph());
    let job = job(&graph(), 60);
    bench.run(&job, &[]).ok();
    let expected = OUTPUTS.map(|output| bench.data_files(output));
    for (draw, output) in OUTPUTS.into_iter().cycle().take(draws(4, 12)).enumerate() {
        bench.clear();
        let processes: &[&str] = match draw % 4 {
            0 | 3 => &[],
            _ => &["--processes", "3"],
        };
        let launcher = start(&bench, processes);
        wait_for_output(&bench, output);
        let started = children(&launcher);
        let (name, signal, code) = match draw % 2 {
            0 => ("SIGTERM", "-TERM", 143),
            _ => ("SIGINT", "-INT", 130),
        };
        send_signal(&launcher, signal);
        let outcome = end(launcher);
        let what = format!("{output}, {processes:?}, {name}: {outcome:?}");
        if outcome.code == 0 {
            continue; // it had finished
        }
        assert_eq!(outcome.code, code, "{what}");
        let line = format!("interrupted by {name}; run again to go on\n");
        assert_eq!(outcome.stderr, line, "{what}");
        assert_eq!(left(&bench.path("out")), Vec::<String>::new(), "{what}");
        for child in started {
            assert!(!is_alive(child), "{what}");
        }
        bench.run(&job, processes).ok();
        for (files, written) in expected.iter().zip(OUTPUTS) {
            assert_same_bytes(files, &bench.data_files(written), &what);
        }
    }
}

/// A signal to one process of a hosts file ends all of them, with the signal's exit code.
#[test]
fn an_interrupted_process_ends_all() {
    let bench = Bench::new(&graph());
    bench.write(&job(&graph(), 100_000));
    let hosts = Hosts::new(&bench, 3);
    let start = |process| hosts.start(&bench, process, &["--quiet"]);
    let running: Vec<Child> = (0..3).map(start).collect();
    wait_for_output(&bench, "out/model");
    send_signal(&running[1], "-TERM");
    for (process, outcome) in running.into_iter().map(end).enumerate() {
        assert_eq!(outcome.code, 143, "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
        let told = "interrupted by SIGTERM; run again to go on\n";
        assert!(outcome.stderr.ends_with(told), "{outcome:?}");
        let names_it = outcome.stderr.starts_with("process 1 (127.0.0.1:");
        assert_eq!(names_it, process != 1, "{outcome:?}");
    }
}

/// Ctrl-C reaches every process of a terminal; the program prints one line all the same.
#[test]
fn ctrl_c_in_a_terminal_is_one_line() {
    let bench = Bench::new(&graph());
    bench.write(&job(&graph(), 100_000));
    for _ in 0..draws(2, 10) {
        let args = ["run", "job.toml", "--quiet", "--processes", "3"];
        let launcher = bench.command(&args).process_group(0).spawn().unwrap();
        wait_for_output(&bench, "out/model");
        let started = children(&launcher);
        assert_eq!(started.len(), 2);
        let group = format!("-{}", launcher.id());
        let mut kill = Command::new("kill");
        assert!(
            kill.args(["-INT", "--", &group])
                .status()
                .unwrap()
                .success()
        );
        let outcome = end(launcher);
        assert_eq!(outcome.code, 130, "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
        let told = "interrupted by SIGINT; run again to go on\n";
        assert!(outcome.stderr.ends_with(told), "{outcome:?}");
        started
            .into_iter()
            .for_each(|child| assert!(!is_alive(child)));
        bench.clear();
    }
}

/// After the first signal the processes remove their files; a second signal ends them at once.
#[test]
fn a_second_signal_ends_at_once() {
    let bench = Bench::new(&graph());
    bench.write(&job(&graph(), 100_000));
    let launcher = start(&bench, &["--processes", "3"]);
    wait_for_output(&bench, "out/model");
    let stopped = children(&launcher)[0];
    signal("-STOP", stopped);
    send_signal(&launcher, "-TERM");
    wait_until("the first line", LONG, || {
        let status = fs::read_to_string(format!("/proc/{}/status", launcher.id()));
        // The handler has run, and is no longer pending.
        status.is_ok_and(|text| text.contains("SigPnd:\t0000000000000000"))
    });
    send_signal(&launcher, "-TERM");
    assert_eq!(end(launcher).code, 143);
    signal("-CONT", stopped);
    wait_until("the end of a child", LONG, || !is_alive(stopped));
}

/// The system sends process 1 of a container only signals that it handles.
#[test]
fn process_1_of_a_container_heeds_signals() {
    let bench = Bench::new(&graph());
    bench.write(&job(&graph(), 100_000));
    for processes in [&[][..], &["--processes", "2"]] {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", env!("CARGO_BIN_EXE_graphflat")]);
        command.args(["run", "job.toml", "--quiet"]).args(processes);
        command.current_dir(bench.path("")).stderr(Stdio::piped());
        let Ok(mut outer) = command.spawn() else {
            skip::<()>("a process 1, which needs unshare");
            return;
        };
        let begun = Instant::now();
        while !bench.path("out/model/_progress").exists() {
            if outer.try_wait().unwrap().is_some() {
                skip::<()>("a process 1, which this user may not make (unshare, as root)");
                return;
            }
            assert!(begun.elapsed() < LONG, "the training does not begin");
            std::thread::sleep(Duration::from_millis(5));
        }
        let first = children(&outer)[0];
        signal("-TERM", first);
        let outcome = end(outer);
        assert_eq!(outcome.code, 143, "{outcome:?}");
        assert_eq!(
            outcome.stderr,
            "interrupted by SIGTERM; run again to go on\n"
        );
        bench.clear();
    }
}

/// A job that has lost a process is started again, and ends with the same bytes.
#[test]
fn a_job_goes_on_after_a_lost_process() {
    let bench = Bench::new(&graph());
    let job = job(&graph(), 40);
    bench.run(&job, &[]).ok();
    let expected = OUTPUTS.map(|output| bench.data_files(output));
    let (mut restarted, kills) = (0, draws(3, 9));
    for (draw, output) in OUTPUTS.into_iter().cycle().take(kills).enumerate() {
        bench.clear();
        let args = ["--processes", "3", "--restarts", "2", "--fresh"];
        let launcher = start(&bench, &args);
        wait_for_output(&bench, output);
        std::thread::sleep(Duration::from_micros(mix(61, draw as u64) % 20_000));
        let started = children(&launcher);
        let victim = started.get(draw % 2).copied();
        victim.into_iter().for_each(|pid| signal("-KILL", pid));
        let outcome = end(launcher);
        let what = format!("draw {draw}, {output}: {outcome:?}");
        assert_eq!(outcome.code, 0, "{what}");
        let lost = format!("warning: lost process {} (127.0.0.1:", draw % 2 + 1);
        let is_told = outcome.stderr.contains(&lost);
        assert_eq!(
            is_told,
            outcome.stderr.contains("is started again"),
            "{what}"
        );
        restarted += usize::from(is_told);
        for (files, written) in expected.iter().zip(OUTPUTS) {
            assert_same_bytes(files, &bench.data_files(written), &what);
        }
    }
    assert!(
        restarted > kills / 2,
        "most kills came in time: {restarted}"
    );
}

/// A job with `--fresh` that has lost a process continues its new work when it is started again,
/// and keeps no output of an earlier run, of the same plan or of another.
#[test]
fn a_fresh_job_that_lost_a_process_stays_fresh() {
    let bench = Bench::new(&graph());
    let job = job(&graph(), 40);
    bench.run(&job, &[]).ok();
    let expected = OUTPUTS.map(|output| bench.data_files(output));
    let other = job.with("seed = 7", "seed = 8");
    for (earlier, lost_at) in [(&job, 1), (&job, 0), (&other, 0), (&other, 1)] {
        bench.clear();
        bench.run(earlier, &[]).ok();
        // The files of the earlier run get other bytes of the same size, which no new run writes.
        spoil(&bench, &OUTPUTS);
        bench.write(&job);
        let args = [
            "run",
            "job.toml",
            "--processes",
            "3",
            "--restarts",
            "1",
            "--fresh",
        ];
        let launcher = bench.command(&args).spawn().unwrap();
        let begun = bench
            .path(OUTPUTS[lost_at])
            .join("_new/_progress/plan.json");
        wait_until("the new output", LONG, || begun.exists());
        let victim = children(&launcher)[0];
        signal("-KILL", victim);
        let outcome = end(launcher);
        let what = format!("lost at {}: {outcome:?}", OUTPUTS[lost_at]);
        assert_eq!(outcome.code, 0, "{what}");
        let (_, again) = outcome.stderr.split_once("is started again").expect(&what);
        for (number, (files, written)) in expected.iter().zip(OUTPUTS).enumerate() {
            assert_same_bytes(files, &bench.data_files(written), &what);
            let is_kept = again
                .lines()
                .any(|line| line.contains(written) && line.ends_with("finished before"));
            assert_eq!(is_kept, number < lost_at, "{written}, {what}");
        }
    }
}

/// A restart starts the stage over that was running, if that one has removed what it had begun.
#[test]
fn a_restart_starts_over_what_was_not_begun() {
    let bench = Bench::new(&graph());
    let job = job(&graph(), 4);
    bench.run(&job, &[]).ok();
    let expected = OUTPUTS.map(|output| bench.data_files(output));
    let other = job.with("seed = 7", "seed = 8");
    let of_train = ["--begun-stage", "train", "--fresh-stages", "infer"];
    let of_flatten = ["--begun-stage", "flatten", "--fresh-stages", "train,infer"];
    for (earlier, args, num_kept) in [(&job, of_train, 1), (&other, of_flatten, 0)] {
        bench.clear();
        bench.run(earlier, &[]).ok();
        spoil(&bench, &OUTPUTS[num_kept..]);
        bench.run(&job, &args).ok();
        for (files, written) in expected.iter().zip(OUTPUTS) {
            assert_same_bytes(files, &bench.data_files(written), written);
        }
    }
}

/// Changes a byte in the middle of each data file of some outputs.
fn spoil(bench: &Bench, outputs: &[&str]) {
    for output in outputs {
        for name in bench.data_files(output).into_keys() {
            let path = bench.path(output).join(name);
            let mut bytes = fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, bytes).unwrap();
        }
    }
}

/// Runs with `--json` until it ends, after `disturb` was done while the model is trained. Returns how
/// it ended and its last event.
fn last_event(bench: &Bench, disturb: impl FnOnce(&Child)) -> (Outcome, serde_json::Value) {
    let events = bench.path("events.jsonl");
    let mut command = bench.command(&["run", "job.toml", "--json"]);
    // To a file: a run stands still once nobody empties a pipe.
    let stdout = fs::File::create(&events).unwrap();
    let running = command.stdout(stdout).spawn().unwrap();
    wait_for_output(bench, "out/model");
    disturb(&running);
    let outcome = end(running);
    let text = fs::read_to_string(events).unwrap();
    let last = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    (outcome, last)
}

/// With `--json`, a signal gives an event of the same form as an error.
#[test]
fn a_signal_is_an_event() {
    let bench = Bench::new(&graph());
    bench.write(&job(&graph(), 100_000));
    let (outcome, event) = last_event(&bench, |running| send_signal(running, "-TERM"));
    let told = "interrupted by SIGTERM; run again to go on";
    assert_eq!(outcome.stderr, format!("{told}\n"));
    check_error(&event, told, 143);
}

/// With `--json`, a mapped file that is cut gives an event of the same form as other errors.
#[test]
fn a_store_that_is_cut_is_an_event() {
    let bench = Bench::new(&graph());
    let streamed = job(&graph(), 100_000)
        .with("output = \"out/features\"\n", "")
        .with("layout = \"shards\"\n", "")
        .with("[train]\n", "[train]\nstreamed = true\n");
    bench.write(&streamed);
    let (outcome, event) = last_event(&bench, |_| {
        for path in files_below(&bench.path("work/small/store")) {
            fs::File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(0)
                .unwrap();
        }
    });
    assert_eq!(outcome.code, 1, "{outcome:?}");
    let told = event["message"].as_str().unwrap();
    assert!(told.starts_with("cannot read /"), "{told}");
    assert!(told.contains("the file was cut"), "{told}");
    assert_eq!(outcome.stderr, format!("error: {told}\n"));
    check_error(&event, told, 1);
}

#[track_caller]
fn check_error(event: &serde_json::Value, message: &str, exit_code: u8) {
    assert_eq!(
        (&event["event"], &event["level"]),
        (&"error".into(), &"error".into())
    );
    assert_eq!(event["message"], message);
    assert_eq!(event["exit_code"], exit_code);
    assert_eq!(event["job"], "small");
}

/// The number of restarts is limited, and other failures than a lost process cause no restart.
#[test]
fn restarts_come_to_an_end() {
    let bench = Bench::new(&graph());
    let long = job(&graph(), 100_000);
    bench.write(&long);
    let launcher = start(&bench, &["--processes", "3", "--restarts", "2"]);
    wait_for_output(&bench, "out/model");
    let mut seen = Vec::new();
    for _ in 0..3 {
        // Both children of this start must be seen: a later one would count for the next start.
        let started = || -> Vec<u32> {
            let mut pids = children(&launcher);
            pids.retain(|pid| !seen.contains(pid));
            pids
        };
        wait_until("both children", LONG, || started().len() == 2);
        let pids = started();
        let victim = pids[0];
        seen.extend(pids);
        signal("-KILL", victim);
        wait_until("the end of the children", LONG, || {
            seen.iter().all(|pid| !is_alive(*pid))
        });
    }
    let outcome = end(launcher);
    assert_eq!(outcome.code, 1, "{outcome:?}");
    assert_eq!(
        outcome.stderr.matches("is started again").count(),
        2,
        "{outcome:?}"
    );
    let last = outcome.stderr.lines().last().unwrap();
    assert!(last.starts_with("error: "), "{outcome:?}");
    let wrong = long.with(
        "epochs = 100000",
        "epochs = 12\nlearning_rate = 1000\nweight_decay = 1000\noptimizer = \"sgd\"",
    );
    let diverged = bench.run(&wrong, &["--processes", "2", "--restarts", "2", "--fresh"]);
    assert_eq!(diverged.code, 1, "{diverged:?}");
    assert!(
        diverged.stderr.contains("training diverged"),
        "{diverged:?}"
    );
    assert_eq!(diverged.stderr.lines().count(), 1, "{diverged:?}");
    let refused = bench.graphflat(&["run", "job.toml", "--restarts", "2"]);
    assert_eq!(refused.code, 2, "{refused:?}");
}

/// The other run may end a moment later: the exit code tells a scheduler to run the job again.
#[test]
fn an_output_of_another_run_is_a_failure_that_passes() {
    let bench = Bench::new(&graph());
    bench.write(&job(&graph(), 100_000));
    let mut first = start(&bench, &[]);
    wait_for_output(&bench, "out/model");
    let second = bench.graphflat(&["run", "job.toml", "--quiet", "--stage", "train"]);
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(second.code, 1, "{second:?}");
    let problem = "out/model is being written by another run";
    assert!(second.stderr.contains(problem), "{second:?}");
}

/// A run with fewer processes does not use the stores of one with more.
#[test]
fn work_files_of_another_number_of_processes_go() {
    let bench = Bench::new(&graph());
    let job = job(&graph(), 2);
    let own = |num: usize| (0..num).map(|process| format!("process-{process:03}"));
    let found = || {
        let entries = fs::read_dir(bench.path("work/small")).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("process-"))
            .collect();
        names.sort();
        names
    };
    for (args, num) in [
        (&["--processes", "4"][..], 4),
        (&["--processes", "2", "--fresh"], 2),
        (&["--fresh"], 0),
    ] {
        bench.run(&job, args).ok();
        assert!(own(num).eq(found()), "{args:?}: {:?}", found());
    }
}

/// A user id of this machine that no other program has, so that its limits count this test alone.
const USER: u32 = 61_472;

/// Runs the job as a user who may have `num` processes and threads; none if the system does not
/// allow this test to.
fn run_with_threads(bench: &Bench, num: usize, args: &[&str]) -> Option<Outcome> {
    let mut command = Command::new("bash");
    let script = format!("ulimit -u {num} && exec \"$0\" \"$@\"");
    command.args(["-c", &script, "./graphflat", "run", "job.toml", "--quiet"]);
    command.args(args).uid(USER).current_dir(bench.path(""));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = command.spawn().ok()?;
    let mut stderr = String::new();
    running.stderr.take()?.read_to_string(&mut stderr).ok()?;
    let mut outcome = end(running);
    outcome.stderr = stderr;
    (outcome.code != 126).then_some(outcome)
}

/// If the system refuses threads, a run prints one line about it.
#[test]
fn too_few_threads_are_one_line() {
    let graph = Graph::new(60, IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN, TRAIN, INFER]);
    bench.write(&job);
    // The build may lie in a directory that the other user cannot enter.
    std::fs::copy(env!("CARGO_BIN_EXE_graphflat"), bench.path("graphflat")).unwrap();
    let open = Command::new("chmod")
        .arg("-R")
        .arg("a+rwX")
        .arg(bench.path(""))
        .status();
    assert!(open.unwrap().success());
    let cases = [(&[][..], 2..40), (&["--processes", "3"], 4..80)];
    for (args, limits) in cases {
        let mut refused = 0;
        for num in limits.step_by(draws(4, 1)) {
            let Some(outcome) = run_with_threads(&bench, num, args) else {
                skip::<()>("few threads, which need another user (as root)");
                return;
            };
            let what = format!("{num} threads, {args:?}: {outcome:?}");
            assert!(!outcome.stderr.contains("panicked"), "{what}");
            assert!(matches!(outcome.code, 0 | 1), "{what}");
            if outcome.code == 1 {
                refused += 1;
                assert_eq!(outcome.stderr.lines().count(), 1, "{what}");
                assert!(outcome.stderr.starts_with("error: "), "{what}");
                let named = outcome.stderr.contains("thread") || outcome.stderr.contains("process");
                assert!(named, "{what}");
            }
        }
        assert!(refused > 0, "some limits are too low: {refused}");
        let enough = run_with_threads(&bench, 500, args);
        assert_eq!(enough.map(|outcome| outcome.code), Some(0));
        bench.clear();
    }
}
