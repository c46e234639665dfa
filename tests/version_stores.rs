//! Versions on stores: tables of changes, parents and outputs on S3 and HDFS, and kills there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Bench, Job, Outcome, kill, mix};
use crate::incremental::{World, first, full, rows, version};
use crate::incremental_features::{
    Chain as _, features, read as neighbourhoods, version as features_version,
    world as world_of_targets,
};
use crate::needs::slow;
use crate::stores::{Store, assert_tidy};

/// Versions after the first output.
const NIGHTS: usize = 3;

/// Embedding and prediction of each node, as `inspect` prints them.
type Shown = BTreeMap<String, String>;

/// A chain of versions on a store, and the rows of full runs on local files.
struct Chain<'a> {
    store: &'a Store,
    bench: Bench,
    /// `[NIGHTS + 1]`: rows as `inspect` shows them, from the first output.
    expected: Vec<Shown>,
}

/// Finished outputs that a reader has seen, and all its attempts.
#[derive(Default)]
struct Polls {
    whole: AtomicUsize,
    all: AtomicUsize,
}

impl<'a> Chain<'a> {
    /// Puts the tables into the store and runs the jobs without versions on local files.
    fn new(store: &'a Store) -> Self {
        let (bench, mut world) = (Bench::empty(), World::new());
        world.write(&bench, "start");
        let start = first("sage", "").with("\n[incremental]\n", "");
        bench.run(&start, &[]).ok();
        let mut chain = Self {
            store,
            expected: vec![shown(&inspect(&bench, store, "out/v0").ok())],
            bench,
        };
        put(store, &chain.bench, "start");
        for at in 1..=NIGHTS {
            let (night, tables) = (format!("night-{at}"), format!("tables-{at}"));
            world.night().write(&chain.bench, &night);
            world.write(&chain.bench, &tables);
            full(&chain.bench, &tables, "", |job| job);
            let found = inspect(&chain.bench, store, &format!("out/full-{tables}")).ok();
            chain.expected.push(shown(&found));
            put(store, &chain.bench, &night);
        }
        std::fs::remove_dir_all(chain.bench.path("work")).unwrap();
        chain
    }

    /// The first job.
    fn first(&self) -> Job {
        on_store(self.store, &first("sage", ""))
    }

    /// The job of a night; `name` is that of the chain.
    fn night(&self, name: &str, at: usize) -> Job {
        let (own, parent) = (output(name, at), output(name, at - 1));
        let night = format!("night-{at}");
        on_store(self.store, &version(&own, &parent, &[&night], ""))
    }

    fn inspect(&self, output: &str) -> Outcome {
        let url = &self.store.url;
        inspect(&self.bench, self.store, &format!("{url}/out/{output}"))
    }

    /// Checks that a reader sees the whole version of a night, or no finished output; tells which.
    fn is_whole(&self, name: &str, at: usize) -> bool {
        let outcome = self.inspect(&output(name, at));
        if outcome.code != 0 {
            let is_unfinished = outcome.stderr.contains("holds no finished output");
            assert!(is_unfinished, "{name}, {at}: {}", outcome.stderr);
            return false;
        }
        assert!(
            shown(&outcome) == self.expected[at],
            "{name}, {at}: other rows"
        );
        true
    }

    /// Reads the version of a night again and again until `ends` is set.
    fn poll(&self, (name, at): (&str, usize), polls: &Polls, ends: &AtomicBool) {
        while !ends.load(Ordering::Relaxed) {
            let is_whole = self.is_whole(name, at);
            polls.all.fetch_add(1, Ordering::Relaxed);
            polls
                .whole
                .fetch_add(usize::from(is_whole), Ordering::Relaxed);
        }
    }

    /// Runs a job while a reader polls the output of a night.
    fn run_watched(&self, night: (&str, usize), job: &Job, polls: &Polls) {
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| self.poll(night, polls, &ends));
            let outcome = self.store.run(&self.bench, job, &[]);
            ends.store(true, Ordering::Relaxed);
            reader.join().unwrap();
            outcome.ok();
        });
    }
}

