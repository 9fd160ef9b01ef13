//! Rotary tables: base, linear, YaRN, llama3 factors and longrope all become frequencies and a magnitude.

use tern_graph::RopeTable;

use crate::{Build, ModelError};

/// How YaRN blends by default.
const YARN_BETAS: [f32; 2] = [32.0, 1.0];

/// How positions are stretched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scaling {
    /// Frequencies divided by a factor (1 leaves them alone).
    Linear(f32),
    /// High frequencies kept, low ones divided, blended between.
    Yarn { factor: f32, original_context: usize, betas: [f32; 2], truncate: bool, magnitude: f32 },
}

impl Build<'_> {
    /// The table that metadata and rope factor tensors describe, for a rotation base.
    pub(crate) fn rope_table(&mut self, base: f32) -> Result<usize, ModelError> {
        self.check_base("rope.freq_base", base)?;
        let (scaling, attn_factor) = self.rope_scaling()?;
        let divisors = self.rope_divisors()?;
        let table = table(self.config.rope_dims, base, scaling, divisors.as_deref(), attn_factor);
        Ok(self.graph.rope_table(table))
    }

    /// The table of the base of local layers, with no scaling at all, over `dims` columns.
    pub(crate) fn plain_rope_table(&mut self, base: f32, dims: usize) -> Result<usize, ModelError> {
        self.check_base("rope.freq_base_swa", base)?;
        Ok(self.graph.rope_table(table(dims, base, Scaling::Linear(1.0), None, 1.0)))
    }

    fn check_base(&self, name: &str, base: f32) -> Result<(), ModelError> {
        if !(base.is_finite() && base > 1.0) {
            return Err(ModelError::value(self.keys().key(name), base, "a number above 1"));
        }
        Ok(())
    }

    fn rope_scaling(&self) -> Result<(Scaling, f32), ModelError> {
        let keys = self.keys();
        let factor = match keys.optional_f32("rope.scaling.factor")? {
            Some(f) => f,
            None => keys.optional_f32("rope.scale_linear")?.unwrap_or(1.0),
        };
        let factor = if factor == 0.0 { 1.0 } else { factor }; // some writers use 0 for "none"
        if !factor.is_finite() || factor < 0.0 {
            return Err(ModelError::value(keys.key("rope.scaling.factor"), factor, "a positive number"));
        }
        let attn_factor = keys.optional_f32("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let original = keys.optional_usize("rope.scaling.original_context_length")?;
        let original_context = original.unwrap_or(self.config.context_trained);
        let scaling = match keys.optional_str("rope.scaling.type")? {
            Some("none") => Scaling::Linear(1.0),
            None | Some("linear" | "longrope") => Scaling::Linear(factor),
            Some("yarn") => {
                let beta = |name: &str| keys.optional_f32(name);
                let betas = [beta("rope.scaling.yarn_beta_fast")?, beta("rope.scaling.yarn_beta_slow")?];
                let betas = [0, 1].map(|i| betas[i].filter(|b| *b > 0.0).unwrap_or(YARN_BETAS[i]));
                let truncate = keys.optional_bool("rope.scaling.yarn_truncate")?.unwrap_or(true);
                // models with this key have the factor in the scale of the scores
                let log_multiplier = keys.optional_f32("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
                let magnitude = match self.config.arch.as_str() {
                    "deepseek2" | "mistral4" if log_multiplier != 0.0 => 1.0,
                    _ => yarn_magnitude(factor, 1.0) / yarn_magnitude(factor, log_multiplier),
                };
                Scaling::Yarn { factor, original_context, betas, truncate, magnitude }
            }
            Some(other) => {
                let key = keys.key("rope.scaling.type");
                return Err(ModelError::name(key, other, "none, linear, yarn or longrope"));
            }
        };
        Ok((scaling, attn_factor))
    }

    /// YaRN's factor on queries and on keys, for models that have it in the scale of the scores.
    pub(crate) fn yarn_score_magnitude(&self) -> Result<f32, ModelError> {
        let Scaling::Yarn { factor, .. } = self.rope_scaling()?.0 else { return Ok(1.0) };
        // files have a tenth of the multiplier
        let tenth = self.keys().optional_f32("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
        Ok(yarn_magnitude(factor, if tenth == 0.0 { 1.0 } else { 10.0 * tenth }))
    }

    /// Divisors of the frequencies: llama3's one set, or longrope's choice by the context of this run.
    fn rope_divisors(&mut self) -> Result<Option<Vec<f32>>, ModelError> {
        let pairs = self.config.rope_dims / 2;
        let long = self.values("rope_factors_long.weight");
        let short = self.values("rope_factors_short.weight");
        let divisors = match (long, short) {
            (Some(long), Some(short)) => {
                let original = self.keys().usize("rope.scaling.original_context_length")?;
                Some(if self.config.context > original { long } else { short })
            }
            (None, None) => self.values("rope_freqs.weight"),
            _ => return Err(ModelError::OneRopeFactor),
        };
        match divisors {
            Some(d) if d.len() != pairs => {
                Err(ModelError::shape("rope factors", format!("[{pairs}]"), format!("[{}]", d.len())))
            }
            other => Ok(other),
        }
    }
}

fn table(dims: usize, base: f32, scaling: Scaling, divisors: Option<&[f32]>, attn_factor: f32) -> RopeTable {
    let freq = |i: usize| {
        let plain = base.powf(-2.0 * i as f32 / dims as f32) / divisors.map_or(1.0, |d| d[i]);
        match scaling {
            Scaling::Linear(factor) => plain / factor,
            Scaling::Yarn { factor, original_context, betas, truncate, .. } => {
                let [low, high] = yarn_range(dims, base, original_context, betas);
                let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let last = dims as f32 - 1.0;
                let (low, high) = (low.clamp(0.0, last), high.clamp(0.0, last));
                let ramp = 1.0 - ((i as f32 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                plain / factor * (1.0 - ramp) + plain * ramp
            }
        }
    };
    let magnitude = match scaling {
        Scaling::Linear(_) => attn_factor,
        Scaling::Yarn { magnitude, .. } => attn_factor * magnitude,
    };
    RopeTable::new((0..dims / 2).map(freq).collect(), magnitude)
}

/// YaRN's factor on rotated columns.
pub(crate) fn yarn_magnitude(factor: f32, multiplier: f32) -> f32 {
    1.0 + 0.1 * multiplier * factor.max(1.0).ln()
}

/// The pairs between which YaRN blends.
fn yarn_range(dims: usize, base: f32, original_context: usize, betas: [f32; 2]) -> [f32; 2] {
    betas.map(|beta| {
        let turns = original_context as f32 / (beta * 2.0 * std::f32::consts::PI);
        dims as f32 * turns.ln() / (2.0 * base.ln())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yarn_keeps_high_frequencies_and_divides_low_ones() {
        let plain = table(128, 1e6, Scaling::Linear(1.0), None, 1.0);
        let magnitude = yarn_magnitude(4.0, 1.0);
        let yarn = Scaling::Yarn {
            factor: 4.0,
            original_context: 16384,
            betas: YARN_BETAS,
            truncate: true,
            magnitude,
        };
        let yarn = table(128, 1e6, yarn, None, 1.0);
        assert_eq!(plain.freqs[0], yarn.freqs[0]);
        assert!((plain.freqs[63] / yarn.freqs[63] - 4.0).abs() < 1e-5);
        assert!((yarn.magnitude - 1.138_629_4).abs() < 1e-6);
    }

    #[test]
    fn divisors_and_linear_factors_divide() {
        let t = table(4, 100.0, Scaling::Linear(2.0), Some(&[1.0, 5.0]), 1.0);
        assert_eq!(t.freqs, [0.5, 0.01]);
    }
}
