//! The errors of tables of nodes, edges and graphs that contradict each other.

use super::{EdgesPlan, NodesPlan};
use crate::error::SchemaError;

impl EdgesPlan {
    /// Returns the error for a row of the table of nodes whose graph is not in the table of graphs.
    pub fn unknown_graph(&self, row: u64, id: &str) -> SchemaError {
        let (path, row) = self.locate(row);
        SchemaError::Value {
            path,
            column: self.spec().dst.clone(),
            row,
            problem: format!("is {id}, which is no graph of [input.graphs]"),
        }
    }

    /// Returns the error for an edge whose ends, given by their ids, are nodes of two graphs.
    pub fn between_graphs(&self, row: u64, [src, dst]: [&str; 2]) -> SchemaError {
        let (path, row) = self.locate(row);
        SchemaError::Value {
            path,
            column: self.spec().src.clone(),
            row,
            problem: format!("the edge leads from {src} to {dst}, which are nodes of two graphs"),
        }
    }
}

impl NodesPlan {
    /// Returns the error for a row of the table of graphs that has no nodes.
    pub fn empty_graph(&self, row: u64, id: &str) -> SchemaError {
        let (path, row) = self.locate(row);
        SchemaError::Value {
            path,
            column: self.spec().id.clone(),
            row,
            problem: format!("is {id}, a graph without nodes"),
        }
    }
}
