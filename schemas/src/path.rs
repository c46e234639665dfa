//! Paths as written in a job file.

use std::path::{Component, Path, PathBuf};

use glob::{MatchOptions, Pattern};

use crate::error::{Result, SchemaError};
use crate::storage::{self, SCHEMES};

/// Characters that make a component of a path a pattern.
pub(crate) const WILDCARDS: [char; 3] = ['*', '?', '['];

/// Returns the path of a key: a store's URL in its normal form, or a local path, written with or
/// without `file://`, joined to `base`.
///
/// Every path of a job is resolved here, so that the URL of a store that this build does not
/// support is an error and not a local directory called `gs:`.
///
/// # Errors
///
/// If the path is empty or the URL of a store that this build does not support.
pub fn resolve(key: &str, base: &Path, written: &Path) -> Result<PathBuf> {
    let text = written.to_string_lossy();
    let refused = |problem: String| SchemaError::Storage {
        key: key.to_owned(),
        path: text.clone().into_owned(),
        problem,
    };
    let path = match text.split_once("://") {
        Some(("file", path)) => Path::new(path),
        Some((scheme, rest)) => return resolve_remote(scheme, rest).map_err(refused),
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

/// Joins a resolved path to a base; the URL of a store stays as it is.
pub fn join(base: &Path, path: &Path) -> PathBuf {
    if storage::is_remote(path) {
        return path.to_owned();
    }
    base.join(path)
}

/// Resolves the path of a key that must be local, such as a directory of memory-mapped files.
///
/// # Errors
///
/// If the path is empty or the URL of a store.
pub fn local(key: &str, base: &Path, written: &Path) -> Result<PathBuf> {
    let path = resolve(key, base, written)?;
    if storage::is_remote(&path) {
        return Err(SchemaError::Storage {
            key: key.to_owned(),
            path: written.to_string_lossy().into_owned(),
            problem: "is the URL of a store; this has to be a local path".to_owned(),
        });
    }
    Ok(path)
}

/// Returns the URL of a store in its normal form, or the problem.
fn resolve_remote(scheme: &str, rest: &str) -> std::result::Result<PathBuf, String> {
    let lower = scheme.to_lowercase();
    let Some((kind, _)) = SCHEMES.iter().find(|(_, known)| *known == lower) else {
        return Err(
            "is the URL of a store that is not supported; allowed are s3://, hdfs://, file:// and \
                    plain paths"
                .to_owned(),
        );
    };
    let lacks = |feature: &str, is_built: bool| *kind == feature && !is_built;
    if lacks("s3", cfg!(feature = "s3")) || lacks("hdfs", cfg!(feature = "hdfs")) {
        return Err(format!(
            "is not supported by this build, which lacks the feature `{kind}`"
        ));
    }
    let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
    if let Some(problem) = storage::authority_problem(kind, authority) {
        return Err(problem);
    }
    let key = key.trim_end_matches('/');
    if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(
            "needs a path without empty parts, `.` and `..` below the bucket or host".to_owned(),
        );
    }
    if key.contains(|c: char| c.is_ascii_control()) {
        return Err("holds a control character, such as a line break".to_owned());
    }
    Ok(PathBuf::from(format!("{kind}://{authority}/{key}")))
}

/// Tells whether two paths are equal, or one lies inside the other.
pub fn overlap(one: &Path, other: &Path) -> bool {
    let (one, other) = (settled(one), settled(other));
    one.starts_with(&other) || other.starts_with(&one)
}

/// Tells whether an output directory equals, contains or lies inside an input file, directory or
/// glob.
pub fn overlaps_input(output: &Path, input: &Path) -> bool {
    let is_pattern = |part: &Component<'_>| {
        let text = part.as_os_str().to_string_lossy();
        text.contains(WILDCARDS)
    };
    match (storage::is_remote(output), storage::is_remote(input)) {
        (false, false) => {}
        (true, true) => return overlaps_remote(output, input),
        _ => return false,
    }
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

/// [`overlaps_input`] for URLs in their normal form.
fn overlaps_remote(output: &Path, input: &Path) -> bool {
    let text = input.to_string_lossy();
    let Some(wild) = text.find(WILDCARDS) else {
        return overlap(output, input);
    };
    let (plain, rest) = text.split_at(wild);
    let folder = Path::new(&plain[..plain.rfind('/').unwrap_or_default()]);
    if folder.starts_with(output) {
        return true;
    }
    if rest.contains("**") {
        return output.starts_with(folder);
    }
    let options = MatchOptions {
        require_literal_separator: true,
        ..MatchOptions::default()
    };
    Pattern::new(&text).is_ok_and(|pattern| {
        let mut above = output.ancestors();
        above.any(|above| pattern.matches_path_with(above, options))
    })
}

/// Returns the absolute path without `.` and `..`, with links resolved as far as it exists.
fn settled(path: &Path) -> PathBuf {
    if storage::is_remote(path) {
        return path.to_owned();
    }
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
        let found = match resolve("flatten.output", base, Path::new(written)) {
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
        let problem = "is the URL of a store that is not supported; allowed are s3://, hdfs://, \
                       file:// and plain paths";
        for remote in ["gs://bucket/a", "https://host/a"] {
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
        for (output, input, expected) in [
            ("out", "swapping://lake/*.parquet", false),
            ("swapping://lake/out", "swapping://lake/edges", false),
            ("swapping://lake/edges/out", "swapping://lake/edges", true),
            ("swapping://lake", "swapping://lake/edges/*.parquet", true),
            ("swapping://lake/out", "swapping://lake/**/*.parquet", true),
            ("swapping://lake/out", "swapping://lake/*", true),
            ("swapping://lake/out/a", "swapping://lake/*", true),
            ("swapping://lake/out", "swapping://lake/*.parquet", false),
            ("swapping://pond/out", "swapping://lake/**/*.parquet", false),
        ] {
            check(output, input, expected);
        }
    }
}
