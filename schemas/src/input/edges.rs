//! The table of edges.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use arrow::array::Array;

use super::decode::{self, NumberColumns, Width, column};
use super::id_column::{Misfits, append_ids};
use super::table::ReadBatch;
use super::{NodesPlan, OpenFiles, Place, RowNumbers, Table, TableName, Unit, keep};
use crate::columns::FeatureColumn;
use crate::config::{Dangling, EdgesSpec};
use crate::error::{Result, RowPlace, SchemaError};
use crate::ids::{IdType, Ids};

/// The table of edges, checked against the files' schemas.
#[derive(Clone, Debug)]
pub struct EdgesPlan {
    spec: EdgesSpec,
    table: Table,
    src_type: IdType,
    dst_type: IdType,
    features: Option<NumberColumns>,
    non_negative: bool,
}

/// Some rows of a unit.
#[derive(Clone, Debug, PartialEq)]
pub struct EdgeRows {
    /// `[n]`.
    pub src: Ids,
    /// `[n]`.
    pub dst: Ids,
    /// `[n]`, where the table has weights and they were requested.
    pub weight: Option<Vec<f32>>,
    /// `[n * feature_dim]`, row-major, where the table has features and they were requested.
    pub feature: Option<Vec<f32>>,
    /// `[n]`, numbers of the rows over all files.
    pub rows: RowNumbers,
}

impl EdgesSpec {
    /// Checks the table's files, columns and types; reads footers, and the first row if the type of
    /// a list column does not give its width.
    ///
    /// # Errors
    ///
    /// Names the key, file or column, and the allowed values.
    pub fn into_plan(self, base: &Path) -> Result<EdgesPlan> {
        self.plan(base).map_err(|mut found| found.swap_remove(0))
    }

    /// Checks as [`EdgesSpec::into_plan`] does, and names every key and column that is wrong.
    ///
    /// # Errors
    ///
    /// One error for each mistake; at least one.
    pub fn plan(self, base: &Path) -> Result<EdgesPlan, Vec<SchemaError>> {
        let mut plan = self.plan_as(TableName::edges(""), base, &mut OpenFiles::default())?;
        let text = plan.text_columns();
        Table::read_as_text(&mut [(&mut plan.table, text)]);
        Ok(plan)
    }

    /// Checks the table of a relation; the files may be open already.
    ///
    /// The caller passes [`EdgesPlan::text_columns`] to [`Table::read_as_text`].
    pub(super) fn plan_as(
        self,
        name: TableName,
        base: &Path,
        files: &mut OpenFiles,
    ) -> Result<EdgesPlan, Vec<SchemaError>> {
        let table = Table::open(name, base, (&self.path, &BTreeMap::new()), files);
        let mut table = table.map_err(|error| vec![error])?;
        let mut found = Vec::new();
        found.extend(
            table
                .take_where(&self.rows_where)
                .err()
                .into_iter()
                .flatten(),
        );
        let src = keep(table.id_type("src", &self.src), &mut found);
        let dst = keep(table.id_type("dst", &self.dst), &mut found);
        let id_types = match src.zip(dst) {
            Some((src, dst)) => keep(self.id_types(src, dst, &table), &mut found),
            None => None,
        };
        if let Some(weight) = &self.weight {
            let scalar = |t: &_| Width::of(t).filter(|&width| width == Width::Scalar);
            let weights = table.column("weight", weight, "weights", "numbers", scalar);
            keep(weights, &mut found);
        }
        let features = keep(self.plan_features(&table), &mut found);
        match (id_types, features) {
            (Some((src_type, dst_type)), Some(features)) if found.is_empty() => Ok(EdgesPlan {
                spec: self,
                table,
                src_type,
                dst_type,
                features,
                non_negative: false,
            }),
            _ => Err(found),
        }
    }

    /// Returns the types of the sources' and the destinations' ids. Ends of one node type have one
    /// type of ids.
    fn id_types(&self, src: IdType, dst: IdType, table: &Table) -> Result<(IdType, IdType)> {
        if self.from != self.to {
            return Ok((src, dst));
        }
        if src.is_integer() != dst.is_integer() && !table.is_csv() {
            return Err(table.name().unusable(format!(
                "column `{}` has {src} and column `{}` has {dst}; both must be integers or both \
                 strings",
                self.src, self.dst
            )));
        }
        // The wider of two integer types holds both, except uint64 beside negative numbers; text
        // of CSV files holds everything.
        let id_type = src.max(dst);
        Ok((id_type, id_type))
    }

    /// Checks the feature columns, none of which may be an end.
    fn plan_features(&self, table: &Table) -> Result<Option<NumberColumns>> {
        let is_end = |name: &&String| **name == self.src || **name == self.dst;
        if let Some(name) = self.features.iter().find(is_end) {
            return Err(SchemaError::Key {
                key: table.key("features"),
                problem: format!(
                    "column `{name}` is an end of the edges, so it cannot be a feature"
                ),
            });
        }
        if self.features.is_empty() {
            return Ok(None);
        }
        NumberColumns::plan(table, "features", &self.features, "edge features").map(Some)
    }
}

