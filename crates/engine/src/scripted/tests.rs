//! What the scripted runner detects.

use tern_graph::{Sampling, Slice};

use super::*;
use crate::{StateCapacity, WindowPages};

const PAIRS: Capacity =
    Capacity { pages: 8, page_len: 2, max_tokens: 8, max_outputs: 8, window: None, state: None };

fn entry(tokens: &[u32], position: usize, pages: &[u32]) -> Entry {
    let slice = Slice::new(tokens.len(), position, pages.to_vec());
    let want = Want::Tokens(vec![Sample::default()], None);
    Entry { id: 1, tokens: tokens.to_vec(), slice, want, carried: None }
}

fn next(runner: &mut ScriptedRunner, entries: Vec<Entry>) -> Result<Vec<u32>, String> {
    let out = runner.step(&Batch { entries, ..Batch::default() }).map_err(|e| e.to_string())?;
    let id = |answer| if let Answer::Tokens(s) = answer { s.first().map(|s| s.id) } else { None };
    Ok(out.into_iter().filter_map(id).collect())
}

#[test]
fn chunks_on_any_pages_give_the_same_token_and_another_history_another() {
    let whole = next(&mut ScriptedRunner::new(1000, PAIRS), vec![entry(&[1, 2, 3, 4, 5], 0, &[0, 1, 2])]);
    let runner = &mut ScriptedRunner::new(1000, PAIRS);
    next(runner, vec![entry(&[1, 2, 3], 0, &[7, 3])]).unwrap();
    assert_eq!(next(runner, vec![entry(&[4, 5], 3, &[7, 3, 4])]), whole);
    assert_ne!(next(runner, vec![entry(&[5, 5], 3, &[7, 3, 4])]), whole);
}

#[test]
fn a_slot_never_written_a_missing_page_and_a_shared_page_are_refused() {
    let runner = &mut ScriptedRunner::new(1000, PAIRS);
    let mut message = |entries| next(runner, entries).unwrap_err();
    assert_eq!(message(vec![entry(&[1], 1, &[0])]), "request 1: position 0 was never written");
    assert_eq!(message(vec![entry(&[1], 2, &[0])]), "request 1: no page for position 2");
    let longer = Entry { tokens: vec![1, 2], ..entry(&[1], 0, &[0]) };
    assert_eq!(message(vec![longer]), "request 1: a slice of 1 for 2 tokens");
    let twice = vec![entry(&[1], 0, &[5]), entry(&[1], 0, &[5])];
    assert_eq!(message(twice), "request 1: page 5 is written in this batch already");
}

#[test]
fn a_window_page_that_others_have_overwritten_is_detected_while_it_is_seen() {
    let capacity = Capacity { window: Some(WindowPages { tokens: 3, pages: 4 }), ..PAIRS };
    let runner = &mut ScriptedRunner::new(1000, capacity);
    let with = |entry: Entry, window: &[u32]| Entry {
        slice: Slice { window_pages: window.to_vec().into(), ..entry.slice },
        ..entry
    };
    let mut step = |entry, window| next(runner, vec![with(entry, window)]).map(|_| ());
    step(entry(&[1, 2, 3, 4], 0, &[0, 1]), &[0, 1]).unwrap();
    step(entry(&[7, 8], 0, &[4]), &[0]).unwrap(); // another sequence takes the first page
    step(entry(&[5], 4, &[0, 1, 2]), &[0, 1, 2]).unwrap(); // positions 2 to 4
    let other = "request 1: position 1 of the window holds something else";
    assert_eq!(step(entry(&[4, 5], 3, &[0, 1, 2]), &[0, 1, 2]).unwrap_err(), other);
    let none = "request 1: no window page for position 4";
    assert_eq!(step(entry(&[5], 4, &[0, 1, 2]), &[0, 1]).unwrap_err(), none);
}

#[test]
fn a_state_of_other_tokens_or_of_another_position_is_detected() {
    let state = Some(StateCapacity { slots: 4, bytes: 1 });
    let runner = &mut ScriptedRunner::new(1000, Capacity { state, ..PAIRS });
    let with = |entry: Entry, read, write| Entry {
        slice: Slice { state: Some(StateSlots { read, write }), ..entry.slice },
        ..entry
    };
    let whole = next(runner, vec![with(entry(&[1, 2, 3, 4], 0, &[0, 1]), None, 0)]);
    let mut step = |entries| next(runner, entries);
    assert_eq!(
        step(vec![with(entry(&[3, 4], 2, &[0, 1]), None, 0)]).unwrap_err(),
        "request 1: no state is read"
    );
    assert_eq!(step(vec![entry(&[1], 0, &[2])]).unwrap_err(), "request 1: no state slots");
    let never = "request 1: state slot 3 is read and was never written";
    assert_eq!(step(vec![with(entry(&[3], 2, &[0, 1]), Some(3), 1)]).unwrap_err(), never);
    step(vec![with(entry(&[1, 2], 0, &[2]), None, 1)]).unwrap();
    // a snapshot after two tokens is no snapshot after three or one
    let wrong = "request 1: state slot 1 is not the state before position 3";
    assert_eq!(step(vec![with(entry(&[4], 3, &[0, 1]), Some(1), 2)]).unwrap_err(), wrong);
    let wrong = "request 1: state slot 1 is not the state before position 1";
    assert_eq!(step(vec![with(entry(&[2], 1, &[2]), Some(1), 2)]).unwrap_err(), wrong);
    assert_eq!(step(vec![with(entry(&[3, 4], 2, &[2, 3]), Some(1), 2)]), whole);
    let other = Entry { id: 2, ..entry(&[5], 0, &[5]) };
    let both = vec![with(entry(&[3, 4], 2, &[2, 3]), Some(1), 2), with(other, None, 1)];
    assert_eq!(step(both).unwrap_err(), "request 2: request 1 uses state slot 1, too");
}

#[test]
fn a_carried_token_is_the_sample_of_the_batch_before() {
    let plus = || ScriptedRunner::answering(50, PAIRS, |history, _| history.last().map(|t| t + 1));
    let batch = |entries| Batch { entries, ..Batch::default() };
    let first = batch(vec![entry(&[3], 0, &[0]), entry(&[7], 0, &[1])]);
    let second = batch(vec![Entry { carried: Some(1), ..entry(&[0], 1, &[1]) }]);
    let runner = &mut plus().running_ahead();
    runner.submit(&first).unwrap();
    runner.submit(&second).unwrap();
    assert_eq!(runner.submit(&second).unwrap_err().to_string(), "2 batches are in flight");
    let id = |answer: &Answer| if let Answer::Tokens(s) = answer { s[0].id } else { 0 };
    let mut collect = || runner.collect().map(|answers| answers.iter().map(id).collect::<Vec<_>>());
    assert_eq!((collect().unwrap(), collect().unwrap()), (vec![4, 8], vec![9]));
    assert_eq!(collect().unwrap_err().to_string(), "no batch is in flight");
    runner.submit(&second).unwrap_err();
    assert!(!plus().runs_ahead());
}

#[test]
fn the_draw_counts_only_with_a_temperature() {
    let runner = &mut ScriptedRunner::new(1000, PAIRS);
    let mut with = |temperature, draw| {
        let sampling = Sampling { temperature, ..Sampling::default() };
        let want = Want::Tokens(vec![Sample { draw, ..sampling.into() }], None);
        next(runner, vec![Entry { want, ..entry(&[1], 0, &[0]) }])
    };
    assert_eq!(with(0.0, 0.1), with(0.0, 0.9));
    assert_ne!(with(1.0, 0.1), with(1.0, 0.9));
}
