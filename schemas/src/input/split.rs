//! The splits of the nodes, read from a column or drawn by shares.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Int64Type};

use super::decode::column;
use super::label::{is_string, strings, to_i64};
use super::{Place, Table};
use crate::columns::{Split, SplitMeta};
use crate::config::{NodesSpec, SplitShares, SplitSpec, SplitValues};
use crate::error::{Result, SchemaError};
use crate::ids::Ids;

const SPLITS: &str = "strings (train, val, test), or integers with `split_values`";

/// The checked source of the splits.
#[derive(Clone, Debug)]
pub(super) enum SplitSource {
    None,
    Column {
        name: String,
        values: Option<SplitValues>,
        meta: SplitMeta,
    },
    Drawn(SplitShares),
}

impl SplitSource {
    /// Checks the split column or the shares, and `split_values`.
    pub(super) fn plan(spec: &NodesSpec, table: &Table) -> Result<Self> {
        let values = spec.split_values;
        let of_values = |problem: &str| SchemaError::Key {
            key: table.key("split_values"),
            problem: problem.to_owned(),
        };
        match &spec.split {
            None if values.is_some() => Err(of_values(
                "needs `split`, the column that holds the numbers",
            )),
            None => Ok(Self::None),
            Some(SplitSpec::Column(name)) => {
                plan_split(table, name, values)?;
                let data_type = table.data_type("split", name)?.to_string();
                Ok(Self::Column {
                    name: name.clone(),
                    values,
                    meta: SplitMeta { data_type, values },
                })
            }
            Some(SplitSpec::Shares(_)) if values.is_some() => Err(of_values(
                "is for a column of numbers; leave it out beside shares",
            )),
            Some(SplitSpec::Shares(shares)) => {
                let problem = shares.problem().or_else(|| {
                    let lacks = shares.seed.is_none();
                    lacks.then(|| "lacks `seed`; set it beside the shares".to_owned())
                });
                match problem {
                    Some(problem) => Err(SchemaError::Key {
                        key: table.key("split"),
                        problem,
                    }),
                    None => Ok(Self::Drawn(*shares)),
                }
            }
        }
    }

    /// Returns the description of the splits; drawn splits are words.
    pub(super) fn meta(&self) -> Option<SplitMeta> {
        match self {
            Self::None => None,
            Self::Column { meta, .. } => Some(meta.clone()),
            Self::Drawn(_) => Some(SplitMeta {
                data_type: DataType::Utf8.to_string(),
                values: None,
            }),
        }
    }

    /// Returns the name of the column, where there is one.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Column { name, .. } => Some(name),
            Self::None | Self::Drawn(_) => None,
        }
    }

    /// Tells whether splits are drawn, which requires ids and labels.
    pub(super) fn is_drawn(&self) -> bool {
        matches!(self, Self::Drawn(_))
    }

    /// Appends the splits of a batch, whose rows are the last of `ids`.
    ///
    /// Splits are drawn for rows for which `may_draw` is true: rows with a label, if the table has
    /// labels.
    pub(super) fn append(
        &self,
        place: Place<'_>,
        batch: &RecordBatch,
        ids: &Ids,
        may_draw: impl Fn(usize) -> bool,
        out: &mut Vec<Split>,
    ) -> Result<()> {
        match self {
            Self::None => out.resize(out.len() + batch.num_rows(), Split::None),
            Self::Column { name, values, .. } => {
                append_splits(place, name, column(batch, name), *values, out)?;
            }
            Self::Drawn(shares) => out.extend((out.len()..ids.len()).map(|row| {
                if may_draw(row) {
                    shares.draw(ids.hash(row))
                } else {
                    Split::None
                }
            })),
        }
        Ok(())
    }
}

/// Checks the split column against `split_values`.
pub(super) fn plan_split(table: &Table, column: &str, values: Option<SplitValues>) -> Result<()> {
    let is_text = table.column("split", column, "splits", SPLITS, |data_type| {
        if is_string(data_type) {
            Some(true)
        } else {
            data_type.is_integer().then_some(false)
        }
    })?;
    if !is_text {
        table.same_type("split", column, "splits")?;
    }
    let key = table.key("split_values");
    match (is_text, values) {
        (true, Some(_)) => Err(SchemaError::Key {
            key,
            problem: format!("column `{column}` holds words; leave out the numbers"),
        }),
        (false, None) => Err(SchemaError::Key {
            key,
            problem: format!(
                "column `{column}` holds numbers; say which, as in \
                 {{ train = 0, val = 1, test = 2 }}"
            ),
        }),
        (false, Some(values)) if !are_distinct(values) => Err(SchemaError::Key {
            key,
            problem: "the numbers must differ".to_owned(),
        }),
        _ => Ok(()),
    }
}

fn are_distinct(values: SplitValues) -> bool {
    let mut numbers = vec![values.train, values.val, values.test];
    numbers.extend(values.none);
    let written = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.len() == written
}

/// Appends a batch's splits.
pub(crate) fn append_splits(
    place: Place<'_>,
    name: &str,
    array: &dyn Array,
    values: Option<SplitValues>,
    out: &mut Vec<Split>,
) -> Result<()> {
    if let Some(values) = values {
        return append_split_numbers(place, name, array, values, out);
    }
    let array = strings(place, name, array)?;
    for (row, text) in array.as_string::<i64>().iter().enumerate() {
        out.push(match text {
            None | Some("" | "none") => Split::None,
            Some("train") => Split::Train,
            Some("val") => Split::Val,
            Some("test") => Split::Test,
            Some(other) => {
                let problem = format!(
                    "is {other:?}; allowed are \"train\", \"val\", \"test\", and \"none\", \"\" or \
                     null for none"
                );
                return Err(place.value(name, row, problem));
            }
        });
    }
    Ok(())
}

fn append_split_numbers(
    place: Place<'_>,
    name: &str,
    array: &dyn Array,
    values: SplitValues,
    out: &mut Vec<Split>,
) -> Result<()> {
    let array = to_i64(place, name, array)?;
    for (row, number) in array.as_primitive::<Int64Type>().iter().enumerate() {
        out.push(match number {
            None => Split::None,
            Some(number) if number == values.train => Split::Train,
            Some(number) if number == values.val => Split::Val,
            Some(number) if number == values.test => Split::Test,
            Some(number) if values.none == Some(number) => Split::None,
            Some(-1) => Split::None,
            Some(other) => {
                let none = values.none.map(|none| format!("{none}, "));
                let problem = format!(
                    "is {other}; `split_values` allows {} (train), {} (val), {} (test), and {}-1 \
                     or null for none (`none` names another number)",
                    values.train,
                    values.val,
                    values.test,
                    none.unwrap_or_default()
                );
                return Err(place.value(name, row, problem));
            }
        });
    }
    Ok(())
}
