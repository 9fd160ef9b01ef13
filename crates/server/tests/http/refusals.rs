//! Every way to be refused: status, words and the parameter at fault.

use serde_json::{Value, json};
use tern_server::Config;

use crate::support::{Setup, Site};

/// A chat with one more parameter.
fn with(name: &str, value: Value) -> Value {
    json!({"messages": [{"role": "user", "content": "hi"}], name: value})
}

fn check(site: &Site, path: &str, cases: Vec<(Value, &str, Option<&str>)>) {
    for (body, message, param) in cases {
        let reply = site.post(path, body.clone());
        let error = &reply.json()["error"];
        assert_eq!(error["message"], message, "{body}");
        assert_eq!(error["param"], json!(param), "{body}");
        assert_eq!((reply.status, &error["type"]), (400, &json!("invalid_request_error")), "{body}");
    }
}

#[test]
fn chats() {
    let site = Site::new(Setup::default());
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let cases = vec![
        (json!({}), "messages: the parameter is missing", Some("messages")),
        (json!([]), "the body is not a JSON object", None),
        (json!({"messages": []}), "messages: must not be empty", Some("messages")),
        (json!({"messages": "hi"}), "messages: want an array, got \"hi\"", Some("messages")),
        (with("foo", json!(1)), "unknown parameter: \"foo\"", Some("foo")),
        (
            with("temperature", json!("hot")),
            "temperature: want a number from 0 to 2, got \"hot\"",
            Some("temperature"),
        ),
        (
            with("temperature", json!(2.5)),
            "temperature: want a number from 0 to 2, got 2.5",
            Some("temperature"),
        ),
        (with("top_p", json!(-1)), "top_p: want a number from 0 to 1, got -1", Some("top_p")),
        (with("n", json!(0)), "n: want an integer from 1 to 128, got 0", Some("n")),
        (with("n", json!(1_000_000)), "n: want an integer from 1 to 128, got 1000000", Some("n")),
        (with("n", json!(1.5)), "n: want an integer from 1 to 128, got 1.5", Some("n")),
        (with("max_tokens", json!(0)), "max_tokens: want an integer of 1 or more, got 0", Some("max_tokens")),
        (with("seed", json!("x")), "seed: want an integer, got \"x\"", Some("seed")),
        (with("stop", json!(["a", 1])), "stop: want a string or an array of strings, got 1", Some("stop")),
        (with("stop", json!("")), "stop: a string is empty", Some("stop")),
        (with("stop", json!(vec!["a"; 17])), "stop: 17 strings, the limit is 16", Some("stop")),
        (
            with("stop", json!("a".repeat(1025))),
            "stop: 1025 bytes in a string, the limit is 1024",
            Some("stop"),
        ),
        (
            with("logit_bias", json!({"x": 1})),
            "logit_bias: want token ids with numbers from -100 to 100, got \"x\"",
            Some("logit_bias"),
        ),
        (
            with("logit_bias", json!({"1": 101})),
            "logit_bias: want token ids with numbers from -100 to 100, got 101",
            Some("logit_bias"),
        ),
        (
            with("logit_bias", json!({"99999": 1})),
            "bias: token id 99999 is outside the vocabulary of 4096",
            Some("logit_bias"),
        ),
        (with("top_logprobs", json!(5)), "top_logprobs: only with logprobs", Some("top_logprobs")),
        (
            with("top_logprobs", json!(21)),
            "top_logprobs: want an integer from 0 to 20, got 21",
            Some("top_logprobs"),
        ),
        (with("stream_options", json!({})), "stream_options: only with stream", Some("stream_options")),
        (with("best_of", json!(2)), "best_of: only the value of n is supported", Some("best_of")),
        (with("suffix", json!("x")), "suffix: the model does not fill in text", Some("suffix")),
        (with("audio", json!({})), "audio: the model does not speak", Some("audio")),
        (with("modalities", json!(["audio"])), "modalities: the model gives text", Some("modalities")),
        (
            with("functions", json!([])),
            "functions: is no longer part of the API: use tools",
            Some("functions"),
        ),
        (
            with("use_beam_search", json!(true)),
            "use_beam_search: only false is supported",
            Some("use_beam_search"),
        ),
        (with("tools", json!([1])), "tools[0]: want an object, got 1", Some("tools[0]")),
        (
            with("tools", json!([{"type": "custom"}])),
            "tools[0].type: want \"function\", got \"custom\"",
            Some("tools[0].type"),
        ),
        (with("tools", json!(vec![1; 129])), "tools: 129 tools, the limit is 128", Some("tools")),
        (with("tool_choice", json!("required")), "tool_choice: there are no tools", Some("tool_choice")),
        (
            json!({"messages": [{"role": "user", "content": "a"}], "tools": tool, "tool_choice": {
                "type": "function", "function": {"name": "g"}
            }}),
            "tool_choice: there is no tool named \"g\"",
            Some("tool_choice"),
        ),
        (
            json!({"messages": [{"role": "user", "content": "a"}], "tools": tool, "response_format": {"type": "json_object"}}),
            "response_format: not together with tools, which this model calls without a mark of its own",
            Some("response_format"),
        ),
        (
            with("response_format", json!({"type": "xml"})),
            "response_format.type: want \"text\", \"json_object\" or \"json_schema\", got \"xml\"",
            Some("response_format.type"),
        ),
        (
            with("response_format", json!({"type": "json_schema", "json_schema": {"name": "x"}})),
            "response_format.json_schema.schema: the parameter is missing",
            Some("response_format.json_schema.schema"),
        ),
        (
            json!({"messages": [{"role": "user", "content": "a"}], "guided_regex": "a", "guided_choice": ["a"]}),
            "guided_choice: the form is already given by guided_regex",
            Some("guided_choice"),
        ),
        (
            with("structured_outputs", json!({"json_object": true, "disable_any_whitespace": true})),
            "structured_outputs.disable_any_whitespace: only false is supported",
            Some("structured_outputs.disable_any_whitespace"),
        ),
        (
            with("chat_template_kwargs", json!({"x": "y".repeat(20_000)})),
            "chat_template_kwargs: 20008 bytes, the limit is 16384",
            Some("chat_template_kwargs"),
        ),
        (
            with("chat_template_kwargs", json!({"messages": 1})),
            "chat template variable \"messages\" cannot be replaced",
            Some("messages"),
        ),
        (
            with("max_tokens", json!(1000)),
            "12 prompt tokens and 1000 to generate do not fit the context of 512",
            Some("max_tokens"),
        ),
    ];
    check(&site, "/v1/chat/completions", cases);
    let reply = site.post("/v1/chat/completions", with("max_tokens", json!(1000)));
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
    let regex = site.post("/v1/chat/completions", with("guided_regex", json!("a(")));
    assert_eq!((regex.status, &regex.json()["error"]["param"]), (400, &json!("guided_regex")));
    let long = site.chat(&"word ".repeat(1000), json!({}));
    assert_eq!(long.message(), "messages: the text has more tokens than the context of 512");
    assert_eq!(site.handle.stats().tokens_generated, 0);
}

