//! Finished outputs that are replaced: whole runs, and runs that are killed at any point.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::*;
use crate::dataset::PROGRESS;
use crate::dataset::output::json;
use crate::dataset::owner::{is_begun, is_ours};
use crate::dataset::{Opened, Output, PartEntry, part_name, read_manifest, verify_checksums};
use crate::storage::{read, remove_dir_all, tests::manifest};

fn open(dir: &Path, fingerprint: &str, fresh: bool) -> Output {
    match Output::open(dir, "flatten", fingerprint, fresh).unwrap() {
        Opened::Open(output) => output,
        Opened::Done(_) => panic!("it is not finished"),
    }
}

/// Writes a part whose bytes tell which run wrote it.
fn write_part(output: &Output, index: usize, by: &str) {
    let files = ["nodes", "edges"].map(|table| {
        let name = format!("{table}/{}.parquet", part_name(index));
        let mut file = output.create(&name).unwrap();
        file.write_all(format!("{table} {index} by {by}").as_bytes())
            .unwrap();
        file.finish().unwrap()
    });
    let part = PartEntry {
        name: part_name(index),
        files: files.to_vec(),
        rows: 1,
        targets: None,
    };
    output.commit_part(index, part).unwrap();
}

fn finish(output: Output, fingerprint: &str) {
    let manifest = manifest(&output, fingerprint);
    output.finish(&manifest).unwrap();
}

/// Writes a finished output of three parts.
fn old(dir: &Path) {
    let output = open(dir, "old", false);
    (0..3).for_each(|part| write_part(&output, part, "old"));
    finish(output, "old");
}

/// Checks that a directory holds the output of one plan, whole, and nothing else.
#[track_caller]
fn check_whole(dir: &Path, fingerprint: &str, num_parts: usize) {
    let found = read_manifest(dir).unwrap();
    assert_eq!(
        (&*found.fingerprint, found.parts.len()),
        (fingerprint, num_parts)
    );
    verify_checksums(dir, &found.parts).unwrap();
    let text = read(&dir.join("nodes/part-00000.parquet"))
        .unwrap()
        .unwrap();
    assert_eq!(text, format!("nodes 0 by {fingerprint}").into_bytes());
}

#[track_caller]
fn check_tidy(dir: &Path, num_parts: usize) {
    let parts = (0..num_parts).map(|index| format!("{}.parquet", part_name(index)));
    let mut expected: Vec<String> = vec!["_SUCCESS".to_owned(), "_manifest.json".to_owned()];
    for table in ["edges", "nodes"] {
        expected.extend(parts.clone().map(|part| format!("{table}/{part}")));
    }
    assert_eq!(storage::list(dir).unwrap(), expected, "{}", dir.display());
}

/// A local directory, and one in each kind of store: with the operations of S3, and of HDFS.
fn dirs(root: &Path, test: &str) -> [PathBuf; 3] {
    [
        root.join(test),
        PathBuf::from(format!("swapping://tests/replace-{test}")),
        PathBuf::from(format!("renaming://tests/replace-{test}")),
    ]
}

#[test]
fn a_finished_output_stays_until_the_new_one_is_whole() {
    let root = tempfile::tempdir().unwrap();
    for dir in dirs(root.path(), "stays") {
        old(&dir);
        let output = open(&dir, "new", true);
        write_part(&output, 1, "new");
        check_whole(&dir, "old", 3);
        let busy = Output::join(&dir, "flatten", "new", None, output.committed_parts());
        assert_eq!(
            busy.unwrap().parts_dir(),
            output.parts_dir(),
            "the processes of a run agree"
        );
        drop(output);
        check_whole(&dir, "old", 3);
        // Another plan is still refused; the plan whose replacement was begun continues.
        Output::open(&dir, "flatten", "other", false).unwrap_err();
        let resumed = open(&dir, "new", false);
        assert!(resumed.committed(1).is_some() && resumed.committed(0).is_none());
        write_part(&resumed, 0, "new");
        check_whole(&dir, "old", 3);
        finish(resumed, "new");
        check_whole(&dir, "new", 2);
        check_tidy(&dir, 2);
    }
}

#[test]
fn a_replacement_of_the_same_plan_goes_on_where_it_was_killed() {
    let root = tempfile::tempdir().unwrap();
    for dir in dirs(root.path(), "goes-on") {
        assert!(!is_begun(&dir).unwrap());
        write_part(&open(&dir, "old", false), 0, "old");
        assert!(is_begun(&dir).unwrap());
        old(&dir);
        assert!(!is_begun(&dir).unwrap());
        write_part(&open(&dir, "old", true), 0, "new");
        assert!(is_begun(&dir).unwrap());
        assert!(Output::done(&dir, "flatten", "old").unwrap().is_none());
        let resumed = open(&dir, "old", false);
        assert!(resumed.committed(0).is_some());
        check_whole(&dir, "old", 3);
        finish(resumed, "old");
        assert!(!is_begun(&dir).unwrap());
        let found = Output::done(&dir, "flatten", "old").unwrap().unwrap();
        assert_eq!(found.parts.len(), 1);
        verify_checksums(&dir, &found.parts).unwrap();
        check_tidy(&dir, 1);
    }
}

