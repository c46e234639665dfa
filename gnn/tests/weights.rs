//! Saves models and loads them again; files that do not fit give an error that names the tensor.
#![cfg(test)]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use expect_test::{Expect, expect};
use gnn::{
    Architecture, LabelScale, LayerKind, MODEL_JSON, MODEL_WEIGHTS, Model, ModelFile, Norm, Task,
    Transform,
};
use support::{architectures, plain};

fn file(arch: &Architecture) -> ModelFile {
    ModelFile {
        architecture: arch.clone(),
        transform: Transform::Standardize {
            mean: vec![0.1; arch.in_dim],
            scale: vec![3.3; arch.in_dim],
        },
        label_scale: (arch.task == Task::Regression).then(|| LabelScale {
            mean: vec![1e7; arch.out_dim],
            deviation: vec![0.5; arch.out_dim],
        }),
        label_names: Some(vec!["admin".to_owned(), "games".to_owned()]),
        metrics: BTreeMap::from([("test_accuracy".to_owned(), 0.748)]),
        fanouts: serde_json::json!([15, "all"]),
        extra: BTreeMap::from([("epoch".to_owned(), serde_json::json!(7))]),
    }
}

#[test]
fn every_architecture_comes_back_as_it_was() {
    for arch in architectures() {
        let dir = tempfile::tempdir().unwrap();
        let mut model = Model::init(&arch, 4).unwrap();
        let buffers: Vec<f32> = model.buffers().iter().map(|x| x + 0.25).collect();
        model.set_buffers(&buffers);
        gnn::save(dir.path(), &model, &file(&arch)).unwrap();
        let (loaded, loaded_file) = gnn::load(dir.path()).unwrap();
        assert_eq!(loaded.flat(), model.flat(), "{arch:?}");
        assert_eq!(loaded.buffers(), buffers, "{arch:?}");
        assert_eq!(loaded.parameters(), model.parameters(), "{arch:?}");
        assert_eq!(loaded_file, file(&arch));
        assert_eq!(loaded.label_scale(), loaded_file.label_scale.as_ref());
    }
}

fn names(arch: &Architecture, expected: &Expect) {
    let dir = tempfile::tempdir().unwrap();
    gnn::save(dir.path(), &Model::init(arch, 4).unwrap(), &file(arch)).unwrap();
    let bytes = std::fs::read(dir.path().join(MODEL_WEIGHTS)).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut lines: Vec<String> = tensors
        .iter()
        .map(|(name, view)| format!("{name} {:?}\n", view.shape()))
        .collect();
    lines.sort();
    expected.assert_eq(&lines.concat());
}

