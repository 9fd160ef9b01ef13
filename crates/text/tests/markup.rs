//! The detected markup of known chat templates, and its control tokens in real vocabularies.
//!
//! Neither is part of the repository: set `TERN_TEST_DATA` to a folder that has them in
//! `templates` and `vocabs`.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::sync::Arc;

use std::path::PathBuf;

use serde_json::{Value, json};
use tern_formats::{Checkpoint, Metadata, Value as MetadataValue};
use tern_text::{
    AnswerParser, ArgumentForm, CallStyle, ChatInput, ChatTemplate, Decoder, Markup, Part, Tokenizer,
    ToolSchemas,
};

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
const FUNCTIONARY: &str = "f\n{}";
const FUNCTOOLS: &str = "functools[{\"name\": \"f\", \"arguments\": {}}]";
const GRANITE: &str = "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]";
const HARMONY: &str = " to=functions.f <|constrain|>json<|message|>{}<|call|>";
const SECTION: &str = "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
const TOOLCALL: &str = "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}]</TOOLCALL>";
const TOOL_CALLS_LINES: &str = "<tool_calls>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_calls>";
const TOOL_CALLS_LIST: &str = "<tool_calls>[{\"name\": \"f\", \"arguments\": {}}]</tool_calls>";

const APERTUS: &str = "<|tools_prefix|>[{\"f\": {}}]<|tools_suffix|>";
const ATEM: &str = "<atem:function_calls>\n<atem:invoke name=\"f\">\n</atem:invoke>\n</atem:function_calls>";
const CODER: &str = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
const COMMAND_R: &str = "Action:\n```json\n[{\"tool_name\": \"f\", \"parameters\": {}}]\n```";
const DSML: &str =
    "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
const DSML_FUNCTIONS: &str =
    "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
const GEMMA: &str = "<|tool_call>call:f{}<tool_call|>";
const GIGACHAT: &str = "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {}}";
const GLM: &str = "<tool_call>f\n</tool_call>";
const GLM_FLASH: &str = "<tool_call>f</tool_call>";
const HY: &str = "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n</tool_call:opensource>\n\
                  </tool_calls:opensource>";
const LFM: &str = "<|tool_call_start|>[f()]<|tool_call_end|>";
const MINICPM: &str = "<function name=\"f\"></function>";
const MINIMAX: &str = "<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n</minimax:tool_call>";
const NESTED: &str = "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>";
const SEED: &str = "<seed:tool_call>\n<function=f>\n</function>\n</seed:tool_call>";
const SOLAR: &str =
    "<|tool_calls|><|tool_call:begin|>call<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|>";
const XTML: &str =
    "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>";

