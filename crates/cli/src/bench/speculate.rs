//! `tern bench speculate`: real prompts with and without drafts: speed, acceptance, and whether a text
//! differs.

use std::fs;
use std::io::Write;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};
use tern::engine::{Event, Request as Tokens, TokenStream};
use tern::{LoadOptions, Message, Model, Request};

use crate::args::BenchSpeculateArgs;
use crate::error::{CliError, CliResult};
use crate::load;

/// One pass over the prompts, which are in the prefix cache.
struct Pass {
    texts: Vec<Text>,
    seconds: f64,
}

/// One text.
#[derive(Clone, Default)]
struct Text {
    tokens: Vec<u32>,
    /// `(drafted, accepted)` of each step with drafts.
    drafts: Vec<(usize, usize)>,
}

impl Pass {
    fn tokens(&self) -> usize {
        self.texts.iter().map(|text| text.tokens.len()).sum()
    }

    fn rate(&self) -> f64 {
        self.tokens() as f64 / self.seconds.max(1e-9)
    }
}

pub(crate) fn bench_speculate(args: &BenchSpeculateArgs) -> CliResult<()> {
    let prompts = read_prompts(&args.prompts)?;
    let (name, usual) = (args.model.name("stories"), args.model.usual_options());
    let options = LoadOptions { max_seqs: args.streams, max_waiting: args.streams, ..usual };
    let model = Model::load_showing(name, &options, &args.model.progress())?;
    if model.drafts(None) == 0 {
        let text = "nothing drafts: --speculate is off, or auto on a GPU; choose --speculate suffix";
        return Err(CliError::message(text));
    }
    let requests =
        prompts.iter().map(|prompt| tokens(&model, prompt, args)).collect::<CliResult<Vec<_>>>()?;
    let bar = load::count_bar("prompts", 3 * requests.len() as u64);
    // the first pass fills the prefix cache; only the last one drafts, so that no text repeats an earlier one
    let run = |drafts| run(&model, &requests, args.streams, drafts, &|| bar.inc(1));
    run(0)?;
    let plain = run(0)?;
    let drafted = run(model.drafts(None))?;
    bar.finish_and_clear();
    report(args, &model, &plain, &drafted)
}

