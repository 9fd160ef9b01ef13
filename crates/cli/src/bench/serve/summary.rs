//! The measurements of a round in vLLM's terms: throughput, and the distribution of each latency.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::load::{Load, Record};

/// Requests that are sent this many seconds after their arrival time are late.
const LATE: f64 = 0.05;

/// A distribution of latencies in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Latencies {
    /// Ascending.
    sorted: Vec<f64>,
}

impl Latencies {
    pub(crate) fn new(values: impl IntoIterator<Item = f64>) -> Latencies {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        Latencies { sorted }
    }

    pub(crate) fn values(&self) -> &[f64] {
        &self.sorted
    }

    /// None without values.
    pub(crate) fn mean(&self) -> Option<f64> {
        let count = self.sorted.len();
        (count > 0).then(|| self.sorted.iter().sum::<f64>() / count as f64)
    }

    /// The percentile with linear interpolation, as numpy and vLLM compute it; none without values.
    pub(crate) fn percentile(&self, percent: f64) -> Option<f64> {
        let last = self.sorted.len().checked_sub(1)?;
        let at = percent / 100.0 * last as f64;
        let (low, high) = (at.floor() as usize, at.ceil() as usize);
        Some(self.sorted[low] + (self.sorted[high] - self.sorted[low]) * (at - at.floor()))
    }
}

/// The columns of the distributions: the name in tables, the name in JSON, the percentile (none is the mean).
pub(crate) const COLUMNS: [(&str, &str, Option<f64>); 4] = [
    ("mean", "mean", None),
    ("median", "median", Some(50.0)),
    ("P90", "p90", Some(90.0)),
    ("P99", "p99", Some(99.0)),
];

/// A round.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) streams: usize,
    pub(crate) completed: usize,
    pub(crate) failed: usize,
    /// Seconds from the start of the round to the end of its last request.
    pub(crate) duration: f64,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    /// Requests that were sent later than they arrived, because all streams were busy.
    pub(crate) late: usize,
    /// Whether the server counts tokens; otherwise every event counts as one and prompts as none.
    pub(crate) counted: bool,
    pub(crate) ttft: Latencies,
    pub(crate) tpot: Latencies,
    pub(crate) itl: Latencies,
    pub(crate) e2el: Latencies,
    /// Error messages with the number of requests that have them.
    pub(crate) errors: BTreeMap<String, usize>,
}

impl Summary {
    pub(crate) fn new(load: &Load, records: &[Record]) -> Summary {
        let replies: Vec<_> = records.iter().filter_map(|record| record.result.as_ref().ok()).collect();
        let mut errors = BTreeMap::new();
        for error in records.iter().filter_map(|record| record.result.as_ref().err()) {
            *errors.entry(error.message.clone()).or_default() += 1;
        }
        let tpot = replies.iter().filter(|reply| reply.tokens() > 1);
        Summary {
            streams: load.streams,
            completed: replies.len(),
            failed: records.len() - replies.len(),
            duration: records.iter().map(|record| record.end).fold(0.0, f64::max),
            input_tokens: replies.iter().map(|reply| reply.prompt_tokens()).sum(),
            output_tokens: replies.iter().map(|reply| reply.tokens()).sum(),
            late: records.iter().filter(|record| record.late > LATE).count(),
            counted: replies.iter().all(|reply| reply.usage.is_some()),
            ttft: Latencies::new(replies.iter().map(|reply| reply.first)),
            tpot: Latencies::new(tpot.map(|reply| (reply.last - reply.first) / (reply.tokens() - 1) as f64)),
            itl: Latencies::new(
                replies.iter().flat_map(|reply| reply.gaps.iter().map(|gap| f64::from(*gap))),
            ),
            e2el: Latencies::new(replies.iter().map(|reply| reply.last)),
            errors,
        }
    }

