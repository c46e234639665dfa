//! Streamed training: a fresh sample each epoch, drawn from the store, and no graph features on disk.

use expect_test::{Expect, expect};

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, TRAIN, assert_same_bytes,
};
use crate::resume::run_and_kill;

const MODEL: &str = "out/model";
const EMBEDDINGS: &str = "out/embeddings";

/// Numbers of events after which a run is killed.
const KILL_AFTER: [usize; 5] = [2, 4, 6, 8, 10];

fn graph() -> Graph {
    Graph::new(150, IdKind::Utf8, FeatureKind::List).with_weights()
}

/// The job that writes graph features first.
fn stored(graph: &Graph) -> Job {
    Job::new(graph, &[FLATTEN, TRAIN])
}

/// The job that writes no graph features.
fn streamed(graph: &Graph) -> Job {
    let job = Job::new(graph, &[FLATTEN, TRAIN, INFER]);
    let job = job.with("output = \"out/features\"\n", "");
    job.with("layout = \"shards\"\n", "")
        .with("[train]\n", "[train]\nstreamed = true\n")
}

#[test]
fn the_first_epoch_is_that_of_stored_features_and_later_ones_are_not() {
    let graph = graph();
    let bench = Bench::new(&graph);
    for sampling in ["uniform", "weighted"] {
        for (epochs, equal) in [(1, true), (3, false)] {
            let with = |job: Job| {
                let job = job.with("\"uniform\"", &format!("\"{sampling}\""));
                job.with("epochs = 4", &format!("epochs = {epochs}"))
            };
            bench.clear();
            bench.run(&with(stored(&graph)), &[]).ok();
            let expected = bench.data_files(MODEL);
            bench.clear();
            bench
                .run(&with(streamed(&graph)), &["--stage", "train"])
                .ok();
            assert!(!bench.path("out/features").exists());
            let same = bench.data_files(MODEL) == expected;
            assert_eq!(same, equal, "{sampling}, {epochs} epochs");
        }
    }
}

#[test]
fn workers_and_hubs_change_neither_weights_nor_embeddings() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = streamed(&graph);
    bench.run(&job, &["--workers", "1"]).ok();
    let expected = [MODEL, EMBEDDINGS].map(|output| bench.data_files(output));
    for (workers, hubs) in [("2", ""), ("4", ""), ("3", "hub_threshold = 4\n")] {
        bench.clear();
        let other = job.with("[flatten]\n", &format!("[flatten]\n{hubs}"));
        bench.run(&other, &["--workers", workers]).ok();
        for (output, wanted) in [MODEL, EMBEDDINGS].iter().zip(&expected) {
            let what = format!("{output}, {workers} workers, {hubs:?}");
            assert_same_bytes(wanted, &bench.data_files(output), &what);
        }
    }
}

#[test]
fn inference_reads_the_sample_of_the_plain_seed_here_and_elsewhere() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&streamed(&graph), &[]).ok();
    let expected = bench.data_files(EMBEDDINGS);
    let again = |job: &Job, args: &[&str]| {
        for gone in ["work", EMBEDDINGS] {
            std::fs::remove_dir_all(bench.path(gone)).unwrap();
        }
        bench.run(job, args).ok();
        let what = format!("{args:?}");
        assert_same_bytes(&expected, &bench.data_files(EMBEDDINGS), &what);
    };
    again(&streamed(&graph), &["--stage", "infer"]);
    // A job that only has the model, and another seed.
    let elsewhere = Job::new(&graph, &[INFER]).and("model = \"out/model\"");
    again(&elsewhere.with("seed = 7", "seed = 8"), &[]);
    // The model was evaluated on graph features of that seed: the same sample.
    let of_stored = Job::new(&graph, &[FLATTEN, INFER]).and("model = \"out/model\"");
    again(&of_stored, &[]);
}

