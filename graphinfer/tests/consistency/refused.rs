//! Tests that inference refuses models and stores that do not fit, before it writes anything.

use crate::case::plan;
use crate::graph::{DIM, Graph, Kind, quiet};
use crate::models::{Trained, Variant};
use crate::variants::PLAIN;
use crate::{ALL, SEED};
use gnn::LayerKind;
use graphinfer::infer;
use schemas::{ErrorKind, Fanout, Sampling};

/// Runs a model trained on one graph on the store of another; nothing may be written.
fn check_unfit(model: (&Variant, Kind), store: (Kind, Sampling, u64), expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let trained_on = Graph::random(model.1, 1);
    let fanouts = [Fanout::Count(2)];
    let trained = Trained::new(
        dir.path(),
        model.0,
        &trained_on,
        (&fanouts, Sampling::Uniform),
    );
    let store = Graph::random(store.0, 1).store(dir.path(), 1, 2, (store.1, store.2));
    let plan = plan(dir.path(), &trained.dir, "out", "");
    let error = infer(&plan, &store, &quiet()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains(expected), "{error}");
    assert!(!plan.output().exists(), "nothing is written");
}

#[test]
fn a_store_that_is_not_what_the_model_was_trained_on_is_refused() {
    let plain = &Variant::default();
    let uniform = Sampling::Uniform;
    check_unfit((plain, PLAIN), (PLAIN, uniform, SEED + 1), "with seed 12");
    check_unfit(
        (plain, PLAIN),
        (PLAIN, Sampling::Top, SEED),
        "the store has Top",
    );
    check_unfit(
        (
            &Variant {
                edge_weight: true,
                ..*plain
            },
            Kind {
                weights: true,
                ..PLAIN
            },
        ),
        (PLAIN, uniform, SEED),
        "it uses edge weights, the edges have none",
    );
    let edges = Variant {
        layer: LayerKind::Gat,
        edge_dim: Some(2),
        ..*plain
    };
    check_unfit(
        (
            &edges,
            Kind {
                edge_dim: 2,
                ..PLAIN
            },
        ),
        (PLAIN, uniform, SEED),
        "it reads 2 features an edge, the edges have 0",
    );
    check_unfit(
        (
            &Variant {
                in_dim: DIM + 2,
                ..*plain
            },
            PLAIN,
        ),
        (PLAIN, uniform, SEED),
        "it reads 9 features a node, `input.nodes.features` have 7",
    );
}

#[test]
fn a_layer_that_the_model_lacks_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 1);
    let trained = Trained::new(
        dir.path(),
        &Variant::default(),
        &graph,
        (&[ALL, ALL], Sampling::Uniform),
    );
    let store = graph.store(dir.path(), 1, usize::MAX, (Sampling::Uniform, SEED));
    let plan = plan(dir.path(), &trained.dir, "out", r#", "layer": 3"#);
    let error = infer(&plan, &store, &quiet()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`infer.layer` is 3: the model has layers 1 to 2"
    );
}

#[test]
fn a_model_that_is_not_finished_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Graph::random(PLAIN, 1).store(dir.path(), 1, 2, (Sampling::Uniform, SEED));
    let plan = plan(dir.path(), &dir.path().join("none"), "out", "");
    let error = infer(&plan, &store, &quiet()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(
        error.to_string().contains("holds no finished output"),
        "{error}"
    );
}

#[test]
fn an_embedding_that_is_no_number_ends_all_workers() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 1);
    let variant = Variant::default();
    let mut trained = Trained::new(
        dir.path(),
        &variant,
        &graph,
        (&[ALL, ALL], Sampling::Uniform),
    );
    let huge = vec![f32::MAX; trained.model.flat().len()];
    trained.model.set_flat(&huge);
    trained.save_again();
    let store = graph.store(dir.path(), 3, usize::MAX, (Sampling::Uniform, SEED));
    let plan = plan(dir.path(), &trained.dir, "out", "");
    let error = infer(&plan, &store, &quiet()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
    let error = error.to_string();
    assert!(
        error.starts_with("layer 1 of the model gives no number for node "),
        "{error}"
    );
    assert!(!plan.output().join("_SUCCESS").exists());
}
