//! `graphflat inspect`: describes an output directory or a store.

mod json;
mod model;
mod neighbourhood;
mod pairs;
mod rows;
mod scores;

use std::io::Read as _;
use std::path::Path;

use schemas::dataset::verify_checksums;
use schemas::{HopFanouts, Manifest, RelationMeta, read_manifest};
use serde_json::Value;
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
        return store(dir, args.json);
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
            model::model(dir, &manifest, args.json)
        }
        "infer" => {
            refuse_flags(args, "embeddings", &["--dot"])?;
            rows::embeddings(dir, args)
        }
        "score" => {
            refuse_flags(args, "scores", &["--dot"])?;
            scores::scores(dir, args)
        }
        stage => Err(problem(
            dir,
            format!("holds the output of an unknown stage, `{stage}`"),
        )),
    }
}

/// The paths that `inspect` accepts.
const TAKEN: &str = "inspect takes a directory that a run wrote: the `output` of [flatten], [train], \
                     [infer] or [score], or the store in `work_dir`";

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

fn store(dir: &Path, json: bool) -> Result<String, JobError> {
    let meta = StoreMeta::read(dir)?.ok_or_else(|| problem(dir, "holds no store".to_owned()))?;
    let bytes: u64 = meta.files.iter().map(|file| file.bytes).sum();
    let is_typed = !meta.nodes_by_type.is_empty();
    if json {
        return Ok(serde_json::json!({
            "kind": "store",
            "types": type_counts(&meta),
            "relations": relation_counts(&meta),
            "nodes": meta.num_nodes,
            "in_edges": meta.edges.in_edges,
            "dropped_rows": meta.edges.dropped_rows,
            "left_out": meta.pairs.map(|_| meta.edges.left_out),
            "pairs": meta.pairs,
            "received_by_worker": meta.edges.received_by_worker,
            "partitions": meta.workers,
            "keep": (!is_typed).then_some(&meta.keep),
            "sampling": meta.sampling,
            "seed": meta.seed,
            "samples": meta.samples,
            "bytes": bytes,
            "fingerprint": meta.fingerprint,
        })
        .to_string());
    }
    let of_all = match (is_typed, meta.keep.0.as_slice()) {
        (false, [keep]) => format!("{} in-edges a node, ", kept(*keep)),
        _ => String::new(),
    };
    let mut text = format!(
        "store: {} nodes in {} partitions, {of_all}{} sampling, seed {}, {} sample(s), {bytes} \
         bytes\n",
        meta.num_nodes,
        meta.workers,
        serde_json::to_string(&meta.sampling)
            .unwrap_or_default()
            .trim_matches('"'),
        meta.seed,
        meta.samples
    );
    text.push_str(&pairs::of_store(&meta));
    if !is_typed {
        text.push_str(&format!("edges: {}\n", serde_json::json!(meta.edges)));
        return Ok(text);
    }
    for (of_type, count) in meta.graph.types.iter().zip(&meta.nodes_by_type) {
        text.push_str(&format!("  {}: {count} nodes\n", of_type.name));
    }
    let of_relations = meta.edges.relations.iter().zip(&meta.keep.0);
    for (relation, (counts, keep)) in meta.graph.relations.iter().zip(of_relations) {
        text.push_str(&format!(
            "  {} from {} to {}: {} in-edges, {} a node, {} dropped rows\n",
            relation.name,
            meta.graph.types[relation.from].name,
            meta.graph.types[relation.to].name,
            counts.in_edges,
            kept(*keep),
            counts.dropped_rows
        ));
    }
    let received = &meta.edges.received_by_worker;
    text.push_str(&format!(
        "in-edges by worker: {}\n",
        serde_json::json!(received)
    ));
    Ok(text)
}

fn kept(keep: Option<u64>) -> String {
    keep.map_or("all".to_owned(), |keep| format!("up to {keep}"))
}

/// Returns the number of nodes by type; null if nodes have no types.
fn type_counts(meta: &StoreMeta) -> Value {
    let types = meta.graph.types.iter().zip(&meta.nodes_by_type);
    let counts: serde_json::Map<String, Value> = types
        .map(|(of_type, &count)| (of_type.name.clone(), count.into()))
        .collect();
    match counts.is_empty() {
        true => Value::Null,
        false => Value::Object(counts),
    }
}

/// Returns the ends and counts of each relation; null if relations have no names.
fn relation_counts(meta: &StoreMeta) -> Value {
    let types = &meta.graph.types;
    let of_relations = meta.edges.relations.iter().zip(&meta.keep.0);
    let relations = meta.graph.relations.iter().zip(of_relations);
    let described: serde_json::Map<String, Value> = relations
        .map(|(relation, (counts, keep))| {
            let of_relation = serde_json::json!({
                "from": types[relation.from].name,
                "to": types[relation.to].name,
                "in_edges": counts.in_edges,
                "dropped_rows": counts.dropped_rows,
                "keep": keep,
            });
            (relation.name.clone(), of_relation)
        })
        .collect();
    match described.is_empty() {
        true => Value::Null,
        false => Value::Object(described),
    }
}

/// Writes the fan-outs of a hop as in a job file, where they differ with the name of each relation.
fn fanouts(of_hop: &HopFanouts, relations: &[RelationMeta]) -> String {
    let all = of_hop.as_ref();
    let Some(first) = all.first() else {
        return of_hop.to_string();
    };
    if all.iter().all(|fanout| fanout == first) {
        return first.to_string();
    }
    let named = relations.iter().zip(all);
    let named: Vec<String> = named
        .map(|(relation, fanout)| format!("{} = {fanout}", relation.name))
        .collect();
    format!("{{ {} }}", named.join(", "))
}

/// Appends how many entries of a list are left out.
fn more(text: &mut String, count: usize, shown: usize, what: &str) {
    if count > shown {
        text.push_str(&format!("  ... {} more {what}\n", count - shown));
    }
}
