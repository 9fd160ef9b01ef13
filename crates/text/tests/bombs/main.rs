//! Short templates that would be expensive to render: each fails quickly and with little memory.

mod bounded;
mod random;

use serde_json::json;
use tern_text::{Cancelled, ChatInput, ChatTemplate, TemplateError};

use bounded::{bounded, render};

/// `{% set ns.x = .. %}` repeatedly.
fn again(times: usize, first: &str, step: &str) -> String {
    format!(
        "{{% set ns = namespace(x={first}, y={first}) %}}{{% for i in range({times}) %}}{step}{{% endfor %}}{{{{ ns.x|length }}}}"
    )
}

/// A list of numbers, or of maps with numbers, created once and used in a very long loop.
fn numbers(step: &str) -> String {
    format!(
        "{{% set l = range(99999)|list %}}{{% set m = range(99999)|list %}}{{% set ns = namespace(d={{}}) %}}\
         {{% for i in range(99999) %}}{step}{{% endfor %}}"
    )
}

fn bombs() -> Vec<String> {
    let repeat = |part: &str, times: usize| part.repeat(times);
    let grow = |step: &str| again(99, "'xxxxxxxx'", step);
    let nest = |step: &str| again(9_999, "[]", step);
    let raw = repeat("raw text ", 10_000);
    let mut all: Vec<String> = vec![
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".into(),
        // strings that grow
        grow("{% set ns.x = ns.x ~ ns.x %}"),
        grow("{% set ns.x = ns.x + ns.x %}"),
        grow("{% set ns.x = ns.x * 99 %}"),
        grow("{% set ns.x = ns.x.replace('x', ns.x) %}"),
        grow("{% set ns.x = ns.x|replace('', ns.x) %}"),
        grow("{% set ns.x = ns.x.join([ns.x, ns.x]) %}"),
        grow("{% set ns.x = [ns.x, ns.x]|join(ns.x) %}"),
        grow("{% set ns.x = [ns.x, ns.x]|string %}"),
        grow("{% set ns.x = [ns.x, ns.x]|tojson %}"),
        grow("{% set ns.x = '%s%s'|format(ns.x, ns.x) %}"),
        grow("{% set ns.x = '{}{}'.format(ns.x, ns.x) %}"),
        grow("{% set ns.x = '{0}{0}'.format(ns.x) %}"),
        grow("{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
        grow("{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}"),
        grow("{% set ns.x = ns.x|list + ns.x|list %}"),
        grow("{% set ns.x = (ns.x ~ '\\n' ~ ns.x)|indent(ns.x|length) %}"),
        grow("{% set ns.x = (ns.x ~ '\\n' ~ ns.x)|indent(ns.x) %}"),
        grow("{% set ns.x = ns.x.center(ns.x|length * 9) %}"),
        grow("{% set ns.x = [ns.x]|tojson(indent=ns.x|length) %}"),
        grow("{% set ns.x = (ns.x ~ ns.x)|upper|lower|title|capitalize|trim|e|safe|string %}"),
        grow("{% set ns.x = [ns.x, ns.x]|sum(start='') %}"),
        grow("{% filter upper %}{{ ns.x }}{% endfilter %}{% set ns.x = ns.x ~ ns.x %}"),
        // messages can grow too
        again(99, "messages[0].content", "{% set ns.x = ns.x ~ ns.x %}"),
        again(99999, "messages[0].content * 1000", "{% set y = ns.x ~ i %}{% set y = y.split('s') %}"),
        // lists that grow
        again(99, "[1]", "{% set ns.x = ns.x + ns.x %}"),
        again(99, "[1]", "{% set ns.x = ns.x * 2 %}"),
        again(99, "[1]", "{% set ns.x = ns.x|chain(ns.x)|list %}"),
        again(99, "[[1]]", "{% set ns.x = ns.x|sum(start=[]) + ns.x + ns.x %}"),
        again(99999, "{'a': 1}", "{% set ns.x = ns.x|chain({i: i}) %}"),
        "{{ [1] * 10 ** 8 }}".into(),
        "{{ [1] * 100000000 }}".into(),
        "{{ [1] * 1e8 }}".into(),
        "{{ (1, 2) * 10 ** 8 }}".into(),
        "{{ 'x' * 10 ** 9 }}".into(),
        "{% set n = 10 ** 8 %}{{ [1] * n }}".into(),
        "{% set n = 10 ** 9 %}{{ n * 'x' }}".into(),
        format!("{{{{ 'x' * {}1 }}}}", repeat("(1+1)*", 150)),
        "{{ 10 ** 9999999999 }}{{ (2 ** 127) * 'x' }}".into(),
        // widths
        "{{ 'x'.center(999999999999) }}".into(),
        "{{ 'x'.ljust(999999999999) }}".into(),
        "{{ 'x'.zfill(999999999999) }}".into(),
        "{{ 'x\ny'|indent(999999999999) }}".into(),
        "{{ [1]|tojson(indent=999999999999) }}".into(),
        "{{ '{:999999999999}'.format(1) }}".into(),
        "{{ '%999999999999d' % 1 }}".into(),
        "{{ '%.999999999999f' % 1 }}".into(),
        "{{ '%*d' % (999999999999, 1) }}".into(),
        "{{ '%.*f' % (999999999999, 1) }}".into(),
        "{{ '{:{}}'.format(1, 999999999999) }}".into(),
        "{{ [1]|batch(999999999999, 0) }}{{ [1]|slice(999999999999) }}".into(),
        "{{ [1]|slice(99999999)|list }}".into(),
        repeat("{{ 'x' * 99999999 }}", 999),
        repeat("{{ 'xxxxxxxx' * 999 * 999 }}", 999),
        repeat("{{ ('%999d' * 999) % (1,) }}", 999),
        // values in values
        nest("{% set ns.x = [ns.x] %}"),
        nest("{% set ns.x = {'a': ns.x} %}"),
        nest("{% set ns.x = (ns.x,) %}"),
        nest("{% set ns.x = dict(a=ns.x) %}"),
        again(9_999, "[1]", "{% set ns.x = ns.x|batch(1)|list %}"),
        again(9_999, "[1]", "{% set ns.x = ns.x|slice(1)|list %}"),
        again(9_999, "[1]", "{% set ns.x = ns.x|zip(ns.x)|list %}"),
        again(9_999, "[{'a': 1}]", "{% set ns.x = ns.x|groupby('a')|list %}{% set ns.x = [{'a': ns.x}] %}"),
        nest("{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{{ ns.x == ns.y }}"),
        nest("{% set ns.x = namespace(a=ns.x) %}"),
        nest("{% set ns.x = ns %}"),
        nest("{% set ns.x = [ns] %}"),
        nest("{% set ns.x = dict(a=ns) %}"),
        nest("{% set ns.x = ns.x + [1, 2, 3] %}{% for a in ns.x %}{% endfor %}"),
        // recursion
        "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('xxxxxxxx') }}".into(),
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}".into(),
        "{% macro f(x) %}{% call f(x) %}{{ caller() }}{% endcall %}{% endmacro %}{{ f(1) }}".into(),
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}".into(),
        "{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}".into(),
        "{% for x in [1, 1] recursive %}{% set y = loop([1, 1]) %}{% endfor %}".into(),
        // output
        format!("{{% set x %}}{{% for i in range(99999) %}}{raw}{{% endfor %}}{{% endset %}}"),
        format!("{{% for i in range(99999) %}}{raw}{{% endfor %}}"),
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ messages[0].content }}{% endfor %}{% endfor %}".into(),
        // products whose sum overflows
        repeat("{{ 'x' * 18446744073709551615 }}", 2),
        // long source
        format!("{{{{ {}1 }}}}", repeat("1+", 99_999)),
        format!("{{{{ {}1 }}}}", repeat("a.b|", 9_999)),
        format!("{{{{ {}1{} }}}}", repeat("(", 9_999), repeat(")", 9_999)),
        format!("{{{{ {}1 }}}}", repeat("not ", 9_999)),
        format!("{{% if a %}}{}{{% endif %}}", repeat("{% elif a %}", 9_999)),
        format!("{}{}", repeat("{% if a %}", 9_999), repeat("{% endif %}", 9_999)),
        repeat("long ", 999_999),
        // expressions that made the engine panic
        "{{ 1 is divisibleby 0 }}".into(),
        "{{ -170141183460469231731687303715884105728 is divisibleby -1 }}".into(),
        "{% for x in [1] %}{{ loop.cycle() }}{% endfor %}".into(),
    ];
    // numbers in lists are visited, compared, hashed and sorted
    all.extend(
        [
            "{% set a = 99999 in l %}",
            "{% set a = 99999 not in l %}",
            "{% set a = l is in [m] %}",
            "{% set a = l|max %}",
            "{% set a = l|min %}",
            "{% set a = l|sum %}",
            "{% set a = l|sort %}",
            "{% set a = l|unique|list %}",
            "{% set a = l|join %}",
            "{% set a = l|tojson %}",
            "{% set a = l|string|length %}",
            "{% set a = l|list %}",
            "{% set a = l|reverse|list %}",
            "{% set a = l|first in m %}",
            "{% set a = l[1:] %}",
            "{% set a = l + m %}",
            "{% set a = l == m %}",
            "{% set a = l != m %}",
            "{% set a = l < m %}",
            "{% set a = l is eq m %}",
            "{% set a = l is sameas m %}",
            "{% set a = (i ~ '') in l|string %}",
            "{% set a = l|select('odd')|list %}",
            "{% set a = l|select('in', m)|list %}",
            "{% set a = [i]|select('in', l)|list %}",
            "{% set a = [{'a': i}]|selectattr('a', 'in', l)|list %}",
            "{% set a = l|map('string')|list %}",
            "{% set a = l|map('divisibleby', 2)|list %}",
            "{% set a = l|groupby('a') %}",
            "{% set a = l|batch(9)|list %}",
            "{% set a = l.index(99998) %}",
            "{% set a = l.count(1) %}",
            "{% set a = {l|string: 1} %}",
            "{% set a = ns.d[l] %}",
            "{% set a = ns.d.get(l) %}",
            "{% set a = dict([(l, i)]) %}",
            "{% set a = loop.changed(l) %}",
            "{% set a = loop.cycle(l, m) %}",
            "{% set a = dict(x=l) %}",
            "{% set a = namespace(x=l) %}",
            "{% set a = l|tojson|trim %}",
            "{{ l }}",
        ]
        .map(numbers),
    );
    all
}

