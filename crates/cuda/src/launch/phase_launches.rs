//! Steps of any size: one or two launches per phase. Those of small steps are recorded, since launching takes
//! longer than they do.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use tern_graph::{BackendError, Step};

use super::experts::{ExpertCounts, Experts, has_experts};
use super::host_phases::HostPhases;
use super::linear_tiling::{Limits, whole_tile};
use super::paged_attention::{self, PagedAttention, PagedConfig};
use super::passing::{Passed, Passing};
use super::recurrent::{RecurrentLaunches, SliceShape};
use super::strategy::{LaunchStrategy, StepSize};
use super::tiled_linears::{TiledLinears, takes_bytes};
use crate::driver::{Compiler, Device, Grid, Kernel, KernelSource, Recording, Source};
use crate::kv::Kv;
use crate::lower::KernelConfig;
use crate::shared::{
    ATTEND_THREADS, AttendArgs, FLOAT_ROWS, FLOAT_TOKENS, FloatLinearArgs, FloatLinearsArgs, ImageOrder,
    KvCell, LargePhase, PHASE_THREADS, PHASE_WARPS, Phase, PhaseArgs, THREADS,
};

type Result<T> = std::result::Result<T, BackendError>;

/// Tokens of a step from which on a warp has rows of floats for itself, instead of all warps of a block.
const FEW_TOKENS: usize = 256;
/// Recordings that are kept: each takes some megabytes, and recording again takes a few milliseconds.
const MOST_RECORDINGS: usize = 64;

/// What the launches are built from.
pub(crate) struct PhasePlan<'a> {
    pub(crate) config: &'a KernelConfig,
    pub(crate) phases: Vec<Phase>,
    pub(crate) passed: Passed,
    pub(crate) kv: Option<&'a Kv>,
    pub(crate) inputs: u64,
    pub(crate) max_tokens: usize,
    /// What the host does between launches.
    pub(crate) host: Option<HostPhases>,
}

impl PhasePlan<'_> {
    /// The kernels that it needs.
    pub(crate) fn sources(&self, device: &Device) -> Vec<KernelSource> {
        let phases = KernelSource { source: Source::PhaseLaunches, defines: self.config.defines() };
        let limits = Limits::of(device);
        let linears = TiledLinears::sources(self.config, &self.phases, &limits, self.max_tokens);
        let attention = match self.paged(device) {
            Some(kv) => PagedAttention::sources(device, &self.phases, kv),
            None => vec![],
        };
        let experts = has_experts(&self.phases).then(Experts::source);
        let recurrent = RecurrentLaunches::sources(&self.phases);
        linears.into_iter().chain(attention).chain([phases]).chain(experts).chain(recurrent).collect()
    }

    /// The pages, if the kernels of many tokens can attend to them.
    fn paged(&self, device: &Device) -> Option<&Kv> {
        self.kv.filter(|kv| paged_attention::fits(device, &self.phases, kv))
    }
}

/// Runs steps of up to `max_tokens`.
pub(crate) struct PhaseLaunches {
    kernels: PhaseKernels,
    max_tokens: usize,
    /// The launches of each segment that has some.
    recorded: HashMap<RecordedStep, Vec<Option<Recording>>>,
    host: Option<HostPhases>,
    /// The slices of the planned step; nothing without recurrent layers.
    slices: SliceShape,
    /// The phases between two host phases.
    segments: Vec<Range<usize>>,
    device: Arc<Device>,
}

/// Steps that share recorded launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RecordedStep {
    size: StepSize,
    work: StepWork,
}

/// What a step has beside its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StepWork {
    /// The most work items of decode tiles and of prefill tiles of attention.
    items: [usize; 2],
    /// The slices of recurrent layers.
    slices: SliceShape,
}

impl PhaseLaunches {
    pub(crate) fn new(
        device: &Arc<Device>,
        compiler: &mut Compiler,
        mut plan: PhasePlan<'_>,
    ) -> Result<PhaseLaunches> {
        let (max_tokens, phases) = (plan.max_tokens, plan.phases.len());
        let host = plan.host.take();
        let segments = segments(host.as_ref().map_or(vec![], HostPhases::cuts), phases);
        let kernels = PhaseKernels::new(device, compiler, plan)?;
        let (recorded, device, slices) = (HashMap::new(), Arc::clone(device), SliceShape::default());
        Ok(PhaseLaunches { kernels, max_tokens, recorded, host, slices, segments, device })
    }

