//! Architectures: metadata to a graph.
