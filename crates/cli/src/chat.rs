//! `tern chat`: a conversation in the terminal.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustyline::error::ReadlineError;
use tern_engine::{Event, Request, TokenStream};
use tern_text::{ChatTemplate, Decoder};

use crate::args::ChatArgs;
use crate::error::{CliError, CliResult};
use crate::load::{Loaded, Serving};
use crate::prompt;
use crate::run::{Answer, listen};

const HELP: &str = "/clear starts anew, /exit leaves (so does Ctrl-D), Ctrl-C stops an answer";

pub(crate) fn chat(args: &ChatArgs) -> CliResult<()> {
    let loaded = args.model.load("smollm2", &Serving::ONE)?;
    let Some(template) = prompt::template(&loaded.tokenizer)? else {
        let text =
            format!("{} has no chat template, so it cannot chat; `tern run` continues a text", loaded.name);
        return Err(CliError::said(text));
    };
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
        .map_err(|e| CliError::said(format!("Ctrl-C cannot be caught: {e}")))?;
    let mut editor = rustyline::DefaultEditor::new().map_err(|e| CliError::said(e.to_string()))?;
    if !args.model.quiet {
        eprintln!("tern: {HELP}");
    }
    let system: Vec<_> = args.system.iter().map(|s| prompt::message("system", s)).collect();
    let mut messages = system.clone();
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(e) => return Err(CliError::said(e.to_string())),
        };
        let line = line.trim();
        match line {
            "" => continue,
            "/exit" | "/quit" => return Ok(()),
            "/clear" => {
                messages.clone_from(&system);
                continue;
            }
            _ if line.starts_with('/') && !line.contains(' ') => {
                eprintln!("tern: {HELP}");
                continue;
            }
            _ => {}
        }
        // a line that cannot be remembered is no reason to stop talking
        let _ = editor.add_history_entry(line);
        messages.push(prompt::message("user", line));
        stop.store(false, Ordering::Relaxed);
        match answer(args, &loaded, &template, &messages, &stop) {
            Ok(answer) => {
                if !args.model.quiet {
                    eprintln!("({})", answer.speed());
                }
                messages.push(prompt::message("assistant", &answer.text));
            }
            Err(e) if e.is_closed_pipe() => return Err(e),
            Err(e) => {
                eprintln!("tern: {e}");
                messages.pop();
            }
        }
    }
}

fn answer(
    args: &ChatArgs,
    loaded: &Loaded,
    template: &ChatTemplate,
    messages: &[serde_json::Value],
    stop: &AtomicBool,
) -> CliResult<Answer> {
    let tokenizer = &loaded.tokenizer;
    let prompt = prompt::chat_tokens(tokenizer, template, messages)?;
    let prompt_tokens = prompt.len();
    let room =
        loaded.room(prompt_tokens, None).map_err(|e| CliError::said(format!("{e}; /clear starts anew")))?;
    let request = Request {
        sampling: args.sampling.sampling(0.7, None),
        end_tokens: loaded.end_tokens(),
        ..Request::new(prompt, args.max_tokens.map_or(room, |n| n.min(room)))
    };
    let stream = loaded.handle.generate(request)?;
    let decoder = Decoder::new(tokenizer, vec![])?.at_start_of_text();
    let mut out = std::io::stdout().lock();
    let answer = listen(
        stream,
        decoder,
        prompt_tokens,
        |s| next_unless(s, stop),
        |text| {
            out.write_all(text.as_bytes())?;
            out.flush()?;
            Ok(())
        },
    )?;
    writeln!(out)?;
    Ok(answer)
}

/// The next event, or none once `stop` is set: looked at every millisecond, also while a long prompt is read.
fn next_unless(stream: &mut TokenStream, stop: &AtomicBool) -> Option<Event> {
    loop {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        match stream.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(event) => return event,
            Poll::Pending => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
