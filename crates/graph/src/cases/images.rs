//! Cases of sequences with images: rows in place of tokens, rotations by the parts of positions.

use std::sync::Arc;

use super::{Case, INPUTS};
use crate::{
    Attention, Function, GraphError, HostTensor, ImageOrder, ImageRows, Images, Output, Random, RopeStyle,
    RopeTable, Slice, Step,
};

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

/// Decoding after images, whose positions count less than their tokens: steps of one and of a few tokens.
pub(super) fn after_images() -> Result<Vec<Case>, GraphError> {
    let rng = &mut Random::new(24);
    let mut cases = vec![];
    for (name, style) in [("halves", RopeStyle::Halves), ("interleaved", RopeStyle::Interleaved)] {
        let mut case = Case::new(format!("attend after images, rope {name}"), 2e-3);
        let args = Attention::full(4, 2, 32, 0.2);
        let [q, k, v] = [("q", 128), ("k", 64), ("v", 64)].map(|(name, width)| case.input(name, width, rng));
        let freqs: Vec<f32> = (0..16).map(|i| 10f32.powf(-(i as f32) / 8.0)).collect();
        let parts = (0..16).map(|i| (i % 3) as u8).collect();
        let table = case.graph.rope_table(RopeTable { freqs, magnitude: 1.0, parts });
        let [q, k] = [q?, k?]
            .map(|x| case.graph.image_rows(x, 0, false).and_then(|x| case.graph.rope(x, 32, style, table)));
        case.graph.attend(q?, k?, v?, args)?;
        let mut image = |id: u32, [rows, cols]: [usize; 2]| {
            let (len, grid) = (rows * cols, Some([rows, cols]));
            Arc::new(ImageRows { id, width: 128, values: rng.normals(len * 128, 1.0), len, grid })
        };
        let images = Images::new([(2, image(1, [3, 4])), (17, image(2, [2, 1]))]);
        let mut position = 0;
        for len in [20, 1, 4, 1, 7] {
            let slice =
                Slice { images: images.clone(), ..Slice::new(len, position, (0..7).collect::<Vec<u32>>()) };
            position += len;
            case.steps.push(Step {
                tokens: (0..len).map(|_| rng.below(INPUTS) as u32).collect(),
                slices: vec![slice],
                outputs: (0..len).map(|row| Output { row, sample: None, logits: true }).collect(),
                ..Step::default()
            });
        }
        cases.push(case);
    }
    Ok(cases)
}

/// Attention of all tokens of an image to each other: beside the order of the sequence, and in windows.
pub(super) fn image_attention() -> Result<Vec<Case>, GraphError> {
    let rng = &mut Random::new(22);
    let plain = Attention { images: ImageOrder::Whole, ..Attention::full(4, 2, 20, 0.2) };
    let image = |len: usize| Arc::new(ImageRows { len, ..ImageRows::default() });
    let two = Images::new([(3, image(40)), (50, image(7))]);
    let first = Images::new([(0, image(5))]);
    let windows = Images::windows([9, 11], 4);
    let whole = [(60, 0, two.clone()), (9, 0, first), (30, 0, Images::NONE)];
    let alone = [(99, 0, windows.clone()), (99, 0, windows)];
    let mut cases = vec![];
    for (name, args, slices) in [
        ("whole images", plain, &whole[..]),
        ("whole images in windows", Attention { window: Some(45), ..plain }, &whole[..]),
        ("windows of an image", Attention { causal: false, images: ImageOrder::Alone, ..plain }, &alone[..]),
    ] {
        let mut case = Case::new(format!("attend, {name}"), 2e-3);
        let q = case.input("q", args.heads * args.head_dim, rng)?;
        let k = case.input("k", args.kv_heads * args.head_dim, rng)?;
        let v = case.input("v", args.kv_heads * args.v_dim, rng)?;
        case.graph.attend(q, k, v, args)?;
        let tokens: usize = slices.iter().map(|(len, ..)| len).sum();
        case.steps.push(Step {
            tokens: (0..tokens).map(|_| rng.below(INPUTS) as u32).collect(),
            slices: slices
                .iter()
                .zip(0..)
                .map(|((len, position, images), at): (_, u32)| Slice {
                    images: images.clone(),
                    ..Slice::new(*len, *position, (7 * at..7 * at + 7).collect::<Vec<u32>>())
                })
                .collect(),
            outputs: (0..tokens).map(|row| Output { row, sample: None, logits: true }).collect(),
            ..Step::default()
        });
        cases.push(case);
    }
    Ok(cases)
}

/// What only towers have.
pub(super) fn small_ops() -> Result<Vec<Case>, GraphError> {
    let rng = &mut Random::new(23);
    let mut cases = vec![];
    for (name, function) in [("gelu quick", Function::GeluQuick), ("clamp", Function::Clamp(-0.5, 0.25))] {
        let mut case = Case::new(name.into(), 1e-5);
        let x = case.input("x", 100, rng)?;
        case.graph.apply(x, function);
        case.sequence(&[5, 1], rng);
        cases.push(case);
    }
    let mut case = Case::new("scale columns".into(), 1e-6);
    let x = case.input("x", 52, rng)?;
    let by = case.matrix(HostTensor::from_f32("by", 1, 52, &rng.normals(52, 1.0)))?;
    case.graph.scale_columns(x, by)?;
    case.sequence(&[5, 1], rng);
    cases.push(case);
    Ok(cases)
}
