//! One file: a header that says what it is, the bytes of a page or a state, and a checksum.
//!
//! ```text
//! TERNKV01     the format and its version
//! model        32 bytes: the hash of the model and of how its pages are arranged
//! after        32 bytes: the key of the page before, which stands for all tokens before it and the adapters
//! part         4 bytes: page, window or state
//! words        4 bytes: their number
//! bytes        8 bytes: the length of the payload
//! ...          the words: the tokens themselves
//! ...          the payload
//! checksum     4 bytes: CRC-32 of everything before it
//! ```
//!
//! The reader of a file knows its whole header beforehand, so that it is compared, not interpreted, and its
//! length is known before a byte is read. All numbers are little-endian.

use std::fs::File;
use std::io::{self, Read, Write};

use tern_graph::CachePart;

use super::key::{FileId, Key};

const MAGIC: &[u8; 8] = b"TERNKV01";
const CHECKSUM: usize = 4;

/// What a file is expected to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) id: FileId,
    /// The key of the page before.
    pub(crate) after: Key,
    /// The tokens of the page.
    pub(crate) words: Vec<u32>,
    /// The number of the page in its text.
    pub(crate) at: usize,
}

impl Item {
    /// A part of the page that comes after another one.
    pub(crate) fn new(part: CachePart, at: usize, after: Key, words: Vec<u32>) -> Item {
        Item { id: FileId { key: after.then(&words), part }, after, words, at }
    }
}

/// The header of a file with a payload of this many bytes.
fn header(model: &Key, item: &Item, payload: usize) -> Vec<u8> {
    let part = CachePart::ALL.iter().position(|part| *part == item.id.part).unwrap_or(0) as u32;
    let mut bytes = Vec::with_capacity(88 + 4 * item.words.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&model.0);
    bytes.extend_from_slice(&item.after.0);
    bytes.extend_from_slice(&part.to_le_bytes());
    bytes.extend_from_slice(&(item.words.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(payload as u64).to_le_bytes());
    item.words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    bytes
}

/// The length of a file.
pub(crate) fn length(item: &Item, payload: usize) -> u64 {
    (header(&Key::default(), item, payload).len() + payload + CHECKSUM) as u64
}

/// Writes all of a file.
pub(crate) fn write(file: &mut File, model: &Key, item: &Item, payload: &[u8]) -> io::Result<()> {
    let header = header(model, item, payload.len());
    let mut sum = crc32fast::Hasher::new();
    sum.update(&header);
    sum.update(payload);
    file.write_all(&header)?;
    file.write_all(payload)?;
    file.write_all(&sum.finalize().to_le_bytes())
}

/// Reads the payload of a file, which has `payload` bytes; an error says what is wrong with the file.
pub(crate) fn read(file: &mut File, model: &Key, item: &Item, payload: usize) -> io::Result<Vec<u8>> {
    let wrong = |text: String| Err(io::Error::new(io::ErrorKind::InvalidData, text));
    let found = file.metadata()?;
    if !found.is_file() {
        return wrong("not a regular file".into());
    }
    let want = length(item, payload);
    if found.len() != want {
        return wrong(format!("want {want} bytes, the file has {}", found.len()));
    }
    let want = header(model, item, payload);
    let mut header = vec![0; want.len()];
    file.read_exact(&mut header)?;
    if header != want {
        return wrong(format!("{} differs", differing(&header, &want)));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(payload).map_err(io::Error::other)?;
    (&mut *file).take(payload as u64).read_to_end(&mut bytes)?;
    let mut sum = crc32fast::Hasher::new();
    sum.update(&header);
    sum.update(&bytes);
    let mut stored = [0; CHECKSUM];
    file.read_exact(&mut stored)?;
    if bytes.len() != payload || u32::from_le_bytes(stored) != sum.finalize() {
        return wrong("the checksum is wrong".into());
    }
    Ok(bytes)
}

/// The first field in which a header is not the expected one.
fn differing(header: &[u8], want: &[u8]) -> &'static str {
    let at = header.iter().zip(want).position(|(a, b)| a != b).unwrap_or(0);
    match at {
        0..8 => "the version",
        8..40 => "the model",
        40..72 => "the text before",
        72..76 => "the part",
        76..88 => "a length",
        _ => "a token",
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom};

    use super::*;

    fn written(model: &Key, item: &Item, payload: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        write(&mut file, model, item, payload).unwrap();
        file
    }

    fn read_from_start(file: &mut File, model: &Key, item: &Item, payload: usize) -> Result<Vec<u8>, String> {
        file.seek(SeekFrom::Start(0)).unwrap();
        read(file, model, item, payload).map_err(|e| e.to_string())
    }

    #[test]
    fn a_file_is_read_only_as_what_it_is() {
        let (model, after) = (Key::of(&[b"model"]), Key::of(&[b"before"]));
        let item = Item::new(CachePart::Page, 3, after, vec![1, 2, 3]);
        let payload: Vec<u8> = (0..500u32).map(|i| i as u8).collect();
        let mut file = written(&model, &item, &payload);
        assert_eq!(file.metadata().unwrap().len(), length(&item, payload.len()));
        assert_eq!(read_from_start(&mut file, &model, &item, 500), Ok(payload));
        let mut refused =
            |model: &Key, item: &Item, payload| read_from_start(&mut file, model, item, payload).unwrap_err();
        assert_eq!(refused(&after, &item, 500), "the model differs");
        let other = Item { after: model, ..item.clone() };
        assert_eq!(refused(&model, &other, 500), "the text before differs");
        // what a collision of hashes would be: the same name, other tokens
        let other = Item { words: vec![1, 9, 3], ..item.clone() };
        assert_eq!(refused(&model, &other, 500), "a token differs");
        let state = FileId { part: CachePart::StateSlot, ..item.id };
        assert_eq!(refused(&model, &Item { id: state, ..item.clone() }, 500), "the part differs");
        assert_eq!(refused(&model, &item, 501), "want 605 bytes, the file has 604");
    }

    #[test]
    fn every_changed_byte_and_every_missing_end_is_found() {
        let (model, after) = (Key::of(&[b"model"]), Key::of(&[b"before"]));
        let item = Item::new(CachePart::StateSlot, 0, after, vec![7; 4]);
        let payload = [5; 40];
        let len = length(&item, payload.len());
        for at in 0..len {
            let mut file = written(&model, &item, &payload);
            let mut byte = [0];
            file.seek(SeekFrom::Start(at)).unwrap();
            file.read_exact(&mut byte).unwrap();
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(&[byte[0] ^ 1 << (at % 8)]).unwrap();
            assert!(read_from_start(&mut file, &model, &item, payload.len()).is_err(), "byte {at}");
            let mut file = written(&model, &item, &payload);
            file.set_len(at).unwrap();
            assert!(read_from_start(&mut file, &model, &item, payload.len()).is_err(), "{at} bytes");
        }
        let mut file = written(&model, &item, &payload);
        file.set_len(len + 1).unwrap();
        assert!(read_from_start(&mut file, &model, &item, payload.len()).is_err(), "a longer file");
    }
}
