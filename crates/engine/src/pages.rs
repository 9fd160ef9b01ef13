//! KV pages: who holds which page, and when it comes back.

use std::collections::VecDeque;

use crate::EngineError;

/// All pages of an engine; the only one to hand them out and take them back.
#[derive(Clone, Debug)]
pub struct Pages {
    /// The page that has been free longest goes first.
    free: VecDeque<u32>,
    total: usize,
    page_len: usize,
}

impl Pages {
    /// `total` free pages of `page_len` tokens.
    pub fn new(total: usize, page_len: usize) -> Pages {
        Pages { free: (0..total as u32).collect(), total, page_len }
    }

    /// Pages nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages in all.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Adds pages to `held` until they hold `tokens` tokens; without enough free pages nothing changes.
    #[must_use = "the pages may have run out"]
    pub fn grow(&mut self, held: &mut Vec<u32>, tokens: usize) -> bool {
        let more = tokens.div_ceil(self.page_len).saturating_sub(held.len());
        if more > self.free.len() {
            return false;
        }
        held.extend(self.free.drain(..more));
        true
    }

    /// Takes back all of `held`.
    pub fn give_back(&mut self, held: &mut Vec<u32>) {
        self.free.extend(held.drain(..));
    }

    /// Every page is free or held, by one holder and once.
    pub fn check<'a>(&self, held: impl IntoIterator<Item = &'a [u32]>) -> Result<(), EngineError> {
        let mut times = vec![0u32; self.total];
        for page in held.into_iter().flatten().copied().chain(self.free.iter().copied()) {
            match times.get_mut(page as usize) {
                Some(n) => *n += 1,
                None => {
                    return Err(EngineError::Broken(format!("page {page} of {} does not exist", self.total)));
                }
            }
        }
        match times.iter().position(|&n| n != 1) {
            Some(page) => {
                let n = times[page];
                Err(EngineError::Broken(format!("page {page} is free or held {n} times, want once")))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_out_once_and_come_back() {
        let mut pages = Pages::new(4, 16);
        let (mut a, mut b) = (vec![], vec![]);
        assert!(pages.grow(&mut a, 17));
        assert!(pages.grow(&mut b, 16));
        assert_eq!((a.as_slice(), b.as_slice(), pages.free()), ([0, 1].as_slice(), [2].as_slice(), 1));
        assert!(!pages.grow(&mut b, 49), "two more pages of one");
        assert!(pages.grow(&mut a, 32), "held pages count");
        pages.check([a.as_slice(), &b]).unwrap();
        pages.give_back(&mut a);
        pages.check([b.as_slice()]).unwrap();
        assert_eq!((pages.free(), a.len()), (3, 0));
    }

    #[test]
    fn a_lost_or_doubled_page_shows() {
        let mut pages = Pages::new(3, 16);
        let mut held = vec![];
        assert!(pages.grow(&mut held, 16));
        let words = |held: &[u32]| pages.check([held]).unwrap_err().to_string();
        assert_eq!(words(&[]), "the engine stopped: page 0 is free or held 0 times, want once");
        assert_eq!(words(&[0, 2]), "the engine stopped: page 2 is free or held 2 times, want once");
        assert_eq!(words(&[3]), "the engine stopped: page 3 of 3 does not exist");
    }
}
