//! Text completions and embeddings.

use base64::Engine as _;
use serde_json::{Value, json};

use crate::support::{Reply, Setup, Site};

fn complete(site: &Site, body: Value) -> Reply {
    site.post("/v1/completions", body)
}

#[test]
fn prompts_are_strings_or_tokens() {
    let site = Site::new(Setup { template: None, ..Setup::default() });
    let ids = |text: &str| site.tokenizer.encode(text, true, true);
    let (a, b) = ("say:one two<answer>", "say:three<answer>");
    for (prompt, want) in [
        (json!(a), vec!["one two"]),
        (json!([a, b]), vec!["one two", "three"]),
        (json!(ids(a)), vec!["one two"]),
        (json!([ids(b), ids(a)]), vec!["three", "one two"]),
    ] {
        let body = complete(&site, json!({"prompt": prompt})).json();
        assert_eq!(body["object"], "text_completion");
        let texts: Vec<&str> = body["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| choice["text"].as_str().unwrap())
            .collect();
        assert_eq!(texts, want);
        let stream = complete(&site, json!({"prompt": prompt, "stream": true})).events();
        for (index, want) in want.iter().enumerate() {
            let pieces = stream.iter().map(|event| &event["choices"][0]);
            let pieces = pieces.filter(|choice| choice["index"] == index);
            let text: String = pieces.map(|choice| choice["text"].as_str().unwrap()).collect();
            assert_eq!(&text, want);
        }
    }
    let body = complete(&site, json!({"prompt": [a, b], "n": 2})).json();
    let texts: Vec<&Value> =
        body["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["one two", "one two", "three", "three"]);
    assert_eq!(body["usage"]["prompt_tokens"], ids(a).len() + ids(b).len());
    site.wait_until_idle();
}

#[test]
fn sixteen_tokens_by_default() {
    let site = Site::new(Setup::default());
    let body = complete(&site, json!({"prompt": "anything"})).json();
    assert_eq!(body["usage"]["completion_tokens"], 16);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
}

#[test]
fn echo_begins_with_the_prompt() {
    let site = Site::new(Setup::default());
    let prompt = "say:one two<answer>";
    let ids = site.tokenizer.encode(prompt, true, true);
    for given in [json!(prompt), json!(ids)] {
        let body = complete(&site, json!({"prompt": given, "echo": true})).json();
        assert_eq!(body["choices"][0]["text"], format!("{prompt}one two"));
    }
    let events = complete(&site, json!({"prompt": prompt, "echo": true, "stream": true})).events();
    assert_eq!(events[0]["choices"][0]["text"], format!("{prompt}one"));
}

#[test]
fn logprobs_are_parallel_arrays() {
    let site = Site::new(Setup::default());
    let body = complete(&site, json!({"prompt": "say:one two<answer>", "logprobs": 2})).json();
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["one", " two"]));
    assert_eq!(logprobs["token_logprobs"], json!([0.0, 0.0]));
    assert_eq!(logprobs["text_offset"], json!([0, 3]));
    assert_eq!(logprobs["top_logprobs"][0]["one"], 0.0);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
}

#[test]
fn embeddings_are_normalized_in_both_encodings() {
    let site = Site::new(Setup::default());
    let embed = |body: Value| {
        let reply = site.post("/v1/embeddings", body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    };
    let body = embed(json!({"input": ["one two three", "four"], "model": "parrot"}));
    assert_eq!((&body["object"], &body["model"]), (&json!("list"), &json!("parrot")));
    let vectors = body["data"].as_array().unwrap();
    assert_eq!(vectors.len(), 2);
    for (index, entry) in vectors.iter().enumerate() {
        assert_eq!((&entry["index"], &entry["object"]), (&json!(index), &json!("embedding")));
        let vector: Vec<f64> = serde_json::from_value(entry["embedding"].clone()).unwrap();
        let length: f64 = vector.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    let tokens = site.tokenizer.encode("one two three", true, true);
    assert_eq!(embed(json!({"input": tokens}))["data"][0]["embedding"], vectors[0]["embedding"]);
    assert_eq!(
        body["usage"]["prompt_tokens"],
        tokens.len() + site.tokenizer.encode("four", true, true).len()
    );

    // llama.cpp's shape: a list of vectors per text
    for (path, name) in [("/embedding", "content"), ("/embeddings", "input")] {
        let reply = site.post(path, json!({name: ["one two three", "four"]})).json();
        let rows = |at: usize| json!({"index": at, "embedding": [vectors[at]["embedding"]]});
        assert_eq!(reply, json!([rows(0), rows(1)]));
    }
    let raw = site.post("/embedding", json!({"content": "four", "embd_normalize": -1})).json();
    assert_ne!(raw[0]["embedding"][0], vectors[1]["embedding"]);
    let refused = site.post("/embedding", json!({"content": "four", "embd_normalize": 1}));
    assert_eq!(refused.status, 400);
    assert!(refused.text.contains("embd_normalize: expected 2 (length one) or -1"), "{}", refused.text);

    let packed = embed(json!({"input": "one two three", "encoding_format": "base64", "dimensions": 2}));
    let packed = packed["data"][0]["embedding"].as_str().unwrap();
    let bytes = base64::engine::general_purpose::STANDARD.decode(packed).unwrap();
    let floats: Vec<f32> = bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(json!(floats), vectors[0]["embedding"]);
    let many: Vec<String> = (0..40).map(|i| format!("number {i}")).collect(); // more than run and wait
    assert_eq!(embed(json!({"input": many}))["data"].as_array().unwrap().len(), 40);
    site.wait_until_idle();
}

#[test]
fn prompts_are_scored_with_echo_and_logprobs() {
    let site = Site::new(Setup::default());
    let prompt = "say:a b<answer>";
    let tokens = site.tokenizer.encode(prompt, true, true);
    let body = json!({"prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 2});
    let reply = site.post("/v1/completions", body).json();
    let logprobs = &reply["choices"][0]["logprobs"];
    assert_eq!(reply["usage"]["prompt_tokens"], tokens.len(), "{reply}");
    assert_eq!(reply["usage"]["completion_tokens"], 2);
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), tokens.len() + 2);
    assert_eq!(logprobs["token_logprobs"][0], json!(null));
    assert!(reply["choices"][0]["text"].as_str().unwrap().starts_with(prompt), "{reply}");
}

#[test]
fn a_minimum_length_and_words_are_enforced() {
    let site = Site::new(Setup::default());
    let reply = site.post(
        "/v1/completions",
        json!({"prompt": "a", "min_tokens": 2, "bad_words": ["x"], "max_tokens": 4}),
    );
    assert_eq!(reply.status, 200, "{}", reply.text);
    let bad = site.post("/v1/completions", json!({"prompt": "a", "bad_words": [""]}));
    assert_eq!(bad.message(), "bad_words: expected an array of words, got \"\"");
    let none = site.post("/infill", json!({"input_prefix": "a", "input_suffix": "b"}));
    assert_eq!(none.json()["error"]["code"], "no_fill_tokens");
    for path in ["/version", "/props", "/tokenizer_info", "/openapi.json"] {
        assert_eq!(site.get(path).status, 200, "{path}");
    }
}
