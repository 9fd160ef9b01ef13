//! Partial sampling parameters, as set by a request, flags, or the file of a model.

use std::path::Path;

use serde_json::Value;
use tern_engine::Sampling;
use tern_formats::{Metadata, MetadataError};
use tern_hub::Source;

use crate::Error;

/// More bytes than a settings file has.
const MAX_CONFIG: u64 = 1 << 20;

/// Sampling parameters of which any may be unset.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PartialSampling {
    /// Randomness; 0 always takes the most probable token.
    pub temperature: Option<f32>,
    /// Sample from this many most probable tokens; 0 is all.
    pub top_k: Option<usize>,
    /// Sample from the most probable tokens that together have this probability.
    pub top_p: Option<f32>,
    /// Sample from tokens at least this many times as probable as the most probable one.
    pub min_p: Option<f32>,
    /// Penalty on tokens of the prompt or the text; 1 is off.
    pub repetition: Option<f32>,
}

impl PartialSampling {
    /// What is used if neither a request nor the model's file sets a parameter: llama.cpp's defaults.
    pub const USUAL: PartialSampling = PartialSampling {
        temperature: Some(0.8),
        top_k: Some(40),
        top_p: Some(0.95),
        min_p: Some(0.05),
        repetition: Some(1.0),
    };

    /// These, and the other's if these are unset.
    #[must_use]
    pub fn or(self, other: PartialSampling) -> PartialSampling {
        PartialSampling {
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            repetition: self.repetition.or(other.repetition),
        }
    }

    /// All parameters: those that are set, over `base`.
    pub fn over(self, base: Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition: self.repetition.unwrap_or(base.repetition),
            ..base
        }
    }

    /// What a model recommends: the keys of its file, then `generation_config.json` if `name` is a folder.
    pub fn of_model(name: &str, metadata: &Metadata) -> Result<PartialSampling, Error> {
        let invalid = |reason: String| Error::Recommended { name: name.to_string(), reason };
        let beside = match tern_hub::local(name)? {
            Some(Source::Path(path)) => of_config(&path.join("generation_config.json")).map_err(invalid)?,
            _ => PartialSampling::default(),
        };
        let recommended = of_metadata(metadata)?.or(beside);
        recommended.over(Sampling::default()).check().map_err(|e| invalid(e.to_string()))?;
        Ok(recommended)
    }
}

/// The keys that converters write into a GGUF file.
fn of_metadata(metadata: &Metadata) -> Result<PartialSampling, MetadataError> {
    let number = |name: &str| metadata.optional_f32(&format!("general.sampling.{name}"));
    Ok(PartialSampling {
        temperature: number("temp")?,
        top_k: number("top_k")?.map(|k| k as usize), // a negative number becomes 0: all tokens
        top_p: number("top_p")?,
        min_p: number("min_p")?,
        repetition: number("penalty_repeat")?,
    })
}

/// A `generation_config.json` as the `transformers` library writes it; nothing is set if it is missing.
fn of_config(path: &Path) -> Result<PartialSampling, String> {
    if !path.is_file() {
        return Ok(PartialSampling::default());
    }
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let bytes = path.metadata().map_err(|e| failed(&e))?.len();
    if bytes > MAX_CONFIG {
        return Err(failed(&format_args!("{bytes} bytes: at most {MAX_CONFIG} are read")));
    }
    let text = std::fs::read(path).map_err(|e| failed(&e))?;
    let config: Value = serde_json::from_slice(&text).map_err(|e| failed(&e))?;
    let number = |name: &str| config[name].as_f64().map(|x| x as f32);
    Ok(PartialSampling {
        temperature: if config["do_sample"] == false { Some(0.0) } else { number("temperature") },
        top_k: number("top_k").map(|k| k as usize),
        top_p: number("top_p"),
        min_p: number("min_p"),
        repetition: number("repetition_penalty"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_recommends_goes_before_what_is_usual() {
        let mut metadata = Metadata::default();
        metadata.insert("general.sampling.temp", tern_formats::Value::Float(0.6));
        metadata.insert("general.sampling.top_k", tern_formats::Value::Int(-1));
        let recommended = PartialSampling::of_model("stories", &metadata).unwrap();
        let want = PartialSampling { temperature: Some(0.6), top_k: Some(0), ..PartialSampling::default() };
        assert_eq!(recommended, want);
        let both = recommended.or(PartialSampling::USUAL);
        assert_eq!((both.temperature, both.top_k, both.top_p), (Some(0.6), Some(0), Some(0.95)));
        metadata.insert("general.sampling.top_p", tern_formats::Value::Float(7.0));
        let error = PartialSampling::of_model("stories", &metadata).unwrap_err().to_string();
        assert!(error.starts_with("recommended sampling parameters of stories: top_p: "), "{error}");
        metadata.insert("general.sampling.top_p", tern_formats::Value::String("high".into()));
        assert!(PartialSampling::of_model("stories", &metadata).is_err());
    }

    #[test]
    fn a_folder_may_have_a_generation_config() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().to_str().unwrap();
        let recommended = |text: &str| {
            std::fs::write(folder.path().join("generation_config.json"), text).unwrap();
            PartialSampling::of_model(name, &Metadata::default())
        };
        let want = PartialSampling {
            temperature: Some(0.7),
            top_k: Some(20),
            repetition: Some(1.05),
            ..PartialSampling::default()
        };
        let text = r#"{"do_sample": true, "temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05}"#;
        assert_eq!(recommended(text).unwrap(), want);
        let greedy = recommended(r#"{"do_sample": false, "temperature": 0.7}"#).unwrap();
        assert_eq!(greedy.temperature, Some(0.0));
        assert_eq!(recommended("{}").unwrap(), PartialSampling::default());
        assert!(recommended("{").is_err());
    }
}
