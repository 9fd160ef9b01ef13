//! Commands about stored and loaded models: `show`, `list`, `rm`, `ps`, `stop`, and short names.
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod support;

use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::support::{Home, Server, stories_file, stories_with, tern};

#[test]
fn show_has_what_decides_whether_a_model_can_be_used() {
    let ran = tern(&["show", "stories"]);
    for want in [
        "architecture   qwen3\n",
        "size           3.7 MiB\n",
        "quantization   Q1_0 (99 %), F32 (1 %)\n",
        "context        256 tokens\n",
        "template       none: use `tern run` to continue a text\n",
        "sampling       temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, repeat_penalty 1\n",
    ] {
        assert!(ran.ok().contains(want), "{want}: {}", ran.stdout());
    }
    assert!(ran.ok().lines().count() < 15, "{}", ran.stdout());
    let home = Home::new();
    let template =
        "{% if enable_thinking %}<think>{% endif %}{{ tools }}<tool_call>{{ messages[0].content }}</think>";
    let keys = [
        ("tokenizer.chat_template", tern::formats::Value::String(template.into())),
        ("general.sampling.temp", tern::formats::Value::Float(0.6)),
    ];
    stories_with(&home, "chat.gguf", &keys);
    let json = home.run(&["show", "./chat.gguf", "--json"]).json();
    assert_eq!((&json["context"], &json["sampling"]["temperature"]), (&256.into(), &0.6.into()));
    assert!(json["template"].as_array().unwrap().contains(&"thinking".into()), "{json}");
    assert!(home.run(&["show", "./chat.gguf"]).ok().contains("temperature 0.6 (of the file), "));
    assert_eq!(tern(&["show", "./none.gguf"]).refusal(), "./none.gguf: no such file or folder");
}

#[test]
fn short_names_are_listed_with_sizes_and_explained_without_a_network() {
    let models = tern(&["list", "--json"]).json();
    let named = |name: &str| {
        let all = models["models"].as_array().unwrap();
        all.iter().find(|model| model["name"] == name).unwrap().clone()
    };
    assert_eq!(named("stories")["location"], "embedded");
    let model = named("llama3.2");
    assert_eq!((&model["location"], &model["bytes"]), (&"missing".into(), &2_019_377_696_u64.into()));
    assert!(model["aliases"].as_array().unwrap().contains(&"llama3.2:3b".into()), "{model}");
    let ran = tern(&["run", "-q", "-m", "qwen3:0.6b", "Hello"]);
    let want = "qwen3:0.6b is Qwen3-0.6B-Q8_0.gguf (0.64 GB) of Qwen/Qwen3-0.6B-GGUF on the Hugging Face hub: \
                qwen3:0.6b is not downloaded, and downloads are disabled (HF_HUB_OFFLINE); to get it by hand, download \
                it from https://huggingface.co/Qwen/Qwen3-0.6B-GGUF on another machine and select it with -m FILE";
    assert_eq!(ran.refusal(), want);
}

/// A repository of the hub's cache with one file in two snapshots, and one whose link leads out of the cache.
fn cache(home: &Home) {
    let repo = home.path("hub/models--o--r");
    for folder in ["blobs", "snapshots/a", "snapshots/b"] {
        std::fs::create_dir_all(repo.join(folder)).unwrap();
    }
    std::fs::copy(stories_file(), repo.join("blobs/1234")).unwrap();
    std::fs::copy(stories_file(), home.path("mine.gguf")).unwrap();
    symlink("../../blobs/1234", repo.join("snapshots/a/m-Q1_0.gguf")).unwrap();
    symlink("../../blobs/1234", repo.join("snapshots/b/m-Q1_0.gguf")).unwrap();
    symlink(home.path("mine.gguf"), repo.join("snapshots/a/m-Q4_0.gguf")).unwrap();
}

