//! Input tables with and without node types: both are read as tables by name.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Keys of a node or edge table whose values are tables.
const TABLES: [&str; 5] = ["columns", "sparse", "split", "split_values", "where"];

/// Gives the table `[input.nodes]` of a job without node types the empty name, as the table of a
/// type has its name in `[input.nodes.TYPE]`; likewise `[input.edges]`.
pub(super) fn name_tables(job: &mut DeTable<'_>) {
    let Some(DeValue::Table(input)) = job.get_mut("input").map(Spanned::get_mut) else {
        return;
    };
    for kind in ["nodes", "edges"] {
        let Some(value) = input.get_mut(kind) else {
            continue;
        };
        let span = value.span();
        let DeValue::Table(table) = value.get_mut() else {
            continue;
        };
        if !is_named(table) {
            let unnamed = DeValue::Table(std::mem::take(table));
            let name = Spanned::new(span.clone(), Cow::Borrowed(""));
            table.insert(name, Spanned::new(span, unnamed));
        }
    }
}

/// Tells whether a table holds tables by name: it has tables, and none of its keys are those of a
/// single table.
fn is_named(table: &DeTable<'_>) -> bool {
    let is_table = |value: &Spanned<DeValue<'_>>| value.get_ref().is_table();
    if table.get("path").is_some_and(|path| !is_table(path)) {
        return false;
    }
    table.iter().any(|(name, value)| match value.get_ref() {
        DeValue::Table(inner) => {
            !TABLES.contains(&name.get_ref().as_ref()) || inner.contains_key("path")
        }
        _ => false,
    })
}
