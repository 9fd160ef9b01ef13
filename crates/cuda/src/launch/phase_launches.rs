//! Steps of any size: one or two launches per phase. Those of small steps are recorded, since launching takes longer than
//! they do.

use std::collections::HashMap;
use std::sync::Arc;

use tern_graph::BackendError;

use super::linear_tiling::{Limits, ONE_TILE, TILE_TOKENS};
use super::strategy::{LaunchStrategy, StepSize};
use super::tiled_linears::{Passing, TiledLinears, order, passed_factor};
use crate::driver::{Compiler, Device, Grid, Kernel, KernelSource, Recording, Source};
use crate::lower::KernelConfig;
use crate::shared::{
    ATTEND_THREADS, AttendArgs, LargePhase, PHASE_THREADS, PHASE_WARPS, Phase, PhaseArgs, THREADS,
};

type Result<T> = std::result::Result<T, BackendError>;

/// What the launches are built from.
pub(crate) struct PhasePlan<'a> {
    pub(crate) config: &'a KernelConfig,
    pub(crate) phases: Vec<Phase>,
    /// Phases whose value is passed as halves, see `passed_as_halves`.
    pub(crate) passed: Vec<bool>,
    pub(crate) inputs: u64,
    pub(crate) max_tokens: usize,
}

impl PhasePlan<'_> {
    /// The kernels that it needs.
    pub(crate) fn sources(&self, limits: &Limits) -> Vec<KernelSource> {
        let phases = KernelSource { source: Source::PhaseLaunches, defines: self.config.defines() };
        let linears = TiledLinears::sources(self.config, &self.phases, limits, self.max_tokens);
        linears.into_iter().chain([phases]).collect()
    }
}

/// Runs steps of up to `max_tokens`.
pub(crate) struct PhaseLaunches {
    kernels: PhaseKernels,
    max_tokens: usize,
    recorded: HashMap<StepSize, Recording>,
    device: Arc<Device>,
}

impl PhaseLaunches {
    pub(crate) fn new(
        device: &Arc<Device>,
        compiler: &mut Compiler,
        plan: PhasePlan<'_>,
    ) -> Result<PhaseLaunches> {
        let max_tokens = plan.max_tokens;
        let kernels = PhaseKernels::new(device, compiler, plan)?;
        Ok(PhaseLaunches { kernels, max_tokens, recorded: HashMap::new(), device: Arc::clone(device) })
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
        let Some(recorded) = recorded_size(size) else { return self.kernels.launch(size) };
        if !self.recorded.contains_key(&recorded) {
            let recording = self.device.record(|| self.kernels.launch(recorded))?;
            self.recorded.insert(recorded, recording);
        }
        self.recorded[&recorded].submit()
    }
}

/// The size that the launches of a step are recorded for: all steps of one tile share them. `None` for large steps.
fn recorded_size(size: StepSize) -> Option<StepSize> {
    let up = |n: usize| TILE_TOKENS.into_iter().find(|&tile| tile >= n).filter(|_| n > 0).unwrap_or(n);
    (size.tokens <= ONE_TILE).then(|| StepSize { tokens: up(size.tokens), outputs: up(size.outputs) })
}

/// The kernels of all phases.
struct PhaseKernels {
    inputs: u64,
    phases: Vec<(Phase, Passing)>,
    linears: TiledLinears,
    small_phase: Kernel,
    make_heads: Kernel,
    attend: Kernel,
    argmax_share: Kernel,
    argmax_whole: Kernel,
    blocks: usize,
}

impl PhaseKernels {
    fn new(device: &Arc<Device>, compiler: &mut Compiler, plan: PhasePlan<'_>) -> Result<PhaseKernels> {
        let PhasePlan { config, phases, passed, inputs, max_tokens } = plan;
        let linears = TiledLinears::new(device, compiler, config, &phases, inputs, max_tokens)?;
        let module = compiler.module(Source::PhaseLaunches, &config.defines())?;
        let heads = phases.iter().map(|p| if let Phase::Attend(a) = p { heads_bytes(a) } else { 0 });
        let make_heads = module.kernel("make_heads")?.with_shared_memory(heads.max().unwrap_or(0))?;
        let passings = (0..phases.len()).map(|i| Passing {
            x: i.checked_sub(1).filter(|&before| passed[before]).map(|before| passed_factor(&phases[before])),
            y: match phases.get(i + 1) {
                Some(Phase::Linear(next)) if passed.get(i) == Some(&true) => Some(order(next)),
                _ => None,
            },
        });
        let passings: Vec<Passing> = passings.collect();
        Ok(PhaseKernels {
            inputs,
            linears,
            small_phase: module.kernel("run_small_phase")?,
            make_heads,
            attend: module.kernel("attend")?,
            argmax_share: module.kernel("run_argmax_share")?,
            argmax_whole: module.kernel("run_argmax_whole")?,
            blocks: device.facts.processors,
            phases: phases.into_iter().zip(passings).collect(),
        })
    }

    /// Launches all phases for steps of up to this size.
    fn launch(&self, size: StepSize) -> Result<()> {
        self.phases.iter().try_for_each(|(phase, passing)| self.phase(phase, *passing, size))
    }

    fn phase(&self, phase: &Phase, passing: Passing, size: StepSize) -> Result<()> {
        let raw = phase.raw(0, 0);
        let args = PhaseArgs { phase: raw, inputs: self.inputs, blocks: self.blocks as i32, pad: 0 };
        match phase.large() {
            Some(LargePhase::Linear(l)) => {
                let rows = if l.outputs_only != 0 { size.outputs } else { size.tokens };
                self.linears.launch(l, passing, rows)
            }
            Some(LargePhase::Attend(a)) => self.attend(a, &args, size.tokens),
            Some(LargePhase::Argmax(_)) => self.argmax(&args, size.outputs),
            None => {
                let blocks = (8 * self.blocks).min(32 * size.tokens.max(size.outputs));
                // SAFETY: the struct is the kernel's; blocks share all rows of the step, however many there are.
                unsafe { self.small_phase.launch(Grid::new(blocks, 1, PHASE_THREADS), &args) }
            }
        }
    }

    fn attend(&self, a: &AttendArgs, args: &PhaseArgs, tokens: usize) -> Result<()> {
        let heads = Grid { shared: heads_bytes(a), ..Grid::new(tokens, 1, PHASE_THREADS) };
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

/// Shared memory of the kernel that makes heads: cosines and sines, and one head per warp.
fn heads_bytes(a: &AttendArgs) -> usize {
    (a.pairs.max(1) as usize * 2 + PHASE_WARPS * a.head_dim as usize) * 4
}
