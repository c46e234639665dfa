//! Models load into `PyG` with `strict=True`, and give the same outputs there.
//!
//! The tests need a Python with torch and `torch_geometric`, which `GRAPHFLAT_TEST_PYG` names.

use std::path::Path;
use std::process::Command;

use gnn::typed::{TypedArchitecture, TypedBlock, TypedKind, TypedModelFile, save_typed};
use gnn::{Dense, Input, LayerKind, Mode};
use serde_json::{Value, json};

use crate::files::file;
use crate::graph::{Graph, features, ready};
use crate::models::{architectures, model, schema};

fn rows(dense: &Dense) -> Vec<Vec<f32>> {
    (0..dense.rows).map(|v| dense.row(v).to_vec()).collect()
}

/// Writes a model, a random graph, and the model's outputs on it.
fn write(dir: &Path, arch: &TypedArchitecture, seed: u64) {
    let model = model(arch, seed);
    let file = TypedModelFile {
        label_scale: None,
        ..file(arch)
    };
    std::fs::create_dir(dir).unwrap();
    save_typed(dir, &model, &file).unwrap();
    let mut graph = Graph::random(&schema(arch), 9, 25, seed);
    // PyG's GCN keeps one of several parallel self-loops with weights; the GCN here sums them.
    for of_relation in &mut graph.in_edges {
        for (v, edges) in of_relation.iter_mut().enumerate() {
            let mut loops = 0;
            edges.retain(|edge| {
                loops += usize::from(edge.src == v);
                edge.src != v || loops == 1
            });
        }
    }
    let types = 0..graph.num_nodes.len();
    let of_type = |t: usize| features(arch, t, &(0..graph.num_nodes[t]).collect::<Vec<_>>());
    let raw: Vec<Option<Input>> = types.clone().map(of_type).collect();
    let block = TypedBlock::new(&graph.schema, graph.whole()).unwrap();
    let blocks = vec![block; arch.num_layers];
    let out = model.forward(&blocks, &ready(&raw), Mode::Eval).unwrap();
    let x = |t: usize| match &raw[t] {
        None => json!(vec![vec![1.0]; graph.num_nodes[t]]),
        Some(Input::Dense(dense)) => json!(rows(dense)),
        Some(Input::Sparse(sparse)) => json!(rows(&sparse.to_dense(sparse.rows))),
    };
    let edges = |r: usize| -> Value {
        let all = graph.in_edges[r].iter().enumerate();
        let all = all.flat_map(|(v, edges)| edges.iter().map(move |edge| (v, edge)));
        let all = all.map(|(v, edge)| json!([edge.src, v, edge.weight, edge.feature]));
        Value::Array(all.collect())
    };
    let relations: Vec<Value> = (0..graph.in_edges.len()).map(edges).collect();
    let x: Vec<Value> = types.map(x).collect();
    let text = json!({"x": x, "relations": relations, "out": rows(&out)}).to_string();
    std::fs::write(dir.join("graph.json"), text).unwrap();
}

/// Tells whether PyG has the options of an architecture: its convs but GCN take no edge weights,
/// and it has no Simple-HGN.
fn is_in_pyg(arch: &TypedArchitecture) -> bool {
    let is_gcn = arch.layer == TypedKind::Conv(LayerKind::Gcn);
    arch.layer != TypedKind::SimpleHgn
        && (is_gcn || !arch.relations.iter().any(|of| of.edge_weight))
}

/// Leaves out edge weights where PyG takes none.
fn unweighted(mut arch: TypedArchitecture) -> TypedArchitecture {
    if arch.layer != TypedKind::Conv(LayerKind::Gcn) {
        arch.relations
            .iter_mut()
            .for_each(|of| of.edge_weight = false);
    }
    arch
}

#[test]
fn models_load_into_pyg_and_give_the_same_outputs() {
    let Some(python) = std::env::var_os("GRAPHFLAT_TEST_PYG") else {
        eprintln!("skipped: no Python with torch_geometric (GRAPHFLAT_TEST_PYG names one)");
        let all = std::env::var_os("GRAPHFLAT_TEST_ALL");
        assert!(all.is_none(), "GRAPHFLAT_TEST_ALL allows no skipped test");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let archs: Vec<_> = architectures()
        .into_iter()
        .map(unweighted)
        .filter(is_in_pyg)
        .collect();
    for (at, arch) in archs.iter().enumerate() {
        write(&dir.path().join(at.to_string()), arch, 3);
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/typed/pyg.py");
    let dirs = (0..archs.len()).map(|at| dir.path().join(at.to_string()));
    let output = Command::new(python)
        .arg(script)
        .args(dirs)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    let right = text.lines().filter(|line| line.starts_with("ok:"));
    assert_eq!(right.count(), archs.len(), "{text}\n{errors}");
}
