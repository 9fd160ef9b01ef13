//! Synthetic models: a shape filled with well-scaled random weights, the same on every machine.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;

use tern_formats::{FormatError, Metadata, Value, gguf};
use tern_graph::{HostTensor, Random, Weight, WeightError};
use tern_quant::{Dialect, Quant};

use crate::{Model, ModelError, Shape, Source, Synthetic};

/// Weights that are drawn together at least: blocks of floats are short.
const DRAWN: usize = 32;

/// Weights in a pool; larger tensors are drawn from it block by block, which is fast and random enough.
const POOL: usize = 1 << 22;

/// Matrices whose results are added to the residual stream.
const ADDED: &[&str] = &[
    "attn_output.weight",
    "ffn_down.weight",
    "ffn_down_exps.weight",
    "ffn_down_shexp.weight",
    "ffn_latent_up.weight",
    "ssm_out.weight",
    "out_proj.weight",
];

/// A shape and the format of its matrices.
#[derive(Debug)]
pub struct Synth {
    /// The model's graph and sizes.
    pub model: Model,
    /// The metadata of its file, without a tokenizer.
    pub metadata: Metadata,
    quant: &'static Quant,
    /// Tensors whose values are part of the graph.
    constants: Vec<HostTensor>,
    synthetic: &'static Synthetic,
    pools: HashMap<(&'static str, u32), Vec<u8>>,
}

impl Synth {
    /// `bonsai-8b:q1_0`: a shape and a format.
    pub fn parse(spec: &str) -> Result<(Shape, &'static Quant), ModelError> {
        let Some((shape, format)) = spec.split_once(':') else {
            return Err(ModelError::SyntheticName(spec.into()));
        };
        let Some(shape) = Shape::by_name(shape) else { return Err(ModelError::UnknownShape(shape.into())) };
        match Synth::formats().find(|q| q.name.eq_ignore_ascii_case(format)) {
            Some(quant) => Ok((shape.clone(), quant)),
            None => Err(ModelError::UnknownFormat(format.into())),
        }
    }

    /// The formats of random matrices: all that can be run except those with a tail.
    pub fn formats() -> impl Iterator<Item = &'static Quant> {
        tern_quant::ALL.iter().copied().filter(|q| q.is_runnable() && q.tail == 0)
    }

    /// A model of that shape for sequences of `context` tokens.
    pub fn new(shape: &Shape, quant: &'static Quant, context: Option<usize>) -> Result<Synth, ModelError> {
        let metadata = shape.metadata();
        let model = Model::build(&metadata, shape, context)?;
        let constant = |name: &str| {
            let values = shape.values(name)?;
            Some(HostTensor::from_f32(name, 1, values.len(), &values))
        };
        let constants = model.constants().into_iter().filter_map(constant).collect();
        let synthetic = shape.synthetic();
        Ok(Synth { model, metadata, quant, constants, synthetic, pools: HashMap::new() })
    }

    /// The format of one weight: vectors stay F32, and rows that do not divide into blocks get a finer
    /// format. Files with rotated matrices have BF16 for those that are never rotated.
    fn format_of(&self, w: &Weight) -> &'static Quant {
        let candidates = [self.quant, &tern_quant::Q8_0, &tern_quant::F16];
        let fits = |q: &&'static Quant| w.cols.is_multiple_of(q.block_len);
        let is_unrotated = ["ssm_alpha.weight", "ssm_beta.weight"].iter().any(|part| w.name.ends_with(part));
        if is_vector(w) || is_float(w) {
            &tern_quant::F32
        } else if self.synthetic.rotated.is_some() && is_unrotated {
            &tern_quant::BF16
        } else {
            candidates.into_iter().find(fits).unwrap_or(&tern_quant::F32)
        }
    }

    /// The bytes of one weight.
    pub fn tensor(&mut self, w: &Weight) -> Result<HostTensor, ModelError> {
        let quant = self.format_of(w);
        let seed = w
            .name
            .bytes()
            .fold(0xCBF2_9CE4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01B3));
        let mut rng = Random::new(seed);
        if is_vector(w) || w.name.ends_with(".bias") {
            let mean = self.synthetic.mean(&w.name);
            let centre = if w.name.ends_with("bias") { 0.0 } else { 1.0 };
            let values = rng.normals(w.rows * w.cols, 0.1);
            let values: Vec<f32> = values.iter().map(|x| (x + centre) * mean).collect();
            return Ok(HostTensor::from_f32(&w.name, w.rows, w.cols, &values));
        }
        let deviation = self.deviation(w);
        let data = if w.rows * w.cols <= POOL {
            drawn(&w.name, quant, w.rows * w.cols, deviation, &mut rng)?
        } else {
            let bytes = w.rows * w.cols / quant.block_len * quant.block_bytes();
            let run = DRAWN.div_ceil(quant.block_len) * quant.block_bytes();
            let pool = self.pool(&w.name, quant, deviation)?;
            let mut data = Vec::with_capacity(bytes);
            while data.len() < bytes {
                let at = rng.below(pool.len() / run) * run;
                data.extend_from_slice(&pool[at..at + run.min(bytes - data.len())]);
            }
            data
        };
        Ok(HostTensor::new(&w.name, quant, [w.rows, w.cols], data.into())?)
    }

    /// Deviation that keeps activations near 1: what is added to the residual stream shrinks with depth.
    fn deviation(&self, w: &Weight) -> f32 {
        let layers = self.model.config.layers as f32;
        let gain = match w.name.as_str() {
            n if ADDED.iter().any(|part| n.ends_with(part)) => 1.0 / (2.0 * layers).sqrt(),
            "token_embd.weight" | "output.weight" => self.synthetic.embedding_gain,
            _ => 1.0,
        };
        gain / (w.cols as f32).sqrt()
    }

    fn pool(&mut self, name: &str, quant: &'static Quant, deviation: f32) -> Result<&[u8], ModelError> {
        let key = (quant.name, deviation.to_bits());
        if let Entry::Vacant(pool) = self.pools.entry(key) {
            let rng = &mut Random::new(u64::from(deviation.to_bits()));
            pool.insert(drawn(name, quant, POOL, deviation, rng)?);
        }
        Ok(&self.pools[&key])
    }

    /// All weights, in the graph's order.
    pub fn tensors(&mut self) -> Result<Vec<HostTensor>, ModelError> {
        let weights = self.model.graph.weights.clone();
        weights.iter().map(|w| self.tensor(w)).collect()
    }

    /// Writes the model as a GGUF file; `progress` gets the bytes written and the total.
    pub fn write(
        &mut self,
        tokenizer: &Metadata,
        out: &mut dyn io::Write,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<u64, FormatError> {
        let mut metadata = self.metadata.clone();
        for (key, value) in tokenizer.iter().filter(|(k, _)| k.starts_with("tokenizer.")) {
            metadata.insert(key, value.clone());
        }
        if self.quant.dialect == Dialect::OxiBonsai {
            // its id has other meanings too, which this key distinguishes
            metadata.insert("general.quantization_version", Value::String(self.quant.name.into()));
        }
        let weights = self.model.graph.weights.clone();
        let mut writer = gguf::Writer::new(metadata);
        for w in &weights {
            let dims = match (w.rows, w.experts) {
                (1, _) => vec![w.cols],
                (rows, 1) => vec![w.cols, rows],
                (rows, experts) => vec![w.cols, rows / experts, experts],
            };
            let dims: Vec<u64> = dims.into_iter().map(|n| n as u64).collect();
            writer.declare(&w.name, self.format_of(w), &dims)?;
        }
        for t in &self.constants {
            writer.declare(t.name(), t.quant(), &[t.cols() as u64])?;
        }
        let size = |q: &Quant, w: &Weight| q.tensor_bytes((w.rows * w.cols) as u64).unwrap_or(0);
        let constants = self.constants.iter().map(|t| t.data().len() as u64).sum::<u64>();
        let total = constants + weights.iter().map(|w| size(self.format_of(w), w)).sum::<u64>();
        let mut done = 0;
        writer.write_to(out, |index, out| {
            let tensor = match weights.get(index) {
                Some(weight) => self.tensor(weight).map_err(io::Error::other)?,
                None => self.constants[index - weights.len()].clone(),
            };
            out.write_all(tensor.data())?;
            done += tensor.data().len() as u64;
            progress(done, total);
            Ok(())
        })
    }
}