#[test]
fn completions() {
    let site = Site::new(Setup::default());
    let with = |name: &str, value: Value| json!({"prompt": "a", name: value});
    let cases = vec![
        (json!({}), "prompt: the parameter is missing", Some("prompt")),
        (json!({"prompt": []}), "prompt: there is none", Some("prompt")),
        (
            json!({"prompt": {"a": 1}}),
            "prompt: want a string, strings, token ids or lists of token ids, got an object",
            Some("prompt"),
        ),
        (json!({"prompt": [1, "a"]}), "prompt: want token ids, got \"a\"", Some("prompt")),
        (json!({"prompt": [1, -1]}), "prompt: want token ids, got -1", Some("prompt")),
        (
            json!({"prompt": [1, 5000]}),
            "prompt: token id 5000 is outside the vocabulary of 4096",
            Some("prompt"),
        ),
        (json!({"prompt": [[]]}), "the prompt is empty", Some("prompt")),
        (
            json!({"prompt": ["a", "b"], "n": 100}),
            "prompt: 200 texts (prompts times n), the limit is 128",
            Some("prompt"),
        ),
        (
            with("suffix", json!("b")),
            "suffix: the model does not fill in text before a suffix",
            Some("suffix"),
        ),
        (with("tools", json!([])), "tools: tools go to /v1/chat/completions", Some("tools")),
        (with("logprobs", json!(true)), "logprobs: want an integer from 0 to 20, got true", Some("logprobs")),
        (
            json!({"prompt": "a", "echo": true, "logprobs": 1}),
            "echo: not together with logprobs",
            Some("echo"),
        ),
    ];
    check(&site, "/v1/completions", cases);
}

