//! The fused step: all phases of a step of a few tokens in one launch, one block per multiprocessor.

use std::mem;
use std::sync::Arc;

use tern_graph::BackendError;

use super::fused_memory::{FusedMemory, RopeTable, is_staged};
use super::strategy::{LaunchStrategy, StepSize};
use crate::driver::{Compiler, Device, Grid, Kernel, KernelSource, Memory, PendingModule, Source};
use crate::lower::{BatchPhase, KernelConfig, LinearShape, PassedMemory, intern, linear_defines};
use crate::shared::{CHUNK, KEYS, MOST_NEW, MOST_TABLES, Phase, RawPhase, STAGED_X, StepArgs, TILE, WARPS};

type Result<T> = std::result::Result<T, BackendError>;

/// Tokens of the fused steps that a program has.
const SIZES: [usize; 2] = [1, MOST_TOKENS];
/// The most of them: columns of the matrix unit.
pub(crate) const MOST_TOKENS: usize = 8;

/// What a fused step is built from.
pub(crate) struct FusedStepPlan<'a> {
    /// The most tokens of a step.
    pub(crate) tokens: usize,
    pub(crate) config: &'a KernelConfig,
    pub(crate) phases: &'a [BatchPhase],
    /// Phases before which all blocks wait for each other; phases behind the end of the list do.
    pub(crate) barriers: &'a [bool],
    pub(crate) ropes: &'a [RopeTable],
    pub(crate) inputs: u64,
}

/// Runs steps of up to `tokens`.
pub(crate) struct FusedStep {
    tokens: usize,
    kernel: StepKernel,
    args: StepArgs,
    grid: Grid,
    /// What phases pass to each other: tagged values of one token, or halves of several.
    passed: Vec<Memory>,
    _phases: Memory,
}

/// The kernel of a step. Compiling it takes seconds, in which steps can run without it.
enum StepKernel {
    Compiling(PendingModule),
    Ready(Kernel),
    /// Its module could not be loaded.
    Failed(BackendError),
}

impl FusedStep {
    /// The sizes of steps to build: none if the model's heads or formats do not fit.
    pub(crate) fn sizes(
        config: &KernelConfig,
        phases: &[Phase],
        ropes: &[RopeTable],
        max_tokens: usize,
    ) -> Vec<usize> {
        let odd_pairs = phases.iter().any(|p| matches!(p, Phase::Attend(a) if a.pairs % 4 != 0));
        let odd_heads = config.attentions.iter().any(|shape| !shape.fits_fused_step());
        let odd_pages = !config.page_len.is_multiple_of(KEYS);
        let halves = phases.iter().any(|p| matches!(p, Phase::Linear(l) if config.has_halves(l)));
        if halves || odd_pairs || odd_heads || odd_pages || ropes.len() > MOST_TABLES {
            return vec![];
        }
        SIZES.into_iter().filter(|&size| size == 1 || max_tokens > 1).collect()
    }

    /// Begins to compile it; `None` if the step does not fit into shared memory. `passed` is memory that its phases point to,
    /// the first of which has the tags of one token.
    pub(crate) fn new(
        device: &Arc<Device>,
        compiler: &Compiler,
        plan: &FusedStepPlan<'_>,
        passed: Vec<Memory>,
    ) -> Result<Option<FusedStep>> {
        let FusedStepPlan { tokens, config, ropes, .. } = *plan;
        let blocks = device.facts.processors;
        let phases: Vec<Phase> = plan.phases.iter().map(|p| p.phase).collect();
        let memory = FusedMemory::new(config, &phases, ropes, tokens, blocks);
        let Some(ring) = memory.ring(device.facts.shared_memory) else { return Ok(None) };
        let (shapes, raw) = raw_phases(plan, ring.slot, blocks);
        let linears = linear_defines(&shapes, blocks);
        let defines = [config.defines(), memory.defines(ring), linears].concat();
        let source = if tokens == 1 { Source::FusedStep } else { Source::FusedBatch };
        let kernel = compiler.begin(&KernelSource { source, defines });
        let table = device.upload(bytemuck::cast_slice(&raw))?;
        let mut args = StepArgs {
            phases: table.pointer(),
            inputs: plan.inputs,
            tables: ropes.len() as i32,
            count: raw.len() as i32,
            epoch: u32::MAX,
            ..StepArgs::default()
        };
        for (i, rope) in ropes.iter().enumerate() {
            (args.freqs[i], args.pairs[i]) = (rope.at, rope.pairs as i32);
        }
        let grid = Grid { shared: memory.bytes(ring), ..Grid::new(blocks, 1, (WARPS + 1) * 32) };
        let kernel = StepKernel::Compiling(kernel);
        Ok(Some(FusedStep { tokens, kernel, args, grid, passed, _phases: table }))
    }

