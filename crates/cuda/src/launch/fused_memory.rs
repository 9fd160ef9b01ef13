//! Shared memory of a block of the fused step: what is in it, and how much of it the ring gets.

use crate::lower::KernelConfig;
use crate::shared::{INFO_BYTES, LinearArgs, MOST_TOKENS, Phase, RawPhase, TILE, WARPS, WINDOW};

/// Slots of the ring at most.
const MOST_SLOTS: usize = 32;
/// Bytes of a slot at least: smaller ones cost more synchronisation than they gain.
const LEAST_SLOT: usize = 9 * 1024;
/// Bytes of keys in flight to a block: enough for all blocks together to saturate memory.
const KEYS_FLYING: usize = 80 * 1024;
/// Bytes that the kernel's static shared memory and the driver need.
const RESERVED: usize = 2048;

/// The phases of the window, and the one that the reading warp is at.
const WINDOW_BYTES: usize = (WINDOW + 1) * size_of::<RawPhase>();
/// Two barriers per slot.
const GATES: usize = 2 * MOST_SLOTS * 8;
/// A float per warp and token.
const WARP_FLOATS: usize = WARPS * MOST_TOKENS * 4;

/// A rotary table on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeTable {
    pub(crate) at: u64,
    pub(crate) pairs: usize,
}

/// Sizes of everything but the ring.
pub(crate) struct FusedMemory {
    tokens: usize,
    /// Bytes of the smallest slot that holds a round of each matrix, and a slot of keys.
    slot: usize,
    x: usize,
    scales: usize,
    sums: usize,
    turns: usize,
    arena: usize,
    most_pairs: usize,
}

/// The ring that weights and keys come through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    /// Bytes of a slot.
    pub(crate) slot: usize,
    pub(crate) slots: usize,
}

/// Tiles whose rows are written together.
fn held_tiles(tokens: usize) -> usize {
    match tokens {
        1 => 12,
        2 => 8,
        _ => 4,
    }
}

impl FusedMemory {
    /// For steps of up to `tokens`.
    pub(crate) fn new(
        config: &KernelConfig,
        phases: &[Phase],
        ropes: &[RopeTable],
        tokens: usize,
    ) -> FusedMemory {
        let linears = || phases.iter().filter_map(|p| if let Phase::Linear(l) = p { Some(l) } else { None });
        let chunks = linears().map(|l| l.chunks as usize).max().unwrap_or(0);
        let round = |l: &LinearArgs| {
            let bytes = l.part[..l.parts as usize].iter().map(|p| p.bytes as usize);
            bytes.max().unwrap_or(0) * WARPS.min(l.chunks as usize)
        };
        let slots = linears().map(round).chain(config.attentions.iter().map(|s| s.slot()));
        let x = chunks * 256 * tokens;
        let scales = (chunks * tokens * 4).next_multiple_of(16);
        let sums = if config.offset_sums() { chunks * tokens * 32 } else { 0 };
        let shares = held_tiles(tokens) * (WARPS * TILE + TILE) * tokens * 4;
        let attention = config.attentions.iter().map(|s| s.workspace()).max().unwrap_or(0);
        let arena = (x + scales + sums + shares).max(attention).next_multiple_of(16);
        let most_pairs = ropes.iter().map(|r| r.pairs).max().unwrap_or(0).max(1);
        let turns = (ropes.len() * tokens * most_pairs * 8).next_multiple_of(16);
        let slot = slots.max().unwrap_or(0).max(LEAST_SLOT).next_multiple_of(128);
        FusedMemory { tokens, slot, x, scales, sums, turns, arena, most_pairs }
    }

    fn without_ring(&self) -> usize {
        WINDOW_BYTES + GATES + INFO_BYTES + WARP_FLOATS + self.turns + self.arena
    }

    /// Bytes of everything.
    pub(crate) fn bytes(&self, ring: Ring) -> usize {
        ring.slot * ring.slots + self.without_ring()
    }

    /// The largest ring in `memory` bytes; `None` if there is no space for two slots.
    pub(crate) fn ring(&self, memory: usize) -> Option<Ring> {
        let free = memory.saturating_sub(RESERVED).checked_sub(self.without_ring())?;
        let slots = (free / self.slot).min(MOST_SLOTS);
        let slots = if slots > 8 { slots / 4 * 4 } else { slots }; // warps share them evenly
        Some(Ring { slot: self.slot, slots }).filter(|ring| ring.slots >= 2)
    }

    /// Sizes and offsets, as the kernel is compiled with them.
    pub(crate) fn defines(&self, Ring { slot, slots }: Ring) -> Vec<(&'static str, String)> {
        let parts = [
            ("AT_WINDOW", WINDOW_BYTES),
            ("AT_GATES", GATES),
            ("AT_INFO", INFO_BYTES),
            ("AT_WARP_FLOATS", WARP_FLOATS),
            ("AT_TURNS", self.turns),
            ("AT_ARENA", self.arena),
        ];
        let mut at = slots * slot;
        let mut all: Vec<(&str, usize)> = vec![];
        for (name, bytes) in parts {
            all.push((name, at));
            at += bytes;
        }
        all.extend([
            ("SLOTS", slots),
            ("SLOT", slot),
            ("KEYS_FLYING", (KEYS_FLYING / slot).clamp(1, slots - 1)),
            ("TOKENS_AT_ONCE", self.tokens),
            ("HELD_TILES", held_tiles(self.tokens)),
            ("ARENA", self.arena),
            ("AT_SCALES", self.x),
            ("AT_SUMS", self.x + self.scales),
            ("AT_SHARES", self.x + self.scales + self.sums),
            ("MOST_PAIRS", self.most_pairs),
        ]);
        all.into_iter().map(|(name, value)| (name, value.to_string())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Part;

    /// A model with one linear of `cols`, as H200 blocks have 227 KiB.
    fn memory(cols: i32, tokens: usize) -> FusedMemory {
        let mut linear = LinearArgs { cols, chunks: cols / 128, parts: 1, ..LinearArgs::default() };
        linear.part[0] = Part { bytes: 1280, rows: 4096, ..Part::default() };
        let ropes = [RopeTable { at: 0, pairs: 64 }];
        FusedMemory::new(&KernelConfig::default(), &[Phase::Linear(linear)], &ropes, tokens)
    }

    #[test]
    fn the_ring_gets_the_rest_of_shared_memory() {
        let memory = memory(4096, 1);
        let ring = memory.ring(227 << 10).unwrap();
        assert_eq!(ring.slot, 16 * 1280); // a round of all warps
        assert!(ring.slots >= 8 && memory.bytes(ring) + RESERVED <= 227 << 10);
        let defines = memory.defines(ring);
        let value = |name: &str| defines.iter().find(|d| d.0 == name).map(|d| d.1.clone()).unwrap();
        assert_eq!(value("AT_WINDOW"), (ring.slot * ring.slots).to_string());
        assert_eq!(value("TOKENS_AT_ONCE"), "1");
    }

    #[test]
    fn a_step_that_leaves_no_space_for_two_slots_is_not_fused() {
        assert_eq!(memory(4096, 4).ring(48 << 10), None);
        assert_eq!(memory(65536, 4).ring(227 << 10), None);
    }
}
