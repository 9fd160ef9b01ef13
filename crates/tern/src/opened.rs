//! A model between its file and a device: the graph is built, the weights are mapped, nothing is allocated yet.

use std::path::Path;

use bytes::Bytes;
use tern_engine::{Capacity, GraphRunner, Pooling, RunnerConfig, WholeRows};
use tern_formats::{Checkpoint, FormatError, Metadata, Value};
use tern_graph::{Backend, HostTensor, KvCells};
use tern_hub::Source;
use tern_models::{Model as Architecture, Shape, Synth};
use tern_quant::Quant;

use crate::progress::{Downloads, Progress, Work};
use crate::{Error, ExpertPlacement, LoadOptions, OpenedAdapters, environment};

/// Our own native 1-bit model, inside the library, so that the first try needs no download.
pub static STORIES: &[u8] = include_bytes!("../models/tern-stories-1bit.gguf");

/// A model with its weights mapped, not yet on a device. Clones share the weights.
#[derive(Clone)]
pub struct OpenedModel {
    /// As it was asked for.
    pub name: String,
    /// The keys of its file.
    pub metadata: Metadata,
    /// Its configuration and its graph.
    pub model: Architecture,
    /// Its weights, in the order of the graph's.
    pub tensors: Vec<HostTensor>,
    /// The type of cached keys and values.
    pub kv_cells: KvCells,
    /// Where its experts are.
    pub experts: ExpertPlacement,
    /// CPU threads for experts in host memory; one per core if not set.
    pub threads: Option<usize>,
    /// Its adapters.
    pub adapters: OpenedAdapters,
}

/// Opens the file of a model, which is fetched first if it has a name and is missing.
pub fn open_checkpoint(
    name: &str,
    options: &LoadOptions,
    progress: &dyn Progress,
) -> Result<Checkpoint, Error> {
    open_by(name, options, progress, |path| Checkpoint::open_as(path, options.access))
}

/// Opens the file of a model to look at it, also if it cannot be run.
pub fn inspect_checkpoint(name: &str, progress: &dyn Progress) -> Result<Checkpoint, Error> {
    open_by(name, &LoadOptions::default(), progress, Checkpoint::open)
}

/// Downloads a model, or checks that the local copy is complete and current.
pub fn pull(name: &str, options: &LoadOptions, progress: &dyn Progress) -> Result<Source, Error> {
    match tern_hub::local(name)? {
        Some(source) => Ok(source),
        None => Ok(tern_hub::pull(name, &hub_config(options)?, &Downloads(progress))?),
    }
}

/// The options' own settings, or those of the environment.
fn hub_config(options: &LoadOptions) -> Result<tern_hub::Config, Error> {
    Ok(options.hub.clone().map_or_else(environment::hub_config, Ok)?)
}

fn open_by(
    name: &str,
    options: &LoadOptions,
    progress: &dyn Progress,
    open: impl Fn(&Path) -> Result<Checkpoint, FormatError>,
) -> Result<Checkpoint, Error> {
    let source = match tern_hub::local(name)? {
        Some(source) => source, // needs no cache folder, so no HOME either
        None => tern_hub::resolve(name, &hub_config(options)?, true, &Downloads(progress))?,
    };
    match source {
        Source::Embedded(_) => Ok(Checkpoint::from_bytes(Bytes::from_static(STORIES))?),
        Source::Path(path) => Ok(open(&path)?),
    }
}

/// The number of a pooling in files.
fn pooling_type(pooling: Pooling) -> u64 {
    match pooling {
        Pooling::Whole(WholeRows::Each) => 0,
        Pooling::Mean => 1,
        Pooling::Whole(WholeRows::First) => 2,
        Pooling::Last | Pooling::Whole(WholeRows::Last) => 3,
    }
}

impl OpenedModel {
    /// Opens a model by name, file, folder or `org/repo[:QUANT]`, and builds its graph.
    pub fn open(name: &str, options: &LoadOptions, progress: &dyn Progress) -> Result<OpenedModel, Error> {
        let checkpoint = open_checkpoint(name, options, progress)?;
        let trained = Architecture::context_trained(&checkpoint.metadata)?;
        let requested = options.context.tokens(trained);
        if requested > trained {
            return Err(Error::Context { name: name.to_string(), requested, trained });
        }
        let mut checkpoint = checkpoint;
        let (mut model, mut tensors) = Architecture::open(&checkpoint, Some(requested))?;
        if let (Some(pooling), Some(_)) = (options.pooling, model.vectors) {
            // the pooling of an encoder is part of its graph
            let key = format!("{}.pooling_type", model.config.arch);
            checkpoint.metadata.insert(key, Value::Uint(pooling_type(pooling)));
            (model, tensors) = Architecture::open(&checkpoint, Some(requested))?;
        }
        let (name, metadata) = (name.to_string(), checkpoint.metadata);
        let LoadOptions { kv_cells, experts, threads, .. } = *options;
        let adapters = OpenedAdapters::open(&options.adapters, options.access, &metadata, &model)?;
        Ok(OpenedModel { name, metadata, model, tensors, kv_cells, experts, threads, adapters })
    }

