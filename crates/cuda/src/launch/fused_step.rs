//! Steps of a few tokens: all phases in one launch, a block a multiprocessor.

use std::sync::Arc;

use tern_graph::BackendError;

use super::program::Kinds;
use crate::driver::{Compiler, Device, Grid, Kernel, Memory, Source};
use crate::lower::linear_shape::{self, LinearShape};
use crate::lower::number;
use crate::shared::{
    INFO_BYTES, KEYS, LinearArgs, MOST_TABLES, MOST_TOKENS, Phase, RawPhase, StepArgs, WARPS, WINDOW,
};

type Result<T> = std::result::Result<T, BackendError>;

/// Slots of the ring at most, and bytes of one at least: smaller ones would only be more to look after.
const MOST_SLOTS: usize = 32;
const LEAST_SLOT: usize = 9 * 1024;
/// Bytes of keys on their way to a block: enough for all blocks together to keep memory busy.
const KEYS_FLYING: usize = 80 * 1024;

/// What such a step goes through.
pub(crate) struct StepOf<'a> {
    pub(crate) phases: &'a [Phase],
    /// Phases before which all blocks wait for each other; those after the last one do.
    pub(crate) waits: &'a [bool],
    /// Rotary tables, and pairs of each.
    pub(crate) ropes: &'a [(u64, usize)],
    pub(crate) inputs: u64,
}

/// Steps of up to so many tokens.
pub(crate) struct Few {
    tokens: usize,
    kernel: Kernel,
    args: StepArgs,
    blocks: usize,
    shared: usize,
    /// Values that blocks hand on, with the mark of the last step, and how many rows it had.
    handed: Memory,
    last_tokens: usize,
    _phases: Memory,
}

impl Few {
    /// The sizes of step to try: none if the device is too old or the model has odd heads.
    pub(crate) fn sizes(
        device: &Device,
        kinds: &Kinds,
        phases: &[Phase],
        ropes: &[(u64, usize)],
        max_tokens: usize,
    ) -> Vec<usize> {
        let odd = |p: &Phase| match p {
            Phase::Attend(a) => a.head_dim % 8 != 0 || a.v_dim % 8 != 0 || a.pairs % 4 != 0,
            _ => false,
        };
        let old = device.facts.capability < (8, 0); // no barriers in shared memory
        let odd = phases.iter().any(odd) || !kinds.page_len.is_multiple_of(KEYS);
        if old || odd || ropes.len() > MOST_TABLES {
            return vec![];
        }
        [1, MOST_TOKENS].into_iter().filter(|&t| t == 1 || max_tokens > 1).collect()
    }

    /// For steps of up to `tokens`; none if they do not fit into shared memory.
    pub(crate) fn new(
        device: &Arc<Device>,
        compiler: &mut Compiler,
        kinds: &Kinds,
        step: &StepOf<'_>,
        tokens: usize,
        handed: Memory,
    ) -> Result<Option<Few>> {
        let room = Room::new(kinds, step.phases, step.ropes, tokens);
        let Some(ring) = room.ring(device.facts.shared_memory) else { return Ok(None) };
        let (mut shapes, mut times) = (vec![], 0);
        let raw = step.phases.iter().enumerate().map(|(i, phase)| {
            let waits = step.waits.get(i).is_none_or(|w| *w);
            times += i32::from(waits);
            let shape = match phase {
                Phase::Linear(l) => number(&mut shapes, LinearShape::of(l, ring.0)),
                _ => 0,
            };
            phase.raw(if waits { times } else { 0 }, shape)
        });
        let raw: Vec<RawPhase> = raw.collect();
        let table = device.upload(bytemuck::cast_slice(&raw))?;
        let mut args = StepArgs {
            phases: table.pointer(),
            inputs: step.inputs,
            tables: step.ropes.len() as i32,
            count: step.phases.len() as i32,
            ..StepArgs::default()
        };
        for (i, &(at, pairs)) in step.ropes.iter().enumerate() {
            (args.freqs[i], args.pairs[i]) = (at, pairs as i32);
        }
        let (shared, blocks) = (ring.0 * ring.1 + room.rest(), device.facts.processors);
        let defines = [kinds.defines(), room.defines(ring), linear_shape::defines(&shapes, blocks)].concat();
        let module = compiler.module(Source::Step, &defines)?;
        let kernel = module.kernel("one_launch")?.with_shared_memory(shared)?;
        Ok(Some(Few { tokens, kernel, args, blocks, shared, handed, last_tokens: 0, _phases: table }))
    }

