//! Turns panics of other crates' decoders on broken files into errors.
//!
//! The program's panic hook ends the program, because the peers of a dead worker would wait for it.
//! Broken bytes must not end the program, so their decoders run inside [`guarded`], where the hook
//! does nothing: see [`is_guarded`].

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Runs a decoder and returns its result, or the first line of its panic message.
///
/// After a panic, values that the decoder changed must not be used any more.
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
