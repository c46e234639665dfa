//! `graphflat inspect`: describes an output directory or a store.

mod model;
mod neighbourhood;
mod rows;

use std::io::Read as _;
use std::path::Path;

use schemas::dataset::verify_checksums;
use schemas::{Manifest, read_manifest};
use store::StoreMeta;

use crate::cli::InspectArgs;
use crate::console::line_out;
use crate::error::JobError;

pub(crate) use model::label_name;

/// Shows a directory.
///
/// # Errors
///
/// If it is no finished output and no store, or lacks the target.
pub(crate) fn inspect(args: &InspectArgs) -> anyhow::Result<()> {
    let text = describe(args)?;
    line_out(text.trim_end());
    Ok(())
}

fn describe(args: &InspectArgs) -> Result<String, JobError> {
    let dir = &schemas::path::resolve("PATH", Path::new(""), &args.path)?;
    if dir.join("store.json").is_file() {
        refuse_flags(args, "a store", &["--dot", "--target", "--limit"])?;
        return store(dir);
    }
    if let Some(what) = foreign(dir) {
        return Err(problem(dir, format!("{what}; {TAKEN}")));
    }
    let manifest = read_manifest(dir)?;
    match manifest.stage.as_str() {
        "flatten" => rows::graph_features(dir, args),
        "train" => {
            refuse_flags(args, "a model", &["--dot", "--target", "--limit"])?;
            verify_checksums(dir, &manifest.parts)?;
            model::model(dir, &manifest)
        }
        "infer" => {
            refuse_flags(args, "embeddings", &["--dot"])?;
            rows::embeddings(dir, args)
        }
        stage => Err(problem(
            dir,
            format!("holds the output of an unknown stage, `{stage}`"),
        )),
    }
}

/// The paths that `inspect` accepts.
const TAKEN: &str = "inspect takes a directory that a run wrote: the `output` of [flatten], [train] \
                     or [infer], or the store in `work_dir`";

/// Returns a description of a path that is no output and no store.
fn foreign(path: &Path) -> Option<String> {
    if !path.is_dir() {
        let mut start = [0; 4];
        let mut file = std::fs::File::open(path).ok()?;
        file.read_exact(&mut start).ok();
        let output = path
            .ancestors()
            .skip(1)
            .find(|above| read_manifest(above).is_ok());
        return Some(match (output, &start) {
            (Some(output), _) => format!("is a file of the output {}", output.display()),
            (None, b"PAR1") => "is a Parquet table".to_owned(),
            (None, _)
                if path
                    .extension()
                    .is_some_and(|extension| extension == "toml") =>
            {
                "looks like a job file, which `graphflat check` explains".to_owned()
            }
            (None, _) => "is a file".to_owned(),
        });
    }
    if path.join("store").join("store.json").is_file() {
        return Some("is a work_dir; its store is `store` in it".to_owned());
    }
    let is_table = |entry: std::fs::DirEntry| {
        let table = entry.path();
        table
            .extension()
            .is_some_and(|extension| extension == "parquet")
    };
    let holds_tables = std::fs::read_dir(path).ok()?.flatten().any(is_table);
    (holds_tables && read_manifest(path).is_err() && !path.join("_progress").exists())
        .then(|| "is a directory of Parquet tables".to_owned())
}

/// Refuses flags that do not apply to the content of the directory.
fn refuse_flags(args: &InspectArgs, what: &str, flags: &[&str]) -> Result<(), JobError> {
    let given = [
        ("--dot", args.dot),
        ("--target", args.target.is_some()),
        ("--limit", args.limit.is_some()),
    ];
    match given
        .iter()
        .find(|(flag, given)| *given && flags.contains(flag))
    {
        Some((flag, _)) => Err(problem(
            &args.path,
            format!("holds {what}, so {flag} does not apply"),
        )),
        None => Ok(()),
    }
}

fn problem(dir: &Path, problem: String) -> JobError {
    JobError::Inspect {
        path: dir.to_owned(),
        problem,
    }
}

fn heading(manifest: &Manifest) -> String {
    let rows: u64 = manifest.parts.iter().map(|part| part.rows).sum();
    let files = || manifest.parts.iter().flat_map(|part| &part.files);
    let bytes: u64 = files().map(|file| file.bytes).sum();
    format!(
        "{}: {rows} rows, {} parts, {bytes} bytes, seed {}, by {}, fingerprint {}\n",
        manifest.stage,
        manifest.parts.len(),
        manifest.seed,
        manifest.program,
        manifest.fingerprint
    )
}

fn store(dir: &Path) -> Result<String, JobError> {
    let meta = StoreMeta::read(dir)?.ok_or_else(|| problem(dir, "holds no store".to_owned()))?;
    let one = |keep: &Option<u64>| keep.map_or("all".to_owned(), |keep| format!("up to {keep}"));
    let keep: Vec<String> = meta.keep.0.iter().map(one).collect();
    let keep = keep.join(", ");
    let bytes: u64 = meta.files.iter().map(|file| file.bytes).sum();
    let mut text = format!(
        "store: {} nodes in {} partitions, {keep} in-edges a node, {} sampling, seed {}, {} \
         sample(s), {bytes} bytes\n",
        meta.num_nodes,
        meta.workers,
        serde_json::to_string(&meta.sampling)
            .unwrap_or_default()
            .trim_matches('"'),
        meta.seed,
        meta.samples
    );
    text.push_str(&format!("edges: {}\n", serde_json::json!(meta.edges)));
    Ok(text)
}

/// Appends how many entries of a list are left out.
fn more(text: &mut String, count: usize, shown: usize, what: &str) {
    if count > shown {
        text.push_str(&format!("  ... {} more {what}\n", count - shown));
    }
}
