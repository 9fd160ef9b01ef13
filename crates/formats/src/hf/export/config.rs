//! `config.json` from the keys of a GGUF file.

use serde_json::{Map, Value as Json, json};

use super::super::family::{COMMON_KEYS, Family};
use super::super::rope::{Llama3, llama3_divisors, magnitude};
use super::FolderExport;
use crate::{Checkpoint, ExportError, FormatError, Metadata, TensorExport, Value};

/// Layers of the largest Gemma 2 and 3, whose scores have a different scale.
const LARGEST_GEMMA: [u64; 2] = [46, 62];

pub(super) fn config(
    export: &FolderExport<'_>,
    family: &Family,
    model_type: &str,
) -> Result<Map<String, Json>, FormatError> {
    let (model, metadata) = (export.model, &export.model.metadata);
    let keys = Keys { metadata, arch: family.arch };
    let mut config = Map::new();
    config.insert("architectures".into(), json!([family.names[0]]));
    config.insert("model_type".into(), json!(model_type));
    for key in family.keys.iter().copied().chain([COMMON_KEYS]).flatten() {
        if let Some(value) = keys.get(key.to).and_then(number) {
            config.entry(key.from).or_insert(value);
        }
    }
    let embedding = model.tensors.get("token_embd.weight");
    let embedding =
        embedding.ok_or_else(|| ExportError::Tensor("token_embd.weight".into(), TensorExport::Missing))?;
    config.insert("vocab_size".into(), json!(embedding.rows()));
    let has = |name: &str| model.tensors.contains_key(name);
    config.insert("tie_word_embeddings".into(), json!(!has("output.weight")));
    config.insert("attention_bias".into(), json!(has("blk.0.attn_q.bias")));
    config.insert("attention_out_bias".into(), json!(has("blk.0.attn_output.bias")));
    config.insert("mlp_bias".into(), json!(has("blk.0.ffn_up.bias")));
    let floats =
        export.floats.unwrap_or(if embedding.quant.is_float() { embedding.quant } else { &tern_quant::F32 });
    let dtype = match floats.name {
        "F16" => "float16",
        "BF16" => "bfloat16",
        _ => "float32",
    };
    config.insert("dtype".into(), json!(dtype));
    config.insert("torch_dtype".into(), json!(dtype)); // its older name
    for role in ["bos", "eos", "pad"] {
        let key = if role == "pad" { "padding" } else { role };
        let id = metadata.optional_usize(&format!("tokenizer.ggml.{key}_token_id")).ok().flatten();
        config.insert(format!("{role}_token_id"), json!(id)); // null: classes have default ids otherwise
    }
    if let Some(window) = keys.uint("attention.sliding_window") {
        config.insert("sliding_window".into(), json!(window));
    }
    if family.arch.starts_with("gemma") {
        let heads = keys.uint("attention.head_count").unwrap_or(1).max(1);
        let largest = keys.uint("block_count").is_some_and(|layers| LARGEST_GEMMA.contains(&layers));
        let scalar =
            if largest { keys.uint("embedding_length").map(|width| width / heads) } else { head_dim(&keys) };
        config.insert("query_pre_attn_scalar".into(), json!(scalar));
    }
    if family.arch == "qwen3moe" {
        config.entry("norm_topk_prob").or_insert(json!(true)); // files without the key: the graph divides
    }
    rope(model, &keys, &mut config)?;
    Ok(config)
}

/// The keys under an architecture's prefix.
struct Keys<'a> {
    metadata: &'a Metadata,
    arch: &'a str,
}

impl Keys<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.metadata.get(&format!("{}.{name}", self.arch))
    }

    fn uint(&self, name: &str) -> Option<u64> {
        self.metadata.optional_usize(&format!("{}.{name}", self.arch)).ok().flatten().map(|n| n as u64)
    }

    fn float(&self, name: &str) -> Option<f64> {
        self.metadata.optional_f32(&format!("{}.{name}", self.arch)).ok().flatten().map(plain)
    }
}

