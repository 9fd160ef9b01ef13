//! Chat completions: whole and streamed, with reasoning and constraints.

use serde_json::{Value, json};

use crate::support::{HERMES, Reply, Setup, Site};

pub(crate) fn site() -> Site {
    Site::new(Setup::default())
}

pub(crate) fn hermes() -> Site {
    Site::new(Setup { template: Some(HERMES), ..Setup::default() })
}

/// The first choice of an answer.
pub(crate) fn choice(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()["choices"][0].clone()
}

/// All deltas of one choice, joined as a client joins them.
pub(crate) fn joined(reply: &Reply, index: usize) -> Value {
    let mut message = json!({"content": "", "reasoning_content": "", "tool_calls": [], "finish": null});
    for event in reply.events() {
        for choice in event["choices"].as_array().unwrap() {
            if choice["index"] != index {
                continue;
            }
            let delta = &choice["delta"];
            for name in ["content", "reasoning_content"] {
                let all = message[name].as_str().unwrap().to_owned();
                message[name] = (all + delta[name].as_str().unwrap_or("")).into();
            }
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                let calls = message["tool_calls"].as_array_mut().unwrap();
                let at = call["index"].as_u64().unwrap() as usize;
                if at == calls.len() {
                    assert_eq!(call["id"].as_str().unwrap().len(), 9);
                    calls.push(json!({"name": call["function"]["name"], "arguments": ""}));
                }
                let all = calls[at]["arguments"].as_str().unwrap().to_owned();
                calls[at]["arguments"] = (all + call["function"]["arguments"].as_str().unwrap()).into();
            }
            if !choice["finish_reason"].is_null() {
                message["finish"] = choice["finish_reason"].clone();
            }
        }
    }
    message
}

#[test]
fn a_reply_has_text_finish_reason_and_usage() {
    let site = site();
    let reply = site.chat("Once upon a time é日", json!({"model": "org/parrot"}));
    let body = reply.json();
    let generated = site.tokenizer.encode("Once upon a time é日", false, true).len();
    let prompt = site.tokenizer.encode("<user>say:Once upon a time é日<answer>", true, true).len();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "org/parrot");
    assert_eq!(
        body["choices"],
        json!([{
            "index": 0,
            "message": {"role": "assistant", "content": "Once upon a time é日", "refusal": null},
            "logprobs": null,
            "finish_reason": "stop",
        }])
    );
    assert_eq!(
        body["usage"],
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details":
                {"reasoning_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
        })
    );
    // the second time the prompt is in the prefix cache
    let again = site.chat("Once upon a time é日", json!({})).json();
    assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0);
    site.wait_until_idle();
}

#[test]
fn a_stream_has_the_same_text_in_chunks() {
    let site = site();
    let reply =
        site.chat("Once upon é日🙂", json!({"stream": true, "stream_options": {"include_usage": true}}));
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = reply.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert_eq!(events[0]["usage"], Value::Null);
    let (last, rest) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert!(last["usage"]["completion_tokens"].as_u64().unwrap() > 3);
    let end = rest.last().unwrap();
    assert_eq!(
        end["choices"][0],
        json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop"})
    );
    let id = &events[0]["id"];
    assert!(events.iter().all(|event| &event["id"] == id));
    assert_eq!(joined(&reply, 0)["content"], "Once upon é日🙂");
}

#[test]
fn a_stream_has_usage_on_request_only() {
    let site = site();
    let events = site.chat("abc", json!({"stream": true})).events();
    assert!(events.iter().all(|event| event.get("usage").is_none()));
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = site.chat("abc", json!({"stream": true, "stream_options": options})).events();
    assert!(events.iter().all(|event| event["usage"]["prompt_tokens"].is_u64()));
}

#[test]
fn length_stop_strings_and_end_tokens_end_a_text() {
    let site = site();
    let cases = [
        (json!({"max_tokens": 3}), "length", None),
        (json!({"max_completion_tokens": 3}), "length", None),
        (json!({"stop": " upon"}), "stop", Some("Once")),
        (json!({"stop": ["time", "upon a"]}), "stop", Some("Once ")),
        (json!({"ignore_eos": true, "max_tokens": 40}), "length", None),
        (json!({"min_tokens": 40, "max_tokens": 40}), "length", None),
    ];
    for (more, reason, text) in cases {
        for stream in [false, true] {
            let mut more = more.clone();
            more["stream"] = stream.into();
            let reply = site.chat("Once upon a time", more.clone());
            let (content, finish) = match stream {
                true => (joined(&reply, 0)["content"].clone(), joined(&reply, 0)["finish"].clone()),
                false => {
                    (choice(&reply)["message"]["content"].clone(), choice(&reply)["finish_reason"].clone())
                }
            };
            assert_eq!(finish, reason, "{more}");
            if let Some(text) = text {
                assert_eq!(content, text, "{more}");
            }
        }
    }
    let stop = site.tokenizer.encode(" upon", false, true);
    assert_eq!(stop.len(), 1);
    let reply = site.chat("Once upon a time", json!({"stop_token_ids": stop}));
    assert_eq!(choice(&reply)["message"]["content"], "Once");
    site.wait_until_idle();
}

