//! Requests to a model, and their answers: whole or streamed, blocking or async.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tern_engine::{EngineError, Event, Images, Sampling, TokenStream};
use tern_grammar::Grammar;
use tern_text::ToolSchemas;

use crate::answer::{Answer, AnswerReader, ChatReading, Reading};
use crate::preamble::ChatStart;
use crate::sampling::TEMPERATURE;
use crate::stream::TextStream;
use crate::{Chat, ChatEnd, Error, Message, Model, PartialSampling, RenderedChat, TokenRules};

/// What is to be continued.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A text as it is, without a chat template.
    Text(String),
    /// Tokens as they are.
    Tokens(Vec<u32>),
    /// A conversation.
    Chat(Chat),
}

/// A request for one text. Unset sampling parameters come from the model's file, then from
/// [`PartialSampling::USUAL`].
///
/// ```
/// use tern::{Model, Request};
/// let model = Model::load("stories")?;
/// let request = Request::text("Once upon a time").max_tokens(20).temperature(0.0);
/// assert_eq!(model.generate(request.clone())?.text, model.generate(request)?.text);
/// # Ok::<(), tern::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    /// What is to be continued.
    pub input: Input,
    /// Tokens to generate at most; as many as fit the context if not set.
    pub max_tokens: Option<usize>,
    /// Sampling parameters that differ from the model's.
    pub sampling: PartialSampling,
    /// Bias, log-probabilities, and parameters that neither `sampling` nor the model sets;
    /// `seed` goes before its own.
    pub base: Sampling,
    /// What ends a repetition, if `base` has DRY on.
    pub dry_breakers: Vec<String>,
    /// The same seed gives the same text; taken from the clock if not set.
    pub seed: Option<u64>,
    /// Strings that end the text; they are no part of it.
    pub stops: Vec<String>,
    /// What the text must follow.
    pub constraint: Option<Grammar>,
    /// Continue after the model's end tokens.
    pub ignore_end: bool,
    /// Lower goes first; equals go in order of arrival.
    pub priority: i32,
    /// Separate the answer of a chat into reasoning, content and tool calls. Otherwise all of it is content.
    pub separate: bool,
    /// Tokens that a step may guess at most, if fewer than the model was loaded with; 0 disables it.
    pub draft_max: Option<usize>,
    /// Tokens of reasoning after which the answer to a chat begins; no limit if not set.
    pub thinking_budget: Option<usize>,
}

impl Request {
    fn new(input: Input) -> Request {
        Request {
            input,
            max_tokens: None,
            sampling: PartialSampling::default(),
            base: Sampling::default(),
            dry_breakers: Model::BREAKERS.map(String::from).into(),
            seed: None,
            stops: vec![],
            constraint: None,
            ignore_end: false,
            priority: 0,
            separate: true,
            draft_max: None,
            thinking_budget: None,
        }
    }

    /// Continues a text as it is, without a chat template.
    pub fn text(text: impl Into<String>) -> Request {
        Request::new(Input::Text(text.into()))
    }

    /// Continues tokens.
    pub fn tokens(tokens: impl Into<Vec<u32>>) -> Request {
        Request::new(Input::Tokens(tokens.into()))
    }

    /// Answers a conversation.
    pub fn chat(messages: impl IntoIterator<Item = Message>) -> Request {
        Request::new(Input::Chat(Chat::new(messages)))
    }

    /// Generates this many tokens at most.
    #[must_use]
    pub fn max_tokens(self, tokens: usize) -> Request {
        Request { max_tokens: Some(tokens), ..self }
    }

    /// Sets the randomness; 0 always takes the most probable token.
    #[must_use]
    pub fn temperature(mut self, temperature: f32) -> Request {
        self.sampling = self.sampling.with(TEMPERATURE, temperature.into());
        self
    }

    /// Sets the seed: the same seed gives the same text, however the request is batched.
    #[must_use]
    pub fn seed(self, seed: u64) -> Request {
        Request { seed: Some(seed), ..self }
    }

    /// Ends the text before this string; may be called again for more.
    #[must_use]
    pub fn stop(mut self, text: impl Into<String>) -> Request {
        self.stops.push(text.into());
        self
    }

    /// Reports each token's log-probability, and those of the `top` most probable ones.
    #[must_use]
    pub fn logprobs(mut self, top: usize) -> Request {
        self.base.logprobs = Some(top);
        self
    }

    /// Ends the reasoning of a chat's answer after this many tokens; with 0 it does not reason.
    #[must_use]
    pub fn thinking_budget(self, tokens: usize) -> Request {
        Request { thinking_budget: Some(tokens), ..self }
    }

