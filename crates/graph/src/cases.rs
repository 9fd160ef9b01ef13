//! Op cases: small graphs with random weights, for every op, format and odd shape.
//!
//! Backends are tested and timed on the same list: run a case on a backend and on the reference, and compare.

mod batches;
mod unlisted;

use tern_quant::{FieldType, Quant};

pub use unlisted::UNLISTED;

use crate::{
    Activation, Attention, Backend, BackendError, Bindings, Buffer, Graph, GraphError, HostTensor, KvCells,
    KvSpec, NormKind, PageTable, Random, Reference, Reserve, RopeStyle, RopeTable, Slice, Step, Val,
    all_finite,
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
        let pages =
            self.steps.iter().flat_map(|s| &s.slices).flat_map(|s| s.pages.iter()).max().map_or(0, |p| p + 1);
        let kv = KvSpec {
            layers: self.graph.kv.clone(),
            cells: self.kv_cells,
            pages: pages as usize,
            page_len: PAGE_LEN,
        };
        let kv = Some(backend.reserve(&Reserve::Kv(kv))?);
        let max_tokens = self.steps.iter().map(|s| s.tokens.len()).max().unwrap_or(1);
        let bindings = Bindings { weights: &weights, kv, max_tokens, max_outputs: max_tokens };
        let program = backend.compile(&self.graph, &bindings)?;
        backend.finish_compiling(program)?;
        Ok(Prepared { case: self, backend, program })
    }

    /// `|out - ref| / |ref|` on a backend.
    pub fn error(&self, backend: &mut dyn Backend) -> Result<f32, BackendError> {
        Ok(self.distance(&self.run(backend)?, &self.run(&mut Reference::new())?))
    }

    /// Relative distance of this case's results. Rows with a value that is not finite are not compared further, but both
    /// sides must have one: the distance is infinite otherwise.
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
    let mut data = vec![];
    if quant.encode(&rng.normals(rows * cols, scale), &mut data).is_err() {
        // the only runnable format without an encoder keeps one scale behind its 2-bit codes
        data = (0..rows * cols / 4)
            .map(|_| (0..4).fold(0, |b, i| b | (rng.below(3) as u8) << (2 * i)))
            .collect();
        data.extend(scale.to_le_bytes());
        data.resize(rows * cols / 4 + quant.tail, 0);
    }
    HostTensor::new(name, quant, [rows, cols], data.into())
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

/// The same for a step of `tokens`: a backend may round the activations of a few tokens to halves of ten bits.
fn step_tolerance(quant: &Quant, tokens: usize) -> f32 {
    if (2..=4).contains(&tokens) { tolerance(quant).max(8e-4) } else { tolerance(quant) }
}

/// `x * w^T` in one format.
pub fn linear(quant: &'static Quant, rows: usize, cols: usize, tokens: usize) -> Result<Case, GraphError> {
    let rng = &mut Random::new(1);
    let name = format!("linear {} {rows}x{cols} tokens {tokens}", quant.name.to_lowercase());
    let mut case = Case::new(name, step_tolerance(quant, tokens));
    let x = case.input("x", cols, rng)?;
    let w = case.matrix(random_tensor("w", quant, rows, cols, rng)?)?;
    case.graph.linear(x, w)?;
    case.sequence(&[tokens], rng);
    Ok(case)
}

