//! Compaction: all rows of a version in one output, so that earlier ones can be removed.

use crate::InferError;
use crate::embedding::GROUP_BYTES;
use crate::kept_rows::damaged;
use crate::kept_versions::{RowFiles, keep_compacted, open};
use crate::plan::ROWS_PER_PART;
use graphdelta::{Compaction, KeptVersions};
use schemas::{EmbeddingsDataset, Event, Manifest, NodeIdx, Opened, Output, PartSizes, Progress};
use std::path::{Path, PathBuf};

/// Rows between two reports of progress.
const REPORT_ROWS: u64 = 1 << 16;

/// Must change when the same version gives other bytes than before.
const ENGINE_VERSION: u32 = 1;

/// Writes all rows of the output in `from`, a version or not, to `to`, which keeps rows of no other
/// output, and returns its manifest. With the working directories of the processes that wrote it,
/// later versions can continue the new one: what is kept of earlier ones is merged too.
///
/// # Errors
///
/// If `to` overlaps an output that has rows of `from`, or holds another output;
/// if the rows of inner layers are not kept in the working directory; if a file is broken or cannot
/// be written.
pub fn compact(
    from: &Path,
    to: &Path,
    work_dirs: &[PathBuf],
    progress: &Progress,
) -> Result<Manifest, InferError> {
    let compaction = Compaction::new((from, to), work_dirs, ENGINE_VERSION)?;
    if let Some(manifest) = compaction.done::<RowFiles>()? {
        return Ok(manifest);
    }
    let dataset = EmbeddingsDataset::open(from)?;
    compaction.check_apart()?;
    let source = &compaction.source;
    let kept = compaction.lock::<RowFiles>()?;
    let open_kept = |versions: &KeptVersions| {
        let version = open(versions, &source.fingerprint)?;
        version.ok_or_else(|| InferError::from(compaction.not_kept(versions)))
    };
    let first = kept.first().map(|(versions, _)| open_kept(versions));
    let first = first.transpose()?.map(|version| version.nodes);
    let output = match compaction.open()? {
        Opened::Done(manifest) => return Ok(*manifest),
        Opened::Open(output) => output,
    };
    let nodes = copy_rows((from, &dataset), &output, first.as_deref(), progress)?;
    for (versions, _) in kept {
        let listed = nodes.as_ref();
        let listed = listed.ok_or_else(|| compaction.not_kept(&versions))?;
        let names = (&*compaction.fingerprint, &*source.fingerprint);
        keep_compacted(&versions, names, open_kept(&versions)?, listed)?;
    }
    let embedding = source.report["embedding"].clone();
    Ok(compaction.finish(output, &[("embedding", embedding)])?)
}

/// Copies all rows and returns their nodes; `listed` are those of each output, as an open version
/// has them. Returns none if they are not those of all rows.
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
