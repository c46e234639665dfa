//! Tests that a killed run is resumed after its last finished round and writes the same bytes.

use crate::graph::{Graph, quiet};
use crate::models::{Trained, Variant};
use crate::variants::variants;
use crate::{ALL, Case};
use graphinfer::infer;
use schemas::{Fanout, Progress, Sampling};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const FANOUTS: [Fanout; 3] = [ALL, ALL, ALL];

/// Runs inference and copies the working directory after each round. Returns manifest and copies.
fn run_with_copies(case: &Case<'_>, extra: &str) -> (schemas::Manifest, Vec<PathBuf>) {
    let copies = Arc::new(Mutex::new(Vec::new()));
    let (work, taken) = (case.dir.join("work/infer"), Arc::clone(&copies));
    let progress: Progress = Arc::new(move |event| {
        let copy = work.with_file_name(format!("copy-{}", event.done));
        copy_dir(&work, &copy);
        taken.lock().unwrap().push(copy);
    });
    let store = case.store(2, usize::MAX);
    let manifest = infer(&case.plan("whole", extra), &store, &progress).unwrap();
    assert!(
        !case.dir.join("work/infer").exists(),
        "nothing is left behind"
    );
    let copies = std::mem::take(&mut *copies.lock().unwrap());
    (manifest, copies)
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// Runs inference from a copied working directory. Returns the computed rounds and the manifest.
fn resumed(
    case: &Case<'_>,
    copy: &Path,
    (output, extra): (&str, &str),
) -> (Vec<u64>, schemas::Manifest) {
    let work = case.dir.join("work/infer");
    copy_dir(copy, &work);
    let rounds = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&rounds);
    let progress: Progress = Arc::new(move |event| {
        if event.phase == "round" {
            noted.lock().unwrap().push(event.done);
        }
    });
    let store = case.store(3, usize::MAX);
    let manifest = infer(&case.plan(output, extra), &store, &progress).unwrap();
    assert!(!work.exists());
    let rounds = std::mem::take(&mut *rounds.lock().unwrap());
    (rounds, manifest)
}

#[test]
fn a_run_goes_on_after_its_last_finished_round() {
    for (seed, (variant, kind)) in (0..).zip(variants()) {
        for extra in ["", r#", "layer": 2"#, r#", "rows": "bf16""#] {
            let dir = tempfile::tempdir().unwrap();
            let graph = Graph::random(kind, 40 + seed);
            let trained = Trained::new(dir.path(), &variant, &graph, (&FANOUTS, Sampling::Uniform));
            let case = Case::uniform(dir.path(), &graph, &trained);
            let (whole, copies) = run_with_copies(&case, extra);
            assert_eq!(copies.len(), 5, "rounds 0 to 3, and the parts");
            for (finished, copy) in (0_u64..3).zip(&copies) {
                let output = format!("resumed-{finished}");
                let (rounds, manifest) = resumed(&case, copy, (&output, extra));
                assert_eq!(
                    rounds,
                    (finished + 1..=4).collect::<Vec<_>>(),
                    "{variant:?}"
                );
                assert_eq!(manifest.parts, whole.parts, "{variant:?}, after {finished}");
            }
        }
    }
}

#[test]
fn rows_that_changed_or_are_another_outputs_are_computed_again() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(crate::variants::PLAIN, 50);
    let variant = Variant::default();
    let trained = Trained::new(dir.path(), &variant, &graph, (&FANOUTS, Sampling::Uniform));
    let case = Case::uniform(dir.path(), &graph, &trained);
    let (whole, copies) = run_with_copies(&case, "");
    let (rounds, _) = resumed(&case, &copies[2], ("other", r#", "rows_per_part": 20"#));
    assert_eq!(rounds, [0, 1, 2, 3, 4], "another output's");
    for entry in std::fs::read_dir(&copies[2]).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "f32") {
            let mut bytes = std::fs::read(&path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let (again, manifest) = resumed(&case, &copies[2], ("changed", ""));
    assert_eq!(again, [0, 1, 2, 3, 4], "a bit is another one");
    assert_eq!(manifest.parts, whole.parts);
    let store = case.store(2, usize::MAX);
    let last = infer(&case.plan("again", ""), &store, &quiet()).unwrap();
    assert_eq!(last.parts, whole.parts);
}