    /// A model with random weights in the shape of a known one, such as `bonsai-8b:q1_0`.
    pub fn synthetic(
        spec: &str,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<OpenedModel, Error> {
        let (shape, quant) = Synth::parse(spec)?;
        Ok(OpenedModel { name: spec.to_string(), ..OpenedModel::random(&shape, quant, options, progress)? })
    }

    /// A model of any shape and format with random weights.
    pub fn random(
        shape: &Shape,
        quant: &'static Quant,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<OpenedModel, Error> {
        let mut synth = Synth::new(shape, quant, Some(options.context.tokens(shape.context)))?;
        let weights = synth.model.graph.weights.clone();
        let values = |w: &tern_graph::Weight| (w.rows * w.cols) as u64;
        let _work = Work::begin(progress, "making weights", weights.iter().map(values).sum());
        let (mut tensors, mut done) = (vec![], 0);
        for weight in &weights {
            tensors.push(synth.tensor(weight)?);
            done += values(weight);
            progress.at(done);
        }
        let name = format!("{}:{}", shape.name, quant.name.to_lowercase());
        let (metadata, model) = (synth.metadata, synth.model);
        let LoadOptions { kv_cells, experts, threads, .. } = *options;
        let adapters = OpenedAdapters::open(&options.adapters, options.access, &metadata, &model)?;
        Ok(OpenedModel { name, metadata, model, tensors, kv_cells, experts, threads, adapters })
    }

    /// Tokens that one sequence may have.
    pub fn context(&self) -> usize {
        self.model.config.context
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.data().len() as u64).sum()
    }

    /// Bytes of a KV cache.
    pub fn kv_bytes(&self, capacity: &Capacity) -> u64 {
        capacity.kv_spec(&self.model.graph, self.kv_cells).bytes().unwrap_or(u64::MAX)
    }

    /// Bytes of the state of recurrent layers.
    pub fn state_bytes(&self, capacity: &Capacity) -> u64 {
        capacity.state.map_or(0, |state| state.bytes.saturating_mul(state.slots as u64))
    }

    /// Bytes of the keys and values that one token sees after `tokens` others.
    pub fn kv_bytes_seen(&self, tokens: usize) -> u64 {
        let layers = self.model.graph.kv.iter().zip(self.model.graph.windows());
        let seen = |window: Option<usize>| window.map_or(tokens, |window| window.min(tokens)) as u64;
        layers.map(|(layer, window)| layer.bytes_per_token(self.kv_cells) as u64 * seen(window)).sum()
    }

    /// The format that most of the weights are in.
    pub fn main_format(&self) -> &'static str {
        let mut counts: Vec<(&'static str, usize)> = vec![];
        for t in &self.tensors {
            match counts.iter_mut().find(|c| c.0 == t.quant().name) {
                Some(c) => c.1 += t.rows() * t.cols(),
                None => counts.push((t.quant().name, t.rows() * t.cols())),
            }
        }
        counts.iter().max_by_key(|c| c.1).map_or("no weights", |c| c.0)
    }

    /// An encoder with keys and values in f32, if the device has them and no other type is requested: its pages are scratch, so nothing
    /// is gained by rounding what they hold.
    pub fn with_exact_scratch(self, backend: &dyn Backend) -> OpenedModel {
        let is_scratch = self.model.graph.sequence_rules().whole && self.kv_cells == KvCells::F16;
        match is_scratch && backend.kv_cells().contains(&KvCells::F32) {
            true => OpenedModel { kv_cells: KvCells::F32, ..self },
            false => self,
        }
    }

    /// Loads the model on a device, or fails if it does not fit. Most programs use [`crate::Model::start`].
    pub fn runner(
        self,
        backend: Box<dyn Backend>,
        capacity: Capacity,
        progress: &dyn Progress,
    ) -> Result<GraphRunner, Error> {
        let layers = self.host_layers(&*backend, |_| capacity)?;
        let (info, plan) = (backend.info(), self.memory(&*backend, capacity, layers)?);
        if plan.total() > info.memory_total {
            let (name, device, total) = (self.name, info.name, info.memory_total);
            return Err(Error::Memory { name, plan: plan.into(), device, total });
        }
        let backend = self.with_host_layers(backend, layers)?;
        progress.plan(&self, &plan, &backend.info());
        let weights = self.weight_bytes();
        let _work = Work::begin(progress, "loading", weights);
        let config = RunnerConfig { capacity, kv_cells: self.kv_cells };
        let stored = |bytes| {
            progress.at(bytes);
            if bytes >= weights {
                progress.continues("preparing kernels"); // a GPU's are compiled for the model the first time
            }
        };
        let mut runner = GraphRunner::new(backend, &self.model.graph, self.tensors, config, stored)?;
        if !self.adapters.files.is_empty() {
            runner.add_adapters(&self.model.graph, &self.adapters.set, self.adapters.all())?;
        }
        Ok(runner)
    }
}
