//! Killed, repeated and concurrent runs: no row is lost or doubled, and no finished work is
//! repeated.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, Outcome, TRAIN, assert_same_bytes,
    kill, mix,
};
#[cfg(target_os = "linux")]
use crate::hosts::SmallDisk;
use crate::needs::slow;

const OUTPUTS: [&str; 3] = ["out/features", "out/model", "out/embeddings"];

/// Numbers of events after which a run is killed, spread over every stage of the small job.
const KILL_AFTER: [usize; 9] = [1, 2, 3, 5, 8, 12, 16, 20, 26];

fn graph() -> Graph {
    Graph::new(150, IdKind::Utf8, FeatureKind::List).with_weights()
}

fn job(graph: &Graph) -> Job {
    let flatten = FLATTEN.replace("targets_per_part = 16", "targets_per_part = 8");
    Job::new(graph, &[&flatten, TRAIN, INFER]).with("epochs = 4", "epochs = 6")
}

/// A job and the bytes of its outputs, which were removed from the bench.
struct Finished {
    bench: Bench,
    job: Job,
    expected: [BTreeMap<String, Vec<u8>>; OUTPUTS.len()],
}

impl Finished {
    fn new() -> Finished {
        let graph = graph();
        let bench = Bench::new(&graph);
        let job = job(&graph);
        bench.run(&job, &[]).ok();
        let expected = OUTPUTS.map(|output| bench.data_files(output));
        bench.clear();
        Finished {
            bench,
            job,
            expected,
        }
    }

    /// Checks that the outputs exist again with the same bytes.
    #[track_caller]
    fn check(&self, what: &str) {
        for (output, wanted) in OUTPUTS.iter().zip(&self.expected) {
            let found = self.bench.data_files(output);
            assert_same_bytes(wanted, &found, &format!("{output}{what}"));
        }
    }
}

/// Runs a job and kills it after `events` events; returns whether it was still running then.
pub(crate) fn run_and_kill(bench: &Bench, job: &Job, events: usize) -> bool {
    bench.write(job);
    let mut child = bench
        .command(&["run", "job.toml", "--json"])
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let seen = stdout
        .lines()
        .take(events)
        .filter(|line| line.is_ok())
        .count();
    child.kill().unwrap(); // SIGKILL: no handler runs
    child.wait().unwrap();
    seen == events
}

#[test]
fn a_killed_run_goes_on_and_ends_with_the_same_bytes() {
    let finished = Finished::new();
    let (bench, job) = (&finished.bench, &finished.job);
    let mut killed = 0;
    for events in KILL_AFTER {
        bench.clear();
        killed += usize::from(run_and_kill(bench, job, events));
        bench.run(job, &[]).ok();
        finished.check(&format!(" after a kill at event {events}"));
    }
    assert!(
        killed >= 5,
        "only {killed} runs lived long enough to be killed"
    );
}

#[test]
fn a_run_killed_again_and_again_ends_with_the_same_bytes() {
    if !slow() {
        return;
    }
    let finished = Finished::new();
    let (bench, job) = (&finished.bench, &finished.job);
    for events in [2, 4, 6, 9, 6, 7] {
        run_and_kill(bench, job, events);
    }
    bench.run(job, &[]).ok();
    finished.check("");
}

/// Without versions, checksums are noted for input tables alone.
#[test]
fn tables_that_have_not_changed_are_hashed_once() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.write(&Job::new(&graph, &[FLATTEN]));
    let builds_store = || {
        let outcome = bench.graphflat(&["run", "job.toml"]).ok();
        std::fs::remove_dir_all(bench.path("out")).unwrap();
        outcome.stderr.contains("numbering")
    };
    // A checksum that is noted within two seconds of a change is not used.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    assert!(builds_store(), "there is none");
    let path = bench.path("work/small/checksums.json");
    let noted = || -> BTreeMap<String, String> {
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap()
    };
    assert_eq!(noted().len(), 2, "nodes and edges: {:?}", noted());
    assert!(!builds_store(), "it is of these tables");
    let edges = graph.edge_table();
    edges.slice(0, 200).write(&bench.path("edges.parquet"));
    assert!(builds_store(), "edges have changed");
    let others: BTreeMap<String, &str> = noted().into_keys().map(|of| (of, "others")).collect();
    std::fs::write(&path, serde_json::to_vec(&others).unwrap()).unwrap();
    assert!(builds_store(), "the noted checksum of nodes is used");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_ends_a_run_and_with_more_room_it_goes_on() {
    let finished = Finished::new();
    let (bench, job) = (&finished.bench, &finished.job);
    let Some(disk) = SmallDisk::new(bench.path("out"), 4) else {
        eprintln!("skipped: a small disk, which this user may not mount");
        return;
    };
    for stage in ["flatten", "train", "infer"] {
        let mut num_full = 0;
        // The disk gets one page more each time, and the run continues from the files on it.
        loop {
            disk.resize(disk.used() + 4 + 4 * num_full);
            let args = ["--stage", stage, "--set", "work_dir=out/work"];
            let outcome = bench.run(job, &args);
            if outcome.code == 0 {
                break;
            }
            assert_eq!(outcome.code, 1, "{stage}: {outcome:?}");
            assert!(outcome.stderr.contains("No space left"), "{outcome:?}");
            assert!(outcome.stderr.contains("out/"), "{outcome:?}");
            num_full += 1;
        }
        assert!(num_full > 0, "{stage} needs no disk");
    }
    finished.check("");
}

