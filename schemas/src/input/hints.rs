//! Hints for errors of tables that cannot be read as they are.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use arrow::datatypes::DataType;

use super::closest;
use super::column_kind::meaning_of;
use crate::error::SchemaError;

/// Number of bytes at the start of a file that are read to find its format.
const HEAD_BYTES: u64 = 512;

/// Endings of names of other formats.
const ENDINGS: &[(&str, &str)] = &[
    ("json", "JSON"),
    ("jsonl", "JSON"),
    ("ndjson", "JSON"),
    ("avro", "Avro"),
    ("orc", "ORC"),
    ("arrow", "Arrow IPC"),
    ("feather", "Arrow IPC"),
    ("xlsx", "a spreadsheet"),
    ("gz", "a compressed file"),
    ("zip", "a compressed file"),
];

/// First bytes of other formats.
const HEADS: &[(&[u8], &str)] = &[
    (b"ORC", "ORC"),
    (b"Obj\x01", "Avro"),
    (b"ARROW1", "Arrow IPC"),
    (b"PK\x03\x04", "a compressed file or a spreadsheet"),
    (b"\x1f\x8b", "a compressed file"),
];

/// Adds the format of a file that cannot be read as Parquet, if its name or its first bytes show
/// it.
pub(super) fn explain_format(error: SchemaError) -> SchemaError {
    match error {
        SchemaError::Unreadable { path, source } => match other_format(&path) {
            Some(found) => SchemaError::OtherFormat { path, found },
            None => SchemaError::Unreadable { path, source },
        },
        other => other,
    }
}

fn other_format(path: &Path) -> Option<&'static str> {
    let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
    if let Some((_, format)) = ENDINGS.iter().find(|(ending, _)| extension == *ending) {
        return Some(format);
    }
    let mut head = Vec::new();
    // Fails, and so gives no format, for files of a store and files that cannot be read.
    let file = File::open(path).ok()?;
    file.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
    if head.starts_with(b"PAR1") {
        return None;
    }
    if let Some((_, format)) = HEADS.iter().find(|(start, _)| head.starts_with(start)) {
        return Some(format);
    }
    // The last character may be cut off.
    let text = head.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let is_text = text.len() + 4 > head.len() && !head.contains(&0) && !head.is_empty();
    is_text.then_some("text, such as CSV")
}

/// Returns why a file has no column of a name, or which other one may be meant.
pub(super) fn of_missing(column: &str, names: &[&str], path: &Path) -> Option<String> {
    let key = |part: &std::path::Component<'_>| {
        let part = part.as_os_str().to_string_lossy();
        part.strip_prefix(column)
            .is_some_and(|rest| rest.starts_with('='))
    };
    if let Some(part) = path.components().find(key) {
        let directory = part.as_os_str().to_string_lossy();
        return Some(format!(
            "directory names such as {directory} are no columns: write it into the files; "
        ));
    }
    closest(column, names).map(|name| format!("did you mean `{name}`? "))
}

/// Returns how to convert a column of a type into one that its role allows.
pub(super) fn of_type(data_type: &DataType, role: &str) -> &'static str {
    let values = match data_type {
        DataType::Dictionary(_, values) => values.as_ref(),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            item.data_type()
        }
        plain => plain,
    };
    if role == "ids" && (values.is_floating() || values.is_decimal()) {
        return "; write numbers without a fraction as integers";
    }
    if !role.ends_with("features") {
        return "";
    }
    if role == "features" && meaning_of(data_type, None).is_some() {
        return "; the type of the column decides its kind if `kind` is left out";
    }
    if *values == DataType::Null {
        return ", but all its values are null; leave the column out, or write it with a type";
    }
    if values.is_temporal() {
        "; write it as a number, such as seconds, or as a timestamp"
    } else if values.is_string() || values.is_binary() {
        "; write each category as a column of 0 and 1"
    } else {
        ""
    }
}
