//! Fused aggregation kernels on compressed rows, forward and backward, free of any tensor library.

mod csr;

pub use csr::{Csr, Partitioning, Transposed};
