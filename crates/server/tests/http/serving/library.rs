//! Several models in one server: loaded on request, dropped when idle or for memory, independent of each other.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tern_server::{Config, KeepModels, Library, LibraryModel, ServedModel};

use crate::support::{PLAIN, Site, SiteModel, wait_until};

/// Models `a` and `b`; `broken` cannot be loaded.
#[derive(Clone, Default)]
struct Shelf {
    loads: Arc<AtomicUsize>,
    /// The engines that were started, by name.
    started: Arc<Mutex<HashMap<String, SiteModel>>>,
    deleted: Arc<Mutex<Vec<String>>>,
}

impl Library for Shelf {
    fn list(&self) -> Vec<LibraryModel> {
        let model = |name: &str| LibraryModel { name: name.into(), bytes: 1000, modified: 1_700_000_000 };
        ["a", "b", "broken"].map(model).into()
    }

    fn find(&self, name: &str) -> Option<String> {
        self.list().into_iter().map(|model| model.name).find(|known| known == name)
    }

    fn load(&self, name: &str) -> Result<ServedModel, String> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        if name == "broken" {
            return Err("broken: not a GGUF file".into());
        }
        let model = SiteModel::new(crate::support::LIMITS);
        let served = ServedModel { names: vec![name.into()], ..model.served(Some(PLAIN)) };
        self.started.lock().unwrap().insert(name.into(), model);
        Ok(served)
    }

    fn pull(&self, name: &str, progress: &dyn tern::Progress) -> Result<(), String> {
        progress.begin(name, Some(10));
        progress.at(10);
        progress.end();
        if name == "nowhere" { Err("nowhere: not found".into()) } else { Ok(()) }
    }

    fn delete(&self, name: &str) -> Result<(), String> {
        self.deleted.lock().unwrap().push(name.into());
        Ok(())
    }
}

fn site(shelf: &Shelf, keep_alive: Option<Duration>, memory: Option<u64>) -> Site {
    Site::of_library(Config::default(), shelf.clone(), KeepModels { keep_alive, memory })
}

fn say(site: &Site, model: &str) -> Value {
    site.chat("hi", json!({"model": model})).json()
}

fn statuses(site: &Site) -> Vec<String> {
    let list = site.get("/v1/models").json();
    let status = |entry: &Value| entry["status"]["value"].as_str().unwrap().to_owned();
    list["data"].as_array().unwrap().iter().map(status).collect()
}

#[test]
fn models_are_loaded_when_they_are_requested() {
    let shelf = Shelf::default();
    let site = site(&shelf, None, None);
    assert_eq!(statuses(&site), ["unloaded", "unloaded", "unloaded"]);
    assert_eq!((site.get("/health").status, site.get("/ready").status), (200, 200));
    assert_eq!(say(&site, "b")["choices"][0]["message"]["content"], "hi");
    assert_eq!(say(&site, "b:latest")["model"], "b:latest");
    assert_eq!(statuses(&site), ["unloaded", "loaded", "unloaded"]);
    // without a name: a model that is loaded
    assert_eq!(site.chat("hi", json!({})).json()["model"], "b");
    assert_eq!(shelf.loads.load(Ordering::Relaxed), 1);
    let broken = site.chat("hi", json!({"model": "broken"}));
    assert_eq!(
        (broken.status, broken.message().as_str()),
        (503, "the model could not be loaded: broken: not a GGUF file")
    );
    assert_eq!(say(&site, "b")["choices"][0]["message"]["content"], "hi");
    let unknown = site.chat("hi", json!({"model": "c"}));
    assert_eq!(unknown.message(), "the model \"c\" does not exist; this server has \"a, b, broken\"");
    assert_eq!(site.post("/v1/chat/completions", json!([])).status, 400);
    assert_eq!(site.get("/v1/models/a").json()["status"]["value"], "unloaded");
    let metrics = site.get("/metrics").text;
    assert!(
        metrics.contains("vllm:request_success_total{model_name=\"b\",finished_reason=\"stop\"} 4"),
        "{metrics}"
    );
    assert_eq!(site.post("/models/load", json!({"model": "a"})).json()["status"]["value"], "loaded");
    assert_eq!(site.post("/models/unload", json!({"model": "a"})).json()["success"], true);
    assert_eq!(statuses(&site)[0], "unloaded");
}

#[test]
fn models_of_a_library_have_no_adapters() {
    let site = site(&Shelf::default(), None, None);
    assert_eq!(site.get("/lora-adapters").json(), json!([]));
    let refused = site.post("/lora-adapters", json!([]));
    let message = "a server of several models has no adapters: start it with one model (-m) and --lora";
    assert_eq!((refused.status, refused.message().as_str()), (400, message));
}

#[test]
fn idle_models_are_dropped_and_busy_ones_are_not() {
    let shelf = Shelf::default();
    let site = site(&shelf, Some(Duration::from_millis(50)), None);
    let body =
        json!({"model": "a", "stream": true, "messages": [{"role": "user", "content": "say:endless"}]});
    let busy = site.open("POST", "/v1/chat/completions", &[], body.to_string().as_bytes());
    wait_until(|| statuses(&site)[0] == "loaded");
    say(&site, "b");
    wait_until(|| statuses(&site)[1] == "unloaded");
    assert_eq!(statuses(&site)[0], "loaded");
    drop(busy);
    wait_until(|| statuses(&site)[0] == "unloaded");
    let kept = json!({"model": "a", "keep_alive": -1, "stream": false});
    site.post("/api/generate", kept);
    std::thread::sleep(Duration::from_millis(1200)); // two sweeps
    assert_eq!(statuses(&site)[0], "loaded");
    site.post("/api/generate", json!({"model": "a", "keep_alive": 0}));
    wait_until(|| statuses(&site)[0] == "unloaded");
}

