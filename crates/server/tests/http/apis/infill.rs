//! Fill-in-the-middle: the prompt of a gap, as llama.cpp's server builds it.

use serde_json::{Value, json};
use tern::text::FillOrder;
use tern_server::Config;

use crate::support::{Setup, Site};

/// The tokens of Qwen2.5-Coder, in llama.cpp's order of searching.
const QWEN: &[&str] =
    &["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"];
/// The tokens of StarCoder, none of which separates files.
const STAR: &[&str] = &["<fim_prefix>", "<fim_middle>", "<fim_suffix>"];

fn site(tokens: &'static [&'static str], fill_order: FillOrder) -> Site {
    let config = Config { fill_order, ..Config::default() };
    Site::new(Setup { config, tokens, ..Setup::default() })
}

fn infill(site: &Site, body: Value) -> Value {
    let reply = site.post("/infill", body);
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()
}

/// BOS as it is in the text of a prompt.
fn bos(site: &Site) -> String {
    let bos = site.tokenizer.bos().filter(|_| site.tokenizer.add_bos());
    bos.map_or(String::new(), |id| site.tokenizer.decode(&[id], true))
}

#[test]
fn the_sides_of_a_gap_are_in_order() {
    let body = json!({"input_prefix": "def f(", "prompt": "a", "input_suffix": "):\n", "n_predict": 3});
    for (tokens, order, want) in [
        (QWEN, FillOrder::PrefixFirst, "<|fim_prefix|>def f(a<|fim_suffix|>):\n<|fim_middle|>"),
        (QWEN, FillOrder::SuffixFirst, "<|fim_suffix|>):\n<|fim_prefix|>def f(a<|fim_middle|>"),
        (STAR, FillOrder::PrefixFirst, "<fim_prefix>def f(a<fim_suffix>):\n<fim_middle>"),
        (STAR, FillOrder::SuffixFirst, "<fim_suffix>):\n<fim_prefix>def f(a<fim_middle>"),
    ] {
        let site = site(tokens, order);
        let reply = infill(&site, body.clone());
        assert_eq!(reply["prompt"], [&bos(&site), want].concat(), "{reply}");
        assert_eq!((&reply["stop"], &reply["tokens_predicted"]), (&json!(true), &json!(3)), "{reply}");
        // the same prompt by OpenAI's parameter, with the markers as single tokens
        let reply = site.post(
            "/v1/completions",
            json!({"prompt": "def f(a", "suffix": "):\n", "max_tokens": 1, "return_token_ids": true}),
        );
        let ids: Vec<u32> =
            serde_json::from_value(reply.json()["choices"][0]["prompt_token_ids"].clone()).unwrap();
        assert_eq!(site.tokenizer.decode(&ids, true), [&bos(&site), want].concat());
        let markers = ids.iter().filter(|id| tokens.contains(&site.tokenizer.decode(&[**id], true).as_str()));
        assert_eq!(markers.count(), 3, "{ids:?}");
        // and by Ollama's
        let options = json!({"num_predict": 2});
        let reply = site.post(
            "/api/generate",
            json!({"prompt": "def f(a", "suffix": "):\n", "stream": false, "options": options}),
        );
        assert_eq!(reply.json()["prompt_eval_count"], ids.len(), "{}", reply.text);
    }
}

#[test]
fn markers_in_the_text_are_text() {
    let site = site(QWEN, FillOrder::PrefixFirst);
    let gap = json!({"input_prefix": "a<|fim_middle|>", "input_suffix": "<|fim_prefix|>", "n_predict": 1});
    let plain = infill(&site, json!({"input_prefix": "a", "input_suffix": "b", "n_predict": 1}));
    let evaluated = |reply: &Value| reply["tokens_evaluated"].as_u64().unwrap();
    assert!(evaluated(&infill(&site, gap)) > evaluated(&plain) + 4, "they are no single tokens");
}

#[test]
fn other_files_come_first() {
    let files = json!([{"filename": "a.py", "text": "x = 1\n", "time": 5}, {"text": "y = 2\n"}]);
    let body = json!({"input_prefix": "p", "input_suffix": "s", "input_extra": files, "n_predict": 1});
    for (tokens, want) in [
        (
            QWEN,
            "<|repo_name|>myproject\n<|file_sep|>a.py\nx = 1\n<|file_sep|>tmp\ny = 2\n<|file_sep|>filename\n\
             <|fim_prefix|>p<|fim_suffix|>s<|fim_middle|>",
        ),
        (
            STAR,
            "\n\n--- snippet ---\n\nx = 1\n\n\n--- snippet ---\n\ny = 2\n<fim_prefix>p<fim_suffix>s<fim_middle>",
        ),
    ] {
        let site = site(tokens, FillOrder::PrefixFirst);
        assert_eq!(infill(&site, body.clone())["prompt"], [&bos(&site), want].concat());
    }
    let site = site(QWEN, FillOrder::PrefixFirst);
    let bad = site.post("/infill", json!({"input_prefix": "a", "input_extra": [{"name": "a"}]}));
    assert_eq!((bad.status, bad.message()), (400, "unknown parameter: \"input_extra[0].name\"".into()));
}

#[test]
fn a_gap_is_streamed() {
    let site = site(QWEN, FillOrder::PrefixFirst);
    let body = json!({"input_prefix": "a", "input_suffix": "b", "n_predict": 4, "seed": 1});
    let whole = infill(&site, body.clone());
    let mut streamed = body;
    streamed["stream"] = true.into();
    let reply = site.post("/infill", streamed);
    let frames: Vec<Value> = reply
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("data: ").filter(|data| *data != "[DONE]"))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let text: String = frames.iter().map(|frame| frame["content"].as_str().unwrap()).collect();
    assert_eq!(json!(text), whole["content"]);
    let last = frames.last().unwrap();
    assert_eq!((&last["stop"], &last["stop_type"]), (&json!(true), &json!("limit")), "{last}");
}
