//! Tests of id columns.
