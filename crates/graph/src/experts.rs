//! Mixtures of experts: their ops, which experts compute a token, and experts that the host
//! computes in its own memory.

mod expert_split;
mod host_experts;
mod host_ops;
mod ops;
mod routing;

pub use expert_split::{ExpertPiece, ExpertSplit};
pub use host_experts::HostExperts;
pub use host_ops::{HostOps, HostOpsHandle, HostRows};
pub use routing::{ExpertGroups, Gating, Routing, RoutingWorkspace};
