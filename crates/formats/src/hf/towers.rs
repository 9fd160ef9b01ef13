//! The tower of a folder whose model sees: what a GGUF `mmproj` file of the same model has.
//!
//! One line per tensor and family, as in `families`; `*` is the number of a layer.

mod gemma4;
mod internvl;
mod pixtral;
mod preprocessor;
mod qwen;
mod siglip;

use std::path::Path;

use indexmap::IndexMap;
use tern_quant::Dialect;

use super::config::Config;
use super::import::Import;
use super::shards::Shards;
use super::{import, quantized};
use preprocessor::Pixels;

use crate::{Access, Checkpoint, FolderError, FormatError, TensorError, Value};

/// The prefix of the keys of towers.
pub(crate) const KEYS: &str = "clip.vision";

/// The towers of one kind of folders.
struct Tower {
    /// The names in `architectures` of `config.json`.
    names: &'static [&'static str],
    /// `clip.projector_type`.
    projector: &'static str,
    /// Prefixes of its tensors, after `model.` if they begin with that, and what stands for them.
    prefixes: &'static [Prefix],
    /// Tensors, without prefix, and their names in GGUF.
    tensors: &'static [Tensors],
    /// Keys of `vision_config` and their names under [`KEYS`].
    keys: &'static [&'static [(&'static str, &'static str)]],
    /// What tables cannot express; runs before tensors are renamed.
    prepare: fn(&mut Import, &Config, &Pixels) -> Result<(), FormatError>,
}

/// A prefix and what stands for it.
type Prefix = (&'static str, &'static str);

/// Names of tensors, without `.weight` or `.bias` if they have either, and their names in GGUF.
type Tensors = &'static [(&'static str, &'static str)];

/// Every kind.
static ALL: &[&Tower] = &[
    &qwen::QWEN3_5,
    &qwen::QWEN2_5VL,
    &siglip::GEMMA3,
    &gemma4::GEMMA4,
    &siglip::IDEFICS3,
    &siglip::LFM2VL,
    &pixtral::MISTRAL3,
    &pixtral::PIXTRAL,
    &internvl::INTERNVL,
];

/// The key of the configuration of a tower.
const CONFIG: &str = "vision_config";

/// The tower of a folder; `None` if its model does not see.
pub(crate) fn open(folder: &Path, access: Access) -> Result<Option<Checkpoint>, FormatError> {
    let Some(config) = Config::read(folder, "config.json")? else { return Ok(None) };
    let Some(vision) = config.object(CONFIG)? else { return Ok(None) };
    let outer = config.outer();
    let names = outer.optional_strings("architectures")?.unwrap_or_default();
    let name = *names.first().ok_or_else(|| outer.missing("architectures"))?;
    let tower = ALL.iter().find(|tower| tower.names.contains(&name));
    let tower = tower.ok_or_else(|| FolderError::Tower(name.into()))?;
    let Shards { mut entries, files } = Shards::open(folder, access)?;
    entries.retain(|name, _| short_name(name, tower).is_some() && !import::is_unused(name));
    if entries.is_empty() {
        return Ok(None); // the language model alone was saved
    }
    let weights = quantized::weights(entries, &config)?;
    let mut import = Import::new(config, KEYS, IndexMap::new())?;
    for (name, matrix) in weights {
        let Some(short) = short_name(&name, tower) else { continue };
        if matrix.shape.contains(&0) {
            return Err(FormatError::Tensor(name, TensorError::ZeroDimension(matrix.shape)));
        }
        if import.weights.insert(short, matrix).is_some() {
            return Err(FormatError::Tensor(name, TensorError::Duplicate));
        }
    }
    for (key, value) in [
        ("general.architecture", Value::String("clip".into())),
        ("general.type", Value::String("mmproj".into())),
        ("clip.has_vision_encoder", Value::Bool(true)),
        ("clip.projector_type", Value::String(tower.projector.into())),
    ] {
        import.metadata.insert(key, value);
    }
    for (from, to) in tower.keys.iter().copied().flatten() {
        import.set(to, Value::Uint(vision.usize(from)?));
    }
    let width = import.config.usize("hidden_size")?;
    import.set("projection_dim", Value::Uint(width));
    let pixels = preprocessor::import(folder, &mut import)?;
    (tower.prepare)(&mut import, &vision, &pixels)?;
    rename(&mut import, tower)?;
    let Import { metadata, tensors, .. } = import;
    Ok(Some(Checkpoint { metadata, tensors, dialect: Dialect::Ggml, files }))
}

