//! Adapters of PEFT: `adapter_config.json`, and safetensors with the names of the base model's modules.

use std::path::Path;

use indexmap::IndexMap;
use serde_json::Value;

use super::config::Config;
use super::families;
use super::family::Fix;
use super::import::{LANGUAGE, layer_of};
use super::matrix::Matrix;
use super::renaming::{Target, paired_rows};
use crate::adapter::{LowRank, whole, wrong};
use crate::{Access, Adapter, FormatError, Metadata, safetensors, shown};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// What PEFT puts before the names of modules.
const PREFIX: &str = "base_model.model.";

/// Parts of a layer whose rows are arranged in other ways in GGUF files.
const RECURRENT: [&str; 3] = ["linear_attn.", "mixer.", "conv."];

/// Settings that change what an adapter computes, and the values with which they change nothing.
const UNSUPPORTED: [(&str, &[&str]); 10] = [
    ("use_dora", &["false"]),
    ("use_qalora", &["false"]),
    ("lora_bias", &["false"]),
    ("bias", &["\"none\""]),
    ("modules_to_save", &["[]"]),
    ("layer_replication", &["[]"]),
    ("target_parameters", &["[]"]),
    ("trainable_token_indices", &["[]", "{}"]),
    ("alora_invocation_tokens", &["[]"]),
    // others also change the weights of the base model
    ("init_lora_weights", &["true", "false", "\"gaussian\"", "\"orthogonal\"", "\"eva\""]),
];

/// The adapter of a folder, for a base model with these keys.
pub(crate) fn open(folder: &Path, access: Access, base: &Metadata) -> Result<Adapter, FormatError> {
    let Some(config) = Config::read(folder, CONFIG)? else {
        return wrong(format!("the folder has no {CONFIG}: want a GGUF adapter, or a folder of PEFT"));
    };
    let kind = config.optional_str("peft_type")?.unwrap_or("LORA");
    if kind != "LORA" {
        return wrong(format!("{CONFIG}: adapters of type {} are not supported, want LORA", shown(kind)));
    }
    for (key, harmless) in UNSUPPORTED {
        let value = config.get(key).map(Value::to_string);
        if let Some(value) = value.filter(|value| !harmless.contains(&value.as_str())) {
            return wrong(format!("{CONFIG}: `{key}` of {} is not supported", shown(&value)));
        }
    }
    let path = folder.join(WEIGHTS);
    if !path.is_file() {
        return wrong(format!("the folder has no {WEIGHTS}"));
    }
    let entries = safetensors::read(&access.bytes(&path)?)?;
    let mut halves: IndexMap<String, [Option<Matrix>; 2]> = IndexMap::new();
    for entry in &entries {
        let Some((module, half)) = module_of(&entry.name) else {
            return wrong(format!("tensor `{}` is not supported in an adapter", shown(&entry.name)));
        };
        let Some(matrix) = Matrix::of(entry) else {
            let (name, dtype) = (shown(&entry.name), entry.dtype.name);
            return wrong(format!("tensor `{name}`: want F32, F16 or BF16, file has {dtype}"));
        };
        if matrix.shape.len() != 2 || matrix.shape.contains(&0) {
            let (name, shape) = (shown(&entry.name), &matrix.shape);
            return wrong(format!("tensor `{name}`: want a matrix, file has {shape:?}"));
        }
        halves.entry(module).or_default()[half] = Some(matrix);
    }
    let scales = Scales::read(&config)?;
    let base = Base::of(base)?;
    let mut linears = IndexMap::new();
    for (module, [a, b]) in halves {
        let (Some(a), Some(b)) = (a, b) else {
            return wrong(format!(
                "module `{}`: want lora_A and lora_B, file has one of them",
                shown(&module)
            ));
        };
        let scale = scales.of(&module, a.rows());
        let (name, b) = base.arranged(&module, b)?;
        let [a, b] = [("lora_a", a), ("lora_b", b)].map(|(half, m)| m.into_tensor(format!("{name}.{half}")));
        if linears.contains_key(&name) {
            return wrong(format!("module `{}`: a second one for {name}", shown(&module)));
        }
        linears.insert(name.clone(), LowRank::new(&name, a, b, scale)?);
    }
    whole(linears)
}

/// The module of a tensor, and whether it is A (0) or B (1).
fn module_of(tensor: &str) -> Option<(String, usize)> {
    let name = tensor.strip_suffix(".weight")?;
    // older versions add the name that the adapter had in memory
    let stem = name.strip_suffix(".default").unwrap_or(name);
    let halves = [(".lora_A", 0), (".lora_B", 1)];
    let (module, half) = halves.iter().find_map(|(end, half)| Some((stem.strip_suffix(end)?, *half)))?;
    Some((module.strip_prefix(PREFIX).unwrap_or(module).to_string(), half))
}

