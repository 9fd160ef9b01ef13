//! `tern rerank`: the lines of a text by their relevance for a query.

use std::io::Write;

use serde_json::json;
use tern::{Context, Model};

use super::embed::lines;
use crate::args::RerankArgs;
use crate::error::{CliError, CliResult};

pub(crate) fn rerank(args: &RerankArgs) -> CliResult<()> {
    let Some(name) = args.model.given() else {
        let text = "missing model: give -m a reranker, such as gpustack/bge-reranker-v2-m3-GGUF of the Hugging Face hub, or a \
                    file of Qwen3-Reranker";
        return Err(CliError::message(text));
    };
    let documents = lines(args.file.as_deref())?;
    let options = args.model.options(Context::AtMost(usize::MAX));
    let model = Model::load_showing(name, &options, &args.model.progress())?;
    let texts = documents.iter().map(String::as_str);
    let scores = model.rerank(&args.query, texts, args.instruction.as_deref())?;
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order.truncate(args.top.unwrap_or(usize::MAX));
    let mut out = std::io::stdout().lock();
    for index in order {
        let (score, document) = (scores[index], &documents[index]);
        if args.json {
            writeln!(out, "{}", json!({"index": index, "score": score, "document": document}))?;
        } else {
            writeln!(out, "{score:10.4}  {document}")?;
        }
    }
    out.flush()?;
    Ok(())
}
