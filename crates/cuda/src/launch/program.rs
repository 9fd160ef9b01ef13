//! A compiled graph: its memory, its launch strategies, and how a step is submitted and collected.

use std::sync::Arc;

use tern_graph::{
    BackendError, Graph, HostOpsHandle, Output, OutputRow, Plan, Sample, Sampled, SequenceRules, Step,
    StepOutput, Value, WeightId, Work,
};

use super::fused_step::{FusedStep, FusedStepPlan};
use super::host_phases::HostPhases;
use super::in_flight::{InFlight, Running, StepBuffers};
use super::inputs::{self, InputKinds};
use super::passing::Passed;
use super::phase_launches::{PhaseLaunches, PhasePlan};
use super::program_memory::{Needs, ProgramMemory};
use super::strategy::{LaunchStrategy, StepSize, Strategies};
use crate::driver::{Compiler, Device};
use crate::kv::Kv;
use crate::lower::{
    BatchSources, Fused, KernelConfig, Lowering, PassedMemory, StepPhases, TaggedMemory, TaggedValues, fuse,
    passed_as_halves, passes_before_norm, without_host, work,
};
use crate::sampling::{Sampler, is_plain};
use crate::shared::{IMAGE_ROWS_AT, KvCell};
use crate::state::Reserved;
use crate::weights::Weight;

type Result<T> = std::result::Result<T, BackendError>;

/// A compiled graph.
pub(crate) struct Compiled {
    strategies: Strategies,
    memory: ProgramMemory,
    /// Shape of the result.
    value: Value,
    /// `None` if the result has a row per token: no token is sampled from it.
    sampler: Option<Sampler>,
    /// For each output of the last step: whether a token was requested.
    sampled: Vec<bool>,
    /// Buffers of steps that are not in flight.
    buffers: Vec<StepBuffers>,
    device: Arc<Device>,
    pub(crate) vocab: usize,
    kinds: InputKinds,
    /// Tokens of an image see each other.
    whole_images: bool,
    /// Columns that the rows of images must have.
    pub(crate) image_width: usize,
    /// Columns of each input of a step.
    pub(crate) input_widths: Vec<usize>,
    pub(crate) sequence_rules: SequenceRules,
    pub(crate) reserved: Reserved,
    /// The largest step that it is compiled for.
    pub(crate) most: StepSize,
    /// Phases hold their addresses.
    _weights: Vec<Arc<Weight>>,
}

impl Compiled {
    pub(crate) fn new(
        device: &Arc<Device>,
        compiler: &mut Compiler,
        graph: &Graph,
        weights: &[Arc<Weight>],
        reserved: Reserved,
        most: StepSize,
        host_ops: Option<HostOpsHandle>,
    ) -> Result<Compiled> {
        let Some(node) = graph.nodes.last() else {
            return Err(BackendError::Invalid("the graph has no nodes".into()));
        };
        let value = node.value;
        let fused = fuse(graph, |id: WeightId| match &*weights[id.index()] {
            Weight::Records { layout, .. } => Some(*layout),
            Weight::Floats { .. } => None,
        })?;
        let work: Vec<_> = fused.iter().map(|phase| work(graph, phase)).collect();
        let plan = Plan::of(graph, &work);
        let (fused, host) = without_host(fused);
        let kv = reserved.kv.as_deref();
        let needs = Needs { graph, plan: &plan, fused: &fused, weights, reserved: &reserved, most };
        let memory = ProgramMemory::new(device, &needs)?;
        let page_len = kv.map_or(0, |kv| kv.spec.page_len);
        let lowering = Lowering {
            graph,
            plan: &plan,
            addresses: &memory.addresses,
            tagged: None,
            config: KernelConfig { page_len, ..KernelConfig::default() },
            used_blocks: 0,
        };
        let host = HostPhases::new(device, lowering.host_ops(&host)?, host_ops, most.tokens)?;
        // a fused step neither waits for the host nor has adapters: steps without any
        // run the graph without them
        let fits = host.is_none() && graph.adapters() == 0;
        let step = fits.then(|| StepPhases::passed(graph, &fused, &plan)).flatten();
        let mut builder = StrategyBuilder { device, compiler, memory: &memory, lowering, kv };
        let step = step.as_ref().map(|(phases, tagged)| StepParts { phases, tagged });
        let strategies = builder.build(&fused, &work, step, host, most.tokens)?;
        let sampler = if value.outputs_only {
            Some(Sampler::new(device, compiler, most.outputs, value.width)?)
        } else {
            None
        };
        Ok(Compiled {
            strategies,
            memory,
            value,
            sampler,
            sampled: vec![],
            buffers: vec![],
            device: Arc::clone(device),
            vocab: graph.vocab(),
            kinds: InputKinds::of(graph),
            whole_images: graph.keeps_images_whole(),
            image_width: graph.image_width(),
            input_widths: graph.input_widths(),
            sequence_rules: graph.sequence_rules(),
            reserved,
            most,
            _weights: weights.to_vec(),
        })
    }

