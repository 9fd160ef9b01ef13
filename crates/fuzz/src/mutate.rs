//! Mutation of inputs.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use tern_graph::Random;

use crate::record::LONGEST;

/// Numbers that often reveal errors.
const NUMBERS: [u64; 12] =
    [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 32, 1 << 60, i64::MAX as u64, u64::MAX];

/// Applies one to eight changes to an input; `other` may be spliced in, `words` may be inserted.
pub(crate) fn mutate(random: &mut Random, input: &[u8], other: &[u8], words: &[&str]) -> Vec<u8> {
    let mut new = input.to_vec();
    for _ in 0..1 << random.below(4) {
        let at = random.below(new.len() + 1);
        let most = 1 << random.below(8);
        let len = 1 + random.below(most);
        let end = (at + len).min(new.len());
        match random.below(10) {
            0 if at < new.len() => new[at] ^= 1 << random.below(8),
            1 if at < new.len() => new[at] = random.below(256) as u8,
            2 if at + 8 <= new.len() => {
                let bytes = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
                let width = 1 << random.below(4);
                new[at..at + width].copy_from_slice(&bytes[..width]);
            }
            3 => drop(new.drain(at..end)),
            // repeats a part once or many times at another position
            4 => insert(&mut new, at, &input.get(at..end).unwrap_or(input).repeat(1 + random.below(4))),
            5 => insert(&mut new, at, &input[..input.len().min(len)].repeat(1 + random.below(64))),
            6 => {
                let from = random.below(other.len() + 1);
                insert(&mut new, at, &other[from..(from + len).min(other.len())]);
            }
            7 | 8 if !words.is_empty() => insert(&mut new, at, words[random.below(words.len())].as_bytes()),
            _ => new.truncate(new.len().max(1) - random.below(new.len().max(1)) / 8),
        }
    }
    new.truncate(LONGEST);
    new
}

fn insert(input: &mut Vec<u8>, at: usize, part: &[u8]) {
    let at = at.min(input.len());
    input.splice(at..at, part.iter().copied());
}

/// The file name of an input.
pub(crate) fn hash(input: &[u8]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(input)
}
