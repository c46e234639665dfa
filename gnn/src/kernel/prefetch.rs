//! Asks for rows to come into the cache before they are read.

/// How many edges ahead a row is asked for: about as many as the time that memory takes to answer.
pub(super) const AHEAD: usize = 16;

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// Lines of a row that are asked for; behind them the processor sees by itself where things go.
const LINES_MAX: usize = 8;

/// Asks for row `row` of `x`, `width` values wide, if there is one. Changes no result.
#[inline]
pub(super) fn prefetch<F>(x: &[F], row: Option<&u32>, width: usize) {
    let Some(&row) = row else { return };
    let start = row as usize * width;
    let Some(values) = x.get(start..start + width) else {
        return;
    };
    #[cfg(target_arch = "x86_64")]
    for line in (0..size_of_val(values)).step_by(LINE).take(LINES_MAX) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        #[expect(unsafe_code, reason = "the instruction takes a pointer")]
        // SAFETY: the pointer stays within the row, and nothing is read through it that a program
        // could see: a prefetch is a hint.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(values.as_ptr().cast::<i8>().add(line));
        }
    }
}
