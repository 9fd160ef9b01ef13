//! What a chat template reads of a conversation, found by rendering conversations with it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tern_text::{Cancelled, ChatInput, ChatTemplate, TemplateError};

/// Names of an assistant's reasoning in messages; most templates read the first.
const REASONING_KEYS: [&str; 4] = ["reasoning_content", "reasoning", "thinking", "thought"];

/// Time for all of these renderings: templates come with files and may be hostile, and there
/// are up to 20 renderings.
pub(crate) const PROBING: Duration = Duration::from_secs(10);

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
    /// `None` if the template takes longer than [`PROBING`].
    pub(crate) fn of(template: &ChatTemplate) -> Option<TemplateTraits> {
        let end = Instant::now() + PROBING;
        TemplateTraits::until(template, Cancelled::when(move || Instant::now() >= end))
    }

    fn until(template: &ChatTemplate, cancelled: Cancelled) -> Option<TemplateTraits> {
        let probe = Probe { template, cancelled, too_slow: Cell::new(false) };
        let reasoning = |key: &&str| probe.calls_show(&["hay"], Some(key), "needle");
        let traits = TemplateTraits {
            content_shape: probe.content_shape(),
            takes_tools: probe.takes_tools(),
            reasoning_key: REASONING_KEYS.into_iter().find(reasoning).unwrap_or(REASONING_KEYS[0]),
            one_call: probe.calls_show(&["needle"], None, "needle")
                && !probe.calls_show(&["hay", "needle"], None, "needle"),
        };
        (!probe.too_slow.get()).then_some(traits)
    }
}

/// Renders conversations until the time for all of them has passed.
struct Probe<'a> {
    template: &'a ChatTemplate,
    cancelled: Cancelled,
    too_slow: Cell<bool>,
}

impl Probe<'_> {
    /// The text of a conversation, if the template takes it.
    fn text(&self, messages: Value, tools: Option<Value>) -> Option<String> {
        if self.too_slow.get() {
            return None;
        }
        let cancelled = self.cancelled.clone();
        let input =
            ChatInput { messages, tools, add_generation_prompt: true, cancelled, ..ChatInput::default() };
        let rendered = self.template.render(&input);
        self.too_slow.set(matches!(rendered, Err(TemplateError::Cancelled)));
        rendered.ok().map(|chat| chat.text)
    }

    /// Whether a conversation's text contains the word `needle`.
    fn shows_needle(&self, content: Value, tools: Option<Value>) -> bool {
        let messages = json!([{"role": "user", "content": content}]);
        self.text(messages, tools).is_some_and(|text| text.contains("needle"))
    }

    /// Whether an answer that calls these tools, with reasoning of this name, is written with this word.
    fn calls_show(&self, names: &[&str], reasoning_key: Option<&str>, word: &str) -> bool {
        let call = |name: &&str, arguments: Value| json!({"id": "abcdefghi", "type": "function", "function": {"name": name, "arguments": arguments}});
        [json!({}), json!("{}")].into_iter().any(|arguments| {
            let calls: Vec<Value> = names.iter().map(|name| call(name, arguments.clone())).collect();
            let mut answer = json!({"role": "assistant", "content": "", "tool_calls": calls});
            if let Some(key) = reasoning_key {
                answer[key] = word.into();
            }
            let messages = json!([{"role": "user", "content": "hay"}, answer]);
            self.text(messages, None).is_some_and(|text| text.contains(word))
        })
    }

    /// Whether a template shows tools to the model.
    fn takes_tools(&self) -> bool {
        let tool = json!({"type": "function", "function": {
            "name": "needle", "description": "", "parameters": {"type": "object", "properties": {}},
        }});
        [json!("hay"), json!([{"type": "text", "text": "hay"}])]
            .into_iter()
            .any(|content| self.shows_needle(content, Some(json!([tool]))))
    }

    /// A template that drops a plain text takes lists of parts only.
    fn content_shape(&self) -> ContentShape {
        let shows = |content| self.shows_needle(content, None);
        match !shows(json!("needle")) && shows(json!([{"type": "text", "text": "needle"}])) {
            true => ContentShape::Parts,
            false => ContentShape::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn traits(source: &str) -> TemplateTraits {
        TemplateTraits::of(&ChatTemplate::new(source, "", "").unwrap()).unwrap()
    }

    #[test]
    fn all_renderings_share_one_limit_of_time() {
        // many steps per rendering, none of which shows anything
        let template =
            ChatTemplate::new("{% for i in range(9999) %}{% set x = i ~ 'a' %}{% endfor %}", "", "");
        let template = template.unwrap();
        let checks = Arc::new(AtomicUsize::new(0));
        let after = |most: usize| {
            checks.store(0, Ordering::Relaxed);
            let checks = Arc::clone(&checks);
            Cancelled::when(move || checks.fetch_add(1, Ordering::Relaxed) >= most)
        };
        assert_eq!(TemplateTraits::until(&template, after(usize::MAX)), Some(TemplateTraits::default()));
        let all = checks.load(Ordering::Relaxed);
        assert!(all > 100, "{all}");
        // time that is enough for one rendering but not for all of them
        assert_eq!(TemplateTraits::until(&template, after(all / 2)), None);
        assert_eq!(checks.load(Ordering::Relaxed), all / 2 + 1, "no rendering begins after the limit");
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
