//! Parsing a header: every count and length is checked against the rest of the file before it is used.

use std::{collections::HashSet, fmt};

use super::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAX_KEY, MAX_NAME,
    cursor::{Cursor, float, int, uint},
    value_type::ValueType,
};
use crate::limits::{self, MAX_KEYS, MAX_TENSORS};
use crate::{FormatError, KeyError, Metadata, TensorError, Value, shown};

/// Everything in a file before the tensor data.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) metadata: Metadata,
    pub(crate) alignment: u64,
    pub(crate) infos: Vec<Info>,
    /// File position of the tensor data; tensor offsets are relative to it.
    pub(crate) data_start: u64,
    /// Bytes from `data_start` to the end of the file.
    pub(crate) data_len: u64,
}

/// The header's entry for one tensor. The type id is interpreted once the dialect is known.
#[derive(Debug)]
pub(crate) struct Info {
    pub(crate) name: String,
    pub(crate) dims: Vec<u64>,
    pub(crate) type_id: u32,
    pub(crate) offset: u64,
}

/// The part of the file being read, for error messages.
enum Part<'a> {
    Header,
    Metadata,
    Value(&'a str),
    Tensors,
    Tensor(&'a str),
}

impl fmt::Display for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Header => write!(f, "the header"),
            Part::Metadata => write!(f, "the metadata"),
            Part::Value(key) => write!(f, "metadata key `{}`", shown(key)),
            Part::Tensors => write!(f, "the tensor list"),
            Part::Tensor(name) => write!(f, "the entry of tensor `{}`", shown(name)),
        }
    }
}

/// Parses the header; does not touch the data after it.
pub(crate) fn read(file: &[u8]) -> Result<Header, FormatError> {
    if !file.starts_with(b"GGUF") {
        return Err(FormatError::NotGguf(file[..file.len().min(4)].into()));
    }
    let mut cursor = Cursor::new(file);
    cursor.take(4, &Part::Header)?;
    let version = match cursor.u32(&Part::Header)? {
        version @ 2..=3 => version,
        1 => return Err(FormatError::VersionOne),
        0 => return Err(FormatError::UnknownVersion(0)),
        // there is no flag for big-endian: a small version number then has its bits in the high bytes
        swapped if swapped & 0xffff == 0 => return Err(FormatError::BigEndian(swapped.swap_bytes())),
        other => return Err(FormatError::UnknownVersion(other)),
    };
    let tensor_count = cursor.u64(&Part::Header)?;
    let pair_count = cursor.u64(&Part::Header)?;

    let (metadata, alignment) = read_metadata(&mut cursor, pair_count)?;
    let infos = read_infos(&mut cursor, tensor_count)?;
    let data_start = cursor.at().next_multiple_of(alignment);
    let data_len = (file.len() as u64).saturating_sub(data_start);
    Ok(Header { version, metadata, alignment, infos, data_start, data_len })
}

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<(Metadata, u64), FormatError> {
    cursor.check_count(count, 14, &Part::Metadata)?; // key of 8 + 1 bytes, type of 4, value of 1
    limits::check("the metadata", count, MAX_KEYS)?;
    let mut metadata = Metadata::default();
    let mut alignment = DEFAULT_ALIGNMENT;
    for _ in 0..count {
        let key = read_key(cursor)?;
        let wrong = |e| FormatError::Key(key.clone(), e);
        let ty = read_type(cursor, &key)?;
        let value = read_value(cursor, &key, ty)?;
        if key == ALIGNMENT_KEY {
            alignment = match (ty, &value) {
                (ValueType::U32, Value::Uint(n)) if n.is_power_of_two() => *n,
                (ValueType::U32, Value::Uint(n)) => return Err(wrong(KeyError::Alignment(*n))),
                _ => return Err(wrong(KeyError::AlignmentType(ty.id()))),
            };
        }
        if metadata.get(&key).is_some() {
            return Err(wrong(KeyError::Duplicate));
        }
        metadata.insert(key, value);
    }
    Ok((metadata, alignment))
}

fn read_key(cursor: &mut Cursor<'_>) -> Result<String, FormatError> {
    let len = cursor.u64(&Part::Metadata)?;
    if len == 0 {
        return Err(FormatError::Key(String::new(), KeyError::Empty));
    }
    if len > MAX_KEY {
        return Err(FormatError::Key("?".into(), KeyError::TooLong(len, MAX_KEY)));
    }
    let bytes = cursor.take(len, &Part::Metadata)?;
    let lossy = || FormatError::Key(String::from_utf8_lossy(bytes).into(), KeyError::NotUtf8);
    str::from_utf8(bytes).map(Into::into).map_err(|_| lossy())
}

