//! The interface of a device: it stores tensors, compiles graphs and runs steps.

use std::collections::HashMap;

use crate::state::check_slots;
use crate::{
    AdapterScales, Graph, HostOpsHandle, HostTensor, KvCells, KvSize, KvSpec, PageTable, Roles, Sample,
    Sampled, SequenceRules, StateSlots, StateSpec,
};

/// A stored tensor or reserved memory, by number; valid for the backend that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer(pub u32);

/// A compiled graph, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Program(pub u32);

/// A submitted step that has not been collected.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a submitted step must be collected"]
pub struct Ticket(pub u64);

/// Finished steps that have not been collected, and the samples that the next step may carry over: for backends that
/// compute inside `submit`.
#[derive(Debug, Default)]
pub struct Finished {
    steps: u64,
    waiting: Vec<(u64, StepOutput)>,
    /// The last step of each program: which of its outputs sampled, and which tokens.
    last: HashMap<Program, (Vec<bool>, Vec<Option<u32>>)>,
}

impl Finished {
    /// Fills in the tokens that a step carries over from the one before it.
    pub fn carry(&mut self, program: Program, step: &mut Step) -> Result<()> {
        // removed: nothing is carried over from a step that fails
        let before = step.carried_from.unwrap_or(program);
        let (sampled, ids) = self.last.remove(&before).unwrap_or_default();
        self.last.remove(&program);
        step.check_carried(&sampled)?;
        for carried in &step.carried {
            if let (Some(&Some(id)), Some(token)) =
                (ids.get(carried.output), step.tokens.get_mut(carried.token))
            {
                *token = id;
            }
        }
        Ok(())
    }

    /// Keeps the output of a step until it is collected, and its samples for the next step.
    pub fn keep_step(&mut self, program: Program, step: &Step, output: StepOutput) -> Ticket {
        let sampled = step.outputs.iter().map(|o| o.sample.is_some()).collect();
        let ids = output.rows.iter().map(|row| row.sampled.as_ref().map(|s| s.id)).collect();
        self.last.insert(program, (sampled, ids));
        self.keep(output)
    }

    /// Keeps an output until it is collected.
    fn keep(&mut self, output: StepOutput) -> Ticket {
        self.steps += 1;
        self.waiting.push((self.steps, output));
        Ticket(self.steps)
    }

    /// The output of a ticket.
    pub fn take(&mut self, ticket: Ticket) -> Result<StepOutput> {
        let at = self.waiting.iter().position(|w| w.0 == ticket.0);
        let at = at.ok_or_else(|| {
            BackendError::Invalid("the ticket is from another backend or was collected before".into())
        })?;
        Ok(self.waiting.swap_remove(at).1)
    }
}

/// What went wrong on a device, in one sentence; the variant tells the caller how to react.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// Not enough memory; a smaller request may succeed.
    #[error("{0}")]
    OutOfMemory(String),
    /// The device's context and everything in it are lost. All later calls fail; only a new process can use the device
    /// again.
    #[error("{0}")]
    DeviceLost(String),
    /// The device is missing, or cannot do this.
    #[error("{0}")]
    Unsupported(String),
    /// An invalid step, graph, binding or handle: an error of the caller.
    #[error("{0}")]
    Invalid(String),
    /// This call failed; a later one may succeed.
    #[error("{0}")]
    Other(String),
}

type Result<T> = std::result::Result<T, BackendError>;

/// The CPU, a GPU, or the reference interpreter. Handles are ids, so it is a plain `Box<dyn Backend>`.
pub trait Backend: Send {
    /// Name and memory of the device.
    fn info(&self) -> DeviceInfo;
    /// Takes a tensor: keeps the mapped bytes, or uploads and repacks them for its roles ([`Graph::roles`]). The work
    /// is done when it returns.
    fn store(&mut self, tensor: &HostTensor, roles: Roles) -> Result<Buffer>;
    /// Reserves memory that steps write to.
    fn reserve(&mut self, what: &Reserve) -> Result<Buffer>;
    /// Bytes of scratch for steps of up to `max_tokens` tokens and `max_outputs` outputs.
    fn scratch(&self, graph: &Graph, max_tokens: usize, max_outputs: usize) -> u64;
    /// Fuses, chooses kernels and plans scratch for a graph whose weights are stored.
    fn compile(&mut self, graph: &Graph, bindings: &Bindings<'_>) -> Result<Program>;
    /// Starts a step. Steps run in the order in which they are submitted.
    fn submit(&mut self, program: Program, step: Step) -> Result<Ticket>;
    /// Waits for a step and returns its outputs.
    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput>;
    /// Bytes per second that the device reads from its memory, measured now; `None` if it cannot be measured.
    fn read_bandwidth(&mut self) -> Option<f64> {
        None
    }
    /// The types of keys and values that it can keep.
    fn kv_cells(&self) -> &'static [KvCells] {
        &[KvCells::F16, KvCells::F32, KvCells::Int8]
    }