    /// Submits all segments, with the phases of the host between them.
    fn alternate(
        &mut self,
        tokens: usize,
        mut submit: impl FnMut(&PhaseKernels, usize, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        for (index, segment) in self.segments.iter().enumerate() {
            submit(&self.kernels, index, segment.clone())?;
            if let Some(host) = self.host.as_mut().filter(|_| index + 1 < self.segments.len()) {
                host.run(index, tokens)?;
            }
        }
        Ok(())
    }
}

/// The ranges of phases between these cuts.
fn segments(cuts: Vec<usize>, phases: usize) -> Vec<Range<usize>> {
    let begins = [0].into_iter().chain(cuts.clone());
    begins.zip(cuts.into_iter().chain([phases])).map(|(begin, end)| begin..end).collect()
}

impl LaunchStrategy for PhaseLaunches {
    fn name(&self) -> String {
        format!("launches per phase for up to {} tokens", self.max_tokens)
    }

    fn serves(&self, size: StepSize) -> bool {
        size.tokens <= self.max_tokens
    }

    fn plan(&mut self, step: &Step, words: &mut Vec<u32>) {
        if let Some(attention) = &mut self.kernels.attention {
            attention.plan(step, words);
        }
        if self.kernels.has_state {
            self.slices = SliceShape::of(step);
        }
        if let Some(host) = &mut self.host {
            host.plan(step);
        }
    }

    fn launch(&mut self, size: StepSize) -> Result<()> {
        let items = self.kernels.attention.as_ref().map_or([0; 2], PagedAttention::items);
        let slices = self.slices;
        let exact = self.kernels.experts.is_some(); // each token of a small step adds experts
        let tokens = size.tokens;
        let Some(size) = recorded_size(size, exact) else {
            let work = StepWork { items, slices };
            return self.alternate(tokens, |kernels, _, phases| kernels.launch(size, work, phases));
        };
        // few sizes: launches are recorded again when contexts have grown
        let items = items.map(|n| if n == 0 { 0 } else { n.next_power_of_two().max(8) });
        let step = RecordedStep { size, work: StepWork { items, slices: slices.recorded() } };
        if !self.recorded.contains_key(&step) {
            if self.recorded.len() >= MOST_RECORDINGS {
                self.device.wait()?; // a step in flight may be one of them
                self.recorded.clear();
            }
            let record = |phases: &Range<usize>| {
                let launch = || self.kernels.launch(size, step.work, phases.clone());
                (!phases.is_empty()).then(|| self.device.record(launch)).transpose()
            };
            let recordings = self.segments.iter().map(record).collect::<Result<Vec<_>>>()?;
            self.recorded.insert(step, recordings);
        }
        let recordings = std::mem::take(&mut self.recorded);
        let submitted = self.alternate(tokens, |_, index, _| {
            recordings[&step][index].as_ref().map_or(Ok(()), Recording::submit)
        });
        self.recorded = recordings;
        submitted
    }
}

/// The size that the launches of a step are recorded for: all steps of one tile share them, or a power of two
/// of the tokens of the smallest one. `None` for large steps.
fn recorded_size(size: StepSize, exact: bool) -> Option<StepSize> {
    let outputs = if size.outputs == 0 { 0 } else { whole_tile(size.outputs)? };
    let tile = whole_tile(size.tokens)?;
    let tokens = if exact { tile.min(size.tokens.next_power_of_two()) } else { tile };
    Some(StepSize { tokens, outputs, longest: 0, ..StepSize::default() })
}

/// The kernels of all phases.
struct PhaseKernels {
    inputs: u64,
    phases: Vec<(Phase, Passing)>,
    linears: TiledLinears,
    /// `None` if there is none, or if its heads have odd sizes.
    attention: Option<PagedAttention>,
    experts: Option<Experts>,
    recurrent: RecurrentLaunches,
    /// Whether there are recurrent layers.
    has_state: bool,
    reproducible: bool,
    small_phase: Kernel,
    float_linears: Kernel,
    make_heads: Kernel,
    attend: Kernel,
    argmax_share: Kernel,
    argmax_whole: Kernel,
    blocks: usize,
}

impl PhaseKernels {
    fn new(device: &Arc<Device>, compiler: &mut Compiler, plan: PhasePlan<'_>) -> Result<PhaseKernels> {
        let attention = match plan.paged(device) {
            Some(kv) => {
                let PhasePlan { inputs, max_tokens, .. } = plan;
                let paged = PagedConfig { kv, inputs, max_tokens };
                Some(PagedAttention::new(device, compiler, &plan.phases, &paged)?)
            }
            None => None,
        };
        if attention.is_none() && plan.kv.is_some_and(|kv| kv.cells != KvCell::Half) {
            let message = "KV cache of 8 bits: the heads of this model have odd sizes, use f16";
            return Err(BackendError::Unsupported(message.into()));
        }
        let order = ImageOrder::Sequence as i32;
        let sees_later =
            |phase: &Phase| matches!(phase, Phase::Attend(a) if a.after > 0 || a.images != order);
        if attention.is_none() && plan.phases.iter().any(sees_later) {
            let message = "attention that is not causal: the heads of this model have odd sizes, use the CPU";
            return Err(BackendError::Unsupported(message.into()));
        }
        let PhasePlan { config, phases, mut passed, inputs, max_tokens, .. } = plan;
        if attention.is_none() {
            // the kernels for odd heads write floats
            let writes_floats = |phase: &Phase| matches!(phase, Phase::Attend(_));
            passed
                .as_halves
                .iter_mut()
                .zip(&phases)
                .for_each(|(passed, phase)| *passed &= !writes_floats(phase));
        }
        let linears = TiledLinears::new(device, compiler, config, &phases, inputs, max_tokens)?;
        let experts = Experts::new(device, compiler, &phases, inputs, max_tokens)?;
        let recurrent = RecurrentLaunches::new(compiler, &phases, inputs)?;
        let is_state = |phase: &Phase| matches!(phase, Phase::Conv(_) | Phase::Recurrent(_));
        let has_state = phases.iter().any(is_state);
        let module = compiler.module(Source::PhaseLaunches, &config.defines())?;
        let heads = phases.iter().map(|p| if let Phase::Attend(a) = p { heads_bytes(a) } else { 0 });
        let make_heads = module.kernel("make_heads")?.with_shared_memory(heads.max().unwrap_or(0))?;
        let limits = Limits::of(device);
        let passings = Passing::of(&phases, &passed, |l| takes_bytes(config, &limits, l));
        Ok(PhaseKernels {
            inputs,
            linears,
            attention,
            experts,
            recurrent,
            has_state,
            reproducible: device.arithmetic.reproducible,
            small_phase: module.kernel("run_small_phase")?,
            float_linears: module.kernel("float_linears")?,
            make_heads,
            attend: module.kernel("attend")?,
            argmax_share: module.kernel("run_argmax_share")?,
            argmax_whole: module.kernel("run_argmax_whole")?,
            blocks: device.facts.processors,
            phases: phases.into_iter().zip(passings).collect(),
        })
    }