fn read_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, FormatError> {
    let id = cursor.u32(&Part::Value(key))?;
    ValueType::from_id(id).ok_or_else(|| FormatError::Key(key.into(), KeyError::UnknownType(id)))
}

fn read_value(cursor: &mut Cursor<'_>, key: &str, ty: ValueType) -> Result<Value, FormatError> {
    use ValueType::*;
    Ok(match ty {
        String => Value::String(read_string(cursor, key)?),
        Array => return read_array(cursor, key),
        _ => {
            let bytes = cursor.take(ty.width(), &Part::Value(key))?;
            match ty {
                U8 | U16 | U32 | U64 => Value::Uint(uint(bytes)),
                I8 | I16 | I32 | I64 => Value::Int(int(bytes)),
                F32 | F64 => Value::Float(float(bytes)),
                Bool | String | Array => Value::Bool(read_bool(bytes[0], key)?),
            }
        }
    })
}

fn read_array(cursor: &mut Cursor<'_>, key: &str) -> Result<Value, FormatError> {
    use ValueType::*;
    let ty = read_type(cursor, key)?;
    let count = cursor.u64(&Part::Value(key))?;
    if ty == Array {
        return Err(FormatError::Key(key.into(), KeyError::NestedArray));
    }
    cursor.check_count(count, ty.width(), &Part::Value(key))?;
    cursor.count_elements(count)?;
    if ty == String {
        let strings: Result<Vec<_>, _> = (0..count).map(|_| read_string(cursor, key)).collect();
        return Ok(Value::Strings(strings?));
    }
    let bytes = cursor.take(count * ty.width(), &Part::Value(key))?; // no overflow: the count fits the file
    let each = bytes.chunks_exact(ty.width() as usize);
    Ok(match ty {
        U8 | U16 | U32 | U64 => Value::Uints(each.map(uint).collect()),
        I8 | I16 | I32 | I64 => Value::Ints(each.map(int).collect()),
        F32 | F64 => Value::Floats(each.map(|b| float(b) as f32).collect()),
        Bool | String | Array => {
            Value::Bools(bytes.iter().map(|&b| read_bool(b, key)).collect::<Result<_, _>>()?)
        }
    })
}

fn read_string(cursor: &mut Cursor<'_>, key: &str) -> Result<String, FormatError> {
    let len = cursor.u64(&Part::Value(key))?;
    let bytes = cursor.take(len, &Part::Value(key))?;
    let text = str::from_utf8(bytes).map_err(|_| FormatError::Key(key.into(), KeyError::NotUtf8))?;
    Ok(text.into())
}

fn read_bool(byte: u8, key: &str) -> Result<bool, FormatError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(FormatError::Key(key.into(), KeyError::Bool(other))),
    }
}

fn read_infos(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Info>, FormatError> {
    // name of 8 + 1 bytes, dimension count 4, type 4, offset 8
    cursor.check_count(count, 25, &Part::Tensors)?;
    limits::check("the tensor list", count, MAX_TENSORS)?;
    let infos: Vec<Info> = (0..count).map(|i| read_info(cursor, i)).collect::<Result<_, _>>()?;
    let mut seen = HashSet::with_capacity(infos.len());
    match infos.iter().find(|info| !seen.insert(&info.name)) {
        Some(twice) => Err(FormatError::Tensor(twice.name.clone(), TensorError::Duplicate)),
        None => Ok(infos),
    }
}

fn read_info(cursor: &mut Cursor<'_>, index: u64) -> Result<Info, FormatError> {
    let nameless = |e| FormatError::Tensor(format!("#{index}"), e);
    let len = cursor.u64(&Part::Tensors)?;
    if !(1..=MAX_NAME).contains(&len) {
        return Err(nameless(TensorError::NameLength(len, MAX_NAME)));
    }
    let name =
        str::from_utf8(cursor.take(len, &Part::Tensors)?).map_err(|_| nameless(TensorError::NameNotUtf8))?;
    let part = Part::Tensor(name);
    let wrong = |e| FormatError::Tensor(name.into(), e);

    let n_dims = cursor.u32(&part)?;
    if n_dims > 4 {
        return Err(wrong(TensorError::Dimensions(n_dims)));
    }
    let mut dims = (0..n_dims).map(|_| cursor.u64(&part)).collect::<Result<Vec<_>, _>>()?;
    if dims.contains(&0) {
        return Err(wrong(TensorError::ZeroDimension(dims)));
    }
    if dims.is_empty() {
        dims.push(1); // a scalar is a row of one
    }
    let type_id = cursor.u32(&part)?;
    let offset = cursor.u64(&part)?;
    Ok(Info { name: name.into(), dims, type_id, offset })
}
