//! The models of a server: how they are named, loaded, dropped, downloaded and probed.

pub(crate) mod keep;
pub(crate) mod library;
pub(crate) mod many;
pub(crate) mod model;
pub(crate) mod names;
pub(crate) mod probe;
pub(crate) mod pulls;
pub(crate) mod refusals;
pub(crate) mod registry;
pub(crate) mod slot;
