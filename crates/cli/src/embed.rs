//! `tern embed`: a vector per line of text, or the similarities of the lines.

use std::io::Write;
use std::path::Path;

use serde_json::json;
use tern::{Context, LoadOptions, Model};

use crate::args::EmbedArgs;
use crate::error::{CliError, CliResult};

pub(crate) fn embed(args: &EmbedArgs) -> CliResult<()> {
    let lines = lines(args.file.as_deref())?;
    let options = LoadOptions {
        pooling: args.pooling.map(super::serve::pooling),
        ..args.model.options(Context::AtMost(usize::MAX))
    };
    let model = Model::load_showing(args.model.name("stories"), &options, &args.model.progress())?;
    let mut texts: Vec<String> = lines.iter().map(|line| format!("{}{line}", args.prefix)).collect();
    if args.truncate {
        texts.iter_mut().for_each(|text| truncate(&model, text));
    }
    let mut vectors = vec![];
    for vector in model.embed_all(texts.iter().map(String::as_str))? {
        let size = vector.len();
        let kept = args.dimensions.unwrap_or(size);
        if kept > size {
            let text = format!(
                "--dimensions: expected at most {size}, the size of this model's vectors, got {kept}"
            );
            return Err(CliError::message(text));
        }
        vectors.push(tern::normalized(vector[..kept].to_vec()));
    }
    let mut out = std::io::stdout().lock();
    for (i, (line, vector)) in lines.iter().zip(&vectors).enumerate() {
        if args.table {
            let dot = |other: &Vec<f32>| vector.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
            let similarities: Vec<String> = vectors.iter().map(|v| format!("{:6.3}", dot(v))).collect();
            writeln!(out, "{}  {line}", similarities.join(" "))?;
        } else {
            writeln!(out, "{}", json!({"index": i, "text": line, "embedding": vector}))?;
        }
    }
    out.flush()?;
    Ok(())
}

/// Removes the end of a text that exceeds the context.
fn truncate(model: &Model, text: &mut String) {
    let tokenizer = model.tokenizer();
    let mut keep = model.context();
    while tokenizer.encode(text, true, true).len() > model.context() && keep > 0 {
        keep -= 1;
        let ids = tokenizer.encode(text, false, true);
        *text = tokenizer.decode(&ids[..keep.min(ids.len())], true);
    }
}

/// The lines of a file or of stdin that are not empty.
pub(crate) fn lines(file: Option<&Path>) -> CliResult<Vec<String>> {
    let text = match file {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|e| CliError::message(format!("{}: {e}", path.display())))?,
        None => {
            std::io::read_to_string(std::io::stdin()).map_err(|e| CliError::message(format!("stdin: {e}")))?
        }
    };
    let lines: Vec<String> = text.lines().filter(|line| !line.trim().is_empty()).map(String::from).collect();
    if lines.is_empty() {
        return Err(CliError::message("no texts: expected one per line"));
    }
    Ok(lines)
}
