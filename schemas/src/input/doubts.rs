//! Warns of CSV columns that are read as categories or class names because some values are no
//! numbers.

use super::Table;
use crate::error::Result;

/// What columns are read as.
#[derive(Clone, Copy, Debug)]
pub(super) enum Doubt {
    Categories,
    ClassNames,
}

/// Warns of each column whose values are mostly numbers, or mostly times.
///
/// # Errors
///
/// If a CSV file cannot be read.
pub(super) fn warn(table: &Table, columns: &[&str], read_as: Doubt) -> Result<()> {
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
            let (verb, end, them) = match others {
                1 => ("is", "", "it"),
                _ => ("are", "s", "them"),
            };
            let (first, line) = odd.first;
            let key = table.key(&format!("columns.{name}.kind"));
            let mend = match (read_as, odd.are_gaps) {
                (Doubt::ClassNames, true) => {
                    format!("empty fields in place of {them} are missing labels")
                }
                (Doubt::ClassNames, false) => format!("check {them}"),
                (Doubt::Categories, true) => {
                    format!(
                        "`{key}` = \"{kind}\" makes {them} missing values, \"category\" ends this \
                         warning"
                    )
                }
                (Doubt::Categories, false) => {
                    format!(
                        "mend {them} and set `{key}` = \"{kind}\", \"category\" ends this warning"
                    )
                }
            };
            let words = match read_as {
                Doubt::Categories => "categories",
                Doubt::ClassNames => "class names",
            };
            tracing::warn!(
                "column `{name}` of {} is read as {words}: {others} of {} values {verb} no \
                 {kind}{end} (first: {first:?}, {line}); {mend}",
                path.display(),
                odd.fitting + others
            );
        }
    }
    Ok(())
}
