//! From a row of logits to a token: the parameters of a request, what changes from token to
//! token, and the choice itself.

mod choice;
mod dry;
mod filters;
mod mask;
mod parameters;
mod sample;
mod seen;
mod table;

pub use dry::{Breakers, Dry};
pub use mask::Mask;
pub use parameters::{History, Mirostat, MirostatVersion, Sampling, SamplingError, Xtc};
pub use sample::{Sample, Sampled, all_finite, divergence, log_sum_exp, top_logprobs};
pub use seen::Seen;
pub use table::{BIAS, InFiles, PARAMETERS, Parameter, Range};
