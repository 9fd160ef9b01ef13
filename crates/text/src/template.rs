//! Chat templates: the model's own Jinja template, rendered as Hugging Face's `transformers` renders it.
//!
//! Templates come with model files and are not trusted: steps, bytes, depth and output are bounded.

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::machinery::{CodeGenerator, Instructions, eval, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use serde_json::Map;

use crate::Markup;
use meter::{Meter, Stop};

mod clock;
mod filters;
mod generator;
mod meter;
mod methods;
mod ops;
mod python;
mod rewrite;
mod source;

/// Steps of the engine, beside a multiple of the conversation's bytes.
const STEPS: u64 = 2_000_000;
const STEPS_PER_BYTE: u64 = 4;
/// Bytes that may be read and made while rendering, beside a multiple of the conversation's.
const WORK: u64 = 64 << 20;
const WORK_PER_BYTE: u64 = 1024;
/// Bytes of output, beside a multiple of the conversation's.
const OUTPUT: u64 = 4 << 20;
const OUTPUT_PER_BYTE: u64 = 8;
/// Macro calls and loops inside each other, in the engine's own count.
const RECURSION: usize = 400;
/// Variables that a request's extra variables may not replace.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// What can be wrong with a template or its rendering.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The text is not a Jinja template.
    #[error("chat template, line {line}: {what}")]
    Syntax {
        /// Counted from one.
        line: usize,
        /// The compiler's words.
        what: String,
    },
    /// The text is too long to be a template.
    #[error("chat template has {len} bytes, the limit is {limit}")]
    Source {
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The text is a template, but compiling it would take too much.
    #[error("chat template, line {line}: {what}")]
    Complex {
        /// Counted from one.
        line: usize,
        /// Which bound was passed.
        what: &'static str,
    },
    /// The template refused the conversation with `raise_exception`.
    #[error("{0}")]
    Raised(String),
    /// The template failed on this conversation.
    #[error("chat template, line {line}: {what}")]
    Render {
        /// Counted from one.
        line: usize,
        /// The engine's words.
        what: String,
    },
    /// The template took too many steps.
    #[error("chat template stopped after {0} steps")]
    Steps(u64),
    /// The template read or made too many bytes.
    #[error("chat template stopped after working on {0} bytes")]
    Work(u64),
    /// The template built a value inside a value inside a value, too often.
    #[error("chat template nests values too deeply")]
    Depth,
    /// The rendered text is too long.
    #[error("chat template rendered {len} bytes, the limit is {limit}")]
    Output {
        /// Bytes rendered.
        len: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// An extra variable has the name of one that the conversation itself gives.
    #[error("chat template variable {0:?} cannot be replaced")]
    Reserved(String),
}

/// What a template is rendered with.
#[derive(Debug, Clone, Default)]
pub struct ChatInput {
    /// The list of messages, each an object with a `role`.
    pub messages: serde_json::Value,
    /// The list of tools, as in the OpenAI API.
    pub tools: Option<serde_json::Value>,
    /// Whether the text ends where the assistant begins to speak.
    pub add_generation_prompt: bool,
    /// Local time as seconds since 1970-01-01 00:00, for templates that write the date.
    pub now: i64,
    /// Extra variables such as `enable_thinking`.
    pub kwargs: Map<String, serde_json::Value>,
}

/// A model's chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Checks and keeps a template. `bos` and `eos` are the texts of the tokenizer's tokens.
    ///
    /// ```
    /// use tern_text::{ChatInput, ChatTemplate};
    /// let template = ChatTemplate::new(
    ///     "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}", "", "</s>",
    /// )?;
    /// let messages = serde_json::json!([{"role": "user", "content": "Hi"}]);
    /// let text = template.render(&ChatInput { messages, ..ChatInput::default() })?;
    /// assert_eq!(text, "<user>Hi</s>");
    /// # Ok::<(), tern_text::TemplateError>(())
    /// ```
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate, TemplateError> {
        let template = ChatTemplate {
            source: source::without_generation_tags(source),
            bos: bos.to_string(),
            eos: eos.to_string(),
        };
        source::check(&template.source, &syntax())?;
        compile(&template.source)?;
        Ok(template)
    }

    /// How the model's answers mark reasoning and tool calls, by the markers in the template.
    pub fn markup(&self) -> Markup {
        Markup::of(&self.source)
    }

    /// The prompt's text for a conversation.
    pub fn render(&self, input: &ChatInput) -> Result<String, TemplateError> {
        if let Some(name) = RESERVED.iter().find(|&&name| input.kwargs.contains_key(name)) {
            return Err(TemplateError::Reserved((*name).to_string()));
        }
        let bytes = size(&input.messages)
            + input.tools.as_ref().map_or(0, size)
            + input.kwargs.values().map(size).sum::<u64>();
        let limits = Limits {
            steps: STEPS.saturating_add(bytes.saturating_mul(STEPS_PER_BYTE)),
            work: WORK.saturating_add(bytes.saturating_mul(WORK_PER_BYTE)),
            output: OUTPUT.saturating_add(bytes.saturating_mul(OUTPUT_PER_BYTE)),
        };
        let meter = Arc::new(Meter::new(limits.work));
        let env = environment(&meter, limits.steps, input.now);
        let (code, blocks) = compile(&self.source)?;
        let mut out = String::new();
        let context = self.context(input);
        eval(&env, &code, context, &blocks, &mut make_string_output(&mut out), AutoEscape::None)
            .map_err(|error| limits.explain(&error, &meter))?;
        match out.len() as u64 {
            len if len > limits.output => Err(TemplateError::Output { len, limit: limits.output }),
            _ => Ok(out),
        }
    }

    /// The variables, as `transformers` names them: tools and documents are None where not given.
    fn context(&self, input: &ChatInput) -> Value {
        let mut all = Map::new();
        all.insert("documents".into(), serde_json::Value::Null);
        all.insert("bos_token".into(), self.bos.clone().into());
        all.insert("eos_token".into(), self.eos.clone().into());
        all.extend(input.kwargs.clone());
        all.insert("messages".into(), input.messages.clone());
        all.insert("tools".into(), input.tools.clone().unwrap_or_default());
        all.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
        Value::from(Serde(all))
    }
}

/// What one rendering may take.
struct Limits {
    steps: u64,
    work: u64,
    output: u64,
}

impl Limits {
    fn explain(&self, error: &Error, meter: &Meter) -> TemplateError {
        match meter.stopped() {
            Some(Stop::Raised(words)) => return TemplateError::Raised(words),
            Some(Stop::Work) => return TemplateError::Work(self.work),
            Some(Stop::Depth) => return TemplateError::Depth,
            None => {}
        }
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(inner) = cause {
            if inner.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
                return TemplateError::Steps(self.steps);
            }
            cause = inner.source();
        }
        TemplateError::Render { line: error.line().unwrap_or(0), what: words(error) }
    }
}

