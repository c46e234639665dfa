//! Compares inference on a GPU with inference on the processor. Without a GPU these tests say
//! `skipped` and pass, unless `GRAPHFLAT_TEST_GPU` is set.
#![cfg(test)]
#![cfg(feature = "gpu")]
#![allow(
    dead_code,
    reason = "the tests of the processor use more of these modules"
)]

#[path = "../consistency/case.rs"]
mod case;
mod device;
#[expect(
    clippy::shadow_unrelated,
    reason = "loops name an element like its list"
)]
#[path = "../../../gnn/tests/support/twin.rs"]
mod formula;
#[path = "../consistency/graph.rs"]
mod graph;
#[path = "../consistency/models.rs"]
mod models;
#[path = "../consistency/twin.rs"]
mod twin;
#[path = "../consistency/variants.rs"]
mod variants;

use case::{Case, read};
use device::{assert_near, assert_within, has_gpu};
use graph::{Graph, Kind, quiet};
use graphinfer::infer;
use models::{Trained, Variant};
use schemas::{Fanout, Sampling, keep_at_hop};
use variants::{PLAIN, variants};

const SEED: u64 = 11;

const ALL: [Fanout; 2] = [Fanout::All, Fanout::All];

const CPU: &str = r#", "device": "cpu""#;

const GPU: &str = r#", "device": "gpu""#;

/// Compares both devices on a graph, for several numbers of workers, with rows in memory and with
/// rows that are copied group by group.
fn check(graph: &Graph, variant: &Variant, fanouts: &[Fanout]) {
    let dir = tempfile::tempdir().unwrap();
    let trained = Trained::new(dir.path(), variant, graph, (fanouts, Sampling::Uniform));
    let case = Case::uniform(dir.path(), graph, &trained);
    let keep = keep_at_hop(fanouts, 0, 0);
    let (manifest, wanted) = case.infer(1, keep, CPU);
    assert_eq!(manifest.report["device"], "cpu");
    let (first, got) = case.infer(1, keep, GPU);
    assert_near(&format!("{variant:?}"), &got, &wanted);
    let device = gnn::Device::gpu().unwrap();
    assert_eq!(first.report["device"], device.name());
    assert_ne!(
        first.fingerprint, manifest.fingerprint,
        "the device is part of it"
    );
    let (other, _) = case.infer(3, keep, GPU);
    assert_eq!(
        other.parts, first.parts,
        "{variant:?}: blocks are those of one worker"
    );
    let (_, copied) = case.infer_from_disk((2, 1 << 15), keep, GPU);
    assert_near(&format!("{variant:?}, copied rows"), &copied, &wanted);
}

/// Calls `run` with each variant and graphs of its own.
fn each(run: impl Fn(&Variant, Kind, u64)) {
    if !has_gpu() {
        return;
    }
    for (seed, (variant, kind)) in (0..).zip(variants()) {
        run(&variant, kind, seed);
    }
}

#[test]
fn every_kind_gives_the_rows_of_the_processor() {
    each(|variant, kind, seed| check(&Graph::random(kind, seed), variant, &ALL));
}

#[test]
fn samples_give_the_rows_of_the_processor() {
    let fanouts = [Fanout::Count(2), Fanout::Count(5)];
    each(|variant, kind, seed| check(&Graph::random(kind, 100 + seed), variant, &fanouts));
}

