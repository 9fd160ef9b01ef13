//! Calls whose arguments are elements or literals: their values become JSON of the type
//! that the schema gives them.

use tern_text::{AnswerParser, Markup, Part};

use crate::{Whole, parse, read, said, tools};

pub(crate) const CODER: &str = "<tool_call>\n<function=f>\n<parameter=a>\n</parameter> tool_calls </think>";
pub(crate) const SEED: &str = "<seed:tool_call> <function= <parameter= tool_calls </seed:think>";
pub(crate) const GLM: &str = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value> tool_calls </think>";
pub(crate) const GLM_FLASH: &str = "<tool_call>f<arg_key>a</arg_key><arg_value> tool_calls </think>";
pub(crate) const MINIMAX: &str = "<minimax:tool_call> <invoke name= <parameter name= tool_calls </think>";
pub(crate) const NESTED: &str = "]<]minimax[>[ '<invoke name=' tool_calls </mm:think>";
pub(crate) const DSML: &str = "<｜DSML｜function_calls> tool_calls </think>";
pub(crate) const XTML: &str = "'<|open|>' open_tag('call' open_tag('think') tool_calls";
pub(crate) const GEMMA: &str = "<|tool_call>call:f{a:<|\"|>b<|\"|>}<tool_call|> tool_calls <channel|>";
pub(crate) const LFM: &str = "<|tool_call_start|>[ tool_calls </think>";
pub(crate) const OLMO: &str = "<function_calls> </function_calls> tool_calls";
pub(crate) const LLAMA_4: &str = "[func_name1(params_name1= tool_calls";
pub(crate) const APERTUS: &str = "<|tools_prefix|> <|tools_suffix|> tool_calls <|inner_suffix|>";
pub(crate) const SOLAR: &str = "<|tool_call:begin|> <|tool_call:name|> <|tool_call:args|> \
                               <|begin|>assistant<|think|> <|content|> <|end|>";

const ARGUMENTS: &str =
    r#"{"city": "Zürich", "days": 3, "deep": {"a": [1, null]}, "ok": true, "text": "12"}"#;

fn calls() -> Whole {
    said("", "", &[("weather", ARGUMENTS), ("now", "{}")])
}

