//! Writing GGUF version 3 as a stream: metadata, tensor declarations, then the data of each tensor in order.

use std::io::{self, Write};

use indexmap::{IndexMap, map::Entry};
use tern_quant::Quant;

use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAX_KEY, MAX_NAME, size::size, value_type::ValueType};
use crate::{FormatError, KeyError, Metadata, TensorError, Value};

/// A model to write: its metadata and declared tensors.
///
/// ```
/// use tern_formats::{Checkpoint, Metadata, Value, gguf::Writer};
///
/// let mut metadata = Metadata::default();
/// metadata.insert("general.architecture", Value::String("qwen3".into()));
/// let mut writer = Writer::new(metadata);
/// writer.declare("output_norm.weight", &tern_quant::F32, &[4])?;
///
/// let mut file = Vec::new();
/// writer.write_to(&mut file, |_tensor, out| out.write_all(&[0; 16]))?;
/// assert_eq!(Checkpoint::from_bytes(file.into())?.tensors["output_norm.weight"].dims, [4]);
/// # Ok::<(), tern_formats::FormatError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Writer {
    metadata: Metadata,
    tensors: IndexMap<String, Declared>,
}

#[derive(Clone, Debug)]
struct Declared {
    dims: Vec<u64>,
    type_id: u32,
    bytes: u64,
}

impl Writer {
    /// A model with these key-value pairs and no tensors yet.
    pub fn new(metadata: Metadata) -> Writer {
        Writer { metadata, tensors: IndexMap::new() }
    }

    /// Adds a tensor; `dims[0]` is the fastest dimension. Data is written in the order of declaration.
    pub fn declare(&mut self, name: &str, quant: &'static Quant, dims: &[u64]) -> Result<(), FormatError> {
        let wrong = |e| FormatError::Tensor(name.into(), e);
        if !(1..=MAX_NAME).contains(&(name.len() as u64)) {
            return Err(wrong(TensorError::NameLength(name.len() as u64, MAX_NAME)));
        }
        if dims.is_empty() || dims.len() > 4 {
            return Err(wrong(TensorError::Dimensions(dims.len() as u32)));
        }
        if dims.contains(&0) {
            return Err(wrong(TensorError::ZeroDimension(dims.into())));
        }
        let bytes = size(dims, quant).map_err(wrong)?;
        let type_id = quant.gguf_id.ok_or_else(|| wrong(TensorError::NoTypeId(quant.name)))?;
        match self.tensors.entry(name.into()) {
            Entry::Vacant(slot) => slot.insert(Declared { dims: dims.into(), type_id, bytes }),
            Entry::Occupied(_) => return Err(wrong(TensorError::Duplicate)),
        };
        Ok(())
    }

    /// Size in bytes of the data of tensor `index`, in the order of declaration.
    pub fn tensor_bytes(&self, index: usize) -> Option<u64> {
        self.tensors.get_index(index).map(|(_, t)| t.bytes)
    }

