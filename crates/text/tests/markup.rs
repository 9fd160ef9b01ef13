//! The detected markup of known chat templates, and its control tokens in real vocabularies.
//!
//! Neither is part of the repository: set `TERN_TEST_DATA` to a folder that has them in `templates` and `vocabs`.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::sync::Arc;

use std::path::PathBuf;

use serde_json::{Value, json};
use tern_formats::{Checkpoint, Metadata, Value as MetadataValue};
use tern_text::{AnswerParser, CallStyle, ChatInput, ChatTemplate, Decoder, Markup, Part, Tokenizer};

fn folder(name: &str) -> Option<PathBuf> {
    let Some(data) = std::env::var_os("TERN_TEST_DATA") else {
        println!("skipped: {name} (TERN_TEST_DATA is not set)");
        return None;
    };
    let folder = PathBuf::from(data).join(name);
    if !folder.is_dir() {
        println!("skipped: {name} (not in TERN_TEST_DATA)");
        return None;
    }
    Some(folder)
}

/// A call of `f` without arguments in each style.
const NONE: &str = "";
const GENERIC: &str = "[{\"name\": \"f\", \"arguments\": {}}]";
const HERMES: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
const LLAMA: &str = "{\"name\": \"f\", \"parameters\": {}}";
const MISTRAL_LIST: &str = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]";
const MISTRAL: &str = "[TOOL_CALLS]f[ARGS]{}";
const ACTION: &str = "<|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": {}}]<|END_ACTION|>";
const DEEPSEEK: &str =
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
const DEEPSEEK_R1: &str = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
const FUNCTION_CALL: &str = "<|function_call|>{\"name\": \"f\", \"arguments\": {}}";
const FUNCTION_TAG: &str = "<function=f>{}</function>";
const FUNCTOOLS: &str = "functools[{\"name\": \"f\", \"arguments\": {}}]";
const GRANITE: &str = "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]";
const HARMONY: &str = "to=functions.f<|message|>{}<|call|>";
const SECTION: &str = "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
const TOOLCALL: &str = "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}]</TOOLCALL>";
const TOOL_CALLS_LINES: &str = "<tool_calls>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_calls>";
const TOOL_CALLS_LIST: &str = "<tool_calls>[{\"name\": \"f\", \"arguments\": {}}]</tool_calls>";

