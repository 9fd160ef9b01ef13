//! The library as a program uses it, on the embedded model.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tern::engine::{Capacity, Dry, Mirostat, MirostatVersion, Xtc};
use tern::graph::DeviceInfo;
use tern::models::Shape;
use tern::{
    Context, Device, Error, FinishReason, Grammar, KvCells, KvMemory, LoadOptions, MemoryPlan, Message,
    Model, OpenedModel, PAGE_LEN, Progress, Request, Sampling, Silent,
};

const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}\n{% endfor %}";

fn options() -> LoadOptions {
    LoadOptions { device: Device::Cpu, threads: Some(1), ..LoadOptions::default() }
}

fn model() -> Model {
    Model::load_with("stories", &options()).unwrap()
}

#[test]
fn a_stream_and_a_whole_answer_are_the_same_text() {
    let model = model();
    let request = Request::text("Once upon a time").max_tokens(30).seed(4).logprobs(2);
    let answer = model.generate(request.clone()).unwrap();
    let deltas: Result<Vec<_>, Error> = model.stream(request).unwrap().collect();
    let deltas = deltas.unwrap();
    assert_eq!(deltas.iter().map(|delta| delta.text()).collect::<String>(), answer.text);
    assert_eq!(deltas.last().unwrap().finish, Some(FinishReason::Length));
    assert_eq!((answer.tokens.len(), answer.finish), (30, Some(FinishReason::Length)));
    assert!(answer.tokens.iter().all(|token| token.logprob.is_some() && token.top.len() == 2));
    assert_eq!(answer.prompt_tokens, model.tokenizer().encode("Once upon a time", true, true).len());
}

#[test]
fn a_stop_string_ends_a_text_before_it() {
    let model = model();
    let request = Request::text("Once upon a time").max_tokens(40).temperature(0.0);
    let whole = model.generate(request.clone()).unwrap().text;
    let stopped = model.generate(request.stop("little")).unwrap();
    assert_eq!(Some(stopped.text.as_str()), whole.split("little").next());
    assert_eq!(stopped.finish, Some(FinishReason::Stop));
}

/// Ends a load after some tensors.
struct Impatient {
    stored: AtomicUsize,
    most: usize,
}

