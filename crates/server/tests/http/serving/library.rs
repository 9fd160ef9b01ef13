//! Several models in one server: loaded on request, dropped when idle or for memory,
//! independent of each other.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tern_server::{
    CheckedLoad, Config, KeepModels, Library, LibraryModel, LoadError, ModelDetails, ServedModel,
};

use crate::support::{PLAIN, Reply, Site, SiteModel, wait_until};

/// Models `a` and `b`; `broken` has a damaged file, `large` no memory on its device, and `slow` loads once it
/// is released.
#[derive(Clone, Default)]
struct Shelf {
    /// Files that were read.
    opened: Arc<Mutex<Vec<String>>>,
    loads: Arc<AtomicUsize>,
    /// Slow loads that have not ended.
    loading: Arc<AtomicUsize>,
    released: Arc<AtomicBool>,
    default: Option<&'static str>,
    /// The engines that were started, by name.
    started: Arc<Mutex<HashMap<String, SiteModel>>>,
    /// Downloads that were started, and those in progress that were not stopped.
    pulls: Arc<AtomicUsize>,
    pulling: Arc<AtomicUsize>,
    deleted: Arc<Mutex<Vec<String>>>,
}

impl Library for Shelf {
    fn list(&self) -> Vec<LibraryModel> {
        let model = |name: &str| LibraryModel {
            name: name.into(),
            bytes: 1000,
            modified: 1_700_000_000,
            ..LibraryModel::default()
        };
        ["a", "b", "broken", "large", "slow"].map(model).into()
    }

    fn described(&self) -> Vec<LibraryModel> {
        let details = |name: &str| ModelDetails {
            format: "gguf",
            family: "llama".into(),
            parameters: 1_700_000_000,
            quantization: "Q4_K",
            sees: name == "large",
            chats: name != "b",
        };
        let described = |model: LibraryModel| LibraryModel {
            digest: format!("{:0>64}", model.name.len()),
            details: (model.name != "broken").then(|| details(&model.name)),
            ..model
        };
        self.list().into_iter().map(described).collect()
    }

    fn default_model(&self) -> Option<String> {
        self.default.map(str::to_owned)
    }

    fn find(&self, name: &str) -> Option<String> {
        self.list().into_iter().map(|model| model.name).find(|known| known == name)
    }

    fn is_downloadable(&self, name: &str) -> bool {
        name == "known"
    }

    fn open(&self, name: &str, until: Option<Instant>) -> Result<CheckedLoad, String> {
        self.opened.lock().unwrap().push(name.into());
        if name == "broken" {
            return Err("broken: not a GGUF file".into());
        }
        if name == "slow" {
            let until = until.expect("the load has a limit");
            self.loading.fetch_add(1, Ordering::Relaxed);
            while !self.released.load(Ordering::Relaxed) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.loading.fetch_sub(1, Ordering::Relaxed);
            if !self.released.load(Ordering::Relaxed) {
                return Err("slow: given up".into());
            }
        }
        let (shelf, name) = (self.clone(), name.to_owned());
        Ok(CheckedLoad { bytes: 1000, start: Box::new(move || shelf.start(&name)) })
    }

    fn pull(&self, name: &str, progress: &dyn tern::Progress) -> Result<(), String> {
        self.pulls.fetch_add(1, Ordering::Relaxed);
        progress.begin(name, Some(10));
        if name.starts_with("endless") {
            self.pulling.fetch_add(1, Ordering::Relaxed);
            while !progress.stopped() {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.pulling.fetch_sub(1, Ordering::Relaxed);
            return Err("stopped".into());
        }
        progress.at(10);
        progress.end();
        if name == "nowhere" { Err("nowhere: not found".into()) } else { Ok(()) }
    }

    fn delete(&self, name: &str) -> Result<(), String> {
        self.deleted.lock().unwrap().push(name.into());
        Ok(())
    }
}

impl Shelf {
    fn start(&self, name: &str) -> Result<ServedModel, LoadError> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        if name == "large" {
            return Err(LoadError { message: "large: out of memory".into(), is_memory: true });
        }
        let model = SiteModel::new(crate::support::LIMITS);
        let served = ServedModel { names: vec![name.into()], ..model.served(Some(PLAIN)) };
        self.started.lock().unwrap().insert(name.into(), model);
        Ok(served)
    }
}

