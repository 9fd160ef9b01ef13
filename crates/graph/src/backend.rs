//! Somewhere tensors live and graphs run.

use std::collections::HashMap;

use crate::{Graph, HostTensor, KvSpec, PageTable, Roles, Sample, Sampled};

/// A stored tensor or reserved memory, by number; belongs to the backend that gave it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer(pub u32);

/// A compiled graph, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Program(pub u32);

/// A submitted step that has not been collected.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a submitted step must be collected"]
pub struct Ticket(pub u64);

/// Finished steps that have not been collected, and what may be carried over from them: for backends that compute
/// inside `submit`.
#[derive(Debug, Default)]
pub struct Finished {
    steps: u64,
    waiting: Vec<(u64, StepOutput)>,
    /// The last step of each program: which of its outputs sampled, and which tokens.
    last: HashMap<Program, (Vec<bool>, Vec<Option<u32>>)>,
}

impl Finished {
    /// Puts the tokens in that a step carries over from the one before it.
    pub fn carry(&mut self, program: Program, step: &mut Step) -> Result<()> {
        // taken out: nothing is carried over from a step that fails
        let (sampled, ids) = self.last.remove(&program).unwrap_or_default();
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

    /// Keeps what a step gave until its ticket comes back, and its tokens for the step after it.
    pub fn keep_step(&mut self, program: Program, step: &Step, output: StepOutput) -> Ticket {
        let sampled = step.outputs.iter().map(|o| o.sample.is_some()).collect();
        let ids = output.rows.iter().map(|row| row.sampled.as_ref().map(|s| s.id)).collect();
        self.last.insert(program, (sampled, ids));
        self.keep(output)
    }

    /// Keeps an output until its ticket comes back.
    fn keep(&mut self, output: StepOutput) -> Ticket {
        self.steps += 1;
        self.waiting.push((self.steps, output));
        Ticket(self.steps)
    }

    /// The output behind a ticket.
    pub fn take(&mut self, ticket: Ticket) -> Result<StepOutput> {
        let at = self.waiting.iter().position(|w| w.0 == ticket.0);
        let at = at.ok_or_else(|| BackendError::Invalid("this ticket was not given out here".into()))?;
        Ok(self.waiting.swap_remove(at).1)
    }
}

/// What went wrong on a device, in one sentence; the variant says what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// Memory was refused: less of it may be given.
    #[error("{0}")]
    OutOfMemory(String),
    /// A fault took the device's context and everything in it. Whatever is asked of it fails from now on, and only a
    /// new process gets it back.
    #[error("{0}")]
    DeviceLost(String),
    /// The device is missing, or cannot do this.
    #[error("{0}")]
    Unsupported(String),
    /// A step, a graph, bindings or a handle that does not fit: the caller's mistake.
    #[error("{0}")]
    Invalid(String),
    /// This call failed; the next one may not.
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
    /// Sets memory aside that steps write to.
    fn reserve(&mut self, what: &Reserve) -> Result<Buffer>;
    /// Bytes of scratch that steps of so many tokens and outputs would take.
    fn scratch(&self, graph: &Graph, max_tokens: usize, max_outputs: usize) -> u64;
    /// Fuses, chooses kernels and plans scratch for a graph whose weights are stored.
    fn compile(&mut self, graph: &Graph, bindings: &Bindings<'_>) -> Result<Program>;
    /// Starts a step. Steps run in the order in which they are submitted.
    fn submit(&mut self, program: Program, step: Step) -> Result<Ticket>;
    /// Waits for a step and gives back what it was asked for.
    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput>;
    /// Bytes a second that the device reads from its memory, measured now; none where it has no way to tell.
    fn read_bandwidth(&mut self) -> Option<f64> {
        None
    }
    /// Whether `submit` comes back before the step is done, so that the next one should be submitted meanwhile.
    fn runs_ahead(&self) -> bool {
        false
    }
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// For people: the device's own name and how it is used.
    pub name: String,
    /// Bytes of memory in all.
    pub memory_total: u64,
    /// Bytes that can still be taken.
    pub memory_free: u64,
}

/// Memory that lives as long as the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// A KV cache.
    Kv(KvSpec),
}

/// What a graph is compiled against.
#[derive(Clone, Copy, Debug)]
pub struct Bindings<'a> {
    /// One buffer for each of the graph's weights, in order.
    pub weights: &'a [Buffer],
    /// The reserved KV pages; a graph without attention needs none.
    pub kv: Option<Buffer>,
    /// The most tokens a step will have.
    pub max_tokens: usize,
    /// The most rows a step will ask for.
    pub max_outputs: usize,
}

