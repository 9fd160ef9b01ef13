//! The model that is served: its engine, its words, and what follows from them once it is loaded.

use std::sync::{Arc, OnceLock};

use serde_json::json;
use tern_engine::{Handle, Pooling};
use tern_grammar::GrammarCompiler;
use tern_text::{ChatInput, ChatTemplate, Markup, Tokenizer};

/// A loaded model with all that a request needs.
pub struct Model {
    /// The first is its id; requests may use any of them.
    pub names: Vec<String>,
    /// When it was made or loaded, in seconds since 1970.
    pub created: u64,
    /// The engine that runs it.
    pub handle: Handle,
    /// Its vocabulary.
    pub tokenizer: Arc<Tokenizer>,
    /// How it reads conversations; without one `/v1/chat/completions` refuses.
    pub template: Option<ChatTemplate>,
    /// How its hidden states become an embedding.
    pub pooling: Pooling,
    /// What holds where a request says nothing.
    pub defaults: Defaults,
}

/// Sampling where a request says nothing. The default is what OpenAI documents: temperature 1, nothing cut off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Defaults {
    /// 0 takes the best token.
    pub temperature: f32,
    /// Keep the best tokens until their probabilities reach this.
    pub top_p: f32,
    /// Keep this many best tokens; 0 keeps all.
    pub top_k: usize,
    /// Drop tokens less probable than this share of the best one.
    pub min_p: f32,
    /// Penalty on tokens that were there before; 1 is off.
    pub repetition: f32,
}

impl Default for Defaults {
    fn default() -> Defaults {
        Defaults { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, repetition: 1.0 }
    }
}

/// How a template reads the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentShape {
    Text,
    /// A list of parts and nothing else: templates of models that also see.
    Parts,
}

/// The model and what was worked out about it once.
pub(crate) struct Served {
    pub(crate) model: Model,
    pub(crate) end_tokens: Arc<[u32]>,
    pub(crate) content: ContentShape,
    /// How answers in a chat are marked.
    pub(crate) markup: Option<Markup>,
    /// The template shows tools to the model.
    pub(crate) takes_tools: bool,
    grammars: OnceLock<GrammarCompiler>,
}

impl Served {
    pub(crate) fn new(model: Model) -> Served {
        let end_tokens = model.tokenizer.eog().iter().copied().collect();
        let template = model.template.as_ref();
        Served {
            end_tokens,
            content: template.map_or(ContentShape::Text, content_shape),
            markup: template.map(ChatTemplate::markup),
            takes_tools: template.is_some_and(takes_tools),
            grammars: OnceLock::new(),
            model,
        }
    }

    /// What compiles grammars. The first call sorts the vocabulary, so it blocks.
    pub(crate) fn grammars(&self) -> &GrammarCompiler {
        self.grammars.get_or_init(|| GrammarCompiler::new(Arc::clone(&self.model.tokenizer)))
    }

    pub(crate) fn id(&self) -> &str {
        self.model.names.first().map_or("model", String::as_str)
    }

    /// Tokens that one sequence can have here.
    pub(crate) fn context(&self) -> usize {
        let handle = &self.model.handle;
        // the last token is never fed back, so it needs no place in a page
        handle.limits().max_context.min(handle.capacity().kv_tokens().saturating_add(1))
    }
}

/// Whether a conversation's text has the word `needle` in it.
fn shows_needle(
    template: &ChatTemplate,
    content: serde_json::Value,
    tools: Option<serde_json::Value>,
) -> bool {
    let messages = json!([{"role": "user", "content": content}]);
    let input = ChatInput { messages, tools, add_generation_prompt: true, ..ChatInput::default() };
    template.render(&input).is_ok_and(|chat| chat.text.contains("needle"))
}

fn takes_tools(template: &ChatTemplate) -> bool {
    let tool = json!({"type": "function", "function": {
        "name": "needle", "description": "", "parameters": {"type": "object", "properties": {}},
    }});
    [json!("hay"), json!([{"type": "text", "text": "hay"}])]
        .into_iter()
        .any(|content| shows_needle(template, content, Some(json!([tool]))))
}

/// A template that loses a plain text takes lists of parts only.
fn content_shape(template: &ChatTemplate) -> ContentShape {
    let shows = |content| shows_needle(template, content, None);
    match !shows(json!("needle")) && shows(json!([{"type": "text", "text": "needle"}])) {
        true => ContentShape::Parts,
        false => ContentShape::Text,
    }
}
