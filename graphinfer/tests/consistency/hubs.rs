//! Tests nodes with so many in-edges that these are aggregated in segments.

use crate::case::{Case, assert_rows_close, same_bytes_for_any_worker_count};
use crate::graph::{DIM, Graph};
use crate::models::Trained;
use crate::variants::variants;
use crate::{ALL, twin};
use schemas::Sampling;

/// Two nodes get more than 8192 in-edges, parallel edges and self-loops among them.
#[test]
fn hubs_agree_with_the_whole_graph() {
    for (seed, (mut variant, kind)) in (40..).zip(variants()) {
        // The formulas return logits, inference the rows that a head reads: so the model has no
        // head.
        variant.head = false;
        let dir = tempfile::tempdir().unwrap();
        let mut graph = Graph::random(kind, seed);
        graph.add_in_edges(seed, &[(0, 20_000), (7, 8500)]);
        let fanouts = [ALL, ALL];
        let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, Sampling::Uniform));
        let case = Case::uniform(dir.path(), &graph, &trained);
        let rows = same_bytes_for_any_worker_count(&case, usize::MAX, "");
        // In f64: adding thousands of f32 one after the other is not exact enough.
        let expected = twin::whole_graph_f64(&graph, &trained.model, &trained.transform);
        assert_rows_close(&format!("{variant:?} {kind:?}"), &rows, &expected);
    }
}

/// Hubs are computed in batches of at most 64, in the order of ids. From disk, the rows of a batch
/// are copied piece by piece, with those of the batches after it that fit in memory. No two batches of this graph
/// read a common source, so copies made for another batch do not have the rows of a batch.
#[test]
fn hubs_of_several_batches_have_the_same_bytes_from_disk() {
    for (variant, kind) in variants().into_iter().step_by(4) {
        let dir = tempfile::tempdir().unwrap();
        let mut graph = Graph::sized(kind, 50, (260, DIM));
        let mut hubs: Vec<usize> = (0..130).collect();
        graph.edges.retain(|edge| !hubs.contains(&edge.dst));
        hubs.sort_by_key(|&node| graph.order[node]);
        for (batch, srcs) in hubs.chunks(64).zip([130..170, 170..210, 210..250]) {
            let in_edges: Vec<_> = batch.iter().map(|&node| (node, 8300)).collect();
            graph.add_in_edges_from(50, &in_edges, srcs);
        }
        let fanouts = [ALL, ALL];
        let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, Sampling::Uniform));
        let case = Case::uniform(dir.path(), &graph, &trained);
        let (alone, _) = case.infer(2, usize::MAX, "");
        for memory_budget in [1 << 12, 1 << 16, 1 << 20] {
            let (other, _) = case.infer_from_disk((2, memory_budget), usize::MAX, "");
            assert_eq!(
                other.parts, alone.parts,
                "{variant:?}, {memory_budget} bytes"
            );
        }
    }
}
