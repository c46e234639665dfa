//! Other tools open every kind of output by its directory, and every Python snippet of the
//! documentation runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, Outcome, TRAIN};
use crate::link_models::USERS;
use crate::needs::{checkout, has_modules, python, skip, target_dir};
use crate::real::bench_for_jobs;
use crate::{score, typed_infer};

/// Opens directories in Python; each must have the given number of rows. Missing readers are left
/// out if `may_miss` names them; else the test is skipped for them.
fn check(python: &Path, bench: &Bench, directories: &[(&str, u64)], may_miss: &[&str]) {
    let mut command = Command::new(python);
    command.arg(checkout().join("tests/readers.py"));
    command.args(directories.iter().map(|(directory, _)| directory));
    command.current_dir(bench.path(""));
    let outcome = Outcome::of(&command.output().unwrap());
    assert_eq!(outcome.code, 0, "{outcome:#?}");
    let mut readers = 0;
    for line in outcome.stdout.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [reader, directory, rows] = words[..] else {
            if !may_miss.contains(&words[0]) {
                skip::<()>(&format!("outputs opened by {}", words[0]));
            }
            continue;
        };
        let known = directories.iter().find(|(name, _)| *name == directory);
        let (_, expected) = known.expect("the directory was given");
        assert_eq!(rows, expected.to_string(), "{reader}, {directory}");
        readers += 1;
    }
    assert!(readers >= 2 * directories.len(), "{outcome:#?}");
}

fn rows(bench: &Bench, output: &str) -> u64 {
    let manifest = bench.manifest(output);
    let parts = manifest["parts"].as_array().unwrap();
    parts
        .iter()
        .map(|part| part["rows"].as_u64().unwrap())
        .sum()
}

#[test]
fn other_tools_open_outputs_by_directory() {
    let Some(python) = python() else { return };
    let graph = Graph::new(90, IdKind::Utf8, FeatureKind::List).with_weights();
    let bench = Bench::new(&graph);
    let job = Job::new(&graph, &[FLATTEN, TRAIN, INFER]);
    bench.run(&job, &[]).ok();
    let rows_job = job
        .with("out/features", "out/rows")
        .with("layout = \"shards\"", "layout = \"rows\"");
    bench.run(&rows_job, &["--stage", "flatten"]).ok();
    let directories = [
        ("out/embeddings", rows(&bench, "out/embeddings")),
        ("out/rows", rows(&bench, "out/rows")),
    ];
    check(&python, &bench, &directories, &[]);
    // The oldest supported pyarrow, in an environment that `.ci/run` makes.
    let oldest = target_dir().join("venv14/bin/python");
    match oldest.is_file() {
        true => check(&oldest, &bench, &directories, &["duckdb", "polars"]),
        false => drop(skip::<()>("outputs opened by pyarrow 14")),
    }
}

/// Counts the rows of a directory, by the metadata of its files.
fn count(python: &Path, bench: &Bench, directory: &str) -> u64 {
    let read = "import sys, glob, pyarrow.parquet as pq; \
                print(sum(pq.ParquetFile(f).metadata.num_rows for f in glob.glob(sys.argv[1])))";
    let files = bench.path(&format!("{directory}/*.parquet"));
    let counted = Command::new(python).args(["-c", read]).arg(files).output();
    let outcome = Outcome::of(&counted.unwrap()).ok();
    outcome.stdout.trim().parse().unwrap()
}

/// Each table of `shards` is a directory.
#[test]
fn other_tools_open_the_tables_of_shards() {
    let Some(python) = python() else { return };
    let graph = Graph::new(90, IdKind::Int64, FeatureKind::Sparse);
    let bench = Bench::new(&graph);
    bench.run(&Job::new(&graph, &[FLATTEN]), &[]).ok();
    let count = |table: &str| count(&python, &bench, &format!("out/features/{table}"));
    let (nodes, edges) = (count("nodes"), count("edges"));
    let tables = [("out/features/nodes", nodes), ("out/features/edges", edges)];
    check(&python, &bench, &tables, &[]);
}

