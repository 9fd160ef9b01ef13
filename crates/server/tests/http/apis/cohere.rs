//! Cohere's embeddings, and the length of documents.

use serde_json::{Value, json};
use tern::Reranker;

use crate::support::{Setup, Site};

fn post(site: &Site, path: &str, body: Value) -> Value {
    let reply = site.post(path, body);
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()
}

#[test]
fn embeddings_have_the_form_of_their_version() {
    let site = Site::new(Setup::default());
    let texts = ["a small bird", "a large ship"];
    let plain = post(&site, "/v1/embeddings", json!({"input": texts}));
    let want: Vec<&Value> =
        plain["data"].as_array().unwrap().iter().map(|entry| &entry["embedding"]).collect();
    let body = json!({"model": "parrot", "texts": texts, "input_type": "search_document"});
    let first = post(&site, "/v1/embed", body.clone());
    assert_eq!((&first["response_type"], &first["embeddings"]), (&json!("embeddings_floats"), &json!(want)));
    let second = post(&site, "/v2/embed", body);
    assert_eq!(second["response_type"], "embeddings_by_type");
    assert_eq!((&second["embeddings"], &second["texts"]), (&json!({"float": want}), &json!(texts)));
    let tokens = &plain["usage"]["prompt_tokens"];
    assert_eq!(&second["meta"]["billed_units"]["input_tokens"], tokens);
    let inputs: Vec<Value> =
        texts.iter().map(|text| json!({"content": [{"type": "text", "text": text}]})).collect();
    let both = json!({"inputs": inputs, "embedding_types": ["float", "base64"], "truncate": "NONE"});
    for path in ["/v1/embed", "/v2/embed"] {
        let both = post(&site, path, both.clone());
        assert_eq!(both["embeddings"]["float"], json!(want));
        let encoded = json!({"input": texts, "encoding_format": "base64"});
        let encoded = post(&site, "/v1/embeddings", encoded);
        assert_eq!(both["embeddings"]["base64"][1], encoded["data"][1]["embedding"]);
    }
}

#[test]
fn long_texts_are_shortened_or_refused() {
    let site = Site::new(Setup::default());
    let long = "word ".repeat(700);
    let embed = |more: Value| {
        let mut body = json!({"texts": [long]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        site.post("/v2/embed", body)
    };
    assert_eq!(embed(json!({})).status, 200, "END is the default");
    let tokens = |reply: Value| reply["meta"]["billed_units"]["input_tokens"].as_u64().unwrap();
    assert_eq!(tokens(embed(json!({"max_tokens": 3})).json()), 3);
    for (more, want) in [
        (json!({"truncate": "NONE"}), "texts: "),
        (json!({"max_tokens": 3, "truncate": "NONE"}), "texts: "),
        (json!({"truncate": "START"}), "truncate: expected END or NONE, got \"START\""),
        (json!({"embedding_types": ["int8"]}), "embedding_types: expected float or base64, got \"int8\""),
        (json!({"input_type": "image"}), "input_type: expected search_document"),
        (json!({"images": ["data:,"]}), "images: only texts are supported"),
        (json!({"inputs": []}), "inputs: cannot be combined with texts"),
    ] {
        let reply = embed(more.clone());
        let message = reply.json()["message"].as_str().map(str::to_owned).unwrap_or_default();
        assert!(reply.status == 400 && message.starts_with(want), "{more}: {}", reply.text);
    }
}

#[test]
fn documents_have_at_most_so_many_tokens() {
    let site = Site::new(Setup { reranker: Some(Reranker::Classifier), ..Setup::default() });
    let document = "four of them are here";
    let tokens = site.tokenizer.encode(document, false, false);
    assert!(tokens.len() > 3);
    let rerank = |document: &str, most: Option<usize>| {
        let body = json!({"query": "which?", "documents": [document], "max_tokens_per_doc": most});
        let reply = post(&site, "/v2/rerank", body);
        (reply["results"][0]["relevance_score"].clone(), reply["usage"]["total_tokens"].as_u64().unwrap())
    };
    let (whole, all) = rerank(document, None);
    for most in 1..tokens.len() {
        let first = site.tokenizer.decode(&tokens[..most], true);
        let short = rerank(document, Some(most));
        assert_eq!(short, rerank(&first, None), "{most}");
        assert_eq!(short.1, all - (tokens.len() - most) as u64, "{most}");
    }
    assert_eq!(rerank(document, Some(tokens.len())), (whole.clone(), all));
    assert_eq!(rerank(document, Some(1000)), (whole, all));
    let bad = site.post("/v2/rerank", json!({"query": "a", "documents": ["b"], "max_tokens_per_doc": 0}));
    assert!(bad.status == 400 && bad.text.contains("max_tokens_per_doc"), "{}", bad.text);
}
