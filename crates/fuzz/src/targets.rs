//! The fuzz targets: everything that parses untrusted input.

mod answer;
mod folder;
mod http;
mod image;

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tern_engine::Constraint;
use tern_formats::Checkpoint;
use tern_grammar::{Grammar, GrammarCompiler};
use tern_models::{Model, Shape, ShapeExperts, Synth, plain_tokenizer};
use tern_text::{ChatInput, ChatTemplate, Tokenizer};

pub(crate) use folder::remove_scratch;

use crate::record::LONGEST;

/// Runs one input. A bug shows as a panic, an abort or a timeout.
pub(crate) type Run = Box<dyn FnMut(&[u8])>;

pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Prepares what all inputs share.
    pub(crate) start: fn() -> Run,
    /// Inputs in addition to the folder `corpus`, generated because they are large or binary.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// Words to insert into inputs.
    pub(crate) words: &'static [&'static str],
}

pub(crate) static TARGETS: &[Target] = &[
    Target { name: "gguf", start: gguf, seeds: files, words: FILE_WORDS },
    Target { name: "folder", start: folder::start, seeds: folder::seeds, words: folder::WORDS },
    Target { name: "tokenizer", start: tokenizer, seeds: files, words: FILE_WORDS },
    Target { name: "template", start: template, seeds: Vec::new, words: TEMPLATE_WORDS },
    Target { name: "schema", start: schema, seeds: Vec::new, words: SCHEMA_WORDS },
    Target { name: "answer", start: answer::start, seeds: Vec::new, words: answer::WORDS },
    Target { name: "image", start: image::start, seeds: image::seeds, words: image::WORDS },
    Target { name: "http", start: http::start, seeds: Vec::new, words: HTTP_WORDS },
];

const FILE_WORDS: &[&str] = &[
    "GGUF",
    "general.architecture",
    "general.alignment",
    "tokenizer.ggml.model",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.token_type",
    "tokenizer.chat_template",
    "token_embd.weight",
    "blk.0.attn_q.weight",
    "gpt2",
    "llama",
    "bert",
    "qwen3",
    "<|endoftext|>",
];

const TEMPLATE_WORDS: &[&str] = &[
    "{% for m in messages %}",
    "{% endfor %}",
    "{% if true %}",
    "{% endif %}",
    "{% set x = [1] %}",
    "{% macro f(x) %}",
    "{% endmacro %}",
    "{{ x }}",
    "{{ m.content }}",
    "range(99999)",
    "|list",
    "|tojson",
    "|join",
    "|max",
    "|sort",
    "|unique",
    "*10**8",
    "99999 in l",
    "namespace(a=1)",
    "loop.cycle()",
    "is divisibleby 0",
    "loop(x)",
    "recursive",
    "[::-1]",
    ".split('')",
    "raise_exception('x')",
    "strftime_now('%d')",
];

const SCHEMA_WORDS: &[&str] = &[
    "json\n",
    "regex\n",
    "lark\n",
    "choice\n",
    "{\"type\": \"object\", ",
    "\"properties\": {",
    "\"items\": {",
    "\"anyOf\": [",
    "\"oneOf\": [",
    "\"allOf\": [",
    "\"$ref\": \"#\"",
    "\"$defs\": {",
    "\"enum\": [",
    "\"pattern\": \"(a*)*b\"",
    "\"minItems\": 1000000000",
    "\"maxLength\": 1000000000",
    "\"multipleOf\": 1e-300",
    "\"minimum\": 1e308",
    "\"additionalProperties\": false",
    "{1000}",
    "(a|b)*",
    "[^\\x00-\\x7f]",
    "start: ",
    "%ignore ",
];

const HTTP_WORDS: &[&str] = &[
    "/v1/chat/completions\n",
    "/v1/completions\n",
    "/v1/embeddings\n",
    "\"messages\": [",
    "{\"role\": \"user\", \"content\": ",
    "\"prompt\": ",
    "\"input\": ",
    "\"tools\": [",
    "\"stream\": true, ",
    "\"max_tokens\": 3, ",
    "\"n\": 128, ",
    "\"logprobs\": true, ",
    "\"temperature\": 1e308, ",
    "\"stop\": [\"\"], ",
    "\"response_format\": {\"type\": \"json_object\"}, ",
    "\"metadata\": ",
    "[[[[[[[[",
    "[],[],[],[],",
    "null",
    "18446744073709551616",
    "\\ud800",
    "<|im_end|>",
];