impl Progress for Impatient {
    fn at(&self, _done: u64) {
        self.stored.fetch_add(1, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        self.stored.load(Ordering::Relaxed) >= self.most
    }
}

#[test]
fn a_load_ends_before_the_next_tensor_when_its_progress_says_so() {
    for most in [0, 1, 3] {
        let progress = Impatient { stored: AtomicUsize::new(0), most };
        let error = Model::load_showing("stories", &options(), &progress).err().unwrap();
        assert!(matches!(&error, Error::Stopped(name) if name == "stories"), "{error}");
        assert_eq!(progress.stored.load(Ordering::Relaxed), most);
    }
}

#[test]
fn a_dropped_stream_is_cancelled() {
    let model = model();
    let mut stream = model.stream(Request::text("Once upon").max_tokens(200).seed(1)).unwrap();
    stream.next_blocking().unwrap().unwrap();
    drop(stream);
    // the only sequence slot that matters is free again: the next request runs, and the count falls to zero
    model.generate(Request::text("The dog").max_tokens(2)).unwrap();
    for _ in 0..1000 {
        if model.handle().stats().running == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("{:?}", model.handle().stats());
}

#[test]
fn an_answer_follows_its_constraint() {
    let model = model();
    let choices = ["red".to_string(), "green".into()];
    let request = Request::text("Her favourite colour was ").seed(9).max_tokens(20);
    let answer = model.generate(request.clone().constraint(Grammar::Choice(choices.to_vec()))).unwrap();
    assert!(choices.contains(&answer.text), "{}", answer.text);
    let error = model.generate(request.constraint(Grammar::Regex("(".into()))).unwrap_err();
    assert!(matches!(error, Error::Grammar(_)), "{error}");
}

#[test]
fn a_chat_needs_a_template_and_reuses_its_prefix() {
    let messages =
        || [Message::system("Stories for children follow here, one by one."), Message::user("A dog")];
    let error = model().chat(messages()).unwrap_err();
    assert_eq!(error.to_string(), "stories has no chat template");

    let options = LoadOptions { chat_template: Some(TEMPLATE.into()), ..options() };
    let model = Model::load_with("stories", &options).unwrap();
    let request = |messages: Vec<Message>| Request::chat(messages).max_tokens(30).temperature(0.0);
    let first = model.generate(request(messages().to_vec())).unwrap();
    assert_eq!(first.cached_tokens, 0);
    let mut longer = messages().to_vec();
    longer.extend([Message::assistant(first.text.clone()), Message::user("And a cat")]);
    let second = model.generate(request(longer)).unwrap();
    assert!(second.cached_tokens > 0, "{second:?}");
}

#[test]
fn embeddings_do_not_depend_on_each_other() {
    let model = model();
    let all = model.embed_all(["The dog ran.", "She ate an apple.", "The dog ran."]).unwrap();
    assert_eq!(all[0], all[2]);
    assert_ne!(all[0], all[1]);
    assert_eq!(model.embed("She ate an apple.").unwrap(), all[1]);

    // more texts than run and wait at once
    let model =
        Model::load_with("stories", &LoadOptions { max_seqs: 2, max_waiting: 0, ..options() }).unwrap();
    let many = model.embed_all(["She ate an apple."; 9]).unwrap();
    assert!(many.len() == 9 && many.iter().all(|vector| *vector == all[1]));
}

#[tokio::test]
async fn async_code_does_not_block() {
    let model = tokio::task::spawn_blocking(model).await.unwrap();
    let request = Request::text("Once upon a time").max_tokens(10).temperature(0.0);
    let (a, b) = tokio::join!(model.generate_async(request.clone()), model.generate_async(request));
    assert_eq!(a.unwrap().text, b.unwrap().text);
}

#[test]
fn what_does_not_fit_is_an_error_with_its_numbers() {
    let error = |options: LoadOptions| Model::load_with("stories", &options).err().unwrap();
    let context = error(LoadOptions { context: Context::Exactly(9000), ..options() });
    assert!(matches!(context, Error::Context { requested: 9000, trained: 256, .. }), "{context}");
    let memory = error(LoadOptions { kv_memory: KvMemory::Pages(usize::MAX / 64), ..options() });
    assert!(matches!(memory, Error::Memory { .. }), "{memory}");
    let name = Model::load("no-such-model").err().unwrap();
    assert!(matches!(name, Error::Hub(_)), "{name}");

    let model = model();
    let long = "word ".repeat(400);
    let error = model.generate(Request::text(long)).unwrap_err();
    assert!(matches!(error, Error::Engine(_)), "{error}");
    let error = model.generate(Request::text("a").temperature(-1.0)).unwrap_err();
    assert!(error.to_string().contains("temperature"), "{error}");
}

/// Keeps what a load reports.
#[derive(Default)]
struct Reports {
    plans: Mutex<Vec<MemoryPlan>>,
    bytes: Mutex<(u64, u64)>,
}

impl Progress for Reports {
    fn begin(&self, _label: &str, total: Option<u64>) {
        self.bytes.lock().unwrap().0 = total.unwrap_or(0);
    }

    fn at(&self, done: u64) {
        self.bytes.lock().unwrap().1 = done;
    }

    fn plan(&self, model: &OpenedModel, plan: &MemoryPlan, _device: &DeviceInfo) {
        assert_eq!(plan.weights, model.weight_bytes());
        self.plans.lock().unwrap().push(*plan);
    }
}

#[test]
fn a_load_reports_its_memory_before_and_its_bytes_meanwhile() {
    let reports = Reports::default();
    let options = LoadOptions { kv_memory: KvMemory::Bytes(1 << 20), ..options() };
    let model = Model::load_showing("stories", &options, &reports).unwrap();
    let plan = reports.plans.lock().unwrap()[0];
    assert!(plan.kv <= 1 << 20 && plan.kv_tokens == model.handle().capacity().kv_tokens());
    let (total, done) = *reports.bytes.lock().unwrap();
    assert_eq!((total, done), (plan.weights, plan.weights));
}

/// A request with these samplers.
fn sampled(sampling: Sampling) -> Request {
    Request {
        base: sampling,
        ..Request::text("The dog said: \"No.\" The cat said: \"No.\" The dog said: \"No.\"")
            .max_tokens(40)
            .seed(3)
    }
}

#[test]
fn samplers_change_the_text_and_the_same_seed_repeats_it() {
    let model = model();
    let off = Sampling::default;
    let text = |sampling: Sampling| model.generate(sampled(sampling)).unwrap().text;
    let mirostat = |version| Some(Mirostat { version, tau: 2.0, eta: 0.3 });
    let dry = Dry { multiplier: 5.0, allowed_length: 0, ..Dry::default() };
    let plain = text(off());
    for sampling in [
        Sampling { dry, ..off() },
        Sampling { xtc: Xtc { probability: 1.0, threshold: 0.05 }, ..off() },
        Sampling { typical_p: 0.2, ..off() },
        Sampling { top_n_sigma: 0.1, ..off() },
        Sampling { mirostat: mirostat(MirostatVersion::One), ..off() },
        Sampling { mirostat: mirostat(MirostatVersion::Two), ..off() },
    ] {
        let changed = text(sampling.clone());
        assert_ne!(changed, plain, "{sampling:?}");
        assert_eq!(text(sampling), changed);
    }
    // greedy: only DRY has an effect
    let greedy = |sampling: Sampling| model.generate(sampled(sampling).temperature(0.0)).unwrap().text;
    let filters = Sampling { typical_p: 0.2, mirostat: mirostat(MirostatVersion::Two), ..off() };
    assert_eq!(greedy(filters), greedy(off()));
    let dry = Dry { multiplier: 5.0, allowed_length: 0, ..Dry::default() };
    assert_ne!(greedy(Sampling { dry, ..off() }), greedy(off()));
}

#[test]
fn samplers_give_the_same_text_beside_others() {
    let model = model();
    let samplings = [
        Sampling { dry: Dry { multiplier: 1.0, ..Dry::default() }, typical_p: 0.9, ..Sampling::default() },
        Sampling { xtc: Xtc { probability: 0.5, threshold: 0.1 }, ..Sampling::default() },
        Sampling {
            mirostat: Some(Mirostat { version: MirostatVersion::Two, tau: 3.0, eta: 0.2 }),
            ..Sampling::default()
        },
    ];
    let alone: Vec<String> =
        samplings.iter().map(|s| model.generate(sampled(s.clone())).unwrap().text).collect();
    let streams: Vec<_> = samplings.iter().map(|s| model.stream(sampled(s.clone())).unwrap()).collect();
    let together: Vec<String> = streams.into_iter().map(|stream| stream.wait().unwrap().text).collect();
    assert_eq!(together, alone);
}

/// A cache of halves is what rounds most in a model of f32, and so decides near ties of its routers.
#[test]
fn a_model_in_f32_has_keys_and_values_in_f32_unless_a_type_is_requested() {
    let shape = Shape::by_name("tiny-gpt-oss").unwrap();
    let bytes = |format: &str, kv_cells: Option<KvCells>| {
        let options =
            LoadOptions { kv_cells, device: Device::Cpu, threads: Some(1), ..LoadOptions::default() };
        let quant = tern::quant::by_name(format).unwrap();
        let opened = OpenedModel::random(shape, quant, &options, &Silent).unwrap();
        let backend = options.device.open(options.device_options()).unwrap();
        let capacity = Capacity {
            pages: 4,
            page_len: PAGE_LEN,
            max_tokens: 8,
            max_outputs: 1,
            window: None,
            state: None,
        };
        let halves = OpenedModel { kv_cells: Some(KvCells::F16), ..opened.clone() }.kv_bytes(&capacity);
        let opened = opened.with_cells(&*backend);
        opened.clone().runner(backend, capacity, &Silent).unwrap();
        (opened.cells(), opened.kv_bytes(&capacity) as f64 / halves as f64)
    };
    assert_eq!(bytes("f32", None), (KvCells::F32, 2.0));
    assert_eq!(bytes("bf16", None), (KvCells::F16, 1.0));
    assert_eq!(bytes("q8_0", None), (KvCells::F16, 1.0));
    assert_eq!(bytes("f32", Some(KvCells::F16)), (KvCells::F16, 1.0));
    assert_eq!(bytes("f32", Some(KvCells::Int8)).0, KvCells::Int8);
}
