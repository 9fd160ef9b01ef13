//! `tern run`: one prompt, one answer.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use serde_json::json;
use tern_engine::{EngineError, Event, Finish, Request, Sampled, TokenStream};
use tern_text::{Decoder, StopStrings, Tokenizer};

use crate::args::RunArgs;
use crate::error::{CliError, CliResult};
use crate::load::{Loaded, Serving};
use crate::{prompt, stdin, terminal, units};

/// An answer as it was given.
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) tokens: Vec<Sampled>,
    pub(crate) finish: &'static str,
    pub(crate) prompt_tokens: usize,
    /// From the request to the first token.
    pub(crate) prompt_seconds: f64,
    /// From the first token to the last.
    pub(crate) decode_seconds: f64,
}

impl Answer {
    /// `12 prompt tokens at 1,200/s, 180 tokens at 741/s`
    pub(crate) fn speed(&self) -> String {
        let decoded = self.tokens.len().saturating_sub(1); // the first token comes with the prompt
        let mut text = format!(
            "{} prompt tokens at {}, {} tokens",
            self.prompt_tokens,
            units::rate(self.prompt_tokens, self.prompt_seconds),
            self.tokens.len()
        );
        if decoded > 0 {
            text += &format!(" at {}", units::rate(decoded, self.decode_seconds));
        }
        text
    }

    fn to_json(&self, tokenizer: &Tokenizer, load_seconds: f64, seed: u64) -> serde_json::Value {
        let token = |id: u32, logprob: Option<f32>| {
            let text = String::from_utf8_lossy(tokenizer.token_bytes(id, true)).into_owned();
            json!({ "id": id, "text": text, "logprob": logprob })
        };
        let tokens = self.tokens.iter().map(|t| {
            let mut one = token(t.id, t.logprob);
            if !t.top.is_empty() {
                one["top"] = t.top.iter().map(|&(id, p)| token(id, Some(p))).collect();
            }
            one
        });
        json!({
            "text": self.text,
            "tokens": tokens.collect::<Vec<_>>(),
            "finish_reason": self.finish,
            "seed": seed,
            "timing": {
                "load_seconds": load_seconds,
                "prompt_tokens": self.prompt_tokens,
                "prompt_seconds": self.prompt_seconds,
                "decode_tokens": self.tokens.len().saturating_sub(1),
                "decode_seconds": self.decode_seconds,
            },
        })
    }
}

/// Reads a stream to its end, giving text to `show` as it comes; a `next` without an event ends it early.
pub(crate) fn listen(
    mut stream: TokenStream,
    mut decoder: Decoder<'_>,
    prompt_tokens: usize,
    mut next: impl FnMut(&mut TokenStream) -> Option<Event>,
    mut show: impl FnMut(&str) -> CliResult<()>,
) -> CliResult<Answer> {
    let start = Instant::now();
    let mut first: Option<Instant> = None;
    let (mut last, mut hit_stop) = (start, false);
    let mut answer = Answer {
        text: String::new(),
        tokens: vec![],
        finish: "cancelled",
        prompt_tokens,
        prompt_seconds: 0.0,
        decode_seconds: 0.0,
    };
    while let Some(event) = next(&mut stream) {
        let passed = match event {
            Event::Started { .. } | Event::Embedding(_) => continue,
            Event::Token(token) => {
                last = Instant::now();
                first.get_or_insert(last);
                let passed = decoder.push(token.id);
                answer.tokens.push(token);
                passed
            }
            Event::Done(finish) => {
                answer.finish = match finish {
                    Finish::Stop(_) | Finish::Complete => "stop",
                    Finish::Length => "length",
                    Finish::Cancelled => "cancelled",
                };
                break;
            }
            Event::Failed(e) => return Err(e.into()),
        };
        answer.text.push_str(&passed.text);
        show(&passed.text)?;
        if passed.stop.is_some() {
            (answer.finish, hit_stop) = ("stop", true);
            break;
        }
    }
    if !hit_stop {
        let rest = decoder.finish();
        answer.text.push_str(&rest);
        show(&rest)?;
    }
    let first = first.unwrap_or_else(Instant::now);
    answer.prompt_seconds = (first - start).as_secs_f64();
    answer.decode_seconds = last.saturating_duration_since(first).as_secs_f64();
    Ok(answer)
}

impl Loaded {
    /// Tokens that still fit after a prompt, or why none does.
    pub(crate) fn room(&self, prompt_tokens: usize, asked: Option<usize>) -> CliResult<usize> {
        let left = self.context.saturating_sub(prompt_tokens);
        if left == 0 {
            let max_tokens = asked.unwrap_or(1);
            let (prompt, max_context) = (prompt_tokens, self.context);
            return Err(EngineError::Context { prompt, max_tokens, max_context }.into());
        }
        Ok(asked.unwrap_or(left))
    }
}

