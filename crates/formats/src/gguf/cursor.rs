//! Sequential, bounds-checked reading of a header.

use std::fmt::Display;

use crate::FormatError;
use crate::limits::{self, MAX_ELEMENTS};

/// Limit of a header: the largest real ones have a tenth of it, and a hostile one could fill memory.
const MAX_HEADER: usize = 256 << 20;

/// Reads little-endian values one after another.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    cut: bool,
    /// Elements of all arrays so far.
    elements: u64,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a [u8]) -> Self {
        let bytes = &file[..file.len().min(MAX_HEADER)];
        Cursor { bytes, at: 0, cut: bytes.len() < file.len(), elements: 0 }
    }

    /// Bytes read so far.
    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    /// The next `len` bytes; `what` names the part of the file for errors.
    pub(super) fn take(&mut self, len: u64, what: &dyn Display) -> Result<&'a [u8], FormatError> {
        let rest = &self.bytes[self.at..];
        match usize::try_from(len).ok().and_then(|len| rest.get(..len)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None if self.cut => Err(self.too_large()),
            None => Err(FormatError::Truncated(what.to_string(), len, rest.len() as u64)),
        }
    }

    pub(super) fn u32(&mut self, what: &dyn Display) -> Result<u32, FormatError> {
        Ok(uint(self.take(4, what)?) as u32)
    }

    pub(super) fn u64(&mut self, what: &dyn Display) -> Result<u64, FormatError> {
        Ok(uint(self.take(8, what)?))
    }

    /// Rejects a count of entries that exceeds the rest of the file, before memory is allocated for them.
    pub(super) fn check_count(
        &self,
        count: u64,
        min_bytes: u64,
        what: &dyn Display,
    ) -> Result<(), FormatError> {
        let left = (self.bytes.len() - self.at) as u64;
        match count {
            _ if count <= left / min_bytes => Ok(()),
            _ if self.cut => Err(self.too_large()),
            _ => Err(FormatError::Count(what.to_string(), count, left)),
        }
    }

    /// Counts the elements of an array, and rejects too many in one file: as values, bytes become words.
    pub(super) fn count_elements(&mut self, count: u64) -> Result<(), FormatError> {
        self.elements = self.elements.saturating_add(count);
        limits::check("the arrays of the metadata", self.elements, MAX_ELEMENTS)
    }

    fn too_large(&self) -> FormatError {
        FormatError::HeaderTooLarge(self.bytes.len() as u64)
    }
}

/// An unsigned integer of up to eight bytes.
pub(super) fn uint(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

/// A signed integer of one to eight bytes.
pub(super) fn int(bytes: &[u8]) -> i64 {
    let unused = 64 - 8 * bytes.len().clamp(1, 8);
    (uint(bytes) << unused) as i64 >> unused
}

/// A float of four or eight bytes.
pub(super) fn float(bytes: &[u8]) -> f64 {
    match bytes.len() {
        4 => f32::from_bits(uint(bytes) as u32).into(),
        _ => f64::from_bits(uint(bytes)),
    }
}
