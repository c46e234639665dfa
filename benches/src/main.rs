//! The program `race`: repeats the measurements of BENCHMARKS.md, alone or in turns with peers.

mod child;
mod cli;
mod coverage;
mod figure;
mod growth;
mod list;
mod machine;
mod ours;
mod peers;
mod plot;
mod record;
mod report;
mod run;
mod shapes;
mod tables;
mod turns;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;

use crate::cli::Cli;
use crate::coverage::{Repeated, TABLES};
use crate::list::{Race, select};
use crate::machine::Machine;
use crate::peers::Peers;
use crate::record::Record;
use crate::run::Settings;

fn main() -> ExitCode {
    let args = Cli::parse();
    let races = match select(&args.patterns) {
        Ok(races) => races,
        Err(error) => return fail(&error, 2),
    };
    if args.list {
        list(&races);
        return ExitCode::SUCCESS;
    }
    match race(&args, &races) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => fail(&error, 1),
    }
}

fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    // A closed standard error is no error of this program.
    writeln!(std::io::stderr(), "error: {error:#}").ok();
    ExitCode::from(code)
}

/// Prints a line to standard output; a closed pipe is no error of this program.
fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").ok();
}

/// Prints the races with their competitors and tables, and the tables without a race.
fn list(races: &[Race]) {
    for race in races {
        let mut peers: Vec<String> = race.peers().map(|peer| peers::name(peer, false)).collect();
        if peers.is_empty() {
            peers.push("our side only".to_owned());
        }
        let tables = race.family.tables.join("; ");
        say(&format!(
            "{:<26} {:<42} {tables}",
            race.name(),
            peers.join(", ")
        ));
    }
    for (heading, _, repeated) in TABLES {
        if let Repeated::Not(reason) = repeated {
            say(&format!("not raced: {heading}: {reason}"));
        }
    }
}

/// Runs the races; returns the number of failures.
fn race(args: &Cli, races: &[Race]) -> anyhow::Result<usize> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the crate has a parent")?;
    let program = program(args.program.as_deref(), root)?;
    let settings = Settings {
        program: program.clone(),
        root: root.to_owned(),
        data: directory(&args.data)?,
        out: directory(&args.out)?,
        turns: args.turns,
        warm_up: !args.no_warm_up,
        limit: Duration::from_secs(args.limit),
    };
    let mut peers = find_peers(args, root)?;
    let fresh = Record {
        machine: Machine::here(),
        program: version(&program, root),
        turns: args.turns,
        left_out: Vec::new(),
        races: Vec::new(),
    };
    if let Some(warning) = fresh.machine.warning() {
        say(&format!("warning: {warning}"));
    }
    let mut record = match args.resume {
        true => resumed(fresh, &settings.out)?,
        false => fresh,
    };
    let known = peers.left_out.len();
    peers.left_out.iter().for_each(|line| say(line));
    run::run(races, &settings, &mut peers, &mut record)?;
    peers.left_out[known..].iter().for_each(|line| say(line));
    let failures = record.failures();
    failures.iter().for_each(|line| say(line));
    say(&format!(
        "report: {}",
        settings.out.join("race.md").display()
    ));
    Ok(failures.len())
}

/// Takes the races of an earlier run, which must be of this machine and program.
fn resumed(fresh: Record, out: &Path) -> anyhow::Result<Record> {
    let earlier = Record::load(out)?;
    anyhow::ensure!(
        earlier.machine.processor == fresh.machine.processor && earlier.program == fresh.program,
        "{} is of another processor or program; run without --resume, or with another --out",
        out.join(record::RECORD_FILE).display()
    );
    Ok(Record {
        races: earlier.races,
        ..fresh
    })
}

/// Creates a directory, and returns its absolute path: runs have working directories of their own.
fn directory(dir: &Path) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    dir.canonicalize()
        .with_context(|| dir.display().to_string())
}

fn find_peers(args: &Cli, root: &Path) -> anyhow::Result<Peers> {
    let given = args.peer_python.iter().map(|(name, path)| {
        // Not `canonicalize`: the Python of a virtual environment is a link to that of the system.
        let path = std::path::absolute(path).with_context(|| path.display().to_string())?;
        Ok((name.clone(), path))
    });
    let given = given.collect::<anyhow::Result<_>>()?;
    let beside = root.join("../shared/peers");
    let dir = match (&args.peers, args.no_peers) {
        (_, true) => None,
        (Some(dir), false) => Some(
            dir.canonicalize()
                .with_context(|| dir.display().to_string())?,
        ),
        (None, false) => beside.canonicalize().ok(),
    };
    Ok(match dir {
        Some(dir) => Peers::find(&dir, &given),
        None => Peers::default(),
    })
}

/// Returns the program `graphflat`; builds it if it is missing.
fn program(given: Option<&Path>, root: &Path) -> anyhow::Result<PathBuf> {
    if let Some(path) = given {
        return path
            .canonicalize()
            .with_context(|| path.display().to_string());
    }
    let own = std::env::current_exe().context("cannot find this program's file")?;
    let path = own.with_file_name(format!("graphflat{}", std::env::consts::EXE_SUFFIX));
    if !path.exists() {
        say("builds the program graphflat, once: cargo build --release -p jobs");
        let built = Command::new("cargo")
            .args(["build", "--release", "-p", "jobs"])
            .current_dir(root)
            .status()
            .context("cannot start cargo; give --program PATH")?;
        anyhow::ensure!(
            built.success(),
            "cannot build graphflat; give --program PATH"
        );
        anyhow::ensure!(
            path.exists(),
            "graphflat is not built beside this program; give --program PATH"
        );
    }
    Ok(path)
}

/// Returns the version of the program, and the commit of the checkout if git has one.
fn version(program: &Path, root: &Path) -> String {
    let run = |command: &mut Command| {
        let output = command
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let version = run(Command::new(program).arg("--version"));
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty"])
        .current_dir(root);
    let commit = run(&mut git).map(|commit| format!(", checkout {commit}"));
    version.unwrap_or_default() + &commit.unwrap_or_default()
}
