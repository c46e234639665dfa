//! The supervision pairs of links: a table of their own, or the rows of an edge table.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use arrow::array::{Array, AsArray};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Float64Type, Int64Type};

use super::decode::{self, Lists, Width, column};
use super::label::to_i64;
use super::split::{append_splits, plan_split};
use super::table::ReadBatch;
use super::{
    EdgeRows, EdgesPlan, GraphPlan, OpenFiles, Place, RelationPlan, Table, TableName, Unit, keep,
};
use crate::columns::{PairsMeta, Split, SplitMeta};
use crate::config::{
    EdgesSpec, Exclude, FromEdges, PairsSpec, SplitShares, TablePath, WalksSpec, WhereValue,
};
use crate::dataset::SplitCounts;
use crate::error::{Result, RowPlace, SchemaError};
use crate::ids::{IdType, Ids, hash_int};

const TIMES: &str = "integers, numbers, dates and timestamps";

/// The supervision pairs, checked against the files' schemas.
#[derive(Clone, Debug)]
pub struct PairsPlan {
    spec: PairsSpec,
    /// The table with the columns of both ends: that of a relation, or one of its own; with walks
    /// alone, the table of the first relation, whose rows are not read.
    ends: EdgesPlan,
    from: usize,
    to: usize,
    /// Positions of the relations that edges equal to a pair are left out of; ascending.
    relations: Vec<usize>,
    /// Columns as they were read.
    split: SplitMeta,
    /// Type of the ids of hard negatives.
    negative_type: IdType,
    /// Type of the times by which pairs of several tables are put in one order; none without times.
    time_type: Option<DataType>,
}

/// Some rows of a unit.
#[derive(Clone, Debug)]
pub struct PairRows {
    /// The ids of both ends, and the numbers of the rows.
    pub ends: EdgeRows,
    /// `[n]`, 1 or 0, where the table has labels.
    pub label: Option<Vec<f32>>,
    /// `[n]`, where pairs have weights.
    pub weight: Option<Vec<f32>>,
    /// `[n]`, where the splits are a column.
    pub split: Option<Vec<Split>>,
    /// `[n]`, keys in the order of the times, where pairs have times.
    pub time: Option<Vec<i64>>,
    /// The end of each row in the ids of hard negatives, where pairs have them.
    pub negatives: Option<(Vec<usize>, Ids)>,
}

/// Returns the table of pairs as one of edges; none if pairs are the edges of a relation.
pub(super) fn ends_spec(spec: &PairsSpec) -> Option<EdgesSpec> {
    Some(EdgesSpec {
        path: spec.path.clone()?,
        from: spec.from.clone(),
        to: spec.to.clone(),
        src: spec.src.clone()?,
        dst: spec.dst.clone()?,
        ..EdgesSpec::default()
    })
}

impl PairsPlan {
    /// Checks the columns of the pairs; `ends` is their own table, if they have one.
    pub(super) fn plan(
        spec: PairsSpec,
        ends: Option<EdgesPlan>,
        graph: &GraphPlan,
    ) -> std::result::Result<Self, Vec<SchemaError>> {
        let relation = spec.from_edges.as_ref().map(|of| {
            let name = match of {
                FromEdges::All(_) => "",
                FromEdges::Relation(name) => name,
            };
            graph.relation_idx(name).expect("the relation was checked")
        });
        let end = |name: &Option<String>| {
            let found = graph.type_idx(name.as_deref().unwrap_or_default());
            found.expect("the types of the ends were checked")
        };
        let (from, to) = match relation {
            Some(at) => (graph.relations[at].from, graph.relations[at].to),
            None => (end(&spec.from), end(&spec.to)),
        };
        let ends = match (relation, ends) {
            (None, Some(ends)) => ends,
            (relation, _) => graph.relations[relation.unwrap_or(0)]
                .edges
                .as_ref()
                .clone(),
        };
        let of_pairs = graph.relations.iter().enumerate().filter(|(_, of)| {
            // A relation and its reverse have one table.
            let is_own = relation
                .is_none_or(|at| std::sync::Arc::ptr_eq(&of.edges, &graph.relations[at].edges));
            let both = [(of.from, of.to), (of.to, of.from)];
            is_own && both.contains(&(from, to))
        });
        let relations = of_pairs.map(|(at, _)| at).collect();
        let mut found = Vec::new();
        let table = ends.table();
        let split = keep(plan_splits(&spec, table), &mut found);
        let negative_type = graph.types[to].nodes.id_type();
        found.extend(spec.walks.and_then(|_| no_walk(from, graph)));
        check_columns(&spec, table, negative_type, &mut found);
        let time_type = spec.time.as_ref().filter(|_| found.is_empty());
        let time_type = time_type.and_then(|of| keep(table.data_type("time", of), &mut found));
        match split {
            Some(split) if found.is_empty() => Ok(Self {
                spec,
                ends,
                from,
                to,
                relations,
                split,
                negative_type,
                time_type,
            }),
            _ => Err(found),
        }
    }

