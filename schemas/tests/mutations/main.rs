//! Broken files: changed bytes, cuts and wrong numbers, anywhere in the files that this crate
//! reads.
//!
//! Reading a changed file may have two results: an error of one line that names the file, or rows.
//! If the file has checksums (every output, and tables with checksums of pages), the rows must be
//! those that were written. Other input tables may give other rows. No mutation may panic, hang, or
//! take more than a gigabyte.
//!
//! The mutations run in child processes with limited memory. A failure prints the number of its
//! mutation; `GRAPHFLAT_TEST_MUTATION=NUMBER` repeats only that mutation, and
//! `GRAPHFLAT_TEST_MUTATIONS` sets how many mutations run.
#![cfg(target_os = "linux")]
#![cfg(test)]

mod change;
mod outputs;
mod tables;

use std::io::{BufRead as _, BufReader, Read as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use schemas::SchemaError;

use change::Chance;

/// Variable that gives a child its mutations: the first number, and the number after the last.
const RANGE: &str = "GRAPHFLAT_TEST_MUTATION_RANGE";
/// KiB of address space that a child may add to the space it starts with: a gigabyte.
const SPACE_KIB: u64 = 1 << 20;
/// Longest time in which a child prints no line; a mutation takes milliseconds.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Number of mutations after which a child prints a line.
const ALIVE_AFTER: u64 = 100;

/// Files that are read together, and the function that reads them.
struct Subject {
    name: String,
    dir: PathBuf,
    /// Names below `dir`; one file is changed at a time.
    files: Vec<String>,
    read: Box<dyn Fn() -> Result<u64, SchemaError>>,
    /// Hash of the rows that must be read, if the files have checksums.
    expected: Option<u64>,
}

impl Subject {
    /// Makes a subject of all files in a directory.
    fn new(
        name: &str,
        dir: &Path,
        has_checksums: bool,
        read: impl Fn() -> Result<u64, SchemaError> + 'static,
    ) -> Self {
        let whole = read().unwrap();
        assert_eq!(read().unwrap(), whole, "{name} is read the same twice");
        Self {
            name: name.to_owned(),
            dir: dir.to_owned(),
            files: files_below(dir, ""),
            read: Box::new(read),
            expected: has_checksums.then_some(whole),
        }
    }

    /// Changes, reads and restores a file; returns what is wrong with the result, if anything.
    fn check(&self, chance: &mut Chance) -> Option<String> {
        let name = &self.files[chance.below(self.files.len())];
        let path = self.dir.join(name);
        let whole = std::fs::read(&path).unwrap();
        let (changed, what) = change::change(&whole, chance);
        std::fs::write(&path, &changed).unwrap();
        let read = catch_unwind(AssertUnwindSafe(|| (self.read)()));
        std::fs::write(&path, &whole).unwrap();
        let problem = match read {
            Err(_) => "it panics".to_owned(),
            Ok(Err(error)) => told_badly(&error, &self.dir)?,
            Ok(Ok(found)) => {
                self.expected.filter(|expected| found != *expected)?;
                "other rows are read".to_owned()
            }
        };
        Some(format!("{}: {name} with {what}: {problem}", self.name))
    }
}

/// Returns the text of an error that is no short line, or does not name a file below `dir`.
fn told_badly(error: &SchemaError, dir: &Path) -> Option<String> {
    let error: &dyn std::error::Error = error;
    let chain = std::iter::successors(Some(error), |error| error.source());
    let text: Vec<String> = chain.map(ToString::to_string).collect();
    let text = text.join(": ");
    let is_one_line = !text.contains('\n') && text.len() < 2000;
    let names_file = text.contains(&*dir.to_string_lossy());
    (!is_one_line || !names_file).then(|| format!("the error is {text:?}"))
}

fn files_below(dir: &Path, prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        match entry.path().is_dir() {
            true => names.extend(files_below(&entry.path(), &format!("{name}/"))),
            false => names.push(name),
        }
    }
    names.sort();
    names
}

