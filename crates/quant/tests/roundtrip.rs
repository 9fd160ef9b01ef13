//! Decoders read back what encoders write; ternary formats represent each other's weights; no bytes cause a
//! panic.

use proptest::prelude::*;
use tern_quant::*;

/// Weights like a layer's: gaussian, by Box and Muller from a counter.
fn gaussian(count: usize, sigma: f32) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 + 0.5) / (1u64 << 24) as f32
    };
    let mut draw = || (-2.0 * uniform().ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos();
    (0..count).map(|_| sigma * draw()).collect()
}

fn encoded(q: &Quant, weights: &[f32]) -> Vec<u8> {
    let mut blocks = Vec::new();
    q.encode(weights, &mut blocks).expect("whole blocks of a format with an encoder");
    blocks
}

fn decoded(q: &Quant, blocks: &[u8]) -> Vec<f32> {
    let (blocks, tail) = blocks.split_at(blocks.len() - q.tail);
    let mut out = vec![0.0; blocks.len() / q.block_bytes() * q.block_len];
    q.decode(blocks, tail, &mut out);
    out
}

#[test]
fn gaussian_weights_come_back() {
    // name, largest relative RMS error
    let bounds = [
        ("F32", 0.0),
        ("F16", 3e-4),
        ("BF16", 2.5e-3),
        ("Q8_0", 0.008),
        ("Q6_K", 0.025),
        ("Q5_K", 0.05),
        ("Q5_1", 0.05),
        ("Q5_0", 0.06),
        ("Q4_K", 0.1),
        ("Q4_1", 0.1),
        ("Q4_0", 0.12),
        ("INT4_32", 0.1),
        ("INT4_128", 0.12),
        ("IQ4_NL", 0.12),
        ("IQ4_XS", 0.12),
        ("MXFP4", 0.15),
        ("NVFP4", 0.12),
        ("Q3_K", 0.25),
        ("Q2_K", 0.45),
        // One bit keeps the mean magnitude: sqrt(1 - 2/pi). The ternary encoders expect ternary weights.
        ("Q1_0", 0.61),
        ("Q2_0", 0.95),
        ("Q2_0_G128", 0.99),
        ("PQ2_0", 0.99),
        ("TQ2_0_G128", 0.99),
        ("PTQ1_0", 0.99),
        ("TQ1_0", 1.05),
        ("TQ2_0", 1.05),
        ("I2_S", 1.05),
    ];
    for &q in ALL.iter().filter(|q| q.encode.is_some()) {
        let bound =
            bounds.iter().find(|(name, _)| *name == q.name).unwrap_or_else(|| panic!("no bound: {q}")).1;
        let weights = gaussian(8192, 0.02);
        let back = decoded(q, &encoded(q, &weights));
        let square = |sum: f64, x: f32| sum + f64::from(x).powi(2);
        let error = weights.iter().zip(&back).map(|(w, b)| w - b).fold(0.0, square);
        let relative = (error / weights.iter().copied().fold(0.0, square)).sqrt();
        println!("{q:10} {relative:.4} of {bound}");
        assert!(relative <= bound, "{q}: relative error {relative} above {bound}");
    }
}

#[test]
fn ternary_weights_come_back_exactly() {
    let weights: Vec<f32> = gaussian(1024, 1.0).iter().map(|w| 0.375 * w.round().clamp(-1.0, 1.0)).collect();
    for q in [&Q2_0, &Q2_0_G128, &PQ2_0, &TQ2_0_G128, &PTQ1_0, &TQ1_0, &TQ2_0, &I2_S] {
        assert_eq!(decoded(q, &encoded(q, &weights)), weights, "{q}");
    }
}

#[test]
fn zeros_come_back_as_zeros() {
    for q in ALL.iter().filter(|q| q.encode.is_some()) {
        let back = decoded(q, &encoded(q, &[0.0; 256]));
        assert!(back.iter().all(|&w| w == 0.0), "{q}");
    }
}

