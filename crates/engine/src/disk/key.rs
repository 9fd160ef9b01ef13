//! What files are named by: the model, the adapters and all tokens up to the end of a page.
//!
//! Keys are SHA-256, chained: the key of a page is the hash of the key of the page before it and of its
//! tokens, the first of the model and the adapters. An image is in a key with the hash of its rows, because
//! its number is another one in every process.

use std::collections::HashMap;

use sha2::{Digest, Sha256};
use tern_graph::{AdapterScales, CachePart, ImageRows};

/// The bit of a token that stands for the row of an image.
pub(crate) const IMAGE: u32 = 1 << 31;

/// Images whose hashes are kept; pages with others are not written.
const MOST_IMAGES: usize = 1 << 16;

/// A hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key(pub(crate) [u8; 32]);

/// A file: the key of a content, and which part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileId {
    pub(crate) key: Key,
    pub(crate) part: CachePart,
}

/// What the keys of one engine begin with.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) model: Key,
    adapters: Key,
    /// The hashes of the rows of images, by number.
    images: HashMap<u32, Key>,
}

impl Key {
    /// The hash of some parts, one after the other.
    pub(crate) fn of(parts: &[&[u8]]) -> Key {
        let mut hash = Sha256::new();
        parts.iter().for_each(|part| hash.update(part));
        Key(hash.finalize().into())
    }

    /// The key of a page with these words after this one.
    pub(crate) fn then(self, words: &[u32]) -> Key {
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Key::of(&[&self.0, &words])
    }

    /// The hash of what an image adds to a sequence, whatever computed it.
    pub(crate) fn of_image(rows: &ImageRows) -> Key {
        let mut hash = Sha256::new();
        let [height, width] = rows.grid.map_or([u64::MAX; 2], |grid| grid.map(|side| side as u64));
        for size in [rows.width as u64, rows.len as u64, height, width] {
            hash.update(size.to_le_bytes());
        }
        let mut bytes = Vec::with_capacity(4096);
        for values in rows.values.chunks(1024) {
            bytes.clear();
            values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
            hash.update(&bytes);
        }
        Key(hash.finalize().into())
    }
}

impl Keys {
    pub(crate) fn new(model: [u8; 32], adapters: [u8; 32]) -> Keys {
        Keys { model: Key(model), adapters: Key(adapters), images: HashMap::new() }
    }

    /// What the first page of a text comes after. Without adapters it does not depend on those of the model.
    pub(crate) fn root(&self, adapters: &AdapterScales) -> Key {
        if adapters.is_empty() {
            return self.model;
        }
        let scales: Vec<u8> = adapters.scales().iter().flat_map(|s| s.to_bits().to_le_bytes()).collect();
        Key::of(&[&self.model.0, &self.adapters.0, &scales])
    }

    /// Keeps the hash of an image's rows.
    pub(crate) fn know_image(&mut self, number: u32, rows: Key) {
        if self.images.len() >= MOST_IMAGES {
            self.images.clear();
        }
        self.images.insert(number | IMAGE, rows);
    }

    /// The tokens of a page as they are in keys and files: one word each, and nine for the row of an image.
    /// `None` if an image is not known.
    pub(crate) fn words(&self, tokens: &[u32]) -> Option<Vec<u32>> {
        let mut words = Vec::with_capacity(tokens.len());
        for token in tokens {
            if token & IMAGE == 0 {
                words.push(*token);
                continue;
            }
            words.push(IMAGE);
            let (hash, _) = self.images.get(token)?.0.as_chunks::<4>();
            words.extend(hash.iter().map(|bytes| u32::from_le_bytes(*bytes)));
        }
        Some(words)
    }
}

impl FileId {
    /// `HASH.page`
    pub(crate) fn name(&self) -> String {
        let mut name = String::with_capacity(72);
        for byte in self.key.0 {
            let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
            name.extend([digit(byte >> 4), digit(byte & 15)]);
        }
        name.push('.');
        name.push_str(ending(self.part));
        name
    }