    /// Whether it runs graphs with [`crate::Op::HostExperts`].
    fn runs_host_ops(&self) -> bool {
        false
    }

    /// What computes the values of [`crate::Op::HostExperts`] in steps of programs that are compiled from now on.
    fn set_host_ops(&mut self, _ops: HostOpsHandle) -> Result<()> {
        Err(BackendError::Unsupported(format!("{} does not run ops on the host", self.info().name)))
    }

    /// Waits for what a program compiles in the background; steps before that may be slower.
    fn finish_compiling(&mut self, _program: Program) -> Result<()> {
        Ok(())
    }

    /// The largest steps that a program runs in a faster way than larger ones, in tokens: one token more may make all slower.
    fn step_borders(&self, _program: Program) -> Vec<usize> {
        vec![]
    }

    /// Whether `submit` returns before the step is done, so that the next one should be submitted meanwhile.
    fn runs_ahead(&self) -> bool {
        false
    }
}

/// Name, memory and step size of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// For display: the device's name and how it is used.
    pub name: String,
    /// Bytes of memory in total.
    pub memory_total: u64,
    /// Bytes that can be allocated.
    pub memory_free: u64,
    /// Tokens of a step that use the device well; larger steps gain nothing.
    pub step_tokens: usize,
}

/// Memory that lives as long as the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// A KV cache.
    Kv(KvSpec),
    /// The state of recurrent layers.
    State(StateSpec),
}

/// The buffers and sizes that a graph is compiled for.
#[derive(Clone, Copy, Debug)]
pub struct Bindings<'a> {
    /// One buffer per weight of the graph, in order.
    pub weights: &'a [Buffer],
    /// The reserved KV pages; a graph without attention needs none.
    pub kv: Option<Buffer>,
    /// The reserved state slots; a graph without recurrent layers needs none.
    pub state: Option<Buffer>,
    /// Maximum number of tokens in a step.
    pub max_tokens: usize,
    /// Maximum number of outputs in a step.
    pub max_outputs: usize,
}

impl Bindings<'_> {
    /// Refuses bindings that do not fit the graph; `shape` returns the rows and columns of a stored tensor.
    pub fn check(&self, graph: &Graph, shape: impl Fn(Buffer) -> Option<[usize; 2]>) -> Result<()> {
        let shapes: Option<Vec<_>> = self.weights.iter().map(|b| shape(*b)).collect();
        let Some(shapes) = shapes else {
            return Err(BackendError::Invalid("a weight is bound to a buffer that is not a tensor".into()));
        };
        if shapes.len() != graph.weights.len() {
            return Err(BackendError::Invalid(
                "the bindings must have one buffer per weight of the graph".into(),
            ));
        }
        let mut checks = graph.weights.iter().zip(shapes).map(|(weight, shape)| weight.check_shape(shape));
        checks.try_for_each(|check| check.map_err(|e| BackendError::Invalid(e.to_string())))
    }
}

/// One forward pass: tokens of one or more sequences, and the requested outputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Token ids, sequence after sequence. `[tokens]`
    pub tokens: Vec<u32>,
    /// Which tokens belong to which sequence; the slices cover `tokens` in order.
    pub slices: Vec<Slice>,
    /// The requested rows.
    pub outputs: Vec<Output>,
    /// Tokens sampled by the step before. The placeholder in `tokens` is used only if no token could be sampled.
    pub carried: Vec<Carried>,
    /// The program of the step before, if it is another one than this step's.
    pub carried_from: Option<Program>,
    /// The rows of each [`crate::Op::Input`], by its index. `[inputs][tokens * width]`
    pub inputs: Vec<Vec<f32>>,
}

