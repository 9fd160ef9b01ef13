//! `tern bench ops`: single ops in every format, timed and checked against the reference.

use std::io::Write;
use std::time::Instant;

use serde_json::json;
use tern::DeviceOptions;
use tern::graph::Backend;
use tern::graph::cases::{self, Case, TimedCase};

use crate::args::BenchOpsArgs;
use crate::error::{CliError, CliResult};
use crate::nearest;

/// Minimum duration of each case in seconds.
const MIN_SECONDS: f64 = 0.2;

pub(crate) fn bench_ops(args: &BenchOpsArgs) -> CliResult<()> {
    let cases = selected(cases::timed(), args.filter.as_deref())?;
    let BenchOpsArgs { threads, reproducible, activations, .. } = *args;
    let mut device = args.device.open(DeviceOptions { threads, reproducible, activations })?;
    let bandwidth = device.read_bandwidth();
    let mut out = std::io::stdout().lock();
    let mut results = vec![];
    if !args.json {
        writeln!(out, "{:52} {:>10} {:>9} {:>10}", "op", "us", "GB/s", "error")?;
    }
    for case in cases {
        let case = case.make()?;
        let error = case.error(&mut *device)?;
        let seconds = time(&case, &mut *device)?;
        let rate = case.bytes as f64 / seconds / 1e9;
        if args.json {
            results
                .push(json!({ "op": case.name, "seconds": seconds, "gb_per_second": rate, "error": error }));
        } else {
            writeln!(out, "{:52} {:>10.1} {rate:>9.2} {error:>10.1e}", case.name, seconds * 1e6)?;
        }
    }
    if args.json {
        writeln!(out, "{}", json!({ "ops": results, "read_bytes_per_second": bandwidth }))?;
    } else if let Some(all) = bandwidth {
        writeln!(out, "the device reads memory at {:.1} GB/s", all / 1e9)?;
    }
    Ok(())
}

/// The cases whose name contains the filter, at least one.
fn selected(mut cases: Vec<TimedCase>, filter: Option<&str>) -> CliResult<Vec<TimedCase>> {
    let Some(filter) = filter else { return Ok(cases) };
    if !cases.iter().any(|case| case.name.contains(filter)) {
        let names = cases.iter().map(|case| case.name.as_str());
        return Err(CliError::message(no_match(filter, names)));
    }
    cases.retain(|case| case.name.contains(filter));
    Ok(cases)
}

/// Why no case is selected: the nearest ops, and all.
fn no_match<'a>(filter: &str, names: impl Iterator<Item = &'a str>) -> String {
    let mut ops: Vec<String> = names.map(op_of).collect();
    ops.sort_unstable();
    ops.dedup();
    let tip = nearest::tip(filter, ops.iter().map(String::as_str));
    format!("no op matches `{filter}`{tip}; there are {}", ops.join(", "))
}

/// The op and its format, without the sizes: `linear q4_0` of `linear q4_0 2048x2048 tokens 1`.
fn op_of(name: &str) -> String {
    let words = name.split_whitespace().take(2);
    let words = words
        .enumerate()
        .take_while(|(at, word)| *at == 0 || !word.starts_with(|c: char| c.is_ascii_digit()));
    words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
}

/// Median seconds of the case's last step.
fn time(case: &Case, device: &mut dyn Backend) -> CliResult<f64> {
    let mut prepared = case.prepare(device)?;
    for i in 0..case.steps.len() {
        prepared.step(i)?;
    }
    let (start, mut times) = (Instant::now(), vec![]);
    while start.elapsed().as_secs_f64() < MIN_SECONDS || times.len() < 5 {
        let one = Instant::now();
        prepared.step(case.steps.len() - 1)?;
        times.push(one.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_without_an_op_is_refused_with_the_nearest_names() {
        let names = [
            "linear q4_0 2048x2048 tokens 1",
            "linear q4_0 2048x2048 tokens 64",
            "linear f16 8x8",
            "attend 1",
        ];
        let message = |filter: &str| no_match(filter, names.into_iter());
        assert_eq!(
            message("linaer q4_0"),
            "no op matches `linaer q4_0` (did you mean linear q4_0?); there are attend, linear f16, linear q4_0"
        );
        assert_eq!(message("xyz"), "no op matches `xyz`; there are attend, linear f16, linear q4_0");
        let Err(error) = selected(vec![], Some("nosuch")) else { panic!("nothing is refused") };
        let error = error.to_string();
        assert!(error.starts_with("no op matches `nosuch`"), "{error}");
        assert!(selected(vec![], None).is_ok());
        // no case is made for it
        let start = Instant::now();
        assert_eq!(selected(cases::timed(), Some("experts")).unwrap().len(), 6);
        assert!(start.elapsed().as_secs() < 5);
    }
}
