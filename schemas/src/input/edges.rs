//! The table of edges.

use std::path::{Path, PathBuf};

use arrow::array::{Array, RecordBatch};

use super::decode::{self, NumberColumns, Width, column};
use super::id_column::{IDS, append_ids};
use super::{Place, Table, Unit, keep};
use crate::columns::FeatureColumn;
use crate::config::{Dangling, EdgesSpec};
use crate::error::{Result, SchemaError};
use crate::ids::{IdType, Ids};

/// The table of edges, checked against the files' schemas.
#[derive(Clone, Debug)]
pub struct EdgesPlan {
    spec: EdgesSpec,
    table: Table,
    id_type: IdType,
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
        let table = Table::open("edges", base, &self.path).map_err(|error| vec![error])?;
        let mut found = Vec::new();
        let ids = |key, column| table.column(key, column, "ids", IDS, IdType::of);
        let src = keep(ids("src", &self.src), &mut found);
        let dst = keep(ids("dst", &self.dst), &mut found);
        let id_type = match src.zip(dst) {
            Some((src, dst)) => keep(self.id_type(src, dst), &mut found),
            None => None,
        };
        if let Some(weight) = &self.weight {
            let scalar = |t: &_| Width::of(t).filter(|&width| width == Width::Scalar);
            let weights = table.column("weight", weight, "weights", "numbers", scalar);
            keep(weights, &mut found);
        }
        let features = keep(self.plan_features(&table), &mut found);
        match (id_type, features) {
            (Some(id_type), Some(features)) if found.is_empty() => Ok(EdgesPlan {
                spec: self,
                table,
                id_type,
                features,
                non_negative: false,
            }),
            _ => Err(found),
        }
    }

    /// Returns the type of the ends' ids.
    fn id_type(&self, src: IdType, dst: IdType) -> Result<IdType> {
        if src.is_integer() != dst.is_integer() {
            return Err(SchemaError::Table {
                table: "edges",
                problem: format!(
                    "column `{}` is {src} and column `{}` is {dst}; both must be integers \
                     or both strings",
                    self.src, self.dst
                ),
            });
        }
        // The wider of two integer types holds both, except uint64 beside negative numbers.
        Ok(src.max(dst))
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
    /// Makes the plan read ends as ids of the nodes' type.
    ///
    /// # Errors
    ///
    /// If one is a string type and the other an integer type.
    pub fn with_id_type(mut self, id_type: IdType) -> Result<Self> {
        if id_type.is_integer() != self.id_type.is_integer() {
            return Err(SchemaError::Table {
                table: "edges",
                problem: format!(
                    "columns `{}` and `{}` are {}, but the nodes' ids are {id_type}",
                    self.spec.src, self.spec.dst, self.id_type
                ),
            });
        }
        self.id_type = id_type;
        Ok(self)
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
        &self.table.units
    }

    /// Returns the rows of all files.
    pub fn num_rows(&self) -> u64 {
        self.table.num_rows
    }

    /// Finds a row counted over all files: its file, and its 0-based row there.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn locate(&self, row: u64) -> (PathBuf, u64) {
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

    /// Returns the type of the ends.
    pub fn id_type(&self) -> IdType {
        self.id_type
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
            src: Ids::with_capacity(self.id_type, unit.num_rows_reserved()),
            dst: Ids::with_capacity(self.id_type, unit.num_rows_reserved()),
            weight: self.has_weight().then(Vec::new),
            feature: self.features.as_ref().map(|_| Vec::new()),
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
        }
        Ok(rows)
    }

    /// Reads all columns of a unit, some rows at a time.
    ///
    /// # Errors
    ///
    /// If a file cannot be opened. An item that is an error names file, column and row of the first
    /// value that is not allowed.
    pub fn batches(&self, unit: &Unit) -> Result<impl Iterator<Item = Result<EdgeRows>> + '_> {
        let spec = &self.spec;
        let mut columns = vec![spec.src.as_str(), spec.dst.as_str()];
        columns.extend(spec.weight.as_deref());
        columns.extend(self.features.iter().flat_map(NumberColumns::names));
        // A batch of edges is cut by bucket, so it should not be small.
        let width = self.feature_dim().unwrap_or(1).div_ceil(16);
        let batches = self.table.batches(unit, &columns, width)?;
        Ok(batches.map(|item| item.and_then(|(place, batch)| self.rows(place, &batch))))
    }

    /// Reads the ends of a unit's edges, some rows at a time, without their other columns.
    ///
    /// # Errors
    ///
    /// As [`EdgesPlan::batches`].
    pub fn end_batches(&self, unit: &Unit) -> Result<impl Iterator<Item = Result<EdgeRows>> + '_> {
        let columns = [self.spec.dst.as_str(), self.spec.src.as_str()];
        let batches = self.table.batches(unit, &columns, 1)?;
        Ok(batches.map(|item| item.and_then(|(place, batch)| self.ends(place, &batch))))
    }

    fn ends(&self, place: Place<'_>, batch: &RecordBatch) -> Result<EdgeRows> {
        let mut rows = EdgeRows {
            src: Ids::with_capacity(self.id_type, batch.num_rows()),
            dst: Ids::with_capacity(self.id_type, batch.num_rows()),
            weight: None,
            feature: None,
        };
        let dangling = Some(self.spec.dangling);
        append_ids(place, &self.spec.src, batch, &mut rows.src, dangling)?;
        append_ids(place, &self.spec.dst, batch, &mut rows.dst, dangling)?;
        Ok(rows)
    }

    fn rows(&self, place: Place<'_>, batch: &RecordBatch) -> Result<EdgeRows> {
        let mut rows = self.ends(place, batch)?;
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
        decode::all_finite(place, name, &values, |row| row)?;
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
