//! The pages and state slots of a [`ScriptedRunner`] as bytes.

use tern_graph::{AdapterScales, CachePart, Place};

use super::ScriptedRunner;
use crate::EngineError;

/// Scales of adapters that are copied with a token.
const SCALES: usize = 3;
/// Bytes of one slot of a page: the token, how many scales it has, and these.
pub(super) const SLOT: usize = 4 * (2 + SCALES);

fn broken(place: Place, what: &str) -> EngineError {
    EngineError::Runner(format!("{place:?}: {what}"))
}

impl ScriptedRunner {
    /// Appends the bytes of a page that was written whole, or of a state.
    pub(super) fn copy_out(&self, place: Place, to: &mut Vec<u8>) -> Result<(), EngineError> {
        let never = || broken(place, "is copied and was never written");
        match place.part {
            CachePart::Page => {
                for slot in self.written.get(&place.number).ok_or_else(never)? {
                    let (token, adapters) = slot.as_ref().ok_or_else(never)?;
                    let scales = adapters.scales();
                    if scales.len() > SCALES {
                        return Err(broken(place, "has too many adapters to be copied"));
                    }
                    to.extend_from_slice(&token.to_le_bytes());
                    to.extend_from_slice(&(scales.len() as u32).to_le_bytes());
                    for at in 0..SCALES {
                        to.extend_from_slice(&scales.get(at).copied().unwrap_or(0.0).to_le_bytes());
                    }
                }
            }
            CachePart::WindowPage => {
                for slot in self.window_written.get(&place.number).ok_or_else(never)? {
                    to.extend_from_slice(&slot.ok_or_else(never)?.to_le_bytes());
                }
            }
            CachePart::StateSlot => {
                to.extend_from_slice(&self.states.get(&place.number).ok_or_else(never)?.to_le_bytes());
            }
        }
        Ok(())
    }

    /// Overwrites a page or a state by bytes that were copied.
    pub(super) fn copy_in(&mut self, place: Place, bytes: &[u8]) -> Result<(), EngineError> {
        let (word, long) = (u32::from_le_bytes, u64::from_le_bytes);
        let longs: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|bytes| long(*bytes)).collect();
        let page_len = self.capacity.page_len;
        match (place.part, &longs[..]) {
            (CachePart::Page, _) if bytes.len() == page_len * SLOT => {
                let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|bytes| word(*bytes)).collect();
                let slot = |words: &[u32]| {
                    let scales: Vec<f32> = words[2..].iter().map(|bits| f32::from_bits(*bits)).collect();
                    let scales = &scales[..(words[1] as usize).min(SCALES)];
                    Some((words[0], AdapterScales::new(scales)))
                };
                self.written.insert(place.number, words.chunks_exact(2 + SCALES).map(slot).collect());
            }
            (CachePart::WindowPage, hashes) if hashes.len() == page_len => {
                self.window_written.insert(place.number, hashes.iter().map(|hash| Some(*hash)).collect());
            }
            (CachePart::StateSlot, [state]) => {
                self.states.insert(place.number, *state);
            }
            _ => return Err(broken(place, &format!("{} bytes do not fit", bytes.len()))),
        }
        Ok(())
    }
}