    pub(crate) fn most_tokens(&self) -> usize {
        self.tokens
    }

    /// A step of so many tokens.
    pub(crate) fn launch(&mut self, tokens: usize) -> Result<()> {
        if tokens > self.last_tokens {
            // rows that the last step did not have may bear any mark: now they bear the other one
            self.handed.clear()?;
            self.args.epoch = 0;
        }
        self.args.epoch ^= 1;
        self.last_tokens = tokens;
        let grid = Grid { x: self.blocks, y: 1, threads: (WARPS + 1) * 32, shared: self.shared };
        // SAFETY: the struct is the kernel's, and what it points to lives as long as the program.
        unsafe { self.kernel.launch_together(grid, &self.args) }
    }
}

/// What a block needs of shared memory.
pub(crate) struct Room {
    tokens: usize,
    /// The least slot that takes a round of every matrix, and some keys.
    slot: usize,
    x: usize,
    scales: usize,
    sums: usize,
    turns: usize,
    arena: usize,
    most_pairs: usize,
}

/// The phases at hand, and the one that is read for.
const WINDOW_BYTES: usize = (WINDOW + 1) * size_of::<RawPhase>();
const GATES: usize = 2 * MOST_SLOTS * 8;
/// A float for every warp and token.
const ROOM: usize = WARPS * MOST_TOKENS * 4;

/// Tiles whose rows are written together.
fn held_tiles(tokens: usize) -> usize {
    if tokens == 1 { 12 } else { 4 }
}

impl Room {
    pub(crate) fn new(kinds: &Kinds, phases: &[Phase], ropes: &[(u64, usize)], tokens: usize) -> Room {
        let linears = || phases.iter().filter_map(|p| if let Phase::Linear(l) = p { Some(l) } else { None });
        let chunks = linears().map(|l| l.chunks as usize).max().unwrap_or(0);
        let round = |l: &LinearArgs| {
            let bytes = l.part[..l.parts as usize].iter().map(|p| p.bytes as usize);
            bytes.max().unwrap_or(0) * WARPS.min(l.chunks as usize)
        };
        let slots = linears().map(round).chain(kinds.shapes.iter().map(|s| s.slot()));
        let x = chunks * 256 * tokens;
        let scales = chunks * tokens * 4;
        let sums = if kinds.offset_sums() { chunks * tokens * 32 } else { 0 };
        let shares = held_tiles(tokens) * (WARPS * 16 + 16) * tokens * 4;
        let attention = kinds.shapes.iter().map(|s| s.workspace()).max().unwrap_or(0);
        let scales = scales.next_multiple_of(16);
        let arena = (x + scales + sums + shares).max(attention).next_multiple_of(16);
        let most_pairs = ropes.iter().map(|r| r.1).max().unwrap_or(0).max(1);
        let turns = (ropes.len() * tokens * most_pairs * 8).next_multiple_of(16);
        let slot = slots.max().unwrap_or(0).max(LEAST_SLOT).next_multiple_of(128);
        Room { tokens, slot, x, scales, sums, turns, arena, most_pairs }
    }

    fn rest(&self) -> usize {
        WINDOW_BYTES + GATES + INFO_BYTES + ROOM + self.turns + self.arena
    }

    /// Bytes of a slot of the ring, and slots; none if there is no room for two.
    fn ring(&self, memory: usize) -> Option<(usize, usize)> {
        let free = memory.saturating_sub(2048).checked_sub(self.rest())?; // some is the kernel's own
        let slots = (free / self.slot).min(MOST_SLOTS);
        let slots = if slots > 8 { slots / 4 * 4 } else { slots }; // warps share them evenly
        Some((self.slot, slots)).filter(|ring| ring.1 >= 2)
    }

    /// How large everything is, and where it lies.
    pub(crate) fn defines(&self, (slot, slots): (usize, usize)) -> Vec<(&'static str, String)> {
        let parts = [
            ("AT_WINDOW", WINDOW_BYTES),
            ("AT_GATES", GATES),
            ("AT_INFO", INFO_BYTES),
            ("AT_ROOM", ROOM),
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
