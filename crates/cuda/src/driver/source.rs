//! The programs that are compiled, and their complete text: definitions, then a file of `kernels`
//! with all that it includes.

use super::includes::{Resolved, resolved};
use crate::shared;

/// A kernel source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// A step of one token in one launch.
    FusedStep,
    /// A step of several tokens in one launch.
    FusedBatch,
    /// A launch or two per phase.
    PhaseLaunches,
    /// A linear phase of many tokens; a module for each format and tile.
    TiledLinear,
    /// A linear phase of a large step with x as bytes; a module for each format.
    ByteLinear,
    /// Mixtures of experts: everything but their products.
    Experts,
    /// Attention of many tokens; a module for each shape of heads.
    PagedAttention,
    /// Convolutions of recurrent layers.
    Convolve,
    /// Delta rules and scans; a module for each number of rows of a state.
    Recurrent,
    /// Norm, gate and rotation of rows.
    Transform,
    /// Sampling.
    Sample,
    /// Measuring the bandwidth of memory.
    Bandwidth,
}

#[cfg(test)]
const SOURCES: [Source; 12] = [
    Source::FusedStep,
    Source::FusedBatch,
    Source::PhaseLaunches,
    Source::TiledLinear,
    Source::ByteLinear,
    Source::Experts,
    Source::PagedAttention,
    Source::Convolve,
    Source::Recurrent,
    Source::Transform,
    Source::Sample,
    Source::Bandwidth,
];

impl Source {
    /// Its file in `kernels`.
    fn file(self) -> &'static str {
        match self {
            Source::FusedStep => "fused_step/one_token.cu",
            Source::FusedBatch => "fused_step/several_tokens.cu",
            Source::PhaseLaunches => "launches/phase_launches.cu",
            Source::TiledLinear => "launches/tiled_linear.cu",
            Source::ByteLinear => "launches/byte_linear.cu",
            Source::PagedAttention => "launches/paged_attention.cu",
            Source::Experts => "launches/experts.cu",
            Source::Convolve => "launches/convolve.cu",
            Source::Recurrent => "launches/recurrent.cu",
            Source::Transform => "launches/transform.cu",
            Source::Sample => "sampling/sample.cu",
            Source::Bandwidth => "launches/bandwidth.cu",
        }
    }

    /// The complete text with these definitions. If the files include each other in a circle, it is
    /// an error of the compiler.
    pub(crate) fn with(self, defines: &[Define]) -> String {
        let text = self.resolved(defines).map_or_else(|why| format!("#error {why}\n"), |files| files.text);
        c_defines(defines) + &text
    }

    fn resolved(self, defines: &[Define]) -> Result<Resolved, String> {
        let read = |path: &str| {
            let host = HOST_FILES.into_iter().find(|file| *file == path);
            host.map(|file| host_text(file, defines)).or_else(|| kernel_file(path).map(str::to_string))
        };
        resolved(self.file(), read)
    }
}

/// Definitions in C. Sizes have a separate file.
fn c_defines(defines: &[Define]) -> String {
    let macros = defines.iter().filter(|(name, _)| *name != SIZES);
    macros.map(|(name, value)| format!("#define {name} {value}\n")).collect()
}

/// Files that kernels include and the host writes: what both share, the products of a warpgroup, and the
/// sizes of one kernel.
pub(crate) const HOST_FILES: [&str; 3] = ["host/shared.cuh", "host/wgmma.cuh", "host/sizes.cuh"];

/// The text of such a file in a program with these definitions.
fn host_text(file: &str, defines: &[Define]) -> String {
    let value = |name: &str| defines.iter().find(|define| define.0 == name).map(|define| define.1.as_str());
    match file {
        "host/shared.cuh" => shared::header(),
        "host/sizes.cuh" => value(SIZES).unwrap_or_default().to_string(),
        _ => {
            let tokens = value(TILE_TOKENS).and_then(|tokens| tokens.parse().ok());
            tokens.map(shared::wgmma_text).unwrap_or_default()
        }
    }
}