/// The shortest decimal number that is this f32: 1e-6, not 9.999999974752427e-7.
fn plain(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

fn number(value: &Value) -> Option<Json> {
    Some(match value {
        Value::Uint(n) => json!(n),
        Value::Int(n) => json!(n),
        Value::Float(x) => json!(plain(*x as f32)),
        Value::Bool(b) => json!(b),
        Value::String(text) => json!(text),
        _ => return None, // lists, one number per layer: the comparison names them
    })
}

/// Columns of a head.
fn head_dim(keys: &Keys<'_>) -> Option<u64> {
    let of_width = || Some(keys.uint("embedding_length")? / keys.uint("attention.head_count")?.max(1));
    keys.uint("attention.key_length").or_else(of_width)
}

/// Rotations, in the keys that all versions of `transformers` read.
fn rope(model: &Checkpoint, keys: &Keys<'_>, config: &mut Map<String, Json>) -> Result<(), FormatError> {
    let theta = keys.float("rope.freq_base");
    if let Some(theta) = theta {
        config.insert("rope_theta".into(), json!(theta));
    }
    if let Some(theta) = keys.float("rope.freq_base_swa") {
        config.insert("rope_local_base_freq".into(), json!(theta));
    }
    let (head, rotated) = (head_dim(keys), keys.uint("rope.dimension_count"));
    if let Some((head, rotated)) = head.zip(rotated).filter(|(head, rotated)| head != rotated) {
        config.insert("partial_rotary_factor".into(), json!(rotated as f64 / head as f64));
    }
    let original = keys.uint("rope.scaling.original_context_length");
    let factor = keys.float("rope.scaling.factor");
    let context = keys.uint("context_length").unwrap_or(0);
    let attention = keys.float("rope.scaling.attn_factor");
    let kind = keys.get("rope.scaling.type").and_then(|kind| match kind {
        Value::String(kind) => Some(kind.as_str()),
        _ => None,
    });
    let mut scaling = match (kind, factor) {
        (Some("linear"), Some(factor)) => json!({ "rope_type": "linear", "factor": factor }),
        (Some("yarn"), Some(factor)) => {
            let mut yarn = json!({
                "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original.unwrap_or(context),
            });
            for (from, to) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
                if let Some(beta) = keys.float(&format!("rope.scaling.{from}")) {
                    yarn[to] = json!(beta);
                }
            }
            if let Some(times) = attention {
                yarn["attention_factor"] = json!(times * magnitude(factor, 1.0));
            }
            yarn
        }
        _ => Json::Null,
    };
    if let Some(divisors) = floats(model, "rope_freqs.weight") {
        scaling = llama3(&divisors, theta.unwrap_or(10_000.0), context)?;
    }
    if let Some((long, short)) =
        floats(model, "rope_factors_long.weight").zip(floats(model, "rope_factors_short.weight"))
    {
        let original = original.unwrap_or(context);
        config.insert("original_max_position_embeddings".into(), json!(original));
        let [long, short] = [long, short].map(|list| list.into_iter().map(plain).collect::<Vec<f64>>());
        scaling = json!({
            "rope_type": "longrope", "long_factor": long, "short_factor": short, "factor": context as f64 / original as f64,
            "original_max_position_embeddings": original,
        });
        if let Some(attention) = attention {
            scaling["attention_factor"] = json!(attention);
        }
    }
    if !scaling.is_null() {
        config.insert("rope_scaling".into(), scaling);
    }
    Ok(())
}

fn floats(model: &Checkpoint, name: &str) -> Option<Vec<f32>> {
    let tensor = model.tensors.get(name)?;
    let mut values = vec![0.0; tensor.rows() * tensor.cols()];
    tensor.quant.decode(&tensor.data(), &[], &mut values);
    Some(values)
}

/// The parameters of Llama 3 that give these divisors: released models have the same two bounds,
/// and differ in the length.
fn llama3(divisors: &[f32], base: f64, context: u64) -> Result<Json, FormatError> {
    let factor = divisors.iter().copied().fold(1.0f32, f32::max);
    let dims = 2 * divisors.len() as u64;
    let lengths = (5..24).map(|power| 1u64 << power).chain([context]);
    for original in lengths {
        let parameters = Llama3 { factor: plain(factor), low: 1.0, high: 4.0, original: original as f64 };
        let made = llama3_divisors(&parameters, base, dims);
        if made.iter().zip(divisors).all(|(made, want)| (made / want - 1.0).abs() < 1e-5) {
            return Ok(json!({
                "rope_type": "llama3", "factor": plain(factor), "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": original,
            }));
        }
    }
    Err(ExportError::Tensor("rope_freqs.weight".into(), TensorExport::NoParameters).into())
}
