//! What the server tells about itself.

use serde_json::{Value, json};

use crate::support::{LIMITS, Setup, Site};

#[test]
fn settings_and_special_tokens_are_those_of_the_model() {
    let site = Site::new(Setup::default());
    let get = |path: &str| site.get(path).json();
    assert_eq!(get("/version"), json!({"version": env!("CARGO_PKG_VERSION")}));
    let props = get("/props");
    assert_eq!(props["default_generation_settings"]["n_ctx"], LIMITS.max_context);
    assert_eq!(props["default_generation_settings"]["params"]["temperature"], 0.8, "{props}");
    assert_eq!((&props["total_slots"], &props["model_alias"]), (&json!(LIMITS.max_seqs), &json!("parrot")));
    assert_eq!(get("/props?model=parrot"), props);
    let unknown = site.get("/props?model=nothing");
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (404, &json!("model_not_found")),
        "{}",
        unknown.text
    );
    let info = get("/tokenizer_info");
    let tokenizer = &site.tokenizer;
    let text = |id: Option<u32>| json!(id.and_then(|id| tokenizer.token_text(id)));
    assert_eq!(info["vocab_size"], tokenizer.vocab_size());
    assert_eq!((&info["bos_token"], &info["eos_token"]), (&text(tokenizer.bos()), &text(tokenizer.eos())));
    assert!(info["eos_token"].is_string(), "{info}");
}

#[test]
fn the_specification_has_the_sampling_parameters_with_their_ranges() {
    let site = Site::new(Setup::default());
    let schema = &site.get("/openapi.json").json()["components"]["schemas"]["SamplingParameters"];
    let properties = schema["properties"].as_object().unwrap();
    assert_eq!(properties.len(), tern::graph::PARAMETERS.len());
    let facts = |name: &str| {
        let Value::Object(mut property) = properties[name].clone() else { panic!("{name}: no object") };
        assert!(property.remove("description").is_some_and(|text| text.is_string()), "{name}");
        Value::Object(property)
    };
    assert_eq!(facts("temperature"), json!({"type": "number", "minimum": 0.0, "maximum": 2.0}));
    assert_eq!(facts("top_k"), json!({"type": "integer", "minimum": -1}));
    assert_eq!(facts("mirostat"), json!({"type": "integer", "minimum": 0, "maximum": 2}));
}

/// The specification lists the routes that there are: none of them is unknown to the server.
#[test]
fn every_route_of_the_specification_exists() {
    let site = Site::new(Setup::default());
    let spec = site.get("/openapi.json").json();
    assert_eq!(spec["openapi"], "3.1.0");
    let mut count = 0;
    for (path, methods) in spec["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let path = path.replace("{id}", "x");
            let reply = site.send(&method.to_uppercase(), &path, &[], b"{}");
            let code = serde_json::from_str::<Value>(&reply.text)
                .map_or(Value::Null, |body| body["error"]["code"].clone());
            assert!(code != "unknown_route" && code != "wrong_method", "{method} {path}: {}", reply.text);
            assert!(
                reply.status < 500 || code == "files_disabled",
                "{method} {path}: {} {}",
                reply.status,
                reply.text
            );
            count += 1;
        }
    }
    assert!(count > 40, "{count} routes");
}
