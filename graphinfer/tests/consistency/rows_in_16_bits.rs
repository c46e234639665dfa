//! Tests rows that are kept in 16 bits between layers.

use crate::case::{Case, same_bytes_for_any_worker_count};
use crate::graph::Graph;
use crate::models::{Trained, Variant};
use crate::variants::{PLAIN, variants};
use crate::{ALL, twin};
use gnn::Dense;
use schemas::{EmbeddingRows, Labels, Sampling};

const EXTRA: &str = r#", "rows": "bf16""#;

/// Largest difference, relative to the largest number of a row, of f32 sums in another order.
const TOLERANCE: f32 = 1e-5;

/// Rounding to 16 bits changes a number by at most 2^-9 of it; two layers add such errors up.
const OF_ROUNDING: f32 = 0.03;

/// Returns the share of numbers that are within `TOLERANCE`, and the largest difference.
fn compared(got: &EmbeddingRows, expected: &Dense) -> (f64, f32) {
    let (mut near, mut largest) = (0, 0.0_f32);
    let all = expected
        .values
        .iter()
        .fold(0.0_f32, |most, x| most.max(x.abs()));
    for (row, of_row) in got.embedding.chunks(got.dim).enumerate() {
        let expected = expected.row(row);
        let scale = expected.iter().fold(0.1 * all, |most, x| most.max(x.abs()));
        for (x, y) in of_row.iter().zip(expected) {
            let error = (x - y).abs() / scale;
            near += u32::from(error <= TOLERANCE);
            largest = largest.max(error);
        }
    }
    let count = u32::try_from(got.embedding.len()).unwrap();
    (f64::from(near) / f64::from(count), largest)
}

/// A number that differs in the last bit of f32 can be rounded to another number of 16 bits. So a
/// few numbers are off by the error of rounding, all others are those of the twin.
#[test]
fn they_give_the_rows_of_rounding_between_layers() {
    for (seed, (variant, kind)) in (0..).zip(variants()) {
        let dir = tempfile::tempdir().unwrap();
        let graph = Graph::random(kind, seed);
        let fanouts = [ALL, ALL];
        let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, Sampling::Uniform));
        let case = Case::uniform(dir.path(), &graph, &trained);
        let what = format!("{variant:?} {kind:?}");
        let rows = same_bytes_for_any_worker_count(&case, usize::MAX, EXTRA);
        let expected = twin::rounded_graph(&graph, &trained.model, &trained.transform, 2);
        let (near, largest) = compared(&rows, &expected);
        assert!(
            near > 0.9 && largest < OF_ROUNDING,
            "{what}: {near}, {largest}"
        );
        let (manifest, in_f32) = case.infer(2, usize::MAX, "");
        assert!(manifest.plan.get("rows").is_none(), "{what}");
        let in_f32 = Dense {
            rows: in_f32.ids.len(),
            cols: in_f32.dim,
            values: in_f32.embedding,
        };
        let (same, farthest) = compared(&rows, &in_f32);
        assert!(
            same < 0.5 && farthest < OF_ROUNDING,
            "{what}: {same}, {farthest}"
        );
    }
}

/// The error that the report has is the one between the outputs of the same nodes.
#[test]
fn the_report_has_the_error_of_a_sample() {
    for (seed, (variant, kind)) in (60..).zip(variants()) {
        for layer in [1, 2] {
            let dir = tempfile::tempdir().unwrap();
            let graph = Graph::sized(kind, seed, (40, variant.in_dim));
            let fanouts = [ALL, ALL];
            let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, Sampling::Uniform));
            let case = Case::uniform(dir.path(), &graph, &trained);
            let extra = format!(r#", "layer": {layer}"#);
            let (plain, in_f32) = case.infer(2, usize::MAX, &extra);
            assert!(plain.report.get("rows_compared").is_none());
            let (manifest, rows) = case.infer(3, usize::MAX, &format!("{extra}{EXTRA}"));
            let compared = &manifest.report["rows_compared"];
            // 64 draws among 40 nodes hit most of them.
            let nodes = compared["nodes"].as_u64().unwrap();
            assert!((20..=40).contains(&nodes), "{compared}");
            let distance = |node: usize| {
                let of = |values: &[f32]| -> Vec<f64> {
                    let row = &values[node * rows.dim..(node + 1) * rows.dim];
                    row.iter().map(|&x| f64::from(x)).collect()
                };
                let (x, y) = (of(&in_f32.embedding), of(&rows.embedding));
                let length = x.iter().map(|x| x * x).sum::<f64>().sqrt();
                let square = x.iter().zip(&y).map(|(x, y)| (x - y).powi(2));
                square.sum::<f64>().sqrt() / length.max(f64::from(f32::MIN_POSITIVE))
            };
            let largest = (0..40).map(distance).fold(0.0, f64::max);
            let of_sample = compared["largest_distance"].as_f64().unwrap();
            assert!(of_sample <= largest * 1.01 + 1e-5, "{of_sample}, {largest}");
            let mean = (0..40).map(distance).sum::<f64>() / 40.0;
            let mean_of_sample = compared["mean_distance"].as_f64().unwrap();
            assert!(
                mean_of_sample > 0.3 * mean && mean_of_sample < 3.0 * mean,
                "{mean_of_sample}, {mean}"
            );
            let has_classes = matches!(rows.prediction, Labels::Class(_));
            assert_eq!(!compared["other_predictions"].is_null(), has_classes);
        }
    }
}

#[test]
fn hubs_in_16_bits_give_the_same_bytes_for_any_worker_count() {
    for (seed, (mut variant, kind)) in (40..).zip(variants()) {
        variant.head = false;
        let dir = tempfile::tempdir().unwrap();
        let mut graph = Graph::random(kind, seed);
        graph.add_in_edges(seed, &[(0, 20_000), (7, 8500)]);
        let fanouts = [ALL, ALL];
        let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, Sampling::Uniform));
        let case = Case::uniform(dir.path(), &graph, &trained);
        let rows = same_bytes_for_any_worker_count(&case, usize::MAX, EXTRA);
        let expected = twin::whole_graph_f64(&graph, &trained.model, &trained.transform);
        let (_, largest) = compared(&rows, &expected);
        assert!(largest < OF_ROUNDING, "{variant:?}: {largest}");
    }
}

/// A node that reads more than a sample may read is not compared.
#[test]
fn a_node_that_reads_too_much_is_not_in_the_sample() {
    let dir = tempfile::tempdir().unwrap();
    let mut graph = Graph::sized(PLAIN, 3, (12, 4));
    let hubs: Vec<(usize, usize)> = (0..8).map(|node| (node, 80_000)).collect();
    graph.add_in_edges(3, &hubs);
    let fanouts = [ALL, ALL];
    let variant = Variant {
        in_dim: 4,
        ..Variant::default()
    };
    let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, Sampling::Uniform));
    let case = Case::uniform(dir.path(), &graph, &trained);
    let (manifest, _) = case.infer(2, usize::MAX, EXTRA);
    let compared = &manifest.report["rows_compared"];
    // The other four have no in-edge.
    assert!(compared["nodes"].as_u64().unwrap() <= 4, "{compared}");
}
