//! Cases of sequences with images: rows in place of tokens, rotations by the parts of positions.

use std::sync::Arc;

use super::{Case, INPUTS};
use crate::{GraphError, ImageRows, Images, Output, Random, RopeStyle, RopeTable, Slice, Step};

/// Rows that replace and rows that are added, and both styles of rotations; whole sequences, parts of
/// them, and a token after an image.
pub(super) fn images() -> Result<Vec<Case>, GraphError> {
    let rng = &mut Random::new(21);
    let mut cases = vec![];
    for (name, style) in [("halves", RopeStyle::Halves), ("interleaved", RopeStyle::Interleaved)] {
        let mut case = Case::new(format!("images, rope {name}"), 1e-5);
        let x = case.input("x", 56, rng)?;
        let x = case.graph.image_rows(x, 0, false)?;
        let x = case.graph.image_rows(x, 56, true)?;
        let freqs: Vec<f32> = (0..10).map(|i| 10f32.powf(-(i as f32) / 5.0)).collect();
        let parts = (0..10).map(|i| (i % 3) as u8).collect();
        let table = case.graph.rope_table(RopeTable { freqs, magnitude: 0.9, parts });
        case.graph.rope(x, 28, style, table)?;
        let mut image = |id: u32, grid: Option<[usize; 2]>, len: usize| {
            let values = rng.normals(len * 112, 1.0);
            Arc::new(ImageRows { id, width: 112, values, len, grid })
        };
        let two = Images::new([(2, image(1, Some([3, 4]), 12)), (17, image(2, Some([2, 1]), 2))]);
        let plain = Images::new([(0, image(3, None, 9))]);
        let slices = [(20, 0, &two), (5, 3, &plain), (1, 30, &two), (3, 8, &two), (4, 0, &Images::NONE)];
        let tokens: usize = slices.iter().map(|(len, ..)| len).sum();
        case.steps.push(Step {
            tokens: (0..tokens).map(|_| rng.below(INPUTS) as u32).collect(),
            slices: slices
                .map(|(len, position, images)| Slice {
                    images: images.clone(),
                    ..Slice::new(len, position, vec![0; 3])
                })
                .to_vec(),
            outputs: (0..tokens).map(|row| Output { row, sample: None, logits: true }).collect(),
            ..Step::default()
        });
        cases.push(case);
    }
    Ok(cases)
}
