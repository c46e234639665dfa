//! Graphs with node types in several processes: the same bytes as in one.

use std::sync::Arc;

use arrow::array::Int64Array;

use crate::cluster::survive_kills;
use crate::embeddings;
use crate::harness::{Bench, Job, Table, assert_same_bytes};
use crate::needs::slow;
use crate::typed_infer::{JOB, bench, bench_of};

const OUTPUTS: [&str; 3] = ["out/features", "out/model", "out/embeddings"];

/// Several parts of each type.
fn job(model: &str) -> Job {
    Job::of_text(JOB)
        .with("model = \"rgcn\"", model)
        .with(
            "targets = \"all\"\n",
            "targets = \"all\"\ntargets_per_part = 16\n",
        )
        .and("rows_per_part = 20")
}

/// A job whose relations each lead from a type to itself.
fn inner_job() -> Job {
    let job = job("model = \"gcn\"\nedge_weight = true");
    let (nodes, rest) = job.0.split_once("[input.edges.writes]").unwrap();
    let (_, rest) = rest.split_once("[input.edges.cites]").unwrap();
    let (paper, _) = nodes.split_once("[input.nodes.author]").unwrap();
    let weight = "dst = \"dst\"\nweight = \"weight\"\n";
    let again = "[input.edges.quotes]\npath = \"cites.parquet\"\nfrom = \"paper\"\nto = \
                 \"paper\"\nsrc = \"dst\"\ndst = \"src\"\nweight = \"weight\"\n";
    Job(format!("{paper}{again}[input.edges.cites]{rest}"))
        .with("dst = \"dst\"\n", weight)
        .with("{ writes = 3, cites = 2 }", "{ quotes = 3, cites = 2 }")
}

/// Runs stages in one process and then in several, and compares their outputs.
fn check(bench: &Bench, job: &Job, what: &str, (stages, outputs): (&[&str], &[&str])) {
    let fresh = [stages, &["--fresh"]].concat();
    bench.run(job, &fresh).ok();
    let expected: Vec<_> = outputs.iter().map(|of| bench.data_files(of)).collect();
    assert!(expected.iter().all(|files| !files.is_empty()), "{what}");
    let error_of_16_bits = || bench.manifest(OUTPUTS[2])["report"]["rows_compared"].clone();
    let error = error_of_16_bits();
    for (processes, workers) in [("2", "1"), ("3", "2")] {
        let several = ["--processes", processes, "--workers", workers];
        bench.run(job, &[&fresh[..], &several].concat()).ok();
        for (output, files) in outputs.iter().zip(&expected) {
            let what = format!("{output} of {what}, {processes} processes");
            assert_same_bytes(files, &bench.data_files(output), &what);
        }
        assert_eq!(error_of_16_bits(), error, "{what}, {processes} processes");
    }
}

#[test]
fn all_stages_give_the_bytes_of_one_process() {
    let bench = bench();
    let jobs = [
        job("model = \"rgcn\"\nbases = 2"),
        job("model = \"sage\"\nrelation_aggregator = \"mean\"").with(
            "output = \"out/features\"",
            "output = \"out/features\"\nlayout = \"rows\"\nhub_threshold = 4",
        ),
        inner_job(),
    ];
    for (at, job) in jobs.iter().enumerate() {
        check(&bench, job, &format!("job {at}"), (&[], &OUTPUTS));
    }
}

/// Kinds that aggregate projected rows, unprojected rows, scores, and rows of all types at once.
#[test]
fn every_kind_of_model_gives_the_bytes_of_one_process() {
    let bench = bench();
    for model in [
        "model = \"sage\"\naggregator = \"max\"\nrelation_aggregator = \"max\"",
        "model = \"gat\"\nheads = 2",
        "model = \"gatv2\"\nheads = 2",
        "model = \"gin\"",
        "model = \"simple_hgn\"\nheads = 2\nrelation_dim = 4\nresidual = true",
        "model = \"hgt\"\nheads = 2",
    ] {
        let job = job(model);
        let both = ["--stage", "flatten", "--stage", "train", "--fresh"];
        bench.run(&job, &both).ok();
        let infer: (&[&str], &[&str]) = (&["--stage", "infer"], &OUTPUTS[2..]);
        check(&bench, &job, model, infer);
        let all = job.and("sampling = \"none\"");
        check(&bench, &all, &format!("{model}, all"), infer);
    }
}

