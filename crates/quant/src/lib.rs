//! Block formats of weights: what the bytes of one block mean.
//!
//! A format is one [`Quant`] value in a file of its own, listed in [`ALL`]. Except for the plain floats, every
//! format is small integers with a scale and an offset for each group of them: `w = scale * code + offset`.
//! [`Codec::Codes`] says so once; decoding, the reference and every dot product stand on it.

mod field;

pub use field::{Field, FieldType};

/// Whose files use a type id. The same id means different bytes in different dialects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Upstream ggml.
    Ggml,
    /// PrismML's fork: 142 and 143 beside the upstream ids.
    Prism,
    /// PrismML's first generation: id 42 with 128 weights a block.
    PrismLegacy,
    /// OxiBonsai's private ternary layout under id 42.
    OxiBonsai,
    /// Microsoft's bitnet.cpp: ids 36 to 39.
    Microsoft,
}

/// What the activations are turned into before they meet weights of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotWith {
    /// Kept as f32.
    F32,
    /// Quantised to int8 in blocks of [`Q8_BLOCK`], each with its own f32 scale.
    Q8,
}

/// Activations in one int8 block.
pub const Q8_BLOCK: usize = 32;

/// How the bytes of a block become weights.
#[derive(Clone, Copy, Debug)]
pub enum Codec {
    /// Plain floats, one a block.
    Float(fn(&[u8]) -> f32),
    /// Integer codes: `w = scale * code + offset`, one scale and offset for each `group` weights.
    Codes {
        /// Weights that share a scale and an offset: 16 or a multiple of it, at most `block_len`.
        group: usize,
        /// Takes one block (and the tensor's tail) apart.
        unpack: fn(block: &[u8], tail: &[u8], out: Unpacked<'_>),
    },
    /// Known by name and size only; a model that uses it is refused by name.
    Named,
}

/// Where one block is unpacked to: `block_len` codes, `block_len / group` scales and as many offsets.
#[derive(Debug)]
pub struct Unpacked<'a> {
    /// One integer a weight.
    pub codes: &'a mut [i8],
    /// One scale a group.
    pub scales: &'a mut [f32],
    /// One offset a group.
    pub offsets: &'a mut [f32],
}

/// One block format.
#[derive(Debug)]
pub struct Quant {
    /// The name users write, `Q4_K`; looked up without regard to case.
    pub name: &'static str,
    /// Type id in a GGUF tensor info, if files carry it.
    pub gguf_id: Option<u32>,
    /// Whose files mean this by that id.
    pub dialect: Dialect,
    /// Weights in a block.
    pub block_len: usize,
    /// The fields of a block in file order; they give its size and its C struct.
    pub fields: &'static [Field],
    /// Bytes after the last block that belong to the whole tensor (I2_S keeps its one scale there).
    pub tail: usize,
    /// What activations become before a dot product with this format.
    pub dot_with: DotWith,
    /// How bytes become weights.
    pub codec: Codec,
    /// How weights become one block's bytes (and the tail, see `tail`), where Tern can write the format.
    pub encode: Option<fn(weights: &[f32], block: &mut [u8])>,
}

