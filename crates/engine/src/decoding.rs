//! Which decoding sequences are in a step while one client has more of them than another.
//!
//! A step with many sequences takes longer, and a client with one sequence would wait for all of another
//! client's in every step. If smaller steps cost little throughput, a step has one sequence of each client,
//! then the second of each, and so on; the sequences of a client take turns.

use std::collections::HashMap;

/// A sequence that could decode one token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Its index among the running ones.
    pub(crate) at: usize,
    pub(crate) client: u64,
    /// Increases with every choice: when it was chosen last.
    pub(crate) stepped: u64,
}

/// The indices of the sequences that are in the step, in the order of choice. `few(all, clients)` is how many
/// of `all` sequences of `clients` clients a step should have.
pub(crate) fn choose(mut candidates: Vec<Candidate>, few: impl Fn(usize, usize) -> usize) -> Vec<usize> {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    candidates.iter().for_each(|candidate| *counts.entry(candidate.client).or_default() += 1);
    let (least, most) = (counts.values().min().unwrap_or(&0), counts.values().max().unwrap_or(&0));
    if *most > least + 1 {
        let wanted = few(candidates.len(), counts.len()).max(counts.len());
        candidates.sort_by_key(|candidate| candidate.stepped); // stable: then in scheduling order
        let mut before: HashMap<u64, usize> = HashMap::new();
        let round = |candidate: Candidate| {
            let round = before.entry(candidate.client).or_default();
            *round += 1;
            (*round, candidate)
        };
        let mut rounds: Vec<(usize, Candidate)> = candidates.into_iter().map(round).collect();
        rounds.sort_by_key(|(round, candidate)| (*round, candidate.stepped));
        rounds.truncate(wanted);
        candidates = rounds.into_iter().map(|(_, candidate)| candidate).collect();
    }
    candidates.into_iter().map(|candidate| candidate.at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(clients: &[u64]) -> Vec<Candidate> {
        let candidate = |(at, client): (usize, &u64)| Candidate { at, client: *client, stepped: 0 };
        clients.iter().enumerate().map(candidate).collect()
    }

    fn sorted(mut chosen: Vec<usize>) -> Vec<usize> {
        chosen.sort();
        chosen
    }

    #[test]
    fn clients_with_as_many_sequences_are_in_every_step() {
        for clients in [&[1, 1, 1, 1][..], &[1, 2, 3], &[1, 1, 2], &[]] {
            let all: Vec<usize> = (0..clients.len()).collect();
            assert_eq!(choose(candidates(clients), |_, _| 1), all, "{clients:?}");
        }
    }

    #[test]
    fn the_sequences_of_a_client_with_many_take_turns() {
        let mut all = candidates(&[1, 1, 1, 1, 1, 2]);
        let (mut steps, mut stamp) = ([0; 6], 0);
        for _ in 0..10 {
            let chosen = choose(all.clone(), |all, clients| {
                assert_eq!((all, clients), (6, 2));
                3
            });
            assert_eq!(chosen.len(), 3);
            for at in chosen {
                stamp += 1;
                all[at].stepped = stamp;
                steps[at] += 1;
            }
        }
        assert_eq!(steps, [4, 4, 4, 4, 4, 10]);
        assert_eq!(sorted(choose(candidates(&[1, 1, 1, 2, 3]), |_, _| 1)), [0, 3, 4], "one of each client");
        assert_eq!(sorted(choose(candidates(&[1, 1, 1, 2]), |all, _| all)), [0, 1, 2, 3]);
    }
}
