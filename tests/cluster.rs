//! One job in several processes writes the bytes of one process, even if processes are killed or
//! stopped, or strangers connect.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, Outcome, TRAIN, assert_same_bytes, mix,
};
#[cfg(target_os = "linux")]
use crate::hosts::Net;
use crate::hosts::{Hosts, LOSS_MAX, SECRET, end, end_within, send_signal, wait_for, wait_until};
use crate::needs::slow;

const OUTPUT: &str = "out/features";
/// Variable with the number of processes to kill; a few if it is not set.
const KILLS: &str = "GRAPHFLAT_TEST_KILLS";

/// A graph with nodes for all processes, and a hub that is split.
fn graph(ids: IdKind, features: FeatureKind) -> Graph {
    Graph::new(150, ids, features).with_weights()
}

fn job(graph: &Graph, layout: &str) -> Job {
    let flatten = FLATTEN.replace("shards", layout);
    Job::new(graph, &[&flatten])
        .and("hub_threshold = 20")
        .with("workers = 2", "workers = 1")
}

/// Runs the job in one process; returns its data files.
fn alone(bench: &Bench, job: &Job) -> BTreeMap<String, Vec<u8>> {
    bench.run(job, &["--fresh"]).ok();
    bench.data_files(OUTPUT)
}

#[test]
fn processes_write_the_bytes_of_one() {
    for (ids, features) in [
        (IdKind::Utf8, FeatureKind::List),
        (IdKind::Int64, FeatureKind::Sparse),
        (IdKind::Utf8, FeatureKind::None),
    ] {
        let graph = graph(ids, features);
        let bench = Bench::new(&graph);
        for layout in ["shards", "rows"] {
            let job = job(&graph, layout);
            let expected = alone(&bench, &job);
            let report = bench.manifest(OUTPUT)["report"]["hubs"].clone();
            assert!(!report.as_array().unwrap().is_empty());
            for (processes, workers) in [("2", "1"), ("3", "2"), ("4", "1")] {
                let args = ["--fresh", "--processes", processes, "--workers", workers];
                bench.run(&job, &args).ok();
                let what = format!("{ids:?}, {features:?}, {layout}, {processes} processes");
                assert_same_bytes(&expected, &bench.data_files(OUTPUT), &what);
                assert_eq!(report, bench.manifest(OUTPUT)["report"]["hubs"], "{what}");
            }
        }
    }
}

