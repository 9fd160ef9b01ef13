//! Where the prompt of a chat ends, the log-probabilities of prompts, and the parameters of samplers.

use serde_json::{Value, json};

use crate::apis::chat::{choice, site};
use crate::support::Site;

fn chat(site: &Site, last: &str, parameters: Value) -> crate::support::Reply {
    let mut body = parameters;
    body["messages"] =
        json!([{"role": "user", "content": "say:one two"}, {"role": "assistant", "content": last}]);
    site.post("/v1/chat/completions", body)
}

fn prompt(site: &Site, last: &str, parameters: Value) -> String {
    let mut body = parameters;
    body["messages"] = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": last}]);
    let tokens = site.post("/tokenize", body).json()["tokens"].clone();
    let text =
        site.post("/detokenize", json!({"tokens": tokens})).json()["prompt"].as_str().unwrap().to_owned();
    text.trim_start_matches("<|endoftext|>").to_owned()
}

#[test]
fn a_prompt_may_end_inside_the_last_message() {
    let site = site();
    for (parameters, want) in [
        (json!({}), "<user>Hi<assistant>Well, <answer>"),
        (json!({"continue_final_message": true}), "<user>Hi<assistant>Well, "),
        (
            json!({"continue_final_message": true, "add_generation_prompt": false}),
            "<user>Hi<assistant>Well, ",
        ),
        (
            json!({"continue_final_message": false, "add_generation_prompt": true}),
            "<user>Hi<assistant>Well, <answer>",
        ),
    ] {
        assert_eq!(prompt(&site, "Well, ", parameters.clone()), want, "{parameters}");
    }
    // the space at the start of the continuation is kept
    let continued = choice(&chat(&site, "so<answer>", json!({"continue_final_message": true})));
    assert_eq!(continued["message"]["content"], "one two<assistant>so");
    for (last, parameters, want) in [
        (
            "a",
            json!({"continue_final_message": true, "add_generation_prompt": true}),
            "continue_final_message: cannot be combined with add_generation_prompt, set one of them",
        ),
        (
            "",
            json!({"continue_final_message": true}),
            "the last message cannot be continued: it has no content",
        ),
        ("a", json!({"continue_final_message": 1}), "continue_final_message: expected true or false, got 1"),
    ] {
        let reply = chat(&site, last, parameters);
        assert_eq!((reply.status, reply.message()), (400, want.to_owned()));
    }
}

