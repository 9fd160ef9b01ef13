//! Runs batches: a graph on a backend.

use std::collections::VecDeque;

use tern_graph::{
    AdapterScales, AdapterSet, Backend, Bindings, Buffer, CachePart, Graph, HostTensor, Images, KvCells,
    LazyTensor, OutputRow, PageTable, Place, Program, Reserve, Roles, Slice, StateSlots, StateSpec, Step,
    Ticket, Weight, all_finite,
};

use crate::fingerprint::Fingerprint;
use crate::made_ahead::made_ahead;
use crate::{Answer, Batch, Capacity, EngineError, Entry, Pooling, Want, WindowPages};

/// Turns a batch into answers.
pub trait Runner: Send {
    /// Starts a batch. Batches are computed in the order in which they are submitted.
    fn submit(&mut self, batch: &Batch) -> Result<(), EngineError>;

    /// Waits for the oldest batch that was submitted and not collected; one answer per entry.
    fn collect(&mut self) -> Result<Vec<Answer>, EngineError>;

    /// Whether `submit` returns before the batch is done, so that one more should be submitted meanwhile.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// The largest steps that it computes in a faster way than larger ones; see [`crate::StepSizes`].
    fn step_borders(&self) -> Vec<usize> {
        vec![]
    }

    /// Runs a batch while nothing else is in flight.
    fn step(&mut self, batch: &Batch) -> Result<Vec<Answer>, EngineError> {
        self.submit(batch)?;
        self.collect()
    }

    /// KV pages, state slots and the largest step.
    fn capacity(&self) -> Capacity;

    /// Whether it samples tokens; otherwise it computes vectors of texts only.
    fn generates(&self) -> bool {
        true
    }

    /// Whether it reads texts whole, in one step, and pools them itself.
    fn reads_whole(&self) -> bool {
        false
    }

    /// Adapters that sequences may use.
    fn adapters(&self) -> usize {
        0
    }

    /// Columns of the rows of images that sequences may have; 0 if they may have none.
    fn image_width(&self) -> usize {
        0
    }

    /// Whether all rows of an image must be in one step.
    fn keeps_images_whole(&self) -> bool {
        false
    }

    /// Token ids must be below; the default accepts any.
    fn vocab(&self) -> usize {
        usize::MAX
    }

    /// What a cache on disk must know of its pages and state slots; `None` if it does not copy them.
    fn cache_format(&self) -> Option<CacheFormat> {
        None
    }

    /// Appends the bytes of a page or of a state slot; no batch is in flight.
    fn read_cache(&mut self, place: Place, _to: &mut Vec<u8>) -> Result<(), EngineError> {
        Err(EngineError::Runner(format!("{place:?}: this runner does not copy its pages")))
    }

    /// Overwrites a page or a state slot by bytes that were read; no batch is in flight.
    fn write_cache(&mut self, place: Place, _bytes: &[u8]) -> Result<(), EngineError> {
        Err(EngineError::Runner(format!("{place:?}: this runner does not copy its pages")))
    }
}

/// What pages and state slots hold, for a cache outside the runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheFormat {
    /// A hash of the model, of how its pages are arranged and of what computes them.
    pub model: [u8; 32],
    /// A hash of its adapters.
    pub adapters: [u8; 32],
    /// Bytes of a page, of a page of layers with a window, and of a state slot; 0 if there are none.
    pub bytes: [usize; 3],
}

impl CacheFormat {
    /// Bytes of a page or slot of this kind.
    pub fn bytes_of(&self, part: CachePart) -> usize {
        let [page, window_page, state_slot] = self.bytes;
        match part {
            CachePart::Page => page,
            CachePart::WindowPage => window_page,
            CachePart::StateSlot => state_slot,
        }
    }
}

/// What a [`GraphRunner`] is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerConfig {
    /// KV pages and state slots to reserve and the largest step to compile for.
    pub capacity: Capacity,
    /// The type of keys and values.
    pub kv_cells: KvCells,
    /// Threads that make weights while others are stored, at least one.
    pub threads: usize,
}

/// A compiled graph with its weights, KV pages and state slots on a backend.
pub struct GraphRunner {
    backend: Box<dyn Backend>,
    plain: Programs,
    adapted: Option<Adapted>,
    weights: Vec<Buffer>,
    /// The program of the last step that samples.
    last: Program,
    kv: Option<Buffer>,
    state: Option<Buffer>,
    capacity: Capacity,
    vocab: usize,
    image_width: usize,
    generates: bool,
    reads_whole: bool,
    keeps_images: bool,
    /// `None` if the backend does not copy pages.
    cache_format: Option<CacheFormat>,
    /// The oldest first.
    in_flight: VecDeque<Submitted>,
}

