//! A server on its own port, a model that repeats what the prompt says, and a client.

pub(crate) mod recorded;
mod reply;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tern::engine::{
    Answer, Batch, Capacity, Engine, EngineError, Handle, Limits, Pooling, Runner, Sample, ScriptedRunner,
    Want,
};
use tern::formats::{Checkpoint, Value as Metadatum};
use tern::text::{ChatTemplate, Tokenizer};
use tern::{AdapterFile, AdapterScales, Model, ModelParts, PartialSampling, Reranker, Sampling};
use tern_server::{
    Config, DefaultAdapters, FileStore, KeepModels, Library, Loader, ServeError, ServedModel, Server,
};
use tokio::sync::oneshot;

pub(crate) use self::reply::{Reply, parse};

/// A template with roles only.
pub(crate) const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<answer>";

/// A template with tools and calls of elements.
pub(crate) const CODER: &str = "{% if tools %}<tools>{{ tools | tojson }}<tool_call>\\n<function=f>\\n<parameter=a>{% endif %}\
    {% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}\
    {% endfor %}<answer>";

/// A template of functionary: headers are recipients.
pub(crate) const FUNCTIONARY: &str = "{% if tools %}{{ tools | tojson }}{# >>>${recipient} '>>>all\\n' tool_calls #}{% endif %}\
    {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<answer>";

/// A template of MiniMax M3: elements inside elements.
pub(crate) const NESTED: &str = "{% if tools %}{{ tools | tojson }}{# ]<]minimax[>[ <invoke name= tool_calls #}{% endif %}\
    {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<answer>";

/// A template of harmony: one call per message, with the reasoning before it.
pub(crate) const HARMONY: &str = "{% if tools %}{{ tools | tojson }}functions.{% endif %}{% for m in messages %}\
    {% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}\
    {% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}\
    <|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>\
    {{ m.tool_calls[0].function.arguments | tojson }}<|call|>\
    {% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}<|start|>assistant<answer>";

/// A template with tools, Hermes's call markup, and reasoning if `enable_thinking` is set.
pub(crate) const HERMES: &str = "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}\
    {% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}\
    <tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}</tool_call>\
    {% endfor %}{% endfor %}{% if enable_thinking %}<go><think>{# ends with </think> #}{% else %}<answer>{% endif %}";

pub(crate) const LIMITS: Limits = Limits { max_seqs: 8, max_context: 512, max_waiting: 8, step_millis: 0 };
pub(crate) const CAPACITY: Capacity =
    Capacity { pages: 256, page_len: 8, max_tokens: 256, max_outputs: 8, window: None, state: None };

/// What a test may change.
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) limits: Limits,
    pub(crate) template: Option<&'static str>,
    pub(crate) reranker: Option<Reranker>,
    /// Adapters of the model.
    pub(crate) adapters: Vec<AdapterFile>,
    /// Control tokens that the vocabulary has, too.
    pub(crate) tokens: &'static [&'static str],
    /// Drafts per step at most.
    pub(crate) drafts: usize,
}

impl Default for Setup {
    fn default() -> Setup {
        let (config, template) = (Config::default(), Some(PLAIN));
        Setup { config, limits: LIMITS, template, reranker: None, adapters: vec![], tokens: &[], drafts: 0 }
    }
}

/// A running server.
pub(crate) struct Site {
    pub(crate) addr: SocketAddr,
    pub(crate) handle: Handle,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) faults: Arc<Faults>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

/// An engine that repeats what the prompt says.
pub(crate) struct SiteModel {
    pub(crate) handle: Handle,
    tokenizer: Arc<Tokenizer>,
    pub(crate) faults: Arc<Faults>,
    reranker: Option<Reranker>,
    adapters: Vec<AdapterFile>,
}

impl SiteModel {
    pub(crate) fn new(limits: Limits) -> SiteModel {
        SiteModel::with_tokens(limits, &[])
    }

    /// The same, with more control tokens in the vocabulary.
    fn with_tokens(limits: Limits, tokens: &[&str]) -> SiteModel {
        let tokenizer = tokenizer(tokens);
        let faults = Arc::<Faults>::default();
        let script = parrot(Arc::clone(&tokenizer), Arc::clone(&faults));
        let script = ScriptedRunner::answering(tokenizer.vocab_size(), CAPACITY, script);
        let runner = Parrot { script, faults: Arc::clone(&faults), whole: VecDeque::new() };
        let handle = Engine::start(Box::new(runner), limits).unwrap();
        SiteModel { handle, tokenizer, faults, reranker: None, adapters: vec![] }
    }

