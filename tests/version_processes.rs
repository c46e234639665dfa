//! Versions of jobs in several processes: other numbers of them, lost disks, kills and errors.

use std::fs::File;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::compute::concat_batches;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use crate::harness::{Bench, Job, Outcome, mix};
use crate::hosts::{Hosts, end};
use crate::incremental::{
    PROCESSES, Rows, World, check_same_tables, first, full, of_snapshot, rebuilding, rows, version,
};
use crate::needs::slow;

const THREE: [&str; 4] = ["--processes", "3", "--workers", "1"];

/// A bench with a first version of several processes.
fn started() -> (Bench, World) {
    let (bench, world) = (Bench::empty(), World::new());
    world.write(&bench, "start");
    bench.run(&first("sage", ""), &PROCESSES).ok();
    (bench, world)
}

/// Runs the version of a night, `vAT` of `vBEFORE`, and compares it with a full run.
fn check_night(bench: &Bench, world: &mut World, at: usize, args: &[&str]) -> Job {
    let (night, tables) = (format!("night-{at}"), format!("tables-{at}"));
    world.night().write(bench, &night);
    world.write(bench, &tables);
    let (own, parent) = (format!("v{at}"), format!("v{}", at - 1));
    let mut job = version(&own, &parent, &[&night], "");
    if at == 1 {
        // The next night starts from a store that holds the changes.
        job = rebuilding(&job);
    }
    bench.run(&job, args).ok();
    let expected = full(bench, &tables, "", |of_run| of_run);
    assert!(rows(bench, &format!("out/{own}")) == expected, "{own}");
    job
}

#[test]
fn processes_without_kept_rows_fetch_them_from_the_leader() {
    let (bench, mut world) = started();
    // A finished first run is skipped, and mends a lost disk.
    std::fs::remove_dir_all(bench.path("work/process-001")).unwrap();
    bench.run(&first("sage", ""), &PROCESSES).ok();
    assert!(bench.path("work/process-001/versions").exists());
    check_night(&bench, &mut world, 1, &PROCESSES);
    // A lost disk.
    std::fs::remove_dir_all(bench.path("work/process-001")).unwrap();
    check_night(&bench, &mut world, 2, &PROCESSES);
    // A third process, and fewer workers in each.
    let job = check_night(&bench, &mut world, 3, &THREE);
    // All rows, from a new store.
    let all = [&PROCESSES[..], &["--full"]].concat();
    check_night(&bench, &mut world, 4, &all);
    assert_eq!(bench.manifest("out/v4")["report"]["mode"], "full");
    // A finished version is skipped.
    let before = bench.manifest("out/v3");
    bench.run(&job, &PROCESSES).ok();
    assert_eq!(bench.manifest("out/v3"), before);
    // `check` finds what they keep, and predicts as one process does; a version of one does not.
    let checked = bench.graphflat(&["check", "job.toml"]).ok().stdout;
    assert!(!checked.contains("version  "), "{checked}");
    world.night().write(&bench, "night-5");
    let next = version("v5", "v4", &["night-5"], "");
    bench.write(&next);
    let predicted = predict(&bench, &next);
    assert!(predicted.is_object());
    let outcome = bench.run(&next, &[]);
    assert_eq!(outcome.code, 2, "{outcome:?}");
    let expected = "in one process if it was, else in several; start with a run without a parent\n";
    assert!(outcome.stderr.ends_with(expected), "{outcome:?}");
    // A job in one process leaves what the others keep.
    let infer = "[infer]\noutput = \"out/other\"\nmodel = \"out/model\"\n";
    let other = Job(format!(
        "{}{infer}",
        crate::incremental::head("work", "start")
    ));
    bench.run(&other, &[]).ok();
    bench.run(&next, &PROCESSES).ok();
    check_report(&bench, "out/v5", &predicted);
    // What `check` writes for the workers of all processes serves those of one.
    check_night(&bench, &mut world, 6, &PROCESSES);
}

