//! `tern bench turns`: a conversation of several turns; how many tokens each turn computes, and the
//! time to its first token.

use std::io::Write;
use std::time::Instant;

use serde_json::json;
use tern::engine::{AdapterScales, Capacity, Engine, Event, Handle, Limits, Request, StateCapacity};
use tern::graph::Random;
use tern::{Context, PAGE_LEN};

use crate::args::BenchTurnsArgs;
use crate::error::{CliError, CliResult};
use crate::load;

/// State slots for snapshots of the conversation.
const SNAPSHOTS: usize = 16;

/// One turn: its prompt is the whole conversation before it.
struct Turn {
    prompt: usize,
    cached: usize,
    first_token: f64,
    answer: Vec<u32>,
}

impl Turn {
    fn computed(&self) -> usize {
        self.prompt - self.cached
    }
}

pub(crate) fn bench_turns(args: &BenchTurnsArgs) -> CliResult<()> {
    let default = args.synthetic.is_none().then(|| args.model.given()).flatten().unwrap_or("stories");
    let opened = args.model.open(default, args.synthetic.as_deref(), Context::TRAINED)?;
    let (name, context, vocab) = (opened.name.clone(), opened.context(), opened.model.config.vocab);
    let longest = args.history + args.turns * (args.question + args.answer);
    if longest > context {
        let text = format!("the turns need {longest} tokens; {name} has a context of {context}");
        return Err(CliError::message(text));
    }
    let backend = args.model.backend()?;
    let (device, step_tokens) = (backend.info().name, backend.info().step_tokens.min(longest));
    // the conversation, and the last turn without the cache
    let pages = 2 * longest.div_ceil(PAGE_LEN) + 2;
    let capacity = Capacity {
        pages,
        page_len: PAGE_LEN,
        max_tokens: step_tokens,
        max_outputs: 1,
        window: None,
        state: None,
    };
    let adapters = opened.adapters.all();
    let graph = &opened.model.graph;
    let capacity = capacity.with_window(graph).with_slots(graph, StateCapacity::PER_SEQUENCE + SNAPSHOTS);
    let mut runner = opened.runner(backend, capacity, &args.model.progress())?;
    runner.finish_compiling()?;
    let limits = Limits { max_seqs: 1, max_context: context, max_waiting: 1, step_millis: 0 };
    let engine = Engine::start(Box::new(runner), limits)?;

    let mut random = Random::new(1);
    let mut tokens = |count: usize| (0..count).map(|_| random.below(vocab) as u32).collect::<Vec<_>>();
    turn((&engine, &adapters), &tokens(PAGE_LEN), 2)?; // warms up
    let mut history = tokens(args.history);
    let bar = load::count_bar("turns", args.turns as u64 + 1);
    let mut turns = vec![];
    for number in 0..args.turns {
        if number > 0 {
            history.extend(tokens(args.question));
        }
        let done = turn((&engine, &adapters), &history, args.answer)?;
        history.extend(&done.answer);
        turns.push(done);
        bar.inc(1);
    }
    // the prompt of the last turn after another first token, so that nothing of it is cached
    history.truncate(turns.last().map_or(0, |turn| turn.prompt));
    if let Some(first) = history.first_mut() {
        *first = (*first + 1) % vocab as u32;
    }
    let without = turn((&engine, &adapters), &history, 1)?;
    bar.finish_and_clear();
    report(args, &name, &device, &turns, &without)
}

/// Generates the answer to a prompt.
fn turn((engine, adapters): (&Handle, &AdapterScales), prompt: &[u32], answer: usize) -> CliResult<Turn> {
    let mut done = Turn { prompt: prompt.len(), cached: 0, first_token: 0.0, answer: vec![] };
    let start = Instant::now();
    let request = Request { adapters: adapters.clone(), ..Request::new(prompt.to_vec(), answer) };
    for event in engine.generate(request)? {
        match event {
            Event::Started { cached } => done.cached = cached,
            Event::Token(token) => {
                if done.answer.is_empty() {
                    done.first_token = start.elapsed().as_secs_f64();
                }
                done.answer.push(token.id);
            }
            Event::Failed(why) => return Err(CliError::message(why.to_string())),
            _ => {}
        }
    }
    Ok(done)
}

fn report(args: &BenchTurnsArgs, name: &str, device: &str, turns: &[Turn], without: &Turn) -> CliResult<()> {
    let mut out = std::io::stdout().lock();
    let last = turns.last().map_or(0.0, |turn| turn.first_token);
    let faster = without.first_token / last;
    if args.json {
        let each = |turn: &Turn| {
            let (prompt, computed, seconds) = (turn.prompt, turn.computed(), turn.first_token);
            json!({ "prompt_tokens": prompt, "computed_tokens": computed, "first_token_seconds": seconds })
        };
        let turns: Vec<_> = turns.iter().map(each).collect();
        let report = json!({
            "model": name, "device": device, "turns": turns, "last_turn_without_cache": each(without), "faster": faster,
        });
        writeln!(out, "{report}")?;
        return Ok(());
    }
    writeln!(out, "{name} on {device}")?;
    writeln!(
        out,
        "{:24} {:>14} {:>16} {:>16}",
        "turn", "prompt tokens", "computed tokens", "first token ms"
    )?;
    let mut row = |label: &str, turn: &Turn| {
        let millis = 1e3 * turn.first_token;
        writeln!(out, "{label:24} {:>14} {:>16} {millis:>16.1}", turn.prompt, turn.computed())
    };
    for (number, turn) in turns.iter().enumerate() {
        row(&(number + 1).to_string(), turn)?;
    }
    row("the last without cache", without)?;
    writeln!(out, "the first token of the last turn comes {faster:.1} times sooner with the prefix cache")?;
    Ok(())
}
