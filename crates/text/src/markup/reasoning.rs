//! The known styles of reasoning, and the markers that identify them in a chat template.

use super::{ChannelStyle, ReasoningStyle};

/// A style of reasoning, for templates that contain all of `has`.
pub(super) struct ReasoningRow {
    pub(super) has: &'static [&'static str],
    pub(super) style: ReasoningStyle,
}

const fn row(
    has: &'static [&'static str],
    begin: &'static str,
    end: &'static str,
    dropped: &'static [&'static str],
) -> ReasoningRow {
    ReasoningRow { has, style: ReasoningStyle { begin, end, dropped } }
}

/// The first row that matches is used.
pub(super) const REASONING: &[ReasoningRow] = &[
    row(&["</think>", "<response>", "</response>"], "<think>", "</think>", &["<response>", "</response>"]),
    row(&["</think>"], "<think>", "</think>", &[]),
    row(&["[/THINK]"], "[THINK]", "[/THINK]", &[]),
    row(&["</thinking>"], "<thinking>", "</thinking>", &[]),
    row(&["</seed:think>"], "<seed:think>", "</seed:think>", &[]),
    row(&["</mm:think>"], "<mm:think>", "</mm:think>", &[]),
    // the suffix is a variable of the template
    row(&["'</think{}>'", "':opensource'"], "<think:opensource>", "</think:opensource>", &[]),
    row(&["<|END_THINKING|>"], "<|START_THINKING|>", "<|END_THINKING|>", &[]),
    row(&["<channel|>"], "<|channel>thought", "<channel|>", &[]),
    row(&["<|inner_suffix|>"], "<|inner_prefix|>", "<|inner_suffix|>", &[]),
    row(
        &["Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"],
        "Here are my reasoning steps:",
        "[BEGIN FINAL RESPONSE]",
        &[],
    ),
    row(
        &["'<|open|>'", "open_tag('think')"],
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        &["<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"],
    ),
    row(
        &["<|begin|>assistant<|think|>", "<|content|>", "<|end|>"],
        "<|think|>",
        "<|end|>",
        &["<|begin|>assistant", "<|content|>", "<|end|>"],
    ),
    row(&["<|channel|>analysis<|message|>", "<|end|>"], "<|channel|>analysis<|message|>", "<|end|>", &[]),
    row(&["assistant to=self<|message|>", "<|eom|>"], " to=self<|message|>", "<|eom|>", &[]),
];

/// Answers of several messages, for templates that contain all of these texts.
pub(super) const CHANNELS: &[(&[&str], ChannelStyle)] = &[
    (
        &["<|channel|>commentary", "<|message|>", "<|start|>assistant"],
        ChannelStyle {
            start: "<|start|>assistant",
            headers: &["<|channel|>", "to=", "<|message|>"],
            message: "<|message|>",
            reasoning: "<|channel|>analysis",
            calls: "to=functions.",
            ends: &["<|end|>", "<|call|>", "<|return|>"],
            answer: "<|channel|>final<|message|>",
            call: "<|channel|>commentary",
            recipients: false,
        },
    ),
    (
        &["assistant to=self<|message|>", "<|start|>assistant"],
        ChannelStyle {
            start: "<|start|>assistant",
            headers: &["to=", "<|message|>"],
            message: "<|message|>",
            reasoning: "to=self",
            calls: "",
            ends: &["<|eom|>", "<|eot|>"],
            answer: " to=user<|message|>",
            call: "",
            recipients: false,
        },
    ),
    // functionary 3.2: the prompt ends with the start of the first header
    (
        &[">>>all\\n", ">>>${recipient}"],
        ChannelStyle {
            start: ">>>",
            headers: &[],
            message: "\n",
            reasoning: "",
            calls: "",
            ends: &[],
            answer: "all\n",
            call: "",
            recipients: true,
        },
    ),
];
