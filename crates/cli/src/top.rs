//! `tern top`: the state of a running server, from its metrics.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use tern::formats::shown;

use crate::api::Server;
use crate::args::TopArgs;
use crate::error::CliResult;
use tern::units;

/// The metrics at one time.
struct Sample {
    at: Instant,
    /// Sums over labels other than `le`.
    values: BTreeMap<String, f64>,
    /// Counts of a histogram's observations at or below each bound, by name.
    buckets: BTreeMap<String, Vec<(f64, f64)>>,
    model: Option<String>,
}

impl Sample {
    fn parse(text: &str, at: Instant) -> Sample {
        let mut sample = Sample { at, values: BTreeMap::new(), buckets: BTreeMap::new(), model: None };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            if sample.model.is_none() {
                sample.model = label(labels, "model_name");
            }
            match (name.strip_suffix("_bucket"), label(labels, "le")) {
                (Some(histogram), Some(bound)) => {
                    let bound = bound.parse().unwrap_or(f64::INFINITY);
                    let buckets = sample.buckets.entry(histogram.to_string()).or_default();
                    match buckets.iter_mut().find(|(b, _)| *b == bound) {
                        Some((_, count)) => *count += value,
                        None => buckets.push((bound, value)),
                    }
                }
                _ => *sample.values.entry(name.to_string()).or_default() += value,
            }
        }
        sample.buckets.values_mut().for_each(|b| b.sort_by(|a, b| a.0.total_cmp(&b.0)));
        sample
    }

    fn get(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or(0.0)
    }

    /// The increase of a counter per second since `before`.
    fn rate(&self, before: Option<&Sample>, name: &str) -> f64 {
        let Some(before) = before else { return 0.0 };
        (self.get(name) - before.get(name)).max(0.0) / (self.at - before.at).as_secs_f64().max(1e-3)
    }

    /// The quantile `share` of a histogram's observations since `before`; none without observations.
    fn quantile(&self, before: Option<&Sample>, name: &str, share: f64) -> Option<f64> {
        let now = self.buckets.get(name)?;
        let old = before.and_then(|b| b.buckets.get(name));
        let count = |i: usize| now[i].1 - old.and_then(|o| o.get(i)).map_or(0.0, |o| o.1);
        let all = count(now.len().checked_sub(1)?);
        let at = (0..now.len()).find(|&i| all > 0.0 && count(i) >= share * all)?;
        let (low, below) = if at == 0 { (0.0, 0.0) } else { (now[at - 1].0, count(at - 1)) };
        let high = now[at].0;
        // linear interpolation within the bucket, as in Prometheus
        let within = (share * all - below) / (count(at) - below).max(1e-9);
        Some(if high.is_finite() { low + (high - low) * within } else { low })
    }
}

fn label(labels: &str, name: &str) -> Option<String> {
    let start = labels.find(&format!("{name}=\""))? + name.len() + 2;
    let rest = &labels[start..];
    Some(rest[..rest.find('"')?].to_string())
}

pub(crate) fn top(args: &TopArgs) -> CliResult<()> {
    let base = &args.url;
    let server = Server::new(base, args.api_key.as_deref());
    let mut out = std::io::stdout().lock();
    let live = out.is_terminal() && !args.once;
    let mut before: Option<Sample> = None;
    loop {
        let sample = Sample::parse(&server.get("/metrics")?, Instant::now());
        let text = table(base, &sample, before.as_ref());
        if live {
            write!(out, "\x1b[H\x1b[2J{text}")?; // home, clear
        } else {
            write!(out, "{text}")?;
        }
        out.flush()?;
        if args.once {
            return Ok(());
        }
        before = Some(sample);
        std::thread::sleep(Duration::from_secs_f64(args.interval));
    }
}

