//! Runs that write an output directory: finished, killed at any point, repeated, and two at the
//! same time.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::*;
use crate::error::ErrorKind;

fn manifest(stage: &str, fingerprint: &str, parts: Vec<PartEntry>) -> Manifest {
    Manifest {
        schema: MANIFEST_SCHEMA,
        stage: stage.to_owned(),
        program: "test 0".to_owned(),
        fingerprint: fingerprint.to_owned(),
        plan: serde_json::json!({ "hops": 2 }),
        seed: u64::MAX,
        input: serde_json::Value::Null,
        graph: None,
        flatten: None,
        parts,
        report: serde_json::json!({ "nodes": [1, 2.5] }),
        version: None,
    }
}

fn open(dir: &Path, fingerprint: &str) -> Output {
    match Output::open(dir, "flatten", fingerprint, false).unwrap() {
        Opened::Open(output) => output,
        Opened::Done(_) => panic!("it is not finished"),
    }
}

fn write_file(output: &Output, name: &str, text: &str) -> FileEntry {
    let mut file = output.create(name).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.finish().unwrap()
}

fn write_part(output: &Output, index: usize) {
    let files = ["nodes", "edges"].map(|table| {
        let name = format!("{table}/{}.parquet", part_name(index));
        write_file(output, &name, &format!("{table} of part {index}"))
    });
    let part = PartEntry {
        name: part_name(index),
        files: files.to_vec(),
        rows: 3,
        targets: None,
    };
    output.commit_part(index, part).unwrap();
}

fn finish(output: Output, fingerprint: &str) {
    let parts = output.parts();
    output
        .finish(&manifest("flatten", fingerprint, parts))
        .unwrap();
}

/// Every file below a directory, sorted.
fn files(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(below) = dirs.pop() {
        for entry in std::fs::read_dir(dir.join(&below)).unwrap() {
            let path = below.join(entry.unwrap().file_name());
            if dir.join(&path).is_dir() {
                dirs.push(path);
            } else {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

const FINISHED: [&str; 6] = [
    "_SUCCESS",
    "_manifest.json",
    "edges/part-00000.parquet",
    "edges/part-00001.parquet",
    "nodes/part-00000.parquet",
    "nodes/part-00001.parquet",
];

fn refused(dir: &Path, stage: &str, fingerprint: &str, fresh: bool, expected: &str) {
    let error = Output::open(dir, stage, fingerprint, fresh)
        .map(|_| ())
        .unwrap_err();
    let kind = match error {
        SchemaError::OutputLocked { .. } => ErrorKind::Failed, // it may be free a moment later
        _ => ErrorKind::Usage,
    };
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    assert!(text.contains(expected), "{text} should say: {expected}");
    assert!(
        text.contains(&*dir.to_string_lossy()),
        "{text} should name the directory"
    );
}

#[test]
fn a_whole_run_leaves_parts_manifest_and_success() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("deep/out");
    let output = open(&dir, "a");
    assert_eq!(output.committed(0), None);
    write_part(&output, 1);
    write_part(&output, 0);
    assert_eq!(output.committed(1).unwrap().name, "part-00001");
    finish(output, "a");
    assert_eq!(files(&dir), FINISHED);
    let read = read_manifest(&dir).unwrap();
    assert_eq!(read, manifest("flatten", "a", read.parts.clone()));
    let names: Vec<&str> = read.parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, ["part-00000", "part-00001"]);
    let file = &read.parts[0].files[0];
    assert_eq!(
        (file.path.as_str(), file.bytes),
        ("nodes/part-00000.parquet", 15)
    );
    assert_eq!(
        file.checksum,
        xxh::file_checksum(&dir.join(&file.path)).unwrap()
    );
    verify_sizes(&dir, &read.parts).unwrap();
    verify_checksums(&dir, &read.parts).unwrap();
}

#[test]
fn a_finished_output_is_done_for_the_same_plan_only() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let output = open(dir, "a");
    write_part(&output, 0);
    write_part(&output, 1);
    finish(output, "a");
    match Output::open(dir, "flatten", "a", false).unwrap() {
        Opened::Done(manifest) => assert_eq!(manifest.parts.len(), 2),
        Opened::Open(_) => panic!("it is finished"),
    }
    refused(
        dir,
        "flatten",
        "b",
        false,
        "holds the output of another plan",
    );
    refused(
        dir,
        "flatten",
        "b",
        false,
        "name another `output`, or start over with --fresh",
    );
    refused(
        dir,
        "train",
        "a",
        false,
        "holds the output of stage `flatten`",
    );
    assert_eq!(files(dir), FINISHED);
}

#[test]
fn a_killed_run_goes_on_after_its_last_committed_part() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let output = open(dir, "a");
    write_part(&output, 0);
    // Killed with one file of part 1 in place, the other half-written.
    write_file(&output, "nodes/part-00001.parquet", "nodes of");
    let mut half = output.create("edges/part-00001.parquet").unwrap();
    half.write_all(b"edges").unwrap();
    half.flush().unwrap();
    std::mem::forget(half);
    drop(output);
    assert!(read_manifest(dir).is_err());
    assert!(
        files(dir)
            .iter()
            .any(|file| file.contains("_progress/tmp/"))
    );

    refused(dir, "flatten", "b", false, "another plan");
    let again = open(dir, "a");
    assert!(
        !files(dir)
            .iter()
            .any(|file| file.contains("_progress/tmp/"))
    );
    assert_eq!(again.committed(0).unwrap().rows, 3);
    assert_eq!(again.committed(1), None);
    write_part(&again, 1);
    finish(again, "a");
    assert_eq!(files(dir), FINISHED);
    verify_checksums(dir, &read_manifest(dir).unwrap().parts).unwrap();
}

