//! Tests that inference of typed graphs agrees with the slow twin and with graph features.
#![cfg(test)]

mod case;
#[path = "../../../gnn/tests/typed"]
#[allow(
    dead_code,
    clippy::shadow_unrelated,
    reason = "the tests of gnn use more of it; loops name an element like its list"
)]
mod formula {
    pub(crate) mod twin;
}
mod graph;
mod hubs;
mod light;
mod links;
mod models;
mod refused;
mod resumed;
#[path = "../../../gnn/tests/support"]
#[allow(
    dead_code,
    clippy::shadow_unrelated,
    reason = "the tests of gnn use more of it; loops name an element like its list"
)]
mod support {
    pub(crate) mod twin;
}
mod twin;

use case::{Case, assert_close, assert_reported, assert_rounded, read, read_sorted};
use gnn::LayerKind;
use gnn::typed::TypedKind;
use graph::{Draws, Graph, quiet};
use graphinfer::infer_neighborhoods;
use models::{Trained, architectures, plain, with_rows};
use schemas::{EmbeddingRows, GraphPlan, Labels, Layout, use_at_layer};
use serde_json::{Value, json};
use std::path::Path;
use support::twin::Rows;

/// Fan-outs of two hops: the first only of some relations into the target type.
fn sampled(graph: &GraphPlan, target: usize, draws: &mut Draws) -> Value {
    let into = graph.relations.iter().filter(|of| of.to == target);
    let names: Vec<&str> = into.map(|of| &of.name[..]).collect();
    let mut first = serde_json::Map::new();
    for (at, name) in names.iter().enumerate() {
        if at == 0 || draws.below(2) == 0 {
            first.insert((*name).to_owned(), json!(2 + draws.below(3)));
        }
    }
    let first = match first.is_empty() {
        true => json!(2),
        false => json!(first),
    };
    json!([first, 3 + draws.below(4)])
}

