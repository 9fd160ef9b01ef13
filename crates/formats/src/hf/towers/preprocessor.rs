//! How pictures become pixels: `preprocessor_config.json`, or the image processor of `processor_config.json`.

use std::path::Path;

use super::super::config::Config;
use super::super::import::Import;
use crate::{FormatError, Value};

/// Files that may have it, with the key of the object in them.
const FILES: [(&str, Option<&str>); 2] =
    [("preprocessor_config.json", None), ("processor_config.json", Some("image_processor"))];

/// What a folder says about pixels.
pub(super) type Pixels = Config;

/// Reads it and sets the constants of pixels.
pub(super) fn import(folder: &Path, import: &mut Import) -> Result<Pixels, FormatError> {
    let config = read(folder)?.unwrap_or_default();
    for key in ["image_mean", "image_std"] {
        if let Some(values) = config.optional_f64s(key)? {
            if values.len() != 3 {
                return Err(config.wrong(key, "three numbers"));
            }
            import.set(key, Value::Floats(values.into_iter().map(|v| v as f32).collect()));
        }
    }
    Ok(config)
}

impl Config {
    /// A number of the object `size`.
    pub(super) fn size(&self, key: &str) -> Result<Option<u64>, FormatError> {
        self.object("size")?.unwrap_or_default().optional_usize(key)
    }

    /// A number, or two that are equal.
    pub(super) fn square(&self, key: &str) -> Result<u64, FormatError> {
        match self.get(key).and_then(|value| value.as_array()) {
            None => self.usize(key),
            Some(_) => match self.optional_usizes(key)?.as_deref() {
                Some([side, other]) if side == other => Ok(*side),
                _ => Err(self.wrong(key, "one number, or two that are equal")),
            },
        }
    }
}

fn read(folder: &Path) -> Result<Option<Config>, FormatError> {
    for (file, key) in FILES {
        let Some(config) = Config::read(folder, file)? else { continue };
        match key {
            None => return Ok(Some(config)),
            Some(key) => {
                if let Some(inner) = config.object(key)? {
                    return Ok(Some(inner));
                }
            }
        }
    }
    Ok(None)
}
