//! Adapters (LoRA) of a model: files that are loaded with it, and the requests that use them.

use std::path::PathBuf;
use std::str::FromStr;

use tern_engine::{AdapterScales, AdapterSet};
use tern_formats::{Access, Adapter, Metadata};
use tern_models::Model as Architecture;

use crate::{Error, Model};

/// An adapter to load with a model. As text: `NAME=FILE[:SCALE]`.
///
/// ```
/// let adapter: tern::AdapterFile = "poet=lora/poet.gguf:0.5".parse()?;
/// assert_eq!((adapter.name.as_str(), adapter.scale), ("poet", 0.5));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFile {
    /// The name that requests choose it by.
    pub name: String,
    /// A GGUF file, or a folder of PEFT.
    pub path: PathBuf,
    /// The factor on what it adds.
    pub scale: f32,
}

impl FromStr for AdapterFile {
    type Err = String;

    fn from_str(text: &str) -> Result<AdapterFile, String> {
        let wrong = || "expected NAME=FILE or NAME=FILE:SCALE".to_string();
        let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
        let scaled = rest.rsplit_once(':').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
        let (path, scale) = scaled.unwrap_or((rest, 1.0));
        if name.is_empty() || path.is_empty() {
            return Err(wrong());
        }
        if !scale.is_finite() {
            return Err(format!("expected a finite scale, got {scale}"));
        }
        Ok(AdapterFile { name: name.into(), path: path.into(), scale })
    }
}

/// The adapters of an opened model.
#[derive(Clone, Debug, Default)]
pub struct OpenedAdapters {
    /// Where they are from, by their number.
    pub files: Vec<AdapterFile>,
    /// Their matrices.
    pub set: AdapterSet,
}

impl OpenedAdapters {
    /// Opens the files of adapters for a model with these keys.
    pub(crate) fn open(
        files: &[AdapterFile],
        access: Access,
        metadata: &Metadata,
        model: &Architecture,
    ) -> Result<OpenedAdapters, Error> {
        let name = |at: usize| &files[at].name;
        if let Some(twice) = (1..files.len()).find(|at| (0..*at).any(|other| name(other) == name(*at))) {
            return Err(Error::AdapterName(name(twice).clone()));
        }
        let open = |file: &AdapterFile| Adapter::open(&file.path, access, metadata);
        let adapters = files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let named: Vec<_> = files.iter().map(|file| file.name.as_str()).zip(&adapters).collect();
        Ok(OpenedAdapters { files: files.to_vec(), set: model.adapters(&named)? })
    }

    /// All of them, each with its scale.
    pub fn all(&self) -> AdapterScales {
        all(&self.files)
    }
}

fn all(files: &[AdapterFile]) -> AdapterScales {
    AdapterScales::new(&files.iter().map(|file| file.scale).collect::<Vec<_>>())
}

/// The adapters of a loaded model; all are active, unless others are chosen.
impl Model {
    /// The adapters that were loaded with it, by their number.
    pub fn adapters(&self) -> &[AdapterFile] {
        &self.parts().adapters
    }

    /// The adapter of this name, with its scale.
    pub fn adapter(&self, name: &str) -> Option<AdapterScales> {
        let at = self.adapters().iter().position(|file| file.name == name)?;
        let scales = self.adapters().iter().enumerate();
        let scales = scales.map(|(i, file)| if i == at { file.scale } else { 0.0 });
        Some(AdapterScales::new(&scales.collect::<Vec<_>>()))
    }

    /// All adapters, each with its scale.
    pub fn all_adapters(&self) -> AdapterScales {
        all(self.adapters())
    }

    /// The same model, whose requests use these adapters; requests of all its handles share steps.
    #[must_use]
    pub fn with_adapters(&self, adapters: AdapterScales) -> Model {
        let mut model = self.clone();
        model.active = adapters;
        model
    }

    /// The adapters that its requests use.
    pub fn active_adapters(&self) -> &AdapterScales {
        &self.active
    }
}
