//! `tern chat`: a conversation in the terminal.

mod conversation;
mod line;

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustyline::error::ReadlineError;
use tern::{Chat, Delta, Model, Request, TextStream};

use self::conversation::{Conversation, Space};
use self::line::{Command, Line, help};
use crate::args::ChatArgs;
use crate::error::{CliError, CliResult};
use crate::process::terminal;
use crate::run::{TimedAnswer, read_answer};

pub(crate) fn chat(args: &ChatArgs) -> CliResult<()> {
    args.sampling.check()?;
    let model = args.model.load("smollm2")?;
    if model.template().is_none() {
        let text = format!("{} has no chat template: use `tern run` to continue a text", model.name());
        return Err(CliError::message(text));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
        .map_err(|e| CliError::message(format!("cannot install the Ctrl-C handler: {e}")))?;
    let mut editor = rustyline::DefaultEditor::new().map_err(|e| CliError::message(e.to_string()))?;
    if !args.model.quiet {
        eprintln!("tern: {}", help());
    }
    let mut conversation = Conversation::new(args.system.as_deref());
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(e) => return Err(CliError::message(e.to_string())),
        };
        let message = match Line::parse(&line) {
            Line::Empty => continue,
            Line::Message(message) => message,
            Line::Command(Command::Exit) => return Ok(()),
            Line::Command(Command::Clear) => {
                conversation.clear();
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
        // the history is a convenience: errors are ignored
        let _ = editor.add_history_entry(message);
        conversation.ask(message);
        stop.store(false, Ordering::Relaxed);
        match answer(args, &model, &mut conversation, &stop) {
            Ok(answer) => {
                if !args.model.quiet {
                    eprintln!("({})", answer.speed());
                }
                conversation.answer(&answer.answer.text);
            }
            // later messages would fail too
            Err(e) if e.is_closed_pipe() || model.handle().ended().is_some() => return Err(e),
            Err(e) => {
                eprintln!("tern: {e}");
                conversation.remove_last();
            }
        }
    }
}

fn answer(
    args: &ChatArgs,
    model: &Model,
    conversation: &mut Conversation,
    stop: &AtomicBool,
) -> CliResult<TimedAnswer> {
    let (context, requested) = (model.context(), args.max_tokens.0);
    // reserve a quarter of the context for the answer, or -n tokens up to half of it
    let reserve = requested.map_or(context / 4, |n| n.min(context / 2));
    let fitted = conversation.fit(Space { context, reserve }, |messages| {
        Ok(model.encode_chat(&Chat::new(messages.iter().cloned()))?.len())
    })?;
    if fitted.dropped > 0 {
        let turns = if fitted.dropped == 1 { "turn was" } else { "turns were" };
        eprintln!(
            "tern: the context of {context} tokens is full: the oldest {} {turns} dropped (/clear starts a new conversation)",
            fitted.dropped
        );
    }
    let left = model.max_tokens(fitted.tokens, None)?;
    let request = Request {
        max_tokens: Some(requested.map_or(left, |n| n.min(left))),
        separate: false,
        ..args.sampling.apply(Request::chat(conversation.messages()))
    };
    let stream = model.stream(request)?;
    let mut out = std::io::stdout().lock();
    let is_terminal = out.is_terminal();
    let answer = read_answer(
        stream,
        |stream| next_unless(stream, stop),
        |text| {
            out.write_all(terminal::model_text(text, is_terminal).as_bytes())?;
            out.flush()?;
            Ok(())
        },
    )?;
    writeln!(out)?;
    if answer.finish() == "length" && requested.is_none_or(|n| n > left) {
        eprintln!("tern: the answer is incomplete: the context of {context} tokens is full");
    }
    Ok(answer)
}

/// The next piece, or none once `stop` is set: checked every millisecond, also during a long prefill.
fn next_unless(stream: &mut TextStream, stop: &AtomicBool) -> Option<Result<Delta, tern::Error>> {
    loop {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        match stream.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(piece) => return piece,
            Poll::Pending => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
