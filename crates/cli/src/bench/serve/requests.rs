//! The requests of a benchmark: which parameters the server accepts, and the bodies.

use serde_json::{Value, json};

use super::client::{Client, RequestError};
use super::prompts::Prompts;
use crate::args::{BenchServeArgs, Endpoint};
use crate::error::{CliError, CliResult};

/// Parameters that not every server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extras {
    /// Do not end at the model's end tokens (vLLM, llama.cpp, SGLang, Tern).
    ignore_eos: bool,
    /// The same by length (vLLM, SGLang).
    min_tokens: bool,
    /// Report the usage at the end of the stream.
    usage: bool,
}

/// In the order in which they are tried.
const EXTRAS: [Extras; 4] = [
    Extras { ignore_eos: true, min_tokens: true, usage: true },
    Extras { ignore_eos: true, min_tokens: false, usage: true },
    Extras { ignore_eos: false, min_tokens: false, usage: true },
    Extras { ignore_eos: false, min_tokens: false, usage: false },
];
/// Statuses of requests with parameters that the server does not accept.
const REJECTED: [u16; 2] = [400, 422];

/// Makes the requests of all rounds.
#[derive(Debug)]
pub(crate) struct Requests {
    endpoint: Endpoint,
    model: String,
    prompt_tokens: usize,
    output_tokens: usize,
    seed: u64,
    extras: Extras,
    prompts: Prompts,
}

impl Requests {
    /// Finds out with short requests which parameters the server accepts and how it counts tokens.
    pub(crate) fn negotiate(
        client: &Client,
        args: &BenchServeArgs,
        model: &str,
        seed: u64,
    ) -> CliResult<Requests> {
        let mut requests = Requests {
            endpoint: args.endpoint,
            model: model.to_string(),
            prompt_tokens: args.prompt_tokens,
            output_tokens: args.output_tokens,
            seed,
            extras: EXTRAS[0],
            prompts: Prompts::uncounted(),
        };
        let failed = |e: RequestError| {
            CliError::message(format!("{}{}: {}", args.url, path(args.endpoint), e.message))
        };
        let count = |requests: &Requests, text: &str| {
            let reply = client.stream(requests.path(), &requests.body_of(text, 1), 1);
            reply.map(|reply| reply.usage)
        };
        for extras in EXTRAS {
            requests.extras = extras;
            match count(&requests, "one two three") {
                Ok(_) => break,
                Err(e) if e.status.is_some_and(|s| REJECTED.contains(&s)) && extras != EXTRAS[3] => {}
                Err(e) => return Err(failed(e)),
            }
        }
        if !requests.extras.ignore_eos {
            eprintln!("tern: the server does not accept ignore_eos: outputs end at the model's end tokens");
        }
        requests.prompts = Prompts::calibrate(|text| count(&requests, text)).map_err(failed)?;
        Ok(requests)
    }

    pub(crate) fn path(&self) -> &'static str {
        path(self.endpoint)
    }

    pub(crate) fn output_tokens(&self) -> usize {
        self.output_tokens
    }

    /// The body of the request with number `serial`.
    pub(crate) fn body(&self, serial: usize) -> String {
        let prompt = self.prompts.prompt(self.prompt_tokens, self.seed, serial);
        self.body_of(&prompt, self.output_tokens)
    }

    fn body_of(&self, prompt: &str, output_tokens: usize) -> String {
        let mut body = json!({
            "model": self.model, "max_tokens": output_tokens, "temperature": 0, "stream": true,
        });
        match self.endpoint {
            Endpoint::Completions => body["prompt"] = prompt.into(),
            Endpoint::Chat => body["messages"] = json!([{"role": "user", "content": prompt}]),
        }
        let Extras { ignore_eos, min_tokens, usage } = self.extras;
        for (given, name, value) in [
            (ignore_eos, "ignore_eos", Value::Bool(true)),
            (min_tokens, "min_tokens", output_tokens.into()),
            (usage, "stream_options", json!({"include_usage": true})),
        ] {
            if given {
                body[name] = value;
            }
        }
        body.to_string()
    }
}

fn path(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Completions => "/v1/completions",
        Endpoint::Chat => "/v1/chat/completions",
    }
}
