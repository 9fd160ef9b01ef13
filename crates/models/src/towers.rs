//! Towers: from the patches of an image to the rows that a language model reads in place of its tokens.
//!
//! A tower is two graphs. The encoder has one row per patch; its rows are then joined, which is a copy on the
//! host, and the projector has one row per token. One file per kind, one line in [`ALL`].

mod blocks;
mod join;
mod positions;
mod qwen3vl;

use tern_formats::{Checkpoint, MetadataError};
use tern_graph::{Graph, HostTensor, ImageRows, Images, LazyTensor, Weight};

use crate::config::{Config, Keys};
use crate::tensor::{host_tensor, lazy_tensor};
use crate::{Build, ModelError};

pub use join::Join;
pub use positions::Positions;

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
    build: fn(&mut TowerBuild<'_>) -> Result<(), ModelError>,
}

/// How an image is written in a prompt.
#[derive(Debug)]
pub struct ImagePrompt {
    /// What chat templates write for an image.
    pub marker: &'static str,
    /// The token of a row.
    pub row: &'static str,
    /// What is before and after the rows, in place of the marker.
    pub around: [&'static str; 2],
}

impl ImagePrompt {
    /// What takes the place of the marker of an image with this number of rows.
    pub fn text(&self, rows: usize) -> String {
        [self.around[0], &self.row.repeat(rows), self.around[1]].concat()
    }
}

/// Every kind that Tern runs.
pub static TOWERS: &[&TowerKind] = &[&qwen3vl::QWEN3VL];

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
    /// Pixels of a side of a patch.
    pub patch: usize,
    /// Mean and deviation of each channel of pixels from 0 to 1.
    pub mean: [f32; 3],
    /// See `mean`.
    pub deviation: [f32; 3],
    /// How an image is cut and resized.
    pub sizing: Sizing,
    /// Whether the language model counts positions in the rows and columns of an image.
    pub has_grid: bool,
}

/// How the size of an image becomes that of its pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// Sides that are multiples of `factor`, of an area within these.
    Area {
        /// Multiple.
        factor: usize,
        /// Least number of pixels.
        least: usize,
        /// Largest number of pixels.
        most: usize,
    },
}

/// A tower under construction.
pub(crate) struct TowerBuild<'a> {
    /// The graph that is being built, and the sizes; keys are under `clip.vision`.
    pub(crate) b: Build<'a>,
    pub(crate) patch: usize,
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) encoder: Option<Graph>,
    pub(crate) positions: Option<Positions>,
    pub(crate) join: Join,
    pub(crate) sizing: Option<Sizing>,
    pub(crate) has_grid: bool,
}

/// The prefix of the keys of towers.
const KEYS: &str = "clip.vision";

impl Tower {
    /// Whether a file is a tower.
    pub fn is_tower(checkpoint: &Checkpoint) -> bool {
        checkpoint.metadata.str("general.architecture").is_ok_and(|arch| arch == "clip")
    }

    /// Builds the graphs of a file, for a language model of this architecture whose embeddings have `width`
    /// columns.
    pub fn open(checkpoint: &Checkpoint, arch: &'static str, width: usize) -> Result<Tower, ModelError> {
        let metadata = &checkpoint.metadata;
        let name = match metadata.optional_str("clip.vision.projector_type")? {
            Some(name) => name,
            None => metadata.str("clip.projector_type")?,
        };
        let kind = TOWERS.iter().copied().find(|kind| kind.name == name);
        let kind = kind.ok_or_else(|| ModelError::Tower(name.into()))?;
        if !kind.archs.contains(&arch) {
            return Err(ModelError::DoesNotSee { arch, tower: kind.name });
        }
        let keys = Keys { arch: KEYS, metadata };
        let config = read_config(keys)?;
        let mut build = TowerBuild {
            b: Build::new(config, metadata, checkpoint),
            patch: keys.usize("patch_size")?,
            checkpoint,
            encoder: None,
            positions: None,
            join: Join::default(),
            sizing: None,
            has_grid: false,
        };
        if build.patch == 0 || build.patch > 256 {
            return Err(ModelError::value(keys.key("patch_size"), build.patch, "1 to 256"));
        }
        (kind.build)(&mut build)?;
        let TowerBuild { b, patch, encoder, positions, join, sizing, has_grid, .. } = build;
        let projector = b.graph;
        if projector.output_width() != width {
            return Err(ModelError::TowerWidth { tower: projector.output_width(), model: width });
        }
        let three = |name: &str| -> Result<[f32; 3], ModelError> {
            let values = metadata.optional_floats(&keys.key(name))?;
            let values = values.ok_or_else(|| MetadataError::Missing(keys.key(name)))?;
            let found = format!("{values:?}");
            <[f32; 3]>::try_from(values)
                .map_err(|_| ModelError::value(keys.key(name), found, "three numbers"))
        };
        let (mean, deviation) = (three("image_mean")?, three("image_std")?);
        if deviation.iter().any(|d| !(d.is_finite() && *d > 0.0)) {
            return Err(ModelError::value(keys.key("image_std"), format!("{deviation:?}"), "above 0"));
        }
        let sizing = sizing.unwrap_or(Sizing::Area { factor: patch, least: 1, most: usize::MAX });
        let encoder = encoder.unwrap_or_default();
        Ok(Tower { kind, encoder, join, projector, positions, patch, mean, deviation, sizing, has_grid })
    }

    /// The rows of the patches of one image, a grid of them, row after row. `run` computes one of the graphs,
    /// by its number, from inputs with this number of rows at these positions.
    pub fn rows<E>(
        &self,
        patches: Vec<f32>,
        grid: [usize; 2],
        mut run: impl FnMut(usize, Vec<Vec<f32>>, usize, Images) -> Result<Vec<f32>, E>,
    ) -> Result<ImageRows, E> {
        let added = self.positions.as_ref().map(|positions| positions.of_grid(grid));
        let inputs = [patches].into_iter().chain(added).collect();
        let encoded = run(0, inputs, grid[0] * grid[1], Images::grid(grid[0], grid[1]))?;
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
        weights.filter_map(|w| checkpoint.tensors.get(&w.name)).map(|t| t.bytes()).sum()
    }

    /// Columns of a patch: channel, row, column.
    pub fn patch_width(&self) -> usize {
        3 * self.patch * self.patch
    }
}

/// A weight of a tower; convolutions are matrices.
fn tensor(w: &Weight, checkpoint: &Checkpoint) -> Result<LazyTensor, ModelError> {
    let t = checkpoint.tensors.get(&w.name).ok_or_else(|| ModelError::MissingTensor(w.name.clone()))?;
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