#[test]
fn bombs_end() {
    let mut wrong = Vec::new();
    for source in bombs() {
        match bounded(&source) {
            Err(error) if !matches!(error, TemplateError::Engine(_)) => {}
            made => wrong.push(format!("{source:.200}: {made:.90?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // long but harmless
    let repeat = |part: &str, times: usize| part.repeat(times);
    assert_eq!(render(&format!("{{{{ {}1 }}}}", repeat("-", 900))).as_deref(), Ok("1"));
    assert_eq!(render(&format!("{{{{ {}1 }}}}", repeat("1+", 400))).as_deref(), Ok("401"));
    assert!(render(&format!("{{% if a %}}{}{{% endif %}}", repeat("{% elif a %}", 499))).is_ok());
    assert_eq!(render("{{ '-' * 20 }}{{ 2 * 3 ** 2 }}").as_deref(), Ok("--------------------18"));
}

#[test]
fn former_panics_have_error_messages() {
    for (source, words) in [
        ("{{ 1 is divisibleby 0 }}", "invalid operation: divisibleby: 1 cannot be divided by 0"),
        (
            "{% for x in [1] %}{{ loop.cycle() }}{% endfor %}",
            "invalid operation: loop.cycle() takes at least one argument",
        ),
    ] {
        let error = render(source).unwrap_err().to_string();
        assert_eq!(error, format!("chat template, line 1: {words}"));
    }
    assert_eq!(render("{{ 6 is divisibleby 3 }}{{ 7 is divisibleby(3) }}").as_deref(), Ok("TrueFalse"));
    let cycle = "{% for x in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{% endfor %}";
    assert_eq!(render(cycle).as_deref(), Ok("aba"));
}

#[test]
fn a_cancelled_rendering_ends() {
    let messages = json!([{"role": "user", "content": "x".repeat(1 << 20)}]);
    let cancelled = Cancelled::when(|| true);
    let input = ChatInput { messages, cancelled, ..ChatInput::default() };
    let source = "{% for i in range(99999) %}{% set a = messages|tojson %}{% endfor %}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    assert_eq!(template.render(&input), Err(TemplateError::Cancelled));
}