#[test]
fn embeddings_and_tokens() {
    let site = Site::new(Setup::default());
    let cases = vec![
        (json!({}), "input: the parameter is missing", Some("input")),
        (json!({"input": []}), "input: there is none", Some("input")),
        (json!({"input": ["a", []]}), "input: text 1 is empty", Some("input")),
        (json!({"input": vec!["a"; 2049]}), "input: 2049 inputs, the limit is 2048", Some("input")),
        (
            json!({"input": "a", "encoding_format": "hex"}),
            "encoding_format: want float or base64, got \"hex\"",
            Some("encoding_format"),
        ),
        (
            json!({"input": "a", "dimensions": 7}),
            "dimensions: this model's vectors have 2, got 7",
            Some("dimensions"),
        ),
    ];
    check(&site, "/v1/embeddings", cases);
    let cases = vec![
        (json!({}), "messages: the parameter is missing", Some("messages")),
        (json!({"prompt": "a", "content": "b"}), "content: prompt is given too", Some("content")),
        (json!({"prompt": "a", "x": 1}), "unknown parameter: \"x\"", Some("x")),
    ];
    check(&site, "/tokenize", cases);
    let cases = vec![
        (json!({}), "tokens: the parameter is missing", Some("tokens")),
        (json!({"tokens": ["a"]}), "tokens: want token ids, got \"a\"", Some("tokens")),
        (
            json!({"tokens": [4096]}),
            "tokens: token id 4096 is outside the vocabulary of 4096",
            Some("tokens"),
        ),
    ];
    check(&site, "/detokenize", cases);
}

#[test]
fn what_cannot_change_an_answer_is_let_through() {
    let site = Site::new(Setup::default());
    let more = json!({
        "user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "safety_identifier": "x",
        "prompt_cache_key": "k", "parallel_tool_calls": true, "logit_bias": {"5": -100}, "tool_choice": "auto",
        "temperature": null, "stop": null, "foo": null, "best_of": 1, "modalities": ["text"], "n": 1.0, "top_k": -1,
        "response_format": {"type": "text"}, "priority": 5, "repeat_penalty": 1.1, "reasoning_effort": "low",
        "skip_special_tokens": true, "seed": -5, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1,
    });
    let reply = site.chat("fine", more);
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "fine", "{}", reply.text);
}

#[test]
fn a_model_without_a_template_does_not_chat_and_another_model_is_not_here() {
    let site = Site::new(Setup { template: None, ..Setup::default() });
    let reply = site.chat("hi", json!({}));
    assert_eq!(reply.message(), "this model has no chat template: use /v1/completions");
    assert_eq!(reply.status, 400);
    let reply = site.post("/v1/completions", json!({"prompt": "a", "model": "gpt"}));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!(reply.message(), "the model \"gpt\" is not served here: \"parrot\" is");
}

#[test]
fn bodies_methods_and_paths() {
    let config = Config { max_body: 1000, ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    let post =
        |body: &[u8]| site.send("POST", "/v1/chat/completions", &[("content-type", "text/plain")], body);
    for (reply, status, message) in [
        (post(b"{\n\"a\": }"), 400, "the body is not JSON: expected value at line 2 column 6"),
        (post(b""), 400, "the body is not JSON: EOF while parsing a value at line 1 column 0"),
        (post(&[b' '; 1001]), 413, "the body is larger than the 1000 bytes it may have"),
        (post(&[b'['; 900]), 400, "the body is not a JSON object"),
        (
            post(format!("{{\"a\": {}", "[".repeat(200)).as_bytes()),
            400,
            "the body is not JSON: recursion limit exceeded at line 1 column 133",
        ),
        (site.get("/v1/chat/completions"), 405, "/v1/chat/completions does not take GET"),
        (site.get("/nothing"), 404, "there is no route GET /nothing"),
        (site.get("/v1/models/nobody"), 404, "the model \"nobody\" is not served here: \"parrot\" is"),
    ] {
        assert_eq!((reply.status, reply.message().as_str()), (status, message));
        assert_eq!(reply.header("content-type"), Some("application/json"));
    }
    let fine = json!({"messages": [{"role": "user", "content": "say:ok"}]}).to_string();
    assert_eq!(post(fine.as_bytes()).json()["choices"][0]["message"]["content"], "ok");
}
