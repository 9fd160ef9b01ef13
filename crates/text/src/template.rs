//! Chat templates: the model's own Jinja template, rendered as Hugging Face's `transformers` renders it.
//!
//! Templates come with model files and are untrusted: steps, bytes and values touched, depth, output and time
//! are bounded, and a panic of the engine is an error.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use minijinja::machinery::{CodeGenerator, Instructions, eval, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{AutoEscape, Environment, Error, UndefinedBehavior, Value};
use serde_json::Map;

use crate::Markup;
use meter::Stop;
use origins::Origins;
use run::{Run, message};
use traced::{Piece, whole};

mod arithmetic;
mod clock;
mod error;
mod filter_table;
mod filters;
mod format;
mod generator;
mod items;
mod meter;
mod methods;
mod ops;
mod origins;
mod python;
mod rewrite;
mod run;
mod source;
mod string_methods;
mod texts;
mod traced;
mod values;

pub use error::TemplateError;

/// Nesting of macro calls and loops, as the engine counts it.
const RECURSION: usize = 400;
/// Variables that a request's extra variables may not replace.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];
/// Roles of messages. Templates build markers from them, such as `<|user|>`, so they count as
/// the template's own text.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// The input of a rendering.
#[derive(Debug, Clone, Default)]
pub struct ChatInput {
    /// The list of messages, each an object with a `role`.
    pub messages: serde_json::Value,
    /// The list of tools, as in the OpenAI API.
    pub tools: Option<serde_json::Value>,
    /// Whether the text ends with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Local time as seconds since 1970-01-01 00:00, for templates that write the date.
    pub now: i64,
    /// Extra variables such as `enable_thinking`.
    pub kwargs: Map<String, serde_json::Value>,
    /// Ends the rendering early.
    pub cancelled: Cancelled,
}

/// Checked repeatedly during a rendering: a deadline, or a client that disconnected.
#[derive(Clone, Default)]
pub struct Cancelled(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Cancelled {
    /// Cancels the rendering once `question` returns true.
    pub fn when(question: impl Fn() -> bool + Send + Sync + 'static) -> Cancelled {
        Cancelled(Some(Arc::new(question)))
    }

    fn is_now(&self) -> bool {
        self.0.as_ref().is_some_and(|question| question())
    }
}

impl std::fmt::Debug for Cancelled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Cancelled(..)" } else { "Cancelled(never)" })
    }
}

/// A rendered conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatText {
    /// The whole text.
    pub text: String,
    /// The byte ranges that come from the request's strings, sorted, disjoint and not empty. Control tokens
    /// are not recognised in them; otherwise a message could contain turns of other roles.
    pub user: Vec<Range<usize>>,
}

impl ChatText {
    /// Where a marker is in the template's own text.
    fn find<'a>(&'a self, marker: &'a str) -> impl Iterator<Item = usize> + 'a {
        let end = |at: usize| at + marker.len();
        let of_user = move |at: usize| {
            let next = self.user.partition_point(|range| range.end <= at);
            self.user.get(next).is_some_and(|range| range.start < end(at))
        };
        self.text.match_indices(marker).map(|(at, _)| at).filter(move |at| !of_user(*at))
    }

    /// How often a marker is in the template's own text.
    pub fn count(&self, marker: &str) -> usize {
        self.find(marker).count()
    }

    /// The same with the first of these texts in place of the first marker of the template's own text, and
    /// the others in place of the next ones.
    ///
    /// ```
    /// use tern_text::ChatText;
    /// let chat = ChatText { text: "<i> <i> <i>".into(), user: vec![4..7] };
    /// let chat = chat.replaced("<i>", &["a".into(), "bcd".into()]);
    /// assert_eq!(chat, ChatText { text: "a <i> bcd".into(), user: vec![2..5] });
    /// ```
    #[must_use]
    pub fn replaced(&self, marker: &str, by: &[String]) -> ChatText {
        let (mut out, mut done) = (ChatText::default(), 0);
        let mut ranges = self.user.iter().peekable();
        for (at, text) in self.find(marker).zip(by) {
            let moved =
                |range: &Range<usize>| range.start + out.text.len() - done..range.end + out.text.len() - done;
            let mut before = vec![];
            while let Some(range) = ranges.next_if(|range| range.start < at) {
                before.push(moved(range));
            }
            out.user.extend(before);
            out.text.push_str(&self.text[done..at]);
            out.text.push_str(text);
            done = at + marker.len();
        }
        let shift = |n: usize| n + out.text.len() - done;
        out.user.extend(ranges.map(|range| shift(range.start)..shift(range.end)));
        out.text.push_str(&self.text[done..]);
        out
    }
}

