//! Tests the written output, the returned manifest, and the resume of a killed run.

use crate::case::{Case, assert_rows_close, read, same_bytes_for_any_worker_count};
use crate::graph::{CLASSES, Graph, NUM_NODES, quiet};
use crate::models::{self, Trained, Variant};
use crate::variants::PLAIN;
use crate::{ALL, twin};
use gnn::Dense;
use graphinfer::infer;
use schemas::{EmbeddingsDataset, ErrorKind, Opened, Output, Sampling};

#[test]
fn an_inner_layer_can_be_the_embedding_beside_the_prediction() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 7);
    let variant = Variant {
        head: true,
        ..Variant::default()
    };
    let trained = Trained::new(
        dir.path(),
        &variant,
        &graph,
        (&[ALL, ALL], Sampling::Uniform),
    );
    let case = Case::uniform(dir.path(), &graph, &trained);
    let rows = same_bytes_for_any_worker_count(&case, usize::MAX, r#", "layer": 1"#);
    let expected = twin::whole_graph(&graph, &trained.model, &trained.transform, 1);
    assert_rows_close("layer 1", &rows, &expected);
    let last = twin::whole_graph(&graph, &trained.model, &trained.transform, 2);
    let logits = trained.model.forward_head(last).unwrap();
    assert_eq!(rows.prediction, models::classes_of(&logits));
    let (manifest, alone) = case.infer(2, usize::MAX, r#", "layer": 1, "prediction": false"#);
    assert_eq!(alone.embedding, rows.embedding);
    assert_eq!(alone.prediction, schemas::Labels::None);
    let rounds = manifest.report["rounds"].as_array().unwrap().len();
    assert_eq!(rounds, 2, "layers beyond the embedding are not computed");
}

#[test]
fn predictions_are_written_as_labels_were_given() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 8);
    let trained = Trained::new(
        dir.path(),
        &Variant::default(),
        &graph,
        (&[ALL], Sampling::Uniform),
    );
    let case = Case::uniform(dir.path(), &graph, &trained);
    let (manifest, rows) = case.infer(3, usize::MAX, "");
    let logits = Dense {
        rows: NUM_NODES,
        cols: rows.dim,
        values: rows.embedding.clone(),
    };
    assert_eq!(rows.prediction, models::classes_of(&logits));
    let file = &manifest.parts[0].files[0].path;
    let output = dir.path().join(format!("embeddings-3-{}-", usize::MAX));
    let names = models::read_strings(&output.join(file), "prediction");
    assert!(
        names.iter().all(|name| CLASSES.contains(&name.as_str())),
        "{names:?}"
    );
}

#[test]
fn a_finished_output_is_returned_and_another_plans_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 10);
    let trained = Trained::new(
        dir.path(),
        &Variant::default(),
        &graph,
        (&[ALL, ALL], Sampling::Uniform),
    );
    let case = Case::uniform(dir.path(), &graph, &trained);
    let store = case.store(2, usize::MAX);
    let first = infer(&case.plan("out", ""), &store, &quiet()).unwrap();
    let again = infer(&case.plan("out", ""), &store, &quiet()).unwrap();
    assert_eq!(first, again);
    let other = infer(&case.plan("out", r#", "layer": 1"#), &store, &quiet()).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Usage);
    assert!(other.to_string().contains("another plan"), "{other}");
    assert_eq!(
        read(case.plan("out", "").output(), NUM_NODES).ids.len(),
        NUM_NODES
    );
}

#[test]
fn a_killed_run_keeps_its_committed_parts_and_ends_with_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 12);
    let variant = Variant::default();
    let trained = Trained::new(dir.path(), &variant, &graph, (&[ALL], Sampling::Uniform));
    let case = Case::uniform(dir.path(), &graph, &trained);
    let store = case.store(2, usize::MAX);
    let whole = infer(&case.plan("whole", ""), &store, &quiet()).unwrap();
    // A run that was killed after its second part leaves the part and its entry, but no manifest.
    let cut = dir.path().join("cut");
    let Opened::Open(output) = Output::open(&cut, "infer", &whole.fingerprint, false).unwrap()
    else {
        panic!("the directory is a new one");
    };
    let file = &whole.parts[1].files[0].path;
    std::fs::copy(dir.path().join("whole").join(file), cut.join(file)).unwrap();
    output.commit_part(1, whole.parts[1].clone()).unwrap();
    drop(output);
    assert!(
        EmbeddingsDataset::open(&cut).is_err(),
        "no reader sees a part of an output"
    );
    let written = std::fs::metadata(cut.join(file))
        .unwrap()
        .modified()
        .unwrap();
    let resumed = infer(&case.plan("cut", ""), &store, &quiet()).unwrap();
    assert_eq!(resumed.parts, whole.parts);
    assert_eq!(
        std::fs::metadata(cut.join(file))
            .unwrap()
            .modified()
            .unwrap(),
        written
    );
    assert_eq!(
        read(&cut, NUM_NODES),
        read(&dir.path().join("whole"), NUM_NODES)
    );
}