/// A token that is not known yet: it is sampled by the step before, of the same program or of [`Step::carried_from`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Index into this step's tokens.
    pub token: usize,
    /// Index into the outputs of the step before.
    pub output: usize,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Number of tokens.
    pub len: usize,
    /// Position of the first one in its sequence.
    pub position: usize,
    /// The sequence's KV pages.
    pub pages: PageTable,
    /// Its pages in the layers with a window, if they have their own. Entries of pages that lie before the window of the
    /// slice's first token are any page of the cache: what they hold has no effect.
    pub window_pages: PageTable,
    /// Its state slots, if the graph has recurrent layers.
    pub state: Option<StateSlots>,
    /// Position of the first token of the second text, if the sequence is a pair of texts.
    pub second: Option<usize>,
    /// The adapters of its sequence.
    pub adapters: AdapterScales,
}

/// A requested row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// Index into the step's tokens.
    pub row: usize,
    /// Sample a token from it.
    pub sample: Option<Sample>,
    /// Return the whole row.
    pub logits: bool,
}

/// The results of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// One per output of the step, in order.
    pub rows: Vec<OutputRow>,
}

/// The result of one requested row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputRow {
    /// The sampled token, if requested; `None` also if a logit was not finite or no token was allowed.
    pub sampled: Option<Sampled>,
    /// The whole row, if requested.
    pub logits: Option<Vec<f32>>,
}

impl Slice {
    /// Tokens of a sequence all of whose layers have the same pages.
    pub fn new(len: usize, position: usize, pages: impl Into<PageTable>) -> Slice {
        Slice { len, position, pages: pages.into(), ..Slice::default() }
    }

    /// The type of the token at a position: 1 in the second text of a pair, 0 otherwise.
    pub fn type_at(&self, position: usize) -> usize {
        usize::from(self.second.is_some_and(|second| position >= second))
    }

    /// The page table of layers that have the window's (`KvSpec::window`), or of the others.
    pub fn table(&self, windowed: bool) -> &PageTable {
        if windowed { &self.window_pages } else { &self.pages }
    }
}

impl Step {
    /// One sequence's tokens from `position` on, with the logits of every row.
    pub fn all_logits(tokens: &[u32], position: usize, pages: impl Into<PageTable>) -> Step {
        Step {
            tokens: tokens.to_vec(),
            slices: vec![Slice::new(tokens.len(), position, pages)],
            outputs: (0..tokens.len()).map(|row| Output { row, sample: None, logits: true }).collect(),
            ..Step::default()
        }
    }

