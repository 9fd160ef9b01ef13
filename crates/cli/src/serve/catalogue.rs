//! What the headers of models say, read once per file on threads in the background: a header that takes long
//! delays no list.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tern::formats::{Access, Checkpoint, FileKind};
use tern::{OpenedTower, hub};
use tern_server::{LibraryModel, ModelDetails};

use super::files::files_of;

/// Threads that read headers.
const READERS: usize = 4;
/// How long a list waits for headers that are not known yet.
const MOMENT: Duration = Duration::from_millis(1500);

/// A model's file at one time: its path, its size and when it was changed.
type Version = (PathBuf, u64, u64);

/// What is known of a file.
#[derive(Clone, Default)]
struct Description {
    digest: String,
    details: Option<ModelDetails>,
}

/// The headers that were read, and those that are to be read.
#[derive(Default)]
pub(super) struct Catalogue(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    read: Condvar,
}

#[derive(Default)]
struct State {
    /// None while it is read.
    known: HashMap<Version, Option<Description>>,
    queue: VecDeque<Version>,
    readers: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads headers until the queue is empty.
    fn work(&self) {
        loop {
            let mut state = self.lock();
            let Some(version) = state.queue.pop_front() else {
                state.readers -= 1;
                return;
            };
            drop(state);
            let description = std::panic::catch_unwind(|| describe(&version)).unwrap_or_default();
            self.lock().known.insert(version, Some(description));
            self.read.notify_all();
        }
    }
}

impl Catalogue {
    /// Adds digests and details to models at these paths, as far as they are known within a moment.
    pub(super) fn describe(&self, models: Vec<(LibraryModel, PathBuf)>) -> Vec<LibraryModel> {
        let version = |(model, path): &(LibraryModel, PathBuf)| (path.clone(), model.bytes, model.modified);
        let versions: Vec<Version> = models.iter().map(version).collect();
        let mut state = self.0.lock();
        // of files that are gone or have changed
        state.known.retain(|known, description| description.is_none() || versions.contains(known));
        for version in &versions {
            if !state.known.contains_key(version) {
                state.known.insert(version.clone(), None);
                state.queue.push_back(version.clone());
            }
        }
        for _ in state.readers..READERS.min(state.readers + state.queue.len()) {
            let shared = Arc::clone(&self.0);
            let started = thread::Builder::new().name("tern-headers".into()).spawn(move || shared.work());
            state.readers += usize::from(started.is_ok());
        }
        let unknown =
            |state: &mut State| versions.iter().any(|version| matches!(state.known.get(version), Some(None)));
        let waited = self.0.read.wait_timeout_while(state, MOMENT, unknown);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let described = models.into_iter().zip(&versions).map(|((model, _), version)| {
            let known = state.known.get(version).cloned().flatten().unwrap_or_default();
            LibraryModel { digest: known.digest, details: known.details, ..model }
        });
        described.collect()
    }
}

fn describe((path, _, _): &Version) -> Description {
    let digest = hub::identity(&files_of(path)).unwrap_or_default();
    Description { digest, details: Checkpoint::open(path).ok().map(|checkpoint| details(&checkpoint)) }
}

/// What a header says.
pub(super) fn details(checkpoint: &Checkpoint) -> ModelDetails {
    let mut formats: Vec<(&'static str, u64)> = vec![];
    for tensor in checkpoint.tensors.values() {
        let weights = tensor.dims.iter().product::<u64>();
        match formats.iter_mut().find(|(name, _)| *name == tensor.quant.name) {
            Some((_, sum)) => *sum += weights,
            None => formats.push((tensor.quant.name, weights)),
        }
    }
    let is_folder = checkpoint.files.iter().any(|file| file.kind == FileKind::Safetensors);
    let text = |key: &str| checkpoint.metadata.optional_str(key).ok().flatten();
    ModelDetails {
        format: if is_folder { "safetensors" } else { "gguf" },
        family: text("general.architecture").unwrap_or_default().to_owned(),
        parameters: formats.iter().map(|(_, weights)| weights).sum(),
        quantization: formats.iter().max_by_key(|(_, weights)| *weights).map_or("", |(name, _)| name),
        chats: text("tokenizer.chat_template").is_some(),
        sees: OpenedTower::beside(checkpoint, Access::default()).is_ok_and(|tower| tower.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::files::of_files;

    #[test]
    fn headers_are_read_once_and_damaged_files_have_no_details() {
        let folder = tempfile::tempdir().unwrap();
        let (stories, damaged) = (folder.path().join("stories.gguf"), folder.path().join("damaged.gguf"));
        std::fs::write(&stories, tern::STORIES).unwrap();
        std::fs::write(&damaged, "GGUF").unwrap();
        let catalogue = Catalogue::default();
        let describe = || {
            catalogue.describe(vec![
                (of_files("s", &stories), stories.clone()),
                (of_files("d", &damaged), damaged.clone()),
            ])
        };
        let models = describe();
        let details = models[0].details.clone().unwrap();
        assert_eq!(
            (details.format, details.family.as_str(), details.quantization),
            ("gguf", "qwen3", "Q1_0")
        );
        assert!(details.parameters > 20_000_000 && !details.chats, "{details:?}");
        assert_eq!((models[0].bytes, models[0].digest.len()), (tern::STORIES.len() as u64, 64));
        assert!(models[1].details.is_none() && models[1].digest.len() == 64);
        assert_eq!(describe(), models);
        std::fs::write(&damaged, tern::STORIES).unwrap();
        assert_eq!(describe()[1].details, models[0].details);
    }
}
