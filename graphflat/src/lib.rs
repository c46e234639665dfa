//! Flattens k-hop neighbourhoods on timely dataflow.
