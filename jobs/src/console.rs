//! Reports the progress of the program as bars, log lines or JSON.

mod bars;
mod lines;

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use chrono::{DateTime, SecondsFormat, Utc};
use schemas::progress::{Event, Progress};
use serde_json::{Value, json};
use tracing_subscriber::filter::LevelFilter;

use crate::cli::{CheckArgs, Command, RunArgs};
use crate::error::{exit_code, lines};
use bars::Bars;
use lines::Lines;

/// Time without a report after which a job prints that it is working: a phase may last for hours.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Form of the reports.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Voice {
    /// Progress bars on standard error.
    Bars,
    /// Log lines on standard error.
    Lines,
    /// A JSON object a line on standard output.
    Json,
    /// Errors only.
    Quiet,
}

/// Prints reports in the form that the user chose. Clones share their state.
#[derive(Clone)]
pub(crate) struct Console(Arc<Inner>);

struct Inner {
    voice: Voice,
    /// The time of `${date:...}` in the job file.
    date: DateTime<Utc>,
    /// Number of this process in the job.
    process: usize,
    /// Name of the job; unset until the job file is read.
    job: OnceLock<String>,
    bars: Mutex<Bars>,
    lines: Mutex<Lines>,
}

impl Console {
    /// Makes the console of a command: bars on a terminal and lines elsewhere, unless the user
    /// chose another form.
    pub(crate) fn of(command: &Command) -> Console {
        let (is_json, is_quiet, date, process) = match command {
            Command::Run(RunArgs {
                json,
                quiet,
                job,
                processes,
                ..
            }) => (*json, *quiet, job.edits().date, processes.process),
            Command::Check(CheckArgs { json, job, .. }) => (*json, false, job.edits().date, None),
            _ => (false, false, Utc::now(), None),
        };
        let voice = match (is_json, is_quiet) {
            (true, _) => Voice::Json,
            (false, true) => Voice::Quiet,
            (false, false) if io::stderr().is_terminal() => Voice::Bars,
            (false, false) => Voice::Lines,
        };
        Console(Arc::new(Inner {
            voice,
            date,
            process: process.unwrap_or_default(),
            job: OnceLock::new(),
            bars: Mutex::default(),
            lines: Mutex::default(),
        }))
    }

    /// Sets the name of the job for all further lines.
    pub(crate) fn name_job(&self, name: &str) {
        self.0.job.set(name.to_owned()).ok(); // a process runs one job
    }

    /// Prints the warnings of the stages from now on, unless the user wants errors only.
    pub(crate) fn listen(&self) {
        if self.0.voice == Voice::Quiet {
            return;
        }
        tracing_subscriber::fmt()
            .with_max_level(LevelFilter::WARN)
            .event_format(lines::Warnings(self.clone()))
            .with_writer(io::sink)
            .init();
    }

    /// Returns the callback that receives the events of the stages.
    ///
    /// # Errors
    ///
    /// If the system refuses the thread that breaks long silences.
    pub(crate) fn progress(&self) -> schemas::Result<Progress> {
        if matches!(self.0.voice, Voice::Lines | Voice::Json) {
            let inner = Arc::downgrade(&self.0);
            schemas::threads::spawn("silence", move || watch(&inner))?;
        }
        let console = self.clone();
        Ok(Arc::new(move |event| console.show(event)))
    }

    fn show(&self, event: &Event) {
        match self.0.voice {
            Voice::Quiet => {}
            Voice::Json => {
                self.0.lines().note(event, Instant::now());
                self.emit("info", json_of(event));
            }
            Voice::Lines => {
                let line = self.0.lines().line(event, Instant::now());
                if let Some(line) = line {
                    self.log("info", &line);
                }
            }
            Voice::Bars => self.0.bars().show(event),
        }
    }

    /// Prints one line about the run itself; with JSON or errors only, prints nothing.
    pub(crate) fn say(&self, text: &str) {
        match self.0.voice {
            Voice::Bars => {
                self.0.bars().end();
                line_err(text);
            }
            Voice::Lines => self.log("info", text),
            Voice::Json | Voice::Quiet => {}
        }
    }

