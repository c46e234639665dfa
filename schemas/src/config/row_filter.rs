//! `where` as written: the rows of a table that a type or a relation takes.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// `where = { COLUMN = VALUE }` as written: the rows whose columns equal these values. Empty: all
/// rows.
pub type RowsWhere = BTreeMap<String, WhereValue>;

/// A value that a column must equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum WhereValue {
    /// Of a column of booleans.
    Bool(bool),
    /// Of a column of integers.
    Integer(i64),
    /// Of a column of strings.
    Text(String),
}

/// Shows the columns and values that a `where` wants.
pub fn describe_where(wanted: &RowsWhere) -> String {
    let wanted = wanted.iter();
    let wanted = wanted.map(|(column, value)| format!("{column} = {value}"));
    wanted.collect::<Vec<_>>().join(", ")
}

impl fmt::Display for WhereValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Text(value) => write!(f, "{value:?}"),
        }
    }
}

impl<'de> Deserialize<'de> for WhereValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl Visitor<'_> for ValueVisitor {
    type Value = WhereValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a whole number, true or false")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<WhereValue, E> {
        Ok(WhereValue::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<WhereValue, E> {
        Ok(WhereValue::Integer(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<WhereValue, E> {
        let value = i64::try_from(value)
            .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))?;
        Ok(WhereValue::Integer(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<WhereValue, E> {
        Ok(WhereValue::Text(value.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_strings_whole_numbers_and_booleans() {
        let text = r#"{"a":true,"b":-3,"c":"x"}"#;
        let read: RowsWhere = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        let shown: Vec<String> = read.values().map(ToString::to_string).collect();
        assert_eq!(shown, ["true", "-3", "\"x\""]);
        for wrong in ["1.5", "[1]", "null", "18446744073709551615"] {
            let problem = serde_json::from_str::<WhereValue>(wrong).unwrap_err();
            let expected = "expected a string, a whole number, true or false";
            assert!(problem.to_string().contains(expected), "{problem}");
        }
    }
}