#[test]
fn a_killed_streamed_run_ends_with_the_same_bytes() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = streamed(&graph).with("epochs = 4", "epochs = 6");
    bench.run(&job, &[]).ok();
    let expected = [MODEL, EMBEDDINGS].map(|output| bench.data_files(output));
    let mut killed = 0;
    for events in KILL_AFTER {
        bench.clear();
        killed += usize::from(run_and_kill(&bench, &job, events));
        bench.run(&job, &[]).ok();
        for (output, wanted) in [MODEL, EMBEDDINGS].iter().zip(&expected) {
            let what = format!("{output} after a kill at event {events}");
            assert_same_bytes(wanted, &bench.data_files(output), &what);
        }
    }
    assert!(killed >= 3, "only {killed} runs lived long enough");
}

#[test]
fn a_finished_training_is_skipped_and_one_of_another_sample_is_another() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = streamed(&graph);
    let skipped = |which: &Job| {
        bench.write(which);
        let args = ["run", "job.toml", "--json", "--stage", "train"];
        let outcome = bench.graphflat(&args);
        let last = outcome.events().pop();
        let code = outcome.code;
        last.filter(|_| code == 0)
            .map(|summary| summary["stages"][0]["skipped"] == true)
    };
    assert_eq!(skipped(&job), Some(false));
    assert_eq!(skipped(&job), Some(true));
    bench.graphflat(&["check", "job.toml"]).ok();
    for (from, to) in [
        ("fanouts = [4, 3]", "fanouts = [4, 2]"),
        ("\"uniform\"", "\"weighted\""),
        ("seed = 7", "seed = 8"),
        ("[flatten]\n", "[flatten]\ntargets = \"all\"\n"),
        ("targets_per_part = 16", "targets_per_part = 50"),
    ] {
        // The seed of the training stays the same: another one would make another training.
        let other = job.with(from, to).with("[train]\n", "[train]\nseed = 7\n");
        assert_eq!(skipped(&other), None, "{to}");
        let (checked, ran) = (
            bench.graphflat(&["check", "job.toml"]),
            bench.graphflat(&["run", "job.toml", "--stage", "train"]),
        );
        assert_eq!((checked.code, ran.code), (2, 2), "{to}: {checked:#?}");
        assert_eq!(checked.stderr, ran.stderr.replace("stage train: ", ""));
        bench.graphflat(&["check", "job.toml", "--fresh"]).ok();
    }
}

/// Spoils a streamed job; `check` and `run` must refuse it with the line `expected`.
#[track_caller]
fn refused(expected: Expect, from: &str, to: &str) {
    let graph = graph();
    let bench = Bench::new(&graph);
    let outcome = bench.run(&streamed(&graph).with(from, to), &[]);
    assert_eq!(outcome.code, 2, "{outcome:#?}");
    expected.assert_eq(&outcome.stderr);
    let checked = bench.graphflat(&["check", "job.toml"]);
    assert_eq!((checked.code, checked.stderr), (2, outcome.stderr));
    assert!(!bench.path("out").exists());
}

#[test]
fn what_has_no_meaning_for_a_stream_is_refused() {
    refused(
        expect![[r#"
            error: job.toml:19: `flatten.output` is given: streamed training writes no graph features; leave it out
        "#]],
        "[flatten]\n",
        "[flatten]\noutput = \"out/features\"\n",
    );
    refused(
        expect![[r#"
            error: job.toml:19: `flatten.layout` is given: streamed training writes no graph features; leave it out
        "#]],
        "[flatten]\n",
        "[flatten]\nlayout = \"shards\"\n",
    );
    refused(
        expect![[r#"
            error: job.toml:19: `flatten.samples_per_target` is given: streamed training writes no graph features; leave it out
        "#]],
        "[flatten]\n",
        "[flatten]\nsamples_per_target = 2\n",
    );
    refused(
        expect![[r#"
            error: job.toml:26: `train.input` is out/features: leave it out: with `train.streamed` nothing is read from files
        "#]],
        "streamed = true\n",
        "streamed = true\ninput = \"out/features\"\n",
    );
}
