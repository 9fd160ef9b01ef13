//! Programs compiled once per GPU and model shape, and cached on disk.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use sha2::{Digest, Sha256};
use tern_graph::BackendError;

use super::device::Device;
use super::kernel::Module;
use super::nvrtc::{Nvrtc, SearchPaths};
use super::source::{Define, KernelSource, Source};

type Result<T> = std::result::Result<T, BackendError>;

/// The options of NVRTC. Reproducible: whether a product and a sum become one operation must not be the
/// compiler's choice, which differs between the kernels of an op.
pub(crate) fn compile_options(architecture: &str, reproducible: bool) -> Vec<String> {
    let mut options =
        vec![format!("--gpu-architecture={architecture}"), "--std=c++17".into(), "-default-device".into()];
    if reproducible {
        options.extend(["--fmad=false".into(), "--define-macro=REPRODUCIBLE=true".into()]);
    } else {
        options.push("--define-macro=REPRODUCIBLE=false".into());
    }
    options
}

/// Compiles sources and loads them.
pub(crate) struct Compiler {
    device: Arc<Device>,
    binaries: Arc<Binaries>,
    /// Loaded modules by their complete source: programs share them.
    modules: HashMap<String, Module>,
}

/// Machine code of sources, compiled once and cached.
struct Binaries {
    options: Vec<String>,
    paths: SearchPaths,
    /// Opened when a source has to be compiled.
    nvrtc: OnceLock<std::result::Result<Nvrtc, String>>,
    cache: Option<PathBuf>,
}

impl Compiler {
    pub(crate) fn new(device: Arc<Device>, paths: SearchPaths, cache: Option<PathBuf>) -> Compiler {
        let options = compile_options(&architecture(device.facts.capability), device.arithmetic.reproducible);
        let binaries = Arc::new(Binaries { options, paths, nvrtc: OnceLock::new(), cache });
        Compiler { device, binaries, modules: HashMap::new() }
    }

    /// A source with these definitions, loaded on the device.
    pub(crate) fn module(&mut self, source: Source, defines: &[Define]) -> Result<&Module> {
        let text = source.with(defines);
        if !self.modules.contains_key(&text) {
            self.load_all(&[KernelSource { source, defines: defines.to_vec() }])?;
        }
        self.modules
            .get(&text)
            .ok_or_else(|| BackendError::Other("a module that was loaded is missing".into()))
    }

    /// Compiles a source in the background.
    pub(crate) fn begin(&self, source: &KernelSource) -> PendingModule {
        let (name, text) = (source.name(), source.text());
        let (binaries, device) = (Arc::clone(&self.binaries), Arc::clone(&self.device));
        PendingModule {
            name: name.clone(),
            code: Some(std::thread::spawn(move || binaries.code(&name, &text))),
            device,
        }
    }

    /// Loads all of them, those that are not cached compiled by all processors.
    pub(crate) fn load_all(&mut self, sources: &[KernelSource]) -> Result<()> {
        let texts = sources.iter().map(|s| (s.name(), s.text()));
        let mut missing: Vec<_> = texts.filter(|(_, text)| !self.modules.contains_key(text)).collect();
        missing.sort();
        missing.dedup();
        let (next, binaries) = (AtomicUsize::new(0), &self.binaries);
        let compiled = Mutex::new(vec![]);
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(missing.len());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some((name, text)) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let code = binaries.code(name, text).map(|code| (name, text, code));
                        compiled.lock().unwrap_or_else(PoisonError::into_inner).push(code);
                    }
                });
            }
        });
        let compiled = compiled.into_inner().unwrap_or_else(PoisonError::into_inner);
        for module in compiled {
            let (name, text, code) = module?;
            self.modules.insert(text.clone(), self.device.load(&code, name)?);
        }
        Ok(())
    }
}

/// A module that is being compiled.
pub(crate) struct PendingModule {
    name: String,
    /// `None` once it has been waited for.
    code: Option<JoinHandle<Result<Vec<u8>>>>,
    device: Arc<Device>,
}

