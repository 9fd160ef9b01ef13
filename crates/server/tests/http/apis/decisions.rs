//! Decisions: typed questions answered by the probabilities of labels.

use serde_json::{Value, json};

use super::chat::site;
use crate::support::Site;

fn post(site: &Site, path: &str, body: Value) -> Value {
    let reply = site.post(path, body);
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()
}

fn sum<'v>(probabilities: impl Iterator<Item = &'v Value>) -> f64 {
    probabilities.map(|probability| probability.as_f64().unwrap()).sum()
}

fn choice(name: &str, count: usize) -> Value {
    let choices: Vec<Value> = (0..count).map(|at| json!({"value": format!("option {at}")})).collect();
    json!({"type": "choice", "name": name, "instructions": "Which one?", "choices": choices})
}

#[test]
fn questions_are_answered_in_their_order_with_probabilities() {
    let site = site();
    let score = json!({
        "type": "score", "instructions": [{"type": "input_text", "text": "How much?"}],
        "levels": [{"label": "none"}, {"label": "some", "description": "a few"}, {"label": "all"}],
    });
    let flags = json!({
        "type": "choice", "name": "flag", "instructions": "Which one?",
        "choices": [{"value": true, "description": "it is so"}, {"value": "true"}],
    });
    let predicate = json!({"type": "predicate", "instructions": "There was a state."});
    let body = json!({
        "model": "parrot", "input": "Once upon a time, there was a state.",
        "questions": [choice("first", 3), score, flags, predicate], "safety_identifier": "somebody",
    });
    let reply = post(&site, "/v1/decisions", body.clone());
    assert_eq!(reply["model"], "parrot");
    let answers = reply["answers"].as_array().unwrap();
    let kinds: Vec<(&Value, &Value)> =
        answers.iter().map(|answer| (&answer["type"], &answer["name"])).collect();
    let (c, s, p, null) = (json!("choice"), json!("score"), json!("predicate"), Value::Null);
    assert_eq!(kinds, [(&c, &json!("first")), (&s, &null), (&c, &json!("flag")), (&p, &null)]);
    assert!((0.0..=1.0).contains(&answers[3]["probability"].as_f64().unwrap()), "{}", answers[3]);
    for answer in &answers[..3] {
        let each = answer["probabilities"].as_array().unwrap();
        assert!((sum(each.iter().map(|each| &each["probability"])) - 1.0).abs() < 1e-9, "{answer}");
        assert!((0.0..=1.0).contains(&answer["confidence"].as_f64().unwrap()), "{answer}");
    }
    assert_eq!(answers[2]["probabilities"][0]["value"], true);
    assert_eq!(answers[2]["probabilities"][1]["value"], "true");
    let levels = answers[1]["probabilities"].as_array().unwrap();
    assert_eq!((&levels[1]["label"], &levels[1]["value"]), (&json!("some"), &json!(1)));
    let expected: f64 =
        (0..).zip(levels).map(|(at, l)| f64::from(at) * l["probability"].as_f64().unwrap()).sum();
    assert!((answers[1]["score"].as_f64().unwrap() - expected).abs() < 1e-9);
    // all questions but the first found the state in the prefix cache
    let usage = &reply["usage"];
    assert_eq!(usage["output_tokens"], 4);
    assert!(usage["input_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0, "{usage}");
    // a question has the same answer without the others
    for (at, question) in body["questions"].as_array().unwrap().iter().enumerate() {
        let alone = post(&site, "/v1/decisions", json!({"input": body["input"], "questions": [question]}));
        assert_eq!(alone["answers"][0], answers[at]);
    }
    site.wait_until_idle();
}

#[test]
fn conversations_are_inputs_too() {
    let site = site();
    let input = json!([
        {"role": "developer", "content": "You judge."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hello"}, {"type": "input_json", "data": {"a": 1}}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "3"},
    ]);
    let reply = post(&site, "/v1/decisions", json!({"input": input, "questions": [choice("a", 2)]}));
    assert_eq!(reply["answers"].as_array().unwrap().len(), 1);
}

#[test]
fn system_one_has_questions_by_name() {
    let site = site();
    let body = json!({
        "state": {"ticket": "My card was charged twice."},
        "instructions": "Judge the ticket.",
        "questions": {
            "team": {
                "type": "choice", "instructions": "Which team?",
                "criteria": {"billing": "payments and refunds", "shipping": null},
            },
            "tone": {"type": "score", "instructions": {"how": "upset"}, "criteria": ["calm", "annoyed", "furious"]},
            "urgent": {"type": "noul", "instructions": "Is it urgent?", "criteria": {"true": "money is moving"}},
        },
        "chat_template_kwargs": {"enable_thinking": false}, "cache_salt": "x",
    });
    let reply = post(&site, "/v1/systemone", body);
    let (team, tone) = (&reply["answers"]["team"], &reply["answers"]["tone"]);
    assert_eq!(
        (&reply["object"], &team["type"], &tone["type"]),
        (&json!("structured_decision"), &json!("choice"), &json!("score"))
    );
    assert!(["billing", "shipping"].contains(&team["choice"].as_str().unwrap()));
    assert!((sum(team["probabilities"].as_object().unwrap().values()) - 1.0).abs() < 1e-9);
    assert_eq!(tone["legend"], json!({"0": "calm", "1": "annoyed", "2": "furious"}));
    assert!((sum(tone["probabilities"].as_object().unwrap().values()) - 1.0).abs() < 1e-9);
    let urgent = &reply["answers"]["urgent"];
    assert_eq!(urgent["noul"], urgent["probabilities"]["yes"]);
    assert!((sum(urgent["probabilities"].as_object().unwrap().values()) - 1.0).abs() < 1e-9);
    assert_eq!(reply["usage"]["output_tokens"], 3);
    assert!(reply["diagnostics"]["team"]["label_mass"].is_number());
    assert!(reply["diagnostics"]["tone"]["argmax_is_label"].is_boolean());
}

#[test]
fn as_many_questions_and_choices_as_openai_allows_are_answered() {
    let site = site();
    let questions: Vec<Value> = (0..400).map(|at| choice(&format!("q{at}"), 2 + at % 20)).collect();
    let reply = post(&site, "/v1/decisions", json!({"input": "Hm.", "questions": questions}));
    let answers = reply["answers"].as_array().unwrap();
    assert_eq!(answers.len(), 400);
    assert!((0..400).all(|at| answers[at]["name"] == format!("q{at}")));
    site.wait_until_idle();
}

#[test]
fn wrong_questions_are_refused_by_name() {
    let site = site();
    let of = |question: Value| json!({"input": "Hm.", "questions": [question]});
    let many: Vec<Value> = (0..401).map(|_| choice("a", 2)).collect();
    let kind = |kind: &str| json!({"type": kind, "instructions": "?"});
    for (body, param, has) in [
        (json!({"questions": [choice("a", 2)]}), "input", "missing"),
        (json!({"input": "Hm."}), "questions", "missing"),
        (json!({"input": "Hm.", "questions": []}), "questions", "expected 1 to 400 questions, got 0"),
        (json!({"input": "Hm.", "questions": many}), "questions", "got 401"),
        (json!({"input": 5, "questions": [choice("a", 2)]}), "input", "a string or an array"),
        (of(kind("guess")), "questions[0].type", "\"predicate\", \"choice\" or \"score\""),
        (of(json!({"type": "predicate"})), "questions[0].instructions", "missing"),
        (
            of(json!({"type": "predicate", "instructions": " "})),
            "questions[0].instructions",
            "must not be empty",
        ),
        (of(kind("choice")), "questions[0].choices", "missing"),
        (of(choice("a", 1)), "questions[0].choices", "expected 2 to 255 choices, got 1"),
        (of(choice("a", 256)), "questions[0].choices", "got 256"),
        // a vocabulary of a few hundred tokens
        (of(choice("a", 255)), "questions[0]", "labels of one token each"),
        (
            of(json!({"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": "a"}]})),
            "questions[0].choices[1].value",
            "twice",
        ),
        (
            of(json!({"type": "score", "instructions": "?", "levels": [{"label": "a"}, {}]})),
            "questions[0].levels[1].label",
            "missing",
        ),
        (
            of(json!({"type": "predicate", "instructions": "?", "threshold": 1})),
            "questions[0].threshold",
            "unknown",
        ),
    ] {
        let reply = site.post("/v1/decisions", body.clone());
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, &error["param"]),
            (400, &json!(param)),
            "{} {}",
            body["questions"][0],
            reply.text
        );
        assert!(error["message"].as_str().unwrap().contains(has), "{}", reply.text);
    }
    let twice = json!({"state": "", "questions": {"": {"type": "noul", "instructions": "?"}}});
    assert!(site.post("/v1/systemone", twice).message().contains("must not be empty"));
    site.wait_until_idle();
}
