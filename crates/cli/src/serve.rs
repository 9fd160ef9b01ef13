//! `tern serve`: the server.

mod catalogue;
mod default_model;
mod files;
mod library;
mod offer;
mod runtime;
mod trace;

use std::net::TcpListener as StdListener;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tern::text::FillOrder;
use tern::{AdapterScales, Context, KvMemory, LoadOptions, Model, PartialSampling, Sampling, units};
use tern_server::{Config, DefaultAdapters, KeepModels, ServedModel, Server, UnknownParameters};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use self::library::LocalLibrary;
use crate::args::{ServeArgs, UnknownArg};
use crate::error::{CliError, CliResult};
use crate::process::limits;

/// How long blocking work may delay the exit of the process.
const BLOCKING_GRACE: Duration = Duration::from_secs(1);

pub(crate) fn serve(args: ServeArgs) -> CliResult<()> {
    limits::return_freed_memory();
    if args.models.is_none() && args.model.model.is_empty() && args.model.hf.is_none() {
        offer::chat_model(&args)?;
    }
    let library = LocalLibrary::of(&args)?;
    if library.is_some() && !args.model.lora.is_empty() {
        return Err(CliError::message("--lora: requires one model (-m)"));
    }
    let keys = api_keys(&args)?;
    args.sampling.0.check()?;
    // a file that is missing fails before anything listens
    args.model.model.iter().try_for_each(|name| tern::hub::local(name).map(|_| ()))?;
    let tracing = trace::start(&args.log)?;
    let address = format!("{}:{}", args.host, args.port);
    let listener = bind(&args.host, args.port)?;
    let address = listener.local_addr().map_or(address, |a| a.to_string());
    if !args.model.quiet {
        eprintln!("tern: listening on http://{address} (chat page at /, API under /v1)");
        if keys.is_empty() && !listener.local_addr().is_ok_and(|a| a.ip().is_loopback()) {
            eprintln!("tern: anyone who can reach {address} may use it; set --api-key to require a key");
        }
    }
    let (config, quiet) = (config(&args, keys), args.model.quiet);
    let ended = match library {
        Some(library) => {
            if !quiet {
                offer::say(&library);
            }
            serve_library(Server::of_library(config, library, keep(&args)), listener, quiet)
        }
        None => serve_on(Server::new(config), listener, quiet, move || {
            let target = args.model.name("smollm2");
            let names = match args.served_model_name.as_slice() {
                [] => vec![short_name(target)],
                names => names.to_vec(),
            };
            load(&args, target, names)
        }),
    };
    drop(tracing);
    ended
}

/// How the models of a library are kept.
fn keep(args: &ServeArgs) -> KeepModels {
    KeepModels {
        keep_alive: u64::try_from(args.keep_alive).ok().map(Duration::from_secs),
        memory: args.memory.map(|gib| (gib * f64::from(1 << 30)) as u64),
        load_timeout: Duration::from_secs(args.load_timeout),
        ..KeepModels::default()
    }
}

/// Serves the models of a library until a signal.
fn serve_library(server: Server, listener: StdListener, quiet: bool) -> CliResult<()> {
    let runtime = runtime::start()?;
    let ended = runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        Ok(server.serve(listener, stop_signal(quiet)).await?)
    });
    runtime.shutdown_timeout(BLOCKING_GRACE);
    ended
}

/// Serves the model that `load` returns until a signal; failing to load and an engine that ends are errors.
fn serve_on(
    server: Server,
    listener: StdListener,
    quiet: bool,
    load: impl FnOnce() -> CliResult<ServedModel> + Send + 'static,
) -> CliResult<()> {
    let runtime = runtime::start()?;
    let loader = server.loader();
    // until then requests get "loading"; a panic drops the loader, which reports the failure
    let loading = thread::Builder::new().name("tern-load".into()).spawn(move || match load() {
        Ok(model) => loader.ready(model),
        Err(e) => loader.failed(e.to_string()),
    });
    loading.map_err(|e| CliError::message(format!("cannot start the loading thread: {e}")))?;
    let ended = runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        Ok(server.serve(listener, stop_signal(quiet)).await?)
    });
    runtime.shutdown_timeout(BLOCKING_GRACE);
    ended
}

/// Binds the port before the model is loaded.
fn bind(host: &str, port: u16) -> CliResult<StdListener> {
    let failed = |e| CliError::message(format!("cannot listen on {host}:{port}: {e}"));
    let listener = StdListener::bind((host.trim_matches(['[', ']']), port)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// The first SIGTERM or Ctrl-C; a second one ends the process at once.
async fn stop_signal(quiet: bool) {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await; // without handlers the signals end the process
    };
    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    if !quiet {
        eprintln!("tern: finishing running requests; press Ctrl-C again to stop immediately");
    }
    tokio::spawn(async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        std::process::exit(130);
    });
}

