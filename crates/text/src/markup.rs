//! The markup of reasoning and tool calls in a model's answers, detected from the
//! markers in its chat template.

mod forms;
mod reasoning;
mod table;

use reasoning::{CHANNELS, REASONING};
use table::{CALLS, CallRow, OBJECTS};

pub use forms::{ArgumentForm, CallForm, CallTexts, ITEM, LiteralStyle, TagStyle, ValueKind};

/// The markup of a model's answers.
///
/// ```
/// use tern_text::Markup;
/// let markup = Markup::of(
///     "{{- '<tool_call>\\n{\"name\": ' }} ... </tool_call> ... '</think>' in message.content",
/// );
/// assert_eq!(markup.reasoning.map(|style| style.begin), Some("<think>"));
/// assert_eq!(markup.calls.map(|style| style.begin), Some("<tool_call>\n"));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Markup {
    /// How reasoning is marked, if it is.
    pub reasoning: Option<ReasoningStyle>,
    /// How tools are called, if the style is known.
    pub calls: Option<CallStyle>,
    /// How the messages of an answer are separated, if it has several.
    pub channels: Option<ChannelStyle>,
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

/// An answer of several messages: `start` HEADER `message` TEXT `end` .., where the
/// header tells what the text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelStyle {
    /// Before a header; omitted in the first message, since the prompt ends with it.
    pub start: &'static str,
    /// What a header may start with.
    pub headers: &'static [&'static str],
    /// Between a header and the text.
    pub message: &'static str,
    /// In the header of reasoning.
    pub reasoning: &'static str,
    /// In the header of a call, before the function's name; empty if headers do not distinguish calls.
    pub calls: &'static str,
    /// What ends a message.
    pub ends: &'static [&'static str],
    /// The start of the header of the answer itself, up to its text; empty if it varies.
    pub answer: &'static str,
    /// The start of the header of a call, before what [`CallStyle::begin`] has; empty if headers
    /// do not distinguish calls.
    pub call: &'static str,
    /// Whether a header is nothing but the name of a tool, or `answer`.
    pub recipients: bool,
}

/// Tool calls, written `open` call `separator` call .. `close`, each call between `begin` and `end`.
///
/// These texts have the whitespace that models usually write; parsing ignores it. A line feed inside `begin`
/// or `end` separates two markers; a call may begin with the second one.
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
    /// Whether the calls are the elements of a list, between `open` and `close`.
    pub list: bool,
    /// Whether an answer that consists only of calls has neither `open` nor `begin`.
    pub bare: bool,
}

impl Markup {
    /// Detects the markup from a chat template.
    pub fn of(template: &str) -> Markup {
        let has = |text: &&str| template.contains(*text);
        let calls = |row: &&CallRow| row.has.iter().all(has) && !row.lacks.iter().any(has);
        let known = CALLS.iter().find(calls).map(|row| row.style);
        // a template with tools but without calls leaves the style to the model
        let open = || (has(&"tools") && !has(&"tool_calls")).then_some(CallStyle::GENERIC);
        let reasoning = REASONING.iter().find(|row| row.has.iter().all(has)).map(|row| row.style);
        let channels = CHANNELS.iter().find(|(texts, _)| texts.iter().all(has)).map(|(_, style)| *style);
        Markup { reasoning, calls: known.or_else(open), channels }
    }

    /// The markers to search for in an answer, whose control tokens must be decoded: see `Decoder::showing`.
    pub fn texts(&self, wants_tools: bool) -> Vec<&'static str> {
        let reasoning = self
            .reasoning
            .iter()
            .flat_map(|style| [style.begin, style.end].into_iter().chain(style.dropped.iter().copied()));
        let channels = self.channels.iter().flat_map(|style| {
            [style.start, style.message, style.reasoning].into_iter().chain(style.ends.iter().copied())
        });
        let calls = self.calls.iter().filter(|_| wants_tools || self.channels.is_some()).flat_map(|style| {
            let inside = match style.form {
                CallForm::Object { .. } | CallForm::Keyed => vec![],
                CallForm::Named { after_id, between } => vec![after_id, between],
                CallForm::Tagged(tags) => {
                    let after_keys = tags.after_key.iter().map(|(text, _)| *text);
                    [tags.after_name, tags.before_key, tags.after_value]
                        .into_iter()
                        .chain(after_keys)
                        .collect()
                }
                CallForm::Literal(literal) => vec![literal.quote],
            };
            [style.open, style.begin, style.end, style.close].into_iter().chain(inside)
        });
        reasoning.chain(channels).chain(calls).map(str::trim_ascii).filter(|text| !text.is_empty()).collect()
    }
}

