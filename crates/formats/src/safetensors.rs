//! One safetensors file: a JSON header with the dtype, shape and range of each tensor, then the data.
//!
//! The header is parsed here and not by the `safetensors` crate: its errors name neither the tensor nor both
//! numbers, and it has no dtypes of quantised checkpoints that it does not know itself.

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::limits::{self, MAX_TENSORS};
use crate::{FormatError, TensorError, shown};

/// The largest header: far more than the largest model needs.
const MAX_HEADER: u64 = 100 << 20;
/// Longest name in bytes; the longest ones of known models have some 100.
const MAX_NAME: usize = 1024;

/// The type of the elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dtype {
    pub(crate) name: &'static str,
    /// Bytes of an element.
    pub(crate) bytes: u64,
}

/// Every dtype of whole bytes.
pub(crate) static DTYPES: &[Dtype] = &[
    Dtype { name: "F64", bytes: 8 },
    Dtype { name: "F32", bytes: 4 },
    Dtype { name: "F16", bytes: 2 },
    Dtype { name: "BF16", bytes: 2 },
    Dtype { name: "F8_E4M3", bytes: 1 },
    Dtype { name: "F8_E5M2", bytes: 1 },
    Dtype { name: "F8_E8M0", bytes: 1 },
    Dtype { name: "I64", bytes: 8 },
    Dtype { name: "I32", bytes: 4 },
    Dtype { name: "I16", bytes: 2 },
    Dtype { name: "I8", bytes: 1 },
    Dtype { name: "U64", bytes: 8 },
    Dtype { name: "U32", bytes: 4 },
    Dtype { name: "U16", bytes: 2 },
    Dtype { name: "U8", bytes: 1 },
    Dtype { name: "BOOL", bytes: 1 },
];

/// One tensor of a file.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    /// The slowest dimension first; empty for a scalar.
    pub(crate) shape: Vec<u64>,
    pub(crate) data: Bytes,
}

/// The tensors of a file, in the order of their data.
pub(crate) fn read(bytes: &Bytes) -> Result<Vec<Entry>, FormatError> {
    let wrong = |text: String| FormatError::Safetensors(text);
    let size = bytes.len() as u64;
    let Some(length) = bytes.first_chunk::<8>().map(|b| u64::from_le_bytes(*b)) else {
        return Err(wrong(format!(
            "the file has {size} bytes: want at least 8 for the length of its header"
        )));
    };
    if length > MAX_HEADER || length > size - 8 {
        let most = MAX_HEADER.min(size - 8);
        return Err(wrong(format!("the header has {length} bytes: want at most {most} in a file of {size}")));
    }
    let (header, data) = (bytes.slice(8..8 + length as usize), bytes.slice(8 + length as usize..));
    let mut json = serde_json::Deserializer::from_slice(&header);
    let parsed = json.deserialize_map(Places { available: data.len() as u64 });
    let parsed = parsed.and_then(|places| json.end().map(|()| places));
    let mut entries = parsed.map_err(|e| wrong(format!("the header is not a JSON object: {e}")))??;
    let mut names = HashSet::with_capacity(entries.len());
    if let Some(twice) = entries.iter().find(|place| !names.insert(&place.name)) {
        return Err(FormatError::Tensor(twice.name.clone(), TensorError::Duplicate));
    }
    entries.sort_by_key(|place| (place.start, place.end));
    let mut end = 0;
    for place in &entries {
        if place.start != end {
            let (name, start) = (shown(&place.name), place.start);
            return Err(wrong(format!(
                "tensor `{name}` starts at byte {start} of the data: want {end}, without gaps or overlaps"
            )));
        }
        end = place.end;
    }
    if end != data.len() as u64 {
        return Err(wrong(format!("the tensors have {end} bytes, the file has {} of data", data.len())));
    }
    let entry = |Place { name, dtype, shape, start, end }| {
        let data = data.slice(start as usize..end as usize);
        Entry { name, dtype, shape, data }
    };
    Ok(entries.into_iter().map(entry).collect())
}

/// Reads the object of a header, one tensor after the other: as JSON values, all of them would
/// need ten times the bytes.
struct Places {
    /// Bytes of data in the file.
    available: u64,
}

impl<'de> Visitor<'de> for Places {
    type Value = Result<Vec<Place>, FormatError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut places, mut count, mut refused) = (vec![], 0, None);
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            count += 1;
            if count > MAX_TENSORS || refused.is_some() {
                map.next_value::<IgnoredAny>()?; // to the end of the JSON, and to the number of tensors
                continue;
            }
            let value = map.next_value::<Value>()?;
            match Place::parse(name, &value, self.available) {
                Ok(place) => places.push(place),
                Err(e) => refused = Some(e),
            }
        }
        let counted = limits::check("the header", count, MAX_TENSORS);
        Ok(counted.and(refused.map_or(Ok(places), Err)))
    }
}

/// What the header says about one tensor.
struct Place {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    start: u64,
    end: u64,
}

impl Place {
    fn parse(name: String, value: &Value, available: u64) -> Result<Place, FormatError> {
        if name.len() > MAX_NAME {
            let length = TensorError::NameLength(name.len() as u64, MAX_NAME as u64);
            return Err(FormatError::Tensor(name, length));
        }
        let wrong = |text: String| FormatError::Safetensors(format!("tensor `{}`: {text}", shown(&name)));
        let numbers = |key: &str| -> Option<Vec<u64>> {
            value.get(key)?.as_array()?.iter().map(Value::as_u64).collect()
        };
        let dtype =
            value.get("dtype").and_then(Value::as_str).ok_or_else(|| wrong("`dtype` is missing".into()))?;
        let dtype = *DTYPES.iter().find(|known| known.name == dtype).ok_or_else(|| {
            let known: Vec<_> = DTYPES.iter().map(|d| d.name).collect();
            wrong(format!("dtype {} is unknown: want one of {}", shown(dtype), known.join(", ")))
        })?;
        let shape = numbers("shape").ok_or_else(|| wrong("`shape` is not a list of sizes".into()))?;
        let Some([start, end]) = numbers("data_offsets").and_then(|range| <[u64; 2]>::try_from(range).ok())
        else {
            return Err(wrong("`data_offsets` is not a pair of offsets".into()));
        };
        if start > end || end > available {
            return Err(wrong(format!(
                "bytes {start} to {end} exceed the {available} bytes of data in the file"
            )));
        }
        let bytes = shape.iter().try_fold(dtype.bytes, |n, d| n.checked_mul(*d));
        if bytes != Some(end - start) {
            let want = bytes.map_or("too many".into(), |bytes| bytes.to_string());
            let text =
                format!("shape {shape:?} of {} needs {want} bytes, the file has {}", dtype.name, end - start);
            return Err(wrong(text));
        }
        Ok(Place { name, dtype, shape, start, end })
    }
}
