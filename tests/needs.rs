//! Things that a test needs besides the checkout: data sets, programs, rights of the user, time.
//!
//! A test that lacks something prints `skipped` and passes. With `GRAPHFLAT_TEST_ALL=1` it fails
//! instead, so that a machine which should have everything skips no test unnoticed.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the checkout.
pub(crate) fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// Prints that a test is skipped, or fails if no test may be skipped.
pub(crate) fn skip<T>(reason: &str) -> Option<T> {
    assert!(
        std::env::var_os("GRAPHFLAT_TEST_ALL").is_none(),
        "{reason}, and GRAPHFLAT_TEST_ALL forbids to skip a test"
    );
    // The test harness does not capture this line: otherwise a skipped test would look like a
    // passed one.
    writeln!(std::io::stderr(), "skipped: {reason}").expect("standard error is open");
    None
}

/// The folder with the data sets of `jobs/data/README.md`: `GRAPHFLAT_DATA`, or `../shared/data`.
pub(crate) fn data() -> Option<PathBuf> {
    let folder = match std::env::var_os("GRAPHFLAT_DATA") {
        Some(folder) => PathBuf::from(folder),
        None => checkout().join("../shared/data"),
    };
    if folder.join("cora").is_dir() {
        return Some(folder.canonicalize().unwrap());
    }
    skip(&format!(
        "no data sets in {} (GRAPHFLAT_DATA names their folder)",
        folder.display()
    ))
}

/// Returns the directory that cargo builds into.
pub(crate) fn target_dir() -> PathBuf {
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    own.expect("cargo's is a folder in there").to_owned()
}

/// Tells whether a Python has some modules.
pub(crate) fn has_modules(python: &Path, modules: &[&str]) -> bool {
    let import = modules.iter().map(|name| format!("import {name}\n"));
    let import: String = import.collect();
    let run = Command::new(python).args(["-c", &import]).output();
    run.is_ok_and(|output| output.status.success())
}

/// Returns a Python with numpy and pyarrow.
pub(crate) fn python() -> Option<PathBuf> {
    let named = std::env::var_os("GRAPHFLAT_TEST_PYTHON").map(PathBuf::from);
    let candidates = [
        named,
        Some(target_dir().join("venv/bin/python")),
        Some("python3".into()),
    ];
    let works = |python: &PathBuf| has_modules(python, &["numpy", "pyarrow"]);
    candidates
        .into_iter()
        .flatten()
        .find(works)
        .or_else(|| skip("no Python with numpy and pyarrow (GRAPHFLAT_TEST_PYTHON names one)"))
}

/// Tells whether the slow tests run: kills, hosts, services, faults. `.ci/run` sets the variable.
pub(crate) fn slow() -> bool {
    let is_asked = std::env::var_os("GRAPHFLAT_TEST_SLOW").is_some();
    if !is_asked {
        skip::<()>("a slow test (GRAPHFLAT_TEST_SLOW=1 runs it)");
    }
    is_asked
}
