//! `tern bench`: tokens per second; pp, tg and depth mean the same as in llama-bench.

pub(crate) mod embed;
pub(crate) mod ops;
pub(crate) mod plan;
pub(crate) mod serve;
pub(crate) mod speculate;
pub(crate) mod turns;

use std::io::Write;
use std::mem;
use std::time::Instant;

use serde_json::json;
use tern::engine::{Batch, Capacity, Entry, GraphRunner, Runner, StepSizes, Want, WindowPages};
use tern::graph::{PageTable, Random, Sample, Slice, StateSlots};
use tern::{Context, OnHost, OpenedModel, PAGE_LEN};

use crate::args::BenchArgs;
use crate::error::{CliError, CliResult};
use crate::load;

/// One test and the duration of each run.
struct Test {
    name: String,
    streams: usize,
    tokens: usize,
    seconds: Vec<f64>,
}

impl Test {
    fn rates(&self) -> (f64, f64) {
        let rates: Vec<f64> = self.seconds.iter().map(|s| self.tokens as f64 / s).collect();
        let n = rates.len() as f64;
        let mean = rates.iter().sum::<f64>() / n;
        let spread = (rates.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0)).sqrt();
        (mean, spread)
    }
}

/// A runner and its sequences: every stream has its own pages.
struct Bench {
    runner: GraphRunner,
    pages_each: usize,
    /// Pages per stream in layers with a window, if they have their own.
    window_each: usize,
    streams: usize,
    /// Tokens of a step of the prompt.
    step_tokens: usize,
    random: Random,
    vocab: usize,
    step_sizes: StepSizes,
}

impl Bench {
    fn entry(&mut self, stream: usize, position: usize, len: usize, sample: bool) -> Entry {
        let first = stream * self.pages_each;
        let count = (position + len).div_ceil(PAGE_LEN);
        let pages: PageTable = (first..first + count).map(|page| page as u32).collect();
        // pages of layers with a window are used in turn
        let window_page = |page: usize| (stream * self.window_each + page % self.window_each.max(1)) as u32;
        Entry {
            id: stream as u64,
            tokens: (0..len).map(|_| self.random.below(self.vocab) as u32).collect(),
            carried: None,
            slice: Slice {
                window_pages: (0..count).map(window_page).collect(),
                state: self.runner.capacity().state.map(|_| StateSlots::in_place(stream as u32, position)),
                adapters: self.runner.active_adapters(),
                ..Slice::new(len, position, pages)
            },
            want: if sample { Want::Tokens(vec![Sample::default()], None) } else { Want::Nothing },
        }
    }

    /// Feeds `len` tokens from `position` on to every stream, in full steps.
    fn prompt(&mut self, position: usize, len: usize) -> CliResult<()> {
        for stream in 0..self.streams {
            let mut at = position;
            while at < position + len {
                let part = self.step_tokens.min(position + len - at);
                let entry = self.entry(stream, at, part, at + part == position + len);
                self.runner.step(&Batch { entries: vec![entry], ..Batch::default() })?;
                at += part;
            }
        }
        Ok(())
    }

    /// Decodes `len` tokens of every stream. As in the engine, a step has one token of all streams or of as
    /// many as are fastest, in turns, and an asynchronous device gets the next step before the current one is
    /// done, with the tokens carried over on the device.
    fn decode(&mut self, position: usize, len: usize) -> CliResult<()> {
        let ahead = self.runner.runs_ahead();
        let mut decoded = vec![0; self.streams];
        let mut next = 0; // the stream whose turn it is
        let mut in_flight: Vec<usize> = vec![];
        let mut collected = Instant::now();
        while decoded.iter().any(|tokens| *tokens < len) {
            let turns = (0..self.streams).map(|i| (next + i) % self.streams);
            let mut streams: Vec<usize> = turns.filter(|stream| decoded[*stream] < len).collect();
            streams.truncate(self.step_sizes.of(streams.len()));
            next = streams.last().map_or(0, |last| (last + 1) % self.streams);
            let entry = |&stream: &usize| {
                let carried = in_flight.iter().position(|before| *before == stream);
                Entry { carried, ..self.entry(stream, position + decoded[stream], 1, true) }
            };
            let entries = streams.iter().map(entry).collect();
            self.runner.submit(&Batch { entries, ..Batch::default() })?;
            streams.iter().for_each(|stream| decoded[*stream] += 1);
            if ahead {
                mem::swap(&mut in_flight, &mut streams); // the step before is collected
            }
            if !streams.is_empty() {
                self.runner.collect()?;
                self.step_sizes.learn(streams.len(), collected.elapsed());
            }
            collected = Instant::now();
        }
        if ahead {
            self.runner.collect()?;
        }
        Ok(())
    }
}

