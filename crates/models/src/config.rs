//! The sizes that nearly every decoder has. A missing key is an error that names it.

use tern_formats::{Metadata, MetadataError};

use crate::ModelError;

/// Sizes of a decoder, read from `<arch>.*` keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `general.architecture`, the prefix of the other keys.
    pub arch: String,
    /// Layers.
    pub layers: usize,
    /// Columns of the residual stream.
    pub width: usize,
    /// Columns inside the MLP.
    pub ff: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns of a query or key head.
    pub head_dim: usize,
    /// Columns of a value head.
    pub v_dim: usize,
    /// Columns of a head that are rotated.
    pub rope_dims: usize,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Context length that the model was trained for.
    pub context_trained: usize,
    /// Maximum tokens of a sequence in this run.
    pub context: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
}

/// Sizes that files may give per layer.
const PER_LAYER: [&str; 3] = ["attention.head_count", "attention.head_count_kv", "feed_forward_length"];

/// Keys under an architecture's prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a> {
    pub(crate) arch: &'a str,
    pub(crate) metadata: &'a Metadata,
}

impl Keys<'_> {
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    pub(crate) fn usize(&self, name: &str) -> Result<usize, MetadataError> {
        self.metadata.usize(&self.key(name))
    }

    pub(crate) fn optional_usize(&self, name: &str) -> Result<Option<usize>, MetadataError> {
        self.metadata.optional_usize(&self.key(name))
    }

    /// One number or several; `None` if the key is missing.
    pub(crate) fn usizes(&self, name: &str) -> Result<Option<Vec<usize>>, MetadataError> {
        self.metadata.optional_usizes(&self.key(name))
    }

    pub(crate) fn f32(&self, name: &str) -> Result<f32, MetadataError> {
        self.metadata.f32(&self.key(name))
    }

    pub(crate) fn optional_f32(&self, name: &str) -> Result<Option<f32>, MetadataError> {
        self.metadata.optional_f32(&self.key(name))
    }

    pub(crate) fn optional_bool(&self, name: &str) -> Result<Option<bool>, MetadataError> {
        self.metadata.optional_bool(&self.key(name))
    }

    pub(crate) fn optional_str(&self, name: &str) -> Result<Option<&str>, MetadataError> {
        self.metadata.optional_str(&self.key(name))
    }

    pub(crate) fn optional_strings(&self, name: &str) -> Result<Option<&[String]>, MetadataError> {
        self.metadata.optional_strings(&self.key(name))
    }

    /// One value per layer; `None` if the key is missing.
    pub(crate) fn bool_per_layer(&self, name: &str, layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
        let key = self.key(name);
        let Some(values) = self.metadata.optional_bools(&key)? else { return Ok(None) };
        self.check_layers(name, values.len(), layers)?;
        Ok(Some(values[..layers].to_vec()))
    }

    /// One number, or one per layer; `None` if the key is missing.
    pub(crate) fn f32_per_layer(&self, name: &str, layers: usize) -> Result<Option<Vec<f32>>, ModelError> {
        let key = self.key(name);
        if let Some(tern_formats::Value::Floats(values)) = self.metadata.get(&key) {
            self.check_layers(name, values.len(), layers)?;
            return Ok(Some(values[..layers].to_vec()));
        }
        Ok(self.optional_f32(name)?.map(|value| vec![value; layers]))
    }

    /// Files may have values for layers that are not run.
    fn check_layers(&self, name: &str, values: usize, layers: usize) -> Result<(), ModelError> {
        if values < layers {
            return Err(ModelError::FewValues { key: self.key(name), values, layers });
        }
        Ok(())
    }

    /// One number, or one per layer; `None` if the key is missing.
    pub(crate) fn usize_per_layer(
        &self,
        name: &str,
        layers: usize,
    ) -> Result<Option<Vec<usize>>, ModelError> {
        let Some(mut values) = self.metadata.optional_usizes(&self.key(name))? else { return Ok(None) };
        if let [one] = values[..] {
            return Ok(Some(vec![one; layers]));
        }
        self.check_layers(name, values.len(), layers)?;
        values.truncate(layers);
        Ok(Some(values))
    }

    /// A number that files may also give per layer: that of the first layer that has any.
    fn first_layer(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let key = self.key(name);
        let Some(values) = self.metadata.optional_usizes(&key)? else { return Ok(None) };
        let first = values.iter().find(|n| **n > 0).or(values.first());
        let first = first.ok_or(MetadataError::Missing(key))?;
        Ok(Some(*first))
    }

    /// Refuses sizes that differ from layer to layer.
    pub(crate) fn check_alike(&self) -> Result<(), ModelError> {
        for name in PER_LAYER {
            let key = self.key(name);
            let values = self.metadata.optional_usizes(&key)?.unwrap_or_default();
            if values.windows(2).any(|pair| pair[0] != pair[1]) {
                return Err(ModelError::DiffersByLayer(key));
            }
        }
        Ok(())
    }
}

