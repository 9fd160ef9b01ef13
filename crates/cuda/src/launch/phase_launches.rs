//! Steps of any size: one or two launches per phase.

use std::sync::Arc;

use tern_graph::BackendError;

use super::strategy::{LaunchStrategy, StepSize};
use crate::driver::{Device, Grid, Kernel, Memory, Module};
use crate::shared::{
    ATTEND_THREADS, AttendArgs, BLOCK_TOKENS, CHUNK, GemmArgs, IntegerX, LargePhase, LinearArgs,
    PHASE_THREADS, PHASE_WARPS, Phase, PhaseArgs, PrepareArgs, THREADS,
};

type Result<T> = std::result::Result<T, BackendError>;

/// Runs steps of up to `max_tokens`.
pub(crate) struct PhaseLaunches {
    max_tokens: usize,
    inputs: u64,
    phases: Vec<Phase>,
    prepare: Kernel,
    gemm: Kernel,
    small_phase: Kernel,
    make_heads: Kernel,
    attend: Kernel,
    argmax_share: Kernel,
    argmax_whole: Kernel,
    blocks: usize,
    x: XMemory,
}

/// x of a linear phase as integers, for the widest one.
struct XMemory {
    bytes: Memory,
    scales: Memory,
    sums: Memory,
}

impl XMemory {
    fn new(device: &Arc<Device>, chunks: usize, max_tokens: usize) -> Result<XMemory> {
        let cells = chunks * max_tokens.next_multiple_of(BLOCK_TOKENS);
        Ok(XMemory {
            bytes: device.allocate(cells * 2 * CHUNK)?,
            scales: device.allocate(cells * 4)?,
            sums: device.allocate(cells * 32)?,
        })
    }

    fn args(&self, rows: usize) -> IntegerX {
        IntegerX {
            bytes: self.bytes.pointer(),
            scales: self.scales.pointer(),
            sums: self.sums.pointer(),
            tokens: rows.next_multiple_of(BLOCK_TOKENS) as i64,
        }
    }
}

/// Bytes of x as integers, for rows of `chunks`.
pub(super) fn x_bytes(chunks: usize, tokens: usize) -> usize {
    chunks * tokens.next_multiple_of(BLOCK_TOKENS) * (2 * CHUNK + 4 + 32)
}

impl PhaseLaunches {
    pub(crate) fn new(
        device: &Arc<Device>,
        module: &Module,
        phases: Vec<Phase>,
        inputs: u64,
        max_tokens: usize,
    ) -> Result<PhaseLaunches> {
        let chunks = phases.iter().map(|p| if let Phase::Linear(l) = p { l.chunks as usize } else { 0 });
        let x = XMemory::new(device, chunks.max().unwrap_or(0), max_tokens)?;
        let heads = phases.iter().map(|p| if let Phase::Attend(a) = p { heads_bytes(a) } else { 0 });
        let make_heads = module.kernel("make_heads")?.with_shared_memory(heads.max().unwrap_or(0))?;
        Ok(PhaseLaunches {
            max_tokens,
            inputs,
            phases,
            prepare: module.kernel("prepare")?,
            gemm: module.kernel("gemm")?,
            small_phase: module.kernel("run_small_phase")?,
            make_heads,
            attend: module.kernel("attend")?,
            argmax_share: module.kernel("run_argmax_share")?,
            argmax_whole: module.kernel("run_argmax_whole")?,
            blocks: device.facts.processors,
            x,
        })
    }

    fn phase(&self, phase: &Phase, size: StepSize) -> Result<()> {
        let raw = phase.raw(0, 0);
        let args = PhaseArgs { phase: raw, inputs: self.inputs, blocks: self.blocks as i32, pad: 0 };
        match phase.large() {
            Some(LargePhase::Linear(l)) => {
                self.linear(l, if l.outputs_only != 0 { size.outputs } else { size.tokens })
            }
            Some(LargePhase::Attend(a)) => self.attend(a, &args, size.tokens),
            Some(LargePhase::Argmax(_)) => self.argmax(&args, size.outputs),
            None => {
                // SAFETY: the struct is the kernel's; blocks share all rows of the step, however many there are.
                unsafe { self.small_phase.launch(Grid::new(8 * self.blocks, 1, PHASE_THREADS), &args) }
            }
        }
    }

    fn linear(&self, l: &LinearArgs, rows: usize) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let x = self.x.args(rows);
        let args = PrepareArgs { linear: *l, x, inputs: self.inputs };
        // SAFETY: the struct is the kernel's; there is one block per row.
        unsafe { self.prepare.launch(Grid::new(rows, 1, PHASE_THREADS), &args)? };
        let launches = if l.gated > 0 { 1 } else { l.parts };
        for part in 0..launches {
            let tiles_per_block = if l.gated > 0 { PHASE_WARPS / 2 } else { PHASE_WARPS };
            let tiles = (l.part[part as usize].tiles as usize).div_ceil(tiles_per_block);
            let args = GemmArgs { linear: *l, x, part, rows: rows as i32 };
            let grid = Grid::new(tiles, rows.div_ceil(BLOCK_TOKENS), PHASE_THREADS);
            // SAFETY: the struct is the kernel's; nothing behind the last row or token is written.
            unsafe { self.gemm.launch(grid, &args)? };
        }
        Ok(())
    }

    fn attend(&self, a: &AttendArgs, args: &PhaseArgs, tokens: usize) -> Result<()> {
        let heads = Grid { x: tokens, y: 1, threads: PHASE_THREADS, shared: heads_bytes(a) };
        // SAFETY: the struct is the kernels'; there is one block per token, then one per token and head.
        unsafe {
            self.make_heads.launch(heads, args)?;
            self.attend.launch(Grid::new(tokens, a.heads as usize, ATTEND_THREADS), args)
        }
    }

    fn argmax(&self, args: &PhaseArgs, rows: usize) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        // SAFETY: the struct is the kernels'; its scratch has an element per row and block.
        unsafe {
            self.argmax_share.launch(Grid::new(self.blocks, rows, THREADS), args)?;
            self.argmax_whole.launch(Grid::new(rows, 1, THREADS), args)
        }
    }
}

impl LaunchStrategy for PhaseLaunches {
    fn name(&self) -> String {
        format!("launches per phase for up to {} tokens", self.max_tokens)
    }

    fn serves(&self, size: StepSize) -> bool {
        size.tokens <= self.max_tokens
    }

    fn launch(&mut self, size: StepSize) -> Result<()> {
        self.phases.iter().try_for_each(|phase| self.phase(phase, size))
    }
}

/// Shared memory of the kernel that makes heads: cosines and sines, and one head per warp.
fn heads_bytes(a: &AttendArgs) -> usize {
    (a.pairs.max(1) as usize * 2 + PHASE_WARPS * a.head_dim as usize) * 4
}
