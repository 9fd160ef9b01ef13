//! `/v1/completions`: text or tokens in, their continuation out.

mod reply;

use self::reply::{PromptEcho, Reply};
use super::deliver::Prepared;
use crate::Config;
use crate::generation::scoring::Scoring;
use crate::http::error::{ApiError, Result};
use crate::request::constraint;
use crate::request::encode::Encoder;
use crate::request::gap::Gap;
use crate::request::ignored::Object;
use crate::request::options::{Options, Streaming, refuse_streamed, unparsed};
use crate::request::params::{Params, Unparsed};
use crate::request::prepare::Preparation;
use crate::request::prompt::model_or_adapter;
use crate::request::text_lists::{Listed, Text};
use crate::request::text_request::TextRequest;

/// OpenAI's documented default of `max_tokens`.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Parameters that are not supported, and why.
const REFUSED: &[(&str, &str)] = &[
    ("messages", "use /v1/chat/completions for conversations"),
    ("tools", "use /v1/chat/completions for tools"),
];

/// A prompt, with its text if `echo` is set.
struct Prompt {
    tokens: Vec<u32>,
    text: Option<String>,
}

/// How the prompts of a request are read.
struct PromptOptions {
    /// Choices per prompt.
    n: usize,
    echo: bool,
    add_special: bool,
    /// The text after the gap that the model fills.
    suffix: Option<String>,
}

pub(super) fn prepare(preparation: &Preparation<'_>) -> Result<Prepared<Reply>> {
    let Preparation { body, served, config, cancel, .. } = *preparation;
    let unparsed = Unparsed { listed: &["prompt"], keep: config.max_choices, ..unparsed(config) };
    let mut params = Params::parse(body, unparsed)?;
    let model = model_or_adapter(&mut params, served)?;
    let mut options = Options::take(&mut params, served, config, &model)?;
    let logprobs = params.integer("logprobs", 0, config.max_top_logprobs as i64)?;
    options.sampling.logprobs = logprobs.map(|top| top as usize);
    let requested = constraint::take(&mut params)?;
    let echo = params.bool("echo")?.unwrap_or(false);
    let scored = echo && logprobs.is_some();
    let prompt_logprobs = Scoring::take_prompt_logprobs(&mut params, config)?;
    options.scoring = Scoring { echoed: scored, prompt_logprobs };
    if scored && !options.stops.is_empty() {
        return Err(ApiError::bad("stop", "stop: cannot be combined with echo and logprobs"));
    }
    let suffix = params.string("suffix")?.filter(|text| !text.is_empty());
    let add_special = params.bool("add_special_tokens")?.unwrap_or(true);
    let prompt = params.listed("prompt")?;
    let streaming = Streaming::take(&mut params)?;
    refuse_streamed(prompt_logprobs, streaming)?;
    params.finish(Object::Body, REFUSED)?;

    let encoder = Encoder::new(served, cancel, "prompt");
    let prompts =
        prompts(prompt, &encoder, config, PromptOptions { n: options.n, echo, add_special, suffix })?;
    options.max_tokens.get_or_insert(DEFAULT_MAX_TOKENS);
    let Options { n, token_ids, token_names, .. } = options;
    let tokens = prompts.iter().map(|prompt| prompt.tokens.as_slice()).collect();
    let job = TextRequest { prompts: tokens, options, grammar: requested }.job(&encoder)?;
    let tokenizer = served.model.tokenizer();
    let prompt_echo = |prompt: Prompt| {
        // of a scored prompt the first token is not generated
        let first = prompt.tokens.first().copied().filter(|_| scored);
        let bytes = |id, special| String::from_utf8_lossy(tokenizer.token_bytes(id, special)).into_owned();
        let text = match first {
            Some(id) => bytes(id, false), // a control token has no text
            None => prompt.text.unwrap_or_default(),
        };
        let first = first.map(|id| token_names.name(id, tokenizer.token_bytes(id, true)));
        let token_ids = token_ids.then_some(prompt.tokens);
        std::iter::repeat_n(PromptEcho { text, scored: first, token_ids }, n)
    };
    let mut shape =
        Reply::new(model, logprobs.is_some(), prompts.into_iter().flat_map(prompt_echo).collect());
    shape.streaming = streaming.unwrap_or_default();
    Ok(Prepared { job, shape, stream: streaming.is_some() })
}

fn prompts(
    given: Listed,
    encoder: &Encoder<'_>,
    config: &Config,
    options: PromptOptions,
) -> Result<Vec<Prompt>> {
    let check = |prompts: usize| match prompts.saturating_mul(options.n) {
        choices if choices > config.max_choices => {
            Err(ApiError::too_many("prompt", choices, config.max_choices, "choices (prompts times n)"))
        }
        _ => Ok(()),
    };
    let prompt = |text| match text {
        Text::String(text) => {
            let tokens = match &options.suffix {
                Some(suffix) => {
                    let gap = Gap { before: text.clone(), after: suffix.clone(), ..Gap::default() };
                    encoder.fill(&gap, config.fill_order)?
                }
                None => encoder.text(&text, options.add_special)?,
            };
            Ok(Prompt { tokens, text: options.echo.then_some(text) })
        }
        Text::Tokens(_) if options.suffix.is_some() => {
            Err(ApiError::bad("suffix", "suffix: requires a prompt of text"))
        }
        Text::Tokens(ids) => {
            let tokens = encoder.tokens(ids)?;
            let text = options.echo.then(|| encoder.served.model.tokenizer().decode(&tokens, false));
            Ok(Prompt { tokens, text })
        }
    };
    given.texts("prompt", check)?.into_iter().map(prompt).collect()
}
