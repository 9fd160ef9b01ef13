//! How a model marks reasoning and tool calls in its answers, read off the markers in its chat template.

/// The markup of a model's answers.
///
/// ```
/// use tern_text::Markup;
/// let markup = Markup::of("{{- '<tool_call>\\n{\"name\": ' }} ... </tool_call> ... '</think>' in message.content");
/// assert_eq!(markup.reasoning.map(|style| style.begin), Some("<think>"));
/// assert_eq!(markup.calls.map(|style| style.begin), Some("<tool_call>\n"));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Markup {
    /// How reasoning is set apart from the answer, if it is.
    pub reasoning: Option<ReasoningStyle>,
    /// How tools are called, if the style is a known one.
    pub calls: Option<CallStyle>,
}

/// Reasoning between two texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningStyle {
    /// Before the reasoning.
    pub begin: &'static str,
    /// After the reasoning.
    pub end: &'static str,
    /// Texts around the rest of the answer that are no part of it.
    pub dropped: &'static [&'static str],
}

/// Tool calls, written `open` call `separator` call .. `close`, each call between `begin` and `end`.
///
/// Whitespace at the ends of these texts is how models usually write it; answers are read without regard to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallStyle {
    /// Before the first call.
    pub open: &'static str,
    /// Before each call.
    pub begin: &'static str,
    /// What a call is.
    pub form: CallForm,
    /// After each call.
    pub end: &'static str,
    /// Between calls.
    pub separator: &'static str,
    /// After the last call.
    pub close: &'static str,
    /// Whether the calls are the elements of a JSON list, between `open` and `close`.
    pub list: bool,
    /// Whether an answer that is nothing but JSON is a call, without `open` and `begin`.
    pub bare: bool,
}

/// What a tool call is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallForm {
    /// A JSON object with these keys, written in this order.
    Object {
        /// The key of the function's name.
        name_key: &'static str,
        /// The key of the arguments, an object.
        arguments_key: &'static str,
    },
    /// The function's name, a text, and the arguments as a JSON object.
    Named {
        /// The text.
        between: &'static str,
    },
}

/// The fixed texts of calls: `open` (`before_name` NAME `before_arguments` JSON `after_arguments`) .. `close`,
/// with `separator` between calls. Enough to write calls, or a grammar of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTexts {
    /// Before the first call.
    pub open: String,
    /// Before a call's name.
    pub before_name: String,
    /// Between a call's name and its arguments.
    pub before_arguments: String,
    /// After a call's arguments.
    pub after_arguments: String,
    /// Between two calls.
    pub separator: String,
    /// After the last call.
    pub close: String,
}

const JSON: CallForm = CallForm::Object { name_key: "name", arguments_key: "arguments" };

/// One JSON object after the other; the rows of the table say what differs.
const OBJECTS: CallStyle = CallStyle {
    open: "",
    begin: "",
    form: JSON,
    end: "",
    separator: ", ",
    close: "",
    list: false,
    bare: false,
};

const fn named(begin: &'static str, between: &'static str, end: &'static str) -> CallStyle {
    CallStyle { begin, form: CallForm::Named { between }, end, separator: "", ..OBJECTS }
}

const fn list(open: &'static str, close: &'static str) -> CallStyle {
    CallStyle { open, close, list: true, ..OBJECTS }
}

/// A style of calls, for templates that have all of the first texts and none of the others.
struct CallRow {
    has: &'static [&'static str],
    lacks: &'static [&'static str],
    style: CallStyle,
}

