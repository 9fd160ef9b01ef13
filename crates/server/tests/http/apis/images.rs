//! Images in every API: a small trained model says what is on pictures, and hostile files are refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tern::{AdapterScales, Model, PartialSampling, Sampling};
use tern_server::{Config, DefaultAdapters, ImageUrlError, ImageUrls, ServedModel};

use crate::support::{Setup, Site};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/pictures").join(name)
}

/// A server with a model that sees.
fn site() -> Site {
    seeing(Setup::default())
}

fn seeing(setup: Setup) -> Site {
    let (site, loader) = Site::loading(setup);
    let model = Model::load(&fixture("model.gguf").display().to_string()).unwrap();
    loader.ready(ServedModel {
        names: vec!["seeing".into()],
        created: 1_700_000_000,
        digest: format!("{:0>64}", 2),
        model: model.with_adapters(AdapterScales::NONE),
        defaults: PartialSampling::USUAL.over(Sampling::default()),
        default_adapters: DefaultAdapters::default(),
    });
    site
}

/// Pictures in base64, with a question and what `transformers` answers.
fn held_out(count: usize) -> Vec<[String; 3]> {
    let rows: Value =
        serde_json::from_str(&std::fs::read_to_string(fixture("held-out.json")).unwrap()).unwrap();
    let row =
        |row: &Value| ["image", "question", "transformers"].map(|key| row[key].as_str().unwrap().to_string());
    rows.as_array().unwrap().iter().take(count).map(row).collect()
}

fn url(image: &str) -> String {
    format!("data:image/png;base64,{image}")
}

/// A body of the OpenAI chat API about some pictures.
fn chat(images: &[&str], question: &str) -> Value {
    let images = images.iter().map(|image| json!({"type": "image_url", "image_url": {"url": url(image)}}));
    let parts: Vec<Value> = images.chain([json!({"type": "text", "text": question})]).collect();
    json!({"temperature": 0, "max_tokens": 24, "messages": [{"role": "user", "content": parts}]})
}

#[test]
fn all_apis_answer_about_pictures() {
    let site = site();
    for [image, question, want] in held_out(6) {
        let reply = site.post("/v1/chat/completions", chat(&[&image], &question)).json();
        assert_eq!(reply["choices"][0]["message"]["content"], json!(want), "{reply}");
        let body = json!({
            "temperature": 0, "max_output_tokens": 24,
            "input": [{"role": "user", "content": [
                {"type": "input_image", "image_url": url(&image), "detail": "auto"}, {"type": "input_text", "text": question}]}],
        });
        let reply = site.post("/v1/responses", body).json();
        assert_eq!(reply["output"][0]["content"][0]["text"], json!(want), "{reply}");
        let source = json!({"type": "base64", "media_type": "image/png", "data": image});
        let body = json!({
            "temperature": 0, "max_tokens": 24,
            "messages": [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": question}]}],
        });
        let reply = site.post("/v1/messages", body).json();
        assert_eq!(reply["content"][0]["text"], json!(want), "{reply}");
        let body = json!({
            "stream": false, "options": {"temperature": 0, "num_predict": 24},
            "model": "seeing", "messages": [{"role": "user", "content": question, "images": [image]}],
        });
        let reply = site.post("/api/chat", body).json();
        assert_eq!(reply["message"]["content"], json!(want), "{reply}");
    }
}

#[test]
fn results_of_tools_and_prompts_of_ollama_have_images() {
    let site = site();
    let [image, question, _] = &held_out(1)[0];
    let result = |content: Value| {
        let call = json!({"type": "tool_use", "id": "t1", "name": "camera", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": "t1", "content": content});
        let messages = json!([
            {"role": "user", "content": "Take a picture."},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result, {"type": "text", "text": question}]}]);
        let reply = site.post("/v1/messages", json!({"max_tokens": 4, "messages": messages}));
        assert_eq!(reply.status, 200, "{}", reply.text);
        // with those of the cache
        let reply = site.post("/v1/messages/count_tokens", json!({"messages": messages})).json();
        reply["input_tokens"].as_u64().unwrap_or_else(|| panic!("{reply}"))
    };
    let source = json!({"type": "base64", "media_type": "image/png", "data": image});
    let block = json!({"type": "image", "source": source});
    // 9 rows, and a token before and after them
    let text = json!({"type": "text", "text": "Here."});
    let without = result(json!([text]));
    assert_eq!(result(json!([text, block])), without + 11);
    assert_eq!(result(json!([block, text, block])), without + 22);
    let body = |images: Value| {
        let options = json!({"temperature": 0, "num_predict": 24});
        json!({"model": "seeing", "stream": false, "options": options, "prompt": question, "images": images})
    };
    let with = |images: Value| site.post("/api/generate", body(images)).json();
    let (one, none) = (with(json!([image])), with(json!([])));
    let tokens = |reply: &Value| reply["prompt_eval_count"].as_u64().unwrap_or_else(|| panic!("{reply}"));
    assert_eq!(tokens(&one), tokens(&none) + 11);
    let same = with(json!([url(image)]));
    assert_eq!((&same["response"], tokens(&same)), (&one["response"], tokens(&one)));
}

#[test]
fn every_kind_of_file_is_read() {
    let site = site();
    let recorded = include_str!("../../../../images/tests/pictures.json");
    let recorded: Value = serde_json::from_str(recorded).unwrap();
    for file in recorded["files"].as_array().unwrap() {
        let image = file["file"].as_str().unwrap();
        // the type is seen from the bytes, whatever the URI says
        let reply = site.post("/v1/chat/completions", chat(&[image], "What is this?"));
        assert_eq!(reply.status, 200, "{}: {}", file["name"], reply.text);
    }
}

/// Pictures at URLs, and how often they were read.
#[derive(Debug, Default)]
struct Album(AtomicUsize);

impl ImageUrls for Album {
    fn read(&self, url: &str, max_bytes: usize, _: Instant) -> Result<Vec<u8>, ImageUrlError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let number =
            url.strip_prefix("https://album.example/").and_then(|number| number.parse::<usize>().ok());
        let Some(number) = number else { return Err(ImageUrlError::Refused("no such host".into())) };
        let file = STANDARD.decode(&held_out(number + 1)[number][0]).unwrap();
        assert!(file.len() <= max_bytes);
        Ok(file)
    }
}