/// All processes see that an output is finished, and reuse a store if all its parts exist.
#[test]
fn nothing_is_done_twice() {
    let graph = graph(IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let job = job(&graph, "shards");
    let processes = ["--processes", "3"];
    bench.run(&job, &processes).ok();
    let expected = bench.data_files(OUTPUT);
    let manifest = bench.manifest(OUTPUT);
    let again = bench
        .graphflat(&["run", "job.toml", "--processes", "3"])
        .ok();
    assert!(again.stderr.contains("finished before"), "{}", again.stderr);
    assert!(!again.stderr.contains("numbering"), "{}", again.stderr);
    assert_eq!(manifest, bench.manifest(OUTPUT));
    // If one part of the store is damaged, all processes build the store again.
    let part = bench.path("work/small/process-001/store/nodes-001.arrow");
    std::fs::write(&part, b"nothing").unwrap();
    std::fs::remove_dir_all(bench.path("out")).unwrap();
    bench.run(&job, &processes).ok();
    assert_same_bytes(&expected, &bench.data_files(OUTPUT), "after damage");
}

/// If any process dies, all others end and name it; the next run ends with the same rows.
#[test]
fn a_process_that_is_killed_ends_the_job_and_the_next_run_goes_on() {
    if !slow() {
        return;
    }
    let graph = Graph::new(600, IdKind::Utf8, FeatureKind::List).with_weights();
    let bench = Bench::new(&graph);
    let job = job(&graph, "shards").with("targets_per_part = 16", "targets_per_part = 4");
    let said = survive_kills(&bench, &job, ("flatten", "flatten, wave "), OUTPUT);
    let names_round = |text: &String| text.contains(", round ");
    assert!(said.iter().any(names_round), "{said:?}");
}

/// Kills processes of a stage, one in each run, and runs the job again: it must end with the bytes
/// of one process, and must not repeat finished work. Only kills while the others were at `phase`
/// count. Returns the messages of the others.
pub(crate) fn survive_kills(
    bench: &Bench,
    job: &Job,
    (name, phase): (&str, &str),
    output: &str,
) -> Vec<String> {
    let stage = ["--stage", name];
    bench.write(job);
    let first_step = |args: &[&str]| {
        let run = [&["run", "job.toml", "--json"], &stage[..], args].concat();
        let events = bench.graphflat(&run).ok().events();
        let is_step = |event: &&serde_json::Value| {
            event["stage"] == name && (event["phase"] == "round" || event["phase"] == "epoch")
        };
        let step = events.iter().find(is_step);
        step.map(|event| event["done"].as_u64().unwrap())
    };
    let started = Instant::now();
    let first = first_step(&["--fresh"]);
    let mut whole = started.elapsed();
    let expected = bench.data_files(output);
    let (mut killed, mut draw, mut gone_on) = (0, 0, 0);
    let mut said = Vec::new();
    let kills = std::env::var(KILLS).map_or(12, |kills| kills.parse().unwrap());
    while killed < kills {
        draw += 1;
        // A finished output would leave nothing to do for the next run.
        std::fs::remove_dir_all(bench.path(output)).unwrap();
        let args = [&stage[..], &["--fresh", "--start-timeout", "3"]].concat();
        let share = mix(41, draw) % 2000;
        let wait = whole.mul_f64(share as f64 / 1000.0);
        let victim = usize::try_from(mix(43, draw) % 3).unwrap();
        let (addresses, outcomes) = kill_one(bench, &args, victim, wait);
        let left = || outcomes.iter().enumerate().filter(|(p, _)| *p != victim);
        let is_late = left().all(|(_, outcome)| outcome.code == 0);
        let mut is_missed = false;
        for (process, outcome) in left() {
            if outcome.code == 0 {
                continue;
            }
            let all = format!("draw {draw}, process {process} after {victim} in {outcomes:?}");
            assert_eq!(outcome.code, 1, "{all}");
            let missed = format!("lost process {victim} ({})", addresses[victim]);
            let is_lost = outcome.stderr.contains(&missed);
            // A process that was killed before all had met is reported as not connected.
            let is_missing = outcome.stderr.contains("not there within 3 s");
            assert!(is_lost || is_missing, "{all}");
            is_missed |= is_lost && outcome.stderr.contains(&format!(" was at {phase}"));
            said.push(outcome.stderr.clone());
        }
        killed += usize::from(is_missed);
        // The load of the machine changes after the job was timed: kills that come too late or too
        // early move the next ones.
        whole = whole.mul_f64(match (is_late, is_missed) {
            (true, _) => 0.9,
            (false, false) => 1.1,
            (false, true) => 1.0,
        });
        let committed = committed_files(bench, output);
        let step = first_step(&["--processes", "3"]);
        assert_same_bytes(
            &expected,
            &bench.data_files(output),
            &format!("draw {draw}"),
        );
        for (path, written) in &committed {
            assert_eq!(
                *written,
                modified(path),
                "{} is written twice",
                path.display()
            );
        }
        gone_on += usize::from(!is_late && (!committed.is_empty() || step > first));
    }
    assert!(gone_on > 0, "every run began anew");
    said
}

/// Starts three processes and kills one after `wait`. Returns the addresses of all, and how they
/// ended.
fn kill_one(
    bench: &Bench,
    args: &[&str],
    victim: usize,
    wait: Duration,
) -> (Vec<String>, Vec<Outcome>) {
    let hosts = Hosts::new(bench, 3);
    let mut children: Vec<Child> = (0..3).map(|p| hosts.start(bench, p, args)).collect();
    std::thread::sleep(wait);
    children[victim].kill().unwrap();
    let ended = children
        .into_iter()
        .map(|child| end_within(child, LOSS_MAX));
    (hosts.addresses, ended.collect())
}

/// Returns the files of an unfinished output's committed parts, and when they were written.
fn committed_files(bench: &Bench, output: &str) -> BTreeMap<PathBuf, SystemTime> {
    let dir = bench.path(output);
    let mut files = BTreeMap::new();
    for note in bench.committed_notes(output) {
        let note: serde_json::Value =
            serde_json::from_slice(&std::fs::read(note).unwrap()).unwrap();
        for file in note["part"]["files"].as_array().unwrap() {
            let path = dir.join(file["path"].as_str().unwrap());
            let written = modified(&path);
            files.insert(path, written);
        }
    }
    files
}

fn modified(path: &Path) -> SystemTime {
    path.metadata().unwrap().modified().unwrap()
}

/// The loss of a connected process is noticed while others have not connected yet.
#[cfg(target_os = "linux")]
#[test]
fn a_process_is_missed_before_all_have_met() {
    if !slow() {
        return;
    }
    let graph = graph(IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    bench.write(&job(&graph, "rows"));
    for (signal, said) in [("-KILL", "it is gone"), ("-STOP", "it says nothing")] {
        let hosts = Hosts::new(&bench, 3);
        let children = [0, 1].map(|process| hosts.start(&bench, process, &[]));
        let (_, port) = hosts.addresses[0].rsplit_once(':').unwrap();
        // State 1 of a socket: connected.
        let connected = format!(":{:04X} 01 ", port.parse::<u16>().unwrap());
        wait_until("a connection", Duration::from_secs(30), || {
            let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
            sockets.contains(&connected)
        });
        std::thread::sleep(Duration::from_secs(3)); // time for the handshake
        let [first, mut second] = children;
        send_signal(&second, signal);
        // The start timeout is a minute: the loss must be noticed earlier.
        let outcome = end_within(first, LOSS_MAX);
        second.kill().ok();
        second.wait().unwrap();
        assert_eq!(outcome.code, 1, "{outcome:?}");
        let lost = format!("lost process 1 ({}): {said}", hosts.addresses[1]);
        assert!(outcome.stderr.contains(&lost), "{outcome:?}");
        assert!(
            outcome.stderr.contains("was at the start of the job"),
            "{outcome:?}"
        );
    }
}

/// Only the same build understands the messages between processes.
#[test]
fn another_build_is_refused() {
    let graph = graph(IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    bench.write(&job(&graph, "rows"));
    let other = bench.path("other");
    let mut program = std::fs::read(env!("CARGO_BIN_EXE_graphflat")).unwrap();
    program.push(0); // after the loaded part of the file
    std::fs::write(&other, program).unwrap();
    let permissions = std::fs::metadata(env!("CARGO_BIN_EXE_graphflat"))
        .unwrap()
        .permissions();
    std::fs::set_permissions(&other, permissions).unwrap();
    let hosts = Hosts::new(&bench, 2);
    let first = hosts.start(&bench, 0, &["--start-timeout", "10"]);
    let same = hosts.command(&bench, 1, &["--start-timeout", "10"]);
    let mut second = Command::new(&other);
    second.args(same.get_args()).current_dir(bench.path("."));
    second
        .env("GRAPHFLAT_SECRET", SECRET)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let second = end(second.spawn().unwrap());
    assert_eq!(second.code, 1, "{second:?}");
    assert!(
        second.stderr.contains("is another build of the program"),
        "{second:?}"
    );
    let first = end(first);
    assert_eq!(first.code, 1, "{first:?}");
    assert!(
        first.stderr.contains("is another build of the program"),
        "{first:?}"
    );
}

/// A stopped process is noticed like a killed one.
#[cfg(unix)]
#[test]
fn a_process_that_is_stopped_ends_the_job() {
    if !slow() {
        return;
    }
    let graph = Graph::new(600, IdKind::Utf8, FeatureKind::List).with_weights();
    let bench = Bench::new(&graph);
    let job = job(&graph, "rows").with("targets_per_part = 16", "targets_per_part = 1");
    let expected = alone(&bench, &job);
    bench.clear();
    let hosts = Hosts::new(&bench, 3);
    let children: Vec<Child> = (0..3)
        .map(|p| hosts.start(&bench, p, &["--fresh"]))
        .collect();
    wait_for(
        &bench.path("out/features/_progress"),
        Duration::from_secs(30),
    );
    stop_one(&hosts, children, 1, "");
    bench.run(&job, &["--processes", "3"]).ok();
    assert_same_bytes(&expected, &bench.data_files(OUTPUT), "after a stop");
}

/// Stops a process: the others must end in time and name it and their phase. When it continues, it
/// must notice that the others are gone, and end.
#[cfg(unix)]
pub(crate) fn stop_one(hosts: &Hosts, mut children: Vec<Child>, victim: usize, phase: &str) {
    let stopped = children.remove(victim);
    send_signal(&stopped, "-STOP");
    let missed = format!(
        "lost process {victim} ({}): it says nothing",
        hosts.addresses[victim]
    );
    for child in children {
        let outcome = end_within(child, LOSS_MAX);
        assert_eq!(outcome.code, 1, "{outcome:?}");
        assert!(outcome.stderr.contains(&missed), "{outcome:?}");
        let was_at = format!(" was at {phase}");
        assert!(outcome.stderr.contains(&was_at), "{outcome:?}");
    }
    send_signal(&stopped, "-CONT");
    let woken = end_within(stopped, LOSS_MAX);
    assert_eq!(woken.code, 1, "{woken:?}");
}

/// All processes report the error of the one that failed.
#[test]
fn a_process_that_fails_says_why_to_all() {
    let graph = graph(IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let mut edges = graph.edge_table();
    let unknown = graph.edges.len() - 1;
    let ids = |at: usize| if at == unknown { 77 } else { -30_000_000 };
    let dst = arrow::array::Int64Array::from_iter_values((0..graph.edges.len()).map(ids));
    edges.set("dst", std::sync::Arc::new(dst));
    edges.write(&bench.path("edges.parquet"));
    bench.write(&job(&graph, "rows"));
    let hosts = Hosts::new(&bench, 3);
    let children: Vec<Child> = (0..3).map(|p| hosts.start(&bench, p, &[])).collect();
    for outcome in children.into_iter().map(end) {
        assert_eq!(outcome.code, 3, "{outcome:?}");
        assert!(outcome.stderr.contains("no node has the id"), "{outcome:?}");
    }
}

#[test]
fn processes_that_do_not_belong_together_say_why() {
    let graph = graph(IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    bench.write(&job(&graph, "rows"));
    let pair = |args: [&[&str]; 2], secret: &str| {
        let hosts = Hosts::new(&bench, 2);
        let first = [args[0], &["--start-timeout", "3"]].concat();
        let first = hosts.start(&bench, 0, &first);
        let later = [args[1], &["--start-timeout", "3"]].concat();
        let mut second = hosts.command(&bench, 1, &later);
        let second = second.env("GRAPHFLAT_SECRET", secret).spawn().unwrap();
        let outcomes = [end(first), end(second)];
        outcomes
            .iter()
            .for_each(|outcome| assert_eq!(outcome.code, 1, "{outcome:?}"));
        outcomes.map(|outcome| outcome.stderr)
    };
    let [told, stranger] = pair([&[], &[]], "another secret, long enough");
    assert!(told.contains("not there within 3 s: process 1"), "{told}");
    assert!(told.contains("does not know the secret"), "{told}");
    assert!(stranger.contains("another secret"), "{stranger}");
    for (args, problem) in [
        ([&["--set", "seed=8"][..], &[][..]], "runs another job"),
        ([&[], &["--workers", "2"]], "workers"),
        ([&["--fresh"], &[]], "runs another job"),
    ] {
        let [first, second] = pair(args, SECRET);
        assert!(first.contains(problem), "{first}");
        assert!(second.contains("process 0 (127.0.0.1"), "{second}");
        assert!(second.contains(problem), "{second}");
    }
    assert!(!bench.path("out").exists(), "nothing was begun");
}

#[test]
fn arguments_that_cannot_be_are_refused() {
    let graph = graph(IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    bench.write(&Job::new(&graph, &[FLATTEN, TRAIN, INFER]).and("method = \"neighborhoods\""));
    std::fs::write(bench.path("one.txt"), "localhost\n").unwrap();
    std::fs::write(bench.path("two.txt"), "localhost:7000\nlocalhost:7001\n").unwrap();
    std::fs::write(bench.path("short"), "short\n").unwrap();
    let flatten = ["--stage", "flatten"];
    for (args, problem) in [
        (
            &["--processes", "2"][..],
            "`infer.method`: \"neighborhoods\" runs in one process only",
        ),
        (
            &["--hosts", "one.txt", "--process", "0"],
            "line 1 is `localhost`; allowed is host:port",
        ),
        (
            &["--hosts", "two.txt", "--process", "2"],
            "is 2; allowed is 0 to 1",
        ),
        (
            &["--hosts", "none.txt", "--process", "0"],
            "cannot read none.txt",
        ),
        (
            &["--hosts", "two.txt", "--process", "0", "--stage", "flatten"],
            "set GRAPHFLAT_SECRET",
        ),
        (
            &[
                "--hosts",
                "two.txt",
                "--process",
                "1",
                "--secret-file",
                "short",
                "--stage",
                "flatten",
            ],
            "is too short; at least 16 bytes are needed",
        ),
        (&["--process", "1"], "--hosts <FILE>"),
    ] {
        let outcome = bench.graphflat(&[&["run", "job.toml"], args].concat());
        assert_eq!(outcome.code, 2, "{args:?}: {outcome:?}");
        assert!(outcome.stderr.contains(problem), "{args:?}: {outcome:?}");
    }
    bench
        .graphflat(
            &[
                &["run", "job.toml", "--quiet", "--processes", "2"],
                &flatten[..],
            ]
            .concat(),
        )
        .ok();
}

/// A stranger that connects gets no answer, is logged, and does not disturb the job.
#[test]
fn strangers_disturb_nothing() {
    let graph = graph(IdKind::Int64, FeatureKind::List);
    let bench = Bench::new(&graph);
    let job = job(&graph, "shards");
    let expected = alone(&bench, &job);
    bench.clear();
    let hosts = Hosts::new(&bench, 2);
    let first = hosts.start(&bench, 0, &[]);
    let deadline = Instant::now() + Duration::from_secs(30);
    let connect = || loop {
        match TcpStream::connect(&hosts.addresses[0]) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    connect();
    let mut impostor = hosts.command(&bench, 1, &["--start-timeout", "2"]);
    let impostor = impostor.env("GRAPHFLAT_SECRET", "not the secret of the tests");
    let impostor = end(impostor.spawn().unwrap());
    assert_eq!(impostor.code, 1, "{impostor:?}");
    // The flood lasts from before all have met to the end of the job.
    let is_over = AtomicBool::new(false);
    let [first, second] = std::thread::scope(|scope| {
        for address in &hosts.addresses {
            scope.spawn(|| flood(address, &is_over));
        }
        std::thread::sleep(Duration::from_millis(300));
        let second = hosts.start(&bench, 1, &[]);
        let ends = [end(first), end(second)];
        is_over.store(true, Ordering::Relaxed);
        ends
    });
    let [first, second] = [first.ok(), second.ok()];
    assert!(first.stderr.contains("refused connection"), "{first:?}");
    assert!(
        first.stderr.contains("does not know the secret"),
        "{first:?}"
    );
    assert!(second.stderr.contains("refused connection"), "{second:?}");
    assert_same_bytes(&expected, &bench.data_files(OUTPUT), "beside strangers");
}

/// Connects as fast as possible: most connections stay silent and open, some send wrong bytes.
fn flood(address: &str, is_over: &AtomicBool) {
    let mut silent = VecDeque::new();
    for draw in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut stream) = TcpStream::connect(address) else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        match draw % 8 {
            0 => {
                let garbage: Vec<u8> = (0..2000).map(|i| mix(draw, i).to_le_bytes()[0]).collect();
                stream.write_all(&garbage).ok();
            }
            1 => drop(stream.write_all(b"GET / HTTP/1.1\r\n\r\n")),
            // The beginning of a handshake.
            2 => drop(stream.write_all(b"graphflt")),
            _ => silent.push_back(stream),
        }
        // More connections than a process accepts at a time, and fewer than this process may open.
        if silent.len() > 300 {
            silent.pop_front();
        }
    }
}

/// Hosts with their own addresses write the bytes of one process, and end together if the link of
/// one goes down or its disk is full.
#[cfg(target_os = "linux")]
#[test]
fn hosts_work_together_and_end_together() {
    if !slow() {
        return;
    }
    let graph = Graph::new(600, IdKind::Utf8, FeatureKind::List).with_weights();
    let bench = Bench::new(&graph);
    let job = job(&graph, "rows").with("targets_per_part = 16", "targets_per_part = 1");
    let Some(net) = Net::new(&bench, 4) else {
        return;
    };
    let expected = alone(&bench, &job);
    net.run(&bench, &["--fresh"]);
    assert_same_bytes(&expected, &bench.data_files(OUTPUT), "four hosts");

    bench.clear();
    let children: Vec<Child> = (0..4)
        .map(|host| net.start(&bench, host, &["--fresh"]))
        .collect();
    wait_for(
        &bench.path("out/features/_progress/part-00003.json"),
        Duration::from_secs(30),
    );
    net.set_link(2, "down");
    for (host, outcome) in children.into_iter().map(end).enumerate() {
        assert_eq!(outcome.code, 1, "{outcome:?}");
        let is_told = host == 2 || outcome.stderr.contains("lost process 2 (10.213.7.3:7000)");
        assert!(is_told, "{outcome:?}");
    }
    net.set_link(2, "up");
    net.run(&bench, &[]);
    assert_same_bytes(
        &expected,
        &bench.data_files(OUTPUT),
        "after a link was down",
    );

    // Each host has its own loopback: connections between hosts use the addresses of the list.
    let training = Job::new(&graph, &[FLATTEN, TRAIN]).and("workers = 4\nservers = 2");
    bench.run(&training, &["--stage", "train"]).ok();
    let model = bench.data_files("out/model");
    net.run(&bench, &["--stage", "train", "--fresh", "--workers", "1"]);
    assert_same_bytes(&model, &bench.data_files("out/model"), "four hosts train");
    bench.write(&job);
    bench.clear();

    let full = format!("work_dir={}", net.disk.dir.display());
    let mut one_full: Vec<Child> = (0..3)
        .map(|host| net.start(&bench, host, &["--fresh"]))
        .collect();
    one_full.push(net.start(&bench, 3, &["--fresh", "--set", &full]));
    for outcome in one_full.into_iter().map(end) {
        assert_eq!(outcome.code, 1, "{outcome:?}");
        assert!(outcome.stderr.contains("No space left"), "{outcome:?}");
    }
    net.run(&bench, &[]);
    assert_same_bytes(
        &expected,
        &bench.data_files(OUTPUT),
        "after a disk was full",
    );
}
