//! A run that stops at any point is resumed and ends with the same bytes.

use crate::draw::Draw;
use crate::graph::{Features, Graph, Kind, Shape, Weights};
use crate::run::{Settings, Tables, silent, snapshot, snapshot_parts};
use crate::tables::Cut;
use graphflat::flatten;
use schemas::progress::Progress;
use schemas::{IdType, Layout, read_manifest};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use store::open_or_build;

fn graph() -> Graph {
    let shape = Shape {
        id_type: IdType::Int64,
        nodes: 40,
        edges: 200,
        features: Features::Dense,
        labels: Kind::Class,
        weights: Weights::Few,
        edge_dim: 0,
        undirected: false,
    };
    shape.graph(&mut Draw::new(21))
}

const CUT: Cut = Cut {
    files: 2,
    row_group: 10,
};

/// Ten parts on three workers.
fn settings(layout: Layout) -> Settings {
    Settings {
        layout,
        workers: 3,
        targets_per_part: 4,
        ..Settings::new("3,2")
    }
}

/// Environment variable with the directory for [`a_run_that_is_killed`] in a process of its own.
const DIR: &str = "GRAPHFLAT_KILLED_RUN";

/// Kills a run after all parts are committed and before it is finished.
const AT_THE_END: usize = usize::MAX;

/// Returns progress that ends the process at the event number `at`.
fn deadly(at: usize) -> Progress {
    let seen = AtomicUsize::new(0);
    Arc::new(move |event| {
        let is_end = at == AT_THE_END && event.phase == "work";
        if seen.fetch_add(1, Ordering::Relaxed) == at || is_end {
            std::process::abort();
        }
    })
}

/// Does nothing without `DIR`: [`kill`] runs it in another process, which kills itself.
#[test]
fn a_run_that_is_killed() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let [at, layout] = ["AT", "LAYOUT"].map(|name| std::env::var(format!("{DIR}_{name}")).unwrap());
    let layout = match layout.as_str() {
        "Rows" => Layout::Rows,
        _ => Layout::Shards,
    };
    let tables = Tables::open(&graph(), CUT, Path::new(&dir));
    let progress = deadly(at.parse().unwrap());
    tables
        .flatten_with(&settings(layout), "out", false, &progress)
        .unwrap();
}

/// Runs the job in another process that kills itself at one event; returns whether it got that far.
fn kill(tables: &Tables, layout: Layout, at: usize) -> bool {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["resume::a_run_that_is_killed", "--exact"])
        .env(DIR, tables.path(""))
        .env(format!("{DIR}_AT"), at.to_string())
        .env(format!("{DIR}_LAYOUT"), format!("{layout:?}"))
        .output()
        .unwrap()
        .status;
    !status.success()
}

#[test]
fn a_run_killed_at_any_point_ends_with_the_same_bytes() {
    for layout in [Layout::Rows, Layout::Shards] {
        let whole = Tables::write(&graph(), CUT);
        whole.flatten(&settings(layout), "out").unwrap();
        let expected = snapshot_parts(&whole.path("out"));
        let mut killed = 0;
        // Each round adds a kill: a run starts from the files that killed runs left.
        let often = Tables::write(&graph(), CUT);
        for at in 0.. {
            let tables = Tables::write(&graph(), CUT);
            if !kill(&tables, layout, at) {
                break;
            }
            killed += 1;
            assert!(read_manifest(&tables.path("out")).is_err(), "event {at}");
            tables.flatten(&settings(layout), "out").unwrap();
            assert!(
                snapshot_parts(&tables.path("out")) == expected,
                "event {at}"
            );
            assert!(!tables.path("out/_progress").exists());
            kill(&often, layout, at);
        }
        assert!(
            killed >= 8,
            "events of the store, of waves and of rounds: {killed}"
        );
        often.flatten(&settings(layout), "out").unwrap();
        assert!(snapshot_parts(&often.path("out")) == expected);
    }
}

#[test]
fn committed_parts_are_not_written_again() {
    let layout = Layout::Rows;
    let whole = Tables::write(&graph(), CUT);
    whole.flatten(&settings(layout), "out").unwrap();
    let expected = snapshot_parts(&whole.path("out"));
    let tables = Tables::write(&graph(), CUT);
    assert!(kill(&tables, layout, AT_THE_END));
    let records = |name: &str| name.starts_with("_progress/part-");
    let left = snapshot(&tables.path("out"));
    let committed: Vec<_> = left.keys().filter(|name| records(name)).collect();
    assert_eq!(committed.len(), 10, "{committed:?}");
    let modified = |record: &str| {
        let part = record
            .replace("_progress/", "")
            .replace(".json", ".parquet");
        let file = tables.path("out").join(part);
        file.metadata().unwrap().modified().unwrap()
    };
    let before: Vec<_> = committed.iter().map(|record| modified(record)).collect();
    // A run with another number of workers may continue.
    let other = Settings {
        workers: 2,
        ..settings(layout)
    };
    tables.flatten(&other, "out").unwrap();
    let after: Vec<_> = committed.iter().map(|record| modified(record)).collect();
    assert_eq!(before, after);
    assert!(snapshot_parts(&tables.path("out")) == expected);
}

#[test]
fn a_committed_part_that_was_cut_off_is_written_again() {
    let layout = Layout::Shards;
    let whole = Tables::write(&graph(), CUT);
    whole.flatten(&settings(layout), "out").unwrap();
    let expected = snapshot_parts(&whole.path("out"));
    let tables = Tables::write(&graph(), CUT);
    assert!(kill(&tables, layout, AT_THE_END));
    let names: Vec<String> = snapshot_parts(&tables.path("out")).into_keys().collect();
    let first = tables.path("out").join(&names[0]);
    let bytes = std::fs::read(&first).unwrap();
    std::fs::write(&first, &bytes[..bytes.len() - 1]).unwrap();
    std::fs::remove_file(tables.path("out").join(&names[1])).unwrap();
    tables.flatten(&settings(layout), "out").unwrap();
    assert!(snapshot_parts(&tables.path("out")) == expected);
}

/// If a part cannot be written, or cannot be recorded by the committing thread, the run ends on all
/// workers. It continues after the obstacle is removed.
#[test]
fn a_run_that_fails_is_continued() {
    let layout = Layout::Rows;
    let whole = Tables::write(&graph(), CUT);
    whole.flatten(&settings(layout), "out").unwrap();
    let expected = snapshot_parts(&whole.path("out"));
    // A directory takes the place of a file of the sixth part, after the run has begun.
    for obstacle in ["part-00005.parquet", "_progress/part-00005.json"] {
        let tables = Tables::write(&graph(), CUT);
        let store_plan = tables.store_plan(&settings(layout)).unwrap();
        let store = open_or_build(&store_plan, &silent()).unwrap();
        let plan = tables.flatten_plan(&settings(layout), "out", false);
        let path = tables.path("out").join(obstacle);
        let put = path.join("x");
        let progress: Progress = Arc::new(move |_| std::fs::create_dir_all(&put).unwrap());
        let error = flatten(&plan, &store, &progress).unwrap_err();
        assert!(error.to_string().contains(obstacle), "{error}");
        assert!(read_manifest(&tables.path("out")).is_err());
        std::fs::remove_dir_all(&path).unwrap();
        flatten(&plan, &store, &silent()).unwrap();
        assert!(
            snapshot_parts(&tables.path("out")) == expected,
            "{obstacle}"
        );
    }
}
