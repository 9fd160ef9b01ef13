//! The known styles of reasoning and tool calls, and the markers that identify them in a chat template.

use super::{CallForm, CallStyle, ReasoningStyle};

const JSON: CallForm = CallForm::Object { name_key: "name", arguments_key: "arguments" };

/// A sequence of JSON objects: the default of the rows below.
pub(super) const OBJECTS: CallStyle = CallStyle {
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

/// A style of calls, for templates that contain all of `has` and none of `lacks`.
pub(super) struct CallRow {
    pub(super) has: &'static [&'static str],
    pub(super) lacks: &'static [&'static str],
    pub(super) style: CallStyle,
}

/// The first row that matches is used.
pub(super) const CALLS: [CallRow; 16] = [
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
    // Llama 3: an optional tag, then only the call
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

/// Styles of reasoning, for templates that contain the `end` marker; the first that matches is used.
pub(super) const REASONING: [ReasoningStyle; 9] = [
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