    /// The file of this name; `None` if no file has it.
    pub(crate) fn parse(name: &str) -> Option<FileId> {
        let (hash, ending_of) = name.split_once('.')?;
        let part = CachePart::ALL.into_iter().find(|part| ending(*part) == ending_of)?;
        let digit = |c: u8| match c {
            b'0'..=b'9' => Some(c - b'0'),
            b'a'..=b'f' => Some(c - b'a' + 10),
            _ => None,
        };
        let (pairs, rest) = hash.as_bytes().as_chunks::<2>();
        let mut key = [0; 32];
        if pairs.len() != key.len() || !rest.is_empty() {
            return None;
        }
        for (byte, [high, low]) in key.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(FileId { key: Key(key), part })
    }
}

fn ending(part: CachePart) -> &'static str {
    match part {
        CachePart::Page => "page",
        CachePart::WindowPage => "window",
        CachePart::StateSlot => "state",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_none() {
        for part in CachePart::ALL {
            let id = FileId { key: Key::of(&[b"a"]), part };
            assert_eq!(FileId::parse(&id.name()), Some(id));
        }
        let name = FileId { key: Key::of(&[b"a"]), part: CachePart::Page }.name();
        let upper = name.to_uppercase();
        for other in ["", "lock", ".page", &name[1..], &upper, &format!("{name}.tmp"), &format!("0{name}")] {
            assert_eq!(FileId::parse(other), None, "{other}");
        }
    }

    #[test]
    fn keys_differ_by_model_adapters_tokens_order_and_images() {
        let keys = Keys::new([1; 32], [2; 32]);
        let scales = |scales: &[f32]| AdapterScales::new(scales);
        let roots = [
            keys.root(&AdapterScales::NONE),
            keys.root(&scales(&[1.0])),
            keys.root(&scales(&[0.5])),
            keys.root(&scales(&[0.0, 1.0])),
            Keys::new([1; 32], [3; 32]).root(&scales(&[1.0])),
            Keys::new([4; 32], [2; 32]).root(&AdapterScales::NONE),
        ];
        let distinct: std::collections::BTreeSet<Key> = roots.into_iter().collect();
        assert_eq!(distinct.len(), roots.len());
        assert_eq!(keys.root(&AdapterScales::NONE), Keys::new([1; 32], [9; 32]).root(&AdapterScales::NONE));
        let chain = |pages: &[&[u32]]| pages.iter().fold(roots[0], |key, page| key.then(page));
        assert_ne!(chain(&[&[1, 2], &[3, 4]]), chain(&[&[3, 4], &[1, 2]]));
        assert_eq!(chain(&[&[1, 2], &[3, 4]]), chain(&[&[1, 2]]).then(&[3, 4]));
    }

    #[test]
    fn an_image_is_its_rows_and_not_its_number() {
        let rows =
            |values: Vec<f32>, grid| ImageRows { id: 7, width: 2, len: values.len() / 2, values, grid };
        let one = Key::of_image(&rows(vec![1.0, 2.0], None));
        assert_eq!(one, Key::of_image(&ImageRows { id: 8, ..rows(vec![1.0, 2.0], None) }));
        assert_ne!(one, Key::of_image(&rows(vec![1.0, 2.5], None)));
        assert_ne!(one, Key::of_image(&rows(vec![1.0, 2.0], Some([1, 1]))));
        let (mut here, mut there) = (Keys::new([0; 32], [0; 32]), Keys::new([0; 32], [0; 32]));
        here.know_image(7, one);
        there.know_image(9, one);
        assert_eq!(here.words(&[5, 7 | IMAGE]), there.words(&[5, 9 | IMAGE]));
        assert_eq!(here.words(&[5, 7 | IMAGE]).map(|words| words.len()), Some(10));
        assert_eq!(here.words(&[9 | IMAGE]), None, "an image that is not known");
    }
}
