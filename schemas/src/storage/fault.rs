//! Faults of stores: which ones are retried, and their messages.

use std::io;

use object_store::Error;

use crate::error::causes;

/// Separates, in an error of `object_store`, the request from the status of its answer.
const STATUS: &str = "Server returned non-2xx status code: ";

/// Error of `object_store` where the answer to a write names no version.
const NO_E_TAG: &str = "ETag Header missing from response";

/// A message of this crate, inside an error of `object_store`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Said(pub(super) String);

/// Tells whether the next attempt may succeed.
pub(super) fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Generic { .. } | Error::JoinError { .. })
}

/// Tells whether a repeated request would get the same answer; `object_store` has retried the
/// others.
pub(super) fn is_answered(error: &Error) -> bool {
    let text = error.to_string();
    text.contains(STATUS) || text.contains(NO_E_TAG)
}

/// Tells whether a server refused a request for any reason but a missing object, so that a retry is
/// useless.
pub(super) fn is_denied(error: &Error) -> bool {
    let text = error.to_string();
    let status = text.split_once(STATUS).map_or("", |(_, status)| status);
    status.starts_with('4')
        && !status.starts_with("429")
        && !matches!(error, Error::NotFound { .. })
}

/// Makes an error that is retried.
pub(super) fn generic(problem: String) -> Error {
    Error::Generic {
        store: "storage",
        source: Box::new(Said(problem)),
    }
}

/// Makes an error that is not retried.
pub(super) fn lasting(problem: String) -> Error {
    Error::NotSupported {
        source: Box::new(Said(problem)),
    }
}

/// Turns an error of a store into one of a file that names the failure and its first cause once.
/// Each error in the chain of causes would repeat both.
pub(super) fn plain(error: Error) -> io::Error {
    let kind = match &error {
        Error::NotFound { .. } => io::ErrorKind::NotFound,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            io::ErrorKind::PermissionDenied
        }
        _ => io::ErrorKind::Other,
    };
    let causes: Vec<_> = causes(&error).collect();
    if let Some(Said(text)) = causes.iter().find_map(|cause| cause.downcast_ref()) {
        return io::Error::new(kind, text.clone());
    }
    let line = |text: String| text.lines().next().unwrap_or_default().trim().to_owned();
    let text = line(error.to_string());
    if let Some((request, status)) = text.split_once(STATUS) {
        return io::Error::new(kind, answered(request, status));
    }
    if text.contains(NO_E_TAG) {
        let problem = "the store gives no ETags; without them no run can go on with an output";
        return io::Error::new(kind, problem);
    }
    let first = causes.last().map(|cause| line(cause.to_string()));
    let first = first.filter(|first| !text.contains(first));
    io::Error::new(
        kind,
        first.map_or_else(|| text.clone(), |first| format!("{text}: {first}")),
    )
}

/// Returns the message for a server's answer, with the number of retries.
fn answered(request: &str, status: &str) -> String {
    let status = status.trim_end_matches([':', ' ']);
    let retries = request
        .split_once(", after ")
        .and_then(|(before, rest)| Some((before, rest.split_once(" retries")?.0)));
    let Some((before, retries)) = retries else {
        return format!("the server answered {status}");
    };
    let elapsed = before
        .rsplit_once(" in ")
        .map_or("", |(_, elapsed)| elapsed);
    format!("the server answered {status}, after {retries} retries in {elapsed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let source = text.to_owned().into();
        let store = "S3";
        let found = plain(Error::Generic { store, source }).to_string();
        assert_eq!(found, expected);
    }

    #[test]
    fn answers_of_servers_are_worded_once() {
        let request = "Error performing GET http://127.0.0.1:9000/b/k in 2.5ms";
        check(
            &format!("{request} - {STATUS}403 Forbidden: SignatureDoesNotMatch: no match"),
            "the server answered 403 Forbidden: SignatureDoesNotMatch: no match",
        );
        check(
            &format!(
                "{request}, after 10 retries, max_retries: 10, retry_timeout: 180s  - \
                 {STATUS}503 Service Unavailable: "
            ),
            "the server answered 503 Service Unavailable, after 10 retries in 2.5ms",
        );
        check("no host", "Generic S3 error: no host");
    }
}
