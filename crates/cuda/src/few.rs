//! Steps of a few tokens: all phases in one launch, a block a multiprocessor.

use std::sync::Arc;

use tern_graph::BackendError;

use crate::compiler::{Compiler, Source};
use crate::driver::{Device, Kernel, Memory};
use crate::layout::LARGEST_RECORD;
use crate::phase::{MOST_TABLES, Phase, RawPhase, StepArgs};
use crate::program::Kinds;

type Result<T> = std::result::Result<T, BackendError>;

/// The most tokens of such a step: the matrix unit takes four at a time.
pub(crate) const MOST_TOKENS: usize = 4;
/// Phases that a block has at hand: the one it is in, and those whose weights it reads ahead.
pub(crate) const WINDOW: usize = 4;
/// Warps of a block that compute; one more reads weights.
pub(crate) const WARPS: usize = 16;
/// Slots of the ring: a power of two.
const SLOTS: usize = 16;
/// Bytes of a slot at most: more would not come sooner.
const MOST_SLOT: usize = 12 * 1024;

/// Steps of up to so many tokens.
pub(crate) struct Few {
    tokens: usize,
    kernel: Kernel,
    args: StepArgs,
    blocks: usize,
    shared: usize,
    _phases: Memory,
}

impl Few {
    /// For one token and for four, as far as they fit into shared memory and the model has no odd heads.
    pub(crate) fn all(
        device: &Arc<Device>,
        compiler: &mut Compiler,
        kinds: &Kinds,
        phases: &[Phase],
        ropes: &[(u64, usize)],
        inputs: u64,
        max_tokens: usize,
    ) -> Result<Vec<Few>> {
        let odd = |p: &Phase| match p {
            Phase::Attend(a) => a.head_dim % 8 != 0 || a.v_dim % 8 != 0 || a.pairs % 8 != 0,
            _ => false,
        };
        let old = device.facts.capability < (8, 0); // no barriers in shared memory
        if old || ropes.len() > MOST_TABLES || phases.iter().any(odd) {
            return Ok(vec![]);
        }
        let mut args = StepArgs { inputs, count: phases.len() as i32, ..StepArgs::default() };
        for (i, &(at, pairs)) in ropes.iter().enumerate() {
            (args.freqs[i], args.pairs[i]) = (at, pairs as i32);
        }
        args.tables = ropes.len() as i32;
        let mut all = vec![];
        for tokens in [1, MOST_TOKENS].into_iter().filter(|&t| t == 1 || max_tokens > 1) {
            let room = Room::new(kinds, phases, ropes, device.facts.processors, tokens);
            let Some(slot) = room.slot(device.facts.shared_memory) else { break };
            let raw: Vec<RawPhase> = phases.iter().map(|p| with_slot(p, slot).raw()).collect();
            // SAFETY: phases are plain numbers, and every byte of them has a value.
            let bytes =
                unsafe { std::slice::from_raw_parts(raw.as_ptr().cast::<u8>(), size_of_val(&raw[..])) };
            let table = device.upload(bytes)?;
            args.phases = table.pointer();
            let mut defines = kinds.defines();
            defines.push(("TOKENS_AT_ONCE", tokens.to_string()));
            defines.extend(room.defines(slot));
            let (shared, blocks) = (SLOTS * slot + room.rest(), device.facts.processors);
            let module = compiler.module(Source::Step, &defines)?;
            let kernel = module.kernel("one_launch")?.with_shared_memory(shared)?;
            all.push(Few { tokens, kernel, args, blocks, shared, _phases: table });
        }
        Ok(all)
    }

    pub(crate) fn most_tokens(&self) -> usize {
        self.tokens
    }

    pub(crate) fn launch(&self) -> Result<()> {
        // SAFETY: the struct is the kernel's, and what it points to lives as long as the program.
        unsafe { self.kernel.launch_together(self.blocks, (WARPS + 1) * 32, self.shared, &self.args) }
    }
}

