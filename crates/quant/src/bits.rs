//! Numbers inside a block: halves, nibbles, two-bit planes and single bits.

use half::f16;

const SIZED: &str = "a block, its codes and its scales have the format's sizes";

/// The `N` bytes that begin at `at`.
#[inline(always)]
pub(crate) fn bytes<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..at + N].try_into().expect(SIZED)
}

/// A slice whose length the format fixes, so that loops over it need no bounds checks.
#[inline(always)]
pub(crate) fn sized<T, const N: usize>(slice: &mut [T]) -> &mut [T; N] {
    slice.try_into().expect(SIZED)
}

/// The half that begins at `at`.
#[inline(always)]
pub(crate) fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes(*bytes(block, at)))
}

/// Writes `value` as a half at `at`.
pub(crate) fn put_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// `value` rounded to a half.
pub(crate) fn through_f16(value: f32) -> f32 {
    f16::from_f32(value).to_f32()
}

/// A half as a float. Unlike `half`'s function, it does not detect CPU features and is inlined
/// into the loop over blocks.
#[inline(always)]
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    const EXPONENT: u32 = 0x1f << 23;
    const TINY: u32 = 113 << 23; // the exponent of the smallest normal half
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff) << 13;
    let magnitude = match magnitude & EXPONENT {
        0 => (f32::from_bits(magnitude + TINY) - f32::from_bits(TINY)).to_bits(),
        EXPONENT => magnitude + (224 << 23),
        _ => magnitude + (112 << 23),
    };
    f32::from_bits(sign | magnitude)
}

/// Nibbles less `bias`: the low ones of all bytes come first, then the high ones.
#[inline(always)]
pub(crate) fn nibbles<const N: usize>(qs: &[u8; N], codes: &mut [i8], bias: i8) {
    let (low, high) = codes.split_at_mut(N);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(qs) {
        *low = (byte & 15) as i8 - bias;
        *high = (byte >> 4) as i8 - bias;
    }
}

/// Packs what [`nibbles`] reads.
pub(crate) fn pack_nibbles(codes: &[u8], qs: &mut [u8]) {
    let (low, high) = codes.split_at(qs.len());
    for ((byte, low), high) in qs.iter_mut().zip(low).zip(high) {
        *byte = (low & 15) | (high << 4);
    }
}

/// Two-bit codes less `bias` in four planes of 32: plane `p` is at bits `2p` of each byte.
#[inline(always)]
pub(crate) fn planes(qs: &[u8; 32], codes: &mut [i8; 128], bias: i8) {
    let mut rest = *qs; // shifted step by step: a variable shift is not vectorised
    for plane in codes.chunks_exact_mut(32) {
        for (code, rest) in plane.iter_mut().zip(&mut rest) {
            *code = (*rest & 3) as i8 - bias;
            *rest >>= 2;
        }
    }
}

/// Packs what [`planes`] reads.
pub(crate) fn pack_planes(codes: &[u8], qs: &mut [u8]) {
    for (m, byte) in qs.iter_mut().enumerate() {
        *byte = (0..4).fold(0, |byte, p| byte | (codes[32 * p + m] & 3) << (2 * p));
    }
}

/// The bits of a nibble, lowest first, one in each byte of the result.
#[inline(always)]
pub(crate) fn spread_bits(nibble: u8) -> u32 {
    let bits = u32::from(nibble);
    (bits | bits << 7 | bits << 14 | bits << 21) & 0x0101_0101
}

/// Takes `less`, at most 128, from each byte. The top bits, clear before, keep a borrow from the next byte.
#[inline(always)]
pub(crate) fn take_from_each(bytes: u32, less: u8) -> u32 {
    ((bytes | 0x8080_8080) - u32::from(less) * 0x0101_0101) ^ 0x8080_8080
}

/// The four two-bit codes of a byte, lowest first, one in each byte of the result.
#[inline(always)]
pub(crate) fn spread_pairs(byte: u8) -> u32 {
    let byte = u32::from(byte);
    (byte | byte << 6 | byte << 12 | byte << 18) & 0x0303_0303
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_what_the_half_crate_says() {
        for bits in 0..=u16::MAX {
            let (want, got) = (f16::from_bits(bits), f16_to_f32(bits));
            assert_eq!(want.is_nan(), got.is_nan(), "{bits:#x}");
            assert!(want.is_nan() || want.to_f32().to_bits() == got.to_bits(), "{bits:#x}: {want} {got}");
        }
    }

    #[test]
    fn spread_bits_and_pairs_are_the_shifts() {
        for byte in 0..=u8::MAX {
            let bits = spread_bits(byte & 15).to_le_bytes();
            assert!((0..4).all(|i| bits[i] == (byte >> i) & 1), "{byte:#x}");
            let pairs = spread_pairs(byte).to_le_bytes();
            assert!((0..4).all(|i| pairs[i] == (byte >> (2 * i)) & 3), "{byte:#x}");
        }
    }
}