/// Each type and each relation has a directory.
#[test]
fn other_tools_open_the_tables_of_types_and_relations() {
    let Some(python) = python() else { return };
    let bench = typed_infer::bench();
    let job = Job::of_text(typed_infer::JOB);
    bench.run(&job, &[]).ok();
    let in_rows = job.with("out/features\"\n", "out/rows\"\nlayout = \"rows\"\n");
    bench.run(&in_rows, &["--stage", "flatten"]).ok();
    let tables = [
        "out/features/nodes/author",
        "out/features/nodes/paper",
        "out/features/edges/cites",
        "out/features/edges/writes",
        "out/features/edges/written_by",
        "out/embeddings/embeddings/author",
        "out/embeddings/embeddings/paper",
        "out/rows",
    ];
    let counted = tables.map(|table| (table, count(&python, &bench, table)));
    assert!(counted.iter().all(|(_, rows)| *rows > 0), "{counted:?}");
    let [.., authors, papers, targets] = counted.map(|(_, rows)| rows);
    assert_eq!(authors + papers, rows(&bench, "out/embeddings"));
    assert_eq!(targets, rows(&bench, "out/rows"));
    check(&python, &bench, &counted, &[]);
}

/// Best items and scores of listed pairs have a directory each.
#[test]
fn other_tools_open_the_tables_of_scores() {
    let Some(python) = python() else { return };
    let bench = score::bench();
    bench.run(&score::job("dot"), &[]).ok();
    // Each user is a query, and the src end of one listed pair.
    let tables = ["out/scores/items", "out/scores/pairs"].map(|table| (table, USERS as u64));
    check(&python, &bench, &tables, &[]);
}

/// Returns the Python blocks of a Markdown file.
fn snippets(text: &str) -> Vec<String> {
    let blocks = text.split("```python\n").skip(1);
    let code = blocks.map(|block| block.split("```").next().unwrap().to_owned());
    code.collect()
}

/// Returns the modules that a snippet imports.
fn modules(snippet: &str) -> Vec<&str> {
    snippet
        .lines()
        .filter_map(|line| {
            let rest = line
                .strip_prefix("import ")
                .or(line.strip_prefix("from "))?;
            rest.split([' ', '.', ',']).next()
        })
        .collect()
}

/// Libraries that cannot be installed for every Python; snippets that need them are left out there.
const MAY_MISS: [&str; 2] = ["faiss", "hnswlib"];

/// Returns the README and the pages of `docs`.
///
/// `docs/pyg.md` is left out: tests/pyg.rs runs its snippets, but for the first, which is a sketch.
fn pages() -> Vec<PathBuf> {
    let folders = ["docs", "docs/job"].map(|folder| checkout().join(folder));
    let docs = folders.map(|folder| std::fs::read_dir(folder).unwrap());
    let docs = docs
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = docs
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .filter(|path| !path.ends_with("pyg.md"))
        .collect();
    pages.sort();
    pages.insert(0, checkout().join("README.md"));
    pages
}

/// Jobs of the README whose outputs the snippets read.
const JOBS_READ: [&str; 2] = ["jobs/debian.toml", "jobs/debian-links.toml"];

#[test]
fn snippets_of_the_documentation_run() {
    let Some(python) = python() else { return };
    let bench = bench_for_jobs();
    for job in JOBS_READ {
        std::fs::copy(checkout().join(job), bench.path(job)).unwrap();
        let args = ["run", job, "--quiet", "--set", "train.epochs=1"];
        bench.graphflat(&args).ok();
    }
    let mut num_run = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for snippet in snippets(&text) {
            let modules = modules(&snippet);
            if !has_modules(&python, &modules) {
                let what = format!("a snippet of {} ({modules:?})", page.display());
                match modules.iter().any(|module| MAY_MISS.contains(module)) {
                    true => eprintln!("left out: {what}"),
                    false => drop(skip::<()>(&what)),
                }
                continue;
            }
            let run = Command::new(&python)
                .args(["-c", &snippet])
                .current_dir(bench.path(""))
                .output();
            let outcome = Outcome::of(&run.unwrap());
            assert_eq!(
                outcome.code,
                0,
                "{}: {snippet}\n{outcome:#?}",
                page.display()
            );
            num_run += 1;
        }
    }
    assert!(num_run > 0, "the README has one");
}
