//! `tern bench serve`: throughput and latencies of any server with the OpenAI API, in the terms of
//! `vllm bench serve`.

mod client;
mod events;
mod load;
mod plot;
mod prompts;
mod report;
mod requests;
mod summary;

use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tern::formats::shown;

use self::client::Client;
use self::load::{Load, Record, poisson};
use self::requests::Requests;
use self::summary::Summary;
use crate::args::BenchServeArgs;
use crate::error::{CliError, CliResult};
use crate::load as progress;
use crate::process::limits;

/// Streams with --rate, and without --streams.
const RATE_STREAMS: usize = 64;
/// Requests per round: per stream, and at least.
const PER_STREAM: usize = 4;
const MIN_REQUESTS: usize = 16;
/// How long a model may load.
const READY: Duration = Duration::from_secs(600);

pub(crate) fn bench_serve(args: &BenchServeArgs) -> CliResult<()> {
    let streams = match (args.streams.as_slice(), args.rate) {
        ([], None) => vec![1],
        ([], Some(_)) => vec![RATE_STREAMS],
        (given, _) => given.to_vec(),
    };
    let most = streams.iter().copied().max().unwrap_or(1);
    if limits::raise_open_files(most) < most {
        return Err(CliError::message(format!("{most} streams exceed the limit of open files (ulimit -n)")));
    }
    let variable = |name| std::env::var(name).ok().filter(|key| !key.is_empty());
    let key =
        args.api_key.clone().or_else(|| variable("TERN_API_KEY")).or_else(|| variable("OPENAI_API_KEY"));
    let client = Client::new(&args.url, key.as_deref(), Duration::from_secs(args.timeout), most);
    client.wait_until_ready(READY, |message| eprintln!("tern: waiting for the server: {message}"));
    let model = match &args.model {
        Some(model) => model.clone(),
        None => client.first_model()?,
    };
    let seed = match args.seed.and_then(|seed| seed.0) {
        Some(seed) => seed,
        None => getrandom::u64().map_err(|e| CliError::message(format!("--seed: no random number: {e}")))?,
    };
    let requests = Requests::negotiate(&client, args, &model, seed)?;

    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    let mut out = std::io::stdout().lock();
    let (prompt, output, route) = (args.prompt_tokens, args.output_tokens, requests.path());
    let title = format!(
        "{} at {}{route}, {prompt} input and {output} output tokens per request",
        shown(&model),
        args.url
    );
    if !to_stdout {
        writeln!(out, "{title}\n")?;
        if streams.len() > 1 {
            write!(out, "{}", report::head())?;
        }
    }
    let (mut summaries, mut rounds): (Vec<Summary>, Vec<Value>) = (vec![], vec![]);
    let mut sent = 0; // numbers of prompts are never used twice
    for &streams in &streams {
        let count = args.requests.unwrap_or(MIN_REQUESTS.max(PER_STREAM * streams));
        let warmup = Load { streams, requests: args.warmup, arrivals: vec![] };
        round(&client, &requests, &warmup, sent, "warm-up")?;
        sent += args.warmup;
        let arrivals = args.rate.map(|rate| poisson(rate, count, seed ^ sent as u64)).unwrap_or_default();
        let load = Load { streams, requests: count, arrivals };
        let records = round(&client, &requests, &load, sent, &format!("{streams} streams"))?;
        sent += count;
        let summary = Summary::new(&load, &records);
        if !to_stdout {
            let table = if args.streams.len() > 1 { report::row(&summary) } else { report::single(&summary) };
            write!(out, "{table}")?;
            out.flush()?;
        }
        for note in report::notes(&summary, args.output_tokens) {
            eprintln!("tern: {streams} streams: {note}");
        }
        if args.json.is_some() {
            rounds.push(summary.json(&load, &records));
        }
        summaries.push(summary);
    }

    if let Some(path) = &args.json {
        let date = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let all = json!({
            "date": date, "url": args.url, "model_id": model, "endpoint": requests.path(), "request_rate": args.rate,
            "input_len": args.prompt_tokens, "output_len": args.output_tokens, "seed": seed, "rounds": rounds,
        });
        if to_stdout {
            writeln!(out, "{all}")?;
        } else {
            write_file(path, &format!("{all}\n"))?;
        }
    }
    if let Some(path) = &args.plot {
        let svg = plot::svg(&title, &summaries);
        let is_html = path.extension().is_some_and(|extension| extension == "html");
        write_file(path, &if is_html { plot::html(&title, &svg) } else { svg })?;
    }
    if summaries.iter().all(|summary| summary.completed == 0) {
        return Err(CliError::message("every request failed"));
    }
    Ok(())
}

/// Sends the requests of a round, whose prompts have numbers from `first`, with a progress bar.
fn round(
    client: &Client,
    requests: &Requests,
    load: &Load,
    first: usize,
    label: &str,
) -> CliResult<Vec<Record>> {
    let bar = progress::count_bar(label, load.requests as u64);
    let send = |body: String| {
        let reply = client.stream(requests.path(), &body, requests.output_tokens());
        bar.inc(1);
        reply
    };
    let records = load.run(|number| requests.body(first + number), send);
    bar.finish_and_clear();
    records
}

fn write_file(path: &Path, text: &str) -> CliResult<()> {
    std::fs::write(path, text).map_err(|e| CliError::message(format!("{}: {e}", path.display())))
}