/// The programs of a graph.
struct Programs {
    /// Samples tokens, or computes vectors.
    whole: Program,
    /// The model without its last matrix, and its program, compiled on first use.
    hidden: Option<Graph>,
    hidden_program: Option<Program>,
}

/// The same model with adapters, for steps of sequences that use some: other steps run as if there were none,
/// unless the backend adapts all of them.
struct Adapted {
    programs: Programs,
    count: usize,
    /// The adapters that [`GraphRunner::logits`] uses.
    active: AdapterScales,
}

/// A batch on the backend: its steps, and which of their rows belong to each entry.
struct Submitted {
    texts: Option<Ticket>,
    hidden: Option<Ticket>,
    rows: Vec<Rows>,
}

/// The rows of one entry.
enum Rows {
    Nothing,
    /// This many rows of logits.
    Tokens(usize),
    /// This many hidden states.
    Pooled(Pooling, usize),
}

impl GraphRunner {
    /// Reserves the KV pages and state slots, stores the weights and compiles the graph.
    ///
    /// `tensors` have the names and the order of `graph.weights`. They are stored one at a time while a few
    /// of the next ones are made, and `progress` is called after each with the bytes stored so far.
    pub fn new(
        backend: Box<dyn Backend>,
        graph: &Graph,
        tensors: impl IntoIterator<Item = impl Into<LazyTensor>>,
        config: RunnerConfig,
        mut progress: impl FnMut(u64),
    ) -> Result<GraphRunner, EngineError> {
        GraphRunner::new_while(backend, graph, tensors, config, |stored| {
            progress(stored);
            true
        })
    }

    /// The same as long as `progress` returns true: else it fails before the next tensor is stored.
    pub fn new_while(
        mut backend: Box<dyn Backend>,
        graph: &Graph,
        tensors: impl IntoIterator<Item = impl Into<LazyTensor>>,
        config: RunnerConfig,
        mut progress: impl FnMut(u64) -> bool,
    ) -> Result<GraphRunner, EngineError> {
        let RunnerConfig { capacity, kv_cells: cells, threads } = config;
        capacity.check()?;
        let Capacity { max_tokens, mut max_outputs, .. } = capacity;
        if graph.vectors {
            max_outputs = max_tokens; // every token may have a vector
        }
        // before the weights: a device that is too small fails at once
        let (kv_spec, state_spec) = (capacity.kv_spec(graph, cells), capacity.state_spec(graph));
        let kv = Some(backend.reserve(&Reserve::Kv(kv_spec.clone()))?);
        let state = match &state_spec {
            Some(spec) => Some(backend.reserve(&Reserve::State(spec.clone()))?),
            None if graph.states.is_empty() => None,
            None => {
                return Err(EngineError::Load("the graph has recurrent layers and needs state slots".into()));
            }
        };
        let tensors: Vec<LazyTensor> = tensors.into_iter().map(Into::into).collect();
        if let Some(missing) = graph.weights.get(tensors.len()) {
            return Err(EngineError::Load(format!("{}: missing tensor", missing.name)));
        }
        if let Some(extra) = tensors.get(graph.weights.len()) {
            return Err(EngineError::Load(format!("{}: the graph has no such weight", extra.name())));
        }
        let mut wanted = graph.weights.iter().zip(graph.roles());
        let (mut weights, mut stored) = (Vec::with_capacity(graph.weights.len()), 0);
        let mut fingerprint = Fingerprint::default();
        made_ahead(&tensors, threads, |tensor| {
            fingerprint.add(&tensor);
            if let Some((want, roles)) = wanted.next() {
                weights.push(store(&mut *backend, want, roles, &tensor)?);
            }
            stored += tensor.data().len() as u64;
            match progress(stored) {
                true => Ok(()),
                false => Err(EngineError::Load("loading was stopped".into())),
            }
        })?;
        drop(tensors); // and what they are made of
        let bindings = Bindings { weights: &weights, kv, state, max_tokens, max_outputs };
        let whole = backend.compile(graph, &bindings)?;
        let cache_format = backend.cache_format().map(|format| {
            fingerprint.add_graph(graph);
            fingerprint.add_format(&format, &kv_spec, state_spec.as_ref());
            let state_slot = state_spec.as_ref().map_or(0, StateSpec::slot_bytes);
            let bytes = [kv_spec.page_bytes(false), kv_spec.page_bytes(true), state_slot];
            CacheFormat { model: fingerprint.finish(), adapters: [0; 32], bytes }
        });
        Ok(GraphRunner {
            backend,
            plain: Programs::of(graph, whole, graph.hidden()),
            adapted: None,
            weights,
            last: whole,
            kv,
            state,
            capacity,
            vocab: graph.vocab(),
            image_width: graph.image_width(),
            generates: !graph.vectors,
            reads_whole: graph.sequence_rules().whole,
            keeps_images: graph.keeps_images_whole(),
            cache_format,
            in_flight: VecDeque::new(),
        })
    }

