//! How long the allocator keeps memory that is free.

use bytesize::ByteSize;
use libmimalloc_sys::{mi_option_set, mi_option_t};

/// `mi_option_purge_delay`: milliseconds until free memory goes back to the system; -1: never.
const PURGE_DELAY: mi_option_t = 15;

/// From this budget on free memory is kept.
const AMPLE: ByteSize = ByteSize::gib(1);

/// Keeps free memory for what comes next where the budget is ample.
///
/// By default it goes back to the system within a fraction of a second, and most of it is wanted
/// again at once: a flatten spent a tenth of its time on having such memory cleared.
pub(crate) fn keep_free_memory(budget: ByteSize) {
    if budget < AMPLE {
        return;
    }
    #[expect(
        unsafe_code,
        reason = "the allocator has no other way to set an option"
    )]
    // SAFETY: the number is one of mimalloc's options; no other thread runs yet.
    unsafe {
        mi_option_set(PURGE_DELAY, -1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "the allocator's options are read")]
    fn the_option_is_the_delay_of_purging() {
        // Of the options near it only this one has such a default.
        // SAFETY: the number is one of mimalloc's options.
        let default = unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert!([10, 1000].contains(&default), "{default}");
    }
}
