//! `tern perplexity`: how well a model predicts a text, measured as llama.cpp does.
//!
//! The text is tokenized once and cut into chunks of the context. In each chunk the first token is replaced by
//! BOS if the model expects one, and the second half is scored.

use std::io::Write;

use serde_json::json;
use tern::engine::Capacity;
use tern::graph::log_sum_exp;
use tern::text::Tokenizer;
use tern::{Context, PAGE_LEN};

use crate::args::PerplexityArgs;
use crate::error::{CliError, CliResult};
use crate::load;

/// Tokens per chunk if -c is not given.
const DEFAULT_CHUNK: usize = 512;

pub(crate) fn perplexity(args: &PerplexityArgs) -> CliResult<()> {
    let text = std::fs::read_to_string(&args.file)
        .map_err(|e| CliError::message(format!("{}: {e}", args.file.display())))?;
    let opened = args.model.open("stories", None, Context::AtMost(DEFAULT_CHUNK))?;
    let context = opened.context();
    let tokenizer = Tokenizer::from_metadata(&opened.metadata)?;
    let tokens = tokenizer.encode(&text, true, false);
    let chunks = (tokens.len() / context).min(args.chunks.unwrap_or(usize::MAX));
    if chunks == 0 {
        let file = args.file.display();
        return Err(CliError::message(format!(
            "{file} has {} tokens: at least {context} are required (-c)",
            tokens.len()
        )));
    }
    let backend = args.model.backend()?;
    let tokens_per_step = backend.info().step_tokens.min(context);
    let capacity = Capacity {
        pages: context.div_ceil(PAGE_LEN),
        page_len: PAGE_LEN,
        max_tokens: tokens_per_step,
        max_outputs: tokens_per_step.min(64),
        window: None,
        state: None,
    };
    let capacity = capacity.with_window(&opened.model.graph).with_slots(&opened.model.graph, 1);
    let mut runner = opened.runner(backend, capacity, &args.model.progress())?;
    let bar = load::count_bar("scoring", chunks as u64);
    let (mut sum, mut squares, mut count) = (0.0f64, 0.0f64, 0usize);
    for chunk in tokens.chunks_exact(context).take(chunks) {
        let mut fed = chunk.to_vec();
        if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.add_bos()) {
            fed[0] = bos;
        }
        runner.logits(&fed, |position, logits| {
            if position >= context / 2 && position + 1 < context {
                let loss = f64::from(log_sum_exp(logits) - logits[fed[position + 1] as usize]);
                sum += loss;
                squares += loss * loss;
                count += 1;
            }
        })?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mean = sum / count as f64;
    let deviation = ((squares / count as f64 - mean * mean) / (count as f64 - 1.0).max(1.0)).sqrt();
    let (perplexity, spread) = (mean.exp(), mean.exp() * deviation);
    let mut out = std::io::stdout().lock();
    if args.json {
        let result = json!({ "perplexity": perplexity, "spread": spread, "tokens": count, "chunks": chunks, "context": context });
        writeln!(out, "{result}")?;
    } else {
        writeln!(
            out,
            "perplexity {perplexity:.4} +/- {spread:.4} ({chunks} chunks of {context}, {count} tokens scored)"
        )?;
    }
    Ok(())
}
