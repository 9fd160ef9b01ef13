//! How often drafts were right, by where they came from.

/// Decay of the counts per draft.
const FADE: f64 = 0.98;
/// The weight of what other sequences know, in drafts.
const SHARED_WEIGHT: f64 = 4.0;
/// The first match length of each class but the first.
const CLASSES: [usize; 6] = [4, 6, 9, 14, 22, 40];

/// Where a draft came from, as far as it says how likely the draft is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// It followed as many tokens that match.
    Match(usize),
    /// A constraint allows nothing else.
    Forced,
}

impl Source {
    fn class(self) -> usize {
        match self {
            Source::Match(len) => CLASSES.partition_point(|first| *first <= len),
            Source::Forced => CLASSES.len() + 1,
        }
    }

    /// Before anything is known.
    fn prior(self) -> f64 {
        match self {
            Source::Match(_) => 0.4 + 0.08 * self.class() as f64,
            Source::Forced => 0.9,
        }
    }
}

/// Counts of drafts, right ones and all, that fade.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acceptance {
    /// `(right, all)` by class.
    counts: [(f64, f64); CLASSES.len() + 2],
}

impl Acceptance {
    pub(crate) fn count(&mut self, source: Source, right: bool) {
        let (rights, all) = &mut self.counts[source.class()];
        *rights = *rights * FADE + f64::from(u8::from(right));
        *all = *all * FADE + 1.0;
    }

    /// The probability that a draft is right, if those before it are; `shared` has the counts of all
    /// sequences.
    pub(crate) fn of(&self, source: Source, shared: &Acceptance) -> f64 {
        let mix =
            |(right, all): (f64, f64), prior: f64| (right + SHARED_WEIGHT * prior) / (all + SHARED_WEIGHT);
        let class = source.class();
        mix(self.counts[class], mix(shared.counts[class], source.prior()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_matches_are_trusted_more_until_counts_say_otherwise() {
        let (mut own, mut shared) = (Acceptance::default(), Acceptance::default());
        let of = |own: &Acceptance, shared: &Acceptance, len| own.of(Source::Match(len), shared);
        let lens = [3, 4, 6, 9, 14, 22, 40];
        assert!(lens.windows(2).all(|pair| of(&own, &shared, pair[0]) < of(&own, &shared, pair[1])));
        (0..50).for_each(|_| shared.count(Source::Match(3), true));
        assert!(of(&own, &shared, 3) > 0.9, "others were right");
        (0..50).for_each(|_| own.count(Source::Match(3), false));
        assert!(of(&own, &shared, 3) < 0.15, "this one is not");
        assert!(of(&own, &shared, 4) > 0.4, "other classes do not change");
        (0..200).for_each(|_| own.count(Source::Match(3), true));
        assert!(of(&own, &shared, 3) > 0.9, "what was long ago fades");
    }
}