/// Kills of [`kills_at_random_moments_change_no_row`].
const RANDOM_KILLS: usize = 100;

/// A flatten of the generated tables in a folder, with many parts.
fn flatten_job(bench: &Bench, folder: &str, layout: &str) -> String {
    let generated = std::fs::read_to_string(bench.path(folder).join("job.toml")).unwrap();
    let (_, tables) = generated.split_once("[input").unwrap();
    let (tables, _) = tables.split_once("[flatten]").unwrap();
    format!(
        "name = \"kills\"\nseed = 7\nworkers = 3\nwork_dir = \"work\"\nmemory_budget = \"64MiB\"\n\
         [input{tables}\
         [flatten]\noutput = \"out/features\"\nhops = 2\nfanouts = [5, 5]\ntargets = \"all\"\n\
         layout = \"{layout}\"\ntargets_per_part = 500\nhub_threshold = 300\n"
    )
}

#[test]
fn kills_at_random_moments_change_no_row() {
    if !slow() {
        return;
    }
    let bench = Bench::empty();
    for folder in ["graph", "typed --types 3 --relations 4"] {
        let generated = format!(
            "generate {folder} --nodes 8000 --edges 120000 --features 8 --weights --seed 3"
        );
        bench
            .graphflat(&generated.split(' ').collect::<Vec<_>>())
            .ok();
    }
    let run = |job: &str| bench.command(&["run", job, "--quiet"]).spawn().unwrap();
    let end = |job: &str| bench.graphflat(&["run", job, "--quiet"]).ok();
    let (mut killed, mut resumed, mut draw) = (0, 0, 0);
    let cases = [
        ("graph", "rows"),
        ("graph", "shards"),
        ("typed", "rows"),
        ("typed", "shards"),
    ];
    for (i, (folder, layout)) in cases.into_iter().enumerate() {
        let job = format!("{folder}-{layout}.toml");
        std::fs::write(bench.path(&job), flatten_job(&bench, folder, layout)).unwrap();
        bench.clear();
        let started = std::time::Instant::now();
        end(&job);
        let micros = u64::try_from(started.elapsed().as_micros()).unwrap();
        let expected = bench.data_files("out/features");
        bench.clear();
        while killed < RANDOM_KILLS * (i + 1) / cases.len() {
            draw += 1;
            let child = run(&job);
            let delay = mix(1, draw) % micros;
            std::thread::sleep(std::time::Duration::from_micros(delay));
            let has_ended = kill(child);
            killed += usize::from(!has_ended);
            // After every third kill, the next run ends; after others, it is killed too.
            if mix(2, draw).is_multiple_of(3) {
                resumed += usize::from(bench.path("out/features/_progress").exists());
                end(&job);
                let what = format!("{folder}, {layout} after draw {draw}");
                assert_same_bytes(&expected, &bench.data_files("out/features"), &what);
                bench.clear();
            }
        }
        end(&job);
        assert_same_bytes(&expected, &bench.data_files("out/features"), layout);
    }
    assert!(resumed > 0, "no kill came while parts were written");
}

/// Kills of [`kills_within_epochs_change_no_bit_of_a_model`].
const TRAIN_KILLS: usize = 30;

#[test]
fn kills_within_epochs_change_no_bit_of_a_model() {
    if !slow() {
        return;
    }
    let graph = Graph::new(600, IdKind::Utf8, FeatureKind::List).with_weights();
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN, TRAIN])
        .with("batch_size = 16", "batch_size = 4\nworkers = 2")
        .with("epochs = 4", "epochs = 12")
        .and("schedule = { kind = \"cosine\", warmup = 1.5 }\nclip_norm = 0.5")
        .and("class_weights = \"balanced\"\nevaluate_every = 2\npatience = 5")
        .and("checkpoint_every_steps = 1");
    bench.run(&job, &["--stage", "flatten"]).ok();
    let train = ["run", "job.toml", "--stage", "train", "--quiet"];
    let started = std::time::Instant::now();
    bench.graphflat(&train).ok();
    let micros = u64::try_from(started.elapsed().as_micros()).unwrap();
    let expected = bench.data_files("out/model");
    let remove = || std::fs::remove_dir_all(bench.path("out/model")).unwrap();
    let (mut killed, mut within, mut draw) = (0, 0, 0);
    remove();
    while killed < TRAIN_KILLS {
        draw += 1;
        let child = bench.command(&train).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(mix(3, draw) % micros));
        let has_ended = kill(child);
        killed += usize::from(!has_ended);
        let checkpoint = std::fs::read(bench.path("out/model/_progress/checkpoint"));
        let text = String::from_utf8_lossy(checkpoint.as_deref().unwrap_or_default()).into_owned();
        within += usize::from(text.contains("\"partial\":{"));
        // After every third kill, the next run ends; after others, it is killed too.
        if mix(4, draw).is_multiple_of(3) {
            bench.graphflat(&train).ok();
            let what = format!("after draw {draw}");
            assert_same_bytes(&expected, &bench.data_files("out/model"), &what);
            remove();
        }
    }
    assert!(within > 0, "no kill came within an epoch");
    bench.graphflat(&train).ok();
    assert_same_bytes(&expected, &bench.data_files("out/model"), "at the end");
}

