//! Saves typed models and loads them again; names of tensors.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use gnn::typed::{TypedArchitecture, TypedKind, TypedModelFile, load_typed, save_typed};
use gnn::{LabelScale, LayerKind, MODEL_JSON, MODEL_WEIGHTS, Norm, Task, Transform};

use crate::models::{architectures, model, plain};

pub(crate) fn file(arch: &TypedArchitecture) -> TypedModelFile {
    let fitted = Transform::Standardize {
        mean: vec![0.1; 5],
        scale: vec![3.3; 5],
    };
    TypedModelFile {
        architecture: arch.clone(),
        transforms: BTreeMap::from([("author".to_owned(), fitted)]),
        label_scale: (arch.task == Task::Regression).then(|| LabelScale {
            mean: vec![1e7; arch.out_dim],
            deviation: vec![0.5; arch.out_dim],
        }),
        label_names: None,
        metrics: BTreeMap::from([("test_accuracy".to_owned(), 0.748)]),
        fanouts: serde_json::json!([{"reads": 10}, 5]),
        extra: BTreeMap::new(),
    }
}

#[test]
fn every_architecture_comes_back_as_it_was() {
    for arch in architectures() {
        let dir = tempfile::tempdir().unwrap();
        let mut model = model(&arch, 4);
        let buffers: Vec<f32> = model.buffers().iter().map(|x| x + 0.25).collect();
        model.set_buffers(&buffers);
        save_typed(dir.path(), &model, &file(&arch)).unwrap();
        let (loaded, loaded_file) = load_typed(dir.path()).unwrap();
        assert_eq!(loaded.flat(), model.flat(), "{arch:?}");
        assert_eq!(loaded.buffers(), buffers, "{arch:?}");
        assert_eq!(loaded.parameters(), model.parameters(), "{arch:?}");
        assert_eq!(loaded_file, file(&arch));
        assert_eq!(loaded.label_scale(), loaded_file.label_scale.as_ref());
    }
}

#[test]
fn what_does_not_fit_the_architecture_is_refused() {
    let arch = plain(TypedKind::Hgt);
    let dir = tempfile::tempdir().unwrap();
    save_typed(dir.path(), &model(&arch, 4), &file(&arch)).unwrap();
    let refuse = |changed: &TypedModelFile, wanted: &str| {
        let json = serde_json::to_vec(changed).unwrap();
        std::fs::write(dir.path().join(MODEL_JSON), json).unwrap();
        let error = load_typed(dir.path()).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    };
    let mut other = file(&arch);
    other.architecture.heads = 1;
    refuse(&other, "tensor `convs.0.k_rel.weight`");
    let mut other = file(&arch);
    other.transforms = BTreeMap::from([("book".to_owned(), Transform::RowNormalize)]);
    refuse(&other, "there is no type `book`");
    let mut other = file(&arch);
    other.architecture.types[0].in_dim = Some(9);
    refuse(
        &other,
        "fitted to 5 features of `author`, but the model reads 9",
    );
}