/// Template, start of its reasoning, style of its calls.
const TEMPLATES: [(&str, &str, &str); 70] = [
    ("Apertus-8B-Instruct", "<|inner_prefix|>", APERTUS),
    ("Apriel-1.6-15b-Thinker-fixed", "Here are my reasoning steps:", TOOL_CALLS_LIST),
    ("Bielik-11B-v3.0-Instruct", "<think>", HERMES),
    ("ByteDance-Seed-OSS", "<seed:think>", SEED),
    ("Cohere2MoE", "<|START_THINKING|>", ACTION),
    ("CohereForAI-c4ai-command-r-plus-tool_use", "", COMMAND_R),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "<|START_THINKING|>", ACTION),
    ("GLM-4.6", "<think>", GLM),
    ("GLM-4.7-Flash", "<think>", GLM_FLASH),
    ("GigaChat3-10B-A1.8B", "", GIGACHAT),
    ("GigaChat3.1-10B-A1.8B", "", FUNCTION_CALL),
    ("HuggingFaceTB-SmolLM3-3B", "<think>", NONE),
    ("Kimi-K2-Instruct", "", SECTION),
    ("Kimi-K2-Thinking", "<think>", SECTION),
    ("Kimi-K3", "<|open|>think<|sep|>", XTML),
    ("LFM2-8B-A1B", "", LFM),
    ("LFM2.5-8B-A1B", "<think>", LFM),
    ("LFM2.5-Instruct", "<think>", GENERIC),
    ("MiMo-VL", "", HERMES),
    ("MiniMax-M1", "", TOOL_CALLS_LINES),
    ("MiniMax-M2", "<think>", MINIMAX),
    ("MiniMax-M3", "<mm:think>", NESTED),
    ("Mistral-Small-3.2-24B-Instruct-2506", "", MISTRAL),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "<think>", CODER),
    ("NVIDIA-Nemotron-Nano-v2", "<think>", TOOLCALL),
    ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "", HERMES),
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "", HERMES),
    ("Qwen-QwQ-32B", "<think>", HERMES),
    ("Qwen-Qwen2.5-7B-Instruct", "", HERMES),
    ("Qwen-Qwen3-0.6B", "<think>", HERMES),
    ("Qwen3-Coder", "", CODER),
    ("Qwen3.5-4B", "<think>", CODER),
    ("Reka-Edge", "<think>", HERMES),
    ("Spark2.5", "<think>", GLM_FLASH),
    ("StepFun3.5-Flash", "<think>", CODER),
    ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "<think>", DEEPSEEK_R1),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "<think>", DEEPSEEK_R1),
    ("deepseek-ai-DeepSeek-V3.1", "<think>", DEEPSEEK),
    ("deepseek-ai-DeepSeek-V3.2", "<think>", DSML_FUNCTIONS),
    ("deepseek-ai-DeepSeek-V4-Flash-0731", "<think>", DSML),
    ("deepseek-ai-DeepSeek-V4", "<think>", DSML),
    ("fireworks-ai-llama-3-firefunction-v2", "", FUNCTOOLS),
    ("google-gemma-2-2b-it", "", NONE),
    ("google-gemma-4-31B-it-interleaved", "<|channel>thought", GEMMA),
    ("google-gemma-4-31B-it", "<|channel>thought", GEMMA),
    ("ibm-granite-granite-3.3-2B-Instruct", "<think>", GRANITE),
    ("ibm-granite-granite-4.0", "", HERMES),
    ("ibm-granite-granite-4.1", "", HERMES),
    ("inclusionai-ling-3.0-flash", "<think>", GLM),
    ("llama-cpp-deepseek-r1", "<think>", DEEPSEEK_R1),
    ("llama-cpp-rwkv-world", "<think>", NONE),
    ("meetkai-functionary-medium-v3.1", "", FUNCTION_TAG),
    ("meetkai-functionary-medium-v3.2", "", FUNCTIONARY),
    ("meta-llama-Llama-3.1-8B-Instruct", "", LLAMA),
    ("meta-llama-Llama-3.2-3B-Instruct", "", LLAMA),
    ("meta-llama-Llama-3.3-70B-Instruct", "", LLAMA),
    ("microsoft-Phi-3.5-mini-instruct", "", NONE),
    ("mistralai-Ministral-3-14B-Reasoning-2512", "[THINK]", MISTRAL),
    ("mistralai-Mistral-Nemo-Instruct-2407", "", MISTRAL_LIST),
    ("moonshotai-Kimi-K2", "", SECTION),
    ("muse-glimmer", " to=self<|message|>", ATEM),
    ("openai-gpt-oss-120b", "<|channel|>analysis<|message|>", HARMONY),
    ("openbmb-MiniCPM5-1B", "<think>", MINICPM),
    ("poolside-Laguna-S-2.1", "<think>", GLM_FLASH),
    ("poolside-Laguna-XS-2.1", "<think>", GLM),
    ("poolside-Laguna-XS.2", "<think>", GLM),
    ("tencent-Hy3", "<think:opensource>", HY),
    ("unsloth-Apriel-1.5", "<thinking>", TOOL_CALLS_LIST),
    ("unsloth-mistral-Devstral-Small-2507", "", MISTRAL),
    ("upstage-Solar-Open-100B", "<|think|>", SOLAR),
];

