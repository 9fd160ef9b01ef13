//! Conversations: typed messages, and the text that a model's chat template makes of them.

mod continuation;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tern_text::{CallStyle, Cancelled, ChatInput, ChatTemplate, ChatText, Markup, TemplateError};

use crate::template_traits::{ContentShape, TemplateTraits};
use crate::{Error, Image, Model};

/// The longest that a chat template may take; real ones take milliseconds.
const RENDERING: Duration = Duration::from_secs(10);

/// Bytes of a prompt's end that show whether it opens reasoning.
const TAIL: usize = 200;

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Its text.
    pub content: String,
    /// Its images, in the order of their places in the text.
    pub images: Vec<Image>,
    /// The name of its author.
    pub name: Option<String>,
    /// The reasoning before an assistant's answer.
    pub reasoning: Option<String>,
    /// The tools that an assistant called.
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool's message answers.
    pub tool_call_id: Option<String>,
}

impl Message {
    fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into(), ..Message::default() }
    }

    /// The system message.
    pub fn system(content: impl Into<String>) -> Message {
        Message::new("system", content)
    }

    /// A message of the user.
    pub fn user(content: impl Into<String>) -> Message {
        Message::new("user", content)
    }

    /// What the model answered before.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message::new("assistant", content)
    }

    /// The result of a tool call.
    pub fn tool(content: impl Into<String>, call_id: impl Into<String>) -> Message {
        Message { tool_call_id: Some(call_id.into()), ..Message::new("tool", content) }
    }

    /// Puts an image before the text.
    #[must_use]
    pub fn image(mut self, file: impl Into<Arc<[u8]>>) -> Message {
        self.images.insert(0, Image { at: 0, bytes: file.into() });
        self
    }

    /// Adds a text to the content: on a new line, unless it is the first or follows an image.
    pub fn push_text(&mut self, text: &str) {
        let after_image = self.images.last().is_some_and(|image| image.at == self.content.len());
        if !self.content.is_empty() && !after_image {
            self.content.push('\n');
        }
        self.content.push_str(text);
    }

    /// Adds an image to the content.
    pub fn push_image(&mut self, file: impl Into<Arc<[u8]>>) {
        self.images.push(Image { at: self.content.len(), bytes: file.into() });
    }

    /// The content as parts: images, and the texts between them.
    fn parts(&self) -> Value {
        let (mut parts, mut done) = (vec![], 0);
        let text = |text: &str| (!text.is_empty()).then(|| json!({"type": "text", "text": text}));
        for image in &self.images {
            let at = image.at.clamp(done, self.content.len());
            parts.extend(text(self.content.get(done..at).unwrap_or_default()));
            parts.push(json!({"type": "image"}));
            done = at;
        }
        parts.extend(text(self.content.get(done..).unwrap_or_default()));
        parts.into()
    }

    /// As a template reads it.
    fn to_value(&self, traits: TemplateTraits, arguments: Arguments) -> Value {
        let mut out = Map::new();
        out.insert("role".into(), self.role.as_str().into());
        let content = match traits.content_shape {
            _ if !self.images.is_empty() => self.parts(),
            ContentShape::Text => self.content.as_str().into(),
            ContentShape::Parts => json!([{"type": "text", "text": self.content}]),
        };
        out.insert("content".into(), content);
        let texts = [
            (traits.reasoning_key, &self.reasoning),
            ("name", &self.name),
            ("tool_call_id", &self.tool_call_id),
        ];
        for (key, text) in texts {
            out.extend(text.as_deref().map(|text| (key.into(), text.into())));
        }
        if !self.tool_calls.is_empty() {
            let calls: Vec<Value> = self.tool_calls.iter().map(|call| call.to_value(arguments)).collect();
            out.insert("tool_calls".into(), calls.into());
        }
        out.into()
    }

    /// For a template that knows no tools: calls and results as plain text.
    fn without_tools(&self) -> Message {
        if !self.tool_calls.is_empty() {
            let calls: Vec<Value> =
                self.tool_calls.iter().map(|call| call.function(Arguments::Object)).collect();
            return Message::assistant(Value::from(calls).to_string());
        }
        if self.role == "tool" {
            let before = "The function answered: ";
            let moved = |image: &Image| Image { at: image.at + before.len(), ..image.clone() };
            let images = self.images.iter().map(moved).collect();
            return Message { images, ..Message::user(format!("{before}{}", self.content)) };
        }
        self.clone()
    }
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCall {
    /// What the tool's answer refers to.
    pub id: Option<String>,
    /// The function.
    pub name: String,
    /// Its arguments: JSON as the model wrote it.
    pub arguments: String,
    /// The same, parsed, if it is an object; most templates write it as JSON themselves.
    pub parsed: Option<Value>,
}

