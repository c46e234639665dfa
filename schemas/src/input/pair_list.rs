//! A table of pairs that are to be scored.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{EdgeRows, EdgesPlan, GraphPlan, OpenFiles, Table, TableName, Unit};
use crate::config::{EdgesSpec, TablePath};
use crate::error::{Result, SchemaError};

/// A table of pairs as written: its files, and the columns of both ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairListSpec {
    /// Parquet or CSV file, directory or glob, or several of these.
    pub path: TablePath,
    /// Column of the src ids.
    pub src: String,
    /// Column of the dst ids.
    pub dst: String,
}

/// A table of pairs, checked against the files' schemas.
#[derive(Clone, Debug)]
pub struct PairListPlan {
    ends: EdgesPlan,
}

impl PairListSpec {
    /// Checks files and columns; the ends are nodes of the types `from` and `to` of a graph.
    ///
    /// # Errors
    ///
    /// Names key, file or column, and the allowed values. All mistakes, at least one.
    pub fn plan(
        self,
        base: &Path,
        graph: &GraphPlan,
        [from, to]: [usize; 2],
    ) -> Result<PairListPlan, Vec<SchemaError>> {
        let name = |of: usize| Some(graph.types[of].name.clone()).filter(|_| graph.is_typed());
        let spec = EdgesSpec {
            path: self.path,
            from: name(from),
            to: name(to),
            src: self.src,
            dst: self.dst,
            ..EdgesSpec::default()
        };
        let ends = spec.plan_as(TableName::scored(), base, &mut OpenFiles::default())?;
        let mut ends = ends.with_ends(&graph.types[from].nodes, &graph.types[to].nodes)?;
        let text = ends.text_columns();
        Table::read_as_text(&mut [(ends.table_mut(), text)]);
        Ok(PairListPlan { ends })
    }
}

impl PairListPlan {
    /// Returns the row groups of all files, in order.
    pub fn units(&self) -> &[Unit] {
        self.ends.units()
    }

    /// Reads the pairs of a unit, some rows at a time.
    ///
    /// # Errors
    ///
    /// If a file cannot be opened. An item that is an error names file, column and row of the first
    /// id that no node can have.
    pub fn batches<'a>(
        &'a self,
        unit: &Unit,
    ) -> Result<impl Iterator<Item = Result<EdgeRows>> + use<'a>> {
        self.ends.end_batches(unit)
    }

    /// Returns the error for a row with an end whose embedding is missing.
    pub fn unknown(&self, row: u64, is_src: bool, id: &str) -> SchemaError {
        let (path, at) = self.ends.locate(row);
        let spec = self.ends.spec();
        let column = if is_src { &spec.src } else { &spec.dst };
        SchemaError::Value {
            path,
            column: column.clone(),
            row: at,
            problem: format!("is {id}, which has no embedding"),
        }
    }

    /// Returns a fingerprint of the files: their names, sizes and contents.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn fingerprint(&self) -> Result<String> {
        self.ends.fingerprint()
    }
}