/// The alpha of each module.
struct Scales {
    alpha: f64,
    /// By the end of the module's name; the first one that suits counts.
    alphas: IndexMap<String, f64>,
    /// Divided by the root of the rank instead of the rank.
    by_root: bool,
}

impl Scales {
    fn read(config: &Config) -> Result<Scales, FormatError> {
        let mut alphas = IndexMap::new();
        if let Some(pattern) = config.get("alpha_pattern") {
            let object = pattern.as_object().ok_or_else(|| config.wrong("alpha_pattern", "an object"))?;
            for (module, alpha) in object {
                let alpha = alpha.as_f64().ok_or_else(|| config.wrong("alpha_pattern", "numbers"))?;
                if module.contains(['*', '+', '?', '(', '[', '|', '\\', '^', '$']) {
                    let module = shown(module);
                    return wrong(format!(
                        "{CONFIG}: `alpha_pattern`: the pattern {module} is not supported"
                    ));
                }
                alphas.insert(module.clone(), alpha);
            }
        }
        let alpha = config.f64("lora_alpha")?;
        Ok(Scales { alpha, alphas, by_root: config.optional_bool("use_rslora")?.unwrap_or(false) })
    }

    fn of(&self, module: &str, rank: usize) -> f32 {
        let ends = module.match_indices('.').map(|(dot, _)| &module[dot + 1..]).chain([module]);
        let first = ends.filter_map(|end| self.alphas.get_full(end)).min_by_key(|(place, ..)| *place);
        let alpha = first.map_or(self.alpha, |(.., alpha)| *alpha);
        let rank = if self.by_root { (rank as f64).sqrt() } else { rank as f64 };
        (alpha / rank) as f32
    }
}

/// What an adapter's names and rows depend on.
struct Base<'a> {
    arch: &'a str,
    metadata: &'a Metadata,
}

impl<'a> Base<'a> {
    fn of(metadata: &'a Metadata) -> Result<Base<'a>, FormatError> {
        let arch = metadata.str("general.architecture").map_err(|e| FormatError::Adapter(e.to_string()))?;
        if families::ALL.iter().all(|family| family.arch != arch) {
            let arch = shown(arch);
            return wrong(format!("adapters of PEFT for `{arch}` models are not supported: use one in GGUF"));
        }
        Ok(Base { arch, metadata })
    }

    /// The weight of a module, and the rows of B in its order.
    fn arranged(&self, module: &str, b: Matrix) -> Result<(String, Matrix), FormatError> {
        let short = LANGUAGE.iter().find_map(|prefix| module.strip_prefix(prefix)).unwrap_or(module);
        let families = families::ALL.iter().filter(|family| family.arch == self.arch);
        let target = families.filter_map(|family| Target::of(&format!("{short}.weight"), family)).next();
        let (module, arch) = (shown(module), self.arch);
        let Some(Target { name, expert, fix }) = target else {
            return wrong(format!("module `{module}` is unknown in a `{arch}` model"));
        };
        if expert.is_some() {
            return wrong(format!("module `{module}`: adapters of experts are not supported"));
        }
        if layer_of(short).is_some_and(|(_, rest)| RECURRENT.iter().any(|part| rest.starts_with(part))) {
            return wrong(format!("module `{module}`: adapters of recurrent layers are not supported"));
        }
        let heads = match fix {
            Fix::Keep => return Ok((name, b)),
            Fix::QueryHeads => "attention.head_count",
            Fix::KeyHeads => "attention.head_count_kv",
            Fix::PlusOne | Fix::NegatedExp | Fix::Column => {
                return wrong(format!("module `{module}` is not a linear"));
            }
        };
        let key = |name: &str| self.metadata.optional_usize(&format!("{arch}.{name}"));
        let count =
            key(heads).and_then(|count| count.map_or_else(|| key("attention.head_count"), |n| Ok(Some(n))));
        let count = count.map_err(|e| FormatError::Adapter(e.to_string()))?.unwrap_or(0) as u64;
        let rows = b.rows() as u64;
        match paired_rows(rows, count) {
            Some(order) => Ok((name, b.gathered(order))),
            None => wrong(format!(
                "module `{module}` has {rows} rows: want {count} heads of an even number of rows"
            )),
        }
    }
}