#[test]
fn rm_deletes_what_was_downloaded_and_nothing_else() {
    let home = Home::new();
    cache(&home);
    let blob = home.path("hub/models--o--r/blobs/1234");
    let ran = home.run(&["rm", "o/r:Q1_0"]);
    assert_eq!(ran.refusal(), "delete o/r:Q1_0 (3.7 MiB)? This is not a terminal: use --yes");
    assert_eq!(home.run(&["rm", "--yes", "o/r:Q1_0"]).ok(), "o/r:Q1_0 is deleted (3.7 MiB)\n");
    assert!(blob.exists(), "the other snapshot needs it");
    home.run(&["rm", "-y", "o/r:Q1_0"]).ok();
    assert!(!blob.exists(), "no snapshot needs it");
    home.run(&["rm", "-y", "o/r:Q4_0"]).ok();
    assert!(home.path("mine.gguf").exists(), "a link is deleted, not the file of the user");
    assert!(!home.run(&["list"]).ok().contains("o/r"));
    for (name, want) in [
        ("stories", "stories is embedded in the binary"),
        ("smollm2", "smollm2 is not downloaded"),
        ("o/r:Q1_0", "o/r:Q1_0 is not downloaded: `tern list` has the names"),
        ("mine.gguf", "mine.gguf is not in the cache: `rm` deletes only what was downloaded"),
    ] {
        assert_eq!(home.run(&["rm", "-y", name]).refusal(), want);
    }
}

#[test]
fn loaded_models_of_a_server_are_listed_and_unloaded() {
    let home = Home::new();
    std::fs::create_dir(home.path("models")).unwrap();
    std::fs::copy(stories_file(), home.path("models/tale.gguf")).unwrap();
    let server = Server::start(&home, &["--models", "models"]);
    let url = server.url.as_str();
    assert_eq!(home.run(&["ps", url]).ok(), "");
    assert_eq!(
        home.run(&["stop", "tale", url]).refusal(),
        format!("tale is not loaded at {url}; no model is loaded")
    );
    let body = r#"{"model": "tale", "prompt": "Once", "max_tokens": 2}"#;
    let reply =
        ureq::post(format!("{url}/v1/completions")).header("content-type", "application/json").send(body);
    assert_eq!(reply.unwrap().status(), 200);
    let ran = home.run(&["ps", url]);
    let (head, row) = ran.ok().trim_end().split_once('\n').unwrap();
    assert!(head.starts_with("model ") && head.ends_with("loaded until"), "{head}");
    assert!(row.starts_with("tale ") && row.contains(" 256 ") && row.contains("Q1_0"), "{row}");
    let loaded: Value = home.run(&["ps", url, "--json"]).json();
    assert_eq!(loaded["models"][0]["name"], "tale");
    let refused = home.run(&["stop", "tail", url]).refusal().to_string();
    assert_eq!(refused, format!("tail is not loaded at {url} (did you mean tale?); loaded: tale"));
    assert_eq!(home.run(&["stop", "tale", url]).ok(), "tale is unloaded\n");
    assert_eq!(home.run(&["ps", url]).ok(), "");
}

#[test]
fn a_server_that_is_missing_or_refuses_is_named() {
    let home = Home::new();
    let error = home.run(&["ps", "http://127.0.0.1:1"]).refusal().to_string();
    assert!(error.starts_with("http://127.0.0.1:1/api/ps: no server listens there; "), "{error}");
    let server = Server::start(&home, &["stories", "--api-key", "key"]);
    let error = home.run(&["ps", &server.url]).refusal().to_string();
    assert!(error.contains("/api/ps: status 401: "), "{error}");
    home.run(&["ps", &server.url, "--api-key", "key"]).ok();
}

#[test]
fn a_server_without_its_file_fails_before_it_listens() {
    for args in [&["serve", "nosuch.gguf"][..], &["serve", "-m", "stories", "-m", "nosuch.gguf"]] {
        assert_eq!(tern(args).refusal(), "nosuch.gguf: no such file or folder", "{args:?}");
    }
    assert!(tern(&["serve", "storeis"]).refusal().starts_with("no model named 'storeis'"));
}
