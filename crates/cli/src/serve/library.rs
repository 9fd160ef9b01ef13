//! The models that `tern serve` loads on request: those of the flags, of a folder, or of `tern list`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use tern::formats::{Access, Checkpoint};
use tern::hub::{self, HubError, Location, Silent};
use tern::{CacheFolder, CheckedModel, LoadOptions, MemoryClaims, Progress, environment};
use tern_server::{CheckedLoad, Library, LibraryModel, LoadError, ModelDetails};

use super::catalogue::{Catalogue, details};
use super::default_model::{CHAT_MODEL, default_of};
use super::files::{files_of, models_in, of_files};
use super::load_options;
use super::model::{served, short_name};
use crate::args::ServeArgs;
use crate::error::{CliError, CliResult};
use crate::load::Bars;

/// Where the models come from.
enum Origin {
    /// `-m A -m B`
    Named(Vec<String>),
    /// `--models FOLDER`
    Folder(PathBuf),
    /// No flag: the models of `tern list` that are on this machine.
    Local,
}

/// The library of a server.
pub(super) struct LocalLibrary {
    origin: Origin,
    args: ServeArgs,
    /// Loads run beside each other.
    claims: MemoryClaims,
    /// The folder of prefixes that all models share.
    cache_folder: Option<CacheFolder>,
    catalogue: Catalogue,
}

/// A model, and what it is loaded by.
struct Entry {
    model: LibraryModel,
    /// Other names of it.
    aliases: Vec<String>,
    target: String,
    /// Its path; none if it is embedded.
    path: Option<PathBuf>,
}

impl LocalLibrary {
    /// None if the flags name one model, which is then loaded at the start. Models of the flags that are
    /// missing are downloaded first.
    pub(super) fn of(args: &ServeArgs) -> CliResult<Option<LocalLibrary>> {
        let origin = match (&args.models, args.engine.model.model.len(), &args.engine.model.hf) {
            (Some(folder), ..) => Origin::Folder(folder.clone()),
            (None, 0, None) => Origin::Local,
            (None, 0 | 1, _) => return Ok(None),
            (None, ..) => {
                args.engine
                    .model
                    .model
                    .iter()
                    .try_for_each(|name| fetch(name, &args.engine.model.progress()))?;
                Origin::Named(args.engine.model.model.clone())
            }
        };
        let (claims, catalogue) = (MemoryClaims::default(), Catalogue::default());
        let cache_folder = args.engine.model.cache_folder();
        Ok(Some(LocalLibrary { origin, args: args.clone(), claims, cache_folder, catalogue }))
    }

    fn entries(&self) -> Vec<Entry> {
        match &self.origin {
            Origin::Named(names) => names.iter().map(|name| named(name)).collect(),
            Origin::Folder(folder) => {
                let entry = |(name, path): (String, PathBuf)| {
                    let target = path.to_str()?.to_owned();
                    let model = of_files(&name, &path);
                    Some(Entry { model, aliases: vec![], target, path: Some(path) })
                };
                models_in(folder).into_iter().filter_map(entry).collect()
            }
            Origin::Local => {
                let mut entries: Vec<Entry> = listed().iter().filter_map(local).collect();
                // the chat model first, and the embedded one, which does not chat, last
                entries.sort_by_key(|entry| (entry.model.name != CHAT_MODEL, entry.path.is_none()));
                entries
            }
        }
    }

    fn entry(&self, name: &str) -> Option<Entry> {
        let is = |entry: &Entry| {
            entry.model.name == name
                || entry.target == name
                || entry.aliases.iter().any(|alias| alias == name)
        };
        self.entries().into_iter().find(is)
    }

    /// Whether models are loaded with their towers.
    fn takes_images(&self) -> bool {
        let model = &self.args.engine.model;
        !model.no_mmproj && model.device.gpu().is_none()
    }

    /// Whether the models of `tern list` are served and none is downloaded.
    pub(super) fn only_embedded(&self) -> bool {
        matches!(self.origin, Origin::Local) && self.entries().iter().all(|entry| entry.path.is_none())
    }

    /// The models are those of `tern list`, which change by downloads and deletions.
    fn check_local(&self, what: &str) -> Result<(), String> {
        match self.origin {
            Origin::Local => Ok(()),
            _ => Err(format!(
                "the models of this server are fixed: start it without -m and --models to {what}"
            )),
        }
    }
}

/// The models of `tern list`.
pub(super) fn listed() -> Vec<hub::Entry> {
    environment::hub_config().map_or(vec![], |config| hub::list(&config))
}

/// Downloads a model of the flags if it is missing.
fn fetch(name: &str, progress: &Bars) -> CliResult<()> {
    if hub::local(name)?.is_some() {
        return Ok(());
    }
    match hub::resolve(name, &environment::hub_config()?, false, &Silent) {
        Err(HubError::NotDownloaded { .. }) => {
            tern::pull(name, &LoadOptions::default(), progress)?;
            Ok(())
        }
        other => Ok(other.map(|_| ())?),
    }
}