#[test]
fn a_committed_part_without_its_files_is_written_again() {
    let root = tempfile::tempdir().unwrap();
    let output = open(root.path(), "a");
    write_part(&output, 0);
    write_part(&output, 1);
    drop(output);
    std::fs::write(root.path().join("edges/part-00000.parquet"), "torn").unwrap();
    std::fs::remove_file(root.path().join("nodes/part-00001.parquet")).unwrap();
    let again = open(root.path(), "a");
    assert_eq!(again.parts(), []);
}

#[test]
fn a_run_killed_while_finishing_finishes_again() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let output = open(dir, "a");
    write_part(&output, 0);
    write_part(&output, 1);
    let parts = output.parts();
    drop(output);
    // Killed between the manifest and `_SUCCESS`, progress still there.
    let text = serde_json::to_vec(&manifest("flatten", "a", parts)).unwrap();
    std::fs::write(dir.join("_manifest.json"), text).unwrap();
    let error = read_manifest(dir).unwrap_err();
    assert!(error.to_string().contains("_SUCCESS is missing"), "{error}");
    let again = open(dir, "a");
    assert_eq!(again.parts().len(), 2);
    finish(again, "a");
    assert_eq!(files(dir), FINISHED);
    // Killed between `_SUCCESS` and the removal of progress.
    std::fs::create_dir(dir.join("_progress")).unwrap();
    assert!(matches!(
        Output::open(dir, "flatten", "a", false).unwrap(),
        Opened::Done(_)
    ));
    assert_eq!(files(dir), FINISHED, "nothing is left of progress");
    assert!(!dir.join("_progress").exists());
}

/// A run that only looks at a finished output may be killed while it takes the lock.
#[test]
fn temporary_files_in_a_finished_output_of_a_store_go() {
    for store in ["swapping", "renaming"] {
        let dir = PathBuf::from(format!("{store}://tests/temporary-in-finished"));
        let output = open(&dir, "a");
        write_part(&output, 0);
        finish(output, "a");
        let finished = crate::storage::entries(&dir).unwrap();
        for name in ["._lock.tmp.1", ".._SUCCESS.tmp.probe.tmp.1"] {
            crate::storage::write_whole(&dir.join(name), b"").unwrap();
        }
        let again = Output::open(&dir, "flatten", "a", false).unwrap();
        assert!(matches!(again, Opened::Done(_)));
        assert_eq!(crate::storage::entries(&dir).unwrap(), finished);
    }
}

