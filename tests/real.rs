//! Real graphs: the jobs of the repository, and brute-force checks by an independent program.
//!
//! A test that needs the data sets or Python is skipped where they are missing (`needs.rs`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray as _, StringArray};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::harness::{Bench, Outcome, Table};
use crate::needs::{checkout, data, python, skip};

/// Text in the jobs of the repository that stands for the folder of data sets.
pub(crate) const DATA_VARIABLE: &str = "${env:GRAPHFLAT_DATA}";

/// Predictions of `check` are within this factor of the bytes that are written.
const PREDICTION_FACTOR_MAX: f64 = 2.0;

/// Number of targets that the brute-force checker compares in full.
const TARGETS_CHECKED: &str = "600";

/// Low, so that many nodes are hubs.
const HUB_THRESHOLD: u32 = 20;

const FANOUTS: [(&str, &str); 3] = [
    ("[\"all\", \"all\"]", "all,all"),
    ("[10, 5]", "10,5"),
    ("[5, 10]", "5,10"),
];

/// The brute-force checker of layout `rows`, a program beside the data sets.
fn checker(data: &Path) -> Option<PathBuf> {
    let checker = data.join("../check/check_rows.py");
    match checker.is_file() {
        true => Some(checker),
        false => skip(&format!("{} is missing", checker.display())),
    }
}

/// A data set, and the keys to read it.
struct Case {
    nodes: &'static str,
    edges: &'static str,
    /// Lines of `[input.nodes]` and `[input.edges]` beyond the path.
    node_keys: &'static str,
    edge_keys: &'static str,
    /// Lines of `[flatten]` beyond fan-outs and sampling.
    flatten_keys: &'static str,
    samplings: &'static [&'static str],
    /// Arguments of the checker.
    checker: &'static [&'static str],
}

#[track_caller]
fn check(case: &Case, fanouts_checked: &[(&str, &str)]) {
    let (Some(data), Some(python)) = (data(), python()) else {
        return;
    };
    let Some(program) = checker(&data) else {
        return;
    };
    for (fanouts, fanout_arg) in fanouts_checked {
        for sampling in case.samplings {
            let bench = Bench::empty();
            let (nodes, edges) = (data.join(case.nodes), data.join(case.edges));
            let text = format!(
                "name = \"real\"\nseed = 11\nworkers = 3\n[input.nodes]\npath = {nodes:?}\n{}\n\
                 [input.edges]\npath = {edges:?}\n{}\n[flatten]\noutput = \"rows\"\nhops = 2\n\
                 layout = \"rows\"\nfanouts = {fanouts}\nsampling = {sampling:?}\n\
                 hub_threshold = {HUB_THRESHOLD}\n{}\n",
                case.node_keys, case.edge_keys, case.flatten_keys
            );
            std::fs::write(bench.path("job.toml"), text).unwrap();
            if case.flatten_keys.contains("targets.parquet") {
                write_targets(&nodes, "package", &bench.path("targets.parquet"));
            }
            bench.graphflat(&["run", "job.toml", "--quiet"]).ok();
            let mut checker = Command::new(&python);
            checker.arg(&program);
            checker
                .arg("--nodes")
                .arg(&nodes)
                .arg("--edges")
                .arg(&edges);
            checker.arg("--output").arg(bench.path("rows"));
            checker
                .args(["--fanout", fanout_arg, "--targets", TARGETS_CHECKED])
                .args(case.checker);
            let outcome = Outcome::of(&checker.output().unwrap());
            let what = format!("{} {fanout_arg} {sampling}: {outcome:#?}", case.nodes);
            assert_eq!(outcome.code, 0, "{what}");
            assert!(outcome.stdout.starts_with("ok:"), "{what}");
        }
    }
}

/// Writes every 40th id of a node table as a list of targets.
fn write_targets(nodes: &Path, id: &str, path: &Path) {
    let file = std::fs::File::open(nodes).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file)
        .unwrap()
        .build()
        .unwrap();
    let mut ids = Vec::new();
    for batch in reader {
        let batch = batch.unwrap();
        let column: &ArrayRef = batch.column_by_name(id).unwrap();
        ids.extend(
            column
                .as_string::<i32>()
                .iter()
                .map(|value| value.unwrap().to_owned()),
        );
    }
    let mut table = Table::default();
    let chosen: Vec<&str> = ids.iter().step_by(40).map(String::as_str).collect();
    table.set(id, Arc::new(StringArray::from(chosen)));
    table.write(path);
}

const DENSE: &str = "id = \"id\"\nfeatures = [\"features\"]\nlabel = \"label\"\nsplit = \"split\"";
const PLAIN_EDGES: &str = "src = \"src\"\ndst = \"dst\"";