/// The engine's words without its place, which is told apart.
fn words(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// About how many bytes a JSON value takes.
fn size(value: &serde_json::Value) -> u64 {
    use serde_json::Value as Json;
    match value {
        Json::String(text) => text.len() as u64 + 2,
        Json::Array(items) => items.iter().map(size).sum::<u64>() + 2,
        Json::Object(map) => map.iter().map(|(key, item)| key.len() as u64 + 4 + size(item)).sum::<u64>() + 2,
        _ => 5,
    }
}

fn syntax() -> SyntaxConfig {
    let mut builder = SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true);
    builder.build().unwrap_or_default() // cannot fail: the delimiters are the usual ones
}

type Program<'s> = (Instructions<'s>, BTreeMap<&'s str, Instructions<'s>>);

fn compile(source: &str) -> Result<Program<'_>, TemplateError> {
    let tree = parse(source, "chat template", syntax())
        .map_err(|error| TemplateError::Syntax { line: error.line().unwrap_or(0), what: words(&error) })?;
    let mut generator = CodeGenerator::new("chat template", source);
    generator.compile_stmt(&tree);
    let (code, blocks) = generator.finish();
    let blocks = blocks.iter().map(|(name, code)| (*name, rewrite::metered(code))).collect();
    Ok((rewrite::metered(&code), blocks))
}

fn environment(meter: &Arc<Meter>, steps: u64, now: i64) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_fuel(Some(steps));
    env.set_recursion_limit(RECURSION);
    env.set_debug(false);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    ops::register(&mut env, meter);
    filters::register(&mut env, meter);
    let m = Arc::clone(meter);
    env.set_formatter(move |out, state, value| {
        m.walk(value)?;
        match state.auto_escape() {
            AutoEscape::None => match value.as_str() {
                Some(text) => out.write_str(text).map_err(Error::from),
                None => out.write_str(&python::str(value)).map_err(Error::from),
            },
            _ => minijinja::escape_formatter(out, state, value),
        }
    });
    let m = Arc::clone(meter);
    env.add_function("raise_exception", move |message: Value| -> Result<Value, Error> {
        Err(m.stop(Stop::Raised(python::str(&message)), "raised"))
    });
    env.add_function("strftime_now", move |format: String| clock::strftime(&format, now));
    env.add_function("namespace", |first: Option<Value>, kwargs: Kwargs| {
        let dict = minijinja::functions::dict(first, kwargs)?;
        let held: Vec<Value> = python::pairs(&dict).into_iter().map(|(_, value)| value).collect();
        match ops::holds_namespace(&held) {
            true => Err(ops::no_namespace()),
            false => minijinja::functions::namespace(Some(dict.into())),
        }
    });
    env.add_function("dict", |first: Option<Value>, kwargs: Kwargs| {
        let dict = minijinja::functions::dict(first, kwargs)?;
        let held: Vec<Value> = python::pairs(&dict).into_iter().map(|(_, value)| value).collect();
        if ops::holds_namespace(&held) { Err(ops::no_namespace()) } else { Ok(dict) }
    });
    env
}
