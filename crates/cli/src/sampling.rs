//! Sampling parameters from flags.

use tern::{PartialSampling, Request, Sampling};

use crate::args::{PartialSamplingArgs, SamplingArgs};
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
            seed: self.seed.and_then(|seed| seed.0),
            ..request
        }
    }

    fn base(&self) -> Sampling {
        Sampling {
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
            bias: self.logit_bias.clone(),
            ..Sampling::default()
        }
    }
}
