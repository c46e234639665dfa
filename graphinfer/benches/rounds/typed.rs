//! The typed graph and its model.

use super::{Recorded, Result, Settings, num_classes, say};
use gnn::typed::{TypedArchitecture, TypedModel, TypedModelFile, save_typed};
use graphflat::generate::{GraphSpec, TypedPlan, TypedSpec, generate_typed};
use schemas::{GraphMeta, GraphPlan, InputSpec};
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Plans the graph; writes its tables if they are missing.
pub(super) fn graph(settings: &Settings, data: &Path) -> Result<GraphPlan> {
    let spec = TypedSpec {
        graph: GraphSpec {
            nodes: settings.number("nodes", "1048576")? as u64,
            edges: settings.number("edges", "16777216")? as u64,
            features: settings.number("features", "64")?.try_into()?,
            classes: 16,
            hubs: 0,
            hub_in_edges: 0,
            weights: true,
            seed: settings.number("seed", "1")? as u64,
        },
        types: settings.number("types", "4")?.try_into()?,
        relations: settings.number("relations", "6")?.try_into()?,
        type_shares: Vec::new(),
        relation_shares: Vec::new(),
    };
    let plan = spec.into_plan()?;
    if !data
        .join(TypedPlan::edges_file(plan.num_relations() - 1))
        .exists()
    {
        say(&format!("writes tables into {}", data.display()));
        generate_typed(&plan, data)?;
    }
    let (mut nodes, mut edges) = (Map::new(), Map::new());
    for at in 0..plan.num_types() {
        let mut table = json!({
            "path": TypedPlan::nodes_file(at), "id": "id", "features": ["features"],
        });
        if at == 0 {
            table["label"] = json!("label");
            table["split"] = json!("split");
        }
        nodes.insert(format!("t{at}"), table);
    }
    for at in 0..plan.num_relations() {
        let (from, to) = plan.ends(at);
        let table = json!({
            "path": TypedPlan::edges_file(at), "src": "src", "dst": "dst",
            "from": format!("t{from}"), "to": format!("t{to}"), "weight": "weight",
        });
        edges.insert(format!("r{at}"), table);
    }
    let input: InputSpec = serde_json::from_value(json!({ "nodes": nodes, "edges": edges }))?;
    Ok(input.into_plan(data)?)
}

pub(super) fn save_model(
    settings: &Settings,
    graph: &GraphMeta,
    (fanouts, extra): Recorded<'_>,
    dir: &Path,
) -> Result<()> {
    let name = |at: usize| &graph.types[at].name;
    let types = graph.types.iter();
    let types = types.map(|of| json!({ "name": of.name, "in_dim": of.features.dim() }));
    let relations = graph.relations.iter().map(|of| {
        json!({
            "name": of.name, "from": name(of.from), "to": name(of.to),
            "edge_weight": false, "edge_dim": null,
        })
    });
    let (hidden, layer) = (
        settings.number("hidden", "64")?,
        settings.text("model", "sage"),
    );
    let arch: TypedArchitecture = serde_json::from_value(json!({
        "layer": layer, "relation_aggregator": "sum", "aggregator": "mean",
        "types": types.collect::<Vec<_>>(), "relations": relations.collect::<Vec<_>>(),
        "target_type": name(graph.target_type), "projection": hidden,
        "hidden": vec![hidden; fanouts.len()], "num_layers": fanouts.len(),
        "out_dim": num_classes(graph)?, "heads": settings.number("heads", "1")?, "out_heads": 1,
        "num_bases": null, "relation_dim": (layer == "simple_hgn").then_some(hidden),
        "attention_residual": 0.0, "dropout": 0.0, "input_dropout": 0.0, "attention_dropout": 0.0,
        "norm": "none", "residual": false, "normalize_output": false,
        "activation": settings.text("activation", "relu"), "task": "classes",
    }))?;
    let model = TypedModel::init(&arch, 1)?;
    let file = TypedModelFile {
        architecture: arch,
        transforms: BTreeMap::new(),
        label_scale: None,
        label_names: None,
        metrics: BTreeMap::new(),
        fanouts: json!(fanouts),
        extra,
    };
    Ok(save_typed(dir, &model, &file)?)
}
