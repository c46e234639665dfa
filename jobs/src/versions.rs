//! `graphflat versions`: the outputs that a version of embeddings or graph features is made of.

use std::path::Path;

use bytesize::ByteSize;
use schemas::{EmbeddingsDataset, GraphFeatureDataset, Manifest, PartEntry, read_manifest};
use serde_json::json;

use crate::cli::VersionsArgs;
use crate::console::line_out;
use crate::error::JobError;

/// An output of which a version has rows.
struct Listed {
    path: String,
    fingerprint: String,
    /// Rows that are rows of the version too, of all that the output has written.
    rows: [u64; 2],
    bytes: u64,
}

/// Lists the outputs of a version, oldest first.
///
/// # Errors
///
/// If the directory holds no finished output of inference or flatten, or an output that it keeps is
/// gone.
pub(crate) fn versions(args: &VersionsArgs) -> anyhow::Result<()> {
    line_out(describe(args)?.trim_end());
    Ok(())
}

/// Opens an output; returns its manifest, and how many rows of each part are rows of it.
fn rows_of_parts(dir: &Path) -> Result<(Manifest, Vec<u64>), JobError> {
    if read_manifest(dir)?.stage == "flatten" {
        let dataset = GraphFeatureDataset::open(dir)?;
        let rows = (0..dataset.num_parts()).map(|part| dataset.num_rows(part));
        return Ok((dataset.manifest().clone(), rows.collect()));
    }
    let dataset = EmbeddingsDataset::open(dir)?;
    let rows = (0..dataset.num_parts()).map(|part| dataset.num_rows(part));
    Ok((dataset.manifest().clone(), rows.collect()))
}

fn describe(args: &VersionsArgs) -> Result<String, JobError> {
    let dir = schemas::path::resolve("PATH", Path::new(""), &args.path)?;
    let (manifest, num_rows) = &rows_of_parts(&dir)?;
    let own: Vec<PartEntry> = manifest.row_parts().cloned().collect();
    let kept = manifest.version.iter().flat_map(|version| &version.kept);
    let mut listed = Vec::new();
    let mut first = 0;
    let earlier = kept.map(|kept| (kept.path.clone(), &kept.fingerprint, &kept.parts));
    let shown = args.path.display().to_string();
    for (path, fingerprint, parts) in earlier.chain([(shown, &manifest.fingerprint, &own)]) {
        let files = parts.iter().flat_map(|part| &part.files);
        listed.push(Listed {
            path,
            fingerprint: fingerprint.clone(),
            rows: [
                num_rows[first..first + parts.len()].iter().sum(),
                parts.iter().map(|part| part.rows).sum(),
            ],
            bytes: files.map(|file| file.bytes).sum(),
        });
        first += parts.len();
    }
    let total: u64 = listed.iter().map(|of| of.rows[0]).sum();
    let version = manifest.version.as_ref();
    if args.json {
        let outputs = listed.iter().map(|of| {
            json!({
                "path": of.path,
                "fingerprint": of.fingerprint,
                "rows": of.rows[0],
                "written": of.rows[1],
                "bytes": of.bytes,
            })
        });
        let outputs: Vec<_> = outputs.collect();
        return Ok(json!({
            "rows": total,
            "parent": version.map(|of| &of.parent.path),
            "upserts": version.map(|of| of.upserts),
            "deletes": version.map(|of| of.deletes),
            "outputs": outputs,
        })
        .to_string());
    }
    let mut text = match version {
        None => format!("{total} rows, no version: all rows are its own\n"),
        Some(of) => format!(
            "{total} rows; parent {}, {} rows written, {} nodes removed\n",
            of.parent.path, of.upserts, of.deletes
        ),
    };
    for of in &listed {
        text.push_str(&format!(
            "  {}: {} of {} rows, {}\n",
            of.path,
            of.rows[0],
            of.rows[1],
            ByteSize(of.bytes).display().si()
        ));
    }
    Ok(text)
}
