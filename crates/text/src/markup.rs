//! The markup of reasoning and tool calls in a model's answers, detected from the markers in its chat template.

mod table;

use table::{CALLS, CallRow, OBJECTS, REASONING};

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
    /// How reasoning is marked, if it is.
    pub reasoning: Option<ReasoningStyle>,
    /// How tools are called, if the style is known.
    pub calls: Option<CallStyle>,
}

/// Reasoning between two markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningStyle {
    /// Before the reasoning.
    pub begin: &'static str,
    /// After the reasoning.
    pub end: &'static str,
    /// Markers around the rest of the answer, which are removed.
    pub dropped: &'static [&'static str],
}

/// Tool calls, written `open` call `separator` call .. `close`, each call between `begin` and `end`.
///
/// These texts have the whitespace that models usually write; parsing ignores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallStyle {
    /// Before the first call.
    pub open: &'static str,
    /// Before each call.
    pub begin: &'static str,
    /// The form of a call.
    pub form: CallForm,
    /// After each call.
    pub end: &'static str,
    /// Between calls.
    pub separator: &'static str,
    /// After the last call.
    pub close: &'static str,
    /// Whether the calls are the elements of a JSON list, between `open` and `close`.
    pub list: bool,
    /// Whether an answer that consists only of JSON is a call, without `open` and `begin`.
    pub bare: bool,
}

/// The form of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallForm {
    /// A JSON object with these keys in this order.
    Object {
        /// The key of the function's name.
        name_key: &'static str,
        /// The key of the arguments, an object.
        arguments_key: &'static str,
    },
    /// The function's name, a separator, and the arguments as a JSON object.
    Named {
        /// The separator.
        between: &'static str,
    },
}

/// The fixed texts of calls: `open` (`before_name` NAME `before_arguments` JSON `after_arguments`) .. `close`,
/// with `separator` between calls. Sufficient to write calls or a grammar for them.
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

impl Markup {
    /// Detects the markup from a chat template.
    pub fn of(template: &str) -> Markup {
        let has = |text: &&str| template.contains(*text);
        let reasoning = |style: &&ReasoningStyle| has(&style.end) && style.dropped.iter().all(has);
        let calls = |row: &&CallRow| row.has.iter().all(has) && !row.lacks.iter().any(has);
        let known = CALLS.iter().find(calls).map(|row| row.style);
        // a template with tools but without calls leaves the style to the model
        let open = || (has(&"tools") && !has(&"tool_calls")).then_some(CallStyle::GENERIC);
        Markup { reasoning: REASONING.iter().find(reasoning).copied(), calls: known.or_else(open) }
    }

    /// The markers to search for in an answer, whose control tokens must be decoded: see `Decoder::showing`.
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
    /// For a model without a known style: the whole answer is a JSON list of calls, or one call.
    pub const GENERIC: CallStyle = CallStyle { list: true, bare: true, ..OBJECTS };

    /// The fixed texts of calls in this style.
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

    /// The marker before a call or a list of calls; empty if calls have no marker.
    pub(crate) fn begins(&self) -> &'static str {
        if self.begin.is_empty() { self.open.trim_ascii() } else { self.begin.trim_ascii() }
    }

    /// The marker after what [`Self::begins`] starts; often empty.
    pub(crate) fn ends(&self) -> &'static str {
        if self.begin.is_empty() { self.close.trim_ascii() } else { self.end.trim_ascii() }
    }

    /// Markers around a list of calls that have their own markers.
    pub(crate) fn around(&self) -> impl Iterator<Item = &'static str> {
        let around = if self.begin.is_empty() { ["", ""] } else { [self.open, self.close] };
        around.into_iter().map(str::trim_ascii).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_marker_is_a_prefix_of_another() {
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
