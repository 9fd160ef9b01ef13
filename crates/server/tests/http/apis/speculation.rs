//! Drafts: they change the usage, not the answer.

use serde_json::{Value, json};

use crate::support::{Setup, Site};

const SAID: &str = "the quick brown fox jumps over the lazy dog and the quick brown cat";

/// An answer's text, and its accepted and rejected drafts.
fn answer(site: &Site, more: Value) -> (String, u64, u64) {
    let reply = site.chat(SAID, more).json();
    let details = &reply["usage"]["completion_tokens_details"];
    let count = |name: &str| details[name].as_u64().unwrap();
    let text = reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    (text, count("accepted_prediction_tokens"), count("rejected_prediction_tokens"))
}

#[test]
fn drafts_are_counted_and_change_no_answer() {
    let site = Site::new(Setup { drafts: 4, ..Setup::default() });
    let (text, accepted, _) = answer(&site, json!({}));
    assert_eq!(text, SAID);
    assert!(accepted > 5, "the prompt says what the answer is: {accepted}");
    assert_eq!(answer(&site, json!({"speculative.n_max": 0})), (SAID.into(), 0, 0));
    let plain = Site::new(Setup::default());
    assert_eq!(
        answer(&plain, json!({"speculative.n_max": 4})),
        (SAID.into(), 0, 0),
        "not beyond the model's"
    );
    for site in [site, plain] {
        let drafted = site.get("/metrics").text.contains("vllm:spec_decode_num_accepted_tokens_total");
        assert!(drafted);
        site.wait_until_idle();
    }
}

#[test]
fn a_prediction_is_where_drafts_come_from() {
    let site = Site::new(Setup { drafts: 4, ..Setup::default() });
    let predicted = |content: Value| json!({"prediction": {"type": "content", "content": content}});
    for content in [json!(SAID), json!([{"type": "text", "text": SAID}]), json!("something else"), json!("")]
    {
        assert_eq!(answer(&site, predicted(content)).0, SAID);
    }
    for (prediction, param) in [
        (json!({"type": "text", "content": "a"}), "prediction.type"),
        (json!({"content": "a"}), "prediction.type"),
        (json!({"type": "content"}), "prediction.content"),
        (json!({"type": "content", "content": 7}), "prediction.content"),
        (json!({"type": "content", "content": [{"type": "image_url"}]}), "prediction.content"),
        (json!({"type": "content", "content": "a", "more": 1}), "prediction.more"),
        (json!("a"), "prediction"),
    ] {
        let reply = site.chat(SAID, json!({"prediction": prediction}));
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{}", reply.text);
    }
    let long = site.chat(SAID, predicted(json!("word ".repeat(2000))));
    assert_eq!((long.status, &long.json()["error"]["param"]), (400, &json!("prediction")));
    site.wait_until_idle();
}
