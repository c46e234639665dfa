//! Types of node ids.

use arrow::datatypes::DataType;
use serde::{Deserialize, Serialize};

/// Type of an id column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdType {
    /// 32-bit signed integers.
    Int32,
    /// 64-bit signed integers.
    Int64,
    /// 64-bit unsigned integers.
    UInt64,
    /// Strings.
    Utf8,
}

impl IdType {
    /// Returns the id type that holds every value of an Arrow type, if ids may be of that type.
    ///
    /// Columns of bytes may hold text: readers of tables check that.
    pub fn of(data_type: &DataType) -> Option<Self> {
        Some(match data_type {
            DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::UInt8
            | DataType::UInt16 => Self::Int32,
            DataType::Int64 | DataType::UInt32 => Self::Int64,
            DataType::UInt64 => Self::UInt64,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Utf8,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Self::Utf8,
            DataType::Dictionary(_, values) => Self::of(values)?,
            _ => return None,
        })
    }

    /// Returns the Arrow type in which ids of this type are written.
    pub fn data_type(self) -> DataType {
        match self {
            Self::Int32 => DataType::Int32,
            Self::Int64 => DataType::Int64,
            Self::UInt64 => DataType::UInt64,
            Self::Utf8 => DataType::Utf8,
        }
    }

    /// Tells whether ids of this type are integers.
    pub fn is_integer(self) -> bool {
        self != Self::Utf8
    }

    /// Tells whether ids of this type are integers that may be negative.
    pub fn is_signed(self) -> bool {
        matches!(self, Self::Int32 | Self::Int64)
    }
}

impl std::fmt::Display for IdType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::UInt64 => "uint64",
            Self::Utf8 => "strings",
        })
    }
}
