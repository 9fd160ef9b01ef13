//! How pictures become pixels: `preprocessor_config.json`, or the image processor of `processor_config.json`.

use std::path::Path;

use super::super::config::Config;
use super::super::import::Import;
use crate::{FormatError, Value};

/// Files that may have it, with the key of the object in them.
const FILES: [(&str, Option<&str>); 2] =
    [("preprocessor_config.json", None), ("processor_config.json", Some("image_processor"))];

/// Sets the keys of pixels that the files of a folder have.
pub(super) fn import(folder: &Path, import: &mut Import) -> Result<(), FormatError> {
    let Some(config) = read(folder)? else { return Ok(()) };
    for (from, to) in [("image_mean", "image_mean"), ("image_std", "image_std")] {
        if let Some(values) = config.optional_f64s(from)? {
            if values.len() != 3 {
                return Err(config.wrong(from, "three numbers"));
            }
            import.set(to, Value::Floats(values.into_iter().map(|v| v as f32).collect()));
        }
    }
    // the sizes of Qwen are areas, despite their names
    let size = config.object("size")?.unwrap_or_default();
    for (names, to) in [
        (["shortest_edge", "min_pixels"], "image_min_pixels"),
        (["longest_edge", "max_pixels"], "image_max_pixels"),
    ] {
        let value = match config.optional_usize(names[1])? {
            Some(pixels) => Some(pixels),
            None => size.optional_usize(names[0])?,
        };
        if let Some(pixels) = value {
            import.set(to, Value::Uint(pixels));
        }
    }
    Ok(())
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