impl ToolCall {
    /// A call with its arguments as JSON.
    pub fn new(name: impl Into<String>, arguments: impl Into<String>) -> ToolCall {
        let arguments = arguments.into();
        let parsed = match arguments.trim() {
            "" => Some(json!({})),
            text => serde_json::from_str(text).ok().filter(Value::is_object),
        };
        ToolCall { id: None, name: name.into(), arguments, parsed }
    }

    fn function(&self, arguments: Arguments) -> Value {
        let arguments = match (&self.parsed, arguments) {
            (Some(object), Arguments::Object) => object.clone(),
            _ => self.arguments.as_str().into(),
        };
        json!({"name": self.name, "arguments": arguments})
    }

    fn to_value(&self, arguments: Arguments) -> Value {
        let mut out = json!({"type": "function", "function": self.function(arguments)});
        if let Some(id) = &self.id {
            out["id"] = id.as_str().into();
        }
        out
    }
}

/// How the arguments of an earlier call are passed to a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arguments {
    Object,
    Text,
}

/// A conversation that the model continues.
#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    /// The messages so far.
    pub messages: Vec<Message>,
    /// Tools that the model may call, in the shape of the OpenAI API.
    pub tools: Vec<Value>,
    /// Variables for the template, such as `enable_thinking`.
    pub template_variables: Map<String, Value>,
    /// Where the prompt ends.
    pub end: ChatEnd,
}

/// Where the prompt of a conversation ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChatEnd {
    /// Where the assistant's answer begins.
    #[default]
    Answer,
    /// After the last message.
    Messages,
    /// Inside the last message, after its content: the model continues it.
    LastMessage,
}

impl Chat {
    /// A conversation without tools.
    pub fn new(messages: impl IntoIterator<Item = Message>) -> Chat {
        Chat {
            messages: messages.into_iter().collect(),
            tools: vec![],
            template_variables: Map::new(),
            end: ChatEnd::default(),
        }
    }
}

/// A conversation as its model reads it.
#[derive(Debug)]
pub struct RenderedChat {
    /// The text, with the ranges that came from messages.
    pub text: ChatText,
    /// The files of its images, in order.
    pub images: Vec<Arc<[u8]>>,
    /// How reasoning and calls are marked in the answer.
    pub markup: Markup,
    /// The marker of the reasoning that the last message has begun and the model continues.
    open_reasoning: Option<&'static str>,
}

impl RenderedChat {
    /// The end of the prompt, which may open reasoning.
    pub fn tail(&self) -> &str {
        if let Some(marker) = self.open_reasoning {
            return marker;
        }
        let text = &self.text.text;
        let from = (text.len().saturating_sub(TAIL)..).find(|&at| text.is_char_boundary(at));
        &text[from.unwrap_or(text.len())..]
    }
}

