//! From a model's name to an engine that runs it, with the memory told before it is taken.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tern_engine::{Capacity, Engine, GraphRunner, Handle, Limits, RunnerConfig};
use tern_formats::{Access, Metadata};
use tern_graph::{Backend, HostTensor, KvCells};
use tern_models::{Model, Synth};
use tern_text::Tokenizer;

use crate::args::{KvType, ModelArgs};
use crate::error::{CliError, CliResult};
use crate::sampling::Advice;
use crate::{models, units};

/// Tokens a KV page.
pub(crate) const PAGE_LEN: usize = 32;
/// Tokens in a step.
pub(crate) const STEP_TOKENS: usize = 512;
/// The longest context taken without being asked for.
const DEFAULT_CONTEXT: usize = 8192;
/// Loading that took so long is told, with its speed.
const WORTH_SAYING: Duration = Duration::from_secs(1);

/// A model with its weights mapped, not yet on a device.
pub(crate) struct Opened {
    pub(crate) name: String,
    pub(crate) metadata: Metadata,
    pub(crate) model: Model,
    pub(crate) tensors: Vec<HostTensor>,
}

/// For how many an engine is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Serving {
    /// Sequences at once.
    pub(crate) seqs: usize,
    /// Requests that may wait beside them.
    pub(crate) waiting: usize,
    /// KV pages; without a number, room for all sequences in full, within half of the free memory.
    pub(crate) pages: Option<usize>,
    /// Tokens in a step.
    pub(crate) step_tokens: usize,
    /// Milliseconds that a step should take; 0 is no such wish.
    pub(crate) step_millis: usize,
}

impl Serving {
    /// One sequence at a time.
    pub(crate) const ONE: Serving =
        Serving { seqs: 1, waiting: 0, pages: None, step_tokens: STEP_TOKENS, step_millis: 0 };

    /// Pages for sequences of `context` tokens, of which each takes `page_bytes`.
    fn pages(&self, context: usize, page_bytes: usize, free: u64) -> usize {
        let one = context.div_ceil(PAGE_LEN);
        let half = (free / 2) as usize / page_bytes.max(1);
        self.pages.unwrap_or_else(|| (one * self.seqs).min(half.max(one)))
    }
}

/// A model that answers.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) handle: Handle,
    pub(crate) context: usize,
    pub(crate) seconds: f64,
    /// How the file says that embeddings are made.
    pub(crate) pooling_type: Option<usize>,
    /// How the file says that tokens are chosen.
    pub(crate) advice: Advice,
}

/// What a run will take, in bytes.
pub(crate) struct Memory {
    pub(crate) weights: u64,
    pub(crate) kv: u64,
    pub(crate) scratch: u64,
}

impl Memory {
    fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.scratch)
    }
}

impl ModelArgs {
    /// The name after -m or -hf.
    pub(crate) fn name<'a>(&'a self, default: &'a str) -> &'a str {
        self.model.as_deref().or(self.hf.as_deref()).unwrap_or(default)
    }

    /// Tokens of context for a model made for `made_for`: what -c says (0 is all), or that within `most`.
    pub(crate) fn context(&self, made_for: usize, most: usize) -> usize {
        match self.context {
            None => made_for.min(most),
            Some(0) => made_for,
            Some(n) => n,
        }
    }

    /// The device that was asked for.
    pub(crate) fn backend(&self) -> CliResult<Box<dyn Backend>> {
        self.device.open(self.threads)
    }

    /// Maps the file and builds its graph, for `most` tokens of context where -c does not say.
    pub(crate) fn open(&self, default: &str, most: usize) -> CliResult<Opened> {
        let name = self.name(default);
        let access = Access { copy: self.no_mmap, lock: self.mlock };
        let checkpoint = models::open(name, access)?;
        let made_for = Model::context_trained(&checkpoint.metadata)?;
        let context = self.context(made_for, most);
        if context > made_for {
            let text = format!("-c {context}: {name} was made for {made_for} tokens at most");
            return Err(CliError::said(text));
        }
        let (model, tensors) = Model::open(&checkpoint, Some(context))?;
        Ok(Opened { name: name.to_string(), metadata: checkpoint.metadata, model, tensors })
    }