#[test]
fn a_dirty_block_is_overwritten() {
    let weights = gaussian(256, 1.0);
    for q in ALL.iter().filter(|q| q.encode.is_some()) {
        let encode = |weights: &[f32], block: &mut [u8]| match q.encode {
            Some(Encode::Plain(encode)) => encode(weights, block),
            Some(Encode::Searched(encode)) => encode(weights, None, block),
            Some(Encode::Shared(encode)) => encode(weights, 1.0, block),
            None => {}
        };
        let (mut clean, mut dirty) = (vec![0; q.block_bytes()], vec![0xff; q.block_bytes()]);
        encode(&weights[..q.block_len], &mut clean);
        encode(&weights[..q.block_len], &mut dirty);
        assert_eq!(clean, dirty, "{q}");
    }
}

#[test]
fn refusals_are_values() {
    let mut out = vec![1];
    assert_eq!(IQ1_S.encode(&[0.0; 256], &mut out), Err(EncodeError::NoEncoder("IQ1_S")));
    let ragged = Q4_0.encode(&[0.0; 33], &mut out).unwrap_err();
    assert_eq!(ragged.to_string(), "Q4_0: 33 weights are not whole blocks of 32");
    assert_eq!(out, [1]);
}

/// PTQ1_0 blocks whose bytes are real sums of digits, so that every layout can hold the same weights.
fn ptq1_0_blocks() -> impl Strategy<Value = Vec<u8>> {
    let block = (prop::collection::vec(0u32..243, 26), 0u16..0x7c00).prop_map(|(mut numbers, d)| {
        numbers[24..].iter_mut().for_each(|number| *number -= *number % 3); // four digits
        let mut bytes: Vec<u8> = numbers.iter().map(|n| (n * 256).div_ceil(243) as u8).collect();
        bytes.extend(d.to_le_bytes());
        bytes
    });
    prop::collection::vec(block, 1..4).prop_map(|blocks| blocks.concat())
}

/// The integer codes of one block.
fn codes(q: &Quant, block: &[u8]) -> Vec<i8> {
    let Some(&Codes { unpack, .. }) = q.codes() else { panic!("{q} has no codes") };
    let (mut codes, groups) = (vec![0; q.block_len], q.groups_per_block());
    let (scales, offsets) = (&mut vec![0.0; groups], &mut vec![0.0; groups]);
    unpack(block, &[], Unpacked { codes: &mut codes, scales, offsets });
    codes
}

/// Codes of -1, 0 and 1 as two bits each, side by side.
fn pairs(codes: &[i8]) -> Vec<u8> {
    let pack = |four: &[i8]| four.iter().rev().fold(0, |byte, code| byte << 2 | (code + 1) as u8);
    codes.chunks(4).map(pack).collect()
}

proptest! {
    #[test]
    fn ternary_layouts_carry_the_same_weights(blocks in ptq1_0_blocks()) {
        let (mut g64, mut g128, mut oxi) = (Vec::new(), Vec::new(), Vec::new());
        for block in blocks.chunks(PTQ1_0.block_bytes()) {
            let (d, qs) = (&block[26..], pairs(&codes(&PTQ1_0, block)));
            g64.extend([d, &qs[..16], d, &qs[16..]].concat());
            g128.extend([d, &qs].concat());
            oxi.extend([&qs, d].concat());
        }
        let want: Vec<u32> = decoded(&PTQ1_0, &blocks).iter().map(|w| w.to_bits()).collect();
        for (q, blocks) in [(&Q2_0, g64), (&Q2_0_G128, g128.clone()), (&PQ2_0, g128), (&TQ2_0_G128, oxi)] {
            let got: Vec<u32> = decoded(q, &blocks).iter().map(|w| w.to_bits()).collect();
            prop_assert_eq!(&got, &want, "{}", q);
        }
    }

    #[test]
    fn any_bytes_decode(bytes in prop::collection::vec(any::<u8>(), 300), tail in any::<[u8; 32]>()) {
        for q in ALL.iter().filter(|q| q.is_runnable()) {
            let blocks = bytes.len() / q.block_bytes();
            q.decode(&bytes[..blocks * q.block_bytes()], &tail, &mut vec![0.0; blocks * q.block_len]);
        }
    }

    #[test]
    fn any_weights_encode(bits in prop::collection::vec(any::<u32>(), 256), special in 0usize..256) {
        let mut weights: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        weights[special] = f32::INFINITY;
        weights[255 - special] = f32::NAN;
        for q in ALL.iter().filter(|q| q.encode.is_some()) {
            decoded(q, &encoded(q, &weights));
            decoded(q, &encoded(q, &weights.iter().map(|w| w * 1e-30).collect::<Vec<_>>()));
        }
    }
}