impl Model {
    /// Renders a conversation by the model's template; `cancelled` is asked again and again meanwhile.
    pub fn render(
        &self,
        chat: &Chat,
        cancelled: impl Fn() -> bool + Clone + Send + Sync + 'static,
    ) -> Result<RenderedChat, Error> {
        let (Some(template), Some(mut markup)) = (self.template(), self.markup()) else {
            return Err(Error::NoChatTemplate(self.name().to_string()));
        };
        if !chat.tools.is_empty() {
            match (self.takes_tools(), markup.calls) {
                (true, None) => return Err(Error::UnknownCallFormat),
                (true, Some(_)) => {}
                (false, _) => markup.calls = Some(CallStyle::GENERIC),
            }
        }
        let calls = chat.messages.iter().any(|message| !message.tool_calls.is_empty());
        let mut text = self.render_with(template, chat, Arguments::Object, cancelled.clone());
        if calls && text.as_ref().is_err_and(|error| !matches!(error, TemplateError::Cancelled)) {
            // some templates write the arguments of earlier calls as they stand, and some reject
            // reasoning beside content
            let without = without_reasoning_beside_content(chat);
            let others =
                [(chat, Arguments::Text), (&without, Arguments::Object), (&without, Arguments::Text)];
            let mut others = others
                .into_iter()
                .map(|(chat, arguments)| self.render_with(template, chat, arguments, cancelled.clone()));
            text = others.find(Result::is_ok).unwrap_or(text);
        }
        let (mut text, images) = text?;
        let mut open_reasoning = None;
        if chat.end == ChatEnd::LastMessage {
            let last = chat.messages.last().ok_or(Error::CannotContinue("there is none"))?;
            continuation::cut(&mut text, last).map_err(Error::CannotContinue)?;
            open_reasoning = continuation::open_reasoning(&last.content, markup.reasoning);
        }
        Ok(RenderedChat { text, images, markup, open_reasoning })
    }

    fn render_with(
        &self,
        template: &ChatTemplate,
        chat: &Chat,
        arguments: Arguments,
        cancelled: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<(ChatText, Pictures), TemplateError> {
        let traits = self.template_traits();
        let messages: Cow<'_, [Message]> = match self.takes_tools() {
            true if traits.one_call => one_call_per_message(&chat.messages).into(),
            true => (&chat.messages).into(),
            // calls of earlier turns are part of the conversation even if this turn has no tools
            false => explain_tools(chat).into(),
        };
        let images = messages.iter().flat_map(|message| &message.images);
        let images = images.map(|image| Arc::clone(&image.bytes)).collect();
        let messages: Vec<Value> = messages.iter().map(|m| m.to_value(traits, arguments)).collect();
        let tools = (self.takes_tools() && !chat.tools.is_empty()).then(|| json!(chat.tools));
        let start = Instant::now();
        let text = template.render(&ChatInput {
            messages: messages.into(),
            tools,
            add_generation_prompt: chat.end == ChatEnd::Answer,
            now: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64,
            kwargs: chat.template_variables.clone(),
            cancelled: Cancelled::when(move || cancelled() || start.elapsed() > RENDERING),
        })?;
        Ok((text, images))
    }
}

/// The bytes of the images of a conversation, in its order.
type Pictures = Vec<Arc<[u8]>>;

/// The conversation without the reasoning of messages that also have content and calls.
fn without_reasoning_beside_content(chat: &Chat) -> Chat {
    let mut chat = chat.clone();
    for message in &mut chat.messages {
        if !message.tool_calls.is_empty() && !message.content.is_empty() {
            message.reasoning = None;
        }
    }
    chat
}

/// The messages for a template that writes one call per message: several calls become several messages, each
/// followed by its result.
fn one_call_per_message(messages: &[Message]) -> Vec<Message> {
    let mut out = Vec::new();
    let mut rest = messages.iter().peekable();
    while let Some(message) = rest.next() {
        if message.tool_calls.len() < 2 {
            out.push(message.clone());
            continue;
        }
        let mut results = Vec::new();
        while let Some(result) = rest.next_if(|next| next.role == "tool") {
            results.push(result.clone());
        }
        for (at, call) in message.tool_calls.iter().enumerate() {
            let tool_calls = vec![call.clone()];
            out.push(match at {
                0 => Message { tool_calls, ..message.clone() },
                _ => Message { tool_calls, ..Message::new(&message.role, "") },
            });
            let answers = |result: &Message| result.tool_call_id.is_some() && result.tool_call_id == call.id;
            // results without ids are in the order of the calls
            let found = results.iter().position(answers);
            let unnamed = || {
                results.first().filter(|result| result.tool_call_id.is_none() || call.id.is_none()).map(|_| 0)
            };
            out.extend(found.or_else(unnamed).map(|at| results.remove(at)));
        }
        out.append(&mut results);
    }
    out
}