/// Names of model families that are often written where Tern takes a prompt.
const FAMILIES: &[&str] = &[
    "bonsai",
    "codellama",
    "command-r",
    "deepseek",
    "falcon",
    "gemma",
    "gpt-oss",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "olmo",
    "phi",
    "qwen",
    "smollm",
    "tinyllama",
];

/// Whether a prompt looks like the name of a model: a known one, a GGUF file, a repository, or one of a family.
fn names_a_model(prompt: &str) -> bool {
    let text = prompt.to_ascii_lowercase();
    let of_family = |family: &&str| {
        let rest = text.strip_prefix(*family);
        rest.is_some_and(|rest| {
            rest.is_empty() || rest.starts_with(|c: char| "-_:.".contains(c) || c.is_ascii_digit())
        })
    };
    let name = text.rsplit('/').next().unwrap_or(&text);
    !text.contains(char::is_whitespace)
        && (tern_hub::KNOWN.iter().any(|known| known.name == text)
            || name.ends_with(".gguf")
            || (text.contains('/') && name.contains("gguf"))
            || FAMILIES.iter().any(of_family))
}

pub(crate) fn run(args: &RunArgs) -> CliResult<()> {
    args.sampling.check()?;
    StopStrings::new(args.stop.clone())?;
    let default = "stories";
    if args.model.name("").is_empty() && !args.model.quiet && names_a_model(&args.prompt) {
        let name = &args.prompt;
        eprintln!(
            "tern: `{name}` is taken as the prompt, for the model {default}; -m names a model: tern run -m {name} PROMPT"
        );
    }
    let text = match args.prompt.as_str() {
        "-" => stdin::whole()?,
        prompt => stdin::joined(prompt, &stdin::piped()?),
    };
    let loaded = args.model.load(default, &Serving::ONE)?;
    let tokenizer = &loaded.tokenizer;
    let template = if args.raw { None } else { prompt::template(tokenizer)? };
    let prompt = match &template {
        Some(template) => {
            let system = args.system.iter().map(|s| prompt::message("system", s));
            let messages: Vec<_> = system.chain([prompt::message("user", &text)]).collect();
            prompt::chat_tokens(tokenizer, template, &messages)?
        }
        None if args.system.is_some() => {
            let text = format!("--system: {} has no chat template to put it in", loaded.name);
            return Err(CliError::said(text));
        }
        None => tokenizer.encode(&text, true, true),
    };
    let logprobs = args.json.then(|| args.logprobs.unwrap_or(0));
    let sampling = args.sampling.sampling(loaded.advice, logprobs);
    let seed = sampling.seed;
    let prompt_tokens = prompt.len();
    let request = Request {
        sampling,
        end_tokens: if args.ignore_eos { [].into() } else { loaded.end_tokens() },
        ..Request::new(prompt, loaded.room(prompt_tokens, args.max_tokens.0)?)
    };
    let stream = loaded.handle.generate(request)?;
    let mut decoder = Decoder::new(tokenizer, args.stop.clone())?;
    if template.is_some() {
        decoder = decoder.at_start_of_text();
    } else if !args.json && !args.model.quiet && std::io::stderr().is_terminal() {
        // so that a person reads the whole text
        let _ = std::io::stderr().write_all(terminal::model_text(&text, true).as_bytes());
    }
    let mut out = std::io::stdout().lock();
    let is_terminal = out.is_terminal();
    let answer = listen(stream, decoder, prompt_tokens, TokenStream::next_blocking, |text| {
        if !args.json {
            out.write_all(terminal::model_text(text, is_terminal).as_bytes())?;
            out.flush()?;
        }
        Ok(())
    })?;
    if args.json {
        writeln!(out, "{}", answer.to_json(tokenizer, loaded.seconds, seed))?;
    } else if !answer.text.ends_with('\n') {
        writeln!(out)?;
    }
    if !args.model.quiet {
        let full = match args.max_tokens.0 {
            None if answer.finish == "length" => {
                format!("; the context of {} tokens is full", loaded.context)
            }
            _ => String::new(),
        };
        eprintln!("tern: loaded in {:.2} s, {}{full}", loaded.seconds, answer.speed());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_are_told_from_texts() {
        let names =
            ["llama3", "Llama-3.2", "qwen3:0.6b", "smollm2", "stories", "./x.GGUF", "org/M-GGUF:Q4_0", "phi"];
        for name in names {
            assert!(names_a_model(name), "{name}");
        }
        for text in ["", "Hello", "philosophy", "and/or", "llamas", "llama3 is a model", "stories about gguf"]
        {
            assert!(!names_a_model(text), "{text}");
        }
    }
}