fn call_of_f(style: CallStyle) -> String {
    let texts = style.texts();
    let arguments = if texts.arguments == ArgumentForm::Json { "{}" } else { "" };
    [
        &texts.open,
        &texts.before_name,
        "f",
        &texts.before_arguments,
        arguments,
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

/// The tools of the conversations below; some templates take only strings.
fn tools(strings: bool) -> Value {
    let mut properties = json!({
        "city": {"type": "string", "description": "Where."}, "days": {"type": "integer", "description": "How many."},
        "list": {"type": "array", "description": "Numbers."}, "ok": {"type": "boolean", "description": "Whether."},
        "deep": {"type": "object", "description": "More."}, "code": {"type": "string", "description": "Digits."},
        "note": {"type": "string", "description": "A text."},
    });
    if strings {
        properties.as_object_mut().unwrap().retain(|_, schema| schema["type"] == "string");
    }
    let parameters = json!({"type": "object", "properties": properties, "required": ["city"]});
    let tool = |name| json!({"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}});
    json!([tool("weather"), tool("now")])
}

/// End tokens that templates write only after calls, or before the next turn.
const ENDS: [&str; 7] = [
    "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|eom_id|>",
    "<|calls|>",
    "<|tool_response>",
    "<|end_of_msg|>",
    "<｜hy_eos:opensource｜>",
];

/// The answer in a conversation, as a template writes it, and the prompt before it.
fn answer_in(template: &ChatTemplate, answer: &Value, strings: bool) -> Option<(String, String)> {
    let user = json!({"role": "user", "content": "Weather in Bern?"});
    let kwargs = json!({"functions": "", "datetime": ""}).as_object().cloned().unwrap();
    let render = |messages: Value, add_generation_prompt: bool| {
        let (tools, kwargs) = (Some(tools(strings)), kwargs.clone());
        let input = ChatInput { messages, tools, add_generation_prompt, kwargs, ..ChatInput::default() };
        template.render(&input).ok().map(|chat| chat.text)
    };
    let (prompt, whole) = (render(json!([user]), true)?, render(json!([user, answer]), false)?);
    // a prompt may start reasoning that the full rendering omits
    let same = prompt.chars().zip(whole.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    let from = if same == prompt.len() {
        same
    } else {
        whole[..same].rfind(['\n', '>', ']']).map_or(0, |at| at + 1)
    };
    // what ends every turn is the end token
    let plain = json!({"role": "assistant", "content": "Plain."});
    let end = render(json!([user, plain]), false)
        .and_then(|plain| plain.rsplit_once("Plain.").map(|end| end.1.to_string()));
    let text = whole[from..].trim_start_matches("<|CHATBOT_TOKEN|>");
    let text = end.and_then(|end| text.strip_suffix(&end)).unwrap_or(text);
    let text = ENDS.iter().fold(text, |text, end| text.rsplit_once(end).map_or(text, |(text, _)| text));
    Some((whole[..from].to_string(), text.to_string()))
}

/// What an answer is parsed into: names and arguments of calls, content and reasoning.
type Parsed = (Vec<(String, Option<Value>)>, String, String);

fn parsed(markup: &Markup, prompt: &str, answer: &str) -> Parsed {
    let tools = tools(false);
    let functions = tools.as_array().unwrap().iter().map(|tool| &tool["function"]);
    let schemas =
        ToolSchemas::new(functions.map(|tool| (tool["name"].as_str().unwrap(), &tool["parameters"])));
    let mut parser = AnswerParser::new(markup, prompt, Some(Arc::new(schemas)));
    let mut parts = parser.push(answer);
    parts.extend(parser.finish());
    let (mut calls, mut content, mut reasoning) =
        (Vec::<(String, String)>::new(), String::new(), String::new());
    for part in parts {
        match part {
            Part::CallBegin { name, .. } => calls.push((name, String::new())),
            Part::CallArguments { index, text } => calls[index].1 += &text,
            Part::Content(text) => content += &text,
            Part::Reasoning(text) => reasoning += &text,
        }
    }
    let calls = calls.into_iter().map(|(name, text)| (name, serde_json::from_str(&text).ok())).collect();
    (calls, content, reasoning)
}

/// Templates that write calls which cannot be parsed back, and why.
const UNREADABLE: [(&str, &str); 6] = [
    ("Kimi-K2-Instruct", "rejects calls, as in Python"),
    ("Kimi-K2-Thinking", "rejects calls, as in Python"),
    ("llama-cpp-deepseek-r1", "rejects calls, as in Python"),
    ("ibm-granite-granite-3.3-2B-Instruct", "writes no calls"),
    ("LFM2-8B-A1B", "writes no calls"),
    ("NVIDIA-Nemotron-Nano-v2", "opens reasoning before calls and does not close it"),
];

/// A conversation with calls is rendered, and the answer in it is parsed: the result has the same calls.
#[test]
fn calls_written_by_templates_are_parsed() {
    let Some(folder) = folder("templates") else { return };
    let arguments = json!({
        "city": "Zürich", "days": 3, "list": [1, 2.5], "ok": true, "deep": {"a": [1, "x"]}, "code": "12",
        "note": "\"</tool_call>\" {\n<b>",
    });
    let simple = json!({"city": "Bern", "code": "12", "note": "\"</tool_call>\" {"});
    let mut wrong = Vec::new();
    for (name, _, _) in TEMPLATES.iter().filter(|(_, _, call)| ![NONE, GENERIC].contains(call)) {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let template = ChatTemplate::new(&source, "", "").unwrap();
        let mut results = Vec::new();
        // templates expect different inputs: two calls or one, arguments as an object or as
        // text, with reasoning or not
        let read = [2, 1].iter().any(|&count| {
            let contents = [json!("I look."), json!(""), Value::Null];
            let variants = contents.iter().flat_map(|content| [true, false].map(|thinks| (content, thinks)));
            let mut variants =
                variants.flat_map(|(content, thinks)| [false, true].map(|text| (content, thinks, text)));
            let arguments = if count == 2 { &arguments } else { &simple };
            variants.any(|(content, thinks, as_text)| {
                let want = [("weather".to_string(), arguments.clone()), ("now".to_string(), json!({}))];
                let given = |value: &Value| if as_text { value.to_string().into() } else { value.clone() };
                let call = |(at, (name, arguments)): (usize, &(String, Value))| {
                    json!({"id": format!("abcdefgh{at}"), "type": "function",
                        "function": {"name": name, "arguments": given(arguments)}})
                };
                let calls: Vec<Value> = want.iter().take(count).enumerate().map(call).collect();
                let mut answer = json!({"role": "assistant", "content": content, "tool_calls": calls});
                if thinks {
                    for key in ["reasoning_content", "reasoning", "thinking"] {
                        answer[key] = "Hm.".into();
                    }
                }
                let Some((prompt, text)) = answer_in(&template, &answer, count == 1) else { return false };
                let (calls, content, reasoning) = parsed(&template.markup(), &prompt, &text);
                let want: Vec<_> =
                    want.into_iter().take(count).map(|(name, value)| (name, Some(value))).collect();
                let said = ["", "I look."].contains(&content.as_str())
                    && ["", "Hm.", "I look."].contains(&reasoning.as_str());
                results.push(format!("{text}\n  {calls:?} {content:?} {reasoning:?}"));
                calls == want && said
            })
        });
        let unreadable = UNREADABLE.iter().any(|(unreadable, _)| unreadable == name);
        if read == unreadable {
            wrong.push(format!("{name}: {}", results.first().map_or("", String::as_str)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
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
    assert_eq!(AnswerParser::new(&markup, "", Some(Arc::default())).push(&shown), parts);
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
    let mut parser = AnswerParser::new(&markup, "<|turn>model\n", Some(Arc::default()));
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