/// One prompt per line: a text, or an object with the member `prompt`.
fn read_prompts(path: &Path) -> CliResult<Vec<String>> {
    let failed = |why: String| CliError::message(format!("--prompts {}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    let line = |(number, line): (usize, &str)| {
        if !line.starts_with('{') {
            return Ok(line.to_owned());
        }
        let object: Value =
            serde_json::from_str(line).map_err(|e| failed(format!("line {}: {e}", number + 1)))?;
        let prompt = object["prompt"].as_str().map(str::to_owned);
        prompt.ok_or_else(|| failed(format!("line {}: want a string as `prompt`", number + 1)))
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let prompts = lines.map(line).collect::<CliResult<Vec<String>>>()?;
    if prompts.is_empty() { Err(failed("it has no prompts".into())) } else { Ok(prompts) }
}

fn tokens(model: &Model, prompt: &str, args: &BenchSpeculateArgs) -> CliResult<Tokens> {
    let request = match model.template() {
        Some(_) if !args.raw => Request::chat([Message::user(prompt)]),
        _ => Request::text(prompt),
    };
    let request = args.sampling.apply(request);
    let tokens = match &request.input {
        tern::Input::Chat(chat) => model.encode_chat(chat)?,
        _ => model.tokenizer().encode(prompt, true, true),
    };
    let max_tokens = model.max_tokens(tokens.len(), Some(args.max_tokens))?;
    let seed = request.seed.unwrap_or(1);
    Ok(Tokens {
        sampling: model.sampling(&request.seed(seed)),
        end_tokens: model.end_tokens().clone(),
        adapters: model.active_adapters().clone(),
        ..Tokens::new(tokens, max_tokens)
    })
}

/// Generates all texts, `streams` at a time, with up to `drafts` drafts per step.
fn run(
    model: &Model,
    requests: &[Tokens],
    streams: usize,
    drafts: usize,
    done: &(impl Fn() + Sync),
) -> CliResult<Pass> {
    let (start, next) = (Instant::now(), AtomicUsize::new(0));
    let work = || {
        let mut texts = vec![];
        while let Some((at, request)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            requests.get(at).map(|request| (at, request))
        } {
            let stream = model.handle().generate(Tokens { drafts, ..request.clone() })?;
            texts.push((at, Text::read(stream)?));
            done();
        }
        Ok::<_, CliError>(texts)
    };
    let mut texts = thread::scope(|scope| {
        let workers: Vec<_> = (0..streams).map(|_| scope.spawn(work)).collect();
        let all =
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
        all.collect::<CliResult<Vec<_>>>()
    })?
    .concat();
    texts.sort_by_key(|(at, _)| *at);
    let texts = texts.into_iter().map(|(_, text)| text).collect();
    Ok(Pass { texts, seconds: start.elapsed().as_secs_f64() })
}

impl Text {
    fn read(stream: TokenStream) -> CliResult<Text> {
        let mut text = Text::default();
        for event in stream {
            match event {
                Event::Token(token) => text.tokens.push(token.id),
                Event::Drafted { drafted, accepted } => text.drafts.push((drafted, accepted)),
                Event::Failed(why) => return Err(CliError::message(why.to_string())),
                _ => {}
            }
        }
        Ok(text)
    }
}

/// `(right, all)` drafts by position after the last known token.
fn by_position(drafts: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let deepest = drafts.iter().map(|(drafted, _)| *drafted).max().unwrap_or(0);
    let at = |position: usize| {
        let count =
            |of: fn(&(usize, usize)) -> usize| drafts.iter().filter(|step| of(step) > position).count();
        (count(|(_, accepted)| *accepted), count(|(drafted, _)| *drafted))
    };
    (0..deepest).map(at).collect()
}

fn report(args: &BenchSpeculateArgs, model: &Model, plain: &Pass, drafted: &Pass) -> CliResult<()> {
    let mut out = std::io::stdout().lock();
    let pairs = || plain.texts.iter().zip(&drafted.texts);
    let differ = pairs().filter(|(plain, drafted)| plain.tokens != drafted.tokens).count();
    let drafts: Vec<(usize, usize)> = drafted.texts.iter().flat_map(|text| text.drafts.clone()).collect();
    let (all, right) = drafts.iter().fold((0, 0), |sum, step| (sum.0 + step.0, sum.1 + step.1));
    let gain = drafted.rate() / plain.rate();
    let positions = by_position(&drafts);
    // a step without drafts gives one token, one with drafts one more than were accepted
    let steps = drafted.tokens() - right;
    if args.json {
        let position = |(right, all): &(usize, usize)| json!({ "accepted": right, "drafted": all });
        let report = json!({
            "model": model.name(), "prompts": plain.texts.len(), "streams": args.streams,
            "tokens": drafted.tokens(), "plain_tokens_per_second": plain.rate(),
            "tokens_per_second": drafted.rate(), "gain": gain, "texts_that_differ": differ,
            "drafted_tokens": all, "accepted_tokens": right,
            "positions": positions.iter().map(position).collect::<Vec<_>>(),
        });
        writeln!(out, "{report}")?;
        return Ok(());
    }
    let (name, prompts, streams) = (model.name(), plain.texts.len(), args.streams);
    writeln!(out, "{name}: {prompts} prompts, {streams} at a time, {} tokens", drafted.tokens())?;
    writeln!(out, "{:24} {:>10.1} tokens/s", "without drafts", plain.rate())?;
    writeln!(out, "{:24} {:>10.1} tokens/s, {gain:.2} times", "with drafts", drafted.rate())?;
    let share = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
    writeln!(out, "{:24} {:>10} of {prompts}", "texts that differ", differ)?;
    writeln!(out, "{:24} {:>10.1} % of {steps}", "steps with drafts", share(drafts.len(), steps))?;
    writeln!(out, "{:24} {:>10.1} % of {all}", "accepted drafts", share(right, all))?;
    for (position, (right, all)) in (1..).zip(positions) {
        writeln!(out, "{:24} {:>10.1} % of {all}", format!("  at position {position}"), share(right, all))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acceptance_is_counted_by_position() {
        assert_eq!(by_position(&[(3, 2), (1, 1), (2, 0)]), [(2, 3), (1, 2), (0, 1)]);
        assert_eq!(by_position(&[]), []);
    }
}
