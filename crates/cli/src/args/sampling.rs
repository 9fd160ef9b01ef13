//! Sampling parameters from flags.

use tern::engine::{Dry, Mirostat, MirostatVersion, Xtc};
use tern::{Model, PartialSampling, Request, Sampling};

use super::{PartialSamplingArgs, SamplerArgs, SamplingArgs};
use crate::error::CliResult;

impl PartialSamplingArgs {
    /// The flags that were given.
    pub(crate) fn sampling(&self) -> PartialSampling {
        let PartialSamplingArgs { temp: temperature, top_k, top_p, min_p, repeat_penalty: repetition } =
            *self;
        PartialSampling { temperature, top_k, top_p, min_p, repetition }
    }
}

impl SamplingArgs {
    /// Checks the values before a model is loaded; the engine checks what depends on the vocabulary.
    pub(crate) fn check(&self) -> CliResult<()> {
        Ok(self.partial.sampling().over(self.base()).check()?)
    }

    /// Sets the sampling parameters of a request.
    pub(crate) fn apply(&self, request: Request) -> Request {
        Request {
            sampling: self.partial.sampling(),
            base: self.base(),
            dry_breakers: self.samplers.breakers(),
            seed: self.seed.and_then(|seed| seed.0),
            ..request
        }
    }

    fn base(&self) -> Sampling {
        Sampling {
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
            bias: self.logit_bias.clone(),
            ..self.samplers.over(Sampling::default())
        }
    }
}

impl SamplerArgs {
    /// Sets them; the breakers of DRY need a model and are not set.
    pub(crate) fn over(&self, base: Sampling) -> Sampling {
        let version = match self.mirostat {
            0 => None,
            1 => Some(MirostatVersion::One),
            _ => Some(MirostatVersion::Two),
        };
        Sampling {
            top_n_sigma: self.top_n_sigma,
            typical_p: self.typical_p,
            xtc: Xtc { probability: self.xtc_probability, threshold: self.xtc_threshold },
            dry: Dry {
                multiplier: self.dry_multiplier,
                base: self.dry_base,
                allowed_length: self.dry_allowed_length,
                // -1 is all
                last_n: usize::try_from(self.dry_penalty_last_n).unwrap_or(usize::MAX),
                ..Dry::default()
            },
            mirostat: version.map(|version| Mirostat {
                version,
                tau: self.mirostat_tau,
                eta: self.mirostat_eta,
            }),
            ..base
        }
    }

    /// The texts that end a repetition.
    pub(crate) fn breakers(&self) -> Vec<String> {
        match self.dry_sequence_breaker.as_slice() {
            [] => Model::BREAKERS.map(String::from).into(),
            texts => texts.to_vec(),
        }
    }
}
