//! Positions: `rope_parameters` of new configurations, or `rope_theta` and `rope_scaling` of older ones.

use super::config::Config;
use super::import::Import;
use super::matrix::Matrix;
use crate::{FormatError, Value};

/// More rotated columns of a head than any model has.
const MAX_ROTATED: u64 = 1 << 14;

/// Types of layers that have different rotations.
const FULL: &str = "full_attention";
const LOCAL: &str = "sliding_attention";

impl Import {
    /// Sets the keys, and adds the tensors, of rotations.
    pub(crate) fn set_rope(&mut self) -> Result<(), FormatError> {
        if self.uint("attention.head_count").ok() == Some(0) {
            return Ok(()); // no attention
        }
        let parameters = self.config.object("rope_parameters")?;
        let (scaling, local) = match &parameters {
            Some(all) if all.get(FULL).is_some() => (all.object(FULL)?, all.object(LOCAL)?),
            Some(_) => (parameters.clone(), None),
            None => (self.config.object("rope_scaling")?, None),
        };
        let theta = match scaling.as_ref().map(|s| s.optional_f64("rope_theta")).transpose()?.flatten() {
            Some(theta) => Some(theta),
            None => self.config.optional_f64("rope_theta")?,
        };
        if let Some(theta) = theta {
            self.set("rope.freq_base", Value::Float(theta));
        }
        let local_theta = match local {
            Some(local) => local.optional_f64("rope_theta")?,
            None => self.config.optional_f64("rope_local_base_freq")?,
        };
        if let Some(theta) = local_theta {
            self.set("rope.freq_base_swa", Value::Float(theta));
        }
        if self.metadata.get(&format!("{}.rope.dimension_count", self.arch)).is_none() {
            let rotated = self.rotated_columns(scaling.as_ref())?;
            self.set("rope.dimension_count", Value::Uint(rotated));
        }
        if let Some(scaling) = scaling {
            self.set_scaling(&scaling)?;
        }
        Ok(())
    }

    /// Columns of a head that are rotated.
    pub(super) fn rotated_columns(&self, scaling: Option<&Config>) -> Result<u64, FormatError> {
        let inner = scaling.map(|s| s.optional_f64("partial_rotary_factor")).transpose()?.flatten();
        let factor = match inner {
            Some(factor) => Some(factor),
            None => self.config.optional_f64("partial_rotary_factor")?,
        };
        let rotated = (self.head_dim()? as f64 * factor.unwrap_or(1.0)) as u64;
        match rotated <= MAX_ROTATED {
            true => Ok(rotated),
            false => Err(self.config.wrong("head_dim", &format!("at most {MAX_ROTATED} rotated columns"))),
        }
    }

    fn set_scaling(&mut self, scaling: &Config) -> Result<(), FormatError> {
        let kind = match scaling.optional_str("rope_type")? {
            Some(kind) => Some(kind),
            None => scaling.optional_str("type")?,
        };
        let original = match scaling.optional_usize("original_max_position_embeddings")? {
            Some(length) => Some(length),
            None => self.config.optional_usize("original_max_position_embeddings")?,
        };
        match kind {
            None | Some("default" | "mrope") => Ok(()),
            Some("linear") => {
                self.set("rope.scaling.type", Value::String("linear".into()));
                self.set("rope.scaling.factor", Value::Float(scaling.f64("factor")?));
                Ok(())
            }
            Some("llama3") => {
                let original = original.ok_or_else(|| scaling.missing("original_max_position_embeddings"))?;
                let base = self.base()?;
                let parameters = Llama3 {
                    factor: scaling.f64("factor")?,
                    low: scaling.f64("low_freq_factor")?,
                    high: scaling.f64("high_freq_factor")?,
                    original: original as f64,
                };
                let divisors = llama3_divisors(&parameters, base, self.uint("rope.dimension_count")?);
                self.put("rope_freqs.weight".into(), Matrix::vector(divisors))
            }
            // a tensor of the family says which pairs
            Some("proportional") if self.arch == "gemma4" => Ok(()),
            Some("yarn") => self.set_yarn(scaling, original),
            Some("longrope" | "su") => self.set_longrope(scaling, original),
            Some(_) => Err(scaling.wrong("rope_type", "default, linear, llama3, yarn or longrope")),
        }
    }

    fn base(&self) -> Result<f64, FormatError> {
        let key = format!("{}.rope.freq_base", self.arch);
        match self.metadata.get(&key) {
            Some(Value::Float(base)) => Ok(*base),
            _ => Err(self.config.missing("rope_theta")),
        }
    }

