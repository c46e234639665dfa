//! `graphflat compact`: all rows of a version of embeddings or graph features in one output.

use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use schemas::known::{self, Remembered};
use schemas::path::{overlap, resolve};
use schemas::read_manifest;

use crate::cli::CompactArgs;
use crate::console::{Console, line_out};
use crate::ending;
use crate::error::JobError;
use crate::job::CHECKSUMS;
use crate::leftovers::with_processes;
use crate::stage::end_with_cut_maps;

/// Compacts a version.
///
/// # Errors
///
/// If a path cannot be used, the directory holds no version, or a file cannot be read or written.
pub(crate) fn compact(args: &CompactArgs, console: &Console) -> anyhow::Result<()> {
    line_out(&run(args, console)?);
    Ok(())
}

fn run(args: &CompactArgs, console: &Console) -> Result<String, JobError> {
    console.name_job("compact");
    ending::be_resumable();
    end_with_cut_maps()?;
    let from = resolved("PATH", &args.path)?;
    let to = resolved("--output", &args.output)?;
    let work_dir = args.work_dir.as_ref();
    let work_dir = work_dir
        .map(|dir| resolved("--work-dir", dir))
        .transpose()?;
    let inputs = [("PATH", Some(&from)), ("--work-dir", work_dir.as_ref())];
    for (name, path) in inputs {
        if let Some(path) = path.filter(|path| overlap(&to, path)) {
            return Err(JobError::Key {
                key: "--output".to_owned(),
                problem: format!("{} overlaps {name}, {}", to.display(), path.display()),
            });
        }
    }
    if let Some(dir) = work_dir.as_ref().filter(|dir| !dir.is_dir()) {
        return Err(JobError::Key {
            key: "--work-dir".to_owned(),
            problem: format!("{} is no local directory", dir.display()),
        });
    }
    if let Some(dir) = &work_dir {
        known::remember(&dir.join(CHECKSUMS), Remembered::AllFiles);
    }
    let work_dirs = work_dir.as_deref().map(with_processes).unwrap_or_default();
    let progress = console.progress()?;
    let manifest = match &*read_manifest(&from)?.stage {
        "flatten" => graphflat::compact(&from, &to, &work_dirs, &progress)?,
        _ => graphinfer::compact(&from, &to, &work_dirs, &progress)?,
    };
    let rows: u64 = manifest.parts.iter().map(|part| part.rows).sum();
    if args.json {
        let fields = serde_json::json!({ "rows": rows, "fingerprint": manifest.fingerprint });
        return Ok(fields.to_string());
    }
    let files = manifest.parts.iter().flat_map(|part| &part.files);
    let bytes = files.map(|file| file.bytes).sum();
    let next = match work_dir {
        Some(_) => "versions can continue it",
        None => "without --work-dir no version can continue it",
    };
    Ok(format!(
        "{}: {rows} rows, {}; {next}",
        args.output.display(),
        ByteSize(bytes).display().si()
    ))
}

fn resolved(name: &str, path: &Path) -> Result<PathBuf, JobError> {
    Ok(resolve(name, Path::new(""), path)?)
}
