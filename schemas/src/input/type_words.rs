//! Words for the types of columns in messages.

use arrow::datatypes::DataType;

/// Returns the words for a type, such as `list of float32`.
pub(super) fn type_words(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "string".to_owned(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "bytes".to_owned(),
        DataType::FixedSizeBinary(width) => format!("{width} bytes"),
        DataType::Date32 | DataType::Date64 => "date".to_owned(),
        DataType::Timestamp(..) => "timestamp".to_owned(),
        DataType::Time32(_) | DataType::Time64(_) => "time of day".to_owned(),
        DataType::Duration(_) | DataType::Interval(_) => "duration".to_owned(),
        DataType::Dictionary(_, values) => format!("dictionary of {}", type_words(values)),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item) => format!("list of {}", type_words(item.data_type())),
        DataType::FixedSizeList(item, width) => {
            format!("list of {width} {}", type_words(item.data_type()))
        }
        DataType::Struct(_) => "struct".to_owned(),
        DataType::Map(..) => "map".to_owned(),
        other if other.is_decimal() => "decimal".to_owned(),
        // Numbers, booleans and null.
        other => other.to_string().to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{Field, TimeUnit};

    use super::*;

    #[test]
    fn types_have_words() {
        let item = |data_type| Arc::new(Field::new("item", data_type, true));
        let check = |data_type: DataType, expected: &str| {
            assert_eq!(type_words(&data_type), expected);
        };
        check(DataType::Utf8View, "string");
        check(DataType::UInt8, "uint8");
        check(DataType::Float64, "float64");
        check(DataType::Boolean, "boolean");
        check(DataType::Null, "null");
        check(DataType::Decimal128(9, 2), "decimal");
        check(DataType::Timestamp(TimeUnit::Second, None), "timestamp");
        check(
            DataType::LargeList(item(DataType::Float32)),
            "list of float32",
        );
        check(
            DataType::FixedSizeList(item(DataType::Int16), 3),
            "list of 3 int16",
        );
        let strings = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
        check(strings, "dictionary of string");
    }
}
