//! Reranking and scores.

use serde_json::{Value, json};
use tern::Reranker;

use crate::support::{Setup, Site};

fn site() -> Site {
    Site::new(Setup { reranker: Some(Reranker::Classifier), ..Setup::default() })
}

fn post(site: &Site, path: &str, body: Value) -> Value {
    let reply = site.post(path, body);
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()
}

fn scores(results: &Value, key: &str) -> Vec<f64> {
    results.as_array().unwrap().iter().map(|result| result[key].as_f64().unwrap()).collect()
}

const DOCUMENTS: [&str; 4] = ["one", "two words", "three more texts", "four of them are here"];

#[test]
fn documents_come_back_best_first() {
    let site = site();
    let body = json!({"model": "parrot", "query": "which?", "documents": DOCUMENTS});
    let whole = post(&site, "/v1/rerank", body.clone());
    assert_eq!((&whole["object"], &whole["model"]), (&json!("list"), &json!("parrot")));
    let all = scores(&whole["results"], "relevance_score");
    assert_eq!(all.len(), 4);
    assert!(
        all.is_sorted_by(|a, b| a >= b) && all.iter().all(|score| (0.0..=1.0).contains(score)),
        "{all:?}"
    );
    let order = |results: &Value| -> Vec<u64> {
        results.as_array().unwrap().iter().map(|result| result["index"].as_u64().unwrap()).collect()
    };
    // in the order of the documents' scores, which is not that of the request
    let pairs = post(&site, "/v1/score", json!({"text_1": "which?", "text_2": DOCUMENTS}));
    let own = scores(&pairs["data"], "score");
    let mut best: Vec<u64> = (0..4).collect();
    best.sort_by(|a, b| own[*b as usize].total_cmp(&own[*a as usize]));
    assert_ne!(best, [0, 1, 2, 3], "{own:?}");
    assert!(all.windows(2).all(|two| two[0] > two[1]), "{all:?}");
    assert_eq!(order(&whole["results"]), best);
    assert!(whole["results"][0].get("document").is_none());
    assert!(whole["usage"]["total_tokens"].as_u64().unwrap() > 8);
    // the paths of other servers, objects as documents, and the best two only
    let documents: Vec<Value> = DOCUMENTS.iter().map(|text| json!({"text": text})).collect();
    for path in ["/rerank", "/v2/rerank"] {
        let body = json!({"query": "which?", "documents": documents, "top_n": 2, "return_documents": true});
        let two = post(&site, path, body);
        assert_eq!(scores(&two["results"], "relevance_score"), all[..2]);
        assert_eq!(order(&two["results"]), best[..2]);
        for result in two["results"].as_array().unwrap() {
            let index = result["index"].as_u64().unwrap() as usize;
            assert_eq!(result["document"]["text"], DOCUMENTS[index]);
        }
    }
    // a bare array
    let bare = post(&site, "/rerank", json!({"query": "which?", "texts": DOCUMENTS, "return_text": true}));
    assert_eq!(scores(&bare, "score"), all);
    assert!(bare[0]["text"].is_string());
    assert_eq!(order(&bare), best);
    // equal scores are in the order of the request
    let twice = post(&site, "/rerank", json!({"query": "which?", "documents": ["same", "same", "same"]}));
    assert_eq!(order(&twice["results"]), [0, 1, 2]);
    // the same scores as pairs
    let mut by_score = own;
    by_score.sort_by(|a, b| b.total_cmp(a));
    assert_eq!(by_score, all);
    let same = post(&site, "/score", json!({"text_1": vec!["which?"; 4], "text_2": DOCUMENTS}));
    assert_eq!(same["data"], pairs["data"]);
    site.wait_until_idle();
}

#[test]
fn long_documents_are_refused_or_shortened() {
    let site = site();
    let long = "word ".repeat(700);
    let body = |truncate: bool| json!({"query": "q", "documents": ["short", long], "truncate": truncate});
    let refused = site.post("/v1/rerank", body(false));
    assert_eq!(refused.status, 400, "{}", refused.text);
    let error = &refused.json()["error"];
    assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!("documents")));
    assert!(error["message"].as_str().unwrap().contains("reads at most 256"), "{error}");
    assert_eq!(post(&site, "/v1/rerank", body(true))["results"].as_array().unwrap().len(), 2);
}

#[test]
fn other_models_and_bodies_are_refused() {
    let plain = Site::new(Setup::default());
    let refused = plain.post("/v1/rerank", json!({"query": "a", "documents": ["b"]}));
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["code"], "no_reranker");
    let site = site();
    for (path, body, want) in [
        ("/v1/rerank", json!({"documents": ["a"]}), "missing required parameter: \"query\""),
        ("/v1/rerank", json!({"query": "a"}), "missing required parameter: \"documents\""),
        ("/v1/rerank", json!({"query": "", "documents": ["a"]}), "query: must not be empty"),
        ("/v1/rerank", json!({"query": "a", "documents": ["a"], "top_n": 0}), "top_n: "),
        ("/v1/rerank", json!({"query": "a", "documents": [1]}), "documents: expected strings"),
        ("/v1/score", json!({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}), "text_1: expected one text"),
        ("/v1/embeddings", json!({"input": "a"}), "model: this model scores pairs of texts"),
    ] {
        let reply = site.post(path, body.clone());
        assert_eq!(reply.status, 400, "{path} {body}: {}", reply.text);
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with(want), "{path} {body}: {message}");
    }
}
