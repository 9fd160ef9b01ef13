//! [`LayerGroup`]: devices that have consecutive layers of a model each, and compute a step one after the
//! other.

use std::collections::HashMap;

use crate::split::LayerPart;
use crate::{
    AdapterScales, Backend, BackendError, Bindings, Buffer, CachePart, DeviceInfo, Finished, Graph,
    HostTensor, KvCells, KvSpec, Output, Place, Program, Reserve, Roles, Slice, StateSpec, Step, StepOutput,
    Ticket, WindowLayers,
};

type Result<T> = std::result::Result<T, BackendError>;

/// A backend that consists of others. Weights are stored where they are read, KV pages and states where their
/// layers are; the rows that cross a border pass through the host's memory.
pub struct LayerGroup {
    members: Vec<Member>,
    /// Layers before each border.
    borders: Vec<usize>,
    buffers: Vec<Stored>,
    /// By [`Program`], and then by member.
    programs: Vec<Vec<Stage>>,
    finished: Finished,
}

/// A device and what it has of the model.
struct Member {
    backend: Box<dyn Backend>,
    /// How its layers read each weight, by its name.
    weights: HashMap<String, Roles>,
    /// The KV layers of the whole model that it keeps.
    kv: Vec<usize>,
    /// The state layers of the whole model that it keeps.
    states: Vec<usize>,
    /// Layers and device, for messages.
    name: String,
}

/// Where a tensor, the KV cache or the state is. `[member]`
struct Stored(Vec<Option<Held>>);

#[derive(Clone, Copy)]
struct Held {
    buffer: Buffer,
    /// Bytes of a page, of a page of layers with a window, and of a state slot.
    bytes: [usize; 3],
}

/// A compiled part.
struct Stage {
    program: Program,
    /// Columns of the values that it reads.
    inputs: Vec<usize>,
    has_adapters: bool,
    has_images: bool,
}

impl LayerGroup {
    /// The devices in the order of the layers of `graph`; `borders` has the number of layers before each
    /// device but the first.
    pub fn new(devices: Vec<Box<dyn Backend>>, graph: &Graph, borders: &[usize]) -> Result<LayerGroup> {
        let parts = split(graph, borders)?;
        if parts.len() != devices.len() {
            let (want, got) = (parts.len(), devices.len());
            return Err(BackendError::Invalid(format!("{want} parts of a model on {got} devices")));
        }
        let starts = [0].into_iter().chain(borders.iter().copied());
        let ends = borders.iter().copied().chain([graph.layers()]);
        let members =
            devices.into_iter().zip(parts).zip(starts.zip(ends)).map(|((backend, part), layers)| {
                let name = format!("{} on {}", span(layers), backend.info().name);
                let LayerPart { weights, roles, kv, states, .. } = part;
                let names = weights.iter().map(|w| graph.weights[*w].name.clone());
                Member { backend, weights: names.zip(roles).collect(), kv, states, name }
            });
        let (members, borders) = (members.collect(), borders.to_vec());
        Ok(LayerGroup { members, borders, buffers: vec![], programs: vec![], finished: Finished::default() })
    }

    fn add(&mut self, stored: Vec<Option<Held>>) -> Buffer {
        self.buffers.push(Stored(stored));
        Buffer(self.buffers.len() as u32 - 1)
    }

    fn held(&self, buffer: Buffer, member: usize) -> Option<Held> {
        self.buffers.get(buffer.0 as usize).and_then(|stored| stored.0.get(member).copied().flatten())
    }

