//! Load options from flags, and loading progress on stderr.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tern::formats::{Access, shown};
use tern::graph::{Backend, DeviceInfo};
use tern::{
    CacheFolder, Context, DeviceOptions, ImageOptions, KvCells, LoadOptions, MemoryPlan, Model, OpenedModel,
    Progress, TowerFile, units,
};

use crate::args::{KvType, ModelArgs};
use crate::error::{CliError, CliResult};

/// Loads that take at least this long are reported with their speed.
const SLOW_LOAD: Duration = Duration::from_secs(1);

/// Progress bars on stderr, drawn only on a terminal.
#[derive(Default)]
pub(crate) struct Bars {
    quiet: bool,
    bar: RefCell<Option<ProgressBar>>,
    /// When loading the weights began, and their size in bytes.
    loading: Cell<Option<(Instant, u64)>>,
    /// When the load is to end, complete or not.
    until: Option<Instant>,
}

impl Bars {
    pub(crate) fn new(quiet: bool) -> Bars {
        Bars { quiet, ..Bars::default() }
    }

    /// The same for a load that ends at this time, complete or not.
    pub(crate) fn until(self, until: Option<Instant>) -> Bars {
        Bars { until, ..self }
    }
}

impl Progress for Bars {
    fn begin(&self, label: &str, total: Option<u64>) {
        self.loading.set(total.filter(|_| label == "loading").map(|total| (Instant::now(), total)));
        let bar = match total {
            Some(total) => byte_bar(label, total),
            None => labelled(ProgressBar::new_spinner(), label, "{spinner} {msg} {elapsed}"),
        };
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(100)); // by a separate thread
        }
        *self.bar.borrow_mut() = Some(bar);
    }

    fn at(&self, done: u64) {
        if let Some(bar) = &*self.bar.borrow() {
            bar.set_position(done);
        }
    }

    fn continues(&self, label: &str) {
        if let Some(bar) = &*self.bar.borrow() {
            bar.set_message(shown(label).into_owned());
        }
    }

    fn end(&self) {
        if let Some(bar) = self.bar.borrow_mut().take() {
            bar.finish_and_clear();
        }
        let Some((start, bytes)) = self.loading.take() else { return };
        let seconds = start.elapsed().as_secs_f64();
        if !self.quiet && start.elapsed() >= SLOW_LOAD {
            eprintln!("tern: loaded in {seconds:.1} s, {:.1} GB/s", bytes as f64 / seconds / 1e9);
        }
    }

    fn warn(&self, message: &str) {
        eprintln!("tern: {message}");
    }

    fn plan(&self, model: &OpenedModel, plan: &MemoryPlan, device: &DeviceInfo) {
        if self.quiet {
            return;
        }
        let config = &model.model.config;
        eprintln!(
            "tern: {} ({}, {} layers, {}) on {}: {plan}, {} free",
            model.name,
            config.arch,
            config.layers,
            model.main_format(),
            device.name,
            units::bytes(device.memory_free)
        );
    }

    fn stopped(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// A bar whose label may have names of files of a hub: control characters are escaped.
fn labelled(bar: ProgressBar, label: &str, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style).with_message(shown(label).into_owned())
}

/// A progress bar that counts bytes.
pub(crate) fn byte_bar(label: &str, total: u64) -> ProgressBar {
    labelled(ProgressBar::new(total), label, "{msg} [{bar:30}] {bytes} of {total_bytes}, {eta}")
}

/// A progress bar that counts items.
pub(crate) fn count_bar(label: &str, total: u64) -> ProgressBar {
    labelled(ProgressBar::new(total), label, "{msg} [{bar:30}] {pos} of {len}, {eta}")
}

impl ModelArgs {
    /// The name after -m or -hf.
    pub(crate) fn name<'a>(&'a self, default: &'a str) -> &'a str {
        self.given().unwrap_or(default)
    }

