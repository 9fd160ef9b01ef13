//! Towers: from the patches of an image to the rows that a language model reads in place of its tokens.
//!
//! A tower is two graphs. The encoder has one row per patch; its rows are then joined, which is a copy on the
//! host, and the projector has one row per token. One file per kind, one line in [`ALL`].

mod blocks;
mod gemma;
mod internvl;
mod join;
mod pixtral;
mod positions;
mod prompt;
mod qwen;
mod siglip;

use tern_formats::{Checkpoint, Metadata, MetadataError};
use tern_graph::{Graph, HostTensor, ImageRows, Images, LazyTensor, Weight};
use tern_images::{Filter, Sizing};

use crate::config::{Config, Keys};
use crate::tensor::{host_tensor, lazy_tensor};
use crate::{Build, ModelError};

pub use join::Join;
pub use positions::Positions;
pub use prompt::{ImagePrompt, Layout};

/// One kind of towers.
#[derive(Debug)]
pub struct TowerKind {
    /// `clip.projector_type`.
    pub name: &'static str,
    /// The architectures of the language models that it belongs to.
    pub archs: &'static [&'static str],
    /// How its images are written in a prompt.
    pub prompt: ImagePrompt,
    /// Describes the tower of a file.
    build: fn(&mut TowerBuild<'_>) -> Result<Sizing, ModelError>,
}

/// Every kind that Tern runs.
pub static TOWERS: &[&TowerKind] = &[
    &qwen::QWEN3VL,
    &qwen::QWEN2_5VL,
    &gemma::GEMMA3,
    &gemma::GEMMA4,
    &siglip::IDEFICS3,
    &siglip::LFM2,
    &pixtral::PIXTRAL,
    &internvl::INTERNVL,
];

/// A tower ready for any backend.
#[derive(Clone, Debug)]
pub struct Tower {
    /// Its kind.
    pub kind: &'static TowerKind,
    /// From patches, `Input 0`, and what is added to them, `Input 1`, to one row per patch.
    pub encoder: Graph,
    /// How these rows become the input of the projector.
    pub join: Join,
    /// From joined rows, `Input 0`, to the rows of the language model.
    pub projector: Graph,
    /// What is added to the embeddings of patches.
    pub positions: Option<Positions>,
    /// What is added to a first row, which is no patch.
    pub class: Option<Vec<f32>>,
    /// Patches of a side of a window, if some layers see windows only.
    pub window: Option<usize>,
    /// Pixels of a side of a patch.
    pub patch: usize,
    /// Mean and deviation of each channel of pixels from 0 to 1.
    pub mean: [f32; 3],
    /// See `mean`.
    pub deviation: [f32; 3],
    /// How an image is cut and resized.
    pub sizing: Sizing,
    /// How an image is resized.
    pub filter: Filter,
    /// Whether the language model counts positions in the rows and columns of an image.
    pub has_grid: bool,
}

/// A tower under construction.
pub(crate) struct TowerBuild<'a> {
    /// The graph that is being built, and the sizes; keys are under `clip.vision`.
    pub(crate) b: Build<'a>,
    pub(crate) patch: usize,
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) encoder: Option<Graph>,
    pub(crate) positions: Option<Positions>,
    pub(crate) class: Option<Vec<f32>>,
    pub(crate) window: Option<usize>,
    pub(crate) join: Join,
    pub(crate) filter: Filter,
    pub(crate) has_grid: bool,
    /// Mean and deviation of pixels.
    pub(crate) pixels: [[f32; 3]; 2],
}

/// The prefix of the keys of towers.
const KEYS: &str = "clip.vision";

impl Tower {
    /// Whether a file is a tower.
    pub fn is_tower(checkpoint: &Checkpoint) -> bool {
        checkpoint.metadata.str("general.architecture").is_ok_and(|arch| arch == "clip")
    }

