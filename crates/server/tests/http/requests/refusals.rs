//! Every refusal: status, message and the parameter at fault.

use serde_json::{Value, json};
use tern_server::{Config, UnknownParameters};

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
        (json!({}), "missing required parameter: \"messages\"", Some("messages")),
        (json!([]), "the request body must be a JSON object", None),
        (json!({"messages": []}), "messages: must not be empty", Some("messages")),
        (json!({"messages": "hi"}), "messages: expected an array, got \"hi\"", Some("messages")),
        (with("foo", json!(1)), "unknown parameter: \"foo\"", Some("foo")),
        (
            with("temperature", json!("hot")),
            "temperature: expected a number from 0 to 2, got \"hot\"",
            Some("temperature"),
        ),
        (
            with("temperature", json!(2.5)),
            "temperature: expected a number from 0 to 2, got 2.5",
            Some("temperature"),
        ),
        (with("top_p", json!(-1)), "top_p: expected a number from 0 to 1, got -1", Some("top_p")),
        (with("n", json!(0)), "n: expected an integer from 1 to 128, got 0", Some("n")),
        (with("n", json!(1_000_000)), "n: expected an integer from 1 to 128, got 1000000", Some("n")),
        (with("n", json!(1.5)), "n: expected an integer from 1 to 128, got 1.5", Some("n")),
        (
            with("max_tokens", json!(0)),
            "max_tokens: expected an integer of 1 or more, got 0",
            Some("max_tokens"),
        ),
        (with("seed", json!("x")), "seed: expected an integer, got \"x\"", Some("seed")),
        (
            with("stop", json!(["a", 1])),
            "stop: expected a string or an array of strings, got 1",
            Some("stop"),
        ),
        (with("stop", json!("")), "stop: strings must not be empty", Some("stop")),
        (with("stop", json!(vec!["a"; 17])), "stop: 17 strings exceed the limit of 16", Some("stop")),
        (
            with("stop", json!("a".repeat(1025))),
            "stop: 1025 bytes in a string exceed the limit of 1024",
            Some("stop"),
        ),
        (
            with("logit_bias", json!({"x": 1})),
            "logit_bias: expected token ids mapped to numbers from -100 to 100, got \"x\"",
            Some("logit_bias"),
        ),
        (
            with("logit_bias", json!({"1": 101})),
            "logit_bias: expected token ids mapped to numbers from -100 to 100, got 101",
            Some("logit_bias"),
        ),
        (
            with("logit_bias", json!({"99999": 1})),
            "bias: token id 99999 is outside the vocabulary of 4096",
            Some("logit_bias"),
        ),
        (with("top_logprobs", json!(5)), "top_logprobs: requires logprobs to be true", Some("top_logprobs")),
        (
            with("top_logprobs", json!(21)),
            "top_logprobs: expected an integer from 0 to 20, got 21",
            Some("top_logprobs"),
        ),
        (with("best_of", json!(2)), "best_of: must be equal to n", Some("best_of")),
        (
            with("suffix", json!("x")),
            "suffix: a chat has none, use /v1/completions or /infill",
            Some("suffix"),
        ),
        (with("audio", json!({})), "audio: audio output is not supported", Some("audio")),
        (with("modalities", json!(["audio"])), "modalities: only \"text\" is supported", Some("modalities")),
        (with("functions", json!([])), "functions: no longer part of the API, use tools", Some("functions")),
        (
            with("use_beam_search", json!(true)),
            "use_beam_search: only false is supported",
            Some("use_beam_search"),
        ),
        (with("tools", json!([1])), "tools[0]: expected an object, got 1", Some("tools[0]")),
        (
            with("tools", json!([{"type": "custom"}])),
            "tools[0].type: expected \"function\", got \"custom\"",
            Some("tools[0].type"),
        ),
        (with("tools", json!(vec![1; 129])), "tools: 129 tools exceed the limit of 128", Some("tools")),
        (with("tool_choice", json!("required")), "tool_choice: requires tools", Some("tool_choice")),
        (
            json!({"messages": [{"role": "user", "content": "a"}], "tools": tool, "tool_choice": {
                "type": "function", "function": {"name": "g"}
            }}),
            "tool_choice: unknown tool \"g\"",
            Some("tool_choice"),
        ),
        (
            json!({"messages": [{"role": "user", "content": "a"}], "tools": tool, "response_format": {"type": "json_object"}}),
            "response_format: cannot be combined with tools: this model's tool calls have no start token",
            Some("response_format"),
        ),
        (
            with("response_format", json!({"type": "xml"})),
            "response_format.type: expected \"text\", \"json_object\" or \"json_schema\", got \"xml\"",
            Some("response_format.type"),
        ),
        (
            with("response_format", json!({"type": "json_schema", "json_schema": {"name": "x"}})),
            "missing required parameter: \"response_format.json_schema.schema\"",
            Some("response_format.json_schema.schema"),
        ),
        (
            json!({"messages": [{"role": "user", "content": "a"}], "guided_regex": "a", "guided_choice": ["a"]}),
            "guided_choice: cannot be combined with guided_regex",
            Some("guided_choice"),
        ),
        (
            with("structured_outputs", json!({"json_object": true, "disable_any_whitespace": true})),
            "structured_outputs.disable_any_whitespace: only false is supported",
            Some("structured_outputs.disable_any_whitespace"),
        ),
        (
            with("chat_template_kwargs", json!({"x": "y".repeat(20_000)})),
            "chat_template_kwargs: 20008 bytes exceed the limit of 16384",
            Some("chat_template_kwargs"),
        ),
        (
            with("chat_template_kwargs", json!({"messages": 1})),
            "chat template variable \"messages\" cannot be replaced",
            Some("messages"),
        ),
    ];
    check(&site, "/v1/chat/completions", cases);
    let regex = site.post("/v1/chat/completions", with("guided_regex", json!("a(")));
    assert_eq!((regex.status, &regex.json()["error"]["param"]), (400, &json!("guided_regex")));
    let long = site.chat(&"word ".repeat(1000), json!({}));
    assert_eq!(long.json()["error"]["code"], "context_length_exceeded");
    assert_eq!(site.handle.stats().tokens_generated, 0);
}

