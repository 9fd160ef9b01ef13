//! A model that answers: its engine, its vocabulary, and what follows from them.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tern_engine::{AdapterScales, Capacity, Engine, Handle, Limits, Pooling};
use tern_grammar::GrammarCompiler;
use tern_graph::{Backend, Graph};
use tern_text::{ChatTemplate, Markup, Tokenizer};

use crate::checked::CheckedModel;
use crate::memory::MemoryPlan;
use crate::opened::OpenedModel;
use crate::options::{Context, KvMemory, PAGE_LEN, USUAL_CONTEXT};
use crate::placement::state_bytes_of;
use crate::progress::{Progress, Silent};
use crate::template_traits::TemplateTraits;
use crate::{AdapterFile, Error, ImageEncoder, LoadOptions, OnHost, PartialSampling, Reranker};

/// A loaded model. Clones are the same model; its engine ends with the last of them.
///
/// ```
/// let model = tern::Model::load("stories")?;
/// let text = model.generate("Once upon a time")?.text;
/// assert!(!text.is_empty());
/// # Ok::<(), tern::Error>(())
/// ```
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
    /// The adapters that its requests use.
    pub(crate) active: AdapterScales,
    /// Drafts of a request at most.
    pub(crate) draft_max: usize,
}

struct Inner {
    parts: ModelParts,
    end_tokens: Arc<[u32]>,
    markup: Option<Markup>,
    template_traits: TemplateTraits,
    grammar_compiler: OnceLock<GrammarCompiler>,
    load_time: Duration,
    facts: Option<ModelFacts>,
}

/// What is known of a loaded model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// Its architecture, such as `llama`.
    pub arch: String,
    /// The format that most of its weights are in.
    pub format: &'static str,
    /// The number of its weights.
    pub parameters: u64,
    /// The context that it was trained for.
    pub context_trained: usize,
    /// The size of its hidden states.
    pub width: usize,
    /// Bytes of its device that it takes: weights, KV cache and scratch memory.
    pub memory: u64,
}

/// The parts of a model, for programs with their own engine.
pub struct ModelParts {
    /// Its name, for errors.
    pub name: String,
    /// The engine that runs it.
    pub handle: Handle,
    /// Its vocabulary.
    pub tokenizer: Arc<Tokenizer>,
    /// How it reads conversations; without one it cannot chat.
    pub template: Option<ChatTemplate>,
    /// How its hidden states become an embedding.
    pub pooling: Pooling,
    /// How it scores documents for a query; without it, it cannot.
    pub reranker: Option<Reranker>,
    /// The sampling parameters that its file recommends.
    pub recommended: PartialSampling,
    /// The adapters that its engine has, by their number.
    pub adapters: Vec<AdapterFile>,
    /// The tower of its images, if it sees.
    pub images: Option<Arc<ImageEncoder>>,
}

impl Model {
    /// Loads a model by name (`stories`, `smollm2`), file, folder, or `org/repo[:QUANT]` of the Hugging Face
    /// hub. A model that has a name and is missing is downloaded.
    pub fn load(name: &str) -> Result<Model, Error> {
        Model::load_with(name, &LoadOptions::default())
    }

    /// The same with options.
    pub fn load_with(name: &str, options: &LoadOptions) -> Result<Model, Error> {
        Model::load_showing(name, options, &Silent)
    }

    /// The same with its progress reported.
    pub fn load_showing(name: &str, options: &LoadOptions, progress: &dyn Progress) -> Result<Model, Error> {
        let start = Instant::now();
        options.device.with_layers(options.gpu_layers)?; // before a download
        let opened = OpenedModel::open(name, options, progress)?;
        let backend = options.open_device()?;
        Model::start_at(start, opened, backend, options, progress)
    }