/// Keys from the flags, the file and the environment.
fn api_keys(args: &ServeArgs) -> CliResult<Vec<String>> {
    let mut keys = args.api_key.clone();
    if let Some(file) = &args.api_key_file {
        let text = std::fs::read_to_string(file)
            .map_err(|e| CliError::message(format!("--api-key-file {}: {e}", file.display())))?;
        let before = keys.len();
        keys.extend(
            text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')).map(String::from),
        );
        if keys.len() == before {
            return Err(CliError::message(format!("--api-key-file {}: contains no key", file.display())));
        }
    }
    if let Ok(key) = std::env::var("TERN_API_KEY") {
        keys.push(key);
    }
    if keys.iter().any(|key| key.trim().is_empty()) {
        return Err(CliError::message("empty API key: omit the option to disable authentication"));
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
        manage_models: args.manage_models,
        cors_origins: args.cors_origin.clone(),
        allowed_hosts: args.allowed_host.clone(),
        request_timeout: args.request_timeout.map(Duration::from_secs),
        drain_timeout: Duration::from_secs(args.drain_timeout),
        stall_timeout: Duration::from_secs(args.stall_timeout),
        max_body: args.max_body.map_or(defaults.max_body, mebibytes),
        max_bodies: args.max_bodies.map_or(defaults.max_bodies, mebibytes),
        max_connections: limits::raise_open_files(args.max_connections.unwrap_or(defaults.max_connections)),
        unknown_parameters: match args.unknown_parameters {
            UnknownArg::Refuse => UnknownParameters::Refuse,
            UnknownArg::Ignore => UnknownParameters::Ignore,
        },
        fill_order: if args.spm_infill { FillOrder::SuffixFirst } else { FillOrder::PrefixFirst },
        max_connections_per_peer: args.max_connections_per_peer.unwrap_or(defaults.max_connections_per_peer),
        ..defaults
    }
}

/// The flags as load options.
fn load_options(args: &ServeArgs) -> LoadOptions {
    LoadOptions {
        max_seqs: args.max_num_seqs,
        max_waiting: args.max_queue,
        kv_memory: args.kv_pages.map_or(KvMemory::Auto, KvMemory::Pages),
        state_cache: args.state_cache.map(|mib| mebibytes(mib) as u64),
        step_tokens: args.max_batch_tokens,
        step_millis: args.step_millis,
        pooling: args.pooling,
        ..args.model.options(Context::TRAINED)
    }
}

/// Loads a model under these names.
fn load(args: &ServeArgs, target: &str, names: Vec<String>) -> CliResult<ServedModel> {
    let options = load_options(args);
    if let Some(adapter) = args.model.lora.iter().find(|adapter| names.contains(&adapter.name)) {
        return Err(CliError::message(format!("--lora {}: the model has this name", adapter.name)));
    }
    let model = Model::load_showing(target, &options, &args.model.progress())?;
    Ok(served(args, model, names, library::digest_of(target)))
}

/// A loaded model under these names, with the defaults of the flags.
fn served(args: &ServeArgs, model: Model, names: Vec<String>, digest: String) -> ServedModel {
    let limits = model.handle().limits();
    if !args.model.quiet {
        let capacity = model.handle().capacity();
        let window = capacity.window.map_or(String::new(), |window| {
            let tokens = units::thousands((window.pages * capacity.page_len) as u64);
            format!(" ({tokens} in window layers)")
        });
        eprintln!(
            "tern: {} is ready after {:.1} s: up to {} sequences of {} tokens at once, KV cache of {} tokens{window}",
            names[0],
            model.load_time().as_secs_f64(),
            limits.max_seqs,
            units::thousands(model.context() as u64),
            units::thousands(capacity.kv_tokens() as u64),
        );
    }
    let defaults = args.sampling.0.or(model.recommended()).or(PartialSampling::USUAL);
    let mut defaults = defaults.over(Sampling::default());
    // also if DRY is off: a request may set its multiplier alone
    defaults.dry.breakers = model.breakers(args.breakers.texts().iter().map(String::as_str));
    ServedModel {
        names,
        digest,
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        defaults,
        default_adapters: DefaultAdapters::default(),
        // requests choose theirs
        model: model.with_adapters(AdapterScales::NONE),
    }
}

/// The file name without `.gguf` if the name is a path; other names are unchanged.
fn short_name(name: &str) -> String {
    match name.strip_suffix(".gguf") {
        Some(path) => path.rsplit(['/', '\\']).next().unwrap_or(path).to_string(),
        None => name.trim_end_matches('/').to_string(),
    }
}

#[cfg(test)]
mod tests;
