//! Whether there is a GPU, and how close rows of two devices have to be.

use schemas::EmbeddingRows;

/// Error relative to the largest number of all rows: f32 sums in another order, through two layers.
const TOLERANCE: f32 = 1e-4;

/// Tells whether there is a GPU. Fails if there is none and `GRAPHFLAT_TEST_GPU` is set.
pub(crate) fn has_gpu() -> bool {
    match gnn::Device::gpu() {
        Ok(_) => true,
        Err(error) if std::env::var_os("GRAPHFLAT_TEST_GPU").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    }
}

/// Checks that both outputs have the same nodes and nearly the same rows.
pub(crate) fn assert_near(what: &str, got: &EmbeddingRows, wanted: &EmbeddingRows) {
    assert_within(TOLERANCE, what, got, wanted);
}

/// [`assert_near`] with a largest error, relative to the largest number of all rows.
pub(crate) fn assert_within(
    tolerance: f32,
    what: &str,
    got: &EmbeddingRows,
    wanted: &EmbeddingRows,
) {
    assert_eq!(got.ids, wanted.ids, "{what}");
    assert_eq!(got.embedding.len(), wanted.embedding.len(), "{what}");
    let largest = wanted
        .embedding
        .iter()
        .fold(1e-3_f32, |most, x| most.max(x.abs()));
    for (at, (x, y)) in got.embedding.iter().zip(&wanted.embedding).enumerate() {
        let id = got.ids.display(at / got.dim.max(1));
        let error = (x - y).abs() / largest;
        assert!(
            error <= tolerance,
            "{what}, node {id}: {x} is not {y}, error {error}"
        );
    }
}