/// The head of SigLIP, which compares images with texts.
const UNUSED: &str = "head.";

/// The name of a tensor of a tower without its prefix; `None` for one of another part.
fn short_name(name: &str, tower: &Tower) -> Option<String> {
    let name = name.strip_prefix("model.").unwrap_or(name);
    let short =
        tower.prefixes.iter().find_map(|(prefix, to)| Some(format!("{to}{}", name.strip_prefix(prefix)?)));
    short.filter(|short| !short.starts_with(UNUSED))
}

/// Renames all weights that are left; refuses those without a rule.
fn rename(import: &mut Import, tower: &Tower) -> Result<(), FormatError> {
    for (name, matrix) in std::mem::take(&mut import.weights) {
        let Some(to) = target(&name, tower) else {
            let (place, changes_results) = (format!("a folder of {}", tower.names[0]), true);
            return Err(FolderError::UnexpectedTensor { name, place, changes_results }.into());
        };
        import.put(to, matrix)?;
    }
    Ok(())
}

/// The name of a tensor in GGUF files.
fn target(name: &str, tower: &Tower) -> Option<String> {
    let (mut plain, mut layer) = (String::new(), None);
    for part in name.split('.') {
        let number = part.parse::<u32>().ok().filter(|_| layer.is_none());
        plain = format!("{plain}{}{}", if plain.is_empty() { "" } else { "." }, number.map_or(part, |_| "*"));
        layer = layer.or(number);
    }
    let find = |name: &str| {
        tower.tensors.iter().copied().flatten().find(|(from, _)| *from == name).map(|(_, to)| *to)
    };
    let with_layer = |to: &str| layer.map_or(to.to_string(), |layer| to.replace('*', &layer.to_string()));
    if let Some(to) = find(name).or_else(|| find(&plain)) {
        return Some(with_layer(to));
    }
    let split =
        |name: &'_ str| name.rsplit_once('.').map(|(stem, kind)| (stem.to_string(), kind.to_string()));
    let found = |(stem, kind): (String, String)| {
        let known = kind == "weight" || kind == "bias";
        find(&stem).filter(|_| known).map(|to| format!("{}.{kind}", with_layer(to)))
    };
    // numbers in names are not always those of layers
    split(name).and_then(found).or_else(|| split(&plain).and_then(found))
}

impl Import {
    /// A convolution of pictures as it is in GGUF files: `[width, 3, patch, patch]`, once per slice of time.
    fn put_patches(&mut self, from: &str, patch: u64) -> Result<(), FormatError> {
        let weight = format!("{from}.weight");
        let matrix = self.take(&weight)?;
        let wrong = |found: &[u64]| import::shape_error(&weight, &[0, 3, patch, patch], found);
        let (width, times) = match matrix.shape[..] {
            [width, 3, p, q] if p == patch && q == patch => (width, 1),
            [width, 3, times @ 1..=2, p, q] if p == patch && q == patch => (width, times),
            _ => return Err(wrong(&matrix.shape)),
        };
        let cell =
            patch.checked_mul(patch).filter(|cell| *cell < 1 << 20).ok_or_else(|| wrong(&matrix.shape))?;
        if !matrix.is_float() {
            return Err(FolderError::no_floats(&weight, matrix.quant).into());
        }
        let matrix = matrix.reshaped(vec![width, 3 * times * cell]);
        for time in 0..times {
            let columns = (0..3 * cell).map(|i| ((i / cell * times + time) * cell + i % cell) as u32);
            let slice =
                if times == 1 { matrix.clone() } else { matrix.clone().gathered_columns(columns.collect()) };
            let name = if time == 0 { "v.patch_embd.weight" } else { "v.patch_embd.weight.1" };
            self.put(name.into(), slice.reshaped(vec![width, 3, patch, patch]))?;
        }
        if let Some(bias) = self.take_optional(&format!("{from}.bias")) {
            self.put("v.patch_embd.bias".into(), bias)?;
        }
        Ok(())
    }