    /// Launches some phases for steps of up to this size, with up to so much work.
    fn launch(&self, size: StepSize, work: StepWork, phases: Range<usize>) -> Result<()> {
        let earlier = self.phases[..phases.start].iter();
        let mut attends = earlier.filter(|(phase, _)| matches!(phase, Phase::Attend(_))).count()..;
        self.experts.iter().for_each(Experts::begin);
        let mut next = &self.phases[phases];
        let mut beside = false; // whether the next launch runs beside the last one
        while let [(phase, passing), rest @ ..] = next {
            next = rest;
            let rows = if outputs_only(phase) { size.outputs } else { size.tokens };
            let passing = passing.of_step(rows, self.reproducible);
            let raw = phase.raw(0, 0);
            let args = PhaseArgs { phase: raw, inputs: self.inputs, blocks: self.blocks as i32, pad: 0 };
            match phase.large() {
                Some(LargePhase::Linear(l)) => {
                    let sorted = match (&self.experts, ExpertCounts::of(l)) {
                        (Some(experts), Some(counts)) => Some(experts.sorted(&l.experts, counts, rows)?),
                        _ => None,
                    };
                    self.linears.launch(l, passing, rows, sorted)?;
                }
                Some(LargePhase::Route(args)) => {
                    self.experts.as_ref().map_or(Ok(()), |e| e.route(args, size.tokens))?;
                }
                Some(LargePhase::Mix(args)) => {
                    self.experts.as_ref().map_or(Ok(()), |e| e.mix(args, size.tokens))?;
                }
                Some(LargePhase::Attend(a)) => match (&self.attention, attends.next()) {
                    (Some(attention), Some(index)) => {
                        let y = passing.passed_order().map(|order| self.linears.passed(size.tokens, order));
                        attention.launch(index, a, y.unwrap_or_default(), size.tokens, work.items)?;
                    }
                    _ => self.attend(a, &args, size.tokens)?,
                },
                Some(LargePhase::Conv(args)) => self.recurrent.convolve(args, size.tokens, work.slices)?,
                Some(LargePhase::Recurrent(args)) => self.recurrent.matrices(args, work.slices)?,
                Some(LargePhase::Transform(args)) => {
                    let y = passing.passed_order().map(|order| self.linears.passed(rows, order));
                    let beside = std::mem::take(&mut beside);
                    self.recurrent.transform(args, y.unwrap_or_default(), size, beside)?;
                }
                Some(LargePhase::Argmax(_)) => self.argmax(&args, size.outputs)?,
                None if let Some(l) = self.few_floats(phase, size) => {
                    let second = rest.first().and_then(|(phase, _)| self.few_floats(phase, size));
                    let second = second.filter(|second| can_join(l, second));
                    next = &rest[usize::from(second.is_some())..];
                    let rows = size.tokens.max(size.outputs);
                    let blocks = (l.rows as usize).div_ceil(FLOAT_ROWS) * rows.div_ceil(FLOAT_TOKENS);
                    let grid = Grid::new(blocks, 1 + usize::from(second.is_some()), PHASE_THREADS);
                    beside = next.first().is_some_and(|(phase, _)| shares_x(l, phase));
                    let linear = [*l, *second.unwrap_or(l)];
                    let args =
                        FloatLinearsArgs { linear, inputs: self.inputs, shares_x: beside.into(), pad: 0 };
                    // SAFETY: the struct is the kernel's; blocks have all rows of both matrices for all
                    // tokens, and leave tokens that the step lacks.
                    unsafe { self.float_linears.launch(grid, &args)? };
                }
                None => {
                    let blocks = (8 * self.blocks).min(32 * size.tokens.max(size.outputs));
                    // SAFETY: the struct is the kernel's; blocks share all rows of the
                    // step, however many there are.
                    unsafe { self.small_phase.launch(Grid::new(blocks, 1, PHASE_THREADS), &args)? };
                }
            }
        }
        Ok(())
    }

