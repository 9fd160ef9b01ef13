//! A loaded model and its routes.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tern::Model;
use tern::engine::{EngineError, Event, Request, Sampling};
use tern_server::{Config, InProcess, ServedModel, Server};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::loading::{LoadError, load};
use crate::options::load_options;
use crate::running::{Replies, Reply};

/// Threads that parse requests and write answers; those of the model are its own.
const WORKERS: usize = 2;

/// A loaded model, whose routes are called in this process.
#[pyclass(frozen, module = "tern_llm._native")]
pub(crate) struct Engine {
    /// Not dropped in a process that was forked: the threads that it would wait for do not exist.
    parts: ManuallyDrop<Parts>,
    /// The process that has the threads.
    process: u32,
}

struct Parts {
    routes: Arc<InProcess>,
    model: Model,
    /// Some until it is dropped.
    runtime: Option<Runtime>,
}

#[pymethods]
impl Engine {
    /// Loads a model; see `tern_llm.Model`.
    #[staticmethod]
    #[pyo3(signature = (name, options, progress, warn))]
    fn load(
        py: Python<'_>,
        name: &str,
        options: &Bound<'_, PyDict>,
        progress: Option<&Bound<'_, PyAny>>,
        warn: &Bound<'_, PyAny>,
    ) -> PyResult<Engine> {
        let model = load(py, name, load_options(options)?, progress, warn)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("tern-python")
            .enable_time()
            .build();
        let runtime =
            runtime.map_err(|error| LoadError::new_err(format!("{name}: cannot start threads: {error}")))?;
        // the limits of a server are for strangers
        let server = Server::new(Config { max_body: 1 << 30, max_bodies: 1 << 34, ..Config::default() });
        server.loader().ready(ServedModel::new(model.clone(), vec![name.to_owned()]));
        let parts = Parts { routes: Arc::new(server.in_process()), model, runtime: Some(runtime) };
        Ok(Engine { parts: ManuallyDrop::new(parts), process: std::process::id() })
    }

    /// Starts a request.
    fn request(
        slf: Bound<'_, Self>,
        method: String,
        path: String,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    ) -> PyResult<Reply> {
        let (handle, routes) = (slf.get().handle()?, Arc::clone(&slf.get().parts.routes));
        Ok(Reply::start(slf.unbind(), handle, routes, method, path, headers, body))
    }

    /// Starts requests with these bodies, `at_once` of them at a time.
    fn requests(
        slf: Bound<'_, Self>,
        path: String,
        bodies: Vec<Vec<u8>>,
        at_once: usize,
    ) -> PyResult<Replies> {
        let (handle, routes) = (slf.get().handle()?, Arc::clone(&slf.get().parts.routes));
        let path: Arc<str> = path.into();
        Ok(Replies::start(slf.unbind(), handle, bodies, at_once, move |body| {
            let (routes, path) = (Arc::clone(&routes), Arc::clone(&path));
            async move {
                let mut reply = routes.request("POST", &path, [], body).await;
                let mut whole = Vec::new();
                while let Some(bytes) = reply.next().await {
                    whole.extend_from_slice(&bytes);
                }
                (reply.status(), whole)
            }
        }))
    }

    /// Log-probabilities of all tokens of the vocabulary after each prompt: 32-bit floats by token id as the
    /// body, or a sentence with status 400.
    fn next_logprobs(slf: Bound<'_, Self>, prompts: Vec<Vec<u32>>, at_once: usize) -> PyResult<Replies> {
        let (handle, model) = (slf.get().handle()?, slf.get().parts.model.clone());
        Ok(Replies::start(slf.unbind(), handle, prompts, at_once, move |prompt| {
            let model = model.clone();
            async move {
                match next_logprobs(&model, prompt).await {
                    Ok(row) => (200, row.iter().flat_map(|logprob| logprob.to_ne_bytes()).collect()),
                    Err(error) => (400, error.to_string().into_bytes()),
                }
            }
        }))
    }

    /// Ends all requests with an error.
    fn stop(&self) -> PyResult<()> {
        self.handle()?;
        self.parts.routes.stop();
        Ok(())
    }

    /// Tokens that one sequence may have, prompt and answer together.
    #[getter]
    fn context(&self) -> usize {
        self.parts.model.context()
    }

    /// Sequences that run at once.
    #[getter]
    fn max_num_seqs(&self) -> usize {
        self.parts.model.handle().limits().max_seqs
    }

    /// Tokens of the vocabulary.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.parts.model.tokenizer().vocab_size()
    }

    /// The names of its adapters.
    #[getter]
    fn lora(&self) -> Vec<String> {
        self.parts.model.adapters().iter().map(|adapter| adapter.name.clone()).collect()
    }

    /// How its hidden states become an embedding.
    #[getter]
    fn pooling(&self) -> &'static str {
        self.parts.model.pooling().name()
    }

    /// Whether it has a chat template.
    #[getter]
    fn chats(&self) -> bool {
        self.parts.model.template().is_some()
    }

    /// Its architecture, the format of most of its weights, the number of its weights, and the bytes of its
    /// device that it takes.
    #[getter]
    fn facts(&self) -> Option<(String, &'static str, u64, u64)> {
        let facts = self.parts.model.facts()?;
        Some((facts.arch.clone(), facts.format, facts.parameters, facts.memory))
    }

    /// Seconds that loading took.
    #[getter]
    fn load_time(&self) -> f64 {
        self.parts.model.load_time().as_secs_f64()
    }
}

impl Engine {
    /// The runtime of this process.
    fn handle(&self) -> PyResult<Handle> {
        let (own, this) = (self.process, std::process::id());
        if own != this {
            return Err(PyRuntimeError::new_err(format!(
                "the model was loaded in process {own} and cannot be used in {this}, which was forked from it: load it \
                 after the fork, or start processes with the method \"spawn\""
            )));
        }
        match &self.parts.runtime {
            Some(runtime) => Ok(runtime.handle().clone()),
            None => Err(PyRuntimeError::new_err("the model is closed")),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: it is not used after this.
            let mut parts = unsafe { ManuallyDrop::take(&mut self.parts) };
            parts.routes.stop();
            if let Some(runtime) = parts.runtime.take() {
                runtime.shutdown_background();
            }
        }
    }
}

/// The log-probability of each token of the vocabulary after a prompt.
async fn next_logprobs(model: &Model, prompt: Vec<u32>) -> Result<Vec<f32>, EngineError> {
    let vocab = model.tokenizer().vocab_size();
    let sampling = Sampling { logprobs: Some(vocab), ..Sampling::default() };
    let mut stream = model.handle().generate(Request { sampling, ..Request::new(prompt, 1) })?;
    let mut row = vec![f32::NEG_INFINITY; vocab];
    while let Some(event) = stream.next().await {
        match event {
            Event::Token(sampled) => {
                for (id, logprob) in sampled.top {
                    if let Some(place) = row.get_mut(id as usize) {
                        *place = logprob;
                    }
                }
            }
            Event::Failed(error) => return Err(error),
            Event::Started { .. } | Event::Drafted { .. } | Event::Embedding(_) | Event::Done(_) => {}
        }
    }
    Ok(row)
}