/// A node with enough in-edges of two relations to be aggregated by segments, each in the process
/// that holds its rows.
#[test]
fn a_hub_gives_the_bytes_of_one_process() {
    let bench = bench_of(400, 9000);
    for model in [
        "model = \"rgcn\"\nbases = 2",
        "model = \"sage\"\naggregator = \"max\"\nrelation_aggregator = \"max\"",
        "model = \"gat\"\nheads = 2",
        "model = \"gatv2\"\nheads = 2\nrelation_aggregator = \"mean\"",
        "model = \"gin\"",
        "model = \"simple_hgn\"\nheads = 2\nrelation_dim = 4\nattention_residual = 0.3",
        "model = \"hgt\"\nheads = 2",
    ] {
        check_hub(&bench, &job(model), model);
    }
    check_hub(&bench, &inner_job(), "gcn");
}

fn check_hub(bench: &Bench, job: &Job, what: &str) {
    let both = ["--stage", "flatten", "--stage", "train", "--fresh"];
    bench.run(job, &both).ok();
    let infer: (&[&str], &[&str]) = (&["--stage", "infer"], &OUTPUTS[2..]);
    let all = job.and("sampling = \"none\"\ncompare_sampling = true");
    check(bench, &all, what, infer);
    check(bench, &all.and("rows = \"bf16\""), what, infer);
}

/// A process with a hub that has in-edges from most nodes of a type receives no more than its share
/// of rows.
#[test]
fn no_process_gets_more_rows_because_of_a_hub() {
    let bench = bench_of(15_000, 30_000);
    let job = job("model = \"hgt\"\nheads = 2").and("sampling = \"none\"");
    let stages = ["--stage", "flatten", "--stage", "train"];
    bench.run(&job, &stages).ok();
    let args = ["--stage", "infer", "--processes", "4", "--workers", "1"];
    bench.run(&job, &args).ok();
    let report = bench.manifest(OUTPUTS[2])["report"].clone();
    let processes = report["processes"].as_array().unwrap();
    for round in 0..3 {
        let received = |of: &serde_json::Value| {
            let bytes = of[round]["crossing"]["bytes_received"].as_u64();
            u32::try_from(bytes.unwrap()).unwrap()
        };
        let received: Vec<u32> = processes.iter().map(received).collect();
        let [least, most] = [received.iter().min(), received.iter().max()].map(|of| *of.unwrap());
        // Else the process that owns the hub would receive keys and values of most authors.
        let all_authors = 2 * 4 * 8 * 15_000;
        assert!(most < all_authors / 4, "round {round}: {received:?}");
        // A state for each segment of the hub: 8 sums, and two numbers for each of two heads.
        let states = 480 * 4 * (8 + 2 * 2);
        assert!(most <= least + states, "round {round}: {received:?}");
    }
}