/// The conversation for a template that knows no tools: their description, calls and
/// results become plain text.
fn explain_tools(chat: &Chat) -> Vec<Message> {
    let mut out: Vec<Message> = chat.messages.iter().map(Message::without_tools).collect();
    if chat.tools.is_empty() {
        return out;
    }
    let functions: Vec<String> = chat.tools.iter().map(|tool| tool["function"].to_string()).collect();
    let instructions = format!(
        "You can call these functions, each described by a JSON object:\n{}\n\nTo call functions, answer with \
         nothing but a JSON list of calls: [{{\"name\": \"the function\", \"arguments\": {{...}}}}]",
        functions.join("\n")
    );
    match out.first_mut() {
        Some(first) if first.role == "system" => {
            first.content = format!("{}\n\n{instructions}", first.content)
        }
        _ => out.insert(0, Message::system(instructions)),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_their_arguments_as_an_object_or_as_text() {
        let call = ToolCall { id: Some("a".into()), ..ToolCall::new("f", "{\"x\": 1}") };
        let value = |arguments| call.to_value(arguments);
        assert_eq!(
            value(Arguments::Object),
            json!({"type": "function", "function": {"name": "f", "arguments": {"x": 1}}, "id": "a"})
        );
        assert_eq!(value(Arguments::Text)["function"]["arguments"], "{\"x\": 1}");
        assert_eq!(ToolCall::new("f", " ").parsed, Some(json!({})));
        assert_eq!(ToolCall::new("f", "oops").to_value(Arguments::Object)["function"]["arguments"], "oops");
        assert_eq!(ToolCall::new("f", "[1]").parsed, None);
    }

    #[test]
    fn templates_of_models_with_images_get_parts() {
        let traits = TemplateTraits { content_shape: ContentShape::Parts, ..TemplateTraits::default() };
        let value = Message::user("a").to_value(traits, Arguments::Object);
        assert_eq!(value, json!({"role": "user", "content": [{"type": "text", "text": "a"}]}));
    }

    #[test]
    fn several_calls_become_several_messages() {
        let call = |id: &str| ToolCall { id: Some(id.into()), ..ToolCall::new("f", "{}") };
        let calls = Message {
            tool_calls: vec![call("a"), call("b")],
            reasoning: Some("Hm.".into()),
            ..Message::assistant("I look.")
        };
        let (one, two, other) = (Message::tool("1", "a"), Message::tool("2", "b"), Message::tool("3", "c"));
        let messages = [calls.clone(), two.clone(), one.clone(), other.clone(), Message::user("Hi")];
        let first = Message { tool_calls: vec![call("a")], ..calls };
        let second = Message { tool_calls: vec![call("b")], ..Message::assistant("") };
        assert_eq!(one_call_per_message(&messages), [first, one, second, two, other, Message::user("Hi")]);
    }

    #[test]
    fn tools_are_explained_to_templates_that_know_none() {
        let mut chat = Chat::new([Message::system("Be brief."), Message::user("Hi")]);
        chat.messages.push(Message { tool_calls: vec![ToolCall::new("f", "{}")], ..Message::assistant("") });
        chat.messages.push(Message::tool("3", "a"));
        let explained = explain_tools(&chat);
        assert_eq!(explained[0].content, "Be brief.");
        assert_eq!(explained[2].content, r#"[{"name":"f","arguments":{}}]"#);
        assert_eq!(explained[3], Message::user("The function answered: 3"));
        chat.tools.push(json!({"type": "function", "function": {"name": "f"}}));
        let explained = explain_tools(&chat);
        assert!(explained[0].content.starts_with("Be brief.\n\nYou can call"), "{}", explained[0].content);
        chat.messages.remove(0);
        assert_eq!(explain_tools(&chat)[0].role, "system");
    }
}