    /// The model with a template.
    pub(crate) fn served(&self, template: Option<&str>) -> ServedModel {
        ServedModel {
            names: vec!["parrot".into(), "org/parrot".into()],
            created: 1_700_000_000,
            digest: format!("{:0>64}", 1),
            model: Model::from_parts(ModelParts {
                name: "parrot".into(),
                handle: self.handle.clone(),
                tokenizer: Arc::clone(&self.tokenizer),
                template: template.map(|source| ChatTemplate::new(source, "", "").unwrap()),
                pooling: match self.reranker {
                    Some(_) => Pooling::Cls,
                    None => Pooling::Mean,
                },
                reranker: self.reranker.clone(),
                images: None,
                recommended: PartialSampling::default(),
                adapters: self.adapters.clone(),
            })
            .with_adapters(AdapterScales::NONE),
            defaults: PartialSampling::USUAL.over(Sampling::default()),
            default_adapters: DefaultAdapters::default(),
        }
    }
}

/// Faults that a test triggers while the model runs.
#[derive(Default)]
pub(crate) struct Faults {
    /// Stuck steps continue.
    pub(crate) released: AtomicBool,
    lost: AtomicBool,
}

impl Faults {
    /// Blocks until the test releases the step or has failed.
    fn stick(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.released.load(Ordering::Relaxed) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A runner that can lose its device. The score of a text that is read whole depends on its last token.
struct Parrot {
    script: ScriptedRunner,
    faults: Arc<Faults>,
    /// Which entries of the batches in flight are read whole.
    whole: VecDeque<Vec<bool>>,
}

impl Runner for Parrot {
    fn submit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        self.whole.push_back(batch.entries.iter().map(|e| e.want == Want::Pooled(Pooling::Cls)).collect());
        self.script.submit(batch)
    }

    fn collect(&mut self) -> Result<Vec<Answer>, EngineError> {
        let mut answers = self.script.collect()?;
        let whole = self.whole.pop_front().unwrap_or_default();
        for (answer, whole) in answers.iter_mut().zip(whole) {
            if let (Answer::Hidden(row), true) = (answer, whole) {
                *row = vec![(row[0] * 0.37).sin() * 4.0]; // one label
            }
        }
        match self.faults.lost.load(Ordering::Relaxed) {
            true => Err(EngineError::DeviceLost("a step on a parrot: misaligned address".into())),
            false => Ok(answers),
        }
    }

    fn capacity(&self) -> Capacity {
        self.script.capacity()
    }

    fn vocab(&self) -> usize {
        self.script.vocab()
    }

    fn adapters(&self) -> usize {
        self.script.adapters()
    }
}

/// The vocabulary of the stories, with more control tokens.
fn tokenizer(tokens: &[&str]) -> Arc<Tokenizer> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tern/models/tern-stories-1bit.gguf");
    let mut metadata = Checkpoint::open(path.as_ref()).unwrap().metadata;
    if !tokens.is_empty() {
        let (texts, kinds) = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type");
        let known = metadata.strings(texts).unwrap().iter().cloned();
        let all: Vec<String> = known.chain(tokens.iter().map(ToString::to_string)).collect();
        let known =
            metadata.optional_usizes(kinds).unwrap().unwrap_or_else(|| vec![1; all.len() - tokens.len()]);
        let all_kinds = known.into_iter().map(|kind| kind as i64).chain(tokens.iter().map(|_| 3)).collect();
        metadata.insert(texts, Metadatum::Strings(all));
        metadata.insert(kinds, Metadatum::Ints(all_kinds));
    }
    Arc::new(Tokenizer::from_metadata(&metadata).unwrap())
}

/// Generates the text between `say:` and the end of the prompt, then ends. Some words trigger faults.
fn parrot(
    tokenizer: Arc<Tokenizer>,
    faults: Arc<Faults>,
) -> impl FnMut(&[u32], &Sample) -> Option<u32> + Send + 'static {
    move |history, _| {
        let marker = |end: &usize| {
            let text = tokenizer.decode(&history[..*end], true);
            ["<answer>", "<go><think>"].into_iter().find_map(|m| text.strip_suffix(m).map(str::to_owned))
        };
        let Some((end, prompt)) = (0..=history.len()).rev().find_map(|end| Some((end, marker(&end)?))) else {
            return Some(history.iter().fold(history.len() as u32, |a, b| a.wrapping_mul(31) ^ b) % 4000 + 1);
        };
        let said = prompt.rsplit_once("say:").map_or("hello", |(_, said)| said);
        match said {
            "endless" => {
                thread::sleep(Duration::from_millis(2));
                Some(65)
            }
            "sleep" => {
                thread::sleep(Duration::from_millis(1500));
                Some(65)
            }
            "stick" => {
                faults.stick();
                Some(65)
            }
            "stick and lose" => {
                faults.stick();
                faults.lost.store(true, Ordering::Relaxed);
                Some(65)
            }
            "panic" => panic!("on purpose"),
            "nothing" => None,
            said => Some(tokenizer.encode(said, false, true).get(history.len() - end).copied().unwrap_or(0)),
        }
    }
}

