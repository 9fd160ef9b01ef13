//! From weights to blocks: the entry for all formats, and the rounding and the searches for
//! scales that encoders share.

mod encode;
pub(crate) mod fit;
pub(crate) mod importance;
pub(crate) mod rounding;
pub(crate) mod search;

pub use encode::EncodeError;
pub use importance::Importance;