    /// A model with random weights, such as `bonsai-8b:q1_0`, for `most` tokens of context where -c does not say.
    pub(crate) fn synthetic(&self, spec: &str, most: usize) -> CliResult<Opened> {
        let (shape, quant) = Synth::parse(spec)?;
        let mut synth = Synth::new(&shape, quant, Some(self.context(shape.context, most)))?;
        let weights = synth.model.graph.weights.clone();
        let bar = models::count_bar("making weights", weights.len() as u64);
        let mut tensors = vec![];
        for w in &weights {
            tensors.push(synth.tensor(w)?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(Opened { name: spec.to_string(), metadata: synth.metadata, model: synth.model, tensors })
    }

    /// The type of keys and values.
    pub(crate) fn kv_cells(&self) -> KvCells {
        match self.kv {
            KvType::F16 => KvCells::F16,
            KvType::Int8 => KvCells::Int8,
        }
    }

    /// Maps the file, tells the memory, and starts an engine.
    pub(crate) fn load(&self, default: &str, serving: &Serving) -> CliResult<Loaded> {
        let start = Instant::now();
        let opened = self.open(default, DEFAULT_CONTEXT)?;
        let tokenizer = Tokenizer::from_metadata(&opened.metadata)?;
        if !self.quiet {
            tokenizer.warnings().iter().for_each(|w| eprintln!("tern: {w}"));
        }
        let (context, name) = (opened.model.config.context, opened.name.clone());
        let key = format!("{}.pooling_type", opened.model.config.arch);
        let pooling_type = opened.metadata.optional_usize(&key)?;
        let advice = Advice::of_model(&opened.name, &opened.metadata).unwrap_or_else(|e| {
            eprintln!("tern: {e}; it is ignored");
            Advice::default()
        });
        let backend = self.backend()?;
        let free = backend.info().memory_free.saturating_sub(total_bytes(&opened.tensors));
        let capacity = Capacity {
            pages: serving.pages(context, page_bytes(&opened.model, self.kv_cells()), free),
            page_len: PAGE_LEN,
            max_tokens: serving.step_tokens.min(context * serving.seqs).max(serving.seqs),
            max_outputs: serving.seqs,
        };
        let runner = self.runner(backend, opened, capacity)?;
        let limits = Limits {
            max_seqs: serving.seqs,
            max_context: context,
            max_waiting: serving.waiting,
            step_millis: serving.step_millis,
        };
        let handle = Engine::start(Box::new(runner), limits)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Loaded { name, tokenizer, handle, context, seconds, pooling_type, advice })
    }

    /// Puts an opened model on the device, after saying what that takes.
    pub(crate) fn runner(
        &self,
        backend: Box<dyn Backend>,
        opened: Opened,
        capacity: Capacity,
    ) -> CliResult<GraphRunner> {
        let (info, model) = (backend.info(), &opened.model);
        let scratch = backend.scratch(&model.graph, capacity.max_tokens, capacity.max_outputs);
        let kv = (page_bytes(model, self.kv_cells()) as u64).saturating_mul(capacity.pages as u64);
        let memory = Memory { weights: total_bytes(&opened.tensors), kv, scratch };
        let c = &model.config;
        let numbers = format!(
            "weights {}, KV {} for {} tokens, scratch {}",
            units::bytes(memory.weights),
            units::bytes(memory.kv),
            units::thousands(capacity.kv_tokens() as u64),
            units::bytes(memory.scratch)
        );
        if memory.total() > info.memory_total {
            return Err(CliError::said(format!(
                "{} does not fit: {numbers}, and {} has {}; a smaller context (-c) or a smaller format would",
                opened.name,
                info.name,
                units::bytes(info.memory_total)
            )));
        }
        if !self.quiet {
            eprintln!(
                "tern: {} ({}, {} layers, {}) on {}: {numbers}, {} free",
                opened.name,
                c.arch,
                c.layers,
                main_format(&opened.tensors),
                info.name,
                units::bytes(info.memory_free)
            );
        }
        let bar = models::byte_bar("loading", memory.weights);
        let start = Instant::now();
        let mut took = Duration::ZERO;
        let progress = |bytes: u64| {
            bar.set_position(bytes);
            took = start.elapsed();
        };
        let config = RunnerConfig { capacity, kv_cells: self.kv_cells() };
        let runner = GraphRunner::new(backend, &model.graph, opened.tensors, config, progress);
        bar.finish_and_clear();
        if !self.quiet && took >= WORTH_SAYING {
            let seconds = took.as_secs_f64();
            eprintln!("tern: loaded in {seconds:.1} s, {:.1} GB/s", memory.weights as f64 / seconds / 1e9);
        }
        Ok(runner?)
    }
}

impl Loaded {
    /// The tokens that end an answer.
    pub(crate) fn end_tokens(&self) -> Arc<[u32]> {
        self.tokenizer.eog().iter().copied().collect()
    }
}

/// Bytes of one KV page.
fn page_bytes(model: &Model, cells: KvCells) -> usize {
    model.graph.kv.iter().map(|l| l.bytes_per_token(cells)).sum::<usize>() * PAGE_LEN
}

/// Threads asked for, or as many as there are cores to be had: a second thread on a core only gets in its way.
pub(crate) fn threads(asked: Option<usize>) -> usize {
    let usable = || std::thread::available_parallelism().map_or(1, usize::from);
    asked.unwrap_or_else(|| {
        let cores = cores(Path::new("/sys/devices/system/cpu"));
        cores.map_or_else(usable, |n| n.min(usable())).min(tern_cpu::MAX_THREADS)
    })
}

/// Cores of this machine, however many threads each has; none where the system does not say.
fn cores(folder: &Path) -> Option<usize> {
    let siblings = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix("cpu")?.parse::<usize>().ok()?;
        std::fs::read_to_string(entry.path().join("topology/thread_siblings_list")).ok()
    };
    let all = std::fs::read_dir(folder).ok()?.flatten().filter_map(siblings);
    Some(all.collect::<HashSet<_>>().len()).filter(|n| *n > 0)
}

