//! The columns of the input tables that make a graph.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::columns::FeatureColumn;
use crate::config::{ColumnKind, SparseSpec};
use crate::input::{EdgesPlan, GraphPlan, NodesPlan};

/// The columns that a graph was read from, in order, and the direction of its edges.
///
/// A model reads features by position. On a graph with other columns, another order or another
/// direction it would compute wrong numbers without an error. So this record is kept with a model,
/// and inference compares it with its graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphColumns {
    /// Columns of dense node features.
    pub features: Vec<FeatureColumn>,
    /// Columns of sparse node features, in place of `features`.
    pub sparse: Option<SparseSpec>,
    /// Column of the source ids.
    pub src: String,
    /// Column of the destination ids.
    pub dst: String,
    /// Whether the reverse of every edge was added.
    pub undirected: bool,
    /// Column of the edge weights.
    pub weight: Option<String>,
    /// Columns of edge features.
    pub edge_features: Vec<FeatureColumn>,
}

/// The columns that a graph with node types was read from, as [`GraphColumns`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypedColumns {
    /// By node type.
    pub types: BTreeMap<String, TypeColumns>,
    /// By relation.
    pub relations: BTreeMap<String, RelationColumns>,
}

/// The columns of a node type's features.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeColumns {
    /// Columns of dense features.
    pub features: Vec<FeatureColumn>,
    /// Columns of sparse features, in place of `features`.
    pub sparse: Option<SparseSpec>,
}

/// The columns of a relation's edges, and their direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelationColumns {
    /// Column of the source ids, in the table.
    pub src: String,
    /// Column of the destination ids, in the table.
    pub dst: String,
    /// Whether the relation is the `reverse` of the table's edges.
    pub reversed: bool,
    /// Whether the reverse of every edge was added to the relation.
    pub undirected: bool,
    /// Column of the edge weights.
    pub weight: Option<String>,
    /// Columns of edge features.
    pub features: Vec<FeatureColumn>,
}

impl TypedColumns {
    /// Lists the columns that the tables of a graph are read from.
    pub fn new(graph: &GraphPlan) -> Self {
        let types = graph.types.iter().map(|of| {
            let columns = TypeColumns {
                features: of.nodes.feature_columns(),
                sparse: of.nodes.spec().sparse.clone(),
            };
            (of.name.clone(), columns)
        });
        let relations = graph.relations.iter().map(|of| {
            let spec = of.edges.spec();
            let columns = RelationColumns {
                src: spec.src.clone(),
                dst: spec.dst.clone(),
                reversed: of.reversed,
                undirected: spec.undirected,
                weight: spec.weight.clone(),
                features: of.edges.feature_columns(),
            };
            (of.name.clone(), columns)
        });
        Self {
            types: types.collect(),
            relations: relations.collect(),
        }
    }

    /// Reads the columns from the entry `input` of a manifest; none if it does not name them.
    pub fn of_manifest(input: &Value) -> Option<Self> {
        Self::deserialize(&input["columns"]).ok()
    }
}

impl GraphColumns {
    /// Lists the columns that two tables are read from.
    pub fn new(nodes: &NodesPlan, edges: &EdgesPlan) -> Self {
        let spec = edges.spec();
        Self {
            features: nodes.feature_columns(),
            sparse: nodes.spec().sparse.clone(),
            src: spec.src.clone(),
            dst: spec.dst.clone(),
            undirected: spec.undirected,
            weight: spec.weight.clone(),
            edge_features: edges.feature_columns(),
        }
    }

    /// Returns the number of node features; none if a width is not known.
    pub fn num_features(&self) -> Option<usize> {
        match &self.sparse {
            Some(sparse) => usize::try_from(sparse.width).ok(),
            None => total(&self.features),
        }
    }

    /// Returns the number of features of an edge; none if a width is not known.
    pub fn num_edge_features(&self) -> Option<usize> {
        total(&self.edge_features)
    }

    /// Reads the columns from the entry `input` of a manifest; none if it does not name them.
    ///
    /// Manifests of older programs name columns without their widths.
    pub fn of_manifest(input: &Value) -> Option<Self> {
        if let Ok(columns) = Self::deserialize(&input["columns"]) {
            return Some(columns);
        }
        let (nodes, edges) = (&input["nodes"]["columns"], &input["edges"]["columns"]);
        let names = |table: &Value| -> Option<Vec<FeatureColumn>> {
            let columns = table["features"].as_array()?.iter();
            let column = |name: &Value| {
                let name = name.as_str()?.to_owned();
                Some(FeatureColumn {
                    name,
                    width: None,
                    kind: ColumnKind::Number,
                })
            };
            columns.map(column).collect()
        };
        Some(Self {
            features: names(nodes)?,
            sparse: Option::deserialize(&nodes["sparse"]).ok()?,
            src: edges["src"].as_str()?.to_owned(),
            dst: edges["dst"].as_str()?.to_owned(),
            undirected: edges["undirected"].as_bool()?,
            weight: edges["weight"].as_str().map(str::to_owned),
            edge_features: names(edges)?,
        })
    }
}

fn total(columns: &[FeatureColumn]) -> Option<usize> {
    columns.iter().map(|column| column.width).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn older_manifests_name_columns_without_widths() {
        let input = json!({
            "nodes": { "files": "x", "columns": {
                "path": "", "id": "id", "features": ["a", "b"], "label": "y",
            } },
            "edges": { "files": "y", "columns": {
                "path": "", "src": "from", "dst": "to", "undirected": true, "weight": "w",
                "features": [], "dangling": "error",
            } },
        });
        let column = |name: &str| FeatureColumn {
            name: name.to_owned(),
            width: None,
            kind: ColumnKind::Number,
        };
        let found = GraphColumns::of_manifest(&input).unwrap();
        let expected = GraphColumns {
            features: vec![column("a"), column("b")],
            sparse: None,
            src: "from".to_owned(),
            dst: "to".to_owned(),
            undirected: true,
            weight: Some("w".to_owned()),
            edge_features: Vec::new(),
        };
        assert_eq!(found, expected);
        let again = json!({ "columns": found });
        assert_eq!(GraphColumns::of_manifest(&again), Some(expected));
        assert_eq!(GraphColumns::of_manifest(&json!({})), None);
    }
}
