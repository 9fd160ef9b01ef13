//! Classes of characters as sequences of bytes in UTF-8.

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};
use regex_syntax::utf8::Utf8Sequences;

/// A set of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ByteSet([u64; 4]);

impl ByteSet {
    pub(super) fn range(first: u8, last: u8) -> ByteSet {
        let mut set = ByteSet::default();
        (first..=last).for_each(|byte| set.0[usize::from(byte) / 64] |= 1 << (byte % 64));
        set
    }

    pub(super) fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte) / 64] >> (byte % 64) & 1 == 1
    }

    fn is_empty(&self) -> bool {
        *self == ByteSet::default()
    }

    fn add(&mut self, other: ByteSet) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own |= other);
    }
}

/// The sequences of bytes that spell one character of these ranges, or of all others if `negated`.
pub(super) fn of_class(ranges: &[(char, char)], negated: bool) -> Vec<Vec<ByteSet>> {
    let mut class =
        ClassUnicode::new(ranges.iter().map(|&(first, last)| ClassUnicodeRange::new(first, last)));
    if negated {
        class.negate();
    }
    let mut single = ByteSet::default();
    let mut sequences = vec![];
    for range in class.iter() {
        for sequence in Utf8Sequences::new(range.start(), range.end()) {
            let sets: Vec<ByteSet> =
                sequence.as_slice().iter().map(|bytes| ByteSet::range(bytes.start, bytes.end)).collect();
            match sets.as_slice() {
                [one] => single.add(*one),
                _ => sequences.push(sets),
            }
        }
    }
    sequences.extend((!single.is_empty()).then(|| vec![single]));
    sequences
}
