//! Pooling: how the rows of a text's tokens become its result, the same enum from the flag
//! and the file to the runner.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// How the rows of a text's tokens become its result. The numbers are those of `pooling_type` in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// 0: they do not, the result has a row per token.
    None,
    /// 1: their mean.
    Mean,
    /// 2: the row of the first token.
    Cls,
    /// 3: the row of the last token.
    Last,
}

impl Pooling {
    /// All of them, by their number in files.
    pub const ALL: [Pooling; 4] = [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last];

    /// The name, as in flags.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::None => "none",
            Pooling::Mean => "mean",
            Pooling::Cls => "cls",
            Pooling::Last => "last",
        }
    }

    /// The rows that it reads of those of a text, or of a part of it.
    pub fn rows(self, tokens: Range<usize>) -> Range<usize> {
        match self {
            Pooling::None | Pooling::Mean => tokens,
            Pooling::Cls => tokens.start..tokens.start + 1,
            Pooling::Last => tokens.end - 1..tokens.end,
        }
    }

    /// What remains to be done with the rows of a graph that pools texts itself: a mean
    /// is the row of every token.
    pub fn after_graph(self) -> Pooling {
        match self {
            Pooling::Mean => Pooling::Last,
            other => other,
        }
    }

    /// Whether a text must be in one step even if the model could read it in parts: its rows
    /// are not joined over steps.
    pub fn needs_one_step(self) -> bool {
        matches!(self, Pooling::None | Pooling::Cls)
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pooling {
    type Err = String;

    fn from_str(name: &str) -> Result<Pooling, String> {
        let found = Pooling::ALL.into_iter().find(|pooling| pooling.name() == name);
        found.ok_or_else(|| format!("want {}", Pooling::ALL.map(Pooling::name).join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_rows_are_those_of_each_pooling() {
        let facts =
            [("none", 4..9, "none"), ("mean", 4..9, "last"), ("cls", 4..5, "cls"), ("last", 8..9, "last")];
        for (pooling, (name, rows, after)) in Pooling::ALL.into_iter().zip(facts) {
            assert_eq!((pooling.to_string().as_str(), name.parse()), (name, Ok(pooling)));
            assert_eq!((pooling.rows(4..9), pooling.after_graph().name()), (rows, after), "{pooling}");
        }
        assert_eq!("rank".parse::<Pooling>(), Err("want none, mean, cls, last".into()));
    }
}