/// Older outputs have `manifest.json` in place of `_manifest.json`; other programs read it as data.
#[test]
fn outputs_with_the_old_name_of_the_manifest_are_read_skipped_and_removed() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let output = open(dir, "a");
    write_part(&output, 0);
    finish(output, "a");
    let rename = |from: &str, to: &str| std::fs::rename(dir.join(from), dir.join(to)).unwrap();
    rename("_manifest.json", "manifest.json");
    assert_eq!(read_manifest(dir).unwrap().parts.len(), 1);
    assert!(matches!(
        Output::open(dir, "flatten", "a", false).unwrap(),
        Opened::Done(_)
    ));
    refused(dir, "flatten", "b", false, "another plan");
    // A run killed between the manifest and `_SUCCESS` is finished under the new name alone.
    std::fs::remove_file(dir.join("_SUCCESS")).unwrap();
    refused(dir, "flatten", "b", false, "another plan");
    let again = open(dir, "a");
    finish(again, "a");
    assert!(dir.join("_manifest.json").exists() && !dir.join("manifest.json").exists());
    rename("_manifest.json", "manifest.json");
    let Opened::Open(fresh) = Output::open(dir, "flatten", "b", true).unwrap() else {
        panic!("a fresh start is never done");
    };
    finish(fresh, "b");
    assert_eq!(files(dir), ["_SUCCESS", "_manifest.json"]);
}

#[test]
fn a_manifest_that_cannot_be_read_is_no_file_of_something_else() {
    let root = tempfile::tempdir().unwrap();
    let output = open(root.path(), "a");
    write_part(&output, 0);
    finish(output, "a");
    std::fs::write(root.path().join("_manifest.json"), "{ \"schema\": 1,").unwrap();
    for fresh in [false, true] {
        let expected = "holds a _manifest.json that cannot be read (EOF";
        refused(root.path(), "flatten", "a", fresh, expected);
    }
}

#[cfg(unix)]
#[test]
fn a_manifest_that_is_a_named_pipe_is_refused_at_once() {
    let root = tempfile::tempdir().unwrap();
    let pipe = root.path().join("_manifest.json");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    std::fs::write(root.path().join("_SUCCESS"), "").unwrap();
    for error in [
        Output::open(root.path(), "flatten", "a", true).unwrap_err(),
        read_manifest(root.path()).unwrap_err(),
    ] {
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(error.to_string().contains("_manifest.json"), "{error}");
        assert_eq!(cause, "it is a named pipe, not a file");
    }
}

#[test]
fn a_manifest_without_success_still_belongs_to_its_plan() {
    let root = tempfile::tempdir().unwrap();
    let output = open(root.path(), "a");
    write_part(&output, 0);
    finish(output, "a");
    std::fs::remove_file(root.path().join("_SUCCESS")).unwrap();
    refused(root.path(), "flatten", "b", false, "another plan");
}

#[test]
fn fresh_removes_what_the_program_wrote_and_nothing_else() {
    for is_finished in [true, false] {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        let output = open(dir, "a");
        write_part(&output, 0);
        write_file(&output, "nodes/part-00009.parquet", "not committed");
        if is_finished {
            finish(output, "a");
        } else {
            drop(output);
        }
        std::fs::write(dir.join("notes.txt"), "mine").unwrap();
        std::fs::write(dir.join("nodes/notes.txt"), "mine").unwrap();
        let Opened::Open(fresh) = Output::open(dir, "flatten", "b", true).unwrap() else {
            panic!("a fresh start is never done");
        };
        assert_eq!(fresh.parts(), []);
        if !is_finished {
            let left = [
                "_lock",
                "_progress/plan.json",
                "nodes/notes.txt",
                "notes.txt",
            ];
            assert_eq!(files(dir), left);
        }
        finish(fresh, "b");
        let left = ["_SUCCESS", "_manifest.json", "nodes/notes.txt", "notes.txt"];
        assert_eq!(files(dir), left);
    }
}

#[test]
fn foreign_directories_are_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    std::fs::write(dir.join("thesis.tex"), "mine").unwrap();
    for fresh in [false, true] {
        refused(
            dir,
            "flatten",
            "a",
            fresh,
            "holds files that are not of an output, such as thesis.tex",
        );
    }
    assert_eq!(files(dir), ["thesis.tex"]);
    refused(
        &dir.join("thesis.tex"),
        "flatten",
        "a",
        false,
        "is a file, not a directory",
    );
}