    /// Prints a warning.
    fn warn(&self, text: &str) {
        match self.0.voice {
            Voice::Bars => self.0.bars().print(&format!("warning: {text}")),
            Voice::Lines => self.log("warn", text),
            Voice::Json => self.emit("warn", json!({ "event": "log", "message": text })),
            Voice::Quiet => {}
        }
    }

    /// Prints an error: one line for each mistake on standard error and, with `--json`, one event
    /// each on standard output.
    pub(crate) fn fail(&self, error: &anyhow::Error) {
        for line in lines(error) {
            self.fail_with(&line, exit_code(error));
        }
    }

    /// Prints an error as [`Console::fail`] does, given its text.
    pub(crate) fn fail_with(&self, problem: &str, exit_code: u8) {
        self.end(&format!("error: {problem}"), problem, exit_code);
    }

    /// Says that a signal ends the program; the line is no error, the event has the exit code.
    pub(crate) fn interrupted(&self, problem: &str, exit_code: u8) {
        self.end(problem, problem, exit_code);
    }

    fn end(&self, line: &str, problem: &str, exit_code: u8) {
        // A thread that fails while it draws bars holds them itself.
        if let Ok(mut bars) = self.0.bars.try_lock() {
            bars.end();
        }
        line_err(line);
        if self.0.voice == Voice::Json {
            let fields = json!({ "event": "error", "message": problem, "exit_code": exit_code });
            self.emit("error", fields);
        }
    }

    /// Warns, also where the user wants errors only.
    pub(crate) fn caution(&self, text: &str) {
        match self.0.voice {
            Voice::Quiet | Voice::Json => line_err(&format!("warning: {text}")),
            Voice::Bars | Voice::Lines => {}
        }
        self.warn(text);
    }

    /// Tells whether the user wants JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.0.voice == Voice::Json
    }

    /// Writes an event to standard output: the fields that all events have, then its own.
    pub(crate) fn emit(&self, level: &str, fields: Value) {
        let Value::Object(fields) = fields else {
            unreachable!("an event is an object");
        };
        let Value::Object(mut event) = json!({
            "time": now(),
            "level": level,
            "date": self.0.date.to_rfc3339_opts(SecondsFormat::Secs, true),
            "process": self.0.process,
        }) else {
            unreachable!("it is an object");
        };
        if let Some(job) = self.0.job.get() {
            event.insert("job".to_owned(), json!(job));
        }
        event.extend(fields);
        line_out(&Value::Object(event).to_string());
    }

    /// Writes a line to standard error: the fields that all lines have, then the text.
    fn log(&self, level: &str, text: &str) {
        let job = self.0.job.get().map_or("", String::as_str);
        let (date, process) = (self.0.date.format("%F"), self.0.process);
        let level = level.to_uppercase();
        line_err(&format!(
            "{} {level:5} job={job} date={date} process={process} {text}",
            now()
        ));
    }
}

impl Inner {
    fn bars(&self) -> MutexGuard<'_, Bars> {
        self.bars.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Prints that the run is working when it has been silent for [`SILENCE_MAX`]; returns when the
/// console is dropped.
fn watch(inner: &Weak<Inner>) {
    loop {
        std::thread::sleep(SILENCE_MAX / 10);
        let Some(console) = inner.upgrade().map(Console) else {
            return;
        };
        let Some(text) = console.0.lines().silence(Instant::now()) else {
            continue;
        };
        if console.is_json() {
            console.emit("info", json!({ "event": "working", "message": text }));
        } else {
            console.log("info", &text);
        }
    }
}

/// Writes one line to standard output; a closed pipe is not an error of this program.
pub(crate) fn line_out(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

fn line_err(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true)
}

fn json_of(event: &Event) -> Value {
    let mut object = json!({
        "event": "progress",
        "stage": event.stage,
        "phase": event.phase,
        "done": event.done,
        "total": event.total,
    });
    if let Some(message) = &event.message {
        object["message"] = json!(message);
    }
    if !event.fields.is_null() {
        object["fields"] = event.fields.clone();
    }
    object
}

#[cfg(test)]
mod tests;
