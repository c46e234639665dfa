//! Compares the gradient of learnable rows of untyped models with differences of the loss in f64.
#![cfg(test)]

mod support;

use gnn::{Architecture, Dense, Input, LayerKind, Mode, Model};
use support::{Batch, Random, architectures, batch, case_for, labels};

/// Half the length of a move of one value. The loss is computed in f64, so only the curvature of the
/// loss, and kinks that a move crosses, make an error.
const STEP: f32 = 1e-4;

/// Bounds that error, relative to the difference.
const TOLERANCE: f64 = 2e-3;

/// Learnable columns; the columns before them are features.
const COLS: usize = 3;

fn moved(rows: &Dense, by: f32) -> Dense {
    let (mut random, mut rows) = (Random(31), rows.clone());
    for row in rows.values.chunks_exact_mut(rows.cols) {
        for value in &mut row[rows.cols - COLS..] {
            *value += by * random.signed();
        }
    }
    rows
}

fn check(arch: &Architecture, mode: Mode) {
    let case = case_for(arch);
    let Batch { blocks, input, .. } = batch(&case, arch, false);
    let Input::Dense(dense) = input else {
        panic!("the batch is dense");
    };
    let (model, labels) = (
        Model::init(arch, 11).unwrap(),
        labels(arch, case.targets - 1),
    );
    let flat: Vec<f64> = model.flat().iter().map(|&x| f64::from(x)).collect();
    let loss = |rows: &Dense| {
        let moved = Input::Dense(rows.clone());
        let step = model.loss_and_gradient_f64(&flat, &blocks, &moved, &labels, 2.0, mode);
        step.unwrap().0 / 2.0
    };
    model.prepare(&blocks, None);
    let step = model.loss_and_gradient(&blocks, &Input::Dense(dense.clone()), &labels, 2.0, mode);
    let gradient = step.unwrap().rows;
    let [Some(got)] = &gradient[..] else {
        panic!("the rows of the one type have a gradient");
    };
    assert_eq!((got.rows, got.cols), (dense.rows, COLS));
    let (high, low) = (moved(&dense, STEP), moved(&dense, -STEP));
    let (mut slope, mut size) = (0.0, 0.0);
    for row in 0..got.rows {
        for (col, &of_value) in (dense.cols - COLS..).zip(got.row(row)) {
            let by = f64::from(high.row(row)[col]) - f64::from(low.row(row)[col]);
            slope += f64::from(of_value) * by;
            size += (f64::from(of_value) * by).abs();
        }
    }
    let difference = loss(&high) - loss(&low);
    assert!(
        (difference - slope).abs() <= TOLERANCE * size,
        "{slope} is not {difference}: {arch:?} {mode:?}"
    );
    assert!(size > 0.0, "some rows have a gradient: {arch:?}");
}

#[test]
fn gradients_of_learnable_rows_equal_finite_differences() {
    for arch in architectures() {
        let arch = Architecture {
            embedding_dim: Some(COLS),
            ..arch
        };
        check(&arch, Mode::Eval);
        let dropped = Architecture {
            dropout: 0.3,
            input_dropout: 0.2,
            ..arch
        };
        check(&dropped, Mode::Train { seed: 3 });
    }
}

#[test]
fn learnable_columns_lie_within_the_input() {
    for (dim, fits) in [(0, false), (1, true), (5, true), (6, false)] {
        let arch = Architecture {
            embedding_dim: Some(dim),
            ..support::plain(LayerKind::Sage)
        };
        let checked = arch.validate().map_err(|error| error.to_string());
        assert_eq!(checked.is_ok(), fits, "{checked:?}");
    }
}