impl Config {
    /// Reads and checks the common keys. `vocab` is the height of the embedding table.
    pub(crate) fn read(keys: Keys<'_>, vocab: usize, context: Option<usize>) -> Result<Config, ModelError> {
        let missing = |name: &str| ModelError::Metadata(MetadataError::Missing(keys.key(name)));
        let width = keys.usize("embedding_length")?;
        let heads =
            keys.first_layer("attention.head_count")?.ok_or_else(|| missing("attention.head_count"))?;
        let kv_heads = keys.first_layer("attention.head_count_kv")?.unwrap_or(heads);
        let rope_dims = keys.optional_usize("rope.dimension_count")?;
        let head_dim = match keys.optional_usize("attention.key_length")? {
            Some(n) => n,
            // heads that divide the width, unless the rotation is wider than that
            None if heads > 0
                && width.is_multiple_of(heads)
                && rope_dims.is_none_or(|r| r <= width / heads) =>
            {
                width / heads
            }
            None if heads == 0 => 0,
            None => return Err(missing("attention.key_length")),
        };
        let context_trained = keys.usize("context_length")?;
        let config = Config {
            arch: keys.arch.to_string(),
            layers: keys.usize("block_count")?,
            width,
            // files whose layers all have experts may have no other length
            ff: match keys.first_layer("feed_forward_length")? {
                Some(ff) => ff,
                None => keys
                    .optional_usize("expert_feed_forward_length")?
                    .ok_or_else(|| missing("feed_forward_length"))?,
            },
            heads,
            kv_heads,
            head_dim,
            v_dim: keys.optional_usize("attention.value_length")?.unwrap_or(head_dim),
            rope_dims: rope_dims.unwrap_or(head_dim),
            eps: match keys.optional_f32("attention.layer_norm_rms_epsilon")? {
                Some(eps) => eps, // files may have the other one too, of no norm
                None => match keys.optional_f32("attention.layer_norm_epsilon")? {
                    Some(eps) => eps,
                    None => return Err(missing("attention.layer_norm_rms_epsilon")),
                },
            },
            context_trained,
            context: context.unwrap_or(context_trained),
            vocab,
        };
        config.check(keys)?;
        Ok(config)
    }

    /// Sizes come from the file: none may be zero or larger than any real model's.
    pub(crate) fn check(&self, keys: Keys<'_>) -> Result<(), ModelError> {
        let sizes = [
            ("block_count", self.layers, 1 << 12),
            ("embedding_length", self.width, 1 << 20),
            ("feed_forward_length", self.ff, 1 << 24),
            ("attention.head_count", self.heads, 1 << 14),
            ("attention.head_count_kv", self.kv_heads, 1 << 14),
            ("attention.key_length", self.head_dim, 1 << 14),
            ("attention.value_length", self.v_dim, 1 << 14),
            ("context_length", self.context_trained, 1 << 30),
        ];
        // models of recurrent layers alone have no attention and no MLP
        let recurrent = keys.optional_usize("ssm.inner_size")?.is_some();
        let may_be_0 = |name: &str| recurrent && (name.starts_with("attention.") || name.starts_with("feed"));
        for (name, size, most) in sizes {
            if (size == 0 && !may_be_0(name)) || size > most {
                return Err(ModelError::value(keys.key(name), size, format!("1 to {most}")));
            }
        }
        if !(self.eps.is_finite() && self.eps >= 0.0) {
            let key = keys.key("attention.layer_norm_rms_epsilon");
            return Err(ModelError::value(key, self.eps, "0 or more"));
        }
        if self.heads > 0 && !self.heads.is_multiple_of(self.kv_heads) {
            let (heads, kv_heads) = (self.heads, self.kv_heads);
            return Err(ModelError::Heads { heads, kv_heads, layer: None });
        }
        if self.rope_dims > self.head_dim || !self.rope_dims.is_multiple_of(2) {
            return Err(ModelError::RopeDims { dims: self.rope_dims, head_dim: self.head_dim });
        }
        Ok(())
    }
}
