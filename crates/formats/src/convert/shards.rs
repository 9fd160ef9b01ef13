//! The files of a model: one, or several if it is split.

use std::ops::Range;
use std::path::{Path, PathBuf};

use tern_quant::Dialect;

use super::Conversion;
use crate::gguf::Writer;
use crate::split::{self, ShardName};
use crate::{Checkpoint, FormatError, Metadata, Value};

/// The version of quantization, and what files of OxiBonsai have instead of a number.
const VERSION: &str = "general.quantization_version";
const OXI_BONSAI: &str = "TQ2_0_g128";

/// The keys of a conversion; its formats decide about the one that tells files of OxiBonsai from others.
fn named_dialect(conversion: &Conversion<'_>) -> Metadata {
    let mut metadata = conversion.metadata.clone();
    let oxi_bonsai = conversion.tensors.iter().any(|target| target.format.dialect == Dialect::OxiBonsai);
    let named = metadata.optional_str(VERSION).is_ok_and(|name| name == Some(OXI_BONSAI));
    match (oxi_bonsai, named) {
        (true, _) => drop(metadata.insert(VERSION, Value::String(OXI_BONSAI.into()))),
        (false, true) => drop(metadata.insert(VERSION, Value::Uint(2))),
        (false, false) => {}
    }
    metadata
}

/// One file: its header, and which tensors of the model it has.
pub(super) struct Shard {
    pub(super) path: PathBuf,
    pub(super) writer: Writer,
    pub(super) tensors: Range<usize>,
}

impl Shard {
    /// The files of a conversion. Those of a split model have numbers in their names, and the first one has all keys.
    pub(super) fn plan(
        conversion: &Conversion<'_>,
        model: &Checkpoint,
        out: &Path,
    ) -> Result<Vec<Shard>, FormatError> {
        let metadata = named_dialect(conversion);
        let mut all = Writer::new(metadata.clone());
        for (tensor, target) in model.tensors.values().zip(&conversion.tensors) {
            all.declare(&tensor.name, target.format, &tensor.dims)?;
        }
        let size = |i: usize| all.tensor_bytes(i).unwrap_or(0);
        let (mut ends, mut bytes) = (vec![], 0u64);
        for i in 0..conversion.tensors.len() {
            if bytes > 0 && conversion.max_file.is_some_and(|most| bytes.saturating_add(size(i)) > most) {
                ends.push(i);
                bytes = 0;
            }
            bytes += size(i);
        }
        ends.push(conversion.tensors.len());
        if ends.len() == 1 {
            return Ok(vec![Shard { path: out.into(), writer: all, tensors: 0..ends[0] }]);
        }
        let count = ends.len() as u64;
        let name = ShardName::of(&out.file_stem().unwrap_or_default().to_string_lossy(), count)
            .ok_or(FormatError::ManyFiles(count))?;
        let starts = [0].into_iter().chain(ends.iter().copied());
        let shards = starts.zip(&ends).enumerate().map(|(i, (start, end))| {
            let mut metadata = if i == 0 { metadata.clone() } else { Metadata::default() };
            let numbers = [i as u64, count, conversion.tensors.len() as u64];
            split::KEYS.iter().zip(numbers).for_each(|(key, n)| drop(metadata.insert(*key, Value::Uint(n))));
            let mut writer = Writer::new(metadata);
            for i in start..*end {
                let (tensor, target) = (&model.tensors[i], &conversion.tensors[i]);
                writer.declare(&tensor.name, target.format, &tensor.dims)?;
            }
            let path = out.with_file_name(name.sibling(i as u64 + 1));
            Ok(Shard { path, writer, tensors: start..*end })
        });
        shards.collect()
    }
}