#[test]
fn elements_on_lines() {
    let markup = Markup::of(CODER);
    let weather = "<tool_call>\n<function=weather>\n<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n3\n\
                   </parameter>\n<parameter=deep>\n{\"a\": [1, null]}\n</parameter>\n<parameter=ok>\nTrue\n</parameter>\n\
                   <parameter=text>\n12\n</parameter>\n</function>\n</tool_call>";
    let now = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    assert_eq!(read(&markup, "", &format!("{weather}\n{now}")), calls());
    // without the outer marker, which models forget
    let inner = weather.strip_prefix("<tool_call>\n").unwrap();
    assert_eq!(read(&markup, "", &format!("{inner}\n{now}\n")), calls());
    let around =
        read(&markup, "", &format!("<think>Hm.</think>I look.\n{weather}{now} So, [done].</tool_call>"));
    assert_eq!(
        around,
        Whole { reasoning: "Hm.".into(), content: "I look.So, [done].</tool_call>".into(), ..calls() }
    );
    let text = |inner: &str| format!("<function=weather><parameter=text>{inner}</parameter></function>");
    for (value, want) in [
        ("\na\n\nb\n", r#""a\n\nb""#),
        ("\n\n\n", r#""\n""#),
        ("a", r#""a""#),
        ("", r#""""#),
        ("\n</tool_call>\"\\</function></para\n", r#""</tool_call>\"\\</function></para""#),
    ] {
        let want = format!("{{\"text\": {want}}}");
        assert_eq!(read(&markup, "", &text(value)), said("", "", &[("weather", &want)]), "{value:?}");
    }
    // JSON between the same markers
    let json = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>x";
    assert_eq!(read(&markup, "", json), said("", "x", &[("now", "{}")]));
    // strings are streamed
    let mut parser = AnswerParser::new(&markup, "", tools());
    parser.push("<function=weather>\n<parameter=city>\n");
    assert_eq!(parser.push("Zür"), [Part::CallArguments { index: 0, text: "\"Zür".into() }]);
    assert_eq!(parser.push("ich\n</par"), [Part::CallArguments { index: 0, text: "ich".into() }]);
}

#[test]
fn malformed_elements_are_content() {
    let markup = Markup::of(CODER);
    for no_call in [
        "Write <tool_call> first.",
        "<tool_call>\n<function=",
        "<tool_call>\n<function>",
        "<function=f> is <parameter",
        "<function=f g>\n</function>",
        "a <function=f>\nx",
    ] {
        assert_eq!(read(&markup, "", no_call), said("", no_call, &[]));
    }
    // what is no argument ends the arguments and is not lost
    for (answer, want) in [
        (
            "<function=f>\n<parameter=a>\n1\n</parameter>\nx</function>",
            said("", "x</function>", &[("f", "{\"a\": 1}")]),
        ),
        ("<function=f>\n<parameter=a>\n1\n</parameter>", said("", "", &[("f", "{\"a\": 1")])),
        ("<function=f>\n<parameter=a>\n12", said("", "", &[("f", "{\"a\": 12")])),
        ("<function=weather>\n<parameter=text>\nso\n", said("", "", &[("weather", "{\"text\": \"so\\n")])),
        ("<function=weather>\n<parameter=te", said("", "", &[("weather", "{")])),
        ("<function=f>\n", said("", "", &[("f", "")])),
        ("<tool_call>\n<function=f>\n</tool_call>x", said("", "x", &[("f", "{}")])),
    ] {
        assert_eq!(read(&markup, "", answer), want, "{answer:?}");
    }
    let long = format!("<function=f>\n<parameter={}", "x".repeat(600));
    assert_eq!(read(&markup, "", &long).calls, [("f".to_string(), "{}".to_string())]);
    let without_tools = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
    assert_eq!(parse(&markup, "", false, [without_tools]), said("", without_tools, &[]));
}

#[test]
fn elements_of_other_styles() {
    for (template, answer) in [
        (
            SEED,
            "<seed:tool_call>\n<function=weather>\n<parameter=city>Zürich</parameter>\n<parameter=days>3</parameter>\n\
             <parameter=deep>{'a': [1, None]}</parameter>\n<parameter=ok>True</parameter>\n<parameter=text>12</parameter>\n\
             </function>\n</seed:tool_call>\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        ),
        (
            GLM,
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n<arg_key>days</arg_key>\n\
             <arg_value>3</arg_value>\n<arg_key>deep</arg_key><arg_value>{\"a\": [1, null]}</arg_value>\n<arg_key>ok</arg_key>\n\
             <arg_value>true</arg_value>\n<arg_key>text</arg_key>\n<arg_value>12</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        ),
        (
            GLM_FLASH,
            "<tool_call>weather<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value><arg_key>days</arg_key>\
             <arg_value>3</arg_value><arg_key>deep</arg_key><arg_value>{\"a\": [1, null]}</arg_value><arg_key>ok</arg_key>\
             <arg_value>true</arg_value><arg_key>text</arg_key><arg_value>12</arg_value></tool_call><tool_call>now</tool_call>",
        ),
        (
            MINIMAX,
            "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Zürich</parameter>\n\
             <parameter name=\"days\">3</parameter>\n<parameter name=\"deep\">{\"a\": [1, null]}</parameter>\n\
             <parameter name=\"ok\">true</parameter>\n<parameter name=\"text\">12</parameter>\n</invoke>\n\
             <invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
        ),
        (
            NESTED,
            "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"weather\">]<]minimax[>[<city>Zürich]<]minimax[>[</city>\
             ]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[<deep>]<]minimax[>[<a>]<]minimax[>[<item>1\
             ]<]minimax[>[</item>]<]minimax[>[<item>null]<]minimax[>[</item>]<]minimax[>[</a>]<]minimax[>[</deep>\
             ]<]minimax[>[<ok>true]<]minimax[>[</ok>]<]minimax[>[<text>12]<]minimax[>[</text>]<]minimax[>[</invoke>\n\
             ]<]minimax[>[<invoke name=\"now\">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        ),
        (
            DSML,
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n\
             <｜DSML｜parameter name=\"city\" string=\"true\">Zürich</｜DSML｜parameter>\n\
             <｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n\
             <｜DSML｜parameter name=\"deep\" string=\"false\">{\"a\": [1, null]}</｜DSML｜parameter>\n\
             <｜DSML｜parameter name=\"ok\" string=\"false\">true</｜DSML｜parameter>\n\
             <｜DSML｜parameter name=\"text\" string=\"true\">12</｜DSML｜parameter>\n</｜DSML｜invoke>\n\
             <｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        ),
        (
            XTML,
            "<|open|>tools<|sep|><|open|>call tool=\"weather\" index=\"1\"<|sep|>\
             <|open|>argument key=\"city\" type=\"string\"<|sep|>Zürich<|close|>argument<|sep|>\
             <|open|>argument key=\"days\" type=\"number\"<|sep|>3<|close|>argument<|sep|>\
             <|open|>argument key=\"deep\" type=\"object\"<|sep|>{\"a\": [1, null]}<|close|>argument<|sep|>\
             <|open|>argument key=\"ok\" type=\"boolean\"<|sep|>true<|close|>argument<|sep|>\
             <|open|>argument key=\"text\" type=\"string\"<|sep|>12<|close|>argument<|sep|><|close|>call<|sep|>\
             <|open|>call tool=\"now\" index=\"12\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        ),
        (
            GEMMA,
            "<|tool_call>call:weather{city:<|\"|>Zürich<|\"|>,days:3,deep:{a:[1,None]},ok:true,text:<|\"|>12<|\"|>}\
             <tool_call|><|tool_call>call:now{}<tool_call|>",
        ),
        (
            LFM,
            "<|tool_call_start|>[weather(city='Zürich', days=3, deep={\"a\": [1, null]}, ok=True, text=\"12\"), now()]\
             <|tool_call_end|>",
        ),
        (
            OLMO,
            "<function_calls>\nweather(city='Zürich', days=3, deep={'a': [1, None]}, ok=true, text='12')\nnow()\n\
             </function_calls>",
        ),
        (LLAMA_4, "[weather(city=\"Zürich\", days=3, deep={\"a\": [1, null]}, ok=true, text='12'), now()]"),
        (
            APERTUS,
            "<|tools_prefix|>[{\"weather\": {\"city\": \"Zürich\", \"days\": 3, \"deep\": {\"a\": [1, null]}, \"ok\": true, \
             \"text\": \"12\"}}, {\"now\": {}}]<|tools_suffix|>",
        ),
        (
            SOLAR,
            "<|begin|>assistant<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>weather<|tool_call:args|>\
             {\"city\": \"Zürich\", \"days\": 3, \"deep\": {\"a\": [1, null]}, \"ok\": true, \"text\": \"12\"}<|tool_call:end|>\
             <|tool_call:begin|>b2<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|>",
        ),
    ] {
        let markup = Markup::of(template);
        assert_eq!(read(&markup, "", answer), calls(), "{template}");
        if template != LLAMA_4 {
            let around = read(&markup, "", &format!("Look: {answer} Done"));
            assert_eq!(around, Whole { content: "Look:Done".into(), ..calls() }, "{template}");
        }
    }
}

#[test]
fn malformed_literals_are_content() {
    for (template, answers) in [
        (
            GEMMA,
            &[
                "<|tool_call>call:f",
                "<|tool_call>call:f(1)",
                "<|tool_call>call:f{a}<tool_call|>",
                "<|tool_call>x",
            ][..],
        ),
        (LFM, &["<|tool_call_start|>[f", "<|tool_call_start|>[f(1)]", "<|tool_call_start|>7", "f(a=1)"]),
        (LLAMA_4, &["[f(1)]", "[1, 2]", "[see below](a=b)", "[f(a", "So: [f(a=1)]"]),
    ] {
        for no_call in answers {
            assert_eq!(read(&Markup::of(template), "", no_call), said("", no_call, &[]), "{template}");
        }
    }
    let gemma = Markup::of(GEMMA);
    for (answer, want) in [
        ("<|tool_call>call:f{a:1,b c}x", said("", "c}x", &[("f", "{\"a\": 1, \"b\": null}")])),
        ("<|tool_call>call:f{a:[1,<|\"|>so", said("", "", &[("f", "{\"a\": [1, \"so")])),
        ("<|tool_call>call:f{a:<|\"|>}<|\"|>", said("", "", &[("f", "{\"a\": \"}\"")])),
    ] {
        assert_eq!(read(&gemma, "", answer), want, "{answer:?}");
    }
}

/// Elements inside elements; `~` stands for the marker before each tag.
#[test]
fn nested_elements() {
    let markup = Markup::of(NESTED);
    let call = |inner: &str| {
        format!("~<tool_call>\n~<invoke name=\"plan\">{inner}~</invoke>\n~</tool_call>")
            .replace('~', "]<]minimax[>[")
    };
    for (inner, want) in [
        ("~<to>Bern~</to>~<n>12~</n>", r#"{"to": "Bern", "n": 12}"#),
        ("~<tags>~<item>1~</item>~<item>a b~</item>~</tags>", r#"{"tags": ["1", "a b"]}"#),
        ("~<tags>~</tags>~<where>~</where>~<to>~</to>", r#"{"tags": [], "where": {}, "to": ""}"#),
        ("~<tags>[\"x\"]~</tags>", r#"{"tags": ["x"]}"#),
        ("~<where>~<x>1.5~</x>~<zip>8000~</zip>~</where>", r#"{"where": {"x": 1.5, "zip": "8000"}}"#),
        (
            "~<item>~<item>~<x>1~</x>~</item>~<item>~<x>2~</x>~</item>~</item>",
            r#"{"item": [{"x": 1}, {"x": 2}]}"#,
        ),
        ("~<free>~<item>~<item>true~</item>~</item>~</free>", r#"{"free": [[true]]}"#),
        (
            "~<free>~<a>~<item>x~</item>~</a>\n~<b>~<a>1~</a>~</b>~</free>",
            r#"{"free": {"a": ["x"], "b": {"a": 1}}}"#,
        ),
        // a text that looks like elements, and elements that are none
        ("~<to><b>~<x>~</b></to>~</to>", r#"{"to": "<b>]<]minimax[>[<x>]<]minimax[>[</b></to>"}"#),
        ("~<free>~<a>1~</b>~</free>", r#"{"free": "]<]minimax[>[<a>1]<]minimax[>[</b>"}"#),
    ] {
        assert_eq!(read(&markup, "", &call(inner)), said("", "", &[("plan", want)]), "{inner}");
    }
    let cut = call("").split("]<]minimax[>[</invoke>").next().unwrap().to_owned();
    let cut = |inner: &str| cut.clone() + &inner.replace('~', "]<]minimax[>[");
    for (inner, want) in [
        ("~<to>Be", r#"{"to": "Be"#),
        ("~<n>1", r#"{"n": 1"#),
        ("~<tags>~<item>a~</item>~<it", r#"{"tags": "#),
        ("~<to>Bern~</to>~<n", r#"{"to": "Bern""#),
    ] {
        assert_eq!(read(&markup, "", &cut(inner)), said("", "", &[("plan", want)]), "{inner}");
    }
    let broken = read(&markup, "", &call("~<to>Bern~</to>~</n>"));
    assert_eq!(broken.calls, [("plan".to_string(), r#"{"to": "Bern"}"#.to_string())]);
    let deep = |levels: usize| {
        call(&["~<free>", &"~<a>".repeat(levels), &"~</a>".repeat(levels), "~</free>"].concat())
    };
    for levels in [2, 60, 3000] {
        let arguments = parse(&markup, "", true, [deep(levels).as_str()]).calls[0].1.clone();
        assert!(serde_json::from_str::<serde_json::Value>(&arguments).is_ok(), "{levels}");
    }
}
