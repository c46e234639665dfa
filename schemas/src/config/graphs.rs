//! The table `[input.graphs]` of a job as written: graphs as targets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    EdgesSpec, InputSpec, NodesSpec, NumericLabel, RowsWhere, SplitSpec, SplitValues, TablePath,
};
use crate::error::SchemaError;

/// Name of the node type of graphs.
pub const GRAPH: &str = "graph";

/// Name of the relation that leads from nodes to their graphs.
pub const IN_GRAPH: &str = "in_graph";

/// Names of the type and the relation of a job whose nodes and edges have none.
const UNNAMED: [&str; 2] = ["node", "edge"];

/// `[input.graphs]` as written: the graphs that a model is trained on.
///
/// Graphs become a node type, [`GRAPH`], and `[input.nodes] graph` becomes a relation, [`IN_GRAPH`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphsSpec {
    /// Parquet or CSV file, directory or glob, or several of these.
    pub path: TablePath,
    /// Column of the ids of graphs.
    pub id: String,
    /// Column of the labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Meaning of the numbers in the label column, as for nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_kind: Option<NumericLabel>,
    /// Upper bound of class numbers (exclusive), as for nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_classes: Option<u32>,
    /// Column of the splits, or shares to draw them by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitSpec>,
    /// The numbers of the splits, if the split column holds numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_values: Option<SplitValues>,
    /// The rows of the table that are graphs. Default: all.
    #[serde(rename = "where", default, skip_serializing_if = "RowsWhere::is_empty")]
    pub rows_where: RowsWhere,
}

/// The tables of nodes and edges by name, with graphs as a type and their nodes as a relation.
#[derive(Clone, Debug)]
pub(crate) struct NamedTables {
    pub(crate) nodes: BTreeMap<String, NodesSpec>,
    pub(crate) edges: BTreeMap<String, EdgesSpec>,
    /// The type of the nodes of graphs as written; empty if nodes have no types.
    pub(crate) written: String,
    /// The type of the nodes of graphs.
    pub(crate) of_nodes: String,
}

impl GraphsSpec {
    /// Sets the seed of shares, unless the job file sets one.
    pub(super) fn set_split_seed(&mut self, seed: u64) {
        if let Some(SplitSpec::Shares(shares)) = &mut self.split {
            shares.seed.get_or_insert(seed);
        }
    }

    /// Returns the table as the one of a node type.
    fn as_nodes(&self) -> NodesSpec {
        let of = self.clone();
        NodesSpec {
            path: of.path,
            id: of.id,
            label: of.label,
            label_kind: of.label_kind,
            num_classes: of.num_classes,
            split: of.split,
            split_values: of.split_values,
            rows_where: of.rows_where,
            ..NodesSpec::default()
        }
    }
}

impl InputSpec {
    /// Adds an error for each key that does not fit graphs as targets. Opens no file.
    pub(super) fn check_graphs(&self, found: &mut Vec<SchemaError>) {
        let nodes_key = |name: &str, key: &str| match name {
            "" => format!("input.nodes.{key}"),
            _ => format!("input.nodes.{name}.{key}"),
        };
        let mut wrong = |key: String, problem: &str| {
            let problem = problem.to_owned();
            found.push(SchemaError::Key { key, problem });
        };
        let mut of_graphs = self.nodes.iter().filter(|(_, nodes)| nodes.graph.is_some());
        if self.graphs.is_none() {
            for (name, _) in of_graphs {
                let problem = "needs [input.graphs], the table of the graphs";
                wrong(nodes_key(name, "graph"), problem);
            }
            return;
        }
        if of_graphs.next().is_none() {
            let problem = "needs `graph` in [input.nodes], the column with the graph of a node";
            wrong("input.graphs".to_owned(), problem);
        }
        for (name, _) in of_graphs {
            let problem = "is given for two node types; the readout is over the nodes of one";
            wrong(nodes_key(name, "graph"), problem);
        }
        if self.pairs.is_some() {
            let problem = "is for models of links; with [input.graphs] graphs are the targets";
            wrong("input.pairs".to_owned(), problem);
        }
        for (name, nodes) in &self.nodes {
            for (key, is_given) in [
                ("label", nodes.label.is_some()),
                ("split", nodes.split.is_some()),
            ] {
                if is_given {
                    let problem = "is for models of nodes; with [input.graphs] graphs have labels \
                                   and splits; leave it out";
                    wrong(nodes_key(name, key), problem);
                }
            }
        }
        let reverses = self.edges.values().filter_map(|of| of.reverse.as_deref());
        let mut relations = self.edges.keys().map(String::as_str).chain(reverses);
        if self.nodes.contains_key(GRAPH) {
            let problem =
                "cannot be the name of a node type beside [input.graphs], whose type it is";
            wrong(format!("input.nodes.{GRAPH}"), problem);
        }
        if relations.any(|name| name == IN_GRAPH) {
            let problem = "cannot be the name of a relation beside [input.graphs], which adds it";
            wrong(format!("input.edges.{IN_GRAPH}"), problem);
        }
    }

