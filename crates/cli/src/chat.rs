//! `tern chat`: a conversation in the terminal.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustyline::error::ReadlineError;
use tern_engine::{Event, Request, TokenStream};
use tern_text::{ChatTemplate, Decoder};

use crate::args::ChatArgs;
use crate::chat_line::{Command, Line, help};
use crate::conversation::Conversation;
use crate::error::{CliError, CliResult};
use crate::load::{Loaded, Serving};
use crate::run::{Answer, listen};
use crate::{prompt, terminal};

pub(crate) fn chat(args: &ChatArgs) -> CliResult<()> {
    args.sampling.check()?;
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
        eprintln!("tern: {}", help());
    }
    let mut talk = Conversation::new(args.system.as_deref());
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(e) => return Err(CliError::said(e.to_string())),
        };
        let message = match Line::parse(&line) {
            Line::Empty => continue,
            Line::Message(message) => message,
            Line::Command(Command::Exit) => return Ok(()),
            Line::Command(Command::Clear) => {
                talk.clear();
                continue;
            }
            Line::Command(Command::Help) => {
                eprintln!("tern: {}", help());
                continue;
            }
            Line::Refused(why) => {
                eprintln!("tern: {why}");
                continue;
            }
        };
        // a line that cannot be remembered is no reason to stop talking
        let _ = editor.add_history_entry(message);
        talk.ask(message);
        stop.store(false, Ordering::Relaxed);
        match answer(args, &loaded, &template, &mut talk, &stop) {
            Ok(answer) => {
                if !args.model.quiet {
                    eprintln!("({})", answer.speed());
                }
                talk.answer(&answer.text);
            }
            // no later message would be answered either
            Err(e) if e.is_closed_pipe() || loaded.handle.ended().is_some() => return Err(e),
            Err(e) => {
                eprintln!("tern: {e}");
                talk.take_back();
            }
        }
    }
}

fn answer(
    args: &ChatArgs,
    loaded: &Loaded,
    template: &ChatTemplate,
    talk: &mut Conversation,
    stop: &AtomicBool,
) -> CliResult<Answer> {
    let tokenizer = &loaded.tokenizer;
    let (context, asked) = (loaded.context, args.max_tokens.0);
    // an answer may take a quarter of the context, or as much as -n says within half of it
    let reserve = asked.map_or(context / 4, |n| n.min(context / 2));
    let fitted =
        talk.fit((context, reserve), |messages| prompt::chat_tokens(tokenizer, template, messages))?;
    if fitted.dropped > 0 {
        let turns = if fitted.dropped == 1 { "turn was" } else { "turns were" };
        eprintln!(
            "tern: the context of {context} tokens is full: the oldest {} {turns} dropped (/clear starts anew)",
            fitted.dropped
        );
    }
    let prompt_tokens = fitted.prompt.len();
    let room = loaded.room(prompt_tokens, None)?;
    let request = Request {
        sampling: args.sampling.sampling(loaded.advice, None),
        end_tokens: loaded.end_tokens(),
        ..Request::new(fitted.prompt, asked.map_or(room, |n| n.min(room)))
    };
    let stream = loaded.handle.generate(request)?;
    let decoder = Decoder::new(tokenizer, vec![])?.at_start_of_text();
    let mut out = std::io::stdout().lock();
    let is_terminal = out.is_terminal();
    let answer = listen(
        stream,
        decoder,
        prompt_tokens,
        |s| next_unless(s, stop),
        |text| {
            out.write_all(terminal::model_text(text, is_terminal).as_bytes())?;
            out.flush()?;
            Ok(())
        },
    )?;
    writeln!(out)?;
    if answer.finish == "length" && asked.is_none_or(|n| n > room) {
        eprintln!("tern: the answer is cut: the context of {context} tokens is full");
    }
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
