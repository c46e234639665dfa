//! Tables of the same files, which are read together in one pass.

use std::sync::Arc;

use super::nodes::{DescribedColumns, KeyReader};
use super::table::{ReadBatch, Table, TableFiles};
use super::{EdgeRows, EdgesPlan, GraphPlan, NodeKeys, NodeReader, NodesPlan, Unit};
use crate::error::Result;

/// Node tables of the same files: the types whose nodes are read in one pass.
#[derive(Clone, Debug)]
pub struct NodeSource {
    /// Each type with its table.
    types: Vec<(usize, Arc<NodesPlan>)>,
}

/// Edge tables of the same files: the relations whose edges are read in one pass.
#[derive(Clone, Debug)]
pub struct EdgeSource {
    tables: Vec<Arc<EdgesPlan>>,
    /// Each relation with the position of its table.
    relations: Vec<(usize, usize)>,
}

impl GraphPlan {
    /// Groups the types by the files of their tables.
    pub fn node_sources(&self) -> Vec<NodeSource> {
        let mut sources: Vec<NodeSource> = Vec::new();
        for (idx, of_type) in self.types.iter().enumerate() {
            let member = (idx, Arc::clone(&of_type.nodes));
            let files = of_type.nodes.table().files();
            match sources.iter_mut().find(|s| Arc::ptr_eq(s.files(), files)) {
                Some(source) => source.types.push(member),
                None => sources.push(NodeSource {
                    types: vec![member],
                }),
            }
        }
        sources
    }

    /// Groups the relations by the files of their tables.
    pub fn edge_sources(&self) -> Vec<EdgeSource> {
        let mut sources: Vec<EdgeSource> = Vec::new();
        for (idx, relation) in self.relations.iter().enumerate() {
            let table = &relation.edges;
            let files = table.table().files();
            let known = sources
                .iter_mut()
                .position(|s| Arc::ptr_eq(s.files(), files));
            let source = known.unwrap_or_else(|| {
                sources.push(EdgeSource {
                    tables: Vec::new(),
                    relations: Vec::new(),
                });
                sources.len() - 1
            });
            sources[source].add(idx, table);
        }
        sources
    }
}

impl NodeSource {
    fn files(&self) -> &Arc<TableFiles> {
        self.types[0].1.table().files()
    }

    /// Returns the types, ascending, each with its table.
    pub fn types(&self) -> &[(usize, Arc<NodesPlan>)] {
        &self.types
    }

    /// Returns the row groups of all files, in order.
    pub fn units(&self) -> &[Unit] {
        self.files().units()
    }

    /// Reads ids, classes and categories of a unit, for each type.
    ///
    /// # Errors
    ///
    /// As [`NodesPlan::read_keys`].
    pub fn read_keys(&self, unit: &Unit) -> Result<Vec<NodeKeys>> {
        if let [(_, plan)] = self.types.as_slice() {
            return Ok(vec![plan.read_keys(unit)?]);
        }
        let columns = self.columns(NodesPlan::key_columns);
        let readers = self
            .types
            .iter()
            .map(|(_, plan)| KeyReader::new(plan, unit));
        let mut readers: Vec<KeyReader<'_>> = readers.collect();
        for item in self.files().batches(unit, &columns, 1)? {
            let read = item?;
            for ((_, plan), reader) in self.types.iter().zip(&mut readers) {
                reader.take(&plan.table().filter().apply(&read)?)?;
            }
        }
        Ok(readers.into_iter().map(KeyReader::finish).collect())
    }

