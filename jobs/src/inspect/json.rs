//! The values of a directory as JSON: names as in the tables, vectors whole.

use graphtrainer::scores::EvaluationFile;
use schemas::{EmbeddingRows, Features, Ids, Labels, Manifest, NO_CLASS, Row, Split};
use serde_json::{Map, Value, json};

use super::neighbourhood::{Edge, Neighbourhood, Node};

/// Returns what every output has; the caller adds what its kind has.
pub(super) fn heading(manifest: &Manifest) -> Map<String, Value> {
    let files = manifest.parts.iter().flat_map(|part| &part.files);
    let values = [
        ("kind", json!(manifest.stage)),
        (
            "rows",
            json!(manifest.parts.iter().map(|part| part.rows).sum::<u64>()),
        ),
        ("parts", json!(manifest.parts.len())),
        ("bytes", json!(files.map(|file| file.bytes).sum::<u64>())),
        ("seed", json!(manifest.seed)),
        ("program", json!(manifest.program)),
        ("fingerprint", json!(manifest.fingerprint)),
    ];
    let values = values.into_iter();
    values.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns an object, without the keys whose value is null.
pub(super) fn object<const N: usize>(values: [(&str, Value); N]) -> Value {
    let given = values.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(given.map(|(key, value)| (key.to_owned(), value)).collect())
}

/// Returns the test split's scores; null if the model was not evaluated.
pub(super) fn test_scores(evaluation: Option<&EvaluationFile>) -> Value {
    json!(evaluation.and_then(|of| of.splits.get("test")))
}

/// Returns a target, or a pair, with its nodes and edges; the ends of edges and pairs are positions in
/// `nodes`.
pub(super) fn neighbourhood(shown: &Neighbourhood<'_>) -> Value {
    let (feature, nodes) = (shown.feature, shown.nodes());
    let numbers = shown.numbers(&nodes);
    let of_node = |of: &Node| {
        let own = &feature.nodes[of.node_type];
        object([
            ("type", name(&shown.meta.types[of.node_type].name)),
            ("id", id(&own.node_id, of.at)),
            ("hop", json!(of.hop)),
            ("in_degree", in_degree(shown, of)),
            ("features", features(&own.features, of.at)),
        ])
    };
    let of_edge = |of: &Edge| {
        let edges = &feature.edges[of.relation];
        let weight = edges.edge_weight.as_ref();
        let dim = shown.meta.relations[of.relation].edge_feature_dim;
        let features = edges.edge_feature.as_ref().zip(dim);
        let features = features.map(|(all, width)| {
            let row = of.at * width..(of.at + 1) * width;
            vector(&all[row])
        });
        object([
            ("relation", name(&shown.meta.relations[of.relation].name)),
            ("src", json!(numbers[edges.from][of.src])),
            ("dst", json!(numbers[edges.to][of.dst])),
            ("weight", json!(weight.map(|all| number(all[of.at])))),
            ("features", json!(features)),
        ])
    };
    let all_nodes: Value = nodes.iter().map(of_node).collect();
    let all_edges: Value = shown.edges().map(|edge| of_edge(&edge)).collect();
    if let (Some(pairs), Some(of)) = (&feature.pairs, &shown.meta.pairs) {
        let end = |of_type: usize, row: &Row| json!(numbers[of_type][row.index()]);
        let dst = pairs.dst.first().or(pairs.random.first());
        let hard = pairs.hard.as_ref().map(|hard| &hard.nodes);
        let hard = hard.map(|all| all.iter().map(|row| end(of.to, row)).collect::<Value>());
        return object([
            ("src", json!(pairs.src.first().map(|row| end(of.from, row)))),
            ("dst", json!(dst.map(|row| end(of.to, row)))),
            (
                "split",
                split(pairs.split.first().copied().unwrap_or_default()),
            ),
            ("negatives", json!(hard)),
            ("nodes", all_nodes),
            ("edges", all_edges),
        ]);
    }
    let own = &feature.nodes[feature.target_type];
    object([
        ("type", name(&shown.meta.types[feature.target_type].name)),
        ("id", id(&own.node_id, 0)),
        ("split", split(feature.split)),
        ("label", label(&feature.labels, 0, shown.class_names)),
        ("nodes", all_nodes),
        ("edges", all_edges),
    ])
}

/// Returns a node's embedding and prediction.
pub(super) fn embedding(of_type: &str, rows: &EmbeddingRows, at: usize, names: &[String]) -> Value {
    let values = &rows.embedding[at * rows.dim..(at + 1) * rows.dim];
    object([
        ("type", name(of_type)),
        ("id", id(&rows.ids, at)),
        ("embedding", vector(values)),
        ("prediction", label(&rows.prediction, at, names)),
    ])
}

/// Returns the in-degree of a node: a number, or by relation if relations have names.
fn in_degree(shown: &Neighbourhood<'_>, node: &Node) -> Value {
    let relations = shown.meta.relations.iter().zip(&shown.feature.edges);
    let own = relations.filter(|(_, edges)| edges.to == node.node_type);
    let mut by_relation = Map::new();
    for (relation, edges) in own {
        let count = json!(edges.in_degree[node.at]);
        if relation.name.is_empty() {
            return count;
        }
        by_relation.insert(relation.name.clone(), count);
    }
    Value::Object(by_relation)
}

/// Returns the name of a type or a relation; null if it has none.
fn name(name: &str) -> Value {
    json!(Some(name).filter(|name| !name.is_empty()))
}

pub(super) fn id(ids: &Ids, at: usize) -> Value {
    let text = ids.display(at);
    match ids.id_type().is_integer() {
        true => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        false => Value::String(text),
    }
}

fn split(split: Split) -> Value {
    match split {
        Split::None => Value::Null,
        split => json!(split.as_str()),
    }
}

/// Returns a label or a prediction: a class, a number, or one number a label; null if there is none.
fn label(labels: &Labels, at: usize, names: &[String]) -> Value {
    match labels {
        Labels::None => Value::Null,
        Labels::Class(classes) if classes[at] == NO_CLASS => Value::Null,
        Labels::Class(classes) => match names.get(classes[at] as usize) {
            Some(name) => json!(name),
            None => json!(classes[at]),
        },
        Labels::Number(numbers) => number(numbers[at]),
        Labels::Multi { present, .. } if !present[at] => Value::Null,
        Labels::Multi { width, values, .. } => vector(&values[at * width..(at + 1) * width]),
    }
}

/// Returns dense features as a list, sparse ones as the lists `index` and `value`.
fn features(features: &Features, at: usize) -> Value {
    match features {
        Features::None => Value::Null,
        Features::Dense { dim, values } => vector(&values[at * dim..(at + 1) * dim]),
        Features::Sparse {
            dim,
            offset,
            index,
            value,
        } => {
            let end = |of: usize| usize::try_from(offset[of]).unwrap_or(index.len());
            let range = end(at)..end(at + 1);
            json!({
                "dim": dim,
                "index": index[range.clone()],
                "value": vector(&value[range]),
            })
        }
    }
}

fn vector(values: &[f32]) -> Value {
    values.iter().map(|&value| number(value)).collect()
}

/// Returns the shortest decimal that reads as this number; null if it is not finite.
pub(super) fn number(value: f32) -> Value {
    json!(
        value
            .to_string()
            .parse::<f64>()
            .ok()
            .filter(|value| value.is_finite())
    )
}