/// The first row that fits is taken.
const CALLS: [CallRow; 16] = [
    CallRow { has: &["[TOOL_CALLS]", "[ARGS]"], lacks: &[], style: named("[TOOL_CALLS]", "[ARGS]", "") },
    CallRow { has: &["[TOOL_CALLS]"], lacks: &[], style: list("[TOOL_CALLS]", "") },
    CallRow {
        has: &["<tool_calls>[", "</tool_calls>"],
        lacks: &[],
        style: list("<tool_calls>", "</tool_calls>"),
    },
    CallRow {
        has: &["<tool_calls>", "</tool_calls>", "{\"name\": "],
        lacks: &[],
        style: CallStyle { separator: "\n", open: "<tool_calls>\n", close: "\n</tool_calls>", ..OBJECTS },
    },
    // Hermes and Qwen; other templates put XML between the same markers
    CallRow {
        has: &["<tool_call>", "</tool_call>", "\"name"],
        lacks: &["<function=", "<arg_key>", "<parameter", "<invoke"],
        style: CallStyle { begin: "<tool_call>\n", end: "\n</tool_call>", separator: "\n", ..OBJECTS },
    },
    CallRow { has: &["<TOOLCALL>", "</TOOLCALL>"], lacks: &[], style: list("<TOOLCALL>", "</TOOLCALL>") },
    CallRow { has: &["<|tool_call|>", "JSON list"], lacks: &[], style: list("<|tool_call|>", "") },
    CallRow { has: &["functools["], lacks: &[], style: list("functools", "") },
    CallRow {
        has: &["<|function_call|>", "{\"name\": "],
        lacks: &[],
        style: CallStyle { begin: "<|function_call|>", separator: "", ..OBJECTS },
    },
    CallRow {
        has: &["<|START_ACTION|>", "<|END_ACTION|>", "\"tool_name\"", "\"parameters\""],
        lacks: &[],
        style: CallStyle {
            form: CallForm::Object { name_key: "tool_name", arguments_key: "parameters" },
            ..list("<|START_ACTION|>", "<|END_ACTION|>")
        },
    },
    CallRow {
        has: &["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"],
        lacks: &[],
        style: CallStyle {
            open: "<|tool_calls_section_begin|>",
            close: "<|tool_calls_section_end|>",
            ..named("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
        },
    },
    CallRow {
        has: &["<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "```json"],
        lacks: &[],
        style: CallStyle {
            open: "<｜tool▁calls▁begin｜>",
            close: "<｜tool▁calls▁end｜>",
            separator: "\n",
            ..named("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>")
        },
    },
    CallRow {
        has: &["<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"],
        lacks: &[],
        style: CallStyle {
            open: "<｜tool▁calls▁begin｜>",
            close: "<｜tool▁calls▁end｜>",
            ..named("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
        },
    },
    CallRow {
        has: &["<|channel|>commentary", "assistant to=", "functions.", "<|message|>"],
        lacks: &[],
        style: named("to=functions.", "<|message|>", "<|call|>"),
    },
    CallRow {
        has: &["<function=", "</function>"],
        lacks: &["<parameter", "tool_call>"],
        style: named("<function=", ">", "</function>"),
    },
    // Llama 3: a tag that may be missing, then nothing but the call
    CallRow {
        has: &["{\"name\": function name, \"parameters\": "],
        lacks: &[],
        style: CallStyle {
            begin: "<|python_tag|>",
            form: CallForm::Object { name_key: "name", arguments_key: "parameters" },
            separator: "; ",
            bare: true,
            ..OBJECTS
        },
    },
];

/// Styles of reasoning, each for templates that have its end; the first that fits is taken.
const REASONING: [ReasoningStyle; 9] = [
    ReasoningStyle { begin: "<think>", end: "</think>", dropped: &["<response>", "</response>"] },
    ReasoningStyle { begin: "<think>", end: "</think>", dropped: &[] },
    ReasoningStyle { begin: "[THINK]", end: "[/THINK]", dropped: &[] },
    ReasoningStyle { begin: "<thinking>", end: "</thinking>", dropped: &[] },
    ReasoningStyle { begin: "<seed:think>", end: "</seed:think>", dropped: &[] },
    ReasoningStyle { begin: "<mm:think>", end: "</mm:think>", dropped: &[] },
    ReasoningStyle { begin: "<|START_THINKING|>", end: "<|END_THINKING|>", dropped: &[] },
    ReasoningStyle { begin: "<|channel>thought", end: "<channel|>", dropped: &[] },
    ReasoningStyle {
        begin: "<|channel|>analysis<|message|>",
        end: "<|end|>",
        dropped: &[
            "<|start|>assistant",
            "<|channel|>final",
            "<|channel|>commentary",
            "<|message|>",
            "<|end|>",
        ],
    },
];

impl Markup {
    /// The markup that a chat template's text speaks of.
    pub fn of(template: &str) -> Markup {
        let has = |text: &&str| template.contains(*text);
        let reasoning = |style: &&ReasoningStyle| has(&style.end) && style.dropped.iter().all(has);
        let calls = |row: &&CallRow| row.has.iter().all(has) && !row.lacks.iter().any(has);
        let known = CALLS.iter().find(calls).map(|row| row.style);
        // a template that tells of tools and writes no calls leaves the style to the model
        let open = || (has(&"tools") && !has(&"tool_calls")).then_some(CallStyle::GENERIC);
        Markup { reasoning: REASONING.iter().find(reasoning).copied(), calls: known.or_else(open) }
    }

    /// The texts to look for in an answer, in which control tokens are to be shown: see `Decoder::showing`.
    pub fn texts(&self, wants_tools: bool) -> Vec<&'static str> {
        let reasoning = self
            .reasoning
            .iter()
            .flat_map(|style| [style.begin, style.end].into_iter().chain(style.dropped.iter().copied()));
        let calls = self.calls.iter().filter(|_| wants_tools).flat_map(|style| {
            let between = match style.form {
                CallForm::Named { between } => between,
                CallForm::Object { .. } => "",
            };
            [style.open, style.begin, between, style.end, style.close]
        });
        reasoning.chain(calls).map(str::trim_ascii).filter(|text| !text.is_empty()).collect()
    }
}

impl CallStyle {
    /// For a model without a style of its own: the whole answer is a JSON list of calls, or one call.
    pub const GENERIC: CallStyle = CallStyle { list: true, bare: true, ..OBJECTS };

    /// The fixed texts of calls as this style writes them.
    ///
    /// ```
    /// let texts = tern_text::CallStyle::GENERIC.texts();
    /// let call = [&texts.open, &texts.before_name, "now", &texts.before_arguments, "{}", &texts.after_arguments, &texts.close];
    /// assert_eq!(call.concat(), r#"[{"name": "now", "arguments": {}}]"#);
    /// ```
    pub fn texts(&self) -> CallTexts {
        let begin = if self.bare { "" } else { self.begin };
        let (before, between, after) = match self.form {
            CallForm::Object { name_key, arguments_key } => {
                (format!("{{\"{name_key}\": \""), format!("\", \"{arguments_key}\": "), "}")
            }
            CallForm::Named { between } => (String::new(), between.to_string(), ""),
        };
        let (bracket, unbracket) = if self.list { ("[", "]") } else { ("", "") };
        CallTexts {
            open: format!("{}{bracket}", self.open),
            before_name: format!("{begin}{before}"),
            before_arguments: between,
            after_arguments: format!("{after}{}", self.end),
            separator: self.separator.to_string(),
            close: format!("{unbracket}{}", self.close),
        }
    }

    /// The text that begins a call, or all of them; empty where only a bare call begins one.
    pub(crate) fn begins(&self) -> &'static str {
        if self.begin.is_empty() { self.open.trim_ascii() } else { self.begin.trim_ascii() }
    }

    /// The text after what [`Self::begins`] began; often empty.
    pub(crate) fn ends(&self) -> &'static str {
        if self.begin.is_empty() { self.close.trim_ascii() } else { self.end.trim_ascii() }
    }

    /// Texts around calls that each have their own beginning.
    pub(crate) fn around(&self) -> impl Iterator<Item = &'static str> {
        let around = if self.begin.is_empty() { ["", ""] } else { [self.open, self.close] };
        around.into_iter().map(str::trim_ascii).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_marker_of_a_style_begins_another() {
        for style in CALLS.iter().map(|row| row.style).chain([CallStyle::GENERIC]) {
            for reasoning in REASONING {
                let mut texts: Vec<&str> = style.around().chain(reasoning.dropped.iter().copied()).collect();
                texts.extend([style.begins()].iter().filter(|text| !text.is_empty()));
                for (i, a) in texts.iter().enumerate() {
                    for (j, b) in texts.iter().enumerate() {
                        assert!(i == j || !a.starts_with(b), "{a} {b}");
                    }
                }
            }
        }
    }
}
