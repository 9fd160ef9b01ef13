//! Commands about model files: what they contain, where they come from, and writing them.

pub(crate) mod convert;
pub(crate) mod inspect;
pub(crate) mod models;
pub(crate) mod remove;
pub(crate) mod show;
pub(crate) mod synth;
