//! Why a call of a backend failed.

/// What went wrong on a device, in one sentence; the variant tells the caller how to react.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// Not enough memory; a smaller request may succeed.
    #[error("{0}")]
    OutOfMemory(String),
    /// The device's context and everything in it are lost. All later calls fail; only a new process
    /// can use the device again.
    #[error("{0}")]
    DeviceLost(String),
    /// The device is missing, or cannot do this.
    #[error("{0}")]
    Unsupported(String),
    /// An invalid step, graph, binding or handle: an error of the caller.
    #[error("{0}")]
    Invalid(String),
    /// This call failed; a later one may succeed.
    #[error("{0}")]
    Other(String),
}

/// The result of a backend's call.
pub(crate) type Result<T> = std::result::Result<T, BackendError>;
