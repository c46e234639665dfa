//! Compaction: all rows of a version in one output, so that earlier ones can be removed.

use crate::InferError;
use crate::embedding::GROUP_BYTES;
use crate::kept_rows::damaged;
use crate::kept_versions::{KeptVersions, OpenVersion, find};
use crate::plan::ROWS_PER_PART;
use schemas::path::overlap;
use schemas::{
    EmbeddingsDataset, Event, Manifest, NodeIdx, Opened, Output, PartSizes, Progress, SchemaError,
    read_manifest,
};
use serde_json::json;
use std::path::Path;

/// Rows between two reports of progress.
const REPORT_ROWS: u64 = 1 << 16;

/// Must change when the same version gives other bytes than before.
const ENGINE_VERSION: u32 = 1;

/// Writes all rows of the output in `from`, a version or not, to `to`, which keeps rows of no other
/// output, and returns its manifest. With the working directory of the output, later versions can
/// continue the new one: what is kept of earlier ones is merged too.
///
/// # Errors
///
/// If `to` overlaps an output that has rows of `from`, or holds another output;
/// if the rows of inner layers are not kept in the working directory; if a file is broken or cannot
/// be written.
pub fn compact(
    from: &Path,
    to: &Path,
    work_dir: Option<&Path>,
    progress: &Progress,
) -> Result<Manifest, InferError> {
    let source = read_manifest(from)?;
    let own = json!({ "engine": ENGINE_VERSION, "compact": source.fingerprint });
    let own = schemas::xxh::fingerprint(own.to_string().as_bytes());
    // Once it is finished, the outputs of `from` may be gone.
    if let Some(manifest) = Output::done(to, "infer", &own).map_err(|e| taken(to, e))? {
        let is_kept = |dir: &&Path| {
            let record = find(dir, &own);
            record.is_some_and(|of| KeptVersions::unlocked(dir).has_graph(&own, &of))
        };
        return match work_dir.filter(|dir| !is_kept(dir)) {
            None => Ok(manifest),
            Some(dir) => Err(not_kept(dir, to)),
        };
    }
    let dataset = EmbeddingsDataset::open(from)?;
    check_apart(from, to, &source)?;
    let kept = work_dir.map(|dir| open_kept((from, &source), dir));
    let kept = kept.transpose()?;
    let output = match Output::open(to, "infer", &own, false).map_err(|e| taken(to, e))? {
        Opened::Done(manifest) => return Ok(*manifest),
        Opened::Open(output) => output,
    };
    let listed = kept.as_ref().map(|(_, open)| &open.nodes[..]);
    let nodes = copy_rows((from, &dataset), &output, listed, progress)?;
    if let (Some((versions, open)), Some(dir)) = (kept, work_dir) {
        let nodes = nodes.ok_or_else(|| not_kept(dir, from))?;
        versions.keep_compacted((&own, &source.fingerprint), open, &nodes)?;
    }
    let report = json!({
        "mode": "compacted",
        "of": { "path": from.to_string_lossy(), "fingerprint": source.fingerprint },
        "embedding": source.report["embedding"],
    });
    let manifest = Manifest {
        fingerprint: own,
        parts: output.parts(),
        version: None,
        report,
        ..source
    };
    output.finish(&manifest)?;
    Ok(manifest)
}

/// Refuses a directory that overlaps an output that has rows of the version.
fn check_apart(from: &Path, to: &Path, source: &Manifest) -> Result<(), InferError> {
    for kept in source.version.iter().flat_map(|version| &version.kept) {
        let dir = kept.checked_dir(from)?;
        if overlap(to, &dir) {
            return Err(InferError::Key {
                key: "--output",
                value: to.display().to_string(),
                allowed: format!("it overlaps an output of the version, {}", dir.display()),
            });
        }
    }
    Ok(())
}

/// Names the argument in place of the key of a job.
fn taken(to: &Path, error: SchemaError) -> InferError {
    match error {
        SchemaError::OutputTaken { .. } => InferError::Key {
            key: "--output",
            value: to.display().to_string(),
            allowed: "it holds another output or other files; name another directory".to_owned(),
        },
        other => other.into(),
    }
}

/// The error of a working directory that lacks what versions of an output need.
fn not_kept(work_dir: &Path, output: &Path) -> InferError {
    InferError::Key {
        key: "--work-dir",
        value: work_dir.display().to_string(),
        allowed: format!(
            "it does not keep all rows of {}; name the `work_dir` of the job that wrote it",
            output.display()
        ),
    }
}

/// Locks the kept versions of a working directory and opens that of an output.
fn open_kept(
    (from, source): (&Path, &Manifest),
    work_dir: &Path,
) -> Result<(KeptVersions, OpenVersion), InferError> {
    let name = &source.fingerprint;
    find(work_dir, name).ok_or_else(|| not_kept(work_dir, from))?;
    let versions = KeptVersions::lock(work_dir)?;
    let open = versions.open(name)?;
    let open = open.ok_or_else(|| not_kept(work_dir, from))?;
    match versions.has_graph(name, &open.record) {
        true => Ok((versions, open)),
        false => Err(InferError::Key {
            key: "--work-dir",
            value: work_dir.display().to_string(),
            allowed: format!(
                "it keeps the graphs of the last version and of its parent alone, not that of {}; \
                 compact a later one",
                from.display()
            ),
        }),
    }
}

/// Copies all rows and returns their nodes; `listed` are those of each output, as
/// [`OpenVersion::nodes`] has them. Returns none if they are not those of all rows.
fn copy_rows(
    (from, dataset): (&Path, &EmbeddingsDataset),
    output: &Output,
    listed: Option<&[Option<Vec<NodeIdx>>]>,
    progress: &Progress,
) -> Result<Option<Vec<NodeIdx>>, InferError> {
    let parts = 0..dataset.num_parts();
    let total: u64 = parts.map(|part| dataset.num_rows(part)).sum();
    let (mut nodes, mut done) = (Vec::new(), 0);
    dataset.write_whole(output, sizes(dataset.manifest()), |rows| {
        let before = done / REPORT_ROWS;
        for (of_output, row) in rows {
            done += 1;
            nodes.extend(listed.and_then(|listed| match listed.get(of_output)? {
                Some(of) => of.get(row).copied(),
                None => Some(NodeIdx::from_index(row)),
            }));
        }
        if done / REPORT_ROWS > before {
            progress(&Event {
                stage: "compact",
                phase: "rows".to_owned(),
                done,
                total,
                message: None,
                fields: serde_json::Value::Null,
            });
        }
    })?;
    let written: u64 = output.parts().iter().map(|part| part.rows).sum();
    if [written, done] != [total; 2] {
        let problem =
            format!("its manifest has {total} rows, its files {done}, the copy {written}");
        return Err(damaged(from, &problem));
    }
    Ok((nodes.len() as u64 == done).then_some(nodes))
}

/// Returns the sizes of parts that the version was written with.
fn sizes(manifest: &Manifest) -> PartSizes {
    let rows = manifest.plan["rows_per_part"].as_u64();
    let rows = rows.and_then(|rows| usize::try_from(rows).ok());
    PartSizes {
        rows: rows.unwrap_or(ROWS_PER_PART),
        group_bytes: GROUP_BYTES,
    }
}
