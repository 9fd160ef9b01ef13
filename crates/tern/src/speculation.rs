//! Which drafts a model's texts have.

use std::fmt;
use std::str::FromStr;

use tern_engine::MOST_DRAFTS;

/// Where the drafts of speculative decoding come from: tokens that are guessed and computed together with the
/// last known one. Drafts do not change a text on the CPU, nor on a GPU with `reproducible`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// [`Speculation::Suffix`] on the CPU, none on a GPU.
    #[default]
    Auto,
    /// No drafts.
    Off,
    /// What followed the last tokens where they occurred before: in the prompt, in the text, in finished
    /// texts. Constraints draft what they force.
    Suffix,
}

impl Speculation {
    const NAMES: [(&'static str, Speculation); 3] =
        [("auto", Speculation::Auto), ("off", Speculation::Off), ("suffix", Speculation::Suffix)];

    /// Drafts per sequence and step at most, of `most`; `runs_ahead`: the device computes a step while the
    /// results of the one before are on their way, which drafts must wait for.
    pub fn drafts(self, most: usize, runs_ahead: bool) -> usize {
        let on = match self {
            Speculation::Auto => !runs_ahead,
            Speculation::Off => false,
            Speculation::Suffix => true,
        };
        if on { most.min(MOST_DRAFTS) } else { 0 }
    }
}

impl FromStr for Speculation {
    type Err = String;

    fn from_str(name: &str) -> Result<Speculation, String> {
        let found = Speculation::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, speculation)| *speculation).ok_or_else(|| {
            format!("{name}: want auto, off or suffix (drafts by other models are not supported yet)")
        })
    }
}

impl fmt::Display for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Speculation::NAMES.iter().find(|(_, known)| known == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_shown() {
        for (name, speculation) in Speculation::NAMES {
            assert_eq!((name.parse(), speculation.to_string()), (Ok(speculation), name.to_owned()));
        }
        assert!("mtp".parse::<Speculation>().unwrap_err().starts_with("mtp: want auto, off or suffix"));
        assert_eq!([false, true].map(|ahead| Speculation::Auto.drafts(8, ahead)), [8, 0]);
        assert_eq!(Speculation::Suffix.drafts(999, true), MOST_DRAFTS);
    }
}
