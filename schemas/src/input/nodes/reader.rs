//! Reads the rows of a node table unit by unit.

use std::collections::BTreeSet;

use arrow::array::{Array, AsArray};

use super::super::decode::column;
use super::super::dense::{self, Categories, Positions};
use super::super::id_column::append_ids;
use super::super::label::{self, LabelRole};
use super::super::table::ReadBatch;
use super::super::{Place, RowNumbers, Unit};
use super::{NodeKeys, NodeRows, NodesPlan};
use crate::columns::{ColumnMeta, LabelMeta};
use crate::error::Result;
use crate::ids::{Ids, NOWHERE};

/// The labels and the feature columns of a node table: [`NodesPlan::label_meta`] and
/// [`NodesPlan::column_meta`].
pub type DescribedColumns<'a> = (Option<&'a LabelMeta>, &'a [ColumnMeta]);

/// Reads the rows of a unit batch by batch.
pub struct NodeReader<'a> {
    /// The tables that take rows of the unit.
    tables: Vec<ReadTable<'a>>,
    batches: Box<dyn Iterator<Item = Result<ReadBatch<'a>>> + 'a>,
}

/// A table that takes rows of a unit.
struct ReadTable<'a> {
    plan: &'a NodesPlan,
    label: Option<&'a LabelMeta>,
    positions: Positions<'a>,
}

impl<'a> NodeReader<'a> {
    pub(in crate::input) fn new(
        tables: impl Iterator<Item = (&'a NodesPlan, DescribedColumns<'a>)>,
        batches: impl Iterator<Item = Result<ReadBatch<'a>>> + 'a,
    ) -> Self {
        let tables = tables.map(|(plan, (label, columns))| ReadTable {
            plan,
            label,
            positions: dense::positions(columns),
        });
        Self {
            tables: tables.collect(),
            batches: Box::new(batches),
        }
    }

    /// Appends the next rows: `num_rows` or a few more, fewer only at the unit's end.
    ///
    /// # Errors
    ///
    /// Names file, column and row of the first value that is not allowed.
    ///
    /// # Panics
    ///
    /// If several tables are read.
    pub fn read(&mut self, num_rows: usize, rows: &mut NodeRows) -> Result<()> {
        self.read_each(num_rows, std::slice::from_mut(rows))
    }

    /// Appends the next rows of each table: `num_rows` or a few more of all tables together, fewer
    /// only at the unit's end.
    ///
    /// # Errors
    ///
    /// Names file, column and row of the first value that is not allowed.
    ///
    /// # Panics
    ///
    /// If `rows` has not one entry for each table.
    pub fn read_each(&mut self, num_rows: usize, rows: &mut [NodeRows]) -> Result<()> {
        assert_eq!(rows.len(), self.tables.len(), "one entry for each table");
        let read_rows = |all: &[NodeRows]| all.iter().map(|of| of.ids.len()).sum::<usize>();
        let end = read_rows(rows) + num_rows;
        while read_rows(rows) < end
            && let Some(item) = self.batches.next()
        {
            let read = item?;
            for (table, of_table) in self.tables.iter().zip(rows.iter_mut()) {
                let (plan, described) = (table.plan, (table.label, &table.positions));
                if let [_] = self.tables.as_slice() {
                    plan.append_rows(&read, described, of_table)?;
                } else {
                    plan.append_rows(&plan.table.filter().apply(&read)?, described, of_table)?;
                }
            }
        }
        Ok(())
    }
}

/// Reads ids, classes and categories of the rows that a table takes from a unit.
pub(in crate::input) struct KeyReader<'a> {
    plan: &'a NodesPlan,
    ids: Ids,
    rows: RowNumbers,
    names: BTreeSet<String>,
    max_class: Option<u32>,
    categories: Categories,
}

impl<'a> KeyReader<'a> {
    pub(in crate::input) fn new(plan: &'a NodesPlan, unit: &Unit) -> Self {
        Self {
            plan,
            ids: Ids::with_capacity(plan.id_type, unit.num_rows_reserved()),
            rows: RowNumbers::default(),
            names: BTreeSet::new(),
            max_class: None,
            categories: Categories::default(),
        }
    }

    /// Appends the rows of a batch.
    pub(in crate::input) fn take(&mut self, read: &ReadBatch<'_>) -> Result<()> {
        let (plan, place, batch) = (self.plan, read.place(), &read.rows);
        let (ids, first) = (&mut self.ids, self.rows.len());
        append_ids(place, &plan.spec.id, batch, ids, None)?;
        let mut keys = ids.keys().unwrap_or_default().iter().skip(first);
        if let Some(row) = keys.position(|&key| key == NOWHERE) {
            let problem = format!("is {}, which is reserved", ids.display(first + row));
            return Err(place.value(&plan.spec.id, row, problem));
        }
        self.rows.extend(RowNumbers::of(read));
        if let Some(dense) = plan.features.dense() {
            dense.collect(place, batch, &mut self.categories)?;
        }
        match plan.classes() {
            Some((name, LabelRole::ClassName)) => {
                collect_names(place, name, column(batch, name), &mut self.names)?;
            }
            Some((name, _)) => {
                let limit = plan.spec.num_classes;
                let max = label::max_class(place, name, column(batch, name), limit)?;
                self.max_class = self.max_class.max(max);
            }
            None => {}
        }
        Ok(())
    }

    pub(in crate::input) fn finish(self) -> NodeKeys {
        NodeKeys {
            ids: self.ids,
            rows: self.rows,
            class_names: self.names.into_iter().collect(),
            max_class: self.max_class,
            categories: self.categories,
        }
    }
}

fn collect_names(
    place: Place<'_>,
    column: &str,
    array: &dyn Array,
    names: &mut BTreeSet<String>,
) -> Result<()> {
    let array = label::strings(place, column, array)?;
    for name in array.as_string::<i64>().iter().flatten() {
        if !names.contains(name) {
            names.insert(name.to_owned());
        }
    }
    Ok(())
}