/// Bytes of all weights.
pub(crate) fn total_bytes(tensors: &[HostTensor]) -> u64 {
    tensors.iter().map(|t| t.data.len() as u64).sum()
}

/// The format that most of the weights are in.
pub(crate) fn main_format(tensors: &[HostTensor]) -> &'static str {
    let mut counts: Vec<(&'static str, usize)> = vec![];
    for t in tensors {
        match counts.iter_mut().find(|c| c.0 == t.quant.name) {
            Some(c) => c.1 += t.rows * t.cols,
            None => counts.push((t.quant.name, t.rows * t.cols)),
        }
    }
    counts.iter().max_by_key(|c| c.1).map_or("no weights", |c| c.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_of_a_core_count_once() {
        let folder = tempfile::tempdir().unwrap();
        for (cpu, siblings) in
            [("cpu0", "0,2"), ("cpu1", "1,3"), ("cpu2", "0,2"), ("cpu3", "1,3"), ("cpufreq", "9")]
        {
            let topology = folder.path().join(cpu).join("topology");
            std::fs::create_dir_all(&topology).unwrap();
            std::fs::write(topology.join("thread_siblings_list"), siblings).unwrap();
        }
        assert_eq!(cores(folder.path()), Some(2));
        assert_eq!(cores(&folder.path().join("cpufreq/topology")), None);
        assert_eq!(threads(Some(5)), 5);
    }
}
