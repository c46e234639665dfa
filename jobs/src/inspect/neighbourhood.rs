//! Describes one neighbourhood, as text or as a graph in DOT.

use schemas::{Features, GraphFeature, GraphMeta, Ids, Labels, Row, Split};

use super::more;

/// Greatest number of a vector's values that are shown.
const VALUES_SHOWN: usize = 6;

/// Greatest number of nodes and of edges that are shown in text; DOT draws all.
const EDGES_SHOWN: usize = 20;

/// Colours of node types in a drawing: those of a scheme that Graphviz has.
const COLORS: usize = 12;

/// A node of a neighbourhood.
pub(super) struct Node {
    pub(super) hop: usize,
    pub(super) node_type: usize,
    /// Position among the nodes of its type.
    pub(super) at: usize,
}

/// A kept edge of a neighbourhood.
pub(super) struct Edge {
    pub(super) relation: usize,
    /// Positions among the nodes of their types.
    pub(super) src: usize,
    pub(super) dst: usize,
    /// Position among the edges of the relation.
    pub(super) at: usize,
}

/// A neighbourhood with the names of its types, relations and classes.
pub(super) struct Neighbourhood<'a> {
    pub(super) feature: &'a GraphFeature,
    pub(super) meta: &'a GraphMeta,
    pub(super) class_names: &'a [String],
}

