//! Golden fingerprints: graph features, models and embeddings have the bytes of earlier versions.
//!
//! If a change changes bytes on purpose, a run with `UPDATE_EXPECT=1` records them, and the commit
//! says why. Flatten only copies and sums exactly, so its bytes depend neither on the processor nor
//! on the number of workers. The last bits of a model depend on the processor and on the library of
//! mathematical functions, so models are compared only if `golden/models` has a file of both.

use std::io::Write as _;

use expect_test::expect_file;
use schemas::xxh::fingerprint;

use crate::harness::{Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, TRAIN};
use crate::needs::checkout;
use crate::real::bench_for_jobs;

/// Values at which the mathematical functions are compared.
const PROBES: u32 = 20_000;

/// A generated graph, and a job on it.
struct Case {
    name: &'static str,
    graph: Graph,
    /// Texts that the job replaces in the usual job.
    changes: &'static [(&'static str, &'static str)],
    /// Texts that it replaces in `[train]`; none if the graph has no features to train on.
    model: Option<&'static [(&'static str, &'static str)]>,
}

fn cases() -> Vec<Case> {
    let graph = |ids, features| Graph::new(150, ids, features);
    vec![
        Case {
            name: "plain",
            graph: graph(IdKind::Int64, FeatureKind::List),
            changes: &[],
            model: Some(&[("\"sage\"", "\"gcn\"\ndropout = 0.3")]),
        },
        Case {
            name: "sparse-weighted",
            graph: graph(IdKind::Utf8, FeatureKind::Sparse).with_weights(),
            changes: &[("\"uniform\"", "\"weighted\"")],
            model: Some(&[("\"sage\"", "\"sage\"\naggregator = \"max\"")]),
        },
        Case {
            name: "top-of-several-samples",
            graph: graph(IdKind::Int64, FeatureKind::FixedList).with_weights(),
            changes: &[
                ("\"uniform\"", "\"top\""),
                ("targets_per_part = 16", "samples_per_target = 2"),
            ],
            model: Some(&[("\"sage\"", "\"gat\"\nheads = 2")]),
        },
        Case {
            name: "undirected-whole",
            graph: graph(IdKind::Utf8, FeatureKind::Columns).with_weights(),
            changes: &[
                ("fanouts = [4, 3]", "fanouts = [\"all\", \"all\"]"),
                ("dst = \"dst\"", "dst = \"dst\"\nundirected = true"),
            ],
            model: Some(&[("\"sage\"", "\"gin\"\nnorm = \"batch\"")]),
        },
        Case {
            name: "hub-of-three-hops",
            graph: graph(IdKind::Int64, FeatureKind::List).with_in_edges(400),
            changes: &[
                (
                    "hops = 2\nfanouts = [4, 3]",
                    "hops = 3\nfanouts = [3, 5, 2]",
                ),
                ("targets_per_part = 16", "hub_threshold = 50"),
            ],
            model: Some(&[
                ("\"sage\"", "\"gatv2\"\nheads = 2\nnorm = \"layer\""),
                ("hidden = [8]", "hidden = [8, 8, 4]"),
            ]),
        },
        Case {
            name: "without-features",
            graph: graph(IdKind::Utf8, FeatureKind::None),
            changes: &[("targets_per_part = 16", "targets = \"all\"")],
            model: None,
        },
    ]
}

/// Returns the usual job with replacements.
fn job(case: &Case, stages: &[&str], model: &[(&str, &str)]) -> Job {
    let changes = case.changes.iter().chain(model);
    changes.fold(Job::new(&case.graph, stages), |job, (from, to)| {
        job.with(from, to)
    })
}