    /// Stores adapters of this runner's `graph` and compiles it with them; `active` are those of
    /// [`GraphRunner::logits`].
    pub fn add_adapters(
        &mut self,
        graph: &Graph,
        set: &AdapterSet,
        active: AdapterScales,
    ) -> Result<(), EngineError> {
        let load = |e: tern_graph::GraphError| EngineError::Load(e.to_string());
        let adapted = graph.with_adapters(set.count, &set.linears).map_err(load)?;
        let wanted = adapted.weights.iter().zip(adapted.roles()).skip(self.weights.len());
        if adapted.weights.len() != self.weights.len() + set.tensors.len() {
            return Err(EngineError::Load("want two matrices per linear that adapters change".into()));
        }
        for ((want, roles), tensor) in wanted.zip(&set.tensors) {
            self.weights.push(store(&mut *self.backend, want, roles, tensor)?);
        }
        let max_outputs = if graph.vectors { self.capacity.max_tokens } else { self.capacity.max_outputs };
        let whole = self.compile(&adapted, max_outputs)?;
        let hidden = self.plain.hidden.as_ref().map(|hidden| hidden.with_adapters(set.count, &set.linears));
        let programs = Programs::of(&adapted, whole, hidden.transpose().map_err(load)?);
        if let Some(format) = &mut self.cache_format {
            let mut fingerprint = Fingerprint::default();
            set.tensors.iter().for_each(|tensor| fingerprint.add(tensor));
            format.adapters = fingerprint.finish();
        }
        self.adapted = Some(Adapted { programs, count: set.count, active });
        Ok(())
    }

    /// Compiles a graph whose weights are the first ones that are stored.
    fn compile(&mut self, graph: &Graph, max_outputs: usize) -> Result<Program, EngineError> {
        let (weights, max_tokens) = (&self.weights[..graph.weights.len()], self.capacity.max_tokens);
        let bindings = Bindings { weights, kv: self.kv, state: self.state, max_tokens, max_outputs };
        Ok(self.backend.compile(graph, &bindings)?)
    }

    /// The logits after every token of one fresh sequence: `each(position, row)`, in order.
    ///
    /// Overwrites the first pages and the first state slot, so nothing else may be in flight.
    pub fn logits(&mut self, tokens: &[u32], each: impl FnMut(usize, &[f32])) -> Result<(), EngineError> {
        self.logits_in_steps(tokens, usize::MAX, each)
    }

    /// The same in steps of up to `most` tokens.
    pub fn logits_in_steps(
        &mut self,
        tokens: &[u32],
        most: usize,
        each: impl FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        self.logits_with(tokens, &Images::NONE, most, each)
    }

