//! Decoders of other crates, whose panics on broken files become errors.
//!
//! A panic ends the program (its panic hook does that, since a worker that dies alone would leave
//! its peers waiting). Broken bytes must not, so whatever decodes them runs inside [`guarded`], and
//! the hook lets a panic pass there: see [`is_guarded`].

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Runs a decoder; a panic of it comes back as its message, on one line.
///
/// What the decoder has changed when it panics must not be used any more.
///
/// # Errors
///
/// If the decoder panics.
///
/// # Examples
///
/// ```
/// let length: usize = "-1".parse::<usize>().unwrap_or(9);
/// let problem = schemas::guard::guarded(|| [1, 2, 3][length]).unwrap_err();
/// assert!(problem.contains("index out of bounds"), "{problem}");
/// ```
pub fn guarded<T>(decode: impl FnOnce() -> T) -> Result<T, String> {
    DEPTH.set(DEPTH.get() + 1);
    let decoded = catch_unwind(AssertUnwindSafe(decode));
    DEPTH.set(DEPTH.get() - 1);
    decoded.map_err(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        let line = message.and_then(|text| text.lines().next());
        format!(
            "its decoder panicked: {}",
            line.unwrap_or("no reason given")
        )
    })
}

/// Tells whether a panic of this thread comes back as an error, so that a panic hook must neither
/// print it nor end the process.
pub fn is_guarded() -> bool {
    DEPTH.get() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_come_back_as_one_line() {
        assert_eq!(guarded(|| 7), Ok(7));
        let zero = std::hint::black_box(0);
        let problem = guarded(|| assert!(zero == 1, "{zero} of\nmany")).unwrap_err();
        assert_eq!(problem, "its decoder panicked: 0 of");
        let nested = guarded(|| guarded(|| assert!(is_guarded())).is_ok() && is_guarded());
        assert_eq!(nested, Ok(true));
        assert!(!is_guarded());
    }
}
