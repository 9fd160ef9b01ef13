//! Text with the byte ranges that come from the user.

use std::ops::Range;

/// The byte ranges of a text that come from a user: sorted, disjoint, not empty.
pub(super) type Spans = Vec<Range<usize>>;

/// The spans of a text that is entirely the user's.
pub(super) fn whole(len: usize) -> Spans {
    Some(0..len).filter(|span| !span.is_empty()).into_iter().collect()
}

/// A string and the spans that are the user's.
#[derive(Clone, Debug)]
pub(super) struct Piece<'t> {
    pub(super) text: &'t str,
    pub(super) spans: Spans,
}

impl<'t> Piece<'t> {
    /// A part of this text, which must be a slice of it.
    pub(super) fn part(&self, part: &'t str) -> Piece<'t> {
        let start = (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        let end = start + part.len();
        let first = self.spans.partition_point(|span| span.end <= start);
        let inside = self.spans.iter().skip(first).take_while(|span| span.start < end);
        let cut = |span: &Range<usize>| span.start.max(start) - start..span.end.min(end) - start;
        Piece { text: part, spans: inside.map(cut).collect() }
    }

    /// The text in parts that are entirely the user's (true) or entirely the template's.
    pub(super) fn stretches(&self) -> Vec<(&'t str, bool)> {
        let mut stretches = Vec::with_capacity(2 * self.spans.len() + 1);
        let mut at = 0;
        for span in &self.spans {
            stretches.push((at..span.start, false));
            stretches.push((span.clone(), true));
            at = span.end;
        }
        stretches.push((at..self.text.len(), false));
        let text = |(range, user): (Range<usize>, bool)| Some((self.text.get(range)?, user));
        stretches.into_iter().filter_map(text).filter(|(text, _)| !text.is_empty()).collect()
    }
}

/// A text under construction.
#[derive(Clone, Debug, Default)]
pub(super) struct Traced {
    pub(super) text: String,
    pub(super) spans: Spans,
}

impl Traced {
    pub(super) fn with_capacity(bytes: usize) -> Traced {
        Traced { text: String::with_capacity(bytes), spans: Spans::new() }
    }

    /// Adds the template's own text.
    pub(super) fn own(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Adds a text with its spans.
    pub(super) fn push(&mut self, piece: &Piece<'_>) {
        let at = self.text.len();
        self.text.push_str(piece.text);
        append(&mut self.spans, at, &piece.spans);
    }

    /// Adds the output of `write`, as the user's or as the template's own.
    pub(super) fn with(&mut self, user: bool, write: impl FnOnce(&mut String)) {
        let at = self.text.len();
        write(&mut self.text);
        let end = self.text.len();
        if user && at < end {
            append(&mut self.spans, 0, std::slice::from_ref(&(at..end)));
        }
    }

    pub(super) fn as_piece(&self) -> Piece<'_> {
        Piece { text: &self.text, spans: self.spans.clone() }
    }
}

/// Adds spans relative to `at`, joining adjacent ones.
pub(super) fn append(spans: &mut Spans, at: usize, more: &[Range<usize>]) {
    for span in more {
        match spans.last_mut() {
            Some(last) if last.end == span.start + at => last.end = span.end + at,
            _ => spans.push(span.start + at..span.end + at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(piece: &Piece<'_>) -> Vec<(String, bool)> {
        piece.stretches().into_iter().map(|(text, user)| (text.to_owned(), user)).collect()
    }

    #[test]
    fn parts_keep_their_origins() {
        let mut traced = Traced::default();
        traced.own("<a>");
        traced.push(&Piece { text: "user", spans: whole(4) });
        traced.with(true, |out| out.push('!'));
        traced.own("</a>");
        assert_eq!(traced.spans, std::slice::from_ref(&(3..8)));
        let piece = traced.as_piece();
        assert_eq!(spans(&piece), [("<a>".into(), false), ("user!".into(), true), ("</a>".into(), false)]);
        let part = piece.part(&piece.text[1..5]);
        assert_eq!(spans(&part), [("a>".into(), false), ("us".into(), true)]);
        assert!(piece.part(&piece.text[8..]).spans.is_empty());
    }
}