macro_rules! kernel_files {
    ($($path:literal)+) => {
        /// The files of `kernels`, by their paths in it.
        pub(crate) const FILES: &[(&str, &str)] = &[$(($path, include_str!(concat!("../../kernels/", $path)))),+];
    };
}
kernel_files! {
    "attention/attend.cuh"
    "attention/heads.cuh"
    "attention/paged_attention.cuh"
    "attention/paged_heads.cuh"
    "attention/pages.cuh"
    "base/common.cuh"
    "base/phase.cuh"
    "base/ptx.cuh"
    "base/tagged.cuh"
    "experts/choose.cuh"
    "experts/route.cuh"
    "fused_step/one_token.cu"
    "fused_step/ring.cuh"
    "fused_step/several_tokens.cu"
    "fused_step/step.cuh"
    "launches/bandwidth.cu"
    "launches/byte_linear.cu"
    "launches/convolve.cu"
    "launches/experts.cu"
    "launches/paged_attention.cu"
    "launches/phase_launches.cu"
    "launches/recurrent.cu"
    "launches/tiled_linear.cu"
    "launches/transform.cu"
    "linear/batch_linear.cuh"
    "linear/byte_linear.cuh"
    "linear/linear.cuh"
    "linear/linear_shape.cuh"
    "linear/step_linear.cuh"
    "linear/tile_sums.cuh"
    "linear/tiled_linear.cuh"
    "phases/argmax.cuh"
    "phases/small_phases.cuh"
    "recurrent/conv_column.cuh"
    "recurrent/slice_state.cuh"
    "recurrent/state_matrix.cuh"
    "recurrent/step_recurrent.cuh"
    "recurrent/transform_columns.cuh"
    "sampling/sample.cu"
    "weights/halves.cuh"
    "weights/placed.cuh"
    "weights/record.cuh"
    "x/byte_x.cuh"
    "x/half_x.cuh"
    "x/integers.cuh"
    "x/placed_x.cuh"
    "x/step_x.cuh"
    "x/x_fragments.cuh"
}

fn kernel_file(path: &str) -> Option<&'static str> {
    FILES.iter().find(|file| file.0 == path).map(|file| file.1)
}

/// The definition of a tile's tokens, for which the products of a warpgroup are added.
pub(crate) const TILE_TOKENS: &str = "TILE_TOKENS";

/// A name and its value in C.
pub(crate) type Define = (&'static str, String);

/// The name of the definition whose value is the text of `host/sizes.cuh`.
const SIZES: &str = "Sizes";

/// Sizes that the host has decided for a kernel: constants of its struct `Sizes`.
pub(crate) fn sizes(constants: &[(&str, usize)]) -> Define {
    (SIZES, shared::c_sizes(constants))
}

/// A source with its definitions.
#[derive(Clone, Debug)]
pub(crate) struct KernelSource {
    pub(crate) source: Source,
    pub(crate) defines: Vec<Define>,
}

impl KernelSource {
    /// For messages and files.
    pub(super) fn name(&self) -> String {
        format!("{:?}", self.source).to_lowercase()
    }

    /// The complete text.
    pub(crate) fn text(&self) -> String {
        self.source.with(&self.defines)
    }

    /// Its file in `kernels`.
    pub(crate) fn file(&self) -> &'static str {
        self.source.file()
    }

    /// Its files, each after those that it includes.
    pub(crate) fn files(&self) -> Result<Vec<String>, String> {
        self.source.resolved(&self.defines).map(|resolved| resolved.files)
    }

    /// Its definitions in C.
    pub(crate) fn c_defines(&self) -> String {
        c_defines(&self.defines)
    }

    /// The text of a file that the host writes.
    pub(crate) fn host_text(&self, file: &str) -> String {
        host_text(file, &self.defines)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn all_files_of_kernels_are_in_the_binary_and_in_a_program() {
        let mut paths = vec![];
        for folder in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")).unwrap() {
            let folder = folder.unwrap();
            for file in fs::read_dir(folder.path()).unwrap() {
                let (folder, file) = (folder.file_name(), file.unwrap().file_name());
                let path = format!("{}/{}", folder.to_string_lossy(), file.to_string_lossy());
                if path.ends_with(".cu") || path.ends_with(".cuh") {
                    paths.push(path);
                }
            }
        }
        paths.sort();
        assert_eq!(FILES.iter().map(|file| file.0).collect::<Vec<_>>(), paths);
        let texts: Vec<String> = SOURCES.iter().map(|source| source.with(&[])).collect();
        for path in paths {
            let line = format!("#line 1 \"{path}\"\n");
            assert!(texts.iter().any(|text| text.contains(&line)), "{path} is in no program");
        }
    }

    #[test]
    fn files_name_what_they_need() {
        for source in SOURCES {
            let text = source.with(&[]);
            assert!(!text.contains("#error") && !text.contains("#include"), "{}", source.file());
            // constants of the host come after the integer types that they need
            let [types, header] =
                ["base/ptx.cuh", "host/shared.cuh"].map(|path| text.find(&format!("#line 1 \"{path}\"")));
            assert!(types < header && types.is_some(), "{}", source.file());
        }
    }
}
