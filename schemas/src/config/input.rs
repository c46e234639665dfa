//! The table `[input]` of a job as written: node tables by type and edge tables by relation.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ChangesSpec, EdgesSpec, GraphsSpec, NodesSpec, PairsSpec, TablePath};
use crate::error::SchemaError;
use crate::input::closest;

/// Greatest length of the name of a type or a relation in bytes: names become names of directories
/// and columns.
const NAME_BYTES_MAX: usize = 64;

/// `[input]` as written: `[input.nodes.TYPE]` and `[input.edges.RELATION]`.
///
/// An untyped job has one node table and one edge table, `[input.nodes]` and `[input.edges]`; here
/// both have the empty name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    /// The node table of each type.
    pub nodes: BTreeMap<String, NodesSpec>,
    /// The edge table of each relation.
    pub edges: BTreeMap<String, EdgesSpec>,
    /// The supervision of links; its presence makes the task one of links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<PairsSpec>,
    /// The graphs that are targets, where nodes are of many graphs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graphs: Option<GraphsSpec>,
    /// What has changed since the parent of a version, night by night.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<ChangesSpec>,
    /// The whole tables of a version, which are compared with its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<ChangesSpec>,
}

impl InputSpec {
    /// Makes the input of an untyped job.
    pub fn untyped(nodes: NodesSpec, edges: EdgesSpec) -> Self {
        Self {
            nodes: BTreeMap::from([(String::new(), nodes)]),
            edges: BTreeMap::from([(String::new(), edges)]),
            ..Self::default()
        }
    }

    /// Tells whether nodes have types.
    pub fn is_typed(&self) -> bool {
        !self.nodes.contains_key("")
    }

    /// Returns the paths of all tables, each with its key.
    pub fn paths(&self) -> impl Iterator<Item = (String, &TablePath)> {
        let key = |kind: &str, name: &str| match name {
            "" => format!("input.{kind}.path"),
            _ => format!("input.{kind}.{name}.path"),
        };
        let nodes = self.nodes.iter();
        let nodes = nodes.map(move |(name, spec)| (key("nodes", name), &spec.path));
        let edges = self.edges.iter();
        let pairs = self.pairs.iter().filter_map(|pairs| pairs.path.as_ref());
        let pairs = pairs.map(|path| ("input.pairs.path".to_owned(), path));
        let edges = edges.map(move |(name, spec)| (key("edges", name), &spec.path));
        let graphs = self.graphs.iter();
        let graphs = graphs.map(|graphs| ("input.graphs.path".to_owned(), &graphs.path));
        let changes = self.changes.iter();
        let changes = changes.flat_map(|night| night.paths("input.changes"));
        let snapshot = self.snapshot.iter();
        let snapshot = snapshot.flat_map(|tables| tables.paths("input.snapshot"));
        let tables = nodes.chain(edges).chain(pairs).chain(graphs);
        tables.chain(changes).chain(snapshot)
    }

    /// Sets the seed of splits that are drawn by shares, unless the job file sets one.
    pub fn set_split_seed(&mut self, seed: u64) {
        self.nodes
            .values_mut()
            .for_each(|nodes| nodes.set_split_seed(seed));
        if let Some(pairs) = &mut self.pairs {
            pairs.set_split_seed(seed);
        }
        if let Some(graphs) = &mut self.graphs {
            graphs.set_split_seed(seed);
        }
    }

    /// Returns an error for each wrong name, type, relation, `from`, `to` and `reverse`. Opens no
    /// file.
    pub fn mistakes(&self) -> Vec<SchemaError> {
        for (key, is_empty) in [
            ("input.nodes", self.nodes.is_empty()),
            ("input.edges", self.edges.is_empty()),
        ] {
            if is_empty {
                return vec![wrong(key, "has no table")];
            }
        }
        let mut found = Vec::new();
        if self.is_typed() {
            self.check_names(&mut found);
            self.check_different(&mut found);
        }
        if self.is_typed() == self.edges.contains_key("") {
            found.push(self.mixed());
        } else {
            for (name, edges) in &self.edges {
                match self.is_typed() {
                    true => self.check_ends(name, edges, &mut found),
                    false => check_untyped(edges, &mut found),
                }
            }
            if let Some(pairs) = &self.pairs {
                pairs.check(self, &mut found);
            }
            self.check_graphs(&mut found);
        }
        found
    }

