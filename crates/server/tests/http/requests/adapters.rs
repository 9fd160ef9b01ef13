//! Adapters: by the name of the model, or by `lora`; the runner's texts depend on them.

use serde_json::{Value, json};

use crate::support::{Setup, Site};

fn site() -> Site {
    let adapters = ["poet=lora/poet.gguf:0.5", "coder=lora/coder"].map(|text| text.parse().unwrap());
    Site::new(Setup { adapters: adapters.into(), ..Setup::default() })
}

/// The text of a completion with these parameters.
fn text(site: &Site, more: Value) -> String {
    let mut body = json!({"prompt": "one two three<answer>", "max_tokens": 4, "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let reply = site.post("/v1/completions", body);
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn refused(site: &Site, path: &str, body: Value) -> (u16, String) {
    let reply = site.post(path, body);
    (reply.status, reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn a_request_chooses_adapters_by_name_or_by_number() {
    let site = site();
    let plain = text(&site, json!({}));
    assert_eq!(text(&site, json!({"model": "parrot"})), plain);
    let poet = text(&site, json!({"model": "poet"}));
    let coder = text(&site, json!({"model": "coder"}));
    assert!(plain != poet && plain != coder && poet != coder, "{plain} {poet} {coder}");
    for same in [
        json!({"lora": "poet"}),
        json!({"lora": [{"id": 0}]}),
        json!({"lora": [{"name": "poet"}]}),
        json!({"model": "parrot", "lora": [{"id": 0, "scale": 0.5}]}),
        json!({"lora": [{"id": 0, "scale": 0.5}, {"id": 1, "scale": 0}]}),
        json!({"model": "poet:latest"}),
    ] {
        assert_eq!(text(&site, same.clone()), poet, "{same}");
    }
    for none in [json!({"lora": []}), json!({"lora": null}), json!({"lora": [{"id": 0, "scale": 0}]})] {
        assert_eq!(text(&site, none.clone()), plain, "{none}");
    }
    let both = text(&site, json!({"lora": [{"id": 0}, {"id": 1, "scale": -1.5}]}));
    assert!(both != poet && both != coder && both != plain);
}

#[test]
fn every_api_has_them_and_answers_with_the_name() {
    let site = site();
    let messages = json!([{"role": "user", "content": "hello"}]);
    let chat = |model: &str| {
        let body = json!({"model": model, "messages": messages, "max_tokens": 4, "temperature": 0});
        site.post("/v1/chat/completions", body).json()
    };
    assert_eq!(chat("poet")["model"], "poet");
    assert_ne!(chat("poet")["choices"][0]["message"], chat("parrot")["choices"][0]["message"]);
    let post = |path: &str, body: Value| {
        let reply = site.post(path, body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        reply.json()
    };
    let body =
        |model: &str| json!({"model": model, "input": "hello", "max_output_tokens": 4, "temperature": 0});
    let (poet, plain) = (post("/v1/responses", body("poet")), post("/v1/responses", body("parrot")));
    assert!(poet["model"] == "poet" && poet["output"][0]["content"] != plain["output"][0]["content"]);
    let body = |model: &str| json!({"model": model, "messages": messages, "max_tokens": 4, "temperature": 0});
    let (poet, plain) = (post("/v1/messages", body("poet")), post("/v1/messages", body("parrot")));
    assert!(poet["model"] == "poet" && poet["content"] != plain["content"]);
    let options = json!({"num_predict": 4, "temperature": 0});
    let body =
        |model: &str| json!({"model": model, "messages": messages, "stream": false, "options": options});
    let (poet, plain) = (post("/api/chat", body("poet")), post("/api/chat", body("parrot")));
    assert_ne!(poet["message"], plain["message"]);
    assert_eq!(post("/v1/embeddings", json!({"model": "poet", "input": "hello"}))["model"], "poet");
}

#[test]
fn they_are_listed_with_their_base() {
    let site = site();
    let models = site.get("/v1/models").json();
    let ids: Vec<_> = models["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["parrot", "org/parrot", "poet", "coder"]);
    assert!(models["data"][0].get("parent").is_none());
    let poet = site.get("/v1/models/poet").json();
    assert_eq!((&poet["parent"], &poet["root"]), (&json!("parrot"), &json!("poet")));
    let listed = site.get("/lora-adapters").json();
    let entry = |id: u32, name: &str, path: &str, scale: f32| json!({"id": id, "name": name, "path": path, "scale": scale, "default_scale": 0.0});
    assert_eq!(
        listed,
        json!([entry(0, "poet", "lora/poet.gguf", 0.5), entry(1, "coder", "lora/coder", 1.0)])
    );
    assert_eq!(Site::new(Setup::default()).get("/lora-adapters").json(), json!([]));
}

#[test]
fn requests_that_choose_none_get_the_default_scales() {
    let site = site();
    let set = |scales: Value| {
        let reply = site.post("/lora-adapters", scales);
        assert_eq!((reply.status, reply.json()), (200, json!({"success": true})));
    };
    let chosen = |list: Value| text(&site, json!({"lora": list}));
    let (plain, poet) = (text(&site, json!({})), text(&site, json!({"model": "poet"})));
    let half = json!([{"id": 1, "scale": 0.5}]);
    let (half_coder, both) =
        (chosen(half.clone()), chosen(json!([{"id": 0, "scale": 2}, {"id": 1, "scale": 0.5}])));
    set(json!([{"id": 0, "scale": 2}, {"id": 1, "scale": 0.5}]));
    assert_eq!(text(&site, json!({})), both);
    assert_eq!(text(&site, json!({"model": "parrot", "lora": null})), both);
    // those that choose are as before, with the scales of the flags
    assert_eq!(text(&site, json!({"model": "poet"})), poet);
    assert_eq!(chosen(json!([])), plain);
    // an adapter that is not in the list has the scale 0
    set(half);
    assert_eq!(text(&site, json!({})), half_coder);
    let scales = |key: &str| {
        let listed = site.get("/lora-adapters").json();
        listed.as_array().unwrap().iter().map(|entry| entry[key].as_f64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((scales("scale"), scales("default_scale")), (vec![0.5, 1.0], vec![0.0, 0.5]));
    for (body, message) in [
        (
            json!([{"id": 0, "scale": 1}, {"id": 7, "scale": 1}]),
            "lora: the adapter 7 does not exist; this server has poet, coder",
        ),
        (json!({"id": 0}), "the request body must be an array of {\"id\": NUMBER, \"scale\": NUMBER}"),
    ] {
        let reply = site.post("/lora-adapters", body);
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, &error["message"], &error["type"]),
            (400, &json!(message), &json!("invalid_request_error"))
        );
        assert_eq!(text(&site, json!({})), half_coder, "a refused body changes nothing");
    }
    set(json!([]));
    assert_eq!(text(&site, json!({})), plain);
}

#[test]
fn what_is_no_adapter_is_refused() {
    let site = site();
    let complete = |more: Value| {
        let mut body = json!({"prompt": "hello"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        refused(&site, "/v1/completions", body)
    };
    let cases = [
        (
            json!({"model": "painter"}),
            404,
            "the model \"painter\" does not exist; this server has \"parrot, poet, coder\"",
        ),
        (
            json!({"lora": "painter"}),
            400,
            "lora: the adapter \"painter\" does not exist; this server has poet, coder",
        ),
        (
            json!({"lora": [{"id": 2}]}),
            400,
            "lora: the adapter 2 does not exist; this server has poet, coder",
        ),
        (
            json!({"lora": [{"id": -1}]}),
            400,
            "lora: the adapter -1 does not exist; this server has poet, coder",
        ),
        (
            json!({"lora": [{"id": 0, "size": 1}]}),
            400,
            "lora: unknown key \"size\", want id or name, and scale",
        ),
        (
            json!({"model": "poet", "lora": "coder"}),
            400,
            "lora: the model \"poet\" is an adapter already, request \"parrot\"",
        ),
    ];
    for (more, status, message) in cases {
        assert_eq!(complete(more), (status, message.to_owned()));
    }
    for wrong in
        [json!(7), json!({"id": 0}), json!(["poet"]), json!([{"id": 0, "name": "poet"}]), json!([{}])]
    {
        let (status, message) = complete(json!({"lora": wrong}));
        assert!(status == 400 && message.starts_with("lora: "), "{wrong}: {message}");
    }
    for scale in [json!("x"), json!(1e9)] {
        let (status, message) = complete(json!({"lora": [{"id": 0, "scale": scale}]}));
        assert!(status == 400 && message.contains("from -1000 to 1000"), "{message}");
    }
    let rerank = json!({"model": "poet", "query": "a", "documents": ["b"]});
    let message = "model: \"poet\" is an adapter, which this route does not use";
    assert_eq!(refused(&site, "/v1/rerank", rerank), (400, message.into()));
    let plain = Site::new(Setup::default());
    let (status, message) = refused(&plain, "/v1/completions", json!({"prompt": "hello", "lora": "poet"}));
    assert_eq!(
        (status, message.as_str()),
        (400, "lora: the adapter \"poet\" does not exist; this server has none")
    );
}