    /// The same if it is given.
    pub(crate) fn given(&self) -> Option<&str> {
        self.model.first().or(self.hf.as_ref()).map(String::as_str)
    }

    /// Refuses several models, which only a server has.
    pub(crate) fn check_one(&self) -> CliResult<()> {
        match self.model.as_slice() {
            [] | [_] => Ok(()),
            models => Err(CliError::message(format!(
                "--model: one model expected, got {}: only `tern serve` has several",
                models.join(", ")
            ))),
        }
    }

    /// The flags as load options, for one sequence; `context` is used if -c is not given.
    pub(crate) fn options(&self, context: Context) -> LoadOptions {
        LoadOptions {
            device: self.device,
            threads: self.threads,
            reproducible: self.reproducible,
            activations: self.activations,
            experts: self.experts,
            gpu_layers: self.gpu_layers,
            speculation: self.speculate,
            draft_max: self.draft_max,
            context: match self.context {
                None => context,
                Some(0) => Context::TRAINED,
                Some(tokens) => Context::Exactly(tokens),
            },
            kv_cells: self.kv.map(|kv| match kv {
                KvType::F16 => KvCells::F16,
                KvType::Int8 => KvCells::Int8,
                KvType::Fp8 => KvCells::Fp8,
            }),
            max_seqs: 1,
            max_waiting: 0,
            access: Access { copy: self.no_mmap, lock: self.mlock, until: None },
            adapters: self.lora.clone(),
            tower: match &self.mmproj {
                _ if self.no_mmproj => TowerFile::None,
                Some(file) => TowerFile::File(file.clone()),
                None => TowerFile::Auto,
            },
            cache_folder: self.cache_folder(),
            images: ImageOptions { max_tokens: self.image_max_tokens, ..ImageOptions::default() },
            ..LoadOptions::default()
        }
    }

    /// The folder of the prefix cache, if there is one.
    pub(crate) fn cache_folder(&self) -> Option<CacheFolder> {
        let bytes = (self.cache_dir_size as u64).saturating_mul(1 << 20);
        let log = |line: &str| eprintln!("tern: {}", shown(line));
        self.cache_dir.as_ref().map(|folder| CacheFolder::logging(folder, bytes, Arc::new(log)))
    }

    /// The flags as load options, with the usual context.
    pub(crate) fn usual_options(&self) -> LoadOptions {
        self.options(LoadOptions::default().context)
    }

    pub(crate) fn progress(&self) -> Bars {
        Bars::new(self.quiet)
    }

    /// Opens the requested device.
    pub(crate) fn backend(&self) -> CliResult<Box<dyn Backend>> {
        Ok(self.usual_options().open_device()?)
    }

    pub(crate) fn device_options(&self) -> DeviceOptions {
        let ModelArgs { threads, reproducible, activations, .. } = *self;
        DeviceOptions { threads, reproducible, activations }
    }

    /// Opens the model, or the one with random weights that `synthetic` names.
    pub(crate) fn open(
        &self,
        default: &str,
        synthetic: Option<&str>,
        context: Context,
    ) -> CliResult<OpenedModel> {
        let (options, progress) = (self.options(context), self.progress());
        options.device.with_layers(options.gpu_layers)?; // before a download
        Ok(match synthetic {
            Some(spec) => OpenedModel::synthetic(spec, &options, &progress)?,
            None => OpenedModel::open(self.name(default), &options, &progress)?,
        })
    }

    /// Loads the model for one sequence at a time.
    pub(crate) fn load(&self, default: &str) -> CliResult<Model> {
        Ok(Model::load_showing(self.name(default), &self.usual_options(), &self.progress())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_bars_show_control_characters() {
        assert_eq!(byte_bar("a\x1b[31mb.gguf", 1).message(), "a\\u{1b}[31mb.gguf");
        let bars = Bars::default();
        bars.begin("loading", None);
        bars.continues("c\x07");
        assert_eq!(bars.bar.borrow().as_ref().map(|bar| bar.message()), Some("c\\u{7}".into()));
    }
}
