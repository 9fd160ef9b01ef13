//! Tool calls in chat completions.

use serde_json::{Value, json};

use crate::apis::chat::{choice, hermes, joined, site};
use crate::support::{HERMES, Setup, Site};

fn tool(name: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]});
    json!({"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}})
}

#[test]
fn tool_calls_are_separated_from_the_text() {
    let site = hermes();
    let call =
        |x: u32| format!("<tool_call>\n{{\"name\": \"add\", \"arguments\": {{\"x\": {x}}}}}\n</tool_call>");
    let text = format!("Well. {}{}", call(1), call(2));
    let tools = json!({"tools": [tool("add")]});
    let got = choice(&site.chat(&text, tools.clone()));
    assert_eq!(got["finish_reason"], "tool_calls");
    assert_eq!(got["message"]["content"], "Well.");
    let calls = got["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[1]["type"], "function");
    assert_eq!(calls[1]["function"], json!({"name": "add", "arguments": "{\"x\": 2}"}));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    assert_eq!(choice(&site.chat(&call(1), tools.clone()))["message"]["content"], Value::Null);

    let mut more = tools.clone();
    more["stream"] = true.into();
    let stream = joined(&site.chat(&text, more.clone()), 0);
    let call = |x: u32| json!({"name": "add", "arguments": format!("{{\"x\": {x}}}")});
    assert_eq!(
        stream,
        json!({"content": "Well.", "reasoning_content": "", "tool_calls": [call(1), call(2)], "finish": "tool_calls"})
    );
    more["parallel_tool_calls"] = false.into();
    let stream = joined(&site.chat(&text, more), 0);
    assert_eq!((&stream["tool_calls"], &stream["finish"]), (&json!([call(1)]), &json!("tool_calls")));

    // without tools it is plain text
    let plain = choice(&site.chat(&text, json!({})));
    assert_eq!(plain["message"]["content"], text);
    assert_eq!(plain["finish_reason"], "stop");
    site.wait_until_idle();
}

#[test]
fn a_conversation_with_calls_and_results_is_rendered() {
    let site = hermes();
    let call = |arguments: Value| {
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "abc", "type": "function", "function": {"name": "add", "arguments": arguments}},
        ]})
    };
    let messages = json!([
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        call(json!("{\"x\": 1}")),
        {"role": "tool", "tool_call_id": "abc", "content": "2"},
    ]);
    let count = site.post("/tokenize", json!({"messages": messages})).json();
    let text = site.post("/detokenize", json!({"tokens": count["tokens"]})).json()["prompt"].clone();
    assert_eq!(
        text,
        "<|endoftext|><system>d<user>u<assistant><tool_call>{\"name\": \"add\", \"arguments\": {\"x\": 1}}</tool_call>\
         <tool>2<answer>"
    );
}

#[test]
fn earlier_calls_become_text_if_the_template_has_no_tools() {
    let site = Site::new(Setup::default());
    let messages = json!([
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "abc", "type": "function", "function": {"name": "add", "arguments": "{\"x\": 1}"}},
        ]},
        {"role": "tool", "tool_call_id": "abc", "content": "2"},
    ]);
    let count = site.post("/tokenize", json!({"messages": messages})).json();
    let text = site.post("/detokenize", json!({"tokens": count["tokens"]})).json()["prompt"].to_string();
    assert!(text.contains("add") && text.contains("The function answered: 2"), "{text}");
}

#[test]
fn a_call_can_be_forced() {
    let site = hermes();
    for more in [
        json!({"tools": [tool("add"), tool("sub")], "tool_choice": "required"}),
        json!({"tools": [tool("add"), tool("sub")], "tool_choice": {"type": "function", "function": {"name": "sub"}}}),
    ] {
        let mut more = more.clone();
        more["max_tokens"] = 150.into();
        let text = "<tool_call>\n{\"name\": \"sub\", \"arguments\": {\"x\": 12}}\n</tool_call>";
        let got = choice(&site.chat(text, more.clone()));
        let call = &got["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], "sub", "{got}");
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments, json!({"x": 12}));
        assert_eq!(got["finish_reason"], "tool_calls");
    }
}