    /// Position of every token in its sequence.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.slices.iter().flat_map(|s| s.position..s.position + s.len)
    }

    /// The adapters of each row: of the step's outputs, or of its tokens.
    pub fn row_adapters(&self, outputs_only: bool) -> Vec<&AdapterScales> {
        let tokens = self.slices.iter().flat_map(|s| std::iter::repeat_n(&s.adapters, s.len));
        let tokens: Vec<_> = tokens.collect();
        if outputs_only { self.outputs.iter().map(|o| tokens[o.row]).collect() } else { tokens }
    }

    /// Whether a sequence of the step uses an adapter.
    pub fn has_adapters(&self) -> bool {
        self.slices.iter().any(|s| !s.adapters.is_empty())
    }

    /// Type of every token: 1 in the second text of a pair, 0 otherwise.
    pub fn types(&self) -> impl Iterator<Item = usize> {
        self.slices.iter().flat_map(|s| (s.position..s.position + s.len).map(|p| s.type_at(p)))
    }

    /// Refuses a step that does not fit its graph: token ids, slices, pages, state slots and rows all in range.
    /// `state_slots` is the number of reserved slots, `None` if the graph has no recurrent layers.
    pub fn check(&self, vocab: usize, kv: KvSize, state_slots: Option<usize>) -> Result<()> {
        let fail = |text: String| Err(BackendError::Invalid(text));
        if self.tokens.is_empty() {
            return fail("a step has no tokens".into());
        }
        if let Some(id) = self.tokens.iter().find(|&&id| id as usize >= vocab) {
            return fail(format!("token id {id} is outside the vocabulary of {vocab}"));
        }
        let covered: usize = self.slices.iter().map(|s| s.len).sum();
        if covered != self.tokens.len() {
            return fail(format!("slices cover {covered} of {} tokens", self.tokens.len()));
        }
        let tables = [(false, "pages", Some(kv.pages)), (true, "window pages", kv.window_pages)];
        let tables = tables.iter().flat_map(|(windowed, name, pages)| {
            pages.iter().flat_map(move |pages| self.slices.iter().map(move |s| (s, *windowed, *name, *pages)))
        });
        for (s, windowed, name, pages) in tables {
            let (table, page_len) = (s.table(windowed), kv.page_len);
            if page_len > 0 && table.len() * page_len < s.position + s.len {
                let (has, last) = (table.len(), s.position + s.len - 1);
                return fail(format!("{has} {name} of {page_len} do not hold position {last}"));
            }
            if let Some(p) = table.iter().find(|&&p| p as usize >= pages) {
                let of = if windowed { " for windows" } else { "" };
                return fail(format!("page {p} is outside the {pages} reserved{of}"));
            }
        }
        check_slots(&self.slices, state_slots)?;
        if let Some(o) = self.outputs.iter().find(|o| o.row >= self.tokens.len()) {
            return fail(format!("output row {} of {} tokens", o.row, self.tokens.len()));
        }
        match self.carried.iter().find(|c| c.token >= self.tokens.len()) {
            Some(c) => fail(format!("carried token {} of {} tokens", c.token, self.tokens.len())),
            None => Ok(()),
        }
    }

    /// Refuses sequences that the graph cannot read.
    pub fn check_sequences(&self, rules: SequenceRules) -> Result<()> {
        let fail = |text: String| Err(BackendError::Invalid(text));
        let last = self.slices.iter().map(|s| s.position + s.len).max().unwrap_or(0);
        if let Some(rows) = rules.positions.filter(|rows| last > *rows) {
            return fail(format!("position {} is outside the {rows} of the model", last - 1));
        }
        let used = self.slices.iter().map(|s| s.adapters.scales().len()).max().unwrap_or(0);
        if used > rules.adapters {
            return fail(format!("adapter {} is outside the {} of the program", used - 1, rules.adapters));
        }
        match self.slices.iter().find(|s| rules.whole && s.position > 0) {
            Some(s) => fail(format!("a slice begins at position {}: sequences must be whole", s.position)),
            None => Ok(()),
        }
    }

    /// Refuses to carry over what the step before does not sample; `sampled` tells which of its outputs do, and is empty
    /// if there was no step before.
    pub fn check_carried(&self, sampled: &[bool]) -> Result<()> {
        let fail = |text: String| Err(BackendError::Invalid(text));
        for c in &self.carried {
            match sampled.get(c.output) {
                Some(true) => {}
                Some(false) => {
                    return fail(format!("output {} of the step before samples no token", c.output));
                }
                None => {
                    let outputs = sampled.len();
                    return fail(format!("output {} of the step before, which has {outputs}", c.output));
                }
            }
        }
        Ok(())
    }

    /// Refuses a step whose input rows do not have these columns ([`Graph::input_widths`]).
    pub fn check_inputs(&self, widths: &[usize]) -> Result<()> {
        let tokens = self.tokens.len();
        let sizes = self.inputs.iter().map(Vec::len);
        if sizes.eq(widths.iter().map(|width| width * tokens)) {
            return Ok(());
        }
        let (want, got) = (widths.len(), self.inputs.iter().map(Vec::len).collect::<Vec<_>>());
        Err(BackendError::Invalid(format!(
            "a step of {tokens} tokens: want {want} inputs of {widths:?} columns, got {got:?} values"
        )))
    }

    /// Refuses a step that is larger than its program was compiled for.
    pub fn check_size(&self, max_tokens: usize, max_outputs: usize) -> Result<()> {
        let (tokens, outputs) = (self.tokens.len(), self.outputs.len());
        if tokens > max_tokens || outputs > max_outputs {
            return Err(BackendError::Invalid(format!(
                "a step of {tokens} tokens and {outputs} outputs, compiled for {max_tokens} and {max_outputs}"
            )));
        }
        Ok(())
    }

    /// Turns rows of logits into the requested results.
    pub fn answer<'a>(&self, logits: impl Iterator<Item = &'a [f32]>) -> StepOutput {
        let rows = self.outputs.iter().zip(logits).map(|(o, row)| OutputRow {
            sampled: o.sample.as_ref().and_then(|s| s.pick(row)),
            logits: o.logits.then(|| row.to_vec()),
        });
        StepOutput { rows: rows.collect() }
    }
}
