//! The breakers of DRY: texts that end a repetition, as the sequences of tokens that contain them.

use std::sync::Arc;

use tern_engine::Breakers;
use tern_text::Tokenizer;

use crate::Model;

/// Tokens of a breaker after its first one at most.
const MAX_REST: usize = 20;

impl Model {
    /// What ends a repetition if a request says nothing else.
    pub const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

    /// The sequences of tokens that contain one of these texts.
    pub fn breakers<'t>(&self, texts: impl IntoIterator<Item = &'t str>) -> Arc<Breakers> {
        Arc::new(find(self.tokenizer(), texts))
    }
}

/// A token that contains a text ends a repetition alone; one that ends with the beginning of a text does so
/// if the rest of the text follows, as it is tokenized alone.
fn find<'t>(tokenizer: &Tokenizer, texts: impl IntoIterator<Item = &'t str>) -> Breakers {
    let mut breakers = Breakers::default();
    for text in texts.into_iter().filter(|text| !text.is_empty()) {
        for id in 0..tokenizer.vocab_size() as u32 {
            let (token, text) = (tokenizer.token_bytes(id, true), text.as_bytes());
            if token.windows(text.len()).any(|part| part == text) {
                breakers.add(id, vec![]);
                continue;
            }
            for length in
                (1..text.len().min(token.len() + 1)).filter(|&length| token.ends_with(&text[..length]))
            {
                let Ok(rest) = std::str::from_utf8(&text[length..]) else { continue };
                let mut rest = tokenizer.encode(rest, false, false);
                rest.truncate(MAX_REST);
                breakers.add(id, rest);
            }
        }
    }
    breakers
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tern_engine::Dry;

    use super::*;

    #[test]
    fn repetitions_are_penalised_as_by_llama_cpp() {
        let model = Model::load("stories").unwrap();
        // recorded by scripts/oracle/llama/samplers.py
        let cases: Vec<Value> = serde_json::from_str(include_str!("../tests/dry.json")).unwrap();
        let mut penalised = 0;
        for case in &cases {
            let given = &case["parameters"];
            let texts = given["breakers"].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
            let dry = Dry {
                multiplier: given["multiplier"].as_f64().unwrap() as f32,
                base: given["base"].as_f64().unwrap() as f32,
                allowed_length: given["allowed_length"].as_u64().unwrap() as usize,
                last_n: given["last_n"].as_u64().unwrap() as usize,
                breakers: model.breakers(texts),
            };
            let tokens: Vec<u32> =
                case["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            let got = dry.penalties(&tokens);
            let want = case["penalties"].as_array().unwrap();
            assert_eq!(got.len(), want.len(), "{case}: {got:?}");
            for ((id, penalty), want) in got.iter().zip(want) {
                assert_eq!(u64::from(*id), want[0].as_u64().unwrap(), "{case}");
                assert!((f64::from(*penalty) - want[1].as_f64().unwrap()).abs() < 1e-3, "{case}");
                penalised += 1;
            }
        }
        assert!(penalised > 20);
    }
}
