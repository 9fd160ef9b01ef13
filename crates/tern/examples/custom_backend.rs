//! A backend of one's own: here one that counts steps and lets the slow reference compute them.
//!
//!     cargo run --release --example custom_backend

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tern::graph::{
    Backend, BackendError, Bindings, Buffer, DeviceInfo, Graph, HostTensor, Program, Reference, Reserve,
    Roles, Step, StepOutput, Ticket,
};
use tern::{Context, Error, LoadOptions, Model, OpenedModel, Request, Silent};

/// Tokens that were computed.
struct Counting {
    inner: Reference,
    tokens: Arc<AtomicUsize>,
}

impl Backend for Counting {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "counting reference".into(), ..self.inner.info() }
    }

    fn store(&mut self, tensor: &HostTensor, roles: Roles) -> Result<Buffer, BackendError> {
        self.inner.store(tensor, roles)
    }

    fn reserve(&mut self, what: &Reserve) -> Result<Buffer, BackendError> {
        self.inner.reserve(what)
    }

    fn scratch(&self, graph: &Graph, max_tokens: usize, max_outputs: usize) -> u64 {
        self.inner.scratch(graph, max_tokens, max_outputs)
    }

    fn compile(&mut self, graph: &Graph, bindings: &Bindings<'_>) -> Result<Program, BackendError> {
        self.inner.compile(graph, bindings)
    }

    fn submit(&mut self, program: Program, step: Step) -> Result<Ticket, BackendError> {
        self.tokens.fetch_add(step.tokens.len(), Ordering::Relaxed);
        self.inner.submit(program, step)
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, BackendError> {
        self.inner.collect(ticket)
    }
}

fn main() -> Result<(), Error> {
    let options = LoadOptions { context: Context::AtMost(64), max_seqs: 1, ..LoadOptions::default() };
    let tokens = Arc::new(AtomicUsize::new(0));
    let backend = Counting { inner: Reference::default(), tokens: Arc::clone(&tokens) };
    let opened = OpenedModel::open("stories", &options, &Silent)?;
    let model = Model::start(opened, Box::new(backend), &options, &Silent)?;
    let answer = model.generate(Request::text("Once upon").max_tokens(8).temperature(0.0))?;
    println!("Once upon{}", answer.text);
    println!("{} tokens computed", tokens.load(Ordering::Relaxed));
    Ok(())
}