    /// The latencies with their names.
    pub(crate) fn latencies(&self) -> [(&'static str, &Latencies); 4] {
        [("TTFT", &self.ttft), ("TPOT", &self.tpot), ("ITL", &self.itl), ("E2EL", &self.e2el)]
    }

    pub(crate) fn per_second(&self, count: f64) -> f64 {
        if self.duration > 0.0 { count / self.duration } else { 0.0 }
    }

    pub(crate) fn request_throughput(&self) -> f64 {
        self.per_second(self.completed as f64)
    }

    pub(crate) fn output_throughput(&self) -> f64 {
        self.per_second(self.output_tokens as f64)
    }

    pub(crate) fn total_throughput(&self) -> f64 {
        self.per_second((self.input_tokens + self.output_tokens) as f64)
    }

    /// Mean prompt tokens of completed requests, as the server counted them; none if it did not.
    pub(crate) fn mean_input(&self) -> Option<f64> {
        (self.counted && self.completed > 0).then(|| self.input_tokens as f64 / self.completed as f64)
    }

    /// All numbers, with the keys of vLLM's results; times of single requests are in seconds.
    pub(crate) fn json(&self, load: &Load, records: &[Record]) -> Value {
        let mut object = Map::new();
        let mut add = |key: &str, value: Value| object.insert(key.to_string(), value);
        add("max_concurrency", self.streams.into());
        add("num_prompts", records.len().into());
        add("duration", self.duration.into());
        add("completed", self.completed.into());
        add("failed", self.failed.into());
        add("total_input_tokens", self.input_tokens.into());
        add("total_output_tokens", self.output_tokens.into());
        add("request_throughput", self.request_throughput().into());
        add("output_throughput", self.output_throughput().into());
        add("total_token_throughput", self.total_throughput().into());
        for (name, latencies) in self.latencies() {
            for (_, column, percent) in COLUMNS {
                let value = percent.map_or(latencies.mean(), |percent| latencies.percentile(percent));
                let key = format!("{column}_{}_ms", name.to_lowercase());
                add(&key, value.map(|seconds| seconds * 1e3).into());
            }
        }
        add("late", self.late.into());
        add("arrivals", json!(load.arrivals));
        let each = |value: &dyn Fn(&Record) -> Value| Value::Array(records.iter().map(value).collect());
        let reply = |value: fn(&super::client::Reply) -> Value| {
            each(&|record| record.result.as_ref().map_or(Value::Null, value))
        };
        add("start_times", each(&|record| record.sent.into()));
        add("end_times", each(&|record| record.end.into()));
        add("input_lens", reply(|reply| reply.prompt_tokens().into()));
        add("output_lens", reply(|reply| reply.tokens().into()));
        add("ttfts", reply(|reply| reply.first.into()));
        add("latencies", reply(|reply| reply.last.into()));
        add("itls", reply(|reply| json!(reply.gaps)));
        let error = |record: &Record| record.result.as_ref().err().map(|error| error.message.clone());
        add("errors", each(&|record| error(record).into()));
        Value::Object(object)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::client::{Reply, RequestError};
    use super::super::events::Usage;
    use super::*;

    /// Four requests on two streams, one of which fails.
    pub(crate) fn round() -> (Load, Vec<Record>) {
        let reply = |first: f64, gap: f32, tokens: u64| Reply {
            first,
            gaps: vec![gap; tokens as usize - 1],
            last: first + f64::from(gap) * (tokens - 1) as f64,
            usage: Some(Usage { prompt_tokens: 100, completion_tokens: tokens }),
        };
        let failed = RequestError { status: Some(429), message: "HTTP 429: busy".into() };
        let record = |sent, end, result| Record { sent, late: 0.0, end, result };
        let records = vec![
            record(0.0, 1.0, Ok(reply(0.25, 0.125, 5))),
            record(0.0, 1.5, Ok(reply(0.5, 0.25, 3))),
            record(1.0, 1.0, Err(failed)),
            record(1.5, 2.0, Ok(reply(0.25, 0.5, 1))),
        ];
        (Load { streams: 2, requests: 4, arrivals: vec![] }, records)
    }

    #[test]
    fn percentiles_are_those_of_numpy() {
        let latencies = Latencies::new([4.0, 1.0, 3.0, 2.0]);
        assert_eq!(latencies.mean(), Some(2.5));
        let percentiles =
            [0.0, 50.0, 90.0, 99.0, 100.0].map(|percent| latencies.percentile(percent).unwrap());
        for (have, want) in percentiles.iter().zip([1.0, 2.5, 3.7, 3.97, 4.0]) {
            assert!((have - want).abs() < 1e-12, "{have} {want}");
        }
        assert_eq!(Latencies::new([7.0]).percentile(99.0), Some(7.0));
        assert_eq!((Latencies::default().mean(), Latencies::default().percentile(50.0)), (None, None));
    }

    #[test]
    fn a_round_is_summed_over_its_successful_requests() {
        let (load, records) = round();
        let summary = Summary::new(&load, &records);
        assert_eq!((summary.completed, summary.failed, summary.duration), (3, 1, 2.0));
        assert_eq!(
            (summary.input_tokens, summary.output_tokens, summary.mean_input()),
            (300, 9, Some(100.0))
        );
        assert_eq!(summary.output_throughput(), 4.5);
        assert_eq!(summary.total_throughput(), 154.5);
        assert_eq!(summary.tpot.values(), [0.125, 0.25], "one token has no time per further token");
        assert_eq!(summary.itl.values(), [0.125, 0.125, 0.125, 0.125, 0.25, 0.25]);
        assert_eq!(summary.e2el.values(), [0.25, 0.75, 1.0]);
        assert_eq!(summary.errors, BTreeMap::from([("HTTP 429: busy".to_string(), 1)]));

        let json = summary.json(&load, &records);
        assert_eq!((&json["median_ttft_ms"], &json["p90_tpot_ms"]), (&json!(250.0), &json!(237.5)));
        assert_eq!(json["ttfts"], json!([0.25, 0.5, null, 0.25]));
        assert_eq!(json["itls"][1], json!([0.25, 0.25]));
        assert_eq!(json["errors"], json!([null, null, "HTTP 429: busy", null]));
    }
}
