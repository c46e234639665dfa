//! The program `race` with shell scripts in place of graphflat and of the Pythons of the peers.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// Takes the part of `graphflat run`: prints a summary of 0.25 s.
const GRAPHFLAT: &str = r#"#!/bin/sh
case $1 in
--version) echo graphflat 9.9.9 ;;
run)
    echo ours >>"$RACE_LOG"
    echo '{"event":"progress","stage":"store","phase":"written"}'
    echo '{"event":"summary","seconds":0.25,"stages":[{"stage":"flatten","skipped":false}]}'
    ;;
*) exit 2 ;;
esac
"#;

/// Takes the part of a Python: lists packages, or prints the figure of a peer.
const PYTHON: &str = r#"#!/bin/sh
case $1 in
-c) echo '["polars"]' ;;
*flatten_polars.py)
    echo "polars ${MALLOC_TRIM_THRESHOLD_:-plain}" >>"$RACE_LOG"
    echo '{"seconds": 0.5, "rss_mb": 100.0, "version": "2.1"}'
    ;;
*) exit 2 ;;
esac
"#;

/// Takes the part of a Python whose script fails.
const BROKEN: &str = r#"#!/bin/sh
case $1 in
-c) echo '["duckdb"]' ;;
*) echo 'no memory' >&2; exit 3 ;;
esac
"#;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        place.script("graphflat", GRAPHFLAT);
        place.script("python", PYTHON);
        place.script("broken", BROKEN);
        for name in ["peers", "data", "data/S"] {
            fs::create_dir(place.path().join(name)).unwrap();
        }
        for name in [
            "peers/flatten_polars.py",
            "peers/flatten_duckdb.py",
            "data/S/meta.json",
        ] {
            fs::write(place.path().join(name), "").unwrap();
        }
        place
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn race(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_race"))
            .args(["--program", "graphflat", "--data", "data", "--out", "out"])
            .args(args)
            .current_dir(self.path())
            .env("RACE_LOG", self.path().join("log"))
            .output()
            .unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const PEERS: [&str; 4] = ["--peers", "peers", "--peer-python", "polars=python"];

#[test]
fn two_competitors_take_turns() {
    let place = Place::new();
    let mut args = vec!["flatten.rows.S", "--turns", "2"];
    args.extend(PEERS);
    let done = place.race(&args);
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{said}{}", text(&done.stderr));
    let turn = "ours\npolars plain\npolars 16000000000\n";
    assert_eq!(
        place.read("log"),
        format!("ours\npolars plain\n{turn}{turn}")
    );
    for line in [
        "duckdb is left out: no Python for it; give --peer-python duckdb=PATH\n",
        "flatten.rows.S: graphflat, warm-up: 0.250 s of work, ",
        "flatten.rows.S: Polars, tuned, turn 2: 0.500 s of work, ",
    ] {
        assert!(said.contains(line), "{line} in {said}");
    }
    let report = place.read("out/race.md");
    assert!(report.contains("| graphflat | graphflat 9.9.9"), "{report}");
    assert!(report.contains("| Polars | 2.1 |"), "{report}");
    assert!(
        report.contains("| flatten.rows.S | Polars, tuned | 0.500 | "),
        "{report}"
    );
    // The script's own figure: a process of a shell needs less.
    assert!(report.contains(" | 0.10 GB | "), "{report}");
    assert!(report.contains("![flatten](flatten.svg)"), "{report}");
    assert!(place.read("out/flatten.svg").starts_with("<svg"));
    let record: serde_json::Value = serde_json::from_str(&place.read("out/race.json")).unwrap();
    let competitors = record["races"][0]["competitors"].as_array().unwrap();
    let runs = competitors
        .iter()
        .map(|competitor| competitor["runs"].as_array().unwrap().len());
    assert_eq!(runs.collect::<Vec<_>>(), [2, 2, 2]);
    assert!(!place.path().join("out/work").exists());

    // A finished race is not run again, another one is.
    args.extend(["flatten.shards.S", "--resume", "--no-warm-up"]);
    let resumed = place.race(&args);
    let resumed_said = text(&resumed.stdout);
    assert_eq!(resumed.status.code(), Some(0), "{resumed_said}");
    assert!(
        resumed_said.contains("flatten.rows.S: measured before\n"),
        "{resumed_said}"
    );
    assert_eq!(place.read("log").lines().count(), 8 + 2);
    assert!(
        place
            .read("out/race.md")
            .contains("| flatten.shards.S | graphflat | ")
    );
}

#[test]
fn a_failure_leaves_the_others_running_and_fails_at_the_end() {
    let place = Place::new();
    let mut args = vec!["flatten.rows.S", "--turns", "1", "--no-warm-up"];
    args.extend(PEERS);
    args.extend(["--peer-python", "duckdb=broken"]);
    let failed = place.race(&args);
    let said = text(&failed.stdout);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert_eq!(
        place.read("log"),
        "ours\npolars plain\npolars 16000000000\n"
    );
    let line = "flatten.rows.S: DuckDB failed: exit status: 3: no memory";
    assert!(said.lines().any(|said| said == line), "{said}");
    let report = place.read("out/race.md");
    assert!(report.contains(&format!("- {line}\n")), "{report}");
    assert!(
        report.contains("| flatten.rows.S | DuckDB | - | - | - | - | failed |"),
        "{report}"
    );
    assert!(
        report.contains("| flatten.rows.S | Polars | 0.500 | "),
        "{report}"
    );
}

#[test]
fn without_peers_our_side_runs() {
    let place = Place::new();
    let done = place.race(&["flatten.rows.S", "--turns", "1", "--no-peers"]);
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{said}");
    assert!(!said.contains("left out"), "{said}");
    assert_eq!(place.read("log"), "ours\nours\n");
}

#[test]
fn wrong_names_list_the_races() {
    let place = Place::new();
    let wrong = place.race(&["flaten"]);
    assert_eq!(wrong.status.code(), Some(2));
    let error = text(&wrong.stderr);
    assert!(error.starts_with("error: no race matches flaten; the races are store.build.S, "));
    let list = text(&place.race(&["infer.gat.S", "--list"]).stdout);
    let row = list.lines().next().unwrap();
    assert!(
        row.starts_with("infer.gat.S ") && row.contains("DGL, torch CSR "),
        "{list}"
    );
    assert!(list.contains("not raced: docs/benchmarks/training.md#Kernels: `cargo bench -p gnn`"));
    assert!(!place.path().join("out").exists());
}