/// Returns the directory of the only store that holds changes of a process.
fn base(bench: &Bench, process: usize) -> PathBuf {
    let versions = bench.path(&format!("work/process-{process:03}/versions"));
    let entries = std::fs::read_dir(versions).unwrap();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    let is_base = |path: &PathBuf| path.to_string_lossy().contains("/base-");
    paths.find(is_base).unwrap()
}

#[test]
fn a_process_that_lacks_the_store_of_the_changes_fetches_it() {
    let (bench, mut world) = started();
    check_night(&bench, &mut world, 1, &PROCESSES);
    std::fs::remove_dir_all(base(&bench, 1)).unwrap();
    check_night(&bench, &mut world, 2, &PROCESSES);
    let workers = std::fs::read_dir(base(&bench, 1)).unwrap().next();
    let nodes = workers.unwrap().unwrap().path().join("nodes-000.arrow");
    std::fs::write(nodes, "damaged").unwrap();
    check_night(&bench, &mut world, 3, &PROCESSES);
    // Nobody else has that of process 0.
    std::fs::remove_dir_all(base(&bench, 0)).unwrap();
    world.night().write(&bench, "night-4");
    let outcome = bench.run(&version("v4", "v3", &["night-4"], ""), &PROCESSES);
    assert_eq!(outcome.code, 2, "{outcome:?}");
    let expected = "is not there; start with a run without a parent\n";
    assert!(outcome.stderr.ends_with(expected), "{outcome:?}");
}

/// Returns what `check` predicts of the version of a job.
fn predict(bench: &Bench, job: &Job) -> Value {
    bench.write(job);
    let checked = bench.graphflat(&["check", "job.toml", "--json"]).ok();
    checked.events().last().unwrap()["version"].clone()
}

/// Checks that a version has computed what was predicted.
fn check_report(bench: &Bench, output: &str, predicted: &Value) {
    let report = &bench.manifest(output)["report"];
    let predicted = predicted.as_object().unwrap().iter();
    // Bytes are in the list of files.
    for (key, value) in predicted.filter(|(key, _)| *key != "bytes") {
        assert_eq!(report[key], *value, "{key}");
    }
}

/// Process 0 has the parts of the store of the others once a version has run.
#[test]
fn check_predicts_versions_of_several_processes() {
    let (bench, mut world) = started();
    world.night().write(&bench, "night-1");
    let job = version("v1", "v0", &["night-1"], "");
    bench.write(&job);
    let told = bench.graphflat(&["check", "job.toml"]).ok().stdout;
    let expected = "version  run says what the changes reach: process 0 has no copies of the other \
                    processes' stores that fit the job; a version makes them\n";
    assert!(told.ends_with(expected), "{told}");
    bench.run(&job, &PROCESSES).ok();
    world.night().write(&bench, "night-2");
    let next = version("v2", "v1", &["night-2"], "");
    let predicted = predict(&bench, &next);
    assert_eq!(predicted["mode"], "incremental", "{predicted}");
    // Twice: the out-edges of all workers are there now.
    assert_eq!(predict(&bench, &next), predicted);
    bench.run(&next, &PROCESSES).ok();
    check_report(&bench, "out/v2", &predicted);
    // A part that is cut or missing is copied by the next run.
    world.night().write(&bench, "night-3");
    let last = version("v3", "v2", &["night-3"], "");
    let others = bench.path("work/process-000/store/others");
    let nodes = others.join("nodes-002.arrow");
    let whole = std::fs::read(&nodes).unwrap();
    std::fs::write(&nodes, &whole[..whole.len() / 2]).unwrap();
    assert!(predict(&bench, &last).is_null());
    std::fs::remove_dir_all(&others).unwrap();
    assert!(predict(&bench, &last).is_null());
    bench.run(&last, &PROCESSES).ok();
}

