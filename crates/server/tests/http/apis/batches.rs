//! `/v1/files` and `/v1/batches`: uploads, results, keys, restarts, and what clients try.

use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tern_server::{Config, FileLimits, FileStore};

use crate::support::{Reply, Setup, Site, wait_until};

const KEYS: [&str; 2] = ["first", "second"];

fn site(folder: &Path, limits: FileLimits) -> Site {
    let config = Config { api_keys: KEYS.map(String::from).to_vec(), ..Config::default() };
    Site::with_files(Setup { config, ..Setup::default() }, FileStore::open(folder, limits).unwrap())
}

/// A client with a key.
struct Client<'a>(&'a Site, &'a str);

impl Client<'_> {
    fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Reply {
        let key = format!("Bearer {}", self.1);
        self.0.send(method, path, &[("authorization", &key), ("content-type", kind)], body)
    }

    fn get(&self, path: &str) -> Reply {
        self.send("GET", path, "", b"")
    }

    fn post(&self, path: &str, body: Value) -> Reply {
        self.send("POST", path, "application/json", body.to_string().as_bytes())
    }

    fn form(&self, fields: &[(&str, &str)]) -> Reply {
        let mut body = String::new();
        for (name, text) in fields {
            let file = if *name == "file" { "; filename=\"../../etc/pass\\\"wd\"" } else { "" };
            body +=
                &format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{text}\r\n");
        }
        body += "--x--\r\n";
        self.send("POST", "/v1/files", "multipart/form-data; boundary=x", body.as_bytes())
    }

    fn upload(&self, text: &str) -> String {
        let reply = self.form(&[("purpose", "batch"), ("file", text)]);
        reply.json()["id"].as_str().unwrap_or_else(|| panic!("{}", reply.text)).to_owned()
    }

    fn batch(&self, file: &str) -> String {
        let body = json!({
            "input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h",
            "metadata": {"night": "1"},
        });
        let reply = self.post("/v1/batches", body);
        reply.json()["id"].as_str().unwrap_or_else(|| panic!("{}", reply.text)).to_owned()
    }

    /// The batch once it has ended.
    fn ended(&self, id: &str) -> Value {
        let mut batch = Value::Null;
        for _ in 0..1000 {
            batch = self.get(&format!("/v1/batches/{id}")).json();
            if ["completed", "failed", "cancelled", "expired"].iter().any(|end| batch["status"] == *end) {
                return batch;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{batch}");
    }

    fn content(&self, id: &Value) -> Vec<Value> {
        let reply = self.get(&format!("/v1/files/{}/content", id.as_str().unwrap()));
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn line(id: &str, say: &str, more: Value) -> String {
    let mut body = json!({"messages": [{"role": "user", "content": format!("say:{say}")}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string() + "\n"
}

#[test]
fn results_have_the_order_of_the_lines_and_errors_their_own_file() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path(), FileLimits::default());
    let client = Client(&site, "first");
    let mut text = String::new();
    for at in 0..40 {
        let more = if at % 10 == 3 { json!({"temperature": -1}) } else { json!({}) };
        // the first lines take longest
        text += &line(&format!("id-{at}"), &"ab ".repeat(40 - at), more);
    }
    let file = client.upload(&text);
    let batch = client.ended(&client.batch(&file));
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(batch["request_counts"], json!({"total": 40, "completed": 36, "failed": 4}));
    assert_eq!((&batch["metadata"], &batch["errors"]), (&json!({"night": "1"}), &Value::Null));
    assert!(batch["owner"].is_null() && batch["completed_at"].is_u64());
    let output = client.content(&batch["output_file_id"]);
    let ids: Vec<String> = output.iter().map(|line| line["custom_id"].as_str().unwrap().to_owned()).collect();
    let want: Vec<String> = (0..40).filter(|at| at % 10 != 3).map(|at| format!("id-{at}")).collect();
    assert_eq!(ids, want);
    let first = &output[0]["response"];
    assert_eq!(first["status_code"], 200);
    assert_eq!(
        first["body"]["choices"][0]["message"]["content"].as_str().unwrap().trim(),
        "ab ".repeat(40).trim()
    );
    let errors = client.content(&batch["error_file_id"]);
    assert_eq!(errors.len(), 4);
    assert_eq!(errors[0]["response"]["status_code"], 400);
    assert_eq!(errors[0]["response"]["body"]["error"]["param"], "temperature");
    // the other routes of files
    let listed = client.get("/v1/files?purpose=batch_output&limit=1").json();
    assert_eq!((listed["data"].as_array().unwrap().len(), &listed["has_more"]), (1, &json!(true)));
    let one = client.get(&format!("/v1/files/{file}")).json();
    assert_eq!((&one["filename"], &one["bytes"]), (&json!("../../etc/pass\"wd"), &json!(text.len())));
    assert_eq!(client.send("DELETE", &format!("/v1/files/{file}"), "", b"").json()["deleted"], true);
    assert_eq!(client.get(&format!("/v1/files/{file}/content")).status, 404);
}

#[test]
fn files_and_batches_of_another_key_do_not_exist() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path(), FileLimits::default());
    let (owner, other) = (Client(&site, "first"), Client(&site, "second"));
    let file = owner.upload(&line("a", "hello", json!({})));
    let batch = owner.batch(&file);
    owner.ended(&batch);
    for path in
        [format!("/v1/files/{file}"), format!("/v1/files/{file}/content"), format!("/v1/batches/{batch}")]
    {
        assert_eq!((owner.get(&path).status, other.get(&path).status), (200, 404), "{path}");
    }
    assert_eq!(other.send("DELETE", &format!("/v1/files/{file}"), "", b"").status, 404);
    assert_eq!(other.post(&format!("/v1/batches/{batch}/cancel"), json!({})).status, 404);
    let stolen =
        json!({"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    assert_eq!(other.post("/v1/batches", stolen).status, 404);
    for path in ["/v1/files", "/v1/batches"] {
        assert_eq!(other.get(path).json()["data"], json!([]));
        assert_eq!(Client(&site, "wrong").get(path).status, 401);
    }
    // ids of clients are never paths
    for id in ["..%2f..%2fetc%2fpasswd", "..", "%00", "lock", &format!("{file}.json"), &"x".repeat(5000)] {
        assert_eq!(owner.get(&format!("/v1/files/{id}/content")).status, 404, "{id}");
        assert_eq!(owner.get(&format!("/v1/batches/{id}")).status, 404, "{id}");
    }
}

#[test]
fn lines_that_are_wrong_fail_the_batch_before_any_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path(), FileLimits::default());
    let client = Client(&site, "first");
    let text = line("a", "x", json!({})) + "{}\n" + &line("a", "y", json!({}));
    let batch = client.ended(&client.batch(&client.upload(&text)));
    assert_eq!((&batch["status"], &batch["output_file_id"]), (&json!("failed"), &Value::Null));
    let errors = batch["errors"]["data"].as_array().unwrap();
    let codes: Vec<(u64, &str)> =
        errors.iter().map(|e| (e["line"].as_u64().unwrap(), e["code"].as_str().unwrap())).collect();
    assert_eq!(codes, [(2, "missing_required_parameter"), (3, "duplicate_custom_id")]);
    for (body, param) in [
        (json!({"endpoint": "/v1/chat/completions"}), "input_file_id"),
        (json!({"input_file_id": "x", "endpoint": "/v1/models"}), "endpoint"),
        (
            json!({"input_file_id": "x", "endpoint": "/v1/completions", "completion_window": "1h"}),
            "completion_window",
        ),
        (json!({"input_file_id": "x", "endpoint": "/v1/completions", "metadata": {"a": 1}}), "metadata"),
        (json!({"input_file_id": "x", "endpoint": "/v1/completions", "window": 1}), "window"),
    ] {
        let reply = client.post("/v1/batches", body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{}", reply.text);
    }
    for (fields, want) in [
        (&[("purpose", "batch")][..], "file: missing"),
        (&[("file", "x")], "purpose: missing"),
        (&[("file", "x"), ("purpose", "fine-tune")], "purpose: expected batch, got \"fine-tune\""),
        (&[("file", "x"), ("file", "y"), ("purpose", "batch")], "file: expected one file"),
        (&[("nobody", "x")], "unknown parameter: nobody"),
        (
            &[
                ("file", "x"),
                ("purpose", "batch"),
                ("expires_after[seconds]", "5"),
                ("expires_after[anchor]", "created_at"),
            ],
            "expires_after[seconds]: expected 3600 to 2592000, got \"5\"",
        ),
    ] {
        let reply = client.form(fields);
        assert_eq!((reply.status, reply.message().as_str()), (400, want));
    }
    // nothing of refused uploads stays
    let parts = std::fs::read_dir(folder.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".part"));
    assert_eq!(parts.count(), 0);
}

#[test]
fn limits_are_per_key() {
    let folder = tempfile::tempdir().unwrap();
    let limits = FileLimits { max_file_bytes: 100, max_bytes: 150, max_files: 3 };
    let site = site(folder.path(), limits);
    let (client, other) = (Client(&site, "first"), Client(&site, "second"));
    let upload = |client: &Client<'_>, bytes: usize| {
        client.form(&[("purpose", "batch"), ("file", &"x".repeat(bytes))])
    };
    assert_eq!(upload(&client, 101).status, 413);
    let first = upload(&client, 100).json()["id"].as_str().unwrap().to_owned();
    assert_eq!(upload(&client, 51).status, 413);
    assert_eq!(upload(&other, 100).status, 200);
    assert_eq!(upload(&client, 50).status, 200);
    assert_eq!(upload(&client, 0).status, 200);
    assert_eq!(upload(&client, 0).json()["error"]["code"], "too_many_files");
    client.send("DELETE", &format!("/v1/files/{first}"), "", b"");
    assert_eq!(upload(&client, 100).status, 200);
}

#[test]
fn a_batch_is_cancelled_with_what_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path(), FileLimits::default());
    let client = Client(&site, "first");
    let text = line("a", "hello", json!({})) + &line("b", "endless", json!({"max_tokens": 400}));
    let file = client.upload(&text);
    let id = client.batch(&file);
    let running = || client.get(&format!("/v1/batches/{id}")).json();
    wait_until(|| running()["request_counts"]["completed"] == 1);
    assert_eq!(client.send("DELETE", &format!("/v1/files/{file}"), "", b"").status, 409);
    assert_eq!(client.post(&format!("/v1/batches/{id}/cancel"), json!({})).json()["status"], "cancelling");
    let batch = client.ended(&id);
    assert_eq!(batch["status"], "cancelled");
    assert_eq!(client.post(&format!("/v1/batches/{id}/cancel"), json!({})).status, 409);
    site.wait_until_idle();
}

