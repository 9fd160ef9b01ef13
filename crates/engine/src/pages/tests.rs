//! Pages are shared, released and revived, and never lost.

use super::*;
use crate::WindowPages;

fn sized(pages: usize, page_len: usize) -> Pages {
    Pages::new(&Capacity { pages, page_len, max_tokens: 1, max_outputs: 1, window: None, state: None })
}

/// The same with a window of these tokens and pages.
fn windowed(pages: usize, page_len: usize, window: (usize, usize)) -> Pages {
    let window = Some(WindowPages { tokens: window.0, pages: window.1 });
    Pages::new(&Capacity { pages, page_len, max_tokens: 1, max_outputs: 1, window, state: None })
}

fn held(pages: &mut Pages, tokens: &[u32]) -> PageList {
    let mut held = pages.revive(tokens);
    assert!(pages.grow(&mut held, tokens.len(), tokens.len()));
    held
}

fn need(pages: usize, window_pages: usize) -> Need {
    Need { pages, window_pages }
}

#[test]
fn pages_are_allocated_once_and_released() {
    let mut pages = sized(4, 16);
    let (mut a, mut b) = (PageList::default(), PageList::default());
    assert!(pages.grow(&mut a, 17, 0));
    assert!(pages.grow(&mut b, 16, 0));
    assert_eq!((&*a.pages, &*b.pages, pages.free()), ([0, 1].as_slice(), [2].as_slice(), 1));
    assert!(!pages.grow(&mut b, 49, 0), "one page is free, two are needed");
    assert!(pages.grow(&mut a, 32, 0), "held pages count");
    pages.check([&a, &b]).unwrap();
    pages.give_back(&mut a);
    pages.check([&b]).unwrap();
    assert_eq!((pages.free(), a.pages.len()), (3, 0));
}

#[test]
fn a_lost_or_doubled_page_is_detected() {
    let mut pages = sized(3, 16);
    assert!(pages.grow(&mut PageList::default(), 16, 0));
    let message = |held: &[u32]| {
        pages
            .check([&PageList { pages: held.to_vec().into(), ..PageList::default() }])
            .unwrap_err()
            .to_string()
    };
    assert_eq!(message(&[]), "the engine stopped: page 0 is held 0 times, and 1 were counted");
    assert_eq!(message(&[0, 2]), "the engine stopped: page 2 is held 1 times, and 0 were counted");
    assert_eq!(message(&[3]), "the engine stopped: page 3 of 3 does not exist");
}

#[test]
fn a_prefix_is_shared_while_held_and_revived_after_release() {
    let mut pages = sized(8, 2);
    let tokens = [1, 2, 3, 4, 5];
    let mut a = held(&mut pages, &tokens);
    pages.remember(&mut a, &tokens);
    assert_eq!(pages.need(&tokens, true), need(1, 0), "two full pages are shared");
    assert_eq!(pages.need(&tokens, false), need(3, 0));
    let mut b = held(&mut pages, &[1, 2, 3, 9]);
    assert_eq!((b.pages[0], b.pages[1] == a.pages[1]), (a.pages[0], false));
    pages.check([&a, &b]).unwrap();
    pages.give_back(&mut a);
    pages.give_back(&mut b);
    assert_eq!((pages.free(), pages.cached()), (8, 2));
    let c = pages.revive(&tokens);
    assert_eq!((c.pages.len(), c.known), (2, 2));
    assert_eq!(
        pages.revive(&[3, 4, 5]).pages.len(),
        0,
        "the same tokens at another place are another content"
    );
}

#[test]
fn the_page_of_the_last_token_is_always_computed() {
    let mut pages = sized(8, 2);
    let mut a = held(&mut pages, &[1, 2, 3, 4]);
    pages.remember(&mut a, &[1, 2, 3, 4]);
    assert_eq!(pages.revive(&[1, 2, 3, 4]).pages.len(), 1);
}

#[test]
fn equal_contents_become_one_page() {
    let mut pages = sized(8, 2);
    let tokens = [1, 2, 3, 4, 5];
    let (mut a, mut b) = (held(&mut pages, &tokens), held(&mut pages, &tokens));
    pages.remember(&mut a, &tokens[..4]);
    pages.remember(&mut b, &tokens[..4]);
    assert_eq!((&a.pages[..2], pages.free()), (&b.pages[..2], 8 - 4));
    pages.check([&a, &b]).unwrap();
}

#[test]
fn contents_with_the_same_hash_share_no_page() {
    // the same tokens after another content, and other tokens after the same one
    for (tokens, collides) in [([1, 2, 1, 2, 5], 1), ([7, 8, 3, 4, 5], 0)] {
        let mut pages = sized(8, 2);
        let mut a = held(&mut pages, &[1, 2, 9]);
        pages.remember(&mut a, &[1, 2]);
        let mut b = held(&mut pages, &tokens);
        pages.remember(&mut b, &tokens[..2 * collides]);
        let full = &tokens[2 * collides..][..2];
        pages.known.insert(hash(b.name, full), a.name);
        let (before, found) = (b.clone(), pages.find(&tokens).contents.len());
        pages.remember(&mut b, &tokens);
        assert_eq!((b.pages, found), (before.pages, collides), "{full:?} is not the content of page 0");
        assert_eq!(b.known, collides, "it is not cached");
    }
}

