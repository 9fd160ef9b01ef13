//! Files for tests: small valid ones, and ones written byte by byte.
#![allow(dead_code, reason = "each test binary uses its own part")]

use tern_formats::{Checkpoint, Metadata, Value, gguf::Writer};
use tern_quant::Quant;

/// A tensor to write: name, format, dims.
pub(crate) type Wanted<'a> = (&'a str, &'static Quant, &'a [u64]);

/// The data that tests give to tensor `index`.
pub(crate) fn pattern(index: usize, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| (i as usize * 7 + index * 31) as u8).collect()
}

/// A valid file with these pairs and tensors, each filled with its [`pattern`].
pub(crate) fn file(pairs: &[(&str, Value)], tensors: &[Wanted<'_>]) -> Vec<u8> {
    let mut metadata = Metadata::default();
    for (key, value) in pairs {
        metadata.insert(*key, value.clone());
    }
    let mut writer = Writer::new(metadata);
    for (name, quant, dims) in tensors {
        writer.declare(name, quant, dims).expect("a valid tensor");
    }
    let sizes: Vec<u64> = (0..tensors.len()).filter_map(|i| writer.tensor_bytes(i)).collect();
    let mut out = Vec::new();
    writer.write_to(&mut out, |i, w| w.write_all(&pattern(i, sizes[i]))).expect("a valid file");
    out
}

/// A string value.
pub(crate) fn text(s: &str) -> Value {
    Value::String(s.into())
}

/// The error message for the bytes.
pub(crate) fn refusal(bytes: Vec<u8>) -> String {
    match Checkpoint::from_bytes(bytes.into()) {
        Ok(_) => "accepted".into(),
        Err(e) => e.to_string(),
    }
}

/// Writes a file byte by byte, valid or not.
#[derive(Clone, Default)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    /// Magic, version and the two counts.
    pub(crate) fn new(version: u32, tensors: u64, pairs: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(version).u64(tensors).u64(pairs)
    }

    pub(crate) fn u32(mut self, n: u32) -> Raw {
        self.0.extend(n.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, n: u64) -> Raw {
        self.0.extend(n.to_le_bytes());
        self
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn string(self, s: &str) -> Raw {
        self.u64(s.len() as u64).bytes(s.as_bytes())
    }

    /// A pair whose value is given as bytes.
    pub(crate) fn pair(self, key: &str, ty: u32, value: &[u8]) -> Raw {
        self.string(key).u32(ty).bytes(value)
    }

    /// A tensor info.
    pub(crate) fn info(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Raw {
        let start = self.string(name).u32(dims.len() as u32);
        dims.iter().fold(start, |raw, &d| raw.u64(d)).u32(ty).u64(offset)
    }

    /// Padding to 32 bytes, then `bytes` zeros.
    pub(crate) fn data(mut self, bytes: usize) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(32) + bytes, 0);
        self.0
    }
}
