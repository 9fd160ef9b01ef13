//! Op cases: small graphs with random weights, for every op, format and odd shape.
//!
//! Backends are tested and timed on the same list: run a case on a backend and on the reference, and compare.

mod adapters;
mod attention;
mod batches;
mod experts;
mod images;
mod inputs;
mod linears;
mod not_finite;
mod recurrent;
mod small_ops;
mod unlisted;
mod whole_sequences;
mod windows;

use tern_quant::{Encode, Quant};

pub use attention::attend;
pub use experts::{Experts, expert_linear, expert_mlp};
pub use linears::{linear, two_linears};
pub use recurrent::{delta, delta_layer};
pub use unlisted::UNLISTED;

use crate::{
    Attention, Backend, BackendError, Bindings, Buffer, Graph, GraphError, HostTensor, KvCells, KvSpec,
    PageTable, Random, Reference, Reserve, StateSpec, Step, Val, WeightError, WindowLayers, all_finite,
};

/// Tokens per KV page in the cases.
const PAGE_LEN: usize = 16;
/// Rows of the random embedding table that feeds a case.
const INPUTS: usize = 64;

/// One op (or a few) with its weights, the steps to run and the tolerance.
#[derive(Clone, Debug)]
pub struct Case {
    /// `linear q4_k 17x512 tokens 3`
    pub name: String,
    /// The graph: embeddings as inputs, then the op.
    pub graph: Graph,
    /// The graph's weights, in order.
    pub weights: Vec<HostTensor>,
    /// Steps run one after the other; the outputs of all are compared.
    pub steps: Vec<Step>,
    /// Largest allowed `|out - ref| / |ref|`.
    pub tolerance: f32,
    /// The type of keys and values.
    pub kv_cells: KvCells,
    /// Bytes of weights and KV that the last step must read at least once.
    pub bytes: usize,
}

impl Case {
    fn new(name: String, tolerance: f32) -> Case {
        Case {
            name,
            graph: Graph::new(),
            weights: vec![],
            steps: vec![],
            tolerance,
            kv_cells: KvCells::F16,
            bytes: 0,
        }
    }

    fn matrix(&mut self, t: HostTensor) -> Result<crate::WeightId, GraphError> {
        let id = self.graph.matrix(t.name(), t.rows(), t.cols())?;
        self.bytes += t.data().len();
        self.weights.push(t);
        Ok(id)
    }

    /// The matrices of experts, one below the other in a tensor.
    fn experts(&mut self, t: HostTensor, count: usize) -> Result<crate::WeightId, GraphError> {
        let id = self.graph.experts(t.name(), count, t.rows() / count, t.cols())?;
        self.bytes += t.data().len();
        self.weights.push(t);
        Ok(id)
    }

    /// A value of random activations.
    fn input(&mut self, name: &str, width: usize, rng: &mut Random) -> Result<Val, GraphError> {
        let table = HostTensor::from_f32(name, INPUTS, width, &rng.normals(INPUTS * width, 1.0));
        let id = self.matrix(table)?;
        self.bytes -= INPUTS * width * 4;
        Ok(self.graph.embed(id, 1.0))
    }

    /// One step per length: tokens of one sequence, in scattered pages, with all rows requested.
    fn sequence(&mut self, lens: &[usize], rng: &mut Random) {
        let total: usize = lens.iter().sum();
        let pages: PageTable = (0..total.div_ceil(PAGE_LEN) as u32).rev().collect();
        let mut position = 0;
        for &len in lens {
            let tokens: Vec<u32> = (0..len).map(|_| rng.below(INPUTS) as u32).collect();
            self.steps.push(Step::all_logits(&tokens, position, pages.clone()));
            position += len;
        }
    }

    /// Whether a backend may round activations to bytes: weights have one or two bits, and a step is larger
    /// than those of decoding.
    pub fn allows_bytes(&self) -> bool {
        let few_bits = |t: &HostTensor| t.quant().codes().is_some_and(|c| c.most - c.least <= 3);
        self.steps.iter().any(|step| step.tokens.len() > 128) && self.weights.iter().any(few_bits)
    }

    /// All outputs of all steps on a backend.
    pub fn run(&self, backend: &mut dyn Backend) -> Result<Vec<f32>, BackendError> {
        let mut run = self.prepare(backend)?;
        let mut out = vec![];
        for i in 0..self.steps.len() {
            out.extend(run.step(i)?);
        }
        Ok(out)
    }

    /// Stores the weights, in order.
    pub fn store(&self, backend: &mut dyn Backend) -> Result<Vec<Buffer>, BackendError> {
        self.weights.iter().zip(self.graph.roles()).map(|(t, roles)| backend.store(t, roles)).collect()
    }