/// Reads the file, and builds its tokenizer and its graph.
fn gguf() -> Run {
    Box::new(|input| {
        let Ok(checkpoint) = Checkpoint::from_bytes(input.to_vec().into()) else { return };
        for tensor in checkpoint.tensors.values() {
            std::hint::black_box(tensor.data().iter().map(|b| u64::from(*b)).sum::<u64>());
        }
        for (key, value) in checkpoint.metadata.iter() {
            std::hint::black_box((key, value.summary()));
        }
        let _ = Model::open(&checkpoint, Some(64));
    })
}

/// Encodes the last bytes of the file with its vocabulary, and the whole file with
/// that of the embedded model.
fn tokenizer() -> Run {
    let stories = stories();
    Box::new(move |input| {
        let text = String::from_utf8_lossy(input);
        let ids = stories.encode(&text, false, false);
        assert_eq!(stories.decode(&ids, true), text, "encoding and decoding must round-trip");
        stories.encode(&text, true, true);
        let Ok(checkpoint) = Checkpoint::from_bytes(input.to_vec().into()) else { return };
        let Ok(tokenizer) = Tokenizer::from_metadata(&checkpoint.metadata) else { return };
        let tail = String::from_utf8_lossy(&input[input.len().saturating_sub(256)..]);
        for text in ["", " Once upon a time é日🙂\n\n\t<|endoftext|>", &tail] {
            for special in [false, true] {
                let ids = tokenizer.encode(text, special, special);
                assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()), "{ids:?}");
                tokenizer.decode(&ids, special);
            }
        }
    })
}

/// Compiles the template, renders a conversation with tools and calls, and encodes the text.
fn template() -> Run {
    let stories = stories();
    let call = json!({"type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, null]}}});
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi <|im_end|> é日🙂"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "content": "{\"y\": 1}"},
    ]);
    let parameters = json!({"type": "object", "properties": {"x": {"type": "array"}}});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
    let input = ChatInput {
        messages,
        tools: Some(tools),
        add_generation_prompt: true,
        now: 1_700_000_000,
        ..ChatInput::default()
    };
    Box::new(move |source| {
        if let Ok(template) = ChatTemplate::new(&String::from_utf8_lossy(source), "<s>", "</s>") {
            template.markup();
            let Ok(chat) = template.render(&input) else { return };
            let mut at = 0;
            for user in &chat.user {
                assert!(
                    at <= user.start && chat.text.get(user.clone()).is_some_and(|t| !t.is_empty()),
                    "{user:?}"
                );
                at = user.end;
            }
            stories.encode_chat(&chat);
        }
    })
}

/// Compiles the grammar, whose kind is in the first line, and generates a few tokens under it.
fn schema() -> Run {
    let compiler = GrammarCompiler::new(Arc::new(stories()));
    Box::new(move |input| {
        let text = String::from_utf8_lossy(input);
        let (kind, rest) = text.split_once('\n').unwrap_or(("json", &text));
        let grammar = match kind {
            "regex" => Grammar::Regex(rest.into()),
            "lark" => Grammar::Lark(rest.into()),
            "choice" => Grammar::Choice(rest.lines().map(String::from).collect()),
            _ => match serde_json::from_str(rest) {
                Ok(value) => Grammar::JsonSchema(value),
                Err(_) => return,
            },
        };
        let Ok(compiled) = compiler.compile(&grammar) else { return };
        let mut constraint = compiled.constraint();
        for step in 0..8 {
            let Ok(mask) = constraint.mask() else { return };
            let allowed: Vec<u32> = (0..mask.len() as u32 * 32)
                .filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
                .take(100)
                .collect();
            let Some(&token) = allowed.get(step * 7 % allowed.len().max(1)) else { return };
            if constraint.accept(token) != Ok(false) {
                return;
            }
        }
    })
}

/// The vocabulary of the embedded model.
fn stories() -> Tokenizer {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tern/models/tern-stories-1bit.gguf");
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Tokenizer::from_metadata(&checkpoint.metadata).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Small models of every architecture, as files.
fn files() -> Vec<Vec<u8>> {
    let tiny = tern_models::SHAPES.iter().filter(|s| s.name.starts_with("tiny-"));
    let small = |s: &Shape| Shape {
        layers: 1,
        width: 64,
        ff: 64,
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        vocab: 270,
        experts: s.experts.map(|_| ShapeExperts { count: 4, used: 2, ff: 32 }),
        ..s.clone()
    };
    let file = |shape: Shape| {
        let mut synth = Synth::new(&shape, &tern_quant::Q4_0, None).ok()?;
        let mut file = vec![];
        synth.write(&plain_tokenizer(shape.vocab), &mut file, |_, _| ()).ok()?;
        Some(file)
    };
    tiny.map(small).filter_map(file).filter(|file| file.len() <= LONGEST).collect()
}
