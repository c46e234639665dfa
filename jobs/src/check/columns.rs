//! What `check` says about feature columns, and about the types of CSV tables.

use schemas::{ColumnKind, ColumnMeta, ColumnValues, ONE_HOT};
use serde_json::{Value, json};

use crate::job::Job;

/// What is said of a column of names.
const UNSHARED: &str =
    "; most of them belong to one node only, so a model learns nothing from them";

/// Returns a line for each feature column of a type without plain numbers only, and for each CSV
/// table. `columns` and `num_nodes` are by type.
pub(super) fn lines<'a>(
    job: &Job,
    columns: impl Iterator<Item = &'a [ColumnMeta]>,
    num_nodes: &[usize],
) -> Vec<String> {
    let by_type = job.graph.types.iter().zip(columns).zip(num_nodes);
    let described = by_type
        .enumerate()
        .flat_map(|(at, ((of_type, own), &count))| {
            let is_target = at == job.target_type;
            let one_hot = of_type.nodes.one_hot();
            own.iter().map(move |column| {
                let limit = one_hot.get(&column.name).copied().unwrap_or(ONE_HOT);
                let becomes = becomes(column, limit as usize);
                // In other types, such a code is learned from the neighbourhoods that its node is in.
                let is_useless = is_target && column.is_unshared(count as u64);
                let unshared = if is_useless { UNSHARED } else { "" };
                let name = match of_type.name.as_str() {
                    "" => column.name.clone(),
                    of => format!("{of}.{}", column.name),
                };
                format!("`{name}`: {becomes}{unshared}")
            })
        });
    let title = |table: &str, name: &str| match name {
        "" => table.to_owned(),
        _ => format!("{table} of {name}"),
    };
    let types = job.graph.types.iter();
    let nodes = types.map(|of| (title("nodes", &of.name), of.nodes.inferred_types()));
    let relations = job.graph.relations.iter().filter(|of| !of.reversed);
    let edges = relations.map(|of| (title("edges", &of.name), of.edges.inferred_types()));
    let inferred = nodes.chain(edges).filter_map(|(table, data_types)| {
        let shown = data_types?.into_iter();
        let shown = shown.map(|(name, data_type)| format!("`{name}` {data_type}"));
        Some(format!(
            "{table} are CSV: {}",
            shown.collect::<Vec<_>>().join(", ")
        ))
    });
    let mut heading = "columns ";
    let lines = inferred.chain(described).map(|text| {
        let line = format!("{heading} {text}");
        heading = "        ";
        line
    });
    lines.collect()
}

/// Describes what the model reads in place of a column's values.
fn becomes(column: &ColumnMeta, one_hot: usize) -> String {
    let (values, gaps) = match &column.values {
        ColumnValues::Number => (
            match column.width {
                1 => "a number".to_owned(),
                width => format!("{width} numbers"),
            },
            "a missing value becomes the train mean, and 1 in a column of its own",
        ),
        ColumnValues::Time => (
            "a time, as days from the train mean in standard deviations".to_owned(),
            "a missing value becomes the train mean, and 1 in a column of its own",
        ),
        ColumnValues::Category(values) => {
            let code = match values.len() > one_hot {
                true => "a learnable code each",
                false => "a column of 0 and 1 each",
            };
            let count = values.len();
            (
                format!("{count} categories, {code}"),
                "missing values have one of their own",
            )
        }
    };
    match column.gaps {
        true => format!("{values}; {gaps}"),
        false => values,
    }
}

/// Lists the inferred types of a CSV table for machines.
pub(super) fn inferred_json(types: Vec<(String, String)>) -> Value {
    let types = types.into_iter();
    Value::Object(
        types
            .map(|(name, found)| (name, Value::String(found)))
            .collect(),
    )
}

/// Describes the feature columns for machines.
pub(super) fn to_json(columns: &[ColumnMeta]) -> Value {
    let column = |column: &ColumnMeta| {
        let is_category = column.kind() == ColumnKind::Category;
        let categories = is_category.then_some(column.num_categories());
        json!({
            "name": column.name,
            "kind": column.kind(),
            "width": column.width,
            "categories": categories,
            "gaps": column.gaps,
        })
    };
    columns.iter().map(column).collect()
}
