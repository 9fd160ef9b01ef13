//! The table of formats, and lookups by name and by the id in a file.

use crate::*;

/// Every format Tern knows, ordered by GGUF id; those without one are last.
pub static ALL: &[&Quant] = &[
    &F32,
    &F16,
    &Q4_0,
    &Q4_1,
    &Q5_0,
    &Q5_1,
    &Q8_0,
    &Q8_1,
    &Q2_K,
    &Q3_K,
    &Q4_K,
    &Q5_K,
    &Q6_K,
    &Q8_K,
    &IQ2_XXS,
    &IQ2_XS,
    &IQ3_XXS,
    &IQ1_S,
    &IQ4_NL,
    &IQ3_S,
    &IQ2_S,
    &IQ4_XS,
    &I8,
    &I16,
    &I32,
    &I64,
    &F64,
    &IQ1_M,
    &BF16,
    &TQ1_0,
    &TQ2_0,
    &I2_S,
    &MXFP4,
    &NVFP4,
    &Q1_0,
    &Q2_0,
    &Q2_0_G128,
    &TQ2_0_G128,
    &PQ2_0,
    &PTQ1_0,
    &INT4_32,
    &INT4_128,
];

/// The format called `name`, ignoring case.
///
/// ```
/// assert_eq!(tern_quant::by_name("q4_k"), Some(&tern_quant::Q4_K));
/// ```
pub fn by_name(name: &str) -> Option<&'static Quant> {
    ALL.iter().copied().find(|q| q.name.eq_ignore_ascii_case(name))
}

/// The format of `id` in a file of `dialect`: the dialect's own, or else upstream's.
///
/// ```
/// use tern_quant::{Dialect, by_id};
/// assert_eq!(by_id(42, Dialect::Ggml).map(|q| q.block_len), Some(64));
/// assert_eq!(by_id(42, Dialect::PrismLegacy).map(|q| q.block_len), Some(128));
/// ```
pub fn by_id(id: u32, dialect: Dialect) -> Option<&'static Quant> {
    let of = |dialect| ALL.iter().copied().find(|q| q.gguf_id == Some(id) && q.dialect == dialect);
    let own = of(dialect);
    // I8_S, TL1 and TL2: these ids are not upstream's formats, and Tern does not know their bytes
    if dialect == Dialect::Microsoft && (36..=39).contains(&id) {
        return own;
    }
    own.or_else(|| of(Dialect::Ggml))
}