impl PendingModule {
    /// Whether `load` returns without waiting for the compiler.
    pub(crate) fn is_ready(&self) -> bool {
        self.code.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the compiler and loads the code.
    pub(crate) fn load(mut self) -> Result<Module> {
        let Some(code) = self.code.take() else {
            return Err(BackendError::Other(format!("{}: it has been waited for", self.name)));
        };
        let code = code.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        self.device.load(&code, &self.name)
    }
}

impl Drop for PendingModule {
    /// Waits for the compiler: a process that ends while NVRTC runs ends with an error of NVRTC. The code is
    /// cached for the next start.
    fn drop(&mut self) {
        if let Some(code) = self.code.take() {
            let _ = code.join();
        }
    }
}

impl Binaries {
    /// The machine code of a source, from the cache or compiled.
    fn code(&self, name: &str, text: &str) -> Result<Vec<u8>> {
        // NVRTC's version is no part of the key: a cached kernel is used without opening NVRTC
        let key = key(&[env!("CARGO_PKG_VERSION"), &self.options.join(" "), text]);
        let file = self.cache.as_ref().map(|folder| folder.join(format!("{name}-{key}.cubin")));
        if let Some(code) = file.as_deref().and_then(read_cached) {
            return Ok(code);
        }
        let code = self.compile(name, text)?;
        if let Some(file) = &file {
            write_cached(file, &code); // if this fails, the next start compiles again
        }
        Ok(code)
    }

    fn compile(&self, name: &str, text: &str) -> Result<Vec<u8>> {
        let nvrtc = self.nvrtc.get_or_init(|| Nvrtc::open(&self.paths));
        let nvrtc = nvrtc.as_ref().map_err(|why| BackendError::Other(why.clone()))?;
        let compiled = nvrtc.compile(name, text, &self.options).map_err(BackendError::Other);
        compiled.map(|(code, _)| code)
    }
}

/// `sm_90a` for 9, 0: from 9.0 on the variant with the features of that chip alone.
pub(crate) fn architecture((major, minor): (i32, i32)) -> String {
    let suffix = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{suffix}")
}

fn key(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part.as_bytes());
    }
    hex(&hash.finalize()[..16])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Reads a cached file: the code and its hash. A file that is truncated or changed is ignored.
fn read_cached(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(file).ok()?;
    let code = bytes.len().checked_sub(32)?;
    (Sha256::digest(&bytes[..code])[..] == bytes[code..]).then(|| {
        bytes.truncate(code);
        bytes
    })
}

/// Writes a temporary file and renames it, so that no process reads an incomplete one; only the
/// owner may open the folder.
fn write_cached(file: &Path, code: &[u8]) -> Option<()> {
    let folder = file.parent()?;
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).ok()?;
    // several threads may compile one source, each for its own backend
    let writer = format!("{}-{:?}.part", std::process::id(), std::thread::current().id());
    let beside = file.with_extension(writer);
    let mut out = fs::File::create(&beside).ok()?;
    let written = out.write_all(code).and_then(|()| out.write_all(&Sha256::digest(code)));
    if written.and_then(|()| fs::rename(&beside, file)).is_err() {
        let _ = fs::remove_file(&beside);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_kernel_is_read_back_and_a_damaged_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sub/k.cubin");
        write_cached(&file, b"machine code").unwrap();
        assert_eq!(read_cached(&file).unwrap(), b"machine code");
        let mut bytes = fs::read(&file).unwrap();
        bytes[3] ^= 1;
        fs::write(&file, &bytes).unwrap();
        assert_eq!(read_cached(&file), None);
        fs::write(&file, b"short").unwrap();
        assert_eq!(read_cached(&file), None);
    }

    #[test]
    fn architectures_from_sm_90_on_have_the_suffix() {
        let names = [(7, 5), (8, 9), (9, 0), (12, 0)].map(architecture);
        assert_eq!(names, ["sm_75", "sm_89", "sm_90a", "sm_120a"]);
    }
}