/// A layer's blocks are ranges whose first node is not the first of the graph.
#[test]
fn ranges_of_nodes_read_their_own_rows() {
    each(|variant, kind, seed| {
        let dir = tempfile::tempdir().unwrap();
        let graph = Graph::random(kind, 200 + seed);
        let trained = Trained::new(dir.path(), variant, &graph, (&ALL, Sampling::Uniform));
        let case = Case::uniform(dir.path(), &graph, &trained);
        let (_, wanted) = case.infer(1, usize::MAX, CPU);
        let (manifest, got) = case.infer(2, usize::MAX, &format!(r#"{GPU}, "rows_per_part": 5"#));
        assert!(
            manifest.parts.len() > 4,
            "the last layer runs on ranges of five nodes"
        );
        assert_near(&format!("{variant:?}"), &got, &wanted);
    });
}

/// A node with more than 8192 in-edges is aggregated in segments, by the processor.
#[test]
fn hubs_give_the_rows_of_the_processor() {
    each(|variant, kind, seed| {
        let mut graph = Graph::random(kind, 40 + seed);
        graph.add_in_edges(40 + seed, &[(0, 20_000), (7, 8500)]);
        check(&graph, variant, &ALL);
    });
}

/// A number that differs in the last bit of f32 can be rounded to another number of 16 bits.
#[test]
fn rows_in_16_bits_are_read_by_a_gpu() {
    each(|variant, kind, seed| {
        let dir = tempfile::tempdir().unwrap();
        let graph = Graph::random(kind, seed);
        let trained = Trained::new(dir.path(), variant, &graph, (&ALL, Sampling::Uniform));
        let case = Case::uniform(dir.path(), &graph, &trained);
        let [wanted, got] = [CPU, GPU].map(|device| {
            let (manifest, rows) =
                case.infer(2, usize::MAX, &format!(r#"{device}, "rows": "bf16""#));
            assert!(manifest.report["rows_compared"]["nodes"].as_u64() > Some(0));
            rows
        });
        assert_within(0.02, &format!("{variant:?}"), &got, &wanted);
    });
}

/// Nodes of a graph whose rows do not fit a buffer.
const NODES: usize = 400;

/// With a small buffer, blocks are small, and those of a layer form several groups.
#[test]
fn groups_of_blocks_give_the_rows_of_the_processor() {
    each(|variant, kind, seed| {
        let dir = tempfile::tempdir().unwrap();
        let graph = Graph::sized(kind, 300 + seed, (NODES, variant.in_dim));
        let trained = Trained::new(dir.path(), variant, &graph, (&ALL, Sampling::Uniform));
        let case = Case::uniform(dir.path(), &graph, &trained);
        let (_, wanted) = case.infer(1, usize::MAX, CPU);
        let store = case.store(2, usize::MAX);
        let limited = |name: &str, bytes: u64| {
            let plan = case.plan(name, GPU).with_matrix_bytes(bytes);
            infer(&plan, &store, &quiet()).map(|_| read(plan.output(), graph.num_nodes()))
        };
        // Half of the rows, if they have eight numbers.
        match limited("few", 4 * 8 * NODES as u64 / 2) {
            Ok(got) => assert_near(&format!("{variant:?}, groups"), &got, &wanted),
            // Sparse features have no groups.
            Err(error) => {
                let error = error.to_string();
                assert!(kind.sparse, "{variant:?}: {error}");
                assert!(error.contains("a buffer of"), "{error}");
            }
        }
        let error = limited("none", 64).unwrap_err().to_string();
        assert!(error.contains("holds 64"), "{error}");
    });
}

/// Bytes depend on the device, so an output of another one is not taken for this one.
#[test]
fn an_output_of_another_device_is_another_output() {
    if !has_gpu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let graph = Graph::random(PLAIN, 3);
    let variant = Variant::default();
    let trained = Trained::new(dir.path(), &variant, &graph, (&ALL, Sampling::Uniform));
    let case = Case::uniform(dir.path(), &graph, &trained);
    let store = case.store(2, usize::MAX);
    for (output, device, other) in [("a", CPU, GPU), ("b", GPU, CPU)] {
        let run = |of: &str| infer(&case.plan(output, of), &store, &quiet());
        let (first, again) = (run(device).unwrap(), run(device).unwrap());
        assert_eq!(again.report, first.report, "it is not computed twice");
        let error = run(other).unwrap_err().to_string();
        assert!(error.contains("of another plan"), "{error}");
    }
}
