//! The known styles of tool calls, and the markers that identify them in a chat template.

use super::{CallForm, CallStyle, LiteralStyle, TagStyle, ValueKind};

const JSON: CallForm = CallForm::Object { name_key: "name", arguments_key: "arguments" };
const TOOL_NAME: CallForm = CallForm::Object { name_key: "tool_name", arguments_key: "parameters" };

/// `f(a=1, b='x')`
const PYTHON: CallForm = CallForm::Literal(LiteralStyle { open: "(", assign: "=", close: ")", quote: "" });

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
    CallStyle { begin, form: CallForm::Named { after_id: "", between }, end, separator: "", ..OBJECTS }
}

const fn list(open: &'static str, close: &'static str) -> CallStyle {
    CallStyle { open, close, list: true, ..OBJECTS }
}

/// Elements: `[after_name, before_key, after_value]`, and what is between key and value.
const fn tags(texts: [&'static str; 3], after_key: &'static [(&'static str, ValueKind)]) -> CallForm {
    let [after_name, before_key, after_value] = texts;
    CallForm::Tagged(TagStyle { after_name, before_key, after_key, after_value, after_cdata: "" })
}

const fn tagged(begin: &'static str, form: CallForm, end: &'static str) -> CallStyle {
    CallStyle { begin, form, end, separator: "\n", ..OBJECTS }
}

/// Qwen3-Coder: every value on separate lines.
const FUNCTION_LINES: CallForm =
    tags([">\n", "<parameter=", "\n</parameter>\n"], &[(">\n", ValueKind::Schema)]);
/// Seed-OSS: the same elements, with the value inside the line.
const FUNCTION_TAGS: CallForm = tags([">\n", "<parameter=", "</parameter>\n"], &[(">", ValueKind::Schema)]);
const ARG_LINES: CallForm =
    tags(["\n", "<arg_key>", "</arg_value>\n"], &[("</arg_key>\n<arg_value>", ValueKind::Schema)]);
const ARG_TAGS: CallForm =
    tags(["", "<arg_key>", "</arg_value>"], &[("</arg_key><arg_value>", ValueKind::Schema)]);
const HY_TAGS: CallForm = tags(
    ["<tool_sep:opensource>\n", "<arg_key:opensource>", "</arg_value:opensource>\n"],
    &[("</arg_key:opensource>\n<arg_value:opensource>", ValueKind::Schema)],
);
const INVOKE_TAGS: CallForm =
    tags(["\">\n", "<parameter name=\"", "</parameter>\n"], &[("\">", ValueKind::Schema)]);
const ATEM_TAGS: CallForm =
    tags(["\">\n", "<atem:parameter name=\"", "</atem:parameter>\n"], &[("\">", ValueKind::Schema)]);
const PARAM_TAGS: CallForm = CallForm::Tagged(TagStyle {
    after_name: "\">",
    before_key: "<param name=\"",
    after_key: &[("\"><![CDATA[", ValueKind::Cdata), ("\">", ValueKind::Schema)],
    after_value: "</param>",
    after_cdata: "]]></param>",
});
const DSML_TAGS: CallForm = tags(
    ["\">\n", "<｜DSML｜parameter name=\"", "</｜DSML｜parameter>\n"],
    &[("\" string=\"true\">", ValueKind::String), ("\" string=\"false\">", ValueKind::Json)],
);
const XTML_TAGS: CallForm = tags(
    ["\" index=\"1\"<|sep|>", "<|open|>argument key=\"", "<|close|>argument<|sep|>"],
    &[
        ("\" type=\"string\"<|sep|>", ValueKind::String),
        ("\" type=\"number\"<|sep|>", ValueKind::Json),
        ("\" type=\"boolean\"<|sep|>", ValueKind::Json),
        ("\" type=\"object\"<|sep|>", ValueKind::Json),
        ("\" type=\"array\"<|sep|>", ValueKind::Json),
        ("\" type=\"null\"<|sep|>", ValueKind::Json),
    ],
);

/// MiniMax M3: an element per argument, and elements inside it for the members of objects
/// and the items of arrays.
const NESTED_TAGS: CallForm =
    tags(["\">", "]<]minimax[>[<", "]<]minimax[>[</"], &[(">", ValueKind::Elements)]);

/// Calls in a section, each `<...invoke name="f">`.
const fn invoke([open, begin, end, close]: [&'static str; 4], form: CallForm) -> CallStyle {
    CallStyle { open, close, ..tagged(begin, form, end) }
}

/// A style of calls, for templates that contain all of `has` and none of `lacks`.
pub(super) struct CallRow {
    pub(super) has: &'static [&'static str],
    pub(super) lacks: &'static [&'static str],
    pub(super) style: CallStyle,
}

const fn row(has: &'static [&'static str], style: CallStyle) -> CallRow {
    CallRow { has, lacks: &[], style }
}

/// The first row that matches is used.
pub(super) const CALLS: &[CallRow] = &[
    row(&["[TOOL_CALLS]", "[ARGS]"], named("[TOOL_CALLS]", "[ARGS]", "")),
    row(&["[TOOL_CALLS]"], list("[TOOL_CALLS]", "")),
    // Tencent Hy3: the suffix of all tags is a variable of the template
    row(
        &["'<tool_calls{}>'", "':opensource'"],
        CallStyle {
            open: "<tool_calls:opensource>\n",
            close: "\n</tool_calls:opensource>",
            ..tagged("<tool_call:opensource>", HY_TAGS, "</tool_call:opensource>")
        },
    ),
    row(&["<tool_calls>[", "</tool_calls>"], list("<tool_calls>", "</tool_calls>")),
    row(
        &["<tool_calls>", "</tool_calls>", "{\"name\": "],
        CallStyle { separator: "\n", open: "<tool_calls>\n", close: "\n</tool_calls>", ..OBJECTS },
    ),
    // Hunyuan's dense models
    row(
        &["<tool_calls>", "<tool_call>", "<tool_sep>", "```json"],
        CallStyle {
            open: "<tool_calls>",
            close: "</tool_calls>",
            separator: "\n",
            ..named("<tool_call>function<tool_sep>", "\n```json\n", "\n```</tool_call>")
        },
    ),
    row(&["<seed:tool_call>", "<function=", "<parameter="], {
        tagged("<seed:tool_call>\n<function=", FUNCTION_TAGS, "</function>\n</seed:tool_call>")
    }),
    row(&["<tool_call>", "<function=", "<parameter="], {
        tagged("<tool_call>\n<function=", FUNCTION_LINES, "</function>\n</tool_call>")
    }),
    // GLM 4.5 and 4.6 write every element on its own line, later models all in one
    row(&["</arg_key>\n", "<tool_call>"], tagged("<tool_call>", ARG_LINES, "</tool_call>")),
    row(&["</arg_key>\\n", "<tool_call>"], tagged("<tool_call>", ARG_LINES, "</tool_call>")),
    row(
        &["<arg_key>", "<tool_call>"],
        CallStyle { separator: "", ..tagged("<tool_call>", ARG_TAGS, "</tool_call>") },
    ),
    row(&["<minimax:tool_call>", "<invoke name=", "<parameter name="], {
        let texts = ["<minimax:tool_call>\n", "<invoke name=\"", "</invoke>", "\n</minimax:tool_call>"];
        invoke(texts, INVOKE_TAGS)
    }),
    row(&["]<]minimax[>[", "<invoke name="], {
        let (open, close) = ("]<]minimax[>[<tool_call>\n", "\n]<]minimax[>[</tool_call>");
        let texts = [open, "]<]minimax[>[<invoke name=\"", "]<]minimax[>[</invoke>", close];
        invoke(texts, NESTED_TAGS)
    }),
    row(&["｜DSML｜", "function_calls>"], {
        let close = "\n</｜DSML｜function_calls>";
        let texts = ["<｜DSML｜function_calls>\n", "<｜DSML｜invoke name=\"", "</｜DSML｜invoke>", close];
        invoke(texts, DSML_TAGS)
    }),
    row(&["｜DSML｜", "tool_calls>"], {
        let close = "\n</｜DSML｜tool_calls>";
        let texts = ["<｜DSML｜tool_calls>\n", "<｜DSML｜invoke name=\"", "</｜DSML｜invoke>", close];
        invoke(texts, DSML_TAGS)
    }),
    row(&["<atem:function_calls>", "<atem:invoke name="], {
        let close = "\n</atem:function_calls>";
        let texts = ["<atem:function_calls>\n", "<atem:invoke name=\"", "</atem:invoke>", close];
        invoke(texts, ATEM_TAGS)
    }),
    row(&["<function name=", "<param name="], tagged("<function name=\"", PARAM_TAGS, "</function>")),
    row(&["'<|open|>'", "open_tag('call'"], {
        let close = "<|close|>tools<|sep|>";
        let texts = ["<|open|>tools<|sep|>", "<|open|>call tool=\"", "<|close|>call<|sep|>", close];
        CallStyle { separator: "", ..invoke(texts, XTML_TAGS) }
    }),
    row(
        &["<|tool_call>call:", "<tool_call|>", "<|\"|>"],
        CallStyle {
            begin: "<|tool_call>call:",
            form: CallForm::Literal(LiteralStyle { open: "{", assign: ":", close: "}", quote: "<|\"|>" }),
            end: "<tool_call|>",
            separator: "",
            ..OBJECTS
        },
    ),
    row(
        &["<|tool_call_start|>["],
        CallStyle { form: PYTHON, ..list("<|tool_call_start|>", "<|tool_call_end|>") },
    ),
    row(
        &["<|tool_list_start|>", "<|tool_response_start|>"],
        CallStyle { form: PYTHON, ..list("<|tool_call_start|>", "<|tool_call_end|>") },
    ),
    // OLMo 3: one call per line
    row(
        &["<function_calls>", "</function_calls>"],
        CallStyle {
            open: "<function_calls>\n",
            form: PYTHON,
            separator: "\n",
            close: "\n</function_calls>",
            ..OBJECTS
        },
    ),
    // Hermes and Qwen; other templates put XML between the same markers
    CallRow {
        has: &["<tool_call>", "</tool_call>", "\"name"],
        lacks: &["<function=", "<arg_key>", "<parameter", "<invoke"],
        style: CallStyle { begin: "<tool_call>\n", end: "\n</tool_call>", separator: "\n", ..OBJECTS },
    },
    row(&["<TOOLCALL>", "</TOOLCALL>"], list("<TOOLCALL>", "</TOOLCALL>")),
    row(&["<|tool_call|>", "JSON list"], list("<|tool_call|>", "")),
    row(&["<|tool_call|>", "<|/tool_call|>"], list("<|tool_call|>", "<|/tool_call|>")),
    row(&["functools["], list("functools", "")),
    row(
        &["<|function_call|>", "{\"name\": "],
        CallStyle { begin: "<|function_call|>", separator: "", ..OBJECTS },
    ),
    // GigaChat 3: a call is a message of the role `function call`
    row(
        &["'function call'", "<|role_sep|>", "<|message_sep|>"],
        CallStyle { open: "<|message_sep|>\n\n", begin: "function call<|role_sep|>\n", ..OBJECTS },
    ),
    row(
        &["<|START_ACTION|>", "<|END_ACTION|>", "\"tool_name\"", "\"parameters\""],
        CallStyle { form: TOOL_NAME, ..list("<|START_ACTION|>", "<|END_ACTION|>") },
    ),
    row(
        &["Action:\\n```json", "\"tool_name\"", "\"parameters\""],
        CallStyle { form: TOOL_NAME, ..list("Action:\n```json\n", "\n```") },
    ),
    row(
        &["<|tools_prefix|>", "<|tools_suffix|>"],
        CallStyle { form: CallForm::Keyed, ..list("<|tools_prefix|>", "<|tools_suffix|>") },
    ),
    row(
        &["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"],
        CallStyle {
            open: "<|tool_calls_section_begin|>",
            close: "<|tool_calls_section_end|>",
            ..named("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
        },
    ),
    row(
        &["<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>"],
        CallStyle {
            open: "<|tool_calls|>",
            form: CallForm::Named { after_id: "<|tool_call:name|>", between: "<|tool_call:args|>" },
            ..named("<|tool_call:begin|>", "", "<|tool_call:end|>")
        },
    ),
    row(
        &["<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "```json"],
        CallStyle {
            open: "<｜tool▁calls▁begin｜>",
            close: "<｜tool▁calls▁end｜>",
            separator: "\n",
            ..named("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>")
        },
    ),
    row(
        &["<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"],
        CallStyle {
            open: "<｜tool▁calls▁begin｜>",
            close: "<｜tool▁calls▁end｜>",
            ..named("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
        },
    ),
    // harmony: the header of a message names the function, see `ChannelStyle`
    row(&["<|channel|>commentary", "assistant to=", "functions.", "<|message|>"], {
        named(" to=functions.", " <|constrain|>json<|message|>", "<|call|>")
    }),
    CallRow {
        has: &["<function=", "</function>"],
        lacks: &["<parameter", "tool_call>"],
        style: named("<function=", ">", "</function>"),
    },
    // functionary 3.2: the header of a message is the name of the function, see `ChannelStyle`
    row(
        &[">>>all\\n", ">>>${recipient}"],
        CallStyle { form: CallForm::Named { after_id: "", between: "\n" }, separator: ">>>", ..OBJECTS },
    ),
    // Llama 3: an optional tag, then only the call
    row(
        &["{\"name\": function name, \"parameters\": "],
        CallStyle {
            begin: "<|python_tag|>",
            form: CallForm::Object { name_key: "name", arguments_key: "parameters" },
            separator: "; ",
            bare: true,
            ..OBJECTS
        },
    ),
    // Llama 4: only the calls
    row(&["[func_name1(param"], CallStyle { form: PYTHON, list: true, bare: true, ..OBJECTS }),
];