#[test]
fn convolutions_are_named_as_in_pyg() {
    names(
        &plain(LayerKind::Gcn),
        &expect![[r"
            convs.0.bias [6]
            convs.0.lin.weight [6, 5]
            convs.1.bias [3]
            convs.1.lin.weight [3, 6]
        "]],
    );
    let sage = Architecture {
        hidden: vec![6, 6],
        norm: Norm::Batch,
        residual: true,
        ..plain(LayerKind::Sage)
    };
    names(
        &sage,
        &expect![[r#"
        convs.0.lin_l.bias [6]
        convs.0.lin_l.weight [6, 5]
        convs.0.lin_r.weight [6, 5]
        convs.1.lin_l.bias [6]
        convs.1.lin_l.weight [6, 6]
        convs.1.lin_r.weight [6, 6]
        lin.bias [3]
        lin.weight [3, 6]
        norms.0.module.bias [6]
        norms.0.module.num_batches_tracked []
        norms.0.module.running_mean [6]
        norms.0.module.running_var [6]
        norms.0.module.weight [6]
        norms.1.module.bias [6]
        norms.1.module.num_batches_tracked []
        norms.1.module.running_mean [6]
        norms.1.module.running_var [6]
        norms.1.module.weight [6]
        res.0.weight [6, 5]
    "#]],
    );
}

#[test]
fn attention_is_named_as_in_pyg() {
    let gat = Architecture {
        edge_dim: Some(2),
        num_layers: 1,
        hidden: vec![],
        ..plain(LayerKind::Gat)
    };
    names(
        &gat,
        &expect![[r#"
        convs.0.att_dst [1, 2, 3]
        convs.0.att_edge [1, 2, 3]
        convs.0.att_src [1, 2, 3]
        convs.0.bias [3]
        convs.0.lin.weight [6, 5]
        convs.0.lin_edge.weight [6, 2]
    "#]],
    );
    names(
        &Architecture {
            layer: LayerKind::GatV2,
            out_heads: 1,
            norm: Norm::Layer,
            hidden: vec![6],
            ..gat
        },
        &expect![[r#"
        convs.0.att [1, 2, 3]
        convs.0.bias [6]
        convs.0.lin_edge.weight [6, 2]
        convs.0.lin_l.bias [6]
        convs.0.lin_l.weight [6, 5]
        convs.0.lin_r.bias [6]
        convs.0.lin_r.weight [6, 5]
        lin.bias [3]
        lin.weight [3, 6]
        norms.0.bias [6]
        norms.0.weight [6]
    "#]],
    );
}

#[test]
fn perceptrons_are_named_as_in_pyg() {
    let gin = Architecture {
        edge_dim: Some(2),
        num_layers: 1,
        hidden: vec![],
        norm: Norm::Batch,
        ..plain(LayerKind::Gin)
    };
    names(
        &gin,
        &expect![[r#"
            convs.0.eps [1]
            convs.0.lin.bias [5]
            convs.0.lin.weight [5, 2]
            convs.0.nn.lins.0.bias [3]
            convs.0.nn.lins.0.weight [3, 5]
            convs.0.nn.lins.1.bias [3]
            convs.0.nn.lins.1.weight [3, 3]
            convs.0.nn.norms.0.module.bias [3]
            convs.0.nn.norms.0.module.num_batches_tracked []
            convs.0.nn.norms.0.module.running_mean [3]
            convs.0.nn.norms.0.module.running_var [3]
            convs.0.nn.norms.0.module.weight [3]
        "#]],
    );
}

/// Saves a GCN, changes its directory and loads it.
fn check(change: impl FnOnce(&Path), expected: &Expect) {
    let dir = tempfile::tempdir().unwrap();
    let arch = plain(LayerKind::Gcn);
    gnn::save(dir.path(), &Model::init(&arch, 4).unwrap(), &file(&arch)).unwrap();
    change(dir.path());
    let error = gnn::load(dir.path()).unwrap_err();
    let text = error
        .to_string()
        .replace(&dir.path().display().to_string(), "DIR");
    expected.assert_eq(&text);
}

fn edit_json(dir: &Path, from: &str, to: &str) {
    let path = dir.join(MODEL_JSON);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text} has no {from}");
    std::fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn bad_files_are_named_with_the_tensor_at_fault() {
    let remove =
        |name: &'static str| move |dir: &Path| std::fs::remove_file(dir.join(name)).unwrap();
    check(remove(MODEL_JSON), &expect!["cannot access DIR/model.json"]);
    check(
        remove(MODEL_WEIGHTS),
        &expect!["cannot access DIR/model.safetensors"],
    );
    check(
        |dir| edit_json(dir, "\"gcn\"", "\"gnc\""),
        &expect!["cannot convert DIR/model.json"],
    );
    check(
        |dir| edit_json(dir, "\"out_dim\": 3", "\"out_dim\": 4"),
        &expect![
            "tensor `convs.1.lin.weight` of DIR/model.safetensors: has shape [3, 6] where the architecture needs [4, 6]"
        ],
    );
    check(
        |dir| edit_json(dir, "\"gcn\"", "\"sage\""),
        &expect!["tensor `convs.0.lin_l.weight` of DIR/model.safetensors: is missing"],
    );
    check(
        |dir| edit_json(dir, "\"in_dim\": 5", "\"in_dim\": 0"),
        &expect!["architecture key `in_dim`: at least 1 is needed"],
    );
    check(
        |dir| edit_json(dir, "\"num_layers\": 2", "\"num_layers\": 1"),
        &expect!["tensor `lin.weight` of DIR/model.safetensors: is missing"],
    );
    check(
        |dir| {
            let path = dir.join(MODEL_WEIGHTS);
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
        },
        &expect!["cannot decode DIR/model.safetensors"],
    );
}

/// Rewrites the saved weights tensor by tensor.
fn edit_weights(dir: &Path, edit: impl Fn(&str, Vec<f32>) -> Vec<(String, Vec<f32>)>) {
    let path = dir.join(MODEL_WEIGHTS);
    let bytes = std::fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut edited = Vec::new();
    for (name, view) in tensors.iter() {
        let values = bytemuck::pod_collect_to_vec::<u8, f32>(view.data());
        for (new_name, new_values) in edit(name, values) {
            let new_bytes = bytemuck::cast_slice(&new_values).to_vec();
            edited.push((new_name, view.shape().to_vec(), new_bytes));
        }
    }
    let views = edited.iter().map(|(name, shape, data)| {
        let dtype = safetensors::Dtype::F32;
        let view = safetensors::tensor::TensorView::new(dtype, shape.clone(), data).unwrap();
        (name.as_str(), view)
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn stray_tensors_and_bad_values_are_named() {
    let stray = |name: &str, values: Vec<f32>| {
        let kept = (name.to_owned(), values.clone());
        if name == "convs.0.bias" {
            vec![kept, ("convs.7.bias".to_owned(), values)]
        } else {
            vec![kept]
        }
    };
    check(
        |dir| edit_weights(dir, stray),
        &expect![
            "tensor `convs.7.bias` of DIR/model.safetensors: is not a tensor of this architecture"
        ],
    );
    let nan = |name: &str, mut values: Vec<f32>| {
        values[0] = if name == "convs.1.bias" {
            f32::NAN
        } else {
            values[0]
        };
        vec![(name.to_owned(), values)]
    };
    check(
        |dir| edit_weights(dir, nan),
        &expect![
            "tensor `convs.1.bias` of DIR/model.safetensors: holds a value that is not a finite number"
        ],
    );
}

#[test]
fn an_architecture_larger_than_its_weights_takes_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let arch = plain(LayerKind::Gcn);
    gnn::save(dir.path(), &Model::init(&arch, 4).unwrap(), &file(&arch)).unwrap();
    edit_json(dir.path(), "\"in_dim\": 5", "\"in_dim\": 50000000");
    let error = gnn::load(dir.path()).unwrap_err().to_string();
    let says = "parameters of 4 bytes, model.safetensors has";
    assert!(error.contains(says), "{error}");
}

#[test]
fn a_learned_eps_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let arch = plain(LayerKind::Gin);
    gnn::save(dir.path(), &Model::init(&arch, 4).unwrap(), &file(&arch)).unwrap();
    edit_weights(dir.path(), |name, values| {
        let values = if name == "convs.1.eps" {
            vec![0.5]
        } else {
            values
        };
        vec![(name.to_owned(), values)]
    });
    let error = gnn::load(dir.path()).unwrap_err().to_string();
    assert!(error.starts_with("tensor `convs.1.eps`"), "{error}");
    assert!(
        error.ends_with("is not 0, the only value supported"),
        "{error}"
    );
}

#[test]
fn a_model_that_could_not_be_loaded_is_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let arch = plain(LayerKind::Gcn);
    let mut model = Model::init(&arch, 4).unwrap();
    let mut flat = model.flat();
    flat[0] = f32::INFINITY;
    model.set_flat(&flat);
    let error = gnn::save(dir.path(), &model, &file(&arch)).unwrap_err();
    let error = error.to_string();
    assert!(
        error.starts_with("tensor `convs.0.lin.weight` of ")
            && error.ends_with("holds a value that is not a finite number"),
        "{error}"
    );
    assert!(!dir.path().join(MODEL_WEIGHTS).exists());
}
