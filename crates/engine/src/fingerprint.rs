//! What tells models apart on disk: their graph, all names, types and shapes of tensors, and samples of the
//! bytes of each.
//!
//! Reading all bytes of a large model would take as long as loading it. Two models of the same graph differ
//! in nearly every byte of nearly every tensor, also if one was trained from the other, so samples tell them
//! apart. Small tensors count whole: those are what may be changed alone (norms, biases, scales).

use std::fmt::{self, Debug, Write};

use sha2::{Digest, Sha256};
use tern_graph::{Graph, HostTensor, KvSpec, StateSpec};

/// Tensors of at most this many bytes count whole.
const WHOLE: usize = 16 << 10;
/// Samples of a larger tensor, evenly spaced, the first and the last bytes among them.
const SAMPLES: usize = 64;
/// Bytes per sample.
const SAMPLE: usize = 64;

/// The hash of a model, tensor by tensor.
#[derive(Clone, Default)]
pub(crate) struct Fingerprint(Sha256);

impl Fingerprint {
    /// Adds a tensor.
    pub(crate) fn add(&mut self, tensor: &HostTensor) {
        let bytes = tensor.data();
        self.text(&(tensor.name(), tensor.quant().name, tensor.rows(), tensor.cols(), bytes.len()));
        if bytes.len() <= WHOLE {
            return self.0.update(bytes);
        }
        for sample in 0..SAMPLES {
            let at = (bytes.len() - SAMPLE) / (SAMPLES - 1) * sample;
            self.0.update(&bytes[at..at + SAMPLE]);
        }
        self.0.update(&bytes[bytes.len() - SAMPLE..]);
    }

    /// Adds what is computed with the tensors, and how.
    pub(crate) fn add_graph(&mut self, graph: &Graph) {
        // not the indices by name, whose order is another one in every process
        self.text(&(&graph.nodes, &graph.ropes, &graph.rotations, &graph.weights));
    }

    /// Adds how pages and slots are arranged, and this version, whose kernels computed them. Their number
    /// does not matter.
    pub(crate) fn add_format(&mut self, backend: &str, kv: &KvSpec, state: Option<&StateSpec>) {
        let KvSpec { layers, cells, page_len, window, pages: _ } = kv;
        let windows = window.as_ref().map(|window| &window.layers);
        let states = state.map(|state| &state.layers);
        self.text(&(env!("CARGO_PKG_VERSION"), backend, layers, cells, page_len, windows, states));
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }

    fn text(&mut self, value: &dyn Debug) {
        let _ = write!(Text(&mut self.0), "{value:?};"); // never fails
    }
}

/// Hashes text as it is written.
struct Text<'a>(&'a mut Sha256);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_byte_of_a_small_tensor_and_another_large_tensor_are_other_models() {
        let of = |tensors: &[HostTensor]| {
            let mut fingerprint = Fingerprint::default();
            tensors.iter().for_each(|tensor| fingerprint.add(tensor));
            fingerprint.finish()
        };
        let values = |count: usize, at: usize| {
            let mut values = vec![0.5; count];
            values[at] = 0.25;
            values
        };
        let small = |name, at| HostTensor::from_f32(name, 1, 32, &values(32, at));
        let large = |at| HostTensor::from_f32("large", 256, 256, &values(256 * 256, at));
        let all = [small("a", 0), large(0)];
        assert_eq!(of(&all), of(&all.clone()));
        for other in [
            [small("a", 31), large(0)],
            [small("b", 0), large(0)],
            [small("a", 0), large(256 * 256 - 1)],
            [large(0), small("a", 0)],
        ] {
            assert_ne!(of(&all), of(&other));
        }
    }
}