    fn set_yarn(&mut self, scaling: &Config, original: Option<u64>) -> Result<(), FormatError> {
        let context = self.uint("context_length")?;
        let factor = match scaling.optional_f64("factor")? {
            Some(factor) => factor,
            None => context as f64 / original.ok_or_else(|| scaling.missing("factor"))? as f64,
        };
        self.set("rope.scaling.type", Value::String("yarn".into()));
        self.set("rope.scaling.factor", Value::Float(factor));
        self.set("rope.scaling.original_context_length", Value::Uint(original.unwrap_or(context)));
        for (from, to) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
            if let Some(beta) = scaling.optional_f64(from)? {
                self.set(&format!("rope.scaling.{to}"), Value::Float(beta));
            }
        }
        if scaling.optional_bool("truncate")? == Some(false) {
            self.set("rope.scaling.yarn_truncate", Value::Bool(false));
        }
        let usual = magnitude(factor, 1.0);
        let [one, all] = [scaling.optional_f64("mscale")?, scaling.optional_f64("mscale_all_dim")?];
        let all = all.filter(|m| *m != 0.0);
        let attention = scaling.optional_f64("attention_factor")?;
        let wanted = match (attention, one.filter(|m| *m != 0.0), all) {
            (Some(attention), _, _) => attention,
            (None, Some(one), Some(all)) => magnitude(factor, one) / magnitude(factor, all),
            _ => usual,
        };
        match (self.arch, all) {
            // the scale of the scores has the factor too, and files a tenth of it
            ("deepseek2" | "mistral4", Some(all)) => {
                self.set("rope.scaling.yarn_log_multiplier", Value::Float(0.1 * all));
                if one.is_some_and(|one| one != all) {
                    return Err(scaling.wrong("mscale", "the same as `mscale_all_dim`"));
                }
            }
            ("mistral3", Some(all)) if one == Some(1.0) && attention.is_none() => {
                self.set("rope.scaling.yarn_log_multiplier", Value::Float(all));
            }
            _ if (wanted - usual).abs() > 1e-9 => {
                self.set("rope.scaling.attn_factor", Value::Float(wanted / usual));
            }
            _ => {}
        }
        Ok(())
    }

    fn set_longrope(&mut self, scaling: &Config, original: Option<u64>) -> Result<(), FormatError> {
        let original = original.ok_or_else(|| scaling.missing("original_max_position_embeddings"))?;
        let pairs = self.uint("rope.dimension_count")? as usize / 2;
        for kind in ["long", "short"] {
            let key = format!("{kind}_factor");
            let factors = scaling.optional_f64s(&key)?.ok_or_else(|| scaling.missing(&key))?;
            if factors.len() != pairs {
                return Err(scaling.wrong(&key, &format!("{pairs} numbers, one per pair of columns")));
            }
            let factors = factors.into_iter().map(|f| f as f32).collect();
            self.put(format!("rope_factors_{kind}.weight"), Matrix::vector(factors))?;
        }
        let factor = match scaling.optional_f64("factor")? {
            Some(factor) => factor,
            None => self.uint("context_length")? as f64 / original as f64,
        };
        let attention = match scaling.optional_f64("attention_factor")? {
            Some(attention) => attention,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
        };
        self.set("rope.scaling.original_context_length", Value::Uint(original));
        self.set("rope.scaling.attn_factor", Value::Float(attention));
        Ok(())
    }
}

/// YaRN's factor on rotated columns.
pub(super) fn magnitude(factor: f64, multiplier: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 1.0 + 0.1 * multiplier * factor.ln() }
}

/// The parameters of Llama 3's rotations.
pub(super) struct Llama3 {
    pub(super) factor: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// The context before it was extended.
    pub(super) original: f64,
}

/// What the frequencies of Llama 3 are divided by: low ones by the factor, high ones by 1, and
/// a blend of both between.
pub(super) fn llama3_divisors(parameters: &Llama3, base: f64, dims: u64) -> Vec<f32> {
    let Llama3 { factor, low, high, original } = *parameters;
    let divisor = |i: u64| {
        let length = 2.0 * std::f64::consts::PI * base.powf(2.0 * i as f64 / dims as f64);
        if length < original / high {
            1.0
        } else if length > original / low {
            factor
        } else {
            let smooth = (original / length - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    (0..dims / 2).map(|i| divisor(i) as f32).collect()
}
