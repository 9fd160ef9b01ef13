//! The decoders' entrance: files of images, and the pictures that towers read of them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tern_images::{Area, Filter, Limits, Picture, Sizing};

use super::Run;

/// What the pictures of the tests of images are.
const RECORDED: &str = include_str!("../../../images/tests/pictures.json");

pub(crate) const WORDS: &[&str] = &[
    "\u{89}PNG\r\n\u{1a}\n",
    "IHDR",
    "IDAT",
    "IEND",
    "acTL",
    "fcTL",
    "eXIf",
    "Exif\0\0",
    "JFIF",
    "GIF89a",
    "GIF87a",
    "NETSCAPE2.0",
    "RIFF",
    "WEBP",
    "VP8 ",
    "VP8L",
    "VP8X",
    "ANMF",
    "ALPH",
    "BM",
];

/// Files in every format.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let recorded: serde_json::Value = serde_json::from_str(RECORDED).unwrap_or_default();
    let files = recorded["files"].as_array().into_iter().flatten();
    files.filter_map(|file| STANDARD.decode(file["file"].as_str()?).ok()).collect()
}

/// Decodes a file and cuts it by each rule.
pub(crate) fn start() -> Run {
    let area = Area { factor: 8, least: 256, most: 4096 };
    let rules = [
        Sizing::Area(area),
        Sizing::Square(32),
        Sizing::Budget { factor: 12, squares: 9 },
        Sizing::Longest { longest: 64, factor: 8 },
        Sizing::Rows { longest: 48, tile: 16, splits: true },
        Sizing::Tiles { tile: 16, tiles: [1, 6], whole: None },
        Sizing::Tiles { tile: 16, tiles: [2, 6], whole: Some(area) },
    ];
    Box::new(move |bytes| {
        let Ok(picture) = Picture::decode(bytes, Limits { pixels: 1 << 16 }) else { return };
        assert!(picture.width() * picture.height() <= 1 << 16, "more pixels than the limit");
        for (rule, filter) in
            rules.iter().zip([Filter::Bicubic, Filter::Bilinear, Filter::Lanczos].iter().cycle())
        {
            let Ok(cut) = picture.cut(*rule, *filter) else { continue };
            assert!(!cut.pictures.is_empty() && cut.pictures.len() <= 10, "{} pictures", cut.pictures.len());
            for picture in &cut.pictures {
                assert!(picture.width() * picture.height() <= 1 << 16, "{rule:?}: {picture:?}");
                picture.patches(4, [0.5; 3], [0.5; 3]);
            }
        }
    })
}
