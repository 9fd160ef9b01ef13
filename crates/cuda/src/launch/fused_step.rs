//! The fused step: all phases of a step of a few tokens in one launch, one block per multiprocessor.

use std::mem;
use std::sync::Arc;

use tern_graph::BackendError;

use super::experts::has_experts;
use super::fused_memory::{FusedMemory, RopeTable, is_of_fields, is_recurrent, is_staged};
use super::strategy::{LaunchStrategy, StepSize};
use crate::driver::{Compiler, Device, Grid, Kernel, KernelSource, Memory, PendingModule, Source};
use crate::lower::{BatchPhase, KernelConfig, LinearShape, intern, linear_defines};
use crate::shared::{
    FIELDS_X, FRAGMENT_TOKENS, KEYS, MOST_NEW, MOST_TABLES, Phase, RawPhase, STAGED_X, StepArgs, WARPS,
};

type Result<T> = std::result::Result<T, BackendError>;

/// The most tokens of each fused step: one, and as many as leave four, two or one columns of the matrix unit
/// per token (`kernels/x/placed_x.cuh`).
pub(super) const STEP_TOKENS: [usize; 4] = [1, FRAGMENT_TOKENS / 4, FRAGMENT_TOKENS / 2, FRAGMENT_TOKENS];

/// What a fused step is built from.
pub(crate) struct FusedStepPlan<'a> {
    /// The most tokens of a step.
    pub(crate) tokens: usize,
    pub(crate) config: &'a KernelConfig,
    pub(crate) phases: &'a [BatchPhase],
    pub(crate) ropes: &'a [RopeTable],
    pub(crate) inputs: u64,
}

/// Runs steps of up to `tokens`.
pub(crate) struct FusedStep {
    tokens: usize,
    kernel: StepKernel,
    args: StepArgs,
    grid: Grid,
    /// Values with tags that phases pass to each other.
    tagged: Vec<Memory>,
    /// Rows that carry the tag of the last step.
    last_tokens: usize,
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
        // keys of the step itself are taken from the values of the phase
        let shared = phases.iter().any(|p| matches!(p, Phase::Attend(a) if a.v.at == 0));
        // one step has code for matrices of one size
        let mut states =
            phases.iter().filter_map(|p| if let Phase::Recurrent(a) = p { Some(a.rows) } else { None });
        let first = states.next();
        let odd_states = states.any(|rows| Some(rows) != first);
        let odd = odd_pairs || odd_heads || odd_pages || odd_states;
        if shared || halves || odd || ropes.len() > MOST_TABLES {
            return vec![];
        }
        // several tokens have different experts, and recurrent phases are written for one
        let most = if has_experts(phases) || is_recurrent(phases) { 1 } else { max_tokens };
        let placed = phases.iter().any(|p| matches!(p, Phase::Linear(l) if config.has_placed(l)));
        let is_used = |tokens: &usize| *tokens == 1 || most > 1 && (placed || *tokens == FRAGMENT_TOKENS);
        STEP_TOKENS.into_iter().filter(is_used).collect()
    }

    /// Begins to compile it; `None` if the step does not fit into shared memory. `tagged` has the
    /// values that its phases pass.
    pub(crate) fn new(
        device: &Arc<Device>,
        compiler: &Compiler,
        plan: &FusedStepPlan<'_>,
        tagged: Vec<Memory>,
    ) -> Result<Option<FusedStep>> {
        let FusedStepPlan { tokens, ropes, .. } = *plan;
        let blocks = device.facts.processors;
        let Some(text) = FusedSource::of(plan, blocks, device.facts.shared_memory) else { return Ok(None) };
        let kernel = compiler.begin(&text.kernel);
        let table = device.upload(bytemuck::cast_slice(&text.phases))?;
        let mut args = StepArgs {
            phases: table.pointer(),
            inputs: plan.inputs,
            tables: ropes.len() as i32,
            count: text.phases.len() as i32,
            ..StepArgs::default()
        };
        for (i, rope) in ropes.iter().enumerate() {
            (args.freqs[i], args.pairs[i], args.parted[i]) = (rope.at, rope.pairs as i32, rope.parted.into());
        }
        let grid = Grid { shared: text.shared, ..Grid::new(blocks, 1, (WARPS + 1) * 32) };
        let kernel = StepKernel::Compiling(kernel);
        Ok(Some(FusedStep { tokens, kernel, args, grid, tagged, last_tokens: 0, _phases: table }))
    }
}

