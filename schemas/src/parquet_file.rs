//! Parquet files of our own: how they are written and opened.