#[test]
fn completions() {
    let site = Site::new(Setup::default());
    let with = |name: &str, value: Value| json!({"prompt": "a", name: value});
    let cases = vec![
        (json!({}), "missing required parameter: \"prompt\"", Some("prompt")),
        (json!({"prompt": []}), "prompt: must not be empty", Some("prompt")),
        (
            json!({"prompt": {"a": 1}}),
            "prompt: expected a string, token ids, or an array of strings or of token id arrays, got an object",
            Some("prompt"),
        ),
        (json!({"prompt": [1, "a"]}), "prompt: expected token ids, got \"a\"", Some("prompt")),
        (json!({"prompt": [1, -1]}), "prompt: expected token ids, got -1", Some("prompt")),
        (
            json!({"prompt": [1, 5000]}),
            "prompt: token id 5000 is outside the vocabulary of 4096",
            Some("prompt"),
        ),
        (json!({"prompt": [[]]}), "the prompt is empty", Some("prompt")),
        (
            json!({"prompt": ["a", "b"], "n": 100}),
            "prompt: 200 choices (prompts times n) exceed the limit of 128",
            Some("prompt"),
        ),
        (with("suffix", json!("b")), "suffix: this model has no fill-in-the-middle tokens", Some("suffix")),
        (with("tools", json!([])), "tools: use /v1/chat/completions for tools", Some("tools")),
        (
            with("logprobs", json!(true)),
            "logprobs: expected an integer from 0 to 20, got true",
            Some("logprobs"),
        ),
        (
            json!({"prompt": "a", "echo": true, "logprobs": 1, "stop": "b"}),
            "stop: cannot be combined with echo and logprobs",
            Some("stop"),
        ),
    ];
    check(&site, "/v1/completions", cases);
}

#[test]
fn embeddings_and_tokens() {
    let site = Site::new(Setup::default());
    let cases = vec![
        (json!({}), "missing required parameter: \"input\"", Some("input")),
        (json!({"input": []}), "input: must not be empty", Some("input")),
        (json!({"input": ["a", []]}), "input: text 1 must not be empty", Some("input")),
        (json!({"input": vec!["a"; 2049]}), "input: 2049 inputs exceed the limit of 2048", Some("input")),
        (
            json!({"input": "a", "encoding_format": "hex"}),
            "encoding_format: expected float or base64, got \"hex\"",
            Some("encoding_format"),
        ),
        (
            json!({"input": "a", "dimensions": 7}),
            "dimensions: expected at most 2, the size of this model's vectors, got 7",
            Some("dimensions"),
        ),
    ];
    check(&site, "/v1/embeddings", cases);
    let cases = vec![
        (json!({}), "missing required parameter: \"messages\"", Some("messages")),
        (json!({"prompt": "a", "content": "b"}), "content: cannot be combined with prompt", Some("content")),
        (json!({"prompt": "a", "x": 1}), "unknown parameter: \"x\"", Some("x")),
    ];
    check(&site, "/tokenize", cases);
    let cases = vec![
        (json!({}), "missing required parameter: \"tokens\"", Some("tokens")),
        (json!({"tokens": ["a"]}), "tokens: expected token ids, got \"a\"", Some("tokens")),
        (
            json!({"tokens": [4096]}),
            "tokens: token id 4096 is outside the vocabulary of 4096",
            Some("tokens"),
        ),
    ];
    check(&site, "/detokenize", cases);
}

