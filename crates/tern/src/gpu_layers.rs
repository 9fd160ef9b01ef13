//! How many layers of a model are on a GPU, while the CPU computes the others.

use std::fmt;
use std::str::FromStr;

/// Layers on a GPU, counted from the end, with the output as one more: `1` is the output, `2` the output and
/// the last layer. As text: `auto` or `-1`, `all`, or a number.
///
/// ```
/// use tern::GpuLayers;
/// assert_eq!("18".parse(), Ok(GpuLayers::Count(18)));
/// assert_eq!(GpuLayers::default(), GpuLayers::Auto);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// All of them, but for those that a GPU has no memory for.
    #[default]
    Auto,
    /// All of them.
    All,
    /// This many, or all if that is more; 0 is the CPU alone.
    Count(usize),
}

impl FromStr for GpuLayers {
    type Err = String;

    fn from_str(text: &str) -> Result<GpuLayers, String> {
        match (text, text.parse()) {
            ("auto" | "-1", _) => Ok(GpuLayers::Auto),
            ("all", _) => Ok(GpuLayers::All),
            (_, Ok(layers)) => Ok(GpuLayers::Count(layers)),
            _ => Err("expected auto, all or a number of layers".into()),
        }
    }
}

impl fmt::Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuLayers::Auto => f.write_str("auto"),
            GpuLayers::All => f.write_str("all"),
            GpuLayers::Count(layers) => write!(f, "{layers}"),
        }
    }
}
