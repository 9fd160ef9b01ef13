//! Partial sampling parameters, as set by a request, flags, or the file of a model.

use std::path::Path;

use serde_json::Value;
use tern_engine::{Sampling, SamplingError};
use tern_formats::{Metadata, MetadataError};
use tern_graph::{InFiles, PARAMETERS, Parameter, Range};
use tern_hub::Source;

use crate::Error;

/// More bytes than a settings file has.
const MAX_CONFIG: u64 = 1 << 20;

/// The row of the temperature, the first one.
pub(crate) const TEMPERATURE: &Parameter = &PARAMETERS[0];

/// Sampling parameters of which any may be unset: a value per row of [`PARAMETERS`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PartialSampling([Option<f64>; PARAMETERS.len()]);

impl PartialSampling {
    /// What is used if neither a request nor the model's file sets a parameter: llama.cpp's defaults.
    pub const USUAL: PartialSampling = {
        let (mut values, mut i) = ([None; PARAMETERS.len()], 0);
        while i < PARAMETERS.len() {
            if let Some(files) = PARAMETERS[i].in_files {
                values[i] = Some(files.usual);
            }
            i += 1;
        }
        PartialSampling(values)
    };

    /// The value of a parameter, if it is set.
    pub fn get(&self, parameter: &Parameter) -> Option<f64> {
        self.rows().find(|(row, _)| row.name == parameter.name).and_then(|(_, value)| value)
    }

    /// These, with another value of a parameter.
    #[must_use]
    pub fn with(mut self, parameter: &Parameter, value: f64) -> PartialSampling {
        if let Some(at) = PARAMETERS.iter().position(|row| row.name == parameter.name) {
            self.0[at] = Some(value);
        }
        self
    }

    /// These, with values by the names of parameters; an unknown name or a value
    /// outside its range is refused.
    ///
    /// ```
    /// use tern::PartialSampling;
    /// let sampling = PartialSampling::default().with_named([("temperature", 0.7), ("min_p", 0.1)])?;
    /// assert!(sampling.with_named([("min_p", 1.5)]).is_err());
    /// # Ok::<(), tern::Error>(())
    /// ```
    pub fn with_named<'n>(
        self,
        values: impl IntoIterator<Item = (&'n str, f64)>,
    ) -> Result<PartialSampling, Error> {
        values.into_iter().try_fold(self, |sampling, (name, value)| {
            let parameter =
                Parameter::named(name).ok_or_else(|| Error::UnknownParameter { name: name.to_string() })?;
            parameter.check(value)?;
            Ok(sampling.with(parameter, value))
        })
    }

    /// Every parameter, with its value if it is set.
    pub fn rows(&self) -> impl Iterator<Item = (&'static Parameter, Option<f64>)> {
        PARAMETERS.iter().zip(self.0)
    }

    /// These, and the other's if these are unset.
    #[must_use]
    pub fn or(mut self, other: PartialSampling) -> PartialSampling {
        self.0.iter_mut().zip(other.0).for_each(|(value, other)| *value = value.or(other));
        self
    }

    /// All parameters: those that are set, over `base`.
    pub fn over(self, mut base: Sampling) -> Sampling {
        for (parameter, value) in self.rows() {
            if let Some(value) = value {
                (parameter.set)(&mut base, value);
            }
        }
        base
    }

    /// Refuses a value outside its range.
    pub fn check(&self) -> Result<(), SamplingError> {
        self.rows().try_for_each(|(parameter, value)| value.map_or(Ok(()), |value| parameter.check(value)))
    }

    /// What a model recommends: the keys of its file, then `generation_config.json` if `name` is a folder.
    pub fn of_model(name: &str, metadata: &Metadata) -> Result<PartialSampling, Error> {
        let invalid = |reason: String| Error::Recommended { name: name.to_string(), reason };
        let beside = match tern_hub::local(name)? {
            Some(Source::Path(path)) => of_config(&path.join("generation_config.json")).map_err(invalid)?,
            _ => PartialSampling::default(),
        };
        let recommended = of_metadata(metadata)?.or(beside);
        recommended.check().map_err(|e| invalid(e.to_string()))?;
        Ok(recommended)
    }
}

/// The keys that converters write into a GGUF file.
fn of_metadata(metadata: &Metadata) -> Result<PartialSampling, MetadataError> {
    let mut recommended = PartialSampling::default();
    for parameter in PARAMETERS {
        let Some(InFiles { gguf, .. }) = parameter.in_files else { continue };
        if let Some(value) = metadata.optional_f32(&format!("general.sampling.{gguf}"))? {
            recommended = recommended.with(parameter, of_file(parameter, value));
        }
    }
    Ok(recommended)
}

/// A value of a file. Whole numbers are cut off, and a negative `top_k` is all tokens.
fn of_file(parameter: &Parameter, value: f32) -> f64 {
    match parameter.range {
        Range::Integer { low, .. } => f64::from(value.trunc()).max(low as f64),
        Range::Number { .. } => value.into(),
    }
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
    let mut recommended = PartialSampling::default();
    for parameter in PARAMETERS {
        let Some(InFiles { config: key, .. }) = parameter.in_files else { continue };
        if let Some(value) = config[key].as_f64() {
            recommended = recommended.with(parameter, of_file(parameter, value as f32));
        }
    }
    match config["do_sample"] == false {
        true => Ok(recommended.with(TEMPERATURE, 0.0)),
        false => Ok(recommended),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parameters that are set, as they are stored.
    fn set(sampling: &PartialSampling) -> Vec<(&'static str, f32)> {
        let value =
            |(parameter, value): (&'static Parameter, Option<f64>)| Some((parameter.name, value? as f32));
        sampling.rows().filter_map(value).collect()
    }

    #[test]
    fn names_and_values_are_checked() {
        let with = |values: &[(&'static str, f64)]| {
            PartialSampling::default().with_named(values.iter().copied()).map_err(|e| e.to_string())
        };
        let both = with(&[("dry_base", 2.0), ("typical_p", 0.5)]).unwrap();
        assert_eq!(set(&both), [("typical_p", 0.5), ("dry_base", 2.0)]);
        assert_eq!(both.get(TEMPERATURE), None);
        assert_eq!(with(&[("temperature", 2.5)]).unwrap_err(), "temperature: want 0 to 2, got 2.5");
        assert!(with(&[("heat", 1.0)]).unwrap_err().starts_with("unknown sampling parameter heat"));
    }

    #[test]
    fn what_a_file_recommends_goes_before_what_is_usual() {
        let mut metadata = Metadata::default();
        metadata.insert("general.sampling.temp", tern_formats::Value::Float(0.6));
        metadata.insert("general.sampling.top_k", tern_formats::Value::Int(-1));
        let recommended = PartialSampling::of_model("stories", &metadata).unwrap();
        assert_eq!(set(&recommended), [("temperature", 0.6), ("top_k", -1.0)]);
        let all = recommended.or(PartialSampling::USUAL).over(Sampling::default());
        assert_eq!((all.temperature, all.top_k, all.top_p, all.min_p), (0.6, 0, 0.95, 0.05));
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
        let text = r#"{"do_sample": true, "temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05}"#;
        let want = [("temperature", 0.7), ("top_k", 20.0), ("repeat_penalty", 1.05)];
        assert_eq!(set(&recommended(text).unwrap()), want);
        let greedy = recommended(r#"{"do_sample": false, "temperature": 0.7}"#).unwrap();
        assert_eq!(set(&greedy), [("temperature", 0.0)]);
        assert_eq!(recommended("{}").unwrap(), PartialSampling::default());
        assert!(recommended("{").is_err());
    }
}
