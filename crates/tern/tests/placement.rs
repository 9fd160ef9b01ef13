//! Which experts or layers are in host memory, on a device with little memory.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use tern::engine::Capacity;
use tern::graph::{
    Backend, BackendError, Bindings, Buffer, DeviceInfo, Graph, HostOpsHandle, HostTensor, Program,
    Reference, Reserve, Roles, Step, StepOutput, Ticket,
};
use tern::models::Shape;
use tern::{
    Context, Device, DeviceOptions, ExpertPlacement, GpuLayers, KvMemory, LoadOptions, Model, OnHost,
    OpenedModel, Request, Silent,
};

/// A backend with a given number of bytes of memory, in the role of a GPU.
struct Small(Box<dyn Backend>, u64);

impl Backend for Small {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { memory_free: self.1, memory_total: self.1, ..self.0.info() }
    }

    fn store(&mut self, tensor: &HostTensor, roles: Roles) -> Result<Buffer, BackendError> {
        self.0.store(tensor, roles)
    }

    fn reserve(&mut self, what: &Reserve) -> Result<Buffer, BackendError> {
        self.0.reserve(what)
    }

    fn scratch(&self, graph: &Graph, max_tokens: usize, max_outputs: usize) -> u64 {
        self.0.scratch(graph, max_tokens, max_outputs)
    }

    fn compile(&mut self, graph: &Graph, bindings: &Bindings<'_>) -> Result<Program, BackendError> {
        self.0.compile(graph, bindings)
    }

    fn runs_host_ops(&self) -> bool {
        true
    }

    fn set_host_ops(&mut self, ops: HostOpsHandle) -> Result<(), BackendError> {
        self.0.set_host_ops(ops)
    }

    fn submit(&mut self, program: Program, step: Step) -> Result<Ticket, BackendError> {
        self.0.submit(program, step)
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, BackendError> {
        self.0.collect(ticket)
    }
}

const CAPACITY: Capacity =
    Capacity { pages: 1, page_len: 32, max_tokens: 8, max_outputs: 8, window: None, state: None };

fn opened(experts: ExpertPlacement) -> OpenedModel {
    let shape = Shape { vocab: 320, ..Shape::by_name("tiny-qwen3moe").unwrap().clone() };
    let options =
        LoadOptions { threads: Some(1), context: Context::Exactly(32), experts, ..LoadOptions::default() };
    OpenedModel::random(&shape, &tern::quant::Q8_0, &options, &Silent).unwrap()
}

fn on_host(layers: usize) -> OnHost {
    if layers == 0 { OnHost::Nothing } else { OnHost::Experts(layers) }
}

fn device(bytes: u64) -> Box<dyn Backend> {
    Box::new(Small(Box::new(Reference::new()), bytes))
}

fn cpu() -> Box<dyn Backend> {
    Device::Cpu.open(DeviceOptions { threads: Some(1), ..DeviceOptions::default() }).unwrap()
}

#[test]
fn as_few_experts_leave_a_device_as_its_memory_requires() {
    let model = opened(ExpertPlacement::Auto);
    let plan = |layers| model.memory(&*device(0), CAPACITY, on_host(layers)).unwrap();
    let layers = |bytes| model.on_host(&*device(bytes), |_| Ok(CAPACITY)).unwrap();
    assert_eq!(model.model.graph.expert_layers(), 3);
    for n in 0..3 {
        assert!(plan(n).total() > plan(n + 1).total());
        let fits = plan(n).total() * 20 / 19 + 1; // a twentieth is spared
        assert_eq!((layers(fits), layers(fits - 2)), (on_host(n), on_host(n + 1)), "{fits} bytes");
    }
    assert_eq!(layers(0), on_host(3)); // the plan says that even this does not fit
    let text = plan(2).to_string();
    let host = plan(2).host.unwrap();
    assert_eq!(plan(2).weights + host.weights, model.weight_bytes());
    assert!(text.contains("; experts of 2 of 3 layers in host memory, "), "{text}");
    let refused = model.clone().runner(device(1), CAPACITY, &Silent).err().unwrap().to_string();
    assert!(refused.contains("experts of 3 of 3 layers") && refused.ends_with("has 1 B"), "{refused}");
}

