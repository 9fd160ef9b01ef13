//! What a model is to a device: ops, shapes, the backend interface and the slow reference.