    /// Opens a table with the ends of pairs, in place of their own table, for the rows with the values
    /// of `rows_where`.
    ///
    /// # Errors
    ///
    /// If a file or a column of the ends is missing, or has ids of another type.
    pub fn ends_at(
        &self,
        path: &TablePath,
        base: &Path,
        graph: &GraphPlan,
        rows_where: BTreeMap<String, WhereValue>,
    ) -> Result<EdgesPlan> {
        let spec = EdgesSpec {
            path: path.clone(),
            rows_where,
            ..self.ends.spec().clone()
        };
        let first = |mut errors: Vec<SchemaError>| errors.swap_remove(0);
        let ends = spec.plan_as(TableName::pairs(), base, &mut OpenFiles::default());
        let [from, to] = [self.from, self.to].map(|of| &*graph.types[of].nodes);
        let mut ends = ends.map_err(first)?.with_ends(from, to).map_err(first)?;
        let text = ends.text_columns();
        Table::read_as_text(&mut [(ends.table_mut(), text)]);
        Ok(ends)
    }

    /// Returns the plan of the pairs of another table, whose ends are `ends`.
    ///
    /// # Errors
    ///
    /// If a column is missing or has another type.
    pub fn with_table(&self, ends: EdgesPlan) -> Result<Self> {
        let mut found = Vec::new();
        let split = keep(plan_splits(&self.spec, ends.table()), &mut found);
        check_columns(&self.spec, ends.table(), self.negative_type, &mut found);
        if found.is_empty() {
            keep(self.check_times(ends.table()), &mut found);
        }
        match split {
            Some(split) if found.is_empty() => Ok(Self {
                ends,
                split,
                ..self.clone()
            }),
            _ => Err(found.swap_remove(0)),
        }
    }

    /// Checks that the times of another table can be compared with those of this one.
    fn check_times(&self, table: &Table) -> Result<()> {
        let (Some(time), Some(own)) = (&self.spec.time, &self.time_type) else {
            return Ok(());
        };
        let others = table.data_type("time", time).map_err(under_pairs)?;
        let is_comparable = match (own, &others) {
            (DataType::Timestamp(own, zone), DataType::Timestamp(others, other_zone)) => {
                others <= own && zone == other_zone
            }
            (DataType::Timestamp(_, None), DataType::Date32) => true,
            (own, others) if own.is_floating() => others.is_floating() || others.is_integer(),
            (own, others) => own == others || (own.is_integer() && others.is_integer()),
        };
        if is_comparable {
            return Ok(());
        }
        Err(SchemaError::Key {
            key: "input.pairs.time".to_owned(),
            problem: format!(
                "{} has the type {others}, but the times of the first tables are {own}; they \
                 cannot be compared",
                table.place_of(time)
            ),
        })
    }

    /// Returns the specification as written.
    pub fn spec(&self) -> &PairsSpec {
        &self.spec
    }

    /// Returns the position of the type of the src ends.
    pub fn from(&self) -> usize {
        self.from
    }

    /// Returns the position of the type of the dst ends.
    pub fn to(&self) -> usize {
        self.to
    }

    /// Returns the walks whose visits are the train pairs.
    pub fn walks(&self) -> Option<WalksSpec> {
        self.spec.walks
    }

