//! Copies rows that lie anywhere to one matrix.

use std::mem::MaybeUninit;

use super::prefetch::{AHEAD, prefetch};
use super::split::{even_pieces, for_rows};

/// Copies `rows` rows of `width` values each, which `of_row` returns, on several threads.
///
/// # Panics
///
/// If `of_row` returns none, or another width, for one of them.
pub(crate) fn gather_rows<'a>(
    rows: usize,
    width: usize,
    of_row: impl Fn(usize) -> Option<&'a [f32]> + Send + Sync,
) -> Vec<f32> {
    let mut values = Vec::with_capacity(rows * width);
    let out: &mut [MaybeUninit<f32>] = &mut values.spare_capacity_mut()[..rows * width];
    for_rows::<f32, _, _>(
        out,
        width,
        even_pieces(rows, width),
        || (),
        #[inline(always)]
        |(), v, out| {
            if let Some(ahead) = of_row(v + AHEAD) {
                prefetch(ahead, Some(&0), width);
            }
            out.write_copy_of_slice(of_row(v).expect("each row has values"));
        },
    );
    #[expect(
        unsafe_code,
        reason = "zeros would be written first, and then replaced"
    )]
    // SAFETY: the capacity is at least `rows * width`, and all of these values were written: the
    // pieces cover all rows, and a row is written whole, or the call panics.
    unsafe {
        values.set_len(rows * width);
    }
    values
}
