//! Writing a model as a GGUF file: the same weights in other floats or another layout, or quantised.
//!
//! The file is written beside its final name, read again and compared, and renamed only then.

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::Hasher;
use std::io::{BufWriter, Write};
use std::path::Path;

use tern_quant::{Codec, Quant};

use crate::gguf::Writer;
use crate::{Checkpoint, FormatError, Metadata, Tensor, Value};

/// How a model is written.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// The format of matrices; `None` leaves each tensor as it is.
    pub to: Option<&'static Quant>,
    /// Formats of tensors whose name contains a text; the first that fits counts.
    pub keep: Vec<KeptFormat>,
    /// Refuses to change a weight, other than by rounding floats to shorter floats.
    pub exact: bool,
    /// Threads that encode.
    pub threads: usize,
}

/// The format of some tensors.
#[derive(Clone, Debug)]
pub struct KeptFormat {
    /// A part of their names.
    pub part: String,
    /// Their format.
    pub format: &'static Quant,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertedFile {
    /// Bytes of the file.
    pub bytes: u64,
    /// Tensors in it.
    pub tensors: usize,
    /// Tensors that another format was used for than the requested one, because their rows do not divide into its blocks: the
    /// tensor and its format.
    pub fallbacks: Vec<(String, &'static str)>,
}

/// Matrices that are small or whose values matter more than their size.
const ALWAYS_F32: [&str; 8] = [
    "ffn_gate_inp",
    "ssm_conv1d",
    "shortconv.conv",
    "_norm",
    "position_embd",
    "token_types",
    "ssm_a",
    "ssm_d",
];

/// What a format is replaced by if rows are no whole number of its blocks, as llama.cpp does; others become F16.
const FALLBACKS: [(&str, &Quant); 10] = [
    ("Q2_K", &tern_quant::Q4_0),
    ("Q3_K", &tern_quant::Q4_0),
    ("TQ1_0", &tern_quant::Q4_0),
    ("TQ2_0", &tern_quant::Q4_0),
    ("Q2_0", &tern_quant::Q4_0),
    ("Q4_K", &tern_quant::Q5_0),
    ("Q5_K", &tern_quant::Q5_1),
    ("Q6_K", &tern_quant::Q8_0),
    ("IQ4_XS", &tern_quant::IQ4_NL),
    ("NVFP4", &tern_quant::Q4_0),
];

/// `general.file_type` of files that are mostly in a format.
const FILE_TYPES: [(&str, u64); 20] = [
    ("F32", 0),
    ("F16", 1),
    ("Q4_0", 2),
    ("Q4_1", 3),
    ("Q8_0", 7),
    ("Q5_0", 8),
    ("Q5_1", 9),
    ("Q2_K", 10),
    ("Q3_K", 12),
    ("Q4_K", 15),
    ("Q5_K", 17),
    ("Q6_K", 18),
    ("IQ4_NL", 25),
    ("IQ4_XS", 30),
    ("BF16", 32),
    ("TQ1_0", 36),
    ("TQ2_0", 37),
    ("MXFP4", 38),
    ("Q1_0", 40),
    ("Q2_0", 41),
];

impl Conversion {
    /// The format of a tensor, and whether it is another than the requested one.
    fn format_of(&self, tensor: &Tensor) -> (&'static Quant, bool) {
        let is_matrix = tensor.dims.len() > 1 && tensor.name.ends_with(".weight");
        let named = self.keep.iter().find(|keep| tensor.name.contains(&keep.part)).map(|keep| keep.format);
        let Some(wanted) = named.or(self.to) else { return (tensor.quant, false) };
        if !is_matrix || ALWAYS_F32.iter().any(|part| tensor.name.contains(part)) {
            return (tensor.quant, false);
        }
        let fits = |quant: &Quant| tensor.cols().is_multiple_of(quant.block_len);
        if fits(wanted) {
            return (wanted, false);
        }
        let other =
            FALLBACKS.iter().find(|(name, _)| *name == wanted.name).map_or(&tern_quant::F16, |(_, q)| *q);
        (if fits(other) { other } else { &tern_quant::F16 }, true)
    }

