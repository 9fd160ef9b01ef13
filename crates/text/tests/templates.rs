//! Every known chat template over every conversation, compared with Python's Jinja2.
//!
//! The templates are not part of the repository: set `TERN_TEST_DATA` to a folder that
//! has them in `templates`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tern_text::{ChatInput, ChatTemplate, TemplateError};

/// What `scripts/oracle/transformers/templates.py` recorded.
#[derive(Deserialize)]
struct Fixture {
    now: i64,
    bos: String,
    eos: String,
    conversations: BTreeMap<String, Conversation>,
    goldens: BTreeMap<String, BTreeMap<String, Golden>>,
}

#[derive(Deserialize)]
struct Conversation {
    messages: Value,
    tools: Option<Value>,
    #[serde(default = "yes")]
    add_generation_prompt: bool,
    #[serde(default)]
    kwargs: Map<String, Value>,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Golden {
    /// Length in bytes, SHA-256, first characters.
    Text(usize, String, String),
    /// The word "error".
    Refused(String),
}

impl Golden {
    /// The difference, if any.
    fn differs(&self, ours: &Result<String, TemplateError>) -> Option<String> {
        match (self, ours) {
            (Golden::Refused(_), Err(_)) => None,
            (Golden::Refused(word), Ok(text)) => Some(format!("Python says {word}, we render {text:?}")),
            (Golden::Text(..), Err(error)) => Some(format!("we refuse: {error}")),
            (Golden::Text(len, hash, head), Ok(text)) => {
                let ours: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
                (ours != *hash).then(|| {
                    let same = head.chars().zip(text.chars()).take_while(|(a, b)| a == b).count();
                    format!("{len} bytes, we {}; the same for {same}: {head:?}\n  ours {text:?}", text.len())
                })
            }
        }
    }
}

#[test]
fn templates_render_as_in_python() {
    let Some(data) = std::env::var_os("TERN_TEST_DATA") else {
        println!("skipped: templates (TERN_TEST_DATA is not set)");
        return;
    };
    let folder = Path::new(&data).join("templates");
    if !folder.is_dir() {
        println!("skipped: templates (not in TERN_TEST_DATA)");
        return;
    }
    let fixture: Fixture = serde_json::from_str(include_str!("templates.json")).unwrap();
    let mut wrong = Vec::new();
    let mut total = 0;
    for (name, goldens) in &fixture.goldens {
        let source = std::fs::read_to_string(folder.join(name)).unwrap();
        let template = ChatTemplate::new(&source, &fixture.bos, &fixture.eos);
        for (talk, golden) in goldens {
            let given = &fixture.conversations[talk];
            let input = ChatInput {
                messages: given.messages.clone(),
                tools: given.tools.clone(),
                add_generation_prompt: given.add_generation_prompt,
                now: fixture.now,
                kwargs: given.kwargs.clone(),
                ..ChatInput::default()
            };
            let ours = template.clone().and_then(|template| template.render(&input)).map(|chat| chat.text);
            total += 1;
            wrong.extend(golden.differs(&ours).map(|how| format!("{name} {talk}: {how}")));
        }
    }
    assert!(wrong.is_empty(), "{} of {total} differ\n{}", wrong.len(), wrong.join("\n"));
    println!("{total} renderings agree");
}

const CHATML: &str = "{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}
";

const LLAMA: &str = "{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('No role ' ~ message.role) }}
    {%- endif %}
    {%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}
    {{- content }}
{%- endfor %}
Today: {{ date_string }}";

/// Renders with one user message.
fn render(source: &str) -> Result<String, TemplateError> {
    let messages = json!([{"role": "user", "content": " Hi <b>&\"' "}]);
    let kwargs = json!({"flag": true, "nothing": null, "schema": {"b": 1, "items": {"x": [1, 2.5, "é"]}}});
    let kwargs = kwargs.as_object().cloned().unwrap_or_default();
    let input = ChatInput { messages, kwargs, add_generation_prompt: true, ..ChatInput::default() };
    Ok(ChatTemplate::new(source, "<s>", "</s>")?.render(&input)?.text)
}

#[test]
fn common_templates() {
    let user = "<|im_start|>user\n Hi <b>&\"' <|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(render(CHATML).unwrap(), user);
    let llama = "<s><|start_header_id|>user<|end_header_id|>\n\nHi <b>&\"'<|eot_id|>Today: 01 Jan 1970";
    assert_eq!(render(LLAMA).unwrap(), llama);
}

#[test]
fn values_are_formatted_as_in_python() {
    for (source, text) in [
        ("{{ flag }} {{ nothing }} {{ missing }}|{{ 1e16 }}", "True None |1e+16"),
        ("{{ schema }}", "{'b': 1, 'items': {'x': [1, 2.5, 'é']}}"),
        ("{{ schema|tojson }}", r#"{"b": 1, "items": {"x": [1, 2.5, "é"]}}"#),
        (
            "{{ schema|tojson(ensure_ascii=true, separators=(',', ':')) }}",
            r#"{"b":1,"items":{"x":[1,2.5,"\u00e9"]}}"#,
        ),
        ("{{ [1, {}, []]|tojson(indent=2) }}", "[\n  1,\n  {},\n  []\n]"),
        ("{{ '</script>&\"'|tojson }}", r#""</script>&\"""#),
        ("{% for k, v in schema.items() %}{{ k }},{% endfor %}", "b,items,"),
        (
            "{{ schema['items'].x[::-1] }} {{ schema.items is defined }} {{ schema.items is mapping }}",
            "['é', 2.5, 1] True False",
        ),
        ("{{ 'abcdef'[1:-1:2] }}{{ 'abc'[5:0:-1] }}{{ 'abc'[3:9:-1] }}", "bdcb"),
        ("{{ ('a' if missing) is defined }}", "False"),
        ("{{ (1, 'a') }} {{ (1,) }}", "(1, 'a') (1,)"),
        (
            "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% elif x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
            "013",
        ),
        (
            "{% set ns = namespace(a=1) %}{% for x in [1, 2] %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}",
            "4",
        ),
        (
            "{{ ' a b  c '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', maxsplit=1) }}",
            "['a', 'b', 'c']['a', 'b,c']['a,b', 'c']",
        ),
        (
            "{{ 'x'.join(['a', 'b']) }} {{ \"it's a TITLE\".title() }} {{ '%s-%d' % ('a', 3) }} {{ '{}:{}'.format(1, 'b') }}",
            "axb It'S A Title a-3 1:b",
        ),
        ("{{ messages|map(attribute='role')|join('+') }}{% if []|select %}yes{% endif %}", "useryes"),
        ("  {% generation %}\n {{- 'a' }}{% endgeneration %}\nb", "ab"),
        (
            "{% macro m(a, b='x') %}{{ a }}{{ b }}{{ later }}{% endmacro %}{% set later = 'l' %}{{ m('1') }}{{ m(b=2, a=3) }}",
            "1xl32l",
        ),
        (
            "{{ 'a\nb\n\nc'|indent(2) }}{{ 7 // 2 }}{{ -7 % 3 }}{{ 'ab' * 2 }}{{ '5'|int + 1 }}{{ 'x'|int(3) }}",
            "a\n  b\n\n  c32abab63",
        ),
    ] {
        assert_eq!(render(source).as_deref(), Ok(text), "{source}");
    }
}

#[test]
fn errors_are_exact() {
    for (source, words) in [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("\n{% if %}", "chat template, line 2: syntax error: unexpected end of block"),
        ("{{ missing.x }}", "chat template, line 1: undefined value"),
        (
            "{{ 'a' + 1 }}",
            "chat template, line 1: invalid operation: unsupported operands for +: 'string' and 'number'",
        ),
        ("{{ 'a'|nope }}", "chat template, line 1: unknown filter: no filter named 'nope'"),
        (
            "{% for x in nothing %}{% endfor %}",
            "chat template, line 1: invalid operation: 'none' object is not iterable",
        ),
        (
            "{{ messages.append(1) }}",
            "chat template, line 1: invalid operation: access to attribute 'append' of 'list' object is unsafe",
        ),
    ] {
        assert_eq!(render(source).unwrap_err().to_string(), words, "{source}");
    }
    let input =
        ChatInput { kwargs: Map::from_iter([("messages".into(), json!([]))]), ..ChatInput::default() };
    let error = ChatTemplate::new("", "", "").unwrap().render(&input).unwrap_err();
    assert_eq!(error.to_string(), "chat template variable \"messages\" cannot be replaced");
}