    /// The kind of the tower of a file.
    pub fn kind_of(checkpoint: &Checkpoint) -> Result<&'static TowerKind, ModelError> {
        let metadata = &checkpoint.metadata;
        let name = match metadata.optional_str("clip.vision.projector_type")? {
            Some(name) => name,
            None => metadata.str("clip.projector_type")?,
        };
        let kind = TOWERS.iter().copied().find(|kind| kind.name == name);
        kind.ok_or_else(|| ModelError::Tower(name.into()))
    }

    /// Columns of the rows of images of a language model whose embeddings have `width` columns.
    pub fn row_width(metadata: &Metadata, width: usize) -> Result<usize, ModelError> {
        let arch = crate::Arch::of(metadata)?.name;
        let features = Keys { arch, metadata }.optional_usize("n_deepstack_layers")?.unwrap_or(0);
        Ok(width.saturating_mul(features.saturating_add(1)))
    }

    /// Builds the graphs of a file, for a language model of this architecture whose images have rows of
    /// `width` columns.
    pub fn open(checkpoint: &Checkpoint, arch: &'static str, width: usize) -> Result<Tower, ModelError> {
        let (metadata, kind) = (&checkpoint.metadata, Tower::kind_of(checkpoint)?);
        if !kind.archs.contains(&arch) {
            return Err(ModelError::DoesNotSee { arch, tower: kind.name });
        }
        let keys = Keys { arch: KEYS, metadata };
        let mut build = TowerBuild {
            b: Build::new(read_config(keys)?, metadata, checkpoint),
            patch: keys.usize("patch_size")?,
            checkpoint,
            encoder: None,
            positions: None,
            class: None,
            window: None,
            join: Join::default(),
            filter: Filter::Bicubic,
            has_grid: false,
            pixels: read_pixels(keys)?,
        };
        if build.patch == 0 || build.patch > 256 {
            return Err(ModelError::value(keys.key("patch_size"), build.patch, "1 to 256"));
        }
        let sizing = (kind.build)(&mut build)?;
        let TowerBuild {
            b, patch, encoder, positions, class, window, join, filter, has_grid, pixels, ..
        } = build;
        let projector = b.graph;
        if projector.output_width() != width {
            return Err(ModelError::TowerWidth { tower: projector.output_width(), model: width });
        }
        let ([mean, deviation], encoder) = (pixels, encoder.unwrap_or_default());
        Ok(Tower {
            kind,
            encoder,
            join,
            projector,
            positions,
            class,
            window,
            patch,
            mean,
            deviation,
            sizing,
            filter,
            has_grid,
        })
    }

    /// Pixels of a side of the part of an image that one token is of.
    pub fn token_side(&self) -> usize {
        self.patch * self.join.side()
    }

    /// The rows of the patches of one picture, a grid of them, row after row. `run` computes one of the
    /// graphs, by its number, from inputs with this number of rows at these positions.
    pub fn rows<E>(
        &self,
        patches: Vec<f32>,
        grid: [usize; 2],
        mut run: impl FnMut(usize, Vec<Vec<f32>>, usize, Images) -> Result<Vec<f32>, E>,
    ) -> Result<ImageRows, E> {
        let added = self.positions.as_ref().map(|positions| positions.of_grid(grid));
        let mut inputs: Vec<Vec<f32>> = [patches].into_iter().chain(added).collect();
        let (mut len, mut images) = (grid[0] * grid[1], Images::grid(grid[0], grid[1]));
        let order = self.window.map(|side| Images::window_order(grid, side));
        if let (Some(side), Some(order)) = (self.window, &order) {
            inputs.iter_mut().for_each(|rows| *rows = gathered(rows, order));
            images = Images::windows(grid, side);
        }
        if let (Some(class), [patches, added]) = (&self.class, &mut inputs[..]) {
            *patches = [vec![0.0; self.patch_width()], std::mem::take(patches)].concat();
            *added = [class, &added[..]].concat();
            (len, images) = (len + 1, Images::NONE);
        }
        let mut encoded = run(0, inputs, len, images)?;
        if self.class.is_some() {
            encoded.drain(..self.encoder.output_width());
        }
        if let Some(order) = order {
            encoded = scattered(&encoded, &order);
        }
        let joined = self.join.apply(encoded, self.encoder.output_width(), grid);
        let cells = self.join.grid(grid);
        let len = cells[0] * cells[1];
        let values = run(1, vec![joined], len, Images::NONE)?;
        let width = self.projector.output_width();
        Ok(ImageRows { id: 0, width, values, len, grid: self.has_grid.then_some(cells) })
    }

    /// The weights of a graph of this tower, in order.
    pub fn tensors(&self, graph: &Graph, checkpoint: &Checkpoint) -> Result<Vec<LazyTensor>, ModelError> {
        graph.weights.iter().map(|w| tensor(w, checkpoint)).collect()
    }

    /// Bytes of all weights.
    pub fn bytes(&self, checkpoint: &Checkpoint) -> u64 {
        let weights = self.encoder.weights.iter().chain(&self.projector.weights);
        let name = |w: &Weight| w.name.trim_end_matches(TRANSPOSED).to_string();
        weights.filter_map(|w| checkpoint.tensors.get(&name(w))).map(|t| t.bytes()).sum()
    }

    /// Columns of a patch: channel, row, column.
    pub fn patch_width(&self) -> usize {
        3 * self.patch * self.patch
    }
}

