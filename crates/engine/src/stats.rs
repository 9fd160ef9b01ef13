//! The counts of an engine.

/// Counts of an engine: its state, and totals since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences that hold pages.
    pub running: usize,
    /// Sequences that hold none.
    pub waiting: usize,
    /// Free pages.
    pub pages_free: usize,
    /// Free pages with a cached prefix.
    pub pages_cached: usize,
    /// Pages in total.
    pub pages_total: usize,
    /// Free pages of layers with a window; 0 if they have no separate pages.
    pub window_pages_free: usize,
    /// Those of them with a cached prefix.
    pub window_pages_cached: usize,
    /// Pages of layers with a window in total.
    pub window_pages_total: usize,
    /// Slots for the state of recurrent layers; 0 if the model has none.
    pub state_slots_total: usize,
    /// Those of them that no sequence holds, with or without a snapshot.
    pub state_slots_free: usize,
    /// Those of them that are snapshots.
    pub state_snapshots: usize,
    /// Bytes per slot.
    pub state_slot_bytes: u64,
    /// Snapshots taken.
    pub snapshots_taken: u64,
    /// Prompts that started after a snapshot.
    pub snapshot_hits: u64,
    /// Tokens reported, without end tokens.
    pub tokens_generated: u64,
    /// Tokens of the prompts whose prefill is complete, each prompt counted once.
    pub prompt_tokens: u64,
    /// Tokens of prompts that started, each prompt counted once.
    pub started_tokens: u64,
    /// Those of them that were found in the prefix cache.
    pub cached_tokens: u64,
    /// Drafts computed.
    pub drafted_tokens: u64,
    /// Those of them that equal what was sampled.
    pub accepted_tokens: u64,
    /// Steps of sequences that had drafts.
    pub drafted_steps: u64,
    /// Steps run.
    pub steps: u64,
    /// Sequences preempted because others needed their pages.
    pub preemptions: u64,
    /// Pages and snapshots that came back from the cache on disk.
    pub disk_reads: u64,
    /// Pages and snapshots that were written to it.
    pub disk_writes: u64,
    /// Pages and snapshots that wait to be written.
    pub disk_queued: u64,
    /// Tokens whose pages came back from it.
    pub disk_hit_tokens: u64,
    /// Files in its folder, of all models.
    pub disk_files: usize,
    /// Bytes of these files.
    pub disk_bytes: u64,
}