#[test]
fn what_follows_is_evicted_before_the_prefix() {
    let mut pages = sized(3, 2);
    let tokens = [1, 2, 3, 4, 5, 6];
    let mut a = held(&mut pages, &tokens);
    pages.remember(&mut a, &tokens);
    pages.give_back(&mut a);
    let mut other = held(&mut pages, &[9, 9]);
    assert_eq!(pages.revive(&[1, 2, 3, 4, 5, 6, 7]).pages.len(), 2);
    pages.give_back(&mut other);
}

#[test]
fn pages_that_leave_the_window_are_released_and_revived() {
    let mut pages = windowed(16, 2, (3, 4));
    let tokens: Vec<u32> = (1..=12).collect();
    let mut a = PageList::default();
    for computed in [4, 5, 6, 8, 11] {
        assert!(pages.grow(&mut a, computed, computed));
        pages.remember(&mut a, &tokens[..computed]);
        // the next token sees two more before it
        let first = (computed - 2) / 2;
        assert_eq!(a.released, first, "after {computed}");
        assert!(a.window_pages[..first].iter().all(|page| *page == 0));
        pages.check([&a]).unwrap();
    }
    assert_eq!((pages.free(), pages.window_counts()), (10, [2, 2, 4]));
    // ten tokens, of which the window has the last two
    assert_eq!(pages.need(&tokens, true), need(1, 1), "a page of each is shared");
    let b = pages.revive(&tokens);
    assert_eq!((b.pages.len(), b.released, b.window_pages[4]), (5, 4, a.window_pages[4]));
    let c = pages.revive(&tokens[..7]);
    assert_eq!((c.pages.len(), c.released), (3, 2), "its window page is free and not yet used again");
    pages.check([&a, &b, &c]).unwrap();
}

#[test]
fn a_prefix_whose_window_is_lost_is_found_as_far_as_one_is_there() {
    let mut pages = windowed(16, 2, (5, 5));
    let tokens: Vec<u32> = (1..=14).collect();
    let mut a = PageList::default();
    for computed in (2..=12).step_by(2) {
        assert!(pages.grow(&mut a, computed, computed));
        pages.remember(&mut a, &tokens[..computed]);
    }
    pages.give_back(&mut a);
    assert_eq!(pages.revive(&tokens).pages.len(), 6);

    let mut pages = windowed(16, 2, (3, 5));
    let mut a = held(&mut pages, &tokens[..8]);
    pages.remember(&mut a, &tokens[..6]); // pages 0 to 2 have a content
    pages.give_back(&mut a);
    let mut other = PageList::default();
    // the two pages without a content, and the one that was released first
    assert!(pages.grow(&mut other, 6, 6));
    assert_eq!(pages.window_counts(), [2, 2, 5]);
    let b = pages.revive(&tokens[..5]);
    assert_eq!((b.pages.len(), b.released), (2, 1));
    assert!(pages.grow(&mut other, 8, 8)); // the only free page, which was the third one's
    let c = pages.revive(&tokens);
    assert_eq!((c.pages.len(), c.released), (2, 1), "the third page is lost");
    pages.check([&other, &b, &c]).unwrap();
}

#[test]
fn a_content_that_is_lost_is_lost_in_the_window_too() {
    let mut pages = windowed(2, 2, (9, 3));
    let tokens = [1, 2, 3];
    let mut a = held(&mut pages, &tokens);
    pages.remember(&mut a, &tokens);
    pages.give_back(&mut a);
    assert_eq!((pages.cached(), pages.window_counts()), (1, [3, 1, 3]));
    let b = held(&mut pages, &[7, 8, 9]); // both pages
    assert_eq!((pages.cached(), pages.window_counts()), (0, [1, 0, 3]));
    pages.check([&b]).unwrap();
}

#[test]
fn a_longer_prefix_is_taken_only_if_its_window_is_free() {
    let tokens: Vec<u32> = (1..=9).collect();
    for (window_pages, longer) in [(6, true), (5, false)] {
        let mut pages = windowed(16, 2, (5, window_pages));
        let mut late = PageList::default();
        assert!(pages.grow(&mut late, 9, 1));
        let mut first = held(&mut pages, &tokens[..6]);
        pages.remember(&mut first, &tokens[..6]);
        pages.give_back(&mut first);
        let mut other = PageList::default();
        assert!(pages.grow(&mut other, 4, 4)); // leaves three or two pages of the window
        pages.revive_longer(&mut late, &tokens);
        assert_eq!(late.prefix(), if longer { 3 } else { 0 });
        assert!(pages.covers(&late, 9, late.prefix() * 2 + 1));
        pages.check([&late, &other]).unwrap();
    }
}
