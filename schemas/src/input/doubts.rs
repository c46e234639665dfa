//! Warns of CSV columns that are read as categories because some values are no numbers.

use super::Table;
use crate::config::ColumnKind;
use crate::error::Result;

/// Warns of each column of categories whose values are mostly numbers, or mostly times.
///
/// # Errors
///
/// If a CSV file cannot be read.
pub(super) fn warn(table: &Table, columns: &[&str]) -> Result<()> {
    for (path, csv) in table.csv_files() {
        let fields = csv.inferred().fields();
        let is_text = |at: &usize| fields[*at].data_type().is_string();
        let text = columns.iter().filter_map(|name| Some(fields.find(name)?.0));
        let text: Vec<usize> = text.filter(is_text).collect();
        if text.is_empty() {
            continue;
        }
        for (&at, odd) in text.iter().zip(csv.odd_values(&text)?) {
            let Some(odd) = odd else { continue };
            let name = fields[at].name();
            let (others, kind) = (odd.others, odd.kind.as_str());
            let plural = match odd.kind {
                ColumnKind::Time => "times",
                _ => "numbers",
            };
            let (verb, them) = match others {
                1 => ("is", "it"),
                _ => ("are", "them"),
            };
            let (first, line) = odd.first;
            let key = table.key(&format!("columns.{name}.kind"));
            let mend = match odd.are_gaps {
                true => format!("`{key}` = \"{kind}\" makes {them} missing values"),
                false => format!("mend {them} and set `{key}` = \"{kind}\""),
            };
            tracing::warn!(
                "column `{name}` of {} is read as categories: {others} of {} values {verb} no \
                 {plural} (first: {first:?}, {line}); {mend}, \"category\" ends this warning",
                path.display(),
                odd.fitting + others
            );
        }
    }
    Ok(())
}
