//! Images in conversations: from the bytes of a file to the rows that the model reads, which are kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};
use tern_engine::{EngineError, ImageRows, Images, TowerRunner};
use tern_images::{Cut, Picture, Sizing};
use tern_models::Tower;
use tern_text::{ChatText, Tokenizer};

use crate::{Error, Model};

/// Images of one conversation at most.
pub const MAX_IMAGES: usize = 64;

/// Contents whose numbers are known, at most; others get new numbers, and are computed again.
const MAX_KNOWN: usize = 1 << 16;

/// An image in the content of a message.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    /// The bytes of the text before it.
    pub at: usize,
    /// Its file: JPEG, PNG, WebP, GIF or BMP.
    pub bytes: Arc<[u8]>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an image of {} bytes at {}", self.bytes.len(), self.at)
    }
}

/// An image as the model reads it.
#[derive(Debug)]
pub struct EncodedImage {
    /// Its rows, in pieces that follow each other in the prompt, with other tokens between them.
    pub pieces: Vec<Arc<ImageRows>>,
    /// What takes the place of its marker in the prompt.
    pub text: String,
}

impl EncodedImage {
    /// Tokens of the prompt that are its rows.
    pub fn tokens(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len).sum()
    }

    fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.values.len() * size_of::<f32>()).sum::<usize>() + self.text.len()
    }
}

/// The tower of a model: what turns images into rows.
pub struct ImageEncoder {
    tower: Tower,
    runner: Mutex<TowerRunner>,
    kept: Mutex<Kept>,
    limits: tern_images::Limits,
    /// How images are cut and resized.
    sizing: Sizing,
    /// The token that stands for a row.
    row_token: u32,
}

/// Rows of the last images, by the hash of their files.
struct Kept {
    rows: HashMap<[u8; 32], (u64, Arc<EncodedImage>)>,
    /// The first number of each content that was seen, which has one per piece.
    ids: HashMap<[u8; 32], u32>,
    next_id: u32,
    /// Counts the uses, to find the oldest.
    uses: u64,
    bytes: usize,
    most: usize,
}

impl Kept {
    /// The first number of a content of this many pieces. Numbers are never used twice: the prefix cache is
    /// keyed by them.
    fn id(&mut self, key: [u8; 32], pieces: usize) -> u32 {
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        if self.ids.len() >= MAX_KNOWN {
            self.ids.clear();
        }
        let first = self.next_id.wrapping_add(1);
        self.next_id = self.next_id.wrapping_add(pieces as u32);
        self.ids.insert(key, first);
        first
    }

    fn find(&mut self, key: &[u8; 32]) -> Option<Arc<EncodedImage>> {
        self.uses += 1;
        let (used, rows) = self.rows.get_mut(key)?;
        *used = self.uses;
        Some(Arc::clone(rows))
    }

    fn keep(&mut self, key: [u8; 32], rows: Arc<EncodedImage>) {
        self.uses += 1;
        self.bytes += rows.bytes();
        self.rows.insert(key, (self.uses, rows));
        while self.bytes > self.most
            && let Some(oldest) = self.rows.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key)
            && let Some((_, rows)) = self.rows.remove(&oldest)
        {
            self.bytes -= rows.bytes();
        }
    }
}

/// What an encoder may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageOptions {
    /// Tokens of one image at most: larger ones are scaled down.
    pub max_tokens: usize,
    /// Pixels of a file at most; more are refused before they are decoded.
    pub max_pixels: u64,
    /// Bytes of rows that are kept for images that come again.
    pub cache_bytes: usize,
}

impl Default for ImageOptions {
    fn default() -> ImageOptions {
        ImageOptions {
            max_tokens: 4096,
            max_pixels: tern_images::Limits::default().pixels,
            cache_bytes: 256 << 20,
        }
    }
}

impl ImageEncoder {
    /// A tower for a model with this vocabulary.
    pub fn new(
        tower: Tower,
        runner: TowerRunner,
        tokenizer: &Tokenizer,
        options: ImageOptions,
    ) -> Result<ImageEncoder, Error> {
        let row = tower.kind.prompt.row;
        let row_token = tokenizer.id_of(row).ok_or(Error::NoImageToken(row))?;
        let kept = Kept {
            rows: HashMap::new(),
            ids: HashMap::new(),
            next_id: 0,
            uses: 0,
            bytes: 0,
            most: options.cache_bytes,
        };
        let sizing = tower.sizing.at_most(options.max_tokens, tower.token_side());
        Ok(ImageEncoder {
            tower,
            runner: Mutex::new(runner),
            kept: Mutex::new(kept),
            limits: tern_images::Limits { pixels: options.max_pixels },
            sizing,
            row_token,
        })
    }

