//! Compares trainings on a GPU with trainings on the processor. Without a GPU these tests say
//! `skipped` and pass, unless `GRAPHFLAT_TEST_GPU` is set.
#![cfg(feature = "gpu")]
#![expect(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

mod random;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};

use graphtrainer::{Source, TrainContext, TrainError, TrainPlan, TrainSpec, fit, train};
use random::typed::{TypedGraph, TypedShape, typed_flatten_meta};
use random::{Graph, Shape, flatten_meta};
use schemas::progress::Progress;
use schemas::{Fanout, GraphShard, Manifest, Opened, Output, Sampling, write_part};
use serde_json::Value;

const FANOUTS: [Fanout; 2] = [Fanout::Count(4), Fanout::Count(3)];

/// Error of losses after a few updates whose gradients differ in the last bits.
const TOLERANCE: f64 = 1e-3;

/// Tells whether there is a GPU.
fn has_gpu() -> bool {
    match gnn::Device::gpu() {
        Ok(_) => true,
        Err(error) if std::env::var_os("GRAPHFLAT_TEST_GPU").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    }
}

/// Writes a random graph's features to `dir`.
fn flatten(dir: &Path, shape: Shape) {
    let (graph, meta) = (
        Graph::new(shape, 4),
        flatten_meta(&FANOUTS, Sampling::Uniform),
    );
    let Opened::Open(output) = Output::open(dir, "flatten", "of a test", false).unwrap() else {
        panic!("a fresh directory");
    };
    for (idx, shard) in graph.parts(3, &FANOUTS).iter().enumerate() {
        let part = write_part(&output, idx, shard, &[], &graph.meta(), &meta).unwrap();
        output.commit_part(idx, part).unwrap();
    }
    let manifest = Manifest {
        graph: Some(graph.meta()),
        flatten: Some(meta),
        parts: output.parts(),
        ..Manifest::new(
            "flatten",
            "of a test".to_owned(),
            (Value::Null, Value::Null),
            1,
        )
    };
    output.finish(&manifest).unwrap();
}

fn plan(dir: &Path, table: &str) -> Result<TrainPlan, TrainError> {
    let spec: TrainSpec = toml::from_str(table).unwrap();
    let ctx = TrainContext {
        input: Some("features".into()),
        job_seed: 3,
        transform: None,
        one_hot: std::collections::BTreeMap::new(),
        base: dir.to_owned(),
        fresh: false,
    };
    spec.into_plan(ctx)
}

fn run(dir: &Path, table: &str, progress: &Progress) -> Result<Manifest, TrainError> {
    train(&plan(dir, table)?, progress)
}

fn silent() -> Progress {
    Arc::new(|_| {})
}

fn losses(manifest: &Manifest) -> Vec<f64> {
    let epochs = manifest.report["epochs"].as_array().unwrap();
    let loss = |epoch: &Value| epoch["loss"].as_f64().unwrap();
    epochs.iter().map(loss).collect()
}

fn check(shape: Shape, table: &str) {
    if !has_gpu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    flatten(&dir.path().join("features"), shape);
    let [cpu, gpu] = ["cpu", "gpu"].map(|device| {
        let keys = "hidden = [8]\nepochs = 6\nbatch_size = 16\n";
        let table = format!("output = \"{device}\"\ndevice = \"{device}\"\n{keys}{table}");
        run(dir.path(), &table, &silent()).unwrap()
    });
    for (got, wanted) in losses(&gpu).into_iter().zip(losses(&cpu)) {
        let error = (got - wanted).abs();
        assert!(error < TOLERANCE, "{table}: loss {got} is not {wanted}");
    }
    for metric in ["val_accuracy", "test_accuracy", "test_loss"] {
        let [got, wanted] = [&gpu, &cpu].map(|of| of.report["metrics"][metric].as_f64().unwrap());
        // One of twelve or more targets may get another class.
        assert!(
            (got - wanted).abs() < 0.1,
            "{table}: {metric} {got} is not {wanted}"
        );
    }
    assert_eq!(cpu.report["device"], "cpu");
    assert_eq!(gpu.report["device"], gnn::Device::gpu().unwrap().name());
}

#[test]
fn a_training_ends_as_on_the_processor() {
    for table in [
        "model = \"gcn\"\n",
        "model = \"sage\"\nnorm = \"batch\"\ninput_dropout = 0.2\n",
        "model = \"gat\"\nheads = 2\nattention_dropout = 0.2\nworkers = 2\n",
    ] {
        check(Shape::default(), table);
    }
    let rich = Shape {
        weights: true,
        edge_dim: Some(2),
        ..Shape::default()
    };
    check(rich, "model = \"gatv2\"\nresidual = true\n");
    let sparse = Shape {
        sparse: true,
        ..Shape::default()
    };
    check(
        sparse,
        "model = \"gin\"\nnorm = \"layer\"\nlearning_rate = 0.001\n",
    );
}