#[test]
fn the_log_probabilities_of_a_prompt_are_vllms() {
    let site = site();
    let text = "say:a b<answer>";
    let tokens = site.tokenizer.encode(text, true, true);
    let complete = |more: Value| {
        let mut body = json!({"prompt": text, "max_tokens": 3, "prompt_logprobs": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        site.post("/v1/completions", body).json()
    };
    let plain = complete(json!({}));
    let scores = plain["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!((scores.len(), &scores[0]), (tokens.len(), &Value::Null));
    for (score, token) in scores.iter().zip(&tokens).skip(1) {
        let own = &score[token.to_string()];
        assert_eq!((&own["rank"], &own["logprob"]), (&json!(1), &json!(0.0)), "{score}");
        let bytes = site.tokenizer.token_bytes(*token, true);
        assert_eq!(own["decoded_token"], String::from_utf8_lossy(bytes).as_ref());
    }
    assert_eq!(plain["choices"][0]["text"], "a b");
    assert_eq!(plain["choices"][0]["logprobs"], Value::Null);
    assert_eq!(plain["usage"]["prompt_tokens"], tokens.len());
    assert_eq!(plain["usage"]["completion_tokens"], site.tokenizer.encode("a b", false, true).len());

    // beside log-probabilities of the text, which have their own number
    let both = complete(json!({"logprobs": 3, "n": 2}));
    for choice in both["choices"].as_array().unwrap() {
        assert_eq!(choice["prompt_logprobs"], plain["choices"][0]["prompt_logprobs"]);
        assert_eq!(choice["logprobs"]["top_logprobs"][0].as_object().unwrap().len(), 3);
        assert_eq!(choice["text"], "a b");
    }
    let echoed = complete(json!({"logprobs": 2, "echo": true}));
    assert_eq!(echoed["choices"][0]["text"], format!("{text}a b"));
    assert_eq!(echoed["choices"][0]["prompt_logprobs"], plain["choices"][0]["prompt_logprobs"]);
    assert_eq!(echoed["usage"], plain["usage"]);

    let body = json!({"messages": [{"role": "user", "content": "say:a b"}], "prompt_logprobs": 0});
    let chat = site.post("/v1/chat/completions", body).json();
    let prompt = site.tokenizer.encode("<user>say:a b<answer>", true, true);
    assert_eq!(chat["prompt_logprobs"].as_array().unwrap().len(), prompt.len(), "{chat}");
    assert_eq!(chat["choices"][0]["message"]["content"], "a b");
    assert_eq!(chat["usage"]["prompt_tokens"], prompt.len());

    let streamed = site.post("/v1/completions", json!({"prompt": "a", "prompt_logprobs": 1, "stream": true}));
    assert_eq!(streamed.message(), "prompt_logprobs: cannot be combined with stream");
    let many = site.post("/v1/completions", json!({"prompt": "a", "prompt_logprobs": 21}));
    assert_eq!(many.message(), "prompt_logprobs: expected an integer from 0 to 20, got 21");
    let one =
        site.post("/v1/completions", json!({"prompt": [tokens[0]], "prompt_logprobs": 1, "max_tokens": 1}));
    assert_eq!(one.json()["choices"][0]["prompt_logprobs"], json!([null]));
    site.wait_until_idle();
}

#[test]
fn a_wrong_grammar_is_refused_with_its_line() {
    let site = site();
    let error = site.chat("a", json!({"grammar": "root ::= \"a\"\nroot ::= x"}));
    assert_eq!(error.message(), "grammar: invalid GBNF grammar: line 2: rule `root` is defined twice");
    let both = site.chat("a", json!({"grammar": "root ::= \"a\"", "guided_regex": "a"}));
    assert_eq!(both.message(), "grammar: cannot be combined with guided_regex");
}

#[test]
fn samplers_have_the_names_of_llama_cpp() {
    let site = site();
    let presets = [
        json!({"typical_p": 0.9, "top_n_sigma": -1}),
        json!({"top_n_sigma": 1.5}),
        json!({"xtc_probability": 0.5, "xtc_threshold": 0.1}),
        json!({"dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1}),
        json!({"dry_multiplier": 0.8, "dry_sequence_breakers": ["\n", "\"", "Tom:"]}),
        json!({"mirostat": 1, "mirostat_tau": 5.0, "mirostat_eta": 0.1}),
        json!({"mirostat": 2}),
        json!({"mirostat": 0, "mirostat_tau": 3}),
    ];
    for preset in presets {
        let reply = site.chat("one", preset.clone());
        assert_eq!(reply.status, 200, "{preset}: {}", reply.text);
        let ollama =
            json!({"messages": [{"role": "user", "content": "say:one"}], "stream": false, "options": preset});
        let reply = site.post("/api/chat", ollama);
        assert_eq!(reply.status, 200, "{preset}: {}", reply.text);
    }
    for (parameters, want) in [
        (json!({"typical_p": 1.5}), "typical_p: expected a number from 0 to 1, got 1.5"),
        (json!({"mirostat": 3}), "mirostat: expected an integer from 0 to 2, got 3"),
        (json!({"mirostat_eta": "x"}), "mirostat_eta: expected a number from 0 to 1, got \"x\""),
        (json!({"dry_base": 0.5}), "dry_base: expected a number from 1 to 1000000, got 0.5"),
        (json!({"dry_penalty_last_n": -2}), "dry_penalty_last_n: expected an integer of -1 or more, got -2"),
        (
            json!({"dry_sequence_breakers": [""]}),
            "dry_sequence_breakers: expected an array of strings that are not empty, got \"\"",
        ),
        (json!({"xtc_probability": -1}), "xtc_probability: expected a number from 0 to 1, got -1"),
    ] {
        assert_eq!(site.chat("one", parameters).message(), want);
    }
    let options = json!({"messages": [], "options": {"mirostat": 7}});
    let error = site.post("/api/chat", options).json()["error"].clone();
    assert_eq!(error, "options.mirostat: expected an integer from 0 to 2, got 7");
}