fn names(arch: &TypedArchitecture, expected: &Expect) {
    let mut arch = arch.clone();
    let keep = ["hosts", "knows"];
    arch.relations.retain(|of| keep.contains(&of.name.as_str()));
    arch.types.retain(|of| of.name != "place");
    arch.num_layers = 1;
    arch.hidden = vec![6];
    arch.out_heads = 1;
    let dir = tempfile::tempdir().unwrap();
    let file = TypedModelFile {
        label_scale: None,
        ..file(&arch)
    };
    save_typed(dir.path(), &model(&arch, 4), &file).unwrap();
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
fn tensors_of_convs_by_relation_are_named_as_in_pyg() {
    let arch = TypedArchitecture {
        norm: Norm::Layer,
        residual: true,
        ..plain(TypedKind::Conv(LayerKind::Gat))
    };
    names(
        &arch,
        &expect![[r#"
        convs.0.convs.<author___knows___author>.att_dst [1, 2, 3]
        convs.0.convs.<author___knows___author>.att_src [1, 2, 3]
        convs.0.convs.<author___knows___author>.bias [6]
        convs.0.convs.<author___knows___author>.lin.weight [6, 4]
        convs.0.convs.<venue___hosts___paper>.att_dst [1, 2, 3]
        convs.0.convs.<venue___hosts___paper>.att_src [1, 2, 3]
        convs.0.convs.<venue___hosts___paper>.bias [6]
        convs.0.convs.<venue___hosts___paper>.lin_dst.weight [6, 4]
        convs.0.convs.<venue___hosts___paper>.lin_src.weight [6, 4]
        lin.bias [3]
        lin.weight [3, 6]
        lins.author.bias [4]
        lins.author.weight [4, 5]
        lins.paper.bias [4]
        lins.paper.weight [4, 7]
        lins.venue.bias [4]
        lins.venue.weight [4, 3]
        norms.0.author.bias [6]
        norms.0.author.weight [6]
        norms.0.paper.bias [6]
        norms.0.paper.weight [6]
        norms.0.venue.bias [6]
        norms.0.venue.weight [6]
        res.0.author.weight [6, 4]
        res.0.paper.weight [6, 4]
        res.0.venue.weight [6, 4]
        skips.0.venue.bias [6]
        skips.0.venue.weight [6, 4]
    "#]],
    );
}

#[test]
fn tensors_of_rgcn_and_simple_hgn_are_named_as_in_pyg_and_by_the_authors() {
    let bases = TypedArchitecture {
        num_bases: Some(3),
        ..plain(TypedKind::Rgcn)
    };
    names(
        &bases,
        &expect![[r#"
        convs.0.bias [6]
        convs.0.comp [2, 3]
        convs.0.root [4, 6]
        convs.0.weight [3, 4, 6]
        lin.bias [3]
        lin.weight [3, 6]
        lins.author.bias [4]
        lins.author.weight [4, 5]
        lins.paper.bias [4]
        lins.paper.weight [4, 7]
        lins.venue.bias [4]
        lins.venue.weight [4, 3]
    "#]],
    );
    names(
        &plain(TypedKind::SimpleHgn),
        &expect![[r#"
        convs.0.attn_e [1, 2, 3]
        convs.0.attn_l [1, 2, 3]
        convs.0.attn_r [1, 2, 3]
        convs.0.edge_emb.weight [3, 3]
        convs.0.fc.weight [6, 4]
        convs.0.fc_e.weight [6, 3]
        lin.bias [3]
        lin.weight [3, 6]
        lins.author.bias [4]
        lins.author.weight [4, 5]
        lins.paper.bias [4]
        lins.paper.weight [4, 7]
        lins.venue.bias [4]
        lins.venue.weight [4, 3]
    "#]],
    );
}

#[test]
fn tensors_of_hgt_are_named_as_in_pyg() {
    names(
        &plain(TypedKind::Hgt),
        &expect![[r#"
        convs.0.k_rel.weight [4, 3, 3]
        convs.0.kqv_lin.lins.author.bias [18]
        convs.0.kqv_lin.lins.author.weight [18, 4]
        convs.0.kqv_lin.lins.paper.bias [18]
        convs.0.kqv_lin.lins.paper.weight [18, 4]
        convs.0.kqv_lin.lins.venue.bias [18]
        convs.0.kqv_lin.lins.venue.weight [18, 4]
        convs.0.out_lin.lins.author.bias [6]
        convs.0.out_lin.lins.author.weight [6, 6]
        convs.0.out_lin.lins.paper.bias [6]
        convs.0.out_lin.lins.paper.weight [6, 6]
        convs.0.out_lin.lins.venue.bias [6]
        convs.0.out_lin.lins.venue.weight [6, 6]
        convs.0.p_rel.author__knows__author [1, 2]
        convs.0.p_rel.venue__hosts__paper [1, 2]
        convs.0.skip.author [1]
        convs.0.skip.paper [1]
        convs.0.skip.venue [1]
        convs.0.v_rel.weight [4, 3, 3]
        lin.bias [4]
        lin.weight [4, 6]
        lins.author.bias [4]
        lins.author.weight [4, 5]
        lins.paper.bias [4]
        lins.paper.weight [4, 7]
        lins.venue.bias [4]
        lins.venue.weight [4, 3]
        skips.0.venue.bias [6]
        skips.0.venue.weight [6, 4]
    "#]],
    );
}
