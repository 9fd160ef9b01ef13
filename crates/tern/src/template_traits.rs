//! What a chat template reads of a conversation, found by rendering conversations with it.

use serde_json::{Value, json};
use tern_text::{ChatInput, ChatTemplate};

/// Names of an assistant's reasoning in messages; most templates read the first.
const REASONING_KEYS: [&str; 4] = ["reasoning_content", "reasoning", "thinking", "thought"];

/// What a template reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TemplateTraits {
    pub(crate) content_shape: ContentShape,
    /// Whether it shows tools to the model.
    pub(crate) takes_tools: bool,
    /// The name of an assistant's reasoning.
    pub(crate) reasoning_key: &'static str,
    /// Whether it writes one call per message at most.
    pub(crate) one_call: bool,
}

/// How a template reads the content of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ContentShape {
    #[default]
    Text,
    /// A list of parts: templates of models that also take images.
    Parts,
}

impl Default for TemplateTraits {
    fn default() -> TemplateTraits {
        let content_shape = ContentShape::default();
        TemplateTraits {
            content_shape,
            takes_tools: false,
            reasoning_key: REASONING_KEYS[0],
            one_call: false,
        }
    }
}

impl TemplateTraits {
    pub(crate) fn of(template: &ChatTemplate) -> TemplateTraits {
        let reasoning = |key: &&str| calls_show(template, &["hay"], Some(key), "needle");
        TemplateTraits {
            content_shape: content_shape(template),
            takes_tools: takes_tools(template),
            reasoning_key: REASONING_KEYS.into_iter().find(reasoning).unwrap_or(REASONING_KEYS[0]),
            one_call: calls_show(template, &["needle"], None, "needle")
                && !calls_show(template, &["hay", "needle"], None, "needle"),
        }
    }
}

/// The text of a conversation, if the template takes it.
fn text(template: &ChatTemplate, messages: Value, tools: Option<Value>) -> Option<String> {
    let input = ChatInput { messages, tools, add_generation_prompt: true, ..ChatInput::default() };
    template.render(&input).ok().map(|chat| chat.text)
}

/// Whether a conversation's text contains the word `needle`.
fn shows_needle(template: &ChatTemplate, content: Value, tools: Option<Value>) -> bool {
    let messages = json!([{"role": "user", "content": content}]);
    text(template, messages, tools).is_some_and(|text| text.contains("needle"))
}

/// Whether an answer that calls these tools, with reasoning of this name, is written with this word.
fn calls_show(template: &ChatTemplate, names: &[&str], reasoning_key: Option<&str>, word: &str) -> bool {
    let call = |name: &&str, arguments: Value| json!({"id": "abcdefghi", "type": "function", "function": {"name": name, "arguments": arguments}});
    [json!({}), json!("{}")].into_iter().any(|arguments| {
        let calls: Vec<Value> = names.iter().map(|name| call(name, arguments.clone())).collect();
        let mut answer = json!({"role": "assistant", "content": "", "tool_calls": calls});
        if let Some(key) = reasoning_key {
            answer[key] = word.into();
        }
        let messages = json!([{"role": "user", "content": "hay"}, answer]);
        text(template, messages, None).is_some_and(|text| text.contains(word))
    })
}

/// Whether a template shows tools to the model.
fn takes_tools(template: &ChatTemplate) -> bool {
    let tool = json!({"type": "function", "function": {
        "name": "needle", "description": "", "parameters": {"type": "object", "properties": {}},
    }});
    [json!("hay"), json!([{"type": "text", "text": "hay"}])]
        .into_iter()
        .any(|content| shows_needle(template, content, Some(json!([tool]))))
}

/// A template that drops a plain text takes lists of parts only.
fn content_shape(template: &ChatTemplate) -> ContentShape {
    let shows = |content| shows_needle(template, content, None);
    match !shows(json!("needle")) && shows(json!([{"type": "text", "text": "needle"}])) {
        true => ContentShape::Parts,
        false => ContentShape::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traits(source: &str) -> TemplateTraits {
        TemplateTraits::of(&ChatTemplate::new(source, "", "").unwrap())
    }

    #[test]
    fn reasoning_has_the_name_that_the_template_reads() {
        for key in REASONING_KEYS {
            let source =
                format!("{{% for m in messages %}}{{{{ m.{key} }}}}{{{{ m.content }}}}{{% endfor %}}");
            assert_eq!(traits(&source).reasoning_key, key);
        }
        assert_eq!(traits("{{ messages[0].content }}"), TemplateTraits::default());
    }

    #[test]
    fn templates_may_write_one_call_per_message() {
        let first = "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}{% endfor %}";
        let only = "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls|length != 1 %}\
                    {{ raise_exception('one') }}{% endif %}{{ m.tool_calls[0].function.name }}{% endif %}{% endfor %}";
        let all = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}";
        assert!(traits(first).one_call && traits(only).one_call);
        assert!(!traits(all).one_call && !traits("").one_call);
    }
}