    /// Tells whether the pairs of a split are read from a table: with walks, those that would be
    /// train pairs are none.
    pub fn keeps(&self, split: Split) -> bool {
        match split {
            Split::None => false,
            Split::Train => self.spec.walks.is_none(),
            Split::Val | Split::Test => true,
        }
    }

    /// Tells whether the pairs of tables are the edges of a relation, and not a table of their own.
    pub fn is_of_edges(&self) -> bool {
        self.spec.path.is_none()
    }

    /// Returns the positions of the relations that edges equal to a pair are left out of.
    pub fn relations(&self) -> &[usize] {
        &self.relations
    }

    /// Tells whether the pairs of a split carry no messages in the stored graph.
    pub fn leaves(&self, split: Split) -> bool {
        match split {
            Split::None => false,
            Split::Train => self.spec.exclude == Exclude::All,
            Split::Val | Split::Test => true,
        }
    }

    /// Returns the shares that splits are drawn by, or that say how many of the latest pairs are in
    /// a split; none if splits are a column.
    pub fn shares(&self) -> Option<&SplitShares> {
        self.spec.share.as_ref()
    }

    /// Returns the key that puts pairs in splits.
    pub fn split_key(&self) -> &'static str {
        match (&self.spec.share, &self.spec.split) {
            (Some(_), _) => "share",
            (None, Some(_)) => "split",
            // All pairs of walks are train pairs.
            (None, None) => "walks",
        }
    }

    /// Returns a hash of the two ids of a pair and of the seed of the shares, the same for a pair
    /// and its reverse. Arguments are [`Ids::hash`](crate::Ids::hash).
    pub fn hash(&self, src: u64, dst: u64) -> u64 {
        let seed = self.spec.share.and_then(|shares| shares.seed);
        let (least, most) = (src.min(dst), src.max(dst));
        hash_int(most ^ hash_int(least ^ hash_int(seed.unwrap_or_default() ^ SALT)))
    }

    /// Describes the pairs.
    pub fn meta(&self) -> PairsMeta {
        PairsMeta {
            from: self.from,
            to: self.to,
            relations: self.relations.clone(),
            exclude: self.spec.exclude,
            label: self.spec.label.is_some(),
            weight: self.spec.weight.is_some() || self.spec.walks.is_some(),
            negatives: self.spec.negatives.is_some(),
            split: self.split.clone(),
        }
    }

    /// Returns the row groups of all files, in order; none if all pairs are those of walks.
    pub fn units(&self) -> &[Unit] {
        match (&self.spec.from_edges, &self.spec.path) {
            (None, None) => &[],
            _ => self.ends.units(),
        }
    }

    /// Finds a row counted over all files: its file, and its place there.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn locate(&self, row: u64) -> (PathBuf, RowPlace) {
        self.ends.locate(row)
    }

    /// Returns the error for a row that is no pair of two nodes, because of one of its ids.
    pub fn no_pair(&self, row: u64, what: NoPair, id: &str) -> SchemaError {
        let spec = self.ends.spec();
        let (column, problem) = match what {
            NoPair::Src => (&spec.src, format!("is {id}, which is no node's id")),
            NoPair::Dst => (&spec.dst, format!("is {id}, which is no node's id")),
            NoPair::Same => (
                &spec.dst,
                format!("is {id}, which is the pair's src as well; a pair has two nodes"),
            ),
            NoPair::Negatives => (
                self.spec.negatives.as_ref().unwrap_or(&spec.dst),
                format!("holds {id}, which is no node's id"),
            ),
        };
        self.value(row, column, problem)
    }

    /// Returns the error for a row that does not agree with an earlier row of the same pair.
    pub fn disagreeing(&self, row: u64, earlier: u64, key: &str) -> SchemaError {
        let column = match key {
            "label" => self.spec.label.as_deref(),
            _ => self.spec.split.as_deref(),
        };
        let (file, at) = self.locate(earlier);
        let problem = format!(
            "differs from that of the same pair in {at} of {}",
            file.display()
        );
        self.value(row, column.unwrap_or_default(), problem)
    }

    fn value(&self, row: u64, column: &str, problem: String) -> SchemaError {
        let (path, row) = self.locate(row);
        SchemaError::Value {
            path,
            column: column.to_owned(),
            row,
            problem,
        }
    }

    /// Checks that each split with a share has a pair, and that there are train pairs, unless these
    /// are those of walks.
    ///
    /// # Errors
    ///
    /// Names the first split without pairs.
    pub fn check_counts(&self, counts: &SplitCounts) -> Result<()> {
        let has = |share: fn(&SplitShares) -> f64| self.shares().is_some_and(|of| share(of) > 0.0);
        let wanted = [
            (Split::Train, counts.train, self.keeps(Split::Train)),
            (Split::Val, counts.val, has(|of| of.val)),
            (Split::Test, counts.test, has(|of| of.test)),
        ];
        let all = self.shares().map_or(0.0, |of| of.train + of.val + of.test);
        let mut wanted = wanted.into_iter();
        let empty = wanted.find(|(_, count, is_wanted)| *is_wanted && *count == 0);
        match empty {
            None => Ok(()),
            // Shares that sum to 1 leave no edge out.
            Some(_)
                if *counts == SplitCounts::default() && self.is_of_edges() && all > 1.0 - 1e-9 =>
            {
                Err(SchemaError::Key {
                    key: "input.pairs.from_edges".to_owned(),
                    problem: "gives no pair in any split: a pair is an edge between two different \
                              nodes"
                        .to_owned(),
                })
            }
            Some((split, ..)) => Err(self.empty_split(split)),
        }
    }

    /// Returns the error for walks that visit no node.
    pub fn no_visits(&self) -> SchemaError {
        SchemaError::Key {
            key: "input.pairs.walks".to_owned(),
            problem: "gives no pair: no walk gets to another node, since the edges that carry \
                      messages lead to no node that walks start from"
                .to_owned(),
        }
    }

    /// Returns the error for train pairs that all weigh 0.
    pub fn no_weight(&self) -> SchemaError {
        SchemaError::Key {
            key: "input.pairs.weight".to_owned(),
            problem: "is 0 for each train pair, which then teaches nothing".to_owned(),
        }
    }

    /// The error for a split without pairs.
    fn empty_split(&self, split: Split) -> SchemaError {
        let word = split.as_str();
        let (key, why) = match (&self.spec.share, &self.spec.time) {
            (None, _) => ("split", "the column names it nowhere".to_owned()),
            (Some(shares), time) => {
                let share = match split {
                    Split::Val => shares.val,
                    Split::Test => shares.test,
                    Split::Train | Split::None => shares.train,
                };
                let how = if time.is_some() { "by time" } else { "by hash" };
                (
                    "share",
                    format!("its share {how} is {share}, which must hold at least one pair"),
                )
            }
        };
        SchemaError::Key {
            key: format!("input.pairs.{key}"),
            problem: format!("puts no pair in split `{word}`: {why}"),
        }
    }

    /// Returns a fingerprint of the files of a table of pairs; none if pairs are the edges of a
    /// relation, whose files have their own.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn fingerprint(&self) -> Result<Option<String>> {
        match self.is_of_edges() {
            true => Ok(None),
            false => self.ends.fingerprint().map(Some),
        }
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
    ) -> Result<impl Iterator<Item = Result<PairRows>> + use<'a>> {
        let spec = &self.spec;
        let mut columns = self.ends.end_columns().to_vec();
        let more = [&spec.weight, &spec.label, &spec.split, &spec.time];
        let more = more.into_iter().chain([&spec.negatives]);
        columns.extend(more.filter_map(|column| column.as_deref()));
        let batches = self.ends.table().batches(unit, &columns, 1)?;
        Ok(batches.map(|item| item.and_then(|read| self.rows(&read))))
    }

    fn rows(&self, read: &ReadBatch<'_>) -> Result<PairRows> {
        let (place, batch) = (read.place(), &read.rows);
        let numbers = |name: &String| -> Result<Vec<f32>> {
            let array = column(batch, name);
            decode::no_nulls(place, name, array)?;
            let values = decode::to_f32(place, array)?;
            decode::all_finite(place, name, (&values, array), |row| row)?;
            Ok(values.to_vec())
        };
        let label = self.spec.label.as_ref();
        let label = label.map(|name| {
            let values = numbers(name)?;
            let is_label = |value: &f32| *value == 0.0 || *value == 1.0;
            match values.iter().position(|value| !is_label(value)) {
                None => Ok(values),
                Some(row) => {
                    let problem = format!(
                        "is {}; a label of a pair is 1 (a link) or 0 (none)",
                        values[row]
                    );
                    Err(place.value(name, row, problem))
                }
            }
        });
        let weight = self.spec.weight.as_ref();
        let weight = weight.map(|name| {
            let values = numbers(name)?;
            match values.iter().position(|value| *value < 0.0) {
                None => Ok(values),
                Some(row) => {
                    let problem = format!("is {}; a pair has no negative weight", values[row]);
                    Err(place.value(name, row, problem))
                }
            }
        });
        let split = self.spec.split.as_ref().map(|name| {
            let (mut split, values) = (Vec::new(), self.spec.split_values);
            append_splits(place, name, column(batch, name), values, &mut split)?;
            Ok(split)
        });
        let time = self.spec.time.as_ref();
        let time = time.zip(self.time_type.as_ref());
        let time = time.map(|(name, as_type)| times((place, name), column(batch, name), as_type));
        let negatives = self.spec.negatives.as_ref();
        let negatives = negatives.map(|name| self.negatives(place, name, column(batch, name)));
        Ok(PairRows {
            ends: self.ends.ends(read)?,
            label: label.transpose()?,
            weight: weight.transpose()?,
            split: split.transpose()?,
            time: time.transpose()?,
            negatives: negatives.transpose()?,
        })
    }

    /// Reads lists of ids; a null is an empty list.
    fn negatives(
        &self,
        place: Place<'_>,
        name: &str,
        array: &dyn Array,
    ) -> Result<(Vec<usize>, Ids)> {
        let (lists, values) = Lists::of(array).expect("the type of the column was checked");
        let range_of = |row: usize| match array.is_null(row) {
            true => 0..0,
            false => lists.range(row),
        };
        let row_of = |at: usize| {
            let mut rows = 0..array.len();
            rows.find(|&row| range_of(row).contains(&at))
                .unwrap_or_default()
        };
        let ranges: Vec<Range<usize>> = (0..array.len()).map(range_of).collect();
        let with_null = |range: &Range<usize>| range.clone().any(|at| values.is_null(at));
        if let Some(row) = ranges.iter().position(with_null) {
            return Err(place.value(name, row, "holds a null"));
        }
        let read = Ids::from_array(values.as_ref())?;
        let fitting = read.cast(self.negative_type).map_err(|at| {
            let (id, wanted) = (read.display(at), self.negative_type);
            place.value(
                name,
                row_of(at),
                format!("holds {id}, but the nodes' ids are {wanted}"),
            )
        })?;
        let (mut ids, mut ends) = (Ids::new(self.negative_type), Vec::new());
        for range in ranges {
            ids.extend_from(&fitting, range);
            ends.push(ids.len());
        }
        Ok((ends, ids))
    }
}