/// Writes the rows of a table to three files, `NAME-0.parquet` and so on; the third one also has
/// the first row if `twice`.
fn split(bench: &Bench, name: &str, twice: bool) {
    let file = File::open(bench.path(&format!("{name}.parquet"))).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let schema = Arc::clone(reader.schema());
    let batches: Result<Vec<_>, _> = reader.build().unwrap().collect();
    let rows = concat_batches(&schema, &batches.unwrap()).unwrap();
    let per_file = rows.num_rows().div_ceil(3);
    for at in 0..3 {
        let first = at * per_file;
        let mut part = rows.slice(first, per_file.min(rows.num_rows() - first));
        if twice && at == 2 {
            part = concat_batches(&schema, [&part, &rows.slice(0, 1)]).unwrap();
        }
        let columns = schema.fields().iter().zip(part.columns());
        let columns = columns.map(|(field, column)| (field.name().as_str(), Arc::clone(column)));
        bench.write_table(&format!("{name}-{at}.parquet"), columns.collect());
    }
}

/// Each process reads some files of a snapshot, and a node that stands in files of two is found.
#[test]
fn processes_share_the_files_of_a_snapshot() {
    let (bench, mut world) = (Bench::empty(), World::new());
    world.weighted = true;
    world.undirected = true;
    let adapt = |job: Job| {
        job.with(
            "dst = \"dst\"\n",
            "dst = \"dst\"\nweight = \"w\"\nundirected = true\n",
        )
    };
    world.write(&bench, "start");
    bench.run(&adapt(first("sage", "")), &PROCESSES).ok();
    let files = |job: &Job| {
        let nodes = job.with("tables/nodes.parquet", "tables/nodes-*.parquet");
        adapt(nodes.with("tables/edges.parquet", "tables/edges-*.parquet"))
    };
    for (at, args) in [(1, PROCESSES), (2, THREE), (3, PROCESSES)] {
        world.night();
        world.write(&bench, "tables");
        for name in ["tables/nodes", "tables/edges"] {
            split(&bench, name, false);
        }
        let own = format!("v{at}");
        let job = of_snapshot(&own, &format!("v{}", at - 1), "tables", "");
        bench.run(&files(&job), &args).ok();
        std::fs::remove_dir_all(bench.path("out/full-tables")).ok();
        let expected = full(&bench, "tables", "", adapt);
        assert!(rows(&bench, &format!("out/{own}")) == expected, "{own}");
    }
    split(&bench, "tables/nodes", true);
    let job = files(&of_snapshot("v4", "v3", "tables", ""));
    // Its row groups are read by the first and the third process.
    let outcome = bench.run(&job, &THREE);
    assert_eq!(outcome.code, 3, "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    let expected = "tables/nodes-2.parquet: node 0 stands in the table twice";
    assert!(outcome.stderr.contains(expected), "{outcome:?}");
    assert!(!bench.path("out/v4").exists());
}

#[test]
fn snapshots_of_several_processes_may_have_tables_of_the_parent() {
    check_same_tables(&PROCESSES);
}

/// A mistake that one process finds ends all of them with its message.
#[test]
fn an_edge_that_is_not_there_ends_all_processes() {
    let (bench, _) = started();
    let column = |id: i64| Arc::new(Int64Array::from(vec![id])) as ArrayRef;
    // Several nodes, so that each process owns some.
    for dst in [0, 3, 6, 9, 12, 15] {
        let op: ArrayRef = Arc::new(StringArray::from(vec!["delete"]));
        let columns = vec![("src", column(dst)), ("dst", column(dst)), ("op", op)];
        std::fs::create_dir_all(bench.path("loops")).unwrap();
        bench.write_table("loops/edges.parquet", columns);
        let job = version("v1", "v0", &["loops"], "");
        let job = job.with("nodes = \"loops/nodes.parquet\"\n", "");
        let outcome = bench.run(&job, &PROCESSES);
        assert_eq!(outcome.code, 3, "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
        let expected = format!("no edge leads from {dst} to {dst} to delete");
        assert!(outcome.stderr.contains(&expected), "{outcome:?}");
        assert!(!bench.path("out/v1").exists());
    }
}

/// A mistake in the changes is told once, and nothing is written.
#[test]
fn mistakes_in_changes_end_all_processes() {
    let (bench, mut world) = started();
    world.night().write(&bench, "night");
    let good = version("v1", "v0", &["night"], "");
    // Its nodes are there already, and its edges gone.
    bench.run(&good, &PROCESSES).ok();
    let twice = version("v2", "v1", &["night"], "");
    let outcome = bench.run(&twice, &PROCESSES);
    assert_ne!(outcome.code, 0, "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    assert!(outcome.stderr.contains("of night/"), "{outcome:?}");
    assert!(!bench.path("out/v2").exists());
    let alike = rows(&bench, "out/v1");
    bench.run(&good, &PROCESSES).ok();
    assert!(rows(&bench, "out/v1") == alike);
}

/// Kills of [`killed_versions_of_several_processes_go_on`].
const KILLS: usize = 24;

/// Kills one process of a chain of versions at random moments. A version is there as a whole or not
/// at all, and each ends with the rows of one that was not killed.
#[test]
fn killed_versions_of_several_processes_go_on() {
    if !slow() {
        return;
    }
    let (bench, mut world) = started();
    let args = ["--workers", "2", "--start-timeout", "3", "--quiet"];
    let mut expected: Vec<Rows> = Vec::new();
    let started = Instant::now();
    for at in 1..=3 {
        world.night().write(&bench, &format!("night-{at}"));
        let job = version(
            &format!("calm{at}"),
            &parent("calm", at),
            &[&format!("night-{at}")],
            "",
        );
        bench.run(&job, &PROCESSES).ok();
        expected.push(rows(&bench, &format!("out/calm{at}")));
    }
    let longest: Duration = started.elapsed() / 3;
    let (mut killed, mut whole, mut draw, mut chain) = (0, 0, 0, 0);
    while killed < KILLS {
        chain += 1;
        let name = format!("killed{chain}-");
        // A store that holds changes leaves nothing of the first run, which each chain starts from.
        let again = [&PROCESSES[..], &["--stage", "infer", "--fresh"]].concat();
        bench.run(&first("sage", ""), &again).ok();
        for at in 1..=3 {
            let own = format!("{name}{at}");
            let mut job = version(&own, &parent(&name, at), &[&format!("night-{at}")], "");
            if at == 2 {
                job = rebuilding(&job);
            }
            let output = format!("out/{own}");
            bench.write(&job);
            for _ in 0..2 {
                let hosts = Hosts::new(&bench, 2);
                let mut children: Vec<Child> = (0..2)
                    .map(|process| hosts.start(&bench, process, &args))
                    .collect();
                draw += 1;
                let share = mix(47, draw) % 1000;
                std::thread::sleep(longest.mul_f64(share as f64 / 1000.0));
                let victim = usize::try_from(mix(53, draw) % 2).unwrap();
                let has_ended = children[victim].try_wait().unwrap().is_some();
                children[victim].kill().unwrap(); // SIGKILL: no handler runs
                let outcomes: Vec<Outcome> = children.into_iter().map(end).collect();
                killed += usize::from(!has_ended);
                if at > 1 {
                    let before = rows(&bench, &format!("out/{name}{}", at - 1));
                    assert!(before == expected[at - 2]);
                }
                if bench.path(&format!("{output}/_SUCCESS")).exists() {
                    whole += usize::from(!has_ended);
                    assert!(
                        rows(&bench, &output) == expected[at - 1],
                        "{own} {outcomes:?}"
                    );
                    break;
                }
            }
            bench.run(&job, &PROCESSES).ok();
            assert!(rows(&bench, &output) == expected[at - 1], "{own}");
        }
    }
    eprintln!("{killed} kills, {whole} after the output was whole");
}

/// Returns the output that version `at` of a chain continues.
fn parent(chain: &str, at: usize) -> String {
    match at {
        1 => "v0".to_owned(),
        _ => format!("{chain}{}", at - 1),
    }
}