    /// Makes the text follow a JSON schema, a regex, a grammar or a list of choices.
    #[must_use]
    pub fn constraint(self, grammar: Grammar) -> Request {
        Request { constraint: Some(grammar), ..self }
    }

    /// Offers tools to a chat, in the shape of the OpenAI API.
    #[must_use]
    pub fn tools(mut self, tools: impl IntoIterator<Item = serde_json::Value>) -> Request {
        if let Input::Chat(chat) = &mut self.input {
            chat.tools = tools.into_iter().collect();
        }
        self
    }
}

impl From<&str> for Request {
    fn from(text: &str) -> Request {
        Request::text(text)
    }
}

impl From<String> for Request {
    fn from(text: String) -> Request {
        Request::text(text)
    }
}

impl From<Chat> for Request {
    fn from(chat: Chat) -> Request {
        Request::new(Input::Chat(chat))
    }
}

/// A request in tokens.
struct Prepared {
    tokens: Vec<u32>,
    images: Images,
    reading: Reading,
    /// The end of the prompt of a chat.
    prompt_tail: Option<String>,
}

impl Model {
    /// Generates a text and waits for it.
    ///
    /// # Panics
    ///
    /// On a thread that drives a tokio runtime, which must not block: use [`Model::generate_async`] there.
    pub fn generate(&self, request: impl Into<Request>) -> Result<Answer, Error> {
        self.stream(request)?.wait()
    }

    /// Generates a text without blocking the thread; dropping the future cancels it. Encoding the prompt and
    /// compiling a constraint happen before the first await.
    pub async fn generate_async(&self, request: impl Into<Request>) -> Result<Answer, Error> {
        self.stream(request)?.wait_async().await
    }

    /// Answers a conversation.
    ///
    /// # Panics
    ///
    /// As [`Model::generate`].
    pub fn chat(&self, messages: impl IntoIterator<Item = Message>) -> Result<Answer, Error> {
        self.generate(Request::chat(messages))
    }

    /// Starts a text, whose pieces are read by iterating, by `next().await`, or as a `futures` stream.
    /// Dropping the stream cancels the request.
    pub fn stream(&self, request: impl Into<Request>) -> Result<TextStream, Error> {
        let request = request.into();
        let Prepared { tokens, images, reading, prompt_tail } = self.prepare(&request)?;
        let constraint = match &request.constraint {
            None => None,
            Some(grammar) => {
                let chat = reading.chat.as_ref().map(|chat| ChatStart {
                    prompt_tail: &chat.prompt_tail,
                    calls: chat.markup.calls.filter(|_| chat.tools.is_some()),
                });
                Some(self.constraint(grammar, chat)?)
            }
        };
        let thinking = request.thinking_budget.zip(prompt_tail.as_deref());
        let thinking = thinking.and_then(|(tokens, tail)| self.thinking_budget(tokens, tail)).map(Arc::new);
        let rules = TokenRules { thinking, ..TokenRules::default() };
        let constraint = self.constrained(&rules, constraint.as_ref());
        let prompt_tokens = tokens.len();
        let reader = AnswerReader::new(self.tokenizer(), &reading)?;
        let stream = self.handle().generate(tern_engine::Request {
            sampling: self.sampling(&request),
            end_tokens: if request.ignore_end { [].into() } else { self.end_tokens().clone() },
            priority: request.priority,
            constraint,
            adapters: self.active_adapters().clone(),
            images,
            drafts: self.drafts(request.draft_max),
            ..tern_engine::Request::new(tokens, self.max_tokens(prompt_tokens, request.max_tokens)?)
        })?;
        Ok(TextStream::new(stream, reader, prompt_tokens))
    }

    /// The embedding of a text.
    ///
    /// # Panics
    ///
    /// As [`Model::generate`].
    pub fn embed(&self, text: &str) -> Result<Vec<f32>, Error> {
        let mut vectors = self.embed_all([text])?;
        Ok(vectors.pop().unwrap_or_default())
    }