/// Returns the error for walks that cannot take a step: there are no edges to the nodes of type
/// `from`, at which they start.
fn no_walk(from: usize, graph: &GraphPlan) -> Option<SchemaError> {
    let leads = |of: &&RelationPlan| of.to == from && of.edges.num_rows() > 0;
    if graph.relations.iter().any(|of| leads(&of)) {
        return None;
    }
    let of_type = match graph.is_typed() {
        true => format!(" of type `{}`", graph.types[from].name),
        false => String::new(),
    };
    Some(SchemaError::Key {
        key: "input.pairs.walks".to_owned(),
        problem: format!(
            "cannot take a step: no edge leads to a node{of_type}; a walk goes from a node to the \
             src of one of its in-edges"
        ),
    })
}

/// Keeps the draw of pairs apart from other draws with the same seed: "pairs" in ASCII.
const SALT: u64 = 0x0070_6169_7273;

/// Why a row is no pair of two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPair {
    /// The src end is no node.
    Src,
    /// The dst end is no node.
    Dst,
    /// A hard negative is no node.
    Negatives,
    /// Both ends are one node.
    Same,
}

/// Checks the columns of weights, labels, times and hard negatives.
fn check_columns(
    spec: &PairsSpec,
    table: &Table,
    negative_type: IdType,
    found: &mut Vec<SchemaError>,
) {
    let scalar = |t: &DataType| Width::of(t).filter(|&width| width == Width::Scalar);
    for (key, column, role) in [
        ("weight", &spec.weight, ("weights", "numbers")),
        (
            "label",
            &spec.label,
            ("labels of pairs", "the numbers 1 and 0"),
        ),
    ] {
        if let Some(column) = column {
            let (role, allowed) = role;
            let checked = table.column(key, column, role, allowed, scalar);
            keep(checked.map_err(under_pairs), found);
        }
    }
    if let Some(time) = &spec.time {
        let is_time =
            |t: &DataType| (t.is_temporal() || t.is_integer() || t.is_floating()).then_some(());
        let checked = table.column("time", time, "times", TIMES, is_time);
        let checked = checked.and_then(|()| table.same_type("time", time, "times"));
        keep(checked.map_err(under_pairs), found);
    }
    if let Some(negatives) = &spec.negatives {
        let allowed = "lists of ids, as the nodes have";
        let fits = |t: &DataType| {
            let item = match t {
                DataType::List(item) | DataType::LargeList(item) => item,
                DataType::FixedSizeList(item, _) => item,
                _ => return None,
            };
            let id_type = IdType::of(item.data_type())?;
            (id_type.is_integer() == negative_type.is_integer()).then_some(())
        };
        let checked = table.column("negatives", negatives, "hard negatives", allowed, fits);
        keep(checked.map_err(under_pairs), found);
    }
}

