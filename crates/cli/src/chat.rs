//! `tern chat`: a conversation in the terminal.

mod conversation;
mod input;
mod line;
mod parameters;
mod saved;
mod wrap;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tern::{Chat, Delta, Message, Model, Request, TextStream, units};

use self::conversation::{Conversation, Space};
use self::input::{Input, Typed};
use self::line::{Action, HINT, Line, help};
use self::parameters::Parameters;
use self::wrap::Wrap;
use crate::args::ChatArgs;
use crate::error::{CliError, CliResult};
use crate::image_file;
use crate::process::{folders, terminal};
use crate::run::{TimedAnswer, read_answer};

/// A conversation with a model.
struct Session<'a> {
    args: &'a ChatArgs,
    model: Model,
    parameters: Parameters,
    conversation: Conversation,
    /// Images before the next message.
    images: Vec<Vec<u8>>,
    /// Set by Ctrl-C, ends the answer.
    stop: Arc<AtomicBool>,
}

/// What follows a command.
enum Next {
    Continue,
    Exit,
}

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
    // what a program pipes in is not typed again
    let keeps = !args.no_history && std::io::stdin().is_terminal();
    let mut input = Input::open(folders::state().filter(|_| keeps).map(|state| state.join("chat_history")))?;
    if !args.model.quiet {
        eprintln!("tern: {HINT}");
    }
    let conversation = Conversation::new(args.system.as_deref());
    let parameters = Parameters::new(args);
    let mut session = Session { args, model, parameters, conversation, images: vec![], stop };
    while let Some(typed) = input.next()? {
        let message = match &typed {
            Typed::Block(text) if text.trim().is_empty() => continue,
            Typed::Block(text) => text.as_str(),
            Typed::Line(line) => match session.parsed(line) {
                Line::Empty => continue,
                Line::Message(message) => message,
                Line::Command(action, arguments) => match session.command(action, arguments) {
                    Ok(Next::Continue) => continue,
                    Ok(Next::Exit) => return Ok(()),
                    Err(why) => {
                        eprintln!("tern: {why}");
                        continue;
                    }
                },
                Line::Refused(why) => {
                    eprintln!("tern: {why}");
                    continue;
                }
            },
        };
        session.ask(message, input.width().filter(|_| !args.no_wrap))?;
    }
    Ok(())
}