fn text_of(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

/// Compares all paths for one kind of model: layer by layer with several numbers of workers, the
/// formulas on the whole graph, and both layouts of graph features.
fn check_kind(kind: TypedKind, seed: u64, is_sampled: bool, has_tables: bool) {
    let graph = Graph::random(seed, kind == TypedKind::Conv(LayerKind::Gcn));
    let case = Case::new(&graph);
    let hops = match is_sampled {
        true => sampled(&case.graph, case.target, &mut Draws(seed)),
        false => json!(["all", "all"]),
    };
    let plans = [Layout::Shards, Layout::Rows].map(|layout| case.sample(&hops, layout));
    let keep = plans[0].sample().keep_by_relation();
    let features = plans.map(|plan| case.flatten(&plan));
    let meta = case.store(1, &keep).meta().graph.clone();
    for (at, arch) in architectures(kind, &meta).iter().enumerate() {
        let what = format!("{kind:?} {at}, graph {seed}, {hops}");
        let (dir, of_graph) = (
            case.path().join(format!("model-{at}")),
            (&features[0].1, &meta),
        );
        let trained = match has_tables {
            true => Trained::with_tables(dir, &with_rows(arch), of_graph, &case.store(1, &keep)),
            false => Trained::new(dir, arch, of_graph),
        };
        let all = 0..meta.relations.len();
        let fanouts = &features[0].1.fanouts;
        let limits = |layer| {
            all.clone()
                .map(|of| use_at_layer(fanouts, of, layer))
                .collect()
        };
        let limits: Vec<Vec<usize>> = (1..=2).map(limits).collect();
        let expected = twin::forward(&case.store(1, &keep), &trained, &limits);
        let mut in_f32 = Vec::new();
        for layer in [1, 2] {
            let extra = format!(r#", "types": "all", "layer": {layer}"#);
            let output = format!("out-{at}-{layer}");
            let (_, output) = case.infer(&trained, (2, &keep), (&output, &extra));
            let mut of_layer = Vec::new();
            for (node_type, of) in meta.types.iter().enumerate() {
                let got = read(&output, &of.name);
                let what = format!("{what}, layer {layer} of `{}`", of.name);
                assert_close(&what, &got, &expected.layers[layer][node_type]);
                let is_target = node_type == meta.target_type;
                assert_eq!(got.prediction != Labels::None, is_target, "{what}");
                if is_target {
                    check_predictions(&what, &got, &expected.logits);
                    check_graph_features(&case, &trained, &features, (layer, &got));
                }
                of_layer.push(got);
            }
            in_f32.push(of_layer);
        }
        check_workers(&case, &trained, &keep, &format!("{at}"), "");
        let in_16_bits = r#", "rows": "bf16""#;
        check_workers(&case, &trained, &keep, &format!("{at}-bf16"), in_16_bits);
        for layer in [1, 2] {
            let extra = format!(r#", "types": "all", "layer": {layer}{in_16_bits}"#);
            let output = format!("out-{at}-{layer}-bf16");
            let (manifest, output) = case.infer(&trained, (2, &keep), (&output, &extra));
            let types = meta.types.iter();
            let got: Vec<_> = types.map(|of| read(&output, &of.name)).collect();
            let what = format!("{what}, 16 bits, layer {layer}");
            for (node_type, (of, rows)) in meta.types.iter().zip(&got).enumerate() {
                let what = format!("{what} of `{}`", of.name);
                assert_rounded(&what, rows, (&expected.layers[..=layer], node_type));
            }
            assert_reported(&what, &manifest, (&in_f32[layer - 1], &got));
        }
    }
}

/// Compares predicted classes with logits, where these are not nearly equal.
fn check_predictions(what: &str, got: &EmbeddingRows, logits: &Rows) {
    let Labels::Class(classes) = &got.prediction else {
        panic!("{what}: classes are predicted");
    };
    assert_eq!(classes.len(), logits.len(), "{what}");
    for (class, row) in classes.iter().zip(logits) {
        let most = row.iter().copied().fold(f64::MIN, f64::max);
        let found = row[*class as usize];
        assert!(found > most - 1e-4, "{what}: class {class} of {row:?}");
    }
}

/// Compares the rows of the target type with those from graph features of both layouts.
fn check_graph_features(
    case: &Case,
    trained: &Trained,
    features: &[(std::path::PathBuf, schemas::FlattenMeta); 2],
    (layer, got): (usize, &EmbeddingRows),
) {
    for (at, (input, _)) in features.iter().enumerate() {
        let extra = format!(
            r#", "method": "neighborhoods", "input": "{}", "layer": {layer}"#,
            input.display()
        );
        let name = trained.dir.file_name().unwrap().to_string_lossy();
        let plan = case.plan(trained, &format!("near-{name}-{layer}-{at}"), &extra);
        infer_neighborhoods(&plan, &quiet()).unwrap();
        let type_name = &case.graph.types[case.target].name;
        let near = read_sorted(plan.output(), type_name);
        let rows = got.embedding.chunks(got.dim);
        let rows = rows.map(|row| row.iter().map(|&x| f64::from(x)).collect());
        assert_eq!(near.ids, got.ids);
        assert_close(&format!("{name}, {input:?}"), &near, &rows.collect());
        assert_eq!(near.prediction, got.prediction, "{name}, {input:?}");
    }
}

/// Compares the bytes that several numbers of workers write.
fn check_workers(case: &Case, trained: &Trained, keep: &[usize], name: &str, extra: &str) {
    let extra = &format!(
        r#", "types": "all", "logits": true, "probabilities": true, "columns": ["tag"]{extra}"#
    );
    let mut first = None;
    for workers in [1, 2, 3, 4, 8] {
        let output = format!("workers-{name}-{workers}");
        let (manifest, output) = case.infer(trained, (workers, keep), (&output, extra));
        let files = manifest.parts.iter().flat_map(|part| &part.files);
        let files = files.map(|file| (file.path.clone(), text_of(&output.join(&file.path))));
        let files: Vec<(String, Vec<u8>)> = files.collect();
        let types: Vec<&str> = case.graph.types.iter().map(|of| &of.name[..]).collect();
        assert_eq!(manifest.plan["types"], json!(types));
        assert!(
            files
                .iter()
                .all(|(path, _)| path.starts_with("embeddings/"))
        );
        let first = first.get_or_insert_with(|| files.clone());
        assert!(*first == files, "{workers} workers, {:?}", case.path());
    }
}

/// Returns the kinds that read features; `light.rs` has the other one.
fn kinds() -> impl Iterator<Item = TypedKind> {
    TypedKind::all().filter(|kind| *kind != TypedKind::Conv(LayerKind::LightGcn))
}

/// Runs `check` for each kind, on graphs of its own.
fn each_kind(seeds: std::ops::Range<u64>, check: impl Fn(TypedKind, u64)) {
    for (at, kind) in (0_u64..).zip(kinds()) {
        for seed in seeds.clone() {
            check(kind, 10 * seed + at);
        }
    }
}

#[test]
fn without_sampling_all_paths_agree() {
    each_kind(0..2, |kind, seed| check_kind(kind, seed, false, false));
}

/// Nodes with a trained row read it, the others the mean of their type.
#[test]
fn with_learnable_rows_all_paths_agree() {
    each_kind(4..5, |kind, seed| check_kind(kind, seed, true, true));
    check_kind(TypedKind::Rgcn, 56, false, true);
}

#[test]
fn with_unequal_fanouts_all_paths_agree() {
    each_kind(2..4, |kind, seed| check_kind(kind, seed, true, false));
}

#[test]
fn the_target_type_is_written_alone_unless_the_job_names_others() {
    let graph = Graph::random(3, false);
    let case = Case::new(&graph);
    let hops = json!(["all", "all"]);
    let plan = case.sample(&hops, Layout::Shards);
    let keep = plan.sample().keep_by_relation();
    let (_, flatten) = case.flatten(&plan);
    let meta = case.store(1, &keep).meta().graph.clone();
    let arch = plain(TypedKind::Conv(LayerKind::Sage), &meta);
    let trained = Trained::new(case.path().join("model"), &arch, (&flatten, &meta));
    let (manifest, output) = case.infer(&trained, (2, &keep), ("alone", ""));
    let target = graph.target_name();
    assert_eq!(manifest.plan["types"], json!([target]));
    assert!(
        manifest
            .parts
            .iter()
            .all(|part| part.name.starts_with(&format!("{target}/")))
    );
    let folders = std::fs::read_dir(output.join("embeddings")).unwrap();
    let folders: Vec<_> = folders.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(folders, [target]);
    let alone = read(&output, target);
    let (whole, all) = case.infer(&trained, (2, &keep), ("all", r#", "types": "all""#));
    assert_eq!(read(&all, target), alone, "other types change nothing");
    let in_edges = |of: &schemas::Manifest| {
        let rounds = of.report["rounds"].as_array().unwrap().iter();
        rounds
            .map(|round| round["in_edges"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert!(
        in_edges(&manifest) <= in_edges(&whole),
        "types that are not needed are left out"
    );
    // Other than the target type: no predictions, and no layer after that of the embedding.
    let other = meta.types.iter().find(|of| of.name != target).unwrap();
    let other_type = format!(r#", "types": ["{}"]"#, other.name);
    let (unpredicted, only) = case.infer(&trained, (2, &keep), ("other", &other_type));
    assert_eq!(read(&only, &other.name), read(&all, &other.name));
    let label = unpredicted.graph.unwrap().target().label.clone();
    assert_eq!(label, None, "nothing is predicted");
    // A list of targets.
    let ids = alone.ids.to_array();
    let ids = ids.slice(1, 2);
    let batch = arrow::array::RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let file = std::fs::File::create(case.path().join("list.parquet")).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let extra = r#", "types": "all", "targets": "list.parquet", "compare_sampling": true"#;
    let (of_list, listed) = case.infer(&trained, (2, &keep), ("listed", extra));
    let rows = read(&listed, target);
    assert_eq!(rows.embedding, alone.embedding[alone.dim..3 * alone.dim]);
    let of_other = |folder: &Path| read(folder, &other.name);
    assert_eq!(
        of_other(&listed),
        of_other(&all),
        "other types are written whole"
    );
    let compared = &of_list.report["sampling_compared"];
    assert_eq!(compared["nodes"], json!(2));
    assert_eq!(
        compared["largest_distance"],
        json!(0.0),
        "{compared}: all in-edges are read both times"
    );
}
