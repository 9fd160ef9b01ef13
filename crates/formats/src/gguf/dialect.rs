//! The dialect of a file's type ids: detected from the ids themselves, and for id 42 from the offsets.
//!
//! Id 42 is 64 weights in 18 bytes upstream and 128 weights in 34 bytes in the first ternary files. No key
//! distinguishes them (`general.file_type` is the same in both). But tensors are contiguous, so each offset
//! is the sum of the padded sizes before it, and only one block size matches.

use tern_quant::{Dialect, Quant};

use super::{Header, size::size};
use crate::{FormatError, Metadata, TensorError, shown};

/// The id with two meanings.
const AMBIGUOUS: u32 = 42;

/// Types of bitnet.cpp whose tiling depends on the build that wrote the file.
const BUILD_SPECIFIC: [(u32, &str); 3] = [(37, "I8_S"), (38, "TL1"), (39, "TL2")];

/// The format of a type id in a dialect.
pub(super) fn resolve(id: u32, dialect: Dialect) -> Result<&'static Quant, TensorError> {
    if dialect == Dialect::Microsoft
        && let Some(&(id, name)) = BUILD_SPECIFIC.iter().find(|(other, _)| *other == id)
    {
        return Err(TensorError::BuildSpecific(name, id));
    }
    tern_quant::by_id(id, dialect).ok_or(TensorError::UnknownType(id))
}

/// The dialect of a model, from the headers of all shards; the first has the metadata.
pub(crate) fn decide<'a>(shards: impl Iterator<Item = &'a Header>) -> Result<Dialect, FormatError> {
    let shards: Vec<&Header> = shards.collect();
    let has = |ids: &[u32]| shards.iter().flat_map(|h| &h.infos).any(|info| ids.contains(&info.type_id));
    let candidates = candidates(shards.first().map(|h| &h.metadata), has);
    for info in shards.iter().flat_map(|h| &h.infos) {
        resolve(info.type_id, candidates[0]).map_err(|e| FormatError::Tensor(info.name.clone(), e))?;
    }
    if !has(&[AMBIGUOUS]) {
        return Ok(candidates[0]);
    }

    let mut fits = Vec::new();
    let mut misfits = Vec::new();
    for &dialect in candidates {
        match shards.iter().map(|h| fit(h, dialect)).collect::<Result<Vec<_>, _>>() {
            Ok(ends) => fits.push((dialect, ends.iter().all(|end| *end == End::Exact))),
            Err(misfit) => misfits.push(format!("as {}, {misfit}", reading(dialect))),
        }
    }
    let exact: Vec<_> = fits.iter().filter(|(_, exact)| *exact).collect();
    match (fits.as_slice(), exact.as_slice()) {
        ([], _) => Err(FormatError::NoReading(misfits)),
        ([(dialect, _)], _) | (_, [(dialect, _)]) => Ok(*dialect),
        _ => Err(FormatError::AmbiguousReading(fits.iter().map(|(dialect, _)| reading(*dialect)).collect())),
    }
}

/// Dialects that match the ids and the metadata. If there are several, they differ only
/// in the meaning of id 42.
fn candidates(metadata: Option<&Metadata>, has: impl Fn(&[u32]) -> bool) -> &'static [Dialect] {
    use Dialect::*;
    let is = |key, value: &str| {
        metadata
            .and_then(|m| m.optional_str(key).ok().flatten())
            .is_some_and(|found| found.eq_ignore_ascii_case(value))
    };
    // upstream retired 36 to 38, so only Microsoft writes them; 39 is MXFP4 elsewhere
    if has(&[36, 37, 38]) || is("general.architecture", "bitnet-b1.58") {
        &[Microsoft]
    } else if has(&[142, 143]) {
        &[Prism]
    } else if !has(&[AMBIGUOUS]) {
        &[Ggml]
    } else if is("general.quantization_version", "TQ2_0_g128") {
        // a number in every other file; the block size equals that of the legacy format,
        // so only this key decides
        &[Ggml, OxiBonsai]
    } else {
        &[Ggml, PrismLegacy]
    }
}

/// Whether the last tensor ends at the end of the file.
#[derive(PartialEq, Eq)]
enum End {
    Exact,
    Early,
}

/// Compares the offsets with those that a writer of the dialect would produce.
fn fit(header: &Header, dialect: Dialect) -> Result<End, String> {
    let mut at = 0;
    let mut end = 0;
    for info in &header.infos {
        let wrong = |e| format!("tensor `{}`: {e}", shown(&info.name));
        if info.offset != at {
            return Err(format!("tensor `{}` has offset {}, expected {at}", shown(&info.name), info.offset));
        }
        let bytes = size(&info.dims, resolve(info.type_id, dialect).map_err(wrong)?).map_err(wrong)?;
        let next = |at: u64| {
            let end = at.checked_add(bytes)?;
            Some((end, end.checked_next_multiple_of(header.alignment)?))
        };
        (end, at) = next(at).ok_or_else(|| wrong(TensorError::TooLarge(info.dims.clone())))?;
    }
    match header.data_len {
        have if have < end => Err(format!("the tensors need {end} bytes, the file has {have}")),
        have if have <= at => Ok(End::Exact),
        _ => Ok(End::Early),
    }
}

/// The meaning of id 42 in a dialect, for errors.
fn reading(dialect: Dialect) -> String {
    match tern_quant::by_id(AMBIGUOUS, dialect) {
        Some(quant) => format!("{}-weight {}", quant.block_len, quant.name),
        None => format!("{dialect:?}"),
    }
}
