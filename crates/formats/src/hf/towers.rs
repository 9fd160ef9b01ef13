//! The tower of a folder whose model sees: what a GGUF `mmproj` file of the same model has.
//!
//! One line per tensor and family, as in `families`; `*` is the number of a layer.

mod preprocessor;
mod qwen;

use std::path::Path;

use indexmap::IndexMap;
use tern_quant::Dialect;

use super::config::Config;
use super::import::Import;
use super::matrix::Matrix;
use super::shards::Shards;
use super::{import, quantized};
use crate::{Access, Checkpoint, FolderError, FormatError, TensorError, Value};

/// The prefix of the keys of towers.
pub(crate) const KEYS: &str = "clip.vision";

/// The towers of one kind of folders.
struct Tower {
    /// The names in `architectures` of `config.json`.
    names: &'static [&'static str],
    /// `clip.projector_type`.
    projector: &'static str,
    /// Prefixes of its tensors.
    prefixes: &'static [&'static str],
    /// Tensors, without prefix, and their names in GGUF.
    tensors: &'static [(&'static str, &'static str)],
    /// Keys of `vision_config` and their names under [`KEYS`].
    keys: &'static [(&'static str, &'static str)],
    /// What tables cannot express; runs before tensors are renamed.
    prepare: fn(&mut Import, &Config) -> Result<(), FormatError>,
}

/// Every kind.
static ALL: &[&Tower] = &[&qwen::QWEN3_5];

/// The key of the configuration of a tower.
const CONFIG: &str = "vision_config";

/// The tower of a folder; `None` if its model does not see.
pub(crate) fn open(folder: &Path, access: Access) -> Result<Option<Checkpoint>, FormatError> {
    let Some(config) = Config::read(folder, "config.json")? else { return Ok(None) };
    let Some(vision) = config.object(CONFIG)? else { return Ok(None) };
    let names = config.optional_strings("architectures")?.unwrap_or_default();
    let name = *names.first().ok_or_else(|| config.missing("architectures"))?;
    let tower = ALL.iter().find(|tower| tower.names.contains(&name));
    let tower = tower.ok_or_else(|| FolderError::Tower(name.into()))?;
    let Shards { mut entries, files } = Shards::open(folder, access)?;
    let of_tower = |name: &str| tower.prefixes.iter().any(|prefix| name.starts_with(prefix));
    entries.retain(|name, _| of_tower(name) && !import::is_unused(name));
    if entries.is_empty() {
        return Ok(None); // the language model alone was saved
    }
    let weights = quantized::weights(entries, &config)?;
    let mut import = Import::new(config, KEYS, IndexMap::new())?;
    for (name, matrix) in weights {
        let short = tower.prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(&name);
        if matrix.shape.is_empty() || matrix.shape.contains(&0) {
            return Err(FormatError::Tensor(name, TensorError::ZeroDimension(matrix.shape)));
        }
        import.weights.insert(short.into(), matrix);
    }
    for (key, value) in [
        ("general.architecture", Value::String("clip".into())),
        ("general.type", Value::String("mmproj".into())),
        ("clip.has_vision_encoder", Value::Bool(true)),
        ("clip.projector_type", Value::String(tower.projector.into())),
    ] {
        import.metadata.insert(key, value);
    }
    for (from, to) in tower.keys {
        import.set(to, Value::Uint(vision.usize(from)?));
    }
    let width = import.config.usize("hidden_size")?;
    import.set("projection_dim", Value::Uint(width));
    preprocessor::import(folder, &mut import)?;
    (tower.prepare)(&mut import, &vision)?;
    rename(&mut import, tower)?;
    let Import { metadata, tensors, .. } = import;
    Ok(Some(Checkpoint { metadata, tensors, dialect: Dialect::Ggml, files }))
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
    let find = |name: &str| tower.tensors.iter().find(|(from, _)| *from == name).map(|(_, to)| *to);
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

    /// A weight, if it exists, under another name.
    #[expect(dead_code, reason = "for families whose tensors are optional")]
    fn move_optional(
        &mut self,
        from: &str,
        to: &str,
        change: fn(Matrix) -> Matrix,
    ) -> Result<(), FormatError> {
        match self.take_optional(from) {
            Some(matrix) => self.put(to.into(), change(matrix)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_number_of_their_layer() {
        let to = |name: &str| target(name, &qwen::QWEN3_5);
        assert_eq!(to("blocks.11.attn.qkv.bias").as_deref(), Some("v.blk.11.attn_qkv.bias"));
        assert_eq!(to("merger.linear_fc2.weight").as_deref(), Some("mm.2.weight"));
        assert_eq!(to("pos_embed.weight").as_deref(), Some("v.position_embd.weight"));
        assert_eq!(to("blocks.1.attn.other.weight"), None);
    }
}
