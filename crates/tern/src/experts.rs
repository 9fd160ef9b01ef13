//! Where the weights of experts are: on the device, or in host memory, where the CPU computes them
//! while a GPU runs the rest.

use std::fmt;
use std::str::FromStr;

/// Where the experts of a model are. As text: `auto`, `device`, `cpu` or `cpu:N`.
///
/// ```
/// use tern::ExpertPlacement;
/// assert_eq!("cpu:12".parse(), Ok(ExpertPlacement::Host(Some(12))));
/// assert_eq!(ExpertPlacement::default(), ExpertPlacement::Auto);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertPlacement {
    /// On the device, but for as many layers as it has no memory for.
    #[default]
    Auto,
    /// On the device.
    Device,
    /// Those of the first layers that have some in host memory; of all layers without a number.
    Host(Option<usize>),
}

impl FromStr for ExpertPlacement {
    type Err = String;

    fn from_str(text: &str) -> Result<ExpertPlacement, String> {
        match text {
            "auto" => Ok(ExpertPlacement::Auto),
            "device" => Ok(ExpertPlacement::Device),
            "cpu" => Ok(ExpertPlacement::Host(None)),
            _ => match text.strip_prefix("cpu:").and_then(|n| n.parse().ok()) {
                Some(layers) => Ok(ExpertPlacement::Host(Some(layers))),
                None => Err("expected auto, device, cpu or cpu:N".into()),
            },
        }
    }
}

impl fmt::Display for ExpertPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpertPlacement::Auto => f.write_str("auto"),
            ExpertPlacement::Device => f.write_str("device"),
            ExpertPlacement::Host(None) => f.write_str("cpu"),
            ExpertPlacement::Host(Some(layers)) => write!(f, "cpu:{layers}"),
        }
    }
}