    /// The same with images in the sequence.
    pub fn logits_with(
        &mut self,
        tokens: &[u32],
        images: &Images,
        most: usize,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        let Capacity { pages, page_len, max_tokens, max_outputs, window, state } = self.capacity;
        let need = self.capacity.pages_for(tokens.len());
        if need > pages {
            return Err(EngineError::Pages { need, page_len, pages });
        }
        let adapters = self.active_adapters();
        let pages: PageTable = (0..need as u32).collect();
        let mut chunk = max_outputs.min(max_tokens).min(most).max(1);
        // pages that have left the window are used again, in turn: a step and what it sees must fit them
        let window_pages: PageTable =
            (0..need as u32).map(|page| window.map_or(0, |w| page % w.pages as u32)).collect();
        if let Some(window) = window.filter(|window| window.pages < need) {
            let fits = |step: &usize| WindowPages::in_turn(window.tokens, page_len, *step) <= window.pages;
            chunk = (1..=chunk).rev().find(fits).unwrap_or(1);
        }
        let mut first = 0;
        while first < tokens.len() {
            let end = tokens.len().min(first + chunk);
            let end = if self.keeps_images { images.uncut(first, end) } else { end };
            let part = &tokens[first..end];
            let slice = Slice::new(part.len(), first, pages.clone());
            let state = state.map(|_| StateSlots::in_place(0, first));
            let adapters = adapters.clone();
            let images = images.clone();
            let slices = vec![Slice { window_pages: window_pages.clone(), state, adapters, images, ..slice }];
            let step = Step { slices, ..Step::all_logits(part, first, PageTable::default()) };
            let program = self.programs(step.has_adapters()).whole;
            let ticket = self.backend.submit(program, step)?;
            for (row, out) in self.backend.collect(ticket)?.rows.iter().enumerate() {
                let position = first + row;
                let Some(logits) = &out.logits else {
                    return Err(EngineError::Runner(format!("no logits for position {position}")));
                };
                if !all_finite(logits) {
                    return Err(EngineError::NotFinite { position });
                }
                each(position, logits);
            }
            first = end;
        }
        Ok(())
    }

    /// The adapters that [`GraphRunner::logits`] uses.
    pub fn active_adapters(&self) -> AdapterScales {
        self.adapted.as_ref().map_or(AdapterScales::NONE, |adapted| adapted.active.clone())
    }

    /// The backend, for its name and memory.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Waits for what the backend compiles in the background: for measurements.
    pub fn finish_compiling(&mut self) -> Result<(), EngineError> {
        let adapted = self.adapted.as_ref().map(|adapted| adapted.programs.whole);
        let mut programs = [self.plain.whole].into_iter().chain(adapted);
        Ok(programs.try_for_each(|program| self.backend.finish_compiling(program))?)
    }

    /// The programs of steps with adapters, or without.
    fn programs(&mut self, adapters: bool) -> &mut Programs {
        let adapts_all = self.backend.adapts_all_steps();
        match &mut self.adapted {
            Some(adapted) if adapters || adapts_all => &mut adapted.programs,
            _ => &mut self.plain,
        }
    }
}

impl Runner for GraphRunner {
    fn submit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        let texts = self.start(batch, false)?;
        let hidden = match self.start(batch, true) {
            Ok(hidden) => hidden,
            Err(error) => {
                let _ = self.finish(texts); // the batch fails as a whole
                return Err(error);
            }
        };
        let rows = batch.entries.iter().map(Rows::of).collect();
        self.in_flight.push_back(Submitted { texts, hidden, rows });
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<Answer>, EngineError> {
        let Some(Submitted { texts, hidden, rows }) = self.in_flight.pop_front() else {
            return Err(EngineError::Runner("no batch is in flight".into()));
        };
        let (texts, hidden) = (self.finish(texts), self.finish(hidden));
        let (mut texts, mut hidden) = (texts?.into_iter(), hidden?.into_iter());
        Ok(rows.into_iter().map(|rows| rows.answer(&mut texts, &mut hidden)).collect())
    }

    fn runs_ahead(&self) -> bool {
        self.backend.runs_ahead()
    }

    fn step_borders(&self) -> Vec<usize> {
        self.backend.step_borders(self.plain.whole)
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn vocab(&self) -> usize {
        self.vocab
    }

    fn image_width(&self) -> usize {
        self.image_width
    }

    fn generates(&self) -> bool {
        self.generates
    }

    fn reads_whole(&self) -> bool {
        self.reads_whole
    }

    fn keeps_images_whole(&self) -> bool {
        self.keeps_images
    }

    fn adapters(&self) -> usize {
        self.adapted.as_ref().map_or(0, |adapted| adapted.count)
    }

    fn cache_format(&self) -> Option<CacheFormat> {
        self.cache_format
    }

    fn read_cache(&mut self, place: Place, to: &mut Vec<u8>) -> Result<(), EngineError> {
        let buffer = self.reserved(place)?;
        Ok(self.backend.read_cache(buffer, place, to)?)
    }

    fn write_cache(&mut self, place: Place, bytes: &[u8]) -> Result<(), EngineError> {
        let buffer = self.reserved(place)?;
        Ok(self.backend.write_cache(buffer, place, bytes)?)
    }
}

impl GraphRunner {
    /// Submits the entries that request tokens, or those that request hidden states.
    fn start(&mut self, batch: &Batch, hidden: bool) -> Result<Option<Ticket>, EngineError> {
        let mut step = batch.to_step(|e| e.needs_hidden() == hidden);
        if step.tokens.is_empty() {
            return Ok(None);
        }
        let Capacity { max_tokens, max_outputs, .. } = self.capacity;
        let max_outputs = if hidden { max_tokens } else { max_outputs };
        let sizes = [("tokens", step.tokens.len(), max_tokens), ("samples", step.outputs.len(), max_outputs)];
        if let Some((what, got, most)) = sizes.into_iter().find(|(_, got, most)| got > most) {
            return Err(EngineError::Runner(format!("a batch of {got} {what}, compiled for {most}")));
        }
        let adapters = step.has_adapters();
        let program = if hidden { self.hidden_program(adapters)? } else { self.programs(adapters).whole };
        if !hidden {
            step.carried_from =
                Some(std::mem::replace(&mut self.last, program)).filter(|last| *last != program);
        }
        Ok(Some(self.backend.submit(program, step)?))
    }

