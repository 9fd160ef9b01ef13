//! `tern serve`: the OpenAI-compatible server.

use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tern_engine::Pooling;
use tern_server::{Config, Defaults, Model, Server};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{PoolingArg, ServeArgs};
use crate::error::{CliError, CliResult};
use crate::load::Serving;
use crate::sampling::Advice;
use crate::{process, prompt, runtime, trace, units};

/// How long a request that is being prepared when the server ends may hold up the process.
const LAST_WORK: Duration = Duration::from_secs(1);

pub(crate) fn serve(args: ServeArgs) -> CliResult<()> {
    process::return_freed_memory();
    let keys = api_keys(&args)?;
    args.advice().sampling().check()?;
    let tracing = trace::start(&args.log)?;
    let address = format!("{}:{}", args.host, args.port);
    let listener = bind(&args.host, args.port)?;
    let address = listener.local_addr().map_or(address, |a| a.to_string());
    if !args.model.quiet {
        eprintln!("tern: listening on http://{address} (a chat page there, the API under /v1)");
        if keys.is_empty() && !listener.local_addr().is_ok_and(|a| a.ip().is_loopback()) {
            eprintln!("tern: everyone who reaches {address} may use it; --api-key asks for a key");
        }
    }
    let (server, quiet) = (Server::new(config(&args, keys)), args.model.quiet);
    let ended = serve_on(server, listener, quiet, move || load(&args));
    drop(tracing);
    ended
}

/// Serves what `load` brings until a signal; a model that cannot be loaded and an engine that ends are errors.
fn serve_on(
    server: Server,
    listener: StdListener,
    quiet: bool,
    load: impl FnOnce() -> CliResult<Model> + Send + 'static,
) -> CliResult<()> {
    let runtime = runtime::start()?;
    let loader = server.loader();
    // the server answers "loading" while this goes on; a panic drops the loader, which tells the server
    let loading = thread::Builder::new().name("tern-load".into()).spawn(move || match load() {
        Ok(model) => loader.ready(model),
        Err(e) => loader.failed(e.to_string()),
    });
    loading.map_err(|e| CliError::said(format!("the loading thread did not start: {e}")))?;
    let ended = runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        Ok(server.serve(listener, asked_to_stop(quiet)).await?)
    });
    runtime.shutdown_timeout(LAST_WORK);
    ended
}

/// Takes the port before anything slow begins.
fn bind(host: &str, port: u16) -> CliResult<StdListener> {
    let failed = |e| CliError::said(format!("{host}:{port} cannot be listened on: {e}"));
    let listener = StdListener::bind((host.trim_matches(['[', ']']), port)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// The first SIGTERM or Ctrl-C; a second one ends the process at once.
async fn asked_to_stop(quiet: bool) {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await; // they then end the process by themselves
    };
    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    if !quiet {
        eprintln!("tern: finishing what runs; once more stops at once");
    }
    tokio::spawn(async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        std::process::exit(130);
    });
}

/// Keys from the flags, the file and the environment; an empty one would let everybody in.
fn api_keys(args: &ServeArgs) -> CliResult<Vec<String>> {
    let mut keys = args.api_key.clone();
    if let Some(file) = &args.api_key_file {
        let text = std::fs::read_to_string(file)
            .map_err(|e| CliError::said(format!("--api-key-file {}: {e}", file.display())))?;
        let before = keys.len();
        keys.extend(
            text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')).map(String::from),
        );
        if keys.len() == before {
            return Err(CliError::said(format!("--api-key-file {}: no key in it", file.display())));
        }
    }
    if let Ok(key) = std::env::var("TERN_API_KEY") {
        keys.push(key);
    }
    if keys.iter().any(|key| key.trim().is_empty()) {
        return Err(CliError::said("an API key is empty; leave it away to ask for none"));
    }
    Ok(keys)
}

fn mebibytes(count: usize) -> usize {
    count.saturating_mul(1 << 20)
}

fn config(args: &ServeArgs, api_keys: Vec<String>) -> Config {
    let defaults = Config::default();
    Config {
        api_keys,
        cors_origins: args.cors_origin.clone(),
        allowed_hosts: args.allowed_host.clone(),
        request_timeout: args.request_timeout.map(Duration::from_secs),
        drain_timeout: Duration::from_secs(args.drain_timeout),
        stall_timeout: Duration::from_secs(args.stall_timeout),
        max_body: args.max_body.map_or(defaults.max_body, mebibytes),
        max_bodies: args.max_bodies.map_or(defaults.max_bodies, mebibytes),
        max_connections: process::room_for(args.max_connections.unwrap_or(defaults.max_connections)),
        max_connections_per_peer: args.max_connections_per_peer.unwrap_or(defaults.max_connections_per_peer),
        ..defaults
    }
}

fn load(args: &ServeArgs) -> CliResult<Model> {
    let serving = Serving {
        seqs: args.max_num_seqs,
        waiting: args.max_queue,
        pages: args.kv_pages,
        step_tokens: args.max_batch_tokens,
        step_millis: args.step_millis,
    };
    let loaded = args.model.load("smollm2", &serving)?;
    let template = prompt::template(&loaded.tokenizer)?;
    let limits = loaded.handle.limits();
    let names = if args.served_model_name.is_empty() {
        vec![short_name(&loaded.name)]
    } else {
        args.served_model_name.clone()
    };
    if !args.model.quiet {
        eprintln!(
            "tern: {} is ready after {:.1} s: {} sequences of up to {} tokens at once, {} tokens of KV",
            names[0],
            loaded.seconds,
            limits.max_seqs,
            units::thousands(limits.max_context as u64),
            units::thousands(loaded.handle.capacity().kv_tokens() as u64),
        );
    }
    Ok(Model {
        names,
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        pooling: pooling(args.pooling, loaded.pooling_type),
        handle: loaded.handle,
        tokenizer: Arc::new(loaded.tokenizer),
        template,
        defaults: defaults(args.advice().or(loaded.advice)),
    })
}

/// What holds where a request says nothing: the flags, then the file, then what OpenAI documents.
fn defaults(advice: Advice) -> Defaults {
    let usual = Defaults::default();
    Defaults {
        temperature: advice.temperature.unwrap_or(usual.temperature),
        top_p: advice.top_p.unwrap_or(usual.top_p),
        top_k: advice.top_k.unwrap_or(usual.top_k),
        min_p: advice.min_p.unwrap_or(usual.min_p),
        repetition: advice.repetition.unwrap_or(usual.repetition),
    }
}

/// `smollm2-135m-instruct-q4_1` of a path; other names stay as they are.
fn short_name(name: &str) -> String {
    match name.strip_suffix(".gguf") {
        Some(path) => path.rsplit(['/', '\\']).next().unwrap_or(path).to_string(),
        None => name.trim_end_matches('/').to_string(),
    }
}

/// What was asked for, or what the file says (3 is the last token), or the mean.
fn pooling(asked: Option<PoolingArg>, file: Option<usize>) -> Pooling {
    match (asked, file) {
        (Some(PoolingArg::Last), _) | (None, Some(3)) => Pooling::Last,
        _ => Pooling::Mean,
    }
}

#[cfg(test)]
mod tests;
