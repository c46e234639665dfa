//! Tests that a killed run is resumed after its last finished round or part.

use crate::case::Case;
use crate::graph::{Graph, quiet};
use crate::models::{Trained, architectures};
use gnn::LayerKind;
use gnn::typed::TypedKind;
use graphinfer::infer;
use schemas::{Layout, Manifest, Progress};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const EXTRAS: [&str; 2] = [
    r#", "types": "all", "layer": 1"#,
    r#", "types": "all", "layer": 1, "rows": "bf16""#,
];

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let there = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy_dir(&path, &there),
            false => drop(std::fs::copy(&path, there).unwrap()),
        }
    }
}

fn compared(manifest: &Manifest) -> Option<&serde_json::Value> {
    manifest.report.get("rows_compared")
}

#[test]
fn a_run_goes_on_after_its_last_finished_round_and_part() {
    let kinds = [
        TypedKind::Conv(LayerKind::GatV2),
        TypedKind::Rgcn,
        TypedKind::SimpleHgn,
        TypedKind::Hgt,
    ];
    for (seed, kind) in (50..).zip(kinds) {
        let case = Case::new(&Graph::random(seed, false));
        let plan = case.sample(&json!(["all", "all"]), Layout::Shards);
        let keep = plan.sample().keep_by_relation();
        let (_, flatten) = case.flatten(&plan);
        let meta = case.store(1, &keep).meta().graph.clone();
        for (at, arch) in architectures(kind, &meta).iter().enumerate() {
            let dir = case.path().join(format!("model-{at}"));
            let trained = Trained::new(dir, arch, (&flatten, &meta));
            for extra in EXTRAS {
                check(&case, &trained, &keep, extra);
            }
        }
    }
}

/// Runs inference and copies working directory and output after each event, then resumes each copy.
fn check(case: &Case, trained: &Trained, keep: &[usize], extra: &str) {
    let name = trained
        .dir
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned()
        + &extra.len().to_string();
    let place = case.path().to_owned();
    let copies: Arc<Mutex<Vec<PathBuf>>> = Arc::default();
    let (taken, whole) = (Arc::clone(&copies), place.join(format!("whole-{name}")));
    let output = whole.clone();
    let copying: Progress = Arc::new(move |event| {
        let copy = place.join(format!(
            "copy-{}-{}",
            output.file_name().unwrap().display(),
            event.done
        ));
        copy_dir(&place.join("work/infer"), &copy.join("work"));
        copy_dir(&output, &copy.join("output"));
        taken.lock().unwrap().push(copy);
    });
    let whole_plan = case.plan(trained, &format!("whole-{name}"), extra);
    let manifest = infer(&whole_plan, &case.store(2, keep), &copying).unwrap();
    let copies = std::mem::take(&mut *copies.lock().unwrap());
    assert_eq!(copies.len(), 4, "rounds 0 and 1, and the parts twice");
    for (finished, copy) in copies.iter().enumerate() {
        let again = case.path().join(format!("again-{name}-{finished}"));
        copy_dir(&copy.join("work"), &case.path().join("work/infer"));
        copy_dir(&copy.join("output"), &again);
        if finished == 3 {
            // The run was killed in the last round: some parts are whole.
            let part = again.join("_progress/part-00001.json");
            std::fs::remove_file(part).unwrap();
        }
        let rounds: Arc<Mutex<Vec<u64>>> = Arc::default();
        let noted = Arc::clone(&rounds);
        let progress: Progress = Arc::new(move |event| {
            if event.phase == "round" {
                noted.lock().unwrap().push(event.done);
            }
        });
        let plan = case.plan(trained, &format!("again-{name}-{finished}"), extra);
        let resumed = infer(&plan, &case.store(3, keep), &progress).unwrap();
        assert_eq!(resumed.parts, manifest.parts, "{name}, after {finished}");
        assert_eq!(compared(&resumed), compared(&manifest), "{name}");
        let rounds = rounds.lock().unwrap().clone();
        let first = (finished as u64 + 1).min(2);
        assert_eq!(
            rounds,
            (first..=3).collect::<Vec<_>>(),
            "{name}, after {finished}"
        );
    }
    // A bit of a file of rows is another one: all rounds are computed again.
    let work = case.path().join("work/infer");
    copy_dir(&copies[1].join("work"), &work);
    for entry in std::fs::read_dir(&work).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "f32" || extension == "bf16")
        {
            let mut bytes = std::fs::read(&path).unwrap();
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
            }
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let changed_plan = case.plan(trained, &format!("changed-{name}"), extra);
    let again = infer(&changed_plan, &case.store(1, keep), &quiet()).unwrap();
    assert_eq!(again.parts, manifest.parts);
}
