//! Properties of parsing, on random and hostile answers.

use proptest::prelude::*;
use serde_json::Value;
use tern_text::{CallForm, Markup};

use crate::elements::{
    APERTUS, CODER, DSML, GEMMA, GLM, GLM_FLASH, LFM, LLAMA_4, MINIMAX, NESTED, OLMO, SEED, SOLAR, XTML,
};
use crate::{
    DEEPSEEK, FUNCTIONARY, GENERIC, HARMONY, HERMES, KIMI, LLAMA, MISTRAL, NEMO, THINK, Whole, parse, written,
};

const ALL: [&str; 24] = [
    THINK,
    HERMES,
    LLAMA,
    NEMO,
    MISTRAL,
    GENERIC,
    HARMONY,
    DEEPSEEK,
    KIMI,
    CODER,
    SEED,
    GLM,
    GLM_FLASH,
    MINIMAX,
    NESTED,
    DSML,
    XTML,
    GEMMA,
    LFM,
    OLMO,
    LLAMA_4,
    APERTUS,
    SOLAR,
    FUNCTIONARY,
];

fn markups() -> impl Strategy<Value = Markup> {
    prop::sample::select(ALL.to_vec()).prop_map(|text| Markup {
        reasoning: Markup::of(text).reasoning.or(Markup::of(THINK).reasoning),
        ..Markup::of(text)
    })
}

/// Pieces of markup and JSON of the style, whole and in parts, and text.
fn hostile(markup: &Markup) -> impl Strategy<Value = Vec<String>> + use<> {
    let json = [
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        ":",
        ",",
        ";",
        " ",
        "\n",
        "name",
        "\"name\": \"f\"",
        "arguments",
        "{}",
        "null",
        "\"arguments\": {",
        "\"parameters\": \"{}\"",
        "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
        "7",
        "é",
        "日本",
        "<",
    ];
    let mut words: Vec<String> = markup.texts(true).into_iter().chain(json).map(String::from).collect();
    let texts = markup.calls.map(|style| style.texts());
    words.extend(
        texts
            .into_iter()
            .flat_map(|t| [t.open, t.before_name, t.before_arguments, t.after_arguments, t.close]),
    );
    let halves: Vec<String> =
        words.iter().map(|word| word.chars().take(word.chars().count() / 2).collect()).collect();
    words.extend(halves);
    prop::collection::vec(prop::sample::select(words), 0..24)
}

/// Divides a text into pieces of these lengths in characters.
fn cut<'a>(text: &'a str, sizes: &[usize]) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    for &size in sizes.iter().cycle().take(text.len()) {
        let at = rest.char_indices().nth(size).map_or(rest.len(), |(at, _)| at);
        let (piece, after) = rest.split_at(at);
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_result_does_not_depend_on_the_pieces(
        (markup, words) in markups().prop_flat_map(|markup| (Just(markup), hostile(&markup))),
        sizes in prop::collection::vec(1..9_usize, 1..6),
        inside in any::<bool>(),
        tools in any::<bool>(),
    ) {
        let text = words.concat();
        let prompt = if inside { markup.reasoning.map_or("", |style| style.begin) } else { "" };
        let whole = parse(&markup, prompt, tools, [text.as_str()]);
        prop_assert_eq!(&parse(&markup, prompt, tools, cut(&text, &sizes)), &whole);
        if !tools {
            prop_assert!(whole.calls.is_empty());
        }
    }

    #[test]
    fn written_calls_are_parsed(
        markup in markups(),
        reasoning in "[a-z<{é\"]{1,5}( [a-z\n]{1,5}[.])?",
        content in "([a-zé\"]{1,5}( [a-z<\n]{0,5}[.])?)?",
        calls in prop::collection::vec(("[a-z_]{1,9}", "[a-z\\\\\"{}<>日\n]{0,9}"), 0..3),
        sizes in prop::collection::vec(1..9_usize, 1..6),
    ) {
        // the types of this tool's arguments are known
        let tagged = matches!(markup.calls.map(|style| style.form), Some(CallForm::Tagged(_)));
        let recipients = markup.channels.is_some_and(|channels| channels.recipients);
        let calls: Vec<_> = calls.into_iter().map(|(name, text)| (if tagged || recipients { "weather".into() } else { name }, text)).collect();
        let object = |text: &String| serde_json::json!({"text": text, "n": [1.5, null]}).to_string();
        let calls: Vec<(String, String)> = calls.iter().map(|(name, text)| (name.clone(), object(text))).collect();
        let style = markup.reasoning.unwrap();
        let mut text = format!("{}\n{reasoning}\n{}\n\n", style.begin, style.end);
        let mut want = Whole { reasoning, ..Whole::default() };
        if let Some(style) = markup.calls && !calls.is_empty() {
            if !style.bare {
                text += &content;
                want.content = content;
            }
            text += markup.channels.map_or("", |channels| if recipients { channels.start } else { channels.call });
            text += &written(&style, &calls);
            want.calls = calls;
        } else {
            text += &content;
            want.content = content;
        }
        let value = |(name, text): &(String, String)| (name.clone(), serde_json::from_str::<Value>(text).ok());
        let parsed = parse(&markup, "", true, cut(&text, &sizes));
        prop_assert_eq!((&parsed.reasoning, &parsed.content), (&want.reasoning, &want.content));
        let calls = |whole: &Whole| whole.calls.iter().map(value).collect::<Vec<_>>();
        prop_assert_eq!(calls(&parsed), calls(&want));
    }
}

#[test]
fn hostile_answers_take_linear_time() {
    let start = std::time::Instant::now();
    for text in
        [HERMES, GENERIC, MISTRAL, HARMONY, DEEPSEEK, CODER, GLM, DSML, GEMMA, LFM, NESTED, FUNCTIONARY]
    {
        let markup = Markup { reasoning: Markup::of(THINK).reasoning, ..Markup::of(text) };
        let texts = markup.calls.unwrap().texts();
        let start =
            markup.channels.filter(|channels| channels.recipients).map_or("", |channels| channels.start);
        let begin = [start, &texts.open, &texts.before_name].concat();
        for unit in [
            " ",
            "<",
            "{\"a\":[",
            "{\"name\": ",
            "a='",
            "a:[",
            &begin,
            &format!("{begin}f{}", texts.before_arguments),
        ] {
            let text = unit.repeat((1 << 16) / unit.len());
            for prompt in ["", "<think>"] {
                parse(&markup, prompt, true, [text.as_str()]);
                parse(&markup, prompt, true, cut(&text, &[1]));
                let begun =
                    parse(&markup, prompt, true, [begin.as_str()].into_iter().chain(cut(&text, &[2])));
                assert!(begun.reasoning.len() + begun.content.len() <= text.len() + begin.len());
            }
        }
    }
    // a guard against quadratic time, which would take many minutes
    assert!(start.elapsed() < std::time::Duration::from_secs(60), "{:?}", start.elapsed());
}