/// Template, start of its reasoning, style of its calls.
const TEMPLATES: [(&str, &str, &str); 70] = [
    ("Apertus-8B-Instruct", "", NONE),
    ("Apriel-1.6-15b-Thinker-fixed", "", TOOL_CALLS_LIST),
    ("Bielik-11B-v3.0-Instruct", "<think>", HERMES),
    ("ByteDance-Seed-OSS", "<seed:think>", NONE),
    ("Cohere2MoE", "<|START_THINKING|>", ACTION),
    ("CohereForAI-c4ai-command-r-plus-tool_use", "", NONE),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "<|START_THINKING|>", ACTION),
    ("GLM-4.6", "<think>", NONE),
    ("GLM-4.7-Flash", "<think>", NONE),
    ("GigaChat3-10B-A1.8B", "", NONE),
    ("GigaChat3.1-10B-A1.8B", "", FUNCTION_CALL),
    ("HuggingFaceTB-SmolLM3-3B", "<think>", NONE),
    ("Kimi-K2-Instruct", "", SECTION),
    ("Kimi-K2-Thinking", "<think>", SECTION),
    ("Kimi-K3", "", NONE),
    ("LFM2-8B-A1B", "", GENERIC),
    ("LFM2.5-8B-A1B", "<think>", NONE),
    ("LFM2.5-Instruct", "<think>", GENERIC),
    ("MiMo-VL", "", HERMES),
    ("MiniMax-M1", "", TOOL_CALLS_LINES),
    ("MiniMax-M2", "<think>", NONE),
    ("MiniMax-M3", "<mm:think>", NONE),
    ("Mistral-Small-3.2-24B-Instruct-2506", "", MISTRAL),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "<think>", NONE),
    ("NVIDIA-Nemotron-Nano-v2", "<think>", TOOLCALL),
    ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "", HERMES),
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "", HERMES),
    ("Qwen-QwQ-32B", "<think>", HERMES),
    ("Qwen-Qwen2.5-7B-Instruct", "", HERMES),
    ("Qwen-Qwen3-0.6B", "<think>", HERMES),
    ("Qwen3-Coder", "", NONE),
    ("Qwen3.5-4B", "<think>", NONE),
    ("Reka-Edge", "<think>", HERMES),
    ("Spark2.5", "<think>", NONE),
    ("StepFun3.5-Flash", "<think>", NONE),
    ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "<think>", DEEPSEEK_R1),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "<think>", DEEPSEEK_R1),
    ("deepseek-ai-DeepSeek-V3.1", "<think>", DEEPSEEK),
    ("deepseek-ai-DeepSeek-V3.2", "<think>", NONE),
    ("deepseek-ai-DeepSeek-V4-Flash-0731", "<think>", NONE),
    ("deepseek-ai-DeepSeek-V4", "<think>", NONE),
    ("fireworks-ai-llama-3-firefunction-v2", "", FUNCTOOLS),
    ("google-gemma-2-2b-it", "", NONE),
    ("google-gemma-4-31B-it-interleaved", "<|channel>thought", NONE),
    ("google-gemma-4-31B-it", "<|channel>thought", NONE),
    ("ibm-granite-granite-3.3-2B-Instruct", "<think>", GRANITE),
    ("ibm-granite-granite-4.0", "", HERMES),
    ("ibm-granite-granite-4.1", "", HERMES),
    ("inclusionai-ling-3.0-flash", "<think>", NONE),
    ("llama-cpp-deepseek-r1", "<think>", DEEPSEEK_R1),
    ("llama-cpp-rwkv-world", "<think>", NONE),
    ("meetkai-functionary-medium-v3.1", "", FUNCTION_TAG),
    ("meetkai-functionary-medium-v3.2", "", NONE),
    ("meta-llama-Llama-3.1-8B-Instruct", "", LLAMA),
    ("meta-llama-Llama-3.2-3B-Instruct", "", LLAMA),
    ("meta-llama-Llama-3.3-70B-Instruct", "", LLAMA),
    ("microsoft-Phi-3.5-mini-instruct", "", NONE),
    ("mistralai-Ministral-3-14B-Reasoning-2512", "[THINK]", MISTRAL),
    ("mistralai-Mistral-Nemo-Instruct-2407", "", MISTRAL_LIST),
    ("moonshotai-Kimi-K2", "", SECTION),
    ("muse-glimmer", "", NONE),
    ("openai-gpt-oss-120b", "<|channel|>analysis<|message|>", HARMONY),
    ("openbmb-MiniCPM5-1B", "<think>", NONE),
    ("poolside-Laguna-S-2.1", "<think>", NONE),
    ("poolside-Laguna-XS-2.1", "<think>", NONE),
    ("poolside-Laguna-XS.2", "<think>", NONE),
    ("tencent-Hy3", "", NONE),
    ("unsloth-Apriel-1.5", "<thinking>", TOOL_CALLS_LIST),
    ("unsloth-mistral-Devstral-Small-2507", "", MISTRAL),
    ("upstage-Solar-Open-100B", "", NONE),
];

fn call_of_f(style: CallStyle) -> String {
    let texts = style.texts();
    [
        &texts.open,
        &texts.before_name,
        "f",
        &texts.before_arguments,
        "{}",
        &texts.after_arguments,
        &texts.close,
    ]
    .concat()
}