/// Returns a line of a golden file: the output of a stage, and its fingerprint.
fn line(bench: &Bench, name: &str, what: &str, output: &str) -> String {
    let mut files = bench.data_files(output);
    // Scores and losses are left out: they follow from the weights.
    files.retain(|path, _| path.ends_with(".parquet") || path.ends_with(".safetensors"));
    let bytes: usize = files.values().map(Vec::len).sum();
    let mut all = Vec::new();
    for (path, content) in &files {
        all.extend(format!("{path} {}\n", fingerprint(content)).into_bytes());
    }
    let (count, of_all) = (files.len(), fingerprint(&all));
    format!("{name} {what}: {count} files, {bytes} bytes, {of_all}\n")
}

/// Returns a bench with the Debian job of the repository.
fn debian() -> Bench {
    let bench = bench_for_jobs();
    let job = std::fs::read_to_string(checkout().join("jobs/debian.toml")).unwrap();
    std::fs::write(bench.path("job.toml"), job).unwrap();
    bench
}

#[test]
fn flatten_writes_the_bytes_of_earlier_versions() {
    let mut lines = String::new();
    for case in cases() {
        let bench = Bench::new(&case.graph);
        for layout in ["rows", "shards"] {
            let job = job(&case, &[FLATTEN], &[]);
            let job = job.with("layout = \"shards\"", &format!("layout = \"{layout}\""));
            bench.run(&job, &["--fresh"]).ok();
            lines.push_str(&line(&bench, case.name, layout, "out/features"));
        }
    }
    let bench = debian();
    let args = ["run", "job.toml", "--quiet", "--stage", "flatten"];
    bench.graphflat(&args).ok();
    let output = "out/debian/graphfeatures";
    lines.push_str(&line(&bench, "debian", "shards", output));
    let golden = checkout().join("tests/golden/flatten.txt");
    expect_file![golden].assert_eq(&lines);
}

#[test]
fn models_and_embeddings_are_those_of_earlier_versions() {
    let mut lines = machine();
    let name: String = lines
        .chars()
        .map(|c| if c.is_alphanumeric() { c } else { '-' })
        .collect();
    let golden = checkout()
        .join("tests/golden/models")
        .join(format!("{}.txt", name.trim_end_matches('-')));
    if !golden.exists() && std::env::var_os("UPDATE_EXPECT").is_none() {
        writeln!(
            std::io::stderr(),
            "left out: golden models, of which {} does not exist; UPDATE_EXPECT=1 records them",
            golden.display()
        )
        .expect("standard error is open");
        return;
    }
    for case in cases() {
        let Some(model) = case.model else { continue };
        let bench = Bench::new(&case.graph);
        bench
            .run(&job(&case, &[FLATTEN, TRAIN, INFER], model), &[])
            .ok();
        for output in ["model", "embeddings"] {
            lines.push_str(&line(&bench, case.name, output, &format!("out/{output}")));
        }
    }
    let bench = debian();
    let args = ["run", "job.toml", "--quiet", "--set", "train.epochs=2"];
    bench.graphflat(&args).ok();
    for output in ["model", "embeddings"] {
        let dir = format!("out/debian/{output}");
        lines.push_str(&line(&bench, "debian", output, &dir));
    }
    expect_file![golden].assert_eq(&lines);
}

/// Returns a line with the processor's instructions and values of the mathematical functions, on
/// which the last bits of a model depend.
fn machine() -> String {
    let mut all = Vec::new();
    for probe in 0..PROBES {
        let x = (probe as f32).mul_add(1e-3, -9.0);
        for value in [x.exp(), x.exp_m1(), x.tanh(), x.abs().ln(), x.abs().ln_1p()] {
            all.extend(value.to_le_bytes());
        }
        let x = f64::from(x);
        for value in [x.exp(), x.tanh(), x.abs().ln(), x.abs().sqrt(), x.cos()] {
            all.extend(value.to_le_bytes());
        }
    }
    let (arch, features) = (std::env::consts::ARCH, features().join(" "));
    let functions = fingerprint(&all);
    format!("{arch} {features}, functions {functions}\n")
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let known = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
    ];
    let found = known.iter().filter(|(_, is_there)| *is_there);
    found.map(|(name, _)| *name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    Vec::new()
}