    /// The largest steps of strategies that others follow.
    pub(crate) fn step_borders(&self) -> Vec<usize> {
        self.strategies.borders()
    }

    /// Waits for kernels that are compiled in the background.
    pub(crate) fn finish_compiling(&mut self) -> Result<()> {
        self.strategies.finish_compiling(true)
    }

    /// Takes over what the last step of another program sampled, for a step that carries tokens from it.
    pub(crate) fn carry_from(&mut self, other: &Compiled) -> Result<()> {
        self.sampled.clone_from(&other.sampled);
        self.memory.sampled.copy_from(&other.memory.sampled)
    }

    /// Starts a step.
    pub(crate) fn submit(&mut self, step: &Step) -> Result<InFlight> {
        step.check_carried(&self.sampled)?;
        let samples = step.outputs.iter().any(|o| o.sample.is_some());
        let wants_logits = step.outputs.iter().any(wants_logits);
        if samples && !wants_logits && self.sampler.is_none() {
            let message = "tokens cannot be sampled: the graph's result has a row per token, not per output";
            return Err(BackendError::Invalid(message.into()));
        }
        let longest = step.slices.iter().map(|slice| slice.len).max().unwrap_or(0);
        let size = StepSize {
            tokens: step.tokens.len(),
            outputs: step.outputs.len(),
            longest,
            whole_images: self.divides(step),
        };
        let mut buffers = match self.buffers.pop() {
            Some(buffers) => buffers,
            None => StepBuffers::new(&self.device, self.memory.inputs.len(), self.memory.sampled.len())?,
        };
        let windowed = self.reserved.kv.as_ref().is_some_and(|kv| kv.spec.window.is_some());
        let mut words = inputs::pack(step, self.kinds, windowed);
        let strategy = self.strategies.of(size)?;
        strategy.plan(step, &mut words);
        let (needed, reserved) = (words.len() * 4, self.memory.inputs.len());
        if needed > reserved {
            let slices = step.slices.len();
            return Err(BackendError::Invalid(format!(
                "the inputs of a step with {slices} slices take {needed} bytes, {reserved} are reserved"
            )));
        }
        for (to, word) in buffers.inputs.bytes().chunks_exact_mut(4).zip(&words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        self.memory.inputs.write_pinned(0, &buffers.inputs, words.len() * 4)?;
        if words[IMAGE_ROWS_AT] > 0 {
            self.memory.image_rows.write(0, bytemuck::cast_slice(&inputs::image_rows(step)))?;
        }
        strategy.launch(size)?;
        self.sampled = step.outputs.iter().map(|o| o.sample.is_some()).collect();
        if wants_logits {
            let output = self.with_logits(step)?;
            self.buffers.push(buffers);
            return Ok(InFlight::Done(output));
        }
        let plain = |o: &Output| o.sample.as_ref().is_none_or(is_plain);
        if !step.outputs.iter().all(plain)
            && let Some(sampler) = &mut self.sampler
        {
            sampler.sample(step, self.memory.result().pointer(), self.memory.sampled.pointer())?;
        }
        self.memory.sampled.read_pinned(&mut buffers.sampled, size.outputs * 4)?;
        buffers.done.record()?;
        Ok(InFlight::Running(Running { buffers, sampled: self.sampled.clone() }))
    }

    /// Whether a step has tokens of an image that see each other.
    fn divides(&self, step: &Step) -> bool {
        self.whole_images && step.slices.iter().any(|s| s.positions().any(|at| s.images.at(at).is_some()))
    }

    /// Waits for a step.
    pub(crate) fn collect(&mut self, step: InFlight) -> Result<StepOutput> {
        let Running { mut buffers, sampled } = match step {
            InFlight::Done(output) => return Ok(output),
            InFlight::Running(running) => running,
        };
        buffers.done.wait()?;
        let ids =
            buffers.sampled.bytes().chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let rows = sampled.iter().zip(ids).map(|(sampled, id)| {
            let id = u32::try_from(id).ok().filter(|_| *sampled);
            OutputRow { sampled: id.map(|id| Sampled { id, ..Sampled::default() }), logits: None }
        });
        let output = StepOutput { rows: rows.collect() };
        self.buffers.push(buffers);
        Ok(output)
    }

    /// Copies whole rows to the host and samples there; the token ids are copied back, for a
    /// next step that carries them.
    fn with_logits(&self, step: &Step) -> Result<StepOutput> {
        let width = self.value.width;
        let rows = if self.value.outputs_only { step.outputs.len() } else { step.tokens.len() };
        let mut bytes = vec![0; rows * width * 4];
        self.memory.result().read(0, &mut bytes)?;
        let logits: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let output = step.answer(logits.chunks_exact(width));
        let ids = output.rows.iter().map(|row| row.sampled.as_ref().map_or(-1, |s| s.id as i32));
        let ids: Vec<u8> = ids.flat_map(i32::to_le_bytes).collect();
        let sampled = &self.memory.sampled;
        sampled.write(0, &ids[..ids.len().min(sampled.len())])?;
        Ok(output)
    }
}

/// Log-probabilities are computed on the host, from whole rows, and so is sampling with
/// filters that no kernel has.
fn wants_logits(output: &Output) -> bool {
    let needs = |sample: &Sample| sample.params.logprobs.is_some() || sample.params.needs_host();
    output.logits || output.sample.as_ref().is_some_and(needs)
}

/// What fused steps are built from.
#[derive(Clone, Copy)]
struct StepParts<'a> {
    phases: &'a StepPhases,
    tagged: &'a TaggedValues,
}