impl Bindings<'_> {
    /// Refuses bindings that do not fit the graph; `shape` returns the rows and columns of a stored tensor.
    pub fn check(&self, graph: &Graph, shape: impl Fn(Buffer) -> Option<[usize; 2]>) -> Result<()> {
        let shapes: Option<Vec<_>> = self.weights.iter().map(|b| shape(*b)).collect();
        let Some(shapes) = shapes else {
            return Err(BackendError::Invalid("a weight is bound to a buffer that is no tensor".into()));
        };
        if shapes.len() != graph.weights.len() {
            return Err(BackendError::Invalid("a graph must be bound to all of its weights".into()));
        }
        let mut checks = graph.weights.iter().zip(shapes).map(|(weight, shape)| weight.check_shape(shape));
        checks.try_for_each(|check| check.map_err(|e| BackendError::Invalid(e.to_string())))
    }
}

/// One forward pass: tokens of one or more sequences, and what is wanted of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Token ids, sequence after sequence. `[tokens]`
    pub tokens: Vec<u32>,
    /// Which of them belong to which sequence; together they cover `tokens` in order.
    pub slices: Vec<Slice>,
    /// The rows whose logits are wanted.
    pub outputs: Vec<Output>,
    /// Tokens that the step before samples. What `tokens` has in their place counts only if it could choose none.
    pub carried: Vec<Carried>,
}

/// A token that is not known yet: the step submitted just before, of the same program, samples it.
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
    /// How many tokens.
    pub len: usize,
    /// Position of the first one in its sequence.
    pub position: usize,
    /// The sequence's KV pages.
    pub pages: PageTable,
}

/// A wanted row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// Index into the step's tokens.
    pub row: usize,
    /// Sample a token from it.
    pub sample: Option<Sample>,
    /// Give the whole row back.
    pub logits: bool,
}

/// The results of a step, one for each of its outputs, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// One a wanted row.
    pub rows: Vec<OutputRow>,
}

/// What one wanted row gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputRow {
    /// The sampled token, where asked for; `None` also when a logit was not finite or nothing was allowed.
    pub sampled: Option<Sampled>,
    /// The whole row, where asked for.
    pub logits: Option<Vec<f32>>,
}

impl Step {
    /// One sequence's tokens from `position` on, with the logits of every row.
    pub fn all_logits(tokens: &[u32], position: usize, pages: impl Into<PageTable>) -> Step {
        Step {
            tokens: tokens.to_vec(),
            slices: vec![Slice { len: tokens.len(), position, pages: pages.into() }],
            outputs: (0..tokens.len()).map(|row| Output { row, sample: None, logits: true }).collect(),
            carried: vec![],
        }
    }

    /// Position of every token in its sequence.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.slices.iter().flat_map(|s| s.position..s.position + s.len)
    }

    /// Refuses a step that does not fit its graph: token ids, slices, pages and rows all in range.
    pub fn check(&self, vocab: usize, pages: usize, page_len: usize) -> Result<()> {
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
        for s in &self.slices {
            if page_len > 0 && s.pages.len() * page_len < s.position + s.len {
                return fail(format!(
                    "{} pages of {page_len} do not hold position {}",
                    s.pages.len(),
                    s.position + s.len - 1
                ));
            }
            if let Some(p) = s.pages.iter().find(|&&p| p as usize >= pages) {
                return fail(format!("page {p} is outside the {pages} reserved"));
            }
        }
        if let Some(o) = self.outputs.iter().find(|o| o.row >= self.tokens.len()) {
            return fail(format!("output row {} of {} tokens", o.row, self.tokens.len()));
        }
        match self.carried.iter().find(|c| c.token >= self.tokens.len()) {
            Some(c) => fail(format!("carried token {} of {} tokens", c.token, self.tokens.len())),
            None => Ok(()),
        }
    }

    /// Refuses to carry over what the step before does not sample; `sampled` says which of its outputs do, and is
    /// empty if there was no step before.
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

    /// Turns rows of logits into what the outputs asked for.
    pub fn answer<'a>(&self, logits: impl Iterator<Item = &'a [f32]>) -> StepOutput {
        let rows = self.outputs.iter().zip(logits).map(|(o, row)| OutputRow {
            sampled: o.sample.as_ref().and_then(|s| s.pick(row)),
            logits: o.logits.then(|| row.to_vec()),
        });
        StepOutput { rows: rows.collect() }
    }
}
