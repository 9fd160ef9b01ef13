//! `/api`: lines, calls, options, and errors in Ollama's shape.

use serde_json::{Value, json};

use crate::support::{HERMES, Setup, Site};

fn site() -> Site {
    Site::new(Setup { template: Some(HERMES), ..Setup::default() })
}

fn chat(say: &str, more: Value) -> Value {
    let mut body =
        json!({"model": "parrot", "messages": [{"role": "user", "content": format!("say:{say}")}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn answers_are_streamed_as_lines_unless_they_are_not() {
    let site = site();
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let say = "Hm.</think>Well.<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>";
    let body = chat(say, json!({"think": true, "tools": tools}));
    let reply = site.post("/api/chat", body.clone());
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"));
    let lines = lines(&reply.text);
    let sum = |name: &str| lines.iter().filter_map(|line| line["message"][name].as_str()).collect::<String>();
    assert_eq!((sum("thinking"), sum("content")), ("Hm.".into(), "Well.".into()));
    let calls: Vec<&Value> =
        lines.iter().flat_map(|line| line["message"]["tool_calls"].as_array()).flatten().collect();
    assert_eq!(calls, [&json!({"function": {"name": "f", "arguments": {"x": 1}}})]);
    let last = lines.last().unwrap();
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
    assert!(last["eval_count"].as_u64().unwrap() > 0 && last["total_duration"].as_u64().unwrap() > 0);
    let mut body = body;
    body["stream"] = false.into();
    let whole = site.post("/api/chat", body).json();
    assert_eq!(
        (&whole["message"]["thinking"], &whole["message"]["content"]),
        (&json!("Hm."), &json!("Well."))
    );
    assert_eq!(whole["message"]["tool_calls"][0]["function"]["name"], "f");
}

#[test]
fn options_are_sampling_parameters() {
    let site = site();
    let ends = |options: Value| {
        let reply =
            site.post("/api/chat", chat("endless", json!({"stream": false, "options": options}))).json();
        (reply["done_reason"].clone(), reply["eval_count"].clone())
    };
    assert_eq!(
        ends(json!({"num_predict": 3, "num_ctx": 4096, "num_thread": 8})),
        (json!("length"), json!(3))
    );
    for (options, message) in [
        (
            json!({"num_predict": "many"}),
            "options.num_predict: expected an integer of 1 or more, got \"many\"",
        ),
        (json!({"temperature": -1}), "options.temperature: expected a number from 0 to 2, got -1"),
        (json!({"mood": 1}), "unknown parameter: \"options.mood\""),
        (json!({"tfs_z": 0.5}), "options.tfs_z: tail-free sampling is not supported"),
    ] {
        let reply = site.post("/api/chat", chat("a", json!({"options": options})));
        assert_eq!((reply.status, reply.json()), (400, json!({"error": message})));
    }
}

#[test]
fn texts_are_generated_with_and_without_the_template() {
    let site = site();
    let generate = |body: Value| {
        let mut body = body;
        body["stream"] = false.into();
        site.post("/api/generate", body).json()
    };
    assert_eq!(
        generate(json!({"model": "parrot:latest", "prompt": "say:hello", "system": "Be kind."}))["response"],
        "hello"
    );
    assert_eq!(
        generate(json!({"name": "parrot", "prompt": "say:raw<answer>", "raw": true}))["response"],
        "raw"
    );
    assert_eq!(generate(json!({"model": "parrot"}))["done_reason"], "load");
    assert_eq!(generate(json!({"model": "parrot", "keep_alive": 0}))["done_reason"], "unload");
    let error = generate(json!({"prompt": "a", "suffix": "b"}));
    assert_eq!(error["error"], "suffix: this model has no fill-in-the-middle tokens");
    let error = generate(json!({"prompt": "a", "keep_alive": "soon"}));
    assert_eq!(error["error"], "keep_alive: expected seconds, or a duration such as \"5m\", got \"soon\"");
}

#[test]
fn models_and_embeddings() {
    let site = site();
    let tags = site.get("/api/tags").json();
    assert_eq!(tags["models"][0]["model"], "parrot", "{tags}");
    let loaded = &site.get("/api/ps").json()["models"][0];
    assert_eq!((&loaded["name"], &loaded["digest"]), (&json!("parrot"), &tags["models"][0]["digest"]));
    assert_eq!(loaded["digest"].as_str().unwrap().len(), 64);
    let shown = site.post("/api/show", json!({"model": "parrot", "verbose": true})).json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]), "{shown}");
    assert!(site.get("/api/version").json()["version"].is_string());
    let embedded = site.post("/api/embed", json!({"model": "parrot", "input": ["a", "b"]})).json();
    assert_eq!(embedded["embeddings"].as_array().unwrap().len(), 2);
    let long = site.post("/api/embed", json!({"input": "word ".repeat(3000)})).json();
    assert_eq!(long["prompt_eval_count"], 512, "a long text is truncated: {long}");
    assert_eq!(
        site.post("/api/embed", json!({"input": "word ".repeat(3000), "truncate": false})).status,
        400
    );
    assert!(site.post("/api/embeddings", json!({"prompt": "a"})).json()["embedding"].is_array());
    let pull = site.post("/api/pull", json!({"model": "a"}));
    assert_eq!(
        (pull.status, &pull.json()["error"]),
        (400, &json!("this server has one model: start it without a model to download models"))
    );
}
