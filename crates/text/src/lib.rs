//! Tokenizers, chat templates, incremental decoding, stop strings, and parsing of answers.

mod answer;
mod decoder;
mod detokenizer;
mod markup;
mod stop;
mod template;
mod tokenizer;
mod tool_schemas;

pub use answer::{AnswerParser, Part};
pub use decoder::Decoder;
pub use detokenizer::Detokenizer;
pub use markup::{
    ArgumentForm, CallForm, CallStyle, CallTexts, ChannelStyle, ITEM, LiteralStyle, Markup, ReasoningStyle,
    TagStyle, ValueKind,
};
pub use stop::{Passed, StopError, StopStrings};
pub use template::{Cancelled, ChatInput, ChatTemplate, ChatText, TemplateError};
pub use tokenizer::{EncodeError, EncodeLimit, FillOrder, FillTokens, Tokenizer, TokenizerError};
pub use tool_schemas::{ToolSchemas, Types};