impl Site {
    /// A server with its model.
    pub(crate) fn new(setup: Setup) -> Site {
        let (template, reranker) = (setup.template, setup.reranker.clone());
        let (adapters, drafts) = (setup.adapters.clone(), setup.drafts);
        let (site, loader) = Site::loading(setup);
        let served = site.model_with(template, reranker, adapters);
        loader.ready(ServedModel { model: served.model.with_drafts(drafts), ..served });
        site
    }

    /// A server with its model, and a folder of files and batches.
    pub(crate) fn with_files(setup: Setup, files: FileStore) -> Site {
        let server = Server::new(setup.config).with_files(files).unwrap();
        let loader = server.loader();
        let site = Site::serving(server, SiteModel::with_tokens(setup.limits, setup.tokens));
        loader.ready(site.model(setup.template));
        site
    }

    /// The model with a template.
    pub(crate) fn model(&self, template: Option<&str>) -> ServedModel {
        self.model_with(template, None, vec![])
    }

    fn model_with(
        &self,
        template: Option<&str>,
        reranker: Option<Reranker>,
        adapters: Vec<AdapterFile>,
    ) -> ServedModel {
        let (handle, tokenizer) = (self.handle.clone(), Arc::clone(&self.tokenizer));
        SiteModel { handle, tokenizer, faults: Arc::clone(&self.faults), reranker, adapters }.served(template)
    }

    /// A server whose model is not loaded yet.
    pub(crate) fn loading(setup: Setup) -> (Site, Loader) {
        let server = Server::new(setup.config);
        let loader = server.loader();
        (Site::serving(server, SiteModel::with_tokens(setup.limits, setup.tokens)), loader)
    }

    /// A server for the models of a library.
    pub(crate) fn of_library(config: Config, library: impl Library, keep: KeepModels) -> Site {
        Site::serving(Server::of_library(config, library, keep), SiteModel::new(LIMITS))
    }

    fn serving(server: Server, model: SiteModel) -> Site {
        let SiteModel { handle, tokenizer, faults, .. } = model;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let shutdown = async {
                    let _ = stopped.await;
                };
                server.serve(listener, shutdown).await
            })
        });
        Site { addr, handle, tokenizer, faults, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], b"")
    }

    pub(crate) fn post(&self, path: &str, body: Value) -> Reply {
        self.send("POST", path, &[], body.to_string().as_bytes())
    }

    /// A chat of one message, with more parameters.
    pub(crate) fn chat(&self, say: &str, more: Value) -> Reply {
        let mut body = json!({"messages": [{"role": "user", "content": format!("say:{say}")}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.post("/v1/chat/completions", body)
    }

    /// Sends a request on a new connection and reads the whole response.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.send_to(&self.addr.to_string(), method, path, headers, body)
    }

    /// As [`Site::send`], with another host name.
    pub(crate) fn send_to(
        &self,
        host: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let mut stream = self.open_to(host, method, path, headers, body);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        parse(&bytes)
    }

    /// Sends a request without reading the response.
    pub(crate) fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
        self.open_to(&self.addr.to_string(), method, path, headers, body)
    }

    fn open_to(
        &self,
        host: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TcpStream {
        let mut stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n{more}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    /// Opens a streamed chat and reads until its first text arrives.
    pub(crate) fn open_chat(&self, say: &str) -> TcpStream {
        let body = json!({"stream": true, "messages": [{"role": "user", "content": format!("say:{say}")}]});
        let mut stream = self.open("POST", "/v1/chat/completions", &[], body.to_string().as_bytes());
        let mut text = String::new();
        let mut buffer = [0; 4096];
        while !text.contains("delta") {
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        stream
    }

    /// Asks the server to stop; the returned thread ends when it has.
    pub(crate) fn stop(mut self) -> JoinHandle<Result<(), ServeError>> {
        let _ = self.stop.take().unwrap().send(());
        self.thread.take().unwrap()
    }

    /// Waits until the server ends by itself.
    pub(crate) fn end(&mut self) -> Result<(), ServeError> {
        let thread = self.thread.take().unwrap();
        wait_until(|| thread.is_finished());
        thread.join().unwrap()
    }

    /// Waits until all pages are free.
    pub(crate) fn wait_until_idle(&self) {
        wait_until_idle(&self.handle);
    }
}

/// Waits up to ten seconds for a condition.
pub(crate) fn wait_until(happened: impl Fn() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(10), "it did not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until all pages of an engine are free: cancelled sequences end with the current step.
pub(crate) fn wait_until_idle(handle: &Handle) {
    let start = Instant::now();
    loop {
        let stats = handle.stats();
        if stats.running + stats.waiting == 0 {
            assert_eq!(stats.pages_free, stats.pages_total);
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{stats:?}");
        thread::sleep(Duration::from_millis(5));
    }
}