    /// The reserved memory that a page or slot is in.
    fn reserved(&self, place: Place) -> Result<Buffer, EngineError> {
        let buffer = if place.part == CachePart::StateSlot { self.state } else { self.kv };
        buffer.ok_or_else(|| EngineError::Runner(format!("{place:?}: nothing is reserved for it")))
    }

    fn finish(&mut self, ticket: Option<Ticket>) -> Result<Vec<OutputRow>, EngineError> {
        ticket.map_or(Ok(vec![]), |ticket| Ok(self.backend.collect(ticket)?.rows))
    }

    /// The program of hidden states, with adapters or without.
    fn hidden_program(&mut self, adapters: bool) -> Result<Program, EngineError> {
        let programs = self.programs(adapters);
        if let Some(program) = programs.hidden_program {
            return Ok(program);
        }
        let Some(graph) = programs.hidden.take() else {
            return Err(EngineError::Runner(
                "the model has no hidden state: its graph does not end with a matrix".into(),
            ));
        };
        let program = self.compile(&graph, self.capacity.max_tokens);
        let programs = self.programs(adapters);
        programs.hidden = Some(graph);
        programs.hidden_program = program.as_ref().ok().copied();
        program
    }
}

/// Stores a weight, which must be the one that the graph has next.
fn store(
    backend: &mut dyn Backend,
    want: &Weight,
    roles: Roles,
    tensor: &HostTensor,
) -> Result<Buffer, EngineError> {
    if tensor.name() != want.name {
        let text = format!("{}: want this tensor next, got {}", want.name, tensor.name());
        return Err(EngineError::Load(text));
    }
    Ok(backend.store(tensor, roles)?)
}

impl Programs {
    /// The programs of a compiled graph; a graph of vectors is the one of hidden states, too.
    fn of(graph: &Graph, whole: Program, hidden: Option<Graph>) -> Programs {
        Programs { whole, hidden, hidden_program: graph.vectors.then_some(whole) }
    }
}

impl Rows {
    fn of(entry: &Entry) -> Rows {
        match entry.want {
            Want::Nothing => Rows::Nothing,
            Want::Tokens(ref samples, _) => Rows::Tokens(samples.len()),
            Want::Pooled(pooling) => Rows::Pooled(pooling, pooling.rows(0..entry.tokens.len()).len()),
        }
    }

    /// Takes the entry's rows from those that remain.
    fn answer(
        self,
        texts: &mut impl Iterator<Item = OutputRow>,
        hidden: &mut impl Iterator<Item = OutputRow>,
    ) -> Answer {
        match self {
            Rows::Nothing => Answer::Nothing,
            Rows::Tokens(count) => {
                let rows: Vec<OutputRow> = texts.take(count).collect();
                Answer::Tokens(rows.into_iter().map_while(|row| row.sampled).collect())
            }
            Rows::Pooled(pooling, count) => {
                let rows = hidden.take(count).filter_map(|r| r.logits);
                let joined = rows.reduce(|mut joined, row| {
                    match pooling {
                        Pooling::Mean => joined.iter_mut().zip(row).for_each(|(sum, x)| *sum += x),
                        _ => joined.extend(row),
                    }
                    joined
                });
                // no answer if a hidden state is not finite
                joined.filter(|row| all_finite(row)).map_or(Answer::Nothing, Answer::Hidden)
            }
        }
    }
}
