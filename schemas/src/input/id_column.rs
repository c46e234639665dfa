//! Id columns of input tables.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::DataType;

use super::Place;
use super::decode::{self, column};
use crate::config::Dangling;
use crate::error::Result;
use crate::ids::Ids;

/// The types that ids may have.
pub(super) const IDS: &str = "integers and strings";

/// What is done with an end that no node can be.
#[derive(Clone, Copy)]
pub(super) struct Misfits<'a> {
    pub(super) dangling: Dangling,
    /// The dotted name of the edge table.
    pub(super) table: &'a str,
}

/// Appends an id column's batch.
///
/// Text of CSV files is parsed where `ids` are integers. No node has an id that the type of `ids`
/// cannot hold: it is an error, or [`NOWHERE`] where edges
/// with such ends are dropped.
pub(super) fn append_ids(
    place: Place<'_>,
    name: &str,
    batch: &RecordBatch,
    ids: &mut Ids,
    misfits: Option<Misfits<'_>>,
) -> Result<()> {
    let array = column(batch, name);
    decode::no_nulls(place, name, array)?;
    let text = text_of_bytes(place, name, array)?;
    let read = Ids::from_array(text.as_deref().unwrap_or(array))?;
    if read.id_type() == ids.id_type() {
        match ids.is_empty() {
            true => *ids = read,
            false => ids.extend_from(&read, 0..read.len()),
        }
        return Ok(());
    }
    let is_text = !read.id_type().is_integer();
    let cast = match is_text {
        true => read.parse(ids.id_type()),
        false => read.cast(ids.id_type()),
    };
    let fitting = match cast {
        Ok(fitting) => fitting,
        Err(_) if misfits.is_some_and(|of| of.dangling == Dangling::Drop) => {
            read.cast_or_nowhere(ids.id_type())
        }
        Err(row) => {
            let hint = match misfits {
                Some(of) => format!(
                    " (`dangling = \"drop\"` under [{}] leaves such edges out)",
                    of.table
                ),
                None => String::new(),
            };
            let shown = match is_text {
                true => format!("{:?}", read.display(row)),
                false => read.display(row),
            };
            let problem = format!("is {shown}, but the nodes' ids are {}{hint}", ids.id_type());
            return Err(place.value(name, row, problem));
        }
    };
    ids.extend_from(&fitting, 0..fitting.len());
    Ok(())
}

/// Returns a column of bytes as text, as old writers store strings; none for any other column.
pub(super) fn text_of_bytes(
    place: Place<'_>,
    name: &str,
    array: &dyn Array,
) -> Result<Option<ArrayRef>> {
    let values = match array.data_type() {
        DataType::Dictionary(_, values) => values.as_ref(),
        plain => plain,
    };
    if !values.is_binary() {
        return Ok(None);
    }
    let bytes = cast(array, &DataType::LargeBinary).map_err(place.convert())?;
    let is_text = |value: Option<&[u8]>| value.is_none_or(|v| std::str::from_utf8(v).is_ok());
    if let Some(row) = bytes.as_binary::<i64>().iter().position(|b| !is_text(b)) {
        let problem = "holds bytes that are no UTF-8 text; write them as strings or integers";
        return Err(place.value(name, row, problem));
    }
    let text = cast(&bytes, &DataType::LargeUtf8).map_err(place.convert())?;
    Ok(Some(text))
}
