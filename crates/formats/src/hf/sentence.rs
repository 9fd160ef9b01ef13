//! The modules of sentence-transformers around a model: how its rows become one, and
//! the matrices that it is multiplied by.

use std::path::Path;

use serde_json::Value as Json;

use super::config::{Config, read_text};
use super::import::{Import, shape_error};
use super::matrix::Matrix;
use crate::{Access, FolderError, FormatError, Value, safetensors, shown};

/// Ways of pooling: the key of older folders, the name in newer ones, and the number in GGUF files.
const POOLING: [(&str, &str, u64); 3] = [
    ("pooling_mode_mean_tokens", "mean", 1),
    ("pooling_mode_cls_token", "cls", 2),
    ("pooling_mode_lasttoken", "lasttoken", 3),
];

/// Names of the matrices that the pooled row is multiplied by.
const DENSE: [&str; 2] = ["dense_2", "dense_3"];

/// Reads `modules.json` and the folders it names; a folder without it is a model alone.
pub(crate) fn import(folder: &Path, access: Access, import: &mut Import) -> Result<(), FormatError> {
    let file = "modules.json";
    let Some(text) = read_text(&folder.join(file))? else { return Ok(()) };
    let wrong = |why: String| FolderError::Module { file: file.into(), why };
    let modules: Vec<Json> =
        serde_json::from_str(&text).map_err(|e| wrong(format!("want a list of modules: {e}")))?;
    let mut dense = DENSE.iter();
    for module in &modules {
        let text = |key: &str| module.get(key).and_then(Json::as_str).unwrap_or_default();
        let (kind, path) = (text("type").rsplit('.').next().unwrap_or_default(), text("path"));
        if path.contains(['/', '\\']) || path == ".." {
            return Err(wrong(format!("`path`: want the name of a folder, file has {}", shown(path))).into());
        }
        match kind {
            "Transformer" | "Normalize" => {}
            "Pooling" => pooling(&folder.join(path), path, import)?,
            "Dense" => {
                let name =
                    dense.next().ok_or_else(|| wrong(format!("want at most {} of Dense", DENSE.len())))?;
                matrix(&folder.join(path), path, access, name, import)?;
            }
            other => return Err(wrong(format!("module {} is not supported", shown(other))).into()),
        }
    }
    Ok(())
}

/// The configuration of a module.
fn config(folder: &Path, path: &str) -> Result<Config, FormatError> {
    let missing = || FolderError::MissingFile(format!("{path}/config.json"));
    Ok(Config::read(folder, "config.json")?.ok_or_else(missing)?)
}

fn pooling(folder: &Path, path: &str, import: &mut Import) -> Result<(), FormatError> {
    let config = config(folder, path)?;
    let named = match config.get("pooling_mode") {
        Some(Json::Array(modes)) => {
            Some(modes.iter().filter_map(|mode| mode.as_str().map(String::from)).collect())
        }
        Some(mode) => mode.as_str().map(|mode| vec![mode.to_string()]),
        None => {
            let prefix = "pooling_mode_";
            let is_set =
                |(key, value): (&String, &Json)| key.starts_with(prefix) && value == &Json::Bool(true);
            let set = config.entries().filter(|entry| is_set(*entry)).map(|(key, _)| key.clone());
            Some(set.collect())
        }
    };
    let named = named.unwrap_or_default();
    let known = POOLING.iter().find(|(key, name, _)| named == [*key] || named == [*name]);
    let Some((_, _, number)) = known else {
        let why = format!("pooling {}: want one of mean, cls and lasttoken", shown(&named.join(", ")));
        return Err(FolderError::Module { file: format!("{}/config.json", shown(path)), why }.into());
    };
    import.set("pooling_type", Value::Uint(*number));
    Ok(())
}

/// A linear without an activation.
fn matrix(
    folder: &Path,
    path: &str,
    access: Access,
    name: &str,
    import: &mut Import,
) -> Result<(), FormatError> {
    let config = config(folder, path)?;
    // newer versions omit a residual that is not used
    if config.optional_bool("use_residual")? == Some(true) {
        return Err(config.wrong("use_residual", "false"));
    }
    let activation = config.optional_str("activation_function")?.unwrap_or("Tanh");
    if !activation.ends_with("Identity") {
        return Err(config.wrong("activation_function", "Identity"));
    }
    let (cols, rows) = (config.usize("in_features")?, config.usize("out_features")?);
    let file = folder.join("model.safetensors");
    if !file.is_file() {
        return Err(FolderError::MissingFile(format!("{path}/model.safetensors")).into());
    }
    let entries = safetensors::read(&access.bytes(&file)?).map_err(|e| e.at(&file))?;
    for entry in entries {
        let (part, want) = match entry.name.as_str() {
            "linear.weight" => ("weight", vec![rows, cols]),
            "linear.bias" => ("bias", vec![rows]),
            other => {
                let (name, place, changes_results) = (other.into(), path.into(), false);
                return Err(FolderError::UnexpectedTensor { name, place, changes_results }.into());
            }
        };
        if entry.shape != want {
            return Err(shape_error(&entry.name, &want, &entry.shape));
        }
        let weights = Matrix::of(&entry)
            .ok_or_else(|| FolderError::no_floats(format!("{path}/{}", entry.name), entry.dtype.name))?;
        import.put(format!("{name}.{part}"), weights)?;
    }
    if !import.tensors.contains_key(&format!("{name}.weight")) {
        return Err(FolderError::MissingTensor(format!("{path}/linear.weight")).into());
    }
    import.set(&format!("{name}_feat_in"), Value::Uint(cols));
    import.set(&format!("{name}_feat_out"), Value::Uint(rows));
    Ok(())
}
