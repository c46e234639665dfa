//! Tests that inference by slices agrees with forward on the whole graph and on each GraphFeature.
#![cfg(test)]

mod case;
#[expect(
    clippy::shadow_unrelated,
    reason = "loops name an element like its list"
)]
#[path = "../../../gnn/tests/support/twin.rs"]
mod formula;
mod graph;
mod hubs;
mod links;
mod models;
mod outputs;
mod refused;
mod rounds;
mod rows_in_16_bits;
mod twin;
mod variants;

use case::{Case, assert_rows_close, check_graph_features, same_bytes_for_any_worker_count};
use gnn::{Aggregator, LayerKind};
use graph::{DIM, Graph, quiet};
use graphinfer::infer;
use models::{Trained, Variant};
use schemas::{Fanout, Sampling, keep_at_hop};
use variants::{PLAIN, variants};

const SEED: u64 = 11;

const ALL: Fanout = Fanout::All;

#[test]
fn without_sampling_all_paths_agree() {
    for (seed, (variant, kind)) in (0..).zip(variants()) {
        let dir = tempfile::tempdir().unwrap();
        let graph = Graph::random(kind, seed);
        let fanouts = [ALL, ALL];
        let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, Sampling::Uniform));
        let case = Case::uniform(dir.path(), &graph, &trained);
        let rows = same_bytes_for_any_worker_count(&case, usize::MAX, "");
        let expected = twin::whole_graph(&graph, &trained.model, &trained.transform, fanouts.len());
        assert_rows_close(&format!("{variant:?} {kind:?}"), &rows, &expected);
        check_graph_features(&case, &fanouts, &rows);
    }
}

/// Compares all paths on Cora: invariants 1 and 2 for each target, invariant 3 for inference.
fn agrees_on_cora(variants: &[(LayerKind, Aggregator)]) {
    let Some(graph) = Graph::cora(PLAIN) else {
        return;
    };
    let choices = [[ALL, ALL], [Fanout::Count(3), Fanout::Count(5)]];
    for (&(layer, aggregator), fanouts) in variants.iter().flat_map(|v| choices.map(|f| (v, f))) {
        let variant = Variant {
            layer,
            aggregator,
            in_dim: graph.dim,
            ..Variant::default()
        };
        let dir = tempfile::tempdir().unwrap();
        let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, Sampling::Uniform));
        let case = Case::uniform(dir.path(), &graph, &trained);
        let keep = keep_at_hop(&fanouts, 0, 0);
        let extra = r#", "rows_per_part": 500"#;
        let rows = same_bytes_for_any_worker_count(&case, keep, extra);
        if fanouts == [ALL, ALL] {
            let expected = twin::whole_graph(&graph, &trained.model, &trained.transform, 2);
            assert_rows_close(&format!("{variant:?} on Cora"), &rows, &expected);
        }
        check_graph_features(&case, &fanouts, &rows);
    }
}

#[test]
fn convolutions_agree_on_cora() {
    agrees_on_cora(&[
        (LayerKind::Gcn, Aggregator::Mean),
        (LayerKind::Gin, Aggregator::Mean),
    ]);
}

#[test]
fn samples_agree_on_cora() {
    agrees_on_cora(&[
        (LayerKind::Sage, Aggregator::Mean),
        (LayerKind::Sage, Aggregator::Max),
    ]);
}

#[test]
fn attentions_agree_on_cora() {
    agrees_on_cora(&[
        (LayerKind::Gat, Aggregator::Mean),
        (LayerKind::GatV2, Aggregator::Mean),
    ]);
}

/// With more workers than nodes, some workers own no node.
#[test]
fn more_workers_than_nodes_give_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::sized(PLAIN, 5, (10, DIM));
    let (fanouts, sampling) = ([Fanout::Count(2), ALL], Sampling::Uniform);
    let variant = Variant::default();
    let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, sampling));
    let case = Case {
        dir: dir.path(),
        graph: &graph,
        trained: &trained,
        sampling,
    };
    let extra = r#", "rows_per_part": 3"#;
    let (one, _) = case.infer(1, usize::MAX, extra);
    for workers in [9, 10, 11, 32] {
        let (other, _) = case.infer(workers, usize::MAX, extra);
        assert_eq!(other.parts, one.parts, "{workers} workers");
    }
}