/// A model's chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Checks and stores a template. `bos` and `eos` are the texts of the tokenizer's tokens.
    ///
    /// ```
    /// use tern_text::{ChatInput, ChatTemplate};
    /// let template = ChatTemplate::new(
    ///     "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}", "", "</s>",
    /// )?;
    /// let messages = serde_json::json!([{"role": "user", "content": "Hi"}]);
    /// let chat = template.render(&ChatInput { messages, ..ChatInput::default() })?;
    /// assert_eq!(chat.text, "<user>Hi</s>");
    /// assert_eq!(&chat.text[chat.user[0].clone()], "Hi");
    /// # Ok::<(), tern_text::TemplateError>(())
    /// ```
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate, TemplateError> {
        let template = ChatTemplate {
            source: source::without_generation_tags(source),
            bos: bos.to_string(),
            eos: eos.to_string(),
        };
        source::check(&template.source, &syntax())?;
        caught(|| compile(&template.source).map(|_| ()))?;
        Ok(template)
    }

    /// The markup of reasoning and tool calls, detected from the markers in the template.
    pub fn markup(&self) -> Markup {
        Markup::of(&self.source)
    }

    /// Whether an expression of the template uses a variable of this name, such as `enable_thinking`.
    pub fn has_variable(&self, name: &str) -> bool {
        source::has_variable(&self.source, &syntax(), name)
    }

    /// Whether the template writes a line feed before this marker.
    pub fn writes_on_its_own_line(&self, marker: &str) -> bool {
        ["\n", "\\n"].iter().any(|feed| self.source.contains(&format!("{feed}{marker}")))
    }

    /// The prompt's text for a conversation.
    pub fn render(&self, input: &ChatInput) -> Result<ChatText, TemplateError> {
        if let Some(name) = RESERVED.iter().find(|&&name| input.kwargs.contains_key(name)) {
            return Err(TemplateError::Reserved((*name).to_string()));
        }
        caught(|| self.render_within(input, &Arc::new(Run::new(input))))
    }

    fn render_within(&self, input: &ChatInput, run: &Arc<Run>) -> Result<ChatText, TemplateError> {
        let env = environment(run, input.now);
        let (code, blocks) = compile(&self.source)?;
        let mut text = String::new();
        let context = self.context(input, &run.origins);
        run.origins.begin();
        eval(&env, &code, context, &blocks, &mut make_string_output(&mut text), AutoEscape::None)
            .map_err(|error| run.explain(&error))?;
        let written = run.origins.end();
        // not expected: if origins are unknown, all text counts as the user's
        let user = if written.len == text.len() { written.spans } else { whole(text.len()) };
        Ok(ChatText { text, user })
    }

    /// The variables, named as in `transformers`: missing tools and documents are None.
    fn context(&self, input: &ChatInput, origins: &Origins) -> Value {
        let mut all = vec![
            ("documents", Value::from(())),
            ("bos_token", Value::from(&self.bos)),
            ("eos_token", Value::from(&self.eos)),
        ];
        all.extend(input.kwargs.iter().map(|(name, value)| (&**name, origins.given(value))));
        all.push(("messages", messages(&input.messages, origins)));
        all.push(("tools", input.tools.as_ref().map_or(Value::from(()), |tools| origins.given(tools))));
        all.push(("add_generation_prompt", Value::from(input.add_generation_prompt)));
        Value::from_pairs(all)
    }
}

