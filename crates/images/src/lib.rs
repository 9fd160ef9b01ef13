//! From the bytes of a user's picture to the patches that a model reads.
//!
//! [`Picture::decode`] reads JPEG, PNG, WebP, GIF and BMP, within [`Limits`]; [`Picture::resized`] is what
//! Pillow computes, to the bit; [`Picture::cut`] makes the pictures that a tower reads, and
//! [`Picture::patches`] their patches.
//!
//! ```
//! use tern_images::{Filter, Picture};
//!
//! let picture = Picture::new(2, 1, vec![255, 0, 0, 0, 0, 255])?;
//! assert_eq!(picture.resized(1, 1, Filter::Bilinear).pixels(), [128, 0, 128]);
//! # Ok::<(), tern_images::ImageError>(())
//! ```
//!
//! A picture is RGB with eight bits: transparency is dropped, as models' own processors do, 16 bits lose
//! the lower eight, of an animation there is the first frame, and a picture is turned as its EXIF
//! orientation says.

mod decode;
mod error;
mod patches;
mod resize;
mod size;
mod sizing;

pub use decode::{Limits, Picture};
pub use error::ImageError;
pub use resize::Filter;
pub use sizing::{Area, Cut, Sizing};
