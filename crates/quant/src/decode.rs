//! Blocks to weights: the slow, exact reference for every kernel.

use crate::{Codec, Codes, MAX_BLOCK, MAX_GROUPS, Quant, Unpacked};

impl Quant {
    /// Decodes whole blocks. `tail` is the tensor's tail, empty for every format whose `tail` is 0.
    ///
    /// The multiplication is rounded before the offset is added, as ggml does: results are equal bit for bit.
    ///
    /// # Panics
    ///
    /// If `bytes` and `out` are not the same whole number of blocks, the tail is too short, or the format is
    /// not [runnable](Self::is_runnable).
    pub fn decode(&self, bytes: &[u8], tail: &[u8], out: &mut [f32]) {
        let (size, len) = (self.block_bytes(), self.block_len);
        assert_eq!(self.row_bytes(out.len()), Some(bytes.len()), "{self}: {} weights", out.len());
        assert!(tail.len() >= self.tail, "{self}: the tail has {} bytes", tail.len());
        match self.codec {
            Codec::Float(_) if *self == crate::F32 => {
                for (w, block) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *w = f32::from_le_bytes(*block); // a copy, without a call per weight
                }
            }
            Codec::Float(read) => {
                for (w, block) in out.iter_mut().zip(bytes.chunks_exact(size)) {
                    *w = read(block);
                }
            }
            Codec::Codes(Codes { group, unpack, .. }) => {
                let mut codes = [0i8; MAX_BLOCK];
                let mut scales = [0f32; MAX_GROUPS];
                let mut offsets = [0f32; MAX_GROUPS];
                let codes = &mut codes[..len];
                let scales = &mut scales[..len / group];
                let offsets = &mut offsets[..len / group];
                for (out, block) in out.chunks_exact_mut(len).zip(bytes.chunks_exact(size)) {
                    unpack(block, tail, Unpacked { codes, scales, offsets });
                    let params = scales.iter().zip(offsets.iter());
                    for ((out, codes), (&scale, &offset)) in
                        out.chunks_exact_mut(group).zip(codes.chunks_exact(group)).zip(params)
                    {
                        for (w, &code) in out.iter_mut().zip(codes) {
                            *w = scale * f32::from(code) + offset;
                        }
                    }
                }
            }
            Codec::Named => panic!("{self} is known by name only"),
        }
    }
}
