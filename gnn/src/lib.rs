//! GNN layers, models and the aggregation kernels they run on.
