//! A type split in two, with the same weights, changes no embedding.

use std::collections::BTreeMap;

use gnn::typed::{TypedArchitecture, TypedKind, TypedModel};
use gnn::{LayerKind, Mode, ReadyInput};

use crate::forward::TOLERANCE;
use crate::graph::{Edge, Graph};
use crate::models::{architectures, model, schema};

/// Returns where a node of the type that is split goes: the half, and the position there.
fn half(node: usize) -> (usize, usize) {
    (node % 2, node / 2)
}

/// Splits type `name` of an architecture: `name` becomes `name-a` and `name-b`, and so does each
/// relation that it is an end of.
fn split(arch: &TypedArchitecture, name: &str) -> TypedArchitecture {
    let ends = |of: &str| match of == name {
        true => vec![format!("{of}-a"), format!("{of}-b")],
        false => vec![of.to_owned()],
    };
    let mut halves = arch.clone();
    halves.types = arch
        .types
        .iter()
        .flat_map(|of| {
            ends(&of.name)
                .into_iter()
                .map(|name| gnn::typed::TypeInput { name, ..of.clone() })
        })
        .collect();
    halves.relations = arch
        .relations
        .iter()
        .flat_map(|of| {
            let pairs = ends(&of.from)
                .into_iter()
                .flat_map(|from| ends(&of.to).into_iter().map(move |to| (from.clone(), to)));
            pairs
                .map(|(from, to)| {
                    let suffix = |end: &str| {
                        end.rsplit('-')
                            .next()
                            .filter(|s| s.len() == 1)
                            .map(str::to_owned)
                    };
                    let parts = [Some(of.name.clone()), suffix(&from), suffix(&to)];
                    let name = parts.into_iter().flatten().collect::<Vec<_>>().join("-");
                    gnn::typed::RelationInput {
                        name,
                        from,
                        to,
                        ..of.clone()
                    }
                })
                .collect::<Vec<_>>()
        })
        .collect();
    halves.types.sort_by(|a, b| a.name.cmp(&b.name));
    halves.relations.sort_by(|a, b| a.name.cmp(&b.name));
    halves
}

/// Returns the name of the whole of which a type or relation is a part.
fn whole_of(name: &str) -> &str {
    name.split('-').next().unwrap()
}

/// Gives a split model the parameters of the whole one: those of a half are those of the whole.
fn set_parameters(whole: &TypedModel, halves: &mut TypedModel) {
    let (arch, split) = (whole.architecture(), halves.architecture().clone());
    let (flat, mut start, mut tensors) = (whole.flat(), 0, BTreeMap::new());
    for info in whole.parameters() {
        tensors.insert(info.name.clone(), &flat[start..start + info.len()]);
        start += info.len();
    }
    // Rows of tensors that have a part for each relation, in the order of their names.
    let place = |name: &str| {
        arch.relations
            .iter()
            .position(|of| of.name == whole_of(name))
            .unwrap()
    };
    let order: Vec<usize> = split.relations.iter().map(|of| place(&of.name)).collect();
    let mut values = Vec::new();
    for info in halves.parameters() {
        let mut name = info.name.clone();
        for end in ["-a-a", "-a-b", "-b-a", "-b-b", "-a", "-b"] {
            name = name.replace(end, "");
        }
        let of_whole = tensors[&name];
        let count = arch.relations.len();
        let by_relation = ["edge_emb.weight", "k_rel.weight", "v_rel.weight"];
        if !by_relation.iter().any(|part| name.ends_with(part)) {
            assert_eq!(of_whole.len(), info.len(), "{name}");
            values.extend_from_slice(of_whole);
            continue;
        }
        let groups = if name.contains("edge_emb") {
            1
        } else {
            info.shape[0] / order.len()
        };
        let rows = groups * count + usize::from(name.contains("edge_emb"));
        let size = of_whole.len() / rows;
        for group in 0..groups {
            for relation in &order {
                let at = (group * count + relation) * size;
                values.extend_from_slice(&of_whole[at..at + size]);
            }
        }
        values.extend_from_slice(&of_whole[groups * count * size..]);
    }
    halves.set_flat(&values);
}