    /// Runs a step on all devices; carried tokens are filled in.
    fn run(&mut self, program: Program, step: &Step) -> Result<StepOutput> {
        let Some(stages) = self.programs.get(program.0 as usize) else {
            return Err(BackendError::Invalid(format!("program {} of {}", program.0, self.programs.len())));
        };
        let (tokens, last) = (step.tokens.len(), stages.len() - 1);
        let mut rows: Vec<Vec<f32>> = vec![]; // [tokens][columns that cross]
        for (at, (stage, member)) in stages.iter().zip(&mut self.members).enumerate() {
            let outputs = match at == last {
                true => step.outputs.clone(),
                false => (0..tokens).map(|row| Output { row, sample: None, logits: true }).collect(),
            };
            let part = Step {
                tokens: step.tokens.clone(),
                slices: step.slices.iter().map(|slice| stage.slice(slice)).collect(),
                outputs,
                inputs: stage.inputs(&rows),
                ..Step::default()
            };
            let done = member.backend.submit(stage.program, part);
            let done = done.and_then(|ticket| member.backend.collect(ticket));
            let done = done.map_err(|error| member.error(error))?;
            if at == last {
                return Ok(done);
            }
            rows = done.rows.into_iter().filter_map(|row| row.logits).collect();
            if rows.len() != tokens {
                let (name, got) = (&member.name, rows.len());
                return Err(BackendError::Other(format!("{name}: computed {got} of {tokens} rows")));
            }
        }
        Err(BackendError::Invalid("a model in no parts".into()))
    }
}

impl Member {
    /// The same kind of error, which names the device.
    fn error(&self, error: BackendError) -> BackendError {
        let named = |text: String| format!("{}: {text}", self.name);
        match error {
            BackendError::OutOfMemory(text) => BackendError::OutOfMemory(named(text)),
            BackendError::DeviceLost(text) => BackendError::DeviceLost(named(text)),
            BackendError::Unsupported(text) => BackendError::Unsupported(named(text)),
            BackendError::Invalid(text) => BackendError::Invalid(named(text)),
            BackendError::Other(text) => BackendError::Other(named(text)),
        }
    }

    /// How it reads a tensor; `roles` are those in the whole model. None if it does not.
    fn roles(&self, name: &str, roles: Roles) -> Option<Roles> {
        // the matrices of adapters are where the linear is that they change
        let adapted = name.strip_suffix(".lora_a").or(name.strip_suffix(".lora_b"));
        let own = self.weights.get(name).copied();
        own.or_else(|| adapted.and_then(|linear| self.weights.get(linear)).map(|_| roles))
    }

    /// What it reserves of the memory of the whole model.
    fn share(&self, what: &Reserve) -> Reserve {
        match what {
            Reserve::Kv(spec) => {
                let windowed = (0..self.kv.len()).filter(|layer| spec.is_windowed(self.kv[*layer]));
                let window = spec
                    .window
                    .as_ref()
                    .map(|window| WindowLayers { layers: windowed.collect(), pages: window.pages });
                let window = window.filter(|window| !window.layers.is_empty());
                let layers = self.kv.iter().filter_map(|layer| spec.layers.get(*layer).copied()).collect();
                Reserve::Kv(KvSpec { layers, window, ..*spec })
            }
            Reserve::State(spec) => {
                let layers = self.states.iter().filter_map(|layer| spec.layers.get(*layer).copied());
                Reserve::State(StateSpec { layers: layers.collect(), ..*spec })
            }
        }
    }
}

impl Stage {
    /// A slice without what its part does not read.
    fn slice(&self, slice: &Slice) -> Slice {
        let mut slice = slice.clone();
        if !self.has_adapters {
            slice.adapters = AdapterScales::NONE;
        }
        if !self.has_images {
            slice.images = slice.images.without_rows();
        }
        slice
    }

    /// The values that stand side by side in the rows.
    fn inputs(&self, rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let mut start = 0;
        let values = self.inputs.iter().map(|width| {
            let columns = start..start + width;
            start += width;
            rows.iter().flat_map(|row| row.get(columns.clone()).unwrap_or_default()).copied().collect()
        });
        values.collect()
    }
}

