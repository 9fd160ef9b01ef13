//! From the flags that `tern serve` and `tern batch` share to a model that is served.

use std::time::{SystemTime, UNIX_EPOCH};

use tern::text::FillOrder;
use tern::{AdapterScales, Context, KvMemory, LoadOptions, Model, PartialSampling, Sampling, units};
use tern_server::{Config, DefaultAdapters, ServedModel, UnknownParameters};

use super::library;
use crate::args::{EngineArgs, UnknownArg};
use crate::error::{CliError, CliResult};

pub(crate) fn mebibytes(count: usize) -> usize {
    count.saturating_mul(1 << 20)
}

/// The flags as load options.
pub(crate) fn load_options(args: &EngineArgs) -> LoadOptions {
    LoadOptions {
        max_seqs: args.max_num_seqs,
        kv_memory: args.kv_pages.map_or(KvMemory::Auto, KvMemory::Pages),
        state_cache: args.state_cache.map(|mib| mebibytes(mib) as u64),
        step_tokens: args.max_batch_tokens,
        pooling: args.pooling,
        ..args.model.options(Context::TRAINED)
    }
}

/// The flags as the configuration of the routes.
pub(crate) fn config(args: &EngineArgs) -> Config {
    Config {
        unknown_parameters: match args.unknown_parameters {
            UnknownArg::Refuse => UnknownParameters::Refuse,
            UnknownArg::Ignore => UnknownParameters::Ignore,
        },
        fill_order: if args.spm_infill { FillOrder::SuffixFirst } else { FillOrder::PrefixFirst },
        ..Config::default()
    }
}

/// Loads a model under these names.
pub(crate) fn load(
    args: &EngineArgs,
    options: &LoadOptions,
    target: &str,
    names: Vec<String>,
) -> CliResult<ServedModel> {
    if let Some(adapter) = args.model.lora.iter().find(|adapter| names.contains(&adapter.name)) {
        return Err(CliError::message(format!("--lora {}: the model has this name", adapter.name)));
    }
    let model = Model::load_showing(target, options, &args.model.progress())?;
    Ok(served(args, model, names, library::digest_of(target)))
}

/// A loaded model under these names, with the defaults of the flags.
pub(super) fn served(args: &EngineArgs, model: Model, names: Vec<String>, digest: String) -> ServedModel {
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
pub(crate) fn short_name(name: &str) -> String {
    match name.strip_suffix(".gguf") {
        Some(path) => path.rsplit(['/', '\\']).next().unwrap_or(path).to_string(),
        None => name.trim_end_matches('/').to_string(),
    }
}