/// Routers, convolutions, the biases of experts and tables that are added to embeddings
/// are floats in all files.
fn is_float(w: &Weight) -> bool {
    const FLOATS: &[&str] = &[
        ".bias",
        "ffn_gate_inp.weight",
        "ffn_gate_inp_shexp.weight",
        "conv1d.weight",
        "conv.weight",
        "token_types.weight",
        "position_embd.weight",
    ];
    FLOATS.iter().any(|part| w.name.ends_with(part))
}

/// Vectors, as norms are; the gate of shared experts is a matrix of one row.
fn is_vector(w: &Weight) -> bool {
    (w.rows == 1 || w.cols == 1 || w.name.ends_with("ssm_norm.weight"))
        && !w.name.ends_with("ffn_gate_inp_shexp.weight")
}

/// Random weights, encoded or, if the format has no encoder, random bytes.
fn drawn(
    name: &str,
    quant: &'static Quant,
    weights: usize,
    deviation: f32,
    rng: &mut Random,
) -> Result<Vec<u8>, ModelError> {
    if quant.encode.is_none() {
        return Ok(quant.random_tensor(weights, deviation, || rng.below(256) as u8));
    }
    let mut bytes = vec![];
    let encoded = quant.encode(&rng.normals(weights, deviation), &mut bytes);
    encoded.map_err(|e| WeightError::NotMade { name: name.into(), reason: e.to_string() })?;
    Ok(bytes)
}

/// A byte-level vocabulary of `size` tokens for shapes, which have none: 256 bytes, a few merges, fillers.
pub fn plain_tokenizer(size: usize) -> Metadata {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 256u32;
    let byte_char = |b: u8| {
        if printable(b) {
            return char::from(b);
        }
        next += 1;
        char::from_u32(next - 1).unwrap_or('?')
    };
    let mut tokens: Vec<String> = (0..=255u8).map(byte_char).map(String::from).collect();
    let merges = ["t h", "i n", "a n", "th e", "e r"];
    tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
    tokens.push("<|endoftext|>".into());
    let end = tokens.len() - 1;
    tokens.extend((tokens.len()..size).map(|i| format!("<filler_{i}>")));
    let kinds = (0..tokens.len()).map(|i| if i == end { 3 } else { 1 }).collect();
    let mut m = Metadata::default();
    m.insert("tokenizer.ggml.model", Value::String("gpt2".into()));
    m.insert("tokenizer.ggml.pre", Value::String("gpt-2".into()));
    m.insert("tokenizer.ggml.tokens", Value::Strings(tokens));
    m.insert("tokenizer.ggml.token_type", Value::Ints(kinds));
    m.insert("tokenizer.ggml.merges", Value::Strings(merges.map(String::from).to_vec()));
    m.insert("tokenizer.ggml.bos_token_id", Value::Uint(end as u64));
    m.insert("tokenizer.ggml.eos_token_id", Value::Uint(end as u64));
    m.insert("tokenizer.ggml.add_bos_token", Value::Bool(false));
    m
}
