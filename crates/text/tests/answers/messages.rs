//! Answers of several messages, whose headers tell what each is: harmony.

use tern_text::Markup;

use crate::{FUNCTIONARY, HARMONY, parse, read, said};

const THINK: &str = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
const ARGUMENTS: &str = r#"{"a": "<|end|>"}"#;

#[test]
fn harmony() {
    let markup = Markup::of(HARMONY);
    let harmony = |answer: &str| read(&markup, "<|start|>assistant", answer);
    assert_eq!(harmony(&format!("{THINK}<|channel|>final<|message|>Hi<|return|>")), said("Hm.", "Hi", &[]));
    assert_eq!(harmony("<|channel|>final <|constrain|>json<|message|>{}"), said("", "{}", &[]));
    assert_eq!(harmony("Hi <|message|>"), said("", "Hi", &[]));
    let call = said("Hm.", "", &[("f", ARGUMENTS)]);
    for header in [
        "<|channel|>commentary to=functions.f <|constrain|>json",
        " to=functions.f<|channel|>commentary json",
        "<|channel|>analysis to=functions.f <|constrain|>json",
        "<|channel|>commentary to=functions.f<|channel|>commentary",
    ] {
        assert_eq!(harmony(&format!("{THINK}{header}<|message|>{ARGUMENTS}<|call|>")), call, "{header}");
        assert_eq!(harmony(&format!("{THINK}{header}<|message|>{ARGUMENTS}")), call, "{header}");
        let two = harmony(&format!(
            "{THINK}{header}<|message|>{ARGUMENTS}<|call|>{THINK}{header}<|message|>{{}}<|call|>"
        ));
        assert_eq!(two, said("Hm.Hm.", "", &[("f", ARGUMENTS), ("f", "{}")]), "{header}");
    }
    let preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant";
    assert_eq!(harmony(&format!("{preamble}{THINK}")), said("Hm.", "I look.", &[]));
    assert_eq!(
        harmony(&format!("{THINK}{preamble}<|channel|>commentary to=functions.f<|message|>{{}}")),
        said("Hm.", "I look.", &[("f", "{}")])
    );
    // a call of a tool that is no function, and a call without tools
    assert_eq!(harmony("<|channel|>analysis to=python code<|message|>1<|end|>"), said("1", "", &[]));
    let without = parse(&markup, "", false, ["<|channel|>commentary to=functions.f<|message|>{}<|call|>"]);
    assert_eq!(without, said("", "{}", &[]));
}

#[test]
fn malformed_headers_are_content() {
    let markup = Markup::of(HARMONY);
    for no_header in ["to=day", "<|start|>ass", "<|chan", "< to=f"] {
        assert_eq!(read(&markup, "", no_header), said("", no_header, &[]));
    }
    // truncated
    assert_eq!(read(&markup, "", " to=functions.f<|channel|>comm"), said("", "", &[]));
    for header in ["<|channel|>analysis", "<|start|>assistant", "<|start|>assistant to=functions.f"] {
        assert_eq!(read(&markup, "", &format!("a {header}")), said("", "a", &[]));
    }
    assert_eq!(read(&markup, "", "<|channel|>a<|end|>b"), said("", "<|channel|>ab", &[]));
    let long = format!("<|channel|>{}<|message|>", "x".repeat(300));
    assert_eq!(read(&markup, "", &long).content, long.strip_suffix("<|message|>").unwrap());
    let no_json = "<|channel|>commentary to=functions.f<|message|>oops";
    assert_eq!(read(&markup, "", no_json), said("", no_json, &[]));
}

#[test]
fn messages_to_recipients() {
    let markup = Markup::of(
        "assistant to=self<|message|> <|eom|> <|start|>assistant <atem:function_calls> <atem:invoke name=",
    );
    let answer = " to=self<|message|>Hm.<|eom|><|start|>assistant to=f<|message|><atem:function_calls>\n\
                  <atem:invoke name=\"f\">\n<atem:parameter name=\"a\">1</atem:parameter>\n</atem:invoke>\n\
                  </atem:function_calls><|eom|><|start|>assistant to=user<|message|>Done.<|eot|>";
    assert_eq!(read(&markup, "<|start|>assistant", answer), said("Hm.", "Done.", &[("f", "{\"a\": 1}")]));
}

/// functionary: a header is the name of a tool, or `all`.
#[test]
fn recipients() {
    let markup = Markup::of(FUNCTIONARY);
    let prompt = "<|start_header_id|>assistant<|end_header_id|>\n\n>>>";
    let functionary = |answer: &str| read(&markup, prompt, answer);
    let weather = r#"{"city": ">>>all\n"}"#;
    for (answer, want) in [
        ("all\nHello\nall\n", said("", "Hello\nall\n", &[])),
        ("weather\n{}", said("", "", &[("weather", "{}")])),
        (
            &*format!("weather\n{weather}>>>weather\n{{}}"),
            said("", "", &[("weather", weather), ("weather", "{}")]),
        ),
        (&*format!("all\nI look.\n>>>weather\n{weather}"), said("", "I look.", &[("weather", weather)])),
        (&*format!("weather\n{weather}\n>>>all\nDone."), said("", "Done.", &[("weather", weather)])),
        ("all\n>>> print(1)\n>>>>weathers\n>>", said("", ">>> print(1)\n>>>>weathers\n>>", &[])),
        ("weather\n{\"city\": \"Be", said("", "", &[("weather", "{\"city\": \"Be")])),
        ("Hello", said("", "Hello", &[])),
        ("al", said("", "al", &[])),
        ("weather\nis fine", said("", "weather\nis fine", &[])),
        ("nobody\n{}", said("", "nobody\n{}", &[])),
        ("all\nHi>>>wea", said("", "Hi", &[])),
        // whatever the template says
        ("{\"name\": \"weather\", \"arguments\": {}}", said("", "", &[("weather", "{}")])),
    ] {
        assert_eq!(functionary(answer), want, "{answer:?}");
    }
    let without = parse(&markup, prompt, false, ["all\nHi >>>weather\n{}"]);
    assert_eq!(without, said("", "Hi >>>weather\n{}", &[]));
}