fn site(shelf: &Shelf, keep_alive: Option<Duration>, memory: Option<u64>) -> Site {
    site_with(shelf, KeepModels { keep_alive, memory, ..KeepModels::default() })
}

/// A server whose models may be changed by requests.
fn site_with(shelf: &Shelf, keep: KeepModels) -> Site {
    Site::of_library(Config { manage_models: true, ..Config::default() }, shelf.clone(), keep)
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
    assert_eq!(statuses(&site), ["unloaded"; 5]);
    assert_eq!((site.get("/health").status, site.get("/ready").status), (200, 200));
    assert_eq!(say(&site, "b")["choices"][0]["message"]["content"], "hi");
    assert_eq!(say(&site, "b:latest")["model"], "b:latest");
    assert_eq!(statuses(&site)[..3], ["unloaded", "loaded", "unloaded"]);
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
    assert_eq!(
        unknown.message(),
        "the model \"c\" does not exist; this server has \"a, b, broken, large, slow\""
    );
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
    let message = "a server of several models has no adapters: start it with one model and its adapters";
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
    assert_eq!(statuses(&site)[..3], ["unloaded", "loaded", "unloaded"]);
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
    assert_eq!(statuses(&site)[..3], ["loaded", "unloaded", "unloaded"]);
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
    let site = Site::of_library(config, shelf.clone(), KeepModels::default());
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
    assert_eq!((delete(&site, "a").status, delete(&site, "nobody").status), (200, 404));
    assert_eq!(*shelf.deleted.lock().unwrap(), ["a"]);
}

fn delete(site: &Site, name: &str) -> Reply {
    site.send("DELETE", "/api/delete", &[], json!({"model": name}).to_string().as_bytes())
}

