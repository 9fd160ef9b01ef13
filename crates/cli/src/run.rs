//! `tern run`: one prompt, one answer.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use tern::text::StopStrings;
use tern::{Answer, Delta, FinishReason, Grammar, Message, Model, Request, TextStream, units};

use crate::args::RunArgs;
use crate::error::{CliError, CliResult};
use crate::image_file;
use crate::process::{stdin, terminal};

/// Tokens that a speed is measured over, at least.
const MIN_TOKENS: usize = 8;

/// An answer with its timing.
pub(crate) struct TimedAnswer {
    pub(crate) answer: Answer,
    /// From the request to the first token.
    pub(crate) prompt_seconds: f64,
    /// From the first token to the last.
    pub(crate) decode_seconds: f64,
}

impl TimedAnswer {
    /// `stop`, `length`, or `cancelled` if the stream was not read to its end.
    pub(crate) fn finish(&self) -> &'static str {
        self.answer.finish.map_or("cancelled", FinishReason::as_str)
    }

    /// `12 prompt tokens at 1,200/s, 180 tokens at 741/s`; the speed of a few tokens
    /// says nothing and is omitted.
    pub(crate) fn speed(&self) -> String {
        let (prompt, tokens) = (self.answer.prompt_tokens, self.answer.tokens.len());
        let decoded = tokens.saturating_sub(1); // the first token comes with the prompt
        let rate = |count: usize, seconds: f64| match count >= MIN_TOKENS {
            true => format!(" at {}", units::rate(count, seconds)),
            false => String::new(),
        };
        let (prompt_rate, rate) = (rate(prompt, self.prompt_seconds), rate(decoded, self.decode_seconds));
        let Answer { drafted_tokens, accepted_tokens, .. } = self.answer;
        let drafts = match drafted_tokens {
            0 => String::new(),
            _ => format!(", {accepted_tokens} of {drafted_tokens} drafts accepted"),
        };
        format!("{prompt} prompt tokens{prompt_rate}, {tokens} tokens{rate}{drafts}")
    }

    fn to_json(&self, model: &Model, seed: u64) -> serde_json::Value {
        let token = |id: u32, logprob: Option<f32>| {
            let text = String::from_utf8_lossy(model.tokenizer().token_bytes(id, true)).into_owned();
            json!({ "id": id, "text": text, "logprob": logprob })
        };
        let tokens = self.answer.tokens.iter().map(|t| {
            let mut one = token(t.id, t.logprob);
            if !t.top.is_empty() {
                one["top"] = t.top.iter().map(|&(id, p)| token(id, Some(p))).collect();
            }
            one
        });
        json!({
            "text": self.answer.text,
            "tokens": tokens.collect::<Vec<_>>(),
            "finish_reason": self.finish(),
            "seed": seed,
            "timing": {
                "load_seconds": model.load_time().as_secs_f64(),
                "prompt_tokens": self.answer.prompt_tokens,
                "prompt_seconds": self.prompt_seconds,
                "decode_tokens": self.answer.tokens.len().saturating_sub(1),
                "decode_seconds": self.decode_seconds,
                "drafted_tokens": self.answer.drafted_tokens,
                "accepted_tokens": self.answer.accepted_tokens,
            },
        })
    }
}

/// Reads a stream to its end and passes its text to `show`; a `next` that returns none ends it early.
pub(crate) fn read_answer(
    mut stream: TextStream,
    mut next: impl FnMut(&mut TextStream) -> Option<Result<Delta, tern::Error>>,
    mut show: impl FnMut(&str) -> CliResult<()>,
) -> CliResult<TimedAnswer> {
    let start = Instant::now();
    let mut first: Option<Instant> = None;
    let mut last = start;
    let mut answer = Answer::default();
    while let Some(delta) = next(&mut stream) {
        let delta = delta?;
        if !delta.tokens.is_empty() {
            last = Instant::now();
            first.get_or_insert(last);
        }
        show(&delta.text())?;
        answer.push(delta);
    }
    answer.prompt_tokens = stream.prompt_tokens();
    (answer.drafted_tokens, answer.accepted_tokens) = stream.drafted_tokens();
    let first = first.unwrap_or_else(Instant::now);
    Ok(TimedAnswer {
        answer,
        prompt_seconds: (first - start).as_secs_f64(),
        decode_seconds: last.saturating_duration_since(first).as_secs_f64(),
    })
}

/// Names of model families that users of other programs write in place of the prompt.
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

