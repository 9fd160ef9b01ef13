//! Steps of a few tokens: all phases in one launch, a block a multiprocessor.

use std::sync::Arc;

use tern_graph::BackendError;

use crate::compiler::{Compiler, Source};
use crate::driver::{Device, Kernel, Memory};
use crate::lower::SLOT;
use crate::phase::{MOST_TABLES, Phase, RawPhase, StepArgs};
use crate::program::Kinds;

type Result<T> = std::result::Result<T, BackendError>;

/// The most tokens of such a step: the matrix unit takes four at a time.
pub(crate) const MOST_TOKENS: usize = 4;
/// Phases that a block has at hand: the one it is in, and those whose weights it reads ahead.
pub(crate) const WINDOW: usize = 4;
const WARPS: usize = 16;
/// Slots of a warp's ring at most: more than enough to hide the way to memory.
const MOST_SLOTS: usize = 8;

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
        if ropes.len() > MOST_TABLES || kinds.shapes.iter().any(|s| s.head_dim % 8 != 0 || s.v_dim % 8 != 0) {
            return Ok(vec![]);
        }
        let mut all = vec![];
        for tokens in [1, MOST_TOKENS].into_iter().filter(|&t| t == 1 || max_tokens > 1) {
            let mut args = StepArgs { inputs, count: phases.len() as i32, ..StepArgs::default() };
            for (i, &(at, pairs)) in ropes.iter().enumerate() {
                (args.freqs[i], args.pairs[i]) = (at, pairs as i32);
            }
            args.tables = ropes.len() as i32;
            args.most_pairs = ropes.iter().map(|r| r.1).max().unwrap_or(0) as i32;
            let room = Room::new(kinds, phases, device.facts.processors, tokens);
            let Some(depth) = room.place(&mut args, tokens, device.facts.shared_memory) else { break };
            let shared = room.bytes(&args);
            let raw: Vec<RawPhase> = phases.iter().map(Phase::raw).collect();
            // SAFETY: phases are plain numbers, and every byte of them has a value.
            let bytes = unsafe { std::slice::from_raw_parts(raw.as_ptr().cast::<u8>(), size_of_val(&raw[..])) };
            let table = device.upload(bytes)?;
            args.phases = table.pointer();
            let module = compiler.module(Source::Step, &kinds.for_step(tokens, depth))?;
            let kernel = module.kernel("one_launch")?.with_shared_memory(shared)?;
            let blocks = device.facts.processors;
            all.push(Few { tokens, kernel, args, blocks, shared, _phases: table });
        }
        Ok(all)
    }

    pub(crate) fn most_tokens(&self) -> usize {
        self.tokens
    }

    pub(crate) fn launch(&self) -> Result<()> {
        // SAFETY: the struct is the kernel's, and what it points to lives as long as the program.
        unsafe { self.kernel.launch_together(self.blocks, WARPS * 32, self.shared, &self.args) }
    }
}

/// What a block needs of shared memory, in bytes.
struct Room {
    x: usize,
    scales: usize,
    sums: usize,
    shares: usize,
    arena: usize,
}

impl Room {
    fn new(kinds: &Kinds, phases: &[Phase], blocks: usize, tokens: usize) -> Room {
        let linears = || phases.iter().filter_map(|p| if let Phase::Linear(l) = p { Some(l) } else { None });
        let chunks = linears().map(|l| l.chunks as usize).max().unwrap_or(0);
        let tasks = linears().map(|l| {
            let parts = &l.part[..l.parts as usize];
            let tiles: i32 = if l.gated > 0 { parts[0].tiles } else { parts.iter().map(|p| p.tiles).sum() };
            let share = (tiles as usize).div_ceil(blocks) * if l.gated > 0 { 2 } else { 1 };
            share * l.slices as usize
        });
        let x = chunks * 256 * tokens;
        let scales = (chunks * tokens * 4).next_multiple_of(16);
        let sums = if kinds.offset_sums() { chunks * tokens * 32 } else { 16 };
        let shares = tasks.max().unwrap_or(0) * 16 * tokens * 4;
        let attention = kinds.shapes.iter().map(|s| s.room() * 4).max().unwrap_or(0);
        let arena = (x + scales + sums + shares).max(attention).next_multiple_of(16);
        Room { x, scales, sums, shares, arena }
    }

    /// Puts everything behind the rings; gives the slots of a ring, or none if it does not fit.
    fn place(&self, args: &mut StepArgs, tokens: usize, memory: usize) -> Option<usize> {
        let window = WINDOW * size_of::<RawPhase>();
        let states = WARPS * 24;
        let turns = args.tables as usize * tokens * args.most_pairs as usize * 8;
        let rest = window + states + 128 + turns.next_multiple_of(16) + self.arena;
        let free = memory.saturating_sub(2048).checked_sub(rest)?; // some is the kernel's own
        let depth = (free / (WARPS * SLOT)).min(MOST_SLOTS);
        let mut at = depth * WARPS * SLOT;
        let mut take = |bytes: usize| {
            let here = at;
            at += bytes;
            here as i32
        };
        args.window = take(window);
        args.states = take(states);
        args.room = take(128);
        args.turns = take(turns.next_multiple_of(16));
        args.arena = take(self.arena);
        args.scales = self.x as i32;
        args.sums = (self.x + self.scales) as i32;
        args.shares = (self.x + self.scales + self.sums) as i32;
        (depth > 0).then_some(depth)
    }

    fn bytes(&self, args: &StepArgs) -> usize {
        debug_assert!(args.shares as usize + self.shares <= self.arena);
        args.arena as usize + self.arena
    }
}