#[test]
fn templates_get_the_markup_of_their_markers() {
    let Some(folder) = folder("templates") else { return };
    let mut wrong = Vec::new();
    for (name, reasoning, call) in TEMPLATES {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let markup = ChatTemplate::new(&source, "", "").unwrap().markup();
        let found = (
            markup.reasoning.map_or("", |style| style.begin),
            markup.calls.map(call_of_f).unwrap_or_default(),
        );
        if found != (reasoning, call.to_string()) {
            wrong.push(format!("{name}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A conversation with this answer, from the position where the model would continue.
fn answer_in(template: &ChatTemplate, answer: &Value) -> Option<String> {
    let tools = json!([{"type": "function", "function": {"name": "weather", "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Where."}}}}}]);
    let user = json!({"role": "user", "content": "Weather in Bern?"});
    let kwargs = json!({"functions": "", "datetime": ""}).as_object().cloned().unwrap();
    let render = |messages: Value, add_generation_prompt: bool| {
        let tools = Some(tools.clone());
        let kwargs = kwargs.clone();
        let input = ChatInput { messages, tools, add_generation_prompt, kwargs, ..ChatInput::default() };
        template.render(&input).ok().map(|chat| chat.text)
    };
    let (prompt, whole) = (render(json!([user]), true)?, render(json!([user, answer]), false)?);
    // a prompt may start reasoning that the full rendering omits
    let same = prompt.chars().zip(whole.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    let from = whole[..same].rfind(['\n', '>', ']']).map_or(0, |at| at + 1);
    Some(whole[from..].to_string())
}

/// Whether an answer is parsed as the call, without remaining markup.
fn reads(markup: &Markup, answer: &str, arguments: &Value) -> bool {
    let mut parser = AnswerParser::new(markup, "", true);
    let mut parts = parser.push(answer);
    parts.extend(parser.finish());
    let (mut names, mut given, mut content) = (Vec::new(), String::new(), String::new());
    for part in parts {
        match part {
            Part::CallBegin { name, .. } => names.push(name),
            Part::CallArguments { text, .. } => given += &text,
            Part::Content(text) => content += &text,
            Part::Reasoning(_) => {}
        }
    }
    let calls = Markup { reasoning: None, ..*markup };
    let leaks = calls.texts(true).into_iter().any(|text| text.len() > 1 && content.contains(text));
    names == ["weather"] && serde_json::from_str(&given).ok().as_ref() == Some(arguments) && !leaks
}

#[test]
fn calls_written_by_templates_are_parsed() {
    let Some(folder) = folder("templates") else { return };
    let arguments = json!({"city": "Bern", "days": [1, 2.5], "note": "\"</tool_call>\" {"});
    let as_text = Value::from(arguments.to_string());
    let mut unread = Vec::new();
    for (name, _, _) in TEMPLATES.iter().filter(|(_, _, call)| ![NONE, GENERIC].contains(call)) {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let template = ChatTemplate::new(&source, "", "").unwrap();
        // templates expect different inputs
        let read = [(json!(""), &arguments), (Value::Null, &arguments), (Value::Null, &as_text)]
            .into_iter()
            .any(|(content, arguments_given)| {
                let function = json!({"name": "weather", "arguments": arguments_given});
                let call = json!({"id": "abcdefghi", "type": "function", "function": function});
                let answer = json!({"role": "assistant", "content": content, "tool_calls": [call]});
                answer_in(&template, &answer).is_some_and(|text| reads(&template.markup(), &text, &arguments))
            });
        if !read {
            unread.push(*name);
        }
    }
    // the first three reject calls, as in Python; the last writes none
    let refuse = ["Kimi-K2-Instruct", "Kimi-K2-Thinking", "llama-cpp-deepseek-r1"];
    unread.retain(|name| !refuse.contains(name));
    assert_eq!(unread, ["ibm-granite-granite-3.3-2B-Instruct"]);
}

/// The text of tokens as a server sees it.
fn text(tokenizer: &Arc<Tokenizer>, shown: &[&str], ids: &[u32]) -> String {
    let mut decoder = Decoder::new(Arc::clone(tokenizer), vec![]).unwrap().showing(shown.iter().copied());
    let text: String = ids.iter().map(|&id| decoder.push(id).text).collect();
    text + &decoder.finish()
}

#[test]
fn control_tokens_of_the_markup_are_shown() {
    let tokens = ["[TOOL_CALLS]", "[ARGS]", "[INST]", "f", "{", "}", "[THINK]", "[/THINK]", "a"];
    let mut metadata = Metadata::default();
    metadata.insert("tokenizer.ggml.model", MetadataValue::String("gpt2".into()));
    metadata.insert("tokenizer.ggml.pre", MetadataValue::String("gpt-2".into()));
    metadata.insert("tokenizer.ggml.tokens", MetadataValue::Strings(tokens.map(String::from).into()));
    metadata.insert("tokenizer.ggml.token_type", MetadataValue::Ints(vec![3, 3, 3, 1, 1, 1, 3, 3, 1]));
    metadata.insert("tokenizer.ggml.merges", MetadataValue::Strings(Vec::new()));
    let tokenizer = Arc::new(Tokenizer::from_metadata(&metadata).unwrap());
    let markup = Markup::of("[TOOL_CALLS] [ARGS] [/THINK]");
    let answer = [2, 6, 8, 7, 0, 3, 1, 4, 5];
    assert_eq!(text(&tokenizer, &[], &answer), "af{}");
    assert_eq!(text(&tokenizer, &markup.texts(false), &answer), "[THINK]a[/THINK]f{}");
    let shown = text(&tokenizer, &markup.texts(true), &answer);
    assert_eq!(shown, "[THINK]a[/THINK][TOOL_CALLS]f[ARGS]{}");
    let parts = [
        Part::Reasoning("a".into()),
        Part::CallBegin { index: 0, name: "f".into() },
        Part::CallArguments { index: 0, text: "{}".into() },
    ];
    assert_eq!(AnswerParser::new(&markup, "", true).push(&shown), parts);
}

#[test]
fn reasoning_is_parsed_with_a_real_vocabulary() {
    let Some(folder) = folder("vocabs") else { return };
    let checkpoint = Checkpoint::open(&folder.join("ggml-vocab-gemma-4.gguf")).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_metadata(&checkpoint.metadata).unwrap());
    let markup = Markup::of(tokenizer.chat_template().unwrap());
    let ids = tokenizer.encode("<|channel>thought\nHm.\n<channel|>Grüezi 🙂<turn|>", false, true);
    // token by token, as it is generated
    let mut decoder = Decoder::new(Arc::clone(&tokenizer), vec![]).unwrap().showing(markup.texts(true));
    let mut parser = AnswerParser::new(&markup, "<|turn>model\n", true);
    let mut parts: Vec<Part> = ids.iter().flat_map(|&id| parser.push(&decoder.push(id).text)).collect();
    parts.extend(parser.push(&decoder.finish()));
    parts.extend(parser.finish());
    let (mut reasoning, mut content) = (String::new(), String::new());
    for part in parts {
        match part {
            Part::Reasoning(text) => reasoning += &text,
            Part::Content(text) => content += &text,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((reasoning.as_str(), content.as_str()), ("Hm.", "Grüezi 🙂"));
}

#[test]
fn control_tokens_of_real_vocabularies_can_be_shown() {
    let Some(folder) = folder("vocabs") else { return };
    for (name, marker) in [("llama-bpe", "<|eot_id|>"), ("qwen2", "<|im_end|>"), ("gemma-4", "<turn|>")] {
        let checkpoint = Checkpoint::open(&folder.join(format!("ggml-vocab-{name}.gguf"))).unwrap();
        let tokenizer = Arc::new(Tokenizer::from_metadata(&checkpoint.metadata).unwrap());
        let ids = tokenizer.encode(&format!("Hi{marker}"), false, true);
        assert!(tokenizer.is_control(ids[ids.len() - 1]), "{name}");
        assert_eq!(text(&tokenizer, &[], &ids), "Hi", "{name}");
        // part of a longer text is enough
        assert_eq!(text(&tokenizer, &[&format!("{marker}thought")], &ids), format!("Hi{marker}"), "{name}");
    }
}
