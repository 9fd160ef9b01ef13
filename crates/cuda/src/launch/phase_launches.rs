//! Steps of many tokens: a launch or two for each phase.

use std::sync::Arc;

use tern_graph::BackendError;

use crate::driver::{Device, Grid, Kernel, Memory, Module};
use crate::shared::{
    ATTEND_THREADS, AttendArgs, BLOCK_TOKENS, GemmArgs, IntegerX, LinearArgs, PHASE_THREADS, PHASE_WARPS,
    Phase, PhaseArgs, PrepareArgs, THREADS,
};
use crate::weights::CHUNK;

type Result<T> = std::result::Result<T, BackendError>;

/// The phases of a graph, for steps of any size.
pub(crate) struct Many {
    phases: Vec<Phase>,
    prepare: Kernel,
    linear: Kernel,
    rows: Kernel,
    make_heads: Kernel,
    attend: Kernel,
    best_share: Kernel,
    best_whole: Kernel,
    blocks: usize,
    x: [Memory; 3],
}

impl Many {
    pub(crate) fn new(
        device: &Arc<Device>,
        module: &Module,
        phases: &[Phase],
        max_tokens: usize,
    ) -> Result<Many> {
        let chunks = phases.iter().map(|p| if let Phase::Linear(l) = p { l.chunks as usize } else { 0 });
        let (chunks, tokens) = (chunks.max().unwrap_or(0), max_tokens.next_multiple_of(BLOCK_TOKENS));
        let room = phases.iter().map(|p| if let Phase::Attend(a) = p { heads_room(a) } else { 0 });
        let make_heads = module.kernel("make_heads")?.with_shared_memory(room.max().unwrap_or(0))?;
        Ok(Many {
            phases: phases.to_vec(),
            prepare: module.kernel("prepare")?,
            linear: module.kernel("linear_many")?,
            rows: module.kernel("rows")?,
            make_heads,
            attend: module.kernel("attend_many")?,
            best_share: module.kernel("best_share")?,
            best_whole: module.kernel("best_whole")?,
            blocks: device.facts.processors,
            x: [
                device.allocate(chunks * tokens * 2 * CHUNK)?,
                device.allocate(chunks * tokens * 4)?,
                device.allocate(chunks * tokens * 32)?,
            ],
        })
    }

    /// Bytes of x as integers, for rows of so many chunks.
    pub(crate) fn x_bytes(chunks: usize, tokens: usize) -> usize {
        chunks * tokens.next_multiple_of(BLOCK_TOKENS) * (2 * CHUNK + 4 + 32)
    }

    /// All phases of a step whose inputs are there.
    pub(crate) fn launch(&self, inputs: u64, tokens: usize, outputs: usize) -> Result<()> {
        self.phases.iter().try_for_each(|phase| self.phase(phase, inputs, tokens, outputs))
    }

    fn phase(&self, phase: &Phase, inputs: u64, tokens: usize, outputs: usize) -> Result<()> {
        let args = PhaseArgs { phase: phase.raw(0, 0), inputs, blocks: self.blocks as i32, pad: 0 };
        match phase {
            Phase::Linear(l) => self.linear(l, inputs, if l.outputs_only != 0 { outputs } else { tokens }),
            Phase::Attend(a) => {
                let (heads, room) = (a.heads as usize, heads_room(a));
                // SAFETY: the struct is the kernels'; every token has a block, and every block a token.
                unsafe {
                    self.make_heads
                        .launch(Grid { x: tokens, y: 1, threads: PHASE_THREADS, shared: room }, &args)?;
                    self.attend.launch(Grid::new(tokens, heads, ATTEND_THREADS), &args)
                }
            }
            Phase::Argmax(_) => self.best(&args, outputs),
            // SAFETY: blocks share all rows of the step among themselves.
            _ => unsafe { self.rows.launch(Grid::new(8 * self.blocks, 1, PHASE_THREADS), &args) },
        }
    }

    fn linear(&self, l: &LinearArgs, inputs: u64, rows: usize) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let [bytes, scales, sums] = [0, 1, 2].map(|i: usize| self.x[i].pointer());
        let x = IntegerX { bytes, scales, sums, tokens: rows.next_multiple_of(BLOCK_TOKENS) as i64 };
        let args = PrepareArgs { linear: *l, x, inputs };
        // SAFETY: the struct is the kernel's; a block a row.
        unsafe { self.prepare.launch(Grid::new(rows, 1, PHASE_THREADS), &args)? };
        let launches = if l.gated > 0 { 1 } else { l.parts };
        for part in 0..launches {
            let each = if l.gated > 0 { PHASE_WARPS / 2 } else { PHASE_WARPS };
            let tiles = (l.part[part as usize].tiles as usize).div_ceil(each);
            let args = GemmArgs { linear: *l, x, part, rows: rows as i32 };
            // SAFETY: the struct is the kernel's; what lies beyond the last row or token is not written.
            unsafe {
                self.linear.launch(Grid::new(tiles, rows.div_ceil(BLOCK_TOKENS), PHASE_THREADS), &args)?
            };
        }
        Ok(())
    }

    fn best(&self, args: &PhaseArgs, rows: usize) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        // SAFETY: the structs are the kernels'; each row has room for so many blocks.
        unsafe {
            self.best_share.launch(Grid::new(self.blocks, rows, THREADS), args)?;
            self.best_whole.launch(Grid::new(rows, 1, THREADS), args)
        }
    }
}

/// Shared memory of the kernel that makes heads: cosines and sines, and a head for each warp.
fn heads_room(a: &AttendArgs) -> usize {
    (a.pairs.max(1) as usize * 2 + PHASE_WARPS * a.head_dim as usize) * 4
}
