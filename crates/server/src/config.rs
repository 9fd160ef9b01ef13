//! What an operator decides: keys, deadlines and every limit on what a request may ask.

use std::time::Duration;

/// The server's settings. The defaults serve a trusted network without keys.
///
/// ```
/// use tern_server::Config;
/// let config = Config { api_keys: vec!["secret".into()], ..Config::default() };
/// assert_eq!(config.max_choices, 128);
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// Keys of which a request must bring one; none at all lets everybody in.
    pub api_keys: Vec<String>,
    /// Origins whose pages may call the server from a browser; `*` is all of them.
    pub cors_origins: Vec<String>,
    /// Names that requests may use for the server, beside `localhost` and addresses; `*` is all of them. Names are
    /// checked on loopback, and elsewhere if there is no key.
    pub allowed_hosts: Vec<String>,
    /// A request that takes longer is ended with an error.
    pub request_timeout: Option<Duration>,
    /// How long a shutdown waits for what runs.
    pub drain_timeout: Duration,
    /// How long a client may take to send a request's headers, and then its body.
    pub read_timeout: Duration,
    /// A stream that has been silent for this long sends a comment, so that proxies keep it open.
    pub keep_alive: Duration,
    /// `/ready` lets the engine generate a token at most this often.
    pub ready_interval: Duration,
    /// `/ready` waits this long for the engine to move.
    pub ready_deadline: Duration,
    /// A step that takes longer, and ten times as long as earlier steps let expect, is stuck: `/health` fails and
    /// requests are refused until it ends. The first step may take ten times this.
    pub stall_timeout: Duration,
    /// How long the server answers, with the reason, after its engine has ended.
    pub failure_grace: Duration,
    /// How long a client may take nothing of an answer before its connection is closed.
    pub write_timeout: Duration,
    /// Open connections; of those beyond, only `/health` is answered.
    pub max_connections: usize,
    /// The same for one IPv4 address or one /64 network of IPv6.
    pub max_connections_per_peer: usize,
    /// Bytes of a request's body.
    pub max_body: usize,
    /// Bytes of all bodies that are held until they are prepared; at least one whole body always fits.
    pub max_bodies: usize,
    /// Texts of one request: prompts times `n`.
    pub max_choices: usize,
    /// Stop strings of one request.
    pub max_stops: usize,
    /// Bytes of one stop string.
    pub max_stop_bytes: usize,
    /// Entries of `logit_bias`.
    pub max_logit_bias: usize,
    /// Log-probabilities a token.
    pub max_top_logprobs: usize,
    /// Messages of a conversation.
    pub max_messages: usize,
    /// Tools of one request.
    pub max_tools: usize,
    /// Bytes of all tools of one request, as JSON.
    pub max_tool_bytes: usize,
    /// Lists and objects inside each other in a tool.
    pub max_tool_depth: usize,
    /// Bytes of `chat_template_kwargs`, as JSON.
    pub max_template_kwargs: usize,
    /// Inputs of one embedding request.
    pub max_inputs: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            api_keys: vec![],
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
        }
    }
}