impl CallStyle {
    /// For a model without a known style: the whole answer is a JSON list of calls, or one call.
    pub const GENERIC: CallStyle = CallStyle { list: true, bare: true, ..OBJECTS };

    /// The fixed texts of calls in this style.
    ///
    /// ```
    /// let texts = tern_text::CallStyle::GENERIC.texts();
    /// let call = [
    ///     &texts.open, &texts.before_name, "now", &texts.before_arguments, "{}",
    ///     &texts.after_arguments, &texts.close,
    /// ];
    /// assert_eq!(call.concat(), r#"[{"name": "now", "arguments": {}}]"#);
    /// ```
    pub fn texts(&self) -> CallTexts {
        let begin = if self.bare { "" } else { self.begin };
        let mut arguments = ArgumentForm::Json;
        let (before, between, after) = match self.form {
            CallForm::Object { name_key, arguments_key } => {
                (format!("{{\"{name_key}\": \""), format!("\", \"{arguments_key}\": "), "}")
            }
            CallForm::Keyed => ("{\"".to_string(), "\": ".to_string(), "}"),
            CallForm::Named { after_id: "", between } => (String::new(), between.to_string(), ""),
            CallForm::Named { after_id, between } => (format!("call{after_id}"), between.to_string(), ""),
            CallForm::Tagged(tags) => {
                arguments = ArgumentForm::Tags(tags);
                (String::new(), tags.after_name.to_string(), "")
            }
            CallForm::Literal(literal) => {
                arguments = ArgumentForm::Literal(literal);
                (String::new(), literal.open.to_string(), literal.close)
            }
        };
        let (bracket, unbracket) = if self.list { ("[", "]") } else { ("", "") };
        CallTexts {
            open: format!("{}{bracket}", self.open),
            before_name: format!("{begin}{before}"),
            before_arguments: between,
            arguments,
            after_arguments: format!("{after}{}", self.end),
            separator: self.separator.to_string(),
            close: format!("{unbracket}{}", self.close),
        }
    }

    /// The markers before a call or a list of calls, outermost first; none if calls have no marker.
    pub(crate) fn begins(&self) -> impl Iterator<Item = &'static str> + use<> {
        markers(if self.begin.is_empty() { self.open } else { self.begin })
    }

    /// The markers after what [`Self::begins`] starts, innermost first; often none.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &'static str> + use<> {
        markers(if self.begin.is_empty() { self.close } else { self.end })
    }

    /// Markers around a list of calls that have their own markers.
    pub(crate) fn around(&self) -> impl Iterator<Item = &'static str> + use<> {
        let around = if self.begin.is_empty() { ["", ""] } else { [self.open, self.close] };
        around.into_iter().map(str::trim_ascii).filter(|text| !text.is_empty())
    }
}

impl ChannelStyle {
    /// The markers that start a header; `to=` alone is none.
    pub(crate) fn markers(&self) -> impl Iterator<Item = &'static str> + use<> {
        [self.start].into_iter().chain(self.headers.iter().copied().filter(|text| text.starts_with('<')))
    }

    /// Whether a text starts with a marker that starts a header.
    pub(crate) fn is_marked(&self, text: &str) -> bool {
        self.markers().any(|marker| text.starts_with(marker))
    }
}

/// The markers of a text, which line feeds separate.
fn markers(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split('\n').map(str::trim_ascii).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_marker_is_a_prefix_of_another() {
        for style in CALLS.iter().map(|row| row.style).chain([CallStyle::GENERIC]) {
            for row in REASONING {
                let mut texts: Vec<&str> = style.around().chain(row.style.dropped.iter().copied()).collect();
                texts.extend(style.begins());
                for (i, a) in texts.iter().enumerate() {
                    for (j, b) in texts.iter().enumerate() {
                        assert!(i == j || !a.starts_with(b), "{a} {b}");
                    }
                }
            }
        }
    }
}
