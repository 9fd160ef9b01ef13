//! A gap in a text, and the prompt with which a model fills it: fill-in-the-middle.

use serde_json::Value;
use tern::text::FillOrder;

use crate::http::error::{ApiError, Result};
use crate::request::encode::Encoder;
use crate::request::ignored::Object;
use crate::request::params::Params;

/// Before the text of another file, for models without a token for it; as llama.cpp writes it.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";
/// The names of the repository and of the file with the gap, which requests do not tell;
/// as llama.cpp writes them.
const REPOSITORY: &str = "myproject\n";
const FILE: &str = "filename\n";

/// A gap between two texts.
#[derive(Default)]
pub(crate) struct Gap {
    pub(crate) before: String,
    pub(crate) after: String,
    /// Other files that the model reads first.
    pub(crate) files: Vec<SourceFile>,
}

/// A file, or a part of it.
pub(crate) struct SourceFile {
    name: String,
    text: String,
}

impl SourceFile {
    /// `input_extra` of llama.cpp: a list of `{"filename": ..., "text": ...}`.
    pub(crate) fn take(params: &mut Params) -> Result<Vec<SourceFile>> {
        let files = params.array("input_extra")?.unwrap_or_default();
        let file = |(at, file): (usize, Value)| {
            let mut file = params.nested(file, &format!("input_extra[{at}]"))?;
            let (name, text) = (file.string("filename")?, file.string("text")?.unwrap_or_default());
            file.take("time"); // when an editor copied it
            file.finish(Object::Part, &[])?;
            Ok(SourceFile { name: name.unwrap_or_else(|| "tmp".into()), text })
        };
        files.into_iter().enumerate().map(file).collect()
    }
}

impl Encoder<'_> {
    /// The prompt of a gap, for models that fill it.
    pub(crate) fn fill(&self, gap: &Gap, order: FillOrder) -> Result<Vec<u32>> {
        let tokenizer = self.served.model.tokenizer();
        let Some(marks) = tokenizer.fill_tokens() else {
            let message = "this model has no fill-in-the-middle tokens";
            return Err(ApiError::bad("suffix", format!("suffix: {message}")).code("no_fill_tokens"));
        };
        let mut prompt: Vec<u32> = tokenizer.bos().filter(|_| tokenizer.add_bos()).into_iter().collect();
        if !gap.files.is_empty() {
            if let Some(repository) = marks.repository {
                prompt.push(repository);
                prompt.extend(self.plain(REPOSITORY)?);
            }
            for file in &gap.files {
                match marks.file {
                    Some(mark) => {
                        prompt.push(mark);
                        prompt.extend(self.plain(&format!("{}\n", file.name))?);
                    }
                    None => prompt.extend(self.plain(SNIPPET)?),
                }
                prompt.extend(self.plain(&file.text)?);
            }
            if let Some(mark) = marks.file {
                prompt.push(mark);
                prompt.extend(self.plain(FILE)?);
            }
        }
        prompt.extend(marks.prompt(&self.plain(&gap.before)?, &self.plain(&gap.after)?, order));
        self.tokens(prompt)
    }
}