#[test]
fn images_by_url_are_read_once_per_request() {
    let album = Arc::new(Album::default());
    let urls: Arc<dyn ImageUrls> = Arc::clone(&album) as _;
    let site =
        seeing(Setup { config: Config { image_urls: Some(urls), ..Config::default() }, ..Setup::default() });
    let rows = held_out(2);
    let part = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let ask = |urls: &[&str], question: &str| {
        let parts: Vec<Value> =
            urls.iter().map(|url| part(url)).chain([json!({"type": "text", "text": question})]).collect();
        let body =
            json!({"temperature": 0, "max_tokens": 24, "messages": [{"role": "user", "content": parts}]});
        site.post("/v1/chat/completions", body)
    };
    let content = |reply: Value| reply["choices"][0]["message"]["content"].clone();
    for (at, [image, question, _]) in rows.iter().enumerate() {
        let by_url = ask(&[&format!("https://album.example/{at}")], question).json();
        let sent = site.post("/v1/chat/completions", chat(&[image], question)).json();
        assert_eq!(by_url["usage"]["prompt_tokens"], sent["usage"]["prompt_tokens"]);
        assert_eq!(content(by_url), content(sent));
    }
    let read = || album.0.swap(0, Ordering::Relaxed);
    assert_eq!(read(), 2);
    let first = "https://album.example/0";
    assert_eq!(ask(&[first, "https://album.example/1", first], "What is this?").status, 200);
    assert_eq!(read(), 2);
    let refused = ask(&[first, "https://other.example/0"], "What is this?");
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("image_url_refused")));
    read();
    // nothing is read for a request that is refused anyway
    let body = json!({"temperature": 9, "messages": [{"role": "user", "content": [part(first)]}]});
    assert_eq!((site.post("/v1/chat/completions", body).status, read()), (400, 0));
}

