//! How tokens are chosen: by the flags, else by what the model's file recommends, else by what is usual.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tern_engine::Sampling;
use tern_formats::{Metadata, MetadataError};
use tern_hub::Source;

use crate::args::{SamplingArgs, ServeArgs};
use crate::error::{CliError, CliResult};

/// What `run` and `chat` do where neither a flag nor the file says anything: what llama.cpp does.
pub(crate) const USUAL: Advice = Advice {
    temperature: Some(0.8),
    top_k: Some(40),
    top_p: Some(0.95),
    min_p: Some(0.05),
    repetition: Some(1.0),
};

/// More than a settings file has.
const MOST_BYTES: u64 = 1 << 20;

/// Sampling parameters as far as somebody gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Advice {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition: Option<f32>,
}

impl Advice {
    /// These, and the other's where these say nothing.
    pub(crate) fn or(self, other: Advice) -> Advice {
        Advice {
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            repetition: self.repetition.or(other.repetition),
        }
    }

    /// As the engine takes them; what is not given is off.
    pub(crate) fn sampling(self) -> Sampling {
        let off = Sampling::default();
        Sampling {
            temperature: self.temperature.unwrap_or(off.temperature),
            top_k: self.top_k.unwrap_or(off.top_k),
            top_p: self.top_p.unwrap_or(off.top_p),
            min_p: self.min_p.unwrap_or(off.min_p),
            repetition: self.repetition.unwrap_or(off.repetition),
            ..off
        }
    }

    /// What a model recommends: the keys of its file, then `generation_config.json` if `model` is a folder.
    pub(crate) fn of_model(model: &str, metadata: &Metadata) -> CliResult<Advice> {
        let beside = match tern_hub::local(model)? {
            Some(Source::Path(path)) => of_config(&path.join("generation_config.json"))?,
            _ => Advice::default(),
        };
        let advice = of_metadata(metadata)?.or(beside);
        let refused = |e| CliError::said(format!("what {model} recommends for sampling: {e}"));
        advice.sampling().check().map_err(refused)?;
        Ok(advice)
    }
}

/// The keys that converters write into a GGUF file.
fn of_metadata(metadata: &Metadata) -> Result<Advice, MetadataError> {
    let number = |name: &str| metadata.optional_f32(&format!("general.sampling.{name}"));
    Ok(Advice {
        temperature: number("temp")?,
        top_k: number("top_k")?.map(|k| k as usize), // what is negative is 0: all tokens
        top_p: number("top_p")?,
        min_p: number("min_p")?,
        repetition: number("penalty_repeat")?,
    })
}

/// A `generation_config.json` as the `transformers` library writes it; nothing where there is none.
fn of_config(path: &Path) -> CliResult<Advice> {
    if !path.is_file() {
        return Ok(Advice::default());
    }
    let wrong = |e: &dyn std::fmt::Display| CliError::said(format!("{}: {e}", path.display()));
    if path.metadata().map_err(|e| wrong(&e))?.len() > MOST_BYTES {
        return Err(wrong(&format_args!("larger than {MOST_BYTES} bytes, the most that is read")));
    }
    let text = std::fs::read(path).map_err(|e| wrong(&e))?;
    let config: Value = serde_json::from_slice(&text).map_err(|e| wrong(&e))?;
    let number = |name: &str| config[name].as_f64().map(|x| x as f32);
    Ok(Advice {
        temperature: if config["do_sample"] == false { Some(0.0) } else { number("temperature") },
        top_k: number("top_k").map(|k| k as usize),
        top_p: number("top_p"),
        min_p: number("min_p"),
        repetition: number("repetition_penalty"),
    })
}

impl SamplingArgs {
    /// The flags, as far as they were given.
    fn advice(&self) -> Advice {
        let SamplingArgs { temp: temperature, top_k, top_p, min_p, repeat_penalty: repetition, .. } = *self;
        Advice { temperature, top_k, top_p, min_p, repetition }
    }

    /// Refuses what no model could use; what depends on the vocabulary is left to the engine.
    pub(crate) fn check(&self) -> CliResult<()> {
        Ok(self.sampling(Advice::default(), None).check()?)
    }

    /// The flags, then the model's own `advice`, then what is usual.
    pub(crate) fn sampling(&self, advice: Advice, logprobs: Option<usize>) -> Sampling {
        Sampling {
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
            bias: self.logit_bias.clone(),
            seed: self.seed.and_then(|seed| seed.0).unwrap_or_else(random_seed),
            logprobs,
            ..self.advice().or(advice).or(USUAL).sampling()
        }
    }
}

impl ServeArgs {
    /// The flags, as far as they were given.
    pub(crate) fn advice(&self) -> Advice {
        let ServeArgs { temp: temperature, top_k, top_p, min_p, repeat_penalty: repetition, .. } = *self;
        Advice { temperature, top_k, top_p, min_p, repetition }
    }
}

/// A number that is different every time.
fn random_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use tern_formats::Value;

    use super::*;

    #[test]
    fn a_file_recommends_and_what_it_omits_is_usual() {
        let mut metadata = Metadata::default();
        metadata.insert("general.sampling.temp", Value::Float(0.6));
        metadata.insert("general.sampling.top_k", Value::Int(-1));
        let advice = Advice::of_model("stories", &metadata).unwrap();
        assert_eq!(advice, Advice { temperature: Some(0.6), top_k: Some(0), ..Advice::default() });
        let both = advice.or(USUAL);
        assert_eq!((both.temperature, both.top_k, both.top_p), (Some(0.6), Some(0), Some(0.95)));
        metadata.insert("general.sampling.top_p", Value::Float(7.0));
        let error = Advice::of_model("stories", &metadata).unwrap_err().to_string();
        assert_eq!(error, "what stories recommends for sampling: top_p: want 0 to 1, got 7");
        metadata.insert("general.sampling.top_p", Value::String("high".into()));
        assert!(Advice::of_model("stories", &metadata).is_err());
    }

    #[test]
    fn a_folder_may_have_a_generation_config() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().to_str().unwrap();
        let advice = |text: &str| {
            std::fs::write(folder.path().join("generation_config.json"), text).unwrap();
            Advice::of_model(name, &Metadata::default())
        };
        let want =
            Advice { temperature: Some(0.7), top_k: Some(20), repetition: Some(1.05), ..Advice::default() };
        let text = r#"{"do_sample": true, "temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05}"#;
        assert_eq!(advice(text).unwrap(), want);
        assert_eq!(advice(r#"{"do_sample": false, "temperature": 0.7}"#).unwrap().temperature, Some(0.0));
        assert_eq!(advice("{}").unwrap(), Advice::default());
        assert!(advice("{").is_err());
    }
}
