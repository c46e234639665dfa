//! Computes embeddings and predictions of every node, layer by layer.