    /// Moves an opened model to a device, which may be a backend of one's own, and starts its engine.
    pub fn start(
        opened: OpenedModel,
        backend: Box<dyn Backend>,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Model, Error> {
        Model::start_at(Instant::now(), opened, backend, options, progress)
    }

    fn start_at(
        start: Instant,
        opened: OpenedModel,
        backend: Box<dyn Backend>,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Model, Error> {
        CheckedModel::of(opened, options, progress)?.start_since(start, backend, options, progress)
    }

    /// A model whose engine runs already.
    pub fn from_parts(parts: ModelParts) -> Model {
        let start = Instant::now();
        let traits = parts.template.as_ref().and_then(TemplateTraits::of).unwrap_or_default();
        Model::from_parts_after(start, parts, traits, None)
    }

    pub(crate) fn from_parts_after(
        start: Instant,
        parts: ModelParts,
        template_traits: TemplateTraits,
        facts: Option<ModelFacts>,
    ) -> Model {
        let inner = Inner {
            end_tokens: parts.tokenizer.eog().iter().copied().collect(),
            markup: parts.template.as_ref().map(ChatTemplate::markup),
            template_traits,
            grammar_compiler: OnceLock::new(),
            load_time: start.elapsed(),
            facts,
            parts,
        };
        let active = AdapterScales::NONE;
        let model = Model { inner: Arc::new(inner), active, draft_max: 0 };
        model.with_adapters(model.all_adapters())
    }

    pub(crate) fn parts(&self) -> &ModelParts {
        &self.inner.parts
    }

    /// The name it was loaded by.
    pub fn name(&self) -> &str {
        &self.inner.parts.name
    }

    /// The same model with up to this many drafts per sequence and step: speculative decoding.
    #[must_use]
    pub fn with_drafts(self, most: usize) -> Model {
        Model { draft_max: most, ..self }
    }

    /// The engine: token ids in, token ids out, statistics, shutdown.
    pub fn handle(&self) -> &Handle {
        &self.inner.parts.handle
    }

    /// Its vocabulary.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.inner.parts.tokenizer
    }

    /// The tower of its images, if it sees.
    pub fn image_encoder(&self) -> Option<&ImageEncoder> {
        self.inner.parts.images.as_deref()
    }

    /// How it reads conversations; none if it cannot chat.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.inner.parts.template.as_ref()
    }

    /// How reasoning and tool calls are marked in its answers.
    pub fn markup(&self) -> Option<Markup> {
        self.inner.markup
    }

    /// Whether its template shows tools to it; otherwise they are described in a system message.
    pub fn takes_tools(&self) -> bool {
        self.inner.template_traits.takes_tools
    }

    pub(crate) fn template_traits(&self) -> TemplateTraits {
        self.inner.template_traits
    }

    /// The tokens that end a text.
    pub fn end_tokens(&self) -> &Arc<[u32]> {
        &self.inner.end_tokens
    }

    /// How its hidden states become an embedding.
    pub fn pooling(&self) -> Pooling {
        self.inner.parts.pooling
    }

    /// The sampling parameters that its file recommends.
    pub fn recommended(&self) -> PartialSampling {
        self.inner.parts.recommended
    }

    /// What is known of its file and its memory; none if its engine was started elsewhere.
    pub fn facts(&self) -> Option<&ModelFacts> {
        self.inner.facts.as_ref()
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.inner.load_time
    }

    /// Tokens that one sequence may have, prompt and answer together.
    pub fn context(&self) -> usize {
        let handle = self.handle();
        // the last token is never fed back, so it needs no place in a page
        handle.limits().max_context.min(handle.capacity().kv_tokens().saturating_add(1))
    }

    /// Tokens of a text to embed or score at most.
    pub fn longest_text(&self) -> usize {
        let handle = self.handle();
        let capacity = handle.capacity();
        let whole = handle.reads_whole() || self.pooling().needs_one_step();
        let step = if whole { capacity.max_tokens } else { usize::MAX };
        handle.limits().max_context.min(capacity.kv_tokens()).min(step)
    }

    /// What compiles constraints. The first call sorts the vocabulary, so it blocks.
    pub fn grammar_compiler(&self) -> &GrammarCompiler {
        self.inner.grammar_compiler.get_or_init(|| GrammarCompiler::new(Arc::clone(self.tokenizer())))
    }
}

/// Texts that a model which reads them whole has at once, at least: short ones fill a step together.
const TEXTS_IN_STEP: usize = 256;

/// Drafts of all sequences together in a step at most.
const DRAFTS_IN_STEP: usize = 32;

