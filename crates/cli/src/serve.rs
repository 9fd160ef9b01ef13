//! `tern serve`: the server.

mod catalogue;
mod default_model;
mod files;
mod image_folder;
mod image_urls;
mod library;
pub(crate) mod model;
mod offer;
mod public_address;
pub(crate) mod runtime;
mod trace;

use std::net::TcpListener as StdListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tern::LoadOptions;
use tern_server::{Config, FileLimits, FileStore, ImageUrls, KeepModels, ServedModel, Server};
use tokio::net::TcpListener;

use self::image_urls::AllowedImages;
use self::library::LocalLibrary;
use crate::args::ServeArgs;
use crate::error::{CliError, CliResult};
use crate::process::{limits, signals};

/// How long blocking work may delay the exit of the process.
const BLOCKING_GRACE: Duration = Duration::from_secs(1);

pub(crate) fn serve(args: ServeArgs) -> CliResult<()> {
    limits::return_freed_memory();
    if args.models.is_none() && args.engine.model.model.is_empty() && args.engine.model.hf.is_none() {
        offer::chat_model(&args)?;
    }
    let library = LocalLibrary::of(&args)?;
    if library.is_some() && !args.engine.model.lora.is_empty() {
        return Err(CliError::message("--lora: requires one model (-m)"));
    }
    let keys = api_keys(&args)?;
    args.engine.sampling.0.check()?;
    // a file that is missing fails before anything listens
    args.engine.model.model.iter().try_for_each(|name| tern::hub::local(name).map(|_| ()))?;
    let open = |folder: &PathBuf| {
        let failed = |error| CliError::message(format!("--files {}: {error}", folder.display()));
        FileStore::open(folder, file_limits(&args)).map_err(failed)
    };
    let files = args.files.as_ref().map(open).transpose()?;
    let image_urls = AllowedImages::of(&args)?.map(|images| Arc::new(images) as Arc<dyn ImageUrls>);
    let tracing = trace::start(&args.log)?;
    let address = format!("{}:{}", args.host, args.port);
    let listener = bind(&args.host, args.port)?;
    let address = listener.local_addr().map_or(address, |a| a.to_string());
    if !args.engine.model.quiet {
        eprintln!("tern: listening on http://{address} (chat page at /, API under /v1)");
        if keys.is_empty() && !listener.local_addr().is_ok_and(|a| a.ip().is_loopback()) {
            eprintln!("tern: anyone who can reach {address} may use it; set --api-key to require a key");
        }
    }
    let quiet = args.engine.model.quiet;
    let config = Config { image_urls, ..config(&args, keys) };
    let with_files = |server: Server| match files {
        Some(files) => {
            server.with_files(files).map_err(|error| CliError::message(format!("--files: {error}")))
        }
        None => Ok(server),
    };
    let ended = match library {
        Some(library) => {
            if !quiet {
                offer::say(&library);
            }
            serve_library(with_files(Server::of_library(config, library, keep(&args)))?, listener, quiet)
        }
        None => serve_on(with_files(Server::new(config))?, listener, quiet, move || {
            let target = args.engine.model.name("smollm2");
            let names = match args.engine.served_model_name.as_slice() {
                [] => vec![model::short_name(target)],
                names => names.to_vec(),
            };
            model::load(&args.engine, &load_options(&args), target, names)
        }),
    };
    drop(tracing);
    ended
}

/// How much each API key may store.
fn file_limits(args: &ServeArgs) -> FileLimits {
    let defaults = FileLimits::default();
    let gib = |gib: usize| (gib as u64).saturating_mul(1 << 30);
    FileLimits { max_bytes: args.max_files.map_or(defaults.max_bytes, gib), ..defaults }
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

/// The signal that ends the server after its running requests.
async fn stop_signal(quiet: bool) {
    signals::stop().await;
    if !quiet {
        eprintln!("tern: finishing running requests; press Ctrl-C again to stop immediately");
    }
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

fn config(args: &ServeArgs, api_keys: Vec<String>) -> Config {
    let defaults = model::config(&args.engine);
    Config {
        api_keys,
        manage_models: args.manage_models,
        open_monitoring: args.open_monitoring,
        cors_origins: args.cors_origin.clone(),
        allowed_hosts: args.allowed_host.clone(),
        request_timeout: args.request_timeout.map(Duration::from_secs),
        drain_timeout: Duration::from_secs(args.drain_timeout),
        stall_timeout: Duration::from_secs(args.stall_timeout),
        max_body: args.max_body.map_or(defaults.max_body, model::mebibytes),
        max_bodies: args.max_bodies.map_or(defaults.max_bodies, model::mebibytes),
        max_connections: limits::raise_open_files(args.max_connections.unwrap_or(defaults.max_connections)),
        max_connections_per_peer: args.max_connections_per_peer.unwrap_or(defaults.max_connections_per_peer),
        ..defaults
    }
}

/// The flags as load options.
fn load_options(args: &ServeArgs) -> LoadOptions {
    LoadOptions {
        max_waiting: args.max_queue,
        step_millis: args.step_millis,
        ..model::load_options(&args.engine)
    }
}

#[cfg(test)]
mod tests;
