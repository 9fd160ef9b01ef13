//! Tokenizers, chat templates, detokenising, stop strings.

mod decoder;
mod detokenizer;
mod stop;
mod template;
mod tokenizer;

pub use decoder::Decoder;
pub use detokenizer::Detokenizer;
pub use stop::{Passed, StopError, StopStrings};
pub use template::{ChatInput, ChatTemplate, TemplateError};
pub use tokenizer::{Tokenizer, TokenizerError};
