//! Tests of shards and graph features.