/// `x * v^T + x * w^T`: one value that two formats read.
pub fn two_linears(
    quants: [&'static Quant; 2],
    rows: usize,
    cols: usize,
    tokens: usize,
) -> Result<Case, GraphError> {
    let rng = &mut Random::new(5);
    let [first, second] = quants.map(|q| q.name.to_lowercase());
    let name = format!("linears {first} and {second} {rows}x{cols} tokens {tokens}");
    // the shared value has the bits of the finer format
    let tolerances = quants.map(|quant| step_tolerance(quant, tokens));
    let mut case = Case::new(name, tolerances[0].min(tolerances[1]));
    let x = case.input("x", cols, rng)?;
    let v = case.matrix(random_tensor("v", quants[0], rows, cols, rng)?)?;
    let w = case.matrix(random_tensor("w", quants[1], rows, cols, rng)?)?;
    let (a, b) = (case.graph.linear(x, v)?, case.graph.linear(x, w)?);
    case.graph.add(a, b)?;
    case.sequence(&[tokens], rng);
    Ok(case)
}

/// Attention of one sequence, in steps of `lens` tokens.
pub fn attend(args: Attention, lens: &[usize]) -> Result<Case, GraphError> {
    let rng = &mut Random::new(2);
    let (w, c) = (args.window.unwrap_or(0), args.softcap.unwrap_or(0.0));
    let name = format!(
        "attend {}/{} heads x {} window {w} softcap {c} steps {lens:?}",
        args.heads, args.kv_heads, args.head_dim
    );
    let mut case = Case::new(name, 2e-3); // keys and values are kept in f16
    let q = case.input("q", args.heads * args.head_dim, rng)?;
    let k = case.input("k", args.kv_heads * args.head_dim, rng)?;
    let v = case.input("v", args.kv_heads * args.v_dim, rng)?;
    case.graph.attend(q, k, v, args)?;
    case.sequence(lens, rng);
    case.bytes += lens.iter().sum::<usize>() * case.graph.kv[0].bytes_per_token(case.kv_cells);
    Ok(case)
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
        cases.push(embed(quant)?);
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
    for other in [&tern_quant::Q8_0, &tern_quant::Q2_0] {
        for tokens in [1, 3, 21] {
            cases.push(two_linears([&tern_quant::Q1_0, other], 35, 512, tokens)?);
        }
    }
    let plain = Attention {
        heads: 4,
        kv_heads: 4,
        head_dim: 64,
        v_dim: 64,
        scale: 0.125,
        window: None,
        softcap: None,
    };
    for (args, lens) in [
        (plain, vec![1, 1, 1]),
        (plain, vec![40]),
        (Attention { kv_heads: 1, ..plain }, vec![5, 33, 1]),
        (Attention { heads: 6, kv_heads: 2, head_dim: 80, v_dim: 48, ..plain }, vec![17, 1, 9]),
        (Attention { window: Some(7), ..plain }, vec![20, 1, 30]),
        (Attention { softcap: Some(5.0), scale: 1.0, ..plain }, vec![50, 1]),
        (Attention { heads: 9, kv_heads: 3, ..plain }, vec![1030, 4]), // long enough to be split, in odd groups
    ] {
        cases.push(attend(args, &lens)?);
    }
    for (kv_cells, tolerance) in [(KvCells::Int8, 1e-2), (KvCells::Fp8, 6e-2)] {
        for (args, lens) in [
            (plain, vec![1, 40, 1]),
            (Attention { heads: 8, kv_heads: 2, head_dim: 128, v_dim: 128, ..plain }, vec![300, 1, 1]),
        ] {
            let case = attend(args, &lens)?;
            cases.push(Case { kv_cells, tolerance, name: format!("{} {kv_cells:?}", case.name), ..case });
        }
    }
    cases.extend(small_ops()?);
    cases.push(two_sequences()?);
    cases.extend(batches::batches()?);
    cases.extend(not_finite()?);
    Ok(cases)
}

/// Larger shapes worth timing: every format for one token and for many, and attention at two depths.
pub fn timed() -> Result<Vec<Case>, GraphError> {
    let mut cases = vec![];
    for quant in tern_quant::ALL.iter().filter(|q| q.is_runnable()) {
        for tokens in [1, 64] {
            cases.push(linear(quant, 2048, 2048, tokens)?);
        }
    }
    let args = Attention {
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        v_dim: 128,
        scale: 0.088,
        window: None,
        softcap: None,
    };
    for depth in [512, 4096] {
        cases.push(attend(args, &[depth, 1])?);
    }
    Ok(cases)
}

fn embed(quant: &'static Quant) -> Result<Case, GraphError> {
    let rng = &mut Random::new(3);
    let mut case = Case::new(format!("embed {}", quant.name.to_lowercase()), 1e-6);
    let table = case.matrix(random_tensor("table", quant, INPUTS, 256, rng)?)?;
    case.graph.embed(table, 1.5);
    case.sequence(&[7], rng);
    Ok(case)
}

fn small_ops() -> Result<Vec<Case>, GraphError> {
    let rng = &mut Random::new(4);
    let mut cases = vec![];
    let mut small = |name: &str, tolerance: f32, width: usize, build: Build| -> Result<(), GraphError> {
        let mut case = Case::new(name.into(), tolerance);
        let x = case.input("x", width, rng)?;
        let y = case.input("y", width, rng)?;
        build(&mut case, x, y, rng)?;
        case.sequence(&[5, 1], rng);
        cases.push(case);
        Ok(())
    };
    type Build = fn(&mut Case, Val, Val, &mut Random) -> Result<Val, GraphError>;
    small("norm rms", 1e-5, 200, |c, x, _, rng| {
        let w = c.matrix(HostTensor::from_f32("w", 1, 200, &rng.normals(200, 1.0)))?;
        c.graph.norm(x, w, 1e-6)
    })?;
    small("norm rms of heads", 1e-5, 192, |c, x, _, rng| {
        let w = c.matrix(HostTensor::from_f32("w", 1, 64, &rng.normals(64, 1.0)))?;
        c.graph.norm(x, w, 1e-5)
    })?;
    small("norm layer", 1e-5, 96, |c, x, _, rng| {
        let w = c.matrix(HostTensor::from_f32("w", 1, 96, &rng.normals(96, 1.0)))?;
        let b = c.matrix(HostTensor::from_f32("b", 1, 96, &rng.normals(96, 1.0)))?;
        c.graph.norm_of_kind(x, w, Some(b), 1e-5, NormKind::Layer)
    })?;
    small("linear with scale and bias", 1e-4, 64, |c, x, _, rng| {
        let w = c.matrix(random_tensor("w", &tern_quant::Q8_0, 33, 64, rng)?)?;
        let s = c.matrix(HostTensor::from_f32("s", 1, 1, &[0.37]))?;
        let b = c.matrix(HostTensor::from_f32("b", 1, 33, &rng.normals(33, 1.0)))?;
        c.graph.linear_with(x, w, Some(s), Some(b))
    })?;
    small("rope halves", 1e-5, 128, |c, x, _, _| {
        let table = c.graph.rope_table(rope_table(32, 1.0));
        c.graph.rope(x, 64, RopeStyle::Halves, table)
    })?;
    small("rope interleaved, part of the head", 1e-5, 160, |c, x, _, _| {
        let table = c.graph.rope_table(rope_table(24, 1.2));
        c.graph.rope(x, 80, RopeStyle::Interleaved, table)
    })?;
    small("gated silu", 1e-5, 100, |c, x, y, _| c.graph.gated(x, y, Activation::Silu))?;
    small("gated gelu", 1e-5, 100, |c, x, y, _| c.graph.gated(x, y, Activation::GeluTanh))?;
    small("gated relu2", 1e-5, 100, |c, x, y, _| c.graph.gated(x, y, Activation::Relu2))?;
    small("add", 1e-6, 100, |c, x, y, _| c.graph.add(x, y))?;
    small("scale", 1e-6, 100, |c, x, _, _| Ok(c.graph.scale(x, -0.3)))?;
    small("softcap", 1e-5, 100, |c, x, _, _| Ok(c.graph.softcap(x, 2.0)))?;
    small("columns", 1e-6, 100, |c, x, _, _| c.graph.columns(x, 13, 50))?;
    small("outputs", 1e-6, 100, |c, x, _, _| Ok(c.graph.outputs(x)))?;
    Ok(cases)
}

fn rope_table(pairs: usize, magnitude: f32) -> RopeTable {
    let freqs = (0..pairs).map(|i| 10_000f32.powf(-(i as f32) / pairs as f32)).collect();
    RopeTable { freqs, magnitude }
}

/// Two sequences in one step, at different positions, with only some rows requested.
fn two_sequences() -> Result<Case, GraphError> {
    let rng = &mut Random::new(5);
    let mut case = Case::new("two sequences, rows chosen".into(), 2e-3);
    let args =
        Attention { heads: 2, kv_heads: 1, head_dim: 32, v_dim: 32, scale: 0.2, window: None, softcap: None };
    let q = case.input("q", 64, rng)?;
    let k = case.input("k", 32, rng)?;
    let v = case.input("v", 32, rng)?;
    let out = case.graph.attend(q, k, v, args)?;
    case.graph.outputs(out);
    let ids = |n: usize, rng: &mut Random| (0..n).map(|_| rng.below(INPUTS) as u32).collect::<Vec<u32>>();
    let (a, b) = (PageTable::from([2, 0]), PageTable::from([1, 3]));
    case.steps.push(Step::all_logits(&ids(18, rng), 0, a.clone()));
    let both = Step {
        tokens: ids(20, rng),
        slices: vec![Slice { len: 1, position: 18, pages: a }, Slice { len: 19, position: 0, pages: b }],
        outputs: [19, 0, 4].map(|row| crate::Output { row, sample: None, logits: true }).to_vec(),
        carried: vec![],
    };
    case.steps.push(both);
    Ok(case)
}

/// Input rows with a value that is not finite: their results must not be finite either, and all others must be.
const BAD: [(usize, f32); 4] = [(3, f32::NAN), (9, f32::INFINITY), (14, f32::NEG_INFINITY), (20, f32::NAN)];

/// Sets one value in each of these rows of a float table, each in another column.
fn spoil(table: &mut HostTensor, rows: &[(usize, f32)]) {
    let mut values = table.to_f32();
    for (i, (row, value)) in rows.iter().enumerate() {
        values[row * table.cols() + (37 * i + 5) % table.cols()] = *value;
    }
    *table = HostTensor::from_f32(table.name(), table.rows(), table.cols(), &values);
}

/// NaN and infinities in activations, in the scales of weights, and in keys and values.
fn not_finite() -> Result<Vec<Case>, GraphError> {
    let rng = &mut Random::new(6);
    let mut cases = vec![];
    let all: Vec<u32> = (0..21).collect();
    for quant in tern_quant::ALL.iter().filter(|q| q.is_runnable()) {
        let name = quant.name.to_lowercase();
        let mut case = linear(quant, 35, 512, 1)?;
        case.name = format!("linear {name} of values that are not finite");
        spoil(&mut case.weights[0], &BAD);
        let one = |id: u32| Step::all_logits(&[id], 0, vec![0, 1]);
        case.steps = vec![one(3), one(4), one(9), one(14), Step::all_logits(&all, 0, vec![0, 1])];
        cases.push(case);
        for (what, half, float) in [("NaN", 0x7E00u16, f32::NAN), ("infinite", 0x7C00, f32::INFINITY)] {
            let Some((at, bytes)) = scale_of(quant, half, float) else { continue };
            for tokens in [1, 21] {
                let mut case = linear(quant, 35, 512, tokens)?;
                case.name = format!("linear {name} with a scale that is {what}, tokens {tokens}");
                let w = &case.weights[1];
                let mut data = w.data().to_vec();
                data[at..at + bytes.len()].copy_from_slice(&bytes);
                case.weights[1] = HostTensor::new(w.name(), quant, [w.rows(), w.cols()], data.into())?;
                cases.push(case);
            }
        }
    }
    let args =
        Attention { heads: 4, kv_heads: 2, head_dim: 64, v_dim: 64, scale: 0.1, window: None, softcap: None };
    for (name, table, softcap) in
        [("queries", 0, None), ("keys", 1, None), ("values", 2, None), ("keys", 1, Some(5.0))]
    {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut case = attend(Attention { softcap, ..args }, &[1])?;
            let cap = if softcap.is_some() { ", with a soft cap" } else { "" };
            case.name = format!("attend to {name} that are {bad}{cap}");
            spoil(&mut case.weights[table], &[(3, bad)]);
            // two sequences, one of which sees the bad row late, and then a third one on its pages
            let (first, other) = (PageTable::from([0, 2]), PageTable::from([1, 3]));
            let ids =
                |n: usize, rng: &mut Random| (0..n).map(|_| 4 + rng.below(60) as u32).collect::<Vec<_>>();
            case.steps = vec![
                Step::all_logits(&ids(18, rng), 0, first.clone()),
                Step::all_logits(&ids(5, rng), 0, other.clone()),
            ];
            for (i, id) in [6, 3, 7, 8].into_iter().enumerate() {
                case.steps.push(Step {
                    tokens: vec![id, 5],
                    slices: vec![
                        Slice { len: 1, position: 18 + i, pages: first.clone() },
                        Slice { len: 1, position: 5 + i, pages: other.clone() },
                    ],
                    ..Step::all_logits(&[id, 5], 0, [])
                });
            }
            let mut many = ids(14, rng);
            many[9] = 3;
            case.steps.push(Step::all_logits(&many, 22, vec![0, 2, 4]));
            for (len, position) in [(3, 0), (1, 3), (12, 4), (1, 16), (1, 17)] {
                case.steps.push(Step::all_logits(&ids(len, rng), position, vec![2, 0]));
            }
            cases.push(case);
        }
    }
    Ok(cases)
}

/// Offset and bytes of the first float in a weight's third block, or of the scale behind all blocks.
fn scale_of(quant: &Quant, half: u16, float: f32) -> Option<(usize, Vec<u8>)> {
    if quant.tail > 0 {
        return Some((35 * 512 / quant.block_len * quant.block_bytes(), float.to_le_bytes().to_vec()));
    }
    let mut at = 2 * quant.block_bytes();
    for field in quant.fields {
        match field.ty {
            FieldType::F16 => return Some((at, half.to_le_bytes().to_vec())),
            FieldType::BF16 => return Some((at, float.to_bits().to_le_bytes()[2..].to_vec())),
            FieldType::F32 => return Some((at, float.to_le_bytes().to_vec())),
            _ => at += field.bytes(),
        }
    }
    None
}
