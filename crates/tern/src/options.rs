//! How a model is loaded.

use tern_cuda::Activations;
use tern_engine::{Pooling, StateCapacity};
use tern_formats::Access;
use tern_graph::{Backend, KvCells};

use crate::{
    AdapterFile, CacheFolder, Device, DeviceOptions, Error, ExpertPlacement, GpuLayers, ImageOptions,
    MemoryClaims, Speculation, TowerFile,
};

/// Tokens per KV page.
pub const PAGE_LEN: usize = 32;

/// KV pages at most.
const MOST_PAGES: usize = u32::MAX as usize;

/// Tokens that every sequence may expect to have, and the default context of programs.
pub(crate) const USUAL_CONTEXT: usize = 8192;

/// Snapshots of recurrent layers per sequence in the prefix cache: a few turns of as many conversations.
const SNAPSHOTS_PER_SEQUENCE: usize = 8;

/// How a model is loaded. The defaults suit a program that embeds a model.
///
/// ```
/// use tern::{Context, Device, LoadOptions};
/// let options = LoadOptions { device: Device::Cpu, context: Context::Exactly(128), ..LoadOptions::default() };
/// let model = tern::Model::load_with("stories", &options)?;
/// assert_eq!(model.context(), 128);
/// # Ok::<(), tern::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Where it runs.
    pub device: Device,
    /// CPU threads; one per core if not set.
    pub threads: Option<usize>,
    /// Whether a text is independent of other requests on a GPU, bit for bit: slower.
    /// On the CPU it always is.
    pub reproducible: bool,
    /// The inputs of linears in steps of more than 128 tokens on a GPU.
    pub activations: Activations,
    /// Tokens that one sequence may have, prompt and answer together.
    pub context: Context,
    /// Where the experts of a mixture of experts are.
    pub experts: ExpertPlacement,
    /// Layers on a GPU; the CPU computes the others.
    pub gpu_layers: GpuLayers,
    /// The type of cached keys and values. If not set, halves, or f32 where nothing else of the model is
    /// rounded to halves and the device has it: on the CPU, encoders and models with weights in f32.
    pub kv_cells: Option<KvCells>,
    /// The memory of the KV cache.
    pub kv_memory: KvMemory,
    /// Shared by the options of models that are loaded beside each other on one device; clones share it.
    pub claims: MemoryClaims,
    /// Bytes of snapshots of recurrent layers in the prefix cache, beyond the state of running sequences. If
    /// not set, eight snapshots per sequence, within an eighth of the free memory of the device.
    pub state_cache: Option<u64>,
    /// Where prefixes that leave memory are kept; without it they are computed again.
    pub cache_folder: Option<CacheFolder>,
    /// Sequences that run at once.
    pub max_seqs: usize,
    /// Maximum number of queued requests; further ones are refused.
    pub max_waiting: usize,
    /// Tokens per step at most; what suits the device if not set.
    pub step_tokens: Option<usize>,
    /// Target duration of a step during prefill, in milliseconds; 0 disables it.
    pub step_millis: usize,
    /// How the file is accessed: mapped, copied or locked in memory.
    pub access: Access,
    /// Pooling of hidden states to an embedding; if not set, the file's pooling or the mean.
    pub pooling: Option<Pooling>,
    /// A chat template to use instead of the file's.
    pub chat_template: Option<String>,
    /// Where the drafts of speculative decoding come from.
    pub speculation: Speculation,
    /// Drafts per sequence and step at most; requests may have fewer.
    pub draft_max: usize,
    /// Adapters to load with the model, numbered in order.
    pub adapters: Vec<AdapterFile>,
    /// Where the tower of its images is.
    pub tower: TowerFile,
    /// What images may take.
    pub images: ImageOptions,
    /// Where models are cached and how they are fetched; from the process environment if not set.
    pub hub: Option<tern_hub::Config>,
}

/// Drafts per sequence and step at most, if nothing else is chosen.
pub const DRAFT_MAX: usize = 8;

/// Tokens that one sequence may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// The trained context, but at most this, and at most what the KV cache holds.
    AtMost(usize),
    /// This many; an error if the model was trained for fewer.
    Exactly(usize),
}

impl Context {
    /// What the model was trained for.
    pub const TRAINED: Context = Context::AtMost(usize::MAX);

    pub(crate) fn tokens(self, trained: usize) -> usize {
        match self {
            Context::AtMost(most) => trained.min(most),
            Context::Exactly(tokens) => tokens,
        }
    }
}

/// The memory of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvMemory {
    /// Every sequence with 8192 tokens, or one in full if that is more, within half of the free memory of the
    /// device. An exact context is reserved for at least one sequence.
    Auto,
    /// This many pages of [`PAGE_LEN`] tokens.
    Pages(usize),
    /// This many bytes, at least one page.
    Bytes(u64),
}

impl KvMemory {
    /// Pages for `seqs` sequences of `context` tokens, of which a device with `free` bytes may hold
    /// fewer; `bytes` returns what a KV cache of that many pages takes, with the pages of layers with a
    /// window, which are fewer.
    pub(crate) fn pages(
        self,
        seqs: usize,
        context: usize,
        exact: bool,
        bytes: impl Fn(usize) -> u64,
        free: u64,
    ) -> usize {
        let one = context.div_ceil(PAGE_LEN);
        let all = one.min(USUAL_CONTEXT / PAGE_LEN).saturating_mul(seqs).max(one);
        match self {
            KvMemory::Auto => most_within(free / 2, if exact { one } else { 1 }, all, bytes),
            KvMemory::Pages(pages) => pages,
            KvMemory::Bytes(given) => {
                // more than all sequences need, for the prefix cache, unless pages take no memory
                let most = if bytes(MOST_PAGES) > given { MOST_PAGES } else { all };
                most_within(given, 1, most, bytes)
            }
        }
    }
}