#[test]
fn several_choices_are_indexed_and_share_the_prompt() {
    let site = site();
    let body = site.chat("one two", json!({"n": 5})).json();
    let choices = body["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 5);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(choice["message"]["content"], "one two");
    }
    let one = site.chat("one two", json!({})).json();
    assert_eq!(body["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
    let generated = |body: &Value| body["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(generated(&body), 5 * generated(&one));
    let stream = site.chat("one two", json!({"n": 12, "stream": true})); // more than may run at once
    for index in 0..12 {
        assert_eq!(joined(&stream, index)["content"], "one two");
        assert_eq!(joined(&stream, index)["finish"], "stop");
    }
    let stats = site.handle.stats();
    assert!(stats.cached_tokens > 0, "{stats:?}");
}

#[test]
fn logprobs_have_bytes_and_alternatives() {
    let site = site();
    let want = |content: &Value| {
        let tokens: Vec<u32> = site.tokenizer.encode("Once é", false, true);
        assert_eq!(content.as_array().unwrap().len(), tokens.len());
        for (entry, id) in content.as_array().unwrap().iter().zip(tokens) {
            assert_eq!(entry["bytes"], json!(site.tokenizer.token_bytes(id, true)));
            assert_eq!(entry["logprob"], 0.0);
            assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 3);
            assert_eq!(entry["top_logprobs"][1]["logprob"], -1.0);
        }
    };
    let more = json!({"logprobs": true, "top_logprobs": 3});
    want(&choice(&site.chat("Once é", more))["logprobs"]["content"]);
    let reply = site.chat("Once é", json!({"logprobs": true, "top_logprobs": 3, "stream": true}));
    let pieces = reply.events().into_iter();
    let pieces = pieces.filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array().cloned());
    want(&pieces.flatten().collect());
    let none = site.chat("Once", json!({"logprobs": true}));
    assert_eq!(choice(&none)["logprobs"]["content"][0]["top_logprobs"], json!([]));
}

#[test]
fn logprobs_may_name_tokens_by_their_ids() {
    let site = site();
    let ids = site.tokenizer.encode("Once é", false, true);
    let names: Vec<String> = ids.iter().map(|id| format!("token_id:{id}")).collect();
    let more = json!({"logprobs": true, "top_logprobs": 2, "return_tokens_as_token_ids": true});
    let content = choice(&site.chat("Once é", more))["logprobs"]["content"].clone();
    for ((entry, name), id) in content.as_array().unwrap().iter().zip(&names).zip(&ids) {
        assert_eq!((&entry["token"], &entry["top_logprobs"][0]["token"]), (&json!(name), &json!(name)));
        assert!(entry["top_logprobs"][1]["token"].as_str().unwrap().starts_with("token_id:"));
        assert_eq!(entry["bytes"], json!(site.tokenizer.token_bytes(*id, true)));
    }
    // in a completion the texts of the echoed prompt, too, and the offsets stay those of the text
    let completion = |as_ids: bool| {
        let body = json!({
            "prompt": "One é<answer>", "echo": true, "logprobs": 1, "max_tokens": 2,
            "return_tokens_as_token_ids": as_ids,
        });
        site.post("/v1/completions", body).json()["choices"][0]["logprobs"].clone()
    };
    let (texts, ids) = (completion(false), completion(true));
    assert_eq!(texts["text_offset"], ids["text_offset"]);
    let tokens = ids["tokens"].as_array().unwrap();
    assert!(tokens.iter().all(|token| token.as_str().unwrap().starts_with("token_id:")), "{ids}");
    let best =
        |at: usize| ids["top_logprobs"][at].as_object().unwrap().contains_key(tokens[at].as_str().unwrap());
    assert!(ids["top_logprobs"][0].is_null() && best(1));
}

#[test]
fn token_ids_are_returned_on_request() {
    let site = Site::new(Setup::default());
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let mut body = json!({"return_token_ids": true, "max_tokens": 7, "ignore_eos": true});
        match path {
            "/v1/completions" => body["prompt"] = "Once".into(),
            _ => body["messages"] = json!([{"role": "user", "content": "Once"}]),
        }
        let whole = site.post(path, body.clone()).json();
        let choice = &whole["choices"][0];
        let prompt =
            [&whole["prompt_token_ids"], &choice["prompt_token_ids"]].map(|ids| ids.as_array().map(Vec::len));
        assert_eq!(
            prompt.into_iter().flatten().sum::<usize>() as u64,
            whole["usage"]["prompt_tokens"].as_u64().unwrap()
        );
        assert_eq!(choice["token_ids"].as_array().unwrap().len(), 7, "{whole}");
        body["stream"] = true.into();
        let pieces = site.post(path, body).events();
        let streamed =
            pieces.iter().filter_map(|piece| piece["choices"][0]["token_ids"].as_array()).flatten();
        assert_eq!(streamed.cloned().collect::<Vec<_>>(), *choice["token_ids"].as_array().unwrap());
    }
}

