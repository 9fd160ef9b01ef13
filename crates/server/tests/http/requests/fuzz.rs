//! Random requests: every response is a success or a well-formed error.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{HERMES, Setup, Site};

const NAMES: &[&str] = &[
    "best_of",
    "chat_template_kwargs",
    "echo",
    "encoding_format",
    "frequency_penalty",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "ignore_eos",
    "input",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "min_p",
    "min_tokens",
    "continue_final_message",
    "dry_multiplier",
    "dry_sequence_breakers",
    "mirostat",
    "mirostat_tau",
    "prompt_logprobs",
    "top_n_sigma",
    "typical_p",
    "xtc_probability",
    "model",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "priority",
    "prompt",
    "reasoning_effort",
    "repetition_penalty",
    "response_format",
    "seed",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "structured_outputs",
    "suffix",
    "temperature",
    "tokens",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "user",
];

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3..20_i64).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-2.0..3.0_f64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec![
            "",
            "a",
            "auto",
            "required",
            "json_object",
            "user",
            "text",
            "say:hello",
            "é日🙂\u{0}"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        let keys = vec![
            "role",
            "content",
            "type",
            "text",
            "function",
            "name",
            "arguments",
            "tool_calls",
            "json",
            "1",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(keys), inner), 0..4)
                .prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

#[test]
fn no_request_breaks_the_server() {
    let site = Site::new(Setup { template: Some(HERMES), ..Setup::default() });
    let paths = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize"];
    let mut runner =
        prop::test_runner::TestRunner::new(ProptestConfig { cases: 400, ..ProptestConfig::default() });
    let more = prop::collection::vec((prop::sample::select(NAMES), value()), 0..4);
    let outcome = runner.run(&(prop::sample::select(paths.to_vec()), more), |(path, more)| {
        let mut body = match path {
            "/v1/chat/completions" => {
                json!({"messages": [{"role": "user", "content": "say:ok"}], "max_tokens": 4})
            }
            "/v1/completions" => json!({"prompt": "say:ok<answer>", "max_tokens": 4}),
            "/v1/embeddings" => json!({"input": "a"}),
            _ => json!({}),
        };
        for (name, value) in more {
            body[name] = value;
        }
        let reply = site.post(path, body.clone());
        match reply.status {
            200 => {}
            400 | 404 => prop_assert!(reply.json()["error"]["message"].is_string(), "{}", reply.text),
            other => prop_assert!(false, "{other} {body}: {}", reply.text),
        }
        Ok(())
    });
    outcome.unwrap();
    site.wait_until_idle();
    assert_eq!(site.get("/health").status, 200);
}