    /// The arguments of a phase whose matrix of floats few tokens are multiplied with, or any number of them
    /// if rows are reproducible.
    fn few_floats<'p>(&self, phase: &'p Phase, size: StepSize) -> Option<&'p FloatLinearArgs> {
        let Phase::FloatLinear(l) = phase else { return None };
        let few = size.tokens.max(size.outputs) < FEW_TOKENS || self.reproducible;
        (l.experts.used == 0 && few).then_some(l)
    }

    /// Attention with heads of any size.
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

/// Whether a phase has the rows of outputs only.
fn outputs_only(phase: &Phase) -> bool {
    match phase.large() {
        Some(LargePhase::Linear(l)) => l.outputs_only != 0,
        Some(LargePhase::Transform(args)) => args.outputs_only != 0,
        _ => false,
    }
}

/// Whether two matrices of floats can share a launch: they have the same size and the same x.
fn can_join(l: &FloatLinearArgs, other: &FloatLinearArgs) -> bool {
    let shape = |l: &FloatLinearArgs| (l.rows, l.cols, l.outputs_only, l.x.at, l.x.stride);
    shape(l) == shape(other)
}

/// Whether a phase reads the same x, and nothing that `l` writes.
fn shares_x(l: &FloatLinearArgs, phase: &Phase) -> bool {
    let Phase::Transform(t) = phase else { return false };
    t.x.at == l.x.at && t.act == 0 && t.outputs_only == 0
}

/// Shared memory of the kernel that makes heads: cosines and sines, and one head per warp.
fn heads_bytes(a: &AttendArgs) -> usize {
    (a.pairs.max(1) as usize * 2 + PHASE_WARPS * a.head_dim as usize) * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_phases_cut_the_launches() {
        assert_eq!(segments(vec![], 7).first(), Some(&(0..7)));
        assert_eq!(segments(vec![0, 3, 3, 7], 7), [0..0, 0..3, 3..3, 3..7, 7..7]);
    }
}
