//! End-to-end tests: the real binary on generated graphs and, where data sets are available, on
//! real ones.
#![cfg(test)]

mod broken;
mod capacity;
mod cluster;
mod cluster_faults;
mod cluster_infer;
mod cluster_train;
mod cluster_typed;
mod columns;
mod cora;
mod csv;
mod embeddings;
mod ending;
mod errors;
mod fault_proxy;
mod flatten;
mod forward;
mod generate;
mod golden;
mod harness;
mod hosts;
mod infer;
mod infer_outputs;
mod inspect;
mod instruction_sets;
mod kinds;
mod manners;
mod memory;
mod needs;
mod pyg;
mod readers;
mod real;
mod resume;
mod s3_server;
mod store_faults;
mod stores;
mod stream;
mod tables;
mod train;
mod typed;
mod typed_errors;
mod typed_forward;
mod typed_infer;
mod typed_names;
mod verdicts;