#[test]
fn every_choice_of_output_gives_the_bytes_of_one_process() {
    let bench = bench();
    let job = job("model = \"hgt\"\nheads = 2");
    bench
        .run(&job, &["--stage", "flatten", "--stage", "train"])
        .ok();
    let mut list = Table::default();
    let ids = Int64Array::from_iter_values((0..37).map(|at| 2 * at));
    list.set("id", Arc::new(ids));
    list.write(&bench.path("list.parquet"));
    let infer: (&[&str], &[&str]) = (&["--stage", "infer"], &OUTPUTS[2..]);
    for choice in [
        "logits = true\nprobabilities = true\nnormalize = true\nprecision = \"f16\"",
        "layer = 1",
        "columns = [\"label\"]\ncompare_sampling = true",
        "layer = 1\nrows = \"bf16\"",
        "targets = \"list.parquet\"",
    ] {
        check(&bench, &job.and(choice), choice, infer);
    }
    let in_16_bits = job.and("rows = \"bf16\"");
    check(&bench, &in_16_bits, "rows in 16 bits", infer);
    let compared = &bench.manifest(OUTPUTS[2])["report"]["rows_compared"];
    assert!(compared["nodes"].as_u64() > Some(30), "{compared}");
    let target = job.with("types = \"all\"\n", "");
    check(&bench, &target, "the target type alone", infer);
    let told = |args: &[&str]| {
        let args = [&["--stage", "infer", "--fresh"][..], args].concat();
        bench.run(&job.and("compare_sampling = true"), &args).ok();
        bench.manifest(OUTPUTS[2])["report"].clone()
    };
    let (one, three) = (told(&[]), told(&["--processes", "3"]));
    for key in ["nodes", "other_predictions", "largest_distance"] {
        let figure = |report: &serde_json::Value| report["sampling_compared"][key].clone();
        assert!(!figure(&one).is_null(), "{one}");
        assert_eq!(figure(&one), figure(&three), "{key}");
    }
    let sum = |round: usize, key: &str| -> u64 {
        let of = three["processes"].as_array().unwrap().iter();
        of.map(|rounds| rounds[round]["crossing"][key].as_u64().unwrap())
            .sum()
    };
    for round in 0..2 {
        assert!(sum(round, "bytes_sent") > 0, "{three}");
        assert_eq!(sum(round, "bytes_sent"), sum(round, "bytes_received"));
        assert!(sum(round, "bytes_least") <= sum(round, "bytes_received"));
    }
    let absent = Int64Array::from_iter_values([1, 4000]);
    list.set("id", Arc::new(absent));
    list.write(&bench.path("list.parquet"));
    let unknown = job.and("targets = \"list.parquet\"");
    let args = ["--stage", "infer", "--fresh", "--processes", "3"];
    let refused = bench.run(&unknown, &args);
    assert_eq!(refused.code, 3, "{refused:?}");
    assert!(refused.stderr.contains("list.parquet"), "{refused:?}");
}

#[test]
fn a_process_that_is_killed_loses_no_finished_round() {
    if !slow() {
        return;
    }
    let bench = bench();
    let job = job("model = \"gat\"\nheads = 2").with("rows_per_part = 20", "rows_per_part = 1");
    bench
        .run(&job, &["--stage", "flatten", "--stage", "train"])
        .ok();
    survive_kills(&bench, &job, ("infer", "infer, "), OUTPUTS[2]);
    let left = bench.path("work/typed/process-001/infer");
    assert!(!left.exists(), "rounds are removed in the end");
}

/// Learnable rows of two types, on the shards of several processes.
fn learnable() -> Job {
    Job::of_text(embeddings::JOB).with("epochs = 12", "epochs = 6\nservers = 2")
}

#[test]
fn learnable_rows_have_the_bytes_of_one_process() {
    check(
        &embeddings::bench(),
        &learnable(),
        "learnable rows",
        (&[], &OUTPUTS),
    );
}

#[test]
fn learnable_rows_are_trained_by_workers_that_do_not_wait() {
    let bench = embeddings::bench();
    for mode in ["mode = \"async\"", "mode = \"bounded\"\nstaleness = 2"] {
        let job = learnable().with("servers = 2", &format!("servers = 2\n{mode}"));
        let several = ["--fresh", "--processes", "3", "--workers", "2"];
        bench.run(&job, &several).ok();
        let file = std::fs::read_to_string(bench.path("out/model/evaluation.json")).unwrap();
        let evaluation: serde_json::Value = serde_json::from_str(&file).unwrap();
        let accuracy = evaluation["splits"]["train"]["metrics"]["accuracy"]
            .as_f64()
            .unwrap();
        // A third of the labels is the most frequent one.
        assert!(accuracy > 0.5, "{mode}: {accuracy}");
    }
}

#[test]
fn a_killed_training_of_learnable_rows_goes_on() {
    if !slow() {
        return;
    }
    let bench = embeddings::bench();
    let job = learnable()
        .with("epochs = 6", "epochs = 60")
        .with("servers = 2", "servers = 2\ncheckpoint_every_steps = 5");
    bench.run(&job, &["--stage", "flatten"]).ok();
    survive_kills(&bench, &job, ("train", "train, epoch "), OUTPUTS[1]);
}
