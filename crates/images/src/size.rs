//! The sizes that models read, from the size of a picture.

use crate::ImageError;

/// The longest side of a picture, in parts of the other.
const MAX_ASPECT: usize = 200;

/// Width and height that are multiples of `factor`, of about the same aspect and of an area from `least` to
/// `most`, if there are such: the rule of Qwen.
pub fn within_area(
    [width, height]: [usize; 2],
    factor: usize,
    least: usize,
    most: usize,
) -> Result<[usize; 2], ImageError> {
    if width.max(height) > width.min(height).saturating_mul(MAX_ASPECT) {
        return Err(ImageError::Aspect { width, height, most: MAX_ASPECT });
    }
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
    Ok(sized.map(|side| side.max(unit) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(within_area(from, 28, 3136, 1_003_520), Ok(want), "{from:?}");
        }
        let long = within_area([1, 30_000], 28, 3136, 1_003_520).unwrap_err();
        assert_eq!(
            long.to_string(),
            "the image has 1 x 30000 pixels: want a side at most 200 times as long as the other"
        );
    }
}
