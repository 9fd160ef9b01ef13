//! Integer codes: what kernels need to know about them besides their bytes.

use crate::{Codec, Quant};

/// Integer codes in groups: `w = scale * code + offset`, with one scale and one offset per group.
///
/// Backends derive memory layouts and rounding from these facts, never from a format's name.
#[derive(Clone, Copy, Debug)]
pub struct Codes {
    /// Weights that share a scale and an offset: a power of two from 16 to `block_len`.
    pub group: usize,
    /// Smallest code that the bytes of a block can hold.
    pub least: i8,
    /// Largest code that the bytes of a block can hold.
    pub most: i8,
    /// Every code is `least` plus a multiple of this: 2 for signs without a zero, otherwise 1.
    pub step: i8,
    /// Groups have offsets other than [`NO_OFFSET`](crate::NO_OFFSET).
    pub offsets: bool,
    /// The scales of a block with several groups are integers of at most 8 bits times one float, so that an
    /// integer kernel may multiply them into the codes.
    pub integer_scales: bool,
    /// Bits of a quantized activation that these codes are multiplied with: 16, or fewer if code and
    /// activation then share one 8-bit product. Fewer than 16 requires a packed kernel for the format; the
    /// general kernels have none.
    pub activation_bits: u32,
    /// Unpacks one block.
    pub unpack: Unpack,
}

/// Output of unpacking one block: `block_len` codes, `block_len / group` scales and as many offsets.
#[derive(Debug)]
pub struct Unpacked<'a> {
    /// One integer per weight.
    pub codes: &'a mut [i8],
    /// One scale per group.
    pub scales: &'a mut [f32],
    /// One offset per group; [`NO_OFFSET`](crate::NO_OFFSET) if the format has none.
    pub offsets: &'a mut [f32],
}

/// Unpacks one block, given the tensor's tail.
pub type Unpack = fn(block: &[u8], tail: &[u8], out: Unpacked<'_>);

impl Codes {
    /// Any signed byte, no offsets, 16-bit activations: what is assumed of a format that states nothing else.
    pub const fn new(group: usize, unpack: Unpack) -> Codes {
        Codes {
            group,
            least: i8::MIN,
            most: i8::MAX,
            step: 1,
            offsets: false,
            integer_scales: false,
            activation_bits: 16,
            unpack,
        }
    }

    /// Number of values from `least` to `most`, in steps of `step`.
    ///
    /// ```
    /// let count = |quant: &tern_quant::Quant| quant.codes().map(|codes| codes.count());
    /// assert_eq!((count(&tern_quant::Q4_0), count(&tern_quant::Q1_0)), (Some(16), Some(2)));
    /// ```
    pub const fn count(&self) -> usize {
        (self.most as i32 - self.least as i32) as usize / self.step as usize + 1
    }
}

impl Quant {
    /// The format's codes; `None` for floats and formats known by name only.
    pub const fn codes(&self) -> Option<&Codes> {
        match &self.codec {
            Codec::Codes(codes) => Some(codes),
            Codec::Float(_) | Codec::Named => None,
        }
    }
}
