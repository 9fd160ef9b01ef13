//! A text in chunks of the context, as llama.cpp cuts it: tokenized once, without overlap, and each chunk
//! begins with BOS if the model expects one.

use std::path::Path;

use tern::engine::{Capacity, GraphRunner};
use tern::graph::Backend;
use tern::text::Tokenizer;
use tern::{OpenedModel, PAGE_LEN, Progress};

use crate::error::{CliError, CliResult};

/// Tokens per chunk if -c is not given.
pub(crate) const DEFAULT_CHUNK: usize = 512;

/// The chunks of a text.
pub(crate) struct Windows {
    text: String,
    tokens: Vec<u32>,
    bos: Option<u32>,
    /// Tokens per chunk.
    pub(crate) context: usize,
    /// Whole chunks.
    pub(crate) chunks: usize,
}

impl Windows {
    /// Reads a file and cuts it into chunks of a model's context, at most `most`.
    pub(crate) fn read(file: &Path, model: &OpenedModel, most: Option<usize>) -> CliResult<Windows> {
        let wrong = |why: String| CliError::message(format!("{}{why}", file.display()));
        let text = std::fs::read_to_string(file).map_err(|e| wrong(format!(": {e}")))?;
        let context = model.context();
        let tokenizer = Tokenizer::from_metadata(&model.metadata)?;
        let tokens = tokenizer.encode(&text, true, false);
        let chunks = (tokens.len() / context).min(most.unwrap_or(usize::MAX));
        if chunks == 0 {
            return Err(wrong(format!(" has {} tokens: at least {context} are required (-c)", tokens.len())));
        }
        let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
        Ok(Windows { text, tokens, bos, context, chunks })
    }

    /// The tokens of each chunk.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Vec<u32>> {
        self.tokens.chunks_exact(self.context).take(self.chunks).map(|chunk| {
            let mut tokens = chunk.to_vec();
            if let Some(bos) = self.bos {
                tokens[0] = bos;
            }
            tokens
        })
    }

    /// Whether another model has the same tokens for the text.
    pub(crate) fn are_those_of(&self, model: &OpenedModel) -> CliResult<bool> {
        Ok(Tokenizer::from_metadata(&model.metadata)?.encode(&self.text, true, false) == self.tokens)
    }
}

/// A model on a device, for one chunk at a time, in steps of at most `max_tokens`
/// tokens and `max_outputs` rows.
pub(crate) fn runner(
    model: OpenedModel,
    backend: Box<dyn Backend>,
    (max_tokens, max_outputs): (usize, usize),
    progress: &dyn Progress,
) -> CliResult<GraphRunner> {
    let pages = model.context().div_ceil(PAGE_LEN);
    let capacity = Capacity { pages, page_len: PAGE_LEN, max_tokens, max_outputs, window: None, state: None };
    let capacity = capacity.with_window(&model.model.graph).with_slots(&model.model.graph, 1);
    Ok(model.runner(backend, capacity, progress)?)
}
