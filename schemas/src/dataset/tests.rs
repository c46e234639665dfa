//! Tests of output directories.
