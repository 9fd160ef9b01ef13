//! The facts a format states about its codes are true of its bytes.

use tern_quant::*;

/// What random blocks of a format unpack to.
struct Seen {
    codes: Vec<i8>,
    /// Per block, `groups_per_block` scales.
    scales: Vec<Vec<f32>>,
    offsets: Vec<f32>,
}

/// Random blocks with finite scales, among them blocks of equal bytes, so that codes reach their extremes.
fn seen(q: &Quant, codes: &Codes) -> Seen {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut byte = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let mut seen = Seen { codes: vec![], scales: vec![], offsets: vec![] };
    for n in 0..512 {
        let mut block: Vec<u8> = (0..q.block_bytes()).map(|_| byte()).collect();
        if let Ok(same) = u8::try_from(n) {
            block.fill(same);
        }
        let mut at = 0;
        for field in q.fields {
            let bytes = &mut block[at..at + field.bytes()];
            match field.ty {
                FieldType::F16 => {
                    bytes.chunks_exact_mut(2).for_each(|half| half[1] = half[1] & 0x83 | 0x3c); // from 1 to 2
                }
                FieldType::ScatteredF16 => {
                    bytes[5] = bytes[5] & 0x3f | 0xc0;
                    bytes[7] = bytes[7] & 0x8f | 0x30;
                }
                _ => {}
            }
            at += field.bytes();
        }
        let tail: Vec<u8> = std::iter::repeat_n(0.75f32.to_le_bytes(), q.tail / 4).flatten().collect();
        let groups = q.groups_per_block();
        let (mut c, mut scales, mut offsets) = (vec![0; q.block_len], vec![0.0; groups], vec![0.0; groups]);
        (codes.unpack)(&block, &tail, Unpacked { codes: &mut c, scales: &mut scales, offsets: &mut offsets });
        seen.codes.extend(c);
        seen.scales.push(scales);
        seen.offsets.extend(offsets);
    }
    seen
}

fn each_format() -> impl Iterator<Item = (&'static Quant, &'static Codes, Seen)> {
    ALL.iter().filter_map(|q| q.codes().map(|codes| (*q, codes, seen(q, codes))))
}

fn gcd(a: u8, b: u8) -> u8 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[test]
fn codes_reach_the_ends_of_their_range_and_no_further() {
    for (q, codes, seen) in each_format() {
        let (least, most) = (seen.codes.iter().min(), seen.codes.iter().max());
        assert_eq!((least, most), (Some(&codes.least), Some(&codes.most)), "{q}");
        let above = seen.codes.iter().map(|code| code.abs_diff(codes.least));
        assert_eq!(codes.step, above.fold(0, gcd) as i8, "{q}");
    }
}

#[test]
fn offsets_are_stated_if_there_are_any() {
    for (q, codes, seen) in each_format() {
        let none = |offset: &f32| offset.to_bits() == NO_OFFSET.to_bits();
        assert_eq!(codes.offsets, !seen.offsets.iter().all(none), "{q}");
    }
}

/// Whether the scales are integers of at most 8 bits times one float.
fn are_integers(scales: &[f32]) -> bool {
    let most = scales.iter().fold(0f32, |most, s| most.max(s.abs()));
    (1..=128u8).any(|n| {
        let unit = most / f32::from(n);
        scales.iter().all(|s| (s / unit - (s / unit).round()).abs() < 1e-4)
    })
}

#[test]
fn integer_scales_are_integers() {
    for (q, codes, seen) in each_format() {
        let several = q.groups_per_block() > 1;
        let random = &seen.scales[256..];
        assert_eq!(codes.integer_scales, several && random.iter().all(|s| are_integers(s)), "{q}");
    }
}

#[test]
fn short_activations_have_room_in_a_product_with_the_codes() {
    for q in ALL {
        let Some(codes) = q.codes() else { continue };
        let code_bits = codes.count().ilog2();
        assert!(matches!(codes.activation_bits, 12 | 14 | 16), "{q}");
        assert!(codes.activation_bits == 16 || code_bits + codes.activation_bits - 8 <= 8, "{q}");
    }
}