    /// The embeddings of many texts, which share steps.
    ///
    /// # Panics
    ///
    /// As [`Model::generate`].
    pub fn embed_all<'t>(&self, texts: impl IntoIterator<Item = &'t str>) -> Result<Vec<Vec<f32>>, Error> {
        let at_once = self.handle().limits().max_seqs; // more would only fill the queue
        let (mut running, mut vectors) = (VecDeque::new(), vec![]);
        for text in texts {
            if running.len() == at_once
                && let Some(oldest) = running.pop_front()
            {
                vectors.push(embedding(oldest)?);
            }
            let tokens = self.tokenizer().encode(text, true, true);
            let request = tern_engine::Request {
                adapters: self.active_adapters().clone(),
                ..tern_engine::Request::embed(tokens, self.pooling())
            };
            running.push_back(self.handle().generate(request)?);
        }
        for stream in running {
            vectors.push(embedding(stream)?);
        }
        Ok(vectors)
    }

    /// How many tokens may follow a prompt: what was requested, within what the context leaves. A prompt that
    /// leaves nothing is an error.
    pub fn max_tokens(&self, prompt: usize, requested: Option<usize>) -> Result<usize, EngineError> {
        let max_context = self.context();
        match (requested, max_context.saturating_sub(prompt)) {
            (Some(tokens), left @ 1..) => Ok(tokens.min(left)),
            (requested, 0) => {
                Err(EngineError::Context { prompt, max_tokens: requested.unwrap_or(1), max_context })
            }
            (None, left) => Ok(left),
        }
    }

    /// How many tokens may be guessed per step: what was requested, within what the model was loaded with.
    pub fn drafts(&self, requested: Option<usize>) -> usize {
        requested.map_or(self.draft_max, |most| most.min(self.draft_max))
    }

    /// All sampling parameters of a request.
    pub fn sampling(&self, request: &Request) -> Sampling {
        let chosen = request.sampling.or(self.recommended()).or(PartialSampling::USUAL);
        let mut sampling = chosen.over(request.base.clone());
        sampling.seed = request.seed.unwrap_or_else(random_seed);
        if sampling.dry.is_on() {
            sampling.dry.breakers = self.breakers(request.dry_breakers.iter().map(String::as_str));
        }
        sampling
    }

    /// The tokens of a conversation, with those of its images.
    pub fn encode_chat(&self, chat: &Chat) -> Result<Vec<u32>, Error> {
        Ok(self.encode_rendered(&mut self.render(chat, || false)?)?.0)
    }

    /// The tokens of a rendered conversation, and its images.
    pub(crate) fn encode_rendered(&self, rendered: &mut RenderedChat) -> Result<(Vec<u32>, Images), Error> {
        let rows = self.expand_images(&mut rendered.text, &rendered.images, || false)?;
        let mut tokens = self.tokenizer().encode_chat(&rendered.text);
        let images = self.place_images(&mut tokens, &rows)?;
        Ok((tokens, images))
    }

    fn prepare(&self, request: &Request) -> Result<Prepared, Error> {
        let (mut images, mut prompt_tail) = (Images::NONE, None);
        let mut reading = Reading { stops: request.stops.clone(), ..Reading::default() };
        let tokens = match &request.input {
            Input::Text(text) => self.tokenizer().encode(text, true, true),
            Input::Tokens(tokens) => tokens.clone(),
            Input::Chat(chat) => {
                let mut rendered = self.render(chat, || false)?;
                let encoded = self.encode_rendered(&mut rendered)?;
                prompt_tail = Some(rendered.tail().to_owned());
                reading.is_answer = chat.end != ChatEnd::LastMessage;
                reading.chat = request.separate.then(|| ChatReading {
                    markup: rendered.markup,
                    prompt_tail: rendered.tail().to_owned(),
                    tools: tool_schemas(&chat.tools),
                    many_calls: true,
                });
                images = encoded.1;
                encoded.0
            }
        };
        Ok(Prepared { tokens, images, reading, prompt_tail })
    }
}

/// The names and the argument schemas of tools; none without tools.
fn tool_schemas(tools: &[Value]) -> Option<Arc<ToolSchemas>> {
    let function = |tool: &'_ Value| {
        let function = tool.get("function")?;
        Some((
            function.get("name")?.as_str()?.to_owned(),
            function.get("parameters").cloned().unwrap_or_default(),
        ))
    };
    let functions: Vec<(String, Value)> = tools.iter().filter_map(function).collect();
    let schemas = || ToolSchemas::new(functions.iter().map(|(name, parameters)| (name.as_str(), parameters)));
    (!tools.is_empty()).then(|| Arc::new(schemas()))
}

/// A vector of the same direction and of length one.
pub fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    vector
}

/// Waits for the vector of an embedding request.
fn embedding(stream: TokenStream) -> Result<Vec<f32>, Error> {
    for event in stream {
        match event {
            Event::Embedding(vector) => return Ok(vector),
            Event::Failed(error) => return Err(error.into()),
            Event::Started { .. } | Event::Drafted { .. } | Event::Token(_) | Event::Done(_) => {}
        }
    }
    Err(Error::Cancelled)
}

/// A number that is different every time.
fn random_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}