#[test]
fn a_model_is_dropped_for_another_only_if_it_is_idle() {
    let shelf = Shelf::default();
    let site = site(&shelf, None, Some(1500)); // each takes 1000
    say(&site, "a");
    assert_eq!(say(&site, "b")["choices"][0]["message"]["content"], "hi");
    assert_eq!(statuses(&site), ["unloaded", "loaded", "unloaded"]);
    let body =
        json!({"model": "b", "stream": true, "messages": [{"role": "user", "content": "say:endless"}]});
    let busy = site.open("POST", "/v1/chat/completions", &[], body.to_string().as_bytes());
    wait_until(|| shelf.started.lock().unwrap()["b"].handle.stats().running == 1);
    let refused = site.chat("hi", json!({"model": "a"}));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("memory_full")));
    assert_eq!(
        refused.message(),
        "the models in use take 1000 bytes, and 1000 more exceed the limit of 1500: retry later"
    );
    assert_eq!(statuses(&site)[1], "loaded");
    drop(busy);
    wait_until(|| site.chat("hi", json!({"model": "a"})).status == 200);
    assert_eq!(statuses(&site), ["loaded", "unloaded", "unloaded"]);
    assert_eq!(shelf.loads.load(Ordering::Relaxed), 3);
}

#[test]
fn a_failure_while_one_model_answers_does_not_touch_another() {
    let shelf = Shelf::default();
    let site = site(&shelf, None, None);
    say(&site, "a");
    let body =
        json!({"model": "b", "stream": true, "messages": [{"role": "user", "content": "say:endless"}]});
    let busy = site.open("POST", "/v1/chat/completions", &[], body.to_string().as_bytes());
    let running = || shelf.started.lock().unwrap().get("b").map_or(0, |model| model.handle.stats().running);
    wait_until(|| running() == 1);
    shelf.started.lock().unwrap()["a"].handle.shutdown(); // the engine of the other one ends
    let generated = || shelf.started.lock().unwrap()["b"].handle.stats().tokens_generated;
    let before = generated();
    wait_until(|| generated() > before + 20);
    let broken = site.chat("hi", json!({"model": "broken"}));
    assert_eq!(broken.status, 503);
    assert_eq!(running(), 1);
    drop(busy);
    wait_until(|| running() == 0);
    assert_eq!(say(&site, "a")["choices"][0]["message"]["content"], "hi");
}

#[test]
fn an_engine_that_is_stuck_refuses_only_its_own_requests() {
    let shelf = Shelf::default();
    let config = Config { stall_timeout: Duration::from_millis(50), ..Config::default() };
    let site = Site::of_library(config, shelf.clone(), KeepModels { keep_alive: None, memory: None });
    let body = json!({"model": "a", "stream": true, "messages": [{"role": "user", "content": "say:stick"}]});
    let stuck = site.open("POST", "/v1/chat/completions", &[], body.to_string().as_bytes());
    wait_until(|| site.get("/health").status == 503);
    let refused = site.chat("hi", json!({"model": "a"})).json();
    assert_eq!(refused["error"]["code"], "engine_stuck", "{refused}");
    assert_eq!(say(&site, "b")["choices"][0]["message"]["content"], "hi");
    assert_eq!(site.get("/ready").status, 200); // other models are served
    let metrics = site.get("/metrics").text;
    for line in ["tern:engine_up{model_name=\"a\"} 0", "tern:engine_up{model_name=\"b\"} 1"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    shelf.started.lock().unwrap()["a"].faults.released.store(true, Ordering::Relaxed);
    wait_until(|| site.chat("hi", json!({"model": "a"})).status == 200);
    assert_eq!(site.get("/health").status, 200);
    drop(stuck);
}

#[test]
fn an_engine_that_ends_is_replaced_and_touches_no_other_model() {
    let shelf = Shelf::default();
    let site = site(&shelf, None, None);
    say(&site, "a");
    say(&site, "b");
    shelf.started.lock().unwrap()["a"].handle.shutdown();
    assert_eq!(say(&site, "b")["choices"][0]["message"]["content"], "hi");
    assert_eq!(say(&site, "a")["choices"][0]["message"]["content"], "hi");
    assert_eq!(shelf.loads.load(Ordering::Relaxed), 3);
    assert_eq!(site.get("/health").status, 200);
}

#[test]
fn downloads_report_their_progress_and_models_are_deleted() {
    let shelf = Shelf::default();
    let site = site(&shelf, None, None);
    let lines = |name: &str| -> Vec<Value> {
        let text = site.post("/api/pull", json!({"model": name})).text;
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let reports = lines("a");
    assert_eq!(reports.first().unwrap()["status"], "pulling manifest");
    assert!(reports.iter().any(|report| report["completed"] == 10 && report["total"] == 10), "{reports:?}");
    assert_eq!(reports.last().unwrap(), &json!({"status": "success"}));
    assert_eq!(lines("nowhere").last().unwrap(), &json!({"error": "nowhere: not found"}));
    let whole = site.post("/api/pull", json!({"model": "a", "stream": false}));
    assert_eq!(whole.json(), json!({"status": "success"}));
    let delete =
        |name: &str| site.send("DELETE", "/api/delete", &[], json!({"model": name}).to_string().as_bytes());
    assert_eq!((delete("a").status, delete("nobody").status), (200, 404));
    assert_eq!(*shelf.deleted.lock().unwrap(), ["a"]);
}