/// The rows at these places of others, one after the other.
fn gathered(rows: &[f32], order: &[usize]) -> Vec<f32> {
    let width = rows.len() / order.len().max(1);
    order.iter().flat_map(|row| &rows[row * width..(row + 1) * width]).copied().collect()
}

/// Rows at these places.
fn scattered(rows: &[f32], order: &[usize]) -> Vec<f32> {
    let width = rows.len() / order.len().max(1);
    let mut out = vec![0.0; rows.len()];
    for (row, to) in rows.chunks_exact(width.max(1)).zip(order) {
        out[to * width..(to + 1) * width].copy_from_slice(row);
    }
    out
}

/// The suffix of a weight that the file has with rows and columns exchanged.
pub(crate) const TRANSPOSED: &str = " (transposed)";

/// A weight of a tower; convolutions are matrices.
fn tensor(w: &Weight, checkpoint: &Checkpoint) -> Result<LazyTensor, ModelError> {
    let (name, transposed) = w.name.strip_suffix(TRANSPOSED).map_or((&*w.name, false), |name| (name, true));
    let t = checkpoint.tensors.get(name).ok_or_else(|| ModelError::MissingTensor(name.into()))?;
    if transposed {
        let values = host_tensor(t)?;
        if [t.cols(), t.rows()] != [w.rows, w.cols] {
            return Err(ModelError::shape(
                name,
                format!("[{}, {}]", w.cols, w.rows),
                format!("[{}, {}]", t.rows(), t.cols()),
            ));
        }
        let values = values.to_f32();
        let exchanged: Vec<f32> =
            (0..w.rows).flat_map(|row| values.iter().skip(row).step_by(w.rows).copied()).collect();
        return Ok(HostTensor::from_f32(&w.name, w.rows, w.cols, &exchanged).into());
    }
    if t.dims.len() != 4 {
        let t = lazy_tensor(t)?;
        w.check_shape([t.rows(), t.cols()])?;
        return Ok(t);
    }
    let t = host_tensor(t)?;
    if w.rows.checked_mul(w.cols) != t.rows().checked_mul(t.cols()) || !t.quant().is_float() {
        return Err(ModelError::shape(&w.name, w.shape(), format!("[{}, {}]", t.rows(), t.cols())));
    }
    Ok(HostTensor::new(&w.name, t.quant(), [w.rows, w.cols], t.data().clone())?.into())
}

/// Mean and deviation of the channels of pixels.
fn read_pixels(keys: Keys<'_>) -> Result<[[f32; 3]; 2], ModelError> {
    let three = |name: &str| -> Result<[f32; 3], ModelError> {
        let values = keys.metadata.optional_floats(&keys.key(name))?;
        let values = values.ok_or_else(|| MetadataError::Missing(keys.key(name)))?;
        let found = format!("{values:?}");
        <[f32; 3]>::try_from(values).map_err(|_| ModelError::value(keys.key(name), found, "three numbers"))
    };
    let (mean, deviation) = (three("image_mean")?, three("image_std")?);
    if deviation.iter().any(|d| !(d.is_finite() && *d > 0.0)) {
        return Err(ModelError::value(keys.key("image_std"), format!("{deviation:?}"), "above 0"));
    }
    Ok([mean, deviation])
}

/// The sizes of a tower, as those of a model without a vocabulary.
fn read_config(keys: Keys<'_>) -> Result<Config, ModelError> {
    let (width, heads) = (keys.usize("embedding_length")?, keys.usize("attention.head_count")?);
    let head_dim = match keys.optional_usize("attention.head_dim")? {
        Some(dim) => dim,
        None if heads > 0 && width.is_multiple_of(heads) => width / heads,
        None => {
            return Err(ModelError::value(keys.key("attention.head_count"), heads, "a divisor of the width"));
        }
    };
    let config = Config {
        arch: KEYS.into(),
        layers: keys.usize("block_count")?,
        width,
        ff: keys.usize("feed_forward_length")?,
        heads,
        kv_heads: keys.optional_usize("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        v_dim: head_dim,
        rope_dims: head_dim,
        eps: keys.f32("attention.layer_norm_epsilon")?,
        context_trained: 1,
        context: 1,
        vocab: 1,
    };
    config.check(keys)?;
    Ok(config)
}
