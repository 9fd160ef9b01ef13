//! `tern bench ops`: single ops in every format, timed and checked against the reference.

use std::io::Write;
use std::time::Instant;

use serde_json::json;
use tern::DeviceOptions;
use tern::graph::Backend;
use tern::graph::cases::{self, Case};

use crate::args::BenchOpsArgs;
use crate::error::CliResult;

/// Minimum duration of each case in seconds.
const MIN_SECONDS: f64 = 0.2;

pub(crate) fn bench_ops(args: &BenchOpsArgs) -> CliResult<()> {
    let selected = |c: &Case| args.filter.as_ref().is_none_or(|f| c.name.contains(f.as_str()));
    let mut device =
        args.device.open(DeviceOptions { threads: args.threads, reproducible: args.reproducible })?;
    let bandwidth = device.read_bandwidth();
    let mut out = std::io::stdout().lock();
    let mut results = vec![];
    if !args.json {
        writeln!(out, "{:52} {:>10} {:>9} {:>10}", "op", "us", "GB/s", "error")?;
    }
    for case in cases::timed()?.into_iter().filter(selected) {
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