/// Builds the launch strategies of a program.
struct StrategyBuilder<'a> {
    device: &'a Arc<Device>,
    compiler: &'a mut Compiler,
    memory: &'a ProgramMemory,
    lowering: Lowering<'a>,
    kv: Option<&'a Kv>,
}

impl<'a> StrategyBuilder<'a> {
    /// Fused steps for few tokens, and launches per phase for larger steps. Another strategy is another
    /// entry, ordered by the tokens it serves.
    fn build(
        &mut self,
        fused: &[Fused],
        work: &[Work],
        step: Option<StepParts<'a>>,
        host: Option<HostPhases>,
        max_tokens: usize,
    ) -> Result<Strategies> {
        let phases = self.lowering.phases(fused)?;
        let config = self.lowering.config.clone();
        let (inputs, ropes) = (self.memory.inputs.pointer(), &self.memory.ropes);
        // keys and values of a fused step are halves
        let halves = self.kv.is_none_or(|kv| kv.cells == KvCell::Half);
        let sizes = FusedStep::sizes(&config, &phases, ropes, max_tokens);
        let passed = passed_as_halves(self.lowering.graph, fused, work);
        let mut list: Vec<Box<dyn LaunchStrategy>> = vec![];
        let mut most = 0;
        // whole sequences have more tokens, and their layers share keys and values:
        // phases must end one by one
        let whole = self.lowering.graph.sequence_rules().whole;
        // a fused step adds in another order than launches do
        let reproducible = self.device.arithmetic.reproducible;
        let fused_steps = step.filter(|_| halves && !whole && !reproducible).into_iter();
        for (StepParts { phases: step, tagged }, tokens) in
            fused_steps.flat_map(|step| sizes.iter().map(move |tokens| (step, *tokens)))
        {
            let values = self.device.allocate(tagged.bytes(tokens))?;
            self.lowering.tagged = Some(TaggedMemory { values: tagged, at: values.pointer(), tokens });
            let sources = BatchSources {
                graph: self.lowering.graph,
                fused: &step.fused,
                phases: &self.lowering.phases(&step.fused)?,
                passed: &passed,
                barriers: &tagged.barriers,
            };
            let (phases, memory) = if tokens == 1 {
                (sources.unchanged(), vec![values])
            } else {
                let halves = self.device.allocate(sources.phases(PassedMemory::new(0)).1)?;
                (sources.phases(PassedMemory::new(halves.pointer())).0, vec![values, halves])
            };
            let plan = FusedStepPlan { tokens, config: &config, phases: &phases, ropes, inputs };
            if let Some(step) = FusedStep::new(self.device, self.compiler, &plan, memory)? {
                list.push(Box::new(step));
                most = tokens;
            }
        }
        let kv = self.kv;
        // only small steps do so
        let before_norm = (0..fused.len()).map(|i| passes_before_norm(self.lowering.graph, fused, i));
        let passed = Passed { as_halves: passed, before_norm: before_norm.collect() };
        let many = PhasePlan { config: &config, phases, passed, kv, inputs, max_tokens, host };
        if max_tokens > 1 || most == 0 {
            self.compiler.load_all(&many.sources(self.device))?;
            list.push(Box::new(PhaseLaunches::new(self.device, self.compiler, many)?));
        }
        Ok(Strategies::new(list))
    }
}
