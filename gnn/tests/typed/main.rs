//! Typed models: against a slow twin and `PyG`, gradients, slices, files.
#![cfg(test)]
#![allow(
    clippy::shadow_unrelated,
    clippy::unwrap_used,
    reason = "loops name an element like its list"
)]

#[path = "../support/mod.rs"]
mod support;

mod errors;
mod files;
mod forward;
mod gradient;
mod graph;
mod learnable;
mod models;
mod pyg;
mod slices;
mod split;
mod twin;