/// Copies the tables in a folder of the bench into the store.
fn put(store: &Store, bench: &Bench, folder: &str) {
    for name in ["nodes", "edges"] {
        let name = format!("{folder}/{name}.parquet");
        let bytes = std::fs::read(bench.path(&name)).unwrap();
        store.put(&name, bytes);
    }
}

/// The job with its tables and outputs in the store.
fn on_store(store: &Store, job: &Job) -> Job {
    let places = ["out/", "start/", "night-"];
    let moved = places.iter().fold(job.0.clone(), |text, place| {
        text.replace(&format!("\"{place}"), &format!("\"{}/{place}", store.url))
    });
    Job(moved)
}

/// Copies all outputs in the store to `copy/` of the bench.
fn copy_outputs(store: &Store, bench: &Bench) {
    for (name, bytes) in store.files("out") {
        let path = bench.path("copy").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

fn output(name: &str, at: usize) -> String {
    match at {
        0 => "v0".to_owned(),
        _ => format!("{name}-{at}"),
    }
}

/// Copies all rows of a version in a store to another output there, which versions can continue.
fn compact(store: &Store, bench: &Bench, version: &str, whole: &str) {
    let [from, to] = [version, whole].map(|of| format!("{}/out/{of}", store.url));
    let mut command = bench.command(&["compact", &from, "--output", &to, "--work-dir", "work"]);
    command.envs(store.env.iter().cloned());
    Outcome::of(&command.output().unwrap()).ok();
    assert_tidy(store, &format!("out/{whole}"));
}

/// Shows all rows of an output of a store or of the bench.
fn inspect(bench: &Bench, store: &Store, path: &str) -> Outcome {
    let mut command = bench.command(&["inspect", path, "--json", "--limit", "100000"]);
    command.envs(store.env.iter().cloned());
    Outcome::of(&command.output().unwrap())
}

/// The rows that `inspect` has shown. A number in it has one f32, so equal texts are equal bits.
fn shown(outcome: &Outcome) -> Shown {
    let all: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let mut rows = Shown::new();
    for node in all["nodes"].as_array().unwrap() {
        let id = node["id"].to_string();
        let before = rows.insert(id, node.to_string());
        assert!(before.is_none(), "a node twice: {node}");
    }
    rows
}

/// Checks that versions on a store are full runs, while a reader polls; that a finished one is not
/// repeated; and that they can be checked, listed, compacted and copied to local files.
fn check_chain(store: &Store) {
    let chain = Chain::new(store);
    let bench = &chain.bench;
    store.run(bench, &chain.first(), &[]).ok();
    assert!(chain.is_whole("v", 0));
    let polls = Polls::default();
    for at in 1..=NIGHTS {
        let job = chain.night("v", at);
        bench.write(&job);
        let mut check = bench.command(&["check", "job.toml"]);
        let checked = Outcome::of(&check.envs(store.env.iter().cloned()).output().unwrap()).ok();
        assert!(
            checked.stdout.contains("version  incremental"),
            "{}",
            checked.stdout
        );
        chain.run_watched(("v", at), &job, &polls);
        assert!(chain.is_whole("v", at));
        let own = format!("out/{}", output("v", at));
        assert_tidy(store, &own);
        let before = store.files(&own);
        store.run(bench, &job, &[]).ok();
        assert_eq!(
            before,
            store.files(&own),
            "a finished version was written again"
        );
    }
    assert!(polls.all.load(Ordering::Relaxed) > NIGHTS);
    let last = output("v", NIGHTS);
    let mut listed = bench.command(&["versions", &format!("{}/out/{last}", store.url)]);
    let listed = Outcome::of(&listed.envs(store.env.iter().cloned()).output().unwrap()).ok();
    assert_eq!(
        listed.stdout.lines().count(),
        2 + NIGHTS,
        "{}",
        listed.stdout
    );
    compact(store, bench, &last, "whole");
    // Outputs side by side may be copied together.
    copy_outputs(store, bench);
    let expected = rows(bench, &format!("out/full-tables-{NIGHTS}"));
    assert!(rows(bench, &format!("copy/{last}")) == expected);
    assert!(rows(bench, "copy/whole") == expected);
    // A parent that is gone is one clear line.
    store.remove(&format!("out/{last}"));
    store.remove(&format!("out/{}", output("v", NIGHTS - 1)));
    let outcome = store.run(bench, &chain.night("v", NIGHTS), &[]);
    assert_eq!(
        (outcome.code, outcome.stderr.lines().count()),
        (2, 1),
        "{outcome:?}"
    );
    assert!(
        outcome.stderr.contains("holds no finished output"),
        "{outcome:?}"
    );
}

/// Checks that versions of graph features on a store are full runs, also after `kills` runs of each
/// were killed, and that a finished one is not repeated.
fn check_features(store: &Store, kills: usize) {
    let (bench, mut world) = (Bench::empty(), world_of_targets());
    world.write(&bench, "start");
    put(store, &bench, "start");
    let start = features::<World>("work", "start", "v0", "");
    let start = start.with("[flatten]\n", "[incremental]\n\n[flatten]\n");
    let started = Instant::now();
    store.run(&bench, &on_store(store, &start), &[]).ok();
    let mut longest = started.elapsed();
    for at in 1..=NIGHTS {
        let (own, parent) = (format!("v{at}"), format!("v{}", at - 1));
        let (night, tables) = (format!("night-{at}"), format!("tables-{at}"));
        world.night().write(&bench, &night);
        put(store, &bench, &night);
        let list = World::list("changes", &night);
        let job = features_version::<World>(&own, &parent, &list, "");
        let job = on_store(store, &job);
        bench.write(&job);
        let (mut killed, mut draw) = (0, 100 * at as u64);
        while killed < kills {
            draw += 1;
            assert!(draw % 100 < 99, "no kill came while a version was written");
            let has_ended = kill_run((store, &bench), longest, draw);
            killed += usize::from(!has_ended);
            longest = longest.mul_f64(if has_ended { 0.9 } else { 1.02 });
            check_readable(store, &bench, &own, &parent);
            if has_ended {
                store.remove(&format!("out/{own}"));
            }
        }
        store.run(&bench, &job, &[]).ok();
        let own = format!("out/{own}");
        assert_tidy(store, &own);
        let before = store.files(&own);
        store.run(&bench, &job, &[]).ok();
        assert_eq!(
            before,
            store.files(&own),
            "a finished version was written again"
        );
        world.write(&bench, &tables);
        let full = features::<World>(&format!("work-{tables}"), &tables, &tables, "");
        bench.run(&full, &[]).ok();
    }
    compact(store, &bench, &format!("v{NIGHTS}"), "whole");
    copy_outputs(store, &bench);
    let last = neighbourhoods(&bench, &format!("copy/v{NIGHTS}"));
    assert!(neighbourhoods(&bench, "copy/whole") == last);
    for at in 1..=NIGHTS {
        let expected = neighbourhoods(&bench, &format!("out/tables-{at}"));
        assert!(
            neighbourhoods(&bench, &format!("copy/v{at}")) == expected,
            "{at}"
        );
    }
}

/// Checks that the parent of a killed version can be read, and itself if it is finished.
fn check_readable(store: &Store, bench: &Bench, own: &str, parent: &str) {
    let read = |output: &str| inspect(bench, store, &format!("{}/out/{output}", store.url));
    read(parent).ok();
    let outcome = read(own);
    let is_unfinished = outcome.stderr.contains("holds no finished output");
    assert!(outcome.code == 0 || is_unfinished, "{outcome:?}");
}

/// Checks that kills of runs of a chain leave whole versions: a reader polls all the time.
fn check_kills(store: &Store, kills: usize) {
    let chain = Chain::new(store);
    let bench = &chain.bench;
    store.run(bench, &chain.first(), &[]).ok();
    let started = Instant::now();
    store.run(bench, &chain.night("calm", 1), &[]).ok();
    let mut longest = started.elapsed();
    let (mut killed, mut draw, polls) = (0, 0, Polls::default());
    for number in 0.. {
        if killed >= kills {
            break;
        }
        assert!(number < 100, "no kill came while a version was written");
        let name = format!("killed{number}");
        for at in 1..=NIGHTS {
            bench.write(&chain.night(&name, at));
            let night = (&*name, at);
            let ends = AtomicBool::new(false);
            let (chain, polls, ends) = (&chain, &polls, &ends);
            std::thread::scope(|scope| {
                let reader = scope.spawn(move || chain.poll(night, polls, ends));
                for _ in 0..2 {
                    draw += 1;
                    let has_ended = kill_run((chain.store, &chain.bench), longest, draw);
                    killed += usize::from(!has_ended);
                    // The load of the machine changes after the first run was timed.
                    longest = longest.mul_f64(if has_ended { 0.9 } else { 1.02 });
                    assert!(chain.is_whole(&name, at - 1), "the parent of {name}, {at}");
                }
                ends.store(true, Ordering::Relaxed);
                reader.join().unwrap();
            });
            chain.run_watched(night, &chain.night(&name, at), polls);
            assert!(chain.is_whole(&name, at), "{name}, {at}");
            assert_tidy(store, &format!("out/{}", output(&name, at)));
        }
    }
    let [whole, all] = [&polls.whole, &polls.all].map(|count| count.load(Ordering::Relaxed));
    assert!(
        0 < whole && whole < all,
        "{whole} of {all} polls saw a version"
    );
    eprintln!("{killed} kills, {whole} of {all} polls saw a version");
}

/// Starts a run and kills it at a drawn moment; tells whether it had ended before.
fn kill_run((store, bench): (&Store, &Bench), longest: Duration, draw: u64) -> bool {
    let child = store.command(bench, &[]).spawn().unwrap();
    std::thread::sleep(longest.mul_f64((mix(37, draw) % 1000) as f64 / 1000.0));
    kill(child)
}

#[test]
fn versions_on_s3_in_process_are_full_runs() {
    check_chain(&Store::s3_in_process("versions"));
}

#[test]
fn versions_on_an_s3_server_are_full_runs() {
    Store::s3_server("versions").iter().for_each(check_chain);
}

#[test]
fn versions_on_hdfs_are_full_runs() {
    Store::hdfs("versions").iter().for_each(check_chain);
}

#[test]
fn versions_of_features_on_s3_in_process_are_full_runs() {
    let kills = if slow() { 4 } else { 1 };
    check_features(&Store::s3_in_process("feature-versions"), kills);
}

#[test]
fn versions_of_features_on_an_s3_server_are_full_runs() {
    let store = Store::s3_server("feature-versions");
    store.iter().for_each(|store| check_features(store, 4));
}

#[test]
fn versions_of_features_on_hdfs_are_full_runs() {
    let store = Store::hdfs("feature-versions");
    store.iter().for_each(|store| check_features(store, 2));
}

#[test]
fn kills_while_versions_are_written_to_s3_in_process_leave_whole_ones() {
    if slow() {
        check_kills(&Store::s3_in_process("version-kills"), 12);
    }
}

#[test]
fn kills_while_versions_are_written_to_an_s3_server_leave_whole_ones() {
    let store = Store::s3_server("version-kills");
    store.iter().for_each(|store| check_kills(store, 12));
}

#[test]
fn kills_while_versions_are_written_to_hdfs_leave_whole_ones() {
    let store = Store::hdfs("version-kills");
    store.iter().for_each(|store| check_kills(store, 12));
}
