//! Kernel sources, compiled once per GPU and model shape and cached on disk.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tern_graph::BackendError;

use super::device::Device;
use super::kernel::Module;
use super::nvrtc::{Nvrtc, SearchPaths};
use crate::shared;

type Result<T> = std::result::Result<T, BackendError>;

/// Every source begins with it; then comes what is shared with the host.
const COMMON: &str = include_str!("../../kernels/common.cuh");

/// The sources of phases, in order.
const PHASES: [&str; 7] = [
    include_str!("../../kernels/record.cuh"),
    include_str!("../../kernels/integers.cuh"),
    include_str!("../../kernels/tagged.cuh"),
    include_str!("../../kernels/phase.cuh"),
    include_str!("../../kernels/small_phases.cuh"),
    include_str!("../../kernels/heads.cuh"),
    include_str!("../../kernels/argmax.cuh"),
];

/// A kernel source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// A step of a few tokens in one launch.
    FusedStep,
    /// A launch or two per phase.
    PhaseLaunches,
    /// Sampling.
    Sample,
    /// Measuring the bandwidth of memory.
    Bandwidth,
}

impl Source {
    fn texts(self) -> &'static [&'static str] {
        match self {
            Source::FusedStep => &[
                include_str!("../../kernels/linear_shape.cuh"),
                include_str!("../../kernels/ring.cuh"),
                include_str!("../../kernels/linear.cuh"),
                include_str!("../../kernels/attend.cuh"),
                include_str!("../../kernels/fused_step.cu"),
            ],
            Source::PhaseLaunches => &[include_str!("../../kernels/phase_launches.cu")],
            Source::Sample => &[include_str!("../../kernels/sample.cu")],
            Source::Bandwidth => &[include_str!("../../kernels/bandwidth.cu")],
        }
    }

    /// The complete text with these definitions.
    pub(crate) fn with(self, defines: &[(&str, String)]) -> String {
        let defines: String =
            defines.iter().map(|(name, value)| format!("#define {name} {value}\n")).collect();
        let phases: &[&str] = match self {
            Source::FusedStep | Source::PhaseLaunches => &PHASES,
            Source::Sample | Source::Bandwidth => &[],
        };
        let texts = [phases, self.texts()].concat();
        format!("{defines}{COMMON}\n{}\n{}", shared::header(), texts.join("\n"))
    }
}

/// The options of NVRTC.
pub(crate) fn compile_options(architecture: &str) -> Vec<String> {
    vec![format!("--gpu-architecture={architecture}"), "--std=c++17".into(), "-default-device".into()]
}

/// Compiles sources and caches the result.
pub(crate) struct Compiler {
    device: Arc<Device>,
    paths: SearchPaths,
    /// Opened when a source has to be compiled.
    nvrtc: Option<Nvrtc>,
    cache: Option<PathBuf>,
    /// Loaded modules by their complete source: programs share them.
    modules: HashMap<String, Module>,
}

impl Compiler {
    pub(crate) fn new(device: Arc<Device>, paths: SearchPaths, cache: Option<PathBuf>) -> Compiler {
        Compiler { device, paths, nvrtc: None, cache, modules: HashMap::new() }
    }

    /// A source with these definitions, loaded on the device.
    pub(crate) fn module(&mut self, source: Source, defines: &[(&str, String)]) -> Result<&Module> {
        let text = source.with(defines);
        if !self.modules.contains_key(&text) {
            let name = format!("{source:?}").to_lowercase();
            let code = self.code(&name, &text)?;
            let module = self.device.load(&code, &name)?;
            self.modules.insert(text.clone(), module);
        }
        self.modules
            .get(&text)
            .ok_or_else(|| BackendError::Other("a module that was loaded is missing".into()))
    }

    /// The machine code of a source, from the cache or compiled.
    fn code(&mut self, name: &str, text: &str) -> Result<Vec<u8>> {
        let options = compile_options(&architecture(self.device.facts.capability));
        // NVRTC's version is no part of the key: a cached kernel is used without opening NVRTC
        let key = key(&[env!("CARGO_PKG_VERSION"), &options.join(" "), text]);
        let file = self.cache.as_ref().map(|folder| folder.join(format!("{name}-{key}.cubin")));
        if let Some(code) = file.as_deref().and_then(read_cached) {
            return Ok(code);
        }
        let code = self.compile(name, text, &options)?;
        if let Some(file) = &file {
            write_cached(file, &code); // if this fails, the next start compiles again
        }
        Ok(code)
    }

    fn compile(&mut self, name: &str, text: &str, options: &[String]) -> Result<Vec<u8>> {
        let nvrtc = match self.nvrtc.take() {
            Some(nvrtc) => nvrtc,
            None => Nvrtc::open(&self.paths).map_err(BackendError::Other)?,
        };
        let compiled = nvrtc.compile(name, text, options).map_err(BackendError::Other);
        self.nvrtc = Some(nvrtc);
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

/// Writes a temporary file and renames it, so that no process reads an incomplete one; only the owner may open the folder.
fn write_cached(file: &Path, code: &[u8]) -> Option<()> {
    let folder = file.parent()?;
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).ok()?;
    let beside = file.with_extension(format!("{}.part", std::process::id()));
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
