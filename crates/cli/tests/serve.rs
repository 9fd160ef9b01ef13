//! `tern serve` with several models, and with none: what is served, loaded, refused and deleted.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Home, Server, stories_file};

impl Server {
    /// The status and the body of a response.
    fn send(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or(Value::Null))
    }

    fn completes(&self, model: &str) -> (u16, Value) {
        self.send("POST", "/v1/completions", json!({"model": model, "prompt": "Once", "max_tokens": 2}))
    }

    fn status(&self, model: &str) -> String {
        let (_, entry) = self.send("GET", &format!("/v1/models/{model}"), Value::Null);
        entry["status"]["value"].as_str().unwrap_or_default().to_string()
    }
}

#[test]
fn without_a_model_the_chat_model_is_offered_and_stories_do_not_chat() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    assert_eq!(
        server.line(),
        "tern: no model is downloaded: serving only stories, which continues texts and cannot chat"
    );
    assert_eq!(
        server.line(),
        "tern: to chat, start with `tern serve --pull`, which downloads the chat model smollm2 (93.8 MiB, Apache-2.0)"
    );
    let (_, models) = server.send("GET", "/v1/models", Value::Null);
    assert_eq!(models["data"].as_array().unwrap().len(), 1, "{models}");
    assert_eq!(models["data"][0]["capabilities"], json!(["completion"]), "before it is loaded: {models}");
    let (status, reply) =
        server.send("POST", "/v1/chat/completions", json!({"messages": [{"role": "user", "content": "Hi"}]}));
    assert_eq!((status, &reply["error"]["code"]), (400, &json!("no_chat_template")));
    let (status, reply) = server.send("POST", "/v1/completions", json!({"prompt": "Once", "max_tokens": 2}));
    assert_eq!((status, &reply["model"]), (200, &json!("stories")));
    // a request never starts a download
    let (status, reply) = server.completes("smollm2");
    let message = "the model \"smollm2\" is not downloaded: use `tern pull smollm2` or /api/pull";
    assert_eq!((status, &reply["error"]["message"]), (404, &json!(message)));
}

#[test]
fn pull_without_a_network_is_an_error() {
    let ran = Home::new().run(&["serve", "--pull", "--port", "0"]);
    assert_eq!(ran.refusal(), "smollm2 is not downloaded, and downloads are disabled (HF_HUB_OFFLINE)");
}

/// A folder with a healthy model, a truncated one, one whose tensors are outside the file, a FIFO, and a
/// folder with a FIFO.
fn folder(home: &Home) -> String {
    let models = home.path("models");
    std::fs::create_dir_all(models.join("folder")).unwrap();
    let bytes = std::fs::read(stories_file()).unwrap();
    for name in ["good.gguf", "other.gguf"] {
        std::fs::write(models.join(name), &bytes).unwrap();
    }
    std::fs::write(models.join("cut.gguf"), &bytes[..bytes.len() - 100_000]).unwrap();
    std::fs::write(models.join("header.gguf"), &bytes[..1000]).unwrap();
    std::fs::write(models.join("folder/config.json"), "{}").unwrap();
    for fifo in ["pipe.gguf", "folder/model.safetensors"] {
        assert!(Command::new("mkfifo").arg(models.join(fifo)).status().unwrap().success());
    }
    models.to_str().unwrap().to_owned()
}

#[test]
fn damaged_files_and_fifos_unload_and_delay_no_healthy_model() {
    let home = Home::new();
    let server = Server::start(&home, &["--models", &folder(&home), "--memory", "0.001"]);
    let (status, reply) = server.send("POST", "/v1/completions", json!({"prompt": "Once"}));
    let message = "model: name one of this server's models: cut, folder, good, header, other";
    assert_eq!((status, &reply["error"]["message"]), (400, &json!(message)));
    assert_eq!(server.completes("good").0, 200);
    for (name, why) in [("cut", "bytes of tensor data in the file"), ("header", ""), ("folder", "")] {
        let (status, reply) = server.completes(name);
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(status == 503 && message.contains(why), "{name}: {reply}");
        assert_eq!(server.status("good"), "loaded", "{name}");
    }
    let (_, reply) = server.completes("pipe");
    assert_eq!(reply["error"]["code"], "model_not_found");
    // a whole one takes its place
    assert_eq!(server.completes("other").0, 200);
    assert_eq!((server.status("good"), server.status("other")), ("unloaded".into(), "loaded".into()));
    let (_, tags) = server.send("GET", "/api/tags", Value::Null);
    let good = tags["models"].as_array().unwrap().iter().find(|model| model["name"] == "good").unwrap();
    assert_eq!(
        (&good["details"]["family"], &good["details"]["quantization_level"]),
        (&json!("qwen3"), &json!("Q1_0"))
    );
    assert_eq!(good["size"], std::fs::metadata(stories_file()).unwrap().len());
    assert_eq!(good["digest"].as_str().unwrap().len(), 64);
    assert_eq!(server.completes("good").0, 200);
    let (_, loaded) = server.send("GET", "/api/ps", Value::Null);
    assert_eq!(loaded["models"][0]["digest"], good["digest"]);
}

#[test]
fn a_deletion_needs_a_flag_and_removes_nothing_outside_the_cache() {
    let home = Home::new();
    let precious = home.path("precious.gguf");
    std::fs::copy(stories_file(), &precious).unwrap();
    let snapshot = home.path("hub/models--o--r/snapshots/0123456789abcdef0123456789abcdef01234567");
    std::fs::create_dir_all(&snapshot).unwrap();
    let link = snapshot.join("m-Q1_0.gguf");
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    let delete = |server: &Server, name: &str| server.send("DELETE", "/api/delete", json!({"model": name}));
    let refused = Server::start(&home, &[]);
    assert_eq!(delete(&refused, "o/r:Q1_0").0, 403);
    drop(refused);
    let server = Server::start(&home, &["--manage-models"]);
    assert_eq!(server.completes("o/r:Q1_0").0, 200);
    for name in ["../../precious.gguf", precious.to_str().unwrap(), "o/r/../x"] {
        assert_eq!(delete(&server, name).0, 400, "{name}");
    }
    assert_eq!(delete(&server, "o/x:Q1_0").0, 404);
    assert!(link.exists());
    assert_eq!(delete(&server, "o/r:Q1_0").0, 200);
    assert!(std::fs::symlink_metadata(&link).is_err() && is_whole(&precious));
    assert_eq!(server.completes("o/r:Q1_0").0, 404);
}

fn is_whole(path: &Path) -> bool {
    std::fs::read(path).unwrap() == std::fs::read(stories_file()).unwrap()
}