#[test]
fn cora_is_flattened_right() {
    let case = Case {
        nodes: "cora/nodes.parquet",
        edges: "cora/edges.parquet",
        node_keys: DENSE,
        edge_keys: PLAIN_EDGES,
        flatten_keys: "",
        samplings: &["uniform"],
        checker: &["--expect-targets", "1640"],
    };
    check(&case, &FANOUTS);
}

#[test]
fn citeseer_is_flattened_right() {
    let case = Case {
        nodes: "citeseer/nodes.parquet",
        edges: "citeseer/edges.parquet",
        node_keys: DENSE,
        edge_keys: PLAIN_EDGES,
        flatten_keys: "",
        samplings: &["uniform"],
        checker: &["--expect-targets", "1620"],
    };
    check(&case, &FANOUTS);
}

#[test]
fn citeseer_with_sparse_features_is_flattened_right() {
    let case = Case {
        nodes: "citeseer/nodes_sparse.parquet",
        edges: "citeseer/edges.parquet",
        node_keys: "id = \"id\"\nlabel = \"label\"\nsplit = \"split\"\n\
                    sparse = { index = \"feat_idx\", value = \"feat_val\", width = 3703 }",
        edge_keys: PLAIN_EDGES,
        flatten_keys: "targets = \"all\"",
        samplings: &["uniform"],
        checker: &["--features", "none", "--expect-targets", "3327"],
    };
    check(&case, &FANOUTS);
}

#[test]
fn debian_packages_are_flattened_right() {
    let case = Case {
        nodes: "debian-packages/nodes.parquet",
        edges: "debian-packages/edges.parquet",
        node_keys: "id = \"package\"\nfeatures = [\"features\"]\nlabel = \"section\"\n\
                    split = \"split\"",
        edge_keys: "src = \"needs\"\ndst = \"package\"\nweight = \"weight\"",
        flatten_keys: "targets = \"targets.parquet\"",
        samplings: &["uniform", "weighted", "top"],
        checker: &[
            "--id", "package", "--src", "needs", "--dst", "package", "--weight", "weight",
        ],
    };
    check(&case, &FANOUTS);
}

#[test]
fn debian_packages_both_ways_are_flattened_right() {
    let case = Case {
        nodes: "debian-packages/nodes.parquet",
        edges: "debian-packages/edges.parquet",
        node_keys: "id = \"package\"\nlabel = \"section\"\nsplit = \"split\"",
        edge_keys: "src = \"needs\"\ndst = \"package\"\nweight = \"weight\"\nundirected = true",
        flatten_keys: "targets = \"targets.parquet\"",
        samplings: &["weighted"],
        checker: &[
            "--id",
            "package",
            "--src",
            "needs",
            "--dst",
            "package",
            "--weight",
            "weight",
            "--features",
            "none",
            "--undirected",
        ],
    };
    // With every in-edge, two hops both ways are half of Debian: too much for brute force.
    check(&case, &FANOUTS[1..]);
}

#[test]
fn bitcoin_otc_is_flattened_right() {
    let case = Case {
        nodes: "bitcoin-otc/nodes.parquet",
        edges: "bitcoin-otc/edges.parquet",
        node_keys: "id = \"id\"",
        edge_keys: "src = \"src\"\ndst = \"dst\"\nweight = \"weight\"",
        flatten_keys: "targets = \"all\"",
        samplings: &["uniform", "top"],
        checker: &[
            "--features",
            "none",
            "--weight",
            "weight",
            "--expect-targets",
            "5881",
        ],
    };
    check(&case, &FANOUTS);
}

/// The jobs of the repository, each as `(name, text)`.
fn jobs_of_the_repository() -> Vec<(String, String)> {
    let mut jobs: Vec<(String, String)> = std::fs::read_dir(checkout().join("jobs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let is_toml = path
                .extension()
                .is_some_and(|extension| extension == "toml");
            is_toml && path.file_name().is_some_and(|name| name != "Cargo.toml")
        })
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    jobs.sort();
    jobs
}

/// Makes the tables of `bitcoin-trust` as `jobs/data/README.md` says; returns the folder that a job
/// then finds them in.
fn with_bitcoin_trust(bench: &Bench, data: &Path) -> Option<PathBuf> {
    let folder = bench.path("data");
    let script = checkout().join("jobs/data/bitcoin_trust.py");
    let tables = [data.join("bitcoin-otc"), folder.join("bitcoin-trust")];
    let made = Command::new(python()?).arg(script).args(tables).output();
    Outcome::of(&made.unwrap()).ok();
    Some(folder)
}

