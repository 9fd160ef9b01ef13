//! `tern embed`: a vector per line of text, or the similarities of the lines.

use std::io::Write;
use std::path::Path;

use serde_json::json;
use tern::{Context, LoadOptions, Model, Pooling};

use crate::args::EmbedArgs;
use crate::error::{CliError, CliResult};

pub(crate) fn embed(args: &EmbedArgs) -> CliResult<()> {
    let lines = lines(args.file.as_deref())?;
    let options = LoadOptions { pooling: args.pooling, ..args.model.options(Context::AtMost(usize::MAX)) };
    let model = Model::load_showing(args.model.name("stories"), &options, &args.model.progress())?;
    if args.model.given().is_none() && !args.model.quiet {
        eprintln!(
            "tern: stories writes stories, and its vectors compare texts roughly; for search give -m a model for embeddings, \
             such as nomic-ai/nomic-embed-text-v1.5-GGUF of the Hugging Face hub"
        );
    }
    let mut texts: Vec<String> = lines.iter().map(|line| format!("{}{line}", args.prefix)).collect();
    if args.truncate {
        texts.iter_mut().for_each(|text| truncate(&model, text));
    }
    let each = model.pooling() == Pooling::None;
    if each && args.table {
        return Err(CliError::message("--table: expected a vector per text, pooling none has one per token"));
    }
    let mut vectors = vec![];
    for (text, vector) in texts.iter().zip(model.embed_all(texts.iter().map(String::as_str))?) {
        let rows = if each { model.tokenizer().encode(text, true, true).len() } else { 1 };
        let size = vector.len() / rows.max(1);
        let kept = args.dimensions.unwrap_or(size);
        if kept > size {
            let text = format!(
                "--dimensions: expected at most {size}, the size of this model's vectors, got {kept}"
            );
            return Err(CliError::message(text));
        }
        let normalized = |row: &[f32]| tern::normalized(row[..kept].to_vec());
        vectors.push(vector.chunks_exact(size.max(1)).map(normalized).collect::<Vec<_>>());
    }
    let mut out = std::io::stdout().lock();
    for (i, (line, vector)) in lines.iter().zip(&vectors).enumerate() {
        if args.table {
            let dot = |other: &[f32]| vector[0].iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
            let similarities: Vec<String> = vectors.iter().map(|v| format!("{:6.3}", dot(&v[0]))).collect();
            writeln!(out, "{}  {line}", similarities.join(" "))?;
        } else {
            let embedding = if each { json!(vector) } else { json!(vector[0]) };
            writeln!(out, "{}", json!({"index": i, "text": line, "embedding": embedding}))?;
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
