//! What a model will take of a device's memory, known before it is taken.

use std::fmt;

use crate::{OnHost, units};

/// Bytes that a model needs on its device, and of the host's memory for a device that has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The weights.
    pub weights: u64,
    /// The adapters.
    pub adapters: u64,
    /// The weights of the tower of images, which the CPU computes.
    pub tower: u64,
    /// Whether the device has its own memory, in which the tower is not.
    pub tower_on_host: bool,
    /// The KV cache.
    pub kv: u64,
    /// Tokens that the KV cache holds.
    pub kv_tokens: usize,
    /// Tokens that it holds in layers with a window, if they have their own pages.
    pub window_tokens: Option<usize>,
    /// The state of recurrent layers.
    pub state: u64,
    /// Slots of it: for running sequences, and for snapshots.
    pub state_slots: usize,
    /// The scratch memory of a step.
    pub scratch: u64,
    /// What it takes of the host's memory beside that.
    pub host: Option<HostMemory>,
}

/// What is in host memory beside a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// The layers or experts.
    pub part: OnHost,
    /// Layers that could be there: all, or those that have experts.
    pub all_layers: usize,
    /// Bytes of their weights.
    pub weights: u64,
    /// Bytes of the KV cache of these layers.
    pub kv: u64,
    /// Bytes of the state of these layers.
    pub state: u64,
    /// The scratch memory of a step.
    pub scratch: u64,
}

impl HostMemory {
    /// All of it.
    pub fn total(&self) -> u64 {
        [self.kv, self.state, self.scratch].into_iter().fold(self.weights, u64::saturating_add)
    }

    /// The memory of the machine, if that is less.
    pub(crate) fn exceeds(&self) -> Option<u64> {
        Some(tern_cpu::FreeMemory::now().total).filter(|total| self.total() > *total)
    }
}

/// `; experts of 12 of 48 layers in host memory, 4.2 GiB` or
/// `; layers 0 to 17 of 36 on the CPU: weights 2.1 GiB, KV 1.0 MiB, scratch 1.0 MiB`
impl fmt::Display for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, weights) = (self.all_layers, units::bytes(self.weights));
        match self.part {
            OnHost::Nothing => return Ok(()),
            OnHost::Experts(layers) => {
                return write!(f, "; experts of {layers} of {all} layers in host memory, {weights}");
            }
            OnHost::Layers(1) => write!(f, "; layer 0 of {all} on the CPU: weights {weights}")?,
            OnHost::Layers(n) => write!(f, "; layers 0 to {} of {all} on the CPU: weights {weights}", n - 1)?,
        }
        let others = [("KV", self.kv), ("state", self.state), ("scratch", self.scratch)];
        others
            .iter()
            .filter(|(_, bytes)| *bytes > 0)
            .try_for_each(|(name, bytes)| write!(f, ", {name} {}", units::bytes(*bytes)))
    }
}

impl MemoryPlan {
    /// All of it on the device.
    pub fn total(&self) -> u64 {
        let tower = if self.tower_on_host { 0 } else { self.tower };
        [self.adapters, tower, self.kv, self.state, self.scratch]
            .into_iter()
            .fold(self.weights, u64::saturating_add)
    }
}

/// `weights 3.7 MiB, KV 1.0 MiB for 512 tokens, scratch 2.1 MiB`; with adapters
/// `weights 3.7 MiB, adapters 0.4 MiB`, with a tower `images 600.0 MiB`, beside a GPU
/// `images 600.0 MiB in host memory`, with layers with a window
/// `KV 1.0 MiB for 4,096 tokens (1,024 in window layers)`, with recurrent layers also
/// `state 190.0 MiB in 10 slots`, with experts in host memory
/// `; experts of 12 of 48 layers in host memory, 4.2 GiB`.
impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weights {}", units::bytes(self.weights))?;
        if self.adapters > 0 {
            write!(f, ", adapters {}", units::bytes(self.adapters))?;
        }
        if self.tower > 0 {
            let place = if self.tower_on_host { " in host memory" } else { "" };
            write!(f, ", images {}{place}", units::bytes(self.tower))?;
        }
        write!(f, ", KV {} for {} tokens", units::bytes(self.kv), units::thousands(self.kv_tokens as u64))?;
        if let Some(tokens) = self.window_tokens {
            write!(f, " ({} in window layers)", units::thousands(tokens as u64))?;
        }
        if self.state_slots > 0 {
            let slots = units::thousands(self.state_slots as u64);
            write!(f, ", state {} in {slots} slots", units::bytes(self.state))?;
        }
        write!(f, ", scratch {}", units::bytes(self.scratch))?;
        self.host.map_or(Ok(()), |host| write!(f, "{host}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_all_parts_of_the_memory() {
        let mib = 1 << 20;
        let (kv, kv_tokens, window_tokens) = (4 * mib, 4096, None);
        let plan = MemoryPlan {
            weights: 9 * mib,
            adapters: 0,
            tower: 0,
            tower_on_host: false,
            kv,
            kv_tokens,
            window_tokens,
            state: 0,
            state_slots: 0,
            scratch: mib,
            host: None,
        };
        assert_eq!(plan.to_string(), "weights 9.0 MiB, KV 4.0 MiB for 4,096 tokens, scratch 1.0 MiB");
        let plan = MemoryPlan { window_tokens: Some(512), state: 20 * mib, state_slots: 10, ..plan };
        let text = "weights 9.0 MiB, KV 4.0 MiB for 4,096 tokens (512 in window layers), state 20.0 MiB in 10 slots, \
                    scratch 1.0 MiB";
        assert_eq!((plan.to_string().as_str(), plan.total()), (text, 34 * mib));
        let plan = MemoryPlan { adapters: 3 * mib, ..plan };
        let sees = MemoryPlan { tower: 2 * mib, ..plan };
        assert!(
            sees.to_string().contains("adapters 3.0 MiB, images 2.0 MiB, KV") && sees.total() == 39 * mib
        );
        let beside = MemoryPlan { tower_on_host: true, ..sees };
        assert!(
            beside.to_string().contains("images 2.0 MiB in host memory, KV") && beside.total() == 37 * mib
        );
        assert!(
            plan.to_string().starts_with("weights 9.0 MiB, adapters 3.0 MiB, KV") && plan.total() == 37 * mib
        );
    }
}