/// Checks the column of the splits; splits by shares are words.
fn plan_splits(spec: &PairsSpec, table: &Table) -> Result<SplitMeta> {
    let Some(name) = &spec.split else {
        return Ok(SplitMeta {
            data_type: DataType::Utf8.to_string(),
            values: None,
        });
    };
    plan_split(table, name, spec.split_values).map_err(under_pairs)?;
    let data_type = table.data_type("split", name).map_err(under_pairs)?;
    Ok(SplitMeta {
        data_type: data_type.to_string(),
        values: spec.split_values,
    })
}

/// Names the key of the pairs in an error of a column, which may be one of an edge table.
fn under_pairs(error: SchemaError) -> SchemaError {
    let renamed = |key: String| {
        let last = key.rsplit('.').next().unwrap_or_default().to_owned();
        format!("input.pairs.{last}")
    };
    match error {
        SchemaError::Key { key, problem } => SchemaError::Key {
            key: renamed(key),
            problem,
        },
        SchemaError::NoColumn {
            key,
            path,
            column,
            hint,
            columns,
        } => SchemaError::NoColumn {
            key: renamed(key),
            path,
            column,
            hint,
            columns,
        },
        other => other,
    }
}

/// Returns numbers in the order of the times, which are taken as those of a type.
fn times(
    (place, name): (Place<'_>, &str),
    array: &dyn Array,
    as_type: &DataType,
) -> Result<Vec<i64>> {
    decode::no_nulls(place, name, array)?;
    let exact = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let finer = match as_type {
        DataType::Timestamp(..) => Some(cast_with_options(array, as_type, &exact)),
        _ => None,
    };
    let finer = finer.transpose().map_err(place.convert())?;
    let array = finer.as_deref().unwrap_or(array);
    if !as_type.is_floating() {
        let array = to_i64(place, name, array)?;
        return Ok(array.as_primitive::<Int64Type>().values().to_vec());
    }
    let floats = cast(array, &DataType::Float64).map_err(place.convert())?;
    let floats = floats.as_primitive::<Float64Type>().values();
    if let Some(row) = floats.iter().position(|time| time.is_nan()) {
        return Err(place.value(name, row, "is NaN"));
    }
    // The bits of floats, those of negative ones inverted but for the sign, ascend as the floats;
    // the two zeros are made one.
    let key = |&time: &f64| {
        let bits = (time + 0.0).to_bits().cast_signed();
        bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
    };
    Ok(floats.iter().map(key).collect())
}
