//! Multiplies dense matrices on one thread, with the crate `gemm`.

use std::ops::Range;

use super::Float;

/// A row-major matrix in a slice, or the transpose of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, F> {
    values: &'a [F],
    rows: usize,
    cols: usize,
    /// Values from the start of one row of the slice to the next.
    width: usize,
    is_transposed: bool,
}

impl<'a, F: Float> Matrix<'a, F> {
    /// Views `values` as rows of `cols` values each.
    pub(crate) fn new(values: &'a [F], cols: usize) -> Matrix<'a, F> {
        let rows = values.len() / cols;
        assert_eq!(values.len(), rows * cols, "rows are equally wide");
        Matrix {
            values,
            rows,
            cols,
            width: cols,
            is_transposed: false,
        }
    }

    /// Views some columns of the rows in `values`, which are `width` values each.
    pub(crate) fn of_columns(values: &'a [F], width: usize, cols: Range<usize>) -> Matrix<'a, F> {
        let rows = values.len() / width;
        assert_eq!(values.len(), rows * width, "rows are equally wide");
        assert!(cols.end <= width, "the rows have these columns");
        Matrix {
            values: &values[cols.start.min(values.len())..],
            rows,
            cols: cols.len(),
            width,
            is_transposed: false,
        }
    }

    /// Swaps rows and columns, without moving a value.
    pub(crate) fn transposed(self) -> Matrix<'a, F> {
        Matrix {
            rows: self.cols,
            cols: self.rows,
            is_transposed: !self.is_transposed,
            ..self
        }
    }

    /// Returns the strides in values: from a row to the next row, and from a column to the next.
    fn strides(&self) -> (isize, isize) {
        let width = isize::try_from(self.width).expect("a slice is shorter than isize::MAX");
        if self.is_transposed {
            (1, width)
        } else {
            (width, 1)
        }
    }
}

/// Sets the row-major `out` to `a * b`, or adds `a * b` to it if `adds` is set.
///
/// # Panics
///
/// If the shapes do not fit.
pub(crate) fn multiply<F: Float>(a: Matrix<'_, F>, b: Matrix<'_, F>, out: &mut [F], adds: bool) {
    let cols = b.cols;
    multiply_into(a, b, (out, cols, 0), adds);
}

/// Sets the columns from `first` on of `out`, whose rows are `width` values each, to `a * b`, or
/// adds `a * b` to them if `adds` is set.
///
/// # Panics
///
/// If the shapes do not fit.
pub(crate) fn multiply_into<F: Float>(
    a: Matrix<'_, F>,
    b: Matrix<'_, F>,
    (out, out_width, first): (&mut [F], usize, usize),
    adds: bool,
) {
    assert_eq!(a.cols, b.rows, "a row of `a` is as long as a column of `b`");
    assert_eq!(
        out.len(),
        a.rows * out_width,
        "`out` has the product's rows"
    );
    assert!(
        first + b.cols <= out_width,
        "`out` has the product's columns"
    );
    if out.is_empty() {
        return;
    }
    let out = &mut out[first..];
    let ((a_row, a_col), (b_row, b_col)) = (a.strides(), b.strides());
    let width = isize::try_from(out_width).expect("a slice is shorter than isize::MAX");
    #[expect(unsafe_code, reason = "the matrix library takes pointers and strides")]
    // SAFETY: row r of a matrix starts `r * width` values after the first of its slice, and its
    // `cols` values lie in the slice (`Matrix::new`, `Matrix::of_columns`); the strides are those of
    // its shape. By the asserts above `out` has the rows and columns of the product, and it is
    // borrowed exclusively.
    unsafe {
        gemm::gemm(
            a.rows,
            b.cols,
            a.cols,
            out.as_mut_ptr(),
            1,
            width,
            adds,
            a.values.as_ptr(),
            a_col,
            a_row,
            b.values.as_ptr(),
            b_col,
            b_row,
            F::ONE,
            F::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_equal_sums_over_the_inner_axis() {
        // Whole numbers, so that every order of summation gives the same sum.
        let value = |at: usize| f32::from(u8::try_from(at * 7 % 11).unwrap()) - 5.0;
        for (m, n, k) in [(1, 1, 1), (3, 2, 5), (70, 65, 40), (256, 16, 64)] {
            let a: Vec<f32> = (0..m * k).map(value).collect();
            let b: Vec<f32> = (0..k * n).map(value).collect();
            let across = |x: &[f32], cols: usize| -> Vec<f32> {
                let rows = x.len() / cols;
                let turned = (0..x.len()).map(|at| x[at % rows * cols + at / rows]);
                turned.collect()
            };
            let (a_turned, b_turned) = (across(&a, k), across(&b, n));
            let wanted: Vec<f32> = (0..m * n)
                .map(|at| (0..k).map(|i| a[at / n * k + i] * b[i * n + at % n]).sum())
                .collect();
            for (a, b) in [
                (Matrix::new(&a, k), Matrix::new(&b, n)),
                (Matrix::new(&a_turned, m).transposed(), Matrix::new(&b, n)),
                (Matrix::new(&a, k), Matrix::new(&b_turned, k).transposed()),
            ] {
                let mut out = vec![f32::NAN; m * n];
                multiply(a, b, &mut out, false);
                assert_eq!(out, wanted, "{m} x {n} x {k}");
                multiply(a, b, &mut out, true);
                let twice: Vec<f32> = wanted.iter().map(|x| 2.0 * x).collect();
                assert_eq!(out, twice, "{m} x {n} x {k}, added");
            }
        }
    }

    #[test]
    fn a_product_of_columns_leaves_other_columns_alone() {
        let value = |at: usize| f32::from(u8::try_from(at % 7).unwrap()) - 3.0;
        let (a, b): (Vec<f32>, Vec<f32>) =
            ((0..40).map(value).collect(), (0..24).map(value).collect());
        // Columns 1 to 3 of five rows of eight, and columns 2 and 3 of three rows of eight.
        let (left, right) = (
            Matrix::of_columns(&a, 8, 1..4),
            Matrix::of_columns(&b, 8, 2..4),
        );
        let wanted = |row: usize, col: usize| -> f32 {
            (0..3)
                .map(|at| a[row * 8 + 1 + at] * b[at * 8 + 2 + col])
                .sum()
        };
        let mut out = vec![0.5; 5 * 4];
        for times in [1.0, 2.0] {
            multiply_into(left, right, (&mut out, 4, 1), times > 1.0);
            for (at, &got) in out.iter().enumerate() {
                let (row, col) = (at / 4, at % 4);
                let inside = (1..3).contains(&col);
                let expected = if inside {
                    times * wanted(row, col - 1)
                } else {
                    0.5
                };
                assert_eq!(got.to_bits(), expected.to_bits(), "{row}, {col}");
            }
        }
        let none: [f32; 0] = [];
        multiply_into(
            Matrix::of_columns(&none, 8, 1..4),
            right,
            (&mut [], 4, 1),
            false,
        );
    }

    /// Longest inner axis that the library never splits, whatever the caches of the processor.
    const INNER_MAX: usize = 512;

    /// Tells whether the library finds an instruction that adds a product with one rounding.
    fn is_fused() -> bool {
        #[cfg(target_arch = "x86_64")]
        return is_x86_feature_detected!("fma");
        #[cfg(not(target_arch = "x86_64"))]
        cfg!(target_arch = "aarch64")
    }

    /// All bits that `docs/decisions/instruction-sets.md` promises: a chain of additions in the
    /// order of the inner axis, so the same with AVX2, AVX-512 and NEON.
    #[test]
    fn a_product_adds_up_in_the_order_of_the_inner_axis() {
        let value = |at: usize| f32::from(u16::try_from(at * 7919 % 65_521).unwrap()) / 3e4 - 1.0;
        for (n, k) in [(2, 3), (7, 100), (16, 128), (64, 301), (65, INNER_MAX)] {
            let m = 256; // as `Linear` multiplies
            let (a, b): (Vec<f32>, Vec<f32>) = (
                (0..m * k).map(value).collect(),
                (0..n * k).map(|at| value(at + 5)).collect(),
            );
            let mut out = vec![0.0; m * n];
            let b_turned = Matrix::new(&b, k).transposed();
            multiply(Matrix::new(&a, k), b_turned, &mut out, false);
            for (at, got) in out.into_iter().enumerate() {
                let terms = (0..k).map(|i| (a[at / n * k + i], b[at % n * k + i]));
                let wanted = terms.fold(0.0_f32, |sum, (a, b)| {
                    if is_fused() {
                        a.mul_add(b, sum)
                    } else {
                        a * b + sum
                    }
                });
                assert_eq!(got.to_bits(), wanted.to_bits(), "{n} x {k}, {at}");
            }
        }
    }
}
