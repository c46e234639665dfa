//! Requests to a store that arrive late, stores that do not answer, and invalid settings of stores.

use std::time::{Duration, Instant};

use crate::fault_proxy::{FaultProxy, Plan};
use crate::harness::{Bench, FLATTEN, FeatureKind, Graph, IdKind, Job, Outcome};
use crate::stores::{Store, assert_tidy};

const OUTPUT: &str = "out/features";

fn graph() -> Graph {
    Graph::new(150, IdKind::Int64, FeatureKind::List)
}

/// Kills a run while the network holds back a write of it. The write arrives after another run has
/// written the output, and must change nothing.
fn check_late(path_end: &'static str) {
    let graph = graph();
    let bench = Bench::new(&graph);
    let store = Store::s3_in_process("late");
    store.put_tables(&bench);
    let job = store.job(&Job::new(&graph, &[FLATTEN]), &[OUTPUT]);
    bench.write(&job);
    let (_, endpoint) = store
        .env
        .iter()
        .find(|(name, _)| *name == "AWS_ENDPOINT_URL")
        .unwrap();
    let proxy = FaultProxy::start(endpoint, Plan::hold(path_end));
    let mut killed = store.command(&bench, &[]);
    let mut killed = killed.env("AWS_ENDPOINT_URL", proxy.url()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !proxy.is_holding() {
        assert!(
            killed.try_wait().unwrap().is_none(),
            "{path_end} was not written"
        );
        assert!(Instant::now() < deadline, "{path_end} was not written");
        std::thread::sleep(Duration::from_millis(10));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();

    bench.clear();
    let other = job.with("seed = 7", "seed = 8");
    store.run(&bench, &other, &["--fresh"]).ok();
    assert_tidy(&store, OUTPUT);
    let written = store.files(OUTPUT);
    assert_eq!(proxy.release(), 412, "{path_end}");
    assert_eq!(written, store.files(OUTPUT), "{path_end}");
}

#[test]
fn what_a_dead_run_wrote_to_s3_and_comes_late_changes_nothing() {
    check_late("part-00000.parquet");
    check_late("_manifest.json");
    check_late("_SUCCESS");
}

fn run_with(bench: &Bench, store: &Store, vars: &[(&str, &str)]) -> Outcome {
    let mut command = bench.command(&["run", "job.toml"]);
    command
        .envs(store.env.iter().cloned())
        .envs(vars.iter().copied());
    Outcome::of(&command.output().unwrap())
}

#[test]
fn settings_of_stores_that_are_none_are_told() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let store = Store::s3_in_process("settings");
    store.put_tables(&bench);
    let job = store.job(&Job::new(&graph, &[FLATTEN]), &[OUTPUT]);
    let check = |wrong: &Job, vars: &[(&str, &str)], said: &str| {
        bench.write(wrong);
        let outcome = run_with(&bench, &store, vars);
        assert_eq!(outcome.code, 2, "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
        assert!(outcome.stderr.contains(said), "{outcome:?}");
    };
    let of_job = |endpoint: &str| job.and(&format!("[storage.s3]\nendpoint = \"{endpoint}\""));
    check(
        &of_job("127.0.0.1:9000"),
        &[],
        "`storage.s3.endpoint`: is \"127.0.0.1:9000\"",
    );
    check(&of_job(""), &[], "`storage.s3.endpoint`: is \"\"");
    check(
        &job,
        &[("AWS_ENDPOINT_URL", "127.0.0.1:9000")],
        "`AWS_ENDPOINT_URL`: is",
    );
    check(&job, &[("AWS_REGION", "us east")], "`AWS_REGION`: is");
    let blank = job.with("s3://graphflat/", "s3://graph flat/");
    check(&blank, &[], "lacks the name of a bucket");
}

#[test]
fn a_store_that_does_not_answer_is_named_at_once() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let store = Store::s3_in_process("dead");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let job = store.job(&Job::new(&graph, &[FLATTEN]), &[OUTPUT]);
    bench.write(&job.and("[storage]\nretries = 3"));
    let outcome = run_with(&bench, &store, &[("AWS_ENDPOINT_URL", &endpoint)]);
    assert_eq!(outcome.code, 1, "{outcome:?}");
    let said = format!("waiting for {endpoint}, attempt 3: ");
    assert!(outcome.stderr.contains(&said), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("refused"), "{}", outcome.stderr);
}