/// Whether a prompt looks like a model: a known name, a GGUF file, a repository, or the name of a family.
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
        && (tern::hub::KNOWN.iter().any(|known| known.name == text)
            || tern::hub::Short::named(&text).is_some()
            || name.ends_with(".gguf")
            || (text.contains('/') && name.contains("gguf"))
            || FAMILIES.iter().any(of_family))
}

fn read_grammar(file: &Path) -> CliResult<Grammar> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| CliError::message(format!("--grammar-file {}: {e}", file.display())))?;
    Ok(Grammar::of_text(text))
}

pub(crate) fn run(args: &RunArgs) -> CliResult<()> {
    args.sampling.check()?;
    StopStrings::new(args.stop.clone())?;
    let default = "stories";
    if args.model.name("").is_empty() && !args.model.quiet && names_a_model(&args.prompt) {
        let name = &args.prompt;
        eprintln!(
            "tern: `{name}` is used as the prompt for the model {default}; select a model with -m: tern run -m {name} PROMPT"
        );
    }
    let text = match args.prompt.as_str() {
        "-" => stdin::whole()?,
        prompt => stdin::joined(prompt, &stdin::piped()?),
    };
    let constraint = args.grammar_file.as_deref().map(read_grammar).transpose()?;
    let read = |file: &PathBuf| {
        image_file::read(file).map_err(|why| CliError::message(format!("--image {}: {why}", file.display())))
    };
    let images = args.image.iter().map(read).collect::<CliResult<Vec<_>>>()?;
    let model = args.model.load(default)?;
    let is_chat = !args.raw && model.template().is_some();
    if args.system.is_some() && !is_chat {
        return Err(CliError::message(format!("--system: {} has no chat template", model.name())));
    }
    let request = match is_chat {
        true => {
            let mut user = Message::user(&text);
            for image in images.into_iter().rev() {
                user = user.image(image);
            }
            let system = args.system.iter().map(Message::system);
            Request::chat(system.chain([user]))
        }
        false if !args.image.is_empty() => {
            return Err(CliError::message(format!("--image: {} has no chat template", model.name())));
        }
        false => Request::text(&text),
    };
    let mut request = Request {
        max_tokens: args.max_tokens.0,
        stops: args.stop.clone(),
        ignore_end: args.ignore_eos,
        constraint,
        separate: false,
        thinking_budget: args.thinking_budget,
        ..args.sampling.apply(request)
    };
    request.base.logprobs = args.json.then(|| args.logprobs.unwrap_or(0));
    let seed = model.sampling(&request).seed;
    let stream = model.stream(request.seed(seed))?;
    if !is_chat && !args.json && !args.model.quiet && std::io::stderr().is_terminal() {
        // the prompt too, so that the terminal shows the whole text
        let _ = std::io::stderr().write_all(terminal::model_text(&text, true).as_bytes());
    }
    let mut out = std::io::stdout().lock();
    let is_terminal = out.is_terminal();
    let answer = read_answer(stream, TextStream::next_blocking, |text| {
        if !args.json {
            out.write_all(terminal::model_text(text, is_terminal).as_bytes())?;
            out.flush()?;
        }
        Ok(())
    })?;
    if args.json {
        writeln!(out, "{}", answer.to_json(&model, seed))?;
    } else if !answer.answer.text.ends_with('\n') {
        writeln!(out)?;
    }
    if !args.model.quiet {
        let full = match args.max_tokens.0 {
            None if answer.finish() == "length" => {
                format!("; the context of {} tokens is full", model.context())
            }
            _ => String::new(),
        };
        eprintln!("tern: loaded in {:.2} s, {}{full}", model.load_time().as_secs_f64(), answer.speed());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_of_a_few_tokens_is_omitted() {
        let speed = |prompt: usize, tokens: usize| {
            let sampled = vec![tern::Sampled::default(); tokens];
            let answer = Answer { prompt_tokens: prompt, tokens: sampled, ..Answer::default() };
            TimedAnswer { answer, prompt_seconds: 0.5, decode_seconds: 2.0 }.speed()
        };
        assert_eq!(speed(5, 3), "5 prompt tokens, 3 tokens");
        assert_eq!(speed(5, 8), "5 prompt tokens, 8 tokens");
        assert_eq!(speed(100, 9), "100 prompt tokens at 200/s, 9 tokens at 4.0/s");
        assert_eq!(speed(1, 0), "1 prompt tokens, 0 tokens");
    }

    #[test]
    fn model_names_are_distinguished_from_texts() {
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
