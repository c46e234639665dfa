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
    name_changes(input);
    if let Some(DeValue::Table(snapshot)) = input.get_mut("snapshot").map(Spanned::get_mut) {
        name_paths(snapshot);
    }
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

/// Makes `[input.changes]` a list of nights, and gives the tables of a night that are written as
/// paths the empty name.
fn name_changes(input: &mut DeTable<'_>) {
    let Some(changes) = input.get_mut("changes") else {
        return;
    };
    let span = changes.span();
    let value = changes.get_mut();
    if value.is_table() {
        let one = Spanned::new(span, std::mem::replace(value, DeValue::Boolean(false)));
        *value = DeValue::Array([one].into_iter().collect());
    }
    let DeValue::Array(nights) = value else {
        return;
    };
    for night in nights.iter_mut() {
        if let DeValue::Table(tables) = night.get_mut() {
            name_paths(tables);
        }
    }
}

/// Gives the tables that are written as paths the empty name.
fn name_paths(tables: &mut DeTable<'_>) {
    for kind in ["nodes", "edges"] {
        if let Some(table) = tables.get_mut(kind) {
            name_path(table);
        }
    }
}

/// Gives a path the empty name.
fn name_path<'a>(table: &mut Spanned<DeValue<'a>>) {
    let span = table.span();
    let written = table.get_mut();
    if matches!(written, DeValue::String(_) | DeValue::Array(_)) {
        let path = std::mem::replace(written, DeValue::Boolean(false));
        let mut named = DeTable::new();
        let name = Spanned::new(span.clone(), Cow::Borrowed(""));
        named.insert(name, Spanned::new(span, path));
        *written = DeValue::Table(named);
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