/// Compares trainings on a typed graph, whose nodes have learnable rows if `widths` gives any.
fn check_typed(table: &str, widths: &[(&str, usize)]) {
    if !has_gpu() {
        return;
    }
    let shape = TypedShape {
        num_nodes: 120,
        num_edges: 400,
        ..TypedShape::default()
    };
    let graph = TypedGraph::new(shape, 6);
    let fanouts = graph.fanouts(2, 5);
    let shards = graph.parts(3, &fanouts);
    let widths = widths
        .iter()
        .map(|(name, width)| (String::from(*name), *width));
    let widths: std::collections::BTreeMap<String, usize> = widths.collect();
    let [cpu, gpu] = ["cpu", "gpu"].map(|device| {
        let (shards, metas) = (
            shards.clone(),
            (graph.meta.clone(), typed_flatten_meta(&fanouts)),
        );
        let counts = shards.iter().map(GraphShard::split_counts).collect();
        let read = move |idx: usize| Ok(shards[idx].clone());
        let source = Source::new("memory".into(), metas, counts, 1 << 20, read);
        let keys = "epochs = 5\nbatch_size = 16\noptimizer = \"sgd\"\nlearning_rate = 0.05\n";
        let table = format!("output = \"model\"\ndevice = \"{device}\"\n{keys}{table}");
        let plan = plan(Path::new(""), &table).unwrap();
        let plan = plan.with_embeddings(widths.clone());
        fit(&plan, &source, None, &silent()).unwrap()
    });
    let mut changed = false;
    for (got, wanted) in gpu.history.iter().zip(&cpu.history) {
        let (got, wanted) = (got.loss, wanted.loss);
        changed |= (wanted - cpu.history[0].loss).abs() > 10.0 * TOLERANCE;
        let error = (got - wanted).abs();
        assert!(error < TOLERANCE, "{table}: loss {got} is not {wanted}");
    }
    assert!(changed, "{table}: nothing was learned");
    assert_eq!(cpu.device, "cpu");
    assert_eq!(gpu.device, gnn::Device::gpu().unwrap().name());
}

#[test]
fn a_typed_training_ends_as_on_the_processor() {
    for table in [
        "model = \"sage\"\nhidden = [8]\nnorm = \"batch\"\nrelation_aggregator = \"max\"\n",
        "model = \"gat\"\nhidden = [8]\nheads = 2\nattention_dropout = 0.3\nworkers = 2\n",
        "model = \"rgcn\"\nhidden = [8, 8]\nbases = 2\nprojection = 6\n",
        "model = \"simple_hgn\"\nhidden = [8]\nheads = 2\nresidual = true\nattention_residual = 0.1\n",
        "model = \"hgt\"\nhidden = [8, 8]\nheads = 2\n",
    ] {
        check_typed(table, &[]);
    }
    check_typed(
        "model = \"sage\"\nhidden = [8]\n",
        &[("t0", 4), ("t1", 3), ("t2", 5)],
    );
}

#[test]
fn a_training_that_goes_on_on_another_device_says_so() {
    if !has_gpu() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    flatten(&dir.path().join("features"), Shape::default());
    let table = |device: &str| {
        let keys = "model = \"gcn\"\nhidden = [8]\nepochs = 6\nbatch_size = 16\n";
        format!("output = \"model\"\ndevice = \"{device}\"\n{keys}")
    };
    let stop: Progress = Arc::new(|event| assert!(event.done < 3, "stopped by the test"));
    let stopped = catch_unwind(AssertUnwindSafe(|| run(dir.path(), &table("gpu"), &stop)));
    assert!(stopped.is_err(), "it ran to its end");
    let manifest = run(dir.path(), &table("cpu"), &silent()).unwrap();
    assert_eq!(losses(&manifest).len(), 6);
    let (notes, name) = (&manifest.report["notes"], gnn::Device::gpu().unwrap());
    let wanted = format!("the training began on {} and continued on cpu", name.name());
    let note = |note: &Value| note.as_str().is_some_and(|text| text.starts_with(&wanted));
    assert!(notes.as_array().unwrap().iter().any(note), "{notes}");
}

#[test]
fn what_was_chosen_is_said() {
    let dir = tempfile::tempdir().unwrap();
    flatten(&dir.path().join("features"), Shape::default());
    let chosen = gnn::Device::auto();
    for (device, wanted) in [("auto", Some(chosen.name())), ("cpu", None)] {
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let listen: Progress = Arc::new(move |event| {
            if event.phase == "device" {
                heard.lock().unwrap().extend(event.message.clone());
            }
        });
        let keys = "model = \"gcn\"\nhidden = [8]\nepochs = 1\n";
        let table = format!("output = \"{device}\"\ndevice = \"{device}\"\n{keys}");
        let manifest = run(dir.path(), &table, &listen).unwrap();
        let said = said.lock().unwrap();
        assert_eq!(said.len(), usize::from(wanted.is_some()), "{said:?}");
        if let Some(name) = wanted {
            assert_eq!(manifest.report["device"], name);
            let reason = ": no GPU in hardware was found through Vulkan, Metal or DirectX 12";
            let reason = if chosen.is_gpu() { "" } else { reason };
            assert!(said[0].starts_with(&format!("{name}{reason}")), "{said:?}");
        }
    }
}