    /// A linear on patches of row, column and channel, as the convolution that it is.
    fn put_flat_patches(&mut self, from: &str, patch: u64) -> Result<(), FormatError> {
        let (weight, order) = (format!("{from}.weight"), flat_order(patch)?);
        let matrix = self.take(&weight)?;
        let width = matrix.shape.first().copied().unwrap_or(0);
        if matrix.shape != [width, order.len() as u64] {
            return Err(import::shape_error(&weight, &[0, order.len() as u64], &matrix.shape));
        }
        if !matrix.is_float() {
            return Err(FolderError::no_floats(&weight, matrix.quant).into());
        }
        let matrix = matrix.gathered_columns(order).reshaped(vec![width, 3, patch, patch]);
        self.put("v.patch_embd.weight".into(), matrix)?;
        if let Some(bias) = self.take_optional(&format!("{from}.bias")) {
            self.put("v.patch_embd.bias".into(), bias)?;
        }
        Ok(())
    }

    /// The key of the function of the tower, one of these; refuses others.
    fn set_function(
        &mut self,
        vision: &Config,
        key: &str,
        known: &[(&str, &str)],
    ) -> Result<(), FormatError> {
        let function = vision.optional_str(key)?.unwrap_or(known[0].0);
        let Some((_, to)) = known.iter().find(|(name, _)| *name == function) else {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            return Err(vision.wrong(key, &names.join(" or ")));
        };
        self.metadata.insert(format!("clip.{to}"), Value::Bool(true));
        Ok(())
    }

    /// The epsilon of the norms.
    fn set_eps(&mut self, vision: &Config, key: &str, default: f64) -> Result<(), FormatError> {
        let eps = vision.optional_f64(key)?.unwrap_or(default);
        self.set("attention.layer_norm_epsilon", Value::Float(eps));
        Ok(())
    }
}

/// The columns of patches of row, column and channel, in the order of channel, row and column.
fn flat_order(patch: u64) -> Result<Vec<u32>, FormatError> {
    let cell = patch.checked_mul(patch).filter(|cell| *cell < 1 << 20);
    let cell = cell.ok_or_else(|| FolderError::tensor("patch_size", "below 1024", patch.to_string()))?;
    Ok((0..3 * cell).map(|i| (i % cell * 3 + i / cell) as u32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_those_of_any_version() {
        for name in ["model.vision_tower.encoder.x", "vision_tower.vision_model.encoder.x"] {
            assert_eq!(short_name(name, &siglip::GEMMA3).as_deref(), Some("encoder.x"));
        }
        let short = |name: &str| short_name(name, &siglip::GEMMA3);
        assert_eq!(short("multi_modal_projector.a").as_deref(), Some("projector.a"));
        assert_eq!((short("vision_tower.head.probe"), short("language_model.a")), (None, None));
    }

    #[test]
    fn names_have_the_number_of_their_layer() {
        let to = |name: &str| target(name, &qwen::QWEN3_5);
        assert_eq!(to("blocks.11.attn.qkv.bias").as_deref(), Some("v.blk.11.attn_qkv.bias"));
        assert_eq!(to("merger.linear_fc2.weight").as_deref(), Some("mm.2.weight"));
        assert_eq!(to("pos_embed.weight").as_deref(), Some("v.position_embd.weight"));
        assert_eq!(to("blocks.1.attn.other.weight"), None);
    }
}