#[test]
fn a_forced_call_may_have_a_format_of_texts_beside_it() {
    let site = hermes();
    let body = |name: &str, value: Value| {
        let tools = json!([tool("add")]);
        json!({"tools": tools, "tool_choice": "required", "max_tokens": 150, name: value})
    };
    let text = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 12}}\n</tool_call>";
    let schema = json!({"type": "object", "required": ["y"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let got = choice(&site.chat(text, body("response_format", format)));
    assert_eq!(got["message"]["tool_calls"][0]["function"]["name"], "add", "{got}");
    // as the library `instructor` sends it
    let response = json!({
        "input": format!("say:{text}"), "max_output_tokens": 150,
        "tool_choice": {"type": "function", "name": "add"},
        "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}}],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}},
    });
    let got = site.post("/v1/responses", response).json();
    assert_eq!(got["output"][0]["type"], "function_call", "{got}");
    let refused = site.chat(text, body("guided_regex", json!("a")));
    assert_eq!(
        (refused.status, refused.message()),
        (400, "tool_choice: cannot be combined with guided_regex".into())
    );
}

#[test]
fn only_allowed_tools_are_offered_and_called() {
    let site = hermes();
    let choice_of = |mode: &str, names: &[&str]| {
        let tools: Vec<Value> =
            names.iter().map(|name| json!({"type": "function", "function": {"name": name}})).collect();
        json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
    };
    let body = |choice: Value| json!({"tools": [tool("add"), tool("sub")], "tool_choice": choice, "max_tokens": 150});
    let call = |name: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"x\": 12}}}}\n</tool_call>")
    };
    // another tool than the one that the model would call is forced
    let got = choice(&site.chat(&call("sub"), body(choice_of("required", &["add"]))));
    assert_eq!(got["message"]["tool_calls"][0]["function"]["name"], "add", "{got}");
    let got = choice(&site.chat("Well.", body(choice_of("auto", &["add"]))));
    assert_eq!((&got["message"]["content"], &got["finish_reason"]), (&json!("Well."), &json!("stop")));
    let mut shown = body(choice_of("auto", &["sub"]));
    shown["messages"] = json!([{"role": "user", "content": "Hi"}]);
    shown.as_object_mut().unwrap().remove("max_tokens");
    let tokens = site.post("/tokenize", shown).json()["tokens"].clone();
    let prompt = site.post("/detokenize", json!({"tokens": tokens})).text;
    assert!(prompt.contains("sub") && !prompt.contains("add"), "{prompt}");
    let unknown = site.chat("x", body(choice_of("auto", &["mul"])));
    assert_eq!((unknown.status, unknown.message()), (400, "tool_choice: unknown tool \"mul\"".into()));
}

#[test]
fn tools_become_text_if_the_template_has_none() {
    let site = site();
    let more = json!({"tools": [tool("add")], "tool_choice": "required", "max_tokens": 200});
    let got = choice(&site.chat("[{\"name\": \"add\", \"arguments\": {\"x\": 7}}]", more));
    assert_eq!(
        got["message"]["tool_calls"][0]["function"],
        json!({"name": "add", "arguments": "{\"x\": 7}"})
    );
    let more = json!({"tools": [tool("add")], "messages": [
        {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    ]});
    let tokens = site.post("/tokenize", more).json()["tokens"].clone();
    let text = site.post("/detokenize", json!({"tokens": tokens})).json()["prompt"].to_string();
    assert!(
        text.contains("<system>s\\n\\nYou can call") && text.contains("\\\"name\\\":\\\"add\\\""),
        "{text}"
    );
}

#[test]
fn an_answer_that_is_nothing_but_calls_is_a_call_without_markup() {
    let site = Site::new(Setup { template: Some(HERMES), ..Setup::default() });
    let tools = json!([{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}]);
    let choice = |say: &str, more: Value| {
        let mut body = json!({"tools": tools});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        site.chat(say, body).json()["choices"][0].clone()
    };
    let two =
        "```json\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n{\"name\": \"g\", \"arguments\": {}}\n```";
    let called = choice(two, json!({}));
    assert_eq!(called["finish_reason"], "tool_calls", "{called}");
    assert_eq!(
        (&called["message"]["content"], &called["message"]["tool_calls"][1]["function"]["name"]),
        (&Value::Null, &json!("g"))
    );
    assert_eq!(called["message"]["tool_calls"][0]["function"]["arguments"], "{\"x\":1}");
    let one = choice(two, json!({"parallel_tool_calls": false}));
    assert_eq!(one["message"]["tool_calls"].as_array().unwrap().len(), 1);
    // after reasoning, too
    let reasoned =
        choice(&format!("Hm.</think>{two}"), json!({"chat_template_kwargs": {"enable_thinking": true}}));
    assert_eq!(
        (&reasoned["message"]["reasoning_content"], &reasoned["finish_reason"]),
        (&json!("Hm."), &json!("tool_calls"))
    );
    for text in
        ["{\"name\": \"h\", \"arguments\": {}}", "{\"name\": \"f\", \"arguments\": {}} is a call.", "[1, 2]"]
    {
        let said = choice(text, json!({}));
        assert_eq!((&said["message"]["content"], &said["finish_reason"]), (&json!(text), &json!("stop")));
    }
    let cut = choice(two, json!({"max_tokens": 12}));
    assert_eq!((&cut["finish_reason"], &cut["message"]["tool_calls"]), (&json!("length"), &Value::Null));
    // nothing is held back that cannot become a call
    let body = json!({"stream": true, "tools": tools, "messages": [{"role": "user", "content": "say:{\"city\": \"Oslo\"}"}]});
    let events = site.post("/v1/chat/completions", body).events();
    assert!(events.iter().filter(|event| event["choices"][0]["delta"]["content"].is_string()).count() > 4);
}