/// Splits the nodes and edges of a graph.
fn split_graph(graph: &Graph, arch: &TypedArchitecture, name: &str) -> Graph {
    let schema = schema(arch);
    let place = |name: &str| {
        graph
            .schema
            .types
            .iter()
            .position(|of| of == whole_of(name))
            .unwrap()
    };
    let is_half = |t: usize| whole_of(&schema.types[t]) == name;
    let part = |t: usize| usize::from(schema.types[t].ends_with("-b"));
    let num_nodes = (0..schema.types.len())
        .map(|t| {
            let all = graph.num_nodes[place(&schema.types[t])];
            if is_half(t) {
                (all + 1 - part(t)) / 2
            } else {
                all
            }
        })
        .collect::<Vec<usize>>();
    let in_edges = schema.relations.iter().map(|ends| {
        let of = graph
            .schema
            .relations
            .iter()
            .position(|of| of.name == whole_of(&ends.name));
        let all = &graph.in_edges[of.unwrap()];
        let node = |t: usize, v: usize| if is_half(t) { 2 * v + part(t) } else { v };
        (0..num_nodes[ends.to])
            .map(|v| {
                let edges = all[node(ends.to, v)].iter().filter_map(|edge| {
                    if !is_half(ends.from) {
                        return Some(edge.clone());
                    }
                    let (half, src) = half(edge.src);
                    (half == part(ends.from)).then(|| Edge {
                        src,
                        ..edge.clone()
                    })
                });
                edges.collect()
            })
            .collect()
    });
    Graph {
        in_edges: in_edges.collect(),
        num_nodes: num_nodes.clone(),
        schema: std::sync::Arc::clone(&schema),
    }
}

/// Returns the logits of all nodes of the target type.
fn logits(graph: &Graph, model: &TypedModel, whole: &TypedArchitecture) -> Vec<Vec<f32>> {
    let arch = model.architecture();
    let place = |t: usize| {
        whole
            .types
            .iter()
            .position(|of| of.name == whole_of(&arch.types[t].name))
            .unwrap()
    };
    let input: Vec<Option<ReadyInput>> = (0..arch.types.len())
        .map(|t| {
            let name = &arch.types[t].name;
            let node = |v: usize| {
                if name.contains('-') {
                    2 * v + usize::from(name.ends_with("-b"))
                } else {
                    v
                }
            };
            let nodes: Vec<usize> = (0..graph.num_nodes[t]).map(node).collect();
            crate::graph::features(whole, place(t), &nodes)
                .map(|input| ReadyInput::new(input).unwrap())
        })
        .collect();
    let block = gnn::typed::TypedBlock::new(&graph.schema, graph.whole()).unwrap();
    let out = model
        .forward(&vec![block; arch.num_layers], &input, Mode::Eval)
        .unwrap();
    (0..out.rows).map(|v| out.row(v).to_vec()).collect()
}

/// Splits a type of a model and compares the logits of the target type.
fn check(arch: &TypedArchitecture, name: &str) {
    let graph = Graph::random(&schema(arch), 9, 25, 3);
    let whole = model(arch, 3);
    let expected = logits(&graph, &whole, arch);
    let split_arch = split(arch, name);
    let parts = split_graph(&graph, &split_arch, name);
    let is_target = arch.target_type == name;
    for part in if is_target { &["-a", "-b"][..] } else { &[""] } {
        let arch_of_part = TypedArchitecture {
            target_type: format!("{}{part}", arch.target_type),
            ..split_arch.clone()
        };
        let mut halves = TypedModel::init(&arch_of_part, 1).unwrap();
        set_parameters(&whole, &mut halves);
        let got = logits(&parts, &halves, arch);
        for (v, row) in got.iter().enumerate() {
            let v = if is_target {
                2 * v + usize::from(*part == "-b")
            } else {
                v
            };
            for (a, b) in row.iter().zip(&expected[v]) {
                let off = f64::from(a - b).abs();
                assert!(
                    off < TOLERANCE,
                    "{name} split, node {v}, {a} is not {b}: {arch:?}"
                );
            }
        }
    }
}

#[test]
fn attention_over_all_in_edges_ignores_a_split_of_any_type() {
    for arch in architectures() {
        if matches!(arch.layer, TypedKind::SimpleHgn | TypedKind::Hgt) {
            ["author", "paper", "place", "venue"]
                .iter()
                .for_each(|name| check(&arch, name));
        }
    }
}

#[test]
fn convs_by_relation_ignore_a_split_of_a_type_that_no_relation_leaves() {
    // A split of a src type splits relations, and each relation has a mean of its own.
    for mut arch in architectures() {
        let by_relation = matches!(arch.layer, TypedKind::Conv(_));
        let is_of_nodes = arch.readout.is_none();
        if by_relation && is_of_nodes && arch.layer != TypedKind::Conv(LayerKind::Gcn) {
            arch.target_type = "place".to_owned();
            check(&arch, "place");
        }
    }
}
