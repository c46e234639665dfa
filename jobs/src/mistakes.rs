//! Collects all mistakes of a job, so that they are reported together.

use crate::error::{JobError, Mistake};

/// The errors of checks, each once.
#[derive(Debug, Default)]
pub(crate) struct Found(Vec<JobError>);

impl Found {
    /// Adds an error, unless it has one with the same text.
    pub(crate) fn push(&mut self, error: impl Into<JobError>) {
        let error = error.into();
        let text = error.to_string();
        if !self.0.iter().any(|found| found.to_string() == text) {
            self.0.push(error);
        }
    }

    /// Adds several errors.
    pub(crate) fn extend<E: Into<JobError>>(&mut self, errors: impl IntoIterator<Item = E>) {
        errors.into_iter().for_each(|error| self.push(error));
    }

    /// Returns the result of a check, or adds its error.
    pub(crate) fn take<T, E: Into<JobError>>(&mut self, checked: Result<T, E>) -> Option<T> {
        checked.map_err(|error| self.push(error)).ok()
    }

    /// Tells whether nothing was found.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the errors, in the order in which they were found.
    pub(crate) fn into_errors(self) -> Vec<JobError> {
        self.0
    }
}

/// Makes one error of all mistakes of a job file, in the order of its lines.
pub(crate) fn in_order(mut mistakes: Vec<Mistake>) -> JobError {
    mistakes.sort_by_key(|mistake| mistake.at);
    mistakes.dedup_by(|second, first| second.line == first.line);
    JobError::Mistakes(mistakes)
}
