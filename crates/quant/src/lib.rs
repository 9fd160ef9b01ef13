//! Block formats of weights: what the bytes of one block mean.
//!
//! A format is one [`Quant`] value, listed in [`ALL`]. Except for the plain floats, every format is small
//! integers with a scale and an offset per group: `w = scale * code + offset`. [`Codes`] describes them;
//! decoding, the reference and every kernel are derived from it.

mod bits;
mod codes;
mod decode;
mod encoding;
mod field;
mod formats;
mod lookup;
mod random;
mod size;

pub use codes::{Codes, Unpack, Unpacked};
pub use encoding::{EncodeError, Importance};
pub use field::{Field, FieldType};
pub use formats::{
    BF16, F16, F32, F64, I2_S, I8, I16, I32, I64, INT4_32, INT4_128, IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS,
    IQ3_S, IQ3_XXS, IQ4_NL, IQ4_XS, MXFP4, NVFP4, PQ2_0, PTQ1_0, Q1_0, Q2_0, Q2_0_G128, Q2_K, Q3_K, Q4_0,
    Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, Q8_1, Q8_K, TQ1_0, TQ2_0, TQ2_0_G128,
};
pub use formats::{Codebook, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
pub use lookup::{ALL, by_id, by_name};

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