#[test]
fn more_tokens_than_fit_are_clamped() {
    let site = Site::new(Setup::default());
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "say:endless"}]})),
        ("/v1/completions", json!({"prompt": "say:endless<answer>"})),
    ] {
        for (name, tokens) in
            [("max_tokens", json!(1000)), ("max_tokens", json!(-1)), ("max_completion_tokens", json!(513))]
        {
            let mut body = body.clone();
            body[name] = tokens.clone();
            let reply = site.post(path, body).json();
            if tokens == -1 && path == "/v1/completions" {
                assert_eq!(reply["usage"]["completion_tokens"], 16, "{reply}"); // as without the parameter
                continue;
            }
            let usage = &reply["usage"];
            assert_eq!(reply["choices"][0]["finish_reason"], "length", "{reply}");
            assert_eq!(usage["total_tokens"], 512, "{reply}");
        }
    }
    let full = json!({"prompt": vec![5; 512], "max_tokens": 1});
    let reply = site.post("/v1/completions", full);
    assert_eq!(reply.message(), "512 prompt tokens and 1 to generate do not fit the context of 512");
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
}

#[test]
fn unknown_parameters_are_ignored_if_configured() {
    let config = Config { unknown_parameters: UnknownParameters::Ignore, ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    let message =
        json!({"role": "user", "content": [{"type": "text", "text": "say:ok", "x": 1}], "mood": "good"});
    let reply = site.post("/v1/chat/completions", json!({"messages": [message], "num_beams": 4}));
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "ok", "{}", reply.text);
    let reply = site.chat("ok", json!({"functions": []}));
    assert_eq!(reply.status, 400, "known and unsupported parameters are still refused");
}