impl Session<'_> {
    /// Executes a command; an error is one sentence.
    fn command(&mut self, action: Action, arguments: &str) -> Result<Next, String> {
        match action {
            Action::Exit => return Ok(Next::Exit),
            Action::Help => show(&help()),
            Action::Clear => {
                self.conversation.clear();
                self.images.clear();
            }
            Action::Image => self.add_image(Path::new(unquoted(arguments)))?,
            Action::Show => show(&self.state()),
            Action::System => self.system(arguments),
            Action::Set => match arguments.split_once(char::is_whitespace).unwrap_or((arguments, "")) {
                ("", _) => show(&self.parameters.table(&self.model)),
                ("system", text) => self.system(text.trim_start()),
                (name, value) => self.parameters.set(name, value.trim())?,
            },
            Action::Save => {
                let messages = self.conversation.messages();
                saved::save(Path::new(arguments), self.model.name(), &messages)?;
                self.note(&format!("{arguments}: {}", messages_of(messages.len())));
            }
            Action::Load => {
                let (system, turns) = saved::load(Path::new(arguments))?;
                self.note(&format!(
                    "{arguments}: {}",
                    messages_of(turns.len() + usize::from(system.is_some()))
                ));
                self.conversation = Conversation::of(system.as_deref(), turns);
            }
        }
        Ok(Next::Continue)
    }

    /// A line; the path of an image alone is the command that adds it.
    fn parsed<'l>(&self, line: &'l str) -> Line<'l> {
        let path = unquoted(line.trim());
        if self.model.sees() && image_file::is_named_as_one(Path::new(path)) {
            return Line::Command(Action::Image, path);
        }
        Line::parse(line)
    }

    /// `/image FILE`: puts an image before the next message.
    fn add_image(&mut self, file: &Path) -> Result<(), String> {
        if !self.model.sees() {
            return Err(tern::Error::DoesNotSee(self.model.name().into()).to_string());
        }
        let bytes = image_file::read(file).map_err(|why| format!("{}: {why}", file.display()))?;
        self.images.push(bytes);
        let count = self.images.len();
        self.note(&format!(
            "{}: {count} image{} before the next message",
            file.display(),
            if count == 1 { "" } else { "s" }
        ));
        Ok(())
    }

    fn note(&self, text: &str) {
        if !self.args.model.quiet {
            eprintln!("tern: {text}");
        }
    }

    /// `/system TEXT`: sets, removes (with empty quotes) or shows the system message.
    fn system(&mut self, text: &str) {
        match text {
            "" => show(self.conversation.system().unwrap_or("no system message")),
            "\"\"" => self.conversation.set_system(None),
            text => self.conversation.set_system(Some(text)),
        }
    }

    /// The model, the used context, the system message and the parameters.
    fn state(&self) -> String {
        let model = &self.model;
        let mut text = format!("model      {}\n", tern::formats::shown(model.name()));
        if let Some(facts) = model.facts() {
            let weights = units::thousands(facts.parameters);
            text += &format!("           {}, {weights} weights, {}\n", facts.arch, facts.format);
        }
        let messages = self.conversation.messages();
        let used = match messages.len() {
            0 => Ok(0),
            _ => model.encode_chat(&self.rendered(messages.iter().cloned())).map(|tokens| tokens.len()),
        };
        let used = used.map_or_else(|e| e.to_string(), |used| units::thousands(used as u64));
        let (context, count) = (units::thousands(model.context() as u64), messages_of(messages.len()));
        text += &format!("context    {used} of {context} tokens are used by {count}\n");
        text += &format!("system     {}\n", self.conversation.system().unwrap_or("none"));
        text + "parameters\n" + &self.parameters.table(model)
    }

    fn rendered(&self, messages: impl IntoIterator<Item = Message>) -> Chat {
        Chat { template_variables: self.parameters.template_variables(), ..Chat::new(messages) }
    }

    /// Sends a message and shows the answer; an error that ends the conversation is returned.
    fn ask(&mut self, message: &str, width: Option<usize>) -> CliResult<()> {
        self.conversation.ask(message, std::mem::take(&mut self.images));
        self.stop.store(false, Ordering::Relaxed);
        match self.answer(width) {
            Ok(answer) => {
                if !self.args.model.quiet {
                    eprintln!("({})", answer.speed());
                }
                self.conversation.answer(&answer.answer.text);
            }
            // later messages would fail too
            Err(e) if e.is_closed_pipe() || self.model.handle().ended().is_some() => return Err(e),
            Err(e) => {
                eprintln!("tern: {e}");
                self.conversation.remove_last();
            }
        }
        Ok(())
    }

    fn answer(&mut self, width: Option<usize>) -> CliResult<TimedAnswer> {
        let (context, requested) = (self.model.context(), self.parameters.max_tokens.0);
        // reserve a quarter of the context for the answer, or -n tokens up to half of it
        let reserve = requested.map_or(context / 4, |n| n.min(context / 2));
        let variables = self.parameters.template_variables();
        let fitted = self.conversation.fit(Space { context, reserve }, |messages| {
            let chat = Chat { template_variables: variables.clone(), ..Chat::new(messages.iter().cloned()) };
            Ok(self.model.encode_chat(&chat)?.len())
        })?;
        if fitted.dropped > 0 {
            let turns = if fitted.dropped == 1 { "turn was" } else { "turns were" };
            eprintln!(
                "tern: the context of {context} tokens is full: the oldest {} {turns} dropped (/clear starts a new conversation)",
                fitted.dropped
            );
        }
        let left = self.model.max_tokens(fitted.tokens, None)?;
        let chat = self.rendered(self.conversation.messages());
        let request = Request {
            input: tern::Input::Chat(chat),
            max_tokens: Some(requested.map_or(left, |n| n.min(left))),
            separate: false,
            thinking_budget: self.parameters.thinking_budget,
            ..self.parameters.sampling.apply(Request::chat([]))
        };
        let stream = self.model.stream(request)?;
        let mut out = std::io::stdout().lock();
        let is_terminal = out.is_terminal();
        let mut wrap = width.filter(|_| is_terminal).map(Wrap::new);
        let answer = read_answer(
            stream,
            |stream| next_unless(stream, &self.stop),
            |text| {
                let text = terminal::model_text(text, is_terminal);
                match &mut wrap {
                    Some(wrap) => out.write_all(wrap.push(&text).as_bytes())?,
                    None => out.write_all(text.as_bytes())?,
                }
                out.flush()?;
                Ok(())
            },
        )?;
        writeln!(out, "{}", wrap.map_or(String::new(), |mut wrap| wrap.finish()))?;
        if answer.finish() == "length" && requested.is_none_or(|n| n > left) {
            eprintln!("tern: the answer is incomplete: the context of {context} tokens is full");
        }
        Ok(answer)
    }
}

/// Writes what a command shows to stderr, as all that is not the model's text;
/// control characters are escaped.
fn show(text: &str) {
    let text = terminal::model_text(text.trim_end(), true).into_owned() + "\n";
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn messages_of(count: usize) -> String {
    if count == 1 { "1 message".into() } else { format!("{count} messages") }
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

/// A path without the quotes that terminals put around it.
fn unquoted(text: &str) -> &str {
    let quoted = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    quoted('\'').or_else(|| quoted('"')).unwrap_or(text)
}