    /// Stores, reserves and compiles; then steps can be run one at a time.
    pub fn prepare<'a>(&'a self, backend: &'a mut dyn Backend) -> Result<Prepared<'a>, BackendError> {
        let weights = self.store(backend)?;
        let pages = |windowed: bool| {
            let slices = self.steps.iter().flat_map(|s| &s.slices);
            slices.flat_map(|s| s.table(windowed).iter()).max().map_or(0, |p| *p as usize + 1)
        };
        let window = WindowLayers { layers: self.graph.window_layers(), pages: pages(true) };
        let kv = KvSpec {
            layers: self.graph.kv.clone(),
            cells: self.kv_cells,
            pages: pages(false),
            page_len: PAGE_LEN,
            window: (window.pages > 0).then_some(window),
        };
        let kv = Some(backend.reserve(&Reserve::Kv(kv))?);
        let max_tokens = self.steps.iter().map(|s| s.tokens.len()).max().unwrap_or(1);
        let slots = self.steps.iter().flat_map(|s| &s.slices).filter_map(|s| s.state);
        let slots =
            slots.flat_map(|s| s.read.into_iter().chain([s.write])).max().map_or(0, |s| s as usize + 1);
        let state = match self.graph.states.is_empty() {
            true => None,
            false => {
                let spec = StateSpec { layers: self.graph.states.clone(), slots };
                Some(backend.reserve(&Reserve::State(spec))?)
            }
        };
        let bindings = Bindings { weights: &weights, kv, state, max_tokens, max_outputs: max_tokens };
        let program = backend.compile(&self.graph, &bindings)?;
        backend.finish_compiling(program)?;
        Ok(Prepared { case: self, backend, program })
    }

    /// `|out - ref| / |ref|` on a backend.
    pub fn error(&self, backend: &mut dyn Backend) -> Result<f32, BackendError> {
        Ok(self.distance(&self.run(backend)?, &self.run(&mut Reference::new())?))
    }

    /// Relative distance of this case's results. Rows with a value that is not finite are not compared
    /// further, but both sides must have one: the distance is infinite otherwise.
    pub fn distance(&self, got: &[f32], want: &[f32]) -> f32 {
        let width = self.graph.nodes.last().map_or(1, |node| node.value.width);
        let rows = got.chunks(width).zip(want.chunks(width));
        let finite = |(got, want): (&[f32], &[f32])| (all_finite(got), all_finite(want));
        if got.len() != want.len() || rows.clone().map(finite).any(|(got, want)| got != want) {
            return f32::INFINITY;
        }
        let (got, want): (Vec<_>, Vec<_>) = rows.filter(|row| finite(*row).1).unzip();
        distance(&got.concat(), &want.concat())
    }
}

/// A case whose weights are on the device.
pub struct Prepared<'a> {
    case: &'a Case,
    backend: &'a mut dyn Backend,
    program: crate::Program,
}

impl Prepared<'_> {
    /// Runs step `i` and returns its rows, one after the other.
    pub fn step(&mut self, i: usize) -> Result<Vec<f32>, BackendError> {
        let ticket = self.backend.submit(self.program, self.case.steps[i].clone())?;
        let rows = self.backend.collect(ticket)?.rows;
        Ok(rows.into_iter().flat_map(|r| r.logits.unwrap_or_default()).collect())
    }
}

/// Relative distance of two vectors.
pub fn distance(got: &[f32], want: &[f32]) -> f32 {
    if got.len() != want.len() || got.iter().any(|x| x.is_nan()) {
        return f32::INFINITY;
    }
    let off: f64 = got.iter().zip(want).map(|(g, w)| f64::from(g - w).powi(2)).sum();
    let norm: f64 = want.iter().map(|w| f64::from(*w).powi(2)).sum();
    (off / norm.max(1e-30)).sqrt() as f32
}

/// Random weights with deviation `1 / sqrt(cols)` in any format that can be run.
pub fn random_tensor(
    name: &str,
    quant: &'static Quant,
    rows: usize,
    cols: usize,
    rng: &mut Random,
) -> Result<HostTensor, GraphError> {
    let scale = 1.0 / (cols as f32).sqrt();
    let data = match quant.encode {
        // with one scale for all weights, most codes of normal ones are zero
        None | Some(Encode::Shared(_)) => quant.random_tensor(rows * cols, scale, || rng.below(256) as u8),
        Some(_) => {
            let mut data = vec![];
            let encoded = quant.encode(&rng.normals(rows * cols, scale), &mut data);
            encoded.map_err(|e| WeightError::NotMade { name: name.into(), reason: e.to_string() })?;
            data
        }
    };
    Ok(HostTensor::new(name, quant, [rows, cols], data.into())?)
}

/// Half a step of each block's largest activation, which a backend may round to the format's activation bits.
fn tolerance(quant: &Quant) -> f32 {
    match quant.codes().map(|codes| codes.activation_bits) {
        None => 1e-5,
        Some(..13) => 5e-4,
        Some(13..16) => 2e-4,
        Some(16..) => 1e-4,
    }
}

