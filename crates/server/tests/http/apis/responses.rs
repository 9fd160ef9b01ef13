//! `/v1/responses`: items, events, the store and refusals. The recorded events are also validated with the
//! types of OpenAI's client (`scripts/clients_test.py`).

use serde_json::{Value, json};
use tern_server::Config;

use crate::support::recorded;
use crate::support::{HERMES, Setup, Site};

fn site() -> Site {
    Site::new(Setup { template: Some(HERMES), ..Setup::default() })
}

fn tools() -> Value {
    json!([
        {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
        {"type": "custom", "name": "patch", "description": "A text"},
        {"type": "web_search"},
    ])
}

/// Reasoning, text, a call of a function and one of a free-form tool.
const EVERYTHING: &str = "say:Hm.</think>Well.<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>\
    <tool_call>{\"name\": \"patch\", \"arguments\": {\"input\": \"+a\"}}</tool_call>";

fn everything() -> Value {
    json!({
        "input": EVERYTHING, "tools": tools(), "chat_template_kwargs": {"enable_thinking": true},
        "include": ["reasoning.encrypted_content"], "store": false,
    })
}

#[test]
fn an_answer_has_an_item_per_kind_of_content() {
    let reply = site().post("/v1/responses", everything()).json();
    let output = reply["output"].as_array().unwrap();
    let kinds: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "custom_tool_call"], "{reply}");
    assert_eq!(output[0]["content"], json!([{"type": "reasoning_text", "text": "Hm."}]));
    assert_eq!(output[0]["encrypted_content"], "SG0u");
    assert_eq!(output[1]["content"][0]["text"], "Well.");
    assert_eq!((&output[2]["name"], &output[2]["arguments"]), (&json!("f"), &json!("{\"x\": 1}")));
    assert_eq!((&output[3]["name"], &output[3]["input"]), (&json!("patch"), &json!("+a")));
    assert_eq!((&reply["status"], &reply["error"]), (&json!("completed"), &json!(null)));
    assert!(reply["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
}

#[test]
fn every_kind_of_event_is_as_recorded() {
    let mut body = everything();
    body["stream"] = true.into();
    let events = recorded::events(&site().post("/v1/responses", body).text);
    recorded::check("responses.jsonl", &events);
}

#[test]
fn the_limit_makes_a_response_incomplete() {
    let site = site();
    let body = json!({"input": "say:endless", "max_output_tokens": 3});
    let reply = site.post("/v1/responses", body.clone()).json();
    assert_eq!(
        (&reply["status"], &reply["output"][0]["status"]),
        (&json!("incomplete"), &json!("incomplete"))
    );
    assert_eq!(reply["incomplete_details"]["reason"], "max_output_tokens");
    let mut body = body;
    body["stream"] = true.into();
    let events = recorded::events(&site.post("/v1/responses", body).text);
    assert_eq!(events.last().unwrap()["type"], "response.incomplete");
    let empty = site.post("/v1/responses", json!({"input": "say:"})).json();
    assert_eq!(empty["output"][0]["content"][0]["text"], "", "an empty answer is a message: {empty}");
}

#[test]
fn stored_responses_are_continued_listed_and_deleted() {
    let site = site();
    let first = site.post("/v1/responses", json!({"input": "say:one", "instructions": "Be kind."})).json();
    let id = first["id"].as_str().unwrap().to_owned();
    let next = json!({"input": "say:two", "previous_response_id": id});
    let second = site.post("/v1/responses", next).json();
    assert_eq!(second["output"][0]["content"][0]["text"], "two", "{second}");
    let path = format!("/v1/responses/{}", second["id"].as_str().unwrap());
    assert_eq!(site.get(&path).json(), second);
    let items = site.get(&format!("{path}/input_items")).json();
    let texts: Vec<&str> =
        items["data"].as_array().unwrap().iter().map(|i| i["content"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["say:two", "one", "say:one"]);
    // an item of a stored response
    let reference = json!([{"type": "item_reference", "id": first["output"][0]["id"]}, {"role": "user", "content": "say:x"}]);
    assert_eq!(site.post("/v1/responses", json!({"input": reference})).status, 200);
    let deleted = site.send("DELETE", &path, &[], b"");
    assert_eq!(deleted.json()["deleted"], true);
    assert_eq!(site.get(&path).status, 404);
    let lost = json!({"input": "a", "previous_response_id": second["id"]});
    let reply = site.post("/v1/responses", lost);
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (404, &json!("previous_response_id")));
    let kept = site.post("/v1/responses", json!({"input": "say:a", "store": false})).json();
    assert_eq!(site.get(&format!("/v1/responses/{}", kept["id"].as_str().unwrap())).status, 404);
}

#[test]
fn stored_responses_belong_to_the_key_that_made_them() {
    let config = Config { api_keys: vec!["first".into(), "second".into()], ..Config::default() };
    let site = Site::new(Setup { config, template: Some(HERMES), ..Setup::default() });
    let send = |key: (&str, &str), method: &str, path: &str, body: Value| {
        site.send(method, path, &[key], body.to_string().as_bytes())
    };
    let (first, second) = (("authorization", "Bearer first"), ("authorization", "Bearer second"));
    let made = send(first, "POST", "/v1/responses", json!({"input": "say:one"})).json();
    let (id, item) = (made["id"].as_str().unwrap(), made["output"][0]["id"].as_str().unwrap());
    let path = format!("/v1/responses/{id}");
    let unknown = send(second, "GET", "/v1/responses/resp_0", json!({}));
    for (method, path) in
        [("GET", path.clone()), ("GET", format!("{path}/input_items")), ("DELETE", path.clone())]
    {
        let reply = send(second, method, &path, json!({}));
        assert_eq!(
            (reply.status, reply.message()),
            (404, unknown.message().replace("resp_0", id)),
            "{method} {path}"
        );
    }
    let refused = |more: Value, status: u16| {
        let reply = send(second, "POST", "/v1/responses", more);
        assert_eq!(reply.status, status, "{}", reply.text);
    };
    refused(json!({"input": "a", "previous_response_id": id}), 404);
    refused(
        json!({"input": [{"type": "item_reference", "id": item}, {"role": "user", "content": "a"}]}),
        400,
    );
    // the same key in another header
    let own = ("x-api-key", "first");
    assert_eq!(send(own, "GET", &path, json!({})).json(), made);
    let next = send(own, "POST", "/v1/responses", json!({"input": "say:two", "previous_response_id": id}));
    assert_eq!(next.json()["output"][0]["content"][0]["text"], "two");
    assert_eq!(send(own, "DELETE", &path, json!({})).json()["deleted"], true);
}

#[test]
fn truncation_drops_the_oldest_messages() {
    let site = site();
    let long = "word ".repeat(700);
    let input = json!([
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": long},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": long},
        {"role": "user", "content": "say:short"},
    ]);
    let refused = site.post("/v1/responses", json!({"input": input}));
    assert_eq!(refused.json()["error"]["code"], "context_length_exceeded");
    let reply = site.post("/v1/responses", json!({"input": input, "truncation": "auto"})).json();
    assert_eq!(reply["output"][0]["content"][0]["text"], "short", "{reply}");
    assert_eq!(reply["truncation"], "auto");
}