impl Neighbourhood<'_> {
    /// Lists the nodes by hop, within a hop by type; the target, or the ends of a pair, are the first.
    pub(super) fn nodes(&self) -> Vec<Node> {
        let mut nodes = Vec::new();
        for (node_type, of_type) in self.feature.nodes.iter().enumerate() {
            for (hop, range) in of_type.hop_offset.windows(2).enumerate() {
                let positions = range[0] as usize..range[1] as usize;
                nodes.extend(positions.map(|at| Node { hop, node_type, at }));
            }
        }
        nodes.sort_by_key(|node| node.hop);
        nodes
    }

    /// Returns the position in `nodes` of each node of each type.
    pub(super) fn numbers(&self, nodes: &[Node]) -> Vec<Vec<usize>> {
        let counts = self.feature.nodes.iter().map(|of| of.node_id.len());
        let mut numbers: Vec<Vec<usize>> = counts.map(|count| vec![0; count]).collect();
        for (number, node) in nodes.iter().enumerate() {
            numbers[node.node_type][node.at] = number;
        }
        numbers
    }

    /// Lists the kept edges by relation and destination.
    pub(super) fn edges(&self) -> impl Iterator<Item = Edge> {
        let relations = self.feature.edges.iter().enumerate();
        relations.flat_map(|(relation, edges)| {
            let ranges = edges.in_offset.windows(2).enumerate();
            ranges.flat_map(move |(dst, range)| {
                (range[0] as usize..range[1] as usize).map(move |at| Edge {
                    relation,
                    src: edges.in_src[at] as usize,
                    dst,
                    at,
                })
            })
        })
    }

    /// Returns a node's id, after the name of its type if it has one.
    fn name(&self, node_type: usize, at: usize) -> String {
        let id = self.feature.nodes[node_type].node_id.display(at);
        match self.meta.types[node_type].name.as_str() {
            "" => id,
            name => format!("{name} {id}"),
        }
    }

    /// Returns the in-degrees of a node, by relation.
    fn in_degrees(&self, node: &Node) -> String {
        let relations = self.meta.relations.iter().zip(&self.feature.edges);
        let own = relations.filter(|(_, edges)| edges.to == node.node_type);
        let degrees = own.map(|(relation, edges)| match relation.name.as_str() {
            "" => edges.in_degree[node.at].to_string(),
            name => format!("{name} {}", edges.in_degree[node.at]),
        });
        let degrees: Vec<String> = degrees.collect();
        match degrees.is_empty() {
            true => "0".to_owned(),
            false => degrees.join(", "),
        }
    }

    /// Returns the relation and the weight of an edge, each where there is one.
    fn edge_words(&self, edge: &Edge) -> Vec<String> {
        let edges = &self.feature.edges[edge.relation];
        let weight = edges.edge_weight.as_ref().map(|all| all[edge.at]);
        let name = Some(self.meta.relations[edge.relation].name.clone());
        let name = name.filter(|name| !name.is_empty());
        let weight = weight.map(|weight| weight.to_string());
        name.into_iter().chain(weight).collect()
    }

    /// Names the target with its label, or the pair, or the random negative.
    fn title(&self) -> String {
        let feature = self.feature;
        let (Some(pairs), Some(meta)) = (&feature.pairs, &self.meta.pairs) else {
            let label = label(&feature.labels, 0, self.class_names).replace(" ->", ", label");
            let name = self.name(feature.target_type, 0);
            return format!("target {name}{}{label}", split(feature.split));
        };
        let name = |of_type: usize, rows: &[Row]| self.name(of_type, rows[0].index());
        match pairs.len() {
            0 => format!("random negative {}", name(meta.to, &pairs.random)),
            _ => {
                let (src, dst) = (name(meta.from, &pairs.src), name(meta.to, &pairs.dst));
                format!("pair {src} -> {dst}{}", split(pairs.split[0]))
            }
        }
    }

    /// Describes the neighbourhood as text.
    pub(super) fn text(&self) -> String {
        let feature = self.feature;
        let nodes = self.nodes();
        let mut text = format!(
            "{}: {} nodes, {} edges\n",
            self.title(),
            nodes.len(),
            feature.num_edges()
        );
        for node in nodes.iter().take(EDGES_SHOWN) {
            text.push_str(&format!(
                "  hop {} {} in-degree {}{}\n",
                node.hop,
                self.name(node.node_type, node.at),
                self.in_degrees(node),
                features(&feature.nodes[node.node_type].features, node.at)
            ));
        }
        more(&mut text, nodes.len(), EDGES_SHOWN, "nodes");
        for edge in self.edges().take(EDGES_SHOWN) {
            let of = &feature.edges[edge.relation];
            let words = self.edge_words(&edge);
            let weight = of.edge_weight.is_some();
            let words = match words.split_last() {
                Some((last, names)) if weight => {
                    format!("{} weight {last}", relation_words(names))
                }
                _ => relation_words(&words),
            };
            let (src, dst) = (self.name(of.from, edge.src), self.name(of.to, edge.dst));
            text.push_str(&format!("  {src} -> {dst}{words}\n"));
        }
        more(&mut text, feature.num_edges(), EDGES_SHOWN, "edges");
        text
    }

    /// Returns the neighbourhood as a graph in Graphviz's language DOT.
    pub(super) fn dot(&self) -> String {
        let feature = self.feature;
        let quote_id = |node_type: usize, at| quoted(&feature.nodes[node_type].node_id, at);
        let nodes = self.nodes();
        let root = nodes.first().expect("a neighbourhood has a target");
        let of_root = quote_id(root.node_type, root.at);
        let mut text = format!("digraph {of_root} {{\n  rankdir = RL;\n");
        if self.meta.is_typed() {
            text.push_str(&format!("  node [colorscheme = set3{COLORS}];\n"));
        }
        let numbers = self.numbers(&nodes);
        for (number, node) in nodes.iter().enumerate() {
            let shape = if node.hop == 0 { ", shape = box" } else { "" };
            let of_type = match self.meta.types[node.node_type].name.as_str() {
                "" => String::new(),
                name => format!(
                    ", type = \"{name}\", tooltip = \"{name}\", style = filled, fillcolor = {}",
                    node.node_type % COLORS + 1
                ),
            };
            text.push_str(&format!(
                "  n{number} [label = {}{of_type}, hop = {}{shape}];\n",
                quote_id(node.node_type, node.at),
                node.hop
            ));
        }
        for edge in self.edges() {
            let of = &feature.edges[edge.relation];
            let (src, dst) = (numbers[of.from][edge.src], numbers[of.to][edge.dst]);
            let words = self.edge_words(&edge);
            let words = match words.is_empty() {
                true => String::new(),
                false => format!(" [label = \"{}\"]", words.join(" ")),
            };
            text.push_str(&format!("  n{src} -> n{dst}{words};\n"));
        }
        text.push_str("}\n");
        text
    }
}

/// Says which relation an edge is of; nothing if relations have no names.
fn relation_words(names: &[String]) -> String {
    names.iter().map(|name| format!(" by {name}")).collect()
}

fn split(split: Split) -> String {
    match split {
        Split::None => String::new(),
        split => format!(", split {}", split.as_str()),
    }
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

fn quoted(ids: &Ids, at: usize) -> String {
    format!(
        "\"{}\"",
        ids.display(at).replace('\\', "\\\\").replace('"', "\\\"")
    )
}