    /// Returns the tables with graphs as a type; none without graphs. The tables were checked.
    pub(crate) fn named_tables(&self) -> Option<NamedTables> {
        let graphs = self.graphs.as_ref()?;
        let (written, table) = self.nodes.iter().find(|(_, of)| of.graph.is_some())?;
        let [node, edge] = UNNAMED;
        let of_nodes = match written.as_str() {
            "" => node,
            name => name,
        };
        let in_graph = EdgesSpec {
            path: table.path.clone(),
            from: Some(of_nodes.to_owned()),
            to: Some(GRAPH.to_owned()),
            src: table.id.clone(),
            dst: table.graph.clone()?,
            rows_where: table.rows_where.clone(),
            ..EdgesSpec::default()
        };
        let nodes = self.nodes.iter().map(|(name, of)| match name.as_str() {
            "" => (node.to_owned(), of.clone()),
            _ => (name.clone(), of.clone()),
        });
        let edges = self.edges.iter().map(|(name, of)| match name.as_str() {
            "" => {
                let ends = Some(node.to_owned());
                let of = EdgesSpec {
                    from: ends.clone(),
                    to: ends,
                    ..of.clone()
                };
                (edge.to_owned(), of)
            }
            _ => (name.clone(), of.clone()),
        });
        let (mut nodes, mut edges): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (nodes.collect(), edges.collect());
        nodes.insert(GRAPH.to_owned(), graphs.as_nodes());
        edges.insert(IN_GRAPH.to_owned(), in_graph);
        Some(NamedTables {
            nodes,
            edges,
            written: written.clone(),
            of_nodes: of_nodes.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Checks the mistakes of an untyped input with these keys, one a line.
    #[track_caller]
    fn check(change: impl FnOnce(&mut Value), expected: &str) {
        let mut input = json!({
            "nodes": { "": { "path": "n", "id": "id", "graph": "mol" } },
            "edges": { "": { "path": "e", "src": "s", "dst": "d" } },
            "graphs": { "path": "g", "id": "id", "label": "y", "split": "split" },
        });
        change(&mut input);
        let input: InputSpec = serde_json::from_value(input).unwrap();
        let lines: Vec<String> = input.mistakes().iter().map(ToString::to_string).collect();
        assert_eq!(lines.join("\n"), expected);
    }

    #[test]
    fn graphs_and_the_graphs_of_nodes_come_together() {
        check(|_| {}, "");
        check(
            |input| drop(input.as_object_mut().unwrap().remove("graphs")),
            "`input.nodes.graph`: needs [input.graphs], the table of the graphs",
        );
        check(
            |input| input["nodes"][""]["graph"] = Value::Null,
            "`input.graphs`: needs `graph` in [input.nodes], the column with the graph of a node",
        );
        check(
            |input| input["nodes"][""]["label"] = "y".into(),
            "`input.nodes.label`: is for models of nodes; with [input.graphs] graphs have labels \
             and splits; leave it out",
        );
        let share = json!({ "from_edges": true, "share": { "train": 1.0 } });
        check(
            |input| input["pairs"] = share,
            "`input.pairs`: is for models of links; with [input.graphs] graphs are the targets",
        );
    }

    #[test]
    fn one_type_has_graphs_and_its_names_are_free() {
        let typed = |input: &mut Value| {
            let atom = input["nodes"][""].take();
            let mut bond = input["edges"][""].take();
            (bond["from"], bond["to"]) = ("atom".into(), "atom".into());
            input["nodes"] = json!({ "atom": atom });
            input["edges"] = json!({ "bond": bond });
        };
        check(typed, "");
        check(
            |input| {
                typed(input);
                input["nodes"]["ring"] = input["nodes"]["atom"].clone();
            },
            "`input.nodes.ring.graph`: is given for two node types; the readout is over the nodes \
             of one",
        );
        check(
            |input| {
                typed(input);
                input["nodes"]["graph"] = json!({ "path": "x", "id": "id" });
                input["edges"]["bond"]["reverse"] = "in_graph".into();
            },
            "`input.nodes.graph`: cannot be the name of a node type beside [input.graphs], whose \
             type it is\n`input.edges.in_graph`: cannot be the name of a relation beside \
             [input.graphs], which adds it",
        );
    }

    #[test]
    fn graphs_become_a_type_and_a_relation() {
        let input = json!({
            "nodes": { "": { "path": "n", "id": "id", "graph": "mol" } },
            "edges": { "": { "path": "e", "src": "s", "dst": "d" } },
            "graphs": { "path": "g", "id": "key", "label": "y" },
        });
        let input: InputSpec = serde_json::from_value(input).unwrap();
        let named = input.named_tables().unwrap();
        let types: Vec<(&str, &str)> = named.nodes.iter().map(|(n, of)| (&**n, &*of.id)).collect();
        assert_eq!(types, [("graph", "key"), ("node", "id")]);
        let ends = |of: &EdgesSpec| [of.src.clone(), of.dst.clone()].concat();
        let relations: Vec<(&str, String)> =
            named.edges.iter().map(|(n, of)| (&**n, ends(of))).collect();
        let expected = [("edge", "sd"), ("in_graph", "idmol")];
        assert_eq!(relations, expected.map(|(n, of)| (n, of.to_owned())));
    }
}
