//! Prefetches rows into the cache before they are read.

/// How many edges ahead a row is prefetched: enough to cover the latency of memory.
pub(super) const AHEAD: usize = 16;

/// Prefetches row `row` of `x`, `width` values wide, if there is one. Changes no result.
#[inline(always)]
pub fn prefetch<F>(x: &[F], row: Option<&u32>, width: usize) {
    let Some(&row) = row else { return };
    let start = row as usize * width;
    if let Some(values) = x.get(start..start + width) {
        lines(values);
    }
}

/// Prefetches the first lines of a row.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn lines<F>(values: &[F]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    /// Bytes of a cache line.
    const LINE: usize = 64;
    /// Most lines of a row that are prefetched; the processor's own prefetcher loads the lines
    /// after them.
    const LINES_MAX: usize = 8;
    for line in (0..size_of_val(values)).step_by(LINE).take(LINES_MAX) {
        #[expect(unsafe_code, reason = "the instruction takes a pointer")]
        // SAFETY: the pointer stays within the row, and a prefetch is only a hint: it reads nothing
        // that the program can observe.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(values.as_ptr().cast::<i8>().add(line));
        }
    }
}

/// Does nothing: stable Rust has no prefetch for other processors.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn lines<F>(_values: &[F]) {}
