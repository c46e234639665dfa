//! Describes one neighbourhood, as text or as a graph in DOT.

use schemas::{Features, GraphFeature, Ids, Labels, Split};

use super::more;

/// Greatest number of a vector's values that are shown.
const VALUES_SHOWN: usize = 6;

/// Greatest number of nodes and of edges that are shown in text; DOT draws all.
const EDGES_SHOWN: usize = 20;

/// Returns the distance of every node from the target.
fn hops(feature: &GraphFeature) -> Vec<usize> {
    let nodes = &feature.nodes[0];
    let mut hops = Vec::with_capacity(nodes.node_id.len());
    for (hop, range) in nodes.hop_offset.windows(2).enumerate() {
        hops.extend((range[0]..range[1]).map(|_| hop));
    }
    hops
}

/// Returns the positions of source, destination and edge for every kept edge.
fn edges(feature: &GraphFeature) -> impl Iterator<Item = (usize, usize, usize)> {
    let edges = &feature.edges[0];
    let ranges = edges.in_offset.windows(2).enumerate();
    ranges.flat_map(move |(dst, range)| {
        (range[0] as usize..range[1] as usize)
            .map(move |edge| (edges.in_src[edge] as usize, dst, edge))
    })
}

pub(super) fn neighbourhood(feature: &GraphFeature, names: &[String]) -> String {
    let ids = &feature.nodes[0].node_id;
    let split = match feature.split {
        Split::None => String::new(),
        split => format!(", split {}", format!("{split:?}").to_lowercase()),
    };
    let mut text = format!(
        "target {}{split}{}: {} nodes, {} edges\n",
        ids.display(0),
        label(&feature.labels, 0, names).replace(" ->", ", label"),
        ids.len(),
        feature.num_edges()
    );
    let hops = hops(feature);
    for node in (0..ids.len()).take(EDGES_SHOWN) {
        text.push_str(&format!(
            "  hop {} {} in-degree {}{}\n",
            hops[node],
            ids.display(node),
            feature.edges[0].in_degree[node],
            features(&feature.nodes[0].features, node)
        ));
    }
    more(&mut text, ids.len(), EDGES_SHOWN, "nodes");
    for (src, dst, edge) in edges(feature).take(EDGES_SHOWN) {
        let weight = feature.edges[0]
            .edge_weight
            .as_ref()
            .map(|weights| format!(" weight {}", weights[edge]));
        let (src, dst) = (ids.display(src), ids.display(dst));
        text.push_str(&format!("  {src} -> {dst}{}\n", weight.unwrap_or_default()));
    }
    more(&mut text, feature.num_edges(), EDGES_SHOWN, "edges");
    text
}

fn features(features: &Features, node: usize) -> String {
    match features {
        Features::None => String::new(),
        Features::Dense { dim, values } => {
            format!(
                " features {}",
                numbers(&values[node * dim..(node + 1) * dim])
            )
        }
        Features::Sparse { dim, offset, .. } => {
            format!(
                " features {} of {dim} present",
                offset[node + 1] - offset[node]
            )
        }
    }
}

pub(super) fn numbers(values: &[f32]) -> String {
    let shown: Vec<String> = values
        .iter()
        .take(VALUES_SHOWN)
        .map(|value| format!("{value:.4}"))
        .collect();
    let more = if values.len() > VALUES_SHOWN {
        ", ..."
    } else {
        ""
    };
    format!("[{}{more}] ({})", shown.join(", "), values.len())
}

pub(super) fn label(labels: &Labels, at: usize, names: &[String]) -> String {
    match labels {
        Labels::None => String::new(),
        Labels::Class(classes) if classes[at] == schemas::NO_CLASS => String::new(),
        Labels::Class(classes) => match names.get(classes[at] as usize) {
            Some(name) => format!(" -> {name}"),
            None => format!(" -> class {}", classes[at]),
        },
        Labels::Number(numbers) if numbers[at].is_nan() => String::new(),
        Labels::Number(numbers) => format!(" -> {}", numbers[at]),
        Labels::Multi { width, values, .. } => {
            let row = &values[at * width..(at + 1) * width];
            let set: Vec<String> = (0..*width)
                .filter(|&c| row[c] > 0.5)
                .map(|c| c.to_string())
                .collect();
            format!(" -> classes [{}]", set.join(", "))
        }
    }
}

/// Returns the neighbourhood as a graph in Graphviz's language DOT.
pub(super) fn dot(feature: &GraphFeature) -> String {
    let ids = &feature.nodes[0].node_id;
    let mut text = format!("digraph {} {{\n  rankdir = RL;\n", quoted(ids, 0));
    for (node, hop) in hops(feature).into_iter().enumerate() {
        let shape = if node == 0 { ", shape = box" } else { "" };
        text.push_str(&format!(
            "  n{node} [label = {}, hop = {hop}{shape}];\n",
            quoted(ids, node)
        ));
    }
    for (src, dst, edge) in edges(feature) {
        let weight = feature.edges[0]
            .edge_weight
            .as_ref()
            .map(|w| format!(" [label = \"{}\"]", w[edge]));
        text.push_str(&format!(
            "  n{src} -> n{dst}{};\n",
            weight.unwrap_or_default()
        ));
    }
    text.push_str("}\n");
    text
}

fn quoted(ids: &Ids, at: usize) -> String {
    format!(
        "\"{}\"",
        ids.display(at).replace('\\', "\\\\").replace('"', "\\\"")
    )
}