fn num_mutations() -> u64 {
    let wanted = std::env::var("GRAPHFLAT_TEST_MUTATIONS").ok();
    let is_slow = std::env::var_os("GRAPHFLAT_TEST_SLOW").is_some();
    let wanted = wanted.map(|text| text.parse().expect("a number of mutations"));
    wanted.unwrap_or(if is_slow { 20_000 } else { 2_000 })
}

#[test]
fn a_broken_file_is_an_error_that_names_it_or_gives_the_same_rows() {
    if let Ok(range) = std::env::var(RANGE) {
        return child(&range);
    }
    if let Ok(number) = std::env::var("GRAPHFLAT_TEST_MUTATION") {
        let number: u64 = number.parse().expect("the number of a mutation");
        return child(&format!("{number} {}", number + 1));
    }
    // Two processes at a time: one waits for files while the other decodes.
    let total = num_mutations();
    let halves = [(0, total / 2), (total / 2, total)];
    let children = halves.map(|(first, end)| std::thread::spawn(move || run_child(first, end)));
    let problems = children.map(|child| child.join().unwrap());
    assert_eq!(problems.concat(), [""; 0]);
}

/// Runs some mutations in a process; returns the problems.
fn run_child(first: u64, end: u64) -> Vec<String> {
    let mut child = Command::new("sh")
        .args([
            "-c",
            &format!("ulimit -v $(({SPACE_KIB} + 65536)); exec \"$0\" \"$@\""),
        ])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("a_broken_file_is_an_error_that_names_it_or_gives_the_same_rows")
        .env(RANGE, format!("{first} {end}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (told, lines) = mpsc::channel();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            told.send(line).ok();
        }
    });
    let (mut problems, mut at) = (Vec::new(), first);
    loop {
        match lines.recv_timeout(SILENCE_MAX) {
            Ok(line) => {
                problems.extend(line.strip_prefix("problem ").map(str::to_owned));
                at = line
                    .strip_prefix("at ")
                    .map_or(at, |number| number.parse().unwrap());
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                child.kill().unwrap();
                problems.push(format!(
                    "mutation {at} hangs, or one up to {ALIVE_AFTER} later"
                ));
            }
        }
    }
    reader.join().unwrap();
    let status = child.wait().unwrap();
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    if !status.success() && problems.is_empty() {
        problems.push(format!(
            "{status} at mutation {at} or up to {ALIVE_AFTER} later: {stderr}"
        ));
    }
    problems
}

/// Runs a range of mutations; a number means the same mutation in every process and run.
fn child(range: &str) {
    let (first, end) = range.split_once(' ').unwrap();
    let (first, end): (u64, u64) = (first.parse().unwrap(), end.parse().unwrap());
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !schemas::guard::is_guarded() {
            print(info);
        }
    }));
    let root = tempfile::tempdir().unwrap();
    let subjects = [
        tables::subjects(root.path()),
        outputs::subjects(root.path()),
    ]
    .concat_all();
    let mut is_good = true;
    for number in first..end {
        if number % ALIVE_AFTER == 0 || end == first + 1 {
            say(&format!("at {number}"));
        }
        let mut chance = Chance::new(number);
        let subject = &subjects[chance.below(subjects.len())];
        if let Some(problem) = subject.check(&mut chance) {
            say(&format!("problem {number}: {problem}"));
            is_good = false;
        }
    }
    assert!(is_good, "see above");
}

/// Prints a line for the process that started this one.
fn say(line: &str) {
    println!("\n{line}");
}

/// Joins lists whose elements cannot be cloned.
trait ConcatAll<T> {
    fn concat_all(self) -> Vec<T>;
}

impl<T, const N: usize> ConcatAll<T> for [Vec<T>; N] {
    fn concat_all(self) -> Vec<T> {
        self.into_iter().flatten().collect()
    }
}