pub(crate) fn bench(args: &BenchArgs) -> CliResult<()> {
    let opened = args.model.open("stories", args.synthetic.as_deref(), Context::TRAINED)?;
    let context = opened.context();
    let available = context.saturating_sub(args.depth);
    let (prompt, decode) =
        (args.prompt.unwrap_or(available.min(512)), args.decode.unwrap_or(available.min(128)));
    let longest = args.depth + prompt.max(decode);
    if longest > context {
        let text =
            format!("depth and test need {longest} tokens; {} has a context of {context}", opened.name);
        return Err(CliError::message(text));
    }
    let (name, reads) = (opened.name.clone(), Reads::new(&opened, args, decode));
    let most_streams = args.most_streams();
    let pages_each = longest.div_ceil(PAGE_LEN).max(1);
    let vocab = opened.model.config.vocab;
    let mut backend = args.model.backend()?;
    // prefill is not bound by memory
    let bandwidth = if decode > 0 { backend.read_bandwidth() } else { None };
    let step_tokens = backend.info().step_tokens.min(longest.max(1));
    let window = opened.model.graph.window();
    // two steps may be in flight
    let window_each =
        window.map_or(0, |tokens| WindowPages::in_turn(tokens, PAGE_LEN, 2 * step_tokens).min(pages_each));
    let capacity = Capacity {
        pages: pages_each * most_streams,
        page_len: PAGE_LEN,
        max_tokens: step_tokens.max(most_streams),
        max_outputs: most_streams,
        window: window.map(|tokens| WindowPages { tokens, pages: window_each * most_streams }),
        state: None,
    };
    let capacity = capacity.with_slots(&opened.model.graph, most_streams);
    // the share of the device's bandwidth says nothing about weights in host memory
    let on_host = opened.on_host(&*backend, |_| Ok(capacity))?;
    let bandwidth = bandwidth.filter(|_| on_host == OnHost::Nothing);
    let mut runner = opened.runner(backend, capacity, &args.model.progress())?;
    runner.finish_compiling()?;
    let device = runner.backend().info().name;
    let step_sizes = StepSizes::new(runner.step_borders());
    let mut bench = Bench {
        runner,
        pages_each,
        window_each,
        streams: most_streams,
        step_tokens,
        random: Random::new(1),
        vocab,
        step_sizes,
    };

    let mut tests = vec![];
    let steps = args.repeat as u64 + 1;
    let kinds = [("pp", prompt), ("tg", decode)].into_iter().filter(|(_, tokens)| *tokens > 0);
    let each = args.streams.iter().flat_map(|streams| kinds.clone().map(|kind| (*streams, kind)));
    for (streams, (kind, tokens)) in each {
        bench.streams = streams;
        let depth = if args.depth > 0 { format!(" @ {}", args.depth) } else { String::new() };
        let together = if streams > 1 { format!(" x {streams}") } else { String::new() };
        let mut test = Test {
            name: format!("{kind}{tokens}{depth}{together}"),
            streams,
            tokens: tokens * streams,
            seconds: vec![],
        };
        let bar = load::count_bar(&test.name, steps);
        // with random weights the contents of the KV cache do not matter
        if args.depth > 0 && args.synthetic.is_none() {
            bench.prompt(0, args.depth)?;
        }
        for i in 0..=args.repeat {
            let start = Instant::now();
            match kind {
                "pp" => bench.prompt(args.depth, tokens)?,
                _ => bench.decode(args.depth, tokens)?,
            }
            if i > 0 {
                test.seconds.push(start.elapsed().as_secs_f64()); // the first run warms up
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        tests.push(test);
    }
    report(args, &name, &device, &Reads { bandwidth, ..reads }, &tests)
}

/// Bytes that a step of the decode test reads, and the read bandwidth of the device.
struct Reads {
    weights: u64,
    /// Bytes of the KV cache of one stream.
    kv: u64,
    bandwidth: Option<f64>,
}

impl Reads {
    /// All weights except lookup tables and experts that one token does not choose, and the KV cache in the
    /// middle of the test.
    fn new(opened: &OpenedModel, args: &BenchArgs, decode: usize) -> Reads {
        let graph = &opened.model.graph;
        let read = opened.tensors.iter().zip(graph.roles()).zip(graph.experts_used());
        let read = read.filter(|((_, roles), _)| roles.matrix || roles.vector || roles.experts > 0);
        let weights = read.map(|((tensor, _), [used, all])| (tensor.bytes() / all * used) as u64).sum();
        let tokens = args.depth + decode / 2;
        Reads { weights, kv: opened.kv_bytes_seen(tokens), bandwidth: None }
    }

    fn step(&self, streams: usize) -> f64 {
        (self.weights + self.kv * streams as u64) as f64
    }
}

fn report(args: &BenchArgs, name: &str, device: &str, reads: &Reads, tests: &[Test]) -> CliResult<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        let tests = tests.iter().map(|t| {
            let (mean, spread) = t.rates();
            json!({ "test": t.name, "streams": t.streams, "tokens": t.tokens, "tokens_per_second": mean, "spread": spread, "seconds": t.seconds })
        });
        let tests: Vec<_> = tests.collect();
        let kv = reads.kv * args.most_streams() as u64;
        let (weights, bandwidth) = (reads.weights, reads.bandwidth);
        writeln!(
            out,
            "{}",
            json!({ "model": name, "device": device, "weight_bytes": weights, "kv_bytes": kv, "read_bytes_per_second": bandwidth, "tests": tests })
        )?;
        return Ok(());
    }
    writeln!(
        out,
        "{:24} {:20} {:>22} {:>11} {:>9} {:>10}",
        "model", "test", "tokens/s", "MB/step", "GB/s", "of memory"
    )?;
    for t in tests {
        let (mean, spread) = t.rates();
        let rate = format!("{mean:.1} +/- {spread:.1}");
        // a decode step reads all weights once, and the KV cache of each stream
        let step = reads.step(t.streams);
        let read = t.name.starts_with("tg").then(|| mean / t.streams as f64 * step);
        let megabytes = read.map_or("-".into(), |_| format!("{:.1}", step / 1e6));
        let speed = read.map_or("-".into(), |r| format!("{:.1}", r / 1e9));
        let share =
            read.zip(reads.bandwidth).map_or("-".into(), |(r, all)| format!("{:.0} %", 100.0 * r / all));
        writeln!(out, "{name:24} {:20} {rate:>22} {megabytes:>11} {speed:>9} {share:>10}", t.name)?;
    }
    if let Some(all) = reads.bandwidth {
        writeln!(out, "{device} reads {:.1} GB/s", all / 1e9)?;
    }
    Ok(())
}
