//! The texts of the program: help, log lines, JSON events, mistakes of a job.

use std::fs;
use std::io::{BufRead as _, BufReader};

use crate::harness::{Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, TRAIN};

fn graph() -> Graph {
    Graph::new(60, IdKind::Int64, FeatureKind::List)
}

#[test]
fn help_says_what_the_program_does() {
    let help = Bench::empty().graphflat(&["--help"]).ok();
    let first = help.stdout.lines().next().unwrap();
    assert!(
        first.starts_with("Graph neural networks as batch jobs: "),
        "{first}"
    );
}

#[test]
fn log_lines_carry_time_level_job_date_and_process() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.write(&Job::new(&graph, &[FLATTEN, TRAIN, INFER]));
    let outcome = bench
        .graphflat(&["run", "job.toml", "--date", "2026-03-04"])
        .ok();
    let stamp = "2026-11-23T02:21:24Z".len();
    let mut said = Vec::new();
    for line in outcome.stderr.lines() {
        let (time, rest) = line.split_at(stamp);
        assert!(time.ends_with('Z') && time.contains('T'), "{line}");
        let rest = rest.strip_prefix(" INFO  job=small date=2026-03-04 process=0 ");
        said.push(rest.unwrap_or_else(|| panic!("{line}")).to_owned());
    }
    let once = |text: &str| said.iter().filter(|line| *line == text).count() == 1;
    for text in [
        "store numbering nodes 0/3",
        "store reading edges 2/3",
        "store written 3/3",
        "infer round 3/3",
    ] {
        assert!(once(text), "{text} in {said:#?}");
    }
    assert!(
        said.iter()
            .any(|line| line.starts_with("train epoch 4/4: loss ")),
        "{said:#?}"
    );
    let last = said.last().unwrap();
    assert!(last.starts_with("done     small in "), "{last}");
}

#[test]
fn events_carry_the_same_and_errors_are_events() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN]);
    bench.write(&job);
    let args = ["run", "job.toml", "--json", "--date", "2026-03-04"];
    let events = bench.graphflat(&args).ok().events();
    for event in &events {
        assert!(event["time"].as_str().unwrap().ends_with('Z'), "{event}");
        assert_eq!(event["level"], "info");
        assert_eq!(event["job"], "small");
        assert_eq!(event["date"], "2026-03-04T00:00:00Z");
        assert_eq!(event["process"], 0);
    }
    assert_eq!(events.last().unwrap()["event"], "summary");

    bench.write(&job.with("hops = 2", "hops = 3"));
    for command in ["run", "check"] {
        let refused = bench.graphflat(&[command, "job.toml", "--json"]);
        let error = refused.events().pop().unwrap();
        assert_eq!(
            (refused.code, &error["exit_code"]),
            (2, &serde_json::json!(2))
        );
        assert_eq!(
            (&error["event"], &error["level"]),
            (&"error".into(), &"error".into())
        );
        let message = error["message"].as_str().unwrap();
        assert!(
            message.starts_with("job.toml:19: `flatten.hops` is 3"),
            "{message}"
        );
        assert_eq!(refused.stderr, format!("error: {message}\n"));
    }
}

#[test]
fn a_run_that_goes_on_says_from_where() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN, TRAIN]).with("epochs = 4", "epochs = 200");
    bench.write(&job);
    let mut child = bench
        .command(&["run", "job.toml", "--json"])
        .spawn()
        .unwrap();
    let events = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in events.map(Result::unwrap) {
        if line.contains("\"phase\":\"epoch\"") {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let outcome = bench.graphflat(&["run", "job.toml"]).ok();
    let resumed = outcome
        .stderr
        .lines()
        .find(|line| line.contains("train resume: goes on after "));
    let resumed = resumed.unwrap_or_else(|| panic!("{outcome:#?}"));
    assert!(resumed.ends_with(" of 200 epochs"), "{resumed}");
}

#[test]
fn all_mistakes_of_a_job_and_its_tables_are_told_at_once() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN, TRAIN, INFER])
        .with("id = \"id\"", "id = \"idd\"")
        .with("label = \"label\"", "label = \"features\"")
        .with("src = \"src\"", "src = \"source\"\nweight = \"dst2\"")
        .with("epochs = 4", "epochs = 0\ndropout = 1.5\nlr = 0.1");
    let outcome = bench.run(&job, &[]);
    assert_eq!(outcome.code, 2);
    let keys: Vec<String> = outcome
        .stderr
        .lines()
        .map(|line| {
            let (place, rest) = line
                .strip_prefix("error: ")
                .unwrap()
                .split_once(": ")
                .unwrap();
            let key = rest.split('`').nth(1).unwrap();
            format!("{place} {key}")
        })
        .collect();
    assert_eq!(
        keys,
        [
            "job.toml:7 input.nodes.id",
            "job.toml:8 input.nodes.features",
            "job.toml:14 input.edges.src",
            "job.toml:15 input.edges.weight",
            "job.toml:30 train.epochs",
            "job.toml:31 train.dropout",
            "job.toml:32 train.lr",
        ]
    );
    let checked = bench.graphflat(&["check", "job.toml"]);
    assert_eq!(
        (checked.code, checked.stderr),
        (outcome.code, outcome.stderr)
    );
}

#[test]
fn what_is_no_job_and_no_output_is_told_apart() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&Job::new(&graph, &[FLATTEN]), &[]).ok();
    fs::write(bench.path("binary"), [0xff, 0xfe]).unwrap();
    fs::create_dir(bench.path("tables")).unwrap();
    fs::copy(bench.path("nodes.parquet"), bench.path("tables/a.parquet")).unwrap();
    let taken = "; inspect takes a directory that a run wrote: the `output` of [flatten], [train], \
                 [infer] or [score], or the store in `work_dir`";
    for (args, said) in [
        (
            ["run", "nodes.parquet"],
            "nodes.parquet: is a Parquet table; a job file is a TOML text",
        ),
        (
            ["check", "binary"],
            "binary: is not UTF-8 text; a job file is a TOML text",
        ),
        (
            ["inspect", "nodes.parquet"],
            "nodes.parquet is a Parquet table",
        ),
        (["inspect", "job.toml"], "job.toml looks like a job file"),
        (
            ["inspect", "tables"],
            "tables is a directory of Parquet tables",
        ),
        (
            ["inspect", "work/small"],
            "work/small is a work_dir; its store is `store` in it",
        ),
        (
            ["inspect", "out/features/nodes/part-00000.parquet"],
            "is a file of the output out/features",
        ),
    ] {
        let outcome = bench.graphflat(&args);
        assert_eq!(outcome.code, 2, "{args:?}: {outcome:#?}");
        assert!(
            outcome.stderr.contains(said),
            "{args:?}: {}",
            outcome.stderr
        );
        if args[0] == "inspect" {
            assert!(
                outcome.stderr.trim_end().ends_with(taken),
                "{}",
                outcome.stderr
            );
        }
    }
}
