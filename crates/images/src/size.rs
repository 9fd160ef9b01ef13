//! The sizes that models read, from the size of a picture.

use crate::{Area, ImageError};

/// The longest side of a picture, in parts of the other.
const MAX_ASPECT: usize = 200;

/// Width and height that are multiples of a factor, of about the same aspect and within an area, if there are
/// such: the rule of Qwen.
pub(crate) fn within_area([width, height]: [usize; 2], Area { factor, least, most }: Area) -> [usize; 2] {
    let (area, unit) = (width as f64 * height as f64, factor as f64);
    let sides = [width, height].map(|side| side as f64);
    // halves to the even multiple
    let mut sized = sides.map(|side| (side / unit).round_ties_even() * unit);
    if sized[0] * sized[1] > most as f64 {
        let by = (area / most as f64).sqrt();
        sized = sides.map(|side| ((side / by / unit).floor() * unit).max(unit));
    } else if sized[0] * sized[1] < least as f64 {
        let by = (least as f64 / area).sqrt();
        sized = sides.map(|side| (side * by / unit).ceil() * unit);
    }
    sized.map(|side| side.max(unit) as usize)
}

/// Refuses pictures of which next to nothing would be left.
pub(crate) fn check_aspect([width, height]: [usize; 2]) -> Result<(), ImageError> {
    if width.max(height) > width.min(height).saturating_mul(MAX_ASPECT) {
        return Err(ImageError::Aspect { width, height, most: MAX_ASPECT });
    }
    Ok(())
}

/// The largest multiples of `factor` of about the same aspect that `squares` of them hold: the rule of
/// Gemma 4.
pub(crate) fn within_budget([width, height]: [usize; 2], factor: usize, squares: usize) -> [usize; 2] {
    let (unit, sides) = (factor as f64, [width, height].map(|side| side as f64));
    let by = (squares as f64 * unit * unit / (sides[0] * sides[1])).sqrt();
    let units = sides.map(|side| (by * side / unit).floor() as usize);
    let long = |long: usize, short: usize| (long / short).clamp(1, squares.max(1));
    let units = match units {
        [0, 0] => [1, 1],
        [0, _] => [1, long(height, width)],
        [_, 0] => [long(width, height), 1],
        units => units,
    };
    units.map(|side| side * factor)
}

/// Sides rounded up to multiples of `factor`, of a picture that is made smaller if a side is longer than
/// `longest`: the rule of Pixtral.
pub(crate) fn within_longest(size: [usize; 2], longest: usize, factor: usize) -> [usize; 2] {
    let ratio = size[0].max(size[1]) as f64 / longest.max(1) as f64;
    let sized = if ratio > 1.0 { size.map(|side| (side as f64 / ratio).floor() as usize) } else { size };
    sized.map(|side| side.max(1).next_multiple_of(factor.max(1)))
}

/// The longer side is `longest`, the other one even: the rule of Idefics 3.
pub(crate) fn scaled_to_longest([width, height]: [usize; 2], longest: usize) -> [usize; 2] {
    let aspect = width as f64 / height as f64;
    let even = |side: f64| (side as usize).next_multiple_of(2).max(1);
    let scaled = |longest: usize| match width >= height {
        true => [longest as f64, longest as f64 / aspect],
        false => [longest as f64 * aspect, longest as f64],
    };
    let [w, h] = scaled(longest);
    let [w, h] = if width >= height { [longest, even(h)] } else { [even(w), longest] };
    if longest <= MAX_SIDE {
        return [w, h];
    }
    let aspect = w as f64 / h as f64;
    match w >= h {
        true => [MAX_SIDE, ((MAX_SIDE as f64 / aspect) as usize).max(1)],
        false => [((MAX_SIDE as f64 * aspect) as usize).max(1), MAX_SIDE],
    }
}

/// Pixels of a side of Idefics 3 at most.
const MAX_SIDE: usize = 4096;

/// Sides rounded up to multiples of a tile, the shorter one after the longer one was.
pub(crate) fn ceil_to([width, height]: [usize; 2], tile: usize) -> [usize; 2] {
    let aspect = width as f64 / height as f64;
    if width >= height {
        let width = width.next_multiple_of(tile);
        [width, ((width as f64 / aspect) as usize).max(1).next_multiple_of(tile)]
    } else {
        let height = height.next_multiple_of(tile);
        [((height as f64 * aspect) as usize).max(1).next_multiple_of(tile), height]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: Area = Area { factor: 28, least: 3136, most: 1_003_520 };

    #[test]
    fn each_branch_is_that_of_transformers() {
        // smart_resize(height, width, 28, 3136, 1003520)
        for (from, want) in [
            ([640, 480], [644, 476]),
            ([42, 70], [56, 56]), // 1.5 and 2.5 become 2
            ([4000, 3000], [1148, 840]),
            ([20, 30], [56, 84]),
            ([28, 28], [56, 56]),
            ([5600, 28], [5600, 28]),
            ([10, 1990], [28, 812]),
            ([1120, 1120], [980, 980]),
        ] {
            assert_eq!(within_area(from, AREA), want, "{from:?}");
        }
        let long = check_aspect([1, 30_000]).unwrap_err();
        assert_eq!(
            long.to_string(),
            "the image has 1 x 30000 pixels: want a side at most 200 times as long as the other"
        );
    }
}
