//! Trains GNN models on stored neighbourhoods with a parameter server.