#[test]
fn a_model_that_is_larger_than_its_device_runs() {
    let logits = |model: OpenedModel, device: Box<dyn Backend>| {
        let mut runner = model.runner(device, CAPACITY, &Silent).unwrap();
        let mut rows = vec![];
        runner.logits(&[3, 1, 4, 1, 5, 9, 2, 6, 5, 3], |_, row| rows.extend(row.iter().copied())).unwrap();
        (rows, runner.backend().info().name)
    };
    let (want, _) = logits(opened(ExpertPlacement::Device), device(1 << 40));
    let model = opened(ExpertPlacement::Auto);
    let bytes = model.memory(&*device(0), CAPACITY, on_host(2)).unwrap().total() * 20 / 19 + 1;
    assert!(bytes < model.weight_bytes() + (1 << 20));
    let (got, name) = logits(model, device(bytes));
    assert!(name.contains("with the experts of 2 of 3 layers on "), "{name}");
    let off = tern::graph::cases::distance(&got, &want);
    assert!(off < 2e-3, "off by {off:.1e}");
}

#[test]
fn placements_are_checked() {
    let layers = |experts, device: &dyn Backend| {
        opened(experts).on_host(device, |_| Ok(CAPACITY)).map_err(|e| e.to_string())
    };
    let small = device(0);
    assert_eq!(layers(ExpertPlacement::Device, &*small), Ok(on_host(0)));
    assert_eq!(layers(ExpertPlacement::Host(None), &*small), Ok(on_host(3)));
    assert_eq!(layers(ExpertPlacement::Host(Some(2)), &*small), Ok(on_host(2)));
    let message = "tiny-qwen3moe:q8_0: experts of 4 layers were requested for the CPU, 3 layers have experts";
    assert_eq!(layers(ExpertPlacement::Host(Some(4)), &*small), Err(message.into()));
    // on the CPU all experts are in host memory anyway
    assert_eq!(layers(ExpertPlacement::Host(Some(2)), &*cpu()), Ok(on_host(0)));
    for text in ["auto", "device", "cpu", "cpu:12"] {
        assert_eq!(text.parse::<ExpertPlacement>().unwrap().to_string(), text);
    }
    assert_eq!("cpu:x".parse::<ExpertPlacement>(), Err("expected auto, device, cpu or cpu:N".into()));
}

fn with_layers(shape: &str, gpu_layers: GpuLayers) -> OpenedModel {
    let shape = Shape { vocab: 320, ..Shape::by_name(shape).unwrap().clone() };
    let options =
        LoadOptions { threads: Some(1), context: Context::Exactly(32), gpu_layers, ..LoadOptions::default() };
    OpenedModel::random(&shape, &tern::quant::Q8_0, &options, &Silent).unwrap()
}

#[test]
fn as_few_layers_leave_a_device_as_its_memory_requires() {
    let model = with_layers("tiny-qwen35", GpuLayers::Auto);
    let on_host = |bytes| model.on_host(&*device(bytes), |_| Ok(CAPACITY)).unwrap();
    let capacity = CAPACITY.with_slots(&model.model.graph, 2);
    let plan = |on_host| model.memory(&*device(0), capacity, on_host).unwrap();
    let all = [0, 1, 2, 3, 4].map(|n| if n == 0 { OnHost::Nothing } else { OnHost::Layers(n) });
    for pair in all.windows(2) {
        let total = model.memory(&*device(0), CAPACITY, pair[0]).unwrap().total();
        // a twentieth is spared, but of a model that fits as a whole
        let fits = if pair[0] == OnHost::Nothing { total } else { total * 20 / 19 + 1 };
        assert_eq!([on_host(fits), on_host(fits - 9)], [pair[0], pair[1]], "{fits} bytes");
    }
    assert_eq!(on_host(0), OnHost::Layers(4)); // the plan says that even this does not fit
    let whole = plan(OnHost::Nothing);
    let half = plan(OnHost::Layers(2));
    let host = half.host.unwrap();
    assert_eq!((half.kv + host.kv, half.state + host.state), (whole.kv, whole.state));
    assert!(host.kv + host.state > 0 && half.kv + half.state > 0);
    // a tied embedding is on both
    assert!(half.weights + host.weights >= model.weight_bytes(), "{half}");
    assert!(half.to_string().contains("; layers 0 to 1 of 4 on the CPU: weights "), "{half}");
    let refused = model.clone().runner(device(1), capacity, &Silent).err().unwrap().to_string();
    assert!(refused.contains("layers 0 to 3 of 4 on the CPU") && refused.ends_with("has 1 B"), "{refused}");
}