    /// Memory for what phases of several tokens pass to each other: two rows of halves per token, and sums of squares.
    pub(crate) fn passed_memory(
        device: &Arc<Device>,
        phases: &[Phase],
    ) -> Result<(PassedMemory, Vec<Memory>)> {
        let chunks = phases.iter().map(|p| if let Phase::Linear(l) = p { l.chunks as usize } else { 0 });
        let columns = chunks.max().unwrap_or(0).max(1) * CHUNK;
        let halves = [0; 2].map(|_| device.allocate(columns * MOST_TOKENS * 2));
        let [first, second] = halves;
        let all = vec![first?, second?, device.allocate(columns / TILE * MOST_TOKENS * 4)?];
        let at = PassedMemory { halves: [all[0].pointer(), all[1].pointer()], squares: all[2].pointer() };
        Ok((at, all))
    }
}

/// Bytes of [`FusedStep::passed_memory`], of linears with up to `columns`.
pub(crate) fn passed_bytes(columns: usize) -> usize {
    columns.next_multiple_of(CHUNK) * MOST_TOKENS * (2 * 2 + 1)
}

/// The phases as the kernel reads them, and the shapes of their linears.
fn raw_phases(plan: &FusedStepPlan<'_>, slot: usize, blocks: usize) -> (Vec<LinearShape>, Vec<RawPhase>) {
    let (mut shapes, mut barriers) = (vec![], 0);
    let raw = plan.phases.iter().enumerate().map(|(i, BatchPhase { phase, flags })| {
        let waits = plan.barriers.get(i).is_none_or(|w| *w);
        barriers += i32::from(waits);
        let shape = match phase {
            Phase::Linear(l) => {
                let staged = if plan.tokens > 1 && is_staged(l, blocks) { STAGED_X } else { 0 };
                intern(&mut shapes, LinearShape::of(l, slot, flags | staged))
            }
            _ => 0,
        };
        phase.raw(if waits { barriers } else { 0 }, shape)
    });
    let raw = raw.collect();
    (shapes, raw)
}

impl LaunchStrategy for FusedStep {
    fn name(&self) -> String {
        format!("fused step of up to {} tokens", self.tokens)
    }

    fn finish_compiling(&mut self, wait: bool) -> Result<()> {
        if !matches!(&self.kernel, StepKernel::Compiling(pending) if wait || pending.is_ready()) {
            return Ok(());
        }
        let lost = BackendError::Other("a fused step could not be loaded".into());
        if let StepKernel::Compiling(pending) = mem::replace(&mut self.kernel, StepKernel::Failed(lost)) {
            let kernel = pending.load().and_then(|module| module.kernel("fused_step"));
            let kernel = kernel.and_then(|kernel| kernel.with_shared_memory(self.grid.shared));
            self.kernel = kernel.map_or_else(StepKernel::Failed, StepKernel::Ready);
        }
        if let StepKernel::Failed(error) = &self.kernel { Err(error.clone()) } else { Ok(()) }
    }

    fn serves(&self, size: StepSize) -> bool {
        let fits = size.tokens.max(size.outputs) <= self.tokens && size.longest <= MOST_NEW;
        fits && !matches!(self.kernel, StepKernel::Compiling(_))
    }

    fn launch(&mut self, _size: StepSize) -> Result<()> {
        let kernel = match &self.kernel {
            StepKernel::Ready(kernel) => kernel,
            StepKernel::Failed(error) => return Err(error.clone()),
            StepKernel::Compiling(_) => {
                return Err(BackendError::Other("a fused step was launched before it was compiled".into()));
            }
        };
        if self.args.epoch == u32::MAX {
            // before the first step: values may have either tag
            self.passed.iter().try_for_each(Memory::clear)?;
            self.args.epoch = 0;
        }
        self.args.epoch ^= 1;
        // SAFETY: the struct is the kernel's, what it points to lives as long as the program, and the grid is the one that
        // the kernel was compiled for.
        unsafe { kernel.launch_together(self.grid, &self.args) }
    }
}
