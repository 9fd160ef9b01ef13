//! Tool calls and reasoning in the styles of several models, over HTTP.

use serde_json::{Value, json};
use tern::engine::Limits;

use crate::apis::chat::{choice, joined};
use crate::support::{CODER, FUNCTIONARY, HARMONY, LIMITS, NESTED, Setup, Site};

fn site(template: &'static str) -> Site {
    let limits = Limits { max_context: 1024, ..LIMITS };
    Site::new(Setup { template: Some(template), limits, ..Setup::default() })
}

fn tool(name: &str) -> Value {
    let properties = json!({"x": {"type": "integer"}, "note": {"type": "string"}});
    let parameters = json!({"type": "object", "properties": properties, "required": ["x"]});
    json!({"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}})
}

#[test]
fn calls_of_elements_have_arguments_of_their_types() {
    let site = site(CODER);
    let call = |x: u32| {
        format!(
            "<tool_call>\n<function=add>\n<parameter=x>\n{x}\n</parameter>\n<parameter=note>\n1\n</parameter>\n\
             </function>\n</tool_call>"
        )
    };
    let text = format!("Well. {}\n{}", call(1), call(2));
    let arguments = |x: u32| format!("{{\"x\": {x}, \"note\": \"1\"}}");
    let more = json!({"tools": [tool("add")], "max_tokens": 200});
    let got = choice(&site.chat(&text, more.clone()));
    assert_eq!(got["finish_reason"], "tool_calls");
    assert_eq!(got["message"]["content"], "Well.");
    let calls = got["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[1]["function"], json!({"name": "add", "arguments": arguments(2)}));

    let mut stream = more;
    stream["stream"] = true.into();
    let named = |x: u32| json!({"name": "add", "arguments": arguments(x)});
    let both = joined(&site.chat(&text, stream.clone()), 0);
    assert_eq!((&both["tool_calls"], &both["finish"]), (&json!([named(1), named(2)]), &json!("tool_calls")));
    stream["parallel_tool_calls"] = false.into();
    let one = joined(&site.chat(&text, stream.clone()), 0);
    assert_eq!((&one["tool_calls"], &one["finish"]), (&json!([named(1)]), &json!("tool_calls")));
    // cut off by the limit
    stream["max_tokens"] = 40.into();
    let cut = joined(&site.chat(&text, stream), 0);
    assert_eq!(cut["finish"], "length");
    assert!(!cut.to_string().contains("<"), "{cut}");
    site.wait_until_idle();
}

#[test]
fn calls_of_elements_can_be_forced() {
    let site = site(CODER);
    let more = json!({"tools": [tool("add"), tool("sub")], "tool_choice": "required", "max_tokens": 200});
    let text = "<tool_call>\n<function=sub>\n<parameter=x>\n12\n</parameter>\n</function>\n</tool_call>";
    let got = choice(&site.chat(text, more));
    assert_eq!(
        got["message"]["tool_calls"][0]["function"],
        json!({"name": "sub", "arguments": "{\"x\": 12}"})
    );
    assert_eq!((&got["message"]["content"], &got["finish_reason"]), (&Value::Null, &json!("tool_calls")));
}

#[test]
fn messages_of_harmony_are_separated() {
    let site = site(HARMONY);
    let think = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    let more = json!({"tools": [tool("add")], "max_tokens": 200});
    let call =
        format!("{think}<|channel|>commentary to=functions.add <|constrain|>json<|message|>{{\"x\": 1}}");
    let got = choice(&site.chat(&call, more.clone()));
    assert_eq!(got["message"]["reasoning_content"], "Hm.", "{got}");
    assert_eq!(
        got["message"]["tool_calls"][0]["function"],
        json!({"name": "add", "arguments": "{\"x\": 1}"})
    );
    assert_eq!((&got["message"]["content"], &got["finish_reason"]), (&Value::Null, &json!("tool_calls")));
    let got = choice(&site.chat(&format!("{think}<|channel|>final<|message|>Hi"), more));
    assert_eq!(
        (&got["message"]["reasoning_content"], &got["message"]["content"]),
        (&json!("Hm."), &json!("Hi"))
    );
}

/// The template reads `thinking`, writes one call per message, and rejects reasoning beside content.
#[test]
fn earlier_calls_of_harmony_are_rendered() {
    let site = site(HARMONY);
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": id, "arguments": "{}"}});
    let prompt = |content: &str| {
        let messages = json!([
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": content, "reasoning_content": "Hm.", "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
        ]);
        let count = site.post("/tokenize", json!({"messages": messages, "tools": [tool("a")]})).json();
        let text = site.post("/detokenize", json!({"tokens": count["tokens"]})).json()["prompt"].clone();
        text.as_str().unwrap_or_default().split_once("<|start|>user").unwrap_or_default().1.to_string()
    };
    let written = |name: &str| {
        format!("<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>{{}}<|call|>")
    };
    let result = |text: &str| format!("<|start|>tool<|message|>{text}<|end|>");
    let rest =
        [written("a"), result("1"), written("b"), result("2"), "<|start|>assistant<answer>".into()].concat();
    let thinking = "<|message|>u<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>";
    assert_eq!(prompt(""), format!("{thinking}{rest}"));
    assert_eq!(prompt("I look."), format!("<|message|>u<|end|>{rest}"));
}

#[test]
fn messages_of_functionary_have_recipients() {
    let site = site(FUNCTIONARY);
    let more = json!({"tools": [tool("add"), tool("sub")], "max_tokens": 200});
    let said = "all\nI add.>>>add\n{\"x\": 1}>>>sub\n{\"x\": 2}";
    let got = choice(&site.chat(said, more.clone()));
    let call = |name: &str, x: u32| json!({"name": name, "arguments": format!("{{\"x\": {x}}}")});
    let calls = got["message"]["tool_calls"].as_array().unwrap();
    assert_eq!((&calls[0]["function"], &calls[1]["function"]), (&call("add", 1), &call("sub", 2)));
    assert_eq!((&got["message"]["content"], &got["finish_reason"]), (&json!("I add."), &json!("tool_calls")));
    let mut stream = more.clone();
    stream["stream"] = true.into();
    let streamed = joined(&site.chat(said, stream), 0);
    assert_eq!(streamed["tool_calls"], json!([call("add", 1), call("sub", 2)]));
    // without tools the header of the answer is no content either
    assert_eq!(choice(&site.chat("all\nHello.", json!({})))["message"]["content"], "Hello.");
    for (many, want) in [(true, 2), (false, 1)] {
        let mut forced = more.clone();
        forced["tool_choice"] = "required".into();
        forced["parallel_tool_calls"] = many.into();
        let got = choice(&site.chat("add\n{\"x\": 1}>>>sub\n{\"x\": 2}", forced));
        assert_eq!(got["message"]["tool_calls"].as_array().unwrap().len(), want, "{got}");
    }
}

#[test]
fn nested_elements_become_objects() {
    let site = site(NESTED);
    let point = json!({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]});
    let parameters = json!({"type": "object", "required": ["points"], "properties": {"points": {"type": "array", "items": point}}});
    let tool = json!({"type": "function", "function": {"name": "draw", "parameters": parameters}});
    let said =
        "~<tool_call>\n~<invoke name=\"draw\">~<points>~<item>~<x>1~</x>~</item>~<item>~<x>2~</x>~</item>\
                ~</points>~</invoke>\n~</tool_call>"
            .replace('~', "]<]minimax[>[");
    for choice_of_tool in ["auto", "required"] {
        let more = json!({"tools": [tool], "tool_choice": choice_of_tool, "max_tokens": 400});
        let got = choice(&site.chat(&said, more));
        let call = &got["message"]["tool_calls"][0]["function"];
        assert_eq!(
            call,
            &json!({"name": "draw", "arguments": "{\"points\": [{\"x\": 1}, {\"x\": 2}]}"}),
            "{got}"
        );
    }
}
