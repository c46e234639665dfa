//! Locks that are renewed, lost and taken over.

use std::io::Write as _;

use super::*;
use crate::dataset::{Opened, Output};
use crate::storage;

/// A directory in each kind of store.
fn dirs(test: &str) -> [PathBuf; 2] {
    ["swapping", "renaming"].map(|kind| PathBuf::from(format!("{kind}://lease/{test}")))
}

fn of_another_machine() -> Note {
    Note {
        host: "another machine".to_owned(),
        ..Note::new()
    }
}

/// Leaves a lock as a killed process does.
fn leave(dir: &Path, note: &Note) {
    storage::write_whole(&dir.join(LOCK), &note.to_json()).unwrap();
}

#[test]
fn a_lock_that_is_renewed_stays_with_its_holder() {
    for dir in dirs("renewed") {
        let lease = Lease::take(&dir).unwrap();
        std::thread::sleep(2 * LEASE);
        lease.check().unwrap();
        let error = Lease::take(&dir).unwrap_err().to_string();
        let holder = format!("written by another run (process {} of", std::process::id());
        assert!(error.contains(&holder), "{error}");
        lease.check().unwrap();
        drop(lease);
        assert_eq!(
            storage::entries(&dir).unwrap(),
            [""; 0],
            "{}",
            dir.display()
        );
        Lease::take(&dir).unwrap();
    }
}

#[test]
fn a_lock_that_nobody_renews_is_taken_over_after_a_while() {
    for dir in dirs("left") {
        leave(&dir, &of_another_machine());
        let started = Instant::now();
        let lease = Lease::take(&dir).unwrap();
        assert!(started.elapsed() >= LEASE);
        lease.check().unwrap();
        drop(lease);
        assert_eq!(
            storage::entries(&dir).unwrap(),
            [""; 0],
            "{}",
            dir.display()
        );
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_lock_of_a_dead_process_of_this_machine_is_taken_over_at_once() {
    for dir in dirs("dead") {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = Note {
            process: child.id(),
            ..Note::new()
        };
        child.wait().unwrap();
        leave(&dir, &dead);
        let started = Instant::now();
        let Opened::Open(output) = Output::open(&dir, "flatten", "f", false).unwrap() else {
            panic!("nothing was finished");
        };
        let manifest = storage::tests::manifest(&output, "f");
        output.finish(&manifest).unwrap();
        // A run killed between its end and the release of the lock leaves only the lock.
        leave(&dir, &dead);
        Output::done(&dir, "flatten", "f").unwrap().unwrap();
        let names = storage::entries(&dir).unwrap();
        assert_eq!(names, ["_SUCCESS", "_manifest.json"], "{}", dir.display());
        assert!(started.elapsed() < LEASE, "{:?}", started.elapsed());
    }
}

#[test]
fn a_holder_notices_that_its_lock_was_taken() {
    for dir in dirs("taken") {
        let lease = Lease::take(&dir).unwrap();
        let thief = Note::new();
        leave(&dir, &thief);
        let error = lease.check().unwrap_err();
        assert!(matches!(error, SchemaError::OutputLocked { .. }), "{error}");
        drop(lease);
        let (left, _) = object(&dir.join(LOCK))
            .unwrap()
            .unwrap()
            .read()
            .unwrap()
            .unwrap();
        assert_eq!(
            Note::of(&left),
            Some(thief),
            "the old holder must not remove it"
        );
    }
}

#[test]
fn what_a_holder_writes_that_lost_its_lock_stays_invisible() {
    // One request writes the small file, several requests write the large one.
    let sizes = [9, 20_000_000];
    for dir in dirs("fence") {
        let Opened::Open(output) = Output::open(&dir, "flatten", "f", false).unwrap() else {
            panic!("nothing was finished");
        };
        let start = |size: usize, after: &str| {
            let mut file = output.create(&format!("{size}-{after}")).unwrap();
            file.write_all(&vec![1; size]).unwrap();
            file
        };
        let kept = sizes.map(|size| start(size, "kept").finish().unwrap());
        kept.iter().for_each(|file| output.sync(file).unwrap());
        let lost = sizes.map(|size| start(size, "lost"));
        leave(&dir, &of_another_machine());
        std::thread::sleep(2 * TRUST);
        for file in lost.map(|file| file.finish().unwrap()) {
            let error = output.sync(&file).unwrap_err();
            assert!(matches!(error, SchemaError::OutputLocked { .. }), "{error}");
        }
        let names = storage::entries(&dir).unwrap();
        let kept = kept.map(|file| file.path);
        let found: Vec<&String> = names.iter().filter(|name| name.contains('-')).collect();
        assert_eq!(found, kept.iter().rev().collect::<Vec<_>>());
    }
}

#[test]
fn of_many_that_take_over_one_gets_the_lock() {
    for dir in dirs("many") {
        leave(&dir, &of_another_machine());
        let taken: Vec<Result<Lease>> = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..4).map(|_| scope.spawn(|| Lease::take(&dir))).collect();
            takers
                .into_iter()
                .map(|taker| taker.join().unwrap())
                .collect()
        });
        let held = taken.iter().flatten().filter(|lease| lease.check().is_ok());
        assert_eq!(held.count(), 1, "{}", dir.display());
    }
}