#[test]
fn blocks_of_any_size_give_the_same_bytes() {
    // More nodes than one block holds, and features wider than the matrix library sums at once.
    let size = (2_100, 600);
    let fanouts = [ALL, ALL];
    for (seed, (variant, kind)) in (0..).zip(variants()) {
        let variant = Variant {
            in_dim: size.1,
            ..variant
        };
        let dir = tempfile::tempdir().unwrap();
        let graph = Graph::sized(kind, seed, size);
        let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, Sampling::Uniform));
        let case = Case::uniform(dir.path(), &graph, &trained);
        let extra = r#", "rows_per_part": 500"#;
        let rows = same_bytes_for_any_worker_count(&case, usize::MAX, extra);
        let expected = twin::whole_graph(&graph, &trained.model, &trained.transform, fanouts.len());
        assert_rows_close(&format!("{variant:?} {kind:?}"), &rows, &expected);
    }
}

#[test]
fn with_sampling_inference_is_forward_on_the_graph_feature() {
    let fanouts: [&[Fanout]; 4] = [
        &[Fanout::Count(5), Fanout::Count(2)],
        &[Fanout::Count(2), Fanout::Count(5)],
        &[ALL, Fanout::Count(3)],
        &[Fanout::Count(2), Fanout::Count(4), Fanout::Count(3)],
    ];
    for (seed, (variant, kind)) in (0..).zip(variants()) {
        let samplings: &[Sampling] = match kind.weights {
            true => &[Sampling::Uniform, Sampling::Weighted, Sampling::Top],
            false => &[Sampling::Uniform],
        };
        for (turn, &sampling) in samplings.iter().enumerate() {
            let fanouts = fanouts[(usize::try_from(seed).unwrap() + turn) % fanouts.len()];
            let dir = tempfile::tempdir().unwrap();
            let graph = Graph::random(kind, 100 + seed);
            let trained = Trained::new(dir.path(), &variant, &graph, (fanouts, sampling));
            let case = Case {
                dir: dir.path(),
                graph: &graph,
                trained: &trained,
                sampling,
            };
            let keep = keep_at_hop(fanouts, 0, 0);
            let rows = same_bytes_for_any_worker_count(&case, keep, "");
            check_graph_features(&case, fanouts, &rows);
        }
    }
}

#[test]
fn a_store_that_keeps_more_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 5);
    let fanouts = [Fanout::Count(3), Fanout::Count(2)];
    let sampling = Sampling::Uniform;
    let variant = Variant::default();
    let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, sampling));
    let case = Case {
        dir: dir.path(),
        graph: &graph,
        trained: &trained,
        sampling,
    };
    let (few, _) = case.infer(2, 3, "");
    let (many, _) = case.infer(2, usize::MAX, "");
    assert_eq!(few.parts, many.parts);
    assert_eq!(case.plan("o", "").store_need().unwrap().keep, [3]);
}

#[test]
fn sampling_none_reads_every_in_edge_of_a_model_trained_on_a_sample() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 6);
    let fanouts = [Fanout::Count(3), Fanout::Count(2)];
    let sampling = Sampling::Uniform;
    let trained = Trained::new(
        dir.path(),
        &Variant::default(),
        &graph,
        (&fanouts, sampling),
    );
    let case = Case {
        dir: dir.path(),
        graph: &graph,
        trained: &trained,
        sampling,
    };
    let rows = same_bytes_for_any_worker_count(&case, usize::MAX, r#", "sampling": "none""#);
    let expected = twin::whole_graph(&graph, &trained.model, &trained.transform, 2);
    assert_rows_close("none", &rows, &expected);
    let plan = case.plan("few", r#", "sampling": "none""#);
    let error = infer(&plan, &case.store(1, 3), &quiet()).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("reads more in-edges a node than the store's 3"),
        "{error}"
    );
}
