//! Metrics in Prometheus' text format, with vLLM's names if vLLM has the metric.
//!
//! By hand, because `prometheus-client` writes OpenMetrics only: the families of counters would lose their
//! `_total`, and the bounds of buckets would have other texts.

mod adapters;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tern::engine::Stats;

pub(crate) use self::adapters::AdapterRequest;
use self::adapters::AdapterRequests;

/// Histogram bounds, equal to vLLM's except for the shortest times.
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const BETWEEN_TOKENS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0,
];
const REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0,
    100000.0, 200000.0,
];

/// What the server counts, in addition to the engines' statistics.
#[derive(Default)]
pub(crate) struct Metrics {
    counts: Mutex<Counts>,
    adapters: AdapterRequests,
}

#[derive(Default)]
struct Counts {
    /// By the model's name.
    models: BTreeMap<String, Counted>,
    responses: BTreeMap<u16, u64>,
}

/// The requests of one model.
struct Counted {
    first_token: Histogram,
    between_tokens: Histogram,
    request: Histogram,
    queue: Histogram,
    prompt_tokens: Histogram,
    generated_tokens: Histogram,
    finished: BTreeMap<&'static str, u64>,
}

/// A finished request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) reason: &'static str,
    pub(crate) took: Duration,
    pub(crate) prompt_tokens: usize,
    pub(crate) generated_tokens: usize,
}

/// The state of the engine when the metrics are read.
pub(crate) struct Engine {
    pub(crate) stats: Stats,
    /// Tokens of a KV page.
    pub(crate) page_len: usize,
    /// Adapters that are loaded.
    pub(crate) adapters: usize,
    /// It has not ended and is not stuck.
    pub(crate) up: bool,
    /// Age of the step in flight.
    pub(crate) step: Duration,
}

impl Counted {
    fn new() -> Counted {
        Counted {
            first_token: Histogram::new(FIRST_TOKEN),
            between_tokens: Histogram::new(BETWEEN_TOKENS),
            request: Histogram::new(REQUEST),
            queue: Histogram::new(REQUEST),
            prompt_tokens: Histogram::new(TOKENS),
            generated_tokens: Histogram::new(TOKENS),
            finished: ["stop", "length", "abort", "error"].map(|reason| (reason, 0)).into(),
        }
    }
}

impl Metrics {
    pub(crate) fn first_token(&self, model: &str, after: Duration) {
        self.count(model, |counted| counted.first_token.add(after.as_secs_f64()));
    }

    pub(crate) fn between_tokens(&self, model: &str, gap: Duration) {
        self.count(model, |counted| counted.between_tokens.add(gap.as_secs_f64()));
    }

    pub(crate) fn queued(&self, model: &str, time: Duration) {
        self.count(model, |counted| counted.queue.add(time.as_secs_f64()));
    }

    pub(crate) fn finished(&self, model: &str, request: Finished) {
        self.count(model, |counted| {
            *counted.finished.entry(request.reason).or_default() += 1;
            counted.request.add(request.took.as_secs_f64());
            counted.prompt_tokens.add(request.prompt_tokens as f64);
            counted.generated_tokens.add(request.generated_tokens as f64);
        });
    }

    pub(crate) fn response(&self, status: u16) {
        *self.lock().responses.entry(status).or_default() += 1;
    }

