//! Compares the gradient of learnable rows with central differences of the loss in f64.

use gnn::typed::TypedArchitecture;
use gnn::{Dense, Input, Mode, ReadyInput};

use crate::graph::{ALL, Batch, Graph, ready};
use crate::models::{architectures, labels, model, schema, with_dropout};
use crate::support::Random;

/// Half the length of a move of one value. The loss is computed in f64, so only the curvature of the
/// loss, and kinks that a move crosses, make an error.
const STEP: f32 = 1e-4;

/// Bounds that error, relative to the difference.
const TOLERANCE: f64 = 2e-3;

/// Makes two columns of the features of each type learnable, or all if there are fewer. A type
/// without features gets three.
fn with_rows(arch: &TypedArchitecture) -> TypedArchitecture {
    let mut arch = arch.clone();
    for of in &mut arch.types {
        let in_dim = *of.in_dim.get_or_insert(3);
        of.embedding_dim = Some(in_dim.min(2));
    }
    arch
}

/// The architectures in which every type may have learnable rows: graphs have none.
fn of_nodes() -> Vec<TypedArchitecture> {
    let mut all = architectures();
    all.retain(|arch| arch.readout.is_none());
    all
}

/// Returns the dense rows of a type, whose last `cols` columns are moved by `by` in a direction.
fn moved(rows: &Dense, cols: usize, by: f32) -> Dense {
    let mut random = Random(31);
    let mut rows = rows.clone();
    for row in rows.values.chunks_exact_mut(rows.cols) {
        for value in &mut row[rows.cols - cols..] {
            *value += by * random.signed();
        }
    }
    rows
}

/// Returns the rows of each type.
fn dense_rows(batch: &Batch) -> Vec<Dense> {
    let dense = batch.raw.iter().map(|raw| match raw {
        Some(Input::Sparse(rows)) => rows.to_dense(rows.rows),
        Some(Input::Dense(rows)) => rows.clone(),
        None => panic!("every type has learnable rows"),
    });
    dense.collect()
}

fn input(all: &[Dense]) -> Vec<Option<ReadyInput>> {
    let all = all.iter().cloned().map(|rows| Some(Input::Dense(rows)));
    ready(&all.collect::<Vec<_>>())
}

fn check(arch: &TypedArchitecture, mode: Mode, fanouts: [usize; 3]) {
    let graph = Graph::random(&schema(arch), 5, 10, 5);
    let batch = Batch::of(&graph, arch, 5, fanouts);
    let (model, labels) = (model(arch, 11), labels(arch, 4));
    let dense = dense_rows(&batch);
    let flat: Vec<f64> = model.flat().iter().map(|&x| f64::from(x)).collect();
    let loss = |all: &[Dense]| {
        let step =
            model.loss_and_gradient_f64(&flat, &batch.blocks, &input(all), &labels, 2.0, mode);
        step.unwrap().0 / 2.0
    };
    let step = model.loss_and_gradient(&batch.blocks, &input(&dense), &labels, 2.0, mode);
    let gradient = step.unwrap().rows;
    let mut reached = 0;
    for (at, of) in arch.types.iter().enumerate() {
        let cols = of.embedding_dim.unwrap();
        let Some(got) = &gradient[at] else {
            assert_eq!(
                dense[at].rows, 0,
                "only a type without nodes has no gradient"
            );
            continue;
        };
        assert_eq!((got.rows, got.cols), (dense[at].rows, cols));
        let mut all = dense.clone();
        all[at] = moved(&dense[at], cols, STEP);
        let (above, high) = (loss(&all), all[at].clone());
        all[at] = moved(&dense[at], cols, -STEP);
        let (below, low) = (loss(&all), all[at].clone());
        let (mut slope, mut size) = (0.0, 0.0);
        for row in 0..got.rows {
            let skip = of.features_dim();
            for (col, &of_value) in got.row(row).iter().enumerate() {
                let by = f64::from(high.row(row)[skip + col]) - f64::from(low.row(row)[skip + col]);
                slope += f64::from(of_value) * by;
                size += (f64::from(of_value) * by).abs();
            }
        }
        let difference = above - below;
        assert!(
            (difference - slope).abs() <= TOLERANCE * size.max(1e-9),
            "`{}`: {slope} is not {difference}: {arch:?} {mode:?}",
            of.name
        );
        reached += usize::from(size > 0.0);
    }
    assert!(reached > 0, "some rows have a gradient: {arch:?}");
}

#[test]
fn gradients_of_learnable_rows_equal_finite_differences() {
    for arch in of_nodes() {
        check(&with_rows(&arch), Mode::Eval, ALL);
        let dropped = with_rows(&with_dropout(&arch));
        check(&dropped, Mode::Train { seed: 3 }, [3, 2, 2]);
    }
}

#[test]
fn learnable_rows_change_no_output() {
    for arch in of_nodes() {
        let graph = Graph::random(&schema(&arch), 5, 10, 5);
        let plain = TypedArchitecture {
            types: with_rows(&arch).types,
            ..arch
        };
        let batch = Batch::of(&graph, &plain, 5, ALL);
        let mut without = plain.clone();
        without
            .types
            .iter_mut()
            .for_each(|of| of.embedding_dim = None);
        let rows = input(&dense_rows(&batch));
        let logits = [&plain, &without].map(|arch| {
            let logits = model(arch, 4).forward(&batch.blocks, &rows, Mode::Eval);
            logits.unwrap()
        });
        assert_eq!(logits[0], logits[1]);
    }
}