#[test]
fn no_reader_accepts_a_half_written_output() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = job(&graph);
    for events in KILL_AFTER {
        bench.clear();
        run_and_kill(&bench, &job, events);
        for output in OUTPUTS {
            let whole = bench.path(output).join("_SUCCESS").exists();
            let inspected = bench.graphflat(&["inspect", output]);
            assert_eq!(
                inspected.code == 0,
                whole,
                "{output} at {events}: {inspected:#?}"
            );
            if whole {
                assert!(bench.path(output).join("_manifest.json").exists());
            }
        }
    }
}

/// The second run prints that another run writes the directory, and does not disturb it.
#[test]
fn two_runs_of_one_job_exclude_each_other() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = job(&graph);
    bench.run(&job, &[]).ok();
    let expected = OUTPUTS.map(|output| bench.data_files(output));
    for fresh in [false, true, false, true] {
        if !fresh {
            bench.clear();
        }
        let args: &[&str] = match fresh {
            true => &["run", "job.toml", "--quiet", "--fresh"],
            false => &["run", "job.toml", "--quiet"],
        };
        let runs = [0, 1].map(|_| bench.command(args).spawn().unwrap());
        let outcomes = runs.map(|run| Outcome::of(&run.wait_with_output().unwrap()));
        assert!(
            outcomes.iter().any(|outcome| outcome.code == 0),
            "{outcomes:#?}"
        );
        for outcome in outcomes.iter().filter(|outcome| outcome.code != 0) {
            assert_eq!(outcome.code, 1, "{outcomes:#?}");
            let line = outcome.stderr.trim_end();
            assert!(line.ends_with("by another run"), "{line}");
            assert_eq!(line.lines().count(), 1, "{line}");
        }
        for (output, wanted) in OUTPUTS.iter().zip(&expected) {
            assert_same_bytes(wanted, &bench.data_files(output), output);
        }
    }
}

#[test]
fn finished_stages_are_skipped() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = job(&graph);
    let first = bench.run(&job, &["--stage", "flatten"]).ok();
    assert_eq!(first.stdout, "");
    let stamp = |output: &str| {
        std::fs::metadata(bench.path(output).join("_manifest.json"))
            .unwrap()
            .modified()
            .unwrap()
    };
    let flattened = stamp("out/features");
    bench.run(&job, &[]).ok();
    assert_eq!(stamp("out/features"), flattened, "flatten ran again");
    let stamps = OUTPUTS.map(stamp);
    bench.write(&job);
    let again = bench.graphflat(&["run", "job.toml", "--json"]).ok();
    assert_eq!(OUTPUTS.map(stamp), stamps, "a finished stage ran again");
    let summary = again.events().pop().unwrap();
    assert_eq!(summary["event"], "summary");
    let stages = summary["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 3);
    assert!(
        stages.iter().all(|stage| stage["skipped"] == true),
        "{summary}"
    );
}

#[test]
fn a_later_stage_runs_again_when_its_settings_change() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = job(&graph);
    bench.run(&job, &[]).ok();
    let features = bench.data_files("out/features");
    let changed = job.with("epochs = 6", "epochs = 7");
    let refused = bench.run(&changed, &[]);
    assert_eq!(refused.code, 2, "{refused:#?}");
    bench
        .run(&changed, &["--stage", "train,infer", "--fresh"])
        .ok();
    assert_same_bytes(
        &features,
        &bench.data_files("out/features"),
        "flatten was not asked for",
    );
}

#[test]
fn json_is_one_object_a_line_and_nothing_else() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.write(&job(&graph));
    let outcome = bench.graphflat(&["run", "job.toml", "--json"]).ok();
    assert_eq!(outcome.stderr, "");
    let events = outcome.events();
    let (summary, progress) = events.split_last().unwrap();
    assert!(progress.iter().all(|event| event["event"] == "progress"));
    for stage in ["flatten", "train", "infer"] {
        assert!(
            progress.iter().any(|event| event["stage"] == stage),
            "no event of {stage}"
        );
    }
    assert_eq!(summary["event"], "summary");
    assert!(summary["stages"][0]["rows"].as_u64().unwrap() > 0);
    assert!(summary["stages"][0]["bytes"].as_u64().unwrap() > 0);
}