/// The same for a step of `tokens`: a backend may round the activations of a few
/// tokens to halves of ten bits.
fn step_tolerance(quant: &Quant, tokens: usize) -> f32 {
    if (2..=4).contains(&tokens) { tolerance(quant).max(8e-4) } else { tolerance(quant) }
}

/// All formats that can be run, and one that only the cases know.
pub fn formats() -> impl Iterator<Item = &'static Quant> {
    tern_quant::ALL.iter().copied().filter(|q| q.is_runnable()).chain([&UNLISTED])
}

/// Every op in every format and in shapes that do not divide evenly.
pub fn all() -> Result<Vec<Case>, GraphError> {
    let mut cases = vec![];
    for quant in formats() {
        for (rows, cols, tokens) in [(17, 512, 1), (6, 256, 7), (70, 768, 9)] {
            cases.push(linear(quant, rows, cols, tokens)?);
        }
        cases.push(small_ops::embed(quant)?);
    }
    for quant in formats().filter(|q| q.block_len <= 128) {
        cases.push(linear(quant, 9, 288usize.next_multiple_of(quant.block_len), 5)?); // partial chunks
        if quant.codes().is_none() {
            cases.push(linear(quant, 37, 1121, 22)?); // partial vectors
        }
    }
    for quant in [&tern_quant::Q1_0, &tern_quant::Q2_0, &tern_quant::Q4_K, &tern_quant::F16] {
        for tokens in [30, 45, 60, 90, 128, 300] {
            cases.push(linear(quant, 150, 512, tokens)?); // every size of tiles
        }
    }
    cases.push(linear(&tern_quant::PQ2_0, 12_000, 384, 1)?); // several tiles per block of large GPUs
    cases.push(linear(&tern_quant::Q8_0, 200, 5120, 1)?); // large records in an odd number of half rounds
    for other in [&tern_quant::Q8_0, &tern_quant::Q2_0] {
        for tokens in [1, 3, 21] {
            cases.push(two_linears([&tern_quant::Q1_0, other], 35, 512, tokens)?);
        }
    }
    cases.extend(adapters::adapters()?);
    cases.extend(attention::attentions()?);
    cases.extend(small_ops::small_ops()?);
    cases.extend(inputs::inputs()?);
    cases.extend(images::images()?);
    cases.extend(images::after_images()?);
    cases.extend(images::image_attention()?);
    cases.extend(images::small_ops()?);
    cases.extend(experts::experts()?);
    cases.extend(batches::batches()?);
    cases.extend(not_finite::not_finite()?);
    cases.extend(windows::windows()?);
    cases.extend(recurrent::recurrent()?);
    cases.extend(whole_sequences::whole_sequences()?);
    Ok(cases)
}

/// A case worth timing that is not made yet: its weights may be large.
pub struct TimedCase {
    /// Its name.
    pub name: String,
    make: Box<dyn Fn() -> Result<Case, GraphError>>,
}

impl TimedCase {
    fn new(name: String, make: impl Fn() -> Result<Case, GraphError> + 'static) -> TimedCase {
        TimedCase { name, make: Box::new(make) }
    }

    /// The case with its weights.
    pub fn make(&self) -> Result<Case, GraphError> {
        (self.make)()
    }
}

/// Larger shapes worth timing: every format for one token and for many, experts, and attention at two depths.
pub fn timed() -> Vec<TimedCase> {
    let mut cases = vec![];
    for quant in tern_quant::ALL.iter().copied().filter(|q| q.is_runnable()) {
        for tokens in [1, 64] {
            let name = linears::linear_name(quant, [2048, 2048], tokens);
            cases.push(TimedCase::new(name, move || linear(quant, 2048, 2048, tokens)));
        }
    }
    let sizes = Experts { count: 32, used: 4, rows: 768, cols: 2048 };
    for quant in [&tern_quant::Q4_K, &tern_quant::MXFP4, &tern_quant::TQ2_0] {
        for tokens in [1, 64] {
            let name = experts::expert_linear_name(quant, sizes, tokens);
            cases.push(TimedCase::new(name, move || expert_linear(quant, sizes, tokens)));
        }
    }
    let args = Attention::full(16, 8, 128, 0.088);
    for depth in [512, 4096] {
        let name = attention::attend_name(args, &[depth, 1]);
        cases.push(TimedCase::new(name, move || attend(args, &[depth, 1])));
    }
    for tokens in [[64, 1], [1, 256]] {
        cases.push(TimedCase::new(recurrent::delta_name(&tokens), move || delta(&tokens)));
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timed_case_has_its_name_before_it_is_made() {
        for part in ["linear q8_0 2048x2048 tokens 64", "attend", "delta"] {
            let cases: Vec<_> = timed().into_iter().filter(|case| case.name.contains(part)).collect();
            assert!(!cases.is_empty(), "{part}");
            for case in cases {
                assert_eq!(case.make().unwrap().name, case.name);
            }
        }
    }
}
