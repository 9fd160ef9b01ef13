//! From kernel sources to kernels: compiled once for this GPU and this model's shapes, and kept for the next time.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tern_graph::BackendError;

use super::device::{Device, Module};
use super::nvrtc::{Nvrtc, Places};
use crate::shared;

type Result<T> = std::result::Result<T, BackendError>;

/// What every source begins with; then comes what the host shares.
const COMMON: &str = include_str!("../../kernels/common.cuh");

/// What phases are made of, in order.
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
    /// Steps of a few tokens, in one launch.
    Step,
    /// Phases of many tokens.
    Many,
    /// Choosing tokens.
    Sample,
    /// Reading memory as fast as can be.
    Bandwidth,
}

impl Source {
    fn texts(self) -> &'static [&'static str] {
        match self {
            Source::Step => &[
                include_str!("../../kernels/linear_shape.cuh"),
                include_str!("../../kernels/ring.cuh"),
                include_str!("../../kernels/linear.cuh"),
                include_str!("../../kernels/attend.cuh"),
                include_str!("../../kernels/fused_step.cu"),
            ],
            Source::Many => &[include_str!("../../kernels/phase_launches.cu")],
            Source::Sample => &[include_str!("../../kernels/sample.cu")],
            Source::Bandwidth => &[include_str!("../../kernels/bandwidth.cu")],
        }
    }

    /// The whole text for some definitions.
    pub(crate) fn with(self, defines: &[(&str, String)]) -> String {
        let defines: String =
            defines.iter().map(|(name, value)| format!("#define {name} {value}\n")).collect();
        let phases: &[&str] = match self {
            Source::Step | Source::Many => &PHASES,
            Source::Sample | Source::Bandwidth => &[],
        };
        let texts = [phases, self.texts()].concat();
        format!("{defines}{COMMON}\n{}\n{}", shared::header(), texts.join("\n"))
    }
}

/// What NVRTC is told beside the source.
pub(crate) fn options(architecture: &str) -> Vec<String> {
    vec![format!("--gpu-architecture={architecture}"), "--std=c++17".into(), "-default-device".into()]
}

/// Compiles, and remembers.
pub(crate) struct Compiler {
    device: Arc<Device>,
    places: Places,
    /// Opened when something has to be compiled.
    nvrtc: Option<Nvrtc>,
    cache: Option<PathBuf>,
    /// Modules on the device, by their whole source: layers of a model share them.
    modules: HashMap<String, Module>,
}

impl Compiler {
    pub(crate) fn new(device: Arc<Device>, places: Places, cache: Option<PathBuf>) -> Compiler {
        Compiler { device, places, nvrtc: None, cache, modules: HashMap::new() }
    }

    /// A source with these definitions, on the device.
    pub(crate) fn module(&mut self, source: Source, defines: &[(&str, String)]) -> Result<&Module> {
        let text = source.with(defines);
        if !self.modules.contains_key(&text) {
            let name = format!("{source:?}").to_lowercase();
            let code = self.code(&name, &text)?;
            let module = self.device.load(&code, &name)?;
            self.modules.insert(text.clone(), module);
        }
        self.modules.get(&text).ok_or_else(|| BackendError::Other("a module is gone".into()))
    }

    /// The machine code of a source, kept or compiled.
    fn code(&mut self, name: &str, text: &str) -> Result<Vec<u8>> {
        let options = options(&architecture(self.device.facts.capability));
        // a cached kernel is found without NVRTC, whatever made it
        let key = key(&[env!("CARGO_PKG_VERSION"), &options.join(" "), text]);
        let file = self.cache.as_ref().map(|folder| folder.join(format!("{name}-{key}.cubin")));
        if let Some(code) = file.as_deref().and_then(read) {
            return Ok(code);
        }
        let code = self.compile(name, text, &options)?;
        if let Some(file) = &file {
            keep(file, &code); // the next start compiles again if this fails
        }
        Ok(code)
    }

    fn compile(&mut self, name: &str, text: &str, options: &[String]) -> Result<Vec<u8>> {
        let nvrtc = match self.nvrtc.take() {
            Some(nvrtc) => nvrtc,
            None => Nvrtc::open(&self.places).map_err(BackendError::Other)?,
        };
        let compiled = nvrtc.compile(name, text, options).map_err(BackendError::Other);
        self.nvrtc = Some(nvrtc);
        compiled.map(|(code, _)| code)
    }
}