pub(crate) fn start_engine(
    opened: OpenedModel,
    backend: Box<dyn Backend>,
    options: &LoadOptions,
    progress: &dyn Progress,
) -> Result<(Handle, MemoryPlan), Error> {
    let opened = opened.with_cells(&*backend);
    if opened.model.graph.sequence_rules().whole {
        return start_encoder(opened, backend, options, progress);
    }
    // before the weights: a folder or a device that cannot be used fails at once
    let disk = options.cache_folder.as_ref().map(|folder| folder.open(&*backend, progress));
    let disk = disk.transpose()?.flatten();
    let planning = options.claims.plan();
    let drafts = options.speculation.drafts(options.draft_max, backend.runs_ahead());
    let info = backend.info();
    let all_free = planning.left(info.memory_free);
    let (context, seqs) = (opened.context(), options.max_seqs);
    let step_tokens = options.step_tokens.unwrap_or(info.step_tokens);
    let max_tokens = step_tokens.min(context.saturating_mul(seqs)).max(seqs);
    let graph = &opened.model.graph;
    let exact = matches!(options.context, Context::Exactly(_));
    let host_free = tern_cpu::FreeMemory::now().free;
    let sizes = |on_host: OnHost, least_pages: usize| -> Result<Capacity, Error> {
        let divided = opened.divided(on_host)?;
        let free = all_free.saturating_sub(opened.device_bytes(on_host)?);
        let slots = options.state_slots(divided.device.state_bytes(), free);
        let sized = |pages: usize| {
            let (window, state) = (None, None);
            let sizes = Capacity { pages, page_len: PAGE_LEN, max_tokens, max_outputs: seqs, window, state };
            let sizes = sizes.with_window(graph).with_slots(graph, slots);
            let drafts = drafts.saturating_mul(seqs).min(DRAFTS_IN_STEP).min(max_tokens - seqs);
            Capacity { max_outputs: seqs + drafts, ..sizes }
        };
        let pages = |part: &Graph, free: u64| {
            let free = free.saturating_sub(state_bytes_of(part, &sized(1)));
            let bytes = |pages| opened.kv_bytes_of(part, &sized(pages));
            options.kv_memory.pages(seqs, context, exact, bytes, free)
        };
        let on_device = pages(&divided.device, free);
        // layers of the host have pages of the same numbers
        let both = divided.host.as_ref().map_or(on_device, |host| on_device.min(pages(host, host_free)));
        Ok(sized(both.max(least_pages)))
    };
    // experts leave the device rather than the usual context of one sequence, and layers, which cost more
    // speed, rather than a quarter of it
    let least = |on_host: OnHost| match options.kv_memory {
        KvMemory::Auto if on_host == OnHost::Nothing && graph.expert_layers() == 0 => {
            context.min(USUAL_CONTEXT / 4).div_ceil(PAGE_LEN)
        }
        KvMemory::Auto => context.min(USUAL_CONTEXT).div_ceil(PAGE_LEN),
        KvMemory::Pages(_) | KvMemory::Bytes(_) => 0,
    };
    let on_host = opened.on_host_within(all_free, &*backend, |on_host| sizes(on_host, least(on_host)))?;
    let capacity = sizes(on_host, 0)?;
    let memory = opened.memory(&*backend, capacity, on_host)?;
    let claim = planning.claim(memory.total());
    let runner = opened.placed(on_host).runner(backend, capacity, progress)?;
    drop(claim);
    let LoadOptions { max_seqs, max_waiting, step_millis, .. } = *options;
    let limits = Limits { max_seqs, max_context: context, max_waiting, step_millis };
    Ok((Engine::start_with(Box::new(runner), limits, disk)?, memory))
}

/// An engine that reads texts whole: a step holds the longest text, or many short ones, and
/// nothing is kept after it.
fn start_encoder(
    opened: OpenedModel,
    backend: Box<dyn Backend>,
    options: &LoadOptions,
    progress: &dyn Progress,
) -> Result<(Handle, MemoryPlan), Error> {
    let context = opened.context();
    let max_tokens = options.step_tokens.unwrap_or(backend.info().step_tokens.max(context));
    let max_seqs = options.max_seqs.max(TEXTS_IN_STEP).min(max_tokens);
    // of the step in flight, of the next one, and what each running text may need
    let pages = 2 * max_tokens.div_ceil(PAGE_LEN) + 3 * max_seqs;
    let capacity =
        Capacity { pages, page_len: PAGE_LEN, max_tokens, max_outputs: max_seqs, window: None, state: None };
    let capacity = capacity.with_slots(&opened.model.graph, 2 * max_seqs);
    let on_host = opened.on_host(&*backend, |_| Ok(capacity))?;
    let memory = opened.memory(&*backend, capacity, on_host)?;
    let claim = options.claims.plan().claim(memory.total());
    let runner = opened.placed(on_host).runner(backend, capacity, progress)?;
    drop(claim);
    let LoadOptions { max_waiting, .. } = *options;
    let limits = Limits { max_seqs, max_context: context, max_waiting, step_millis: 0 };
    Ok((Engine::start(Box::new(runner), limits)?, memory))
}