/// A model of the flags, by its path: a request never starts a download.
fn named(target: &str) -> Entry {
    let found = hub::local(target).ok().flatten().or_else(|| {
        let config = environment::hub_config().ok()?;
        hub::resolve(target, &config, false, &Silent).ok()
    });
    let name = short_name(target);
    let path = match found {
        Some(hub::Source::Embedded(_)) => {
            return Entry { model: embedded(name), aliases: vec![], target: target.to_owned(), path: None };
        }
        Some(hub::Source::Path(path)) => path,
        None => Path::new(".").join(target), // it was there when the server started
    };
    let model = of_files(&name, &path);
    Entry { model, aliases: vec![], target: path.display().to_string(), path: Some(path) }
}

fn embedded(name: String) -> LibraryModel {
    LibraryModel { name, bytes: tern::STORIES.len() as u64, ..LibraryModel::default() }
}

/// What identifies the contents of the model at a path, or of the embedded one.
fn digest(path: Option<&Path>) -> String {
    match path {
        Some(path) => hub::identity(&files_of(path)).unwrap_or_default(),
        None => hub::identity_of_bytes(tern::STORIES),
    }
}

/// What identifies the contents of a model that is on this machine.
pub(super) fn digest_of(target: &str) -> String {
    digest(named(target).path.as_deref())
}

/// A model of `tern list` that is on this machine.
fn local(entry: &hub::Entry) -> Option<Entry> {
    let (name, aliases) = (entry.name.clone(), entry.aliases.clone());
    Some(match &entry.location {
        Location::Missing => return None,
        Location::Embedded => Entry { model: embedded(name.clone()), aliases, target: name, path: None },
        Location::File(path) => {
            // by its path: a request never starts a download
            let target = path.to_str()?.to_owned();
            Entry { model: of_files(&name, path), aliases, target, path: Some(path.clone()) }
        }
    })
}

impl Library for LocalLibrary {
    fn list(&self) -> Vec<LibraryModel> {
        self.entries().into_iter().map(|entry| entry.model).collect()
    }

    fn described(&self) -> Vec<LibraryModel> {
        let entries = self.entries();
        let on_disk = |entry: &Entry| Some((entry.model.clone(), entry.path.clone()?));
        let mut described = self.catalogue.describe(entries.iter().filter_map(on_disk).collect()).into_iter();
        let of_entry = |entry: Entry| match entry.path {
            Some(_) => described.next().unwrap_or(entry.model),
            None => {
                let checkpoint = Checkpoint::from_bytes(tern::STORIES.into()).ok();
                LibraryModel {
                    digest: digest(None),
                    details: checkpoint.as_ref().map(details),
                    ..entry.model
                }
            }
        };
        let takes_images = self.takes_images();
        let seeing = |model: LibraryModel| {
            let details = model.details.map(|d| ModelDetails { sees: d.sees && takes_images, ..d });
            LibraryModel { details, ..model }
        };
        entries.into_iter().map(of_entry).map(seeing).collect()
    }

    fn default_model(&self) -> Option<String> {
        let entries = self.entries();
        match &self.origin {
            Origin::Named(_) => entries.into_iter().next().map(|entry| entry.model.name),
            Origin::Folder(_) => None,
            Origin::Local => {
                default_of(entries.iter().map(|entry| (entry.model.name.as_str(), entry.path.is_some())))
            }
        }
    }

    fn find(&self, name: &str) -> Option<String> {
        self.entry(name).map(|entry| entry.model.name)
    }

    fn is_downloadable(&self, name: &str) -> bool {
        matches!(self.origin, Origin::Local)
            && (hub::Short::named(name).is_some()
                || hub::KNOWN.iter().any(|known| known.name == name && !known.embedded()))
    }

    fn open(&self, name: &str, until: Option<Instant>) -> Result<CheckedLoad, String> {
        let entry = self.entry(name).ok_or_else(|| format!("{name}: there is no such model"))?;
        let (name, args) = (entry.model.name, self.args.clone());
        let options = load_options(&args);
        let access = Access { until, ..options.access };
        let (claims, cache_folder) = (self.claims.clone(), self.cache_folder.clone());
        let options = LoadOptions { claims, cache_folder, access, ..options };
        let checked = CheckedModel::open(&entry.target, &options, &args.engine.model.progress().until(until));
        let checked = checked.map_err(|error| CliError::from(error).to_string())?;
        let digest = digest(entry.path.as_deref());
        let failed = |error: tern::Error| LoadError {
            is_memory: error.is_memory(),
            message: CliError::from(error).to_string(),
        };
        Ok(CheckedLoad {
            bytes: checked.weight_bytes(),
            start: Box::new(move || {
                let backend = args.engine.model.backend();
                let backend =
                    backend.map_err(|error| LoadError { message: error.to_string(), is_memory: false })?;
                let model = checked
                    .start(backend, &options, &args.engine.model.progress().until(until))
                    .map_err(failed)?;
                Ok(served(&args.engine, model, vec![name], digest))
            }),
        })
    }

    fn pull(&self, name: &str, progress: &dyn Progress) -> Result<(), String> {
        self.check_local("download models")?;
        tern::download(name, &LoadOptions::default(), progress).map(|_| ()).map_err(|error| error.to_string())
    }

    fn delete(&self, name: &str) -> Result<(), String> {
        self.check_local("delete models")?;
        let config = environment::hub_config().map_err(|error| error.to_string())?;
        let entry = hub::list(&config).into_iter().find(|entry| entry.is_named(name));
        let entry = entry.ok_or_else(|| format!("{name} is not downloaded"))?;
        hub::delete(&entry, &config).map_err(|error| error.to_string())
    }
}