/// The messages: all of their strings except known roles are the user's.
fn messages(given: &serde_json::Value, origins: &Origins) -> Value {
    let Some(messages) = given.as_array() else { return origins.given(given) };
    let member = |(name, value): (&String, &serde_json::Value)| match value.as_str() {
        Some(role) if name == "role" && ROLES.contains(&role) => (Value::from(name), Value::from(role)),
        _ => (origins.given_text(name), origins.given(value)),
    };
    let message = |message: &serde_json::Value| match message.as_object() {
        Some(members) => Value::from_pairs(members.iter().map(member)),
        None => origins.given(message),
    };
    messages.iter().map(message).collect()
}

/// Runs the engine, which can panic on unusual templates; it is not used again after a panic.
fn caught<T>(work: impl FnOnce() -> Result<T, TemplateError>) -> Result<T, TemplateError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<&str>().map(ToString::to_string);
        let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(TemplateError::Engine(message.unwrap_or_else(|| "panic".into())))
    })
}

fn syntax() -> SyntaxConfig {
    let mut builder = SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true);
    builder.build().unwrap_or_default() // cannot fail: the delimiters are the defaults
}

type Program<'s> = (Instructions<'s>, BTreeMap<&'s str, Instructions<'s>>);

fn compile(source: &str) -> Result<Program<'_>, TemplateError> {
    let tree = parse(source, "chat template", syntax())
        .map_err(|error| TemplateError::Syntax { line: error.line().unwrap_or(0), what: message(&error) })?;
    let mut generator = CodeGenerator::new("chat template", source);
    generator.compile_stmt(&tree);
    let (code, blocks) = generator.finish();
    let blocks = blocks.iter().map(|(name, code)| (*name, rewrite::metered(code))).collect();
    Ok((rewrite::metered(&code), blocks))
}

fn environment(run: &Arc<Run>, now: i64) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_fuel(Some(run.limits.steps));
    env.set_recursion_limit(RECURSION);
    env.set_debug(false);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.remove_global("debug"); // Python's Jinja2 lacks it, and it would expose all variables
    ops::register(&mut env, run);
    filters::register(&mut env, run);
    let r = Arc::clone(run);
    env.set_formatter(move |out, state, value| {
        let mut write = |piece: &Piece<'_>| {
            r.wrote(piece)?;
            out.write_str(piece.text).map_err(Error::from)
        };
        match (state.auto_escape(), r.origins.piece(value)) {
            (AutoEscape::None, Some(piece)) => {
                r.meter.visit(value, 0)?;
                write(&piece)
            }
            (AutoEscape::None, None) => write(&r.text(value)?.as_piece()),
            _ => {
                r.meter.walk(value)?;
                let mut text = String::new();
                minijinja::escape_formatter(&mut make_string_output(&mut text), state, value)?;
                let text = r.inherit(Value::from(text), std::slice::from_ref(value))?;
                r.origins.piece(&text).map_or(Ok(()), |piece| write(&piece))
            }
        }
    });
    let r = Arc::clone(run);
    env.add_function("raise_exception", move |message: Value| -> Result<Value, Error> {
        Err(r.meter.stop(Stop::Raised(r.plain_text(&message)?), "raised"))
    });
    let r = Arc::clone(run);
    env.add_function("strftime_now", move |format: Value| {
        let text =
            format.as_str().ok_or_else(|| values::invalid("strftime_now: the format must be a string"))?;
        r.meter.charge(text.len().saturating_mul(8))?; // `%c` writes 24 bytes
        r.inherit(Value::from(clock::strftime(text, now)), &[format])
    });
    env.add_function("namespace", |first: Option<Value>, kwargs: Kwargs| {
        let dict = minijinja::functions::dict(first, kwargs)?;
        match ops::holds_namespace(&python::held(&dict)) {
            true => Err(ops::no_namespace()),
            false => minijinja::functions::namespace(Some(dict.into())),
        }
    });
    env.add_function("dict", |first: Option<Value>, kwargs: Kwargs| {
        let dict = minijinja::functions::dict(first, kwargs)?;
        match ops::holds_namespace(&python::held(&dict)) {
            true => Err(ops::no_namespace()),
            false => Ok(dict),
        }
    });
    env
}