    /// Writes the model to `out`, checks the file and returns what it has. `progress` gets the bytes of the model that are done.
    ///
    /// ```no_run
    /// use tern_formats::{Checkpoint, Conversion};
    ///
    /// let model = Checkpoint::open("folder".as_ref())?;
    /// let conversion = Conversion { to: Some(&tern_quant::F16), keep: vec![], exact: true, threads: 2 };
    /// conversion.write(&model, "model.gguf".as_ref(), &mut |_| ())?;
    /// # Ok::<(), tern_formats::FormatError>(())
    /// ```
    pub fn write(
        &self,
        model: &Checkpoint,
        out: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<ConvertedFile, FormatError> {
        let mut writer = Writer::new(self.metadata(&model.metadata));
        let mut fallbacks = vec![];
        let mut formats = vec![];
        for tensor in model.tensors.values() {
            let (format, is_fallback) = self.format_of(tensor);
            if is_fallback {
                fallbacks.push((tensor.name.clone(), format.name));
            }
            self.check(tensor, format)?;
            writer.declare(&tensor.name, format, &tensor.dims)?;
            formats.push(format);
        }
        let part = part_of(out);
        let written = self.write_part(model, &writer, &formats, &part, progress);
        let finished = written.and_then(|(bytes, sums)| {
            check_file(&part, &formats, &sums)?;
            std::fs::rename(&part, out).map_err(|e| failed(out, &e.to_string()))?;
            Ok(bytes)
        });
        if finished.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        Ok(ConvertedFile { bytes: finished?, tensors: formats.len(), fallbacks })
    }

    /// Refuses what cannot be written before anything is.
    fn check(&self, tensor: &Tensor, to: &'static Quant) -> Result<(), FormatError> {
        let wrong = |why: String| Err(FormatError::Config(format!("{}: {why}", tensor.name)));
        if to == tensor.quant {
            return Ok(());
        }
        if !tensor.quant.is_runnable() {
            return wrong(format!("format {} cannot be decoded", tensor.quant));
        }
        if to.encode.is_none() {
            return wrong(format!("{to} can be read but not written"));
        }
        if self.exact && is_float(tensor.quant) && !is_float(to) {
            return wrong(format!("{to} would change its weights: use `tern quantize`"));
        }
        Ok(())
    }

    fn metadata(&self, source: &Metadata) -> Metadata {
        let mut metadata = source.clone();
        let Some(to) = self.to else { return metadata };
        if let Some((_, number)) = FILE_TYPES.iter().find(|(name, _)| *name == to.name) {
            metadata.insert("general.file_type", Value::Uint(*number));
        } else {
            metadata.remove("general.file_type");
        }
        if !is_float(to) {
            metadata.insert("general.quantization_version", Value::Uint(2));
        }
        metadata
    }

    /// Writes the file and returns its size and the hash of each tensor.
    fn write_part(
        &self,
        model: &Checkpoint,
        writer: &Writer,
        formats: &[&'static Quant],
        part: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(u64, Vec<u64>), FormatError> {
        let io = |e: std::io::Error| failed(part, &e.to_string());
        let mut file = BufWriter::with_capacity(1 << 20, File::create(part).map_err(io)?);
        let (mut sums, mut done, mut refused) = (vec![], 0, None);
        let bytes = writer.write_to(&mut file, |i, out| {
            let tensor = &model.tensors[i];
            let data = self.encoded(tensor, formats[i]).map_err(|e| {
                let text = e.to_string();
                refused = Some(e);
                std::io::Error::other(text)
            })?;
            sums.push(sum(&data));
            out.write_all(&data)?;
            done += tensor.bytes();
            progress(done);
            Ok(())
        });
        let bytes = bytes.map_err(|e| refused.unwrap_or(e))?;
        file.flush().map_err(io)?;
        file.get_ref().sync_all().map_err(io)?;
        Ok((bytes, sums))
    }

    /// The bytes of a tensor in a format.
    fn encoded(&self, tensor: &Tensor, to: &'static Quant) -> Result<bytes::Bytes, FormatError> {
        let data = tensor.data();
        if to == tensor.quant {
            return Ok(data);
        }
        let (cols, rows) = (tensor.cols(), tensor.rows());
        let source = Source { tensor, data: &data, to, exact: self.exact && !is_float(tensor.quant) };
        let workers = self.threads.clamp(1, rows.max(1));
        // enough rows for each part to be worth a thread
        let each = rows.div_ceil(workers).max((1 << 16) / cols.max(1)).max(1);
        let parts: Vec<Result<Vec<u8>, FormatError>> = std::thread::scope(|scope| {
            let starts = (0..rows).step_by(each);
            let source = &source;
            let spawned: Vec<_> = starts
                .map(|start| scope.spawn(move || source.rows(start..(start + each).min(rows))))
                .collect();
            let lost = || FormatError::Config(format!("{}: a thread has panicked", tensor.name));
            spawned.into_iter().map(|handle| handle.join().unwrap_or_else(|_| Err(lost()))).collect()
        });
        let mut out = Vec::new();
        for part in parts {
            out.extend(part?);
        }
        out.resize(out.len() + to.tail, 0);
        Ok(out.into())
    }
}

/// A tensor to encode.
struct Source<'a> {
    tensor: &'a Tensor,
    data: &'a [u8],
    to: &'static Quant,
    /// Each weight must be the same after it.
    exact: bool,
}

impl Source<'_> {
    /// Some rows, encoded.
    fn rows(&self, range: std::ops::Range<usize>) -> Result<Vec<u8>, FormatError> {
        let (from, cols) = (self.tensor.quant, self.tensor.cols());
        let row_bytes = cols / from.block_len * from.block_bytes();
        let tail = &self.data[self.data.len() - from.tail..];
        let (mut weights, mut again, mut out) = (vec![0.0; cols], vec![0.0; cols], Vec::new());
        for row in range {
            from.decode(&self.data[row * row_bytes..][..row_bytes], tail, &mut weights);
            let start = out.len();
            let wrong = |why: String| FormatError::Config(format!("{}: {why}", self.tensor.name));
            self.to.encode(&weights, &mut out).map_err(|e| wrong(e.to_string()))?;
            if self.exact {
                self.to.decode(&out[start..], &[], &mut again);
                if let Some(col) = weights.iter().zip(&again).position(|(a, b)| a != b) {
                    let (a, b, to) = (weights[col], again[col], self.to);
                    return Err(wrong(format!(
                        "weight {col} of row {row} is {a}, and would be {b} in {to}: use `tern quantize`"
                    )));
                }
            }
        }
        Ok(out)
    }
}

fn is_float(quant: &Quant) -> bool {
    matches!(quant.codec, Codec::Float(_))
}

fn sum(data: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(data);
    hasher.finish()
}

fn failed(path: &Path, why: &str) -> FormatError {
    FormatError::Config(format!("{}: {why}", path.display()))
}

/// The name of the file while it is written.
fn part_of(out: &Path) -> std::path::PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_os_string();
    name.push(".part");
    out.with_file_name(name)
}

/// Opens the file and compares each tensor with what was written.
fn check_file(path: &Path, formats: &[&'static Quant], sums: &[u64]) -> Result<(), FormatError> {
    let file = Checkpoint::open(path)?;
    let same = file.tensors.len() == sums.len()
        && file.tensors.values().zip(formats).zip(sums).all(|((tensor, format), want)| {
            tensor.quant.gguf_id == format.gguf_id && sum(&tensor.data()) == *want
        });
    match same {
        true => Ok(()),
        false => Err(failed(path, "the file differs from what was written to it")),
    }
}
