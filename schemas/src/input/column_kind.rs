//! Kinds of feature columns: by their types, or as the job file declares them.

use arrow::datatypes::DataType;

use super::decode::Width;
use super::label::is_string;
use super::{Table, closest};
use crate::config::{CATEGORIES_MAX, ColumnKind, ColumnSpec, NodesSpec};
use crate::error::{Result, SchemaError};

/// Returns the meaning and the width of a column: the declared meaning, or the one that its type
/// has by default. None if the type does not have the meaning.
pub(super) fn meaning_of(
    data_type: &DataType,
    declared: Option<ColumnKind>,
) -> Option<(ColumnKind, Width)> {
    let is_category = || {
        let values = match data_type {
            DataType::Dictionary(_, values) => values.as_ref(),
            plain => plain,
        };
        is_string(values) || values.is_integer() || *values == DataType::Boolean
    };
    let is_time = matches!(
        data_type,
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..)
    );
    let number = || Width::of(data_type).map(|width| (ColumnKind::Number, width));
    match declared {
        // All values are missing.
        Some(kind) if *data_type == DataType::Null => Some((kind, Width::Scalar)),
        Some(ColumnKind::Number) => number(),
        None if is_time => Some((ColumnKind::Time, Width::Scalar)),
        None => number().or_else(|| is_category().then_some((ColumnKind::Category, Width::Scalar))),
        // Floats without a fraction are integers with gaps, as pandas writes them.
        Some(ColumnKind::Category) => (is_category() || data_type.is_floating())
            .then_some((ColumnKind::Category, Width::Scalar)),
        Some(ColumnKind::Time) => is_time.then_some((ColumnKind::Time, Width::Scalar)),
    }
}

pub(super) fn allowed_for(kind: ColumnKind) -> &'static str {
    match kind {
        ColumnKind::Number => "numbers and lists of numbers",
        ColumnKind::Category => {
            "strings, dictionaries, integers, booleans and floats without a fraction"
        }
        ColumnKind::Time => "dates and timestamps",
    }
}

/// Refuses entries of `columns` for columns that are no features.
pub(super) fn check_specs(spec: &NodesSpec, table: &Table) -> Result<()> {
    let stray = spec
        .columns
        .keys()
        .find(|name| !spec.features.contains(name));
    let Some(stray) = stray else {
        return Ok(());
    };
    let names: Vec<&str> = spec.features.iter().map(String::as_str).collect();
    let hint = closest(stray, &names).map(|name| format!("did you mean `{name}`? "));
    Err(SchemaError::Key {
        key: table.key(&format!("columns.{stray}")),
        problem: format!(
            "is not one of `features`; {}they are {}",
            hint.unwrap_or_default(),
            names.join(", ")
        ),
    })
}

/// Refuses bounds of categories that are out of range, or for a column without categories.
pub(super) fn check_bounds(declared: &ColumnSpec, kind: ColumnKind, key: &str) -> Result<()> {
    let bounds = [
        ("one_hot", declared.one_hot, 0),
        ("max_values", declared.max_values, 1),
    ];
    for (name, given, least) in bounds {
        let Some(given) = given else { continue };
        let problem = if kind != ColumnKind::Category {
            format!(
                "is for categories, the column has the kind \"{}\"",
                kind.as_str()
            )
        } else if (least..=CATEGORIES_MAX).contains(&given) {
            continue;
        } else {
            format!("is {given}; allowed is {least} to {CATEGORIES_MAX}")
        };
        return Err(SchemaError::Key {
            key: format!("{key}.{name}"),
            problem,
        });
    }
    Ok(())
}