fn table(base: &str, now: &Sample, before: Option<&Sample>) -> String {
    let model = shown(now.model.as_deref().unwrap_or("loading"));
    let rate = |name| now.rate(before, name);
    let kv = now.get("vllm:kv_cache_usage_perc");
    let (queries, hits) =
        (now.get("vllm:prefix_cache_queries_total"), now.get("vllm:prefix_cache_hits_total"));
    let reuse = if queries > 0.0 { 100.0 * hits / queries } else { 0.0 };
    let drafted = now.get("vllm:spec_decode_num_draft_tokens_total");
    let accepted = 100.0 * now.get("vllm:spec_decode_num_accepted_tokens_total") / drafted.max(1.0);
    let millis = |name: &str, share| match now.quantile(before, name, share) {
        Some(seconds) => format!("{:.0} ms", seconds * 1e3),
        None => "-".into(),
    };
    let pair = |name: &str| format!("{} / {}", millis(name, 0.5), millis(name, 0.99));
    let whole = |x: f64| units::thousands(x as u64);
    let from_disk = match now.get("tern:disk_cache_hit_tokens_total") {
        0.0 => String::new(),
        tokens => format!(", {} tokens from disk", whole(tokens)),
    };
    let rows = [
        (
            "requests",
            format!(
                "{} running, {} waiting",
                whole(now.get("vllm:num_requests_running")),
                whole(now.get("vllm:num_requests_waiting"))
            ),
        ),
        ("KV cache", format!("{} {:.1} %", bar(kv), 100.0 * kv)),
        (
            "generated",
            format!(
                "{:.1} tokens/s, {} total",
                rate("vllm:generation_tokens_total"),
                whole(now.get("vllm:generation_tokens_total"))
            ),
        ),
        (
            "prompts",
            format!(
                "{:.1} tokens/s, {} total",
                rate("vllm:prompt_tokens_total"),
                whole(now.get("vllm:prompt_tokens_total"))
            ),
        ),
        ("prefix reuse", format!("{reuse:.1} % of prompt tokens{from_disk}")),
        ("drafts", format!("{:.1} % of {} accepted", accepted, whole(drafted))),
        ("first token", format!("{} (p50 / p99)", pair("vllm:time_to_first_token_seconds"))),
        ("inter-token", format!("{} (p50 / p99)", pair("vllm:inter_token_latency_seconds"))),
        (
            "finished",
            format!(
                "{:.2} requests/s, {} total",
                rate("vllm:request_success_total"),
                whole(now.get("vllm:request_success_total"))
            ),
        ),
        ("preempted", whole(now.get("vllm:num_preemptions_total"))),
    ];
    let mut text = format!("{model} at {base}\n\n");
    for (name, value) in rows {
        text += &format!("{name:14} {value}\n");
    }
    text
}

fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * 20.0).round() as usize;
    format!("[{}{}]", "#".repeat(full), ".".repeat(20 - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 3
vllm:generation_tokens_total{model_name="m"} 1500
vllm:kv_cache_usage_perc{model_name="m"} 0.25
vllm:request_success_total{model_name="m",finished_reason="stop"} 4
vllm:request_success_total{model_name="m",finished_reason="length"} 6
vllm:time_to_first_token_seconds_bucket{model_name="m",le="0.1"} 5
vllm:time_to_first_token_seconds_bucket{model_name="m",le="0.2"} 10
vllm:time_to_first_token_seconds_bucket{model_name="m",le="+Inf"} 10
"#;

    #[test]
    fn counters_are_summed_over_labels_and_become_rates() {
        let start = Instant::now();
        let before = Sample::parse(&TEXT.replace("1500", "500"), start);
        let now = Sample::parse(TEXT, start + Duration::from_secs(10));
        assert_eq!(now.get("vllm:request_success_total"), 10.0);
        assert_eq!(now.rate(Some(&before), "vllm:generation_tokens_total"), 100.0);
        assert_eq!(now.model.as_deref(), Some("m"));
    }

    #[test]
    fn quantiles_are_interpolated_within_a_bucket() {
        let now = Sample::parse(TEXT, Instant::now());
        let ttft = "vllm:time_to_first_token_seconds";
        assert_eq!(now.quantile(None, ttft, 0.5), Some(0.1));
        assert!((now.quantile(None, ttft, 0.75).unwrap() - 0.15).abs() < 1e-9);
        assert_eq!(now.quantile(Some(&now), ttft, 0.5), None, "nothing since then");
    }

    #[test]
    fn the_table_shows_requests_and_kv_usage() {
        let text = table("http://h", &Sample::parse(TEXT, Instant::now()), None);
        assert!(
            text.contains("3 running, 0 waiting") && text.contains("[#####...............] 25.0 %"),
            "{text}"
        );
        table("http://h", &Sample::parse("nonsense {\n} 3\nx{le=\"", Instant::now()), None);
    }
}
