//! Tests that a model of another graph is refused before anything is written.

use crate::case::Case;
use crate::graph::{Graph, quiet};
use crate::models::{Trained, edit, plain};
use gnn::LayerKind;
use gnn::typed::TypedKind;
use graphinfer::{infer, infer_neighborhoods};
use schemas::Layout;
use serde_json::json;

#[test]
fn a_model_of_another_graph_is_refused_by_type_and_relation() {
    let case = Case::new(&Graph::random(3, false));
    let sampled = case.sample(&json!(["all", "all"]), Layout::Shards);
    let keep = sampled.sample().keep_by_relation();
    let (features, flatten) = case.flatten(&sampled);
    let meta = case.store(1, &keep).meta().graph.clone();
    let arch = plain(TypedKind::Conv(LayerKind::Gat), &meta);
    let other_type = meta.types.iter().find(|of| of.features.dim() > 0).unwrap();
    let relation = &meta.relations[0];
    let check = |name: &str, change: &dyn Fn(&mut schemas::GraphMeta), expected: &str| {
        let mut changed = meta.clone();
        change(&mut changed);
        let arch = plain(arch.layer, &changed);
        let trained = Trained::new(case.path().join(name), &arch, (&flatten, &changed));
        let plan = case.plan(&trained, "out", "");
        let error = infer(&plan, &case.store(1, &keep), &quiet())
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
        let given = plan.check_graph(&meta).unwrap_err().to_string();
        assert_eq!(given, error, "preflight says the same");
        let extra = format!(
            r#", "method": "neighborhoods", "input": "{}""#,
            features.display()
        );
        let near = infer_neighborhoods(&case.plan(&trained, "out", &extra), &quiet());
        assert_eq!(near.unwrap_err().to_string(), error);
        assert!(!case.path().join("out").exists(), "nothing is written");
    };
    let last = meta.types.len() - 1;
    let lacks = "it was trained on node type `zoo`, which the graph lacks";
    check("type", &|of| of.types[last].name = "zoo".to_owned(), lacks);
    let last_relation = meta.relations.len() - 1;
    let rename = |of: &mut schemas::GraphMeta| of.relations[last_relation].name = "zoo".to_owned();
    check(
        "relation",
        &rename,
        "it was trained on relation `zoo`, which the graph lacks",
    );
    let to = (relation.to + 1) % meta.types.len();
    let other_end = format!("relation `{}` led from ", relation.name);
    check("ends", &|of| of.relations[0].to = to, &other_end);
    let at = meta
        .types
        .iter()
        .position(|of| of.name == other_type.name)
        .unwrap();
    let widen = |of: &mut schemas::GraphMeta| {
        of.types[at].features = schemas::FeatureMeta::Dense { dim: 99 };
    };
    let other_width = format!(
        "it reads 99 features a node, `input.nodes.{}.features`",
        other_type.name
    );
    check("features", &widen, &other_width);
    let other_target = "it was trained on the target type `";
    let other = (meta.target_type + 1) % meta.types.len();
    check("target", &|of| of.target_type = other, other_target);
}

#[test]
fn a_typed_and_an_untyped_graph_need_models_of_their_own() {
    let case = Case::new(&Graph::random(3, false));
    let sampled = case.sample(&json!(["all", "all"]), Layout::Shards);
    let keep = sampled.sample().keep_by_relation();
    let (_, flatten) = case.flatten(&sampled);
    let meta = case.store(1, &keep).meta().graph.clone();
    let arch = plain(TypedKind::Rgcn, &meta);
    let trained = Trained::new(case.path().join("typed"), &arch, (&flatten, &meta));
    let untyped: schemas::GraphMeta = serde_json::from_value(json!({
        "id_type": "int64", "features": { "dense": { "dim": 3 } }, "label": null, "split": null,
        "edge_weight": false, "edge_feature_dim": null, "self_loops": false,
    }))
    .unwrap();
    let typed_plan = case.plan(&trained, "out", "");
    let typed_error = typed_plan.check_graph(&untyped).unwrap_err().to_string();
    assert!(
        typed_error.contains("the nodes of the graph have none"),
        "{typed_error}"
    );
    // A model of a graph without types.
    let file: gnn::ModelFile = serde_json::from_value(json!({
        "transform": "none",
        "architecture": {
            "layer": "sage", "aggregator": "mean", "in_dim": 3, "hidden": [8], "num_layers": 2,
            "out_dim": 3, "edge_dim": null, "edge_weight": false, "heads": 1, "out_heads": 1,
            "dropout": 0.0, "input_dropout": 0.0, "attention_dropout": 0.0, "norm": "none",
            "residual": false, "activation": "relu", "task": "classes",
        },
    }))
    .unwrap();
    let model = gnn::Model::init(&file.architecture, 7).unwrap();
    gnn::save(&trained.dir, &model, &file).unwrap();
    let untyped_plan = case.plan(&trained, "out", r#", "sampling": "none""#);
    let all = vec![usize::MAX; keep.len()];
    let untyped_error = infer(&untyped_plan, &case.store(1, &all), &quiet())
        .unwrap_err()
        .to_string();
    assert!(
        untyped_error.contains("it was trained on a graph without node types"),
        "{untyped_error}"
    );
    let types_plan = case.plan(&trained, "out", r#", "sampling": "none", "types": "all""#);
    let types_error = types_plan.check_graph(&untyped).unwrap_err().to_string();
    assert!(
        types_error.contains("`infer.types` is \"all\": nodes have no types"),
        "{types_error}"
    );
    assert!(!case.path().join("out").exists(), "nothing is written");
}

#[test]
fn a_record_of_other_relations_and_broken_numbers_are_refused() {
    let case = Case::new(&Graph::random(3, false));
    let sampled = case.sample(&json!(["all", "all"]), Layout::Shards);
    let keep = sampled.sample().keep_by_relation();
    let (_, mut flatten) = case.flatten(&sampled);
    let meta = case.store(1, &keep).meta().graph.clone();
    let arch = plain(TypedKind::Rgcn, &meta);
    let few = schemas::HopFanouts::from(vec![schemas::Fanout::All; keep.len() + 1]);
    flatten.fanouts[1] = few;
    let misfit = Trained::new(case.path().join("few"), &arch, (&flatten, &meta));
    let misfit_plan = case.plan(&misfit, "out", "");
    let misfit_error = infer(&misfit_plan, &case.store(1, &keep), &quiet())
        .unwrap_err()
        .to_string();
    let expected = format!(
        "has {} relations but {} fan-outs a hop",
        keep.len(),
        keep.len() + 1
    );
    assert!(misfit_error.contains(&expected), "{misfit_error}");
    // Numbers that overflow name the type of the node.
    flatten.fanouts[1] = flatten.fanouts[0].clone();
    let mut trained = Trained::new(case.path().join("huge"), &arch, (&flatten, &meta));
    let huge = vec![f32::MAX; trained.model.flat().len()];
    trained.model.set_flat(&huge);
    let file = gnn::typed::load_typed(&trained.dir).unwrap().1;
    gnn::typed::save_typed(&trained.dir, &trained.model, &file).unwrap();
    let plan = case.plan(&trained, "out", "");
    let error = infer(&plan, &case.store(1, &keep), &quiet())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("gives no number for node ") && error.contains("of type `t"),
        "{error}"
    );
    edit(&trained.dir, "\"layer\": \"rgcn\"", "\"layer\": \"han\"");
    let unreadable = plan.check_graph(&meta).unwrap_err().to_string();
    assert!(unreadable.contains("model.json"), "{unreadable}");
}