impl Backend for LayerGroup {
    fn info(&self) -> DeviceInfo {
        let names: Vec<_> = self.members.iter().map(|member| member.name.as_str()).collect();
        let mut info =
            DeviceInfo { name: names.join(", "), memory_total: 0, memory_free: 0, step_tokens: usize::MAX };
        for of in self.members.iter().map(|member| member.backend.info()) {
            info.memory_total = info.memory_total.saturating_add(of.memory_total);
            info.memory_free = info.memory_free.saturating_add(of.memory_free);
            info.step_tokens = info.step_tokens.min(of.step_tokens);
        }
        info
    }

    fn store(&mut self, tensor: &HostTensor, roles: Roles) -> Result<Buffer> {
        let name = tensor.name();
        let mut stored = vec![];
        for member in &mut self.members {
            stored.push(match member.roles(name, roles) {
                Some(roles) => {
                    let buffer = member.backend.store(tensor, roles).map_err(|e| member.error(e))?;
                    Some(Held { buffer, bytes: [0; 3] })
                }
                None => None,
            });
        }
        Ok(self.add(stored))
    }

    fn reserve(&mut self, what: &Reserve) -> Result<Buffer> {
        let mut stored = vec![];
        for member in &mut self.members {
            let share = member.share(what);
            let bytes = match &share {
                Reserve::Kv(spec) => [spec.page_bytes(false), spec.page_bytes(true), 0],
                Reserve::State(spec) => [0, 0, spec.slot_bytes()],
            };
            stored.push(match &share {
                Reserve::State(spec) if spec.layers.is_empty() => None,
                share => {
                    let buffer = member.backend.reserve(share).map_err(|e| member.error(e))?;
                    Some(Held { buffer, bytes })
                }
            });
        }
        Ok(self.add(stored))
    }

    /// The scratch on all devices.
    fn scratch(&self, graph: &Graph, max_tokens: usize, max_outputs: usize) -> u64 {
        let Ok(parts) = split(graph, &self.borders) else { return 0 };
        let last = parts.len() - 1;
        let each = parts.iter().zip(&self.members).enumerate().map(|(at, (part, member))| {
            let max_outputs = if at == last { max_outputs } else { max_tokens };
            member.backend.scratch(&part.graph, max_tokens, max_outputs)
        });
        each.fold(0, u64::saturating_add)
    }

    fn compile(&mut self, graph: &Graph, bindings: &Bindings<'_>) -> Result<Program> {
        let parts = split(graph, &self.borders)?;
        let last = parts.len() - 1;
        let mut stages = vec![];
        for (at, part) in parts.into_iter().enumerate() {
            let buffer = |weight: &usize| {
                let held = bindings.weights.get(*weight).and_then(|buffer| self.held(*buffer, at));
                let missing =
                    || format!("{}: not stored on the device that reads it", graph.weights[*weight].name);
                held.map(|held| held.buffer).ok_or_else(|| BackendError::Invalid(missing()))
            };
            let weights = part.weights.iter().map(buffer).collect::<Result<Vec<_>>>()?;
            let held = |buffer: Option<Buffer>| {
                buffer.and_then(|buffer| self.held(buffer, at)).map(|held| held.buffer)
            };
            let bindings = Bindings {
                weights: &weights,
                kv: held(bindings.kv),
                state: held(bindings.state),
                max_tokens: bindings.max_tokens,
                max_outputs: if at == last { bindings.max_outputs } else { bindings.max_tokens },
            };
            let member = &mut self.members[at];
            let program = member.backend.compile(&part.graph, &bindings).map_err(|e| member.error(e))?;
            stages.push(Stage {
                program,
                inputs: part.graph.input_widths(),
                has_adapters: part.graph.adapters() > 0,
                has_images: part.graph.image_width() > 0,
            });
        }
        self.programs.push(stages);
        Ok(Program(self.programs.len() as u32 - 1))
    }