#[test]
fn requested_layers_are_counted_from_the_output() {
    let on_host = |shape, layers| {
        let on_host = with_layers(shape, layers).on_host(&*device(1 << 40), |_| Ok(CAPACITY));
        on_host.map_err(|e| e.to_string())
    };
    let count = |shape, layers| on_host(shape, GpuLayers::Count(layers));
    assert_eq!(count("tiny-llama", 1), Ok(OnHost::Layers(3)));
    assert_eq!(count("tiny-llama", 2), Ok(OnHost::Layers(2)));
    assert_eq!(count("tiny-llama", 3), Ok(OnHost::Layers(1)));
    assert_eq!([count("tiny-llama", 4), count("tiny-llama", 99)], [Ok(OnHost::Nothing), Ok(OnHost::Nothing)]);
    // its layers from the second on share keys and values
    assert_eq!([count("tiny-gemma4", 4), count("tiny-gemma4", 6)], [6, 1].map(|n| Ok(OnHost::Layers(n))));
    assert_eq!(on_host("tiny-llama", GpuLayers::All), Ok(OnHost::Nothing));
    let small = with_layers("tiny-llama", GpuLayers::All).on_host(&*device(0), |_| Ok(CAPACITY));
    assert_eq!(small.unwrap(), OnHost::Nothing);
    let none = "tiny-llama:q8_0: 0 layers on the GPU were requested, but its layers cannot be separated";
    assert_eq!(count("tiny-llama", 0), Err(none.into()));
    let both = OpenedModel {
        experts: ExpertPlacement::Host(None),
        ..with_layers("tiny-qwen3moe", GpuLayers::Count(2))
    };
    let both = both.on_host(&*device(1 << 40), |_| Ok(CAPACITY)).unwrap_err().to_string();
    assert_eq!(both, "tiny-qwen3moe:q8_0: either layers or experts can be in host memory, not both");
    // a device that is the CPU has all layers
    let model = with_layers("tiny-llama", GpuLayers::Count(2));
    assert_eq!(model.on_host(&*cpu(), |_| Ok(CAPACITY)).unwrap(), OnHost::Nothing);
    assert_eq!(Device::Cpu.with_layers(GpuLayers::Count(0)).unwrap(), Device::Cpu);
    assert_eq!(Device::Cuda(1).with_layers(GpuLayers::Count(0)).unwrap(), Device::Cpu);
    let refused = Device::Cpu.with_layers(GpuLayers::Count(7)).unwrap_err().to_string();
    assert_eq!(refused, "layers on the GPU: 7 were requested, but the device is the CPU");
    for text in ["auto", "all", "0", "12"] {
        assert_eq!(text.parse::<GpuLayers>().unwrap().to_string(), text);
    }
    assert_eq!("-1".parse(), Ok(GpuLayers::Auto));
    assert_eq!("-2".parse::<GpuLayers>(), Err("expected auto, all or a number of layers".into()));
}

/// The whole way from a name to texts, with the CPU as both devices: the texts of one.
#[test]
fn a_model_on_two_devices_writes_the_texts_of_one() {
    let options = |gpu_layers| LoadOptions {
        device: Device::Cpu,
        threads: Some(1),
        gpu_layers,
        kv_memory: KvMemory::Pages(12),
        max_seqs: 4,
        ..LoadOptions::default()
    };
    let load = |gpu_layers, bytes: u64| {
        let options = options(gpu_layers);
        let opened = OpenedModel::open("stories", &options, &Silent).unwrap();
        Model::start(opened, Box::new(Small(cpu(), bytes)), &options, &Silent).unwrap()
    };
    let one = load(GpuLayers::All, 1 << 40);
    let prompts =
        ["Once upon a time", "The dog", "Lily and her mother went to the park and", "One day a bird"];
    let texts = |model: &Model| -> Vec<String> {
        std::thread::scope(|scope| {
            let request =
                |prompt: &'static str| Request::from(prompt).temperature(0.8).seed(7).max_tokens(99);
            let run = |prompt| scope.spawn(move || model.generate(request(prompt)).unwrap().text);
            prompts.map(run).into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    let want = texts(&one);
    let memory = one.facts().unwrap().memory;
    for (layers, bytes) in
        [(GpuLayers::Count(1), 1 << 40), (GpuLayers::Count(3), 1 << 40), (GpuLayers::Auto, memory - 1)]
    {
        let split = load(layers, bytes);
        assert!(split.facts().unwrap().memory < memory, "{layers}");
        assert_eq!(texts(&split), want, "{layers} layers");
        assert_eq!(split.embed("A cat").unwrap(), one.embed("A cat").unwrap(), "{layers} layers");
    }
}