impl EdgesPlan {
    /// Makes the plan read sources and destinations as ids of two node tables. Ends of CSV files may
    /// be of any type.
    ///
    /// # Errors
    ///
    /// For each end, if one of its types is a string type and the other an integer type.
    pub(super) fn with_ends(
        mut self,
        from: &NodesPlan,
        to: &NodesPlan,
    ) -> Result<Self, Vec<SchemaError>> {
        let ends = [
            (&self.spec.src, &mut self.src_type, from),
            (&self.spec.dst, &mut self.dst_type, to),
        ];
        let mut found = Vec::new();
        for (column, own, nodes) in ends {
            let wanted = nodes.id_type();
            if wanted.is_integer() != own.is_integer() && !self.table.is_csv() {
                let has = |of: IdType| {
                    if of.is_integer() {
                        "integers"
                    } else {
                        "strings"
                    }
                };
                found.push(self.table.name().unusable(format!(
                    "column `{column}` has {}, but column `{}` of `{}` has {}; both must be \
                     integers or both strings",
                    has(*own),
                    nodes.spec().id,
                    nodes.table_key(),
                    has(wanted)
                )));
            }
            if wanted.is_integer() && self.table.has_fractions(column) {
                found.push(self.table.name().unusable(format!(
                    "column `{column}` has numbers with a fraction (pandas writes integers so if \
                     some are missing), but column `{}` of `{}` has integers; write them as integers",
                    nodes.spec().id,
                    nodes.table_key()
                )));
            }
            *own = wanted;
        }
        match found.is_empty() {
            true => Ok(self),
            false => Err(found),
        }
    }

    /// Tells whether an end is a string in Parquet files: sources first, then destinations.
    pub(super) fn fixed_strings(&self) -> [bool; 2] {
        let is_fixed = !self.table.is_csv();
        [self.src_type, self.dst_type].map(|of| is_fixed && !of.is_integer())
    }

    /// Returns the columns of CSV files that must be read as text: of the ends and of `where`.
    pub(super) fn text_columns(&self) -> Vec<String> {
        let ends = [
            (&self.spec.src, self.src_type),
            (&self.spec.dst, self.dst_type),
        ];
        let text = ends
            .iter()
            .filter_map(|(of, id_type)| self.table.id_text(of, *id_type));
        let text = text.map(str::to_owned);
        text.chain(self.table.filter_text()).collect()
    }

    pub(super) fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    /// Makes a negative weight an error, as weighted sampling needs it.
    pub fn with_non_negative_weights(mut self) -> Self {
        self.non_negative = true;
        self
    }

    /// Returns the specification as written.
    pub fn spec(&self) -> &EdgesSpec {
        &self.spec
    }

    /// Returns the row groups of all files, in order.
    pub fn units(&self) -> &[Unit] {
        self.table.units()
    }

    /// Returns the number of rows of all files; with `where`, not all of them are edges.
    pub fn num_rows(&self) -> u64 {
        self.table.num_rows()
    }

    /// Returns how often rows were read from a unit of the files, for this table or another one of
    /// the same files.
    pub fn units_read(&self) -> u64 {
        self.table.units_read()
    }

    /// Returns the dotted name of the table in the job file.
    pub fn table_key(&self) -> String {
        self.table.name().table()
    }

    /// Tells whether the edges lead from nodes to their graphs.
    pub fn is_of_graphs(&self) -> bool {
        self.table.name().is_of_graphs()
    }

