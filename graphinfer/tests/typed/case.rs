//! Runs inference on a graph and reads its rows.

use crate::graph::{Graph, quiet, store};
use crate::models::Trained;
use crate::support::twin::Rows;
use gnn::kernel::mix;
use graphflat::{FlattenPlan, FlattenSpec, flatten};
use graphinfer::{InferContext, InferPlan, InferSpec, infer};
use schemas::{
    EmbeddingRows, EmbeddingsDataset, FlattenMeta, GraphFeatureDataset, GraphPlan, Ids, Layout,
    Manifest,
};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::Store;

/// Largest error, relative to the largest number of all rows: sums of f32 in another order.
pub(crate) const TOLERANCE: f64 = 1e-5;

/// Rounding to 16 bits changes a number by at most 2^-9 of it, but a norm inside a layer can make the
/// error of a sum whose terms cancel out much larger. `gnn/tests/typed/slices.rs` compares bits.
const OF_ROUNDING: f64 = 0.3;

/// Nodes in a part: few, so that types have several parts and the last part is short.
const ROWS_PER_PART: usize = 16;

/// A graph in a temporary directory.
pub(crate) struct Case {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) graph: Arc<GraphPlan>,
    pub(crate) target: usize,
}

impl Case {
    pub(crate) fn new(graph: &Graph) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let plan = graph.write(dir.path());
        Self {
            target: plan.type_idx(graph.target_name()).unwrap(),
            graph: plan,
            dir,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Plans flatten with fan-outs as a job file has them.
    pub(crate) fn sample(&self, hops: &serde_json::Value, layout: Layout) -> FlattenPlan {
        let spec: FlattenSpec = serde_json::from_value(json!({
            "output": format!("features-{layout:?}"), "hops": hops.as_array().unwrap().len(),
            "fanouts": hops, "layout": layout, "targets": "all", "targets_per_part": 9,
        }))
        .unwrap();
        spec.into_plan_of((&self.graph, self.target), self.path(), false)
            .unwrap()
    }

    pub(crate) fn store(&self, workers: usize, keep: &[usize]) -> Store {
        store((self.path(), &self.graph), self.target, workers, keep)
    }

    /// Writes graph features; returns their directory and how they were drawn.
    pub(crate) fn flatten(&self, plan: &FlattenPlan) -> (PathBuf, FlattenMeta) {
        let store = self.store(2, &plan.sample().keep_by_relation());
        flatten(plan, &store, &quiet()).unwrap();
        let dataset = GraphFeatureDataset::open(plan.output()).unwrap();
        (plan.output().to_owned(), dataset.flatten().clone())
    }

    pub(crate) fn plan(&self, trained: &Trained, output: &str, extra: &str) -> InferPlan {
        let text = format!(r#"{{"output": "{output}"{extra}}}"#);
        let mut spec: InferSpec = serde_json::from_str(&text).unwrap();
        if spec.method == graphinfer::Method::Layers {
            spec.rows_per_part.get_or_insert(ROWS_PER_PART);
        }
        let nodes = &self.graph.types[self.target].nodes;
        let ctx = InferContext {
            model: Some(trained.dir.clone()),
            base: self.path().to_owned(),
            input: None,
            nodes: Some(Arc::clone(nodes)),
            work_dir: self.path().join("work"),
            fresh: false,
        };
        spec.into_plan(ctx).unwrap()
    }

    /// Runs inference layer by layer; returns the manifest and the output.
    pub(crate) fn infer(
        &self,
        trained: &Trained,
        (workers, keep): (usize, &[usize]),
        (output, extra): (&str, &str),
    ) -> (Manifest, PathBuf) {
        let plan = self.plan(trained, output, extra);
        let manifest = infer(&plan, &self.store(workers, keep), &quiet()).unwrap();
        assert!(!self.path().join("work/infer").exists(), "nothing is left");
        (manifest, plan.output().to_owned())
    }
}

/// Reads the rows of a type, which stand in the order of ids.
pub(crate) fn read(output: &Path, type_name: &str) -> EmbeddingRows {
    let all = read_parts(output, type_name);
    let ascends = (1..all.ids.len()).all(|i| all.ids.cmp(i - 1, &all.ids, i).is_lt());
    assert!(ascends, "rows stand in order of ids");
    all
}

/// Reads the rows of a type as they stand in its parts.
fn read_parts(output: &Path, type_name: &str) -> EmbeddingRows {
    let dataset = EmbeddingsDataset::open(output).unwrap();
    let parts = dataset.parts_of(type_name).into_iter();
    let mut parts = parts.map(|part| {
        assert_eq!(dataset.type_of_part(part), type_name);
        dataset.read_part(part).unwrap()
    });
    let mut all = parts.next().unwrap();
    for part in parts {
        all.ids.extend_from(&part.ids, 0..part.ids.len());
        all.embedding.extend(part.embedding);
        all.prediction.extend(&part.prediction);
    }
    all
}

/// Reads the rows of a type in the order of ids; those of neighbourhoods stand in the order of
/// targets.
pub(crate) fn read_sorted(output: &Path, type_name: &str) -> EmbeddingRows {
    let all = read_parts(output, type_name);
    let order = all.ids.sort_permutation();
    let mut sorted = EmbeddingRows {
        ids: Ids::new(all.ids.id_type()),
        dim: all.dim,
        embedding: Vec::new(),
        prediction: all.prediction.slice(0..0),
    };
    for row in order {
        let at = row as usize;
        sorted.ids.push_from(&all.ids, at);
        let values = &all.embedding[at * all.dim..(at + 1) * all.dim];
        sorted.embedding.extend_from_slice(values);
        sorted.prediction.push_from(&all.prediction, row);
    }
    sorted
}

pub(crate) fn assert_close(what: &str, got: &EmbeddingRows, expected: &Rows) {
    assert_within(TOLERANCE, what, got, expected);
}

pub(crate) fn assert_within(tolerance: f64, what: &str, got: &EmbeddingRows, expected: &Rows) {
    let scale = largest(expected).max(1e-3);
    assert_scaled((tolerance, scale), what, got, expected);
}

/// Checks a type's rows of the last of some layers, computed from rows in 16 bits. Large numbers of
/// an earlier layer may cancel out, so errors are relative to the largest number of all layers.
pub(crate) fn assert_rounded(
    what: &str,
    got: &EmbeddingRows,
    (layers, node_type): (&[Vec<Rows>], usize),
) {
    let scale = layers.iter().flatten().map(largest).fold(1e-3, f64::max);
    let expected = &layers[layers.len() - 1][node_type];
    assert_scaled((OF_ROUNDING, scale), what, got, expected);
}

/// Checks that an output from rows in 16 bits reports how far samples are from the rows in 32 bits;
/// both have the rows of each written type.
pub(crate) fn assert_reported(
    what: &str,
    manifest: &Manifest,
    (in_f32, in_16_bits): (&[EmbeddingRows], &[EmbeddingRows]),
) {
    let compared = &manifest.report["rows_compared"];
    let distances: Vec<f64> = in_f32
        .iter()
        .zip(in_16_bits)
        .flat_map(|(in_f32, in_16_bits)| distances(in_f32, in_16_bits))
        .collect();
    assert_eq!(compared["nodes"], distances.len(), "{what}");
    let mean = distances.iter().sum::<f64>() / distances.len().max(1) as f64;
    let largest = distances.iter().copied().fold(0.0, f64::max);
    for (name, expected) in [("mean_distance", mean), ("largest_distance", largest)] {
        let got = compared[name].as_f64().unwrap();
        assert!(
            (got - expected).abs() <= 0.01 * expected + 1e-5,
            "{what}, {name}: {got} is not {expected}"
        );
    }
}

/// Returns the relative distances between the rows of a sample of a type.
fn distances(in_f32: &EmbeddingRows, in_16_bits: &EmbeddingRows) -> Vec<f64> {
    let sample: BTreeSet<u64> = (1..=64)
        .filter_map(|at| mix(at).checked_rem(in_f32.ids.len() as u64))
        .collect();
    let row_of = |rows: &EmbeddingRows, node: u64| -> Vec<f64> {
        let start = usize::try_from(node).unwrap() * rows.dim;
        let row = &rows.embedding[start..start + rows.dim];
        row.iter().map(|&x| f64::from(x)).collect()
    };
    let distance = |&node: &u64| {
        let (x, y) = (row_of(in_f32, node), row_of(in_16_bits, node));
        let square: f64 = x.iter().zip(&y).map(|(x, y)| (x - y).powi(2)).sum();
        let length: f64 = x.iter().map(|x| x.powi(2)).sum();
        square.sqrt() / length.sqrt().max(f64::from(f32::MIN_POSITIVE))
    };
    sample.iter().map(distance).collect()
}

fn largest(rows: &Rows) -> f64 {
    rows.iter()
        .flatten()
        .fold(0.0, |most: f64, x| most.max(x.abs()))
}

fn assert_scaled((tolerance, scale): (f64, f64), what: &str, got: &EmbeddingRows, expected: &Rows) {
    assert_eq!(got.ids.len(), expected.len(), "{what}");
    let flat: Vec<f64> = expected.iter().flatten().copied().collect();
    assert_eq!(got.embedding.len(), flat.len(), "{what}");
    for (at, (x, y)) in got.embedding.iter().zip(&flat).enumerate() {
        let error = (f64::from(*x) - y).abs() / scale;
        let id = got.ids.display(at / got.dim.max(1));
        assert!(
            error <= tolerance,
            "{what}, node {id}: {x} is not {y}, error {error}"
        );
    }
}
