//! Tests of the lines that are printed, and when.

use serde_json::Value;

use super::*;

fn event(phase: &str, done: u64, total: u64, message: Option<&str>) -> Event {
    Event {
        stage: "flatten",
        phase: phase.to_owned(),
        done,
        total,
        message: message.map(str::to_owned),
        fields: Value::Null,
    }
}

#[test]
fn ticks_are_said_every_ten_seconds_and_the_rest_once() {
    let start = Instant::now();
    let mut lines = Lines::default();
    let mut said = Vec::new();
    for (seconds, event) in [
        (0, event("waves", 0, 9, None)),
        (1, event("waves", 1, 9, None)),
        (9, event("waves", 2, 9, None)),
        (12, event("waves", 3, 9, None)),
        (13, event("waves", 4, 9, Some("figures"))),
        (14, event("waves", 9, 9, None)),
        (15, event("waves", 9, 9, None)),
        (15, event("work", 1, 2, Some("round 1"))),
    ] {
        said.extend(lines.line(&event, start + Duration::from_secs(seconds)));
    }
    let expected = [
        "flatten waves 0/9",
        "flatten waves 3/9",
        "flatten waves 4/9: figures",
        "flatten waves 9/9",
        "flatten work 1/2: round 1",
    ];
    assert_eq!(said, expected);
}

#[test]
fn a_long_silence_is_broken() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut lines = Lines::default();
    assert_eq!(lines.silence(at(600)), None, "nothing was said to work at");
    lines.line(&event("waves", 0, 9, None), at(0));
    lines.line(&event("waves", 1, 9, None), at(5));
    assert_eq!(lines.silence(at(59)), None);
    let said = "working for 56 s since: flatten waves 1/9";
    assert_eq!(lines.silence(at(61)).as_deref(), Some(said));
    assert_eq!(lines.silence(at(62)), None);
    assert!(lines.silence(at(121)).is_some());
}
