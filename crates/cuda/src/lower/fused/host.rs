//! What the host does between launches.

use tern_graph::Val;

/// A phase that is no kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum HostPhase {
    /// Rows of the step's input `index` go to the device.
    Write { index: usize, out: Val },
    /// Rows of x and of the router's logits go to the host.
    Send { x: Val, logits: Val, piece: usize, out: Val },
    /// The host computes the experts of a piece for the rows that were sent last, and
    /// their sum goes to the device.
    Receive { piece: usize, out: Val },
}

impl HostPhase {
    pub(in crate::lower) fn reads(self) -> Vec<Val> {
        match self {
            HostPhase::Send { x, logits, .. } => vec![x, logits],
            HostPhase::Write { .. } | HostPhase::Receive { .. } => vec![],
        }
    }

    pub(in crate::lower) fn writes(self) -> Vec<Val> {
        match self {
            HostPhase::Write { out, .. } | HostPhase::Receive { out, .. } => vec![out],
            HostPhase::Send { .. } => vec![],
        }
    }
}