#[test]
fn parameters_without_effect_are_accepted() {
    let site = Site::new(Setup::default());
    let more = json!({
        "user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "safety_identifier": "x",
        "prompt_cache_key": "k", "parallel_tool_calls": true, "logit_bias": {"5": -100}, "tool_choice": "auto",
        "temperature": null, "stop": null, "foo": null, "best_of": 1, "modalities": ["text"], "n": 1.0, "top_k": -1,
        "response_format": {"type": "text"}, "priority": 5, "repeat_penalty": 1.1, "reasoning_effort": "low",
        "verbosity": "low", "usage": {"include": true}, "timestamp": 5, "stream_options": {"include_usage": true},
        "max_tokens": -1, "reasoning": {"effort": "low"}, "cache_control": {"type": "ephemeral"},
        "skip_special_tokens": true, "seed": -5, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1,
    });
    let others = json!({
        "id": "x", "user_id": "me", "keep_alive": "5m", "num_ctx": 1_000_000,
        "extra_body": {"trace": {}, "top_k": 3},
        "options": {"num_ctx": 4096, "num_gpu": 1, "top_p": 0.9}, "mirostat_mode": 0, "think": false,
        "enable_thinking": false, "thinking": {"type": "disabled"}, "return_tokens_as_token_ids": false,
    });
    for more in [more, others] {
        let reply = site.chat("fine", more);
        assert_eq!(reply.json()["choices"][0]["message"]["content"], "fine", "{}", reply.text);
    }
    let part = json!({"type": "text", "text": "say:fine", "cache_control": {"type": "ephemeral"}});
    let messages = json!([
        {"role": "assistant", "content": "a", "reasoning_details": [], "timestamp": 1, "tool_calls": [
            {"id": "a", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": null},
        {"role": "user", "content": [part], "cache_control": {"type": "ephemeral"}},
    ]);
    let tools = json!([{"type": "function", "cache_control": {}, "function": {"name": "f", "strict": true}}]);
    let reply = site.post("/v1/chat/completions", json!({"messages": messages, "tools": tools}));
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "fine", "{}", reply.text);
}

#[test]
fn members_of_extra_body_and_options_are_parameters() {
    let site = Site::new(Setup::default());
    let tokens = |more: Value| site.chat("endless", more).json()["usage"]["completion_tokens"].clone();
    // as the Python client merges it
    assert_eq!(tokens(json!({"extra_body": {"max_tokens": 3}, "max_tokens": 9})), 3);
    assert_eq!(tokens(json!({"options": {"num_predict": 4}})), 4);
    assert_eq!(tokens(json!({"options": {"num_predict": 4}, "max_tokens": 5})), 5);
    for (more, message) in [
        (json!({"extra_body": {"num_beams": 4}}), "unknown parameter: \"num_beams\""),
        (json!({"extra_body": 5}), "unknown parameter: \"extra_body\""),
        (json!({"options": {"num_beams": 4}}), "unknown parameter: \"num_beams\""),
        (json!({"options": []}), "options: expected an object, got an array of 0"),
        (json!({"mirostat_mode": 3}), "mirostat_mode: expected an integer from 0 to 2, got 3"),
    ] {
        assert_eq!(site.chat("a", more).message(), message);
    }
}

#[test]
fn parameters_that_a_request_omits_have_the_defaults_of_the_model() {
    let site = Site::new(Setup::default()); // those of `tern run`: 0.8, 40, 0.95 and 0.05
    let defaults = &site.get("/props").json()["default_generation_settings"]["params"];
    for (name, want) in [
        ("temperature", json!(0.8)),
        ("top_k", json!(40)),
        ("top_p", json!(0.95)),
        ("min_p", json!(0.05)),
        ("repeat_penalty", json!(1.0)),
        ("dry_penalty_last_n", json!(-1)),
        ("mirostat", json!(0)),
    ] {
        assert_eq!(defaults[name], want, "{name}");
    }
    assert_eq!(defaults.as_object().unwrap().len(), tern::graph::PARAMETERS.len());
    let sampling = |more: Value| {
        let mut body = json!({"input": "say:a"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = site.post("/v1/responses", body).json();
        (reply["temperature"].as_f64().unwrap(), reply["top_p"].as_f64().unwrap())
    };
    assert_eq!(sampling(json!({})), (0.8, 0.95));
    assert_eq!(sampling(json!({"temperature": 1})), (1.0, 0.95)); // each on its own
    assert_eq!(sampling(json!({"top_p": 1})), (0.8, 1.0));
}

#[test]
fn a_model_without_a_template_does_not_chat_and_unknown_models_are_refused() {
    let site = Site::new(Setup { template: None, ..Setup::default() });
    let reply = site.chat("hi", json!({}));
    assert_eq!(reply.message(), "this model has no chat template: use /v1/completions");
    assert_eq!(reply.status, 400);
    let reply = site.post("/v1/completions", json!({"prompt": "a", "model": "gpt"}));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!(reply.message(), "the model \"gpt\" does not exist; this server has \"parrot\"");
}

#[test]
fn bodies_methods_and_paths() {
    let config = Config { max_body: 1000, ..Config::default() };
    let site = Site::new(Setup { config, ..Setup::default() });
    let post =
        |body: &[u8]| site.send("POST", "/v1/chat/completions", &[("content-type", "text/plain")], body);
    for (reply, status, message) in [
        (post(b"{\n\"a\": }"), 400, "the request body is not valid JSON: expected value at line 2 column 6"),
        (post(b""), 400, "the request body is not valid JSON: EOF while parsing a value at line 1 column 0"),
        (post(&[b' '; 1001]), 413, "the request body exceeds the limit of 1000 bytes"),
        (post(&[b'['; 900]), 400, "the request body must be a JSON object"),
        (
            post(format!("{{\"a\": {}", "[".repeat(200)).as_bytes()),
            400,
            "the request body is not valid JSON: recursion limit exceeded at line 1 column 133",
        ),
        (site.get("/v1/chat/completions"), 405, "method not allowed: GET /v1/chat/completions"),
        (site.get("/nothing"), 404, "unknown route: GET /nothing"),
        (
            site.get("/v1/models/nobody"),
            404,
            "the model \"nobody\" does not exist; this server has \"parrot\"",
        ),
    ] {
        assert_eq!((reply.status, reply.message().as_str()), (status, message));
        assert_eq!(reply.header("content-type"), Some("application/json"));
    }
    let fine = json!({"messages": [{"role": "user", "content": "say:ok"}]}).to_string();
    assert_eq!(post(fine.as_bytes()).json()["choices"][0]["message"]["content"], "ok");
}
