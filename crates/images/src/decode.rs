//! Decoding: the size is checked before a pixel is read.

use std::io::Cursor;

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader};

use crate::ImageError;

/// What a picture may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pixels.
    pub pixels: u64,
}

impl Default for Limits {
    /// 64 megapixels: those of large cameras.
    fn default() -> Limits {
        Limits { pixels: 64 << 20 }
    }
}

/// Bytes per pixel that decoders may allocate at once: 16 bits of four channels, twice.
const DECODER_BYTES: u64 = 16;
/// What decoders allocate besides.
const DECODER_BASE: u64 = 16 << 20;

/// The formats, by what users call them.
const FORMATS: [(ImageFormat, &str); 5] = [
    (ImageFormat::Jpeg, "JPEG"),
    (ImageFormat::Png, "PNG"),
    (ImageFormat::WebP, "WebP"),
    (ImageFormat::Gif, "GIF"),
    (ImageFormat::Bmp, "BMP"),
];

/// A picture in RGB. `[height, width, 3]`
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl std::fmt::Debug for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a picture of {} x {}", self.width, self.height)
    }
}

impl Picture {
    /// A picture of these pixels. `[height, width, 3]`
    pub fn new(width: usize, height: usize, pixels: Vec<u8>) -> Result<Picture, ImageError> {
        let count = width.checked_mul(height).and_then(|n| n.checked_mul(3));
        if width == 0 || height == 0 || count != Some(pixels.len()) {
            let [width, height] = [width, height].map(|side| u32::try_from(side).unwrap_or(u32::MAX));
            return Err(ImageError::NoPixels { width, height });
        }
        Ok(Picture { width, height, pixels })
    }

    /// The same of pixels that are known to fit.
    pub(crate) fn of(width: usize, height: usize, pixels: Vec<u8>) -> Picture {
        debug_assert_eq!(pixels.len(), width * height * 3);
        Picture { width, height, pixels }
    }

    /// Reads the first frame of a file.
    pub fn decode(bytes: &[u8], limits: Limits) -> Result<Picture, ImageError> {
        if bytes.is_empty() {
            return Err(ImageError::Empty);
        }
        let known = image::guess_format(bytes).map_err(|_| ImageError::Format)?;
        let known = FORMATS.iter().find(|(format, _)| *format == known).ok_or(ImageError::Format)?;
        let damaged = |e: image::ImageError| ImageError::Damaged { format: known.1, why: one_line(&e) };
        let mut reader = ImageReader::with_format(Cursor::new(bytes), known.0);
        let mut of_decoder = image::Limits::no_limits();
        of_decoder.max_alloc = Some(limits.pixels.saturating_mul(DECODER_BYTES).saturating_add(DECODER_BASE));
        reader.limits(of_decoder);
        let mut decoder = reader.into_decoder().map_err(damaged)?;
        let (width, height) = decoder.dimensions();
        if width == 0 || height == 0 {
            return Err(ImageError::NoPixels { width, height });
        }
        if u64::from(width) * u64::from(height) > limits.pixels {
            return Err(ImageError::TooLarge { width, height, most: limits.pixels });
        }
        // a picture without a readable orientation is as it lies
        let orientation = decoder.orientation().ok();
        let mut decoded = DynamicImage::from_decoder(decoder).map_err(damaged)?;
        if let Some(orientation) = orientation {
            decoded.apply_orientation(orientation);
        }
        let rgb = in_rgb(decoded);
        Picture::new(rgb.width() as usize, rgb.height() as usize, rgb.into_raw())
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// All pixels. `[height, width, 3]`
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }
}

/// Eight bits, the upper ones, of three channels.
fn in_rgb(decoded: DynamicImage) -> image::RgbImage {
    let upper = |samples: Vec<u16>| samples.into_iter().map(|s| (s >> 8) as u8).collect::<Vec<u8>>();
    let (width, height) = (decoded.width(), decoded.height());
    let eight = match decoded {
        DynamicImage::ImageLuma16(i) => {
            image::GrayImage::from_raw(width, height, upper(i.into_raw())).map(DynamicImage::from)
        }
        DynamicImage::ImageLumaA16(i) => {
            image::GrayAlphaImage::from_raw(width, height, upper(i.into_raw())).map(DynamicImage::from)
        }
        DynamicImage::ImageRgb16(i) => {
            image::RgbImage::from_raw(width, height, upper(i.into_raw())).map(DynamicImage::from)
        }
        DynamicImage::ImageRgba16(i) => {
            image::RgbaImage::from_raw(width, height, upper(i.into_raw())).map(DynamicImage::from)
        }
        other => Some(other),
    };
    eight.unwrap_or_default().into_rgb8()
}

/// The reason of a decoder, which may quote the file.
fn one_line(error: &image::ImageError) -> String {
    let text = error.to_string();
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bits_lose_the_lower_eight_and_transparency_is_dropped() {
        let (value, other) = (0x12ff_u16, 0xabcd_u16);
        let of = |raw: Vec<u16>, channels: usize| match channels {
            1 => image::ImageBuffer::from_raw(1, 1, raw).map(DynamicImage::ImageLuma16),
            2 => image::ImageBuffer::from_raw(1, 1, raw).map(DynamicImage::ImageLumaA16),
            3 => image::ImageBuffer::from_raw(1, 1, raw).map(DynamicImage::ImageRgb16),
            _ => image::ImageBuffer::from_raw(1, 1, raw).map(DynamicImage::ImageRgba16),
        };
        for (raw, want) in [
            (vec![value], [0x12; 3]),
            (vec![value, 0], [0x12; 3]),
            (vec![value, other, 0], [0x12, 0xab, 0]),
            (vec![value, other, 0, 7], [0x12, 0xab, 0]),
        ] {
            let (mut file, channels) = (Cursor::new(vec![]), raw.len());
            of(raw, channels).unwrap().write_to(&mut file, ImageFormat::Png).unwrap();
            let picture = Picture::decode(file.get_ref(), Limits::default()).unwrap();
            assert_eq!(picture.pixels(), want, "{channels} channels");
        }
    }
}