    /// Writes the file and returns its size. `data` is called once per tensor, in order, and writes exactly
    /// its bytes; nothing is buffered here.
    pub fn write_to(
        &self,
        out: &mut dyn Write,
        mut data: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> Result<u64, FormatError> {
        let alignment = self.alignment()?;
        let mut out = Counting { out, written: 0 };
        out.write_all(&self.header(alignment)?).map_err(FormatError::Write)?;
        out.pad(alignment).map_err(FormatError::Write)?;
        for (i, (name, tensor)) in self.tensors.iter().enumerate() {
            let before = out.written;
            data(i, &mut out).map_err(FormatError::Write)?;
            let written = out.written - before;
            if written != tensor.bytes {
                return Err(FormatError::Tensor(name.clone(), TensorError::DataSize(tensor.bytes, written)));
            }
            out.pad(alignment).map_err(FormatError::Write)?;
        }
        Ok(out.written)
    }

    fn alignment(&self) -> Result<u64, FormatError> {
        match self.metadata.get(ALIGNMENT_KEY) {
            None => Ok(DEFAULT_ALIGNMENT),
            Some(Value::Uint(n)) if n.is_power_of_two() && *n <= u32::MAX.into() => Ok(*n),
            Some(Value::Uint(n)) => Err(FormatError::Key(ALIGNMENT_KEY.into(), KeyError::Alignment(*n))),
            Some(_) => Err(FormatError::Key(ALIGNMENT_KEY.into(), KeyError::AlignmentNotUint)),
        }
    }

    /// Everything before the data, without the padding.
    fn header(&self, alignment: u64) -> Result<Vec<u8>, FormatError> {
        let mut h = Vec::new();
        h.extend(b"GGUF");
        h.extend(3u32.to_le_bytes());
        h.extend((self.tensors.len() as u64).to_le_bytes());
        h.extend((self.metadata.iter().count() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            match key.len() as u64 {
                0 => return Err(FormatError::Key(String::new(), KeyError::Empty)),
                len if len > MAX_KEY => {
                    return Err(FormatError::Key("?".into(), KeyError::TooLong(len, MAX_KEY)));
                }
                _ => {}
            }
            put_string(&mut h, key);
            put_value(&mut h, key, value);
        }
        let mut offset = 0u64;
        for (name, tensor) in &self.tensors {
            put_string(&mut h, name);
            h.extend((tensor.dims.len() as u32).to_le_bytes());
            for dim in &tensor.dims {
                h.extend(dim.to_le_bytes());
            }
            h.extend(tensor.type_id.to_le_bytes());
            h.extend(offset.to_le_bytes());
            offset = offset
                .checked_add(tensor.bytes)
                .and_then(|end| end.checked_next_multiple_of(alignment))
                .ok_or_else(|| {
                    FormatError::Tensor(name.clone(), TensorError::TooLarge(tensor.dims.clone()))
                })?;
        }
        Ok(h)
    }
}

fn put_string(h: &mut Vec<u8>, text: &str) {
    h.extend((text.len() as u64).to_le_bytes());
    h.extend(text.as_bytes());
}

/// Types that readers require for certain keys, where [`number_type`] would choose another.
const FIXED: [(&str, ValueType); 4] = [
    ("split.no", ValueType::U16),
    ("split.count", ValueType::U16),
    ("split.tensors.count", ValueType::I32),
    ("tokenizer.ggml.precompiled_charsmap", ValueType::U8),
];

/// The 32-bit type if all numbers fit, otherwise the 64-bit type; the keys of [`FIXED`] have their own.
fn number_type(key: &str, numbers: impl Iterator<Item = i128> + Clone, signed: bool) -> ValueType {
    use ValueType::*;
    let fits = |ty: ValueType| {
        let (least, most) = match ty {
            U8 => (0, u8::MAX.into()),
            U16 => (0, u16::MAX.into()),
            U32 => (0, u32::MAX.into()),
            I32 => (i32::MIN.into(), i32::MAX.into()),
            _ => return true,
        };
        numbers.clone().all(|n| (least..=most).contains(&n))
    };
    let fixed = FIXED.iter().filter(|(fixed, _)| *fixed == key).map(|(_, ty)| *ty);
    let plain = if signed { [I32, I64] } else { [U32, U64] };
    fixed.chain(plain).find(|ty| fits(*ty)).unwrap_or(plain[1])
}

fn put_value(h: &mut Vec<u8>, key: &str, value: &Value) {
    use ValueType::*;
    let start = |h: &mut Vec<u8>, ty: ValueType| h.extend(ty.id().to_le_bytes());
    let start_array = |h: &mut Vec<u8>, ty: ValueType, count: usize| {
        h.extend(Array.id().to_le_bytes());
        h.extend(ty.id().to_le_bytes());
        h.extend((count as u64).to_le_bytes());
    };
    // two's complement: the low bytes are the same for every width
    let number = |h: &mut Vec<u8>, ty: ValueType, n: u64| h.extend(&n.to_le_bytes()[..ty.width() as usize]);
    match value {
        Value::Uint(n) => {
            let ty = number_type(key, [i128::from(*n)].into_iter(), false);
            start(h, ty);
            number(h, ty, *n);
        }
        Value::Int(n) => {
            let ty = number_type(key, [i128::from(*n)].into_iter(), true);
            start(h, ty);
            number(h, ty, *n as u64);
        }
        Value::Float(x) => {
            start(h, F32);
            h.extend((*x as f32).to_le_bytes());
        }
        Value::Bool(b) => {
            start(h, Bool);
            h.push((*b).into());
        }
        Value::String(text) => {
            start(h, String);
            put_string(h, text);
        }
        Value::Strings(texts) => {
            start_array(h, String, texts.len());
            texts.iter().for_each(|text| put_string(h, text));
        }
        Value::Uints(ns) => {
            let ty = number_type(key, ns.iter().map(|n| i128::from(*n)), false);
            start_array(h, ty, ns.len());
            ns.iter().for_each(|n| number(h, ty, *n));
        }
        Value::Ints(ns) => {
            let ty = number_type(key, ns.iter().map(|n| i128::from(*n)), true);
            start_array(h, ty, ns.len());
            ns.iter().for_each(|n| number(h, ty, *n as u64));
        }
        Value::Floats(xs) => {
            start_array(h, F32, xs.len());
            xs.iter().for_each(|x| h.extend(x.to_le_bytes()));
        }
        Value::Bools(bs) => {
            start_array(h, Bool, bs.len());
            h.extend(bs.iter().map(|b| u8::from(*b)));
        }
    }
}

/// Counts the bytes written.
struct Counting<'a> {
    out: &'a mut dyn Write,
    written: u64,
}

impl Counting<'_> {
    fn pad(&mut self, alignment: u64) -> io::Result<()> {
        let missing = self.written.next_multiple_of(alignment) - self.written;
        io::copy(&mut io::Read::take(io::repeat(0), missing), self).map(drop)
    }
}

impl Write for Counting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