/// The largest number of pages that takes at most `limit` bytes, from `least`, even if
/// that takes more, to `most`.
fn most_within(limit: u64, least: usize, most: usize, bytes: impl Fn(usize) -> u64) -> usize {
    let (mut fits, mut most) = (least, most.max(least));
    while fits < most {
        let middle = fits + (most - fits).div_ceil(2);
        if bytes(middle) <= limit {
            fits = middle;
        } else {
            most = middle - 1;
        }
    }
    fits
}

impl LoadOptions {
    /// Opens its device: the CPU if no layer is to be on a GPU.
    pub fn open_device(&self) -> Result<Box<dyn Backend>, Error> {
        self.device.with_layers(self.gpu_layers)?.open(self.device_options())
    }

    /// How its device is opened.
    pub fn device_options(&self) -> DeviceOptions {
        let LoadOptions { threads, reproducible, activations, .. } = *self;
        DeviceOptions { threads, reproducible, activations }
    }

    /// State slots of `slot` bytes each, on a device with `free` bytes: for all sequences, or for as many as
    /// a quarter of the memory is enough for, and for snapshots.
    pub(crate) fn state_slots(&self, slot: u64, free: u64) -> usize {
        let of = |bytes: u64| usize::try_from(bytes / slot.max(1)).unwrap_or(usize::MAX);
        let all = self.max_seqs.saturating_mul(StateCapacity::PER_SEQUENCE);
        let running = of(free / 4).clamp(StateCapacity::PER_SEQUENCE, all.max(StateCapacity::PER_SEQUENCE));
        let usual = self.max_seqs.saturating_mul(SNAPSHOTS_PER_SEQUENCE).min(of(free / 8));
        running.saturating_add(self.state_cache.map_or(usual, of))
    }
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            device: Device::Auto,
            threads: None,
            reproducible: false,
            activations: Activations::default(),
            context: Context::AtMost(USUAL_CONTEXT),
            experts: ExpertPlacement::Auto,
            gpu_layers: GpuLayers::Auto,
            kv_cells: None,
            kv_memory: KvMemory::Auto,
            claims: MemoryClaims::default(),
            state_cache: None,
            cache_folder: None,
            max_seqs: 8,
            max_waiting: 1024,
            step_tokens: None,
            step_millis: 0,
            access: Access::default(),
            pooling: None,
            chat_template: None,
            speculation: Speculation::Auto,
            draft_max: DRAFT_MAX,
            adapters: vec![],
            tower: TowerFile::Auto,
            images: ImageOptions::default(),
            hub: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_fits_what_it_is_given() {
        let slots = |state_cache, free| {
            LoadOptions { state_cache, max_seqs: 4, ..LoadOptions::default() }.state_slots(100, free)
        };
        assert_eq!(slots(None, 1 << 30), 8 + 32); // two for each of four sequences, and eight snapshots
        assert_eq!(slots(None, 8000), 8 + 10);
        assert_eq!(slots(None, 2000), 5 + 2); // two sequences at once
        assert_eq!(slots(None, 0), 2);
        assert_eq!([slots(Some(0), 8000), slots(Some(5099), 8000)], [8, 8 + 50]);
    }

    #[test]
    fn the_kv_cache_fits_what_it_is_given() {
        let pages = |memory: KvMemory, free| memory.pages(4, 100, true, |pages| pages as u64 * 1000, free);
        assert_eq!(pages(KvMemory::Auto, 1 << 30), 16); // four sequences of four pages
        assert_eq!(pages(KvMemory::Auto, 12_000), 6); // half of what is free
        assert_eq!(pages(KvMemory::Auto, 0), 4); // at least one sequence
        assert_eq!(pages(KvMemory::Pages(7), 0), 7);
        assert_eq!(pages(KvMemory::Bytes(9_999), 0), 9);
        assert_eq!(pages(KvMemory::Bytes(1), 0), 1);
        assert_eq!(pages(KvMemory::Bytes(u64::MAX), 0), 16); // memory for any number of pages: all sequences

        // layers with a window have at most five pages
        let bytes = |pages: usize| pages as u64 * 100 + pages.min(5) as u64 * 900;
        let pages = |memory: KvMemory, free| memory.pages(4, 100, true, bytes, free);
        assert_eq!(pages(KvMemory::Auto, 12_000), 15); // 1,500 and 4,500 bytes
        assert_eq!(pages(KvMemory::Auto, 11_000), 10);
        assert_eq!(pages(KvMemory::Bytes(4_999), 0), 4);
        assert_eq!(pages(KvMemory::Bytes(1_004_500), 0), 10_000);
        // a trained context is used as far as memory allows
        let trained =
            |context, free| KvMemory::Auto.pages(4, context, false, |pages| pages as u64 * 1000, free);
        assert_eq!(trained(100, 6000), 3);
        assert_eq!(trained(100, 0), 1);
        assert_eq!(trained(16_384, 1 << 40), 1024); // four sequences of 8192
        assert_eq!(trained(131_072, 1 << 40), 4096); // one in full
    }
}