/// A phase whose matrices know how many of their records a slot takes.
fn with_slot(phase: &Phase, slot: usize) -> Phase {
    let mut phase = *phase;
    if let Phase::Linear(l) = &mut phase {
        for part in &mut l.part[..l.parts as usize] {
            part.per_slot = slot as i32 / part.bytes;
            part.reciprocal = (1u32 << 31).div_ceil(part.per_slot as u32);
        }
    }
    phase
}

/// What a block needs of shared memory behind its rings, in bytes.
pub(crate) struct Room {
    x: usize,
    scales: usize,
    sums: usize,
    turns: usize,
    arena: usize,
    most_pairs: usize,
}

/// The phases at hand, and the one whose weights are read.
const WINDOW_BYTES: usize = (WINDOW + 1) * size_of::<RawPhase>();
const GATES: usize = 2 * SLOTS * 8;
/// The step's info, and a float a warp.
const SMALL: usize = 128;

impl Room {
    pub(crate) fn new(
        kinds: &Kinds,
        phases: &[Phase],
        ropes: &[(u64, usize)],
        blocks: usize,
        tokens: usize,
    ) -> Room {
        let linears = || phases.iter().filter_map(|p| if let Phase::Linear(l) = p { Some(l) } else { None });
        let chunks = linears().map(|l| l.chunks as usize).max().unwrap_or(0);
        let tasks = linears().map(|l| {
            let units = l.share as usize + usize::from(l.extra > 0);
            units.min(l.share as usize * blocks + l.extra as usize)
                * if l.gated > 0 { 2 } else { 1 }
                * l.slices as usize
        });
        let x = chunks * 256 * tokens;
        let scales = (chunks * tokens * 4).next_multiple_of(16);
        let sums = if kinds.offset_sums() || kinds.any_signs() { chunks * tokens * 32 } else { 16 };
        let shares = tasks.max().unwrap_or(0) * 16 * tokens * 4;
        let attention = kinds.shapes.iter().map(|s| s.room()).max().unwrap_or(0);
        let arena = (x + scales + sums + shares).max(attention).next_multiple_of(16);
        let most_pairs = ropes.iter().map(|r| r.1).max().unwrap_or(0).max(1);
        let turns = (ropes.len() * tokens * most_pairs * 8).next_multiple_of(16);
        Room { x, scales, sums, turns, arena, most_pairs }
    }

    fn rest(&self) -> usize {
        WINDOW_BYTES + GATES + 2 * SMALL + self.turns + self.arena
    }

    /// Bytes of a slot of the ring; none if the largest record does not fit.
    fn slot(&self, memory: usize) -> Option<usize> {
        let free = memory.saturating_sub(2048).checked_sub(self.rest())?; // some is the kernel's own
        Some((free / SLOTS / 128 * 128).min(MOST_SLOT)).filter(|&slot| slot >= LARGEST_RECORD)
    }

    /// Where everything lies.
    pub(crate) fn defines(&self, slot: usize) -> Vec<(&'static str, String)> {
        let mut at = SLOTS * slot;
        let mut all = vec![("SLOTS", SLOTS.to_string()), ("SLOT", slot.to_string())];
        let parts = [
            ("AT_WINDOW", WINDOW_BYTES),
            ("AT_GATES", GATES),
            ("AT_INFO", SMALL),
            ("AT_ROOM", SMALL),
            ("AT_TURNS", self.turns),
            ("AT_ARENA", self.arena),
        ];
        for (name, bytes) in parts {
            all.push((name, at.to_string()));
            at += bytes;
        }
        all.extend([
            ("AT_SCALES", self.x.to_string()),
            ("AT_SUMS", (self.x + self.scales).to_string()),
            ("AT_SHARES", (self.x + self.scales + self.sums).to_string()),
            ("MOST_PAIRS", self.most_pairs.to_string()),
        ]);
        all
    }
}
