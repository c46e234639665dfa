//! Paths as written in a job file.

use std::path::{Component, Path, PathBuf};

use glob::{MatchOptions, Pattern};

use crate::error::{Result, SchemaError};

/// What makes a component of a path a pattern.
pub(crate) const WILDCARDS: [char; 3] = ['*', '?', '['];

/// Resolves the path of a key: a local one, relative to `base`, with or without `file://`.
///
/// Every path of a job goes through here, so that none of a storage that this build cannot reach
/// turns into a local directory called `s3:`.
///
/// # Errors
///
/// If the path is empty or of another storage.
pub fn local(key: &str, base: &Path, written: &Path) -> Result<PathBuf> {
    let text = written.to_string_lossy();
    let path = match text.strip_prefix("file://") {
        Some(path) => Path::new(path),
        None if text.contains("://") => {
            return Err(SchemaError::Storage {
                key: key.to_owned(),
                path: text.into_owned(),
            });
        }
        None => written,
    };
    if path.as_os_str().is_empty() {
        return Err(SchemaError::Key {
            key: key.to_owned(),
            problem: "is empty; a path is needed".to_owned(),
        });
    }
    Ok(base.join(path))
}

/// Tells whether two places are one, or one lies inside the other.
pub fn overlap(one: &Path, other: &Path) -> bool {
    let (one, other) = (settled(one), settled(other));
    one.starts_with(&other) || other.starts_with(&one)
}

/// Tells whether a directory that is written lies where a file, directory or glob is read, or
/// around it.
pub fn overlaps_input(output: &Path, input: &Path) -> bool {
    let is_pattern = |part: &Component<'_>| {
        let text = part.as_os_str().to_string_lossy();
        text.contains(WILDCARDS)
    };
    if input.exists() || !input.components().any(|part| is_pattern(&part)) {
        return overlap(output, input);
    }
    let folder: PathBuf = input
        .components()
        .take_while(|part| !is_pattern(part))
        .collect();
    let rest: PathBuf = input
        .components()
        .skip_while(|part| !is_pattern(part))
        .collect();
    let (output, folder) = (settled(output), settled(&folder));
    if folder.starts_with(&output) {
        return true;
    }
    if rest.components().any(|part| part.as_os_str() == "**") {
        return output.starts_with(&folder);
    }
    let options = MatchOptions {
        require_literal_separator: true,
        ..MatchOptions::default()
    };
    let pattern = Path::new(&Pattern::escape(&folder.to_string_lossy())).join(rest);
    Pattern::new(&pattern.to_string_lossy()).is_ok_and(|pattern| {
        output
            .ancestors()
            .any(|above| pattern.matches_path_with(above, options))
    })
}

/// A path from the root, without `.` and `..`, and without links as far as it exists.
fn settled(path: &Path) -> PathBuf {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let real = absolute.ancestors().find_map(|above| {
        let rest = absolute.strip_prefix(above).ok()?;
        Some(above.canonicalize().ok()?.join(rest))
    });
    let mut plain = PathBuf::new();
    for part in real.as_deref().unwrap_or(&absolute).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(written: &str, expected: &str) {
        let base = Path::new("/base");
        let found = match local("flatten.output", base, Path::new(written)) {
            Ok(path) => path.to_string_lossy().into_owned(),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn paths_are_local_and_relative_to_the_base() {
        check("out/a", "/base/out/a");
        check("/out/a", "/out/a");
        check("file:///out/a", "/out/a");
        check("file://out/a", "/base/out/a");
        check("", "`flatten.output`: is empty; a path is needed");
        check("file://", "`flatten.output`: is empty; a path is needed");
        for remote in ["s3://bucket/a", "hdfs://host/a", "S3://bucket/a"] {
            let problem = "is not supported by this build, which reads and writes local files";
            check(remote, &format!("`flatten.output`: {remote} {problem}"));
        }
    }

    #[test]
    fn places_inside_one_another_overlap() {
        let check = |one: &str, other: &str, expected: bool| {
            assert_eq!(
                overlap(Path::new(one), Path::new(other)),
                expected,
                "{one}, {other}"
            );
        };
        check("out", "out/model", true);
        check("./out/a/../b", "out/b", true);
        check("out/a", "out/ab", false);
        check("../out", "out", false);
        check("", "out", true);
        let here = std::path::absolute("out").unwrap();
        check("out/a", &here.to_string_lossy(), true);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("data")).unwrap();
        std::os::unix::fs::symlink("data", root.path().join("link")).unwrap();
        let (link, data) = (root.path().join("link/out"), root.path().join("data"));
        assert!(overlap(&link, &data));
    }

    #[test]
    fn outputs_may_stand_beside_what_is_read_only() {
        let check = |output: &str, input: &str, expected: bool| {
            let found = overlaps_input(Path::new(output), Path::new(input));
            assert_eq!(found, expected, "{output}, {input}");
        };
        check("data", "data/nodes.parquet", true);
        check("data/nodes/out", "data/nodes", true);
        check("data/out", "data/nodes.parquet", false);
        check("out", "*.parquet", false);
        check("data/out", "data/*.parquet", false);
        check("data/out", "data/*", true);
        check("data/a/out", "data/*", true);
        check("data", "data/*.parquet", true);
        check("data/out", "data/**/*.parquet", true);
        check("out", "data/**/*.parquet", false);
    }
}
