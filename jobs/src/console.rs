//! What a run says while it works: progress bars, log lines or JSON.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex};

use indicatif::{ProgressBar, ProgressStyle};
use schemas::progress::{Event, Progress};
use serde_json::{Value, json};
use tracing_subscriber::filter::LevelFilter;

/// How a run reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Voice {
    /// Progress bars on standard error.
    Bars,
    /// A line per round or epoch on standard error.
    Lines,
    /// A JSON object a line on standard output.
    Json,
    /// Nothing.
    Quiet,
}

impl Voice {
    /// Picks bars on a terminal and lines elsewhere, unless the user asked otherwise.
    pub(crate) fn pick(json: bool, quiet: bool) -> Voice {
        match (json, quiet) {
            (true, _) => Voice::Json,
            (false, true) => Voice::Quiet,
            (false, false) if io::stderr().is_terminal() => Voice::Bars,
            (false, false) => Voice::Lines,
        }
    }

    /// Shows the warnings of the stages on standard error.
    pub(crate) fn listen(self) {
        if self != Voice::Quiet {
            let lines = tracing_subscriber::fmt()
                .with_writer(io::stderr)
                .with_ansi(io::stderr().is_terminal())
                .with_target(false);
            lines
                .with_max_level(LevelFilter::WARN)
                .without_time()
                .init();
        }
    }

    /// A callback that the stages report to.
    pub(crate) fn progress(self) -> Progress {
        match self {
            Voice::Quiet => Arc::new(|_| {}),
            Voice::Json => Arc::new(|event| line_out(&json_of(event))),
            Voice::Lines => Arc::new(|event| {
                if let Some(line) = log_line(event) {
                    line_err(&line);
                }
            }),
            Voice::Bars => {
                let bars = Mutex::new(Bars::default());
                Arc::new(move |event| {
                    bars.lock().expect("a panic ends the program").show(event);
                })
            }
        }
    }

    /// Says one line about the run itself.
    pub(crate) fn say(self, text: &str) {
        if matches!(self, Voice::Bars | Voice::Lines) {
            line_err(text);
        }
    }
}

/// Writes one line to standard output; a closed pipe is no error of ours.
pub(crate) fn line_out(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

fn line_err(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

fn json_of(event: &Event) -> String {
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
    object.to_string()
}

/// A line for an event that ends something or carries figures; nothing for mere ticks.
fn log_line(event: &Event) -> Option<String> {
    let ends = event.total > 0 && event.done >= event.total;
    if !ends && event.message.is_none() && event.fields.is_null() {
        return None;
    }
    let mut line = format!("{} {}", event.stage, event.phase);
    if event.total > 0 {
        line.push_str(&format!(" {}/{}", event.done, event.total));
    }
    match &event.message {
        Some(message) => line.push_str(&format!(": {message}")),
        None => line.push_str(&figures(&event.fields)),
    }
    Some(line)
}

/// The scalar fields as `name value`, numbers with four significant decimals.
fn figures(fields: &Value) -> String {
    let scalar = |value: &Value| match value {
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (None, Some(float)) => Some(format!("{float:.4}")),
            _ => Some(number.to_string()),
        },
        Value::String(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    };
    let Value::Object(fields) = fields else {
        return String::new();
    };
    let named = |(name, value)| scalar(value).map(|text| format!("{name} {text}"));
    let shown: Vec<String> = fields.iter().filter_map(named).collect();
    if shown.is_empty() {
        String::new()
    } else {
        format!(": {}", shown.join(", "))
    }
}

/// One bar for the phase at hand; the bar of a finished phase stays as a line.
#[derive(Default)]
struct Bars {
    phase: String,
    bar: Option<ProgressBar>,
}

impl Bars {
    fn show(&mut self, event: &Event) {
        let phase = format!("{} {}", event.stage, event.phase);
        if self.phase != phase || self.bar.is_none() {
            if let Some(bar) = self.bar.take() {
                bar.abandon();
            }
            self.bar = Some(new_bar(&phase, event.total));
            self.phase = phase;
        }
        if let Some(bar) = &self.bar {
            bar.set_length(event.total);
            bar.set_position(event.done);
            let text = match &event.message {
                Some(message) => message.clone(),
                None => figures(&event.fields).trim_start_matches(": ").to_owned(),
            };
            if !text.is_empty() {
                bar.set_message(text);
            }
            if event.total > 0 && event.done >= event.total {
                bar.abandon();
            }
        }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.abandon();
        }
    }
}

fn new_bar(phase: &str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:24} {bar:30} {pos}/{len} {elapsed} {msg}")
        .expect("the template is a constant");
    ProgressBar::new(total)
        .with_style(style)
        .with_prefix(phase.to_owned())
}