#[test]
fn models_are_changed_only_with_the_flag_or_with_a_key() {
    let shelf = Shelf::default();
    let site = Site::of_library(Config::default(), shelf.clone(), KeepModels::default());
    let pull = site.post("/api/pull", json!({"model": "a"}));
    let message = "this server does not download models: start it with --manage-models, or with an API key that requests must \
                   send";
    assert_eq!((pull.status, pull.json()), (403, json!({"error": message})));
    assert_eq!(delete(&site, "a").status, 403);
    let config = Config { api_keys: vec!["secret".into()], ..Config::default() };
    let site = Site::of_library(config, shelf.clone(), KeepModels::default());
    assert_eq!(delete(&site, "a").status, 401);
    assert!(shelf.deleted.lock().unwrap().is_empty() && shelf.pulls.load(Ordering::Relaxed) == 0);
    let key = [("authorization", "Bearer secret")];
    assert_eq!(site.send("DELETE", "/api/delete", &key, br#"{"model": "a"}"#).status, 200);
    assert_eq!(site.send("POST", "/api/pull", &key, br#"{"model": "a", "stream": false}"#).status, 200);
}

#[test]
fn names_that_are_paths_are_refused() {
    let shelf = Shelf::default();
    let site = site(&shelf, None, None);
    let long = "x".repeat(300);
    for name in ["../a", "a/../../b", "/etc/passwd", "~/a", ".", "a\\b", "a\0b", "a\nb", "", &long] {
        assert_eq!(delete(&site, name).status, 400, "{name:?}");
        assert_eq!(site.post("/api/pull", json!({"model": name})).status, 400, "{name:?}");
    }
    assert!(shelf.deleted.lock().unwrap().is_empty() && shelf.pulls.load(Ordering::Relaxed) == 0);
}

#[test]
fn a_model_in_use_or_being_loaded_is_not_deleted() {
    let shelf = Shelf::default();
    let site = site(&shelf, None, None);
    let body =
        json!({"model": "a", "stream": true, "messages": [{"role": "user", "content": "say:endless"}]});
    let busy = site.open("POST", "/v1/chat/completions", &[], body.to_string().as_bytes());
    let slow = site.open("POST", "/models/load", &[], br#"{"model": "slow"}"#);
    wait_until(|| statuses(&site)[0] == "loaded" && statuses(&site)[4] == "loading");
    assert_eq!((delete(&site, "a").status, delete(&site, "slow").status), (409, 409));
    assert!(shelf.deleted.lock().unwrap().is_empty());
    shelf.released.store(true, Ordering::Relaxed);
    drop((busy, slow));
    wait_until(|| delete(&site, "a").status == 200 && delete(&site, "slow").status == 200);
    assert_eq!((statuses(&site)[0].as_str(), statuses(&site)[4].as_str()), ("unloaded", "unloaded"));
}

#[test]
fn a_slow_load_delays_no_other_model_and_its_requests_wait_for_a_bounded_time() {
    let shelf = Shelf::default();
    let load_wait = Duration::from_millis(300);
    let site = site_with(&shelf, KeepModels { load_wait, ..KeepModels::default() });
    let waiting = site.chat("hi", json!({"model": "slow"}));
    assert_eq!((waiting.status, &waiting.json()["error"]["code"]), (503, &json!("loading")));
    assert!(waiting.header("retry-after").is_some());
    assert_eq!(say(&site, "a")["choices"][0]["message"]["content"], "hi");
    assert_eq!(say(&site, "b")["choices"][0]["message"]["content"], "hi");
    let all: Vec<String> = statuses(&site);
    assert_eq!((all[0].as_str(), all[1].as_str(), all[4].as_str()), ("loaded", "loaded", "loading"));
    assert_eq!(site.get("/ready").status, 200);
    shelf.released.store(true, Ordering::Relaxed);
    wait_until(|| site.chat("hi", json!({"model": "slow"})).status == 200);
    assert_eq!(shelf.opened.lock().unwrap().iter().filter(|name| *name == "slow").count(), 1);
}

#[test]
fn a_load_that_takes_too_long_ends_and_the_next_request_starts_another() {
    let shelf = Shelf::default();
    let load_timeout = Duration::from_millis(200);
    let site = site_with(&shelf, KeepModels { load_timeout, ..KeepModels::default() });
    let refused = || site.chat("hi", json!({"model": "slow"}));
    let first = refused();
    assert_eq!((first.status, &first.json()["error"]["code"]), (503, &json!("load_failed")));
    assert_eq!(first.message(), "the model could not be loaded: slow: loading takes longer than 0.2 s");
    wait_until(|| shelf.loading.load(Ordering::Relaxed) == 0);
    wait_until(|| matches!(statuses(&site)[4].as_str(), "failed" | "unloaded"));
    shelf.released.store(true, Ordering::Relaxed);
    wait_until(|| refused().status == 200);
    assert_eq!(shelf.opened.lock().unwrap().len(), 2);
}

#[test]
fn a_damaged_file_unloads_no_healthy_model() {
    let shelf = Shelf::default();
    let site = site(&shelf, None, Some(1500)); // each takes 1000
    say(&site, "a");
    assert_eq!(site.chat("hi", json!({"model": "broken"})).status, 503);
    assert_eq!(statuses(&site)[0], "loaded");
    assert_eq!(site.chat("hi", json!({"model": "a"})).status, 200);
    assert_eq!(shelf.loads.load(Ordering::Relaxed), 1);
}

#[test]
fn idle_models_are_dropped_for_one_that_lacks_memory() {
    let shelf = Shelf::default();
    let site = site(&shelf, None, None);
    say(&site, "a");
    let failed = site.chat("hi", json!({"model": "large"}));
    assert_eq!(failed.message(), "the model could not be loaded: large: out of memory");
    assert_eq!(statuses(&site)[0], "unloaded");
    assert_eq!(shelf.loads.load(Ordering::Relaxed), 3, "it was tried twice");
}

#[test]
fn memory_is_reserved_before_a_load() {
    let shelf = Shelf::default();
    let site = site(&shelf, None, Some(1500)); // each takes 1000
    let loads = ["a", "b"]
        .map(|name| site.open("POST", "/models/load", &[], json!({"model": name}).to_string().as_bytes()));
    wait_until(|| statuses(&site)[..2].iter().any(|status| status == "loaded"));
    wait_until(|| statuses(&site)[..2].iter().all(|status| status != "loading"));
    assert_eq!(statuses(&site)[..2].iter().filter(|status| *status == "loaded").count(), 1);
    drop(loads);
}

#[test]
fn a_request_without_a_model_gets_a_loaded_one_or_the_default_or_the_choices() {
    let shelf = Shelf::default();
    let site = site(&shelf, None, None);
    let unnamed = |site: &Site| site.chat("hi", json!({}));
    let refused = unnamed(&site);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("model_required")));
    assert_eq!(refused.message(), "model: name one of this server's models: a, b, broken, large, slow");
    say(&site, "a");
    say(&site, "b");
    assert_eq!(unnamed(&site).json()["model"], "b", "the one that was used last");
    let shelf = Shelf { default: Some("b"), ..Shelf::default() };
    let site = self::site(&shelf, None, None);
    assert_eq!(unnamed(&site).json()["model"], "b");
    say(&site, "a");
    assert_eq!(unnamed(&site).json()["model"], "b", "the default one is loaded");
}

#[test]
fn a_model_that_is_not_downloaded_says_how_to_get_it() {
    let site = site(&Shelf::default(), None, None);
    let missing = site.chat("hi", json!({"model": "known"}));
    let message = "the model \"known\" is not downloaded: use `tern pull known` or /api/pull";
    assert_eq!((missing.status, missing.message().as_str()), (404, message));
}

#[test]
fn two_models_are_downloaded_at_once_each_once_and_only_while_someone_watches() {
    let shelf = Shelf::default();
    let site = site(&shelf, None, None);
    say(&site, "a");
    let open =
        |name: &str| site.open("POST", "/api/pull", &[], json!({"model": name}).to_string().as_bytes());
    let pulling = || shelf.pulling.load(Ordering::Relaxed);
    let (first, second) = (open("endless-1"), open("endless-2"));
    wait_until(|| pulling() == 2);
    let third = site.post("/api/pull", json!({"model": "endless-3"}));
    assert_eq!(third.status, 429);
    assert!(third.header("retry-after").is_some());
    // others watch the same download; completions do not wait for them
    let others: Vec<_> = (0..60).map(|_| open("endless-1")).collect();
    let start = Instant::now();
    assert_eq!(site.chat("hi", json!({"model": "a"})).status, 200);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(shelf.pulls.load(Ordering::Relaxed), 2);
    drop((first, second));
    wait_until(|| pulling() == 1); // no request watches the second one
    drop(others);
    wait_until(|| pulling() == 0);
    wait_until(|| site.post("/api/pull", json!({"model": "a", "stream": false})).status == 200);
}

#[test]
fn unloading_loads_nothing() {
    let shelf = Shelf::default();
    let site = site(&shelf, None, None);
    let generate = |body: Value| site.post("/api/generate", body);
    let reply = generate(json!({"model": "a", "keep_alive": 0})).json();
    assert_eq!((&reply["done_reason"], &reply["response"]), (&json!("unload"), &json!("")));
    let reply =
        site.post("/api/chat", json!({"model": "a:latest", "messages": [], "keep_alive": "0s"})).json();
    assert_eq!((&reply["done_reason"], &reply["message"]["content"]), (&json!("unload"), &json!("")));
    assert!(shelf.opened.lock().unwrap().is_empty());
    assert_eq!(generate(json!({"model": "nobody", "keep_alive": 0})).status, 404);
    assert_eq!(generate(json!({"model": "a"})).json()["done_reason"], "load");
    assert_eq!(statuses(&site)[0], "loaded");
    generate(json!({"name": "a", "prompt": "", "keep_alive": 0}));
    assert_eq!(statuses(&site)[0], "unloaded");
    // with a prompt it answers first
    let answered =
        generate(json!({"model": "a", "prompt": "say:hi", "keep_alive": 0, "stream": false})).json();
    assert_eq!(answered["response"], "hi");
}

#[test]
fn models_that_are_not_loaded_are_described() {
    let site = site(&Shelf::default(), None, None);
    let tags = site.get("/api/tags").json();
    let (a, broken) = (&tags["models"][0], &tags["models"][2]);
    let details = json!({
        "parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"], "parameter_size": "1.7B",
        "quantization_level": "Q4_K",
    });
    assert_eq!((&a["details"], &a["size"]), (&details, &json!(1000)));
    assert_eq!(a["digest"].as_str().unwrap().len(), 64);
    say(&site, "a");
    assert_eq!(site.get("/api/ps").json()["models"][0]["digest"], a["digest"]);
    assert_eq!((&broken["details"]["family"], &broken["size"]), (&json!(""), &json!(1000)));
    let models = site.get("/v1/models").json();
    let capabilities = |at: usize| models["data"][at]["capabilities"].clone();
    assert_eq!(
        [capabilities(0), capabilities(1), capabilities(3)],
        [json!(["completion", "chat"]), json!(["completion"]), json!(["completion", "chat", "vision"])]
    );
    assert!(capabilities(2).is_null());
}
