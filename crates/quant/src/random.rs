//! Random blocks of formats that cannot be encoded: for tests, and for models of random weights.

use half::f16;

use crate::{FieldType, Quant};

impl Quant {
    /// A tensor of about this deviation: all bytes are random except for the scales of
    /// blocks, which are equal.
    ///
    /// # Panics
    ///
    /// If `weights` is no whole number of blocks, or the format is not [runnable](Self::is_runnable).
    pub fn random_tensor(&self, weights: usize, deviation: f32, mut random: impl FnMut() -> u8) -> Vec<u8> {
        let blocks = self.row_bytes(weights).expect("whole blocks");
        let mut data: Vec<u8> = (0..blocks).map(|_| random()).collect();
        data.resize(blocks + self.tail, 0);
        let mut decoded = vec![0.0; weights];
        self.set_scales(&mut data, 1.0);
        let (blocks, tail) = data.split_at(blocks);
        self.decode(blocks, tail, &mut decoded);
        let squares: f64 = decoded.iter().map(|w| f64::from(*w).powi(2)).sum();
        let unit = (squares / weights.max(1) as f64).sqrt() as f32;
        self.set_scales(&mut data, deviation / unit);
        data
    }

    /// Sets the scale of each block, or that of the tensor.
    fn set_scales(&self, data: &mut [u8], scale: f32) {
        let half = f16::from_f32(scale).to_le_bytes();
        let blocks = data.len() - self.tail;
        for block in data[..blocks].chunks_exact_mut(self.block_bytes()) {
            let mut at = 0;
            for field in self.fields {
                let bytes = &mut block[at..at + field.bytes()];
                match field.ty {
                    FieldType::F16 => bytes.as_chunks_mut::<2>().0.fill(half),
                    FieldType::ScatteredF16 => {
                        for (n, word) in bytes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                            let nibble = half[n / 2] >> (4 * (n % 2)) & 15;
                            word[1] = word[1] & 15 | nibble << 4;
                        }
                    }
                    _ => {}
                }
                at += field.bytes();
            }
        }
        if self.tail >= 4 {
            data[blocks..blocks + 4].copy_from_slice(&scale.to_le_bytes());
        }
    }
}