    /// The kind of its tower.
    pub fn kind(&self) -> &'static str {
        self.tower.kind.name
    }

    /// The rows of a file, which are computed if they are not kept. Blocks.
    pub fn rows(&self, file: &[u8]) -> Result<Arc<EncodedImage>, Error> {
        let key: [u8; 32] = Sha256::digest(file).into();
        if let Some(rows) = self.kept().find(&key) {
            return Ok(rows);
        }
        let cut = Picture::decode(file, self.limits)?.cut(self.sizing, self.tower.filter)?;
        let mut runner = self.runner.lock().unwrap_or_else(PoisonError::into_inner);
        // it may have been computed meanwhile
        if let Some(rows) = self.kept().find(&key) {
            return Ok(rows);
        }
        let encoded = self.encode(&cut, &mut runner)?;
        let mut kept = self.kept();
        let first = kept.id(key, encoded.pieces.len());
        let numbered = (0..).zip(encoded.pieces).map(|(at, piece): (u32, Arc<ImageRows>)| {
            Arc::new(ImageRows { id: first.wrapping_add(at), ..Arc::unwrap_or_clone(piece) })
        });
        let encoded = Arc::new(EncodedImage { pieces: numbered.collect(), text: encoded.text });
        kept.keep(key, Arc::clone(&encoded));
        Ok(encoded)
    }

    /// The rows of all pictures of an image, without their numbers.
    fn encode(&self, cut: &Cut, runner: &mut TowerRunner) -> Result<EncodedImage, EngineError> {
        let (tower, prompt) = (&self.tower, &self.tower.kind.prompt);
        let (mut pieces, mut grids) = (vec![], vec![]);
        for picture in &cut.pictures {
            let patches = picture.patches(tower.patch, tower.mean, tower.deviation);
            let grid = picture.grid(tower.patch);
            let rows = tower
                .rows(patches, grid, |stage, inputs, rows, images| runner.run(stage, inputs, rows, images))?;
            let cells = tower.join.grid(grid);
            grids.push(cells);
            if prompt.lines {
                let line = |values: &[f32]| ImageRows { values: values.into(), len: cells[1], ..rows.bare() };
                pieces.extend(rows.values.chunks(cells[1] * rows.width).map(|values| Arc::new(line(values))));
            } else {
                pieces.push(Arc::new(rows));
            }
        }
        Ok(EncodedImage { pieces, text: prompt.text(&grids, cut.tiles) })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Model {
    /// Whether it takes images.
    pub fn sees(&self) -> bool {
        self.image_encoder().is_some()
    }

    /// Writes the places of images in a rendered conversation, and returns their rows, in order. Blocks while
    /// images are computed.
    pub fn expand_images(
        &self,
        text: &mut ChatText,
        images: &[Arc<[u8]>],
        cancelled: impl Fn() -> bool,
    ) -> Result<Vec<Arc<EncodedImage>>, Error> {
        if images.is_empty() {
            return Ok(vec![]);
        }
        let encoder = self.image_encoder().ok_or_else(|| Error::DoesNotSee(self.name().into()))?;
        if images.len() > MAX_IMAGES {
            return Err(Error::ManyImages { images: images.len(), most: MAX_IMAGES });
        }
        let prompt = &encoder.tower.kind.prompt;
        let places = text.count(prompt.marker);
        if places != images.len() {
            return Err(Error::ImagePlaces { images: images.len(), places });
        }
        let (mut all, mut tokens) = (vec![], 0);
        for image in images {
            if cancelled() {
                return Err(Error::Cancelled);
            }
            let rows = encoder.rows(image)?;
            tokens += rows.tokens();
            if tokens > self.context() {
                let (max_tokens, max_context) = (1, self.context());
                return Err(EngineError::Context { prompt: tokens, max_tokens, max_context }.into());
            }
            all.push(rows);
        }
        let texts: Vec<String> = all.iter().map(|image| image.text.clone()).collect();
        *text = text.replaced(prompt.marker, &texts);
        Ok(all)
    }

    /// Where the rows of images are in the tokens of a conversation.
    pub fn place_images(&self, tokens: &mut [u32], images: &[Arc<EncodedImage>]) -> Result<Images, Error> {
        let Some(encoder) = self.image_encoder().filter(|_| !images.is_empty()) else {
            return Ok(Images::NONE);
        };
        let is_row = |at: usize| tokens.get(at) == Some(&encoder.row_token);
        let (mut placed, mut at) = (vec![], 0);
        for (number, image) in images.iter().enumerate() {
            for rows in &image.pieces {
                while at < tokens.len() && !is_row(at) {
                    at += 1;
                }
                let end = at + rows.len;
                if !(at..end).all(is_row) {
                    return Err(Error::ImagePlaces { images: images.len(), places: number });
                }
                placed.push((at, Arc::clone(rows)));
                at = end;
            }
        }
        if let Some(stand_in) = encoder.tower.kind.prompt.stand_in {
            placed.iter().for_each(|(at, rows)| tokens[*at..at + rows.len].fill(stand_in));
        }
        Ok(Images::new(placed))
    }
}