#[test]
fn reasoning_is_separated() {
    let site = hermes();
    let more = json!({"chat_template_kwargs": {"enable_thinking": true}});
    let reply = site.chat("Hm, <b>.</think>\n\nYes.", more.clone());
    let message = choice(&reply)["message"].clone();
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("Hm, <b>."), &json!("Yes.")));
    for same in
        [json!({"enable_thinking": true}), json!({"thinking": {"type": "enabled"}}), json!({"think": "high"})]
    {
        assert_eq!(
            choice(&site.chat("Hm, <b>.</think>\n\nYes.", same.clone()))["message"],
            message,
            "{same}"
        );
    }
    assert!(reply.json()["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 2);
    let mut more = more;
    more["stream"] = true.into();
    let stream = joined(&site.chat("Hm, <b>.</think>\n\nYes.", more), 0);
    assert_eq!((&stream["reasoning_content"], &stream["content"]), (&json!("Hm, <b>."), &json!("Yes.")));
}

#[test]
fn a_budget_ends_reasoning_and_the_answer_follows() {
    let site = hermes();
    let said = "Hm, what is it? I do not know it yet, but I shall think of it. Yes, that is it.";
    let answer = |budget: Value| {
        let mut more = json!({"enable_thinking": true});
        more.as_object_mut().unwrap().extend(budget.as_object().unwrap().clone());
        let reply = site.chat(said, more);
        let message = choice(&reply)["message"].clone();
        let reasoning = reply.json()["usage"]["completion_tokens_details"]["reasoning_tokens"].clone();
        (message["reasoning_content"].clone(), message["content"].clone(), reasoning)
    };
    let unlimited = answer(json!({"max_thinking_tokens": -1}));
    assert_eq!(unlimited.0, said);
    for name in ["max_thinking_tokens", "thinking_budget", "thinking_token_budget", "thinking_budget_tokens"]
    {
        let (reasoning, content, _) = answer(json!({(name): 3}));
        let whole = [&reasoning, &content].map(|text| text.as_str().unwrap().to_owned());
        assert!(!whole[0].is_empty() && !whole[1].is_empty(), "{name}: {whole:?}");
        assert!(whole[0].len() < said.len(), "{name}: {whole:?}");
    }
    let few = answer(json!({"thinking": {"type": "enabled", "budget_tokens": 3}}));
    assert_eq!(few, answer(json!({"reasoning": {"max_tokens": 3}})));
    let none = answer(json!({"max_thinking_tokens": 0}));
    assert!(none.0.is_null() || none.0 == "", "{none:?}");
    assert_ne!(none.1, "");
}

#[test]
fn constraints_apply_after_reasoning() {
    let site = hermes();
    let schema = json!({
        "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false,
    });
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": true}});
    let content = |reply: Reply| choice(&reply)["message"]["content"].as_str().unwrap().to_owned();
    assert_eq!(content(site.chat("{\"a\": 5}", json!({"response_format": format}))), "{\"a\": 5}");
    // the model's unconstrained text does not match the schema
    let forced = content(site.chat("Hello you", json!({"response_format": format, "max_tokens": 60})));
    assert!(forced.starts_with('{'), "{forced}");

    let thinking = json!({"response_format": format, "chat_template_kwargs": {"enable_thinking": true}});
    let message = choice(&site.chat("Not JSON.</think>{\"a\": 5}", thinking))["message"].clone();
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("Not JSON."), &json!("{\"a\": 5}"))
    );

    for (more, want) in [
        (json!({"structured_outputs": {"choice": ["yes", "no"]}}), "no"),
        (json!({"structured_outputs": {"regex": "n[aeiou]"}}), "no"),
        (json!({"guided_regex": "n[aeiou]"}), "no"),
        (json!({"guided_choice": ["maybe", "no"]}), "no"),
        (json!({"guided_grammar": "start: \"n\" \"o\""}), "no"),
        (json!({"grammar": "root ::= \"n\" o\no ::= \"o\""}), "no"),
        (json!({"structured_outputs": {"grammar": "root ::= \"no\""}}), "no"),
        (json!({"guided_json": "{\"const\": \"no\"}"}), "\"no\""),
    ] {
        assert_eq!(content(site.chat(want, more.clone())), want, "{more}");
    }
    let object = content(site.chat("{\"b\": [1]}", json!({"response_format": {"type": "json_object"}})));
    assert_eq!(object, "{\"b\": [1]}");
}