    /// The error for types without relations, or relations without types.
    fn mixed(&self) -> SchemaError {
        let (key, problem) = match self.is_typed() {
            true => (
                "input.edges",
                "is one table without a name, but the nodes have types; name each relation, as in \
                 [input.edges.RELATION]",
            ),
            false => (
                "input.nodes",
                "is one table without a type, but the edges have relations; name each type, as in \
                 [input.nodes.TYPE]",
            ),
        };
        wrong(key, problem)
    }

    fn check_names(&self, found: &mut Vec<SchemaError>) {
        let types = self.nodes.keys().map(|name| ("nodes", "a node type", name));
        let relations = self.edges.keys().filter(|name| !name.is_empty());
        let relations = relations.map(|name| ("edges", "a relation", name));
        for (table, what, name) in types.chain(relations).filter(|(.., name)| !is_name(name)) {
            let problem = format!("cannot be the name of {what}; {NAMES}");
            found.push(wrong(&format!("input.{table}.{name}"), problem));
        }
        let mut taken: BTreeSet<&str> = self.edges.keys().map(String::as_str).collect();
        for (name, edges) in &self.edges {
            let Some(reverse) = &edges.reverse else {
                continue;
            };
            let key = format!("input.edges.{name}.reverse");
            if !is_name(reverse) {
                let problem = format!("is {reverse:?}, which cannot be a name; {NAMES}");
                found.push(wrong(&key, problem));
            } else if !taken.insert(reverse) {
                let problem = format!(
                    "is {reverse:?}, which is the name of another relation; each has its own"
                );
                found.push(wrong(&key, problem));
            }
        }
    }

    /// Refuses two relations with the same edges: each edge would count twice.
    fn check_different(&self, found: &mut Vec<SchemaError>) {
        let relations: Vec<(&String, EdgesSpec)> = self
            .edges
            .iter()
            .map(|(name, edges)| {
                let edges = EdgesSpec {
                    reverse: None,
                    ..edges.clone()
                };
                (name, edges)
            })
            .collect();
        for (at, (name, edges)) in relations.iter().enumerate() {
            let first = relations[..at].iter().find(|(_, other)| other == edges);
            if let Some((other, _)) = first {
                let problem = format!(
                    "has the same edges as [input.edges.{other}]: path, `where`, ends and all other \
                     keys are equal; leave one of them out"
                );
                found.push(wrong(&format!("input.edges.{name}"), problem));
            }
        }
    }

    /// Checks the types that a relation connects.
    fn check_ends(&self, name: &str, edges: &EdgesSpec, found: &mut Vec<SchemaError>) {
        let table = format!("input.edges.{name}");
        let types: Vec<&str> = self.nodes.keys().map(String::as_str).collect();
        let allowed = types.join(", ");
        for (key, what, end) in [
            ("from", "sources", &edges.from),
            ("to", "destinations", &edges.to),
        ] {
            match end {
                None => {
                    let problem = format!("lacks `{key}`, the type of its {what}: {allowed}");
                    found.push(wrong(&table, problem));
                }
                Some(written) if !self.nodes.contains_key(written) => {
                    let meant = closest(written, &types);
                    let meant = meant.map(|nearest| format!("did you mean {nearest}? "));
                    let problem = format!(
                        "is {written:?}, which is no node type; {}allowed are {allowed}",
                        meant.unwrap_or_default()
                    );
                    found.push(wrong(&format!("{table}.{key}"), problem));
                }
                Some(_) => {}
            }
        }
        let (Some(from), Some(to)) = (&edges.from, &edges.to) else {
            return;
        };
        let undirected = format!("{table}.undirected");
        if edges.undirected && from != to {
            let problem = format!(
                "is true, but the edges lead from {from} to {to}; `reverse = \"NAME\"` adds their \
                 reverses as a relation"
            );
            found.push(wrong(&undirected, problem));
        } else if edges.undirected && edges.reverse.is_some() {
            let problem = "adds the reverse of every edge to the relation itself, and `reverse` to \
                           another one; leave one of them out";
            found.push(wrong(&undirected, problem));
        }
    }
}

