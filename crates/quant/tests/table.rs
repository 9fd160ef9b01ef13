//! The table of formats: sizes, ids and names.

use tern_quant::*;

/// ggml's table, printed from its library: id, name, weights and bytes per block.
const GGML: &[(u32, &str, usize, usize)] = &[
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
];

#[test]
fn sizes_are_ggmls() {
    for &(id, name, block_len, bytes) in GGML {
        let q = by_id(id, Dialect::Ggml).unwrap();
        assert_eq!((q.name, q.block_len, q.block_bytes(), q.tail), (name, block_len, bytes, 0));
    }
    let ggml = ALL.iter().filter(|q| q.gguf_id.is_some() && q.dialect == Dialect::Ggml).count();
    assert_eq!(ggml, GGML.len());
    for (q, block_len, bytes) in [
        (&Q2_0_G128, 128, 34),
        (&PQ2_0, 128, 34),
        (&PTQ1_0, 128, 28),
        (&TQ2_0_G128, 128, 34),
        (&I2_S, 128, 32),
        (&INT4_32, 32, 21),
        (&INT4_128, 128, 69),
    ] {
        assert_eq!((q.block_len, q.block_bytes()), (block_len, bytes), "{q}");
    }
}

#[test]
fn the_table_is_ordered_and_names_are_unique() {
    assert!(ALL.is_sorted_by_key(|q| (q.gguf_id.is_none(), q.gguf_id)));
    for (i, q) in ALL.iter().enumerate() {
        assert!(ALL[..i].iter().all(|other| other != q), "{q} twice");
        let mut same = ALL[..i].iter().filter(|o| (o.gguf_id, o.dialect) == (q.gguf_id, q.dialect));
        assert!(q.gguf_id.is_none() || same.next().is_none(), "{q} id");
    }
}

#[test]
fn groups_fit_the_contract() {
    for q in ALL {
        let Some(&Codes { group, .. }) = q.codes() else { continue };
        assert!(group.is_power_of_two() && group >= 16 && q.block_len % group == 0, "{q}");
        assert!(q.block_len % INT_BLOCK == 0, "{q}");
        assert!(q.block_len <= MAX_BLOCK && q.groups_per_block() <= MAX_GROUPS, "{q}");
    }
    assert_eq!((F16.groups_per_block(), Q6_K.groups_per_block()), (0, 16));
}

#[test]
fn names_in_any_case() {
    for q in ALL {
        assert_eq!(by_name(&q.name.to_ascii_lowercase()), Some(*q));
    }
    assert_eq!(by_name("Q9_0"), None);
}

#[test]
fn ids_by_dialect() {
    let name = |id, dialect| by_id(id, dialect).map(|q| q.name);
    use Dialect::*;
    assert_eq!(name(42, Ggml), Some("Q2_0"));
    assert_eq!(name(42, Prism), Some("Q2_0"));
    assert_eq!(name(42, PrismLegacy), Some("Q2_0_G128"));
    assert_eq!(name(42, OxiBonsai), Some("TQ2_0_G128"));
    assert_eq!(name(142, Prism), Some("PQ2_0"));
    assert_eq!(name(143, Prism), Some("PTQ1_0"));
    assert_eq!(name(142, Ggml), None);
    assert_eq!(name(36, Microsoft), Some("I2_S"));
    assert_eq!(name(36, Ggml), None);
    assert_eq!(name(39, Microsoft), None, "TL2, not MXFP4");
    assert_eq!(name(1, Microsoft), Some("F16"));
    assert_eq!(name(4, Ggml), None);
}

#[test]
fn sizes_are_whole_blocks_and_checked() {
    assert_eq!(Q4_K.row_bytes(512), Some(288));
    assert_eq!(Q4_K.row_bytes(100), None);
    assert_eq!(I2_S.row_bytes(256), Some(64));
    assert_eq!(I2_S.tensor_bytes(256), Some(96));
    assert_eq!(F64.tensor_bytes(u64::MAX / 2), None);
    assert_eq!(I2_S.tensor_bytes(0), Some(32));
    assert_eq!(Q1_0.bits_per_weight(), 1.125);
    assert_eq!(PTQ1_0.bits_per_weight(), 1.75);
    assert!(Q1_0.is_runnable() && !I32.is_runnable());
}