/// The kernel of a fused step before it is compiled.
pub(crate) struct FusedSource {
    pub(crate) kernel: KernelSource,
    phases: Vec<RawPhase>,
    /// Bytes of shared memory of a block.
    shared: usize,
}

impl FusedSource {
    /// The source for a GPU of `blocks` multiprocessors with `shared_memory` bytes of shared memory each;
    /// `None` if the step does not fit.
    pub(crate) fn of(plan: &FusedStepPlan<'_>, blocks: usize, shared_memory: usize) -> Option<FusedSource> {
        let FusedStepPlan { tokens, config, ropes, .. } = *plan;
        let phases: Vec<Phase> = plan.phases.iter().map(|p| p.phase).collect();
        let memory = FusedMemory::new(config, &phases, ropes, tokens, blocks);
        let ring = memory.ring(shared_memory)?;
        let (shapes, phases) = raw_phases(plan, ring.slot, blocks);
        let defines = [config.defines(), memory.defines(ring), linear_defines(&shapes, blocks)].concat();
        let source = if tokens == 1 { Source::FusedStep } else { Source::FusedBatch };
        Some(FusedSource { kernel: KernelSource { source, defines }, phases, shared: memory.bytes(ring) })
    }
}

/// The phases as the kernel reads them, and the shapes of their linears.
fn raw_phases(plan: &FusedStepPlan<'_>, slot: usize, blocks: usize) -> (Vec<LinearShape>, Vec<RawPhase>) {
    let (mut shapes, mut barriers) = (vec![], 0);
    let raw = plan.phases.iter().enumerate().map(|(i, BatchPhase { phase, flags, barrier })| {
        barriers += i32::from(*barrier);
        let shape = match phase {
            Phase::Linear(l) => {
                let x = match plan.tokens {
                    1 if is_of_fields(l, plan.config, blocks) => FIELDS_X,
                    2.. if is_staged(l, blocks) => STAGED_X,
                    _ => 0,
                };
                intern(&mut shapes, LinearShape::of(l, slot, flags | x))
            }
            _ => 0,
        };
        let raw = phase.raw(if *barrier { barriers } else { 0 }, shape);
        match (phase, plan.phases.get(i + 1).map(|next| &next.phase)) {
            // blocks of the transform have loaded all they need when its x is written
            (Phase::Recurrent(a), Some(Phase::Transform(t))) => raw.apart_from(t, a.warps(), blocks),
            _ => raw,
        }
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
        fits && !size.whole_images && !matches!(self.kernel, StepKernel::Compiling(_))
    }

    fn border(&self) -> Option<usize> {
        Some(self.tokens)
    }

    fn launch(&mut self, size: StepSize) -> Result<()> {
        let kernel = match &self.kernel {
            StepKernel::Ready(kernel) => kernel,
            StepKernel::Failed(error) => return Err(error.clone()),
            StepKernel::Compiling(_) => {
                return Err(BackendError::Other("a fused step was launched before it was compiled".into()));
            }
        };
        if size.tokens > self.last_tokens {
            // rows that the last step did not write may have either tag: clear them to the other one
            self.tagged.iter().try_for_each(Memory::clear)?;
            self.args.epoch = 0;
        }
        self.args.epoch ^= 1;
        self.last_tokens = size.tokens;
        // SAFETY: the struct is the kernel's, what it points to lives as long as the program, and the grid is
        // the one that the kernel was compiled for.
        unsafe { kernel.launch_together(self.grid, &self.args) }
    }
}
