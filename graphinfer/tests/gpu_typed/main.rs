//! Compares inference of typed graphs on a GPU with inference on the processor. Without a GPU these
//! tests say `skipped` and pass, unless `GRAPHFLAT_TEST_GPU` is set.
#![cfg(test)]
#![cfg(feature = "gpu")]
#![allow(
    dead_code,
    reason = "the tests of the processor use more of these modules"
)]

#[path = "../typed/case.rs"]
mod case;
#[path = "../gpu/device.rs"]
mod device;
#[path = "../../../gnn/tests/typed"]
#[allow(
    dead_code,
    clippy::shadow_unrelated,
    reason = "the tests of gnn use more of it; loops name an element like its list"
)]
mod formula {
    pub(crate) mod twin;
}
#[path = "../typed/graph.rs"]
mod graph;
#[path = "../typed/models.rs"]
mod models;
#[path = "../../../gnn/tests/support"]
#[allow(
    dead_code,
    clippy::shadow_unrelated,
    reason = "the tests of gnn use more of it; loops name an element like its list"
)]
mod support {
    pub(crate) mod twin;
}
#[path = "../typed/twin.rs"]
mod twin;

use case::{Case, read, read_sorted};
use device::{assert_near, has_gpu};
use gnn::LayerKind;
use gnn::typed::TypedKind;
use graph::{Graph, quiet};
use graphinfer::infer_neighborhoods;
use models::{Trained, architectures, with_rows};
use schemas::Layout;
use serde_json::{Value, json};

/// Which options a comparison has besides its graph and kind.
#[derive(Clone, Copy)]
struct Options {
    /// Whether nodes have learnable rows.
    has_tables: bool,
    /// Whether neighbourhoods are computed too.
    by_neighborhoods: bool,
    /// Models of the kind that are tested, at most.
    models: usize,
}

/// Compares both devices for each model of a kind, by layers and by neighbourhoods.
fn check(graph: &Graph, kind: TypedKind, hops: &Value, options: Options) {
    let case = Case::new(graph);
    let plan = case.sample(hops, Layout::Shards);
    let keep = plan.sample().keep_by_relation();
    let (features, flatten) = case.flatten(&plan);
    let meta = case.store(1, &keep).meta().graph.clone();
    let models = architectures(kind, &meta);
    for (at, arch) in models.iter().take(options.models).enumerate() {
        let (dir, of_graph) = (case.path().join(format!("model-{at}")), (&flatten, &meta));
        let trained = match options.has_tables {
            true => Trained::with_tables(dir, &with_rows(arch), of_graph, &case.store(1, &keep)),
            false => Trained::new(dir, arch, of_graph),
        };
        let run = |device: &str, workers: usize| {
            let extra = format!(r#", "types": "all", "layer": 2, "device": "{device}""#);
            let output = format!("out-{at}-{device}-{workers}");
            case.infer(&trained, (workers, &keep), (&output, &extra))
        };
        let ((_, wanted), (first, got)) = (run("cpu", 1), run("gpu", 1));
        let (other, _) = run("gpu", 3);
        assert_eq!(
            other.parts, first.parts,
            "{kind:?} {at}: blocks are those of one worker"
        );
        for of in &meta.types {
            let what = format!("{kind:?} {at} {hops}, `{}`", of.name);
            assert_near(&what, &read(&got, &of.name), &read(&wanted, &of.name));
        }
        if !options.by_neighborhoods {
            continue;
        }
        let near = |device: &str| {
            let extra = format!(
                r#", "method": "neighborhoods", "input": "{}", "layer": 2, "device": "{device}""#,
                features.display()
            );
            let of_device = case.plan(&trained, &format!("near-{at}-{device}"), &extra);
            let manifest = infer_neighborhoods(&of_device, &quiet()).unwrap();
            let is_cpu = manifest.report["device"] == "cpu";
            assert_eq!(is_cpu, device == "cpu");
            read_sorted(of_device.output(), &case.graph.types[case.target].name)
        };
        assert_near(
            &format!("{kind:?} {at}, neighbourhoods"),
            &near("gpu"),
            &near("cpu"),
        );
    }
}

/// Runs `check` on each kind that reads features, on a graph of its own.
fn each(first_seed: u64, hops: &Value, options: Options) {
    if !has_gpu() {
        return;
    }
    let kinds = TypedKind::all().filter(|kind| *kind != TypedKind::Conv(LayerKind::LightGcn));
    for (seed, kind) in (first_seed..).zip(kinds) {
        let within = kind == TypedKind::Conv(LayerKind::Gcn);
        check(&Graph::random(seed, within), kind, hops, options);
    }
}

#[test]
fn every_kind_gives_the_rows_of_the_processor() {
    let options = Options {
        has_tables: false,
        by_neighborhoods: true,
        models: 1,
    };
    each(10, &json!(["all", "all"]), options);
}

#[test]
fn samples_and_learnable_rows_give_the_rows_of_the_processor() {
    let options = Options {
        has_tables: true,
        by_neighborhoods: false,
        models: usize::MAX,
    };
    each(30, &json!([2, 5]), options);
}

/// Nodes with more than 8192 in-edges of a relation are aggregated in segments, by the processor. By
/// neighbourhoods they are not, and Mesa's driver in software ends such long loops.
#[test]
fn hubs_give_the_rows_of_the_processor() {
    if !has_gpu() {
        return;
    }
    let more = [
        (0, 0, 20_000),
        (2, 0, 9000),
        (1, 3, 8500),
        (2, 7, 16_000),
        (4, 2, 9000),
    ];
    let kinds = [
        TypedKind::Conv(LayerKind::Sage),
        TypedKind::Conv(LayerKind::Gat),
        TypedKind::Hgt,
        TypedKind::SimpleHgn,
    ];
    for kind in kinds {
        let graph = Graph::with_in_edges(3, false, &more);
        let options = Options {
            has_tables: false,
            by_neighborhoods: false,
            models: 1,
        };
        check(&graph, kind, &json!(["all", "all"]), options);
    }
}
