//! Which experts are in host memory, on a device with little memory.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use tern::engine::Capacity;
use tern::graph::{
    Backend, BackendError, Bindings, Buffer, DeviceInfo, Graph, HostOpsHandle, HostTensor, Program,
    Reference, Reserve, Roles, Step, StepOutput, Ticket,
};
use tern::models::Shape;
use tern::{Context, Device, DeviceOptions, ExpertPlacement, LoadOptions, OnHost, OpenedModel, Silent};

/// The reference with a given number of bytes of memory.
struct Small(Reference, u64);

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
    Box::new(Small(Reference::new(), bytes))
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
    let cpu = Device::Cpu.open(DeviceOptions { threads: Some(1), ..DeviceOptions::default() }).unwrap();
    assert_eq!(layers(ExpertPlacement::Host(Some(2)), &*cpu), Ok(on_host(0)));
    for text in ["auto", "device", "cpu", "cpu:12"] {
        assert_eq!(text.parse::<ExpertPlacement>().unwrap().to_string(), text);
    }
    assert_eq!("cpu:x".parse::<ExpertPlacement>(), Err("expected auto, device, cpu or cpu:N".into()));
}