#[test]
fn rows_of_images_count_as_tokens_of_the_prompt() {
    let site = site();
    let rows = held_out(3); // 48 x 48, 64 x 48 and 48 x 64 pixels, of 16 x 16 per row
    let used = |images: &[&str]| {
        let reply = site.post("/v1/chat/completions", chat(images, "What is this?")).json();
        reply["usage"]["prompt_tokens"].as_u64().unwrap_or_else(|| panic!("{reply}"))
    };
    let one = used(&[&rows[0][0]]);
    assert_eq!(used(&[&rows[1][0]]) - one, 3);
    assert_eq!(used(&[&rows[0][0], &rows[1][0]]) - one, 12 + 2); // with a token before and after
    let models = site.get("/v1/models").json();
    assert_eq!(models["data"][0]["capabilities"], json!(["completion", "chat", "vision"]), "{models}");
}

#[test]
fn a_model_that_does_not_see_answers_400() {
    let site = Site::new(Setup::default());
    let [image, question, _] = &held_out(1)[0];
    let reply = site.post("/v1/chat/completions", chat(&[image], question));
    assert_eq!(reply.status, 400, "{}", reply.text);
    assert_eq!(reply.json()["error"]["code"], "images_not_supported", "{}", reply.text);
}

/// A BMP of this size without any pixels.
fn bmp(width: u32, height: u32) -> Vec<u8> {
    let mut file = b"BM".to_vec();
    file.extend([0; 8]);
    file.extend(54u32.to_le_bytes());
    file.extend(40u32.to_le_bytes());
    file.extend(width.to_le_bytes());
    file.extend(height.to_le_bytes());
    file.extend([1, 0, 24, 0]);
    file.extend([0; 24]);
    file
}

#[test]
fn files_that_cannot_be_read_are_refused_with_the_reason() {
    let site = site();
    let good = STANDARD.decode(&held_out(1)[0][0]).unwrap();
    let mut thin = bmp(1, 30_000);
    thin.resize(54 + 4 * 30_000, 7);
    for (file, want) in [
        (good[..good.len() / 2].to_vec(), "the PNG image cannot be decoded"),
        (bmp(0, 0), "(0x0 "),
        (bmp(60_000, 60_000), "60000 x 60000 pixels: want at most"),
        (thin, "want a side at most 200 times as long as the other"),
        (b"%PDF-1.7".to_vec(), "in no known format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>".to_vec(), "in no known format"),
    ] {
        let reply = site.post("/v1/chat/completions", chat(&[&STANDARD.encode(&file)], "What is this?"));
        assert_eq!(reply.status, 400, "{want}: {}", reply.text);
        assert!(reply.text.contains(want), "{want}: {}", reply.text);
    }
    // 50 MB of base64, which is more than --max-body
    let reply = site.post("/v1/chat/completions", chat(&[&"A".repeat(50 << 20)], "What is this?"));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (413, &json!("body_too_large")));
    let image = STANDARD.encode(&good);
    let many: Vec<&str> = (0..100).map(|_| image.as_str()).collect();
    let reply = site.post("/v1/chat/completions", chat(&many, "What is this?"));
    assert_eq!(reply.status, 400, "{}", reply.text);
    assert!(reply.text.contains("100 images"), "{}", reply.text);
    for (url, want) in [
        ("http://169.254.169.254/latest", "image_url_refused"),
        ("file:///etc/passwd", "image_url_refused"),
        ("data:text/html;base64,AAAA", "the media type of an image"),
        ("data:image/png;base64,", "the image is empty"),
    ] {
        let parts = json!([{"type": "image_url", "image_url": {"url": url}}]);
        let reply =
            site.post("/v1/chat/completions", json!({"messages": [{"role": "user", "content": parts}]}));
        assert_eq!(reply.status, 400, "{url}: {}", reply.text);
        assert!(reply.text.contains(want), "{url}: {}", reply.text);
    }
    // the model still answers
    let [image, question, want] = &held_out(1)[0];
    let reply = site.post("/v1/chat/completions", chat(&[image], question)).json();
    assert_eq!(reply["choices"][0]["message"]["content"], json!(want));
}

#[test]
fn a_placeholder_in_a_text_is_no_image() {
    let site = site();
    let [image, question, want] = &held_out(1)[0];
    let spelled = format!("<|image_pad|>{question}");
    let alone = json!({"max_tokens": 4, "messages": [{"role": "user", "content": spelled}]});
    assert_eq!(site.post("/v1/chat/completions", alone).status, 200);
    let reply = site.post("/v1/chat/completions", chat(&[image], question)).json();
    assert_eq!(reply["choices"][0]["message"]["content"], json!(want));
}