#[test]
fn refusals_name_the_parameter() {
    let site = site();
    let with = |name: &str, value: Value| json!({"input": "a", name: value});
    for (body, message) in [
        (json!({}), "missing required parameter: \"input\""),
        (with("max_output_tokens", json!(0)), "max_output_tokens: expected an integer of 1 or more, got 0"),
        (with("background", json!(true)), "background: only false is supported"),
        (
            with("conversation", json!("c")),
            "conversation: conversations are not supported: use previous_response_id",
        ),
        (with("truncation", json!("some")), "truncation: expected \"auto\" or \"disabled\", got \"some\""),
        (with("frobnicate", json!(1)), "unknown parameter: \"frobnicate\""),
        (
            with("tools", json!([{"type": "robot"}])),
            "tools[0].type: expected \"function\", \"custom\" or \"namespace\", got \"robot\"",
        ),
        (
            with("text", json!({"format": {"type": "xml"}})),
            "text.format.type: expected \"text\", \"json_object\" or \"json_schema\", got \"xml\"",
        ),
        (with("n", json!(2)), "n: a response has one answer"),
    ] {
        let reply = site.post("/v1/responses", body);
        assert_eq!((reply.status, reply.message().as_str()), (400, message));
    }
    let count = site.post("/v1/responses/input_tokens", json!({"input": "say:a"})).json();
    let usage = site.post("/v1/responses", json!({"input": "say:a"})).json();
    assert_eq!(count["input_tokens"], usage["usage"]["input_tokens"]);
}