    /// Opens a unit to read all columns of each type, some rows at a time; `described` has one entry
    /// for each.
    ///
    /// # Errors
    ///
    /// If a file cannot be opened.
    pub fn reader<'a>(
        &'a self,
        unit: &Unit,
        described: &[DescribedColumns<'a>],
    ) -> Result<NodeReader<'a>> {
        if let [(_, plan)] = self.types.as_slice() {
            return plan.reader(unit, described[0]);
        }
        let columns = self.columns(NodesPlan::columns);
        let widths = self.types.iter().map(|(_, plan)| plan.width());
        let batches = self
            .files()
            .batches(unit, &columns, widths.max().unwrap_or(1))?;
        let plans = self.types.iter().map(|(_, plan)| &**plan);
        Ok(NodeReader::new(
            plans.zip(described.iter().copied()),
            batches,
        ))
    }

    fn columns<'a>(&'a self, of: impl Fn(&'a NodesPlan) -> Vec<&'a str>) -> Vec<&'a str> {
        let plans = self.types.iter().map(|(_, plan)| &**plan);
        let columns = plans.map(|plan| [of(plan), filter_columns(plan.table())].concat());
        columns.collect::<Vec<_>>().concat()
    }
}

impl EdgeSource {
    fn files(&self) -> &Arc<TableFiles> {
        self.tables[0].table().files()
    }

    fn add(&mut self, relation: usize, table: &Arc<EdgesPlan>) {
        let known = self
            .tables
            .iter()
            .position(|known| Arc::ptr_eq(known, table));
        let at = known.unwrap_or_else(|| {
            self.tables.push(Arc::clone(table));
            self.tables.len() - 1
        });
        self.relations.push((relation, at));
    }

    /// Returns the tables. A relation and its reverse have one table.
    pub fn tables(&self) -> &[Arc<EdgesPlan>] {
        &self.tables
    }

    /// Returns the relations, ascending, each with the position of its table.
    pub fn relations(&self) -> &[(usize, usize)] {
        &self.relations
    }

    /// Returns the row groups of all files, in order.
    pub fn units(&self) -> &[Unit] {
        self.files().units()
    }

    /// Reads all columns of a unit, some rows at a time; an item has the rows of each table.
    ///
    /// # Errors
    ///
    /// As [`EdgesPlan::batches`].
    pub fn batches<'a>(
        &'a self,
        unit: &Unit,
    ) -> Result<impl Iterator<Item = Result<Vec<EdgeRows>>> + use<'a>> {
        let widths = self.tables.iter().map(|table| table.width());
        let columns = self.columns(EdgesPlan::columns);
        self.read(unit, &columns, widths.max().unwrap_or(1), EdgesPlan::rows)
    }

    /// Reads the ends of a unit's edges, some rows at a time, without their other columns; an item
    /// has the rows of each table.
    ///
    /// # Errors
    ///
    /// As [`EdgesPlan::batches`].
    pub fn end_batches<'a>(
        &'a self,
        unit: &Unit,
    ) -> Result<impl Iterator<Item = Result<Vec<EdgeRows>>> + use<'a>> {
        let columns = self.columns(|table| table.end_columns().to_vec());
        self.read(unit, &columns, 1, EdgesPlan::ends)
    }

    /// Returns columns of every table, and those of its `where`.
    fn columns(&self, of: fn(&EdgesPlan) -> Vec<&str>) -> Vec<&str> {
        let tables = self.tables.iter().map(|table| &**table);
        let columns = tables.map(|table| [of(table), filter_columns(table.table())].concat());
        columns.collect::<Vec<_>>().concat()
    }

    fn read<'a>(
        &'a self,
        unit: &Unit,
        columns: &[&str],
        width: usize,
        take: fn(&EdgesPlan, &ReadBatch<'_>) -> Result<EdgeRows>,
    ) -> Result<impl Iterator<Item = Result<Vec<EdgeRows>>> + use<'a>> {
        let batches = self.files().batches(unit, columns, width)?;
        Ok(batches.map(move |item| {
            let read = item?;
            let rows = self.tables.iter().map(|table| {
                let filter = table.table().filter();
                match filter.is_all() {
                    true => take(table, &read),
                    false => take(table, &filter.apply(&read)?),
                }
            });
            rows.collect()
        }))
    }
}

fn filter_columns(table: &Table) -> Vec<&str> {
    table.filter().columns().collect()
}
