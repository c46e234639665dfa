//! Progress as bars on a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use schemas::progress::Event;

use super::line_err;
use super::lines::{figures, text_of};

/// One bar for the current phase; the bar of a finished phase stays as a line.
#[derive(Default)]
pub(super) struct Bars {
    /// Stage and phase of the bar that was shown last.
    phase: String,
    /// None when its phase is finished: drawn again, the bar would appear below later lines.
    bar: Option<ProgressBar>,
}

impl Bars {
    /// Shows an event: as a line if it has no total, else as a bar.
    pub(super) fn show(&mut self, event: &Event) {
        if event.total == 0 {
            return self.print(&text_of(event));
        }
        // The phases of building a store share one bar.
        let is_store = event.stage == "store";
        let phase = match is_store {
            true => event.stage.to_owned(),
            false => format!("{} {}", event.stage, event.phase),
        };
        if self.phase != phase {
            self.end();
            self.bar = Some(new_bar(&phase, event.total));
            self.phase = phase;
        }
        let Some(bar) = &self.bar else {
            return;
        };
        bar.set_length(event.total);
        bar.set_position(event.done);
        let text = match &event.message {
            Some(message) => message.clone(),
            None if is_store => event.phase.clone(),
            None => figures(&event.fields),
        };
        if !text.is_empty() {
            bar.set_message(text);
        }
        if event.done >= event.total {
            self.end();
        }
    }

    /// Writes a line above the bar.
    pub(super) fn print(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| line_err(text)),
            None => line_err(text),
        }
    }

    /// Ends the current bar as it is.
    pub(super) fn end(&mut self) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_bar_is_never_drawn_again() {
        let event = |phase: &str, done| Event {
            stage: "infer",
            phase: phase.to_owned(),
            done,
            total: 3,
            message: None,
            fields: serde_json::Value::Null,
        };
        let mut bars = Bars::default();
        bars.show(&event("round", 1));
        assert!(bars.bar.is_some());
        for _ in 0..2 {
            bars.show(&event("round", 3));
            assert!(bars.bar.is_none());
        }
        let of_store = |phase: &str, done| Event {
            stage: "store",
            ..event(phase, done)
        };
        for (done, phase) in (0..).zip(["numbering nodes", "reading nodes", "reading edges"]) {
            bars.show(&of_store(phase, done));
            let bar = bars.bar.as_ref().unwrap();
            assert_eq!(
                (bar.position(), bar.message()),
                (done, phase.to_owned()),
                "one bar"
            );
        }
        bars.show(&of_store("written", 3));
        assert!(bars.bar.is_none());
        bars.show(&event("other", 1));
        bars.end();
        bars.show(&event("other", 2));
        assert!(
            bars.bar.is_none(),
            "a finished bar must not be drawn below later lines"
        );
    }
}
