//! safetensors files: a header of JSON, then the tensors one after the other.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::super::matrix::Matrix;
use super::write_json;
use crate::FormatError;

/// Headers end at a multiple of this.
const ALIGNMENT: usize = 8;

/// Writes tensors to one file, or to several with an index if they have more than `most` bytes. Returns the
/// files and their bytes.
pub(super) fn write(
    folder: &Path,
    tensors: &[(String, Matrix)],
    most: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<(usize, u64), FormatError> {
    let mut parts: Vec<(Vec<&(String, Matrix)>, u64)> = vec![];
    for tensor in tensors {
        let bytes = bytes_of(&tensor.1);
        match parts.last_mut().filter(|(_, total)| *total + bytes <= most) {
            Some((part, total)) => {
                part.push(tensor);
                *total += bytes;
            }
            None => parts.push((vec![tensor], bytes)),
        }
    }
    let (count, mut done, mut total) = (parts.len(), 0, 0);
    let mut places = Map::new();
    for (i, (part, bytes)) in parts.iter().enumerate() {
        let name = match count {
            1 => "model.safetensors".to_string(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        let path = folder.join(&name);
        let io = |e| FormatError::Io(path.clone(), e);
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&path).map_err(io)?);
        let header = header(part);
        file.write_all(&(header.len() as u64).to_le_bytes())
            .and_then(|()| file.write_all(&header))
            .map_err(io)?;
        for (tensor, matrix) in part {
            file.write_all(&matrix.data()).map_err(io)?;
            places.insert(tensor.clone(), json!(name));
            done += bytes_of(matrix);
            progress(done);
        }
        file.flush().and_then(|()| file.get_ref().sync_all()).map_err(io)?;
        total += bytes;
    }
    if count > 1 {
        let index = json!({ "metadata": { "total_size": total }, "weight_map": Json::Object(places) });
        write_json(folder, "model.safetensors.index.json", &index)?;
    }
    Ok((count, total))
}

fn bytes_of(matrix: &Matrix) -> u64 {
    matrix.shape.iter().product::<u64>() * matrix.quant.block_bytes() as u64
}

fn header(tensors: &[&(String, Matrix)]) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut at = 0;
    for (name, matrix) in tensors {
        let end = at + bytes_of(matrix);
        header.insert(
            name.clone(),
            json!({ "dtype": matrix.quant.name, "shape": matrix.shape, "data_offsets": [at, end] }),
        );
        at = end;
    }
    let mut text = Json::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
    text
}
