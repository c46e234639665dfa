//! Progress as log lines: selects the events that get a line, and writes its text.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use schemas::progress::Event;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event as Traced, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::{Console, SILENCE_MAX};

/// Time between two lines of one phase that only show a count.
const BETWEEN_TICKS: Duration = Duration::from_secs(10);

/// The line that was printed last, and its time.
#[derive(Default)]
pub(super) struct Lines {
    last: Option<Said>,
}

struct Said {
    /// Stage and phase.
    phase: String,
    /// Text of the last event of the phase, printed or not.
    text: String,
    /// Time of the last line.
    at: Instant,
    /// Time of the last event of the phase that had a new text.
    since: Instant,
}

impl Lines {
    /// Returns the line for an event, if it gets one. The first and the last event of a phase and
    /// events with a message or figures get one; events that only count get one every ten seconds.
    pub(super) fn line(&mut self, event: &Event, now: Instant) -> Option<String> {
        let text = text_of(event);
        let phase = format!("{} {}", event.stage, event.phase);
        let ends = event.total > 0 && event.done >= event.total;
        let is_tick = !ends && event.message.is_none() && event.fields.is_null();
        if let Some(last) = self.last.as_mut().filter(|last| last.phase == phase) {
            if last.text == text {
                return None;
            }
            last.since = now;
            last.text.clone_from(&text);
            if is_tick && now - last.at < BETWEEN_TICKS {
                return None;
            }
        }
        self.said(phase, &text, now);
        Some(text)
    }

    /// Records an event that is printed elsewhere.
    pub(super) fn note(&mut self, event: &Event, now: Instant) {
        let phase = format!("{} {}", event.stage, event.phase);
        self.said(phase, &text_of(event), now);
    }

    fn said(&mut self, phase: String, text: &str, now: Instant) {
        self.last = Some(Said {
            phase,
            text: text.to_owned(),
            at: now,
            since: now,
        });
    }

    /// Returns the line to print after a long silence.
    pub(super) fn silence(&mut self, now: Instant) -> Option<String> {
        let last = self.last.as_mut()?;
        if now - last.at < SILENCE_MAX {
            return None;
        }
        last.at = now;
        let seconds = (now - last.since).as_secs();
        Some(format!("working for {seconds} s since: {}", last.text))
    }
}

/// Returns the text of an event.
pub(super) fn text_of(event: &Event) -> String {
    let mut line = format!("{} {}", event.stage, event.phase);
    if event.total > 0 {
        line.push_str(&format!(" {}/{}", event.done, event.total));
    }
    match (&event.message, figures(&event.fields)) {
        (Some(text), _) => line.push_str(&format!(": {text}")),
        (None, text) if !text.is_empty() => line.push_str(&format!(": {text}")),
        (None, _) => {}
    }
    line
}

/// Returns the scalar fields as `name value`, floats with four decimals.
pub(super) fn figures(fields: &Value) -> String {
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
    shown.join(", ")
}

/// Passes the warnings of the stages to a console.
pub(super) struct Warnings(pub(super) Console);

impl<S, N> FormatEvent<S, N> for Warnings
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        _: Writer<'_>,
        event: &Traced<'_>,
    ) -> std::fmt::Result {
        let mut text = Text::default();
        event.record(&mut text);
        self.0.warn(&text.0);
        Ok(())
    }
}

/// The message of a warning, and its fields.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let separator = if self.0.is_empty() { "" } else { ", " };
        let written = match field.name() {
            "message" => write!(self.0, "{separator}{value:?}"),
            name => write!(self.0, "{separator}{name} {value:?}"),
        };
        written.expect("a string takes any text");
    }
}
