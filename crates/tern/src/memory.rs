//! What a model will take of a device's memory, known before it is taken.

use std::fmt;

use crate::units;

/// Bytes that a model needs on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The weights.
    pub weights: u64,
    /// The KV cache.
    pub kv: u64,
    /// Tokens that the KV cache holds.
    pub kv_tokens: usize,
    /// Tokens that it holds in layers with a window, if they have their own pages.
    pub window_tokens: Option<usize>,
    /// The scratch memory of a step.
    pub scratch: u64,
}

impl MemoryPlan {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.scratch)
    }
}

/// `weights 3.7 MiB, KV 1.0 MiB for 512 tokens, scratch 2.1 MiB`; with layers with a window `KV 1.0 MiB for 4,096 tokens (1,024 in
/// window layers)`.
impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "weights {}, KV {} for {} tokens",
            units::bytes(self.weights),
            units::bytes(self.kv),
            units::thousands(self.kv_tokens as u64),
        )?;
        if let Some(tokens) = self.window_tokens {
            write!(f, " ({} in window layers)", units::thousands(tokens as u64))?;
        }
        write!(f, ", scratch {}", units::bytes(self.scratch))
    }
}
