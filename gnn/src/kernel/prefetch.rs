//! Prefetches rows into the cache before they are read.

use prefetch_index::prefetch_index;

/// How many edges ahead a row is prefetched: enough to cover the latency of memory.
pub(super) const AHEAD: usize = 16;

/// Prefetches row `row` of `x`, `width` values wide, if there is one. Changes no result.
#[inline(always)]
pub fn prefetch<F>(x: &[F], row: Option<&u32>, width: usize) {
    let Some(&row) = row else { return };
    let start = row as usize * width;
    if let Some(values) = x.get(start..start + width) {
        prefetch_values(values);
    }
}

/// Prefetches the first cache lines of some values. Changes no result.
#[inline(always)]
pub fn prefetch_values<F>(values: &[F]) {
    /// Bytes of a cache line.
    const LINE: usize = 64;
    /// Most lines that are prefetched; the processor's own prefetcher loads the lines
    /// after them.
    const LINES_MAX: usize = 8;
    let values_a_line = (LINE / size_of::<F>().max(1)).max(1);
    for at in (0..values.len()).step_by(values_a_line).take(LINES_MAX) {
        prefetch_index(values, at);
    }
}