#[test]
fn a_replacement_that_is_given_up_leaves_the_finished_output() {
    let root = tempfile::tempdir().unwrap();
    for dir in dirs(root.path(), "given-up") {
        old(&dir);
        open(&dir, "new", true).abandon();
        check_whole(&dir, "old", 3);
        check_tidy(&dir, 3);
        // A killed replacement is removed by a run whose output is finished already.
        let output = open(&dir, "new", true);
        write_part(&output, 0, "new");
        drop(output);
        assert!(Output::done(&dir, "flatten", "old").unwrap().is_some());
        check_whole(&dir, "old", 3);
        assert!(!is_ours(&dir.join(ASIDE)));
        // A replacement with another plan starts over.
        write_part(&open(&dir, "new", true), 0, "new");
        let other = open(&dir, "other", true);
        assert_eq!(other.parts(), []);
        write_part(&other, 0, "other");
        finish(other, "other");
        check_whole(&dir, "other", 1);
    }
}

/// Runs the replacement up to a step, as a run that is killed there does.
fn killed_after(dir: &Path, step: usize) {
    old(dir);
    let output = open(dir, "new", true);
    (0..2).for_each(|part| write_part(&output, part, "new"));
    let manifest = manifest(&output, "new");
    let aside = output.parts_dir().to_owned();
    drop(output);
    let text = json(&manifest);
    write_whole(&aside.join(MANIFEST), &text).unwrap();
    write_whole(&aside.join(SUCCESS), b"").unwrap();
    let moved = manifest.parts.iter().flat_map(|part| &part.files);
    let moved: Vec<_> = moved.map(|file| file.path.clone()).collect();
    let mut steps: Vec<Box<dyn Fn()>> = vec![
        Box::new(|| remove_file(&dir.join(SUCCESS)).unwrap()),
        Box::new(|| remove_file(&dir.join("nodes/part-00000.parquet")).unwrap()),
        Box::new(|| remove_output(dir).unwrap()),
        Box::new(|| write_whole(&aside.join(MOVING), b"").unwrap()),
    ];
    for file in &moved {
        let (from, to) = (aside.join(file), dir.join(file));
        steps.push(Box::new(move || storage::rename(&from, &to).unwrap()));
    }
    steps.push(Box::new(|| {
        write_whole(&dir.join(MANIFEST), &text).unwrap()
    }));
    steps.push(Box::new(|| write_whole(&dir.join(SUCCESS), b"").unwrap()));
    steps.push(Box::new(|| remove_dir_all(&aside.join(PROGRESS)).unwrap()));
    steps.push(Box::new(|| remove_file(&aside.join(SUCCESS)).unwrap()));
    steps.push(Box::new(|| remove_file(&aside.join(MOVING)).unwrap()));
    assert_eq!(steps.len(), STEPS);
    steps.iter().take(step).for_each(|step| step());
}

/// Steps of a replacement of two parts with two files each.
const STEPS: usize = 13;

#[test]
fn a_replacement_that_is_killed_anywhere_is_completed_by_the_next_run() {
    let root = tempfile::tempdir().unwrap();
    for step in 0..=STEPS {
        for dir in dirs(root.path(), &format!("killed-{step}")) {
            killed_after(&dir, step);
            if let Ok(found) = read_manifest(&dir) {
                // Readers see the old output or the new one.
                verify_checksums(&dir, &found.parts).unwrap();
            }
            assert!(Output::done(&dir, "flatten", "new").unwrap().is_some());
            check_whole(&dir, "new", 2);
            check_tidy(&dir, 2);
        }
        // A run of the old plan completes it too, and then finds another output.
        let dir = root.path().join(format!("other-{step}"));
        killed_after(&dir, step);
        Output::open(&dir, "flatten", "old", false).unwrap_err();
        check_whole(&dir, "new", 2);
        // A fresh run replaces the output that the other run completed.
        let output = open(&dir, "old", true);
        (0..3).for_each(|part| write_part(&output, part, "old"));
        check_whole(&dir, "new", 2);
        finish(output, "old");
        check_whole(&dir, "old", 3);
        check_tidy(&dir, 3);
    }
}
