//! Block formats of weights: what the bytes of one block mean.
//!
//! A format is one [`Quant`] value, listed in [`ALL`]. Except for the plain floats, every format is small
//! integers with a scale and an offset per group: `w = scale * code + offset`. [`Codes`] describes them; decoding,
//! the reference and every kernel are derived from it.

mod bits;
mod codebook;
mod codes;
mod decode;
mod encode;
mod field;
mod fit;
mod float;
mod fp4;
mod importance;
mod int4;
mod iq4;
mod lookup;
mod named;
mod planes;
mod q1;
mod q2;
mod q2_k;
mod q3_k;
mod q4;
mod q4_k;
mod q5;
mod q6_k;
mod q8;
mod random;
mod rounding;
mod search;
mod size;
mod trits;

pub use codebook::{Codebook, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
pub use codebook::{IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
pub use codes::{Codes, Unpack, Unpacked};
pub use encode::EncodeError;
pub use field::{Field, FieldType};
pub use float::{BF16, F16, F32};
pub use fp4::{MXFP4, NVFP4};
pub use importance::Importance;
pub use int4::{INT4_32, INT4_128};
pub use iq4::{IQ4_NL, IQ4_XS};
pub use lookup::{ALL, by_id, by_name};
pub use named::{F64, I8, I16, I32, I64, Q8_1, Q8_K};
pub use planes::{I2_S, TQ2_0};
pub use q1::Q1_0;
pub use q2::{PQ2_0, Q2_0, Q2_0_G128, TQ2_0_G128};
pub use q2_k::Q2_K;
pub use q3_k::Q3_K;
pub use q4::{Q4_0, Q4_1};
pub use q4_k::{Q4_K, Q5_K};
pub use q5::{Q5_0, Q5_1};
pub use q6_k::Q6_K;
pub use q8::Q8_0;
pub use trits::{PTQ1_0, TQ1_0};

/// Whose files use a type id: the same id means different bytes in different dialects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Upstream ggml.
    Ggml,
    /// PrismML's fork: 142 and 143 beside the upstream ids.
    Prism,
    /// PrismML's first generation: id 42 with 128 weights per block.
    PrismLegacy,
    /// OxiBonsai's private ternary layout under id 42.
    OxiBonsai,
    /// Microsoft's bitnet.cpp: ids 36 to 39.
    Microsoft,
}

/// Quantized activations that share a scale; rows of integer formats are multiples of it.
pub const INT_BLOCK: usize = 32;

/// Weights in the largest block of any format.
pub const MAX_BLOCK: usize = 256;

/// Groups in a block of any format at most.
pub const MAX_GROUPS: usize = 16;

/// The offset of a group without one. Adding negative zero changes no float, not even negative zero.
pub const NO_OFFSET: f32 = -0.0;

/// How the bytes of a block become weights.
#[derive(Clone, Copy, Debug)]
pub enum Codec {
    /// Plain floats, one per block.
    Float(fn(&[u8]) -> f32),
    /// Integer codes: `w = scale * code + offset`.
    Codes(Codes),
    /// Known by name and size only: files are listed, and models that use it are refused by name.
    Named,
}

/// How `block_len` weights become one block; all of its bytes are overwritten.
#[derive(Clone, Copy, Debug)]
pub enum Encode {
    /// From the weights alone.
    Plain(fn(weights: &[f32], block: &mut [u8])),
    /// By a search for scales, in which errors count as much as the importance of their columns.
    Searched(fn(weights: &[f32], importance: Option<&Importance<'_>>, block: &mut [u8])),
    /// With one scale for the whole tensor, its largest magnitude, which is the first f32 of the tail.
    Shared(fn(weights: &[f32], scale: f32, block: &mut [u8])),
}

/// One block format.
#[derive(Debug)]
pub struct Quant {
    /// The name, such as `Q4_K`; lookups ignore case.
    pub name: &'static str,
    /// Type id in a GGUF tensor info; `None` if no file stores the format.
    pub gguf_id: Option<u32>,
    /// Whose files use this id for the format.
    pub dialect: Dialect,
    /// Weights in a block.
    pub block_len: usize,
    /// The fields of a block in file order, which give its size.
    pub fields: &'static [Field],
    /// Bytes after the last block that belong to the whole tensor (I2_S stores its only scale there).
    pub tail: usize,
    /// How bytes become weights.
    pub codec: Codec,
    /// How weights become one block's bytes; `None` if Tern cannot write the format.
    pub encode: Option<Encode>,
}

/// Formats are equal if their names are: a name identifies one layout.
impl PartialEq for Quant {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Quant {}

impl std::fmt::Display for Quant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name)
    }
}