    fn submit(&mut self, program: Program, mut step: Step) -> Result<Ticket> {
        self.finished.carry(program, &mut step)?;
        let output = self.run(program, &step)?;
        Ok(self.finished.keep_step(program, &step, output))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput> {
        self.finished.take(ticket)
    }

    /// The types that all devices can keep.
    fn kv_cells(&self) -> &'static [KvCells] {
        let all = |cells: KvCells| self.members.iter().all(|m| m.backend.kv_cells().contains(&cells));
        match [KvCells::F32, KvCells::Int8, KvCells::Fp8].map(all) {
            [true, true, true] => &[KvCells::F16, KvCells::F32, KvCells::Int8, KvCells::Fp8],
            [true, true, false] => &[KvCells::F16, KvCells::F32, KvCells::Int8],
            [false, true, true] => &[KvCells::F16, KvCells::Int8, KvCells::Fp8],
            [_, true, _] => &[KvCells::F16, KvCells::Int8],
            _ => &[KvCells::F16],
        }
    }

    fn finish_compiling(&mut self, program: Program) -> Result<()> {
        let stages = self.programs.get(program.0 as usize).into_iter().flatten();
        stages.zip(&mut self.members).try_for_each(|(stage, member)| {
            member.backend.finish_compiling(stage.program).map_err(|error| member.error(error))
        })
    }

    fn step_borders(&self, program: Program) -> Vec<usize> {
        let stages = self.programs.get(program.0 as usize).into_iter().flatten();
        let of = stages.zip(&self.members).flat_map(|(s, m)| m.backend.step_borders(s.program));
        let mut borders: Vec<usize> = of.collect();
        borders.sort_unstable();
        borders.dedup();
        borders
    }

    fn adapts_all_steps(&self) -> bool {
        self.members.iter().any(|member| member.backend.adapts_all_steps())
    }

    fn cache_format(&self) -> Option<String> {
        let formats: Option<Vec<String>> = self.members.iter().map(|m| m.backend.cache_format()).collect();
        formats.map(|formats| format!("layers {:?}: {}", self.borders, formats.join("; ")))
    }

    /// The bytes of the devices one after the other.
    fn read_cache(&mut self, from: Buffer, place: Place, to: &mut Vec<u8>) -> Result<()> {
        for at in 0..self.members.len() {
            let Some(held) = self.held(from, at).filter(|held| held.bytes[index(place)] > 0) else {
                continue;
            };
            let member = &mut self.members[at];
            member.backend.read_cache(held.buffer, place, to).map_err(|error| member.error(error))?;
        }
        Ok(())
    }

    fn write_cache(&mut self, to: Buffer, place: Place, bytes: &[u8]) -> Result<()> {
        let sizes = (0..self.members.len()).map(|at| self.held(to, at).map_or(0, |h| h.bytes[index(place)]));
        let want: usize = sizes.sum();
        if want != bytes.len() {
            let got = bytes.len();
            return Err(BackendError::Invalid(format!("{place:?}: want {want} bytes, got {got}")));
        }
        let mut rest = bytes;
        for at in 0..self.members.len() {
            let Some(held) = self.held(to, at).filter(|held| held.bytes[index(place)] > 0) else { continue };
            let (own, after) = rest.split_at(held.bytes[index(place)]);
            rest = after;
            let member = &mut self.members[at];
            member.backend.write_cache(held.buffer, place, own).map_err(|error| member.error(error))?;
        }
        Ok(())
    }
}

/// Which of a buffer's sizes is that of a place.
fn index(place: Place) -> usize {
    match place.part {
        CachePart::Page => 0,
        CachePart::WindowPage => 1,
        CachePart::StateSlot => 2,
    }
}

fn split(graph: &Graph, borders: &[usize]) -> Result<Vec<LayerPart>> {
    graph.split_layers(borders).map_err(|e| BackendError::Invalid(e.to_string()))
}

/// `layers 0 to 17`, `layer 3` or `output`
fn span((from, to): (usize, usize)) -> String {
    match to - from {
        0 => "output".into(),
        1 => format!("layer {from}"),
        _ => format!("layers {from} to {}", to - 1),
    }
}
