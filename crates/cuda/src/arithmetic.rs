//! How results are computed.

use std::fmt;
use std::str::FromStr;

/// The inputs of linears in large steps. As text: `f16` or `int8`.
///
/// ```
/// use tern_cuda::Activations;
/// assert_eq!("int8".parse(), Ok(Activations::Int8));
/// assert_eq!(Activations::default().to_string(), "f16");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// Halves.
    #[default]
    F16,
    /// Bytes with a scale per token and 256 or 512 columns, if the weights have one or two bits and one
    /// scale per 128 columns, and the GPU multiplies bytes by warpgroups (generation 9.0); halves otherwise.
    /// Faster and less exact.
    Int8,
}

impl FromStr for Activations {
    type Err = String;

    fn from_str(text: &str) -> Result<Activations, String> {
        match text {
            "f16" => Ok(Activations::F16),
            "int8" => Ok(Activations::Int8),
            _ => Err("expected f16 or int8".into()),
        }
    }
}

impl fmt::Display for Activations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Activations::F16 => "f16",
            Activations::Int8 => "int8",
        })
    }
}

/// How results are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arithmetic {
    /// Whether every row's result is independent of the other rows of a step, bit for bit: steps of all sizes
    /// then have the same kernels, which add in the same order, and halves as inputs of linears.
    pub reproducible: bool,
    /// The inputs of linears in large steps.
    pub activations: Activations,
}