/// `sm_90a` of 9, 0: from 9.0 on the variant with everything that the chip alone can do.
pub(crate) fn architecture((major, minor): (i32, i32)) -> String {
    let own = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{own}")
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

/// A cached file is its code and the code's hash: what was cut off or changed is not taken.
fn read(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(file).ok()?;
    let code = bytes.len().checked_sub(32)?;
    (Sha256::digest(&bytes[..code])[..] == bytes[code..]).then(|| {
        bytes.truncate(code);
        bytes
    })
}

/// Written beside and renamed, so that no one ever reads half a file; the folder is its owner's alone.
fn keep(file: &Path, code: &[u8]) -> Option<()> {
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
    use crate::launch::fused_step::Room;
    use crate::launch::program::Kinds;
    use crate::lower::AttentionShape;
    use crate::lower::linear_shape::{self, LinearShape};
    use crate::weights::Layout;

    #[test]
    fn a_kept_kernel_is_read_back_and_a_damaged_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sub/k.cubin");
        keep(&file, b"machine code").unwrap();
        assert_eq!(read(&file).unwrap(), b"machine code");
        let mut bytes = fs::read(&file).unwrap();
        bytes[3] ^= 1;
        fs::write(&file, &bytes).unwrap();
        assert_eq!(read(&file), None);
        fs::write(&file, b"short").unwrap();
        assert_eq!(read(&file), None);
    }

    /// Bytes that a function may save of its caller's registers: what ptxas also counts as spilled.
    const SAVED: usize = 192;

    fn spilled(line: &str) -> Option<usize> {
        line.split(" bytes spill stores").next()?.rsplit(' ').next()?.parse().ok()
    }

    /// Every kernel for every generation, without a GPU: it compiles, and no register is spilled.
    #[test]
    fn every_kernel_compiles_for_every_generation() {
        let Some(tools) = std::env::var_os("TERN_TEST_TOOLS").map(PathBuf::from) else {
            println!("skipped: every_kernel_compiles_for_every_generation (TERN_TEST_TOOLS is not set)");
            return;
        };
        let pythons = fs::read_dir(tools.join("lib")).into_iter().flatten().flatten();
        let site_packages = pythons.map(|e| e.path().join("site-packages")).collect();
        let places = Places { toolkits: vec![], site_packages };
        let nvrtc = match Nvrtc::open(&places) {
            Ok(nvrtc) => nvrtc,
            Err(why) => {
                println!("skipped: every_kernel_compiles_for_every_generation ({why})");
                return;
            }
        };
        let mut formats = vec![];
        for layout in tern_quant::ALL.iter().filter_map(|quant| Layout::of(quant)) {
            if !formats.contains(&layout) {
                formats.push(layout);
            }
        }
        let heads = |head_dim, v_dim, queries| {
            let capped = head_dim == 256;
            AttentionShape { head_dim, v_dim, queries, capped }
        };
        let shapes = [heads(128, 128, 8), heads(80, 48, 1), heads(256, 256, 4), heads(64, 64, 3)];
        // models of a few formats and one kind of heads each: all formats and heads are in one of them
        let models = formats.chunks(4).zip(shapes.iter().cycle()).map(|(formats, shape)| Kinds {
            formats: formats.to_vec(),
            shapes: vec![*shape],
            page_len: 32,
        });
        let step = |kinds: &Kinds, tokens: usize| {
            let room = Room::new(kinds, &[], &[(0, 64)], tokens).defines((9216, 16));
            // one of everything: parts, a gate, what is added, rows that do not fill all warps; and every format
            let part = |format: usize, rows| (format as i32, rows);
            let last = kinds.formats.len() - 1;
            let alike = [last, 0].map(|i| Some(kinds.formats[i]).filter(Layout::is_signs));
            let alike = alike[0] == alike[1];
            let parts = [part(0, 4096), part(if alike { last } else { 0 }, 1000)];
            let mut shapes = vec![
                LinearShape { flags: 1 | 16 | 64, ..LinearShape::new(4096, 2, &parts) },
                LinearShape { gated: 1, ..LinearShape::new(4096, 2, &[part(0, 12288), part(0, 12288)]) },
                LinearShape { flags: 2 | 16 | 32 | 128, ..LinearShape::new(11008, 2, &[part(0, 4096)]) },
            ];
            shapes.extend((1..=last).map(|f| LinearShape::new(2048, 1, &[part(f, 512)])));
            Source::Step.with(&[kinds.defines(), room, linear_shape::defines(&shapes, 132)].concat())
        };
        let mut sources = vec![];
        for (i, kinds) in models.enumerate() {
            sources.push((if i == 0 { "one token" } else { "one token, other formats" }, step(&kinds, 1)));
            if i == 0 {
                sources.push(("four", step(&kinds, 4)));
            }
            sources.push(("many", Source::Many.with(&kinds.defines())));
        }
        sources.push(("sample", Source::Sample.with(&[])));
        sources.push(("bandwidth", Source::Bandwidth.with(&[])));
        let architectures = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"];
        std::thread::scope(|scope| {
            for architecture in architectures {
                let (nvrtc, sources) = (&nvrtc, &sources);
                scope.spawn(move || {
                    for (name, source) in sources {
                        // steps of a few tokens need barriers in shared memory: see `Few::all`
                        if architecture == "sm_75" && source.contains("one_launch") {
                            continue;
                        }
                        // slow to compile, and the same code as in others
                        let again = match *name {
                            "four" => architecture != "sm_90a",
                            "one token, other formats" => !["sm_80", "sm_90a"].contains(&architecture),
                            _ => false,
                        };
                        if again {
                            continue;
                        }
                        let mut options = options(architecture);
                        options.push("--ptxas-options=-v".into());
                        let (_, notes) = nvrtc.compile(name, source, &options).unwrap();
                        let most = notes.lines().filter_map(spilled).max().unwrap_or(0);
                        assert!(most <= SAVED, "{name} for {architecture} spills {most} bytes");
                    }
                });
            }
        });
    }

    #[test]
    fn architectures_are_the_chips_own() {
        let names = [(7, 5), (8, 9), (9, 0), (12, 0)].map(architecture);
        assert_eq!(names, ["sm_75", "sm_89", "sm_90a", "sm_120a"]);
    }
}