    /// Finds a row counted over all files: its file, and its place there.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn locate(&self, row: u64) -> (PathBuf, RowPlace) {
        self.table.locate(row)
    }

    /// Returns a fingerprint of the files: their names, sizes and contents.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn fingerprint(&self) -> Result<String> {
        self.table.fingerprint()
    }

    /// Tells whether files with equal fingerprints have equal contents, in whatever directory: not if
    /// a store tells versions of an object apart by time alone.
    pub fn is_known_by_content(&self) -> bool {
        self.table.is_known_by_content()
    }

    /// Refuses local files that have changed since they were opened; a store refuses to read others.
    ///
    /// # Errors
    ///
    /// Names the file.
    pub fn check_unchanged(&self) -> Result<()> {
        self.table.check_unchanged()
    }

    /// Returns the table's columns with the types that were inferred; none if no file is CSV.
    pub fn inferred_types(&self) -> Option<Vec<(String, String)>> {
        self.table.inferred()
    }

    /// Returns the type of the sources' ids.
    pub fn src_type(&self) -> IdType {
        self.src_type
    }

    /// Returns the type of the destinations' ids.
    pub fn dst_type(&self) -> IdType {
        self.dst_type
    }

    /// Tells whether the reverse of every edge is to be added.
    pub fn undirected(&self) -> bool {
        self.spec.undirected
    }

    /// Returns what is done with an edge whose end is no node.
    pub fn dangling(&self) -> Dangling {
        self.spec.dangling
    }

    /// Tells whether edges have weights.
    pub fn has_weight(&self) -> bool {
        self.spec.weight.is_some()
    }

    /// Returns the number of features an edge, where there are any.
    pub fn feature_dim(&self) -> Option<usize> {
        self.features.as_ref().map(NumberColumns::dim)
    }

    /// Lists the columns of edge features.
    pub fn feature_columns(&self) -> Vec<FeatureColumn> {
        let columns = self.features.as_ref();
        columns.map(NumberColumns::columns).unwrap_or_default()
    }

    /// Reads all columns of a unit.
    ///
    /// # Errors
    ///
    /// Names file, column and row of the first value that is not allowed.
    pub fn read(&self, unit: &Unit) -> Result<EdgeRows> {
        let mut rows = EdgeRows {
            src: Ids::with_capacity(self.src_type, unit.num_rows_reserved()),
            dst: Ids::with_capacity(self.dst_type, unit.num_rows_reserved()),
            weight: self.has_weight().then(Vec::new),
            feature: self.features.as_ref().map(|_| Vec::new()),
            rows: RowNumbers::default(),
        };
        for batch in self.batches(unit)? {
            let more = batch?;
            rows.src.extend_from(&more.src, 0..more.src.len());
            rows.dst.extend_from(&more.dst, 0..more.dst.len());
            if let Some(weight) = &mut rows.weight {
                weight.extend(more.weight.unwrap_or_default());
            }
            if let Some(feature) = &mut rows.feature {
                feature.extend(more.feature.unwrap_or_default());
            }
            rows.rows.extend(more.rows);
        }
        Ok(rows)
    }

    /// Reads all columns of a unit, some rows at a time.
    ///
    /// # Errors
    ///
    /// If a file cannot be opened. An item that is an error names file, column and row of the first
    /// value that is not allowed.
    pub fn batches<'a>(
        &'a self,
        unit: &Unit,
    ) -> Result<impl Iterator<Item = Result<EdgeRows>> + use<'a>> {
        let batches = self.table.batches(unit, &self.columns(), self.width())?;
        Ok(batches.map(|item| item.and_then(|read| self.rows(&read))))
    }

    /// Reads the ends of a unit's edges, some rows at a time, without their other columns.
    ///
    /// # Errors
    ///
    /// As [`EdgesPlan::batches`].
    pub fn end_batches<'a>(
        &'a self,
        unit: &Unit,
    ) -> Result<impl Iterator<Item = Result<EdgeRows>> + use<'a>> {
        let batches = self.table.batches(unit, &self.end_columns(), 1)?;
        Ok(batches.map(|item| item.and_then(|read| self.ends(&read))))
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    pub(super) fn columns(&self) -> Vec<&str> {
        let mut columns = self.end_columns().to_vec();
        columns.extend(self.spec.weight.as_deref());
        columns.extend(self.features.iter().flat_map(NumberColumns::names));
        columns
    }

    pub(super) fn end_columns(&self) -> [&str; 2] {
        [&self.spec.src, &self.spec.dst]
    }

    /// The number of values that decides how many edges a batch has. A batch of edges is cut by
    /// bucket, so it should not be small.
    pub(super) fn width(&self) -> usize {
        self.feature_dim().unwrap_or(1).div_ceil(16)
    }

    /// Reads the ends of a batch's edges.
    pub(super) fn ends(&self, read: &ReadBatch<'_>) -> Result<EdgeRows> {
        let (place, batch) = (read.place(), &read.rows);
        let mut rows = EdgeRows {
            src: Ids::new(self.src_type),
            dst: Ids::new(self.dst_type),
            weight: None,
            feature: None,
            rows: RowNumbers::of(read),
        };
        let (dangling, table) = (self.spec.dangling, self.table_key());
        // A table of pairs cannot drop rows.
        let is_of_edges = !self.table.name().is_of_pairs();
        let misfits = is_of_edges.then_some(Misfits {
            dangling,
            table: &table,
        });
        append_ids(place, &self.spec.src, batch, &mut rows.src, misfits)?;
        append_ids(place, &self.spec.dst, batch, &mut rows.dst, misfits)?;
        Ok(rows)
    }

    /// Reads all columns of a batch.
    pub(super) fn rows(&self, read: &ReadBatch<'_>) -> Result<EdgeRows> {
        let mut rows = self.ends(read)?;
        let (place, batch) = (read.place(), &read.rows);
        if let Some(name) = &self.spec.weight {
            rows.weight = Some(self.weights(place, name, column(batch, name))?);
        }
        if let Some(numbers) = &self.features {
            let mut feature = Vec::with_capacity(batch.num_rows() * numbers.dim());
            numbers.append(place, batch, &mut feature)?;
            rows.feature = Some(feature);
        }
        Ok(rows)
    }

    fn weights(&self, place: Place<'_>, name: &str, array: &dyn Array) -> Result<Vec<f32>> {
        decode::no_nulls(place, name, array)?;
        let values = decode::to_f32(place, array)?;
        decode::all_finite(place, name, (&values, array), |row| row)?;
        if self.non_negative
            && let Some(row) = values.iter().position(|&value| value < 0.0)
        {
            let problem = format!(
                "is {}; weighted sampling allows no negative weight",
                values[row]
            );
            return Err(place.value(name, row, problem));
        }
        Ok(values.to_vec())
    }
}