/// Which names are allowed.
const NAMES: &str =
    "allowed are up to 64 letters, digits, `_` and `-`, and first a letter or digit";

/// Tells whether a type or relation may have a name.
fn is_name(name: &str) -> bool {
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
    let first = name.bytes().next();
    name.len() <= NAME_BYTES_MAX
        && first.is_some_and(|c| c.is_ascii_alphanumeric())
        && name.bytes().all(is_plain)
}

/// Refuses the keys that only relations have.
fn check_untyped(edges: &EdgesSpec, found: &mut Vec<SchemaError>) {
    for (key, written) in [("from", &edges.from), ("to", &edges.to)] {
        if written.is_some() {
            let problem = "is for edges between node types, as in [input.nodes.TYPE] and \
                           [input.edges.RELATION]; leave it out";
            found.push(wrong(&format!("input.edges.{key}"), problem));
        }
    }
    if edges.reverse.is_some() {
        let problem = "is for relations, as in [input.edges.RELATION]; `undirected = true` adds the \
                       reverse of every edge";
        found.push(wrong("input.edges.reverse", problem));
    }
}

fn wrong(key: &str, problem: impl Into<String>) -> SchemaError {
    SchemaError::Key {
        key: key.to_owned(),
        problem: problem.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Checks the mistakes of `nodes` and `edges`, one a line.
    #[track_caller]
    fn check(nodes: &[&str], edges: serde_json::Value, expected: &str) {
        let table = json!({ "path": "n", "id": "id" });
        let nodes: BTreeMap<&str, _> = nodes.iter().map(|name| (*name, &table)).collect();
        let mut input = json!({ "nodes": nodes, "edges": edges });
        for of_relation in input["edges"].as_object_mut().unwrap().values_mut() {
            for (key, value) in [("path", "e"), ("src", "s"), ("dst", "d")] {
                of_relation[key] = value.into();
            }
        }
        let input: InputSpec = serde_json::from_value(input).unwrap();
        let lines: Vec<String> = input.mistakes().iter().map(ToString::to_string).collect();
        assert_eq!(lines.join("\n"), expected);
    }

    #[test]
    fn a_good_graph_has_no_mistake() {
        check(&[""], json!({ "": { "undirected": true } }), "");
        let edges = json!({
            "writes": { "from": "author", "to": "paper", "reverse": "written-by" },
            "cites": { "from": "paper", "to": "paper", "undirected": true },
            "0_shares": { "from": "paper", "to": "paper", "reverse": "1" },
        });
        check(&["author", "paper", "lonely"], edges, "");
    }

    #[test]
    fn no_two_relations_have_the_same_edges() {
        let edges = json!({
            "a": { "from": "x", "to": "y", "reverse": "a2" },
            "b": { "from": "x", "to": "y" },
            "c": { "from": "x", "to": "y", "weight": "w" },
            "d": { "from": "x", "to": "y", "where": { "kind": "d" } },
            "e": { "from": "x", "to": "y", "where": { "kind": "e" } },
        });
        check(
            &["x", "y"],
            edges,
            "`input.edges.b`: has the same edges as [input.edges.a]: path, `where`, ends and all \
             other keys are equal; leave one of them out",
        );
    }

    #[test]
    fn types_and_relations_come_together() {
        check(
            &["a"],
            json!({ "": {} }),
            "`input.edges`: is one table without a name, but the nodes have types; name each \
             relation, as in [input.edges.RELATION]",
        );
        check(
            &[""],
            json!({ "r": { "from": "a", "to": "a" } }),
            "`input.nodes`: is one table without a type, but the edges have relations; name each \
             type, as in [input.nodes.TYPE]",
        );
        let only = "is for edges between node types, as in [input.nodes.TYPE] and \
                    [input.edges.RELATION]; leave it out";
        check(
            &[""],
            json!({ "": { "from": "a", "to": "a", "reverse": "b" } }),
            &format!(
                "`input.edges.from`: {only}\n`input.edges.to`: {only}\n\
                 `input.edges.reverse`: is for relations, as in [input.edges.RELATION]; \
                 `undirected = true` adds the reverse of every edge"
            ),
        );
    }

    #[test]
    fn names_become_directories_and_columns() {
        let names =
            "allowed are up to 64 letters, digits, `_` and `-`, and first a letter or digit";
        let long = "x".repeat(65);
        for name in ["a b", "_a", "-", "a.b", "é", "a/b", &long] {
            check(
                &[name],
                json!({ name: { "from": name, "to": name, "reverse": name } }),
                &format!(
                    "`input.nodes.{name}`: cannot be the name of a node type; {names}\n\
                     `input.edges.{name}`: cannot be the name of a relation; {names}\n\
                     `input.edges.{name}.reverse`: is {name:?}, which cannot be a name; {names}"
                ),
            );
        }
    }

    #[test]
    fn every_relation_has_a_name_of_its_own() {
        let another = "which is the name of another relation; each has its own";
        let edges = json!({
            "r": { "from": "a", "to": "a", "reverse": "s", "weight": "r" },
            "s": { "from": "a", "to": "a", "reverse": "t", "weight": "s" },
            "u": { "from": "a", "to": "a", "reverse": "t", "weight": "u" },
            "v": { "from": "a", "to": "a", "reverse": "v", "weight": "v" },
        });
        check(
            &["a"],
            edges,
            &format!(
                "`input.edges.r.reverse`: is \"s\", {another}\n\
                 `input.edges.u.reverse`: is \"t\", {another}\n\
                 `input.edges.v.reverse`: is \"v\", {another}"
            ),
        );
    }

    #[test]
    fn a_relation_connects_two_node_types() {
        let edges = json!({
            "a": { "from": "paper" },
            "b": { "from": "autor", "to": "x" },
            "c": { "from": "author", "to": "paper", "undirected": true },
            "d": { "from": "paper", "to": "paper", "undirected": true, "reverse": "e" },
        });
        check(
            &["author", "paper"],
            edges,
            "`input.edges.a`: lacks `to`, the type of its destinations: author, paper\n\
             `input.edges.b.from`: is \"autor\", which is no node type; did you mean author? \
             allowed are author, paper\n\
             `input.edges.b.to`: is \"x\", which is no node type; allowed are author, paper\n\
             `input.edges.c.undirected`: is true, but the edges lead from author to paper; \
             `reverse = \"NAME\"` adds their reverses as a relation\n\
             `input.edges.d.undirected`: adds the reverse of every edge to the relation itself, and \
             `reverse` to another one; leave one of them out",
        );
    }

    #[test]
    fn an_untyped_table_serialises_as_before() {
        let edges = json!({ "path": "e", "src": "s", "dst": "d", "undirected": false,
            "features": [], "dangling": "error" });
        let spec: EdgesSpec = serde_json::from_value(edges.clone()).unwrap();
        assert_eq!(serde_json::to_value(&spec).unwrap(), edges);
        let nodes = json!({ "path": "n", "id": "i", "features": ["x"] });
        let nodes_spec: NodesSpec = serde_json::from_value(nodes.clone()).unwrap();
        assert_eq!(serde_json::to_value(&nodes_spec).unwrap(), nodes);
    }
}
