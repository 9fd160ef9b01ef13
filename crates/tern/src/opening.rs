//! From a name to an opened model, and from there to a device, with progress.

use std::path::Path;

use bytes::Bytes;
use tern_engine::{Capacity, GraphRunner, RunnerConfig};
use tern_formats::{Checkpoint, FormatError, Metadata};
use tern_graph::{Backend, DeviceInfo, LazyTensor};
use tern_hub::Source;
use tern_models::{Model as Architecture, Shape, Synth, Variant};
use tern_quant::Quant;

use crate::opened::OpenedModel;
use crate::progress::{Downloads, Progress, Work, check_stopped};
use crate::{Error, LoadOptions, OpenedAdapters, OpenedTower, environment, machine};

/// Our own native 1-bit model, inside the library, so that the first try needs no download.
pub static STORIES: &[u8] = include_bytes!("../models/tern-stories-1bit.gguf");

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

/// As [`pull`], for names from elsewhere: a known name or a repository of the hub, never a path.
pub fn download(name: &str, options: &LoadOptions, progress: &dyn Progress) -> Result<Source, Error> {
    Ok(tern_hub::download(name, &hub_config(options)?, &Downloads(progress))?)
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

impl OpenedModel {
    /// Opens a model by name, file, folder or `org/repo[:QUANT]`, and builds its graph.
    pub fn open(name: &str, options: &LoadOptions, progress: &dyn Progress) -> Result<OpenedModel, Error> {
        let checkpoint = open_checkpoint(name, options, progress)?;
        check_stopped(name, progress)?;
        let trained = Architecture::context_trained(&checkpoint.metadata)?;
        let requested = options.context.tokens(trained);
        if requested > trained {
            return Err(Error::Context { name: name.to_string(), requested, trained });
        }
        let tower = OpenedTower::open(&checkpoint, options, progress)?;
        let variant = Variant { pooling: options.pooling, sees: tower.is_some() };
        let (model, tensors) = Architecture::open_as(&checkpoint, Some(requested), &variant)?;
        let name = name.to_string();
        let opened = OpenedModel::with_options(name, checkpoint.metadata, model, tensors, options)?;
        Ok(OpenedModel { tower, ..opened })
    }

    /// A model without a tower, as these options want it.
    fn with_options(
        name: String,
        metadata: Metadata,
        model: Architecture,
        tensors: Vec<LazyTensor>,
        options: &LoadOptions,
    ) -> Result<OpenedModel, Error> {
        let LoadOptions { kv_cells, experts, gpu_layers, threads, .. } = *options;
        let adapters = OpenedAdapters::open(&options.adapters, options.access, &metadata, &model)?;
        Ok(OpenedModel {
            name,
            metadata,
            model,
            tensors,
            kv_cells,
            experts,
            gpu_layers,
            threads,
            adapters,
            tower: None,
        })
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
            tensors.push(synth.tensor(weight)?.into());
            done += values(weight);
            progress.at(done);
        }
        let name = format!("{}:{}", shape.name, quant.name.to_lowercase());
        OpenedModel::with_options(name, synth.metadata, synth.model, tensors, options)
    }

    /// Loads the model on a device, or fails if it does not fit. It ends before the next tensor if the
    /// progress says so. Most programs use [`crate::Model::start`].
    pub fn runner(
        self,
        backend: Box<dyn Backend>,
        capacity: Capacity,
        progress: &dyn Progress,
    ) -> Result<GraphRunner, Error> {
        let opened = self.with_cells(&*backend);
        let on_host = opened.on_host(&*backend, |_| Ok(capacity))?;
        let (info, plan) = (backend.info(), opened.memory(&*backend, capacity, on_host)?);
        if plan.total() > info.memory_total {
            let (name, device, total) = (opened.name, info.name, info.memory_total);
            return Err(Error::Memory { name, plan: plan.into(), device, total });
        }
        if let Some(total) = plan.host.and_then(|host| host.exceeds()) {
            let (name, device) = (opened.name, "the machine".into());
            return Err(Error::Memory { name, plan: plan.into(), device, total });
        }
        let backend = opened.with_host(backend, on_host)?;
        let memory = DeviceInfo { name: backend.info().name, ..info };
        progress.plan(&opened, &plan, &memory);
        let weights = opened.weight_bytes();
        let _work = Work::begin(progress, "loading", weights);
        let threads = machine::threads(opened.threads);
        let config = RunnerConfig { capacity, kv_cells: opened.cells(), threads };
        let stored = |bytes| {
            progress.at(bytes);
            if bytes >= weights {
                progress.continues("preparing kernels"); // a GPU's are compiled for the model the first time
            }
            !progress.stopped()
        };
        let runner = GraphRunner::new_while(backend, &opened.model.graph, opened.tensors, config, stored);
        if runner.is_err() {
            check_stopped(&opened.name, progress)?;
        }
        let mut runner = runner?;
        if !opened.adapters.files.is_empty() {
            runner.add_adapters(&opened.model.graph, &opened.adapters.set, opened.adapters.all())?;
        }
        Ok(runner)
    }
}
