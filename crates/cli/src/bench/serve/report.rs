//! The tables of `tern bench serve`: one round in full, or one row per round.

use std::fmt::Write;

use tern::units::thousands;

use super::summary::{COLUMNS, Latencies, Summary};

/// Width of the names of one round's values.
const NAMES: usize = 32;
/// Width of a value.
const VALUE: usize = 11;

/// One round, with vLLM's names.
pub(crate) fn single(round: &Summary) -> String {
    let whole = |n: usize| thousands(n as u64);
    let mut text = String::new();
    for (name, value) in [
        ("Successful requests", whole(round.completed)),
        ("Failed requests", whole(round.failed)),
        ("Maximum request concurrency", whole(round.streams)),
        ("Benchmark duration (s)", format!("{:.2}", round.duration)),
        ("Total input tokens", if round.counted { thousands(round.input_tokens) } else { "-".into() }),
        ("Mean input tokens per request", round.mean_input().map_or("-".into(), |mean| format!("{mean:.1}"))),
        ("Total generated tokens", thousands(round.output_tokens)),
        ("Request throughput (req/s)", format!("{:.2}", round.request_throughput())),
        ("Output token throughput (tok/s)", format!("{:.1}", round.output_throughput())),
        ("Total token throughput (tok/s)", format!("{:.1}", round.total_throughput())),
    ] {
        let _ = writeln!(text, "{name:NAMES$}{value:>VALUE$}");
    }
    let _ = write!(text, "\n{:NAMES$}", "Latency (ms)");
    for (column, ..) in COLUMNS {
        let _ = write!(text, "{column:>VALUE$}");
    }
    text.push('\n');
    let long = ["Time to first token", "Time per output token", "Inter-token latency", "End-to-end latency"];
    for ((name, latencies), long) in round.latencies().into_iter().zip(long) {
        let _ = write!(text, "{:NAMES$}", format!("{long} ({name})"));
        for (_, _, percent) in COLUMNS {
            let _ = write!(text, "{:>VALUE$}", millis(latencies, percent));
        }
        text.push('\n');
    }
    text
}

/// The columns of a table of rounds: a heading and its width.
const ROUND_COLUMNS: [(&str, usize); 7] = [
    ("streams", 7),
    ("ok", 6),
    ("failed", 7),
    ("input", 8),
    ("req/s", 9),
    ("output tok/s", 13),
    ("total tok/s", 12),
];
/// Width of a latency in a table of rounds: median and P99.
const PAIR: usize = 18;

/// The head of a table of rounds.
pub(crate) fn head() -> String {
    let mut text = String::new();
    for (name, width) in ROUND_COLUMNS {
        let _ = write!(text, "{name:>width$}");
    }
    for name in ["TTFT", "TPOT", "ITL", "E2EL"] {
        let _ = write!(text, "{:>PAIR$}", format!("{name} p50/p99"));
    }
    text + "\n"
}

/// A round as a row; latencies are in milliseconds.
pub(crate) fn row(round: &Summary) -> String {
    let values = [
        round.streams.to_string(),
        round.completed.to_string(),
        round.failed.to_string(),
        round.mean_input().map_or("-".into(), |mean| format!("{mean:.1}")),
        format!("{:.2}", round.request_throughput()),
        format!("{:.1}", round.output_throughput()),
        format!("{:.1}", round.total_throughput()),
    ];
    let mut text = String::new();
    for (value, (_, width)) in values.iter().zip(ROUND_COLUMNS) {
        let _ = write!(text, "{value:>width$}");
    }
    for (_, latencies) in round.latencies() {
        let pair = format!("{}/{}", millis(latencies, Some(50.0)), millis(latencies, Some(99.0)));
        let _ = write!(text, "{pair:>PAIR$}");
    }
    text + "\n"
}

/// The percentile, or the mean, in milliseconds with about four digits.
fn millis(latencies: &Latencies, percent: Option<f64>) -> String {
    let seconds = percent.map_or(latencies.mean(), |percent| latencies.percentile(percent));
    match seconds.map(|seconds| seconds * 1e3) {
        None => "-".into(),
        Some(ms) if ms < 10.0 => format!("{ms:.3}"),
        Some(ms) if ms < 100.0 => format!("{ms:.2}"),
        Some(ms) => format!("{ms:.1}"),
    }
}

/// Error messages kept for the user.
const MESSAGES: usize = 3;

/// What a reader of the table has to know about a round, one sentence each.
pub(crate) fn notes(round: &Summary, output_tokens: usize) -> Vec<String> {
    let mut notes = vec![];
    let mut errors: Vec<_> = round.errors.iter().collect();
    errors.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (message, count) in errors.iter().take(MESSAGES) {
        notes.push(format!("{count} of {} requests failed: {message}", round.completed + round.failed));
    }
    if errors.len() > MESSAGES {
        notes.push(format!("{} other messages; --json has all of them", errors.len() - MESSAGES));
    }
    let expected = (round.completed * output_tokens) as u64;
    if round.counted && round.output_tokens < expected {
        notes.push(format!(
            "outputs are shorter than requested: {} of {} tokens",
            thousands(round.output_tokens),
            thousands(expected)
        ));
    }
    if !round.counted {
        notes.push("the server does not report usage: every event counts as one token".into());
    }
    if round.late > 0 {
        let (late, streams) = (round.late, round.streams);
        notes.push(format!("{late} requests were sent late, because all {streams} streams were busy"));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::round;
    use super::*;

    #[test]
    fn one_round_is_a_list_in_the_terms_of_vllm() {
        let (load, records) = round();
        let want = "\
Successful requests                       3
Failed requests                           1
Maximum request concurrency               2
Benchmark duration (s)                 2.00
Total input tokens                      300
Mean input tokens per request         100.0
Total generated tokens                    9
Request throughput (req/s)             1.50
Output token throughput (tok/s)         4.5
Total token throughput (tok/s)        154.5

Latency (ms)                           mean     median        P90        P99
Time to first token (TTFT)            333.3      250.0      450.0      495.0
Time per output token (TPOT)          187.5      187.5      237.5      248.8
Inter-token latency (ITL)             166.7      125.0      250.0      250.0
End-to-end latency (E2EL)             666.7      750.0      950.0      995.0
";
        assert_eq!(single(&Summary::new(&load, &records)), want);
    }

    #[test]
    fn several_rounds_are_rows() {
        let (load, records) = round();
        let want = "\
streams    ok failed   input    req/s output tok/s total tok/s      TTFT p50/p99      TPOT p50/p99       ITL p50/p99      E2EL p50/p99
      2     3      1   100.0     1.50          4.5       154.5       250.0/495.0       187.5/248.8       125.0/250.0       750.0/995.0
";
        assert_eq!(head() + &row(&Summary::new(&load, &records)), want);
    }

    #[test]
    fn notes_name_errors_and_short_outputs() {
        let (load, mut records) = round();
        let want =
            ["1 of 4 requests failed: HTTP 429: busy", "outputs are shorter than requested: 9 of 24 tokens"];
        assert_eq!(notes(&Summary::new(&load, &records), 8), want);
        records.retain(|record| record.result.is_err());
        let summary = Summary::new(&load, &records);
        assert_eq!(notes(&summary, 8), ["1 of 1 requests failed: HTTP 429: busy"]);
        assert!(row(&summary).contains("-/-"));
    }
}