#[test]
fn a_batch_continues_with_the_next_server() {
    let folder = tempfile::tempdir().unwrap();
    let text: String =
        (0..60).map(|at| line(&format!("{at}"), "endless", json!({"max_tokens": 20}))).collect();
    let first = site(folder.path(), FileLimits::default());
    let (batch, done) = {
        let client = Client(&first, "first");
        let id = client.batch(&client.upload(&text));
        let counts =
            || client.get(&format!("/v1/batches/{id}")).json()["request_counts"]["completed"].as_u64();
        wait_until(|| counts() > Some(8));
        let other = FileStore::open(folder.path(), FileLimits::default()).err().unwrap();
        assert_eq!(other.to_string(), "another server uses this folder");
        (id.clone(), counts().unwrap())
    };
    first.stop().join().unwrap().unwrap();
    let working = std::fs::read_to_string(folder.path().join(format!("{batch}.output"))).unwrap();
    assert!(
        working.lines().count() as u64 >= done && working.lines().count() < 60,
        "{}",
        working.lines().count()
    );
    // as if it was killed while it wrote a line
    std::fs::write(folder.path().join(format!("{batch}.output")), working.clone() + "{\"id\":\"batch_r")
        .unwrap();
    let second = site(folder.path(), FileLimits::default());
    let client = Client(&second, "first");
    let ended = client.ended(&batch);
    assert_eq!(ended["status"], "completed", "{ended}");
    let output = client.content(&ended["output_file_id"]);
    let ids: Vec<u64> =
        output.iter().map(|line| line["custom_id"].as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(ids, (0..60).collect::<Vec<u64>>());
}

#[test]
fn a_server_without_a_folder_says_how_to_get_one() {
    let site = Site::new(Setup::default());
    for path in ["/v1/files", "/v1/batches"] {
        let reply = site.get(path);
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (501, &json!("files_disabled")));
    }
}