/// A directory in which the jobs of the repository find their tables but write elsewhere.
pub(crate) fn bench_for_jobs() -> Bench {
    let bench = Bench::empty();
    let link = |from: PathBuf, to: PathBuf| std::os::unix::fs::symlink(from, to).unwrap();
    std::fs::create_dir(bench.path("jobs")).unwrap();
    link(checkout().join("jobs/data"), bench.path("jobs/data"));
    bench
}

#[test]
fn every_job_of_the_repository_is_valid() {
    let jobs = jobs_of_the_repository();
    assert!(jobs.iter().any(|(name, _)| name == "debian"));
    for (name, text) in jobs {
        assert!(
            text.contains(&format!("name = \"{name}\"")),
            "{name} is named as its file"
        );
        let bench = bench_for_jobs();
        let text = match text.contains(DATA_VARIABLE) {
            true => {
                let Some(data) = data() else { continue };
                let folder = match name.as_str() {
                    "bitcoin-trust" => with_bitcoin_trust(&bench, &data),
                    _ => Some(data),
                };
                let Some(folder) = folder else { continue };
                text.replace(DATA_VARIABLE, &folder.display().to_string())
            }
            false => text,
        };
        // A streamed training writes no graph features.
        let count = match text.contains("streamed = true") {
            true => "/pairs/train",
            false => "/flatten/rows",
        };
        std::fs::write(bench.path("job.toml"), text).unwrap();
        let outcome = bench.graphflat(&["check", "job.toml", "--json"]).ok();
        let report = &outcome.events()[0];
        let count = report.pointer(count).and_then(serde_json::Value::as_u64);
        assert!(count.is_some_and(|count| count > 0), "{name}: {report}");
        assert!(
            !bench.path("out").exists() && !bench.path("work").exists(),
            "{name} wrote"
        );
    }
}

/// Compares the prediction of `check` with the bytes that the flatten stage writes.
#[track_caller]
fn check_prediction(text: &str, what: &str, layouts: &[&str]) {
    let bench = bench_for_jobs();
    for layout in layouts {
        let rest: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with("layout"))
            .collect();
        let asked = format!("[flatten]\nlayout = \"{layout}\"");
        let job = rest.join("\n").replace("[flatten]", &asked);
        std::fs::write(bench.path("job.toml"), job).unwrap();
        let predicted = bench
            .graphflat(&["check", "job.toml", "--json", "--fresh"])
            .ok()
            .events()
            .remove(0);
        let args = ["run", "job.toml", "--json", "--stage", "flatten", "--fresh"];
        let written = bench.graphflat(&args).ok().events().pop().unwrap();
        let (flatten, stage) = (&predicted["flatten"], &written["stages"][0]);
        assert_eq!(flatten["rows"], stage["rows"], "{what}, {layout}");
        let bytes = stage["bytes"].as_f64().unwrap();
        let factor = flatten["bytes"][layout].as_f64().unwrap() / bytes;
        eprintln!("{what}, {layout}: {bytes} bytes, predicted / written = {factor:.2}");
        let allowed = 1.0 / PREDICTION_FACTOR_MAX..=PREDICTION_FACTOR_MAX;
        assert!(
            allowed.contains(&factor),
            "{what}, {layout}: {factor} of {bytes} bytes"
        );
    }
}

#[test]
fn check_predicts_what_debian_takes() {
    let job = std::fs::read_to_string(checkout().join("jobs/debian.toml")).unwrap();
    check_prediction(&job, "debian", &["shards"]);
    let typed = std::fs::read_to_string(checkout().join("jobs/debian-typed.toml")).unwrap();
    check_prediction(&typed, "debian, typed", &["shards"]);
    // All rows of Debian would take gigabytes: every 40th target is enough.
    let bench = bench_for_jobs();
    let targets = bench.path("targets.parquet");
    write_targets(
        &checkout().join("jobs/data/debian/nodes.parquet"),
        "package",
        &targets,
    );
    let listed = format!("[flatten]\ntargets = {targets:?}");
    check_prediction(
        &job.replace("[flatten]", &listed),
        "debian, some",
        &["rows"],
    );
}

#[test]
fn check_predicts_what_other_graphs_take() {
    let Some(data) = data() else { return };
    for name in ["cora", "citeseer", "amazon-photo", "bitcoin-otc"] {
        let job = std::fs::read_to_string(checkout().join(format!("jobs/{name}.toml"))).unwrap();
        check_prediction(
            &job.replace(DATA_VARIABLE, &data.display().to_string()),
            name,
            &["shards", "rows"],
        );
    }
}
