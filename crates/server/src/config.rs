//! The server's configuration: keys, timeouts and limits.

use std::sync::Arc;
use std::time::Duration;

use tern::text::FillOrder;

use crate::request::named_images::ImageUrls;

/// The server's configuration. The defaults serve a trusted network without keys.
///
/// ```
/// use tern_server::Config;
/// let config = Config { api_keys: vec!["secret".into()], ..Config::default() };
/// assert_eq!(config.max_choices, 128);
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// API keys, one of which a request must send; an empty list disables authentication.
    pub api_keys: Vec<String>,
    /// Whether requests may download and delete models; they also may if there are keys.
    pub manage_models: bool,
    /// Whether `/ready` and `/metrics` need no key, as `/health` never does: schedulers of clusters send
    /// none.
    pub open_monitoring: bool,
    /// Origins whose pages may call the server from a browser; `*` allows all.
    pub cors_origins: Vec<String>,
    /// Host names that requests may use besides `localhost` and addresses; `*` allows all. Names are checked
    /// on loopback, and elsewhere if there is no key.
    pub allowed_hosts: Vec<String>,
    /// Maximum duration of a request.
    pub request_timeout: Option<Duration>,
    /// How long a shutdown waits for running requests.
    pub drain_timeout: Duration,
    /// How long a client may take to send a request's headers, and then its body.
    pub read_timeout: Duration,
    /// Interval of keep-alive comments in an idle stream.
    pub keep_alive: Duration,
    /// Minimum interval between the tokens that `/ready` generates.
    pub ready_interval: Duration,
    /// How long `/ready` waits for the engine to complete a step.
    pub ready_deadline: Duration,
    /// A step is stuck if it takes longer than this and ten times as long as expected: `/health` fails and
    /// requests are refused until it ends. The first step may take ten times this.
    pub stall_timeout: Duration,
    /// How long requests are refused with the reason after the engine has ended.
    pub failure_grace: Duration,
    /// A connection is closed if its client reads nothing for this long.
    pub write_timeout: Duration,
    /// Maximum number of open connections; beyond it only `/health` is answered.
    pub max_connections: usize,
    /// Maximum number of open connections per IPv4 address or IPv6 /64 network.
    pub max_connections_per_peer: usize,
    /// Maximum bytes of a request body.
    pub max_body: usize,
    /// Maximum bytes of all request bodies in memory; one body of `max_body` always fits.
    pub max_bodies: usize,
    /// Maximum choices per request: prompts times `n`.
    pub max_choices: usize,
    /// Maximum stop strings per request.
    pub max_stops: usize,
    /// Maximum bytes per stop string.
    pub max_stop_bytes: usize,
    /// Maximum entries of `logit_bias`.
    pub max_logit_bias: usize,
    /// Maximum log-probabilities per token.
    pub max_top_logprobs: usize,
    /// Maximum messages per conversation.
    pub max_messages: usize,
    /// Maximum tools per request.
    pub max_tools: usize,
    /// Maximum bytes of all tools of a request, as JSON.
    pub max_tool_bytes: usize,
    /// Maximum nesting depth of a tool's JSON.
    pub max_tool_depth: usize,
    /// Maximum bytes of `chat_template_kwargs`, as JSON.
    pub max_template_kwargs: usize,
    /// Maximum inputs per embedding request.
    pub max_inputs: usize,
    /// Maximum stored responses; the oldest are dropped.
    pub max_stored_responses: usize,
    /// Maximum bytes of all stored responses, as JSON.
    pub max_stored_bytes: usize,
    /// Reads the images that requests name by URL; without it they are refused. The images of a request may
    /// have [`Config::max_body`] bytes together.
    pub image_urls: Option<Arc<dyn ImageUrls>>,
    /// What happens to unknown parameters.
    pub unknown_parameters: UnknownParameters,
    /// Which side of a gap is first in the prompt with which a model fills it.
    pub fill_order: FillOrder,
}

/// What happens to parameters that the server does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownParameters {
    /// The request is refused, with the parameter's name.
    #[default]
    Refuse,
    /// They are ignored, with a warning in the log.
    Ignore,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            api_keys: vec![],
            manage_models: false,
            open_monitoring: false,
            cors_origins: vec![],
            allowed_hosts: vec![],
            request_timeout: None,
            drain_timeout: Duration::from_secs(30),
            read_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
            ready_interval: Duration::from_secs(5),
            ready_deadline: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(120),
            failure_grace: Duration::from_secs(2),
            max_connections: 4096,
            max_connections_per_peer: 1024,
            max_body: 16 << 20,
            max_bodies: 128 << 20,
            max_choices: 128,
            max_stops: 16,
            max_stop_bytes: 1024,
            max_logit_bias: 1024,
            max_top_logprobs: 20,
            max_messages: 4096,
            max_tools: 128,
            max_tool_bytes: 512 << 10,
            max_tool_depth: 64,
            max_template_kwargs: 16 << 10,
            max_inputs: 2048,
            max_stored_responses: 1024,
            max_stored_bytes: 64 << 20,
            image_urls: None,
            unknown_parameters: UnknownParameters::Refuse,
            fill_order: FillOrder::PrefixFirst,
        }
    }
}