/// Spark and Hive leave `_SUCCESS` and parts, dbt and browser extensions `manifest.json`.
#[test]
fn outputs_of_other_programs_are_never_removed() {
    let theirs = [
        "_SUCCESS",
        "_progress/notes.txt",
        "manifest.json",
        "nodes/part-00000.parquet",
        "part-00000-5c1f.snappy.parquet",
        "part-00000.parquet",
    ];
    for only in 0..=theirs.len() {
        let root = tempfile::tempdir().unwrap();
        let written: Vec<&str> = match theirs.get(only) {
            Some(name) => vec![name],
            None => theirs.to_vec(),
        };
        for name in &written {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "{\"theirs\": true}").unwrap();
        }
        for fresh in [false, true] {
            let expected = "holds files that are not of an output";
            refused(root.path(), "flatten", "a", fresh, expected);
        }
        assert_eq!(files(root.path()), written);
    }
}

#[test]
fn a_fresh_start_keeps_files_that_are_only_named_like_parts() {
    let root = tempfile::tempdir().unwrap();
    let output = open(root.path(), "a");
    write_part(&output, 0);
    finish(output, "a");
    let kept = [
        "mine/part-00000.parquet",
        "nodes/part-0.parquet",
        "part-00000-5c1f.parquet",
        "part-notes.parquet",
    ];
    for name in kept {
        let path = root.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "mine").unwrap();
    }
    let Opened::Open(fresh) = Output::open(root.path(), "flatten", "b", true).unwrap() else {
        panic!("a fresh start is never done");
    };
    finish(fresh, "b");
    assert_eq!(
        files(root.path()),
        [&["_SUCCESS", "_manifest.json"], &kept[..]].concat()
    );
}

#[test]
fn an_output_below_a_file_is_refused() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("notes"), "mine").unwrap();
    let dir = root.path().join("notes/deep/out");
    refused(
        &dir,
        "flatten",
        "a",
        true,
        "notes, a file; name another `output`",
    );
}

#[test]
fn two_runs_exclude_each_other() {
    let root = tempfile::tempdir().unwrap();
    let output = open(root.path(), "a");
    for (fingerprint, fresh) in [("a", false), ("b", true)] {
        refused(
            root.path(),
            "flatten",
            fingerprint,
            fresh,
            "is being written by another run",
        );
    }
    drop(output);
    open(root.path(), "a");
    assert!(!root.path().join("_lock").exists());
}

#[test]
fn a_file_that_is_dropped_never_appears() {
    let root = tempfile::tempdir().unwrap();
    let output = open(root.path(), "a");
    let mut file = output.create("part-00000.parquet").unwrap();
    file.write_all(b"half").unwrap();
    drop(file);
    assert_eq!(files(root.path()), ["_lock", "_progress/plan.json"]);
}

#[test]
fn finishing_without_a_file_fails() {
    let root = tempfile::tempdir().unwrap();
    let output = open(root.path(), "a");
    write_part(&output, 0);
    std::fs::remove_file(root.path().join("nodes/part-00000.parquet")).unwrap();
    let parts = output.parts();
    let error = output.finish(&manifest("flatten", "a", parts)).unwrap_err();
    assert!(
        error.to_string().contains("nodes/part-00000.parquet"),
        "{error}"
    );
    assert!(!root.path().join("_SUCCESS").exists());
}

#[test]
fn threads_commit_parts_at_once() {
    let root = tempfile::tempdir().unwrap();
    let output = open(root.path(), "a");
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let output = &output;
            scope.spawn(move || (0..4).for_each(|part| write_part(output, part * 4 + worker)));
        }
    });
    assert_eq!(output.parts().len(), 16);
    drop(output);
    let names: Vec<String> = open(root.path(), "a")
        .parts()
        .into_iter()
        .map(|part| part.name)
        .collect();
    assert_eq!(names, (0..16).map(part_name).collect::<Vec<_>>());
}

#[test]
fn manifests_of_another_schema_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let output = open(root.path(), "a");
    finish(output, "a");
    let path = root.path().join("_manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"schema\": 1", "\"schema\": 2")).unwrap();
    let error = read_manifest(root.path()).unwrap_err();
    assert!(
        error.to_string().contains("schema 2, this build reads 1"),
        "{error}"
    );
    std::fs::write(&path, "{").unwrap();
    let torn = read_manifest(root.path()).unwrap_err();
    assert!(torn.to_string().contains("_manifest.json"), "{torn}");
}
