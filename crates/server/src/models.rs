//! The models of a server: how they are named, loaded, dropped and probed.

pub(crate) mod library;
pub(crate) mod model;
pub(crate) mod probe;
pub(crate) mod registry;