    /// A request that waits, with the adapters of these names.
    pub(crate) fn adapters(&self, model: &str, names: Vec<String>) -> AdapterRequest<'_> {
        self.adapters.begin(model, names)
    }

    fn count(&self, model: &str, add: impl FnOnce(&mut Counted)) {
        let mut counts = self.lock();
        if !counts.models.contains_key(model) {
            counts.models.insert(model.to_owned(), Counted::new());
        }
        if let Some(counted) = counts.models.get_mut(model) {
            add(counted);
        }
    }

    /// All metrics as text; `engines` are those of loaded models, by name.
    pub(crate) fn text(&self, engines: &[(&str, Engine)]) -> String {
        for (model, _) in engines {
            self.count(model, |_| {}); // a loaded model has all metrics
        }
        let counts = self.lock();
        let mut page = Page::default();
        page.family("tern:http_responses_total", "counter", "HTTP responses by status code.");
        for (status, count) in &counts.responses {
            page.sample("", &[("code", &status.to_string())], count);
        }
        let tables: Vec<_> = engines.iter().map(|(model, engine)| (*model, engine_metrics(engine))).collect();
        for at in 0..tables.first().map_or(0, |(_, table)| table.len()) {
            for (first, (model, table)) in tables.iter().enumerate() {
                let (metric, kind, help, value) = table[at];
                if first == 0 {
                    page.family(metric, kind, help);
                }
                page.sample("", &[("model_name", model)], value);
            }
        }
        self.infos(engines, &mut page);
        if counts.models.is_empty() {
            return page.text;
        }
        page.family("vllm:request_success_total", "counter", "Finished requests by reason.");
        for (model, counted) in &counts.models {
            for (reason, count) in &counted.finished {
                page.sample("", &[("model_name", model), ("finished_reason", reason)], count);
            }
        }
        for (metric, help, histogram) in HISTOGRAMS {
            page.family(metric, "histogram", help);
            for (model, counted) in &counts.models {
                page.histogram(&[("model_name", model)], histogram(counted));
            }
        }
        page.text
    }

    /// What schedulers of clusters read in labels: the size of the KV cache, and the adapters in use.
    fn infos(&self, engines: &[(&str, Engine)], page: &mut Page) {
        if engines.is_empty() {
            return;
        }
        page.family("vllm:cache_config_info", "gauge", "The KV cache: tokens of a page, and pages.");
        for (model, engine) in engines {
            let (tokens, pages) = (engine.page_len.to_string(), engine.stats.pages_total.to_string());
            page.sample("", &[("model_name", model), ("block_size", &tokens), ("num_gpu_blocks", &pages)], 1);
        }
        page.family(
            "vllm:lora_requests_info",
            "gauge",
            "Adapters of running and of waiting requests; the value is the time of the last change.",
        );
        for (model, engine) in engines {
            let (most, names) = (engine.adapters.to_string(), self.adapters.names(model));
            let labels = [
                ("model_name", *model),
                ("max_lora", &most),
                ("running_lora_adapters", &names.running),
                ("waiting_lora_adapters", &names.waiting),
            ];
            page.sample("", &labels, names.changed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Selects a histogram of a model.
type Select = fn(&Counted) -> &Histogram;

/// Name, help and values of the histograms.
const HISTOGRAMS: [(&str, &str, Select); 6] = [
    ("vllm:time_to_first_token_seconds", "Time to first token.", |c| &c.first_token),
    ("vllm:inter_token_latency_seconds", "Time between two tokens of a sequence.", |c| &c.between_tokens),
    ("vllm:e2e_request_latency_seconds", "Time from request to last token.", |c| &c.request),
    ("vllm:request_queue_time_seconds", "Time a sequence waited in the queue.", |c| &c.queue),
    ("vllm:request_prompt_tokens", "Prompt tokens of a request.", |c| &c.prompt_tokens),
    ("vllm:request_generation_tokens", "Generated tokens of a request.", |c| &c.generated_tokens),
];

/// Name, type, help and value of the engine's metrics.
fn engine_metrics(engine: &Engine) -> [(&'static str, &'static str, &'static str, f64); 33] {
    let stats = &engine.stats;
    let total = stats.pages_total.max(1) as f64;
    let used = stats.pages_total.saturating_sub(stats.pages_free) as f64;
    let state_bytes = |slots: usize| slots as f64 * stats.state_slot_bytes as f64;
    [
        ("vllm:num_requests_running", "gauge", "Sequences that are running.", stats.running as f64),
        (
            "vllm:num_requests_waiting",
            "gauge",
            "Sequences that are waiting in the queue.",
            stats.waiting as f64,
        ),
        ("vllm:kv_cache_usage_perc", "gauge", "Fraction of KV pages in use.", used / total),
        (
            "vllm:prefix_cache_queries_total",
            "counter",
            "Prompt tokens looked up in the prefix cache.",
            stats.started_tokens as f64,
        ),
        (
            "vllm:prefix_cache_hits_total",
            "counter",
            "Prompt tokens found in the prefix cache.",
            stats.cached_tokens as f64,
        ),
        ("vllm:prompt_tokens_total", "counter", "Prompt tokens processed.", stats.prompt_tokens as f64),
        ("vllm:generation_tokens_total", "counter", "Tokens generated.", stats.tokens_generated as f64),
        ("vllm:num_preemptions_total", "counter", "Preempted sequences.", stats.preemptions as f64),
        (
            "tern:engine_up",
            "gauge",
            "0 if the engine is stuck or has ended, otherwise 1.",
            f64::from(engine.up),
        ),
        ("tern:engine_step_seconds", "gauge", "Age of the step in flight.", engine.step.as_secs_f64()),
        ("tern:engine_steps_total", "counter", "Steps of the engine.", stats.steps as f64),
        ("tern:kv_pages_total", "gauge", "KV pages.", stats.pages_total as f64),
        (
            "tern:kv_pages_free",
            "gauge",
            "KV pages not in use, including cached ones.",
            stats.pages_free as f64,
        ),
        ("tern:kv_pages_cached", "gauge", "Free KV pages with cached prefixes.", stats.pages_cached as f64),
        ("tern:kv_pages_used", "gauge", "KV pages in use.", used),
        (
            "tern:kv_window_pages_total",
            "gauge",
            "KV pages of window layers; 0 if the model has none.",
            stats.window_pages_total as f64,
        ),
        (
            "tern:kv_window_pages_free",
            "gauge",
            "KV pages of window layers not in use, including cached ones.",
            stats.window_pages_free as f64,
        ),
        (
            "tern:kv_window_pages_cached",
            "gauge",
            "Free KV pages of window layers with cached prefixes.",
            stats.window_pages_cached as f64,
        ),
        (
            "tern:state_slots_total",
            "gauge",
            "Slots for the state of recurrent layers; 0 if the model has none.",
            stats.state_slots_total as f64,
        ),
        (
            "tern:state_slots_free",
            "gauge",
            "State slots not in use, including those with a snapshot.",
            stats.state_slots_free as f64,
        ),
        ("tern:state_bytes", "gauge", "Memory of all state slots.", state_bytes(stats.state_slots_total)),
        (
            "tern:state_snapshots",
            "gauge",
            "State slots with a snapshot of a cached prefix.",
            stats.state_snapshots as f64,
        ),
        (
            "tern:state_snapshot_bytes",
            "gauge",
            "Memory of the state slots with a snapshot.",
            state_bytes(stats.state_snapshots),
        ),
        (
            "vllm:spec_decode_num_drafts_total",
            "counter",
            "Steps of sequences with drafts of speculative decoding.",
            stats.drafted_steps as f64,
        ),
        (
            "vllm:spec_decode_num_draft_tokens_total",
            "counter",
            "Drafts computed.",
            stats.drafted_tokens as f64,
        ),
        (
            "vllm:spec_decode_num_accepted_tokens_total",
            "counter",
            "Drafts that equal what was sampled.",
            stats.accepted_tokens as f64,
        ),
        ("tern:state_snapshots_taken_total", "counter", "Snapshots taken.", stats.snapshots_taken as f64),
        (
            "tern:state_snapshot_hits_total",
            "counter",
            "Prompts that started after a snapshot.",
            stats.snapshot_hits as f64,
        ),
        (
            "tern:disk_cache_hit_tokens_total",
            "counter",
            "Tokens whose KV pages came back from the cache on disk.",
            stats.disk_hit_tokens as f64,
        ),
        (
            "tern:disk_cache_reads_total",
            "counter",
            "Pages and snapshots that came back from the cache on disk.",
            stats.disk_reads as f64,
        ),
        (
            "tern:disk_cache_writes_total",
            "counter",
            "Pages and snapshots written to the cache on disk.",
            stats.disk_writes as f64,
        ),
        (
            "tern:disk_cache_files",
            "gauge",
            "Files in the cache on disk, of all models.",
            stats.disk_files as f64,
        ),
        ("tern:disk_cache_bytes", "gauge", "Bytes of these files.", stats.disk_bytes as f64),
    ]
}

struct Histogram {
    bounds: &'static [f64],
    /// One per bound, and one for values above all bounds.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn add(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }
}

/// Prometheus' text, version 0.0.4.
#[derive(Default)]
struct Page {
    text: String,
    /// The family that the next samples belong to.
    name: &'static str,
}

impl Page {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let label = |(key, value): &(&str, &str)| format!("{key}=\"{}\"", escaped(value));
        let labels: Vec<String> = labels.iter().map(label).collect();
        let _ = writeln!(self.text, "{}{suffix}{{{}}} {value}", self.name, labels.join(","));
    }

    fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        let mut below = 0;
        let bounds = histogram.bounds.iter().map(f64::to_string).chain(["+Inf".into()]);
        for (bound, count) in bounds.zip(&histogram.counts) {
            below += count;
            self.sample("_bucket", &[labels, &[("le", &bound)]].concat(), below);
        }
        self.sample("_sum", labels, histogram.sum);
        self.sample("_count", labels, below);
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_names_labels_and_growing_buckets() {
        let metrics = Metrics::default();
        let model = "a\"b";
        metrics.first_token(model, Duration::from_millis(5));
        metrics.first_token(model, Duration::from_millis(300));
        metrics.first_token(model, Duration::from_secs(9999));
        metrics.response(200);
        let took = Duration::from_secs(1);
        metrics.finished(model, Finished { reason: "stop", took, prompt_tokens: 3, generated_tokens: 4 });
        let stats = Stats { pages_total: 10, pages_free: 4, running: 2, ..Stats::default() };
        let slots = Stats { state_slots_total: 9, state_slots_free: 6, state_snapshots: 5, ..stats };
        let stats = Stats { state_slot_bytes: 1000, snapshots_taken: 70, snapshot_hits: 30, ..slots };
        let step = Duration::from_millis(1500);
        let mut adapted = metrics.adapters(model, vec!["x".into()]);
        adapted.run();
        let engine = Engine { stats, page_len: 32, adapters: 2, up: false, step };
        let text = metrics.text(&[(model, engine)]);
        let adapters = "vllm:lora_requests_info{model_name=\"a\\\"b\",max_lora=\"2\",running_lora_adapters=\"x\",waiting_lora_adapters=\"\"} ";
        let changed = text.lines().find_map(|line| line.strip_prefix(adapters)?.parse::<f64>().ok());
        assert!(changed.is_some_and(|changed| changed > 1e9), "{text}");
        for line in [
            "vllm:cache_config_info{model_name=\"a\\\"b\",block_size=\"32\",num_gpu_blocks=\"10\"} 1",
            "# TYPE vllm:num_requests_running gauge",
            "vllm:num_requests_running{model_name=\"a\\\"b\"} 2",
            "vllm:kv_cache_usage_perc{model_name=\"a\\\"b\"} 0.6",
            "vllm:request_success_total{model_name=\"a\\\"b\",finished_reason=\"stop\"} 1",
            "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.005\"} 1",
            "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.5\"} 2",
            "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 3",
            "vllm:time_to_first_token_seconds_count{model_name=\"a\\\"b\"} 3",
            "tern:http_responses_total{code=\"200\"} 1",
            "tern:engine_up{model_name=\"a\\\"b\"} 0",
            "tern:engine_step_seconds{model_name=\"a\\\"b\"} 1.5",
            "tern:state_slots_total{model_name=\"a\\\"b\"} 9",
            "tern:state_slots_free{model_name=\"a\\\"b\"} 6",
            "tern:state_bytes{model_name=\"a\\\"b\"} 9000",
            "tern:state_snapshots{model_name=\"a\\\"b\"} 5",
            "tern:state_snapshot_bytes{model_name=\"a\\\"b\"} 5000",
            "tern:state_snapshots_taken_total{model_name=\"a\\\"b\"} 70",
            "tern:state_snapshot_hits_total{model_name=\"a\\\"b\"} 30",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }
}
